/* test_parallel.c: several ranks, as threads on the CPU, train one model. A step has the same loss,
 * balance and gradient on any number of ranks, whether or not they shard the optimizer's state. A
 * checkpoint of one number of ranks is bit for bit that of another. A bad gradient on one rank is
 * skipped by all. The trainer on several ranks and processes: tests/programs.sh. Under the thread
 * sanitizer (a tenth of the speed) grids have fewer rows; all ways to exchange stay. */
#define _GNU_SOURCE
#include "tests/test.h"
#include "processes.h"
#include "tests/model/trainee.h"
#include "llmc/files/checkpoint.h"
#include "llmc/files/families.h"
#include "llmc/files/pieces.h"
#include "llmc/model/batch.h"
#include "llmc/model/parallel.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include "llmc/model/recompute.h"
#include "llmc/ranks/threads.h"
#include <dirent.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#ifdef __SANITIZE_THREAD__
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

/* STEPS: until a model has learned. SHORT: all that a step leaves for later ones (weights ahead,
 * moments, buffers in turn) is used by the third.
 * KEPT: weights and the kinds of state. */
enum { SEQUENCES = 12, T = 8, STEPS = 30, SHORT = 4, KEPT = 1 + STATE_KINDS };

typedef struct Team Team;
struct Team {                           /* ranks that train one model, and their results */
    const char *device, *model;
    int by_kernels;                     /* 1: GPUs exchange by NCCL */
    int fp8, pairs, oss, latents;       /* Fp8Passes of the experts; rows of heads have another
                                         * order in files; experts have, as gpt_oss's; attention is
                                         * deepseek_v3's */
    /* shards: ranks of a node, 0: all; late: nothing arrives before it is waited for; 2: nor
     * between nodes */
    int ranks, shards, level, ordered, late, micro_batches, steps;
    Recompute recompute;
    float dropout, momentum;            /* momentum: Muon's; 0: AdamW */
    int period;                         /* of its experts */
    Dtype moments;
    float row_decay;                    /* of its rows' squares */
    int plain, absorbs;             /* momentum without lookahead and clipping; gradients are added to it, */
    float most;                         /* limited to so many times their mean norm; 0: not limited */
    int filled;                         /* 1: rows end in filler, each in another number */
    int fails_at;                       /* the step, from 1 on, at which the gradient of rank 1 is NaN; 0: none */
    const char *from, *to;              /* folder to load from, to save in; NULL: none */
    ProcessGroup *processes;
    double loss[STEPS], balance[STEPS], z[STEPS];
    int load[STEPS], bad[8], updates[8], shared[8], agree; /* shared: matrices of which a rank has only a part */
    size_t state_bytes, weight_bytes, total, learnable;
    void  *kept[KEPT];              /* at the end, all tensors one after the other */
    size_t kept_bytes[KEPT];
    void (*more)(const Team *t, Trainee *m, const Parallel *p); /* what each rank does after the steps; NULL: nothing */
};

/* Everything that is learned: the weights (kind WEIGHTS), or what tensors have of a kind of the
 * optimizer's state, from a step folder. */
enum { WEIGHTS = -1 };
static void *packed(const char *folder, const Model *m, const Optimizer *o, int kind, size_t *bytes) {
    Error e;
    char name[TENSOR_NAME + 16], *path = text_format("%s/state/step-00000000/%s", folder,
                                                     kind < 0 ? "model.safetensors" : "optimizer.safetensors");
    Safetensors *s = safetensors_open(path, &e);
    char *all = NULL;
    *bytes = 0;
    if (!s) fail(EXIT_CHECKPOINT, "%s", e.text);
    size_t count;
    Piece *pieces = pieces_of(m, &count);
    if (kind >= 0) count = (size_t)m->manifest.count;
    for (size_t i = 0; i < count; i++) {
        if (kind >= 0 && !optimizer_has(o, m, kind, (int)i)) continue;
        snprintf(name, sizeof name, "%s%s", kind < 0 ? pieces[i].name : m->manifest.at[i].name,
                 kind < 0 ? "" : state_suffix[kind]);
        const FileTensor *t = safetensors_find(s, name);
        all = mem_grow(all, *bytes + (t ? t->bytes : 0));
        if (!t || !safetensors_read(s, t, 0, all + *bytes, t->bytes, &e))
            fail(EXIT_CHECKPOINT, "%s: %s", name, t ? e.text : "missing");
        *bytes += t->bytes;
    }
    free(pieces), safetensors_close(s), free(path);
    return all;
}

/* Ranks whose transfers are done no earlier than they must be: what was queued is done when it is
 * waited for. (The loopback does all at once.) A range that is used before that is then the one
 * before; a gradient that is made before the last one in its place was waited for spoils that. */
typedef struct { enum { T_GATHER, T_ADD, T_SUM, T_SCATTER, T_RECORD } what; void *x; const void *from; size_t n;
                 int event; } Transfer;
typedef struct { Comm comm, *prompt; Transfer queue[64]; int count; } Late;

