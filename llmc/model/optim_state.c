/* optim_state.c: see optim_state.h. */
#include "optim_state.h"

/* ---- Muon or AdamW ------------------------------------------------------------------------------
 * Muon's argument is about matrices between two spaces of features: its update has the same size in
 * every direction of both. The rows of the embedding and of the head are tokens: most have no
 * gradient in a step, and orthogonal rows would be no virtue. Jordan and Moonlight (arXiv
 * 2502.16982) leave both to AdamW, and everything with one dimension. Rows of a router are experts,
 * whose gradients differ by how often they were chosen; equal updates in all directions would lift
 * the noise of rare ones to the size of the others. Practice differs: Marin's mixtures train
 * routers with Adam, GLM-4.5 (arXiv 2508.06471) with Muon.
 *
 * AdamW has one rate for all. With Muon the rates were chosen by short runs (docs/recipe.md): what
 * speeds up the formation of attention's patterns pays most, and a dense MLP bears less than
 * experts, each of which sees few of the tokens. */
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
    [TENSOR_VALUES]      = { 0, 0,    1,  1 },
    [TENSOR_BIGRAM]      = { 0, 0,    1,  1 },
    [TENSOR_GATE]        = { 0, 0,    1,  1 },
    [TENSOR_SCALARS]     = { 0, 0,    5,  5 },
};
int muon_updates(const Optimizer *o, const Tensor *t) { return o->muon.options.momentum > 0 && rules[t->kind].muon; }
int muon_slice(const Optimizer *o, const Tensor *t, size_t begin) {
    if (!muon_updates(o, t) || o->muon.options.period < 2 || t->rank < 3) return -1;
    return (int)(begin / (t->count / (size_t)t->shape[0]) % (size_t)o->muon.options.period);
}
int optimizer_slice(const Optimizer *o) {
    const MuonOptions *a = &o->muon.options;
    return a->momentum > 0 && a->period > 1 ? o->updates % a->period : 0;
}

/* ---- the layout of v ----------------------------------------------------------------------------
 * m and the master copy are laid out like the weights; where they are sharded, a rank's pieces
 * follow each other. So is v in ranges without a tensor of Muon's: the embedding, the head. In the
 * other ranges v has AdamW's tensors only, one after the other: a few vectors, on every rank. Where
 * Muon's m is codes, m is laid out as v is, and codes are like the weights in the other ranges. */

static size_t padded(size_t n) { return (n + 63) / 64 * 64; }
static int muon_in_range(const Optimizer *o, const Manifest *m, int range) {
    for (int i = 0; i < m->count; i++) if (m->at[i].range == range && muon_updates(o, &m->at[i])) return 1;
    return 0;
}
/* Elements of AdamW's tensors of a range; of those before tensor `end` only. */
static size_t left_to_adamw(const Optimizer *o, const Manifest *m, int range, int end) {
    size_t n = 0;
    for (int i = 0; i < end; i++)
        if (m->at[i].range == range && !muon_updates(o, &m->at[i])) n += padded(m->at[i].count);
    return n;
}
/* Elements of v before a range. */
static size_t before_range(const Optimizer *o, const Manifest *m, int range, int shards) {
    size_t n = 0;
    for (int i = 0; i < range; i++)
        n += muon_in_range(o, m, i) ? left_to_adamw(o, m, i, m->count) : m->ranges[i].count / (size_t)shards;
    return n;
}
/* Elements of codes before a range. */
static size_t codes_before(const Optimizer *o, const Manifest *m, int range) {
    size_t n = 0;
    for (int i = 0; i < range; i++) if (muon_in_range(o, m, i)) n += m->ranges[i].count / (size_t)o->shards;
    return n;
}
static size_t shorter_side(const Tensor *t) {
    const int rows = tensor_rows(t), columns = t->shape[t->rank - 1];
    return (size_t)(rows < columns ? rows : columns);
}
size_t optimizer_unit(int kind) { return kind == STATE_SCALES ? MOMENT_BLOCK : 1; }
size_t optimizer_elements(const Optimizer *o, const Model *m, int kind, int i) {
    const Tensor *t = &m->manifest.at[i];
    if (!optimizer_has(o, m, kind, i)) return 0;
    return kind == STATE_NORMS ? 2 : kind == STATE_SQUARES ? t->count / shorter_side(t)
        : t->count / optimizer_unit(kind);
}
/* Elements of squares before tensor `end`. */
static size_t squares_before(const Optimizer *o, const Model *m, int end) {
    size_t n = 0;
    for (int i = 0; i < end; i++) n += optimizer_elements(o, m, STATE_SQUARES, i);
    return n;
}
size_t optimizer_count(const Optimizer *o, const Model *m, int kind) {
    const size_t codes = o->moments == INT8 ? codes_before(o, &m->manifest, m->manifest.range_count) : 0;
    return kind == STATE_V || (kind == STATE_M && o->moments == INT8)
        ? before_range(o, &m->manifest, m->manifest.range_count, o->shards)
        : kind == STATE_CODES || kind == STATE_SCALES ? codes / optimizer_unit(kind)
        : kind == STATE_SQUARES ? squares_before(o, m, m->manifest.count)
        : kind == STATE_NORMS ? o->muon.options.absorbs ? 2 * (size_t)m->manifest.count : 0
        : m->manifest.total / (size_t)o->shards;
}
int optimizer_has(const Optimizer *o, const Model *m, int kind, int i) {
    const int muon = muon_updates(o, &m->manifest.at[i]), coded = muon && o->moments == INT8;
    return kind < o->kinds && (kind == STATE_SQUARES ? muon && o->muon.options.second > 0
                               : kind == STATE_NORMS ? muon && o->muon.options.absorbs
                               : kind == STATE_CODES || kind == STATE_SCALES ? coded
                               : kind == STATE_M ? !coded : kind != STATE_V || !muon);
}

