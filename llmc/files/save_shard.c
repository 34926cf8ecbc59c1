/* save_shard.c: see save_shard.h. */
#include "save_shard.h"
#include "pieces.h"
#include "llmc/model/parallel.h"
#include "llmc/model/routers.h"
#include <stdlib.h>
#include <string.h>

enum { GAP = 256 };             /* bytes between tensors that are copied along, so that a copy is a few large pieces */

Dtype save_shard_type(const SaveShard *s, int array) {
    return array == SHARD_WEIGHTS ? FLOATX : optimizer_type(s->optimizer, array);
}
size_t save_shard_element(const SaveShard *s, int array) {
    return dtype_size(s->model->dev, save_shard_type(s, array));
}
int save_shard_has(const SaveShard *s, int array, int tensor) {
    return array == SHARD_WEIGHTS || (s->optimizer && optimizer_has(s->optimizer, s->model, array, tensor));
}
static const char *array_of(const SaveShard *s, int array) {
    return array == SHARD_WEIGHTS ? (const char *)s->model->params : optimizer_part(s->optimizer, array);
}
static size_t bias_bytes(const SaveShard *s) {
    return s->leads ? router_offset(s->model, s->model->routers) * s->model->dev->real_size : 0;
}

/* A rank that has all of a tensor writes only its piece of it, as if it were sharded. Ranks of
 * different nodes that have the same piece write parts of it. */
static Segment written(const Model *m, int tensor) {
    const Parallel *p = m->dp.parallel;
    Segment s = manifest_segment(&m->manifest, tensor, m->dp.shards, p ? parallel_shard(p) : 0);
    const size_t nodes = (size_t)(m->dp.ranks / m->dp.shards), node = p ? (size_t)(p->rank / m->dp.shards) : 0;
    const size_t from = s.count * node / nodes, end = s.count * (node + 1) / nodes;
    s.offset += from;
    s.count = end - from;
    return s;
}
/* Of Muon's mean squares a rank writes those of the matrices that begin in its piece. */
static SaveShardPart squares_of(const SaveShard *s, int tensor) {
    const Tensor *t = &s->model->manifest.at[tensor];
    const Segment mine = written(s->model, tensor);
    const size_t each = (size_t)tensor_rows(t) * (size_t)t->shape[t->rank - 1], at = mine.offset - t->offset,
        first = (at + each - 1) / each, end = (at + mine.count + each - 1) / each,
        side = optimizer_elements(s->optimizer, s->model, STATE_SQUARES, tensor) / (t->count / each);
    SaveShardPart p = { 0 };
    if (!mine.count) return p;
    p.first = first * side;
    p.count = p.own = (end - first) * side;
    p.source = optimizer_segment(s->optimizer, s->model, tensor).squares + p.first;
    return p;
}
static SaveShardPart part_of(const SaveShard *s, int array, int tensor) {
    const Model *m = s->model;
    const Tensor *t = &m->manifest.at[tensor];
    Segment mine = written(m, tensor);
    SaveShardPart p = { .first = mine.offset - t->offset, .count = mine.count, .own = mine.count };
    if (array == SHARD_WEIGHTS) {
        const size_t unit = expert_unit(m, tensor), end = p.first + p.count, first = (p.first + unit - 1) / unit * unit;
        if (!p.count) return p;
        mine.offset = t->offset + first;
        p.first = first;
        p.count = (end + unit - 1) / unit * unit - first;
        p.own = m->dp.level < 3 ? p.count : end > first ? end - first : 0;
        p.source = optimizer_stored(m, tensor, mine).offset;
        return p;
    }
    if (array == STATE_SQUARES) return squares_of(s, tensor);
    if (array == STATE_NORMS) {                             /* all ranks have them */
        p.first = 0, p.count = p.own = s->leads ? optimizer_elements(s->optimizer, m, array, tensor) : 0;
        p.source = optimizer_segment(s->optimizer, m, tensor).norms;
        return p;
    }
    const Segment own = optimizer_segment(s->optimizer, m, tensor);
    const size_t unit = optimizer_unit(array), end = p.first + p.count;
    p.first = (p.first + unit - 1) / unit;                  /* of scales those whose blocks begin in its piece */
    p.count = p.own = (end + unit - 1) / unit - p.first;
    p.source = optimizer_offset(own, array) + p.first - (own.offset - t->offset) / unit;
    return p;
}
void save_shard_open(SaveShard *s, const Model *m, const Optimizer *o) {
    *s = (SaveShard){ .model = m, .optimizer = o, .leads = !m->dp.parallel || m->dp.parallel->rank == 0 };
    for (int a = 0; a < SHARD_ARRAYS; a++) {
        size_t end = 0;                                     /* of the source of the part before */
        s->parts[a] = mem_alloc((size_t)m->manifest.count * sizeof *s->parts[a]);
        for (int i = 0; i < m->manifest.count; i++) {
            SaveShardPart *p = &s->parts[a][i];
            if (!save_shard_has(s, a, i) || !(*p = part_of(s, a, i)).count) continue;
            const size_t element = save_shard_element(s, a);
            const int follows = end && p->source >= end && (p->source - end) * element <= GAP;
            p->borrowed = s->borrowed_bytes;
            s->borrowed_bytes += (p->count - p->own) * element;
            p->at = follows ? s->bytes + (p->source - end) * element : (s->bytes + GAP - 1) / GAP * GAP;
            s->bytes = p->at + p->own * element;
            end = p->source + p->own;
        }
    }
    s->bias_at = (s->bytes + GAP - 1) / GAP * GAP;
    s->bytes = s->bias_at + bias_bytes(s);
    size_t pieces;                                          /* of tensors; then, in the worst case, heads and biases */
    free(pieces_of(m, &pieces));
    s->most_parts = pieces + (size_t)(STATE_KINDS * m->manifest.count + m->routers) + 2;
}
int save_shard_sum(const SaveShard *s, Group *group, const FilePart *parts, size_t count, FileSum *sum) {
    const size_t ranks = group ? (size_t)group->size : 1;
    const size_t most = group ? (size_t)group_max(group, (int)count, (int)s->most_parts) : count;
    FilePart *all = mem_alloc((ranks + 1) * most * sizeof *all), *mine = all + ranks * most;
    size_t n = 0;
    if (count) memcpy(mine, parts, count * sizeof *mine);
    if (group) group->exchange(group, all, mine, most * sizeof *mine);
    else memcpy(all, mine, most * sizeof *mine);
    for (size_t i = 0; i < ranks * most; i++) if (all[i].sum.bytes) all[n++] = all[i];
    const int ok = file_sum(all, n, sum);
    free(all);
    return ok;
}
void save_shard_close(SaveShard *s) {
    for (int a = 0; a < SHARD_ARRAYS; a++) free(s->parts[a]);
    *s = (SaveShard){ 0 };
}

