// norm.cu: RMSNorm, alone and fused with the residual connection before it (add_norm).
//
// add_norm_forward ends a sub-layer and begins the next: the rows of each token's experts are
// combined, added to the residual stream, and normalized. In add_norm_backward the gradients of
// what was normalized are added up, go back through the norm, and are added to the stream's
// gradient. As separate operations each would read what the one before has just written: fused they
// move K+3 times N*C elements instead of K+6, and backward, with one product to add, K+5 instead of
// K+8. rmsnorm_backward is the special case in which the sum has already been computed.
#include "columns.cuh"
#include "dropout.cuh"
#include "gather.cuh"
#include "mix.cuh"
#include "ptx.cuh"

// round(x * r), as reals; and round(x * r) * weight.
template<int W> __device__ static inline Reals<W> scaled(const Pack<W> &x, real r) {
    Reals<W> y = unpack(x);
    for (int i = 0; i < W; i++) y.x[i] *= r;
    return unpack(pack(y));
}
template<int W> __device__ static inline Pack<W> normalized(const Pack<W> &x, real r, const Pack<W> &weight) {
    Reals<W> y = scaled(x, r);
    for (int i = 0; i < W; i++) y.x[i] *= unpack(weight).x[i];
    return pack(y);
}

// ---- rmsnorm_forward ----------------------------------------------------------------------------
// A row gets a warp while 32 threads with KEEP packs each can hold it in registers (C up to 1024 in
// bf16), then more threads. Only what the largest block cannot hold is read again.
enum { KEEP = 4 };

// Moves 2*N*C elements.
template<int W> static __global__ void rmsnorm_forward_kernel(floatX *out, real *rstd, const floatX *inp,
        const floatX *weight, real eps, int N, int C) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int first = threadIdx.x * W, step = blockDim.x * W;
    if (n >= N) return;
    const floatX *x = inp + n*C;
    Pack<W> kept[KEEP];
    real sum = 0;
    auto add_squares = [&](const Pack<W> &v) { for (int i = 0; i < W; i++) sum += unpack(v).x[i] * unpack(v).x[i]; };
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) kept[j] = load<W>(x + first + j*step);
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) add_squares(kept[j]);
    for (int c = first + KEEP*step; c < C; c += step) add_squares(load<W>(x + c));

    const real r = 1 / sqrtf(row_sum(sum) / C + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    auto write = [&](const Pack<W> &v, int c) { store(out + n*C + c, normalized(v, r, load<W>(weight + c))); };
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) write(kept[j], first + j*step);
    for (int c = first + KEEP*step; c < C; c += step) write(load<W>(x + c), c);
}
static void rmsnorm_forward(floatX *out, real *rstd, const floatX *inp, Norm norm, int N, int C) {
    const bool w = wide(C, out, inp, norm.weight);
    const dim3 block = row_threads(w ? C / VECTOR : C, KEEP, 1024);
    auto kernel = w ? rmsnorm_forward_kernel<VECTOR> : rmsnorm_forward_kernel<1>;
    LAUNCH(kernel, divide_up(N, block.y), block, 0, out, rstd, inp, norm.weight, norm.eps, N, C);
}

// ---- add_norm_forward ---------------------------------------------------------------------------

// A sub-layer's result before it is combined: the rows of each token, by weight, and a bias.
typedef struct { const floatX *rows; const real *weight; const floatX *bias; TokenRows map; } Branch;
// Without a plan a token has one row, of its own number, or none.
static inline TokenRows token_rows(const Plan *plan, const floatX *rows) {
    return plan && rows ? TokenRows{ plan->row_of_slot, plan->first, plan->K } : TokenRows{ NULL, NULL, rows != NULL };
}

