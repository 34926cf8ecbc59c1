/* step.c: bench_moe -step m12: where does the time of a training step go, and how near is each part to its limit? And of a
 * layer: bench_moe -step layers.
 *
 * The work is done by a Device that is the given one, but for one thing: each operation that a step uses first notes, from
 * its arguments, how many multiply-adds it does (as flop, two each) and how many bytes it has to move at least, and
 * afterwards marks the moment. On a CPU that is the clock; on a GPU an event in the queue, so that the host can run ahead
 * and nothing waits between operations. The limit of an operation is the longer of flop / peak and the time of a copy that
 * moves as many bytes, which is timed in the same way, both just before. What is in a cache already can beat the latter.
 *
 * All calls of one operation with the same sizes are one line. A line's time is the sum over its calls, of each the
 * median of several steps. */
#include "layers.h"
#include "trainee.h"
#include "kernels/compound.h"
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
    double fx, re;                      /* bytes of a floatX and of a real */
    double parameters, gradients;       /* elements of all tensors, bytes of all gradients */
    double by_adamw, muon_flop;         /* elements that AdamW updates; what Muon multiplies in a step */
    Line   line[MOST_LINES];
    int    lines, call[MOST_CALLS], calls;          /* call: its line */
    double *end;                        /* CPU: when each call ended; [0]: when the first began */
} p;

/* ---- noting ---------------------------------------------------------------------------------------------- */

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

/* An operation as kernels.h declares it, then the names of its arguments, flop and bytes, and a line's sizes. */
#define NOTED(op, parameters, arguments, flop, bytes, ...) \
    static void noted_##op parameters { \
        p.inner->op arguments; \
        note(#op, flop, bytes, __VA_ARGS__); \
        mark(p.calls); \
    }
/* A compound operation. Where it was made of its parts, those have been noted. */
#define NOTED_OR_PARTS(op, parameters, arguments, flop, bytes, ...) \
    static void noted_##op parameters { \
        const int before = p.calls; \
        p.inner->op arguments; \
        if (p.calls > before) return; \
        note(#op, flop, bytes, __VA_ARGS__); \
        mark(p.calls); \
    }

static const char *const rows_name[] = { "token", "slot", "grouped" };
static double rows_in(const Plan *plan, Rows rows) { return (double)plan->N * (rows == BY_TOKEN ? 1 : plan->K); }
static double slots(const Plan *plan) { return (double)plan->N * plan->K; }
static double times(double a, double b) { return a * b; }
static double pre_of(Activation f) { return f == SWIGLU ? 2 : 1; }
static double fewer(double a, double b) { return a < b ? a : b; }

/* ---- the operations of a step, in the order of kernels.h -------------------------------------------------- */

NOTED(copy, (void *dst, const void *src, size_t bytes), (dst, src, bytes), 0, 2 * (double)bytes, "%zu bytes", bytes)
NOTED(zero, (void *dst, size_t bytes), (dst, bytes), 0, (double)bytes, "%zu bytes", bytes)
NOTED(embed_forward, (floatX *out, const int *token, const floatX *weight, int N, int C), (out, token, weight, N, C),
      0, N * (4 + 2 * C * p.fx), "N=%d C=%d", N, C)
NOTED(embed_backward, (real *dweight, const floatX *dout, const int *token, int N, int V, int C),
      (dweight, dout, token, N, V, C), 0, N * (4 + C * p.fx) + 2 * fewer(N, V) * C * p.re, "N=%d C=%d", N, C)
NOTED(rmsnorm_forward, (floatX *out, real *rstd, const floatX *inp, Norm norm, int N, int C), (out, rstd, inp, norm, N, C), 0, N * (2 * C * p.fx + p.re), "N=%d C=%d", N, C)
NOTED(rmsnorm_backward, (floatX *dinp, real *dweight, const floatX *dout, const floatX *inp, Norm norm,
                         const real *rstd, int N, int C), (dinp, dweight, dout, inp, norm, rstd, N, C),
      0, N * (4 * C * p.fx + p.re), "N=%d C=%d", N, C)
