// rows.cu: two of matmul.cu's products with Hopper's instructions (sm_90a, bf16), for row r of e:
//
//     FORWARD   out[r][n]  = sum over k < C of  inp[r][k]  * weight[e][n][k]        n < O
//     INPUT     dinp[r][n] = sum over k < O of  dout[r][k] * weight[e][k][n]        n < C
//
// In the code c = a b: a and c have the rows, b is the weight. Rows of a may be gathered and rows
// of c scattered. A dense product is one expert with all rows. Parts that weight.cu or expert.cu
// use as well are in gemm.cuh, barriers and copies in pipeline.cuh.
//
//   block      384 threads, one block on each SM. It computes tiles of 128 rows of one expert x BN
//              columns, one after the other. What else a tile costs (finding it, filling the
//              pipeline, storing it) overlaps with the multiplications of its neighbours.
//   producer   The first warpgroup loads a and b into a ring of stages, 64 of k each, and runs
//              ahead across tiles. Boxes of a matrix are loaded by bulk copies (TMA), which one
//              thread issues; gathered rows by cp.async, 16 bytes a thread.
//   consumers  Two warpgroups hold 64 x BN sums each, in registers. BN is 256 where possible:
//              shared memory gives 128 bytes a clock, and smaller tiles need more.
//   registers  168 a thread. The producer keeps 40, or 56 if it gathers; consumers take the rest.
//   epilogue   A warp rounds its 16 rows of sums to bf16 in shared memory (a slab), 64 columns at a
//              time, for bulk stores. Scattered rows, and an expert's last, are stored singly.
//   tiles      A block draws the number of its next tile from a counter. So tiles with neighbouring
//              numbers, which share rows or weights, are computed at the same time and find them in
//              L2. (With tiles i, i + gridDim.x, ... blocks would drift apart, since some numbers
//              have no tile, and memory would be read five times.)
//
// A block's shared memory with BN = 256 (Layout in gemm.cuh; K_MAJOR, MN_MAJOR in wgmma.cuh):
//
//        0  stage 0: a, 16 KB  128 rows x 64 of k (K_MAJOR)
//    16384           b, 32 KB  FORWARD: 256 x 64 of k, K_MAJOR; INPUT: 4 x 64 of k x 64, MN_MAJOR
//    49152  stages 1, 2, 3     the same
//   196608  slabs, 4 x 8 KB    two for each consumer: 64 rows x 64 columns of c, 16 rows a warp
//   229376  barriers, 4 x 16 bytes  full and empty of each stage
//   229440  tiles, 4 x 16 bytes     the Tile that each stage belongs to
//   229504  next, 2 x 4 bytes       the number drawn, from thread 0 to others that gather
//   229520  starts, 424 x 4 bytes   a copy of Product.start, where every tile looks up its expert
//
// Timeline; sN is step N of a tile, in stage N % 4:
//
//   producer    | load s0 | ... | load s3 | wait empty 0 | load s4 | ... | draw next | load s0 ...
//   consumer 0  |   wait full 0   | wgmma s0 | wgmma s1, release s0 | ... | epilogue | wgmma s0 ...
//   consumer 1  |   the same for rows 64..127
//   copy engine |                                                         | stores the slabs ...
#include "gemm.cuh"

#if defined(PRECISION_BF16)

// Tiles of 256 columns; of 192 if fewer are empty (384 = 2 * 192); of 128 where tiles are few.
typedef Layout<256, 4, 2> Wide;
typedef Layout<192, 4, 2> Middle;
typedef Layout<128, 6, 2> Narrow;

#if defined(HOPPER)
// INPUT with how == ADD (dense): adds c to this thread's 8 sums of 16 columns from `column` on.
__device__ static inline void add_old(float *x, const Product &p, int first, int end, int column, int columns) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = first + lane / 4 + i % 2 * 8, n = column + i / 2 * 8 + lane % 4 * 2;
        if (row >= end || n >= columns) continue;
        const uint32_t old = *(const uint32_t *)((floatX *)p.c + (size_t)row * columns + n);
        x[2 * i] += unpack_bf16(old, 0), x[2 * i + 1] += unpack_bf16(old, 1);
    }
}

