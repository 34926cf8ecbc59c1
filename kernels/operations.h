/* operations.h: what each operation computes and moves, as one list for all that visit operations:
 * llmc/model/cost.c, for the time of a step that is planned;
 * cases.c, for the limits that bench_moe compares times with, and bench/step.c, which times the
 * calls of a training step. An entry:
 *
 *   OPERATION(name, (parameters), (arguments), flop, bytes, "sizes", ...)
 *
 * parameters: as kernels.h declares them; arguments: their names. flop: multiply-adds times two; 0:
 * memory is the limit.
 * bytes: what has to be read and written at least. sizes: a printf format and its values. COMPOUND
 * instead of OPERATION: a device may compose it of others (kernels/compound.c). FP8: likewise, of
 * the table Device.fp8.
 *
 * The file is included once per use, with these macros defined; it undefines them. The file that
 * includes it also defines `unit` and the two functions below. */
#ifndef OPERATIONS_H
#define OPERATIONS_H
#include "kernels/kernels.h"

static struct {
    double fx, re;                                          /* bytes of a floatX and of a real */
    double elements, gradient_bytes;                        /* of the segments that the optimizer's operations get */
    double by_muon;                                         /* elements of those that are empty for adamw */
} unit;
static double distinct(double N, double V);                 /* how many different ids there are among N tokens */
static double visible(int B, int T);                        /* cached positions that B queries see */

static const char *const rows_name[] = { "token", "slot", "grouped" }, *const how_name[] = { "", " ADD", " as floatX" };
static inline double times(double a, double b) { return a * b; }
static inline double slots(const Plan *plan) { return times(plan->N, plan->K); }
static inline double rows_in(const Plan *plan, Rows rows) { return rows == BY_TOKEN ? plan->N : slots(plan); }
static inline double width_of(Activation f) { return IS_GATED(f) ? 2 : 1; }             /* of pre, in F */
static inline double writes(Write how) { return how == SET_ROUNDED ? unit.fx : how == ADD ? 2 * unit.re : unit.re; }
static inline double momentum_bytes(Momentum m) {           /* of an element */
    return m.dtype == REAL ? unit.re : m.dtype == INT8 ? 1 + unit.fx / MOMENT_BLOCK : unit.fx;
}
static inline double product(double N, double C, double O) { return N*C + N*O + C*O; }  /* elements of three matrices */
static inline double coded(double N, double C) { return N * C * (1 + unit.re / FP8_BLOCK); }  /* bytes of rows as Fp8 */
static inline double coded_weight(double O, double C) { return O * C * (1 + unit.re / FP8_BLOCK / FP8_BLOCK); }
/* (query, key), visible */
static inline double pairs(int B, int T, int G, int Q) { return times(B, Q) * G * T * (T + 1.0) / 2; }
/* elements; the queries have Q times as many */
static inline double keys(int B, int T, int G, int D) { return times(B, T) * G * D; }
#endif

/* memory */
OPERATION(copy, (void *dst, const void *src, size_t bytes), (dst, src, bytes), 0, 2 * (double)bytes, "%zu bytes", bytes)
OPERATION(zero, (void *dst, size_t bytes), (dst, bytes), 0, (double)bytes, "%zu bytes", bytes)

/* embedding */
OPERATION(embed_forward, (floatX *out, const int *token, const floatX *weight, int N, int C),
    (out, token, weight, N, C), 0, N * (4 + 2 * C * unit.fx), "N=%d C=%d", N, C)
OPERATION(embed_backward, (real *dweight, const floatX *dout, const int *token, int N, int V, int C),
    (dweight, dout, token, N, V, C), 0, N * (4 + C * unit.fx) + 2 * distinct(N, V) * C * unit.re, "N=%d C=%d", N, C)

