// decode.cu: attention of one new token per sequence to what its cache holds. One query per head, so nothing but reading the
// cache takes time. A long context is split over blocks, whose results are weighted by their maxima and added up, always in
// the same order.
#include "kernels/cuda/ptx.cuh"

struct Heads { HeadOrder order; int T, G, Q, D; };
struct Newest { const real *table; const floatX *kv; const int *row; };  // of decode_attention; table NULL: attention_cached

// How the work is cut: `lanes` of a warp read one key, 16 bytes each; a block makes `width` columns of the result for
// HEADS of the Q query heads (a group of them), from one of `splits` parts of the keys; the column runs fastest.
struct Cut { int lanes, width, columns, groups, splits; };
enum { DECODE_WARPS = 4, BATCH = 4, DECODE_THREADS = 32 * DECODE_WARPS, FEW_THREADS = 256, CLUSTER = 8 };
static const float LOWEST = -1e30f;                                     // of a maximum: subtracting two of them is not NaN

__device__ static inline float power_of_2(float x) { return sizeof(floatX) == 2 ? exp2_fast(x) : exp2f(x); }

// A pair of elements is turned, as by rope (basic.cu).
__device__ static inline void turn_pair(floatX &low, floatX &high, real cosine, real sine) {
    const real re = R(low), im = R(high);
    low  = X(re * cosine - im * sine);
    high = X(im * cosine + re * sine);
}

template <bool WIDE> __device__ static inline Vec load_some(const floatX *p, int count) {
    if (WIDE && count > 0) return load_vec(p);
    Vec v;
    for (int e = 0; e < VECTOR; e++) v.x[e] = e < count ? p[e] : X(0);
    return v;
}


enum { COUNTERS = 4096 };
static __device__ unsigned arrivals[COUNTERS];                          // splits that are done, of each group; 0 between launches

