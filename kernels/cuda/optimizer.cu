// optimizer.cu: the loss at one end of a step, the update at the other, and the sums they need. The formulas
// stand in kernels/cpu/optimizer.c.
#include "ptx.cuh"
#include "kernels/random.h"
#include <float.h>
#include <math.h>

// ---- cross entropy ----------------------------------------------------------------------------------------

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

// ---- sums -------------------------------------------------------------------------------------------------
// A line of elements is cut into equal shares, one per block. Threads add in float, blocks and what follows in
// double, in order.

enum { BLOCKS = 4096, THREADS = 256, LEAST = 4096 };        // elements of a share, at least

__host__ __device__ static inline size_t share_of(size_t total, size_t parts) {
    const size_t share = divide_up(divide_up(total, parts), 1024) * 1024;
    return share > LEAST ? share : LEAST;
}
// Sums have as many blocks as 132 multiprocessors hold at once, or twice as many as with squares: every round has a beginning
// in which nothing is read. A thread should not add too many floats, so long lines have more shares, up to BLOCKS, of which a
// block takes several.
enum { SUM_BLOCKS = 8 * 132, LONG = 1 << 17 };
__host__ __device__ static inline size_t sum_share_of(size_t total) {
    const size_t share = share_of(total, SUM_BLOCKS), least = share_of(total, BLOCKS);
    return share < LONG ? share : least > LONG ? least : LONG;
}

// The sum of x or of its squares over a block; 16 bytes at a time after the
// first few.
template<bool SQUARED, class T> __device__ static double range_sum(const T *x, size_t n) {
    enum { W = 16 / sizeof(T) };
    struct alignas(16) Vector { T x[W]; };
    auto value = [](T v) { return SQUARED ? (real)v * (real)v : (real)v; };
    const size_t odd = (16 - (uintptr_t)x % 16) % 16 / sizeof(T), head = odd < n ? odd : n;
    const size_t vectors = (n - head) / W;
    const Vector *body = (const Vector *)(x + head);
    real of[4] = { 0, 0, 0, 0 }, rest = 0;
    #pragma unroll 4
    for (size_t i = threadIdx.x; i < vectors; i += THREADS) {
        const Vector v = body[i];
        for (int j = 0; j < W; j++) of[j % 4] += value(v.x[j]);
    }
    if (threadIdx.x < head) rest += value(x[threadIdx.x]);
    const size_t tail = head + W * vectors + threadIdx.x;
    if (tail < n) rest += value(x[tail]);
    return block_sum<THREADS / 32>((double)of[0] + (double)of[1] + (double)of[2] + (double)of[3] + (double)rest);
}

static __global__ void sum_kernel(double *partial, const real *x, size_t n, size_t share) {
    const size_t from = blockIdx.x * share;
    const double sum = range_sum<false>(x + from, n - from < share ? n - from : share);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
static __global__ void sum_finish_kernel(real *out, const double *partial, int count) {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += 32) sum += partial[i];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) *out = (real)sum;
}
static void sum(real *out, const real *inp, size_t n) {
    const size_t share = sum_share_of(n), blocks = divide_up(n, share);
    double *const partial = (double *)workspace(BLOCKS * sizeof(double));
    LAUNCH(sum_kernel, blocks, THREADS, 0, partial, inp, n, share);
    LAUNCH(sum_finish_kernel, 1, 32, 0, out, partial, (int)blocks);
}

// ---- segments ---------------------------------------------------------------------------------------------
// Laid end to end, the segments make one line. Each block takes its share of that line, whichever segments it
// meets there, so that one launch does for all of them and no block has more to do than another. Every warp
// looks for itself where it is.

