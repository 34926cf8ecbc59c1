// matmul.cu: every matrix product of the model, dense or grouped by expert, forward and backward.
//
// As on the CPU (kernels/cpu/matmul.c) each product is, for every expert (dense: there is one),
//
//     c[m][n] = sum over k of  a[m][k] * b[n][k]
//
//                        m                 n          k           a[m][k]           b[n][k]
//     FORWARD            rows of e         O          C           inp[row m][k]     weight[e][n][k]
//     INPUT              rows of e         C          O           dout[row m][k]    weight[e][k][n]
//     WEIGHT             O                 C          rows of e   dout[row k][m]    inp[row k][n]
//
// and the art is, too, to use a number many times once it is near. For bf16, from the outside in:
//
//   grid       A block computes a tile of c, 128 x 128 or 128 x 256. Neighbours in the grid, which
//              run at the same time, have the same expert and some rows and columns in common: what
//              one of them reads from memory the others find in L2.
//   shared     The block walks along k in steps of 64. A step needs 128 x 64 of a and 128 or 256 x
//              64 of b; cp.async copies them to shared memory in the background, two steps ahead of
//              the one that is multiplied. This is where rows are gathered: each 16 bytes have an
//              address of their own anyway, so a row index costs nothing, and what is outside the
//              expert or the matrix becomes zeros. Nothing is padded, sorted or copied in global
//              memory.
//   registers  A warp has 64 x 64 of the tile: 128 sums per thread. For 16 of k it loads 64 x 16 of
//              a and of b, 4 KB, for 32 instructions of 16 x 8 x 16: 32 flop per byte. An SM reads
//              128 bytes of shared memory per clock, and its tensor cores do at most 4096 flop:
//              just balanced; a smaller tile would not be. Of the registers, 128 are sums and 64
//              hold a and b, both for the 16 of k being multiplied and for the next.
//
// The three products differ in two ways. Where k is the slow dimension in memory (b of INPUT, both
// of WEIGHT), ldmatrix.trans transposes the tile on its way into registers. And for WEIGHT the row
// index belongs to k: it changes with every step, and is itself loaded two steps ahead.
//
// An expert's rows are known only on the GPU (plan->start), and the host does not wait: the grid
// covers the worst case, blocks find their expert (tile_coord), and those without work return. Each
// element of c is one block's, and its sum runs in the order of k: the same bits every time.
//
// Other cases: f32, and bf16 with widths that are not multiples of 8, use plain_product, slow but
// for anything. A few rows (decoding) use small_rows, bound by reading weights. Dense products are
// offered to cuBLASLt first (dense.cu). Sizes and alignment alone decide.
#include "dense.cuh"
#include "product.cuh"

#if defined(PRECISION_BF16)
// ---- bf16: tiles of 128 x 128 or 128 x 256 on the tensor cores ----------------------------------

enum {
    BM = 128, BK = 64,
    STAGES = 3,                                             // steps of k in shared memory: 1 multiplied, 2 in flight
    LISTS = STAGES + 1,                                         // row indices are a step ahead of their rows
    A_BYTES = BM * BK * (int)sizeof(floatX)
};
template <int BN> struct Size {                                 // bytes of shared memory: 97 or 146 KB
    static constexpr int stage = A_BYTES + BN * BK * (int)sizeof(floatX);
    static constexpr int shared = STAGES * stage + LISTS * 2 * BK * (int)sizeof(int);
};

