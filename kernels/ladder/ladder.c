/* ladder.c: the rungs, from the lowest. */
#include "ladder.h"
#include <stddef.h>

#define CPU(function, file, idea) { "cpu-f32", "parallel_linear_forward", file, idea, function, NULL, NULL, NULL }
#define EIGHT(base, function, file, idea) { base, "fp8_linear", file, idea, NULL, NULL, function, NULL }
#define EIGHT_OF(device, file, idea) { device, "fp8_linear", file, idea, NULL, NULL, NULL, device }
#define LINEAR(function, file, idea) { "cuda-bf16", "parallel_linear_forward", file, idea, function, NULL, NULL, NULL }
#define ATTEND(function, file, idea) { "cuda-bf16", "attention_forward", file, idea, NULL, function, NULL, NULL }
#define LINEAR_OF(device, file, idea) { "cuda-bf16", "parallel_linear_forward", file, idea, NULL, NULL, NULL, device }
#define ATTEND_OF(device, file, idea) { "cuda-bf16", "attention_forward", file, idea, NULL, NULL, NULL, device }
static const Rung rungs[] = {
    CPU(cpu_parallel_linear_naive, "ladder/cpu/1_naive.c", "three plain loops"),
    CPU(cpu_parallel_linear_vectors, "ladder/cpu/2_vectors.c", "vectors along the sum, four sums at a time"),
    CPU(cpu_parallel_linear_registers, "ladder/cpu/3_registers.c", "a tile of 4 x 4 sums in registers"),
    { "cpu-f32", "parallel_linear_forward", "cpu/matmul.c", "panels in the order of use, for L1 and L2",
      NULL, NULL, NULL, "cpu-f32" }, EIGHT("cpu-f32", cpu_fp8_linear_naive, "ladder/cpu/8_bits.c",
                                           "codes are looked up in a table; 128 products, then their scales"),
    EIGHT_OF("cpu-f32", "cpu/fp8.c", "codes become floats once; then the product of cpu/matmul.c"),
#ifdef WITH_CUDA
    LINEAR(parallel_linear_naive, "ladder/parallel_linear/1_naive.cu", "one thread for each element of out"),
    LINEAR(parallel_linear_tiled, "ladder/parallel_linear/2_tiled.cu", "tiles in shared memory and registers"),
    LINEAR(parallel_linear_tensor_cores, "ladder/parallel_linear/3_tensor_cores.cu", "mma: a warp multiplies matrices"),
    LINEAR(parallel_linear_pipelined, "ladder/parallel_linear/4_pipelined.cu",
           "cp.async: copies run while tiles are multiplied"),
    LINEAR_OF("cuda-bf16-portable", "cuda/matmul.cu", "operands in registers a step ahead; swizzle; order of tiles"),
    LINEAR_OF("cuda-bf16", "cuda/hopper/rows.cu", "on sm_90: wgmma and bulk copies, a warpgroup that only copies"),
    ATTEND(attention_naive, "ladder/attention/1_naive.cu", "the formula, scores in memory"),
    ATTEND(attention_tiled, "ladder/attention/2_tiled.cu", "softmax while keys stream past: no scores in memory"),
    ATTEND(attention_tensor_cores, "ladder/attention/3_tensor_cores.cu", "mma for both products, weights in registers"),
    ATTEND_OF("cuda-bf16-portable", "cuda/attention.cu", "query heads packed, cp.async, longest tiles first"),
    ATTEND_OF("cuda-bf16", "cuda/hopper/attention.cu", "on sm_90: wgmma and bulk copies"),
    EIGHT("cuda-bf16", fp8_linear_naive, "ladder/fp8/1_naive.cu",
          "one thread for each element of out, 128 products, then their scales"),
    EIGHT("cuda-bf16", fp8_linear_tensor_cores, "ladder/fp8/2_tensor_cores.cu",
          "mma of codes, straight from memory; two kinds of sums"),
    EIGHT_OF("cuda-bf16", "cuda/hopper/fp8_rows.cu", "wgmma and bulk copies; scales two steps ahead"),
#endif
};

const Rung *ladder_list(int i) { return i >= 0 && i < (int)(sizeof rungs / sizeof *rungs) ? &rungs[i] : NULL; }

Device ladder_device(const Device *base, const Rung *rung) {
    static Fp8Operations fp8;
    Device d = rung->device ? *device_find(rung->device) : *base;
    d.name = rung->file;
    if (rung->parallel_linear) d.parallel_linear_forward = rung->parallel_linear;
    if (rung->attention) d.attention_forward = rung->attention;
    if (rung->fp8_linear) fp8 = *d.fp8, fp8.linear = rung->fp8_linear, d.fp8 = &fp8;
    return d;
}
