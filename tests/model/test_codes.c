/* test_codes.c: models whose weights are in codes of 8 or 4 bits (infer_moe -pe). */
#include "models.h"
#include "trainee.h"
#include "tests/test.h"
#include "llmc/files/hf.h"
#include "llmc/files/pieces.h"
#include "llmc/files/safetensors.h"
#include "llmc/model/batch.h"
#include "llmc/model/codes.h"
#include "llmc/model/decode.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include <math.h>

enum { B = 2, T = 24, FIRST = 9 };

/* A device that keeps codes, but has no operations that decode from them. */
static int fits_nothing(int N, int C, int F, int E, int K, Format f) {
    (void)N, (void)C, (void)F, (void)E, (void)K, (void)f;
    return 0;
}
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

/* A scale of 4 bits that decoding one token does not know is refused, the one before it is not. */
static void scale_too_large(const char *folder) {
    static const struct { int byte; const char *words; } cases[] = {
        { MXFP4_SCALE_MAX, NULL }, { MXFP4_SCALE_MAX + 1, "down_proj_scales|scale 1 is 2^34|2^33" },
        { 255, "down_proj_scales|scale 1 is NaN" }, };
    const Device kept = keeper("cpu-f32");
    Error e;
    Config c;
    size_t bytes;
    char *from = text_format("%s/model.safetensors", folder), *file = file_read(from, &bytes, &e);
    Safetensors *s = safetensors_open(from, &e);
    const FileTensor *t = safetensors_find(s, "model.layers.0.mlp.experts.down_proj_scales");
    uint64_t header;
    memcpy(&header, file, sizeof header);
    check(t && hf_load_config(folder, &c, &e), "%s: %s", folder, e.text);
    c.experts_in = OF_MXFP4;
    for (size_t i = 0; t && i < COUNT(cases); i++) {
        Model m;
        file[sizeof header + header + t->begin + 1] = (char)cases[i].byte;
        char *path = scratch_put("scales.safetensors", file, bytes);
        model_plan_inference(&m, &kept, &c, B, T, 0, NULL);
        check(model_allocate(&m), "memory");
        const int loaded = hf_load_weights(&m, path, &e);
        check(loaded == !cases[i].words, "a scale of byte %d: %s", cases[i].byte, loaded ? "read" : e.text);
        if (!loaded && cases[i].words) check_message(&e, cases[i].words, "a scale too large");
        model_free(&m);
        free(path);
    }
    safetensors_close(s);
    free_each(from, file);
}

/* The file `from`, but matrices that `kept` has in codes become random codes of 8 bits, in the form
 * of DeepSeek-V3: scales for 128 x 128, drawn or (powers) all 1/512. */
static void write_in_codes(const Model *kept, const char *from, const char *to, int powers) {
    static const float power = 1.0F / 512;
    Error e = { 0 };
    Safetensors *s = safetensors_open(from, &e);
    size_t pieces, n = 0, count = safetensors_count(s);
    Piece *piece = pieces_of(kept, &pieces);
    FileTensor *out = mem_alloc(2 * count * sizeof *out);
    uint64_t (*blocks)[4] = mem_alloc(count * sizeof *blocks);
    char **names = mem_alloc(count * sizeof *names);
    for (size_t i = 0; i < count; i++) {
        const FileTensor *t = safetensors_at(s, i);
        size_t k = 0;
        out[n++] = *t;
        while (k < pieces && strcmp(piece[k].name, t->name)) k++;
        if (k == pieces || !kept->codes[piece[k].tensor].format) continue;
        for (int d = 0; d < t->rank; d++)
            blocks[i][d] = d < t->rank - 2 ? t->shape[d] : (t->shape[d] + FP8_BLOCK - 1) / FP8_BLOCK;
        out[n - 1].dtype = "F8_E4M3";
        names[i] = text_format("%s_scale_inv", t->name);
        out[n++] = (FileTensor){ .name = names[i], .dtype = "F32", .rank = t->rank, .shape = blocks[i] };
    }
    SafetensorsWriter *w = safetensors_create(to, out, n, NULL, 0, &e);
    for (size_t i = 0; i < count; i++) {
        const FileTensor *t = safetensors_at(s, i);
        unsigned char *bytes = mem_alloc(t->bytes);
        check(safetensors_read(s, t, 0, bytes, t->bytes, &e), "%s", e.text);
        for (size_t k = 0; names[i] && k < t->count; k++)
            while (((bytes[k] = (unsigned char)(uniform() * 256)) & 127) == 127) continue;
        check(safetensors_append(w, bytes, names[i] ? t->count : t->bytes, &e), "%s", e.text);
        size_t scales = names[i] ? 1 : 0;
        for (int d = 0; scales && d < t->rank; d++) scales *= blocks[i][d];
        for (size_t k = 0; k < scales; k++) {
            const float scale = powers ? power : power * (float)(0.5 + uniform());
            check(safetensors_append(w, &scale, sizeof scale, &e), "%s", e.text);
        }
        free(bytes), free(names[i]);
    }
    check(safetensors_finish(w, &e, NULL, NULL), "%s", e.text);
    safetensors_close(s);
    free_each(piece, out, blocks, names);
}
/* 1: a tensor's codes and scales are those of the file: both sides of each matrix are multiples of
 * 128, and no head that is reordered crosses a block. */
