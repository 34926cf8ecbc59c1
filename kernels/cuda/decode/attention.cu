// decode/attention.cu: attention of one new token per sequence to the keys and values in its cache.
// There is one query per head, so the time goes into reading the cache. A long context is split
// over blocks; a split's result is a Partial; these are merged in order: reproducible.
//
//   decode_split_kernel    any heads, on any GPU. Partials go through memory; of each result's
//                          blocks the last to end merges them.
//   decode_cluster_kernel  heads of 64 or 128 elements, sm_90. The splits of a result are a
//                          cluster, and partials meet in the shared memory of its first block. The
//                          first keys and values of all warps are requested before the kernel
//                          before has ended: where they are is known long before.
//
// For decode_attention both prepare the new rows, every block its queries for itself: biases,
// norms, rotation, keys of the token before (NewHeads); and store the newest key and value.
// attention_cached finds that done.
//
// Timeline of a block; W: wait_for_previous returns, T: let_next_start (decode/layer.cu):
//
//   split     W T | position | newest rows, prefetch of first keys | rotate | all keys
//             | merge warps | last block: merge splits
//   cluster   position | first keys and values | W T | newest rows | rotate | all keys
//             | merge warps | first block: merge splits
//
// Shared memory of a block, WARPS and HEADS as in its kernel:
//
//   split    queries (HEADS,D) | tops, sums (HEADS,WARPS) | results (HEADS,WARPS,32*VECTOR)
//   cluster  queries, newest key, newest value (HEADS+2,D) | tops, sums (WARPS,HEADS)
//            | results (WARPS,HEADS,D)
//            | first block only: splits' tops, sums (CLUSTER,HEADS), results (CLUSTER,HEADS,D)
#include "kernels/cuda/ptx.cuh"

struct Shape {
    HeadOrder order;
    int T, G, Q, D, window;
    // Query head j (at most the last) of key head g, among those of a token.
    __device__ int head(int g, int j) const {
        const int m = min(j, Q - 1);
        return order == HEADS_TILED ? m*G + g : g*Q + m;
    }
};
// The first key that the newest of `seen` tokens sees.
__device__ static inline int first_seen(const Shape &h, int seen) { return h.window ? max(seen - h.window, 0) : 0; }
// Keys that a token can see at most.
static inline int most_seen(int T, int window) { return window && window < T ? window : T; }
// table NULL: attention_cached, only queries
struct Newest { const real *table; const floatX *kv; const int *row; NewHeads heads; };

enum {
    BATCH = 4,                              // keys that a lane has in flight
    SPLIT_WARPS = 4, SPLIT_THREADS = 32 * SPLIT_WARPS,
    CLUSTER = 8, CLUSTER_THREADS = 256      // blocks, threads of each
};

// ---- softmax in parts ---------------------------------------------------------------------------

static const float LOWEST = -1e30f;                                 // a first maximum: the difference of two is not NaN

__device__ static inline float power_of_2(float x) { return sizeof(floatX) == 2 ? exp2_fast(x) : exp2f(x); }

// Over some keys: largest score (base 2); sums of 2^(score - top), and of that times a value.
struct Partial { float top, sum, x; };

// The first `count` partials merged, in order. at(i): the i-th. MAX: the most there can be, or 0.
template <int MAX, class At> __device__ static inline Partial merged(int count, At at) {
    Partial all = { LOWEST, 0, 0 };
    #pragma unroll (MAX ? MAX : 4)
    for (int i = 0; i < (MAX ? MAX : count); i++) if (!MAX || i < count) all.top = fmaxf(all.top, at(i).top);
    #pragma unroll (MAX ? MAX : 4)
    for (int i = 0; i < (MAX ? MAX : count); i++)
        if (!MAX || i < count) {
            const Partial p = at(i);
            const float factor = power_of_2(p.top - all.top);
            all.sum += p.sum * factor;
            all.x += p.x * factor;
        }
    return all;
}

// What a head's sink, if there is one, adds to the sum of weights whose top this is.
__device__ static inline float weight_of_sink(const floatX *sink, int head, float top) {
    return sink ? power_of_2(LOG2E * R(sink[head]) - top) : 0;
}

