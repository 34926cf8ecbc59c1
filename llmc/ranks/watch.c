/* watch.c: the thread that watches the other processes, and ends this one when one is lost. */
#define _POSIX_C_SOURCE 200809L
#include "group_impl.h"
#include "net.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WATCH_FDS = 1 + INTRODUCTION_FDS };
static ProcessGroup *current;               /* joined by this process and not left yet; for the exit handler */

/* "rank 2 (process 1 on host a, pid 17)"; rank -1: all ranks of the process */
static void name_ranks(char *text, size_t capacity, const ProcessGroup *g, int process, int rank) {
    const Process *p = &g->at[process];
    const int first = rank < 0 ? p->first : rank, last = rank < 0 ? p->first + p->ranks - 1 : rank;
    const int n = first == last ? snprintf(text, capacity, "rank %d", first)
                                : snprintf(text, capacity, "ranks %d to %d", first, last);
    snprintf(text + n, capacity - (size_t)n, " (process %d on host %s, pid %d)", process, p->host, p->pid);
}

/* Ends this process. The hub sends the reason to all others first. */
static void declare_lost(ProcessGroup *g, const char *why) {
    int *fds = mem_alloc((size_t)g->processes * sizeof *fds), count = 0;
    for (int p = 0; p < g->processes && !g->process; p++)
        if (g->link[p].watch >= 0) {
            message_send(g->link[p].watch, MESSAGE_LOST, why, strlen(why), now());
            fds[count++] = g->link[p].watch;
        }
    net_linger(fds, count, LINGER);
    g->lost(why);
    abort();                                                /* lost() must not return */
}
static void declare_process_lost(ProcessGroup *g, int process, const char *what) {
    char name[160], why[400];
    name_ranks(name, sizeof name, g, process, -1);
    snprintf(why, sizeof why, "%s %s", name, what);
    declare_lost(g, why);
}

static void take_message(ProcessGroup *g, int process, const Message *m) {
    Link *l = &g->link[process];
    char why[MOST_REASON + 1];
    one_line(why, sizeof why, m->data, m->kind == MESSAGE_LOST ? m->bytes : 0);
    l->last_message = now();
    if (m->kind == MESSAGE_LOST) declare_lost(g, why);
    if (m->kind == MESSAGE_GOODBYE) l->said_goodbye = 1;
    for (int r = 0; r < g->at[process].ranks && m->kind == MESSAGE_ALIVE && !g->process; r++) {
        const int rank = g->at[process].first + r;
        const RankStatus new = status_read(m->data + (size_t)r * sizeof new);
        if (new.count != g->status[rank].count) g->since[rank] = now();
        g->status[rank] = new;
    }
}
/* Reads what has arrived from a process, and takes whole messages of it. 0: connection ended. */
static int receive_messages(ProcessGroup *g, int process) {
    Link *l = &g->link[process];
    Message m;
    size_t at = 0;
    long took;
    const long n = net_read(l->watch, l->inbox + l->have, l->most - l->have);
    if (n <= 0) return !n;
    l->have += (size_t)n;
    while ((took = message_read(&m, l->inbox + at, l->have - at, g->at[process].ranks)) > 0) {
        take_message(g, process, &m);
        at += (size_t)took;
    }
    if (took < 0) declare_process_lost(g, process, "sent something that this program does not send");
    memmove(l->inbox, l->inbox + at, l->have -= at);
    return 1;
}

/* Seconds between heartbeats. */
static double period(const ProcessGroup *g) { return g->silence < 4 ? g->silence / 4 : 1; }

/* Ends the run if a rank exceeds its limit. The cause is the rank with the fewest phases begun;
 * after two heartbeat periods every rank's count is current. */
