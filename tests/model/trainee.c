/* trainee.c: see trainee.h. */
#include "trainee.h"
#include "llmc/base/random.h"
#include "llmc/model/batch.h"
#include "llmc/model/gradients.h"
#include "llmc/model/parallel.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include "llmc/model/ranges.h"
#include <stdlib.h>

Config trainee_config(const char *descriptor, int vocab, int context) {
    Config c;
    Error e;
    if (!config_parse(&c, descriptor, &e)) fail(EXIT_USAGE, "%s", e.text);
    c.vocab = vocab, c.context = context;
    if (!config_check(&c, &e)) fail(EXIT_USAGE, "%s: %s", descriptor, e.text);
    return c;
}

/* model_initialize, but only the first million values of a tensor are drawn, and then repeated:
 * drawing billions would take longer than the steps. */
static void initialize(Model *m, uint64_t seed) {
    enum { DRAWN = 1 << 20 };
    const size_t size = m->dev->floatX_size;
    size_t most = 0;
    for (int i = 0; i < m->manifest.count; i++) if (m->manifest.at[i].count > most) most = m->manifest.at[i].count;
    double *values = mem_alloc((most < DRAWN ? most : DRAWN) * sizeof *values);
    parallel_begin_weights(m);
    for (int i = 0; i < m->manifest.count; i++) {
        Tensor t = m->manifest.at[i];
        char *to = (char *)model_weight(m, &m->manifest.at[i]);
        const size_t all = t.count;
        parallel_wait_weights(m, t.range, 0);
        if (t.count > DRAWN) t.count = DRAWN;
        manifest_initial(&t, seed, 0, t.count, m->dev->real_size > sizeof(float), values);
        m->dev->from_double((floatX *)(void *)to, values, t.count);
        for (size_t at = t.count, more; at < all; at += more) {
            more = all - at < at ? all - at : at;
            m->dev->copy(to + at * size, to, more * size);
        }
        parallel_keep_weights(m, t.range);
    }
    free(values);
}

int trainee_open(Trainee *t, const Device *dev, const Config *c, TraineeOptions options) {
    if (!options.micro_batches) options.micro_batches = 1;
    const size_t M = (size_t)options.micro_batches, tokens = M * (size_t)(options.B * options.T);
    *t = (Trainee){ .options = options, .loss_factor = 1, .drawn = -1,
                    .adamw = { .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .decay = 0.1f, .clip = 1 } };
    for (int i = 0; i < PHASES; i++) t->batch[i].off = !options.record;
    for (int i = 0; i < MUON_PERIODS; i++) t->update[i].off = !options.record;
    t->tokens = mem_alloc(tokens * sizeof *t->tokens);
    t->targets = mem_alloc(tokens * sizeof *t->targets);
    t->positions = mem_alloc(tokens * sizeof *t->positions);
    t->keys = mem_alloc(M * sizeof *t->keys);
    model_plan_training(&t->m, dev, c, options.B, options.T, &options.recompute, options.micro_batches,
                        options.gradients, options.parallel);
    optimizer_plan(&t->o, &t->m, !options.no_master, options.moments,
                   (MuonOptions){ options.momentum, options.period, options.row_decay,
                                  options.plain || options.absorbs, options.absorbs, options.most });
    if (!model_allocate(&t->m)) return 0;
    if (t->m.dp.level >= 2) parallel_register_memory(&t->m);            /* which these need */
    initialize(&t->m, options.seed);
    optimizer_start(&t->o, &t->m);
    t->m.balance_coef = options.balance, t->m.z_coef = options.z, t->m.dropout = options.dropout;
    t->m.rounds = 1;
    return 1;
}