__device__ static size_t line_length(const Segment *segments, int count) {
    size_t sum = 0;
    for (int s = threadIdx.x % 32; s < count; s += 32) sum += segments[s].count;
    return warp_sum(sum);
}
typedef struct { int segment; size_t begin; } Place;        // begin: of the segment, on the line
__device__ static Place line_find(const Segment *segments, int count, size_t at) {
    const int lane = threadIdx.x % 32;
    size_t before = 0;
    for (int from = 0; ; from += 32) {
        const size_t mine = from + lane < count ? segments[from + lane].count : 0;
        size_t upto = before + mine;
        for (int d = 1; d < 32; d *= 2) {
            const size_t left = __shfl_up_sync(ALL, upto - before, d);
            if (lane >= d) upto += left;
        }
        const unsigned past = __ballot_sync(ALL, at < upto);
        if (past) {
            const int who = __ffs(past) - 1;
            return { from + who, __shfl_sync(ALL, upto - mine, who) };
        }
        before = __shfl_sync(ALL, upto, 31);
    }
}

// What is found in segment s of share i is partial[i + s]: along the line one of the two always grows, so no two
// meet.
static __global__ void __launch_bounds__(THREADS, 4) grad_sq_norms_kernel(double *partial, const void *grads,
        const Segment *segments, int count) {
    const size_t length = line_length(segments, count), share = sum_share_of(length);
    for (size_t i = blockIdx.x; i * share < length; i += gridDim.x) {
        size_t at = i * share;
        const size_t end = length - at < share ? length : at + share;
        for (Place p = line_find(segments, count, at); at < end; p.segment++) {
            const Segment s = segments[p.segment];
            const size_t stop = p.begin + s.count < end ? p.begin + s.count : end;
            const size_t from = s.gradient + (at - p.begin), n = stop - at;
            const double sum = s.dtype == REAL ? range_sum<true>((const real *)grads + from, n)
                                                   : range_sum<true>((const floatX *)grads + from, n);
            if (threadIdx.x == 0) partial[i + p.segment] = sum;
            at = stop;
            p.begin += s.count;
        }
    }
}
// One block. Its warps take the segments by turns and add up what was found in them; then all segments are
// added.
static __global__ void __launch_bounds__(1024) grad_sq_norms_finish_kernel(real *out, double *of_segment,
        const double *partial, const Segment *segments, int count) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t share = sum_share_of(line_length(segments, count));
    size_t begin = warp_sum(lane < warp && lane < count ? segments[lane].count : 0);
    for (int s = warp; s < count; s += 32) {
        const size_t n = segments[s].count;
        double sum = 0;
        if (n) for (size_t b = begin / share + lane; b <= (begin + n - 1) / share; b += 32) sum += partial[b + s];
        sum = warp_sum(sum);
        if (lane == 0) { out[s] = (real)sum; of_segment[s] = sum; }
        begin += warp_sum(s + lane < count ? segments[s + lane].count : 0);
    }
    __syncthreads();
    double sum = 0;
    for (int s = lane; s < count; s += 32) sum += of_segment[s];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) out[count] = (real)sum;
}
static void grad_sq_norms(real *out, const void *grads, const Segment *segments, int count) {
    double *const of_segment = (double *)workspace((BLOCKS + 2 * (size_t)count) * sizeof(double));
    double *const partial = of_segment + count;
    if (count) LAUNCH(grad_sq_norms_kernel, SUM_BLOCKS, THREADS, 0, partial, grads, segments, count);
    LAUNCH(grad_sq_norms_finish_kernel, 1, 1024, 0, out, of_segment, partial, segments, count);
}

// ---- AdamW ------------------------------------------------------------------------------------------------

// One of the two neighbours of r in floatX, by 16 random bits: as in kernels/cpu/impl.h.
__device__ static inline floatX X_random(real r, uint32_t bits) {
#if defined(PRECISION_BF16)
    const uint32_t u = __float_as_uint(r);
    return __ushort_as_bfloat16(r != r ? 0x7fc0 : (unsigned short)((u + (bits & 0xffff)) >> 16));
#else
    return r;
#endif
}

// What all updates of a launch have in common. M: real or floatX.
template<class M> struct Update {
    floatX *weight;
    real *master;
    M *m, *v;
    real lr, b1, b2, eps, fix1, fix2;
    uint64_t key;
};

