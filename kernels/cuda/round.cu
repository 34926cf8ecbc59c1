// round.cu: routing rounded to whole tiles (kernels/cpu/route.c has it in a few loops; what is decided is the same, bit for bit).
//
//     rank     Every expert ranks all tokens: a key of 32 bits, "chose it" and then the score. Logits lie by token, keys by
//              expert, so they are turned round in shared memory; and choices are counted on the way.
//     choose   An expert is a block's. It knows from the counts how many tokens the expert gets, looks for the rank that exactly
//              so many reach, and notes them, a bit each.
//     fill     A lane is a token's: its slots are the experts whose bit is set. Where they begin are sums of what was noted.
//
// Nothing depends on time: the only atomic additions are of whole numbers.
#include "route.cuh"
#include "sort.cuh"
#include "kernels/round.h"

// A block: 32 tokens, EXPERTS experts. Moves N*E floatX and 4*N*E bytes.
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
        const bool there = first + lane < N;
        const unsigned mine = there ? tile[e][lane] : 0;
        const int chose = __popc(__ballot_sync(ALL, mine >> 31));
        if (there) key[(size_t)(from + e) * N + first + lane] = mine;
        if (lane == 0 && chose) atomicAdd(&count[from + e], chose);
    }
}

// An expert's tokens, dealt out to the threads of its block. The keys of the first ones stay in registers, those of later
// ones are read again each time: they are in L2.
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

// The sum over the block. One barrier: sums are kept in two places by turns.
__device__ static inline int block_sum(int x, int (*sums)[32], int &turn) {
    turn ^= 1;
    x = __reduce_add_sync(ALL, x);
    if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = x;
    __syncthreads();
    return __reduce_add_sync(ALL, sums[turn][threadIdx.x % 32]);
}
// The r-th largest rank, bit by bit; or any number that exactly r reach. Tokens past the last rank behind all others.
__device__ static uint64_t nth_largest(const Tokens &t, int r, int (*sums)[32], int &turn) {
    if (r == 0) return ~(uint64_t)0;
    unsigned high = 0, low = 0;
    for (unsigned bit = 0x80000000u; bit; bit >>= 1) {
        int reach = 0;
        each_token(t, [&](unsigned key, int) { reach += key >= (high | bit); });
        reach = block_sum(reach, sums, turn);
        if (reach >= r) high |= bit;
        if (reach == r) return (uint64_t)high << 32;
    }
    for (unsigned bit = 0x80000000u; bit; bit >>= 1) {                      // equal scores: the lower token
        int reach = 0;
        each_token(t, [&](unsigned key, int n) { reach += key > high || (key == high && ~(unsigned)n >= (low | bit)); });
        reach = block_sum(reach, sums, turn);
        if (reach >= r) low |= bit;
        if (reach == r) break;
    }
    return (uint64_t)high << 32 | low;
}

// kept (E,words): a bit for each token; before (E,words): how many there are in the words before; slots (words): how many
// experts keep a token, added up. Reads the keys once; the time goes into some twenty rounds of a comparison a token.
static __global__ void __launch_bounds__(THREADS) choose_kernel(unsigned *kept, int *before, int *rows, int *slots,
        const unsigned *key, const int *count, const floatX *logits, const real *lse, Scores scores, Rounding rule, int tile,
        const uint64_t *batch_key, int site, int N, int E, int words) {
    __shared__ int sums[2][32];
    __shared__ unsigned long long mass[2];                                  // gained, lost
    const int e = blockIdx.x, thread = threadIdx.x, own = count[e];
    const bool whole = can_round(own, N, tile);
    int turn = 0, earlier = 0;
    Tokens t = { key + (size_t)e * N, N };
    #pragma unroll
    for (int i = 0; i < NEAR; i++) t.near[i] = i * THREADS + thread < N ? t.key[i * THREADS + thread] : 0;
    if (rule == ROUND_BALANCED) {
        for (int i = thread; i < e; i += THREADS) if (can_round(count[i], N, tile)) earlier += count[i];
        earlier = block_sum(earlier, sums, turn);
    }
    uint64_t up = 0, down = 0;
    if (rule == ROUND_SCORE && whole) {
        if (thread < 2) mass[thread] = 0;
        up = nth_largest(t, round_up(own, tile), sums, turn);
        down = nth_largest(t, round_down(own, tile), sums, turn);
        __syncthreads();
        each_token(t, [&](unsigned k, int n) {
            if (n >= N || rank_at(k, n) < up || rank_at(k, n) >= down) return;
            const real x = R(logits[(size_t)n * E + e]);
            atomicAdd(&mass[k >> 31], (unsigned long long)fixed_point(scores >= SIGMOID_TOPK ? sigmoid(x) : expf(x - lse[n])));
        });
        __syncthreads();
    }
    const int r = rounded(rule, own, earlier, mass[1], mass[0], N, tile, random_key(*batch_key, (uint64_t)site), e);
    const uint64_t limit = rule != ROUND_SCORE || !whole ? nth_largest(t, r, sums, turn) : r == round_up(own, tile) ? up : down;

    each_token(t, [&](unsigned k, int n) {
        const unsigned word = __ballot_sync(ALL, n < N && rank_at(k, n) >= limit);
        if (thread % 32 || n >= N) return;
        kept[(size_t)e * words + n / 32] = word;
        if (word) atomicAdd(&slots[n / 32], __popc(word));
    });
    __syncthreads();
    int sum = 0, some;
    for (int at = 0; at < words; at += THREADS, sum += some) {
        const int w = at + thread, ahead = sum + block_scan(w < words ? __popc(kept[(size_t)e * words + w]) : 0, &some);
        if (w < words) before[(size_t)e * words + w] = ahead;
    }
    if (thread == 0) rows[e] = sum;
}