void save_shard_copy(SaveShard *s, int weights_only) {
    const Device *dev = s->model->dev;
    for (int a = weights_only ? SHARD_WEIGHTS : 0; a < SHARD_ARRAYS; a++) {
        size_t from = 0, to = 0, bytes = 0;             /* of parts that follow each other: in the array, in the copy */
        for (int i = 0; i <= s->model->manifest.count; i++) {
            const SaveShardPart *p = i < s->model->manifest.count ? &s->parts[a][i] : NULL;
            if (p && !p->own) continue;
            const size_t element = p ? save_shard_element(s, a) : 0, source = p ? p->source * element : 0;
            if (p && bytes && source - from == p->at - to) {
                bytes = p->at - to + p->own * element;
                continue;
            }
            if (bytes) dev->copy_out(s->copy + to, array_of(s, a) + from, bytes);
            if (p) from = source, to = p->at, bytes = p->own * element;
        }
    }
    if (bias_bytes(s)) dev->copy_out(s->copy + s->bias_at, s->model->bias, bias_bytes(s));
    s->copied = 1;
}
void save_shard_stream(SaveShard *s) {
    if (!s->model->dev->is_gpu) return;                     /* the host has its memory */
    SaveStream *q = mem_alloc(sizeof *q);
    q->bytes = s->bytes < SAVE_PIECE ? s->bytes : SAVE_PIECE;
    q->memory = host_buffer_open(s->model->dev, s->model->params, q->bytes);
    if (host_buffer_state(q->memory, 1) == BUFFER_READY) { s->stream = q; return; }
    host_buffer_close(q->memory);
    free(q);
}
void save_shard_drop(SaveShard *s) {
    if (s->stream) host_buffer_close(s->stream->memory);
    free_each(s->borrowed, s->stream);
    s->borrowed = NULL;
    s->stream = NULL;
    s->copied = 0;
}
/* n elements that the device has, through the buffer: it gets as many from `first` on as it holds,
 * and so what the next calls ask for, too. */
