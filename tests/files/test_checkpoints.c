/* test_checkpoints.c: checkpoints restore every bit, survive damage, exclude a second trainer;
 * files. Part of the group train. Damage in values: test_state.c. */
#define _DEFAULT_SOURCE
#include "tests/model/trainee.h"
#include "tests/test.h"
#include "llmc/files/checkpoint.h"
#include "llmc/files/config_json.h"
#include "llmc/run/progress.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static Config config_of(const char *descriptor) { return trainee_config(descriptor, 40, 32); }
/* moments: unless REAL also no master weights. */
static void open_trainee(Trainee *t, const char *device, const Config *c, TraineeOptions o, Dtype moments) {
    o.gradients = FLOATX, o.no_master = moments != REAL, o.moments = moments, o.z = 0.001f;
    check(trainee_open(t, device_find(device), c, o), "%s has memory", device);
}

static Progress progress_at(int64_t step) {
    Progress p = { .step = step, .samples = step * 12345678901, .tokens = step * 98765432109, .updates = (int)step - 2,
                   .bad_steps = 1, .seconds = uniform() * 1e5, .best = { 1 + uniform(), step - 3, 1000 + step, 77 },
                   .seed = 0xfedcba9876543210u, .data = 0x8000000000000001u, .run = 0xf000000000000003u,
                   .first = 5 + uniform(), .lowest = uniform(), .sound = step - 1, .diverged = step - 2 };
    for (int i = 0; i < 200; i++) { window_score(&p.loss, normal()); if (i < 77) window_score(&p.norm, exp(normal())); }
    return p;
}
static int same_progress(const Progress *a, const Progress *b) {
    return a->step == b->step && a->samples == b->samples && a->tokens == b->tokens
        && a->updates == b->updates && a->bad_steps == b->bad_steps && a->seconds == b->seconds
        && a->best.loss == b->best.loss && a->best.step == b->best.step && a->best.tokens == b->best.tokens
        && a->best.length == b->best.length && a->seed == b->seed && a->data == b->data && a->run == b->run
        && a->first == b->first && a->lowest == b->lowest && a->sound == b->sound && a->diverged == b->diverged
        && !memcmp(&a->loss, &b->loss, sizeof a->loss) && !memcmp(&a->norm, &b->norm, sizeof a->norm);
}
static int progress_usable(const JsonValue *run, const void *of, Error *e) {
    Progress p;
    return !of && progress_from_json(run, &p, e);
}
static const Wanted any_run = { progress_usable, NULL, 0 };
static int save_with(const char *folder, const Trainee *t, const Progress *p, const char *given, Keep keep, Error *e) {
    Text json = { 0 };
    progress_to_json(p, t->m.dev->name, &json);
    const Snapshot s = { .model = &t->m, .optimizer = &t->o, .step = p->step, .progress = json.at, .options = given };
    const Saved saved = checkpoint_save(folder, &s, keep, e);
    free(json.at);
    return saved == SAVED_ALL;
}
/* By steps: 3, 6, ...; of these 6 was put off until 7. Others by time. */
static int save_late(const char *folder, const Trainee *t, int64_t step, int64_t due, Keep keep) {
    Text json = { 0 };
    const Progress p = progress_at(step);
    Error e;
    progress_to_json(&p, t->m.dev->name, &json);
    if (due) text_add(&json, ", \"due_step\": %lld", (long long)due);
    const Snapshot s = { .model = &t->m, .optimizer = &t->o, .step = step, .progress = json.at, .options = "{}" };
    const Saved saved = checkpoint_save(folder, &s, keep, &e);
    free(json.at);
    return saved == SAVED_ALL;
}
static int save(const char *folder, const Trainee *t, int64_t step, int keep, int64_t major) {
    Error e = { 0 };
    const Progress p = progress_at(step);
    const int ok = save_with(folder, t, &p, "{\"lr\": 0.001}", (Keep){ keep, 0, major, 0 }, &e);
    check(ok, "step %lld is saved: %s", (long long)step, e.text);
    return ok;
}
static char *step_file(const char *folder, int64_t step, const char *name) {
    return text_format("%s/state/step-%08lld/%s", folder, (long long)step, name);
}