// A warp: 32 tokens, and a word of each expert. Lanes read the words of 32 experts, and pass them round.
enum { WARPS = 4 };
template<class Visit> __device__ static inline void each_expert(const unsigned *kept, const int *before, int words, int E, Visit visit) {
    const int lane = threadIdx.x;
    for (int from = 0; from < E; from += 32) {
        const size_t at = (size_t)(from + lane) * words;
        const unsigned mine = from + lane < E ? kept[at] : 0;
        const int ahead = mine ? before[at] : 0;
        for (unsigned there = __ballot_sync(ALL, mine != 0); there; there &= there - 1) {
            const int i = __ffs(there) - 1;
            visit(from + i, __shfl_sync(ALL, mine, i), __shfl_sync(ALL, ahead, i));
        }
    }
}
static __global__ void fill_kernel(Plan plan, int *load, int *expert, real *weight, const floatX *logits, const real *lse,
        Scores scores, const unsigned *kept, const int *before, const int *count, const int *rows, const int *slots, int words) {
    extern __shared__ int start[];                                          // (E)
    const int N = plan.N, E = plan.E, lane = threadIdx.x, thread = threadIdx.y * 32 + lane, w = blockIdx.x * WARPS + threadIdx.y;
    int row = 0, slot = 0, some, own = 0;
    for (int from = 0; from < E; from += 32 * WARPS, row += some) {
        const int e = from + thread, begin = row + block_scan(e < E ? rows[e] : 0, &some);
        if (e >= E) continue;
        start[e] = begin;
        if (blockIdx.x == 0) plan.start[e] = begin, load[e] = count[e];
    }
    if (blockIdx.x == 0 && thread == 0) plan.start[E] = row, plan.first[0] = 0;
    for (int i = thread; i < (int)blockIdx.x * WARPS; i += 32 * WARPS) slot += slots[i];
    block_scan(slot, &some);                                                // and a barrier, for start
    if (w >= words) return;
    for (int i = blockIdx.x * WARPS; i < w; i++) some += slots[i];

    const int n = w * 32 + lane;
    each_expert(kept + w, before + w, words, E, [&](int, unsigned word, int) { own += word >> lane & 1; });
    slot = own;
    for (int d = 1; d < 32; d *= 2) { const int up = __shfl_up_sync(ALL, slot, d); if (lane >= d) slot += up; }
    slot += some - own;
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
    if (n >= N) return;

    const floatX *x = logits + (size_t)n * E;
    auto value = [&](int s) {
        const real v = R(x[expert[s]]);
        return scores >= SIGMOID_TOPK ? log_sigmoid(v) : v;
    };
    real top = -INFINITY, sum = 0;
    #pragma unroll 4
    for (int s = slot; s < at; s++) top = fmaxf(top, value(s));
    if (!SUMS_TO_ONE(scores)) top = scores == SOFTMAX_TOPK ? lse[n] : 0;
    #pragma unroll 4
    for (int s = slot; s < at; s++) sum += expf(value(s) - top);
    if (!SUMS_TO_ONE(scores)) sum = 1;
    for (int s = slot; s < at; s++) weight[s] = expf(value(s) - top) / sum;
}

static void route_round(Plan *plan, int *load, int *expert, real *weight, const int *choice, const floatX *logits,
        const real *lse, Scores scores, Rounding rule, int tile, const uint64_t *key, int site) {
    const size_t N = plan->N, E = plan->E, words = divide_up(N, 32);
    int *const count = (int *)workspace((2 * E + words + 2 * E * words + E * N) * sizeof(int));
    int *const slots = count + E, *const rows = slots + words, *const before = rows + E;
    unsigned *const kept = (unsigned *)before + E * words, *const keys = kept + E * words;
    CUDA_CHECK(cudaMemsetAsync(count, 0, (E + words) * sizeof(int), context()->stream));
    LAUNCH(rank_kernel, dim3((unsigned)words, (unsigned)divide_up(E, EXPERTS)), dim3(32, 8), 0, keys, count, choice, logits, lse,
           scores, plan->N, plan->E, plan->K);
    LAUNCH(choose_kernel, (unsigned)E, THREADS, 0, kept, before, rows, slots, keys, count, logits, lse, scores, rule, tile, key, site,
           plan->N, plan->E, (int)words);
    LAUNCH(fill_kernel, (unsigned)(words ? divide_up(words, WARPS) : 1), dim3(32, WARPS), E * sizeof(int), *plan, load, expert, weight,
           logits, lse, scores, kept, before, count, rows, slots, (int)words);
}

PART(round) { d->route_round = route_round; }