// decode_kernel: a warp takes BATCH * 32/lanes keys at a time; every group of lanes keeps its own maximum and sums, joined
// at the end by pairs of groups and then warp by warp. Keys and values are read once for HEADS query heads, and 2*BATCH
// reads are on their way at once.   Moves 2*D elements per key.
//
// With a table of rotations (decode_attention) the queries are still to be turned, every block does it for its own, and the
// newest key and value are to be stored: by the blocks that have the last keys. Of a split result the block that ends last
// adds up the parts, in their order; which one that is does not matter.
template <int HEADS, bool WIDE> __global__ static void __launch_bounds__(DECODE_THREADS)
decode_kernel(floatX *out, float *partial, const floatX *q, floatX *cache, const int *position, Newest newest, Heads h,
              Cut cut) {
    extern __shared__ __align__(16) unsigned char turned[];             // (HEADS,D) queries
    __shared__ float tops[HEADS][DECODE_WARPS], sums[HEADS][DECODE_WARPS], results[HEADS][DECODE_WARPS][32*VECTOR];
    const int column = blockIdx.x % cut.columns * cut.width, first = blockIdx.x / cut.columns % cut.groups * HEADS;
    const int rest = blockIdx.x / cut.columns / cut.groups, split = rest % cut.splits, pair = rest / cut.splits;
    const int b = pair / h.G, g = pair % h.G, half = h.D / 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = lane % cut.lanes * VECTOR, at_once = 32 / cut.lanes;
    auto head = [&](int j) { j = min(first + j, h.Q - 1); return b*h.Q*h.G + (h.order == HEADS_TILED ? j*h.G + g : g*h.Q + j); };
    const int64_t pitch = (int64_t)2*h.G*h.D, values = (int64_t)h.G*h.D;
    const floatX *const keys = cache + (int64_t)b*h.T*pitch + g*h.D;
    floatX *const x_of = (floatX *)turned;
    const float c = LOG2E / sqrtf((float)h.D);
    float top[HEADS], sum[HEADS] = {}, result[HEADS][VECTOR] = {};
    for (int m = 0; m < HEADS; m++) top[m] = LOWEST;
    // Pairs of elements that are turned together, of the queries and the key, and the value: a thread's first is read at once.
    auto source = [&](int m) { return m < HEADS ? q + (size_t)head(m) * h.D
                                                : newest.kv + b*pitch + g*h.D + (m == HEADS ? 0 : values); };
    const int all = (HEADS + (newest.table ? 2 : 0)) * half;
    floatX low = X(0), high = X(0);
    auto read_pair = [&](int at) {
        const floatX *from = source(at / half) + at % half;
        low = from[0];
        high = from[half];
    };

    wait_for_previous();
    let_next_start();                                                   // this late: decode_out counts on the choice
    const int newest_at = position[b];
    if (threadIdx.x < all) read_pair(threadIdx.x);
    const int seen = newest_at + 1, each = seen / cut.splits, more = seen % cut.splits;
    const int begin = split * each + min(split, more), end = begin + each + (split < more);
    if (begin < end)
        for (int i = 0; i < BATCH; i++) {
            const floatX *key = keys + min(begin + (warp*BATCH + i)*at_once + lane / cut.lanes, end - 1) * pitch;
            prefetch_line(key + min(mine, h.D - 1));
            prefetch_line(key + values + min(column + mine, h.D - 1));
        }
    #pragma unroll 1
    for (int at = threadIdx.x; at < all; at += DECODE_THREADS) {
        const int m = at / half, i = at % half;
        if (at != threadIdx.x) read_pair(at);
        if (newest.table && m <= HEADS) {
            const real *turn = newest.table + (size_t)newest_at * h.D + 2*i;
            turn_pair(low, high, turn[0], turn[1]);
        }
        floatX *to = x_of + m*h.D;
        if (m >= HEADS) to = cache + newest.row[b]*pitch + g*h.D + (m == HEADS ? 0 : values);
        if (m >= HEADS && !(begin < end && end == seen)) continue;      // stored by the blocks that have the last keys
        to[i] = low;
        to[half + i] = high;
    }
    if (h.D % 2 && threadIdx.x < HEADS)                                 // never turned
        x_of[threadIdx.x*h.D + h.D - 1] = q[(size_t)head(threadIdx.x) * h.D + h.D - 1];
    __syncthreads();

    #pragma unroll 1
    for (int j0 = begin + warp*BATCH*at_once; j0 < end; j0 += DECODE_WARPS*BATCH*at_once) {
        const floatX *key[BATCH];
        Vec value[BATCH];
        float s[HEADS][BATCH] = {};
        #pragma unroll
        for (int i = 0; i < BATCH; i++) {
            key[i] = keys + min(j0 + i*at_once + lane / cut.lanes, end - 1) * pitch;
            value[i] = load_some<WIDE>(key[i] + values + column + mine, h.D - column - mine);
        }
        #pragma unroll 1
        for (int d = mine; d < h.D; d += cut.width) {
            Vec k[BATCH], x[HEADS];
            #pragma unroll
            for (int i = 0; i < BATCH; i++) k[i] = load_some<WIDE>(key[i] + d, h.D - d);
            #pragma unroll
            for (int m = 0; m < HEADS; m++) x[m] = load_some<WIDE>(x_of + m*h.D + d, h.D - d);
            #pragma unroll
            for (int i = 0; i < BATCH; i++)
                #pragma unroll
                for (int m = 0; m < HEADS; m++)
                    for (int e = 0; e < VECTOR; e++) s[m][i] += R(x[m].x[e]) * R(k[i].x[e]);
        }
        #pragma unroll 1
        for (int step = cut.lanes / 2; step; step /= 2)
            #pragma unroll
            for (int m = 0; m < HEADS; m++)
                #pragma unroll
                for (int i = 0; i < BATCH; i++) s[m][i] += __shfl_xor_sync(0xffffffffu, s[m][i], step);
        #pragma unroll
        for (int m = 0; m < HEADS; m++) {
            float max = top[m];
            #pragma unroll
            for (int i = 0; i < BATCH; i++) {
                s[m][i] = j0 + i*at_once + lane / cut.lanes < end ? s[m][i] * c : -INFINITY;
                max = fmaxf(max, s[m][i]);
            }
            const float shrink = exp2f(top[m] - max);
            top[m] = max;
            sum[m] *= shrink;
            for (int e = 0; e < VECTOR; e++) result[m][e] *= shrink;
            #pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const float p = exp2f(s[m][i] - max);
                sum[m] += p;
                for (int e = 0; e < VECTOR; e++) result[m][e] += p * R(value[i].x[e]);
            }
        }
    }

    #pragma unroll 1
    for (int step = cut.lanes; step < 32; step *= 2)
        #pragma unroll
        for (int m = 0; m < HEADS; m++) {
            const float max = fmaxf(top[m], __shfl_xor_sync(0xffffffffu, top[m], step)), shrink = exp2f(top[m] - max);
            top[m] = max;
            sum[m] *= shrink;
            sum[m] += __shfl_xor_sync(0xffffffffu, sum[m], step);
            for (int e = 0; e < VECTOR; e++) {
                result[m][e] *= shrink;
                result[m][e] += __shfl_xor_sync(0xffffffffu, result[m][e], step);
            }
        }
    #pragma unroll
    for (int m = 0; m < HEADS; m++) {
        if (lane == 0) { tops[m][warp] = top[m]; sums[m][warp] = sum[m]; }
        if (lane < cut.lanes) for (int e = 0; e < VECTOR; e++) results[m][warp][mine + e] = result[m][e];
    }
    __syncthreads();
    #pragma unroll 1
    for (int at = threadIdx.x; at < HEADS * cut.width; at += DECODE_THREADS) {
        const int m = at / cut.width, d = at % cut.width, j = first + m;
        float max = LOWEST, total = 0, x = 0;
        for (int w = 0; w < DECODE_WARPS; w++) max = fmaxf(max, tops[m][w]);
        for (int w = 0; w < DECODE_WARPS; w++) {
            const float share = exp2f(tops[m][w] - max);
            total += sums[m][w] * share;
            x += results[m][w][d] * share;
        }
        if (j >= h.Q || column + d >= h.D) continue;
        float *part = partial + (((size_t)pair*h.Q + j) * cut.splits + split) * (h.D + 2);
        if (cut.splits == 1) out[(size_t)head(m) * h.D + column + d] = X(x / total);
        else part[2 + column + d] = x;
        if (cut.splits > 1 && column + d == 0) { part[0] = max; part[1] = total; }
    }
    if (cut.splits == 1) return;

    __shared__ int last;
    __threadfence();
    __syncthreads();
    unsigned *const arrived = &arrivals[pair*cut.groups + first/HEADS];
    if (threadIdx.x == 0) last = atomicAdd(arrived, 1) == (unsigned)(cut.columns*cut.splits - 1);
    __syncthreads();
    if (!last) return;
    __threadfence();
    #pragma unroll 1
    for (int i = threadIdx.x; i < min(HEADS, h.Q - first) * h.D; i += DECODE_THREADS) {
        const int m = i / h.D, d = i % h.D;
        const float *part = partial + ((size_t)pair*h.Q + first + m) * cut.splits * (h.D + 2);
        float max = LOWEST, x = 0, total = 0;
        #pragma unroll 4
        for (int s = 0; s < cut.splits; s++) max = fmaxf(max, part[(size_t)s*(h.D + 2)]);
        #pragma unroll 4
        for (int s = 0; s < cut.splits; s++) {
            const float *p = part + (size_t)s*(h.D + 2), share = exp2f(p[0] - max);
            x += p[2 + d] * share;
            total += p[1] * share;
        }
        out[(size_t)head(m) * h.D + d] = X(x / total);
    }
    if (threadIdx.x == 0) *arrived = 0;                                 // ready for the next launch
}

