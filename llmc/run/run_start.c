/* run_start.c: the end of a run's start (run.h): the check of gradients, memory, weights. */
#define _POSIX_C_SOURCE 200809L
#include "run.h"
#include "converse.h"
#include "llmc/data/meter.h"
#include "llmc/files/hf.h"
#include "llmc/model/check.h"
#include "llmc/model/plan.h"
#include "llmc/model/ranges.h"
#include "llmc/ranks/secret.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* This model with few tokens: cpu-f64 against finite differences, then this device against a more
 * exact one. At least two tokens, as a query that sees one key has no gradient. */
int run_check_gradients(const Run *r) {
    const Settings *s = &r->s;
    Check c = { .config = r->config, .B = 2, .T = s->seq < 2 ? 2 : s->seq < 12 ? s->seq : 12, .recompute = r->recompute,
                .samples = r->config.channels > 512 ? 3 : 12, .balance = s->balance, .z = s->z,
                .dropout = s->dropout, .seed = (uint64_t)s->seed };
    c.config.tile = 4;                                      /* suits few tokens */
    c.config.fp8 = c.config.fp8_head = 0;       /* backward takes a rounding as the identity, a difference does not */
    double worst, worst_device = 0;
    printf("gradient check: every tensor against finite differences, cpu-f64%s\n",
           r->config.fp8 ? ", without -pe fp8" : "");
    int bad = check_gradients(&c, 1e-6, stdout, 1, &worst);
    if (bad < 0) fail(EXIT_MEMORY, "not enough memory to check this model in f64");
    const int is_bf16 = r->dev->floatX_size == 2;
    const Device *exact = device_find(is_bf16 && r->dev->is_gpu ? "cpu-bf16" : "cpu-f64");
    const double bound = !is_bf16 ? 1e-4 : r->dev->is_gpu ? 2e-2 : 0.5;
    if (r->dev != exact) {
        printf("%s against %s\n", r->dev->name, exact->name);
        bad += check_devices(&c, r->dev, exact, bound, stdout, 0, &worst_device);
    }
    printf("gradient check %s: %d bad tensors; worst error %.1e in f64, %.1e on %s\n",
           bad ? "FAILED" : "passed", bad, worst, worst_device, r->dev->name);
    return bad ? EXIT_NUMERICS : EXIT_DONE;
}

/* ---- memory and weights ---------------------------------------------------------------------- */

static const volatile sig_atomic_t never;

void run_allocate(Run *r) {
    const Settings *s = &r->s;
    const size_t most = (size_t)run_most_micro_batches(r), N = most * (size_t)s->batch * (size_t)s->seq;
    run_check_memory(r);
    arena_limit(r->limit);
    if (!model_allocate(&r->model)) run_out_of_memory(r);
    /* of sharded weights all ranks have a part */
    r->shows_samples = s->sample_every > 0 && (r->leads || r->model.dp.level >= 3);
    r->sample_style = (TextStyle){ .tokenizer = r->tokenizer };
    r->samples = (Generator){ .dev = r->dev, .sampler = { .temperature = 0.8f, .top_p = 0.95f }, .sequences = 1,
                              .interrupted = &never, .silent = 1, .trusts = 1, .weights_of = &r->model };
    if (data_has_chats(r->data)) {                          /* an answer ends by a token, or by this string */
        const Conversation talk = { .chat = *data_chat(r->data) };
        const char *end = converse_end(&talk, r->tokenizer, r->samples.end_token, &r->samples.end_tokens);
        r->sample_style.stops = stops_add(NULL, end, strlen(end));
    }
    if (r->shows_samples && !generator_open(&r->samples, &r->config, s->seq > 2 ? s->seq : 2, &r->sample_style))
        run_out_of_memory(r);
    r->samples.d.replay.off = 1;                            /* sharded weights move */
    r->model.balance_coef = s->balance;
    r->model.z_coef = s->z;
    r->model.forced = s->forced;
    r->model.further = s->further > 0;
    const Snapshot what = { .model = &r->model, .optimizer = &r->optimizer, .tokenizer = r->tokenizer,
                            .origin = r->origin };
    saves_open(&r->saves, s, &r->progress, &r->log, &r->parallel, what, r->saves.copy_bytes);
    r->inputs = mem_alloc(N * sizeof *r->inputs);
    r->targets = mem_alloc(N * sizeof *r->targets);
    r->positions = mem_alloc(N * sizeof *r->positions);
    r->keys = mem_alloc(most * sizeof *r->keys);
    for (int i = 0; i < PHASES; i++) r->replay_micro[i].off = !r->records;
    for (int i = 0; i < MUON_PERIODS; i++) r->replay_update[i].off = !r->records;
    parallel_register_memory(&r->model);
    const double rows = (double)s->batch * s->seq * r->config.topk / r->config.experts;
    if (r->config.rounding && rows < 2 * ROW_TILE && r->leads)
        warn("-rt nearest: an expert has %.0f rows on average, less than two tiles of %d: rounding reroutes a large "
             "part of them. Larger micro-batches (-b, -t) or fewer experts avoid this", rows, ROW_TILE);
    if (s->forced && r->leads) warn("-rf 1: routing is round robin, for benchmarks; the routers learn nothing");
}

