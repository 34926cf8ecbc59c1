/* run_plan.c: the plan of a run (run.h): batch, what is sharded and recomputed, memory, table. */
#include "run.h"
#include "llmc/files/families.h"
#include "llmc/model/plan.h"
#include "llmc/model/recompute.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- choices --------------------------------------------------------------------------------- */

/* On another number of ranks a resumed run keeps its tokens per step, by a smaller batch. */
static void fit_batch(Run *r) {
    Settings *s = &r->s;
    const int before = s->batch;
    const int64_t unit = (int64_t)s->seq * r->parallel.ranks;           /* tokens of a batch of 1 on all ranks */
    if (!r->restored || settings_given(s, "b") || s->total % unit) return;
    while (s->total / unit % s->batch) s->batch--;
    if (s->batch < before && r->leads)
        printf("-b %d instead of %d: the steps of this run have %lld tokens (-d), of sequences of %d on %d rank%s\n",
               s->batch, before, (long long)s->total, s->seq, r->parallel.ranks, r->parallel.ranks > 1 ? "s" : "");
}

/* A validation that the user did not set reads at most this many tokens of the split. */
enum { VALIDATED_CPU = 1 << 17, VALIDATED_GPU = 20 << 16 };
static void bound_validation(Run *r) {
    const int64_t all = data_validation_batches(r->data, r->s.batch, r->s.seq);
    const int64_t most = (r->dev->is_gpu ? VALIDATED_GPU : VALIDATED_CPU) / ((int64_t)r->s.batch * r->s.seq);
    if (!r->restored && !settings_given(&r->s, "m")) r->s.val_batches = all <= most ? -1 : most > 1 ? most : 1;
}

/* The choices of a plan that cost or save memory. automatic: -r auto. */
typedef struct {
    int batch, automatic, master, level, shards, ranks, bigram;
    Recompute recompute;
    Dtype moments;
    Accumulate accumulate;
} Economy;
static Economy as_set(const Run *r) {
    return (Economy){ r->s.batch, 0, r->s.master, r->parallel.level, r->parallel.shards, r->parallel.ranks,
                      r->config.bigram, r->recompute, r->s.moments, r->s.accumulate };
}
/* With -r and -ga as they were before the plan chose. */
static Economy as_given(const Run *r) {
    Economy e = as_set(r);
    e.automatic = r->s.recompute < 0;
    if (r->lacks_gradients) e.accumulate = IN_GRADIENTS_IF_FIT;
    return e;
}
static int looks_ahead(const Settings *s) { return settings_given(s, "wl") && s->ahead; }
/* 1: gradients can be added to Muon's momentum, if only with other options. */
static int can_absorb(const Run *r, const Economy *e) {
    const int summed_by_owners = e->level >= 2 && e->shards == e->ranks;
    return (e->ranks == 1 || summed_by_owners) && !r->s.ordered && (r->s.optimizer == MUON || !r->from);
}
/* 1: and are, without any, where nothing else fits. */
static int may_absorb(const Run *r, const Economy *e) {
    return e->accumulate == IN_GRADIENTS_IF_FIT && r->s.optimizer == MUON && !looks_ahead(&r->s) && can_absorb(r, e);
}
static Settings settings_with(const Run *r, const Economy *e) {
    Settings s = r->s;
    s.master = e->master, s.moments = e->moments, s.accumulate = IN_GRADIENTS;
    if (e->accumulate == IN_MOMENTUM && can_absorb(r, e)) s.accumulate = IN_MOMENTUM, s.optimizer = MUON, s.ahead = 0;
    return s;
}
static void set_sharding(const Run *r, Parallel *p, int level, int shards) {
    p->level = level;
    p->shards = shards;
    p->one_process = r->s.copies && r->dev->is_gpu && !r->records && r->local_devices.count % parallel_shards(p) == 0;
}
/* Of what writes samples of text, besides the model m. */
static size_t samples_memory(const Run *r, const Model *m) {
    return r->s.sample_every > 0 ? decoder_bytes(r->dev, &m->config, 1, r->s.seq > 2 ? r->s.seq : 2, m) : 0;
}
/* Memory of a plan; with -r auto, within capacity: e then has what is recomputed. */
static size_t memory_of(const Run *r, Economy *e, size_t capacity) {
    Model m;
    Optimizer o;
    Parallel p = r->parallel;
    Config c = r->config;
    const Settings s = settings_with(r, e);
    const MuonOptions muon = settings_muon(&s);
    c.bigram = e->bigram;
    p.ranks = e->ranks, p.by_matrix = muon.momentum > 0;
    set_sharding(r, &p, e->level, e->shards);
    if (e->automatic) e->recompute = recompute_numbered(0);
    model_plan_training(&m, r->dev, &c, e->batch, s.seq, &e->recompute,
                        run_most_micro_batches(r) * s.batch / e->batch, s.gradients,
                        p.ranks > 1 || p.ordered ? &p : NULL);
    optimizer_plan(&o, &m, s.master, s.moments, muon);
    const size_t kept = m.arena.total + samples_memory(r, &m);
    if (e->automatic && kept > capacity) e->recompute = recompute_choose(&m, kept - capacity);
    const size_t total = e->automatic ? kept - recompute_saves(&m, e->recompute) : kept;
    model_free(&m);
    return total;
}
/* Likewise; with -ga auto, gradients are kept if that fits. taken: NULL, or the choices. */
static size_t memory_with(const Run *r, Economy e, size_t capacity, Economy *taken) {
    size_t bytes = memory_of(r, &e, capacity);
    if (capacity && bytes > capacity && may_absorb(r, &e)) {
        e.accumulate = IN_MOMENTUM;
        bytes = memory_of(r, &e, capacity);
    }
    if (taken) *taken = e;
    return bytes;
}
/* Ranks of this process that use the memory of one device. */
static size_t ranks_on_device(const Run *r) { return r->dev->is_gpu ? 1 : (size_t)r->local_devices.count; }
static size_t rank_memory(const Run *r) {                                               /* 0: unknown */
    const size_t has = r->dev->memory() / ranks_on_device(r);
    return r->limit && (!has || r->limit < has) ? r->limit : has;
}
/* The least that a rank has, and which has it. All ranks call this. */
static size_t least_memory(const Run *r, int *which) {
    const int ranks = r->parallel.group ? r->parallel.ranks : 1;
    double least = 0, *all = mem_alloc((size_t)ranks * sizeof *all);
    all[0] = (double)rank_memory(r);
    if (ranks > 1) group_gather(r->parallel.group, all, all[0], 0, 1e18);
    for (int i = *which = 0; i < ranks; i++)
        if (all[i] > 0 && (least <= 0 || all[i] < least)) least = all[i], *which = i;
    free(all);
    return (size_t)least;
}

