// route.cu: which tokens go to which experts, what that costs, and how the experts' answers come back
// together. The formulas stand in kernels/cpu/route.c.
//
// Routing is decided on the GPU and stays there: nothing here depends on it for the size of a grid or of
// memory. A token's logits belong to one warp: lane l has experts l, l+32, ... of them, also in shared
// memory, so that lanes need no barriers.
#include "route.cuh"

template<int W> struct alignas(W * sizeof(floatX)) Pack { floatX x[W]; };
template<int W> __device__ static inline Pack<W> load(const floatX *p) { return *(const Pack<W> *)p; }
template<int W> __device__ static inline void store(floatX *p, Pack<W> v) { *(Pack<W> *)p = v; }

enum { SHARED = 47 << 10 };                                 // bytes, of 48 KiB that need no asking

// Warps to a block if each needs `words` of shared memory; 4096 experts leave room for two.
static unsigned warps_for(int words) {
    const int most = SHARED / (4 * words);
    return most > 8 ? 8 : most > 1 ? most : 1;
}

// The distribution over all experts that the balance loss looks at, of the warp's token; each lane fills in
// its experts. Sigmoids are normalized as a softmax of their logarithms, which stays right where all of them
// underflow.
__device__ static void probabilities(real *p, const floatX *x, real lse, Scores scores, int E) {
    const int lane = threadIdx.x;
    real max = -INFINITY, sum = 0;
    if (scores != SIGMOID_TOPK) {
        for (int e = lane; e < E; e += 32) p[e] = expf(R(x[e]) - lse);
        return;
    }
    for (int e = lane; e < E; e += 32) max = fmaxf(max, p[e] = log_sigmoid(R(x[e])));
    max = warp_max(max);
    for (int e = lane; e < E; e += 32) sum += p[e] = expf(p[e] - max);
    sum = warp_sum(sum);
    for (int e = lane; e < E; e += 32) p[e] /= sum;
}

// ---- router -----------------------------------------------------------------------------------------------

// A warp is a token's (choose_experts, route.cuh). Moves E*N floatX and 8*K*N bytes; the time goes into K rounds of
// three warp-wide reductions.
static __global__ void router_forward_kernel(int *expert, real *weight, real *lse, const floatX *logits,
        const real *bias, Scores scores, int forced, int N, int E, int K) {
    extern __shared__ unsigned shared_scores[];             // (warps,E)
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    choose_experts(expert + n*K, weight + n*K, lse + n, logits + n*E, bias, shared_scores + threadIdx.y * E, scores,
            forced, n, E, K);
}
static void router_forward(int *expert, real *weight, real *lse, const floatX *logits, const real *bias,
        Scores scores, int forced, int N, int E, int K) {
    const unsigned warps = warps_for(E);
    LAUNCH(router_forward_kernel, divide_up(N, warps), dim3(32, warps), warps * E * sizeof(unsigned),
            expert, weight, lse, logits, bias, scores, forced, N, E, K);
}

