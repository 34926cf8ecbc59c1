// expert.cu: two products of rows.cu that do the work of a gated expert's nonlinearity (SWIGLU) in
// their epilogues (sm_90a, bf16). So neither the activations nor their gradients make a round trip
// through memory. Blocks, producer and main loop are those of rows.cu; rows of a are gathered.
//
//   expert_up             pre = inp weight^T, act = silu(gate) * up, where gate and up are the two
//                         halves of a row of pre. A tile has 128 columns of gate and of up, so that
//                         a thread holds both halves of each pair. act is made of pre as rounded.
//   expert_down_backward  da = dout down is never stored; its epilogue does the work of
//                         activation_backward: dpre, wact, and a part, over its columns, of the
//                         gradient of each row's router weight.
//
// For each tile expert_down_backward moves 320 KB to and from memory. If it did so after the
// product, memory and tensor cores would wait for each other. Instead a warp keeps its 16 rows of
// da in slabs, as bf16. This tile is then pending: the warp finishes it in units of 4 rows x 64
// columns, 8 elements a thread, while the tensor cores work on the steps of the next tile.
//
// Shared memory: expert_up's as in rows.cu (256 columns); expert_down_backward's, as Layout:
//
//        0   stage 0: a, 16 KB        128 rows x 64 of k (K_MAJOR)
//    16384            b, 32 KB        4 times 64 of k x 64 columns (MN_MAJOR)
//    49152   stages 1, 2              the same
//   147456   slabs, 10 x 8 KB         five for each consumer, of which a warp uses 2 KB each:
//                                       0..3   da of the pending tile, 16 rows x 256 columns
//                                       4      gate and up of two of its units, prefetched
//   229376   barriers, tiles, next, starts
//
// Timeline of a consumer of expert_down_backward (expert_up: rows.cu). sN: step N of tile i+1; tile
// i is pending (here 16 steps; with fewer a step finishes several units, with more the later none):
//
//   tensor cores  |      | s0      | s1      | ... | s15     |                    | s0 of tile i+2
//   warps         | wait | unit 0, | unit 1, | ... | unit 15 | da of i+1 to slabs | unit 0 of i+1
//                 | full | fetch 2 | fetch 3 |     |         | fetch units 0, 1   |
#include "gemm.cuh"
#include "kernels/cuda/expert.cuh"
#include "kernels/compound.h"

#if defined(PRECISION_BF16)

typedef Layout<256, 4, 2> Up;
typedef Layout<256, 3, 5> Down;

// ---- expert_up ----------------------------------------------------------------------------------

#if defined(HOPPER)
// Stores this warp's 16 rows: of every 64 columns gate, up and act. stores: of all tiles (2 slabs).
__device__ static inline void epilogue(const float (&sum)[Up::BN / 2], const Shared<Up> &s, const Output &pre,
                                       const Output &act, Tile tile, int &stores) {
    const int F = act.columns, row = tile.row + (threadIdx.x / 32 - 4) * 16;
#pragma unroll
    for (int i = 0; i < 6; i++) {
        const int n = tile.column + i / 3 * 64, what = i % 3;       // gate, up, act
        if (n >= F) break;
        const uint32_t slab = s.slab(stores++ & 1);
        wait_slab<1>();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *gate = &sum[i / 3 * 32 + j * 8], *up = gate + 64;
            float x[8];
            if (what == 2)
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const int two = e / 2 * 2;
                    const uint32_t g = pack_bf16(gate[two], gate[two + 1]), u = pack_bf16(up[two], up[two + 1]);
                    x[e] = slope_of<SWIGLU>(unpack_bf16(g, e % 2), unpack_bf16(u, e % 2)).act;
                }
            put_columns(slab, j, what == 0 ? gate : what == 1 ? up : x);
        }
        if (what < 2) store_slab(s, slab, pre, n + what * F, row, tile.end);
        else store_slab(s, slab, act, n, row, tile.end);
    }
}
#endif

