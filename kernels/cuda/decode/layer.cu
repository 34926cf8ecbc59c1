// decode/layer.cu: a layer's products for 1 to 4 tokens (decoding). Kernels take microseconds, so
// two things count: how early they request weights, and how many there are. A layer takes five:
//
//     decode_in               norm, router, choice of experts, product, activation; beside it a
//       plain product (keys and values); a large router first has a kernel decode_router
//     decode_attention        decode/attention.cu
//     decode_out              product, weighted sum over experts, residual
//     decode_in, decode_out   the same for the MLP
//
// Small work is repeated in every block: passing it on takes longer. Rounds as the operations do.
//
// Kernels start early (LAUNCH_EARLY). T: a block calls let_next_start; when all have, the next
// kernel's blocks start. W: wait_for_previous returns: the kernel before has ended.
//
//   in          T | norm, router row | W | norm, choice | rows | prefetch
//   attention        | first keys and values                            | W T | attention
//   out                                                                       | T rows | W | sum
//
//   in, MLP       | norm, router row | W | norm, choice T | rows
//   out                                                   | T choice, rows | W | sum
//
// in, ...: decode_in, ...; norm, router row: weights; rows: of chosen experts; prefetch:
// decode_out's rows. decode_router: T | norm weights, router rows | W | norm | logits.
//
// decode_out, and nothing else, reads before its wait what another kernel writes: the choice of
// experts. It is complete: decode_in stores it before it triggers decode_out, or decode_attention
// in between triggers decode_out only after its own wait; by then decode_in has prefetched the
// rows. (For several tokens decode_out reads it after, and decode_in triggers after the choice.)
//
// Kernels for 2 to 4 tokens come first: they read each expert's rows once for all tokens (codes of
// several: codes.cu). Those for one token, at the end, are short on purpose: they wait for memory
// and chains of instructions.
//
// A block's shared memory, S = N*K slots. For one token decode_in has x in every warp's registers:
//
//   decode_router  x (N,C)
//   decode_in      x (N,C) | scores (N,E) | expert (S) | logits (N,E) | active (S) | slot (S,N)
//   decode_out     products (rows,S) | weight (S) | expert (S) | active (S) | slot (S,N)
#include "layer.cuh"

enum {
    MAX_TOKENS = 4,                 // with more, tensor cores are faster
    IN_CHUNKS = 3, OUT_CHUNKS = 4,  // of each row in flight at once: as registers allow
    SHARED_LIMIT = 40 << 10,        // bytes
    ONE_ROUTER = 1 << 15,           // elements of a router that every block reads for itself
    MAX_EXPERTS = 32,               // and its experts: one for each lane
    MOST_EXPERTS = 512              // of any router: a rank is found by comparing with all
};

// A warp multiplies two rows of a weight at a time: an output's gate and up, else neighbours.
__host__ __device__ static inline int pairs_of(int width, bool gated) { return gated ? width : (width + 1) / 2; }
__device__ static inline int first_row(int pair, bool gated) { return gated ? pair : 2 * pair; }
__device__ static inline int second_row(int first, int width, bool gated) {
    return gated ? first + width : min(first + 1, width - 1);
}

// ---- 2 to 4 tokens: rows times tokens -----------------------------------------------------------

__device__ static inline const floatX *row_of(const Weight &w, unsigned e, int o, int O, int C) {
    return (const floatX *)w.at + (size_t)(e * O + o) * C;
}
// CHUNKS chunks of a row, from this lane's element `from` on. Loads, also of several rows, overlap.
template <int CHUNKS> __device__ static inline void load_chunks(Vec (&w)[CHUNKS], const floatX *row, int from, int C) {
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) if (from + i * CHUNK < C) w[i] = load_vec(row + from + i * CHUNK);
}
// sum[r][n] += the product of these chunks of row r and x's row for token n: n (by_token) or at[n].
// Tokens with at[n] < 0 are left out.
template <int ROWS, int NT, bool by_token, int CHUNKS> __device__ static inline void
add_chunks(float sum[ROWS][NT], const Vec (&w)[ROWS][CHUNKS], const floatX *x, const int at[NT], int from, int C) {
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int c = from + i * CHUNK;
        if (c >= C) continue;
        #pragma unroll
        for (int n = 0; n < NT; n++)
            if (at[n] >= 0) {
                const Vec v = load_vec(x + (size_t)(by_token ? n : at[n]) * C + c);
                #pragma unroll
                for (int r = 0; r < ROWS; r++)
                    for (int j = 0; j < VECTOR; j++) sum[r][n] += element(w[r][i], j) * element(v, j);
            }
    }
}
// sum[r][n] = <row r, x of token n>, C elements, in every lane. w: first chunks, requested.
template <int ROWS, int NT, bool by_token, int CHUNKS> __device__ static inline void
dot_rows(float sum[ROWS][NT], Vec (&w)[ROWS][CHUNKS], const floatX *const (&row)[ROWS], const floatX *x,
         const int at[NT], int C) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int r = 0; r < ROWS; r++)
        #pragma unroll
        for (int n = 0; n < NT; n++) sum[r][n] = 0;
    #pragma unroll 1
    for (int from = lane * VECTOR; ; ) {
        add_chunks<ROWS, NT, by_token>(sum, w, x, at, from, C);
        if ((from += CHUNKS * CHUNK) - lane * VECTOR >= C) break;
        #pragma unroll
        for (int r = 0; r < ROWS; r++) load_chunks(w[r], row[r], from, C);
    }
    #pragma unroll
    for (int r = 0; r < ROWS; r++)
        #pragma unroll
        for (int n = 0; n < NT; n++) if (at[n] >= 0) sum[r][n] = warp_sum(sum[r][n]);
}

// ---- 2 to 4 tokens: decode_in -------------------------------------------------------------------

