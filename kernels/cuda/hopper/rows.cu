// hopper.cu: the products of matmul.cu by Hopper's own instructions (sm_90a, bf16). What they compute, and which operand is
// which in the three kinds, stands there; instructions in hopper.cuh; here is how the SMs are kept busy.
//
//   block        384 threads, one block to an SM, which makes tile after tile: what a tile costs besides its multiplications,
//                finding it, filling the pipeline, storing it, happens while others multiply. Blocks draw the next tile when
//                they get to it, so that neighbours, which share rows or weights, are made at the same time. (With tile i,
//                i + blocks, ... for each, blocks run apart, since tiles without rows take no time; what one has brought to L2
//                is gone when its neighbour asks for it, and memory is read five times.)
//   producer     The first warpgroup brings operands to shared memory, always some steps of 64 of k ahead, also across
//                tiles. Boxes come by bulk copy: one thread orders them. Gathered rows come by cp.async, 16 bytes a thread,
//                each row from where it lies; rows past the expert's last are zeros, for which nothing is read. (Reading some
//                valid row instead is the expensive way: all SMs would ask for the same line of L2.)
//   consumers    Two warpgroups, each with 64 x 256 sums of the tile, which is 128 x 256: a smaller one cannot be fed, as
//                shared memory gives 128 bytes a clock. While the tensor cores work on a step its successor is queued.
//   barriers     For every stage of the ring one "full" and one "empty". What the tile is travels with its first stage.
//   store        A warp turns its 16 rows of sums into bf16, slab by slab in shared memory, from where bulk stores take them; it
//                waits for no other warp. The last tile of an expert may not write into the rows of the next, and rows that are
//                scattered have no box: those are stored row by row, 128 bytes of each.
//
// Gradients of weights sum over the rows of an expert, so rows are k: both operands lie across, and tails of the expert are
// zeros in one of the operands. The gathered operand takes the side of 128; if that is the input, the tile is made transposed
// and stored so. Sums are floats, which go straight from registers to memory; where they are to be added to what is there, the
// memory adds. As bf16, which is half the bytes, they go by slabs and bulk stores. Too few tiles to keep all SMs busy are cut
// along the rows.
//
// Two more kernels do an expert's nonlinearity on their way: expert_up after the product, expert_down_backward before the
// next one. Then neither activations nor their gradients travel to memory and back between two kernels. The latter has so much
// to do after a tile's product that it does it between the steps of the next tile.
#include "kernels/cuda/product.cuh"
#include "pipeline.cuh"
#include "kernels/cuda/expert.cuh"
#include "kernels/compound.h"

#if defined(PRECISION_BF16)

enum { BM = 128, BK = 64, THREADS = 384, A_BYTES = BM * BK * 2, SLAB = 8192, STARTS = 424 };

// Shared memory: `stages` of a and b, `slabs` of 8 KB for each consumer, barriers, what each stage's tile is, and plan->start
// if it fits, as every tile has to find its expert.
template <int BN_, int stages_, int slabs_> struct LayoutOf {
    static constexpr int BN = BN_, stages = stages_, slabs = slabs_, stage = A_BYTES + BN * BK * 2;
    static constexpr int first_slab = stages * stage, barriers = first_slab + 2 * slabs * SLAB;
    static constexpr int info = barriers + stages * 16, starts = info + (stages + 1) * 16;
    static constexpr int bytes = starts + STARTS * 4 + 1024;
    static_assert(bytes <= 232448, "what a block can have");
};
typedef LayoutOf<256, 4, 2> Wide;
typedef LayoutOf<192, 4, 2> Middle;                     // where it leaves fewer columns empty: 384 are two of these
typedef LayoutOf<128, 6, 2> Narrow;
typedef LayoutOf<256, 3, 5> Backward;                   // of an expert's nonlinearity: slabs for a whole tile, and what it needs

#if defined(HOPPER)
// The block's shared memory and the barriers in it.
template <typename Layout> struct Shared {
    uint32_t base;
    unsigned char *generic;
    __device__ Shared(unsigned char *raw) {
        const uint32_t at = shared_address(raw), skip = -at & 1023;             // the swizzle counts from multiples of 1024
        base = at + skip, generic = raw + skip;
    }
    __device__ uint32_t a(int stage) const { return base + stage * Layout::stage; }
    __device__ uint32_t b(int stage) const { return a(stage) + A_BYTES; }
    // A warp's part of its consumer's slab i: 16 rows.
    __device__ uint32_t slab(int i) const {
        const int warp = threadIdx.x / 32 - 4;
        return base + Layout::first_slab + (warp / 4 * Layout::slabs + i) * SLAB + warp % 4 * SLAB / 4;
    }
    __device__ unsigned char *at(uint32_t address) const { return generic + (address - base); }
    __device__ uint32_t full(int stage) const { return base + Layout::barriers + stage * 16; }
    __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
    __device__ int4 &info(int stage) const { return *(int4 *)(generic + Layout::info + stage * 16); }
    // Opens the barriers; returns where start can be read.
    __device__ const int *open(int producers, const int *start, int E) const {
        int *near = (int *)(generic + Layout::starts);
        if (threadIdx.x == 0) {
            for (int i = 0; i < Layout::stages; i++) barrier_init(full(i), producers), barrier_init(empty(i), 8 * SPEAKERS);
            barrier_init_done();
        }
        const bool fits = start && E < STARTS;
        if (fits) for (int i = threadIdx.x; i <= E; i += THREADS) near[i] = start[i];
        __syncthreads();
        return fits ? near : start;
    }
};
// Where in the ring somebody is.
template <typename Layout> struct Position {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void next(void) { if (++stage == Layout::stages) stage = 0, parity ^= 1; }
};

