// sort.cuh: a stable counting sort of integers (slots by expert, positions by token), and its scan.
#pragma once
#include "impl.cuh"

// The sum of x over the threads before this one in the block; *total: over all.
__device__ static inline int block_scan(int x, int *total) {
    __shared__ int of_warp[32];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int warps = blockDim.x * blockDim.y / 32;
    const int sum = warp_scan(x);
    int before = 0;
    __syncthreads();                                        // the previous sums have been read
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    *total = 0;
    for (int i = 0; i < warps; i++) { if (i < warp) before += of_warp[i]; *total += of_warp[i]; }
    return before + sum - x;
}

// The results of a sort; NULL: not wanted.
typedef struct {
    int *order;             // (n)  the elements, sorted
    int *rank;              // (n)  the inverse of order: where each element went
    int *owner, each;       // (n)  order[i] / each
    int *start;             // (buckets+1)  elements with digit d: start[d] .. start[d+1]-1
    int *count;             // (buckets)    their number
} Sorted;

// Sorts the numbers 0..n-1 (or the n in `from`, if given) by the digit (key[i] >> shift) % buckets;
// equal digits keep their order. Three launches; reads the keys twice. scratch: sort_scratch ints.
size_t DEVICE(sort_scratch)(int n, int buckets);
void   DEVICE(sort)(Sorted to, const int *key, const int *from, int n, int buckets, int shift, int *scratch);