// One warp per token: the gradients of balance and z loss for all experts, then those of the weights on top
// for the chosen ones, each added by the lane that has the expert. balance and zloss come with their constant
// factors. Moves 2*N*E floatX.
static __global__ void router_backward_kernel(floatX *dlogits, const real *dweight, const real *weight,
        const real *lse, const int *expert, const floatX *logits, const int *load_of, real balance,
        real zloss, Scores scores, int N, int E, int K) {
    extern __shared__ real shared_p[];                      // (warps,E)
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int lane = threadIdx.x;
    if (n >= N) return;
    real *p = shared_p + threadIdx.y * E;
    const floatX *x = logits + n*E;
    const int *chosen = expert + n*K;
    const real *w = weight + n*K, *dw = dweight + n*K, l = lse[n];
    real pull = 0, dot = 0;

    probabilities(p, x, l, scores, E);
    for (int e = lane; e < E; e += 32) pull += p[e] * (real)load_of[e];
    for (int k = lane; k < K; k += 32) dot += w[k] * dw[k];
    pull = warp_sum(pull);
    dot = warp_sum(dot);
    for (int e = lane; e < E; e += 32) {                    // from here on p[e] is the gradient
        const real slope = scores == SIGMOID_TOPK ? p[e] * sigmoid(-R(x[e])) : p[e];
        real d = balance * ((real)load_of[e] - pull) * slope + zloss * l * expf(R(x[e]) - l);
        if (scores == SOFTMAX_TOPK) d -= p[e] * dot;
        p[e] = d;
    }
    for (int k = 0; k < K; k++) {
        const int e = chosen[k];
        if (lane != e % 32) continue;
        p[e] += scores == SOFTMAX_TOPK ? w[k] * dw[k]
              : scores == SIGMOID_TOPK ? w[k] * (dw[k] - dot) * sigmoid(-R(x[e]))
              :                          w[k] * (dw[k] - dot);
    }
    for (int e = lane; e < E; e += 32) dlogits[n*E + e] = X(p[e]);
}
static void router_backward(floatX *dlogits, const real *dweight, const real *weight, const real *lse,
        const int *expert, const floatX *logits, const int *load, float balance, float zloss, int tokens,
        Scores scores, int N, int E, int K) {
    const unsigned warps = warps_for(E);
    LAUNCH(router_backward_kernel, divide_up(N, warps), dim3(32, warps), warps * E * sizeof(real), dlogits,
            dweight, weight, lse, expert, logits, load, balance * E / ((real)K * N * tokens), zloss * 2 / N,
            scores, N, E, K);
}

// ---- sorting ----------------------------------------------------------------------------------------------
// A stable counting sort without atomics. The n elements are cut into tiles of consecutive ones, and each
// tile has a warp:
//     count    how many of each digit a tile has: table[digit][tile]
//     scan     that table, row by row, to sums of all before: where each tile's first of a digit goes
//     place    each warp goes through its tile in order and puts every element at the next place of its digit
// Within a warp, the lanes with equal digits find each other with match_any, and rank by lane.

enum { SCAN_THREADS = 1024, SCAN_EACH = 8, SCAN = SCAN_THREADS * SCAN_EACH };
enum { GROUP = 4 };                                         // loads of a lane under way

static size_t tile_size(size_t n) {                         // at most 1024 tiles, multiples of 128
    const size_t size = divide_up(divide_up(n, 1024), 32 * GROUP) * 32 * GROUP;
    return size < 512 ? 512 : size;
}
static size_t tile_count(size_t n) { return n ? divide_up(n, tile_size(n)) : 1; }

// The digits of 32*GROUP elements from `at` on; -1 past the end. item: which elements they are.
__device__ static void read_digits(int *digit, int *item, const int *key, const int *from, int n, int at,
        int buckets, int shift) {
    #pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const int j = at + 32*i + (int)threadIdx.x;
        item[i] = j < n ? from ? from[j] : j : -1;
    }
    #pragma unroll
    for (int i = 0; i < GROUP; i++)
        digit[i] = item[i] < 0 ? -1 : (int)(((unsigned)key[item[i]] >> shift) % (unsigned)buckets);
}
static __global__ void count_kernel(int *table, const int *key, const int *from, int n, int buckets,
        int shift, int tile, int tiles) {
    extern __shared__ int shared_counts[];                  // (warps,buckets)
    const int t = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    int *count = shared_counts + threadIdx.y * buckets;
    if (t >= tiles) return;
    for (int d = lane; d < buckets; d += 32) count[d] = 0;
    __syncwarp();
    const int end = n - t * tile < tile ? n : (t + 1) * tile;
    for (int at = t * tile; at < end; at += 32 * GROUP) {
        int digit[GROUP], item[GROUP];
        read_digits(digit, item, key, from, end, at, buckets, shift);
        #pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const unsigned same = __match_any_sync(ALL, digit[i]);
            if (digit[i] >= 0 && lane == __ffs(same) - 1) count[digit[i]] += __popc(same);
            __syncwarp();
        }
    }
    for (int d = lane; d < buckets; d += 32) table[(size_t)d * tiles + t] = count[d];
}

