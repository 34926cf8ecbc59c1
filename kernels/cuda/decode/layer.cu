// decode/layer.cu: a layer's products for 1 to 4 tokens (decoding). Kernels take microseconds, so
// two things count: how early they request weights, and how many there are. A layer takes five:
//
//     decode_in               norm, router, choice of experts, product, activation; beside it a
//       plain product (keys and values); a large router first has a kernel decode_router
//     decode_attention        decode/attention.cu
//     decode_out              product, weighted sum over experts, residual
//     decode_in, decode_out   the same for the MLP
//
// Small work is repeated in every block: passing it on takes longer. Rounds as the operations do.
//
// Kernels start early (LAUNCH_EARLY). T: a block calls let_next_start; when all have, the next
// kernel's blocks start. W: wait_for_previous returns: the kernel before has ended.
//
//   in          T | norm, router row | W | norm, choice | rows | prefetch
//   attention        | first keys and values                            | W T | attention
//   out                                                                       | T rows | W | sum
//
//   in, MLP       | norm, router row | W | norm, choice T | rows
//   out                                                   | T choice, rows | W | sum
//
// in, ...: decode_in, ...; norm, router row: weights; rows: of chosen experts; prefetch:
// decode_out's rows. decode_router: T | norm weights, router rows | W | norm | logits.
//
// decode_out, and nothing else, reads before its wait what another kernel writes: the choice of
// experts. It is complete: decode_in stores it before it triggers decode_out, or decode_attention
// in between triggers decode_out only after its own wait; by then decode_in has prefetched the
// rows. (For several tokens decode_out reads it after, and decode_in triggers after the choice.)
//
// Kernels for 2 to 4 tokens come first: they read each expert's rows once for all tokens. Those for
// one token, at the end, are short on purpose: they wait for memory and chains of instructions.
//
// A block's shared memory, S = N*K slots. For one token decode_in has x in every warp's registers:
//
//   decode_router  x (N,C)
//   decode_in      x (N,C) | scores (N,E) | expert (S) | logits (N,E) | active (S) | slot (S,N)
//   decode_out     products (rows,S) | weight (S) | expert (S) | active (S) | slot (S,N)
#include "kernels/cuda/expert.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/route.cuh"

enum {
    MAX_TOKENS = 4,                 // with more, tensor cores are faster
    WARPS = 8, THREADS = 32 * WARPS,
    CHUNK = 32 * VECTOR,            // elements of a row that a warp reads at once, 16 bytes a lane
    IN_CHUNKS = 3, OUT_CHUNKS = 4, ROUTER_CHUNKS = 8,       // of each row in flight at once: as registers allow
    SHARED_LIMIT = 40 << 10,        // bytes
    ONE_ROUTER = 1 << 15,           // elements of a router that every block reads for itself
    MAX_EXPERTS = 32,               // and its experts: one for each lane
    MOST_EXPERTS = 512              // of any router: a rank is found by comparing with all
};

// ---- what all of them use -----------------------------------------------------------------------

struct InArgs {
    floatX *out, *plain;
    Choice choice;
    const floatX *inp;
    Norm norm;
    Router router;
    const floatX *w, *plain_w, *next;
    size_t next_size;                       // elements of an expert in next
    const floatX *logits;               // of decode_router, which has left x normalized in inp; NULL: there was none
    Activation f;
    int N, C, O, P;
    int x_elements;                         // of InShared.x
};
struct OutArgs {
    floatX *out;
    const floatX *residual, *inp, *w, *bias;
    Choice choice;                          // of the last decode_in; NULLs: one expert
    float scale;                            // of what is added to the residual
    int N, E, K, C, O, rows;                // rows: of w, that is, columns of the result, for each block
};

// A warp multiplies two rows of a weight at a time: an output's gate and up, else neighbours.
__host__ __device__ static inline int pairs_of(int width, bool gated) { return gated ? width : (width + 1) / 2; }
__device__ static inline int first_row(int pair, bool gated) { return gated ? pair : 2 * pair; }
__device__ static inline int second_row(int first, int width, bool gated) {
    return gated ? first + width : min(first + 1, width - 1);
}

// Not of a gated expert.
__device__ static inline real activated(real pre, Activation f) {
    return f == IDENTITY ? pre : f == GELU ? slope_of<GELU>(pre, 0).act : slope_of<RELU2>(pre, 0).act;
}
// As in rmsnorm_forward: X(R(X(x * rstd)) * weight): a product of bf16 pairs is rounded once, too.
__device__ static inline Vec normalized(const Vec &x, float rstd, const Vec &weight) {
    Vec y;
#if defined(PRECISION_BF16)
    for (int i = 0; i < VECTOR; i += 2) {
        const __nv_bfloat162 scaled = __floats2bfloat162_rn(element(x, i) * rstd, element(x, i + 1) * rstd);
        *(__nv_bfloat162 *)&y.x[i] = __hmul2(scaled, *(const __nv_bfloat162 *)&weight.x[i]);
    }
#else
    for (int i = 0; i < VECTOR; i++) y.x[i] = x.x[i] * rstd * weight.x[i];
#endif
    return y;
}
// Requests lines of 128 bytes for L2: the index-th of them and every step-th after it.
__device__ static inline void prefetch(const floatX *from, unsigned lines, unsigned index, unsigned step) {
    #pragma unroll 1
    for (unsigned i = index; i < lines; i += step) prefetch_line((const char *)from + (size_t)i * 128);
}

// ---- 2 to 4 tokens: rows times tokens -----------------------------------------------------------

