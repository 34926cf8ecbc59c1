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

enum { FORMAT = 1, BUFFER = 1 << 22 };

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
    return 1;                                        /* the descriptor stays open, and with it the lock, until exit */
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

/* Removes a folder of files. Failing is harmless: it costs space, not correctness. */
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
/* Left behind by a save that was killed. */
static int is_temporary(const char *name) {       /* .tmp-step-800 of a save, or config.json.tmp.1234 of file_write */
    const char *process = strstr(name, ".tmp.");
    return !strncmp(name, ".tmp-", 5) || (process && process[5] && !process[5 + strspn(process + 5, "0123456789")]);
}
static void remove_temporaries(const char *folder) {
    static const char *const places[] = { "state", "best", "." };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *place = text_format("%s/%s", folder, places[i]);
        DIR *d = opendir(place);
        for (struct dirent *f; d && (f = readdir(d)); ) {
            if (!is_temporary(f->d_name)) continue;
            char *path = text_format("%s/%s", place, f->d_name);
            if (is_folder(path)) remove_folder(path); else unlink(path);
            free(path);
        }
        if (d) closedir(d);
        free(place);
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

/* ---- writing ------------------------------------------------------------------------------------------- */

static int state_kinds(const Optimizer *o) { return o->master ? STATE_KINDS : STATE_KINDS - 1; }
static const char *dtype_of(const Device *dev, Dtype type) {
    return type == FLOATX ? dev->dtype : dev->real_size == 8 ? "F64" : "F32";
}

/* One kind of one tensor, as save_optimizer writes it. */
typedef struct { int tensor, kind; } StateTensor;
static int list_state(const Model *m, const Optimizer *o, StateTensor *list) {
    int n = 0;
    for (int kind = 0; kind < state_kinds(o); kind++)
        for (int i = 0; i < m->manifest.count; i++)
            if (optimizer_has(o, m, kind, i)) list[n++] = (StateTensor){ i, kind };
    return n;
}
static int append_state(SafetensorsWriter *w, const Model *m, const Optimizer *o, StateTensor s, const char *state,
                        void *buffer, Error *e) {
    const Tensor *t = &m->manifest.at[s.tensor];
    const size_t size = optimizer_element(o, m, s.kind), offset = optimizer_offset(o, m, s.kind, s.tensor);
    for (size_t from = 0; from < t->count; from += BUFFER) {
        const size_t n = t->count - from < BUFFER ? t->count - from : BUFFER;
        m->dev->download(buffer, state + (offset + from) * size, n * size);
        if (first_not_finite(dtype_of(m->dev, optimizer_type(o, s.kind)), buffer, n) < n)
            return error_set(e, "optimizer state of %s is not finite: not saved", t->name);
        if (!safetensors_append(w, buffer, n * size, e)) return 0;
    }
    return 1;
}

/* m of every tensor, under its name, then v of those that have one, the master copies, and the routers' selection bias. */
static int save_optimizer(const char *path, const Model *m, const Optimizer *o, Error *e, uint64_t *bytes,
                          uint32_t *crc) {
    const size_t most = (size_t)m->manifest.count * STATE_KINDS + 1;
    StateTensor *list = mem_alloc(most * sizeof *list);
    const int count = list_state(m, o, list), extra = m->routers > 0;
    const uint64_t bias_shape = (uint64_t)m->routers * (uint64_t)router_experts(&m->config);
    FileTensor *tensors = mem_alloc(most * sizeof *tensors);
    char (*names)[TENSOR_NAME + 16] = mem_alloc(most * sizeof *names);
    uint64_t *shapes = mem_alloc(most * sizeof *shapes);
    for (int i = 0; i < count; i++) {
        const Tensor *t = &m->manifest.at[list[i].tensor];
        snprintf(names[i], sizeof names[i], "%s%s", t->name, state_suffix[list[i].kind]);
        shapes[i] = t->count;
        tensors[i] = (FileTensor){ .name = names[i], .dtype = dtype_of(m->dev, optimizer_type(o, list[i].kind)), .rank = 1,
                                   .shape = &shapes[i] };
    }
    shapes[count] = bias_shape;
    tensors[count] = (FileTensor){ .name = "router_bias", .dtype = dtype_of(m->dev, REAL), .rank = 1, .shape = &shapes[count] };
    void *buffer = mem_alloc((BUFFER > bias_shape ? BUFFER : bias_shape) * m->dev->real_size);
    SafetensorsWriter *w = safetensors_create(path, tensors, (size_t)(count + extra), NULL, 0, e);
    int ok = w != NULL;
    const char *state = NULL;
    for (int i = 0; i < count && ok; i++) {
        if (i == 0 || list[i].kind != list[i - 1].kind) state = optimizer_whole(o, m, list[i].kind);
        ok = append_state(w, m, o, list[i], state, buffer, e);
    }
    if (ok && extra) {
        m->dev->download(buffer, m->bias, bias_shape * m->dev->real_size);
        ok = safetensors_append(w, buffer, bias_shape * m->dev->real_size, e);
    }
    if (ok) ok = safetensors_finish(w, e, bytes, crc);
    else if (w) safetensors_abandon(w);
    free(buffer);
    free(shapes);
    free(names);
    free(tensors);
    free(list);
    return ok;
}

static void add_window(Text *t, const char *name, const Window *w) {
    text_add(t, "  \"%s\": {\"next\": %d, \"x\": [", name, w->next);
    for (int i = 0; i < w->count; i++) { if (i) text_add(t, ", "); text_add_double(t, w->x[i]); }
    text_add(t, "]},\n");
}
static void read_window(const JsonValue *v, Window *w) {
    *w = (Window){ .next = (int)json_int(json_get(v, "next"), 0) };
    if (w->next < 0 || w->next >= WINDOW) w->next = 0;
    for (const JsonValue *x = json_first(json_get(v, "x")); x && w->count < WINDOW; x = x->next)
        w->x[w->count++] = json_double(x, 0);
}

/* 64-bit values that JSON readers might round are hexadecimal strings. */
static int save_run(const char *path, const Model *m, const Progress *p, const char *options,
                    const uint64_t bytes[2], const uint32_t crc[2], Error *e) {
    Text t = { 0 };
    text_add(&t, "{\n  \"format\": %d,\n  \"step\": %lld,\n  \"samples\": %lld,\n  \"tokens\": %lld,\n"
                 "  \"updates\": %d,\n  \"bad_steps\": %d,\n", FORMAT, (long long)p->step,
                 (long long)p->samples, (long long)p->tokens, p->updates, p->bad_steps);
    text_add(&t, "  \"seed\": \"%016llx\",\n  \"data\": \"%016llx\",\n  \"device\": \"%s\",\n  \"seconds\": ",
             (unsigned long long)p->seed, (unsigned long long)p->data, m->dev->name);
    text_add_double(&t, p->seconds);
    text_add(&t, ",\n  \"best_loss\": ");
    text_add_double(&t, p->best_step < 0 ? 0 : p->best_loss);
    text_add(&t, ",\n  \"best_step\": %lld,\n", (long long)p->best_step);
    add_window(&t, "loss_window", &p->loss);
    add_window(&t, "norm_window", &p->norm);
    text_add(&t, "  \"files\": {\n    \"model.safetensors\": {\"bytes\": %llu, \"crc32c\": %u},\n"
                 "    \"optimizer.safetensors\": {\"bytes\": %llu, \"crc32c\": %u}\n  },\n",
                 (unsigned long long)bytes[0], crc[0], (unsigned long long)bytes[1], crc[1]);
    text_add(&t, "  \"config\": ");
    config_to_json(&m->config, m->dev->dtype, &t);
    text_add(&t, ",  \"options\": %s\n}\n", options);
    int ok = file_write(path, t.at, t.length, e);
    free(t.at);
    return ok;
}

/* Gives `from` the second name `to`, replacing what had it. */
static int publish(const char *from, const char *to, Error *e) {
    char *temporary = text_format("%s.tmp.%ld", to, (long)getpid());
    unlink(temporary);
    int ok = link(from, temporary) == 0;
    if (!ok && (errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK || errno == ENOSYS || errno == EXDEV)) {
        size_t bytes;                                        /* a file system without hard links: a copy */
        char *data = file_read(from, &bytes, e);
        ok = data && file_write(temporary, data, bytes, e);
        free(data);
    } else if (!ok) error_set(e, "%s: %s", to, strerror(errno));
    if (ok && rename(temporary, to)) ok = error_set(e, "%s: %s", to, strerror(errno));
    if (!ok) unlink(temporary);
    free(temporary);
    return ok;
}

static int room_for(const char *folder, double need, Error *e) {
    struct statvfs s;
    if (statvfs(folder, &s)) return 1;
    const double capacity = (double)s.f_bavail * (double)s.f_frsize;
    return capacity >= need * 1.02 ? 1
        : error_set(e, "%s: a checkpoint needs %.1f MB and the disk has %.1f MB free", folder, need / 1e6,
                    capacity / 1e6);
}

int checkpoint_save(const char *folder, const Model *m, const Optimizer *o, const Progress *p,
                    const Tokenizer *tokenizer, const char *options, int keep, int64_t major, Error *e) {
    size_t each = m->dev->floatX_size;                       /* bytes a parameter */
    for (int kind = 0; kind < state_kinds(o); kind++) each += optimizer_element(o, m, kind);
    const double need = (double)m->manifest.learnable * (double)each;
    char *state = text_format("%s/state", folder), *final = step_path(folder, p->step);
    char *temporary = text_format("%s/.tmp-step-%lld", state, (long long)p->step);
    char *model = text_format("%s/model.safetensors", temporary);
    char *optimizer = text_format("%s/optimizer.safetensors", temporary);
    char *run = text_format("%s/run.json", temporary);
    char *published = text_format("%s/model.safetensors", final), *top = text_format("%s/model.safetensors", folder);
    uint64_t bytes[2];
    uint32_t crc[2];

    remove_temporaries(folder);
    int ok = folder_make(state, e) && room_for(folder, need, e) && folder_make(temporary, e)
          && hf_save_weights(m, model, p->step, e, &bytes[0], &crc[0])
          && save_optimizer(optimizer, m, o, e, &bytes[1], &crc[1])
          && save_run(run, m, p, options, bytes, crc, e);
    optimizer_whole(o, m, STATE_END);                        /* the other ranks may go on */
    if (ok) {
        folder_sync(temporary);
        if (is_folder(final)) remove_folder(final);          /* the same step again, after a resume */
        if (rename(temporary, final)) ok = error_set(e, "%s: %s", final, strerror(errno));
        else folder_sync(state);
    }
    if (!ok) remove_folder(temporary);
    ok = ok && hf_save_small(folder, m, tokenizer, e) && publish(published, top, e);
    if (ok) {
        int64_t *steps;
        int n = list_steps(folder, &steps), kept = 0;
        folder_sync(folder);
        for (int i = 0; i < n; i++) {
            if (steps[i] > p->step || kept++ < keep || (major > 0 && steps[i] % major == 0)) continue;
            char *old = step_path(folder, steps[i]);
            remove_folder(old);
            free(old);
        }
        free(steps);
    }
    free(state); free(final); free(temporary); free(model); free(optimizer); free(run); free(published); free(top);
    return ok;
}

/* The folder's other files do not change in a run, so replacing the weights is the one step that counts. */
int checkpoint_save_best(const char *folder, const Model *m, int64_t step, const Tokenizer *tokenizer, Error *e) {
    char *best = text_format("%s/best", folder), *temporary = text_format("%s/model.safetensors.tmp", best);
    char *final = text_format("%s/model.safetensors", best);
    uint64_t bytes;
    uint32_t crc;
    int ok = folder_make(best, e) && room_for(folder, (double)m->manifest.learnable * (double)m->dev->floatX_size, e)
          && hf_save_small(best, m, tokenizer, e) && hf_save_weights(m, temporary, step, e, &bytes, &crc);
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
        ok = error_set(e, "%s has %lld bytes, expected %lld: it is cut off or not of this checkpoint", path,
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
const JsonValue *checkpoint_options(const Checkpoint *c) { return json_get(json_root(c->run), "options"); }
const char *checkpoint_path(const Checkpoint *c) { return c->path; }
int checkpoint_config(const Checkpoint *c, Config *config, Error *e) {
    return config_from_json(config, json_get(json_root(c->run), "config"), e);
}

static int load_moments(const char *path, Model *m, Optimizer *o, Error *e) {
    Safetensors *s = safetensors_open(path, e);
    double *buffer = mem_alloc(BUFFER * sizeof *buffer);
    const int tensors = m->manifest.count, count = tensors * state_kinds(o);
    const char *stored = NULL;                               /* another type than ours, if so */
    int ok = s != NULL, no_master = 0;
    for (int i = 0; ok && i < count; i++) {
        const Tensor *t = &m->manifest.at[i % tensors];
        const Segment own = optimizer_segment(o, m, i % tensors);
        const int kind = i / tensors;
        const Dtype type = optimizer_type(o, kind);
        const size_t size = optimizer_element(o, m, kind);
        const size_t at = own.offset - own.shift - (kind == STATE_V ? own.without_v : 0);
        char *state = (char *)optimizer_part(o, kind) + at * size;
        char name[TENSOR_NAME + 16];
        snprintf(name, sizeof name, "%s%s", t->name, state_suffix[kind]);
        if (!optimizer_has(o, m, kind, i % tensors)) continue;
        const FileTensor *f = safetensors_find(s, name);
        if (!f && kind == STATE_KINDS - 1) { no_master = 1; continue; }
        if (!f && kind == STATE_V)
            ok = error_set(e, "%s has no v of %s: Muon trained it, which has none (-wo muon)", path, t->name);
        else if (!f || f->count != t->count) ok = error_set(e, "%s: %s is missing or has another size", path, name);
        for (size_t from = 0; ok && from < own.count; from += BUFFER) {
            const size_t n = own.count - from < BUFFER ? own.count - from : BUFFER;
            ok = safetensors_read_double(s, f, own.offset - t->offset + from, buffer, n, e);
            void *to = state + from * size;
            if (ok && type == REAL) m->dev->reals_from_double(to, buffer, n);
            else if (ok) m->dev->from_double(to, buffer, n);
        }
        if (ok && strcmp(f->dtype, dtype_of(m->dev, type))) stored = f->dtype;
    }
    const int first = !m->dp.parallel || m->dp.parallel->rank == 0;       /* of several that read the same */
    if (ok && stored && first) warn("%s: the optimizer's state is in %s and was converted", path, stored);
    if (ok && no_master && first) warn("%s holds no master copy of the weights; it begins as the rounded ones", path);
    if (ok && !o->master && first) {
        char name[TENSOR_NAME + 16];
        snprintf(name, sizeof name, "%s.master", m->manifest.at[0].name);
        if (safetensors_find(s, name)) warn("%s holds a master copy of the weights, which is dropped", path);
    }
    const FileTensor *bias = ok ? safetensors_find(s, "router_bias") : NULL;
    if (bias && m->routers && bias->count <= BUFFER) {
        ok = safetensors_read_double(s, bias, 0, buffer, bias->count, e);
        if (ok) m->dev->reals_from_double(m->bias, buffer, bias->count);
    }
    if (s) safetensors_close(s);
    free(buffer);
    return ok;
}

int checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o, Progress *p, Error *e) {
    const JsonValue *root = json_root(c->run);
    char *model = text_format("%s/model.safetensors", c->path);
    char *optimizer = text_format("%s/optimizer.safetensors", c->path);
    int ok = hf_load_weights(m, model, e);
    if (ok) {
        optimizer_start(o, m);
        ok = load_moments(optimizer, m, o, e);
    }
    *p = (Progress){
        .step = json_int(json_get(root, "step"), 0), .samples = json_int(json_get(root, "samples"), 0),
        .tokens = json_int(json_get(root, "tokens"), 0),
        .updates = (int)json_int(json_get(root, "updates"), 0),
        .bad_steps = (int)json_int(json_get(root, "bad_steps"), 0),
        .seconds = json_double(json_get(root, "seconds"), 0), .best_loss = json_double(json_get(root, "best_loss"), 0),
        .best_step = json_int(json_get(root, "best_step"), -1),
        .seed = strtoull(json_string(json_get(root, "seed"), "0"), NULL, 16),
        .data = strtoull(json_string(json_get(root, "data"), "0"), NULL, 16),
    };
    read_window(json_get(root, "loss_window"), &p->loss);
    read_window(json_get(root, "norm_window"), &p->norm);
    o->updates = p->updates;
    free(model);
    free(optimizer);
    return ok;
}
