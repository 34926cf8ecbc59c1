/* save.c: how ranks save together; see checkpoint.h. What differs between ranks is only what each
 * writes: its shard of every tensor (save_shard.h), at its offset in the files that one rank would
 * write. A save has two parts. In the first all ranks write and sync; when all have, they agree
 * whether all could. In the second rank 0 makes run.json of the sums, renames and cleans up. Each
 * part runs in a thread of its own beside training, if there is a copy to write from. These threads
 * wait for no other rank, and call no device. */
#define _POSIX_C_SOURCE 200809L
#include "checkpoint.h"
#include "config_json.h"
#include "optimizer_file.h"
#include "llmc/base/omp.h"
#include "llmc/model/parallel.h"
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is written ------------------------------------------------------------------------- */

static int save_run(const char *path, const Snapshot *s, int files, const FileSum sums[FILES], Error *e) {
    Text t = { 0 };
    text_add(&t, "{\n  \"format\": %d,\n", FORMAT);
    text_add_string(&t, s->progress);
    text_add_string(&t, ",\n  \"files\": {");
    for (int f = 0; f < files; f++)
        text_add(&t, "%s\n    \"%s\": {\"bytes\": %llu, \"crc32c\": %u}", f ? "," : "", checkpoint_files[f],
                 (unsigned long long)sums[f].bytes, sums[f].crc);
    if (s->tokenizer) {
        size_t bytes;
        const char *json = tokenizer_json(s->tokenizer, &bytes);
        text_add(&t, ",\n    \"tokenizer.json\": {\"bytes\": %zu, \"crc32c\": %u}", bytes, crc32c(0, json, bytes));
    }
    text_add_string(&t, "\n  },\n  \"config\": ");
    config_to_json(&s->model->config, s->model->dev->dtype, 1, &t);
    text_add(&t, ",  \"options\": %s", s->options);
    json_seal(&t);
    text_add_string(&t, "\n");
    int ok = file_put(path, t.at, t.length, e);
    free(t.at);
    return ok;
}

static int has_space(const char *folder, size_t need, Error *e) {
    const double available = file_space(folder);
    return available < 0 || available >= (double)need * 1.02 ? 1
        : error_set(e, "%s: a checkpoint needs %.1f MB and the disk has %.1f MB free", folder, (double)need / 1e6,
                    available / 1e6);
}

/* The step that a checkpoint stands for: its own, or the one at which it was due. */
static int64_t due_step(const char *folder, int64_t step) {
    size_t bytes;
    Error e;
    char *path = step_path(folder, step), *file = text_format("%s/run.json", path), *text = file_read(file, &bytes, &e);
    Json *run = text ? json_parse(text, bytes, &e) : NULL;
    const int64_t due = run ? json_int(json_get(json_root(run), "due_step"), step) : step;
    json_free(run);
    free_each(path, file, text);
    return due;
}
static void remove_old_steps(const char *folder, int64_t step, Keep keep) {
    int64_t *steps;
    Error e;
    int n = list_steps(folder, &steps, &e), kept = 0, sound = 0;
    while (sound < n && steps[sound] > keep.sound) sound++;
    for (int i = 0; i < n; i++) {
        if (steps[i] > step) continue;
        const int64_t every = keep.every, major = keep.major,
            due = (every > 0 && steps[i] % every) || (major > 0 && steps[i] % major) ? due_step(folder, steps[i])
                : steps[i];
        const int counts = every <= 0 || due % every == 0, stays = steps[i] == step || i == sound
            || (counts && kept < keep.newest) || (major > 0 && due % major == 0);
        kept += counts;
        if (!stays) remove_step(folder, steps[i]);
    }
    free(steps);
}

/* Publishes the finished step folder. A folder of the same step exists if it is damaged and the run
 * was resumed from an older one. *placed: the new folder is in place. If the result is then 0, only
 * its sync failed, and a power loss may undo the rename. */
