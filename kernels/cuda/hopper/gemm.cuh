// gemm.cuh: for rows.cu (timeline), weight.cu and expert.cu: a block's shared memory, a consumer's
// main loop, the producer that loads rows, the store of a warp's results.
#pragma once
#include "kernels/cuda/product.cuh"
#include "wgmma.cuh"

enum {
    BM = 128, BK = 64,                              // rows of a tile; k per stage
    WARPGROUP = 128, THREADS = 3 * WARPGROUP,       // of a block: a producer and two consumers
    SLAB = 64 * 128,                                // bytes of a slab: 64 rows of 128 bytes
    STARTS = 424,                                   // entries of Product.start that fit in shared memory
    CONSUMER_BARRIER = 1, PRODUCER_BARRIER = 3      // named barriers: of consumers 0 and 1, and of the producer
};

// Offsets (bytes). A stage holds a, 128 x 64, and b, BN x 64; a slab, results to be stored.
template <int BN_, int STAGES_, int SLABS_> struct Layout {
    static constexpr int BN = BN_, STAGES = STAGES_, SLABS = SLABS_;
    static constexpr int a_bytes = BM * BK * 2, b_bytes = BN * BK * 2, stage_bytes = a_bytes + b_bytes;
    static constexpr int slabs = STAGES * stage_bytes;              // SLABS for each consumer
    static constexpr int barriers = slabs + 2 * SLABS * SLAB;       // full and empty of each stage
    static constexpr int tiles = barriers + STAGES * 16;            // the tile that each stage belongs to
    static constexpr int next = tiles + STAGES * 16;                // int[2]: next_number
    static constexpr int starts = next + 16;                        // a copy of Product.start
    static constexpr int bytes = starts + STARTS * 4 + 1024;    // the first offset is rounded up to a multiple of 1024
    static_assert(bytes <= 232448, "the most that a block can have");
};

// 128 rows from `row` (up to `end` the expert's), BN columns from `column`. expert < 0: no more.
struct alignas(16) Tile { int expert, row, end, column; };

#if defined(HOPPER)
// ---- shared memory ------------------------------------------------------------------------------

// TileType: Tile, or another 16 bytes whose first int is negative after the last tile.
template <typename Layout, typename TileType = Tile> struct Shared {
    typedef Position<Layout::STAGES> At;
    uint32_t base;
    unsigned char *generic;                                         // the same address as a pointer
    Pipeline<Layout::STAGES> pipe;
    __device__ Shared(unsigned char *raw) {
        // the swizzle counts from multiples of 1024
        const uint32_t address = shared_address(raw), skip = -address & 1023;
        base = address + skip, generic = raw + skip, pipe.barriers = base + Layout::barriers;
    }
    __device__ uint32_t a(At at) const { return base + at.stage * Layout::stage_bytes; }
    __device__ uint32_t b(At at) const { return a(at) + Layout::a_bytes; }
    __device__ TileType &tile(At at) const { return *(TileType *)(generic + Layout::tiles + at.stage * 16); }
    // The 16 rows of this warp in slab i of its consumer.
    __device__ uint32_t slab(int i) const {
        const int warp = threadIdx.x / 32 - 4;
        return base + Layout::slabs + (warp / 4 * Layout::SLABS + i) * SLAB + warp % 4 * SLAB / 4;
    }
    __device__ unsigned char *pointer(uint32_t address) const { return generic + (address - base); }

    // By all threads, first. producers: arrivals on "full". Returns a copy of start, if it fits.
    __device__ const int *init(int producers, const int *start, int E) const {
        int *copy = (int *)(generic + Layout::starts);
        if (threadIdx.x == 0) {
            pipe.init(8, producers);
            fence_barrier_init();
        }
        const bool fits = start && E < STARTS;
        if (fits) for (int i = threadIdx.x; i <= E; i += THREADS) copy[i] = start[i];
        __syncthreads();
        return fits ? copy : start;
    }
};

// ---- the main loop of a consumer ----------------------------------------------------------------

