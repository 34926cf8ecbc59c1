// expert.cu: an expert's nonlinearity, with the router weight's gradient (kernels/cpu/expert.c).
#include "expert.cuh"

// A block has several rows, a thread W columns at a time. Moves 3*M*F elements (gated) or 2*M*F.
template<Activation f, int W> static __global__ void forward_kernel(floatX *act, const floatX *pre, int M, int F) {
    const size_t m = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (m >= M) return;
    const floatX *gate = pre + m*F * (IS_GATED(f) ? 2 : 1);
    #pragma unroll 2
    for (int c = threadIdx.x * W; c < F; c += blockDim.x * W) {
        const Pack<W> g = load<W>(gate + c), up = IS_GATED(f) ? load<W>(gate + F + c) : g;
        Pack<W> to;
        #pragma unroll
        for (int i = 0; i < W; i++) to.x[i] = f == IDENTITY ? g.x[i] : X(slope_of<f>(R(g.x[i]), R(up.x[i])).act);
        store(act + m*F + c, to);
    }
}

// A row has a warp (8 rows per block), or a block of up to 256 threads if it is longer, for the dot
// product of da and act. slot_of_row NULL: row m is slot m. A thread reads before it writes: dpre
// may be pre, or da if of the same shape. end: end_of. Moves 6*M*F elements (gated) or 4*M*F.
template<Activation f, int W> static __global__ void backward_kernel(floatX *dpre, floatX *wact, real *dweight,
        const floatX *da, const floatX *pre, const real *weight, const int *slot_of_row, const int *end, int M, int F) {
    const size_t m = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (m >= M || (end && m >= *end)) return;
    const size_t slot = slot_of_row ? slot_of_row[m] : m, at = m*F * (IS_GATED(f) ? 2 : 1);
    const floatX *gate = pre + at;
    floatX *dgate = dpre + at;
    const real w = weight ? weight[slot] : 1;
    real dot = 0;
    for (int c = threadIdx.x * W; c < F; c += blockDim.x * W) {
        const Pack<W> d = load<W>(da + m*F + c), g = load<W>(gate + c), up = IS_GATED(f) ? load<W>(gate + F + c) : g;
        Pack<W> to, to_up, to_act;
        #pragma unroll
        for (int i = 0; i < W; i++) {
            const Slope s = slope_of<f>(R(g.x[i]), R(up.x[i]));
            const real v = R(d.x[i]);
            dot += v * s.act;
            to_act.x[i] = X(w * s.act);
            to.x[i]     = X(w * v * s.dgate);
            to_up.x[i]  = X(w * v * s.dup);
        }
        store(wact + m*F + c, to_act);
        store(dgate + c, to);
        if (IS_GATED(f)) store(dgate + F + c, to_up);
    }
    if (!dweight) return;
    dot = row_sum(dot);
    if (threadIdx.x == 0) dweight[slot] = dot;
}

#define KIND(kernel, f) { kernel<f, 1>, kernel<f, VECTOR> }
#define KINDS(kernel) \
    { KIND(kernel, SWIGLU), KIND(kernel, GELU), KIND(kernel, RELU2), KIND(kernel, IDENTITY), KIND(kernel, CLAMPED) }

static void activation_forward(floatX *act, const floatX *pre, Activation f, int M, int F) {
    static void (*const kernels[5][2])(floatX *, const floatX *, int, int) = KINDS(forward_kernel);
    const bool w = wide(F, act, pre);
    const dim3 block = rectangle(w ? F / VECTOR : F);
    LAUNCH(kernels[f][w], divide_up(M, block.y), block, 0, act, pre, M, F);
}
static void activation_backward(floatX *dpre, floatX *wact, real *dweight, const floatX *da,
        const floatX *pre, const real *weight, const Plan *plan, Rows rows, Activation f, int M, int F) {
    static void (*const kernels[5][2])(floatX *, floatX *, real *, const floatX *, const floatX *,
            const real *, const int *, const int *, int, int) = KINDS(backward_kernel);
    const bool w = wide(F, dpre, wact, da, pre);
    const dim3 block = row_threads(w ? F / VECTOR : F, 4, 256);
    LAUNCH(kernels[f][w], divide_up(M, block.y), block, 0, dpre, wact, dweight, da, pre, weight,
            plan && rows == GROUPED ? plan->slot_of_row : NULL, plan ? end_of(plan) : NULL, M, F);
}

PART(expert) {
    d->activation_forward = activation_forward;
    d->activation_backward = activation_backward;
}
