// wgmma.cuh: Hopper's matrix instruction (sm_90a), the layout of its operands in shared memory, and
// the instructions that move its results there. Users guard bodies by HOPPER (pipeline.cuh).
//
// Four warps, a warpgroup, compute d (64 x N) += a (64 x 16) b (16 x N) in the background. Both
// operands are read from shared memory by descriptor, or a from registers; d is in registers.
//
// In shared memory an operand is a tile of rows of 128 bytes at a multiple of 1024 bytes, swizzled
// as bulk copies leave it: 16-byte chunk c of row r is stored as chunk c ^ r%8. A row is 64
// consecutive elements, either of k or of m (n):
//   K_MAJOR   one row for each m (n), 64 of k in it. The next 16 of k are 32 bytes further.
//   MN_MAJOR  one row for each k, 64 of m (n) in it; the instruction transposes. The next 16 of k
//             are 2048 bytes further, the next 64 of m (n) a slab: 8192 bytes if it has 64 of k.
//
// Registers: with w = t/32, g = t%32/4 and q = t%4 of thread t of the warpgroup, d[4j + 2h + c] is
// row 16w + g + 8h, column 8j + 2q + c. As an operand, a[0..3] are columns 2q + {0,1} of row g, of
// row g + 8, and the same 8 columns further: 16 columns of results, packed, are an a again.
#pragma once
#include "pipeline.cuh"

#if defined(HOPPER)

// Byte offset of 16-byte chunk `chunk` of row `row` in a swizzled tile.
__device__ static inline uint32_t swizzled(int row, int chunk) { return row * 128 + ((chunk ^ row % 8) << 4); }
enum Major { K_MAJOR, MN_MAJOR };                   // the instruction's operands trans-a and trans-b

// The operand's tile at `address`. slab: of MN_MAJOR, bytes from 64 of m (n) to the next. Fields:
// address, leading offset (not K_MAJOR's), stride from 8 rows to the next 8, swizzle of 128 bytes.
__device__ static inline uint64_t descriptor(uint32_t address, Major major, int slab = 8192) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(major == K_MAJOR ? 1 : slab >> 4) << 16
        | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
// The same, `bytes` further.
__device__ static inline uint64_t advance(uint64_t descriptor, int bytes) {
    return descriptor >> 32 << 32 | ((uint32_t)descriptor + (uint32_t)(bytes >> 4));
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
#define F8(i)  "+f"(d[i]), "+f"(d[i+1]), "+f"(d[i+2]), "+f"(d[i+3]), "+f"(d[i+4]), "+f"(d[i+5]), "+f"(d[i+6]), \
    "+f"(d[i+7])
#define F32(i) F8(i), F8(i+8), F8(i+16), F8(i+24)
#define F64  F32(0), F32(32)
#define F96  F64, F32(64)
#define F128 F96, F32(96)
#define WGMMA_OF(type, n, list, a, b, add, ta, tb) \
    "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add ", 0;\n\t" \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, " a ", " b ", p, 1, 1, " \
    ta ", " tb ";\n\t}"
#define WGMMA(n, list, registers, a, b, add, ta, tb) do { \
    if constexpr (half) asm volatile(WGMMA_OF("f16", n, list, a, b, add, ta, tb) \
                                     : registers : "l"(x), "l"(y), "r"(accumulate), "n"((int)x_major), \
                                     "n"((int)y_major)); \
    else asm volatile(WGMMA_OF("bf16", n, list, a, b, add, ta, tb) \
                      : registers : "l"(x), "l"(y), "r"(accumulate), "n"((int)x_major), "n"((int)y_major)); \
} while (0)

// accumulate 0: d = x y. half: half precision, 11 bits and small exponents, instead of bf16.
template <int N, Major x_major, Major y_major, bool half = false>
__device__ static inline void wgmma(float (&d)[N / 2], uint64_t x, uint64_t y, int accumulate) {
    static_assert(N == 64 || N == 128 || N == 192 || N == 256, "one of these");
    if constexpr (N == 64)  WGMMA(64,  LIST32,  F32(0), "%32", "%33", "%34", "%35", "%36");
    if constexpr (N == 128) WGMMA(128, LIST64,  F64, "%64", "%65", "%66", "%67", "%68");
    if constexpr (N == 192) WGMMA(192, LIST96,  F96, "%96", "%97", "%98", "%99", "%100");
    if constexpr (N == 256) WGMMA(256, LIST128, F128, "%128", "%129", "%130", "%131", "%132");
}

// The first operand from registers, x[0..3].
#define WGMMA_REGISTERS(n, list, registers, a, b, add, tb) \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add ", 0;\n\t" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list "}, {" a "}, " \
                 b ", p, 1, 1, " tb ";\n\t}" \
                 : registers : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"(accumulate), "n"((int)y_major))
template <int N, Major y_major>
__device__ static inline void wgmma(float (&d)[N / 2], const uint32_t *x, uint64_t y, int accumulate) {
    static_assert(N == 64 || N == 128, "one of these");
    if constexpr (N == 64)  WGMMA_REGISTERS(64,  LIST32, F32(0), "%32, %33, %34, %35", "%36", "%37", "%38");
    if constexpr (N == 128) WGMMA_REGISTERS(128, LIST64, F64, "%64, %65, %66, %67", "%68", "%69", "%70");
}

// ---- registers and shared memory ----------------------------------------------------------------

// Four 8 x 8 matrices of 16-bit numbers from registers to shared memory: ldmatrix reversed.
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
__device__ static inline float4 load_shared_floats(uint32_t address) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address)
                 : "memory");
    return x;
}
// 16 bytes to global memory. Without this the compiler may use four stores.
__device__ static inline void store_global(void *to, const uint32_t (&x)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "l"(__cvta_generic_to_global(to)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
#endif