// The experts that N tokens have chosen, each once, in the order in which they first occur:
// active[a]. slot[a*N + n] is the slot of token n that chose it, or -1. Returns their number. By a
// block: each slot's thread (N*K <= THREADS) checks whether an earlier slot chose the same.
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

// CHUNKS chunks of a row, from this lane's element `from` on. Loads, also of several rows, overlap.
template <int CHUNKS> __device__ static inline void load_chunks(Vec (&w)[CHUNKS], const floatX *row, int from, int C) {
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) if (from + i * CHUNK < C) w[i] = load_vec(row + from + i * CHUNK);
}
// sum[r][n] += the product of these chunks of row r and those of token n. by_token: x has a row for
// each token; else x's row for token n is at[n]. Tokens with at[n] < 0 are left out.
template <int ROWS, int NT, bool by_token, int CHUNKS> __device__ static inline void
add_chunks(float sum[ROWS][NT], const Vec (&w)[ROWS][CHUNKS], const floatX *x, const int at[NT], int from, int C) {
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (from + i * CHUNK < C)
            #pragma unroll
            for (int n = 0; n < NT; n++)
                if (at[n] >= 0) {
                    const Vec v = load_vec(x + (size_t)(by_token ? n : at[n]) * C + from + i * CHUNK);
                    #pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        for (int j = 0; j < VECTOR; j++) sum[r][n] += element(w[r][i], j) * element(v, j);
                }
}
// sum[r][n] = <row r, x of token n>, C elements, in every lane. w: first chunks, requested.
template <int ROWS, int NT, bool by_token, int CHUNKS> __device__ static inline void
dot_rows(float sum[ROWS][NT], Vec (&w)[ROWS][CHUNKS], const floatX *const row[ROWS], const floatX *x,
         const int at[NT], int C) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int r = 0; r < ROWS; r++)
        #pragma unroll
        for (int n = 0; n < NT; n++) sum[r][n] = 0;
    #pragma unroll 1
    for (int from = lane * VECTOR; ; ) {
        add_chunks<ROWS, NT, by_token, CHUNKS>(sum, w, x, at, from, C);
        if ((from += CHUNKS * CHUNK) - lane * VECTOR >= C) break;
        #pragma unroll
        for (int r = 0; r < ROWS; r++) load_chunks(w[r], row[r], from, C);
    }
    #pragma unroll
    for (int r = 0; r < ROWS; r++)
        #pragma unroll
        for (int n = 0; n < NT; n++) if (at[n] >= 0) sum[r][n] = warp_sum(sum[r][n]);
}

// ---- 2 to 4 tokens: decode_in -------------------------------------------------------------------

struct InShared {
    unsigned *scores;
    int *expert;
    floatX *logits, *x;
    short *active, *slot;
    __device__ InShared(unsigned char *shared, const InArgs &p) {
        const int S = p.N * p.router.K, NE = p.N * p.router.E;
        x = (floatX *)shared;                                           // first, as it is read 16 bytes at a time
        scores = (unsigned *)(x + p.x_elements);
        expert = (int *)(scores + NE);
        logits = (floatX *)(expert + S);
        active = (short *)(logits + NE), slot = active + S;
    }
};
static size_t in_shared_bytes(int N, size_t x, int E, int K) {
    const size_t S = (size_t)N * K, NE = (size_t)N * E;
    return (x + NE) * sizeof(floatX) + 4 * (NE + S) + 2 * S * (N + 1);
}

