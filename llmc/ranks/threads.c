/* threads.c: see threads.h. */
#define _POSIX_C_SOURCE 200809L
#include "threads.h"
#include "llmc/base/base.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

void threads_settle(char **argv) {
#if defined(_OPENMP) && defined(__linux__)
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") || setenv("GOMP_SPINCOUNT", "10000", 1)) return;
    execv("/proc/self/exe", argv);                          /* returns only on failure, which is harmless */
#else
    (void)argv;
#endif
}

typedef struct { void (*work)(void *run, int local); void *run; int local, threads; } Job;

static void *run_job(void *job) {
    const Job *j = job;
#ifdef _OPENMP
    omp_set_num_threads(j->threads);                        /* of this host thread's parallel regions */
#endif
    j->work(j->run, j->local);
    return NULL;
}
void threads_run(int count, void (*work)(void *run, int local), void *run) {
    Job *jobs = mem_alloc((size_t)count * sizeof *jobs);
    pthread_t *threads = mem_alloc((size_t)count * sizeof *threads);
    int all = 1;
#ifdef _OPENMP
    all = omp_get_max_threads();
#endif
    for (int i = 0; i < count; i++) jobs[i] = (Job){ work, run, i, all > count ? all / count : 1 };
    for (int i = 1, e; i < count; i++)
        if ((e = pthread_create(&threads[i], NULL, run_job, &jobs[i])))
            fail(EXIT_MEMORY, "cannot start the thread of rank %d of this process: %s", i, strerror(e));
    run_job(&jobs[0]);
    for (int i = 1; i < count; i++) pthread_join(threads[i], NULL);
#ifdef _OPENMP
    omp_set_num_threads(all);                               /* the caller gets all threads back */
#endif
    free(jobs);
    free(threads);
}
