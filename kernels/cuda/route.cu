// route.cu: which tokens go to which experts, what that costs, and how the experts' answers come back
// together. The formulas stand in kernels/cpu/route.c.
//
// Routing is decided on the GPU and stays there: nothing here depends on it for the size of a grid or of
// memory. A token's logits belong to a row of threads: 8, 16 or 32, so that each has up to 8 of the experts if that is enough:
// lane l those that are l modulo their number, also in shared memory, and lanes need no barriers.
#include "ptx.cuh"
#include "route.cuh"
#include "sort.cuh"

// Rows of threads for tokens with E experts, as many as have room in shared memory, where a row has `pitch` words: those of
// several tokens that a warp reads at once lie in different banks.
__host__ __device__ static inline int pitch(int E) { return E % 32 ? E : E + 8; }
static dim3 token_rows(int E) {
    const dim3 block = row_threads(divide_up(E, 8), E, 32);
    return dim3(block.x, block.x < 32 ? block.y : warps_for(pitch(E)));
}
__device__ static inline real row_max(real x) {             // row_sum's twin, for rows within a warp
    for (int lane = blockDim.x / 2; lane; lane /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, lane));
    return x;
}
// The distribution over all experts that the balance loss looks at, of the row's token; each lane fills in
// its experts. Sigmoids are normalized as a softmax of their logarithms, which stays right where all of them
// underflow.
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
// The same for many tokens, of which every lane has one: then nothing has to be agreed on, and the time of a token is
// that of some 25 instructions per expert, not of K rounds of a warp. An expert's score, logit and number are packed
// into one Key, in order of preference. MOST keys at a time are sorted and merged with the best MOST so far; both are
// networks of comparisons that do not depend on the data. A warp brings the logits of its 32 tokens into shared memory
// CHUNK experts at a time, one chunk ahead of the one it works on; rows there are 16 bytes longer than they need to be,
// so that 8 lanes reading 16 bytes of a row each meet in no bank.
enum { CHUNK = 64, CHUNK_ROW = CHUNK + VECTOR, FEW_WARPS = 2 };