template<class T, int W> struct alignas(W * sizeof(T)) Some { T x[W]; };
template<int W, class T> __device__ static inline Some<T, W> some(const T *p) { return *(const Some<T, W> *)p; }
template<int W, class M, class G> __device__ static inline void update(const Update<M> &u, const G *g_at, size_t i, size_t shift, size_t without_v,
        real scale, real shrink) {
    const size_t at = i - shift, v_at = at - without_v;
    const Some<G, W> grad = some<W>(g_at);
    Some<M, W> m = some<W>(u.m + at), v = some<W>(u.v + v_at);
    Some<real, W> master;
    Some<floatX, W> weight;
    if (u.master) master = some<W>(u.master + at);
    else {
        weight = some<W>(u.weight + i);
        for (int j = 0; j < W; j++) master.x[j] = R(weight.x[j]);
    }
    const bool random = !u.master || sizeof(M) < sizeof(real);
    uint64_t bits = 0;
    for (int j = 0; j < W; j++) {
        if (random && (W == 1 || j % 2 == 0)) bits = random_bits(u.key, (i + j) / 2);   // i is even where W is 4
        const uint32_t mine = bits >> (i + j) % 2 * 32;
        const real g = (real)grad.x[j] * scale;
        const real mean = u.b1 * (real)m.x[j] + (1 - u.b1) * g, square = u.b2 * (real)v.x[j] + (1 - u.b2) * g * g;
        const real w = master.x[j] * shrink
                     - __fdividef(u.lr * (mean * u.fix1), sqrt_approx(square * u.fix2) + u.eps);
        m.x[j] = (M)mean;
        v.x[j] = sizeof(M) < sizeof(real) ? (M)X_random(square, mine >> 16) : (M)square;
        master.x[j] = w;
        weight.x[j] = u.master ? X(w) : X_random(w, mine);
    }
    *(Some<M, W> *)(u.m + at) = m;
    *(Some<M, W> *)(u.v + v_at) = v;
    if (u.master) *(Some<real, W> *)(u.master + at) = master;
    *(Some<floatX, W> *)(u.weight + i) = weight;
}
// Elements from .. to - 1 of the segment, whose gradient begins at grad, by a block.
template<class M, class G> __device__ static inline void update_range(const Update<M> &u, const Segment &s, const G *grad,
        size_t from, size_t to, real scale, real shrink, bool aligned) {
    const size_t odd = aligned ? (from + 3) / 4 * 4 : to, body = odd < to ? odd : to, tail = body + (to - body) / 4 * 4;
    grad -= s.offset;
    for (size_t i = from + threadIdx.x; i < body; i += THREADS) update<1>(u, grad + i, i, s.shift, s.without_v, scale, shrink);
    for (size_t i = body + 4 * threadIdx.x; i < tail; i += 4 * THREADS) update<4>(u, grad + i, i, s.shift, s.without_v, scale, shrink);
    for (size_t i = tail + threadIdx.x; i < to; i += THREADS) update<1>(u, grad + i, i, s.shift, s.without_v, scale, shrink);
}

