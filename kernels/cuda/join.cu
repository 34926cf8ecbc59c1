// join.cu: where one half of a layer ends and the next begins. Forward, the answers of its experts are combined, added to the
// residual stream, and normalized for the next half; backward, the gradients of what was normalized are added up, go back
// through the norm and into the stream's. Each of these operations reads what the one before has just written; as one they
// move K+3 times N*C elements instead of K+6, and backward, with one product to add, K+5 instead of K+8.
// rmsnorm_backward is a join whose sum lies there already. The formulas stand in kernels/cpu/basic.c and route.c.
#include "join.cuh"
#include "ptx.cuh"

// sum += COUNT rows, by weight (NULL: ones), from `slot` on. All their loads are under way at once. row_of_slot NULL: they are
// in the order of slots.
template<int W, int COUNT> __device__ static inline void add_some_rows(real *sum, const floatX *inp, const real *weight,
        const int *row_of_slot, int slot, int C) {
    const floatX *row[COUNT];
    real w[COUNT];
    Pack<W> x[COUNT];
    #pragma unroll
    for (int k = 0; k < COUNT; k++) row[k] = inp + (size_t)(row_of_slot ? row_of_slot[slot + k] : slot + k) * C;
    #pragma unroll
    for (int k = 0; k < COUNT; k++) w[k] = weight ? weight[slot + k] : 1;
    #pragma unroll
    for (int k = 0; k < COUNT; k++) x[k] = load<W>(row[k]);
    #pragma unroll
    for (int k = 0; k < COUNT; k++) for (int i = 0; i < W; i++) sum[i] += w[k] * R(x[k].x[i]);
}
// The rows of a token: where they are. Without a plan it has one, of its own number.
typedef struct { const int *row_of_slot, *first; int K; } Where;
static inline Where where(const Plan *plan) {
    return plan ? Where{ plan->row_of_slot, plan->first, plan->K } : Where{ NULL, NULL, 1 };
}
// sum += the rows of token n, at the columns that inp points at.
template<int W> __device__ static inline void add_rows(real *sum, const floatX *inp, const real *weight, Where w, size_t n,
        int C) {
    int slot = w.first ? w.first[n] : (int)n * w.K;
    const int end = w.first ? w.first[n + 1] : slot + w.K;
    #pragma unroll 1
    for (; slot + 2 <= end; slot += 2) add_some_rows<W, 2>(sum, inp, weight, w.row_of_slot, slot, C);
    if (slot < end)                    add_some_rows<W, 1>(sum, inp, weight, w.row_of_slot, slot, C);
}

// ---- forward ----------------------------------------------------------------------------------------------

// What a half of a layer answers: rows of each token, by weight.
typedef struct { const floatX *inp; const real *weight; const floatX *bias; Where where; } Answer;

