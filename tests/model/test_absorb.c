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
/* Momentum; zeros for what AdamW updates. */
static double *momentum_of(const Trainee *t) {
    const size_t n = t->m.manifest.total;
    double *x = mem_alloc(n * sizeof *x), *of_muon = mem_alloc(n * sizeof *x);
    if (t->o.moments == REAL) t->m.dev->reals_to_double(x, t->o.m, n);
    else t->m.dev->to_double(x, t->o.m, n);
    memset(of_muon, 0, n * sizeof *x);
    for (int i = 0; i < t->m.manifest.count; i++) {
        const Tensor *tensor = &t->m.manifest.at[i];
        if (muon_updates(&t->o, tensor))
            memcpy(of_muon + tensor->offset, x + tensor->offset, tensor->count * sizeof *x);
    }
    free(x);
    return of_muon;
}
static double *weights_of(const Trainee *t) {
    double *x = mem_alloc(t->m.manifest.total * sizeof *x);
    t->m.dev->to_double(x, t->m.params, t->m.manifest.total);
    return x;
}
static double apart(const double *a, const double *b, size_t n) { return relative_error(a, b, n); }

/* With gradients kept and without: the same but for the order of sums and the rounding of momentum.
 * Of 64 experts some have no rows. Slices; a universal model. */
static void as_with_gradients(const char *device, const char *model, int micro_batches, int lean, int period,
                              double bound) {
    const Config c = config_of(model);
    enum { MOST = 4 };
    const int steps = lean ? 1 : MOST;
    Trainee t[2];
    double *m[2], *w[2], of_adamw[2] = { 0 }, norm[2];
    for (int i = 0; i < 2; i++) {
        const TraineeOptions o = { .micro_batches = micro_batches, .absorbs = i, .period = period, .no_master = lean,
                                   .moments = lean ? FLOATX : REAL, .gradients = lean ? FLOATX : REAL };
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
    PART(as_with_gradients("cpu-f64", mixture, 1, 0, 1, 1e-12));
    PART(as_with_gradients("cpu-f64", mixture, 3, 0, 2, 1e-12));
    PART(as_with_gradients("cpu-f64", "u3:c16h4d4e8k2f12n0", 3, 0, 1, 1e-12));
    PART(as_with_gradients("cpu-f64", "m2:c16h4d4e8k2f12s1v1g1n0", 2, 0, 1, 1e-12));
    PART(as_with_gradients("cpu-f32", mixture, 3, 0, 1, 1e-4));
    PART(as_with_gradients("cpu-bf16", mixture, 3, 1, 1, 6e-3));
    PART(spike()); PART(bad_loss("cpu-f32")); PART(bad_loss("cpu-bf16")); PART(fault_in_backward());
}
