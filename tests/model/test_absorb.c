/* test_absorb.c: gradients that are added to Muon's momentum layer by layer (-ga momentum). */
#include "trainee.h"
#include "tests/test.h"
#include "llmc/base/random.h"
#include "llmc/model/batch.h"
#include "llmc/model/pass.h"
#include "llmc/model/routers.h"
#include <math.h>
#include <string.h>

static Config config_of(const char *descriptor) { return trainee_config(descriptor, 40, 32); }
static void open_trainee(Trainee *t, const char *device, const Config *c, TraineeOptions o) {
    o.B = 2, o.T = 8, o.seed = 3, o.z = 0.001f, o.balance = 0.01f, o.momentum = 0.9f, o.plain = 1;
    check(trainee_open(t, device_find(device), c, o), "%s has memory", device);
    t->adamw.clip = 0;
}
/* What tensor i has of a kind of state, on one rank; codes times their scales. */
static void read_state(const Trainee *t, int kind, int i, double *x) {
    const Device *dev = t->m.dev;
    const size_t n = t->m.manifest.at[i].count, size = optimizer_element(&t->o, &t->m, kind);
    const Segment s = optimizer_segment(&t->o, &t->m, i);
    const char *at = (const char *)optimizer_part(&t->o, kind) + optimizer_offset(s, kind) * size;
    if (optimizer_type(&t->o, kind) == REAL) dev->reals_to_double(x, (const real *)(const void *)at, n);
    else if (kind != STATE_CODES) dev->to_double(x, (const floatX *)(const void *)at, n);
    else {
        signed char *code = mem_alloc(n);
        double *scale = mem_alloc(n / MOMENT_BLOCK * sizeof *scale);
        dev->download(code, at, n);
        at = (const char *)t->o.scales + optimizer_offset(s, STATE_SCALES) * dev->floatX_size;
        dev->to_double(scale, (const floatX *)(const void *)at, n / MOMENT_BLOCK);
        for (size_t k = 0; k < n; k++) x[k] = code[k] * scale[k / MOMENT_BLOCK];
        free_each(code, scale);
    }
}
/* Momentum; zeros for what AdamW updates, or, of_adamw, for the others. */
static double *means_of(const Trainee *t, int of_adamw) {
    const size_t n = t->m.manifest.total;
    double *x = mem_alloc(n * sizeof *x);
    memset(x, 0, n * sizeof *x);
    for (int i = 0; i < t->m.manifest.count; i++) {
        const int muon = muon_updates(&t->o, &t->m.manifest.at[i]);
        if (muon == !of_adamw)
            read_state(t, muon && t->o.moments == INT8 ? STATE_CODES : STATE_M, i, x + t->m.manifest.at[i].offset);
    }
    return x;
}
static double *momentum_of(const Trainee *t) { return means_of(t, 0); }
static double *weights_of(const Trainee *t) {
    double *x = mem_alloc(t->m.manifest.total * sizeof *x);
    t->m.dev->to_double(x, t->m.params, t->m.manifest.total);
    return x;
}
static double apart(const double *a, const double *b, size_t n) { return relative_error(a, b, n); }

/* With gradients kept and without: the same but for the order of sums and the rounding of momentum.
 * Of 64 experts some have no rows. Slices; a universal model. lean: no master copy. */
static void as_with_gradients(const char *device, const char *model, int micro_batches, Dtype lean, int period,
                              double bound) {
    const Config c = config_of(model);
    enum { MOST = 4 };
    const int steps = lean ? 1 : MOST;
    Trainee t[2];
    double *m[2], *w[2], of_adamw[2] = { 0 }, norm[2];
    for (int i = 0; i < 2; i++) {
        const TraineeOptions o = { .micro_batches = micro_batches, .absorbs = i, .period = period, .no_master = lean,
                                   .moments = lean, .gradients = lean ? FLOATX : REAL };
        open_trainee(&t[i], device, &c, o);
        for (int s = 0; s < steps; s++) trainee_do(&t[i], s);
        m[i] = momentum_of(&t[i]), w[i] = weights_of(&t[i]);
        StepResults r = model_results(&t[i].m);
        for (int k = 0; k < t[i].o.tensors; k++)
            if (!muon_updates(&t[i].o, &t[i].m.manifest.at[k])) of_adamw[i] += r.grad_sq_norms[k];
        norm[i] = r.grad_sq_norms[t[i].o.tensors];
        results_free(&r);
    }
    check_error(fabs(norm[1] / of_adamw[0] - 1), 10 * bound, "%s %s: norm of what AdamW updates", device, model);
    const size_t n = t[0].m.manifest.total;
    const size_t kept = t[0].m.arena.category[MEM_GRADIENTS], less = t[1].m.arena.category[MEM_GRADIENTS];
    check_error(apart(m[1], m[0], n), bound, "%s %s, %d micro-batches: momentum", device, model, micro_batches);
    check_error(apart(w[1], w[0], n), bound, "%s %s, %d micro-batches: weights", device, model, micro_batches);
    check(c.universal ? less <= kept : less < kept, "%s %s: gradients take %zu bytes, not %zu", device, model, less,
          kept);
    for (int i = 0; i < 2; i++) free_each(m[i], w[i]), trainee_close(&t[i]);
}

