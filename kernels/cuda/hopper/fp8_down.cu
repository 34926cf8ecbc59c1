// fp8_down.cu: expert_down_backward of expert.cu in 8 bits (sm_90a). da = dout down is never stored; from it and pre come dpre, wact,
// both as codes, as bf16, or both, and the parts of the gradient of each row's router weight.
//
// As there, a warp leaves its 16 rows of da in slabs, as bf16, and finishes this pending tile in units, while the tensor cores work on
// the next one. A tile has 128 columns, so that both kinds of sums and a unit fit into the registers. A unit is 2 rows: 16 lanes have 8
// columns each of a row, and find the scales of its gradients of gate and up and of its wact by shuffles.
//
// Shared memory (byte offsets; gemm.cuh, Layout):
//
//        0   stage 0: a, 16 KB        128 rows x 128 codes
//    16384            b, 16 KB        128 columns x 128 codes
//    32768   stages 1 to 4            the same
//   163840   slabs, 8 x 8 KB          four for each consumer, of which a warp uses 2 KB each:
//                                       0, 1   da of the pending tile, 16 rows x 128 columns
//                                       2, 3   gate and up of four units, prefetched: of the pending tile, then of the next one
//   229376   barriers, tiles, next, starts
#include "fp8.cuh"
#include "kernels/cuda/expert.cuh"

#if defined(PRECISION_BF16)

typedef Layout<128, 5, 4> Down8;

// pre and dpre (rows,2F), wact (rows,F), or their codes; part (F/128,rows): sums of da * act over the columns of a tile.
struct Down8Backward {
    const floatX *pre; floatX *dpre, *wact; Fp8 dpre8, wact8; real *part; const real *weight; const int *slot_of_row;
};

#if defined(HOPPER)
// A tile whose product is complete, or will be. Of its unit u this thread has 8 elements: of row row + 2u, from column `column` on.
enum { UNITS = 8, AHEAD = 4 };
struct Pending8 {
    int unit;                                                       // the next to finish
    int row, end, column;                                           // end: as in Tile
    real weight;                                                    // of row `lane` of the 16
};
// Starts to copy this thread's elements of gate and up of a unit, which no other thread reads.
__device__ static inline void prefetch8(uint32_t to, const Down8Backward &e, int row, int end, int column, int unit, int F) {
    const bool inside = row + 2 * unit < end;
    const floatX *from = e.pre + (inside ? (size_t)(row + 2 * unit) * (2 * F) + column : 0);
    to += unit % AHEAD / 2 * SLAB + unit % 2 * 1024;
    cp_async(to, from, inside);
    cp_async(to + 512, from + F, inside);
    cp_async_commit();
}
// The codes of 8 elements of a block, of which 16 lanes have 8 each; and its scale.
__device__ static inline void store_codes(const Fp8 &to, const float (&x)[8], size_t at) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = max(most, magnitude(x[i]));
#pragma unroll
    for (int lane = 8; lane; lane /= 2) most = max(most, __shfl_xor_sync(ALL, most, lane));
    if (at == (size_t)-1) return;
    const float scale = fp8_scale(most);
    *(uint2 *)(to.code + at) = fp8_codes(x, fp8_inverse(scale));
    if (threadIdx.x % 16 == 0) to.scale[at / 128] = scale;
}
__device__ static inline void store_rounded(floatX *to, const float (&x)[8]) {
    const uint32_t bits[4] = { pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]) };
    store_global(to, bits);
}
// The next unit of t. da: this thread's elements of unit 0 in shared memory. next: the tile whose units are prefetched after t's.
__device__ static inline void finish8(uint32_t da, uint32_t prefetched, const Down8Backward &e, Pending8 &t, const Pending8 &next,
                                      const Product &p) {
    const int unit = t.unit++, F = p.O, lane = threadIdx.x % 32, row = t.row + 2 * unit;
    const uint32_t from = prefetched + unit % AHEAD / 2 * SLAB + unit % 2 * 1024;
    uint32_t d[4], gate[4], up[4];
    cp_async_wait<AHEAD - 1>();
    load_shared(d, (da ^ unit % 4 * 32) + unit * 256);              // swizzle: chunk ^ row % 8
    load_shared(gate, from);
    load_shared(up, from + 512);
    const bool mine = unit < UNITS - AHEAD;
    prefetch8(prefetched, e, mine ? t.row : next.row, mine ? t.end : next.end, mine ? t.column : next.column, (unit + AHEAD) % UNITS, F);
    const real w = __shfl_sync(ALL, t.weight, 2 * unit + lane / 16);
    float dgate[8], dup[8], wact[8], dot = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float x = unpack_bf16(d[i / 2], i % 2);
        const Slope slope = slope_of<SWIGLU>(unpack_bf16(gate[i / 2], i % 2), unpack_bf16(up[i / 2], i % 2));
        dot += x * slope.act;
        dgate[i] = w * x * slope.dgate, dup[i] = w * x * slope.dup, wact[i] = w * slope.act;
    }
    const bool inside = row < t.end;
    const size_t at = (size_t)row * (2 * F) + t.column, of_wact = (size_t)row * F + t.column, none = (size_t)-1;
    if (e.dpre8.code) store_codes(e.dpre8, dgate, inside ? at : none), store_codes(e.dpre8, dup, inside ? at + F : none);
    if (e.wact8.code) store_codes(e.wact8, wact, inside ? of_wact : none);
    if (e.dpre && inside) store_rounded(e.dpre + at, dgate), store_rounded(e.dpre + at + F, dup);
    if (e.wact && inside) store_rounded(e.wact + of_wact, wact);
