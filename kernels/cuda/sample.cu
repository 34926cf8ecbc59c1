// sample.cu: the next token from its logits, without leaving the GPU.
//
// "In descending order" asks for a sort of the vocabulary, but none is needed. Where the kept
// tokens end and which of them is drawn are both searches: given numbers with masses, which is the
// smallest number at which the prefix sum of masses reaches a target? A histogram over the highest
// digit of the numbers gives that digit; a histogram over the next digit, of the numbers with the
// digits found so far, gives the next; and so on. A token's number is its logit, the largest first,
// then its id: no two are equal. Without limits it is the id alone, an order as good as any.
//
// A mass is the probability relative to the largest, times 2^40, as an integer: sums are exact. The
// probability is a double, so that this and the CPU's sampler differ once in a billion draws.
#include "ptx.cuh"
#include "route.cuh"
#include "kernels/random.h"

typedef unsigned long long u64;
enum {
    THREADS = 256, EACH = 4, CHUNK = THREADS * EACH,        // tokens of a block
    DIGIT = 11, BINS = 1 << DIGIT, PER_THREAD = BINS / THREADS,
    GROUP = 64                                              // sequences per launch
};
struct Histogram { u64 mass[BINS]; unsigned count[BINS]; };
struct Search {                                             // of one sequence
    u64 all, target, before;                        // mass: of all tokens; to be reached; of numbers below the prefix
    u64 prefix;                                             // the digits found so far
    unsigned most, passed;                                  // tokens: kept at most; with numbers below the prefix
    float max;
    int best, decided;                                      // the most likely token; 1: it is the result
};
struct Top { float logit; int token; };                     // a block's largest

struct Task {
    int *token;
    Search *search;                                         // (N)
    Histogram *histograms;                                  // (N,passes)
    Top *tops;                                              // (N,blocks)
    const floatX *logits;
    const uint64_t *key;
    const int *position;
    Sampler s;
    int V, used, sorted, id_bits, bits, passes;             // bits: of a number; sorted: it begins with the logit
};
// This thread's j-th token. Lanes are far apart, as neighbours share bins in a histogram of ids.
__device__ static inline int token_at(int j) {
    return blockIdx.x * CHUNK + threadIdx.x % 32 * (CHUNK / 32) + j * (THREADS / 32) + threadIdx.x / 32;
}
__device__ static inline int shift_after(const Task &t, int level) { return max(t.bits - DIGIT * (level + 1), 0); }

static __device__ unsigned arrivals[GROUP];     // of a sequence: blocks that are done with a pass; 0 between launches

// The one with the larger logit, of equal ones with the lower id; token -1: none.
__device__ static inline Top better(Top a, Top b) {
    return a.token < 0 || (b.token >= 0 && (b.logit > a.logit || (b.logit == a.logit && b.token < a.token))) ? b : a;
}
__device__ static Top best_of_block(Top mine) {
    __shared__ Top of_warp[THREADS / 32];
    for (int step = 16; step; step /= 2)
        mine = better(mine, { __shfl_xor_sync(ALL, mine.logit, step), __shfl_xor_sync(ALL, mine.token, step) });
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) mine = better(mine, of_warp[w]);
    return mine;
}

// The largest logit of each block, and, by the last, of all. All blocks clear the histograms.
static __global__ __launch_bounds__(THREADS) void find_max(const Task t) {
    const int n = blockIdx.y;
    let_next_start();
    wait_for_previous();
    Top mine = { 0, -1 };
    for (int j = 0; j < EACH; j++) {
        const int i = blockIdx.x * CHUNK + j * THREADS + threadIdx.x;
        const float x = i < t.used ? R(t.logits[(size_t)n * t.V + i]) : NAN;
        if (x == x && x > -INFINITY) mine = better(mine, { x, i });
    }
    for (int p = 0; p < t.passes; p++)
        for (int b = blockIdx.x * THREADS + threadIdx.x; b < BINS; b += gridDim.x * THREADS) {
            Histogram &h = t.histograms[n * t.passes + p];
            h.mass[b] = h.count[b] = 0;
        }
    mine = best_of_block(mine);
    if (threadIdx.x == 0) t.tops[(size_t)n * gridDim.x + blockIdx.x] = mine;
    if (!last_block(&arrivals[blockIdx.y], gridDim.x)) return;
    mine = { 0, -1 };
    for (int b = threadIdx.x; b < gridDim.x; b += THREADS) mine = better(mine, t.tops[(size_t)n * gridDim.x + b]);
    __syncthreads();
    mine = best_of_block(mine);
    if (threadIdx.x) return;
    Search s = {};
    s.best = max(mine.token, 0);
    s.max = mine.logit;
    s.most = t.s.top_k > 0 ? t.s.top_k : ALL;
    s.decided = t.s.temperature <= 0 || mine.token < 0 || mine.logit == INFINITY;
    t.search[n] = s;
    if (s.decided) t.token[n] = s.best;
}

