// optimizer.cu: the squared norms of the gradients, and the update.
#include "sum.cuh"
#include "ptx.cuh"
#include <math.h>

// ---- segments -----------------------------------------------------------------------------------
// Laid end to end, the segments make one line, of which each block takes an equal part, whatever
// segments it covers: one launch for all. Every warp finds its own segment.

__device__ static size_t line_length(const Segment *segments, int count) {
    size_t sum = 0;
    for (int s = threadIdx.x % 32; s < count; s += 32) sum += segments[s].count;
    return warp_sum(sum);
}
// The segment that contains element `at` of the line, and where on the line it begins.
typedef struct { int segment; size_t begin; } LinePosition;
__device__ static LinePosition line_find(const Segment *segments, int count, size_t at) {
    const int lane = threadIdx.x % 32;
    size_t before = 0;
    for (int from = 0; ; from += 32) {
        const size_t mine = from + lane < count ? segments[from + lane].count : 0, end = before + warp_scan(mine);
        const unsigned past = __ballot_sync(ALL, at < end);
        if (past) {
            const int first = __ffs(past) - 1;
            return { from + first, __shfl_sync(ALL, end - mine, first) };
        }
        before = __shfl_sync(ALL, end, 31);
    }
}
// use(number, segment, from, n) for each segment in at .. end-1 of the line: its n from `from` on.
template<class Use> __device__ static inline void each_segment(const Segment *segments, int count, size_t at,
                                                               size_t end, Use use) {
    LinePosition p = line_find(segments, count, at);
    for (; at < end; p.segment++) {
        const Segment s = segments[p.segment];
        const size_t stop = p.begin + s.count < end ? p.begin + s.count : end;
        use(p.segment, s, at - p.begin, stop - at);
        at = stop;
        p.begin += s.count;
    }
}

// ---- squared norms ------------------------------------------------------------------------------

