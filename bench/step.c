/* step.c: bench_moe -step m12: what takes the time of a training step, and how near is each
 * operation to its limit? Also of a layer: bench_moe -step layers.
 *
 * The work runs on a Device that is the given one with one addition: every operation notes what it
 * computes and moves (kernels/operations.h), and marks the moment at which it ends. On a CPU that
 * is the time; on a GPU an event in the queue, so that the host runs ahead and nothing waits
 * between operations. The limit of an operation is the longer of flop / peak and the time of a copy
 * that moves as many bytes; both are measured just before. Data that is already in a cache can beat
 * the latter.
 *
 * All calls of an operation with the same sizes are one line. Its time is the sum over these calls
 * of the median of several steps. */
#include "layers.h"
#include "tests/model/trainee.h"
#include "kernels/compound.h"
#include "llmc/model/recompute.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 5, MOST_LINES = 512, MOST_CALLS = 1 << 16 };

typedef struct {
    const char *op;
    char   sizes[64];
    double flop, bytes;                 /* of one call */
    int    calls;
    double seconds;                     /* of all calls */
} Line;

static struct {
    const Device *inner;
    Line   line[MOST_LINES];
    int    lines, call[MOST_CALLS], calls;          /* call: its line */
    double *end;                        /* CPU: when each call ended; [0]: when the first began */
} p;

/* ---- taking notes ---------------------------------------------------------------------------- */

static void mark(int i) {
    if (p.inner->mark) p.inner->mark(i);
    else p.end[i] = now();
}
static double elapsed(int from, int to) {
    return p.inner->mark ? p.inner->elapsed(from, to) : p.end[to] - p.end[from];
}
static void note(const char *op, double flop, double bytes, const char *format, ...) PRINTF(4, 5);
static void note(const char *op, double flop, double bytes, const char *format, ...) {
    Line line = { .op = op, .flop = flop, .bytes = bytes };
    va_list args;
    int i = 0;
    va_start(args, format);
    vsnprintf(line.sizes, sizeof line.sizes, format, args);
    va_end(args);
    while (i < p.lines && (strcmp(p.line[i].op, op) || strcmp(p.line[i].sizes, line.sizes))) i++;
    if (i == MOST_LINES || p.calls == MOST_CALLS - 1) fail(EXIT_USAGE, "a step of this model has too many operations");
    if (i == p.lines) p.line[p.lines++] = line;
    p.call[p.calls++] = i;
}

static double distinct(double N, double V) { return N < V ? N : V; }       /* at most */
static double visible(int B, int T) { return (double)B * T; }

#define OPERATION(op, parameters, arguments, flop, bytes, ...) \
    static void noted_##op parameters { \
        p.inner->op arguments; \
        note(#op, flop, bytes, __VA_ARGS__); \
        mark(p.calls); \
    }
/* If the device composes it of other operations, those have been noted. */
#define COMPOSED(op, operation, parameters, arguments, flop, bytes, ...) \
    static void noted_##op parameters { \
        const int before = p.calls; \
        p.inner->operation arguments; \
        if (p.calls > before) return; \
        note(#op, flop, bytes, __VA_ARGS__); \
        mark(p.calls); \
    }
#define COMPOUND(op, ...) COMPOSED(op, op, __VA_ARGS__)
#define FP8(op, ...) COMPOSED(fp8_##op, fp8->op, __VA_ARGS__)
#include "kernels/operations.h"

/* ---- timing any work ------------------------------------------------------------------------- */

static Device noting(const Device *dev) {
    static Fp8Operations fp8;
    Device d = *dev;
    if (dev->fp8) fp8 = *dev->fp8, d.fp8 = &fp8;
#define OPERATION(op, ...) d.op = noted_##op;
#define COMPOUND OPERATION
#define FP8(op, ...) fp8.op = noted_fp8_##op;
#include "kernels/operations.h"
    if (dev->add_norm_backward == compound_add_norm_backward) d.add_norm_backward = compound_add_norm_backward;
    return d;
}

double copy_seconds(const Copies *c, double bytes) {
    double size = COPY_LEAST;
    int i = 0;
    while (i < COPY_SIZES - 2 && bytes > 2 * size) i++, size *= 2;
    if (bytes <= size) return c->seconds[i];                    /* no copy is faster than the smallest one */
    if (bytes >= 2 * size) return c->seconds[i + 1] * bytes / (2 * size);
    return c->seconds[i] + (c->seconds[i + 1] - c->seconds[i]) * (bytes / size - 1);
}

/* Keeps a GPU busy until the host is ahead, so that no operation waits for the host. */
static void get_ahead(const Listed *l, const Copies *copies) {
    const double seconds = 30e-3, bytes = (double)l->spare_bytes;
    for (double done = 0; p.inner->is_gpu && done < seconds; done += copy_seconds(copies, bytes))
        p.inner->zero(l->spare, l->spare_bytes);
}

