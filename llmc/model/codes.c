/* codes.c: see codes.h. */
#include "codes.h"
#include "ranges.h"
#include <stdlib.h>

enum { AT_ONCE = 16 };                          /* codes that decoding reads */

static int keeps(const Model *m) { return m->dev->decode != NULL; }
static Format format_of(const Model *m, const Tensor *t) {
    const Config *c = &m->config;
    if (m->mode != MODEL_INFER) return OF_FLOATX;
    if (c->experts_in == OF_MXFP4 && tensor_is_experts(t)) return keeps(m) ? OF_MXFP4 : OF_FLOATX;
    return t->kind == TENSOR_HEAD || t->kind == TENSOR_ATTENTION || t->kind == TENSOR_KEYS_VALUES
        || t->kind == TENSOR_MLP || t->kind == TENSOR_GATE_UP ? c->weights : OF_FLOATX;
}
static size_t blocks(int n) { return ((size_t)n + FP8_BLOCK - 1) / FP8_BLOCK; }
static size_t matrices(const Tensor *t) { return t->rank == 3 ? (size_t)t->shape[0] : 1; }
/* Of a matrix. */
static size_t scales_of(const Tensor *t) { return blocks(codes_shape(t, 2)) * blocks(codes_shape(t, 1)); }
/* The embedding, if it is the head, whose codes come after all others; else -1. */
static int tied_head(const Model *m) {
    for (int i = 0; i < m->manifest.count; i++)
        if (m->manifest.at[i].kind == TENSOR_EMBEDDING && m->config.tied && m->to == m->config.layers
            && m->mode == MODEL_INFER && m->config.weights) return i;
    return -1;
}

const Tensor *codes_misfit(const Model *m) {
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if ((format_of(m, t) == OF_FP8 || i == tied_head(m)) && codes_shape(t, 1) % AT_ONCE) return t;
    }
    return NULL;
}
double codes_bytes(const Model *m, int tensor) {
    const Format f = m->codes ? m->codes[tensor].format : OF_FLOATX;
    return f == OF_FLOATX ? (double)m->dev->floatX_size : f == OF_FP8 ? 1 : (MXFP4_BLOCK / 2 + 1.0) / MXFP4_BLOCK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void plan_codes(Model *m, Weight *w, const Tensor *t, Format f) {
    const size_t n = t->count;
    w->format = f;
    if (m->weights_of) return;
    arena_add(&m->arena, MEM_WEIGHTS, "codes of weights", &w->at, f == OF_FP8 ? n : n / 2);
    arena_add(&m->arena, MEM_WEIGHTS, "their scales", &w->scale,
              f == OF_FP8 ? matrices(t) * scales_of(t) * m->dev->real_size : n / MXFP4_BLOCK);
}
/* Offsets of the other tensors close the gaps; those of tensors in codes are in from_codes. */
static size_t lay_out(Model *m) {
    Manifest *f = &m->manifest;
    size_t most = 0, at = 0;
    f->total = 0;
    for (int i = 0; i < f->count; i++) {
        Tensor *t = &f->at[i];
        size_t *const end = m->codes[i].format ? &at : &f->total;
        if (!i || t->range != t[-1].range) at = 0;
        t->offset = *end;
        *end += arena_rounded(t->count * m->dev->floatX_size) / m->dev->floatX_size;
        most = at > most ? at : most;
    }
    return most;
}
void codes_plan(Model *m) {
    const Manifest *f = &m->manifest;
    const int head = tied_head(m);
    size_t wide = 0, matrix = 0, scales = 0, any = head >= 0;
    for (int i = 0; i < f->count; i++) any |= format_of(m, &f->at[i]) != OF_FLOATX;
    if (!any) return;
    if (keeps(m)) {
        m->codes = mem_alloc((size_t)(f->count + 1) * sizeof *m->codes);
        m->lc = mem_alloc((size_t)m->config.layers * sizeof *m->lc);
        for (int i = 0; i < f->count; i++) {
            const Format of = format_of(m, &f->at[i]);
            if (of) plan_codes(m, &m->codes[i], &f->at[i], of);
        }
        if (head >= 0) plan_codes(m, &m->codes[f->count], &f->at[head], OF_FP8);
        wide = lay_out(m);
    }
    if (head >= 0 && f->at[head].count > wide) wide = f->at[head].count;
    for (int i = 0; i < f->count && !keeps(m); i++) {
        const Tensor *t = &f->at[i];
        if (format_of(m, t) == OF_FLOATX && i != head) continue;
        if (t->count / matrices(t) > matrix) matrix = t->count / matrices(t);
        if (scales_of(t) > scales) scales = scales_of(t);
    }
    if (m->weights_of) return;
    arena_add(&m->arena, MEM_WEIGHTS, "weights from codes", &m->from_codes, wide * m->dev->floatX_size);
    arena_add(&m->arena, MEM_WEIGHTS, "a matrix in codes", &m->one_matrix.code, matrix);
    arena_add(&m->arena, MEM_WEIGHTS, "its scales", &m->one_matrix.scale, scales * m->dev->real_size);
}

void codes_bind(Model *m) {
    const Config *c = &m->config;
    const int head = tied_head(m);
    if (head >= 0) m->p.head = m->from_codes;
    if (!m->codes) return;
    for (int i = 0; m->weights_of && i <= m->manifest.count; i++) m->codes[i] = m->weights_of->codes[i];
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (!m->codes[i].format) continue;
        if (t->kind == TENSOR_HEAD) m->head_codes = &m->codes[i];
        for (int l = 0; l < c->layers; l++)
            if (t->layer == (c->universal ? 0 : l))
                *(const Weight **)((char *)&m->lc[l] + t->field) = &m->codes[i];
    }
    if (head >= 0) m->head_codes = &m->codes[m->manifest.count];
}

