/* optimizer.c: the loss at one end of a step, the update at the other, and the sums they need. */
#include "impl.h"
#include "kernels/random.h"
#include <stdlib.h>

/* ---- cross entropy: loss = lse(x) - x[target], and dlse/dx_v = softmax_v, so dx_v = softmax_v - [v = target] ---- */

/* sum of exp(x - max) over n numbers: a few at a time as real, which vectors do, and those in double, because a vocabulary is long. */
static real sum_of_exp(const floatX *x, int n, real max) {
    enum { FEW = 1024 };
    double total = 0;
    for (int from = 0; from < n; from += FEW) {
        const int to = n - from < FEW ? n : from + FEW;
        real sum = 0;
        #pragma omp simd reduction(+:sum)
        for (int v = from; v < to; v++) sum += fast_exp(R(x[v]) - max);
        total += (double)sum;
    }
    return (real)total;
}
static void cross_entropy(real *loss, floatX *logits, const int *target, float scale, int gradient, int N,
                          int V, int used) {
    #pragma omp parallel for PARALLEL_IF((size_t)N*V*8)
    for (int n = 0; n < N; n++) {
        floatX *x = logits + (size_t)n*V;
        if (target[n] < 0) {
            loss[n] = 0;
            if (gradient) for (int v = 0; v < V; v++) x[v] = X((real)0);
            continue;
        }
        real max = R(x[0]);
        #pragma omp simd reduction(max:max)
        for (int v = 1; v < used; v++) max = R(x[v]) > max ? R(x[v]) : max;
        const real sum = sum_of_exp(x, used, max);
        loss[n] = log(sum) + max - R(x[target[n]]);
        if (!gradient) continue;
        real norm = (real)scale / sum, hit = R(x[target[n]]);
        for (int v = 0; v < used; v++) x[v] = X(fast_exp(R(x[v]) - max) * norm);
        x[target[n]] = X(fast_exp(hit - max) * norm - (real)scale);
        for (int v = used; v < V; v++) x[v] = X((real)0);
    }
}

/* ---- sums: in blocks of fixed size, each in double, added in order ------------------------------------- */

enum { BLOCK = 1 << 14 };

typedef enum { PLAIN, SQUARED, SQUARED_FLOATX } Summand;
static double sum_of(const void *x, size_t n, Summand term) {
    size_t blocks = (n + BLOCK - 1) / BLOCK;
    double total = 0, *partial = malloc((blocks + 1) * sizeof *partial);
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
static void sum(real *out, const real *inp, size_t n) { *out = (real)sum_of(inp, n, PLAIN); }
static void accumulate(real *acc, const real *x, size_t n) {
    #pragma omp parallel for simd PARALLEL_IF(n)
    for (size_t i = 0; i < n; i++) acc[i] += x[i];
}
static void grad_sq_norms(real *out, const void *grads, const Segment *segments, int count) {
    double total = 0;
    for (int i = 0; i < count; i++) {
        const Segment *g = &segments[i];
        const double s = g->dtype == REAL ? sum_of((const real *)grads + g->gradient, g->count, SQUARED)
                                              : sum_of((const floatX *)grads + g->gradient, g->count, SQUARED_FLOATX);
        out[i] = (real)s;
        total += s;
    }
    out[count] = (real)total;
}

/* ---- AdamW: m and v are running means of g and g^2, both divided by 1 - beta^t because they start at zero ---- */

static void adamw(floatX *weight, real *master, void *m, void *v, Dtype moments, const void *grads,
                  const real *grad_sq_norms, const Segment *segments, int count, const AdamW *a) {
    real *m_real = moments == REAL ? m : NULL, *v_real = moments == REAL ? v : NULL;
    floatX *m_short = m, *v_short = v;
    const real norm = sqrt(grad_sq_norms[count]);
    if (!(norm <= (real)3e38)) return;                       /* NaN or infinite: this step does not happen */
    const real scale = a->clip > 0 && norm > (real)a->clip ? (real)a->clip / norm : 1;
    const real b1 = (real)a->beta1, b2 = (real)a->beta2, eps = (real)a->eps;
    const real fix1 = (real)a->fix1, fix2 = (real)a->fix2;
    for (int s = 0; s < count; s++) {
        const size_t from = segments[s].offset, to = from + segments[s].count;
        const real *g_real = segments[s].dtype == REAL ? (const real *)grads + segments[s].gradient : NULL;
        const floatX *g_short = (const floatX *)grads + segments[s].gradient;
        const real lr = (real)a->lr * (real)segments[s].rate;
        const real shrink = 1 - lr * (real)a->decay * (real)segments[s].decay;
        #pragma omp parallel for simd PARALLEL_IF(to - from)
        for (size_t i = from; i < to; i++) {
            const size_t j = i - segments[s].shift, k = j - segments[s].without_v;
            const uint32_t bits = (uint32_t)(random_bits(a->key, i / 2) >> i % 2 * 32);
            const real g = (g_real ? g_real[i - from] : R(g_short[i - from])) * scale;
            const real mean   = b1 * (m_real ? m_real[j] : R(m_short[j])) + (1 - b1) * g;
            const real square = b2 * (v_real ? v_real[k] : R(v_short[k])) + (1 - b2) * g * g;
            const real w = (master ? master[j] : R(weight[i])) * shrink
                         - lr * (mean * fix1) / (sqrt(square * fix2) + eps);
            if (m_real) m_real[j] = mean;   else m_short[j] = X(mean);
            if (v_real) v_real[k] = square; else v_short[k] = X_random(square, bits >> 16);
            if (master) master[j] = w;
            weight[i] = master ? X(w) : X_random(w, bits);
        }
    }
}
static void set_master(real *master, const floatX *weight, size_t n) {
    for (size_t i = 0; i < n; i++) master[i] = R(weight[i]);
}

PART(optimizer) {
    d->cross_entropy = cross_entropy;  d->sum = sum;  d->grad_sq_norms = grad_sq_norms;
    d->adamw = adamw;                  d->set_master = set_master;    d->accumulate = accumulate;
}
