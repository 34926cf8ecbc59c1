// fp8.cuh: what the products of e4m3 codes have in common (sm_90a): the matrix instruction and the main loop of a consumer.
//
// Both operands are K_MAJOR; 8-bit wgmma knows no other. The copy engine and cp.async move bytes, and to them 128 codes are 64 bf16.
// So the producer, the layouts and the stores of gemm.cuh serve as they are, with a Product that counts k in pairs of codes.
//
//   stage        128 of k, which have one scale: 128 rows of a and 256 columns of b, 48 KB as in bf16.
//   two sums     The tensor cores add products of codes with some 14 bits. So after every 128 of k a consumer multiplies these partial
//                sums by the scales and adds them in f32. Both kinds are in registers, which have room for 64 x 256 sums and half as
//                many partial ones: a step has two pieces of 128 columns, one after the other.
//   overlap      While a consumer adds, nothing of its own is queued, and the tensor cores work on a piece of the other consumer.
//   scales       A consumer's threads load those of their two rows straight from memory, a step ahead; those of a tile's first step
//                while the last tile is stored. What that needs of the next tile is read during the last piece.
#pragma once
#include "gemm.cuh"
#include "kernels/cuda/fp8.cuh"

#if defined(HOPPER)
// ---- the matrix instruction -------------------------------------------------------------------------------------------------

// d (64 x 128) = or += x y over 32 of k. accumulate 0: =.
__device__ static inline void wgmma_e4m3(float (&d)[64], uint64_t x, uint64_t y, int accumulate) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" LIST64 "}, %64, %65, p, 1, 1;\n\t}"
                 : F64 : "l"(x), "l"(y), "r"(accumulate));
}

// ---- the main loop of a consumer --------------------------------------------------------------------------------------------

// sum (64 x BN) = a b over `steps` stages, of which the first is full already; scales.fetch() has been called.
//   scales.next(step, more)   takes what was fetched for this step; more: fetches for the next
//   scales.factor(i, h)       for columns 128i .. 128i+127 and row g + 8h of the thread
//   last()                    called while the tensor cores work on the last piece: sums of other pieces are complete, and `at` is the
//                             first stage of the next tile
template <typename Layout, typename TileType, typename Scales, typename Last>
__device__ static inline void mainloop_e4m3(float (&sum)[Layout::BN / 2], const Shared<Layout, TileType> &s,
                                            Position<Layout::STAGES> &at, int steps, int consumer, Scales &scales, Last last) {
    enum { PIECES = Layout::BN / 128 };
    float partial[64];
#pragma unroll
    for (int i = 0; i < Layout::BN / 2; i++) sum[i] = 0;
    __syncwarp();                                                   // all lanes have read the first stage's tile
    for (int step = 0; step < steps; step++) {
        const Position<Layout::STAGES> now = at;
        if (step) s.pipe.wait_full(now);
        at.advance();
        const uint64_t a = descriptor(s.a(now) + consumer * 8192, K_MAJOR), b = descriptor(s.b(now), K_MAJOR);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            pin(partial);
            wgmma_fence();
#pragma unroll
            for (int k32 = 0; k32 < 4; k32++)
                wgmma_e4m3(partial, advance(a, k32 * 32), advance(b, piece * 128 * 128 + k32 * 32), k32);
            wgmma_commit();
            if (piece == 0) scales.next(step, step + 1 < steps);
            if (piece == PIECES - 1 && step == steps - 1) last();
            wgmma_wait<0>();
            pin(partial);
            if (piece == PIECES - 1) s.pipe.arrive_empty(now);
            const float f[2] = { scales.factor(piece, 0), scales.factor(piece, 1) };
#pragma unroll
            for (int i = 0; i < 64; i++) sum[piece * 64 + i] += f[i / 2 % 2] * partial[i];
        }
    }
}

// ---- the scales of a tile of rows ----------------------------------------------------------------------------------------

// In every lane 0, which the compiler does not know to be the same in all.
__device__ static inline int zero_of_lane(void) {
    uint32_t lower;
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lower));
    return lower >> 31;
}
// Of a (.,pitch) and b (E,.,pitch): those of the thread's two rows and of PIECES times 128 columns. A step with one piece is too short for
// a read of memory; then they are fetched two steps ahead. All lanes read the same scales of b; a read that the compiler knows to be
// uniform would be moved to a uniform register at once, and each step would wait for L2.
template <int PIECES> struct RowScales {
    enum { DEEP = PIECES == 1 };
    const float *a, *b;
    const int *a_row;
    int pitch;
    int row[2], column[PIECES];
    float a_next[1 + DEEP][2], b_next[1 + DEEP][PIECES], a_now[2], b_now[PIECES];
    // first: of b, the block of the tile's first 128 columns; the others are `apart` from one to the next.
    __device__ void find(Tile tile, int first, int apart) {
        const int r = tile.row + (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32 / 4, zero = zero_of_lane();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            row[h] = min(r + 8 * h, tile.end - 1);
            if (a_row) row[h] = a_row[row[h]];
        }
#pragma unroll
        for (int i = 0; i < PIECES; i++) column[i] = first + i * apart + zero;
    }
    __device__ void read(int step, int slot) {
#pragma unroll
        for (int h = 0; h < 2; h++) a_next[slot][h] = a[(size_t)row[h] * pitch + step];
#pragma unroll
        for (int i = 0; i < PIECES; i++) b_next[slot][i] = b[(size_t)column[i] * pitch + step];
    }
    __device__ void fetch(void) {
        read(0, 0);
        if (DEEP) read(min(1, pitch - 1), DEEP);
    }
    __device__ void next(int step, bool) {
#pragma unroll
        for (int h = 0; h < 2; h++) a_now[h] = a_next[0][h], a_next[0][h] = a_next[DEEP][h];
#pragma unroll
        for (int i = 0; i < PIECES; i++) b_now[i] = b_next[0][i], b_next[0][i] = b_next[DEEP][i];
        if (step + 1 + DEEP < pitch) read(step + 1 + DEEP, DEEP);
    }
    __device__ float factor(int piece, int h) const { return a_now[h] * b_now[piece]; }
};

// The codes of 128 columns of this warp's 16 rows to a slab: x[4j + 2h + i] is row g + 8h, column 8j + 2q + i (wgmma.cuh).
// Returns the scales of rows g and g + 8.
__device__ static inline float2 put_codes(const float (&x)[64], unsigned char *slab) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t most = 0;
#pragma unroll
        for (int j = 0; j < 16; j++) most = max(most, max(magnitude(x[4 * j + 2 * h]), magnitude(x[4 * j + 2 * h + 1])));
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

// ---- on the host ----------------------------------------------------------------------------------------------------------

// A product of codes of C columns, of the rows of a plan. To the producer two codes are one floatX.
static inline Product routed8(Fp8 a, Fp8 b, void *c, const Plan *plan, int C, int O) {
    return routed((const floatX *)a.code, (const floatX *)b.code, c, plan, C / 2, O);
}