// Copies a tile to shared memory as it is: ROWS rows, COLUMNS numbers of each from `column` on. Row
// r is row_at(r) of `from`, or zeros if that is negative; numbers past `width` are zeros.
//
// Swizzle: chunk c (16 bytes) of row r is stored at chunk c ^ r%8. ldmatrix reads the same chunk of
// 8 rows at a time; without the swizzle these would be in the same 4 of 32 banks.
template <int ROWS, int COLUMNS, int THREADS, typename Rows>
__device__ static inline void copy_tile(uint32_t to, const floatX *from, int width, int column, Rows row_at) {
    enum { CHUNKS = COLUMNS / 8, ROWS_AT_ONCE = THREADS / CHUNKS };
    static_assert(ROWS_AT_ONCE % 8 == 0 && ROWS % ROWS_AT_ONCE == 0, "r%8 must be the same for all rows of a thread");
    const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
    const bool inside = column + chunk * 8 < width;
    from += column + chunk * 8;
    to += (first * CHUNKS + (chunk ^ first % 8)) * 16;
#pragma unroll
    for (int i = 0; i < ROWS / ROWS_AT_ONCE; i++) {
        const int row = row_at(first + i * ROWS_AT_ONCE);
        cp_async(to + i * THREADS * 16, from + (int64_t)row * width, inside && row >= 0);
    }
}

// A warp's 64 x 16 of an operand, as mma takes it: r[i] is the 16 x 16 block i. `along`: the tile
// is [64...][BK]; otherwise [BK][64...], and ldmatrix transposes, which exchanges i and k16. pitch:
// bytes per row. offset: the lane's for i = k16 = 0. Swizzled chunks: c ^ r%8 becomes (c+2i) ^ r%8.
template <bool along, int pitch>
__device__ static inline void load_operand(uint32_t r[4][4], uint32_t tile, uint32_t offset, int k16) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (along) ldmatrix(r[i], tile + (offset ^ (k16 * 32)) + i * 16 * pitch);
        else ldmatrix_trans(r[i], tile + (offset ^ (i * 32)) + k16 * 16 * pitch);
}

// The four 8 x 8 matrices of a 16 x 16 block go to registers 0-3 in mma's order: of a first along
// m, then k; of b first along k. m and n are the tile's rows if `along`, else columns. rows_first:
// matrices 0 and 1 share the tile's columns, else rows. first: the warp's first m or n.
template <bool along, int pitch> __device__ static inline uint32_t operand_offset(int first, bool rows_first) {
    const int lane = threadIdx.x % 32;
    const int row  = rows_first ? lane % 16 : lane / 16 * 8 + lane % 8;
    const int side = rows_first ? lane / 16 : lane / 8 % 2;
    return (along ? (first + row) * pitch : row * pitch + first * 2) + (side ^ row % 8) * 16;
}

