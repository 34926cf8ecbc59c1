/* codeset.c: see codeset.h. */
#include "codeset.h"
#include "llmc/base/base.h"
#include <stdlib.h>

void codeset_add(CodeSet *s, uint32_t first, uint32_t last) {
    if (s->count == s->capacity) s->at = mem_grow(s->at, (s->capacity = 2 * s->capacity + 4) * sizeof *s->at);
    s->at[s->count++] = (CodeRange){ first, last };
}

static int by_first(const void *a, const void *b) {
    const uint32_t x = ((const CodeRange *)a)->first, y = ((const CodeRange *)b)->first;
    return (x > y) - (x < y);
}
void codeset_sort(CodeSet *s) {
    size_t kept = 0;
    if (s->count) qsort(s->at, s->count, sizeof *s->at, by_first);
    for (size_t i = 0; i < s->count; i++) {
        if (kept && s->at[i].first <= s->at[kept - 1].last + 1) {
            if (s->at[i].last > s->at[kept - 1].last) s->at[kept - 1].last = s->at[i].last;
        } else s->at[kept++] = s->at[i];
    }
    s->count = kept;
}

void codeset_join(CodeSet *s, const CodeSet *other) {
    for (size_t i = 0; i < other->count; i++) codeset_add(s, other->at[i].first, other->at[i].last);
    codeset_sort(s);
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
    CodeSet without = { 0 };
    codeset_join(&without, other);
    codeset_invert(&without);
    codeset_invert(s);
    codeset_join(s, &without);
    codeset_invert(s);
    free(without.at);
}

int codeset_has(const CodeSet *s, uint32_t code) {
    size_t low = 0, high = s->count;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (code > s->at[mid].last) low = mid + 1; else high = mid;
    }
    return low < s->count && s->at[low].first <= code;
}
