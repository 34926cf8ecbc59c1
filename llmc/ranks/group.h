/* group.h: the ranks of a run and the processes that drive them: how they find each other, what
 * hosts agree on, and how the run ends everywhere when one of them is lost.
 *
 * A launcher (torchrun, mpirun, mpiexec, srun, or flags) starts `processes` numbered processes.
 * Each drives one or more ranks, one thread per rank; ranks are numbered consecutively, process by
 * process. Process 0 is the hub of a star of TCP connections, two to each other process:
 *   - the data connection carries what hosts exchange (Group.exchange, Group.reduce);
 *   - the watch connection has a thread of its own on both sides, which sends a heartbeat every
 *     second with the state of its ranks. A process whose watch connection closes or stays silent
 *     is lost: the hub names it to all others, and every process ends with EXIT_PEER. Only the
 *     watching thread diagnoses. A thread that waits for a lost rank, in a socket or in NCCL, may
 *     wait forever; the watching thread ends the process under it. */
#pragma once
#include "kernels/comm.h"
#include "llmc/base/base.h"
#include "launch.h"

/* ---- what hosts agree on: collective calls; every rank gets the same result ------------------ */

/* Numbers of other processes come only through these calls, but for those that are computed with
 * (Comm) and parts of files (save_shard.h). They are from low to high (or of the `known` bits), as
 * this rank's own is; else the program ends with EXIT_PEER. */
void   group_barrier(Group *group);
double group_broadcast(Group *group, double x, double low, double high);    /* rank 0's */
int    group_max(Group *group, int x, int high);
int    group_min(Group *group, int x, int low);
int    group_all(Group *group, int flag);                                   /* is it set on all ranks? */
int    group_any(Group *group, int flag);
int    group_or(Group *group, int bits, int known);
/* all (size). Without bounds, -INFINITY to INFINITY, it may be NaN, too. */
void   group_gather(Group *group, OUT double *all, double x, double low, double high);
/* Could all ranks? If not, why says on all of them what the first that could not says. */
int    group_agree(Group *group, int ok, Error *why);

/* Ranks first, first + step, ... as a group of their own: rank i of it is the i-th of them. All
 * ranks are divided into such parts of equal size, which call every operation at once, with the
 * same sizes. free() it. If every part is within a process, nothing is sent. */
Group *group_part(Group *parent, int first, int step, int size);

/* ---- watching: ranks that make no progress --------------------------------------------------- */

/* This rank starts a phase that should end, by the next call, within `limit` seconds (0: no limit).
 * If it does not, the run ends and the message names the rank that is behind. phase is copied. */
void   group_phase(Group *group, const char *phase, double limit);
void   group_watch(Group *group, Comm *c);      /* poll c->error too, of up to 3; NULL, none, before they are closed */

/* ---- joining and leaving --------------------------------------------------------------------- */

typedef struct ProcessGroup ProcessGroup;
typedef struct {
    Launch launch;                      /* which process this is, and where process 0 listens */
    int    ranks;                       /* driven by this process; processes may differ */
    const char *version;                /* of the program; must be the same in all processes */
    const char *secret;     /* of the run (secret.h), which each process proves to know; NULL: only for one process */
    const char *settings;   /* a JSON object; must be the same in all processes, else the first difference is shown */
    double join_seconds;                /* how long to wait for the other processes; 0: 300 */
    double silence_seconds;             /* a process that is silent for longer is lost; 0: 10 */
    void (*lost)(const char *why);      /* must end the process; NULL: prints why and exits with EXIT_PEER */
} GroupOptions;

/* Connects to the other processes. NULL and e if one is missing, has other settings, or the address
 * is wrong; every process that can be reached gets the same reason. */
ProcessGroup *group_join(const GroupOptions *o, Error *e);
int    group_size(const ProcessGroup *g);                   /* ranks of all processes */
int    group_host_ranks(const ProcessGroup *g, Error *e);   /* of each host; 0, e: as processes_host_ranks says */
Group *group_of(ProcessGroup *g, int local);                /* the local-th rank of this process; for its thread only */
/* Called once the threads of all local ranks have ended. Waits for the other processes, then closes
 * the connections. A process that exits without this call is lost to the others. */
void   group_leave(ProcessGroup *g);
