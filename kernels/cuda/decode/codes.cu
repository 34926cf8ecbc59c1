// decode/codes.cu: a layer's products for 2 to 8 tokens whose weights are codes of 8 or 4 bits. For
// one token, and for numbers, there is layer.cu, with the same order of launches and of waits.
//
// Codes are few bytes, so that instructions would take longer than memory: tensor cores multiply.
// A warp multiplies 16 rows of a weight (a of mma_bf16) with all tokens (columns of b). Each lane
// reads 16 bytes of two of the rows, a piece, and makes bf16 of them (widen): a code's bits at
// the low end of the exponent are its value times a small power of two, and tokens are multiplied
// by 2^64, so that no product is too small for a float. All of this is exact. (NaN as a code counts
// as 480: weight_to_codes gives it to whole blocks only, whose scale is NaN, too.)
//
// The order of the reduction is free: a lane's elements are where it finds them in its piece, and
// tokens are put into that order (prepared). A column of b is a token. For 4 bits it is one of the
// four blocks of 32 that the lanes of a row hold, so that each block's sum meets its own scale: a
// token takes four columns, which are zeros but for its block. So 8 and 2 tokens cost the same.
#include "layer.cuh"

#if defined(PRECISION_BF16)
enum {
    ROWS = 16,
    SPLIT = 4, GROUP = 32 * SPLIT,  // warps of decode_in that share a tile, and their threads
    ZEROS = 40                      // at the end of a token in shared memory; so, rows begin in different banks
};

template <Format F> struct Pieces {                         // of two rows, g and g + 8 of a tile
    enum { PER = per_lane(F), WIDE = 4 * PER, SCALES = F == OF_FP8 ? 1 : 2 };
    uint4 code[2];
    uint32_t scale[2][SCALES];                              // as in memory
    // c: the warp's first element. Past the row's end any codes do: tokens have zeros there.
    __device__ void load(const Row (&row)[2], int c, int C) {
        const int t = threadIdx.x % 4, mine = min(c + t * PER, C - PER);
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            code[r] = *(const uint4 *)(row[r].at + (F == OF_FP8 ? mine : mine / 2));
            #pragma unroll
            for (int i = 0; i < SCALES; i++) {              // of 4 bits: of the blocks in this lane's columns
                if (F == OF_FP8) scale[r][i] = ((const uint32_t *)row[r].scale)[min(c, C - 1) / FP8_BLOCK];
                else scale[r][i] = row[r].scale[min(c / MXFP4_BLOCK + t % 2 * 2 + i, C / MXFP4_BLOCK - 1)];
            }
        }
    }
    __device__ float scale_of(int r, int i) const {
        return F == OF_FP8 ? __uint_as_float(scale[r][i]) : scale_of_4_bits((uint8_t)scale[r][i]);
    }
};
// 2^-64 over the value of a code as bf16: 2^-120 of e4m3, whose bias is 7, and 2^-126 of e2m1.
template <Format F> __device__ constexpr float unit(void) { return F == OF_FP8 ? 0x1p56f : 0x1p62f; }
// Eight elements of a token as widen has codes, times 2^64.
template <Format F> __device__ static inline uint4 prepared(const Vec &v) {
    const uint4 x = in_order<F>(v);
    const uint32_t by = 0x5f805f80;                         // 2^64
    return { product_bf16(x.x, by), product_bf16(x.y, by), product_bf16(x.z, by), product_bf16(x.w, by) };
}
// The token of this lane's column in a group of columns. Those after the last count for nothing.
template <Format F> __device__ static inline int token_of(int group, int N) {
    const int g = threadIdx.x % 32 / 4;
    return min(F == OF_FP8 ? g : 2 * group + g / 4, N - 1);
}
template <Format F> __device__ static inline bool in_column(void) {
    return F == OF_FP8 || threadIdx.x / 4 % 4 == threadIdx.x % 4;
}
// sum += weight scale w x. x(group, j): elements 8j to 8j + 7 of this lane's piece of its column's
// token, prepared, zeros if it is not in_column. weight(n): of token n. sum: of row g and, second,
// g + 8, tokens 2t and 2t + 1; of 4 bits token 2 group + t/2, a part of it in each of two lanes.
template <Format F, int GROUPS, class At, class Of> __device__ static inline void
multiply(float (&sum)[2][4], const Pieces<F> &w, At x, Of weight) {
    typedef Pieces<F> P;
    const int t = threadIdx.x % 4;
    float d[GROUPS][4] = {};
    #pragma unroll
    for (int j = 0; j < P::PER / 8; j++) {
        uint32_t first[4], second[4];
        widen<F>(first, w.code[0], j), widen<F>(second, w.code[1], j);
        const uint32_t a[2][4] = { { first[0], second[0], first[1], second[1] },
                                   { first[2], second[2], first[3], second[3] } };
        #pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            const uint4 v = x(k, j);
            const uint32_t b[2][2] = { { v.x, v.y }, { v.z, v.w } };
            mma_bf16(d[k], a[0], b[0]), mma_bf16(d[k], a[1], b[1]);
        }
    }
    #pragma unroll
    for (int r = 0; r < 2; r++)
        #pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            if (F == OF_FP8) {
                sum[r][0] += weight(2 * t) * (w.scale_of(r, 0) * d[k][2 * r]);
                sum[r][1] += weight(2 * t + 1) * (w.scale_of(r, 0) * d[k][2 * r + 1]);
            } else sum[r][k] += weight(2 * k + t / 2) * (w.scale_of(r, 0) * d[k][2 * r]
                                                         + w.scale_of(r, P::SCALES - 1) * d[k][2 * r + 1]);
        }
}
// A warp's sums to shared memory, for the block to add up.
typedef float Sums[WARPS][ROWS][CODED_TOKENS];
template <Format F, int GROUPS> __device__ static inline void put_sums(Sums &to, float (&sum)[2][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int r = 0; r < 2; r++)
        #pragma unroll
        for (int k = 0; k < (F == OF_FP8 ? 2 : GROUPS); k++) {
            float *const at = to[threadIdx.x / 32][8 * r + g];
            if (F == OF_FP8) at[2 * t + k] = sum[r][k];
            else {
                const float both = sum[r][k] + __shfl_xor_sync(ALL, sum[r][k], 1);
                if (t % 2 == 0) at[2 * k + t / 2] = both;
            }
            sum[r][k] = 0;
        }
}
// Of `warps` warps from the first on.
template <Format F, int warps> __device__ static inline float sum_of(const Sums &from, int first, int row, int n) {
    float sum = 0;
    #pragma unroll
    for (int w = first; w < first + warps; w++) sum += from[w][row][n];
    return sum * unit<F>();
}
// Rows of tokens to shared memory, prepared, zeros after their end, by a block.
template <Format F> __device__ static inline void stage(floatX *x, const floatX *inp, int rows, int C, int x_row) {
    const int vectors = x_row / VECTOR;
    #pragma unroll 2
    for (int i = threadIdx.x; i < rows * vectors; i += THREADS) {
        const int r = i / vectors, c = (i - r * vectors) * VECTOR;
        *(uint4 *)(x + r * x_row + c) = c < C ? prepared<F>(load_vec(inp + (size_t)r * C + c)) : uint4{};
    }
}

