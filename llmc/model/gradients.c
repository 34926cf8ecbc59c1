/* gradients.c: see gradients.h. */
#include "gradients.h"
#include "ranges.h"
#include <string.h>

/* The block of a universal model serves every layer: only the first to run overwrites. */
Write gradient_write(const Model *m, int l) {
    const int first = m->batch.phase & PHASE_FIRST && (l == m->config.layers - 1 || !m->config.universal);
    return m->matrix_gradients == FLOATX ? SET_ROUNDED : first ? SET : ADD;
}

/* Most matrices' gradients are one product, which overwrites (gradient_write); others are sums. */
void model_clear_gradients(Model *m, int range) {
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        const int overwritten = !t->summed && (t->kind != TENSOR_EMBEDDING || m->config.tied);
        if (t->range == range && !overwritten) m->dev->zero(model_gradient(m, t), t->count * t->element);
    }
}
void model_gradients(const Model *m, double *host) {
    memset(host, 0, m->manifest.total * sizeof *host);
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        const void *from = gradient_of(t, m->grads);
        if (t->dtype == REAL) m->dev->reals_to_double(host + t->offset, from, t->count);
        else m->dev->to_double(host + t->offset, from, t->count);
    }
}
