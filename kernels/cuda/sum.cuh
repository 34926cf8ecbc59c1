// sum.cuh: sums of long arrays, for sum.cu and optimizer.cu.
//
// An array is cut into equal parts. A thread adds in float; threads and blocks in double, in order.
#pragma once
#include "impl.cuh"

enum { BLOCKS = 4096, THREADS = 256, LEAST = 4096 };        // LEAST: elements of a part

// Elements of a part, if there are to be at most this many parts.
__host__ __device__ static inline size_t part_size(size_t total, size_t parts) {
    const size_t size = divide_up(divide_up(total, parts), 1024) * 1024;
    return size > LEAST ? size : LEAST;
}
// Blocks of a sum: as many as MULTIPROCESSORS hold at once of sum_kernel (of grad_sq_norms_kernel
// two waves), because every wave begins with a time in which nothing is loaded. A thread should not
// add too many floats, so long arrays have more parts, up to BLOCKS, and several of them per block.
enum { SUM_BLOCKS = 8 * MULTIPROCESSORS, LONG = 1 << 17 };
__host__ __device__ static inline size_t sum_part_size(size_t total) {
    const size_t size = part_size(total, SUM_BLOCKS), least = part_size(total, BLOCKS);
    return size < LONG ? size : least > LONG ? least : LONG;
}

// The sum of x, or of its squares, by a block. Ends not aligned to 16 bytes are added singly.
template<bool SQUARED, class T> __device__ static double range_sum(const T *x, size_t n) {
    enum { W = 16 / sizeof(T) };
    auto value = [](T v) { return SQUARED ? (real)v * (real)v : (real)v; };
    const size_t odd = (16 - (uintptr_t)x % 16) % 16 / sizeof(T), head = odd < n ? odd : n;
    const size_t vectors = (n - head) / W;
    real of[4] = { 0, 0, 0, 0 }, rest = 0;
    #pragma unroll 4
    for (size_t i = threadIdx.x; i < vectors; i += THREADS) {
        const Array<T, W> v = load<W>(x + head + W * i);
        for (int j = 0; j < W; j++) of[j % 4] += value(v.x[j]);
    }
    if (threadIdx.x < head) rest += value(x[threadIdx.x]);
    const size_t tail = head + W * vectors + threadIdx.x;
    if (tail < n) rest += value(x[tail]);
    return block_sum<THREADS / 32>((double)of[0] + (double)of[1] + (double)of[2] + (double)of[3] + (double)rest);
}