/* Token i of a step is the same on any number of ranks and micro-batches. */
static int token(const Trainee *t, int number, uint64_t i) {
    return (int)(random_uniform(random_key(11, (uint64_t)number), i) * t->m.config.vocab);
}
/* Row `row` of the step, index i among this rank's. */
static void fill(Trainee *t, uint64_t row, size_t i) {
    const int T = t->options.T, used = t->options.filled ? 1 + (int)(row * 5 % (uint64_t)T) : T;
    for (int n = 0; n < T; n++) {
        const size_t at = i * (size_t)T + (size_t)n;
        t->positions[at] = n < used ? n : n - used;
        if (n >= used) t->tokens[at] = 0, t->targets[at] = FILLER;
    }
}
static void draw(Trainee *t, int number) {
    const Model *m = &t->m;
    const int ranks = m->dp.ranks, rank = m->dp.parallel ? m->dp.parallel->rank : 0, V = m->config.vocab;
    const size_t N = (size_t)(t->options.B * t->options.T);
    for (int micro = 0; micro < t->options.micro_batches; micro++) {
        const uint64_t index = (uint64_t)(micro * ranks + rank);
        t->keys[micro] = random_key((uint64_t)number, index);
        for (size_t n = 0; n < N; n++) {
            const size_t at = (size_t)micro * N + n;
            t->tokens[at] = token(t, number, index * N + n);
            t->targets[at] = t->options.learnable ? (t->tokens[at] + 3) % V : token(t, number, index * N + n + 1);
        }
        const size_t B = (size_t)t->options.B;
        for (size_t b = 0; b < B; b++) fill(t, index * B + b, (size_t)micro * B + b);
    }
    t->drawn = number;
}
void trainee_send(Trainee *t, int number) {
    if (number != t->drawn) draw(t, number);
    model_send(&t->m, t->tokens, t->targets, t->options.filled ? t->positions : NULL, t->keys, t->options.B,
               t->options.T);
    model_scale_loss(&t->m, (double)(t->loss_factor / ((float)t->m.batch.all_micro_batches * (float)t->m.batch.N)));
    optimizer_set(&t->o, &t->m, t->adamw);
}

static void learn(void *trainee) {
    Trainee *t = trainee;
    model_learn(&t->m, 1 / (float)t->m.batch.all_micro_batches);
}
static void update(void *trainee) {
    Trainee *t = trainee;
    optimizer_update(&t->o, &t->m);
}
void trainee_step(Trainee *t) {
    Model *m = &t->m;
    for (int micro = 0; micro < t->options.micro_batches; micro++) {
        model_begin_micro(m, micro);
        replay_run(&t->batch[m->batch.phase], m->dev, model_state(m), learn, t);
        model_end_micro(m, micro);
    }
    replay_run(&t->update[optimizer_slice(&t->o)], m->dev, 0, update, t);
}
void trainee_do(Trainee *t, int number) {
    trainee_send(t, number);
    trainee_step(t);
}
double *trainee_gradients(const Trainee *t) {
    double *g = mem_alloc(t->m.manifest.total * sizeof *g);
    model_gradients(&t->m, g);
    return g;
}
double trainee_loss(Trainee *t, int *bad) {
    const int batches = t->m.batch.all_micro_batches;
    StepResults r = model_results(&t->m);
    double sum = 0;
    for (int i = 0; i < batches; i++) sum += r.step_losses[i];
    optimizer_norm(&t->o, r.grad_sq_norms, bad);
    results_free(&r);
    return sum / ((double)batches * t->m.batch.N);
}

uint64_t trainee_hash(const Trainee *t) {
    const Device *dev = t->m.dev;
    struct { const void *at; size_t bytes; } all[1 + STATE_KINDS] = {
        { t->m.params, t->m.manifest.total * dev->floatX_size } };
    for (int kind = 0; kind < STATE_KINDS; kind++) {
        all[1 + kind].at = optimizer_part(&t->o, kind);
        all[1 + kind].bytes = optimizer_count(&t->o, &t->m, kind) * optimizer_element(&t->o, &t->m, kind);
    }
    uint64_t h = 0;
    for (int i = 0; i < 1 + STATE_KINDS; i++) {
        if (!all[i].at) continue;
        void *host = mem_alloc(all[i].bytes);
        dev->download(host, all[i].at, all[i].bytes);
        h = hash_bytes(h, host, all[i].bytes);
        free(host);
    }
    return h;
}

void trainee_close(Trainee *t) {
    for (int i = 0; i < PHASES; i++) replay_free(&t->batch[i], t->m.dev);
    for (int i = 0; i < MUON_PERIODS; i++) replay_free(&t->update[i], t->m.dev);
    model_free(&t->m), free(t->tokens), free(t->targets), free(t->positions), free(t->keys);
}
uint64_t trainee_trained(const Device *dev, const Config *c, TraineeOptions options, int steps) {
    Trainee t;
    if (!trainee_open(&t, dev, c, options)) fail(EXIT_MEMORY, "no memory for a small model");
    for (int s = 0; s < steps; s++) trainee_do(&t, s);
    const uint64_t hash = trainee_hash(&t);
    trainee_close(&t);
    return hash;
}
