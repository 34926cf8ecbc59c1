// fp8.cuh: for products of e4m3 codes (sm_90a): the matrix instruction and a consumer's main loop.
//
// Both operands are K_MAJOR; 8-bit wgmma knows no other. To copies, 128 codes are 64 bf16:
// gemm.cuh's producer, layouts and stores do, with a Product that counts k in pairs of codes.
//
//   stage     128 of k, which have one scale: 128 rows of a and 256 columns of b, 48 KB as in bf16.
//   two sums  The tensor cores add products of codes with some 14 bits. So after every 128 of k a
//             consumer multiplies these partial sums by the scales and adds them in f32. Both kinds
//             are in registers, which have room for 64 x 256 sums and half as many partial ones: a
//             step has two pieces of 128 columns, one after the other.
//   overlap   While a consumer adds, nothing of its own is queued, and the tensor cores work on a
//             piece of the other consumer.
//   scales    Of rows: a consumer's threads load scales straight from memory, two steps ahead;
//             those of a tile's first two while the last tile is stored. What that needs of the
//             next tile is read during the last piece. Of columns: fp8_weight.cu.
//   descriptors  Whatever else a step computes delays both, and most of that is addresses. They are
//                the same in a warp: in uniform registers, if `consumer` and `steps` are (ptx.cuh).
#pragma once
#include "gemm.cuh"
#include "kernels/cuda/fp8.cuh"

#if defined(HOPPER)
// ---- the matrix instruction ---------------------------------------------------------------------

// d (64 x 128) = or += x y over 32 of k. accumulate 0: =.
__device__ static inline void wgmma_e4m3(float (&d)[64], uint64_t x, uint64_t y, int accumulate) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" LIST64 "}, %64, %65, p, 1, 1;\n\t}"
                 : F64 : "l"(x), "l"(y), "r"(accumulate));
}

// ---- the main loop of a consumer ----------------------------------------------------------------

// sum (64 x BN) = a b over `steps` stages.
//   scales.next(step, stage)  takes what was fetched for this step, or came with it; fetches ahead
//   scales.factor(i, h)       for columns 128i .. 128i+127 and the thread's row g + 8h
//   last()                    called while the tensor cores work on the last piece: other pieces'
//                             sums are complete, and `at` is the first stage of the next tile
template <typename Layout, typename TileType, typename Scales, typename Last>
__device__ static inline void mainloop_e4m3(float (&sum)[Layout::BN / 2], const Shared<Layout, TileType> &s,
                                            Position<Layout::STAGES> &at, int steps, int consumer, Scales &scales,
                                            Last last) {
    enum { PIECES = Layout::BN / 128 };
    float partial[64];
#pragma unroll
    for (int i = 0; i < Layout::BN / 2; i++) sum[i] = 0;
    for (int step = 0; step < steps; step++) {
        const Position<Layout::STAGES> now = at;
        const uint64_t a = descriptor(s.a(now) + consumer * 8192, K_MAJOR), b = descriptor(s.b(now), K_MAJOR);
        s.pipe.wait_full(now);
        at.advance();
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            pin(partial);
            wgmma_fence();
#pragma unroll
            for (int k32 = 0; k32 < 4; k32++)
                wgmma_e4m3(partial, advance(a, k32 * 32), advance(b, piece * 128 * 128 + k32 * 32), k32);
            wgmma_commit();
            if (piece == 0) scales.next(step, now.stage);
            if (piece == PIECES - 1 && step == steps - 1) last();
            const float f[2] = { scales.factor(piece, 0), scales.factor(piece, 1) };
            wgmma_wait<0>();
            pin(partial);
            if (piece == PIECES - 1) s.pipe.release(now);
#pragma unroll
            for (int i = 0; i < 64; i++) sum[piece * 64 + i] += f[i / 2 % 2] * partial[i];
        }
    }
}

// ---- the scales of a tile of rows ---------------------------------------------------------------

// Of a (.,pitch) and b (E,.,pitch), for PIECES times 128 columns. Of the four that a quad of lanes
// needs, for rows g and g + 8 of a and the first and the last 128 columns of b, each lane reads
// one, and they give them to each other while the tensor cores work: a fourth of the loads and
// registers. A step can be shorter than a read of memory, so they are fetched two steps ahead.
template <int PIECES> struct RowScales {
    const float *a, *b;
    const int *a_row;
    int pitch;
    const float *from = a;                                          // a block without tiles reads something
    float ahead[2], factors[PIECES][2];                             // ahead: this lane's for the next two steps
    // first: of b, the block of the tile's first 128 columns; the last is `apart` from it.
    __device__ void find(Tile tile, int first, int apart) {
        const int q = threadIdx.x % 4;
        int row = min(tile.row + (int)(threadIdx.x / 32 - 4) * 16 + (int)threadIdx.x % 32 / 4 + q % 2 * 8,
                      tile.end - 1);
        if (q < 2 && a_row) row = a_row[row];
        from = q < 2 ? a + (size_t)row * pitch : b + (size_t)(q == 2 ? first : first + (PIECES - 1) * apart) * pitch;
    }
    __device__ void fetch(void) {
        ahead[0] = from[0];
        ahead[1] = from[min(1, pitch - 1)];
    }
    __device__ void next(int step, int) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float row = __shfl_sync(ALL, ahead[0], h, 4);
#pragma unroll
            for (int piece = 0; piece < PIECES; piece++)
                factors[piece][h] = row * __shfl_sync(ALL, ahead[0], 2 + piece, 4);
        }
        ahead[0] = ahead[1];
        if (step + 2 < pitch) ahead[1] = from[step + 2];
    }
    __device__ float factor(int piece, int h) const { return factors[piece][h]; }
};

// Codes of 128 columns of this warp's 16 rows (x: wgmma.cuh) to a slab. Returns their scales.
__device__ static inline float2 put_codes(const float (&x)[64], unsigned char *slab) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t most = 0;
#pragma unroll
        for (int j = 0; j < 16; j++)
            most = max(most, max(magnitude(x[4 * j + 2 * h]), magnitude(x[4 * j + 2 * h + 1])));
        most = max(most, __shfl_xor_sync(ALL, most, 1));
        most = max(most, __shfl_xor_sync(ALL, most, 2));
        scale[h] = fp8_scale(most);
        const float inverse = fp8_inverse(scale[h]);
#pragma unroll
        for (int j = 0; j < 16; j++)
            *(uint16_t *)(slab + swizzled(g + 8 * h, j / 2) + j % 2 * 8 + q * 2)
                = (uint16_t)fp8_codes(x[4 * j + 2 * h] * inverse, x[4 * j + 2 * h + 1] * inverse);
    }
    return { scale[0], scale[1] };
}
#endif

// ---- on the host --------------------------------------------------------------------------------

// A product of codes of C columns, of the rows of a plan. To the producer two codes are one floatX.
static inline Product routed8(Fp8 a, Fp8 b, void *c, const Plan *plan, int C, int O) {
    return routed((const floatX *)a.code, (const floatX *)b.code, c, plan, C / 2, O);
}
