/* test_state.c: damaged and half-saved checkpoints. The readers of run.json and of log.jsonl's
 * first line; impossible optimizer states with valid checksums; saves that failed half-way. Whole
 * runs with kills and failing calls: tests/faults.sh. */
#define _DEFAULT_SOURCE
#include "llmc/model/plan.h"
#include "tests/model/trainee.h"
#include "tests/test.h"
#include "llmc/files/checkpoint.h"
#include "llmc/files/load.h"
#include "llmc/run/progress.h"
#include "llmc/run/settings.h"
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL "m1:c16h4d4e4k2f12a4x2n0"

/* ---- readers --------------------------------------------------------------------------------- */

static const char good[] = "{\"format\": 1, \"step\": 7, \"samples\": 70, \"tokens\": 700, \"updates\": "
    "6, \"bad_steps\": 1, \"seed\": \"00000000000000ff\", \"data\": \"1\", \"device\": \"cpu-f32\", \"seconds\": 1.5, "
    "\"best_loss\": 2, \"best_step\": 5, \"loss_window\": {\"next\": 2, \"x\": [1, 2.5]}, \"norm_window\": {\"next\": "
    "0, \"x\": []}, \"files\": {}, \"config\": {}, \"options\": {}}";

/* `good` with one text in place of another. */
static char *with(const char *from, const char *to) {
    const char *at = strstr(good, from);
    return text_format("%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
}
static int reads(const char *text, size_t bytes, Progress *p, Error *e) {
    Json *j = json_parse(text, bytes, e);
    const int ok = j && progress_from_json(json_root(j), p, e);
    json_free(j);
    return ok;
}
static void progress(void) {
    static const struct { const char *from, *to, *names; } wrong[] = {
        { "\"samples\": 70", "\"samples\": -5", "samples" },        /* once an endless loop, deaf to SIGTERM */
        { "\"samples\": 70", "\"samples\": 9000000000000001", "samples" },
        { "\"samples\": 70", "\"samples\": 7.5", "samples" }, { "\"samples\": 70", "\"samples\": \"70\"", "samples" },
        { "\"samples\": 70, ", "", "samples" }, { "\"samples\"", "\"sbmples\"", "samples" },
        { "\"step\": 7", "\"step\": -1", "step" }, { "\"step\": 7", "\"step\": 1000000000001", "step" },
        { "\"tokens\": 700", "\"tokens\": null", "tokens" }, { "\"updates\": 6", "\"updates\": 8", "updates" },
        { "\"updates\": 6", "\"updates\": -6", "updates" }, { "\"bad_steps\": 1", "\"bad_steps\": 9", "bad_steps" },
        { "\"seconds\": 1.5", "\"seconds\": -1", "seconds" }, { "\"best_loss\": 2", "\"best_loss\": [2]", "best_loss" },
        { "\"best_step\": 5", "\"best_step\": 8", "best_step" },
        { "\"best_step\": 5", "\"best_step\": -2", "best_step" },
        { "\"00000000000000ff\"", "\"00000000000000fg\"", "seed" }, { "\"00000000000000ff\"", "255", "seed" },
        { "\"data\": \"1\"", "\"data\": \"\"", "data" }, { "\"data\": \"1\"", "\"data\": \"12345678901234567\"",
                                                           "data" }, { "\"next\": 2", "\"next\": 3", "loss_window" },
        { "\"next\": 2", "\"next\": -1", "loss_window" },           { "[1, 2.5]", "[1, null]", "loss_window" },
        { "{\"next\": 0, \"x\": []}", "[]", "norm_window" },        { "\"device\"", "\"davice\"", "davice" },
        { "\"updates\": 6", "\"updates\": 6, \"run\": \"x\"", "run" },
        { "\"updates\": 6", "\"updates\": 6, \"first_loss\": null", "first_loss" },
        { "\"updates\": 6", "\"updates\": 6, \"lowest_loss\": \"1\"", "lowest_loss" },
        { "\"updates\": 6", "\"updates\": 6, \"sound_step\": 8", "sound_step" },
        { "\"updates\": 6", "\"updates\": 6, \"diverged_step\": -1", "diverged_step" }, };
    Progress p;
    Error e;
    check(reads(good, strlen(good), &p, &e) && p.step == 7 && p.samples == 70 && p.tokens == 700
          && p.updates == 6 && p.bad_steps == 1 && p.seed == 255 && p.data == 1 && p.best.step == 5 && p.loss.count == 2
          && p.loss.next == 2 && p.norm.count == 0, "a progress is read");
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char *text = with(wrong[i].from, wrong[i].to);
        check(!reads(text, strlen(text), &p, &e) && strstr(e.text, wrong[i].names), "%s: %s", wrong[i].to, e.text);
        free(text);
    }
    Text full = { 0 };
    for (int i = 0; i <= WINDOW; i++) text_add(&full, "%s1", i ? ", " : "[");
    text_add(&full, "]");
    char *text = with("[1, 2.5]", full.at);
    check(!reads(text, strlen(text), &p, &e), "a window with one value too many is refused: %s", e.text);
    free(text), free(full.at);
}

/* A run of losses: `from` falls to `to` in 60 steps, with noise; then `then` for some steps, and
 * `at_last`. Returns the step at which it was said to have diverged, and *recovered. */
