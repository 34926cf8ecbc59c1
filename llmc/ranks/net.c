/* net.c: see net.h. */
#define _DEFAULT_SOURCE
#include "net.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL                     /* macOS; SIGPIPE is ignored anyway (process_protect) */
#define MSG_NOSIGNAL 0
#endif

/* ---- addresses ------------------------------------------------------------------------------- */

static int four_is_loopback(struct in_addr a) { return ntohl(a.s_addr) >> 24 == 127; }
static int is_loopback(const struct sockaddr *a) {
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return a->sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(six)
                                    : four_is_loopback(((const struct sockaddr_in *)(const void *)a)->sin_addr);
}
int net_is_loopback(const char *address) {
    struct in_addr four;
    struct in6_addr six;
    return !strcmp(address, "localhost") || (inet_pton(AF_INET, address, &four) == 1 && four_is_loopback(four))
        || (inet_pton(AF_INET6, address, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six));
}

/* The addresses of a name; freeaddrinfo them. NULL and e: it has none. */
static struct addrinfo *resolve(const char *address, int port, Error *e) {
    struct addrinfo *all = NULL, hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    char *service = text_format("%d", port);
    const int unknown = getaddrinfo(address, service, &hints, &all);
    if (unknown) error_set(e, "the name %s cannot be resolved: %s", address, gai_strerror(unknown));
    free(service);
    return unknown ? NULL : all;
}

/* ---- listening, connecting, accepting -------------------------------------------------------- */

/* Small messages are sent at once, dead connections detected; children do not inherit it. */
static int set_up(int fd) {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

static int listen_on(const struct addrinfo *a) {
    const int one = 1, fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);      /* no waiting after a run that has just ended */
    if (a->ai_family == AF_INET6) {                                  /* :: is all addresses, of both kinds */
        const int only = !IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_addr);
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
    }
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1024) && fcntl(fd, F_SETFL, O_NONBLOCK) >= 0)
        return set_up(fd);
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int is_repeated(const struct addrinfo *all, const struct addrinfo *a) {
    for (; all != a; all = all->ai_next)
        if (all->ai_addrlen == a->ai_addrlen && !memcmp(all->ai_addr, a->ai_addr, a->ai_addrlen)) return 1;
    return 0;
}
int net_listen(const char *address, int port, int for_others, int fd[NET_LISTENERS], Error *e) {
    int count = 0, why = EADDRNOTAVAIL, reachable = 0;
    struct addrinfo *const all = resolve(address, port, e);
    if (!all) return 0;
    for (const struct addrinfo *a = all; a && count < NET_LISTENERS && why != EADDRINUSE; a = a->ai_next) {
        if (is_repeated(all, a)) continue;
        if ((fd[count] = listen_on(a)) < 0) { why = errno; continue; }
        count++;
        reachable |= !is_loopback(a->ai_addr);
    }
    freeaddrinfo(all);
    const int works = count && why != EADDRINUSE && (reachable || !for_others);
    if (works) return count;
    if (why == EADDRINUSE)
        error_set(e, "port %d of this machine is occupied by another program, perhaps another run: choose another",
                  port);
    else if (count)
        error_set(e, "%s stands for a loopback address here, to which other machines cannot connect: give process 0's "
                  "address in the network with -ps or MASTER_ADDR (or -ps 0.0.0.0 to process 0 alone, to listen on all "
                  "of its addresses)", address);
    else if (why == EADDRNOTAVAIL)
        error_set(e, "%s is no address of this machine: choose one that it has (of several processes, -ps or "
                  "MASTER_ADDR names the machine of process 0)", address);
    else error_set(e, "cannot listen at %s port %d: %s", address, port, strerror(why));
    while (count) close(fd[--count]);
    return 0;
}

