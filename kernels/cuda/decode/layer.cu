// few.cu: the products of a few tokens (decoding). Each is over in a few microseconds, so that what counts is how soon its
// weights are on their way, and how many kernels follow each other: a layer takes five.
//
//     decode_in            norm, router, choice of experts, product, activation; beside it a plain product (keys and values)
//     decode_attention     (decode.cu)
//     decode_out           product, weighted sum over experts, residual
//     decode_in, decode_out   the same for the MLP
//
// Whatever is small is done by every block for itself instead of once for all, because handing it from one kernel to the
// next takes longer. Where values are rounded, they are rounded as by the operations that these are made of.
//
// Kernels begin early (LAUNCH_EARLY): before the last one has ended a block may ask for what does not depend on it. decode_in
// stores the choice of experts before it lets the next kernel start; so decode_out, and only decode_out, reads the choice and the
// chosen rows without waiting. Where attention comes in between, the next may start at once; decode_attention lets decode_out start
// when it need not wait any more, and decode_in has by then sent for the rows.
//
// The kernels for 2 to 4 tokens come first: each expert's rows are read once for all. Those for one token, at the end, are
// shorter on purpose: what they wait for, besides memory, is one instruction after the other.
#include "kernels/cuda/expert.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/route.cuh"

enum {
    MOST = 4,                       // tokens; with more than that tensor cores are faster
    WARPS = 8, THREADS = 32 * WARPS,
    IN_AHEAD = 3, OUT_AHEAD = 4,    // 16-byte loads of each row that a lane has under way: as registers allow
    LIMIT = 40 << 10                // bytes of shared memory
};

// The experts that N tokens have chosen, each once, in the order in which they first occur: active[a]; and for each the slot
// of every token that has it, or -1: slot[a*N + n]. Returns how many. By a whole block; N*K is at most THREADS, a slot for
// every thread, which looks whether one before it has the same expert.
__device__ static int active_experts(short *active, short *slot, const int *expert, int N, int K) {
    __shared__ int of_warp[WARPS];
    const int i = threadIdx.x, warp = i / 32;
    bool first = i < N * K;
#pragma unroll 1
    for (int j = 0; j < i && first; j++) first = expert[j] != expert[i];
    const unsigned firsts = __ballot_sync(ALL, first);
    if (i % 32 == 0) of_warp[warp] = __popc(firsts);
    __syncthreads();
    int count = 0, a = __popc(firsts & ((1u << i % 32) - 1));
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) { if (w < warp) a += of_warp[w]; count += of_warp[w]; }
    if (first) active[a] = (short)expert[i];
#pragma unroll 1
    for (int n = 0; first && n < N; n++) {
        int at = -1;
#pragma unroll 1
        for (int k = 0; k < K; k++) if (expert[n*K + k] == expert[i]) at = n*K + k;
        slot[a*N + n] = (short)at;
    }
    __syncthreads();
    return count;
}

// A stride of a row of weights, from `from` on; all its loads are under way together, those of several rows as well.
template <int AHEAD> __device__ static inline void load_stride(Vec (&w)[AHEAD], const floatX *row, int from, int C) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) if (from + i * 32 * VECTOR < C) w[i] = load_vec(row + from + i * 32 * VECTOR);
}
// sum[r][n] += <stride of row r, that of row at[n] of x>. at[n] < 0: left out. `own`: x is by token, row n stands for at[n].
template <int ROWS, int NT, bool own, int AHEAD> __device__ static inline
void add_stride(float sum[ROWS][NT], const Vec (&w)[ROWS][AHEAD], const floatX *x, const int at[NT], int from, int C) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (from + i * 32 * VECTOR < C)
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (at[n] >= 0) {
                    const Vec v = load_vec(x + (size_t)(own ? n : at[n]) * C + from + i * 32 * VECTOR);
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        for (int j = 0; j < VECTOR; j++) sum[r][n] += element(w[r][i], j) * element(v, j);
                }
}
// sum[r][n] = <row r, row at[n] of x> over C elements, by a warp; every lane gets it. The first stride is in w already.
template <int ROWS, int NT, bool own, int AHEAD> __device__ static inline
void products(float sum[ROWS][NT], Vec (&w)[ROWS][AHEAD], const floatX *const row[ROWS], const floatX *x, const int at[NT],
              int C) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int n = 0; n < NT; n++) sum[r][n] = 0;
