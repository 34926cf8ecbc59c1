/* world.h: the ranks of a run and their processes: who we are among how many, how processes find each other, what
 * hosts agree on, and how a run ends everywhere when one of them is lost.
 *
 * A launcher (torchrun, mpirun, mpiexec, srun, or flags) starts `processes` processes, numbered. Each drives one or more
 * ranks, a thread each; ranks are numbered through, process by process. Process 0 is the hub of a star of TCP
 * connections; there are two from each of the others:
 *   - the first carries what hosts exchange (Group.exchange, Group.reduce);
 *   - the second is watched by a thread of its own on both sides. Each says once a second that it is alive and where
 *     its ranks are. A connection that closes, or one that stays silent, is a lost process: the hub tells all others
 *     which it was, and every process ends with EXIT_PEER. Nothing else diagnoses: whoever waits for a lost rank, in
 *     a socket or in NCCL, may wait for ever, because the watching thread ends the process under it. */
#ifndef WORLD_H
#define WORLD_H
#include "kernels/comm.h"
#include "llmc/base/base.h"
#include "launch.h"

/* ---- joining and leaving -------------------------------------------------------------------------------- */

typedef struct ProcessGroup ProcessGroup;
typedef struct {
    Launch launch;
    int    ranks;                       /* that this process drives; processes may differ */
    const char *version;                /* of the program; must be equal everywhere */
    const char *settings;               /* {"name": value, ...}: must be equal everywhere, the first difference is shown */
    double join_seconds;                /* how long to wait for the others; 0: 300 */
    double silence_seconds;             /* how long a process may be silent; 0: 10 */
    void (*lost)(const char *why);      /* must end the process; NULL: prints why, exits with EXIT_PEER */
} GroupOptions;

/* Meets the other processes. NULL and e: who is missing, who does not fit, what is wrong with the address. The same
 * reason on every process that could be told. */
ProcessGroup *group_join(const GroupOptions *o, Error *e);
int    group_size(const ProcessGroup *w);                          /* ranks in all */
int    world_processes(const ProcessGroup *w);
Group *group_of(ProcessGroup *w, int local);                    /* of the local-th rank here; for its thread only */
/* After the threads of all local ranks have ended: waits for the other processes to come here, then parts in peace. A
 * process that exits without it is lost to the others. */
void   group_leave(ProcessGroup *w);

/* ---- what hosts agree on: every rank calls, all get the same -------------------------------------------- */

void   group_barrier(Group *p);
void   group_broadcast(Group *p, void *data, size_t bytes);                 /* rank 0's */
int    group_max(Group *p, int x);                                          /* of flags: their or */
int    group_min(Group *p, int x);
void   group_gather(Group *p, OUT double *all, double x);                   /* all (size) */

/* ---- watching: ranks that do not come on ---------------------------------------------------------------- */

/* This rank begins something that should take no more than `limit` seconds (0: any time), until the next call. If it
 * takes longer the run ends, naming what each rank was in. phase: a few words that stay valid, or a literal. */
void   group_phase(Group *p, const char *phase, double limit);
void   group_watch(Group *p, Comm *c);                      /* ask c->error too; NULL before c is closed */
#endif
