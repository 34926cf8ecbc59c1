/* sum.c: sums of many numbers: in blocks of fixed size, each in double, added in order. */
#include "sum.h"

enum { BLOCK = 1 << 14 };

double DEVICE(sum_of)(const void *x, size_t n, Summand term) {
    size_t blocks = (n + BLOCK - 1) / BLOCK;
    double total = 0, *partial = scratch(blocks * sizeof *partial);
    #pragma omp parallel for PARALLEL_IF(n)
    for (size_t b = 0; b < blocks; b++) {
        const real *at = (const real *)x + b * BLOCK;
        const floatX *rounded = (const floatX *)x + b * BLOCK;
        size_t count = n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK;
        double s = 0;
        if (term == SQUARED_FLOATX) {
            #pragma omp simd reduction(+:s)
            for (size_t i = 0; i < count; i++) s += (double)R(rounded[i]) * (double)R(rounded[i]);
        } else if (term == SQUARED) {
            #pragma omp simd reduction(+:s)
            for (size_t i = 0; i < count; i++) s += (double)at[i] * (double)at[i];
        } else {
            #pragma omp simd reduction(+:s)
            for (size_t i = 0; i < count; i++) s += (double)at[i];
        }
        partial[b] = s;
    }
    for (size_t b = 0; b < blocks; b++) total += partial[b];
    free(partial);
    return total;
}
static void sum(real *out, const real *inp, size_t n) { *out = (real)DEVICE(sum_of)(inp, n, PLAIN); }

PART(sum) { d->sum = sum; }
