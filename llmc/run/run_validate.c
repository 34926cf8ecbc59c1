/* run_validate.c: what a run shows of its model meanwhile (run.h): validations and samples. */
#include "run.h"
#include "requests.h"
#include "llmc/base/random.h"
#include "llmc/data/meter.h"
#include "llmc/model/batch.h"
#include "llmc/model/pass.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Padding rows as a fraction of all rows of tiles, in the step's last micro-batch on this rank: for
 * the experts that tokens chose, and after rounding. */
static void show_tile_waste(Run *r) {
    const Model *m = &r->model;
    const Config *c = &m->config;
    const size_t bytes = ((size_t)c->experts + 1) * sizeof(int);
    int *chosen = mem_alloc(bytes), *start = mem_alloc(bytes);
    double rows[2] = { 0, 0 }, tiles[2] = { 0, 0 };
    for (int l = 0; l < c->layers; l++) {
        if (!config_has_experts(c, l)) continue;
        m->dev->download(chosen, m->acts[l].mlp.own_load, (size_t)c->experts * sizeof(int));
        m->dev->download(start, m->acts[l].mlp.plan.start, bytes);
        for (int e = 0; e < c->experts; e++)
            for (int i = 0; i < 2; i++) {
                const int count = i ? start[e + 1] - start[e] : chosen[e];
                rows[i] += count;
                tiles[i] += (count + ROW_TILE - 1) / ROW_TILE * ROW_TILE;
            }
    }
    free_each(chosen, start);
    for (int i = 0; i < 2; i++) tiles[i] = tiles[i] > 0 ? 1 - rows[i] / tiles[i] : 0;
    log_line(&r->log, "tile waste %.1f %% as chosen, %.1f %% as rounded | %.0f rows per expert", 100 * tiles[0],
             100 * tiles[1], rows[0] / config_mixtures(c) / c->experts);
    Text e = event("tiles");
    event_int(&e, "step", r->progress.step);
    event_double(&e, "waste_chosen", tiles[0]);
    event_double(&e, "waste_rounded", tiles[1]);
    log_event(&r->log, &e);
}

/* Batches of a validation, on all ranks together. */
static int64_t validation_batches(const Run *r) {
    const int64_t all = data_validation_batches(r->data, r->s.batch, r->s.seq);
    return r->s.val_batches >= 0 && r->s.val_batches < all ? r->s.val_batches : all;
}

double run_seconds_left(const Run *r, int64_t step) {
    const int64_t steps = r->s.steps, every = r->s.val_every;
    /* that of `step` included */
    const int64_t validations = steps / every - (step - 1) / every + (steps % every != 0);
    const int64_t done = stages_before(&r->stages, step, steps),
        before = stages_before(&r->stages, r->first_step, steps), all = stages_before(&r->stages, steps, steps);
    const double each = r->session / (double)(done - before);                   /* of the first stage's steps */
    /* Before the first: a batch is a third of a micro-batch's work. */
    const double one = r->validated > 0
        ? r->validated : each / 3 * (double)validation_batches(r) / r->parallel.ranks / r->first_micro_batches;
    return each * (double)(all - done) + one * (double)validations;
}

/* Each forward pass counts its own batch. load (routers, E): the sums. */
static void add_loads(const Model *m, int *load) {
    const size_t n = router_offset(m, m->routers);
    int *batch = mem_alloc(n * sizeof *batch);
    m->dev->download(batch, m->dp.own_load, n * sizeof *batch);
    for (size_t i = 0; i < n; i++) load[i] += batch[i];
    free(batch);
}
/* Sums the losses, the targets and the loads over this rank's part of the validation batches. Of
 * sharded weights all ranks gather every range for each round of batches, also those that have no
 * batch left. 0: a request to stop came before the end. */
