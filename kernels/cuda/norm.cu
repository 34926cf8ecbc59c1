// norm.cu: where one half of a layer ends and the next begins. Forward, the answers of its experts are combined, added to the
// residual stream, and normalized for the next half; backward, the gradients of what was normalized are added up, go back
// through the norm and into the stream's. Each of these operations reads what the one before has just written; as one they
// move K+3 times N*C elements instead of K+6, and backward, with one product to add, K+5 instead of K+8.
// rmsnorm_backward is a join whose sum lies there already. The formulas stand in kernels/cpu/norm.c and route.c.
#include "dropout.cuh"
#include "ptx.cuh"

// ---- rmsnorm ----------------------------------------------------------------------------------------------
// A row has one warp while 32 threads with KEEP units each can hold it in registers (C up to 1024 in bf16),
// then more, so that it is read once however long it is; only what is beyond the largest block is read again.

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
    auto write = [&](const Pack<W> &v, int c) {
        const Reals<W> w = unpack(load<W>(weight + c));
        Reals<W> y = unpack(v);
        for (int i = 0; i < W; i++) y.x[i] *= r;
        y = unpack(pack(y));
        for (int i = 0; i < W; i++) y.x[i] *= w.x[i];
        store(out + n*C + c, pack(y));
    };
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

// ---- rows of a token --------------------------------------------------------------------------------------

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
    for (int k = 0; k < COUNT; k++) for (int i = 0; i < W; i++) sum[i] += w[k] * unpack(x[k]).x[i];
}
// The rows of a token: where they are. Without a plan it has one, of its own number, or none.
typedef struct { const int *row_of_slot, *first; int K; } Where;
static inline Where where(const Plan *plan, const floatX *inp) {
    return plan && inp ? Where{ plan->row_of_slot, plan->first, plan->K } : Where{ NULL, NULL, inp != NULL };
}
typedef struct { int begin, end; } Slots;
__device__ static inline Slots slots_of(Where w, size_t n) {
    const int begin = w.first ? w.first[n] : (int)n * w.K;
    return { begin, w.first ? w.first[n + 1] : begin + w.K };
}
// sum += the rows of these slots, at the columns that inp points at.
template<int W> __device__ static inline void add_rows(real *sum, const floatX *inp, const real *weight, Where w, Slots s,
        int C) {
    int slot = s.begin;
    #pragma unroll 1
    for (; slot + 2 <= s.end; slot += 2) add_some_rows<W, 2>(sum, inp, weight, w.row_of_slot, slot, C);
    if (slot < s.end)                    add_some_rows<W, 1>(sum, inp, weight, w.row_of_slot, slot, C);
}

// ---- forward ----------------------------------------------------------------------------------------------

// What a half of a layer answers: rows of each token, by weight.
typedef struct { const floatX *inp; const real *weight; const floatX *bias; Where where; } Answer;

