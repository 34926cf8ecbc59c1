// hopper/muon.cu: Newton and Schulz's steps for matrices whose smaller side k is at most 256, a block for each matrix.
//
// The polynomial of a step is made of X X^T, which is k x k and symmetric. With k = 256 and bf16 it fits into the block's shared
// memory, 128 KB, and nothing of it ever leaves: a block makes X X^T slab by slab (64 columns of X), squares it, forms the
// polynomial Q, and multiplies X by it, slab by slab again. X travels from the L2 cache twice in a step and back once.
//
//   symmetric    Of X X^T and of its square only blocks of 64 x 64 on and below the diagonal are computed, 10 of 16, and mirrored
//                as they are stored. Rows 64p.. have p + 1 of them; consumer c has p = c and p = 3 - c: five blocks each, 160
//                sums a thread.
//   product      A slab of the result is Q times the same slab of X, so it replaces it, in shared memory and in global memory.
//                A consumer has every second slab. With Q = Q^T it is computed as X^T Q, with 64 columns of X as rows: of all
//                shapes that one reads least shared memory. The transposition back is stmatrix's.
//   norm         |X|^2 is the trace of X X^T. The first step's X is not normalized: its X X^T is divided by the square of the
//                norm, and Q by the norm.
//   order        The product takes slabs in the opposite order of X X^T, so that what was read last is still in the cache, and
//                each step begins 4 slabs further on than the one before, so that it need not wait for stores.
//
// With more rows than columns all this is done with X^T: a slab is then 64 rows of X, and lies the other way in shared memory.
//
// Multiplications of a step, in units of 2 k^2 flop: 10/16 (n + k) + n, of k x n. It reads and writes 6 n k bytes.
#include "gemm.cuh"
#include "muon.cuh"

#if defined(PRECISION_BF16)
enum { SIDE = 256, STAGE = SIDE * 128, STAGES = 3, SQUARE = 4 * STAGE, ORDER_SHIFT = 4 };
enum { STAGES_AT = SQUARE, BARRIERS_AT = STAGES_AT + STAGES * STAGE, SUMS_AT = BARRIERS_AT + STAGES * 16, STORED_AT = SUMS_AT + 32,
       BYTES = STORED_AT + 8 + 1024 };
static_assert(BYTES <= 232448, "what a block can have");

