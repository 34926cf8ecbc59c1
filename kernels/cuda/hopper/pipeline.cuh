// hopper.cuh: instructions and services of Hopper (sm_90a) that C++ has no word for, one function each. Kernels that use
// them guard their bodies with HOPPER, so that the files compile for every architecture.
//
// What is new since Ampere, in the order in which a kernel meets it:
//
//   bulk copies     One thread orders a whole box of a matrix: "columns x.. of rows y.. of this map to shared memory". The
//                   map (CUtensorMap, made on the host) knows the matrix; what lies outside of it arrives as zeros, or is
//                   not stored. The copy engine swizzles: 16-byte chunk c of row r of 128 bytes goes to place c ^ r%8.
//   barriers        An mbarrier in shared memory counts arrivals and bytes under way; a phase ends when all that was
//                   announced is there. Waiting names the parity of the phase: 0 for the first, 1 for the second, 0, ...
//   wgmma           Four warps, a warpgroup, multiply 64 x 16 by 16 x N at once, the operands read from shared memory by
//                   descriptor (the first also from registers), the sums in registers; it runs in the background.
//   setmaxnreg      Warpgroups of a block trade registers: who only orders copies gives, who holds sums takes.
#pragma once
#include "kernels/cuda/ptx.cuh"
#include <cuda.h>                                   // the types of tensor maps; nothing of the driver is linked

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER
#endif

// A map of a row-major bf16 matrix or stack of them: `columns` x `rows` x `planes`, rows `pitch` elements apart, planes
// `plane` elements; copies move boxes of box_columns (64: 128 swizzled bytes) x box_rows. Address and pitches are multiples
// of 16 bytes. Floats: box_columns 32, element size 4. False: the driver has no such thing.
bool tensor_map(CUtensorMap *map, const void *base, int element_size, uint64_t columns, uint64_t rows, uint64_t planes,
                uint64_t pitch, uint64_t plane, int box_columns, int box_rows);
// The same for any rank up to 5: extents and box innermost first; pitch[i] elements from one to the next of dimension i + 1.
bool tensor_map_of(CUtensorMap *map, const void *base, int element_size, int rank, const uint64_t *extent,
                   const uint64_t *pitch, const uint32_t *box);

#if defined(HOPPER)

// ---- barriers in shared memory ------------------------------------------------------------------------------------------

__device__ static inline void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
// After barrier_init and before others see the barriers: also for the copy engine.
__device__ static inline void barrier_init_done(void) {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async;" ::: "memory");
}
__device__ static inline void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
// One arrival, which also announces `bytes` that bulk copies will bring.
__device__ static inline void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
// One arrival of this thread when all its cp.async so far have landed.
__device__ static inline void barrier_arrive_copied(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
}
__device__ static inline void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n\t.reg .pred done;\n"
                 "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra.uni again;\n\t}"
                 :: "r"(barrier), "r"(parity) : "memory");
}

// Lanes that say so when their warp has read a buffer. After __syncwarp one is enough; but compute-sanitizer's racecheck does not
// see that the reads of the others come before its arrival, so in what racecheck runs all lanes arrive.
#if defined(RACECHECK)
enum { SPEAKERS = 32 };
#else
enum { SPEAKERS = 1 };
#endif
__device__ static inline bool speaks(void) { return threadIdx.x % 32 < SPEAKERS; }