// ---- decode_in ----------------------------------------------------------------------------------

// The tokens, normalized unless decode_router did that: each by the warps of a number modulo
// `tokens`. All of them add up its squares, and each takes a part.
template <Format F> __device__ static inline void stage_tokens(floatX *x, const InArgs &p) {
    const int C = p.C, tokens = p.N > 4 ? 8 : p.N > 2 ? 4 : 2, n = threadIdx.x / 32 % tokens;
    const floatX *const inp = p.inp + (size_t)n * C;
    float sum = 0;
    if (p.logits) stage<F>(x, p.inp, p.N, C, p.x_row);
    if (p.logits || n >= p.N) return;
    #pragma unroll 4
    for (int c = threadIdx.x % 32 * VECTOR; c < C; c += CHUNK) add_squares(sum, load_vec(inp + c));
    const float rstd = rsqrtf(__fdividef(warp_sum(sum), (float)C) + p.norm.eps);
    const int first = threadIdx.x / 32 / tokens * 32 + threadIdx.x % 32;
    #pragma unroll 1
    for (int c = first * VECTOR; c < p.x_row; c += THREADS / tokens * VECTOR) {
        uint4 v = {};
        if (c < C) v = prepared<F>(normalized(load_vec(inp + c), rstd, load_vec(p.norm.weight + c)));
        *(uint4 *)(x + n * p.x_row + c) = v;
    }
}

