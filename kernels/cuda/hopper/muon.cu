// hopper/muon.cu: Newton and Schulz's steps, a block per matrix with smaller side k <= 256.
//
// The polynomial Q of a step is made of A = X X^T, which is k x k and symmetric: Q = a I + b A + c
// A A. The A of the next step need not be made of Q X, which is k x n: it is Q X X^T Q = Q Q A. So
// a few steps take k x k matrices alone; then X is multiplied once, by the product of polynomials.
// A's rounding error grows by up to 3.44^2 a step; so A is made of X again after three of the five
// steps, and numbers between are half precision (11 bits): more exact than X rounded to bf16 in
// every step (docs/LOG.md). All these matrices are polynomials of A: symmetric, and they commute.
//
// With k = 256 two such matrices are in the block's shared memory: S, whole, 128 KB, and T, of
// which 10 of 16 blocks of 64 x 64 are there, those on and below the diagonal, 80 KB. Products of
// them need nothing from global memory. X comes through a ring of stages, slab by slab (64
// columns). T is in the ring: X is not needed between X X^T and the product that multiplies X. X is
// read four times and written twice, first in place. The order: the table `program`.
//
//   symmetric  Of a product only blocks on and below the diagonal are computed, and mirrored in S.
//              Rows 64p.. have p + 1 of them; consumer c has p = c and 3 - c: five, 160 sums a
//              thread. wgmma reads a block above T's diagonal as that below, transposed. Of a
//              polynomial the higher rows are finished while the lower ones are computed.
//   X          A slab of the result is the polynomial times the same slab of X, so it replaces it,
//              in shared memory and in global memory, to which a thread of the producer's warpgroup
//              stores it. A consumer has every second slab. As Q is symmetric, it computes X^T Q,
//              64 columns of X as rows, which reads least shared memory; stmatrix transposes back.
//   norm       |X|^2 is the trace of X X^T. The first X is not normalized: its X X^T is divided by
//              the square of the norm, and the product of polynomials by the norm.
//   order      X is multiplied in the opposite order of X X^T, so that what was read last is still
//              in the cache, and the next X X^T begins 4 slabs further on, past stores.
//
// With more rows than columns all this is done with X^T: a slab is 64 rows of X, the other way.
//
// For k x n, in units of 2 k^2 flop: 10/16 (2 n + 14 k) + 2 n; one by one 10/16 (5 n + 5 k) + 5 n.
#include "gemm.cuh"
#include "muon.cuh"

#if defined(PRECISION_BF16)
enum { SIDE = 256, STAGE = SIDE * 128, STAGES = 3, TRIANGLE = 10 * SLAB, ORDER_SHIFT = 4 };
enum { STAGES_AT = 4 * STAGE, BARRIERS_AT = STAGES_AT + STAGES * STAGE, READY_AT = BARRIERS_AT + STAGES * 16,
       KEPT_AT = READY_AT + STAGES * 8, SUMS_AT = KEPT_AT + 8, STORED_AT = SUMS_AT + 32, BYTES = STORED_AT + 8 + 1024 };
static_assert(BYTES <= 232448 && TRIANGLE <= STAGES * STAGE, "what a block can have, and what T can");

