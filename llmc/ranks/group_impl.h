/* group_impl.h: shared by group.c, rendezvous.c and watch.c, and included by nothing else. */
#ifndef GROUP_IMPL_H
#define GROUP_IMPL_H
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include "group.h"

enum { ATTEMPT = 2,                         /* seconds for one attempt to connect, or to introduce oneself */
       LINGER = 1,                          /* seconds to deliver the last message of a process that ends or refuses */
       LONGEST = 1 << 20 };                 /* bytes of the longest valid message */

typedef struct {                            /* the state of a rank, sent to the hub with every heartbeat */
    uint32_t count;                         /* phases begun */
    float    limit;
    char     phase[40];
} RankStatus;

typedef struct {                            /* a rank of this process */
    Group  group;                           /* first: a Group * is a Rank * */
    ProcessGroup *processes;
    void  *all;  const void *mine;          /* buffers of the exchange or reduction in progress */
    RankStatus  status;
    Comm  *comm;                            /* polled for errors; NULL: none */
} Rank;

typedef struct {                            /* a process, as all know it after the rendezvous */
    int32_t ranks, first, pid;              /* first: number of its first rank */
    char    host[64];
} Process;

typedef enum { MESSAGE_ALIVE, MESSAGE_LOST, MESSAGE_GOODBYE, MESSAGE_WELCOME } MessageKind;
typedef struct { uint32_t kind, bytes; } MessageHead;                  /* precedes every message to a watcher */

typedef struct {                            /* this process's connections to another */
    int    data, watch;                     /* -1: none, or closed */
    int    said_goodbye;
    double last_message;                    /* when one last arrived */
} Link;

typedef enum { RUNNING, LEAVING, EXITING } Ending;          /* EXITING: by exit(), without group_leave */

struct ProcessGroup {
    int processes, process, ranks, size;    /* ranks: of this process; size: of all */
    Process *at;                            /* (processes) */
    Link    *link;                          /* (processes); a process other than the hub has only link[0] */
    Rank    *rank;                          /* (ranks) of this process */
    char    *piece;                         /* (PIECE) the hub's receive buffer */

    pthread_mutex_t mutex;                  /* guards what follows, and every rank's status and comm */
    pthread_cond_t  all_here;
    int arrived;  unsigned meetings;        /* the thread barrier: threads that have arrived, barriers completed */

    pthread_t watcher;
    int    listener, wake[2];               /* wake: a pipe that ends the watcher's poll */
    double silence;
    void (*lost)(const char *why);
    RankStatus *status;  double *since;     /* (size) the hub's: latest status of each rank, and when its count changed */
    atomic_int ending;                      /* an Ending */
    pid_t  pid;
};

/* ---- rendezvous.c ---------------------------------------------------------------------------------------- */

int  rendezvous(ProcessGroup *g, const GroupOptions *o, double seconds, Error *e);  /* fills at, link and the hub's listener */
/* Messages are structs in memory order: all machines of a run have the same byte order and alignment. */
void message_send(int fd, MessageKind kind, const void *data, size_t bytes);
/* Sends the reason and shuts down this side. close_refused closes once the other side has read it: closing while
 * unread data from that side is pending would destroy the message. */
void refuse(int fd, const char *why);
void close_refused(int fd);

/* ---- watch.c --------------------------------------------------------------------------------------------- */

void watch_begin(ProcessGroup *g);          /* starts the watching thread */
void watch_end(ProcessGroup *g);            /* after all processes have reached the end: says goodbye, ends the thread */
#endif