// A FORWARD product. given: O is F, c is pre.
static __global__ __launch_bounds__(THREADS, 1)
void expert_up(const __grid_constant__ CUtensorMap b_map, const __grid_constant__ CUtensorMap pre_map,
               const __grid_constant__ CUtensorMap act_map, const __grid_constant__ Product given, floatX *act,
               int tiles, unsigned *work_counter) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Up> s(raw);
    Product p = given;
    p.start = s.init(1 + WARPGROUP, p.start, p.E);
    if (threadIdx.x < WARPGROUP) {
        give_registers<56>();
        produce_rows<FORWARD, true, true>(s, NULL, &b_map, p, tiles, work_counter);
        return;
    }
    take_registers<224>();
    const int F = p.O, steps = (p.C + BK - 1) / BK, consumer = threadIdx.x / WARPGROUP - 1;
    const Output to_pre = { &pre_map, (floatX *)p.c, NULL, 2 * F }, to_act = { &act_map, act, NULL, F };
    Position<Up::STAGES> at;
    for (int stores = 0;;) {
        s.pipe.wait_full(at);
        const Tile tile = s.tile(at);
        if (tile.expert < 0) break;
        float sum[Up::BN / 2];
        mainloop<K_MAJOR, K_MAJOR>(sum, s, at, steps, consumer);
        epilogue(sum, s, to_pre, to_act, tile, stores);
    }
    if (threadIdx.x % 32 == 0) bulk_wait<0>();
#endif
}

// ---- expert_down_backward -----------------------------------------------------------------------

// pre and dpre (rows,2F), wact (rows,F); part (ceil(F/256),rows): a tile's column sums of da * act.
struct DownBackward { const floatX *pre; floatX *dpre, *wact; real *part; const real *weight; const int *slot_of_row; };

#if defined(HOPPER)
// A complete tile. This thread's 8 elements of unit u: row + 4*(u/4), column + 64*(u%4) on.
enum { UNITS = 16 };
struct PendingTile {
    unsigned unit;                                                  // the next to finish
    int row, end, column;                                           // end: as in Tile
    real weight, dot;                                   // of row `lane` of the 16; da * act of this row, summed so far
    __device__ bool inside(unsigned u, int F) const {
        return row + (int)(u / 4 * 4) < end && column + (int)(u % 4 * 64) < F;
    }
    __device__ size_t offset(unsigned u,
                             int pitch) const { return (size_t)(row + u / 4 * 4) * pitch + column + u % 4 * 64; }
};
// Starts to copy this thread's elements of gate and up of a unit to `to`, which no other reads.
__device__ static inline void prefetch_unit(uint32_t to, const DownBackward &e, const PendingTile &t,
                                            unsigned unit, int F) {
    if (unit < UNITS) {
        const bool inside = t.inside(unit, F);
        const floatX *from = e.pre + (inside ? t.offset(unit, 2 * F) : 0);
        cp_async(to + unit % 2 * 1024, from, inside);
        cp_async(to + unit % 2 * 1024 + 512, from + F, inside);
    }
    cp_async_commit();
}
// The next unit. da: this thread's elements of unit 0 (shared). prefetched: `to` of prefetch_unit.
__device__ static inline
void finish_unit(uint32_t da, uint32_t prefetched, const DownBackward &e, PendingTile &t, const Product &p) {
    const unsigned unit = t.unit++, lane = threadIdx.x % 32;
    const int F = p.C;
    uint32_t d[4], gate[4], up[4], dgate[4], dup[4], wact[4];
    cp_async_wait<1>();
    // swizzle: after 4 rows, the other 4 chunks
    load_shared(d, (da ^ unit / 4 % 2 * 64) + unit / 4 * 512 + unit % 4 * SLAB);
    load_shared(gate, prefetched + unit % 2 * 1024);
    load_shared(up, prefetched + unit % 2 * 1024 + 512);
    prefetch_unit(prefetched, e, t, unit + 2, F);
    const real w = __shfl_sync(ALL, t.weight, unit / 4 * 4 + lane / 8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float x[3][2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float da = unpack_bf16(d[i], h);
            const Slope slope = slope_of<SWIGLU>(unpack_bf16(gate[i], h), unpack_bf16(up[i], h));
            t.dot += da * slope.act;
            x[0][h] = w * da * slope.dgate, x[1][h] = w * da * slope.dup, x[2][h] = w * slope.act;
        }
        dgate[i] = pack_bf16(x[0][0], x[0][1]), dup[i] = pack_bf16(x[1][0], x[1][1]),
            wact[i] = pack_bf16(x[2][0], x[2][1]);
    }
    if (t.inside(unit, F)) {
        store_global(e.dpre + t.offset(unit, 2 * F), dgate);
        store_global(e.dpre + t.offset(unit, 2 * F) + F, dup);
        store_global(e.wact + t.offset(unit, F), wact);
    }
    if (unit % 4 < 3) return;
#pragma unroll
    for (int other = 1; other < 8; other *= 2) t.dot += __shfl_xor_sync(ALL, t.dot, other);
    const int r = t.row + unit / 4 * 4;
    if (lane % 8 == 0 && r < t.end) e.part[(size_t)(t.column / Down::BN) * p.rows + r] = t.dot;
    t.dot = 0;
}
#endif

