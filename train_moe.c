/* train_moe.c: trains a sparse mixture-of-experts language model.
 *
 *   settings -> data -> model -> ranks -> loop { batch, forward, loss, backward, update } -> checkpoint
 *
 * main() is at the end and reads as the list above. Everything after `ranks` is done by each rank in a thread of its
 * own, in step with the others (llmc/model/parallel.h); rank 0 alone writes and prints. What can be set: llmc/run/settings.c. How a
 * run begins, and what is seen of it: llmc/run/run.h. What a model is: llmc/model/model.c. What its layers compute:
 * llmc/model/attention.c, llmc/model/moe.c, llmc/model/route.c. The arithmetic: kernels/kernels.h. */
#define _POSIX_C_SOURCE 200809L
#include "llmc/model/check.h"
#include "llmc/base/random.h"
#include "llmc/run/run.h"
#include "llmc/model/schedule.h"
#include "llmc/ranks/threads.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one step ------------------------------------------------------------------------------------------ */

static AdamW adamw(const Settings *s, int64_t step) {
    return (AdamW){ .lr = s->lr * (float)schedule_rate(s->schedule, (long)step, (long)s->steps, (long)s->warmup,
                                                       (double)s->final_lr),
                    .beta1 = s->beta1, .beta2 = s->beta2, .eps = 1e-8f, .decay = s->decay, .clip = s->clip,
                    .key = random_key(~(uint64_t)s->seed, (uint64_t)step) };
}

/* All that a step needs of the host, sent before its work begins. */
static void send_step(Run *r) {
    const Settings *s = &r->s;
    Error e;
    const int64_t step = r->progress.step, first = s->overfit ? 0 : r->progress.samples;
    const size_t N = (size_t)s->batch * (size_t)s->seq;
    for (int micro = 0; micro < r->micro_batches; micro++) {
        const int64_t micro_index = (int64_t)micro * r->parallel.ranks + r->parallel.rank;      /* ranks deal them out */
        const size_t at = (size_t)micro * N;
        if (!data_batch(r->data, first + micro_index * s->batch, s->batch, s->seq, (uint64_t)s->seed,
                        r->inputs + at, r->targets + at, &e))
            fail(EXIT_DISK, "%s", e.text);
        r->keys[micro] = random_key((uint64_t)s->seed,
                                    (uint64_t)(step * r->micro_batches * r->parallel.ranks + micro_index));
    }
    model_send(&r->model, r->inputs, r->targets, r->keys, s->batch, s->seq);
    optimizer_set(&r->optimizer, &r->model, adamw(s, step));
}
static void micro_batch(void *run) {
    Run *r = run;
    model_learn(&r->model, 1.0f / (float)tokens_per_step(r), 1.0f / (float)(r->micro_batches * r->parallel.ranks));
}
static void update(void *run) {
    Run *r = run;
    Model *m = &r->model;
    optimizer_update(&r->optimizer, m);
    if (r->records) parallel_gather_weights(m, 0);
    for (int i = 0, experts, at; i < m->routers && r->s.bias_rate > 0; i++) {
        at = router_width(m, i, &experts);
        m->dev->router_bias(real_at(m, m->bias, (size_t)at), m->results.load + at, r->s.bias_rate,
                            !strcmp(r->s.bias_law, "relative"), experts);
    }
}
static void train_step(Run *r) {
    Model *m = &r->model;
    char set_activity[64];
    snprintf(set_activity, sizeof set_activity, "step %lld", (long long)r->progress.step + 1);
    if (m->dev->set_activity) m->dev->set_activity(set_activity);
    send_step(r);
    m->dropout = r->s.dropout;
    m->rounds = 1;
    for (int micro = 0; micro < r->micro_batches; micro++) {
        model_begin_micro(m, micro);
        replay_run(&r->replay_micro[m->batch.phase], m->dev, model_state(m), micro_batch, r);
        model_end_micro(m, micro);
    }
    replay_run(&r->replay_update, m->dev, 0, update, r);
    if (!r->records) parallel_gather_weights(m, 1);
}