#pragma unroll 1
    for (int from = lane * VECTOR; ; ) {
        add_stride<ROWS, NT, own, AHEAD>(sum, w, x, at, from, C);
        if ((from += AHEAD * 32 * VECTOR) - lane * VECTOR >= C) break;
#pragma unroll
        for (int r = 0; r < ROWS; r++) load_stride(w[r], row[r], from, C);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int n = 0; n < NT; n++) if (at[n] >= 0) sum[r][n] = warp_sum(sum[r][n]);
}

typedef struct {
    floatX *out, *plain;
    Choice choice;
    const floatX *inp;
    Norm norm;
    Router router;
    const floatX *w, *plain_w, *next;
    size_t next_size;                       // elements of next[e]
    Activation f;
    int N, C, O, P;
} In;

// A unit of work is a pair of rows of a weight, for all tokens that have its expert; a warp takes one after another. For a
// gated expert the two are gate and up of the same output, else neighbours. Reads (rows of the active experts + P) * C
// elements, once; norm and router are read by every block, but from L2.
template <bool gated> static __global__ __launch_bounds__(THREADS, 2) void few_in_kernel(const In p) {
    extern __shared__ __align__(16) unsigned char shared[];
    floatX *const x = (floatX *)shared, *const logits = x + p.N * p.C;                  // (N,C) (N,E)
    unsigned *const score = (unsigned *)(logits + (p.N * p.router.E + 7) / 8 * 8);             // (N,E)
    int *const expert = (int *)(score + p.N * p.router.E);                                     // (N,K)
    real *const weight = (real *)(expert + p.N * p.router.K);                                  // (N,K)
    short *const active = (short *)(weight + p.N * p.router.K), *const slot = active + p.N * p.router.K;   // (N*K) (N*K,N)
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = lane * VECTOR, C = p.C;
    const int pairs = (p.O + !gated) / (gated ? 1 : 2);

    // What does not depend on the kernel before: the norm's weights, and of every warp a row of the router.
    if (!p.router.weight) let_next_start();
    Vec norm[IN_AHEAD], router[1][IN_AHEAD];
    load_stride(norm, p.norm.weight, first, C);
    if (p.router.weight) load_stride(router[0], p.router.weight + (size_t)(warp % p.router.E) * C, first, C);
#pragma unroll 1
    for (unsigned i = global_index() * 128; i < (size_t)p.P * C * sizeof(floatX); i += gridDim.x * THREADS * 128)
        prefetch_line((const char *)p.plain_w + i);
    wait_for_previous();

#pragma unroll 1
    for (int n = warp; n < p.N; n += WARPS) {                           // as rmsnorm_forward (basic.cu)
        const floatX *from = p.inp + (size_t)n * C;
        Vec v[IN_AHEAD];
        real sum = 0;
        auto add_squares = [&](const Vec &y) { for (int j = 0; j < VECTOR; j++) sum += element(y, j) * element(y, j); };
        load_stride(v, from, first, C);
#pragma unroll
        for (int i = 0; i < IN_AHEAD; i++) if (first + i * 32 * VECTOR < C) add_squares(v[i]);
#pragma unroll 1
        for (int c = first + IN_AHEAD * 32 * VECTOR; c < C; c += 32 * VECTOR) add_squares(load_vec(from + c));
        const real rstd = 1 / sqrtf(warp_sum(sum) / C + p.norm.eps);
        auto scale = [&](const Vec &y, const Vec &by, int c) {
            Vec to;
            for (int j = 0; j < VECTOR; j++) to.x[j] = X(R(X(element(y, j) * rstd)) * element(by, j));
            store_vec(x + n * C + c, to);
        };
#pragma unroll
        for (int i = 0; i < IN_AHEAD; i++) if (first + i * 32 * VECTOR < C) scale(v[i], norm[i], first + i * 32 * VECTOR);
#pragma unroll 1
        for (int c = first + IN_AHEAD * 32 * VECTOR; c < C; c += 32 * VECTOR)
            scale(load_vec(from + c), load_vec(p.norm.weight + c), c);
    }
    __syncthreads();

    int count = 1;
    if (p.router.weight) {
#pragma unroll 1
        for (int i = warp; i < p.N * p.router.E; i += WARPS) {
            const floatX *row[1] = { p.router.weight + (size_t)(i % p.router.E) * C };
            const int token[1] = { i / p.router.E };
            float sum[1][1];
            if (i != warp || warp >= p.router.E) load_stride(router[0], row[0], first, C);
            products<1, 1, false, IN_AHEAD>(sum, router, row, x, token, C);
            if (lane == 0) logits[i] = X(sum[0][0]);
        }
        __syncthreads();
#pragma unroll 1
        for (int n = warp; n < p.N; n += WARPS) {
            choose_experts(expert + n * p.router.K, weight + n * p.router.K, NULL, logits + n * p.router.E, p.router.bias,
                           score + n * p.router.E, p.router.scores, 0, n, p.router.E, p.router.K);
            __syncwarp();
#pragma unroll 1
            for (int i = n * p.router.K + lane; i < (n + 1) * p.router.K && blockIdx.x == 0; i += 32) {
                p.choice.expert[i] = expert[i];
                p.choice.weight[i] = weight[i];
                __threadfence();
            }
        }
        __syncthreads();
        let_next_start();                                               // decode_out counts on the choice
        count = active_experts(active, slot, expert, p.N, p.router.K);
    }

    const int routed = count * pairs, units = routed + (p.P + 1) / 2;
#pragma unroll 1
    for (int u = blockIdx.x * WARPS + warp; u < units; u += gridDim.x * WARPS) {
        const bool plain = u >= routed;
        const int a = plain ? 0 : u / pairs, width = plain ? p.P : p.O;
        const int o = plain ? (u - routed) * 2 : gated ? u - a * pairs : (u - a * pairs) * 2;
        const int second = gated && !plain ? o + width : min(o + 1, width - 1);
        const size_t e = plain || !p.router.weight ? 0 : active[a];
        const floatX *from = plain ? p.plain_w : p.w + e * p.O * (gated ? 2 : 1) * C;
        const floatX *row[2] = { from + (size_t)o * C, from + (size_t)second * C };
        int to[MOST];                                                    // row of the result
#pragma unroll
        for (int n = 0; n < MOST; n++) to[n] = n >= p.N ? -1 : plain || !p.router.weight ? n : slot[a * p.N + n];
        Vec w[2][IN_AHEAD];
        load_stride(w[0], row[0], first, C);
        load_stride(w[1], row[1], first, C);
        float sum[2][MOST];
        products<2, MOST, true, IN_AHEAD>(sum, w, row, x, to, C);
        if (lane) continue;
#pragma unroll
        for (int n = 0; n < MOST; n++) {
            floatX *result = (plain ? p.plain : p.out) + (size_t)to[n] * width + o;
            if (to[n] < 0) continue;
            if (gated && !plain) *result = X(slope_of<SWIGLU>(R(X(sum[0][n])), R(X(sum[1][n]))).act);
            else for (int r = 0; r < 2 && o + r < width; r++) {
                const real pre = R(X(sum[r][n]));
                result[r] = X(plain || p.f == IDENTITY ? pre
                            : p.f == GELU ? slope_of<GELU>(pre, 0).act : slope_of<RELU2>(pre, 0).act);
            }
        }
    }

    if (!p.next || !p.router.weight) return;
    const unsigned lines = (unsigned)divide_up(p.next_size * sizeof(floatX), 128);
#pragma unroll 1
    for (int a = 0; a < count; a++) {
        const floatX *of = p.next + active[a] * p.next_size;
#pragma unroll 1
        for (unsigned i = (unsigned)global_index(); i < lines; i += gridDim.x * THREADS)
            prefetch_line((const char *)of + (size_t)i * 128);
    }
}

