/* 3_registers.c: a tile of 4 x 4 sums in registers.
 *
 * Four rows of an expert times four rows of its matrix: eight loads serve sixteen multiply-adds,
 * and a row of the matrix is read once for four rows of the input. Half of the loads are gone; what
 * is left to gain is where the numbers come from. They lie far apart, in the order of memory, not
 * of use, and a matrix larger than a cache is read from memory for every four rows. The last rung,
 * kernels/cpu/matmul.c, copies both into panels, in order, for L1 and L2, with 24 sums. */
#include "rung.h"

enum { TILE = 4 };

/* Rows beyond the expert's last, and columns beyond O, are computed as the last, not stored. */
static void tile(const Product *p, int expert, int row, int column) {
    const floatX *x[TILE], *w[TILE];
    const int rows = p->start[expert + 1] - row, columns = p->O - column;
    Vector sum[TILE][TILE] = { 0 };
    for (int i = 0; i < TILE; i++) {
        x[i] = inp_at(p, row + (i < rows ? i : rows - 1));
        w[i] = weight_at(p, expert, column + (i < columns ? i : columns - 1));
    }
    for (int c = 0; c + LANES <= p->C; c += LANES)
        UNROLL(4)
        for (int i = 0; i < TILE; i++)
            UNROLL(4)
            for (int j = 0; j < TILE; j++) sum[i][j] += vector_at(x[i] + c) * vector_at(w[j] + c);
    for (int i = 0; i < TILE && i < rows; i++)
        for (int j = 0; j < TILE && j < columns; j++)
            out_at(p, row + i)[column + j] = finish(sum[i][j], x[i], w[j], p->C);
}

PARALLEL_LINEAR(cpu_parallel_linear_registers) {
    const Product p = product(out, inp, weight, plan, C, O, inp_rows, out_rows);
    for (int e = 0; e < p.E; e++) {
        const int first = p.start[e], last = p.start[e + 1];
#pragma omp parallel for
        for (int column = 0; column < O; column += TILE)
            for (int row = first; row < last; row += TILE) tile(&p, e, row, column);
    }
}