// A tile: 16 rows of an expert's weight or of plain_w; a gated one has 8 of gate and of up.
template <bool gated> struct Tile {
    bool plain, pairs;
    int a, o, height, width;                                // index in active, first output, outputs, all outputs
    __device__ Tile(const InArgs &p, int unit, int routed) {
        const int rows = gated ? ROWS / 2 : ROWS, tiles = (p.O + rows - 1) / rows;
        plain = unit >= routed, pairs = gated && !plain, height = pairs ? ROWS / 2 : ROWS, width = plain ? p.P : p.O;
        a = plain ? 0 : unit / tiles, o = (unit - (plain ? routed : a * tiles)) * height;
    }
    __device__ int expert(const InShared &s, const InArgs &p) const {
        return plain || !p.router.weight ? 0 : s.active[a];
    }
    template <Format F> __device__ void rows(Row (&row)[2], const InShared &s, const InArgs &p) const {
        const int g = threadIdx.x % 32 / 4, e = expert(s, p), all = pairs ? 2 * width : width;
        const int first = min(o + g, width - 1), second = pairs ? first + width : min(o + ROWS / 2 + g, width - 1);
        row[0] = row_of<F>(plain ? p.plain_w : p.w, e, first, all, p.C);
        row[1] = row_of<F>(plain ? p.plain_w : p.w, e, second, all, p.C);
    }
    // The results, from the sums of the group's warps, by its threads.
    template <Format F> __device__ void store(const Sums &from, const InShared &s, const InArgs &p) const {
        const int warp = threadIdx.x / GROUP * SPLIT, e = expert(s, p);
        #pragma unroll 1
        for (int i = threadIdx.x % GROUP; i < height * p.N; i += GROUP) {
            const int r = i % height, n = i / height, out = o + r;
            const int to = out >= width ? -1 : plain || !p.router.weight ? n : s.slot[a * p.N + n];
            auto pre = [&](int second) {
                const real x = R(X(sum_of<F, SPLIT>(from, warp, r + second * (ROWS / 2), n)));
                if (!p.bias || plain) return x;
                return R(X(x + R(p.bias[(size_t)e * width * (pairs ? 2 : 1) + out + second * width])));
            };
            if (to < 0) continue;
            (plain ? p.plain : p.out)[(size_t)to * width + out] =
                X(pairs ? gated_act(pre(0), pre(1), p.f) : activated(pre(0), plain ? IDENTITY : p.f));
        }
    }
};
// The experts of all tokens to s.active and s.slot, by a block, from the logits; how many.
__device__ static inline int choose_experts(const InShared &s, bool stores_choice, const InArgs &p) {
    #pragma unroll 1
    for (int i = threadIdx.x; i < p.N * p.router.E; i += THREADS) s.logits[i] = p.logits[i];
    __syncthreads();
    rank_experts(s, p);
    if (stores_choice && threadIdx.x / 32 < p.N) store_choice(s, p, threadIdx.x / 32, false);
    return active_experts(s.active, s.slot, s.expert, p.N, p.router.K);
}

// The chosen experts' rows of decode_out's weight, for L2.
__device__ static inline void prefetch_next(const InShared &s, int count, const InArgs &p) {
    const int choosing = p.router.weight ? 1 : 0;
    #pragma unroll 1
    for (int a = 0; a < count && p.next.at; a++)
        prefetch((const char *)p.next.at + (choosing ? s.active[a] : 0) * p.next_bytes, (unsigned)(p.next_bytes / 128),
                 (blockIdx.x - choosing) * THREADS + threadIdx.x, (gridDim.x - choosing) * THREADS);
}

