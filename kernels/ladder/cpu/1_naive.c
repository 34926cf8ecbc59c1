/* 1_naive.c: three plain loops.
 *
 * For every row its expert's matrix, row by row. Sums of floats may not be reordered, so the
 * compiler must add one product after the other: each waits four cycles for the one before, in one
 * lane of sixteen (AVX-512). A core could do 128 times as much. */
#include "rung.h"

PARALLEL_LINEAR(cpu_parallel_linear_naive) {
    const Product p = product(out, inp, weight, plan, C, O, inp_rows, out_rows);
#pragma omp parallel for
    for (int row = 0; row < p.S; row++) {
        const int expert = expert_of(&p, row);
        const floatX *x = inp_at(&p, row);
        for (int o = 0; o < O; o++) {
            const floatX *w = weight_at(&p, expert, o);
            real sum = 0;
            for (int c = 0; c < C; c++) sum += x[c] * w[c];
            out_at(&p, row)[o] = sum;
        }
    }
}