// The sum of x over the threads before this one; *total: over all of the block's 1024.
__device__ static int block_scan(int x, int *total) {
    __shared__ int of_warp[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = x;
    for (int d = 1; d < 32; d *= 2) { const int up = __shfl_up_sync(ALL, sum, d); if (lane >= d) sum += up; }
    __syncthreads();
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    int before = 0;
    *total = 0;
    for (int i = 0; i < 32; i++) { if (i < warp) before += of_warp[i]; *total += of_warp[i]; }
    return before + sum - x;
}
// A block sums SCAN entries of the table. Left out if the table is no longer than that.
static __global__ void __launch_bounds__(SCAN_THREADS) scan_sums_kernel(int *sums, const int *table,
        size_t entries) {
    int sum = 0, total;
    for (int i = 0; i < SCAN_EACH; i++) {
        const size_t at = (size_t)blockIdx.x * SCAN + i * SCAN_THREADS + threadIdx.x;
        if (at < entries) sum += table[at];
    }
    block_scan(sum, &total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}
// A block turns SCAN entries into the sums of all before them, having added up the blocks before itself.
static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(int *table, const int *sums, size_t entries) {
    const size_t from = (size_t)blockIdx.x * SCAN + threadIdx.x * SCAN_EACH;
    int value[SCAN_EACH], sum = 0, before = 0, total;
    for (int b = threadIdx.x; b < blockIdx.x; b += SCAN_THREADS) before += sums[b];
    block_scan(before, &before);
    #pragma unroll
    for (int i = 0; i < SCAN_EACH; i++) sum += value[i] = from + i < entries ? table[from + i] : 0;
    before += block_scan(sum, &total);
    #pragma unroll
    for (int i = 0; i < SCAN_EACH; i++) {
        if (from + i < entries) table[from + i] = before;
        before += value[i];
    }
}

static __global__ void place_kernel(int *order, int *place, const int *table, const int *key,
        const int *from, int n, int buckets, int shift, int tile, int tiles) {
    extern __shared__ int shared_next[];                    // (warps,buckets)
    const int t = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    int *next = shared_next + threadIdx.y * buckets;
    if (t >= tiles) return;
    for (int d = lane; d < buckets; d += 32) next[d] = table[(size_t)d * tiles + t];
    __syncwarp();
    const int end = n - t * tile < tile ? n : (t + 1) * tile;
    for (int at = t * tile; at < end; at += 32 * GROUP) {
        int digit[GROUP], item[GROUP];
        read_digits(digit, item, key, from, end, at, buckets, shift);
        #pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const unsigned same = __match_any_sync(ALL, digit[i]);
            const int rank = __popc(same & ((1u << lane) - 1)), to = digit[i] < 0 ? -1 : next[digit[i]] + rank;
            __syncwarp();                                   // all have read before one writes
            if (to >= 0) {
                if (rank == 0) next[digit[i]] = to + __popc(same);
                order[to] = item[i];
                if (place) place[at + 32*i + lane] = to;
            }
            __syncwarp();
        }
    }
}

// order: the numbers 0..n-1 (or those in `from`, if given) sorted by the digit (key[i] >> shift) % buckets,
// equal digits in the order they came in; place: where each went, or NULL. Afterwards scratch[d *
// tile_count(n)] is the first place of digit d. Three or four launches; reads the keys twice.
size_t DEVICE(sort_scratch)(int n, int buckets) {
    const size_t entries = tile_count(n) * buckets;
    return entries + divide_up(entries, SCAN);
}
void   DEVICE(sort)(int *order, int *place, const int *key, const int *from, int n, int buckets, int shift,
        int *scratch) {
    const int tile = (int)tile_size(n), tiles = (int)tile_count(n);
    const size_t entries = (size_t)tiles * buckets, blocks = divide_up(entries, SCAN), warps = warps_for(buckets);
    const size_t grid = divide_up(tiles, warps), shared = warps * buckets * sizeof(int);
    int *const table = scratch, *const sums = scratch + entries;
    LAUNCH(count_kernel, grid, dim3(32, warps), shared, table, key, from, n, buckets, shift, tile, tiles);
    if (blocks > 1) LAUNCH(scan_sums_kernel, blocks, SCAN_THREADS, 0, sums, table, entries);
    LAUNCH(scan_kernel, blocks, SCAN_THREADS, 0, table, sums, entries);
    LAUNCH(place_kernel, grid, dim3(32, warps), shared, order, place, table, key, from, n, buckets, shift,
            tile, tiles);
}

// ---- plan: slots sorted by expert -------------------------------------------------------------------------

// What else a plan has, from the sorted slots: one thread per slot, and the first ones also have an expert
// each.
static __global__ void plan_kernel(int *start, int *load_of, int *token_of_row, const int *slot_of_row,
        const int *table, int tiles, int S, int E, int K) {
    const size_t i = global_index();
    if (i < S) token_of_row[i] = slot_of_row[i] / K;
    if (i > E) return;
    const int first = i < E ? table[i * tiles] : S;
    start[i] = first;
    if (i < E) load_of[i] = (i + 1 < E ? table[(i + 1) * tiles] : S) - first;
}
static void route_plan(Plan *plan, int *load, const int *expert) {
    const int S = plan->N * plan->K, E = plan->E;
    int *const scratch = (int *)workspace(DEVICE(sort_scratch)(S, E) * sizeof(int));
    DEVICE(sort)(plan->slot_of_row, plan->row_of_slot, expert, NULL, S, E, 0, scratch);
    LAUNCH(plan_kernel, divide_up(S > E + 1 ? S : E + 1, 256), 256, 0, plan->start, load,
            plan->token_of_row, plan->slot_of_row, scratch, (int)tile_count(S), S, E, plan->K);
}

// ---- losses and bias --------------------------------------------------------------------------------------

__device__ static double warp_sum_double(double x) {
    for (int lane = 16; lane; lane /= 2) x += __shfl_xor_sync(ALL, x, lane);
    return x;
}
// A warp takes every so-many-th token; what a token adds is a float, the sums are doubles. partial
// (2,blocks).
static __global__ void router_losses_kernel(double *partial, const floatX *logits, const real *lse,
        const int *load_of, Scores scores, int N, int E) {
    extern __shared__ real shared_p[];                      // (warps,E)
    __shared__ double of_warp[2][8];
    real *p = shared_p + threadIdx.y * E;
    double balance = 0, z = 0;
    for (size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y; n < N; n += (size_t)gridDim.x * blockDim.y) {
        real inner = 0;
        probabilities(p, logits + n*E, lse[n], scores, E);
        for (int e = threadIdx.x; e < E; e += 32) inner += p[e] * (real)load_of[e];
        balance += warp_sum(inner);
        z += (double)lse[n] * (double)lse[n];
    }
    if (threadIdx.x == 0) { of_warp[0][threadIdx.y] = balance; of_warp[1][threadIdx.y] = z; }
    __syncthreads();
    if (threadIdx.x >= 2 || threadIdx.y) return;
    double sum = 0;
    for (int y = 0; y < blockDim.y; y++) sum += of_warp[threadIdx.x][y];
    partial[threadIdx.x * gridDim.x + blockIdx.x] = sum;
}
static __global__ void router_losses_finish_kernel(real *loss, const double *partial, int blocks,
        double balance_scale, double z_scale) {
    double balance = 0, z = 0;
    for (int b = threadIdx.x; b < blocks; b += 32) { balance += partial[b]; z += partial[blocks + b]; }
    balance = warp_sum_double(balance);
    z = warp_sum_double(z);
    if (threadIdx.x == 0) { loss[0] = (real)(balance * balance_scale); loss[1] = (real)(z * z_scale); }
}
static void router_losses(real *loss, const floatX *logits, const real *lse, const int *load, int tokens,
        Scores scores, int N, int E, int K) {
    const unsigned warps = warps_for(E);
    const size_t groups = divide_up(N, warps), blocks = groups < 512 ? groups : 512;
    double *const partial = (double *)workspace(2 * (blocks + 1) * sizeof(double));
    LAUNCH(router_losses_kernel, blocks, dim3(32, warps), warps * E * sizeof(real), partial, logits, lse,
            load, scores, N, E);
    LAUNCH(router_losses_finish_kernel, 1, 32, 0, loss, partial, (int)blocks,
            N ? E / ((double)K * N * tokens) : 0, N ? 1.0 / N : 0);
}

// One block. load < mean is load * E < sum, in whole numbers: there is nothing to round.
static __global__ void router_bias_kernel(real *bias, const int *load_of, real rate, int E) {
    __shared__ long long of_warp[32];
    long long sum = 0;
    for (int e = threadIdx.x; e < E; e += 1024) sum += load_of[e];
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(ALL, sum, lane);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < 32; warp++) sum += of_warp[warp];
    for (int e = threadIdx.x; e < E; e += 1024) {
        const long long here = (long long)load_of[e] * E;
        bias[e] += here < sum ? rate : here > sum ? -rate : 0;
    }
}
static void router_bias(real *bias, const int *load, float rate, int E) {
    LAUNCH(router_bias_kernel, 1, 1024, 0, bias, load, rate, E);
}