NOTED(rope, (floatX *x, const real *table, const int *position, int direction, int N, int stride, int heads, int D),
      (x, table, position, direction, N, stride, heads, D), 0, N * (4 + 2 * times(heads, D) * p.fx),
      "N=%d heads=%d D=%d", N, heads, D)
NOTED(residual, (floatX *out, const floatX *residual, const floatX *branch, Dropout d, size_t n),
      (out, residual, branch, d, n), 0, 3 * (double)n * p.fx, "n=%zu", n)
NOTED(dropout, (floatX *out, const floatX *inp, Dropout d, size_t n), (out, inp, d, n), 0, 2 * (double)n * p.fx, "n=%zu", n)
#define PRODUCT(N, C, O) (times(N, C) + times(N, O) + times(C, O))
NOTED(matmul_forward, (floatX *out, const floatX *inp, const floatX *weight, int N, int C, int O),
      (out, inp, weight, N, C, O), 2 * times(N, C) * O, PRODUCT(N, C, O) * p.fx, "N=%d C=%d O=%d", N, C, O)
NOTED(matmul_backward_input, (floatX *dinp, const floatX *dout, const floatX *weight, int N, int C, int O, Write how),
      (dinp, dout, weight, N, C, O, how), 2 * times(N, C) * O, (PRODUCT(N, C, O) + (how == ADD) * times(N, C)) * p.fx,
      "N=%d C=%d O=%d%s", N, C, O, how == ADD ? " ADD" : "")
/* Bytes and name of what is done to a gradient. */
static double writes(Write how) { return how == SET_ROUNDED ? p.fx : how == ADD ? 2 * p.re : p.re; }
static const char *const how_name[] = { "", " ADD", " as floatX" };
NOTED(matmul_backward_weight, (void *dweight, const floatX *dout, const floatX *inp, int N, int C, int O, Write how),
      (dweight, dout, inp, N, C, O, how), 2 * times(N, C) * O,
      times(N, C + O) * p.fx + times(C, O) * writes(how), "N=%d C=%d O=%d%s", N, C, O, how_name[how])
NOTED(parallel_linear_forward, (floatX *out, const floatX *inp, const floatX *weight, const Plan *plan,
                                int C, int O, Rows inp_rows, Rows out_rows),
      (out, inp, weight, plan, C, O, inp_rows, out_rows), 2 * slots(plan) * C * O,
      (rows_in(plan, inp_rows) * C + slots(plan) * O + times(C, O) * plan->E) * p.fx,
      "S=%d E=%d C=%d O=%d %s>%s", plan->N * plan->K, plan->E, C, O, rows_name[inp_rows], rows_name[out_rows])
NOTED(parallel_linear_backward_input, (floatX *dinp, const floatX *dout, const floatX *weight, const Plan *plan,
                                       int C, int O, Rows dinp_rows, Rows dout_rows),
      (dinp, dout, weight, plan, C, O, dinp_rows, dout_rows), 2 * slots(plan) * C * O,
      (rows_in(plan, dout_rows) * O + slots(plan) * C + times(C, O) * plan->E) * p.fx,
      "S=%d E=%d C=%d O=%d %s<%s", plan->N * plan->K, plan->E, C, O, rows_name[dinp_rows], rows_name[dout_rows])
NOTED(parallel_linear_backward_weight, (void *dweight, const floatX *dout, const floatX *inp,
                                        const Plan *plan, int C, int O, Rows inp_rows, Rows dout_rows, Write how),
      (dweight, dout, inp, plan, C, O, inp_rows, dout_rows, how), 2 * slots(plan) * C * O,
      (rows_in(plan, inp_rows) * C + rows_in(plan, dout_rows) * O) * p.fx
          + times(C, O) * plan->E * writes(how),
      "S=%d E=%d C=%d O=%d %s,%s%s", plan->N * plan->K, plan->E, C, O, rows_name[inp_rows], rows_name[dout_rows],
      how_name[how])
