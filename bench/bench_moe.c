/* bench_moe.c: how fast is every operation, and how fast could it be?
 *
 *   bench_moe [-d DEVICE] [-e SIZE] [-t SECONDS] [-l] [FILTER]
 *   bench_moe [-d DEVICE] -step MODEL[,SEQUENCES[,TOKENS]] [-r N] [-mw N] [-mo TYPE]
 *                                                                  a whole training step instead: step.c
 *   bench_moe [-d DEVICE] -step layers [FILTER]                    the same of the layers of -e layers
 *
 * The operations are the cases of tests/ops/cases.c that a model of that size uses, so what is timed is what is
 * tested. Each line says how long an operation took, how much that is in bytes or in multiply-adds, and what share of
 * the limit that matters to it:
 *   memory     the rate at which the device copies memory; a GPU as many bytes as are counted, for what is short is over
 *              before all of it is busy. Bytes are counted: what an operation has to read and to
 *              write at least. Its buffers exist several times and are used by turns, so that no cache holds them.
 *   products   the routed ones on a GPU: the rate of one dense product of the same size (cuBLAS, if it is there), and in
 *              bf16 that of cuBLAS's strided batch of E products of S/E rows, which lie in order.
 *              All others, and attention: on a CPU the multiply-adds that its threads do with nothing but registers, on
 *              a GPU a dense product of 8192 x 8192 x 8192.
 * A time is the median over at least 7 batches of calls, after calls that are not counted; (fastest - slowest). Batches
 * of copies and dense products are timed in between, by turns, for clocks and neighbours change. */
#include "layers.h"
#include "ranks.h"
#include "tests/ops/cases.h"
#include <math.h>
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

static const struct {
    Shape s;
    int gpu;                        /* of which kind of device this is a size */
    const char *only;               /* operations whose names begin so */
} sizes[] = {                       /*   B     T     C      V    E   K     F  G   Q    D */
    { { "m4",                           16,  128,  128,   256,   8,  2,  128, 2,  2,  32, MIXED }, 0, "" },
    { { "m12",                           1, 1024,  768, 50304,   8,  2, 1024, 6,  2,  64, MIXED }, 0, "" },
    { { "c768k2",                       64, 1024,  768, 50304,  64,  2, 2048, 6,  2,  64, MIXED }, 1, "" },
    { { "c2048k8",                      64, 1024, 2048, 50304, 128,  8,  384, 2,  8, 128, MIXED }, 1, "" },
    { { "c4096k16",                     64, 1024, 4096, 50304, 256, 16,  128, 2, 16, 128, MIXED }, 1, "" },
    { { "e64k2",                        32, 1024,    8,     8,  64,  2,    8, 1,  1,   8, MIXED }, 1, "route" },
    { { "e128k8",                       32, 1024,    8,     8, 128,  8,    8, 1,  1,   8, MIXED }, 1, "route" },
    { { "e256k16",                      32, 1024,    8,     8, 256, 16,    8, 1,  1,   8, MIXED }, 1, "route" },
    { { "e512k10",                      32, 1024,    8,     8, 512, 10,    8, 1,  1,   8, MIXED }, 1, "route" },
};
enum { SIZES = sizeof sizes / sizeof *sizes };

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

/* ---- something that is timed: calls in batches ------------------------------------------------------------ */

enum { MOST_COPIES = 64 };
static const size_t out_of_cache = (size_t)256 << 20;       /* bytes; the largest caches are a quarter of that */

typedef struct {
    const Device *dev;
    Placed copy[MOST_COPIES];           /* of a case's buffers, used by turns; or, without a case, */
    char  *to, *from;                   /* memory that is copied, out_of_cache bytes; on a GPU */
    size_t piece;                       /* so many at a time, by turns */
    int    copies, turn, calls;         /* calls: of a batch */
} Work;

