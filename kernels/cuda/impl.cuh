// impl.cuh: included by every file of kernels/cuda/. A file is compiled once per number type (those
// of CUDA_ONCE once). Only the CUDA runtime is used: cub and thrust take seconds to compile.
//
// x.cu fills the same entries of the table as kernels/cpu/x.c, where the formulas are, and rounds
// where that rounds. Values are computed as real (float), stored as floatX: R(x) and X(r) convert.
//
// Most kernels here move bytes and hardly compute. What makes such a kernel fast: 16 bytes per load
// and store, several loads of each thread in flight, every byte moved once. W is the number of
// elements that a thread takes at a time: VECTOR (16 bytes), or 1 where a width or an address does
// not allow that. "Moves" in a kernel's comment is what it reads and writes in global memory.
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
#include "kernels/random.h"

struct HostBarrier;
// What a host thread that drives a GPU owns. Threads share nothing but their barrier.
typedef struct {
    int   device, sm_count, arch;       // arch: 80, 90, ...
    int   max_shared;                   // bytes of shared memory that a block can opt in to
    cudaStream_t stream;                // all work is queued here
    void  *workspace;                   // scratch memory of one operation
    size_t workspace_bytes;
    unsigned *work_counter;             // from which blocks draw work (hopper/pipeline.cuh); zero between kernels
    Waits  waited;                      // by this thread
    HostBarrier *barrier;               // of the ranks of this process; NULL: there are no others
    int    recordings;                  // how many exist; each may use the workspace that was current when it was made
    bool   recording;                   // queued work is recorded, not done
    bool   recorded_exchange;           // it contains operations among ranks
    cudaError_t spoiled;                // the first error that spoiled the recording
} Context;
Context *context(void);                 // this thread's, opened by cuda_open
void    *workspace(size_t bytes);       // valid until the next call of an operation; fixed while work is recorded
bool     driver_function(const char *name, void *at);   // context.cu: at run time, as the driver need not be linked
Comm    *cuda_connect(Group *group, char why[256]);     // nccl.cu; as Device.connect
void     DEVICE(upload)(void *dst, const void *host, size_t bytes);     // device.cu; as Device.upload

// Device's functions of these names (context.cu); cuda_read: download. All waits are counted here.
const char *cuda_open(int which);
int         cuda_count(void);
void        cuda_sync(void);
void        cuda_read(void *host, const void *src, size_t bytes);
Waits       cuda_waits(void);
void        cuda_set_activity(const char *what);
void        cuda_mark(int i);
double      cuda_elapsed(int from, int to);
const char *cuda_record_begin(void);
Recording  *cuda_record_end(const char **why);
void        cuda_replay(const Recording *r);
void        cuda_record_free(Recording *r);

// barrier.cu. host_barrier_open, by all ranks of the group, returns the barrier of this process's.
// host_barrier_wait returns when all these have called it; at once for NULL and while recording.
HostBarrier *host_barrier_open(Group *group);
void     host_barrier_close(HostBarrier *b);
void     host_barrier_wait(HostBarrier *b);

// Ends the program: error, activity, file, line, call, architectures of the build and the GPU.
[[noreturn]] void cuda_fail(const char *file, int line, const char *what, cudaError_t error);
// The same, except that an operation that cannot be recorded only spoils the recording.
void cuda_check(const char *file, int line, const char *what, cudaError_t error);
#define CUDA_CHECK(call) do { \
    cudaError_t e_ = (call); \
    if (e_ != cudaSuccess) cuda_check(__FILE__, __LINE__, #call, e_); \
    } while (0)

// Shared memory beyond 48 KiB must be allowed, and a kernel may declare up to 16 of them itself.
static inline void allow_shared(const void *kernel, size_t bytes) {
    if (bytes > 32 << 10)
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
}
// LAUNCH(kernel, grid, block, shared bytes, arguments...). Does nothing if the grid has 0 blocks.
#define LAUNCH(kernel, grid, block, shared, ...) do { \
    dim3 grid_ = dim3(grid); \
    if (grid_.x && grid_.y && grid_.z) { \
        allow_shared((const void *)(kernel), (shared)); \
        kernel<<<grid_, (block), (shared), context()->stream>>>(__VA_ARGS__); \
        const cudaError_t e_ = cudaGetLastError(); \
        if (e_ != cudaSuccess) cuda_check(__FILE__, __LINE__, __func__, e_); \
    } } while (0)

