// fp8_down.cu: expert_down_backward of expert.cu in 8 bits (sm_90a). da = dout down is never
// stored; of it and pre are made dpre, wact (codes, bf16, or both), and router weights' gradients.
//
// That takes as many instructions as a tile has clocks of tensor cores. So a block has a fourth
// warpgroup for it, the finishers. Consumers leave sums in shared memory, as bf16, and go on. A
// warp of the finishers has 32 rows of a tile, in units of 4 rows: 8 lanes have 16 columns each of
// a row, and find its scales by shuffles. A tile has 128 columns: 512 threads' registers fit.
//
//   announced  A consumer has begun a tile. The finishers prefetch its first units and weights.
//   full       Its sums are in shared memory.
//   empty      Its two finishers have read them; or, for the first tile, have begun.
//
// Shared memory (byte offsets; gemm.cuh, Layout):
//
//        0  stage 0: a, 16 KB        128 rows x 128 codes
//    16384           b, 16 KB        128 columns x 128 codes
//    32768  stages 1 to 4            the same
//   163840  slabs, 8 x 8 KB          four for each consumer:
//                                      0, 1   da, 64 rows x 128 columns
//                                      2, 3   gate and up of four units, 2 KB each, by finisher
//   229376  barriers, tiles, next, starts
//   231248  handoff, 2 x 64 bytes    announced, full, empty; the announced tiles, two at a time
#include "fp8.cuh"
#include "kernels/cuda/expert.cuh"

#if defined(PRECISION_BF16)

typedef Layout<128, 5, 4> Down8;
enum { DOWN_THREADS = 4 * WARPGROUP, HANDOFF = Down8::starts + STARTS * 4, HANDOFF_BYTES = 128 };

// pre, dpre (rows,2F), wact (rows,F), or codes; part (F/128,rows): a tile's sums of da * act.
struct Down8Backward {
    const floatX *pre; floatX *dpre, *wact; Fp8 dpre8, wact8; real *part; const real *weight; const int *slot_of_row;
};

#if defined(HOPPER)
// What a consumer and its finishers share.
struct Handoff {
    uint32_t announced, full, empty;
    Tile *tiles;
    __device__ Handoff(const Shared<Down8> &s, int consumer) {
        announced = s.base + HANDOFF + consumer * 64, full = announced + 8, empty = announced + 16;
        tiles = (Tile *)(s.generic + HANDOFF + consumer * 64 + 32);
    }
    __device__ void init(void) const {
        barrier_init(announced, 1), barrier_init(full, 4 * RELEASING_LANES), barrier_init(empty, 2 * RELEASING_LANES);
    }
    __device__ void announce(Tile tile, int n) const {                      // by one thread
        tiles[n % 2] = tile;
        barrier_arrive(announced);
    }
    __device__ Tile wait_announced(int n) const {
        barrier_wait(announced, n & 1);
        return tiles[n % 2];
    }
};

// ---- the finishers ------------------------------------------------------------------------------

// The larger magnitude; NaN if one is NaN.
__device__ static inline float larger(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(fabsf(x)), "f"(fabsf(y)));
    return z;
}