static int publish_folder(const char *folder, int64_t step, const char *temporary, int *published, Error *e) {
    char *final = step_path(folder, step), *aside = NULL;
    int ok = 1;
    *published = 0;
    if (is_folder(final) && !(aside = set_aside(folder, step)))
        ok = error_set(e, "%s cannot be replaced: %s", final, strerror(errno));
    ok = ok && file_publish(temporary, final, e);
    *published = ok || (is_folder(final) && !is_folder(temporary));
    if (aside && *published) remove_folder(aside);
    else if (aside) rename(aside, final);
    free_each(final, aside);
    return ok;
}

/* ---- a save ---------------------------------------------------------------------------------- */

typedef enum { IDLE, COPIES, WRITES, PUBLISHES } SavePhase;
struct Saver {
    SaveShard shard;
    HostBuffer *buffer;                 /* for shard.copy; NULL: there is no copy, ever */
    Group *group;                       /* NULL: there are no other ranks */
    SavePhase phase;
    /* of the save that is under way */
    Snapshot what;
    Keep keep;
    int   is_best, again;               /* 1: only weights, in best/; these are tried again */
    char *folder, *progress, *temporary;    /* temporary: a folder, or the file of the best weights */
    FilePart *parts[FILES];             /* that this rank has written; of rank 0, then those of all */
    size_t count[FILES];
    FileSum sums[FILES];
    Saved saved;
    Error why;
    /* the thread of its current part */
    void (*work)(Saver *s);
    int   ok, has_thread;
    pthread_t thread;
    atomic_int done;
};