// x = rmsnorm_forward(inp) of a token, by a warp. weight: norm.weight's first chunks, requested.
template <int CHUNKS> __device__ static inline void
normalize_token(floatX *x, const floatX *inp, const Vec (&weight)[CHUNKS], Norm norm, int C) {
    const int first = threadIdx.x % 32 * VECTOR;
    Vec v[CHUNKS];
    real sum = 0;
    auto add_squares = [&](const Vec &y) { for (int j = 0; j < VECTOR; j++) sum += element(y, j) * element(y, j); };
    load_chunks(v, inp, first, C);
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) if (first + i * CHUNK < C) add_squares(v[i]);
    #pragma unroll 1
    for (int c = first + CHUNKS * CHUNK; c < C; c += CHUNK) add_squares(load_vec(inp + c));
    const real rstd = 1 / sqrtf(warp_sum(sum) / C + norm.eps);
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (first + i * CHUNK < C) store_vec(x + first + i * CHUNK, normalized(v[i], rstd, weight[i]));
    #pragma unroll 1
    for (int c = first + CHUNKS * CHUNK; c < C; c += CHUNK)
        store_vec(x + c, normalized(load_vec(inp + c), rstd, load_vec(norm.weight + c)));
}
// s.logits, a warp per (token, expert). w: first chunks of its first router row, requested.
__device__ static inline void logits_of_tokens(const InShared &s, Vec (&w)[1][IN_CHUNKS], const InArgs &p) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, E = p.router.E;
    #pragma unroll 1
    for (int i = warp; i < p.N * E; i += WARPS) {
        const floatX *row[1] = { p.router.weight + (size_t)(i % E) * p.C };
        const int token[1] = { i / E };
        float sum[1][1];
        if (i != warp || warp >= E) load_chunks(w[0], row[0], lane * VECTOR, p.C);
        dot_rows<1, 1, false, IN_CHUNKS>(sum, w, row, s.x, token, p.C);
        if (lane == 0) s.logits[i] = X(sum[0][0]);
    }
}
// Are experts ranked by logit alone? With the id it fits into a word, and no two are equal.
__device__ static inline bool by_logit(const Router &r) {
    return sizeof(floatX) == 2 && !r.bias && r.groups.count <= 1 && r.E % 4 == 0;
}
__device__ static inline unsigned key_of(floatX logit, int e) {
    return (ordered(R(logit)) & 0xffff0000) | (0xffff - e);
}
// s.expert of all tokens, by a block, from s.logits (visible). An expert's rank counts better ones:
// by score, of equal ones larger logit, then lower id. Up to 8 threads share an expert.
__device__ static void rank_experts(const InShared &s, const InArgs &p) {
    const Router &r = p.router;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, E = r.E, all = p.N * E;
    const bool only = by_logit(r);
    if (warp < p.N && !only) {
        const floatX *logits = s.logits + warp * E;
        unsigned *scores = s.scores + warp * E;
        const real l = SCORES_ARE_P(r.scores) && (r.bias || r.groups.count > 1) ? log_sum(logits, E) : 0;
        #pragma unroll 1
        for (int e = lane; e < E; e += 32)
            scores[e] = r.bias ? biased_score(R(logits[e]), r.bias[e], r.scores, l) : ordered(R(logits[e]));
        __syncwarp();
        if (r.groups.count > 1) mask_groups(scores, logits, r.bias, r.scores, r.groups, l, E);
    }
    for (int i = threadIdx.x; i < all && only; i += THREADS) s.scores[i] = key_of(s.logits[i], i % E);
    __syncthreads();
    int parts = 1;
    while (parts < 8 && 2 * parts * all <= THREADS) parts *= 2;
    #pragma unroll 1
    for (int from = 0; from < all * parts; from += THREADS) {
        const int i = from + threadIdx.x, u = min(i / parts, all - 1), n = u / E, e = u - n * E;
        const floatX *logits = s.logits + n * E;
        const unsigned *scores = s.scores + n * E, mine = scores[e];
        int rank = 0;
        #pragma unroll 4
        for (int j = i % parts * 4; j < E && only; j += parts * 4) {
            const uint4 other = *(const uint4 *)(scores + j);
            rank += (other.x > mine) + (other.y > mine) + (other.z > mine) + (other.w > mine);
        }
        #pragma unroll 4
        for (int j = i % parts; j < E && !only; j += parts) {
            const unsigned other = scores[j];
            bool better = other > mine;
            if (other == mine) {
                const unsigned a = ordered(R(logits[j])), b = ordered(R(logits[e]));
                better = a > b || (a == b && j < e);
            }
            rank += better;
        }
        #pragma unroll 1
        for (int step = parts / 2; step; step /= 2) rank += __shfl_xor_sync(ALL, rank, step);
        if (i < all * parts && i % parts == 0 && rank < r.K) s.expert[n * r.K + rank] = e;
    }
    __syncthreads();
}
// The choice for token n, by a warp: experts, then weights (decode_out may have started by then).
__device__ static inline void store_choice(const InShared &s, const InArgs &p, int n, bool start_next) {
    const Router &r = p.router;
    const int lane = threadIdx.x % 32, *expert = s.expert + n * r.K;
    const floatX *logits = s.logits + n * r.E;
    real *weight = p.choice.weight + n * r.K;
    #pragma unroll 1
    for (int k = lane; k < r.K; k += 32) p.choice.expert[n * r.K + k] = expert[k];
    __threadfence();
    __syncwarp();
    if (start_next) let_next_start();                                   // not earlier: decode_out reads the choice
    weigh_experts(weight, expert, logits, r.scores, SCORES_ARE_P(r.scores) ? log_sum(logits, r.E) : 0, r.K);
    #pragma unroll 1
    for (int k = lane; k < r.K && r.scale > 0; k += 32) weight[k] *= r.scale;
}
// Row pair `pair` of active expert a, or of the plain product, times all its tokens, by a warp.
template <bool gated> __device__ static inline void multiply_pair(const InShared &s, const InArgs &p, int a, int pair,
                                                                  bool plain) {
    const int lane = threadIdx.x % 32, C = p.C, width = plain ? p.P : p.O;
    const int o = first_row(pair, gated && !plain), second = second_row(o, width, gated && !plain);
    const size_t e = plain || !p.router.weight ? 0 : s.active[a];
    const floatX *from = plain ? p.plain_w : p.w + e * p.O * (gated ? 2 : 1) * C;
    const floatX *row[2] = { from + (size_t)o * C, from + (size_t)second * C };
    int to[MAX_TOKENS];                                                 // row of the result
    #pragma unroll
    for (int n = 0; n < MAX_TOKENS; n++) to[n] = n >= p.N ? -1 : plain || !p.router.weight ? n : s.slot[a * p.N + n];
    Vec w[2][IN_CHUNKS];
    load_chunks(w[0], row[0], lane * VECTOR, C);
    load_chunks(w[1], row[1], lane * VECTOR, C);
    float sum[2][MAX_TOKENS];
    dot_rows<2, MAX_TOKENS, true, IN_CHUNKS>(sum, w, row, s.x, to, C);
    if (lane) return;
    #pragma unroll
    for (int n = 0; n < MAX_TOKENS; n++) {
        floatX *result = (plain ? p.plain : p.out) + (size_t)to[n] * width + o;
        if (to[n] < 0) continue;
        if (gated && !plain) *result = X(slope_of<SWIGLU>(R(X(sum[0][n])), R(X(sum[1][n]))).act);
        else for (int r = 0; r < 2 && o + r < width; r++)
            result[r] = X(activated(R(X(sum[r][n])), plain ? IDENTITY : p.f));
    }
}