// Reads each row of the chosen experts and of the plain product once for all tokens. With a router
// block 0 stores the choice and does nothing else.
template <Format F, int GROUPS, bool gated> static __global__ __launch_bounds__(THREADS, 2)
void decode_in_codes_kernel(const InArgs p) {
    typedef Pieces<F> P;
    enum { PARTS = GROUPS == 1 ? 2 : 1 };                   // pieces of each row that are requested at once
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Sums sums[2];
    const InShared s(shared, p);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, N = p.N, C = p.C, choosing = p.router.weight ? 1 : 0;
    const int rows = gated ? ROWS / 2 : ROWS, tiles = (p.O + rows - 1) / rows, plain_tiles = (p.P + ROWS - 1) / ROWS;
    const int parts = (C + PARTS * SPLIT * P::WIDE - 1) / (PARTS * SPLIT * P::WIDE);
    const int stride = (gridDim.x - choosing) * (WARPS / SPLIT);
    int unit = (blockIdx.x - choosing) * (WARPS / SPLIT) + warp / SPLIT, part = 0, buffer = 0, routed = tiles;
    Array<P, PARTS> w;                                      // requested while the ones before are used
    Row row[2];
    auto at = [&](int of, int i) { return ((of * PARTS + i) * SPLIT + warp % SPLIT) * P::WIDE; };
    auto request = [&](int unit, int of) {
        if (unit >= routed + plain_tiles) return;
        if (!of) Tile<gated>(p, unit, routed).template rows<F>(row, s, p);
        #pragma unroll
        for (int i = 0; i < PARTS; i++) w.x[i].load(row, at(of, i), C);
    };
    // What does not depend on the kernel before.
    let_next_start();                                       // decode_out reads the choice after its wait
    if (!choosing) request(unit, 0);
    wait_for_previous();
    if (choosing) {
        routed = choose_experts(s, !blockIdx.x, p) * tiles;
        if (!blockIdx.x) return;
        request(unit, 0);
    }
    stage_tokens<F>(s.x, p);
    __syncthreads();
    float sum[2][4] = {};
    const floatX *x[GROUPS], *const zeros = s.x + p.x_row - ZEROS;
    #pragma unroll
    for (int k = 0; k < GROUPS; k++)
        x[k] = in_column<F>() ? s.x + token_of<F>(k, N) * p.x_row + lane % 4 * P::PER : zeros;
    #pragma unroll 1
    while (unit < routed + plain_tiles) {
        const bool ends = part + 1 == parts;
        const int after = ends ? unit + stride : unit, next = ends ? 0 : part + 1;
        const Array<P, PARTS> now = w;
        request(after, next);
        #pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int c = at(part, i);
            multiply<F, GROUPS>(sum, now.x[i], [&](int k, int j) {
                return *(const uint4 *)((c < C ? x[k] + (in_column<F>() ? c : 0) : zeros) + 8 * j);
            }, [](int) { return 1.0f; });
        }
        if (ends) {
            put_sums<F, GROUPS>(sums[buffer], sum);
            named_barrier_sync(1 + warp / SPLIT, GROUP);
            Tile<gated>(p, unit, routed).template store<F>(sums[buffer], s, p);
            buffer = 1 - buffer;
        }
        unit = after, part = next;
    }
    prefetch_next(s, routed / tiles, p);
}

// ---- decode_out ---------------------------------------------------------------------------------

// The end of decode_out, a thread for each (row, token).
template <Format F> __device__ static inline void
store_columns(const Sums &sums, const float *weight, const int *expert, const OutArgs &p) {
    const int n = threadIdx.x / ROWS, o = blockIdx.x * ROWS + threadIdx.x % ROWS, K = p.K;
    const bool choosing = p.choice.expert;
    const size_t to = (size_t)n * p.O + o;
    if (n >= p.N || o >= p.O) return;
    real total = sum_of<F, WARPS>(sums, 0, threadIdx.x % ROWS, n) + (p.bias ? R(p.bias[o]) : 0);
    #pragma unroll 1
    for (int i = n * K; i < (n + 1) * K && p.expert_bias; i++)
        total += (choosing ? weight[i] : 1) * R(p.expert_bias[(size_t)(choosing ? expert[i] : 0) * p.O + o]);
    p.out[to] = X(R(p.residual[to]) + p.scale * R(X(total)));
}
// A block computes 16 columns of the result for all tokens: a sum over the pieces of all active
// experts' rows, in which products are multiplied by the token's weight. inverse: 2^32 / pieces of
// a row, rounded up; 0: there is one.
template <Format F, int GROUPS> static __global__ __launch_bounds__(THREADS, 2)
void decode_out_codes_kernel(const OutArgs p, unsigned inverse) {
    typedef Pieces<F> P;
    enum { PARTS = F == OF_FP8 ? 4 : GROUPS == 1 ? 3 : 1 };
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Sums sums;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, N = p.N, C = p.C, S = N * p.K;
    int *const expert = (int *)shared;
    float *const weight = (float *)(expert + S);
    short *const active = (short *)(weight + S), *const slot = active + S;
    const bool choosing = p.choice.expert;
    const int pieces = (C + P::WIDE - 1) / P::WIDE, tile = blockIdx.x * ROWS;
    const int o = min(tile + g, p.O - 1), second = min(o + ROWS / 2, p.O - 1);
    int all = pieces;
    Array<P, PARTS> w;
    auto index_of = [&](int u) { return inverse ? (int)__umulhi(u, inverse) : u; };     // of piece u's expert in active
    auto request = [&](int from) {
        #pragma unroll
        for (int i = 0; i < PARTS && from < all; i++) {
            const int u = min(from + i * WARPS + warp, all - 1), a = index_of(u), e = choosing ? active[a] : 0;
            const Row row[2] = { row_of<F>(p.w, e, o, p.O, C), row_of<F>(p.w, e, second, p.O, C) };
            w.x[i].load(row, (u - a * pieces) * P::WIDE, C);
        }
    };
    let_next_start();
    if (!choosing) request(0);
    wait_for_previous();
    if (choosing) {
        #pragma unroll 1
        for (int i = threadIdx.x; i < S; i += THREADS) expert[i] = p.choice.expert[i], weight[i] = p.choice.weight[i];
        __syncthreads();
        all = active_experts(active, slot, expert, N, p.K) * pieces;
        request(0);
    }
    float sum[2][4] = {};
    #pragma unroll 1
    for (int from = 0; from < all; from += PARTS * WARPS) {
        const Array<P, PARTS> now = w;
        request(from + PARTS * WARPS);
        #pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int u = from + i * WARPS + warp, a = index_of(u), c = (u - a * pieces) * P::WIDE + t * P::PER;
            const uint32_t keep = u < all && c < C && in_column<F>() ? ~0u : 0;
            auto slot_of = [&](int n) { return n >= N || u >= all ? -1 : choosing ? slot[a * N + n] : n; };
            multiply<F, GROUPS>(sum, now.x[i], [&](int k, int j) {
                const floatX *const x = p.inp + (size_t)max(slot_of(token_of<F>(k, N)), 0) * C + min(c, C - P::PER);
                const uint4 v = prepared<F>(load_vec(x + 8 * j));
                return uint4{ v.x & keep, v.y & keep, v.z & keep, v.w & keep };
            }, [&](int n) { return slot_of(n) < 0 ? 0 : choosing ? weight[slot_of(n)] : 1; });
        }
    }
    put_sums<F, GROUPS>(sums, sum);
    __syncthreads();
    store_columns<F>(sums, weight, expert, p);
}

