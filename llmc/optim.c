/* optim.c: see optim.h. */
#include "optim.h"
#include <math.h>
#include <stdlib.h>

void optimizer_plan(Optimizer *o, Model *m) {
    const size_t n = m->manifest.total, Re = m->dev->real_size;
    *o = (Optimizer){ .tensors = m->manifest.count };
    arena_add(&m->arena, MEM_OPTIMIZER, "m", &o->m, n * Re);
    arena_add(&m->arena, MEM_OPTIMIZER, "v", &o->v, n * Re);
    if (m->dev->floatX_size < Re) arena_add(&m->arena, MEM_OPTIMIZER, "master weights", &o->master, n * Re);
    arena_add(&m->arena, MEM_DATA, "segments", &o->segments, (size_t)o->tensors * sizeof *o->segments);
    arena_add(&m->arena, MEM_DATA, "settings of AdamW", &o->settings, sizeof *o->settings);
}

void optimizer_start(Optimizer *o, Model *m) {
    Segment *host = mem_alloc((size_t)o->tensors * sizeof *host);
    manifest_segments(&m->manifest, host);
    m->dev->upload(o->segments, host, (size_t)o->tensors * sizeof *host);
    free(host);
    if (o->master) m->dev->set_master(o->master, m->params, m->manifest.total);
}

void optimizer_set(Optimizer *o, Model *m, AdamW a) {
    o->updates++;
    a.fix1 = 1 / (1 - pow((double)a.beta1, o->updates));
    a.fix2 = 1 / (1 - pow((double)a.beta2, o->updates));
    m->dev->upload(o->settings, &a, sizeof a);
}
void optimizer_update(Optimizer *o, Model *m) {
    m->dev->squares(m->squares, m->grads, o->segments, o->tensors);
    m->dev->adamw(m->params, o->master, o->m, o->v, m->grads, m->squares, o->segments, o->tensors, o->settings);
}

double optimizer_norm(Optimizer *o, const double *squares, int *bad_tensor) {
    const double norm = sqrt(squares[o->tensors]);
    *bad_tensor = -1;
    if (!(norm <= 3e38)) {
        *bad_tensor = 0;                                /* each may be finite and only their sum too large */
        for (int i = 0; i < o->tensors; i++) if (!(squares[i] <= 3e38)) *bad_tensor = i;
        o->updates--;
    }
    return norm;
}