/* As options: -z 3, and over which ranks, if there are nodes. */
static const char *sharding_name(const Run *r, int level, int shards, char name[48]) {
    const int ranks = r->parallel.ranks;
    snprintf(name, 48, "-z %d", level);
    if (level > 0 && shards < ranks) snprintf(name, 48, "-z %d -zn %d", level, shards);
    else if (level > 1 && r->node < ranks) snprintf(name, 48, "-z %d -zn 0", level);
    return name;
}
/* The choices of -z and -zn in order. -z auto: level 1 over all ranks, which sends least and has
 * the smallest optimizer state; then levels 2 and 3 within a node; then those over all ranks. */
enum { SHARDINGS = 5 };
static int shardings(const Run *r, int level[SHARDINGS], int shards[SHARDINGS]) {
    static const struct { int level, over_all; } order[SHARDINGS] = { { 1, 1 }, { 2, 0 }, { 3, 0 },
                                                                      { 2, 1 }, { 3, 1 } };
    const int all = r->parallel.ranks, hosts = r->s.node < 0 && r->node < all;
    if (r->s.level >= 0) {              /* it is given */
        level[0] = r->s.level;
        shards[0] = r->s.node < 0 && r->s.level < 2 ? all : r->node;
        return 1;
    }
    const int count = hosts ? SHARDINGS : 3;
    int n = 0;
    for (int i = 0; i < count; i++) {
        level[n] = order[i].level;
        shards[n] = r->s.node < 0 && order[i].over_all ? all : r->node;
        if (r->s.accumulate != IN_MOMENTUM || (level[n] >= 2 && shards[n] == all)) n++;
    }
    return n ? n : 1;
}
/* The first of these that fits on every rank; if none does, the one that takes least. */
static void choose_level(Run *r) {
    int level[SHARDINGS], shards[SHARDINGS], which = 0;
    /* by this rank's memory alone */
    const int count = shardings(r, level, shards), planned = r->parallel.level, over = r->parallel.shards;
    const size_t capacity = rank_memory(r);
    char name[48], before[48];
    Economy e = as_set(r);
    size_t fewest = 0;
    for (int i = 0; i < count && capacity; i++) {
        e.level = level[i], e.shards = shards[i];
        const size_t bytes = memory_with(r, e, 0, NULL);
        if (!fewest || bytes < fewest) which = i, fewest = bytes;
        if (bytes <= capacity) break;
    }
    if (r->parallel.group) which = group_max(r->parallel.group, which, count - 1);
    if (r->parallel.group && r->leads && (level[which] != planned || shards[which] != over))
        printf("%s instead of %s: that is what fits on all ranks\n",
               sharding_name(r, level[which], shards[which], name), sharding_name(r, planned, over, before));
    set_sharding(r, &r->parallel, level[which], shards[which]);
}

/* -r auto: nothing if that fits on every rank, else the cheapest parts that make it fit. */
static void choose_recompute(Run *r) {
    int which;
    const size_t capacity = r->s.recompute < 0 ? least_memory(r, &which) : 0;
    Economy e = as_set(r);
    e.automatic = 1;
    if (!capacity) return;
    memory_with(r, e, capacity, &e);
    r->recompute = e.recompute;
}

/* -ga auto: gradients are kept unless no choice of -r makes that fit. Where they are added to the
 * momentum, the update is of the momentum itself. */
static void choose_accumulation(Run *r) {
    Settings *s = &r->s;
    int which;
    Economy e = as_given(r);
    const size_t capacity = may_absorb(r, &e) ? least_memory(r, &which) : 0;
    if (capacity) memory_with(r, e, capacity, &e);
    r->lacks_gradients = capacity && e.accumulate == IN_MOMENTUM;
    if (r->lacks_gradients) s->accumulate = IN_MOMENTUM;
    if (s->accumulate != IN_MOMENTUM) return;
    if (s->optimizer != MUON)
        fail(EXIT_USAGE, "-ga momentum: gradients are added to Muon's momentum, which -wo adamw has not. -wo muon, or "
             "-ga gradients");
    if (looks_ahead(s))
        fail(EXIT_USAGE, "-ga momentum: the update is of the momentum itself, which looks not ahead. -wl 0, or -ga "
             "gradients");
    if (!can_absorb(r, &e))
        fail(EXIT_USAGE, "-ga momentum: not with %s. -ga gradients%s", s->ordered ? "-rp 1, which sums gradients first"
             : e.level < 2 ? "-z 0 or 1 on several ranks, which sum gradients first" : "nodes (-zn), each of which has "
             "a momentum", s->ordered ? "" : e.level < 2 ? ", or -z 2" : ", or -zn 0");
    if (s->ahead && !r->restored) settings_plain_momentum(s);
    s->ahead = 0;
}

