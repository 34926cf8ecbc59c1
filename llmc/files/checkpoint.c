/* checkpoint.c: see checkpoint.h. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "checkpoint.h"
#include "hf.h"
#include "llmc/model/parallel.h"
#include "llmc/base/text.h"
#include "llmc/base/json.h"
#include "families.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { FORMAT = 1, BUFFER = 1 << 22 };             /* BUFFER: elements moved at a time */

typedef struct { uint64_t bytes; uint32_t crc; } FileSum;

/* ---- folders ------------------------------------------------------------------------------------------- */

int checkpoint_lock(const char *folder, Error *e) {
    if (!folder_make(folder, e)) return 0;
    char *path = text_format("%s/lock", folder), owner[96] = "";
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) { error_set(e, "%s: %s", path, strerror(errno)); free(path); return 0; }
    free(path);
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        ssize_t n = read(fd, owner, sizeof owner - 1);
        close(fd);
        return error_set(e, "%s is in use by another trainer (%.*s)", folder,
                         n > 0 ? (int)strcspn(owner, "\n") : 7, n > 0 ? owner : "unknown");
    }
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    int n = snprintf(owner, sizeof owner, "process %ld on %s\n", (long)getpid(), host);
    if (ftruncate(fd, 0) || write(fd, owner, (size_t)n) != n) {
        close(fd);
        return error_set(e, "%s/lock: %s", folder, strerror(errno));
    }
    return 1;                                        /* the descriptor stays open and keeps the lock until exit */
}

/* The steps of the complete-looking folders under state/, newest first. */
static int by_step(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}
static int list_steps(const char *folder, int64_t **steps) {
    char *path = text_format("%s/state", folder);
    DIR *d = opendir(path);
    int n = 0, capacity = 0;
    *steps = NULL;
    for (struct dirent *f; d && (f = readdir(d)); ) {
        char *end;
        if (strncmp(f->d_name, "step-", 5)) continue;
        int64_t step = strtoll(f->d_name + 5, &end, 10);
        if (end == f->d_name + 5 || *end || step < 0) continue;
        if (n == capacity) *steps = mem_grow(*steps, (size_t)(capacity = capacity ? 2 * capacity : 16) * sizeof **steps);
        (*steps)[n++] = step;
    }
    if (d) closedir(d);
    free(path);
    if (n) qsort(*steps, (size_t)n, sizeof **steps, by_step);
    return n;
}
static char *step_path(const char *folder, int64_t step) {
    return text_format("%s/state/step-%08lld", folder, (long long)step);
}

/* Removes a folder of files. A failure is harmless: it costs disk space only. */
static void remove_folder(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d)); ) {
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, "..")) continue;
        char *file = text_format("%s/%s", path, f->d_name);
        unlink(file);
        free(file);
    }
    if (d) closedir(d);
    rmdir(path);
}
/* Left behind by a save that was killed: .tmp-step-800, or config.json.tmp.1234 of file_write. */
static int is_temporary(const char *name) {
    const char *process = strstr(name, ".tmp.");
    return !strncmp(name, ".tmp-", 5) || (process && process[5] && !process[5 + strspn(process + 5, "0123456789")]);
}
static void remove_temporaries(const char *folder) {
    static const char *const folders[] = { "state", "best", "." };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *inside = text_format("%s/%s", folder, folders[i]);
        DIR *d = opendir(inside);
        for (struct dirent *f; d && (f = readdir(d)); ) {
            if (!is_temporary(f->d_name)) continue;
            char *path = text_format("%s/%s", inside, f->d_name);
            if (is_folder(path)) remove_folder(path); else unlink(path);
            free(path);
        }
        if (d) closedir(d);
        free(inside);
    }
}

Holding checkpoint_exists(const char *folder) {
    static const struct { const char *file; Holding means; } signs[] = {
        { "model.safetensors", HOLDS_MODEL }, { "model.safetensors.index.json", HOLDS_MODEL },
        { "config.json", HOLDS_MODEL }, { "log.jsonl", HOLDS_LOG },
    };
    int64_t *steps;
    Holding found = list_steps(folder, &steps) > 0 ? HOLDS_STATE : HOLDS_NOTHING;
    for (size_t i = 0; i < sizeof signs / sizeof *signs && !found; i++) {
        char *path = text_format("%s/%s", folder, signs[i].file);
        if (is_file(path)) found = signs[i].means;
        free(path);
    }
    free(steps);
    return found;
}
int checkpoint_clear(const char *folder, Error *e) {
    static const char *const files[] = { "main.log", "log.jsonl", "report.html", "model.safetensors",
                                         "best/model.safetensors" };
    int64_t *steps;
    int n = list_steps(folder, &steps), ok = 1;
    for (int i = 0; i < n; i++) { char *path = step_path(folder, steps[i]); remove_folder(path); free(path); }
    remove_temporaries(folder);
    free(steps);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = text_format("%s/%s", folder, files[i]);
        if (unlink(path) && errno != ENOENT && errno != ENOTDIR) ok = error_set(e, "%s: %s", path, strerror(errno));
        free(path);
    }
    return ok;
}