// An INPUT product. given: C is F, c is not used.
static __global__ __launch_bounds__(THREADS, 1)
void expert_down_backward(const __grid_constant__ CUtensorMap b_map, const __grid_constant__ Product given,
                          const __grid_constant__ DownBackward e, int tiles, unsigned *work_counter) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Down> s(raw);
    Product p = given;
    p.start = s.init(1 + WARPGROUP, p.start, p.E);
    if (threadIdx.x < WARPGROUP) {
        give_registers<56>();
        produce_rows<INPUT, true, false>(s, NULL, &b_map, p, tiles, work_counter);
        return;
    }
    take_registers<224>();
    const int F = p.C, steps = (p.O + BK - 1) / BK, units_of_step = (UNITS + steps - 1) / steps;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
    const uint32_t my_da = s.slab(0) + swizzled(lane / 8, lane % 8), prefetched = s.slab(4) + lane * 16;
    PendingTile pending = { UNITS };
    Position<Down::STAGES> at;
    for (;;) {
        s.pipe.wait_full(at);
        const Tile tile = s.tile(at);
        if (tile.expert < 0) break;
        const int row = tile.row + warp * 16;
        PendingTile next = { 0, row + lane / 8, tile.end, tile.column + lane % 8 * 8 };
        next.weight = lane < 16 && row + lane < tile.end ? e.weight[e.slot_of_row[row + lane]] : 0;
        bool has_prefetched = false;
        auto prefetch = [&](void) {                         // once, as soon as the pending tile needs no more itself
            if (!has_prefetched) prefetch_unit(prefetched, e, next, 0, F), prefetch_unit(prefetched, e, next, 1, F);
            has_prefetched = true;
        };
        float da[Down::BN / 2];
        mainloop<K_MAJOR, MN_MAJOR>(da, s, at, steps, warp / 4, [&](void) {
            if (pending.unit == UNITS) prefetch();
#pragma unroll 1
            for (int i = 0; i < units_of_step && pending.unit < UNITS; i++)
                finish_unit(my_da, prefetched, e, pending, p);
        });
        prefetch();
        __syncwarp();                                               // all lanes have read da of the pending tile
#pragma unroll
        for (int i = 0; i < UNITS; i++) put_columns(s.slab(i / 4), i % 4, &da[i * 8]);
        __syncwarp();
        pending = next;
    }
#pragma unroll 1
    while (pending.unit < UNITS) finish_unit(my_da, prefetched, e, pending, p);
#endif
}

