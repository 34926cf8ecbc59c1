// warp_tile.cuh: from the third rung on, a block of 4 warps computes a tile of out, 128 x 128, and
// each warp 64 x 64 of it on the tensor cores. Rungs 3 and 4 differ only in copying operands.
//
// One instruction (ptx.cuh) multiplies 16 x 16 of inp with 16 x 8 of weight^T; operands and sums
// are spread over the 32 lanes of the warp. The sums of a warp are 4 x 8 such blocks, 4 floats each
// in every lane: 128 registers. For 16 elements along C the warp loads 64 x 16 of both operands
// from shared memory, 4 KB, for 32 instructions: 32 flop a byte, where rung 2 did 1.
#pragma once
#include "rung.cuh"

enum { SIDE = 128, DEPTH = 32, THREADS = 128 };
// A row in shared memory is 32 elements and 8 of padding. The eight rows that ldmatrix reads at
// once, 16 bytes each, are then 20 banks of 4 bytes apart, so that they are in different banks.
enum { PITCH = DEPTH + 8, TILE = SIDE * PITCH };

// sum += x w^T over the DEPTH columns of a step. x, w: [SIDE][PITCH] in shared memory.
__device__ static inline void multiply(float sum[4][8][4], const floatX *x, const floatX *w) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, down = warp / 2 * 64, across = warp % 2 * 64;
#pragma unroll
    for (int c = 0; c < DEPTH; c += 16) {
        uint32_t a[4][4], b[4][4];                          // 64 x 16 of each operand, in blocks of 16 x 16
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ldmatrix(a[i], shared_address(&x[(down + i * 16 + lane % 16) * PITCH + c + lane / 16 * 8]));
            ldmatrix(b[i],
                     shared_address(&w[(across + i * 16 + lane / 16 * 8 + lane % 8) * PITCH + c + lane / 8 % 2 * 8]));
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) mma_bf16(sum[i][j], a[i], &b[j / 2][j % 2 * 2]);
    }
}

__device__ static inline void store_tile(const Product &p, const Tile &t, const float sum[4][8][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int row = warp / 2 * 64 + i * 16 + n / 2 * 8 + lane / 4;
                const int column = t.column + warp % 2 * 64 + j * 8 + lane % 4 * 2 + n % 2;
                if (row < t.rows && column < p.O) store(p, t.expert, t.row + row, column, sum[i][j][n]);
            }
}