/* Momentum in 8 bits: as that in f32 but for rounding, in a quarter of the memory; what AdamW keeps
 * beside it has the same bits after a step. */
static void in_8_bits(const char *device, const char *model, int absorbs) {
    const Config c = config_of(model);
    Trainee t[2];
    double *m[2], *w[2], *of_adamw[2];
    for (int i = 0; i < 2; i++) {
        open_trainee(&t[i], device, &c, (TraineeOptions){ .micro_batches = 3, .absorbs = absorbs, .no_master = 1,
                                                          .moments = i ? INT8 : FLOATX, .gradients = FLOATX });
        trainee_do(&t[i], 0);
        of_adamw[i] = means_of(&t[i], 1);
        for (int s = 1; s < 4; s++) trainee_do(&t[i], s);
        m[i] = momentum_of(&t[i]), w[i] = weights_of(&t[i]);
    }
    const size_t n = t[0].m.manifest.total, X = t[0].m.dev->floatX_size;
    const size_t all = t[0].m.arena.category[MEM_OPTIMIZER], less = t[1].m.arena.category[MEM_OPTIMIZER];
    check(!memcmp(of_adamw[0], of_adamw[1], n * sizeof **m), "%s %s: means of what AdamW updates", device, model);
    check_error(apart(m[1], m[0], n), 3e-2, "%s %s: momentum in 8 bits", device, model);
    /* small singular values become as large as others */
    check_error(apart(w[1], w[0], n), 8e-2, "%s %s: weights", device, model);
    check(all - less > n * (X - 1) / 2, "%s %s: the state takes %zu bytes, not %zu", device, model, less, all);
    for (int i = 0; i < 2; i++) free_each(m[i], w[i], of_adamw[i]), trainee_close(&t[i]);
}

/* A spike of 1,000 times makes a tensor's addition 4 times as long as usual, and the mean little
 * longer; without a limit it is 1,000 times as long. */
static void spike(void) {
    const Config c = config_of("m2:c16h4d4e4k2f12n0");
    for (int limited = 0; limited < 2; limited++) {
        Trainee t;
        open_trainee(&t, "cpu-f64", &c, (TraineeOptions){ .absorbs = 1, .most = limited ? 4 : 0 });
        t.adamw.lr = 0;                                     /* gradients stay as they are */
        for (int s = 0; s < 20; s++) trainee_do(&t, 0);
        double *before = momentum_of(&t), mean[2], longest = 0, longer = 0;
        const size_t n = 2 * (size_t)t.o.tensors;
        double *norms = mem_alloc(n * sizeof *norms), *after_norms = mem_alloc(n * sizeof *norms);
        t.m.dev->reals_to_double(norms, t.o.norms, n);
        t.loss_factor = 1000;
        trainee_do(&t, 0);
        t.m.dev->reals_to_double(after_norms, t.o.norms, n);
        double *after = momentum_of(&t);
        for (int i = 0; i < t.o.tensors; i++) {
            const Tensor *x = &t.m.manifest.at[i];
            double added = 0, size = 0;
            if (!x->passes) continue;
            for (size_t k = x->offset; k < x->offset + x->count; k++)
                added += pow(after[k] - 0.9 * before[k], 2), size += before[k] * before[k];
            mean[0] = norms[2*i] / norms[2*i + 1], mean[1] = after_norms[2*i] / after_norms[2*i + 1];
            longest = fmax(longest, sqrt(added) / 0.1 / mean[0]);
            longer = fmax(longer, mean[1] / mean[0]);
            check(size > 0, "%s has a momentum", x->name);
        }
        if (limited)
            check(fabs(longest - 4) < 1e-6 && longer < 1.2, "limited: %g times as long, means %g", longest, longer);
        else
            check(fabs(longest - 1000) < 10 && longer > 10, "not limited: %g times as long, means %g", longest, longer);
        free_each(before, after, norms, after_norms), trainee_close(&t);
    }
}

/* A loss that is not finite: nothing of the micro-batch is added, and nothing changes in the step,
 * whichever of its micro-batches it was. */