/* ---- numbers to codes, and back -------------------------------------------------------------- */

/* A tensor's values at `to`, which may be `from`, become those of its codes. */
static void round_to_codes(const Model *m, const Tensor *t, floatX *to, const floatX *from) {
    const int O = codes_shape(t, 2), C = codes_shape(t, 1);
    const Fp8 code = m->one_matrix;
    for (size_t e = 0, n = t->count / matrices(t); e < matrices(t); e++) {
        m->dev->weight_to_codes(code, float_at(m, from, e * n), 1, O, C);
        m->dev->weight_from_codes(float_at(m, to, e * n), (Weight){ code.code, code.scale, OF_FP8 }, 1, O, C);
    }
}
static void keep(const Model *m, const Tensor *t, const Weight *w, floatX *to, const floatX *from) {
    if (!w) round_to_codes(m, t, to, from);
    else m->dev->weight_to_codes((Fp8){ (uint8_t *)w->at, (real *)w->scale }, from, (int)matrices(t), codes_shape(t, 2),
                                 codes_shape(t, 1));
}
void codes_keep(Model *m, int tensor, int is_coded) {
    const Tensor *t = &m->manifest.at[tensor];
    floatX *const at = model_weight(m, t);
    if (format_of(m, t) == OF_FP8 && !is_coded) keep(m, t, m->codes ? &m->codes[tensor] : NULL, at, at);
    if (tensor == tied_head(m)) keep(m, t, m->head_codes, m->from_codes, at);
}

static void widen(const Model *m, const Tensor *t, const Weight *w, floatX *to) {
    m->dev->weight_from_codes(to, *w, (int)matrices(t), codes_shape(t, 2), codes_shape(t, 1));
}
void codes_widen(const Model *m, int range) {
    const int head = tied_head(m);
    for (int i = 0; m->codes && i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (m->codes[i].format && t->range == range) widen(m, t, &m->codes[i], model_weight(m, t));
    }
    if (m->codes && head >= 0 && range == last_range(m)) widen(m, &m->manifest.at[head], m->head_codes, m->from_codes);
}