// A lane's running softmax over the keys so far, for a group of query heads and VECTOR columns.
template <int HEADS> struct Softmax {
    float top[HEADS], sum[HEADS] = {}, result[HEADS][VECTOR] = {};

    __device__ Softmax(void) { for (int m = 0; m < HEADS; m++) top[m] = LOWEST; }
    __device__ void raise(int m, float max) {
        const float shrink = power_of_2(top[m] - max);
        top[m] = max;
        sum[m] *= shrink;
        for (int e = 0; e < VECTOR; e++) result[m][e] *= shrink;
    }
    // The scores s of a batch, at most max.
    __device__ void add(int m, const float (&s)[BATCH], float max, const Vec (&value)[BATCH]) {
        raise(m, max);
        #pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float p = power_of_2(s[i] - max);
            sum[m] += p;
            for (int e = 0; e < VECTOR; e++) result[m][e] += p * element(value[i], e);
        }
    }
};

// ---- new rows -----------------------------------------------------------------------------------

// A token's new row (D), a query head, key or value, and what it gets (NULL: nothing).
struct NewRow { const floatX *x, *bias, *added, *norm; };
enum NewKind { QUERY, KEY, VALUE };
// head: of the query heads of a token, or g.
__device__ static inline NewRow new_row(const floatX *q, const Newest &newest, const Shape &h, int b,
                                        NewKind kind, int head) {
    const NewHeads &n = newest.heads;
    const size_t at = (size_t)head * h.D, keys = (size_t)h.G * h.D, in_kv = at + (kind == VALUE ? keys : 0);
    if (kind == QUERY) {
        const floatX *w = n.query_norm.weight;
        return { q + (size_t)b * h.Q * keys + at, n.query_bias ? n.query_bias + at : NULL, NULL,
                 w && n.joint ? w + at : w };
    }
    const floatX *w = kind == KEY ? n.key_norm.weight : NULL, *more = kind == VALUE ? n.value_embed : NULL;
    return { newest.kv + b * 2 * keys + in_kv, n.kv_bias ? n.kv_bias + in_kv : NULL,
             more ? more + (size_t)n.token[b] * keys + at : NULL, w && n.joint ? w + at : w };
}
// Elements d and d + D/2 of a row (D), or `none` if there is no row.
__device__ static inline float2 pair_of(const floatX *row, int d, int half, real none) {
    return row ? make_float2(R(row[d]), R(row[d + half])) : make_float2(none, none);
}
// An element with its bias, its addend, and as rmsnorm_forward.
__device__ static inline floatX prepared(floatX x, real bias, real added, real rstd, real norm) {
    return X(R(X(R(X(R(X(R(x) + bias)) + added)) * rstd)) * norm);
}
// The sum of the squares of elements first, first + step, ... of x (count) with its bias.
__device__ static inline real squares(const floatX *x, const floatX *bias, int first, int step, int count) {
    real sum = 0;
    #pragma unroll 8
    for (int i = first; i < count; i += step) {
        const real v = R(X(R(x[i]) + (bias ? R(bias[i]) : 0)));
        sum += v * v;
    }
    return sum;
}
// rstd[m] of query head(m), m < HEADS, and rstd[HEADS] of key g, if normalized. By WARPS warps.
template <int WARPS, int HEADS, class Head> __device__ static inline void
find_rstd(real *rstd, const floatX *q, const Newest &newest, const Shape &h, int b, int g, Head head) {
    const NewHeads &n = newest.heads;
    const int keys = h.G * h.D, queries = h.Q * keys, warp = threadIdx.x / 32;
    if (n.joint) {
        const real of_q = block_sum<WARPS>(squares(q + (size_t)b * queries, n.query_bias, threadIdx.x,
                                                   32 * WARPS, queries));
        const real of_k = block_sum<WARPS>(squares(newest.kv + (size_t)b * 2 * keys, n.kv_bias, threadIdx.x,
                                                   32 * WARPS, keys));
        if (threadIdx.x <= HEADS)
            rstd[threadIdx.x] = 1
                / sqrtf(threadIdx.x < HEADS ? of_q / queries + n.query_norm.eps : of_k / keys + n.key_norm.eps);
    } else
        #pragma unroll 1
        for (int m = warp; m <= HEADS; m += WARPS) {
            const NewRow r = new_row(q, newest, h, b, m < HEADS ? QUERY : KEY, m < HEADS ? head(m) : g);
            const real sum = warp_sum(squares(r.x, r.bias, threadIdx.x % 32, 32, h.D));
            if (threadIdx.x % 32 == 0) rstd[m] = 1 / sqrtf(sum / h.D + (m < HEADS ? n.query_norm.eps : n.key_norm.eps));
        }
    __syncthreads();
}

// A pair of elements rotated as by rope.
__device__ static inline void rotate_pair(floatX &low, floatX &high, real cosine, real sine) {
    const real re = R(low), im = R(high);
    low  = X(re * cosine - im * sine);
    high = X(im * cosine + re * sine);
}

