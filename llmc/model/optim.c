/* optim.c: see optim.h. */
#include "optim.h"
#include "parallel.h"
#include <math.h>
#include <stdlib.h>

/* ---- who updates what ------------------------------------------------------------------------------------
 * Muon's argument is about matrices between two spaces of features: its update has the same size in every direction of both. The
 * rows of the embedding and of the head are tokens: most have no gradient in a step, and orthogonal rows would be no virtue. Jordan
 * and Moonlight (arXiv 2502.16982) leave both to AdamW, and everything with one dimension. Rows of a router are experts: few, and
 * balanced by a loss of their own; an update of equal size in all directions is mostly noise there. */
static const struct { int muon; float rate, decay; } rules[TENSOR_KINDS] = {
    /*             Muon  rate  decay */
    [TENSOR_EMBEDDING] = { 0,    1,    0 },
    [TENSOR_HEAD]      = { 0,    1,    1 },
    [TENSOR_NORM]      = { 0,    1,    0 },
    [TENSOR_BIAS]      = { 0,    1,    0 },
    [TENSOR_ROUTER]    = { 0,    1,    1 },
    [TENSOR_MATRIX]    = { 1,    1,    1 },
    [TENSOR_STACKED]   = { 1,    1,    1 },
};
static int by_muon(const Optimizer *o, const Tensor *t) { return o->momentum > 0 && rules[t->kind].muon; }

/* The rows of one matrix of t: it is (.., rows, columns), or (.., 2 rows, columns). */
static int rows_of(const Tensor *t) { return t->shape[t->rank - 2] / (t->kind == TENSOR_STACKED ? 2 : 1); }
static int columns_of(const Tensor *t) { return t->shape[t->rank - 1]; }
static int matrices_of(const Tensor *t) { return (int)(t->count / ((size_t)rows_of(t) * (size_t)columns_of(t))); }
static int has_shape(const Tensor *t, const MatrixShape *s) { return rows_of(t) == s->rows && columns_of(t) == s->columns; }

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* Muon takes as many matrices of a shape at a time as have so many elements: enough work for a GPU. Small ones, of which a
 * multiprocessor makes one at a time, in whole rounds of the 132 of an H100 or H200. */
enum { AT_ONCE = 1 << 26, ROUND = 132 };
static int at_once(const MatrixShape *s) {
    const size_t fit = AT_ONCE / ((size_t)s->rows * (size_t)s->columns);
    const int most = fit < 1 ? 1 : fit < MUON_MATRICES ? (int)fit : MUON_MATRICES;
    return most >= s->count ? s->count : most > ROUND ? most / ROUND * ROUND : most;
}

static void find_shapes(Optimizer *o, const Manifest *m) {
    int first = 0;
    for (int i = 0; i < m->count; i++) {
        const Tensor *t = &m->at[i];
        int s = 0;
        if (!by_muon(o, t)) continue;
        while (s < o->shape_count && !has_shape(t, &o->shapes[s])) s++;
        if (s == MATRIX_SHAPES) fail(EXIT_USAGE, "matrices of more than %d different shapes", MATRIX_SHAPES);
        if (s == o->shape_count) o->shapes[o->shape_count++] = (MatrixShape){ .rows = rows_of(t), .columns = columns_of(t) };
        o->shapes[s].count += matrices_of(t);
    }
    for (int s = 0; s < o->shape_count; s++) o->shapes[s].first = first, first += o->shapes[s].count;
}

static size_t max(size_t a, size_t b) { return a > b ? a : b; }
static void plan_muon(Optimizer *o, Model *m) {
    const size_t X = m->dev->floatX_size;
    size_t all = 0, count = 0, elements = 0, squares = 0;
    for (int i = 0; i < o->shape_count; i++) {
        const MatrixShape *s = &o->shapes[i];
        const size_t n = (size_t)at_once(s), rows = (size_t)s->rows, columns = (size_t)s->columns;
        const size_t k = rows < columns ? rows : columns;
        all += (size_t)s->count;
        count = max(count, n), elements = max(elements, n * rows * columns), squares = max(squares, n * k * k);
    }
    MuonBuffers *b = &o->buffers;
    arena_add(&m->arena, MEM_SHARED, "Muon: x", &b->x, elements * X);
    arena_add(&m->arena, MEM_SHARED, "Muon: out", &b->out, elements * X);
    arena_add(&m->arena, MEM_SHARED, "Muon: gram", &b->gram, squares * X);
    arena_add(&m->arena, MEM_SHARED, "Muon: square", &b->square, squares * X);
    arena_add(&m->arena, MEM_SHARED, "Muon: sums", &b->sums, count * MUON_SUMS * m->dev->real_size);
    arena_add(&m->arena, MEM_SHARED, "Muon: start", &b->start, 2 * (count + 1) * sizeof *b->start);
    arena_add(&m->arena, MEM_DATA, "matrices", &o->matrices, all * sizeof *o->matrices);
    arena_add(&m->arena, MEM_DATA, "settings of Muon", &o->muon_settings, sizeof *o->muon_settings);
}

/* Elements of v: a tensor that has one begins where the one before it ends, aligned as in the arena of weights. */
static size_t elements_of_v(const Optimizer *o, const Manifest *m, int tensors) {
    size_t n = 0;
    for (int i = 0; i < tensors; i++) if (!by_muon(o, &m->at[i])) n += (m->at[i].count + 63) / 64 * 64;
    return n;
}

