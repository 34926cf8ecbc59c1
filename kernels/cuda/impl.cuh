// impl.cuh: included first by every file of kernels/cuda/. Each file is compiled once per number type (context.cu
// once). Only the CUDA runtime: cub, thrust and cooperative groups cost seconds of compile time per file.
//
// Values are computed as real (float) and stored as floatX: R(x) reads one, X(r) makes one, rounding to nearest even.
#pragma once
#define KERNELS_IMPLEMENTATION
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(PRECISION_BF16)
typedef __nv_bfloat16 floatX;
#define DEVICE(part) cuda_bf16_##part
#define DEVICE_NAME "cuda-bf16"
#define DEVICE_DTYPE "BF16"
#else
typedef float floatX;
#define DEVICE(part) cuda_f32_##part
#define DEVICE_NAME "cuda-f32"
#define DEVICE_DTYPE "F32"
#endif
typedef float real;
extern "C" {
#include "kernels/kernels.h"
}

// What a host thread that drives a GPU owns. One thread, one GPU, one stream; nothing is shared between threads.
typedef struct {
    int   device, sm_count, arch;       // arch: 80, 90, ...
    int   max_shared;                   // bytes of shared memory that a block can opt in to
    cudaStream_t stream;                // everything is queued here, in order
    void  *workspace;                   // scratch of `workspace_bytes`, for kernels that need it within one call
    size_t workspace_bytes;
    unsigned *work_counter;             // from which blocks draw work (hopper/pipeline.cuh), zero between kernels
    Waits  waited;                      // by this thread
    bool   connected;                   // to other ranks, by NCCL
    int    recordings;                  // that exist, and may use the workspace as it was when they were made
    bool   recording;                   // what is queued is recorded, not done
    cudaError_t spoiled;                // what could not be recorded, if anything
} Context;
Context *context(void);                 // of this thread; opened by cuda_open
void    *workspace(size_t bytes);       // at least so many bytes, valid until the next call of an operation;
                                        // does not grow while work is recorded
const char *cuda_open(int which);       // NULL if this build can use that GPU, else why not
int      cuda_count(void);
Comm    *cuda_connect(Group *group, char why[256]);     // nccl.cu

// Waiting for the stream: all of it is here, and counted.
void  cuda_sync(void);
void  cuda_read(void *host, const void *src, size_t bytes);
Waits cuda_waits(void);
void  cuda_doing(const char *what);     // for messages: declared in kernels.h

void  DEVICE(upload)(void *dst, const void *host, size_t bytes);       // device.cu

// Moments in the stream, by events: declared in kernels.h.
void   cuda_mark(int i);
double cuda_elapsed(int from, int to);

// Recording by stream capture (context.cu); declared in kernels.h.
const char *cuda_record_begin(void);
Recording  *cuda_record_end(const char **why);
void        cuda_replay(const Recording *r);
void        cuda_record_free(Recording *r);

// Ends the program with the first error seen: what the program was doing, file, line, what was called, the build's
// architectures and the GPU's.
[[noreturn]] void cuda_fail(const char *file, int line, const char *what, cudaError_t error);
// Likewise, except that what cannot be recorded only spoils the recording.
void cuda_check(const char *file, int line, const char *what, cudaError_t error);
#define CUDA_CHECK(call) do { \
    cudaError_t e_ = (call); \
    if (e_ != cudaSuccess) cuda_check(__FILE__, __LINE__, #call, e_); \
    } while (0)

// LAUNCH(kernel, grid, block, shared bytes, arguments...). A grid of 0 blocks is nothing to do.
#define LAUNCH(kernel, grid, block, shared, ...) do { \
    dim3 grid_ = dim3(grid); \
    if (grid_.x && grid_.y && grid_.z) { \
        kernel<<<grid_, (block), (shared), context()->stream>>>(__VA_ARGS__); \
        const cudaError_t e_ = cudaGetLastError(); \
        if (e_ != cudaSuccess) cuda_check(__FILE__, __LINE__, __func__, e_); \
    } } while (0)

// The same for a kernel that begins before the one before it has ended (ptx.cuh, let_next_start). Where the GPU cannot do
// that, it begins after.
#define LAUNCH_EARLY(kernel, grid, block, shared, ...) LAUNCH_CLUSTER(kernel, grid, 1, block, shared, __VA_ARGS__)
// And in clusters of so many blocks (ptx.cuh, cluster_arrive), where that is more than one.
#define LAUNCH_CLUSTER(kernel, grid, cluster, block, shared, ...) do { \
    cudaLaunchAttribute attributes_[2] = {}; \
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; \
    attributes_[0].val.programmaticStreamSerializationAllowed = 1; \
    attributes_[1].id = cudaLaunchAttributeClusterDimension; \
    attributes_[1].val.clusterDim.x = (cluster), attributes_[1].val.clusterDim.y = attributes_[1].val.clusterDim.z = 1; \
    cudaLaunchConfig_t config_ = {}; \
    config_.gridDim = dim3(grid), config_.blockDim = dim3(block), config_.dynamicSmemBytes = (shared); \
    config_.stream = context()->stream, config_.attrs = attributes_; \
    config_.numAttrs = context()->arch < 90 ? 0 : (cluster) > 1 ? 2 : 1; \
    if (config_.gridDim.x && config_.gridDim.y && config_.gridDim.z) \
        CUDA_CHECK(cudaLaunchKernelEx(&config_, kernel, __VA_ARGS__)); \
    } while (0)

