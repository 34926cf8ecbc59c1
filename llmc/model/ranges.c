/* ranges.c: see ranges.h. */
#include "ranges.h"

enum { ENDS, TAIL, LAYERS };            /* LAYERS: the first of the layers' buffers */

int range_buffer(const Model *m, const Ranges *r, int range) {
    if (range == 0) return ENDS;
    if (range == last_range(m)) return m->config.tied ? TAIL : ENDS;
    return LAYERS + (range - 1) % r->layers;
}
static void plan_buffers(Model *m, Ranges *r, int layers, MemCategory category, const char *name, size_t element) {
    r->layers = layers;
    for (int b = 0; b < LAYERS + layers; b++) {
        size_t most = 0;
        for (int i = 0; i <= last_range(m); i++)
            if (range_buffer(m, r, i) == b && m->manifest.ranges[i].count > most) most = m->manifest.ranges[i].count;
        if (most) arena_add(&m->arena, category, name, &r->at[b], most * element);
    }
}
void ranges_plan(Model *m) {
    if (m->dp.level >= 3)
        plan_buffers(m, &m->dp.weights, 3, MEM_WEIGHTS, "weights of whole ranges", m->dev->floatX_size);
    if (m->dp.level >= 2)
        plan_buffers(m, &m->dp.gradients, 2, MEM_GRADIENTS, "gradients of whole ranges", m->dev->real_size);
}

floatX *model_weight(const Model *m, const Tensor *t) {
    if (m->codes && m->codes[t - m->manifest.at].format) return float_at(m, m->from_codes, t->offset);
    if (m->dp.level < 3) return float_at(m, m->params, t->offset);
    return float_at(m, range_memory(m, &m->dp.weights, t->range), t->offset - m->manifest.ranges[t->range].offset);
}
void *model_gradient(const Model *m, const Tensor *t) {
    if (m->dp.level < 2) return gradient_of(t, m->grads);
    return real_at(m, range_memory(m, &m->dp.gradients, t->range), t->offset - m->manifest.ranges[t->range].offset);
}