static void check_progress(ProcessGroup *g) {
    int late = -1, behind = 0;
    for (int r = 0; r < g->size; r++) {
        if (g->status[r].limit > 0 && now() - g->since[r] > (double)g->status[r].limit + 2 * period(g)) late = r;
        if (g->status[r].count < g->status[behind].count) behind = r;
    }
    if (late < 0) return;
    int process = 0, equal = 1;
    char name[160], why[600];
    for (int r = 0; r < g->size; r++) equal &= g->status[r].count == g->status[behind].count;
    while (g->at[process].first + g->at[process].ranks <= behind) process++;
    name_ranks(name, sizeof name, g, process, behind);
    if (equal) snprintf(why, sizeof why, "no rank has made progress for %.1f s, all are in '%s'",
                        now() - g->since[late], g->status[late].phase);
    else snprintf(why, sizeof why, "%s has been in '%s' for %.1f s, and others wait for it", name,
                  g->status[behind].phase, now() - g->since[behind]);
    declare_lost(g, why);
}

/* Sends the state of this process's ranks, polls their comms. statuses (ranks): a buffer. */
static void heartbeat(ProcessGroup *g, RankStatus *statuses) {
    const char *error = NULL;
    char why[400];
    pthread_mutex_lock(&g->mutex);
    for (int r = 0; r < g->ranks; r++) {
        statuses[r] = g->rank[r].status;
        for (int i = 0; i < COMMS; i++) {
            Comm *const c = g->rank[r].comm[i];
            if (c && !error && (error = c->error(c)))
                snprintf(why, sizeof why, "rank %d: %s", g->rank[r].group.rank, error);
        }
    }
    pthread_mutex_unlock(&g->mutex);
    if (error && g->process && g->link[0].watch >= 0) {
        message_send(g->link[0].watch, MESSAGE_LOST, why, strlen(why), now());
        net_linger(&g->link[0].watch, 1, LINGER);
    }
    if (error) declare_lost(g, why);
    for (int r = 0; r < g->ranks && !g->process; r++) {
        if (statuses[r].count != g->status[r].count) g->since[r] = now();
        g->status[r] = statuses[r];
    }
    for (int p = 0; p < g->processes; p++)      /* half a message in a full buffer would be the end of the connection */
        if (g->link[p].watch >= 0 && !message_send(g->link[p].watch, MESSAGE_ALIVE, statuses, (size_t)g->ranks
                                                   * sizeof *statuses, now() + period(g) / 4) && errno == EAGAIN)
            declare_process_lost(g, p, "does not read what it is sent");
}

/* A process connects although the run is complete. An Admit (introductions.h). */
static int refuse_latecomer(void *group, UNUSED int fd, UNUSED const Greeting *greeting, UNUSED const Hello *h,
                            UNUSED const char *settings, Error *why) {
    return error_set(why, "this run already has all its %d processes: was one started twice?",
                     ((ProcessGroup *)group)->processes);
}
/* Waits up to `seconds`. fds (WATCH_FDS + processes): wake pipe, processes, introductions. */
static void poll_once(ProcessGroup *g, struct pollfd *fds, double seconds) {
    double until = now() + seconds;
    int n = 0;
    fds[n++] = (struct pollfd){ .fd = g->wake[0], .events = POLLIN };
    for (int p = 0; p < g->processes; p++) fds[n++] = (struct pollfd){ .fd = g->link[p].watch, .events = POLLIN };
    if (g->introductions) n += introductions_poll(g->introductions, fds + n, &until);
    const double left = until - now();
    if (poll(fds, (nfds_t)n, left > 0 ? (int)(left * 1e3) + 1 : 0) < 0) return;
    if (g->introductions) introductions_step(g->introductions, refuse_latecomer, g);
    for (int p = 0; p < g->processes; p++) {
        Link *l = &g->link[p];
        if (!fds[1 + p].revents || receive_messages(g, p)) continue;
        close(l->watch);
        l->watch = -1;
        if (!l->said_goodbye && !g->ending)
            declare_process_lost(g, p, "ended before the run did: killed, or for a reason that its own output gives");
    }
}

static int still_linked(const ProcessGroup *g) {
    for (int p = 0; p < g->processes; p++) if (g->link[p].watch >= 0) return 1;
    return 0;
}