Segment optimizer_segment(const Optimizer *o, const Model *m, int i) {
    const Tensor *t = &m->manifest.at[i];
    Segment s = manifest_segment(&m->manifest, i, o->shards, o->shard);
    s.decay = rules[t->kind].decay;
    if (o->muon.options.momentum > 0) s.rate = t->rank > 2 ? rules[t->kind].experts : rules[t->kind].rate;
    if (muon_slice(o, t, 0) >= 0) s.rate *= (float)o->muon.options.period;
    s.is_table = t->kind == TENSOR_VALUES || t->kind == TENSOR_BIGRAM;
    if (s.is_table) s.rate = t->kind == TENSOR_VALUES ? o->tables.values : o->tables.bigrams;
    const size_t v = before_range(o, &m->manifest, t->range, o->shards);
    if (muon_in_range(o, &m->manifest, t->range))
        s.shift_v = s.offset - s.shift - (v + left_to_adamw(o, &m->manifest, t->range, i) + (s.offset - t->offset));
    else s.shift_v = m->manifest.ranges[t->range].offset / (size_t)o->shards - v;
    if (o->moments == INT8)
        s.shift_m = !muon_updates(o, t) ? s.shift_v : m->manifest.ranges[t->range].offset / (size_t)o->shards
                  - codes_before(o, &m->manifest, t->range);
    s.squares = squares_before(o, m, i), s.norms = 2 * (size_t)i;
    return s;
}

/* Where gradients or weights are sharded, too, a rank's pieces of them follow each other; but what
 * AdamW updates of a range whose other gradients pass is kept apart from them. */
Segment optimizer_stored(const Model *m, int i, Segment s) {
    const Tensor *t = &m->manifest.at[i];
    if (m->dp.level >= 2)
        s.gradient = m->manifest.ranges[t->range].passes && !t->passes ? t->gradient
            : manifest_sums(&m->manifest, t->range, s);
    if (m->dp.level >= 3) s.offset -= s.shift, s.shift = 0;
    return s;
}

/* ---- the state, for files -------------------------------------------------------------------- */

const char *const state_suffix[STATE_KINDS] = { ".m", ".v", ".squares", ".norms", ".m", ".m_scales", ".master" };
Momentum optimizer_momentum(const Optimizer *o) {
    return (Momentum){ o->moments == INT8 ? o->codes : o->m, o->moments, o->scales };
}
void *optimizer_part(const Optimizer *o, int kind) {
    return (void *[]){ o->m, o->v, o->squares, o->norms, o->codes, o->scales, o->master }[kind];
}
size_t optimizer_offset(Segment own, int kind) {
    const size_t at = own.offset - own.shift;
    return kind == STATE_SQUARES ? own.squares : kind == STATE_NORMS ? own.norms
        : kind == STATE_M || kind == STATE_CODES || kind == STATE_SCALES ? (at - own.shift_m) / optimizer_unit(kind)
        : kind == STATE_V ? at - own.shift_v : at;
}
Dtype optimizer_type(const Optimizer *o, int kind) {
    return kind == STATE_CODES ? INT8 : kind == STATE_SCALES ? FLOATX : kind >= STATE_SQUARES ? REAL
        : o->moments == INT8 ? FLOATX : o->moments;
}
size_t optimizer_element(const Optimizer *o, const Model *m, int kind) {
    return dtype_size(m->dev, optimizer_type(o, kind));
}
