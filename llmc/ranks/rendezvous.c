/* rendezvous.c: how the processes of a run find each other. Process 0 listens until every other process has connected
 * twice and introduced itself. Then it sends each the list of all processes, or the reason why the run cannot begin. */
#define _POSIX_C_SOURCE 200809L
#include "group_impl.h"
#include "net.h"
#include "llmc/base/text.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 4096 };                  /* of a process */

typedef struct {                            /* the first message of a process on each of its two connections */
    char     magic[8], version[64], job[64], host[64];
    int32_t  watch, process, processes, ranks, pid;     /* watch: 1 on the watch connection, 0 on the data connection */
    uint32_t settings;                      /* bytes of settings that follow */
} Hello;
static const char magic[8] = "moe-run1";

/* ---- messages -------------------------------------------------------------------------------------------- */

void message_send(int fd, MessageKind kind, const void *data, size_t bytes) {
    const MessageHead head = { (uint32_t)kind, (uint32_t)bytes };
    if (net_send(fd, &head, sizeof head)) net_send(fd, data, bytes);
}

void refuse(int fd, const char *why) {
    net_limit(fd, 0.2);
    message_send(fd, MESSAGE_LOST, why, strlen(why));
    shutdown(fd, SHUT_WR);
}
void close_refused(int fd) {
    char rest[4096];
    const double end = now() + LINGER;
    while (now() < end && recv(fd, rest, sizeof rest, 0) > 0);
    close(fd);
}

/* ---- process 0 ------------------------------------------------------------------------------------------- */

static Hello introduction(const ProcessGroup *g, const GroupOptions *o) {
    Hello h = { .process = g->process, .processes = g->processes, .ranks = g->ranks, .pid = (int32_t)g->pid,
                .settings = (uint32_t)strlen(o->settings) };
    memcpy(h.magic, magic, sizeof h.magic);
    snprintf(h.version, sizeof h.version, "%s", o->version);
    snprintf(h.job, sizeof h.job, "%s", o->launch.job);
    memcpy(h.host, g->at[g->process].host, sizeof h.host);
    return h;
}

/* Describes the first difference between two lists {"name": value, ...}. An item begins after a comma or brace. */
static void first_difference(char *text, size_t capacity, const char *a, const char *b) {
    size_t at = 0, item = 0;
    for (; a[at] && a[at] == b[at]; at++) if (strchr(",{", a[at])) item = at + 1;
    if (a[item] == ' ' && b[item] == ' ') item++;
    snprintf(text, capacity, "%.*s there, %.*s in process 0", (int)strcspn(b + item, ",}"), b + item,
             (int)strcspn(a + item, ",}"), a + item);
}

/* Does the process h belong to this run? 0 and e: the run cannot begin. */
static int belongs(const ProcessGroup *g, const GroupOptions *o, const Hello *mine, const Hello *h, const char *settings,
                   Error *e) {
    char name[128], what[400];
    snprintf(name, sizeof name, "process %d (host %.64s, pid %d)", h->process, h->host, h->pid);
    if (strcmp(h->version, mine->version))
        return error_set(e, "%s is version %.64s of this program, process 0 is version %s", name, h->version,
                         mine->version);
    if (h->processes != g->processes)
        return error_set(e, "%s was started as one of %d processes, process 0 as one of %d", name, h->processes,
                         g->processes);
    if (h->process < 1 || h->process >= g->processes || h->ranks < 1 || h->ranks > MAX_RANKS)
        return error_set(e, "%s: processes must be numbered 0 to %d, each number once; process 0 has pid %d",
                         name, g->processes - 1, mine->pid);
    if ((h->watch ? g->link[h->process].watch : g->link[h->process].data) >= 0)
        return error_set(e, "two processes have the number %d: one on host %s, pid %d, the other on host %.64s, pid %d",
                         h->process, g->at[h->process].host, g->at[h->process].pid, h->host, h->pid);
    if (strcmp(settings, o->settings)) {
        first_difference(what, sizeof what, o->settings, settings);
        return error_set(e, "%s has other settings: %s", name, what);
    }
    return 1;
}