// A consumer multiplies `steps` stages: sum (64 x BN) = a b. The first stage is full already. meanwhile: what else to do in every
// step, while the tensor cores work.
struct Nothing { __device__ void operator()(void) const {} };
template <typename Layout, int a_across, int b_across, typename Meanwhile = Nothing>
__device__ static inline void multiply_steps(float (&sum)[Layout::BN / 2], const Shared<Layout> &s, Position<Layout> &at, int steps,
                                             int mine, Meanwhile meanwhile = Meanwhile()) {
    __syncwarp();                                                               // the warp has read the stage's info
    int before = -1;
    for (int step = 0; step < steps; step++, at.next()) {
        if (step) barrier_wait(s.full(at.stage), at.parity);
        const uint32_t a = s.a(at.stage) + mine * 8192, b = s.b(at.stage);
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < 4; k16++)
            wgmma<Layout::BN, a_across, b_across>(sum, operand(a + k16 * (a_across ? 2048 : 32), !a_across),
                                                  operand(b + k16 * (b_across ? 2048 : 32), !b_across), step | k16);
        wgmma_commit();
        wgmma_wait<1>();                                                        // the step before is done
        if (before >= 0 && speaks()) barrier_arrive(s.empty(before));
        before = at.stage;
        meanwhile();
    }
    wgmma_wait<0>();
    pin(sum);
    if (speaks()) barrier_arrive(s.empty(before));
}

// The next tile, for a producer of one warp or of four. Its first thread has drawn it; turn: 0 and 1 alternately, so that none
// is overwritten before all have seen it.
__device__ static inline int ticket(unsigned *tickets) { return (int)(gridDim.x + atomicAdd(tickets, 1)); }
template <typename Layout, bool warps> __device__ static inline int tell_ticket(const Shared<Layout> &s, int drawn, int &turn) {
    if (!warps) return __shfl_sync(ALL, drawn, 0);
    int *told = (int *)&s.info(Layout::stages) + turn;
    if (threadIdx.x == 0) *told = drawn;
    meet(3, 128);
    turn ^= 1;
    return *told;
}
// Who draws no more says so; the last one leaves the counters as they were.
__device__ static inline void return_tickets(unsigned *tickets) {
    if (atomicInc(tickets + 1, gridDim.x - 1) == gridDim.x - 1) *tickets = 0;
}

// The producer of FORWARD and INPUT: tiles of rows of one expert, 128 x BN of c. halves: the tile's columns are twice BN/2,
// from n and from columns + n on (gate and up).
template <Kind kind, typename Layout, bool gather, bool halves>
__device__ static void produce_rows(const Shared<Layout> &s, const CUtensorMap *a_map, const CUtensorMap *b_map, const Product &p,
                                    int tiles, unsigned *tickets) {
    enum { BN = Layout::BN };
    if (!gather && threadIdx.x >= 32) return;
    const int k = kind == FORWARD ? p.C : p.O, steps = (k + BK - 1) / BK, thread = threadIdx.x;
    int drawn = 0, turn = 0;
    Position<Layout> at;
    for (int tile = blockIdx.x; tile < tiles; tile = tell_ticket<Layout, gather>(s, drawn, turn)) {
        const Place to = place_of<kind, BM, halves ? BN / 2 : BN>(p, tile);
        if (to.m < 0) {
            if (thread == 0) drawn = ticket(tickets);
            continue;
        }
        // A thread copies 16 bytes of every 64 columns of 8 rows. Its instructions count, as those of consumers do: addresses move
        // on every fourth step only.
        enum { TURNS = gather ? 4 : 1, EACH = BM / 16 };
        const int chunk = thread % 8, first = to.first + to.m, end = to.first + to.rows, rows = (end - first - thread / 8 + 15) / 16;
        const floatX *row[EACH];
        if (gather)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                row[i] = p.a + (size_t)p.a_row[min(first + thread / 8 + 16 * i, end - 1)] * k + chunk * 8;
        for (int step = 0; step < steps;) {
#pragma unroll
            for (int turn = 0; turn < TURNS && step < steps; turn++, step++, at.next()) {
                barrier_wait(s.empty(at.stage), at.parity ^ 1);
                if (gather) {
                    const int valid = step * BK + chunk * 8 < k ? rows : 0;
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        const int r = thread / 8 + 16 * i;
                        cp_async(s.a(at.stage) + r * 128 + ((chunk ^ r % 8) << 4), row[i] + turn * BK, i < valid);
                    }
                    barrier_arrive_copied(s.full(at.stage));
                }
                __syncwarp();                                                   // lanes that order nothing may not fall behind
                if (thread == 0) {
                    if (step == max(steps - 3, 0)) drawn = ticket(tickets);     // it is known when this tile is done
                    s.info(at.stage) = make_int4(to.expert, first, end, to.n);
                    barrier_expect(s.full(at.stage), BN * BK * 2 + (gather ? 0 : A_BYTES));
                    if (kind == FORWARD)
                        for (int half = 0; half <= halves; half++)
                            bulk_load(s.b(at.stage) + half * BN * 64, b_map, s.full(at.stage), step * BK, half * p.O + to.n, to.expert);
                    else for (int c = 0; c < BN; c += 64)
                        bulk_load(s.b(at.stage) + c * 128, b_map, s.full(at.stage), to.n + c, step * BK, to.expert);
                    if (!gather) bulk_load(s.a(at.stage), a_map, s.full(at.stage), step * BK, first, 0);
                }
            }
            if (gather)
#pragma unroll
                for (int i = 0; i < EACH; i++) row[i] += TURNS * BK;
        }
    }
    if (thread == 0) return_tickets(tickets);
    barrier_wait(s.empty(at.stage), at.parity ^ 1);                             // no more tiles: a stage that says so
    if (thread == 0) s.info(at.stage).x = -1, barrier_arrive(s.full(at.stage));
    if (gather) barrier_arrive(s.full(at.stage));
}

