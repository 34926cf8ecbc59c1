// sum.cu: the sum of an array.
#include "sum.cuh"

static __global__ void sum_kernel(double *partial, const real *x, size_t n, size_t part) {
    const size_t from = blockIdx.x * part;
    const double sum = range_sum<false>(x + from, n - from < part ? n - from : part);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
static __global__ void sum_finish_kernel(real *out, const double *partial, int count) {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += 32) sum += partial[i];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) *out = (real)sum;
}
static void sum(real *out, const real *inp, size_t n) {
    const size_t part = sum_part_size(n), blocks = divide_up(n, part);
    double *const partial = (double *)workspace(BLOCKS * sizeof(double));
    LAUNCH(sum_kernel, blocks, THREADS, 0, partial, inp, n, part);
    LAUNCH(sum_finish_kernel, 1, 32, 0, out, partial, (int)blocks);
}

PART(sum) { d->sum = sum; }
