/* parallel.c: see parallel.h. */
#include "parallel.h"
#include "routers.h"
#include "shards.h"
#include <stdlib.h>

static Comm *connect_watched(const Parallel *p, const Device *dev, Group *group) {
    char why[256];
    Comm *c = dev->connect(group, why);
    if (!c) fail(EXIT_PEER, "rank %d: %s", p->rank, why);
    group_watch(p->group, c);
    return c;
}
void parallel_connect(Parallel *p, const Device *dev, int which, ProcessGroup *processes, int local) {
    const char *why = dev->open(which);
    if (why) fail(EXIT_CUDA, "%s", why);
    p->group = group_of(processes, local);
    p->rank = p->group->rank;
    if (p->ranks == 1) return;
    p->node = p->comm = connect_watched(p, dev, p->group);
}
void parallel_form_nodes(Parallel *p, const Device *dev) {
    const int shards = parallel_shards(p), shard = parallel_shard(p);
    if (shards == p->ranks) return;
    p->parts[0] = group_part(p->group, p->rank - shard, 1, shards);
    p->parts[1] = group_part(p->group, shard, shards, p->ranks / shards);
    p->node   = connect_watched(p, dev, p->parts[0]);
    p->across = connect_watched(p, dev, p->parts[1]);
}
void parallel_disconnect(Parallel *p) {
    group_barrier(p->group);
    group_watch(p->group, NULL);
    if (p->across) p->across->close(p->across), p->node->close(p->node);
    if (p->comm) p->comm->close(p->comm);
    for (int i = 0; i < 2; i++) free(p->parts[i]);
}
double parallel_sum(const Parallel *p, double x, double low, double high) {
    double sum = 0, *all = mem_alloc((size_t)p->ranks * sizeof *all);
    group_gather(p->group, all, x, low, high);
    for (int i = 0; i < p->ranks; i++) sum += all[i];
    free(all);
    return sum;
}

/* ---- in a step ------------------------------------------------------------------------------- */

static Comm *comm_of(const Model *m) { return m->dp.parallel ? m->dp.parallel->comm : NULL; }
static Comm *node_of(const Model *m) { return m->dp.parallel ? m->dp.parallel->node : NULL; }
static real *grads_of(const Model *m, const Range *r) { return real_at(m, m->grads, r->offset); }

void parallel_register_memory(const Model *m) {
    Comm *c = node_of(m);
    if (!c || !m->dp.stage) return;
    c->register_memory(c, m->dp.parallel->one_process ? m->arena.base : NULL, m->arena.total, m->dp.stage,
                       manifest_largest(&m->manifest) / (size_t)c->size);
}

void parallel_sum_loads(Model *m) {
    Comm *c = comm_of(m);
    if (!c || !m->routers) return;
    const size_t loads = router_offset(m, m->routers) + 1;              /* and the tokens that they count */
    m->dev->copy(m->results.load, m->dp.own_load, loads * sizeof *m->results.load);
    c->all_reduce_ints(c, m->results.load, loads);
}

void parallel_wait_loads(Model *m) {
    Comm *c = comm_of(m);
    if (c && m->routers) c->wait_all(c);
}

static void add_all_in_order(Model *m) {
    sum_in_order(m, m->dp.sums, m->grads, m->manifest.total);
    if (m->batch.phase & PHASE_LAST) m->dev->copy(m->grads, m->dp.sums, m->manifest.total * m->dev->real_size);
}

static void send_gradients(Model *m) {
    Comm *c = node_of(m);
    if (!c || !m->dp.pending) return;
    const Range *r = &m->manifest.ranges[m->dp.pending - 1];
    if (m->dp.level) c->reduce_scatter(c, grads_of(m, r), r->count / (size_t)c->size);
    else             c->all_reduce(c, grads_of(m, r), r->count);
    shards_cross(m, m->dp.pending);
    m->dp.pending = 0;
}
static void open_gradients(Model *m, int range) { if (m->dp.level >= 2) shards_open(m, range); }
static void finish_gradients(Model *m, int range) {
    Comm *c = node_of(m);
    if (m->dp.level >= 2) { shards_send(m, range); return; }
    if (m->dp.ordered && range == 0) add_all_in_order(m);
    if (m->dp.ordered || !c || !(m->batch.phase & PHASE_LAST)) return;
    send_gradients(m);
    m->dp.pending = range + 1;
    if (range > 0) return;
    send_gradients(m);
    c->wait_all(c);
    shards_finish(m);
}

