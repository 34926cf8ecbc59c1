// muon.cu: Muon. The method stands in kernels/cpu/muon.c.
#include "impl.cuh"
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

template<int W, class M, class G> __device__ static inline void momentum_of(floatX *x, M *m, const G *grad, size_t n,
        real beta, real scale) {
    EACH(i, n, W) {
        const Array<G, W> g = load<W>(grad + i);
        Array<M, W> mean = load<W>(m + i);
        Pack<W> to;
        for (int j = 0; j < W; j++) {
            const real now = (real)g.x[j] * scale, next = beta * (real)mean.x[j] + (1 - beta) * now;
            mean.x[j] = (M)next;
            to.x[j] = X(beta * next + (1 - beta) * now);
        }
        store(m + i, mean);
        if (x) store(x + i, to);
    }
}
template<class M> static __global__ void momentum_kernel(floatX *x, M *m, const void *grads, const real *grad_sq_norm,
        const Segment *parts, const Muon *settings, bool aligned) {
    const Segment s = parts[blockIdx.y];
    const real norm = sqrtf(*grad_sq_norm), clip = settings->clip, beta = settings->momentum;
    if (!(norm <= 3e38f)) return;                           // what x holds is of no use then
    const real scale = clip > 0 && norm > clip ? clip / norm : 1;
    const bool fours = in_fours(s, aligned);
    if (x) x += s.muon_offset;
    m += s.offset - s.shift;
    auto of = [&](const auto *grad) {
        if (fours) momentum_of<4>(x, m, grad + s.gradient, s.count, beta, scale);
        else momentum_of<1>(x, m, grad + s.gradient, s.count, beta, scale);
    };
    if (s.dtype == REAL) of((const real *)grads);
    else of((const floatX *)grads);
}

typedef struct { real step, shrink; uint64_t key; int cautious; } Step;
// From element `first` of the arena on.
template<int W> __device__ static inline void update_of(floatX *weight, real *master, const floatX *out, size_t first,
                                                        size_t n, Step u) {
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
        for (int j = 0; j < W; j++) {
            const real keep = u.cautious && R(o.x[j]) * w.x[j] <= 0 ? 1 : u.shrink;
            w.x[j] = w.x[j] * keep - u.step * R(o.x[j]);
            to.x[j] = master ? X(w.x[j]) : X_random(w.x[j], bits[j]);
        }
        if (master) store(master + i, w);
        store(weight + i, to);
    }
}
static __global__ void update_kernel(floatX *weight, real *master, const floatX *out, const real *grad_sq_norm,
        const Segment *parts, real size, const Muon *settings, bool aligned) {
    const Segment s = parts[blockIdx.y];
    const real lr = settings->lr * s.rate;
    const Step u = { lr * size, 1 - lr * settings->decay * s.decay, settings->key,
                     settings->cautious };
    if (!(sqrtf(*grad_sq_norm) <= 3e38f)) return;
    if (master) master += s.offset - s.shift;
    if (in_fours(s, aligned)) update_of<4>(weight + s.offset, master, out + s.muon_offset, s.offset, s.count, u);
    else update_of<1>(weight + s.offset, master, out + s.muon_offset, s.offset, s.count, u);
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

static void muon_momentum(floatX *x, void *m, Dtype moments, const void *grads, const real *grad_sq_norm,
        const Segment *parts, int count, size_t most, const Muon *a) {
    const bool aligned = on_16_bytes(x, m, grads);
    const dim3 blocks = blocks_of(most, count, 4);
    if (moments == REAL)
        LAUNCH(momentum_kernel<real>, blocks, THREADS, 0, x, (real *)m, grads, grad_sq_norm, parts, a, aligned);
    else LAUNCH(momentum_kernel<floatX>, blocks, THREADS, 0, x, (floatX *)m, grads, grad_sq_norm, parts, a, aligned);
}
static void muon_update(floatX *weight, real *master, const floatX *out, const real *grad_sq_norm, const Segment *parts,
        int count, int rows, int columns, const Muon *a) {
    const real size = 0.2f * sqrtf((real)(rows > columns ? rows : columns));
    LAUNCH(update_kernel, blocks_of((size_t)rows * columns, count, 4), THREADS, 0, weight, master, out, grad_sq_norm,
           parts, size, a, on_16_bytes(weight, master, out));
}

PART(muon) { d->muon_momentum = muon_momentum; d->orthogonalize = orthogonalize<false>; d->muon_update = muon_update; }
PART(muon_portable) { d->orthogonalize = orthogonalize<true>; }