static void call(Work *w) {
    const size_t part = (size_t)1 << 20;
    const int turn = w->turn++;
    if (w->copies) case_run(&w->copy[turn % w->copies]);
    else if (w->dev->is_gpu) {
        const size_t at = (size_t)turn % (out_of_cache / w->piece) * w->piece;
        w->dev->copy(w->to + at, w->from + at, w->piece);
    } else {
        #pragma omp parallel for
        for (size_t i = 0; i < out_of_cache / part; i++) memcpy(w->to + i * part, w->from + i * part, part);
    }
}
/* Seconds of a call. */
static double batch(Work *w) {
    const double start = now();
    for (int i = 0; i < w->calls; i++) call(w);
    w->dev->sync();
    return (now() - start) / w->calls;
}
/* Pages, caches, threads and clocks are ready after this, and a batch lasts long enough for the clock. */
static void warm_up(Work *w) {
    const double enough = 2e-3;
    w->calls = w->copies > 1 ? w->copies : 1;
    batch(w);
    const double once = batch(w);
    w->calls = once < enough / 1000 ? 1000 : once < enough ? (int)(enough / once) + 1 : 1;
}
static int work_open(Work *w, const Case *c, const Device *dev) {
    const double bytes = case_bytes(c, dev), wanted = c->flops > 0 ? 1 : (double)out_of_cache / (bytes + 1);
    *w = (Work){ .dev = dev };
    while (w->copies < MOST_COPIES && (!w->copies || w->copies < wanted))
        if (case_place(&w->copy[w->copies], c, dev)) w->copies++;
        else break;
    if (w->copies) warm_up(w);
    return w->copies;
}
static int copying_open(Work *w, const Device *dev) {
    *w = (Work){ .dev = dev, .to = dev->alloc(out_of_cache), .from = dev->alloc(out_of_cache), .piece = out_of_cache };
    if (w->to && w->from) warm_up(w);
    return w->to && w->from;
}
/* Copies of a GPU are to move so many bytes from now on, as nearly as can be; returns how many they move. */
static double copying_of(Work *w, double bytes) {
    const size_t line = 4096, lines = (size_t)fmin(bytes / 2, (double)out_of_cache) / line;
    if (w->dev->is_gpu) {
        w->piece = (lines ? lines : 1) * line;
        warm_up(w);
    }
    return 2 * (double)w->piece;
}
static void work_close(Work *w) {
    for (int i = 0; i < w->copies; i++) case_release(&w->copy[i]);
    if (w->to) w->dev->release(w->to);
    if (w->from) w->dev->release(w->from);
    *w = (Work){ 0 };
}

/* ---- one operation ------------------------------------------------------------------------------------- */

/* What a size sums up in the end. */
static const struct { const char *name, *ops[3]; } groups[] = {
    { "matmul",            { "matmul" } },
    { "ParallelLinear",    { "parallel_linear" } },
    { "routing of a layer, forward", { "router_forward", "route_plan", "router_losses" } },
};
enum { GROUPS = sizeof groups / sizeof *groups };

typedef struct {
    const Device *dev;
    const char *filter, *only;
    double seconds, flops_peak;                 /* seconds: per operation; peak: 0 if unknown */
    Work copying;
    Device even;                                /* find_ceiling */
    int list, done;
    double amount[GROUPS], time[GROUPS];
} Bench;