/* A checkpoint whose optimizer state has other types than the reader's: a warning. */
static int conversions;
static void count_conversion(const char *text) {
    conversions += strstr(text, "in BF16 and was converted") != NULL || strstr(text, "in F32 and was converted") != NULL
                || strstr(text, "no master copy") != NULL || strstr(text, "which is dropped") != NULL;
}
static void conversion(void) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    const Device *dev = device_find("cpu-bf16");
    for (int lean = 0; lean < 2; lean++) {
        char *folder = text_format("%s/convert-%d", scratch(), lean);
        const Progress p = progress_at(7);
        Trainee a, b;
        Error e = { 0 };
        open_trainee(&a, "cpu-bf16", &c, (TraineeOptions){ .B = 2, .T = 8, .seed = 1 }, lean);
        open_trainee(&b, "cpu-bf16", &c, (TraineeOptions){ .B = 2, .T = 8, .seed = 2 }, !lean);
        const size_t n = a.m.manifest.total;
        double *v[2] = { mem_alloc(n * sizeof **v), mem_alloc(n * sizeof **v) };
        for (int s = 0; s < 5; s++) trainee_do(&a, s);
        check(save_with(folder, &a, &p, "{}", (Keep){ 2, 0, 0, 0 }, &e), "saved %s", e.text);
        Checkpoint *from = checkpoint_open(folder, &any_run, &e);
        conversions = 0;
        warn_hook(count_conversion);
        check(from && checkpoint_load(from, &b.m, &b.o, &e), "loaded with other types: %s", e.text);
        warn_hook(NULL);
        check(conversions == 2, "moments are converted, a master copy is made or dropped; %d warnings", conversions);
        for (int i = 0; i < 2; i++) {
            const Trainee *t = i ? &b : &a;
            if (t->o.moments == REAL) dev->reals_to_double(v[i], t->o.v, n);
            else dev->to_double(v[i], t->o.v, n);
        }
        check_error(relative_error(v[1], v[0], n), lean ? 0 : 0x1p-8, "v is restored, %s", lean ? "exact" : "rounded");
        checkpoint_close(from), trainee_close(&a), trainee_close(&b), free(v[0]), free(v[1]), free(folder);
    }
}