// A warp has 16 rows of the tile, and stores them alone: no other warp waits for it. Its part of a slab: 16 rows x 64 columns in
// bf16, swizzled. Where this thread's part of columns 16j.. lies, for stmatrix and ldmatrix: registers 0-3 are then sums 8j ..
// 8j+7 of its 32, packed by two.
__device__ static inline uint32_t fragment(uint32_t slab, int j) {
    const int lane = threadIdx.x % 32, r = lane % 16;
    return slab + r * 128 + (((2 * j + lane / 16) ^ r % 8) << 4);
}
__device__ static inline void put(uint32_t slab, int j, const float *x) {
    stmatrix(fragment(slab, j), pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
// The slab's rows, first.. in the tile's order, to column n on of a matrix of so many columns: as a box, or if the rows are
// scattered (row_of) or not all before `end`, each to where it lies. Either way a group of stores, so that counting groups
// is counting slabs.
__device__ static inline void store_slab(uint32_t slab, const unsigned char *rows, const CUtensorMap *map, floatX *to,
                                         const int *row_of, int columns, int n, int width, int first, int end) {
    const int lane = threadIdx.x % 32, chunk = lane % 8;
    const bool box = !row_of && first + 16 <= end;
    if (box) publish();
    __syncwarp();
    if (lane == 0) {
        if (box) bulk_store(map, slab, n, first, 0);
        bulk_commit();
    }
    if (box) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = lane / 8 + 4 * i;
        if (first + row >= end || chunk * 8 >= width) break;
        const size_t where = row_of ? row_of[first + row] : first + row;
        *(int4 *)(to + where * columns + n + chunk * 8) = *(const int4 *)(rows + row * 128 + ((chunk ^ row % 8) << 4));
    }
}
// Before a slab is filled again: all but the newest `pending` of this warp's stores have read theirs.
template <int pending> __device__ static inline void slab_free(void) {
    if (threadIdx.x % 32 == 0) bulk_wait_read<pending>();
    __syncwarp();
}
#endif

// FORWARD and INPUT. tiles: of the worst case.
template <Kind kind, typename Layout, bool gather> static __global__ __launch_bounds__(THREADS, 1)
void grouped_rows(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                  const __grid_constant__ CUtensorMap c_map, const __grid_constant__ Product given, int tiles,
                  unsigned *tickets) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Layout> s(raw);
    Product p = given;
    p.start = s.open(gather ? 1 + 128 : 1, p.start, p.E);
    if (threadIdx.x < 128) {
        give_registers<gather ? 56 : 40>();
        produce_rows<kind, Layout, gather, false>(s, &a_map, &b_map, p, tiles, tickets);
        return;
    }
    take_registers<gather ? 224 : 232>();
    const int columns = columns_of<kind>(p), steps = ((kind == FORWARD ? p.C : p.O) + BK - 1) / BK;
    const int thread = threadIdx.x % 128, mine = threadIdx.x / 128 - 1;
    Position<Layout> at;
    for (int turn = 0;;) {
        barrier_wait(s.full(at.stage), at.parity);
        const int4 to = s.info(at.stage);                                       // expert, first row, last + 1, column
        if (to.x < 0) break;
        float sum[Layout::BN / 2];
        multiply_steps<Layout, 0, kind == INPUT>(sum, s, at, steps, mine);

        const int first = to.y + mine * 64 + thread / 32 * 16;                  // of this warp's rows
#pragma unroll
        for (int c = 0; c < Layout::BN / 64; c++) {
            const int n = to.w + c * 64;
            if (n >= columns) break;
            const uint32_t slab = s.slab(turn++ & 1);
            slab_free<1>();
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float *x = &sum[c * 32 + j * 8];
                if (kind == INPUT && p.how == ADD)                              // dense: rows lie in order
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int row = first + thread % 32 / 4 + i % 2 * 8, column = n + j * 16 + i / 2 * 8 + thread % 4 * 2;
                        if (row >= to.z || column >= columns) continue;
                        const uint32_t old = *(const uint32_t *)((floatX *)p.c + (size_t)row * columns + column);
                        x[2 * i] += unpack_bf16(old, 0), x[2 * i + 1] += unpack_bf16(old, 1);
                    }
                put(slab, j, x);
            }
            store_slab(slab, s.at(slab), &c_map, (floatX *)p.c, p.c_row, columns, n, columns - n, first, to.z);
        }
    }
    if (thread % 32 == 0) bulk_wait<0>();
#endif
}