// x = rmsnorm_forward(inp) of a token, by a warp. weight: norm.weight's first chunks, requested.
template <int CHUNKS> __device__ static inline void
normalize_token(floatX *x, const floatX *inp, const Vec (&weight)[CHUNKS], Norm norm, int C) {
    const int first = threadIdx.x % 32 * VECTOR;
    Vec v[CHUNKS];
    real sum = 0;
    load_chunks(v, inp, first, C);
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) if (first + i * CHUNK < C) add_squares(sum, v[i]);
    #pragma unroll 1
    for (int c = first + CHUNKS * CHUNK; c < C; c += CHUNK) add_squares(sum, load_vec(inp + c));
    const real rstd = 1 / sqrtf(warp_sum(sum) / C + norm.eps);
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        if (first + i * CHUNK < C) store_vec(x + first + i * CHUNK, normalized(v[i], rstd, weight[i]));
    #pragma unroll 1
    for (int c = first + CHUNKS * CHUNK; c < C; c += CHUNK)
        store_vec(x + c, normalized(load_vec(inp + c), rstd, load_vec(norm.weight + c)));
}
__device__ static inline const floatX *router_row(const InArgs &p, int e) { return p.router.weight + (size_t)e * p.C; }
// s.logits, a warp per (token, expert). w: first chunks of its first router row, requested.
__device__ static inline void logits_of_tokens(const InShared &s, Vec (&w)[1][IN_CHUNKS],
                                               const InArgs &p) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, E = p.router.E;
    #pragma unroll 1
    for (int i = warp; i < p.N * E; i += WARPS) {
        const floatX *const row[1] = { router_row(p, i % E) };
        const int token[1] = { i / E };
        float sum[1][1];
        if (i != warp || warp >= E) load_chunks(w[0], row[0], lane * VECTOR, p.C);
        dot_rows<1, 1, false>(sum, w, row, s.x, token, p.C);
        if (lane == 0) s.logits[i] = X(sum[0][0]);
    }
}
// Row pair `pair` of active expert a, or of the plain product, times all its tokens, by a warp.
template <bool gated> __device__ static inline void
multiply_pair(const InShared &s, const InArgs &p, int a, int pair, bool plain) {
    const int lane = threadIdx.x % 32, C = p.C, width = plain ? p.P : p.O;
    const int o = first_row(pair, gated && !plain), second = second_row(o, width, gated && !plain);
    const size_t e = plain || !p.router.weight ? 0 : s.active[a];
    const int rows = gated && !plain ? 2 * width : width;
    const Weight &from = plain ? p.plain_w : p.w;
    const floatX *const row[2] = { row_of(from, e, o, rows, C), row_of(from, e, second, rows, C) };
    const floatX *const bias = plain || !p.bias ? NULL : p.bias + e * rows;
    int to[MAX_TOKENS];                                                 // row of the result
    #pragma unroll
    for (int n = 0; n < MAX_TOKENS; n++) to[n] = n >= p.N ? -1 : plain || !p.router.weight ? n : s.slot[a * p.N + n];
    Vec w[2][IN_CHUNKS];
    load_chunks(w[0], row[0], lane * VECTOR, C);
    load_chunks(w[1], row[1], lane * VECTOR, C);
    float sum[2][MAX_TOKENS];
    dot_rows<2, MAX_TOKENS, true>(sum, w, row, s.x, to, C);
    if (lane) return;
    auto pre = [&](int r, int n) {
        const real x = R(X(sum[r][n]));
        return bias ? R(X(x + R(bias[r ? second : o]))) : x;
    };
    #pragma unroll
    for (int n = 0; n < MAX_TOKENS; n++) {
        floatX *result = (plain ? p.plain : p.out) + (size_t)to[n] * width + o;
        if (to[n] < 0) continue;
        if (gated && !plain) *result = X(gated_act(pre(0, n), pre(1, n), p.f));
        else for (int r = 0; r < 2 && o + r < width; r++) result[r] = X(activated(pre(r, n), plain ? IDENTITY : p.f));
    }
}

// Reads (active experts' rows + P) * C elements once; norm and router in every block, from L2.
template <bool gated> static __global__ __launch_bounds__(THREADS, 2) void decode_in_kernel(const InArgs p) {
    extern __shared__ __align__(16) unsigned char shared[];
    const InShared s(shared, p);
    const int warp = threadIdx.x / 32, first = threadIdx.x % 32 * VECTOR;

    // Before the wait: the norm's weights, and of every warp a row of the router.
    if (!p.router.weight) let_next_start();
    Vec norm[IN_CHUNKS];
    Vec router[1][IN_CHUNKS];
    if (!p.logits) load_chunks(norm, p.norm.weight, first, p.C);
    if (p.router.weight && !p.logits)
        load_chunks(router[0], router_row(p, warp % p.router.E), first, p.C);
    const unsigned index = (unsigned)global_index(), threads = gridDim.x * THREADS;
    prefetch(p.plain_w.at, (unsigned)divide_up((size_t)p.P * p.C * sizeof(floatX), 128), index, threads);
    wait_for_previous();

    if (!p.logits && warp < p.N)
        normalize_token(s.x + warp * p.C, p.inp + (size_t)warp * p.C, norm, p.norm, p.C);
    #pragma unroll 1
    for (int i = threadIdx.x * VECTOR; p.logits && i < p.N * p.C; i += THREADS * VECTOR)
        store_vec(s.x + i, load_vec(p.inp + i));
    #pragma unroll 1
    for (int i = threadIdx.x; p.logits && i < p.N * p.router.E; i += THREADS) s.logits[i] = p.logits[i];
    __syncthreads();
    int count = 1;
    if (p.router.weight) {
        if (!p.logits) {
            logits_of_tokens(s, router, p);
            __syncthreads();
        }
        rank_experts(s, p);
        if (blockIdx.x == 0 && warp < p.N) store_choice(s, p, warp, false);
        __syncthreads();
        let_next_start();                                               // not earlier: decode_out reads the choice
        count = active_experts(s.active, s.slot, s.expert, p.N, p.router.K);
    }

    const int pairs = pairs_of(p.O, gated), routed = count * pairs, units = routed + pairs_of(p.P, false);
    #pragma unroll 1
    for (int u = blockIdx.x * WARPS + warp; u < units; u += gridDim.x * WARPS) {
        const bool plain = u >= routed;
        const int a = plain ? 0 : u / pairs;
        multiply_pair<gated>(s, p, a, plain ? u - routed : u - a * pairs, plain);
    }

    if (!p.next.at || !p.router.weight) return;
    const unsigned lines = (unsigned)divide_up(p.next_bytes, 128);
    #pragma unroll 1
    for (int a = 0; a < count; a++)
        prefetch((const char *)p.next.at + s.active[a] * p.next_bytes, lines, index, threads);
}

// ---- 2 to 4 tokens: decode_out ------------------------------------------------------------------

// A block computes `rows` columns of the result for all tokens. A warp multiplies a row of an
// active expert with its tokens; then a thread per (row, token) adds up. Reads C * O per expert.
static __global__ __launch_bounds__(THREADS, 2) void decode_out_kernel(const OutArgs p) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int S = p.N * p.K, warp = threadIdx.x / 32, first = blockIdx.x * p.rows, rows = min(p.rows, p.O - first);
    real *const products = (real *)shared;                                              // (rows,S)
    real *const weight = products + p.rows * S;                                         // (S)
    int *const expert = (int *)(weight + S);                                            // (S)
    short *const active = (short *)(expert + S), *const slot = active + S;              // (S) (S,N)

    // With one expert every warp requests its first row before the kernel before has ended.
    Vec w[1][OUT_CHUNKS];
    const int chunk0 = threadIdx.x % 32 * VECTOR, lane = threadIdx.x % 32;
    if (!p.choice.expert && warp < rows) load_chunks(w[0], row_of(p.w, 0, first + warp, p.O, p.C), chunk0, p.C);
    let_next_start();
    wait_for_previous();

    // What the sum needs is requested before the products.
    const int mine = threadIdx.x % rows, token = threadIdx.x / rows;    // rows * N is at most 32
    const size_t to = (size_t)token * p.O + first + mine;
    const real old = token < p.N ? R(p.residual[to]) : 0, bias = token < p.N && p.bias ? R(p.bias[first + mine]) : 0;
    const real of_slot = threadIdx.x < S && p.choice.expert ? p.choice.weight[threadIdx.x] : 1;

    int count = 1;
    if (p.choice.expert) {
        #pragma unroll 1
        for (int i = threadIdx.x; i < S; i += THREADS) expert[i] = p.choice.expert[i];
        __syncthreads();
        count = active_experts(active, slot, expert, p.N, p.K);
    }
    #pragma unroll 1
    for (int i = warp; i < rows * count; i += WARPS) {
        const int r = i % rows, a = i / rows;
        const size_t e = p.choice.expert ? active[a] : 0;
        const floatX *const row[1] = { row_of(p.w, e, first + r, p.O, p.C) };
        if (p.choice.expert || i != warp) load_chunks(w[0], row[0], chunk0, p.C);
        int from[MAX_TOKENS];                                           // row of the input
        #pragma unroll
        for (int n = 0; n < MAX_TOKENS; n++) from[n] = n >= p.N ? -1 : !p.choice.expert ? n : slot[a * p.N + n];
        float sum[1][MAX_TOKENS];
        dot_rows<1, MAX_TOKENS, false>(sum, w, row, p.inp, from, p.C);
        #pragma unroll
        for (int n = 0; n < MAX_TOKENS; n++) if (lane == 0 && from[n] >= 0) products[r * S + from[n]] = R(X(sum[0][n]));
    }
    if (threadIdx.x < S) weight[threadIdx.x] = of_slot;
    __syncthreads();
    if (token >= p.N) return;
    real sum = bias;
    #pragma unroll 1
    for (int k = token * p.K; k < (token + 1) * p.K; k++) {
        const real more = p.expert_bias ? R(p.expert_bias[(size_t)expert[k] * p.O + first + mine]) : 0;
        sum += weight[k] * (products[mine * S + k] + more);
    }
    p.out[to] = X(old + p.scale * R(X(sum)));
}

