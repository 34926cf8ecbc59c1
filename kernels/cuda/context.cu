// context.cu: the GPU, its stream and its errors; compiled once. All calls of the runtime that create something are
// here and in basic.cu (memory).
#include "hopper.cuh"
#include <stdio.h>
#include <stdlib.h>

#ifndef BUILT_FOR
#define BUILT_FOR "unknown"
#endif

static thread_local Context mine;
static thread_local bool opened;
Context *context(void) { return &mine; }

void cuda_fail(const char *file, int line, const char *what, cudaError_t error) {
    fflush(stdout);
    fprintf(stderr, "error: CUDA: %s (%s), at %s:%d, %s\n",
            cudaGetErrorString(error), cudaGetErrorName(error), file, line, what);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
        fprintf(stderr, "This program was built for %s, the GPU is sm_%d. "
                "Build again on this machine, or with GPU_ARCH=%d\n", BUILT_FOR, mine.arch, mine.arch);
    exit(6);
}

static __global__ void touch(int *p) { if (p) *p = 1; }

const char *cuda_open(void) {
    static thread_local char why[512];
    int count = 0, driver = 0, runtime = 0;
    cudaDeviceProp properties;
    if (opened) return NULL;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaErrorInsufficientDriver)
        snprintf(why, sizeof why,
                 driver ? "the driver is for CUDA %d.%d and this program needs %d.%d" : "there is no CUDA driver",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else if (e != cudaSuccess || !count) snprintf(why, sizeof why, "there is no GPU (%s)", cudaGetErrorString(e));
    else if ((e = cudaSetDevice(mine.device)) != cudaSuccess
             || (e = cudaGetDeviceProperties(&properties, mine.device)) != cudaSuccess)
        snprintf(why, sizeof why, "GPU %d cannot be used: %s", mine.device, cudaGetErrorString(e));
    else {
        mine.sm_count = properties.multiProcessorCount;
        mine.arch = 10 * properties.major + properties.minor;
        mine.max_shared = (int)properties.sharedMemPerBlockOptin;
        touch<<<1, 1>>>(NULL);
        if ((e = cudaGetLastError()) == cudaSuccess) e = cudaDeviceSynchronize();
        if (e != cudaSuccess)
            snprintf(why, sizeof why, "the %s is sm_%d and this program was built for %s: %s",
                     properties.name, mine.arch, BUILT_FOR, cudaGetErrorString(e));
        else {
            CUDA_CHECK(cudaStreamCreateWithFlags(&mine.stream, cudaStreamNonBlocking));
            opened = true;
            return NULL;
        }
    }
    cudaGetLastError();                                     // an error that was explained is not to show up later
    return why;
}

void *workspace(size_t bytes) {
    if (bytes > mine.workspace_bytes) {
        CUDA_CHECK(cudaStreamSynchronize(mine.stream));
        if (mine.workspace) CUDA_CHECK(cudaFree(mine.workspace));
        CUDA_CHECK(cudaMalloc(&mine.workspace, bytes));
        mine.workspace_bytes = bytes;
    }
    return mine.workspace;
}

bool tensor_map_of(CUtensorMap *map, const void *base, int element_size, int rank, const uint64_t *extent,
                   const uint64_t *pitch, const uint32_t *box) {
    static thread_local decltype(&cuTensorMapEncodeTiled) encode;
    if (!encode) {                                          // the driver's function, without linking with the driver
        void *f = NULL;
        cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found)) return false;
#else
        if (cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &found)) return false;
#endif
        if (found != cudaDriverEntryPointSuccess) return false;
        encode = (decltype(encode))f;
    }
    const uint32_t step[5] = { 1, 1, 1, 1, 1 };
    uint64_t bytes[4] = {};
    for (int i = 0; i + 1 < rank; i++) bytes[i] = pitch[i] * (uint64_t)element_size;
    return encode(map, element_size == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                  (uint32_t)rank, (void *)base, (const cuuint64_t *)extent, (const cuuint64_t *)bytes, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool tensor_map(CUtensorMap *map, const void *base, int element_size, uint64_t columns, uint64_t rows, uint64_t planes,
                uint64_t pitch, uint64_t plane, int box_columns, int box_rows) {
    const uint64_t extent[] = { columns, rows, planes }, pitches[] = { pitch, planes > 1 ? plane : rows * pitch };
    const uint32_t box[] = { (uint32_t)box_columns, (uint32_t)box_rows, 1 };
    return tensor_map_of(map, base, element_size, 3, extent, pitches, box);
}