/* Times w and, by turns, what it is compared with, if there is something; 0 for that if not. */
enum { OTHERS = 2 };
typedef struct { double time, fastest, slowest, other[OTHERS]; } Timing;
static Timing time_beside(Work *w, Work *const other[OTHERS], double seconds) {
    enum { LEAST = 7, MOST = 1000 };
    double took[MOST], took_other[OTHERS][MOST];
    int runs = 0;
    for (double spent = 0; runs < MOST && (runs < LEAST || spent < seconds); runs++) {
        for (int i = 0; i < OTHERS; i++) if (other && other[i]) took_other[i][runs] = batch(other[i]);
        took[runs] = batch(w);
        spent += took[runs] * w->calls;
    }
    Timing t = { .time = median(took, runs), .fastest = took[0], .slowest = took[runs - 1] };
    for (int i = 0; i < OTHERS; i++) if (other && other[i]) t.other[i] = median(took_other[i], runs);
    return t;
}
static void add_to_groups(Bench *b, const Case *c, double amount, double time) {
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < 3 && groups[g].ops[i]; i++)
            if (!strncmp(c->op, groups[g].ops[i], strlen(groups[g].ops[i]))) b->amount[g] += amount, b->time[g] += time;
}
static void time_case(Case *c, void *context) {
    Bench *b = context;
    Work w, dense = { 0 }, even = { 0 };
    const int product = c->flops > 0, routed = c->dense && b->dev->is_gpu, ceiling = routed && b->even.name;
    if ((b->filter && !strstr(c->what, b->filter)) || strncmp(c->op, b->only, strlen(b->only))) return;
    if (b->list) { puts(c->what); return; }
    if (!work_open(&w, c, b->dev) || (routed && !work_open(&dense, c->dense, b->dev))
        || (ceiling && !work_open(&even, c->even, &b->even)))
        printf("%-72s not enough memory\n", c->what);
    else {
        const double amount = product ? c->flops : case_bytes(c, b->dev);
        Work *const beside[OTHERS] = { routed ? &dense : product ? NULL : &b->copying, ceiling ? &even : NULL };
        const double copied = product ? 0 : copying_of(&b->copying, amount);
        const Timing t = time_beside(&w, beside, b->seconds);
        const double peak = routed ? c->flops / t.other[0] : product ? b->flops_peak : copied / t.other[0];
        printf("%-72s %9.4f ms (%.4f - %.4f) %9.2f %s %8.1f %s", c->what, t.time * 1e3, t.fastest * 1e3, t.slowest * 1e3,
               amount / (product ? 1e9 : 1e6), product ? "GFLOP" : "MB   ", amount / t.time / 1e9,
               product ? "GFLOP/s" : "GB/s   ");
        if (peak > 0) printf(" %4.0f %%%s", 100 * amount / t.time / peak, routed ? " of dense" : "");
        if (ceiling) printf(", %.0f %% of a batch", 100 * t.other[1] / t.time);
        putchar('\n');
        fflush(stdout);
        add_to_groups(b, c, amount, t.time);
        b->done++;
    }
    work_close(&w);
    work_close(&dense);
    work_close(&even);
}
static void print_groups(const Bench *b, const char *size) {
    for (int g = 0; g < GROUPS; g++)
        if (b->time[g] > 0 && !groups[g].ops[1])
            printf("%s %s: %.1f GFLOP in %.2f ms, %.1f GFLOP/s, %.0f %% of the peak\n", size, groups[g].name,
                   b->amount[g] / 1e9, b->time[g] * 1e3, b->amount[g] / b->time[g] / 1e9,
                   100 * b->amount[g] / b->time[g] / b->flops_peak);
        else if (b->time[g] > 0) printf("%s %s: %.1f us\n", size, groups[g].name, b->time[g] * 1e6);
}
/* Copies one by one, each between two marks, as step.c times operations; where there are none, by the rate. */
static void time_copies(Copies *c, Work *w, double rate) {
    enum { TIMES = 15, AHEAD = 10 };
    const Device *dev = w->dev;
    for (int i = 0; i < COPY_SIZES; i++) {
        const size_t bytes = (size_t)COPY_LEAST << i;
        double took[TIMES];
        c->seconds[i] = (double)bytes / rate;
        if (!dev->mark) continue;
        w->piece = bytes / 2;
        for (int k = 0; k < AHEAD; k++) dev->zero(w->to, out_of_cache);     /* no copy waits to be started */
        dev->mark(0);
        for (int k = 0; k < TIMES; k++) { call(w); dev->mark(k + 1); }
        dev->sync();
        for (int k = 0; k < TIMES; k++) took[k] = dev->elapsed(k, k + 1);
        c->seconds[i] = median(took, TIMES);
    }
}
/* Of a dense product, as large as they come. */
static double product_rate(const Device *dev) {
    Work w;
    Case *c = case_product(8192, 8192, 8192);
    const double rate = work_open(&w, c, dev) ? c->flops / time_beside(&w, NULL, 0.1).time : 0;
    work_close(&w);
    case_free(c);
    return rate;
}

/* ---- the program --------------------------------------------------------------------------------------- */

