/* watch.c: the thread that watches the other processes, and ends this one when one of them is lost. */
#define _POSIX_C_SOURCE 200809L
#include "group_impl.h"
#include "net.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static ProcessGroup *current;                      /* the run that this process has joined and not left */

/* "rank 2 (process 1 on host a, pid 17)"; rank -1: all ranks of the process */
static void name_ranks(char *text, size_t capacity, const ProcessGroup *w, int process, int rank) {
    const Process *p = &w->at[process];
    const int first = rank < 0 ? p->first : rank, last = rank < 0 ? p->first + p->ranks - 1 : rank;
    const int n = first == last ? snprintf(text, capacity, "rank %d", first)
                                : snprintf(text, capacity, "ranks %d to %d", first, last);
    snprintf(text + n, capacity - (size_t)n, " (process %d on host %s, pid %d)", process, p->host, p->pid);
}

/* The hub tells the others, and whoever noticed ends. */
static void declare_lost(ProcessGroup *w, const char *why) {
    for (int p = 0; p < w->processes && !w->process; p++)
        if (w->link[p].watch >= 0) refuse(w->link[p].watch, why);
    for (int p = 0; p < w->processes && !w->process; p++)
        if (w->link[p].watch >= 0) close_refused(w->link[p].watch);
    w->lost(why);
    abort();                                                /* lost must not come back */
}
static void process_lost(ProcessGroup *w, int process, const char *what) {
    char name[160], why[400];
    name_ranks(name, sizeof name, w, process, -1);
    snprintf(why, sizeof why, "%s %s", name, what);
    declare_lost(w, why);
}

/* What came from a process. 0: the connection is at its end. */
static int hear(ProcessGroup *w, int process) {
    Link *l = &w->link[process];
    const Process *from = &w->at[process];
    Head head;
    if (!net_receive(l->watch, &head, sizeof head) || head.bytes > LONGEST) return 0;
    char *text = mem_alloc(head.bytes + 1);
    const int whole = net_receive(l->watch, text, head.bytes);
    if (whole && head.kind == LOST) declare_lost(w, text);
    if (whole && head.kind == PARTING) l->parted = 1;
    if (whole && head.kind == ALIVE && !w->process && head.bytes == (size_t)from->ranks * sizeof(RankStatus))
        for (int r = 0; r < from->ranks; r++) {
            RankStatus new;
            memcpy(&new, text + (size_t)r * sizeof new, sizeof new);
            if (new.count != w->status[from->first + r].count) w->since[from->first + r] = now();
            w->status[from->first + r] = new;
        }
    l->heard = now();
    free(text);
    return whole;
}

/* How often each process is heard of. */
static double period(const ProcessGroup *w) { return w->silence < 4 ? w->silence / 4 : 1; }

/* A rank that is over its limit ends the run. Who keeps the others waiting is who has begun the fewest phases; two
 * periods later all have said how many. */
static void judge_places(ProcessGroup *w) {
    int late = -1, behind = 0;
    for (int r = 0; r < w->size; r++) {
        if (w->status[r].limit > 0 && now() - w->since[r] > (double)w->status[r].limit + 2 * period(w)) late = r;
        if (w->status[r].count < w->status[behind].count) behind = r;
    }
    if (late < 0) return;
    int process = 0, equal = 1;
    char name[160], why[600];
    for (int r = 0; r < w->size; r++) equal &= w->status[r].count == w->status[behind].count;
    while (w->at[process].first + w->at[process].ranks <= behind) process++;
    name_ranks(name, sizeof name, w, process, behind);
    if (equal) snprintf(why, sizeof why, "no rank has come on for %.1f s, all are in '%s'", now() - w->since[late],
                        w->status[late].phase);
    else snprintf(why, sizeof why, "%s has been in '%s' for %.1f s, and others wait for it", name,
                  w->status[behind].phase, now() - w->since[behind]);
    declare_lost(w, why);
}

/* Says that this process is alive and where its ranks are, and asks their communicators for errors. */
static void beat(ProcessGroup *w, RankStatus *statuses) {
    const char *error = NULL;
    char why[400];
    pthread_mutex_lock(&w->mutex);
    for (int r = 0; r < w->ranks; r++) {
        statuses[r] = w->rank[r].status;
        if (w->rank[r].comm && !error && (error = w->rank[r].comm->error(w->rank[r].comm)))
            snprintf(why, sizeof why, "rank %d: %s", w->rank[r].group.rank, error);
    }
    pthread_mutex_unlock(&w->mutex);
    if (error && w->process) message_send(w->link[0].watch, LOST, why, strlen(why));
    if (error) declare_lost(w, why);
    for (int r = 0; r < w->ranks && !w->process; r++) {
        if (statuses[r].count != w->status[r].count) w->since[r] = now();
        w->status[r] = statuses[r];
    }
    for (int p = 0; p < w->processes; p++)
        if (w->link[p].watch >= 0) message_send(w->link[p].watch, ALIVE, statuses, (size_t)w->ranks * sizeof *statuses);
}