enum Kind : unsigned char {
    GRAM,                                       // S = X X^T
    TO_S, TO_T,                                 // S or T = a I + b S + c S S
    TIMES,                                      // S = T S
    FACTOR,                                     // the same, as bf16 and, the first time, divided by the norm of X
    APPLY                                       // X = S X
};
enum Copy : unsigned char { NOTHING, KEEP, RETURN };    // then T is kept in global memory, or becomes what was kept
struct Operation { Kind kind; Copy copy; };
static_assert(MUON_STEPS == 5, "three steps and two");
enum { OPERATIONS = 18, AGAIN = 11 };           // where X X^T is made again
[[maybe_unused]] static __constant__ const Operation program[OPERATIONS] = {
    { GRAM,   NOTHING },                        /* S = A1 */
    { TO_T,   KEEP    },                        /* T = Q1 */
    { TIMES,  NOTHING }, { TIMES, NOTHING },    /* S = A2 = Q1 (Q1 A1) */
    { TO_T,   NOTHING },                        /* T = Q2 */
    { TIMES,  NOTHING }, { TIMES, NOTHING },    /* S = A3 */
    { TO_S,   NOTHING },                        /* S = Q3 */
    { TIMES,  RETURN  }, { FACTOR, NOTHING },   /* S = Q1 (Q2 Q3) */
    { APPLY,  NOTHING },
    { GRAM,   NOTHING },                        /* S = A4 */
    { TO_T,   NOTHING },                        /* T = Q4 */
    { TIMES,  NOTHING }, { TIMES, NOTHING },    /* S = A5 */
    { TO_S,   NOTHING },                        /* S = Q5 */
    { FACTOR, NOTHING },                        /* S = Q4 Q5 */
    { APPLY,  NOTHING }
};
struct Maps { CUtensorMap x, out, kept; };

