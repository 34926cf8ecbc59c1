/* train_moe.c: trains a sparse mixture-of-experts language model.
 *
 *   settings -> data -> model -> ranks -> loop { batch, forward, loss, backward, update } ->
 *   checkpoint
 *
 * main() is at the end and reads like the list above. After `ranks`, each rank works in a thread of
 * its own, in lockstep with the others (llmc/model/parallel.h); only rank 0 writes and prints.
 * Settings: llmc/run/settings.c. How a run starts and what it reports: llmc/run/run.h. The model:
 * llmc/model/pass.c. Its layers: llmc/model/attention.c, moe.c and route.c. The arithmetic:
 * kernels/kernels.h. */
#include "llmc/base/random.h"
#include "llmc/model/batch.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include "llmc/model/routers.h"
#include "llmc/model/schedule.h"
#include "llmc/ranks/threads.h"
#include "llmc/run/requests.h"
#include "llmc/run/run.h"
#include <math.h>
#include <string.h>

/* ---- one step -------------------------------------------------------------------------------- */

/* The noise of a gradient falls with the root of its batch, and the rate that it allows rises. */
static float rate(const Run *r, int64_t step) {
    const Settings *s = &r->s;
    return s->lr * (float)schedule_rate(s->schedule, (long)step, (long)s->steps, (long)s->warmup, (double)s->final_lr,
                                        (double)s->decay_part)
         * sqrtf((float)stages_at(&r->stages, step, s->steps));
}
static AdamW adamw(const Run *r, int64_t step) {
    const Settings *s = &r->s;
    const float lr = rate(r, step), falls = s->cautious == DECAY_SQUARED ? lr / s->lr : 1;
    return (AdamW){ .lr = lr, .cautious = s->cautious != DECAY_PLAIN,
                    .beta1 = s->beta1, .beta2 = s->beta2, .eps = 1e-8f, .decay = s->decay * falls, .clip = s->clip,
                    .key = random_key(~(uint64_t)s->seed, (uint64_t)step) };
}

/* Everything that the step reads from the host, sent before its work is queued. */
static void send_step(Run *r) {
    const Settings *s = &r->s;
    Error e;
    const int64_t step = r->progress.step, first = s->overfit ? 0 : r->progress.samples;
    const size_t N = (size_t)s->batch * (size_t)s->seq;
    for (int micro = 0; micro < r->micro_batches; micro++) {
        const int64_t micro_index = (int64_t)micro * r->parallel.ranks + r->parallel.rank;      /* of the whole step */
        const size_t at = (size_t)micro * N;
        if (!data_batch(r->data, first + micro_index * s->batch, s->batch, s->seq, (uint64_t)s->seed,
                        r->inputs + at, r->targets + at, r->positions + at, &e))
            fail_with(&e, EXIT_DISK);
        r->keys[micro] = random_key((uint64_t)s->seed,
                                    (uint64_t)(step * run_most_micro_batches(r) * r->parallel.ranks + micro_index));
    }
    r->counted = data_counted(r->data, first, (int)samples_per_step(r), s->seq, (uint64_t)s->seed, &e);
    if (r->counted < 0) fail_with(&e, EXIT_DISK);
    r->model.batch.micro_batches = r->micro_batches;
    model_send(&r->model, r->inputs, r->targets, data_has_chats(r->data) ? r->positions : NULL, r->keys,
               s->batch, s->seq);
    const float scale = 1.0f / (float)r->counted;
    schedule_further((double)step / (double)s->steps, (double)s->further, r->model.further_weight);
    model_scale_loss(&r->model, (double)scale);
    optimizer_set(&r->optimizer, &r->model, adamw(r, step));
}
static void micro_batch(void *run) {
    Run *r = run;
    model_learn(&r->model, 1.0f / (float)(r->micro_batches * r->parallel.ranks));
}
static void update(void *run) {
    Run *r = run;
    optimizer_update(&r->optimizer, &r->model);
    if (r->records) parallel_gather_weights(&r->model, 0);
    if (r->s.bias_rate > 0) routers_update_bias(&r->model, r->s.bias_rate, r->s.bias_law == BIAS_RELATIVE);
}
static void train_step(Run *r) {
    Model *m = &r->model;
    char activity[64];
    snprintf(activity, sizeof activity, "step %lld", (long long)r->progress.step + 1);
    if (m->dev->set_activity) m->dev->set_activity(activity);
    r->micro_batches = r->first_micro_batches * stages_at(&r->stages, r->progress.step, r->s.steps);
    send_step(r);
    m->dropout = r->s.dropout;
    m->rounds = m->fp8 = 1;
    if (r->saves.under_way && m->taker.complete) m->dev->copied(0);    /* the momentum changes from now on */
    for (int micro = 0; micro < r->micro_batches; micro++) {
        if (r->progress.step == r->first_step)
            log_first_step(&r->log, r->progress.step + 1, r->s.steps, micro, r->micro_batches, tokens_per_step(r));
        model_begin_micro(m, micro);
        replay_run(&r->replay_micro[m->batch.phase], r->dev, model_state(m) + (uint64_t)r->micro_batches, micro_batch,
                   r);
        model_end_micro(m, micro);
    }
    if (r->saves.under_way) m->dev->copied(0);                       /* what is saved is not changed before */
    replay_run(&r->replay_update[optimizer_slice(&r->optimizer)], r->dev, 0, update, r);
    if (!r->records) parallel_gather_weights(m, 1);
}

