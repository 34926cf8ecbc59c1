/* arena.c: see arena.h. */
#include "arena.h"
#include <stdlib.h>

enum { ALIGN = 256 };
const char *const mem_category_name[MEM_CATEGORIES] = {
    "weights", "gradients", "optimizer state", "activations, kept per layer", "buffers, shared by layers",
    "key/value cache", "batch and statistics",
};

size_t arena_rounded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }
void arena_add(Arena *a, MemCategory category, const char *name, void *pointer, size_t bytes) {
    array_grow(a->at, a->count, a->capacity);
    bytes = arena_rounded(bytes);
    a->at[a->count++] = (ArenaEntry){ .pointer = pointer, .bytes = bytes, .category = category, .name = name };
    a->category[category] += bytes;
    a->total = bytes > SIZE_MAX - a->total ? SIZE_MAX : a->total + bytes;       /* which no device has */
}
void arena_resize(Arena *a, const void *pointer, size_t bytes) {
    bytes = arena_rounded(bytes);
    for (int i = 0; i < a->count; i++) {
        ArenaEntry *x = &a->at[i];
        if ((const void *)x->pointer != pointer) continue;
        a->category[x->category] += bytes - x->bytes, a->total += bytes - x->bytes;
        x->bytes = bytes;
    }
}
static _Thread_local size_t most, taken;        /* most: 0: no limit */
void arena_limit(size_t bytes) { most = bytes; }
int arena_allocate(Arena *a, const Device *dev) {
    char *at = !most || (taken <= most && a->total <= most - taken) ? dev->alloc(a->total) : NULL;
    if (!at) return 0;
    a->base = at;
    taken += a->total;
    for (int i = 0; i < a->count; i++) {
        *a->at[i].pointer = at;
        at += a->at[i].bytes;
    }
    return 1;
}
void arena_free(Arena *a, const Device *dev) {
    if (a->base) dev->release(a->base), taken -= a->total;
    free(a->at);
    *a = (Arena){ 0 };
}