static void do_first(Late *l, int count) {
    for (int i = 0; i < count; i++) {
        const Transfer *t = &l->queue[i];
        if (t->what == T_GATHER) l->prompt->all_gather(l->prompt, t->x, t->from, t->n);
        if (t->what == T_SUM) l->prompt->all_reduce(l->prompt, t->x, t->n);
        if (t->what == T_SCATTER) l->prompt->reduce_scatter(l->prompt, t->x, t->n);
        if (t->what == T_ADD) l->prompt->scatter_add(l->prompt, t->x, t->from, t->n);
    }
    memmove(l->queue, l->queue + count, (size_t)(l->count -= count) * sizeof *l->queue);
}
static void queue(Comm *c, Transfer t) {
    Late *l = (Late *)c;
    if (l->count == (int)(sizeof l->queue / sizeof *l->queue)) do_first(l, 1);
    l->queue[l->count++] = t;
}
static void late_gather(Comm *c, void *x, const void *mine, size_t bytes) {
    queue(c, (Transfer){ T_GATHER, x, mine, bytes, 0 });
}
static void late_add(Comm *c, real *shard, const real *x, size_t n) { queue(c, (Transfer){ T_ADD, shard, x, n, 0 }); }
static void late_record(Comm *c, int i) { queue(c, (Transfer){ T_RECORD, NULL, NULL, 0, i }); }
static void late_wait(Comm *c, int i) {
    Late *l = (Late *)c;
    int last = l->count - 1;
    while (last >= 0 && !(l->queue[last].what == T_RECORD && l->queue[last].event == i)) last--;
    do_first(l, last + 1);
}
static void late_host_wait(Comm *c, int i) { (void)c, (void)i; }
static void late_wait_all(Comm *c) { do_first((Late *)c, ((Late *)c)->count); }
static void late_sum(Comm *c, real *x, size_t n) { queue(c, (Transfer){ T_SUM, x, NULL, n, 0 }); }
static void late_sum_ints(Comm *c, int *x, size_t n) {
    late_wait_all(c), ((Late *)c)->prompt->all_reduce_ints(((Late *)c)->prompt, x, n);
}
static void late_scatter(Comm *c, real *x, size_t n) { queue(c, (Transfer){ T_SCATTER, x, NULL, n, 0 }); }
static void late_close(Comm *c) {
    ((Late *)c)->prompt->close(((Late *)c)->prompt);
    free(c);
}
static Comm *late(Comm *prompt) {
    Late *l = mem_alloc(sizeof *l);
    *l = (Late){ .comm = *prompt, .prompt = prompt };
    l->comm.all_reduce = late_sum, l->comm.all_reduce_ints = late_sum_ints, l->comm.reduce_scatter = late_scatter;
    l->comm.all_gather = late_gather, l->comm.scatter_add = late_add, l->comm.record = late_record;
    l->comm.wait = late_wait, l->comm.host_wait = late_host_wait, l->comm.wait_all = late_wait_all,
        l->comm.close = late_close;
    return &l->comm;
}

static void open_member(const Team *t, Trainee *m, const Parallel *p) {
    Config c = trainee_config(t->model, 40, T);
    c.fp8 = t->fp8, c.rope_pairs = t->pairs;
    if (t->oss) c.family = FAMILY_GPT_OSS, c.expert_bias = c.sinks = 1, c.activation = CLAMPED, c.scores = TOPK_SOFTMAX;
    if (t->oss && config_family(&c) != FAMILY_GPT_OSS) fail(EXIT_USAGE, "%s: no gpt_oss", t->model);
    if (t->latents) {
        c.family = FAMILY_DEEPSEEK_V3, c.scores = SIGMOID_TOPK, c.choice_bias = 1;
        c.kv_rank = 9, c.query_rank = 7, c.rotated = 4, c.value_size = c.head_size - 3;
        if (config_family(&c) != FAMILY_DEEPSEEK_V3) fail(EXIT_USAGE, "%s: no deepseek_v3", t->model);
    }
    const TraineeOptions o = { .B = SEQUENCES / t->ranks / t->micro_batches, .T = T, .recompute = t->recompute,
                               .seed = 5, .micro_batches = t->micro_batches, .learnable = 1, .momentum = t->momentum,
                               .period = t->period, .row_decay = t->row_decay, .filled = t->filled,
                               .plain = t->plain, .absorbs = t->absorbs, .most = t->most, .moments = t->moments,
                               .parallel = t->ranks > 1 || t->ordered ? p : NULL,
                               .balance = 0.1f, .z = 0.01f, .dropout = t->dropout };
    if (!trainee_open(m, device_find(t->device), &c, o)) fail(EXIT_MEMORY, "no memory for a small model");
    m->adamw.beta2 = 0.95f;
    m->adamw.clip = t->plain ? 0 : 0.5f;
}
static void keep_results(Team *t, const Model *m, const StepResults *r, int step) {
    const int counted = m->routers * (t->ordered ? 1 : t->ranks);
    t->loss[step] = t->balance[step] = t->z[step] = 0;
    for (int i = 0; i < m->batch.all_micro_batches; i++) t->loss[step] += r->step_losses[i] / (SEQUENCES * T);
    for (int i = 0; i < m->routers; i++) {
        t->balance[step] += r->losses[2*i] / counted;
        t->z[step] += r->losses[2*i + 1] / counted;
    }
    t->load[step] = m->routers ? r->load[0] : 0;
}
static void train(Team *t, Trainee *m, int rank, int first) {
    for (int step = first; step < t->steps; step++) {
        m->loss_factor = rank == 1 && step + 1 == t->fails_at ? NAN : 1;
        trainee_do(m, step);
        parallel_gather_weights(&m->m, step % 2);
        StepResults r = model_results(&m->m);
        optimizer_norm(&m->o, r.grad_sq_norms, &t->bad[rank]);
        if (rank == 0) keep_results(t, &m->m, &r, step);
        results_free(&r);
    }
    t->updates[rank] = m->o.updates, t->shared[rank] = m->o.muon.part_count;
}
static int load(const Team *t, Trainee *m) {                /* the step */
    Error e;
    Checkpoint *from = checkpoint_open(t->from, NULL, &e);
    if (!from || !checkpoint_load(from, &m->m, &m->o, &e)) fail(EXIT_CHECKPOINT, "%s", e.text);
    const int step = (int)json_int(json_get(checkpoint_run(from), "step"), 0);
    checkpoint_close(from);
    return step;
}
static Saved save(const char *folder, const Trainee *m, int step, Error *e) {
    char *progress = text_format("\"step\": %d, \"updates\": %d", step, m->o.updates);
    const Snapshot s = { .model = &m->m, .optimizer = &m->o, .step = step, .progress = progress, .options = "{}" };
    const Saved saved = checkpoint_save(folder, &s, (Keep){ 2, 0, 0, 0 }, e);
    free(progress);
    return saved;
}
/* Of what this rank has of the weights: of all, or of its own shards. */
static uint64_t weights_hash(const Model *m) {
    const size_t bytes = m->manifest.total / (size_t)(m->dp.level >= 3 ? m->dp.shards : 1) * m->dev->floatX_size;
    char *host = mem_alloc(bytes);
    parallel_wait_all_weights(m);
    m->dev->download(host, m->params, bytes);
    const uint64_t hash = hash_bytes(0, host, bytes);
    free(host);
    return hash;
}
/* Every rank has the same weights, or only a part; together they save all. */
static void keep_state(Team *t, Trainee *m, const Parallel *p) {
    uint64_t mine = weights_hash(&m->m), *hashes = mem_alloc((size_t)t->ranks * sizeof *hashes);
    char *folder = scratch_path("kept");
    Error e;
    p->group->exchange(p->group, hashes, &mine, sizeof mine);
    if (save(folder, m, 0, &e) != SAVED_ALL) fail(EXIT_DISK, "%s", e.text);
    if (p->rank == 0) {
        t->agree = 1;
        /* of sharded weights the nodes have the same */
        const int shards = t->level < 3 ? 1 : t->shards ? t->shards : t->ranks;
        for (int i = 0; i < t->ranks; i++) t->agree &= hashes[i] == hashes[i % shards];
        for (int i = 0; i < 1 + m->o.kinds; i++)
            t->kept[i] = packed(folder, &m->m, &m->o, WEIGHTS + i, &t->kept_bytes[i]);
        t->state_bytes = m->m.arena.category[MEM_OPTIMIZER], t->weight_bytes = m->m.arena.category[MEM_WEIGHTS];
        t->total = m->m.manifest.total, t->learnable = m->m.manifest.learnable;
    }
    free(folder), free(hashes);
}
static void member(void *team, int local) {
    Team *t = team;
    Trainee m;
    const Device *dev = device_find(t->device);
    Parallel p = { .ranks = t->ranks, .by_matrix = t->momentum > 0, .shards = t->shards, .level = t->level,
                   .ordered = t->ordered, .one_process = dev->is_gpu && !t->by_kernels };
    parallel_connect(&p, dev, dev->is_gpu ? local : 0, t->processes, local);
    parallel_form_nodes(&p, dev);
    if (t->late) p.node = p.node == p.comm ? (p.comm = late(p.comm)) : late(p.node);
    if (t->late > 1 && p.across) p.across = late(p.across);
    open_member(t, &m, &p);
    train(t, &m, p.rank, t->from ? load(t, &m) : 0);
    Error e = { 0 };
    const Saved saved = t->to ? save(t->to, &m, t->steps, &e) : SAVED_ALL;
    if (p.rank == 0) check(saved == SAVED_ALL, "%d ranks save: %s", t->ranks, e.text);
    if (t->more) t->more(t, &m, &p);
    keep_state(t, &m, &p);
    parallel_disconnect(&p);
    trainee_close(&m);
}