// A block updates its share of the line of segments, four elements of a thread at a time: 16 bytes each of
// gradient, m, v and master (8 of bf16). The gradient's norm is read here, so that the host need not wait for
// it. Moves 30 bytes per element with a master copy of bf16 weights, 28 for float, 24 for bf16 weights without
// a master, 16 if m and v are bf16 too; and 2 less where the gradient is bf16. Root and quotient are the
// approximate instructions, right to one and two units of f32: rounded exactly, arithmetic and not memory would
// limit the last form (84 instead of 94 % of a copy).
template<class M> static __global__ void adamw_kernel(floatX *weight, real *master, M *m, M *v, const void *grads,
        const real *grad_sq_norms, const Segment *segments, int count, const AdamW *settings, int aligned) {
    const AdamW a = *settings;
    const real norm = sqrtf(grad_sq_norms[count]);
    if (!(norm <= 3e38f)) return;                           // NaN or infinite: this step does not happen
    const real scale = a.clip > 0 && norm > a.clip ? a.clip / norm : 1;
    Update<M> u = { weight, master, m, v, a.lr, a.beta1, a.beta2, a.eps, (real)a.fix1, (real)a.fix2, a.key };
    const size_t length = line_length(segments, count), share = share_of(length, BLOCKS);
    size_t at = blockIdx.x * share;
    const size_t end = length - at < share ? length : at + share;
    if (at >= length) return;
    Place p = line_find(segments, count, at);
    for (; at < end; p.segment++) {
        const Segment s = segments[p.segment];
        const size_t stop = p.begin + s.count < end ? p.begin + s.count : end;
        const size_t from = s.offset + (at - p.begin), to = s.offset + (stop - p.begin);
        const bool fours = aligned && (s.shift | s.without_v) % 4 == 0 && (s.gradient - s.offset) % 4 == 0;
        u.lr = a.lr * s.rate;
        const real shrink = 1 - u.lr * a.decay * s.decay;
        if (s.dtype == REAL) update_range(u, s, (const real *)grads + s.gradient, from, to, scale, shrink, fours);
        else update_range(u, s, (const floatX *)grads + s.gradient, from, to, scale, shrink, fours);
        at = stop;
        p.begin += s.count;
    }
}
static void adamw(floatX *weight, real *master, void *m, void *v, Dtype moments, const void *grads,
        const real *grad_sq_norms, const Segment *segments, int count, const AdamW *a) {
    const uintptr_t all = (uintptr_t)weight | (uintptr_t)master | (uintptr_t)m | (uintptr_t)v | (uintptr_t)grads;
    if (count && moments == REAL)
        LAUNCH(adamw_kernel<real>, BLOCKS, THREADS, 0, weight, master, (real *)m, (real *)v, grads, grad_sq_norms, segments,
               count, a, all % 16 == 0);
    else if (count)
        LAUNCH(adamw_kernel<floatX>, BLOCKS, THREADS, 0, weight, master, (floatX *)m, (floatX *)v, grads, grad_sq_norms,
               segments, count, a, all % 16 == 0);
}

// A thread adds 4 elements, or the last few one by one. Moves 12 bytes an element.
static __global__ void accumulate_kernel(real *acc, const real *x, size_t n, int aligned) {
    const size_t from = global_index() * 4;
    if (aligned && from + 4 <= n) {
        Some<real, 4> sum = some<4>(acc + from);
        const Some<real, 4> more = some<4>(x + from);
        for (int i = 0; i < 4; i++) sum.x[i] += more.x[i];
        *(Some<real, 4> *)(acc + from) = sum;
    } else
        for (size_t i = from; i < n && i < from + 4; i++) acc[i] += x[i];
}
static void accumulate(real *acc, const real *x, size_t n) {
    LAUNCH(accumulate_kernel, divide_up(n, THREADS * 4), THREADS, 0, acc, x, n, ((uintptr_t)acc | (uintptr_t)x) % 16 == 0);
}

// A thread converts W elements, the last one maybe fewer.
template<int W> static __global__ void set_master_kernel(real *master, const floatX *weight, size_t n) {
    const size_t from = global_index() * W;
    if (from + W <= n) {
        const Pack<W> w = load<W>(weight + from);
        Some<real, W> to;
        for (int i = 0; i < W; i++) to.x[i] = R(w.x[i]);
        *(Some<real, W> *)(master + from) = to;
    } else
        for (size_t i = from; i < n; i++) master[i] = R(weight[i]);
}
static void set_master(real *master, const floatX *weight, size_t n) {
    const bool w = ((uintptr_t)master | (uintptr_t)weight) % 16 == 0;
    auto kernel = w ? set_master_kernel<4> : set_master_kernel<1>;
    LAUNCH(kernel, divide_up(n, THREADS * (w ? 4 : 1)), THREADS, 0, master, weight, n);
}

PART(optimizer) {
    d->cross_entropy = cross_entropy;  d->sum = sum;  d->grad_sq_norms = grad_sq_norms;
    d->adamw = adamw;                  d->set_master = set_master;    d->accumulate = accumulate;
}
