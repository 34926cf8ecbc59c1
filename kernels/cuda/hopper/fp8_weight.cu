// fp8_weight.cu: the gradients of weights from columns of codes (sm_90a). For every expert e
//
//     dweight[e] (O,C) = or += sum over blocks of 128 rows: dout block (O,128) inp block (C,128)^T
//
// fp8_columns has transposed both operands: a block's columns are rows of 128 codes, K_MAJOR, zeros
// past the last. So a step is a block, three bulk copies, and a producer needs one thread. Both
// sides have one scale for 128 columns and a block; that thread multiplies them, too. Tiles are 128
// of O x 256 of C; block i has tiles i, i + gridDim.x, ...; epilogues as in weight.cu.
#include "fp8.cuh"
#include "weight.cuh"

#if defined(PRECISION_BF16)

// What a product is given: the scales of dout and inp; c as in WeightProduct.
struct BlockProduct { const float *dout, *inp; WeightProduct c; };

// Two factors per stage (shared): the scale of the tile's 128 of O times those of twice 128 of C.
enum { FACTORS = Weights::starts + STARTS * 4, FACTORS_BYTES = Weights::STAGES * sizeof(float2) };
static_assert(Weights::bytes + FACTORS_BYTES <= 232448, "the most that a block can have");

#if defined(HOPPER)
struct BlockScales {
    float2 *of_stage, now;
    __device__ BlockScales(const Shared<Weights, WeightTile> &s) : of_stage((float2 *)(s.generic + FACTORS)) {}
    __device__ void next(int, int stage) { now = of_stage[stage]; }
    __device__ float factor(int piece, int) const { return piece ? now.y : now.x; }
};

__device__ static inline void produce_blocks(const Shared<Weights, WeightTile> &s, const CUtensorMap *left_map,
                                             const CUtensorMap *right_map, const BlockProduct &given,
                                             const int *start) {
    if (threadIdx.x) return;
    const WeightProduct &p = given.c;
    const int across = (p.Q + Weights::BN - 1) / Weights::BN, down = p.P / BM, tiles = p.E * across * down;
    Position<Weights::STAGES> at;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        const int e = number / (across * down), row = number % down * BM,
            column = number % (across * down) / down * Weights::BN;
        const int first = start[e] / FP8_BLOCK + e, steps = (start[e + 1] - start[e] + FP8_BLOCK - 1) / FP8_BLOCK;
        const int second = column + 128 < p.Q;                              // where the scale of the next 128 of C is
        if (steps == 0 && p.how == ADD) continue;
        for (int step = 0; step < max(steps, 1); step++, at.advance()) {
            const uint32_t full = s.pipe.full(at);
            const float *right = given.inp + (size_t)(first + step) * (p.Q / 128) + column / 128;
            const float left = given.dout[(size_t)(first + step) * (p.P / 128) + row / 128];
            // read before the wait, which takes longer
            const float2 factors = { left * right[0], left * right[second] };
            s.pipe.wait_empty(at);
            s.tile(at) = { e, row, column, steps };
            BlockScales(s).of_stage[at.stage] = factors;
            if (steps == 0) { barrier_arrive(full); continue; }                 // zeros
            barrier_expect(full, Weights::stage_bytes);
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
    const Shared<Weights, WeightTile> s(raw);
    const WeightProduct &p = given.c;
    const int *start = s.init(1, p.start, p.E);
    if (threadIdx.x < WARPGROUP) {
        give_registers<24>();
        produce_blocks(s, &left_map, &right_map, given, start);
        return;
    }
    take_registers<240>();
    const int consumer = uniform(threadIdx.x / WARPGROUP) - 1, barrier = CONSUMER_BARRIER + consumer;
    // the consumer's, not this warp's part
    const uint32_t slabs = s.slab(0) - threadIdx.x % WARPGROUP / 32 * (SLAB / 4);
    BlockScales scales(s);
    Position<Weights::STAGES> at;
    for (;;) {
        s.pipe.wait_full(at);
        const WeightTile tile = s.tile(at);
        if (tile.plane < 0) break;
        const int first = tile.row + consumer * 64, steps = uniform(tile.steps);
        float sum[Weights::BN / 2];
        if (steps) mainloop_e4m3(sum, s, at, steps, consumer, scales, Nothing());
        else {
#pragma unroll
            for (int i = 0; i < Weights::BN / 2; i++) sum[i] = 0;
            s.pipe.release(at);
            at.advance();
        }
        if (p.how == SET) set_floats<false>(sum, p, tile, first);
        else if (p.how == SET_ROUNDED) set_rounded<false>(sum, p, &c_map, slabs, tile, first, barrier);
        else add_floats<false>(sum, s, p, &c_map, slabs, tile, first, barrier);
    }
    if (threadIdx.x % WARPGROUP == 0) bulk_wait<0>();
#endif
}

static void fp8_backward_weight(const Device *, void *dweight, Fp8 dout, Fp8 inp, const Plan *plan, int C, int O,
                                Write how) {
    const uint64_t blocks = (uint64_t)fp8_blocks(plan->S, plan->E), E = (uint64_t)plan->E, P = (uint64_t)O,
        Q = (uint64_t)C;
    BlockProduct p = { dout.scale, inp.scale, {} };
    p.c.start = plan->start, p.c.c = dweight, p.c.E = plan->E, p.c.rows = plan->S, p.c.P = O, p.c.Q = C, p.c.splits = 1,
        p.c.how = how;
    CUtensorMap left, right, c = {};
    if (!tensor_map(&left, dout.code, 2, 64, P, blocks, 64, 64 * P, 64, BM)
        || !tensor_map(&right, inp.code, 2, 64, Q, blocks, 64, 64 * Q, 64, Weights::BN)
        || (how == SET_ROUNDED && !tensor_map(&c, dweight, 2, Q, P, E, Q, P * Q, 64, 64))
        || (how == ADD && !tensor_map(&c, dweight, 4, Q, P, E, Q, P * Q, 32, 64))) CUDA_CHECK(cudaErrorInvalidValue);
    const size_t tiles = E * (P / BM) * divide_up(Q, Weights::BN);
    LAUNCH(grouped_weight8, (unsigned)min(tiles, (size_t)context()->sm_count), THREADS, Weights::bytes + FACTORS_BYTES,
           left, right, c, p);
}
PART_OF(Fp8Operations, fp8_weight) { d->backward_weight = fp8_backward_weight; }
#endif
