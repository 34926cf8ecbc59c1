/* saves.c: see saves.h. */
#define _POSIX_C_SOURCE 200809L
#include "saves.h"
#include "llmc/ranks/group.h"
#include <stdlib.h>
#include <time.h>

static int leads(const Saves *v) { return v->parallel->rank == 0; }

void saves_open(Saves *v, const Settings *s, Progress *p, Log *log, const Parallel *parallel, Snapshot what,
                size_t copy_bytes) {
    *v = (Saves){ .s = s, .p = p, .log = log, .parallel = parallel, .what = what,
                  .saver = saver_open(what.model, s->kept == KEEP_STATE ? what.optimizer : NULL), .bytes = v->bytes,
                  .copy_bytes = copy_bytes, .saved_step = -1, .saved = SAVED_ALL, .lost_best = -1 };
    if (!group_all(parallel->group, copy_bytes > 0)) {
        if (leads(v) && copy_bytes)
            warn("the host of another rank has no room for a copy of what is saved: steps wait for saves");
        v->copy_bytes = 0;
    }
    if (v->copy_bytes) saver_make_buffer(v->saver);
}

void saves_newest(const char *out, char text[64]) {
    const int64_t step = checkpoint_newest(out, 0);
    if (step < 0) snprintf(text, 64, "no checkpoint");
    else snprintf(text, 64, "the checkpoint of step %lld", (long long)step);
}

/* Saves before the memory for a copy is there make none. */
static void use_buffer(Saves *v) {
    if (!v->copy_bytes || v->copies) return;
    const BufferState state = saver_use_buffer(v->saver, 0);
    v->copies = state == BUFFER_READY;
    if (state == BUFFER_NONE) {
        if (leads(v)) warn("the host does not have %.1f MB for a copy of what is saved: steps wait for saves",
                           (double)v->copy_bytes / 1e6);
        v->copy_bytes = 0;
    }
}
static void say_lost(const Saves *v, int64_t step, const char *why, const char *then) {
    if (leads(v)) warn("the best weights, of step %lld, were not saved: %s%s", (long long)step, why, then);
}
/* Saves the weights as the best while the steps wait. 0: two attempts failed; best/ keeps the
 * previous best. All ranks get the same result. */
static int save_best(Saves *v) {
    Error e;
    const int64_t step = v->p->step;
    const int ok = checkpoint_save_best(v->s->out, v->what.model, step, v->what.tokenizer, v->what.origin, &e);
    if (!ok) say_lost(v, step, e.text, "");
    v->lost_best = ok ? -1 : step;
    return ok;
}
/* The same, after their checkpoint was saved. */
static void link_best(Saves *v) {
    Error e;
    const int64_t step = v->p->step;
    int ok = 0;
    for (int attempt = 0; attempt < 2 && !ok; attempt++) {
        ok = group_all(v->parallel->group, !leads(v)
                       || checkpoint_link_best(v->s->out, step, v->what.model, v->what.tokenizer, v->what.origin, &e));
        if (!ok) say_lost(v, step, e.text, attempt ? "" : "; trying again");
    }
    v->lost_best = ok ? -1 : step;
}
static void end_best(Saves *v, Saved saved, const char *why) {
    v->under_way = NO_SAVE;
    v->lost_best = saved == SAVED_ALL ? -1 : v->step;
    if (saved == SAVED_ALL) return;
    say_lost(v, v->step, why, "");
    v->p->best = v->best_before;
}
/* Those of the last step are saved as a whole anyway, right after: then that file gets a second
 * name (saves_begin). Others are written beside the steps, if memory for a copy is free. */
int saves_best(Saves *v, Best before) {
    Error e;
    if (!v->s->keep_best || v->s->kept == KEEP_NOTHING) return 1;
    if (v->p->step == v->s->steps) return v->best_is_last = 1;
    use_buffer(v);
    if (!v->copies || v->under_way) return save_best(v);
    v->best_before = before;
    v->step = v->what.step = v->p->step;
    v->under_way = SAVES_BEST;
    if (!saver_begin_best(v->saver, v->s->out, &v->what, &e)) end_best(v, SAVED_NOTHING, e.text);
    return 1;
}

/* Saves by time cost at most a hundredth of the run. */
static double save_period(const Saves *v) {
    const double wanted = (double)v->s->save_seconds;
    return v->cost <= 0 ? wanted / 2 : wanted > 100 * v->cost ? wanted : 100 * v->cost;
}
int saves_due(const Saves *v) {
    return leads(v) && !v->under_way && v->s->save_seconds > 0 && v->s->kept != KEEP_NOTHING
        && now() - v->at >= save_period(v);
}

