/* ranks.c: see ranks.h. Each rank is a thread. Rank 0 prints its times, which end when all ranks
 * are done.
 *
 * The rate is that of one GPU's link in each direction: with any algorithm a rank has to send and
 * receive (R-1)/R of x for a reduce-scatter or an all-gather, and twice that for an all-reduce. */
#include "ranks.h"
#include "layers.h"
#include "tests/model/trainee.h"
#include "llmc/model/batch.h"
#include "llmc/model/parallel.h"
#include "llmc/base/random.h"
#include "llmc/ranks/threads.h"
#include <stdio.h>
#include <stdlib.h>

/* alone: ms of one rank's step; level: -z; node: -zn */
typedef struct { ProcessGroup *processes; const Device *dev; double seconds, alone; int level, node; } Setup;
typedef struct {                            /* one rank */
    const Device *dev;
    Comm  *comm;
    Group *group;
    double seconds;
    size_t bytes;                           /* of the whole x */
    void  *x;
    floatX *out, *inp, *weight;             /* of the matrix product */
    int    N, C;
    int    product, reduction;              /* what `both` does */
} Bench;

static void reduce_scatter(Bench *b) {
    b->comm->reduce_scatter(b->comm, b->x, b->bytes / b->dev->real_size / (size_t)b->comm->size);
}
static void all_gather(Bench *b) {
    const size_t n = b->bytes / (size_t)b->comm->size;
    b->comm->all_gather(b->comm, b->x, (char *)b->x + (size_t)b->comm->rank * n, n);
}
static void all_reduce(Bench *b) { b->comm->all_reduce(b->comm, b->x, b->bytes / b->dev->real_size); }
static void both(Bench *b) {
    if (b->reduction) reduce_scatter(b);
    for (int i = 0; i < b->product; i++) b->dev->matmul_forward(b->out, b->inp, b->weight, b->N, b->C, b->C);
}

/* Seconds of a call, over at least b->seconds. All ranks make the same number of calls. */
static double time_calls(Bench *b, void (*call)(Bench *b)) {
    int calls = 1;
    for (double taken = 0;; calls *= 2) {
        b->dev->sync();
        group_barrier(b->group);
        const double start = now();
        for (int i = 0; i < calls; i++) {
            call(b);
            b->comm->wait_all(b->comm);
        }
        b->dev->sync();
        group_barrier(b->group);
        taken = now() - start;
        taken = group_broadcast(b->group, taken, 0, 1e9);
        if (taken >= b->seconds) return taken / calls;
    }
}

static void print_rates(Bench *b) {
    static const struct { const char *name; void (*call)(Bench *b); int passes; } operations[] = {
        { "reduce_scatter", reduce_scatter, 1 }, { "all_gather", all_gather, 1 }, { "all_reduce", all_reduce, 2 },
    };
    const int R = b->comm->size;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        for (size_t bytes = 1 << 16; bytes <= (b->dev->is_gpu ? (size_t)1 << 29 : (size_t)1 << 24); bytes *= 8) {
            b->bytes = bytes;
            const double t = time_calls(b, operations[i].call);
            if (!b->comm->rank)
                printf("%-15s %9.3f MB  %9.1f us  %7.1f GB/s a link\n", operations[i].name, (double)bytes / 1e6,
                       t * 1e6, operations[i].passes * (double)bytes * (R - 1) / R / t / 1e9);
        }
}

/* A reduce-scatter, matrix products that take about as long, and both at once. */
static void print_overlap(Bench *b) {
    b->bytes = b->dev->is_gpu ? 1 << 28 : 1 << 22;
    b->product = 1;
    const double one = time_calls(b, both);
    b->product = 0;
    b->reduction = 1;
    const double reduction = time_calls(b, both);
    b->reduction = 0;
    b->product = reduction > one ? (int)(reduction / one + 0.5) : 1;
    b->product = (int)group_broadcast(b->group, b->product, 1, 1e9);
    const double products = time_calls(b, both);
    b->reduction = 1;
    const double together = time_calls(b, both);
    if (!b->comm->rank)
        printf("overlap         reduce_scatter of %.0f MB %.0f us, matrix products %.0f us, overlapped %.0f us: "
               "%.0f %% of the shorter is hidden\n", (double)b->bytes / 1e6, reduction * 1e6, products * 1e6,
               together * 1e6, 100 * (reduction + products - together) / (reduction < products ? reduction : products));
}

/* The same row of normal numbers everywhere. (Products of zeros draw less power and are faster.) */
static void fill_rows(const Device *dev, void *x, int rows, int width) {
    double *values = mem_alloc((size_t)width * sizeof *values);
    const size_t row = (size_t)width * dev->floatX_size;
    for (int i = 0; i < width; i++) values[i] = random_normal(1, (uint64_t)i);
    dev->from_double(x, values, (size_t)width);
    for (int r = 1; r < rows; r++) dev->copy((char *)x + (size_t)r * row, x, row);
    free(values);
}