/* The first ones: the best weights, or a saver without the optimizer, have no state. */
static int files_of(const Saver *s) { return s->is_best || !s->shard.optimizer ? 1 : FILES; }
static void write_parts(Saver *s) {
    const char *const in = s->is_best ? NULL : s->temporary;
    char *weights = in ? top_weights(in) : text_format("%s", s->temporary),
        *state = files_of(s) > 1 ? text_format("%s/%s", in, checkpoint_files[1]) : NULL;
    s->ok = hf_write_weights(&s->shard, weights, s->what.step, &s->parts[0], &s->count[0], &s->why)
         && (!state || optimizer_save(&s->shard, state, &s->parts[1], &s->count[1], &s->why));
    free_each(weights, state);
}
static void publish_step(Saver *s) {
    char *run = text_format("%s/run.json", s->temporary), *final = step_path(s->folder, s->what.step),
        *weights = top_weights(final);
    int published = 0;
    int ok = save_run(run, &s->what, files_of(s), s->sums, &s->why) && folder_sync(s->temporary, &s->why)
          && publish_folder(s->folder, s->what.step, s->temporary, &published, &s->why);
    ok = ok && publish(weights, s->folder, s->shard.model, s->what.tokenizer, s->what.origin, &s->why);
    if (ok) remove_old_steps(s->folder, s->what.step, s->keep);
    s->saved = ok ? SAVED_ALL : published ? SAVED_STATE : SAVED_NOTHING;
    free_each(run, final, weights);
}
/* The folder's other files do not change in a run: only replacing the weights must be atomic. */
static void publish_best(Saver *s) {
    char *best = text_format("%s/best", s->folder), *final = top_weights(best);
    const int ok = hf_save_small(best, s->shard.model, s->what.tokenizer, s->what.origin, &s->why)
                && file_publish(s->temporary, final, &s->why);
    s->saved = ok ? SAVED_ALL : SAVED_NOTHING;
    free_each(best, final);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void run_work(Saver *s) {
    s->work(s);
    atomic_store(&s->done, 1);
}
static void *run_thread(void *saver) {
    omp_set_num_threads(1);                                 /* the others train */
    run_work(saver);
    return NULL;
}
/* Without a copy it reads the device, which only this thread may. */
static void start(Saver *s, void (*work)(Saver *s)) {
    s->work = work;
    atomic_store(&s->done, 0);
    s->has_thread = s->shard.copied && !pthread_create(&s->thread, NULL, run_thread, s);
    if (!s->has_thread) run_work(s);
}
static void finish_thread(Saver *s) {
    if (s->has_thread) pthread_join(s->thread, NULL);
    s->has_thread = 0;
}
static void start_writing(Saver *s) {
    s->shard.model->dev->copied(1);
    s->phase = WRITES;
    start(s, write_parts);
}
int saver_busy(Saver *s) {
    if (s->phase == COPIES) start_writing(s);
    return s->phase != IDLE && !atomic_load(&s->done);
}

/* ---- what ranks agree on --------------------------------------------------------------------- */

static int agree(Saver *s, int ok) { return s->group ? group_agree(s->group, ok, &s->why) : ok; }
/* The sums of the files, on rank 0. */
static int collect_sums(Saver *s) {
    int ok = 1;
    for (int f = 0; f < files_of(s); f++) {
        const int fits = save_shard_sum(&s->shard, s->group, s->parts[f], s->count[f], &s->sums[f]);
        char *path = s->is_best ? text_format("%s", s->temporary)
                                : text_format("%s/%s", s->temporary, checkpoint_files[f]);
        struct stat there;
        if (ok && s->shard.leads && (!fits || stat(path, &there) || (uint64_t)there.st_size != s->sums[f].bytes))
            ok = error_set(&s->why, "%s: the parts that the ranks have written do not make up the file", path);
        free(path);
    }
    return agree(s, ok);
}

/* ---- the save as a whole --------------------------------------------------------------------- */

Saver *saver_open(const Model *m, const Optimizer *o) {
    Saver *s = mem_alloc(sizeof *s);
    save_shard_open(&s->shard, m, o);
    s->group = m->dp.ranks > 1 ? m->dp.parallel->group : NULL;
    return s;
}
size_t saver_copy_bytes(const Saver *s) { return s->shard.bytes; }
void   saver_make_buffer(Saver *s) {
    s->buffer = host_buffer_open(s->shard.model->dev, s->shard.model->params, s->shard.bytes);
}
BufferState saver_use_buffer(Saver *s, int waits) {
    if (!s->buffer || s->shard.copy) return s->buffer ? BUFFER_READY : BUFFER_NONE;
    BufferState state = host_buffer_state(s->buffer, waits);
    if (s->group) state = (BufferState)group_min(s->group, state, 0);
    if (state == BUFFER_READY) s->shard.copy = host_buffer_memory(s->buffer);
    if (state == BUFFER_NONE) {
        host_buffer_close(s->buffer);
        s->buffer = NULL;
    }
    return state;
}
void saver_close(Saver *s) {
    if (!s) return;
    host_buffer_close(s->buffer);
    save_shard_close(&s->shard);
    free(s);
}

static void forget(Saver *s) {
    for (int f = 0; f < FILES; f++) {
        free(s->parts[f]);
        s->parts[f] = NULL;
    }
    free_each(s->folder, s->progress, s->temporary);
    s->folder = s->progress = s->temporary = NULL;
    save_shard_drop(&s->shard);
    s->phase = IDLE;
}
static void discard(const Saver *s) {
    if (!s->shard.leads) return;
    if (s->is_best) unlink(s->temporary); else remove_folder(s->temporary);
}
/* By rank 0: the folder for the files. */
static int prepare(Saver *s) {
    const Model *m = s->shard.model;
    const size_t state = files_of(s) < FILES ? 0 : optimizer_bytes(m, s->shard.optimizer);
    char *in = text_format("%s/%s", s->folder, s->is_best ? "best" : "state");
    discard(s);
    const int ok = folder_make(in, &s->why)
        && has_space(s->folder, m->manifest.learnable * m->dev->floatX_size + state, &s->why)
                && (s->is_best || folder_make(s->temporary, &s->why));
    free(in);
    return ok;
}
/* The best weights are tried twice: later steps do not change the copy, or wait. */
static int prepare_again(Saver *s) {
    if (!s->is_best || s->again++) return 0;
    if (s->shard.leads)
        warn("the best weights, of step %lld, were not saved: %s; trying again", (long long)s->what.step, s->why.text);
    return agree(s, !s->shard.leads || prepare(s));
}
/* The temporary name has rank 0's process: one of an earlier run that still writes has another. */
static int begin(Saver *s, const char *folder, const Snapshot *what, Keep keep, Error *e) {
    long process = (long)getpid();
    if (s->group) process = (long)group_broadcast(s->group, (double)process, 0, INT_MAX);
    s->folder = text_format("%s", folder);
    s->progress = text_format("%s", what->progress ? what->progress : "");
    s->what = *what;
    s->what.progress = s->progress;
    s->keep = keep;
    s->again = 0;
    s->temporary = s->is_best ? text_format("%s/best/.tmp-model-%ld.safetensors", folder, process)
                              : text_format("%s/state/.tmp-step-%lld-%ld", folder, (long long)what->step, process);
    if (!agree(s, !s->shard.leads || prepare(s)) && !prepare_again(s)) {
        *e = s->why;
        discard(s);
        forget(s);
        return 0;
    }
    save_shard_borrow(&s->shard);
    if (s->shard.copy) save_shard_copy(&s->shard, s->is_best);
    else save_shard_stream(&s->shard);
    s->phase = COPIES;
    if (!s->shard.copied || !s->shard.model->dev->is_gpu) start_writing(s);
    return 1;
}
int saver_begin(Saver *s, const char *folder, const Snapshot *what, Keep keep, Error *e) {
    s->is_best = 0;
    return begin(s, folder, what, keep, e);
}
int saver_begin_best(Saver *s, const char *folder, const Snapshot *what, Error *e) {
    s->is_best = 1;
    return begin(s, folder, what, (Keep){ 0 }, e);
}

int saver_next(Saver *s, Saved *saved, Error *e) {
    if (s->phase == COPIES) start_writing(s);
    finish_thread(s);
    *saved = SAVED_NOTHING;
    if (s->phase == WRITES && agree(s, s->ok) && collect_sums(s)) {
        s->phase = PUBLISHES;
        if (s->shard.leads) start(s, s->is_best ? publish_best : publish_step);
        return 0;
    }
    if (s->phase == PUBLISHES) *saved = s->saved;
    if (s->group) {
        *saved = (Saved)group_broadcast(s->group, *saved, SAVED_NOTHING, SAVED_ALL);
        agree(s, !s->shard.leads || *saved == SAVED_ALL);
    }
    if (*saved == SAVED_NOTHING) discard(s);
    if (*saved == SAVED_NOTHING && prepare_again(s)) {
        free(s->parts[0]);
        s->parts[0] = NULL;
        start_writing(s);
        return 0;
    }
    *e = s->why;
    forget(s);
    return 1;
}
Saved saver_end(Saver *s, Error *e) {
    Saved saved = SAVED_NOTHING;
    while (s->phase != IDLE && !saver_next(s, &saved, e)) { }
    return saved;
}

Saved checkpoint_save(const char *folder, const Snapshot *what, Keep keep, Error *e) {
    Saver *s = saver_open(what->model, what->optimizer);
    const Saved saved = saver_begin(s, folder, what, keep, e) ? saver_end(s, e) : SAVED_NOTHING;
    saver_close(s);
    return saved;
}
int checkpoint_save_best(const char *folder, const Model *m, int64_t step, const Tokenizer *tokenizer,
                         const HfOrigin *origin, Error *e) {
    const Snapshot what = { .model = m, .tokenizer = tokenizer, .origin = origin, .step = step };
    Saver *s = saver_open(m, NULL);
    s->is_best = 1;
    const Saved saved = begin(s, folder, &what, (Keep){ 0 }, e) ? saver_end(s, e) : SAVED_NOTHING;
    saver_close(s);
    return saved == SAVED_ALL;
}
int checkpoint_link_best(const char *folder, int64_t step, const Model *m, const Tokenizer *tokenizer,
                         const HfOrigin *origin, Error *e) {
    char *state = step_path(folder, step), *weights = top_weights(state), *best = text_format("%s/best", folder);
    const int ok = publish(weights, best, m, tokenizer, origin, e);
    free_each(state, weights, best);
    return ok;
}
