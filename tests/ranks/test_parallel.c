/* test_parallel.c: several ranks, as threads on the CPU, train one model. A step has the same loss, balance and gradient on any
 * number of ranks, whether or not they shard the optimizer's state. A checkpoint of one number of ranks is bit for bit that of
 * another. A bad gradient on one rank is skipped by all. The trainer on several ranks and processes: tests/programs.sh. */
#include "tests/test.h"
#include "tests/model/trainee.h"
#include "llmc/files/checkpoint.h"
#include "llmc/model/parallel.h"
#include "llmc/model/recompute.h"
#include "llmc/ranks/threads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 12, T = 8, STEPS = 30, KEPT = 1 + 3 };          /* KEPT: weights and up to three kinds of state */

typedef struct {                        /* ranks that train one model, and their results */
    const char *device, *model;
    int by_kernels;                     /* 1: GPUs exchange by NCCL */
    int fp8;                            /* Fp8Passes of the experts */
    int ranks, shards, level, ordered, late, micro_batches, steps;          /* shards: ranks of a node, 0: all; late: nothing arrives before it is waited for; 2: nor between nodes */
    Recompute recompute;
    float dropout, momentum;            /* momentum: Muon's; 0: AdamW */
    int fails_at;                       /* the step, from 1 on, at which the gradient of rank 1 is NaN; 0: none */
    const char *from, *to;              /* folder to load from, to save in; NULL: none */
    ProcessGroup *processes;
    double loss[STEPS], balance[STEPS], z[STEPS];
    int    load[STEPS], bad[8], updates[8], shared[8], agree;      /* shared: matrices of which a rank has only a part */
    size_t state_bytes, weight_bytes, total, learnable;
    void  *kept[KEPT];              /* at the end, all tensors one after the other */
    size_t kept_bytes[KEPT];
} Team;

/* Everything that is learned, without the padding, which depends on the number of ranks: the weights (kind LOAN_WEIGHTS), or what
 * tensors have of a kind of the optimizer's state. For rank 0; the others lend. */
static void *packed(const Model *m, const Optimizer *o, int kind, size_t *bytes) {
    const size_t element = kind == LOAN_WEIGHTS ? m->dev->floatX_size : m->dev->real_size;
    char *all = mem_alloc(m->manifest.total * element);
    const char *whole = NULL;
    *bytes = 0;
    for (int i = 0, range = -1; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (t->range != range && kind == LOAN_WEIGHTS) whole = parallel_whole_weights(m, t->range);
        if (t->range != range && kind >= 0) whole = optimizer_whole(o, m, kind, t->range);
        range = t->range;
        if (kind >= 0 && !optimizer_has(o, m, kind, i)) continue;
        const size_t at = kind >= 0 ? optimizer_offset(o, m, kind, i) : t->offset - m->manifest.ranges[range].offset;
        m->dev->download(all + *bytes, whole + at * element, t->count * element);
        *bytes += t->count * element;
    }
    return all;
}

/* Ranks whose transfers are done no earlier than they must be: what was queued is done when it is waited for. (The loopback does
 * everything at once.) A range that is used before it was waited for is then the one before; a gradient that is made before the last
 * one in its place was waited for spoils that. */
typedef struct { enum { T_GATHER, T_ADD, T_SUM, T_SCATTER, T_RECORD } what; void *x; const void *from; size_t n; int event; } Transfer;
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
static void late_gather(Comm *c, void *x, const void *mine, size_t bytes) { queue(c, (Transfer){ T_GATHER, x, mine, bytes, 0 }); }
static void late_add(Comm *c, real *shard, const real *x, size_t n) { queue(c, (Transfer){ T_ADD, shard, x, n, 0 }); }
static void late_record(Comm *c, int i) { queue(c, (Transfer){ T_RECORD, NULL, NULL, 0, i }); }
static void late_wait(Comm *c, int i) {
    Late *l = (Late *)c;
    int last = l->count - 1;
    while (last >= 0 && !(l->queue[last].what == T_RECORD && l->queue[last].event == i)) last--;
    do_first(l, last + 1);
}
static void late_join(Comm *c, int i) { (void)c, (void)i; }
static void late_wait_all(Comm *c) { do_first((Late *)c, ((Late *)c)->count); }
static void late_sum(Comm *c, real *x, size_t n) { queue(c, (Transfer){ T_SUM, x, NULL, n, 0 }); }
static void late_sum_ints(Comm *c, int *x, size_t n) { late_wait_all(c), ((Late *)c)->prompt->all_reduce_ints(((Late *)c)->prompt, x, n); }
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
    l->comm.wait = late_wait, l->comm.join = late_join, l->comm.wait_all = late_wait_all, l->comm.close = late_close;
    return &l->comm;
}