NOTED_OR_PARTS(expert_up_forward, (const Device *d, floatX *pre, floatX *act, const floatX *inp, const floatX *weight,
                                   const Plan *plan, Activation f, int C, int F, Rows inp_rows),
      (d, pre, act, inp, weight, plan, f, C, F, inp_rows), 2 * slots(plan) * C * F * pre_of(f),
      (rows_in(plan, inp_rows) * C + slots(plan) * F * (1 + pre_of(f)) + times(C, F) * pre_of(f) * plan->E) * p.fx,
      "S=%d E=%d C=%d F=%d %s", plan->N * plan->K, plan->E, C, F, rows_name[inp_rows])
NOTED_OR_PARTS(expert_down_backward, (const Device *d, floatX *dpre, floatX *wact, real *dweight, floatX *da,
                                      const floatX *dout, const floatX *down, const floatX *pre, const real *weight,
                                      const Plan *plan, Activation f, int C, int F, Rows dout_rows),
      (d, dpre, wact, dweight, da, dout, down, pre, weight, plan, f, C, F, dout_rows), 2 * slots(plan) * C * F,
      (rows_in(plan, dout_rows) * C + slots(plan) * F * (1 + 2 * pre_of(f)) + times(C, F) * plan->E) * p.fx
          + 2 * slots(plan) * p.re, "S=%d E=%d C=%d F=%d %s", plan->N * plan->K, plan->E, C, F, rows_name[dout_rows])
NOTED(router_forward, (int *expert, real *weight, real *lse, const floatX *logits, const real *bias, Scores scores,
                       int forced, int N, int E, int K), (expert, weight, lse, logits, bias, scores, forced, N, E, K),
      0, N * (E * p.fx + K * (4 + p.re) + p.re), "N=%d E=%d K=%d", N, E, K)
NOTED(router_backward, (floatX *dlogits, const real *dweight, const real *weight, const real *lse, const int *expert,
                        const int *first, const floatX *logits, const int *load, float balance, float zloss, int tokens,
                        Scores scores, int N, int E, int K),
      (dlogits, dweight, weight, lse, expert, first, logits, load, balance, zloss, tokens, scores, N, E, K),
      0, N * (2 * E * p.fx + K * (4 + 2 * p.re) + p.re), "N=%d E=%d K=%d", N, E, K)
NOTED(route_plan, (Plan *plan, int *load, const int *expert), (plan, load, expert), 0, 4 * 4 * slots(plan),
      "S=%d E=%d", plan->N * plan->K, plan->E)
NOTED(route_round, (Plan *plan, int *load, int *expert, real *weight, const int *choice, const floatX *logits, const real *lse,
                    Scores scores, Rounding rule, int tile, const uint64_t *key, int site),
      (plan, load, expert, weight, choice, logits, lse, scores, rule, tile, key, site),
      0, plan->N * (plan->E * p.fx + p.re + 4) + slots(plan) * (5 * 4 + p.re), "S=%d E=%d", plan->N * plan->K, plan->E)
NOTED(router_losses, (real *loss, const floatX *logits, const real *lse, const int *load, int tokens, Scores scores,
                      int N, int E, int K), (loss, logits, lse, load, tokens, scores, N, E, K),
      0, N * (E * p.fx + p.re), "N=%d E=%d", N, E)
NOTED(router_bias, (real *bias, const int *load, float rate, int E), (bias, load, rate, E),
      0, E * (4 + 2 * p.re), "E=%d", E)
NOTED(combine_forward, (floatX *out, const floatX *inp, const real *weight, const floatX *bias, const Plan *plan,
                        int C, Rows rows), (out, inp, weight, bias, plan, C, rows),
      0, (slots(plan) + plan->N) * C * p.fx + slots(plan) * ((weight ? p.re : 0) + (rows == GROUPED ? 4 : 0)),
      "S=%d C=%d %s%s", plan->N * plan->K, C, rows_name[rows], weight ? " weight" : "")
