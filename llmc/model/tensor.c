/* tensor.c: see tensor.h. */
#include "tensor.h"
#include "llmc/base/base.h"
#include "llmc/base/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64,                      /* elements: tensors start on 128 bytes even as bf16, as bulk copies need */
       MOST_OF_RANGE = 64 };            /* tensors */

void manifest_add(Manifest *m, int layer, size_t field, const char *name, float init, TensorKind kind, int rank,
                  const int *shape) {
    array_grow(m->at, m->count, m->capacity);
    Tensor *t = &m->at[m->count++];
    *t = (Tensor){ .rank = rank, .offset = m->total, .count = 1, .init = init, .kind = kind, .field = field,
                   .summed = kind == TENSOR_NORM || kind == TENSOR_BIAS || kind == TENSOR_VALUES
                          || kind == TENSOR_BIGRAM || kind == TENSOR_SCALARS,
                   .padding = kind == TENSOR_EMBEDDING || kind == TENSOR_HEAD || kind == TENSOR_VALUES ? m->padding : 0,
                   .layer = layer, .range = m->range_count };
    if (layer < 0) snprintf(t->name, sizeof t->name, "%s", name);
    else snprintf(t->name, sizeof t->name, "model.layers.%d.%s", layer, name);
    for (int i = 0; i < rank; i++) t->count *= (size_t)(t->shape[i] = shape[i]);
    m->learnable += t->count;
    m->total += (t->count + ALIGN - 1) / ALIGN * ALIGN;
}
int tensor_rows(const Tensor *t) {
    return t->shape[t->rank - 2] / (t->kind == TENSOR_KEYS_VALUES || t->kind == TENSOR_GATE_UP ? 2 : 1);
}
static size_t rounded(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
int tensor_is_experts(const Tensor *t) { return t->rank == 3 && (t->kind == TENSOR_MLP || t->kind == TENSOR_GATE_UP); }
/* Moves tensors `first` .., a range that begins at `from`, unless that takes too much padding. */
static void end_pieces_between_matrices(Manifest *m, size_t from, int first) {
    size_t unit = 0, offsets[MOST_OF_RANGE], at = from;
    for (int i = first; i < m->count; i++)
        if (tensor_is_experts(&m->at[i])) unit = (size_t)tensor_rows(&m->at[i]) * (size_t)m->at[i].shape[2];
    if (!unit || unit % ALIGN || m->count - first > MOST_OF_RANGE) return;
    for (int i = first; i < m->count; i++) {
        if (tensor_is_experts(&m->at[i])) at = from + rounded(at - from, unit);
        offsets[i - first] = at;
        at += rounded(m->at[i].count, ALIGN);
    }
    at = from + rounded(at - from, unit * (size_t)m->shards);
    if (at - m->total > (m->total - from) / 16) return;
    for (int i = first; i < m->count; i++) m->at[i].offset = offsets[i - first];
    m->total = at;
}
void manifest_end_range(Manifest *m) {
    const Range *last = m->range_count ? &m->ranges[m->range_count - 1] : NULL;
    const size_t from = last ? last->offset + last->count : 0;
    int first = m->count;
    while (first && m->at[first - 1].range == m->range_count) first--;
    if (m->by_matrix && m->shards > 1) end_pieces_between_matrices(m, from, first);
    m->total = from + rounded(m->total - from, ALIGN * (size_t)m->shards);
    m->ranges = mem_grow(m->ranges, (size_t)(m->range_count + 1) * sizeof *m->ranges);
    m->ranges[m->range_count++] = (Range){ .offset = from, .count = m->total - from,
                                           .sums = from / (size_t)m->shards };
}
size_t manifest_largest(const Manifest *m) {
    size_t most = 0;
    for (int i = 0; i < m->range_count; i++) if (m->ranges[i].count > most) most = m->ranges[i].count;
    return most;
}
void manifest_free(Manifest *m) {
    free_each(m->at, m->ranges);
    *m = (Manifest){ 0 };
}

void manifest_lay_out_gradients(Manifest *m, const Device *dev) {
    size_t at = m->gradient_bytes = 0, kept = 0;
    for (int i = 0; i < 2 * m->count; i++) {
        const int passes = i >= m->count, k = i % m->count;
        Tensor *t = &m->at[k];
        const size_t end = k + 1 < m->count ? t[1].offset : m->total;
        if (k == 0) kept = at;
        if (passes && k && t->range != t[-1].range) at = kept;
        if (t->passes != passes) continue;
        t->element = dtype_size(dev, t->dtype);
        t->gradient = at / t->element;                      /* it is a multiple of ALIGN of any kind of number */
        at += (end - t->offset) * t->element;
        if (at > m->gradient_bytes) m->gradient_bytes = at;
    }
}

void manifest_lay_out_sums(Manifest *m, const Device *dev) {
    const size_t shards = (size_t)m->shards;
    size_t at = 0, most = 0;
    for (int i = 0; i < m->count; i++) if (m->at[i].passes) m->ranges[m->at[i].range].passes = 1;
    for (int i = 0; i < m->range_count; i++) {
        Range *r = &m->ranges[i];
        if (!r->passes) r->sums = at, at += r->count / shards;
        else if (r->count / shards > most) most = r->count / shards;
    }
    for (int i = 0; i < m->count; i++) {
        Tensor *t = &m->at[i];
        const size_t piece = m->ranges[t->range].count / shards, own = t->count < piece ? t->count : piece;
        if (m->ranges[t->range].passes && !t->passes) t->gradient = at, at += rounded(own, ALIGN);
    }
    for (int i = 0; i < m->range_count; i++) if (m->ranges[i].passes) m->ranges[i].sums = at;
    m->gradient_bytes = (at + most) * dev->real_size * shards;
}

void *gradient_of(const Tensor *t, const void *gradients) { return (char *)gradients + t->gradient * t->element; }

/* A shard stores its pieces one after the other: that of a range begins at offset / shards. */
Segment manifest_part(const Manifest *m, int range, int shards, int shard) {
    const Range *r = &m->ranges[range];
    const size_t count = r->count / (size_t)shards, offset = r->offset + (size_t)shard * count;
    return (Segment){ .offset = offset, .count = count, .shift = offset - r->offset / (size_t)shards };
}
size_t manifest_sums(const Manifest *m, int range, Segment s) {
    const Range *r = &m->ranges[range];
    return r->sums + (s.offset - s.shift - r->offset / (size_t)m->shards);
}
Segment manifest_segment(const Manifest *m, int i, int shards, int shard) {
    const Tensor *t = &m->at[i];
    const Segment part = manifest_part(m, t->range, shards, shard);
    const size_t end = part.offset + part.count, last = t->offset + t->count;
    const size_t from = t->offset > part.offset ? t->offset : part.offset, to = last < end ? last : end;
    return (Segment){ .offset = from, .count = to > from ? to - from : 0, .rate = 1, .shift = part.shift,
                      .dtype = t->dtype, .gradient = t->gradient + (from - t->offset) };
}

void manifest_initial(const Tensor *t, uint64_t seed, size_t from, size_t n, int exact, double *values) {
    enum { DRAWN = 4096 };                                  /* by a thread at a time */
    const uint64_t key = random_key(seed, hash_bytes(0, t->name, strlen(t->name)));
    const size_t files = t->count / (size_t)t->shape[0] * (size_t)(t->shape[0] - t->padding);
    const size_t drawn = t->init == ONES || t->init == ZEROS || from >= files ? 0 : files - from < n ? files - from : n;
    #pragma omp parallel for if (n > 10000)
    for (size_t i = 0; i < drawn; i += DRAWN) {
        const size_t count = drawn - i < DRAWN ? drawn - i : DRAWN;
        if (!exact) random_normals(key, from + i, count, (double)t->init, values + i);
        for (size_t j = i; exact && j < i + count; j++) values[j] = (double)t->init * random_normal(key, from + j);
    }
    for (size_t i = drawn; i < n; i++) values[i] = t->init == ONES;
}

/* NaN and infinity have an exponent of ones. The first inner loop has no exit: it is vectorized. */
#define NOT_FINITE(name, type, exponent) \
static int is_##name(const char *at) { \
    type bits; \
    memcpy(&bits, at, sizeof bits); \
    return (bits & (exponent)) == (exponent); \
} \
static size_t name(const char *data, size_t n) { \
    enum { BLOCK = 1024 }; \
    for (size_t i = 0; i < n; i += BLOCK) { \
        const size_t end = n - i < BLOCK ? n : i + BLOCK; \
        int bad = 0; \
        for (size_t j = i; j < end; j++) bad |= is_##name(data + j * sizeof(type)); \
        for (size_t j = i; bad && j < end; j++) if (is_##name(data + j * sizeof(type))) return j; \
    } \
    return n; \
}
NOT_FINITE(not_finite_f64,  uint64_t, 0x7ff0000000000000u)
NOT_FINITE(not_finite_f32,  uint32_t, 0x7f800000u)
NOT_FINITE(not_finite_bf16, uint16_t, 0x7f80u)
size_t first_not_finite(const char *dtype, const void *data, size_t n) {
    return !strcmp(dtype, "F64") ? not_finite_f64(data, n) : !strcmp(dtype, "F32") ? not_finite_f32(data, n)
         : !strcmp(dtype, "I8") ? n : not_finite_bf16(data, n);
}
