/* group.c: see group.h. Collectives: the threads of one process, the star of processes, and both
 * together. How processes join and leave: connect.c. */
#define _POSIX_C_SOURCE 200809L
#include "group_impl.h"
#include "net.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the threads of one process: a barrier, then they read each other's memory --------------- */

static void thread_barrier(ProcessGroup *g) {
    pthread_mutex_lock(&g->mutex);
    const unsigned barrier = g->barriers;
    if (++g->arrived == g->ranks) {
        g->arrived = 0;
        g->barriers++;
        pthread_cond_broadcast(&g->all_here);
    } else while (g->barriers == barrier) pthread_cond_wait(&g->all_here, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
}

/* A data connection, which has no deadline, broke. The watching thread ends this process. */
static _Noreturn void wait_for_watcher(ProcessGroup *g) {
    const double end = now() + g->silence + LINGER;
    while (now() < end) sleep(1);
    g->lost("a connection between the processes of this run broke, although all of them are alive");
    abort();
}
static void must_send(ProcessGroup *g, int process, const void *data, size_t bytes) {
    if (!net_send(g->link[process].data, data, bytes, NET_FOREVER)) wait_for_watcher(g);
}
static void must_receive(ProcessGroup *g, int process, void *data, size_t bytes) {
    if (!net_receive(g->link[process].data, data, bytes, NET_FOREVER)) wait_for_watcher(g);
}

/* ---- the star of processes: one thread of each process communicates -------------------------- */

/* all (size, bytes): before, a process has the blocks of its own ranks; afterwards, those of every
 * rank. A process's own blocks are not sent back, because its other threads may be reading them. */
static void exchange_processes(ProcessGroup *g, char *all, size_t bytes) {
    for (int p = 1; p < g->processes; p++) {
        char *const own = all + (size_t)g->at[p].first * bytes;
        if (p == g->process)  must_send(g, 0, own, (size_t)g->ranks * bytes);
        else if (!g->process) must_receive(g, p, own, (size_t)g->at[p].ranks * bytes);
    }
    for (int p = 1; p < g->processes; p++) {
        const size_t before = (size_t)g->at[p].first, after = before + (size_t)g->at[p].ranks, size = (size_t)g->size;
        if (p == g->process) {
            must_receive(g, 0, all, before * bytes);
            must_receive(g, 0, all + after * bytes, (size - after) * bytes);
        } else if (!g->process) {
            must_send(g, p, all, before * bytes);
            must_send(g, p, all + after * bytes, (size - after) * bytes);
        }
    }
}

/* On entry, x of the hub's first rank is the sum over the hub's ranks; the ranks of the other
 * processes are added in rank order. Processes send the values of every rank, not their sum, so
 * that the order does not depend on how ranks are spread over processes. */
static void reduce_processes(ProcessGroup *g, char *x, size_t bytes,
                             void (*add)(void *x, const void *y, size_t bytes)) {
    for (size_t from = 0; from < bytes; from += PIECE) {
        const size_t n = bytes - from < PIECE ? bytes - from : PIECE;
        if (g->process) {
            for (int r = 0; r < g->ranks; r++) must_send(g, 0, (const char *)g->rank[r].all + from, n);
            must_receive(g, 0, x + from, n);
            continue;
        }
        for (int p = 1; p < g->processes; p++)
            for (int r = 0; r < g->at[p].ranks; r++) {
                must_receive(g, p, g->piece, n);
                add(x + from, g->piece, n);
            }
        for (int p = 1; p < g->processes; p++) must_send(g, p, x + from, n);
    }
}

/* ---- both together: Group's exchange and reduce ---------------------------------------------- */

static int is_leader(const Rank *r) { return r == r->processes->rank; }

static void exchange(Group *group, void *all, const void *mine, size_t bytes) {
    Rank *r = (Rank *)group;
    ProcessGroup *g = r->processes;
    const size_t first = (size_t)g->at[g->process].first, here = (size_t)g->ranks;
    r->mine = mine;
    r->all = all;
    thread_barrier(g);
    for (size_t q = 0; q < here && bytes; q++)
        if ((char *)all + (first + q) * bytes != g->rank[q].mine)
            memcpy((char *)all + (first + q) * bytes, g->rank[q].mine, bytes);
    if (g->processes > 1) {
        if (is_leader(r)) exchange_processes(g, all, bytes);
        thread_barrier(g);
        const char *from = g->rank[0].all;
        if (!is_leader(r)) {
            memcpy(all, from, first * bytes);
            memcpy((char *)all + (first + here) * bytes, from + (first + here) * bytes,
                   ((size_t)g->size - first - here) * bytes);
        }
    }
    thread_barrier(g);                                      /* no thread reads another's buffers after this */
}

/* In the hub's process each thread sums one slice over the ranks there; other processes follow. */
static void reduce(Group *group, void *x, size_t bytes, void (*add)(void *x, const void *y, size_t bytes)) {
    Rank *r = (Rank *)group;
    ProcessGroup *g = r->processes;
    const size_t here = (size_t)g->ranks, slice = (bytes / here / 64 + 1) * 64, from = slice * (size_t)(r - g->rank);
    if (group->size == 1) return;
    r->all = x;
    thread_barrier(g);
    char *sum = g->rank[0].all;
    if (!g->process && from < bytes)
        for (size_t q = 1; q < here; q++)
            add(sum + from, (char *)g->rank[q].all + from, bytes - from < slice ? bytes - from : slice);
    if (g->processes > 1) {
        if (!g->process) thread_barrier(g);
        if (is_leader(r)) reduce_processes(g, sum, bytes, add);
    }
    thread_barrier(g);
    if (!is_leader(r) && bytes) memcpy(x, sum, bytes);
    thread_barrier(g);
}

static int is_here(const Group *group, int rank) {
    const ProcessGroup *g = ((const Rank *)group)->processes;
    const Process *p = &g->at[g->process];
    return rank >= p->first && rank < p->first + p->ranks;
}

/* ---- parts of a group ------------------------------------------------------------------------ */

typedef struct { Group group; Group *parent; int first, step; } Part;

/* Are all parts of this shape within a process? Consecutive ranks, if it has whole parts. */
static int is_within_processes(const ProcessGroup *g, const Part *part) {
    int within = part->step == 1;
    for (int p = 0; p < g->processes; p++)
        within &= g->at[p].first % part->group.size == 0 && g->at[p].ranks % part->group.size == 0;
    return within || g->processes == 1;
}
/* Else the blocks of all ranks come here, in pieces, and this part's are kept. */
static void exchange_part(Group *group, void *all, const void *mine, size_t bytes) {
    const Part *part = (const Part *)group;
    Rank *r = (Rank *)part->parent;
    ProcessGroup *g = r->processes;
    const size_t members = (size_t)group->size, size = (size_t)g->size;
    if (is_within_processes(g, part)) {
        r->mine = mine;
        thread_barrier(g);
        for (size_t i = 0; i < members && bytes; i++) {
            const void *from = g->rank[part->first + (int)i * part->step - g->at[g->process].first].mine;
            if ((char *)all + i * bytes != from) memcpy((char *)all + i * bytes, from, bytes);
        }
        thread_barrier(g);
        return;
    }
    char *blocks = mem_alloc(size * (bytes < PIECE ? bytes : PIECE) + 1);
    for (size_t from = 0; from < bytes; from += PIECE) {
        const size_t n = bytes - from < PIECE ? bytes - from : PIECE;
        part->parent->exchange(part->parent, blocks, (const char *)mine + from, n);
        for (size_t i = 0; i < members; i++)
            memcpy((char *)all + i * bytes + from, blocks + ((size_t)part->first + i * (size_t)part->step) * n, n);
    }
    free(blocks);
}
static void reduce_part(Group *group, void *x, size_t bytes, void (*add)(void *x, const void *y, size_t bytes)) {
    char *blocks = mem_alloc((size_t)group->size * (bytes < PIECE ? bytes : PIECE) + 1);
    for (size_t from = 0; from < bytes; from += PIECE) {
        const size_t n = bytes - from < PIECE ? bytes - from : PIECE;
        exchange_part(group, blocks, (char *)x + from, n);
        for (int i = 1; i < group->size; i++) add(blocks, blocks + (size_t)i * n, n);
        memcpy((char *)x + from, blocks, n);
    }
    free(blocks);
}
static int is_here_of_part(const Group *group, int rank) {
    const Part *part = (const Part *)group;
    return part->parent->is_here(part->parent, part->first + rank * part->step);
}
Group *group_part(Group *parent, int first, int step, int size) {
    Part *part = mem_alloc(sizeof *part);
    *part = (Part){ .group = { (parent->rank - first) / step, size, exchange_part, reduce_part, is_here_of_part },
                    .parent = parent, .first = first, .step = step };
    return &part->group;
}

/* ---- what hosts agree on --------------------------------------------------------------------- */

void group_barrier(Group *group) {
    char *all = mem_alloc((size_t)group->size), mine = 0;
    group->exchange(group, all, &mine, 1);
    free(all);
}

static _Noreturn void refuse(double x, double low, double high) {
    fail(EXIT_PEER, "another process of this run sent %g, expected %g to %g: this program does not send that", x, low,
         high);
}
static double checked(double x, double low, double high) {
    if (!(x >= low && x <= high) && !(isnan(x) && low <= -INFINITY)) refuse(x, low, high);
    return x;
}
void group_gather(Group *group, double *all, double x, double low, double high) {
    group->exchange(group, all, &x, sizeof x);
    for (int r = 0; r < group->size; r++) all[r] = checked(all[r], low, high);
}

static void larger(void *x, const void *y, UNUSED size_t bytes) {      /* of one int */
    if (*(const int *)y > *(int *)x) *(int *)x = *(const int *)y;
}
static void smaller(void *x, const void *y, UNUSED size_t bytes) {
    if (*(const int *)y < *(int *)x) *(int *)x = *(const int *)y;
}
int group_max(Group *group, int x, int high) {
    const int own = x;
    group->reduce(group, &x, sizeof x, larger);
    return (int)checked(x, own, high);                      /* a false process 0 could send less, too */
}
int group_min(Group *group, int x, int low) {
    const int own = x;
    group->reduce(group, &x, sizeof x, smaller);
    return (int)checked(x, low, own);
}
int group_all(Group *group, int flag) { return group_min(group, flag != 0, 0); }
int group_any(Group *group, int flag) { return group_max(group, flag != 0, 1); }

static void or_bits(void *x, const void *y, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)x)[i] |= ((const unsigned char *)y)[i];
}
int group_or(Group *group, int bits, int known) {
    const int own = bits;
    group->reduce(group, &bits, sizeof bits, or_bits);
    if (bits & ~known || own & ~bits) refuse(bits, own, known);
    return bits;
}
/* A broadcast is a bitwise or in which every rank but 0 contributes zeros. */
double group_broadcast(Group *group, double x, double low, double high) {
    if (group->rank) memset(&x, 0, sizeof x);
    group->reduce(group, &x, sizeof x, or_bits);
    return checked(x, low, high);
}