typedef struct {
    floatX *out;
    const floatX *residual, *inp, *w, *bias;
    Choice choice;                          // of the last decode_in; NULLs: one expert
    int N, E, K, C, O, rows;                // rows: of the result, for each block
} Out;

// A block: `rows` columns of the result, for all tokens. A warp makes the product of one row of one active expert with the
// tokens that have it; when all are there, a thread for each (row, token) adds up. Reads C * O elements of each active expert.
static __global__ __launch_bounds__(THREADS, 2) void few_out_kernel(const Out p) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int S = p.N * p.K, warp = threadIdx.x / 32, first = blockIdx.x * p.rows, rows = min(p.rows, p.O - first);
    real *const answer = (real *)shared;                                                // (rows,S)
    real *const weight = answer + p.rows * S;                                           // (S)
    int *const expert = (int *)(weight + S);                                            // (S)
    short *const active = (short *)(expert + S), *const slot = active + S;              // (S) (S,N)

    // The first row of every warp is on its way before the kernel before has ended, if it is known which.
    Vec w[1][OUT_AHEAD];
    const int lane = threadIdx.x % 32;
    if (!p.choice.expert && warp < rows) load_stride(w[0], p.w + (size_t)(first + warp) * p.C, lane * VECTOR, p.C);
    let_next_start();
    wait_for_previous();

    // So is what the sum needs, before the products.
    const int mine = threadIdx.x % rows, token = threadIdx.x / rows;    // rows * N is at most 32
    const size_t to = (size_t)token * p.O + first + mine;
    const real old = token < p.N ? R(p.residual[to]) : 0, bias = token < p.N && p.bias ? R(p.bias[first + mine]) : 0;
    const real share = threadIdx.x < S && p.choice.expert ? p.choice.weight[threadIdx.x] : 1;

    int count = 1;
    if (p.choice.expert) {
#pragma unroll 1
        for (int i = threadIdx.x; i < S; i += THREADS) expert[i] = p.choice.expert[i];
        __syncthreads();
        count = active_experts(active, slot, expert, p.N, p.K);
    }