// x (N,C), the normalized tokens, and logits (N,E), a warp for each. Moves (E + 2 N) C elements.
static __global__ __launch_bounds__(THREADS) void decode_router_kernel(floatX *x, floatX *logits, const InArgs p) {
    extern __shared__ __align__(16) unsigned char shared[];
    floatX *const normed = (floatX *)shared;
    const int warp = threadIdx.x / 32, first = threadIdx.x % 32 * VECTOR, E = p.router.E,
        unit = blockIdx.x * WARPS + warp;
    const floatX *row[1] = { p.router.weight + (size_t)(unit % E) * p.C };
    Vec norm[ROUTER_CHUNKS], w[1][ROUTER_CHUNKS];
    let_next_start();
    load_chunks(norm, p.norm.weight, first, p.C);
    load_chunks(w[0], row[0], first, p.C);
    wait_for_previous();
    if (warp < p.N) normalize_token(normed + warp * p.C, p.inp + (size_t)warp * p.C, norm, p.norm, p.C);
    __syncthreads();
    #pragma unroll 1
    for (int i = threadIdx.x * VECTOR; blockIdx.x == 0 && i < p.N * p.C; i += THREADS * VECTOR)
        store_vec(x + i, load_vec(normed + i));
    if (unit >= p.N * E) return;
    const int token[1] = { unit / E };
    float sum[1][1];
    dot_rows<1, 1, false, ROUTER_CHUNKS>(sum, w, row, normed, token, p.C);
    if (first == 0) logits[unit] = X(sum[0][0]);
}

// Reads (active experts' rows + P) * C elements once; norm and router in every block, from L2.
template <bool gated> static __global__ __launch_bounds__(THREADS, 2) void decode_in_kernel(const InArgs p) {
    extern __shared__ __align__(16) unsigned char shared[];
    const InShared s(shared, p);
    const int warp = threadIdx.x / 32, first = threadIdx.x % 32 * VECTOR;

    // Before the wait: the norm's weights, and of every warp a row of the router.
    if (!p.router.weight) let_next_start();
    Vec norm[IN_CHUNKS], router[1][IN_CHUNKS];
    if (!p.logits) load_chunks(norm, p.norm.weight, first, p.C);
    if (p.router.weight && !p.logits)
        load_chunks(router[0], p.router.weight + (size_t)(warp % p.router.E) * p.C, first, p.C);
    const unsigned index = (unsigned)global_index(), threads = gridDim.x * THREADS;
    prefetch(p.plain_w, (unsigned)divide_up((size_t)p.P * p.C * sizeof(floatX), 128), index, threads);
    wait_for_previous();

    if (!p.logits && warp < p.N) normalize_token(s.x + warp * p.C, p.inp + (size_t)warp * p.C, norm, p.norm, p.C);
    #pragma unroll 1
    for (int i = threadIdx.x * VECTOR; p.logits && i < p.N * p.C; i += THREADS * VECTOR)
        store_vec(s.x + i, load_vec(p.inp + i));
    #pragma unroll 1
    for (int i = threadIdx.x; p.logits && i < p.N * p.router.E; i += THREADS) s.logits[i] = p.logits[i];
    __syncthreads();
    int count = 1;
    if (p.router.weight) {
        if (!p.logits) {
            logits_of_tokens(s, router, p);
            __syncthreads();
        }
        rank_experts(s, p);
        if (blockIdx.x == 0 && warp < p.N) store_choice(s, p, warp, false);
        __syncthreads();
        let_next_start();                                               // not earlier: decode_out reads the choice
        count = active_experts(s.active, s.slot, s.expert, p.N, p.router.K);
    }

    const int pairs = pairs_of(p.O, gated), routed = count * pairs, units = routed + pairs_of(p.P, false);
    #pragma unroll 1
    for (int u = blockIdx.x * WARPS + warp; u < units; u += gridDim.x * WARPS) {
        const bool plain = u >= routed;
        const int a = plain ? 0 : u / pairs;
        multiply_pair<gated>(s, p, a, plain ? u - routed : u - a * pairs, plain);
    }

    if (!p.next || !p.router.weight) return;
    const unsigned lines = (unsigned)divide_up(p.next_size * sizeof(floatX), 128);
    #pragma unroll 1
    for (int a = 0; a < count; a++) prefetch(p.next + s.active[a] * p.next_size, lines, index, threads);
}

// ---- 2 to 4 tokens: decode_out ------------------------------------------------------------------

