// 2_tiled.cu: every element that is fetched is used many times.
//
// A block computes a tile of out, 64 x 64. In steps of 16 along C it copies 64 x 16 of inp and of
// weight to shared memory, as floats, where all 256 threads use them: an element is read once from
// global memory for 64 uses. A thread computes 4 x 4 of the tile in registers, with 16
// multiply-adds for every 4 + 4 elements from shared memory. Outside elements become zeros.
//
// The limit is now float arithmetic, 128 multiply-adds per clock and SM; tensor cores do 2048.
#include "rung.cuh"

enum { SIDE = 64, DEPTH = 16, THREADS = 256 };

static __global__ __launch_bounds__(THREADS) void tiled(const Product p) {
    // 4 more, so that a column's 16 bytes are in other banks
    __shared__ __align__(16) float x[DEPTH][SIDE + 4], w[DEPTH][SIDE + 4];
    const Tile t = my_tile<SIDE, SIDE>(p);
    if (t.rows <= 0) return;
    const int down = threadIdx.x / 16 * 4, across = threadIdx.x % 16 * 4;   // this thread's 4 x 4
    float sum[4][4] = {};
    for (int c0 = 0; c0 < p.C; c0 += DEPTH) {
        for (int i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
            const int r = i / DEPTH, c = i % DEPTH;
            const bool inside = c0 + c < p.C;
            x[c][r] = inside && r < t.rows ? R(inp_at(p, t.row + r)[c0 + c]) : 0;
            w[c][r] = inside && t.column + r < p.O ? R(weight_at(p, t.expert, t.column + r)[c0 + c]) : 0;
        }
        __syncthreads();                                                    // the step is loaded
        for (int c = 0; c < DEPTH; c++) {
            const float4 a = *(const float4 *)&x[c][down], b = *(const float4 *)&w[c][across];
            const float as[4] = { a.x, a.y, a.z, a.w }, bs[4] = { b.x, b.y, b.z, b.w };
            for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) sum[i][j] += as[i] * bs[j];
        }
        __syncthreads();                                                    // the step is used
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (down + i < t.rows && t.column + across + j < p.O)
                store(p, t.expert, t.row + down + i, t.column + across + j, sum[i][j]);
}

PARALLEL_LINEAR(parallel_linear_tiled) {
    const Product p = product(out, inp, weight, plan, C, O, inp_rows, out_rows);
    LAUNCH(tiled, (tiles<SIDE, SIDE>(p)), THREADS, 0, p);
}