// Stores the finished tile: from registers, where a row is in pieces of 8 bytes, through shared
// memory as whole rows to c, added to what c held, rounded once. list: c's rows.
template <ProductKind kind, int BN, typename T> __device__ static inline
void write_tile(const Product &p, const TileCoord &at, const float sum[4][8][4], float *shared, const int *list) {
    typedef Array<T, 4> Four;
    // BN/4 threads per row; padded by 8: rows begin in different banks
    enum { PITCH = BN + 8, ROWS_AT_ONCE = 4, BATCH = 8 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *mine = shared + (warp % 2 * 64 + lane / 4) * PITCH + warp / 2 * 64 + lane % 4 * 2;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            *(float2 *)&mine[(i * 16    ) * PITCH + j * 8] = make_float2(sum[i][j][0], sum[i][j][1]);
            *(float2 *)&mine[(i * 16 + 8) * PITCH + j * 8] = make_float2(sum[i][j][2], sum[i][j][3]);
        }
    __syncthreads();

    const int columns = columns_of<kind>(p), column = threadIdx.x % (BN / 4) * 4, n = at.n + column;
    if (n >= columns) return;
    T *c = (T *)p.c + (kind == WEIGHT ? (size_t)at.expert * p.O * p.C : 0) + n;
    for (int first = threadIdx.x / (BN / 4); first < BM; first += BATCH * ROWS_AT_ONCE) {
        Four *to[BATCH], old[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {                   // all loads before the first store, so that they overlap
            const int r = first + i * ROWS_AT_ONCE, m = at.m + r, row = kind != WEIGHT ? list[r] : m < p.O ? m : -1;
            to[i] = row < 0 ? NULL : (Four *)(c + (size_t)row * columns);
            if (to[i] && p.how == ADD) old[i] = *to[i];
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (to[i]) {
                const float4 s = *(const float4 *)&shared[(first + i * ROWS_AT_ONCE) * PITCH + column];
                const float x[4] = { s.x, s.y, s.z, s.w };
                Four v;
                for (int q = 0; q < 4; q++) v.x[q] = (T)(x[q] + (p.how == ADD ? (float)old[i].x[q] : 0));
                *to[i] = v;
            }
    }
}

// What a block copies: rows and columns of its tile's operands, step by step along k.
template <ProductKind kind, int BN> struct Operands {
    const Product &p;
    const TileCoord at;
    const int k, steps;
    const floatX *const b;                  // the expert's; FORWARD: from the tile's first row on
    // row numbers (shared). FORWARD, INPUT: BM of a, BM of c. WEIGHT: LISTS times BK of a, BK of b
    int *const list;
    __device__ int find_row(const int *row, int i) const { return i >= at.rows ? -1 : row ? row[at.first + i]
                                                                               : at.first + i; }
    __device__ int find_k(int step) const {
        return find_row(threadIdx.x < BK ? p.a_row : p.b_row, step * BK + threadIdx.x % BK);
    }
    __device__ void find_rows(void) const {
        const int thread = threadIdx.x;
        if (kind != WEIGHT && thread < BM) {
            list[thread] = find_row(p.a_row, at.m + thread);
            list[BM + thread] = find_row(p.c_row, at.m + thread);
        }
        if (kind == WEIGHT && thread < 2 * BK)
            for (int step = 0; step < STAGES; step++) list[step * 2 * BK + thread] = find_k(step);
        __syncthreads();
    }
    __device__ void copy_a(int step, uint32_t to) const {
        if (step >= steps) return;
        const int *rows = kind == WEIGHT ? list + step % LISTS * 2 * BK : list;
        auto row_at = [&](int r) { return rows[r]; };
        if constexpr (kind == WEIGHT) copy_tile<BK, BM, BN>(to, p.a, p.O, at.m, row_at);
        else copy_tile<BM, BK, BN>(to, p.a, k, step * BK, row_at);
    }
    __device__ void copy_b(int step, uint32_t to) const {
        if (step >= steps) return;
        const int *rows = list + step % LISTS * 2 * BK + BK;
        if constexpr (kind == FORWARD)
            copy_tile<BN, BK, BN>(to, b, p.C, step * BK, [&](int r) { return at.n + r < p.O ? r : -1; });
        else if constexpr (kind == INPUT)
            copy_tile<BK, BN, BN>(to, b, p.C, at.n, [&](int r) { return step * BK + r < p.O ? step * BK + r : -1; });
        else
            copy_tile<BK, BN, BN>(to, b, p.C, at.n, [&](int r) { return rows[r]; });
    }
};

// A block has one tile of c, BM x BN, and BN threads: 2 warps along m, BN/64 along n. 2*BM*BN*k
// flop; reads (BM + BN)*k*2 bytes from L2: 64 flop per byte at 128 x 128, 85 at 128 x 256.
// Registers allow 8 warps on an SM: with 128 x 128 two blocks, which overlap.
template <ProductKind kind, int BN>
static __global__ __launch_bounds__(BN, 256 / BN) void tile_product(const Product p) {
    constexpr bool a_along = kind != WEIGHT, b_along = kind == FORWARD;
    constexpr int a_pitch = (a_along ? BK : BM) * 2, b_pitch = (b_along ? BK : BN) * 2, STAGE = Size<BN>::stage;
    extern __shared__ __align__(1024) unsigned char shared[];
    const int thread = threadIdx.x, warp = thread / 32;
    const TileCoord at = tile_coord<kind, BM, BN>(p, blockIdx.x);
    if (at.m < 0) return;
    const int k = kind == FORWARD ? p.C : kind == INPUT ? p.O : at.rows, steps = (k + BK - 1) / BK;
    const size_t b_column = kind == FORWARD ? (size_t)at.n * p.C : 0;
    const size_t b_first = kind == WEIGHT ? 0 : (size_t)at.expert * p.O * p.C + b_column;
    const Operands<kind, BN> from = { p, at, k, steps, p.b + b_first, (int *)(shared + STAGES * STAGE) };
    from.find_rows();

    const uint32_t base = shared_address(shared);
    for (int step = 0; step < STAGES - 1; step++) {
        from.copy_a(step, base + step * STAGE);
        from.copy_b(step, base + step * STAGE + A_BYTES);
        cp_async_commit();
    }
    int next = kind == WEIGHT && thread < 2 * BK ? from.find_k(STAGES) : 0;

    const uint32_t a_offset = operand_offset<a_along, a_pitch>(warp % 2 * 64, a_along);
    const uint32_t b_offset = operand_offset<b_along, b_pitch>(warp / 2 * 64, !b_along) + A_BYTES;
    float sum[4][8][4] = {};
    uint32_t a16[2][4][4], b16[2][4][4];
    uint32_t stage = base, free = base + (STAGES - 1) * STAGE;      // of this step; of the previous step
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_operand<a_along, a_pitch>(a16[0], stage, a_offset, 0);
    load_operand<b_along, b_pitch>(b16[0], stage, b_offset, 0);
    for (int step = 0; step < steps; step++) {
        const uint32_t after = stage == base + (STAGES - 1) * STAGE ? base : stage + STAGE;
#pragma unroll
        for (int k16 = 0; k16 < BK / 16; k16++) {
            const int now = k16 % 2, then = 1 - now;
            if (k16 == 3) {                                         // this step is in registers, the next has arrived
                cp_async_wait<STAGES - 2>();
                __syncthreads();
            }
            load_operand<a_along, a_pitch>(a16[then], k16 == 3 ? after : stage, a_offset, (k16 + 1) % 4);
            load_operand<b_along, b_pitch>(b16[then], k16 == 3 ? after : stage, b_offset, (k16 + 1) % 4);
            if (k16 == 0) from.copy_a(step + STAGES - 1, free);
            // A group is empty at the end, so that the number of groups stays the same.
            if (k16 == 1) from.copy_b(step + STAGES - 1, free + A_BYTES), cp_async_commit();
            if (kind == WEIGHT && k16 == 2 && thread < 2 * BK) {
                from.list[(step + STAGES) % LISTS * 2 * BK + thread] = next;
                next = from.find_k(step + STAGES + 1);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) mma_bf16(sum[i][j], a16[now][i], &b16[now][j / 2][j % 2 * 2]);
        }
        free = stage, stage = after;
    }
    if (kind == WEIGHT && p.how == SET_ROUNDED)
        write_tile<kind, BN, floatX>(p, at, sum, (float *)shared, from.list + BM);
    else write_tile<kind, BN, typename Out<kind>::type>(p, at, sum, (float *)shared, from.list + BM);
}

template <ProductKind kind, int BN> static void launch_tiles(const Product &p) {
    auto *kernel = tile_product<kind, BN>;
    LAUNCH(kernel, (tile_count<kind, BM, BN>(p)), BN, Size<BN>::shared, p);
}

// 16 bytes at a time: all widths and addresses must be multiples.
static bool can_tile(const Product &p) {
    return p.C % 8 == 0 && p.O % 8 == 0 && ((uintptr_t)p.a | (uintptr_t)p.b | (uintptr_t)p.c) % 16 == 0;
}

// Wide tiles read less, but one fills an SM: there must be many, or SMs idle, and none half empty.
template <ProductKind kind> static bool wide_tiles(const Product &p) {
    const int n = columns_of<kind>(p);
    return (n % 256 == 0 || n > 2048) && tile_count<kind, BM, 256>(p) >= 8u * (unsigned)context()->sm_count
        && context()->max_shared >= Size<256>::shared;
}
#endif

// ---- any number type, any width -----------------------------------------------------------------

enum { PLAIN = 64, PLAIN_K = 16 };
// Stores a thread's 4 x 4 of the tile, from element (m, n) of the expert's c on.
template <ProductKind kind> __device__ static inline
void write_plain(const Product &p, const TileCoord &at, const float sum[4][4], int m0, int n0) {
    typedef typename Out<kind>::type T;
    const int M = kind == WEIGHT ? p.O : at.rows, N = columns_of<kind>(p);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int m = m0 + i;
        if (m >= M) continue;
        const size_t row = kind == WEIGHT ? (size_t)at.expert * p.O + m
                                          : (size_t)(p.c_row ? p.c_row[at.first + m] : at.first + m);
        T *c = (T *)p.c + row * N;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int n = n0 + j;
            if (n >= N) continue;
            const float old = p.how == ADD ? (float)c[n] : 0;
            if (kind == WEIGHT && p.how == SET_ROUNDED) ((floatX *)p.c)[row * N + n] = X(sum[i][j]);
            else c[n] = (T)(sum[i][j] + old);
        }
    }
}
// A block has 64 x 64 of c, each of 256 threads 4 x 4, in steps of 16 of k. The next step's numbers
// are loaded to registers meanwhile. Shared memory holds floats, k slow in both operands.
template <ProductKind kind> static __global__ __launch_bounds__(256, 4)
    void plain_product(const __grid_constant__ Product p) {
    __shared__ __align__(16) float a[PLAIN_K][PLAIN + 4], b[PLAIN_K][PLAIN + 4];
    const TileCoord at = tile_coord<kind, PLAIN, PLAIN>(p, blockIdx.x);
    if (at.m < 0) return;
    const int M = kind == WEIGHT ? p.O : at.rows, N = columns_of<kind>(p);
    const int K = kind == FORWARD ? p.C : kind == INPUT ? p.O : at.rows;
    const size_t C = (size_t)p.C, O = (size_t)p.O, matrix = at.expert * O * C;
    auto row_of = [&](const int *row, int i) { return (size_t)(row ? row[at.first + i] : at.first + i); };

    // A thread loads 4 numbers of each operand; neighbouring threads, neighbouring addresses.
    const int low = threadIdx.x % 16, high = threadIdx.x / 16, low4 = threadIdx.x % 64, high4 = threadIdx.x / 64;
    float next_a[4], next_b[4];
    auto read = [&](int k0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int ka = k0 + (kind == WEIGHT ? high4 + 4 * i : low),
                m = at.m + (kind == WEIGHT ? low4 : high + 16 * i);
            const int kb = k0 + (kind != FORWARD ? high4 + 4 * i : low),
                n = at.n + (kind != FORWARD ? low4 : high + 16 * i);
            next_a[i] = ka >= K || m >= M ? 0 : R(p.a[kind == WEIGHT ? row_of(p.a_row, ka) * O + m
                                                    : row_of(p.a_row, m) * K + ka]);
            next_b[i] = kb >= K || n >= N ? 0 : R(p.b[kind == WEIGHT ? row_of(p.b_row, kb) * C + n
                                                    : kind == INPUT ? matrix + kb * C + n : matrix + n * C + kb]);
        }
    };
    auto keep = [&](void) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            *(kind == WEIGHT  ? &a[high4 + 4 * i][low4] : &a[low][high + 16 * i]) = next_a[i];
            *(kind != FORWARD ? &b[high4 + 4 * i][low4] : &b[low][high + 16 * i]) = next_b[i];
        }
    };

    float sum[4][4] = {};
    read(0);
    for (int k0 = 0; k0 < K; k0 += PLAIN_K) {
        __syncthreads();
        keep();
        __syncthreads();
        if (k0 + PLAIN_K < K) read(k0 + PLAIN_K);
#pragma unroll
        for (int k = 0; k < PLAIN_K; k++) {
            const float4 x = *(const float4 *)&a[k][high * 4], y = *(const float4 *)&b[k][low * 4];
            const float xs[4] = { x.x, x.y, x.z, x.w }, ys[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += xs[i] * ys[j];
        }
    }
    write_plain<kind>(p, at, sum, at.m + high * 4, at.n + low * 4);
}

