/* processes.h: runs of several processes on this machine, for tests. */
#ifndef PROCESSES_H
#define PROCESSES_H
#include "llmc/ranks/group.h"

int  free_port(void);
void pause_for(double seconds);
GroupOptions group_options(int process, int processes, int ranks, int port);        /* equal but for these numbers */
/* Joins, calls work(group, argument) in a thread for each of at most 8 ranks, and leaves. 1: an error, or a call returned non-zero. */
int  run_process(GroupOptions o, int (*work)(Group *group, const void *argument), const void *argument);
int  exit_code(int status);                                 /* of waitpid: the code, or minus the signal */
#endif
