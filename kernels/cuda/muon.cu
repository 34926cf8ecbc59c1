// muon.cu: Muon. The method stands in kernels/cpu/muon.c.
#include "impl.cuh"
#include "kernels/codes.h"
#include "hopper/muon.cuh"

enum { THREADS = 256 };
// The blocks of a grid row share n elements, a multiple of W; a thread takes W at a time.
#define EACH(i, n, W) \
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W; i < n; i += (size_t)gridDim.x * THREADS * W)

// ---- before and after: gradient to momentum, direction to weight --------------------------------
// Part blockIdx.y, four elements at a time if it begins and ends on a multiple of four everywhere.

__device__ static inline bool in_fours(const Segment &s, bool aligned) {
    return aligned && (s.offset | s.count | s.shift | s.gradient | s.muon_offset) % 4 == 0;
}
static bool on_16_bytes(const void *a, const void *b, const void *c) {
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

// The momentum of a part: of type M, int8_t for codes. Numbers that are put are rounded to nearest,
// or, codes always, by random bits of the key and the element; `first` is the part's first. Eight
// threads have a block of codes, eight each, and share its scale.
enum { CODES = 8, CODE_THREADS = MOMENT_BLOCK / CODES };
template<class M> struct Moments {
    M *at;
    floatX *scale;
    uint64_t key;
    size_t first;
    __device__ Moments(const Momentum &m, const Segment &s, uint64_t key) : key(key), first(s.offset) {
        const size_t offset = s.offset - s.shift - s.shift_m;
        at = (M *)m.at + offset, scale = m.scale + offset / MOMENT_BLOCK;
    }
    template<int W> __device__ Reals<W> get(size_t i) const {
        const Array<M, W> m = load<W>(at + i);
        const real unit = sizeof(M) == 1 ? R(scale[i / MOMENT_BLOCK]) : 1;
        Reals<W> x;
        for (int j = 0; j < W; j++) x.x[j] = sizeof(M) == 1 ? unit * (real)m.x[j] : (real)m.x[j];
        return x;
    }
    template<int W> __device__ void put(size_t i, const Reals<W> &x, bool randomly) const {
        if constexpr (sizeof(M) == 1) put_codes(i, x);
        else {
            Array<M, W> m;
            uint32_t bits[W] = {};
            if (randomly && sizeof(M) < sizeof(real)) random_each<W>(bits, key, first + i);
            for (int j = 0; j < W; j++)
                m.x[j] = randomly && sizeof(M) < sizeof(real) ? (M)X_random(x.x[j], bits[j]) : (M)x.x[j];
            store(at + i, m);
        }
    }
    __device__ void put_codes(size_t i, const Reals<CODES> &x) const {
        const unsigned threads = ((1u << CODE_THREADS) - 1) << threadIdx.x % 32 / CODE_THREADS * CODE_THREADS;
        Array<M, CODES> m;
        uint32_t largest = 0;
        for (int j = 0; j < CODES; j++) largest = max(largest, as_bits(x.x[j]) & 0x7fffffff);
        for (int lane = CODE_THREADS / 2; lane; lane /= 2)
            largest = max(largest, __shfl_xor_sync(threads, largest, lane));
        const float unit = moment_scale(largest), inverse = 1 / unit;
        if (i % MOMENT_BLOCK == 0) scale[i / MOMENT_BLOCK] = X(unit);
        for (int j = 0; j < CODES; j++) {
            const uint64_t four = random_bits(key, (first + i + j) / 4);    // as random_16: a hash for four
            m.x[j] = moment_code(x.x[j], inverse, (uint32_t)(four >> j % 4 * 16) & 0xffff);
        }
        store(at + i, m);
    }
};
template<int W, class M, class G> __device__ static inline void momentum_of(floatX *x, const Moments<M> &m,
        const G *grad, size_t n, real beta, bool plain, real scale) {
    EACH(i, n, W) {
        const Array<G, W> g = load<W>(grad + i);
        Reals<W> mean = m.template get<W>(i);
        Pack<W> to;
        for (int j = 0; j < W; j++) {
            const real now = (real)g.x[j] * scale, next = beta * mean.x[j] + (1 - beta) * now;
            mean.x[j] = next;
            to.x[j] = X(plain ? next : beta * next + (1 - beta) * now);
        }
        m.put(i, mean, false);
        if (x) store(x + i, to);
    }
}
template<class M> static __global__ void momentum_kernel(floatX *x, Momentum momentum, const void *grads,
        const real *grad_sq_norm, const Segment *parts, const Muon *settings, bool aligned) {
    const Segment s = parts[blockIdx.y];
    const Moments<M> m(momentum, s, random_key(settings->key, RANDOM_MOMENTUM));
    if (x) x += s.muon_offset;
    if (!grads) {
        EACH(i, s.count, 1) x[i] = X(m.template get<1>(i).x[0]);
        return;
    }
    const real norm = sqrtf(*grad_sq_norm), clip = settings->clip, beta = settings->momentum;
    const bool plain = settings->ahead >= 1;
    if (!(norm <= 3e38f)) return;                           // what x holds is of no use then
    const real scale = clip > 0 && norm > clip ? clip / norm : 1;
    const bool fours = in_fours(s, aligned);
    auto of = [&](const auto *grad) {
        if constexpr (sizeof(M) == 1) momentum_of<CODES>(x, m, grad + s.gradient, s.count, beta, plain, scale);
        else if (fours) momentum_of<4>(x, m, grad + s.gradient, s.count, beta, plain, scale);
        else momentum_of<1>(x, m, grad + s.gradient, s.count, beta, plain, scale);
    };
    if (s.dtype == REAL) of((const real *)grads);
    else of((const floatX *)grads);
}

// A thread for each tensor.
static __global__ void limits_kernel(real *factors, real *norms, real *added, real *faults, real *fault,
        const real *sq_norms, int count, const Muon *settings) {
    const int i = threadIdx.x;
    const real n = i < count ? sqrtf(sq_norms[i]) : 0, beta = settings->momentum, rho = MUON_NORM_DECAY;
    __shared__ int stop;
    if (i == 0) stop = !(*fault == 0);
    __syncthreads();
    if (!(n <= 3e38f)) faults[i] = *fault = sq_norms[i], stop = 1;
    __syncthreads();
    if (stop) {
        if (norms && i < count) factors[2*i] = 1, factors[2*i + 1] = 0;
        return;
    }
    if (!norms || i >= count) return;
    const real mean = norms[2*i], weight = norms[2*i + 1], limit = weight > 0 ? settings->most * mean / weight : 0,
        of = limit > 0 && n > limit ? limit / n : 1;
    factors[2*i] = added[i] > 0 ? 1 : beta, factors[2*i + 1] = (1 - beta) * of;
    added[i] = 1;
    if (n > 0) norms[2*i] = rho * mean + (1 - rho) * (n * of), norms[2*i + 1] = rho * weight + (1 - rho);
}
template<int W, class M, class G> __device__ static inline void add_of(const Moments<M> &m, const G *grad, size_t n,
        real keep, real scale) {
    EACH(i, n, W) {
        const Array<G, W> g = load<W>(grad + i);
        Reals<W> sum = m.template get<W>(i);
        for (int j = 0; j < W; j++) sum.x[j] = keep * sum.x[j] + scale * (real)g.x[j];
        m.put(i, sum, true);
    }
}
// Of tensor blockIdx.y. Most elements are the largest ones': blocks of others end at once.
template<class M> static __global__ void add_kernel(Momentum momentum, const void *grads, const real *factors,
        const Segment *parts, const uint64_t *key, bool aligned) {
    const Segment s = parts[blockIdx.y];
    const real keep = factors[2 * blockIdx.y], scale = factors[2 * blockIdx.y + 1];
    if (scale == 0) return;
    const bool fours = in_fours(s, aligned);
    const Moments<M> m(momentum, s, random_key(*key, RANDOM_MOMENTUM));
    auto of = [&](const auto *grad) {
        if constexpr (sizeof(M) == 1) add_of<CODES>(m, grad + s.gradient, s.count, keep, scale);
        else if (fours) add_of<4>(m, grad + s.gradient, s.count, keep, scale);
        else add_of<1>(m, grad + s.gradient, s.count, keep, scale);
    };
    if (s.dtype == REAL) of((const real *)grads);
    else of((const floatX *)grads);
}

typedef struct { real step, shrink; uint64_t key; int cautious; } Step;
// Multiples of the step: none (NULL), or of each row of a matrix, or, across, of each column.
typedef struct { const real *of; unsigned columns; bool across; } Scale;
// From element `first` of the arena on, `at` of the matrix. A vector is of one row.
template<int W> __device__ static inline void update_of(floatX *weight, real *master, const floatX *out, size_t first,
                                                        size_t n, Step u, Scale scale, unsigned at) {
    EACH(i, n, W) {
        const Pack<W> o = load<W>(out + i);
        Reals<W> w;
        Pack<W> to;
        if (master) w = load<W>(master + i);
        else {
            const Pack<W> from = load<W>(weight + i);
            for (int j = 0; j < W; j++) w.x[j] = R(from.x[j]);
        }
        uint32_t bits[W] = {};
        if (!master) random_each<W>(bits, u.key, first + i);
        const unsigned row = scale.of ? (at + (unsigned)i) / scale.columns : 0,
            column = at + (unsigned)i - row * scale.columns;
        real step[W];
        for (int j = 0; j < W; j++) step[j] = scale.of ? u.step * scale.of[scale.across ? column + j : row] : u.step;
        for (int j = 0; j < W; j++) {
            const real keep = u.cautious && R(o.x[j]) * w.x[j] <= 0 ? 1 : u.shrink;
            w.x[j] = w.x[j] * keep - step[j] * R(o.x[j]);
            to.x[j] = master ? X(w.x[j]) : X_random(w.x[j], bits[j]);
        }
        if (master) store(master + i, w);
        store(weight + i, to);
    }
}
static __global__ void update_kernel(floatX *weight, real *master, const floatX *out, Scale scale,
        const real *grad_sq_norm, const Segment *parts, size_t each, real size, const Muon *settings, bool aligned) {
    const Segment s = parts[blockIdx.y];
    const real lr = settings->lr * s.rate;
    const Step u = { lr * size, 1 - lr * settings->decay * s.decay, settings->key,
                     settings->cautious };
    if (!(sqrtf(*grad_sq_norm) <= 3e38f)) return;
    if (master) master += s.offset - s.shift;
    if (scale.of) scale.of += blockIdx.y * (scale.across ? scale.columns : each / scale.columns);
    const unsigned at = (unsigned)(s.muon_offset - blockIdx.y * each);
    weight += s.offset, out += s.muon_offset;
    if (in_fours(s, aligned)) update_of<4>(weight, master, out, s.offset, s.count, u, scale, at);
    else update_of<1>(weight, master, out, s.offset, s.count, u, scale, at);
}

// ---- the scale of rows or columns ---------------------------------------------------------------
// Their mean squares are put where the scales then come.

// A warp for each row.
template<int W> static __global__ void row_squares_kernel(real *scale, const floatX *out, size_t rows, int columns) {
    const size_t row = (size_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    real sum = 0;
    for (int c = threadIdx.x % 32 * W; c < columns; c += 32 * W) {
        const Pack<W> a = load<W>(out + row * columns + c);
        for (int j = 0; j < W; j++) sum += R(a.x[j]) * R(a.x[j]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) scale[row] = sum / columns;
}
// A block for W * ACROSS columns of matrix blockIdx.y; its threads add every THREADS/ACROSS-th row.
enum { ACROSS = 8 };
template<int W> static __global__ void column_squares_kernel(real *scale, const floatX *out, int rows, int columns) {
    __shared__ real part[THREADS / ACROSS][W * ACROSS];
    const int left = blockIdx.x * W * ACROSS, lane = threadIdx.x % ACROSS * W, c = left + lane;
    real sum[W] = {};
    out += (size_t)blockIdx.y * rows * columns;
    for (int r = threadIdx.x / ACROSS; r < rows && c < columns; r += THREADS / ACROSS) {
        const Pack<W> a = load<W>(out + (size_t)r * columns + c);
        for (int j = 0; j < W; j++) sum[j] += R(a.x[j]) * R(a.x[j]);
    }
    for (int j = 0; j < W; j++) part[threadIdx.x / ACROSS][lane + j] = sum[j];
    __syncthreads();
    const int mine = threadIdx.x;
    if (mine >= W * ACROSS || left + mine >= columns) return;
    real all = 0;
    for (int i = 0; i < THREADS / ACROSS; i++) all += part[i][mine];
    scale[(size_t)blockIdx.y * columns + left + mine] = all / rows;
}
// Matrix blockIdx.x, of n of them.
static __global__ void scale_kernel(real *scale, real *squares, const real *grad_sq_norm, const Segment *parts, int n,
        const Muon *settings) {
    if (!(sqrtf(*grad_sq_norm) <= 3e38f)) return;
    const real beta = settings->second;
    real all = 0, scaled = 0;
    scale += (size_t)blockIdx.x * n, squares += parts[blockIdx.x].squares;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const real mean = scale[i], next = beta * squares[i] + (1 - beta) * mean,
            s = 1 / sqrtf(fmaxf(next, MUON_LEAST_SQUARE));
        squares[i] = next, scale[i] = s;
        all += mean, scaled += mean * s * s;
    }
    all = block_sum<THREADS / 32>(all), scaled = block_sum<THREADS / 32>(scaled);
    const real keep = scaled > 0 ? sqrtf(all / scaled) : 0;
    for (int i = threadIdx.x; i < n; i += THREADS) scale[i] *= keep;
}

// ---- Newton and Schulz --------------------------------------------------------------------------

// The squares of a matrix are added by MUON_SUMS blocks,
template<int W> static __global__ void squares_kernel(real *sums, const floatX *x, size_t n) {
    real sum = 0;
    x += blockIdx.y * n;
    EACH(i, n, W) {
        const Pack<W> a = load<W>(x + i);
        for (int j = 0; j < W; j++) sum += R(a.x[j]) * R(a.x[j]);
    }
    sum = block_sum<THREADS / 32>(sum);
    if (threadIdx.x == 0) sums[blockIdx.y * MUON_SUMS + blockIdx.x] = sum;
}
// and every warp that divides by their root adds those.
template<int W> static __global__ void normalize_kernel(floatX *x, const real *sums, size_t n) {
    const real sum = warp_sum(sums[blockIdx.y * MUON_SUMS + threadIdx.x % 32]),
        scale = sum > MUON_LEAST ? 1 / sqrtf(sum) : 0;
    x += blockIdx.y * n;
    EACH(i, n, W) {
        Pack<W> a = load<W>(x + i);
        for (int j = 0; j < W; j++) a.x[j] = X(R(a.x[j]) * scale);
        store(x + i, a);
    }
}
// square = a I + b gram + c square, of matrices k x k.
template<int W> static __global__ void polynomial_kernel(floatX *square, const floatX *gram, int k) {
    const size_t n = (size_t)k * k;
    square += blockIdx.y * n, gram += blockIdx.y * n;
    EACH(i, n, W) {
        const Pack<W> g = load<W>(gram + i);
        Pack<W> s = load<W>(square + i);
        for (int j = 0; j < W; j++)
            s.x[j] = X(((i + j) % (k + 1) == 0 ? 3.4445f : 0) - 4.7750f * R(g.x[j]) + 2.0315f * R(s.x[j]));
        store(square + i, s);
    }
}
static __global__ void start_kernel(int *start, int count, int rows, int k) {
    const int e = (int)global_index();
    if (e <= count) start[e] = e * rows, start[count + 1 + e] = e * k;
}

static Plan plan_of(int *start, int count, int rows) {
    Plan p = {};
    p.N = p.S = count * rows, p.E = count, p.K = 1, p.start = start;
    return p;
}
// Blocks for each of `count` matrices: several per multiprocessor in all, none without work.
static dim3 blocks_of(size_t n, int count, int W) {
    const size_t most = divide_up(n, (size_t)THREADS * W),
        wanted = count ? divide_up(16 * MULTIPROCESSORS, (size_t)count) : 0;
    return dim3((unsigned)(wanted < most ? wanted : most), (unsigned)count);
}

template<int W> static void newton_schulz(const Device *d, const MuonBuffers *b, int count, int rows, int columns) {
    const bool across = rows <= columns;
    const int k = across ? rows : columns;
    const size_t n = (size_t)rows * columns, square_n = (size_t)k * k;
    const Plan plan = plan_of(b->start, count, rows), square = plan_of(b->start + count + 1, count, k);
    floatX *x = b->x, *y = b->out;
    LAUNCH(start_kernel, (unsigned)divide_up((size_t)count + 1, THREADS), THREADS, 0, b->start, count, rows, k);
    LAUNCH(squares_kernel<W>, dim3(MUON_SUMS, count), THREADS, 0, b->sums, x, n);
    LAUNCH(normalize_kernel<W>, blocks_of(n, count, W), THREADS, 0, x, b->sums, n);
    for (int step = 0; step < MUON_STEPS; step++) {
        if (across) d->parallel_linear_forward(b->gram, x, x, &plan, columns, rows, GROUPED, GROUPED);
        else d->parallel_linear_backward_weight(b->gram, x, x, &plan, columns, columns, GROUPED, GROUPED, SET_ROUNDED);
        d->parallel_linear_forward(b->square, b->gram, b->gram, &square, k, k, GROUPED, GROUPED);
        LAUNCH(polynomial_kernel<W>, blocks_of(square_n, count, W), THREADS, 0, b->square, b->gram, k);
        if (across) d->parallel_linear_backward_input(y, b->square, x, &plan, columns, rows, GROUPED, GROUPED);
        else d->parallel_linear_forward(y, x, b->square, &plan, columns, columns, GROUPED, GROUPED);
        floatX *const t = x;
        x = y, y = t;
    }
}
// Can rows, and squares of the smaller side, be taken 8 (floats: 4) at a time? Then all can.
static bool vectors(int rows, int columns) { return rows % VECTOR == 0 && columns % VECTOR == 0; }
template<bool portable> static void orthogonalize(const Device *d, const MuonBuffers *b, int count, int rows,
                                                  int columns) {
#if defined(PRECISION_BF16)
    if (!portable && hopper_newton_schulz(b, count, rows, columns)) return;
#endif
    if (vectors(rows, columns)) newton_schulz<VECTOR>(d, b, count, rows, columns);
    else newton_schulz<1>(d, b, count, rows, columns);
}

static void muon_momentum(floatX *x, Momentum m, const void *grads, const real *grad_sq_norm, const Segment *parts,
        int count, size_t most, const Muon *a) {
    const auto kernel = m.dtype == REAL ? momentum_kernel<real> : m.dtype == INT8 ? momentum_kernel<int8_t>
        : momentum_kernel<floatX>;
    LAUNCH(kernel, blocks_of(most, count, m.dtype == INT8 ? CODES : 4), THREADS, 0, x, m, grads, grad_sq_norm, parts, a,
           on_16_bytes(x, m.at, grads));
}
static void muon_limits(real *factors, real *norms, real *added, real *faults, real *fault, const real *sq_norms,
        int count, const Muon *a) {
    LAUNCH(limits_kernel, 1, MUON_LIMITED, 0, factors, norms, added, faults, fault, sq_norms, count, a);
}
static void muon_add(Momentum m, const void *grads, const real *factors, const Segment *parts, int count, size_t most,
        const uint64_t *key) {
    const dim3 blocks(blocks_of(most, 1, m.dtype == INT8 ? CODES : 4).x, (unsigned)count);
    const auto kernel = m.dtype == REAL ? add_kernel<real> : m.dtype == INT8 ? add_kernel<int8_t> : add_kernel<floatX>;
    LAUNCH(kernel, blocks, THREADS, 0, m, grads, factors, parts, key, on_16_bytes(m.at, grads, NULL));
}
template<int W> static void mean_squares(real *scale, const floatX *out, int count, int rows, int columns) {
    if (rows < columns) LAUNCH(column_squares_kernel<W>, dim3((unsigned)divide_up((size_t)columns, W * ACROSS), count),
                               THREADS, 0, scale, out, rows, columns);
    else LAUNCH(row_squares_kernel<W>, (unsigned)divide_up((size_t)count * rows, THREADS / 32), THREADS, 0, scale, out,
                (size_t)count * rows, columns);
}
static void muon_scale(real *scale, real *squares, const floatX *out, const real *grad_sq_norm, const Segment *parts,
        int count, int rows, int columns, const Muon *a) {
    if (vectors(rows, columns)) mean_squares<VECTOR>(scale, out, count, rows, columns);
    else mean_squares<1>(scale, out, count, rows, columns);
    LAUNCH(scale_kernel, (unsigned)count, THREADS, 0, scale, squares, grad_sq_norm, parts,
           rows > columns ? rows : columns, a);
}
static void muon_update(floatX *weight, real *master, const floatX *out, const real *scale, const real *grad_sq_norm,
        const Segment *parts, int count, int rows, int columns, const Muon *a) {
    const real size = 0.2f * sqrtf((real)(rows > columns ? rows : columns));
    const Scale of = { scale, (unsigned)columns, rows < columns };
    const bool fours = on_16_bytes(weight, master, out) && (!scale || columns % 4 == 0);
    LAUNCH(update_kernel, blocks_of((size_t)rows * columns, count, 4), THREADS, 0, weight, master, out, of,
           grad_sq_norm, parts, (size_t)rows * columns, size, a, fours);
}

PART(muon) {
    d->muon_momentum = muon_momentum, d->orthogonalize = orthogonalize<false>, d->muon_scale = muon_scale;
    d->muon_update = muon_update, d->muon_limits = muon_limits, d->muon_add = muon_add;
}
PART(muon_portable) { d->orthogonalize = orthogonalize<true>; }
