// rung.cuh: what the rungs of fp8_linear have in common: a product of codes, of sorted rows.
//
//     out[row i] = sum_b scale(i, b) scale(e, o/128, b) code(i, b) . code(e, o, b), b: 128 of C
//
// Scales belong to 128 elements of the sum, so they are applied to sums of 128 products.
#pragma once
#include "kernels/ladder/parallel_linear/rung.cuh"

typedef struct { Product p; Fp8 inp, weight; } Product8;        // p.inp and p.weight are not used

static inline Product8 product8(floatX *out, Fp8 inp, Fp8 weight, const Plan *plan, int C, int O) {
    return { product(out, NULL, NULL, plan, C, O, GROUPED, GROUPED), inp, weight };
}
// The product of the scales of block b of a row, and of a column of an expert's weight.
__device__ static inline float scale_of(const Product8 &q, int expert, int row, int column, int b) {
    const int blocks = q.p.C / FP8_BLOCK;
    return q.inp.scale[(size_t)row * blocks + b]
        * q.weight.scale[((size_t)expert * (q.p.O / FP8_BLOCK) + column / FP8_BLOCK) * blocks + b];
}
__device__ static inline const uint8_t *codes_of_row(const Product8 &q, int row) {
    return q.inp.code + (size_t)row * q.p.C;
}
__device__ static inline const uint8_t *codes_of_column(const Product8 &q, int expert, int column) {
    return q.weight.code + ((size_t)expert * q.p.O + column) * q.p.C;
}