#if defined(HOPPER)
// Which slab is i-th in X X^T the first or second time; X is multiplied from the last to the first.
__device__ static inline int slab_of(int again, int i, int slabs) { return (i + ORDER_SHIFT * again) % slabs; }
// How many slabs have been stored so far: published by one thread, observed by another.
__device__ static inline void publish(uint32_t address, int count) {
    asm volatile("st.release.cta.shared::cta.b32 [%0], %1;" :: "r"(address), "r"(count) : "memory");
}
__device__ static inline int observed(uint32_t address) {
    int count;
    asm volatile("ld.acquire.cta.shared::cta.b32 %0, [%1];" : "=r"(count) : "r"(address) : "memory");
    return count;
}
// Copies that begin after this see global memory as stores that are done left it.
__device__ static inline void fence_copies(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

// A slab of X: boxes of 64 x 64, whose rows and columns change places if X is tall.
__device__ static inline void load_slab(uint32_t to, const CUtensorMap *map, uint32_t barrier, int slab, bool tall) {
    for (int i = 0; i < 4; i++)
        bulk_load(to + i * SLAB, map, barrier, (tall ? i : slab) * 64, (tall ? slab : i) * 64, blockIdx.x);
}
__device__ static inline void store_slab(const CUtensorMap *map, uint32_t from, int slab, bool tall) {
    for (int i = 0; i < 4; i++)
        bulk_store(map, from + i * SLAB, (tall ? i : slab) * 64, (tall ? slab : i) * 64, blockIdx.x);
}

// One thread orders all slabs.
template <bool tall> __device__ static void produce(const Maps &maps, uint32_t base, int slabs) {
    const Pipeline<STAGES> pipe = { base + BARRIERS_AT };
    int iteration = 0;
#pragma unroll 1
    for (int pass = 0; pass < 4; pass++) {                                      // X X^T, X multiplied, both again
        const int again = pass / 2;
        const bool gram = pass % 2 == 0;
#pragma unroll 1
        for (int i = 0; i < slabs; i++, iteration++) {
            const int slab = slab_of(again, gram ? i : slabs - 1 - i, slabs);
            if (gram && again) {                                                // it was stored in the opposite order
                while (observed(base + STORED_AT) < slabs - slab) {}
                fence_copies();
            }
            pipe.acquire(iteration, STAGE);
            load_slab(base + STAGES_AT + iteration % STAGES * STAGE, &maps.x, pipe.full(iteration), slab, tall);
        }
    }
}

// Another thread stores what X becomes, slab by slab, and releases the stage in the name of the
// consumer that made it, which goes on meanwhile. The i-th of all slabs made is announced by
// barrier i % STAGES; that stage is not used again before it has been stored.
template <bool tall> __device__ static void store_slabs(const Maps &maps, uint32_t base, int slabs) {
    const Pipeline<STAGES> pipe = { base + BARRIERS_AT };
    int made = 0;
#pragma unroll 1
    for (int again = 0; again < 2; again++) {
#pragma unroll 1
        for (int i = 0; i < slabs; i++, made++) {
            const int iteration = (again * 2 + 1) * slabs + i;
            const Position<STAGES> at = made;
            barrier_wait(base + READY_AT + at.stage * 8, at.phase);
            store_slab(again ? &maps.out : &maps.x, base + STAGES_AT + iteration % STAGES * STAGE,
                       slab_of(again, slabs - 1 - i, slabs), tall);
            bulk_commit();
            bulk_wait_read<0>();
            for (int arrived = 0; arrived < 4 * RELEASING_LANES; arrived++) barrier_arrive(pipe.empty(iteration));
            bulk_wait<1>(), fence_copies(), publish(base + STORED_AT, made);
        }
        bulk_wait<0>(), fence_copies(), publish(base + STORED_AT, made);
    }
}

// S: four slabs of 64 columns, 256 rows of 128 bytes, swizzled. Block (p, q), in T p >= q.
__device__ static inline uint32_t block_of_s(uint32_t base, int p, int q) { return base + q * STAGE + p * SLAB; }
__device__ static inline uint32_t block_of_t(uint32_t base, int p, int q) {
    return base + STAGES_AT + (p * (p + 1) / 2 + q) * SLAB;
}
// T is kept, or comes back.
__device__ static inline void store_t(const CUtensorMap *map, uint32_t base) {
    for (int p = 0; p < 4; p++)
        for (int q = 0; q <= p; q++) bulk_store(map, block_of_t(base, p, q), q * 64, p * 64, blockIdx.x);
}
__device__ static inline void load_t(const CUtensorMap *map, uint32_t base) {
    barrier_expect(base + KEPT_AT, TRIANGLE);
    for (int p = 0; p < 4; p++)
        for (int q = 0; q <= p; q++) bulk_load(block_of_t(base, p, q), map, base + KEPT_AT, q * 64, p * 64, blockIdx.x);
}
__device__ static inline int warp_of_four(void) { return threadIdx.x % 128 / 32; }
// The lane, opaque, or the compiler computes addresses from it too early: registers are few.
__device__ static inline int lane_now(void) {
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane));
    return lane;
}
// Two floats as bf16 or as half precision.
template <bool half> __device__ static inline uint32_t packed(float low, float high) {
    if (!half) return pack_bf16(low, high);
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// put_columns (gemm.cuh) of either type, and transposed: columns 16j.. to rows 16j...
template <bool half> __device__ static inline void put_16_columns(uint32_t rows, int j, const float *x) {
    const int lane = lane_now();
    stmatrix(rows + swizzled(lane % 16, 2 * j + lane / 16), packed<half>(x[0], x[1]), packed<half>(x[2], x[3]),
             packed<half>(x[4], x[5]), packed<half>(x[6], x[7]));
}
template <bool half> __device__ static inline void put_rows_of_columns(uint32_t rows, int j, const float *x) {
    const int lane = threadIdx.x % 32;
    stmatrix_trans(rows + swizzled(j * 16 + lane / 16 * 8 + lane % 8, warp_of_four() * 2 + lane / 8 % 2), packed<half>(
            x[0], x[1]), packed<half>(x[2], x[3]), packed<half>(x[4], x[5]), packed<half>(x[6], x[7]));
}
// Of sums 8j .. 8j+7 of a block on the diagonal, is the i-th on its diagonal?
__device__ static inline bool diagonal(int j, int i) {
    const int lane = threadIdx.x % 32;
    return j == warp_of_four() && i / 4 == i / 2 % 2 && lane / 4 == lane % 4 * 2 + i % 2;
}

// x: rows 64p.. of a symmetric matrix, p + 1 blocks. S gets their transposes, too.
template <int p, bool half, bool to_t = false> __device__ static inline void
put_rows(uint32_t base, const float (&x)[32 * (p + 1)]) {
#pragma unroll
    for (int q = 0; q <= p; q++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t block = to_t ? block_of_t(base, p, q) : block_of_s(base, p, q);
            put_16_columns<half>(block + warp_of_four() * (SLAB / 4), j, &x[q * 32 + j * 8]);
            if (!to_t && q < p) put_rows_of_columns<half>(block_of_s(base, q, p), j, &x[q * 32 + j * 8]);
        }
}
template <int p> __device__ static inline float trace(const float (&x)[32 * (p + 1)]) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) sum += diagonal(j, i) ? x[p * 32 + j * 8 + i] : 0;
    return sum;
}
// x, which is of S S, becomes a I + b S + c x.
template <int p> __device__ static inline void polynomial(uint32_t base, float (&x)[32 * (p + 1)]) {
    const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    const int lane = threadIdx.x % 32, warp = warp_of_four();
    const uint32_t row = block_of_s(base, p, 0) + warp * (SLAB / 4) + lane % 16 * 128;
#pragma unroll
    for (int q = 0; q <= p; q++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t g[4];
            ldmatrix(g, row + q * STAGE + ((2 * j + lane / 16 ^ lane % 8) << 4));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float &y = x[q * 32 + j * 8 + i];
                y = c * y + b * unpack_half(g[i / 2], i % 2);
                if (q == p && diagonal(j, i)) y += a;
                asm volatile("" : "+f"(y));
            }
        }
}