// A block computes `rows` columns of the result for all tokens. A warp multiplies a row of an
// active expert with its tokens; then a thread per (row, token) adds up. Reads C * O per expert.
static __global__ __launch_bounds__(THREADS, 2) void decode_out_kernel(const OutArgs p) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int S = p.N * p.K, warp = threadIdx.x / 32, first = blockIdx.x * p.rows, rows = min(p.rows, p.O - first);
    real *const products = (real *)shared;                                              // (rows,S)
    real *const weight = products + p.rows * S;                                         // (S)
    int *const expert = (int *)(weight + S);                                            // (S)
    short *const active = (short *)(expert + S), *const slot = active + S;              // (S) (S,N)

    // With one expert every warp requests its first row before the kernel before has ended.
    Vec w[1][OUT_CHUNKS];
    const int lane = threadIdx.x % 32;
    if (!p.choice.expert && warp < rows) load_chunks(w[0], p.w + (size_t)(first + warp) * p.C, lane * VECTOR, p.C);
    let_next_start();
    wait_for_previous();

    // What the sum needs is requested before the products.
    const int mine = threadIdx.x % rows, token = threadIdx.x / rows;    // rows * N is at most 32
    const size_t to = (size_t)token * p.O + first + mine;
    const real old = token < p.N ? R(p.residual[to]) : 0, bias = token < p.N && p.bias ? R(p.bias[first + mine]) : 0;
    const real of_slot = threadIdx.x < S && p.choice.expert ? p.choice.weight[threadIdx.x] : 1;

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
        if (p.choice.expert || i != warp) load_chunks(w[0], row[0], lane * VECTOR, p.C);
        int from[MAX_TOKENS];                                           // row of the input
        #pragma unroll
        for (int n = 0; n < MAX_TOKENS; n++) from[n] = n >= p.N ? -1 : !p.choice.expert ? n : slot[a * p.N + n];
        float sum[1][MAX_TOKENS];
        dot_rows<1, MAX_TOKENS, false, OUT_CHUNKS>(sum, w, row, p.inp, from, p.C);
        #pragma unroll
        for (int n = 0; n < MAX_TOKENS; n++) if (lane == 0 && from[n] >= 0) products[r * S + from[n]] = R(X(sum[0][n]));
    }
    if (threadIdx.x < S) weight[threadIdx.x] = of_slot;
    __syncthreads();
    if (token >= p.N) return;
    real sum = bias;
    #pragma unroll 1
    for (int k = 0; k < p.K; k++) sum += weight[token * p.K + k] * products[mine * S + token * p.K + k];
    p.out[to] = X(old + p.scale * R(X(sum)));
}

// ---- one token ----------------------------------------------------------------------------------
//
// Every warp keeps the whole token, CHUNKS * VECTOR elements in each lane: only the router's logits
// go from warp to warp. Loads are unconditional where possible, so that all are in flight at once.

enum { MAX_CHUNKS = 8, REGISTER_CHUNKS = 5, OUT_WARPS = 4 };
// Blocks on an SM, as registers allow. Before Hopper three chunks need more (host: as on Hopper).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { THREE_BLOCKS = 2 };
#else
enum { THREE_BLOCKS = 3 };
#endif
__host__ __device__ constexpr int one_token_blocks(int chunks) { return chunks <= THREE_BLOCKS ? 3 : 2; }

// The i-th of a row's chunks.
template <int CHUNKS> __device__ static inline Vec load_chunk(const floatX *row, int i, int C) {
    return i + 1 < CHUNKS || i * CHUNK + (int)threadIdx.x % 32 * VECTOR < C ? load_vec(row + i * CHUNK) : Vec{};
}
template <int CHUNKS> __device__ static inline void load_row(Vec (&w)[CHUNKS], const floatX *row, int C) {
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) w[i] = load_chunk<CHUNKS>(row, i, C);
}
__device__ static inline float product(const Vec &w, const Vec &v) {
    float sum = 0;
    for (int j = 0; j < VECTOR; j++) sum += element(w, j) * element(v, j);
    return sum;
}
// x(i): the token's i-th chunk. A sum of sums: one chain of additions would be slow.
template <int CHUNKS, class At> __device__ static inline float dot(const Vec (&w)[CHUNKS], At x) {
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) sum += product(w[i], x(i));
    return sum;
}
// 1 / sqrt(mean(x^2) + eps)
template <int CHUNKS> __device__ static inline float rstd_of(const Vec (&x)[CHUNKS], float eps, int C) {
    const float sum = dot(x, [&](int i) { return x[i]; });
    return rsqrtf(__fdividef(warp_sum(sum), (float)C) + eps);
}
// Both sums over the lanes, each by half of the warp: lane 0 gets the first, lane 16 the second.
__device__ static inline float two_warp_sums(float first, float second) {
    const bool lower = threadIdx.x % 32 < 16;
    float mine = lower ? first : second;
    mine += __shfl_xor_sync(ALL, lower ? second : first, 16);
    for (int step = 8; step; step /= 2) mine += __shfl_xor_sync(ALL, mine, step);
    return mine;
}

// The router's logits of token x, by a block. w: the warp's first router row, requested.
template <int CHUNKS, class At> __device__ static inline void router_logits(floatX *logits, Vec (&w)[CHUNKS], At x,
        const InArgs &p) {
    const int lane = threadIdx.x % 32;
    #pragma unroll 1
    for (int e = threadIdx.x / 32; e < p.router.E; ) {
        const float logit = warp_sum(dot(w, x));
        if (lane == 0) logits[e] = X(logit);
        if ((e += WARPS) < p.router.E) load_row(w, p.router.weight + e * p.C + lane * VECTOR, p.C);
    }
    __syncthreads();
}
// The `count` best of <= 32 experts, by every warp: returns the last; chosen: in lane k the k-th.
__device__ static inline int best_experts(int &chosen, const floatX *logits, const Router &router, int count) {
    const int lane = threadIdx.x % 32;
    const real logit = lane < router.E ? R(logits[lane]) : 0;
    const real l = SCORES_ARE_P(router.scores) && router.bias ? log_sum(logits, router.E) : 0;
    int last = 0;
    chosen = 0;
    top_experts<false>(only_candidate(logit, router.bias, router.scores, l, router.E), NULL, NULL, router.E, count,
                       [&](int k, int e) { last = e; if (lane == k) chosen = e; });
    return last;
}

