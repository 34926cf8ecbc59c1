/* optim.c: see optim.h. */
#include "optim.h"
#include "parallel.h"
#include "llmc/base/random.h"
#include <math.h>
#include <stdlib.h>

/* ---- Muon or AdamW ---------------------------------------------------------------------------------------
 * Muon's argument is about matrices between two spaces of features: its update has the same size in every direction of both. The
 * rows of the embedding and of the head are tokens: most have no gradient in a step, and orthogonal rows would be no virtue. Jordan
 * and Moonlight (arXiv 2502.16982) leave both to AdamW, and everything with one dimension. Rows of a router are experts, whose
 * gradients differ by how often they were chosen; equal updates in all directions would lift the noise of rare ones to the size of
 * the others. Practice differs: Marin's mixtures train routers with Adam, GLM-4.5 (arXiv 2508.06471) with Muon.
 *
 * AdamW has one rate for all. With Muon the rates were chosen by short runs (docs/recipe.md): what speeds up the formation of
 * attention's patterns pays most, and a dense MLP bears less than experts, each of which sees few of the tokens. */
static const struct { int muon; float decay, rate, experts; } rules[TENSOR_KINDS] = {
    /*                  Muon  decay   rate in a run with Muon, of a tensor of experts */
    [TENSOR_EMBEDDING]   = { 0, 0,    1,  1 },
    [TENSOR_HEAD]        = { 0, 1,    1,  1 },
    [TENSOR_NORM]        = { 0, 0,    4,  4 },
    [TENSOR_BIAS]        = { 0, 0,    1,  1 },
    [TENSOR_ROUTER]      = { 0, 1, .25f,  .25f },
    [TENSOR_ATTENTION]   = { 1, 1,    2,  2 },
    [TENSOR_KEYS_VALUES] = { 1, 1,    2,  2 },
    [TENSOR_MLP]         = { 1, 1,  .5f,  1 },
    [TENSOR_GATE_UP]     = { 1, 1,  .5f,  1 },
};
int muon_updates(const Optimizer *o, const Tensor *t) { return o->muon.options.momentum > 0 && rules[t->kind].muon; }

/* ---- the layout of v ---------------------------------------------------------------------------------------
 * m and the master copy are laid out like the weights; where they are sharded, a rank's pieces follow each other. So is v in ranges
 * without a tensor of Muon's: the embedding, the head. In the other ranges v has AdamW's tensors only, one after the other: a few vectors,
 * whole on every rank, which uses its part of them. */

static size_t padded(size_t n) { return (n + 63) / 64 * 64; }
static int muon_in_range(const Optimizer *o, const Manifest *m, int range) {
    for (int i = 0; i < m->count; i++) if (m->at[i].range == range && muon_updates(o, &m->at[i])) return 1;
    return 0;
}
/* Elements of AdamW's tensors of a range; of those before tensor `end` only. */
static size_t left_to_adamw(const Optimizer *o, const Manifest *m, int range, int end) {
    size_t n = 0;
    for (int i = 0; i < end; i++) if (m->at[i].range == range && !muon_updates(o, &m->at[i])) n += padded(m->at[i].count);
    return n;
}
/* Elements of v before a range. */
static size_t before_range(const Optimizer *o, const Manifest *m, int range, int shards) {
    size_t n = 0;
    for (int i = 0; i < range; i++)
        n += muon_in_range(o, m, i) ? left_to_adamw(o, m, i, m->count) : m->ranges[i].count / (size_t)shards;
    return n;
}
size_t optimizer_count(const Optimizer *o, const Model *m, int kind) {
    return kind == STATE_V ? before_range(o, &m->manifest, m->manifest.range_count, o->shards)
                           : m->manifest.total / (size_t)o->shards;
}
int optimizer_has(const Optimizer *o, const Model *m, int kind, int i) {
    return kind < o->kinds && (kind != STATE_V || !muon_updates(o, &m->manifest.at[i]));
}

Segment optimizer_segment(const Optimizer *o, const Model *m, int i) {
    const Tensor *t = &m->manifest.at[i];
    Segment s = manifest_segment(&m->manifest, i, o->shards, o->shard);
    s.decay = rules[t->kind].decay;
    if (o->muon.options.momentum > 0) s.rate = t->rank > 2 ? rules[t->kind].experts : rules[t->kind].rate;
    if (muon_turn(o, t, 0) >= 0) s.rate *= (float)o->muon.options.period;
    const size_t v = before_range(o, &m->manifest, t->range, o->shards);
    if (muon_in_range(o, &m->manifest, t->range))
        s.without_v = s.offset - s.shift - (v + left_to_adamw(o, &m->manifest, t->range, i) + (s.offset - t->offset));
    else s.without_v = m->manifest.ranges[t->range].offset / (size_t)o->shards - v;
    return s;
}

/* Where gradients or weights are sharded, too, a rank's pieces of them follow each other like those of its state. */
Segment optimizer_stored(const Model *m, Segment s) {
    if (m->dp.level >= 2) s.gradient = s.offset - s.shift;
    if (m->dp.level >= 3) s.offset -= s.shift, s.shift = 0;
    return s;
}

/* ---- planning and starting --------------------------------------------------------------------------------- */

