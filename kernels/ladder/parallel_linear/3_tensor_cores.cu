// 3_tensor_cores.cu: a warp multiplies matrices, in bf16.
//
// The loop is that of rung 2: copy a step to shared memory, wait, multiply, wait. The tile is
// larger, so that an element is used 128 times, and bf16 is copied as it is, 16 bytes at a time.
// The multiplication is now a few instructions; tensor cores idle while a step is loaded.
#include "warp_tile.cuh"

// Elements c .. c+7 of a row of C; zeros past its end, or if row is NULL.
__device__ static inline Vec read_8(const floatX *row, int c, int C, bool vectors) {
    Vec v = {};
    if (row && vectors && c < C) v = load_vec(row + c);
    if (row && !vectors) for (int i = 0; i < VECTOR; i++) if (c + i < C) v.x[i] = row[c + i];
    return v;
}

static __global__ __launch_bounds__(THREADS) void tensor_cores(const Product p) {
    __shared__ __align__(16) floatX x[TILE], w[TILE];
    const Tile t = my_tile<SIDE, SIDE>(p);
    if (t.rows <= 0) return;
    float sum[4][8][4] = {};
    for (int c0 = 0; c0 < p.C; c0 += DEPTH) {
#pragma unroll
        for (int i = 0; i < SIDE; i += THREADS / 4) {       // 4 threads per row, 16 bytes each
            const int r = i + threadIdx.x / 4, c = threadIdx.x % 4 * 8;
            const floatX *inp = r < t.rows ? inp_at(p, t.row + r) : NULL;
            const floatX *weight = t.column + r < p.O ? weight_at(p, t.expert, t.column + r) : NULL;
            store_vec(&x[r * PITCH + c], read_8(inp, c0 + c, p.C, p.vectors));
            store_vec(&w[r * PITCH + c], read_8(weight, c0 + c, p.C, p.vectors));
        }
        __syncthreads();
        multiply(sum, x, w);
        __syncthreads();
    }
    store_tile(p, t, sum);
}

PARALLEL_LINEAR(parallel_linear_tensor_cores) {
    const Product p = product(out, inp, weight, plan, C, O, inp_rows, out_rows);
    LAUNCH(tensor_cores, (tiles<SIDE, SIDE>(p)), THREADS, 0, p);
}
