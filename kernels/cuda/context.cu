// context.cu: the GPU, its stream, its errors, events and recordings; compiled once.
#include "kernels/cuda/hopper/pipeline.cuh"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef BUILT_FOR
#define BUILT_FOR "unknown"
#endif

static thread_local Context mine;
static thread_local bool opened;
static thread_local char activity[64] = "start";
Context *context(void) { return &mine; }
void cuda_set_activity(const char *what) { snprintf(activity, sizeof activity, "%s", what); }

void cuda_fail(const char *file, int line, const char *what, cudaError_t error) {
    fflush(stdout);
    fprintf(stderr, "error: CUDA: %s (%s) at %s, in %s (%s:%d); built for %s, the GPU is sm_%d\n",
            cudaGetErrorString(error), cudaGetErrorName(error), activity, what, file, line, BUILT_FOR, mine.arch);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
        fprintf(stderr, "Rebuild on this machine, or with GPU_ARCH=%d\n", mine.arch);
    else if (error == cudaErrorMemoryAllocation)
        fprintf(stderr, "Besides what it planned, the program needs some memory for the library, recordings and "
                "scratch. Free some with a smaller batch (-b) or -r 2\n");
    else
        fprintf(stderr, "An error inside a kernel is reported by a later call. To find the kernel, set "
                "CUDA_LAUNCH_BLOCKING=1 in the environment and use -gr 0\n");
    fflush(stderr);
    _exit(6);                                               // threads of other ranks may be anywhere
}

void cuda_check(const char *file, int line, const char *what, cudaError_t error) {
    const bool of_recording = error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
    if (!mine.recording || !of_recording) cuda_fail(file, line, what, error);
    if (mine.spoiled == cudaSuccess) mine.spoiled = error;
    cudaGetLastError();
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
            CUDA_CHECK(cudaMalloc(&mine.work_counter, sizeof *mine.work_counter));
            CUDA_CHECK(cudaMemsetAsync(mine.work_counter, 0, sizeof *mine.work_counter, mine.stream));
            opened = true;
            return NULL;
        }
    }
    cudaGetLastError();                                     // `why` reports it: a later check must not
    return why;
}

// The old workspace is not freed while recordings exist: they may use it.
void *workspace(size_t bytes) {
    if (bytes > mine.workspace_bytes) {
        if (mine.recording) {
            CUDA_CHECK(cudaErrorStreamCaptureUnsupported);
            return mine.workspace;                          // the recording is spoiled: nothing will run
        }
        CUDA_CHECK(cudaStreamSynchronize(mine.stream));
        if (mine.workspace && !mine.recordings) CUDA_CHECK(cudaFree(mine.workspace));
        CUDA_CHECK(cudaMalloc(&mine.workspace, bytes));
        mine.workspace_bytes = bytes;
    }
    return mine.workspace;
}

bool driver_function(const char *name, void *at) {
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    if (cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found)) return false;
#else
    if (cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found)) return false;
#endif
    if (found != cudaDriverEntryPointSuccess) return false;
    memcpy(at, &f, sizeof f);
    return true;
}
bool tensor_map_of(CUtensorMap *map, const void *base, int element_size, int rank, const uint64_t *extent,
                   const uint64_t *pitch, const uint32_t *box) {
    static thread_local decltype(&cuTensorMapEncodeTiled) encode;
    if (!encode && !driver_function("cuTensorMapEncodeTiled", &encode)) return false;
    const uint32_t step[5] = { 1, 1, 1, 1, 1 };
    uint64_t bytes[4] = {};
    for (int i = 0; i + 1 < rank; i++) bytes[i] = pitch[i] * (uint64_t)element_size;
    return encode(map, element_size == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                  (uint32_t)rank, (void *)base, (const cuuint64_t *)extent, (const cuuint64_t *)bytes, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// ---- waiting ------------------------------------------------------------------------------------

void cuda_sync(void) {
    mine.waited.syncs++;
    CUDA_CHECK(cudaStreamSynchronize(mine.stream));
}
void cuda_read(void *host, const void *src, size_t bytes) {
    mine.waited.reads++;
    if (bytes) CUDA_CHECK(cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, mine.stream));
    CUDA_CHECK(cudaStreamSynchronize(mine.stream));
}
Waits cuda_waits(void) { return mine.waited; }

static thread_local cudaEvent_t *events;
static thread_local int event_count;
void cuda_mark(int i) {
    for (; event_count <= i; event_count++) {
        if (event_count % 1024 == 0) events = (cudaEvent_t *)realloc(events, (event_count + 1024) * sizeof *events);
        if (!events) CUDA_CHECK(cudaErrorMemoryAllocation);
        CUDA_CHECK(cudaEventCreate(&events[event_count]));
    }
    CUDA_CHECK(cudaEventRecord(events[i], mine.stream));
}
double cuda_elapsed(int from, int to) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, events[from], events[to]));
    return 1e-3 * ms;
}

// ---- recording ----------------------------------------------------------------------------------
// Work queued on a stream in capture mode becomes a graph. The mode is thread-local.
struct Recording {
    cudaGraphExec_t work;
    bool exchanges;                                         // ranks wait for each other after each replay
};

const char *cuda_record_begin(void) {
    const cudaError_t e = cudaStreamBeginCapture(mine.stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return cudaGetErrorName(e);
    }
    mine.recording = true;
    mine.recorded_exchange = false;
    mine.spoiled = cudaSuccess;
    return NULL;
}
Recording *cuda_record_end(const char **why) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t work = NULL;
    cudaError_t e = cudaStreamEndCapture(mine.stream, &graph);
    mine.recording = false;
    if (mine.spoiled != cudaSuccess) e = mine.spoiled;
    if (e == cudaSuccess) e = cudaGraphInstantiate(&work, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (e != cudaSuccess) {
        cudaGetLastError();                                 // *why reports it
        *why = cudaGetErrorName(e);
        return NULL;
    }
    mine.recordings++;
    return new Recording { work, mine.recorded_exchange };
}
void cuda_replay(const Recording *r) {
    CUDA_CHECK(cudaGraphLaunch(r->work, mine.stream));
    if (r->exchanges) host_barrier_wait(mine.barrier);
}
void cuda_record_free(Recording *r) {
    if (!r) return;
    cuda_sync();
    CUDA_CHECK(cudaGraphExecDestroy(r->work));
    delete r;
    mine.recordings--;
}