// Elements d and d + D/2 of a key that shift_keys replaces: where those of the token before are as
// they were; the next row is for those of this token. NULL: they stay.
__device__ static inline floatX *own_pair(const Newest &newest, const Shape &h, NewKind kind, int b, int g, int d) {
    floatX *const own = newest.heads.own_keys;
    return own && kind == KEY && d >= h.D / 4 ? own + ((size_t)newest.row[b] * h.G + g) * h.D + d : NULL;
}

// ---- any heads: splits merged through memory ----------------------------------------------------

// A key is read by `lanes` lanes of a warp, 16 bytes each. A block computes `width` of the result's
// columns for a group of HEADS of the Q query heads, from one of `splits` parts of the keys.
struct Tiling { int lanes, width, columns, groups, splits; };       // columns: blocks that have the columns of a head

// What a block works on; columns run fastest. head0, column: the first ones.
template <int HEADS> struct SplitBlock {
    Shape h;
    Tiling t;
    int column, head0, split, pair, b, g;
    int mine, at_once, key0;        // this lane's first element of a key; keys that a warp reads at once, and its own

    __device__ SplitBlock(Shape shape, Tiling tiling) : h(shape), t(tiling) {
        column = blockIdx.x % t.columns * t.width, head0 = blockIdx.x / t.columns % t.groups * HEADS;
        const int rest = blockIdx.x / t.columns / t.groups;
        split = rest % t.splits, pair = rest / t.splits;
        b = pair / h.G, g = pair % h.G;
        mine = threadIdx.x % 32 % t.lanes * VECTOR, at_once = 32 / t.lanes, key0 = threadIdx.x % 32 / t.lanes;
    }
    // Query head m (at most the last) of the group, among those of a token and of all sequences.
    __device__ int head_of_token(int m) const { return h.head(g, head0 + m); }
    __device__ int head(int m) const { return b*h.Q*h.G + head_of_token(m); }
    __device__ int64_t pitch(void) const { return (int64_t)2*h.G*h.D; }            // from key to key
    __device__ int64_t values(void) const { return (int64_t)h.G*h.D; }             // from a key to its value
    __device__ int key(int from, int i) const { return from + i*at_once + key0; }  // this lane's i-th of a batch
};

// Elements past the count-th are 0. WIDE: rows are multiples of 16 bytes at multiples of 16 bytes.
template <bool WIDE> __device__ static inline Vec load_some(const floatX *p, int count) {
    if (WIDE && count > 0) return load_vec(p);
    Vec v;
    for (int e = 0; e < VECTOR; e++) v.x[e] = e < count ? p[e] : X(0);
    return v;
}

// The queries, prepared and rotated if there is a table, to shared memory (HEADS,D); the newest key
// and value to the cache, if this block has the last keys. A pair is D/2 elements apart.
template <int HEADS, bool WIDE> __device__ static inline void
store_new_rows(floatX *queries, floatX *cache, const SplitBlock<HEADS> &at, const floatX *q, const Newest &newest,
               int position, bool has_newest) {
    __shared__ real rstd[HEADS + 1];
    const int D = at.h.D, half = D / 2, rows = HEADS + (newest.table ? 2 : 0);
    const bool norms = newest.heads.query_norm.weight;
    if (norms)
        find_rstd<SPLIT_WARPS, HEADS>(rstd, q, newest, at.h, at.b, at.g, [&](int m) { return at.head_of_token(m); });
    #pragma unroll 1
    for (int i = threadIdx.x; i < rows * half; i += SPLIT_THREADS) {
        const int m = i / half, d = i % half;
        const NewKind kind = m < HEADS ? QUERY : m == HEADS ? KEY : VALUE;
        const NewRow r = new_row(q, newest, at.h, at.b, kind, kind == QUERY ? at.head_of_token(m) : at.g);
        const float2 bias = pair_of(r.bias, d, half, 0), added = pair_of(r.added, d, half, 0),
            norm = pair_of(r.norm, d, half, 1);
        const real scale = norms && kind != VALUE ? rstd[m] : 1;
        floatX low = prepared(r.x[d], bias.x, added.x, scale, norm.x),
            high = prepared(r.x[d + half], bias.y, added.y, scale, norm.y);
        if (newest.table && kind != VALUE) {
            const real *rotation = newest.table + (size_t)position * D + 2*d;
            rotate_pair(low, high, rotation[0], rotation[1]);
        }
        if (kind != QUERY && !has_newest) continue;
        floatX *to = kind == QUERY ? queries + m*D
                                   : cache + newest.row[at.b]*at.pitch() + at.g*D + (kind == KEY ? 0 : at.values());
        if constexpr (WIDE)
            if (floatX *const own = own_pair(newest, at.h, kind, at.b, at.g, d)) {
                own[at.values()] = low;
                own[at.values() + half] = high;
                if (position) low = own[0], high = own[half];
            }
        to[d] = low;
        to[half + d] = high;
    }
    if (D % 2 && threadIdx.x < HEADS)                                   // the element without a pair
        queries[threadIdx.x*D + D - 1] = q[(size_t)at.head(threadIdx.x) * D + D - 1];
}