/* Completes a save that was interrupted. 0: the best weights are lost. */
static int publish_again(Run *r) {
    const Progress *p = &r->progress;
    Error e;
    if (!r->leads) return 1;
    if (r->s.resume_step && !checkpoint_drop_later(r->from, &e)) fail_with(&e, EXIT_DISK);
    if (!checkpoint_publish(r->from, &r->model, r->tokenizer, r->origin, &e))
        warn("%s is not up to date with %s: %s", r->s.out, checkpoint_path(r->from), e.text);
    const int dropped = r->s.resume_step != 0;
    if (!r->s.keep_best || p->best.step < 0
        || checkpoint_best(r->from, p->best.step, dropped, &r->model, r->tokenizer, r->origin, &e)) return 1;
    warn("the best weights are lost: %s; the next validation saves its weights as the best", e.text);
    return 0;
}

static void draw_weights(Run *r) {
    Model *m = &r->model;
    Meter meter;
    meter_begin(&meter, r->leads, "drawing the initial weights", (int64_t)(m->manifest.learnable * m->dev->floatX_size),
                "MB");
    for (int i = 0; i < m->manifest.count; i++) {
        model_initialize_tensor(m, i, (uint64_t)r->s.seed);
        meter_add(&meter, (int64_t)(m->manifest.at[i].count * m->dev->floatX_size));
    }
    parallel_gather_weights(m, 0);
    meter_end(&meter);
}

/* Routers start with random values: all experts are equal at first, so no choice matters yet. */
static void upcycle(Run *r) {
    Error e;
    config_pad_vocab(&r->dense);
    for (int i = 0; i < r->model.manifest.count; i++)
        if (r->model.manifest.at[i].kind == TENSOR_ROUTER) model_initialize_tensor(&r->model, i, (uint64_t)r->s.seed);
    parallel_gather_weights(&r->model, 0);
    if (!hf_load_upcycled(&r->model, &r->dense, r->s.model, &e)) fail_with(&e, EXIT_INPUT);
}
/* New tokens begin as the mean of all others, in the embedding and in the head: they change no
 * distribution much (Hewitt 2021, Initializing New Word Embeddings). From here files have them. */