// sum (64 x BN) = a b over `steps` stages, of which the first is full already. A step is queued
// while tensor cores do the one before: a stage is released a step late. meanwhile(): once a step.
struct Nothing { __device__ void operator()(void) const {} };
template <Major a_major, Major b_major, typename Layout, typename TileType, typename Meanwhile = Nothing>
__device__ static inline void mainloop(float (&sum)[Layout::BN / 2], const Shared<Layout, TileType> &s,
                                       Position<Layout::STAGES> &at, int steps, int consumer,
                                       Meanwhile meanwhile = Meanwhile()) {
    __syncwarp();                                                   // all lanes have read the first stage's tile
    Position<Layout::STAGES> previous;
    for (int step = 0; step < steps; step++, at.advance()) {
        if (step) s.pipe.wait_full(at);
        const uint32_t a = s.a(at) + consumer * 8192, b = s.b(at);
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < BK / 16; k16++)
            wgmma<Layout::BN, a_major, b_major>(sum, descriptor(a + k16 * (a_major == K_MAJOR ? 32 : 2048), a_major),
                                                descriptor(b + k16 * (b_major == K_MAJOR ? 32 : 2048), b_major),
                                                step | k16);
        wgmma_commit();
        wgmma_wait<1>();                                            // the previous step is complete
        if (step) s.pipe.arrive_empty(previous);
        previous = at;
        meanwhile();
    }
    wgmma_wait<0>();
    pin(sum);
    s.pipe.arrive_empty(previous);
}

// ---- the producer of rows -----------------------------------------------------------------------

// The number of the block's next tile, from thread 0, which drew it, to the producer's others: four
// warps if it gathers, else one. parity alternates: no number is overwritten before all read it.
template <bool gather, typename Layout> __device__ static inline int next_number(const Shared<Layout> &s, int drawn,
        int &parity) {
    if (!gather) return __shfl_sync(ALL, drawn, 0);
    int *next = (int *)(s.generic + Layout::next) + parity;
    if (threadIdx.x == 0) *next = drawn;
    named_barrier_sync(PRODUCER_BARRIER, WARPGROUP);
    parity ^= 1;
    return *next;
}

// After the last tile: a stage that says so. gather: all the producer's threads arrive.
template <bool gather, typename Layout, typename TileType>
__device__ static inline void end_tiles(const Shared<Layout, TileType> &s, Position<Layout::STAGES> at) {
    s.pipe.wait_empty(at);
    if (threadIdx.x == 0) *(int *)&s.tile(at) = -1, barrier_arrive(s.pipe.full(at));
    if (gather) barrier_arrive(s.pipe.full(at));
}

// The rows of a, gathered. Of every 64 columns a thread copies 16 bytes of 8 rows: chunk
// threadIdx.x%8 of row threadIdx.x/8 + 16*i; past tile.end zeros (one valid row for all is slow).
struct GatheredRows {
    enum { EACH = BM / 16 };
    const floatX *from[EACH];
    int valid;                                                      // how many of the 8 come before tile.end
    __device__ void begin(const Product &p, Tile tile, int k) {
        const int first = threadIdx.x / 8, chunk = threadIdx.x % 8;
        valid = (tile.end - tile.row - first + 15) / 16;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            from[i] = p.a + (size_t)p.a_row[min(tile.row + first + 16 * i, tile.end - 1)] * k + chunk * 8;
    }
    // Copies 64 columns to `a`, `column` after the last advance. inside: with this thread's.
    __device__ void copy(uint32_t a, int column, bool inside) const {
        const int rows = inside ? valid : 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            cp_async(a + swizzled(threadIdx.x / 8 + 16 * i, threadIdx.x % 8), from[i] + column, i < rows);
    }
    __device__ void advance(int columns) {
#pragma unroll
        for (int i = 0; i < EACH; i++) from[i] += columns;
    }
};

// b of the step that begins at k, by bulk copies. FORWARD: BN rows of 64 of k; gate_up: BN/2 rows
// of gate and of up, p.O rows further. INPUT: slabs of 64 rows of 64 columns.
template <ProductKind kind, int BN, bool gate_up> __device__ static inline
void load_weights(uint32_t to, const CUtensorMap *map, uint32_t full, const Product &p, Tile tile, int k) {
    if (kind == FORWARD)
        for (int half = 0; half <= gate_up; half++)
            bulk_load(to + half * BN * 64, map, full, k, half * p.O + tile.column, tile.expert);
    else for (int c = 0; c < BN; c += 64) bulk_load(to + c * 128, map, full, tile.column + c, k, tile.expert);
}

