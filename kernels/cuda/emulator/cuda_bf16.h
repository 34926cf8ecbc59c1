/* cuda_bf16.h: bf16 on a CPU, as far as kernels/cuda uses it. */
#pragma once
#include "cuda_runtime.h"

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16(void) = default;
    __nv_bfloat16(float x) {
        const unsigned u = __float_as_uint(x);
        bits = x != x ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    operator float(void) const { return __uint_as_float((unsigned)bits << 16); }
};
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { __nv_bfloat16 x; x.bits = bits; return x; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return { x, y }; }
static inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return { (float)a.x * (float)b.x, (float)a.y * (float)b.y };
}
static inline float __low2float(__nv_bfloat162 a) { return a.x; }
static inline float __high2float(__nv_bfloat162 a) { return a.y; }
static inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return { fmaxf(a.x, b.x), fmaxf(a.y, b.y) };
}