// Keys begin .. end-1, BATCH * 32/lanes at a time, 2*BATCH reads in flight; a softmax per group.
template <int HEADS, bool WIDE> __device__ static inline void
attend(Softmax<HEADS> &softmax, const SplitBlock<HEADS> &at, const floatX *queries, const floatX *keys,
       int begin, int end) {
    const int D = at.h.D, mine = at.mine, warp = threadIdx.x / 32;
    const float c = LOG2E / sqrtf((float)D);
    #pragma unroll 1
    for (int j0 = begin + warp*BATCH*at.at_once; j0 < end; j0 += SPLIT_WARPS*BATCH*at.at_once) {
        const floatX *key[BATCH];
        Vec value[BATCH];
        float s[HEADS][BATCH] = {};
        #pragma unroll
        for (int i = 0; i < BATCH; i++) {
            key[i] = keys + min(at.key(j0, i), end - 1) * at.pitch();
            value[i] = load_some<WIDE>(key[i] + at.values() + at.column + mine, D - at.column - mine);
        }
        #pragma unroll 1
        for (int d = mine; d < D; d += at.t.width) {
            Vec k[BATCH], x[HEADS];
            #pragma unroll
            for (int i = 0; i < BATCH; i++) k[i] = load_some<WIDE>(key[i] + d, D - d);
            #pragma unroll
            for (int m = 0; m < HEADS; m++) x[m] = load_some<WIDE>(queries + m*D + d, D - d);
            #pragma unroll
            for (int i = 0; i < BATCH; i++)
                #pragma unroll
                for (int m = 0; m < HEADS; m++) for (int e = 0; e < VECTOR; e++) s[m][i] += R(x[m].x[e]) * R(k[i].x[e]);
        }
        #pragma unroll 1
        for (int step = at.t.lanes / 2; step; step /= 2)
            #pragma unroll
            for (int m = 0; m < HEADS; m++)
                #pragma unroll
                for (int i = 0; i < BATCH; i++) s[m][i] += __shfl_xor_sync(ALL, s[m][i], step);
        #pragma unroll
        for (int m = 0; m < HEADS; m++) {
            float max = softmax.top[m];
            #pragma unroll
            for (int i = 0; i < BATCH; i++) {
                s[m][i] = at.key(j0, i) < end ? s[m][i] * c : -INFINITY;
                max = fmaxf(max, s[m][i]);
            }
            softmax.add(m, s[m], max, value);
        }
    }
}
// The groups of lanes of a warp, in pairs.
template <int HEADS> __device__ static inline void merge_lanes(Softmax<HEADS> &softmax, int lanes) {
    #pragma unroll 1
    for (int step = lanes; step < 32; step *= 2)
        #pragma unroll
        for (int m = 0; m < HEADS; m++) {
            softmax.raise(m, fmaxf(softmax.top[m], __shfl_xor_sync(ALL, softmax.top[m], step)));
            softmax.sum[m] += __shfl_xor_sync(ALL, softmax.sum[m], step);
            for (int e = 0; e < VECTOR; e++) softmax.result[m][e] += __shfl_xor_sync(ALL, softmax.result[m][e], step);
        }
}
// A block's warps, to out, or of several splits to partials (B*G*Q,splits,2+D): top, sum, D sums.
template <int HEADS> __device__ static inline void
merge_warps(floatX *out, float *partials, const Softmax<HEADS> &softmax, const SplitBlock<HEADS> &at,
            const floatX *sink) {
    __shared__ alignas(16) float tops[HEADS][SPLIT_WARPS], sums[HEADS][SPLIT_WARPS],
        results[HEADS][SPLIT_WARPS][32*VECTOR];
    const int D = at.h.D, splits = at.t.splits, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    #pragma unroll
    for (int m = 0; m < HEADS; m++) {
        if (lane == 0) { tops[m][warp] = softmax.top[m]; sums[m][warp] = softmax.sum[m]; }
        if (lane < at.t.lanes) for (int e = 0; e < VECTOR; e++) results[m][warp][at.mine + e] = softmax.result[m][e];
    }
    __syncthreads();
    #pragma unroll 1
    for (int i = threadIdx.x; i < HEADS * at.t.width; i += SPLIT_THREADS) {
        const int m = i / at.t.width, d = i % at.t.width, j = at.head0 + m;
        const Partial all = merged<SPLIT_WARPS>(SPLIT_WARPS, [&](int w) {
            return Partial{ tops[m][w], sums[m][w], results[m][w][d] };
        });
        if (j >= at.h.Q || at.column + d >= D) continue;
        float *to = partials + (((size_t)at.pair*at.h.Q + j) * splits + at.split) * (D + 2);
        if (splits == 1) out[(size_t)at.head(m) * D + at.column + d] =
            X(all.x / (all.sum + weight_of_sink(sink, at.head_of_token(m), all.top)));
        else to[2 + at.column + d] = all.x;
        if (splits > 1 && at.column + d == 0) { to[0] = all.top; to[1] = all.sum; }
    }
}
// The splits of a group of heads.
template <int HEADS> __device__ static inline void
merge_splits(floatX *out, const float *partials, const SplitBlock<HEADS> &at, const floatX *sink) {
    const int D = at.h.D, splits = at.t.splits;
    #pragma unroll 1
    for (int i = threadIdx.x; i < min(HEADS, at.h.Q - at.head0) * D; i += SPLIT_THREADS) {
        const int m = i / D, d = i % D;
        const float *from = partials + ((size_t)at.pair*at.h.Q + at.head0 + m) * splits * (D + 2);
        const Partial all = merged<0>(splits, [&](int s) {
            const float *p = from + (size_t)s*(D + 2);
            return Partial{ p[0], p[1], p[2 + d] };
        });
        out[(size_t)at.head(m) * D + d] = X(all.x / (all.sum + weight_of_sink(sink, at.head_of_token(m), all.top)));
    }
}