static int64_t course(double from, double to, double noise, double then, int some, double at_last, int64_t *recovered,
                      Progress *p) {
    int64_t diverged = 0;
    *p = (Progress){ .best = { .step = -1 } };
    *recovered = 0;
    for (int i = 0; i < 300; i++, p->step++) {
        const double mean = i < 60 ? from + (to - from) * i / 60 : i >= 100 && i < 100 + some ? then : i < 100 ? to
            : at_last, loss = mean + noise * (i % 2 ? 1 : -1) * ((i * 7) % 10) / 10;
        window_score(&p->loss, loss);
        const Course c = progress_course(p, loss, log(256));
        if (c == COURSE_DIVERGED && !diverged) diverged = p->step + 1;
        if (c == COURSE_RECOVERED) *recovered = p->step + 1;
    }
    return diverged;
}
static void courses(void) {
    static Progress p;
    int64_t recovered = 0;
    check(!course(5.5, 1.5, 0.5, 0, 0, 1.5, &recovered, &p) && p.sound == 300 && !p.diverged,
          "a run with noise does not diverge; sound until %lld", (long long)p.sound);
    check(!course(5.5, 1.5, 0, 1e4, RECENT - 1, 1.5, &recovered, &p), "nor one with a spike of 15 steps");
    check(course(5.5, 1.5, 0, 529, RECENT, 1.5, &recovered, &p) == 116 && recovered == 132 && !p.diverged,
          "one of 16 steps does, and recovers: %lld", (long long)recovered);
    check(course(5.5, 1.5, 0.3, 529, 300, 0, &recovered, &p) == 116 && p.diverged == 116 && !recovered
          && p.sound == 100, "529 where 5.5 is chance: sound until %lld", (long long)p.sound);
    check(course(5.5, 1.5, 0.1, 4.2, 300, 0, &recovered, &p) == 116, "most of what was learned is lost");
    check(!course(5.5, 1.5, 0.1, 2.4, 300, 0, &recovered, &p), "other text is somewhat harder: no divergence");
    check(!course(2, 1.2, 0.9, 1.3, 300, 0, &recovered, &p), "nor a fine-tuning with much noise");
    check(course(2, 1.8, 0.3, 3.3, 300, 0, &recovered, &p) == 116, "a fine-tuning that gets much worse");
    check(!course(5.5, 6.1, 0.3, 6.1, 300, 0, &recovered, &p), "somewhat above chance, as in a warm-up");
    check(course(5.5, 9, 0, 9, 300, 0, &recovered, &p) && p.sound < 30, "from the beginning on");
    check(course(529, 529, 0, 529, 300, 529, &recovered, &p) == 0 && p.first == 529, "a folder's model, as it was");
    for (int i = 0; i < 17; i++, p.step = i) {
        if (i == 0) p = (Progress){ 0 };
        window_score(&p.loss, i ? 1e4 : 5.5);
        check(progress_course(&p, i ? 1e4 : 5.5, log(256)) == (i == 16 ? COURSE_DIVERGED : COURSE_SAME), "step %d", i);
    }
    check(p.sound == 1 && p.lowest > 1000, "from the second step on: sound until %lld", (long long)p.sound);
    p.best.step = 4;
    progress_new_data(&p);
    check(!p.diverged && p.best.step == -1 && p.loss.count == 0 && p.lowest == 0, "other data are another matter");
}

static int restores(Settings *s, const char *text, Error *e) {
    Json *j = json_parse(text, strlen(text), e);
    const int ok = j && settings_restore(s, json_root(j), e);
    json_free(j);
    return ok;
}
static void settings(void) {
    static const struct { const char *text, *names; } wrong[] = {
        { "[1]", "options" }, { "7", "options" },                                       /* once a crash */
        { "{\"train\": 5}", "train" }, { "{\"schedule\": 1}", "schedule" }, /* once a pointer into a dead stack frame */
        { "{\"schedule\": \"steps\"}", "cosine" }, { "{\"train\": \"a\\u0000b\"}", "train" },
        { "{\"batch\": 0}", "batch" }, { "{\"batch\": 2.5}", "batch" }, { "{\"batch\": \"2\"}", "batch" },
        { "{\"batch\": 2000000}", "batch" }, { "{\"batch\": null}", "batch" }, { "{\"lr\": -1}", "lr" },
        { "{\"lr\": \"1e-3\"}", "lr" }, { "{\"seed\": 1e300}", "seed" }, { "{\"bbtch\": 2}", "bbtch" },
        { "{\"resume\": 7}", "resume" }, { "{\"port\": 80}", "port" }, /* where a run runs is not kept */
    };
    static char *none[] = { "train_moe", "-b", "3", NULL }, *nearest[] = { "train_moe", "-rt", "nearest", NULL };
    Settings s, before;
    Error e;
    settings_parse(&s, 3, none);
    check(restores(&s, "{\"batch\": 7, \"seq\": 9, \"lr\": 0.00123456789, \"total\": 600, \"train\": \"x y\", \"out\": "
                   "\"elsewhere\"}", &e) && s.batch == 3
          && s.seq == 9 && s.total == 600 && s.lr == 0.00123456789f && !strcmp(s.train, "x y") && !strcmp(s.out, "out"),
          "settings are restored, but not those that the user gives, nor the folder: %s", e.text);
    check(!restores(&s, "{\"rounding\": \"up\"}", &e) && strstr(e.text, "was removed"),
          "a value that is gone is refused: %s", e.text);
    check(restores(&s, "{\"tensorboard\": 0}", &e) && restores(&s, "{\"tensorboard\": 1}", &e),
          "an option that is gone is ignored: %s", e.text);
    settings_parse(&before, 3, nearest);
    check(restores(&before, "{\"rounding\": \"up\"}", &e) && before.rounding == 1, "unless given: %s", e.text);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        before = s;
        const int read = restores(&s, wrong[i].text, &e);
        check(!read && strstr(e.text, wrong[i].names) && !memcmp(&before, &s, sizeof s), "options %s are refused: %s",
              wrong[i].text, e.text);
    }
    free((void *)s.train);
}

