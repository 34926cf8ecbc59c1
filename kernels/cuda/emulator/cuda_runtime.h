/* cuda_runtime.h: CUDA's language and runtime on a CPU, as far as kernels/cuda uses them, so that
 * its kernels can be tested without a GPU (tests/emulate.sh). A block's threads are fibers of one
 * host thread, resumed warp by warp in random order; blocks run one after the other. What runs in
 * the background on a GPU, copies and wgmma, happens here at a random time before it is waited for.
 * So a missing wait shows in the results, of some seed. Not modelled: caches, the proxies that
 * fences order, clusters, time. */
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <functional>

/* ---- the language ---------------------------------------------------------------------------- */

#define __device__
#define __host__
#define __global__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1

struct dim3 {
    unsigned x, y, z;
    dim3(size_t a = 1, size_t b = 1, size_t c = 1) : x((unsigned)a), y((unsigned)b), z((unsigned)c) {}
};
struct uint3 { unsigned x, y, z; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline int4 make_int4(int x, int y, int z, int w) { return { x, y, z, w }; }

using std::min;
using std::max;
static inline size_t min(size_t a, int b) { return min(a, (size_t)b); }
static inline size_t min(int a, size_t b) { return min((size_t)a, b); }
static inline size_t min(size_t a, unsigned b) { return min(a, (size_t)b); }
static inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
static inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
static inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }

/* emulator.cpp */
namespace emulator {
struct State { uint3 thread, block; dim3 grid, dim; int id; };      /* id: of the thread in its block */
extern State now;
extern unsigned char shared[];                                      /* the block's dynamic shared memory */
void launch(dim3 grid, dim3 block, size_t bytes, std::function<void(void)> kernel);
void yield(void);
void barrier(int id, int threads);                                  /* 0: all threads that have not ended */
/* All lanes of a warp that have not ended take part; then f is called once, with what each has
 * given, NULL for those that have ended. */
void collective(const void *mine, int kind, const std::function<void(const void **)> &f);
}
/* kinds: lanes that meet at two are a defect */
enum { SHUFFLE, REDUCE, LDMATRIX, LDMATRIX_TRANS, STMATRIX, STMATRIX_TRANS, MMA };
#define threadIdx (emulator::now.thread)
#define blockIdx  (emulator::now.block)
#define blockDim  (emulator::now.dim)
#define gridDim   (emulator::now.grid)
#define __expf expf

static inline void __syncthreads(void) { emulator::barrier(0, 0); }
static inline void __threadfence(void) {}
template <class T> static inline T __ldcg(const T *p) { return *p; }

template <class T> static inline T from_lane(T x, int lane) {
    struct Part { T x, *to; int from; } mine = { x, &x, lane };
    emulator::collective(&mine, SHUFFLE, [](const void **all) {
        T value[32] = {};
        for (int i = 0; i < 32; i++) if (all[i]) value[i] = ((const Part *)all[i])->x;
        for (int i = 0; i < 32; i++) if (all[i]) *((const Part *)all[i])->to = value[((const Part *)all[i])->from];
    });
    return x;
}
static inline int own_lane(void) { return emulator::now.id % 32; }
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int mask) { return from_lane(x, own_lane() ^ mask); }
template <class T> static inline T __shfl_sync(unsigned, T x, int lane, int width = 32) {
    return from_lane(x, (own_lane() & ~(width - 1)) | (lane & (width - 1)));
}
template <class T> static inline T __shfl_up_sync(unsigned, T x, int by) {
    return from_lane(x, own_lane() < by ? own_lane() : own_lane() - by);
}
template <class T> static inline T __shfl_down_sync(unsigned, T x, int by) {
    return from_lane(x, own_lane() + by > 31 ? own_lane() : own_lane() + by);
}
static inline void __syncwarp(void) { from_lane(0, 0); }

template <class T, class F> static inline T of_all_lanes(T x, F f) {
    struct Part { T x, *to; } mine = { x, &x };
    emulator::collective(&mine, REDUCE, [&](const void **all) {
        bool any = false;
        T sum = {};
        for (int i = 0; i < 32; i++)
            if (all[i]) sum = any ? f(sum, ((const Part *)all[i])->x) : ((const Part *)all[i])->x, any = true;
        for (int i = 0; i < 32; i++) if (all[i]) *((const Part *)all[i])->to = sum;
    });
    return x;
}
template <class T> static inline T __reduce_max_sync(unsigned, T x) {
    return of_all_lanes(x, [](T a, T b) { return max(a, b); });
}
template <class T> static inline T __reduce_min_sync(unsigned, T x) {
    return of_all_lanes(x, [](T a, T b) { return min(a, b); });
}
template <class T> static inline T __reduce_add_sync(unsigned, T x) {
    return of_all_lanes(x, [](T a, T b) { return a + b; });
}
static inline unsigned __ballot_sync(unsigned, bool yes) {
    return of_all_lanes(yes ? 1u << own_lane() : 0u, [](unsigned a, unsigned b) { return a | b; });
}
static inline bool __any_sync(unsigned mask, bool yes) { return __ballot_sync(mask, yes) != 0; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(bytes >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
    return r;
}
template <class T> static inline void __stcs(T *p, T x) { *p = x; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, sizeof u); return u; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, sizeof x); return x; }
template <class T, class U> static inline T atomicAdd(T *p, U x) { const T old = *p; *p = old + (T)x; return old; }
static inline unsigned atomicInc(unsigned *p, unsigned last) {
    const unsigned old = *p;
    *p = old >= last ? 0 : old + 1;
    return old;
}

/* ---- the runtime: what is queued is done at once --------------------------------------------- */

typedef int cudaStream_t, cudaEvent_t;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorStreamCaptureUnsupported };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaEventDisableTiming, cudaStreamNonBlocking,
       cudaHostRegisterDefault };
struct cudaPointerAttributes { int device; };
static inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }
template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes) {
    *(void **)p = aligned_alloc(256, (bytes + 511) / 256 * 256);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
template <class T> static inline cudaError_t cudaMallocHost(T **p, size_t bytes) { return cudaMalloc(p, bytes); }
static inline cudaError_t cudaHostRegister(void *, size_t, int) { return cudaSuccess; }
static inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *) {
    a->device = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static inline cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }
static inline cudaError_t cudaFree(void *p) { free(p); return cudaSuccess; }
static inline cudaError_t cudaFreeHost(void *p) { free(p); return cudaSuccess; }
static inline cudaError_t cudaMemGetInfo(size_t *available, size_t *all) {
    *available = *all = (size_t)4 << 30;
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t) {
    memset(p, byte, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, cudaStream_t) {
    memmove(to, from, bytes);
    return cudaSuccess;
}
template <class Kernel> static inline cudaError_t cudaFuncSetAttribute(Kernel, int, int) { return cudaSuccess; }
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, int) { *s = 1; return cudaSuccess; }
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, int) { return cudaSuccess; }
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, int) { *e = 1; return cudaSuccess; }
static inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