// The sum over segment s in part i of the line is partial[i + s], unique: i or s grows along it.
static __global__ void __launch_bounds__(THREADS, 4) grad_sq_norms_kernel(double *partial, const void *grads,
        const Segment *segments, int count) {
    const size_t length = line_length(segments, count), part = sum_part_size(length);
    for (size_t i = blockIdx.x; i * part < length; i += gridDim.x) {
        const size_t at = i * part, end = length - at < part ? length : at + part;
        each_segment(segments, count, at, end, [&](int number, const Segment &s, size_t from, size_t n) {
            const double sum = s.dtype == REAL ? range_sum<true>((const real *)grads + s.gradient + from, n)
                                               : range_sum<true>((const floatX *)grads + s.gradient + from, n);
            if (threadIdx.x == 0) partial[i + number] = sum;
        });
    }
}
// One block. Each warp adds up the partial sums of every 32nd segment; then all segments are added.
static __global__ void __launch_bounds__(1024) grad_sq_norms_finish_kernel(real *out, double *of_segment,
        const double *partial, const Segment *segments, int count) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t part = sum_part_size(line_length(segments, count));
    size_t begin = warp_sum(lane < warp && lane < count ? segments[lane].count : 0);
    for (int s = warp; s < count; s += 32) {
        const size_t n = segments[s].count;
        double sum = 0;
        if (n) for (size_t i = begin / part + lane; i <= (begin + n - 1) / part; i += 32) sum += partial[i + s];
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

// ---- AdamW --------------------------------------------------------------------------------------

// What all updates of a launch share. M: real or floatX.
template<class M> struct Update {
    floatX *weight;
    real *master;                       // or NULL
    M *m, *v;
    real lr, b1, b2, eps, fix1, fix2;
    uint64_t key;
    int cautious;
};

// Updates elements i .. i + W-1 of s: gradient at g_at; master at i - shift, m and v at that less
// shift_m and shift_v.
template<int W, class M, class G> __device__ static inline void update(const Update<M> &u, const G *g_at, size_t i,
        const Segment &s, real scale, real shrink) {
    const size_t at = i - s.shift, m_at = at - s.shift_m, v_at = at - s.shift_v;
    const Array<G, W> grad = load<W>(g_at);
    Array<M, W> m = load<W>(u.m + m_at), v = load<W>(u.v + v_at);
    Reals<W> master;
    Pack<W> weight;
    if (u.master) master = load<W>(u.master + at);
    else {
        weight = load<W>(u.weight + i);
        for (int j = 0; j < W; j++) master.x[j] = R(weight.x[j]);
    }
    const bool random = !u.master || sizeof(M) < sizeof(real);
    uint32_t bits[W] = {};
    if (random) random_each<W>(bits, u.key, i);
    for (int j = 0; j < W; j++) {
        const real g = (real)grad.x[j] * scale;
        const real mean = u.b1 * (real)m.x[j] + (1 - u.b1) * g, square = u.b2 * (real)v.x[j] + (1 - u.b2) * g * g;
        const real keep = u.cautious && mean * master.x[j] <= 0 ? 1 : shrink;
        const real w = master.x[j] * keep - __fdividef(u.lr * (mean * u.fix1), sqrt_approx(square * u.fix2) + u.eps);
        m.x[j] = (M)mean;
        v.x[j] = sizeof(M) < sizeof(real) ? (M)X_random(square, bits[j] >> 16) : (M)square;
        master.x[j] = w;
        weight.x[j] = u.master ? X(w) : X_random(w, bits[j]);
    }
    store(u.m + m_at, m);
    store(u.v + v_at, v);
    if (u.master) store(u.master + at, master);
    store(u.weight + i, weight);
}
// Elements from .. to-1 of the arena, in segment s whose gradient begins at grad, by a block.
template<class M, class G> __device__ static inline void update_range(const Update<M> &u, const Segment &s,
        const G *grad, size_t from, size_t to, real scale, real shrink, bool aligned) {
    const size_t odd = aligned ? (from + 3) / 4 * 4 : to, body = odd < to ? odd : to, tail = body + (to - body) / 4 * 4;
    grad -= s.offset;
    for (size_t i = from + threadIdx.x; i < body; i += THREADS)
        update<1>(u, grad + i, i, s, scale, shrink);
    for (size_t i = body + 4 * threadIdx.x; i < tail; i += 4 * THREADS)
        update<4>(u, grad + i, i, s, scale, shrink);
    for (size_t i = tail + threadIdx.x; i < to; i += THREADS)
        update<1>(u, grad + i, i, s, scale, shrink);
}

// A block updates its part of the line of segments, a thread four elements at a time: 16 bytes each
// of gradient, m, v and master (8 of bf16). The gradient's norm is read here: the host does not
// wait for it. Moves 30 bytes per element with a master copy of bf16 weights, 28 for float, 24 for
// bf16 weights without a master, 16 if m and v are bf16 too; 2 less where the gradient is bf16.
// Root and quotient are approximate, right to one and two units of f32: exact ones would limit the
// last of these forms by arithmetic (84 instead of 94 % of a copy's speed).
template<class M> static __global__ void adamw_kernel(floatX *weight, real *master, M *m, M *v, const void *grads,
        const real *grad_sq_norms, const Segment *segments, int count, const AdamW *settings, int aligned) {
    const AdamW a = *settings;
    const real norm = sqrtf(grad_sq_norms[count]);
    if (!(norm <= 3e38f)) return;                           // NaN or infinite: this step does not happen
    const real scale = a.clip > 0 && norm > a.clip ? a.clip / norm : 1;
    Update<M> u = { .weight = weight, .master = master, .m = m, .v = v, .key = a.key, .cautious = a.cautious };
    const size_t length = line_length(segments, count), part = part_size(length, BLOCKS), at = blockIdx.x * part;
    if (at >= length) return;
    each_segment(segments, count, at, length - at < part ? length : at + part,
                 [&](int, const Segment &s, size_t first, size_t n) {
        const size_t from = s.offset + first, to = from + n;
        const bool fours = aligned && (s.shift | s.shift_m | s.shift_v) % 4 == 0 && (s.gradient - s.offset) % 4 == 0;
        const AdamBetas b = s.is_table ? a.table : AdamBetas{ a.beta1, a.beta2, a.eps, a.fix1, a.fix2 };
        u.lr = a.lr * s.rate, u.b1 = b.beta1, u.b2 = b.beta2, u.eps = b.eps;
        u.fix1 = (real)b.fix1, u.fix2 = (real)b.fix2;
        const real shrink = 1 - u.lr * a.decay * s.decay;
        if (s.dtype == REAL) update_range(u, s, (const real *)grads + s.gradient, from, to, scale, shrink, fours);
        else update_range(u, s, (const floatX *)grads + s.gradient, from, to, scale, shrink, fours);
    });
}
static void adamw(floatX *weight, real *master, void *m, void *v, Dtype moments, const void *grads,
        const real *grad_sq_norms, const Segment *segments, int count, const AdamW *a) {
    const uintptr_t all = (uintptr_t)weight | (uintptr_t)master | (uintptr_t)m | (uintptr_t)v | (uintptr_t)grads;
    if (count && moments == REAL)
        LAUNCH(adamw_kernel<real>, BLOCKS, THREADS, 0, weight, master, (real *)m, (real *)v, grads, grad_sq_norms,
               segments, count, a, all % 16 == 0);
    else if (count)
        LAUNCH(adamw_kernel<floatX>, BLOCKS, THREADS, 0, weight, master, (floatX *)m, (floatX *)v, grads, grad_sq_norms,
               segments, count, a, all % 16 == 0);
}

// A thread adds 4 elements, the last few one by one. Moves 12 bytes per element.
static __global__ void accumulate_kernel(real *acc, const real *x, size_t n, int aligned) {
    const size_t from = global_index() * 4;
    if (aligned && from + 4 <= n) {
        Reals<4> sum = load<4>(acc + from);
        const Reals<4> more = load<4>(x + from);
        for (int i = 0; i < 4; i++) sum.x[i] += more.x[i];
        store(acc + from, sum);
    } else
        for (size_t i = from; i < n && i < from + 4; i++) acc[i] += x[i];
}
static void accumulate(real *acc, const real *x, size_t n) {
    LAUNCH(accumulate_kernel, divide_up(n, THREADS * 4), THREADS, 0, acc, x, n,
           ((uintptr_t)acc | (uintptr_t)x) % 16 == 0);
}

// A thread converts W elements, the last thread possibly fewer.
template<int W> static __global__ void set_master_kernel(real *master, const floatX *weight, size_t n) {
    const size_t from = global_index() * W;
    if (from + W <= n) {
        const Pack<W> w = load<W>(weight + from);
        Reals<W> to;
        for (int i = 0; i < W; i++) to.x[i] = R(w.x[i]);
        store(master + from, to);
    } else
        for (size_t i = from; i < n; i++) master[i] = R(weight[i]);
}
static void set_master(real *master, const floatX *weight, size_t n) {
    const bool w = ((uintptr_t)master | (uintptr_t)weight) % 16 == 0;
    auto kernel = w ? set_master_kernel<4> : set_master_kernel<1>;
    LAUNCH(kernel, divide_up(n, THREADS * (w ? 4 : 1)), THREADS, 0, master, weight, n);
}

PART(optimizer) {
    d->grad_sq_norms = grad_sq_norms;  d->adamw = adamw;
    d->set_master = set_master;        d->accumulate = accumulate;
}