#if defined(HOPPER)
// Which slab is i-th in X X^T of a step; the product takes them from the last to the first.
__device__ static inline int slab_of(int step, int i, int slabs) { return (i + ORDER_SHIFT * step) % slabs; }
// Slabs a consumer has stored so far: told by one thread, asked by the producer.
__device__ static inline void tell(uint32_t address, int count) {
    asm volatile("st.release.cta.shared::cta.b32 [%0], %1;" :: "r"(address), "r"(count) : "memory");
}
__device__ static inline int asked(uint32_t address) {
    int count;
    asm volatile("ld.acquire.cta.shared::cta.b32 %0, [%1];" : "=r"(count) : "r"(address) : "memory");
    return count;
}
// Copies that begin after this see global memory as stores that are done left it.
__device__ static inline void fence_copies(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

// One thread orders all slabs, for two passes a step.
template <bool tall> __device__ static void produce(const CUtensorMap *x_map, const CUtensorMap *out_map, uint32_t base, int slabs) {
    const Pipeline<STAGES> pipe = { base + BARRIERS_AT };
    int turn = 0;
    for (int step = 0; step < MUON_STEPS; step++) {
        const CUtensorMap *map = step ? out_map : x_map;
        for (int i = 0; i < 2 * slabs; i++, turn++) {
            const int slab = slab_of(step, i < slabs ? i : 2 * slabs - 1 - i, slabs);
            if (step && i < slabs) {                                            // where it was in the last product, and whose
                const int place = slabs - 1 - (slab + slabs * ORDER_SHIFT - ORDER_SHIFT * (step - 1) % slabs) % slabs, consumer = place % 2;
                const int count = (step - 1) * ((slabs + 1 - consumer) / 2) + place / 2 + 1;
                while (asked(base + STORED_AT + consumer * 4) < count) {}
                fence_copies();
            }
            const uint32_t to = base + STAGES_AT + turn % STAGES * STAGE;
            pipe.acquire(turn, STAGE);
            if (!tall) bulk_load(to, map, pipe.full(turn), slab * 64, 0, blockIdx.x);
            else for (int c = 0; c < 4; c++) bulk_load(to + c * SLAB, map, pipe.full(turn), c * 64, slab * 64, blockIdx.x);
        }
    }
}

// A symmetric matrix in shared memory: four slabs of 64 columns, each of 256 rows of 128 bytes, swizzled. Its block (p, q); in it
// the 16 rows of this warp.
__device__ static inline uint32_t block_of(uint32_t square, int p, int q) { return square + q * STAGE + p * SLAB; }
__device__ static inline int warp_of_four(void) { return threadIdx.x % 128 / 32; }
// The transpose of put_columns: columns 16j.. become rows 16j.. of 128 bytes, in which this warp has its 16 columns.
__device__ static inline void put_rows_of_columns(uint32_t rows, int j, const float *x) {
    const int lane = threadIdx.x % 32;
    stmatrix_trans(rows + swizzled(j * 16 + lane / 16 * 8 + lane % 8, warp_of_four() * 2 + lane / 8 % 2), pack_bf16(x[0], x[1]),
                   pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
// Of sums 8j .. 8j+7 of a block on the diagonal, is the i-th on its diagonal?
__device__ static inline bool diagonal(int j, int i) {
    const int lane = threadIdx.x % 32, row = warp_of_four() * 16 + lane / 4 + i / 2 % 2 * 8, column = 16 * j + i / 4 * 8 + lane % 4 * 2 + i % 2;
    return row == column;
}

// x: rows 64p.. of the symmetric matrix, p + 1 blocks.
template <int p> __device__ static inline void put_rows(uint32_t square, const float (&x)[32 * (p + 1)]) {
#pragma unroll
    for (int q = 0; q <= p; q++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            put_columns(block_of(square, p, q) + warp_of_four() * (SLAB / 4), j, &x[q * 32 + j * 8]);
            if (q < p) put_rows_of_columns(block_of(square, q, p), j, &x[q * 32 + j * 8]);
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
// x, which is of the square, becomes scale (a I + b gram + c x).
template <int p> __device__ static inline void polynomial(uint32_t gram, float (&x)[32 * (p + 1)], float scale) {
    const float a = scale * 3.4445f, b = scale * -4.7750f, c = scale * 2.0315f;
#pragma unroll
    for (int q = 0; q <= p; q++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t g[4];
            const int lane = threadIdx.x % 32;
            ldmatrix(g, block_of(gram, p, q) + warp_of_four() * (SLAB / 4) + swizzled(lane % 16, 2 * j + lane / 16));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float &y = x[q * 32 + j * 8 + i];
                y = c * y + b * unpack_bf16(g[i / 2], i % 2) + (q == p && diagonal(j, i) ? a : 0);
            }
        }
}

// Both of a consumer's rows of blocks += the products of 16 of k. at: where block 0 lies.
template <int consumer, Major major> __device__ static inline void multiply_rows(float (&low)[32 * (consumer + 1)],
        float (&high)[32 * (4 - consumer)], uint32_t at, int accumulate) {
    const uint64_t right = descriptor(at, major);
    wgmma<64 * (consumer + 1), major, major>(low, descriptor(at + consumer * SLAB, major), right, accumulate);
    wgmma<64 * (4 - consumer), major, major>(high, descriptor(at + (3 - consumer) * SLAB, major), right, accumulate);
}

// The polynomial of a step, from slabs of X to shared memory.
template <int consumer, bool tall> __device__ static inline void form_polynomial(uint32_t base, unsigned char *generic, int slabs,
        int step, int &turn) {
    const Pipeline<STAGES> pipe = { base + BARRIERS_AT };
    float low[32 * (consumer + 1)] = {}, high[32 * (4 - consumer)] = {}, scale = 1;     // set: else they would be kept from step to step
    for (int i = 0; i < slabs; i++, turn++) {
        pipe.wait_full(turn);
        pin(low), pin(high);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < 4; k16++)
            multiply_rows<consumer, tall ? MN_MAJOR : K_MAJOR>(low, high, base + STAGES_AT + turn % STAGES * STAGE + k16 * (tall ? 2048 : 32), i | k16);
        wgmma_commit();
        wgmma_wait<1>();
        if (i) pipe.release(turn - 1);
    }
    wgmma_wait<0>();
    pin(low), pin(high);
    pipe.release(turn - 1);
    if (step == 0) {                                                            // divide by the norm
        float *const sums = (float *)(generic + SUMS_AT), sum = warp_sum(trace<consumer>(low) + trace<3 - consumer>(high));
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32 - 4] = sum;
        named_barrier_sync(1, 256);
        float norm = 0;
        for (int i = 0; i < 8; i++) norm += sums[i];
        const float shrink = norm > 0 ? 1 / norm : 0;
        scale = sqrtf(shrink);
#pragma unroll
        for (float &x : low) x *= shrink;
#pragma unroll
        for (float &x : high) x *= shrink;
    } else named_barrier_sync(1, 256);                                                        // nobody reads the last polynomial any more
    put_rows<consumer>(base, low), put_rows<3 - consumer>(base, high);
    fence_async_proxy();
    named_barrier_sync(1, 256);
    pin(low), pin(high);
    wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < 16; k16++)
        multiply_rows<consumer, K_MAJOR>(low, high, base + k16 / 4 * STAGE + k16 % 4 * 32, k16);
    wgmma_commit();
    wgmma_wait<0>();
    pin(low), pin(high);
    polynomial<consumer>(base, low, scale), polynomial<3 - consumer>(base, high, scale);
    named_barrier_sync(1, 256);                                                               // all have read X X^T
    put_rows<consumer>(base, low), put_rows<3 - consumer>(base, high);
    fence_async_proxy();
    named_barrier_sync(1, 256);
}

// Every second slab of X becomes that of the polynomial times X.
template <int consumer, bool tall> __device__ static inline void apply_polynomial(const CUtensorMap *out_map, uint32_t base, int slabs,
        int step, int &turn, int &stored) {
    const Pipeline<STAGES> pipe = { base + BARRIERS_AT };
    const bool first = threadIdx.x % 128 == 0;
    for (int i = 0; i < slabs; i++, turn++) {
        if (i % 2 != consumer) { pipe.skip(turn); continue; }
        const uint32_t stage = base + STAGES_AT + turn % STAGES * STAGE;
        const int slab = slab_of(step, slabs - 1 - i, slabs);
        float sum[SIDE / 2] = {};
        pipe.wait_full(turn);
        pin(sum);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < SIDE / 16; k16++)
            wgmma<SIDE, tall ? K_MAJOR : MN_MAJOR, K_MAJOR>(sum,
                tall ? descriptor(stage + k16 / 4 * SLAB + k16 % 4 * 32, K_MAJOR) : descriptor(stage + k16 * 2048, MN_MAJOR),
                descriptor(base + k16 / 4 * STAGE + k16 % 4 * 32, K_MAJOR), k16);
        wgmma_commit();
        wgmma_wait<0>();
        pin(sum);
        if (first) bulk_wait<0>(), fence_copies(), tell(base + STORED_AT + consumer * 4, stored);
        named_barrier_sync(2 + consumer, 128);                                                // all four warps have read the slab
#pragma unroll
        for (int j = 0; j < 16; j++)
            if (tall) put_columns(stage + j / 4 * SLAB + warp_of_four() * (SLAB / 4), j % 4, &sum[j * 8]);
            else put_rows_of_columns(stage, j, &sum[j * 8]);
        fence_async_proxy();
        named_barrier_sync(2 + consumer, 128);
        if (first) {
            if (!tall) bulk_store(out_map, stage, slab * 64, 0, blockIdx.x);
            else for (int c = 0; c < 4; c++) bulk_store(out_map, stage + c * SLAB, c * 64, slab * 64, blockIdx.x);
            bulk_commit();
            bulk_wait_read<0>();
        }
        stored++;
        pipe.release(turn);
    }
    if (first) bulk_wait<0>(), fence_copies(), tell(base + STORED_AT + consumer * 4, stored);
}

