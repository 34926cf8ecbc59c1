/* rendezvous.c: how the processes of a run find each other. Process 0 waits at the door until all others have come and
 * introduced themselves, and then tells each who they all are; or why the run cannot begin. */
#define _POSIX_C_SOURCE 200809L
#include "group_impl.h"
#include "net.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 4096 };                 /* of a process */

typedef struct {                            /* what a process says first, on each of its two connections */
    char     magic[8], version[64], job[64], host[64];
    int32_t  watch, process, processes, ranks, pid;
    uint32_t settings;                      /* bytes that follow */
} Hello;
static const char magic[8] = "moe-run1";

/* ---- messages -------------------------------------------------------------------------------------------- */

void message_send(int fd, Kind kind, const void *data, size_t bytes) {
    const Head head = { (uint32_t)kind, (uint32_t)bytes };
    if (net_send(fd, &head, sizeof head)) net_send(fd, data, bytes);
}

void refuse(int fd, const char *why) {
    net_limit(fd, 0.2);
    message_send(fd, LOST, why, strlen(why));
    shutdown(fd, SHUT_WR);
}
void close_refused(int fd) {
    char rest[4096];
    const double end = now() + LINGER;
    while (now() < end && recv(fd, rest, sizeof rest, 0) > 0);
    close(fd);
}

/* ---- what process 0 does --------------------------------------------------------------------------------- */

static Hello introduction(const ProcessGroup *w, const GroupOptions *o) {
    Hello h = { .process = w->process, .processes = w->processes, .ranks = w->ranks, .pid = (int32_t)w->pid,
                .settings = (uint32_t)strlen(o->settings) };
    memcpy(h.magic, magic, sizeof h.magic);
    snprintf(h.version, sizeof h.version, "%s", o->version);
    snprintf(h.job, sizeof h.job, "%s", o->launch.job);
    memcpy(h.host, w->at[w->process].host, sizeof h.host);
    return h;
}

/* Where two lists {"name": value, ...} first differ: the item of each, which begins after the last comma before. */
static void first_difference(char *text, size_t capacity, const char *a, const char *b) {
    size_t at = 0, item = 0;
    for (; a[at] && a[at] == b[at]; at++) if (strchr(",{", a[at])) item = at + 1;
    if (a[item] == ' ' && b[item] == ' ') item++;
    snprintf(text, capacity, "%.*s there, %.*s in process 0", (int)strcspn(b + item, ",}"), b + item,
             (int)strcspn(a + item, ",}"), a + item);
}

/* Does it belong to this run? 0 and e: the run cannot begin. */
static int fits(const ProcessGroup *w, const GroupOptions *o, const Hello *mine, const Hello *h, const char *settings,
                Error *e) {
    char name[128], what[400];
    snprintf(name, sizeof name, "process %d (host %.64s, pid %d)", h->process, h->host, h->pid);
    if (strcmp(h->version, mine->version))
        return error_set(e, "%s is version %.64s of this program, process 0 is version %s", name, h->version,
                         mine->version);
    if (h->processes != w->processes)
        return error_set(e, "%s was started as one of %d processes, process 0 as one of %d", name, h->processes,
                         w->processes);
    if (h->process < 1 || h->process >= w->processes || h->ranks < 1 || h->ranks > MOST_RANKS)
        return error_set(e, "%s: there is to be one process each of the numbers 0 to %d, and this host (pid %d) is 0",
                         name, w->processes - 1, mine->pid);
    if ((h->watch ? w->link[h->process].watch : w->link[h->process].data) >= 0)
        return error_set(e, "two processes have the number %d: one on host %s, pid %d, the other on host %.64s, pid %d",
                         h->process, w->at[h->process].host, w->at[h->process].pid, h->host, h->pid);
    if (strcmp(settings, o->settings)) {
        first_difference(what, sizeof what, o->settings, settings);
        return error_set(e, "%s has other settings: %s", name, what);
    }
    return 1;
}