// The gradient of each row's router weight: the sum of its parts, in order.
static __global__ void add_parts(real *dweight, const real *part, const int *slot_of_row, const int *end, int rows,
                                 int parts) {
    const size_t r = global_index();
    if (r >= rows || (end && r >= *end)) return;
    real sum = 0;
    for (int i = 0; i < parts; i++) sum += part[(size_t)i * rows + r];
    dweight[slot_of_row[r]] = sum;
}
void sum_router_parts(real *dweight, const real *part, const Plan *plan, int parts) {
    LAUNCH(add_parts, (unsigned)divide_up((size_t)plan->S, 256), 256, 0, dweight, part, plan->slot_of_row, end_of(plan),
           plan->S, parts);
}

// ---- on the host --------------------------------------------------------------------------------

static bool up_forward(floatX *pre, floatX *act, const floatX *inp, const floatX *weight, const Plan *plan,
                       Activation f, int C, int F, Rows inp_rows) {
    Product p = routed(inp, weight, pre, plan, C, F);
    p.a_row = rows_of(plan, inp_rows);
    CUtensorMap b, pre_map, act_map;
    if (f != SWIGLU || F % 64 || !p.a_row || !can_use(p)
        || (uintptr_t)act % 16 || !map_weights(&b, p, 2 * F, Up::BN / 2) || !map_rows(&pre_map, pre, p.rows, 2 * F, 16)
        || !map_rows(&act_map, act, p.rows, F, 16)) return false;
    const int tiles = (int)tile_count<FORWARD, BM, Up::BN / 2>(p);
    LAUNCH(expert_up, (unsigned)min(tiles, context()->sm_count), THREADS, Up::bytes, b, pre_map, act_map, p, act, tiles,
           context()->work_counter);
    return true;
}
static bool down_backward(floatX *dpre, floatX *wact, real *dweight, const floatX *dout, const floatX *down,
                          const floatX *pre, const real *weight, const Plan *plan, Activation f, int C, int F,
                          Rows dout_rows) {
    Product p = routed(dout, down, wact, plan, F, C);
    p.a_row = rows_of(plan, dout_rows);
    CUtensorMap b;
    if (f != SWIGLU || !p.a_row || !can_use(p) || ((uintptr_t)pre | (uintptr_t)dpre) % 16 || !map_weights(&b, p, C, BK))
        return false;
    const int parts = (int)divide_up(F, Down::BN), tiles = (int)tile_count<INPUT, BM, Down::BN>(p);
    real *part = (real *)workspace((size_t)parts * p.rows * sizeof *part);
    LAUNCH(expert_down_backward, (unsigned)min(tiles, context()->sm_count), THREADS, Down::bytes, b, p,
           DownBackward{ pre, dpre, wact, part, weight, plan->slot_of_row }, tiles, context()->work_counter);
    sum_router_parts(dweight, part, plan, parts);
    return true;
}

// Where these kernels do not support the sizes or the GPU, the operation is composed of its parts.
static void expert_up_or_parts(const Device *d, OUT floatX *pre, OUT floatX *act, const floatX *inp,
                               const floatX *weight, const Plan *plan, Activation f, int C, int F, Rows inp_rows) {
    if (!up_forward(pre, act, inp, weight, plan, f, C, F, inp_rows))
        compound_expert_up_forward(d, pre, act, inp, weight, plan, f, C, F, inp_rows);
}
static void expert_down_or_parts(const Device *d, OUT floatX *dpre, OUT floatX *wact, OUT real *dweight, OUT floatX *da,
                                 const floatX *dout, const floatX *down, const floatX *pre, const real *weight,
                                 const Plan *plan, Activation f, int C, int F, Rows dout_rows) {
    if (!down_backward(dpre, wact, dweight, dout, down, pre, weight, plan, f, C, F, dout_rows))
        compound_expert_down_backward(d, dpre, wact, dweight, da, dout, down, pre, weight, plan, f, C, F, dout_rows);
}
PART(hopper) {
    d->expert_up_forward = expert_up_or_parts;
    d->expert_down_backward = expert_down_or_parts;
}
#endif