/* rmsnorm, rope, residual and dropout */
OPERATION(rmsnorm_forward, (floatX *out, real *rstd, const floatX *inp, Norm norm, int N, int C),
    (out, rstd, inp, norm, N, C), 0, N * (2 * C * unit.fx + unit.re), "N=%d C=%d", N, C)
OPERATION(rmsnorm_backward,
    (floatX *dinp, real *dweight, const floatX *dout, const floatX *inp, Norm norm, const real *rstd, int N, int C),
    (dinp, dweight, dout, inp, norm, rstd, N, C), 0, N * (4 * C * unit.fx + unit.re), "N=%d C=%d", N, C)
OPERATION(rope, (floatX *x, const real *table, const int *position, int direction, int N, int stride, int heads, int D),
    (x, table, position, direction, N, stride, heads, D), 0, N * (4 + 2 * times(heads, D) * unit.fx),
    "N=%d heads=%d D=%d", N, heads, D)
OPERATION(norm_rope_forward, (floatX *x, floatX *before, const real *table, const int *position, Norm norm, int N,
    int stride, int heads, int D), (x, before, table, position, norm, N, stride, heads, D), 0,
    N * (4 + (before ? 3 : 2) * times(heads, D) * unit.fx), "N=%d heads=%d D=%d", N, heads, D)
OPERATION(norm_rope_backward, (floatX *dx, real *dweight, const floatX *before, const real *table, const int *position,
    Norm norm, int N, int stride, int heads, int D), (dx, dweight, before, table, position, norm, N, stride, heads, D),
    0, N * (4 + 3 * times(heads, D) * unit.fx), "N=%d heads=%d D=%d", N, heads, D)
OPERATION(columns_add, (floatX *x, const floatX *part, int N, int stride, int from, int width),
    (x, part, N, stride, from, width), 0, 3 * times(N, width) * unit.fx, "N=%d width=%d", N, width)
OPERATION(columns_put, (floatX *x, const floatX *part, int N, int stride, int from, int width),
    (x, part, N, stride, from, width), 0, 2 * times(N, width) * unit.fx, "N=%d width=%d", N, width)
OPERATION(columns_take, (floatX *part, const floatX *x, int N, int stride, int from, int width),
    (part, x, N, stride, from, width), 0, 2 * times(N, width) * unit.fx, "N=%d width=%d", N, width)
OPERATION(value_forward, (floatX *kv, const floatX *gate, const int *token, const floatX *table, int N, int G, int D),
    (kv, gate, token, table, N, G, D), 0, 3 * keys(N, 1, G, D) * unit.fx, "N=%d G=%d D=%d%s", N, G, D,
    gate ? " gate" : "")
OPERATION(value_backward, (floatX *dvalues, floatX *dgate, const floatX *dkv, const floatX *gate, const int *token,
    const floatX *table, int N, int G, int D), (dvalues, dgate, dkv, gate, token, table, N, G, D), 0,
    3 * keys(N, 1, G, D) * unit.fx, "N=%d G=%d D=%d", N, G, D)
OPERATION(mix_forward, (floatX *x, Mix mix, int N, int C), (x, mix, N, C), 0,
    times(N, C) * (2 + (mix.first != NULL) + (mix.extra != NULL)) * unit.fx, "N=%d C=%d", N, C)
OPERATION(mix_backward, (floatX *d, floatX *dfirst, floatX *dextra, real *dscalars, const floatX *out, Mix mix, int N,
    int C), (d, dfirst, dextra, dscalars, out, mix, N, C), 0,
    times(N, C) * (1 + (mix.first ? 5 : 0) + (mix.extra ? 3 : 0)) * unit.fx, "N=%d C=%d", N, C)
OPERATION(bigram_rows, (int *row, int *before, int *seen, const int *token, const int *position, const int *at, int N,
    int T, int rows), (row, before, seen, token, position, at, N, T, rows), 0, 16.0 * N, "N=%d", N)
