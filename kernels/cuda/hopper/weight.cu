// weight.cu: the gradients of weights, with Hopper's instructions (sm_90a, bf16). Of expert e:
//
//     dweight[e] (O,C) = or +=  sum over the rows of e of  dout[row]^T inp[row]
//
// The reduction runs over an expert's rows, so both operands are MN-major; past the last row, one
// is zero-filled. Rows of both may be gathered. A block has the roles of rows.cu. What differs:
//
//   left, right  The kernel computes c (P,Q) = left^T right in tiles of 128 of P x 256 of Q. left
//                is zero-filled, so it is always loaded by cp.async; right is loaded by bulk
//                copies, unless it is gathered: past an expert's last row it has the next one's,
//                times zero. If one operand is gathered, it is left; if that is inp, c is the
//                transposed gradient, which the epilogue stores transposed.
//   tiles      Block i computes tiles i, i + gridDim.x, ...
//   split-K    Where tiles are too few to keep all SMs busy, the rows of every expert are cut into
//              `splits` ranges with sums of their own, which add_splits adds in order.
//   epilogue   SET: floats, from registers. ADD: floats, through slabs and cp.reduce in L2.
//              SET_ROUNDED: bf16, through slabs and bulk stores.
//   registers  168 a thread, of which the producer keeps 56, or 72 if it gathers right too.
//
// Shared memory of a block (byte offsets; gemm.cuh, Layout):
//
//        0  stage 0: left, 16 KB    2 times 64 rows x 64 of P (MN_MAJOR)
//    16384           right, 32 KB   4 times 64 rows x 64 of Q (MN_MAJOR)
//    49152  stages 1, 2, 3          the same
//   196608  slabs, 4 x 8 KB         two for each consumer: 64 of P x 32 floats or 64 bf16 of Q
//   229376  barriers, 4 x 16 bytes  full and empty of each stage
//   229440  tiles, 4 x 16 bytes     the WeightTile that each stage belongs to
//   229520  starts, 424 x 4 bytes   a copy of Product.start
//
// Timeline. sN is step N of a tile, 64 of the expert's rows, in stage N % 4. Indices are two ahead:
//
//   producer    | indices of s0, s1 | load s0, indices of s2 | load s1, indices of s3 | load s2 ...
//   consumer 0  |                   |      wait full 0       | wgmma s0 | wgmma s1, release s0 ...
//   consumer 1  |                   |      the same for 64..127 of P
#include "weight.cuh"

#if defined(PRECISION_BF16)

#if defined(HOPPER)
// ---- the producer -------------------------------------------------------------------------------

// What a thread loads of a step: of every 64 columns 16 bytes of 4 rows: chunk threadIdx.x%8 of row
// threadIdx.x/8 + 16*i. Indices of rows are read AHEAD steps before: a step has no time to wait,
// nor for many instructions: pitches have 32 bits, a column is compared only with the row's end.
template <bool gather> struct WeightRows {
    enum { EACH = BK / 16, AHEAD = 2 };
    const char *left, *right;               // this thread's chunk of row 0
    int left_in, right_in;                  // columns from there to the end of the row
    uint32_t left_pitch, right_pitch;       // bytes of a row
    uint32_t left_row[AHEAD][EACH], right_row[AHEAD][EACH];
    __device__ WeightRows(const WeightProduct &p, int row, int column) {
        const int chunk = threadIdx.x % 8;
        left_in = p.P - row - chunk * 8, right_in = p.Q - column - chunk * 8;
        left = (const char *)(p.left + row + chunk * 8), right = (const char *)(p.right + column + chunk * 8);
        left_pitch = p.P * (uint32_t)sizeof(floatX), right_pitch = p.Q * (uint32_t)sizeof(floatX);
    }
    // Where rows k .. k+63 are stored. Those from `end` on are not the expert's.
    __device__ void find(const WeightProduct &p, int slot, int k, int end) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int r = k + (int)threadIdx.x / 8 + 16 * i;
            left_row[slot][i] = r < end && p.left_row ? p.left_row[r] : r;
            if (gather) right_row[slot][i] = r < end ? p.right_row[r] : r;
        }
    }
    __device__ void copy(uint32_t a, uint32_t b, int slot, int k, int end) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int r = threadIdx.x / 8 + 16 * i;
            const bool inside = k + r < end;
            const uint32_t to = swizzled(r, threadIdx.x % 8);
            const char *from = left + (uint64_t)left_row[slot][i] * left_pitch;