/* ---- the optimizer's file --------------------------------------------------------------------------------- */

static int state_kinds(const Optimizer *o) { return o->master ? STATE_KINDS : STATE_KINDS - 1; }
static const char *dtype_of(const Device *dev, Dtype type) {
    return type == FLOATX ? dev->dtype : dev->real_size == 8 ? "F64" : "F32";
}

/* Its tensors, in order: m of every tensor of the model, v of those that have one, the master copies; then the routers' selection
 * biases. */
typedef struct {
    size_t count, bias_count;           /* entries; elements of the last one, 0: the model has no routers */
    char (*names)[TENSOR_NAME + 16];
    uint64_t *shapes;
    FileTensor *entries;
} StateFile;

static void state_name(char name[TENSOR_NAME + 16], const Tensor *t, int kind) {
    snprintf(name, TENSOR_NAME + 16, "%s%s", t->name, state_suffix[kind]);
}
static StateFile state_file(const Model *m, const Optimizer *o) {
    StateFile f = { .bias_count = (size_t)m->routers * (size_t)router_experts(&m->config) };
    const size_t most = (size_t)m->manifest.count * STATE_KINDS + 1;
    f.names = mem_alloc(most * sizeof *f.names);
    f.shapes = mem_alloc(most * sizeof *f.shapes);
    f.entries = mem_alloc(most * sizeof *f.entries);
    size_t n = 0;
    for (int kind = 0; kind < state_kinds(o); kind++)
        for (int i = 0; i < m->manifest.count; i++) {
            if (!optimizer_has(o, m, kind, i)) continue;
            state_name(f.names[n], &m->manifest.at[i], kind);
            f.shapes[n] = m->manifest.at[i].count;
            f.entries[n] = (FileTensor){ .name = f.names[n], .dtype = dtype_of(m->dev, optimizer_type(o, kind)), .rank = 1,
                                         .shape = &f.shapes[n] };
            n++;
        }
    f.shapes[n] = f.bias_count;
    f.entries[n] = (FileTensor){ .name = "router_bias", .dtype = dtype_of(m->dev, REAL), .rank = 1, .shape = &f.shapes[n] };
    f.count = n + (f.bias_count > 0);
    return f;
}
static void state_file_free(StateFile *f) {
    free(f->names);
    free(f->shapes);
    free(f->entries);
}

/* Of one tensor. state: of the whole model, of that kind. buffer: BUFFER elements. */
static int append_state(SafetensorsWriter *w, const Model *m, const Optimizer *o, int tensor, int kind, const char *state,
                        void *buffer, Error *e) {
    const Tensor *t = &m->manifest.at[tensor];
    const char *dtype = dtype_of(m->dev, optimizer_type(o, kind));
    const size_t size = optimizer_element(o, m, kind), offset = optimizer_offset(o, m, kind, tensor);
    for (size_t from = 0; from < t->count; from += BUFFER) {
        const size_t n = t->count - from < BUFFER ? t->count - from : BUFFER;
        m->dev->download(buffer, state + (offset + from) * size, n * size);
        if (first_not_finite(dtype, buffer, n) < n)
            return error_set(e, "the optimizer state of %s is not finite: not saved", t->name);
        if (!safetensors_append(w, buffer, n * size, e)) return 0;
    }
    return 1;
}

