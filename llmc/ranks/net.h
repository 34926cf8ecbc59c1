/* net.h: TCP connections between the processes of a run. */
#ifndef NET_H
#define NET_H
#include "llmc/base/base.h"

/* A descriptor that listens on the port, or -1 and e. For a loopback address (localhost, 127...) the port is open on the
 * loopback interface only. For any other name it is open on all addresses, because a host's name for itself is often
 * not the one by which others reach it. */
int  net_listen(const char *address, int port, Error *e);
int  net_connect(const char *address, int port, double seconds, Error *e);  /* one attempt; -1 and e */
int  net_accept(int listener);                                              /* -1: the connection is gone already */
int  net_send(int fd, const void *data, size_t bytes);                      /* all of it, or 0 */
int  net_receive(int fd, void *data, size_t bytes);                         /* all of it, or 0 */
void net_limit(int fd, double seconds);     /* a send or receive without progress for this long fails; 0: no limit */
#endif