static const void *streamed(const SaveShard *s, int array, int tensor, size_t first, size_t n) {
    const Device *dev = s->model->dev;
    SaveStream *q = s->stream;
    const SaveShardPart *p = &s->parts[array][tensor];
    const size_t element = save_shard_element(s, array), most = q->bytes / element, left = p->first + p->own - first;
    char *const memory = host_buffer_memory(q->memory);
    if (!q->n || q->array != array || q->tensor != tensor || first < q->first || first + n > q->first + q->n) {
        q->array = array, q->tensor = tensor, q->first = first, q->n = left < most ? left : most;
        dev->copy_out(memory, array_of(s, array) + (p->source + first - p->first) * element, q->n * element);
        dev->copied(1);
    }
    return memory + (first - q->first) * element;
}

/* Does a rank's own part of a range end within a unit? The same answer on all ranks. */
static int is_cut(const Model *m, int range) {
    for (int i = 0; i < m->manifest.count; i++)
        for (int r = 0; r < m->dp.shards * (m->manifest.at[i].range == range && expert_unit(m, i) > 1); r++) {
            const Segment s = manifest_segment(&m->manifest, i, m->dp.shards, r);
            const int nodes = m->dp.ranks / m->dp.shards;
            if (s.count && (nodes > 1 || (s.offset + s.count - m->manifest.at[i].offset) % expert_unit(m, i))) return 1;
        }
    return 0;
}
void save_shard_borrow(SaveShard *s) {
    const Model *m = s->model;
    const size_t X = m->dev->floatX_size;
    for (int i = 0; i < m->manifest.count; i++) if (expert_unit(m, i) > 1) { parallel_wait_all_weights(m); break; }
    s->borrowed = mem_alloc(s->borrowed_bytes);
    for (int range = 0; range < m->manifest.range_count && m->dp.level >= 3; range++) {
        if (!is_cut(m, range)) continue;
        const char *full = parallel_full_weights(m, range);
        for (int i = 0; i < m->manifest.count; i++) {
            const SaveShardPart *p = &s->parts[SHARD_WEIGHTS][i];
            const size_t from = m->manifest.at[i].offset + p->first + p->own - m->manifest.ranges[range].offset;
            if (m->manifest.at[i].range == range && p->count > p->own)
                m->dev->download(s->borrowed + p->borrowed, full + from * X, (p->count - p->own) * X);
        }
    }
}

const void *save_shard_read(const SaveShard *s, int array, int tensor, size_t first, size_t n, void *buffer) {
    const SaveShardPart *p = &s->parts[array][tensor];
    const size_t element = save_shard_element(s, array), end = p->first + p->own, from = first > end ? first : end;
    if (first + n > end) {                                  /* the last ones are borrowed */
        if (first < end) {
            const void *own = save_shard_read(s, array, tensor, first, end - first, buffer);
            if (own != buffer) memcpy(buffer, own, (end - first) * element);
        }
        memcpy((char *)buffer + (from - first) * element, s->borrowed + p->borrowed + (from - end) * element,
               (first + n - from) * element);
        return buffer;
    }
    if (s->copied) return s->copy + p->at + (first - p->first) * element;
    if (s->stream && n * element <= s->stream->bytes) return streamed(s, array, tensor, first, n);
    s->model->dev->download(buffer, array_of(s, array) + (p->source + first - p->first) * element, n * element);
    return buffer;
}
const void *save_shard_bias(const SaveShard *s, void *buffer) {
    if (s->copied) return s->copy + s->bias_at;
    s->model->dev->download(buffer, s->model->bias, bias_bytes(s));
    return buffer;
}