/* Muon's momentum is resumed in another type; from 8 bits in f32 with the same values. */
static double *momentum_of(const Trainee *t, size_t *n) {
    const Tensor *x = t->m.manifest.at;
    while (!muon_updates(&t->o, x)) x++;
    const int i = (int)(x - t->m.manifest.at);
    const Segment s = optimizer_segment(&t->o, &t->m, i);
    double *value = mem_alloc((*n = x->count) * sizeof *value), *scale = mem_alloc(x->count * sizeof *scale);
    signed char *code = mem_alloc(x->count);
    if (t->o.moments == REAL) t->m.dev->reals_to_double(value, real_at(&t->m, t->o.m, s.offset), *n);
    if (t->o.moments == FLOATX) t->m.dev->to_double(value, float_at(&t->m, t->o.m, s.offset), *n);
    if (t->o.moments == INT8) {
        t->m.dev->download(code, (char *)t->o.codes + optimizer_offset(s, STATE_CODES), *n);
        t->m.dev->to_double(scale, float_at(&t->m, t->o.scales, optimizer_offset(s, STATE_SCALES)), *n / MOMENT_BLOCK);
        for (size_t k = 0; k < *n; k++) value[k] = code[k] * scale[k / MOMENT_BLOCK];
    }
    free_each(scale, code);
    return value;
}
static void to_and_from_8_bits(void) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    const TraineeOptions o = { .B = 2, .T = 8, .seed = 1, .momentum = 0.9f };
    for (int from = REAL; from <= INT8; from++)
        for (int to = REAL; to <= INT8; to++) {
            if ((from == INT8) == (to == INT8)) continue;
            char *folder = text_format("%s/moments-%d-%d", scratch(), from, to);
            const Progress p = progress_at(7);
            Trainee a, b;
            Error e = { 0 };
            size_t n;
            open_trainee(&a, "cpu-bf16", &c, o, (Dtype)from);
            open_trainee(&b, "cpu-bf16", &c, o, (Dtype)to);
            for (int s = 0; s < 3; s++) trainee_do(&a, s);
            check(save_with(folder, &a, &p, "{}", (Keep){ 2, 0, 0, 0 }, &e), "saved %s", e.text);
            Checkpoint *file = checkpoint_open(folder, &any_run, &e);
            warn_hook(count_conversion);
            check(file && checkpoint_load(file, &b.m, &b.o, &e), "loaded as %d, not %d: %s", to, from, e.text);
            warn_hook(NULL);
            double *x = momentum_of(&a, &n), *y = momentum_of(&b, &n);
            check_error(relative_error(y, x, n), from == INT8 ? to == REAL ? 0 : 0x1p-8 : 2e-2,
                        "momentum of type %d, resumed as %d", from, to);
            trainee_do(&b, 3);
            checkpoint_close(file), trainee_close(&a), trainee_close(&b), free_each(x, y, folder);
        }
}

/* Mean squares of Muon's updates that only one of two has: a warning, and they start at zero. */
static int dropped, anew;
static void count_squares(const char *text) {
    dropped += strstr(text, "mean squares of Muon's updates, which are dropped (-wn 0)") != NULL;
    anew += strstr(text, "no mean squares of Muon's updates (-wn)") != NULL;
}
static void squares_of_one(void) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    const Device *dev = device_find("cpu-f32");
    for (int has = 0; has < 2; has++) {
        char *folder = text_format("%s/squares-%d", scratch(), has);
        const Progress p = progress_at(7);
        Trainee a, b;
        Error e = { 0 };
        const TraineeOptions o = { .B = 2, .T = 8, .seed = 1, .momentum = 0.9f };
        TraineeOptions with = o;
        with.row_decay = 0.9f;
        open_trainee(&a, "cpu-f32", &c, has ? with : o, 0);
        open_trainee(&b, "cpu-f32", &c, has ? o : with, 0);
        trainee_do(&a, 0);
        check(save_with(folder, &a, &p, "{}", (Keep){ 2, 0, 0, 0 }, &e), "saved %s", e.text);
        Checkpoint *from = checkpoint_open(folder, &any_run, &e);
        dropped = anew = 0;
        warn_hook(count_squares);
        check(from && checkpoint_load(from, &b.m, &b.o, &e), "loaded with and without squares: %s", e.text);
        warn_hook(NULL);
        check(dropped == has && anew == !has, "squares that are dropped are named %d times, that are missing %d times",
              dropped, anew);
        const size_t n = optimizer_count(&b.o, &b.m, STATE_SQUARES);
        double *squares = mem_alloc((n + 1) * sizeof *squares), sum = 0;
        if (!has) dev->reals_to_double(squares, b.o.squares, n);
        for (size_t i = 0; i < n && !has; i++) sum += squares[i];
        check((n > 0) == !has && sum == 0, "they start at zero: %zu", n);
        checkpoint_close(from), trainee_close(&a), trainee_close(&b), free(squares), free(folder);
    }
}