#pragma unroll 1
    for (int i = warp; i < rows * count; i += WARPS) {
        const int r = i % rows, a = i / rows;
        const size_t e = p.choice.expert ? active[a] : 0;
        const floatX *row[1] = { p.w + (e * p.O + first + r) * p.C };
        if (p.choice.expert || i != warp) load_stride(w[0], row[0], lane * VECTOR, p.C);
        int from[MOST];                                                  // row of the input
#pragma unroll
        for (int n = 0; n < MOST; n++) from[n] = n >= p.N ? -1 : !p.choice.expert ? n : slot[a * p.N + n];
        float sum[1][MOST];
        products<1, MOST, false, OUT_AHEAD>(sum, w, row, p.inp, from, p.C);
#pragma unroll
        for (int n = 0; n < MOST; n++)
            if (lane == 0 && from[n] >= 0) answer[r * S + from[n]] = R(X(sum[0][n]));
    }
    if (threadIdx.x < S) weight[threadIdx.x] = share;
    __syncthreads();
    if (token >= p.N) return;
    real sum = bias;
#pragma unroll 1
    for (int k = 0; k < p.K; k++) sum += weight[token * p.K + k] * answer[mine * S + token * p.K + k];
    p.out[to] = X(old + R(X(sum)));
}

// ---- one token ----------------------------------------------------------------------------------------------------------
// A warp keeps the whole token, CHUNKS * VECTOR elements of it to a lane, so that nothing but the router's logits goes from
// warp to warp. Loads are unconditional where they can be, so that all of them are under way before the first is needed.

enum { CHUNK = 32 * VECTOR, MOST_CHUNKS = 6, LANES = 32, OUT_WARPS = 4 };
// Blocks on a multiprocessor, as registers allow.
__host__ __device__ constexpr int one_on_sm(int chunks) { return chunks < 4 ? 3 : chunks < 6 ? 2 : 1; }