/* Flips every bit of a sealed text: none of the results may be accepted. */
static void seals(void) {
    Text t = { 0 };
    Progress p, right;
    Error e;
    text_add_bytes(&t, good, strlen(good) - 1);
    json_seal(&t);
    text_add(&t, "\n");
    check(json_sealed(t.at, t.length, &e) && reads(t.at, t.length, &right, &e), "a sealed text is read: %s", e.text);
    check(json_sealed(good, strlen(good), &e), "one without a seal, too");
    int wrong = 0, silent = 0;
    for (size_t bit = 0; bit < 8 * t.length; bit++) {
        t.at[bit / 8] = (char)(t.at[bit / 8] ^ 1 << bit % 8);
        const int sealed = json_sealed(t.at, t.length, &e), read = sealed && reads(t.at, t.length, &p, &e);
        wrong += !sealed;
        silent += read;
        t.at[bit / 8] = (char)(t.at[bit / 8] ^ 1 << bit % 8);
    }
    check(silent == 0 && wrong > 8 * ((int)strlen(good) - 1), "of %zu flipped bits: %d", 8 * t.length, silent);
    check(json_sealed("", 0, &e) && json_sealed("{}", 2, &e), "short texts have no seal");
    free(t.at);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static char *file_of(const char *folder, int64_t step, const char *name) {
    return text_format("%s/state/step-%08lld/%s", folder, (long long)step, name);
}
static Saved save(const char *folder, const Trainee *t, int64_t step, int64_t best, int keep, Error *e) {
    Progress p = { .step = step, .updates = (int)step, .best = { .loss = 1, .step = best } };
    Text json = { 0 };
    progress_to_json(&p, t->m.dev->name, &json);
    const Snapshot s = { .model = &t->m, .optimizer = &t->o, .step = step, .progress = json.at, .options = "{}" };
    const Saved saved = checkpoint_save(folder, &s, (Keep){ keep, 0, 0, 0 }, e);
    free(json.at);
    return saved;
}
static int same_file(const char *a, const char *b) {
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_ino == y.st_ino;
}

/* Writes run.json again with the right sum of the optimizer's file, and a right seal. */
static void seal_again(const char *folder, int64_t step, uint64_t bytes, uint32_t crc) {
    char *path = file_of(folder, step, "run.json");
    size_t n;
    Error e = { 0 };
    char *text = file_read(path, &n, &e), *at = text ? strstr(text, "\"optimizer.safetensors\": ") : NULL;
    char *end = at ? strchr(at, '}') : NULL, *seal = end ? strstr(end, ", \"crc32c\": \"") : NULL;
    if (!seal) fail(EXIT_DISK, "%s: %s", path, e.text);
    Text t = { 0 };
    text_add_bytes(&t, text, (size_t)(at - text));
    text_add(&t, "\"optimizer.safetensors\": {\"bytes\": %llu, \"crc32c\": %u", (unsigned long long)bytes, crc);
    text_add_bytes(&t, end, (size_t)(seal - end));
    json_seal(&t);
    if (!file_write(path, t.at, t.length, &e)) fail(EXIT_DISK, "%s", e.text);
    free(t.at), free(text), free(path);
}
/* Rewrites the optimizer's file: the last tensor whose name ends with `suffix` gets the first
 * element x and, if count > 0, count elements. */
static void rewrite_state(const char *folder, int64_t step, const char *suffix, float x, uint64_t count) {
    char *path = file_of(folder, step, "optimizer.safetensors");
    Error e = { 0 };
    Safetensors *s = safetensors_open(path, &e);
    if (!s) fail(EXIT_DISK, "%s", e.text);
    const size_t n = safetensors_count(s);
    FileTensor *list = mem_alloc(n * sizeof *list);
    float **data = mem_alloc(n * sizeof *data);
    size_t chosen = n;
    uint64_t bytes = 0;
    uint32_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        const FileTensor *t = safetensors_at(s, i);
        const size_t length = strlen(t->name), tail = strlen(suffix);
        if (length >= tail && !strcmp(t->name + length - tail, suffix)) chosen = i;
        data[i] = mem_alloc((size_t)t->bytes + (size_t)count * sizeof(float));
        if (!safetensors_read(s, t, 0, data[i], (size_t)t->bytes, &e)) fail(EXIT_DISK, "%s", e.text);
        list[i] = *t;
    }
    if (chosen < n) data[chosen][0] = x;
    if (chosen < n && count) list[chosen].shape = &count;
    SafetensorsWriter *w = safetensors_create(path, list, n, NULL, 0, &e);
    int ok = w != NULL;
    for (size_t i = 0; i < n && ok; i++)
        ok = safetensors_append(w, data[i], i == chosen && count ? (size_t)count * 4 : (size_t)list[i].bytes, &e);
    ok = ok && safetensors_finish(w, &e, &bytes, &crc);
    check(ok && chosen < n, "the state is written again with another %s: %s", suffix, e.text);
    seal_again(folder, step, bytes, crc);
    for (size_t i = 0; i < n; i++) free(data[i]);
    safetensors_close(s), free(data), free(list), free(path);
}

