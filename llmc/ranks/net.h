/* net.h: TCP connections between processes. Deadlines are times of now(); calls that have one look
 * at the clock after every piece, so that one byte now and then does not prolong them. */
#pragma once
#include "messages.h"

enum { NET_LISTENERS = 8, NET_FOREVER = 0 };                /* NET_FOREVER: no deadline */

/* Listens on the port, on the addresses of this machine that `address` stands for and on no others:
 * 0.0.0.0 or :: must be asked for. for_others: other machines must be able to connect. Fills fd;
 * returns how many, or 0 and e. They do not block. */
int  net_listen(const char *address, int port, int for_others, int fd[NET_LISTENERS], Error *e);
int  net_is_loopback(const char *address);                  /* localhost, 127.0.0.0/8 or ::1 */
int  net_connect(const char *address, int port, double seconds, Error *e);      /* tries every address; -1 and e */
int  net_accept(int listener);                              /* -1: none, or it is gone already, or errno says more */
/* All of it, or 0; errno is EAGAIN if the deadline has passed, 0 if the other side has closed. */
int  net_send(int fd, const void *data, size_t bytes, double deadline);
int  net_receive(int fd, void *data, size_t bytes, double deadline);
/* What has arrived, at most `most` bytes, without waiting: how many, 0: nothing yet; -1: the
 * connection has ended. net_write: what can be sent without waiting. */
long net_read(int fd, void *data, size_t most);
long net_write(int fd, const void *data, size_t bytes);
int  net_port(int listener);                    /* the port on which it listens; 0 was asked for: which one that is */
/* Ends connections whose last message should still be delivered: sends no more, and reads until the
 * other sides have closed, all of them at once and for at most `seconds`. Closing while unread data
 * is pending would destroy the message. -1 in fd: none. */
void net_linger(const int *fd, int count, double seconds);
int message_send(int fd, MessageKind kind, const void *data, size_t bytes, double deadline);     /* 0: not all of it */
