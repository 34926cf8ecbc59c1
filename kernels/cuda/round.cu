// round.cu: routing rounded to whole tiles, the same decisions as kernels/cpu/round.c, bit for bit.
//
//     rank    Every expert ranks all tokens by a key of 32 bits: "chose it", then the score. Logits
//             are by token, keys by expert: shared memory transposes them. Choices are counted.
//     choose  A block has an expert. From the counts it knows how many tokens the expert gets; it
//             finds the rank that exactly that many tokens reach, and stores a bit per token.
//     fill    A lane has a token: its slots are the experts whose bit is set, from prefix sums on.
//
// Nothing depends on timing: the only atomic additions are of integers.
#include "route.cuh"
#include "sort.cuh"
#include "kernels/round.h"

// A block has 32 tokens and EXPERTS experts. Moves N*E floatX and 4*N*E bytes.
enum { EXPERTS = 64 };
static __global__ void rank_kernel(unsigned *key, int *count, const int *choice, const floatX *logits, const real *lse,
        Scores scores, int N, int E, int K) {
    __shared__ unsigned tile[EXPERTS][33];
    const int first = blockIdx.x * 32, from = blockIdx.y * EXPERTS, lane = threadIdx.x, y = threadIdx.y;
    #pragma unroll 4
    for (int t = y; t < 32 && first + t < N; t += blockDim.y) {
        const floatX *x = logits + (size_t)(first + t) * E + from;
        const real l = scores >= SIGMOID_TOPK ? 0 : lse[first + t];
        #pragma unroll 2
        for (int e = lane; e < EXPERTS && from + e < E; e += 32) tile[e][t] = score_order(R(x[e]) - l);
    }
    __syncthreads();
    for (int i = y * 32 + lane; i < 32 * K && first + i / K < N; i += blockDim.y * 32) {
        const int e = choice[(size_t)first * K + i] - from;
        if (e >= 0 && e < EXPERTS) tile[e][i / K] |= 0x80000000u;
    }
    __syncthreads();
    for (int e = y; e < EXPERTS && from + e < E; e += blockDim.y) {
        const bool exists = first + lane < N;
        const unsigned mine = exists ? tile[e][lane] : 0;
        const int chose = __popc(__ballot_sync(ALL, mine >> 31));
        if (exists) key[(size_t)(from + e) * N + first + lane] = mine;
        if (lane == 0 && chose) atomicAdd(&count[from + e], chose);
    }
}

// An expert's keys. Thread t has tokens t, t + THREADS, ...: NEAR in registers, the others in L2.
enum { THREADS = 1024, NEAR = 16 };
typedef struct { const unsigned *key; int N; unsigned near[NEAR]; } Tokens;
template<class Visit> __device__ static inline void each_token(const Tokens &t, Visit visit) {
    #pragma unroll
    for (int i = 0; i < NEAR; i++) if (i * THREADS < t.N) visit(t.near[i], i * THREADS + (int)threadIdx.x);
    for (int at = NEAR * THREADS; at < t.N; at += THREADS) {
        const int n = at + threadIdx.x;
        visit(n < t.N ? t.key[n] : 0, n);
    }
}
__device__ static inline uint64_t rank_at(unsigned key, int n) { return (uint64_t)key << 32 | ~(unsigned)n; }

// Sums over the block, in every thread. Each has one barrier, as sums alternate between two arrays.
struct AlternatingSum {
    int (*of_warp)[32], parity;             // (2,32) in shared memory
    __device__ int operator()(int x) {
        parity ^= 1;
        x = __reduce_add_sync(ALL, x);
        if (threadIdx.x % 32 == 0) of_warp[parity][threadIdx.x / 32] = x;
        __syncthreads();
        return __reduce_add_sync(ALL, of_warp[parity][threadIdx.x % 32]);
    }
};
// The r-th largest rank, bit by bit, or any number that r ranks reach. No token: the last ranks.
__device__ static uint64_t nth_largest(const Tokens &t, int r, AlternatingSum sum) {
    if (r == 0) return ~(uint64_t)0;
    unsigned high = 0, low = 0;
    for (unsigned bit = 0x80000000u; bit; bit >>= 1) {
        int reach = 0;
        each_token(t, [&](unsigned key, int) { reach += key >= (high | bit); });
        reach = sum(reach);
        if (reach >= r) high |= bit;
        if (reach == r) return (uint64_t)high << 32;
    }
    for (unsigned bit = 0x80000000u; bit; bit >>= 1) {                      // equal scores: the lower token
        int reach = 0;
        each_token(t, [&](unsigned k, int n) { reach += k > high || (k == high && ~(unsigned)n >= (low | bit)); });
        reach = sum(reach);
        if (reach >= r) low |= bit;
        if (reach == r) break;
    }
    return (uint64_t)high << 32 | low;
}

// kept (E,words): a bit for each token; before (E,words): bits in the words before; slots (words):
// bits of all experts. Reads the keys once. Takes some twenty rounds of one comparison per token.
static __global__ void __launch_bounds__(THREADS) choose_kernel(unsigned *kept, int *before, int *rows, int *slots,
        const unsigned *key, const int *count, int tile, int N, int words) {
    __shared__ int of_warp[2][32];
    const int e = blockIdx.x, thread = threadIdx.x;
    Tokens t = { key + (size_t)e * N, N };
    #pragma unroll
    for (int i = 0; i < NEAR; i++) t.near[i] = i * THREADS + thread < N ? t.key[i * THREADS + thread] : 0;
    const uint64_t limit = nth_largest(t, rounded(count[e], N, tile), { of_warp, 0 });

    each_token(t, [&](unsigned k, int n) {
        const unsigned word = __ballot_sync(ALL, n < N && rank_at(k, n) >= limit);
        if (thread % 32 || n >= N) return;
        kept[(size_t)e * words + n / 32] = word;
        if (word) atomicAdd(&slots[n / 32], __popc(word));
    });
    __syncthreads();
    int sum = 0, total;
    for (int at = 0; at < words; at += THREADS, sum += total) {
        const int w = at + thread,
            ahead = sum + block_scan(w < words ? __popc(kept[(size_t)e * words + w]) : 0, &total);
        if (w < words) before[(size_t)e * words + w] = ahead;
    }
    if (thread == 0) rows[e] = sum;
}

