/* follow.c: what a run reports: its log, validation, samples, checkpoints. */
#define _DEFAULT_SOURCE
#include "llmc/model/batch.h"
#include "llmc/model/pass.h"
#include "run.h"
#include "requests.h"
#include "llmc/files/export.h"
#include "llmc/base/random.h"
#include "llmc/base/text.h"
#include "llmc/data/meter.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* ---- start ----------------------------------------------------------------------------------------------- */

static void add_string(Text *e, const char *key, const char *string) { event_text(e, key, string, strlen(string)); }

static char *command_line(char **arguments) {
    Text t = { 0 };
    for (char **a = arguments; *a; a++) {
        if (a != arguments) text_add_string(&t, " ");
        text_add_word(&t, *a);
    }
    return t.at;
}
/* Model of the processor, system and architecture. */
static char *machine_name(void) {
    char line[256], model[200] = "";
    struct utsname u;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !*model && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':'))
            snprintf(model, sizeof model, "%.*s, ", (int)strcspn(strchr(line, ':') + 2, "\n"), strchr(line, ':') + 2);
    if (f) fclose(f);
    return uname(&u) < 0 ? text_format("%s", model) : text_format("%s%s %s, %s", model, u.sysname, u.release, u.machine);
}
/* What a session begins with: when, by which command, on which machine. */
static void add_session(Run *r, Text *e) {
    char when[32] = "";
    const time_t t = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime(&t));
    char *command = command_line(r->arguments), *machine = machine_name();
    Text given = { 0 };
    settings_given_json(&r->s, &given);
    add_string(e, "time", when);
    add_string(e, "version", MOE_VERSION);
    add_string(e, "device", r->dev->name);
    add_string(e, "command", command);
    event_json(e, "given", given.at);
    add_string(e, "machine", machine);
    event_int(e, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    event_double(e, "memory", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    add_string(e, "compiler", __VERSION__ ", " COMPILER_FLAGS);
    event_int(e, "ranks", r->parallel.ranks);
    free(command);
    free(machine);
    free(given.at);
}
static double peak_memory(void) {                                        /* of this process, in bytes */
    struct rusage use;
#ifdef __APPLE__
    const double unit = 1;
#else
    const double unit = 1024;
#endif
    return getrusage(RUSAGE_SELF, &use) ? NAN : unit * (double)use.ru_maxrss;
}

static Text start_event(Run *r) {
    const size_t total = r->model.manifest.learnable;
    char descriptor[128];
    config_descriptor(&r->config, descriptor);
    Text e = event("start");
    add_session(r, &e);
    add_string(&e, "model", descriptor);
    add_string(&e, "family", family_name(config_family(&r->config)));
    event_int(&e, "parameters", (int64_t)total);
    event_int(&e, "active", (int64_t)config_active(&r->config, total));
    add_string(&e, "data", data_description(r->data));
    event_json(&e, "fallback", data_is_fallback(r->data) ? "true" : "false");
    event_int(&e, "train_tokens", data_tokens(r->data, DATA_TRAIN));
    event_int(&e, "val_tokens", data_tokens(r->data, DATA_VALIDATION));
    event_json(&e, "options", r->options_json);
    json_seal(&e);
    return e;
}
static void log_resume(Run *r) {
    Text e = event("resume");
    event_int(&e, "step", r->first_step);
    add_session(r, &e);
    event_json(&e, "options", r->options_json);
    log_event(&r->log, &e);
}

/* OUT/settings.txt: what -cf reads to repeat this run. */
static void write_settings(const Run *r) {
    Error e;
    Text t = { 0 };
    text_add(&t, "# settings of the run in this folder, written when it starts. To repeat it: ./train_moe -cf settings.txt -o ANOTHER\n");
    settings_write(&r->s, &t);
    char *path = text_format("%s/settings.txt", r->s.out);
    if (!file_write(path, t.at, t.length, &e)) warn("%s", e.text);
    free(path);
    free(t.at);
}

void run_begin_log(Run *r) {
    Error e;
    Text json = { 0 };
    settings_json(&r->s, &json);
    r->options_json = json.at;
    if (!r->leads) { log_silence(&r->log); return; }
    Text start = start_event(r);
    if (!log_open(&r->log, r->s.out, r->first_step > 0 ? r->first_step : -1, start.at, &e)) fail(EXIT_DISK, "%s", e.text);
    free(start.at);
    if (r->first_step) log_resume(r);
    write_settings(r);
    r->report = report_open(r->s.out);
    r->saved_at = now();
    r->saved_step = -1;
    r->saved = SAVED_ALL;
    if (r->progress.step >= r->s.steps && !r->progress.unvalidated)
        log_line(&r->log, "this run of %lld steps is complete; -x with more steps continues it", (long long)r->s.steps);
}

/* "the checkpoint of step 400", for messages: the newest state. */
static void name_newest(const Run *r, char text[64]) {
    const int64_t step = checkpoint_newest(r->s.out);
    if (step < 0) snprintf(text, 64, "no checkpoint");
    else snprintf(text, 64, "the checkpoint of step %lld", (long long)step);
}

/* ---- steps ------------------------------------------------------------------------------------------------- */

/* The first steps include warm-up. */
void run_forewarn(Run *r, const StepStats *t) {
    if (r->dev->is_gpu || t->step != r->first_step + 3 || t->eta < 12 * 3600.0) return;
    log_line(&r->log, "at %.3g s a step this run takes about %.1f days on this CPU. A smaller model (-e m4), fewer steps (-x) or fewer "
                      "tokens a step (-d) end sooner; Ctrl-C stops it, and -y 1 resumes it", t->ms / 1e3, t->eta / 86400);
}

/* The device has skipped the update. */
void run_bad_step(Run *r, const StepStats *t, int tensor) {
    const char *name = r->model.manifest.at[tensor].name;
    Progress *p = &r->progress;
    p->bad_steps++;
    model_clear_activations(&r->model);
    Text e = event("skip");
    event_int(&e, "step", t->step);
    add_string(&e, "tensor", name);
    log_event(&r->log, &e);
    if (r->leads)
        warn("step %lld: the gradient of %s is not finite (loss %g): the update is skipped; %d in a row",
             (long long)t->step, name, t->loss, p->bad_steps);
    if (p->bad_steps < r->s.max_bad) return;
    char newest[64];
    run_follow_save(r, 1);
    name_newest(r, newest);
    fail(EXIT_NUMERICS, "%d steps in a row without a finite gradient, the last on samples %lld to %lld. %s holds %s. "
         "A lower learning rate (-l) or stronger clipping (-cg) may help", p->bad_steps, (long long)(p->samples),
         (long long)(p->samples + samples_per_step(r) - 1), r->s.out, newest);
}

/* Padding rows as a fraction of all rows of tiles, in the step's last micro-batch on this rank: for the experts that tokens
 * chose, and after rounding. */
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
    free(chosen);
    free(start);
    for (int i = 0; i < 2; i++) tiles[i] = tiles[i] > 0 ? 1 - rows[i] / tiles[i] : 0;
    log_line(&r->log, "tile waste %.1f %% as chosen, %.1f %% as rounded | %.0f rows per expert", 100 * tiles[0], 100 * tiles[1],
             rows[0] / config_mixtures(c) / c->experts);
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
    const int64_t validations = steps / every - (step - 1) / every + (steps % every != 0);         /* that of `step` included */
    const double each = r->session / (double)(step - r->first_step);
    /* Before the first: a batch is a third of a micro-batch's work. */
    const double one = r->validated > 0 ? r->validated : each / 3 * (double)validation_batches(r) / r->parallel.ranks / r->micro_batches;
    return each * (double)(steps - step) + one * (double)validations;
}

