/* optimizer_file.c: see optimizer_file.h. */
#include "optimizer_file.h"
#include "load.h"
#include "llmc/model/parallel.h"
#include "llmc/model/routers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 1 << 20 };              /* elements moved at a time */

size_t optimizer_bytes(const Model *m, const Optimizer *o) {
    size_t all = 0;
    for (int kind = 0; kind < o->kinds; kind++)
        for (int i = 0; i < m->manifest.count; i++)
            all += optimizer_elements(o, m, kind, i) * optimizer_element(o, m, kind);
    return all;
}

/* Its tensors, in order (optimizer_file.h). */
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
    for (int kind = 0; kind < o->kinds; kind++)
        for (int i = 0; i < m->manifest.count; i++) {
            if (!optimizer_has(o, m, kind, i)) continue;
            state_name(f.names[n], &m->manifest.at[i], kind);
            f.shapes[n] = optimizer_elements(o, m, kind, i);
            f.entries[n] = (FileTensor){ .name = f.names[n], .dtype = load_dtype(m->dev, optimizer_type(o, kind)),
                                         .rank = 1, .shape = &f.shapes[n] };
            n++;
        }
    f.shapes[n] = f.bias_count;
    f.entries[n] = (FileTensor){ .name = "router_bias", .dtype = load_dtype(m->dev, REAL), .rank = 1,
                                 .shape = &f.shapes[n] };
    f.count = n + (f.bias_count > 0);
    return f;
}

/* This rank's part of a tensor that begins at byte `at` of the data. buffer: BUFFER elements. */
static int write_part(SafetensorsWriter *w, const SaveShard *s, int kind, int tensor, uint64_t at,
                      void *buffer, Error *e) {
    const SaveShardPart *p = &s->parts[kind][tensor];
    const char *dtype = load_dtype(s->model->dev, save_shard_type(s, kind));
    const size_t size = save_shard_element(s, kind), end = p->first + p->count;
    int ok = !p->count || safetensors_seek(w, at + p->first * size, e);
    for (size_t from = p->first; from < end && ok; from += BUFFER) {
        const size_t n = end - from < BUFFER ? end - from : BUFFER;
        const void *state = save_shard_read(s, kind, tensor, from, n, buffer);
        if (first_not_finite(dtype, state, n) < n)
            ok = error_set(e, "the optimizer state of %s is not finite: not saved", s->model->manifest.at[tensor].name);
        ok = ok && safetensors_append(w, state, n * size, e);
    }
    return ok;
}
static int write_bias(SafetensorsWriter *w, const SaveShard *s, size_t n, uint64_t at, Error *e) {
    const Device *dev = s->model->dev;
    if (!n || !s->leads) return 1;
    void *buffer = mem_alloc(n * dev->real_size);
    const void *bias = save_shard_bias(s, buffer);
    const int ok = first_not_finite(load_dtype(dev, REAL), bias, n) < n
        ? error_set(e, "the routers' biases are not finite: not saved")
                 : safetensors_seek(w, at, e) && safetensors_append(w, bias, n * dev->real_size, e);
    free(buffer);
    return ok;
}
int optimizer_save(const SaveShard *s, const char *path, FilePart **parts, size_t *count, Error *e) {
    const Model *m = s->model;
    StateFile f = state_file(m, s->optimizer);
    void *buffer = mem_alloc((m->manifest.total < BUFFER ? m->manifest.total : BUFFER) * m->dev->real_size);
    SafetensorsWriter *w = safetensors_join(path, f.entries, f.count, NULL, 0, s->leads, e);
    uint64_t at = 0;
    int ok = w != NULL;
    for (int kind = 0; kind < s->optimizer->kinds && ok; kind++)
        for (int i = 0; i < m->manifest.count && ok; i++) {
            if (!save_shard_has(s, kind, i)) continue;
            ok = write_part(w, s, kind, i, at, buffer, e);
            at += optimizer_elements(s->optimizer, m, kind, i) * save_shard_element(s, kind);
        }
    ok = ok && write_bias(w, s, f.bias_count, at, e);
    if (ok) ok = safetensors_leave(w, parts, count, e);
    else safetensors_abandon(w);
    free_each(buffer, f.names, f.shapes, f.entries);
    return ok;
}