OPERATION(flip_signs, (floatX *x, const int *token, const int *before, int N, int C), (x, token, before, N, C), 0,
    N * (8 + 2 * C * unit.fx), "N=%d C=%d", N, C)
OPERATION(shift_keys, (floatX *kv, const floatX *own, const floatX *before, const int *position, int N, int G, int D),
    (kv, own, before, position, N, G, D), 0, N * (4 + (before ? 1 : 1.5) * times(G, D) * unit.fx), "N=%d G=%d D=%d%s",
    N, G, D, before ? "" : " backward")
OPERATION(shared_keys_forward, (floatX *kv, const floatX *parts, const floatX *shared, int N, int G, int D, int key,
    int value), (kv, parts, shared, N, G, D, key, value), 0,
    N * times(G, 2 * D + key + value) * unit.fx + times(N, D - key) * unit.fx, "N=%d G=%d D=%d", N, G, D)
OPERATION(shared_keys_backward, (floatX *dparts, floatX *dshared, const floatX *dkv, int N, int G, int D, int key,
    int value), (dparts, dshared, dkv, N, G, D, key, value), 0,
    N * times(G, D + key + 2 * value) * unit.fx + times(N, D - key) * unit.fx, "N=%d G=%d D=%d", N, G, D)
OPERATION(residual, (floatX *out, const floatX *residual, const floatX *branch, Dropout d, size_t n),
    (out, residual, branch, d, n), 0, 3 * (double)n * unit.fx, "n=%zu", n)
OPERATION(dropout, (floatX *out, const floatX *inp, Dropout d, size_t n), (out, inp, d, n), 0, 2 * (double)n * unit.fx,
    "n=%zu", n)
OPERATION(scale, (floatX *x, double factor, size_t n), (x, factor, n), 0, 2 * (double)n * unit.fx, "n=%zu", n)

/* matmul */
OPERATION(matmul_forward, (floatX *out, const floatX *inp, const floatX *weight, int N, int C, int O),
    (out, inp, weight, N, C, O), 2 * times(N, C) * O, product(N, C, O) * unit.fx, "N=%d C=%d O=%d", N, C, O)
OPERATION(matmul_backward_input, (floatX *dinp, const floatX *dout, const floatX *weight, int N, int C, int O,
    Write how), (dinp, dout, weight, N, C, O, how), 2 * times(N, C) * O,
    (product(N, C, O) + (how == ADD) * times(N, C)) * unit.fx, "N=%d C=%d O=%d%s", N, C, O, how_name[how])
OPERATION(matmul_backward_weight, (void *dweight, const floatX *dout, const floatX *inp, int N, int C, int O,
    Write how), (dweight, dout, inp, N, C, O, how), 2 * times(N, C) * O,
    times(N, C + O) * unit.fx + times(C, O) * writes(how), "N=%d C=%d O=%d%s", N, C, O, how_name[how])

/* ParallelLinear */
OPERATION(parallel_linear_forward, (floatX *out, const floatX *inp, const floatX *weight, const Plan *plan, int C,
    int O, Rows inp_rows, Rows out_rows), (out, inp, weight, plan, C, O, inp_rows, out_rows), 2 * slots(plan) * C * O,
    (rows_in(plan, inp_rows) * C + slots(plan) * O + times(C, O) * plan->E) * unit.fx, "S=%d E=%d C=%d O=%d %s>%s",
    plan->N * plan->K, plan->E, C, O, rows_name[inp_rows], rows_name[out_rows])
OPERATION(parallel_linear_backward_input, (floatX *dinp, const floatX *dout, const floatX *weight, const Plan *plan,
    int C, int O, Rows dinp_rows, Rows dout_rows), (dinp, dout, weight, plan, C, O, dinp_rows, dout_rows),
    2 * slots(plan) * C * O, (rows_in(plan, dout_rows) * O + slots(plan) * C + times(C, O) * plan->E) * unit.fx,
    "S=%d E=%d C=%d O=%d %s<%s", plan->N * plan->K, plan->E, C, O, rows_name[dinp_rows], rows_name[dout_rows])