/* The one place where a step is read back. */
static StepStats step_stats(Run *r, double start, int *bad_tensor) {
    Model *m = &r->model;
    StepStats t = { .step = r->progress.step + 1 };
    StepResults f = model_results(m);
    for (int i = 0; i < m->batch.all_micro_batches; i++) t.loss += f.step_losses[i] / (double)tokens_per_step(r);
    t.norm = optimizer_norm(&r->optimizer, f.grad_sq_norms, bad_tensor);
    for (int i = 0; i < 2 * m->routers && !m->dp.ordered; i++) f.losses[i] /= r->parallel.ranks;
    if (m->routers) router_stats(&t, m, f.load, f.losses);
    results_free(&f);
    t.lr = (double)adamw(&r->s, r->progress.step).lr;
    const double seconds = now() - start;               /* a GPU has only finished when its results are here */
    t.ms = 1e3 * seconds;
    t.tok_s = (double)tokens_per_step(r) / seconds;
    r->session += seconds;
    t.eta = r->session / (double)(t.step - r->first_step) * (double)(r->s.steps - t.step);
    return t;
}

/* ---- requests from outside: stop after this step, or save and go on ------------------------------------ */

static volatile sig_atomic_t stop_request, save_request;
static void on_signal(int number) {
    if (number == SIGUSR1) { save_request = 1; return; }
    if (stop_request && number == SIGINT) _exit(128 + SIGINT);
    stop_request = 1;
}
static void listen_to_signals(void) {
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&act.sa_mask);
    const int numbers[] = { SIGINT, SIGTERM, SIGUSR1, SIGUSR2 };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &act, NULL);
    signal(SIGHUP, SIG_IGN);
}
/* Run with stdout closed, a file opened later would be number 1, and the text for the terminal would go into it. */
static void open_standard_files(void) {
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}
static int stop_file(const Run *r) {                         /* a request is good for one stop: it is taken away */
    char *path = text_format("%s/STOP", r->s.out);
    const int there = is_file(path);
    if (there) unlink(path);
    free(path);
    return there;
}

/* What any process was asked for. All ranks come to the same answer, here, after the same step; what comes in later
 * counts for the next. */