enum { COUNTERS = 4096 };
static __device__ unsigned arrivals[COUNTERS];              // of each group of heads: blocks done; 0 between kernels

// Keys and values are read once for HEADS query heads. Moves 2*D elements per key.
template <int HEADS, bool WIDE> __global__ static void __launch_bounds__(SPLIT_THREADS)
decode_split_kernel(floatX *out, float *partials, const floatX *q, floatX *cache, const int *position, Newest newest,
                    Shape h, Tiling t, const floatX *sink) {
    extern __shared__ __align__(16) unsigned char shared[];
    floatX *const queries = (floatX *)shared;                           // (HEADS,D)
    const SplitBlock<HEADS> at(h, t);
    const floatX *const keys = cache + (int64_t)at.b*h.T*at.pitch() + at.g*h.D;
    const int warp = threadIdx.x / 32;

    wait_for_previous();
    let_next_start();                                               // not earlier: decode_out reads the expert choice
    const int newest_at = position[at.b];
    const int from = first_seen(h, newest_at + 1), count = newest_at + 1 - from, each = count / t.splits,
        more = count % t.splits;
    const int begin = from + at.split * each + min(at.split, more), end = begin + each + (at.split < more);
    if (begin < end)
        for (int i = 0; i < BATCH; i++) {
            const floatX *key = keys + min(at.key(begin + warp*BATCH*at.at_once, i), end - 1) * at.pitch();
            prefetch_line(key + min(at.mine, h.D - 1));
            prefetch_line(key + at.values() + min(at.column + at.mine, h.D - 1));
        }
    store_new_rows<HEADS, WIDE>(queries, cache, at, q, newest, newest_at, begin < end && end > newest_at);
    __syncthreads();

    Softmax<HEADS> softmax;
    attend<HEADS, WIDE>(softmax, at, queries, keys, begin, end);
    merge_lanes(softmax, t.lanes);
    merge_warps(out, partials, softmax, at, sink);
    if (t.splits > 1 && last_block(&arrivals[at.pair*t.groups + at.head0/HEADS], (unsigned)(t.columns*t.splits)))
        merge_splits(out, partials, at, sink);
}

// ---- heads of 64 or 128: splits merged in a cluster ---------------------------------------------

// LANES lanes of a warp read a key.
template <int HEADS, int D> struct ClusterShared {
    enum { WARPS = CLUSTER_THREADS / 32, LANES = D / VECTOR, AT_ONCE = 32 / LANES };
    alignas(16) floatX rows[HEADS + 2][D];                              // queries, the newest key, the newest value
    real rstd[HEADS + 1];
    float tops[WARPS][HEADS], sums[WARPS][HEADS], results[WARPS][HEADS][D];
    // in the first block
    float split_tops[CLUSTER][HEADS], split_sums[CLUSTER][HEADS], split_results[CLUSTER][HEADS][D];
};