// few_attention_kernel: decode_kernel for the common case of decode_attention, heads of 64 or 128. The splits are a cluster, and
// the first keys and values of all warps are on their way before the kernel before has ended: where they are is known long
// before. A warp keeps one maximum; each group of LANES of it takes a key. Moves 2*D elements per key.
template <int HEADS, int D> static __global__ __launch_bounds__(FEW_THREADS, 1)
void few_attention_kernel(floatX *out, const floatX *q, floatX *cache, const int *position, Newest newest, Heads h,
                          int groups) {
    enum { LANES = D / VECTOR, AT_ONCE = 32 / LANES, HALF = D / 2, WARPS = FEW_THREADS / 32 };
    __shared__ __align__(16) floatX x_of[HEADS + 2][D];                 // queries, the newest key and value
    __shared__ float tops[WARPS][HEADS], sums[WARPS][HEADS], results[WARPS][HEADS][D];
    __shared__ float parts[CLUSTER][HEADS][D], part_tops[CLUSTER][HEADS], part_sums[CLUSTER][HEADS];    // of the first block
    const int split = blockIdx.x, splits = gridDim.x, g = blockIdx.y;
    const int b = blockIdx.z / groups, first = blockIdx.z % groups * HEADS;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, mine = lane % LANES * VECTOR, pitch = 2 * h.G * D;
    auto head = [&](int m) { const int j = min(first + m, h.Q - 1);
                             return (b * h.Q * h.G + (h.order == HEADS_TILED ? j * h.G + g : g * h.Q + j)) * D; };
    cluster_arrive();

    const int seen = position[b] + 1, each = (seen + splits - 1) / splits;
    const int begin = split * each, end = min(begin + each, seen);
    const floatX *const keys = cache + (int64_t)b * h.T * pitch + g * D + mine;
    Vec key[BATCH], value[BATCH];
    auto at = [&](int j0, int i) { return min(j0 + i * AT_ONCE + lane / LANES, end - 1); };
    auto load_batch = [&](int j0) {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const floatX *from = keys + (int64_t)at(j0, i) * pitch;
            key[i] = load_vec(from);
            value[i] = load_vec(from + pitch / 2);
        }
    };
    int j0 = begin + warp * BATCH * AT_ONCE;
    if (j0 < end) load_batch(j0);

    // A thread turns a pair of elements, of the queries, the newest key and (not turning it) the newest value.
    const int m = tid / HALF, d = tid % HALF;
    const bool at_work = m < HEADS + 2, turned = m <= HEADS;
    float2 turn = { 1, 0 };
    if (turned) turn = *(const float2 *)(newest.table + (size_t)(seen - 1) * D + 2*d);
    const int64_t row = newest.row[b];
    wait_for_previous();
    let_next_start();                                                   // this late: decode_out counts on the choice
    if (at_work) {
        const int lies = g * D + (m == HEADS ? 0 : pitch / 2);
        const floatX *from = m < HEADS ? q + head(m) : newest.kv + b * pitch + lies;
        floatX low = from[d], high = from[HALF + d];
        if (turned) turn_pair(low, high, turn.x, turn.y);
        x_of[m][d] = low;
        x_of[m][HALF + d] = high;
        if (m >= HEADS && split == 0) {
            cache[row * pitch + lies + d] = low;
            cache[row * pitch + lies + HALF + d] = high;
        }
    }
    __syncthreads();

    const float c = LOG2E / sqrtf((float)D);
    float top[HEADS], sum[HEADS] = {}, result[HEADS][VECTOR] = {}, x[HEADS][VECTOR];