static void round_trip(const char *device, Dtype lean, float momentum) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    char *folder = text_format("%s/run-%s-%d%s", scratch(), device, (int)lean, momentum > 0 ? "-muon" : "");
    const float row_decay = lean && momentum > 0 ? 0.9f : 0;
    const Device *dev = device_find(device);
    Trainee a, b;
    Error e = { 0 };
    Config read;
    Progress p = progress_at(42), q;
    double bias[16], back[16];
    const int absorbs = momentum > 0 && momentum < 0.9f;
    open_trainee(&a, device, &c, (TraineeOptions){ .B = 2, .T = 8, .seed = 1, .momentum = momentum,
                                           .row_decay = row_decay, .absorbs = absorbs, .most = 4 }, lean);
    for (int s = 0; s < 5; s++) trainee_do(&a, s);
    for (int i = 0; i < 16; i++) bias[i] = (float)normal();
    dev->reals_from_double(a.m.bias, bias, 16);
    check(save_with(folder, &a, &p, "{\"lr\": 0.001, \"train\": \"a \\\"b\\\"\"}", (Keep){ 2, 0, 0, 0 }, &e),
          "%s: saved %s", device, e.text);

    Checkpoint *from = checkpoint_open(folder, &any_run, &e);
    check(from != NULL, "%s: opened %s", device, e.text);
    if (from) {
        /* other weights, to be overwritten */
        open_trainee(&b, device, &c, (TraineeOptions){ .B = 2, .T = 8, .seed = 99, .momentum = momentum,
                                               .row_decay = row_decay, .absorbs = absorbs, .most = 4 }, lean);
        check(trainee_hash(&a) != trainee_hash(&b), "%s: before loading they differ", device);
        read = checkpoint_config(from);
        check(config_same(&read, &c, &e), "%s: the configuration is restored", device);
        check(checkpoint_load(from, &b.m, &b.o, &e), "%s: loaded %s", device, e.text);
        check(progress_from_json(checkpoint_run(from), &q, &e), "%s: %s", device, e.text);
        dev->reals_to_double(back, b.m.bias, 16);
        check(trainee_hash(&a) == trainee_hash(&b), "%s: weights, moments, master copy are the same bits", device);
        check(!memcmp(bias, back, sizeof bias), "%s: the routers' biases are restored bit for bit", device);
        check(same_progress(&p, &q), "%s: and the progress with its windows", device);
        check(b.o.updates == p.updates, "%s: Adam's clock goes on", device);
        check(!strcmp(json_string(json_get(checkpoint_options(from), "train"), ""), "a \"b\""),
              "%s: the options are restored", device);
        b.o.updates = a.o.updates;
        trainee_do(&a, 5);
        trainee_do(&b, 5);
        check(trainee_hash(&a) == trainee_hash(&b), "%s: the next step is the same", device);
        trainee_close(&b);
    }
    checkpoint_close(from), trainee_close(&a), free(folder);
}

/* Overwrites, cuts or removes a file of a step folder; or its run.json. */
static void damage(const char *folder, int64_t step_number, int kind) {
    static const char *file[] = { "model.safetensors", "optimizer.safetensors", "run.json", "optimizer.safetensors" };
    char *path = step_file(folder, step_number, file[kind]);
    size_t n;
    Error e = { 0 };
    char *data = file_read(path, &n, &e);
    if (data && kind == 0) data[n - 5] ^= 16;
    check(data && (kind == 3 ? !unlink(path) : file_write(path, data, kind == 1 ? n - 1 : kind == 2 ? n / 2 : n, &e)),
          "%s could be damaged", path);
    free(data), free(path);
}
static void fallback(void) {
    static const char *const what[] = { "a flipped bit in the weights",
                                        "a lost byte of the optimizer's state", "half a run.json", "a missing file" };
    const Config c = config_of("m1:c16h4d4e4k2f12a4x2n0");
    Trainee t;
    Error e;
    open_trainee(&t, "cpu-f32", &c, (TraineeOptions){ .B = 1, .T = 8, .seed = 1 }, 0);
    for (int kind = 0; kind < 4; kind++) {
        char *folder = text_format("%s/damaged-%d", scratch(), kind);
        for (int i = 1; i <= 3; i++) save(folder, &t, 10 * i, 3, 0);
        damage(folder, 30, kind);
        damage(folder, 20, (kind + 1) % 4);
        const int stderr_copy = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);   /* without its warnings */
        fflush(stderr);
        dup2(null, STDERR_FILENO);
        Checkpoint *from = checkpoint_open(folder, &any_run, &e);
        check(from && checkpoint_load(from, &t.m, &t.o, &e)
              && json_int(json_get(checkpoint_run(from), "step"), 0) == 10, "%s: the newest intact", what[kind]);
        checkpoint_close(from);
        damage(folder, 10, kind);
        from = checkpoint_open(folder, &any_run, &e);
        check(!from && strstr(e.text, "step-00000010"), "%s in all checkpoints: refused, naming the file: %s",
              what[kind], from ? "" : e.text);
        checkpoint_close(from);
        fflush(stderr);
        dup2(stderr_copy, STDERR_FILENO);
        close(stderr_copy), close(null);
        save(folder, &t, 30, 3, 0);                       /* the same step again replaces the damaged one */
        check((from = checkpoint_open(folder, &any_run, &e)) != NULL,
              "%s: saving again replaces the damaged checkpoint", what[kind]);
        checkpoint_close(from), free(folder);
    }
    trainee_close(&t);
}