// A split's keys up to end - 1, as a lane reads them: from: its elements of the sequence's first.
template <int D> struct Keys {
    const floatX *from;
    int pitch, end;
    __device__ int key(int j0, int i) const { return j0 + i * (32 * VECTOR / D) + threadIdx.x % 32 / (D / VECTOR); }
    __device__ int row(int j0, int i) const { return min(key(j0, i), end - 1); }
    __device__ void load(Vec (&key)[BATCH], Vec (&value)[BATCH], int j0) const {
        #pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const floatX *at = from + (int64_t)row(j0, i) * pitch;
            key[i] = load_vec(at);
            value[i] = load_vec(at + pitch / 2);
        }
    }
};

// All keys from j0 on, whose first batch is already requested. A warp has one maximum. The newest
// key and value are read from shared memory: the cache may not have them yet.
template <int HEADS, int D> __device__ static inline void
attend(Softmax<HEADS> &softmax, const ClusterShared<HEADS, D> &s, const Keys<D> &keys, Vec (&key)[BATCH],
       Vec (&value)[BATCH], int j0, int newest) {
    typedef ClusterShared<HEADS, D> S;
    const int mine = threadIdx.x % S::LANES * VECTOR;
    const float c = LOG2E / sqrtf((float)D);
    float x[HEADS][VECTOR];
    #pragma unroll
    for (int m = 0; m < HEADS; m++) {
        const Vec v = load_vec(&s.rows[m][mine]);
        for (int e = 0; e < VECTOR; e++) x[m][e] = element(v, e) * c;
    }
    #pragma unroll 1
    while (j0 < keys.end) {
        float score[HEADS][BATCH] = {};
        #pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (keys.row(j0, i) == newest) {
                key[i] = load_vec(&s.rows[HEADS][mine]);
                value[i] = load_vec(&s.rows[HEADS + 1][mine]);
            }
            #pragma unroll
            for (int e = 0; e < VECTOR; e++)
                for (int m = 0; m < HEADS; m++) score[m][i] += x[m][e] * element(key[i], e);
        }
        #pragma unroll
        for (int m = 0; m < HEADS; m++) {
            float max = softmax.top[m];
            #pragma unroll
            for (int i = 0; i < BATCH; i++) {
                #pragma unroll
                for (int step = S::LANES / 2; step; step /= 2) score[m][i] += __shfl_xor_sync(ALL, score[m][i], step);
                if (keys.key(j0, i) >= keys.end) score[m][i] = -INFINITY;
                max = fmaxf(max, score[m][i]);
            }
            #pragma unroll
            for (int step = S::LANES; step < 32; step *= 2) max = fmaxf(max, __shfl_xor_sync(ALL, max, step));
            softmax.add(m, score[m], max, value);
        }
        if ((j0 += S::WARPS * BATCH * S::AT_ONCE) < keys.end) keys.load(key, value, j0);
    }
}
// The lanes of a warp, to the block's shared memory.
template <int HEADS, int D> __device__ static inline void
merge_lanes(ClusterShared<HEADS, D> &s, Softmax<HEADS> &softmax) {
    enum { LANES = ClusterShared<HEADS, D>::LANES };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = lane % LANES * VECTOR;
    #pragma unroll
    for (int m = 0; m < HEADS; m++) {
        #pragma unroll
        for (int step = LANES; step < 32; step *= 2) {
            softmax.sum[m] += __shfl_xor_sync(ALL, softmax.sum[m], step);
            for (int e = 0; e < VECTOR; e++) softmax.result[m][e] += __shfl_xor_sync(ALL, softmax.result[m][e], step);
        }
        if (lane == 0) { s.tops[warp][m] = softmax.top[m]; s.sums[warp][m] = softmax.sum[m]; }
        if (lane < LANES) for (int e = 0; e < VECTOR; e++) s.results[warp][m][mine + e] = softmax.result[m][e];
    }
}
// Merges each block's warps and, in the first block, the splits: returns an element of head j of
// the block's, which is `head` of the token's.
template <int HEADS, int D> __device__ static inline float
merge_cluster(ClusterShared<HEADS, D> &s, int j, int d, int split, int splits, const floatX *sink, int head) {
    cluster_wait();                                             // all blocks have started: their shared memory is there
    if (j < HEADS) {
        enum { WARPS = ClusterShared<HEADS, D>::WARPS };
        const Partial mine = merged<WARPS>(WARPS, [&](int w) { return Partial{ s.tops[w][j], s.sums[w][j],
                                                                               s.results[w][j][d] }; });
        *of_block(&s.split_results[split][j][d], 0) = mine.x;
        if (d == 0) {
            *of_block(&s.split_tops[split][j], 0) = mine.top;
            *of_block(&s.split_sums[split][j], 0) = mine.sum;
        }
    }
    cluster_arrive();
    cluster_wait();
    if (split || j >= HEADS) return 0;
    const Partial all = merged<CLUSTER>(splits, [&](int i) {
        return Partial{ s.split_tops[i][j], s.split_sums[i][j], s.split_results[i][j][d] };
    });
    return all.x / (all.sum + weight_of_sink(sink, head, all.top));
}

