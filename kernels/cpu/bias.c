/* bias.c: biases, of all rows or of each expert. Their gradient is the sum over their rows. */
#include "impl.h"

static void bias_forward(floatX *x, const floatX *bias, int N, int C) {
    #pragma omp parallel for PARALLEL_IF((size_t)N*C)
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++) x[(size_t)n*C + c] = X(R(x[(size_t)n*C + c]) + R(bias[c]));
}
static void bias_backward(real *dbias, const floatX *dout, int N, int C) {
    enum { WIDE = 16 };
    #pragma omp parallel for PARALLEL_IF((size_t)N*C)
    for (int from = 0; from < C; from += WIDE)
        for (int n = 0; n < N; n++)
            for (int c = from; c < C && c < from + WIDE; c++) dbias[c] += R(dout[(size_t)n*C + c]);
}

/* ---- biases of experts ----------------------------------------------------------------------- */

static void expert_bias_forward(floatX *x, const floatX *bias, const Plan *plan, int O) {
    #pragma omp parallel for PARALLEL_IF((size_t)plan->S*O)
    for (int e = 0; e < plan->E; e++)
        for (int row = plan->start[e]; row < plan->start[e + 1]; row++)
            for (int o = 0; o < O; o++) x[(size_t)row*O + o] = X(R(x[(size_t)row*O + o]) + R(bias[(size_t)e*O + o]));
}
static void expert_bias_backward(real *dbias, real *dweight, const floatX *dout, const floatX *bias, const real *weight,
                                 const Plan *plan, int O, Rows dout_rows) {
    #pragma omp parallel for PARALLEL_IF((size_t)plan->S*O)
    for (int e = 0; e < plan->E; e++) {
        const floatX *b = bias + (size_t)e*O;
        real *db = dbias + (size_t)e*O;
        for (int row = plan->start[e]; row < plan->start[e + 1]; row++) {
            const floatX *d = dout + (size_t)(dout_rows == BY_TOKEN ? plan->token_of_row[row] : row) * (size_t)O;
            const int slot = plan->slot_of_row[row];
            const real w = weight ? weight[slot] : 1;
            real dot = 0;
            for (int o = 0; o < O; o++) db[o] += w * R(d[o]);
            for (int o = 0; o < O && dweight; o++) dot += R(d[o]) * R(b[o]);
            if (dweight) dweight[slot] += dot;
        }
    }
}

PART(bias) {
    d->bias_forward = bias_forward;                d->bias_backward = bias_backward;
    d->expert_bias_forward = expert_bias_forward;  d->expert_bias_backward = expert_bias_backward;
}