// The same, of up to 32 * BY_KEYS experts whose logits decode_router has made, if those are all
// that counts. Every warp reads them for itself. The best is found by one instruction.
enum { BY_KEYS = 4 };
__device__ static inline bool by_keys(const Router &r) { return by_logit(r) && r.E <= 32 * BY_KEYS && r.K <= 32; }
__device__ static inline int best_experts(int &chosen, const floatX (&logit)[BY_KEYS], int E, int count) {
    const int lane = threadIdx.x % 32;
    unsigned key[BY_KEYS], best = 0;
    #pragma unroll
    for (int i = 0; i < BY_KEYS; i++) {
        const int e = i * 32 + lane;
        key[i] = e < E ? key_of(logit[i], e) : 0;
    }
    chosen = 0;
    #pragma unroll 1
    for (int k = 0; k < count; k++) {
        best = 0;
        #pragma unroll
        for (int i = 0; i < BY_KEYS; i++) best = max(best, key[i]);
        best = __reduce_max_sync(ALL, best);
        if (lane == k) chosen = 0xffff - (best & 0xffff);
        #pragma unroll
        for (int i = 0; i < BY_KEYS; i++) if (key[i] == best) key[i] = 0;
    }
    return 0xffff - (best & 0xffff);
}

// What a block of decode_in_one_kernel works on: rows of the slot-th chosen expert (slot_blocks
// blocks each), or of the plain product. With a router, block 0 has none: it stores the choice.
struct InBlock {
    bool stores_choice, plain, gated, routed;
    int slot = 0, number, stride, width, pairs;         // number: among those of its slot; stride: how many there are
    __device__ InBlock(const InArgs &p, int slot_blocks) {
        const int K = p.router.K, choosing = p.router.weight ? 1 : 0;
        stores_choice = choosing && !blockIdx.x;
        number = blockIdx.x - choosing;
        #pragma unroll 1
        while (slot < K && number >= slot_blocks) number -= slot_blocks, slot++;
        plain = slot == K, gated = p.f == SWIGLU && !plain, routed = choosing && !plain;
        width = plain ? p.P : p.O, pairs = pairs_of(width, gated);
        stride = plain ? gridDim.x - choosing - K * slot_blocks : slot_blocks;
    }
};
// The token, normalized unless decode_router did that: to v of every warp, or, past
// REGISTER_CHUNKS, to s.x, each warp the chunk of its number, whose weight is in norm[0].
template <int CHUNKS> __device__ static inline void
take_token(Vec (&v)[CHUNKS], const InShared &s, const Vec (&norm)[CHUNKS], const InArgs &p) {
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * CHUNK + lane * VECTOR, C = p.C;
    if (CHUNKS <= REGISTER_CHUNKS) {
        load_row(v, p.inp + lane * VECTOR, C);
        if (p.logits) return;
        const float rstd = rstd_of(v, p.norm.eps, C);
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) v[i] = normalized(v[i], rstd, norm[i]);
        return;
    }
    Vec mine = load_vec(p.inp + min(own, C - VECTOR));
    if (!p.logits) {
        load_row(v, p.inp + lane * VECTOR, C);
        mine = normalized(mine, rstd_of(v, p.norm.eps, C), norm[0]);
    }
    if (own < C) store_vec(s.x + own, mine);
    __syncthreads();
}
// The expert of the block's slot. w: the warp's first router row, requested, or unused.
template <int CHUNKS, class At> __device__ static inline int
expert_of(const InBlock &at, const InShared &s, Vec (&w)[CHUNKS], At x, const InArgs &p) {
    const int lane = threadIdx.x % 32, E = p.router.E, K = p.router.K;
    if (p.logits) {
        #pragma unroll 1
        for (int i = threadIdx.x; i < E; i += THREADS) s.logits[i] = p.logits[i];
        __syncthreads();
        rank_experts(s, p);
        return s.expert[at.slot];
    }
    int chosen;
    router_logits(s.logits, w, x, p);
    const int e = best_experts(chosen, s.logits, p.router, at.stores_choice ? K : at.slot + 1);
    if (at.stores_choice && threadIdx.x < K) s.expert[lane] = chosen;
    __syncwarp();
    return e;
}

// The same by every warp for itself, from the logits of decode_router, as soon as those are there.
__device__ static inline int expert_by_keys(const InBlock &at, const InShared &s, const InArgs &p) {
    const int lane = threadIdx.x % 32, E = p.router.E;
    floatX logit[BY_KEYS];
    int chosen;
    #pragma unroll
    for (int i = 0; i < BY_KEYS; i++) logit[i] = p.logits[min(i * 32 + lane, E - 1)];
    const int e = best_experts(chosen, logit, E, at.stores_choice ? p.router.K : at.slot + 1);
    if (at.stores_choice && threadIdx.x < 32) {                         // for store_choice
        #pragma unroll
        for (int i = 0; i < BY_KEYS; i++) if (i * 32 + lane < E) s.logits[i * 32 + lane] = logit[i];
        if (lane < p.router.K) s.expert[lane] = chosen;
        __syncwarp();
    }
    return e;
}

