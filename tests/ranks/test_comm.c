/* test_comm.c: ranks. How the environment of a launcher is read; every operation among 1 to 4
 * ranks, as threads, as processes and both, bit for bit; what each process reports when another is
 * missing, different, killed, stopped or stuck. */
#define _DEFAULT_SOURCE
#include "tests/test.h"
#include "processes.h"
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- launch ---------------------------------------------------------------------------------- */

static const char *environment;                             /* "NAME=value NAME=value ..." */
static const char *get(const char *name) {
    static char value[8][128];                              /* like getenv, valid for the next 7 calls */
    static int next;
    const size_t n = strlen(name);
    for (const char *c = environment; c; c = strchr(c, ' ')) {
        c += *c == ' ';
        if (strncmp(c, name, n) || c[n] != '=') continue;
        next = (next + 1) % 8;
        snprintf(value[next], sizeof value[next], "%.*s", (int)strcspn(c + n + 1, " "), c + n + 1);
        return value[next];
    }
    return NULL;
}

static const struct {
    const char *environment;  int flag_process, flag_processes;
    const char *launcher;  int process, processes, local, locals;  const char *address;  int port;
} launches[] = {
    { "",                                                  -1, 0, "none",     0, 1, 0, 1, "",          29501 },
    { "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x",
                                                           -1, 0, "torchrun", 3, 8, 1, 2, "n0",        29501 },
    { "RANK=0 WORLD_SIZE=1",                               -1, 0, "torchrun", 0, 1, 0, 1, "localhost", 29501 },
    { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
                                                           -1, 0, "Open MPI", 1, 2, 1, 2, "localhost", 29501 },
    { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 MASTER_ADDR=10.0.0.1 "
      "MASTER_PORT=7000", -1, 0, "Open MPI", 1, 2, 0, 1, "10.0.0.1",  7000 },
    { "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 MASTER_ADDR=a",
                                                           -1, 0, "MPICH",    2, 4, 0, 2, "a",         29501 },
    { "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x2),3 "
      "SLURM_STEP_NODELIST=gpu[003-005] SLURM_JOB_ID=123456",
                                                           -1, 0, "Slurm",    5, 7, 1, 3, "gpu003",    10000 + 3456 },
    { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_NODELIST=r[2,4]n[08-09]x,z MASTER_PORT=50",
                                                           -1, 0, "Slurm",    1, 2, 0, 0, "r2n08x",    50 },
    { "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=1(x4294967297),9999999999 "
      "SLURM_STEP_NODELIST=a", -1, 0, "Slurm",    1, 2, 0, 0, "a",         29501 },
    { "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=9",      -1, 0, "none",     0, 1, 0, 1, "",          29501 },
    { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=t PMI_RANK=1 PMI_SIZE=4 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=9",
                                                           -1, 0, "torchrun", 0, 2, 0, 0, "t",         29501 },
    { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 MASTER_ADDR=o SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=9",
                                                           -1, 0, "Open MPI", 1, 2, 0, 0, "o",         29501 },
    { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=m",                  1, 3, "flags",    1, 3, 0, 0, "m",         29501 },
    { "",                                                   0, 2, "flags",    0, 2, 0, 0, "localhost", 29501 },
    /* launcher NULL: refused */
    { "RANK=1",                                            -1, 0, NULL, 0, 0, 0, 0, "WORLD_SIZE", 0 },
    { "OMPI_COMM_WORLD_SIZE=1",                            -1, 0, NULL, 0, 0, 0, 0, "OMPI_COMM_WORLD_RANK", 0 },
    { "RANK=2 WORLD_SIZE=2",                               -1, 0, NULL, 0, 0, 0, 0, "RANK=2", 0 },
    { "RANK=1 WORLD_SIZE=2x",                              -1, 0, NULL, 0, 0, 0, 0, "WORLD_SIZE=2x", 0 },
    { "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALNRANKS=2",           -1, 0, NULL, 0, 0, 0, 0, "MASTER_ADDR", 0 },
    { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0",   -1, 0, NULL, 0, 0, 0, 0, "MASTER_PORT=0", 0 },
    { "",                                                   2, 2, NULL, 0, 0, 0, 0, "-pr 2 needs -pn", 0 },
    { "",                                                   1, 0, NULL, 0, 0, 0, 0, "-pr 1 needs -pn", 0 },
    { "",                                                  -1, 2, NULL, 0, 0, 0, 0, "-pn 2 needs -pr", 0 },
};

static void launch_table(void) {
    for (size_t i = 0; i < COUNT(launches); i++) {
        const Launch flags = { .process = launches[i].flag_process, .processes = launches[i].flag_processes };
        Launch l;
        Error e = { 0 };
        environment = launches[i].environment;
        const int ok = launch_find(&l, &flags, get, &e);
        if (!launches[i].launcher)
            check(!ok && strstr(e.text, launches[i].address), "launch: refused: %s (%s)", environment, e.text);
        else
            check(ok && !strcmp(l.launcher, launches[i].launcher) && l.process == launches[i].process
                  && l.processes == launches[i].processes && l.local == launches[i].local
                  && l.locals == launches[i].locals && !strcmp(l.address, launches[i].address)
                  && l.port == launches[i].port,
                  "'%s' is %s %d of %d, local %d of %d, at %s:%d %s", environment, ok ? l.launcher : "?", l.process,
                  l.processes, l.local, l.locals, l.address, l.port, ok ? "" : e.text);
    }
}

/* ---- every operation ------------------------------------------------------------------------- */

/* Of many magnitudes, so that the order of a sum matters; exact in double. */
static double value(int rank, size_t i) {
    const uint64_t x = ((uint64_t)rank + 1) * 0x9E3779B97F4A7C15u * (2 * i + 1);
    return (double)((int64_t)(x ^ x >> 31) >> (11 + i % 29)) * 0x1p-40;
}
/* The sum of value(r, i) over r, added in the order of the ranks in the device's `real`. */
static double expected_sum(const Device *dev, int size, size_t i) {
    double wide = dev->real_size == 8 ? value(0, i) : (float)value(0, i);
    for (int r = 1; r < size; r++)
        wide = dev->real_size == 8 ? wide + value(r, i) : (float)((float)wide + (float)value(r, i));
    return wide;
}

/* A rank's buffers: three parts of one allocation, the first two of reals. */
typedef struct {
    const Device *dev;
    Comm   *c;
    int     threads, registered;            /* threads: all ranks are threads; registered: register_memory was called */
    size_t  capacity;                       /* bytes of all three */
    char   *arena;
} Rank;
enum { MOST_ELEMENTS = 130016 };
static void *part_of(const Rank *r, int i) { return r->arena + (size_t)i * (r->capacity / 3 / 64 * 64); }
/* The order of a sum on a GPU is NCCL's, so there is a bound (values are below 2^13); unless the
 * memory is registered and ranks are threads: then shards are added in the order of the ranks. */
static double bound_of(const Rank *r, int shards) {
    return r->dev->is_gpu && !(shards && r->registered && r->threads) ? 0x1p-10 : 0;
}
static void set_values(const Rank *r, real *x, double *host, size_t n) {
    for (size_t i = 0; i < n; i++) host[i] = value(r->c->rank, i);
    r->dev->reals_from_double(x, host, n);
}
static int wrong_sums(const Rank *r, const real *x, double *host, size_t from, size_t to, double bound) {
    int bad = 0;
    r->dev->reals_to_double(host, x, to);
    for (size_t i = from; i < to; i++) bad += !(fabs(host[i] - expected_sum(r->dev, r->c->size, i)) <= bound);
    return bad;
}
static int sums_of_reals(const Rank *r, size_t n) {
    const size_t total = n * (size_t)r->c->size, own = n * (size_t)r->c->rank;
    double *host = mem_alloc(total * sizeof *host + 8);
    real *x = part_of(r, 0), *second = part_of(r, 1);
    int bad = 0;
    set_values(r, x, host, total);
    r->c->all_reduce(r->c, x, n);
    r->c->wait_all(r->c);
    bad += wrong_sums(r, x, host, 0, n, bound_of(r, 0));
    set_values(r, x, host, total);
    r->dev->reals_from_double(second, host, total);
    r->c->reduce_scatter(r->c, x, n);
    r->c->reduce_scatter(r->c, second, n);
    r->c->wait_all(r->c);
    bad += wrong_sums(r, x, host, own, own + n, bound_of(r, 1));
    bad += wrong_sums(r, second, host, own, own + n, bound_of(r, 1));
    free(host);
    return bad;
}
/* Twice onto numbers of its own, which all ranks choose alike. */
static int added_shards(const Rank *r, size_t n) {
    const size_t total = n * (size_t)r->c->size, own = n * (size_t)r->c->rank;
    double *host = mem_alloc(total * sizeof *host + 8);
    real *x = part_of(r, 0), *shard = part_of(r, 1);
    int bad = 0;
    for (size_t i = 0; i < total; i++) host[i] = 0.125 * (double)(i % 7);
    r->dev->reals_from_double(shard, host + own, n);
    set_values(r, x, host, total);
    r->c->scatter_add(r->c, shard, x, n);
    r->c->record(r->c, 3);
    r->c->scatter_add(r->c, shard, x, n);
    r->c->wait(r->c, 3);
    r->c->wait_all(r->c);
    r->dev->reals_to_double(host, shard, n);
    for (size_t i = own; i < own + n; i++) {
        double sum = 0.125 * (double)(i % 7);
        for (int k = 0; k < 2 * r->c->size; k++) {
            const double addend = value(k % r->c->size, i);
            sum = r->dev->real_size == 8 ? sum + addend : (float)((float)sum + (float)addend);
        }
        bad += host[i - own] != sum;
    }
    free(host);
    return bad;
}
/* From where it belongs, and from elsewhere. */
static int gathered_bytes(const Rank *r, size_t n) {
    const size_t total = n * (size_t)r->c->size, own = n * (size_t)r->c->rank;
    unsigned char *bytes = mem_alloc(total + 8);
    int bad = 0;
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        char *x = part_of(r, 2), *mine = elsewhere ? part_of(r, 1) : x + own;
        memset(bytes, 0, total);
        r->dev->upload(x, bytes, total);
        memset(bytes, 17 + r->c->rank, n);
        r->dev->upload(mine, bytes, n);
        r->c->all_gather(r->c, x, mine, n);
        r->c->wait_all(r->c);
        r->dev->download(bytes, x, total);
        for (size_t i = 0; i < total; i++) bad += bytes[i] != 17 + i / n;
    }
    free(bytes);
    return bad;
}
static int sums_of_ints(const Rank *r, size_t n) {
    const int R = r->c->size;
    int *host = mem_alloc(n * sizeof *host + 8), *x = r->dev->alloc(n * sizeof *x + 8), bad = 0;
    for (size_t i = 0; i < n; i++) host[i] = (int)i * 3 + r->c->rank;
    r->dev->upload(x, host, n * sizeof *x);
    r->c->all_reduce_ints(r->c, x, n);
    r->c->wait_all(r->c);
    r->dev->download(host, x, n * sizeof *x);
    for (size_t i = 0; i < n; i++) bad += host[i] != (int)i * 3 * R + R * (R - 1) / 2;
    r->dev->release(x);
    free(host);
    return bad;
}
static int operations_of_hosts(Group *p) {
    double all[8];
    int bad = group_broadcast(p, -2.5 + p->rank, -3, 0) != -2.5;
    group_gather(p, all, 0.5 + p->rank, 0, 10);
    for (int r = 0; r < p->size; r++) bad += all[r] != 0.5 + r;
    bad += group_max(p, p->rank - 2, 10) != p->size - 3;
    bad += group_min(p, 5 - p->rank, -9) != 6 - p->size;
    bad += group_or(p, 1 << p->rank, 255) != (1 << p->size) - 1;
    bad += !group_all(p, 2) || group_all(p, !p->rank) != (p->size == 1) || !group_any(p, !p->rank) || group_any(p, 0);
    group_barrier(p);
    return bad;
}

typedef struct { const Device *dev; Comm *(*connect)(Group *group, char why[256]); int threads; } Means;
static const size_t counts[] = { 0, 1, 7, 1000, 130003 };
static int all_counts(const Rank *r) {
    int bad = 0;
    for (size_t k = 0; k < COUNT(counts); k++)
        bad += sums_of_reals(r, counts[k]) + gathered_bytes(r, counts[k]) + sums_of_ints(r, counts[k])
            + (r->registered ? added_shards(r, counts[k]) : 0);
    return bad;
}
/* Four ranks as two pairs: neighbours; and the first and third, the second and fourth. */
static int operations_of_parts(Group *parent, Rank r, const Means *means) {
    int bad = 0;
    for (int step = 1; step <= 2 && parent->size == 4; step++) {
        Group *p = group_part(parent, step == 1 ? parent->rank / 2 * 2 : parent->rank % 2, step, 2);
        char why[256];
        bad += p->size != 2 || p->rank != (step == 1 ? parent->rank % 2 : parent->rank / 2)
            || !(r.c = means->connect(p, why));
        if (bad) return bad;
        r.c->register_memory(r.c, r.arena, r.capacity, (real *)(r.arena + r.capacity), MOST_ELEMENTS);
        r.registered = 1;
        bad += all_counts(&r) + operations_of_hosts(p) + (r.c->error(r.c) != NULL);
        group_barrier(parent);
        r.c->close(r.c);
        free(p);
    }
    return bad;
}
/* Returns how many results are wrong. */
static int operations(Group *p, const void *argument) {
    const Means *means = argument;
    const Device *dev = means->dev;
    Rank r = { .dev = dev, .threads = means->threads,
               .capacity = 3 * (size_t)MOST_ELEMENTS * (size_t)p->size * dev->real_size };
    char why[256];
    const char *closed = dev->open(p->rank % dev->count());
    r.c = closed ? NULL : means->connect(p, why);
    if (!r.c) { fprintf(stderr, "%s\n", closed ? closed : why); return 1; }
    int bad = r.c->rank != p->rank || r.c->size != p->size || r.c->group != p;
    r.arena = dev->alloc(r.capacity + (size_t)MOST_ELEMENTS * (size_t)p->size * dev->real_size);
    for (; r.registered < 2; r.registered++) {
        if (r.registered) r.c->register_memory(r.c, r.arena, r.capacity, (real *)(r.arena + r.capacity), MOST_ELEMENTS);
        bad += all_counts(&r);
    }
    bad += operations_of_parts(p, r, means);
    bad += operations_of_hosts(p) + (r.c->error(r.c) != NULL);
    r.c->close(r.c);
    dev->release(r.arena);
    return bad;
}

/* The same ranks as threads, as processes, and as processes of several threads each. */
static const struct { int processes, ranks[4]; } layouts[] = {
    { 1, { 1 } }, { 1, { 2 } }, { 1, { 3 } }, { 1, { 4 } },
    { 2, { 1, 1 } }, { 3, { 1, 1, 1 } }, { 4, { 1, 1, 1, 1 } }, { 2, { 2, 2 } }, { 2, { 1, 3 } }, { 3, { 2, 1, 1 } },
};
static void every_operation(const Device *dev) {
    const Means means = { dev, dev->connect, 0 };
    for (size_t i = 0; i < COUNT(layouts); i++) {
        const int port = free_port(), processes = layouts[i].processes;
        pid_t pid[4];
        int bad = 0, status;
        fflush(stdout);
        for (int p = 1; p < processes; p++)
            if (!(pid[p] = fork())) {
                alarm(60);
                _exit(run_process(group_options(p, processes, layouts[i].ranks[p], port), operations, &means));
            }
        bad += run_process(group_options(0, processes, layouts[i].ranks[0], port), operations, &means);
        for (int p = 1; p < processes; p++) bad += waitpid(pid[p], &status, 0) != pid[p] || status;
        check(!bad, "%s: every operation, %d processes, the first of %d ranks, the last of %d", dev->name, processes,
              layouts[i].ranks[0], layouts[i].ranks[processes - 1]);
    }
}

/* The GPUs of this machine as threads of one process; a single GPU also through NCCL. */
#ifdef WITH_CUDA
Comm *nccl_connect(Group *group, char why[256]);            /* kernels/cuda/nccl.cu */
static void every_gpu(const Device *dev) {
    const int gpus = dev->count() < 8 ? dev->count() : 8;
    for (int ranks = 1; ranks <= gpus; ranks++) {
        const Means means = { dev, ranks == 1 ? nccl_connect : dev->connect, 1 };
        check(!run_process(group_options(0, 1, ranks, 0), operations, &means), "%s: all, %d GPUs", dev->name, ranks);
    }
    if (gpus < 2) skip("%s: several GPUs, there is only %d", dev->name, gpus);
}
#else
static void every_gpu(const Device *dev) { (void)dev; }
#endif

/* ---- what goes wrong between processes ------------------------------------------------------- */

typedef enum { NOTHING, KILL, STOP, STUCK, SUSPENDED, QUIT, QUIT_SLOWLY, TWICE, LATE, FAR_TOO_LATE, ABSENT } Fate;

typedef struct {
    const char *name;
    int    processes, which;                /* the process in trouble (if there is only one, the rank) */
    Fate   fate;
    const char *says;                       /* in the output of all others; NULL: they succeed */
    const char *settings, *version, *job;   /* of the process in trouble, if different from the others' */
    int    number, count;
    int    ranks;                           /* of each process; 0: 1 */
} Trouble;

static const Trouble troubles[] = {
    { "nothing",        3, 0, NOTHING,      .says = NULL },
    { "late process",   3, 1, LATE,         .says = NULL },
    { "late process 0", 3, 0, LATE,         .says = NULL },
    { "killed",         3, 1, KILL,         .says = "rank 1 (process 1 on host " },
    { "killed, 0",      3, 0, KILL,         .says = "rank 0 (process 0 on host " },
    { "killed, of two", 2, 1, KILL,         .says = "ranks 2 to 3 (process 1 on host ", .ranks = 2 },
    { "stopped",        3, 2, STOP,         .says = "rank 2 (process 2 on host " },
    { "stopped, 0",     2, 0, STOP,         .says = "rank 0 (process 0 on host " },
    { "stuck",          3, 1, STUCK,        .says = "has been in 'reading data' for" },
    { "stuck thread",   1, 1, STUCK,        .says = "rank 1 (process 0 on host ", .ranks = 3 },
    { "suspended",      1, 0, SUSPENDED,    .says = NULL, .ranks = 3 },
    { "exit",           3, 1, QUIT,         .says = "rank 1 (process 1 on host " },
    { "started twice",  3, 2, TWICE,        .number = 1 },
    { "settings",       3, 2, NOTHING,      .says = "\"lr\": 0.2 there, \"lr\": 0.1 in process 0",
                                            .settings = "{\"seed\": 1, \"lr\": 0.2, \"x\": \"y\"}" },
    { "version",        3, 1, NOTHING,  .says = "is version v2 of this program, process 0 is version v1",
                                            .version = "v2" },
    { "count",          2, 1, NOTHING,      .says = "was started as one of 3 processes, process 0 as one of 2",
                                            .count = 3 },
    { "duplicate",      3, 2, NOTHING,      .says = "two processes have the number 1", .number = 1 },
    { "other job",      2, 1, NOTHING,      .says = "1 of 2 processes have not connected", .job = "job 8" },
    { "missing",        3, 1, ABSENT,       .says = "1 of 3 processes have not connected" },
    { "too late",       3, 1, FAR_TOO_LATE, .says = "1 of 3 processes have not connected" },
};

/* Takes several seconds, so it runs in parallel with the others. */
static const Trouble slow_exit = { "slow exit", 3, 1, QUIT_SLOWLY, .says = "rank 1 (process 1 on host " };
enum { TROUBLES = COUNT(troubles), AT_ONCE = 10 };

static void hang(void) { pause_for(20); }                    /* as a driver's exit handler might */
static int limited(const Trouble *t) { return t->fate == STUCK || t->fate == SUSPENDED; }
static int exchange_trouble(Group *p, const void *argument) {
    const Trouble *t = argument;
    group_barrier(p);
    const double limit = limited(t) ? 0.4 : 0;
    group_phase(p, "reading data", limit);
    if (p->rank == t->which * (t->processes > 1 && t->ranks ? t->ranks : 1)) {
        if (t->fate == KILL)  raise(SIGKILL);
        if (t->fate == SUSPENDED) pause_for(0.3);           /* its phase has been sent */
        if (t->fate == STOP || t->fate == SUSPENDED) kill(getpid(), SIGSTOP);
        if (t->fate == STUCK) pause_for(60);
        if (t->fate == QUIT || t->fate == QUIT_SLOWLY) exit(EXIT_DISK);
    }
    if (t->fate == TWICE) pause_for(0.6);
    group_phase(p, "training", limit);
    group_barrier(p);
    return 0;
}
static _Noreturn void troubled_process(const Trouble *t, int process, int port, int output) {
    GroupOptions o = group_options(process, t->processes - (t->fate == TWICE), t->ranks ? t->ranks : 1, port);
    const int in_trouble = process == t->which, fails = t->fate == ABSENT || t->fate == FAR_TOO_LATE || t->job;
    o.silence_seconds = t->fate == STOP || limited(t) ? 0.8 : 5, o.join_seconds = fails ? 0.6 : 5;
    o.lost = report_and_exit;
    if (in_trouble && t->settings) o.settings = t->settings;
    if (in_trouble && t->version)  o.version = t->version;
    if (in_trouble && t->job)      strcpy(o.launch.job, t->job);
    if (in_trouble && t->number)   o.launch.process = t->number;
    if (in_trouble && t->count)    o.launch.processes = t->count;
    dup2(output, STDERR_FILENO);
    alarm(30);                                              /* a test that hangs is one that fails */
    if (in_trouble && t->fate == QUIT_SLOWLY) atexit(hang);
    if (in_trouble && t->fate == ABSENT) _exit(EXIT_PEER);
    if (in_trouble && (t->fate == LATE || t->fate == FAR_TOO_LATE)) pause_for(t->fate == LATE ? 0.4 : 0.9);
    if (in_trouble && t->fate == TWICE) pause_for(0.3);
    _exit(run_process(o, exchange_trouble, t) ? EXIT_PEER : 0);
}

/* The processes of a trouble; each has a file for its output. */
typedef struct { double start; pid_t pid[4]; FILE *said[4]; } Scene;

static void begin(Scene *s, const Trouble *t) {
    const int port = free_port();
    fflush(stdout);
    s->start = now();
    for (int p = 0; p < t->processes; p++) {
        if (!(s->said[p] = tmpfile())) fail(EXIT_DISK, "no temporary file");
        if (!(s->pid[p] = fork())) troubled_process(t, p, port, fileno(s->said[p]));
    }
}

/* Did the process in trouble end as it should? */
static int as_expected(const Trouble *t, int code, const char *text) {
    switch (t->fate) {
    case KILL: case STOP: return code == -SIGKILL;
    case QUIT:            return code == EXIT_DISK;                              /* its own */
    case TWICE:           return code == EXIT_PEER && strstr(text, "has all its 2 processes");
    default:              return code == EXIT_PEER && (!t->job || strstr(text, "it is of job '', you are of 'job 8'"));
    }
}
static void finish(Scene *s, const Trouble *t) {
    for (int i = 0; i < t->processes; i++) {                /* the process in trouble last: if it is stopped, */
        const int p = (t->which + 1 + i) % t->processes;
        char text[2048];
        if (p == t->which && t->fate == STOP) kill(s->pid[p], SIGKILL);                 /* it must be killed */
        if (p == t->which && t->fate == SUSPENDED) {
            waitpid(s->pid[p], NULL, WUNTRACED);
            pause_for(1.5);                                 /* longer than the limit and its margin */
            kill(s->pid[p], SIGCONT);
        }
        const int code = end_of_process(s->pid[p], s->said[p], text, sizeof text);
        const int others = p != t->which || (!t->says && t->fate != TWICE);
        check(!others ? as_expected(t, code, text) : t->says ? code == EXIT_PEER && strstr(text, t->says)
              : code == 0, "%s: process %d ends with code %d and prints: %s", t->name, p, code, text);
    }
    if (t != &slow_exit)                                    /* the texts tell a death from silence */
        check_error(now() - s->start, 4 * BUSY, "%s: seconds until all have ended", t->name);
}

static int listener(int port) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 8)) return -1;
    return fd;
}
/* Without forking: errors that a single process reports. */
static void alone(void) {
    const int port = free_port(), fd = listener(port);
    Error e = { 0 };
    GroupOptions o = group_options(0, 2, 1, port);
    o.join_seconds = 0.3;
    check(!group_join(&o, &e) && strstr(e.text, "is occupied by another program"), "occupied port: %s", e.text);
    o.launch.process = 1;                                   /* a program that accepts connections and sends nothing */
    const double start = now();
    check(!group_join(&o, &e) && strstr(e.text, "does not answer"), "another program on the port: %s", e.text);
    check_error(now() - start, 4 * BUSY, "seconds until that is detected");
    close(fd);
    check(!group_join(&o, &e) && strstr(e.text, "process 0 was not found"), "nobody on the port: %s", e.text);
    strcpy(o.launch.address, "no-such-host.invalid");
    check(!group_join(&o, &e) && strstr(e.text, "cannot be resolved"), "no such name: %s", e.text);
}
void test_comm(void) {
    const Device *dev;
    Scene slow;
    if (!quick) begin(&slow, &slow_exit);
    PART(launch_table());
    for (int i = 0; (dev = device_list(i)); i++) if (!dev->is_gpu && is_tested(dev)) PART(every_operation(dev));
    for (size_t i = 0; i < TROUBLES && !quick; i += AT_ONCE) {
        Scene scenes[AT_ONCE];
        for (size_t k = i; k < i + AT_ONCE && k < TROUBLES; k++) begin(&scenes[k - i], &troubles[k]);
        for (size_t k = i; k < i + AT_ONCE && k < TROUBLES; k++) finish(&scenes[k - i], &troubles[k]);
    }
    if (!quick) PART(alone());
    if (!quick) finish(&slow, &slow_exit);
    for (int i = 0; (dev = device_list(i)); i++)
        if (dev->is_gpu && is_tested(dev) && dev->count()) PART(every_gpu(dev));
}