// A block has a row, and a thread VECTOR columns of it, K+1 loads; many blocks to a multiprocessor keep enough of them under
// way: 1536 threads, which takes 40 registers. Every value is rounded where the single operations would store it.
// Moves (K+3) N C elements.
template<int MOST> static __global__ void __launch_bounds__(MOST, 1536 / MOST) join_forward_kernel(floatX *out, real *rstd,
        floatX *resid, const floatX *residual, Answer a, Dropout dropout, const floatX *norm, real eps, int N, int C) {
    const size_t n = blockIdx.x, at = n*C + threadIdx.x * VECTOR;
    const int c = threadIdx.x * VECTOR;
    Vec x = {};
    real sum[VECTOR] = {}, squares = 0;
    if (c < C) {
        x = load_vec(residual + at);
        if (a.bias) {
            const Vec b = load_vec(a.bias + c);
            for (int i = 0; i < VECTOR; i++) sum[i] = R(b.x[i]);
        }
        add_rows<VECTOR>(sum, a.inp + c, a.weight, a.where, n, C);
        for (int i = 0; i < VECTOR; i++) sum[i] = R(X(sum[i]));
        drop<VECTOR>(sum, dropout, drop_key(dropout), at);
        for (int i = 0; i < VECTOR; i++) x.x[i] = X(R(x.x[i]) + sum[i]);
        store_vec(resid + at, x);
        for (int i = 0; i < VECTOR; i++) squares += R(x.x[i]) * R(x.x[i]);
    }
    const real r = 1 / sqrtf(row_sum(squares) / C + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    if (c >= C) return;
    const Vec w = load_vec(norm + c);
    for (int i = 0; i < VECTOR; i++) x.x[i] = X(R(X(R(x.x[i]) * r)) * R(w.x[i]));
    store_vec(out + at, x);
}
// The same for rows of any width and address: a block has a row, and reads resid again.
static __global__ void join_forward_plain_kernel(floatX *out, real *rstd, floatX *resid, const floatX *residual, Answer a,
        Dropout dropout, const floatX *norm, real eps, int N, int C) {
    const size_t n = blockIdx.x;
    const uint64_t here = drop_key(dropout);
    real squares = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        real sum = a.bias ? R(a.bias[c]) : 0;
        add_rows<1>(&sum, a.inp + c, a.weight, a.where, n, C);
        sum = R(X(sum));
        drop<1>(&sum, dropout, here, n*C + c);
        const floatX x = X(R(residual[n*C + c]) + sum);
        squares += R(x) * R(x);
        resid[n*C + c] = x;
    }
    const real r = 1 / sqrtf(row_sum(squares) / C + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    for (int c = threadIdx.x; c < C; c += blockDim.x) out[n*C + c] = X(R(X(R(resid[n*C + c]) * r)) * R(norm[c]));
}
static void join_forward(floatX *out, real *rstd, floatX *resid, const floatX *residual, const floatX *inp,
        const real *weight, const floatX *bias, const Plan *plan, float p, const uint64_t *key, int place,
        const floatX *norm, float eps, int N, int C) {
    const unsigned threads = (unsigned)divide_up(C, 32 * VECTOR) * 32;
    const bool fits = threads <= 1024 && wide(C, out, resid, residual, inp) && wide(C, bias, norm);
    const Answer a = { inp, weight, bias, where(plan) };
    auto kernel = !fits ? join_forward_plain_kernel : threads > 256 ? join_forward_kernel<1024> : join_forward_kernel<256>;
    LAUNCH(kernel, N, fits ? threads : 256, 0, out, rstd, resid, residual, a, dropout_of(p, key, place), norm, eps, N,
                 C);
}

// ---- sums of columns --------------------------------------------------------------------------------------

// first[c] += the sum of column c of partial (rows, C), or (rows, 2C) if there is a second, of which it is the right half.
// A block has 32 columns; each of its warps adds every 32nd row, and then their sums are added in order.
static __global__ void add_partial_kernel(real *first, real *second, const real *partial, int rows, int C) {
    __shared__ real part[32][32];
    const int c = blockIdx.x * 32 + threadIdx.x, width = second ? 2 * C : C;
    real sum = 0;
    #pragma unroll 8
    for (int row = threadIdx.y; row < rows; row += 32) if (c < width) sum += partial[(size_t)row*width + c];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= width) return;
    sum = 0;
    for (int y = 0; y < 32; y++) sum += part[y][threadIdx.x];
    *(c < C ? first + c : second + (c - C)) += sum;
}
static void add_partial(real *first, real *second, const real *partial, size_t rows, int C) {
    LAUNCH(add_partial_kernel, divide_up(second ? 2 * C : C, 32), dim3(32, 32), 0, first, second, partial, (int)rows, C);
}

// ---- backward ---------------------------------------------------------------------------------------------

// The gradient of what was normalized: a sum of a token's rows (none if inp is NULL) and of up to two more.
typedef struct { const floatX *inp; Where where; const floatX *more[2]; } Terms;
template<int W> __device__ static inline void add_terms(real *sum, Terms t, size_t n, int c, int C) {
    Pack<W> a = {}, b = {};
    if (t.more[0]) a = load<W>(t.more[0] + n*C + c);
    if (t.more[1]) b = load<W>(t.more[1] + n*C + c);
    if (t.inp) add_rows<W>(sum, t.inp + c, NULL, t.where, n, C);
    for (int i = 0; i < W; i++) sum[i] += R(a.x[i]) + R(b.x[i]);
}

