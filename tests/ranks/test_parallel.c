/* test_parallel.c: several ranks train one model, as threads on the CPU. Whatever their number, and whether or not they
 * share the optimizer's state, a step has the same gradient, balance and loss; a checkpoint of one number of ranks is
 * bit for bit that of another; what is wrong on one rank is skipped by all. What the trainer makes of it, also in
 * several processes, is in test_programs.sh. */
#include "tests/test.h"
#include "llmc/files/checkpoint.h"
#include "llmc/model/parallel.h"
#include "llmc/base/random.h"
#include "llmc/ranks/group.h"
#include "llmc/ranks/threads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 12, T = 8, STEPS = 30, TOGETHER = 3 + 1 };    /* TOGETHER: weights and up to three kinds of state */

typedef struct {                        /* ranks that train together, and what they found */
    const char *device, *model;
    int ranks, sharded, ordered, micro_batches, recompute, steps;
    float dropout, momentum;            /* momentum: Muon's; 0: AdamW */
    int stumbles;                       /* the step, from 1 on, at which rank 1 finds a gradient that is NaN; 0: none */
    const char *from, *to;              /* folder to load from, to save in; NULL: none */
    ProcessGroup *world;
    double loss[STEPS], balance[STEPS], z[STEPS];
    int    load[STEPS], bad[8], updates[8], agree;
    size_t state_bytes, total, learnable;
    void  *kept[TOGETHER];              /* at the end, all tensors one after the other */
    size_t kept_bytes[TOGETHER];
} Team;

/* Everything that is learned, without the padding, which depends on the number of ranks: the weights (kind -1), or of that kind
 * of the optimizer's state what tensors have. */
static void *packed(const Model *m, const Optimizer *o, int kind, const void *arena, size_t *bytes) {
    const size_t element = kind < 0 ? m->dev->floatX_size : m->dev->real_size;
    char *all = mem_alloc(m->manifest.total * element);
    *bytes = 0;
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (kind >= 0 && !optimizer_has(o, m, kind, i)) continue;
        const size_t at = kind < 0 ? t->offset : optimizer_offset(o, m, kind, i);
        m->dev->download(all + *bytes, (const char *)arena + at * element, t->count * element);
        *bytes += t->count * element;
    }
    return all;
}

/* A step of the global batch: sequence i of step s is the same whoever gets it. */
static void train_step(Team *t, Model *m, Optimizer *o, int rank, int step) {
    const int B = SEQUENCES / t->ranks / t->micro_batches, N = B * T, all = SEQUENCES * T;
    int *tokens = mem_alloc((size_t)(2 * t->micro_batches * N) * sizeof *tokens);
    int *targets = tokens + t->micro_batches * N;
    uint64_t keys[SEQUENCES];
    for (int micro = 0; micro < t->micro_batches; micro++)
        keys[micro] = random_key(12, (uint64_t)((step * t->micro_batches + micro) * t->ranks + rank));
    for (int micro = 0; micro < t->micro_batches; micro++)
        for (int n = 0; n < N; n++) {
            const uint64_t of_step = (uint64_t)((micro * t->ranks + rank) * N + n), key = random_key(11, (uint64_t)step);
            tokens[micro * N + n] = (int)(random_uniform(key, 2 * of_step) * m->config.vocab);
            targets[micro * N + n] = (tokens[micro * N + n] + 3) % m->config.vocab;
        }
    model_send(m, tokens, targets, keys, B, T);
    optimizer_set(o, m, (AdamW){ .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .clip = 0.5f });
    for (int micro = 0; micro < t->micro_batches; micro++) {
        const int stumble = rank == 1 && step + 1 == t->stumbles;
        model_begin_micro(m, micro);
        model_learn(m, stumble ? NAN : 1.0f / (float)all, 1.0f / (float)(t->micro_batches * t->ranks));
        model_end_micro(m, micro);
    }
    optimizer_update(o, m);
    parallel_gather_weights(m, step % 2);
    free(tokens);
}

