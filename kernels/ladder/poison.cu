// poison.cu: see ladder_poison in ladder.h. A block takes all shared memory of a multiprocessor.
#include "kernels/cuda/impl.cuh"
extern "C" {
#include "ladder.h"
}

static __global__ void poison(int words) {
    extern __shared__ unsigned shared[];
    for (int i = threadIdx.x; i < words; i += blockDim.x) ((volatile unsigned *)shared)[i] = 0xffffffff;
}
void ladder_poison(void) {
    int bytes;
    CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, context()->device));
    LAUNCH(poison, 4 * context()->sm_count, 1024, bytes, bytes / 4);
}
