// attention.cu: causal attention with Q query heads for every key/value head.
//
// Forward, for one query t of one head: s_j = q.k_j / sqrt(D) for j <= t, p = softmax(s),
// out = sum_j p_j v_j, and lse = log sum exp(s), from which backward has p_j = exp(s_j - lse).
//
// Backward, from do:  dv_j = sum_t p_tj do_t,   dp_tj = do_t . v_j,
//     ds_tj = p_tj (dp_tj - delta_t)  with  delta_t = sum_j p_tj dp_tj = do_t . out_t,
//     dq_t = sum_j ds_tj k_j / sqrt(D),   dk_j = sum_t ds_tj q_t / sqrt(D).
//
// The (T,T) scores never reach memory. A block keeps a tile of queries and goes through the keys
// and values tile by tile; each row's maximum and sum are corrected when a larger score appears
// (Dao et al. 2022, arXiv 2205.14135; work is divided as in FlashAttention-2, arXiv 2307.08691).
//
// Packing. The Q query heads of one key/value head read the same keys. Their queries are stacked
// into one matrix of T*Q packed rows, r = t*Q + j for query head j of token t: a tile of keys is
// read once for all, and dk and dv sum over heads on the way. Row r sees key j if j*Q <= r.
//
// In a row of several samples, or with a window, a query sees only keys from t - reach[t] on. The
// first never decreases from row to row, so the first key that a tile of rows needs is that of its
// first row. LIMITED kernels are instances of their own: the others do without the masks.
//
// Backward has two kernels. In one a block has a tile of keys and goes through the queries, for dk
// and dv; in the other a tile of queries, for dq. Scores are computed twice: 7 products instead of
// 5. In return every sum is one block's (no atomics), and p and ds stay in registers.
//
// bf16 with heads of up to 128 elements runs on tensor cores (flash_*), with sums in f32, and p and
// ds rounded to bf16 for the next product; other sizes and f32 on plain arithmetic (plain_*).
#include "ptx.cuh"

struct HeadLayout { HeadOrder order; int T, G, Q, D; const int *reach; };    // reach (B,T) or NULL

// A (sequence, key/value head) pair. i: its number.
struct Pair { int i, b, g; };
__device__ static inline Pair pair_at(HeadLayout h, int i) {
    i = uniform(i);
    const int b = uniform(i / h.G);
    return { i, b, i - b*h.G };
}

// A matrix: row r of `count` begins at element base + r*pitch, plus `skip` for every full token.
struct RowLayout {
    size_t base;
    int pitch, skip, count, per_token;
    unsigned inverse;                   // (2^32 - 1) / per_token, rounded down
    __device__ int token(int r) const {                                 // r / per_token; t is at most 1 too small
        const int t = (int)__umulhi((unsigned)r, inverse);
        return t + ((t + 1)*per_token <= r);
    }
    __device__ size_t at(int r) const { return base + (int64_t)r*pitch + (skip ? (int64_t)token(r)*skip : 0); }
};
// A pair's packed queries. Tiled heads, j*G + g, are evenly spaced. size: of a row: D, 1 for lse.
__device__ static inline RowLayout query_rows(HeadLayout h, Pair p, int size) {
    const bool even = h.order == HEADS_TILED || h.Q == 1;
    const size_t start = (size_t)p.b*h.T*h.Q*h.G + (even ? p.g : p.g*h.Q);
    return { start*size, even ? h.G*size : size, even ? 0 : (h.G - 1)*h.Q*size, h.T*h.Q, h.Q, 0xffffffffu / h.Q };
}
// The keys of a pair. A key's value is G*D elements after it.
__device__ static inline RowLayout key_rows(HeadLayout h, Pair p) {
    const size_t start = (size_t)p.b*h.T*2*h.G + p.g;
    return { start*h.D, 2*h.G*h.D, 0, h.T, 1, 0 };
}
__device__ static inline size_t to_values(HeadLayout h) { return (size_t)h.G*h.D; }

// The first key that packed row r of a pair sees. Rows past the last one are like it.
__device__ static inline int first_key(HeadLayout h, Pair p, const RowLayout &rows, int r) {
    const int t = rows.token(min(r, rows.count - 1));
    return h.reach ? t - h.reach[(size_t)p.b*h.T + t] : 0;
}

// A score of a key before the first that a row sees: sums with it are scaled to zero when a visible
// key comes. With -infinity they would be NaN if such a key comes first. A power of two, times any
// c exact: the fused x * c - top of such a row is 0, not the rounding error of a large number.
static constexpr float UNSEEN = -0x1p100f;

// What backward needs of each query, in packed order; a pair has a multiple of PADDING rows.
struct Stats { float lse, delta; };
enum { PADDING = 128 };
static inline size_t padded_rows(HeadLayout h) { return divide_up((size_t)h.T*h.Q, PADDING) * PADDING; }

// 8 lanes compute a row's delta = do . out. lse is stored times `unit`; rows that do not exist get
// infinity, which makes their p zero. Limited by memory: 2*D elements per row.
__global__ static void stats_kernel(Stats *stats, const floatX *dout, const floatX *out, const float *lse,
                                    HeadLayout h, int padded, float unit, bool vectors) {
    const size_t i = global_index() / 8;
    const int lane = threadIdx.x % 8, r = (int)(i % padded);
    const Pair pair = pair_at(h, (int)(i / padded));                    // a warp has rows of one pair
    float delta = 0;
    if (r < h.T*h.Q) {
        const size_t at = query_rows(h, pair, h.D).at(r);
        if (vectors)
            for (int d = lane*VECTOR; d < h.D; d += 8*VECTOR) {
                const Vec a = load_vec(dout + at + d), b = load_vec(out + at + d);
                for (int e = 0; e < VECTOR; e++) delta += R(a.x[e]) * R(b.x[e]);
            }
        else
            for (int d = lane; d < h.D; d += 8) delta += R(dout[at + d]) * R(out[at + d]);
    }
    delta = warp_sum<8>(delta);
    if (lane == 0) stats[i] = { r < h.T*h.Q ? lse[query_rows(h, pair, 1).at(r)] * unit : INFINITY, delta };
}

