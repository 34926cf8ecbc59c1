/* rendezvous.c: how the processes of a run find each other. Process 0 listens until every other
 * process has connected twice and introduced itself (messages.h). Then it sends each the list of
 * all processes, or the reason why the run cannot begin. */
#define _DEFAULT_SOURCE
#include "group_impl.h"
#include "net.h"
#include "secret.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static Hello introduction(const ProcessGroup *g, const GroupOptions *o) {
    Hello h = { .processes = g->processes, .ranks = g->ranks, .pid = (int32_t)g->pid,
                .settings = (uint32_t)strlen(o->settings) };
    snprintf(h.version, sizeof h.version, "%s", o->version);
    snprintf(h.job, sizeof h.job, "%s", o->launch.job);
    memcpy(h.host, g->at[g->process].host, sizeof h.host);
    return h;
}

/* ---- process 0 ------------------------------------------------------------------------------- */

typedef struct {
    ProcessGroup *g;
    const GroupOptions *o;
    Hello  mine;
    int    ok, missing;                 /* ok 0: the run cannot begin; missing: processes that do not know why yet */
    Error *e;                               /* why */
} Gathering;

/* Stores the connection of a process. An Admit (introductions.h). */
static int admit(void *to, int fd, const Greeting *greeting, const Hello *h, const char *settings, Error *why) {
    Gathering *r = to;
    ProcessGroup *g = r->g;
    char name[128];
    if (!r->ok) {
        *why = *r->e;
        r->missing -= !greeting->watch;
        return 0;
    }
    if (strcmp(h->job, r->mine.job))
        return error_set(why, "another run is using this port: it is of job '%s', you are of '%s'",
                         r->mine.job, h->job);
    if (!hello_check(&r->mine, r->o->settings, h, greeting->process, settings, why)) r->ok = 0;
    else {
        Process *p = &g->at[greeting->process];
        Link *l = &g->link[greeting->process];
        int *const slot = greeting->watch ? &l->watch : &l->data;
        hello_name(name, h, greeting->process);
        if (*slot < 0 && (!p->pid || p->pid == h->pid)) {
            p->ranks = h->ranks;
            p->pid = h->pid;
            memcpy(p->host, h->host, sizeof p->host);
            *slot = fd;
            message_send(fd, MESSAGE_ADMITTED, "", 0, now());
            return 1;
        }
        r->ok = error_set(why, "two processes have the number %u: one on host %s, pid %d, the other on host %s, pid %d",
                          (unsigned)greeting->process, p->host, p->pid, h->host, h->pid);
    }
    *r->e = *why;
    return 0;
}

/* Lists the processes that have not connected yet; returns how many there are. */
static int list_missing(const ProcessGroup *g, char *list, size_t capacity) {
    int count = 0;
    size_t n = 0;
    *list = 0;
    for (int p = 1; p < g->processes; p++)
        if (g->link[p].data < 0 || g->link[p].watch < 0) {
            if (n + 24 < capacity) n += (size_t)snprintf(list + n, capacity - n, "%s%d", count ? ", " : "", p);
            else if (list[n - 1] != '.') n += (size_t)snprintf(list + n, capacity - n, ", ...");
            count++;
        }
    return count;
}

