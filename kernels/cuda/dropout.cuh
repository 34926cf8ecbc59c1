// dropout.cuh: the mask of dropout, bit for bit that of kernels/cpu/dropout.c.
#pragma once
#include "impl.cuh"
#include "kernels/random.h"

// A Dropout: x becomes x * scale if its random_16 >= least, else 0. least 0: p is 0, key not read.
typedef struct { const uint64_t *key; int site; uint32_t least; real scale; } Mask;
static inline Mask mask_of(Dropout d) {
    return { d.key, d.site, (uint32_t)((double)d.p * 65536),
             (d.scale != 0 ? (real)d.scale : 1) / ((real)1 - (real)d.p) };
}
__device__ static inline uint64_t drop_key(Mask d) { return d.least ? random_key(*d.key, d.site) : 0; }
// Elements i .. i + W-1; i is a multiple of W. key: drop_key. Four elements share a hash.
template<int W> __device__ static inline void drop(real *x, Mask d, uint64_t key, uint64_t i) {
    if (d.least == 0) {
        for (int j = 0; j < W; j++) x[j] *= d.scale;
        return;
    }
    #pragma unroll
    for (int j = 0; j < W; j += 4) {
        const uint64_t bits = W == 1 ? (uint64_t)random_16(key, i) << 16 : random_bits(key, (i + j) / 4);
        const uint32_t half[2] = { (uint32_t)bits, (uint32_t)(bits >> 32) };
        #pragma unroll
        for (int k = 0; k < (W == 1 ? 1 : 4); k++) {   // 16 bits in the upper half: what is below changes no comparison
            const uint32_t number = W == 1 || k % 2 ? half[k / 2] : half[k / 2] << 16;
            x[j + k] = number >= d.least << 16 ? x[j + k] * d.scale : 0;
        }
    }
}
