/* world.c: see world.h. Joining and leaving; the threads of one process; the star of processes; what hosts agree on.
 * How processes find each other: rendezvous.c. How they watch each other: watch.c. */
#define _POSIX_C_SOURCE 200809L
#include "group_impl.h"
#include "net.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };                   /* bytes of a reduction that are under way between processes at a time */

/* ---- the threads of one process: they meet, then read each other's memory ------------------------------ */

static void meet(ProcessGroup *w) {
    pthread_mutex_lock(&w->mutex);
    const unsigned meeting = w->meeting;
    if (++w->arrived == w->ranks) {
        w->arrived = 0;
        w->meeting++;
        pthread_cond_broadcast(&w->all_here);
    } else while (w->meeting == meeting) pthread_cond_wait(&w->all_here, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
}

/* A connection of the first kind broke: the watcher knows why, or will soon, and ends the process. */
static _Noreturn void await_verdict(ProcessGroup *w) {
    const double end = now() + w->silence + LINGER;
    while (now() < end) sleep(1);
    w->lost("a connection between the processes of this run broke, although all of them are alive");
    abort();
}
static void must_send(ProcessGroup *w, int process, const void *data, size_t bytes) {
    if (!net_send(w->link[process].data, data, bytes)) await_verdict(w);
}
static void must_receive(ProcessGroup *w, int process, void *data, size_t bytes) {
    if (!net_receive(w->link[process].data, data, bytes)) await_verdict(w);
}

/* ---- the star of processes: one thread of each speaks for it ------------------------------------------- */

/* The blocks of the ranks of each process lie in their places in its `all`; afterwards all of them lie in every one.
 * Nobody gets his own back: other threads may be reading it. */
static void exchange_processes(ProcessGroup *w, char *all, size_t bytes) {
    for (int p = 1; p < w->processes; p++) {
        char *const own = all + (size_t)w->at[p].first * bytes;
        if (p == w->process)  must_send(w, 0, own, (size_t)w->ranks * bytes);
        else if (!w->process) must_receive(w, p, own, (size_t)w->at[p].ranks * bytes);
    }
    for (int p = 1; p < w->processes; p++) {
        const size_t before = (size_t)w->at[p].first, after = before + (size_t)w->at[p].ranks, size = (size_t)w->size;
        if (p == w->process) {
            must_receive(w, 0, all, before * bytes);
            must_receive(w, 0, all + after * bytes, (size - after) * bytes);
        } else if (!w->process) {
            must_send(w, p, all, before * bytes);
            must_send(w, p, all + after * bytes, (size - after) * bytes);
        }
    }
}

/* The hub's first rank holds the sum of the hub's ranks in x, and goes on with the ranks of the others in order. That
 * is why these send every rank's values and not their sum: the order is the same however ranks are spread. */
static void reduce_processes(ProcessGroup *w, char *x, size_t bytes,
                             void (*add)(void *x, const void *y, size_t bytes)) {
    for (size_t from = 0; from < bytes; from += PIECE) {
        const size_t n = bytes - from < PIECE ? bytes - from : PIECE;
        if (w->process) {
            for (int r = 0; r < w->ranks; r++) must_send(w, 0, (const char *)w->rank[r].all + from, n);
            must_receive(w, 0, x + from, n);
            continue;
        }
        for (int p = 1; p < w->processes; p++)
            for (int r = 0; r < w->at[p].ranks; r++) {
                must_receive(w, p, w->piece, n);
                add(x + from, w->piece, n);
            }
        for (int p = 1; p < w->processes; p++) must_send(w, p, x + from, n);
    }
}

/* ---- exchange and reduce: Group ------------------------------------------------------------------------ */

static int is_leader(const Rank *r) { return r == r->world->rank; }

static void exchange(Group *p, void *all, const void *mine, size_t bytes) {
    Rank *r = (Rank *)p;
    ProcessGroup *w = r->world;
    const size_t first = (size_t)w->at[w->process].first, here = (size_t)w->ranks;
    r->mine = mine;
    r->all = all;
    meet(w);
    for (size_t q = 0; q < here && bytes; q++)
        if ((char *)all + (first + q) * bytes != w->rank[q].mine)
            memcpy((char *)all + (first + q) * bytes, w->rank[q].mine, bytes);
    if (w->processes > 1) {
        if (is_leader(r)) exchange_processes(w, all, bytes);
        meet(w);
        const char *from = w->rank[0].all;
        if (!is_leader(r)) {
            memcpy(all, from, first * bytes);
            memcpy((char *)all + (first + here) * bytes, from + (first + here) * bytes,
                   ((size_t)w->size - first - here) * bytes);
        }
    }
    meet(w);                                                /* nobody reads from another any more */
}

/* In the hub's process each thread adds up a slice of all the ranks there; then the other processes' ranks follow. */
static void reduce(Group *p, void *x, size_t bytes, void (*add)(void *x, const void *y, size_t bytes)) {
    Rank *r = (Rank *)p;
    ProcessGroup *w = r->world;
    const size_t here = (size_t)w->ranks, slice = (bytes / here / 64 + 1) * 64, from = slice * (size_t)(r - w->rank);
    if (p->size == 1) return;
    r->all = x;
    meet(w);
    char *sum = w->rank[0].all;
    if (!w->process && from < bytes)
        for (size_t q = 1; q < here; q++)
            add(sum + from, (char *)w->rank[q].all + from, bytes - from < slice ? bytes - from : slice);
    if (w->processes > 1) {
        if (!w->process) meet(w);
        if (is_leader(r)) reduce_processes(w, sum, bytes, add);
    }
    meet(w);
    if (!is_leader(r) && bytes) memcpy(x, sum, bytes);
    meet(w);
}

/* ---- what hosts agree on ------------------------------------------------------------------------------- */

void group_barrier(Group *p) {
    char *all = mem_alloc((size_t)p->size), mine = 0;
    p->exchange(p, all, &mine, 1);
    free(all);
}
void group_gather(Group *p, double *all, double x) { p->exchange(p, all, &x, sizeof x); }

static void larger(void *x, const void *y, size_t bytes) {
    (void)bytes;                                            /* one int */
    if (*(const int *)y > *(int *)x) *(int *)x = *(const int *)y;
}
static void smaller(void *x, const void *y, size_t bytes) {
    (void)bytes;
    if (*(const int *)y < *(int *)x) *(int *)x = *(const int *)y;
}
int group_max(Group *p, int x) { p->reduce(p, &x, sizeof x, larger);  return x; }
int group_min(Group *p, int x) { p->reduce(p, &x, sizeof x, smaller); return x; }

/* The bits of the others are made zero, and or-ed. */
static void or_bits(void *x, const void *y, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)x)[i] |= ((const unsigned char *)y)[i];
}
void group_broadcast(Group *p, void *data, size_t bytes) {
    if (p->rank && bytes) memset(data, 0, bytes);
    p->reduce(p, data, bytes, or_bits);
}