/* With valid checksums: impossible values, and too many router biases (once an overflow). */
static void impossible_state(Trainee *t) {
    static const struct { const char *suffix; float x; uint64_t count; const char *says; } wrong[] = {
        { ".v", -1, 0, "is -1" }, { ".v", NAN, 0, "nan" }, { ".m", INFINITY, 0, "inf" }, { ".m", -INFINITY, 0, "inf" },
        { "router_bias", NAN, 0, "not finite" }, { "router_bias", 0, 4000000, "router_bias has 4000000" },
        { "router_bias", 0, 1, "router_bias has 1 " }, { ".v", 1, 1, "another size" },
    };
    Error e = { 0 };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char *folder = text_format("%s/impossible-%zu", scratch(), i);
        check(save(folder, t, 3, -1, 1, &e) == SAVED_ALL, "saved: %s", e.text);
        rewrite_state(folder, 3, wrong[i].suffix, wrong[i].x, wrong[i].count);
        Checkpoint *c = checkpoint_open(folder, NULL, &e);
        check(c != NULL, "its checksums are right: %s", e.text);
        const int loaded = c && checkpoint_load(c, &t->m, &t->o, &e);
        check(c && !loaded && strstr(e.text, wrong[i].says), "%s of %g, %llu elements: refused: %s", wrong[i].suffix,
              (double)wrong[i].x, (unsigned long long)wrong[i].count, e.text);
        checkpoint_close(c), free(folder);
    }
}

/* The model at the top is old, a small file is damaged, best/ is missing or holds another step. */
static void brought_up_to_date(Trainee *t) {
    char *folder = scratch_path("stale"), *top = text_format("%s/model.safetensors", folder),
        *config = text_format("%s/config.json", folder);
    char *best = text_format("%s/best/model.safetensors", folder), *newest = file_of(folder, 4, "model.safetensors");
    char *before = file_of(folder, 2, "model.safetensors");
    Error e = { 0 };
    size_t n, n2;
    check(save(folder, t, 2, 2, 2, &e) == SAVED_ALL && save(folder, t, 4, 2, 2, &e) == SAVED_ALL, "saved: %s", e.text);
    char *was = file_read(config, &n, &e);
    check(file_link(before, top, &e) && file_write(config, "{}", 2, &e) && !same_file(top, newest), "an old top");
    Checkpoint *c = checkpoint_open(folder, NULL, &e);
    check(c && checkpoint_publish(c, &t->m, NULL, NULL, &e) && same_file(top, newest), "published: %s", e.text);
    char *is = file_read(config, &n2, &e);
    check(was && is && n == n2 && !memcmp(was, is, n), "and its config.json is repaired");
    check(checkpoint_best(c, 2, 0, &t->m, NULL, NULL, &e) && same_file(best, before),
          "best/ is missing: it comes from the state of that step: %s", e.text);
    check(checkpoint_best(c, 4, 0, &t->m, NULL, NULL, &e) && same_file(best, newest), "best/ of an older step");
    check(!checkpoint_best(c, 3, 0, &t->m, NULL, NULL, &e) && strstr(e.text, "not step 3"),
          "a best that is nowhere is told: %s", e.text);
    check(checkpoint_save_best(folder, &t->m, 9, NULL, NULL, &e) && checkpoint_best(c, 2, 0, &t->m, NULL, NULL, &e)
          && !same_file(best, before), "a best/ of a later step stays: the repeated part of the run saves it again");
    checkpoint_close(c);
    free(was), free(is), free(folder), free(top), free(config), free(best), free(newest), free(before);
}

/* The state is saved, but the model at the top cannot be replaced. */
static void half_saved(Trainee *t) {
    char *folder = scratch_path("half"), *top = text_format("%s/model.safetensors", folder),
        *newest = file_of(folder, 2, "model.safetensors");
    char *first = file_of(folder, 1, "run.json");
    Error e = { 0 };
    check(save(folder, t, 1, -1, 1, &e) == SAVED_ALL && !unlink(top) && folder_make(top, &e),
          "a folder is where the model should be");
    check(save(folder, t, 2, -1, 1, &e) == SAVED_STATE && strstr(e.text, "model.safetensors"),
          "the state alone is saved, and the rest told: %s", e.text);
    check(is_file(first) && checkpoint_newest(folder, 0) == 2, "nothing older is removed");
    rmdir(top);
    Checkpoint *c = checkpoint_open(folder, NULL, &e);
    check(c && checkpoint_publish(c, &t->m, NULL, NULL, &e) && same_file(top, newest), "published: %s", e.text);
    checkpoint_close(c);
    char *state = text_format("%s/state", folder), *aside = text_format("%s-aside", state);
    check(!rename(state, aside) && file_write(state, "", 0, &e) && save(folder, t, 3, -1, 1, &e) == SAVED_NOTHING
          && checkpoint_newest(folder, 0) == -1, "without a place for states nothing is saved: %s", e.text);
    free(state), free(aside), free(folder), free(top), free(newest), free(first);
}

