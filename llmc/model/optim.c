/* optim.c: see optim.h. */
#include "optim.h"
#include "parallel.h"
#include <math.h>
#include <stdlib.h>

void optimizer_plan(Optimizer *o, Model *m, int master, Dtype moments) {
    const int shards = m->dp.parallel && m->dp.parallel->sharded ? m->dp.ranks : 1;
    const size_t n = m->manifest.total / (size_t)shards, Re = m->dev->real_size, each = dtype_size(m->dev, moments);
    *o = (Optimizer){ .tensors = m->manifest.count, .moments = moments, .shards = shards,
                      .shard = shards > 1 ? m->dp.parallel->rank : 0 };
    arena_add(&m->arena, MEM_OPTIMIZER, "m", &o->m, n * each);
    arena_add(&m->arena, MEM_OPTIMIZER, "v", &o->v, n * each);
    if (master && m->dev->floatX_size < Re) arena_add(&m->arena, MEM_OPTIMIZER, "master weights", &o->master, n * Re);
    arena_add(&m->arena, MEM_DATA, "segments", &o->segments, (size_t)o->tensors * sizeof *o->segments);
    arena_add(&m->arena, MEM_DATA, "segments of sums", &o->summed, (size_t)o->tensors * sizeof *o->summed);
    arena_add(&m->arena, MEM_DATA, "settings of AdamW", &o->settings, sizeof *o->settings);
}

static void upload_segments(Segment *to, const Model *m, int shards, int shard) {
    const size_t count = (size_t)m->manifest.count;
    Segment *host = mem_alloc(count * sizeof *host);
    for (size_t i = 0; i < count; i++) host[i] = manifest_segment(&m->manifest, (int)i, shards, shard);
    m->dev->upload(to, host, count * sizeof *host);
    free(host);
}
void optimizer_start(Optimizer *o, Model *m) {
    upload_segments(o->segments, m, o->shards, o->shard);
    upload_segments(o->summed, m, m->dp.ordered ? 1 : o->shards, m->dp.ordered ? 0 : o->shard);
    for (int i = 0; i < m->manifest.range_count && o->master; i++) {
        const Segment part = manifest_part(&m->manifest, i, o->shards, o->shard);
        const floatX *weights = (const floatX *)((const char *)m->params + part.offset * m->dev->floatX_size);
        m->dev->set_master(real_at(m, o->master, part.offset - part.shift), weights, part.count);
    }
}

void optimizer_set(Optimizer *o, Model *m, AdamW a) {
    o->updates++;
    a.fix1 = 1 / (1 - pow((double)a.beta1, o->updates));
    a.fix2 = 1 / (1 - pow((double)a.beta2, o->updates));
    m->dev->upload(o->settings, &a, sizeof a);
}
void optimizer_update(Optimizer *o, Model *m) {
    m->dev->grad_sq_norms(m->results.grad_sq_norms, m->grads, o->summed, o->tensors);
    parallel_sum_results(m);
    m->dev->adamw(m->params, o->master, o->m, o->v, o->moments, m->grads, m->results.grad_sq_norms, o->segments, o->tensors,
                  o->settings);
}

double optimizer_norm(Optimizer *o, const double *grad_sq_norms, int *bad_tensor) {
    const double norm = sqrt(grad_sq_norms[o->tensors]);
    *bad_tensor = -1;
    if (!(norm <= 3e38)) {
        *bad_tensor = 0;                                /* each may be finite and only their sum too large */
        for (int i = 0; i < o->tensors; i++) if (!(grad_sq_norms[i] <= 3e38)) *bad_tensor = i;
        o->updates--;
    }
    return norm;
}

/* ---- the state as a whole ------------------------------------------------------------------------------- */

const char *const state_suffix[STATE_KINDS] = { ".m", ".v", ".master" };
void *optimizer_part(const Optimizer *o, int kind) { return kind == 0 ? o->m : kind == 1 ? o->v : o->master; }
Dtype optimizer_type(const Optimizer *o, int kind) { return kind == STATE_KINDS - 1 ? REAL : o->moments; }
size_t optimizer_element(const Optimizer *o, const Model *m, int kind) {
    return dtype_size(m->dev, optimizer_type(o, kind));
}

static void gather(const Optimizer *o, const Model *m, int kind) {
    Comm *c = m->dp.parallel->comm;
    const size_t size = optimizer_element(o, m, kind);
    char *whole = (char *)m->grads, *own = optimizer_part(o, kind);
    for (int i = 0; i < m->manifest.range_count; i++) {
        const Segment part = manifest_part(&m->manifest, i, o->shards, o->shard);
        m->dev->copy(whole + part.offset * size, own + (part.offset - part.shift) * size, part.count * size);
        c->all_gather(c, whole + m->manifest.ranges[i].offset * size, part.count * size);
    }
    c->wait_all(c);
}
const void *optimizer_whole(const Optimizer *o, const Model *m, int kind) {
    if (o->shards == 1) return kind == STATE_END ? NULL : optimizer_part(o, kind);
    group_broadcast(m->dp.parallel->group, &kind, sizeof kind);
    if (kind == STATE_END || !optimizer_part(o, kind)) return NULL;
    gather(o, m, kind);
    return m->grads;
}
void optimizer_lend(const Optimizer *o, const Model *m) {
    for (int kind; o->shards > 1; gather(o, m, kind)) {
        group_broadcast(m->dp.parallel->group, &kind, sizeof kind);
        if (kind == STATE_END) return;
    }
}
