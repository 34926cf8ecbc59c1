/* net.c: see net.h. */
#define _POSIX_C_SOURCE 200809L
#include "net.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int is_local(const char *address) { return !strcmp(address, "localhost") || !strncmp(address, "127.", 4); }

/* Small messages are sent at once; a dead connection is detected eventually; child processes do not inherit it. */
static int set_up(int fd) {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

static int listen_on(const struct sockaddr *where, socklen_t bytes) {
    const int one = 1, none = 0;
    const int fd = socket(where->sa_family, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);      /* no waiting after a run that has just ended */
    if (where->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &none, sizeof none);
    if (!bind(fd, where, bytes) && !listen(fd, 1024)) return set_up(fd);
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

int net_listen(const char *address, int port, Error *e) {
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port),
                                .sin6_addr = in6addr_any };
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    four.sin_addr.s_addr = htonl(is_local(address) ? INADDR_LOOPBACK : INADDR_ANY);
    int fd = is_local(address) ? -1 : listen_on((const struct sockaddr *)&six, sizeof six);
    if (fd < 0) fd = listen_on((const struct sockaddr *)&four, sizeof four);
    if (fd < 0 && errno == EADDRINUSE)
        error_set(e, "port %d of this machine is occupied by another program, perhaps another run: choose another", port);
    else if (fd < 0) error_set(e, "cannot listen on port %d: %s", port, strerror(errno));
    return fd;
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
        if (poll(&p, 1, (int)(seconds * 1e3)) <= 0) why = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size)) why = errno;
    }
    fcntl(fd, F_SETFL, flags);
    if (!why) return set_up(fd);
    close(fd);
    errno = why;
    return -1;
}

int net_connect(const char *address, int port, double seconds, Error *e) {
    struct addrinfo *all = NULL, hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    char *service = text_format("%d", port);
    const int unknown = getaddrinfo(address, service, &hints, &all);
    int fd = -1;
    if (unknown) error_set(e, "the name %s cannot be resolved: %s", address, gai_strerror(unknown));
    for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next)
        if ((fd = connect_to(a, seconds)) < 0) error_set(e, "%s port %d: %s", address, port, strerror(errno));
    if (all) freeaddrinfo(all);
    free(service);
    return fd;
}

int net_accept(int listener) {
    const int fd = accept(listener, NULL, NULL);
    return fd < 0 ? -1 : set_up(fd);
}

int net_send(int fd, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

int net_receive(int fd, void *data, size_t bytes) {
    char *at = data;
    while (bytes) {
        const ssize_t n = recv(fd, at, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

void net_limit(int fd, double seconds) {
    const struct timeval t = { .tv_sec = (time_t)seconds, .tv_usec = (suseconds_t)((seconds - (time_t)seconds) * 1e6) };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}
