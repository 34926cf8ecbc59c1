/* loopback.c: ranks that are CPUs. All traffic goes through the host's Group (llmc/ranks/group.c):
 * memory between threads, TCP between processes. Here are sums, which depend on the number type. */
#include "impl.h"
#include "kernels/comm.h"

static void add_reals(void *x, const void *y, size_t bytes) {
    real *a = x;
    const real *b = y;
    for (size_t i = 0; i < bytes / sizeof *a; i++) a[i] += b[i];
}
static void add_ints(void *x, const void *y, size_t bytes) {
    unsigned *a = x;                                        /* whatever another process sends, this has a value */
    const unsigned *b = y;
    for (size_t i = 0; i < bytes / sizeof *a; i++) a[i] += b[i];
}

static void all_reduce(Comm *c, real *x, size_t n)     { c->group->reduce(c->group, x, n * sizeof *x, add_reals); }
static void all_reduce_ints(Comm *c, int *x, size_t n) { c->group->reduce(c->group, x, n * sizeof *x, add_ints); }
static void reduce_scatter(Comm *c, real *x, size_t n) { all_reduce(c, x, n * (size_t)c->size); }
/* One owner after the other gets what all ranks have for it; the others drop it. */
static void scatter_add(Comm *c, real *shard, const real *x, size_t n) {
    real *all = scratch((size_t)c->size * n * sizeof *all);
    for (int owner = 0; owner < c->size; owner++) {
        const real *const mine = x + (size_t)owner * n;
        if (c->size > 1) c->group->exchange(c->group, all, mine, n * sizeof *x);
        for (int r = 0; r < c->size && owner == c->rank; r++)
            add_reals(shard, c->size > 1 ? all + (size_t)r * n : mine, n * sizeof *x);
    }
    free(all);
}
static void all_gather(Comm *c, void *x, const void *mine, size_t bytes) {
    if (c->size > 1) c->group->exchange(c->group, x, mine, bytes);
    else if (x != mine && bytes) memcpy(x, mine, bytes);
}
static void wait_all(Comm *c) { (void)c; }
static void register_memory(Comm *c, void *base, size_t bytes, real *stage, size_t most) {
    (void)c, (void)base, (void)bytes, (void)stage, (void)most;
}
static void ignore(Comm *c, int i) { (void)c, (void)i; }       /* every operation is done when it returns */
static const char *error(Comm *c) { (void)c; return NULL; }
static void close(Comm *c) { free(c); }

static Comm *connect(Group *group, char why[256]) {
    Comm *c = scratch(sizeof *c);
    (void)why;
    *c = (Comm){ .name = "loopback", .rank = group->rank, .size = group->size, .group = group,
                 .all_reduce = all_reduce, .all_reduce_ints = all_reduce_ints, .reduce_scatter = reduce_scatter,
                 .scatter_add = scatter_add, .all_gather = all_gather, .register_memory = register_memory,
                 .wait_all = wait_all, .record = ignore, .wait = ignore, .host_wait = ignore, .error = error,
                 .close = close };
    return c;
}

PART(loopback) { d->connect = connect; }