OPERATION(parallel_linear_backward_weight,
    (void *dweight, const floatX *dout, const floatX *inp, const Plan *plan, int C, int O, Rows inp_rows,
     Rows dout_rows, Write how), (dweight, dout, inp, plan, C, O, inp_rows, dout_rows, how), 2 * slots(plan) * C * O,
    (rows_in(plan, inp_rows) * C + rows_in(plan, dout_rows) * O) * unit.fx + times(C, O) * plan->E * writes(how),
    "S=%d E=%d C=%d O=%d %s,%s%s", plan->N * plan->K, plan->E, C, O, rows_name[inp_rows], rows_name[dout_rows],
    how_name[how])

/* router */
OPERATION(router_forward, (int *expert, real *weight, real *lse, const floatX *logits, const real *bias, Scores scores,
    Groups groups, int forced, int N, int E, int K), (expert, weight, lse, logits, bias, scores, groups, forced, N, E,
    K), 0, N * (E * unit.fx + K * (4 + unit.re) + unit.re), "N=%d E=%d K=%d", N, E, K)
OPERATION(router_losses,
    (real *loss, const floatX *logits, const real *lse, const int *load, Counted counted, Scores scores, int N, int E,
     int K), (loss, logits, lse, load, counted, scores, N, E, K), 0, N * (E * unit.fx + unit.re), "N=%d E=%d", N, E)
OPERATION(router_backward, (floatX *dlogits, const real *dweight, const real *weight, const real *lse,
    const int *expert, const int *first, const floatX *logits, const int *load, float balance, float zloss,
    Counted counted, Scores scores, int N, int E, int K), (dlogits, dweight, weight, lse, expert, first, logits, load,
    balance, zloss, counted, scores, N, E, K), 0, N * (2 * E * unit.fx + K * (4 + 2 * unit.re) + unit.re),
    "N=%d E=%d K=%d", N, E, K)
OPERATION(scale_weights, (real *out, const real *weight, float scale, size_t n), (out, weight, scale, n), 0,
    2.0 * (double)n * unit.re, "n=%zu", n)
OPERATION(route_plan, (Plan *plan, int *load, const int *expert), (plan, load, expert), 0, 4 * 4 * slots(plan),
    "S=%d E=%d", plan->N * plan->K, plan->E)
OPERATION(route_discount, (int *load, const int *choice, const int *target, int N, int K), (load, choice, target, N,
    K), 0, 4.0 * N * (1 + K), "N=%d K=%d", N, K)
OPERATION(route_round, (Plan *plan, int *load, int *expert, real *weight, const int *choice, const floatX *logits,
    const real *lse, Scores scores, int tile), (plan, load, expert, weight, choice, logits, lse, scores, tile), 0,
    plan->N * (plan->E * unit.fx + unit.re + 4) + slots(plan) * (5 * 4 + unit.re), "S=%d E=%d", plan->N * plan->K,
    plan->E)
OPERATION(router_bias, (real *bias, const int *load, float rate, int relative, int E), (bias, load, rate, relative, E),
    0, E * (4 + 2 * unit.re), "E=%d", E)
OPERATION(combine_forward, (floatX *out, const floatX *inp, const real *weight, const floatX *bias, const Plan *plan,
    int C, Rows rows), (out, inp, weight, bias, plan, C, rows), 0,
    (slots(plan) + plan->N) * C * unit.fx + slots(plan) * ((weight ? unit.re : 0) + (rows == GROUPED ? 4 : 0)),
    "S=%d C=%d %s%s", plan->N * plan->K, C, rows_name[rows], weight ? " weight" : "")

/* experts */
OPERATION(activation_forward, (floatX *act, const floatX *pre, Activation f, int M, int F), (act, pre, f, M, F), 0,
    times(M, F) * (1 + width_of(f)) * unit.fx, "M=%d F=%d", M, F)
