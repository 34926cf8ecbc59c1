/* hf.c: see hf.h. The manifest knows the names of the tensors in files (manifest_piece in llmc/model/tensor.h). */
#define _POSIX_C_SOURCE 200809L
#include "hf.h"
#include "llmc/model/parallel.h"
#include "llmc/base/text.h"
#include "llmc/base/json.h"
#include "families.h"
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { BUFFER = 1 << 22 };              /* elements moved at a time */

/* ---- finding a model --------------------------------------------------------------------------------------- */

static int is_model(const char *folder) {
    static const char *const weights[] = { "model.safetensors", "model.safetensors.index.json" };
    int found = 0;
    for (int i = 0; i < 2; i++) {
        char *config = text_format("%s/config.json", folder), *path = text_format("%s/%s", folder, weights[i]);
        found |= is_file(config) && is_file(path);
        free(config);
        free(path);
    }
    return found;
}

static int later(struct timespec a, struct timespec b) {
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

static char *newest_model(void) {
    static const char *const patterns[] = { "*/model.safetensors", "*/best/model.safetensors" };
    struct timespec latest = { 0 };
    char *folder = NULL;
    for (int k = 0; k < 2; k++) {
        glob_t found;
        struct stat s;
        const int none = glob(patterns[k], 0, NULL, &found);
        if (none == GLOB_NOSPACE) fail(EXIT_MEMORY, "out of host memory: the models of this folder cannot be listed");
        if (none) continue;
        for (size_t i = 0; i < found.gl_pathc; i++) {
            char *path = text_format("%s", found.gl_pathv[i]);
            path[strlen(path) - strlen("/model.safetensors")] = 0;
            if (is_model(path) && !stat(found.gl_pathv[i], &s) && (!folder || later(s.st_mtim, latest))) {
                free(folder);
                folder = path;
                latest = s.st_mtim;
            } else free(path);
        }
        globfree(&found);
    }
    return folder;
}

char *hf_find_model(const char *asked, Error *e) {
    char *best = text_format("%s/best", asked ? asked : "out"), *folder = NULL;
    if (asked && is_model(asked)) folder = text_format("%s", asked);
    else if (is_model(best)) folder = text_format("%s", best);
    else if (!asked) folder = is_model("out") ? text_format("out") : newest_model();
    if (!folder && asked)
        error_set(e, "%s: %s; a checkpoint is a folder with config.json and model.safetensors", asked,
                  is_folder(asked) ? "there is no model in this folder" : is_file(asked) ? "this is a file" : "no such folder");
    else if (!folder) error_set(e, "there is no model in out/best, in out, or in any other folder here");
    free(best);
    return folder;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

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

/* Copies a tensor of the file to the device, with conversion if the number types differ. */
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
            return error_set(e, "tensor %s: element %zu is NaN or infinite",
                             p->name, i + bad);
        if (same) dev->upload(to, buffer, n * size);
        else dev->from_double(to, buffer, n);
    }
    return 1;
}

static int is_known(const Model *m, const char *name) {
    for (int i = 0; i < m->manifest.count; i++)
        for (int j = 0; j < manifest_piece_count(&m->manifest.at[i]); j++)
            if (!strcmp(manifest_piece(&m->manifest.at[i], j).name, name)) return 1;
    return strstr(name, "rotary_emb.inv_freq") != NULL      /* computed by this program */
        || (m->config.tied && !strcmp(name, "lm_head.weight"));
}
static void warn_of_unknown(const Model *m, const Safetensors *s, const char *path) {
    for (size_t i = 0, warnings = 0; i < safetensors_count(s) && warnings < 5; i++) {
        const char *name = safetensors_at(s, i)->name;
        if (is_known(m, name)) continue;
        warn("%s: tensor %s is not part of this model and is ignored", path, name);
        warnings++;
    }
}

int hf_load_weights(Model *m, const char *path, Error *e) {
    Error why;
    Safetensors *s = safetensors_open(path, e);
    if (!s) return 0;
    void *buffer = mem_alloc((m->manifest.total < BUFFER ? m->manifest.total : BUFFER) * sizeof(double));
    size_t used = m->config.tied && safetensors_find(s, "lm_head.weight");      /* a redundant copy of the embedding */
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
            if (text.length > sizeof e->text) problems += !t || !same_shape(t, &p);         /* counted, but no longer listed */
            else if (!t) { text_add(&text, "\n  %s %s is missing", p.name, expected); problems++; }
            else if (!same_shape(t, &p)) {
                shape_text(found, sizeof found, t->shape, t->rank);
                text_add(&text, "\n  %s has shape %s, the model needs %s", p.name, found, expected);
                problems++;
            } else if (!problems && !load_piece(m, s, t, &p, buffer, &why)) {
                text_add(&text, "\n  %s", why.text);
                problems++;
            }
        }
    if (!problems && used < safetensors_count(s)) warn_of_unknown(m, s, path);
    if (problems)
        error_set(e, "%s: %d tensor%s cannot be used:%.900s", path, problems, problems > 1 ? "s" : "", text.at);
    safetensors_close(s);
    free(buffer);
    free(text.at);
    return !problems;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static int write_file(const char *folder, const char *name, const char *text, size_t bytes, Error *e) {
    char *path = text_format("%s/%s", folder, name);
    size_t n;
    Error none;
    char *there = is_file(path) ? file_read(path, &n, &none) : NULL;
    const int ok = (there && n == bytes && !memcmp(there, text, n)) || file_write(path, text, bytes, e);
    free(there);
    free(path);
    return ok;
}

int hf_save_small(const char *folder, const Model *m, const Tokenizer *tokenizer, Error *e) {
    static const char generation[] = "{\n  \"do_sample\": true,\n  \"temperature\": 0.8,\n  \"top_p\": 0.95\n}\n";
    Text config = { 0 }, settings = { 0 };
    config_to_json(&m->config, m->dev->dtype, &config);
    int ok = write_file(folder, "config.json", config.at, config.length, e)
          && write_file(folder, "generation_config.json", generation, sizeof generation - 1, e);
    if (tokenizer && ok) {
        size_t bytes;
        const char *json = tokenizer_json(tokenizer, &bytes);
        text_add(&settings, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                            "  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": %d\n}\n",
                 m->config.context);
        ok = write_file(folder, "tokenizer.json", json, bytes, e)
          && write_file(folder, "tokenizer_config.json", settings.at, settings.length, e);
    }
    free(config.at);
    free(settings.at);
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