static int save_optimizer(const char *path, const Model *m, const Optimizer *o, FileSum *sum, Error *e) {
    StateFile f = state_file(m, o);
    const size_t bias_bytes = f.bias_count * m->dev->real_size, buffer_bytes = BUFFER * m->dev->real_size;
    void *buffer = mem_alloc(buffer_bytes > bias_bytes ? buffer_bytes : bias_bytes);
    SafetensorsWriter *w = safetensors_create(path, f.entries, f.count, NULL, 0, e);
    int ok = w != NULL;
    for (int kind = 0; kind < state_kinds(o) && ok; kind++) {
        const char *state = optimizer_whole(o, m, kind);
        for (int i = 0; i < m->manifest.count && ok; i++)
            if (optimizer_has(o, m, kind, i)) ok = append_state(w, m, o, i, kind, state, buffer, e);
    }
    if (ok && f.bias_count) {
        m->dev->download(buffer, m->bias, bias_bytes);
        ok = safetensors_append(w, buffer, bias_bytes, e);
    }
    if (ok) ok = safetensors_finish(w, e, &sum->bytes, &sum->crc);
    else safetensors_abandon(w);
    free(buffer);
    state_file_free(&f);
    return ok;
}

/* This rank's part of one tensor's state. */
static int load_state(Safetensors *s, const FileTensor *f, Model *m, const Optimizer *o, int tensor, int kind,
                      double *buffer, Error *e) {
    const Tensor *t = &m->manifest.at[tensor];
    const Segment own = optimizer_segment(o, m, tensor);
    const size_t size = optimizer_element(o, m, kind), at = own.offset - own.shift - (kind == STATE_V ? own.without_v : 0);
    char *state = (char *)optimizer_part(o, kind) + at * size;
    for (size_t from = 0; from < own.count; from += BUFFER) {
        const size_t n = own.count - from < BUFFER ? own.count - from : BUFFER;
        if (!safetensors_read_double(s, f, own.offset - t->offset + from, buffer, n, e)) return 0;
        void *to = state + from * size;
        if (optimizer_type(o, kind) == REAL) m->dev->reals_from_double(to, buffer, n);
        else m->dev->from_double(to, buffer, n);
    }
    return 1;
}