#pragma unroll
    for (int m = 0; m < HEADS; m++) {
        top[m] = LOWEST;
        const Vec v = load_vec(&x_of[m][mine]);
        for (int e = 0; e < VECTOR; e++) x[m][e] = element(v, e) * c;
    }
#pragma unroll 1
    while (j0 < end) {
        float s[HEADS][BATCH] = {};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (at(j0, i) == seen - 1) {
                key[i] = load_vec(&x_of[HEADS][mine]);
                value[i] = load_vec(&x_of[HEADS + 1][mine]);
            }
#pragma unroll
            for (int e = 0; e < VECTOR; e++)
                for (int m = 0; m < HEADS; m++) s[m][i] += x[m][e] * element(key[i], e);
        }
#pragma unroll
        for (int m = 0; m < HEADS; m++) {
            float max = top[m];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
#pragma unroll
                for (int step = LANES / 2; step; step /= 2) s[m][i] += __shfl_xor_sync(ALL, s[m][i], step);
                if (j0 + i * AT_ONCE + lane / LANES >= end) s[m][i] = -INFINITY;
                max = fmaxf(max, s[m][i]);
            }
#pragma unroll
            for (int step = LANES; step < 32; step *= 2) max = fmaxf(max, __shfl_xor_sync(ALL, max, step));
            const float shrink = power_of_2(top[m] - max);
            top[m] = max;
            sum[m] *= shrink;
            for (int e = 0; e < VECTOR; e++) result[m][e] *= shrink;
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const float p = power_of_2(s[m][i] - max);
                sum[m] += p;
                for (int e = 0; e < VECTOR; e++) result[m][e] += p * element(value[i], e);
            }
        }
        if ((j0 += WARPS * BATCH * AT_ONCE) < end) load_batch(j0);
    }