// The first half of a gated expert, pre = inp up^T and act = silu(gate) * up of it: a tile has 128 columns of gate and the same
// 128 of up, so that both of a pair are the same thread's. p.O is F, c is pre. act is made of pre as it is stored, rounded.
static __global__ __launch_bounds__(THREADS, 1)
void expert_up(const __grid_constant__ CUtensorMap b_map, const __grid_constant__ CUtensorMap pre_map,
               const __grid_constant__ CUtensorMap act_map, const __grid_constant__ Product given, floatX *act, int tiles,
               unsigned *tickets) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Wide> s(raw);
    Product p = given;
    p.start = s.open(1 + 128, p.start, p.E);
    if (threadIdx.x < 128) {
        give_registers<56>();
        produce_rows<FORWARD, Wide, true, true>(s, NULL, &b_map, p, tiles, tickets);
        return;
    }
    take_registers<224>();
    const int F = p.O, steps = (p.C + BK - 1) / BK, thread = threadIdx.x % 128, mine = threadIdx.x / 128 - 1;
    Position<Wide> at;
    for (int turn = 0;;) {
        barrier_wait(s.full(at.stage), at.parity);
        const int4 to = s.info(at.stage);
        if (to.x < 0) break;
        float sum[128];
        multiply_steps<Wide, 0, 0>(sum, s, at, steps, mine);

        const int first = to.y + mine * 64 + thread / 32 * 16;
#pragma unroll
        for (int c = 0; c < 6; c++) {                                           // of each 64 columns: gate, up, act
            const int n = to.w + c / 3 * 64, what = c % 3;
            if (n >= F) break;
            const uint32_t slab = s.slab(turn++ & 1);
            slab_free<1>();
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *gate = &sum[c / 3 * 32 + j * 8], *up = gate + 64;
                float x[8];
                if (what == 2)
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        const int two = i / 2 * 2;
                        const uint32_t g = pack_bf16(gate[two], gate[two + 1]), u = pack_bf16(up[two], up[two + 1]);
                        x[i] = slope_of<SWIGLU>(unpack_bf16(g, i % 2), unpack_bf16(u, i % 2)).act;
                    }
                put(slab, j, what == 0 ? gate : what == 1 ? up : x);
            }
            if (what < 2) store_slab(slab, s.at(slab), &pre_map, (floatX *)p.c, NULL, 2 * F, n + what * F, 64, first, to.z);
            else store_slab(slab, s.at(slab), &act_map, act, NULL, F, n, 64, first, to.z);
        }
    }
    if (thread % 32 == 0) bulk_wait<0>();
#endif
}

// The second half of a gated expert, backwards: da = dout down, a product of which nothing is stored, and with it what
// activation_backward makes: dpre, wact, and the gradients of the router weights, of which a tile has a part: the sum over its
// columns, in `part` (tiles across, rows). p.C is F. That is 320 KB to and from memory for each tile; done when its product is,
// memory and tensor cores would wait for each other. So a warp leaves its 16 rows of da, as bf16, in slabs 0 to 3, goes on with
// the next tile, and finishes this one a little in every step of that one: units of 4 rows x 64 columns, 8 numbers a thread.
typedef struct { const floatX *pre; floatX *dpre, *wact; real *part; const real *weight; const int *slot_of_row; } DownBackward;

#if defined(HOPPER)
// What a thread has to do of a tile: of unit u the row 4(u/4) after `row`, and the 8 columns from column + 64(u%4) on.
enum { UNITS = 16 };
struct Unfinished {
    unsigned unit;                                                              // the next one
    int row, end, column;                                                       // end: of the tile's rows
    real weight, dot;                                                           // of row lane of the warp's 16; so far, of this row
    __device__ bool inside(unsigned u, int F) const {
        return row + (int)(u / 4 * 4) < end && column + (int)(u % 4 * 64) < F;
    }
    __device__ size_t place(unsigned u, int pitch) const { return (size_t)(row + u / 4 * 4) * pitch + column + u % 4 * 64; }
};
// gate and up of a unit come to two pieces of 512 bytes from `to` on, in which a thread has the bytes that it copies itself.
__device__ static inline void bring(uint32_t to, const DownBackward &e, const Unfinished &t, unsigned unit, int F) {
    if (unit < UNITS) {
        const bool inside = t.inside(unit, F);
        const floatX *from = e.pre + (inside ? t.place(unit, 2 * F) : 0);
        cp_async(to + unit % 2 * 1024, from, inside);
        cp_async(to + unit % 2 * 1024 + 512, from + F, inside);
    }
    cp_async_commit();
}
// da: where the thread's part of the first unit lies.
__device__ static inline void finish_unit(uint32_t da, uint32_t brought, const DownBackward &e, Unfinished &t, const Product &p) {
    const unsigned unit = t.unit++, lane = threadIdx.x % 32;
    const int F = p.C;
    uint32_t d[4], gate[4], up[4], dgate[4], dup[4], wact[4];
    cp_async_wait<1>();
    load_shared(d, (da ^ unit / 4 % 2 * 64) + unit / 4 * 512 + unit % 4 * SLAB);
    load_shared(gate, brought + unit % 2 * 1024);
    load_shared(up, brought + unit % 2 * 1024 + 512);
    bring(brought, e, t, unit + 2, F);
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
        dgate[i] = pack_bf16(x[0][0], x[0][1]), dup[i] = pack_bf16(x[1][0], x[1][1]), wact[i] = pack_bf16(x[2][0], x[2][1]);
    }
    if (t.inside(unit, F)) {
        store_global(e.dpre + t.place(unit, 2 * F), dgate);
        store_global(e.dpre + t.place(unit, 2 * F) + F, dup);
        store_global(e.wact + t.place(unit, F), wact);
    }
    if (unit % 4 < 3) return;
#pragma unroll
    for (int other = 1; other < 8; other *= 2) t.dot += __shfl_xor_sync(ALL, t.dot, other);
    const int r = t.row + unit / 4 * 4;
    if (lane % 8 == 0 && r < t.end) e.part[(size_t)(t.column / Backward::BN) * p.rows + r] = t.dot;
    t.dot = 0;
}
#endif