int group_agree(Group *group, int ok, Error *why) {
    typedef struct { Error why; int ok; } Answer;
    if (group_all(group, ok)) return 1;
    Answer *all = mem_alloc((size_t)group->size * sizeof *all), mine = { .ok = ok };
    if (!ok) mine.why = *why;
    group->exchange(group, all, &mine, sizeof mine);
    int first = 0;
    while (first < group->size - 1 && all[first].ok) first++;
    Error *e = &all[first].why;
    e->text[sizeof e->text - 1] = 0;
    e->code = (int)checked(e->code, 0, EXIT_STOPPED);
    if (first) error_exit(why, e->code, "rank %d: %.900s", first, e->text);
    else *why = *e;
    free(all);
    return 0;
}

int    group_size(const ProcessGroup *g)      { return g->size; }
Group *group_of(ProcessGroup *g, int local)   { return &g->rank[local].group; }
int    group_host_ranks(const ProcessGroup *g, Error *e) { return processes_host_ranks(g->at, g->processes, e); }

void group_begin(ProcessGroup *g) {
    g->size = g->at[g->processes - 1].first + g->at[g->processes - 1].ranks;
    for (int r = 0; r < g->ranks; r++)
        g->rank[r] = (Rank){ .group = { g->at[g->process].first + r, g->size, exchange, reduce, is_here },
                             .processes = g };
}
void group_end(ProcessGroup *g) {
    char *all = mem_alloc((size_t)g->size);
    if (g->processes > 1) exchange_processes(g, all, 1);    /* a barrier */
    free(all);
}
