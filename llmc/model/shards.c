/* shards.c: levels 2 and 3 (parallel.h): buffers for whole ranges, and when they hold which range.
 *
 * Weights: the range in use and the next two in the direction of the pass; the second next is
 * gathered into the buffer of the range that was just used. Gradients: the range that is computed,
 * and the one computed before it, which is being sent to its owners. The embedding, and the head
 * unless it is the embedding, use one buffer of their own at different times. */
#include "shards.h"
#include "gradients.h"
#include "ranges.h"

static Comm *comm_of(const Model *m) { return m->dp.parallel->node; }
/* Of a range: the elements of one rank, and where this rank has them. */
static size_t own_count(const Model *m, int i) { return m->manifest.ranges[i].count / (size_t)comm_of(m)->size; }
static char *own(const Model *m, void *shards, int range, size_t element) {
    return (char *)shards + m->manifest.ranges[range].offset / (size_t)comm_of(m)->size * element;
}

/* ---- weights --------------------------------------------------------------------------------- */

void shards_forget(Model *m) {
    for (int b = 0; b < RANGE_BUFFERS; b++) m->dp.weights.held[b] = m->dp.weights.moving[b] = 0;
}
static void gather(Model *m, int range) {
    Ranges *w = &m->dp.weights;
    Comm *c = comm_of(m);
    const size_t X = m->dev->floatX_size;
    const int b = range_buffer(m, w, range);
    if (w->held[b] == range + 1) return;
    c->all_gather(c, w->at[b], own(m, m->params, range, X), own_count(m, range) * X);
    c->record(c, range);
    w->held[b] = range + 1;
    w->moving[b] = 1;
}
/* 1: neither `range` nor one between it and `next` uses the buffer of next. */
static int is_free(const Model *m, int range, int next, int way) {
    const Ranges *w = &m->dp.weights;
    for (int i = range; i != next; i += way) if (range_buffer(m, w, i) == range_buffer(m, w, next)) return 0;
    return 1;
}
void shards_wait(Model *m, int range, int way) {
    enum { AHEAD = 2 };
    Ranges *w = &m->dp.weights;
    const int b = range_buffer(m, w, range);
    gather(m, range);
    for (int i = 1; i <= AHEAD && way; i++) {
        const int next = range + way * i;
        if (next >= 1 && next <= last_range(m) && is_free(m, range, next, way)) gather(m, next);
    }
    if (w->moving[b]) {
        comm_of(m)->wait(comm_of(m), range);
        comm_of(m)->host_wait(comm_of(m), range);
    }
    w->moving[b] = 0;
}
void shards_keep(Model *m, int range) {
    const size_t X = m->dev->floatX_size, bytes = own_count(m, range) * X;
    const char *full = range_memory(m, &m->dp.weights, range);
    m->dev->copy(own(m, m->params, range, X), full + (size_t)comm_of(m)->rank * bytes, bytes);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Numbers of events: ranges have those of weights. */
static int event_of(const Model *m, int buffer) { return m->manifest.range_count + buffer; }

void shards_open(Model *m, int range) {
    Ranges *g = &m->dp.gradients;
    const int b = range_buffer(m, g, range);
    if (g->moving[b]) comm_of(m)->wait(comm_of(m), event_of(m, b));
    g->moving[b] = 0;
    model_clear_gradients(m, range);
}
static real *own_sums(const Model *m, int range) {
    const Range *r = &m->manifest.ranges[range];
    const size_t at = m->dp.level < 2 ? r->offset + (size_t)comm_of(m)->rank * own_count(m, range) : r->sums;
    return real_at(m, m->grads, at);
}
/* A piece at a time, as large as m->dp.gathered has room for. */
void sum_in_order(Model *m, real *sums, const real *x, size_t n) {
    const size_t Re = m->dev->real_size, ranks = (size_t)m->dp.ranks;
    Comm *c = m->dp.parallel->comm;
    if (!c) m->dev->accumulate(sums, x, n);
    for (size_t from = 0; from < n && c; from += GATHERED) {
        const size_t some = n - from < GATHERED ? n - from : GATHERED;
        c->all_gather(c, m->dp.gathered, (const char *)x + from * Re, some * Re);
        c->wait_all(c);
        for (size_t r = 0; r < ranks && sums; r++)
            m->dev->accumulate(real_at(m, sums, from), real_at(m, m->dp.gathered, r * some), some);
    }
}
static void add_in_order(Model *m, int range) {
    const size_t n = own_count(m, range);
    real *full = range_memory(m, &m->dp.gradients, range);
    for (int i = 0; i < comm_of(m)->size; i++)
        sum_in_order(m, i == comm_of(m)->rank ? own_sums(m, range) : NULL, real_at(m, full, (size_t)i * n), n);
}
/* A range is complete in its node when the next has been sent: long enough that nothing waits. */
void shards_cross(Model *m, int sent) {
    Comm *c = comm_of(m), *across = m->dp.parallel->across;
    const int event = m->manifest.range_count + RANGE_BUFFERS, range = m->dp.crossing - 1;
    if (!across || m->dp.ordered) return;
    if (range >= 0) {
        c->wait(c, event);
        across->all_reduce(across, own_sums(m, range), own_count(m, range));
    }
    if (sent) c->record(c, event);
    m->dp.crossing = sent;
}
void shards_finish(Model *m) {
    Comm *across = m->dp.parallel->across;
    if (!across || m->dp.ordered) return;
    shards_cross(m, 0);
    across->wait_all(across);
}
/* Its owners have the sums of the range that was sent before. */
static void give_to_taker(Model *m) {
    const int range = m->dp.sent - 1;
    m->dp.sent = 0;
    if (range < 0) return;
    comm_of(m)->wait(comm_of(m), event_of(m, range_buffer(m, &m->dp.gradients, range)));
    m->taker.complete(m, range);
}
void shards_send(Model *m, int range) {
    Ranges *g = &m->dp.gradients;
    Comm *c = comm_of(m);
    const int b = range_buffer(m, g, range);
    give_to_taker(m);
    if (m->manifest.ranges[range].passes)
        m->dev->zero(own_sums(m, range), own_count(m, range) * m->dev->real_size);
    if (m->dp.ordered && m->dp.parallel->across) add_in_order(m, range);
    else c->scatter_add(c, own_sums(m, range), g->at[b], own_count(m, range));
    c->record(c, event_of(m, b));
    if (m->batch.phase & PHASE_LAST) shards_cross(m, range + 1);
    g->moving[b] = 1;
    if (m->taker.complete) m->dp.sent = range + 1;
    if (range > 0) return;
    c->wait_all(c);
    give_to_taker(m);
    if (m->batch.phase & PHASE_LAST) shards_finish(m);
    for (int i = 0; i < RANGE_BUFFERS; i++) g->moving[i] = 0;
}
const real *shards_gather_gradients(Model *m, int range) {
    Comm *c = comm_of(m);
    const size_t Re = m->dev->real_size;
    real *full = range_memory(m, &m->dp.gradients, range);
    c->all_gather(c, full, own_sums(m, range), own_count(m, range) * Re);
    c->wait_all(c);
    return full;
}