enum { STOP = 1, SAVE = 2 };
static int requests(const Run *r) {
    const int saves = r->speaks_for && save_request;
    int asked = (stop_request || (r->leads && stop_file(r)) ? STOP : 0) | (saves ? SAVE : 0);
    if (saves) save_request = 0;
    if (!group_max(r->parallel.group, asked)) return 0;
    asked = group_max(r->parallel.group, asked & STOP) | group_max(r->parallel.group, asked & SAVE);
    return asked;
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

/* How long a step may take before a rank is taken for lost: what is begun for the first time takes its time. */
static double step_limit(const Run *r) {
    const int64_t done = r->progress.step - r->first_step;
    const double limit = done ? 10 * r->session / (double)done : 0;
    return done < 3 ? 0 : limit > 60 ? limit : 60;
}

static int train(Run *r) {                                           /* 1: ran to the end; 0: stopped on request */
    const Settings *s = &r->s;
    Progress *p = &r->progress;
    Error e;
    int64_t saved = -1;
    if (r->speaks_for) listen_to_signals();
    while (p->step < s->steps) {
        const double start = now();
        int bad_tensor;
        group_phase(r->parallel.group, "a training step", step_limit(r));
        const Waits before = r->dev->waits();
        train_step(r);
        StepStats t = step_stats(r, start, &bad_tensor);
        const Waits after = r->dev->waits();
        r->waits += after.syncs - before.syncs + after.reads - before.reads;
        const int last = t.step == s->steps, validates = last || t.step % s->val_every == 0;
        const int samples = r->samples_wanted && (last || t.step % s->sample_every == 0);
        const double loss_z = window_score(&p->loss, t.loss), norm_z = window_score(&p->norm, t.norm);
        log_step(&r->log, &t, s->steps, loss_z, norm_z, validates || samples || t.step == r->first_step + 1);
        if (bad_tensor >= 0) run_bad_step(r, &t, bad_tensor); else p->bad_steps = 0;
        p->step = t.step;
        p->samples += samples_per_step(r);
        p->tokens += tokens_per_step(r);
        p->seconds += now() - start;

        group_phase(r->parallel.group, "what comes between steps", 0);
        if (validates && r->config.rounding) run_show_tile_waste(r);
        if (validates && run_validate(r) && s->keep_best && r->leads
            && !checkpoint_save_best(s->out, &r->model, p->step, r->tokenizer, &e))
            warn("the best weights were not saved: %s", e.text);
        if (samples && r->leads) run_show_sample(r);
        const int asked = requests(r), stop = asked & STOP;
        if (last || asked || (s->save_every && t.step % s->save_every == 0))
            if (run_save(r)) saved = p->step;
        if (stop && !last) {
            if (saved != p->step) fail(EXIT_DISK, "stopped on request, but the checkpoint could not be saved");
            return 0;
        }
    }
    if (saved != p->step && r->first_step < s->steps)
        fail(EXIT_DISK, "the last checkpoint could not be saved in %s", s->out);
    return 1;
}

/* -gc 1: this model with few tokens, in f64, against finite differences; then this device against its more exact
 * twin. */
static int gradient_check(const Run *r) {
    const Settings *s = &r->s;
    Check c = { .config = r->config, .B = 2, .T = s->seq < 12 ? s->seq : 12, .recompute = s->recompute,
                .samples = r->config.channels > 512 ? 3 : 12, .balance = s->balance, .z = s->z,
                .dropout = s->dropout, .seed = (uint64_t)s->seed };
    c.config.tile = 4;                                      /* few tokens */
    double worst, worst_device = 0;
    puts("gradient check: every tensor against finite differences, cpu-f64");
    int bad = check_gradients(&c, 1e-6, stdout, 1, &worst);
    if (bad < 0) fail(EXIT_MEMORY, "not enough memory to check this model in f64");
    const int rough = r->dev->floatX_size == 2;
    const Device *twin = device_find(rough && r->dev->is_gpu ? "cpu-bf16" : "cpu-f64");
    const double bound = !rough ? 1e-4 : r->dev->is_gpu ? 2e-2 : 0.5;
    if (r->dev != twin) {
        printf("%s against %s\n", r->dev->name, twin->name);
        bad += check_devices(&c, r->dev, twin, bound, stdout, 0, &worst_device);
    }
    printf("gradient check %s: %d bad tensors; worst error %.1e in f64, %.1e on %s\n",
           bad ? "FAILED" : "passed", bad, worst, worst_device, r->dev->name);
    return bad ? EXIT_NUMERICS : EXIT_DONE;
}

/* ---- the ranks ------------------------------------------------------------------------------------------ */

/* All that one rank does, in a thread of its own; `all` holds a copy of the Run for each that this process drives. */
static void run_rank(void *all, int local) {
    Run *r = (Run *)all + local;
    parallel_connect(&r->parallel, r->dev, r->local_devices.first + local, r->processes, local);
    r->leads = r->parallel.rank == 0;
    r->speaks_for = local == 0;
    run_plan(r);
    run_allocate(r);
    run_start_or_resume(r);
    run_begin_log(r);
    r->finished = train(r);
    run_end_log(r);
    parallel_disconnect(&r->parallel);
}

int main(int argc, char **argv) {
    static Run run, *ranks;
    Run *r = &run;
    threads_settle(argv);
    r->started = now();
    signal(SIGPIPE, SIG_IGN);                               /* `| head` must not end a run, */
    signal(SIGXFSZ, SIG_IGN);                               /* nor a limit on file sizes: that is a full disk */
    open_standard_files();
    settings_parse(&r->s, argc, argv);
    run_find_launch(r);
    run_open_folder(r);
    run_choose_device(r);
    run_open_data(r);
    run_choose_model(r);
    run_join_ranks(r);
    run_plan(r);
    if (r->leads) run_print_plan(r);
    if (r->s.check) return gradient_check(r);
    if (r->s.steps == 0) return EXIT_DONE;

    model_free(&r->model);                                  /* every rank makes its own */
    ranks = mem_alloc((size_t)r->local_devices.count * sizeof *ranks);
    for (int i = 0; i < r->local_devices.count; i++) ranks[i] = *r;
    threads_run(r->local_devices.count, run_rank, ranks);
    checkpoint_close(r->from);
    group_leave(r->processes);
    return ranks[0].finished ? EXIT_DONE : EXIT_STOPPED;
}