template <int CHUNKS> __device__ static inline void load_row(Vec (&w)[CHUNKS], const floatX *row, int C) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        w[i] = {};
        if (i + 1 < CHUNKS || i * CHUNK + (int)threadIdx.x % 32 * VECTOR < C) w[i] = load_vec(row + i * CHUNK);
    }
}
template <int CHUNKS> __device__ static inline float dot(const Vec (&w)[CHUNKS], const float (&x)[CHUNKS][VECTOR]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        float part = 0;                                                 // one chain of additions would be slow
        for (int j = 0; j < VECTOR; j++) part += element(w[i], j) * x[i][j];
        sum += part;
    }
    return sum;
}
// x = X(R(X(x * rstd)) * norm), as in rmsnorm_forward (basic.cu). A product of two bf16 fits a float, so that in pairs it is
// rounded as often.
__device__ static inline void scale(float (&x)[VECTOR], float rstd, const Vec &norm) {
#if defined(PRECISION_BF16)
    for (int i = 0; i < VECTOR / 2; i++) {
        const __nv_bfloat162 y = __floats2bfloat162_rn(x[2*i] * rstd, x[2*i + 1] * rstd);
        const float2 z = __bfloat1622float2(__hmul2(y, *(const __nv_bfloat162 *)&norm.x[2*i]));
        x[2*i] = z.x;
        x[2*i + 1] = z.y;
    }
#else
    for (int j = 0; j < VECTOR; j++) x[j] = x[j] * rstd * element(norm, j);
#endif
}

// A warp makes two rows of an expert's weight at a time (those of few_in_kernel). A block has rows of one expert, the slot-th
// chosen one, or of the plain product: `of_slot` blocks for each slot. All choose for themselves, but block 0 has no rows: it
// stores the choice, which takes as long as the others' rows. Reads what few_in_kernel reads.
template <int CHUNKS> static __global__ __launch_bounds__(THREADS, one_on_sm(CHUNKS))
void one_in_kernel(const In p, int of_slot) {
    __shared__ floatX logits[LANES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, C = p.C;
    const bool tells = p.router.weight && !blockIdx.x;
    int slot = 0, block = blockIdx.x - (p.router.weight ? 1 : 0);
#pragma unroll 1
    while (slot < p.router.K && block >= of_slot) block -= of_slot, slot++;
    const bool plain = slot == p.router.K, gated = p.f == SWIGLU && !plain, routed = p.router.weight && !plain;
    const int width = plain ? p.P : p.O, units = gated ? width : (width + 1) / 2;
    const floatX *from = (plain ? p.plain_w : p.w) + lane * VECTOR;
    Vec w[2][CHUNKS], norm[CHUNKS], v[CHUNKS];
    auto load_unit = [&](int unit) {
        const int u = min(unit, units - 1), o = gated ? u : 2 * u;
        load_row(w[0], from + (size_t)o * C, C);
        load_row(w[1], from + (size_t)(gated ? o + width : min(o + 1, width - 1)) * C, C);
    };
    int unit = block * WARPS + warp;

    // What does not depend on the kernel before.
    if (!tells || p.P) let_next_start();                                // decode_attention comes before decode_out
    load_row(norm, p.norm.weight + lane * VECTOR, C);
    if (routed) load_row(w[0], p.router.weight + (warp < p.router.E ? warp * C : 0) + lane * VECTOR, C);
    else load_unit(unit);
    wait_for_previous();

    load_row(v, p.inp + lane * VECTOR, C);
    float x[CHUNKS][VECTOR], sum = 0;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        float part = 0;
        for (int j = 0; j < VECTOR; j++) { x[i][j] = element(v[i], j); part += x[i][j] * x[i][j]; }
        sum += part;
    }
    const float rstd = rsqrtf(__fdividef(warp_sum(sum), (float)C) + p.norm.eps);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) scale(x[i], rstd, norm[i]);

    if (routed) {
#pragma unroll 1
        for (int e = warp; e < p.router.E; ) {
            const float logit = warp_sum(dot(w[0], x));
            if (lane == 0) logits[e] = X(logit);
            if ((e += WARPS) < p.router.E) load_row(w[0], p.router.weight + e * C + lane * VECTOR, C);
        }
        __syncthreads();
        const real logit = lane < p.router.E ? R(logits[lane]) : 0;
        const real l = p.router.scores == SOFTMAX_TOPK ? log_sum(logits, p.router.E) : 0;
        Best best = { 0, 0, (unsigned)lane };
        if (lane < p.router.E)
            best = { score_expert(logit, p.router.bias, lane, p.router.scores, l), ordered(logit), (unsigned)lane };
        int e = 0, mine = 0;                                            // lane k's: the k-th chosen expert
#pragma unroll 1
        for (int k = 0; k <= (tells ? p.router.K - 1 : slot); k++) {
            e = __ffs(best_of_warp(best)) - 1;
            if (lane == k) mine = e;
            if (lane == e) best.score = 0;
        }
        if (tells) {
            if (warp) return;
            if (lane < p.router.K) p.choice.expert[lane] = mine;
            __threadfence();
            __syncwarp();
            let_next_start();                                           // decode_out counts on the choice
            weigh_experts(p.choice.weight, p.choice.expert, logits, p.router.scores, l, p.router.K);
            return;
        }
        from += (size_t)e * (gated ? 2 * width : width) * C;
        load_unit(unit);
        const unsigned lines = p.next && p.P ? (unsigned)(p.next_size * sizeof(floatX) / 128) : 0;
#pragma unroll 1
        for (unsigned i = block * THREADS + threadIdx.x; i < lines; i += of_slot * THREADS)
            prefetch_line((const char *)(p.next + e * p.next_size) + (size_t)i * 128);
    }

    floatX *const out = plain ? p.plain : p.out + slot * width;
    const int stride = (plain ? gridDim.x - (p.router.weight ? 1 : 0) - p.router.K * of_slot : of_slot) * WARPS;