/* A connection may begin at the very port that it goes to, if nobody listens there yet. */
static int is_to_itself(int fd) {
    struct sockaddr_storage here = { 0 }, there = { 0 };
    socklen_t size = sizeof here, other = sizeof there;
    return !getsockname(fd, (struct sockaddr *)&here, &size) && !getpeername(fd, (struct sockaddr *)&there, &other)
        && !memcmp(&here, &there, sizeof here);
}
/* Waits at most `seconds`: if a firewall drops the packets, there is no answer at all. */
static int connect_to(const struct addrinfo *a, double seconds) {
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) return -1;
    const int flags = fcntl(fd, F_GETFL);
    int why = 0;
    socklen_t size = sizeof why;
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    if (connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS) why = errno;
    else {
        struct pollfd p = { .fd = fd, .events = POLLOUT };
        const double end = now() + seconds;
        int ready;
        do ready = poll(&p, 1, end > now() ? (int)((end - now()) * 1e3) + 1 : 0); while (ready < 0 && errno == EINTR);
        if (ready <= 0) why = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size)) why = errno;
    }
    if (!why && is_to_itself(fd)) why = ECONNREFUSED;
    fcntl(fd, F_SETFL, flags);
    if (!why) return set_up(fd);
    close(fd);
    errno = why;
    return -1;
}
int net_connect(const char *address, int port, double seconds, Error *e) {
    struct addrinfo *const all = resolve(address, port, e);
    int fd = -1;
    for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next)
        if ((fd = connect_to(a, seconds)) < 0) error_set(e, "%s port %d: %s", address, port, strerror(errno));
    if (all) freeaddrinfo(all);
    return fd;
}

int net_accept(int listener) {
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0) return -1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);   /* BSD passes it on */
    return set_up(fd);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* After a call that moved n bytes or failed: may it be tried again? Waits until fd is ready. */
static int again(ssize_t n, int fd, short events, double deadline) {
    const int why = n < 0 ? errno : 0;
    errno = why;
    if (n > 0 || why == EINTR) {
        if (deadline == NET_FOREVER || now() < deadline) return 1;
        errno = EAGAIN;
        return 0;
    }
    if (why != EAGAIN && why != EWOULDBLOCK) return 0;
    struct pollfd p = { .fd = fd, .events = events };
    for (double left; (left = deadline - now()) > 0; )
        if (poll(&p, 1, left < 1 ? (int)(left * 1e3) + 1 : 1000) > 0) return 1;
    errno = EAGAIN;
    return 0;
}

int net_send(int fd, const void *data, size_t bytes, double deadline) {
    const char *at = data;
    while (bytes) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL | (deadline == NET_FOREVER ? 0 : MSG_DONTWAIT));
        if (n > 0) { at += n; bytes -= (size_t)n; }
        if (bytes && !again(n, fd, POLLOUT, deadline)) return 0;
    }
    return 1;
}

int net_receive(int fd, void *data, size_t bytes, double deadline) {
    char *at = data;
    while (bytes) {
        const ssize_t n = recv(fd, at, bytes, deadline == NET_FOREVER ? 0 : MSG_DONTWAIT);
        if (n > 0) { at += n; bytes -= (size_t)n; }
        if (bytes && !again(n, fd, POLLIN, deadline)) return 0;
    }
    return 1;
}

long net_read(int fd, void *data, size_t most) {
    const ssize_t n = recv(fd, data, most, MSG_DONTWAIT);
    if (n > 0) return (long)n;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

long net_write(int fd, const void *data, size_t bytes) {
    const ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n >= 0 ? (long)n : errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}
int net_port(int listener) {
    union { struct sockaddr any; struct sockaddr_in four; struct sockaddr_in6 six; } a = { .six = { 0 } };
    socklen_t size = sizeof a;
    if (getsockname(listener, &a.any, &size)) return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.six.sin6_port : a.four.sin_port);
}

void net_linger(const int *fd, int count, double seconds) {
    char rest[4096];
    const double end = now() + seconds;
    struct pollfd *open = mem_alloc((size_t)count * sizeof *open);
    int left = 0;
    for (int i = 0; i < count; i++) {
        if (fd[i] < 0) continue;
        shutdown(fd[i], SHUT_WR);
        open[left++] = (struct pollfd){ .fd = fd[i], .events = POLLIN };
    }
    while (left && now() < end) {
        poll(open, (nfds_t)left, (int)((end - now()) * 1e3) + 1);
        for (int i = 0; i < left; )
            if (open[i].revents && net_read(open[i].fd, rest, sizeof rest) < 0) {
                close(open[i].fd);
                open[i] = open[--left];
            } else i++;
    }
    while (left) close(open[--left].fd);
    free(open);
}

int message_send(int fd, MessageKind kind, const void *data, size_t bytes, double deadline) {
    const MessageHead head = { (uint32_t)kind, (uint32_t)bytes };
    char *all = mem_alloc(sizeof head + bytes);
    memcpy(all, &head, sizeof head);
    if (bytes) memcpy(all + sizeof head, data, bytes);
    const int ok = net_send(fd, all, sizeof head + bytes, deadline), why = errno;
    free(all);
    errno = why;
    return ok;
}