// ---- one token: rows of weights, codes too ------------------------------------------------------
//
// A lane reads 16 bytes of a row at once: a Piece of PER elements, BLOCKS times BLOCK, whose codes
// have one scale. A warp reads WIDE elements. In shared memory a token's elements are in such an
// order that lanes read block j of their pieces without conflicts of banks (position_of): the first
// at c - lane (PER - BLOCK), the next WIDE / BLOCKS further. Of floats that is the order of memory.
//
// Codes of 8 bits become halves, exactly, by an instruction; those of 4 bits: see add_products.

template <Format F> struct Piece {
    enum { PER = per_lane(F), BLOCK = 8, BLOCKS = PER / BLOCK, WIDE = 32 * PER };
    uint4 code;
    uint32_t scale;                                                     // as in memory
    __device__ void load(Row row, int c) {
        code = *(const uint4 *)(row.at + (F == OF_FP8 ? c : c / 2));
        if (F == OF_FP8) scale = ((const uint32_t *)row.scale)[c / FP8_BLOCK];
        else scale = row.scale[c / MXFP4_BLOCK];
    }
    // Block j of 8 bits, without the scale.
    __device__ void widen(float (&x)[BLOCK], int j) const {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t w = word(code, 2 * j + i / 2), two = halves_of_codes(i % 2 ? w >> 16 : w);
            x[2 * i] = unpack_half(two, 0), x[2 * i + 1] = unpack_half(two, 1);
        }
    }
};
template <> struct Piece<OF_FLOATX> {
    enum { PER = VECTOR, BLOCK = VECTOR, BLOCKS = 1, WIDE = CHUNK };
    Vec w;
    __device__ void load(Row row, int c) { w = load_vec((const floatX *)row.at + c); }
    __device__ void widen(float (&x)[BLOCK], int) const { for (int i = 0; i < BLOCK; i++) x[i] = element(w, i); }
};
// The product with PER elements; or with those whose blocks are `apart` from each other, from x on.
template <Format F> __device__ static inline float
product(const Piece<F> &w, const Pack<Piece<F>::BLOCK> (&x)[Piece<F>::BLOCKS]) {
    typedef Piece<F> P;
    float sum = 0;
    #pragma unroll
    for (int j = 0; j < P::BLOCKS; j++) {
        float y[P::BLOCK];
        w.widen(y, j);
        #pragma unroll
        for (int i = 0; i < P::BLOCK; i++) sum += y[i] * element(x[j], i);
    }
    if constexpr (F == OF_FLOATX) return sum; else return sum * __uint_as_float(w.scale);
}
template <Format F> __device__ static inline float product(const Piece<F> &w, const floatX *x, int apart) {
    typedef Piece<F> P;
    Pack<P::BLOCK> v[P::BLOCKS];
    #pragma unroll
    for (int j = 0; j < P::BLOCKS; j++) v[j] = load<P::BLOCK>(x + j * apart);
    return product(w, v);
}
// In 4 bits instructions for each code would take longer than memory: tensor cores multiply, though
// they are made for matrices. Lane 4g + t has its elements of a row in row g of a, of a second row
// in row g + 8, and of the token in column g of b. Of the 16 x 8 sums only (g, g) and (g + 8, g)
// mean something: what lanes 4g to 4g + 3 add up. Lane 4g + g/2 receives them.
//
// d += products with x(j), block j of the token, in_order; not there: with zeros. Each lane's block
// has its own scale. Codes are multiplied by it and by 2^94, so that they are normal numbers: exact
// for scales from 2^-93 to 2^33. Loading refuses larger ones (check_codes in llmc/files/hf.c).
template <class At> __device__ static inline void
add_products(float (&d)[4], const Piece<OF_MXFP4> &first, const Piece<OF_MXFP4> &second, At x, bool there) {
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t a[2][4], pair[4];
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const Piece<OF_MXFP4> &w = r ? second : first;
            const uint32_t factor = !there ? 0 : (w.scale <= MXFP4_SCALE_MAX ? (w.scale + 94) << 7 : 0x7fff) * 0x10001;
            widen<OF_MXFP4>(pair, w.code, j);
            #pragma unroll
            for (int i = 0; i < 4; i++) a[i / 2][i % 2 * 2 + r] = product_bf16(pair[i], factor);
        }
        const uint4 v = x(j);
        const uint32_t b[2][2] = { { v.x, v.y }, { v.z, v.w } };
        mma_bf16(d, a[0], b[0]), mma_bf16(d, a[1], b[1]);
    }
}
// This lane's part of row r's sum; in 4 bits that of its group of four lanes, or 0.
template <Format F> __device__ static inline float part_of(const float (&d)[4], int r) {
    const int g = threadIdx.x % 32 / 4;
    if (F != OF_MXFP4) return d[2 * r];
    return threadIdx.x % 4 == g / 2 ? 0x1p32f * (g % 2 ? d[2 * r + 1] : d[2 * r]) : 0;
}
template <Format F> __device__ static inline int position_of(int c) {
    typedef Piece<F> P;
    const int i = c % P::WIDE, lane = i / P::PER, j = i % P::PER / P::BLOCK;
    return F == OF_FLOATX ? c : c - i + (j * 32 + lane) * P::BLOCK + i % P::BLOCK;
}

// Elements from c on of a token, to shared memory.
template <Format F> __device__ static inline void store_block(floatX *x, int c, const Vec &v) {
    if constexpr (F == OF_MXFP4) store_16(x + position_of<F>(c), in_order<F>(v));
    else store_vec(x + position_of<F>(c), v);
}

// ---- one token ----------------------------------------------------------------------------------
//
// Every warp keeps the whole token, CHUNKS * VECTOR elements in each lane: only the router's logits
// go from warp to warp. Loads are unconditional where possible, so that all are in flight at once.

enum { MAX_CHUNKS = 8, REGISTER_CHUNKS = 5, OUT_WARPS = 4 };
// Blocks on an SM, as registers allow. Before Hopper three chunks need more (host: as on Hopper).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { THREE_BLOCKS = 2 };
#else
enum { THREE_BLOCKS = 3 };
#endif
__host__ __device__ constexpr int one_token_blocks(int chunks) { return chunks <= THREE_BLOCKS ? 3 : 2; }

