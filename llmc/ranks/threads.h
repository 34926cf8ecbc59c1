/* threads.h: the host threads of a process: one for each rank that it drives, and those of OpenMP. */
#ifndef THREADS_H
#define THREADS_H

/* Called first in main: has OpenMP's threads wait politely. Its runtime reads its settings before main can make them,
 * so the program starts itself again, once, with GOMP_SPINCOUNT set, unless the user has set that or OMP_WAIT_POLICY.
 * By default a thread that waits for another spins for milliseconds; with any other busy process on the machine that
 * made a training step 20 times slower, and a short spin costs nothing on a quiet one (docs/LOG.md). */
void threads_settle(char **argv);

/* Runs work(run, 0) ... work(run, count - 1), each in a host thread of its own, the first in the caller's. OpenMP's
 * threads are dealt out among them. */
void threads_run(int count, void (*work)(void *run, int local), void *run);
#endif