/* Accepts a connection and reads its Hello and settings (free them). -1: no connection, or not from this program. */
static int accept_hello(const ProcessGroup *g, Hello *h, char **settings) {
    const int fd = net_accept(g->listener);
    *settings = NULL;
    if (fd < 0) return -1;
    net_limit(fd, ATTEMPT);
    if (net_receive(fd, h, sizeof *h) && !memcmp(h->magic, magic, sizeof magic) && h->settings <= LONGEST) {
        h->version[63] = h->job[63] = h->host[63] = 0;
        *settings = mem_alloc(h->settings + 1);
        if (net_receive(fd, *settings, h->settings)) return fd;
        free(*settings);
    }
    close(fd);
    return -1;
}

/* Accepts one connection of another process. 0 and e: the run cannot begin. */
static int accept_process(ProcessGroup *g, const GroupOptions *o, const Hello *mine, Error *e) {
    Hello h;
    char *settings;
    const int fd = accept_hello(g, &h, &settings);
    int ok = 1;
    if (fd < 0) return 1;
    if (strcmp(h.job, mine->job)) {
        char why[256];
        snprintf(why, sizeof why, "another run is using this port: it is of job '%s', you are of '%s'", mine->job, h.job);
        refuse(fd, why);
        close_refused(fd);
    } else if (!(ok = belongs(g, o, mine, &h, settings, e))) {
        refuse(fd, e->text);
        close_refused(fd);
    } else {
        Process *p = &g->at[h.process];
        p->ranks = h.ranks;
        p->pid = h.pid;
        memcpy(p->host, h.host, sizeof p->host);
        *(h.watch ? &g->link[h.process].watch : &g->link[h.process].data) = fd;
    }
    free(settings);
    return ok;
}

/* The run cannot begin. Sends the reason to all connected processes, and for LINGER seconds to those of the `missing`
 * ones that still connect. */
static void refuse_all(ProcessGroup *g, int missing, const char *why) {
    const double end = now() + LINGER;
    for (int p = 1; p < g->processes; p++) if (g->link[p].data >= 0) refuse(g->link[p].data, why);
    for (int p = 1; p < g->processes; p++) {
        if (g->link[p].data < 0) continue;
        close_refused(g->link[p].data);
        g->link[p].data = -1;
    }
    while (g->listener >= 0 && missing > 0 && now() < end) {
        struct pollfd ready = { .fd = g->listener, .events = POLLIN };
        Hello h;
        char *settings;
        const int fd = poll(&ready, 1, 100) > 0 ? accept_hello(g, &h, &settings) : -1;
        if (fd < 0) continue;
        refuse(fd, why);
        close_refused(fd);
        free(settings);
        missing -= !h.watch;
    }
}

/* Lists the processes that have not connected yet; returns how many there are. */
static int list_missing(const ProcessGroup *g, char *list, size_t capacity) {
    int count = 0;
    size_t n = 0;
    *list = 0;
    for (int p = 1; p < g->processes; p++)
        if (g->link[p].data < 0 || g->link[p].watch < 0) {
            if (n + 24 < capacity)
                n += (size_t)snprintf(list + n, capacity - n, "%s%d", count ? ", " : "", p);
            else if (list[n - 1] != '.') n += (size_t)snprintf(list + n, capacity - n, ", ...");
            count++;
        }
    return count;
}

/* A process that has introduced itself sends nothing more: if its connection becomes readable, the process has ended. */
static int all_still_connected(const ProcessGroup *g, struct pollfd *fds, Error *e) {
    for (int p = 1; p < g->processes; p++) {
        char byte;
        if (fds[p].fd >= 0 && fds[p].revents && recv(fds[p].fd, &byte, 1, MSG_PEEK) <= 0)
            return error_set(e, "process %d (host %s, pid %d) ended before all processes had connected", p, g->at[p].host,
                             g->at[p].pid);
    }
    return 1;
}

