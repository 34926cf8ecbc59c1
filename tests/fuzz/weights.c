/* weights.c: the weights of a model folder, and what the operations make of any finite ones. The
 * first byte picks the number type of the file; the values of all tensors are the rest of the
 * input, again and again. Weights that are not finite are refused; a step of training with the
 * others may overflow, but not leave the defined behaviour of C. */
#include "llmc/model/batch.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include "tests/fuzz/support/fuzz.h"
#include "llmc/files/hf.h"
#include "llmc/files/pieces.h"

static Model m;
static const char *const dtypes[] = { "F32", "BF16", "F16", "F64", "I32" };
static const size_t sizes[] = { 4, 2, 2, 8, 4 };
enum { TYPES = 5 };
static Text header[TYPES];
static size_t data_bytes[TYPES];

void fuzz_start(void) {
    Config c;
    Error e;
    if (!config_parse(&c, "m2:c8h4d2e4k2f4a2x2n1v2", &e)) fail(EXIT_USAGE, "%s", e.text);
    c.vocab = 11, c.context = 4;
    model_plan_training(&m, device_find("cpu-f32"), &c, 1, 4, 0, 1, REAL, NULL);
    fuzz_allocate(&m);
    size_t count;
    const Piece *pieces = pieces_of(&m, &count);            /* kept until the end */
    for (int k = 0; k < TYPES; k++) {
        size_t at = 0;
        text_add(&header[k], "{");
        for (size_t i = 0; i < count; i++) {
            const Piece *p = &pieces[i];
            text_add(&header[k], "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", at ? "," : "", p->name, dtypes[k]);
            for (int d = 0; d < p->rank; d++)
                text_add(&header[k], d ? ",%llu" : "%llu", (unsigned long long)p->shape[d]);
            text_add(&header[k], "],\"data_offsets\":[%zu,%zu]}", at, at + p->count * sizes[k]);
            at += p->count * sizes[k];
        }
        text_add(&header[k], "}");
        data_bytes[k] = at;
    }
}

void fuzz_one(const uint8_t *data, size_t size) {
    static const int tokens[4] = { 1, 5, 10, 0 }, targets[4] = { 5, 10, 0, -1 };
    Part rest = { (const char *)data, size };
    const unsigned k = fuzz_choice(&rest, TYPES);
    Error e = { 0 };
    char *values = mem_alloc(data_bytes[k]);
    size_t bytes;
    for (size_t i = 0; i < data_bytes[k] && rest.bytes; i++) values[i] = rest.at[i % rest.bytes];
    char *file = fuzz_tensors((Part){ header[k].at, header[k].length }, (Part){ values, data_bytes[k] }, &bytes);
    const char *path = fuzz_file("model.safetensors", file, bytes);
    free(file), free(values);
    if (!hf_load_weights(&m, path, &e)) { fuzz_check(*e.text); return; }
    fuzz_check(strcmp(dtypes[k], "I32"));
    model_batch(&m, tokens, targets, 1, 4);
    m.balance_coef = 0.01f, m.z_coef = 0.01f;
    model_set_phase(&m, PHASE_ONLY);
    model_scale_loss(&m, 0.25);
    model_learn(&m, 1);
    model_logits(&m, 0, 1);
}