/* Slots of the tokens of a micro-batch, in the layer that has the most. */
static int64_t most_slots(const Config *c, int N) {
    const int64_t mlp = mlp_slots(c, N, 1), attention = c->attention_experts > 1 ? (int64_t)N * c->query_heads : 0;
    return mlp > attention ? mlp : attention;
}
/* micro_batches: of a step of the first stage. */
static void plan_stages(Run *r, int64_t micro_batches) {
    Settings *s = &r->s;
    Error e;
    if (!stages_parse(&r->stages, s->stages, &e)) fail(EXIT_USAGE, "-ds %s: %s", s->stages, e.text);
    if (micro_batches * r->stages.most > 1 << 20)
        fail(EXIT_USAGE, "-d %lld: more than %d micro-batches a step", (long long)s->total, 1 << 20);
    r->micro_batches = r->first_micro_batches = (int)micro_batches;
    const int64_t all = stages_before(&r->stages, r->stages.count, r->stages.count) * samples_per_step(r);
    if (s->steps < 0
        && !(s->steps = -s->steps * data_epoch_samples(r->data, s->seq) * r->stages.count / all)
        && !(s->steps = run_only_plans(r)))                 /* a plan of one */
        fail(EXIT_INPUT, "%s: an epoch has %lld sequences, less than the %lld of one step. "
             "Use smaller steps (-b, -t, -d), or set their number (-x)",
             s->train, (long long)data_epoch_samples(r->data, s->seq), (long long)(all / r->stages.count));
    if (s->steps > 0 && s->steps < r->stages.count)
        fail(EXIT_USAGE, "-ds %s: a run of %lld steps (-x) has no %d stages", s->stages, (long long)s->steps,
             r->stages.count);
}
static double run_samples(const Run *r) {
    return (double)stages_before(&r->stages, r->s.steps, r->s.steps) * (double)samples_per_step(r);
}
/* Choosing takes 13 s for a billion tokens: none of longer texts, which a run reads in hours. */
static int percent_unread(const Run *r) {
    enum { MOST = 20, LONGEST = 1000000000 };
    const double read = run_samples(r) / (double)data_epoch_samples(r->data, r->s.seq);
    if (read > 1 || data_has_chats(r->data) || data_tokens(r->data, DATA_TRAIN) > LONGEST) return 0;
    return read < 1 - MOST / 100.0 ? MOST : (int)(100 * (1 - read));
}
void run_skip_unread(Run *r) {
    if (r->s.skip >= 0) return;
    r->s.skip = r->restored ? 0 : percent_unread(r);        /* restored: begun by a program without -sk */
    run_skip_windows(r);
}
void run_plan(Run *r) {
    Settings *s = &r->s;
    const int ranks = r->parallel.ranks;
    if (s->total) fit_batch(r);
    else if (!settings_given(s, "b") && !r->restored)      /* the default batch is split across the ranks */
        s->batch = s->batch > ranks ? s->batch / ranks : 1;
    const int64_t micro = (int64_t)s->batch * s->seq * ranks;
    if (micro / ranks > 1 << 28)
        fail(EXIT_USAGE, "-b %d -t %d: a micro-batch of more than %d tokens", s->batch, s->seq, 1 << 28);
    const int64_t slots = most_slots(&r->config, s->batch * s->seq);
    if (micro > INT_MAX || slots > INT_MAX)
        fail(EXIT_USAGE, "-b %d -t %d: a micro-batch of %lld tokens on all ranks, and %lld slots of experts "
             "on each; at most %d of either. A smaller -b, with the same -d, makes it several", s->batch, s->seq,
             (long long)micro, (long long)slots, INT_MAX);
    if (s->total == 0) s->total = micro;
    if (!r->restored && !settings_given(s, "d")) s->total = s->total < micro ? micro : s->total / micro * micro;
    if (s->total % micro && r->restored && !settings_given(s, "d")) {
        int b = s->batch;
        while (b > 1 && s->total % ((int64_t)b * s->seq * ranks)) b--;
        const int fits = s->total % ((int64_t)b * s->seq * ranks) == 0;
        fail(EXIT_USAGE, "the steps of this run have %lld "
             "tokens (-d), which must be a multiple of B*T = %d*%d%s. %s%d%s", (long long)s->total, s->batch, s->seq,
             ranks > 1 ? ", times the ranks" : "", fits ? "-b " : "Give other sequences than -t ", fits ? b : s->seq,
             fits ? " would do; or give another -d" : ", or -d");
    }
    if (s->total % micro)
        fail(EXIT_USAGE, "-d %lld: must be a multiple of B*T = %d*%d%s = %lld", (long long)s->total, s->batch, s->seq,
             ranks > 1 ? ", times the ranks," : "", (long long)micro);
    plan_stages(r, s->total / micro);
    if (!r->restored) settings_fit_steps(s);
    bound_validation(r);
    r->recompute = recompute_numbered(s->recompute);
    if (ranks > 1) choose_level(r);
    choose_accumulation(r);
    choose_recompute(r);
    model_plan_training(&r->model, r->dev, &r->config, s->batch, s->seq, &r->recompute,
                        run_most_micro_batches(r), s->gradients, ranks > 1 || s->ordered ? &r->parallel : NULL);
    if (s->ordered && ((r->dev->floatX_size == 2 && (!s->master || s->moments == FLOATX)) || s->moments == INT8))
        fail(EXIT_USAGE, "-rp 1: not with -mw 0, -mo bf16 or -mo int8. Their stochastic rounding depends on positions "
             "in memory, which depend on the number of ranks");
    if (s->moments == INT8 && s->optimizer != MUON)
        fail(EXIT_USAGE, "-mo int8: only Muon's momentum is kept in 8 bits, and -wo adamw has none. -mo bf16, or "
             "-wo muon");
    if (s->moments == FLOATX && r->dev->floatX_size != 2)
        fail(EXIT_USAGE, "-mo bf16: %s does not store bf16. -mo f32, or another device (-dv)", r->dev->name);
    optimizer_plan(&r->optimizer, &r->model, s->master, s->moments, settings_muon(s));
    r->memory = r->model.arena.total + samples_memory(r, &r->model);
    r->optimizer.tables = (TableRates){ s->value_rate, s->bigram_rate };
}

