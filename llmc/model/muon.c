/* muon.c: the matrices that Muon updates (kernels.h), in batches of equal shape.
 *
 * A tensor is a stack of matrices: one for each expert, and two of each where gate and up
 * projection, or keys and values, are one tensor. The matrices of one shape, of all layers, are
 * orthogonalized in batches that fit into the buffers. Where experts have time slices (optim.h),
 * those of different slices are in different batches; the others only get their momentum.
 *
 * Where ranks shard the optimizer's state (parallel.h), a rank has the summed gradient, the
 * momentum and the master copy of its piece of every range. Pieces end between the matrices of
 * experts (tensor.h), so that most matrices are whole on one rank, and nothing more is exchanged.
 * In a range without experts, or with few, a piece may begin and end within a matrix. Such a matrix
 * is shared: every rank that has a part of it computes the momentum of its part, all ranks gather
 * the parts, each of these ranks orthogonalizes the whole matrix, and updates its part of the
 * weights. Of few large matrices (a dense model) most are shared. */
#include "muon.h"
#include <stdlib.h>

/* ---- matrices -------------------------------------------------------------------------------- */

static int columns_of(const Tensor *t) { return t->shape[t->rank - 1]; }
static size_t size_of(const Tensor *t) { return (size_t)tensor_rows(t) * (size_t)columns_of(t); }
static size_t max(size_t a, size_t b) { return a > b ? a : b; }
static size_t min(size_t a, size_t b) { return a < b ? a : b; }

/* A matrix, elements begin .. end - 1 of the weights, of which a rank has from .. to - 1. */
typedef struct { int tensor; size_t begin, end, from, to; } Matrix;
static int is_shared(const Matrix *x) { return x->from > x->begin || x->to < x->end; }