const void *parallel_full_gradients(Model *m, int range) {
    return m->dp.level >= 2 ? (const void *)shards_gather_gradients(m, range) : m->grads;
}

/* step_losses, losses and grad_sq_norms are one array. Without a sharded optimizer every rank has
 * all norms. All nodes have the same, so the first node's are summed. If ordered, losses and loads
 * of routers are those of the step's last micro-batch, which the last rank had. */
void parallel_sum_results(Model *m) {
    Comm *c = comm_of(m);
    if (!c) return;
    const size_t losses = (size_t)(m->batch.all_micro_batches + 2 * m->routers), norms = (size_t)m->manifest.count + 1;
    const size_t loads = router_offset(m, m->routers);
    if (m->dp.ordered && c->rank == c->size - 1)
        m->dev->copy(m->results.load, m->dp.own_load, loads * sizeof *m->results.load);
    else if (m->dp.ordered) {
        m->dev->zero(m->results.load, loads * sizeof *m->results.load);
        m->dev->zero(m->results.losses, (size_t)(2 * m->routers) * m->dev->real_size);
    }
    if (m->dp.parallel->rank >= m->dp.shards && !m->dp.ordered)
        m->dev->zero(m->results.grad_sq_norms, norms * m->dev->real_size);
    if (m->dp.ordered && loads) c->all_reduce_ints(c, m->results.load, loads);
    c->all_reduce(c, m->results.step_losses, losses + (m->dp.level && !m->dp.ordered ? norms : 0));
    c->wait_all(c);
}

/* ---- weights --------------------------------------------------------------------------------- */

static char *weights_of(const Model *m, int range) {
    return (char *)m->params + m->manifest.ranges[range].offset * m->dev->floatX_size;
}

void parallel_gather_weights(Model *m, int behind) {
    Comm *c = node_of(m);
    if (!c || !m->dp.level || m->dp.level >= 3) return;
    for (int i = 0; i < m->manifest.range_count; i++) {
        const size_t bytes = m->manifest.ranges[i].count / (size_t)c->size * m->dev->floatX_size;
        c->all_gather(c, weights_of(m, i), weights_of(m, i) + (size_t)c->rank * bytes, bytes);
        if (behind) c->record(c, i);
    }
    if (!behind) c->wait_all(c);
}
void parallel_begin_weights(Model *m) { if (m->dp.level >= 3) shards_forget(m); }
void parallel_wait_weights(Model *m, int range, int way) {
    Comm *c = node_of(m);
    if (m->dp.level >= 3) shards_wait(m, range, way);
    else if (c && m->dp.level && way >= 0) c->wait(c, range);
}
const Exchange *parallel_exchange(const Parallel *p) {
    static const Exchange exchange = { parallel_begin_weights, parallel_wait_weights, open_gradients, finish_gradients,
                                       send_gradients, parallel_sum_loads, parallel_wait_loads };
    return p && (p->ranks > 1 || p->ordered) ? &exchange : NULL;
}
void parallel_pass_weights(Model *m) {
    parallel_begin_weights(m);
    for (int i = 0; i < m->manifest.range_count && m->dp.level >= 3; i++) parallel_wait_weights(m, i, 1);
}
void parallel_wait_all_weights(const Model *m) {
    Comm *c = node_of(m);
    if (c && m->dp.level && m->dp.level < 3) c->wait(c, m->manifest.range_count - 1);
}
void parallel_keep_weights(Model *m, int range) { if (m->dp.level >= 3) shards_keep(m, range); }

/* Sharded ones are gathered in the stage, as large as any range, and unused between steps. */
const void *parallel_full_weights(const Model *m, int range) {
    Comm *c = node_of(m);
    if (m->dp.level < 3) return weights_of(m, range);
    const size_t own = m->manifest.ranges[range].offset / (size_t)c->size, X = m->dev->floatX_size;
    c->all_gather(c, m->dp.stage, (char *)m->params + own * X, m->manifest.ranges[range].count / (size_t)c->size * X);
    c->wait_all(c);
    return m->dp.stage;
}
