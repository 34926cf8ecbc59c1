// fp8_weight.cu: the gradients of weights from columns of codes (sm_90a). For every expert e
//
//     dweight[e] (O,C) = or +=  the sum over its blocks of 128 rows of  dout block (O,128) inp block (C,128)^T
//
// fp8_columns has transposed both operands: each block's columns are rows of 128 codes, K_MAJOR, and past an expert's last row they are
// zeros. So a step is a block, its three boxes are bulk copies, and a producer needs one thread. Both sides have one scale for 128
// columns and a block. Tiles are 128 of O x 256 of C; block i has tiles i, i + gridDim.x, ...; epilogues as in weight.cu.
#include "fp8.cuh"
#include "weight.cuh"

#if defined(PRECISION_BF16)

// What a product is given: the scales of dout and inp; c as in WeightProduct.
struct BlockProduct { const float *dout, *inp; WeightProduct c; };

#if defined(HOPPER)
// In every lane 0, which the compiler does not know to be the same in all.
__device__ static inline int zero_of_lane(void) {
    uint32_t lower;
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lower));
    return lower >> 31;
}
// The scales of a tile: of its 128 of O and of twice 128 of C. All lanes read the same; a read that the compiler knows to be uniform
// would be moved to a uniform register at once, and each step would wait for L2.
struct BlockScales {
    const float *left, *right;                        // of the tile's columns in the next block
    int left_pitch, right_pitch, second;                // second: where those of the next 128 of C are
    float next_left, next_right[2], now[2];
    __device__ void fetch(void) {
        next_left = *left, left += left_pitch;
        next_right[0] = right[0], next_right[1] = right[second], right += right_pitch;
    }
    __device__ void next(int, bool more) {
#pragma unroll
        for (int i = 0; i < 2; i++) now[i] = next_left * next_right[i];
        if (more) fetch();
    }
    __device__ float factor(int piece, int) const { return now[piece]; }
};
__device__ static inline int first_block(const int *start, int expert) { return start[expert] / FP8_BLOCK + expert; }

__device__ static inline void produce_blocks(const Shared<Weight, WeightTile> &s, const CUtensorMap *left_map,
                                             const CUtensorMap *right_map, const WeightProduct &p, const int *start) {
    if (threadIdx.x) return;
    const int across = (p.Q + Weight::BN - 1) / Weight::BN, down = p.P / BM, tiles = p.E * across * down;
    Position<Weight::STAGES> at;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        const int e = number / (across * down), row = number % down * BM, column = number % (across * down) / down * Weight::BN;
        const int first = first_block(start, e), steps = (start[e + 1] - start[e] + FP8_BLOCK - 1) / FP8_BLOCK;
        if (steps == 0 && p.how == ADD) continue;
        for (int step = 0; step < max(steps, 1); step++, at.advance()) {
            const uint32_t full = s.pipe.full(at);
            s.pipe.wait_empty(at);
            s.tile(at) = { e, row, column, steps };
            if (steps == 0) { barrier_arrive(full); continue; }                 // zeros
            barrier_expect(full, Weight::stage_bytes);
            bulk_load(s.a(at), left_map, full, 0, row, first + step);
            bulk_load(s.b(at), right_map, full, 0, column, first + step);
        }
    }
    end_tiles<false>(s, at);
}
#endif

static __global__ __launch_bounds__(THREADS, 1)
void grouped_weight8(const __grid_constant__ CUtensorMap left_map, const __grid_constant__ CUtensorMap right_map,
                     const __grid_constant__ CUtensorMap c_map, const __grid_constant__ BlockProduct given) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const Shared<Weight, WeightTile> s(raw);
    const WeightProduct &p = given.c;
    const int *start = s.init(1, p.start, p.E);
    if (threadIdx.x < WARPGROUP) {
        give_registers<24>();
        produce_blocks(s, &left_map, &right_map, p, start);
        return;
    }
    take_registers<240>();
    const int consumer = threadIdx.x / WARPGROUP - 1, barrier = CONSUMER_BARRIER + consumer;
    const uint32_t slabs = s.slab(0) - threadIdx.x % WARPGROUP / 32 * (SLAB / 4);     // the consumer's, not this warp's part
    BlockScales scales = { given.dout, given.inp, p.P / 128, p.Q / 128 };
    Position<Weight::STAGES> at;
    auto find = [&](void) {
        s.pipe.wait_full(at);
        const WeightTile tile = s.tile(at);
        if (tile.plane < 0) return;
        const size_t block = first_block(start, tile.plane), zero = zero_of_lane();
        scales.left = given.dout + block * scales.left_pitch + tile.row / 128 + zero;
        scales.right = given.inp + block * scales.right_pitch + tile.column / 128 + zero;
        scales.second = tile.column + 128 < p.Q;
        scales.fetch();
    };
    find();
    for (;;) {
        const WeightTile tile = s.tile(at);
        if (tile.plane < 0) break;
        const int first = tile.row + consumer * 64;
        float sum[Weight::BN / 2];
        if (tile.steps) mainloop_e4m3(sum, s, at, tile.steps, consumer, scales, find);
        else {
#pragma unroll
            for (int i = 0; i < Weight::BN / 2; i++) sum[i] = 0;
            s.pipe.release(at);
            at.advance();
            find();
        }
        if (p.how == SET) set_floats<false>(sum, p, tile, first);
        else if (p.how == SET_ROUNDED) set_rounded<false>(sum, p, &c_map, slabs, tile, first, barrier);
        else add_floats<false>(sum, s, p, &c_map, slabs, tile, first, barrier);
    }
    if (threadIdx.x % WARPGROUP == 0) bulk_wait<0>();
#endif
}

static void fp8_backward_weight(const Device *d, void *dweight, Fp8 dout, Fp8 inp, const Plan *plan, int C, int O, Write how) {
    (void)d;
    const uint64_t blocks = (uint64_t)fp8_blocks(plan->S, plan->E), E = (uint64_t)plan->E, P = (uint64_t)O, Q = (uint64_t)C;
    BlockProduct p = { dout.scale, inp.scale, {} };
    p.c.start = plan->start, p.c.c = dweight, p.c.E = plan->E, p.c.rows = plan->S, p.c.P = O, p.c.Q = C, p.c.splits = 1, p.c.how = how;
    CUtensorMap left, right, c = {};
    if (!tensor_map(&left, dout.code, 2, 64, P, blocks, 64, 64 * P, 64, BM)
        || !tensor_map(&right, inp.code, 2, 64, Q, blocks, 64, 64 * Q, 64, Weight::BN)
        || (how == SET_ROUNDED && !tensor_map(&c, dweight, 2, Q, P, E, Q, P * Q, 64, 64))
        || (how == ADD && !tensor_map(&c, dweight, 4, Q, P, E, Q, P * Q, 32, 64))) CUDA_CHECK(cudaErrorInvalidValue);
    allow_shared((const void *)grouped_weight8, Weight::bytes);
    const size_t tiles = E * (P / BM) * divide_up(Q, Weight::BN);
    LAUNCH(grouped_weight8, (unsigned)min(tiles, (size_t)context()->sm_count), THREADS, Weight::bytes, left, right, c, p);
}
PART(fp8_weight) { d->fp8_backward_weight = fp8_backward_weight; }
#endif