// This lane's part of unit u: of row + 4u, from columns `column` and column + 64 on, 8 each.
enum { UNITS = 8, AHEAD = 4 };
struct Finisher {
    int row, end, column;                                                   // end: as in Tile
    real weight;                                                            // of row `lane` of the 32
    __device__ void begin(const Down8Backward &e, Tile tile, int first) {
        const bool is_last = tile.expert < 0;                               // of which nothing else is set
        const int lane = threadIdx.x % 32, top = is_last ? 0 : tile.row + first, mine = top + lane;
        row = top + lane / 8, end = is_last ? 0 : tile.end, column = tile.column + lane % 8 * 8;
        weight = mine < end ? e.weight[e.slot_of_row[mine]] : 0;
    }
    // Starts to copy its elements of gate and up, which no other lane reads.
    __device__ void prefetch(uint32_t to, const Down8Backward &e, int unit, int F) const {
        const int r = row + 4 * unit;
        const bool inside = r < end;
        const floatX *from = e.pre + (inside ? (size_t)r * (2 * F) + column : 0);
        to += unit % AHEAD * 2048;
        cp_async(to, from, inside), cp_async(to + 512, from + 64, inside);
        cp_async(to + 1024, from + F, inside), cp_async(to + 1536, from + F + 64, inside);
        cp_async_commit();
    }
};
__device__ static inline void store_codes(const Fp8 &to, const float (&x)[16], float most, size_t at) {
    const float scale = fp8_scale(magnitude(most)), inverse = fp8_inverse(scale);
    const float (&low)[8] = *(const float (*)[8])x, (&high)[8] = *(const float (*)[8])(x + 8);
    *(uint2 *)(to.code + at) = fp8_codes(low, inverse);
    *(uint2 *)(to.code + at + 64) = fp8_codes(high, inverse);
    if (threadIdx.x % 8 == 0) to.scale[at / 128] = scale;
}
__device__ static inline void store_rounded(floatX *to, const float (&x)[16]) {
#pragma unroll
    for (int i = 0; i < 16; i += 8) {
        const uint32_t bits[4] = { pack_bf16(x[i], x[i + 1]), pack_bf16(x[i + 2], x[i + 3]),
                                   pack_bf16(x[i + 4], x[i + 5]), pack_bf16(x[i + 6], x[i + 7]) };
        store_global(to + i * 8, bits);
    }
}
// From da, gate and up, packed: all that is stored of unit u.
__device__ static inline void finish(const uint32_t (&d)[8], const uint32_t (&gate)[8], const uint32_t (&up)[8],
                                     const Down8Backward &e, const Finisher &f, int unit, int F, int rows) {
    const int row = f.row + 4 * unit, lane = threadIdx.x % 32;
    const real w = __shfl_sync(ALL, f.weight, 4 * unit + lane / 8);
    float dgate[16], dup[16], wact[16], dot = 0, most[3] = { 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float x = unpack_bf16(d[i / 2], i % 2), wx = w * x;
        const Slope slope = slope_of<SWIGLU>(unpack_bf16(gate[i / 2], i % 2), unpack_bf16(up[i / 2], i % 2));
        dot += x * slope.act;
        dgate[i] = wx * slope.dgate, dup[i] = wx * slope.dup, wact[i] = w * slope.act;
        most[0] = larger(most[0], dgate[i]), most[1] = larger(most[1], dup[i]), most[2] = larger(most[2], wact[i]);
    }
#pragma unroll
    for (int other = 4; other; other /= 2) {
#pragma unroll
        for (int i = 0; i < 3; i++) most[i] = larger(most[i], __shfl_xor_sync(ALL, most[i], other));
        dot += __shfl_xor_sync(ALL, dot, other);
    }
    if (row >= f.end) return;
    const size_t at = (size_t)row * (2 * F) + f.column, of_wact = (size_t)row * F + f.column;
    if (e.dpre8.code) store_codes(e.dpre8, dgate, most[0], at), store_codes(e.dpre8, dup, most[1], at + F);
    if (e.wact8.code) store_codes(e.wact8, wact, most[2], of_wact);
    if (e.dpre) store_rounded(e.dpre + at, dgate), store_rounded(e.dpre + at + F, dup);
    if (e.wact) store_rounded(e.wact + of_wact, wact);
    if (lane % 8 == 0) e.part[(size_t)(f.column / 128) * rows + row] = dot;
}
__device__ static inline void finish_tiles(const Shared<Down8> &s, const Down8Backward &e, const Product &p) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 12, consumer = warp / 2, half = warp % 2, F = p.O;
    const Handoff handoff(s, consumer);
    const uint32_t slabs = s.base + Down8::slabs + consumer * (4 * SLAB),
        prefetched = slabs + (2 + half) * SLAB + lane * 16;
    Finisher now, next;
    now.begin(e, handoff.wait_announced(0), consumer * 64 + half * 32);
    for (int u = 0; u < AHEAD; u++) now.prefetch(prefetched, e, u, F);
    __syncwarp();
    if (releases()) barrier_arrive(handoff.empty);
    for (int n = 0; now.end; n++, now = next) {
        barrier_wait(handoff.full, n & 1);
#pragma unroll 1
        for (int unit = 0; unit < UNITS; unit++) {
            if (unit == UNITS - AHEAD) next.begin(e, handoff.wait_announced(n + 1), consumer * 64 + half * 32);
            uint32_t x[3][2][4];
            const uint32_t da = slabs + swizzled(half * 32 + unit * 4 + lane / 8, lane % 8);
            const uint32_t from = prefetched + unit % AHEAD * 2048;
            cp_async_wait<AHEAD - 1>();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                load_shared(x[0][i], da + i * SLAB);
                load_shared(x[1][i], from + i * 512), load_shared(x[2][i], from + 1024 + i * 512);
            }
            if (unit < UNITS - AHEAD) now.prefetch(prefetched, e, unit + AHEAD, F);
            else next.prefetch(prefetched, e, unit + AHEAD - UNITS, F);
            if (unit == UNITS - 1) {
                __syncwarp();
                if (releases()) barrier_arrive(handoff.empty);
            }
            finish(*(uint32_t (*)[8])x[0], *(uint32_t (*)[8])x[1], *(uint32_t (*)[8])x[2], e, now, unit, F, p.rows);
        }
    }
}

