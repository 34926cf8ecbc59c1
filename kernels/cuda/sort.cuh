// sort.cuh: a stable counting sort of whole numbers. For route.cu (slots by expert) and embed.cu (tokens by id).
#pragma once
#include "impl.cuh"

// The sum of x over the threads of the block before this one; *total: over all.
__device__ static inline int block_scan(int x, int *total) {
    __shared__ int of_warp[32];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int warps = blockDim.x * blockDim.y / 32;
    int sum = x, before = 0;
    for (int d = 1; d < 32; d *= 2) { const int up = __shfl_up_sync(ALL, sum, d); if (lane >= d) sum += up; }
    __syncthreads();                                        // the last sums have been read
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    *total = 0;
    for (int i = 0; i < warps; i++) { if (i < warp) before += of_warp[i]; *total += of_warp[i]; }
    return before + sum - x;
}

// What is wanted of a sort; NULL if not.
typedef struct {
    int *order;             // (n)  the elements, sorted
    int *place;             // (n)  where each went: the inverse of order
    int *owner, each;       // (n)  order[i] / each
    int *start;             // (buckets+1)  where a digit's elements begin
    int *count;             // (buckets)    how many they are
} Sorted;

// Sorts the numbers 0..n-1 (or the n numbers in `from`, if given) by the digit (key[i] >> shift) % buckets; equal digits
// keep the order they came in. Three launches; reads the keys twice. scratch: sort_scratch ints.
size_t DEVICE(sort_scratch)(int n, int buckets);
void   DEVICE(sort)(Sorted to, const int *key, const int *from, int n, int buckets, int shift, int *scratch);