// ==== tensor cores ===============================================================================
// A block has 4 warps; a warp has MB blocks of 16 rows. Tiles in shared memory have rows of W = 32,
// 64 or 128 bf16, the next width that holds D; the rest is zero. The 16-byte chunks of a row are
// permuted so that the 8 rows of an ldmatrix are in different banks. All products are two routines:
// `scores` for rows times rows, and `accumulate` for weights times rows. The accumulator of the
// first, rounded, is an operand of the second in the registers where it is.
#if defined(PRECISION_BF16)

enum { WARPS = 4, THREADS = 32 * WARPS };

// The byte offset of chunk `chunk` of row `row`. 8 rows further is 8 rows of bytes further. 2*k
// chunks further, from chunk 0 or 1, is xor with 32*k (the permutation is an xor, too).
template <int W> __device__ static inline uint32_t tile_offset(int row, int chunk) {
    enum { CHUNKS = W / 8, GROUP = CHUNKS < 8 ? 8 / CHUNKS : 1, MASK = CHUNKS < 8 ? CHUNKS - 1 : 7 };
    return (uint32_t)(row * W * 2 + ((chunk ^ (row / GROUP & MASK)) << 4));
}
// This lane's address for an ldmatrix of 16 rows and 2 chunks, down first or across first.
template <int W> __device__ static inline uint32_t down_first(int row) {
    const int lane = threadIdx.x % 32;
    return tile_offset<W>(row + lane % 16, lane / 16);
}
template <int W> __device__ static inline uint32_t across_first(int row) {
    const int lane = threadIdx.x % 32;
    return tile_offset<W>(row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// Starts to copy rows from `first` on to a tile, a column of chunks per thread; zeros elsewhere.
template <int ROWS, int W> __device__ static inline void
load_tile(uint32_t tile, const floatX *x, const RowLayout &p, int first, int D) {
    enum { CHUNKS = W / 8, STEP = THREADS / CHUNKS };
    const int chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS, left = chunk*8 < D ? p.count - first - row : 0;
    #pragma unroll 4
    for (int i = 0; i < ROWS; i += STEP)
        cp_async(tile + tile_offset<W>(row + i, chunk), x + p.at(first + row + i) + chunk*8, i < left);
}

// sum (16*MB, 8*NB) += a b^T over W columns. a: down_first of the tile's rows; b: across_first.
template <int W, int MB, int NB> __device__ static inline void scores(float (&sum)[MB][NB][4], uint32_t a, uint32_t b) {
    #pragma unroll 2
    for (int k = 0; k < W / 16; k++) {
        uint32_t x[MB][4], y[4];
        #pragma unroll
        for (int m = 0; m < MB; m++) ldmatrix(x[m], (a ^ k*32) + m * 16*W*2);
        #pragma unroll
        for (int n = 0; n < NB; n += 2) {
            ldmatrix(y, (b ^ k*32) + n/2 * 16*W*2);
            #pragma unroll
            for (int m = 0; m < MB; m++) {
                mma_bf16(sum[m][n], x[m], y);
                mma_bf16(sum[m][n + 1], x[m], y + 2);
            }
        }
    }
}
// sum (16*MB, W) += a b for 16 columns of a from 16*k on, from `scores`. b: down_first of 16 rows.
template <int W, int MB, int NB> __device__ static inline void
accumulate16(float (&sum)[MB][W/8][4], const float (&a)[MB][NB][4], int k, uint32_t b) {
    uint32_t x[MB][4], y[4];
    #pragma unroll
    for (int m = 0; m < MB; m++)
        #pragma unroll
        for (int i = 0; i < 4; i++) x[m][i] = pack_bf16(a[m][2*k + i/2][i%2 * 2], a[m][2*k + i/2][i%2 * 2 + 1]);
    #pragma unroll
    for (int n = 0; n < W / 8; n += 2) {
        ldmatrix_trans(y, b ^ n*16);
        #pragma unroll
        for (int m = 0; m < MB; m++) {
            mma_bf16(sum[m][n], x[m], y);
            mma_bf16(sum[m][n + 1], x[m], y + 2);
        }
    }
}
template <int W, int MB, int NB> __device__ static inline void
accumulate(float (&sum)[MB][W/8][4], const float (&a)[MB][NB][4], uint32_t b) {
    #pragma unroll
    for (int k = 0; k < NB / 2; k++) accumulate16<W>(sum, a, k, b + k * 16*W*2);
}
// Element (m, n, i) of an accumulator: row 16*m + i/2*8 + lane/4, column 8*n + lane%4*2 + i%2.
#define EACH_ELEMENT(MB, NB) \
    _Pragma("unroll") for (int m = 0; m < (MB); m++) \
    _Pragma("unroll") for (int n = 0; n < (NB); n++) \
    _Pragma("unroll") for (int i = 0; i < 4; i++)

// Scores of keys from k0 on that a row does not see become `value`. row: this lane's first.
template <int MB, int NB> __device__ static inline void
mask_keys(float (&s)[MB][NB][4], float value, int row, int k0, int Q) {
    #pragma unroll
    for (int m = 0; m < MB; m++)
        #pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const int last = (row + m*16 + i*4) / Q - k0 - threadIdx.x%4*2;
            #pragma unroll
            for (int n = 0; n < NB; n++) {
                if (n*8     > last) s[m][n][i]     = value;
                if (n*8 + 1 > last) s[m][n][i + 1] = value;
            }
        }
}

// The same for keys before the first that a row sees.
template <int NB> __device__ static inline void
mask_before(float (&s)[2][NB][4], float value, HeadLayout h, int pair, int row, int k0) {
    const Pair p = pair_at(h, pair);
    const RowLayout rows = query_rows(h, p, h.D);
    #pragma unroll
    for (int m = 0; m < 2; m++)
        #pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const int first = first_key(h, p, rows, row + m*16 + i*4) - k0 - (int)threadIdx.x%4*2;
            #pragma unroll
            for (int n = 0; n < NB; n++) {
                if (n*8     < first) s[m][n][i]     = value;
                if (n*8 + 1 < first) s[m][n][i + 1] = value;
            }
        }
}

