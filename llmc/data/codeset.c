/* codeset.c: see codeset.h. */
#include "codeset.h"
#include "llmc/base/base.h"
#include <stdlib.h>

void codeset_add(CodeSet *s, uint32_t first, uint32_t last) {
    array_grow(s->at, s->count, s->capacity);
    s->at[s->count++] = (CodeRange){ first, last };
}

static int by_first(const void *a, const void *b) {
    const uint32_t x = ((const CodeRange *)a)->first, y = ((const CodeRange *)b)->first;
    return (x > y) - (x < y);
}
/* A range that begins after all of those before it; it may touch the last one. */
static void append(CodeSet *s, CodeRange r) {
    CodeRange *last = s->count ? &s->at[s->count - 1] : NULL;
    if (!last || r.first > last->last + 1) codeset_add(s, r.first, r.last);
    else if (r.last > last->last) last->last = r.last;
}
void codeset_sort(CodeSet *s) {
    const size_t count = s->count;
    size_t i = 1;
    while (i < count && s->at[i].first > s->at[i - 1].last + 1) i++;
    if (i >= count) return;
    qsort(s->at, count, sizeof *s->at, by_first);
    for (i = s->count = 0; i < count; i++) append(s, s->at[i]);
}

void codeset_join(CodeSet *s, const CodeSet *other) {
    CodeSet out = { 0 };
    codeset_sort(s);
    for (size_t i = 0, k = 0; i < s->count || k < other->count; )
        append(&out, k == other->count || (i < s->count && s->at[i].first < other->at[k].first) ? s->at[i++]
                     : other->at[k++]);
    free(s->at);
    *s = out;
}

void codeset_invert(CodeSet *s) {
    CodeSet out = { 0 };
    uint32_t next = 0;
    for (size_t i = 0; i < s->count; next = s->at[i++].last + 1)
        if (s->at[i].first > next) codeset_add(&out, next, s->at[i].first - 1);
    if (next <= CODE_MAX) codeset_add(&out, next, CODE_MAX);
    free(s->at);
    *s = out;
}

void codeset_cross(CodeSet *s, const CodeSet *other) {
    CodeSet out = { 0 };
    for (size_t i = 0, k = 0; i < s->count && k < other->count; ) {
        const CodeRange a = s->at[i], b = other->at[k];
        const uint32_t first = a.first > b.first ? a.first : b.first, last = a.last < b.last ? a.last : b.last;
        if (first <= last) codeset_add(&out, first, last);
        if (a.last < b.last) i++; else k++;
    }
    free(s->at);
    *s = out;
}

int codeset_has(const CodeSet *s, uint32_t code) {
    size_t low = 0, high = s->count;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (code > s->at[mid].last) low = mid + 1; else high = mid;
    }
    return low < s->count && s->at[low].first <= code;
}
