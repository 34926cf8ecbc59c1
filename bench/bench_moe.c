/* bench_moe.c: how fast is every operation, and how fast could it be?
 *
 *   bench_moe [-d DEVICE] [-e SIZE] [-t SECONDS] [-l] [FILTER]
 *   bench_moe [-d DEVICE] -step MODEL[,SEQUENCES[,TOKENS]] [-r N] [-mw N] [-mo TYPE]  a whole
 *   training step: step.c
 *   bench_moe [-d DEVICE] -step layers [FILTER]                                       the layers of
 *   -e layers, likewise
 *
 * The operations are the cases of tests/ops/cases.c that a model of that size uses, so what is
 * timed is what is tested. A line gives the time of an operation, how much it moves (bytes) or
 * computes (flop), and its fraction of the limit that applies:
 *   memory    the rate at which the device copies memory; on a GPU, of copies that move as many
 *             bytes, since short ones end before the whole GPU is busy. Bytes: what the operation
 *             has to read and write at least. Several sets of buffers are used in rotation, so that
 *             no cache holds them.
 *   products  routed products on a GPU: the rate of one dense product of the same size (cuBLAS, if
 *             available), and in bf16 that of cuBLAS's strided batch of E products of S/E rows,
 *             which are in order.
 *             Other products and attention: on a CPU the rate of multiply-adds between registers on
 *             all threads, on a GPU that of a dense product of 8192 x 8192 x 8192.
 * A time is the median of at least 7 batches of calls (-t 0: of one, to see that all run), after a
 * warm-up; (fastest - slowest). Batches of the copies and dense products alternate with them,
 * because clocks and the load by other programs change. */
#include "layers.h"
#include "ranks.h"
#include "llmc/model/recompute.h"
#include "tests/ops/cases.h"
#include "llmc/base/omp.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef COMPILER_FLAGS
#define COMPILER_FLAGS "flags unknown"                  /* -DCOMPILER_FLAGS='"..."' */
#endif