// ---- the consumers ------------------------------------------------------------------------------

__device__ static inline void multiply_tiles(const Shared<Down8> &s, const Product &p, const float *a_scale,
                                             const float *b_scale) {
    const int F = p.O, steps = p.C / BK, consumer = uniform(threadIdx.x / WARPGROUP) - 1;
    const Handoff handoff(s, consumer);
    RowScales<1> scales = { a_scale, b_scale, p.a_row, steps };
    Position<Down8::STAGES> at;
    auto find = [&](void) {
        s.pipe.wait_full(at);
        const Tile tile = s.tile(at);
        if (tile.expert >= 0) scales.find(tile, tile.expert * (F / 128) + tile.column / 128, 0);
    };
    find();
    scales.fetch();
    for (int n = 0;; n++) {
        const Tile tile = s.tile(at);
        if (threadIdx.x % WARPGROUP == 0) handoff.announce(tile, n);
        if (tile.expert < 0) break;
        float da[Down8::BN / 2];
        mainloop_e4m3(da, s, at, steps, consumer, scales, find);
        scales.fetch();
        barrier_wait(handoff.empty, n & 1);
#pragma unroll
        for (int i = 0; i < 8; i++) put_columns(s.slab(i / 4), i % 4, &da[i * 8]);
        __syncwarp();
        if (releases()) barrier_arrive(handoff.full);
    }
}
#endif

// given: a is dout, gathered, b the transposed weight (E,F,C); O is F.
static __global__ __launch_bounds__(DOWN_THREADS, 1)
void down8_backward(const __grid_constant__ CUtensorMap b_map, const __grid_constant__ Product given,
                    const __grid_constant__ Down8Backward e, const float *a_scale, const float *b_scale, int tiles,
                    unsigned *work_counter) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Down8> s(raw);
    if (threadIdx.x == 0) Handoff(s, 0).init(), Handoff(s, 1).init();
    Product p = given;
    p.start = s.init(1 + WARPGROUP, p.start, p.E);
    if (threadIdx.x < WARPGROUP) {
        give_registers<56>();
        produce_rows<FORWARD, true, false>(s, NULL, &b_map, p, tiles, work_counter);
    } else if (threadIdx.x < 3 * WARPGROUP) {
        take_registers<168>();
        multiply_tiles(s, given, a_scale, b_scale);
    } else {
        give_registers<120>();
        finish_tiles(s, e, given);
    }
#endif
}

// ---- on the host --------------------------------------------------------------------------------

static void fp8_down_backward(const Device *, OUT floatX *dpre, OUT Fp8 dpre8, OUT floatX *wact, OUT Fp8 wact8,
                              OUT real *dweight, Fp8 dout, Fp8 down, const floatX *pre, const real *weight,
                              const Plan *plan, int C, int F) {
    Product p = routed8(dout, down, NULL, plan, C, F);
    if (!p.rows) return;
    p.a_row = plan->token_of_row;
    CUtensorMap b;
    if (!map_weights(&b, p, F, Down8::BN)) CUDA_CHECK(cudaErrorInvalidValue);
    const int parts = F / 128, tiles = (int)tile_count<FORWARD, BM, Down8::BN>(p);
    real *part = (real *)workspace((size_t)parts * p.rows * sizeof *part);
    LAUNCH(down8_backward, (unsigned)min(tiles, context()->sm_count), DOWN_THREADS, Down8::bytes + HANDOFF_BYTES, b, p,
           Down8Backward{ pre, dpre, wact, dpre8, wact8, part, weight, plan->slot_of_row }, dout.scale, down.scale,
           tiles, context()->work_counter);
    sum_router_parts(dweight, part, plan, parts);
}
PART_OF(Fp8Operations, fp8_down) { d->down_backward = fp8_down_backward; }
#endif
