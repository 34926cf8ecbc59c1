/* checkpoint.c: see checkpoint.h. */
#define _DEFAULT_SOURCE
#include "checkpoint.h"
#include "export.h"
#include "optimizer_file.h"
#include "config_json.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 1 << 22 };              /* bytes whose sum is made at a time */

/* ---- folders --------------------------------------------------------------------------------- */

double checkpoint_bytes(const char *state) {
    double bytes = 0;
    for (int i = 0; i < FILES; i++) {
        struct stat s;
        char *path = text_format("%s/%s", state, checkpoint_files[i]);
        bytes += stat(path, &s) ? 0 : (double)s.st_size;
        free(path);
    }
    return bytes;
}

/* Left behind by a save that was killed: .tmp-step-800, or config.json.tmp.1234. */
static void remove_temporaries(const char *folder) {
    static const char *const folders[] = { "state", "best", "." };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *inside = text_format("%s/%s", folder, folders[i]);
        DIR *d = opendir(inside);
        for (struct dirent *f; d && (f = readdir(d)); ) {
            if (strncmp(f->d_name, ".tmp-", 5) && !file_is_temporary(f->d_name)) continue;
            char *path = text_format("%s/%s", inside, f->d_name);
            if (is_folder(path)) remove_folder(path); else unlink(path);
            free(path);
        }
        if (d) closedir(d);
        free(inside);
    }
}

int checkpoint_lock(const char *folder, Error *e) {
    if (!folder_make(folder, e)) return 0;
    char *path = text_format("%s/lock", folder), owner[96] = "";
    int fd = file_open_to_write(path, O_RDWR, e);
    free(path);
    if (fd < 0) return 0;
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK) {
            error_set(e, "%s/lock: %s", folder, strerror(errno));
            close(fd);
            return 0;
        }
        ssize_t n = read(fd, owner, sizeof owner - 1);
        close(fd);
        return error_exit(e, EXIT_USAGE, "%s is in use by another trainer (%.*s)", folder,
                          n > 0 ? (int)strcspn(owner, "\n") : 7, n > 0 ? owner : "unknown");
    }
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    int n = snprintf(owner, sizeof owner, "process %ld on %s\n", (long)getpid(), host);
    if (ftruncate(fd, 0) || write(fd, owner, (size_t)n) != n) {
        close(fd);
        return error_set(e, "%s/lock: %s", folder, strerror(errno));
    }
    remove_temporaries(folder);
    return 1;                                        /* the descriptor stays open and keeps the lock until exit */
}

int64_t checkpoint_newest(const char *folder, int64_t latest) {
    int64_t *steps, newest = -1;
    Error e;
    const int n = list_steps(folder, &steps, &e);
    for (int i = 0; i < n && newest < 0; i++) if (!latest || steps[i] <= latest) newest = steps[i];
    free(steps);
    return newest;
}

Holding checkpoint_exists(const char *folder, Error *e) {
    static const struct { const char *file; Holding means; } signs[] = {
        { "model.safetensors", HOLDS_MODEL }, { "model.safetensors.index.json", HOLDS_MODEL },
        { "config.json", HOLDS_MODEL }, { "log.jsonl", HOLDS_LOG },
    };
    int64_t *steps;
    const int states = list_steps(folder, &steps, e);
    Holding found = states < 0 ? HOLDS_UNKNOWN : states ? HOLDS_STATE : HOLDS_NOTHING;
    for (size_t i = 0; i < sizeof signs / sizeof *signs && !found; i++)
        if (folder_has(folder, signs[i].file)) found = signs[i].means;
    free(steps);
    return found;
}
static int remove_steps(const char *folder, const int64_t *steps, int n, Error *e) {
    int ok = 1;
    for (int i = 0; i < n; i++)
        if (!remove_step(folder, steps[i]))
            ok = error_set(e, "%s/state: step %lld cannot be removed: %s", folder, (long long)steps[i],
                           strerror(errno));
    return ok;
}
int checkpoint_clear(const char *folder, Error *e) {
    static const char *const files[] = { "main.log", "log.jsonl", "report.html", "settings.txt", "model.safetensors",
                                         "config.json", "best/model.safetensors" };
    int64_t *steps;
    const int n = list_steps(folder, &steps, e);
    int ok = n >= 0 && remove_steps(folder, steps, n, e);
    free(steps);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = text_format("%s/%s", folder, files[i]);
        if (unlink(path) && errno != ENOENT && errno != ENOTDIR) ok = error_set(e, "%s: %s", path, strerror(errno));
        free(path);
    }
    char *best = text_format("%s/best", folder);
    ok = export_remove_shards(folder, 0, e) && export_remove_shards(best, 0, e) && ok;
    free(best);
    return ok;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct Checkpoint { char *folder, *path; int64_t step; Json *run; Config config; };

