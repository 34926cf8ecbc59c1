/* threads.c: see threads.h. */
#define _POSIX_C_SOURCE 200809L
#include "threads.h"
#include "llmc/base/base.h"
#include "llmc/base/omp.h"
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPINS "10000"

void threads_settle(UNUSED char **argv) {
#if defined(_OPENMP) && defined(__linux__)
    char path[PATH_MAX];
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") || setenv("GOMP_SPINCOUNT", SPINS, 1)) return;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n > 0) {                                            /* by its own path: the kernel names the process after it */
        path[n] = 0;
        execv(path, argv);
    }
    execv("/proc/self/exe", argv);                          /* returns only on failure, which is harmless */
#endif
}

/* ---- a busy machine -------------------------------------------------------------------------- */

/* Seconds that the threads of this process ran, and that they waited for a core. 0: unknown. */
static int processor_seconds(double *ran, double *waited) {
    DIR *tasks = opendir("/proc/self/task");
    int known = 0;
    *ran = *waited = 0;
    for (const struct dirent *d; tasks && (d = readdir(tasks)); ) {
        char path[300];
        double a, b;
        Error e;
        uint64_t bytes;
        snprintf(path, sizeof path, "/proc/self/task/%.200s/schedstat", d->d_name);
        FILE *f = file_stream(path, &bytes, &e);
        if (f && fscanf(f, "%lf %lf", &a, &b) == 2) { *ran += 1e-9 * a; *waited += 1e-9 * b; known = 1; }
        if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
    return known;
}

#ifdef _OPENMP
/* libgomp spins a hundred times at most while the process has more OpenMP threads than the machine
 * has cores. This thread holds a team that never works, so that it has. */
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle_change = PTHREAD_COND_INITIALIZER;
static int idle_wanted;
static void *hold_idle_team(void *threads) {
    int started = 0;
    #pragma omp parallel num_threads(*(int *)threads) reduction(+:started)
    started++;
    pthread_mutex_lock(&idle_lock);
    while (idle_wanted && started) pthread_cond_wait(&idle_change, &idle_lock);
    pthread_mutex_unlock(&idle_lock);
    return NULL;
}
static void spin_less(int less) {
    static pthread_t holder;
    static int threads;
    const char *spins = getenv("GOMP_SPINCOUNT");
    if (!spins || strcmp(spins, SPINS) || less == idle_wanted) return;      /* not ours: the user's word counts */
    pthread_mutex_lock(&idle_lock);
    idle_wanted = less;
    pthread_cond_signal(&idle_change);
    pthread_mutex_unlock(&idle_lock);
    threads = omp_get_num_procs() - omp_get_max_threads() + 2;
    if (threads < 2) threads = 2;
    if (!less) pthread_join(holder, NULL);
    else if (pthread_create(&holder, NULL, hold_idle_team, &threads)) idle_wanted = 0;
}
#else
static void spin_less(UNUSED int less) { }
#endif

double threads_follow_load(void) {
    enum { PERIOD = 2, CALM = 5 };                          /* seconds; calm periods before threads spin again */
    static double at, ran, waited;
    static int busy, calm, reported;
    double r, w;
    const double t = now(), before = at;
    if (t - at < PERIOD || !processor_seconds(&r, &w)) return 0;
    const double more = r - ran + w - waited, fraction = before > 0 && more > 0 ? (w - waited) / more : 0;
    at = t, ran = r, waited = w;
    calm = fraction < 0.05 ? calm + 1 : 0;
    if (!busy && fraction > 0.2) busy = 1;
    if (busy && calm >= CALM) busy = 0;
    spin_less(busy);
    return busy && !reported++ ? fraction : 0;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

typedef struct { void (*work)(void *run, int local); void *run; int local, threads; } Job;

static void *run_job(void *job) {
    const Job *j = job;
    omp_set_num_threads(j->threads);                        /* of this host thread's parallel regions */
    j->work(j->run, j->local);
    return NULL;
}
void threads_run(int count, void (*work)(void *run, int local), void *run) {
    Job *jobs = mem_alloc((size_t)count * sizeof *jobs);
    pthread_t *threads = mem_alloc((size_t)count * sizeof *threads);
    const int all = omp_get_max_threads();
    for (int i = 0; i < count; i++) jobs[i] = (Job){ work, run, i, all > count ? all / count : 1 };
    for (int i = 1, e; i < count; i++)
        if ((e = pthread_create(&threads[i], NULL, run_job, &jobs[i])))
            fail(EXIT_MEMORY, "cannot start the thread of rank %d of this process: %s", i, strerror(e));
    run_job(&jobs[0]);
    for (int i = 1; i < count; i++) pthread_join(threads[i], NULL);
    omp_set_num_threads(all);                               /* the caller gets all threads back */
    free_each(jobs, threads);
}
