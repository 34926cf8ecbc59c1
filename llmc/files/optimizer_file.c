/* optimizer_file.c: see optimizer_file.h. */
#include "optimizer_file.h"
#include "safetensors.h"
#include "llmc/model/parallel.h"
#include "llmc/model/routers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 1 << 22 };              /* elements moved at a time */

static int state_kinds(const Optimizer *o) { return o->master ? STATE_KINDS : STATE_KINDS - 1; }
static const char *dtype_of(const Device *dev, Dtype type) {
    return type == FLOATX ? dev->dtype : dev->real_size == 8 ? "F64" : "F32";
}

size_t optimizer_bytes(const Model *m, const Optimizer *o) {
    size_t each = 0;
    for (int kind = 0; kind < state_kinds(o); kind++) each += optimizer_element(o, m, kind);
    return each;
}

/* Its tensors, in order: m of every tensor of the model, v of those that have one, the master copies; then the routers' selection
 * biases. */
typedef struct {
    size_t count, bias_count;           /* entries; elements of the last one, 0: the model has no routers */
    char (*names)[TENSOR_NAME + 16];
    uint64_t *shapes;
    FileTensor *entries;
} StateFile;

static void state_name(char name[TENSOR_NAME + 16], const Tensor *t, int kind) {
    snprintf(name, TENSOR_NAME + 16, "%s%s", t->name, state_suffix[kind]);
}
static StateFile state_file(const Model *m, const Optimizer *o) {
    StateFile f = { .bias_count = router_offset(m, m->routers) };
    const size_t most = (size_t)m->manifest.count * STATE_KINDS + 1;
    f.names = mem_alloc(most * sizeof *f.names);
    f.shapes = mem_alloc(most * sizeof *f.shapes);
    f.entries = mem_alloc(most * sizeof *f.entries);
    size_t n = 0;
    for (int kind = 0; kind < state_kinds(o); kind++)
        for (int i = 0; i < m->manifest.count; i++) {
            if (!optimizer_has(o, m, kind, i)) continue;
            state_name(f.names[n], &m->manifest.at[i], kind);
            f.shapes[n] = m->manifest.at[i].count;
            f.entries[n] = (FileTensor){ .name = f.names[n], .dtype = dtype_of(m->dev, optimizer_type(o, kind)), .rank = 1,
                                         .shape = &f.shapes[n] };
            n++;
        }
    f.shapes[n] = f.bias_count;
    f.entries[n] = (FileTensor){ .name = "router_bias", .dtype = dtype_of(m->dev, REAL), .rank = 1, .shape = &f.shapes[n] };
    f.count = n + (f.bias_count > 0);
    return f;
}
static void state_file_free(StateFile *f) {
    free(f->names);
    free(f->shapes);
    free(f->entries);
}

/* Of one tensor. state: of the whole model, of that kind. buffer: BUFFER elements. */
static int append_state(SafetensorsWriter *w, const Model *m, const Optimizer *o, int tensor, int kind, const char *state,
                        void *buffer, Error *e) {
    const Tensor *t = &m->manifest.at[tensor];
    const char *dtype = dtype_of(m->dev, optimizer_type(o, kind));
    const size_t size = optimizer_element(o, m, kind), offset = optimizer_offset(o, m, kind, tensor);
    for (size_t from = 0; from < t->count; from += BUFFER) {
        const size_t n = t->count - from < BUFFER ? t->count - from : BUFFER;
        m->dev->download(buffer, state + (offset + from) * size, n * size);
        if (first_not_finite(dtype, buffer, n) < n)
            return error_set(e, "the optimizer state of %s is not finite: not saved", t->name);
        if (!safetensors_append(w, buffer, n * size, e)) return 0;
    }
    return 1;
}

int optimizer_save(const char *path, const Model *m, const Optimizer *o, FileSum *sum, Error *e) {
    StateFile f = state_file(m, o);
    const size_t bias_bytes = f.bias_count * m->dev->real_size, buffer_bytes = BUFFER * m->dev->real_size;
    void *buffer = mem_alloc(buffer_bytes > bias_bytes ? buffer_bytes : bias_bytes);
    SafetensorsWriter *w = safetensors_create(path, f.entries, f.count, NULL, 0, e);
    int ok = w != NULL;
    for (int kind = 0; kind < state_kinds(o) && ok; kind++) {
        const char *state = optimizer_whole(o, m, kind);
        for (int i = 0; i < m->manifest.count && ok; i++)
            if (optimizer_has(o, m, kind, i)) ok = append_state(w, m, o, i, kind, state, buffer, e);
    }
    if (ok && f.bias_count) {
        m->dev->download(buffer, m->bias, bias_bytes);
        if (first_not_finite(dtype_of(m->dev, REAL), buffer, f.bias_count) < f.bias_count)
            ok = error_set(e, "the routers' biases are not finite: not saved");
        ok = ok && safetensors_append(w, buffer, bias_bytes, e);
    }
    if (ok) ok = safetensors_finish(w, e, &sum->bytes, &sum->crc);
    else safetensors_abandon(w);
    free(buffer);
    state_file_free(&f);
    return ok;
}

