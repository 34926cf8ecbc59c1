/* test_codes.c: models whose weights are in codes of 8 or 4 bits (infer_moe -pe). */
#include "models.h"
#include "trainee.h"
#include "tests/test.h"
#include "llmc/files/hf.h"
#include "llmc/model/batch.h"
#include "llmc/model/codes.h"
#include "llmc/model/decode.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include <math.h>

enum { B = 2, T = 24, FIRST = 9 };

/* A device that keeps codes, but has no operations that decode from them. */
static int fits_nothing(int N, int C, int F, int E, int K) { (void)N, (void)C, (void)F, (void)E, (void)K; return 0; }
static const DecodeOperations none = { .fits = fits_nothing };
static Device keeper(const char *name) {
    Device d = *device_find(name);
    d.decode = &none;
    return d;
}

/* The logits of a pass, (B*T,V), then those of decoding the same, (B,V) for each further token. */
static double *logits_of(Model *m, const int *tokens) {
    const Device *dev = m->dev;
    const size_t V = (size_t)m->config.vocab, row = B * V;
    double *all = mem_alloc((B*T + B*(T - FIRST + 1)) * V * sizeof *all), *to = all + B*T*V;
    int head[B * FIRST], next[B];
    Decoder d;
    model_batch(m, tokens, NULL, B, T);
    model_forward(m);
    model_logits(m, 0, B * T);
    dev->to_double(all, m->s.logits, B*T*V);
    check(decoder_open(&d, dev, &m->config, B, T, m), "memory");
    for (int b = 0; b < B; b++) memcpy(head + b * FIRST, tokens + b * T, FIRST * sizeof *head);
    for (int t = FIRST; t <= T; t++, to += row) {
        for (int b = 0; b < B; b++) next[b] = tokens[b * T + t - 1];
        check(t == FIRST ? decoder_feed(&d, head, FIRST) : decoder_feed(&d, next, 1), "fits");
        dev->to_double(to, d.logits, row);
    }
    decoder_close(&d);
    return all;
}
static size_t count_of(const Config *c) { return (size_t)((B*T + B*(T - FIRST + 1)) * c->vocab); }
/* folder NULL: initial weights. *bytes: of weights. free() the result. */
static double *loaded(const Device *dev, const Config *c, const char *folder, const int *tokens, size_t *bytes) {
    Error e;
    Model m;
    model_plan_inference(&m, dev, c, B, T, 0, NULL);
    check(model_allocate(&m), "memory");
    if (folder) check(hf_load_weights(&m, folder, &e), "%s: %s", folder, e.text);
    else model_initialize(&m, 7);
    *bytes = m.arena.category[MEM_WEIGHTS];
    double *logits = logits_of(&m, tokens);
    model_free(&m);
    return logits;
}
static void random_tokens(int *tokens, const Config *c) {
    for (int i = 0; i < B * T; i++) tokens[i] = (int)(uniform() * c->vocab);
}

/* Codes that are kept, and weights that are rounded to them, are the same numbers; these are near
 * those that they were made of. */
static void kept_or_rounded(const char *descriptor) {
    const Device *plain = device_find("cpu-f32"), kept = keeper("cpu-f32");
    Config exact = trainee_config(descriptor, 67, 64), c = exact;
    int tokens[B * T];
    size_t bytes[3], n = count_of(&c);
    c.weights = OF_FP8;
    random_tokens(tokens, &c);
    double *want = loaded(plain, &exact, NULL, tokens, &bytes[0]);
    double *rounded = loaded(plain, &c, NULL, tokens, &bytes[1]), *codes = loaded(&kept, &c, NULL, tokens, &bytes[2]);
    check(!memcmp(rounded, codes, n * sizeof *codes), "%s: the same from codes and rounded to them", descriptor);
    const double error = relative_error(rounded, want, n);
    check(error > 2e-3 && error < 0.1, "%s: 8 bits change the logits by %.1e", descriptor, error);
    check(bytes[1] > bytes[0] && (bytes[2] < bytes[0] || c.universal),
          "%s: weights have %zu bytes, rounded %zu, in codes %zu", descriptor, bytes[0], bytes[1], bytes[2]);
    free_each(want, rounded, codes);
}

/* In bf16 a value of a code is exact, and its code is itself. */
static void coded_once(void) {
    const Device *dev = device_find("cpu-bf16");
    Config c = trainee_config("m2:c128h4e4k2f144a4x2n0", 67, 64);
    Model m;
    c.weights = OF_FP8;
    model_plan_inference(&m, dev, &c, B, T, 0, NULL);
    check(model_allocate(&m), "memory");
    model_initialize(&m, 7);
    const size_t bytes = m.manifest.total * dev->floatX_size;
    void *before = mem_alloc(bytes);
    memcpy(before, m.params, bytes);
    for (int i = 0; i < m.manifest.count; i++) codes_keep(&m, i, 0);
    check(!memcmp(before, m.params, bytes), "values of codes are their own codes");
    free(before);
    model_free(&m);
}

/* gpt-oss as published: codes of 4 bits as in the file, and rows of gate and up apart. */
static void from_files(const char *folder, Format weights) {
    const Device *plain = device_find("cpu-f32"), kept = keeper("cpu-f32");
    Error e;
    Config c;
    int tokens[B * T];
    size_t bytes[2];
    check(hf_load_config(folder, &c, &e), "%s: %s", folder, e.text);
    c.weights = weights;
    check(hf_in_mxfp4(plain, &c, folder) == (strstr(folder, "mxfp4") != NULL), "%s: in MXFP4 or not", folder);
    if (strstr(folder, "mxfp4")) c.experts_in = OF_MXFP4;
    random_tokens(tokens, &c);
    double *wide = loaded(plain, &c, folder, tokens, &bytes[0]), *codes = loaded(&kept, &c, folder, tokens, &bytes[1]);
    check(!memcmp(wide, codes, count_of(&c) * sizeof *wide), "%s, -pe %d: the same from codes", folder, weights);
    check(bytes[1] < bytes[0], "%s: codes have %zu bytes, numbers %zu", folder, bytes[1], bytes[0]);
    free_each(wide, codes);
}

static void misfits(void) {
    Config c = trainee_config("m2:c128h4e4k2f136a4x2n0", 67, 64);
    Model m;
    for (int weights = OF_FLOATX; weights <= OF_FP8; weights++) {
        c.weights = (Format)weights;
        model_plan_inference(&m, device_find("cpu-f32"), &c, 1, 1, 0, NULL);
        const Tensor *t = codes_misfit(&m);
        check(weights ? t && strstr(t->name, "mlp.output") : !t, "rows of 136 are no multiple of 16 codes: %s",
              t ? t->name : "");
        model_free(&m);
    }
}

void test_codes(void) {
    static const char *const models[] = { "m2:c128h4e4k2f256a4x2n0", "m2:c160h10e4k2f144a1n1s1", "d2:c144h9f80u1",
                                          "u3:c128h4e4k2f32a4x2n0", "m2:c64h4e5k2f16n2v2g1u1" };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) PART(kept_or_rounded(models[i]));
    PART(coded_once());
    PART(misfits());
    for (Format f = OF_FLOATX; f <= OF_FP8; f++) PART(from_files("tests/reference/families/gpt_oss_mxfp4", f));
}
