/* parallel.c: see parallel.h. */
#define _POSIX_C_SOURCE 200809L
#include "parallel.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

void parallel_connect(Parallel *p, const Device *dev, int which, World *world, int local) {
    const char *why = dev->open(which);
    char why_not[256];
    if (why) fail(EXIT_CUDA, "%s", why);
    p->peers = world_peers(world, local);
    p->rank = p->peers->rank;
    if (p->ranks == 1) return;
    if (!(p->comm = dev->connect(p->peers, why_not))) fail(EXIT_PEER, "rank %d: %s", p->rank, why_not);
    world_watch(p->peers, p->comm);
}
void parallel_disconnect(Parallel *p) {
    world_barrier(p->peers);
    world_watch(p->peers, NULL);
    if (p->comm) p->comm->close(p->comm);
}
double parallel_sum(const Parallel *p, double x) {
    double sum = 0, *all = mem_alloc((size_t)p->ranks * sizeof *all);
    world_gather(p->peers, all, x);
    for (int i = 0; i < p->ranks; i++) sum += all[i];
    free(all);
    return sum;
}

/* ---- in a step ------------------------------------------------------------------------------------------ */

static Comm *comm_of(const Model *m) { return m->parallel ? m->parallel->comm : NULL; }
static real *grads_of(const Model *m, const Range *r) { return real_at(m, m->grads, r->offset); }

void parallel_share(const Model *m) {
    Comm *c = comm_of(m);
    if (c && m->stage) c->share(c, m->arena.base, m->arena.total, m->stage, manifest_largest(&m->manifest) / (size_t)c->size);
}

void parallel_sum_loads(Model *m) {
    Comm *c = comm_of(m);
    if (!c || !m->routers) return;
    const size_t loads = (size_t)m->routers * (size_t)router_experts(&m->config);
    m->dev->copy(m->load, m->own_load, loads * sizeof *m->load);
    c->all_reduce_ints(c, m->load, loads);
}

void parallel_await_loads(Model *m) {
    Comm *c = comm_of(m);
    if (c && m->routers) c->join(c);
}

/* m->sums += the gradients of all ranks, rank by rank: of as many elements at a time as m->gathered has room for. */
static void add_in_order(Model *m) {
    const Device *dev = m->dev;
    const size_t Re = dev->real_size, total = m->manifest.total, ranks = (size_t)m->ranks;
    Comm *c = comm_of(m);
    if (!c) dev->accumulate(m->sums, m->grads, total);
    for (size_t from = 0; from < total && c; from += GATHERED) {
        const size_t n = total - from < GATHERED ? total - from : GATHERED;
        dev->copy(real_at(m, m->gathered, (size_t)c->rank * n), real_at(m, m->grads, from), n * Re);
        c->all_gather(c, m->gathered, n * Re);
        c->join(c);
        for (size_t r = 0; r < ranks; r++)
            dev->accumulate(real_at(m, m->sums, from), real_at(m, m->gathered, r * n), n);
    }
    if (m->last_micro) dev->copy(m->grads, m->sums, total * Re);
}

void parallel_send_gradients(Model *m) {
    Comm *c = comm_of(m);
    if (!c || !m->due) return;
    const Range *r = &m->manifest.ranges[m->due - 1];
    if (m->parallel->sharded) c->reduce_scatter(c, grads_of(m, r), r->count / (size_t)c->size);
    else                      c->all_reduce(c, grads_of(m, r), r->count);
    m->due = 0;
}
void parallel_gradients(Model *m, int range) {
    Comm *c = comm_of(m);
    if (m->ordered && range == 0) add_in_order(m);
    if (m->ordered || !c || !m->last_micro) return;
    parallel_send_gradients(m);
    m->due = range + 1;
    if (range > 0) return;
    parallel_send_gradients(m);
    c->join(c);
}

/* step_losses, losses and squares lie one after the other. Where the optimizer is not sharded, every rank has the
 * squares of the whole sum of gradients already. If ordered, losses and loads of routers are those of the step's last
 * micro-batch, which the last rank had. */
void parallel_sum_found(Model *m) {
    Comm *c = comm_of(m);
    if (!c) return;
    const size_t losses = (size_t)(m->turns + 2 * m->routers), squares = (size_t)m->manifest.count + 1;
    const size_t loads = m->routers ? (size_t)m->routers * (size_t)router_experts(&m->config) : 0;
    if (m->ordered && c->rank == c->size - 1) m->dev->copy(m->load, m->own_load, loads * sizeof *m->load);
    else if (m->ordered) {
        m->dev->zero(m->load, loads * sizeof *m->load);
        m->dev->zero(m->losses, (size_t)(2 * m->routers) * m->dev->real_size);
    }
    if (m->ordered && loads) c->all_reduce_ints(c, m->load, loads);
    c->all_reduce(c, m->step_losses, losses + (m->parallel->sharded && !m->ordered ? squares : 0));
    c->join(c);
}

void parallel_gather_weights(Model *m, int behind) {
    Comm *c = comm_of(m);
    const size_t X = m->dev->floatX_size;
    if (!c || !m->parallel->sharded) return;
    for (int i = 0; i < m->manifest.range_count; i++) {
        const Range *r = &m->manifest.ranges[i];
        c->all_gather(c, (char *)m->params + r->offset * X, r->count / (size_t)c->size * X);
        if (behind) c->note(c, i);
    }
    if (!behind) c->join(c);
}
void parallel_await_weights(const Model *m, int range) {
    Comm *c = comm_of(m);
    if (c && m->parallel->sharded) c->await(c, range);
}

void parallel_await_all_weights(const Model *m) { parallel_await_weights(m, m->manifest.range_count - 1); }

/* ---- threads -------------------------------------------------------------------------------------------- */

typedef struct { void (*work)(void *run, int local); void *run; int local, threads; } Job;

static void *run_job(void *job) {
    const Job *j = job;
#ifdef _OPENMP
    omp_set_num_threads(j->threads);                        /* of this host thread's parallel regions */
#endif
    j->work(j->run, j->local);
    return NULL;
}
void parallel_run(int count, void (*work)(void *run, int local), void *run) {
    Job *jobs = mem_alloc((size_t)count * sizeof *jobs);
    pthread_t *threads = mem_alloc((size_t)count * sizeof *threads);
    int all = 1;
#ifdef _OPENMP
    all = omp_get_max_threads();
#endif
    for (int i = 0; i < count; i++) jobs[i] = (Job){ work, run, i, all > count ? all / count : 1 };
    for (int i = 1, e; i < count; i++)
        if ((e = pthread_create(&threads[i], NULL, run_job, &jobs[i])))
            fail(EXIT_MEMORY, "no thread for rank %d of this process: %s", i, strerror(e));
    run_job(&jobs[0]);
    for (int i = 1; i < count; i++) pthread_join(threads[i], NULL);
#ifdef _OPENMP
    omp_set_num_threads(all);                               /* the caller's own again */
#endif
    free(jobs);
    free(threads);
}
