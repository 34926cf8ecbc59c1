/* ladder.h: how the fast kernels came about. For an operation of the Device table, a ladder of implementations, each
 * with one idea more than the one before; the last rung is what kernels/cuda/ runs. A rung takes the arguments of its
 * operation, for bf16, and is held to the same cases (run_tests ladder). README.md: the ideas; `make ladder`: the times. */
#ifndef LADDER_H
#define LADDER_H
#include "kernels/kernels.h"

/* The two operations that have ladders, as in kernels.h. */
#define PARALLEL_LINEAR(name) \
    void name(OUT floatX *out, const floatX *inp, const floatX *weight, const Plan *plan, \
              int C, int O, Rows inp_rows, Rows out_rows)
#define ATTENTION(name) \
    void name(OUT floatX *out, OUT real *lse, const floatX *q, const floatX *kv, HeadOrder order, \
              int B, int T, int G, int Q, int D)

PARALLEL_LINEAR(parallel_linear_naive);
PARALLEL_LINEAR(parallel_linear_tiled);
PARALLEL_LINEAR(parallel_linear_tensor_cores);
PARALLEL_LINEAR(parallel_linear_pipelined);
ATTENTION(attention_naive);
ATTENTION(attention_tiled);
ATTENTION(attention_tensor_cores);

typedef struct {
    const char *op, *file, *idea;           /* op: the field of Device */
    PARALLEL_LINEAR((*parallel_linear));    /* one of the two, */
    ATTENTION((*attention));
    const char *device;                     /* or what this device does */
} Rung;

const Rung *ladder_list(int i);             /* the i-th rung, an operation's in order; NULL past the end */
Device ladder_device(const Device *base, const Rung *rung);     /* base, with this rung for its operation */

/* The ceiling of ParallelLinear: base (cuda-bf16), with products by cuBLASLt of E equal parts of grouped rows, one strided
 * batch. It takes rows as they come, so its results mean nothing unless routing is balanced and everything sorted: it is
 * there to be timed. 0: the library is not there. */
int ladder_uniform(Device *d, const Device *base);
#endif
