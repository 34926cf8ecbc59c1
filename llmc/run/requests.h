/* requests.h: what a user or a job scheduler asks of a running trainer: stop after this step, or
 * save and continue; and what rank 0 asks by its clock. */
#pragma once
#include "kernels/comm.h"

/* BUSY: this rank is still writing the last checkpoint. */
enum { REQUEST_STOP = 1, REQUEST_SAVE = 2, REQUEST_TIMED_SAVE = 4, REQUEST_BUSY = 8 };

/* Until requests_listen, SIGTERM and SIGUSR2 end the process at once, with EXIT_STOPPED: there is
 * nothing new to save. SIGUSR1 waits; SIGHUP is ignored. SIGINT ends it as ever. */
void requests_begin(void);

/* SIGINT, SIGTERM, SIGUSR2: stop; SIGUSR1: save; SIGHUP: ignored. A second SIGINT exits at once.
 * answers: 1: the first one is answered on stderr, at once. */
void requests_listen(int answers);
void requests_step(int64_t step);   /* the step that is being computed, for that answer; 0: work between steps */

/* What any process was asked for, the same on all ranks; collective. Later requests count for the
 * next call. signals: 1 on the rank that reports its process's signals. folder: where one rank
 * looks for a file STOP, which is consumed: it stops one run; else NULL. own: of this rank. */
int  requests_collect(Group *group, int signals, const char *folder, int own);
int  requests_stopping(void);       /* did a signal ask this process to stop? Long work between steps ends early then */