/* Parts of the file at a time, one for each thread. */
static int sum_file(const char *path, FileSum *sum, Error *e) {
    uint64_t size;
    const int in = file_open(path, &size, e);
    *sum = (FileSum){ 0 };
    if (in < 0) return 0;
    const int64_t parts = ((int64_t)size + BUFFER - 1) / BUFFER;
    uint32_t *crcs = mem_alloc((size_t)(parts + 1) * sizeof *crcs);
    int ok = 1, error = 0;
    #pragma omp parallel for schedule(dynamic, 1) if (parts > 1)
    for (int64_t i = 0; i < parts; i++) {
        const int64_t from = i * BUFFER, left = (int64_t)size - from;
        const size_t bytes = (size_t)(left < BUFFER ? left : BUFFER);
        char *buffer = mem_alloc(bytes);
        const size_t got = file_read_at(in, (uint64_t)from, buffer, bytes);
        if (got < bytes) {
            #pragma omp atomic write
            error = errno ? errno : EIO;                /* EIO: it became shorter */
        }
        crcs[i] = crc32c(0, buffer, got);
        free(buffer);
    }
    for (int64_t i = 0; i < parts; i++) {
        const int64_t left = (int64_t)size - i * BUFFER;
        sum->bytes += (uint64_t)(left < BUFFER ? left : BUFFER);
        sum->crc = crc32c_combine(sum->crc, crcs[i], (uint64_t)(left < BUFFER ? left : BUFFER));
    }
    if (error) ok = error_set(e, "%s: %s", path, strerror(error));
    close(in);
    free(crcs);
    return ok;
}

static int expected_sum(const JsonValue *run, const char *name, FileSum *sum, Error *e) {
    const JsonValue *f = json_get(json_get(run, "files"), name);
    int64_t bytes, crc;
    if (!json_read_int(json_get(f, "bytes"), "bytes", 0, INT64_MAX, &bytes, e)
        || !json_read_int(json_get(f, "crc32c"), "crc32c", 0, UINT32_MAX, &crc, e)) return 0;
    *sum = (FileSum){ (uint64_t)bytes, (uint32_t)crc };
    return 1;
}

static int verify_file(const char *path, const FileSum *expected, Error *e) {
    FileSum is;
    if (!sum_file(path, &is, e)) return 0;
    if (is.bytes != expected->bytes)
        return error_set(e, "%s has %llu bytes, expected %llu: it is truncated or from another checkpoint", path,
                         (unsigned long long)is.bytes, (unsigned long long)expected->bytes);
    if (is.crc != expected->crc)
        return error_set(e, "%s is damaged: its CRC-32C is %08x, expected %08x", path, is.crc, expected->crc);
    return 1;
}

