// weight.cuh: tiles of weights' gradients and how they are stored (weight.cu, fp8_weight.cu).
#pragma once
#include "gemm.cuh"

#if defined(PRECISION_BF16)

typedef Layout<256, 4, 2> Weights;

// For every expert e, c[e] (P,Q) = or += the sum over its rows of left^T right, left (.,P), right
// (.,Q). Row i is stored at left_row[i] of left, or at i if that is NULL; likewise of right.
struct WeightProduct {
    const floatX *left, *right;
    const int *left_row, *right_row, *start;
    void *c;                                // of floats; SET_ROUNDED: of floatX; a transposed kernel stores it as (Q,P)
    int E, rows, P, Q, splits;              // with splits > 1 range s of expert e has a plane of its own, s*E + e of c
    Write how;
};
// The tile that a stage belongs to: 128 rows from `row` on, 256 columns from `column` on of a plane
// of c. steps: its stages, at least one; in fp8_weight.cu 0 if its one stage stands for zeros.
struct alignas(16) WeightTile { int plane, row, column, steps; };

#if defined(HOPPER)
// ---- the epilogues ------------------------------------------------------------------------------
//
// A thread's sum[4j + 2h + i] is the consumer's row 16w + 8h + g, column 8j + 2q + i (wgmma.cuh).

// SET: straight to memory. A quad of threads has 8 columns of a row, a whole sector; transposed, 8
// threads have 8 rows of a column. Streaming stores, so that L2 keeps the operands instead.
template <bool transposed> __device__ static inline
void set_floats(const float (&sum)[Weights::BN / 2], const WeightProduct &p, WeightTile tile, int first) {
    const int thread = threadIdx.x % WARPGROUP, g = thread % 32 / 4, q = thread % 4, row = first + thread / 32 * 16 + g;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (row + 8 * h >= p.P) break;
        float *c = (float *)p.c + (size_t)tile.plane * p.P * p.Q;
#pragma unroll
        for (int j = 0; j < Weights::BN / 8; j++) {
            const int n = tile.column + j * 8 + q * 2, m = row + 8 * h;
            const float *x = &sum[j * 4 + h * 2];
            if (n >= p.Q) break;
            if (!transposed) __stcs((float2 *)(c + (size_t)m * p.Q + n), make_float2(x[0], x[1]));
            else __stcs(c + (size_t)n * p.P + m, x[0]), __stcs(c + (size_t)(n + 1) * p.P + m, x[1]);
        }
    }
}

// Rounds the sums of 64 columns to a slab: 64 of P x 64 of Q, or transposed.
template <bool transposed> __device__ static inline void put_rounded(uint32_t slab, const float *sum) {
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *x = sum + j * 8;
        if (!transposed) put_columns(slab + warp * (SLAB / 4), j, x);
        else
            stmatrix_trans(slab + swizzled(j * 16 + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2),
                           pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
    }
}
// SET_ROUNDED: by bulk stores, two slabs at a time.
template <bool transposed> __device__ static inline
void set_rounded(const float (&sum)[Weights::BN / 2], const WeightProduct &p, const CUtensorMap *c_map, uint32_t slabs,
                 WeightTile tile, int first, int barrier) {
    const bool issues = threadIdx.x % WARPGROUP == 0;
#pragma unroll
    for (int c = 0; c < Weights::BN / 64; c += 2) {
        const int n = tile.column + c * 64;
        if (n >= p.Q || first >= p.P) break;
        if (issues) bulk_wait_read<0>();
        named_barrier_sync(barrier, WARPGROUP);
#pragma unroll
        for (int i = 0; i < 2; i++) put_rounded<transposed>(slabs + i * SLAB, &sum[(c + i) * 32]);
        fence_async_proxy();
        named_barrier_sync(barrier, WARPGROUP);
        if (issues) {
            for (int i = 0; i < 2 && n + i * 64 < p.Q; i++)
                bulk_store(c_map, slabs + i * SLAB, transposed ? first : n + i * 64, transposed ? n + i * 64 : first,
                           tile.plane);
            bulk_commit();
        }
    }
}

// The sums of 32 columns to a slab: 64 of P x 32 of Q; transposed, two boxes of 32 x 32.
template <bool transposed> __device__ static inline void put_floats(unsigned char *slab, const float *sum) {
    const int thread = threadIdx.x % WARPGROUP, warp = thread / 32, g = thread % 32 / 4, q = thread % 4;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *x = sum + j * 4 + h * 2;
            const int row = warp * 16 + h * 8 + g, column = j * 8 + q * 2;
            if (!transposed) *(float2 *)(slab + swizzled(row, column / 4) + column % 4 * 4) = make_float2(x[0], x[1]);
            else
#pragma unroll
                for (int i = 0; i < 2; i++)
                    *(float *)(slab + row / 32 * 4096 + swizzled(column + i, row % 32 / 4) + row % 4 * 4) = x[i];
        }
}
// ADD: slab by slab with cp.reduce, which adds in L2. A transposed slab is stored as two boxes.
template <bool transposed> __device__ static inline
void add_floats(const float (&sum)[Weights::BN / 2], const Shared<Weights, WeightTile> &s, const WeightProduct &p,
                const CUtensorMap *c_map, uint32_t slabs, WeightTile tile, int first, int barrier) {
    const bool issues = threadIdx.x % WARPGROUP == 0;
#pragma unroll
    for (int c = 0; c < Weights::BN / 32; c++) {
        const int n = tile.column + c * 32;
        if (n >= p.Q || first >= p.P) break;
        const uint32_t slab = slabs + c % 2 * SLAB;
        if (issues) bulk_wait_read<1>();
        named_barrier_sync(barrier, WARPGROUP);
        put_floats<transposed>(s.pointer(slab), &sum[c * 16]);
        fence_async_proxy();
        named_barrier_sync(barrier, WARPGROUP);
        if (issues) {
            if (!transposed) bulk_add(c_map, slab, n, first, tile.plane);
            else {
                bulk_add(c_map, slab, first, n, tile.plane);
                if (first + 32 < p.P) bulk_add(c_map, slab + SLAB / 2, first + 32, n, tile.plane);
            }
            bulk_commit();
        }
    }
    if (issues) bulk_wait_read<0>();                                // the next tile begins with slab 0
}
#endif
#endif