static int load_optimizer(const char *path, Model *m, const Optimizer *o, Error *e) {
    Safetensors *s = safetensors_open(path, e);
    if (!s) return 0;
    double *buffer = mem_alloc(BUFFER * sizeof *buffer);
    const char *converted = NULL;                            /* the dtype in the file, if it is another one */
    char name[TENSOR_NAME + 16];
    int ok = 1, no_master = 0;
    for (int kind = 0; kind < state_kinds(o); kind++)
        for (int i = 0; i < m->manifest.count && ok; i++) {
            if (!optimizer_has(o, m, kind, i)) continue;
            state_name(name, &m->manifest.at[i], kind);
            const FileTensor *f = safetensors_find(s, name);
            if (!f && kind == STATE_KINDS - 1) { no_master = 1; continue; }
            if (!f && kind == STATE_V)
                ok = error_set(e, "%s has no v of %s: Muon trained it, which has none (-wo muon)", path, m->manifest.at[i].name);
            else if (!f || f->count != m->manifest.at[i].count)
                ok = error_set(e, "%s: %s is missing or has another size", path, name);
            ok = ok && load_state(s, f, m, o, i, kind, buffer, e);
            if (ok && strcmp(f->dtype, dtype_of(m->dev, optimizer_type(o, kind)))) converted = f->dtype;
        }
    const FileTensor *bias = safetensors_find(s, "router_bias");
    if (ok && bias && m->routers && bias->count <= BUFFER) {
        ok = safetensors_read_double(s, bias, 0, buffer, bias->count, e);
        if (ok) m->dev->reals_from_double(m->bias, buffer, bias->count);
    }
    if (ok && (!m->dp.parallel || m->dp.parallel->rank == 0)) {    /* one rank warns for all */
        state_name(name, &m->manifest.at[0], STATE_KINDS - 1);
        if (converted) warn("%s: the optimizer's state is in %s and was converted", path, converted);
        if (no_master) warn("%s has no master copy of the weights; it starts as the rounded weights", path);
        if (!o->master && safetensors_find(s, name)) warn("%s has a master copy of the weights, which is dropped", path);
    }
    safetensors_close(s);
    free(buffer);
    return ok;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

static int save_run(const char *path, const Snapshot *s, const FileSum *model, const FileSum *optimizer, Error *e) {
    Text t = { 0 };
    text_add(&t, "{\n  \"format\": %d,\n", FORMAT);
    text_add_string(&t, s->progress);
    text_add(&t, ",\n  \"files\": {\n    \"model.safetensors\": {\"bytes\": %llu, \"crc32c\": %u},\n"
                 "    \"optimizer.safetensors\": {\"bytes\": %llu, \"crc32c\": %u}\n  },\n  \"config\": ",
             (unsigned long long)model->bytes, model->crc, (unsigned long long)optimizer->bytes, optimizer->crc);
    config_to_json(&s->model->config, s->model->dev->dtype, 1, &t);
    text_add(&t, ",  \"options\": %s\n}\n", s->options);
    int ok = file_write(path, t.at, t.length, e);
    free(t.at);
    return ok;
}

/* Gives `from` the second name `to`, replacing a file of that name. */
static int publish(const char *from, const char *to, Error *e) {
    char *temporary = text_format("%s.tmp.%ld", to, (long)getpid());
    unlink(temporary);
    int ok = !link(from, temporary) && !rename(temporary, to);
    const int why = errno;
    if (!ok) unlink(temporary);
    free(temporary);
    if (ok) return 1;
    if (why != EPERM && why != EOPNOTSUPP && why != EMLINK && why != ENOSYS && why != EXDEV)
        return error_set(e, "%s: %s", to, strerror(why));
    size_t bytes;                                            /* the file system has no hard links: copy */
    char *data = file_read(from, &bytes, e);
    ok = data && file_write(to, data, bytes, e);
    free(data);
    return ok;
}

static int has_space(const char *folder, size_t need, Error *e) {
    struct statvfs s;
    if (statvfs(folder, &s)) return 1;
    const double available = (double)s.f_bavail * (double)s.f_frsize;
    return available >= (double)need * 1.02 ? 1
        : error_set(e, "%s: a checkpoint needs %.1f MB and the disk has %.1f MB free", folder, (double)need / 1e6,
                    available / 1e6);
}

/* Writes the three files into `folder`. */
static int write_state(const char *folder, const Snapshot *s, Error *e) {
    char *model = text_format("%s/model.safetensors", folder);
    char *optimizer = text_format("%s/optimizer.safetensors", folder), *run = text_format("%s/run.json", folder);
    FileSum sums[2];
    const int ok = hf_save_weights(s->model, model, s->step, e, &sums[0].bytes, &sums[0].crc)
                && save_optimizer(optimizer, s->model, s->optimizer, &sums[1], e)
                && save_run(run, s, &sums[0], &sums[1], e);
    free(model);
    free(optimizer);
    free(run);
    return ok;
}

static void remove_old_steps(const char *folder, int64_t step, int keep, int64_t major) {
    int64_t *steps;
    int n = list_steps(folder, &steps), kept = 0;
    for (int i = 0; i < n; i++) {
        if (steps[i] > step || kept++ < keep || (major > 0 && steps[i] % major == 0)) continue;
        char *old = step_path(folder, steps[i]);
        remove_folder(old);
        free(old);
    }
    free(steps);
}

int checkpoint_save(const char *folder, const Snapshot *s, int keep, int64_t major, Error *e) {
    size_t each = s->model->dev->floatX_size;                /* bytes per parameter */
    for (int kind = 0; kind < state_kinds(s->optimizer); kind++) each += optimizer_element(s->optimizer, s->model, kind);
    char *state = text_format("%s/state", folder), *final = step_path(folder, s->step);
    char *temporary = text_format("%s/.tmp-step-%lld", state, (long long)s->step);
    char *weights = text_format("%s/model.safetensors", final), *top = text_format("%s/model.safetensors", folder);

    remove_temporaries(folder);
    int ok = folder_make(state, e) && has_space(folder, s->model->manifest.learnable * each, e) && folder_make(temporary, e)
          && write_state(temporary, s, e);
    optimizer_whole(s->optimizer, s->model, STATE_END);      /* releases the other ranks */
    if (ok) {
        folder_sync(temporary);
        if (is_folder(final)) remove_folder(final);          /* the same step again, after a resume */
        if (rename(temporary, final)) ok = error_set(e, "%s: %s", final, strerror(errno));
        else folder_sync(state);
    }
    if (!ok) remove_folder(temporary);
    ok = ok && hf_save_small(folder, s->model, s->tokenizer, s->origin, e) && publish(weights, top, e);
    if (ok) {
        folder_sync(folder);
        remove_old_steps(folder, s->step, keep, major);
    }
    free(state); free(final); free(temporary); free(weights); free(top);
    return ok;
}

/* The folder's other files do not change during a run, so replacing the weights is the only step that must be atomic. */
int checkpoint_save_best(const char *folder, const Model *m, int64_t step, const Tokenizer *tokenizer, const HfOrigin *origin,
                         Error *e) {
    char *best = text_format("%s/best", folder), *temporary = text_format("%s/model.safetensors.tmp", best);
    char *final = text_format("%s/model.safetensors", best);
    uint64_t bytes;
    uint32_t crc;
    int ok = folder_make(best, e) && has_space(folder, m->manifest.learnable * m->dev->floatX_size, e)
          && hf_save_small(best, m, tokenizer, origin, e) && hf_save_weights(m, temporary, step, e, &bytes, &crc);
    if (ok && rename(temporary, final)) ok = error_set(e, "%s: %s", final, strerror(errno));
    if (ok) folder_sync(best);
    else unlink(temporary);
    free(best); free(temporary); free(final);
    return ok;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

struct Checkpoint { char *path; Json *run; };

static int verify_file(const char *folder, const char *name, const JsonValue *files, Error *e) {
    char *path = text_format("%s/%s", folder, name), *buffer = mem_alloc(BUFFER);
    const JsonValue *f = json_get(files, name);
    const int64_t bytes = json_int(json_get(f, "bytes"), -1), crc = json_int(json_get(f, "crc32c"), -1);
    int64_t total = 0;
    uint32_t sum = 0;
    int ok = 1;
    FILE *in = fopen(path, "rb");
    if (!in) ok = error_set(e, "%s: %s", path, strerror(errno));
    for (size_t n; in && (n = fread(buffer, 1, BUFFER, in)) > 0; total += (int64_t)n) sum = crc32c(sum, buffer, n);
    if (in) fclose(in);
    if (ok && total != bytes)
        ok = error_set(e, "%s has %lld bytes, expected %lld: it is truncated or from another checkpoint", path,
                       (long long)total, (long long)bytes);
    if (ok && (int64_t)sum != crc)
        ok = error_set(e, "%s is damaged: its CRC-32C is %08x, expected %08llx", path, sum, (long long)crc);
    free(path);
    free(buffer);
    return ok;
}

static Json *open_step(const char *path, Error *e) {
    char *file = text_format("%s/run.json", path);
    size_t bytes;
    Error why;
    char *text = file_read(file, &bytes, e);
    Json *run = text ? json_parse(text, bytes, &why) : NULL;
    if (text && !run) error_set(e, "%s: %.900s", file, why.text);
    if (run) {
        const JsonValue *root = json_root(run);
        const int64_t format = json_int(json_get(root, "format"), -1);
        int ok = 1;
        if (format != FORMAT)
            ok = error_set(e, "%s: format %lld; this program reads format %d", file,
                           (long long)format, FORMAT);
        ok = ok && verify_file(path, "model.safetensors", json_get(root, "files"), e)
            && verify_file(path, "optimizer.safetensors", json_get(root, "files"), e);
        if (!ok) { json_free(run); run = NULL; }
    }
    free(text);
    free(file);
    return run;
}

Checkpoint *checkpoint_open(const char *folder, Error *e) {
    int64_t *steps;
    const int n = list_steps(folder, &steps);
    Checkpoint *c = NULL;
    error_set(e, "%s holds no checkpoint to resume from (nothing in %s/state)", folder, folder);
    for (int i = 0; i < n && !c; i++) {
        char *path = step_path(folder, steps[i]);
        Json *run = open_step(path, e);
        if (run) {
            c = mem_alloc(sizeof *c);
            *c = (Checkpoint){ .path = path, .run = run };
            break;
        }
        if (i + 1 < n) warn("%s; trying the checkpoint before it", e->text);
        free(path);
    }
    free(steps);
    return c;
}
void checkpoint_close(Checkpoint *c) {
    if (!c) return;
    json_free(c->run);
    free(c->path);
    free(c);
}
const char *checkpoint_path(const Checkpoint *c) { return c->path; }
const JsonValue *checkpoint_run(const Checkpoint *c) { return json_root(c->run); }
const JsonValue *checkpoint_options(const Checkpoint *c) { return json_get(checkpoint_run(c), "options"); }
int checkpoint_config(const Checkpoint *c, Config *config, Error *e) {
    return config_from_json(config, json_get(json_root(c->run), "config"), e);
}

int checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o, Error *e) {
    char *model = text_format("%s/model.safetensors", c->path);
    char *optimizer = text_format("%s/optimizer.safetensors", c->path);
    int ok = hf_load_weights(m, model, e);
    if (ok) {
        optimizer_start(o, m);
        ok = load_optimizer(optimizer, m, o, e);
    }
    o->updates = (int)json_int(json_get(checkpoint_run(c), "updates"), 0);
    free(model);
    free(optimizer);
    return ok;
}