// A warp stores its 16*MB rows from `first` on. Registers scatter a row over 4 lanes; to store 16
// bytes at a time it goes through the warp's rows (from `mine` on) of a tile no longer used.
template <int W, int MB> __device__ static inline void
store_rows(floatX *x, const RowLayout &p, int first, unsigned char *tile, int mine, const float (&sum)[MB][W/8][4],
           int D) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    #pragma unroll
    for (int m = 0; m < MB; m++)
        #pragma unroll
        for (int n = 0; n < W / 8; n++)
            #pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const uint32_t at = tile_offset<W>(mine + m*16 + i*4 + lane/4, n) + lane%4 * 4;
                *(uint32_t *)(tile + at) = pack_bf16(sum[m][n][i], sum[m][n][i + 1]);
            }
    __syncwarp();
    #pragma unroll 1
    for (int i = lane; i < 16*MB * W/8; i += 32) {
        const int row = i / (W/8), chunk = i % (W/8), r = first + row;
        if (r < p.count && chunk*8 < D)
            store_vec(x + p.at(r) + chunk*8, *(const Vec *)(tile + tile_offset<W>(mine + row, chunk)));
    }
}

// One more tile of scores s for a warp's 32 rows: top becomes the largest score so far, times c,
// and `out` and `sum` so far are scaled to it. top, sum: of this lane's rows, m*16 + i*8 + lane/4.
template <int W, int NB> __device__ static inline void
raise_top(float (&top)[4], float (&sum)[4], float (&out)[2][W/8][4], const float (&s)[2][NB][4], float c) {
    #pragma unroll
    for (int row = 0; row < 4; row++) {
        const int m = row / 2, i = row % 2 * 2;
        float max = s[m][0][i];
        #pragma unroll
        for (int n = 0; n < NB; n++) max = fmaxf(max, fmaxf(s[m][n][i], s[m][n][i + 1]));
        max = fmaxf(warp_max<4>(max) * c, top[row]);
        const float shrink = exp2_fast(top[row] - max);
        top[row] = max;
        sum[row] *= shrink;
        #pragma unroll
        for (int n = 0; n < W / 8; n++) { out[m][n][i] *= shrink; out[m][n][i + 1] *= shrink; }
    }
}

// flash_forward: a block has 128 packed rows (a warp 32) of one pair and goes through its keys in
// tiles of 64; only tiles on the diagonal are masked. Keys are copied while the previous values are
// used, and values while scores are computed: one buffer each is enough, and two blocks fit on a
// multiprocessor to fill each other's waits. The last tiles of rows, which have the most keys, come
// first.   4*D flop per visible (row, key) pair; at most 64 KiB of shared memory.
enum { ROWS = 128, MOST_KEYS = 64 };
template <int W> static constexpr size_t forward_shared() { return (size_t)(ROWS + 2*MOST_KEYS) * W * sizeof(floatX); }
template <int W, bool LIMITED> __global__ static void __launch_bounds__(THREADS, 2)
flash_forward(floatX *out, float *lse, const floatX *q, const floatX *kv, HeadLayout h) {
    extern __shared__ __align__(1024) unsigned char shared[];
    enum { KEYS = LIMITED && W == 128 ? MOST_KEYS / 2 : MOST_KEYS };     // fewer where registers are short
    const int tiles = (h.T*h.Q + ROWS - 1) / ROWS;
    const Pair pair = pair_at(h, blockIdx.x / tiles);
    const int r0 = ((pair.i + 1)*tiles - 1 - (int)blockIdx.x) * ROWS;
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 32, row = r0 + mine + lane/4;
    const RowLayout rows = query_rows(h, pair, h.D), keys = key_rows(h, pair);
    const uint32_t q_tile = shared_address(shared), k_tile = q_tile + ROWS*W*2, v_tile = k_tile + KEYS*W*2;
    const int end = uniform((min(r0 + ROWS, rows.count) - 1) / h.Q + 1);  // keys that some row of this block sees
    const float c = LOG2E / sqrtf((float)h.D);
    float result[2][W/8][4] = {}, top[4], sum[4];
    for (int i = 0; i < 4; i++) { top[i] = -INFINITY; sum[i] = 0; }
    const int begin = LIMITED ? uniform(first_key(h, pair, rows, r0)) / KEYS * KEYS : 0;
    // the first key of the warp's last row
    const int latest = LIMITED ? uniform(first_key(h, pair, rows, r0 + mine + 31)) : 0;

    load_tile<ROWS, W>(q_tile, q, rows, r0, h.D);
    load_tile<KEYS, W>(k_tile, kv, keys, begin, h.D);
    cp_async_commit();
    for (int k0 = begin; k0 < end; k0 += KEYS) {
        cp_async_wait<0>();
        __syncthreads();                                    // the keys have arrived, the previous values are used up
        load_tile<KEYS, W>(v_tile, kv + to_values(h), keys, k0, h.D);
        cp_async_commit();
        float s[2][KEYS/8][4] = {};
        scores<W>(s, q_tile + down_first<W>(mine), k_tile + across_first<W>(0));
        if ((k0 + KEYS - 1) * h.Q > r0 + mine)                          // the first row does not see the last key
            mask_keys(s, -INFINITY, row, k0, h.Q);
        if (LIMITED && latest > k0) mask_before(s, UNSEEN, h, pair.i, row, k0);
        raise_top<W>(top, sum, result, s, c);
        cp_async_wait<0>();
        __syncthreads();                                                // the values have arrived, the keys are used up
        if (k0 + KEYS < end) load_tile<KEYS, W>(k_tile, kv, keys, k0 + KEYS, h.D);
        cp_async_commit();
        #pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            #pragma unroll
            for (int m = 0; m < 2; m++)
                #pragma unroll
                for (int i = 0; i < 8; i++) {
                    float &p = s[m][2*k + i/4][i%4];
                    sum[m*2 + i%4/2] += p = exp2_fast(p * c - top[m*2 + i%4/2]);
                }
            accumulate16<W>(result, s, k, v_tile + down_first<W>(k*16));
        }
    }

    const Pair again = pair_at(h, pair.i);                              // recomputed rather than kept in registers
    const RowLayout to = query_rows(h, again, h.D), of_lse = query_rows(h, again, 1);
    for (int i = 0; i < 4; i++) {
        sum[i] += __shfl_xor_sync(ALL, sum[i], 1);
        sum[i] += __shfl_xor_sync(ALL, sum[i], 2);
        if (lane % 4 == 0 && row + i*8 < to.count) lse[of_lse.at(row + i*8)] = (top[i] + log2f(sum[i])) * LN2;
        sum[i] = 1 / sum[i];
    }
    EACH_ELEMENT(2, W/8) result[m][n][i] *= sum[m*2 + i/2];
    store_rows<W>(out, to, r0 + mine, shared, mine, result, h.D);
}

