/* hf.c: see hf.h. What the tensors are called in the file is the manifest's business (tensor.h, manifest_piece). */
#include "hf.h"
#include "llmc/model/parallel.h"
#include "llmc/base/text.h"
#include "llmc/base/json.h"
#include "families.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 1 << 22 };              /* elements moved at a time */

size_t first_not_finite(const char *dtype, const void *data, size_t n) {
    if (!strcmp(dtype, "F64")) {
        const unsigned char *p = data;
        for (size_t i = 0; i < n; i++) {
            uint64_t u;
            memcpy(&u, p + 8*i, 8);
            if ((u & 0x7ff0000000000000u) == 0x7ff0000000000000u) return i;
        }
    } else if (!strcmp(dtype, "F32")) {
        const unsigned char *p = data;
        for (size_t i = 0; i < n; i++) {
            uint32_t u;
            memcpy(&u, p + 4*i, 4);
            if ((u & 0x7f800000u) == 0x7f800000u) return i;
        }
    } else if (!strcmp(dtype, "BF16")) {
        const unsigned char *p = data;
        for (size_t i = 0; i < n; i++) { uint16_t u; memcpy(&u, p + 2*i, 2); if ((u & 0x7f80u) == 0x7f80u) return i; }
    }
    return n;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

int hf_load_config(const char *folder, Config *c, Error *e) {
    char *path = text_format("%s/config.json", folder);
    size_t bytes;
    int ok = 0;
    Error why;
    char *text = file_read(path, &bytes, e);
    if (text) {
        Json *json = json_parse(text, bytes, &why);
        if (!json) error_set(e, "%s: %.900s", path, why.text);
        else if (!(ok = config_from_json(c, json_root(json), &why))) error_set(e, "%s/%.900s", folder, why.text);
        json_free(json);
    }
    free(text);
    free(path);
    return ok;
}

Tokenizer *hf_load_tokenizer(const char *folder, Error *e) {
    char *path = text_format("%s/tokenizer.json", folder);
    Tokenizer *t = tokenizer_load(path, e);
    free(path);
    return t;
}

static int same_shape(const FileTensor *t, const Piece *p) {
    if (t->rank != p->rank) return 0;
    for (int d = 0; d < p->rank; d++) if (t->shape[d] != (uint64_t)p->shape[d]) return 0;
    return 1;
}
static void shape_text(char *text, size_t capacity, const uint64_t *shape, int rank) {
    size_t n = (size_t)snprintf(text, capacity, "[");
    for (int d = 0; d < rank && n < capacity; d++)
        n += (size_t)snprintf(text + n, capacity - n, "%s%llu", d ? ", " : "", (unsigned long long)shape[d]);
    if (n < capacity) snprintf(text + n, capacity - n, "]");
}

/* Copies a file tensor to the device, with conversion if the number types differ. */
static int load_piece(Model *m, Safetensors *s, const FileTensor *t, const Piece *p, void *buffer, Error *e) {
    const Device *dev = m->dev;
    const size_t size = dev->floatX_size;
    const int same = !strcmp(t->dtype, dev->dtype);
    for (size_t i = 0; i < p->count; i += BUFFER) {
        const size_t n = p->count - i < BUFFER ? p->count - i : BUFFER;
        void *to = (char *)m->params + (p->offset + i) * size;
        if (!(same ? safetensors_read(s, t, i * size, buffer, n * size, e)
                   : safetensors_read_double(s, t, i, buffer, n, e))) return 0;
        const size_t bad = first_not_finite(same ? t->dtype : "F64", buffer, n);
        if (bad < n)
            return error_set(e, "tensor %s: element %zu is NaN or infinite; these weights are unusable",
                             p->name, i + bad);
        if (same) dev->upload(to, buffer, n * size);
        else dev->from_double(to, buffer, n);
    }
    return 1;
}

int hf_load_weights(Model *m, const char *path, Error *e) {
    Error why;
    Safetensors *s = safetensors_open(path, e);
    if (!s) return 0;
    void *buffer = mem_alloc(BUFFER * sizeof(double));
    size_t used = 0;
    int problems = 0;
    Text text = { 0 };
    for (int i = 0; i < m->manifest.count; i++)
        for (int j = 0; j < manifest_piece_count(&m->manifest.at[i]); j++) {
            const Piece p = manifest_piece(&m->manifest.at[i], j);
            const FileTensor *t = safetensors_find(s, p.name);
            char found[96], expected[96];
            uint64_t shape[4];
            for (int d = 0; d < p.rank; d++) shape[d] = (uint64_t)p.shape[d];
            shape_text(expected, sizeof expected, shape, p.rank);
            used += t != NULL;
            if (!t) { text_add(&text, "\n  %s %s is missing", p.name, expected); problems++; }
            else if (!same_shape(t, &p)) {
                shape_text(found, sizeof found, t->shape, t->rank);
                text_add(&text, "\n  %s has shape %s, the model needs %s", p.name, found, expected);
                problems++;
            } else if (!problems && !load_piece(m, s, t, &p, buffer, &why)) {
                text_add(&text, "\n  %s", why.text);
                problems++;
            }
        }
    /* A tied model may carry a redundant copy of its head. */
    const FileTensor *head = m->config.tied ? safetensors_find(s, "lm_head.weight") : NULL;
    used += head != NULL;
    if (!problems && used < safetensors_count(s))
        for (size_t i = 0, told = 0; i < safetensors_count(s) && told < 5; i++) {
            const FileTensor *t = safetensors_at(s, i);
            int known = t == head || strstr(t->name, "rotary_emb.inv_freq") != NULL;
            for (int k = 0; k < m->manifest.count && !known; k++)
                for (int j = 0; j < manifest_piece_count(&m->manifest.at[k]) && !known; j++)
                    known = !strcmp(manifest_piece(&m->manifest.at[k], j).name, t->name);
            if (!known) { warn("%s: tensor %s is not part of this model and was left out", path, t->name); told++; }
        }
    safetensors_close(s);
    free(buffer);
    if (problems)
        error_set(e, "%s: %d tensor%s cannot be used:%.900s", path, problems, problems > 1 ? "s" : "",
                  text.at);
    free(text.at);
    return !problems;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

int hf_save_small(const char *folder, const Model *m, const Tokenizer *tokenizer, Error *e) {
    Text config = { 0 };
    config_to_json(&m->config, m->dev->dtype, &config);
    char *path = text_format("%s/config.json", folder);
    int ok = file_write(path, config.at, config.length, e);
    free(path);
    free(config.at);
    static const char generation[] = "{\n  \"do_sample\": true,\n  \"temperature\": 0.8,\n  \"top_p\": 0.95\n}\n";
    path = text_format("%s/generation_config.json", folder);
    ok = ok && file_write(path, generation, sizeof generation - 1, e);
    free(path);
    if (!tokenizer || !ok) return ok;
    size_t bytes;
    const char *json = tokenizer_json(tokenizer, &bytes);
    path = text_format("%s/tokenizer.json", folder);
    ok = file_write(path, json, bytes, e);
    free(path);
    Text text = { 0 };
    text_add(&text, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                    "  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": %d\n}\n",
                    m->config.context);
    path = text_format("%s/tokenizer_config.json", folder);
    ok = ok && file_write(path, text.at, text.length, e);
    free(path);
    free(text.at);
    return ok;
}

int hf_save_weights(const Model *m, const char *path, int64_t step, Error *e, uint64_t *bytes, uint32_t *crc) {
    const size_t size = m->dev->floatX_size;
    size_t count = 0, k = 0;
    for (int i = 0; i < m->manifest.count; i++) count += (size_t)manifest_piece_count(&m->manifest.at[i]);
    Piece *pieces = mem_alloc(count * sizeof *pieces);
    uint64_t (*shapes)[4] = mem_alloc(count * sizeof *shapes);
    FileTensor *tensors = mem_alloc(count * sizeof *tensors);
    for (int i = 0; i < m->manifest.count; i++)
        for (int j = 0; j < manifest_piece_count(&m->manifest.at[i]); j++, k++) {
            pieces[k] = manifest_piece(&m->manifest.at[i], j);
            for (int d = 0; d < pieces[k].rank; d++) shapes[k][d] = (uint64_t)pieces[k].shape[d];
            tensors[k] = (FileTensor){ .name = pieces[k].name, .dtype = m->dev->dtype, .rank = pieces[k].rank,
                                       .shape = shapes[k] };
        }
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)step);
    const FileNote notes[] = { { "format", "pt" }, { "step", number } };
    void *buffer = mem_alloc(BUFFER * size);
    SafetensorsWriter *w = safetensors_create(path, tensors, count, notes, 2, e);
    int ok = w != NULL;
    parallel_wait_all_weights(m);
    for (k = 0; k < count && ok; k++)
        for (size_t i = 0; i < pieces[k].count && ok; i += BUFFER) {
            const size_t n = pieces[k].count - i < BUFFER ? pieces[k].count - i : BUFFER;
            m->dev->download(buffer, (char *)m->params + (pieces[k].offset + i) * size, n * size);
            if (first_not_finite(m->dev->dtype, buffer, n) < n)
                ok = error_set(e, "tensor %s is not finite: not saved", pieces[k].name);
            ok = ok && safetensors_append(w, buffer, n * size, e);
        }
    if (ok) ok = safetensors_finish(w, e, bytes, crc);
    else if (w) safetensors_abandon(w);
    free(buffer);
    free(tensors);
    free(shapes);
    free(pieces);
    return ok;
}