#pragma unroll
            for (int c = 0; c < BM; c += 64)
                cp_async(a + c * 128 + to, from + c * sizeof(floatX), inside && c < left_in);
            if (!gather) continue;
            from = right + (uint64_t)right_row[slot][i] * right_pitch;
#pragma unroll
            for (int c = 0; c < Weights::BN; c += 64)
                cp_async(b + c * 128 + to, from + c * sizeof(floatX), inside && c < right_in);
        }
    }
};

template <bool gather> __device__ static inline
void produce_weight(const Shared<Weights, WeightTile> &s, const CUtensorMap *right_map, const WeightProduct &p,
                    const int *start) {
    typedef WeightRows<gather> Rows;
    const int across = (p.Q + Weights::BN - 1) / Weights::BN, down = (p.P + BM - 1) / BM,
        tiles = p.E * across * down * p.splits;
    Position<Weights::STAGES> at;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        const int plane = number / (across * down), row = number % down * BM,
            column = number % (across * down) / down * Weights::BN;
        const int e = plane % p.E, begin = start ? start[e] : 0, after = start ? start[e + 1] : p.rows;
        // of a split, in whole steps
        const int length = ((after - begin + p.splits - 1) / p.splits + BK - 1) / BK * BK;
        const int first = min(begin + plane / p.E * length, after), end = min(first + length, after);
        // Without rows there is nothing to add; but a gradient that is set needs a step.
        const int last = p.how == ADD ? end : max(end, first + 1);
        Rows rows(p, row, column);
#pragma unroll
        for (int u = 0; u < Rows::AHEAD; u++) rows.find(p, u, first + u * BK, end);
        for (int k = first; k < last;)
#pragma unroll
            for (int u = 0; u < Rows::AHEAD && k < last; u++, k += BK, at.advance()) {
                const uint32_t full = s.pipe.full(at);
                s.pipe.wait_empty(at);
                rows.copy(s.a(at), s.b(at), u, k, end);
                barrier_arrive_copied(full);
                rows.find(p, u, k + Rows::AHEAD * BK, end);
                __syncwarp();       // otherwise every warp would execute the branch in which thread 0 issues copies
                if (threadIdx.x == 0) {
                    s.tile(at) = { plane, row, column, (last - first + BK - 1) / BK };
                    if (gather) barrier_arrive(full);
                    else {                      // a step of zeros: rows past the matrix, not somebody's that may be NaN
                        barrier_expect(full, Weights::b_bytes);
                        for (int c = 0; c < Weights::BN; c += 64)
                            bulk_load(s.b(at) + c * 128, right_map, full, column + c, k < end ? k : p.rows, 0);
                    }
                }
            }
    }
    end_tiles<true>(s, at);
}
#endif

// gather: rows of right are gathered, not only those of left.
template <bool gather, bool transposed> static __global__ __launch_bounds__(THREADS, 1)
void grouped_weight(const __grid_constant__ CUtensorMap right_map, const __grid_constant__ CUtensorMap c_map,
                    const __grid_constant__ WeightProduct p) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Weights, WeightTile> s(raw);
    const int *start = s.init(1 + WARPGROUP, p.start, p.E);
    if (threadIdx.x < WARPGROUP) {
        give_registers<gather ? 72 : 56>();
        produce_weight<gather>(s, &right_map, p, start);
        return;
    }
    take_registers<gather ? 216 : 224>();
    const int consumer = threadIdx.x / WARPGROUP - 1;
    // the consumer's, not this warp's part
    const uint32_t slabs = s.slab(0) - threadIdx.x % WARPGROUP / 32 * (SLAB / 4);
    Position<Weights::STAGES> at;
    for (;;) {
        s.pipe.wait_full(at);
        const WeightTile tile = s.tile(at);
        if (tile.plane < 0) break;
        float sum[Weights::BN / 2];
        mainloop<MN_MAJOR, MN_MAJOR>(sum, s, at, tile.steps, consumer);
        const int first = tile.row + consumer * 64, barrier = CONSUMER_BARRIER + consumer;
        if (p.how == SET) set_floats<transposed>(sum, p, tile, first);
        else if (p.how == SET_ROUNDED) set_rounded<transposed>(sum, p, &c_map, slabs, tile, first, barrier);
        else add_floats<transposed>(sum, s, p, &c_map, slabs, tile, first, barrier);
    }
    if (threadIdx.x % WARPGROUP == 0) bulk_wait<0>();
#endif
}