// flash_backward_keys: a block has 64*MB keys and values of one pair (a warp 16*MB) and goes
// through all packed rows that see them in tiles of 64: queries, do and their stats, in two stages.
// Scores are computed transposed, keys down and queries across, STEP queries at a time, so that p^T
// and ds^T are operands of dv += p^T do and dk += ds^T q in place. MB and STEP divide a thread's
// registers between the sums, W*MB, and the scores, MB*STEP. The first tiles of keys, which have
// the most queries, come first. 8*D flop per pair; at most 97 KiB of shared memory.
template <int W> struct KeyTile {
    enum { MB = W == 128 ? 1 : 2, STEP = 64 / MB, COUNT = WARPS * 16 * MB, QUERIES = 64,
           STAGE = 2 * QUERIES*W*2 + QUERIES*(int)sizeof(Stats) };
};
template <int W> static constexpr size_t keys_shared() {
    return (size_t)2 * KeyTile<W>::COUNT * W * 2 + 2 * KeyTile<W>::STAGE;
}
template <int W, bool LIMITED> __global__ static void __launch_bounds__(THREADS, 2)
flash_backward_keys(floatX *dkv, const floatX *dout, const Stats *stats, const floatX *q, const floatX *kv,
                    HeadLayout h, int padded) {
    extern __shared__ __align__(1024) unsigned char shared[];
    enum { MB = KeyTile<W>::MB, STEP = KeyTile<W>::STEP, COUNT = KeyTile<W>::COUNT, QUERIES = KeyTile<W>::QUERIES,
           STAGE = KeyTile<W>::STAGE };
    const int tiles = (h.T + COUNT - 1) / COUNT;
    const Pair pair = pair_at(h, blockIdx.x / tiles);
    const int k0 = ((int)blockIdx.x - pair.i*tiles) * COUNT;
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 16*MB, key = k0 + mine + lane/4;
    const RowLayout rows = query_rows(h, pair, h.D), keys = key_rows(h, pair);
    const uint32_t k_tile = shared_address(shared), v_tile = k_tile + COUNT*W*2, stages = v_tile + COUNT*W*2;
    const float c = LOG2E / sqrtf((float)h.D);
    float dk[MB][W/8][4] = {}, dv[MB][W/8][4] = {};

    auto load_stage = [&](int r, int stage) {
        const uint32_t at = stages + stage*STAGE;
        load_tile<QUERIES, W>(at, q, rows, r, h.D);
        load_tile<QUERIES, W>(at + QUERIES*W*2, dout, rows, r, h.D);
        if (threadIdx.x < QUERIES/2)
            cp_async(at + 2*QUERIES*W*2 + threadIdx.x*16, stats + (size_t)pair.i*padded + r + threadIdx.x*2, true);
    };
    load_tile<COUNT, W>(k_tile, kv, keys, k0, h.D);
    load_tile<COUNT, W>(v_tile, kv + to_values(h), keys, k0, h.D);
    int r0 = k0*h.Q / QUERIES * QUERIES, stage = 0;                     // the first tile with a query that sees a key
    load_stage(r0, stage);
    cp_async_commit();
    for (bool more = true; more; r0 += QUERIES, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();                                        // this stage has arrived, and the other one is used up
        more = r0 + QUERIES < rows.count && (!LIMITED || first_key(h, pair, rows, r0 + QUERIES) < k0 + COUNT);
        if (more) load_stage(r0 + QUERIES, stage ^ 1);
        cp_async_commit();
        const uint32_t q_tile = stages + stage*STAGE, do_tile = q_tile + QUERIES*W*2;
        const Stats *of = (const Stats *)(shared + 2*COUNT*W*2 + stage*STAGE + 2*QUERIES*W*2) + lane%4*2;
        #pragma unroll 1
        for (int from = 0; from < QUERIES; from += STEP) {
            float p[MB][STEP/8][4] = {}, ds[MB][STEP/8][4] = {};
            scores<W>(p, k_tile + down_first<W>(mine), q_tile + across_first<W>(from));
            EACH_ELEMENT(MB, STEP/8) p[m][n][i] = exp2_fast(p[m][n][i] * c - of[from + n*8 + i%2].lse);
            if ((k0 + COUNT - 1) * h.Q > r0 + from)                     // the first query does not see the last key
                EACH_ELEMENT(MB, STEP/8) if ((key + m*16 + i/2*8) * h.Q > r0 + from + n*8 + lane%4*2 + i%2)
                    p[m][n][i] = 0;
            // the last query does not see the first key
            if (LIMITED && first_key(h, pair, rows, r0 + from + STEP - 1) > k0)
                EACH_ELEMENT(MB, STEP/8)
                    if (key + m*16 + i/2*8 < first_key(h, pair, rows, r0 + from + n*8 + lane%4*2 + i%2)) p[m][n][i] = 0;
            accumulate<W>(dv, p, do_tile + down_first<W>(from));
            scores<W>(ds, v_tile + down_first<W>(mine), do_tile + across_first<W>(from));
            EACH_ELEMENT(MB, STEP/8) ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - of[from + n*8 + i%2].delta);
            accumulate<W>(dk, ds, q_tile + down_first<W>(from));
        }
    }
    EACH_ELEMENT(MB, W/8) dk[m][n][i] *= c * LN2;
    store_rows<W>(dkv, keys, k0 + mine, shared, mine, dk, h.D);
    store_rows<W>(dkv + to_values(h), keys, k0 + mine, shared + COUNT*W*2, mine, dv, h.D);
}