static __global__ __launch_bounds__(THREADS, 1)
void expert_down_backward(const __grid_constant__ CUtensorMap b_map, const __grid_constant__ Product given,
                          const __grid_constant__ DownBackward e, int tiles, unsigned *tickets) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Backward> s(raw);
    Product p = given;
    p.start = s.open(1 + 128, p.start, p.E);
    if (threadIdx.x < 128) {
        give_registers<56>();
        produce_rows<INPUT, Backward, true, false>(s, NULL, &b_map, p, tiles, tickets);
        return;
    }
    take_registers<224>();
    const int F = p.C, steps = (p.O + BK - 1) / BK, each = (UNITS + steps - 1) / steps, lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
    const uint32_t mine = s.slab(0) + lane / 8 * 128 + ((lane % 8 ^ lane / 8) << 4), brought = s.slab(4) + lane * 16;
    Unfinished last = { UNITS };
    Position<Backward> at;
    for (;;) {
        barrier_wait(s.full(at.stage), at.parity);
        const int4 to = s.info(at.stage);
        if (to.x < 0) break;
        const int first = to.y + warp * 16;
        Unfinished next = { 0, first + lane / 8, to.z, to.w + lane % 8 * 8 };
        next.weight = lane < 16 && first + lane < to.z ? e.weight[e.slot_of_row[first + lane]] : 0;
        bool asked = false;
        auto ask = [&](void) {                                                  // when the last tile's have all been used
            if (!asked) bring(brought, e, next, 0, F), bring(brought, e, next, 1, F);
            asked = true;
        };
        float da[Backward::BN / 2];
        multiply_steps<Backward, 0, 1>(da, s, at, steps, warp / 4, [&](void) {
            if (last.unit == UNITS) ask();
#pragma unroll 1
            for (int i = 0; i < each && last.unit < UNITS; i++) finish_unit(mine, brought, e, last, p);
        });
        ask();
        __syncwarp();                                                           // all have read the last tile's
#pragma unroll
        for (int i = 0; i < UNITS; i++) put(s.slab(i / 4), i % 4, &da[i * 8]);
        __syncwarp();
        last = next;
    }
#pragma unroll 1
    while (last.unit < UNITS) finish_unit(mine, brought, e, last, p);
#endif
}

// The parts of each row's gradient, added in order.
static __global__ void add_parts(real *dweight, const real *part, const int *slot_of_row, const int *end, int rows, int parts) {
    const size_t r = global_index();
    if (r >= rows || (end && r >= *end)) return;
    real sum = 0;
    for (int i = 0; i < parts; i++) sum += part[(size_t)i * rows + r];
    dweight[slot_of_row[r]] = sum;
}

// WEIGHT: c[e] = or += the sum over the rows of e of left^T right, left (.,P), right (.,Q), in tiles of 128 of P x 256 of Q.
// c (E,P,Q), or transposed (E,Q,P). Row i of left lies at left_row[i], or at i if that is NULL; of right, gather or not.
typedef struct {
    const floatX *left, *right;
    const int *left_row, *right_row, *start;
    void *c;                                // of floats; SET_ROUNDED: of floatX
    int E, rows, P, Q, splits;              // splits: each has its share of every expert's rows, and a c of its own
    Write how;
} Outer;

#if defined(HOPPER)
// A slab of a consumer: 64 rows of P (transposed: of Q) of 128 bytes, which are 32 floats, or 64 of bf16. A warp has 16 of P, of
// which this thread has what wgmma gave it: `sum` of 32 columns (transposed: two boxes of 32 x 32 then), or of 64.
template <bool transposed> __device__ static inline void put_floats(unsigned char *slab, const float *sum) {
    const int thread = threadIdx.x % 128, warp = thread / 32, g = thread % 32 / 4, q = thread % 4;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *x = sum + j * 4 + h * 2;
            const int row = warp * 16 + h * 8 + g, column = j * 8 + q * 2;
            if (!transposed)
                *(float2 *)(slab + row * 128 + ((column / 4 ^ row % 8) << 4) + column % 4 * 4) = make_float2(x[0], x[1]);
            else
#pragma unroll
                for (int i = 0; i < 2; i++)
                    *(float *)(slab + row / 32 * 4096 + (column + i) * 128 + ((row % 32 / 4 ^ (column + i) % 8) << 4)
                               + row % 4 * 4) = x[i];
        }
}
template <bool transposed> __device__ static inline void put_rounded(uint32_t slab, const float *sum) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *x = sum + j * 8;
        if (!transposed) put(slab + warp * (SLAB / 4), j, x);
        else {
            const int row = j * 16 + lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
            stmatrix_trans(slab + row * 128 + ((chunk ^ row % 8) << 4), pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                           pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
        }
    }
}
#endif

template <bool gather, bool transposed> static __global__ __launch_bounds__(THREADS, 1)
void grouped_weight(const __grid_constant__ CUtensorMap right_map, const __grid_constant__ CUtensorMap c_map,
                    const __grid_constant__ Outer p) {
#if defined(HOPPER)
    enum { BN = 256 };
    extern __shared__ unsigned char raw[];
    const Shared<Wide> s(raw);
    const int across = (p.Q + BN - 1) / BN, down = (p.P + BM - 1) / BM, tiles = p.E * across * down * p.splits;
    const int thread = threadIdx.x % 128;
    const int *start = s.open(1 + 128, p.start, p.E);
    Position<Wide> at;

    if (threadIdx.x < 128) {
        give_registers<gather ? 72 : 56>();
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const int plane = tile / (across * down), m = tile % down * BM, n = tile % (across * down) / down * BN;
            const int e = plane % p.E, begin = start ? start[e] : 0, after = start ? start[e + 1] : p.rows;
            const int share = ((after - begin + p.splits - 1) / p.splits + BK - 1) / BK * BK;
            const int first = min(begin + plane / p.E * share, after), end = min(first + share, after);
            // A thread copies 16 bytes of every 64 columns of 4 of the 64 rows of a step. Where those lie it asks two steps
            // before: a step may not wait for the answer. Nor is there time for many instructions; so the end of a row is
            // compared, not its beginning, bytes are counted in 32 bits, and boxes are ordered when the warp is done.
            enum { EACH = BK / 16, AHEAD = 2 };
            const int chunk = thread % 8, place = thread / 8, left_in = p.P - m - chunk * 8, right_in = p.Q - n - chunk * 8;
            const char *left = (const char *)(p.left + m + chunk * 8), *right = (const char *)(p.right + n + chunk * 8);
            const uint32_t left_pitch = p.P * (uint32_t)sizeof(floatX), right_pitch = p.Q * (uint32_t)sizeof(floatX);
            uint32_t left_row[AHEAD][EACH], right_row[AHEAD][EACH];
            auto find = [&](int turn, int k) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const int r = k + place + 16 * i;
                    left_row[turn][i] = r < end && p.left_row ? p.left_row[r] : r;
                    if (gather) right_row[turn][i] = r < end ? p.right_row[r] : r;
                }
            };