// Of the squared norm of X, the trace of X X^T: each warp's part, and their sum.
template <int consumer> __device__ static inline void put_norm(float *sums, const float (&low)[32 * (consumer + 1)],
        const float (&high)[32 * (4 - consumer)]) {
    const float sum = warp_sum(trace<consumer>(low) + trace<3 - consumer>(high));
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32 - 4] = sum;
    named_barrier_sync(1, 256);
}
__device__ static inline float inverse_norm(const float *sums) {
    float norm = 0;
    for (int i = 0; i < 8; i++) norm += sums[i];
    return norm > MUON_LEAST ? 1 / norm : 0;
}

// Queues rows 64p.. of S S, or of T S, from column r of the blocks of S or T on.
template <int p, bool square, int r = 0> __device__ static inline void multiply_rows(float (&sum)[32 * (p + 1)],
        uint32_t base) {
    constexpr Major major = square || r <= p ? K_MAJOR : MN_MAJOR;
    const uint32_t block = square ? block_of_s(base, p, r) : major == K_MAJOR ? block_of_t(base, p, r)
                                  : block_of_t(base, r, p);
#pragma unroll
    for (int k16 = 0; k16 < 4; k16++)
        wgmma<64 * (p + 1), major, K_MAJOR, true>(sum, descriptor(block + k16 * (major == K_MAJOR ? 32 : 2048), major),
                                                  descriptor(block_of_s(base, 0, r) + k16 * 32, K_MAJOR), r | k16);
    if constexpr (r < 3) multiply_rows<p, square, r + 1>(sum, base);
    else wgmma_commit();
}
// X X^T, its last slab queued. T will be in the last stages: they are not released.
template <int consumer, bool tall> __device__ static inline void multiply_slabs(float (&low)[32 * (consumer + 1)],
        float (&high)[32 * (4 - consumer)], uint32_t base, int slabs, int &iteration) {
    constexpr Major major = tall ? MN_MAJOR : K_MAJOR;
    const Pipeline<STAGES> pipe = { base + BARRIERS_AT };
#pragma unroll 1
    for (int i = 0; i < slabs; i++, iteration++) {
        pipe.wait_full(iteration);
        pin(low), pin(high);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < 4; k16++) {
            const uint32_t at = base + STAGES_AT + iteration % STAGES * STAGE + k16 * (tall ? 2048 : 32);
            const uint64_t columns = descriptor(at, major);
            wgmma<64 * (consumer + 1), major, major>(low, descriptor(at + consumer * SLAB, major), columns, i | k16);
            wgmma<64 * (4 - consumer), major, major>(high, descriptor(at + (3 - consumer) * SLAB, major),
                                                     columns, i | k16);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (i && i <= slabs - STAGES) pipe.release(iteration - 1);
    }
}

