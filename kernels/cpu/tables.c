/* tables.c: what some models add beside the layers: values from a table, and to the residual stream
 * what it began with and rows of pairs of tokens. */
#include "impl.h"
#include "kernels/random.h"

/* ---- values from a table: rows (G,D) of kv's second half ------------------------------------- */

static real twice_sigmoid(real x) { return 2 / (1 + exp(-x)); }

static void value_forward(floatX *kv, const floatX *gate, const int *token, const floatX *table, int N, int G, int D) {
    const size_t width = (size_t)G * (size_t)D;
    #pragma omp parallel for PARALLEL_IF((size_t)N * width)
    for (int n = 0; n < N; n++)
        for (int g = 0; g < G; g++) {
            const real factor = gate ? twice_sigmoid(R(gate[(size_t)n*(size_t)G + (size_t)g])) : 1;
            floatX *v = kv + (size_t)n*2*width + width + (size_t)g*(size_t)D;
            const floatX *row = table + (size_t)token[n]*width + (size_t)g*(size_t)D;
            for (int i = 0; i < D; i++) v[i] = X(R(v[i]) + factor * R(row[i]));
        }
}
/* With f = 2 sigmoid(gate): df/dgate = f (1 - f/2). */
static void value_backward(floatX *dvalues, floatX *dgate, const floatX *dkv, const floatX *gate, const int *token,
                           const floatX *table, int N, int G, int D) {
    const size_t width = (size_t)G * (size_t)D;
    #pragma omp parallel for PARALLEL_IF((size_t)N * width)
    for (int n = 0; n < N; n++)
        for (int g = 0; g < G; g++) {
            const size_t at = (size_t)n*(size_t)G + (size_t)g;
            const real factor = twice_sigmoid(R(gate[at]));
            const floatX *dv = dkv + (size_t)n*2*width + width + (size_t)g*(size_t)D;
            const floatX *row = table + (size_t)token[n]*width + (size_t)g*(size_t)D;
            real dot = 0;
            for (int i = 0; i < D; i++) {
                dot += R(dv[i]) * R(row[i]);
                dvalues[at*(size_t)D + (size_t)i] = X(factor * R(dv[i]));
            }
            dgate[at] = X(dot * factor * (1 - factor / 2));
        }
}

/* ---- mix ------------------------------------------------------------------------------------- */

/* The factors of x, first and extra. */
typedef struct { real x, first, extra; } Factors;
static Factors factors_of(Mix m) {
    return (Factors){ m.first ? exp(R(m.scalars[0])) : 1, R(m.scalars[1]), 1 + R(m.scalars[2]) };
}
static void mix_forward(floatX *x, Mix m, int N, int C) {
    const Factors f = factors_of(m);
    const size_t n = (size_t)N * (size_t)C;
    #pragma omp parallel for PARALLEL_IF(n)
    for (size_t i = 0; i < n; i++)
        x[i] = X(f.x * R(x[i]) + (m.first ? f.first * R(m.first[i]) : 0) + (m.extra ? f.extra * R(m.extra[i]) : 0));
}
/* exp(s) x is what forward added to the rest: out - first's and extra's parts. Each token has its
 * sums, and these are added in order. */
static void mix_backward(floatX *d, floatX *dfirst, floatX *dextra, real *dscalars, const floatX *out, Mix m, int N,
                         int C) {
    const Factors f = factors_of(m);
    real *sums = scratch((size_t)N * 3 * sizeof *sums), total[3] = { 0 };
    #pragma omp parallel for PARALLEL_IF((size_t)N * (size_t)C)
    for (int n = 0; n < N; n++) {
        real of_x = 0, of_first = 0, of_extra = 0;
        for (size_t i = (size_t)n*(size_t)C; i < ((size_t)n + 1)*(size_t)C; i++) {
            const real g = R(d[i]), first = m.first ? R(m.first[i]) : 0, extra = m.extra ? R(m.extra[i]) : 0;
            of_x += g * (R(out[i]) - f.first * first - f.extra * extra);
            of_first += g * first;
            of_extra += g * extra;
            if (dfirst) dfirst[i] = X(R(dfirst[i]) + f.first * g);
            if (dextra) dextra[i] = X(R(dextra[i]) + f.extra * g);
            d[i] = X(f.x * g);
        }
        sums[(size_t)n*3] = m.first ? of_x : 0, sums[(size_t)n*3 + 1] = of_first, sums[(size_t)n*3 + 2] = of_extra;
    }
    for (size_t n = 0; n < (size_t)N; n++) for (size_t i = 0; i < 3; i++) total[i] += sums[n*3 + i];
    for (int i = 0; i < 3; i++) dscalars[i] += total[i];
    free(sums);
}

/* ---- bigrams --------------------------------------------------------------------------------- */

static void bigram_rows(int *row, int *before, int *seen, const int *token, const int *position, const int *at, int N,
                        int T, int rows) {
    for (int n = 0; n < N && at; n++) seen[at[n]] = token[n];
    for (int n = 0; n < N; n++) {
        before[n] = !position[n] ? 0 : 1 + (T > 1 ? token[n - 1] : seen[at[n] - 1]);
        row[n] = pair_row(before[n], token[n], rows);
    }
}
static void flip_signs(floatX *x, const int *token, const int *before, int N, int C) {
    #pragma omp parallel for PARALLEL_IF((size_t)N * (size_t)C)
    for (int n = 0; n < N; n++)
        for (int from = 0; from < C; from += 64) {
            const uint64_t bits = pair_bits(before[n], token[n], (uint64_t)from / 64);
            floatX *v = x + (size_t)n*(size_t)C + (size_t)from;
            for (int i = 0; i < 64 && from + i < C; i++) if (bits >> i & 1) v[i] = X(-R(v[i]));
        }
}

PART(tables) {
    d->value_forward = value_forward;  d->value_backward = value_backward;
    d->mix_forward = mix_forward;      d->mix_backward = mix_backward;
    d->bigram_rows = bigram_rows;      d->flip_signs = flip_signs;
}
