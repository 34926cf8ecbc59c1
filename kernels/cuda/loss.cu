// loss.cu: cross entropy.
//
// One block per row. It copies as much of it to shared memory as lets two blocks fit on a
// multiprocessor, so that one computes while the other's arrives; what does not fit (more than 56
// thousand in bf16) is read again, from L2. Threads have the same elements in both passes and wait
// for none. In the first, in PARTS parts as they arrive, a thread keeps the maximum so far and the
// sum of exp(x - maximum), scaled when that grows. The block combines these; in the second,
// gradients overwrite the logits. Moves 2*N*V elements with gradient; without it N*V, bound by
// instructions: hence a loop for each memory, with AT_ONCE packs in flight.
#include "fp8.cuh"
#include <float.h>
#include <math.h>

enum { ROW_THREADS = 512, PARTS = 4, AT_ONCE = 2 };

// exp(x - y), exact for float logits. Fast for bf16: its error is about 2^-21 where it matters;
// gradients are stored with 2^-8, and the loss takes the logarithm of a sum of many.
__device__ static inline real exp_difference(real x, real y) {
    return sizeof(floatX) == 2 ? exp2_fast((x - y) * LOG2E) : expf(x - y);
}
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

// bf16 takes the instruction, whose error is 2^-11.
__device__ static inline real tanh_of(real x) {
    if (sizeof(floatX) > 2) return tanhf(x);
    asm("tanh.approx.f32 %0, %0;" : "+f"(x));
    return x;
}
// The logits y of products x: cap tanh(x / cap), or x.
template<bool CAP, int W> __device__ static inline Reals<W> logits_of(const Pack<W> &x, real cap) {
    Reals<W> y = unpack(x);
    const real inverse = CAP ? 1 / cap : 0;
    #pragma unroll
    for (int i = 0; i < W && CAP; i++) y.x[i] = cap * tanh_of(y.x[i] * inverse);
    return y;
}

