/* check.c: see check.h. */
#include "check.h"
#include "batch.h"
#include "gradients.h"
#include "llmc/base/random.h"
#include "pass.h"
#include "plan.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Model  m;
    const Check *c;
    double *weights, *grads;            /* (manifest.total) on the host */
    int    *tokens, *targets;
} Probe;

/* Weights of a size that makes every part matter, unlike the small ones training starts from. */
static void random_weights(const Manifest *m, uint64_t seed, double *w) {
    for (int i = 0; i < m->count; i++) {
        const Tensor *t = &m->at[i];
        const uint64_t key = random_key(seed, hash_bytes(1, t->name, strlen(t->name)));
        const double size = t->rank < 2 ? 0.1 : 1 / sqrt((double)t->shape[t->rank - 1]);
        for (size_t j = 0; j < t->count; j++) w[t->offset + j] = (t->init == ONES) + size * random_normal(key, j);
    }
}

static int probe_open(Probe *b, const Check *c, const Device *dev) {
    const size_t N = (size_t)c->B * (size_t)c->T;
    const int ids = config_ids(&c->config);
    *b = (Probe){ .c = c };
    model_plan_training(&b->m, dev, &c->config, c->B, c->T, &c->recompute, 1, FLOATX, NULL);
    if (!model_allocate(&b->m)) { model_free(&b->m); return 0; }
    b->m.balance_coef = c->balance, b->m.z_coef = c->z, b->m.dropout = c->dropout;
    b->m.rounds = 1;
    const uint64_t key = random_key(c->seed, 3);
    dev->upload(b->m.batch.key, &key, sizeof key);
    b->weights = mem_alloc(2 * b->m.manifest.total * sizeof *b->weights);
    b->grads = b->weights + b->m.manifest.total;
    b->tokens = mem_alloc(2 * N * sizeof *b->tokens);
    b->targets = b->tokens + N;
    random_weights(&b->m.manifest, c->seed, b->weights);
    dev->from_double(b->m.params, b->weights, b->m.manifest.total);
    for (size_t n = 0; n < N; n++) {
        b->tokens[n] = (int)(random_uniform(c->seed, 2*n) * ids);
        b->targets[n] = (int)(random_uniform(c->seed, 2*n + 1) * ids);
    }
    return 1;
}
static void probe_close(Probe *b) {
    model_free(&b->m);
    free_each(b->weights, b->tokens);
}

/* All that training minimizes: cross entropy, and each router's balance and z losses. */
static double loss(Probe *b, int gradient) {
    Model *m = &b->m;
    const float scale = 1 / (float)(b->c->B * b->c->T);
    model_scale_loss(m, (double)scale);
    double sum, total, *routers = mem_alloc((size_t)(2 * m->routers + 1) * sizeof *routers);
    model_batch(m, b->tokens, b->targets, b->c->B, b->c->T);
    model_forward(m);
    model_loss(m, gradient);
    model_router_losses(m);
    m->dev->reals_to_double(&sum, m->loss_sum, 1);
    m->dev->reals_to_double(routers, m->results.losses, (size_t)(2 * m->routers));
    total = sum * (double)scale;
    for (int r = 0; r < m->routers; r++)
        total += (double)m->balance_coef * routers[2*r] + (double)m->z_coef * routers[2*r + 1];
    free(routers);
    return total;
}
static void gradients(Probe *b) {
    Model *m = &b->m;
    model_set_phase(m, PHASE_ONLY);
    loss(b, 1);
    model_backward(m, 1);
    model_gradients(m, b->grads);
}

/* A number that changes when any token chooses other experts. */
static uint64_t choices(const Probe *b) {
    const Model *m = &b->m;
    uint64_t h = 0;
    for (int l = 0; l < m->config.layers; l++) {
        const Route *both[2] = { &m->acts[l].att, &m->acts[l].mlp };
        for (int i = 0; i < 2; i++) {
            const Plan *p = &both[i]->plan;
            const size_t begin = (size_t)p->E + 1;
            if (!both[i]->expert) continue;
            int *rows = mem_alloc((begin + (size_t)p->S) * sizeof *rows);       /* of experts: where, and whose */
            m->dev->download(rows, p->start, begin * sizeof *rows);
            m->dev->download(rows + begin, p->token_of_row, (size_t)rows[p->E] * sizeof *rows);
            h = hash_bytes(h, rows, (begin + (size_t)rows[p->E]) * sizeof *rows);
            m->dev->download(rows, both[i]->own_load, (size_t)both[i]->E * sizeof *rows);
            h = hash_bytes(h, rows, (size_t)both[i]->E * sizeof *rows);
            free(rows);
        }
    }
    return h;
}
static double loss_at(Probe *b, size_t j, double w, uint64_t expected, int *rerouted) {
    b->m.dev->from_double(float_at(&b->m, b->m.params, j), &w, 1);
    const double l = loss(b, 0);
    *rerouted |= choices(b) != expected;
    return l;
}
/* Fourth-order central difference: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h, with an error of
 * order h^4. 0: between these points a token changes its experts. */
