/* threads.h: the host threads of a process: one for each rank that it drives, and OpenMP's. */
#pragma once

/* Called first in main: sets GOMP_SPINCOUNT, unless the user has set it or OMP_WAIT_POLICY.
 * OpenMP's runtime reads it before main, so the program executes itself again, once. By default a
 * waiting thread spins for milliseconds; with any other busy process on the machine that made a
 * training step 20 times slower. A short spin costs nothing on an idle machine (docs/LOG.md). */
void threads_settle(char **argv);

/* Called now and then by one thread, on a CPU. Every two seconds it looks how long this process's
 * threads were ready to run but had no core. Above a fifth of their time other programs are using
 * the machine: threads then wait for each other without spinning (unless the user has set how),
 * until it is calm for ten seconds. Linux with libgomp only. Returns that fraction when it exceeds
 * a fifth for the first time, else 0. Results do not change. */
double threads_follow_load(void);

/* Runs work(run, 0) ... work(run, count - 1), each in its own host thread, the first in the
 * caller's. OpenMP's threads are divided evenly among them. */
void threads_run(int count, void (*work)(void *run, int local), void *run);
