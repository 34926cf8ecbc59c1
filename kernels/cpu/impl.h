/* impl.h: included by every file of kernels/cpu/, each of which is compiled once per number type.
 * Values are computed as real and stored as floatX: R(x) reads one, X(r) makes one. */
#pragma once
#define KERNELS_IMPLEMENTATION
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#if defined(PRECISION_BF16)             /* rounds where a GPU rounds: the oracle for bf16 on GPUs */
typedef struct { uint16_t bits; } floatX;
typedef float real;
static inline real R(floatX x) {
    uint32_t u = (uint32_t)x.bits << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline floatX X(real r) {        /* to nearest even; NaN stays NaN */
    uint32_t u;
    memcpy(&u, &r, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (floatX){ 0x7fc0 };
    return (floatX){ (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16) };
}
/* To one of the two neighbours of r: random bits are added below the last bit that is kept. */
static inline floatX X_random(real r, uint32_t bits) {
    uint32_t u;
    memcpy(&u, &r, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (floatX){ 0x7fc0 };
    return (floatX){ (uint16_t)((u + (bits & 0xffff)) >> 16) };
}
#define DEVICE(part) cpu_bf16_##part
#define DEVICE_NAME "cpu-bf16"
#define DEVICE_DTYPE "BF16"
#elif defined(PRECISION_F64)            /* the oracle for all others */
typedef double floatX, real;
#define R(x) (x)
#define X(r) (r)
#define X_random(r, bits) ((void)(bits), r)
#define DEVICE(part) cpu_f64_##part
#define DEVICE_NAME "cpu-f64"
#define DEVICE_DTYPE "F64"
#else                                   /* what a CPU trains with */
typedef float floatX, real;
#define R(x) (x)
#define X(r) (r)
#define X_random(r, bits) ((void)(bits), r)
#define DEVICE(part) cpu_f32_##part
#define DEVICE_NAME "cpu-f32"
#define DEVICE_DTYPE "F32"
#endif
#include "kernels/kernels.h"

/* Each file fills its part of the table: PART(matmul) { d->matmul_forward = ...; } */
#define PART(part) void DEVICE(part)(Device *d); void DEVICE(part)(Device *d)

/* Memory for one call; free() it. Without memory the program ends, as by llmc's fail(). */
static inline void *scratch(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (p) return p;
    fprintf(stderr, "error: out of host memory: an operation needs %zu bytes of scratch\n", bytes);
    _Exit(7);                           /* EXIT_MEMORY; other threads may be anywhere */
}
static inline void *zeroed_scratch(size_t bytes) { return memset(scratch(bytes), 0, bytes); }

/* Starting threads costs microseconds: a loop of fewer operations than this runs on one. */
#define PARALLEL_MIN 20000
#define PARALLEL_IF(work) if ((double)(work) > PARALLEL_MIN)

/* gcc's and clang's vectors: arithmetic by lane, on any machine. At any address of a real. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#if defined(PRECISION_F64)
#define LANES (VECTOR_BYTES / 8)
#else
#define LANES (VECTOR_BYTES / 4)
#endif
typedef real Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

/* UNROLL(n) before a loop with a constant number of rounds, at most n: it becomes straight code, in
 * which an array that it indexes is registers. clang knows gcc's pragma by another name only. */
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define UNROLL(n) PRAGMA(clang loop unroll(full))
#else
#define UNROLL(n) PRAGMA(GCC unroll n)
#endif

/* exp without branches or tables, so that loops over it become vector code: 2^(x log2 e) = 2^n 2^f
 * with n an integer and f in [-1/2, 1/2]; 2^f = e^(f ln 2) by a polynomial. Relative error below
 * 2e-7. Below -87 it is 0, above 88 clamped: no caller needs infinity. f64, the oracle, has exp. */
static inline real fast_exp(real x) {
#if defined(PRECISION_F64)
    return exp(x);
#else
    /* NaN becomes -87: an int must hold n */
    float above = x > -87.0f ? x : -87.0f, clamped = above < 88.0f ? above : 88.0f;
    /* nearest integer: fractions fall off the mantissa */
    float n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;
    float f = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;  /* ln 2 in two parts, so that f keeps its low bits */
    float p = 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * f * f + f + 1.0f;
    union { int32_t i; float f; } two_n = { .i = ((int32_t)n + 127) << 23 };
    float y = p * two_n.f;
    return x < -87.0f ? 0.0f : x == x ? y : x;                       /* NaN stays NaN */
#endif
}