// ---- few rows, forward --------------------------------------------------------------------------

// A warp has one column of c for all (at most SMALL) rows of an expert: it reads a row of the
// weight, and inp's from caches. The block of an expert's first row computes all.
enum { SMALL = 8, SMALL_WARPS = 8 };
static __global__ __launch_bounds__(32 * SMALL_WARPS) void small_rows(const Product p, bool vectors) {
    const int across = (p.O + SMALL_WARPS - 1) / SMALL_WARPS, row = blockIdx.x / across;
    const int n = blockIdx.x % across * SMALL_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int e = p.start ? last_expert(p.start, p.E, row, 1, 0) : 0;
    const int rows = p.start ? p.start[e + 1] - row : p.rows;
    if (n >= p.O || row != (p.start ? p.start[e] : 0)) return;

    const floatX *weight = p.b + ((size_t)e * p.O + n) * p.C, *inp[SMALL];
    float sum[SMALL] = {};
#pragma unroll
    for (int r = 0; r < SMALL; r++)
        inp[r] = r < rows ? p.a + (size_t)(p.a_row ? p.a_row[row + r] : row + r) * p.C : NULL;
    if (vectors) {
#pragma unroll 2
        for (int k = lane * VECTOR; k < p.C; k += 32 * VECTOR) {
            const Vec w = load_vec(weight + k);
#pragma unroll
            for (int r = 0; r < SMALL; r++)
                if (r < rows) {
                    const Vec x = load_vec(inp[r] + k);
                    for (int i = 0; i < VECTOR; i++) sum[r] += R(w.x[i]) * R(x.x[i]);
                }
        }
    } else {
        for (int k = lane; k < p.C; k += 32)
#pragma unroll
            for (int r = 0; r < SMALL; r++) if (r < rows) sum[r] += R(weight[k]) * R(inp[r][k]);
    }
#pragma unroll
    for (int r = 0; r < SMALL; r++) {
        const float s = warp_sum(sum[r]);
        if (r < rows && lane == 0) ((floatX *)p.c)[(size_t)(p.c_row ? p.c_row[row + r] : row + r) * p.O + n] = X(s);
    }
}