/* The next matrix of the arena that the rank has a part of. Before the first: { .tensor = -1 }. */
static int next_matrix(const Optimizer *o, const Manifest *m, int rank, Matrix *x) {
    for (;;) {
        const Tensor *t = x->tensor < 0 ? NULL : &m->at[x->tensor];
        if (t && x->end < t->offset + t->count) x->begin = x->end;
        else {
            do if (++x->tensor == m->count) return 0; while (!muon_updates(o, &m->at[x->tensor]));
            t = &m->at[x->tensor];
            x->begin = t->offset;
        }
        x->end = x->begin + size_of(t);
        const Segment piece = manifest_part(m, t->range, o->shards, rank);
        x->from = max(x->begin, piece.offset), x->to = min(x->end, piece.offset + piece.count);
        if (x->from < x->to) return 1;
    }
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Matrices of a batch: at most AT_ONCE elements together, which is enough work for a GPU. A small
 * one keeps one multiprocessor busy, so many of them are cut into whole rounds. */
enum { AT_ONCE = 1 << 26 };
static int at_once(const MatrixShape *s) {
    const size_t fit = AT_ONCE / ((size_t)s->rows * (size_t)s->columns);
    const int most = fit < 1 ? 1 : fit < MUON_MATRICES ? (int)fit : MUON_MATRICES;
    return most >= s->count ? s->count : most > MULTIPROCESSORS ? most / MULTIPROCESSORS * MULTIPROCESSORS : most;
}

static int belongs_to(const Optimizer *o, const Manifest *m, const Matrix *x, const MatrixShape *s) {
    const Tensor *t = &m->at[x->tensor];
    return s->rows == tensor_rows(t) && s->columns == columns_of(t)
        && s->slice == muon_slice(o, t, x->begin - t->offset);
}
static MatrixShape *shape_of(Optimizer *o, const Manifest *m, const Matrix *x) {
    MatrixOptimizer *u = &o->muon;
    const Tensor *t = &m->at[x->tensor];
    for (int i = 0; i < u->shape_count; i++) if (belongs_to(o, m, x, &u->shapes[i])) return &u->shapes[i];
    if (u->shape_count == MATRIX_SHAPES) fail(EXIT_USAGE, "matrices of more than %d different shapes", MATRIX_SHAPES);
    u->shapes[u->shape_count] = (MatrixShape){ .rows = tensor_rows(t), .columns = columns_of(t),
                                               .slice = muon_slice(o, t, x->begin - t->offset) };
    return &u->shapes[u->shape_count++];
}
/* Counts the matrices of a rank by shape and slice; returns how many there are. */
static int count_matrices(Optimizer *o, const Manifest *m, int rank) {
    MatrixOptimizer *u = &o->muon;
    int all = 0;
    u->shape_count = u->part_count = 0;
    for (Matrix x = { .tensor = -1 }; next_matrix(o, m, rank, &x); ) {
        MatrixShape *s = shape_of(o, m, &x);
        s->count++;
        if (is_shared(&x)) u->part_count++; else s->full++;
    }
    for (int i = 0; i < u->shape_count; i++) u->shapes[i].first = all, all += u->shapes[i].count;
    return all;
}

/* ---- shared matrices ------------------------------------------------------------------------- */

/* The matrix that a border between two pieces, before element `at`, cuts. 0: none. */
static int cut_matrix(const Optimizer *o, const Manifest *m, int range, size_t at, Matrix *x) {
    for (int i = 0; i < m->count; i++) {
        const Tensor *t = &m->at[i];
        if (t->range != range || !muon_updates(o, t) || at < t->offset || at >= t->offset + t->count) continue;
        x->begin = at - (at - t->offset) % size_of(t);
        x->end = x->begin + size_of(t);
        return x->begin < at;
    }
    return 0;
}
/* In `shared` every rank has a slot for each range. The part of a matrix with which the rank's
 * piece begins is at the beginning of the slot, the part with which it ends at the end. All ranks'
 * slots have the size that the largest parts need. */
static size_t slot_elements(const Optimizer *o, const Manifest *m, int range) {
    size_t most = 0;
    for (int rank = 0; rank < o->shards; rank++) {
        const Segment piece = manifest_part(m, range, o->shards, rank);
        const size_t end = piece.offset + piece.count;
        Matrix x;
        size_t parts = cut_matrix(o, m, range, piece.offset, &x) ? min(x.end, end) - piece.offset : 0;
        if (cut_matrix(o, m, range, end, &x) && x.begin >= piece.offset) parts += end - x.begin;
        most = max(most, parts);
    }
    return most;
}
static size_t shared_offset(const Manifest *m, const Matrix *x) {
    const Range *range = &m->ranges[m->at[x->tensor].range];
    return x->from > x->begin ? range->parts_at : range->parts_at + range->parts - (x->to - x->from);
}

/* ---- planning and starting ------------------------------------------------------------------- */

/* All ranks have the buffers of the one with the most matrices: their arenas are laid out alike. */
void muon_plan(Optimizer *o, Model *m) {
    const size_t X = m->dev->floatX_size;
    size_t all = 0, parts = 0, count = 0, elements = 0, squares = 0, scales = 0;
    MatrixOptimizer *u = &o->muon;
    for (int i = 0; i < m->manifest.count && o->moments == INT8; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (muon_updates(o, t) && size_of(t) % MOMENT_BLOCK)
            fail(EXIT_USAGE, "-mo int8: %s has matrices of %d x %d elements, no multiple of %d. -mo f32 or bf16",
                 t->name, tensor_rows(t), columns_of(t), MOMENT_BLOCK);
    }
    for (int rank = 0; rank < o->shards; rank++) {
        all = max(all, (size_t)count_matrices(o, &m->manifest, rank));
        parts = max(parts, (size_t)u->part_count);
        for (int i = 0; i < u->shape_count; i++) {
            const MatrixShape *s = &u->shapes[i];
            const size_t n = (size_t)at_once(s), rows = (size_t)s->rows, columns = (size_t)s->columns;
            const size_t k = min(rows, columns);
            count = max(count, n), elements = max(elements, n * rows * columns), squares = max(squares, n * k * k);
            scales = max(scales, n * max(rows, columns));
        }
    }
    count_matrices(o, &m->manifest, o->shard);
    if (u->options.second > 0) {
        arena_add(&m->arena, MEM_OPTIMIZER, "mean squares", &o->squares,
                  optimizer_count(o, m, STATE_SQUARES) * m->dev->real_size);
        arena_add(&m->arena, MEM_SHARED, "Muon: scale", &u->scale, scales * m->dev->real_size);
    }
    for (int i = 0; i < m->manifest.range_count; i++) {
        Range *range = &m->manifest.ranges[i];
        range->parts_at = u->part_elements;
        u->part_elements += range->parts = slot_elements(o, &m->manifest, i);
    }
    MuonBuffers *b = &u->buffers;
    arena_add(&m->arena, MEM_SHARED, "Muon: x", &b->x, elements * X);
    arena_add(&m->arena, MEM_SHARED, "Muon: out", &b->out, elements * X);
    arena_add(&m->arena, MEM_SHARED, "Muon: gram", &b->gram, squares * X);
    arena_add(&m->arena, MEM_SHARED, "Muon: square", &b->square, squares * X);
    arena_add(&m->arena, MEM_SHARED, "Muon: sums", &b->sums, count * MUON_SUMS * m->dev->real_size);
    arena_add(&m->arena, MEM_SHARED, "Muon: start", &b->start, 2 * (count + 1) * sizeof *b->start);
    if (parts) arena_add(&m->arena, MEM_SHARED, "Muon: parts of all ranks", &u->shared,
                         (size_t)o->shards * u->part_elements * X);
    arena_add(&m->arena, MEM_DATA, "matrices", &u->matrices, all * sizeof *u->matrices);
    arena_add(&m->arena, MEM_DATA, "parts of matrices", &u->parts, parts * sizeof *u->parts);
    arena_add(&m->arena, MEM_DATA, "settings of Muon", &u->settings, sizeof *u->settings);
}

void muon_start(Optimizer *o, const Model *m) {
    const Manifest *f = &m->manifest;
    MatrixOptimizer *u = &o->muon;
    int all = 0, parts = 0, full[MATRIX_SHAPES] = { 0 }, shared[MATRIX_SHAPES] = { 0 };
    for (int i = 0; i < u->shape_count; i++) all += u->shapes[i].count;
    Segment *matrices = mem_alloc((size_t)(all + 1) * sizeof *matrices);
    Segment *part = mem_alloc((size_t)(u->part_count + 1) * sizeof *part);
    for (Matrix x = { .tensor = -1 }; next_matrix(o, f, o->shard, &x); ) {
        const Tensor *t = &f->at[x.tensor];
        const MatrixShape *shape = shape_of(o, f, &x);
        const int which = (int)(shape - u->shapes), i = is_shared(&x) ? shape->full + shared[which]++ : full[which]++;
        Segment s = optimizer_segment(o, m, x.tensor);
        s.offset = x.from, s.count = x.to - x.from, s.gradient = t->gradient + (x.from - t->offset);
        s.squares += (x.begin - t->offset) / size_of(t) * max((size_t)shape->rows, (size_t)shape->columns);
        s = optimizer_stored(m, x.tensor, s);
        s.muon_offset = (size_t)(i % at_once(shape)) * size_of(t) + (x.from - x.begin);
        matrices[shape->first + i] = s;
        if (!is_shared(&x)) continue;
        s.muon_offset = shared_offset(f, &x);
        part[parts++] = s;
    }
    m->dev->upload(u->matrices, matrices, (size_t)all * sizeof *matrices);
    m->dev->upload(u->parts, part, (size_t)parts * sizeof *part);
    free_each(matrices, part);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* NULL: the momentum has them. */
static const void *gradients_of(const Optimizer *o, const Model *m) {
    return o->muon.options.absorbs ? NULL : m->grads;
}
/* Puts `count` shared matrices of a shape together, from `first` on, in buffers.x from `to` on. */
static void collect(const Optimizer *o, const Model *m, const MatrixShape *shape, int first, int count, int to) {
    const MatrixOptimizer *u = &o->muon;
    const Manifest *f = &m->manifest;
    const size_t X = m->dev->floatX_size, n = (size_t)shape->rows * (size_t)shape->columns;
    int i = -first;
    for (Matrix x = { .tensor = -1 }; i < count && next_matrix(o, f, o->shard, &x); ) {
        const Tensor *t = &f->at[x.tensor];
        if (!is_shared(&x) || !belongs_to(o, f, &x, shape) || i++ < 0) continue;
        for (int rank = 0; rank < o->shards; rank++) {
            const Segment piece = manifest_part(f, t->range, o->shards, rank);
            Matrix y = x;
            y.from = max(x.begin, piece.offset), y.to = min(x.end, piece.offset + piece.count);
            if (y.from >= y.to) continue;
            m->dev->copy(float_at(m, u->buffers.x, (size_t)(to + i - 1) * n + (y.from - y.begin)),
                         float_at(m, u->shared, (size_t)rank * u->part_elements + shared_offset(f, &y)),
                         (y.to - y.from) * X);
        }
    }
}

static void update_batch(const Optimizer *o, const Model *m, const MatrixShape *s, int first, int count) {
    const MatrixOptimizer *u = &o->muon;
    const int due = s->slice < 0 || s->slice == optimizer_slice(o);
    const Device *dev = m->dev;
    const real *grad_sq_norm = real_at(m, m->results.grad_sq_norms, (size_t)o->tensors);
    const Segment *matrices = u->matrices + s->first + first;
    const int full = s->full - first < 0 ? 0 : s->full - first < count ? s->full - first : count;
    const void *grads = gradients_of(o, m);
    if (due || grads)
        dev->muon_momentum(due ? u->buffers.x : NULL, optimizer_momentum(o), grads, grad_sq_norm, matrices, full,
                           (size_t)s->rows * (size_t)s->columns, u->settings);
    if (!due) return;
    if (count > full) collect(o, m, s, first + full - s->full, count - full, full);
    dev->orthogonalize(dev, &u->buffers, count, s->rows, s->columns);
    if (u->scale)
        dev->muon_scale(u->scale, o->squares, u->buffers.out, grad_sq_norm, matrices, count, s->rows, s->columns,
                        u->settings);
    dev->muon_update(m->params, o->master, u->buffers.out, u->scale, grad_sq_norm, matrices, count, s->rows,
                     s->columns, u->settings);
}

void muon_update(Optimizer *o, const Model *m) {
    const MatrixOptimizer *u = &o->muon;
    Comm *c = m->dp.parallel ? m->dp.parallel->node : NULL;
    if (u->shared && c) {
        m->dev->muon_momentum(float_at(m, u->shared, (size_t)o->shard * u->part_elements), optimizer_momentum(o),
                              gradients_of(o, m), real_at(m, m->results.grad_sq_norms, (size_t)o->tensors), u->parts,
                              u->part_count, u->part_elements, u->settings);
        c->all_gather(c, u->shared, float_at(m, u->shared, (size_t)o->shard * u->part_elements),
                      u->part_elements * m->dev->floatX_size);
        c->wait_all(c);
    }
    for (int i = 0; i < u->shape_count; i++) {
        const int most = at_once(&u->shapes[i]), all = u->shapes[i].count;
        for (int first = 0; first < all; first += most)
            update_batch(o, m, &u->shapes[i], first, all - first < most ? all - first : most);
    }
}
