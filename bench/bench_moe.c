/* bench_moe.c: how fast is every operation, and how fast could it be?
 *
 *   bench_moe [-d DEVICE] [-e m4|m12|layers|steps] [-t SECONDS] [-l] [FILTER]
 *
 * The operations are the cases of tests/cases.c that a model of that size uses, so what is timed is what is
 * tested. First the machine is measured: how many multiply-adds its threads do when nothing but registers is
 * involved, and how fast they copy memory. Then each line says how long an operation took, and what share of the
 * limit that matters to it that is: arithmetic for products and attention, memory for the rest. Operations whose
 * data fits in a cache can pass 100 % of the copy rate. Every time is the median of at least 7 calls, after calls
 * that are not counted; (fastest - slowest). */
#include "layers.h"
#include "ranks.h"
#include "../tests/cases.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_OPENMP)
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
#endif
#ifndef COMPILER_FLAGS
#define COMPILER_FLAGS "flags not told"                 /* -DCOMPILER_FLAGS='"..."' */
#endif

static const Shape shapes[] = {     /*  B    T    C      V   E  K     F  G  Q   D */
    { "m4",                            16,  128, 128,   256, 8, 2,  128, 2, 2, 32, MIXED },
    { "m12",                            1, 1024, 768, 50304, 8, 2, 1024, 6, 2, 64, MIXED },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* ---- what the machine can do --------------------------------------------------------------------------- */

#if defined(__AVX512F__)
enum { VECTOR = 64 };
#elif defined(__AVX__)
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif

/* Twelve chains of multiply-adds that depend on nothing but themselves: enough to keep two FMA units of latency 4 busy.
 * They start from different numbers that the compiler cannot know, or it would compute one chain for all of them. */
#define PEAK(type) \
typedef type type##_vector __attribute__((vector_size(VECTOR))); \
static double peak_##type(double seconds) { \
    const long steps = 200000; \
    double best = 0, end = now() + seconds; \
    type total = 0; \
    while (now() < end) { \
        double start = now(); \
        _Pragma("omp parallel reduction(+:total)") \
        { \
            volatile type one = 1, small = (type)1e-9; \
            type##_vector sum[12], x, y; \
            for (int l = 0; l < VECTOR / (int)sizeof(type); l++) { \
                x[l] = one, y[l] = small; \
                for (int i = 0; i < 12; i++) sum[i][l] = one * (type)(i + l); \
            } \
            for (long s = 0; s < steps; s++) { \
                _Pragma("GCC unroll 12") \
                for (int i = 0; i < 12; i++) sum[i] = sum[i] * x + y; \
            } \
            for (int i = 0; i < 12; i++) total += sum[i][0]; \
        } \
        double done = 2.0 * 12 * (VECTOR / (double)sizeof(type)) * (double)steps * omp_get_max_threads(); \
        double rate = done / (now() - start); \
        if (rate > best) best = rate; \
    } \
    return total > 0 ? best : 0;            /* total: so that the loop has a result */ \
}
PEAK(float)
PEAK(double)

/* Bytes read plus bytes written, by all threads, of a copy that no cache can hold. */
static double copy_rate(const Device *dev, double seconds) {
    const size_t bytes = (size_t)192 << 20, piece = (size_t)1 << 20;
    char *from = dev->alloc(bytes), *to = dev->alloc(bytes);
    double best = 0, end = now() + seconds;
    while (from && to && now() < end) {
        double start = now();
        if (dev->is_gpu) dev->copy(to, from, bytes);
        else {
            #pragma omp parallel for
            for (size_t i = 0; i < bytes / piece; i++) memcpy(to + i * piece, from + i * piece, piece);
        }
        dev->sync();
        double rate = 2.0 * (double)bytes / (now() - start);
        if (rate > best) best = rate;
    }
    if (from) dev->release(from);
    if (to) dev->release(to);
    return best;
}