static void add_rows(Run *r) {
    Model *m = &r->model;
    if (!r->new_rows) return;
    if (m->dp.level >= 3)
        fail(EXIT_USAGE, "-nr 1: rows are not added to sharded weights (-z 3). -z 2, or a run of one step before");
    for (int i = 0; i < m->manifest.count; i++) {
        Tensor *t = &m->manifest.at[i];
        if (!t->padding) continue;
        const size_t rows = (size_t)(t->shape[0] - t->padding), width = t->count / (size_t)t->shape[0];
        floatX *const weight = model_weight(m, t);
        double *mean = mem_alloc(width * sizeof *mean), *row = mem_alloc(width * sizeof *row);
        for (size_t n = 0; n < rows; n++) {
            m->dev->to_double(row, float_at(m, weight, n * width), width);
            for (size_t k = 0; k < width; k++) mean[k] += row[k] / (double)rows;
        }
        for (size_t n = 0; n < (size_t)r->new_rows; n++)
            m->dev->from_double(float_at(m, weight, (rows + n) * width), mean, width);
        t->padding -= r->new_rows;
        free_each(mean, row);
    }
    m->manifest.padding -= r->new_rows;
    r->config.padding = m->config.padding -= r->new_rows;
    m->used_vocab = config_ids(&m->config);
    if (r->leads) text_print(stdout, "%d rows are added to the vocabulary of %s\n", r->new_rows, r->s.model);
}
/* Which run it is, so that a checkpoint of another one is not taken for one of it. */
static uint64_t draw_identity(void) {
    uint64_t id;
    if (!random_bytes(&id, sizeof id)) {
        const double times[] = { now(), (double)time(NULL), (double)getpid() };
        id = hash_bytes((uint64_t)(uintptr_t)&id, times, sizeof times);
    }
    return id ? id : 1;
}
void run_start_or_resume(Run *r) {
    const Settings *s = &r->s;
    Progress *p = &r->progress;
    Error e;
    run_time_start(r, "weights");
    if (r->from) {
        run_announce(r, "reading", checkpoint_path(r->from), checkpoint_bytes(checkpoint_path(r->from)));
        if (!checkpoint_load(r->from, &r->model, &r->optimizer, &e))
            fail(EXIT_CHECKPOINT, "%s: %s", checkpoint_path(r->from), e.text);
        if (!progress_from_json(checkpoint_run(r->from), p, &e))
            fail(EXIT_CHECKPOINT, "%s: %s", checkpoint_path(r->from), e.text);
        if (p->data != data_fingerprint(r->data) && p->data == data_print_without_bos(r->data) && !s->allow_data)
            fail(EXIT_CHECKPOINT, "%s was trained on texts without the token that its tokenizer puts in front of each; "
                 "now they begin with it. To continue with it: --allow-data-change 1", checkpoint_path(r->from));
        if (p->data != data_fingerprint(r->data) && !s->allow_data)
            fail(EXIT_CHECKPOINT, "%s was trained on other data than %s (names, sizes, contents, the chat template "
                 "or -sk differ, or an older program read them otherwise). To continue anyway: --allow-data-change 1",
                 checkpoint_path(r->from), s->train);
        if (!p->run && !s->allow_data && r->tokenizer && tokenizer_vocab(r->tokenizer) < config_ids(&r->config))
            fail(EXIT_CHECKPOINT, "%s: an older program began this run, and left the %d rows of the vocabulary that "
                 "have no token out of the softmax. To continue with all rows: --allow-data-change 1",
                 checkpoint_path(r->from), config_ids(&r->config) - tokenizer_vocab(r->tokenizer));
        if (p->seed != (uint64_t)s->seed && r->leads)
            warn("from here on the seed is %lld; the run began with %llu", (long long)s->seed,
                 (unsigned long long)p->seed);
        if (r->identity) p->run = r->identity;              /* it differs if that was allowed */
        else if (s->allow_data && !p->run) p->run = draw_identity();
        if (p->diverged && r->leads)
            warn("this run diverged at step %lld. An earlier checkpoint: -ys STEP", (long long)p->diverged);
        if (r->leads) text_print(stdout, "resuming %s at step %lld\n", checkpoint_path(r->from), (long long)p->step);
    } else {
        *p = (Progress){ .best = { .step = -1 }, .seed = (uint64_t)s->seed, .data = data_fingerprint(r->data),
                         .run = draw_identity() };
        if (is_folder(s->model))
            run_announce(r, "reading", s->model, (double)(r->model.manifest.learnable * r->dev->floatX_size));
        if (!is_folder(s->model)) draw_weights(r);
        else if (*s->upcycle) upcycle(r);
        else if (!hf_load_weights(&r->model, s->model, &e)) fail_with(&e, EXIT_INPUT);
        else add_rows(r);
        run_time_start(r, "optimizer");
        optimizer_start(&r->optimizer, &r->model);
        group_barrier(r->parallel.group);                    /* wait until every rank has validated its input */
        if (r->leads) run_claim_folder(r);
    }
    run_time_start(r, "files");
    if (r->from && p->data != data_fingerprint(r->data)) {
        if (r->leads && p->best.step >= 0)
            warn("the data changed, so the best validation loss so far (%.6f) counts no more", p->best.loss);
        progress_new_data(p);
    }
    if (r->from && !group_all(r->parallel.group, publish_again(r))) p->best.step = -1;
    if (r->leads && !data_keep(r->data, r->tokenizer, s->out, &e))
        warn("%s; the next start encodes the text again", e.text);
    p->data = data_fingerprint(r->data);
    r->first_step = p->step;
}
