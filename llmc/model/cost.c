/* cost.c: see cost.h. */
#include "cost.h"
#include "batch.h"
#include "parallel.h"
#include "pass.h"
#include "plan.h"
#include "llmc/base/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- counting -------------------------------------------------------------------------------- */

static const Rates *machine;
static StepCost sum;                    /* passes: of what is being counted */

static void add_cost(const char *op, double flop, double bytes) {
    const double rate = !strncmp(op, "attention", 9) ? machine->attention : !strncmp(op, "fp8", 3) ? machine->fp8
        : !strncmp(op, "matmul", 6) ? machine->dense : !strcmp(op, "orthogonalize") ? machine->muon : machine->routed;
    sum.passes += hypot(flop / rate, bytes / machine->bytes) + machine->start;
    sum.flop += flop;
}

static double distinct(double N, double V) { return N < V ? N : V; }       /* at most */
static double visible(int B, int T) { return (double)B * T; }

static const Device *unused;                /* so that all parameters are used */
#define COUNT(name, operation, parameters, arguments, flop, bytes) \
    static void count_##name parameters { \
        if (unused) unused->operation arguments; \
        add_cost(#name, flop, bytes); \
    }
#define OPERATION(name, parameters, arguments, flop, bytes, ...) \
    COUNT(name, name, parameters, arguments, flop, bytes)
