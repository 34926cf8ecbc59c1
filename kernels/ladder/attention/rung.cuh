// rung.cuh: for all rungs of causal attention: arguments, rows of a head, queries of a block:
//
//     s_j = q.k_j / sqrt(D), j <= t,   p = softmax(s),   out = sum p_j v_j,   lse = log sum exp(s)
#pragma once
#include "kernels/cuda/ptx.cuh"
extern "C" {
#include "kernels/ladder/ladder.h"
}

typedef struct {
    floatX *out;
    real *lse;
    const floatX *q, *kv;
    HeadOrder order;
    int B, T, G, Q, D;
    float scale;                                            // 1 / sqrt(D)
    bool vectors;                                           // rows are multiples of 16 bytes
} Attention;

static inline Attention attention(floatX *out, real *lse, const floatX *q, const floatX *kv, HeadOrder order,
                                  int B, int T, int G, int Q, int D) {
    const bool vectors = D % VECTOR == 0 && ((uintptr_t)q | (uintptr_t)kv) % 16 == 0;
    return { out, lse, q, kv, order, B, T, G, Q, D, 1 / sqrtf((float)D), vectors };
}

// One of the Q*G query heads of a sequence.
typedef struct { int b, h; } Head;
// The row (b, t, h) of lse, and, times D, of q and out. From t to t+1 it grows by Q*G.
__host__ __device__ static inline size_t query_row(const Attention &a, Head at, int t) {
    return ((size_t)at.b * a.T + t) * a.Q * a.G + at.h;
}
// Key j of this head; its value is G*D elements after it, key j+1 2*G*D.
__host__ __device__ static inline const floatX *key(const Attention &a, Head at, int j) {
    const int g = a.order == HEADS_TILED ? at.h % a.G : at.h / a.Q;
    return a.kv + (((size_t)at.b * a.T + j) * 2 * a.G + g) * a.D;
}

// Tiles of `size` queries: the head and the first query of this block.
template <int size> __device__ static inline Head my_queries(const Attention &a, int *first) {
    const int tiles = (a.T + size - 1) / size, head = blockIdx.x / tiles;
    *first = (int)(blockIdx.x % tiles) * size;
    return { head / (a.Q * a.G), head % (a.Q * a.G) };
}
template <int size> static inline unsigned tiles(const Attention &a) {
    return (unsigned)(divide_up((size_t)a.T, size) * a.B * a.Q * a.G);
}