#pragma unroll
            for (int turn = 0; turn < AHEAD; turn++) find(turn, first + turn * BK);
            // An expert without rows has nothing to add; but where its gradient is set, a stage of zeros says so.
            for (int k = first, last = p.how == ADD ? end : max(end, first + 1); k < last;)
#pragma unroll
                for (int turn = 0; turn < AHEAD && k < last; turn++, k += BK, at.next()) {
                    barrier_wait(s.empty(at.stage), at.parity ^ 1);
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        const int r = place + 16 * i;
                        const bool inside = k + r < end;
                        const uint32_t to = r * 128 + ((chunk ^ r % 8) << 4);
                        const char *from = left + (uint64_t)left_row[turn][i] * left_pitch;
#pragma unroll
                        for (int c = 0; c < BM; c += 64)
                            cp_async(s.a(at.stage) + c * 128 + to, from + c * sizeof(floatX), inside && c < left_in);
                        if (!gather) continue;
                        from = right + (uint64_t)right_row[turn][i] * right_pitch;
#pragma unroll
                        for (int c = 0; c < BN; c += 64)
                            cp_async(s.b(at.stage) + c * 128 + to, from + c * sizeof(floatX), inside && c < right_in);
                    }
                    barrier_arrive_copied(s.full(at.stage));
                    find(turn, k + AHEAD * BK);
                    __syncwarp();                                               // or all warps would walk through what one orders
                    if (thread == 0) {
                        s.info(at.stage) = make_int4(plane, m, n, (last - first + BK - 1) / BK);
                        if (gather) barrier_arrive(s.full(at.stage));
                        else {
                            barrier_expect(s.full(at.stage), BN * BK * 2);
                            for (int c = 0; c < BN; c += 64)
                                bulk_load(s.b(at.stage) + c * 128, &right_map, s.full(at.stage), n + c, k, 0);
                        }
                    }
                }
        }
        barrier_wait(s.empty(at.stage), at.parity ^ 1);
        if (thread == 0) s.info(at.stage).x = -1, barrier_arrive(s.full(at.stage));
        barrier_arrive(s.full(at.stage));
        return;
    }

    take_registers<gather ? 216 : 224>();
    const int mine = threadIdx.x / 128 - 1, warp = thread / 32, g = thread % 32 / 4, q = thread % 4;
    for (;;) {
        barrier_wait(s.full(at.stage), at.parity);
        const int4 to = s.info(at.stage);                                       // plane of c, first of P, of Q, steps
        if (to.x < 0) break;
        float sum[BN / 2];
        multiply_steps<Wide, 1, 1>(sum, s, at, to.w, mine);

        const int m = to.y + mine * 64 + warp * 16 + g;
        if (p.how == SET) {
            // Straight to memory: a quad of threads has 8 columns of a row, a whole sector; transposed, 8 threads of a column.
            // L2 is told that nobody will read it soon, to keep the operands.
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (m + 8 * h >= p.P) break;
                float *c = (float *)p.c + (size_t)to.x * p.P * p.Q;
#pragma unroll
                for (int j = 0; j < BN / 8; j++) {
                    const int n = to.z + j * 8 + q * 2;
                    const float *x = &sum[j * 4 + h * 2];
                    if (n >= p.Q) break;
                    if (!transposed) __stcs((float2 *)(c + (size_t)(m + 8 * h) * p.Q + n), make_float2(x[0], x[1]));
                    else __stcs(c + (size_t)n * p.P + m + 8 * h, x[0]), __stcs(c + (size_t)(n + 1) * p.P + m + 8 * h, x[1]);
                }
            }
            continue;
        }
        const uint32_t slabs = s.slab(0) - warp * (SLAB / 4);                   // the whole consumer's
        const int first = to.y + mine * 64;
        if (p.how == SET_ROUNDED) {                                             // stored by slabs, both at a time
#pragma unroll
            for (int c = 0; c < BN / 64; c += 2) {
                const int n = to.z + c * 64;
                if (n >= p.Q || first >= p.P) break;
                if (thread == 0) bulk_wait_read<0>();
                meet(1 + mine, 128);
#pragma unroll
                for (int i = 0; i < 2; i++) put_rounded<transposed>(slabs + i * SLAB, &sum[(c + i) * 32]);
                publish();
                meet(1 + mine, 128);
                if (thread == 0) {
                    for (int i = 0; i < 2 && n + i * 64 < p.Q; i++)
                        bulk_store(&c_map, slabs + i * SLAB, transposed ? first : n + i * 64, transposed ? n + i * 64 : first, to.x);
                    bulk_commit();
                }
            }
            continue;
        }
        // By slabs, of which the memory adds what is in them. Those of transposed sums are two boxes.