// use(v, the W elements at v) for v = first, first + step, ... before end.
template<int W, class Use> __device__ static inline void
each_pack(const floatX *x, int first, int end, int step, Use use) {
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

// The maximum of some logits, and the sum of exp(logit - max).
struct LogSum { real max, sum; };
template<int W> __device__ static inline void add_pack(LogSum &s, const Pack<W> &a) {
    const real top = fmaxf(s.max, largest(a));
    real more = 0;
    #pragma unroll
    for (int i = 0; i < W; i++) more += exp_difference(unpack(a).x[i], top);
    s.sum = s.sum * exp_difference(s.max, top) + more;
    s.max = top;
}
template<int W> __device__ static inline void add_reals(LogSum &s, const Reals<W> &y) {
    real top = s.max, more = 0;
    #pragma unroll
    for (int i = 0; i < W; i++) top = fmaxf(top, y.x[i]);
    #pragma unroll
    for (int i = 0; i < W; i++) more += exp_difference(y.x[i], top);
    s.sum = s.sum * exp_difference(s.max, top) + more;
    s.max = top;
}
// Over all threads of the block; all get it.
__device__ static inline LogSum block_log_sum(LogSum s) {
    __shared__ real max_of[32], sum_of[32];
    const int warps = blockDim.x / 32;
    const real warp_top = warp_max(s.max);
    s.sum = warp_sum(s.sum * exp_difference(s.max, warp_top));
    if (threadIdx.x % 32 == 0) { max_of[threadIdx.x / 32] = warp_top; sum_of[threadIdx.x / 32] = s.sum; }
    __syncthreads();
    s = { -FLT_MAX, 0 };
    for (int i = 0; i < warps; i++) s.max = fmaxf(s.max, max_of[i]);
    for (int i = 0; i < warps; i++) s.sum += sum_of[i] * exp_difference(max_of[i], s.max);
    return s;
}

// The targets of a row, -1 if there is none, and how much each counts.
struct Goals { int at[3]; real weight[3]; };
template<bool FURTHER> __device__ static inline Goals goals_of(const int *target, const int *position,
                                                               const real *scale) {
    Goals g = { { *target, -1, -1 }, { scale ? *scale : 1, 0, 0 } };
    for (int i = 1; FURTHER && i < 3 && position[i]; i++) {
        g.at[i] = target[i];
        g.weight[i] = target[i] < 0 ? 0 : scale[i];
    }
    return g;
}

// d.x[at] -= less, if there is such an element; registers have no index.
template<int W> __device__ static inline void subtract_at(Reals<W> &d, int at, real less) {
    if (at < 0 || at >= W) return;
    #pragma unroll
    for (int i = 0; i < W; i++) if (i == at) d.x[i] -= less;
}

// Where CODES of gradients go, coded as by fp8_codes.cu: a block of 128 columns has 16
// threads.
struct RowCodes { uint8_t *code; float *scale; };
template<bool CODES, int W> __device__ static inline void
put(const RowCodes &to, floatX *x, size_t at, const Pack<W> &a) {
    if constexpr (!CODES) store(x + at, a);
#if defined(PRECISION_BF16) && __CUDA_ARCH__ >= 890
    else {
        const unsigned lanes = 0xffffu << threadIdx.x % 32 / 16 * 16;
        const Reals<W> y = unpack(a);
        uint32_t most = 0;
        #pragma unroll
        for (int i = 0; i < W; i++) most = max(most, magnitude(y.x[i]));
        #pragma unroll
        for (int lane = 8; lane; lane /= 2) most = max(most, __shfl_xor_sync(lanes, most, lane));
        const float s = fp8_scale(most);
        *(uint2 *)(to.code + at) = fp8_codes(y.x, fp8_inverse(s));
        if (threadIdx.x % 16 == 0) to.scale[at / FP8_BLOCK] = s;
    }
#endif
}

// kept: how many elements of the row are copied to shared memory; full blocks of 128 if not all.
// With CAP the gradient passes logits_of, too: dy/dx = 1 - (y / cap)^2.
// FURTHER: there are positions, and more targets.
template<int W, bool CAP, bool FURTHER, bool CODES> static __global__ void __launch_bounds__(ROW_THREADS)
cross_entropy_kernel(real *loss, floatX *logits, const int *target, const int *position, const real *scale_at,
        real cap, int gradient, int V, int used, int kept, RowCodes codes) {
    extern __shared__ uint4 shared_row[];                   // (kept) elements
    const size_t n = blockIdx.x;
    const int goal = target[n], first = threadIdx.x * W, step = blockDim.x * W, full = used / W * W;
    floatX *x = logits + n*V, *row = (floatX *)shared_row;
    const int part = (kept / W + blockDim.x * PARTS - 1) / (blockDim.x * PARTS) * step;
    #pragma unroll
    for (int p = 0; p < PARTS; p++) {
        for (int v = first + p * part; v < kept && v < (p + 1) * part; v += step)
            cp_async(shared_address(row + v), x + v, true);
        cp_async_commit();
    }
    if (gradient && goal < 0) {                             // without gradient, nothing has to wait for the target
        Pack<W> zeros;
        for (int i = 0; i < W; i++) zeros.x[i] = X(0);
        for (int v = first; v < V; v += step) put<CODES>(codes, logits, n*V + v, zeros);
        if (threadIdx.x == 0) loss[n] = 0;
        cp_async_wait<0>();
        return;
    }
    const real hit = goal < 0 ? 0 : logits_of<CAP>(load<1>(x + goal), cap).x[0];
    const int near = kept < full ? kept : full, far = first + (kept + step - 1 - first) / step * step;
    LogSum s = { -FLT_MAX, 0 };
    auto add = [&](int, const Pack<W> &a) { CAP ? add_reals<W>(s, logits_of<CAP>(a, cap)) : add_pack<W>(s, a); };
    auto add_part = [&](int p) {
        each_pack<W>(row, first + p * part, (p + 1) * part < near ? (p + 1) * part : near, step, add);
    };
    cp_async_wait<3>(); add_part(0);
    cp_async_wait<2>(); add_part(1);
    cp_async_wait<1>(); add_part(2);
    cp_async_wait<0>(); add_part(3);
    each_pack<W>(x, far, full, step, add);                  // what is not in shared memory
    if (first == full % step && full < used) {              // the end, less than a pack
        Reals<W> y = logits_of<CAP>(load<W>(full < kept ? row + full : x + full), cap);
        #pragma unroll
        for (int i = 0; i < W; i++) if (i >= used - full) y.x[i] = -INFINITY;
        add_reals<W>(s, y);
    }
    s = block_log_sum(s);
    if (threadIdx.x == 0) loss[n] = goal < 0 ? 0 : logf(s.sum) + s.max - hit;
    if (!gradient) return;

    const Goals g = goals_of<FURTHER>(target + n, position + n, scale_at);
    const real norm = (g.weight[0] + g.weight[1] + g.weight[2]) / s.sum, steep = CAP ? 1 / (cap * cap) : 0;
    auto derive = [&](int v, const Pack<W> &a) {
        const Reals<W> y = logits_of<CAP>(a, cap);
        Reals<W> d;
        #pragma unroll
        for (int i = 0; i < W; i++) d.x[i] = exp_difference(y.x[i], s.max) * norm;
        for (int i = 0; i < (FURTHER ? 3 : 1); i++) subtract_at<W>(d, g.at[i] - v, g.weight[i]);
        #pragma unroll
        for (int i = 0; i < W && CAP; i++) d.x[i] *= 1 - y.x[i] * y.x[i] * steep;
        for (int i = 0; i < W && v + W > used; i++) if (v + i >= used) d.x[i] = 0;
        put<CODES>(codes, logits, n*V + v, pack(d));
    };
    each_pack<W>(row, first, kept, step, derive);
    each_pack<W>(x, far, V, step, derive);
}
template<bool FURTHER, bool CODES> static auto kernel_of(bool w, bool capped) {
    enum { ONE = CODES ? VECTOR : 1 };                      // codes are always wide
    return w ? capped ? cross_entropy_kernel<VECTOR, true, FURTHER, CODES>
                      : cross_entropy_kernel<VECTOR, false, FURTHER, CODES>
             : capped ? cross_entropy_kernel<ONE, true, FURTHER, CODES>
                      : cross_entropy_kernel<ONE, false, FURTHER, CODES>;
}
template<bool CODES> static void launch(real *loss, floatX *logits, const int *target, const int *position,
        const real *scale, float cap, int gradient, int N, int V, int used, RowCodes codes) {
    const bool w = wide(V, logits);
    const int units = w ? V / VECTOR : V, capacity = (context()->max_shared / 2 - 1024) / (int)sizeof(floatX);
    const int blocks = capacity / FP8_BLOCK * FP8_BLOCK;
    const int kept = !w || !gradient ? 0 : V < capacity ? V : blocks;   // 0 if the row is read once
    const unsigned threads = units < ROW_THREADS ? (unsigned)divide_up(units, 32) * 32 : ROW_THREADS;
    auto kernel = position ? kernel_of<true, CODES>(w, cap > 0) : kernel_of<false, CODES>(w, cap > 0);
    LAUNCH(kernel, N, threads, kept * sizeof(floatX), loss, logits, target, position, scale,
           cap, gradient, V, used, kept, codes);
}
static void cross_entropy(real *loss, floatX *logits, const int *target, const int *position, const real *scale,
        float cap, int gradient, int N, int V, int used) {
    launch<false>(loss, logits, target, position, scale, cap, gradient, N, V, used, {});
}

// ---- soft cap -----------------------------------------------------------------------------------

template<int W> static __global__ void __launch_bounds__(256) soft_cap_kernel(floatX *x, real cap, real inverse,
        size_t units) {
    const size_t i = global_index();
    if (i >= units) return;
    Reals<W> v = unpack(load<W>(x + i * W));
    for (int j = 0; j < W; j++) v.x[j] = cap * tanh_of(v.x[j] * inverse);
    store(x + i * W, pack(v));
}
static void soft_cap(floatX *x, float cap, size_t n) {
    const bool w = wide(n, x);
    const size_t units = w ? n / VECTOR : n;
    auto kernel = w ? soft_cap_kernel<VECTOR> : soft_cap_kernel<1>;
    LAUNCH(kernel, (unsigned)divide_up(units, 256), 256, 0, x, cap, 1 / cap, units);
}

PART(loss) { d->cross_entropy = cross_entropy; d->soft_cap = soft_cap; }

#if defined(PRECISION_BF16)
static void fp8_cross_entropy(const Device *, OUT real *loss, OUT Fp8 dlogits, const floatX *logits, const int *target,
        const int *position, const real *scale, float cap, int N, int V, int used) {
    launch<true>(loss, (floatX *)logits, target, position, scale, cap, 1, N, V, used, { dlogits.code, dlogits.scale });
}
PART_OF(Fp8Operations, fp8_loss) { d->cross_entropy = fp8_cross_entropy; }
#endif
