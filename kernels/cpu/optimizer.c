/* optimizer.c: the squared norms of the gradients, and the update. */
#include "sum.h"
#include "kernels/random.h"

static void grad_sq_norms(real *out, const void *grads, const Segment *segments, int count) {
    double total = 0;
    for (int i = 0; i < count; i++) {
        const Segment *g = &segments[i];
        const double s = g->dtype == REAL
            ? DEVICE(sum_of)((const real *)grads + g->gradient, g->count, SQUARED)
            : DEVICE(sum_of)((const floatX *)grads + g->gradient, g->count, SQUARED_FLOATX);
        out[i] = (real)s;
        total += s;
    }
    out[count] = (real)total;
}

real DEVICE(gradient_scale)(real sq_norm, float clip) {
    const real norm = sqrt(sq_norm);
    if (!(norm <= (real)3e38)) return -1;
    return clip > 0 && norm > (real)clip ? (real)clip / norm : 1;
}

/* ---- AdamW: m and v are running means of g and g^2. They start at 0; 1 / (1 - beta^t) corrects:
 *     m = b1 m + (1 - b1) g   v = b2 v + (1 - b2) g^2
 *     w = w (1 - lr decay) - lr (m fix1) / (sqrt(v fix2) + eps) */

static void adamw(floatX *weight, real *master, void *m, void *v, Dtype moments, const void *grads,
                  const real *grad_sq_norms, const Segment *segments, int count, const AdamW *a) {
    real *m_real = moments == REAL ? m : NULL, *v_real = moments == REAL ? v : NULL;
    floatX *m_short = m, *v_short = v;
    const real scale = DEVICE(gradient_scale)(grad_sq_norms[count], a->clip);
    if (scale < 0) return;
    const int cautious = a->cautious;
    const AdamBetas of_all = { a->beta1, a->beta2, a->eps, a->fix1, a->fix2 };
    for (int s = 0; s < count; s++) {
        const AdamBetas *b = segments[s].is_table ? &a->table : &of_all;
        const real b1 = (real)b->beta1, b2 = (real)b->beta2, eps = (real)b->eps;
        const real fix1 = (real)b->fix1, fix2 = (real)b->fix2;
        const size_t from = segments[s].offset, to = from + segments[s].count;
        const real *g_real = segments[s].dtype == REAL ? (const real *)grads + segments[s].gradient : NULL;
        const floatX *g_short = (const floatX *)grads + segments[s].gradient;
        const real lr = (real)a->lr * (real)segments[s].rate;
        const real shrink = 1 - lr * (real)a->decay * (real)segments[s].decay;
        #pragma omp parallel for simd PARALLEL_IF(to - from)
        for (size_t i = from; i < to; i++) {
            const size_t j = i - segments[s].shift, l = j - segments[s].shift_m, k = j - segments[s].shift_v;
            const uint32_t bits = random_32(a->key, i);
            const real g = (g_real ? g_real[i - from] : R(g_short[i - from])) * scale;
            const real mean   = b1 * (m_real ? m_real[l] : R(m_short[l])) + (1 - b1) * g;
            const real square = b2 * (v_real ? v_real[k] : R(v_short[k])) + (1 - b2) * g * g;
            const real was = master ? master[j] : R(weight[i]);
            const real w = was * (cautious && mean * was <= 0 ? 1 : shrink)
                         - lr * (mean * fix1) / (sqrt(square * fix2) + eps);
            if (m_real) m_real[l] = mean;   else m_short[l] = X(mean);
            if (v_real) v_real[k] = square; else v_short[k] = X_random(square, bits >> 16);
            if (master) master[j] = w;
            weight[i] = master ? X(w) : X_random(w, bits);
        }
    }
}
static void set_master(real *master, const floatX *weight, size_t n) {
    for (size_t i = 0; i < n; i++) master[i] = R(weight[i]);
}
static void accumulate(real *acc, const real *x, size_t n) {
    #pragma omp parallel for simd PARALLEL_IF(n)
    for (size_t i = 0; i < n; i++) acc[i] += x[i];
}

PART(optimizer) {
    d->grad_sq_norms = grad_sq_norms;  d->adamw = adamw;
    d->set_master = set_master;        d->accumulate = accumulate;
}