/* A tokenizer.json that is not the run's is not used. */
static void tokenizer(Trainee *t) {
    char *folder = scratch_path("tokens"), *path = text_format("%s/tokenizer.json", folder);
    Tokenizer *bytes = tokenizer_bytes();
    const Progress p = { .step = 1, .best = { .step = -1 } };
    Text json = { 0 };
    Error e = { 0 };
    size_t n;
    progress_to_json(&p, "cpu-f32", &json);
    const Snapshot s = { .model = &t->m, .optimizer = &t->o, .tokenizer = bytes, .step = 1, .progress = json.at,
                         .options = "{}" };
    check(checkpoint_save(folder, &s, (Keep){ 1, 0, 0, 0 }, &e) == SAVED_ALL, "saved with a tokenizer: %s", e.text);
    Checkpoint *c = checkpoint_open(folder, NULL, &e);
    check(c && checkpoint_has_tokenizer(c, path), "its tokenizer.json is the run's");
    char *text = file_read(path, &n, &e);
    text[n / 2] ^= 1;
    check(file_write(path, text, n, &e) && c && !checkpoint_has_tokenizer(c, path), "one with a flipped bit is not");
    check(c && checkpoint_publish(c, &t->m, bytes, NULL, &e) && checkpoint_has_tokenizer(c, path), "it is repaired");
    checkpoint_close(c), tokenizer_free(bytes), free(text), free(json.at), free(path), free(folder);
}

/* ---- files as a whole ------------------------------------------------------------------------ */

static int writes_half(const char *temporary, const void *unused, Error *e) {
    (void)unused;
    FileWriter *w = file_create(temporary, e);
    if (w && file_add(w, "half", 4, e)) file_finish(w, e);
    return error_set(e, "the rest failed");
}
static int patches(const char *temporary, const void *data, Error *e) {
    Error why;
    FileWriter *w = file_create(temporary, e);
    if (!w) return 0;
    const int ok = file_add(w, data, 3000000, e) && file_patch(w, 2999990, "end of it.", 10, e)
        && file_patch(w, 0, "head", 4, e);
    return ok && file_finish(w, e) && (w = file_create("/dev/null", e)) && !file_patch(w, 1, "x", 1, &why)
        && (file_abandon(w), 1);
}
static void replaced_files(void) {
    char *path = scratch_path("replaced"), *again = scratch_path("linked"), *data = mem_alloc(3000000);
    Error e = { 0 };
    size_t n = 0;
    memset(data, 'x', 3000000);
    check(file_write(path, "old", 3, &e) && !file_replace(path, writes_half, NULL, &e) && strstr(e.text, "rest failed"),
          "a body that fails is told: %s", e.text);
    char *text = file_read(path, &n, &e);
    check(text && n == 3 && !memcmp(text, "old", 3), "and changes nothing");
    free(text);
    check(file_replace(path, patches, data, &e), "bytes can be patched, in the buffer and before it: %s", e.text);
    text = file_read(path, &n, &e);
    memcpy(data, "head", 4);
    memcpy(data + 2999990, "end of it.", 10);
    check(text && n == 3000000 && !memcmp(text, data, n), "the file is as it was patched");
    free(text);
    check(file_link(path, again, &e) && same_file(path, again) && file_link(path, again, &e),
          "a second name, also a second time: %s", e.text);
    check(file_is_temporary("x.tmp.12") && file_is_temporary("model.safetensors.tmp") && !file_is_temporary("x.tmp.")
          && !file_is_temporary("x.tmp.1a") && !file_is_temporary("notes.tmp"), "temporary names are known");
    check(!folder_sync("/nowhere/at/all", &e) && strstr(e.text, "/nowhere"),
          "a folder that cannot be synced is an error: %s", e.text);
    free(path), free(again), free(data);
}