// The i-th of a row's chunks.
template <int CHUNKS> __device__ static inline Vec load_chunk(const floatX *row, int i, int C) {
    return i + 1 < CHUNKS || i * CHUNK + (int)threadIdx.x % 32 * VECTOR < C ? load_vec(row + i * CHUNK) : Vec{};
}
template <int CHUNKS> __device__ static inline void load_row(Vec (&w)[CHUNKS], const floatX *row, int C) {
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) w[i] = load_chunk<CHUNKS>(row, i, C);
}
__device__ static inline float product(const Vec &w, const Vec &v) {
    float sum = 0;
    for (int j = 0; j < VECTOR; j++) sum += element(w, j) * element(v, j);
    return sum;
}
// x(i): the token's i-th chunk. A sum of sums: one chain of additions would be slow.
template <int CHUNKS, class At> __device__ static inline float dot(const Vec (&w)[CHUNKS], At x) {
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) sum += product(w[i], x(i));
    return sum;
}
// 1 / sqrt(mean(x^2) + eps)
template <int CHUNKS> __device__ static inline float rstd_of(const Vec (&x)[CHUNKS], float eps, int C) {
    const float sum = dot(x, [&](int i) { return x[i]; });
    return rsqrtf(__fdividef(warp_sum(sum), (float)C) + eps);
}
// Both sums over the lanes, each by half of the warp: lane 0 gets the first, lane 16 the second.
__device__ static inline float two_warp_sums(float first, float second) {
    const bool lower = threadIdx.x % 32 < 16;
    float mine = lower ? first : second;
    mine += __shfl_xor_sync(ALL, lower ? second : first, 16);
    for (int step = 8; step; step /= 2) mine += __shfl_xor_sync(ALL, mine, step);
    return mine;
}

// The router's logits of token x, by a block. w: the warp's first router row, requested.
template <int CHUNKS, class At> __device__ static inline void router_logits(floatX *logits, Vec (&w)[CHUNKS], At x,
        const InArgs &p) {
    const int lane = threadIdx.x % 32;
    #pragma unroll 1
    for (int e = threadIdx.x / 32; e < p.router.E; ) {
        const float logit = warp_sum(dot(w, x));
        if (lane == 0) logits[e] = X(logit);
        if ((e += WARPS) < p.router.E) load_row(w, p.router.weight + e * p.C + lane * VECTOR, p.C);
    }
    __syncthreads();
}
// The `count` best of <= 32 experts, by every warp: returns the last; chosen: in lane k the k-th.
__device__ static inline int best_experts(int &chosen, const floatX *logits, const Router &router, int count) {
    const int lane = threadIdx.x % 32;
    const real logit = lane < router.E ? R(logits[lane]) : 0;
    const real l = SCORES_ARE_P(router.scores) && router.bias ? log_sum(logits, router.E) : 0;
    int last = 0;
    chosen = 0;
    top_experts<false>(only_candidate(logit, router.bias, router.scores, l, router.E), NULL, NULL, router.E, count,
                       [&](int k, int e) { last = e; if (lane == k) chosen = e; });
    return last;
}

// The same, of up to 32 * BY_KEYS experts whose logits decode_router has made, if those are all
// that counts. Every warp reads them for itself. The best is found by one instruction.
enum { BY_KEYS = 4 };
__device__ static inline bool by_keys(const Router &r) { return by_logit(r) && r.E <= 32 * BY_KEYS && r.K <= 32; }
__device__ static inline int best_experts(int &chosen, const floatX (&logit)[BY_KEYS], int E, int count) {
    const int lane = threadIdx.x % 32;
    unsigned key[BY_KEYS], best = 0;
    #pragma unroll
    for (int i = 0; i < BY_KEYS; i++) {
        const int e = i * 32 + lane;
        key[i] = e < E ? key_of(logit[i], e) : 0;
    }
    chosen = 0;
    #pragma unroll 1
    for (int k = 0; k < count; k++) {
        best = 0;
        #pragma unroll
        for (int i = 0; i < BY_KEYS; i++) best = max(best, key[i]);
        best = __reduce_max_sync(ALL, best);
        if (lane == k) chosen = 0xffff - (best & 0xffff);
        #pragma unroll
        for (int i = 0; i < BY_KEYS; i++) if (key[i] == best) key[i] = 0;
    }
    return 0xffff - (best & 0xffff);
}
// The same by every warp for itself, from the logits of decode_router: chosen, and the last one.
__device__ static inline int choose_by_keys(int &chosen, int count, const InShared &s, bool stores_choice,
                                            const InArgs &p) {
    const int lane = threadIdx.x % 32, E = p.router.E;
    floatX logit[BY_KEYS];
    #pragma unroll
    for (int i = 0; i < BY_KEYS; i++) logit[i] = p.logits[min(i * 32 + lane, E - 1)];
    const int e = best_experts(chosen, logit, E, count);
    if (stores_choice && threadIdx.x < 32) {                            // for store_choice
        #pragma unroll
        for (int i = 0; i < BY_KEYS; i++) if (i * 32 + lane < E) s.logits[i * 32 + lane] = logit[i];
        if (lane < count) s.expert[lane] = chosen;
        __syncwarp();
    }
    return e;
}

// What a block of decode_in_one_kernel works on: rows of the slot-th chosen expert (slot_blocks
// blocks each), or of the plain product. With a router, block 0 has none: it stores the choice.
struct InBlock {
    bool stores_choice, plain, gated, routed;
    int slot = 0, number, stride, width, pairs;         // number: among those of its slot; stride: how many there are
    __device__ InBlock(const InArgs &p, int slot_blocks) {
        const int K = p.router.K, choosing = p.router.weight ? 1 : 0;
        stores_choice = choosing && !blockIdx.x;
        number = blockIdx.x - choosing;
        #pragma unroll 1
        while (slot < K && number >= slot_blocks) number -= slot_blocks, slot++;
        plain = slot == K, gated = IS_GATED(p.f) && !plain, routed = choosing && !plain;
        width = plain ? p.P : p.O, pairs = pairs_of(width, gated);
        stride = plain ? gridDim.x - choosing - K * slot_blocks : slot_blocks;
    }
};
// The token, normalized unless decode_router did that: to v of every warp, or, past
// REGISTER_CHUNKS, to s.x, each warp the chunk of its number, whose weight is in norm[0].
template <int CHUNKS> __device__ static inline void
take_token(Vec (&v)[CHUNKS], const InShared &s, const Vec (&norm)[CHUNKS], const InArgs &p) {
    const int lane = threadIdx.x % 32, own = threadIdx.x / 32 * CHUNK + lane * VECTOR, C = p.C;
    if (CHUNKS <= REGISTER_CHUNKS) {
        load_row(v, p.inp + lane * VECTOR, C);
        if (p.logits) return;
        const float rstd = rstd_of(v, p.norm.eps, C);
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) v[i] = normalized(v[i], rstd, norm[i]);
        return;
    }
    Vec mine = load_vec(p.inp + min(own, C - VECTOR));
    if (!p.logits) {
        load_row(v, p.inp + lane * VECTOR, C);
        mine = normalized(mine, rstd_of(v, p.norm.eps, C), norm[0]);
    }
    if (own < C) store_vec(s.x + own, mine);
    __syncthreads();
}
// The expert of the block's slot, from the logits of decode_router.
__device__ static inline int ranked_expert(const InBlock &at, const InShared &s, const InArgs &p) {
    #pragma unroll 1
    for (int i = threadIdx.x; i < p.router.E; i += THREADS) s.logits[i] = p.logits[i];
    __syncthreads();
    rank_experts(s, p);
    return s.expert[at.slot];
}
// The expert of the block's slot. w: the warp's first router row, requested, or unused.
template <int CHUNKS, class At> __device__ static inline int
expert_of(const InBlock &at, const InShared &s, Vec (&w)[CHUNKS], At x, const InArgs &p) {
    const int lane = threadIdx.x % 32, K = p.router.K;
    if (p.logits) return ranked_expert(at, s, p);
    int chosen;
    router_logits(s.logits, w, x, p);
    const int e = best_experts(chosen, s.logits, p.router, at.stores_choice ? K : at.slot + 1);
    if (at.stores_choice && threadIdx.x < K) s.expert[lane] = chosen;
    __syncwarp();
    return e;
}