/* Starting and joining the threads takes a few microseconds, unless something else runs on their cores. */
static double start_threads(void) {
    enum { TIMES = 101 };
    double best = 1, all = now();
    for (int i = 0; i < TIMES; i++) {
        double start = now();
        #pragma omp parallel
        { }
        if (now() - start < best) best = now() - start;
    }
    all = (now() - all) / TIMES;
    return all > 50e-6 + 10 * best ? all : 0;
}

static void print_machine(void) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    printf("machine    ");
    for (int found = 0; f && !found && fgets(line, sizeof line, f); )
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            found = 1;
            printf("%.*s, ", (int)strcspn(strchr(line, ':') + 2, "\n"), strchr(line, ':') + 2);
        }
    if (f) fclose(f);
    printf("%d threads\ncompiler   %s, %s, vectors of %d bits\n", omp_get_max_threads(), __VERSION__,
           COMPILER_FLAGS, 8 * VECTOR);
}

/* ---- one operation ------------------------------------------------------------------------------------- */

typedef struct {
    const Device *dev;
    const char *filter;
    double seconds, flops_peak, copy_peak;      /* seconds: per operation; peaks: 0 if unknown */
    int list, done;
    double flops[2], time[2];                   /* of dense products, of ParallelLinear */
} Bench;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void time_case(Case *c, void *context) {
    enum { LEAST = 7, MOST = 1000 };
    Bench *b = context;
    Placed p;
    double took[MOST];
    int runs = 0;
    if (b->filter && !strstr(c->what, b->filter)) return;
    if (b->list) { puts(c->what); return; }
    if (!case_place(&p, c, b->dev)) { printf("%-68s not enough memory\n", c->what); return; }
    case_run(&p);                               /* pages, caches, threads and clocks are ready after this */
    b->dev->sync();
    for (double start = now(); runs < MOST && (runs < LEAST || now() - start < b->seconds); runs++) {
        double begun = now();
        case_run(&p);
        b->dev->sync();
        took[runs] = now() - begun;
    }
    case_release(&p);
    qsort(took, (size_t)runs, sizeof *took, ascending);
    const double median = took[runs / 2], amount = c->flops > 0 ? c->flops : case_bytes(c, b->dev);
    const double peak = c->flops > 0 ? b->flops_peak : b->copy_peak;
    printf("%-68s %9.3f ms (%.3f - %.3f) %8.1f %s", c->what, median * 1e3, took[0] * 1e3, took[runs - 1] * 1e3,
           amount / median / 1e9, c->flops > 0 ? "GFLOP/s" : "GB/s   ");
    if (peak > 0) printf(" %4.0f %%", 100 * amount / median / peak);
    putchar('\n');
    fflush(stdout);
    b->done++;
    const int product = !strncmp(c->op, "matmul", 6) ? 0 : !strncmp(c->op, "parallel_linear", 15) ? 1 : -1;
    if (product >= 0) { b->flops[product] += c->flops; b->time[product] += median; }
}

/* ---- the program --------------------------------------------------------------------------------------- */

static const char *const usage =
    "usage: bench_moe [-d DEVICE] [-e SIZE] [-t SECONDS] [-l] [FILTER]\n"
    "  -d, --device DEVICE    cpu-f32 (default), cpu-bf16, cpu-f64, ...\n"
    "  -e, --size SIZE        m4 or m12 (default: both), layers, steps: whole training steps, or ranks: what several\n"
    "                         GPUs do together\n"
    "  -t, --time SECONDS     for each operation, at least 7 calls (default 0.1)\n"
    "  -l, --list             names of the operations, nothing is timed\n"
    "  FILTER                 only operations whose line contains this\n";

static const char *value_of(int argc, char **argv, int *i) {
    if (*i + 1 >= argc) fail(EXIT_USAGE, "%s needs a value\n%s", argv[*i], usage);
    return argv[++*i];
}
static int is(const char *arg, const char *letter, const char *name) {
    return !strcmp(arg, letter) || !strcmp(arg, name);
}

