/* run_save.c: checkpoints of a run and its best weights (run.h). */
#include "run.h"
#include "llmc/base/text.h"
#include <stdlib.h>

/* "the checkpoint of step 400", for messages: the newest state. */
void run_name_newest(const Run *r, char text[64]) {
    const int64_t step = checkpoint_newest(r->s.out);
    if (step < 0) snprintf(text, 64, "no checkpoint");
    else snprintf(text, 64, "the checkpoint of step %lld", (long long)step);
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
int run_keep_best(Run *r, Best before) {
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
    run_name_newest(r, newest);
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
uint64_t run_fingerprint(const Run *r) {
    enum { SOME = 1 << 22 };
    const Model *m = &r->model;
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
        for (size_t from = 0, n; from < t->count && r->leads; from += n) {
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
        r->fingerprint = run_fingerprint(r);
        r->has_fingerprint = 1;
    }
    if (waits) run_follow_save(r, 1);
    if (r->best_is_last && r->saved == SAVED_ALL && r->saved_step == p->step) link_best(r);
}