// flash_backward_queries: a block has 128 packed rows of q and do (a warp 32) and goes through
// their keys and values, STEP at a time, in two stages: p and dp together, then ds = p (dp -
// delta), dq += ds k.   6*D flop per pair; at most 96 KiB of shared memory.
template <int W> struct QueryTile { enum { STEP = W == 128 ? 32 : 64 }; };
template <int W> static constexpr size_t queries_shared() { return (size_t)(2*ROWS + 4*QueryTile<W>::STEP) * W * 2; }
template <int W, bool LIMITED> __global__ static void __launch_bounds__(THREADS, 2)
flash_backward_queries(floatX *dq, const floatX *dout, const Stats *stats, const floatX *q, const floatX *kv,
                       HeadLayout h, int padded) {
    extern __shared__ __align__(1024) unsigned char shared[];
    enum { STEP = QueryTile<W>::STEP, STAGE = 2*STEP*W*2 };
    const int tiles = (h.T*h.Q + ROWS - 1) / ROWS;
    const Pair pair = pair_at(h, blockIdx.x / tiles);
    const int r0 = ((pair.i + 1)*tiles - 1 - (int)blockIdx.x) * ROWS;
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 32, row = r0 + mine + lane/4;
    const RowLayout rows = query_rows(h, pair, h.D), keys = key_rows(h, pair);
    const uint32_t q_tile = shared_address(shared), do_tile = q_tile + ROWS*W*2, stages = do_tile + ROWS*W*2;
    const int end = uniform((min(r0 + ROWS, rows.count) - 1) / h.Q + 1);
    const float c = LOG2E / sqrtf((float)h.D);
    float result[2][W/8][4] = {};
    Stats of[4];
    for (int i = 0; i < 4; i++) of[i] = stats[(size_t)pair.i*padded + row + i*8];
    const int begin = LIMITED ? uniform(first_key(h, pair, rows, r0)) / STEP * STEP : 0;
    const int latest = LIMITED ? uniform(first_key(h, pair, rows, r0 + mine + 31)) : 0;

    auto load_stage = [&](int key, int stage) {
        load_tile<STEP, W>(stages + stage*STAGE, kv, keys, key, h.D);
        load_tile<STEP, W>(stages + stage*STAGE + STEP*W*2, kv + to_values(h), keys, key, h.D);
    };
    load_tile<ROWS, W>(q_tile, q, rows, r0, h.D);
    load_tile<ROWS, W>(do_tile, dout, rows, r0, h.D);
    load_stage(begin, 0);
    cp_async_commit();
    for (int k0 = begin, stage = 0; k0 < end; k0 += STEP, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();                                        // this stage has arrived, and the other one is used up
        if (k0 + STEP < end) load_stage(k0 + STEP, stage ^ 1);
        cp_async_commit();
        const uint32_t k_tile = stages + stage*STAGE, v_tile = k_tile + STEP*W*2;
        float p[2][STEP/8][4] = {}, ds[2][STEP/8][4] = {};
        scores<W>(p, q_tile + down_first<W>(mine), k_tile + across_first<W>(0));
        scores<W>(ds, do_tile + down_first<W>(mine), v_tile + across_first<W>(0));
        EACH_ELEMENT(2, STEP/8) p[m][n][i] = exp2_fast(p[m][n][i] * c - of[m*2 + i/2].lse);
        if ((k0 + STEP - 1) * h.Q > r0 + mine) mask_keys(p, 0, row, k0, h.Q);
        if (LIMITED && latest > k0) mask_before(p, 0, h, pair.i, row, k0);
        EACH_ELEMENT(2, STEP/8) ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - of[m*2 + i/2].delta);
        accumulate<W>(result, ds, k_tile + down_first<W>(0));
    }
    EACH_ELEMENT(2, W/8) result[m][n][i] *= c * LN2;
    store_rows<W>(dq, rows, r0 + mine, shared, mine, result, h.D);
}