// Pair `pair` of the block's rows, in w, and every further one, times the token.
template <int CHUNKS, class At, class RowsOf> __device__ static inline void
multiply_pairs(Vec (&w)[2][CHUNKS], int pair, const InBlock &at, At x, RowsOf rows_of, const InArgs &p) {
    const int lane = threadIdx.x % 32, C = p.C;
    floatX *const out = at.plain ? p.plain : p.out + at.slot * at.width;
    #pragma unroll 1
    for (;;) {
        // else the compiler reads x once, to registers that are not there
        if (CHUNKS > REGISTER_CHUNKS) asm volatile("" ::: "memory");
        const int after = pair + at.stride * WARPS;
        const floatX *row[2];
        float first = 0, second = 0;
        rows_of(after, row);
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) {                  // the next pair's chunks are requested as these are used
            const Vec v = x(i);
            first += product(w[0][i], v), second += product(w[1][i], v);
            if (after < at.pairs)
                w[0][i] = load_chunk<CHUNKS>(row[0], i, C), w[1][i] = load_chunk<CHUNKS>(row[1], i, C);
        }
        const real pre = R(X(two_warp_sums(first, second))), up = __shfl_xor_sync(ALL, pre, 16);
        const int o = at.gated ? pair : 2 * pair + lane / 16;
        if (lane % 16 == 0 && pair < at.pairs && o < at.width && !(at.gated && lane))
            out[o] = X(at.gated ? slope_of<SWIGLU>(pre, up).act : activated(pre, at.plain ? IDENTITY : p.f));
        if ((pair = after) >= at.pairs) break;
    }
}

// Reads what decode_in_kernel reads. Every block chooses experts for itself.
template <int CHUNKS> static __global__ __launch_bounds__(THREADS, one_token_blocks(CHUNKS))
void decode_in_one_kernel(const InArgs p, int slot_blocks) {
    extern __shared__ __align__(16) unsigned char shared[];
    constexpr bool together = CHUNKS > REGISTER_CHUNKS;
    const InShared s(shared, p);
    const InBlock at(p, slot_blocks);
    const floatX *const router = p.router.weight;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, C = p.C;
    const floatX *from = (at.plain ? p.plain_w : p.w) + lane * VECTOR;
    const unsigned lines = (unsigned)(p.next_size * sizeof(floatX) / 128);
    Vec w[2][CHUNKS], norm[CHUNKS], v[CHUNKS];
    auto rows_of = [&](int i, const floatX *(&row)[2]) {
        const int o = first_row(min(i, at.pairs - 1), at.gated);
        row[0] = from + (size_t)o * C, row[1] = from + (size_t)second_row(o, at.width, at.gated) * C;
    };
    auto load_pair = [&](int i) {
        const floatX *row[2];
        rows_of(i, row);
        load_row(w[0], row[0], C);
        load_row(w[1], row[1], C);
    };
    int pair = at.number * WARPS + warp;

    // What does not depend on the kernel before.
    if (!at.stores_choice || p.P) let_next_start();                 // with P, decode_attention comes before decode_out
    if (!p.logits && together) norm[0] = load_vec(p.norm.weight + min(warp * CHUNK + lane * VECTOR, C - VECTOR));
    else if (!p.logits) load_row(norm, p.norm.weight + lane * VECTOR, C);
    if (!at.routed) load_pair(pair);
    else if (!p.logits) load_row(w[0], router + (warp < p.router.E ? warp * C : 0) + lane * VECTOR, C);
    wait_for_previous();

    const bool quick = at.routed && p.logits && by_keys(p.router);  // then rows are requested before the token is there
    if (!quick) take_token(v, s, norm, p);
    auto x = [&](int i) { return together ? load_vec(s.x + min(i * CHUNK + lane * VECTOR, C - VECTOR)) : v[i]; };
    if (at.routed) {
        const int e = quick ? expert_by_keys(at, s, p) : expert_of(at, s, w[0], x, p);
        if (at.stores_choice) {
            if (warp == 0) store_choice(s, p, 0, true);
            return;
        }
        from += (size_t)e * (at.gated ? 2 * at.width : at.width) * C;
        load_pair(pair);
        if (p.next && p.P)
            prefetch(p.next + e * p.next_size, lines, at.number * THREADS + threadIdx.x, at.stride * THREADS);
        if (quick) take_token(v, s, norm, p);
    }

    multiply_pairs(w, pair, at, x, rows_of, p);
    if (p.next && p.P && !router) prefetch(p.next, lines, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
}

// A warp computes one element of the result: a sum over K*C elements, in which the products with
// slot k's expert are multiplied by its weight; lane k has that weight and the expert. Each lane
// reads CHUNKS vectors at once. inverse: 2^32 / (C/VECTOR), rounded up. Reads as decode_out_kernel.
template <int CHUNKS> static __global__ __launch_bounds__(32 * OUT_WARPS, 4)
void decode_out_one_kernel(const OutArgs p, unsigned inverse) {
    const int lane = threadIdx.x % 32, o = min(blockIdx.x * OUT_WARPS + threadIdx.x / 32, p.O - 1);
    const int vectors = p.C / VECTOR, all = p.K * vectors;
    let_next_start();
    // before the wait: see above
    const int expert = p.choice.expert && lane < p.K ? __ldcg(p.choice.expert + lane) : 0;
    floatX old = X(0), bias = X(0);                                     // converted when they are there
    float weight = 1, sum = 0;
    Vec w[CHUNKS];
    auto slot_of = [&](int u) { return (int)__umulhi(min(u, all - 1), inverse); };
    auto request = [&](int u) {                                         // vector u of the sum
        const int slot = slot_of(u);
        const unsigned row = __shfl_sync(ALL, expert, slot) * p.O + o;
        return load_vec(p.w + (size_t)(row * vectors + min(u, all - 1) - slot * vectors) * VECTOR);
    };
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) w[i] = request(i * 32 + lane);
    wait_for_previous();
    old = p.residual[o];
    if (p.bias) bias = p.bias[o];
    if (p.choice.weight && lane < p.K) weight = p.choice.weight[lane];
    #pragma unroll 1
    for (int from = 0; from < all; from += CHUNKS * 32) {
        Vec x[CHUNKS];
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) x[i] = load_vec(p.inp + min(from + i * 32 + lane, all - 1) * VECTOR);
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) {                          // the next vectors are requested as these are used
            const int u = from + i * 32 + lane;
            const float of_slot = __shfl_sync(ALL, weight, slot_of(u)), part = product(w[i], x[i]);
            if (u < all) sum += of_slot * part;
            if (from + CHUNKS * 32 < all) w[i] = request(u + CHUNKS * 32);
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) p.out[o] = X(R(old) + p.scale * R(X(sum + R(bias))));
}

