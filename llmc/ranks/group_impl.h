/* world_impl.h: what world.c, rendezvous.c and watch.c share, and nobody else includes. */
#ifndef WORLD_IMPL_H
#define WORLD_IMPL_H
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include "group.h"

enum { ATTEMPT = 2,                         /* seconds to connect, or to introduce oneself */
       LINGER = 1,                          /* seconds for the last words of a process that ends or refuses */
       LONGEST = 1 << 20 };                 /* bytes of a message: more is nonsense */

typedef struct {                            /* where a rank is, as it tells the hub */
    uint32_t count;                         /* of phases begun */
    float    limit;
    char     phase[40];
} RankStatus;

typedef struct {                            /* a rank of this process */
    Group  group;                           /* first: a Group * is a Rank * */
    ProcessGroup *world;
    void  *all;  const void *mine;          /* what its thread is exchanging or reducing */
    RankStatus  status;
    Comm  *comm;                            /* to be asked for errors; NULL: none */
} Rank;

typedef struct {                            /* a process, as all know it after the rendezvous */
    int32_t ranks, first, pid;
    char    host[64];
} Process;

typedef enum { ALIVE, LOST, PARTING, WELCOME } Kind;
typedef struct { uint32_t kind, bytes; } Head;                         /* before every message to a watcher */

typedef struct {                            /* this process's connection to another */
    int    data, watch;                     /* -1: none, or closed */
    int    parted;                          /* it has said goodbye */
    double heard;
} Link;

typedef enum { RUNNING, LEAVING, EXITING } End;    /* exiting: by exit(), without group_leave */

struct ProcessGroup {
    int processes, process, ranks, size;    /* ranks: of this process */
    Process *at;                            /* (processes) */
    Link    *link;                          /* (processes); only the hub has more than the one to process 0 */
    Rank    *rank;                          /* (ranks) of this process */
    char    *piece;                         /* (PIECE) the hub's, for what arrives */

    pthread_mutex_t mutex;                  /* of the following, and of every rank's place and comm */
    pthread_cond_t  all_here;
    int arrived;  unsigned meeting;         /* the threads of this process, and how often they have met */

    pthread_t watcher;
    int    listener, wake[2];               /* wake: a pipe that ends the watcher's sleep */
    double silence;
    void (*lost)(const char *why);
    RankStatus  *status;  double *since;          /* (size) the hub's: the newest of each rank, and when it changed */
    atomic_int ending;                      /* an End */
    pid_t  pid;
};

/* ---- rendezvous.c ---------------------------------------------------------------------------------------- */

int  rendezvous(ProcessGroup *w, const GroupOptions *o, double seconds, Error *e);  /* fills at, link and the hub's listener */
/* Messages are structs in memory order: all machines of a run have the same kind of processor. */
void message_send(int fd, Kind kind, const void *data, size_t bytes);
/* A last word. The connection is closed when the other side has read it: closing with something unread from there
 * would destroy it. */
void refuse(int fd, const char *why);
void close_refused(int fd);

/* ---- watch.c --------------------------------------------------------------------------------------------- */

void watch_begin(ProcessGroup *w);                 /* starts the thread that watches */
void watch_end(ProcessGroup *w);                   /* all processes have come to the end: says goodbye */
#endif
