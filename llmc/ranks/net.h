/* net.h: TCP connections between the processes of a run. */
#ifndef NET_H
#define NET_H
#include "llmc/base/base.h"

/* A descriptor that listens on the port, or -1 and e. An address of this machine alone (localhost, 127...) is listened
 * to alone; for any other name the port is open on all addresses, because a host's own name for itself is often not
 * the one by which others reach it. */
int  net_listen(const char *address, int port, Error *e);
int  net_connect(const char *address, int port, double seconds, Error *e);  /* one attempt; -1 and e */
int  net_accept(int listener);                                              /* -1: nobody there after all */
int  net_send(int fd, const void *data, size_t bytes);                      /* all of it; 0: cannot */
int  net_receive(int fd, void *data, size_t bytes);
void net_limit(int fd, double seconds);             /* a send or receive that makes no progress for so long fails */
#endif