OPERATION(activation_backward, (floatX *dpre, floatX *wact, real *dweight, const floatX *da, const floatX *pre,
    const real *weight, const Plan *plan, Rows rows, Activation f, int M, int F), (dpre, wact, dweight, da, pre, weight,
    plan, rows, f, M, F), 0, times(M, F) * (2 + 2 * width_of(f)) * unit.fx + (weight ? 2 * M * unit.re : 0),
    "M=%d F=%d", M, F)
COMPOUND(expert_up_forward, (const Device *d, floatX *pre, floatX *act, const floatX *inp, const floatX *weight,
    const Plan *plan, Activation f, int C, int F, Rows inp_rows), (d, pre, act, inp, weight, plan, f, C, F, inp_rows),
    2 * slots(plan) * C * F * width_of(f),
    (rows_in(plan, inp_rows) * C + slots(plan) * F * (1 + width_of(f)) + times(C, F) * width_of(f) * plan->E) * unit.fx,
    "S=%d E=%d C=%d F=%d %s", plan->N * plan->K, plan->E, C, F, rows_name[inp_rows])
COMPOUND(expert_down_backward,
    (const Device *d, floatX *dpre, floatX *wact, real *dweight, floatX *da, const floatX *dout, const floatX *down,
     const floatX *pre, const real *weight, const Plan *plan, Activation f, int C, int F, Rows dout_rows),
    (d, dpre, wact, dweight, da, dout, down, pre, weight, plan, f, C, F, dout_rows), 2 * slots(plan) * C * F,
    (rows_in(plan, dout_rows) * C + slots(plan) * F * (1 + 2 * width_of(f)) + times(C, F) * plan->E) * unit.fx
     + 2 * slots(plan) * unit.re, "S=%d E=%d C=%d F=%d %s", plan->N * plan->K, plan->E, C, F, rows_name[dout_rows])
/* weights in codes */
OPERATION(weight_to_codes, (Fp8 code, const floatX *weight, int E, int O, int C), (code, weight, E, O, C), 0,
    E * (times(O, C) * unit.fx + coded_weight(O, C)), "E=%d O=%d C=%d", E, O, C)
OPERATION(weight_from_codes, (floatX *out, Weight code, int E, int O, int C), (out, code, E, O, C), 0,
    E * (times(O, C) * unit.fx + (code.format == OF_FP8 ? coded_weight(O, C) : times(O, C) * 17 / MXFP4_BLOCK)),
    "E=%d O=%d C=%d", E, O, C)
/* experts in 8 bits: a code is a byte, a scale a real */
FP8(rows, (Fp8 out, const floatX *inp, int N, int C), (out, inp, N, C), 0, times(N, C) * unit.fx + coded(N, C),
    "N=%d C=%d", N, C)
FP8(weight, (Fp8 out, Fp8 transposed, const floatX *weight, int E, int O, int C), (out, transposed, weight, E, O, C), 0,
    E * (times(O, C) * unit.fx + 2 * coded_weight(O, C)), "E=%d O=%d C=%d", E, O, C)
FP8(up_forward, (const Device *d, floatX *pre, Fp8 act, Fp8 inp, Fp8 weight, const Plan *plan, int C, int F),
    (d, pre, act, inp, weight, plan, C, F), 4 * slots(plan) * C * F,
    coded(plan->N, C) + slots(plan) * 2 * F * unit.fx + coded(slots(plan), F) + plan->E * coded_weight(2 * F, C),
    "S=%d E=%d C=%d F=%d", plan->N * plan->K, plan->E, C, F)
FP8(linear, (const Device *d, floatX *out, Fp8 inp, Fp8 weight, const Plan *plan, int C, int O),
    (d, out, inp, weight, plan, C, O), 2 * slots(plan) * C * O,
    coded(slots(plan), C) + slots(plan) * O * unit.fx + plan->E * coded_weight(O, C),
    "S=%d E=%d C=%d O=%d", plan->N * plan->K, plan->E, C, O)
