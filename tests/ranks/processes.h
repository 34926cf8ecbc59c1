/* processes.h: runs of several processes on this machine, for tests. */
#pragma once
#include <stdio.h>
#include <sys/types.h>
#include "llmc/ranks/group.h"

int  free_port(void);
void pause_for(double seconds);
GroupOptions group_options(int process, int processes, int ranks, int port);        /* equal but for these numbers */
/* Joins, calls work(group, argument) in a thread for each of at most 8 ranks, and leaves. 1: an
 * error, or a call returned non-zero. */
int  run_process(GroupOptions o, int (*work)(Group *group, const void *argument), const void *argument);
int  exit_code(int status);                                 /* of waitpid: the code, or minus the signal */
/* waits; its exit code, and what it wrote to `said` */
int  end_of_process(pid_t pid, FILE *said, char *text, size_t capacity);
void report_and_exit(const char *why); /* GroupOptions.lost: writes it to stderr, exit code EXIT_PEER */