static void bad_loss(const char *device) {
    const Config c = config_of("m2:c16h4d4e4k2f12n0");
    Trainee t;
    int bad;
    open_trainee(&t, device, &c, (TraineeOptions){ .absorbs = 1, .most = 4, .micro_batches = 2 });
    for (int s = 0; s < 3; s++) trainee_do(&t, s);
    trainee_loss(&t, &bad);
    check(bad < 0, "%s: no fault", device);
    const uint64_t before = trainee_hash(&t);
    const int updates = t.o.updates;
    t.loss_factor = NAN;
    trainee_do(&t, 3);
    trainee_loss(&t, &bad);
    check(bad >= 0 && t.o.updates == updates, "%s: a fault, of tensor %d", device, bad);
    check(trainee_hash(&t) == before, "%s: weights, momentum, norms stay", device);
    t.loss_factor = 1;
    trainee_do(&t, 3);
    trainee_loss(&t, &bad);
    check(bad < 0 && trainee_hash(&t) != before, "%s: the next step is a good one", device);
    trainee_close(&t);
}

/* A fault that begins in the backward of a layer: it and the layers before it get nothing, those
 * behind it have been added already, and weights stay. */
static void fault_in_backward(void) {
    enum { LAYERS = 4, AT = 1 };
    const Config c = config_of("m4:c16h4d4e4k2f12n0");
    const double nan = NAN;
    Trainee t;
    int bad, added = 0, left = 0, wrong = 0;
    open_trainee(&t, "cpu-f32", &c, (TraineeOptions){ .absorbs = 1, .most = 4 });
    for (int s = 0; s < 3; s++) trainee_do(&t, s);
    double *before = momentum_of(&t), *weights = weights_of(&t), good;
    trainee_send(&t, 3);
    model_begin_micro(&t.m, 0);
    model_forward(&t.m), model_loss(&t.m, 1), model_router_losses(&t.m);
    floatX *const at = t.m.lp[AT].up;                       /* forward has read it, backward does now */
    t.m.dev->to_double(&good, at, 1);
    t.m.dev->from_double(at, &nan, 1);
    model_backward(&t.m, 1);
    t.m.dev->from_double(at, &good, 1);
    model_end_micro(&t.m, 0);
    optimizer_update(&t.o, &t.m);
    trainee_loss(&t, &bad);
    double *after = momentum_of(&t), *then = weights_of(&t);
    for (int i = 0; i < t.m.manifest.count; i++) {
        const Tensor *x = &t.m.manifest.at[i];
        if (!x->passes) continue;
        const int same = !memcmp(before + x->offset, after + x->offset, x->count * sizeof *after);
        if (x->layer > AT) added += !same, wrong += same;
        else left += same, wrong += !same;
    }
    check(wrong == 0 && added == 5 * (LAYERS - 1 - AT) && left == 5 * (AT + 1), "%d momenta have changed, %d have not",
          added, left);
    check(!memcmp(weights, then, t.m.manifest.total * sizeof *weights), "weights stay");
    check(bad >= 0 && t.m.manifest.at[bad].layer == AT, "the fault is said to be of %s", t.m.manifest.at[bad].name);
    free_each(before, after, weights, then), trainee_close(&t);
}

void test_absorb(void) {
    static const char *const mixture = "m2:c16h4d4e64k4f12a4x2n0u1";
    PART(as_with_gradients("cpu-f64", mixture, 1, REAL, 1, 1e-12));
    PART(as_with_gradients("cpu-f64", mixture, 3, REAL, 2, 1e-12));
    PART(as_with_gradients("cpu-f64", "u3:c16h4d4e8k2f12n0", 3, REAL, 1, 1e-12));
    PART(as_with_gradients("cpu-f64", "m2:c16h4d4e8k2f12s1v1g1n0", 2, REAL, 1, 1e-12));
    PART(as_with_gradients("cpu-f32", mixture, 3, REAL, 1, 1e-4));
    PART(as_with_gradients("cpu-bf16", mixture, 3, FLOATX, 1, 6e-3));
    PART(as_with_gradients("cpu-f64", mixture, 3, INT8, 1, 3e-2));
    PART(as_with_gradients("cpu-bf16", mixture, 3, INT8, 2, 3e-2));
    PART(in_8_bits("cpu-f32", mixture, 0)); PART(in_8_bits("cpu-bf16", mixture, 1));
    PART(in_8_bits("cpu-bf16", "u3:c16h4d4e8k2f12n0", 1));
    PART(spike()); PART(bad_loss("cpu-f32")); PART(bad_loss("cpu-bf16")); PART(fault_in_backward());
}