/* Of a part of an optimizer's state. */
typedef struct { const Device *dev; const char *name; int kind; } LoadedState;
/* An element that is NaN, infinite or, in a mean of squares, negative is an error. */
static int check_state(const Load *l, void *data, size_t first, size_t n, Error *e) {
    const LoadedState *of = l->of;
    const size_t size = dtype_size(of->dev, l->type), finite = first_not_finite(load_dtype(of->dev, l->type), data, n);
    const unsigned char *const last = (const unsigned char *)data + size - 1;       /* the byte with the sign */
    unsigned char signs = 0;
    size_t bad = finite;
    const int squares = of->kind == STATE_V || of->kind == STATE_SQUARES || of->kind == STATE_NORMS
        || of->kind == STATE_SCALES;
    for (size_t i = 0; i < finite && squares; i++) signs |= last[i * size];
    for (size_t i = 0; i < finite && signs >> 7 && bad == finite; i++) {
        const unsigned char *x = (const unsigned char *)data + i * size;
        for (size_t k = 0; k < size && x[size - 1] >> 7; k++)                       /* -0 is none */
            if (x[k] & (k + 1 < size ? 0xff : 0x7f)) bad = i;
    }
    if (bad == n) return 1;
    const double value = safetensors_value(load_dtype(of->dev, l->type), (const char *)data + bad * size);
    return error_set(e, "%s: element %zu is %g, which no optimizer leaves there", of->name,
                     (size_t)l->first + first + bad, value);
}
/* This rank's part of one tensor's state. */
static Load state_part(const FileTensor *f, const Model *m, const Optimizer *o, int tensor, LoadedState *of) {
    const Segment own = optimizer_segment(o, m, tensor);
    const int all = of->kind == STATE_SQUARES || of->kind == STATE_NORMS;
    const size_t unit = optimizer_unit(of->kind);
    return (Load){ .tensor = f, .first = all ? 0 : (own.offset - m->manifest.at[tensor].offset) / unit,
                   .count = all ? optimizer_elements(o, m, of->kind, tensor) : own.count / unit, .unit = 1,
                   .raw = of->kind == STATE_CODES,
                   .to = (char *)optimizer_part(o, of->kind)
                   + optimizer_offset(own, of->kind) * optimizer_element(o, m, of->kind),
                   .type = optimizer_type(o, of->kind), .check = check_state, .of = of };
}

/* The routers' selection biases: their number must be the model's. */
static int load_bias(Safetensors *s, const Model *m, Error *e) {
    const size_t n = router_offset(m, m->routers);
    const FileTensor *f = safetensors_find(s, "router_bias");
    if (!n) return 1;
    if (!f || f->count != n)
        return error_set(e, "router_bias has %llu elements, the model's routers need %zu",
                         f ? (unsigned long long)f->count : 0, n);
    double *bias = mem_alloc(n * sizeof *bias);
    int ok = safetensors_read_double(s, f, 0, bias, n, e);
    const size_t bad = ok ? first_not_finite("F64", bias, n) : n;
    if (bad < n) ok = error_set(e, "router_bias: element %zu is not finite", bad);
    if (ok) m->dev->reals_from_double(m->bias, bias, n);
    free(bias);
    return ok;
}

/* m in 8 bits of a file that has numbers: these are as gradients, which are added to zeros. */
static int load_coded(Safetensors *s, const FileTensor *f, const Model *m, const Optimizer *o, int tensor, Error *e) {
    const Device *dev = m->dev;
    const Tensor *t = &m->manifest.at[tensor];
    const Segment own = optimizer_segment(o, m, tensor), part = optimizer_stored(m, tensor, own);
    const uint64_t key = (uint64_t)tensor;
    const double factors[2] = { 0, 1 };
    LoadedState of = { dev, f->name, STATE_M };
    const Load load = { .tensor = f, .first = own.offset - t->offset, .count = own.count, .unit = 1, .type = t->dtype,
                        .to = (char *)m->grads + part.gradient * t->element, .check = check_state, .of = &of };
    real *at = dev->alloc(2 * dev->real_size + sizeof part + sizeof key);
    Segment *parts = (Segment *)(void *)real_at(m, at, 2);
    dev->reals_from_double(at, factors, 2);
    dev->upload(parts, &part, sizeof part);
    dev->upload(parts + 1, &key, sizeof key);
    const int ok = load_all(dev, s, &load, 1, e);
    if (ok) dev->muon_add(optimizer_momentum(o), m->grads, at, parts, 1, part.count, (uint64_t *)(void *)(parts + 1));
    dev->sync();
    dev->release(at);
    return ok;
}
/* Numbers of a file that has them in 8 bits. */
static int load_decoded(Safetensors *s, Load *l, const Tensor *t, Error *e) {
    char name[TENSOR_NAME + 16];
    state_name(name, t, STATE_SCALES);
    l->scales = safetensors_find(s, name), l->unit = optimizer_unit(STATE_SCALES);
    const int ok = l->scales && l->scales->count * l->unit == t->count;
    return ok || error_set(e, "%s is missing or has another size", name);
}
static int is_coded(const Safetensors *s, const Tensor *t) {
    char name[TENSOR_NAME + 16];
    state_name(name, t, STATE_CODES);
    const FileTensor *f = safetensors_find(s, name);
    return f && !strcmp(f->dtype, "I8");
}

