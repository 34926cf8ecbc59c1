/* device.cpp: what context.cu, dense.cu and nccl.cu are for a GPU. One emulated GPU, an H100 with
 * three multiprocessors, that has no cuBLASLt, records nothing and is alone. */
#define PRECISION_BF16
#include "kernels/cuda/dense.cuh"
#include "kernels/cuda/hopper/pipeline.cuh"
#include "kernels/compound.h"

static Context mine;
static unsigned work_counter;
Context *context(void) {
    mine.sm_count = 3, mine.arch = 90, mine.max_shared = 232448, mine.work_counter = &work_counter;
    return &mine;
}
void *workspace(size_t bytes) {
    if (bytes > mine.workspace_bytes) free(mine.workspace), cudaMalloc(&mine.workspace, mine.workspace_bytes = bytes);
    if (bytes) memset(mine.workspace, 0xff, bytes);
    return mine.workspace;
}
void cuda_fail(const char *file, int line, const char *what, cudaError_t) {
    fprintf(stderr, "emulator: %s failed (%s:%d)\n", what, file, line);
    abort();
}
void cuda_check(const char *file, int line, const char *what, cudaError_t error) { cuda_fail(file, line, what, error); }

/* The rules of the driver that kernels have to keep. */
bool tensor_map_of(CUtensorMap *map, const void *base, int element_size, int rank, const uint64_t *extent,
                   const uint64_t *pitch, const uint32_t *box) {
    const uint64_t size = (uint64_t)element_size;
    bool legal = (uintptr_t)base % 16 == 0 && box[0] * size <= 128 && rank <= 5;
    map->base = (unsigned char *)base, map->element_size = element_size, map->rank = rank;
    for (int i = 0; i < rank; i++) {
        map->extent[i] = extent[i], map->box[i] = box[i], map->pitch[i] = i ? pitch[i - 1] * size : size;
        legal = legal && extent[i] && box[i] && box[i] <= 256 && (i == 0 || map->pitch[i] % 16 == 0);
    }
    return legal;
}
bool dense_product(void *, bool, bool, const floatX *, bool, const floatX *, bool, int, int, int, int) { return false; }
const char *cuda_open(int which) { return which ? "there is one emulated GPU" : NULL; }
int cuda_count(void) { return 1; }
void cuda_sync(void) { mine.waited.syncs++; }
void cuda_read(void *host, const void *from, size_t bytes) { mine.waited.reads++, memcpy(host, from, bytes); }
Waits cuda_waits(void) { return mine.waited; }
void cuda_set_activity(const char *) {}
void cuda_mark(int) {}
double cuda_elapsed(int, int) { return 0; }
const char *cuda_record_begin(void) { return "an emulated GPU records nothing"; }
Recording *cuda_record_end(const char **why) { *why = cuda_record_begin(); return NULL; }
void cuda_replay(const Recording *) {}
void cuda_record_free(Recording *) {}
Comm *cuda_connect(Group *, char why[256]) { strcpy(why, "an emulated GPU is alone"); return NULL; }