// Results of a pair of rows, from this lane's part of their sums. e: the expert, for its bias.
__device__ static inline void
store_pair(float first, float second, int pair, int e, const InBlock &at, const InArgs &p) {
    const int lane = threadIdx.x % 32, o = at.gated ? pair : 2 * pair + lane / 16;
    const int row = at.gated ? pair + lane / 16 * at.width : min(o, at.width - 1);
    floatX *const out = at.plain ? p.plain : p.out + at.slot * at.width;
    real pre = R(X(two_warp_sums(first, second)));
    if (p.bias && !at.plain && pair < at.pairs)
        pre = R(X(pre + R(p.bias[(size_t)e * at.width * (at.gated ? 2 : 1) + row])));
    const real up = __shfl_xor_sync(ALL, pre, 16);
    if (lane % 16 == 0 && pair < at.pairs && o < at.width && !(at.gated && lane))
        out[o] = X(at.gated ? gated_act(pre, up, p.f) : activated(pre, at.plain ? IDENTITY : p.f));
}
// Pair `pair` of the block's rows, in w, and every further one, times the token.
template <int CHUNKS, class At, class RowsOf> __device__ static inline void
multiply_pairs(Vec (&w)[2][CHUNKS], int pair, int e, const InBlock &at, At x, RowsOf rows_of, const InArgs &p) {
    const int C = p.C;
    #pragma unroll 1
    for (;;) {
        // else the compiler reads x once, to registers that are not there
        if (CHUNKS > REGISTER_CHUNKS) asm volatile("" ::: "memory");
        const int after = pair + at.stride * WARPS;
        const floatX *row[2];
        float first = 0, second = 0;
        rows_of(after, row);
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) {                  // the next pair's chunks are requested as these are used
            const Vec v = x(i);
            first += product(w[0][i], v), second += product(w[1][i], v);
            if (after < at.pairs)
                w[0][i] = load_chunk<CHUNKS>(row[0], i, C), w[1][i] = load_chunk<CHUNKS>(row[1], i, C);
        }
        store_pair(first, second, pair, e, at, p);
        if ((pair = after) >= at.pairs) break;
    }
}
// Chunks of part `part` of two rows.
template <Format F, int CHUNKS> __device__ static inline void
load_parts(Piece<F> (&w)[2][CHUNKS], const Row (&row)[2], int part, int C) {
    typedef Piece<F> P;
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int c = (part * CHUNKS + i) * P::WIDE + (int)threadIdx.x % 32 * P::PER;
        if (c < C) w[0][i].load(row[0], c), w[1][i].load(row[1], c);
    }
}
// Three chunks in 4 bits are whole rows, or registers would not suffice for three blocks on an SM.
__host__ __device__ constexpr bool in_one_part(Format f, int chunks) { return f == OF_MXFP4 && chunks == 3; }
// The same of codes, and of long rows: CHUNKS chunks of both at a time. Pairs of number `pair`,
// pair + step, ... below `pairs`; x_of(pair): its token, in shared memory; store: gets the sums.
template <Format F, int CHUNKS, class XOf, class RowsOf, class Store> __device__ static inline void
multiply_long(Piece<F> (&w)[2][CHUNKS], int pair, int step, int pairs, int C, XOf x_of, RowsOf rows_of, Store store) {
    typedef Piece<F> P;
    const int lane = threadIdx.x % 32,
        parts = in_one_part(F, CHUNKS) ? 1 : (C + CHUNKS * P::WIDE - 1) / (CHUNKS * P::WIDE);
    float sum[4] = {};                                      // see part_of
    int part = 0;
    #pragma unroll 1
    for (;;) {
        const bool ends = part + 1 == parts;
        const int after = ends ? pair + step : pair, next = ends ? 0 : part + 1;
        const floatX *const x = x_of(pair);
        Row row[2];
        // In 4 bits without a branch around products: with one, each chunk waits for the next row's
        // chunks before it, too, as it cannot know that the first has waited for all of this row.
        rows_of(F == OF_MXFP4 && after >= pairs ? pair : after, row);
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) {              // the next chunks are requested as these are used
            const int from = (part * CHUNKS + i) * P::WIDE, to = (next * CHUNKS + i) * P::WIDE + lane * P::PER;
            if constexpr (F == OF_MXFP4) {
                const bool there = from + lane * P::PER < C;
                const floatX *const v = x + (there ? from + lane * P::BLOCK : 0);
                add_products(sum, w[0][i], w[1][i],
                             [&](int j) { return *(const uint4 *)(v + j * 32 * P::BLOCK); }, there);
            } else if (from + lane * P::PER < C) {
                sum[0] += product(w[0][i], x + from + lane * P::BLOCK, 32 * P::BLOCK);
                sum[2] += product(w[1][i], x + from + lane * P::BLOCK, 32 * P::BLOCK);
            }
            if ((F == OF_MXFP4 || after < pairs) && to < C) w[0][i].load(row[0], to), w[1][i].load(row[1], to);
        }
        if (ends) {
            store(pair, sum);
            sum[0] = sum[1] = sum[2] = sum[3] = 0;
        }
        if (after >= pairs) break;
        pair = after, part = next;
    }
}

__device__ static inline void prefetch_expert(int e, const InBlock &at, const InArgs &p) {
    prefetch((const char *)p.next.at + e * p.next_bytes, (unsigned)(p.next_bytes / 128),
             at.number * THREADS + threadIdx.x, at.stride * THREADS);
}

