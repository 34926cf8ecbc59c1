/* round.h: how all devices round routing: the rows an expert keeps, and how it ranks tokens. */
#pragma once
#include "kernels.h"
#include "random.h"

/* Rows of an expert that `count` of N tokens chose: of two multiples equally near the lower. If
 * whole tiles would need more than N tokens: count. */
ON_BOTH static inline int rounded(int count, int N, int tile) {
    return (count + tile - 1) / tile * tile > N ? count : (count + (tile - 1) / 2) / tile * tile;
}

/* Unsigned integers in the order of the floats. */
ON_BOTH static inline uint32_t ordered_bits(float x) {
    union { float f; uint32_t u; } v;
    v.f = x + 0.0f;                                         /* -0 becomes +0: they are equal */
    return v.u ^ (v.u >> 31 ? 0xffffffffu : 0x80000000u);
}
/* Scores as integers of 31 bits in their order; NaN comes last. */
ON_BOTH static inline uint32_t score_order(float score) {
    const uint32_t bits = ordered_bits(score);
    return score == score ? bits >> 1 : 0;
}
/* An expert's rank of a token: larger is earlier. All tokens differ, and none has ~0. */
ON_BOTH static inline uint64_t rank_of(int chose, float score, int token) {
    return (uint64_t)(chose != 0) << 63 | (uint64_t)score_order(score) << 32 | (uint32_t)~token;
}
