/* optim.c: see optim.h. */
#include "optim.h"
#include "absorb.h"
#include "muon.h"
#include "parallel.h"
#include "llmc/base/random.h"
#include <math.h>
#include <stdlib.h>

/* ---- planning and starting ------------------------------------------------------------------- */

static size_t bytes_of(const Optimizer *o, const Model *m, int kind) {
    return optimizer_count(o, m, kind) * optimizer_element(o, m, kind);
}
void optimizer_plan(Optimizer *o, Model *m, int master, Dtype moments, MuonOptions muon) {
    const int shards = m->dp.level ? m->dp.shards : 1;
    const int has_master = master && m->dev->floatX_size < m->dev->real_size;
    *o = (Optimizer){ .tensors = m->manifest.count, .kinds = has_master ? STATE_KINDS : STATE_KINDS - 1,
                      .moments = moments, .muon.options = muon, .tables = TABLE_RATES,
                      .shards = shards, .shard = shards > 1 ? parallel_shard(m->dp.parallel) : 0 };
    arena_add(&m->arena, MEM_OPTIMIZER, "m", &o->m, bytes_of(o, m, STATE_M));
    arena_add(&m->arena, MEM_OPTIMIZER, "v", &o->v, bytes_of(o, m, STATE_V));
    if (moments == INT8) arena_add(&m->arena, MEM_OPTIMIZER, "codes of m", &o->codes, bytes_of(o, m, STATE_CODES));
    if (moments == INT8) arena_add(&m->arena, MEM_OPTIMIZER, "scales of m", &o->scales, bytes_of(o, m, STATE_SCALES));
    if (has_master)
        arena_add(&m->arena, MEM_OPTIMIZER, "master weights", &o->master,
                  optimizer_count(o, m, STATE_MASTER) * m->dev->real_size);
    arena_add(&m->arena, MEM_DATA, "segments", &o->segments, (size_t)o->tensors * sizeof *o->segments);
    arena_add(&m->arena, MEM_DATA, "segments of sums", &o->summed, (size_t)o->tensors * sizeof *o->summed);
    arena_add(&m->arena, MEM_DATA, "settings of AdamW", &o->settings, sizeof *o->settings);
    if (muon.momentum > 0) muon_plan(o, m);
    if (muon.absorbs) absorb_plan(o, m);
}

/* What this rank squares of tensor i: if ordered all, in the buffer of parallel_full_gradients. */
static Segment summed_segment(const Optimizer *o, const Model *m, int i) {
    if (!m->dp.ordered) return optimizer_stored(m, i, manifest_segment(&m->manifest, i, o->shards, o->shard));
    Segment s = manifest_segment(&m->manifest, i, 1, 0);
    if (m->dp.level >= 2) s.gradient -= m->manifest.ranges[m->manifest.at[i].range].offset;
    return s;
}
static void upload_segments(const Optimizer *o, const Model *m) {
    const size_t bytes = (size_t)o->tensors * sizeof(Segment);
    Segment *own = mem_alloc(bytes), *summed = mem_alloc(bytes);
    for (int i = 0; i < o->tensors; i++) {
        own[i] = optimizer_stored(m, i, optimizer_segment(o, m, i));
        summed[i] = summed_segment(o, m, i);
        if (muon_updates(o, &m->manifest.at[i])) own[i].count = 0;
        if (m->manifest.at[i].passes) summed[i].count = 0;
    }
    m->dev->upload(o->segments, own, bytes);
    m->dev->upload(o->summed, summed, bytes);
    free_each(own, summed);
}
void optimizer_start(Optimizer *o, Model *m) {
    upload_segments(o, m);
    if (o->muon.options.momentum > 0) muon_start(o, m);
    if (o->muon.options.absorbs) absorb_start(o, m);
    for (int i = 0; i < m->manifest.range_count && o->master; i++) {
        const Segment part = manifest_part(&m->manifest, i, o->shards, o->shard);
        const size_t stored = part.offset - part.shift;
        m->dev->set_master(real_at(m, o->master, stored),
                           float_at(m, m->params, m->dp.level < 3 ? part.offset : stored), part.count);
    }
}

#define TABLE_BETAS ((AdamBetas){ .beta1 = 0.75f, .beta2 = 0.95f, .eps = 1e-15f })
static double fix(float beta, int updates) { return 1 / (1 - pow((double)beta, updates)); }

/* ---- a step ---------------------------------------------------------------------------------- */

void optimizer_set(Optimizer *o, Model *m, AdamW a) {
    o->updates++;
    if (m->dp.level >= 3) a.key = random_key(a.key, (uint64_t)o->shard);    /* each rank counts its elements from 0 */
    a.fix1 = fix(a.beta1, o->updates), a.fix2 = fix(a.beta2, o->updates);
    a.table = TABLE_BETAS;
    a.table.fix1 = fix(a.table.beta1, o->updates), a.table.fix2 = fix(a.table.beta2, o->updates);
    m->dev->upload(o->settings, &a, sizeof a);
    const MuonOptions *u = &o->muon.options;
    const Muon muon = { a.lr, u->momentum, a.decay, a.clip, u->plain ? 1 : u->momentum, a.cautious, a.key, u->second,
                        u->most };
    if (u->momentum > 0) m->dev->upload(o->muon.settings, &muon, sizeof muon);
    if (u->absorbs) absorb_begin(o, m);
}
/* If ordered, range by range, so that the order of additions does not depend on what is sharded. */
static void square_gradients(const Optimizer *o, Model *m) {
    real *out = m->results.grad_sq_norms;
    if (!m->dp.ordered) { m->dev->grad_sq_norms(out, m->grads, o->summed, o->tensors); return; }
    for (int range = 0, first = 0, end; range < m->manifest.range_count; range++, first = end) {
        for (end = first; end < o->tensors && m->manifest.at[end].range == range; ) end++;
        m->dev->grad_sq_norms(real_at(m, out, (size_t)first), parallel_full_gradients(m, range), o->summed + first,
                              end - first);
    }
    m->dev->sum(real_at(m, out, (size_t)o->tensors), out, (size_t)o->tensors);
}
void optimizer_update(Optimizer *o, Model *m) {
    square_gradients(o, m);
    if (o->muon.options.absorbs) absorb_end(o, m);
    parallel_sum_results(m);
    m->dev->adamw(m->params, o->master, o->m, o->v, optimizer_type(o, STATE_M), m->grads, m->results.grad_sq_norms,
                  o->segments, o->tensors, o->settings);
    if (o->muon.options.momentum > 0) muon_update(o, m);
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
