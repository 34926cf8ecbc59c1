// route.cu: which tokens go to which experts, what that costs, and how results are combined.
//
// Routing is decided on the GPU and stays there: no size of a grid or of memory depends on it. In
// the losses and backward a row of 8, 16 or 32 threads has a token, so that each has at most 8 of
// the experts if possible: lane l those that are l modulo the row's threads; no barriers.
#include "gather.cuh"
#include "ptx.cuh"
#include "route.cuh"
#include "sort.cuh"

// Blocks for tokens with E experts, as large as shared memory allows. A row of shared memory has
// pitch(E) words, so that rows of tokens that a warp reads at once begin in different banks.
__host__ __device__ static inline int pitch(int E) { return E % 32 ? E : E + 8; }
static dim3 token_rows(int E) {
    const dim3 block = row_threads(divide_up(E, 8), E, 32);
    return dim3(block.x, block.x < 32 ? block.y : warps_for(pitch(E)));
}
__device__ static inline real row_max(real x) {             // as row_sum, for rows within a warp
    for (int lane = blockDim.x / 2; lane; lane /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, lane));
    return x;
}
// The balance loss's distribution over all experts for the row's token, by lanes. Sigmoids are
// normalized as a softmax of their logarithms, which stays right where all of them underflow.
__device__ static void probabilities(real *p, const floatX *x, real lse, Scores scores, int E) {
    const int lane = threadIdx.x;
    real max = -INFINITY, sum = 0;
    if (scores < SIGMOID_TOPK) {
        for (int e = lane; e < E; e += blockDim.x) p[e] = expf(R(x[e]) - lse);
        return;
    }
    for (int e = lane; e < E; e += blockDim.x) max = fmaxf(max, p[e] = log_sigmoid(R(x[e])));
    max = row_max(max);
    for (int e = lane; e < E; e += blockDim.x) sum += p[e] = expf(p[e] - max);
    sum = row_sum(sum);
    for (int e = lane; e < E; e += blockDim.x) p[e] /= sum;
}

// ---- router -------------------------------------------------------------------------------------

// A warp has a token. Moves E*N floatX and 8*K*N bytes, in K rounds of three warp-wide reductions.
static __global__ void router_forward_kernel(int *expert, real *weight, real *lse, const floatX *logits,
        const real *bias, Scores scores, Groups groups, int forced, int N, int E, int K) {
    extern __shared__ unsigned shared_scores[];             // (warps,E)
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    choose_experts(expert + n*K, weight + n*K, lse + n, logits + n*E, bias, shared_scores + threadIdx.y * E, scores,
            groups, forced, n, E, K);
}

// The same for many tokens, each of a lane: some 25 instructions per expert instead of K rounds of
// a warp. An expert's score, logit and number are packed into one Key, in the order of preference.
// MOST keys at a time are sorted and merged with the best MOST so far, both by fixed networks of
// comparisons. A warp copies the logits of its 32 tokens to shared memory, CHUNK experts at a time,
// one chunk ahead, in rows padded by 16 bytes against bank conflicts.
enum { CHUNK = 64, CHUNK_ROW = CHUNK + VECTOR, ROUTER_WARPS = 2 };