// ---- the table's functions ----------------------------------------------------------------------

// All widths must be whole vectors, and what every block does for itself must be small.
static int decode_fits(int N, int C, int F, int E, int K) {
    return N <= MAX_TOKENS && C % VECTOR == 0 && F % VECTOR == 0 && N * K <= THREADS && E <= MOST_EXPERTS
        && in_shared_bytes(N, (size_t)N * C, E, K) <= SHARED_LIMIT;
}

static int most_active(int N, int E, int K) { return N * K < E ? N * K : E; }

static void decode_in(OUT floatX *out, OUT floatX *plain, OUT Choice choice, const floatX *inp, Norm norm,
                      Router router, const floatX *w, const floatX *plain_w, const floatX *next, size_t next_size,
                      Activation f, int N, int C, int O, int P) {
    typedef void Kernel(InArgs, int);
    static Kernel *const one_token[MAX_CHUNKS + 1] = {
        NULL, decode_in_one_kernel<1>, decode_in_one_kernel<2>, decode_in_one_kernel<3>, decode_in_one_kernel<4>,
        decode_in_one_kernel<5>, decode_in_one_kernel<6>, decode_in_one_kernel<7>, decode_in_one_kernel<8>
    };
    InArgs p = { out, plain, choice, inp, norm, router, w, plain_w, next, next_size, NULL, f, N, C, O, P, 0 };
    const int E = router.E, K = router.K;
    const size_t pairs = pairs_of(O, f == SWIGLU), plain_pairs = pairs_of(P, false), chunks = divide_up(C, CHUNK),
        x = (size_t)N * C;
    const size_t most = (size_t)context()->sm_count * (N == 1 ? one_token_blocks((int)chunks) : 2);
    if (!N) return;
    if (router.weight && (E > MAX_EXPERTS || (size_t)E * C > ONE_ROUTER || router.groups.count > 1)) {
        floatX *normed = (floatX *)workspace((x + (size_t)N * E) * sizeof(floatX)), *logits = normed + x;
        LAUNCH_EARLY(decode_router_kernel, (unsigned)divide_up((size_t)N * E, WARPS), THREADS, x * sizeof(floatX),
                     normed, logits, p);
        p.inp = normed, p.logits = logits;
    }
    if (N == 1 && chunks <= MAX_CHUNKS) {
        p.x_elements = chunks > REGISTER_CHUNKS ? C : 0;
        const size_t choosing = router.weight ? 1 : 0, left = most - choosing,
            each = left * pairs / (K * pairs + plain_pairs);
        const size_t slot_blocks = min(divide_up(pairs, WARPS), each > 1 ? each : 1);
        // no more than run at once: each begins with the norm
        const size_t others = left > K * slot_blocks ? left - K * slot_blocks : 1;
        const size_t blocks = choosing + K * slot_blocks + min(divide_up(plain_pairs, WARPS), others);
        LAUNCH_EARLY(one_token[chunks], (unsigned)blocks, THREADS, in_shared_bytes(N, (size_t)p.x_elements, E, K), p,
                     (int)slot_blocks);
        return;
    }
    const size_t blocks = min(divide_up(most_active(N, E, K) * pairs + plain_pairs, WARPS), most);
    p.x_elements = (int)x;
    LAUNCH_EARLY((f == SWIGLU ? decode_in_kernel<true> : decode_in_kernel<false>), (unsigned)blocks, THREADS,
                 in_shared_bytes(N, x, E, K), p);
}

static void decode_out(OUT floatX *out, const floatX *residual, const floatX *inp, Choice choice, const floatX *w,
                       const floatX *bias, float scale, int N, int E, int K, int C, int O) {
    const int active = most_active(N, E, K), rows = active < WARPS ? WARPS / active : 1;
    const size_t S = (size_t)N * K, shared = (rows * S + 2 * S) * 4 + 2 * S * (N + 1);
    const uint64_t vectors = C / VECTOR;
    const OutArgs p = { out, residual, inp, w, bias, choice, scale > 0 ? scale : 1, N, E, K, C, O, rows };
    if (!N) return;
    if (N == 1 && K <= 32 && vectors > 1 && K * vectors * vectors >> 32 == 0 && E * O * vectors >> 32 == 0)
        LAUNCH_EARLY((K * vectors > 4 * 32 ? decode_out_one_kernel<8> : decode_out_one_kernel<4>),
                     (unsigned)divide_up(O, OUT_WARPS), 32 * OUT_WARPS, 0, p, (unsigned)((1ull << 32) / vectors + 1));
    else LAUNCH_EARLY(decode_out_kernel, (unsigned)divide_up(O, rows), THREADS, shared, p);
}

PART_OF(DecodeOperations, decode_layer) {
    d->fits = decode_fits;
    d->in = decode_in;
    d->out = decode_out;
}