static int validation_sums(Run *r, int64_t batches, double *total, double *count, int *load) {
    const Settings *s = &r->s;
    Model *m = &r->model;
    Error e;
    Meter meter;
    double sum;
    const int64_t ranks = r->parallel.ranks, rounds = (batches + ranks - 1) / ranks;
    const int N = s->batch * s->seq, together = m->dp.level >= 3;
    int stops = 0;
    meter_begin(&meter, r->leads, "validating", rounds, "batches");
    for (int64_t round = 0; round < rounds; round++) {
        const int64_t i = round * ranks + r->parallel.rank;
        stops = requests_stopping();
        if (together) stops = group_any(r->parallel.group, stops);
        if (stops) break;
        if (i >= batches) { parallel_pass_weights(m); break; }
        if (!data_validation(r->data, i * s->batch, s->batch, s->seq, r->inputs, r->targets, r->positions, &e))
            fail_with(&e, EXIT_DISK);
        for (int n = 0; n < N; n++) *count += r->targets[n] >= 0;
        model_batch(m, r->inputs, r->targets, s->batch, s->seq);
        if (data_has_chats(r->data)) model_pack(m, r->positions);
        model_forward(m);
        model_loss(m, 0);
        m->dev->reals_to_double(&sum, m->loss_sum, 1);
        *total += sum;
        add_loads(m, load);
        meter_add(&meter, 1);
    }
    meter_clear(&meter);
    return !stops && !requests_stopping();
}

/* The mean loss per token over these first batches, which are split across the ranks. Leaves the
 * loads of all of them in ResultBuffers.load. 0: interrupted. */
static int validation_loss(Run *r, int64_t batches, double *loss, double *tokens) {
    Model *m = &r->model;
    const size_t loads = router_offset(m, m->routers);
    int *load = mem_alloc(loads * sizeof *load);
    double total = 0, count = 0;
    m->dropout = 0;
    m->rounds = m->fp8 = 0;
    const int stopped = !validation_sums(r, batches, &total, &count, load);
    m->dev->upload(m->dp.own_load, load, loads * sizeof *load);
    free(load);
    parallel_sum_loads(m);
    parallel_wait_loads(m);
    total = parallel_sum(&r->parallel, total, -INFINITY, INFINITY);
    count = parallel_sum(&r->parallel, count, 0, 1e15);
    *loss = total / count;
    *tokens = count;
    return !group_any(r->parallel.group, stopped);
}

/* Numbers that differ between repetitions of a run have an event of their own. */
static void log_usage(Run *r, double validation_seconds) {
    Text e = event("usage");
    event_int(&e, "step", r->progress.step);
    event_double(&e, "validation_seconds", validation_seconds);
    event_double(&e, "peak_memory", run_peak_memory());
    log_event(&r->log, &e);
}

/* Losses over other tokens, or with less before them, do not compare: after other -m, -t, -b. */
static void forget_other_best(Run *r, int64_t tokens) {
    Progress *p = &r->progress;
    if (p->best.step < 0 || !p->best.tokens || (p->best.tokens == tokens && p->best.length == r->s.seq)) return;
    if (r->leads)
        warn("validations are now over %lld tokens in sequences of %d, before over %lld in sequences of "
             "%lld: the best loss so far (%.6f) counts no more", (long long)tokens, r->s.seq, (long long)p->best.tokens,
             (long long)p->best.length, p->best.loss);
    p->best.step = -1;
}
/* Those that validation_loss left. */
static void show_loads(Run *r, int on_terminal) {
    const Model *m = &r->model;
    if (!m->routers || !r->leads) return;
    const size_t loads = router_offset(m, m->routers);
    int *load = mem_alloc(loads * sizeof *load);
    m->dev->download(load, m->results.load, loads * sizeof *load);
    log_loads(&r->log, r->progress.step, m, load, on_terminal);
    free(load);
}
int run_validate(Run *r) {
    const double start = now();
    Progress *p = &r->progress;
    if (r->config.rounding && p->step > r->first_step) show_tile_waste(r);
    double loss, used;
    if (!validation_loss(r, validation_batches(r), &loss, &used)) return 0;
    r->validated = now() - start;
    if (used <= 0) return 1;
    const double bytes = (double)data_bytes(r->data, DATA_VALIDATION),
        tokens = (double)data_tokens(r->data, DATA_VALIDATION);
    /* if it cannot be saved, an earlier one is the best so far */
    if (r->saves.under_way == SAVES_BEST) saves_follow(&r->saves, 1);
    forget_other_best(r, (int64_t)used);
    /* of a run that has diverged, or that is about to, none is the first best */
    const int is_first = p->best.step < 0 && !p->diverged && loss <= progress_bound(p, run_chance(r));
    if (isfinite(loss) && (is_first || (p->best.step >= 0 && loss < p->best.loss))) {
        const Best before = p->best;
        p->best = (Best){ loss, p->step, (int64_t)used, r->s.seq };
        if (!saves_best(&r->saves, before)) p->best = before;
    }
    log_validation(&r->log, &(ValidationStats){
        .step = p->step, .loss = loss, .bits_per_byte = bytes > 0 ? loss * tokens / bytes / log(2) : 0,
        .best = p->best.loss, .best_step = p->best.step });
    log_usage(r, now() - start);
    show_loads(r, r->s.show_loads);
    return 1;
}

