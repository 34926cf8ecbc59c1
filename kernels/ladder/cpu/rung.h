/* rung.h: what the rungs for a CPU have in common: ParallelLinear's arguments and rows.
 *
 *     out[row i] = inp[row i] weight[e]^T   for start[e] <= i < start[e+1], of every expert e
 *
 * Rows are not moved: a list has the position of row i in an operand (none if sorted). For f32. */
#pragma once
#include "kernels/cpu/impl.h"
#include "kernels/ladder/ladder.h"

typedef struct {
    floatX *out;
    const floatX *inp, *weight;
    const int *start, *inp_row, *out_row;       /* the position of row i in inp and out; NULL: i */
    int E, S, C, O;
} Product;

static inline Product product(floatX *out, const floatX *inp, const floatX *weight, const Plan *plan, int C, int O,
                              Rows inp_rows, Rows out_rows) {
    const int *const list[] = { plan->token_of_row, plan->slot_of_row, NULL };      /* by Rows */
    return (Product){ out, inp, weight, plan->start, list[inp_rows], list[out_rows], plan->E,
                      plan->start[plan->E], C, O };
}
static inline const floatX *inp_at(const Product *p, int row) {
    return p->inp + (size_t)(p->inp_row ? p->inp_row[row] : row) * (size_t)p->C;
}
static inline floatX *out_at(const Product *p, int row) {
    return p->out + (size_t)(p->out_row ? p->out_row[row] : row) * (size_t)p->O;
}
static inline const floatX *weight_at(const Product *p, int expert, int column) {
    return p->weight + ((size_t)expert * (size_t)p->O + (size_t)column) * (size_t)p->C;
}
static inline int expert_of(const Product *p, int row) {                /* the one with start[e] <= row < start[e+1] */
    int e = 0;
    while (p->start[e + 1] <= row) e++;
    return e;
}
/* The sum over the lanes, and over what is left of two rows behind their last whole vector. */
static inline real finish(Vector sum, const floatX *x, const floatX *w, int C) {
    real s = 0;
    for (int i = 0; i < LANES; i++) s += sum[i];
    for (int c = C / LANES * LANES; c < C; c++) s += x[c] * w[c];
    return s;
}
static inline Vector vector_at(const floatX *p) { return *(const Vector *)p; }
