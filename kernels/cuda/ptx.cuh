// ptx.cuh: instructions that C++ has no word for, sm_80 and later (Hopper's own: hopper/).
//
// A tensor core multiplies small matrices whose elements are spread over the 32 lanes of a warp.
// With g = lane / 4, t = lane % 4, and two bf16 in a register (the lower index in the lower half):
//
//     a (16 x 16)  a[0]: row g, columns 2t 2t+1       a[1]: row g+8
//                  a[2]: row g, columns 2t+8 2t+9     a[3]: row g+8, those
//     b (16 x 8)   b[0]: column g, rows 2t 2t+1       b[1]: rows 2t+8 2t+9
//     d (16 x 8)   d[0] d[1]: row g, columns 2t 2t+1  d[2] d[3]: row g+8                (floats)
#pragma once
#include "impl.cuh"

// The address in shared memory, 32 bits, that instructions take.
__device__ static inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
// A number that is the same in all lanes, known as such to the compiler: what depends on it is in
// uniform registers. Tensor cores' kernels have no others to spare; wgmma's descriptors are there.
__device__ static inline int uniform(int x) { return __shfl_sync(ALL, x, 0); }
// Loads four 8 x 8 matrices of 16-bit numbers. Lane l gives the address of row l%8 of matrix l/8:
// 16 aligned bytes. r[i] receives row lane/4, columns 2(lane%4) and 2(lane%4)+1, of matrix i.
__device__ static inline void ldmatrix(uint32_t r[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
// The same, transposed: r[i] receives column lane/4, rows 2(lane%4) and 2(lane%4)+1.
__device__ static inline void ldmatrix_trans(uint32_t r[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
// d += a b. The products are exact; sums are f32.
__device__ static inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// To shared memory, at a multiple of 16 bytes. (The compiler may store words or halves of them.)
__device__ static inline void store_16(void *to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "r"(shared_address(to)), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
// Copies 16 bytes from global to shared memory in the background. Not valid: writes zeros only.
__device__ static inline void cp_async(uint32_t shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared), "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0) : "memory");
}
// Copies since the last commit become a group. Waits for this thread's but the newest `pending`.
__device__ static inline void cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> __device__ static inline void cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}

#define LOG2E 1.44269504f               // e^x = 2^(LOG2E x), and
#define LN2   0.69314718f               // log x = LN2 log2(x)

// 2^x to 22 bits, one instruction.
__device__ static inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1/x to about one unit in the last place, one instruction. A subnormal result becomes 0.
__device__ static inline float inverse_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Two floats rounded to bf16, as a register of an operand: the first in the lower half.
__device__ static inline uint32_t pack_bf16(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// One of two numbers of half precision.
__device__ static inline float unpack_half(uint32_t pair, int which) {
    float x;
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tcvt.f32.f16 %0, low;\n\t}" : "=f"(x)
        : "r"(which ? pair >> 16 : pair));
    return x;
}
// Two e4m3 codes, in the lower half, to half precision: exact.
__device__ static inline uint32_t halves_of_codes(uint32_t two) {
    uint32_t halves;
#if __CUDA_ARCH__ >= 890
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\tcvt.rn.f16x2.e4m3x2 %0, low;\n\t}"
        : "=r"(halves) : "r"(two));
#else                                                       // a half's bias is 8 larger: times 2^8
    const uint32_t upper = __byte_perm(two, 0, 0x1404);
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves)
        : "r"((upper & 0x80008000) | (upper >> 1 & 0x3f803f80)), "r"(0x5c005c00));
#endif
    return halves;
}
// Programmatic dependent launch (sm_90): a kernel launched by LAUNCH_EARLY may begin as soon as all
// blocks of the kernel before it in the stream have called let_next_start or ended. Until it has
// called wait_for_previous it may touch nothing that a kernel writes.
__device__ static inline void let_next_start(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ static inline void wait_for_previous(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// A cluster (sm_90): concurrent blocks that can access each other's shared memory. cluster_wait:
// until all their threads have called cluster_arrive. of_block: `there` in that block.
__device__ static inline void cluster_arrive(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ static inline void cluster_wait(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
template <typename T> __device__ static inline T *of_block(T *there, int rank) {
#if __CUDA_ARCH__ >= 900
    asm("mapa.u64 %0, %0, %1;" : "+l"(there) : "r"(rank));
#endif
    return there;
}
// Named barriers 1..15 of the block (0: __syncthreads): waits for calls by `threads` threads.
__device__ static inline void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
// Starts to load 128 bytes into the L2 cache.
__device__ static inline void prefetch_line(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(p)));
}
// The square root to about one unit in the last place, not rounded exactly.
__device__ static inline float sqrt_approx(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