#pragma unroll
        for (int c = 0; c < BN / 32; c++) {
            const int n = to.z + c * 32;
            if (n >= p.Q || first >= p.P) break;
            const uint32_t slab = slabs + c % 2 * SLAB;
            if (thread == 0) bulk_wait_read<1>();
            meet(1 + mine, 128);
            put_floats<transposed>(s.at(slab), &sum[c * 16]);
            publish();
            meet(1 + mine, 128);
            if (thread == 0) {
                if (!transposed) bulk_add(&c_map, slab, n, first, to.x);
                else {
                    bulk_add(&c_map, slab, first, n, to.x);
                    if (first + 32 < p.P) bulk_add(&c_map, slab + 4096, first + 32, n, to.x);
                }
                bulk_commit();
            }
        }
        if (thread == 0) bulk_wait_read<0>();                                   // so that the next tile may begin with slab 0
    }
    if (thread == 0) bulk_wait<0>();
#endif
}

// ---- the host's side ----------------------------------------------------------------------------------------------------

static bool can_use(const Product &p) {
    return context()->arch == 90 && p.C % 8 == 0 && p.O % 8 == 0 && p.rows
        && ((uintptr_t)p.a | (uintptr_t)p.b | (uintptr_t)p.c) % 16 == 0;
}

// Matrices of rows; weights, a plane each expert. Boxes of 64 columns.
static bool map_rows(CUtensorMap *map, const floatX *x, int rows, int columns, int box) {
    return tensor_map(map, x, 2, (uint64_t)columns, (uint64_t)rows, 1, (uint64_t)columns, 0, 64, box);
}
static bool map_weights(CUtensorMap *map, const Product &p, int O, int box) {
    return tensor_map(map, p.b, 2, (uint64_t)p.C, (uint64_t)O, (uint64_t)p.E, (uint64_t)p.C, (uint64_t)p.C * O, 64, box);
}
static void allow_shared(const void *kernel, int bytes) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

template <Kind kind, typename Layout, bool gather> static bool launch_rows(const Product &p) {
    const int k = kind == FORWARD ? p.C : p.O, columns = columns_of<kind>(p);
    CUtensorMap a = {}, b, c;
    if ((!gather && !map_rows(&a, p.a, p.rows, k, BM)) || !map_weights(&b, p, p.O, kind == FORWARD ? (int)Layout::BN : (int)BK)
        || !map_rows(&c, (floatX *)p.c, p.rows, columns, 16)) return false;
    auto *kernel = grouped_rows<kind, Layout, gather>;
    allow_shared((const void *)kernel, Layout::bytes);
    const int tiles = (int)blocks_for<kind, BM, Layout::BN>(p);
    LAUNCH(kernel, (unsigned)min(tiles, context()->sm_count), THREADS, Layout::bytes, a, b, c, p, tiles, context()->tickets);
    return true;
}
template <Kind kind, typename Layout> static bool launch_rows(const Product &p) {
    return p.a_row ? launch_rows<kind, Layout, true>(p) : launch_rows<kind, Layout, false>(p);
}
// How many columns of the result a tile has, and in how many shares the rows of a weight's gradient are summed, is a matter of
// sizes. bench/tiles.py builds the other choices too (0: choose), and compares.
#ifndef TILE_COLUMNS
#define TILE_COLUMNS 0
#endif
#ifndef TILE_SHARES
#define TILE_SHARES 0
#endif
template <Kind kind> static bool rows_product(const Product &p) {
    const int columns = columns_of<kind>(p);
    if (!can_use(p) || (p.how == ADD && p.start)) return false;
    const bool few = columns <= 128 || blocks_for<kind, BM, 256>(p) <= (unsigned)context()->sm_count;
    const bool fits = 192 * divide_up(columns, 192) * 8 <= 256 * divide_up(columns, 256) * 7;       // better by an eighth
    switch (TILE_COLUMNS ? TILE_COLUMNS : few ? 128 : fits ? 192 : 256) {
        case 128: return launch_rows<kind, Narrow>(p);
        case 192: return launch_rows<kind, Middle>(p);
        default:  return launch_rows<kind, Wide>(p);
    }
}
bool hopper_forward(const Product &p) { return rows_product<FORWARD>(p); }
bool hopper_input(const Product &p)   { return rows_product<INPUT>(p); }

// c = or += the sum of its parts, in order. A thread has 4 of n, a multiple of that.
template <typename T> static __global__ void add_planes(T *c, const float *part, size_t n, int parts, bool add) {
    const size_t i = global_index() * 4;
    if (i >= n) return;
    float sum[4];
#pragma unroll
    for (int j = 0; j < 4; j++) sum[j] = add ? (float)c[i + j] : 0;
    for (int k = 0; k < parts; k++) {
        const float4 x = *(const float4 *)(part + k * n + i);
        sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
    }
    struct alignas(sizeof(T) * 4) Four { T x[4]; } to;
#pragma unroll
    for (int j = 0; j < 4; j++) to.x[j] = (T)sum[j];
    *(Four *)(c + i) = to;
}

// In how many shares to sum when there are too few tiles to keep all SMs busy to the end: the fewest rounds of tiles, each as
// long as its share, if that pays for the parts: to write and to read one takes as long as multiplying some 930 rows. By the
// 132 SMs of a full GPU, whatever this one has: sums must not depend on it.
static int shares(size_t tiles, int rows_of_expert) {
    if (TILE_SHARES) return TILE_SHARES;
    int best = 1;
    double least = 1e30;
    for (int n = 1; n <= 8 && (n == 1 || rows_of_expert / n >= 512); n++) {
        const double parts = n > 1 ? 930.0 * n / rows_of_expert * (double)tiles / 132 : 0;
        const double time = (double)divide_up(tiles * n, 132) / n + parts;
        if (time < least) least = time, best = n;
    }
    return best;
}

