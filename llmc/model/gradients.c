/* gradients.c: see gradients.h. */
#include "gradients.h"
#include "ranges.h"
#include <string.h>

/* The block of a universal model serves every layer: only the first to run overwrites. */
static Write write_as(const Model *m, int l, int first, Dtype dtype) {
    return dtype == FLOATX ? SET_ROUNDED : first && (l == m->config.layers - 1 || !m->config.universal) ? SET : ADD;
}
Write kept_gradient_write(const Model *m, int l) {
    return write_as(m, l, (m->batch.phase & PHASE_FIRST) != 0, m->matrix_gradients);
}
Write gradient_write(const Model *m, int l) {
    return m->taker.complete ? write_as(m, l, 1, m->taker.dtype) : kept_gradient_write(m, l);
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