/* Each forward pass counts its own batch. load (routers, E): the sums. */
static void add_loads(const Model *m, int *load) {
    const size_t n = router_offset(m, m->routers);
    int *batch = mem_alloc(n * sizeof *batch);
    m->dev->download(batch, m->dp.own_load, n * sizeof *batch);
    for (size_t i = 0; i < n; i++) load[i] += batch[i];
    free(batch);
}

/* Sums the losses, the targets and the loads over this rank's share of the validation batches. Of sharded weights all ranks gather every
 * range for each round of batches, also those that have no batch left. 0: a request to stop came before the end. */
static int validation_sums(Run *r, double *total, double *count, int *load) {
    const Settings *s = &r->s;
    Model *m = &r->model;
    Error e;
    Meter meter;
    double sum;
    const int64_t batches = validation_batches(r), ranks = r->parallel.ranks, rounds = (batches + ranks - 1) / ranks;
    const int N = s->batch * s->seq, together = m->dp.level >= 3;
    int stops = 0;
    meter_begin(&meter, r->leads, "validating", rounds, "batches");
    for (int64_t round = 0; round < rounds; round++) {
        const int64_t i = round * ranks + r->parallel.rank;
        stops = requests_stopping();
        if (together) stops = group_max(r->parallel.group, stops);
        if (stops) break;
        if (i >= batches) { parallel_pass_weights(m); break; }
        if (!data_validation(r->data, i * s->batch, s->batch, s->seq, r->inputs, r->targets, r->positions, &e))
            fail(EXIT_DISK, "%s", e.text);
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

/* The mean loss per token over the validation batches, which are split across the ranks. Leaves the loads of all of them, with the
 * padding of the last one, in ResultBuffers.load. 0: interrupted. */
static int validation_loss(Run *r, double *loss, double *tokens) {
    Model *m = &r->model;
    const size_t loads = router_offset(m, m->routers);
    int *load = mem_alloc(loads * sizeof *load);
    double total = 0, count = 0;
    m->dropout = 0;
    m->rounds = m->fp8 = 0;
    const int stopped = !validation_sums(r, &total, &count, load);
    m->dev->upload(m->dp.own_load, load, loads * sizeof *load);
    free(load);
    parallel_sum_loads(m);
    parallel_wait_loads(m);
    total = parallel_sum(&r->parallel, total);
    count = parallel_sum(&r->parallel, count);
    *loss = total / count;
    *tokens = count;
    return !group_max(r->parallel.group, stopped);
}

/* Saves before the memory for a copy is there make none. */
static void use_room(Run *r) {
    if (!r->save_room || r->copies) return;
    const RoomState state = saver_use_room(r->saver, 0);
    r->copies = state == ROOM_READY;
    if (state == ROOM_NONE) {
        if (r->leads) warn("the host does not have %.1f MB for a copy of what is saved: steps wait for saves", (double)r->save_room / 1e6);
        r->save_room = 0;
    }
}
static void say_lost(const Run *r, int64_t step, const char *why, const char *then) {
    if (r->leads) warn("the best weights, of step %lld, were not saved: %s%s", (long long)step, why, then);
}
/* Saves the weights as the best while the steps wait. 0: two attempts failed; best/ keeps the previous best, and a later validation that
 * improves on that one is saved. All ranks get the same result. */
static int save_best(Run *r) {
    Error e;
    const int64_t step = r->progress.step;
    const int ok = checkpoint_save_best(r->s.out, &r->model, step, r->tokenizer, r->origin, &e);
    if (!ok) say_lost(r, step, e.text, "");
    r->lost_best = ok ? -1 : step;
    return ok;
}
/* The same, after their checkpoint was saved. */
static void link_best(Run *r) {
    Error e;
    const int64_t step = r->progress.step;
    int ok = 0;
    for (int attempt = 0; attempt < 2 && !ok; attempt++) {
        ok = group_min(r->parallel.group, !r->leads || checkpoint_link_best(r->s.out, step, &r->model, r->tokenizer, r->origin, &e));
        if (!ok) say_lost(r, step, e.text, attempt ? "" : "; trying again");
    }
    r->lost_best = ok ? -1 : step;
}
static void end_best(Run *r, Saved saved, const char *why) {
    r->saving = NO_SAVE;
    r->lost_best = saved == SAVED_ALL ? -1 : r->saving_step;
    if (saved == SAVED_ALL) return;
    say_lost(r, r->saving_step, why, "");
    r->progress.best = r->best_before;
}
/* Those of the last step are saved as a whole anyway, right after: then that file gets a second name (run_save). Others are written
 * beside the steps, if there is memory for a copy and no checkpoint is being written from it. */
static int keep_best(Run *r, Best before) {
    Error e;
    if (!r->s.keep_best) return 1;
    if (r->progress.step == r->s.steps) return r->best_is_last = 1;
    use_room(r);
    if (!r->copies || r->saving) return save_best(r);
    const Snapshot what = { .model = &r->model, .tokenizer = r->tokenizer, .origin = r->origin, .step = r->progress.step };
    r->best_before = before;
    r->saving_step = r->progress.step;
    r->saving = SAVES_BEST;
    if (!saver_begin_best(r->saver, r->s.out, &what, &e)) end_best(r, SAVED_NOTHING, e.text);
    return 1;
}

/* Numbers that differ between repetitions of a run have an event of their own. */
static void log_usage(Run *r, double validation_seconds) {
    Text e = event("usage");
    event_int(&e, "step", r->progress.step);
    event_double(&e, "validation_seconds", validation_seconds);
    event_double(&e, "peak_memory", peak_memory());
    log_event(&r->log, &e);
}

/* Losses over other tokens, or with less before them, do not compare: a run that goes on with other -m, -t or -b begins anew. */
static void forget_other_best(Run *r, int64_t tokens) {
    Progress *p = &r->progress;
    if (p->best.step < 0 || !p->best.tokens || (p->best.tokens == tokens && p->best.length == r->s.seq)) return;
    if (r->leads)
        warn("validations are now over %lld tokens in sequences of %d, before over %lld in sequences of %lld: the best loss so far (%.6f) counts no more",
             (long long)tokens, r->s.seq, (long long)p->best.tokens, (long long)p->best.length, p->best.loss);
    p->best.step = -1;
}
int run_validate(Run *r) {
    const double start = now();
    Model *m = &r->model;
    Progress *p = &r->progress;
    if (r->config.rounding && p->step > r->first_step) show_tile_waste(r);
    double loss, used;
    if (!validation_loss(r, &loss, &used)) return 0;
    r->validated = now() - start;
    if (used <= 0) return 1;
    const double bytes = (double)data_bytes(r->data, DATA_VALIDATION);
    const double tokens = (double)data_tokens(r->data, DATA_VALIDATION);
    if (r->saving == SAVES_BEST) run_follow_save(r, 1);     /* if it cannot be saved, an earlier one is the best so far */
    forget_other_best(r, (int64_t)used);
    if (isfinite(loss) && (loss < p->best.loss || p->best.step < 0)) {
        const Best before = p->best;
        p->best = (Best){ loss, p->step, (int64_t)used, r->s.seq };
        if (!keep_best(r, before)) p->best = before;
    }
    log_validation(&r->log, &(ValidationStats){
        .step = p->step, .loss = loss, .bits_per_byte = bytes > 0 ? loss * tokens / bytes / log(2) : 0,
        .best = p->best.loss, .best_step = p->best.step });
    log_usage(r, now() - start);
    if (m->routers && r->leads) {
        const size_t loads = router_offset(m, m->routers);
        int *load = mem_alloc(loads * sizeof *load);
        m->dev->download(load, m->results.load, loads * sizeof *load);
        log_loads(&r->log, p->step, m, load, r->s.show_loads);
        free(load);
    }
    return 1;
}

void run_show_sample(Run *r) {
    Decoder *d = &r->decoder;
    const Sampler sampler = { .temperature = 0.8f, .top_p = 0.95f };
    uint64_t key = random_key((uint64_t)r->s.seed, (uint64_t)r->progress.step);
    const int capacity = d->model.cache_capacity, newline = r->tokenizer ? tokenizer_id(r->tokenizer, "\n") : 0;
    const int eos = r->tokenizer ? tokenizer_eos(r->tokenizer) : -1;
    int *tokens = mem_alloc((size_t)r->s.sample_length * sizeof *tokens);
    int count = 0, token = eos >= 0 ? eos : newline >= 0 ? newline : 0;
    parallel_wait_all_weights(&r->model);
    decoder_reset(d);
    decoder_draw(d, sampler, &key);
    while (count < r->s.sample_length) {
        if (d->length == capacity) {                                     /* the context is full: its last half is read again */
            const int half = capacity / 2;
            decoder_reset(d);
            key = random_key(key, 1);                                    /* the same positions draw other numbers */
            decoder_draw(d, sampler, &key);
            decoder_feed(d, tokens + count - half, half);
        } else decoder_feed(d, &token, 1);
        decoder_sample(d, &token);
        tokens[count++] = token;
    }
    if (r->tokenizer) {
        size_t bytes;
        char *text = tokenizer_decode(r->tokenizer, tokens, (size_t)count, &bytes);
        log_sample(&r->log, r->progress.step, text, bytes);
        free(text);
    } else {
        Text ids = { 0 };
        for (int i = 0; i < count; i++) text_add(&ids, "%d ", tokens[i]);
        log_sample(&r->log, r->progress.step, ids.at, ids.length);
        free(ids.at);
    }
    free(tokens);
}

/* A page that cannot be written is tried again when the next one is due; the last one is reported. */
void run_report(Run *r) {
    Error e;
    if (r->leads && report_due(r->report)) report_update(r->report, 1, &e);
}

/* Saves by time cost at most a hundredth of the run. */
static double save_period(const Run *r) {
    const double wanted = (double)r->s.save_seconds;
    return r->saved_in <= 0 ? wanted / 2 : wanted > 100 * r->saved_in ? wanted : 100 * r->saved_in;
}
int run_save_due(const Run *r) {
    return r->leads && !r->saving && r->s.save_seconds > 0 && now() - r->saved_at >= save_period(r);
}

static void report_saved(Run *r, Saved saved, const char *why) {
    const char *out = r->s.out;
    const long long step = r->saving_step;
    const double seconds = now() - r->saved_at;
    if (saved == SAVED_ALL) {
        log_line(&r->log, "saved step %lld in %s: the steps waited %.3f s, it was written in %.2f s", step, out, r->paused, seconds);
        Text e = event("save");
        event_int(&e, "step", step);
        event_double(&e, "paused", r->paused);
        event_double(&e, "seconds", seconds);
        log_event(&r->log, &e);
    }
    if (saved == SAVED_STATE)
        warn("step %lld is saved in %s/state, and -y 1 resumes from it; but the model in %s is an older one, or the disk may lose it: %s", step,
             out, out, why);
    if (saved != SAVED_NOTHING) { r->failed_saves = 0; return; }
    char newest[64];
    name_newest(r, newest);
    warn("checkpoint of step %lld was not saved; %s holds %s: %s", step, out, newest, why);
    if (!r->saving_timed && ++r->failed_saves == 3) fail(EXIT_DISK, "three checkpoints in a row could not be saved: %s", why);
}
/* saved_in: what the save has cost. On a CPU the work beside the steps counts, too. */
static void end_save(Run *r, Saved saved, const char *why) {
    const int first = r->saved_in <= 0;
    const double seconds = now() - r->saved_at;
    r->saving = NO_SAVE;
    if (r->leads) report_saved(r, saved, why);
    r->saved_in = r->dev->is_gpu ? r->paused + seconds / 10 : seconds;
    if (saved != SAVED_NOTHING) { r->saved = saved; r->saved_step = r->saving_step; }
    if (r->saving_timed && first && save_period(r) > (double)r->s.save_seconds)
        log_line(&r->log, "a checkpoint takes %.2g s to save: by time, one every %.0f s instead of %.0f s, a hundredth of the run (-nt)",
                 r->saved_in, save_period(r), (double)r->s.save_seconds);
    r->saved_at = now();
}
int run_save_busy(const Run *r) { return r->saving && saver_busy(r->saver); }
void run_follow_save(Run *r, int waits) {
    const double start = now(), paused = r->paused;
    Error e;
    Saved saved;
    while (r->saving) {
        const int ended = saver_next(r->saver, &saved, &e);
        r->paused = paused + now() - start;
        if (ended) (r->saving == SAVES_BEST ? end_best : end_save)(r, saved, e.text);
        else if (!waits) return;
    }
}
/* Of all weights, without the padding between tensors, which depends on the number of ranks. For rank 0; all take part. */
static uint64_t fingerprint(const Model *m, int leads) {
    enum { SOME = 1 << 22 };
    const size_t size = m->dev->floatX_size;
    char *some = mem_alloc(SOME * size);
    uint64_t h = 0;
    const char *whole = NULL;
    parallel_wait_all_weights(m);
    for (int i = 0, range = -1; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (t->range != range) whole = parallel_whole_weights(m, range = t->range);
        const char *weights = whole + (t->offset - m->manifest.ranges[range].offset) * size;
        h = hash_begin(h);
        for (size_t from = 0, n; from < t->count && leads; from += n) {
            n = t->count - from < SOME ? t->count - from : SOME;
            m->dev->download(some, weights + from * size, n * size);
            h = hash_add(h, some, n * size);
        }
        h = hash_end(h);
    }
    free(some);
    return h;
}

void run_save(Run *r, int timed, int waits) {
    Error e;
    Progress *p = &r->progress;
    run_follow_save(r, 1);
    use_room(r);
    Text progress = { 0 };
    r->saved_at = now();
    r->saving_step = p->step;
    r->saving_timed = timed;
    p->updates = r->optimizer.updates;
    progress_to_json(p, r->dev->name, &progress);
    const Snapshot snapshot = { .model = &r->model, .optimizer = &r->optimizer, .tokenizer = r->tokenizer, .origin = r->origin,
                                .step = p->step, .progress = progress.at, .options = r->options_json };
    r->saving = saver_begin(r->saver, r->s.out, &snapshot, (Keep){ r->s.keep, r->s.save_every, r->s.major }, &e) ? SAVES_STATE : NO_SAVE;
    r->paused = now() - r->saved_at;
    free(progress.at);
    if (!r->saving) end_save(r, SAVED_NOTHING, e.text);
    if (waits && p->step == r->s.steps) {
        run_save_busy(r);                                   /* lets its thread begin: the fingerprint is made meanwhile */
        r->fingerprint = fingerprint(&r->model, r->leads);
        r->has_fingerprint = 1;
    }
    if (waits) run_follow_save(r, 1);
    if (r->best_is_last && r->saved == SAVED_ALL && r->saved_step == p->step) link_best(r);
}

/* ---- the end ------------------------------------------------------------------------------------------------- */

static void log_summary(Run *r, uint64_t weights) {
    const Progress *p = &r->progress;
    log_end(&r->log, p, weights, peak_memory());
    if (p->best.step >= 0)
        log_line(&r->log, "best val loss    | %.6f at step %lld", p->best.loss, (long long)p->best.step);
    log_line(&r->log, "time             | %.1f s since the program started; %.1f s of training in all sessions",
             now() - r->started, p->seconds);
    log_line(&r->log, "tokens           | %lld, %.0f per second",
             (long long)p->tokens, p->seconds > 0 ? (double)p->tokens / p->seconds : 0);
    log_line(&r->log, "peak memory      | %.1f MB", peak_memory() / 1e6);
    if (r->waits != p->step - r->first_step)
        log_line(&r->log, "host waits       | %.2f per step; expected: 1, for its results",
                 (double)r->waits / (double)(p->step - r->first_step));
    log_line(&r->log, "weights          | fingerprint %016llx", (unsigned long long)weights);
    if (data_is_fallback(r->data))
        log_line(&r->log, "NOTE             | trained on this project's own text: "
                 "these losses are not tinyshakespeare's");
}

/* Gives the model in OUT and OUT/best its final form (-sw, -ss). Checkpoints keep the exact weights. */
static void export_model(Run *r) {
    static const char *const types[][2] = { { "f32", "F32" }, { "bf16", "BF16" }, { "f16", "F16" }, { "f64", "F64" } };
    ExportForm form = { .shard = (uint64_t)((double)r->s.shard * 1e9) };
    Error e;
    int files, of_best;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) if (!strcmp(r->s.saved_type, types[i][0])) form.type = types[i][1];
    char *best = text_format("%s/best", r->s.out);
    if (!export_weights(r->s.out, form, r->origin, &files, &e) || !export_weights(best, form, r->origin, &of_best, &e))
        fail(EXIT_DISK, "the model is saved in %s, but not as -sw and -ss ask: %s", r->s.out, e.text);
    const Family family = config_family(&r->config);
    log_line(&r->log, "saved as         | %s%s%.0d%s", family_name(family), files > 1 ? ", in " : "", files > 1 ? files : 0,
             files > 1 ? " files and their index" : family == FAMILY_SMOE ? ", which Transformers opens with trust_remote_code=True" : "");
    free(best);
}

void run_end_log(Run *r) {
    Error e;
    const uint64_t weights = r->has_fingerprint ? r->fingerprint : fingerprint(&r->model, r->leads);
    if (!r->leads) return;
    export_model(r);
    log_summary(r, weights);
    if (!report_update(r->report, 0, &e)) warn("%s", e.text);
    report_close(r->report);
    Text folder = { 0 };
    char *best = text_format("%s%s", r->s.out, r->s.keep_best && r->progress.best.step >= 0 ? "/best" : "");
    text_add_word(&folder, r->finished ? best : r->s.out);
    if (r->finished && data_has_chats(r->data))
        log_line(&r->log, "\nto talk to it:  make infer_moe && ./infer_moe %s -m chat", folder.at);
    else if (r->finished)
        log_line(&r->log, "\nto generate text:  make infer_moe && ./infer_moe %s -i %s%s", folder.at,
                 r->tokenizer ? "\"ROMEO:\"" : "\"1 2 3\"", r->tokenizer ? "" : "      (ids of tokens; -z names a tokenizer)");
    else
        log_line(&r->log, "\nstopped on request; to continue:  ./train_moe -o %s -y 1", folder.at);
    free(folder.at);
    free(best);
    log_close(&r->log);
}