/* A device that can reach three pieces. */
static int locks;
static int lock_limited(const void *near, void *host, size_t bytes) {
    (void)near;
    const uintptr_t from = (uintptr_t)host;
    return from / HOST_PIECE == (from + bytes - 1) / HOST_PIECE && locks < 3 ? ++locks : 0;
}
static void unlock(void *host) { locks -= !((uintptr_t)host % HOST_PIECE); }
static void locked_in_pieces(void) {
    Device limited = *device_find("cpu-f32");
    limited.host_lock = lock_limited, limited.host_unlock = unlock;
    HostBuffer *fits = host_buffer_open(&limited, NULL, 2 * (size_t)HOST_PIECE + 1);
    check(host_buffer_state(fits, 1) == BUFFER_READY && locks == 3, "memory is locked in pieces");
    host_buffer_close(fits);
    check(!locks, "and unlocked");
    HostBuffer *more = host_buffer_open(&limited, NULL, 3 * (size_t)HOST_PIECE + 1);
    check(host_buffer_state(more, 1) == BUFFER_NONE && locks == 3, "a device that cannot reach all of it uses none");
    host_buffer_close(more);
    check(!locks, "whose pieces are unlocked, too");
}
/* The thread of one that is closed ends with the piece that it is at. */
static atomic_int slow_locks;
static int lock_slowly(const void *near, void *host, size_t bytes) {
    (void)near, (void)host, (void)bytes;
    slow_locks++;
    usleep(20000);
    return 1;
}
static void closed_early(void) {
    Device slow = *device_find("cpu-f32");
    slow.host_lock = lock_slowly;
    HostBuffer *much = host_buffer_open(&slow, NULL, 8 * (size_t)HOST_PIECE);
    while (!slow_locks) usleep(1000);
    check(host_buffer_state(much, 0) == BUFFER_LATER, "memory that is not there yet");
    host_buffer_close(much);
    check(slow_locks < 8, "closing does not wait for all of it");
}
/* Memory for copies is taken by a thread, and given back whether that has ended or not. */
static void host_buffers(void) {
    const Device *dev = device_find("cpu-f32");
    HostBuffer *none = host_buffer_open(dev, NULL, SIZE_MAX), *some = host_buffer_open(dev, NULL, 1),
        *much = host_buffer_open(dev, NULL, 8 * (size_t)HOST_PIECE);
    check(host_buffer_state(none, 1) == BUFFER_NONE, "more memory than any host has");
    check(host_buffer_state(some, 1) == BUFFER_READY && host_buffer_state(some, 0) == BUFFER_READY,
          "little memory is there, and stays");
    char *memory = host_buffer_memory(some);
    check(memory && !memory[0], "of zeros");
    host_buffer_close(none), host_buffer_close(some), host_buffer_close(much), host_buffer_close(NULL);
    locked_in_pieces();
    closed_early();
}
/* A GPU whose copies are made late: at the next sync. Memory of the host that changes until then is
 * filled too early. */
enum { LATE = 1 << 10, VALUES = 1 << 20, READS = 140 };
static struct { void *to; const void *from; size_t bytes; uint32_t sum; } late[LATE];
static int late_count, late_bad, uploads;
static void copy_late(void *to, const void *from, size_t bytes) {
    if (late_count < LATE) late[late_count].to = to, late[late_count].from = from, late[late_count].bytes = bytes,
                           late[late_count].sum = crc32c(0, from, bytes);
    late_count++;
}
static void copy_now(void) {
    for (int i = 0; i < late_count; i++) {
        late_bad += crc32c(0, late[i].from, late[i].bytes) != late[i].sum;
        memcpy(late[i].to, late[i].from, late[i].bytes);
    }
    late_count = 0;
}
static void count_upload(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); uploads++; }
static int (*lock_memory)(const void *near, void *host, size_t bytes);
static size_t locked_bytes;
static int lock_counted(const void *near, void *host, size_t bytes) {
    locked_bytes += bytes;
    return lock_memory(near, host, bytes);
}
static int lock_nothing(const void *near, void *host, size_t bytes) { (void)near, (void)host, (void)bytes; return 0; }
static int check_nothing(const Load *l, void *data, size_t first, size_t n, Error *e) {
    (void)l, (void)data, (void)first, (void)n, (void)e;
    return 1;
}
/* Files are read into locked memory, from which a GPU copies; else the loading thread sends. */
static void loads_by_device(void) {
    const uint64_t shape[] = { VALUES };
    const FileTensor t = { .name = "t", .dtype = "F32", .rank = 1, .shape = shape };
    const size_t end = VALUES / 2 + 999 * (READS - 1);
    float *data = mem_alloc(VALUES * sizeof *data), *to = mem_alloc(2 * VALUES * sizeof *to);
    char *path = scratch_path("much.safetensors");
    Error e = { 0 };
    for (size_t i = 0; i < VALUES; i++) data[i] = (float)i;
    SafetensorsWriter *w = safetensors_create(path, &t, 1, NULL, 0, &e);
    check(w && safetensors_append(w, data, VALUES * sizeof *data, &e) && safetensors_finish(w, &e, NULL, NULL),
          "a file is written: %s", e.text);
    Safetensors *s = safetensors_open(path, &e);
    Load *loads = mem_alloc(READS * sizeof *loads);
    for (size_t i = 0; i < READS; i++)
        loads[i] = (Load){ .tensor = safetensors_at(s, 0), .first = 1000 * i, .count = VALUES / 2 - i, .unit = 1,
                           .to = to + 1000 * i, .type = REAL, .check = check_nothing };
    Device gpu = *device_find("cpu-f32");
    gpu.is_gpu = 1, gpu.copy_in = copy_late, gpu.sync = copy_now, gpu.upload = count_upload;
    lock_memory = gpu.host_lock, gpu.host_lock = lock_counted;
    size_t at_once = 0;
    for (int way = 0; way < 3; way++) {                     /* at once; in three steps; not locked */
        const int locked = way < 2, steps = way == 1 ? 3 : 1;
        if (!locked) gpu.host_lock = lock_nothing;
        memset(to, 0, 2 * VALUES * sizeof *to);
        late_bad = uploads = 0, locked_bytes = 0;
        Loader *l = load_open(&gpu, s, loads, READS);
        int ok = 1;
        for (int i = 0; i < steps; i++) ok &= load_next(l, (size_t)(READS * (i + 1) / steps - READS * i / steps), &e);
        load_close(l);
        check(ok && !late_count && !late_bad && locked == !uploads,
              "way %d: %d pieces changed before they were copied, %d were uploaded %s", way, late_bad, uploads, e.text);
        check(!memcmp(to, data, end * sizeof *to) && to[end] == 0, "way %d: everything has come, and no more", way);
        if (!way) at_once = locked_bytes;
        check(way != 1 || (at_once && locked_bytes == at_once), "in steps no more is locked: %zu of %zu bytes",
              locked_bytes, at_once);
    }
    safetensors_close(s);
    free_each(path, data, to, loads);
}
/* The best weights are a second name of a state's. */
static void best_linked(Trainee *t) {
    char *folder = scratch_path("link"), *best = text_format("%s/best/model.safetensors", folder),
        *state = file_of(folder, 1, "model.safetensors");
    char *in = text_format("%s/best", folder);
    Error e = { 0 };
    check(save(folder, t, 1, 1, 1, &e) == SAVED_ALL && !is_folder(in)
          && checkpoint_link_best(folder, 1, &t->m, NULL, NULL, &e) && same_file(best, state),
          "one file for both: %s", e.text);
    check(!checkpoint_link_best(folder, 2, &t->m, NULL, NULL, &e) && same_file(best, state),
          "of a step that was not saved there are none: %s", e.text);
    free(folder), free(best), free(state), free(in);
}
static int use_any(const JsonValue *run, const void *of, Error *e) { (void)run; (void)of; (void)e; return 1; }
static FileSum sum_of(const char *path) {
    Error e;
    size_t n = 0;
    char *data = file_read(path, &n, &e);
    const FileSum sum = { n, data ? crc32c(0, data, n) : 0 };
    free(data);
    return sum;
}
/* Until it is there a save makes no copy; when it is, the next one does, with the same files. */
static void copied_later(Trainee *t) {
    char *folder = scratch_path("later"), *path[2];
    Error e = { 0 };
    FileSum sum[2] = { { 0 } };
    const Progress p = { .step = 1, .best = { .step = -1 } };
    Text json = { 0 };
    progress_to_json(&p, "cpu-f32", &json);
    Saver *s = saver_open(&t->m, &t->o);
    check(saver_use_buffer(s, 0) == BUFFER_NONE && saver_use_buffer(s, 1) == BUFFER_NONE, "no memory was asked for");
    saver_make_buffer(s);
    for (int i = 0; i < 2; i++) {
        const Snapshot a = { .model = &t->m, .optimizer = &t->o, .step = i + 1, .progress = json.at, .options = "{}" };
        check(!i || (saver_use_buffer(s, 1) == BUFFER_READY && saver_use_buffer(s, 0) == BUFFER_READY), "memory");
        check(saver_begin(s, folder, &a, (Keep){ 2, 0, 0, 0 }, &e) && saver_end(s, &e) == SAVED_ALL, "saved %s it: %s",
              i ? "with" : "without", e.text);
        path[i] = file_of(folder, i + 1, "optimizer.safetensors");
        sum[i] = sum_of(path[i]);
    }
    check(sum[0].bytes > 1000 && sum[0].bytes == sum[1].bytes && sum[0].crc == sum[1].crc, "the state is the same");
    saver_close(s), free(path[0]), free(path[1]), free(folder), free(json.at);
}