#pragma unroll
    for (int m = 0; m < HEADS; m++) {
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) {
            sum[m] += __shfl_xor_sync(ALL, sum[m], step);
            for (int e = 0; e < VECTOR; e++) result[m][e] += __shfl_xor_sync(ALL, result[m][e], step);
        }
        if (lane == 0) { tops[warp][m] = top[m]; sums[warp][m] = sum[m]; }
        if (lane < LANES) for (int e = 0; e < VECTOR; e++) results[warp][m][mine + e] = result[m][e];
    }
    __syncthreads();

    // The warps' parts become the block's, in the first block's memory, and the blocks' the result.
    struct Part { float top, sum, x; };
    auto join = [&](const float *of_tops, const float *of_sums, const float *of_results, int count) {
        Part all = { LOWEST, 0, 0 };
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) if (i < count) all.top = fmaxf(all.top, of_tops[i * HEADS]);
#pragma unroll
        for (int i = 0; i < CLUSTER; i++)
            if (i < count) {
                const float share = power_of_2(of_tops[i * HEADS] - all.top);
                all.sum += of_sums[i * HEADS] * share;
                all.x += of_results[i * HEADS * D] * share;
            }
        return all;
    };
    const int j = tid / D, at_d = tid % D;
    cluster_wait();                                                     // all blocks have begun
    if (j < HEADS) {
        const Part part = join(&tops[0][j], &sums[0][j], &results[0][j][at_d], WARPS);
        *of_block(&parts[split][j][at_d], 0) = part.x;
        if (at_d == 0) {
            *of_block(&part_tops[split][j], 0) = part.top;
            *of_block(&part_sums[split][j], 0) = part.sum;
        }
    }
    cluster_arrive();
    cluster_wait();
    if (split || j >= HEADS || first + j >= h.Q) return;
    const Part all = join(&part_tops[0][j], &part_sums[0][j], &parts[0][j][at_d], splits);
    out[head(j) + at_d] = X(all.x / all.sum);
}

// cache_store: a block is a rectangle of rows and units of W elements.
template <int W> __global__ static void cache_store_kernel(floatX *cache, const floatX *kv, const int *row, int N, int width) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    floatX *to = cache + (size_t)row[n] * width;
    for (int i = threadIdx.x*W; i < width; i += blockDim.x*W) store(to + i, load<W>(kv + n*width + i));
}

// Can rows of D elements be read 16 bytes at a time, if they start there?
static bool wide_rows(int D, const void *p) { return D % VECTOR == 0 && (uintptr_t)p % 16 == 0; }

