/* codes.h: numbers in 8 and 4 bits (Fp8, Weight, Momentum in kernels.h) with the same bits on all
 * devices. Hoppers have instructions for some of it. */
#pragma once
#include "kernels.h"
#include "random.h"
#include <math.h>

ON_BOTH static inline float as_float(uint32_t bits) {
    union { uint32_t u; float f; } v;
    v.u = bits;
    return v.f;
}
ON_BOTH static inline uint32_t as_bits(float x) {
    union { uint32_t u; float f; } v;
    v.f = x;
    return v.u;
}

/* Of a block whose largest magnitude has these bits. */
ON_BOTH static inline float scale_for(uint32_t largest) {
    const uint32_t above = (largest + 0x1fffff) >> 23;  /* one more than its exponent if its fraction is above 1.75 */
    return largest >= 0x7f800000 ? as_float(0x7fc00000) : as_float(((above > 18 ? above : 18) - 8) << 23);
}
/* x: at most 448. A normal number keeps three bits of its fraction. Below 2^-6 codes are multiples
 * of 2^-9, which are the last bits of a float near 2^14. */
ON_BOTH static inline uint8_t code_of(float x) {
    const uint32_t bits = as_bits(x), magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    const uint32_t small = as_bits(as_float(magnitude) + 16384.0f) & 0xff;
    const uint32_t normal = (magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    const uint32_t code = magnitude < as_bits(0.015625f) ? small : normal - (120 << 3);
    return (uint8_t)(magnitude > 0x7f800000 ? 0x7f : sign | code);
}
ON_BOTH static inline float value_of(uint8_t code) { /* the code's bits as those of a float, whose bias is 120 larger */
    const uint32_t magnitude = code & 0x7f;
    const float x = magnitude == 0x7f ? as_float(0x7fc00000) : as_float(magnitude << 20) * as_float(247u << 23);
    return code & 0x80 ? -x : x;
}
/* Of code i of a row in MXFP4; its scale. Likewise: the bias of e2m1 is 126 smaller. */
ON_BOTH static inline float value_of_4_bits(uint8_t two, size_t i) {
    const uint32_t code = two >> (i % 2 * 4) & 15;
    const float x = as_float((code & 7) << 22) * as_float(253u << 23);
    return code & 8 ? -x : x;
}
ON_BOTH static inline float scale_of_4_bits(uint8_t scale) {
    return scale == 255 ? as_float(0x7fc00000) : scale ? as_float((uint32_t)scale << 23) : as_float(1u << 22);
}
/* A block of Momentum whose largest magnitude has these bits: the scale is the bf16 number above a
 * 127th of it, and a code value / scale, rounded down or up by 16 random bits: the expected value
 * is exact, however often a sum of small numbers is coded again. Not finite: all are NaN. */
ON_BOTH static inline float moment_scale(uint32_t largest) {
    const uint32_t bits = as_bits(as_float(largest) * (1 / 127.0f)), least = 27u << 23;     /* 2^-100 */
    return as_float(largest >= 0x7f800000 ? 0x7fc00000 : (((bits > least ? bits : least) >> 16) + 1) << 16);
}
ON_BOTH static inline int8_t moment_code(float x, float inverse, uint32_t random) {
    const float code = fmaf(x, inverse, (float)random / 65536);
    return (int8_t)floorf(code < 127 ? code : 127);
}