// The producer of FORWARD and INPUT: loads tiles until the block draws a number past the last.
// gather: all four warps copy rows of a; else one thread copies all. gate_up: BN/2 of gate, of up.
template <ProductKind kind, bool gather, bool gate_up, typename Layout>
__device__ static void produce_rows(const Shared<Layout> &s, const CUtensorMap *a_map, const CUtensorMap *b_map,
                                    const Product &p, int tiles, unsigned *work_counter) {
    enum { BN = Layout::BN, UNROLL = gather ? 4 : 1 };  // instructions count: addresses advance every fourth step only
    if (!gather && threadIdx.x >= 32) return;
    const int k = kind == FORWARD ? p.C : p.O, steps = (k + BK - 1) / BK, thread = threadIdx.x;
    int drawn = 0, parity = 0;
    Position<Layout::STAGES> at;
    for (int number = blockIdx.x; number < tiles; number = next_number<gather>(s, drawn, parity)) {
        const TileCoord coord = tile_coord<kind, BM, gate_up ? BN / 2 : BN>(p, number);
        if (coord.m < 0) {
            if (thread == 0) drawn = draw_work(work_counter, tiles);
            continue;
        }
        const Tile tile = { coord.expert, coord.first + coord.m, coord.first + coord.rows, coord.n };
        GatheredRows rows;
        if (gather) rows.begin(p, tile, k);
        for (int step = 0; step < steps;) {
#pragma unroll
            for (int u = 0; u < UNROLL && step < steps; u++, step++, at.advance()) {
                const uint32_t full = s.pipe.full(at);
                s.pipe.wait_empty(at);
                if (gather) {
                    rows.copy(s.a(at), u * BK, step * BK + thread % 8 * 8 < k);
                    barrier_arrive_copied(full);
                }
                __syncwarp();                           // no lane falls a round behind: a wait knows only the parity
                if (thread == 0) {
                    if (step == max(steps - 3, 0)) drawn = draw_work(work_counter, tiles);  // early: it takes a while
                    s.tile(at) = tile;
                    barrier_expect(full, Layout::b_bytes + (gather ? 0 : Layout::a_bytes));
                    load_weights<kind, BN, gate_up>(s.b(at), b_map, full, p, tile, step * BK);
                    if (!gather) bulk_load(s.a(at), a_map, full, step * BK, tile.row, 0);
                }
            }
            if (gather) rows.advance(UNROLL * BK);
        }
    }
    end_tiles<gather>(s, at);
}

// ---- from registers to global memory ------------------------------------------------------------
//
// A warp stores its 16 rows of the tile alone: it waits for no other. It rounds 64 columns to bf16
// in its part of a slab, 16 rows of 128 bytes, for a bulk store.

// Columns 16j .. 16j+15 of the 64: x[0..7] are this thread's sums of them (wgmma.cuh).
__device__ static inline void put_columns(uint32_t slab, int j, const float *x) {
    const int lane = threadIdx.x % 32;
    stmatrix(slab + swizzled(lane % 16, 2 * j + lane / 16),
             pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

// A matrix to store to: row i of the product goes to x's row_of[i] (NULL: i). map: 16-row boxes.
struct Output { const CUtensorMap *map; floatX *x; const int *row_of; int columns; };

// The slab's 16 rows to rows `row`.. at column n: one bulk store if they are consecutive and all
// before `end`; else row by row, 128 bytes each. Always commits a group, as wait_slab counts these.
template <typename Layout> __device__ static inline
void store_slab(const Shared<Layout> &s, uint32_t slab, const Output &to, int n, int row, int end) {
    const int lane = threadIdx.x % 32, chunk = lane % 8;
    const bool box = !to.row_of && row + 16 <= end;
    if (box) fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
        if (box) bulk_store(to.map, slab, n, row, 0);
        bulk_commit();
    }
    if (box) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = lane / 8 + 4 * i;
        if (row + r >= end || n + chunk * 8 >= to.columns) break;
        const size_t where = to.row_of ? to.row_of[row + r] : row + r;
        *(int4 *)(to.x + where * to.columns + n + chunk * 8) = *(const int4 *)(s.pointer(slab) + swizzled(r, chunk));
    }
}
// Before refilling a slab: waits until all but `pending` of this warp's stores have read theirs.
template <int pending> __device__ static inline void wait_slab(void) {
    if (threadIdx.x % 32 == 0) bulk_wait_read<pending>();
    __syncwarp();
}
#endif

// ---- on the host --------------------------------------------------------------------------------

// Bulk copies need addresses and rows that are multiples of 16 bytes.
static inline bool can_use(const Product &p) {
    return context()->arch == 90 && p.C % 8 == 0 && p.O % 8 == 0 && p.rows
        && ((uintptr_t)p.a | (uintptr_t)p.b | (uintptr_t)p.c) % 16 == 0;
}

// Maps of a matrix of rows, and of the experts' weights (C,O), with boxes of 64 columns.
static inline bool map_rows(CUtensorMap *map, const floatX *x, int rows, int columns, int box_rows) {
    return tensor_map(map, x, 2, (uint64_t)columns, (uint64_t)rows, 1, (uint64_t)columns, 0, 64, box_rows);
}
static inline bool map_weights(CUtensorMap *map, const Product &p, int O, int box_rows) {
    return tensor_map(map, p.b, 2, (uint64_t)p.C, (uint64_t)O, (uint64_t)p.E, (uint64_t)p.C, (uint64_t)p.C * O,
                      64, box_rows);
}