static void member(void *team, int local) {
    Team *t = team;
    const Device *dev = device_find(t->device);
    Config c;
    Error e;
    Model m;
    Optimizer o;
    Progress p = { .best_step = -1 };
    Parallel parallel = { .ranks = t->ranks, .sharded = t->sharded, .ordered = t->ordered };
    parallel_connect(&parallel, dev, 0, t->world, local);
    const int rank = parallel.rank;
    if (!config_parse(&c, t->model, &e)) fail(EXIT_USAGE, "%s", e.text);
    c.vocab = 40;
    c.context = T;
    model_plan_training(&m, dev, &c, SEQUENCES / t->ranks / t->micro_batches, T, t->recompute, t->micro_batches,
                        REAL, t->ranks > 1 || t->ordered ? &parallel : NULL);
    optimizer_plan(&o, &m, 1, REAL, t->momentum);
    if (!model_allocate(&m)) fail(EXIT_MEMORY, "no memory for a small model");
    m.balance_coef = 0.1f;
    m.z_coef = 0.01f;
    m.dropout = t->dropout;
    model_initialize(&m, 5);
    optimizer_start(&o, &m);
    if (t->from) {
        Checkpoint *from = checkpoint_open(t->from, &e);
        if (!from || !checkpoint_load(from, &m, &o, &p, &e)) fail(EXIT_CHECKPOINT, "%s", e.text);
        checkpoint_close(from);
    }
    for (int step = (int)p.step; step < t->steps; step++) {
        train_step(t, &m, &o, rank, step);
        StepResults f = model_results(&m);
        optimizer_norm(&o, f.grad_sq_norms, &t->bad[rank]);
        if (rank == 0) {
            t->loss[step] = t->balance[step] = t->z[step] = 0;
            for (int i = 0; i < m.batch.all_micro_batches; i++) t->loss[step] += f.step_losses[i] / (SEQUENCES * T);
            for (int i = 0; i < m.routers; i++) {
                t->balance[step] += f.losses[2*i] / (m.routers * (t->ordered ? 1 : t->ranks));
                t->z[step] += f.losses[2*i + 1] / (m.routers * (t->ordered ? 1 : t->ranks));
            }
            t->load[step] = m.routers ? f.load[0] : 0;
        }
        results_free(&f);
    }
    t->updates[rank] = o.updates;
    p.step = t->steps;
    p.updates = o.updates;
    if (t->to) {
        if (rank) optimizer_lend(&o, &m);
        else check(checkpoint_save(t->to, &m, &o, &p, NULL, "{}", 2, 0, &e), "%d ranks save: %s", t->ranks, e.text);
    }

    /* every rank has the same weights, and rank 0 can have the state of all */
    size_t bytes;
    parallel_wait_all_weights(&m);
    void *weights = packed(&m, &o, -1, m.params, &bytes);
    uint64_t mine = hash_bytes(0, weights, bytes), *hashes = mem_alloc((size_t)t->ranks * sizeof *hashes);
    parallel.group->exchange(parallel.group, hashes, &mine, sizeof mine);
    if (rank) { optimizer_lend(&o, &m); free(weights); }
    else {
        t->agree = 1;
        for (int i = 0; i < t->ranks; i++) t->agree &= hashes[i] == mine;
        t->kept[0] = weights;
        t->kept_bytes[0] = bytes;
        for (int kind = 0; kind < (o.master ? 3 : 2); kind++)
            t->kept[1 + kind] = packed(&m, &o, kind, optimizer_whole(&o, &m, kind), &t->kept_bytes[1 + kind]);
        optimizer_whole(&o, &m, STATE_END);
        t->state_bytes = m.arena.category[MEM_OPTIMIZER];
        t->total = m.manifest.total;
        t->learnable = m.manifest.learnable;
    }
    free(hashes);
    parallel_disconnect(&parallel);
    model_free(&m);
}

static void play(Team *t) {
    Error e;
    const GroupOptions o = { .launch = { .launcher = "none", .processes = 1 }, .ranks = t->ranks, .version = "test",
                             .settings = "{}" };
    if (!t->micro_batches) t->micro_batches = 1;
    if (!(t->world = group_join(&o, &e))) { check(0, "a world of %d ranks: %s", t->ranks, e.text); exit(1); }
    threads_run(t->ranks, member, t);
    group_leave(t->world);
}
static void dismiss(Team *t) { for (int i = 0; i < TOGETHER; i++) free(t->kept[i]); }

static double largest(const double *a, const double *b) {
    double worst = 0;
    for (int i = 0; i < STEPS; i++) if (!(fabs(a[i] - b[i]) <= worst)) worst = fabs(a[i] - b[i]);
    return worst;
}

/* Loss curves on 1, 2, 3 and 4 ranks. bf16 rounds weights and activations alike on all, but sums in another order move
 * a token to another expert now and then. */