static void open_member(const Team *t, Trainee *m, const Parallel *p) {
    Config c = trainee_config(t->model, 40, T);
    c.fp8 = t->fp8;
    const TraineeOptions o = { .B = SEQUENCES / t->ranks / t->micro_batches, .T = T, .recompute = t->recompute, .seed = 5,
                               .micro_batches = t->micro_batches, .learnable = 1, .momentum = t->momentum,
                               .parallel = t->ranks > 1 || t->ordered ? p : NULL };
    if (!trainee_open(m, device_find(t->device), &c, o)) fail(EXIT_MEMORY, "no memory for a small model");
    m->m.balance_coef = 0.1f;
    m->m.z_coef = 0.01f;
    m->m.dropout = t->dropout;
    m->adamw.beta2 = 0.95f;
    m->adamw.clip = 0.5f;
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
        trainee_send(m, step);
        trainee_step(m);
        parallel_gather_weights(&m->m, step % 2);
        StepResults r = model_results(&m->m);
        optimizer_norm(&m->o, r.grad_sq_norms, &t->bad[rank]);
        if (rank == 0) keep_results(t, &m->m, &r, step);
        results_free(&r);
    }
    t->updates[rank] = m->o.updates;
    t->shared[rank] = m->o.muon.part_count;
}
static int load(const Team *t, Trainee *m) {                /* the step */
    Error e;
    Checkpoint *from = checkpoint_open(t->from, NULL, &e);
    if (!from || !checkpoint_load(from, &m->m, &m->o, &e)) fail(EXIT_CHECKPOINT, "%s", e.text);
    const int step = (int)json_int(json_get(checkpoint_run(from), "step"), 0);
    checkpoint_close(from);
    return step;
}
static void save(const Team *t, Trainee *m, int rank) {
    Error e;
    if (rank) { optimizer_lend(&m->o, &m->m); return; }
    char *progress = text_format("\"step\": %d, \"updates\": %d", t->steps, m->o.updates);
    const Snapshot s = { .model = &m->m, .optimizer = &m->o, .step = t->steps, .progress = progress, .options = "{}" };
    check(checkpoint_save(t->to, &s, (Keep){ 2, 0, 0 }, &e), "%d ranks save: %s", t->ranks, e.text);
    free(progress);
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
/* Every rank has the same weights, unless it has only a part, and rank 0 can have the weights and the state of all. */
static void keep_state(Team *t, Trainee *m, const Parallel *p) {
    uint64_t mine = weights_hash(&m->m), *hashes = mem_alloc((size_t)t->ranks * sizeof *hashes);
    p->group->exchange(p->group, hashes, &mine, sizeof mine);
    if (p->rank) optimizer_lend(&m->o, &m->m);
    else {
        t->agree = 1;
        const int shards = t->level < 3 ? 1 : t->shards ? t->shards : t->ranks;          /* of sharded weights the nodes have the same */
        for (int i = 0; i < t->ranks; i++) t->agree &= hashes[i] == hashes[i % shards];
        for (int i = 0; i < 1 + (m->o.master ? 3 : 2); i++) t->kept[i] = packed(&m->m, &m->o, LOAN_WEIGHTS + i, &t->kept_bytes[i]);
        parallel_end_loans(&m->m);
        t->state_bytes = m->m.arena.category[MEM_OPTIMIZER];
        t->weight_bytes = m->m.arena.category[MEM_WEIGHTS];
        t->total = m->m.manifest.total;
        t->learnable = m->m.manifest.learnable;
    }
    free(hashes);
}
static void member(void *team, int local) {
    Team *t = team;
    Trainee m;
    const Device *dev = device_find(t->device);
    Parallel p = { .ranks = t->ranks, .by_matrix = t->momentum > 0, .shards = t->shards, .level = t->level, .ordered = t->ordered, .one_process = dev->is_gpu && !t->by_kernels };
    parallel_connect(&p, dev, dev->is_gpu ? local : 0, t->processes, local);
    parallel_form_nodes(&p, dev);
    if (t->late) p.node = p.node == p.comm ? (p.comm = late(p.comm)) : late(p.node);
    if (t->late > 1 && p.across) p.across = late(p.across);
    open_member(t, &m, &p);
    train(t, &m, p.rank, t->from ? load(t, &m) : 0);
    if (t->to) save(t, &m, p.rank);
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

static double largest(const double *a, const double *b) {
    double worst = 0;
    for (int i = 0; i < STEPS; i++) if (!(fabs(a[i] - b[i]) <= worst)) worst = fabs(a[i] - b[i]);
    return worst;
}

static const char *const levels[] = { "each with the whole state", "state sharded", "state and gradients sharded", "all sharded" };

/* Two nodes: each has everything, and only sums of gradients go from one to the other. */
static void two_nodes(const Team *one, int shards, int level, double bound) {
    Team both = *one;
    if (SEQUENCES / 2 / shards % both.micro_batches) return;
    memset(both.kept, 0, sizeof both.kept);
    both.ranks = 2 * shards;
    both.shards = shards;
    both.level = level;
    both.steps = 10;
    run(&both);
    check(both.agree, "%s: two nodes of %d, %s, end with the same weights", one->device, shards, levels[level]);
    check_error(largest(both.loss, one->loss), bound, "%s %s: loss on two nodes of %d, %s", one->device, one->model, shards, levels[level]);
    check_error(largest(both.balance, one->balance), bound, "balance likewise");
    check(both.load[0] == one->load[0], "loads are counted over all nodes: %d and %d", both.load[0], one->load[0]);
    Team late = both;
    int same = 1;
    memset(late.kept, 0, sizeof late.kept);
    late.late = 1 + level % 2;
    run(&late);
    for (int k = 0; k < KEPT && both.kept[k]; k++) same &= !memcmp(late.kept[k], both.kept[k], both.kept_bytes[k]);
    check(same, "%s: the same bits, however late what nodes exchange arrives", levels[level]);
    team_free(&both);
    team_free(&late);
}

/* Loss curves on 1, 2, 3 and 4 ranks. In bf16, sums in another order now and then send a token to another expert. */
static void any_number_of_ranks(void) {
    static const struct { const char *device, *model; int micro_batches, recompute; double bound; float momentum; } runs[] = {
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2",     1, 0, 1e-5, 0 },
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2",     3, 2, 1e-5, 0 },        /* sums over ranks happen once, whatever is recomputed */
        { "cpu-f64",  "m3:c16h4q2e6k3f8a1s2",      1, 1, 1e-7, 0 },         /* scales such as 1/3 are floats */
        { "cpu-f64",  "u3:c16h4d4e4k2f12a4x2",     1, 0, 1e-7, 0 },         /* one block gets the gradients of all layers */
        { "cpu-f32",  "d2:c16h4f20",               1, 0, 1e-5, 0 },
        { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2",     1, 0, 2e-2, 0 },
        { "cpu-f64",  "m2:c16h4d4e4k2f12a4x2",     1, 0, 1e-7, 0.95f },
        { "cpu-f64",  "d2:c16h4f20",               3, 0, 1e-7, 0.95f },      /* most matrices have parts on several ranks */
        { "cpu-f64",  "d2:c48h4f96",               1, 0, 1e-7, 0.95f },
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        Team one = { .device = runs[i].device, .model = runs[i].model, .micro_batches = runs[i].micro_batches,
                     .recompute = recompute_numbered(runs[i].recompute), .steps = STEPS, .ranks = 1, .momentum = runs[i].momentum };
        run(&one);
        check(one.loss[STEPS - 1] < 0.8 * one.loss[0], "%s %s learns: %g to %g", one.device, one.model, one.loss[0],
              one.loss[STEPS - 1]);
        for (int ranks = 2; ranks <= 4; ranks++)
            for (int level = 0; level <= 3; level += level == 1 ? 2 : 1) {
                Team many = one;
                memset(many.kept, 0, sizeof many.kept);
                many.ranks = ranks;
                many.level = level;
                if (SEQUENCES / ranks % many.micro_batches) many.micro_batches = 1;
                if (many.micro_batches != one.micro_batches) continue;
                run(&many);
                const char *how = levels[level];
                check(many.agree, "%s: %d ranks, %s, end with the same weights", one.device, ranks, how);
                check_error(largest(many.loss, one.loss), runs[i].bound, "%s %s: loss on %d ranks, %s", one.device,
                            one.model, ranks, how);
                check_error(largest(many.balance, one.balance), runs[i].bound, "balance likewise");
                check_error(largest(many.z, one.z), runs[i].bound, "z likewise");
                check(many.load[0] == one.load[0], "loads are counted over all ranks: %d and %d", many.load[0], one.load[0]);
                team_free(&many);
            }
        for (int level = i % 6 ? 3 : 1; level <= 3; level++) two_nodes(&one, 2, level, runs[i].bound);
        if (i % 6 == 1) two_nodes(&one, 1, 3, runs[i].bound);
        team_free(&one);
    }
}

/* Ordered: 12 micro-batches of one sequence, split among 1, 2, 3 and 4 ranks, are the same step, whatever is sharded, and however late
 * what they exchange arrives. Returns how many matrices the ranks have only parts of. */
static int same_bits_as(const Team *one, int ranks, int shards, int level, int late) {
    Team many = *one;
    int same = 1, shared = 0;
    memset(many.kept, 0, sizeof many.kept);
    many.ranks = ranks;
    many.shards = shards;
    many.level = level;
    many.late = late;
    many.micro_batches = SEQUENCES / ranks;
    run(&many);
    for (int k = 0; k < KEPT && one->kept[k]; k++)
        same &= one->kept_bytes[k] == many.kept_bytes[k] && !memcmp(one->kept[k], many.kept[k], one->kept_bytes[k]);
    check(many.agree && same, "%s %s: 12 micro-batches on %d ranks%s, %s%s, end with the same bits as on %d", one->device, one->model, ranks,
          shards ? " in nodes" : "", levels[level], late ? ", late" : one->by_kernels ? ", by NCCL" : "", one->ranks);
    check(!memcmp(many.loss, one->loss, sizeof one->loss) && !memcmp(many.balance, one->balance, sizeof one->balance)
          && !memcmp(many.z, one->z, sizeof one->z) && !memcmp(many.load, one->load, sizeof one->load),
          "the same losses, balance and loads in all %d steps", one->steps);
    for (int r = 0; r < ranks; r++) shared += many.shared[r];
    team_free(&many);
    return shared;
}
static void same_bits(void) {
    static const struct { const char *device, *model; Recompute again; float dropout, momentum; } runs[] = {        /* again: not on one rank */
        { "cpu-f32",  "m2:c16h4d4e4k2f12a4x2", { { 0 } }, 0, 0 },               { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2", { { 1, 1, 1, 1, 1 } }, 0.1f, 0 },
        { "cpu-f64",  "m3:c16h4q2e6k3f8a1s2",  { { 2, 0, 0, 0, 1 } }, 0.1f, 0 }, { "cpu-f32", "u3:c16h4d4e4k2f12a4x2u1", { { 0, 1, 2, 0, 0 } }, 0.1f, 0 },
        { "cpu-f32",  "d2:c16h4f20",           { { 0, 0, 0, 0, 1 } }, 0, 0 },
        { "cpu-f32",  "d2:c16h4f20",           { { 0 } }, 0, 0.95f },           { "cpu-bf16", "m2:c16h4d4e4k2f12a4x2", { { 0, 1, 0, 1, 0 } }, 0.1f, 0.95f },
        { "cpu-f32",  "m5:c16h4d4e4k2f12a4x2u1v1", { { 4, 3, 1, 2, 4 } }, 0, 0.95f },   /* a head of its own; more layers than buffers for them */
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        Team one = { .device = runs[i].device, .model = runs[i].model, .dropout = runs[i].dropout, .momentum = runs[i].momentum,
                     .micro_batches = SEQUENCES, .steps = STEPS / 2, .ranks = 1, .ordered = 1 };
        run(&one);
        check(one.loss[STEPS / 2 - 1] < 0.9 * one.loss[0], "%s %s learns, ordered: %g to %g", one.device, one.model, one.loss[0],
              one.loss[STEPS / 2 - 1]);
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

/* With all sharded, the codes of weights are one layer's at a time. More layers than buffers for weights. */
static void same_bits_in_8_bits(void) {
    Team one = { .device = "cpu-f32", .model = "m5:c128h4e2k1f128n0", .fp8 = FP8_ALL, .micro_batches = SEQUENCES, .steps = 3, .ranks = 1, .ordered = 1 };
    run(&one);
    for (int level = 1; level <= 3; level++) same_bits_as(&one, 2, 0, level, level == 3);
    one.recompute = recompute_numbered(2);
    same_bits_as(&one, 2, 0, 3, 0);
    team_free(&one);
}

/* The same among the GPUs of this machine: what is sharded, and what carries it, changes no bit. */
static void same_bits_on_gpus(const Device *dev) {
    static const char *const models[] = { "m5:c64h4e8k2f64a8x2u1", "m4:c64h4e8k2f64" };
    for (int i = 0; i < 2; i++) {
        Team state = { .device = dev->name, .model = models[i], .ranks = 2, .level = 1, .ordered = 1, .steps = 6, .micro_batches = SEQUENCES / 2,
                       .momentum = i ? 0 : 0.95f };
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

/* With many experts, pieces end between matrices: nothing is shared, and the bits are those of one rank. Dense ones are cut. */
static void whole_matrices(void) {
    static const struct { const char *model; int cuts; } models[] = { { "m2:c16h4d4e32k2f16a4x2", 0 }, { "m2:c16h4d4e32k2f16v1", 0 }, { "d2:c16h4f20", 1 } };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Team one = { .device = "cpu-f32", .model = models[i].model, .momentum = 0.95f, .micro_batches = SEQUENCES, .steps = 4, .ranks = 1, .ordered = 1 };
        run(&one);
        for (int ranks = 2; ranks <= 4; ranks++) {
            const int shared = same_bits_as(&one, ranks, 0, ranks == 3 ? 1 : 3, 0);
            check((shared > 0) == (models[i].cuts && ranks > 2), "%s on %d ranks: %d matrices have parts on several", one.model, ranks, shared);
        }
        team_free(&one);
    }
}

static void shards(void) {
    Team t[2] = { { .device = "cpu-bf16", .model = "m2:c16h4d4e4k2f12a4x2", .ranks = 1, .steps = 1 } };
    t[1] = t[0];
    run(&t[0]);
    t[1].ranks = 4;
    t[1].level = 1;
    run(&t[1]);
    check(t[1].learnable == t[0].learnable && t[1].total - t[1].learnable <= t[0].total - t[0].learnable + 4 * 4 * 64,
          "padding for 4 ranks: %zu elements instead of %zu", t[1].total - t[1].learnable, t[0].total - t[0].learnable);
    check(t[1].state_bytes == 3 * sizeof(float) * t[1].total / 4, "each of 4 ranks has a quarter of the state: %zu of %zu bytes",
          t[1].state_bytes, t[0].state_bytes);
    team_free(&t[0]);
    team_free(&t[1]);
}

/* Saved on 4, 1 and 3 ranks, resumed on 1, 3 and 2: the state is the same bit for bit, and the losses are those of a run that
 * was not interrupted. */
static void resumed_elsewhere(const char *device, double bound, float momentum) {
    static const struct { int before, shards, after; } moves[] = { { 4, 0, 1 }, { 1, 0, 3 }, { 3, 0, 2 }, { 2, 0, 2 }, { 4, 2, 3 }, { 4, 2, 4 }, { 2, 1, 1 } };
    const Team whole = { .device = device, .model = momentum > 0 ? "m2:c16h4d4e32k2f16a4x2" : "m2:c16h4d4e4k2f12a4x2", .steps = STEPS, .level = 1, .momentum = momentum };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        char *name = text_format("moved-%s%s-%d-%d", device, momentum > 0 ? "-muon" : "", moves[i].before, moves[i].after), *folder = scratch_path(name);
        Team before = whole, after = whole, loaded = whole, all = whole;
        int same = 1;
        before.ranks = all.ranks = moves[i].before;
        after.ranks = loaded.ranks = moves[i].after;
        if ((before.shards = moves[i].shards)) before.level = 3;
        before.steps = loaded.steps = STEPS / 2;
        before.to = loaded.from = after.from = folder;
        run(&before);
        run(&loaded);
        for (int k = 0; k < KEPT; k++)
            same &= loaded.kept_bytes[k] == before.kept_bytes[k]
                && !memcmp(loaded.kept[k] ? loaded.kept[k] : "", before.kept[k] ? before.kept[k] : "", before.kept_bytes[k]);
        check(same && before.kept_bytes[2] > 0 && loaded.updates[0] == STEPS / 2,
              "%s: saved on %d ranks%s, resumed on %d: weights and state are the same bits", device, before.ranks,
              before.shards ? " in nodes" : "", after.ranks);
        run(&after);
        run(&all);
        for (int s = 0; s < STEPS / 2; s++) after.loss[s] = before.loss[s];
        check_error(largest(after.loss, all.loss), before.ranks == after.ranks && !before.shards ? 0 : bound, "%d to %d ranks: the losses of a run that was not interrupted", before.ranks, after.ranks);
        team_free(&before);
        team_free(&after);
        team_free(&loaded);
        team_free(&all);
        free(name);
        free(folder);
    }
}

/* One rank's gradient is NaN: all skip the step. */
static void skipped_together(float momentum) {
    for (int i = 0; i <= 5; i++) {
        const int level = i <= 3 ? i : i - 2, ranks = i <= 3 ? 3 : 4;
        Team good = { .device = "cpu-f32", .model = "m2:c16h4d4e4k2f12a4x2", .ranks = ranks, .shards = i <= 3 ? 0 : 2, .level = level,
                      .steps = 4, .momentum = momentum };
        Team bad = good;
        bad.steps = bad.fails_at = 5;
        run(&good);
        run(&bad);
        int skipped = 1, same = 1;
        for (int r = 0; r < ranks; r++) skipped &= bad.bad[r] >= 0 && bad.updates[r] == 4 && good.bad[r] < 0;
        for (int k = 0; k < KEPT - 1; k++) same &= !memcmp(good.kept[k], bad.kept[k], good.kept_bytes[k]);
        check(skipped, "a bad gradient on one of %d ranks is skipped by all (%s)", ranks, levels[level]);
        check(same && bad.agree, "a skipped step changes no weight and no state");
        team_free(&good);
        team_free(&bad);
    }
}

void test_parallel(void) {
    any_number_of_ranks();
    same_bits();
    same_bits_in_8_bits();
    whole_matrices();
    shards();
    resumed_elsewhere("cpu-f32", 1e-5, 0);
    resumed_elsewhere("cpu-bf16", 2e-2, 0);
    resumed_elsewhere("cpu-f64", 1e-7, 0.95f);
    skipped_together(0);
    skipped_together(0.95f);
    const Device *dev;
    for (int i = 0; (dev = device_list(i)); i++) if (dev->is_gpu && is_tested(dev) && dev->count() > 1) same_bits_on_gpus(dev);
}
