/* group_impl.h: shared by group.c, connect.c, rendezvous.c and watch.c only. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include "group.h"
#include "introductions.h"
#include "messages.h"

enum { ATTEMPT = 2,                         /* seconds for one attempt to connect */
       PATIENCE = 10,           /* seconds that a process waits for the proof of process 0 before it connects again */
       COMMS = 3,                           /* of a rank: with all, within its node, with other nodes */
       PIECE = 1 << 20 };                   /* bytes of a reduction in flight between processes at a time */

typedef struct {                            /* a rank of this process */
    Group  group;                           /* first: a Group * is a Rank * */
    ProcessGroup *processes;
    void  *all;  const void *mine;          /* buffers of the exchange or reduction in progress */
    RankStatus  status;
    Comm  *comm[COMMS];                     /* polled for errors; NULL: none */
} Rank;

typedef struct {                            /* this process's connections to another */
    int    data, watch;                     /* -1: none, or closed */
    int    said_goodbye;
    double last_message;                    /* when one last arrived as a whole */
    char  *inbox;  size_t have, most;       /* of the watch connection: part of a message, and its limit */
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
    int arrived;  unsigned barriers;        /* the thread barrier: threads that have arrived, barriers completed */

    pthread_t watcher;
    int    wake[2];                         /* a pipe that ends the watcher's poll */
    Introductions *introductions;           /* of process 0, if there are others */
    double silence;
    void (*lost)(const char *why);
    RankStatus *status;  double *since;   /* (size) the hub's: latest status of each rank, and when its count changed */
    atomic_int ending;                      /* an Ending */
    pid_t  pid;
};

void group_begin(ProcessGroup *g);          /* numbers the ranks, once all processes are known */
void group_end(ProcessGroup *g);            /* waits for the other processes */
int rendezvous(ProcessGroup *g, const GroupOptions *o, double seconds, Error *e);   /* fills at, link, introductions */
void watch_begin(ProcessGroup *g);          /* starts the watching thread */
void watch_end(ProcessGroup *g);        /* after all processes have reached the end: says goodbye, ends the thread */