/* Checks the contents of run.json, and by its checksums the other files. */
static int verify_step(Checkpoint *c, const char *file, const Wanted *w, Error *e) {
    const JsonValue *run = json_root(c->run);
    Error why;
    int64_t format, step;
    if (!json_read_int(json_get(run, "format"), "format", 0, INT64_MAX, &format, &why))
        return error_set(e, "%s: %.900s", file, why.text);
    if (format != FORMAT)
        return error_set(e, "%s: format %lld; this program reads format %d", file, (long long)format, FORMAT);
    if (!json_read_int(json_get(run, "step"), "step", c->step, c->step, &step, &why)      /* that of the folder */
        || !config_from_json(&c->config, json_get(run, "config"), &why)
        || (w && !w->usable(run, w->of, &why))) return error_set(e, "%s: %.900s", file, why.text);
    for (int i = 0; i < FILES; i++) {
        if (i && !json_get(json_get(run, "files"), checkpoint_files[i])) {
            if (!w) continue;                               /* its weights are wanted */
            return error_set(e, "it has no state of the optimizer, only weights (-sv weights), so no run resumes from "
                             "it. To train its model further: -e %s, and another folder with -o", c->folder);
        }
        char *path = text_format("%s/%s", c->path, checkpoint_files[i]);
        FileSum sum;
        int ok = expected_sum(run, checkpoint_files[i], &sum, &why);
        if (!ok) error_set(e, "%s: %s: %.900s", file, checkpoint_files[i], why.text);
        ok = ok && verify_file(path, &sum, e);
        free(path);
        if (!ok) return 0;
    }
    return 1;
}

static Checkpoint *open_step(const char *folder, int64_t step, const Wanted *wanted, Error *e) {
    Checkpoint *c = mem_alloc(sizeof *c);
    *c = (Checkpoint){ .folder = text_format("%s", folder), .path = step_path(folder, step), .step = step };
    char *file = text_format("%s/run.json", c->path);
    size_t bytes;
    Error why;
    char *text = file_read(file, &bytes, e);
    int ok = text && json_sealed(text, bytes, &why) && (c->run = json_parse(text, bytes, &why));
    if (text && !ok) error_set(e, "%s: %.900s", file, why.text);
    ok = ok && verify_step(c, file, wanted, e);
    free_each(text, file);
    if (ok) return c;
    checkpoint_close(c);
    return NULL;
}

Checkpoint *checkpoint_open(const char *folder, const Wanted *wanted, Error *e) {
    int64_t *steps;
    Error why;
    const int n = list_steps(folder, &steps, e);
    int first = 0;
    Checkpoint *c = NULL;
    while (first < n && wanted && wanted->latest && steps[first] > wanted->latest) first++;
    if (!n) error_set(e, "%s holds no checkpoint to resume from (nothing in %s/state)", folder, folder);
    else if (n > 0 && first == n)
        error_set(e, "%s holds no checkpoint of step %lld or before; the oldest is of step %lld", folder,
                  (long long)wanted->latest, (long long)steps[n - 1]);
    for (int i = first; i < n && !c; i++) {
        if ((c = open_step(folder, steps[i], wanted, &why))) break;
        char *path = step_path(folder, steps[i]), *before = i + 1 < n ? step_path(folder, steps[i + 1]) : NULL;
        if (before) warn("%s cannot be used: %s; trying the checkpoint before it, %s", path, why.text, before);
        else error_set(e, "%s cannot be used, and there is none before it: %.800s", path, why.text);
        free_each(path, before);
    }
    free(steps);
    return c;
}
void checkpoint_close(Checkpoint *c) {
    if (!c) return;
    json_free(c->run);
    free_each(c->folder, c->path, c);
}
const char *checkpoint_path(const Checkpoint *c) { return c->path; }
const JsonValue *checkpoint_run(const Checkpoint *c) { return json_root(c->run); }
const JsonValue *checkpoint_options(const Checkpoint *c) { return json_get(checkpoint_run(c), "options"); }
Config checkpoint_config(const Checkpoint *c) { return c->config; }

int checkpoint_has_tokenizer(const Checkpoint *c, const char *path) {
    const JsonValue *files = json_get(checkpoint_run(c), "files");
    FileSum sum;
    Error e;
    if (!is_there(path)) return 0;
    if (!json_get(files, "tokenizer.json")) return 1;           /* an older version, which stored no checksum of it */
    if (expected_sum(checkpoint_run(c), "tokenizer.json", &sum, &e) && verify_file(path, &sum, &e)) return 1;
    Error none;
    size_t bytes = 0;
    char *text = tokenizer_read(path, &bytes, NULL, &none);     /* with tokens of the files beside it */
    const int same = text && bytes == sum.bytes && crc32c(0, text, bytes) == sum.crc;
    free(text);
    if (same) return 1;
    warn("%s", e.text);
    return 0;
}