// bf16 logits are ordered by 16 bits, and with the number fill 32. A score of its own (bias) goes before them.
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
template<int MOST, class Key> __device__ static inline void merge(Key *x) {        // first up, then down: sorted
    #pragma unroll
    for (int step = MOST / 2; step; step /= 2)
        #pragma unroll
        for (int i = 0; i < MOST; i++) if (!(i & step)) in_order(x[i], x[i + step]);
}
template<int MOST, class Key> __device__ static inline void keep_best(Key *best, Key *x) {
    #pragma unroll
    for (int run = 2; run <= MOST; run *= 2)                // sorted runs of this length, down and up by turns
        #pragma unroll
        for (int step = run / 2; step; step /= 2)
            #pragma unroll
            for (int i = 0; i < MOST; i++)
                if (!(i & step)) { if (i & run) in_order(x[i + step], x[i]); else in_order(x[i], x[i + step]); }
    #pragma unroll
    for (int i = 0; i < MOST; i++) if (x[MOST - 1 - i] > best[i]) best[i] = x[MOST - 1 - i];
    merge<MOST>(best);
}
template<class Key, int MOST> static __global__ void __launch_bounds__(32 * FEW_WARPS) router_many_kernel(int *expert,
        real *weight, real *lse, const floatX *logits, const real *bias, Scores scores, int N, int E, int K) {
    __shared__ alignas(16) floatX chunks[FEW_WARPS][2][32][CHUNK_ROW];
    const int lane = threadIdx.x;
    const size_t first = ((size_t)blockIdx.x * FEW_WARPS + threadIdx.y) * 32;
    if (first >= N) return;
    const int tokens = N - first < 32 ? (int)(N - first) : 32;
    auto fetch = [&](int from) {                            // the experts from there on
        enum { UNITS = CHUNK / VECTOR };
        for (int i = lane; i < 32 * UNITS; i += 32) {
            const int row = i / UNITS, e = i % UNITS * VECTOR;
            const bool there = row < tokens && from + e < E;
            cp_async(shared_address(&chunks[threadIdx.y][from / CHUNK % 2][row][e]),
                     logits + (there ? (first + row) * E + from + e : 0), there);
        }
        cp_async_commit();
    };
    Key best[MOST] = {};
    real max = -INFINITY, sum = 0;
    fetch(0);
    for (int from = 0; from < E; from += CHUNK) {
        fetch(from + CHUNK);
        cp_async_wait<1>();
        __syncwarp();
        const floatX *x = chunks[threadIdx.y][from / CHUNK % 2][lane];
        for (int at = 0; at < CHUNK && from + at < E; at += MOST) {
            Pack<VECTOR> v[MOST / VECTOR];
            Key key[MOST];
            real top = max;
            #pragma unroll
            for (int i = 0; i < MOST / VECTOR; i++) v[i] = load_vec(x + at + i * VECTOR);
            #pragma unroll
            for (int i = 0; i < MOST; i++)
                if (from + at + i < E) top = fmaxf(top, R(v[i / VECTOR].x[i % VECTOR]));
            sum *= __expf(max - top);
            max = top;
            #pragma unroll
            for (int i = 0; i < MOST; i++) {
                const int e = from + at + i;
                const floatX logit = v[i / VECTOR].x[i % VECTOR];
                const real l = R(logit);
                key[i] = 0;
                if (e >= E) continue;
                sum += __expf(l - top);
                make_key(key[i], logit, !bias ? l : (scores >= SIGMOID_TOPK ? sigmoid(l) : l) + bias[e], e);
            }
            keep_best<MOST>(best, key);
        }
        __syncwarp();                                       // before the chunk is overwritten
    }

    const real l = max + logf(sum);
    real w[MOST], high = -INFINITY, kept = 0;
    int e[MOST];
    auto value = [&](int chosen) {                          // its logit is read again
        const real v = lane < tokens ? R(logits[(first + lane) * E + chosen]) : 0;
        return scores >= SIGMOID_TOPK ? log_sigmoid(v) : v;
    };
    #pragma unroll
    for (int k = 0; k < MOST; k++) if (k < K) {
        e[k] = key_expert((unsigned)best[k]);
        high = fmaxf(high, w[k] = value(e[k]));
    }
    if (!SUMS_TO_ONE(scores)) high = scores == SOFTMAX_TOPK ? l : 0;
    #pragma unroll
    for (int k = 0; k < MOST; k++) if (k < K) kept += w[k] = expf(w[k] - high);
    if (!SUMS_TO_ONE(scores)) kept = 1;

    cp_async_wait<0>();
    __syncwarp();                                           // nothing arrives in the chunks any more
    int  *const e_of = (int *)chunks[threadIdx.y][0][0];     // through shared memory, or lanes would write K apart
    real *const w_of = (real *)(e_of + 32 * MOST);
    static_assert(64 * MOST * sizeof(int) <= sizeof chunks[0], "choices fit where the chunks were");
    #pragma unroll
    for (int k = 0; k < MOST; k++) if (k < K) { e_of[lane * K + k] = e[k]; w_of[lane * K + k] = w[k] / kept; }
    __syncwarp();
    for (int i = lane; i < tokens * K; i += 32) {
        expert[first * K + i] = e_of[i];
        weight[first * K + i] = w_of[i];
    }
    if (lane < tokens) lse[first + lane] = l;
}

static void router_forward(int *expert, real *weight, real *lse, const floatX *logits, const real *bias,
        Scores scores, int forced, int N, int E, int K) {
    enum { MANY = 2048 };                                   // tokens: enough to keep the GPU busy, 32 to a warp
    const bool packed = sizeof(floatX) == 2 && !bias, scored = !bias || (sizeof(floatX) == 2 && scores != SOFTMAX_TOPK);
    if (N >= MANY && !forced && K <= 16 && E <= 0xffff && wide(E, logits) && scored) {
        auto kernel = packed ? K <= 8 ? router_many_kernel<unsigned, 8> : router_many_kernel<unsigned, 16>
                             : K <= 8 ? router_many_kernel<uint64_t, 8> : router_many_kernel<uint64_t, 16>;
        LAUNCH(kernel, divide_up(N, 32 * FEW_WARPS), dim3(32, FEW_WARPS), 0, expert, weight, lse, logits, bias, scores,
               N, E, K);
        return;
    }
    const unsigned warps = warps_for(E);
    LAUNCH(router_forward_kernel, divide_up(N, warps), dim3(32, warps), warps * E * sizeof(unsigned),
            expert, weight, lse, logits, bias, scores, forced, N, E, K);
}