// dresid and a block's share of dnorm and dbias, in one pass. The block is as wide as a row, so a thread has the same
// VECTOR columns of every row; its part of the shares is in shared memory, at places of its own, for registers are needed for
// what is under way. blockDim.y rows go side by side, each with a barrier of its own; one is enough for a dot product, for
// the sums of the next row go elsewhere. Shares are rows of `partial`, added by add_partial_kernel. Moves
// (K + more + 3) N C elements, dresid being read and written.
static __global__ void __launch_bounds__(1024) join_backward_kernel(floatX *dresid, real *partial, Terms terms,
        const floatX *resid, const floatX *norm, const real *rstd, int biased, int N, int C) {
    __shared__ real of_warp[2][32];
    extern __shared__ uint4 shared_shares[];                // (1 + biased, VECTOR/4, threads)
    const int c = threadIdx.x * VECTOR, warps = blockDim.x / 32;        // of a row
    const int first = threadIdx.y * warps, warp = first + threadIdx.x / 32;
    const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
    Reals<4> *const share = (Reals<4> *)shared_shares, *const bias_share = share + VECTOR / 4 * threads;
    for (int i = thread; i < (1 + biased) * VECTOR / 4 * threads; i += threads) share[i] = Reals<4>();
    int turn = 0;
    for (unsigned n = blockIdx.x * blockDim.y + threadIdx.y; n < N; n += gridDim.x * blockDim.y, turn ^= 1) {
        const size_t at = (size_t)n*C + c;
        const bool there = c < C;
        const real r = rstd[n];
        Vec x = {}, dx = {}, w = {};
        real d[VECTOR] = {}, dot = 0;
        if (there) {
            w = load_vec(norm + c);                         // the cache has it
            x = load_vec(resid + at);
            dx = load_vec(dresid + at);
            add_terms<VECTOR>(d, terms, n, c, C);
        }
        for (int i = 0; i < VECTOR; i++) dot += d[i] * R(w.x[i]) * R(x.x[i]);
        dot = warp_sum(dot);
        if (warps > 1) {
            if (threadIdx.x % 32 == 0) of_warp[turn][warp] = dot;
            meet(1 + threadIdx.y, blockDim.x);
            dot = 0;
            for (int i = 0; i < warps; i++) dot += of_warp[turn][first + i];
        }
        const real k = r * r * r / C * dot;
        for (int i = 0; i < VECTOR; i++) {
            const real a = R(x.x[i]), back = r * d[i] * R(w.x[i]) - k * a;
            d[i] *= R(X(a * r));
            dx.x[i] = X(R(dx.x[i]) + back);
        }
        auto add_to = [&](Reals<4> *shares, auto value) {
            for (int i = 0; i < VECTOR; i += 4) {
                Reals<4> s = shares[i / 4 * threads + thread];
                for (int j = 0; j < 4; j++) s.x[j] += value(i + j);
                shares[i / 4 * threads + thread] = s;
            }
        };
        add_to(share, [&](int i) { return d[i]; });
        if (biased) add_to(bias_share, [&](int i) { return R(dx.x[i]); });
        if (there) store_vec(dresid + at, dx);
    }
    __syncthreads();
    for (int i = thread; i < (1 + biased) * C; i += threads) {
        const Reals<4> *const of = i < C ? share : bias_share;
        const int to = i < C ? i : i - C;
        real sum = 0;
        for (int y = 0; y < blockDim.y; y++) sum += of[to % VECTOR / 4 * threads + y * blockDim.x + to / VECTOR].x[to % 4];
        partial[(size_t)blockIdx.x * (1 + biased) * C + i] = sum;
    }
}
// The same for rows of any width and address: a block reads each of its rows twice, and its shares lie in memory.
static __global__ void join_backward_plain_kernel(floatX *dresid, real *partial, Terms terms, const floatX *resid,
        const floatX *norm, const real *rstd, int biased, int N, int C) {
    real *const share = partial + (size_t)blockIdx.x * (1 + biased) * C, *const bias_share = share + C;
    for (int c = threadIdx.x; c < C * (1 + biased); c += blockDim.x) share[c] = 0;
    __syncthreads();
    for (size_t n = blockIdx.x; n < N; n += gridDim.x) {
        const floatX *x = resid + n*C;
        floatX *dx = dresid + n*C;
        const real r = rstd[n];
        real dot = 0;
        auto gradient = [&](int c) { real d = 0; add_terms<1>(&d, terms, n, c, C); return d; };
        for (int c = threadIdx.x; c < C; c += blockDim.x) dot += gradient(c) * R(norm[c]) * R(x[c]);
        const real k = r * r * r / C * row_sum(dot);
        for (int c = threadIdx.x; c < C; c += blockDim.x) {
            const real d = gradient(c);
            dx[c] = X(R(dx[c]) + (r * d * R(norm[c]) - k * R(x[c])));
            share[c] += d * R(X(R(x[c]) * r));
            if (biased) bias_share[c] += R(dx[c]);
        }
    }
}
static void back_through_norm(floatX *dresid, real *dnorm, real *dbias, Terms terms, const floatX *resid,
        const floatX *norm, const real *rstd, int N, int C) {
    enum { BLOCKS = 528 };                                  // two or four for each multiprocessor of an H100
    const unsigned x = (unsigned)divide_up(C, 32 * VECTOR) * 32;
    const bool fits = x <= 1024 && wide(C, dresid, resid, norm) && wide(C, terms.inp, terms.more[0], terms.more[1]);
    const dim3 block = fits ? dim3(x, x < 512 ? 512 / x : 1) : dim3(256);
    const size_t groups = divide_up(N, fits ? block.y : 1), blocks = groups < BLOCKS ? groups : BLOCKS;
    const size_t shared = fits ? (dbias ? 2 : 1) * VECTOR * sizeof(real) * block.x * block.y : 0;
    if (!N) return;
    real *const partial = (real *)workspace(blocks * 2 * C * sizeof(real));
    auto kernel = fits ? join_backward_kernel : join_backward_plain_kernel;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    LAUNCH(kernel, blocks, block, shared, dresid, partial, terms, resid, norm, rstd, dbias != NULL, N, C);
    add_partial(dnorm, dbias, partial, blocks, C);
}
static void join_backward(floatX *dresid, real *dnorm, real *dbias, const floatX *inp, const Plan *plan,
        const floatX *more, const floatX *more_still, const floatX *resid, const floatX *norm, const real *rstd, int N,
        int C) {
    back_through_norm(dresid, dnorm, dbias, Terms{ inp, where(plan), { more, more_still } }, resid, norm, rstd, N, C);
}
static void rmsnorm_backward(floatX *dinp, real *dweight, const floatX *dout, const floatX *inp, const floatX *weight,
        const real *rstd, int N, int C) {
    back_through_norm(dinp, dweight, NULL, Terms{ NULL, where(NULL), { dout, NULL } }, inp, weight, rstd, N, C);
}

