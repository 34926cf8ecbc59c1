/* layers.h: the benchmarks besides single operations: layers and attention as papers report them,
 * training steps, the rungs of kernels/ladder, rounded routing; and the timing that they have in
 * common. */
#pragma once
#include "tests/model/trainee.h"

/* Seconds of copies that move COPY_LEAST << i bytes, counting reads and writes. */
enum { COPY_LEAST = 4096, COPY_SIZES = 18 };
typedef struct { double seconds[COPY_SIZES]; } Copies;
double copy_seconds(const Copies *c, double bytes);     /* of a copy that moves this many */

/* The SMoE MLP layer at twelve published sizes (SonicMoE, arXiv 2512.14080, figure 7), forward and
 * backward without the router's products: plan, up, activation, down, combine; and back. Prints ms
 * and TFLOP/s (6 and 12 times S*F*C).
 * heads: the mixture of attention heads of each size instead, without the router (layers.c defines
 * it).
 * In bf16 on a GPU it alternates with the layer's routed products alone, as strided batches of E
 * equal groups of rows by cuBLASLt, and prints their fraction of the layer's time. shrink: divides
 * the number of tokens, for slow devices. wait: for peers.py: a layer is timed as peers.py times
 * the others, and again for each line of standard input. */
void bench_layers(const Device *dev, int heads, const char *filter, int shrink, int wait);
/* The MLP layers, forward and backward, operation by operation (step.c). */
void bench_layer_parts(const Device *dev, const char *filter, int shrink, double product_rate,
                       const Copies *copies);

/* Attention alone: ms and TFLOP/s (4 and 10 flop for each visible (query, key) pair and element of
 * a head). */
void bench_attention(const Device *dev, const char *filter, int wait);

/* Training steps of m12 (on a CPU, m4), queued each time and recorded once: ms, tokens/s, and how
 * often the host waits. */
void bench_steps(const Device *dev);
/* Steps in which backward makes parts of layers once more (train_moe -r): ms and bytes beside what
 * the plan says (parts.c). */
void bench_parts(const Device *dev);
void bench_rounding(const Device *dev);         /* rounding.c */
void bench_ladder(const Device *dev);           /* ladder.c; dev: cuda-bf16 */
/* decode.c: tokens per second of models with random weights; and how fast such a model's folder is
 * read, which is written first. */
void bench_decoding(const Device *dev, const char *filter, const Copies *copies);
void bench_loading(const Device *dev, const char *filter, const char *folder);
/* One training step, operation by operation. product_rate: flop/s. */
void bench_step(const Device *dev, const char *descriptor, TraineeOptions o, double product_rate, const Copies *copies);

/* dev with its routed products by cuBLASLt as strided batches (ladder_uniform); 0 if that is not
 * available. */
int find_ceiling(Device *limit, const Device *dev);

/* Work whose operations are timed one by one (step.c). */
typedef struct {
    void *work;
    void (*run)(void *work, const Device *dev);     /* all of it, by this device */
    void (*before)(void *work, int run);            /* what is not timed, or NULL */
    void *spare;                                    /* some MB that may be overwritten before each run */
    size_t spare_bytes;
} Listed;
/* seconds of the work, untimed inside */
double time_operations(const Device *dev, const Listed *l, const Copies *copies);
double print_operations(double product_rate, const Copies *copies);                     /* the table; returns flop */

double median(double *x, int n);                /* sorts x */
/* Median ms of a call of work(of), of `runs` batches of `calls` in a row, by the device's clock if
 * it has one. A batch before them warms up; after it the device rests for `rest` seconds. */
double calls_ms(const Device *d, void (*work)(void *), void *of, int runs, int calls, double rest);
/* Normal numbers times scale. A prime number of them is drawn and repeated, which is fast and gives
 * no two equal rows. */
void fill_normal(const Device *dev, floatX *to, size_t n, uint64_t key, double scale);