// A ring of buffers, used in turns: turn t is in buffer t % STAGES. Each has a barrier "full", at which a producer and its
// copies arrive, and one "empty", at which a lane of every consumer warp does.
template <int STAGES> struct Ring {
    uint32_t barriers;
    __device__ uint32_t full(int turn) const { return barriers + turn % STAGES * 8; }
    __device__ uint32_t empty(int turn) const { return full(turn) + STAGES * 8; }
    __device__ void open(int warps) const {
        for (int i = 0; i < STAGES; i++) barrier_init(full(i), 1), barrier_init(empty(i), warps * SPEAKERS);
    }
    __device__ void await(int turn) const { barrier_wait(full(turn), turn / STAGES & 1); }
    // One lane speaks for its warp, after all have read what they wanted.
    __device__ void release(int turn) const { __syncwarp(); if (speaks()) barrier_arrive(empty(turn)); }
    __device__ void await_empty(int turn) const { barrier_wait(empty(turn), turn / STAGES & 1 ^ 1); }
    __device__ void expect(int turn, int bytes) const { await_empty(turn), barrier_expect(full(turn), bytes); }
    __device__ void pass(int turn) const { await(turn), release(turn); }           // not needed by this warp
};

// ---- bulk copies: a box at (column, row, plane) of a map ------------------------------------------------------------------

__device__ static inline void bulk_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int row, int plane) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(plane) : "memory");
}
__device__ static inline void bulk_store(const CUtensorMap *map, uint32_t from, int column, int row, int plane) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :: "l"(map), "r"(from), "r"(column), "r"(row), "r"(plane) : "memory");
}
// Of a map of rank 5. `at`: the other coordinates.
__device__ static inline void bulk_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int4 at) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(column), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w) : "memory");
}
__device__ static inline void bulk_store(const CUtensorMap *map, uint32_t from, int column, int4 at) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
                 :: "l"(map), "r"(from), "r"(column), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w) : "memory");
}
// No box: bytes that lie one after the other, a multiple of 16.
__device__ static inline void bulk_load(uint32_t to, const void *from, uint32_t barrier, int bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
}
// The memory's own value plus ours, added where it lies.
__device__ static inline void bulk_add(const CUtensorMap *map, uint32_t from, int column, int row, int plane) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :: "l"(map), "r"(from), "r"(column), "r"(row), "r"(plane) : "memory");
}
__device__ static inline void bulk_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but the newest `pending` groups of stores have read their shared memory, or are done altogether.
template <int pending> __device__ static inline void bulk_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(pending) : "memory");
}
template <int pending> __device__ static inline void bulk_wait(void) {
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(pending) : "memory");
}
// What this thread wrote to shared memory is seen by bulk copies and wgmma that come after the next barrier.
__device__ static inline void publish(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit numbers from registers to shared memory: the mirror of ldmatrix.
__device__ static inline void stmatrix(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// The same, each matrix transposed on the way.
__device__ static inline void stmatrix_trans(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// 16 bytes, or four floats, at an address of shared memory.
__device__ static inline void load_shared(uint32_t (&x)[4], uint32_t address) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}
__device__ static inline Vec load_shared(uint32_t address) {
    union { uint32_t bits[4]; Vec vec; } x;
    load_shared(x.bits, address);
    return x.vec;
}
// The same to global memory. Left to itself, the compiler may take four instructions.
__device__ static inline void store_global(void *to, const uint32_t (&x)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "l"(__cvta_generic_to_global(to)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
__device__ static inline float4 load_shared_floats(uint32_t address) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address) : "memory");
    return x;
}

// ---- registers --------------------------------------------------------------------------------------------------------------

template <int count> __device__ static inline void take_registers(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(count));
}
template <int count> __device__ static inline void give_registers(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(count));
}