template <bool gather, bool transposed> static bool launch_weight(Outer o) {
    const uint64_t P = (uint64_t)o.P, Q = (uint64_t)o.Q, width = transposed ? P : Q, height = transposed ? Q : P;
    const size_t n = (size_t)o.E * P * Q, tiles = o.E * divide_up(P, BM) * divide_up(Q, 256);
    const Outer whole = o;
    o.splits = shares(tiles, o.rows / o.E);
    if (o.splits > 1) o.c = workspace(o.splits * n * sizeof(float)), o.how = SET;
    CUtensorMap right = {}, c = {};
    if ((!gather && !map_rows(&right, o.right, o.rows, o.Q, BK))
        || (o.how == SET_ROUNDED && !tensor_map(&c, o.c, 2, width, height, (uint64_t)o.E, width, P * Q, 64, 64))
        || (o.how == ADD && !tensor_map(&c, o.c, 4, width, height, (uint64_t)o.E, width, P * Q, 32, transposed ? 32 : 64))) return false;
    auto *kernel = grouped_weight<gather, transposed>;
    allow_shared((const void *)kernel, Wide::bytes);
    LAUNCH(kernel, (unsigned)min(tiles * o.splits, (size_t)context()->sm_count), THREADS, Wide::bytes, right, c, o);
    const float *parts = (const float *)o.c;
    if (o.splits > 1 && whole.how == SET_ROUNDED)
        LAUNCH(add_planes<floatX>, (unsigned)divide_up(n, 1024), 256, 0, (floatX *)whole.c, parts, n, o.splits, false);
    else if (o.splits > 1)
        LAUNCH(add_planes<float>, (unsigned)divide_up(n, 1024), 256, 0, (float *)whole.c, parts, n, o.splits, whole.how == ADD);
    return true;
}
bool hopper_weight(const Product &p) {
    if (!can_use(p)) return false;
    // c is (O,C): a's side is O. A gathered operand takes the side of 128; of two, so that fewer tiles are partly empty.
    auto area = [](int P, int Q) { return divide_up(P, BM) * divide_up(Q, 256); };
    const bool transposed = p.b_row && (!p.a_row || area(p.C, p.O) < area(p.O, p.C));
    Outer o = {};
    o.start = p.start, o.E = p.E, o.rows = p.rows, o.how = p.how, o.c = p.c;
    o.left  = transposed ? p.b : p.a, o.left_row  = transposed ? p.b_row : p.a_row, o.P = transposed ? p.C : p.O;
    o.right = transposed ? p.a : p.b, o.right_row = transposed ? p.a_row : p.b_row, o.Q = transposed ? p.O : p.C;
    if (o.right_row) return transposed ? launch_weight<true, true>(o) : launch_weight<true, false>(o);
    return transposed ? launch_weight<false, true>(o) : launch_weight<false, false>(o);
}

static bool up_forward(floatX *pre, floatX *act, const floatX *inp, const floatX *weight, const Plan *plan, Activation f,
                              int C, int F, Rows inp_rows) {
    Product p = routed(inp, weight, pre, plan, C, F);
    p.a_row = rows_of(plan, inp_rows);
    CUtensorMap b, pre_map, act_map;
    if (f != SWIGLU || F % 64 || !p.a_row || !can_use(p) || (uintptr_t)act % 16 || !map_weights(&b, p, 2 * F, 128)
        || !map_rows(&pre_map, pre, p.rows, 2 * F, 16) || !map_rows(&act_map, act, p.rows, F, 16)) return false;
    allow_shared((const void *)expert_up, Wide::bytes);
    const int tiles = (int)blocks_for<FORWARD, BM, 128>(p);
    LAUNCH(expert_up, (unsigned)min(tiles, context()->sm_count), THREADS, Wide::bytes, b, pre_map, act_map, p, act, tiles,
           context()->tickets);
    return true;
}
static bool down_backward(floatX *dpre, floatX *wact, real *dweight, const floatX *dout, const floatX *down,
                                 const floatX *pre, const real *weight, const Plan *plan, Activation f, int C, int F,
                                 Rows dout_rows) {
    Product p = routed(dout, down, wact, plan, F, C);
    p.a_row = rows_of(plan, dout_rows);
    CUtensorMap b;
    if (f != SWIGLU || !p.a_row || !can_use(p) || ((uintptr_t)pre | (uintptr_t)dpre) % 16 || !map_weights(&b, p, C, BK)) return false;
    const int parts = (int)divide_up(F, Backward::BN), tiles = (int)blocks_for<INPUT, BM, Backward::BN>(p);
    real *part = (real *)workspace((size_t)parts * p.rows * sizeof *part);
    allow_shared((const void *)expert_down_backward, Backward::bytes);
    LAUNCH(expert_down_backward, (unsigned)min(tiles, context()->sm_count), THREADS, Backward::bytes, b, p,
           DownBackward{ pre, dpre, wact, part, weight, plan->slot_of_row }, tiles, context()->tickets);
    LAUNCH(add_parts, (unsigned)divide_up((size_t)p.rows, 256), 256, 0, dweight, part, plan->slot_of_row, end_of(plan), p.rows,
           parts);
    return true;
}

// Where a compound operation is not for these sizes or this GPU, its parts are called.
static void expert_up_or_parts(const Device *d, OUT floatX *pre, OUT floatX *act, const floatX *inp, const floatX *weight,
                               const Plan *plan, Activation f, int C, int F, Rows inp_rows) {
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
