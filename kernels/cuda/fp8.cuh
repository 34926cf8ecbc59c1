// fp8.cuh: e4m3 codes and the scales of their blocks, as kernels.h declares them (Fp8).
#pragma once
#include "ptx.cuh"

// A magnitude as bits: as integers, infinity and NaN are larger than all others.
__device__ static inline uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffff; }
// The scale of a block, from its largest magnitude, and the inverse; NaN if that is not finite.
__device__ static inline float fp8_scale(uint32_t most) {
    return __uint_as_float(most < 0x7f800000 ? (max((most + 0x1fffff) >> 23, 18u) - 8) << 23 : 0x7fffffff);
}
__device__ static inline float fp8_inverse(float scale) {
    return scale == scale ? __uint_as_float((254u << 23) - __float_as_uint(scale)) : scale;
}
#if __CUDA_ARCH__ >= 890
// Two or four floats to codes, to nearest even. The first is in the lowest byte.
__device__ static inline uint32_t fp8_codes(float a, float b) {
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(b), "f"(a));
    return two;
}
__device__ static inline uint32_t fp8_codes(float a, float b, float c, float d) {
    return fp8_codes(a, b) | fp8_codes(c, d) << 16;
}
// Eight codes of x times a power of two.
__device__ static inline uint2 fp8_codes(const float (&x)[8], float scale) {
    return { fp8_codes(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale),
             fp8_codes(x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale) };
}
#endif