int checkpoint_has_tokens(const Checkpoint *c, const Tokenizer *t) {
    FileSum sum;
    size_t bytes;
    Error e;
    const char *text = tokenizer_json(t, &bytes);
    return !expected_sum(checkpoint_run(c), "tokenizer.json", &sum, &e) || (bytes == sum.bytes
                                                                             && crc32c(0, text, bytes) == sum.crc);
}

int checkpoint_load(const Checkpoint *c, Model *m, Optimizer *o, Error *e) {
    char *model = text_format("%s/model.safetensors", c->path);
    char *optimizer = text_format("%s/optimizer.safetensors", c->path);
    int64_t updates;
    int ok = json_read_int(json_get(checkpoint_run(c), "updates"), "updates", 0, c->step < INT_MAX ? c->step : INT_MAX,
                           &updates, e)
          && hf_load_weights(m, model, e);
    if (ok) {
        optimizer_start(o, m);
        o->updates = (int)updates;
        ok = optimizer_load(optimizer, m, o, e);
    }
    free_each(model, optimizer);
    return ok;
}

/* ---- after a save that was killed or failed half-way ----------------------------------------- */

/* Are the weights at the top those of this step: a hard link, or a copy? */
static int holds_weights(const Checkpoint *c, const char *weights, const char *top) {
    struct stat a, b;
    FileSum sum;
    Error e;
    if (stat(weights, &a) || stat(top, &b)) return 0;
    if (a.st_dev == b.st_dev && a.st_ino == b.st_ino) return 1;
    return expected_sum(checkpoint_run(c), "model.safetensors", &sum, &e) && verify_file(top, &sum, &e);
}
int checkpoint_publish(const Checkpoint *c, const Model *m, const Tokenizer *tokenizer,
                       const HfOrigin *origin, Error *e) {
    char *weights = top_weights(c->path), *top = top_weights(c->folder);
    const int ok = holds_weights(c, weights, top) ? hf_save_small(c->folder, m, tokenizer, origin, e)
                                                  : publish(weights, c->folder, m, tokenizer, origin, e);
    free_each(weights, top);
    return ok;
}

/* The step in the metadata of a folder's weights; -1: there is none, or a file is damaged. */
static int64_t step_of(const char *folder) {
    Error e;
    Safetensors *s = is_folder(folder) ? safetensors_open(folder, &e) : NULL;
    const char *note = s ? safetensors_note(s, "step") : NULL;
    char *end = NULL;
    const long long step = note ? strtoll(note, &end, 10) : -1;
    const int complete = end && end != note && !*end;
    safetensors_close(s);
    return complete ? step : -1;
}
int checkpoint_drop_later(const Checkpoint *c, Error *e) {
    int64_t *steps;
    const int n = list_steps(c->folder, &steps, e);
    int later = 0;
    while (later < n && steps[later] > c->step) later++;
    const int ok = n >= 0 && remove_steps(c->folder, steps, later, e);
    free(steps);
    return ok;
}
int checkpoint_best(const Checkpoint *c, int64_t best, int dropped, const Model *m, const Tokenizer *tokenizer,
                    const HfOrigin *origin, Error *e) {
    char *folder = text_format("%s/best", c->folder);
    const int64_t held = step_of(folder);
    char *state = step_path(c->folder, best);
    int ok = held == best || (held > c->step && !dropped);
    if (!ok && !is_folder(state))
        error_set(e, "%s has step %lld, not step %lld, which is in no state", folder, (long long)held, (long long)best);
    else if (!ok) {
        Checkpoint *from = open_step(c->folder, best, NULL, e);
        char *there = from ? top_weights(from->path) : NULL;
        ok = from && publish(there, folder, m, tokenizer, origin, e);
        free(there);
        checkpoint_close(from);
    }
    free_each(state, folder);
    return ok;
}