// Each file fills its part of the table: PART(matmul) { d->matmul_forward = ...; }
#define PART(part) extern "C" void DEVICE(part)(Device *d); extern "C" void DEVICE(part)(Device *d)

__host__ __device__ static inline real   R(floatX x) { return (real)x; }
__host__ __device__ static inline floatX X(real r)   { return (floatX)r; }
__host__ __device__ static inline size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }
__device__ static inline size_t global_index(void) { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }

// Loads and stores of W elements at a time. VECTOR of them are 16 bytes, the widest there is; the address must be a
// multiple of what is moved.
enum { VECTOR = 16 / sizeof(floatX) };
template<int W> struct alignas(W * sizeof(floatX)) Pack { floatX x[W]; };
template<int W> struct alignas(W < 4 ? W * sizeof(real) : 16) Reals { real x[W]; };
template<int W> __device__ static inline Pack<W> load(const floatX *p) { return *(const Pack<W> *)p; }
template<int W> __device__ static inline void store(floatX *p, Pack<W> v) { *(Pack<W> *)p = v; }
// Between packs and numbers, rounding to nearest even. bf16 by pairs, as they lie in registers: one instruction for each number
// one way, for each pair the other (where single numbers go through a unit of a quarter of the rate).
__device__ static inline float unpack_bf16(uint32_t two, int i) { return __uint_as_float(i ? two & 0xffff0000 : two << 16); }
template<int W> __device__ static inline real element(const Pack<W> &p, int i) {
#if defined(PRECISION_BF16)
    if (W > 1) {
        uint32_t two;
        memcpy(&two, &p.x[i / 2 * 2], sizeof two);
        return unpack_bf16(two, i % 2);
    }
#endif
    return R(p.x[i]);
}
template<int W> __device__ static inline Reals<W> unpack(const Pack<W> &p) {
    Reals<W> r;
    #pragma unroll
    for (int i = 0; i < W; i++) r.x[i] = element(p, i);
    return r;
}
template<int W> __device__ static inline Pack<W> pack(const Reals<W> &r) {
    Pack<W> p;
    #pragma unroll
    for (int i = 0; i < W; i++)
#if defined(PRECISION_BF16)
        if (W > 1) {
            const __nv_bfloat162 two = __floats2bfloat162_rn(r.x[i / 2 * 2], r.x[i / 2 * 2 + 1]);
            memcpy(&p.x[i / 2 * 2], &two, sizeof two);
        } else
#endif
        p.x[i] = X(r.x[i]);
    return p;
}
typedef Pack<VECTOR> Vec;
__device__ static inline Vec  load_vec(const floatX *p) { return load<VECTOR>(p); }
__device__ static inline void store_vec(floatX *p, Vec v) { store(p, v); }

// Can rows of C elements at these places be taken 16 bytes at a time?
static inline bool wide(size_t C, const void *a, const void *b = NULL, const void *c = NULL, const void *d = NULL) {
    return C % VECTOR == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}
// A block of 256 threads as a rectangle: x along rows of `units`, y over rows.
static inline dim3 rectangle(size_t units) {
    unsigned x = 1;
    while (x < 256 && x < units) x *= 2;
    return dim3(x, 256 / x);
}
// Threads for a row that is reduced: a warp or, for short rows, a part of one (256 threads to a block) if `each` units
// per thread are enough, else up to `most`, a block of their own.
static inline dim3 row_threads(size_t units, int each, unsigned most) {
    unsigned x = 8;
    while (x < 32 && x < units) x *= 2;
    while (x < most && x * each < units) x *= 2;
    return dim3(x, x <= 32 ? 256 / x : 1);
}
// Warps to a block (at most 8) if each needs so many words of shared memory: of 48 KiB, which need no asking, most are
// theirs; 4096 experts leave room for two.
static inline unsigned warps_for(int words) {
    const int most = (47 << 10) / (4 * words);
    return most > 8 ? 8 : most > 1 ? most : 1;
}

enum : unsigned { ALL = 0xffffffff };   // lanes of a warp
// Sums over the lanes of a warp, in a fixed order; every lane gets the result.
template<class T> __device__ static inline T warp_sum(T x) {
    for (int lane = 16; lane; lane /= 2) x += __shfl_xor_sync(ALL, x, lane);
    return x;
}
__device__ static inline float warp_max(float x) {
    for (int lane = 16; lane; lane /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, lane));
    return x;
}
// The sum over a block of so many warps; all threads get it. (64 bits are not added in shared memory: atomicAdd there is a loop
// that tries until nobody interferes.)
template<int WARPS, class T> __device__ static inline T block_sum(T x) {
    __shared__ T of_warp[WARPS];
    x = warp_sum(x);
    __syncthreads();                                        // nobody reads the last sum any more
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < WARPS; warp++) x += of_warp[warp];
    return x;
}
// The sum over the threads of a row, as row_threads lays them out; all get it.
__device__ static inline real row_sum(real x) {
    __shared__ real part[32];
    for (int lane = blockDim.x < 32 ? blockDim.x / 2 : 16; lane; lane /= 2) x += __shfl_xor_sync(ALL, x, lane);
    if (blockDim.x <= 32) return x;
    __syncthreads();                                        // nobody reads the last sum any more
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) x += part[warp];
    return x;
}