/* Somebody comes when all are here. */
static void refuse_latecomer(ProcessGroup *w) {
    char why[128];
    const int fd = net_accept(w->listener);
    if (fd < 0) return;
    snprintf(why, sizeof why, "this run has all its %d processes: was one started twice?", w->processes);
    refuse(fd, why);
    close_refused(fd);
}

/* One round of listening, for `seconds` at most. fds: room for the wake pipe, the listener and all processes. */
static void listen_round(ProcessGroup *w, struct pollfd *fds, double seconds) {
    int n = 0;
    fds[n++] = (struct pollfd){ .fd = w->wake[0], .events = POLLIN };
    fds[n++] = (struct pollfd){ .fd = w->listener, .events = POLLIN };
    for (int p = 0; p < w->processes; p++) fds[n++] = (struct pollfd){ .fd = w->link[p].watch, .events = POLLIN };
    if (poll(fds, (nfds_t)n, (int)(seconds * 1e3)) <= 0) return;
    if (fds[1].revents) refuse_latecomer(w);
    for (int p = 0; p < w->processes; p++) {
        Link *l = &w->link[p];
        if (!fds[2 + p].revents || hear(w, p)) continue;
        close(l->watch);
        l->watch = -1;
        if (!l->parted && !w->ending)
            process_lost(w, p, "ended before the run did: killed, or for a reason that its own output gives");
    }
}

static int still_linked(const ProcessGroup *w) {
    for (int p = 0; p < w->processes; p++) if (w->link[p].watch >= 0) return 1;
    return 0;
}

static void judge_silence(ProcessGroup *w) {
    for (int p = 0; p < w->processes; p++)
        if (w->link[p].watch >= 0 && !w->link[p].parted && now() - w->link[p].heard > w->silence)
            process_lost(w, p, "is silent: stopped, cut off, or its machine is down");
}
/* This whole process slept, in a debugger or suspended: nobody is to blame for the time. */
static void forgive(ProcessGroup *w) {
    for (int p = 0; p < w->processes; p++) w->link[p].heard = now();
    for (int r = 0; r < w->size; r++) w->since[r] = now();
}

static void *watch(void *argument) {
    ProcessGroup *w = argument;
    struct pollfd *fds = mem_alloc((size_t)(w->processes + 2) * sizeof *fds);
    RankStatus *statuses = mem_alloc((size_t)w->ranks * sizeof *statuses);
    for (double next = 0; !w->ending; ) {
        const double before = now();
        if (before >= next) {
            beat(w, statuses);
            next = before + period(w);
        }
        listen_round(w, fds, next - before > 0.01 ? next - before : 0.01);
        if (now() - before > period(w) + w->silence / 2) forgive(w);
        if (!w->ending) judge_silence(w);
        if (!w->ending && !w->process) judge_places(w);
    }
    if (w->ending == EXITING) {                             /* a driver may hang in its exit handler for ever */
        sleep(5 * LINGER);
        _exit(EXIT_PEER);
    }
    /* Connections are closed when both sides have said goodbye: closing with something unread would destroy it. */
    for (int p = 0; p < w->processes; p++)
        if (w->link[p].watch >= 0) {
            message_send(w->link[p].watch, PARTING, "", 0);
            shutdown(w->link[p].watch, SHUT_WR);
        }
    for (const double end = now() + LINGER; still_linked(w) && now() < end; ) listen_round(w, fds, 0.05);
    free(statuses);
    free(fds);
    return NULL;
}

void group_phase(Group *p, const char *phase, double limit) {
    Rank *r = (Rank *)p;
    if (p->size == 1) return;
    pthread_mutex_lock(&r->world->mutex);
    r->status.count++;
    r->status.limit = (float)limit;
    snprintf(r->status.phase, sizeof r->status.phase, "%s", phase);
    pthread_mutex_unlock(&r->world->mutex);
}
void group_watch(Group *p, Comm *c) {
    Rank *r = (Rank *)p;
    pthread_mutex_lock(&r->world->mutex);
    r->comm = c;
    pthread_mutex_unlock(&r->world->mutex);
}

/* exit() without group_leave: the others need not wait until the last handler of this process has run. */
static void exit_unparted(void) {
    if (!current || current->pid != getpid()) return;
    current->ending = EXITING;
    for (int p = 0; p < current->processes; p++)
        if (current->link[p].watch >= 0) shutdown(current->link[p].watch, SHUT_RDWR);
}

void watch_begin(ProcessGroup *w) {
    static int registered;
    sigset_t all, before;
    w->status = mem_alloc((size_t)w->size * sizeof *w->status);
    w->since = mem_alloc((size_t)w->size * sizeof *w->since);
    forgive(w);                                             /* all clocks start */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);            /* signals are for the threads that work */
    if (pipe(w->wake) || pthread_create(&w->watcher, NULL, watch, w)) fail(EXIT_MEMORY, "no thread to watch the ranks");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    current = w;
    if (!registered++) atexit(exit_unparted);
}

void watch_end(ProcessGroup *w) {
    w->ending = LEAVING;
    if (write(w->wake[1], "", 1) != 1) warn("the watching thread was not woken: %s", strerror(errno));
    pthread_join(w->watcher, NULL);
    current = NULL;
}