#pragma unroll 1
    for (;;) {
        const float first = dot(w[0], x), second = dot(w[1], x);
        float mine = lane < 16 ? first : second;                        // half of the warp adds up each
        mine += __shfl_xor_sync(ALL, lane < 16 ? second : first, 16);
        for (int step = 8; step; step /= 2) mine += __shfl_xor_sync(ALL, mine, step);
        const real pre = R(X(mine)), other = __shfl_xor_sync(ALL, pre, 16);
        const int o = gated ? unit : 2 * unit + lane / 16;
        if (lane % 16 == 0 && unit < units && o < width && !(gated && lane))
            out[o] = X(gated ? slope_of<SWIGLU>(pre, other).act : plain || p.f == IDENTITY ? pre
                     : p.f == GELU ? slope_of<GELU>(pre, 0).act : slope_of<RELU2>(pre, 0).act);
        if ((unit += stride) >= units) break;
        load_unit(unit);
    }
}

// A warp makes one element of the result: the products with a row of each chosen expert are one sum over K*C elements, of
// which those of the k-th are multiplied by its weight; lane k has that and the expert. AHEAD vectors of a lane are read at
// once. `inverse` is 2^32 / (C/VECTOR), rounded up. Reads what few_out_kernel reads.
template <int AHEAD> static __global__ __launch_bounds__(32 * OUT_WARPS, 4)
void one_out_kernel(const Out p, unsigned inverse) {
    const int lane = threadIdx.x % 32, o = min(blockIdx.x * OUT_WARPS + threadIdx.x / 32, p.O - 1);
    const int vectors = p.C / VECTOR, all = p.K * vectors;
    let_next_start();
    const int expert = p.choice.expert && lane < p.K ? __ldcg(p.choice.expert + lane) : 0;
    floatX old = X(0), bias = X(0);                                     // made floats when they are there
    float weight = 1, sum = 0;
#pragma unroll 1
    for (int from = 0; from < all; from += AHEAD * 32) {
        Vec w[AHEAD], x[AHEAD];
        int slot[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int u = min(from + i * 32 + lane, all - 1);
            slot[i] = __umulhi(u, inverse);
            const unsigned row = __shfl_sync(ALL, expert, slot[i]) * p.O + o;
            w[i] = load_vec(p.w + (size_t)(row * vectors + u - slot[i] * vectors) * VECTOR);
        }
        if (!from) {
            wait_for_previous();
            old = p.residual[o];
            if (p.bias) bias = p.bias[o];
            if (p.choice.weight && lane < p.K) weight = p.choice.weight[lane];
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) x[i] = load_vec(p.inp + min(from + i * 32 + lane, all - 1) * VECTOR);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const float share = __shfl_sync(ALL, weight, slot[i]);
            float part = 0;
            for (int j = 0; j < VECTOR; j++) part += element(w[i], j) * element(x[i], j);
            if (from + i * 32 + lane < all) sum += share * part;
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) p.out[o] = X(R(old) + R(X(sum + R(bias))));
}