void optimizer_plan(Optimizer *o, Model *m, int master, Dtype moments, MuonOptions muon) {
    const int shards = m->dp.level ? m->dp.shards : 1;
    const size_t each = dtype_size(m->dev, moments);
    const int has_master = master && m->dev->floatX_size < m->dev->real_size;
    *o = (Optimizer){ .tensors = m->manifest.count, .kinds = has_master ? STATE_KINDS : STATE_KINDS - 1, .moments = moments, .muon.options = muon, .shards = shards,
                      .shard = shards > 1 ? parallel_shard(m->dp.parallel) : 0 };
    arena_add(&m->arena, MEM_OPTIMIZER, "m", &o->m, optimizer_count(o, m, 0) * each);
    arena_add(&m->arena, MEM_OPTIMIZER, "v", &o->v, optimizer_count(o, m, STATE_V) * each);
    if (has_master)
        arena_add(&m->arena, MEM_OPTIMIZER, "master weights", &o->master, optimizer_count(o, m, 2) * m->dev->real_size);
    arena_add(&m->arena, MEM_DATA, "segments", &o->segments, (size_t)o->tensors * sizeof *o->segments);
    arena_add(&m->arena, MEM_DATA, "segments of sums", &o->summed, (size_t)o->tensors * sizeof *o->summed);
    arena_add(&m->arena, MEM_DATA, "settings of AdamW", &o->settings, sizeof *o->settings);
    if (muon.momentum > 0) muon_plan(o, m);
}

/* The part of tensor i whose gradient this rank squares: if ordered the whole tensor, in the buffer of parallel_whole_gradients. */
static Segment summed_segment(const Optimizer *o, const Model *m, int i) {
    if (!m->dp.ordered) return optimizer_stored(m, manifest_segment(&m->manifest, i, o->shards, o->shard));
    Segment s = manifest_segment(&m->manifest, i, 1, 0);
    if (m->dp.level >= 2) s.gradient -= m->manifest.ranges[m->manifest.at[i].range].offset;
    return s;
}
static void upload_segments(const Optimizer *o, const Model *m) {
    const size_t bytes = (size_t)o->tensors * sizeof(Segment);
    Segment *own = mem_alloc(bytes), *summed = mem_alloc(bytes);
    for (int i = 0; i < o->tensors; i++) {
        own[i] = optimizer_stored(m, optimizer_segment(o, m, i));
        if (muon_updates(o, &m->manifest.at[i])) own[i].count = 0;
        summed[i] = summed_segment(o, m, i);
    }
    m->dev->upload(o->segments, own, bytes);
    m->dev->upload(o->summed, summed, bytes);
    free(own);
    free(summed);
}
void optimizer_start(Optimizer *o, Model *m) {
    upload_segments(o, m);
    if (o->muon.options.momentum > 0) muon_start(o, m);
    for (int i = 0; i < m->manifest.range_count && o->master; i++) {
        const Segment part = optimizer_stored(m, manifest_part(&m->manifest, i, o->shards, o->shard));
        m->dev->set_master(real_at(m, o->master, part.offset - part.shift), float_at(m, m->params, part.offset), part.count);
    }
}

/* ---- a step ------------------------------------------------------------------------------------------------ */

void optimizer_set(Optimizer *o, Model *m, AdamW a) {
    o->updates++;
    if (m->dp.level >= 3) a.key = random_key(a.key, (uint64_t)o->shard);        /* each rank counts its elements from 0 */
    a.fix1 = 1 / (1 - pow((double)a.beta1, o->updates));
    a.fix2 = 1 / (1 - pow((double)a.beta2, o->updates));
    m->dev->upload(o->settings, &a, sizeof a);
    const Muon muon = { .lr = a.lr, .momentum = o->muon.options.momentum, .decay = a.decay, .clip = a.clip, .key = a.key };
    if (muon.momentum > 0) m->dev->upload(o->muon.settings, &muon, sizeof muon);
}
int optimizer_turn(const Optimizer *o) {
    const MuonOptions *a = &o->muon.options;
    return a->momentum > 0 && a->period > 1 ? o->updates % a->period : 0;
}
/* If ordered, range by range, so that the order of additions does not depend on what is sharded. */
static void square_gradients(const Optimizer *o, Model *m) {
    real *out = m->results.grad_sq_norms;
    if (!m->dp.ordered) { m->dev->grad_sq_norms(out, m->grads, o->summed, o->tensors); return; }
    for (int range = 0, first = 0, end; range < m->manifest.range_count; range++, first = end) {
        for (end = first; end < o->tensors && m->manifest.at[end].range == range; ) end++;
        m->dev->grad_sq_norms(real_at(m, out, (size_t)first), parallel_whole_gradients(m, range), o->summed + first, end - first);
    }
    m->dev->sum(real_at(m, out, (size_t)o->tensors), out, (size_t)o->tensors);
}
void optimizer_update(Optimizer *o, Model *m) {
    square_gradients(o, m);
    parallel_sum_results(m);
    m->dev->adamw(m->params, o->master, o->m, o->v, o->moments, m->grads, m->results.grad_sq_norms, o->segments, o->tensors,
                  o->settings);
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

/* ---- the state, for files ------------------------------------------------------------------------------- */

const char *const state_suffix[STATE_KINDS] = { ".m", ".v", ".master" };
void *optimizer_part(const Optimizer *o, int kind) { return kind == 0 ? o->m : kind == STATE_V ? o->v : o->master; }
size_t optimizer_place(Segment own, int kind) { return own.offset - own.shift - (kind == STATE_V ? own.without_v : 0); }
Dtype optimizer_type(const Optimizer *o, int kind) { return kind == STATE_KINDS - 1 ? REAL : o->moments; }
size_t optimizer_element(const Optimizer *o, const Model *m, int kind) {
    return dtype_size(m->dev, optimizer_type(o, kind));
}