static void run_rank(void *setup, int local) {
    const Setup *s = setup;
    const size_t most = s->dev->is_gpu ? (size_t)1 << 29 : (size_t)1 << 24;
    Bench b = { .dev = s->dev, .group = group_of(s->processes, local), .seconds = s->seconds };
    char why[256] = "";
    const char *closed = s->dev->open(local % s->dev->count());
    if (closed || !(b.comm = s->dev->connect(b.group, why))) fail(EXIT_PEER, "%s", closed ? closed : why);
    b.N = b.C = s->dev->is_gpu ? 4096 : 256;
    const size_t elements = (size_t)b.N * (size_t)b.C * s->dev->floatX_size;
    b.x = s->dev->alloc(most);
    b.out = s->dev->alloc(elements);
    b.inp = s->dev->alloc(elements);
    b.weight = s->dev->alloc(elements);
    if (!b.x || !b.out || !b.inp || !b.weight) fail(EXIT_MEMORY, "not enough memory for the buffers of rank %d", local);
    fill_rows(s->dev, b.inp, b.N, b.C);
    fill_rows(s->dev, b.weight, b.C, b.C);
    if (!local) printf("\n%d ranks, threads of one process, %s\n", b.comm->size, b.comm->name);
    print_rates(&b);
    print_overlap(&b);
    group_barrier(b.group);
    void *owned[] = { b.x, b.out, b.inp, b.weight };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) s->dev->release(owned[i]);
    b.comm->close(b.comm);
}

/* ---- weak scaling: a training step in which every rank has a batch of its own ---------------- */

enum { STEPS = 15 };

static double one_step(Trainee *t) {
    const double start = now();
    trainee_do(t, 0);
    parallel_gather_weights(&t->m, 1);
    StepResults r = model_results(&t->m);
    results_free(&r);
    return 1e3 * (now() - start);
}

static void train_rank(void *setup, int local) {
    Setup *s = setup;
    const int ranks = group_size(s->processes), gpu = s->dev->is_gpu, B = gpu ? 32 : 4, T = gpu ? 1024 : 64;
    const char *descriptor = gpu ? "m12:e64k8f256" : "m4";
    const Config c = trainee_config(descriptor, gpu ? 50304 : 256, T);
    Parallel p = { .ranks = ranks, .level = s->level, .shards = s->node, .one_process = gpu };
    Trainee t;
    double ms[STEPS];
    char nodes[24] = "";
    if (s->node) snprintf(nodes, sizeof nodes, " -zn %d", s->node);
    parallel_connect(&p, s->dev, local % s->dev->count(), s->processes, local);
    parallel_form_nodes(&p, s->dev);
    if (!trainee_open(&t, s->dev, &c, (TraineeOptions){ .B = B, .T = T, .gradients = FLOATX,
                                                        .parallel = ranks > 1 ? &p : NULL, .balance = 0.01f }))
        fail(EXIT_MEMORY, "a step of %s with %d x %d tokens does not fit into %s's memory", descriptor, B, T,
             s->dev->name);
    t.adamw.lr = 1e-4f;        /* routing stays as it is at the start: timings compare the same loads */
    const int copies = ranks > 1 && gpu;
    for (int shared = copies && s->level > 1; shared <= copies; shared++) {
        if (shared && s->level == 1) parallel_register_memory(&t.m);        /* above it has been */
        for (int i = 0; i < 3; i++) one_step(&t);
        for (int i = 0; i < STEPS; i++) ms[i] = one_step(&t);
        if (p.rank) continue;
        const double middle = median(ms, STEPS);
        const char *way = shared ? ", by copy engines:" : ranks > 1 ? ", by kernels:" : ":";
        if (ranks == 1) s->alone = middle;
        printf("%d rank%s, -z %d%s, %s, %d x %d tokens on each%-18s %8.3f ms a step (%.3f - %.3f)  %9.0f "
               "tokens/s  efficiency %.3f  %.2f GB\n", ranks, ranks > 1 ? "s" : "", ranks > 1 ? s->level : 0, nodes,
               descriptor, B, T, way, middle, ms[0], ms[STEPS - 1], ranks * B * T / middle * 1e3, s->alone / middle,
               (double)t.m.arena.total / 1e9);
        fflush(stdout);
    }
    parallel_disconnect(&p);
    trainee_close(&t);
}

/* Runs work on each of `ranks` threads. */
static void with_ranks(Setup *s, int ranks, void (*work)(void *setup, int local)) {
    const GroupOptions o = { .launch = { .launcher = "none", .processes = 1 }, .ranks = ranks, .version = "",
                             .settings = "" };
    Error e;
    if (!(s->processes = group_join(&o, &e))) fail(EXIT_PEER, "%s", e.text);
    threads_run(ranks, work, s);
    group_leave(s->processes);
}
void bench_ranks(const Device *dev, double seconds) {
    const int most = dev->is_gpu ? dev->count() : 4;
    Setup s = { .dev = dev, .seconds = seconds };
    if (most < 2) puts("ranks: there is only one GPU");
    for (int ranks = 2; ranks <= most; ranks *= 2) with_ranks(&s, ranks, run_rank);
    puts("");
    for (int ranks = 1; ranks <= most; ranks *= 2)
        for (s.level = 1; s.level <= (ranks > 1 ? MOST_SHARDED : 1); s.level += 2) with_ranks(&s, ranks, train_rank);
    s.level = MOST_SHARDED;
    /* nodes of so many, -z 3 */
    for (s.node = most > 2 ? 2 : 1; s.node < most; s.node *= 2) with_ranks(&s, most, train_rank);
}
