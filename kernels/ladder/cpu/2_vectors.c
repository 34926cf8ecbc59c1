/* 2_vectors.c: vectors along the sum, four sums at a time.
 *
 * A vector holds LANES partial sums of one element, which are added at the end; saying so by hand
 * allows the reordering. Four elements of a row are made together, so that four chains of sums
 * overlap, and a vector of the input is loaded once for them. Still five loads for four
 * multiply-adds, where a core does as many of the one as of the other; and every row reads the
 * whole matrix of its expert again. */
#include "rung.h"

enum { CHAINS = 4 };

PARALLEL_LINEAR(cpu_parallel_linear_vectors) {
    const Product p = product(out, inp, weight, plan, C, O, inp_rows, out_rows);
#pragma omp parallel for
    for (int row = 0; row < p.S; row++) {
        const int expert = expert_of(&p, row);
        const floatX *x = inp_at(&p, row);
        for (int o = 0; o < O; o += CHAINS) {
            const floatX *w[CHAINS];
            Vector sum[CHAINS] = { 0 };
            for (int i = 0; i < CHAINS; i++) w[i] = weight_at(&p, expert, o + i < O ? o + i : O - 1);
            for (int c = 0; c + LANES <= C; c += LANES)
                for (int i = 0; i < CHAINS; i++) sum[i] += vector_at(x + c) * vector_at(w[i] + c);
            for (int i = 0; i < CHAINS && o + i < O; i++) out_at(&p, row)[o + i] = finish(sum[i], x, w[i], C);
        }
    }
}