size_t optimizer_count(const Optimizer *o, const Model *m, int kind) {
    return kind == 1 && o->momentum > 0 ? elements_of_v(o, &m->manifest, o->tensors) : m->manifest.total / (size_t)o->shards;
}

void optimizer_plan(Optimizer *o, Model *m, int master, Dtype moments, float momentum) {
    const int shards = m->dp.parallel && m->dp.parallel->sharded ? m->dp.ranks : 1;
    const size_t Re = m->dev->real_size, each = dtype_size(m->dev, moments);
    *o = (Optimizer){ .tensors = m->manifest.count, .moments = moments, .shards = shards,
                      .shard = shards > 1 ? m->dp.parallel->rank : 0, .momentum = momentum };
    find_shapes(o, &m->manifest);
    arena_add(&m->arena, MEM_OPTIMIZER, "m", &o->m, optimizer_count(o, m, 0) * each);
    arena_add(&m->arena, MEM_OPTIMIZER, "v", &o->v, optimizer_count(o, m, 1) * each);
    if (master && m->dev->floatX_size < Re) arena_add(&m->arena, MEM_OPTIMIZER, "master weights", &o->master, optimizer_count(o, m, 2) * Re);
    arena_add(&m->arena, MEM_DATA, "segments", &o->segments, (size_t)o->tensors * sizeof *o->segments);
    arena_add(&m->arena, MEM_DATA, "segments of sums", &o->summed, (size_t)o->tensors * sizeof *o->summed);
    arena_add(&m->arena, MEM_DATA, "settings of AdamW", &o->settings, sizeof *o->settings);
    if (o->momentum > 0) plan_muon(o, m);
}

static void upload_summed(const Optimizer *o, const Model *m) {
    const size_t count = (size_t)o->tensors;
    Segment *host = mem_alloc(count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        host[i] = manifest_segment(&m->manifest, (int)i, m->dp.ordered ? 1 : o->shards, m->dp.ordered ? 0 : o->shard);
    m->dev->upload(o->summed, host, count * sizeof *host);
    free(host);
}
/* This rank's shard of tensor i, by the rules of its group. */
static Segment segment_of(const Optimizer *o, const Model *m, int i) {
    const Tensor *t = &m->manifest.at[i];
    Segment s = manifest_segment(&m->manifest, i, o->shards, o->shard);
    s.rate = rules[t->kind].rate, s.decay = rules[t->kind].decay;
    if (o->momentum > 0) s.without_v = s.offset - s.shift - elements_of_v(o, &m->manifest, i);
    return s;
}
/* Of AdamW's tensors; Muon's are empty. */
static void upload_segments(const Optimizer *o, const Model *m) {
    const size_t count = (size_t)o->tensors;
    Segment *host = mem_alloc(count * sizeof *host);
    for (size_t i = 0; i < count; i++) {
        host[i] = segment_of(o, m, (int)i);
        if (by_muon(o, &m->manifest.at[i])) host[i].count = 0;
    }
    m->dev->upload(o->segments, host, count * sizeof *host);
    free(host);
}
static void upload_matrices(const Optimizer *o, const Model *m, const MatrixShape *shape) {
    const size_t n = (size_t)shape->rows * (size_t)shape->columns;
    Segment *host = mem_alloc((size_t)shape->count * sizeof *host), *to = host;
    for (int i = 0; i < o->tensors; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (!by_muon(o, t) || !has_shape(t, shape)) continue;
        Segment s = segment_of(o, m, i);
        s.count = n;
        for (int matrix = 0; matrix < matrices_of(t); matrix++, s.offset += n, s.gradient += n) *to++ = s;
    }
    m->dev->upload(o->matrices + shape->first, host, (size_t)shape->count * sizeof *host);
    free(host);
}
void optimizer_start(Optimizer *o, Model *m) {
    upload_segments(o, m);
    upload_summed(o, m);
    for (int i = 0; i < o->shape_count; i++) upload_matrices(o, m, &o->shapes[i]);
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
    const Muon muon = { .lr = a.lr, .momentum = o->momentum, .decay = a.decay, .clip = a.clip, .key = a.key };
    if (o->momentum > 0) m->dev->upload(o->muon_settings, &muon, sizeof muon);
}
static void update_matrices(const Optimizer *o, const Model *m, const MatrixShape *s) {
    const int most = at_once(s);
    for (int i = 0; i < s->count; i += most)
        m->dev->muon(m->dev, m->params, o->master, o->m, o->moments, m->grads,
                     real_at(m, m->results.grad_sq_norms, (size_t)o->tensors), o->matrices + s->first + i,
                     s->count - i < most ? s->count - i : most, s->rows, s->columns, &o->buffers, o->muon_settings);
}
void optimizer_update(Optimizer *o, Model *m) {
    m->dev->grad_sq_norms(m->results.grad_sq_norms, m->grads, o->summed, o->tensors);
    parallel_sum_results(m);
    m->dev->adamw(m->params, o->master, o->m, o->v, o->moments, m->grads, m->results.grad_sq_norms, o->segments, o->tensors,
                  o->settings);
    for (int i = 0; i < o->shape_count; i++) update_matrices(o, m, &o->shapes[i]);
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

int optimizer_has(const Optimizer *o, const Model *m, int kind, int i) {
    return kind != 1 || !by_muon(o, &m->manifest.at[i]);
}
size_t optimizer_offset(const Optimizer *o, const Model *m, int kind, int i) {
    return kind == 1 && o->momentum > 0 ? elements_of_v(o, &m->manifest, i) : m->manifest.at[i].offset;
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