// c = or += the sum of the splits, in order. A thread has 4 of n, a multiple of that.
template <typename T> static __global__ void add_splits(T *c, const float *split, size_t n, int splits, bool add) {
    const size_t i = global_index() * 4;
    if (i >= n) return;
    float sum[4];
#pragma unroll
    for (int j = 0; j < 4; j++) sum[j] = add ? (float)c[i + j] : 0;
    for (int k = 0; k < splits; k++) {
        const float4 x = *(const float4 *)(split + k * n + i);
        sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
    }
    struct alignas(sizeof(T) * 4) Four { T x[4]; } to;
#pragma unroll
    for (int j = 0; j < 4; j++) to.x[j] = (T)sum[j];
    *(Four *)(c + i) = to;
}

// ---- on the host --------------------------------------------------------------------------------

// The split-K factor: minimizes waves x length, if the saving outweighs the cost of writing and
// reading the partial sums: that of one split takes as long as the product of some 930 rows. A wave
// is MULTIPROCESSORS tiles. bench/tiles.py also builds each choice (0: choose) and compares.
#ifndef TILE_SPLITS
#define TILE_SPLITS 0
#endif
static int splits_of(size_t tiles, int rows_of_expert) {
    if (TILE_SPLITS) return TILE_SPLITS;
    int best = 1;
    double least = 1e30;
    for (int n = 1; n <= 8 && (n == 1 || rows_of_expert / n >= 512); n++) {
        const double partial_sums = n > 1 ? 930.0 * n / rows_of_expert * (double)tiles / MULTIPROCESSORS : 0;
        const double time = (double)divide_up(tiles * n, MULTIPROCESSORS) / n + partial_sums;
        if (time < least) least = time, best = n;
    }
    return best;
}

template <bool gather, bool transposed> static bool launch_weight(WeightProduct p) {
    const uint64_t P = (uint64_t)p.P, Q = (uint64_t)p.Q, width = transposed ? P : Q, height = transposed ? Q : P;
    const size_t n = (size_t)p.E * P * Q, tiles = p.E * divide_up(P, BM) * divide_up(Q, Weights::BN);
    const WeightProduct unsplit = p;
    p.splits = splits_of(tiles, p.rows / p.E);
    if (p.splits > 1) p.c = workspace(p.splits * n * sizeof(float)), p.how = SET;
    CUtensorMap right = {}, c = {};
    if ((!gather && !map_rows(&right, p.right, p.rows, p.Q, BK))
        || (p.how == SET_ROUNDED && !tensor_map(&c, p.c, 2, width, height, (uint64_t)p.E, width, P * Q, 64, 64))
        || (p.how == ADD
            && !tensor_map(&c, p.c, 4, width, height, (uint64_t)p.E, width, P * Q, 32, transposed ? 32 : 64)))
        return false;
    auto *kernel = grouped_weight<gather, transposed>;
    LAUNCH(kernel, (unsigned)min(tiles * p.splits, (size_t)context()->sm_count), THREADS, Weights::bytes, right, c, p);
    const float *split = (const float *)p.c;
    if (p.splits > 1 && unsplit.how == SET_ROUNDED)
        LAUNCH(add_splits<floatX>, (unsigned)divide_up(n, 1024), 256, 0, (floatX *)unsplit.c, split, n,
               p.splits, false);
    else if (p.splits > 1)
        LAUNCH(add_splits<float>, (unsigned)divide_up(n, 1024), 256, 0, (float *)unsplit.c, split, n, p.splits,
               unsplit.how == ADD);
    return true;
}
bool hopper_product_weight(const Product &p) {
    if (!can_use(p)) return false;
    // a: dout, O columns; b: inp, C. If both are gathered, left is the one that makes fewer tiles.
    auto tiles = [](int P, int Q) { return divide_up(P, BM) * divide_up(Q, Weights::BN); };
    const bool transposed = p.b_row && (!p.a_row || tiles(p.C, p.O) < tiles(p.O, p.C));
    WeightProduct w = {};
    w.start = p.start, w.E = p.E, w.rows = p.rows, w.how = p.how, w.c = p.c;
    w.left  = transposed ? p.b : p.a, w.left_row  = transposed ? p.b_row : p.a_row, w.P = transposed ? p.C : p.O;
    w.right = transposed ? p.a : p.b, w.right_row = transposed ? p.a_row : p.b_row, w.Q = transposed ? p.O : p.C;
    if (w.right_row) return transposed ? launch_weight<true, true>(w) : launch_weight<true, false>(w);
    return transposed ? launch_weight<false, true>(w) : launch_weight<false, false>(w);
}
#endif