// A block has a row, and a thread VECTOR columns of it, K+1 loads; many blocks to a multiprocessor keep enough of them under
// way: 1536 threads, which takes 40 registers. Every value is rounded where the single operations would store it.
// Moves (K+3) N C elements.
template<int MOST> static __global__ void __launch_bounds__(MOST, 1536 / MOST) join_forward_kernel(floatX *out, real *rstd,
        floatX *resid, const floatX *residual, Answer a, Mask dropout, const floatX *norm, real eps, int N, int C) {
    const size_t n = blockIdx.x, at = n*C + threadIdx.x * VECTOR;
    const int c = threadIdx.x * VECTOR;
    Vec x = {};
    Reals<VECTOR> sum = {};
    real squares = 0;
    if (c < C) {
        x = load_vec(residual + at);
        if (a.bias) sum = unpack(load_vec(a.bias + c));
        add_rows<VECTOR>(sum.x, a.inp + c, a.weight, a.where, slots_of(a.where, n), C);
        sum = unpack(pack(sum));
        drop<VECTOR>(sum.x, dropout, drop_key(dropout), at);
        for (int i = 0; i < VECTOR; i++) sum.x[i] += unpack(x).x[i];
        store_vec(resid + at, x = pack(sum));
        for (int i = 0; i < VECTOR; i++) squares += unpack(x).x[i] * unpack(x).x[i];
    }
    const real r = 1 / sqrtf(row_sum(squares) / C + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    if (c >= C) return;
    const Vec w = load_vec(norm + c);
    for (int i = 0; i < VECTOR; i++) sum.x[i] = unpack(x).x[i] * r;
    sum = unpack(pack(sum));
    for (int i = 0; i < VECTOR; i++) sum.x[i] *= unpack(w).x[i];
    store_vec(out + at, pack(sum));
}
// The same for rows of any width and address: a block has a row, and reads resid again.
static __global__ void join_forward_plain_kernel(floatX *out, real *rstd, floatX *resid, const floatX *residual, Answer a,
        Mask dropout, const floatX *norm, real eps, int N, int C) {
    const size_t n = blockIdx.x;
    const uint64_t here = drop_key(dropout);
    real squares = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        real sum = a.bias ? R(a.bias[c]) : 0;
        add_rows<1>(&sum, a.inp + c, a.weight, a.where, slots_of(a.where, n), C);
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
static void add_norm_forward(const Device *, floatX *out, real *rstd, floatX *resid, const floatX *residual, const Sum *s,
        Dropout dropout, Norm norm, int N, int C) {
    const unsigned threads = (unsigned)divide_up(C, 32 * VECTOR) * 32;
    const bool fits = threads <= 1024 && wide(C, out, resid, residual, s->rows) && wide(C, s->bias, norm.weight);
    const Answer a = { s->rows, s->weight, s->bias, where(s->plan, s->rows) };
    auto kernel = !fits ? join_forward_plain_kernel : threads > 256 ? join_forward_kernel<1024> : join_forward_kernel<256>;
    LAUNCH(kernel, N, fits ? threads : 256, 0, out, rstd, resid, residual, a, mask_of(dropout), norm.weight,
           norm.eps, N, C);
}

// ---- sums of columns --------------------------------------------------------------------------------------

// first[c] += the sum of column c of partial (rows, C), or (rows, 2C) if there is a second, of which it is the right half.
// A block has 32 columns; each of its warps adds every 32nd row, AT_ONCE of them under way, and then their sums are added in
// order. The kernel that makes partial lets this one start before it ends.
enum { AT_ONCE = 8 };
static __global__ void add_partial_kernel(real *first, real *second, const real *partial, int rows, int C) {
    __shared__ real part[32][32];
    const int c = blockIdx.x * 32 + threadIdx.x, width = second ? 2 * C : C;
    real *const to = c < C ? first + c : second + (c - C);
    real sum = 0;
    const real old = threadIdx.y || c >= width ? 0 : *to;
    wait_for_previous();
    for (int from = threadIdx.y; from < rows; from += 32 * AT_ONCE) {
        real x[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) x[i] = from + 32*i < rows && c < width ? partial[(size_t)(from + 32*i) * width + c] : 0;
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) sum += x[i];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= width) return;
    sum = 0;
    for (int y = 0; y < 32; y++) sum += part[y][threadIdx.x];
    *to = old + sum;
}
static void add_partial(real *first, real *second, const real *partial, size_t rows, int C) {
    LAUNCH_EARLY(add_partial_kernel, (unsigned)divide_up(second ? 2 * C : C, 32), dim3(32, 32), 0, first, second, partial,
                 (int)rows, C);
}

// ---- backward ---------------------------------------------------------------------------------------------

// The gradient of what was normalized: a sum of a token's rows (none if inp is NULL) and of up to two more.
typedef struct { const floatX *inp; Where where; const floatX *more[2]; } Terms;

// dresid and a block's share of dnorm and dbias, in one pass. The block is as wide as a row, so a thread has the same
// VECTOR columns of every row, and keeps its part of the shares in registers; blockDim.y rows go side by side, each with a
// barrier of its own, and one is enough for a dot product, for the sums of the next row go elsewhere. While a row is worked
// on the next is on its way, to places in shared memory that no other thread reads: a thread waits for its own copies only,
// and asks for the next ones as soon as it has added up what they overwrite. Of a token's rows up to `ahead` come in this
// way, the rest when their turn comes. Shares are rows of `partial`, added by add_partial_kernel. mean: 1/C. Moves
// (K + more + 3) N C elements, dresid being read and written.
template<bool BIASED> static __global__ void __launch_bounds__(1024) join_backward_kernel(floatX *dresid, real *partial,
        Terms terms, const floatX *resid, const floatX *norm, const real *rstd, real mean, int ahead, int N, int C) {
    __shared__ Reals<4> of_warps[2][16];                    // four of a row's warps each; what no warp has stays 0
    extern __shared__ uint4 places[];                       // (2 + more + ahead, threads), later (1 + BIASED, VECTOR/4, threads)
    const bool there = threadIdx.x * VECTOR < C;            // the others do what the first does, and it counts nowhere
    const int c = there ? threadIdx.x * VECTOR : 0, warps = blockDim.x / 32;        // of a row
    const int fours = (warps + 3) / 4, first = threadIdx.y * fours, lane = threadIdx.x % 32;
    const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
    Vec *const place = (Vec *)places + thread;              // every threads-th of them

    struct Token { int rows, row; real rstd; };             // row: the lane-th of them
    auto look = [&](unsigned n) -> Token {
        if (n >= N) return {};
        const Slots s = slots_of(terms.where, n);
        const int rows = s.end - s.begin, slot = s.begin + lane;
        return { rows, lane >= rows ? 0 : terms.where.row_of_slot ? terms.where.row_of_slot[slot] : slot, rstd[n] };
    };
    auto ask = [&](unsigned n, const Token &t) {
        const size_t at = (size_t)n*C + c;
        Vec *to = place;
        auto bring = [&](const floatX *from) { cp_async(shared_address(to), from, true); to += threads; };
        if (n < N) {
            #pragma unroll 1
            for (int k = 0; k < min(t.rows, ahead); k++) bring(terms.inp + (size_t)__shfl_sync(ALL, t.row, k) * C + c);
            for (int i = 0; i < 2; i++) if (terms.more[i]) bring(terms.more[i] + at);
            bring(resid + at);
            bring(dresid + at);
        }
        cp_async_commit();
    };
    const unsigned step = gridDim.x * blockDim.y;
    unsigned n = blockIdx.x * blockDim.y + threadIdx.y;
    real share[VECTOR] = {}, bias_share[VECTOR] = {};
    if (thread < 32) of_warps[thread / 16][thread % 16] = Reals<4>();
    __syncthreads();
    let_next_start();
    Token next = look(n);
    ask(n, next);
    for (int turn = 0; n < N; n += step, turn ^= 1) {
        const Token now = next;
        next = look(n + step);
        cp_async_wait<0>();
        const Vec *from = place;
        real d[VECTOR] = {}, dot = 0;
        auto add = [&] {
            const Vec a = *from;
            for (int i = 0; i < VECTOR; i++) d[i] += unpack(a).x[i];
            from += threads;
        };
        #pragma unroll 1
        for (int k = 0; k < min(now.rows, ahead); k++) add();
        if (now.rows > ahead) {
            const Slots s = slots_of(terms.where, n);
            add_rows<VECTOR>(d, terms.inp + c, NULL, terms.where, { s.begin + ahead, s.end }, C);
        }
        for (int i = 0; i < 2; i++) if (terms.more[i]) add();
        const Vec x = *from, old = from[threads];
        ask(n + step, next);
        const Vec w = load_vec(norm + c);                   // the cache has it
        const real r = now.rstd;
        Reals<VECTOR> value = unpack(x);
        for (int i = 0; i < VECTOR; i++) value.x[i] *= r;
        value = unpack(pack(value));
        for (int i = 0; i < VECTOR; i++) share[i] += d[i] * value.x[i];
        for (int i = 0; i < VECTOR; i++) d[i] *= unpack(w).x[i];
        for (int i = 0; i < VECTOR; i++) dot += d[i] * unpack(x).x[i];
        dot = warp_sum(there ? dot : 0);
        if (warps > 1) {
            if (lane == 0) of_warps[turn][first + threadIdx.x / 128].x[threadIdx.x / 32 % 4] = dot;
            named_barrier_sync(1 + threadIdx.y, blockDim.x);
            dot = 0;
            #pragma unroll 1
            for (int i = 0; i < fours; i++) {
                const Reals<4> four = of_warps[turn][first + i];
                dot += (four.x[0] + four.x[1]) + (four.x[2] + four.x[3]);
            }
        }
        const real k = r * r * r * mean * dot;
        for (int i = 0; i < VECTOR; i++) value.x[i] = unpack(old).x[i] + r * d[i] - k * unpack(x).x[i];
        const Vec dx = pack(value);
        if (BIASED) for (int i = 0; i < VECTOR; i++) bias_share[i] += unpack(dx).x[i];
        if (there) store_vec(dresid + (size_t)n*C + c, dx);
    }
    // A row that had a turn less than the first meets once more, so that all have met equally often: compute-sanitizer's
    // racecheck takes what different barriers order for one.
    if (warps > 1 && n - threadIdx.y < N) named_barrier_sync(1 + threadIdx.y, blockDim.x);
    __syncthreads();                                        // nothing is on its way any more
    Reals<4> *const shares = (Reals<4> *)places;
    for (int i = 0; i < VECTOR; i++) shares[i / 4 * threads + thread].x[i % 4] = share[i];
    if (BIASED) for (int i = 0; i < VECTOR; i++) shares[(VECTOR + i) / 4 * threads + thread].x[i % 4] = bias_share[i];
    __syncthreads();
    for (int i = thread; i < (1 + BIASED) * C; i += threads) {
        const int to = i < C ? i : i - C, part = (i < C ? 0 : VECTOR / 4) + to % VECTOR / 4;
        real sum = 0;
        for (int y = 0; y < blockDim.y; y++) sum += shares[part * threads + y * blockDim.x + to / VECTOR].x[to % 4];
        partial[(size_t)blockIdx.x * (1 + BIASED) * C + i] = sum;
    }
}
// The same for rows of any width and address: a block reads each of its rows twice, and its shares lie in memory.
static __global__ void join_backward_plain_kernel(floatX *dresid, real *partial, Terms terms, const floatX *resid,
        const floatX *norm, const real *rstd, int biased, int N, int C) {
    real *const share = partial + (size_t)blockIdx.x * (1 + biased) * C, *const bias_share = share + C;
    for (int c = threadIdx.x; c < C * (1 + biased); c += blockDim.x) share[c] = 0;
    let_next_start();
    __syncthreads();
    for (size_t n = blockIdx.x; n < N; n += gridDim.x) {
        const floatX *x = resid + n*C;
        floatX *dx = dresid + n*C;
        const real r = rstd[n];
        real dot = 0;
        const Slots slots = slots_of(terms.where, n);
        auto gradient = [&](int c) {
            real d = 0;
            add_rows<1>(&d, terms.inp + c, NULL, terms.where, slots, C);
            for (int i = 0; i < 2; i++) if (terms.more[i]) d += R(terms.more[i][n*C + c]);
            return d;
        };
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
    enum { BLOCKS = 132, THREADS = 1024 };                  // one for each multiprocessor of an H100
    const unsigned x = (unsigned)divide_up(C, 32 * VECTOR) * 32;
    const bool fits = x <= THREADS && wide(C, dresid, resid, norm) && wide(C, terms.inp, terms.more[0], terms.more[1]);
    unsigned rows = x == 64 ? 15 : THREADS / x;             // 15 barriers are all there are
    auto turns = [&](unsigned y) { return divide_up(N, BLOCKS * y) * y; };          // of the block with most rows
    if (rows > 4 && turns(rows - 1) < turns(rows)) rows--;
    const dim3 block = fits ? dim3(x, rows) : dim3(256);
    const size_t groups = divide_up(N, block.y), most = fits ? BLOCKS : 4 * BLOCKS, blocks = groups < most ? groups : most;
    const size_t threads = block.x * block.y, place = threads * sizeof(uint4), capacity = context()->max_shared - 2048;
    const size_t shares = (dbias ? 2 : 1) * VECTOR * sizeof(real) * threads;
    size_t places = 2 + (terms.more[0] != NULL) + (terms.more[1] != NULL);
    int ahead = 0;
    while (ahead < 32 && ahead < terms.where.K && (places + 1) * place <= capacity) ahead++, places++;
    const size_t shared = places * place > shares ? places * place : shares;
    if (!N) return;
    real *const partial = (real *)workspace(blocks * 2 * C * sizeof(real));
    if (fits) {
        auto kernel = dbias ? join_backward_kernel<true> : join_backward_kernel<false>;
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        LAUNCH(kernel, blocks, block, shared, dresid, partial, terms, resid, norm, rstd, (real)1 / (real)C, ahead, N, C);
    } else
        LAUNCH(join_backward_plain_kernel, blocks, block, 0, dresid, partial, terms, resid, norm, rstd, dbias != NULL, N, C);
    add_partial(dnorm, dbias, partial, blocks, C);
}
static void add_norm_backward(const Device *d, floatX *dresid, real *dnorm, real *dbias, floatX *const scratch[2], const Sum *s,
        const floatX *resid, Norm norm, const real *rstd, int N, int C) {
    for (int i = 0; i < s->terms; i++)
        d->matmul_backward_input(scratch[i], s->term[i].dout, s->term[i].weight, N, C, s->term[i].O, SET);
    const Terms terms = { s->rows, where(s->plan, s->rows), { s->terms > 0 ? scratch[0] : NULL, s->terms > 1 ? scratch[1] : NULL } };
    back_through_norm(dresid, dnorm, dbias, terms, resid, norm.weight, rstd, N, C);
}
static void rmsnorm_backward(floatX *dinp, real *dweight, const floatX *dout, const floatX *inp, Norm norm,
        const real *rstd, int N, int C) {
    back_through_norm(dinp, dweight, NULL, Terms{ NULL, where(NULL, NULL), { dout, NULL } }, inp, norm.weight, rstd, N, C);
}

// ---- bias alone -------------------------------------------------------------------------------------------

// Sums of columns. A block has 32 units of columns and BIAS_ROWS rows at a time, 4 of which a thread has under way;
// its sum over every gridDim.y-th group of rows becomes a row of `partial` (gridDim.y,C). Reads N*C elements.
enum { BIAS_ROWS = 32 };
template<int W> static __global__ void bias_backward_kernel(real *partial, const floatX *dout, int N, int C) {
    __shared__ real part[BIAS_ROWS][32 * W];
    const int c = (blockIdx.x * 32 + threadIdx.x) * W;
    real sum[W] = {};
    let_next_start();
    if (c < C) {
        #pragma unroll 4
        for (size_t n = blockIdx.y * BIAS_ROWS + threadIdx.y; n < N; n += gridDim.y * BIAS_ROWS) {
            const Pack<W> d = load<W>(dout + n*C + c);
            for (int i = 0; i < W; i++) sum[i] += R(d.x[i]);
        }
    }
    for (int i = 0; i < W; i++) part[threadIdx.y][threadIdx.x * W + i] = sum[i];
    __syncthreads();
    const int column = threadIdx.y * 32 + threadIdx.x, to = blockIdx.x * 32 * W + column;
    if (column >= 32 * W || to >= C) return;
    real total = 0;
    for (int y = 0; y < BIAS_ROWS; y++) total += part[y][column];
    partial[(size_t)blockIdx.y * C + to] = total;
}
static void bias_backward(real *dbias, const floatX *dout, int N, int C) {
    const bool w = wide(C, dout);
    const size_t across = divide_up(w ? C / VECTOR : C, 32), most = across < 264 ? 264 / across : 1;
    const size_t groups = divide_up(N, 64), down = groups < most ? groups : most;
    if (!N) return;
    real *const partial = (real *)workspace(down * C * sizeof(real));
    auto kernel = w ? bias_backward_kernel<VECTOR> : bias_backward_kernel<1>;
    LAUNCH(kernel, dim3(across, down), dim3(32, BIAS_ROWS), 0, partial, dout, N, C);
    add_partial(dbias, NULL, partial, down, C);
}

PART(norm) {
    d->rmsnorm_forward = rmsnorm_forward;    d->rmsnorm_backward = rmsnorm_backward;
    d->add_norm_forward = add_norm_forward;  d->add_norm_backward = add_norm_backward;
    d->bias_backward = bias_backward;
}