static void any_number_of_ranks(void) {
    static const struct { const char *device, *model; int micro_batches, recompute; double bound; float momentum; } runs[] = {
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2",     1, 0, 1e-5, 0 },
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2",     3, 2, 1e-5, 0 },        /* routing is recomputed, loads are not summed twice */
        { "cpu-f64",  "m3:c16h4q2e6k3f8a1s2",      1, 1, 1e-7, 0 },         /* scales such as 1/3 are float */
        { "cpu-f64",  "u3:c16h4d4e4k2f12a4x2",     1, 0, 1e-7, 0 },         /* gradients of the one block come from all layers */
        { "cpu-f32",  "d2:c16h4f20",               1, 0, 1e-5, 0 },
        { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2",     1, 0, 2e-2, 0 },
        { "cpu-f64",  "m2:c16h4d4e4k2f12a4x2",     1, 0, 1e-7, 0.95f },
        { "cpu-f64",  "d2:c16h4f20",               3, 0, 1e-7, 0.95f },      /* most matrices have parts on several ranks */
        { "cpu-f64",  "d2:c48h4f96",               1, 0, 1e-7, 0.95f },
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        Team one = { .device = runs[i].device, .model = runs[i].model, .micro_batches = runs[i].micro_batches,
                     .recompute = runs[i].recompute, .steps = STEPS, .ranks = 1, .momentum = runs[i].momentum };
        play(&one);
        check(one.loss[STEPS - 1] < 0.8 * one.loss[0], "%s %s learns: %g to %g", one.device, one.model, one.loss[0],
              one.loss[STEPS - 1]);
        for (int ranks = 2; ranks <= 4; ranks++)
            for (int sharded = 0; sharded < 2; sharded++) {
                Team many = one;
                memset(many.kept, 0, sizeof many.kept);
                many.ranks = ranks;
                many.sharded = sharded;
                if (SEQUENCES / ranks % many.micro_batches) many.micro_batches = 1;
                if (many.micro_batches != one.micro_batches) continue;
                play(&many);
                const char *how = sharded ? "sharing the optimizer's state" : "each with all of the state";
                check(many.agree, "%s: %d ranks, %s, end with the same weights", one.device, ranks, how);
                check_error(largest(many.loss, one.loss), runs[i].bound, "%s %s: loss on %d ranks, %s", one.device,
                            one.model, ranks, how);
                check_error(largest(many.balance, one.balance), runs[i].bound, "balance likewise");
                check_error(largest(many.z, one.z), runs[i].bound, "z likewise");
                check(many.load[0] == one.load[0], "loads are counted over all ranks: %d and %d", many.load[0], one.load[0]);
                dismiss(&many);
            }
        dismiss(&one);
    }
}

/* Ordered: 12 micro-batches of one sequence, dealt out to 1, 2, 3 and 4 ranks, are the same step. */
static void same_bits(void) {
    static const struct { const char *device, *model; int recompute; float dropout, momentum; } runs[] = {
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2", 0, 0, 0 },     { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2", 2, 0.1f, 0 },
        { "cpu-f64",  "m3:c16h4q2e6k3f8a1s2",  1, 0.1f, 0 },  { "cpu-f32",  "u3:c16h4d4e4k2f12a4x2", 0, 0.1f, 0 },
        { "cpu-f32",  "d2:c16h4f20",           0, 0, 0 },
        { "cpu-f32",  "d2:c16h4f20",           0, 0, 0.95f },  { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2", 2, 0.1f, 0.95f },
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        Team one = { .device = runs[i].device, .model = runs[i].model, .recompute = runs[i].recompute, .dropout = runs[i].dropout, .momentum = runs[i].momentum,
                     .micro_batches = SEQUENCES, .steps = STEPS, .ranks = 1, .ordered = 1 };
        play(&one);
        check(one.loss[STEPS - 1] < 0.8 * one.loss[0], "%s %s learns, ordered: %g to %g", one.device, one.model, one.loss[0],
              one.loss[STEPS - 1]);
        for (int ranks = 2; ranks <= 4; ranks++) {
            Team many = one;
            int same = 1;
            memset(many.kept, 0, sizeof many.kept);
            many.ranks = ranks;
            many.sharded = ranks != 3;
            many.micro_batches = SEQUENCES / ranks;
            play(&many);
            for (int k = 0; k < TOGETHER && one.kept[k]; k++)
                same &= one.kept_bytes[k] == many.kept_bytes[k] && !memcmp(one.kept[k], many.kept[k], one.kept_bytes[k]);
            check(many.agree && same, "%s %s: 12 micro-batches on %d ranks end with the same bits as on one", one.device,
                  one.model, ranks);
            check(!memcmp(many.loss, one.loss, sizeof one.loss) && !memcmp(many.balance, one.balance, sizeof one.balance)
                  && !memcmp(many.z, one.z, sizeof one.z) && !memcmp(many.load, one.load, sizeof one.load),
                  "and so are losses, balance and loads of all %d steps", STEPS);
            dismiss(&many);
        }
        dismiss(&one);
    }
}

static void shares(void) {
    Team t[2] = { { .device = "cpu-bf16", .model = "m2:c16h4d4e4k2f12a4x2", .ranks = 1, .steps = 1 } };
    t[1] = t[0];
    play(&t[0]);
    t[1].ranks = 4;
    t[1].sharded = 1;
    play(&t[1]);
    check(t[1].learnable == t[0].learnable && t[1].total - t[1].learnable <= t[0].total - t[0].learnable + 4 * 4 * 64,
          "padding for 4 ranks: %zu elements instead of %zu", t[1].total - t[1].learnable, t[0].total - t[0].learnable);
    check(t[1].state_bytes == 3 * sizeof(float) * t[1].total / 4, "of 4 ranks each has a quarter of the state: %zu of %zu bytes",
          t[1].state_bytes, t[0].state_bytes);
    dismiss(&t[0]);
    dismiss(&t[1]);
}

/* Saved on 4, 1 and 3 ranks; resumed on 1, 3 and 2: the state is the same, bit for bit, and the run goes on as if it had
 * never been interrupted. */
static void resumed_elsewhere(const char *device, double bound, float momentum) {
    static const struct { int before, after; } moves[] = { { 4, 1 }, { 1, 3 }, { 3, 2 }, { 2, 2 } };
    const Team whole = { .device = device, .model = "m2:c16h4d4e4k2f12a4x2", .steps = STEPS, .sharded = 1, .momentum = momentum };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        char *name = text_format("moved-%s%s-%d-%d", device, momentum > 0 ? "-muon" : "", moves[i].before, moves[i].after), *folder = scratch_path(name);
        Team before = whole, after = whole, loaded = whole, all = whole;
        int same = 1;
        before.ranks = all.ranks = moves[i].before;
        after.ranks = loaded.ranks = moves[i].after;
        before.steps = loaded.steps = STEPS / 2;
        before.to = loaded.from = after.from = folder;
        play(&before);
        play(&loaded);
        for (int k = 0; k < TOGETHER; k++)
            same &= loaded.kept_bytes[k] == before.kept_bytes[k]
                && !memcmp(loaded.kept[k] ? loaded.kept[k] : "", before.kept[k] ? before.kept[k] : "", before.kept_bytes[k]);
        check(same && before.kept_bytes[2] > 0 && loaded.updates[0] == STEPS / 2,
              "%s: saved on %d ranks, resumed on %d: weights and state are the same bits", device, before.ranks, after.ranks);
        play(&after);
        play(&all);
        for (int s = 0; s < STEPS / 2; s++) after.loss[s] = before.loss[s];
        check_error(largest(after.loss, all.loss), before.ranks == after.ranks ? 0 : bound, "and it goes on as if never interrupted");
        dismiss(&before);
        dismiss(&after);
        dismiss(&loaded);
        dismiss(&all);
        free(name);
        free(folder);
    }
}

