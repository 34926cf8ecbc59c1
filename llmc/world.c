/* world.c: see world.h. In this order: the threads of one process; the star of processes; what hosts agree on; the
 * watch; the rendezvous.
 *
 * Messages are structs in memory order: all machines of a run have the same kind of processor. */
#define _POSIX_C_SOURCE 200809L
#include "world.h"
#include "net.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20,                     /* bytes of a reduction that are under way between processes at a time */
       ATTEMPT = 2,                         /* seconds to connect, or to introduce oneself */
       LINGER = 1,                          /* seconds for the last words of a process that ends or refuses */
       MOST_RANKS = 4096,                   /* of a process */
       LONGEST = 1 << 20 };                 /* bytes of a message to a watcher: more is nonsense */

typedef struct {                            /* where a rank is, as it tells the hub */
    uint32_t count;                         /* of phases begun */
    float    limit;
    char     phase[40];
} Place;

typedef struct {                            /* a rank of this process */
    Peers  peers;                           /* first: a Peers * is a Rank * */
    World *world;
    void  *all;  const void *mine;          /* what its thread is exchanging or reducing */
    Place  place;
    Comm  *comm;                            /* to be asked for errors; NULL: none */
} Rank;

typedef struct {                            /* a process, as all know it after the rendezvous */
    int32_t ranks, first, pid;
    char    host[64];
} Process;

typedef enum { ALIVE, LOST, PARTING, WELCOME } Kind;
typedef struct { uint32_t kind, bytes; } Head;                         /* before every message to a watcher */

typedef struct {                            /* what a process says first, on each of its two connections */
    char     magic[8], version[64], job[64], host[64];
    int32_t  watch, process, processes, ranks, pid;
    uint32_t settings;                      /* bytes that follow */
} Hello;
static const char magic[8] = "moe-run1";

typedef struct {                            /* this process's connection to another */
    int    data, watch;                     /* -1: none, or closed */
    int    parted;                          /* it has said goodbye */
    double heard;
} Link;

typedef enum { RUNNING, LEAVING, EXITING } End;    /* exiting: by exit(), without world_leave */

struct World {
    int processes, process, ranks, size;    /* ranks: of this process */
    Process *at;                            /* (processes) */
    Link    *link;                          /* (processes); only the hub has more than the one to process 0 */
    Rank    *rank;                          /* (ranks) of this process */
    char    *piece;                         /* (PIECE) the hub's, for what arrives */

    pthread_mutex_t mutex;                  /* of the following: */
    pthread_cond_t  all_here;
    int arrived;  unsigned meeting;         /* the threads of this process, and how often they have met */

    pthread_t watcher;
    int    listener, wake[2];               /* wake: a pipe that ends the watcher's sleep */
    double silence;
    void (*lost)(const char *why);
    Place  *place;  double *since;          /* (size) the hub's: the newest of each rank, and when it changed */
    atomic_int ending;                      /* an End */
    pid_t  pid;
};

/* ---- the threads of one process: they meet, then read each other's memory ------------------------------ */

