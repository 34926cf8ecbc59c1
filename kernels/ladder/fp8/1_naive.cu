// 1_naive.cu: one thread for each element of out, and plain arithmetic.
//
// A code, sign, 4 bits of exponent and 3 of fraction, becomes a float by a shift: its exponent
// counts from 2^-7, that of a float from 2^-127, so the shifted bits times 2^120 are its value,
// subnormal ones included. Two reads and a dozen instructions for every product.
#include "rung.cuh"

__device__ static inline float value_of(uint8_t code) {
    const uint32_t magnitude = code & 0x7f;
    const float x = magnitude == 0x7f ? NAN : __uint_as_float(magnitude << 20) * 0x1p120f;
    return code & 0x80 ? -x : x;
}

static __global__ void naive(const Product8 q) {
    const size_t i = global_index();
    const int row = (int)(i / q.p.O), column = (int)(i % q.p.O);
    if (row >= q.p.start[q.p.E]) return;
    const int expert = last_expert(q.p, row, 1, 0);
    const uint8_t *x = codes_of_row(q, row), *w = codes_of_column(q, expert, column);
    float sum = 0;
    for (int b = 0; b < q.p.C / FP8_BLOCK; b++) {
        float products = 0;
        for (int c = b * FP8_BLOCK; c < (b + 1) * FP8_BLOCK; c++) products += value_of(x[c]) * value_of(w[c]);
        sum += products * scale_of(q, expert, row, column, b);
    }
    store(q.p, expert, row, column, sum);
}

FP8_LINEAR(fp8_linear_naive) {
    (void)d;
    const Product8 q = product8(out, inp, weight, plan, C, O);
    LAUNCH(naive, (unsigned)divide_up((size_t)q.p.S * O, 256), 256, 0, q);
}