FP8(down_backward, (const Device *d, floatX *dpre, Fp8 dpre8, floatX *wact, Fp8 wact8, real *dweight, Fp8 dout,
    Fp8 down, const floatX *pre, const real *weight, const Plan *plan, int C, int F), (d, dpre, dpre8, wact, wact8,
    dweight, dout, down, pre, weight, plan, C, F), 2 * slots(plan) * C * F, coded(plan->N, C)
    + slots(plan) * F * (dpre ? 5 : 2) * unit.fx + (dpre8.code ? coded(slots(plan), 3.0 * F) : 0)
    + plan->E * coded_weight(F, C) + 2 * slots(plan) * unit.re, "S=%d E=%d C=%d F=%d", plan->N * plan->K, plan->E, C, F)
FP8(columns, (Fp8 out, Fp8 inp, const Plan *plan, int C, Rows inp_rows), (out, inp, plan, C, inp_rows), 0,
    coded(rows_in(plan, inp_rows), C) + coded(slots(plan), C), "S=%d E=%d C=%d %s", plan->N * plan->K, plan->E, C,
    rows_name[inp_rows])
FP8(cross_entropy, (const Device *d, real *loss, Fp8 dlogits, const floatX *logits, const int *target,
    const int *position, const real *scale, float cap, int N, int V, int used), (d, loss, dlogits, logits, target,
    position, scale, cap, N, V, used), 0, times(N, V) * unit.fx + coded(N, V), "N=%d V=%d", N, V)
FP8(backward_weight, (const Device *d, void *dweight, Fp8 dout, Fp8 inp, const Plan *plan, int C, int O, Write how),
    (d, dweight, dout, inp, plan, C, O, how), 2 * slots(plan) * C * O,
    slots(plan) * (C + O) + times(C, O) * plan->E * writes(how), "S=%d E=%d C=%d O=%d%s", plan->N * plan->K, plan->E, C,
    O, how_name[how])
OPERATION(bias_forward, (floatX *x, const floatX *bias, int N, int C), (x, bias, N, C), 0, 2 * times(N, C) * unit.fx,
    "N=%d C=%d", N, C)
OPERATION(bias_backward, (real *dbias, const floatX *dout, int N, int C), (dbias, dout, N, C), 0, times(N, C) * unit.fx,
    "N=%d C=%d", N, C)
OPERATION(expert_bias_forward, (floatX *x, const floatX *bias, const Plan *plan, int O), (x, bias, plan, O), 0,
    (2 * slots(plan) + plan->E) * O * unit.fx, "S=%d E=%d O=%d", plan->N * plan->K, plan->E, O)
OPERATION(expert_bias_backward, (real *dbias, real *dweight, const floatX *dout, const floatX *bias, const real *weight,
    const Plan *plan, int O, Rows dout_rows), (dbias, dweight, dout, bias, weight, plan, O, dout_rows), 0,
    (rows_in(plan, dout_rows) + plan->E) * O * unit.fx + 2 * times(plan->E, O) * unit.re
    + (weight ? 3 * slots(plan) * unit.re : 0), "S=%d E=%d O=%d %s", plan->N * plan->K, plan->E, O,
    rows_name[dout_rows])

/* a sub-layer's sum and the next norm; add_norm_backward's products are operations of their own */
COMPOUND(add_norm_forward, (const Device *d, floatX *out, real *rstd, floatX *resid, const floatX *residual,
    const Sum *s, Dropout dropout, Norm norm, int N, int C), (d, out, rstd, resid, residual, s, dropout, norm, N, C), 0,
    times(N, C) * ((s->plan ? s->plan->K : 1) + 3 + (s->mix ? (s->mix->first != NULL) + (s->mix->extra != NULL) : 0))
    * unit.fx + (s->plan ? slots(s->plan) * (4 + unit.re) : 0)
    + N * unit.re, "N=%d K=%d C=%d", N, s->plan ? s->plan->K : 1, C)