static int has_step(const char *folder, int64_t number) {
    char *path = step_file(folder, number, "run.json");
    const int there = is_file(path);
    free(path);
    return there;
}
static void pruning(void) {
    const Config c = config_of("m1:c16h4d4e4k2f12a4x2n0");
    char *folder = scratch_path("pruned"), *top = text_format("%s/model.safetensors", folder);
    char *stale = text_format("%s/state/.tmp-step-3", folder);
    Error e;
    struct stat s;
    Trainee t;
    open_trainee(&t, "cpu-f32", &c, (TraineeOptions){ .B = 1, .T = 8, .seed = 1 }, 0);
    check(checkpoint_exists(folder, &e) == HOLDS_NOTHING, "a missing folder holds nothing");
    check(folder_make(stale, &e) && checkpoint_exists(folder, &e) == HOLDS_NOTHING, "a partial save is nothing");
    check(checkpoint_lock(folder, &e) && !is_folder(stale), "a killed save's folder is deleted by the next trainer");
    for (int i = 1; i <= 9; i++) save(folder, &t, i, 2, 4);
    int right = 1;
    for (int i = 1; i <= 9; i++) right &= has_step(folder, i) == (i >= 8 || i == 4);
    check(right, "of nine checkpoints the two newest and every fourth are kept");
    check(!stat(top, &s) && s.st_nlink == 2, "the newest weights have a second link at the top of the folder");
    check(checkpoint_exists(folder, &e) == HOLDS_STATE, "the folder holds a run");
    save(folder, &t, 10, 1, 0);
    check(has_step(folder, 10) && !has_step(folder, 9) && !has_step(folder, 8) && !has_step(folder, 4),
          "a single checkpoint can be kept");
    check(checkpoint_save_best(folder, &t.m, 10, NULL, NULL, &e), "the best weights are saved");
    check(checkpoint_clear(folder, &e) && checkpoint_exists(folder, &e) == HOLDS_NOTHING && !is_file(top),
          "a run can be deleted, and another starts there even if it is killed before its first save");

    for (int i = 1; i <= 9; i++) { /* saved by time between steps that are multiples of 3 */
        const Progress p = progress_at(i == 9 ? 10 : i);
        check(save_with(folder, &t, &p, "{}", (Keep){ 2, 3, 0, 0 }, &e), "saved: %s", e.text);
    }
    right = 1;
    for (int i = 1; i <= 10; i++) right &= has_step(folder, i) == (i == 3 || i == 6 || i == 10);
    check(right, "the two newest multiples of -n stay, and of the others the newest alone");
    checkpoint_clear(folder, &e);

    for (int i = 3; i <= 9; i++)
        check(i == 6 || save_late(folder, &t, i, i == 7 ? 6 : 0, (Keep){ 2, 3, 0, 0 }), "saved step %d", i);
    check(!has_step(folder, 3) && has_step(folder, 7) && !has_step(folder, 8) && has_step(folder, 9),
          "a checkpoint that was put off stays in place of the one that was due");
    for (int i = 10; i <= 16; i++)
        check(save_late(folder, &t, i, i == 13 ? 12 : 0, (Keep){ 1, 3, 6, 0 }), "saved step %d", i);
    right = 1;
    for (int i = 3; i <= 16; i++) right &= has_step(folder, i) == (i == 7 || i == 12 || i == 13 || i >= 15);
    check(right, "for ever, if that was to (-nm)");
    checkpoint_clear(folder, &e);

    for (int i = 1; i <= 6; i++) {
        const Progress p = progress_at(i + 5);
        check(save_with(folder, &t, &p, "{}", (Keep){ 1, 0, 0, i + 5 < 8 ? i + 5 : 8 }, &e), "saved: %s", e.text);
    }
    right = 1;
    for (int i = 6; i <= 11; i++) right &= has_step(folder, i) == (i == 8 || i == 11);
    check(right && checkpoint_newest(folder, 10) == 8 && checkpoint_newest(folder, 7) == -1,
          "the newest from before a divergence stays beside the newest");
    const Wanted before = { progress_usable, NULL, 10 }, none = { progress_usable, NULL, 7 };
    check(!checkpoint_open(folder, &none, &e) && strstr(e.text, "the oldest is of step 8"), "none of then: %s", e.text);
    Checkpoint *from = checkpoint_open(folder, &before, &e);
    check(from && json_int(json_get(checkpoint_run(from), "step"), 0) == 8 && checkpoint_drop_later(from, &e)
          && has_step(folder, 8) && !has_step(folder, 11), "it is resumed, and the later one dropped: %s", e.text);
    checkpoint_close(from);
    checkpoint_clear(folder, &e);

    double bad = NAN; /* weights that are not finite must replace nothing */
    save(folder, &t, 11, 2, 0);
    t.m.dev->from_double(t.m.p.final_norm, &bad, 1);
    const Progress p = progress_at(12);
    check(!save_with(folder, &t, &p, "{}", (Keep){ 2, 0, 0, 0 }, &e)
          && strstr(e.text, "model.norm.weight"), "weights that are not finite are not saved: %s", e.text);
    check(has_step(folder, 11) && !has_step(folder, 12) && is_file(top), "the previous checkpoint is kept");
    trainee_close(&t), free(folder), free(top), free(stale);
}