// Moves 2*D elements per key.
template <int HEADS, int D> static __global__ __launch_bounds__(CLUSTER_THREADS, 1)
void decode_cluster_kernel(floatX *out, const floatX *q, floatX *cache, const int *position, Newest newest, Shape h,
                           int groups) {
    enum { HALF = D / 2 };
    typedef ClusterShared<HEADS, D> S;
    __shared__ S s;
    const int split = blockIdx.x, splits = gridDim.x, g = blockIdx.y, b = blockIdx.z / groups;
    const int head0 = blockIdx.z % groups * HEADS, tid = threadIdx.x, pitch = 2 * h.G * D;
    auto head = [&](int m) { return h.head(g, head0 + m); };
    cluster_arrive();

    const int seen = position[b] + 1, from = first_seen(h, seen), each = (seen - from + splits - 1) / splits;
    const int begin = from + split * each, end = min(begin + each, seen), j0 = begin + tid / 32 * BATCH * S::AT_ONCE;
    const Keys<D> keys = { cache + (int64_t)b * h.T * pitch + g * D + tid % S::LANES * VECTOR, pitch, end };
    Vec key[BATCH], value[BATCH];
    if (j0 < end) keys.load(key, value, j0);

    // A thread has a pair of elements of queries, newest key, or newest value (left as it is).
    const int m = tid / HALF, d = tid % HALF;
    const NewKind kind = m < HEADS ? QUERY : m == HEADS ? KEY : VALUE;
    const NewRow r = new_row(q, newest, h, b, kind, kind == QUERY ? head(m) : g);
    const float2 bias = pair_of(r.bias, d, HALF, 0), added = pair_of(r.added, d, HALF, 0),
        norm = pair_of(r.norm, d, HALF, 1);
    const bool norms = newest.heads.query_norm.weight;
    const float2 rotation = kind == VALUE ? make_float2(1, 0)
                                          : *(const float2 *)(newest.table + (size_t)(seen - 1) * D + 2*d);
    const int64_t row = newest.row[b];
    floatX *const own = own_pair(newest, h, kind, b, g, d);
    const floatX low_before = own && seen > 1 ? own[0] : X(0), high_before = own && seen > 1 ? own[HALF] : X(0);
    wait_for_previous();
    let_next_start();                                               // not earlier: decode_out reads the expert choice
    floatX low = r.x[d], high = r.x[HALF + d];
    if (norms) find_rstd<S::WARPS, HEADS>(s.rstd, q, newest, h, b, g, head);
    if (m < HEADS + 2) {
        const real scale = norms && kind != VALUE ? s.rstd[m] : 1;
        low = prepared(low, bias.x, added.x, scale, norm.x);
        high = prepared(high, bias.y, added.y, scale, norm.y);
        if (kind != VALUE) rotate_pair(low, high, rotation.x, rotation.y);
        if (own && split == 0) own[pitch / 2] = low, own[pitch / 2 + HALF] = high;
        if (own && seen > 1) low = low_before, high = high_before;
        s.rows[m][d] = low, s.rows[m][HALF + d] = high;
        if (kind != QUERY && split == 0) {
            floatX *const to = cache + row * pitch + g * D + (kind == KEY ? 0 : pitch / 2);
            to[d] = low;
            to[HALF + d] = high;
        }
    }
    __syncthreads();

    Softmax<HEADS> softmax;
    attend(softmax, s, keys, key, value, j0, seen - 1);
    merge_lanes(s, softmax);
    __syncthreads();
    const float x = merge_cluster(s, tid / D, tid % D, split, splits, newest.heads.sink, head(tid / D));
    if (split == 0 && tid / D < HEADS && head0 + tid / D < h.Q)
        out[(size_t)(b * h.Q * h.G + head(tid / D)) * D + tid % D] = X(x);
}

// ---- the table's functions ----------------------------------------------------------------------

