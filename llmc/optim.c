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
    arena_add(&m->arena, MEM_DATA, "squares", &o->squares, (size_t)(o->tensors + 1) * Re);
    arena_add(&m->arena, MEM_DATA, "segments", &o->segments, (size_t)o->tensors * sizeof *o->segments);
}

void optimizer_start(Optimizer *o, Model *m) {
    Segment *host = mem_alloc((size_t)o->tensors * sizeof *host);
    manifest_segments(&m->manifest, host);
    m->dev->upload(o->segments, host, (size_t)o->tensors * sizeof *host);
    free(host);
    if (o->master) m->dev->set_master(o->master, m->params, m->manifest.total);
}

void optimizer_step(Optimizer *o, Model *m, AdamW a) {
    a.step = ++o->updates;
    m->dev->squares(o->squares, m->grads, o->segments, o->tensors);
    m->dev->adamw(m->params, o->master, o->m, o->v, m->grads, o->squares, o->segments, o->tensors, a);
}

double optimizer_norm(Optimizer *o, const Model *m, int *bad_tensor) {
    double *squares = mem_alloc((size_t)(o->tensors + 1) * sizeof *squares);
    m->dev->reals_to_double(squares, o->squares, (size_t)o->tensors + 1);
    const double norm = sqrt(squares[o->tensors]);
    *bad_tensor = -1;
    if (!(norm <= 3e38)) {
        *bad_tensor = 0;                                /* each may be finite and only their sum too large */
        for (int i = 0; i < o->tensors; i++) if (!(squares[i] <= 3e38)) *bad_tensor = i;
        o->updates--;
    }
    free(squares);
    return norm;
}