// S or T is made.
template <int consumer, bool tall> __device__ static inline void make_matrix(int o, const Maps &maps, uint32_t base,
        unsigned char *generic, int slabs, int &iteration) {
    const Operation &op = program[o];
    const Pipeline<STAGES> pipe = { base + BARRIERS_AT };
    const bool copies = threadIdx.x == 128;                                     // this thread copies T
    // set: else they would be kept from one to the next
    float low[32 * (consumer + 1)] = {}, high[32 * (4 - consumer)] = {};
    auto begin = [&] { pin(low), pin(high), wgmma_fence(); };
    auto finish = [&] {                                         // in each branch: the compiler follows wgmma no further
        if (copies) bulk_wait<0>();                                             // T has been kept
        wgmma_wait<0>();
        pin(low), pin(high);
    };
    if (op.kind == GRAM) {
        multiply_slabs<consumer, tall>(low, high, base, slabs, iteration);
        finish();
    } else if (op.kind == TO_S || op.kind == TO_T) {
        begin();
        multiply_rows<3 - consumer, true>(high, base), multiply_rows<consumer, true>(low, base);
        wgmma_wait<1>();
        pin(high);
        polynomial<3 - consumer>(base, high);                                   // while low is computed; nobody reads T
        if (op.kind == TO_T) put_rows<3 - consumer, true, true>(base, high);
        finish();
        polynomial<consumer>(base, low);
        if (op.kind == TO_T) put_rows<consumer, true, true>(base, low);
    } else {
        if (o < AGAIN && op.kind == FACTOR) barrier_wait(base + KEPT_AT, 0);
        begin();
        multiply_rows<3 - consumer, false>(high, base), multiply_rows<consumer, false>(low, base);
        finish();
    }
    if (op.kind == FACTOR) for (int i = STAGES; i > 0; i--) pipe.release(iteration - i);    // T is not needed any more
    if (o < AGAIN && (op.kind == GRAM || op.kind == FACTOR)) {                  // divide by the norm
        float *const sums = (float *)(generic + SUMS_AT);
        if (op.kind == GRAM) put_norm<consumer>(sums, low, high);
        const float scale = op.kind == GRAM ? inverse_norm(sums) : sqrtf(inverse_norm(sums));
#pragma unroll
        for (float &x : low) x *= scale;
#pragma unroll
        for (float &x : high) x *= scale;
    }
    if (op.kind != TO_T) named_barrier_sync(1, 256);                            // nobody reads S any more, or T
    if (copies && op.copy == RETURN) fence_copies(), load_t(&maps.kept, base);
    if (op.kind == FACTOR) put_rows<consumer, false>(base, low), put_rows<3 - consumer, false>(base, high);
    else if (op.kind != TO_T) put_rows<consumer, true>(base, low), put_rows<3 - consumer, true>(base, high);
    fence_async_proxy();
    named_barrier_sync(1, 256);
    if (copies && op.copy == KEEP) store_t(&maps.kept, base), bulk_commit();
}