OPERATION(add_norm_backward, (const Device *d, floatX *dresid, real *dnorm, real *dbias, floatX *const scratch[2],
    const Sum *s, const floatX *resid, Norm norm, const real *rstd, int N, int C), (d, dresid, dnorm, dbias, scratch, s,
    resid, norm, rstd, N, C), 0, times(N, C) * ((s->plan ? s->plan->K : s->rows != NULL) + s->terms + 3) * unit.fx
    + (s->plan ? 4 * slots(s->plan) : 0) + N * unit.re, "N=%d K=%d+%d C=%d%s", N,
    s->plan ? s->plan->K : s->rows != NULL, s->terms, C, dbias ? " bias" : "")

/* attention */
OPERATION(attention_forward, (floatX *out, real *lse, const floatX *q, const floatX *kv, const int *reach,
    HeadOrder order, int B, int T, int G, int Q, int D), (out, lse, q, kv, reach, order, B, T, G, Q, D),
    4 * pairs(B, T, G, Q) * D, keys(B, T, G, D) * (2 * Q + 2) * unit.fx, "B=%d T=%d G=%d Q=%d D=%d", B, T, G, Q, D)
OPERATION(attention_backward, (floatX *dq, floatX *dkv, const floatX *dout, const floatX *out, const real *lse,
    const floatX *q, const floatX *kv, const int *reach, HeadOrder order, int B, int T, int G, int Q, int D), (dq, dkv,
    dout, out, lse, q, kv, reach, order, B, T, G, Q, D), 10 * pairs(B, T, G, Q) * D,
    keys(B, T, G, D) * (4 * Q + 4) * unit.fx, "B=%d T=%d G=%d Q=%d D=%d", B, T, G, Q, D)
OPERATION(attention_cached,
    (floatX *out, const floatX *q, const floatX *cache, const floatX *sink, const int *position, int window,
     HeadOrder order, int B, int T, int G, int Q, int D), (out, q, cache, sink, position, window, order, B, T, G, Q, D),
    0, (keys(B, 1, G, D) * 2 * Q + visible(B, T) * 2 * G * D) * unit.fx, "B=%d T=%d G=%d Q=%d D=%d", B, T, G, Q, D)
OPERATION(sink_forward, (floatX *out, real *lse, const floatX *sink, int N, int H, int D), (out, lse, sink, N, H, D), 0,
    2 * times(N, H) * (D * unit.fx + unit.re), "N=%d H=%d D=%d", N, H, D)
OPERATION(sink_backward,
    (real *dsink, const floatX *dout, const floatX *out, const real *lse, const floatX *sink, int N, int H, int D),
    (dsink, dout, out, lse, sink, N, H, D), 0, times(N, H) * (2 * D * unit.fx + unit.re), "N=%d H=%d D=%d", N, H, D)
OPERATION(cache_store, (floatX *cache, const floatX *kv, const int *row, int N, int width), (cache, kv, row, N, width),
    0, N * (4 + 2 * width * unit.fx), "N=%d width=%d", N, width)

/* sampling */
OPERATION(sample, (int *token, const floatX *logits, const uint64_t *key, const int *position, Sampler s, int N, int V,
    int used), (token, logits, key, position, s, N, V, used), 0, N * (4 + 8 + 4 + V * unit.fx), "N=%d V=%d", N, V)
OPERATION(advance, (int *position, int *row, int *log, const int *token, int N), (position, row, log, token, N), 0,
    24.0 * N, "N=%d", N)

/* loss and optimizer */
OPERATION(cross_entropy, (real *loss, floatX *logits, const int *target, const int *position, const real *scale,
    float cap, int gradient, int N, int V, int used),
    (loss, logits, target, position, scale, cap, gradient, N, V, used), 0,
    times(N, V) * (gradient ? 2 : 1) * unit.fx, "N=%d V=%d", N, V)