NOTED(activation_forward, (floatX *act, const floatX *pre, Activation f, int M, int F), (act, pre, f, M, F),
      0, times(M, F) * (1 + pre_of(f)) * p.fx, "M=%d F=%d", M, F)
NOTED(activation_backward, (floatX *dpre, floatX *wact, real *dweight, const floatX *da, const floatX *pre,
                            const real *weight, const Plan *plan, Rows rows, Activation f, int M, int F),
      (dpre, wact, dweight, da, pre, weight, plan, rows, f, M, F),
      0, times(M, F) * (2 + 2 * pre_of(f)) * p.fx + (weight ? 2 * M * p.re : 0), "M=%d F=%d", M, F)
NOTED_OR_PARTS(add_norm_forward, (const Device *d, floatX *out, real *rstd, floatX *resid, const floatX *residual, const Sum *s,
                                  Dropout dropout, Norm norm, int N, int C),
      (d, out, rstd, resid, residual, s, dropout, norm, N, C),
      0, times(N, C) * ((s->plan ? s->plan->K : 1) + 3) * p.fx + (s->plan ? slots(s->plan) * (4 + p.re) : 0) + N * p.re,
      "N=%d K=%d C=%d", N, s->plan ? s->plan->K : 1, C)
/* Its products are operations of their own. */
NOTED(add_norm_backward, (const Device *d, floatX *dresid, real *dnorm, real *dbias, floatX *const scratch[2], const Sum *s,
                          const floatX *resid, Norm norm, const real *rstd, int N, int C),
      (d, dresid, dnorm, dbias, scratch, s, resid, norm, rstd, N, C),
      0, times(N, C) * ((s->plan ? s->plan->K : s->rows != NULL) + s->terms + 3) * p.fx
          + (s->plan ? 4 * slots(s->plan) : 0) + N * p.re,
      "N=%d K=%d+%d C=%d%s", N, s->plan ? s->plan->K : s->rows != NULL, s->terms, C, dbias ? " bias" : "")
NOTED(bias_backward, (real *dbias, const floatX *dout, int N, int C), (dbias, dout, N, C), 0, times(N, C) * p.fx,
      "N=%d C=%d", N, C)
#define PAIRS (times(B, Q) * G * T * (T + 1.0) / 2)             /* (query, key) that see each other */
#define HEADS (times(B, T) * G * D)                             /* elements of the keys; Q times as many of the queries */
NOTED(attention_forward, (floatX *out, real *lse, const floatX *q, const floatX *kv, HeadOrder order,
                          int B, int T, int G, int Q, int D), (out, lse, q, kv, order, B, T, G, Q, D),
      4 * PAIRS * D, HEADS * (2 * Q + 2) * p.fx, "B=%d T=%d G=%d Q=%d D=%d", B, T, G, Q, D)
NOTED(attention_backward, (floatX *dq, floatX *dkv, const floatX *dout, const floatX *out, const real *lse,
                           const floatX *q, const floatX *kv, HeadOrder order, int B, int T, int G, int Q, int D),
      (dq, dkv, dout, out, lse, q, kv, order, B, T, G, Q, D),
      10 * PAIRS * D, HEADS * (4 * Q + 4) * p.fx, "B=%d T=%d G=%d Q=%d D=%d", B, T, G, Q, D)
NOTED(cross_entropy, (real *loss, floatX *logits, const int *target, float scale, int gradient, int N, int V, int used),
      (loss, logits, target, scale, gradient, N, V, used), 0, times(N, V) * (gradient ? 2 : 1) * p.fx, "N=%d V=%d", N, V)
NOTED(sum, (real *out, const real *inp, size_t n), (out, inp, n), 0, (double)n * p.re, "n=%zu", n)
NOTED(grad_sq_norms, (real *out, const void *grads, const Segment *segments, int count), (out, grads, segments, count),
      0, p.gradients, "n=%.0f", p.parameters)