// ---- bias alone -------------------------------------------------------------------------------------------

// Sums of columns. A block has 32 units of columns and 8 rows at a time, 4 of which a thread has under way;
// its sum over every gridDim.y-th group of rows becomes a row of `partial` (gridDim.y,C). Reads N*C elements.
template<int W> static __global__ void bias_backward_kernel(real *partial, const floatX *dout, int N, int C) {
    __shared__ real part[8][32 * W];
    const int c = (blockIdx.x * 32 + threadIdx.x) * W;
    real sum[W] = {};
    if (c < C) {
        #pragma unroll 4
        for (size_t n = blockIdx.y * 8 + threadIdx.y; n < N; n += gridDim.y * 8) {
            const Pack<W> d = load<W>(dout + n*C + c);
            for (int i = 0; i < W; i++) sum[i] += R(d.x[i]);
        }
    }
    for (int i = 0; i < W; i++) part[threadIdx.y][threadIdx.x * W + i] = sum[i];
    __syncthreads();
    const int column = threadIdx.y * 32 + threadIdx.x, to = blockIdx.x * 32 * W + column;
    if (column >= 32 * W || to >= C) return;
    real total = 0;
    for (int y = 0; y < 8; y++) total += part[y][column];
    partial[(size_t)blockIdx.y * C + to] = total;
}
static void bias_backward(real *dbias, const floatX *dout, int N, int C) {
    const bool w = wide(C, dout);
    const size_t across = divide_up(w ? C / VECTOR : C, 32), most = across < 1024 ? 1024 / across : 1;
    const size_t groups = divide_up(N, 32), down = groups < most ? groups : most;
    if (!N) return;
    real *const partial = (real *)workspace(down * C * sizeof(real));
    auto kernel = w ? bias_backward_kernel<VECTOR> : bias_backward_kernel<1>;
    LAUNCH(kernel, dim3(across, down), dim3(32, 8), 0, partial, dout, N, C);
    add_partial(dbias, NULL, partial, down, C);
}

PART(join) {
    d->join_forward = join_forward;          d->join_backward = join_backward;
    d->rmsnorm_backward = rmsnorm_backward;  d->bias_backward = bias_backward;
}