// A bf16 logit and the number fill 32 bits. A score that is not the logit (bias) goes before them.
__device__ static inline unsigned low_key(floatX x, int e) {
    return sizeof(floatX) == 2 ? (ordered(R(x)) & 0xffff0000u) | (0xffff - e) : 0xffffffffu - e;
}
__device__ static inline void make_key(unsigned &key, floatX x, real, int e) { key = low_key(x, e); }
__device__ static inline void make_key(uint64_t &key, floatX x, real score, int e) {
    key = (uint64_t)ordered(score) << 32 | low_key(x, e);
}
__device__ static inline int key_expert(unsigned low) {
    return sizeof(floatX) == 2 ? 0xffff - (int)(low & 0xffff) : (int)(0xffffffffu - low);
}
template<class Key> __device__ static inline void in_order(Key &a, Key &b) {
    const Key larger = a > b ? a : b, smaller = a > b ? b : a;
    a = larger, b = smaller;
}
// Sorts x, which ascends and then descends.
template<int MOST, class Key> __device__ static inline void merge(Key *x) {
    #pragma unroll
    for (int step = MOST / 2; step; step /= 2)
        #pragma unroll
        for (int i = 0; i < MOST; i++) if (!(i & step)) in_order(x[i], x[i + step]);
}
// best: the MOST best of best, which is sorted, and x.
template<int MOST, class Key> __device__ static inline void keep_best(Key *best, Key *x) {
    #pragma unroll
    for (int run = 2; run <= MOST; run *= 2)                // runs of this length, alternately descending and ascending
        #pragma unroll
        for (int step = run / 2; step; step /= 2)
            #pragma unroll
            for (int i = 0; i < MOST; i++)
                if (!(i & step)) { if (i & run) in_order(x[i + step], x[i]); else in_order(x[i], x[i + step]); }
    #pragma unroll
    for (int i = 0; i < MOST; i++) if (x[MOST - 1 - i] > best[i]) best[i] = x[MOST - 1 - i];
    merge<MOST>(best);
}
// A lane's token so far: best experts, and the logits' maximum and sum of exp(logit - max).
template<class Key, int MOST> struct TopK { Key best[MOST]; real max, sum; };
// Takes MOST more experts, from number `first` on, whose logits are at x.
template<class Key, int MOST> __device__ static inline void take_experts(TopK<Key, MOST> &t, const floatX *x, int first,
        const real *bias, Scores scores, int E) {
    Pack<VECTOR> v[MOST / VECTOR];
    Key key[MOST];
    real top = t.max;
    #pragma unroll
    for (int i = 0; i < MOST / VECTOR; i++) v[i] = load_vec(x + i * VECTOR);
    #pragma unroll
    for (int i = 0; i < MOST; i++) if (first + i < E) top = fmaxf(top, R(v[i / VECTOR].x[i % VECTOR]));
    t.sum *= __expf(t.max - top);
    t.max = top;
    #pragma unroll
    for (int i = 0; i < MOST; i++) {
        const int e = first + i;
        const floatX logit = v[i / VECTOR].x[i % VECTOR];
        const real l = R(logit);
        key[i] = 0;
        if (e >= E) continue;
        t.sum += __expf(l - top);
        make_key(key[i], logit, !bias ? l : (scores >= SIGMOID_TOPK ? sigmoid(l) : l) + bias[e], e);
    }
    keep_best<MOST>(t.best, key);
}
// expert, weight (32,K), shared: the lane's row. x: the token's logits, if any. lse: of these.
template<class Key, int MOST> __device__ static inline void weigh_best(int *expert, real *weight, const Key *best,
        const floatX *x, bool exists, real lse, Scores scores, int K) {
    const int lane = threadIdx.x;
    real w[MOST], top = -INFINITY, kept = 0;
    int e[MOST];
    #pragma unroll
    for (int k = 0; k < MOST; k++) if (k < K) {
        e[k] = key_expert((unsigned)best[k]);
        top = fmaxf(top, w[k] = weight_logit(exists ? R(x[e[k]]) : 0, scores));
    }
    if (!SUMS_TO_ONE(scores)) top = scores == SOFTMAX_TOPK ? lse : 0;
    #pragma unroll
    for (int k = 0; k < MOST; k++) if (k < K) kept += w[k] = expf(w[k] - top);
    if (!SUMS_TO_ONE(scores)) kept = 1;
    cp_async_wait<0>();
    __syncwarp();                                           // nothing arrives in the chunks any more
    #pragma unroll
    for (int k = 0; k < MOST; k++) if (k < K) { expert[lane * K + k] = e[k]; weight[lane * K + k] = w[k] / kept; }
    __syncwarp();
}
// 9 blocks per multiprocessor: without a bound the compiler spills 4 bytes of the largest form.
template<class Key, int MOST> static __global__ void __launch_bounds__(32 * ROUTER_WARPS, 9)
router_many_kernel(int *expert, real *weight, real *lse, const floatX *logits, const real *bias, Scores scores, int N,
        int E, int K) {
    __shared__ alignas(16) floatX chunks[ROUTER_WARPS][2][32][CHUNK_ROW];
    const int lane = threadIdx.x;
    const size_t first = ((size_t)blockIdx.x * ROUTER_WARPS + threadIdx.y) * 32;
    if (first >= N) return;
    const int tokens = N - first < 32 ? (int)(N - first) : 32;
    auto copy_chunk = [&](int from) {                       // of experts `from` and following
        enum { PACKS = CHUNK / VECTOR };
        for (int i = lane; i < 32 * PACKS; i += 32) {
            const int row = i / PACKS, e = i % PACKS * VECTOR;
            const bool exists = row < tokens && from + e < E;
            cp_async(shared_address(&chunks[threadIdx.y][from / CHUNK % 2][row][e]),
                     logits + (exists ? (first + row) * E + from + e : 0), exists);
        }
        cp_async_commit();
    };
    TopK<Key, MOST> t = { {}, -INFINITY, 0 };
    copy_chunk(0);
    for (int from = 0; from < E; from += CHUNK) {
        copy_chunk(from + CHUNK);
        cp_async_wait<1>();
        __syncwarp();
        const floatX *x = chunks[threadIdx.y][from / CHUNK % 2][lane];
        for (int at = 0; at < CHUNK && from + at < E; at += MOST) take_experts(t, x + at, from + at, bias, scores, E);
        __syncwarp();                                       // before the chunk is overwritten
    }
    const real l = t.max + logf(t.sum);
    static_assert(64 * MOST * sizeof(int) <= sizeof chunks[0], "results fit where the chunks were");
    int  *const e_of = (int *)chunks[threadIdx.y][0][0];   // (32,K), in shared memory: stores of lanes would be K apart
    real *const w_of = (real *)(e_of + 32 * MOST);
    weigh_best<Key, MOST>(e_of, w_of, t.best, logits + (first + lane) * E, lane < tokens, l, scores, K);
    for (int i = lane; i < tokens * K; i += 32) {
        expert[first * K + i] = e_of[i];
        weight[first * K + i] = w_of[i];
    }
    if (lane < tokens) lse[first + lane] = l;
}

