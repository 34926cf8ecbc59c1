/* share.c: see share.h. */
#include "share.h"
#include "llmc/model/parallel.h"
#include "llmc/model/routers.h"
#include <stdlib.h>

enum { GAP = 256 };                     /* bytes between tensors that are copied along, so that a copy is a few large pieces */

Dtype share_type(const Share *s, int array) { return array == SHARE_WEIGHTS ? FLOATX : optimizer_type(s->optimizer, array); }
size_t share_element(const Share *s, int array) { return dtype_size(s->model->dev, share_type(s, array)); }
int share_has(const Share *s, int array, int tensor) {
    return array == SHARE_WEIGHTS || (s->optimizer && (array < STATE_KINDS - 1 || s->optimizer->master) && optimizer_has(s->optimizer, s->model, array, tensor));
}
static const char *array_of(const Share *s, int array) {
    return array == SHARE_WEIGHTS ? (const char *)s->model->params : optimizer_part(s->optimizer, array);
}
static size_t bias_bytes(const Share *s) { return s->leads ? router_offset(s->model, s->model->routers) * s->model->dev->real_size : 0; }

/* A rank that has all of a tensor writes only its piece of it, as if it were sharded. Ranks of different nodes that have the same piece
 * write parts of it. */
static Segment written(const Model *m, int tensor) {
    const Parallel *p = m->dp.parallel;
    Segment s = manifest_segment(&m->manifest, tensor, m->dp.shards, p ? parallel_shard(p) : 0);
    const size_t nodes = (size_t)(m->dp.ranks / m->dp.shards), node = p ? (size_t)(p->rank / m->dp.shards) : 0;
    const size_t from = s.count * node / nodes, end = s.count * (node + 1) / nodes;
    s.offset += from;
    s.count = end - from;
    return s;
}
static SharePart part_of(const Share *s, int array, int tensor) {
    const Model *m = s->model;
    const Segment mine = written(m, tensor);
    SharePart p = { .first = mine.offset - m->manifest.at[tensor].offset, .count = mine.count };
    if (array == SHARE_WEIGHTS) { p.source = optimizer_stored(m, mine).offset; return p; }
    const Segment own = optimizer_segment(s->optimizer, m, tensor);
    p.source = optimizer_place(own, array) + mine.offset - own.offset;
    return p;
}
void share_open(Share *s, const Model *m, const Optimizer *o) {
    *s = (Share){ .model = m, .optimizer = o, .leads = !m->dp.parallel || m->dp.parallel->rank == 0 };
    for (int a = 0; a < SHARE_ARRAYS; a++) {
        size_t end = 0;                                     /* of the source of the part before */
        s->parts[a] = mem_alloc((size_t)m->manifest.count * sizeof *s->parts[a]);
        for (int i = 0; i < m->manifest.count; i++) {
            SharePart *p = &s->parts[a][i];
            if (!share_has(s, a, i) || !(*p = part_of(s, a, i)).count) continue;
            const size_t element = share_element(s, a);
            const int follows = end && p->source >= end && (p->source - end) * element <= GAP;
            p->at = follows ? s->bytes + (p->source - end) * element : (s->bytes + GAP - 1) / GAP * GAP;
            s->bytes = p->at + p->count * element;
            end = p->source + p->count;
        }
    }
    s->bias_at = (s->bytes + GAP - 1) / GAP * GAP;
    s->bytes = s->bias_at + bias_bytes(s);
}
int share_make_room(Share *s) { return (s->copy = s->model->dev->host_alloc(s->bytes)) != NULL; }
void share_close(Share *s) {
    if (s->copy) s->model->dev->host_release(s->copy);
    for (int a = 0; a < SHARE_ARRAYS; a++) free(s->parts[a]);
    *s = (Share){ 0 };
}

void share_copy(Share *s) {
    const Device *dev = s->model->dev;
    for (int a = 0; a < SHARE_ARRAYS; a++) {
        size_t from = 0, to = 0, bytes = 0;                 /* of parts that follow each other: in the array, in the copy */
        for (int i = 0; i <= s->model->manifest.count; i++) {
            const SharePart *p = i < s->model->manifest.count ? &s->parts[a][i] : NULL;
            if (p && !p->count) continue;
            const size_t element = p ? share_element(s, a) : 0, source = p ? p->source * element : 0;
            if (p && bytes && source - from == p->at - to) {
                bytes = p->at - to + p->count * element;
                continue;
            }
            if (bytes) dev->copy_out(s->copy + to, array_of(s, a) + from, bytes);
            if (p) from = source, to = p->at, bytes = p->count * element;
        }
    }
    if (bias_bytes(s)) dev->copy_out(s->copy + s->bias_at, s->model->bias, bias_bytes(s));
    s->copied = 1;
}
void share_drop(Share *s) { s->copied = 0; }

const void *share_read(const Share *s, int array, int tensor, size_t first, size_t n, void *buffer) {
    const SharePart *p = &s->parts[array][tensor];
    const size_t element = share_element(s, array);
    if (s->copied) return s->copy + p->at + (first - p->first) * element;
    s->model->dev->download(buffer, array_of(s, array) + (p->source + first - p->first) * element, n * element);
    return buffer;
}
const void *share_bias(const Share *s, void *buffer) {
    if (s->copied) return s->copy + s->bias_at;
    s->model->dev->download(buffer, s->model->bias, bias_bytes(s));
    return buffer;
}