static const struct {
    Shape s;
    int gpu;                        /* 1: for GPUs, 0: for CPUs */
    const char *only;               /* how the names of its operations begin */
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

/* ---- what the machine can do ----------------------------------------------------------------- */

#if defined(__AVX512F__)
enum { VECTOR = 64 };
#elif defined(__AVX__)
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif

/* Twelve independent chains of multiply-adds: enough to keep two FMA units with a latency of 4
 * busy. They start from different numbers, unknown to the compiler; otherwise it would compute one
 * chain for all. */
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

/* Seconds to start and join the threads: 0 if that takes the usual few microseconds, more if other
 * programs use the cores. */
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

/* ---- what is timed: batches of calls --------------------------------------------------------- */

enum { MOST_COPIES = 64 };
static const size_t out_of_cache = (size_t)256 << 20;       /* bytes; the largest caches are a quarter of that */

typedef struct {
    const Device *dev;
    CaseOnDevice copy[MOST_COPIES];     /* sets of a case's buffers, used in rotation; */
    int    copies;                      /* 0: memory is copied instead: */
    char  *to, *from;                   /* out_of_cache bytes, on a GPU in pieces, in rotation */
    size_t piece;
    int    next, calls;                 /* next: of the rotation; calls: in a batch */
} Work;

static void call(Work *w) {
    const size_t part = (size_t)1 << 20;
    const int next = w->next++;
    if (w->copies) case_run(&w->copy[next % w->copies]);
    else if (w->dev->is_gpu) {
        const size_t at = (size_t)next % (out_of_cache / w->piece) * w->piece;
        w->dev->copy(w->to + at, w->from + at, w->piece);
    } else {
        #pragma omp parallel for
        for (size_t i = 0; i < out_of_cache / part; i++) memcpy(w->to + i * part, w->from + i * part, part);
    }
}
/* Runs a batch; seconds of a call. */
static double batch(Work *w) {
    for (int i = 0; i < w->copies && w->copy[i].c->calls; i++) case_fill(&w->copy[i]);
    const double start = now();
    for (int i = 0; i < w->calls; i++) call(w);
    w->dev->sync();
    return (now() - start) / w->calls;
}
/* Warms up pages, caches, threads and clocks, and makes a batch long enough for the clock. */
static void warm_up(Work *w) {
    const double enough = 2e-3;
    w->calls = w->copies > 1 ? w->copies : 1;
    batch(w);
    const double once = batch(w);
    w->calls = once < enough / 1000 ? 1000 : once < enough ? (int)(enough / once) + 1 : 1;
    const int most = w->copies ? w->copies * w->copy[0].c->calls : 0;
    if (most && w->calls > most) w->calls = most;
}
static int work_open(Work *w, const Case *c, const Device *dev) {
    const Cost cost = case_cost(c, dev);
    const double wanted = cost.flop > 0 ? 1 : (double)out_of_cache / (cost.bytes + 1);
    *w = (Work){ .dev = dev };
    while (w->copies < MOST_COPIES && (!w->copies || w->copies < wanted))
        if (case_allocate(&w->copy[w->copies], c, dev)) w->copies++;
        else break;
    if (w->copies) warm_up(w);
    return w->copies;
}
static int copying_open(Work *w, const Device *dev) {
    *w = (Work){ .dev = dev, .to = dev->alloc(out_of_cache), .from = dev->alloc(out_of_cache), .piece = out_of_cache };
    if (w->to && w->from) warm_up(w);
    return w->to && w->from;
}
/* Makes copies of a GPU move this many bytes, if possible; returns how many they move. */
static double copying_of(Work *w, double bytes) {
    const size_t line = 4096, lines = (size_t)fmin(bytes / 2, (double)out_of_cache) / line;
    if (w->dev->is_gpu) {
        w->piece = (lines ? lines : 1) * line;
        warm_up(w);
    }
    return 2 * (double)w->piece;
}
static void work_close(Work *w) {
    for (int i = 0; i < w->copies; i++) {
        const Case *c = w->copy[i].c;
        for (int k = 0; k < c->buffers; k++)
            if (!case_guard(&w->copy[i], k))
                fail(EXIT_NUMERICS, "%s %s: wrote outside of %s", w->dev->name, c->what, c->buffer[k].name);
        case_release(&w->copy[i]);
    }
    if (w->to) w->dev->release(w->to);
    if (w->from) w->dev->release(w->from);
    *w = (Work){ 0 };
}

/* ---- one operation --------------------------------------------------------------------------- */

/* Totals at the end of a size. */
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

/* Times w in alternation with what it is compared with (NULL: nothing; its time is then 0). */
enum { OTHERS = 2 };
typedef struct { double time, fastest, slowest, other[OTHERS]; } Timing;
static Timing time_beside(Work *w, Work *const other[OTHERS], double seconds) {
    enum { MOST = 1000 };
    const int least = seconds > 0 ? 7 : 1;
    double took[MOST], took_other[OTHERS][MOST];
    int runs = 0;
    for (double spent = 0; runs < MOST && (runs < least || spent < seconds); runs++) {
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
    const Cost cost = case_cost(c, b->dev);
    const int product = cost.flop > 0, routed = c->dense && b->dev->is_gpu, ceiling = routed && b->even.name;
    if ((b->filter && !strstr(c->what, b->filter)) || strncmp(c->op, b->only, strlen(b->only)) || !case_fits(c, b->dev))
        return;
    if (b->list) { puts(c->what); return; }
    if (!work_open(&w, c, b->dev) || (routed && !work_open(&dense, c->dense, b->dev))
        || (ceiling && !work_open(&even, c->even, &b->even)))
        printf("%-72s not enough memory\n", c->what);
    else {
        const double amount = product ? cost.flop : cost.bytes;
        Work *const beside[OTHERS] = { routed ? &dense : product ? NULL : &b->copying, ceiling ? &even : NULL };
        const double copied = product ? 0 : copying_of(&b->copying, amount);
        const Timing t = time_beside(&w, beside, b->seconds);
        const double peak = routed ? cost.flop / t.other[0] : product ? b->flops_peak : copied / t.other[0];
        printf("%-72s %9.4f ms (%.4f - %.4f) %9.2f %s %8.1f %s", c->what, t.time * 1e3, t.fastest * 1e3,
               t.slowest * 1e3, amount / (product ? 1e9 : 1e6), product ? "GFLOP" : "MB   ", amount / t.time / 1e9,
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
/* Times single copies, each between two marks, as step.c times operations; on devices without
 * marks, computes them from the rate. */
static void time_copies(Copies *c, Work *w, double rate) {
    enum { TIMES = 15, AHEAD = 10 };
    const Device *dev = w->dev;
    for (int i = 0; i < COPY_SIZES; i++) {
        const size_t bytes = (size_t)COPY_LEAST << i;
        double took[TIMES];
        c->seconds[i] = (double)bytes / rate;
        if (!dev->mark) continue;
        w->piece = bytes / 2;
        /* the host gets ahead, so no copy waits for it */
        for (int k = 0; k < AHEAD; k++) dev->zero(w->to, out_of_cache);
        dev->mark(0);
        for (int k = 0; k < TIMES; k++) { call(w); dev->mark(k + 1); }
        dev->sync();
        for (int k = 0; k < TIMES; k++) took[k] = dev->elapsed(k, k + 1);
        c->seconds[i] = median(took, TIMES);
    }
}
/* Flop/s of a large dense product. */
static double product_rate(const Device *dev) {
    Work w;
    Case *c = case_product(8192, 8192, 8192);
    const double rate = work_open(&w, c, dev) ? case_cost(c, dev).flop / time_beside(&w, NULL, 0.1).time : 0;
    work_close(&w);
    case_free(c);
    return rate;
}

static void bench_operations(Bench *b, const char *size) {
    for (int i = 0; i < SIZES; i++) {
        const Shape *s = &sizes[i].s;
        if (size ? strcmp(size, s->name) != 0 : sizes[i].gpu != b->dev->is_gpu) continue;
        if (!b->list)
            printf("\n%s: B=%d T=%d C=%d V=%d E=%d K=%d F=%d G=%d Q=%d D=%d\n", s->name, s->B, s->T, s->C,
                   s->V, s->E, s->K, s->F, s->G, s->Q, s->D);
        memset(b->time, 0, sizeof b->time);
        memset(b->amount, 0, sizeof b->amount);
        b->only = sizes[i].only;
        each_case(s, 0, "", time_case, b);
        print_groups(b, s->name);
    }
    if (!b->done && !b->list) fail(EXIT_USAGE, "no operation matches %s (-l lists them)", b->filter);
}

/* ---- the program ----------------------------------------------------------------------------- */

static const char *const usage =
    "usage: bench_moe [-d DEVICE] [-e SIZE] [-t SECONDS] [-l] [FILTER]\n"
    "       bench_moe [-d DEVICE] -step MODEL[,SEQUENCES[,TOKENS]] [-r N] [-mw N] [-mo TYPE] [-mg TYPE] [-wo "
    "NAME] [-wp N]\n"
    "       bench_moe [-d DEVICE] -step layers [FILTER]\n"
    "Times operations, layers or training steps beside the limits of this machine.\n"
    "  -d, --device DEVICE    cpu-f32 (default), cpu-bf16, cpu-f64, cuda-bf16, ...\n"
    "  -e, --size SIZE        the operations of a model of this size: m4, m12 (default on CPUs: both), c768k2,\n"
    "                         c2048k8, c4096k16, e64k2, e128k8, e256k16, e512k10 (default on GPUs: all of these); or\n"
    "                         layers     MLP layers of published sizes, forward and backward\n"
    "                         heads      attention layers of the same sizes\n"
    "                         attention  causal attention alone\n"
    "                         steps      training steps, queued and recorded\n"
    "                         parts      training steps in which backward recomputes parts of layers\n"
    "                         ranks      collectives and training steps on several GPUs\n"
    "                         ladder     the rungs of kernels/ladder\n"
    "                         rounding   an MLP layer under each rule of train_moe -rt\n"
    "                         decoding   models with random weights, published ones on a GPU: tokens per second\n"
    "                         loading    writes such a model to the folder -o (FILTER: which) and times reading it\n"
    "  -t, --time SECONDS     time for each operation (default 0.1; at least 7 batches). 0: one batch\n"
    "  -s, -step, --step      every operation of one training step of MODEL, for example m12, with SEQUENCES "
    "(default 16,\n"
    "                         on CPUs 1) of TOKENS (1024): its share of the step's time, and of its own limit;\n"
    "                         layers: the operations of each layer of -e layers\n"
    "  options of that step, as for train_moe:\n"
    "  -r N                   recomputation (0), or one part of all layers: norms, qkv, attention, output, up\n"
    "  -mw N, -mo TYPE, -mg TYPE   master weights (1), type of the moments (f32) and of the gradients (bf16)\n"
    "  -wo NAME, -wp N        optimizer (adamw); with -wo muon the period of experts (1)\n"
    "  -w, --wait             layers, attention: measure again for each line of standard input (bench/peers.py)\n"
    "  -o, --folder FOLDER    the folder of -e loading\n"
    "  -l, --list             list the operations instead of timing them\n"
    "  FILTER                 only operations whose line contains this\n";

static const char *const suites[] = { "layers", "heads", "attention", "steps", "parts", "ranks", "ladder", "rounding",
                                      "decoding", "loading", NULL };
typedef enum { LAYERS, HEADS, ATTENTION, STEPS, PARTS, RANKS, RUNGS, ROUNDED, DECODING, LOADING, OPERATIONS, STEP,
               STEP_LAYERS } Subject;
typedef struct {
    const char *device, *size, *step, *folder;
    int     wait;
    TraineeOptions training;
    Subject subject;
} Request;

static const char *value_of(int argc, char **argv, int *i) {
    if (*i + 1 >= argc) fail(EXIT_USAGE, "%s needs a value\n%s", argv[*i], usage);
    return argv[++*i];
}
static int is(const char *arg, const char *letter, const char *name) {
    return !strcmp(arg, letter) || !strcmp(arg, name);
}
static int index_of(const char *word, const char *const *words) {
    for (int k = 0; word && words[k]; k++) if (!strcmp(word, words[k])) return k;
    return -1;
}
static int choice(int argc, char **argv, int *i, const char *const *words) {
    const char *option = argv[*i], *word = value_of(argc, argv, i);
    const int k = index_of(word, words);
    if (k < 0) fail(EXIT_USAGE, "%s %s: unknown\n%s", option, word, usage);
    return k;
}
static double seconds_of(const char *text) {
    char *end;
    const double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 0 && seconds <= 3600))
        fail(EXIT_USAGE, "%s: not a number of seconds\n%s", text, usage);
    return seconds;
}
/* -r 0, 1 or 2, or the name of one part, in all layers. */
static Recompute recompute_of(int choice) {
    return choice < 3 ? recompute_numbered(choice) : recompute_parts(1u << (choice - 3), INT_MAX);
}
static void parse(Request *r, Bench *b, int argc, char **argv) {
    static const char *const again[] = { "0", "1", "2", "norms", "qkv", "attention", "output", "up", NULL },
        *const yes[] = { "0", "1", NULL };
    static const char *const optimizers[] = { "adamw", "muon", NULL };
    static const char *const types[] = { "f32", "bf16", NULL }, *const moments[] = { "f32", "bf16", "int8", NULL };
    static const char *const periods[] = { "1", "2", "3", "4", NULL };
    for (int i = 1; i < argc; i++)
        if (is(argv[i], "-h", "--help")) { fputs(usage, stdout); exit(EXIT_DONE); }
        else if (is(argv[i], "-d", "--device")) r->device = value_of(argc, argv, &i);
        else if (is(argv[i], "-e", "--size")) r->size = value_of(argc, argv, &i);
        else if (is(argv[i], "-t", "--time")) b->seconds = seconds_of(value_of(argc, argv, &i));
        else if (is(argv[i], "-s", "--step") || is(argv[i], "-step", "-step")) r->step = value_of(argc, argv, &i);
        else if (is(argv[i], "-w", "--wait")) r->wait = 1;
        else if (is(argv[i], "-o", "--folder")) r->folder = value_of(argc, argv, &i);
        else if (!strcmp(argv[i], "-r")) r->training.recompute = recompute_of(choice(argc, argv, &i, again));
        else if (!strcmp(argv[i], "-mw")) r->training.no_master = !choice(argc, argv, &i, yes);
        else if (!strcmp(argv[i], "-wo")) r->training.momentum = choice(argc, argv, &i, optimizers) ? 0.95f : 0;
        else if (!strcmp(argv[i], "-wp")) r->training.period = 1 + choice(argc, argv, &i, periods);
        else if (!strcmp(argv[i], "-mo")) r->training.moments = (Dtype)choice(argc, argv, &i, moments);
        else if (!strcmp(argv[i], "-mg")) r->training.gradients = (Dtype)choice(argc, argv, &i, types);
        else if (is(argv[i], "-l", "--list")) b->list = 1;
        else if (argv[i][0] == '-' || b->filter) fail(EXIT_USAGE, "%s: unknown\n%s", argv[i], usage);
        else b->filter = argv[i];

    const int layers = r->step && !strcmp(r->step, "layers"), at = index_of(r->size, suites);
    int known = !r->size || at >= 0;
    for (int i = 0; i < SIZES; i++) known |= r->size && !strcmp(r->size, sizes[i].s.name);
    if (!known) fail(EXIT_USAGE, "size %s: unknown\n%s", r->size, usage);
    if (r->step && (r->size || (b->filter && !layers) || b->list))
        fail(EXIT_USAGE, "-step goes with -d only\n%s", usage);
    if (!r->folder != !(at == LOADING))
        fail(EXIT_USAGE, "-e loading needs a folder, -o, and nothing else does\n%s", usage);
    r->subject = layers ? STEP_LAYERS : r->step ? STEP : at >= 0 ? (Subject)at : OPERATIONS;
}

/* The machine and the limits that times are compared with. */
static void measure_limits(Bench *b, Copies *copies, int argc, char **argv) {
    const int wide = b->dev->real_size == 8;
    print_machine();
    printf("command   ");
    for (int i = 0; i < argc; i++) printf(" %s", argv[i]);
    if (!copying_open(&b->copying, b->dev)) fail(EXIT_MEMORY, "%s: no memory to copy", b->dev->name);
    b->flops_peak = b->dev->is_gpu ? product_rate(b->dev) : wide ? peak_double(0.5) : peak_float(0.5);
    printf("\ndevice     %s, weights and activations in %s\npeak       ", b->dev->name, b->dev->dtype);
    if (b->flops_peak > 0)
        printf("%.1f GFLOP/s (%s), ", b->flops_peak / 1e9, b->dev->is_gpu ? "dense product of 8192 x 8192 x 8192"
               : wide ? "f64 multiply-adds in registers" : "f32 multiply-adds in registers");
    const double copy_rate = 2 * (double)out_of_cache / time_beside(&b->copying, NULL, 0.2).time;
    printf("%.1f GB/s (copy, read + write)\n", copy_rate / 1e9);
    time_copies(copies, &b->copying, copy_rate);
    const double late = b->dev->is_gpu ? 0 : start_threads();
    if (late > 0)
        warn("starting threads takes %.0f us on average: other programs use these cores, do not trust the times",
             late * 1e6);
}

/* MODEL[,SEQUENCES[,TOKENS]]: descriptors have no commas. */
static void step_of(const Request *r, const Bench *b, const Copies *copies) {
    TraineeOptions o = r->training;
    char model[128];
    int used = 0;
    const size_t n = strcspn(r->step, ",");
    snprintf(model, sizeof model, "%.*s", (int)n, r->step);
    o.B = b->dev->is_gpu ? 16 : 1, o.T = 1024;
    if (r->step[n] && (sscanf(r->step + n, ",%d%n,%d%n", &o.B, &used, &o.T, &used) < 1 || r->step[n + (size_t)used]
                       || o.B < 1 || o.T < 1))
        fail(EXIT_USAGE, "-step %s: not MODEL,SEQUENCES,TOKENS\n%s", r->step, usage);
    bench_step(b->dev, model, o, b->flops_peak, copies);
}

int main(int argc, char **argv) {
    static Bench b = { .seconds = 0.1 };
    Request r = { .device = "cpu-f32", .training = { .gradients = FLOATX } };
    Copies copies = { { 0 } };
    parse(&r, &b, argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);                           /* a file or pipe shows each line as it is measured */
    b.dev = device_find(r.device);
    if (!b.dev) fail(EXIT_USAGE, "device %s: this build has none of that name", r.device);
    if (r.subject == RANKS) { bench_ranks(b.dev, b.seconds); return EXIT_DONE; }    /* its threads open the devices */
    if (b.dev->open(0)) fail(EXIT_USAGE, "device %s: %s", r.device, b.dev->open(0));
    if (!find_ceiling(&b.even, b.dev)) b.even.name = NULL;
    if (!b.list && !b.dev->is_gpu && r.subject == OPERATIONS && !r.size && !r.step && !b.filter)
        fprintf(stderr,
                "m4 and m12, every operation: some eight minutes on two cores (-e m4: two; -t 0: one batch of each)\n");
    if (!b.list && !r.wait) measure_limits(&b, &copies, argc, argv);
    const int shrink = b.dev->is_gpu ? 1 : 64;                  /* a CPU gets a 64th of a layer's tokens */
    switch (r.subject) {
    case LAYERS: case HEADS: bench_layers(b.dev, r.subject == HEADS, b.filter, shrink, r.wait); break;
    case ATTENTION:          bench_attention(b.dev, b.filter, r.wait); break;
    case STEPS:              bench_steps(b.dev); break;
    case PARTS:              bench_parts(b.dev); break;
    case RUNGS:              bench_ladder(b.dev); break;
    case ROUNDED:            bench_rounding(b.dev); break;
    case DECODING:           bench_decoding(b.dev, b.filter, &copies); break;
    case LOADING:            bench_loading(b.dev, b.filter, r.folder); break;
    case STEP:               step_of(&r, &b, &copies); break;
    case STEP_LAYERS:        bench_layer_parts(b.dev, b.filter, shrink, b.flops_peak, &copies); break;
    default:                 bench_operations(&b, r.size);
    }
    work_close(&b.copying);
    return EXIT_DONE;
}
