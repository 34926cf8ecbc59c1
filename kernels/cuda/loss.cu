// loss.cu: cross entropy. The formulas stand in kernels/cpu/loss.c.
#include "ptx.cuh"
#include <float.h>
#include <math.h>

// exp(x - y). With bf16 logits the fast one does: the error is about 2^-21 where the result matters, against gradients
// stored with 2^-8, and the loss takes the logarithm of a sum of many. For float, the exact one.
__device__ static inline real exp_less(real x, real y) {
    const real log2e = 1.44269504f;
    return sizeof(floatX) == 2 ? exp2_fast((x - y) * log2e) : expf(x - y);
}

// One block per row. It brings the row into shared memory, as much of it as lets two blocks share a multiprocessor, so
// that one computes while the other's row is on its way; what is beyond (vocabularies of more than 56 thousand in
// bf16) is read again, out of the L2 cache. A thread works on the same places in both passes, so it waits for nobody.
// First, in four parts as they arrive, it keeps the maximum of what it has seen and the sum of exp(x - maximum), which
// it scales when the maximum grows; the block agrees on both; then gradients overwrite the logits. Moves 2*N*V
// elements with gradient, else N*V, and then it is instructions that count: what comes from shared memory and what does
// not has loops of its own, and of both AT_ONCE packs are under way.
enum { ROW_THREADS = 512, PARTS = 4, AT_ONCE = 2 };
__device__ static inline real largest(const Vec &a) {
#if defined(PRECISION_BF16)
    __nv_bfloat162 top = *(const __nv_bfloat162 *)a.x;      // two comparisons at a time
    for (int i = 2; i < VECTOR; i += 2) top = __hmax2(top, *(const __nv_bfloat162 *)&a.x[i]);
    return fmaxf(__low2float(top), __high2float(top));
#else
    return fmaxf(fmaxf(a.x[0], a.x[1]), fmaxf(a.x[2], a.x[3]));
#endif
}
__device__ static inline real largest(const Pack<1> &a) { return R(a.x[0]); }
// use(v, the W elements at v) for this thread's places from `first` on, of which step are those of all threads.
template<int W, class Use> __device__ static inline void each_pack(const floatX *x, int first, int end, int step, Use use) {
    int v = first;
    for (; v + (AT_ONCE - 1) * step < end; v += AT_ONCE * step) {
        Pack<W> a[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) a[i] = load<W>(x + v + i*step);
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) use(v + i*step, a[i]);
    }
    for (; v < end; v += step) use(v, load<W>(x + v));
}
template<int W> static __global__ void __launch_bounds__(ROW_THREADS) cross_entropy_kernel(real *loss,
        floatX *logits, const int *target, real scale, int gradient, int V, int used, int kept) {
    extern __shared__ uint4 shared_row[];                   // (kept) elements
    __shared__ real max_of[32], sum_of[32];
    const size_t n = blockIdx.x;
    const int goal = target[n], first = threadIdx.x * W, step = blockDim.x * W, whole = used / W * W;
    floatX *x = logits + n*V, *row = (floatX *)shared_row;
    const int part = (kept / W + blockDim.x * PARTS - 1) / (blockDim.x * PARTS) * step;
    #pragma unroll
    for (int p = 0; p < PARTS; p++) {
        for (int v = first + p * part; v < kept && v < (p + 1) * part; v += step)
            cp_async(shared_address(row + v), x + v, true);
        cp_async_commit();
    }
    if (gradient && goal < 0) {                             // without, nothing waits to know
        Pack<W> zeros;
        for (int i = 0; i < W; i++) zeros.x[i] = X(0);
        for (int v = first; v < V; v += step) store(x + v, zeros);
        if (threadIdx.x == 0) loss[n] = 0;
        cp_async_wait<0>();
        return;
    }
    const real hit = goal < 0 ? 0 : R(x[goal]);             // read by all before any of them writes
    const int near = kept < whole ? kept : whole, far = first + (kept + step - 1 - first) / step * step;
    real max = -FLT_MAX, sum = 0;
    auto add = [&](int v, const Pack<W> &a) {
        const real top = fmaxf(max, largest(a));
        real more = 0;
        #pragma unroll
        for (int i = 0; i < W; i++) more += exp_less(unpack(a).x[i], top);
        sum = sum * exp_less(max, top) + more;
        max = top;
    };
    auto add_part = [&](int p) {
        each_pack<W>(row, first + p * part, (p + 1) * part < near ? (p + 1) * part : near, step, add);
    };
    cp_async_wait<3>(); add_part(0);
    cp_async_wait<2>(); add_part(1);
    cp_async_wait<1>(); add_part(2);
    cp_async_wait<0>(); add_part(3);
    each_pack<W>(x, far, whole, step, add);                 // what was not kept
    if (first == whole % step && whole < used) {            // and the end that is no whole pack
        Pack<W> a = load<W>(whole < kept ? row + whole : x + whole);
        #pragma unroll
        for (int i = 0; i < W; i++) if (i >= used - whole) a.x[i] = X(-INFINITY);
        add(whole, a);
    }
    const int warps = blockDim.x / 32;
    const real warp_top = warp_max(max);
    sum = warp_sum(sum * exp_less(max, warp_top));
    if (threadIdx.x % 32 == 0) { max_of[threadIdx.x / 32] = warp_top; sum_of[threadIdx.x / 32] = sum; }
    __syncthreads();
    max = -FLT_MAX, sum = 0;
    for (int i = 0; i < warps; i++) max = fmaxf(max, max_of[i]);
    for (int i = 0; i < warps; i++) sum += sum_of[i] * exp_less(max_of[i], max);
    if (threadIdx.x == 0) loss[n] = goal < 0 ? 0 : logf(sum) + max - hit;
    if (!gradient) return;

    const real norm = scale / sum;
    auto derive = [&](int v, const Pack<W> &a) {
        Reals<W> d = unpack(a);
        #pragma unroll
        for (int i = 0; i < W; i++) d.x[i] = exp_less(d.x[i], max) * norm;
        if (v + W > used) for (int i = 0; i < W; i++) if (v + i >= used) d.x[i] = 0;
        store(x + v, pack(d));
        if (goal - v >= 0 && goal - v < W) x[goal] = X(exp_less(hit, max) * norm - scale);
    };
    each_pack<W>(row, first, kept, step, derive);
    each_pack<W>(x, far, V, step, derive);
}
static void cross_entropy(real *loss, floatX *logits, const int *target, float scale, int gradient, int N,
        int V, int used) {
    const bool w = wide(V, logits);
    const int units = w ? V / VECTOR : V, capacity = (context()->max_shared / 2 - 1024) / (int)sizeof(floatX);
    const int kept = !w || !gradient ? 0 : V < capacity ? V : capacity / VECTOR * VECTOR;     // read once: not at all
    const unsigned threads = units < ROW_THREADS ? (unsigned)divide_up(units, 32) * 32 : ROW_THREADS;
    auto kernel = w ? cross_entropy_kernel<VECTOR> : cross_entropy_kernel<1>;
    if (w) CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)(kept * sizeof(floatX))));
    LAUNCH(kernel, N, threads, kept * sizeof(floatX), loss, logits, target, scale, gradient, V, used, kept);
}

PART(loss) { d->cross_entropy = cross_entropy; }
