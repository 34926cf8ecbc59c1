/* launch.h: which process this is, of how many: what the environment says. */
#ifndef LAUNCH_H
#define LAUNCH_H
#include "llmc/base/base.h"

typedef struct {
    const char *launcher;               /* "flags", "torchrun", "Open MPI", "MPICH", "Slurm", or "none" */
    int  process, processes;            /* -1, 0 in flags: not given */
    int  local, locals;                 /* which of how many on this machine; locals 0: not known */
    char address[256];                  /* where process 0 listens; "" in flags: not given */
    int  port;                          /* 0 in flags: not given */
    char job[64];                       /* the launcher's name for this run, or "" */
} Launch;

/* The first of these that is set decides: flags, torchrun, Open MPI, MPICH (PMI), Slurm, a single process. `get` is
 * getenv, or a test's. 0: half of a group is set, or a value makes no sense. */
int launch_find(Launch *l, const Launch *flags, const char *(*get)(const char *name), Error *e);
const char *launch_getenv(const char *name);                /* getenv */
#endif