// Can the tensor cores do it? flash_width: the index of width 32, 64 or 128 in the tables.
static bool flash_can(int D, bool vectors) { return vectors && D <= 128; }
static int  flash_width(int D) { return D <= 32 ? 0 : D <= 64 ? 1 : 2; }

#define BOTH(kernel, W) { kernel<W, false>, kernel<W, true> }               // all keys, by reach
static void flash_launch_forward(floatX *out, float *lse, const floatX *q, const floatX *kv, int B, HeadLayout h) {
    typedef void Kernel(floatX *, float *, const floatX *, const floatX *, HeadLayout);
    static const struct { Kernel *kernel[2]; size_t shared; } table[] = {
        { BOTH(flash_forward, 32), forward_shared<32>() }, { BOTH(flash_forward, 64), forward_shared<64>() },
        { BOTH(flash_forward, 128), forward_shared<128>() } };
    const auto &at = table[flash_width(h.D)];
    Kernel *const kernel = at.kernel[h.reach != NULL];
    LAUNCH(kernel, (unsigned)(divide_up((size_t)h.T*h.Q, ROWS) * B*h.G), THREADS, at.shared, out, lse, q, kv, h);
}
static void flash_launch_backward(floatX *dq, floatX *dkv, const floatX *dout, const Stats *stats,
                                  const floatX *q, const floatX *kv, int B, HeadLayout h) {
    typedef void Kernel(floatX *, const floatX *, const Stats *, const floatX *, const floatX *, HeadLayout, int);
    static const struct { Kernel *kernel[2]; size_t shared; int keys; } of_keys[] = {
        { BOTH(flash_backward_keys, 32), keys_shared<32>(), KeyTile<32>::COUNT },
        { BOTH(flash_backward_keys, 64), keys_shared<64>(), KeyTile<64>::COUNT },
        { BOTH(flash_backward_keys, 128), keys_shared<128>(), KeyTile<128>::COUNT } };
    static const struct { Kernel *kernel[2]; size_t shared; } of_queries[] = {
        { BOTH(flash_backward_queries, 32), queries_shared<32>() },
        { BOTH(flash_backward_queries, 64), queries_shared<64>() },
        { BOTH(flash_backward_queries, 128), queries_shared<128>() } };
    const auto &k = of_keys[flash_width(h.D)];
    const auto &r = of_queries[flash_width(h.D)];
    Kernel *const for_keys = k.kernel[h.reach != NULL], *const for_queries = r.kernel[h.reach != NULL];
    const int padded = (int)padded_rows(h);
    LAUNCH(for_keys, (unsigned)(divide_up((size_t)h.T, (size_t)k.keys) * B*h.G), THREADS, k.shared,
           dkv, dout, stats, q, kv, h, padded);
    LAUNCH(for_queries, (unsigned)(divide_up((size_t)h.T*h.Q, ROWS) * B*h.G), THREADS, r.shared,
           dq, dout, stats, q, kv, h, padded);
}
#else
static bool flash_can(int, bool) { return false; }
static void flash_launch_forward(floatX *, float *, const floatX *, const floatX *, int, HeadLayout) {}
static void flash_launch_backward(floatX *, floatX *, const floatX *, const Stats *, const floatX *, const floatX *,
                                  int, HeadLayout) {}
#endif

// ==== plain arithmetic ===========================================================================
// The same algorithms for any D and any alignment, in f32. All tiles are squares of 64 x 64. A
// block has 256 threads, 16 across and 16 down; thread (x, y) has the elements in rows y + 16*i and
// columns x + 16*j. A head of more than 64 elements is processed in pieces of 64 columns. A block
// computes SPAN pieces of the result; for further pieces scores are computed again.
enum { SIDE = 64, PITCH = SIDE + 1, SPAN = 2, PLAIN_THREADS = 256 };    // odd pitch: no bank conflicts either way