static void router_forward(int *expert, real *weight, real *lse, const floatX *logits, const real *bias,
        Scores scores, Groups groups, int forced, int N, int E, int K) {
    enum { MANY = 2048 };                                   // tokens: enough to keep the GPU busy with 32 per warp
    const bool packed = sizeof(floatX) == 2 && !bias, scored = !bias || (sizeof(floatX) == 2 && !SCORES_ARE_P(scores));
    if (N >= MANY && !forced && groups.count <= 1 && K <= 16 && E <= 0xffff && wide(E, logits) && scored) {
        auto kernel = packed ? K <= 8 ? router_many_kernel<unsigned, 8> : router_many_kernel<unsigned, 16>
                             : K <= 8 ? router_many_kernel<uint64_t, 8> : router_many_kernel<uint64_t, 16>;
        LAUNCH(kernel, divide_up(N, 32 * ROUTER_WARPS), dim3(32, ROUTER_WARPS), 0, expert, weight, lse, logits, bias,
               scores, N, E, K);
        return;
    }
    const unsigned warps = warps_for(E);
    LAUNCH(router_forward_kernel, divide_up(N, warps), dim3(32, warps), warps * E * sizeof(unsigned),
            expert, weight, lse, logits, bias, scores, groups, forced, N, E, K);
}

