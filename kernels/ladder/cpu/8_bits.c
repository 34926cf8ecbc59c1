/* 8_bits.c: fp8_linear with three plain loops and a table.
 *
 *     out[row] = inp[row] weight[expert]^T
 *
 * A value is its code's value times the scale of its block. Scales are the same for 128 elements of
 * a row, and for 128 x 128 of a weight. So they need not be applied to every element: 128 products
 * of codes are added first, then multiplied by both scales. A code has 256 values, which a table
 * holds. A look-up for every factor takes the time; cpu/fp8.c looks each code up once. */
#include "kernels/cpu/impl.h"
#include "kernels/ladder/ladder.h"

static float value_of(int code) {                           /* sign, 4 bits of exponent, 3 of fraction */
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float x = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -x : x;
}

FP8_LINEAR(cpu_fp8_linear_naive) {
    const size_t blocks = (size_t)C / FP8_BLOCK;
    float value[256];
    (void)d;
    for (int i = 0; i < 256; i++) value[i] = value_of(i);
#pragma omp parallel for
    for (int expert = 0; expert < plan->E; expert++)
        for (int row = plan->start[expert]; row < plan->start[expert + 1]; row++)
            for (int o = 0; o < O; o++) {
                const size_t column = (size_t)expert * (size_t)O + (size_t)o;
                const uint8_t *x = inp.code + (size_t)row * (size_t)C, *w = weight.code + column * (size_t)C;
                const real *xs = inp.scale + (size_t)row * blocks, *ws = weight.scale + column / FP8_BLOCK * blocks;
                float sum = 0;
                for (size_t b = 0; b < blocks; b++) {
                    float products = 0;
                    for (size_t i = b * FP8_BLOCK; i < (b + 1) * FP8_BLOCK; i++) products += value[x[i]] * value[w[i]];
                    sum += products * (float)(xs[b] * ws[b]);
                }
                out[(size_t)row * (size_t)O + (size_t)o] = X(sum);
            }
}