static int gather_all(ProcessGroup *g, const GroupOptions *o, double seconds, Error *e) {
    const Hello mine = introduction(g, o);
    const double start = now();
    double next_note = start + 10;
    char list[160];
    int ok, left = 0;
    struct pollfd *fds = mem_alloc((size_t)g->processes * sizeof *fds);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {                /* two connections a process */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    ok = (g->listener = net_listen(o->launch.address, o->launch.port, e)) >= 0;
    while (ok && (left = list_missing(g, list, sizeof list)) > 0) {
        fds[0] = (struct pollfd){ .fd = g->listener, .events = POLLIN };
        for (int p = 1; p < g->processes; p++) fds[p] = (struct pollfd){ .fd = g->link[p].data, .events = POLLIN };
        const double until = (start + seconds < next_note ? start + seconds : next_note) - now();
        const int ready = poll(fds, (nfds_t)g->processes, until > 0 ? (int)(until * 1e3) + 1 : 0);
        if (ready > 0) {
            ok = all_still_connected(g, fds, e) && (!fds[0].revents || accept_process(g, o, &mine, e));
            left -= !ok;                                    /* the offending one has its reason already */
        } else if (now() >= start + seconds)
            ok = error_set(e, "%d of %d processes have not connected to %s port %d in %.0f s: %s", left, g->processes,
                           o->launch.address, o->launch.port, seconds, list);
        else if (now() >= next_note) {
            text_print(stderr, "waiting at %s port %d for %d of %d processes: %s\n", o->launch.address, o->launch.port,
                    left, g->processes, list);
            next_note += 10;
        }
    }
    free(fds);
    for (int p = 1; p < g->processes; p++) g->at[p].first = g->at[p - 1].first + g->at[p - 1].ranks;
    for (int p = 1; ok && p < g->processes; p++)
        message_send(g->link[p].data, MESSAGE_WELCOME, g->at, (size_t)g->processes * sizeof *g->at);
    if (!ok) refuse_all(g, left, e->text);
    return ok;
}

/* ---- the other processes ----------------------------------------------------------------------------------- */

/* Tries to connect to process 0 until `until`, with pauses of 0.05 to 0.5 s. */
static int connect_to_hub(const Launch *l, double until, Error *e) {
    int fd;
    double note_at = now() + 3;
    for (double pause = 0.05; (fd = net_connect(l->address, l->port, ATTEMPT, e)) < 0 && now() < until; ) {
        if (now() > note_at) {
            note_at = until;
            text_print(stderr, "process %d is waiting for process 0: %s\n", l->process, e->text);
        }
        const struct timespec t = { .tv_nsec = (long)(pause * 1e9) };
        nanosleep(&t, NULL);
        if (pause < 0.5) pause *= 2;
    }
    return fd;
}
static int introduce(ProcessGroup *g, const GroupOptions *o, double seconds, Error *e) {
    const Launch *l = &o->launch;
    const double until = now() + seconds;
    Hello h = introduction(g, o);
    MessageHead head;
    Error last;
    int *const fd[2] = { &g->link[0].data, &g->link[0].watch };
    for (int k = 0; k < 2; k++)                             /* both at once: the first answer may be a refusal */
        if ((*fd[k] = connect_to_hub(l, until, &last)) < 0)
            return error_set(e, "process 0 was not found in %.0f s: %s. It has not started, has given up, or "
                             "runs elsewhere", seconds, last.text);
    for (h.watch = 0; h.watch < 2; h.watch++) {
        net_send(*fd[h.watch], &h, sizeof h);
        net_send(*fd[h.watch], o->settings, h.settings);
    }
    net_limit(g->link[0].data, seconds + LINGER);           /* process 0 gives up earlier, and sends the reason */
    errno = 0;
    if (!net_receive(g->link[0].data, &head, sizeof head) || head.bytes > LONGEST)
        return error_set(e, errno == EAGAIN || errno == EWOULDBLOCK ? "the program that listens at %s port %d does not answer: "
                         "is it another program?" : "the program that listens at %s port %d closed the connection: another "
                         "program, another version of this one, or process 0 ended", l->address, l->port);
    char *text = mem_alloc(head.bytes + 1);
    const int whole = net_receive(g->link[0].data, text, head.bytes);
    const int welcome = whole && head.kind == MESSAGE_WELCOME && head.bytes == (size_t)g->processes * sizeof *g->at;
    if (welcome) memcpy(g->at, text, head.bytes);
    else error_set(e, "%s", whole && head.kind == MESSAGE_LOST ? text : "process 0 ended while it started the run");
    free(text);
    return welcome;
}

int rendezvous(ProcessGroup *g, const GroupOptions *o, double seconds, Error *e) {
    return g->process ? introduce(g, o, seconds, e) : gather_all(g, o, seconds, e);
}