// What the two losses' gradients of token n are multiplied by: 0 if it is filler. Their means are
// over numbers of tokens that only the device knows.
struct LossScales { real balance, z; };
__device__ static inline double tokens_of_rank(Counted c) { return (double)*c.tokens / c.ranks; }
__device__ static inline bool counts(Counted c, size_t n) { return !(c.target && c.target[n] == FILLER); }
__device__ static inline LossScales loss_scales(Counted c, size_t n, real balance, real zloss, int E, int K) {
    const real here = (real)tokens_of_rank(c);
    if (!(here > 0) || !counts(c, n)) return { 0, 0 };
    return { balance * E / ((real)K * here * (real)*c.tokens), zloss * 2 / here };
}

// A row of threads has a token. The gradients of balance and z loss are computed for all experts,
// then those of weights added for the chosen ones, a lane each. Rows past the last token store
// nothing. Moves 2*N*E floatX.
static __global__ void router_backward_kernel(floatX *dlogits, const real *dweight, const real *weight,
        const real *lse, const int *expert, const int *first, const floatX *logits, const int *load_of, real balance,
        real zloss, Counted counted, Scores scores, int N, int E, int K) {
    extern __shared__ real shared_p[];                      // (rows,pitch)
    const size_t own = (size_t)blockIdx.x * blockDim.y + threadIdx.y, n = own < N ? own : N - 1;
    const int lane = threadIdx.x;
    real *p = shared_p + threadIdx.y * pitch(E);
    const floatX *x = logits + n*E;
    const size_t slot = first ? first[n] : n*K;
    const int *chosen = expert + slot, count = first ? first[n + 1] - (int)slot : K;
    const real *w = weight + slot, *dw = dweight + slot, l = lse[n];
    const LossScales scale = loss_scales(counted, n, balance, zloss, E, K);
    real pull = 0, dot = 0;

    probabilities(p, x, l, scores, E);
    for (int e = lane; e < E; e += blockDim.x) pull += p[e] * (real)load_of[e];
    for (int k = lane; k < count; k += blockDim.x) dot += w[k] * dw[k];
    pull = row_sum(pull);
    dot = scores == SIGMOID_EACH ? 0 : row_sum(dot);
    for (int e = lane; e < E; e += blockDim.x) {            // from here on p[e] is the gradient
        const bool sigmoids = scores >= SIGMOID_TOPK;
        const real slope = sigmoids ? p[e] * sigmoid(-R(x[e])) : p[e], softmax = sigmoids ? expf(R(x[e]) - l) : p[e];
        real d = scale.balance * ((real)load_of[e] - pull) * slope + scale.z * l * softmax;
        if (scores == SOFTMAX_TOPK) d -= p[e] * dot;
        p[e] = d;
    }
    __syncwarp();
    for (int k = lane; k < count; k += blockDim.x) {
        const int e = chosen[k];
        p[e] += scores == SOFTMAX_TOPK ? w[k] * dw[k]
              : scores >= SIGMOID_TOPK ? w[k] * (dw[k] - dot) * sigmoid(-R(x[e]))
              :                          w[k] * (dw[k] - dot);
    }
    __syncwarp();
    if (own < N) for (int e = lane; e < E; e += blockDim.x) dlogits[n*E + e] = X(p[e]);
}