/* A process that is introduced sends nothing more. fds (2, processes): its connections, polled. */
static int all_still_connected(const ProcessGroup *g, const struct pollfd *fds, Error *e) {
    for (int i = 2; i < 2 * g->processes; i++) {
        const Process *p = &g->at[i / 2];
        char byte;
        if (fds[i].fd < 0 || !fds[i].revents) continue;
        const ssize_t n = recv(fds[i].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
        return error_set(e, "process %d (host %s, pid %d) %s before all processes had connected", i / 2, p->host,
                         p->pid, n > 0 ? "sent something that this program does not send" : "ended");
    }
    return 1;
}
/* Waits until `until`, or until something arrives. fds: for all of them. */
static void gather_some(Gathering *r, struct pollfd *fds, double until) {
    ProcessGroup *g = r->g;
    const int n = introductions_poll(g->introductions, fds, &until);
    for (int p = 0; p < g->processes; p++) {
        fds[n + 2 * p] = (struct pollfd){ .fd = g->link[p].data, .events = POLLIN };
        fds[n + 2 * p + 1] = (struct pollfd){ .fd = g->link[p].watch, .events = POLLIN };
    }
    const double left = until - now();
    if (poll(fds, (nfds_t)(n + 2 * g->processes), left > 0 ? (int)(left * 1e3) + 1 : 0) < 0) return;
    if (r->ok) r->ok = all_still_connected(g, fds + n, r->e);
    introductions_step(g->introductions, admit, r);
}

/* The run cannot begin: tells all, and for LINGER seconds those that still connect, why. */
static void refuse_all(Gathering *r, struct pollfd *fds) {
    const double end = now() + LINGER;
    ProcessGroup *g = r->g;
    for (int p = 1; p < g->processes; p++) {
        Link *l = &g->link[p];
        if (l->data >= 0) message_send(l->data, MESSAGE_LOST, r->e->text, strlen(r->e->text), now());
        if (l->data >= 0) close(l->data);
        if (l->watch >= 0) close(l->watch);
        l->data = l->watch = -1;
    }
    while (r->missing > 0 && now() < end) gather_some(r, fds, end);
}

/* Notes to the user every ten seconds. */
static void note_missing(const Gathering *r, int left, const char *list, const char *wrong) {
    const Launch *l = &r->o->launch;
    text_print(stderr, "waiting at %s port %d for %d of %d processes: %s%s\n", l->address, l->port, left,
               r->g->processes, list, wrong);
}
static int gather_all(ProcessGroup *g, const GroupOptions *o, double seconds, Error *e) {
    const double start = now();
    const Launch *l = &o->launch;
    Gathering r = { .g = g, .o = o, .mine = introduction(g, o), .ok = 1, .e = e };
    double next_note = start + 10;
    char list[160], wrong[160] = "", from[64];
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {                /* two connections a process */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (!(g->introductions = introductions_open(l->address, l->port, !launch_is_local(l), o->secret, e))) return 0;
    struct pollfd *fds = mem_alloc((INTRODUCTION_FDS + 2 * (size_t)g->processes) * sizeof *fds);
    for (int others; r.ok && (r.missing = list_missing(g, list, sizeof list)) > 0; ) {
        gather_some(&r, fds, start + seconds < next_note ? start + seconds : next_note);
        if ((others = introductions_wrong(g->introductions, from)))
            snprintf(wrong, sizeof wrong, " (connections with another secret: %d, the latest from %s)", others, from);
        if (!r.ok) r.missing--;                             /* the offending one has its reason already */
        else if (now() >= start + seconds && (r.missing = list_missing(g, list, sizeof list)) > 0)
            r.ok = error_set(e, "%d of %d processes have not connected to %s port %d in %.0f s: %s%s", r.missing,
                             g->processes, l->address, l->port, seconds, list, wrong);
        else if (now() >= next_note) {
            note_missing(&r, list_missing(g, list, sizeof list), list, wrong);
            next_note += 10;
        }
    }
    if (r.ok) r.ok = processes_number(g->at, g->processes, e);
    /* one that does not read it is lost, which the watching thread finds */
    for (int p = 1; r.ok && p < g->processes; p++)
        message_send(g->link[p].data, MESSAGE_WELCOME, g->at, (size_t)g->processes * sizeof *g->at, now() + ATTEMPT);
    if (!r.ok) refuse_all(&r, fds);
    free(fds);
    return r.ok;
}

/* ---- the other processes --------------------------------------------------------------------- */

/* Nobody at process 0's address speaks as it would. */
static int unanswered(const Launch *l, Error *e) {
    return error_set(e,
                     errno == EAGAIN ? "the program that listens at %s port %d does not answer: is it another program?"
                     : "the program that listens at %s port %d closed the connection: another program, another version "
                     "of this one, or process 0 ended", l->address, l->port);
}

/* After a MESSAGE_LOST. */
static int read_reason(int fd, const MessageHead *head, double deadline, Error *e) {
    char text[MOST_REASON];
    if (head->kind != MESSAGE_LOST || head->bytes > sizeof text || !net_receive(fd, text, head->bytes, deadline))
        return error_set(e, "process 0 ended while it started the run");
    one_line(e->text, sizeof e->text, text, head->bytes);
    return 0;
}

/* Each side proves that it knows the secret. 0 and e. *final: another attempt would not help. */
static int exchange_proofs(int fd, const Launch *l, const char *secret, int watch, double deadline,
                           int *final, Error *e) {
    static const unsigned char zeros[PROOF_BYTES];
    unsigned char nonce[NONCE_BYTES], proof[PROOF_BYTES], right[PROOF_BYTES];
    Greeting g = { .watch = (uint32_t)watch, .process = (uint32_t)l->process };
    memcpy(g.magic, greeting_magic, sizeof g.magic);
    if (!random_bytes(g.nonce, sizeof g.nonce)) return error_set(e, "/dev/urandom: %s", strerror(errno));
    if (!net_send(fd, &g, sizeof g, deadline) || !net_receive(fd, nonce, sizeof nonce, deadline))
        return unanswered(l, e);
    proof_make(right, secret, FROM_PROCESS, &g, nonce);
    if (!net_send(fd, right, sizeof right, deadline) || !net_receive(fd, proof, sizeof proof, deadline))
        return unanswered(l, e);
    proof_make(right, secret, FROM_HUB, &g, nonce);
    if (same_in_constant_time(proof, right, sizeof right)) return 1;
    *final = !memcmp(proof, zeros, sizeof zeros);
    return error_set(e, *final ? "process 0 at %s port %d has another secret: it is another run (choose another port), "
                     "or MOE_SECRET is not the same for all processes" : "the program that listens at %s port %d does "
                     "not know this run's secret: it is another program", l->address, l->port);
}
/* One attempt to open a connection and to be admitted. -1 and e. */
static int introduce(const GroupOptions *o, const Hello *h, int watch, double until, int *final, Error *e) {
    const Launch *l = &o->launch;
    const double soon = now() + PATIENCE;
    MessageHead head;
    const int fd = net_connect(l->address, l->port, ATTEMPT, e);
    if (fd < 0) return -1;
    if (exchange_proofs(fd, l, o->secret, watch, soon < until ? soon : until, final, e)) {
        errno = 0;
        if (!net_send(fd, h, sizeof *h, until) || !net_send(fd, o->settings, h->settings, until)
            || !net_receive(fd, &head, sizeof head, until + LINGER)) unanswered(l, e);
        else if (head.kind == MESSAGE_ADMITTED && !head.bytes) return fd;
        else *final = !read_reason(fd, &head, until + LINGER, e);
    }
    close(fd);
    return -1;
}

static int has_arrived(int fd) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, 0) > 0;
}