__device__ static inline void load_square(float *square, const floatX *x, const RowLayout &p, int first,
                                          int column, int D) {
    for (int i = threadIdx.x; i < SIDE*SIDE; i += PLAIN_THREADS) {
        const int row = i / SIDE, d = i % SIDE, r = first + row;
        square[row*PITCH + d] = r < p.count && column + d < D ? R(x[p.at(r) + column + d]) : 0;
    }
}
__device__ static inline void store_square(floatX *x, const RowLayout &p, int first, int column,
                                           const float (&sum)[4][4], int D) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int r = first + threadIdx.x/16 + 16*i, d = column + threadIdx.x%16 + 16*j;
            if (r < p.count && d < D) x[p.at(r) + d] = X(sum[i][j]);
        }
}
__device__ static inline void write_square(float *square, const float (&x)[4][4]) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) square[(threadIdx.x/16 + 16*i)*PITCH + threadIdx.x%16 + 16*j] = x[i][j];
}
// sum += a b, where element (m, k) of a is a[m*a_row + k*a_column], and likewise b: squares or
// their transposes. Sums of 16 terms are added: exp would magnify a long one's errors.
__device__ static inline void multiply(float (&sum)[4][4], const float *a, int a_row, int a_column,
                                       const float *b, int b_row, int b_column) {
    a += threadIdx.x/16 * a_row;
    b += threadIdx.x%16 * b_column;
    #pragma unroll 1
    for (int k0 = 0; k0 < SIDE; k0 += 16) {
        float part[4][4] = {};
        #pragma unroll 4
        for (int k = k0; k < k0 + 16; k++)
            #pragma unroll
            for (int i = 0; i < 4; i++)
                #pragma unroll
                for (int j = 0; j < 4; j++) part[i][j] += a[16*i*a_row + k*a_column] * b[k*b_row + 16*j*b_column];
        #pragma unroll
        for (int i = 0; i < 4; i++)
            #pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] += part[i][j];
    }
}
// sum = rows x times rows y, over all D columns.
__device__ static inline void dots(float (&sum)[4][4], float *a, float *b, const floatX *x, const RowLayout &x_rows,
                                   int x_first, const floatX *y, const RowLayout &y_rows, int y_first, int D) {
    for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) sum[i][j] = 0;
    for (int d = 0; d < D; d += SIDE) {
        __syncthreads();
        load_square(a, x, x_rows, x_first, d, D);
        load_square(b, y, y_rows, y_first, d, D);
        __syncthreads();
        multiply(sum, a, PITCH, 1, b, 1, PITCH);
    }
}
// For each piece i < SPAN: sum[i] += weights (or transpose) times columns column + i*SIDE.. of y.
__device__ static inline void add_products(float (&sum)[SPAN][4][4], float *a, float *b, const float (&weights)[4][4],
                                           bool transposed, const floatX *y, const RowLayout &y_rows, int y_first,
                                           int column, int D) {
    __syncthreads();
    write_square(a, weights);
    #pragma unroll
    for (int piece = 0; piece < SPAN; piece++) {
        if (column + piece*SIDE >= D) continue;
        __syncthreads();
        load_square(b, y, y_rows, y_first, column + piece*SIDE, D);
        __syncthreads();
        multiply(sum[piece], a, transposed ? 1 : PITCH, transposed ? PITCH : 1, b, PITCH, 1);
    }
}

// What a plain kernel's block computes: SPAN*64 columns of the result of a pair's 64 rows, or keys.
struct Slice { Pair pair; int tile, column; };
__device__ static inline Slice my_slice(HeadLayout h, int count) {
    const int pieces = (h.D + SPAN*SIDE - 1) / (SPAN*SIDE), tiles = (count + SIDE - 1) / SIDE;
    const int i = blockIdx.x / pieces;
    return { pair_at(h, i / tiles), i % tiles, (int)(blockIdx.x % pieces) * SPAN*SIDE };
}
static unsigned plain_grid(size_t count, int B, HeadLayout h) {
    return (unsigned)(divide_up(count, SIDE) * divide_up((size_t)h.D, SPAN*SIDE) * B*h.G);
}

// plain_forward: flash_forward with tiles of 64 x 64. 33 KiB of shared memory.
__global__ static void __launch_bounds__(PLAIN_THREADS)
plain_forward(floatX *out, float *lse, const floatX *q, const floatX *kv, HeadLayout h) {
    __shared__ float a[SIDE*PITCH], b[SIDE*PITCH];
    const Slice slice = my_slice(h, h.T*h.Q);
    const RowLayout rows = query_rows(h, slice.pair, h.D), keys = key_rows(h, slice.pair);
    const int r0 = slice.tile*SIDE, x = threadIdx.x % 16, y = threadIdx.x / 16;
    const int end = (min(r0 + SIDE, rows.count) - 1) / h.Q + 1;
    const float scale = 1 / sqrtf((float)h.D);
    float result[SPAN][4][4] = {}, top[4], sum[4], s[4][4];
    for (int i = 0; i < 4; i++) { top[i] = -INFINITY; sum[i] = 0; }

    for (int k0 = first_key(h, slice.pair, rows, r0) / SIDE * SIDE; k0 < end; k0 += SIDE) {
        dots(s, a, b, q, rows, r0, kv, keys, k0, h.D);
        for (int i = 0; i < 4; i++) {
            const int r = r0 + y + 16*i, first = first_key(h, slice.pair, rows, r);
            float max = -INFINITY, total = 0;
            for (int j = 0; j < 4; j++) {
                const int key = k0 + x + 16*j;
                s[i][j] = key * h.Q > r ? -INFINITY : key < first ? UNSEEN : s[i][j] * scale;
                max = fmaxf(max, s[i][j]);
            }
            max = fmaxf(warp_max<16>(max), top[i]);
            const float shrink = expf(top[i] - max);
            top[i] = max;
            for (int j = 0; j < 4; j++) total += s[i][j] = expf(s[i][j] - max);
            total = warp_sum<16>(total);
            sum[i] = sum[i] * shrink + total;
            for (int piece = 0; piece < SPAN; piece++) for (int j = 0; j < 4; j++) result[piece][i][j] *= shrink;
        }
        add_products(result, a, b, s, false, kv + to_values(h), keys, k0, slice.column, h.D);
    }
    for (int i = 0; i < 4; i++) {
        const int r = r0 + y + 16*i;
        if (x == 0 && slice.column == 0 && r < rows.count)
            lse[query_rows(h, slice.pair, 1).at(r)] = top[i] + logf(sum[i]);
        for (int piece = 0; piece < SPAN; piece++) for (int j = 0; j < 4; j++) result[piece][i][j] /= sum[i];
    }
    #pragma unroll
    for (int piece = 0; piece < SPAN; piece++)
        store_square(out, rows, r0, slice.column + piece*SIDE, result[piece], h.D);
}