// By a block: the first value of the next digit (`width` bits) at which the prefix sum reaches the
// target or `most` tokens are passed. Updates before, passed, prefix. *reached: the sum with it.
__device__ static void find_digit(Search *s, u64 *reached, const Histogram &h, int width) {
    __shared__ u64 mass_of_warp[THREADS / 32];
    __shared__ unsigned count_of_warp[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = threadIdx.x * PER_THREAD;
    u64 mass = 0;
    unsigned count = 0;
    for (int b = 0; b < PER_THREAD; b++) { mass += h.mass[first + b]; count += h.count[first + b]; }
    const u64 mass_to = warp_scan(mass);
    const unsigned count_to = warp_scan(count);
    if (lane == 31) { mass_of_warp[warp] = mass_to; count_of_warp[warp] = count_to; }
    const Search was = *s;
    __syncthreads();
    u64 before = was.before + mass_to - mass, all = was.before;
    unsigned passed = was.passed + count_to - count;
    for (int w = 0; w < THREADS / 32; w++) {
        if (w < warp) { before += mass_of_warp[w]; passed += count_of_warp[w]; }
        all += mass_of_warp[w];
    }
    const u64 target = min(was.target, all);                // where a limit cuts nothing off
    for (int b = 0; b < PER_THREAD; b++) {
        const u64 to = before + h.mass[first + b];
        const unsigned taken = passed + h.count[first + b];
        if (before < target && passed < was.most && (to >= target || taken >= was.most)) {
            s->before = before;
            s->passed = passed;
            s->prefix = was.prefix << width | (first + b);
            *reached = to;
        }
        before = to;
        passed = taken;
    }
    __syncthreads();
}

// Begins the second search, for the token that is drawn from a mass `kept`.
__device__ static void draw(Search *s, const Task &t, int n, u64 kept) {
    const u64 at = (u64)(random_uniform(t.key[n], (uint64_t)t.position[n] + 1) * (double)kept);
    s->target = min(at, kept - 1) + 1;
    s->before = s->prefix = 0;
    s->most = ALL;
    s->passed = 0;
}

// A block's histogram. Masses are added in halves of 20 bits: a block's sum of each has at most 30.
struct Bins { unsigned low[BINS], high[BINS], counts[BINS]; };
// Adds this thread's tokens whose digits above bit `above` are the prefix. Returns their mass.
__device__ static u64 count_tokens(Bins &bins, const Task &t, const Search &s, int n, int level, int shift, int above) {
    const double colder = 1 / (double)t.s.temperature;
    const int width = above - shift;
    u64 sum = 0;
    float logit[EACH];
    for (int j = 0; j < EACH; j++) logit[j] = token_at(j) < t.used ? R(t.logits[(size_t)n * t.V + token_at(j)]) : NAN;
    for (int j = 0; j < EACH; j++) {
        const float x = logit[j];
        const u64 high_part = t.sorted ? (u64)(~ordered(x) >> (sizeof(floatX) == 2 ? 16 : 0)) : 0;
        const u64 number = high_part << t.id_bits | (unsigned)token_at(j);
        if (x != x || (level && number >> above != s.prefix)) continue;
        const double p = exp(((double)x - (double)s.max) * colder);
        const u64 mass = (u64)(p * (double)((u64)1 << 40) + 0.5);
        sum += mass;
        if (!mass || p < (double)t.s.min_p) continue;
        const unsigned digit = (unsigned)(number >> shift) & ((1u << width) - 1);
        atomicAdd(&bins.low[digit], (unsigned)mass & 0xfffff);
        atomicAdd(&bins.high[digit], (unsigned)(mass >> 20));
        if (s.most < ALL) atomicAdd(&bins.counts[digit], 1);
    }
    return sum;
}

// A digit of a search: a histogram of tokens with the digits so far; the last block finds it.
static __global__ __launch_bounds__(THREADS) void search_digit(const Task t, int pass, int level, bool drawing) {
    __shared__ Bins bins;
    __shared__ Search s;
    __shared__ u64 reached;
    const int n = blockIdx.y;
    let_next_start();
    for (int b = threadIdx.x; b < BINS; b += THREADS) bins.low[b] = bins.high[b] = bins.counts[b] = 0;
    wait_for_previous();
    if (threadIdx.x == 0) s = t.search[n];
    __syncthreads();
    if (s.decided) return;

    const int shift = shift_after(t, level), above = level ? shift_after(t, level - 1) : t.bits;
    u64 mass = count_tokens(bins, t, s, n, level, shift, above);
    __syncthreads();
    Histogram &h = t.histograms[n * t.passes + pass];
    for (int b = threadIdx.x; b < BINS; b += THREADS)
        if (bins.low[b] | bins.high[b]) {
            atomicAdd(&h.mass[b], bins.low[b] + ((u64)bins.high[b] << 20));
            if (bins.counts[b]) atomicAdd(&h.count[b], bins.counts[b]);
        }
    if (!level) {
        mass = block_sum<THREADS / 32>(mass);
        if (threadIdx.x == 0) atomicAdd(&t.search[n].all, mass);
    }
    if (!last_block(&arrivals[blockIdx.y], gridDim.x)) return;

    if (!level) {                                           // the target is known only now
        u64 sum = 0;
        for (int b = threadIdx.x; b < BINS; b += THREADS) sum += h.mass[b];
        sum = block_sum<THREADS / 32>(sum);
        if (threadIdx.x == 0) {
            if (drawing) draw(&s, t, n, sum);
            else s.target = max((u64)ceil((double)t.s.top_p * (double)t.search[n].all), (u64)1);
        }
        __syncthreads();
    }
    find_digit(&s, &reached, h, above - shift);
    if (shift == 0 && !drawing) {
        if (threadIdx.x == 0) draw(&s, t, n, reached);
        __syncthreads();
        find_digit(&s, &reached, t.histograms[n * t.passes], DIGIT);
    }
    if (threadIdx.x) return;
    t.search[n] = s;
    if (shift == 0 && drawing) t.token[n] = (int)(s.prefix & (((u64)1 << t.id_bits) - 1));
}

static void sample(OUT int *token, const floatX *logits, const uint64_t *key, const int *position, Sampler s, int N,
                   int V, int used) {
    const bool limits = s.top_k > 0 || s.top_p < 1 || s.min_p > 0;
    const size_t blocks = divide_up((size_t)used, CHUNK);
    Task t = {};
    t.s = s, t.V = V, t.used = used, t.sorted = limits;
    while (used > (int64_t)1 << t.id_bits) t.id_bits++;
    t.bits = max(t.id_bits + (limits ? (int)sizeof(floatX) * 8 : 0), 1);
    const int levels = (t.bits + DIGIT - 1) / DIGIT, greedy = s.temperature <= 0;
    t.passes = greedy ? 0 : limits ? 2 * levels : levels;
    const size_t each = sizeof *t.histograms * t.passes + sizeof *t.search + blocks * sizeof *t.tops;
    for (int from = 0; from < N; from += GROUP) {
        const int n = N - from < GROUP ? N - from : GROUP;
        const dim3 grid((unsigned)blocks, (unsigned)n);
        t.histograms = (Histogram *)workspace(each * n);
        t.search = (Search *)(t.histograms + (size_t)n * t.passes);
        t.tops = (Top *)(t.search + n);
        t.token = token + from, t.key = key + from, t.position = position + from, t.logits = logits + (size_t)from * V;
        LAUNCH_EARLY(find_max, grid, THREADS, 0, t);
        for (int pass = 0; pass < t.passes; pass++) {
            const bool drawing = !limits || pass >= levels;
            if (pass != levels || !limits)
                LAUNCH_EARLY(search_digit, grid, THREADS, 0, t, pass, pass % levels, drawing);
        }
    }
}

// One thread for each sequence.
static __global__ void advance_kernel(int *position, int *row, int *log, const int *token, int N) {
    const size_t n = global_index();
    let_next_start();
    wait_for_previous();
    if (n >= N) return;
    row[n]++;
    log[(size_t)++position[n] * N + n] = token[n];
}
static void advance(int *position, int *row, int *log, const int *token, int N) {
    LAUNCH_EARLY(advance_kernel, (unsigned)divide_up((size_t)N, 256), 256, 0, position, row, log, token, N);
}

PART(sample) { d->sample = sample; d->advance = advance; }