// Every second slab of X becomes that of the polynomial times X.
template <int consumer, bool tall> __device__ static inline void
multiply_x(uint32_t base, int slabs, int again, int &iteration) {
    const Pipeline<STAGES> pipe = { base + BARRIERS_AT };
#pragma unroll 1
    for (int i = 0; i < slabs; i++, iteration++) {
        if (i % 2 != consumer) { pipe.skip(iteration); continue; }
        const uint32_t stage = base + STAGES_AT + iteration % STAGES * STAGE;
        float sum[SIDE / 2] = {};
        pipe.wait_full(iteration);
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < SIDE / 16; k16++)
            wgmma<SIDE, tall ? K_MAJOR : MN_MAJOR, K_MAJOR>(sum,
                tall ? descriptor(stage + k16 / 4 * SLAB + k16 % 4 * 32, K_MAJOR)
                     : descriptor(stage + k16 * 2048, MN_MAJOR),
                descriptor(base + k16 / 4 * STAGE + k16 % 4 * 32, K_MAJOR), k16);
        wgmma_commit();
        wgmma_wait<0>();
        pin(sum);
        named_barrier_sync(2 + consumer, 128);                                      // all four warps have read the slab
#pragma unroll
        for (int j = 0; j < 16; j++)
            if (tall) put_16_columns<false>(stage + j / 4 * SLAB + warp_of_four() * (SLAB / 4), j % 4, &sum[j * 8]);
            else put_rows_of_columns<false>(stage, j, &sum[j * 8]);
        fence_async_proxy();
        __syncwarp();
        if (releases()) barrier_arrive(base + READY_AT + Position<STAGES>(again * slabs + i).stage * 8);
    }
}

template <int consumer, bool tall> __device__ static inline void consume(const Maps &maps, uint32_t base,
        unsigned char *generic, int slabs) {
    int iteration = 0;
#pragma unroll 1
    for (int o = 0; o < OPERATIONS; o++)
        if (program[o].kind == APPLY) multiply_x<consumer, tall>(base, slabs, o > AGAIN, iteration);
        else make_matrix<consumer, tall>(o, maps, base, generic, slabs, iteration);
}
#endif

template <bool tall> static __global__ __launch_bounds__(THREADS, 1)
void newton_schulz(const __grid_constant__ Maps maps, int slabs) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    // the swizzle counts from multiples of 1024
    const uint32_t at = shared_address(raw), skip = -at & 1023, base = at + skip;
    if (threadIdx.x == 0) {
        Pipeline<STAGES>{ base + BARRIERS_AT }.init(8);
        barrier_init(base + KEPT_AT, 1);
        for (int i = 0; i < STAGES; i++) barrier_init(base + READY_AT + i * 8, 4 * RELEASING_LANES);
        publish(base + STORED_AT, 0);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x == 0) produce<tall>(maps, base, slabs);
        if (threadIdx.x == 32) store_slabs<tall>(maps, base, slabs);
        return;
    }
    take_registers<232>();
    if (threadIdx.x < 256) consume<0, tall>(maps, base, raw + skip, slabs);
    else consume<1, tall>(maps, base, raw + skip, slabs);
#endif
}

template <bool tall> static bool launch(const MuonBuffers *b, int count, int rows, int columns) {
    const uint64_t k = tall ? columns : rows;
    Maps maps;
    auto map = [&](CUtensorMap *to, const floatX *x, uint64_t height, uint64_t width) {
        return tensor_map(to, x, 2, width, height, count, width, height * width, 64, 64);
    };
    if (!map(&maps.x, b->x, rows, columns) || !map(&maps.out, b->out, rows, columns) || !map(&maps.kept, b->gram, k, k))
        return false;
    auto *const kernel = newton_schulz<tall>;
    LAUNCH(kernel, (unsigned)count, THREADS, BYTES, maps, (int)divide_up(tall ? rows : columns, 64));
    return true;
}
bool hopper_newton_schulz(const MuonBuffers *b, int count, int rows, int columns) {
    const int k = rows < columns ? rows : columns;
    if (context()->arch != 90 || k <= SIDE / 2 || k > SIDE || columns % 8 || k % 8
        || ((uintptr_t)b->x | (uintptr_t)b->out | (uintptr_t)b->gram) % 16) return false;
    return rows > columns ? launch<true>(b, count, rows, columns) : launch<false>(b, count, rows, columns);
}
#endif