/* A process that has said goodbye is silent, too, but then this one is about to say it. */
static void check_silence(ProcessGroup *g) {
    for (int p = 0; p < g->processes; p++)
        if ((g->link[p].watch >= 0 || g->link[p].said_goodbye) && now() - g->link[p].last_message > g->silence)
            declare_process_lost(g, p, "is silent: it was stopped, its network failed, or its machine is down");
}
/* At the start, and after this process itself was stopped: time before now counts for nothing. */
static void restart_clocks(ProcessGroup *g) {
    for (int p = 0; p < g->processes; p++) g->link[p].last_message = now();
    for (int r = 0; r < g->size; r++) g->since[r] = now();
}

static void *watch(void *argument) {
    ProcessGroup *g = argument;
    struct pollfd *fds = mem_alloc((size_t)(g->processes + WATCH_FDS) * sizeof *fds);
    RankStatus *statuses = mem_alloc((size_t)g->ranks * sizeof *statuses);
    for (double next = 0; !g->ending; ) {
        const double before = now();
        if (before >= next) { heartbeat(g, statuses); next = before + period(g); }
        poll_once(g, fds, next - before > 0.01 ? next - before : 0.01);
        if (now() - before > period(g) + g->silence / 2) restart_clocks(g);
        if (!g->ending) check_silence(g);
        if (!g->ending && !g->process) check_progress(g);
    }
    if (g->ending == EXITING) {                             /* a driver may hang in its exit handler */
        sleep(5 * LINGER);
        _exit(EXIT_PEER);
    }
    /* Closed once both sides have said goodbye: closing with unread data would destroy it. */
    for (int p = 0; p < g->processes; p++)
        if (g->link[p].watch >= 0) {
            message_send(g->link[p].watch, MESSAGE_GOODBYE, "", 0, now());
            shutdown(g->link[p].watch, SHUT_WR);
        }
    for (const double end = now() + LINGER; still_linked(g) && now() < end; ) poll_once(g, fds, 0.05);
    free_each(statuses, fds);
    return NULL;
}

void group_phase(Group *group, const char *phase, double limit) {
    Rank *r = (Rank *)group;
    if (group->size == 1) return;
    pthread_mutex_lock(&r->processes->mutex);
    r->status.count++;
    r->status.limit = (float)limit;
    snprintf(r->status.phase, sizeof r->status.phase, "%s", phase);
    pthread_mutex_unlock(&r->processes->mutex);
}
void group_watch(Group *group, Comm *c) {
    Rank *r = (Rank *)group;
    pthread_mutex_lock(&r->processes->mutex);
    for (int i = COMMS - 1; i > 0; i--) r->comm[i] = c ? r->comm[i - 1] : NULL;
    r->comm[0] = c;
    pthread_mutex_unlock(&r->processes->mutex);
}

/* exit() without group_leave: the others learn of it at once, not after the last exit handler. */
static void exit_without_leaving(void) {
    if (!current || current->pid != getpid()) return;
    current->ending = EXITING;
    for (int p = 0; p < current->processes; p++)
        if (current->link[p].watch >= 0) shutdown(current->link[p].watch, SHUT_RDWR);
}
void watch_begin(ProcessGroup *g) {
    static int registered;
    sigset_t all, before;
    g->status = mem_alloc((size_t)g->size * sizeof *g->status);
    g->since = mem_alloc((size_t)g->size * sizeof *g->since);
    for (int p = 0; p < g->processes; p++) {
        g->link[p].most = message_most(g->at[p].ranks);
        g->link[p].inbox = mem_alloc(g->link[p].watch >= 0 ? g->link[p].most : 0);
    }
    restart_clocks(g);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);            /* the working threads handle signals */
    if (pipe(g->wake) || pthread_create(&g->watcher, NULL, watch, g))
        fail(EXIT_MEMORY, "cannot start the thread that watches the ranks");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    current = g;
    if (!registered++) atexit(exit_without_leaving);
}

void watch_end(ProcessGroup *g) {
    g->ending = LEAVING;
    if (write(g->wake[1], "", 1) != 1) warn("cannot wake the watching thread: %s", strerror(errno));
    pthread_join(g->watcher, NULL);
    current = NULL;
}