int    group_size(const ProcessGroup *w)                { return w->size; }
int    world_processes(const ProcessGroup *w)           { return w->processes; }
Group *group_of(ProcessGroup *w, int local)          { return &w->rank[local].group; }

/* ---- joining and leaving --------------------------------------------------------------------------------- */

static void lost_default(const char *why) {
    if (!ftrylockfile(stdout)) fflush(stdout);              /* a thread may be stuck in the middle of a line */
    fprintf(stderr, "error: %s\n", why);
    _exit(EXIT_PEER);
}

static ProcessGroup *world_new(const GroupOptions *o) {
    const Launch *l = &o->launch;
    ProcessGroup *w = mem_alloc(sizeof *w);
    w->processes = l->processes;
    w->process = l->process;
    w->ranks = o->ranks;
    w->at = mem_alloc((size_t)l->processes * sizeof *w->at);
    w->link = mem_alloc((size_t)l->processes * sizeof *w->link);
    w->piece = mem_alloc(l->processes > 1 && !l->process ? PIECE : 0);
    w->rank = mem_alloc((size_t)o->ranks * sizeof *w->rank);
    for (int p = 0; p < l->processes; p++) w->link[p].data = w->link[p].watch = -1;
    w->listener = w->wake[0] = w->wake[1] = -1;
    w->silence = o->silence_seconds > 0 ? o->silence_seconds : 10;
    w->lost = o->lost ? o->lost : lost_default;
    w->pid = getpid();
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->all_here, NULL);
    return w;
}
static void close_if_open(int fd) { if (fd >= 0) close(fd); }
static void world_free(ProcessGroup *w) {
    for (int p = 0; p < w->processes; p++) { close_if_open(w->link[p].data); close_if_open(w->link[p].watch); }
    close_if_open(w->listener);
    close_if_open(w->wake[0]);
    close_if_open(w->wake[1]);
    pthread_cond_destroy(&w->all_here);
    pthread_mutex_destroy(&w->mutex);
    void *owned[] = { w->at, w->link, w->piece, w->rank, w->status, w->since, w };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

ProcessGroup *group_join(const GroupOptions *o, Error *e) {
    const double seconds = o->join_seconds > 0 ? o->join_seconds : 300;
    ProcessGroup *w = world_new(o);
    w->at[w->process] = (Process){ .ranks = w->ranks, .pid = (int32_t)w->pid };
    gethostname(w->at[w->process].host, sizeof w->at->host - 1);
    if (w->processes > 1 && !rendezvous(w, o, seconds, e)) {
        world_free(w);
        return NULL;
    }
    w->size = w->at[w->processes - 1].first + w->at[w->processes - 1].ranks;
    for (int r = 0; r < w->ranks; r++)
        w->rank[r] = (Rank){ .group = { w->at[w->process].first + r, w->size, exchange, reduce }, .world = w };
    if (w->size == 1) return w;

    for (int p = 0; p < w->processes; p++) {
        if (w->link[p].data < 0) continue;
        net_limit(w->link[p].data, 0);                      /* for ever: the watch is there for that */
        net_limit(w->link[p].watch, w->silence);
    }
    watch_begin(w);
    return w;
}

void group_leave(ProcessGroup *w) {
    if (w->size > 1) {
        char *all = mem_alloc((size_t)w->size);
        if (w->processes > 1) exchange_processes(w, all, 1);    /* all are here */
        free(all);
        watch_end(w);
    }
    world_free(w);
}
