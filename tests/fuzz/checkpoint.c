/* checkpoint.c: the state of a run: run.json, then header and data of model.safetensors and of
 * optimizer.safetensors. In run.json @b0, @c0, @b1 and @c1 stand for the sizes and checksums of the
 * two, which are right wherever they are written so: the bounds behind them are reached. So is the
 * checksum at the end of run.json. What is accepted is loaded into a model, as a resumed run does.
 * Texts of restored settings live as long as the program. */
#define _GNU_SOURCE
#include "tests/fuzz/support/fuzz.h"
#include "llmc/files/checkpoint.h"
#include "llmc/model/plan.h"
#include "llmc/model/routers.h"
#include "llmc/run/progress.h"
#include "llmc/run/settings.h"
#include <math.h>
#include <sys/stat.h>

const int fuzz_is_json = 1;

#define SEAL ", \"crc32c\": \""             /* begins the checksum at the end of run.json */

static Model m;
static Optimizer o;

static void add_file(Text *input, const char *name) {
    char *path = text_format("%s/state/step-00000001/%s", fuzz_folder(), name);
    uint64_t header;
    size_t bytes;
    Error e;
    char *file = file_read(path, &bytes, &e);
    if (!file) fail(EXIT_INPUT, "%s", e.text);
    memcpy(&header, file, 8);
    text_add_string(input, PART_END);
    text_add_bytes(input, file + 8, header);
    text_add_string(input, PART_END);
    text_add_bytes(input, file + 8 + header, bytes - 8 - header);
}
/* FUZZ_SEEDS: a folder for a seed, of what the program itself writes. */
static void seed(const char *folder) {
    Error e;
    Text input = { 0 }, progress = { 0 }, options = { 0 };
    static char *nothing[] = { "train_moe", NULL };
    Settings s;
    Progress p = { .step = 1, .samples = 2, .tokens = 8, .updates = 1, .best = { .loss = 2.5, .step = 1 }, .seed = 1 };
    settings_parse(&s, 1, nothing);
    settings_json(&s, &options);
    window_score(&p.loss, 2);
    progress_to_json(&p, "cpu-f32", &progress);
    model_initialize(&m, 1);
    optimizer_start(&o, &m);
    const Snapshot all = { .model = &m, .optimizer = &o, .step = 1, .progress = progress.at, .options = options.at };
    if (checkpoint_save(fuzz_folder(), &all, (Keep){ 1, 0, 0, 0 }, &e) != SAVED_ALL) fail(EXIT_DISK, "%s", e.text);
    char *path = text_format("%s/state/step-00000001/run.json", fuzz_folder()),
        *to = text_format("%s/checkpoint", folder);
    size_t bytes;
    char *run = file_read(path, &bytes, &e);
    for (char *c = run, *number, *end; c && (number = strstr(c, "\"bytes\": ")); c = end) {
        static int file;
        number += 9;
        text_add_bytes(&input, c, (size_t)(number - c));
        text_add(&input, "@b%d, \"crc32c\": @c%d", file, file);
        file++;
        end = strchr(number, '}');
        run = end;
    }
    text_add_string(&input, run);
    add_file(&input, "model.safetensors");
    add_file(&input, "optimizer.safetensors");
    if (!file_write(to, input.at, input.length, &e)) fail(EXIT_DISK, "%s", e.text);
}
void fuzz_start(void) {
    Config c;
    Error e;
    char *state = text_format("%s/state", fuzz_folder()), *step = text_format("%s/step-00000001", state);
    mkdir(state, 0777);
    mkdir(step, 0777);
    if (!config_parse(&c, "m1:c4h2d2e2k1f2a2x1n0", &e)) fail(EXIT_USAGE, "%s", e.text);
    c.vocab = 5, c.context = 4;
    model_plan_training(&m, device_find("cpu-f32"), &c, 1, 4, 0, 1, REAL, NULL);
    optimizer_plan(&o, &m, 1, REAL, (MuonOptions){ 0 });
    fuzz_allocate(&m);
    if (getenv("FUZZ_SEEDS")) seed(getenv("FUZZ_SEEDS"));
}

static void add_run(Part run, const uint64_t *bytes, const uint32_t *crc) {
    Text t = { 0 };
    text_add_bytes(&t, "", 0);
    for (const char *c = run.at, *end = c + run.bytes; c < end; c++)
        if (*c == '@' && end - c >= 3 && (c[1] == 'b' || c[1] == 'c') && (c[2] == '0' || c[2] == '1')) {
            const int file = c[2] - '0';
            text_add(&t, "%llu", c[1] == 'b' ? (unsigned long long)bytes[file] : (unsigned long long)crc[file]);
            c += 2;
        } else text_add_bytes(&t, c, 1);
    char *sealed = strstr(t.at, SEAL);
    for (char *next; sealed && (next = strstr(sealed + 1, SEAL)); ) sealed = next;
    if (sealed) { t.length = (size_t)(sealed - t.at); json_seal(&t); }
    fuzz_file("state/step-00000001/run.json", t.at, t.length);
    free(t.at);
}

/* What a run that resumes needs. */
static int usable(const JsonValue *run, const void *of, Error *e) {
    static char *nothing[] = { "train_moe", NULL };
    Settings s;
    Progress p;
    (void)of;
    settings_parse(&s, 1, nothing);
    if (!settings_restore(&s, json_get(run, "options"), e) || !progress_from_json(run, &p, e)) return 0;
    fuzz_check(p.loss.count <= WINDOW && p.loss.next >= 0 && p.loss.next < WINDOW && p.samples >= 0 && p.step >= 0
               && p.updates >= 0 && p.updates <= p.step);
    return 1;
}

/* What Adam divides by is not negative, and nothing is NaN or infinite. */
static void check_state(void) {
    const float *weights = (const float *)m.params, *mean = o.m, *square = o.v;
    for (int i = 0; i < m.manifest.count; i++) {
        const Tensor *t = &m.manifest.at[i];
        for (size_t k = t->offset; k < t->offset + t->count; k++)
            fuzz_check(isfinite(weights[k]) && isfinite(mean[k]) && isfinite(square[k]) && square[k] >= 0);
    }
    for (int i = 0; i < (int)router_offset(&m, m.routers); i++) fuzz_check(isfinite(((const float *)m.bias)[i]));
    fuzz_check(o.updates >= 0);
}
void fuzz_one(const uint8_t *data, size_t size) {
    static const char *const names[] = { "state/step-00000001/model.safetensors",
                                         "state/step-00000001/optimizer.safetensors" };
    Part rest = { (const char *)data, size };
    const Part run = fuzz_part(&rest);
    uint64_t sizes[2];
    uint32_t crc[2];
    Error e = { 0 };
    fuzz_may_leave_memory();
    for (int i = 0; i < 2; i++) {
        size_t bytes;
        const Part header = fuzz_part(&rest), values = fuzz_part(&rest);
        char *file = fuzz_tensors(header, values, &bytes);
        sizes[i] = bytes;
        crc[i] = crc32c(0, file, bytes);
        fuzz_file(names[i], file, bytes);
        free(file);
    }
    add_run(run, sizes, crc);
    const Wanted wanted = { usable, NULL, 0 };
    Checkpoint *from = checkpoint_open(fuzz_folder(), &wanted, &e);
    if (!from) { fuzz_check(*e.text); return; }
    const Config c = checkpoint_config(from);
    fuzz_check(config_check(&c, &e) && checkpoint_options(from));
    if (checkpoint_load(from, &m, &o, &e)) check_state();
    else fuzz_check(*e.text);
    checkpoint_close(from);
}