static void meet(World *w) {
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
static _Noreturn void await_verdict(World *w) {
    const double end = now() + w->silence + LINGER;
    while (now() < end) sleep(1);
    w->lost("a connection between the processes of this run broke, although all of them are alive");
    abort();
}
static void must_send(World *w, int process, const void *data, size_t bytes) {
    if (!net_send(w->link[process].data, data, bytes)) await_verdict(w);
}
static void must_receive(World *w, int process, void *data, size_t bytes) {
    if (!net_receive(w->link[process].data, data, bytes)) await_verdict(w);
}

/* ---- the star of processes: one thread of each speaks for it ------------------------------------------- */

/* The blocks of the ranks of each process lie in their places in its `all`; afterwards all of them lie in every one.
 * Nobody gets his own back: other threads may be reading it. */
static void exchange_processes(World *w, char *all, size_t bytes) {
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
static void reduce_processes(World *w, char *x, size_t bytes,
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

/* ---- exchange and reduce: Peers ------------------------------------------------------------------------ */

static int is_leader(const Rank *r) { return r == r->world->rank; }

static void exchange(Peers *p, void *all, const void *mine, size_t bytes) {
    Rank *r = (Rank *)p;
    World *w = r->world;
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
static void reduce(Peers *p, void *x, size_t bytes, void (*add)(void *x, const void *y, size_t bytes)) {
    Rank *r = (Rank *)p;
    World *w = r->world;
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

void world_barrier(Peers *p) {
    char *all = mem_alloc((size_t)p->size), mine = 0;
    p->exchange(p, all, &mine, 1);
    free(all);
}
void world_gather(Peers *p, double *all, double x) { p->exchange(p, all, &x, sizeof x); }

static void larger(void *x, const void *y, size_t bytes) {
    (void)bytes;                                            /* one int */
    if (*(const int *)y > *(int *)x) *(int *)x = *(const int *)y;
}
static void smaller(void *x, const void *y, size_t bytes) {
    (void)bytes;
    if (*(const int *)y < *(int *)x) *(int *)x = *(const int *)y;
}
int world_max(Peers *p, int x) { p->reduce(p, &x, sizeof x, larger);  return x; }
int world_min(Peers *p, int x) { p->reduce(p, &x, sizeof x, smaller); return x; }

/* The bits of the others are made zero, and or-ed. */
static void or_bits(void *x, const void *y, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)x)[i] |= ((const unsigned char *)y)[i];
}
void world_broadcast(Peers *p, void *data, size_t bytes) {
    if (p->rank && bytes) memset(data, 0, bytes);
    p->reduce(p, data, bytes, or_bits);
}

int    world_size(const World *w)                { return w->size; }
int    world_processes(const World *w)           { return w->processes; }
Peers *world_peers(World *w, int local)          { return &w->rank[local].peers; }

/* ---- the watch ------------------------------------------------------------------------------------------- */

static World *current;                      /* the run that this process has joined and not left */

static void say(int fd, Kind kind, const void *data, size_t bytes) {
    const Head head = { (uint32_t)kind, (uint32_t)bytes };
    if (net_send(fd, &head, sizeof head)) net_send(fd, data, bytes);
}

static void lost_default(const char *why) {
    if (!ftrylockfile(stdout)) fflush(stdout);              /* a thread may be stuck in the middle of a line */
    fprintf(stderr, "error: %s\n", why);
    _exit(EXIT_PEER);
}

/* "rank 2 (process 1 on host a, pid 17)"; rank -1: all ranks of the process */
static void name_ranks(char *text, size_t room, const World *w, int process, int rank) {
    const Process *p = &w->at[process];
    const int first = rank < 0 ? p->first : rank, last = rank < 0 ? p->first + p->ranks - 1 : rank;
    const int n = first == last ? snprintf(text, room, "rank %d", first)
                                : snprintf(text, room, "ranks %d to %d", first, last);
    snprintf(text + n, room - (size_t)n, " (process %d on host %s, pid %d)", process, p->host, p->pid);
}

/* The hub tells the others, whoever noticed ends. */
static void declare_lost(World *w, const char *why) {
    for (int p = 0; p < w->processes && !w->process; p++)
        if (w->link[p].watch >= 0) say(w->link[p].watch, LOST, why, strlen(why));
    w->lost(why);
    abort();                                                /* lost must not come back */
}
static void process_lost(World *w, int process, const char *what) {
    char name[160], why[400];
    name_ranks(name, sizeof name, w, process, -1);
    snprintf(why, sizeof why, "%s %s", name, what);
    declare_lost(w, why);
}

/* What came from a process. 0: the connection is at its end. */
static int hear(World *w, int process) {
    Link *l = &w->link[process];
    const Process *from = &w->at[process];
    Head head;
    if (!net_receive(l->watch, &head, sizeof head) || head.bytes > LONGEST) return 0;
    char *text = mem_alloc(head.bytes + 1);
    const int whole = net_receive(l->watch, text, head.bytes);
    if (whole && head.kind == LOST) declare_lost(w, text);
    if (whole && head.kind == PARTING) l->parted = 1;
    if (whole && head.kind == ALIVE && !w->process && head.bytes == (size_t)from->ranks * sizeof(Place))
        for (int r = 0; r < from->ranks; r++) {
            Place new;
            memcpy(&new, text + (size_t)r * sizeof new, sizeof new);
            if (new.count != w->place[from->first + r].count) w->since[from->first + r] = now();
            w->place[from->first + r] = new;
        }
    l->heard = now();
    free(text);
    return whole;
}

/* How often each process is heard of. */
static double period(const World *w) { return w->silence < 4 ? w->silence / 4 : 1; }

/* A rank that is over its limit ends the run. Who keeps the others waiting is who has begun the fewest phases; two
 * periods later all have said how many. */
static void judge_places(World *w) {
    int late = -1, behind = 0;
    for (int r = 0; r < w->size; r++) {
        if (w->place[r].limit > 0 && now() - w->since[r] > (double)w->place[r].limit + 2 * period(w)) late = r;
        if (w->place[r].count < w->place[behind].count) behind = r;
    }
    if (late < 0) return;
    int process = 0, equal = 1;
    char name[160], why[600];
    for (int r = 0; r < w->size; r++) equal &= w->place[r].count == w->place[behind].count;
    while (w->at[process].first + w->at[process].ranks <= behind) process++;
    name_ranks(name, sizeof name, w, process, behind);
    if (equal) snprintf(why, sizeof why, "no rank has come on for %.1f s, all are in '%s'", now() - w->since[late],
                        w->place[late].phase);
    else snprintf(why, sizeof why, "%s has been in '%s' for %.1f s, and others wait for it", name,
                  w->place[behind].phase, now() - w->since[behind]);
    declare_lost(w, why);
}

/* Says that this process is alive and where its ranks are, and asks their communicators for errors. */
static void beat(World *w, Place *places) {
    const char *error = NULL;
    char why[400];
    pthread_mutex_lock(&w->mutex);
    for (int r = 0; r < w->ranks; r++) {
        places[r] = w->rank[r].place;
        if (w->rank[r].comm && !error && (error = w->rank[r].comm->error(w->rank[r].comm)))
            snprintf(why, sizeof why, "rank %d: %s", w->rank[r].peers.rank, error);
    }
    pthread_mutex_unlock(&w->mutex);
    if (error && w->process) say(w->link[0].watch, LOST, why, strlen(why));
    if (error) declare_lost(w, why);
    for (int r = 0; r < w->ranks && !w->process; r++) {
        if (places[r].count != w->place[r].count) w->since[r] = now();
        w->place[r] = places[r];
    }
    for (int p = 0; p < w->processes; p++)
        if (w->link[p].watch >= 0) say(w->link[p].watch, ALIVE, places, (size_t)w->ranks * sizeof *places);
}

/* A last word. The connection is closed when the other side has read it: closing with something unread from there
 * would destroy it. */
static void refuse(int fd, const char *why) {
    net_limit(fd, 0.2);
    say(fd, LOST, why, strlen(why));
    shutdown(fd, SHUT_WR);
}
static void close_refused(int fd) {
    char rest[4096];
    const double end = now() + LINGER;
    while (now() < end && recv(fd, rest, sizeof rest, 0) > 0);
    close(fd);
}

/* Somebody comes when all are here. */
static void refuse_latecomer(World *w) {
    char why[128];
    const int fd = net_accept(w->listener);
    if (fd < 0) return;
    snprintf(why, sizeof why, "this run has all its %d processes: was one started twice?", w->processes);
    refuse(fd, why);
    close_refused(fd);
}

/* One round of listening, for `seconds` at most. fds: room for the wake pipe, the listener and all processes. */
static void listen_round(World *w, struct pollfd *fds, double seconds) {
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

static int still_linked(const World *w) {
    for (int p = 0; p < w->processes; p++) if (w->link[p].watch >= 0) return 1;
    return 0;
}

static void judge_silence(World *w) {
    for (int p = 0; p < w->processes; p++)
        if (w->link[p].watch >= 0 && !w->link[p].parted && now() - w->link[p].heard > w->silence)
            process_lost(w, p, "is silent: stopped, cut off, or its machine is down");
}
/* This whole process slept, in a debugger or suspended: nobody is to blame for the time. */
static void forgive(World *w) {
    for (int p = 0; p < w->processes; p++) w->link[p].heard = now();
    for (int r = 0; r < w->size; r++) w->since[r] = now();
}

static void *watch(void *argument) {
    World *w = argument;
    struct pollfd *fds = mem_alloc((size_t)(w->processes + 2) * sizeof *fds);
    Place *places = mem_alloc((size_t)w->ranks * sizeof *places);
    for (double next = 0; !w->ending; ) {
        const double before = now();
        if (before >= next) {
            beat(w, places);
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
            say(w->link[p].watch, PARTING, "", 0);
            shutdown(w->link[p].watch, SHUT_WR);
        }
    for (const double end = now() + LINGER; still_linked(w) && now() < end; ) listen_round(w, fds, 0.05);
    free(places);
    free(fds);
    return NULL;
}

void world_phase(Peers *p, const char *phase, double limit) {
    Rank *r = (Rank *)p;
    if (p->size == 1) return;
    pthread_mutex_lock(&r->world->mutex);
    r->place.count++;
    r->place.limit = (float)limit;
    snprintf(r->place.phase, sizeof r->place.phase, "%s", phase);
    pthread_mutex_unlock(&r->world->mutex);
}
void world_watch(Peers *p, Comm *c) {
    Rank *r = (Rank *)p;
    pthread_mutex_lock(&r->world->mutex);
    r->comm = c;
    pthread_mutex_unlock(&r->world->mutex);
}

/* exit() without world_leave: the others need not wait until the last handler of this process has run. */
static void exit_unparted(void) {
    if (!current || current->pid != getpid()) return;
    current->ending = EXITING;
    for (int p = 0; p < current->processes; p++)
        if (current->link[p].watch >= 0) shutdown(current->link[p].watch, SHUT_RDWR);
}

/* ---- the rendezvous -------------------------------------------------------------------------------------- */

static World *world_new(const WorldOptions *o) {
    const Launch *l = &o->launch;
    World *w = mem_alloc(sizeof *w);
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
static void world_free(World *w) {
    for (int p = 0; p < w->processes; p++) { close_if_open(w->link[p].data); close_if_open(w->link[p].watch); }
    close_if_open(w->listener);
    close_if_open(w->wake[0]);
    close_if_open(w->wake[1]);
    pthread_cond_destroy(&w->all_here);
    pthread_mutex_destroy(&w->mutex);
    void *owned[] = { w->at, w->link, w->piece, w->rank, w->place, w->since, w };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static Hello introduction(const World *w, const WorldOptions *o) {
    Hello h = { .process = w->process, .processes = w->processes, .ranks = w->ranks, .pid = (int32_t)w->pid,
                .settings = (uint32_t)strlen(o->settings) };
    memcpy(h.magic, magic, sizeof h.magic);
    snprintf(h.version, sizeof h.version, "%s", o->version);
    snprintf(h.job, sizeof h.job, "%s", o->launch.job);
    memcpy(h.host, w->at[w->process].host, sizeof h.host);
    return h;
}

/* Where two lists {"name": value, ...} first differ: the item of each, which begins after the last comma before. */
static void first_difference(char *text, size_t room, const char *a, const char *b) {
    size_t at = 0, item = 0;
    for (; a[at] && a[at] == b[at]; at++) if (strchr(",{", a[at])) item = at + 1;
    if (a[item] == ' ' && b[item] == ' ') item++;
    snprintf(text, room, "%.*s there, %.*s in process 0", (int)strcspn(b + item, ",}"), b + item,
             (int)strcspn(a + item, ",}"), a + item);
}

/* Does it belong to this run? 0 and e: the run cannot begin. */
static int fits(const World *w, const WorldOptions *o, const Hello *mine, const Hello *h, const char *settings,
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
static int answer_door(const World *w, Hello *h, char **settings) {
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
static int admit(World *w, const WorldOptions *o, const Hello *mine, Error *e) {
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
static void refuse_all(World *w, int untold, const char *why) {
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
static int missing(const World *w, char *list, size_t room) {
    int count = 0;
    size_t n = 0;
    *list = 0;
    for (int p = 1; p < w->processes; p++)
        if (w->link[p].data < 0 || w->link[p].watch < 0) {
            if (n + 24 < room)
                n += (size_t)snprintf(list + n, room - n, "%s%d", count ? ", " : "", p);
            else if (list[n - 1] != '.') n += (size_t)snprintf(list + n, room - n, ", ...");
            count++;
        }
    return count;
}

/* Nothing is to come from a process that has introduced itself: if its connection is ready, it has closed it. */
static int nobody_left(const World *w, struct pollfd *fds, Error *e) {
    for (int p = 1; p < w->processes; p++) {
        char byte;
        if (fds[p].fd >= 0 && fds[p].revents && recv(fds[p].fd, &byte, 1, MSG_PEEK) <= 0)
            return error_set(e, "process %d (host %s, pid %d) ended while others were waited for", p, w->at[p].host,
                             w->at[p].pid);
    }
    return 1;
}

/* Process 0: waits for all others at the door, then tells each who they all are. */
static int gather_all(World *w, const WorldOptions *o, double seconds, Error *e) {
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
        say(w->link[p].data, WELCOME, w->at, (size_t)w->processes * sizeof *w->at);
    if (!ok) refuse_all(w, left, e->text);
    return ok;
}

/* Another process: knocks until process 0 opens. */
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
static int introduce(World *w, const WorldOptions *o, double seconds, Error *e) {
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

World *world_join(const WorldOptions *o, Error *e) {
    const double seconds = o->join_seconds > 0 ? o->join_seconds : 300;
    static int registered;
    World *w = world_new(o);
    w->at[w->process] = (Process){ .ranks = w->ranks, .pid = (int32_t)w->pid };
    gethostname(w->at[w->process].host, sizeof w->at->host - 1);
    if (w->processes > 1 && !(w->process ? introduce(w, o, seconds, e) : gather_all(w, o, seconds, e))) {
        world_free(w);
        return NULL;
    }
    w->size = w->at[w->processes - 1].first + w->at[w->processes - 1].ranks;
    for (int r = 0; r < w->ranks; r++)
        w->rank[r] = (Rank){ .peers = { w->at[w->process].first + r, w->size, exchange, reduce }, .world = w };
    if (w->size == 1) return w;

    w->place = mem_alloc((size_t)w->size * sizeof *w->place);
    w->since = mem_alloc((size_t)w->size * sizeof *w->since);
    for (int r = 0; r < w->size; r++) w->since[r] = now();
    for (int p = 0; p < w->processes; p++) {
        w->link[p].heard = now();
        if (w->link[p].data < 0) continue;
        net_limit(w->link[p].data, 0);                      /* for ever: the watch is there for that */
        net_limit(w->link[p].watch, w->silence);
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);            /* signals are for the threads that work */
    if (pipe(w->wake) || pthread_create(&w->watcher, NULL, watch, w)) fail(EXIT_MEMORY, "no thread to watch the ranks");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    current = w;
    if (!registered++) atexit(exit_unparted);
    return w;
}

void world_leave(World *w) {
    if (w->size > 1) {
        char *all = mem_alloc((size_t)w->size);
        if (w->processes > 1) exchange_processes(w, all, 1);    /* all are here */
        free(all);
        w->ending = LEAVING;
        if (write(w->wake[1], "", 1) != 1) warn("the watching thread was not woken: %s", strerror(errno));
        pthread_join(w->watcher, NULL);
        current = NULL;
    }
    world_free(w);
}