/* The next batch to try: at most half, and it divides the sequences of a step. 0: none. */
static int smaller_batch(const Run *r, int batch) {
    const int64_t sequences = (int64_t)r->s.batch * r->micro_batches;
    for (batch /= 2; batch > 1 && sequences % batch; ) batch--;
    return batch;
}
static Dtype least_moments(const Run *r) { return r->s.moments == INT8 ? INT8 : FLOATX; }
/* The options with which a run is as e says, each after a space. */
static void add_options(const Run *r, Economy e, Text *out) {
    const Economy now = as_given(r);
    const Settings *s = &r->s;
    char name[48];
    if (e.batch != now.batch) text_add(out, " -b %d -d %lld", e.batch, (long long)tokens_per_step(r));
    if (e.level != now.level || e.shards != now.shards)
        text_add(out, " %s", sharding_name(r, e.level, e.shards, name));
    if (e.automatic != now.automatic) text_add(out, " -r auto");
    if (e.master != now.master || e.moments != now.moments)
        text_add(out, " -mw 0 -mo %s", e.moments == INT8 ? "int8" : "bf16");
    if (e.accumulate == IN_MOMENTUM && now.accumulate != IN_MOMENTUM)
        text_add(out, "%s%s -ga momentum", s->optimizer == MUON ? "" : " -wo muon", looks_ahead(s) ? " -wl 0" : "");
    if (e.bigram != now.bigram) text_add(out, " t%d for t%d in -e", e.bigram, now.bigram);
}
/* The fewest GPUs, twice as many and so on from e->ranks on, that hold the run if they shard
 * everything: then e has their number and the choices. 0: too many. */
static size_t fewest_ranks(const Run *r, Economy *e, size_t capacity) {
    enum { MOST_RANKS = 1024 };
    size_t all = 0;                                         /* bytes of all ranks together; more of them need no less */
    for (; e->ranks <= MOST_RANKS; e->ranks *= 2) {
        if (all / (size_t)e->ranks > capacity) continue;
        e->level = e->ranks > 1 ? MOST_SHARDED : 0, e->shards = e->ranks;
        Economy smallest = *e;
        smallest.automatic = 0;                 /* what to recompute is chosen when it is clear that this will do */
        if (e->automatic) smallest.recompute = recompute_numbered(2);
        const size_t bytes = memory_with(r, smallest, capacity, NULL);
        if (bytes <= capacity) return memory_with(r, *e, capacity, e);
        if (!all) all = bytes * (size_t)e->ranks;
    }
    return 0;
}
static void add_more_ranks(const Run *r, Economy all, size_t capacity, Text *hint) {
    all.ranks *= 2;
    const size_t bytes = r->dev->is_gpu ? fewest_ranks(r, &all, capacity) : 0;
    if (!bytes) return;
    text_add(hint, "%s %d GPUs (-ng, or several machines) with -z 3", hint->at ? "," : "This would fit:", all.ranks);
    all.level = r->parallel.level, all.shards = r->parallel.shards;
    add_options(r, all, hint);
    text_add(hint, ": %.1f MB each", (double)bytes / 1e6);
}
/* The largest of the smaller batches that fits; 1 or 0 if none does. */
static void shrink(const Run *r, Economy *e, size_t capacity) {
    do e->batch = smaller_batch(r, e->batch);
    while (e->batch > 1 && memory_with(r, *e, capacity, NULL) > capacity);
}
/* The fewest with the options that need least: micro-batches of one sequence where those do, and
 * gradients added to the momentum where that does. */