static int stays(const Piece *piece, size_t count, int tensor) {
    int all = 1;
    for (const Piece *p = piece; p < piece + count; p++)
        if (p->tensor == tensor)
            all &= p->shape[p->rank - 1] % FP8_BLOCK == 0 && p->shape[p->rank - 2] % FP8_BLOCK == 0
                && (!p->head || FP8_BLOCK % p->head == 0);
    return all;
}
static void compare_codes(const Model *kept, const Model *wide, Safetensors *s, int tensor, int powers) {
    Error e;
    size_t count;
    const Tensor *t = &kept->manifest.at[tensor];
    const int E = t->rank == 3 ? t->shape[0] : 1, O = codes_shape(t, 2), C = codes_shape(t, 1);
    const size_t square = FP8_BLOCK * FP8_BLOCK, scales = (size_t)(E * ((O + 127) / 128) * ((C + 127) / 128));
    uint8_t *code = mem_alloc(t->count);
    float *scale = mem_alloc(scales * sizeof *scale);
    Piece *all = pieces_of(kept, &count);
    const int same = stays(all, count, tensor);
    for (size_t i = 0; i < scales; i++) scale[i] = 1.0F / 512;
    for (const Piece *p = all; p < all + count; p++) {
        char name[PIECE_NAME + 16];
        const size_t at = p->offset - t->offset;
        if (p->tensor != tensor) continue;
        snprintf(name, sizeof name, "%s_scale_inv", p->name);
        check(safetensors_read(s, safetensors_find(s, p->name), 0, code + at, p->count, &e), "%s", e.text);
        piece_reorder(&kept->config, p, code + at, p->count, 1, 1);
        const FileTensor *of = safetensors_find(s, name);
        if (same) check(safetensors_read(s, of, 0, scale + at / square, of->bytes, &e), "%s", e.text);
    }
    if (!same && !powers)
        kept->dev->weight_to_codes((Fp8){ code, (real *)scale },
                                   float_at(wide, wide->params, wide->manifest.at[tensor].offset), E, O, C);
    check(!memcmp(kept->codes[tensor].at, code, t->count), "%s, %d x %d: codes %s", t->name, O, C,
          same || powers ? "as in the file" : "of the file's values");
    check(!memcmp(kept->codes[tensor].scale, scale, scales * sizeof *scale), "%s, %d x %d: scales likewise", t->name,
          O, C);
    free_each(code, scale, all);
}
/* Sizes that are no multiple of 128 are coded again, from the file's values: in memory a block may
 * have other rows than in the file. If all scales are one power of two, codes are the file's. */
static void as_in_file(const char *descriptor, int powers) {
    const Device *plain = device_find("cpu-f32"), dev = keeper("cpu-f32");
    Config c = trainee_config(descriptor, 256, 64);
    Error e;
    FileSum sum;
    Model wide, kept;
    char *numbers = scratch_path("numbers.safetensors"), *codes = scratch_path("codes.safetensors");
    c.scores = SOFTMAX_RENORM, c.choice_bias = c.rope_pairs = 1, c.tied = 0;        /* as ERNIE: reorders heads */
    model_plan_inference(&wide, plain, &c, B, T, 0, NULL);
    c.weights = OF_FP8;
    model_plan_inference(&kept, &dev, &c, B, T, 0, NULL);
    check(model_allocate(&wide) && model_allocate(&kept), "memory");
    model_initialize(&wide, 7);
    check(hf_save_weights(&wide, numbers, 0, &sum, &e), "%s", e.text);
    write_in_codes(&kept, numbers, codes, powers);
    check(hf_load_weights(&wide, codes, &e) && hf_load_weights(&kept, codes, &e), "%s", e.text);
    Safetensors *s = safetensors_open(codes, &e);
    for (int i = 0; i < kept.manifest.count; i++)
        if (kept.codes[i].format) compare_codes(&kept, &wide, s, i, powers);
    safetensors_close(s);
    model_free(&wide), model_free(&kept);
    free_each(numbers, codes);
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
    for (int powers = 0; powers < 2; powers++) {
        PART(as_in_file("m2:c256h4q2e4k2f144a1s1n0", powers));
        PART(as_in_file("m1:c384h4e2k1f128a1n0", powers));          /* heads of 96 */
    }
    for (Format f = OF_FLOATX; f <= OF_FP8; f++) PART(from_files("tests/reference/families/gpt_oss_mxfp4", f));
    PART(scale_too_large("tests/reference/families/gpt_oss_mxfp4"));
}
