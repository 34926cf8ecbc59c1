/* muon.c: Muon. The update of a matrix is its momentum with all singular values made nearly equal.
 *
 * If X = U diag(s) V^T, then (a I + b X X^T + c (X X^T)^2) X = U diag(a s + b s^3 + c s^5) V^T: an odd polynomial of X is the same
 * polynomial of every singular value, and takes products of matrices only. Those of X / |X| (Frobenius) are at most 1. Jordan's
 * coefficients have the largest slope at 0, 3.44, for which the values then do not converge, but wander between 0.68 and 1.13:
 * five steps bring there all that were above about 0.003. For the update that is as good as 1.
 *
 * The products are ParallelLinear's: matrix e is the weight of expert e, and the rows of the other factor are its tokens. With
 * fewer rows than columns X X^T is the smaller one; else it is X^T X, and the polynomial is multiplied from the right. */
#include "impl.h"
#include "kernels/random.h"

static const real newton_schulz[3] = { (real)3.4445, (real)-4.7750, (real)2.0315 };

/* x /= its Frobenius norm; zeros stay. */
static void normalize(floatX *x, size_t n) {
    double sum = 0;
    #pragma omp simd reduction(+:sum)
    for (size_t i = 0; i < n; i++) sum += (double)R(x[i]) * (double)R(x[i]);
    const real scale = sum > 0 ? (real)(1 / sqrt(sum)) : 0;
    for (size_t i = 0; i < n; i++) x[i] = X(R(x[i]) * scale);
}

/* square = a I + b gram + c square: k x k. */
static void polynomial(floatX *square, const floatX *gram, size_t k) {
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < k; j++) {
            const size_t at = i * k + j;
            square[at] = X((i == j ? newton_schulz[0] : 0) + newton_schulz[1] * R(gram[at]) + newton_schulz[2] * R(square[at]));
        }
}

static Plan plan_of(int *start, int count, int rows) {
    for (int e = 0; e <= count; e++) start[e] = e * rows;
    return (Plan){ .N = count * rows, .E = count, .K = 1, .S = count * rows, .start = start };
}

static void orthogonalize(const Device *d, const MuonBuffers *b, int count, int rows, int columns) {
    const size_t n = (size_t)rows * (size_t)columns;
    const int wide = rows <= columns, k = wide ? rows : columns;
    const Plan plan = plan_of(b->start, count, rows), square = plan_of(b->start + count + 1, count, k);
    floatX *x = b->x, *y = b->out;
    #pragma omp parallel for schedule(dynamic) PARALLEL_IF((size_t)count * n)
    for (int e = 0; e < count; e++) normalize(x + (size_t)e * n, n);
    for (int step = 0; step < MUON_STEPS; step++) {
        if (wide) d->parallel_linear_forward(b->gram, x, x, &plan, columns, rows, GROUPED, GROUPED);
        else d->parallel_linear_backward_weight(b->gram, x, x, &plan, columns, columns, GROUPED, GROUPED, SET_ROUNDED);
        d->parallel_linear_forward(b->square, b->gram, b->gram, &square, k, k, GROUPED, GROUPED);
        #pragma omp parallel for PARALLEL_IF((size_t)count * n)
        for (int e = 0; e < count; e++) {
            const size_t at = (size_t)e * (size_t)k * (size_t)k;
            polynomial(b->square + at, b->gram + at, (size_t)k);
        }
        if (wide) d->parallel_linear_backward_input(y, b->square, x, &plan, columns, rows, GROUPED, GROUPED);
        else d->parallel_linear_forward(y, x, b->square, &plan, columns, columns, GROUPED, GROUPED);
        floatX *t = x;
        x = y, y = t;
    }
}

/* How much of the gradient is taken; a negative number: nothing, its norm is NaN or infinite, and this step does not happen. */
static real scale_of(const real *grad_sq_norm, const Muon *a) {
    const real norm = sqrt(*grad_sq_norm);
    if (!(norm <= (real)3e38)) return -1;
    return a->clip > 0 && norm > (real)a->clip ? (real)a->clip / norm : 1;
}

/* The momentum looks one gradient ahead (Nesterov). */
static void momentum_of(floatX *x, void *m, Dtype moments, const void *grads, const Segment *s, real beta, real scale) {
    real *m_real = moments == REAL ? (real *)m + (s->offset - s->shift) : NULL;
    floatX *m_short = (floatX *)m + (s->offset - s->shift);
    const real *g_real = s->dtype == REAL ? (const real *)grads + s->gradient : NULL;
    const floatX *g_short = (const floatX *)grads + s->gradient;
    for (size_t i = 0; i < s->count; i++) {
        const real g = (g_real ? g_real[i] : R(g_short[i])) * scale;
        const real mean = beta * (m_real ? m_real[i] : R(m_short[i])) + (1 - beta) * g;
        if (m_real) m_real[i] = mean; else m_short[i] = X(mean);
        x[i] = X(beta * mean + (1 - beta) * g);
    }
}
static void muon_momentum(floatX *x, void *m, Dtype moments, const void *grads, const real *grad_sq_norm, const Segment *parts,
                          int count, size_t most, const Muon *a) {
    const real scale = scale_of(grad_sq_norm, a);
    (void)most;                         /* without OpenMP */
    #pragma omp parallel for schedule(dynamic) PARALLEL_IF((size_t)count * most)
    for (int e = 0; e < count; e++)
        if (scale >= 0) momentum_of(x + parts[e].at, m, moments, grads, &parts[e], (real)a->momentum, scale);
}

static void update_of(floatX *weight, real *master, const floatX *out, const Segment *s, real shrink, real lr, uint64_t key) {
    for (size_t j = 0; j < s->count; j++) {
        const size_t i = s->offset + j;
        const uint32_t bits = (uint32_t)(random_bits(key, i / 2) >> i % 2 * 32);
        const real w = (master ? master[i - s->shift] : R(weight[i])) * shrink - lr * R(out[j]);
        if (master) master[i - s->shift] = w;
        weight[i] = master ? X(w) : X_random(w, bits);
    }
}
static void muon_update(floatX *weight, real *master, const floatX *out, const real *grad_sq_norm, const Segment *parts, int count,
                        int rows, int columns, const Muon *a) {
    const real size = (real)0.2 * sqrt((real)(rows > columns ? rows : columns));
    if (scale_of(grad_sq_norm, a) < 0) return;
    #pragma omp parallel for schedule(dynamic) PARALLEL_IF((size_t)count * (size_t)rows * (size_t)columns)
    for (int e = 0; e < count; e++) {
        const Segment *s = &parts[e];
        const real lr = (real)a->lr * (real)s->rate;
        update_of(weight, master, out + s->at, s, 1 - lr * (real)a->decay * (real)s->decay, lr * size, a->key);
    }
}

PART(muon) { d->muon_momentum = muon_momentum; d->orthogonalize = orthogonalize; d->muon_update = muon_update; }
