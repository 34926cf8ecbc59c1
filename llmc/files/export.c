/* export.c: see export.h. */
#define _POSIX_C_SOURCE 200809L
#include "export.h"
#include "config_json.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PART = 1 << 18 };                /* elements converted at a time */

typedef struct {
    Safetensors *from;
    FileTensor  *tensors;               /* of all files, in the order of the data */
    int         *file;                  /* of each tensor, from 0 */
    size_t       count;
    int          files, one;            /* one: which is written */
    uint64_t     bytes, elements;
} Layout;

static char *shard_name(int i, int files) { return text_format("model-%05d-of-%05d.safetensors", i + 1, files); }

int export_remove_shards(const char *folder, int keep, Error *e) {
    DIR *d = opendir(folder);
    int ok = 1;
    for (struct dirent *f; d && (f = readdir(d)); ) {
        int i = 0, n = 0, end = 0;
        const int is_shard = sscanf(f->d_name, "model-%5d-of-%5d.safetensors%n", &i, &n, &end) == 2 && end
            && !f->d_name[end];
        if (!(is_shard && n != keep) && !(!keep && !strcmp(f->d_name, "model.safetensors.index.json"))) continue;
        char *path = text_format("%s/%s", folder, f->d_name);
        if (unlink(path) && errno != ENOENT) ok = error_set(e, "%s: %s", path, strerror(errno));
        free(path);
    }
    if (d) closedir(d);
    return ok;
}

/* ---- what is written where ------------------------------------------------------------------- */

/* 1: some tensor changes its type. */
static int plan(Layout *p, ExportForm form, const HfOrigin *origin) {
    uint64_t in_file = 0;
    int changes = 0;
    p->count = safetensors_count(p->from);
    p->tensors = mem_alloc(p->count * sizeof *p->tensors);
    p->file = mem_alloc(p->count * sizeof *p->file);
    p->files = 1;
    for (size_t i = 0; i < p->count; i++) {
        FileTensor *t = &p->tensors[i];
        *t = *safetensors_at(p->from, i);
        const char *type = form.type ? form.type : origin ? hf_origin_type(origin, t->name) : NULL;
        changes |= type && strcmp(type, t->dtype);
        if (type) t->dtype = type;
        const uint64_t bytes = t->count * safetensors_width(t->dtype);
        if (form.shard && in_file && in_file + bytes > form.shard) p->files++, in_file = 0;
        in_file += bytes;
        p->file[i] = p->files - 1;
        p->bytes += bytes;
        p->elements += t->count;
    }
    return changes;
}

/* The type of most elements. */
static const char *most_frequent(const Layout *p) {
    const char *best = "F32";
    uint64_t most = 0;
    for (size_t i = 0; i < p->count; i++) {
        uint64_t n = 0;
        for (size_t k = i; k < p->count; k++)
            if (!strcmp(p->tensors[k].dtype, p->tensors[i].dtype)) n += p->tensors[k].count;
        if (n > most) most = n, best = p->tensors[i].dtype;
    }
    return best;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int copy_tensor(SafetensorsWriter *w, Safetensors *from, const FileTensor *was, const char *type,
                       double *values, Error *e) {
    int ok = 1;
    const size_t width = safetensors_width(type);
    for (uint64_t i = 0; i < was->count && ok; i += PART) {
        const size_t n = was->count - i < PART ? (size_t)(was->count - i) : PART;
        if (!strcmp(type, was->dtype))
            ok = safetensors_read(from, was, i * width, values, n * width, e)
                && safetensors_append(w, values, n * width, e);
        else ok = safetensors_read_double(from, was, i, values, n, e)
            && safetensors_append_double(w, was->name, type, values, n, e);
    }
    return ok;
}

static int write_one(const char *temporary, const void *with, Error *e) {
    const Layout *p = with;
    const char *step = safetensors_note(p->from, "step");
    const FileNote notes[] = { { "format", "pt" }, { "step", step ? step : "" } };
    size_t first = 0, n = 0;
    while (p->file[first] != p->one) first++;
    while (first + n < p->count && p->file[first + n] == p->one) n++;
    double *values = mem_alloc(PART * sizeof *values);
    SafetensorsWriter *w = safetensors_create(temporary, p->tensors + first, n, notes, step ? 2 : 1, e);
    int ok = w != NULL;
    for (size_t i = first; i < first + n && ok; i++)
        ok = copy_tensor(w, p->from, safetensors_at(p->from, i), p->tensors[i].dtype, values, e);
    if (ok) ok = safetensors_finish(w, e, NULL, NULL);
    else if (w) safetensors_abandon(w);
    free(values);
    return ok;
}

static int write_index(const char *folder, const Layout *p, Error *e) {
    Text t = { 0 };
    const FileTensor **sorted = mem_alloc(p->count * sizeof *sorted);
    for (size_t i = 0; i < p->count; i++) sorted[i] = &p->tensors[i];
    qsort(sorted, p->count, sizeof *sorted, by_tensor_name);
    text_add(&t, "{\n  \"metadata\": {\n    \"total_parameters\": %llu,\n    \"total_size\": %llu\n  },\n  "
             "\"weight_map\": {", (unsigned long long)p->elements, (unsigned long long)p->bytes);
    for (size_t i = 0; i < p->count; i++) {
        char *name = shard_name(p->file[sorted[i] - p->tensors], p->files);
        text_add_string(&t, i ? ",\n    " : "\n    ");
        text_add_json(&t, sorted[i]->name, strlen(sorted[i]->name));
        text_add(&t, ": \"%s\"", name);
        free(name);
    }
    text_add_string(&t, "\n  }\n}\n");
    char *path = text_format("%s/model.safetensors.index.json", folder);
    const int ok = file_write(path, t.at, t.length, e);
    free_each(path, t.at, sorted);
    return ok;
}

static int set_type(const char *folder, const char *type, Error *e) {
    char *path = text_format("%s/config.json", folder);
    Json *json = json_read_file(folder, "config.json", e);
    Text out = { 0 };
    if (json) config_with_type(json_root(json), type, &out);
    const int ok = json && file_write(path, out.at, out.length, e);
    json_free(json);
    free_each(out.at, path);
    return ok;
}
int export_weights(const char *folder, ExportForm form, const HfOrigin *origin, int *files, Error *e) {
    Layout p = { 0 };
    char *single = text_format("%s/model.safetensors", folder);
    int ok = 1;
    *files = 0;
    if (is_file(single)) {
        ok = (p.from = safetensors_open(single, e)) != NULL;
        const int changes = ok && plan(&p, form, origin);
        if (ok && p.files > 1) {
            for (p.one = 0; p.one < p.files && ok; p.one++) {
                char *name = shard_name(p.one, p.files), *path = text_format("%s/%s", folder, name);
                ok = file_replace(path, write_one, &p, e);
                free_each(name, path);
            }
            ok = ok && write_index(folder, &p, e);
            if (ok && unlink(single)) ok = error_set(e, "%s: %s", single, strerror(errno));
        } else if (changes) ok = file_replace(single, write_one, &p, e);
        if (ok && changes) ok = set_type(folder, most_frequent(&p), e);
        if (ok) ok = export_remove_shards(folder, p.files > 1 ? p.files : 0, e);
        if (ok) *files = p.files;
    }
    safetensors_close(p.from);
    free_each(p.tensors, p.file, single);
    return ok;
}