// Reads what decode_in_kernel reads. Every block chooses experts for itself.
template <int CHUNKS> static __global__ __launch_bounds__(THREADS, one_token_blocks(CHUNKS))
void decode_in_one_kernel(const InArgs p, int slot_blocks) {
    extern __shared__ __align__(16) unsigned char shared[];
    constexpr bool together = CHUNKS > REGISTER_CHUNKS;
    const InShared s(shared, p);
    const InBlock at(p, slot_blocks);
    const floatX *const router = p.router.weight;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, C = p.C;
    const floatX *from = (const floatX *)(at.plain ? p.plain_w : p.w).at + lane * VECTOR;
    const unsigned lines = (unsigned)(p.next_bytes / 128);
    int e = 0, chosen;
    Vec w[2][CHUNKS], norm[CHUNKS], v[CHUNKS];
    auto rows_of = [&](int i, const floatX *(&row)[2]) {
        const int o = first_row(min(i, at.pairs - 1), at.gated);
        row[0] = from + (size_t)o * C, row[1] = from + (size_t)second_row(o, at.width, at.gated) * C;
    };
    auto load_pair = [&](int i) {
        const floatX *row[2];
        rows_of(i, row);
        load_row(w[0], row[0], C);
        load_row(w[1], row[1], C);
    };
    int pair = at.number * WARPS + warp;

    // What does not depend on the kernel before.
    if (!at.stores_choice || p.P) let_next_start();                 // with P, decode_attention comes before decode_out
    if (!p.logits && together) norm[0] = load_vec(p.norm.weight + min(warp * CHUNK + lane * VECTOR, C - VECTOR));
    else if (!p.logits) load_row(norm, p.norm.weight + lane * VECTOR, C);
    if (!at.routed) load_pair(pair);
    else if (!p.logits) load_row(w[0], router + (warp < p.router.E ? warp * C : 0) + lane * VECTOR, C);
    wait_for_previous();

    const bool quick = at.routed && p.logits && by_keys(p.router);  // then rows are requested before the token is there
    if (!quick) take_token(v, s, norm, p);
    auto x = [&](int i) { return together ? load_vec(s.x + min(i * CHUNK + lane * VECTOR, C - VECTOR)) : v[i]; };
    if (at.routed) {
        e = quick ? choose_by_keys(chosen, at.stores_choice ? p.router.K : at.slot + 1, s, at.stores_choice, p)
                  : expert_of(at, s, w[0], x, p);
        if (at.stores_choice) {
            if (warp == 0) store_choice(s, p, 0, true);
            return;
        }
        from += (size_t)e * (at.gated ? 2 * at.width : at.width) * C;
        load_pair(pair);
        if (p.next.at && p.P) prefetch_expert(e, at, p);
        if (quick) take_token(v, s, norm, p);
    }

    multiply_pairs(w, pair, e, at, x, rows_of, p);
    if (p.next.at && p.P && !router)
        prefetch(p.next.at, lines, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
}

// The token, normalized if there are no logits, to x, by a block, which reads it once.
enum { HELD = 2 };                              // vectors of it, and of norm.weight, in registers of a thread
__device__ static inline void load_held(Vec (&v)[HELD], const floatX *from, int C) {
    for (int i = 0; i < HELD; i++)
        v[i] = load_vec(from + min((i * THREADS + (int)threadIdx.x) * VECTOR, C - VECTOR));
}
template <Format F> __device__ static inline void take_long(floatX *x, const Vec (&norm)[HELD], const InArgs &p) {
    enum { STEP = THREADS * VECTOR };
    const int C = p.C, mine = threadIdx.x * VECTOR;
    float rstd = 1, sum = 0;
    Vec v[HELD];
    load_held(v, p.inp, C);
    if (!p.logits) {
        for (int i = 0; i < HELD; i++) if (mine + i * STEP < C) sum += product(v[i], v[i]);
        #pragma unroll 1
        for (int c = mine + HELD * STEP; c < C; c += STEP) sum += product(load_vec(p.inp + c), load_vec(p.inp + c));
        rstd = rsqrtf(__fdividef(block_sum<WARPS>(sum), (float)C) + p.norm.eps);
    }
    auto put = [&](int c, Vec y, const Vec &weight) {
        if (!p.logits) y = normalized(y, rstd, weight);
        store_block<F>(x, c, y);
    };
    for (int i = 0; i < HELD; i++) if (mine + i * STEP < C) put(mine + i * STEP, v[i], norm[i]);
    #pragma unroll 1
    for (int c = mine + HELD * STEP; c < C; c += STEP) put(c, load_vec(p.inp + c), load_vec(p.norm.weight + c));
    __syncthreads();
}

// x (N,C), the normalized tokens, and logits (N,E), a warp for each. Moves (E + 2 N) C elements.
template <bool one> static __global__ __launch_bounds__(THREADS)
void decode_router_kernel(floatX *x, floatX *logits, const InArgs p) {
    enum { CHUNKS = one ? 12 : 8 };
    extern __shared__ __align__(16) unsigned char shared[];
    floatX *const normed = (floatX *)shared;
    const int warp = threadIdx.x / 32, first = threadIdx.x % 32 * VECTOR, E = p.router.E,
        unit = blockIdx.x * WARPS + warp;
    const floatX *const row[1] = { router_row(p, unit % E) };
    const floatX added = p.router.added ? p.router.added[unit % E] : X(0);
    Vec norm[one ? HELD : CHUNKS];
    Vec w[1][CHUNKS];
    let_next_start();
    if constexpr (one) load_held(norm, p.norm.weight, p.C);
    else load_chunks(norm, p.norm.weight, first, p.C);
    load_chunks(w[0], row[0], first, p.C);
    wait_for_previous();
    if constexpr (one) take_long<OF_FLOATX>(normed, norm, p);
    else if (warp < p.N) normalize_token(normed + warp * p.C, p.inp + (size_t)warp * p.C, norm, p.norm, p.C);
    __syncthreads();
    #pragma unroll 1
    for (int i = threadIdx.x * VECTOR; blockIdx.x == 0 && i < p.N * p.C; i += THREADS * VECTOR)
        store_vec(x + i, load_vec(normed + i));
    if (unit >= p.N * E) return;
    const int token[1] = { unit / E };
    float sum[1][1];
    dot_rows<1, 1, false>(sum, w, row, normed, token, p.C);
    if (first == 0) logits[unit] = p.router.added ? X(R(X(sum[0][0])) + R(added)) : X(sum[0][0]);
}

__host__ __device__ constexpr int long_blocks(Format f, int chunks) { return f == OF_FP8 && chunks > 2 ? 2 : 3; }
// The same of codes, and of long rows. The token is in shared memory; a router has had a
// decode_router.
template <Format F, int CHUNKS> static __global__ __launch_bounds__(THREADS, long_blocks(F, CHUNKS))
void decode_in_long_kernel(const InArgs p, int slot_blocks) {
    extern __shared__ __align__(16) unsigned char shared[];
    const InShared s(shared, p);
    const InBlock at(p, slot_blocks);
    const int warp = threadIdx.x / 32, C = p.C;
    const unsigned lines = (unsigned)(p.next_bytes / 128);
    Piece<F> w[2][CHUNKS];
    Vec norm[HELD] = {};
    int pair = at.number * WARPS + warp, e = 0, chosen;
    auto rows_of = [&](int i, Row (&row)[2]) {
        const int o = first_row(min(i, at.pairs - 1), at.gated), rows = at.gated ? 2 * at.width : at.width;
        const Weight &from = at.plain ? p.plain_w : p.w;
        row[0] = row_of<F>(from, e, o, rows, C);
        row[1] = row_of<F>(from, e, second_row(o, at.width, at.gated), rows, C);
    };
    auto load_pair = [&](int i) {
        Row row[2];
        rows_of(i, row);
        load_parts(w, row, 0, C);
    };
    if (!at.stores_choice || p.P) let_next_start();                 // with P, decode_attention comes before decode_out
    if (!p.logits) load_held(norm, p.norm.weight, C);
    if (!at.routed) load_pair(pair);
    wait_for_previous();

    const bool quick = at.routed && by_keys(p.router);
    if (!quick) take_long<F>(s.x, norm, p);
    if (at.routed) {
        e = quick ? choose_by_keys(chosen, at.stores_choice ? p.router.K : at.slot + 1, s, at.stores_choice, p)
                  : ranked_expert(at, s, p);
        if (at.stores_choice) {
            if (warp == 0) store_choice(s, p, 0, true);
            return;
        }
        load_pair(pair);
        if (p.next.at && p.P) prefetch_expert(e, at, p);
        if (quick) take_long<F>(s.x, norm, p);
    }
    multiply_long(w, pair, at.stride * WARPS, at.pairs, C, [&](int) { return s.x; }, rows_of,
                  [&](int i, const float (&d)[4]) { store_pair(part_of<F>(d, 0), part_of<F>(d, 1), i, e, at, p); });
    if (p.next.at && p.P && !p.router.weight)
        prefetch(p.next.at, lines, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
}

// A warp computes one element of the result: a sum over K*C elements, in which the products with
// slot k's expert are multiplied by its weight; lane k has that weight and the expert. Each lane
// reads CHUNKS pieces at once. inverse: 2^32 / (C/PER), rounded up. Reads as decode_out_kernel.
template <Format F, int CHUNKS> static __global__ __launch_bounds__(32 * OUT_WARPS, 4)
void decode_out_one_kernel(const OutArgs p, unsigned inverse) {
    typedef Piece<F> P;
    const int lane = threadIdx.x % 32, o = min(blockIdx.x * OUT_WARPS + threadIdx.x / 32, p.O - 1);
    const int vectors = p.C / P::PER, all = p.K * vectors;
    let_next_start();
    // before the wait: see above
    const int expert = p.choice.expert && lane < p.K ? __ldcg(p.choice.expert + lane) : 0;
    floatX old = X(0), bias = X(0), more = X(0);                        // converted when they are there
    float weight = 1, sum = 0;
    P w[CHUNKS];
    if (p.expert_bias && lane < p.K) more = p.expert_bias[(size_t)expert * p.O + o];
    auto slot_of = [&](int u) { return (int)__umulhi(min(u, all - 1), inverse); };
    auto request = [&](int u) {                                         // vector u of the sum
        const int slot = slot_of(u);
        P piece;
        piece.load(row_of<F>(p.w, __shfl_sync(ALL, expert, slot), o, p.O, p.C),
                   (min(u, all - 1) - slot * vectors) * P::PER);
        return piece;
    };
    #pragma unroll
    for (int i = 0; i < CHUNKS; i++) w[i] = request(i * 32 + lane);
    wait_for_previous();
    old = p.residual[o];
    if (p.bias) bias = p.bias[o];
    if (p.choice.weight && lane < p.K) weight = p.choice.weight[lane];
    #pragma unroll 1
    for (int from = 0; from < all; from += CHUNKS * 32) {
        Pack<P::BLOCK> x[CHUNKS][P::BLOCKS];
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            #pragma unroll
            for (int j = 0; j < P::BLOCKS; j++)
                x[i][j] = load<P::BLOCK>(p.inp + min(from + i * 32 + lane, all - 1) * P::PER + j * P::BLOCK);
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) {                          // the next pieces are requested as these are used
            const int u = from + i * 32 + lane;
            const float of_slot = __shfl_sync(ALL, weight, slot_of(u)), part = product(w[i], x[i]);
            if (u < all) sum += of_slot * part;
            if (from + CHUNKS * 32 < all) w[i] = request(u + CHUNKS * 32);
        }
    }
    if (p.expert_bias && lane < p.K) sum += weight * R(more);
    sum = warp_sum(sum);
    if (lane == 0) p.out[o] = X(R(old) + p.scale * R(X(sum + R(bias))));
}

// In 4 bits a block computes WARPS elements. Its warps take two rows of an expert at a time; their
// inputs, in_order in rows of x_row, are in shared memory.
template <int CHUNKS> static __global__ __launch_bounds__(THREADS, long_blocks(OF_MXFP4, CHUNKS))
void decode_out_long_kernel(const OutArgs p, unsigned) {
    typedef Piece<OF_MXFP4> P;
    enum { PAIRS = WARPS / 2, AT_ONCE = 6 };
    extern __shared__ __align__(16) unsigned char shared[];
    floatX *const x = (floatX *)shared;
    __shared__ float products[WARPS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, K = p.K, C = p.C;
    const int threads = THREADS / K, slot = threadIdx.x / threads, step = threads * VECTOR;     // of a slot's inputs
    int from = threadIdx.x % threads * VECTOR;
    const int first = blockIdx.x * WARPS, o = min(first + warp, p.O - 1), x_row = (C + P::WIDE - 1) / P::WIDE * P::WIDE;
    let_next_start();
    // before the wait: see above
    const int expert = p.choice.expert && lane < K ? __ldcg(p.choice.expert + lane) : 0;
    floatX old = X(0), bias = X(0), more = X(0);                        // converted when they are there
    float weight = 1;
    P w[2][CHUNKS];
    auto rows_of = [&](int unit, Row (&row)[2]) {                       // unit: slot * PAIRS + pair
        const int e = __shfl_sync(ALL, expert, unit / PAIRS), at = first + unit % PAIRS * 2;
        for (int r = 0; r < 2; r++) row[r] = row_of<OF_MXFP4>(p.w, e, min(at + r, p.O - 1), p.O, C);
    };
    const int unit = min(warp, PAIRS * K - 1);
    Row row[2];
    rows_of(unit, row);
    load_parts(w, row, 0, C);
    if (p.expert_bias && lane < K) more = p.expert_bias[(size_t)expert * p.O + o];
    wait_for_previous();
    old = p.residual[o];
    if (p.bias) bias = p.bias[o];
    if (p.choice.weight && lane < K) weight = p.choice.weight[lane];
    auto take = [&](int from) {
        Vec v[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) v[i] = load_vec(p.inp + min(slot, K - 1) * C + min(from + i * step, C - 8));
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int c = from + i * step;
            if (slot < K && c < C) store_block<OF_MXFP4>(x + slot * x_row, c, v[i]);
        }
    };
    take(from);                                 // not in the loop, which would wait for the weights
    #pragma unroll 1
    while ((from += AT_ONCE * step) < C) take(from);
    __syncthreads();
    auto store = [&](int u, const float (&d)[4]) {
        const float sum = two_warp_sums(part_of<OF_MXFP4>(d, 0), part_of<OF_MXFP4>(d, 1));
        if (lane % 16 == 0) products[u % PAIRS * 2 + lane / 16][u / PAIRS] = sum;
    };
    multiply_long(w, unit, WARPS, PAIRS * K, C, [&](int u) { return x + u / PAIRS * x_row; }, rows_of, store);
    __syncthreads();
    const float sum = warp_sum(lane < K ? weight * (products[warp][lane] + (p.expert_bias ? R(more) : 0)) : 0);
    if (lane == 0 && first + warp < p.O) p.out[o] = X(R(old) + p.scale * R(X(sum + R(bias))));
}

// ---- the table's functions ----------------------------------------------------------------------

// All widths must be whole vectors, and what every block does for itself must be small. In bf16
// only: codes of 4 bits, and codes of several tokens (codes.cu).
static int decode_fits(int N, int C, int F, int E, int K, Format format) {
    enum { WIDEST = Piece<OF_MXFP4>::WIDE };
    if (C % VECTOR || F % VECTOR || N * K > THREADS || E > MOST_EXPERTS) return 0;
    if (format != OF_FLOATX && (K > 32 || F < 64)) return 0;
    if (format != OF_FLOATX && (N > 1 || format == OF_MXFP4) && sizeof(floatX) > 2) return 0;
    if (format != OF_FLOATX && N > 1) return codes_fit(N, C, F, E, K);
    return N <= MAX_TOKENS && in_shared_bytes(N, N * divide_up(C, WIDEST) * WIDEST, E, K) <= SHARED_LIMIT;
}

static int most_active(int N, int E, int K) { return N * K < E ? N * K : E; }
// Elements that a warp reads of a row at once.
static size_t wide_of(Format f) { return 32 * per_lane(f); }
static size_t shared_row(Format f, int C) { return f == OF_FLOATX ? C : divide_up(C, wide_of(f)) * wide_of(f); }

static size_t row_bytes(Format f, size_t C) {
    return f == OF_FLOATX ? C * sizeof(floatX) : f == OF_FP8 ? C : C / 2;
}
typedef void InKernel(InArgs, int);
// Kernels for rows of codes, and for long ones; chunks: of rows that they take at once.
typedef struct { InKernel *kernel; Format format; int chunks; } LongKernel;
static const LongKernel long_kernels[] = {
    { decode_in_long_kernel<OF_FLOATX, 4>, OF_FLOATX, 4 }, { decode_in_long_kernel<OF_FP8, 6>, OF_FP8, 6 },
    { decode_in_long_kernel<OF_FP8, 4>, OF_FP8, 4 },       { decode_in_long_kernel<OF_FP8, 2>, OF_FP8, 2 },
#if defined(PRECISION_BF16)
    { decode_in_long_kernel<OF_MXFP4, 3>, OF_MXFP4, 3 },   { decode_in_long_kernel<OF_MXFP4, 2>, OF_MXFP4, 2 },
#endif
};
// The one that has the least left over at a row's end.
static LongKernel long_kernel(Format f, int C) {
    const size_t chunks = divide_up(C, wide_of(f));
    size_t least = SIZE_MAX;
    LongKernel best = long_kernels[0];
    for (const LongKernel &k : long_kernels) {
        const size_t takes = divide_up(chunks, k.chunks) * k.chunks;
        if (k.format != f || (in_one_part(f, k.chunks) && takes > (size_t)k.chunks)) continue;
        if (takes < least) least = takes, best = k;
    }
    return best;
}
// Of one token. The kernel, and as many blocks as run at once: each begins with the norm.
static void launch_in_one(InKernel *kernel, int blocks_each, const InArgs &p) {
    const int K = p.router.K, choosing = p.router.weight ? 1 : 0;
    const size_t pairs = pairs_of(p.O, IS_GATED(p.f)), plain_pairs = pairs_of(p.P, false);
    const size_t left = (size_t)context()->sm_count * blocks_each - choosing,
        each = left * pairs / (K * pairs + plain_pairs);
    const size_t slot_blocks = min(divide_up(pairs, WARPS), each > 1 ? each : 1);
    const size_t others = left > K * slot_blocks ? left - K * slot_blocks : 1;
    const size_t blocks = choosing + K * slot_blocks + min(divide_up(plain_pairs, WARPS), others);
    LAUNCH_EARLY(kernel, (unsigned)blocks, THREADS, in_shared_bytes(1, (size_t)p.x_elements, p.router.E, K), p,
                 (int)slot_blocks);
}
static void launch_in(const InArgs &p) {
    const int E = p.router.E, K = p.router.K;
    const size_t pairs = pairs_of(p.O, IS_GATED(p.f)), most = (size_t)context()->sm_count * 2;
    const size_t blocks = min(divide_up(most_active(p.N, E, K) * pairs + pairs_of(p.P, false), WARPS), most);
    LAUNCH_EARLY(IS_GATED(p.f) ? decode_in_kernel<true> : decode_in_kernel<false>, (unsigned)blocks, THREADS,
                 in_shared_bytes(p.N, (size_t)p.x_elements, E, K), p);
}

static void decode_in(OUT floatX *out, OUT floatX *plain, OUT Choice choice, const floatX *inp, Norm norm,
                      Router router, Weight w, const floatX *bias, Weight plain_w, Weight next, size_t next_size,
                      Activation f, int N, int C, int O, int P) {
    static InKernel *const one_token[MAX_CHUNKS + 1] = {
        NULL, decode_in_one_kernel<1>, decode_in_one_kernel<2>, decode_in_one_kernel<3>, decode_in_one_kernel<4>,
        decode_in_one_kernel<5>, decode_in_one_kernel<6>, decode_in_one_kernel<7>, decode_in_one_kernel<8>
    };
    const int E = router.E, chunks = (int)divide_up(C, CHUNK), row = N > 1 ? C : (int)shared_row(w.format, C);
    const bool coded = w.format != OF_FLOATX, is_long = coded || (N == 1 && chunks > MAX_CHUNKS);
    InArgs p = { out, plain, choice, inp, norm, router, w, plain_w, next, bias, row_bytes(next.format, next_size), NULL,
                 f, N, C, O, P, row, N * row };
    if (!N) return;
    if (router.weight && (is_long || router.added || E > MAX_EXPERTS || (size_t)E * C > ONE_ROUTER
                          || router.groups.count > 1)) {
        const size_t x = (size_t)N * C;
        floatX *normed = (floatX *)workspace((x + (size_t)N * E) * sizeof(floatX)), *logits = normed + x;
        const auto kernel = N == 1 ? decode_router_kernel<true> : decode_router_kernel<false>;
        LAUNCH_EARLY(kernel, (unsigned)divide_up((size_t)N * E, WARPS), THREADS, x * sizeof(floatX), normed, logits, p);
        p.inp = normed, p.logits = logits;
    }
    if (N > 1 && coded) decode_in_codes(p);
    else if (N > 1) launch_in(p);
    else if (is_long) {
        const LongKernel k = long_kernel(w.format, C);
        launch_in_one(k.kernel, long_blocks(k.format, k.chunks), p);
    } else {
        p.x_elements = chunks > REGISTER_CHUNKS ? C : 0;
        launch_in_one(one_token[chunks], one_token_blocks(chunks), p);
    }
}

static void decode_out(OUT floatX *out, const floatX *residual, const floatX *inp, Choice choice, Weight w,
                       const floatX *expert_bias, const floatX *bias, float scale, int N, int E, int K, int C, int O) {
    typedef void OneKernel(OutArgs, unsigned);
    static OneKernel *const one_token[3][2] = {
        { decode_out_one_kernel<OF_FLOATX, 4>, decode_out_one_kernel<OF_FLOATX, 8> },
        { decode_out_one_kernel<OF_FP8, 2>, decode_out_one_kernel<OF_FP8, 4> },
#if defined(PRECISION_BF16)
        { decode_out_long_kernel<2>, decode_out_long_kernel<3> },
#endif
    };
    const Format f = w.format;
    const bool in_4_bits = f == OF_MXFP4;
    const int active = most_active(N, E, K), rows = active < WARPS ? WARPS / active : 1;
    const size_t S = (size_t)N * K, shared = (rows * S + 2 * S) * 4 + 2 * S * (N + 1), x = K * shared_row(f, C) * 2;
    const uint64_t vectors = C / (f == OF_FP8 ? 16 : VECTOR);
    const unsigned inverse = (unsigned)((1ull << 32) / vectors + 1);
    const OutArgs p = { out, residual, inp, w, expert_bias, bias, choice, scale > 0 ? scale : 1, N, E, K, C, O, rows };
    if (!N) return;
    if (N > 1 || K > 32 || vectors < 2 || K * vectors * vectors >> 32 || E * O * vectors >> 32
        || (in_4_bits && x > SHARED_LIMIT)) {
        if (f != OF_FLOATX) decode_out_codes(p);
        else LAUNCH_EARLY(decode_out_kernel, (unsigned)divide_up(O, rows), THREADS, shared, p);
    } else if (in_4_bits)
        LAUNCH_EARLY(one_token[f][divide_up(C, wide_of(f)) == 3], (unsigned)divide_up(O, WARPS), THREADS, x, p,
                     inverse);
    else
        LAUNCH_EARLY(one_token[f][K * vectors > (f == OF_FLOATX ? 4 : 2) * 32], (unsigned)divide_up(O, OUT_WARPS),
                     32 * OUT_WARPS, 0, p, inverse);
}

PART_OF(DecodeOperations, decode_layer) {
    d->fits = decode_fits;
    d->in = decode_in;
    d->out = decode_out;
}