static Economy least_ranks(const Run *r, size_t capacity) {
    Economy best = as_given(r), least = best;
    best.ranks = 0;
    least.master = 0, least.moments = least_moments(r), least.automatic = 1;
    for (int i = 0; i < 4 && r->dev->floatX_size == 2; i++) {
        Economy e = least;
        e.ranks = 1;
        if (i % 2) e.batch = 1;
        if (i >= 2) e.accumulate = IN_MOMENTUM;
        if (i >= 2 && !can_absorb(r, &e)) break;
        if (fewest_ranks(r, &e, capacity) && (!best.ranks || e.ranks < best.ranks)) best = e;
    }
    return best;
}
/* How many GPUs of this name, with which options, and the run's time on them. */
static void add_holder(const Run *r, const char *gpu, Economy e, Text *out) {
    Run there = *r;
    Text options = { 0 };
    char time[32];
    there.s = settings_with(r, &e);
    duration_text(time, run_time_on(&there, gpu, e.ranks, e.recompute, e.batch));
    e.level = r->parallel.level, e.shards = r->parallel.shards;         /* -z auto finds them */
    add_options(r, e, &options);
    text_add(out, "%d%s%s, %s", e.ranks, options.at ? " with" : "", options.at ? options.at : "", time);
    free(options.at);
}
/* What holds this run: of GPUs of several sizes the fewest, as it is and with those options. */
static void add_gpus(const Run *r, Text *out) {
    double gigabytes;
    const char *name;
    for (int i = 0; (name = device_example(i, &gigabytes)); i++) {
        const size_t capacity = (size_t)(1e9 * gigabytes);
        Economy now = as_given(r);
        now.ranks = 1;
        text_add(out, "%s%.0f GB (%s): ", i ? "; " : "", gigabytes, name);
        const int fits = fewest_ranks(r, &now, capacity) > 0;
        if (fits) add_holder(r, name, now, out);
        const Economy least = fits && now.ranks == 1 ? now : least_ranks(r, capacity);
        if (!fits && !least.ranks) text_add(out, "not on 1024");
        if (!least.ranks || (fits && least.ranks >= now.ranks)) continue;
        if (fits) text_add(out, ", or ");
        add_holder(r, name, least, out);
    }
}
/* What a table of bigrams takes, with its gradient and moments. */
static size_t bigram_memory(const Run *r) {
    const Economy now = as_set(r);
    Economy without = now;
    without.bigram = 0;
    return r->config.bigram ? memory_with(r, now, 0, NULL) - memory_with(r, without, 0, NULL) : 0;
}
/* What could make the run fit. bytes: that it then takes; 0: it is no way. */
typedef struct { Economy with; size_t bytes; } Remedy;
/* Says those that fit, the largest saving first. */
static void add_remedies(const Run *r, Remedy *remedy, int count, size_t capacity, Text *hint) {
    for (int best; best = -1, capacity; remedy[best].bytes = 0) {
        for (int i = 0; i < count; i++)
            if (remedy[i].bytes && remedy[i].bytes <= capacity && (best < 0 || remedy[i].bytes < remedy[best].bytes))
                best = i;
        if (best < 0) break;
        text_add(hint, "%s", hint->at ? "," : "This would fit:");
        add_options(r, remedy[best].with, hint);
        text_add(hint, ": %.1f MB", (double)remedy[best].bytes / 1e6);
    }
}
/* Several changes at once, where none is enough: of the optimizer only if the others are not. */
static void add_least(const Run *r, Economy least, size_t capacity, Text *hint) {
    const int batch = least.batch;
    if (least.ranks > 1) least.level = MOST_SHARDED, least.shards = least.ranks;
    for (int absorbs = 0; absorbs <= can_absorb(r, &least) && !hint->at; absorbs++) {
        least.batch = batch;
        if (absorbs) least.accumulate = IN_MOMENTUM;
        shrink(r, &least, capacity);
        Remedy all = { least, 0 };
        if (least.batch) all.bytes = memory_with(r, least, capacity, &all.with);
        add_remedies(r, &all, 1, capacity, hint);
    }
}
/* The options with which the run would fit, and what else would help. free() it. */
static char *would_fit(const Run *r, size_t capacity) {
    enum { LEAN, AGAIN, BOTH, SMALL_BATCH, SHARDS, ALL, TABLE, ABSORBS, LEAN_ABSORBS, REMEDIES };
    const int could = r->s.recompute == 0 || r->s.recompute == 1,           /* more may be recomputed than is */
        bf16 = r->dev->floatX_size == 2, ranks = r->parallel.ranks > 1;
    const Economy now = as_given(r);
    /* not where the plan has tried it */
    const int absorbs = can_absorb(r, &now) && !may_absorb(r, &now) && now.accumulate != IN_MOMENTUM;
    Remedy x[REMEDIES];
    for (int i = 0; i < REMEDIES; i++) x[i] = (Remedy){ now, 0 };
    x[AGAIN].with.automatic = x[BOTH].with.automatic = x[ALL].with.automatic = 1;
    if (could) x[LEAN_ABSORBS].with.automatic = 1;
    x[ABSORBS].with.accumulate = x[LEAN_ABSORBS].with.accumulate = IN_MOMENTUM;
    x[SHARDS].with.level = x[ALL].with.level = MOST_SHARDED;
    x[SHARDS].with.shards = x[ALL].with.shards = r->parallel.ranks;
    for (int i = 0; i < REMEDIES; i++)
        if (i == LEAN || i == BOTH || i == LEAN_ABSORBS) x[i].with.master = 0, x[i].with.moments = least_moments(r);
    shrink(r, &x[SMALL_BATCH].with, capacity);
    while ((x[TABLE].with.bigram /= 2) && memory_with(r, x[TABLE].with, capacity, NULL) > capacity) { }
    const int is_way[REMEDIES] = { bf16, could, bf16 && could, x[SMALL_BATCH].with.batch, ranks, ranks && could,
                                   now.bigram && !r->from,  /* a resumed run has its model */
                                   absorbs, absorbs && bf16 };
    const Economy both = x[BOTH].with, all = x[ALL].with;
    for (int i = 0; i < REMEDIES; i++) if (is_way[i]) x[i].bytes = memory_with(r, x[i].with, capacity, &x[i].with);
    Text hint = { 0 };
    add_remedies(r, x, REMEDIES, capacity, &hint);
    if (bf16 && !hint.at) add_least(r, both, capacity, &hint);
    add_more_ranks(r, all, capacity, &hint);
    text_add(&hint, "%s shorter sequences (-t) or a smaller model (-e)", hint.at ? ". Otherwise" : "Only");
    if (r->dev->is_gpu && !run_only_plans(r)) {
        text_add(&hint, ". How many GPUs hold this run, and how long it takes: ");
        add_gpus(r, &hint);
    }
    return hint.at;
}
/* rank: a rank without enough memory; capacity: what it has. */
static _Noreturn void lacks_memory(const Run *r, int rank, double capacity) {
    const size_t need = r->memory;
    char where[96] = "", with[64] = "", has[96] = "", name[48];
    if (r->parallel.ranks > 1) snprintf(where, sizeof where, "rank %d of %d: ", rank, r->parallel.ranks);
    if (r->parallel.ranks > 1)
        snprintf(with, sizeof with, " with %s", sharding_name(r, r->parallel.level, r->parallel.shards, name));
    if (capacity > 0 && capacity < (double)need)
        snprintf(has, sizeof has, "; it has %.1f MB%s: %.1f MB are missing", capacity / 1e6,
                 r->limit ? " within -gm" : "", ((double)need - capacity) / 1e6);
    char table[96] = "";
    if (r->config.bigram) snprintf(table, sizeof table, ", %.1f MB of it the table of bigrams (t)",
                                   (double)bigram_memory(r) / 1e6);
    fail(EXIT_MEMORY, "%s%s does not have the %.1f MB that this run needs%s%s%s%s. %s%s", where, r->dev->name,
         (double)need / 1e6, with, r->model.arena.category[MEM_KEPT] > need / 2 ? ", most of it activations" : "",
         table, has, r->s.recompute < 0 ? "Backward already recomputes all that it can (-r auto). " : "",
         would_fit(r, (size_t)capacity));
}
/* Ranks exchange what they have, so that all end with the same message if one has too little. */
void run_check_memory(const Run *r) {
    int which;
    const size_t least = least_memory(r, &which);
    if (least && r->memory > least) lacks_memory(r, which, (double)least);
}
void run_out_of_memory(const Run *r) { lacks_memory(r, r->parallel.rank, (double)rank_memory(r)); }
/* A line of the table; on a terminal it goes on in further ones, under its value. */
PRINTF(1, 2) static void line(const char *format, ...) {
    char text[8192], margin[64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *bar = strstr(text, " | ");
    snprintf(margin, sizeof margin, "|%*s", bar && bar - text < 40 ? (int)(bar - text) + 2 : 5, "");
    text_wrap(stdout, 0, terminal_width(STDOUT_FILENO), margin, text);
    putchar('\n');
}
static void rule(void) {
    const int width = terminal_width(STDOUT_FILENO);
    putchar('+');
    for (int i = 1; i < (width && width < 69 ? width : 69); i++) putchar('-');
    putchar('\n');
}
/* What each level would take. */
static void print_levels(const Run *r) {
    static const char *const sharded[] = { "nothing", "optimizer state", "optimizer state and gradients",
                                           "optimizer state, gradients and weights" };
    Economy e = as_set(r);
    const int ranks = r->parallel.ranks, shards = parallel_shards(&r->parallel);
    char name[48];
    Text t = { 0 };                         /* printed as a whole: what it counts may run out of memory */
    text_add(&t, "|   (%s sharded over %d ranks%s", sharded[e.level], shards,
             shards < ranks ? " of a node, alike in each of " : "");
    if (shards < ranks) text_add(&t, "%d nodes", ranks / shards);
    text_add(&t, ", %s; in all", sharding_name(r, e.level, shards, name));
    for (int nodes = 0; nodes <= (r->node < ranks); nodes++)
        for (e.level = nodes ? r->s.node > 0 ? 1 : 2 : 0; e.level <= MOST_SHARDED; e.level++) {
            e.shards = nodes ? r->node : ranks;
            text_add(&t, "%s %s: %.2f MB", e.level || nodes ? "," : "", sharding_name(r, e.level, e.shards, name),
                     (double)memory_with(r, e, 0, NULL) / 1e6);
        }
    line("%s)", t.at);
    free(t.at);
}

/* What is recomputed; in a plan that is only printed, also what could be. */
static void print_recompute(const Run *r, int plans) {
    Text t = { 0 };
    recompute_describe(&r->model, r->recompute, &t);
    if (t.at && r->s.recompute < 0) line("|   (-r auto recomputes %s)", t.at);
    else if (t.at) line("|   (-r %d recomputes %s)", r->s.recompute, t.at);
    t.length = 0;
    recompute_list(&r->model, &t);
    if (plans && r->config.layers > 1) line("|   (recomputing would save: %s)", t.at);
    free(t.at);
}
/* The host's memory, and what saving costs. */
static void print_host(const Run *r) {
    enum { DISK = 1000000000 };                             /* bytes per second of a disk, if nothing is known of it */
    const double bytes = (double)r->saves.bytes;
    Text t = { 0 };
    char time[32];
    const double total = (double)run_host_memory(r, r->saves.copy_bytes, &t);
    line("|   %-27s | %10.2f MB: %s", "memory of the host", total / 1e6, t.at);
    free(t.at);
    duration_text(time, bytes / DISK);
    if (r->s.kept == KEEP_NOTHING)
        line("|   checkpoint snapshot, host   |       none: nothing is saved (-sv none)");
    else if (r->saves.copy_bytes)
        line("|   checkpoint snapshot, host   | %10.2f MB%s: training pauses only while it is taken",
             bytes / 1e6, r->elsewhere ? ", if it has them for each rank" : "");
    else
        line("|   checkpoint snapshot, host   |       none: it would leave too little memory. Training pauses while "
             "each checkpoint of %.1f MB is written from the device in pieces (%s, at 1 GB/s)%s", bytes / 1e6, time,
             r->s.kept == KEEP_STATE ? "; -sv weights saves less" : "");
    double available;
    const double most = run_disk_bytes(r, &available);
    if (most > 0 && available >= 0) snprintf(time, sizeof time, "; %.0f MB are free", available / 1e6);
    if (most > 0) line("|   %-27s | %10.2f MB at most%s", "disk", most / 1e6, available < 0 ? "" : time);
    if (available >= 0 && most > available && !r->from)     /* a resumed run replaces what it has */
        warn("the saves of this run may take %.1f GB, and %s has %.1f GB free. Less: -nk 1 or -nt 0 (fewer checkpoints "
             "at a time), -nb 0 (no best weights), -ss 0 (one file at the end), -sv weights or none", 1e-9 * most,
             r->s.out, 1e-9 * available);
}
/* The end of the plan: does it fit? */
static void print_fit(const Run *r) {
    const size_t total = r->memory, capacity = rank_memory(r);
    const int plans = run_only_plans(r);
    if (r->s.sample_every > 0)
        line("|   %-27s | %10.2f MB", "samples of text (-s)", (double)samples_memory(r, &r->model) / 1e6);
    print_recompute(r, plans);
    Text t = { 0 };
    text_add(&t, "|   %-27s | %10.2f MB", "total", (double)total / 1e6);
    if (capacity)
        text_add(&t, " of %.0f MB%s", (double)capacity / 1e6, r->limit ? " (-gm)" : r->elsewhere ? "" : " free");
    else if (plans && r->dev->is_gpu) text_add(&t, "; for which GPU? -gm h100, or -gm 80 (GB), says whether it fits");
    line("%s", t.at);
    free(t.at);
    if (plans && capacity && total > capacity) {
        char *const hint = would_fit(r, capacity);
        line("|   DOES NOT FIT: %.1f MB are missing. %s", (double)(total - capacity) / 1e6, hint);
        free(hint);
    }
    t = (Text){ 0 };
    if (plans && r->dev->is_gpu) add_gpus(r, &t);
    if (t.at) line("|   %-27s | %s", "GPUs that hold it, time", t.at);
    free(t.at);
    print_host(r);
}

/* What of the splits is read, and how much work a kill would lose. */
static void print_intervals(const Run *r) {
    const Settings *s = &r->s;
    const int64_t all = data_tokens(r->data, DATA_VALIDATION), used = s->val_batches * s->batch * s->seq;
    if (s->skip > 0)
        line("|   windows             | %lld; %d %% of the text's are left out (-sk): those that the text before them "
             "predicts best", (long long)data_epoch_samples(r->data, s->seq), s->skip);
    if (s->val_batches > 0 && used < all)
        line("|   validation reads    | the first %lld of its %lld tokens (-m -1: all)", (long long)used,
               (long long)all);
    Text t = { 0 };
    if (s->save_seconds > 0)
        text_add(&t, "%g s of work (-nt), %g s before the first checkpoint", (double)s->save_seconds,
                 (double)s->save_seconds / 2);
    if (s->save_every) text_add(&t, "%s%lld steps (-n)", t.at ? ", or " : "", (long long)s->save_every);
    if (!t.at) text_add(&t, "all work: checkpoints are saved only at the end and when stopped (-nt, -n)");
    if (s->kept == KEEP_STATE)
        line("|   kill -9 would lose  | %s%s", s->save_seconds > 0 || s->save_every ? "at most " : "", t.at);
    else line("|   kill -9 would lose  | all work: %s", s->kept == KEEP_WEIGHTS
              ? "no run resumes from weights alone (-sv weights)" : "nothing is saved (-sv none)");
    free(t.at);
}

static void print_precision(const Model *m) {
    line("|   experts in e4m3     | %s, of %.0f rows an expert%s",
           m->fp8_passes ? "all products" : "none: smaller than what was measured to be faster (-pe fp8-all)",
           (double)m->batch.N * m->config.topk / m->config.experts, m->config.fp8_head ? "; and the head" : "");
}
static void print_time(const Run *r) {
    Text t = { 0 };
    if (!run_estimate(r, &t)) {
        if (r->dev->is_gpu)
            line("|   time                | not known: -gm NAME, such as h100, or GB:GB/s:TFLOP/s, gives an estimate");
        return;
    }
    for (char *at = t.at, *end; *at; at = end + 1) {
        end = at + strcspn(at, "\n");
        const int last = !*end;
        *end = 0;
        line("|   %-19s | %s", at == t.at ? "time" : "", at);
        if (last) break;
    }
    free(t.at);
}
/* Of a dry run: what a conversation looks like, and what of it is learned. */
static void print_chat(const Run *r) {
    enum { MOST = 2000 };
    Text text = { 0 };
    if (data_show_chat(r->data, r->tokenizer, MOST, &text)) {
        text_print(stdout, "The first conversation; what is learned of it is between [[ and ]]:\n");
        for (size_t at = 0; at < text.length; at += strlen(text.at + at) + 1)       /* a message may have a NUL */
            text_print(stdout, at ? "\\x00%s" : "%s", text.at + at);
        text_print(stdout, "\n");
    }
    free(text.at);
}
static void print_preset(const Run *r) {
    Text options = { 0 };
    if (!r->s.preset) return;
    settings_preset(r->s.preset, data_tokens(r->data, DATA_TRAIN), &options);
    line("| preset %s: %s", r->s.preset, options.at);
    free(options.at);
}
/* Tables of what follows tokens and pairs learn a text that is read again better than any other. */
static void warn_of_readings(const Run *r) {
    const Config *c = &r->config;
    const double readings = run_samples(r) / (double)data_epoch_samples(r->data, r->s.seq);
    if (r->s.overfit) return;
    if ((c->value_embeddings || c->bigram) && readings > 1.3)
        warn("-x %lld reads the text %.1f times, and tables of tokens and pairs (v, t in -e) learn it by heart: beyond "
             "1.3 readings they lose more than they gain. -x -1 reads it once; -e plain has no tables",
             (long long)r->s.steps, readings);
    if (r->s.skip && readings > 1.02)
        warn("-x %lld reads the windows that -sk %d keeps %.1f times, and the others never", (long long)r->s.steps,
             r->s.skip, readings);
}
void run_print_plan(const Run *r) {
    const Config *c = &r->config;
    const Arena *a = &r->model.arena;
    const size_t total = r->model.manifest.learnable, active = config_active(c, total);
    const int ranks = r->parallel.ranks;
    char descriptor[128];
    config_descriptor(c, descriptor);
    rule();
    print_preset(r);
    settings_print(&r->s);
    line("| data: %s", data_description(r->data));
    line("|   training tokens     | %lld   validation tokens %lld",
           (long long)data_tokens(r->data, DATA_TRAIN), (long long)data_tokens(r->data, DATA_VALIDATION));
    print_intervals(r);
    line("| model: %s, %s", descriptor, family_name(config_family(c)));
    if (config_family(c) == FAMILY_SMOE)
        line("|   form                | smoe, of this project: Transformers opens it with trust_remote_code=True "
             "(modeling_smoe.py)");
    if (family_gguf_scores(c))
        line("|   in llama.cpp        | other text: of this family it knows -rs %s only (docs/serve.md)",
             family_gguf_scores(c));
    if (*r->s.upcycle && !r->from)
        line("|   upcycled            | every expert is a copy of an MLP of %s, a dense %s; "
                   "routers are new", r->s.model, family_name(config_family(&r->dense)));
    line("|   parameters          | %zu in %d tensors, %zu active per token (%.0f %%)",
           total, r->model.manifest.count, active, 100.0 * (double)active / (double)total);
    line("|   experts             | %d MLP, %d per token, width %d; %d attention, %d per token",
           c->experts, c->topk, c->width, c->attention_experts, c->attention_topk);
    if (c->fp8) print_precision(&r->model);
    line("|   layers, channels    | %d, %d; %d x %d query heads of %d, %d kv heads; vocabulary %d",
           c->layers, c->channels, c->query_heads, c->kv_heads, c->head_size, c->kv_heads, c->vocab);
    if (c->bigram)
        line("|   table of bigrams    | %d rows of %d; %.2f MB with gradients, moments and activations",
             config_bigram_rows(c), c->channels, (double)bigram_memory(r) / 1e6);
    if (c->kv_rank)
        line("|   latent attention    | latents of %d for keys and values, %d for queries (0: none); %d of a head "
             "rotated, values of %d", c->kv_rank, c->query_rank, c->rotated, config_value_size(c));
    line("|   tokens per step     | %lld = %d x %d x %d micro-batches x %d rank%s; %.2f Mflop per token",
           (long long)tokens_per_step(r), r->s.batch, r->s.seq, r->micro_batches, ranks, ranks > 1 ? "s" : "",
           config_flops(c, r->s.seq) / 1e6);
    if (r->stages.count > 1)
        line("|   stages            | %s: times these tokens, and their root times the rate, in equally many steps",
               r->s.stages);
    if (ranks > 1)
        line("| ranks: %d in %d process%s (launcher: %s)", ranks, r->launch.processes,
               r->launch.processes > 1 ? "es" : "", r->launch.launcher);
    line("| memory on %s%s", r->dev->name, ranks > 1 ? ", per rank" : "");
    for (int i = 0; i < MEM_CATEGORIES; i++)
        if (a->category[i]) line("|   %-27s | %10.2f MB", mem_category_name[i], (double)a->category[i] / 1e6);
    if (ranks > 1) print_levels(r);
    if (r->s.accumulate == IN_MOMENTUM)
        line("|   (gradients of matrices are added to Muon's momentum, layer by layer: -ga momentum%s)",
             r->lacks_gradients ? ", chosen by the plan, since memory does not suffice to keep them" : "");
    print_fit(r);
    if (run_only_plans(r)) print_time(r);
    rule();
    if (run_only_plans(r)) print_chat(r);
    fflush(stdout);
    warn_of_readings(r);
}