// A block has a row, a thread VECTOR columns of it with K+1 loads. Many blocks keep enough loads in
// flight: 1536 threads, hence 40 registers. Rounds as the single operations do. Moves (K+3) N C,
// and with a mix one or two more.
template<int MOST, bool MIX> static __global__ void __launch_bounds__(MOST, (MIX ? 1024 : 1536) / MOST)
add_norm_forward_kernel(floatX *out, real *rstd, floatX *resid, const floatX *residual, Branch b, Mask dropout,
                        const floatX *norm, real eps, Mix mix, int C) {
    const size_t n = blockIdx.x, at = n*C + threadIdx.x * VECTOR;
    const int c = threadIdx.x * VECTOR;
    Vec x = {};
    real squares = 0;
    if (c < C) {
        Reals<VECTOR> sum = {};
        x = load_vec(residual + at);
        if (b.bias) sum = unpack(load_vec(b.bias + c));
        add_rows<VECTOR, 2>(sum.x, b.rows + c, b.weight, b.map, slots_of(b.map, n), C);
        sum = unpack(pack(sum));
        drop<VECTOR>(sum.x, dropout, drop_key(dropout), at);
        for (int i = 0; i < VECTOR; i++) sum.x[i] += unpack(x).x[i];
        x = pack(sum);
        if (MIX) x = mixed<VECTOR>(x, mix, factors_of(mix), at);
        store_vec(resid + at, x);
        for (int i = 0; i < VECTOR; i++) squares += unpack(x).x[i] * unpack(x).x[i];
    }
    const real r = 1 / sqrtf(row_sum(squares) / C + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    if (c < C) store_vec(out + at, normalized(x, r, load_vec(norm + c)));
}
// The same for rows of any width and address: a block has a row, and reads resid again.
static __global__ void add_norm_forward_plain_kernel(floatX *out, real *rstd, floatX *resid, const floatX *residual,
        Branch b, Mask dropout, const floatX *norm, real eps, Mix mix, int C) {
    const size_t n = blockIdx.x;
    const uint64_t key = drop_key(dropout);
    real squares = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        real sum = b.bias ? R(b.bias[c]) : 0;
        add_rows<1, 2>(&sum, b.rows + c, b.weight, b.map, slots_of(b.map, n), C);
        sum = R(X(sum));
        drop<1>(&sum, dropout, key, n*C + c);
        floatX x = X(R(residual[n*C + c]) + sum);
        if (mix.scalars) x = mixed<1>(Pack<1>{ { x } }, mix, factors_of(mix), n*C + c).x[0];
        squares += R(x) * R(x);
        resid[n*C + c] = x;
    }
    const real r = 1 / sqrtf(row_sum(squares) / C + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    for (int c = threadIdx.x; c < C; c += blockDim.x)
        store(out + n*C + c, normalized(load<1>(resid + n*C + c), r, load<1>(norm + c)));
}
static void add_norm_forward(const Device *, floatX *out, real *rstd, floatX *resid, const floatX *residual,
        const Sum *s, Dropout dropout, Norm norm, int N, int C) {
    const unsigned threads = (unsigned)divide_up(C, 32 * VECTOR) * 32;
    const bool fits = threads <= 1024 && wide(C, out, resid, residual, s->rows) && wide(C, s->bias, norm.weight);
    const Branch b = { s->rows, s->weight, s->bias, token_rows(s->plan, s->rows) };
    const Mix mix = s->mix ? *s->mix : Mix{};
    auto kernel = !fits || !wide(C, mix.first, mix.extra) ? add_norm_forward_plain_kernel
                : threads > 256 && mix.scalars ? add_norm_forward_kernel<1024, true>
                : threads > 256 ? add_norm_forward_kernel<1024, false>
                : mix.scalars ? add_norm_forward_kernel<256, true> : add_norm_forward_kernel<256, false>;
    LAUNCH(kernel, N, fits ? threads : 256, 0, out, rstd, resid, residual, b, mask_of(dropout), norm.weight, norm.eps,
           mix, C);
}

// ---- backward through the norm ------------------------------------------------------------------

// The normalized values' gradient is the sum of a token's rows, if any, and up to two arrays (N,C).
typedef struct { const floatX *rows; TokenRows map; const floatX *more[2]; } Addends;
typedef struct {
    floatX *dresid;                         // (N,C) +=
    real *partial;                          // (blocks,C) a block's sums for dnorm; (blocks,2C) if there is a dbias
    Addends addends;
    const floatX *resid, *norm;
    const real *rstd;
    int N, C;
    real mean;                              // 1/C
    int ahead;                              // how many of a token's rows are copied ahead
} NormBackward;

// A thread's buffer in shared memory: Vecs `stride` apart. It waits for its own copies only.
typedef struct { Vec *at; int stride; } Buffer;
typedef struct { int rows, row; real rstd; } Token;         // of a lane: the lane-th of the token's rows
__device__ static inline Token find_token(const NormBackward &p, unsigned n) {
    if (n >= p.N) return {};
    const Slots s = slots_of(p.addends.map, n);
    const int lane = threadIdx.x % 32, rows = s.end - s.begin, slot = s.begin + lane;
    return { rows, lane >= rows ? 0 : p.addends.map.row_of_slot ? p.addends.map.row_of_slot[slot] : slot, p.rstd[n] };
}
// Starts to copy VECTOR columns of token n: up to `ahead` rows, other addends, resid, dresid.
__device__ static inline void copy_token(const NormBackward &p, Buffer buffer, const Token &t, unsigned n, int c) {
    const size_t at = (size_t)n*p.C + c;
    Vec *to = buffer.at;
    auto copy = [&](const floatX *from) { cp_async(shared_address(to), from, true); to += buffer.stride; };
    if (n < p.N) {
        #pragma unroll 1
        for (int k = 0; k < min(t.rows, p.ahead); k++)
            copy(p.addends.rows + (size_t)__shfl_sync(ALL, t.row, k) * p.C + c);
        for (int i = 0; i < 2; i++) if (p.addends.more[i]) copy(p.addends.more[i] + at);
        copy(p.resid + at);
        copy(p.dresid + at);
    }
    cp_async_commit();
}
// d += the addends of the token. Returns where in the buffer resid is.
__device__ static inline const Vec *add_addends(real *d, const NormBackward &p, Buffer buffer, const Token &t,
                                                unsigned n, int c) {
    const Vec *from = buffer.at;
    auto add = [&] {
        const Vec a = *from;
        for (int i = 0; i < VECTOR; i++) d[i] += unpack(a).x[i];
        from += buffer.stride;
    };
    #pragma unroll 1
    for (int k = 0; k < min(t.rows, p.ahead); k++) add();
    if (t.rows > p.ahead) {
        const Slots s = slots_of(p.addends.map, n);
        add_rows<VECTOR, 2>(d, p.addends.rows + c, NULL, p.addends.map, { s.begin + p.ahead, s.end }, p.C);
    }
    for (int i = 0; i < 2; i++) if (p.addends.more[i]) add();
    return from;
}
// The sum over a row's warps: of_warps has four each, `fours` from `first` on (missing warps: 0).
__device__ static inline real sum_of_warps(real of_warp, Reals<4> *of_warps, int first, int fours) {
    if (threadIdx.x % 32 == 0) of_warps[first + threadIdx.x / 128].x[threadIdx.x / 32 % 4] = of_warp;
    named_barrier_sync(1 + threadIdx.y, blockDim.x);
    real sum = 0;
    #pragma unroll 1
    for (int i = 0; i < fours; i++) {
        const Reals<4> four = of_warps[first + i];
        sum += (four.x[0] + four.x[1]) + (four.x[2] + four.x[3]);
    }
    return sum;
}
// A block's row of partial: sums over threads of equal columns. sums (1 + BIASED,VECTOR/4,threads).
template<bool BIASED> __device__ static inline void store_partial(real *partial, Reals<4> *sums, const real *dnorm,
        const real *dbias, int thread, int threads, int C) {
    for (int i = 0; i < VECTOR; i++) sums[i / 4 * threads + thread].x[i % 4] = dnorm[i];
    if (BIASED) for (int i = 0; i < VECTOR; i++) sums[(VECTOR + i) / 4 * threads + thread].x[i % 4] = dbias[i];
    __syncthreads();
    for (int i = thread; i < (1 + BIASED) * C; i += threads) {
        const int to = i < C ? i : i - C, part = (i < C ? 0 : VECTOR / 4) + to % VECTOR / 4;
        real sum = 0;
        for (int y = 0; y < blockDim.y; y++) sum += sums[part * threads + y * blockDim.x + to / VECTOR].x[to % 4];
        partial[(size_t)blockIdx.x * (1 + BIASED) * C + i] = sum;
    }
}

// dresid, and a block's part of dnorm and dbias, in one pass. The block is as wide as a row, so a
// thread has the same VECTOR columns of every row and keeps their sums in registers. blockDim.y
// rows are processed at the same time, each with a barrier of its own. A dot product takes one
// barrier, because successive rows alternate between the two of_warps. While a row is computed the
// next is copied to shared memory: a thread starts the copies as soon as it has read what they
// overwrite. Moves (K + more + 3) N C elements: dresid is read and written.
template<bool BIASED> static __global__ void __launch_bounds__(1024) norm_backward_kernel(const NormBackward p) {
    __shared__ Reals<4> of_warps[2][16];
    extern __shared__ uint4 shared[];                       // the threads' buffers; at the end their sums
    const bool exists = threadIdx.x * VECTOR < p.C;         // others repeat column 0, and their results are discarded
    const int c = exists ? threadIdx.x * VECTOR : 0, warps = blockDim.x / 32, fours = (warps + 3) / 4;     // of a row
    const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
    const Buffer buffer = { (Vec *)shared + thread, threads };
    const unsigned step = gridDim.x * blockDim.y;
    unsigned n = blockIdx.x * blockDim.y + threadIdx.y;
    real dnorm[VECTOR] = {}, dbias[VECTOR] = {};
    if (thread < 32) of_warps[thread / 16][thread % 16] = Reals<4>();
    __syncthreads();
    let_next_start();
    Token next = find_token(p, n);
    copy_token(p, buffer, next, n, c);
    for (int parity = 0; n < p.N; n += step, parity ^= 1) {
        const Token now = next;
        next = find_token(p, n + step);
        cp_async_wait<0>();
        real d[VECTOR] = {}, dot = 0;
        const Vec *const last = add_addends(d, p, buffer, now, n, c);
        const Vec x = last[0], old = last[threads];
        copy_token(p, buffer, next, n + step, c);
        const Vec w = load_vec(p.norm + c);                 // from the cache
        const real r = now.rstd;
        Reals<VECTOR> value = scaled(x, r);
        for (int i = 0; i < VECTOR; i++) dnorm[i] += d[i] * value.x[i];
        for (int i = 0; i < VECTOR; i++) d[i] *= unpack(w).x[i];
        for (int i = 0; i < VECTOR; i++) dot += d[i] * unpack(x).x[i];
        dot = warp_sum(exists ? dot : 0);
        if (warps > 1) dot = sum_of_warps(dot, of_warps[parity], threadIdx.y * fours, fours);
        const real k = r * r * r * p.mean * dot;
        for (int i = 0; i < VECTOR; i++) value.x[i] = unpack(old).x[i] + r * d[i] - k * unpack(x).x[i];
        const Vec dx = pack(value);
        if (BIASED) for (int i = 0; i < VECTOR; i++) dbias[i] += unpack(dx).x[i];
        if (exists) store_vec(p.dresid + (size_t)n*p.C + c, dx);
    }
    // Rows with one iteration fewer hit the barrier once more, so that all barrier counts are
    // equal: compute-sanitizer's racecheck does not tell the barriers apart.
    if (warps > 1 && n - threadIdx.y < p.N) named_barrier_sync(1 + threadIdx.y, blockDim.x);
    __syncthreads();                                        // no copy is in flight any more
    store_partial<BIASED>(p.partial, (Reals<4> *)shared, dnorm, dbias, thread, threads, p.C);
}
// The same for any width and address: a block reads its rows twice; its sums are in global memory.
static __global__ void norm_backward_plain_kernel(const NormBackward p, int biased) {
    real *const dnorm = p.partial + (size_t)blockIdx.x * (1 + biased) * p.C, *const dbias = dnorm + p.C;
    for (int c = threadIdx.x; c < p.C * (1 + biased); c += blockDim.x) dnorm[c] = 0;
    let_next_start();
    __syncthreads();
    for (size_t n = blockIdx.x; n < p.N; n += gridDim.x) {
        const floatX *x = p.resid + n*p.C;
        floatX *dx = p.dresid + n*p.C;
        const real r = p.rstd[n];
        real dot = 0;
        const Slots slots = slots_of(p.addends.map, n);
        auto gradient = [&](int c) {
            real d = 0;
            add_rows<1, 2>(&d, p.addends.rows + c, NULL, p.addends.map, slots, p.C);
            for (int i = 0; i < 2; i++) if (p.addends.more[i]) d += R(p.addends.more[i][n*p.C + c]);
            return d;
        };
        for (int c = threadIdx.x; c < p.C; c += blockDim.x) dot += gradient(c) * R(p.norm[c]) * R(x[c]);
        const real k = r * r * r / p.C * row_sum(dot);
        for (int c = threadIdx.x; c < p.C; c += blockDim.x) {
            const real d = gradient(c);
            dx[c] = X(R(dx[c]) + (r * d * R(p.norm[c]) - k * R(x[c])));
            dnorm[c] += d * R(X(R(x[c]) * r));
            if (biased) dbias[c] += R(dx[c]);
        }
    }
}

static void norm_backward(floatX *dresid, real *dnorm, real *dbias, Addends addends, const floatX *resid,
        const floatX *norm, const real *rstd, int N, int C) {
    enum { BLOCKS = MULTIPROCESSORS, THREADS = 1024 };
    const unsigned x = (unsigned)divide_up(C, 32 * VECTOR) * 32;
    const bool fits = x <= THREADS && wide(C, dresid, resid, norm)
        && wide(C, addends.rows, addends.more[0], addends.more[1]);
    unsigned rows = x == 64 ? 15 : THREADS / x;             // there are 15 barriers
    auto most_rows = [&](unsigned y) { return divide_up(N, BLOCKS * y) * y; };      // that a block gets
    if (rows > 4 && most_rows(rows - 1) < most_rows(rows)) rows--;
    const dim3 block = fits ? dim3(x, rows) : dim3(256);
    const size_t groups = divide_up(N, block.y), most = fits ? BLOCKS : 4 * BLOCKS,
        blocks = groups < most ? groups : most;
    const size_t threads = block.x * block.y, vecs = threads * sizeof(Vec), capacity = context()->max_shared - 2048;
    const size_t sums = (dbias ? 2 : 1) * VECTOR * sizeof(real) * threads;
    size_t buffers = 2 + (addends.more[0] != NULL) + (addends.more[1] != NULL);
    int ahead = 0;
    while (ahead < 32 && ahead < addends.map.K && (buffers + 1) * vecs <= capacity) ahead++, buffers++;
    const size_t shared = buffers * vecs > sums ? buffers * vecs : sums;
    if (!N) return;
    const NormBackward p = { dresid, (real *)workspace(blocks * 2 * C * sizeof(real)), addends, resid, norm, rstd, N, C,
                             (real)1 / (real)C, ahead };
    if (fits) {
        auto kernel = dbias ? norm_backward_kernel<true> : norm_backward_kernel<false>;
        LAUNCH(kernel, blocks, block, shared, p);
    } else LAUNCH(norm_backward_plain_kernel, blocks, block, 0, p, dbias != NULL);
    add_partial(dnorm, dbias, p.partial, blocks, C);
}
static void add_norm_backward(const Device *d, floatX *dresid, real *dnorm, real *dbias, floatX *const scratch[2],
        const Sum *s, const floatX *resid, Norm norm, const real *rstd, int N, int C) {
    Addends a = { s->rows, token_rows(s->plan, s->rows), { NULL, NULL } };
    for (int i = 0; i < s->terms; i++) {
        const int at = i ? 1 : 0;                           // a third term is added to the second
        d->matmul_backward_input(scratch[at], s->term[i].dout, s->term[i].weight, N, C, s->term[i].O,
                                 i > 1 ? ADD : SET);
        a.more[at] = scratch[at];
    }
    if (s->narrow) d->columns_add(scratch[0], s->narrow, N, C, 0, s->narrow_width);
    norm_backward(dresid, dnorm, dbias, a, resid, norm.weight, rstd, N, C);
}
static void rmsnorm_backward(floatX *dinp, real *dweight, const floatX *dout, const floatX *inp, Norm norm,
        const real *rstd, int N, int C) {
    norm_backward(dinp, dweight, NULL, Addends{ NULL, token_rows(NULL, NULL), { dout, NULL } }, inp, norm.weight,
                  rstd, N, C);
}

PART(norm) {
    d->rmsnorm_forward = rmsnorm_forward;    d->rmsnorm_backward = rmsnorm_backward;
    d->add_norm_forward = add_norm_forward;  d->add_norm_backward = add_norm_backward;
}
