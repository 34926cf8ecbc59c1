/* absorb.c: see absorb.h. */
#include "absorb.h"
#include <stdlib.h>

/* The tensors of a range: from *first on. */
static int tensors_of(const Manifest *f, int range, int *first) {
    int n = 0;
    for (int i = f->count; i-- > 0; ) if (f->at[i].range == range) *first = i, n++;
    return n;
}

/* Of ranks that each have a part. A number that is not finite on one is none on all: so all ranks
 * have the same limits and faults. */
static void sum_over_ranks(const Model *m, real *x, int count) {
    Comm *c = m->dp.parallel ? m->dp.parallel->node : NULL;
    if (!c) return;
    c->all_reduce(c, x, (size_t)count);
    c->wait_all(c);
}
/* Adds up what AdamW updates of a range whose piece is in memory that the next range uses, too. */
static void keep_others(const Optimizer *o, const Model *m, int first, int count) {
    for (int i = first; i < first + count && m->dp.level >= 2; i++) {
        const Segment own = optimizer_segment(o, m, i);
        if (m->manifest.at[i].passes || !own.count) continue;
        m->dev->accumulate(real_at(m, m->grads, optimizer_stored(m, i, own).gradient),
                           real_at(m, m->grads, manifest_sums(&m->manifest, m->manifest.at[i].range, own)), own.count);
    }
}
/* The loss and the gradient of the head's input; a fault is said to be of the last tensors. */
static void test_head(const Optimizer *o, const Model *m) {
    const Absorb *b = &o->absorb;
    const size_t tests = (size_t)o->tensors - 2;
    m->dev->grad_sq_norms(b->sq_norms, m->loss_sum, b->parts + o->tensors, 1);
    m->dev->grad_sq_norms(real_at(m, b->sq_norms, 1), m->dfinal, b->parts + o->tensors + 1, 1);
    sum_over_ranks(m, b->sq_norms, 2);
    m->dev->muon_limits(NULL, NULL, NULL, real_at(m, b->faults, tests), real_at(m, b->faults, (size_t)o->tensors),
                        b->sq_norms, 2, o->muon.settings);
}
static void complete(Model *m, int range) {
    const Optimizer *o = m->taker.with;
    const Absorb *b = &o->absorb;
    int first = 0;
    const int count = tensors_of(&m->manifest, range, &first);
    size_t most = 0;
    if (range == m->manifest.range_count - 1) test_head(o, m);
    for (int i = first; i < first + count; i++)
        if (m->manifest.at[i].passes && m->manifest.at[i].count > most) most = m->manifest.at[i].count;
    if (!most) return;
    keep_others(o, m, first, count);
    m->dev->grad_sq_norms(b->sq_norms, m->grads, b->parts + first, count);
    sum_over_ranks(m, b->sq_norms, count);
    m->dev->muon_limits(b->factors, real_at(m, o->norms, 2 * (size_t)first), real_at(m, b->added, (size_t)first),
                        real_at(m, b->faults, (size_t)first), real_at(m, b->faults, (size_t)o->tensors), b->sq_norms,
                        count, o->muon.settings);
    m->dev->muon_add(optimizer_momentum(o), m->grads, b->factors, b->parts + first, count, most, m->batch.key);
}

void absorb_plan(Optimizer *o, Model *m) {
    const size_t Re = m->dev->real_size, tensors = (size_t)o->tensors;
    Absorb *b = &o->absorb;
    Arena *a = &m->arena;
    int first = 0;
    m->taker = (Taker){ complete, o, m->dp.level < 2 ? m->product_gradients : REAL };
    for (int i = 0; i < o->tensors; i++) {
        Tensor *t = &m->manifest.at[i];
        t->passes = muon_updates(o, t);
        if (t->passes) t->dtype = m->taker.dtype;
    }
    for (int i = 0; i < m->manifest.range_count; i++)
        if (tensors_of(&m->manifest, i, &first) > MUON_LIMITED)
            fail(EXIT_USAGE, "-ga momentum: a layer of more than %d tensors", MUON_LIMITED);
    if (m->dp.level < 2) manifest_lay_out_gradients(&m->manifest, m->dev);
    else manifest_lay_out_sums(&m->manifest, m->dev);
    arena_resize(a, &m->grads, m->manifest.gradient_bytes / (size_t)o->shards);
    arena_add(a, MEM_OPTIMIZER, "mean norms", &o->norms, 2 * tensors * Re);
    arena_add(a, MEM_DATA, "absorb: parts", &b->parts, (tensors + 2) * sizeof *b->parts);
    arena_add(a, MEM_DATA, "absorb: squared norms", &b->sq_norms, (MUON_LIMITED + 1) * Re);
    arena_add(a, MEM_DATA, "absorb: factors", &b->factors, 2 * MUON_LIMITED * Re);
    arena_add(a, MEM_DATA, "absorb: added, faults", &b->added, (2 * tensors + 1) * Re);
}
void absorb_start(Optimizer *o, const Model *m) {
    const size_t tensors = (size_t)o->tensors;
    Absorb *b = &o->absorb;
    Segment *parts = mem_alloc((tensors + 2) * sizeof *parts);
    for (int i = 0; i < o->tensors; i++) {
        parts[i] = optimizer_stored(m, i, optimizer_segment(o, m, i));
        if (!m->manifest.at[i].passes) parts[i].count = 0;
    }
    parts[tensors]     = (Segment){ .count = 1, .dtype = REAL };
    parts[tensors + 1] = (Segment){ .count = (size_t)m->batch.N * (size_t)m->config.channels, .dtype = FLOATX };
    m->dev->upload(b->parts, parts, (tensors + 2) * sizeof *parts);
    free(parts);
    b->faults = real_at(m, b->added, tensors);
}
void absorb_begin(const Optimizer *o, const Model *m) {
    m->dev->zero(o->absorb.added, (2 * (size_t)o->tensors + 1) * m->dev->real_size);
}
void absorb_end(const Optimizer *o, Model *m) {
    m->dev->accumulate(m->results.grad_sq_norms, o->absorb.faults, (size_t)o->tensors + 1);
}