// A warp has 32 tokens: one word of each expert. visit(expert, word, number of bits before it), by
// all lanes, for words that are not 0. A lane reads an expert's word; shuffles distribute them.
enum { WARPS = 4 };
template<class Visit> __device__ static inline void each_expert(const unsigned *kept, const int *before, int words,
        int E, Visit visit) {
    const int lane = threadIdx.x;
    for (int from = 0; from < E; from += 32) {
        const size_t at = (size_t)(from + lane) * words;
        const unsigned mine = from + lane < E ? kept[at] : 0;
        const int ahead = mine ? before[at] : 0;
        for (unsigned left = __ballot_sync(ALL, mine != 0); left; left &= left - 1) {
            const int i = __ffs(left) - 1;
            visit(from + i, __shfl_sync(ALL, mine, i), __shfl_sync(ALL, ahead, i));
        }
    }
}
// The weights of slots begin .. end-1, which are those of a token with logits x, by a lane.
__device__ static inline void weigh_slots(real *weight, const int *expert, const floatX *x, real lse, Scores scores,
        int begin, int end) {
    auto value = [&](int s) { return weight_logit(R(x[expert[s]]), scores); };
    real top = -INFINITY, sum = 0;
    #pragma unroll 4
    for (int s = begin; s < end; s++) top = fmaxf(top, value(s));
    if (!SUMS_TO_ONE(scores)) top = scores == SOFTMAX_TOPK ? lse : 0;
    #pragma unroll 4
    for (int s = begin; s < end; s++) sum += expf(value(s) - top);
    if (!SUMS_TO_ONE(scores)) sum = 1;
    for (int s = begin; s < end; s++) weight[s] = expf(value(s) - top) / sum;
}
static __global__ void fill_kernel(Plan plan, int *load, int *expert, real *weight, const floatX *logits,
        const real *lse, Scores scores, const unsigned *kept, const int *before, const int *count, const int *rows,
        const int *slots, int words) {
    extern __shared__ int start[];                                          // (E)
    const int N = plan.N, E = plan.E, lane = threadIdx.x, thread = threadIdx.y * 32 + lane,
        w = blockIdx.x * WARPS + threadIdx.y;
    int row = 0, before_block = 0, total, own = 0;
    for (int from = 0; from < E; from += 32 * WARPS, row += total) {
        const int e = from + thread, begin = row + block_scan(e < E ? rows[e] : 0, &total);
        if (e >= E) continue;
        start[e] = begin;
        if (blockIdx.x == 0) plan.start[e] = begin, load[e] = count[e];
    }
    if (blockIdx.x == 0 && thread == 0) plan.start[E] = row, plan.first[0] = 0;
    for (int i = thread; i < (int)blockIdx.x * WARPS; i += 32 * WARPS) before_block += slots[i];
    block_scan(before_block, &total);                                       // also the barrier that start needs
    if (w >= words) return;
    int before_warp = total;
    for (int i = blockIdx.x * WARPS; i < w; i++) before_warp += slots[i];

    const int n = w * 32 + lane;
    each_expert(kept + w, before + w, words, E, [&](int, unsigned word, int) { own += word >> lane & 1; });
    const int slot = warp_scan(own) - own + before_warp;
    if (n < N) plan.first[n + 1] = slot + own;
    int at = slot;
    each_expert(kept + w, before + w, words, E, [&](int e, unsigned word, int ahead) {
        if (!(word >> lane & 1)) return;
        const int r = start[e] + ahead + __popc(word & ((1u << lane) - 1));
        expert[at] = e;
        plan.row_of_slot[at] = r;
        plan.slot_of_row[r] = at++;
        plan.token_of_row[r] = n;
    });
    if (n < N) weigh_slots(weight, expert, logits + (size_t)n * E, lse[n], scores, slot, at);
}

static void route_round(Plan *plan, int *load, int *expert, real *weight, const int *choice, const floatX *logits,
        const real *lse, Scores scores, int tile) {
    const size_t N = plan->N, E = plan->E, words = divide_up(N, 32);
    int *const count = (int *)workspace((2 * E + words + 2 * E * words + E * N) * sizeof(int));
    int *const slots = count + E, *const rows = slots + words, *const before = rows + E;
    unsigned *const kept = (unsigned *)before + E * words, *const keys = kept + E * words;
    CUDA_CHECK(cudaMemsetAsync(count, 0, (E + words) * sizeof(int), context()->stream));
    LAUNCH(rank_kernel, dim3((unsigned)words, (unsigned)divide_up(E, EXPERTS)), dim3(32, 8), 0, keys, count, choice,
           logits, lse, scores, plan->N, plan->E, plan->K);
    LAUNCH(choose_kernel, (unsigned)E, THREADS, 0, kept, before, rows, slots, keys, count, tile, plan->N, (int)words);
    LAUNCH(fill_kernel, (unsigned)(words ? divide_up(words, WARPS) : 1), dim3(32, WARPS), E * sizeof(int), *plan, load,
           expert, weight, logits, lse, scores, kept, before, count, rows, slots, (int)words);
}

PART(round) { d->route_round = route_round; }