// The same for a softmax, with VECTOR neighbouring experts in registers of each of LANES threads.
template<int LANES> struct Probabilities {
    real p[VECTOR], load[VECTOR];
    __device__ Probabilities(const int *load_of) {
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) load[i] = (real)load_of[threadIdx.x * VECTOR + i];
    }
    // Of the token with these logits. Returns their sum, weighted by the loads.
    __device__ real set(const floatX *logits, real lse) {
        const Reals<VECTOR> x = unpack(load_vec(logits + threadIdx.x * VECTOR));
        real sum = 0;
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) sum += (p[i] = expf(x.x[i] - lse)) * load[i];
        return warp_sum<LANES>(sum);
    }
};
template<int LANES> static __global__ __launch_bounds__(256) void
softmax_backward_kernel(floatX *dlogits, const real *dweight, const real *weight, const real *lse, const int *expert,
        const floatX *logits, const int *load_of, real balance, real zloss, Counted counted, Scores scores, int N,
        int K) {
    const int lane = threadIdx.x, E = LANES * VECTOR;
    const size_t own = (size_t)blockIdx.x * blockDim.y + threadIdx.y, n = own < N ? own : N - 1;
    Probabilities<LANES> t(load_of);
    const LossScales scale = loss_scales(counted, n, balance, zloss, E, K);
    const real l = lse[n], pull = t.set(logits + n*E, l);
    Reals<VECTOR> d;
    real dot = 0;
    for (int k = lane; k < K; k += LANES) dot += weight[n*K + k] * dweight[n*K + k];
    dot = warp_sum<LANES>(dot);
    #pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        d.x[i] = scale.balance * (t.load[i] - pull) * t.p[i] + scale.z * l * t.p[i];
        if (scores == SOFTMAX_TOPK) d.x[i] -= t.p[i] * dot;
    }
    for (int from = 0; from < K; from += LANES) {
        const int k = from + lane, mine = k < K ? expert[n*K + k] : -1;
        const real w = k < K ? weight[n*K + k] : 0, dw = k < K ? dweight[n*K + k] : 0;
        const real add = scores == SOFTMAX_TOPK ? w * dw : w * (dw - dot);
        for (int j = 0; j < LANES && from + j < K; j++) {
            const int e = __shfl_sync(ALL, mine, j, LANES) - lane * VECTOR;
            const real g = __shfl_sync(ALL, add, j, LANES);
            #pragma unroll
            for (int i = 0; i < VECTOR; i++) if (e == i) d.x[i] += g;
        }
    }
    if (own < N) store(dlogits + n*E + lane * VECTOR, pack(d));
}
// f(an integral constant), the number of lanes that have E experts, if that is a power of two.
template<class Call> static inline bool with_lanes(int E, Call call) {
    switch (E % VECTOR ? 0 : E / VECTOR) {
    case 1:  call(std::integral_constant<int, 1>());  return true;
    case 2:  call(std::integral_constant<int, 2>());  return true;
    case 4:  call(std::integral_constant<int, 4>());  return true;
    case 8:  call(std::integral_constant<int, 8>());  return true;
    case 16: call(std::integral_constant<int, 16>()); return true;
    case 32: call(std::integral_constant<int, 32>()); return true;
    default: return false;
    }
}

static void router_backward(floatX *dlogits, const real *dweight, const real *weight, const real *lse,
        const int *expert, const int *first, const floatX *logits, const int *load, float balance, float zloss,
        Counted counted, Scores scores, int N, int E, int K) {
    const dim3 block = token_rows(E);
    if (!first && scores < SIGMOID_TOPK && wide(E, logits, dlogits) && with_lanes(E, [&](auto lanes) {
        const dim3 rows(lanes, 256 / lanes);
        LAUNCH(softmax_backward_kernel<lanes>, divide_up(N, rows.y), rows, 0, dlogits, dweight, weight, lse, expert,
               logits, load, balance, zloss, counted, scores, N, K);
    })) return;
    LAUNCH(router_backward_kernel, divide_up(N, block.y), block, block.y * pitch(E) * sizeof(real), dlogits, dweight,
            weight, lse, expert, first, logits, load, balance, zloss, counted, scores, N, E, K);
}

// ---- plan: slots sorted by expert ---------------------------------------------------------------