// ---- combine: a token's output is the weighted sum of what its experts said -------------------------------

// Adds COUNT rows to a sum, from `slot` on. All their loads are under way at once.
template<int W, int COUNT> __device__ static void add_rows(real *sum, const floatX *inp, const real *weight,
        const int *row_of_slot, size_t slot, int C) {
    size_t row[COUNT];
    real w[COUNT];
    Pack<W> x[COUNT];
    #pragma unroll
    for (int k = 0; k < COUNT; k++) row[k] = row_of_slot ? row_of_slot[slot + k] : slot + k;
    #pragma unroll
    for (int k = 0; k < COUNT; k++) w[k] = weight ? weight[slot + k] : 1;
    #pragma unroll
    for (int k = 0; k < COUNT; k++) x[k] = load<W>(inp + row[k] * C);
    #pragma unroll
    for (int k = 0; k < COUNT; k++) for (int i = 0; i < W; i++) sum[i] += w[k] * R(x[k].x[i]);
}
// A block is a rectangle of tokens and units of W columns; a thread gathers its columns of the token's K rows
// and adds them up in float. Gathering needs no atomics, and nothing but the result is written. row_of_slot
// NULL: the rows are in the order of slots. Moves (K+1)*N*C elements.
template<int W> static __global__ void combine_kernel(floatX *out, const floatX *inp, const real *weight,
        const floatX *bias, const int *row_of_slot, int N, int K, int C) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) {
        real sum[W] = {};
        if (bias) {
            const Pack<W> b = load<W>(bias + c);
            for (int i = 0; i < W; i++) sum[i] = R(b.x[i]);
        }
        int k = 0;
        for (; k + 4 <= K; k += 4) add_rows<W, 4>(sum, inp + c, weight, row_of_slot, n*K + k, C);
        if (k + 2 <= K)          { add_rows<W, 2>(sum, inp + c, weight, row_of_slot, n*K + k, C); k += 2; }
        if (k < K)                 add_rows<W, 1>(sum, inp + c, weight, row_of_slot, n*K + k, C);
        Pack<W> to;
        for (int i = 0; i < W; i++) to.x[i] = X(sum[i]);
        store(out + n*C + c, to);
    }
}
static void combine_forward(floatX *out, const floatX *inp, const real *weight, const floatX *bias,
        const Plan *plan, int C, Rows rows) {
    const bool w = C % VECTOR == 0 && ((uintptr_t)out | (uintptr_t)inp | (uintptr_t)bias) % 16 == 0;
    const int units = w ? C / VECTOR : C;
    unsigned x = 1;
    while (x < 256 && x < units) x *= 2;
    auto kernel = w ? combine_kernel<VECTOR> : combine_kernel<1>;
    LAUNCH(kernel, divide_up(plan->N, 256 / x), dim3(x, 256 / x), 0, out, inp, weight, bias,
            rows == GROUPED ? plan->row_of_slot : NULL, plan->N, plan->K, C);
}

PART(route) {
    d->router_forward = router_forward;  d->router_backward = router_backward;
    d->route_plan = route_plan;          d->router_losses = router_losses;
    d->router_bias = router_bias;        d->combine_forward = combine_forward;
}