#pragma unroll
    for (int other = 8; other; other /= 2) dot += __shfl_xor_sync(ALL, dot, other);
    if (lane % 16 == 0 && inside) e.part[(size_t)(t.column / 128) * p.rows + row] = dot;
}
#endif

// given: a is dout, gathered, b the transposed weight (E,F,C); O is F.
static __global__ __launch_bounds__(THREADS, 1)
void down8_backward(const __grid_constant__ CUtensorMap b_map, const __grid_constant__ Product given,
                    const __grid_constant__ Down8Backward e, const float *a_scale, const float *b_scale, int tiles,
                    unsigned *work_counter) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Down8> s(raw);
    Product p = given;
    p.start = s.init(1 + WARPGROUP, p.start, p.E);
    if (threadIdx.x < WARPGROUP) {
        give_registers<56>();
        produce_rows<FORWARD, true, false>(s, NULL, &b_map, p, tiles, work_counter);
        return;
    }
    take_registers<224>();
    const int F = p.O, steps = p.C / BK, lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
    const uint32_t my_da = s.slab(lane % 16 / 8) + swizzled(lane / 16, lane % 8), prefetched = s.slab(2) + lane * 16;
    RowScales<1> scales = { a_scale, b_scale, given.a_row, steps };
    Position<Down8::STAGES> at;
    auto find = [&](void) {
        s.pipe.wait_full(at);
        const Tile tile = s.tile(at);
        if (tile.expert >= 0) scales.find(tile, tile.expert * (F / 128) + tile.column / 128, 0);
        return tile;
    };
    if (warp / 4) end_turn(1);
    Pending8 pending = { UNITS };
    for (Tile tile = find(); tile.expert >= 0;) {
        const int row = tile.row + warp * 16;
        Pending8 next = { 0, row + lane / 16, tile.end, tile.column + lane % 16 * 8 };
        next.weight = lane < 16 && row + lane < tile.end ? e.weight[e.slot_of_row[row + lane]] : 0;
        if (pending.unit == UNITS)                                  // the first tile
            for (int u = 0; u < AHEAD; u++) prefetch8(prefetched, e, next.row, next.end, next.column, u, F);
        float da[Down8::BN / 2];
        scales.fetch(0);
        mainloop_e4m3(da, s, at, steps, warp / 4, scales, [&](int step) {
#pragma unroll 1
            while (pending.unit < UNITS && pending.unit * steps < (step + 1) * UNITS)
                finish8(my_da, prefetched, e, pending, next, p);
        }, [&](void) { tile = find(); });
        __syncwarp();                                               // all lanes have read da of the pending tile
#pragma unroll
        for (int i = 0; i < 8; i++) put_columns(s.slab(i / 4), i % 4, &da[i * 8]);
        __syncwarp();
        pending = next;
    }
    const Pending8 none = { 0 };
#pragma unroll 1
    while (pending.unit < UNITS) finish8(my_da, prefetched, e, pending, none, p);
#endif
}

// ---- on the host ----------------------------------------------------------------------------------------------------------

static void fp8_down_backward(const Device *d, OUT floatX *dpre, OUT Fp8 dpre8, OUT floatX *wact, OUT Fp8 wact8, OUT real *dweight,
                              Fp8 dout, Fp8 down, const floatX *pre, const real *weight, const Plan *plan, int C, int F) {
    (void)d;
    Product p = routed8(dout, down, NULL, plan, C, F);
    if (!p.rows) return;
    p.a_row = plan->token_of_row;
    CUtensorMap b;
    if (!map_weights(&b, p, F, Down8::BN)) CUDA_CHECK(cudaErrorInvalidValue);
    const int parts = F / 128, tiles = (int)tile_count<FORWARD, BM, Down8::BN>(p);
    real *part = (real *)workspace((size_t)parts * p.rows * sizeof *part);
    allow_shared((const void *)down8_backward, Down8::bytes);
    LAUNCH(down8_backward, (unsigned)min(tiles, context()->sm_count), THREADS, Down8::bytes, b, p,
           Down8Backward{ pre, dpre, wact, dpre8, wact8, part, weight, plan->slot_of_row }, dout.scale, down.scale, tiles,
           context()->work_counter);
    sum_router_parts(dweight, part, plan, parts);
}
PART(fp8_down) { d->fp8_down_backward = fp8_down_backward; }
#endif