static void route_plan(Plan *plan, int *load, const int *expert) {
    const int S = plan->S;
    const Sorted to = { plan->slot_of_row, plan->row_of_slot, plan->token_of_row, plan->K, plan->start, load };
    DEVICE(sort)(to, expert, NULL, S, plan->E, 0, (int *)workspace(DEVICE(sort_scratch)(S, plan->E) * sizeof(int)));
}

static __global__ void route_discount_kernel(int *load, const int *choice, const int *target, int N, int K) {
    const size_t n = global_index();
    if (n >= N || target[n] != FILLER) return;
    for (int k = 0; k < K; k++) atomicAdd(&load[choice[n*K + k]], -1);
}
static void route_discount(int *load, const int *choice, const int *target, int N, int K) {
    LAUNCH(route_discount_kernel, (unsigned)divide_up(N, 256), 256, 0, load, choice, target, N, K);
}

// ---- losses and bias ----------------------------------------------------------------------------

// The sums of a block's rows of threads, each of which its first thread has, to partial (2,blocks).
__device__ static inline void add_losses(double *partial, double balance, double z) {
    __shared__ double of_row[2][256];
    if (threadIdx.x == 0) { of_row[0][threadIdx.y] = balance; of_row[1][threadIdx.y] = z; }
    __syncthreads();
    const int which = threadIdx.y * blockDim.x + threadIdx.x;
    if (which >= 2) return;
    double sum = 0;
    for (int y = 0; y < blockDim.y; y++) sum += of_row[which][y];
    partial[which * gridDim.x + blockIdx.x] = sum;
}
// A row of threads has every (grid's rows)-th token. Addends are floats, sums are doubles.
static __global__ void router_losses_kernel(double *partial, const floatX *logits, const real *lse,
        const int *load_of, Counted counted, Scores scores, int N, int E) {
    extern __shared__ real shared_p[];                      // (rows,pitch)
    real *p = shared_p + threadIdx.y * pitch(E);
    double balance = 0, z = 0;
    for (size_t from = (size_t)blockIdx.x * blockDim.y; from < N; from += (size_t)gridDim.x * blockDim.y) {
        const size_t own = from + threadIdx.y, n = own < N ? own : N - 1;
        real inner = 0;
        probabilities(p, logits + n*E, lse[n], scores, E);
        for (int e = threadIdx.x; e < E; e += blockDim.x) inner += p[e] * (real)load_of[e];
        inner = row_sum(inner);
        if (own == n && counts(counted, n)) { balance += inner; z += (double)lse[n] * (double)lse[n]; }
    }
    add_losses(partial, balance, z);
}
// The same where a softmax's probabilities stay in registers.
template<int LANES> static __global__ __launch_bounds__(256) void softmax_losses_kernel(double *partial,
        const floatX *logits, const real *lse, const int *load_of, Counted counted, int N) {
    Probabilities<LANES> t(load_of);
    double balance = 0, z = 0;
    for (size_t from = (size_t)blockIdx.x * blockDim.y; from < N; from += (size_t)gridDim.x * blockDim.y) {
        const size_t own = from + threadIdx.y, n = own < N ? own : N - 1;
        const real l = lse[n], inner = t.set(logits + n * (LANES * VECTOR), l);
        if (own == n && counts(counted, n)) { balance += inner; z += (double)l * (double)l; }
    }
    add_losses(partial, balance, z);
}
static __global__ void router_losses_finish_kernel(real *loss, const double *partial, int blocks,
        Counted counted, int E, int K) {
    const double here = tokens_of_rank(counted), tokens = *counted.tokens;
    double balance = 0, z = 0;
    for (int b = threadIdx.x; b < blocks; b += 32) { balance += partial[b]; z += partial[blocks + b]; }
    balance = warp_sum(balance);
    z = warp_sum(z);
    if (threadIdx.x) return;
    loss[0] = here > 0 ? (real)(balance * (E / ((double)K * here * tokens))) : 0;
    loss[1] = here > 0 ? (real)(z * (1.0 / here)) : 0;
}
static void router_losses(real *loss, const floatX *logits, const real *lse, const int *load, Counted counted,
        Scores scores, int N, int E, int K) {
    enum { MOST = 512 };
    double *const partial = (double *)workspace(2 * (MOST + 1) * sizeof(double));
    unsigned blocks = 0;
    auto grid = [&](dim3 block) { return blocks = (unsigned)min(divide_up(N, block.y), (size_t)MOST); };
    if (scores >= SIGMOID_TOPK || !wide(E, logits) || !with_lanes(E, [&](auto lanes) {
        const dim3 block(lanes, 256 / lanes);
        LAUNCH(softmax_losses_kernel<lanes>, grid(block), block, 0, partial, logits, lse, load, counted, N);
    })) {
        const dim3 block = token_rows(E);
        LAUNCH(router_losses_kernel, grid(block), block, block.y * pitch(E) * sizeof(real), partial, logits, lse, load,
               counted, scores, N, E);
    }
    LAUNCH(router_losses_finish_kernel, 1, 32, 0, loss, partial, (int)blocks, counted, E, K);
}