/* One rank's gradient is NaN: all skip the step, and know it. */
static void skipped_together(float momentum) {
    for (int sharded = 0; sharded < 2; sharded++) {
        Team good = { .device = "cpu-f32", .model = "m2:c16h4d4e4k2f12a4x2", .ranks = 3, .sharded = sharded, .steps = 4,
                      .momentum = momentum };
        Team bad = good;
        bad.steps = bad.stumbles = 5;
        play(&good);
        play(&bad);
        int skipped = 1, same = 1;
        for (int r = 0; r < 3; r++) skipped &= bad.bad[r] >= 0 && bad.updates[r] == 4 && good.bad[r] < 0;
        for (int k = 0; k < TOGETHER - 1; k++) same &= !memcmp(good.kept[k], bad.kept[k], good.kept_bytes[k]);
        check(skipped, "a bad gradient on one of 3 ranks is skipped by all (%s)", sharded ? "shared state" : "whole state");
        check(same && bad.agree, "and changes no weight and no state");
        dismiss(&good);
        dismiss(&bad);
    }
}

void test_parallel(void) {
    any_number_of_ranks();
    same_bits();
    shares();
    resumed_elsewhere("cpu-f32", 1e-5, 0);
    resumed_elsewhere("cpu-bf16", 2e-2, 0);
    resumed_elsewhere("cpu-f64", 1e-7, 0.95f);
    skipped_together(0);
    skipped_together(0.95f);
}