typedef struct { const char *converted; int no_master, no_squares; } Missing;  /* converted: its dtype, if another */

static int load_kind(Safetensors *s, Model *m, const Optimizer *o, int kind, Missing *missing, Error *e) {
    char name[TENSOR_NAME + 16];
    const size_t most = (size_t)m->manifest.count;
    Load *loads = mem_alloc(most * sizeof *loads);
    LoadedState *of = mem_alloc(most * sizeof *of);
    size_t n = 0;
    int ok = 1;
    for (int i = 0; i < m->manifest.count && ok; i++) {
        if (!optimizer_has(o, m, kind, i)) continue;
        state_name(name, &m->manifest.at[i], kind);
        const FileTensor *f = safetensors_find(s, name);
        if (!f && kind == STATE_MASTER) { missing->no_master = 1; continue; }
        if (!f && kind == STATE_NORMS) continue;            /* they begin again */
        if (!f && kind == STATE_SQUARES) { missing->no_squares = 1; continue; }
        if (kind == STATE_SCALES && !is_coded(s, &m->manifest.at[i])) continue;
        if (!f && kind == STATE_V)
            ok = error_set(e, "it has no v of %s: Muon trained it, which has none (-wo muon)", m->manifest.at[i].name);
        else if (!f || f->count != optimizer_elements(o, m, kind, i))
            ok = error_set(e, "%s is missing or has another size", name);
        else {
            const int other = strcmp(f->dtype, load_dtype(m->dev, optimizer_type(o, kind))) != 0;
            if (other) missing->converted = f->dtype;
            if (kind == STATE_CODES && other) { ok = load_coded(s, f, m, o, i, e); continue; }
            of[n] = (LoadedState){ m->dev, f->name, kind };
            loads[n] = state_part(f, m, o, i, &of[n]);
            if (kind == STATE_M && is_coded(s, &m->manifest.at[i]))
                ok = load_decoded(s, &loads[n], &m->manifest.at[i], e);
            n++;
        }
    }
    ok = ok && load_all(m->dev, s, loads, n, e);
    free_each(loads, of);
    return ok;
}

static int drops_squares(const Safetensors *s, const Model *m, const Optimizer *o) {
    char name[TENSOR_NAME + 16];
    for (int i = 0; i < m->manifest.count; i++) {
        state_name(name, &m->manifest.at[i], STATE_SQUARES);
        if (!optimizer_has(o, m, STATE_SQUARES, i) && safetensors_find(s, name)) return 1;
    }
    return 0;
}
int optimizer_load(const char *path, Model *m, const Optimizer *o, Error *e) {
    Safetensors *s = safetensors_open(path, e);
    if (!s) return 0;
    Missing missing = { 0 };
    Error why;
    char name[TENSOR_NAME + 16];
    int ok = 1;
    for (int kind = 0; kind < o->kinds && ok; kind++) ok = load_kind(s, m, o, kind, &missing, &why);
    ok = ok && load_bias(s, m, &why);
    if (!ok) error_set(e, "%s: %.900s", path, why.text);
    if (ok && (!m->dp.parallel || m->dp.parallel->rank == 0)) {    /* one rank warns for all */
        state_name(name, &m->manifest.at[0], STATE_MASTER);
        if (missing.converted) warn("%s: the optimizer's state is in %s and was converted", path, missing.converted);
        if (missing.no_master) warn("%s has no master copy of the weights; it starts as the rounded weights", path);
        if (missing.no_squares) warn("%s has no mean squares of Muon's updates (-wn); they start at zero", path);
        if (drops_squares(s, m, o)) warn("%s has mean squares of Muon's updates, which are dropped (-wn 0)", path);
        if (!o->master && safetensors_find(s, name))
            warn("%s has a master copy of the weights, which is dropped", path);
    }
    safetensors_close(s);
    return ok;
}