/* A forward pass over a token is a third of a step's work. As many as were asked for, or fewer, so
 * that each has a batch. */
int64_t run_short_batches(const Run *r, int64_t *every) {
    const Settings *s = &r->s;
    const int64_t all = validation_batches(r), batch = (int64_t)s->batch * s->seq;
    const double step = 0.03 * 3 * (double)tokens_per_step(r);          /* tokens for a step of the interval */
    *every = s->val_short ? s->steps / s->val_short : 0;
    const int64_t least = (int64_t)ceil((double)batch / step),
        batches = (int64_t)(step * (double)*every / (double)batch);
    if (s->val_short && *every < least) *every = least;
    return *every < 1 || *every >= s->val_every ? 0 : batches < 1 ? 1 : batches < all ? batches : all;
}
void run_validate_short(Run *r, int loads) {
    int64_t every, batches = run_short_batches(r, &every);
    double loss, used;
    if (!validation_loss(r, batches, &loss, &used) || used <= 0) return;
    Text e = event("val_short");
    event_int(&e, "step", r->progress.step);
    event_double(&e, "loss", loss);
    event_int(&e, "tokens", (int64_t)used);
    log_event(&r->log, &e);
    if (loads) show_loads(r, 0);
}

/* The tokens of the first conversation for validation up to its first answer; 0: it has none. Free
 * *text. */
static int first_question(Run *r, char **text) {
    const int T = r->s.seq;
    int n = 0;
    size_t bytes;
    Error e;
    if (!data_has_chats(r->data) || !data_validation_batches(r->data, 1, T)
        || !data_validation(r->data, 0, 1, T, r->inputs, r->targets, r->positions, &e)) return 0;
    while (n < T && r->targets[n] < 0) n++;
    if (++n >= T) return 0;
    *text = tokenizer_decode(r->tokenizer, r->inputs, (size_t)n, &bytes);
    return n;
}
/* Of conversations: an answer. Else from what begins a text: its token, one that ends a text before
 * it, or a new line. */
void run_show_sample(Run *r) {
    Generator *g = &r->samples;
    char *question = NULL;
    const int prompted = first_question(r, &question);
    const int newline = r->tokenizer ? tokenizer_id(r->tokenizer, "\n") : 0,
        eos = r->tokenizer ? tokenizer_eos(r->tokenizer) : -1;
    const int bos = r->tokenizer ? tokenizer_bos(r->tokenizer) : -1,
        first = bos >= 0 ? bos : eos >= 0 ? eos : newline >= 0 ? newline : 0;
    parallel_wait_all_weights(&r->model);
    generator_restart(g);
    g->seed = random_key((uint64_t)r->s.seed, (uint64_t)r->progress.step);
    if (prompted) generator_read(g, r->inputs, prompted, question, strlen(question));
    else generator_read(g, &first, 1, NULL, 0);
    generator_write(g, r->s.sample_length, prompted && r->model.dp.level < 3);      /* ranks with -z 3 keep step */
    log_sample(&r->log, r->progress.step, g->stream[0].text.at, g->stream[0].text.length);
    free(question);
}