OPERATION(soft_cap, (floatX *x, float cap, size_t n), (x, cap, n), 0, 2 * (double)n * unit.fx, "n=%zu", n)
OPERATION(sum, (real *out, const real *inp, size_t n), (out, inp, n), 0, (double)n * unit.re, "n=%zu", n)
OPERATION(accumulate, (real *acc, const real *x, size_t n), (acc, x, n), 0, 3 * (double)n * unit.re, "n=%zu", n)
OPERATION(grad_sq_norms, (real *out, const void *grads, const Segment *segments, int count),
    (out, grads, segments, count), 0, unit.gradient_bytes, "n=%.0f", unit.elements)
OPERATION(adamw,
    (floatX *weight, real *master, void *m, void *v, Dtype moments, const void *grads, const real *grad_sq_norms,
     const Segment *segments, int count, const AdamW *a),
    (weight, master, m, v, moments, grads, grad_sq_norms, segments, count, a), 0,
    (unit.elements - unit.by_muon)
    * (unit.gradient_bytes / unit.elements + (master ? unit.fx + 2 * unit.re : 2 * unit.fx)
     + 4 * (moments == REAL ? unit.re : unit.fx)), "n=%.0f", unit.elements - unit.by_muon)
OPERATION(muon_momentum,
    (floatX *x, Momentum m, const void *grads, const real *grad_sq_norm, const Segment *parts, int count,
     size_t most, const Muon *a), (x, m, grads, grad_sq_norm, parts, count, most, a), 0,
    times(count, (double)most)
    * (unit.gradient_bytes / unit.elements + (x ? unit.fx : 0) + 2 * momentum_bytes(m)),
    "%d of %zu", count, most)
OPERATION(muon_limits, (real *factors, real *norms, real *added, real *faults, real *fault, const real *sq_norms,
    int count, const Muon *a), (factors, norms, added, faults, fault, sq_norms, count, a), 0,
    9 * (double)count * unit.re, "n=%d", count)
OPERATION(muon_add, (Momentum m, const void *grads, const real *factors, const Segment *parts, int count,
    size_t most, const uint64_t *key), (m, grads, factors, parts, count, most, key), 0,
    unit.gradient_bytes + 2 * unit.elements * momentum_bytes(m), "%d of %zu", count, most)
COMPOUND(orthogonalize, (const Device *d, const MuonBuffers *b, int count, int rows, int columns),
    (d, b, count, rows, columns), MUON_STEPS * times(count, rows < columns ? rows : columns)
    * (4 * times(rows, columns) + 2 * times(rows < columns ? rows : columns, rows < columns ? rows : columns)),
    2 * times(count, rows) * columns * unit.fx, "%d of %dx%d", count, rows, columns)
OPERATION(muon_scale, (real *scale, real *squares, const floatX *out, const real *grad_sq_norm, const Segment *parts,
    int count, int rows, int columns, const Muon *a), (scale, squares, out, grad_sq_norm, parts, count, rows, columns,
    a), 0, times(count, rows) * columns * unit.fx, "%d of %dx%d", count, rows, columns)
OPERATION(muon_update, (floatX *weight, real *master, const floatX *out, const real *scale, const real *grad_sq_norm,
    const Segment *parts, int count, int rows, int columns, const Muon *a), (weight, master, out, scale, grad_sq_norm,
    parts, count, rows, columns, a), 0, times(count, rows) * columns
    * (unit.fx + (master ? unit.fx + 2 * unit.re : 2 * unit.fx)), "%d of %dx%d", count, rows, columns)
OPERATION(set_master, (real *master, const floatX *weight, size_t n), (master, weight, n), 0,
    (double)n * (unit.fx + unit.re), "n=%zu", n)

#undef OPERATION
#undef COMPOUND
#undef FP8
