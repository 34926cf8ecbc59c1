// sort.cu: see sort.cuh. The n elements are cut into tiles of consecutive elements, one per warp:
//     count    how many elements of each digit a tile has: table[digit][tile]
//     scan     prefix sums of each row of that table, and each row's sum
//     scatter  where a digit begins is the sum over the lower digits. Each warp goes through its
//              tile in order and stores every element at the next position of its digit
// Within a warp, lanes with equal digits find each other by one vote per bit, and are ranked by
// lane. The only atomic additions are of integers, while counting: their order does not matter.
#include "sort.cuh"

enum { GROUP = 4 };                                         // loads of a lane in flight
enum { SCAN_THREADS = 256, SCAN_EACH = 4, MOST_TILES = SCAN_THREADS * SCAN_EACH };

static size_t tile_size(size_t n) {                         // a multiple of what a warp loads at once
    const size_t size = divide_up(divide_up(n, MOST_TILES), 32 * GROUP) * 32 * GROUP;
    return size ? size : 32 * GROUP;
}
static size_t tile_count(size_t n) { return n ? divide_up(n, tile_size(n)) : 1; }

// The digits of 32*GROUP elements from `at` on, and their numbers (item); -1 past the end.
__device__ static void read_digits(int *digit, int *item, const int *key, const int *from, int end, int at,
        int buckets, int shift) {
    #pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const int j = at + 32*i + (int)threadIdx.x;
        item[i] = j < end ? from ? from[j] : j : -1;
    }
    #pragma unroll
    for (int i = 0; i < GROUP; i++)
        digit[i] = item[i] < 0 ? -1 : (int)(((unsigned)key[item[i]] >> shift) % (unsigned)buckets);
}

// A block has consecutive tiles, so that it writes consecutive parts of the table's rows.
static __global__ void count_kernel(int *table, const int *key, const int *from, int n, int buckets,
        int shift, int tile, int tiles) {
    extern __shared__ int counts[];                         // (warps,buckets)
    const int first = blockIdx.x * blockDim.y, t = first + threadIdx.y, warps = blockDim.y;
    const int thread = threadIdx.y * 32 + threadIdx.x, threads = 32 * warps;
    for (int i = thread; i < warps * buckets; i += threads) counts[i] = 0;
    __syncthreads();
    const int end = t >= tiles ? 0 : n - t * tile < tile ? n : (t + 1) * tile;
    for (int at = t * tile; at < end; at += 32 * GROUP) {
        int digit[GROUP], item[GROUP];
        read_digits(digit, item, key, from, end, at, buckets, shift);
        for (int i = 0; i < GROUP; i++) if (digit[i] >= 0) atomicAdd(&counts[threadIdx.y * buckets + digit[i]], 1);
    }
    __syncthreads();
    for (int i = thread; i < warps * buckets; i += threads) {
        const int d = i / warps, warp = i % warps;
        if (first + warp < tiles) table[(size_t)d * tiles + first + warp] = counts[warp * buckets + d];
    }
}

// One block per digit.
static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(int *table, int *sums, int tiles) {
    int *row = table + (size_t)blockIdx.x * tiles;
    const int from = threadIdx.x * SCAN_EACH;
    int value[SCAN_EACH], sum = 0, total;
    #pragma unroll
    for (int i = 0; i < SCAN_EACH; i++) value[i] = from + i < tiles ? row[from + i] : 0;
    #pragma unroll
    for (int i = 0; i < SCAN_EACH; i++) sum += value[i];
    int before = block_scan(sum, &total);
    #pragma unroll
    for (int i = 0; i < SCAN_EACH; i++) {
        if (from + i < tiles) row[from + i] = before;
        before += value[i];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

// The lanes whose digit equals this one's, of those that have one.
__device__ static unsigned same_digit(int digit, int bits) {
    unsigned same = __ballot_sync(ALL, digit >= 0);
    for (int b = 0; b < bits; b++) {
        const unsigned set = __ballot_sync(ALL, digit >> b & 1);
        same &= digit >> b & 1 ? set : ~set;
    }
    return same;
}
static __global__ void scatter_kernel(Sorted to, const int *table, const int *sums, const int *key,
        const int *from, int n, int buckets, int bits, int shift, int tile, int tiles) {
    extern __shared__ int nexts[];                          // (warps,buckets)
    const int first = blockIdx.x * blockDim.y, t = first + threadIdx.y, lane = threadIdx.x, warps = blockDim.y;
    int begin = 0, total;
    for (int from_digit = 0; from_digit < buckets; from_digit += 32 * warps) {
        // where digits begin, and this block's part of them
        const int d = from_digit + threadIdx.y * 32 + lane, count = d < buckets ? sums[d] : 0;
        const int start = begin + block_scan(count, &total);
        begin += total;
        if (d >= buckets) continue;
        #pragma unroll 8
        for (int warp = 0; warp < warps; warp++)
            nexts[warp * buckets + d] = first + warp < tiles ? start + table[(size_t)d * tiles + first + warp] : 0;
        if (blockIdx.x == 0 && to.start) { to.start[d] = start; if (d == buckets - 1) to.start[buckets] = n; }
        if (blockIdx.x == 0 && to.count) to.count[d] = count;
    }
    __syncthreads();
    if (t >= tiles) return;
    int *next = nexts + threadIdx.y * buckets;
    const int end = n - t * tile < tile ? n : (t + 1) * tile;
    for (int at = t * tile; at < end; at += 32 * GROUP) {
        int digit[GROUP], item[GROUP];
        unsigned same[GROUP];
        read_digits(digit, item, key, from, end, at, buckets, shift);
        #pragma unroll
        for (int i = 0; i < GROUP; i++) same[i] = same_digit(digit[i], bits);
        #pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const int rank = __popc(same[i] & ((1u << lane) - 1)), at_next = digit[i] < 0 ? 0 : next[digit[i]] + rank;
            __syncwarp();                                   // all lanes have read before one writes
            if (digit[i] >= 0) {
                if (rank == 0) next[digit[i]] = at_next + __popc(same[i]);
                if (to.order) to.order[at_next] = item[i];
                if (to.owner) to.owner[at_next] = item[i] / to.each;
                if (to.rank) to.rank[at + 32*i + lane] = at_next;
            }
            __syncwarp();
        }
    }
}

size_t DEVICE(sort_scratch)(int n, int buckets) { return (tile_count(n) + 1) * buckets; }
void   DEVICE(sort)(Sorted to, const int *key, const int *from, int n, int buckets, int shift, int *scratch) {
    const int tile = (int)tile_size(n), tiles = (int)tile_count(n);
    const unsigned warps = warps_for(buckets);
    const size_t grid = divide_up(tiles, warps), shared = warps * buckets * sizeof(int);
    int *const table = scratch, *const sums = scratch + (size_t)tiles * buckets;
    int bits = 0;
    while (1 << bits < buckets) bits++;
    LAUNCH(count_kernel, grid, dim3(32, warps), shared, table, key, from, n, buckets, shift, tile, tiles);
    LAUNCH(scan_kernel, buckets, SCAN_THREADS, 0, table, sums, tiles);
    LAUNCH(scatter_kernel, grid, dim3(32, warps), shared, to, table, sums, key, from, n, buckets, bits, shift,
           tile, tiles);
}