// ---- wgmma: d (64 x N) += a (64 x 16) b (16 x N) ----------------------------------------------------------------------------
//
// In shared memory an operand is a tile of rows of 128 bytes, swizzled as bulk copies leave it, at a multiple of 1024 bytes.
//   along k   a row is one m (or n), its 64 numbers are 64 of k. The next 16 of k: 32 bytes on.
//   across    a row is one k, its 64 numbers are 64 of m (or n); more than 64 lie in further such slabs, `slab`
//             bytes apart (8192 if they have 64 of k). The next 16 of k: 2048 bytes on. The instruction transposes.
// The sums of thread t of the warpgroup, with w = t/32, g = t%32/4, q = t%4:  d[4j + 2h + c] is row 16w + g + 8h, column
// 8j + 2q + c.
__device__ static inline uint64_t operand(uint32_t address, bool along, int slab = 8192) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(along ? 1 : slab >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
// The same, `bytes` further on.
__device__ static inline uint64_t further(uint64_t operand, int bytes) {
    return operand >> 32 << 32 | ((uint32_t)operand + (uint32_t)(bytes >> 4));
}
// Before the first wgmma after registers of d (or of a) were touched.
__device__ static inline void wgmma_fence(void)  { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ static inline void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> __device__ static inline void wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending) : "memory");
}
// Tells the compiler that wgmma owns these registers from here on.
template <int count> __device__ static inline void pin(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}
template <int count> __device__ static inline void pin(uint32_t (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+r"(d[i]) :: "memory");
}

#define TEN(a) ",%" #a "0,%" #a "1,%" #a "2,%" #a "3,%" #a "4,%" #a "5,%" #a "6,%" #a "7,%" #a "8,%" #a "9"
#define ONES "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9"
#define LIST32  ONES TEN(1) TEN(2) ",%30,%31"
#define LIST64  ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) ",%60,%61,%62,%63"
#define LIST96  ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) ",%90,%91,%92,%93,%94,%95"
#define LIST128 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
                ",%120,%121,%122,%123,%124,%125,%126,%127"
#define F8(i)  "+f"(d[i]), "+f"(d[i+1]), "+f"(d[i+2]), "+f"(d[i+3]), "+f"(d[i+4]), "+f"(d[i+5]), "+f"(d[i+6]), "+f"(d[i+7])
#define F32(i) F8(i), F8(i+8), F8(i+16), F8(i+24)
#define F64  F32(0), F32(32)
#define F96  F64, F32(64)
#define F128 F96, F32(96)
#define WGMMA(n, list, registers, a, b, add, ta, tb) \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add ", 0;\n\t" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list "}, " a ", " b ", p, 1, 1, " ta ", " tb ";\n\t}" \
                 : registers : "l"(x), "l"(y), "r"(accumulate), "n"(x_across), "n"(y_across))

// accumulate 0: d = a b.  across: how a and b lie (above).
template <int N, int x_across, int y_across>
__device__ static inline void wgmma(float (&d)[N / 2], uint64_t x, uint64_t y, int accumulate) {
    static_assert(N == 64 || N == 128 || N == 192 || N == 256, "one of these");
    if constexpr (N == 64)  WGMMA(64,  LIST32,  F32(0), "%32", "%33", "%34", "%35", "%36");
    if constexpr (N == 128) WGMMA(128, LIST64,  F64, "%64", "%65", "%66", "%67", "%68");
    if constexpr (N == 192) WGMMA(192, LIST96,  F96, "%96", "%97", "%98", "%99", "%100");
    if constexpr (N == 256) WGMMA(256, LIST128, F128,
                                  "%128", "%129", "%130", "%131", "%132");
}

// The first factor from registers: x[0..3] are, of rows as those of d, columns 2q + {0,1} of row g, of row g + 8, and 8 columns
// on. So sums of 16 columns, rounded by pairs as they lie, are a factor again.
#define WGMMA_REGISTERS(n, list, registers, a, b, add, tb) \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add ", 0;\n\t" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list "}, {" a "}, " b ", p, 1, 1, " tb ";\n\t}" \
                 : registers : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"(accumulate), "n"(y_across))
template <int N, int y_across>
__device__ static inline void wgmma(float (&d)[N / 2], const uint32_t *x, uint64_t y, int accumulate) {
    static_assert(N == 64 || N == 128, "one of these");
    if constexpr (N == 64)  WGMMA_REGISTERS(64,  LIST32, F32(0), "%32, %33, %34, %35", "%36", "%37", "%38");
    if constexpr (N == 128) WGMMA_REGISTERS(128, LIST64, F64, "%64, %65, %66, %67", "%68", "%69", "%70");
}
#endif