NOTED(adamw, (floatX *weight, real *master, void *m, void *v, Dtype moments, const void *grads, const real *grad_sq_norms,
              const Segment *segments, int count, const AdamW *a),
      (weight, master, m, v, moments, grads, grad_sq_norms, segments, count, a),
      0, p.by_adamw * (p.gradients / p.parameters + (master ? p.fx + 2 * p.re : 2 * p.fx) + 4 * (moments == REAL ? p.re : p.fx)),
      "n=%.0f", p.by_adamw)
static double muon_flop(int count, int rows, int columns) {
    const double k = rows < columns ? rows : columns, n = rows < columns ? columns : rows;
    return MUON_STEPS * count * (4 * k * k * n + 2 * k * k * k);
}
NOTED(muon_momentum, (floatX *x, void *m, Dtype moments, const void *grads, const real *grad_sq_norm, const Segment *parts, int count,
                      size_t most, const Muon *a), (x, m, moments, grads, grad_sq_norm, parts, count, most, a),
      0, times(count, (int)most) * (p.gradients / p.parameters + p.fx + 2 * (moments == REAL ? p.re : p.fx)), "%d of %zu", count, most)
/* Its parts are not noted: it calls those of the inner device. */
NOTED(orthogonalize, (const Device *d, const MuonBuffers *b, int count, int rows, int columns),
      (((void)d, p.inner), b, count, rows, columns), muon_flop(count, rows, columns), 2 * times(count * rows, columns) * p.fx,
      "%d of %dx%d", count, rows, columns)
NOTED(muon_update, (floatX *weight, real *master, const floatX *out, const real *grad_sq_norm, const Segment *parts, int count, int rows,
                    int columns, const Muon *a), (weight, master, out, grad_sq_norm, parts, count, rows, columns, a),
      0, times(count * rows, columns) * (p.fx + (master ? p.fx + 2 * p.re : 2 * p.fx)), "%d of %dx%d", count, rows, columns)

/* ---- any work ------------------------------------------------------------------------------------------------ */

static Device noting(const Device *dev) {
    Device d = *dev;
#define NOTE(op) d.op = noted_##op
    NOTE(copy); NOTE(zero); NOTE(embed_forward); NOTE(embed_backward); NOTE(rmsnorm_forward); NOTE(rmsnorm_backward);
    NOTE(rope); NOTE(residual); NOTE(dropout); NOTE(matmul_forward); NOTE(matmul_backward_input);
    NOTE(matmul_backward_weight); NOTE(parallel_linear_forward); NOTE(parallel_linear_backward_input);
    NOTE(parallel_linear_backward_weight); NOTE(router_forward); NOTE(router_backward); NOTE(route_plan); NOTE(route_round);
    NOTE(router_losses); NOTE(router_bias); NOTE(combine_forward); NOTE(activation_forward);
    NOTE(activation_backward); NOTE(bias_backward); NOTE(attention_forward); NOTE(attention_backward);
    NOTE(add_norm_forward);
    if (dev->add_norm_backward != compound_add_norm_backward) NOTE(add_norm_backward);
    NOTE(expert_up_forward);
    NOTE(expert_down_backward);
    NOTE(cross_entropy); NOTE(sum); NOTE(grad_sq_norms); NOTE(adamw); NOTE(muon_momentum);
    NOTE(orthogonalize); NOTE(muon_update);
    return d;
}

double copy_seconds(const Copies *c, double bytes) {
    double size = COPY_LEAST;
    int i = 0;
    while (i < COPY_SIZES - 2 && bytes > 2 * size) i++, size *= 2;
    if (bytes <= size) return c->seconds[i];                    /* no copy is faster than the smallest */
    if (bytes >= 2 * size) return c->seconds[i + 1] * bytes / (2 * size);
    return c->seconds[i] + (c->seconds[i + 1] - c->seconds[i]) * (bytes / size - 1);
}