// Stores this warp's 16 rows of the tile, 64 columns at a time. stores: of all tiles (2 slabs).
template <ProductKind kind, typename Layout> __device__ static inline
void epilogue(float (&sum)[Layout::BN / 2], const Shared<Layout> &s, const Product &p, const CUtensorMap *c_map,
              Tile tile, int &stores) {
    const int columns = columns_of<kind>(p), row = tile.row + (threadIdx.x / 32 - 4) * 16;
    const Output c = { c_map, (floatX *)p.c, p.c_row, columns };
#pragma unroll
    for (int i = 0; i < Layout::BN / 64; i++) {
        const int n = tile.column + i * 64;
        if (n >= columns) break;
        const uint32_t slab = s.slab(stores++ & 1);
        wait_slab<1>();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float *x = &sum[i * 32 + j * 8];
            if (kind == INPUT && p.how == ADD) add_old(x, p, row, tile.end, n + j * 16, columns);
            put_columns(slab, j, x);
        }
        store_slab(s, slab, c, n, row, tile.end);
    }
}
#endif

// tiles: tile_count, which is an upper bound: some of the numbers have no tile.
template <ProductKind kind, typename Layout, bool gather> static __global__ __launch_bounds__(THREADS, 1)
void grouped_rows(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                  const __grid_constant__ CUtensorMap c_map, const __grid_constant__ Product given, int tiles,
                  unsigned *work_counter) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Layout> s(raw);
    Product p = given;                                                  // but with start in shared memory
    p.start = s.init(gather ? 1 + WARPGROUP : 1, p.start, p.E);         // arrivals: thread 0, and all that gather
    if (threadIdx.x < WARPGROUP) {
        give_registers<gather ? 56 : 40>();
        produce_rows<kind, gather, false>(s, &a_map, &b_map, p, tiles, work_counter);
        return;
    }
    take_registers<gather ? 224 : 232>();
    const int steps = ((kind == FORWARD ? p.C : p.O) + BK - 1) / BK, consumer = threadIdx.x / WARPGROUP - 1;
    Position<Layout::STAGES> at;
    for (int stores = 0;;) {
        s.pipe.wait_full(at);
        const Tile tile = s.tile(at);
        if (tile.expert < 0) break;                                     // no more tiles
        float sum[Layout::BN / 2];
        mainloop<K_MAJOR, kind == INPUT ? MN_MAJOR : K_MAJOR>(sum, s, at, steps, consumer);
        epilogue<kind>(sum, s, p, &c_map, tile, stores);
    }
    if (threadIdx.x % 32 == 0) bulk_wait<0>();
#endif
}

// ---- on the host --------------------------------------------------------------------------------

template <ProductKind kind, typename Layout, bool gather> static bool launch_rows(const Product &p) {
    const int k = kind == FORWARD ? p.C : p.O, columns = columns_of<kind>(p);
    CUtensorMap a = {}, b, c;
    if ((!gather && !map_rows(&a, p.a, p.rows, k, BM))
        || !map_weights(&b, p, p.O, kind == FORWARD ? (int)Layout::BN : (int)BK)
        || !map_rows(&c, (floatX *)p.c, p.rows, columns, 16)) return false;
    auto *kernel = grouped_rows<kind, Layout, gather>;
    const int tiles = (int)tile_count<kind, BM, Layout::BN>(p);
    LAUNCH(kernel, (unsigned)min(tiles, context()->sm_count), THREADS, Layout::bytes, a, b, c, p, tiles,
           context()->work_counter);
    return true;
}
template <ProductKind kind, typename Layout> static bool launch_rows(const Product &p) {
    return p.a_row ? launch_rows<kind, Layout, true>(p) : launch_rows<kind, Layout, false>(p);
}

// Columns of a tile, by the product's sizes. bench/tiles.py compares each choice (0: choose).
#ifndef TILE_COLUMNS
#define TILE_COLUMNS 0
#endif
template <ProductKind kind> static bool rows_product(const Product &p) {
    const int columns = columns_of<kind>(p);
    if (!can_use(p) || (p.how == ADD && p.start)) return false;         // ADD: for dense products only
    const bool narrow = columns <= 128 || tile_count<kind, BM, 256>(p) <= (unsigned)context()->sm_count;
    const bool fits = 192 * divide_up(columns, 192) * 8 <= 256 * divide_up(columns, 256) * 7;   // better by an eighth
    switch (TILE_COLUMNS ? TILE_COLUMNS : narrow ? 128 : fits ? 192 : 256) {
        case 128: return launch_rows<kind, Narrow>(p);
        case 192: return launch_rows<kind, Middle>(p);
        default:  return launch_rows<kind, Wide>(p);
    }
}
bool hopper_product_forward(const Product &p) { return rows_product<FORWARD>(p); }
bool hopper_product_input(const Product &p)   { return rows_product<INPUT>(p); }
#endif