static const char *const usage =
    "usage: bench_moe [-d DEVICE] [-e SIZE] [-t SECONDS] [-l] [FILTER]\n"
    "       bench_moe [-d DEVICE] -step MODEL[,SEQUENCES[,TOKENS]] [-r N] [-mw N] [-mo TYPE]\n"
    "       bench_moe [-d DEVICE] -step layers [FILTER]\n"
    "  -d, --device DEVICE    cpu-f32 (default), cpu-bf16, cpu-f64, ...\n"
    "  -e, --size SIZE        m4, m12 (default for CPUs), c768k2, c2048k8, c4096k16, e64k2, e128k8, e256k16,\n"
    "                         e512k10 (default for GPUs); layers, heads: whole layers of published sizes, MLP and\n"
    "                         attention; attention: it alone; steps: whole training steps; ranks: what several GPUs do\n"
    "                         together; ladder: the rungs of kernels/ladder; rounding: a layer with each rule of -rt\n"
    "  -t, --time SECONDS     for each operation, at least 7 batches (default 0.1)\n"
    "  -s, -step, --step      each operation of a training step of a model such as m12, and of SEQUENCES (16; on a CPU 1)\n"
    "                         of TOKENS (1024) tokens: its share of the time, and how near it is to its limit;\n"
    "                         layers: the same of the layers of -e layers\n"
    "  -r N, -mw N, -mo TYPE, -mg TYPE, -wo NAME  of the step, as train_moe's: what is recomputed (0), master weights (1),\n"
    "                         moments (f32), gradients (bf16), optimizer (adamw)\n"
    "  -w, --wait             layers, attention: time again for each line of standard input, for bench/peers.py\n"
    "  -l, --list             names of the operations, nothing is timed\n"
    "  FILTER                 only operations whose line contains this\n";

static const char *value_of(int argc, char **argv, int *i) {
    if (*i + 1 >= argc) fail(EXIT_USAGE, "%s needs a value\n%s", argv[*i], usage);
    return argv[++*i];
}
static int is(const char *arg, const char *letter, const char *name) {
    return !strcmp(arg, letter) || !strcmp(arg, name);
}

/* MODEL[,SEQUENCES[,TOKENS]]: descriptors have no commas. */
static void step_of(const Device *dev, const char *text, Lesson l, double product_rate, const Copies *copies) {
    char model[128];
    int used = 0;
    const size_t n = strcspn(text, ",");
    snprintf(model, sizeof model, "%.*s", (int)n, text);
    l.B = dev->is_gpu ? 16 : 1, l.T = 1024;
    if (text[n] && (sscanf(text + n, ",%d%n,%d%n", &l.B, &used, &l.T, &used) < 1 || text[n + (size_t)used] || l.B < 1 || l.T < 1))
        fail(EXIT_USAGE, "-step %s: not MODEL,SEQUENCES,TOKENS\n%s", text, usage);
    bench_step(dev, model, l, product_rate, copies);
}
/* One of the words; its number. */
static int choice(int argc, char **argv, int *i, const char *const *words) {
    const char *option = argv[*i], *word = value_of(argc, argv, i);
    for (int k = 0; words[k]; k++) if (!strcmp(word, words[k])) return k;
    fail(EXIT_USAGE, "%s %s: unknown\n%s", option, word, usage);
}

