/* connect.c: how a process joins the others and leaves them (group.h). How processes find each
 * other: rendezvous.c. How they watch each other: watch.c. */
#define _POSIX_C_SOURCE 200809L
#include "group_impl.h"
#include <stdlib.h>
#include <unistd.h>

static void lost_default(const char *why) {
    if (!ftrylockfile(stdout)) fflush(stdout);              /* another thread may be stuck while it holds the lock */
    text_print(stderr, "error: %s\nTo continue from the last checkpoint: the same command with -y 1\n", why);
    _exit(EXIT_PEER);
}
static ProcessGroup *processes_new(const GroupOptions *o) {
    const Launch *l = &o->launch;
    ProcessGroup *g = mem_alloc(sizeof *g);
    g->processes = l->processes;
    g->process = l->process;
    g->ranks = o->ranks;
    g->at = mem_alloc((size_t)l->processes * sizeof *g->at);
    g->link = mem_alloc((size_t)l->processes * sizeof *g->link);
    g->piece = mem_alloc(l->processes > 1 && !l->process ? PIECE : 0);
    g->rank = mem_alloc((size_t)o->ranks * sizeof *g->rank);
    for (int p = 0; p < l->processes; p++) g->link[p].data = g->link[p].watch = -1;
    g->wake[0] = g->wake[1] = -1;
    g->silence = o->silence_seconds > 0 ? o->silence_seconds : 10;
    g->lost = o->lost ? o->lost : lost_default;
    g->pid = getpid();
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->all_here, NULL);
    return g;
}
static void close_if_open(int fd) { if (fd >= 0) close(fd); }
static void processes_free(ProcessGroup *g) {
    for (int p = 0; p < g->processes; p++) {
        close_if_open(g->link[p].data);
        close_if_open(g->link[p].watch);
        free(g->link[p].inbox);
    }
    introductions_close(g->introductions);
    close_if_open(g->wake[0]);
    close_if_open(g->wake[1]);
    pthread_cond_destroy(&g->all_here);
    pthread_mutex_destroy(&g->mutex);
    void *owned[] = { g->at, g->link, g->piece, g->rank, g->status, g->since, g };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

ProcessGroup *group_join(const GroupOptions *o, Error *e) {
    const double seconds = o->join_seconds > 0 ? o->join_seconds : 300;
    if (o->launch.processes > 1 && !o->secret) { error_set(e, "several processes need a secret"); return NULL; }
    ProcessGroup *g = processes_new(o);
    g->at[g->process] = (Process){ .ranks = g->ranks, .pid = (int32_t)g->pid };
    gethostname(g->at[g->process].host, sizeof g->at->host - 1);
    if (g->processes > 1 && !rendezvous(g, o, seconds, e)) { processes_free(g); return NULL; }
    group_begin(g);
    if (g->size > 1) watch_begin(g);
    return g;
}

void group_leave(ProcessGroup *g) {
    if (g->size > 1) { group_end(g); watch_end(g); }
    processes_free(g);
}
