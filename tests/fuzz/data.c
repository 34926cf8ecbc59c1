/* data.c: files of training data. The first byte says which: an llm.c shard as it is; tokens of 16
 * or 32 bits, with the header that belongs to them; nanoGPT's train.bin and val.bin; a text; a
 * folder of texts. All samples and validation batches of what is accepted are read: every id is at
 * most the largest, every target the id that follows. */
#include "tests/fuzz/support/fuzz.h"
#include "kernels/kernels.h"
#include "llmc/data/data.h"
#include <limits.h>
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RAW, SHARD16, SHARD32, NANOGPT, TEXT, FOLDER, FORMS };
static char *at[FORMS];
static const char *const names[FORMS] = { "raw.bin", "s16_train.bin", "s32_train.bin", "nano", "text.txt", "texts" };

void fuzz_start(void) {
    for (int i = 0; i < FORMS; i++) at[i] = text_format("%s/%s", fuzz_folder(), names[i]);
    mkdir(at[NANOGPT], 0777);
    mkdir(at[FOLDER], 0777);
}

static void write_shard(const char *name, Part tokens, int width) {
    char *file = mem_alloc(1024 + tokens.bytes);
    const uint32_t header[3] = { width == 2 ? 20240520 : 20240801, width == 2 ? 1 : 7,
                                 (uint32_t)(tokens.bytes / (size_t)width) };
    memcpy(file, header, sizeof header);
    if (tokens.bytes) memcpy(file + 1024, tokens.at, tokens.bytes);
    fuzz_file(name, file, 1024 + header[2] * (size_t)width);
    free(file);
}
static void write_files(unsigned form, Part rest) {
    const Part first = form == NANOGPT || form == FOLDER ? fuzz_part(&rest) : rest;
    if (form == SHARD16) write_shard(names[form], first, 2);
    else if (form == SHARD32) write_shard(names[form], first, 4);
    else if (form == NANOGPT) {
        fuzz_file("nano/train.bin", first.at, first.bytes);
        if (rest.bytes) fuzz_file("nano/val.bin", rest.at, rest.bytes); else fuzz_remove("nano/val.bin");
    } else if (form == FOLDER) {
        fuzz_file("texts/a", first.at, first.bytes);
        fuzz_file("texts/b.jsonl", rest.at, rest.bytes);
    } else fuzz_file(names[form], first.at, first.bytes);
}

static void read_all(Data *d) {
    enum { B = 2, T = 3 };
    int inputs[B * T], targets[B * T];
    const int most = data_max_id(d);
    Error e;
    if (most == INT_MAX || !data_check(d, T, most + 1, &e)) return;       /* run_open.c refuses such ids */
    fuzz_check(most == 0 || !data_check(d, T, most, &e));
    const int64_t samples = data_epoch_samples(d, T), batches = data_validation_batches(d, B, T);
    for (int64_t first = 0; first < samples + 3 && first < 200; first += B) {
        fuzz_check(data_batch(d, first, B, T, 7, inputs, targets, NULL, &e));
        for (int i = 0; i < B * T; i++)
            fuzz_check(inputs[i] >= 0 && inputs[i] <= most && targets[i] >= 0 && targets[i] <= most);
        for (int i = 0; i < B * T; i++) fuzz_check(i % T == T - 1 || targets[i] == inputs[i + 1]);
    }
    for (int64_t first = 0; first < batches && first < 100; first++) {
        fuzz_check(data_validation(d, first, B, T, inputs, targets, NULL, &e));
        for (int i = 0; i < B * T; i++)
            fuzz_check(inputs[i] >= 0 && inputs[i] <= most && targets[i] >= FILLER && targets[i] <= most);
    }
    fuzz_check(data_batch(d, INT64_C(1) << 40, B, T, 7, inputs, targets, NULL, &e));
}

void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const unsigned form = fuzz_choice(&rest, FORMS);
    Error e = { 0 };
    write_files(form, rest);
    Data *d = data_open(at[form], NULL, NULL, &e);
    if (d) {
        fuzz_check(data_tokens(d, DATA_TRAIN) > 0 && data_max_id(d) >= 0 && *data_description(d));
        read_all(d);
    } else fuzz_check(*e.text);
    data_close(d);
}