static void report_saved(Saves *v, Saved saved, const char *why) {
    const char *out = v->s->out;
    const long long step = v->step;
    const double seconds = now() - v->at;
    if (saved == SAVED_ALL) {
        char late[64] = "";
        if (v->due) snprintf(late, sizeof late, ", due at %lld,", (long long)v->due);
        log_line(v->log, "saved step %lld%s in %s: the steps waited %.3f s, it was written in %.2f s", step, late, out,
                 v->paused, seconds);
        Text e = event("save");
        event_int(&e, "step", step);
        if (v->due) event_int(&e, "due", v->due);
        event_double(&e, "paused", v->paused);
        event_double(&e, "seconds", seconds);
        log_event(v->log, &e);
    }
    if (saved == SAVED_STATE)
        warn("step %lld is saved in %s/state; but the model in %s is an older one, or the disk may lose it: %s", step,
             out, out, why);
    if (saved != SAVED_NOTHING) { v->failed = 0; return; }
    char newest[64];
    saves_newest(out, newest);
    warn("checkpoint of step %lld was not saved; %s holds %s: %s", step, out, newest, why);
    if (!v->timed && ++v->failed == 3) fail(EXIT_DISK, "three checkpoints in a row could not be saved: %s", why);
}
/* cost: what the save has cost. On a CPU the work beside the steps counts, too. */
static void end_save(Saves *v, Saved saved, const char *why) {
    const int first = v->cost <= 0;
    const double seconds = now() - v->at;
    v->under_way = NO_SAVE;
    if (leads(v)) report_saved(v, saved, why);
    v->cost = v->what.model->dev->is_gpu ? v->paused + seconds / 10 : seconds;
    if (saved != SAVED_NOTHING) { v->saved = saved; v->saved_step = v->step; }
    if (v->timed && first && save_period(v) > (double)v->s->save_seconds)
        log_line(v->log, "a checkpoint takes %.2g s to save: by time, one every %.0f s instead of %.0f s, a hundredth "
                 "of the run (-nt)", v->cost, save_period(v), (double)v->s->save_seconds);
    v->at = now();
    v->due = 0;
}
int saves_busy(const Saves *v) { return v->under_way && saver_busy(v->saver); }
void saves_follow(Saves *v, int waits) {
    const double start = now(), paused = v->paused;
    Error e;
    Saved saved;
    while (v->under_way) {
        const int ended = saver_next(v->saver, &saved, &e);
        v->paused = paused + now() - start;
        if (ended) (v->under_way == SAVES_BEST ? end_best : end_save)(v, saved, e.text);
        else if (!waits) return;
    }
}

/* Waits for the save that is under way, for a while. All ranks give up together. */
static void wait_some(Saves *v) {
    enum { BUSY = 1, OVER = 2 };
    const struct timespec nap = { .tv_nsec = 2000000 };
    const double start = now(), before = v->paused;
    for (int state = 0; v->under_way && !(state & OVER); ) {
        state = group_or(v->parallel->group, (saves_busy(v) ? BUSY : 0)
                         | (leads(v) && now() - start > PATIENCE ? OVER : 0), BUSY | OVER);
        if (!(state & BUSY)) { saves_follow(v, 0); continue; }
        v->paused = before + now() - start;
        nanosleep(&nap, NULL);
    }
}
static int is_multiple(int64_t step, int64_t of) { return of > 0 && step % of == 0; }
/* One is remembered: the latest, unless the one before is to stay for ever. */
static void put_off(Saves *v) {
    log_line(v->log, "the checkpoint of step %lld is put off: that of step %lld is still being written",
             (long long)v->p->step, (long long)v->step);
    if (!is_multiple(v->late, v->s->major) || !v->late) v->late = v->p->step;
}
/* The step at which the save that begins was due; 0: this one. */
static int64_t stands_for(const Saves *v) {
    const int64_t step = v->p->step, every = v->s->save_every, major = v->s->major;
    if (!v->late || is_multiple(step, major)) return 0;
    return is_multiple(step, every) && !is_multiple(v->late, major) ? 0 : v->late;
}
int saves_put_off(const Saves *v) { return v->late && !v->under_way; }

/* Of all weights, without the padding between tensors, which depends on the number of ranks. */
uint64_t saves_fingerprint(Saves *v) {
    enum { SOME = 1 << 22 };
    const Model *m = v->what.model;
    const size_t size = m->dev->floatX_size;
    const char *full = NULL;
    uint64_t h = 0;
    if (v->has_fingerprint) return v->fingerprint;
    char *some = mem_alloc(SOME * size);
    parallel_wait_all_weights(m);
    for (int i = 0, range = -1; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (t->range != range) full = parallel_full_weights(m, range = t->range);
        const char *weights = full + (t->offset - m->manifest.ranges[range].offset) * size;
        h = hash_begin(h);
        for (size_t from = 0, n; from < t->count && leads(v); from += n) {
            n = t->count - from < SOME ? t->count - from : SOME;
            m->dev->download(some, weights + from * size, n * size);
            h = hash_add(h, some, n * size);
        }
        h = hash_end(h);
    }
    free(some);
    v->has_fingerprint = 1;
    return v->fingerprint = h;
}

void saves_begin(Saves *v, int timed, int waits) {
    Error e;
    Progress *p = v->p;
    Text progress = { 0 };
    if (v->s->kept == KEEP_NOTHING) {
        v->saved_step = p->step;
        return;
    }
    if (waits) saves_follow(v, 1);
    else if (!v->late) wait_some(v);
    if (v->under_way) { put_off(v); return; }
    use_buffer(v);
    v->at = now();
    v->step = v->what.step = p->step;
    v->due = stands_for(v);
    v->timed = timed && !v->late;
    v->late = 0;
    p->updates = v->what.optimizer->updates;
    progress_to_json(p, v->what.model->dev->name, &progress);
    if (v->due) text_add(&progress, ",\n  \"due_step\": %lld", (long long)v->due);
    v->what.progress = progress.at;
    const Keep keep = { v->s->keep, v->s->save_every, v->s->major, p->sound };
    v->under_way = saver_begin(v->saver, v->s->out, &v->what, keep, &e) ? SAVES_STATE : NO_SAVE;
    v->paused = now() - v->at;
    free(progress.at);
    v->what.progress = NULL;
    if (!v->under_way) end_save(v, SAVED_NOTHING, e.text);
    if (waits && p->step == v->s->steps) {
        saves_busy(v);                                  /* lets its thread begin: the fingerprint is made meanwhile */
        saves_fingerprint(v);
    }
    if (waits) saves_follow(v, 1);
    if (v->best_is_last && v->saved == SAVED_ALL && v->saved_step == p->step) link_best(v);
}