// Where the keys are cut depends on the sizes and the position alone, so that every GPU adds in the same order.
static void decode(floatX *out, const floatX *q, floatX *cache, const int *position, Newest newest,
                   HeadOrder order, int B, int T, int G, int Q, int D) {
    typedef void Kernel(floatX *, float *, const floatX *, floatX *, const int *, Newest, Heads, Cut);
    static Kernel *const wide_kernel[] = { decode_kernel<1, true>, decode_kernel<2, true>, decode_kernel<4, true> };
    enum { FILL = 1024, FEWEST = 128 };                                  // blocks that keep a GPU busy; keys worth a block
    const Heads h = { order, T, G, Q, D };
    const bool wide = wide_rows(D, cache);
    Cut cut = {};
    int power = 0;
    while (wide && power < 2 && 1 << power < Q && D <= 1024) power++;
    #pragma unroll 1
    for (cut.lanes = 1; cut.lanes < 32 && cut.lanes*VECTOR < D; ) cut.lanes *= 2;
    cut.width = cut.lanes * VECTOR;
    cut.columns = (int)divide_up((size_t)D, (size_t)cut.width);
    cut.groups = (int)divide_up((size_t)Q, (size_t)1 << power);
    const size_t blocks = (size_t)B*G * cut.groups * cut.columns, most = divide_up((size_t)T, FEWEST);
    if (!blocks || !T) return;
    cut.splits = (int)(blocks * most < FILL ? most : blocks < FILL ? FILL / blocks : 1);
    if ((size_t)B*G * cut.groups > COUNTERS) cut.splits = 1;
    float *partial = cut.splits > 1 ? (float *)workspace((size_t)B*G*Q * cut.splits * (D + 2) * sizeof *partial) : NULL;
    LAUNCH_EARLY((wide ? wide_kernel[power] : decode_kernel<1, false>), (unsigned)(blocks * cut.splits), DECODE_THREADS,
                 ((size_t)D << (wide ? power : 0)) * sizeof(floatX), out, partial, q, cache, position, newest, h, cut);
}
static void attention_cached(floatX *out, const floatX *q, const floatX *cache, const int *position, HeadOrder order,
                             int B, int T, int G, int Q, int D) {
    decode(out, q, (floatX *)cache, position, {}, order, B, T, G, Q, D);
}
static void decode_attention(floatX *out, floatX *cache, const floatX *q, const floatX *kv, const real *table,
                          const int *position, const int *row, HeadOrder order, int B, int T, int G, int Q, int D) {
    const int heads = Q > 1 ? 2 : 1, groups = (Q + heads - 1) / heads, splits = (T + 127) / 128;
    if (B && context()->arch >= 90 && (D == 64 || D == 128) && wide_rows(D, cache) && T <= 1024 * CLUSTER) {
        auto kernel = D == 64 ? Q > 1 ? few_attention_kernel<2, 64>  : few_attention_kernel<1, 64>
                              : Q > 1 ? few_attention_kernel<2, 128> : few_attention_kernel<1, 128>;
        const int cluster = splits < CLUSTER ? splits : CLUSTER;
        LAUNCH_CLUSTER(kernel, dim3(cluster, G, B * groups), cluster, FEW_THREADS, 0, out, q, cache, position,
                       (Newest{ table, kv, row }), (Heads{ order, T, G, Q, D }), groups);
        return;
    }
    decode(out, q, cache, position, { table, kv, row }, order, B, T, G, Q, D);
}
static void cache_store(floatX *cache, const floatX *kv, const int *row, int N, int width) {
    const bool w = wide_rows(width, cache) && wide_rows(width, kv);
    const dim3 block = rectangle(w ? width / VECTOR : width);
    LAUNCH((w ? cache_store_kernel<VECTOR> : cache_store_kernel<1>), divide_up(N, block.y), block, 0, cache, kv, row, N, width);
}

PART(decode_attention) {
    d->attention_cached = attention_cached;
    d->decode_attention = decode_attention;
    d->cache_store = cache_store;
}
