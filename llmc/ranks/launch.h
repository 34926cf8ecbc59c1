/* launch.h: which process of the run this is, and where process 0 listens, as the launcher says. */
#pragma once
#include "llmc/base/base.h"

typedef struct {
    const char *launcher;               /* "flags", "torchrun", "Open MPI", "MPICH", "Slurm", or "none" */
    int  process, processes;    /* number of this process, from 0, and how many there are; in flags -1, 0: not given */
    int  local, locals;                 /* the same among the processes of this machine; locals 0: unknown */
    char address[256];                  /* where process 0 listens; "" in flags: not given */
    int  port;                          /* 0 in flags: not given */
    char job[64];                       /* the launcher's identifier of this run, or "" */
} Launch;

/* The first launcher whose variables are set decides: flags, torchrun, Open MPI, MPICH (PMI),
 * Slurm; else this is the only process. get: launch_getenv or a test's. 0 and e: bad variables. */
int launch_find(Launch *l, const Launch *flags, const char *(*get)(const char *name), Error *e);
int launch_is_local(const Launch *l);                       /* are all processes known to be on this machine? */
const char *launch_getenv(const char *name);                /* getenv, with a result that is const */