/* Reads back the results of the step that began at time `start`: the only point where the host
 * waits for the device. */
static StepStats step_stats(Run *r, double start, int *bad_tensor) {
    Model *m = &r->model;
    StepStats t = { .step = r->progress.step + 1, .steps = r->s.steps };
    StepResults results = model_results(m);
    for (int i = 0; i < m->batch.all_micro_batches; i++) t.loss += results.step_losses[i] / (double)r->counted;
    t.norm = optimizer_norm(&r->optimizer, results.grad_sq_norms, bad_tensor);
    for (int i = 0; i < 2 * m->routers && !m->dp.ordered; i++) results.losses[i] /= r->parallel.ranks;
    t.routers = router_stats(m, results.load, results.losses);
    results_free(&results);
    const double seconds = now() - start;               /* a GPU's step has ended when its results are here */
    r->session += seconds;
    t.lr = (double)rate(r, r->progress.step);
    t.ms = 1e3 * seconds;
    t.tok_s = (double)tokens_per_step(r) / seconds;
    t.eta = run_seconds_left(r, t.step);
    t.loss_z = window_score(&r->progress.loss, t.loss);
    t.norm_z = window_score(&r->progress.norm, t.norm);
    return t;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The time-out of a step. None for the first three steps, which include warm-up. */
static double step_limit(const Run *r) {
    const int64_t done = r->progress.step - r->first_step;
    const double limit = done ? 10 * r->session / (double)done : 0;
    return done < 3 ? 0 : limit > 60 ? limit : 60;
}

static int is_due(const Run *r, int64_t step, int64_t every) { return step == r->s.steps || step % every == 0; }
static int validates(const Run *r, int64_t step) { return is_due(r, step, r->s.val_every); }
static int shows_sample(const Run *r, int64_t step) { return r->shows_samples && is_due(r, step, r->s.sample_every); }

/* What is due or asked for after a step. 0: stop. */
static int between_steps(Run *r) {
    const Settings *s = &r->s;
    Progress *p = &r->progress;
    if (r->takes_signals) requests_step(0);
    group_phase(r->parallel.group, "work between steps", 0);
    int64_t every;
    p->unvalidated = validates(r, p->step) && !run_validate(r);
    if (!p->unvalidated && run_short_batches(r, &every) && (validates(r, p->step) || p->step % every == 0))
        run_validate_short(r, !validates(r, p->step));
    if (shows_sample(r, p->step) && !p->unvalidated) run_show_sample(r);
    run_report(r);
    const double taken = r->takes_signals && !r->dev->is_gpu && !r->saves.under_way ? threads_follow_load() : 0;
    if (taken > 0)
        log_line(&r->log, "other programs are using this machine: its threads wait %.0f %% of their time for a core; "
                 "they spin less from now on", 100 * taken);
    const int requests = requests_collect(r->parallel.group, r->takes_signals, r->leads ? s->out : NULL,
                                          (saves_due(&r->saves) ? REQUEST_TIMED_SAVE : 0)
                                          | (saves_busy(&r->saves) ? REQUEST_BUSY : 0));
    const int last = p->step == s->steps && !p->unvalidated, by_step = s->save_every && p->step % s->save_every == 0;
    const int requested = requests & ~REQUEST_BUSY, stops = requests & REQUEST_STOP;
    if (!(requests & REQUEST_BUSY)) saves_follow(&r->saves, 0);
    if (last || requested || by_step || saves_put_off(&r->saves))
        saves_begin(&r->saves, !last && !by_step && requested == REQUEST_TIMED_SAVE, last || stops);
    if (!stops || last) return 1;
    if (r->saves.saved_step != p->step) fail(EXIT_DISK, "stopped on request, but the checkpoint could not be saved");
    return 0;
}
/* 1: ran to the end; 0: stopped on request. */
static int train(Run *r) {
    const Settings *s = &r->s;
    Progress *p = &r->progress;
    if (p->step >= s->steps && !p->unvalidated) return 1;
    if (r->takes_signals) requests_listen(r->leads);
    if (p->unvalidated && !between_steps(r)) return 0;
    while (p->step < s->steps) {
        const double start = now();
        const int is_first = p->step == r->first_step;
        int bad_tensor;
        if (r->takes_signals) requests_step(p->step + 1);
        if (is_first) run_time_start(r, "first step");
        group_phase(r->parallel.group, "a training step", step_limit(r));
        const Waits before = r->dev->waits();
        train_step(r);
        StepStats t = step_stats(r, start, &bad_tensor);
        const Waits after = r->dev->waits();
        r->waits += after.syncs - before.syncs + after.reads - before.reads;
        if (is_first) run_report_start(r);
        log_step(&r->log, &t, t.step == r->first_step + 1 || validates(r, t.step) || shows_sample(r, t.step));
        run_forewarn(r, &t);
        run_follow_course(r, &t);
        if (bad_tensor >= 0) run_bad_step(r, &t, bad_tensor); else p->bad_steps = 0;
        p->step = t.step;
        p->samples += samples_per_step(r);
        p->tokens += tokens_per_step(r);
        p->seconds += now() - start;
        if (!between_steps(r)) return 0;
    }
    if (r->saves.saved_step != p->step) fail(EXIT_DISK, "the last checkpoint could not be saved in %s", s->out);
    if (r->saves.saved != SAVED_ALL)
        fail(EXIT_DISK, "all %lld steps are saved in %s/state, but what else a save does failed; to repeat it: "
             "./train_moe -o %s -y 1", (long long)p->step, s->out, s->out);
    return 1;
}

/* ---- the ranks ------------------------------------------------------------------------------- */

/* The work of one rank, in a thread of its own. all: a copy of the Run for each rank of this
 * process. */
static void run_rank(void *all, int local) {
    Run *r = (Run *)all + local;
    run_time_start(r, "ranks");
    parallel_connect(&r->parallel, r->dev, r->local_devices.first + local, r->processes, local);
    r->leads = r->parallel.rank == 0;
    r->takes_signals = local == 0;
    run_plan(r);
    parallel_form_nodes(&r->parallel, r->dev);
    run_time_start(r, "memory");
    run_allocate(r);
    run_start_or_resume(r);
    run_begin_log(r);
    r->finished = train(r);
    run_end_log(r);
    saver_close(r->saves.saver);
    for (int i = 0; i < PHASES; i++) replay_free(&r->replay_micro[i], r->dev);
    /* NCCL does not close while a recording holds its operations */
    for (int i = 0; i < MUON_PERIODS; i++) replay_free(&r->replay_update[i], r->dev);
    parallel_disconnect(&r->parallel);
}

int main(int argc, char **argv) {
    static Run run, *ranks;
    Run *r = &run;
    process_protect();
    threads_settle(argv);
    r->started = now();
    r->arguments = argv;
    run_time_start(r, "settings and folder");
    settings_parse(&r->s, argc, argv);
    requests_begin();
    run_find_launch(r);
    run_open_folder(r);
    run_time_start(r, "device");
    run_choose_device(r);
    run_time_start(r, "data");
    run_open_data(r);
    run_time_start(r, "plan");
    run_choose_model(r);
    run_time_start(r, "ranks");
    run_join_ranks(r);
    run_time_start(r, "plan");
    run_plan(r);
    run_skip_unread(r);
    run_plan_saves(r);
    if (r->leads) run_print_plan(r);
    if (r->s.check) return run_check_gradients(r);
    if (run_only_plans(r)) return EXIT_DONE;

    model_free(&r->model);                                  /* every rank plans its own */
    ranks = mem_alloc((size_t)r->local_devices.count * sizeof *ranks);
    for (int i = 0; i < r->local_devices.count; i++) ranks[i] = *r;
    threads_run(r->local_devices.count, run_rank, ranks);
    checkpoint_close(r->from);
    group_leave(r->processes);
    if (ranks[0].finished && ranks[0].saves.lost_best >= 0)
        fail(EXIT_DISK, "the weights with the best validation loss, of step %lld, could not be saved",
             (long long)ranks[0].saves.lost_best);
    if (ranks[0].finished && ranks[0].progress.diverged)
        fail(EXIT_NUMERICS, "the run has diverged at step %lld, and did not recover",
             (long long)ranks[0].progress.diverged);
    return ranks[0].finished ? EXIT_DONE : EXIT_STOPPED;
}