double time_operations(const Device *dev, const Listed *l, const Copies *copies) {
    const Device noted = noting(dev);
    double full[RUNS], *took = NULL;
    p.inner = dev, p.lines = 0;
    unit.fx = (double)dev->floatX_size, unit.re = (double)dev->real_size;
    p.end = mem_alloc(MOST_CALLS * sizeof *p.end);
    for (int run = -2; run < 2 * RUNS; run++) {             /* two to warm up, then alternately as usual and noted */
        const int noting_now = run >= 0 && run % 2;
        if (l->before) l->before(l->work, run);
        dev->sync();
        if (noting_now) get_ahead(l, copies);
        p.calls = 0;
        const double start = now();
        if (noting_now) mark(0);
        l->run(l->work, noting_now ? &noted : dev);
        dev->sync();
        if (run >= 0 && !noting_now) full[run / 2] = now() - start;
        if (!noting_now) continue;
        if (!took) took = mem_alloc((size_t)p.calls * RUNS * sizeof *took);
        for (int i = 0; i < p.calls; i++) took[i * RUNS + run / 2] = elapsed(i, i + 1);
    }
    for (int i = 0; i < p.calls; i++) {
        p.line[p.call[i]].calls++;
        p.line[p.call[i]].seconds += median(took + i * RUNS, RUNS);
    }
    free(took);
    free(p.end);
    return median(full, RUNS);
}

static int slower_first(const void *a, const void *b) {
    const double x = ((const Line *)a)->seconds, y = ((const Line *)b)->seconds;
    return (x < y) - (x > y);
}
double print_operations(double product_rate, const Copies *copies) {
    double total = 0, limits = 0, flop = 0, bytes = 0;
    qsort(p.line, (size_t)p.lines, sizeof *p.line, slower_first);
    for (int i = 0; i < p.lines; i++) total += p.line[i].seconds;
    printf("%-32s %-40s %5s %10s %7s %10s %10s  %-8s %5s\n", "operation", "sizes", "calls", "ms", "share",
           "GFLOP", "MB", "limit", "of it");
    for (int i = 0; i < p.lines; i++) {
        const Line *l = &p.line[i];
        const double compute = l->calls * l->flop / product_rate, memory = l->calls * copy_seconds(copies, l->bytes);
        const double limit = compute > memory ? compute : memory;
        limits += limit, flop += l->calls * l->flop, bytes += l->calls * l->bytes;
        printf("%-32s %-40s %5d %10.4f %6.2f%% %10.2f %10.2f  %-8s %4.0f%%\n", l->op, l->sizes, l->calls,
               1e3 * l->seconds, 100 * l->seconds / total, l->calls * l->flop / 1e9, l->calls * l->bytes / 1e6,
               compute > memory ? "compute" : "bytes", 100 * limit / l->seconds);
    }
    printf("%-32s %-40s %5d %10.4f %6.2f%% %10.2f %10.2f  %-8s %4.0f%%\n", "all", "", p.calls, 1e3 * total, 100.0,
           flop / 1e9, bytes / 1e6, "", 100 * limits / total);
    return flop;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* What train_moe does between reading a batch and reading the loss. */
static void step(void *trainee, const Device *dev) {
    Trainee *t = trainee;
    t->m.dev = dev;
    trainee_step(t);
}
static void send(void *trainee, int run) {
    (void)run;
    trainee_send(trainee, 0);
}

void bench_step(const Device *dev, const char *descriptor, TraineeOptions o, double product_rate,
                const Copies *copies) {
    static Trainee t;
    Model *const m = &t.m;
    const Config c = trainee_config(descriptor, 50304, o.T);
    const int N = o.B * o.T;
    if (!trainee_open(&t, dev, &c, o))
        fail(EXIT_MEMORY, "a step of %s with %d x %d tokens takes %.1f GB, more than %s has; -r, -mw 0 and -mo "
             "bf16 save some", descriptor, o.B, o.T, (double)m->arena.total / 1e9, dev->name);
    m->balance_coef = 0.01f;
    t.adamw.lr = 1e-4f;        /* routing stays as it is at the start: timings compare the same loads */
    unit.elements = (double)m->manifest.total, unit.gradient_bytes = (double)m->manifest.gradient_bytes;
    double muon_flop = 0;
    unit.by_muon = 0;
    for (int i = 0; i < t.o.muon.shape_count; i++) {
        const MatrixShape *x = &t.o.muon.shapes[i];
        const double k = x->rows < x->columns ? x->rows : x->columns, all = times(x->rows, x->columns) * x->count;
        unit.by_muon += all, muon_flop += MUON_STEPS * (4 * k * all + 2 * k * k * k * x->count);
    }
    const Listed steps = { .work = &t, .run = step, .before = send, .spare = m->grads,
                           .spare_bytes = m->manifest.gradient_bytes };
    const double usual = time_operations(dev, &steps, copies);
    m->dev = dev;                                               /* the device that notes is gone */
    printf("\na training step of %s on %s, %d x %d tokens, V=%d, %.1f M parameters, %.1f GB: %.3f ms, %.0f tokens/s\n",
           descriptor, dev->name, o.B, o.T, c.vocab, unit.elements / 1e6, (double)m->arena.total / 1e9,
           1e3 * usual, N / usual);
    const double counted = print_operations(product_rate, copies), again = recompute_costs(m, o.recompute),
                 formula = config_flops(&c, o.T) * N + muon_flop;
    if (!again && !(fabs(counted / formula - 1) <= 0.02 + 1.0 / o.T))     /* 1/T: the diagonal */
        warn("counted %.2f GFLOP, but this model should take %.2f", counted / 1e9, formula / 1e9);
    trainee_close(&t);
}