// For a kernel that may begin before the previous one ends (ptx.cuh, let_next_start), on Hopper.
#define LAUNCH_EARLY(kernel, grid, block, shared, ...) LAUNCH_CLUSTER(kernel, grid, 1, block, shared, __VA_ARGS__)
// The same in clusters of this many blocks (ptx.cuh, cluster_arrive).
#define LAUNCH_CLUSTER(kernel, grid, cluster, block, shared, ...) do { \
    cudaLaunchAttribute attributes_[2] = {}; \
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; \
    attributes_[0].val.programmaticStreamSerializationAllowed = 1; \
    attributes_[1].id = cudaLaunchAttributeClusterDimension; \
    attributes_[1].val.clusterDim.x = (cluster), \
        attributes_[1].val.clusterDim.y = attributes_[1].val.clusterDim.z = 1; \
    cudaLaunchConfig_t config_ = {}; \
    config_.gridDim = dim3(grid), config_.blockDim = dim3(block), config_.dynamicSmemBytes = (shared); \
    config_.stream = context()->stream, config_.attrs = attributes_; \
    config_.numAttrs = context()->arch < 90 ? 0 : (cluster) > 1 ? 2 : 1; \
    if (config_.gridDim.x && config_.gridDim.y && config_.gridDim.z) { \
        allow_shared((const void *)(kernel), (shared)); \
        CUDA_CHECK(cudaLaunchKernelEx(&config_, kernel, __VA_ARGS__)); \
    } } while (0)

// Each file fills its part of the table: PART(matmul) { d->matmul_forward = ...; }
#define PART(part) PART_OF(Device, part)
#define PART_OF(Table, part) extern "C" void DEVICE(part)(Table *d); extern "C" void DEVICE(part)(Table *d)

__host__ __device__ static inline real   R(floatX x) { return (real)x; }
__host__ __device__ static inline floatX X(real r)   { return (floatX)r; }
// One of the two neighbours of r in floatX, by 16 random bits: as in kernels/cpu/impl.h.
__device__ static inline floatX X_random(real r, uint32_t bits) {
#if defined(PRECISION_BF16)
    const uint32_t u = __float_as_uint(r);
    return __ushort_as_bfloat16(r != r ? 0x7fc0 : (unsigned short)((u + (bits & 0xffff)) >> 16));
#else
    return r;
#endif
}
__host__ __device__ static inline size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }
__device__ static inline size_t global_index(void) { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }

// W elements that a thread loads or stores at once, aligned to their size or to 16 bytes.
enum { VECTOR = 16 / sizeof(floatX) };
template<class T, int W> struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Array { T x[W]; };
template<int W> using Pack  = Array<floatX, W>;
template<int W> using Reals = Array<real, W>;
template<int W, class T> __device__ static inline Array<T, W> load(const T *p) { return *(const Array<T, W> *)p; }
template<int W, class T> __device__ static inline void store(T *p, Array<T, W> v) { *(Array<T, W> *)p = v; }
// Between packs and reals, rounding to nearest even. bf16 is converted in pairs, as registers hold
// it: single numbers go through a unit of a quarter of the rate.
__device__ static inline float unpack_bf16(uint32_t two, int i) {
    return __uint_as_float(i ? two & 0xffff0000 : two << 16);
}
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
// Rotates W pairs by their angles, of which the table has cosine and sine; direction -1: back.
template<int W> __device__ static inline void rotate(Reals<W> &a, Reals<W> &b, const real *angles, int direction) {
    #pragma unroll
    for (int j = 0; j < W; j++) {
        const real cosine = angles[2*j], sine = direction * angles[2*j + 1], re = a.x[j], im = b.x[j];
        a.x[j] = re * cosine - im * sine;
        b.x[j] = im * cosine + re * sine;
    }
}
// random_32 of elements from `first` on, for X_random. first is even or W is 1: pairs share a hash.
template<int W> __device__ static inline void random_each(uint32_t (&bits)[W], uint64_t key, size_t first) {
    if constexpr (W == 1) bits[0] = random_32(key, first);
    else
        #pragma unroll
        for (int j = 0; j < W; j += 2) {
            const uint64_t two = random_bits(key, (first + j) / 2);
            bits[j] = (uint32_t)two, bits[j + 1] = (uint32_t)(two >> 32);
        }
}
typedef Pack<VECTOR> Vec;
__device__ static inline Vec  load_vec(const floatX *p) { return load<VECTOR>(p); }
__device__ static inline void store_vec(floatX *p, Vec v) { store(p, v); }