// A row of threads per token: the gradients of balance and z loss for all experts, then those of the weights on top
// for the chosen ones, a lane each: they are different experts. balance and zloss come with their constant
// factors. Rows past the last token do its work again and store nothing. Moves 2*N*E floatX.
static __global__ void router_backward_kernel(floatX *dlogits, const real *dweight, const real *weight,
        const real *lse, const int *expert, const int *first, const floatX *logits, const int *load_of, real balance,
        real zloss, Scores scores, int N, int E, int K) {
    extern __shared__ real shared_p[];                      // (rows,pitch)
    const size_t own = (size_t)blockIdx.x * blockDim.y + threadIdx.y, n = own < N ? own : N - 1;
    const int lane = threadIdx.x;
    real *p = shared_p + threadIdx.y * pitch(E);
    const floatX *x = logits + n*E;
    const size_t slot = first ? first[n] : n*K;
    const int *chosen = expert + slot, count = first ? first[n + 1] - (int)slot : K;
    const real *w = weight + slot, *dw = dweight + slot, l = lse[n];
    real pull = 0, dot = 0;

    probabilities(p, x, l, scores, E);
    for (int e = lane; e < E; e += blockDim.x) pull += p[e] * (real)load_of[e];
    for (int k = lane; k < count; k += blockDim.x) dot += w[k] * dw[k];
    pull = row_sum(pull);
    dot = scores == SIGMOID_EACH ? 0 : row_sum(dot);
    for (int e = lane; e < E; e += blockDim.x) {            // from here on p[e] is the gradient
        const bool sigmoids = scores >= SIGMOID_TOPK;
        const real slope = sigmoids ? p[e] * sigmoid(-R(x[e])) : p[e], softmax = sigmoids ? expf(R(x[e]) - l) : p[e];
        real d = balance * ((real)load_of[e] - pull) * slope + zloss * l * softmax;
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
static void router_backward(floatX *dlogits, const real *dweight, const real *weight, const real *lse,
        const int *expert, const int *first, const floatX *logits, const int *load, float balance, float zloss,
        int tokens, Scores scores, int N, int E, int K) {
    const dim3 block = token_rows(E);
    LAUNCH(router_backward_kernel, divide_up(N, block.y), block, block.y * pitch(E) * sizeof(real), dlogits, dweight,
            weight, lse, expert, first, logits, load, balance * E / ((real)K * N * tokens), zloss * 2 / N,
            scores, N, E, K);
}

// ---- plan: slots sorted by expert -------------------------------------------------------------------------

static void route_plan(Plan *plan, int *load, const int *expert) {
    const int S = plan->S;
    const Sorted to = { plan->slot_of_row, plan->row_of_slot, plan->token_of_row, plan->K, plan->start, load };
    DEVICE(sort)(to, expert, NULL, S, plan->E, 0, (int *)workspace(DEVICE(sort_scratch)(S, plan->E) * sizeof(int)));
}

// ---- losses and bias --------------------------------------------------------------------------------------

// A row of threads takes every so-many-th token; what a token adds is a float, the sums are doubles. partial
// (2,blocks).
static __global__ void router_losses_kernel(double *partial, const floatX *logits, const real *lse,
        const int *load_of, Scores scores, int N, int E) {
    extern __shared__ real shared_p[];                      // (rows,pitch)
    __shared__ double of_row[2][32];
    real *p = shared_p + threadIdx.y * pitch(E);
    double balance = 0, z = 0;
    for (size_t from = (size_t)blockIdx.x * blockDim.y; from < N; from += (size_t)gridDim.x * blockDim.y) {
        const size_t own = from + threadIdx.y, n = own < N ? own : N - 1;
        real inner = 0;
        probabilities(p, logits + n*E, lse[n], scores, E);
        for (int e = threadIdx.x; e < E; e += blockDim.x) inner += p[e] * (real)load_of[e];
        inner = row_sum(inner);
        if (own == n) { balance += inner; z += (double)lse[n] * (double)lse[n]; }
    }
    if (threadIdx.x == 0) { of_row[0][threadIdx.y] = balance; of_row[1][threadIdx.y] = z; }
    __syncthreads();
    if (threadIdx.x >= 2 || threadIdx.y) return;
    double sum = 0;
    for (int y = 0; y < blockDim.y; y++) sum += of_row[threadIdx.x][y];
    partial[threadIdx.x * gridDim.x + blockIdx.x] = sum;
}
static __global__ void router_losses_finish_kernel(real *loss, const double *partial, int blocks,
        double balance_scale, double z_scale) {
    double balance = 0, z = 0;
    for (int b = threadIdx.x; b < blocks; b += 32) { balance += partial[b]; z += partial[blocks + b]; }
    balance = warp_sum(balance);
    z = warp_sum(z);
    if (threadIdx.x == 0) { loss[0] = (real)(balance * balance_scale); loss[1] = (real)(z * z_scale); }
}
static void router_losses(real *loss, const floatX *logits, const real *lse, const int *load, int tokens,
        Scores scores, int N, int E, int K) {
    const dim3 block = token_rows(E);
    const size_t groups = divide_up(N, block.y), blocks = groups < 512 ? groups : 512;
    double *const partial = (double *)workspace(2 * (blocks + 1) * sizeof(double));
    LAUNCH(router_losses_kernel, blocks, block, block.y * pitch(E) * sizeof(real), partial, logits, lse, load, scores, N, E);
    LAUNCH(router_losses_finish_kernel, 1, 32, 0, loss, partial, (int)blocks,
            N ? E / ((double)K * N * tokens) : 0, N ? 1.0 / N : 0);
}

// One block. load < mean is load * E < sum, in whole numbers: there is nothing to round.
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
// NULL: the rows are in the order of slots. first: the plan's. Moves (K+1)*N*C elements.
template<int W> static __global__ void combine_kernel(floatX *out, const floatX *inp, const real *weight,
        const floatX *bias, const int *row_of_slot, const int *first, int N, int K, int C) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    const size_t slot = first ? first[n] : n*K;
    if (first) K = first[n + 1] - (int)slot;
    for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) {
        real sum[W] = {};
        if (bias) {
            const Pack<W> b = load<W>(bias + c);
            for (int i = 0; i < W; i++) sum[i] = R(b.x[i]);
        }
        int k = 0;
        for (; k + 4 <= K; k += 4) add_rows<W, 4>(sum, inp + c, weight, row_of_slot, slot + k, C);
        if (k + 2 <= K)          { add_rows<W, 2>(sum, inp + c, weight, row_of_slot, slot + k, C); k += 2; }
        if (k < K)                 add_rows<W, 1>(sum, inp + c, weight, row_of_slot, slot + k, C);
        Pack<W> to;
        for (int i = 0; i < W; i++) to.x[i] = X(sum[i]);
        store(out + n*C + c, to);
    }
}
static void combine_forward(floatX *out, const floatX *inp, const real *weight, const floatX *bias,
        const Plan *plan, int C, Rows rows) {
    const bool w = wide(C, out, inp, bias);
    const dim3 block = rectangle(w ? C / VECTOR : C);
    auto kernel = w ? combine_kernel<VECTOR> : combine_kernel<1>;
    LAUNCH(kernel, divide_up(plan->N, block.y), block, 0, out, inp, weight, bias,
            rows == GROUPED ? plan->row_of_slot : NULL, plan->first, plan->N, plan->K, C);
}

PART(route) {
    d->router_forward = router_forward;  d->router_backward = router_backward;
    d->route_plan = route_plan;          d->router_losses = router_losses;
    d->router_bias = router_bias;        d->combine_forward = combine_forward;
}
