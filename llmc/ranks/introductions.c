/* introductions.c: see introductions.h. */
#define _POSIX_C_SOURCE 200809L
#include "introductions.h"
#include "net.h"
#include "secret.h"
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTED_AT_ONCE = 16 };             /* between two looks at the others */
_Static_assert(INTRODUCTION_FDS == NET_LISTENERS + MOST_INTRODUCTIONS, "introductions.h");

typedef struct {
    int    fd, refused;                     /* refused: has its reason, and is read until it closes */
    double deadline;
    Introduction is;
} Newcomer;

struct Introductions {
    char    *secret;
    int      listener[NET_LISTENERS], listeners, count, wrong;
    char     latest_wrong[64];
    double   rest;                          /* no accept before this time: descriptors have run out */
    Newcomer at[MOST_INTRODUCTIONS];        /* (count), the oldest first */
};

Introductions *introductions_open(const char *address, int port, int for_others, const char *secret, Error *e) {
    Introductions *s = mem_alloc(sizeof *s);
    s->secret = text_format("%s", secret);
    if ((s->listeners = net_listen(address, port, for_others, s->listener, e))) return s;
    introductions_close(s);
    return NULL;
}

static void forget(Introductions *s, int i, int close_it) {
    if (close_it) close(s->at[i].fd);
    free(s->at[i].is.settings);
    memmove(&s->at[i], &s->at[i + 1], (size_t)(--s->count - i) * sizeof *s->at);
}
void introductions_close(Introductions *s) {
    if (!s) return;
    while (s->count) forget(s, 0, 1);
    while (s->listeners) close(s->listener[--s->listeners]);
    free_each(s->secret, s);
}
int introductions_wrong(const Introductions *s, char text[64]) {
    memcpy(text, s->latest_wrong, sizeof s->latest_wrong);
    return s->wrong;
}

int introductions_poll(Introductions *s, struct pollfd *fds, double *until) {
    int n = 0;
    if (now() >= s->rest)
        for (; n < s->listeners; n++) fds[n] = (struct pollfd){ .fd = s->listener[n], .events = POLLIN };
    else if (s->rest < *until) *until = s->rest;
    for (int i = 0; i < s->count; i++) {
        fds[n++] = (struct pollfd){ .fd = s->at[i].fd, .events = POLLIN };
        if (s->at[i].deadline < *until) *until = s->at[i].deadline;
    }
    return n;
}

/* Ends the oldest connection that has proved nothing. 0: there is none. */
static int drop_oldest(Introductions *s) {
    for (int i = 0; i < s->count; i++)
        if (!s->at[i].refused && s->at[i].is.stage < HELLO) { forget(s, i, 1); return 1; }
    return 0;
}
static void accept_newcomers(Introductions *s) {
    for (int k = 0, fd; k < s->listeners && now() >= s->rest; k++)
        for (int n = 0; n < ACCEPTED_AT_ONCE; n++) {
            if ((fd = net_accept(s->listener[k])) < 0) {
                if (errno == EINTR || errno == ECONNABORTED) continue;
                if (errno != EAGAIN && errno != EWOULDBLOCK && !drop_oldest(s)) s->rest = now() + 0.1;
                break;
            }
            Newcomer new = { .fd = fd, .deadline = now() + INTRODUCTION_SECONDS };
            if ((s->count == MOST_INTRODUCTIONS && !drop_oldest(s)) || !random_bytes(new.is.nonce, sizeof new.is.nonce))
                close(fd);
            else s->at[s->count++] = new;
        }
}

static void note_wrong(Introductions *s, int fd) {
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    s->wrong += s->wrong < 1000000;
    if (getpeername(fd, (struct sockaddr *)&from, &size)
        || getnameinfo((struct sockaddr *)&from, size, s->latest_wrong, sizeof s->latest_wrong, NULL, 0,
                       NI_NUMERICHOST))
        strcpy(s->latest_wrong, "?");
}

/* A whole introduction. 1: the connection is not this module's any more. */
static int judge(Newcomer *c, Admit admit, void *to) {
    Error why;
    if (admit(to, c->fd, &c->is.greeting, &c->is.hello, c->is.settings, &why)) return 1;
    message_send(c->fd, MESSAGE_LOST, why.text, strlen(why.text), now());
    shutdown(c->fd, SHUT_WR);
    c->refused = 1;
    c->deadline = now() + LINGER;
    return 0;
}

typedef enum { WAITS, ENDED, ADMITTED } Progress;
/* Reads what one of them has sent. */
static Progress read_newcomer(Introductions *s, Newcomer *c, Admit admit, void *to) {
    unsigned char answer[PROOF_BYTES], rest[4096];
    size_t bytes;
    for (void *buffer; !c->refused && (buffer = introduction_buffer(&c->is, &bytes)); ) {
        const long n = net_read(c->fd, buffer, bytes);
        if (n <= 0) return n ? ENDED : WAITS;
        const size_t length = introduction_advance(&c->is, (size_t)n, s->secret, answer);
        if (c->is.stage == WRONG_SECRET) note_wrong(s, c->fd);
        if (length && !net_send(c->fd, answer, length, now())) return ENDED;
        if (c->is.stage == WRONG || c->is.stage == WRONG_SECRET) return ENDED;
    }
    if (!c->refused && judge(c, admit, to)) return ADMITTED;
    return net_read(c->fd, rest, sizeof rest) < 0 ? ENDED : WAITS;
}
void introductions_step(Introductions *s, Admit admit, void *to) {
    accept_newcomers(s);
    for (int i = 0; i < s->count; ) {
        const Progress p = now() < s->at[i].deadline ? read_newcomer(s, &s->at[i], admit, to) : ENDED;
        if (p == WAITS) i++;
        else forget(s, i, p == ENDED);
    }
}