/* Without memory for a copy what is saved comes in pieces through a small buffer, and in no other
 * way; its files are those of a save that needs no pieces. Without the optimizer there is no state,
 * and no run resumes. */
static size_t pieces, largest;
static void count_piece(void *host, const void *src, size_t bytes) {
    pieces++;
    if (bytes > largest) largest = bytes;
    memcpy(host, src, bytes);
}
static void no_download(void *host, const void *src, size_t bytes) {
    check(bytes < 256, "%zu bytes past the buffer", bytes);             /* biases of routers */
    memcpy(host, src, bytes);
}
static void saved_in_pieces(Trainee *t) {
    const Device *dev = t->m.dev;
    Device counts = *dev;
    counts.is_gpu = 1, counts.copy_out = count_piece, counts.download = no_download;
    enum { COMPLETE, WEIGHTS_ONLY, DIRECT, WAYS };
    char *folder = scratch_path("pieces");
    FileSum weights[WAYS], state[WAYS];
    Error e = { 0 };
    Text json = { 0 };
    progress_to_json(&(Progress){ .step = 1, .best = { .step = -1 } }, "cpu-f32", &json);
    pieces = largest = 0;
    for (int way = 0; way < WAYS; way++) {
        const Snapshot a = { .model = &t->m, .optimizer = &t->o, .step = 1, .progress = json.at, .options = "{}" };
        char *in = text_format("%s-%d", folder, way), *model = file_of(in, 1, "model.safetensors"),
            *optimizer = file_of(in, 1, "optimizer.safetensors");
        t->m.dev = way == DIRECT ? dev : &counts;
        Saver *s = saver_open(&t->m, way == WEIGHTS_ONLY ? NULL : &t->o);
        check(saver_begin(s, in, &a, (Keep){ 2, 0, 0, 0 }, &e) && saver_end(s, &e) == SAVED_ALL, "saved: %s", e.text);
        saver_close(s);
        t->m.dev = dev;
        check(pieces > 0 && largest > 1000 && largest <= SAVE_PIECE, "%zu pieces of %zu bytes", pieces, largest);
        Checkpoint *c = checkpoint_open(in, NULL, &e);
        check(c != NULL, "it can be opened for its weights: %s", e.text);
        checkpoint_close(c);
        c = checkpoint_open(in, &(Wanted){ use_any, NULL, 0 }, &e);
        if (way == WEIGHTS_ONLY)
            fails(c != NULL, &e, "only weights (-sv weights)|To train its model further: -e ", "weights");
        else check(c != NULL, "a run resumes from it: %s", e.text);
        checkpoint_close(c);
        weights[way] = sum_of(model), state[way] = sum_of(way == WEIGHTS_ONLY ? model : optimizer);
        free_each(in, model, optimizer);
    }
    for (int way = 0; way < DIRECT; way++)
        check(weights[way].bytes > 1000 && weights[way].crc == weights[DIRECT].crc, "the same weights");
    check(state[COMPLETE].bytes > 1000 && state[COMPLETE].crc == state[DIRECT].crc, "the same state");
    free_each(folder, json.at);
}