static void run(Team *t) {
    Error e;
    const GroupOptions o = { .launch = { .launcher = "none", .processes = 1 }, .ranks = t->ranks, .version = "test",
                             .settings = "{}" };
    if (!t->micro_batches) t->micro_batches = 1;
    if (!(t->processes = group_join(&o, &e))) { check(0, "a group of %d ranks: %s", t->ranks, e.text); exit(1); }
    threads_run(t->ranks, member, t);
    group_leave(t->processes);
}
static void team_free(Team *t) { for (int i = 0; i < KEPT; i++) free(t->kept[i]); }
/* The same on so many ranks, without the results. */
static Team again_on(const Team *one, int ranks, int shards, int level) {
    Team t = *one;
    memset(t.kept, 0, sizeof t.kept);
    t.ranks = ranks, t.shards = shards, t.level = level;
    return t;
}
/* Weights and state, bit for bit. */
static int same_kept(const Team *a, const Team *b, int kinds) {
    int same = 1;
    for (int k = 0; k < kinds; k++)
        same &= a->kept_bytes[k] == b->kept_bytes[k]
            && (!a->kept_bytes[k] || !memcmp(a->kept[k], b->kept[k], a->kept_bytes[k]));
    return same;
}

static double largest(const double *a, const double *b) {
    double worst = 0;
    for (int i = 0; i < STEPS; i++) if (!(fabs(a[i] - b[i]) <= worst)) worst = fabs(a[i] - b[i]);
    return worst;
}

static const char *const levels[] = { "each with all", "state sharded", "state, gradients sharded", "all sharded" };