// p and ds of 64 rows and 64 keys, for both kernels below.
__device__ static inline void recompute_weights(float (&p)[4][4], float (&ds)[4][4], float *a,
                                                float *b, const floatX *dout, const Stats *stats, const floatX *q,
                                                const floatX *kv, HeadLayout h, int padded, Pair pair, int r0, int k0) {
    const RowLayout rows = query_rows(h, pair, h.D);
    const float scale = 1 / sqrtf((float)h.D);
    dots(p, a, b, q, rows, r0, kv, key_rows(h, pair), k0, h.D);
    dots(ds, a, b, dout, rows, r0, kv + to_values(h), key_rows(h, pair), k0, h.D);
    for (int i = 0; i < 4; i++) {
        const int r = r0 + threadIdx.x/16 + 16*i, first = first_key(h, pair, rows, r);
        const Stats of = stats[(size_t)pair.i*padded + r];
        for (int j = 0; j < 4; j++) {
            const int key = k0 + threadIdx.x%16 + 16*j;
            p[i][j] = key*h.Q <= r && key >= first ? expf(p[i][j] * scale - of.lse) : 0;
            ds[i][j] = p[i][j] * (ds[i][j] - of.delta) * scale;
        }
    }
}
// plain_backward_keys, plain_backward_queries: as flash_backward_keys and flash_backward_queries.
__global__ static void __launch_bounds__(PLAIN_THREADS)
plain_backward_keys(floatX *dkv, const floatX *dout, const Stats *stats, const floatX *q, const floatX *kv,
                    HeadLayout h, int padded) {
    __shared__ float a[SIDE*PITCH], b[SIDE*PITCH];
    const Slice slice = my_slice(h, h.T);
    const RowLayout rows = query_rows(h, slice.pair, h.D);
    const int k0 = slice.tile*SIDE;
    float dk[SPAN][4][4] = {}, dv[SPAN][4][4] = {}, p[4][4], ds[4][4];
    for (int r0 = k0*h.Q / SIDE * SIDE; r0 < rows.count && first_key(h, slice.pair, rows, r0) < k0 + SIDE; r0 += SIDE) {
        recompute_weights(p, ds, a, b, dout, stats, q, kv, h, padded, slice.pair, r0, k0);
        add_products(dv, a, b, p, true, dout, rows, r0, slice.column, h.D);
        add_products(dk, a, b, ds, true, q, rows, r0, slice.column, h.D);
    }
    #pragma unroll
    for (int piece = 0; piece < SPAN; piece++) {
        store_square(dkv, key_rows(h, slice.pair), k0, slice.column + piece*SIDE, dk[piece], h.D);
        store_square(dkv + to_values(h), key_rows(h, slice.pair), k0, slice.column + piece*SIDE, dv[piece], h.D);
    }
}
__global__ static void __launch_bounds__(PLAIN_THREADS)
plain_backward_queries(floatX *dq, const floatX *dout, const Stats *stats, const floatX *q, const floatX *kv,
                       HeadLayout h, int padded) {
    __shared__ float a[SIDE*PITCH], b[SIDE*PITCH];
    const Slice slice = my_slice(h, h.T*h.Q);
    const RowLayout rows = query_rows(h, slice.pair, h.D), keys = key_rows(h, slice.pair);
    const int r0 = slice.tile*SIDE, end = (min(r0 + SIDE, rows.count) - 1) / h.Q + 1;
    float result[SPAN][4][4] = {}, p[4][4], ds[4][4];
    for (int k0 = first_key(h, slice.pair, rows, r0) / SIDE * SIDE; k0 < end; k0 += SIDE) {
        recompute_weights(p, ds, a, b, dout, stats, q, kv, h, padded, slice.pair, r0, k0);
        add_products(result, a, b, ds, false, kv, keys, k0, slice.column, h.D);
    }
    #pragma unroll
    for (int piece = 0; piece < SPAN; piece++)
        store_square(dq, rows, r0, slice.column + piece*SIDE, result[piece], h.D);
}

// ==== the operations =============================================================================

static void attention_forward(floatX *out, float *lse, const floatX *q, const floatX *kv, const int *reach,
                              HeadOrder order, int B, int T, int G, int Q, int D) {
    const HeadLayout h = { order, T, G, Q, D, reach };
    if (flash_can(D, wide(D, out, q, kv))) flash_launch_forward(out, lse, q, kv, B, h);
    else LAUNCH(plain_forward, plain_grid((size_t)T*Q, B, h), PLAIN_THREADS, 0, out, lse, q, kv, h);
}
static void attention_backward(floatX *dq, floatX *dkv, const floatX *dout, const floatX *out, const float *lse,
                               const floatX *q, const floatX *kv, const int *reach, HeadOrder order, int B, int T,
                               int G, int Q, int D) {
    const HeadLayout h = { order, T, G, Q, D, reach };
    const bool vectors = wide(D, dout, out), flash = flash_can(D, vectors && wide(D, dq, dkv, q, kv));
    const size_t padded = padded_rows(h), count = padded * B*G;
    Stats *stats = (Stats *)workspace(count * sizeof *stats);
    LAUNCH(stats_kernel, (unsigned)(count / 32), 256, 0,
           stats, dout, out, lse, h, (int)padded, flash ? LOG2E : 1, vectors);
    if (flash) flash_launch_backward(dq, dkv, dout, stats, q, kv, B, h);
    else {
        LAUNCH(plain_backward_keys, plain_grid((size_t)T, B, h), PLAIN_THREADS, 0, dkv, dout, stats, q, kv, h,
               (int)padded);
        LAUNCH(plain_backward_queries, plain_grid((size_t)T*Q, B, h), PLAIN_THREADS, 0, dq, dout, stats, q, kv, h,
               (int)padded);
    }
}
PART(attention) { d->attention_forward = attention_forward; d->attention_backward = attention_backward; }