// cache_store: a block is a rectangle of rows and units of W elements.
template <int W> __global__ static void cache_store_kernel(floatX *cache, const floatX *kv, const int *row, int N,
                                                           int width) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    floatX *to = cache + (size_t)row[n] * width;
    for (int i = threadIdx.x*W; i < width; i += blockDim.x*W) store(to + i, load<W>(kv + n*width + i));
}

// The number of splits depends on the sizes alone, so that every GPU adds in the same order.
static void decode_split(floatX *out, const floatX *q, floatX *cache, const floatX *sink, const int *position,
                         Newest newest, int window, HeadOrder order, int B, int T, int G, int Q, int D) {
    typedef void Kernel(floatX *, float *, const floatX *, floatX *, const int *, Newest, Shape, Tiling,
                        const floatX *);
    static Kernel *const wide_kernel[] = {
        decode_split_kernel<1, true>, decode_split_kernel<2, true>, decode_split_kernel<4, true>
    };
    enum { FILL = 1024, FEWEST = 128 };                             // blocks that keep a GPU busy; keys worth a block
    const Shape h = { order, T, G, Q, D, window };
    const bool is_wide = wide((size_t)D, cache);
    Tiling t = {};
    int power = 0;                                                      // HEADS = 1 << power
    while (is_wide && power < 2 && 1 << power < Q && D <= 1024) power++;
    #pragma unroll 1
    for (t.lanes = 1; t.lanes < 32 && t.lanes*VECTOR < D; ) t.lanes *= 2;
    t.width = t.lanes * VECTOR;
    t.columns = (int)divide_up((size_t)D, (size_t)t.width);
    t.groups = (int)divide_up((size_t)Q, (size_t)1 << power);
    const size_t blocks = (size_t)B*G * t.groups * t.columns, most = divide_up((size_t)most_seen(T, window), FEWEST);
    if (!blocks || !T) return;
    t.splits = (int)(blocks * most < FILL ? most : blocks < FILL ? FILL / blocks : 1);
    if ((size_t)B*G * t.groups > COUNTERS) t.splits = 1;
    float *partials = t.splits > 1 ? (float *)workspace((size_t)B*G*Q * t.splits * (D + 2) * sizeof *partials) : NULL;
    LAUNCH_EARLY((is_wide ? wide_kernel[power] : decode_split_kernel<1, false>), (unsigned)(blocks * t.splits),
                 SPLIT_THREADS, ((size_t)D << (is_wide ? power : 0)) * sizeof(floatX), out, partials, q, cache,
                 position, newest, h, t, sink);
}
static void attention_cached(floatX *out, const floatX *q, const floatX *cache, const floatX *sink, const int *position,
                             int window, HeadOrder order, int B, int T, int G, int Q, int D) {
    decode_split(out, q, (floatX *)cache, sink, position, {}, window, order, B, T, G, Q, D);
}
static void decode_attention(floatX *out, floatX *cache, const floatX *q, const floatX *kv, const NewHeads *new_heads,
                             const real *table, const int *position, const int *row, int window, HeadOrder order, int B,
                             int T, int G, int Q, int D) {
    const Newest newest = { table, kv, row, *new_heads };
    const int heads = Q > 1 ? 2 : 1, groups = (Q + heads - 1) / heads, most = most_seen(T, window),
        splits = (most + 127) / 128;
    if (B && context()->arch >= 90 && (D == 64 || D == 128) && wide((size_t)D, cache) && most <= 1024 * CLUSTER) {
        auto kernel = D == 64 ? Q > 1 ? decode_cluster_kernel<2, 64>  : decode_cluster_kernel<1, 64>
                              : Q > 1 ? decode_cluster_kernel<2, 128> : decode_cluster_kernel<1, 128>;
        const int cluster = splits < CLUSTER ? splits : CLUSTER;
        LAUNCH_CLUSTER(kernel, dim3(cluster, G, B * groups), cluster, CLUSTER_THREADS, 0, out, q, cache, position,
                       newest, (Shape{ order, T, G, Q, D, window }), groups);
        return;
    }
    decode_split(out, q, cache, new_heads->sink, position, newest, window, order, B, T, G, Q, D);
}
static void cache_store(floatX *cache, const floatX *kv, const int *row, int N, int width) {
    const bool w = wide((size_t)width, cache, kv);
    const dim3 block = rectangle(w ? width / VECTOR : width);
    LAUNCH((w ? cache_store_kernel<VECTOR> : cache_store_kernel<1>), divide_up(N, block.y), block, 0, cache, kv,
           row, N, width);
}

PART(decode_attention) { d->attention_cached = attention_cached; d->cache_store = cache_store; }
PART_OF(DecodeOperations, decode_heads) { d->attention = decode_attention; }
