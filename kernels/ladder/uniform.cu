// uniform.cu: see ladder_uniform in ladder.h. cuBLAS is column-major: out^T = weight inp^T.
#include "kernels/cuda/dense.cuh"
extern "C" {
#include "kernels/compound.h"
#include "ladder.h"
}

static void product(void *c, bool c_real, const floatX *a, bool a_transposed, const floatX *b, bool b_transposed,
                    int m, int n, int k, int E) {
    if (!dense_product(c, c_real, false, a, a_transposed, b, b_transposed, m, n, k, E))
        cuda_fail(__FILE__, __LINE__, "cuBLASLt, strided batch", cudaErrorNotSupported);
}
static int rows_of(const Plan *plan) { return (int)((int64_t)plan->N * plan->K / plan->E); }

static void forward(floatX *out, const floatX *inp, const floatX *weight, const Plan *plan, int C, int O, Rows, Rows) {
    product(out, false, weight, true, inp, false, O, rows_of(plan), C, plan->E);
}
static void backward_input(floatX *dinp, const floatX *dout, const floatX *weight, const Plan *plan, int C, int O,
                           Rows, Rows) {
    product(dinp, false, weight, false, dout, false, C, rows_of(plan), O, plan->E);
}
static void backward_weight(void *dweight, const floatX *dout, const floatX *inp, const Plan *plan, int C, int O,
                            Rows, Rows, Write how) {
    product(dweight, how != SET_ROUNDED, inp, false, dout, true, C, O, rows_of(plan), plan->E);
}

int ladder_uniform(Device *d, const Device *base) {
    enum { M = 64 };
    floatX *x = (floatX *)base->alloc(4 * M * M * sizeof(floatX));  // a small product, to see whether the library works
    const bool works = x && dense_product(x, false, false, x + 2 * M * M, false, x + 3 * M * M, false, M, M, M / 2, 2);
    base->sync();
    if (x) base->release(x);
    if (!works) return 0;
    *d = *base;
    d->name = "cuBLASLt";
    d->parallel_linear_forward = forward;
    d->parallel_linear_backward_input = backward_input;
    d->parallel_linear_backward_weight = backward_weight;
    d->expert_up_forward = compound_expert_up_forward;
    d->expert_down_backward = compound_expert_down_backward;
    return 1;
}
