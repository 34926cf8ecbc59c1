/* arena.h: memory is planned before it is allocated. Every buffer of a run is added by name,
 * category and size; the plan can be printed and compared with what the device has; then one
 * allocation is made and the pointers are set: a run that starts has all its memory. */
#pragma once
#include "llmc/base/base.h"
#include "kernels/kernels.h"

typedef enum {
    MEM_WEIGHTS, MEM_GRADIENTS, MEM_OPTIMIZER, MEM_KEPT, MEM_SHARED, MEM_CACHE, MEM_DATA, MEM_CATEGORIES
} MemCategory;
extern const char *const mem_category_name[MEM_CATEGORIES];

typedef struct { void **pointer; size_t bytes; MemCategory category; const char *name; } ArenaEntry;
typedef struct {
    ArenaEntry *at;
    int    count, capacity;
    size_t category[MEM_CATEGORIES], total;
    void  *base;
} Arena;

/* Plans bytes for *pointer, zeroed, aligned to 256. pointer itself stays until arena_allocate. */
void arena_add(Arena *a, MemCategory category, const char *name, void *pointer, size_t bytes);
void arena_resize(Arena *a, const void *pointer, size_t bytes);         /* of what was planned for that pointer */
size_t arena_rounded(size_t bytes);                     /* what that takes */
int  arena_allocate(Arena *a, const Device *dev);       /* 0 if the device does not have it; then nothing was changed */
void arena_limit(size_t bytes);         /* at most this many for all arenas of the calling thread; 0: no limit */
void arena_free(Arena *a, const Device *dev);
