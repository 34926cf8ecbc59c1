/* model.c: see fuzz.h. A model's buffers lie next to each other in one allocation: without what is
 * between them here, the sanitizer would not see that something writes past the end of one. */
#include "fuzz.h"
#include "llmc/model/model.h"
#include "llmc/model/plan.h"
#include <sanitizer/asan_interface.h>

void fuzz_allocate(Model *m) {
    enum { GUARD = 1 << 16 };
    Arena *a = &m->arena, apart = { 0 };
    void **guard = mem_alloc((size_t)a->count * sizeof *guard);
    for (int i = 0; i < a->count; i++) {
        arena_add(&apart, a->at[i].category, a->at[i].name, a->at[i].pointer, a->at[i].bytes);
        arena_add(&apart, MEM_DATA, "guard", &guard[i], GUARD);
    }
    const int count = a->count;
    *a = apart;
    if (!model_allocate(m)) fail(EXIT_MEMORY, "no memory for the model");
    for (int i = 0; i < count; i++) __asan_poison_memory_region(guard[i], GUARD);
}