template <int consumer, bool tall> __device__ static inline void consume(const CUtensorMap *out_map, uint32_t base, unsigned char *generic,
        int slabs) {
    int turn = 0, stored = 0;
    for (int step = 0; step < MUON_STEPS; step++) {
        form_polynomial<consumer, tall>(base, generic, slabs, step, turn);
        apply_polynomial<consumer, tall>(out_map, base, slabs, step, turn, stored);
    }
}
#endif

template <bool tall> static __global__ __launch_bounds__(THREADS, 1)
void newton_schulz(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap out_map, int slabs) {
#if defined(HOPPER)
    extern __shared__ unsigned char raw[];
    const uint32_t at = shared_address(raw), skip = -at & 1023, base = at + skip;   // the swizzle counts from multiples of 1024
    if (threadIdx.x == 0) {
        Pipeline<STAGES>{ base + BARRIERS_AT }.init(8);
        for (int i = 0; i < 2; i++) tell(base + STORED_AT + i * 4, 0);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x == 0) produce<tall>(&x_map, &out_map, base, slabs);
        return;
    }
    take_registers<232>();
    if (threadIdx.x < 256) consume<0, tall>(&out_map, base, raw + skip, slabs);
    else consume<1, tall>(&out_map, base, raw + skip, slabs);
#endif
}

template <bool tall> static bool launch(floatX *out, const floatX *x, int count, int rows, int columns) {
    const uint64_t n = (uint64_t)rows * columns;
    const int box = tall ? 64 : SIDE;
    CUtensorMap x_map, out_map;
    if (!tensor_map(&x_map, x, 2, columns, rows, count, columns, n, 64, box)
        || !tensor_map(&out_map, out, 2, columns, rows, count, columns, n, 64, box)) return false;
    auto *const kernel = newton_schulz<tall>;
    allow_shared((const void *)kernel, BYTES);
    LAUNCH(kernel, (unsigned)count, THREADS, BYTES, x_map, out_map, (int)divide_up(tall ? rows : columns, 64));
    return true;
}
bool hopper_newton_schulz(floatX *out, const floatX *x, int count, int rows, int columns) {
    const int k = rows < columns ? rows : columns;
    if (context()->arch != 90 || k <= SIDE / 2 || k > SIDE || columns % 8 || ((uintptr_t)x | (uintptr_t)out) % 16) return false;
    return rows > columns ? launch<true>(out, x, count, rows, columns) : launch<false>(out, x, count, rows, columns);
}
#endif
