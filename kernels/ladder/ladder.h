/* ladder.h: how the fast kernels came about. For three operations of the Device table, a ladder of
 * implementations. Each rung adds one idea to the one before; the last is what kernels/cuda/ or
 * kernels/cpu/ runs. A rung has the arguments of its operation, for bf16 on GPUs and f32 on CPUs,
 * and must pass the same cases (run_tests ladder). README.md: ideas; `make ladder`: times. */
#pragma once
#include "kernels/kernels.h"

/* Operations with ladders, as in kernels.h; a row of attention is one sample: position is NULL. */
#define PARALLEL_LINEAR(name) \
    void name(OUT floatX *out, const floatX *inp, const floatX *weight, const Plan *plan, \
              int C, int O, Rows inp_rows, Rows out_rows)
#define ATTENTION(name) \
    void name(OUT floatX *out, OUT real *lse, const floatX *q, const floatX *kv, const int *position, HeadOrder order, \
              int B, int T, int G, int Q, int D)
#define FP8_LINEAR(name) \
    void name(const Device *d, OUT floatX *out, Fp8 inp, Fp8 weight, const Plan *plan, int C, int O)

PARALLEL_LINEAR(cpu_parallel_linear_naive);
PARALLEL_LINEAR(cpu_parallel_linear_vectors);
PARALLEL_LINEAR(cpu_parallel_linear_registers);
PARALLEL_LINEAR(parallel_linear_naive);
PARALLEL_LINEAR(parallel_linear_tiled);
PARALLEL_LINEAR(parallel_linear_tensor_cores);
PARALLEL_LINEAR(parallel_linear_pipelined);
ATTENTION(attention_naive);
ATTENTION(attention_tiled);
ATTENTION(attention_tensor_cores);
FP8_LINEAR(cpu_fp8_linear_naive);
FP8_LINEAR(fp8_linear_naive);
FP8_LINEAR(fp8_linear_tensor_cores);

typedef struct {
    const char *base, *op, *file, *idea;    /* base: the device that it is for; op: the field of Device */
    PARALLEL_LINEAR((*parallel_linear));    /* one of these, */
    ATTENTION((*attention));
    FP8_LINEAR((*fp8_linear));
    const char *device;                     /* or this device's own implementation */
} Rung;

const Rung *ladder_list(int i);         /* the i-th rung, grouped by base and operation, in order; NULL past the end */
Device ladder_device(const Device *base, const Rung *rung);     /* base, with this rung for its operation */

/* An upper limit for ParallelLinear, for timing only: base (cuda-bf16) with products by cuBLASLt as
 * one strided batch of E equal groups of rows. It neither gathers rows nor reads the plan, so its
 * results are wrong unless routing is balanced and rows are sorted. 0: no library. */
int ladder_uniform(Device *d, const Device *base);

/* For tests, on the GPU that is open: fills all shared memory with NaN, as floats, and -1, as
 * integers. A kernel that reads what it has not written then finds these. */
void ladder_poison(void);