/* The index of the first element that is NaN, infinite or, in a second moment, negative; n: there is none. */
static size_t first_impossible(const double *x, size_t n, int kind) {
    const size_t finite = first_not_finite("F64", x, n);
    uint64_t bits, signs = 0;
    for (size_t i = 0; i < finite && kind == STATE_V; i++) { memcpy(&bits, &x[i], sizeof bits); signs |= bits; }
    for (size_t i = 0; i < finite && signs >> 63; i++) if (x[i] < 0) return i;
    return finite;
}

/* This rank's part of one tensor's state. */
static int load_state(Safetensors *s, const FileTensor *f, Model *m, const Optimizer *o, int tensor, int kind,
                      double *buffer, Error *e) {
    const Tensor *t = &m->manifest.at[tensor];
    const Segment own = optimizer_segment(o, m, tensor);
    const size_t size = optimizer_element(o, m, kind), at = own.offset - own.shift - (kind == STATE_V ? own.without_v : 0);
    char *state = (char *)optimizer_part(o, kind) + at * size;
    for (size_t from = 0; from < own.count; from += BUFFER) {
        const size_t n = own.count - from < BUFFER ? own.count - from : BUFFER;
        const size_t first = own.offset - t->offset + from;
        if (!safetensors_read_double(s, f, first, buffer, n, e)) return 0;
        const size_t bad = first_impossible(buffer, n, kind);
        if (bad < n) return error_set(e, "%s: element %zu is %g, which no optimizer leaves there", f->name, first + bad, buffer[bad]);
        void *to = state + from * size;
        if (optimizer_type(o, kind) == REAL) m->dev->reals_from_double(to, buffer, n);
        else m->dev->from_double(to, buffer, n);
    }
    return 1;
}

/* The routers' selection biases: their number must be the model's. */
static int load_bias(Safetensors *s, const Model *m, Error *e) {
    const size_t n = router_offset(m, m->routers);
    const FileTensor *f = safetensors_find(s, "router_bias");
    if (!n) return 1;
    if (!f || f->count != n)
        return error_set(e, "router_bias has %llu elements, the model's routers need %zu", f ? (unsigned long long)f->count : 0, n);
    double *bias = mem_alloc(n * sizeof *bias);
    int ok = safetensors_read_double(s, f, 0, bias, n, e);
    const size_t bad = ok ? first_not_finite("F64", bias, n) : n;
    if (bad < n) ok = error_set(e, "router_bias: element %zu is not finite", bad);
    if (ok) m->dev->reals_from_double(m->bias, bias, n);
    free(bias);
    return ok;
}

typedef struct { const char *converted; int no_master; } Missing;      /* converted: the dtype in the file, if it differs */

static int load_kind(Safetensors *s, Model *m, const Optimizer *o, int kind, double *buffer, Missing *missing, Error *e) {
    char name[TENSOR_NAME + 16];
    for (int i = 0; i < m->manifest.count; i++) {
        if (!optimizer_has(o, m, kind, i)) continue;
        state_name(name, &m->manifest.at[i], kind);
        const FileTensor *f = safetensors_find(s, name);
        if (!f && kind == STATE_KINDS - 1) { missing->no_master = 1; continue; }
        if (!f && kind == STATE_V)
            return error_set(e, "it has no v of %s: Muon trained it, which has none (-wo muon)", m->manifest.at[i].name);
        if (!f || f->count != m->manifest.at[i].count) return error_set(e, "%s is missing or has another size", name);
        if (!load_state(s, f, m, o, i, kind, buffer, e)) return 0;
        if (strcmp(f->dtype, dtype_of(m->dev, optimizer_type(o, kind)))) missing->converted = f->dtype;
    }
    return 1;
}

int optimizer_load(const char *path, Model *m, const Optimizer *o, Error *e) {
    Safetensors *s = safetensors_open(path, e);
    if (!s) return 0;
    double *buffer = mem_alloc(BUFFER * sizeof *buffer);
    Missing missing = { 0 };
    Error why;
    char name[TENSOR_NAME + 16];
    int ok = 1;
    for (int kind = 0; kind < state_kinds(o) && ok; kind++) ok = load_kind(s, m, o, kind, buffer, &missing, &why);
    ok = ok && load_bias(s, m, &why);
    if (!ok) error_set(e, "%s: %.900s", path, why.text);
    if (ok && (!m->dp.parallel || m->dp.parallel->rank == 0)) {    /* one rank warns for all */
        state_name(name, &m->manifest.at[0], STATE_KINDS - 1);
        if (missing.converted) warn("%s: the optimizer's state is in %s and was converted", path, missing.converted);
        if (missing.no_master) warn("%s has no master copy of the weights; it starts as the rounded weights", path);
        if (!o->master && safetensors_find(s, name)) warn("%s has a master copy of the weights, which is dropped", path);
    }
    safetensors_close(s);
    free(buffer);
    return ok;
}
