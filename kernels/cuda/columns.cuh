// columns.cuh: adds up the columns of partial sums, for norm.cu, bias.cu and heads.cu.
#pragma once
#include "ptx.cuh"

// first[c] += the sum of column c of partial (rows, C). With a second: partial is (rows, 2C), and
// its right half is added to second. A block has 32 columns. Each warp adds every 32nd row, AT_ONCE
// loads in flight; then sums are added in order. The kernel before may let this one start early.
enum { AT_ONCE = 8 };
static __global__ void add_partial_kernel(real *first, real *second, const real *partial, int rows, int C) {
    __shared__ real part[32][32];
    const int c = blockIdx.x * 32 + threadIdx.x, width = second ? 2 * C : C;
    real *const to = c < C ? first + c : second + (c - C);
    real sum = 0;
    const real old = threadIdx.y || c >= width ? 0 : *to;
    wait_for_previous();
    for (int from = threadIdx.y; from < rows; from += 32 * AT_ONCE) {
        real x[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            x[i] = from + 32*i < rows && c < width ? partial[(size_t)(from + 32*i) * width + c] : 0;
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) sum += x[i];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= width) return;
    sum = 0;
    for (int y = 0; y < 32; y++) sum += part[y][threadIdx.x];
    *to = old + sum;
}
static void add_partial(real *first, real *second, const real *partial, size_t rows, int C) {
    LAUNCH_EARLY(add_partial_kernel, (unsigned)divide_up(second ? 2 * C : C, 32), dim3(32, 32), 0, first, second,
                 partial, (int)rows, C);
}