/* Who is at the door: its descriptor, what it says and its settings (free them); -1: nobody, or a stranger. */
static int answer_door(const ProcessGroup *w, Hello *h, char **settings) {
    const int fd = net_accept(w->listener);
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

/* One process at the door. 0 and e: the run cannot begin. */
static int admit(ProcessGroup *w, const GroupOptions *o, const Hello *mine, Error *e) {
    Hello h;
    char *settings;
    const int fd = answer_door(w, &h, &settings);
    int ok = 1;
    if (fd < 0) return 1;
    if (strcmp(h.job, mine->job)) {
        char why[256];
        snprintf(why, sizeof why, "another run waits on this port: it is of job '%s', you are of '%s'", mine->job, h.job);
        refuse(fd, why);
        close_refused(fd);
    } else if (!(ok = fits(w, o, mine, &h, settings, e))) {
        refuse(fd, e->text);
        close_refused(fd);
    } else {
        Process *p = &w->at[h.process];
        p->ranks = h.ranks;
        p->pid = h.pid;
        memcpy(p->host, h.host, sizeof p->host);
        *(h.watch ? &w->link[h.process].watch : &w->link[h.process].data) = fd;
    }
    free(settings);
    return ok;
}

/* The run cannot begin: everyone who is here is told why, and for a moment the `untold`, who may still come. */
static void refuse_all(ProcessGroup *w, int untold, const char *why) {
    const double end = now() + LINGER;
    for (int p = 1; p < w->processes; p++) if (w->link[p].data >= 0) refuse(w->link[p].data, why);
    for (int p = 1; p < w->processes; p++) {
        if (w->link[p].data < 0) continue;
        close_refused(w->link[p].data);
        w->link[p].data = -1;
    }
    while (w->listener >= 0 && untold > 0 && now() < end) {
        struct pollfd door = { .fd = w->listener, .events = POLLIN };
        Hello h;
        char *settings;
        const int fd = poll(&door, 1, 100) > 0 ? answer_door(w, &h, &settings) : -1;
        if (fd < 0) continue;
        refuse(fd, why);
        close_refused(fd);
        free(settings);
        untold -= !h.watch;
    }
}

/* The numbers of the processes that are not here yet; how many there are. */
static int missing(const ProcessGroup *w, char *list, size_t capacity) {
    int count = 0;
    size_t n = 0;
    *list = 0;
    for (int p = 1; p < w->processes; p++)
        if (w->link[p].data < 0 || w->link[p].watch < 0) {
            if (n + 24 < capacity)
                n += (size_t)snprintf(list + n, capacity - n, "%s%d", count ? ", " : "", p);
            else if (list[n - 1] != '.') n += (size_t)snprintf(list + n, capacity - n, ", ...");
            count++;
        }
    return count;
}

/* Nothing is to come from a process that has introduced itself: if its connection is ready, it has closed it. */
static int nobody_left(const ProcessGroup *w, struct pollfd *fds, Error *e) {
    for (int p = 1; p < w->processes; p++) {
        char byte;
        if (fds[p].fd >= 0 && fds[p].revents && recv(fds[p].fd, &byte, 1, MSG_PEEK) <= 0)
            return error_set(e, "process %d (host %s, pid %d) ended while others were waited for", p, w->at[p].host,
                             w->at[p].pid);
    }
    return 1;
}

/* Process 0: waits for all others at the door, then tells each who they all are. */
static int gather_all(ProcessGroup *w, const GroupOptions *o, double seconds, Error *e) {
    const Hello mine = introduction(w, o);
    const double start = now();
    double note = start + 10;
    char list[160];
    int ok, left = 0;
    struct pollfd *fds = mem_alloc((size_t)w->processes * sizeof *fds);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {                /* two connections a process */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    ok = (w->listener = net_listen(o->launch.address, o->launch.port, e)) >= 0;
    while (ok && (left = missing(w, list, sizeof list)) > 0) {
        fds[0] = (struct pollfd){ .fd = w->listener, .events = POLLIN };
        for (int p = 1; p < w->processes; p++) fds[p] = (struct pollfd){ .fd = w->link[p].data, .events = POLLIN };
        const double until = (start + seconds < note ? start + seconds : note) - now();
        const int ready = poll(fds, (nfds_t)w->processes, until > 0 ? (int)(until * 1e3) + 1 : 0);
        if (ready > 0) {
            ok = nobody_left(w, fds, e) && (!fds[0].revents || admit(w, o, &mine, e));
            left -= !ok;                                    /* that one has been told */
        }
        else if (now() >= start + seconds)
            ok = error_set(e, "%d of %d processes have not come to %s port %d in %.0f s: %s", left, w->processes,
                           o->launch.address, o->launch.port, seconds, list);
        else if (now() >= note) {
            fprintf(stderr, "waiting at %s port %d for %d of %d processes: %s\n", o->launch.address, o->launch.port,
                    left, w->processes, list);
            note += 10;
        }
    }
    free(fds);
    for (int p = 1; p < w->processes; p++) w->at[p].first = w->at[p - 1].first + w->at[p - 1].ranks;
    for (int p = 1; ok && p < w->processes; p++)
        message_send(w->link[p].data, WELCOME, w->at, (size_t)w->processes * sizeof *w->at);
    if (!ok) refuse_all(w, left, e->text);
    return ok;
}

/* ---- what the others do: knock until process 0 opens ----------------------------------------------------- */

static int knock(const Launch *l, double until, Error *e) {
    int fd;
    double note = now() + 3;
    for (double pause = 0.05; (fd = net_connect(l->address, l->port, ATTEMPT, e)) < 0 && now() < until; ) {
        if (now() > note) {
            note = until;
            fprintf(stderr, "process %d waits for process 0: %s\n", l->process, e->text);
        }
        const struct timespec t = { .tv_nsec = (long)(pause * 1e9) };
        nanosleep(&t, NULL);
        if (pause < 0.5) pause *= 2;
    }
    return fd;
}
static int introduce(ProcessGroup *w, const GroupOptions *o, double seconds, Error *e) {
    const Launch *l = &o->launch;
    const double until = now() + seconds;
    Hello h = introduction(w, o);
    Head head;
    Error last;
    int *const fd[2] = { &w->link[0].data, &w->link[0].watch };
    for (int k = 0; k < 2; k++)                             /* both, before the first answer could be a refusal */
        if ((*fd[k] = knock(l, until, &last)) < 0)
            return error_set(e, "process 0 was not found in %.0f s: %s. It has not started, has given up, or is "
                             "elsewhere", seconds, last.text);
    for (h.watch = 0; h.watch < 2; h.watch++) {
        net_send(*fd[h.watch], &h, sizeof h);
        net_send(*fd[h.watch], o->settings, h.settings);
    }
    net_limit(w->link[0].data, seconds + LINGER);           /* process 0 gives up before, and says why */
    errno = 0;
    if (!net_receive(w->link[0].data, &head, sizeof head) || head.bytes > LONGEST)
        return error_set(e, errno == EAGAIN || errno == EWOULDBLOCK ? "whoever listens at %s port %d does not answer: "
                         "is it another program?" : "whoever listens at %s port %d hung up: another program, another "
                         "version of this one, or process 0 ended", l->address, l->port);
    char *text = mem_alloc(head.bytes + 1);
    const int whole = net_receive(w->link[0].data, text, head.bytes);
    const int welcome = whole && head.kind == WELCOME && head.bytes == (size_t)w->processes * sizeof *w->at;
    if (welcome) memcpy(w->at, text, head.bytes);
    else error_set(e, "%s", whole && head.kind == LOST ? text : "process 0 ended while it began the run");
    free(text);
    return welcome;
}

int rendezvous(ProcessGroup *w, const GroupOptions *o, double seconds, Error *e) {
    return w->process ? introduce(w, o, seconds, e) : gather_all(w, o, seconds, e);
}