/* Keeps a GPU busy until the host is ahead, so that no operation waits to be started. */
static void get_ahead(const Listed *l, const Copies *copies) {
    const double seconds = 30e-3, bytes = (double)l->spare_bytes;
    for (double done = 0; p.inner->is_gpu && done < seconds; done += copy_seconds(copies, bytes))
        p.inner->zero(l->spare, l->spare_bytes);
}

double time_operations(const Device *dev, const Listed *l, const Copies *copies) {
    const Device noted = noting(dev);
    double whole[RUNS], *took = NULL;
    p.inner = dev, p.fx = (double)dev->floatX_size, p.re = (double)dev->real_size, p.lines = 0;
    p.end = mem_alloc(MOST_CALLS * sizeof *p.end);
    for (int run = -2; run < 2 * RUNS; run++) {             /* two to warm up, then as usual and noted by turns */
        const int noting_now = run >= 0 && run % 2;
        if (l->before) l->before(l->work, run);
        dev->sync();
        if (noting_now) get_ahead(l, copies);
        p.calls = 0;
        const double start = now();
        if (noting_now) mark(0);
        l->run(l->work, noting_now ? &noted : dev);
        dev->sync();
        if (run >= 0 && !noting_now) whole[run / 2] = now() - start;
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
    return median(whole, RUNS);
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

/* ---- a step ------------------------------------------------------------------------------------------------ */

/* What train_moe does between reading a batch and reading the loss. */
static void step(void *trainee, const Device *dev) {
    Trainee *t = trainee;
    t->m.dev = dev;
    model_begin_micro(&t->m, 0);
    trainee_learn(&t->m);
    model_end_micro(&t->m, 0);
    optimizer_update(&t->o, &t->m);
}
static void send(void *trainee, int run) {
    trainee_send(trainee, run);
}

void bench_step(const Device *dev, const char *descriptor, Lesson l, double product_rate, const Copies *copies) {
    static Trainee t;
    Model *const m = &t.m;
    Config c;
    Error e;
    const int B = l.B, T = l.T, N = B * T;
    if (!config_parse(&c, descriptor, &e)) fail(EXIT_USAGE, "%s", e.text);
    c.vocab = 50304;
    c.context = T;
    if (!config_check(&c, &e)) fail(EXIT_USAGE, "%s: %s", descriptor, e.text);
    if (!trainee_open(&t, dev, &c, l))
        fail(EXIT_MEMORY, "a step of %s with %d x %d tokens takes %.1f GB, more than %s has; -r, -mw 0 and -mo bf16 save some",
             descriptor, B, T, (double)t.m.arena.total / 1e9, dev->name);
    p.parameters = (double)m->manifest.total, p.gradients = (double)m->manifest.gradient_bytes;
    p.by_adamw = p.parameters, p.muon_flop = 0;
    for (int i = 0; i < t.o.muon.shape_count; i++) {
        const MatrixShape s = t.o.muon.shapes[i];
        p.by_adamw -= (double)s.count * s.rows * s.columns, p.muon_flop += muon_flop(s.count, s.rows, s.columns);
    }
    const Listed steps = { .work = &t, .run = step, .before = send, .spare = m->grads,
                           .spare_bytes = m->manifest.gradient_bytes };
    const double usual = time_operations(dev, &steps, copies);
    m->dev = dev;                                               /* and not the one that notes, which is gone */
    printf("\na training step of %s on %s, %d x %d tokens, V=%d, %.1f M parameters, %.1f GB: %.3f ms, %.0f tokens/s\n",
           descriptor, dev->name, B, T, c.vocab, p.parameters / 1e6, (double)m->arena.total / 1e9, 1e3 * usual, N / usual);
    const double counted = print_operations(product_rate, copies), formula = config_flops(&c, T) * N + p.muon_flop;
    if (!(fabs(counted / formula - 1) <= 0.02 + 1.0 / T))       /* 1/T: the diagonal */
        warn("counted %.2f GFLOP, but this model should take %.2f", counted / 1e9, formula / 1e9);
    trainee_close(&t);
}