// Can rows of C elements at these addresses be taken 16 bytes at a time?
static inline bool wide(size_t C, const void *a, const void *b = NULL, const void *c = NULL, const void *d = NULL) {
    return C % VECTOR == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}
// A block of 256 threads: x covers the units of a row, y several rows.
static inline dim3 rectangle(size_t units) {
    unsigned x = 1;
    while (x < 256 && x < units) x *= 2;
    return dim3(x, 256 / x);
}
// A block for rows that are reduced: x threads per row, y rows. A row gets 8 to 32 lanes (256
// threads per block) if at most `each` units per thread, else a block of up to `most` threads.
static inline dim3 row_threads(size_t units, int each, unsigned most) {
    unsigned x = 8;
    while (x < 32 && x < units) x *= 2;
    while (x < most && x * each < units) x *= 2;
    return dim3(x, x <= 32 ? 256 / x : 1);
}
// Warps per block, 1 to 8, if each needs this many words of the 48 KiB of shared memory that need
// no opt-in (1 KiB is left to the kernel). For 4096 words: 2.
static inline unsigned warps_for(int words) {
    const int most = (47 << 10) / (4 * words);
    return most > 8 ? 8 : most > 1 ? most : 1;
}

enum : unsigned { ALL = 0xffffffff };   // lanes of a warp
// The sum over each LANES consecutive lanes of a warp, in a fixed order; every lane gets it.
template<int LANES = 32, class T> __device__ static inline T warp_sum(T x) {
    for (int lane = LANES / 2; lane; lane /= 2) x += __shfl_xor_sync(ALL, x, lane);
    return x;
}
template<int LANES = 32> __device__ static inline float warp_max(float x) {
    for (int lane = LANES / 2; lane; lane /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, lane));
    return x;
}
// The sum over this lane and those before it.
template<class T> __device__ static inline T warp_scan(T x) {
    const int lane = threadIdx.x % 32;
    for (int d = 1; d < 32; d *= 2) {
        const T before = __shfl_up_sync(ALL, x, d);
        if (lane >= d) x += before;
    }
    return x;
}
// The sum over WARPS warps, to all threads. (64-bit atomicAdd on shared memory is a CAS loop.)
template<int WARPS, class T> __device__ static inline T block_sum(T x) {
    __shared__ T of_warp[WARPS];
    x = warp_sum(x);
    __syncthreads();                                        // the previous sum has been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < WARPS; warp++) x += of_warp[warp];
    return x;
}
// The sum over the threads of a row, in a block of row_threads; all of them get it.
__device__ static inline real row_sum(real x) {
    __shared__ real of_warp[32];
    for (int lane = blockDim.x < 32 ? blockDim.x / 2 : 16; lane; lane /= 2) x += __shfl_xor_sync(ALL, x, lane);
    if (blockDim.x <= 32) return x;
    __syncthreads();                                        // the previous sum has been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) x += of_warp[warp];
    return x;
}
// Is this block the last of `blocks`? Then it sees all they wrote. *arrived: 0 between kernels.
__device__ static inline bool last_block(unsigned *arrived, unsigned blocks) {
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(arrived, blocks - 1) == blocks - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}