#define COMPOUND OPERATION
#define FP8(name, parameters, arguments, flop, bytes, ...) \
    COUNT(fp8_##name, fp8->name, parameters, arguments, flop, bytes)
#include "kernels/operations.h"

/* The products that it makes are operations of their own. */
static void count_with_products(const Device *d, floatX *dresid, real *dnorm, real *dbias, floatX *const scratch[2],
                                const Sum *s, const floatX *resid, Norm norm, const real *rstd, int N, int C) {
    for (int i = 0; i < s->terms; i++)
        d->matmul_backward_input(scratch[0], s->term[i].dout, s->term[i].weight, N, C, s->term[i].O,
                                 s->rows || i > 0 ? ADD : SET);
    count_add_norm_backward(d, dresid, dnorm, dbias, scratch, s, resid, norm, rstd, N, C);
}

/* ---- a device on which nothing happens ------------------------------------------------------- */

/* Addresses that nobody reads: pages that this process may not touch begin there. */
static void *nowhere(UNUSED size_t bytes) { return (void *)(uintptr_t)4096; }
static void forget(UNUSED void *p) { }
static void drop(UNUSED void *dst, UNUSED const void *host, UNUSED size_t bytes) { }
static void zeros(void *host, UNUSED const void *src, size_t bytes) { memset(host, 0, bytes); }
static void drop_doubles(UNUSED floatX *dst, UNUSED const double *host, UNUSED size_t n) { }
static void zero_doubles(double *host, UNUSED const floatX *src, size_t n) { memset(host, 0, n * sizeof *host); }
static void drop_reals(UNUSED real *dst, UNUSED const double *host, UNUSED size_t n) { }
static void zero_reals(double *host, UNUSED const real *src, size_t n) { memset(host, 0, n * sizeof *host); }
static void nothing(void) { }

static Device counting(const Device *dev) {
    static Fp8Operations fp8;
    Device d = *dev;
    if (dev->fp8) fp8 = *dev->fp8, d.fp8 = &fp8;
    d.alloc = nowhere, d.release = forget, d.sync = nothing;
    d.upload = drop, d.download = zeros;
    d.from_double = drop_doubles, d.to_double = zero_doubles;
    d.reals_from_double = drop_reals, d.reals_to_double = zero_reals;
#define OPERATION(name, ...) d.name = count_##name;
#define COMPOUND OPERATION
#define FP8(name, ...) fp8.name = count_fp8_##name;
#include "kernels/operations.h"
    d.add_norm_backward = count_with_products;
    return d;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void count_units(const Model *m, const Optimizer *o) {
    unit.fx = (double)m->dev->floatX_size, unit.re = (double)m->dev->real_size, unit.by_muon = 0;
    unit.elements = (double)m->manifest.total, unit.gradient_bytes = (double)m->manifest.gradient_bytes;
    for (int i = 0; i < o->muon.shape_count; i++) {
        const MatrixShape *x = &o->muon.shapes[i];
        unit.by_muon += times(x->rows, x->columns) * x->count;
    }
}
/* Of the work since the last call. */
static double counted(void) {
    const double seconds = sum.passes;
    sum.passes = 0;
    return seconds;
}
/* What train_moe does in a step, with one micro-batch that is the first and one that is not. */
static StepCost count_step(Model *m, Optimizer *o, const Work *w) {
    const int kinds = w->micro_batches > 1 ? 2 : 1,
        periods = w->muon.momentum > 0 && w->muon.period > 1 ? w->muon.period : 1;
    const size_t N = (size_t)kinds * (size_t)w->B * (size_t)w->T;
    int *ids = mem_alloc(N * sizeof *ids);
    uint64_t keys[2] = { 0 };
    StepCost cost = { 0 };
    m->batch.micro_batches = kinds;
    model_send(m, ids, ids, NULL, keys, w->B, w->T);
    optimizer_start(o, m);
    counted();
    sum.flop = 0;
    for (int micro = 0; micro < kinds; micro++) {
        const double before = sum.flop;
        model_begin_micro(m, micro);
        model_learn(m, 1);
        model_end_micro(m, micro);
        const int repeated = micro ? w->micro_batches - 1 : 1;
        cost.passes += counted() * repeated;
        cost.flop += (sum.flop - before) * repeated;
    }
    for (int i = 0; i < periods; i++) {
        optimizer_set(o, m, (AdamW){ .lr = 1, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1, .clip = 1 });
        optimizer_update(o, m);
        cost.update += counted() / periods;
    }
    m->rounds = m->fp8 = 0;
    model_forward(m);
    model_loss(m, 0);
    cost.forward = counted();
    free(ids);
    return cost;
}
StepCost cost_of_step(const Config *c, const Device *dev, const Work *w, const Rates *rates) {
    const Device d = counting(dev);
    Model m;
    Optimizer o;
    machine = rates;
    sum = (StepCost){ 0 };
    model_plan_training(&m, &d, c, w->B, w->T, &w->recompute, w->micro_batches > 1 ? 2 : 1, w->gradients, NULL);
    optimizer_plan(&o, &m, w->master, w->moments, w->muon);
    count_units(&m, &o);
    model_allocate(&m);
    m.dropout = w->dropout, m.rounds = w->rounds, m.fp8 = 1;
    const StepCost cost = count_step(&m, &o, w);
    model_free(&m);
    return cost;
}

/* ---- the rates of this machine --------------------------------------------------------------- */

enum { ARRAYS = 5 };
typedef struct {
    const Device *dev;
    const Config *c;
    int N, C, B, T;
    floatX *x[ARRAYS];                  /* of `most` elements, as sums */
    real *sums;
    size_t most;
} Probe;

static void probe_dense(Probe *p) {
    p->dev->matmul_forward(p->x[2], p->x[0], p->x[1], p->N, p->C, p->C);
    p->dev->matmul_backward_input(p->x[3], p->x[2], p->x[1], p->N, p->C, p->C, SET);
    p->dev->matmul_backward_weight(p->sums, p->x[2], p->x[0], p->N, p->C, p->C, SET);
}
static void probe_attention(Probe *p) {
    const Config *c = p->c;
    const int G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    p->dev->attention_forward(p->x[2], p->sums, p->x[0], p->x[1], NULL, HEADS_GROUPED, p->B, p->T, G, Q, D);
    p->dev->attention_backward(p->x[3], p->x[4], p->x[2], p->x[2], p->sums, p->x[0], p->x[1], NULL, HEADS_GROUPED,
                               p->B, p->T, G, Q, D);
}
static void probe_bytes(Probe *p) { p->dev->residual(p->x[2], p->x[0], p->x[1], (Dropout){ 0 }, p->most); }

/* The least of the times that fit into 0.2 s of this process's work, after one that does not count:
 * among so many one is not disturbed by other programs. */
static double least_time(Probe *p, void (*work)(Probe *p)) {
    double least = INFINITY;
    const clock_t worked = clock();
    const double begun = now();
    for (int i = 0; i < 3 || ((double)(clock() - worked) < 0.2 * CLOCKS_PER_SEC && now() - begun < 2); i++) {
        p->dev->sync();
        const double start = now();
        work(p);
        p->dev->sync();
        const double seconds = now() - start;
        if (i && seconds < least) least = seconds;
    }
    return least;
}
/* Numbers like those of a model: a GPU multiplies zeros faster. */
static void fill(const Probe *p, floatX *x) {
    enum { DRAWN = 1 << 14 };
    double *values = mem_alloc(DRAWN * sizeof *values);
    const size_t drawn = p->most < DRAWN ? p->most : DRAWN, size = p->dev->floatX_size;
    for (size_t i = 0; i < drawn; i++) values[i] = random_uniform(1, i) - 0.5;
    p->dev->from_double(x, values, drawn);
    for (size_t done = drawn, more; done < p->most; done += more) {
        more = p->most - done < done ? p->most - done : done;
        p->dev->copy((char *)x + done * size, x, more * size);
    }
    free(values);
}
int rates_measure(const Device *dev, const Config *c, int T, Rates *rates) {
    Probe p = { .dev = dev, .c = c, .N = dev->is_gpu ? 16384 : 1024, .C = dev->is_gpu ? 2048 : c->channels };
    const int longest = dev->is_gpu ? 4096 : 512;           /* more would take long, at the same rate */
    if (p.C > 1024 && !dev->is_gpu) p.C = 1024;
    p.T = T < longest ? T : longest;
    p.B = p.N / p.T;
    const size_t tokens = (size_t)p.B * (size_t)p.T, width = (size_t)c->kv_heads * (size_t)c->head_size;
    const size_t all[] = { (size_t)p.N * (size_t)p.C, (size_t)p.C * (size_t)p.C,
                           tokens * width * (size_t)c->query_heads, 2 * tokens * width };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) if (all[i] > p.most) p.most = all[i];
    char *base = dev->alloc(p.most * (ARRAYS * dev->floatX_size + dev->real_size));
    if (!base) return 0;
    for (int i = 0; i < ARRAYS; i++) p.x[i] = (floatX *)(void *)(base + (size_t)i * p.most * dev->floatX_size);
    p.sums = (real *)(void *)(base + ARRAYS * p.most * dev->floatX_size);
    for (int i = 0; i < ARRAYS; i++) fill(&p, p.x[i]);
    rates->dense = 6 * times(p.N, p.C) * p.C / least_time(&p, probe_dense);
    rates->attention = 14 * pairs(p.B, p.T, c->kv_heads, c->query_heads) * c->head_size
                     / least_time(&p, probe_attention);
    rates->bytes = 3 * (double)(p.most * dev->floatX_size) / least_time(&p, probe_bytes);
    const Rates part = dev->is_gpu ? (Rates){ 1, 0.82, 1.3, 0.82, 1, 1, 8e-6 }
                                    : (Rates){ 0.78, 0.68, 0.15, 1.3, 0.85, 0.4, 2e-5 };
    rates->routed = rates->dense * part.routed, rates->fp8 = rates->dense * part.fp8;
    rates->muon = rates->dense * part.muon, rates->attention *= part.attention, rates->bytes *= part.bytes;
    rates->dense *= part.dense, rates->start = part.start;
    dev->release(base);
    return 1;
}