// ---- launches -----------------------------------------------------------------------------------

int codes_fit(int N, int C, int F, int E, int K) {
    const size_t in = in_shared_bytes(N, (size_t)N * (C + Pieces<OF_MXFP4>::WIDE + ZEROS), E, K) + 2 * sizeof(Sums);
    return N <= CODED_TOKENS && C % 16 == 0 && F % 16 == 0 && in <= (size_t)context()->max_shared;
}
void decode_in_codes(InArgs p) {
    static void (*const kernels[3][2])(InArgs) = {
        { decode_in_codes_kernel<OF_FP8, 1, false>, decode_in_codes_kernel<OF_FP8, 1, true> },
        { decode_in_codes_kernel<OF_MXFP4, 1, false>, decode_in_codes_kernel<OF_MXFP4, 1, true> },
        { decode_in_codes_kernel<OF_MXFP4, 4, false>, decode_in_codes_kernel<OF_MXFP4, 4, true> },
    };
    const bool gated = IS_GATED(p.f), four = p.w.format == OF_MXFP4;
    const int E = p.router.E, K = p.router.K, choosing = p.router.weight ? 1 : 0;
    const size_t wide = 4 * per_lane(p.w.format);
    const size_t tiles = min(p.N * K, E) * divide_up(p.O, gated ? ROWS / 2 : ROWS) + divide_up(p.P, ROWS);
    p.x_row = (int)(divide_up(p.C, wide) * wide) + ZEROS, p.x_elements = p.N * p.x_row;
    const size_t shared = in_shared_bytes(p.N, (size_t)p.x_elements, E, K), most = (size_t)context()->sm_count * 2;
    auto *const kernel = kernels[four ? p.N > 2 ? 2 : 1 : 0][gated];
    LAUNCH_EARLY(kernel, (unsigned)min(choosing + divide_up(tiles * SPLIT, WARPS), most), THREADS, shared, p);
}
void decode_out_codes(const OutArgs &p) {
    const bool four = p.w.format == OF_MXFP4;
    auto *const kernel = !four ? decode_out_codes_kernel<OF_FP8, 1> : p.N > 2 ? decode_out_codes_kernel<OF_MXFP4, 4>
        : decode_out_codes_kernel<OF_MXFP4, 1>;
    const size_t S = (size_t)p.N * p.K, pieces = divide_up(p.C, 4 * per_lane(p.w.format));
    LAUNCH_EARLY(kernel, (unsigned)divide_up(p.O, ROWS), THREADS, 8 * S + 2 * S * (p.N + 1), p,
                 pieces > 1 ? (unsigned)((1ull << 32) / pieces + 1) : 0);
}
#endif
