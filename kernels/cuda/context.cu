// context.cu: the GPU, its stream and its errors; compiled once. All calls of the runtime that create something are
// here and in basic.cu (memory).
#include "impl.cuh"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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
    fflush(stderr);
    _exit(6);                                               // threads of other ranks may be anywhere
}

static __global__ void touch(int *p) { if (p) *p = 1; }

int cuda_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
    return count;
}

const char *cuda_open(int which) {
    static thread_local char why[512];
    int count = 0, driver = 0, runtime = 0;
    cudaDeviceProp properties;
    if (opened && which == mine.device) return NULL;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaErrorInsufficientDriver)
        snprintf(why, sizeof why,
                 driver ? "the driver is for CUDA %d.%d and this program needs %d.%d" : "there is no CUDA driver",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else if (e != cudaSuccess || !count) snprintf(why, sizeof why, "there is no GPU (%s)", cudaGetErrorString(e));
    else if (opened) snprintf(why, sizeof why, "this thread drives GPU %d already", mine.device);
    else if ((mine.device = which) >= count) snprintf(why, sizeof why, "there is no GPU %d, only %d", which, count);
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
