// decode/layer.cuh: what layer.cu and codes.cu share, products with numbers and with codes.
#pragma once
#include "kernels/cuda/expert.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/route.cuh"
#include "kernels/codes.h"

enum {
    WARPS = 8, THREADS = 32 * WARPS,
    CHUNK = 32 * VECTOR,            // elements of a row that a warp reads at once, 16 bytes a lane
    CODED_TOKENS = 8                // of decode_in_codes and decode_out_codes
};

struct InArgs {
    floatX *out, *plain;
    Choice choice;
    const floatX *inp;
    Norm norm;
    Router router;
    Weight w, plain_w, next;
    const floatX *bias;
    size_t next_bytes;                      // of an expert in next
    const floatX *logits;               // of decode_router, which has left x normalized in inp; NULL: there was none
    Activation f;
    int N, C, O, P;
    int x_row, x_elements;                  // of InShared.x, for a token and in all
};
struct OutArgs {
    floatX *out;
    const floatX *residual, *inp;
    Weight w;
    const floatX *expert_bias, *bias;
    Choice choice;                          // of the last decode_in; NULLs: one expert
    float scale;                            // of what is added to the residual
    int N, E, K, C, O, rows;                // rows: of w, that is, columns of the result, for each block
};

__device__ static inline real gated_act(real gate, real up, Activation f) {
    return f == CLAMPED ? slope_of<CLAMPED>(gate, up).act : slope_of<SWIGLU>(gate, up).act;
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
        __nv_bfloat162 two;
        memcpy(&two, &weight.x[i], sizeof two);
        two = __hmul2(__floats2bfloat162_rn(element(x, i) * rstd, element(x, i + 1) * rstd), two);
        memcpy(&y.x[i], &two, sizeof two);
    }
#else
    for (int i = 0; i < VECTOR; i++) y.x[i] = x.x[i] * rstd * weight.x[i];
#endif
    return y;
}
// Requests lines of 128 bytes for L2: the index-th of them and every step-th after it.
__device__ static inline void prefetch(const void *from, unsigned lines, unsigned index, unsigned step) {
    #pragma unroll 1
    for (unsigned i = index; i < lines; i += step) prefetch_line((const char *)from + (size_t)i * 128);
}

// Elements of a row in the 16 bytes that a lane reads at once.
__host__ __device__ constexpr int per_lane(Format f) { return f == OF_FLOATX ? (int)VECTOR : f == OF_FP8 ? 16 : 32; }
// sum += the squares of x.
__device__ static inline void add_squares(float &sum, const Vec &x) {
    for (int i = 0; i < VECTOR; i++) sum += element(x, i) * element(x, i);
}

// A row of a weight in memory, and the scales of its codes.
struct Row { const unsigned char *at, *scale; };
template <Format F> __device__ static inline Row row_of(const Weight &w, unsigned e, int o, int O, int C) {
    const unsigned row = e * O + o;
    const unsigned char *const at = (const unsigned char *)w.at, *const scale = (const unsigned char *)w.scale;
    if (F == OF_FLOATX) return { at + (size_t)row * (C * sizeof(floatX)), NULL };
    if (F == OF_MXFP4) return { at + (size_t)row * (C / 2), scale + (size_t)row * (C / MXFP4_BLOCK) };
    const unsigned down = (O + FP8_BLOCK - 1) / FP8_BLOCK, across = (C + FP8_BLOCK - 1) / FP8_BLOCK;
    return { at + (size_t)row * C, scale + (size_t)(e * down + o / FP8_BLOCK) * (across * sizeof(float)) };
}

// ---- codes as bf16, for tensor cores (why: codes.cu) --------------------------------------------

__device__ static inline uint32_t word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
// Codes 8j to 8j + 7 of a piece, in pairs: 0 2, 1 3, 4 6, 5 7, and of 4 bits 0 4, 1 5, 2 6, 3 7.
// There a product puts both the sign, bit 15, and the rest, from bit 6 on, in place: the unit for
// shifts and masks is the busiest.
template <Format F> __device__ static inline void widen(uint32_t (&pair)[4], const uint4 &code, int j) {
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t w = word(code, F == OF_FP8 ? 2 * j + i / 2 : j);
        const uint32_t upper = i % 2 ? w : w << 8, two = (i < 2 ? w : w >> 8) & (i % 2 ? 0x00f000f0 : 0x000f000f);
        if (F == OF_FP8) pair[i] = (upper & 0x80008000) | (upper >> 4 & 0x07f007f0);
        else pair[i] = two * (i % 2 ? 0x104 : 0x1040) & 0x81c081c0;
    }
}
// The products of two pairs.
__device__ static inline uint32_t product_bf16(uint32_t a, uint32_t b) {
    __nv_bfloat162 x, y;
    memcpy(&x, &a, sizeof x), memcpy(&y, &b, sizeof y);
    x = __hmul2(x, y);
    memcpy(&a, &x, sizeof a);
    return a;
}
// Eight elements of a token in that order.
template <Format F> __device__ static inline uint4 in_order(const Vec &v) {
    uint4 x;
    memcpy(&x, &v, sizeof x);
    auto pair = [&](int i) {
        const int one = F == OF_FP8 ? i / 2 * 2 : i / 2;
        return __byte_perm(word(x, one), word(x, F == OF_FP8 ? one + 1 : one + 2), i % 2 ? 0x7632 : 0x5410);
    };
    return { pair(0), pair(1), pair(2), pair(3) };
}

// ---- the choice of experts ----------------------------------------------------------------------

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
// codes.cu: for 2 to CODED_TOKENS tokens, in bf16.
int codes_fit(int N, int C, int F, int E, int K);
void decode_in_codes(InArgs p);
void decode_out_codes(const OutArgs &p);