int main(int argc, char **argv) {
    const char *device = "cpu-f32", *size = NULL, *step = NULL;
    static Bench b = { .seconds = 0.1 };
    static const char *const numbers[] = { "0", "1", "2", NULL }, *const yes[] = { "0", "1", NULL };
    static const char *const optimizers[] = { "adamw", "muon", NULL };
    static const char *const types[] = { "f32", "bf16", NULL };
    Lesson lesson = { .master = 1, .gradients = FLOATX };
    int wait = 0;
    Copies copies = { { 0 } };
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
        } else if (is(argv[i], "-s", "--step") || is(argv[i], "-step", "-step")) step = value_of(argc, argv, &i);
        else if (is(argv[i], "-w", "--wait")) wait = 1;
        else if (!strcmp(argv[i], "-r")) lesson.recompute = choice(argc, argv, &i, numbers);
        else if (!strcmp(argv[i], "-mw")) lesson.master = choice(argc, argv, &i, yes);
        else if (!strcmp(argv[i], "-wo")) lesson.momentum = choice(argc, argv, &i, optimizers) ? 0.95f : 0;
        else if (!strcmp(argv[i], "-mo")) lesson.moments = (Dtype)choice(argc, argv, &i, types);
        else if (!strcmp(argv[i], "-mg")) lesson.gradients = (Dtype)choice(argc, argv, &i, types);
        else if (is(argv[i], "-l", "--list")) b.list = 1;
        else if (argv[i][0] == '-' || b.filter) fail(EXIT_USAGE, "%s: unknown\n%s", argv[i], usage);
        else b.filter = argv[i];

    static const char *const whole[] = { "layers", "heads", "attention", "steps", "ranks", "ladder", "rounding" };
    enum { LAYERS, HEADS, ATTENTION, STEPS, RANKS, RUNGS, ROUNDED, WHOLE };
    int known = !size, what = -1;
    for (int i = 0; i < WHOLE && size; i++) if (!strcmp(size, whole[i])) known = 1, what = i;
    for (int i = 0; i < SIZES; i++) known |= size && !strcmp(size, sizes[i].s.name);
    const int parts = step && !strcmp(step, "layers"), shrink = 64;     /* a CPU takes a share of a layer's tokens */
    if (step && (size || (b.filter && !parts) || b.list)) fail(EXIT_USAGE, "-step goes with -d only\n%s", usage);
    if (!known) fail(EXIT_USAGE, "size %s: unknown\n%s", size, usage);
    b.dev = device_find(device);
    if (!b.dev) fail(EXIT_USAGE, "device %s: this build has none of that name", device);
    if (what == RANKS) {                                            /* their threads open the devices */
        bench_ranks(b.dev, b.seconds);
        return EXIT_DONE;
    }
    if (b.dev->open(0)) fail(EXIT_USAGE, "device %s: %s", device, b.dev->open(0));
    if (!find_ceiling(&b.even, b.dev)) b.even.name = NULL;

    if (!b.list && !wait) {
        print_machine();
        printf("command   ");
        for (int i = 0; i < argc; i++) printf(" %s", argv[i]);
        if (!copying_open(&b.copying, b.dev)) fail(EXIT_MEMORY, "%s: no memory to copy", device);
        b.flops_peak = b.dev->is_gpu ? product_rate(b.dev) : b.dev->real_size == 8 ? peak_double(0.5) : peak_float(0.5);
        printf("\ndevice     %s, weights and activations in %s\npeak       ", b.dev->name, b.dev->dtype);
        if (b.flops_peak > 0)
            printf("%.1f GFLOP/s (%s), ", b.flops_peak / 1e9, b.dev->is_gpu ? "dense product of 8192 x 8192 x 8192"
                   : b.dev->real_size == 8 ? "f64 multiply-adds in registers" : "f32 multiply-adds in registers");
        const double copy_rate = 2 * (double)out_of_cache / time_beside(&b.copying, NULL, 0.2).time;
        printf("%.1f GB/s (copy, read + write)\n", copy_rate / 1e9);
        if (step) time_copies(&copies, &b.copying, copy_rate);
        const double late = b.dev->is_gpu ? 0 : start_threads();
        if (late > 0)
            warn("starting threads takes %.0f us on average: other programs use these cores, do "
                 "not trust the times", late * 1e6);
    }
    if (what == LAYERS || what == HEADS) bench_layers(b.dev, what == HEADS, b.filter, b.dev->is_gpu ? 1 : shrink, wait);
    if (what == ATTENTION) bench_attention(b.dev, b.filter, wait);
    if (what == STEPS) bench_steps(b.dev);
    if (what == RUNGS) bench_ladder(b.dev);
    if (what == ROUNDED) bench_rounding(b.dev);
    if (parts) bench_layer_parts(b.dev, b.filter, b.dev->is_gpu ? 1 : shrink, b.flops_peak, &copies);
    else if (step) step_of(b.dev, step, lesson, b.flops_peak, &copies);
    for (int i = 0; i < SIZES && what < 0 && !step; i++) {
        const Shape *s = &sizes[i].s;
        if (size ? strcmp(size, s->name) != 0 : sizes[i].gpu != b.dev->is_gpu) continue;
        if (!b.list)
            printf("\n%s: B=%d T=%d C=%d V=%d E=%d K=%d F=%d G=%d Q=%d D=%d\n", s->name, s->B, s->T, s->C,
                   s->V, s->E, s->K, s->F, s->G, s->Q, s->D);
        memset(b.time, 0, sizeof b.time);
        memset(b.amount, 0, sizeof b.amount);
        b.only = sizes[i].only;
        each_case(s, 0, time_case, &b);
        print_groups(&b, s->name);
    }
    work_close(&b.copying);
    if (!b.done && !b.list && what < 0 && !step) fail(EXIT_USAGE, "no operation matches %s (-l lists them)", b.filter);
    return EXIT_DONE;
}