// ---- the table's functions ----------------------------------------------------------------------

// portable: only instructions that every GPU since Ampere has.
template <ProductKind kind, bool portable> static void multiply(const Product &p) {
    if (p.rows == 0) {
        const size_t each = p.how == SET_ROUNDED ? sizeof(floatX) : sizeof(real);
        if (kind == WEIGHT && p.how != ADD)
            CUDA_CHECK(cudaMemsetAsync(p.c, 0, (size_t)p.E * p.O * p.C * each, context()->stream));
        return;
    }
    if (kind == FORWARD && p.rows <= SMALL) {
        const bool vectors = p.C % VECTOR == 0 && ((uintptr_t)p.a | (uintptr_t)p.b) % 16 == 0;
        const size_t groups = p.start ? (size_t)p.rows : 1;
        LAUNCH(small_rows, (unsigned)(groups * divide_up((size_t)p.O, SMALL_WARPS)), 32 * SMALL_WARPS, 0, p, vectors);
        return;
    }
#if defined(PRECISION_BF16)
    if (!portable && (kind == FORWARD ? hopper_product_forward(p) : kind == INPUT ? hopper_product_input(p)
                                                                                  : hopper_product_weight(p))) return;
    if (can_tile(p)) {
        if (wide_tiles<kind>(p)) launch_tiles<kind, 256>(p);
        else launch_tiles<kind, 128>(p);
        return;
    }
#endif
    LAUNCH(plain_product<kind>, (tile_count<kind, PLAIN, PLAIN>(p)), 256, 0, p);
}