// One block. load < mean is load * E < sum in integers, so nothing is rounded.
static __global__ void router_bias_kernel(real *bias, const int *load_of, real rate, int relative, int E) {
    long long sum = 0;
    for (int e = threadIdx.x; e < E; e += 1024) sum += load_of[e];
    sum = block_sum<32>(sum);
    for (int e = threadIdx.x; e < E; e += 1024) {
        const long long here = (long long)load_of[e] * E;
        if (relative) bias[e] += sum ? rate * (1 - (real)here / (real)sum) : 0;
        else bias[e] += here < sum ? rate : here > sum ? -rate : 0;
    }
}
static void router_bias(real *bias, const int *load, float rate, int relative, int E) {
    LAUNCH(router_bias_kernel, 1, 1024, 0, bias, load, rate, relative, E);
}

// ---- combine: a token's output is the weighted sum of its experts' results ----------------------

// A block has several tokens; a thread gathers W columns of a token's rows and adds them in float.
// Gathering needs no atomics, and nothing but the result is written. Moves (K+1)*N*C elements.
template<int W> static __global__ void combine_kernel(floatX *out, const floatX *inp, const real *weight,
        const floatX *bias, TokenRows rows, int N, int C) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    const Slots slots = slots_of(rows, n);
    for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) {
        Reals<W> sum = {};
        if (bias) sum = unpack(load<W>(bias + c));
        add_rows<W, 4>(sum.x, inp + c, weight, rows, slots, C);
        store(out + n*C + c, pack(sum));
    }
}
static void combine_forward(floatX *out, const floatX *inp, const real *weight, const floatX *bias,
        const Plan *plan, int C, Rows rows) {
    const bool w = wide(C, out, inp, bias);
    const dim3 block = rectangle(w ? C / VECTOR : C);
    auto kernel = w ? combine_kernel<VECTOR> : combine_kernel<1>;
    const TokenRows t = { rows == GROUPED ? plan->row_of_slot : NULL, plan->first, plan->K };
    LAUNCH(kernel, divide_up(plan->N, block.y), block, 0, out, inp, weight, bias, t, plan->N, C);
}

static __global__ void scale_weights_kernel(real *out, const real *weight, real scale, size_t n) {
    const size_t i = global_index();
    if (i < n) out[i] = scale * weight[i];
}
static void scale_weights(real *out, const real *weight, float scale, size_t n) {
    LAUNCH(scale_weights_kernel, (unsigned)divide_up(n, 256), 256, 0, out, weight, scale, n);
}

PART(route) {
    d->router_forward = router_forward;  d->router_backward = router_backward;
    d->route_plan = route_plan;          d->router_losses = router_losses;
    d->router_bias = router_bias;        d->combine_forward = combine_forward;
    d->scale_weights = scale_weights;    d->route_discount = route_discount;
}