static void try_lock(void *folder) {
    Error e;
    if (checkpoint_lock(folder, &e)) return;
    fail_with(&e, EXIT_DISK);
}
static void lock(void) {
    char *folder = scratch_path("locked"), *own = text_format("process %ld", (long)getpid()), said[512];
    Error e;
    check(in_child(try_lock, folder, said, sizeof said) == 0, "a free folder can be locked");
    check(checkpoint_lock(folder, &e), "the lock of a process that has ended is free");
    check(in_child(try_lock, folder, said, sizeof said) == EXIT_USAGE && strstr(said, "in use") && strstr(said, own),
          "a second trainer is refused, naming the first: %s", said);
    char *file = scratch_path("not-a-folder");
    check(file_write(file, "x", 1, &e) && !checkpoint_lock(file, &e) && !e.code && strstr(e.text, "not a folder"),
          "a file cannot be locked like a folder");
    free(folder), free(own), free(file);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void sums(void) {
    char text[100];
    uint32_t parts = 0;
    for (int i = 0; i < 100; i++) text[i] = (char)(7 * i + 3);
    check(crc32c(0, "123456789", 9) == 0xe3069283u, "CRC-32C of 123456789 is e3069283");
    check(crc32c(0, "", 0) == 0, "CRC-32C of nothing is 0");
    for (int i = 0; i < 100; i += 9) parts = crc32c(parts, text + i, (size_t)(100 - i < 9 ? 100 - i : 9));
    check(parts == crc32c(0, text, 100), "CRC-32C can be computed piece by piece");
    check(hash_bytes(0, "", 0) == 0xcbf29ce44fd0bfc1u && hash_bytes(0, "mixture of experts", 18) == 0x17defe3bbc473e16u
          && hash_bytes(5, text, 100) == 0x3ae5de80744d1fc9u,
          "fingerprints of all versions: %016llx %016llx %016llx", (unsigned long long)hash_bytes(0, "", 0),
          (unsigned long long)hash_bytes(0, "mixture of experts", 18), (unsigned long long)hash_bytes(5, text, 100));
    int distinct = 1;
    const uint64_t full = hash_bytes(0, text, 100);
    for (int bit = 0; bit < 800; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        distinct &= hash_bytes(0, text, 100) != full;
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    check(distinct, "every flipped bit changes the fingerprint");
}

static void write_too_much(void *path) {
    const struct rlimit most = { 1000, 1000 };
    Error e;
    char *data = mem_alloc(5000);
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &most)) _exit(1);
    const int written = file_write(path, data, 5000, &e);
    fprintf(stderr, "%s", e.text);
    fflush(stderr);
    _exit(written ? 2 : 3);
}
static int holds(const char *path, const char *text) {
    Error e;
    size_t n;
    char *data = file_read(path, &n, &e);
    const int same = data && n == strlen(text) && !memcmp(data, text, n);
    free(data);
    return same;
}
static int is_alone(const char *folder) {                   /* hidden files included */
    char *command = text_format("test \"$(ls -A '%s')\" = target", folder);
    const int yes = !system(command);
    free(command);
    return yes;
}
static void atomic_files(void) {
    char *folder = scratch_path("files"), *path = text_format("%s/target", folder);
    char *below = text_format("%s/target/below", folder), said[512];
    Error e;
    check(folder_make(folder, &e) && file_write(path, "old", 3, &e) && holds(path, "old"), "a file is written");
    check(in_child(write_too_much, path, said, sizeof said) == 3 && strstr(said, "target"),
          "a full disk is an error that names the file: %s", said);
    check(holds(path, "old") && is_alone(folder), "the file is unchanged, and no temporary file remains");
    check(file_write(path, "new and longer", 14, &e) && holds(path, "new and longer")
          && is_alone(folder), "it is replaced as a whole");
    check(!file_write(below, "x", 1, &e) && strstr(e.text, "below"), "a path through a file is an error: %s", e.text);
    check(!folder_make(below, &e) && strstr(e.text, "target"), "a folder below a file is an error: %s", e.text);
    if (geteuid() != 0) {
        check(!chmod(folder, 0500) && !file_write(path, "x", 1, &e) && holds(path, "new and longer"),
              "a read-only folder keeps its file: %s", e.text);
        chmod(folder, 0700);
    } else skip("root may write anywhere: read-only folders");
    free(folder), free(path), free(below);
}
void test_checkpoints(void) {
    PART(round_trip("cpu-f32", REAL, 0)); PART(round_trip("cpu-bf16", REAL, 0));
    PART(round_trip("cpu-bf16", FLOATX, 0)); PART(round_trip("cpu-f64", REAL, 0));
    PART(round_trip("cpu-f32", REAL, 0.95f)); PART(round_trip("cpu-bf16", FLOATX, 0.95f));
    PART(round_trip("cpu-bf16", FLOATX, 0.8f)); PART(round_trip("cpu-bf16", INT8, 0.95f));
    PART(round_trip("cpu-f32", INT8, 0.8f)); PART(conversion()); PART(to_and_from_8_bits());
    PART(squares_of_one()); PART(fallback());
    PART(pruning()); PART(lock());
    PART(sums()); PART(atomic_files());
}