// out = inp W^T. cuBLAS's matrices are by columns, so for cuBLAS this is out^T (O,N) = W inp^T.
template <bool portable>
static void matmul_forward(OUT floatX *out, const floatX *inp, const floatX *weight, int N, int C, int O) {
    if (N > SMALL && dense_product(out, false, false, weight, true, inp, false, O, N, C)) return;
    multiply<FORWARD, portable>(dense(inp, weight, out, N, C, O));
}

// dinp = dout W, or +=
template <bool portable>
static void matmul_backward_input(floatX *dinp, const floatX *dout, const floatX *weight, int N, int C, int O,
                                  Write how) {
    if (N > 0 && dense_product(dinp, false, how == ADD, weight, false, dout, false, C, N, O)) return;
    Product p = dense(dout, weight, dinp, N, C, O);
    p.how = how;
    multiply<INPUT, portable>(p);
}

// dW = dout^T inp, or +=
template <bool portable>
static void matmul_backward_weight(void *dweight, const floatX *dout, const floatX *inp, int N, int C, int O,
                                   Write how) {
    if (N > 0 && dense_product(dweight, how != SET_ROUNDED, how == ADD, inp, false, dout, true, C, O, N)) return;
    Product p = dense(dout, inp, dweight, N, C, O);
    p.how = how;
    multiply<WEIGHT, portable>(p);
}