// ---- the table's functions ----------------------------------------------------------------------------------------------

static size_t in_shared(int N, int C, int E, int K) {
    const size_t S = (size_t)N * K, logits = divide_up((size_t)N * E, 8) * 8;
    return ((size_t)N * C + logits) * sizeof(floatX) + 4 * (size_t)N * E + 8 * S + 2 * S * (N + 1);
}

// All widths must be whole vectors (those of experts' inputs as well); more than a few tokens are a case for other kernels;
// and what every block does for itself must be small.
static int decode_fits(int N, int C, int F, int E, int K) {
    return N <= MOST && C % VECTOR == 0 && F % VECTOR == 0 && N * K <= THREADS && (size_t)E * C <= 1 << 16
        && in_shared(N, C, E, K) <= LIMIT;
}

static int most_active(int N, int E, int K) { return N * K < E ? N * K : E; }

static void decode_in(OUT floatX *out, OUT floatX *plain, OUT Choice choice, const floatX *inp, Norm norm, Router router,
                      const floatX *w, const floatX *plain_w, const floatX *next, size_t next_size, Activation f,
                      int N, int C, int O, int P) {
    typedef void Kernel(In, int);
    static Kernel *const one_kernels[MOST_CHUNKS + 1] = { NULL, one_in_kernel<1>, one_in_kernel<2>, one_in_kernel<3>,
                                                          one_in_kernel<4>, one_in_kernel<5>, one_in_kernel<6> };
    const In p = { out, plain, choice, inp, norm, router, w, plain_w, next, next_size, f, N, C, O, P };
    const int E = router.E, K = router.K;
    const size_t pairs = f == SWIGLU ? O : divide_up(O, 2), plains = divide_up(P, 2), chunks = divide_up(C, CHUNK);
    const size_t most = (size_t)context()->sm_count * (N == 1 ? one_on_sm((int)chunks) : 2);
    if (!N) return;
    if (N == 1 && chunks <= MOST_CHUNKS && E <= LANES) {
        const size_t of_slot = min(divide_up(pairs, WARPS), divide_up(most, K));
        const size_t blocks = (router.weight ? 1 : 0) + K * of_slot + min(divide_up(plains, WARPS), most);
        LAUNCH_EARLY(one_kernels[chunks], (unsigned)blocks, THREADS, 0, p, (int)of_slot);
        return;
    }
    const size_t blocks = min(divide_up(most_active(N, E, K) * pairs + plains, WARPS), most);
    LAUNCH_EARLY((f == SWIGLU ? few_in_kernel<true> : few_in_kernel<false>), (unsigned)blocks, THREADS,
                 in_shared(N, C, E, K), p);
}

static void decode_out(OUT floatX *out, const floatX *residual, const floatX *inp, Choice choice, const floatX *w,
                       const floatX *bias, int N, int E, int K, int C, int O) {
    const int active = most_active(N, E, K), rows = active < WARPS ? WARPS / active : 1;
    const size_t S = (size_t)N * K, shared = (rows * S + 2 * S) * 4 + 2 * S * (N + 1);
    const uint64_t vectors = C / VECTOR;
    const Out p = { out, residual, inp, w, bias, choice, N, E, K, C, O, rows };
    if (!N) return;
    if (N == 1 && K <= LANES && vectors > 1 && K * vectors * vectors >> 32 == 0 && E * O * vectors >> 32 == 0)
        LAUNCH_EARLY((K * vectors > 4 * 32 ? one_out_kernel<8> : one_out_kernel<4>), (unsigned)divide_up(O, OUT_WARPS),
                     32 * OUT_WARPS, 0, p, (unsigned)((1ull << 32) / vectors + 1));
    else LAUNCH_EARLY(few_out_kernel, (unsigned)divide_up(O, rows), THREADS, shared, p);
}

PART(few) {
    d->decode_fits = decode_fits;
    d->decode_in = decode_in;
    d->decode_out = decode_out;
}