int main(int argc, char **argv) {
    const char *device = "cpu-f32", *size = NULL;
    Bench b = { .seconds = 0.1 };
    for (int i = 1; i < argc; i++)
        if (is(argv[i], "-h", "--help")) { fputs(usage, stdout); return EXIT_DONE; }
        else if (is(argv[i], "-d", "--device")) device = value_of(argc, argv, &i);
        else if (is(argv[i], "-e", "--size")) size = value_of(argc, argv, &i);
        else if (is(argv[i], "-t", "--time")) {
            char *end;
            const char *text = value_of(argc, argv, &i);
            b.seconds = strtod(text, &end);
            if (end == text || *end || !(b.seconds >= 0 && b.seconds <= 3600))
                fail(EXIT_USAGE, "%s: not a number of seconds\n%s", text, usage);
        } else if (is(argv[i], "-l", "--list")) b.list = 1;
        else if (argv[i][0] == '-' || b.filter) fail(EXIT_USAGE, "%s: unknown\n%s", argv[i], usage);
        else b.filter = argv[i];

    const int layers = size && !strcmp(size, "layers"), steps = size && !strcmp(size, "steps");
    const int ranks = size && !strcmp(size, "ranks");
    int known = !size || layers || steps || ranks;
    for (int i = 0; i < SHAPES; i++) known |= size && !strcmp(size, shapes[i].name);
    if (!known) fail(EXIT_USAGE, "size %s: unknown\n%s", size, usage);
    b.dev = device_find(device);
    if (!b.dev) fail(EXIT_USAGE, "device %s: this build has none of that name", device);
    if (ranks) {                                            /* their threads open the devices */
        bench_ranks(b.dev, b.seconds);
        return EXIT_DONE;
    }
    if (b.dev->open(0)) fail(EXIT_USAGE, "device %s: %s", device, b.dev->open(0));

    if (!b.list) {
        print_machine();
        printf("command   ");
        for (int i = 0; i < argc; i++) printf(" %s", argv[i]);
        b.copy_peak = copy_rate(b.dev, 0.5);
        if (!b.dev->is_gpu) b.flops_peak = b.dev->real_size == 8 ? peak_double(0.5) : peak_float(0.5);
        printf("\ndevice     %s, weights and activations in %s\npeak       ", b.dev->name, b.dev->dtype);
        if (b.flops_peak > 0)
            printf("%.1f GFLOP/s (%s multiply-adds in registers), ", b.flops_peak / 1e9,
                   b.dev->real_size == 8 ? "f64" : "f32");
        printf("%.1f GB/s (copy, read + write)\n", b.copy_peak / 1e9);
        double wait = b.dev->is_gpu ? 0 : start_threads();
        if (wait > 0)
            warn("starting threads takes %.0f us on average: other programs use these cores, do "
                 "not trust the times", wait * 1e6);
    }
    if (layers) bench_layers(b.dev, b.filter, b.dev->is_gpu ? 1 : 64);
    if (steps) bench_steps(b.dev);
    for (int i = 0; i < SHAPES && !layers && !steps; i++) {
        const Shape *s = &shapes[i];
        if (size && strcmp(size, s->name)) continue;
        if (!b.list)
            printf("\n%s: B=%d T=%d C=%d V=%d E=%d K=%d F=%d G=%d Q=%d D=%d\n", s->name, s->B, s->T, s->C,
                   s->V, s->E, s->K, s->F, s->G, s->Q, s->D);
        for (int k = 0; k < 2; k++) b.flops[k] = b.time[k] = 0;
        each_case(s, 0, time_case, &b);
        for (int k = 0; k < 2; k++)
            if (b.time[k] > 0) {
                printf("%s %s: %.1f GFLOP in %.1f ms, %.1f GFLOP/s", s->name, k ? "ParallelLinear" : "matmul",
                       b.flops[k] / 1e9, b.time[k] * 1e3, b.flops[k] / b.time[k] / 1e9);
                if (b.flops_peak > 0) printf(", %.0f %% of the peak", 100 * b.flops[k] / b.time[k] / b.flops_peak);
                putchar('\n');
            }
    }
    if (!b.done && !b.list && !layers && !steps) fail(EXIT_USAGE, "no operation matches %s (-l lists them)", b.filter);
    return EXIT_DONE;
}
