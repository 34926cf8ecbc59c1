// sum.cuh: sums of many numbers, for sum.cu and optimizer.cu.
//
// A line of elements is cut into equal shares, one per block. Threads add in float, blocks and what follows in
// double, in order.
#pragma once
#include "impl.cuh"

enum { BLOCKS = 4096, THREADS = 256, LEAST = 4096 };        // elements of a share, at least

__host__ __device__ static inline size_t share_of(size_t total, size_t parts) {
    const size_t share = divide_up(divide_up(total, parts), 1024) * 1024;
    return share > LEAST ? share : LEAST;
}
// Sums have as many blocks as 132 multiprocessors hold at once, or twice as many as with squares: every round has a beginning
// in which nothing is read. A thread should not add too many floats, so long lines have more shares, up to BLOCKS, of which a
// block takes several.
enum { SUM_BLOCKS = 8 * 132, LONG = 1 << 17 };
__host__ __device__ static inline size_t sum_share_of(size_t total) {
    const size_t share = share_of(total, SUM_BLOCKS), least = share_of(total, BLOCKS);
    return share < LONG ? share : least > LONG ? least : LONG;
}

// The sum of x or of its squares over a block; 16 bytes at a time after the
// first few.
template<bool SQUARED, class T> __device__ static double range_sum(const T *x, size_t n) {
    enum { W = 16 / sizeof(T) };
    struct alignas(16) Vector { T x[W]; };
    auto value = [](T v) { return SQUARED ? (real)v * (real)v : (real)v; };
    const size_t odd = (16 - (uintptr_t)x % 16) % 16 / sizeof(T), head = odd < n ? odd : n;
    const size_t vectors = (n - head) / W;
    const Vector *body = (const Vector *)(x + head);
    real of[4] = { 0, 0, 0, 0 }, rest = 0;
    #pragma unroll 4
    for (size_t i = threadIdx.x; i < vectors; i += THREADS) {
        const Vector v = body[i];
        for (int j = 0; j < W; j++) of[j % 4] += value(v.x[j]);
    }
    if (threadIdx.x < head) rest += value(x[threadIdx.x]);
    const size_t tail = head + W * vectors + threadIdx.x;
    if (tail < n) rest += value(x[tail]);
    return block_sum<THREADS / 32>((double)of[0] + (double)of[1] + (double)of[2] + (double)of[3] + (double)rest);
}