/* Tries until `until`, with pauses. data: a connection on which a reason may come; -1: none. */
static int introduce_until(const GroupOptions *o, const Hello *h, int data, double until, double seconds, Error *e) {
    double note_at = until - seconds + 3;
    int fd, final = 0;
    Error last = { 0 }, latest;
    for (double pause = 0.05; (fd = introduce(o, h, data >= 0, until, &final, &latest)) < 0; ) {
        if (final) { *e = latest; return -1; }
        if (!*last.text || now() < until) last = latest;    /* an attempt that the deadline cut short says less */
        if (data >= 0 && has_arrived(data)) return -1;
        if (now() >= until) {
            error_set(e, "process 0 was not found in %.0f s: %s. It has not started, has given up, or runs elsewhere",
                      seconds, last.text);
            return -1;
        }
        if (now() > note_at) {
            note_at = until;
            text_print(stderr, "process %d is waiting for process 0: %s\n", o->launch.process, last.text);
        }
        const struct timespec t = { .tv_nsec = (long)(pause * 1e9) };
        nanosleep(&t, NULL);
        if (pause < 0.5) pause *= 2;
    }
    return fd;
}
/* Joins the run of process 0. */
static int join_hub(ProcessGroup *g, const GroupOptions *o, double seconds, Error *e) {
    const double until = now() + seconds;
    const Hello h = introduction(g, o);
    const Process mine = g->at[g->process];
    const size_t bytes = (size_t)g->processes * sizeof *g->at;
    Link *hub = &g->link[0];
    MessageHead head;
    if ((hub->data = introduce_until(o, &h, -1, until, seconds, e)) < 0) return 0;
    hub->watch = introduce_until(o, &h, hub->data, until, seconds, e);
    if (hub->watch < 0 && !has_arrived(hub->data)) return 0;
    const double end = now() + seconds + LINGER;            /* process 0 gives up earlier, and sends the reason */
    errno = 0;
    if (!net_receive(hub->data, &head, sizeof head, end)) {
        if (errno == EAGAIN) return unanswered(&o->launch, e);
        return error_set(e, "process 0 ended while it started the run");
    }
    if (head.kind != MESSAGE_WELCOME || head.bytes != bytes) return read_reason(hub->data, &head, end, e);
    if (!net_receive(hub->data, g->at, bytes, end)) return error_set(e, "process 0 ended while it started the run");
    return processes_check(g->at, g->processes, g->process, &mine, e);
}
int rendezvous(ProcessGroup *g, const GroupOptions *o, double seconds, Error *e) {
    return g->process ? join_hub(g, o, seconds, e) : gather_all(g, o, seconds, e);
}