/* From the copy, while the weights change. A failed attempt is repeated. */
static void best_from_copy(Trainee *t) {
    char *folder = scratch_path("behind"), *path = text_format("%s/best/model.safetensors", folder),
        *inside = text_format("%s/x", path);
    float *weights = (float *)t->m.params;
    const float was = weights[0];
    for (int obstacles = 0; obstacles < 3; obstacles++) {
        Error e = { 0 };
        Saved saved = SAVED_NOTHING;
        const Snapshot what = { .model = &t->m, .step = 1 };
        Saver *s = saver_open(&t->m, &t->o);
        saver_make_buffer(s);
        check(checkpoint_save_best(folder, &t->m, 1, NULL, NULL, &e) && saver_use_buffer(s, 1) == BUFFER_READY,
              "the best weights of a step: %s", e.text);
        const FileSum before = sum_of(path);
        unlink(path);
        if (obstacles) check(folder_make(inside, &e), "%s", e.text);         /* nothing can be renamed to it */
        check(saver_begin_best(s, folder, &what, &e), "begins: %s", e.text);
        weights[0] = was + 1;
        check(!saver_next(s, &saved, &e), "is written, then published");
        if (obstacles) check(!saver_next(s, &saved, &e) && saved == SAVED_NOTHING, "is tried again");
        if (obstacles == 1) rmdir(inside), rmdir(path);
        saved = saver_end(s, &e);
        check(saved == (obstacles < 2 ? SAVED_ALL : SAVED_NOTHING) && (saved == SAVED_ALL || strstr(e.text, "best")),
              "with %d obstacles: %s", obstacles, e.text);
        const FileSum after = saved == SAVED_ALL ? sum_of(path) : (FileSum){ 0 };
        check(obstacles == 2 || (after.bytes && after.bytes == before.bytes && after.crc == before.crc),
              "the weights of that step, with %d obstacles", obstacles);
        saver_close(s);
        weights[0] = was;
    }
    rmdir(inside), rmdir(path), free(folder), free(path), free(inside);
}

/* The plan counts what a save will copy: with bf16 weights the master copy, too. */
static void buffer_as_planned(void) {
    const Config c = trainee_config(MODEL, 32, 8);
    const Device *dev = device_find("cpu-bf16");
    for (int master = 0; master < 2; master++) {
        Model m;
        Optimizer o;
        const Recompute nothing = { 0 };
        size_t copy_bytes[2];
        model_plan_training(&m, dev, &c, 1, 8, &nothing, 1, REAL, NULL);
        optimizer_plan(&o, &m, master, REAL, (MuonOptions){ 0 });
        for (int i = 0; i < 2; i++) {
            if (i && !model_allocate(&m)) fail(EXIT_MEMORY, "no memory for a small model");
            Saver *s = saver_open(&m, &o);
            copy_bytes[i] = saver_copy_bytes(s);
            saver_close(s);
        }
        check(copy_bytes[0] == copy_bytes[1] && copy_bytes[0] >= (size_t)(master ? 14 : 10)
              * (size_t)m.manifest.learnable, "%zu bytes are planned, %zu copied", copy_bytes[0], copy_bytes[1]);
        model_free(&m);
    }
}

static void fail_without_reason(void *unused) { (void)unused; fail(EXIT_DISK, "%s", ""); }
static void empty_reason(void) {
    char said[256];
    check(in_child(fail_without_reason, NULL, said, sizeof said) == EXIT_DISK && strstr(said, "unknown; exit code 5"),
          "an empty reason is no message: %s", said);
}
void test_state(void) {
    Trainee t;
    const Config c = trainee_config(MODEL, 32, 8);
    PART(progress()); PART(courses()); PART(settings()); PART(seals()); PART(replaced_files()); PART(host_buffers());
    PART(loads_by_device()); PART(buffer_as_planned()); PART(empty_reason());
    if (!trainee_open(&t, device_find("cpu-f32"), &c, (TraineeOptions){ .B = 1, .T = 8, .seed = 1 }))
        fail(EXIT_MEMORY, "no memory for a small model");
    for (int i = 0; i < 2; i++) trainee_do(&t, i);
    PART(impossible_state(&t)); PART(brought_up_to_date(&t)); PART(half_saved(&t)); PART(copied_later(&t));
    PART(saved_in_pieces(&t));
    PART(best_from_copy(&t)); PART(best_linked(&t)); PART(tokenizer(&t));
    trainee_close(&t);
}
