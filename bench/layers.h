/* layers.h: the time of whole layers and of attention, as papers report it; of whole training steps; of the rungs of
 * kernels/ladder. */
#ifndef LAYERS_H
#define LAYERS_H
#include "tests/model/trainee.h"

/* Seconds of copies that move COPY_LEAST << i bytes, read and written. */
enum { COPY_LEAST = 4096, COPY_SIZES = 18 };
typedef struct { double seconds[COPY_SIZES]; } Copies;
double copy_seconds(const Copies *c, double bytes);     /* of one that moves so many */

/* The SMoE MLP layer at twelve published sizes (SonicMoE, arXiv 2512.14080, figure 7), forward and backward without the
 * router's own products: plan, up, activation, down, combine; and back. Prints ms and TFLOP/s (6 and 12
 * times S*F*C). heads: of each size the mixture of attention heads instead, whole but for the router (layers.c says which).
 * In bf16 on a GPU also the layer's routed products alone, by cuBLASLt as strided batches of E equal parts, timed in turn with
 * the layer, and their share of the layer's time. shrink: divides the number of tokens, for slow devices. wait: for peers.py; a layer is timed
 * as it times others, and again for each line from standard input. */
void bench_layers(const Device *dev, int heads, const char *filter, int shrink, int wait);
/* The MLP layers, forward and backward, operation by operation (below). */
void bench_layer_parts(const Device *dev, const char *filter, int shrink, double product_rate,
                       const Copies *copies);

/* Attention alone: ms and TFLOP/s (4 and 10 for each visible (query, key) pair and element of a head). */
void bench_attention(const Device *dev, const char *filter, int wait);

/* Training steps of m12 (on a CPU, m4), queued anew each time and recorded: ms, tokens/s, and how often the host waits. */
void bench_steps(const Device *dev);
void bench_rounding(const Device *dev);         /* rounding.c */
void bench_ladder(const Device *dev);           /* ladder.c; dev: cuda-bf16 */
/* One training step, operation by operation. product_rate: flop/s. */
void bench_step(const Device *dev, const char *descriptor, TraineeOptions o, double product_rate, const Copies *copies);

/* dev with its routed products done by cuBLASLt as strided batches (ladder_uniform); 0 if there is no such thing. */
int find_ceiling(Device *limit, const Device *dev);

/* Work whose operations are timed one by one (step.c). */
typedef struct {
    void *work;
    void (*run)(void *work, const Device *dev);     /* all of it, by this device */
    void (*before)(void *work, int run);            /* what is not timed, or NULL */
    void *spare;                                    /* some MB that may be overwritten before it begins */
    size_t spare_bytes;
} Listed;
double time_operations(const Device *dev, const Listed *l, const Copies *copies);       /* seconds of the work as it is */
double print_operations(double product_rate, const Copies *copies);                     /* the table; returns flop */

double median(double *x, int n);                /* sorts x */
/* Median ms of a call of work(of): of `runs` batches of `calls` in a row, by the device's clock where it has one. A batch before
 * them warms up; after it the device rests, for `rest` seconds. */
double calls_ms(const Device *d, void (*work)(void *), void *of, int runs, int calls, double rest);
/* Normal numbers times scale, a prime number of them again and again: enough to be random, no two rows alike, soon made. */
void fill_normal(const Device *dev, floatX *to, size_t n, uint64_t key, double scale);
#endif