/* Two nodes: each has everything, and only sums of gradients go from one to the other. */
static void two_nodes(const Team *one, int shards, int level, double bound) {
    Team both = again_on(one, 2 * shards, shards, level);
    if (SEQUENCES / 2 / shards % both.micro_batches) return;
    both.steps = SHORT;
    run(&both);
    check(both.agree, "%s: two nodes of %d, %s, end with the same weights", one->device, shards, levels[level]);
    check_error(largest(both.loss, one->loss), bound, "%s %s: loss on two nodes of %d, %s", one->device, one->model,
                shards, levels[level]);
    check_error(largest(both.balance, one->balance), bound, "balance likewise");
    check(both.load[0] == one->load[0], "loads are counted over all nodes: %d and %d", both.load[0], one->load[0]);
    Team late = again_on(&both, both.ranks, shards, level);
    late.late = 1 + level % 2;
    run(&late);
    check(same_kept(&late, &both, KEPT), "%s: the same bits, however late what nodes exchange arrives", levels[level]);
    team_free(&both), team_free(&late);
}
/* Loss curves on 1, 2, 3 and 4 ranks. In bf16, another order of sums may choose another expert. */
static void any_number_of_ranks(void) {
    static const struct { const char *device, *model; int micro_batches,
                          recompute; double bound; float momentum; int period, filled; } runs[] = {
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2",     1, 0, 1e-5, 0, 0, 0 },
        /* sums over ranks happen once, whatever is recomputed */
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2",     3, 2, 1e-5, 0, 0, 1 },
        { "cpu-f64",  "m3:c16h4q2e6k3f8a1s2",      1, 1, 1e-7, 0, 0, 0 },         /* scales such as 1/3 are floats */
        { "cpu-f64", "u3:c16h4d4e4k2f12a4x2", 1, 0, 1e-7, 0, 0, 0 }, /* one block gets the gradients of all layers */
        { "cpu-f32",  "d2:c16h4f20",               1, 0, 1e-5, 0, 0, 0 },
        { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2",     1, 0, 2e-2, 0, 0, 0 },
        { "cpu-f64",  "m2:c16h4d4e4k2f12a4x2",     1, 0, 1e-7, 0.95f, 0, 1 },
        { "cpu-f64",  "m2:c16h4d4e5k2f12a4x2",     1, 0, 1e-7, 0.95f, 2, 0 },
        { "cpu-f64", "d2:c16h4f20", 3, 0, 1e-7, 0.95f, 0, 0 }, /* most matrices have parts on several ranks */
        { "cpu-f64",  "d2:c48h4f96",               1, 0, 1e-7, 0.95f, 0, 0 },
        { "cpu-f64",  "m3:c20h4d4q2e4k2f12v2g1t2p1", 1, 1, 1e-7, 0.95f, 0, 1 },
    };
    for (size_t i = 0; i < COUNT(runs); i += SLOW ? 3 : 1) {
        Team one = { .device = runs[i].device, .model = runs[i].model, .micro_batches = runs[i].micro_batches,
                     .recompute = recompute_numbered(runs[i].recompute), .steps = STEPS, .ranks = 1,
                     .momentum = runs[i].momentum, .period = runs[i].period, .filled = runs[i].filled,
                     .row_decay = runs[i].period ? 0.9f : 0 };
        run(&one);
        check(one.loss[STEPS - 1] < 0.8 * one.loss[0], "%s %s learns: %g to %g", one.device, one.model, one.loss[0],
              one.loss[STEPS - 1]);
        for (int ranks = 2; ranks <= 4; ranks++)
            for (int level = 0; level <= 3; level += level == 1 ? 2 : 1) {
                Team many = again_on(&one, ranks, 0, level);
                many.steps = ranks == 4 && level == 3 ? STEPS : SHORT;        /* small errors grow */
                if (SEQUENCES / ranks % many.micro_batches) many.micro_batches = 1;
                if (many.micro_batches != one.micro_batches) continue;
                run(&many);
                const char *how = levels[level];
                check(many.agree, "%s: %d ranks, %s, end with the same weights", one.device, ranks, how);
                check_error(largest(many.loss, one.loss), runs[i].bound, "%s %s: loss on %d ranks, %s", one.device,
                            one.model, ranks, how);
                check_error(largest(many.balance, one.balance), runs[i].bound, "balance likewise");
                check_error(largest(many.z, one.z), runs[i].bound, "z likewise");
                check(many.load[0] == one.load[0], "loads of all ranks: %d and %d", many.load[0], one.load[0]);
                team_free(&many);
            }
        for (int level = i % 6 ? 3 : 1; level <= 3; level++) two_nodes(&one, 2, level, runs[i].bound);
        if (i % 6 == 1) two_nodes(&one, 1, 3, runs[i].bound);
        team_free(&one);
    }
}

/* Ordered: 12 micro-batches of one sequence, split among 1, 2, 3 and 4 ranks, are the same step,
 * whatever is sharded, however late exchanges are. Returns how many matrices have parts. */
static int same_bits_as(const Team *one, int ranks, int shards, int level, int late) {
    Team many = again_on(one, ranks, shards, level);
    int shared = 0;
    many.late = late, many.micro_batches = SEQUENCES / ranks;
    run(&many);
    check(many.agree && same_kept(one, &many, KEPT), "%s %s: 12 micro-batches on %d ranks%s, %s%s, "
          "end with the same bits as on %d", one->device, one->model, ranks, shards ? " in nodes" : "", levels[level],
          late ? ", late" : one->by_kernels ? ", by NCCL" : "", one->ranks);
    check(!memcmp(many.loss, one->loss, sizeof one->loss) && !memcmp(many.balance, one->balance, sizeof one->balance)
          && !memcmp(many.z, one->z, sizeof one->z) && !memcmp(many.load, one->load, sizeof one->load),
          "the same losses, balance and loads in all %d steps", one->steps);
    for (int r = 0; r < ranks; r++) shared += many.shared[r];
    team_free(&many);
    return shared;
}
static void same_bits(void) {
    static const struct { const char *device, *model; Recompute again; float dropout, momentum; int period; } runs[] = {
        /* again: not on one rank */
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2", { { 0 } }, 0, 0, 0 },
        { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2", { { 1, 1, 1, 1, 1 } }, 0.1f, 0, 0 },
        { "cpu-f64",  "m3:c16h4q2e6k3f8a1s2",  { { 2, 0, 0, 0, 1 } }, 0.1f, 0, 0 },
        { "cpu-f32", "u3:c16h4d4e4k2f12a4x2u1", { { 0, 1, 2, 0, 0 } }, 0.1f, 0, 0 },
        { "cpu-f32",  "d2:c16h4f20",           { { 0, 0, 0, 0, 1 } }, 0, 0, 0 },
        { "cpu-f32",  "d2:c16h4f20",           { { 0 } }, 0, 0.95f, 0 },
        { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2", { { 0, 1, 0, 1, 0 } }, 0.1f, 0.95f, 3 },
        /* a head of its own; more layers than buffers for them */
        { "cpu-f32",  "m5:c16h4d4e4k2f12a4x2u1v1", { { 4, 3, 1, 2, 4 } }, 0, 0.95f, 0 },
        { "cpu-f32",  "m5:c20h4d4e4k2f12u1v2g1t3p1", { { 4, 3, 1, 2, 4 } }, 0.1f, 0.95f, 0 },
    };
    for (size_t i = 0; i < COUNT(runs); i += SLOW ? 2 : 1) {
        Team one = { .device = runs[i].device, .model = runs[i].model, .dropout = runs[i].dropout,
                     .momentum = runs[i].momentum, .period = runs[i].period, .micro_batches = SEQUENCES, .steps = SHORT,
                     .row_decay = runs[i].momentum > 0 && i < 7 ? 0.9f : 0, .ranks = 1, .ordered = 1,
                     .filled = i % 2 }, longer = one;
        longer.steps = STEPS / 2;
        run(&longer);
        check(longer.loss[STEPS / 2 - 1] < 0.9 * longer.loss[0], "%s %s learns, ordered: %g to %g", one.device,
              one.model, longer.loss[0], longer.loss[STEPS / 2 - 1]);
        team_free(&longer);
        run(&one);
        one.recompute = runs[i].again;
        for (int ranks = 2; ranks <= 4; ranks++) {
            same_bits_as(&one, ranks, 0, ranks == 3 ? 0 : 1, 0);
            same_bits_as(&one, ranks, 0, ranks == 3 ? 2 : 3, ranks == 2);
        }
        same_bits_as(&one, 3, 0, 3, 1);
        for (int level = i % 5 ? 3 : 1; level <= 3; level++) same_bits_as(&one, 4, 2, level, level == 3);
        if (i == 0) same_bits_as(&one, 6, 2, 3, 0), same_bits_as(&one, 6, 3, 3, 0), same_bits_as(&one, 2, 1, 3, 1);
        team_free(&one);
    }
}

/* With all sharded, codes of weights are one layer's at a time. More layers than buffers. */
static void same_bits_in_8_bits(void) {
    Team one = { .device = "cpu-f32", .model = "m5:c128h4e2k1f128n0", .fp8 = FP8_ALL, .micro_batches = SEQUENCES,
                 .steps = 3, .ranks = 1, .ordered = 1 };
    run(&one);
    for (int level = SLOW ? 3 : 1; level <= 3; level++) same_bits_as(&one, 2, 0, level, level == 3);
    one.recompute = recompute_numbered(2);
    if (!SLOW) same_bits_as(&one, 2, 0, 3, 0);
    team_free(&one);
}

/* The same among the GPUs of this machine: what is sharded, and what carries it, changes no bit. */
static void same_bits_on_gpus(const Device *dev) {
    static const char *const models[] = { "m5:c64h4e8k2f64a8x2u1", "m4:c64h4e8k2f64" };
    for (int i = 0; i < 2; i++) {
        Team state = { .device = dev->name, .model = models[i], .ranks = 2, .level = 1, .ordered = 1, .steps = 6,
                       .micro_batches = SEQUENCES / 2, .momentum = i ? 0 : 0.95f,
                       .row_decay = 0.9f };
        run(&state);
        same_bits_as(&state, 2, 0, 2, 0);
        same_bits_as(&state, 2, 0, 3, 0);
        same_bits_as(&state, 2, 1, 3, 0);
        if (dev->count() >= 4) same_bits_as(&state, 4, 2, 3, 0);
        state.by_kernels = 1;
        same_bits_as(&state, 2, 0, 3, 0);
        if (dev->count() >= 4) same_bits_as(&state, 4, 2, 3, 0);
        team_free(&state);
    }
}

/* With many experts, pieces end between matrices: the same bits. Dense ones are cut. */
static void full_matrices(void) {
    static const struct { const char *model; int cuts; }
        models[] = { { "m2:c16h4d4e32k2f16a4x2", 0 }, { "m2:c16h4d4e32k2f16v1", 0 }, { "d2:c16h4f20", 1 } };
    for (size_t i = 0; i < COUNT(models); i++) {
        Team one = { .device = "cpu-f32", .model = models[i].model, .momentum = 0.95f, .micro_batches = SEQUENCES,
                     .row_decay = models[i].cuts ? 0.9f : 0, .steps = 4, .ranks = 1, .ordered = 1 };
        run(&one);
        for (int ranks = 2; ranks <= 4; ranks++) {
            const int shared = same_bits_as(&one, ranks, 0, ranks == 3 ? 1 : 3, 0);
            check((shared > 0) == (models[i].cuts && ranks > 2), "%s on %d ranks: %d matrices have parts on several",
                  one.model, ranks, shared);
        }
        team_free(&one);
    }
}

static void shards(void) {
    Team t[2] = { { .device = "cpu-bf16", .model = "m2:c16h4d4e4k2f12a4x2", .ranks = 1, .steps = 1 } };
    t[1] = t[0];
    run(&t[0]);
    t[1].ranks = 4, t[1].level = 1;
    run(&t[1]);
    check(t[1].learnable == t[0].learnable && t[1].total - t[1].learnable <= t[0].total - t[0].learnable + 4 * 4 * 64,
          "padding for 4 ranks: %zu elements instead of %zu", t[1].total - t[1].learnable, t[0].total - t[0].learnable);
    check(t[1].state_bytes == 3 * sizeof(float) * t[1].total / 4,
          "each of 4 ranks has a quarter of the state: %zu of %zu bytes", t[1].state_bytes, t[0].state_bytes);
    team_free(&t[0]), team_free(&t[1]);
}
/* Saved on 4, 1 and 3 ranks, resumed on 1, 3 and 2: the state is the same bit for bit, and the
 * losses are those of a run that was not interrupted. */
static void resumed_elsewhere(const char *device, double bound, float momentum, Dtype moments) {
    static const struct { int before, shards, after; } moves[] = { { 4, 0, 1 }, { 1, 0, 3 }, { 3, 0, 2 }, { 2, 0, 2 },
                                                                   { 4, 2, 3 }, { 4, 2, 4 }, { 2, 1, 1 } };
    const Team full = { .device = device, .model = moments == INT8 ? "m2:c16h4d4e5k2f12a4x2" /* nodes cut blocks */
                        : momentum > 0 ? "m2:c16h4d4e32k2f16a4x2" : "m2:c16h4d4e4k2f12a4x2",
                        .steps = SHORT, .level = 1, .momentum = momentum, .period = 3, .moments = moments,
                        .row_decay = momentum > 0 ? 0.9f : 0 };
    for (size_t i = 0; i < COUNT(moves); i++) {
        char *name = text_format("moved-%s%s-%d-%d-%d", device, momentum > 0 ? "-muon" : "", (int)moments,
                                 moves[i].before, moves[i].after), *folder = scratch_path(name);
        Team before = full, after = full, loaded = full, all = full;
        before.ranks = all.ranks = moves[i].before;
        after.ranks = loaded.ranks = moves[i].after;
        if ((before.shards = moves[i].shards)) before.level = 3;
        before.steps = loaded.steps = SHORT / 2, before.to = loaded.from = after.from = folder;
        run(&before);
        run(&loaded);
        check(same_kept(&loaded, &before, KEPT) && before.kept_bytes[2] > 0
              && (before.kept_bytes[1 + STATE_SQUARES] > 0) == (momentum > 0) && loaded.updates[0] == SHORT / 2,
              "%s: saved on %d ranks%s, resumed on %d: weights and state are the same bits", device, before.ranks,
              before.shards ? " in nodes" : "", after.ranks);
        run(&after);
        run(&all);
        for (int s = 0; s < SHORT / 2; s++) after.loss[s] = before.loss[s];
        check_error(largest(after.loss, all.loss), before.ranks == after.ranks && !before.shards ? 0 : bound,
                    "%d to %d ranks: the losses of a run that was not interrupted", before.ranks, after.ranks);
        team_free(&before), team_free(&after), team_free(&loaded), team_free(&all), free(name), free(folder);
    }
}

/* What a rank loads from one file, all save again as the same file: whatever is sharded, over
 * however many, with a copy or without. */
static int same_bytes(const char *a, const char *b, int step) {
    static const char *const names[] = { "model.safetensors", "optimizer.safetensors" };
    int same = 1;
    for (int i = 0; i < 2; i++) {
        Error e;
        size_t n = 0, m = 0;
        char *one = text_format("%s/state/step-%08d/%s", a, step, names[i]),
            *two = text_format("%s/state/step-%08d/%s", b, step, names[i]);
        char *x = file_read(one, &n, &e), *y = file_read(two, &m, &e);
        same &= x && y && n == m && n > 1000 && !memcmp(x, y, n);
        free(one); free(two); free(x); free(y);
    }
    return same;
}
/* A step after begin changes everything, and nothing of it is in the files. */
static void save_behind(const Team *t, Trainee *m, const Parallel *p) {
    char *behind = text_format("%s-behind", t->to);
    const Snapshot s = { .model = &m->m, .optimizer = &m->o, .step = t->steps,
                         .progress = "\"step\": 2, \"updates\": 2", .options = "{}" };
    Error e;
    Saved saved = SAVED_NOTHING;
    Saver *saver = saver_open(&m->m, &m->o);
    saver_make_buffer(saver);
    const int ready = saver_use_buffer(saver, 1) == BUFFER_READY,
        begins = saver_begin(saver, behind, &s, (Keep){ 1, 0, 0, 0 }, &e);
    trainee_do(m, t->steps);
    if (begins) saved = saver_end(saver, &e);
    if (p->rank == 0)
        check(ready && saved == SAVED_ALL && same_bytes(t->to, behind, t->steps), "%s on %d ranks, %d sharded: saved "
              "behind a step: %s", t->model, t->ranks, t->level, saved == SAVED_ALL ? "" : e.text);
    saver_close(saver), free(behind);
}
static void saved_alike(void) {
    static const struct { const char *device, *model; int pairs, oss, latents; float momentum; int absorbs; } runs[] = {
        { "cpu-f32", "m3:c16h4d4e4k2f12a4x2u1", 0, 0, 0, 0, 0 },
        { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2", 0, 0, 0, 0.95f, 0 },
        { "cpu-f32", "d2:c48h8f96", 1, 0, 0, 0.95f, 0 }, { "cpu-bf16", "m2:c24h4e5k2f20n0", 0, 1, 0, 0, 0 },
        { "cpu-f32", "m2:c24h4d10e5k2f20s1n0u1", 1, 0, 1, 0.95f, 0 },
        { "cpu-f32", "m2:c20h4d4e5k2f20v1g1t2p1", 0, 0, 0, 0.95f, 0 },
        { "cpu-bf16", "m2:c16h4d4e32k2f16a4x2", 0, 0, 0, 0.9f, 1 } };
    for (size_t i = 0; i < COUNT(runs); i += SLOW ? 3 : 1) {
        char *name = text_format("alike-%zu", i), *first = scratch_path(name);
        Team one = { .device = runs[i].device, .model = runs[i].model, .pairs = runs[i].pairs, .oss = runs[i].oss,
                     .latents = runs[i].latents, .momentum = runs[i].momentum, .ranks = 1, .steps = 2, .to = first,
                     .row_decay = runs[i].momentum > 0 ? 0.9f : 0, .absorbs = runs[i].absorbs };
        run(&one);
        for (int ranks = 1; ranks <= 5 - one.absorbs; ranks++)  /* 5: two nodes of two */
            for (int level = ranks == 1 ? 3 : one.absorbs ? 2 : ranks == 5; level <= 3; level++) {
                char *other = text_format("%s-%d-%d", first, ranks, level);
                Team many = again_on(&one, ranks == 5 ? 4 : ranks, ranks == 5 ? 2 : 0, ranks > 1 ? level : 0);
                many.from = first, many.to = other;
                many.more = save_behind;
                run(&many);
                check(same_bytes(first, other, 2), "%s%s: %d ranks, %s, save the same files as one", runs[i].model,
                      runs[i].momentum > 0 ? ", Muon" : "", many.ranks, levels[many.level]);
                team_free(&many), free(other);
            }
        team_free(&one), free(name), free(first);
    }
}

/* Gradients that are added to the owners' momentum as soon as these have their sums: as on one rank
 * whose micro-batches have the same tokens, but for the order of sums; however late they arrive. */
static void absorbed(void) {
    static const struct { const char *model; int micro_batches, period; } runs[] = {
        { "m2:c16h4d4e32k4f16a4x2u1", 1, 0 }, { "m4:c16h4d4e5k2f12", 3, 2 }, { "u3:c16h4d4e4k2f12a4x2", 1, 0 },
        { "d2:c16h4f20", 3, 0 }, { "m3:c20h4d4q2e4k2f12v2g1t2p1", 1, 0 } };
    for (size_t i = 0; i < COUNT(runs); i += SLOW ? 2 : 1) {
        Team one = { .device = "cpu-f64", .model = runs[i].model, .micro_batches = runs[i].micro_batches,
                     .steps = SHORT, .ranks = 1, .momentum = 0.9f, .plain = 1, .absorbs = 1, .most = 1,
                     .period = runs[i].period, .row_decay = runs[i].period ? 0.9f : 0 };
        run(&one);
        for (int k = 0; k < 4; k++) {
            Team many = again_on(&one, k < 2 ? 2 : 4, 0, 2 + k % 2), late;
            run(&many);
            check(many.agree, "%s on %d ranks, %s: the same weights", one.model, many.ranks, levels[many.level]);
            for (int kind = 0; kind < KEPT; kind++) {
                const size_t n = one.kept_bytes[kind] / sizeof(double);
                check(many.kept_bytes[kind] == one.kept_bytes[kind], "%s has all of kind %d", one.model, kind);
                if (n) check_error(relative_error(many.kept[kind], one.kept[kind], n), 1e-12,
                                   "%s on %d ranks, %s: kind %d", one.model, many.ranks, levels[many.level], kind);
            }
            late = again_on(&many, many.ranks, 0, many.level);
            late.late = 1;
            run(&late);
            check(same_kept(&late, &many, KEPT), "%s: the same bits, however late sums arrive", one.model);
            team_free(&many), team_free(&late);
        }
        team_free(&one);
    }
}
/* Whether weights are sharded, too, and what carries the sums, changes no bit. */
static void absorbed_alike(const Device *dev) {
    Team two = { .device = dev->name, .model = "m5:c64h4e8k2f64u1", .ranks = 2, .level = 2, .micro_batches = 3,
                 .steps = SHORT, .momentum = 0.9f, .plain = 1, .absorbs = 1, .most = 1 };
    run(&two);
    for (int i = 0; i < (dev->is_gpu ? 3 : 1); i++) {
        Team other = again_on(&two, 2, 0, i < 2 ? 3 : 2);
        other.by_kernels = i > 0;
        run(&other);
        check(same_kept(&two, &other, KEPT), "%s: gradients added to the owners' momentum, %s%s: the same bits",
              dev->name, levels[other.level], i ? ", by NCCL" : "");
        team_free(&other);
    }
    team_free(&two);
}
/* A loss that is not finite on one rank, though all gradients are: no rank adds anything. */
static void one_bad_loss(const Team *t, Trainee *trainee, const Parallel *p) {
    const double bad = NAN;
    const uint64_t before = trainee_hash(trainee);
    Model *m = &trainee->m;
    int tensor;
    trainee_send(trainee, t->steps);
    model_begin_micro(m, 0);
    model_forward(m);
    m->dp.exchange->sum_loads(m);
    model_loss(m, 1);
    if (p->rank == 1) m->dev->reals_from_double(m->loss_sum, &bad, 1);
    m->dp.exchange->wait_loads(m);
    model_router_losses(m), model_backward(m, 1), model_end_micro(m, 0);
    optimizer_update(&trainee->o, m);
    parallel_gather_weights(m, 0);
    trainee_loss(trainee, &tensor);
    const int alike = group_all(p->group, tensor >= 0 && trainee_hash(trainee) == before);
    if (p->rank == 0) check(alike, "a loss that is not finite on one of %d ranks: nothing changes on any", t->ranks);
}
static void absorbed_not_at_all(void) {
    Team t = { .device = "cpu-f32", .model = "m2:c16h4d4e4k2f12n0", .ranks = 3, .level = 2, .steps = 2,
               .momentum = 0.9f, .absorbs = 1, .more = one_bad_loss };
    run(&t);
    team_free(&t);
}
/* Saved by some ranks and resumed by others, each with gradients kept or added to the momentum. */
static void absorbed_elsewhere(Dtype moments) {
    typedef struct { int ranks, level, absorbs; } How;
    static const How moves[][2] = { { { 2, 2, 1 }, { 2, 2, 1 } }, { { 4, 3, 1 }, { 4, 3, 1 } },
                                    { { 4, 3, 1 }, { 1, 0, 1 } }, { { 1, 0, 1 }, { 4, 2, 1 } },
                                    { { 2, 1, 0 }, { 4, 3, 1 } }, { { 4, 3, 1 }, { 2, 3, 0 } } };
    for (size_t i = 0; i < COUNT(moves); i++) {
        char *name = text_format("absorbed-%zu", i), *folder = scratch_path(name);
        const How *from = &moves[i][0], *to = &moves[i][1];
        Team all = { .device = "cpu-f64", .model = "m2:c16h4d4e32k2f16a4x2", .ranks = from->ranks, .plain = 1,
                     .level = from->level, .absorbs = from->absorbs, .steps = SHORT, .momentum = 0.9f,
                     .moments = moments }, before = all, loaded, after;
        before.steps = SHORT / 2, before.to = folder;
        run(&before);
        loaded = again_on(&before, to->ranks, 0, to->level);
        loaded.absorbs = to->absorbs, loaded.from = folder, loaded.to = NULL;
        after = again_on(&loaded, to->ranks, 0, to->level);
        after.steps = SHORT;
        run(&loaded), run(&after), run(&all);
        check(same_kept(&loaded, &before, from->absorbs == to->absorbs ? KEPT : 1 + STATE_NORMS)
              && (loaded.kept_bytes[1 + STATE_NORMS] > 0) == to->absorbs, "%d ranks save, %d load: the same bits",
              from->ranks, to->ranks);
        for (int s = 0; s < SHORT / 2; s++) after.loss[s] = all.loss[s];
        check_error(largest(after.loss, all.loss), moments == INT8 ? 1e-2 : 1e-7, "%d ranks, then %d: losses of a run "
                    "on the first", from->ranks, to->ranks);        /* codes are rounded by other keys */
        if (i < 2) check(same_kept(&after, &all, KEPT), "%d ranks: resumed to the same bits", from->ranks);
        team_free(&before), team_free(&loaded), team_free(&after), team_free(&all), free(name), free(folder);
    }
}

/* Each rank draws its piece of the initial weights, and has all that it needs. */
static void draws(const Team *t, Trainee *m, const Parallel *p) {
    const Model *model = &m->m;
    const size_t X = model->dev->floatX_size;
    double wrong = 0;
    model_initialize(&m->m, 9);
    for (int range = 0; range < model->manifest.range_count; range++) {
        const char *full = parallel_full_weights(model, range);
        for (int i = 0; i < model->manifest.count; i++) {
            const Tensor *tensor = &model->manifest.at[i];
            double *got = mem_alloc(tensor->count * sizeof *got), *want = mem_alloc(tensor->count * sizeof *want);
            if (tensor->range == range) {
                model->dev->to_double(got, (const floatX *)(const void *)(
                        full + (tensor->offset - model->manifest.ranges[range].offset) * X), tensor->count);
                manifest_initial(tensor, 9, 0, tensor->count, 1, want);
            }
            for (size_t n = 0; n < tensor->count; n++) wrong += got[n] != (double)(float)want[n];
            free(got), free(want);
        }
    }
    wrong = parallel_sum(p, wrong, 0, 1e9);
    if (p->rank == 0) check(wrong <= 0, "%d ranks, %s, draw the weights that one draws: %g differ", t->ranks,
                            levels[t->level], wrong);
}
static void drawn_alike(void) {
    for (int ranks = 2; ranks <= 5; ranks++)                    /* 5: two nodes of two */
        for (int level = ranks == 5; level <= 3; level++) {
            Team t = { .device = "cpu-f32", .model = "m3:c16h4d4e4k2f12a4x2u1", .ranks = ranks == 5 ? 4 : ranks,
                       .shards = ranks == 5 ? 2 : 0, .level = level, .momentum = level % 2 ? 0.95f : 0, .steps = 1,
                       .more = draws };
            run(&t);
            team_free(&t);
        }
}

/* One rank cannot: no rank has saved, all know why, and the checkpoint before stays. */
static void one_cannot(const Team *t, Trainee *m, const Parallel *p) {
    const double bad = NAN;
    Error e = { 0 };
    double good;
    real *const x = m->o.m;
    m->m.dev->reals_to_double(&good, x, 1);
    if (p->rank == 1) m->m.dev->reals_from_double(x, &bad, 1);
    const Saved saved = save(t->to, m, t->steps + 1, &e);
    const int alike = group_all(p->group, saved == SAVED_NOTHING && !strncmp(e.text, "rank 1: ", 8)
                                && strstr(e.text, "not finite"));
    if (p->rank == 0) {
        char *state = text_format("%s/state", t->to);
        DIR *d = opendir(state);
        int others = 0;
        for (const struct dirent *f; d && (f = readdir(d)); )
            others += f->d_name[0] != '.' && strcmp(f->d_name, "step-00000002");
        for (const struct dirent *f = d ? (rewinddir(d), readdir(d)) : NULL; f; f = readdir(d))
            others += !strncmp(f->d_name, ".tmp", 4);
        if (d) closedir(d);
        check(alike, "a state that is not finite on rank 1 is saved by none, and all know why: %s", e.text);
        check(checkpoint_newest(t->to, 0) == t->steps && !others, "the checkpoint before stays, nothing else is there");
        free(state);
    }
    if (p->rank == 1) m->m.dev->reals_from_double(x, &good, 1);
    const Saved next = save(t->to, m, t->steps + 2, &e);
    if (p->rank == 0) check(next == SAVED_ALL, "the next save succeeds: %s", e.text);
}
static void saved_by_none(void) {
    char *folder = scratch_path("none");
    Team t = { .device = "cpu-f32", .model = "m2:c16h4d4e4k2f12a4x2", .ranks = 3, .level = 3, .steps = 2, .to = folder,
               .more = one_cannot };
    run(&t);
    team_free(&t), free(folder);
}

/* No process has more of a sharded model than its part: its peak grows by buffers only. */
#if defined(__GLIBC__)
static double peak(void) {
    struct rusage use;
    malloc_trim(0);                                         /* what was freed would hide what is needed */
    return getrusage(RUSAGE_SELF, &use) ? NAN : 1024 * (double)use.ru_maxrss;
}
static int saves_and_loads(Group *group, const void *folder) {
    const double most = 16e6;
    const Device *dev = device_find("cpu-f32");
    char why[256];
    Error e;
    Trainee m;
    Parallel p = { .rank = group->rank, .ranks = group->size, .level = 3, .group = group };
    const Config c = trainee_config("m4:c128h4e16k1f320", 40, T);
    if (!(p.node = p.comm = dev->connect(group, why)) || !trainee_open(&m, dev, &c, (TraineeOptions){
        .B = 1, .T = T, .seed = 5, .micro_batches = 1, .learnable = 1, .parallel = &p }))
        return 1;
    trainee_do(&m, 0);                                      /* memory that nothing has touched would count later */
    const double full = (double)m.m.manifest.learnable * 4, before = peak();
    const Saved saved = save(folder, &m, 1, &e);
    const double after = peak();
    group_barrier(group);
    Checkpoint *from = checkpoint_open(folder, NULL, &e);
    const int ok = saved == SAVED_ALL && from && checkpoint_load(from, &m.m, &m.o, &e);
    const double loaded = peak();
    const int bad = !(ok && full > 2 * most && after - before < most && loaded - after < most);
    if (bad) fprintf(stderr, "rank %d of a model of %.0f MB: saving takes %.1f MB more, loading %.1f MB: %s\n", p.rank,
                     full / 1e6, (after - before) / 1e6, (loaded - after) / 1e6, ok ? "" : e.text);
    checkpoint_close(from);
    group_barrier(group);
    p.comm->close(p.comm);
    trainee_close(&m);
    return bad;
}
static void no_rank_has_all(void) {
    const int port = free_port();
    char *folder = scratch_path("peak");
    int bad = 0, status;
    pid_t pid[2];
    fflush(stdout);
    for (int i = 0; i < 2; i++)
        if (!(pid[i] = fork())) {
            alarm(60);
            _exit(run_process(group_options(i, 2, 1, port), saves_and_loads, folder));
        }
    for (int i = 0; i < 2; i++) bad += waitpid(pid[i], &status, 0) != pid[i] || status;
    check(!bad, "two processes save and load a sharded model; neither has all of it in memory");
    free(folder);
}
#else
static void no_rank_has_all(void) { skip("the peak of memory is known only with glibc"); }
#endif

/* One rank's gradient is NaN: all skip the step. */
static void skipped_together(float momentum, int absorbs) {
    for (int i = absorbs ? 2 : 0; i <= (absorbs ? 3 : 5); i++) {
        const int level = i <= 3 ? i : i - 2, ranks = i <= 3 ? 3 : 4;
        Team good = { .device = "cpu-f32", .model = "m2:c16h4d4e4k2f12a4x2", .ranks = ranks, .shards = i <= 3 ? 0 : 2,
                      .level = level, .steps = 4, .momentum = momentum, .row_decay = momentum > 0 ? 0.9f : 0,
                      .absorbs = absorbs, .most = 4 };
        Team bad = good;
        bad.steps = bad.fails_at = 5;
        run(&good);
        run(&bad);
        int skipped = 1;
        for (int r = 0; r < ranks; r++) skipped &= bad.bad[r] >= 0 && bad.updates[r] == 4 && good.bad[r] < 0;
        check(skipped, "a bad gradient on one of %d ranks is skipped by all (%s)", ranks, levels[level]);
        check(same_kept(&good, &bad, KEPT) && bad.agree, "a skipped step changes no weight and no state");
        team_free(&good), team_free(&bad);
    }
}
void test_parallel(void) {
    PART(any_number_of_ranks()); PART(same_bits()); PART(same_bits_in_8_bits()); PART(full_matrices());
    PART(shards()); PART(resumed_elsewhere("cpu-f32", 1e-5, 0, REAL));
    PART(resumed_elsewhere("cpu-bf16", 2e-2, 0, REAL)); PART(resumed_elsewhere("cpu-f64", 1e-7, 0.95f, REAL));
    PART(resumed_elsewhere("cpu-f32", 2e-2, 0.95f, INT8)); PART(drawn_alike()); PART(saved_alike());
    PART(saved_by_none());
    if (!SLOW) PART(no_rank_has_all());                    /* a sanitizer's memory counts, too */
    PART(skipped_together(0, 0)); PART(skipped_together(0.95f, 0));
    PART(skipped_together(0.9f, 1)); PART(absorbed()); PART(absorbed_elsewhere(REAL));
    PART(absorbed_elsewhere(INT8)); PART(absorbed_not_at_all()); PART(absorbed_alike(device_find("cpu-f32")));
    if (!SLOW) PART(absorbed_alike(device_find("cpu-bf16")));
    const Device *dev;
    for (int i = 0; (dev = device_list(i)); i++)
        if (dev->is_gpu && is_tested(dev) && dev->count() > 1) {
            PART(same_bits_on_gpus(dev));
            PART(absorbed_alike(dev));
        }
}