// For every row of expert e, with x and y its rows of inp and out:  y = x W[e]^T,
template <bool portable>
static void parallel_linear_forward(OUT floatX *out, const floatX *inp, const floatX *weight, const Plan *plan,
                                    int C, int O, Rows inp_rows, Rows out_rows) {
    Product p = routed(inp, weight, out, plan, C, O);
    p.a_row = rows_of(plan, inp_rows), p.c_row = rows_of(plan, out_rows);
    multiply<FORWARD, portable>(p);
}

// dx = dy W[e],
template <bool portable>
static void parallel_linear_backward_input(OUT floatX *dinp, const floatX *dout, const floatX *weight,
                                           const Plan *plan, int C, int O, Rows dinp_rows, Rows dout_rows) {
    Product p = routed(dout, weight, dinp, plan, C, O);
    p.a_row = rows_of(plan, dout_rows), p.c_row = rows_of(plan, dinp_rows);
    multiply<INPUT, portable>(p);
}

// dW[e] = the sum over its rows of dy^T x, or +=
template <bool portable>
static void parallel_linear_backward_weight(void *dweight, const floatX *dout, const floatX *inp,
                                            const Plan *plan, int C, int O, Rows inp_rows, Rows dout_rows, Write how) {
    Product p = routed(dout, inp, dweight, plan, C, O);
    p.a_row = rows_of(plan, dout_rows), p.b_row = rows_of(plan, inp_rows), p.how = how;
    multiply<WEIGHT, portable>(p);
}

template <bool portable> static void fill(Device *d) {
    d->matmul_forward = matmul_forward<portable>;
    d->matmul_backward_input = matmul_backward_input<portable>;
    d->matmul_backward_weight = matmul_backward_weight<portable>;
    d->parallel_linear_forward = parallel_linear_forward<portable>;
    d->parallel_linear_backward_input = parallel_linear_backward_input<portable>;
    d->parallel_linear_backward_weight = parallel_linear_backward_weight<portable>;
}
PART(matmul) { fill<false>(d); }
PART(matmul_portable) { fill<true>(d); }