static int difference(Probe *b, size_t j, double h, uint64_t expected, double *slope) {
    const double w = b->weights[j];
    int rerouted = 0;
    const double near = loss_at(b, j, w + h, expected, &rerouted) - loss_at(b, j, w - h, expected, &rerouted);
    const double far = loss_at(b, j, w + 2*h, expected, &rerouted) - loss_at(b, j, w - 2*h, expected, &rerouted);
    *slope = (8 * near - far) / (12 * h);
    b->m.dev->from_double(float_at(&b->m, b->m.params, j), &w, 1);
    return !rerouted;
}
/* The error of gradient element j, relative to the larger of itself and rms; -1: tokens change
 * their experts too near. Where they do, or a second derivative jumps nearby (relu^2: an error of
 * order h), a smaller h is tried, at the cost of digits. A wrong gradient is wrong at every h. */
static double element_error(Probe *b, size_t j, double rms, double bound, uint64_t expected) {
    const double own = b->grads[j], size = fabs(own) > rms ? fabs(own) : rms;
    double least = -1;
    for (double h = 2e-4; h > 1e-6 && !(least >= 0 && least <= bound); h /= 10) {
        double numeric;
        if (!difference(b, j, h, expected, &numeric)) continue;
        const double error = fabs(numeric - own) / (size + 1e-30);
        if (least < 0 || !(error >= least)) least = error;
    }
    return least;
}

static double square_sum(const double *gradients, const Tensor *t) {
    double sum = 0;
    for (size_t j = t->offset; j < t->offset + t->count; j++) sum += gradients[j] * gradients[j];
    return sum;
}
int check_gradients(const Check *c, double bound, FILE *report, int all, double *worst) {
    Probe b;
    int failures = 0;
    *worst = 0;
    if (!probe_open(&b, c, device_find("cpu-f64"))) return -1;
    gradients(&b);
    const uint64_t expected = choices(&b);
    for (int i = 0; i < b.m.manifest.count; i++) {
        const Tensor *t = &b.m.manifest.at[i];
        double error = 0, rms = sqrt(square_sum(b.grads, t) / (double)t->count);
        int checked = 0;
        for (int s = 0; s < 4 * c->samples && checked < c->samples; s++) {
            const size_t j = t->offset
                + (size_t)(random_uniform(random_key(c->seed, (uint64_t)i), (uint64_t)s) * (double)t->count);
            const double e = element_error(&b, j, rms, bound, expected);
            if (e < 0) continue;
            if (!(e <= error)) error = e;
            checked++;
        }
        /* A gradient that is zero everywhere would agree with anything that was not computed. */
        const int ok = error <= bound && checked > 0 && rms > 0;
        failures += !ok;
        if (!(error <= *worst)) *worst = error;
        if (all || !ok)
            fprintf(report, "%-4s %-64s %2d elements, error %.1e, allowed %.0e%s\n", ok ? "ok" : "FAIL",
                    t->name, checked, error, bound, rms > 0 ? "" : ": it is zero everywhere");
    }
    probe_close(&b);
    return failures;
}

/* The gradients of one batch on both. 0: some token goes to different experts; -1: no memory. */
static int in_step(Probe *a, Probe *b, const Check *c, const Device *dev, const Device *twin) {
    if (!probe_open(a, c, dev)) return -1;
    if (!probe_open(b, c, twin)) { probe_close(a); return -1; }
    dev->to_double(b->weights, a->m.params, b->m.manifest.total);
    twin->from_double(b->m.params, b->weights, b->m.manifest.total);
    gradients(a);
    gradients(b);
    if (choices(a) == choices(b)) return 1;
    probe_close(a);
    probe_close(b);
    return 0;
}

int check_devices(const Check *c, const Device *dev, const Device *twin, double bound, FILE *report, int all,
                  double *worst) {
    enum { TRIES = 20 };
    Probe a, b;
    Check again = *c;
    int failures = 0, found = 0;
    *worst = 0;
    for (int i = 0; i < TRIES && !found; i++, again.seed++) found = in_step(&a, &b, &again, dev, twin);
    if (found < 0) return -1;
    if (!found) {
        fprintf(report, "FAIL in %d batches %s never chose the same experts as %s\n", TRIES, dev->name, twin->name);
        *worst = INFINITY;
        return 1;
    }
    const Manifest *m = &a.m.manifest;
    double scalars = 0;                                     /* of one the gradient is a sum that may cancel */
    for (int i = 0; i < m->count; i++) if (m->at[i].kind == TENSOR_SCALARS) scalars += square_sum(b.grads, &m->at[i]);
    for (size_t j = 0; j < m->total; j++) a.grads[j] -= b.grads[j];
    for (int i = 0; i < m->count; i++) {
        const Tensor *t = &m->at[i];
        const double norm = t->kind == TENSOR_SCALARS ? scalars : square_sum(b.grads, t);
        const double error = sqrt(square_sum(a.grads, t) / (norm + 1e-300));
        const int ok = error <= bound;
        failures += !ok;
        if (!(error <= *worst)) *worst = error;
        if (all || !ok)
            fprintf(report, "%-4s %-64s %s against %s, error %.1e, allowed %.0e\n", ok ? "ok" : "FAIL",
                    t->name, dev->name, twin->name, error, bound);
    }
    probe_close(&a);
    probe_close(&b);
    return failures;
}
