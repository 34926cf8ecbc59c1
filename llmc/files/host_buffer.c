/* host_buffer.c: see host_buffer.h. */
#define _DEFAULT_SOURCE
#include "host_buffer.h"
#include "llmc/base/base.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct HostBuffer {
    const Device *dev;
    const void *near;
    size_t bytes, locked;                   /* of memory, from its beginning on; whole pieces, but for the last */
    char *memory, *mapped;                  /* memory begins at a multiple of HOST_PIECE */
    int   has_thread;
    pthread_t thread;
    atomic_int ended, closes;
};

static size_t piece(const HostBuffer *r, size_t at) { return r->bytes - at < HOST_PIECE ? r->bytes - at : HOST_PIECE; }
static size_t mapped_bytes(const HostBuffer *r) { return r->bytes + HOST_PIECE; }
/* Huge pages are locked sooner. */
static char *map(const HostBuffer *r) {
    if (mapped_bytes(r) < r->bytes) return NULL;
    void *p = mmap(NULL, mapped_bytes(r), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
#if defined(MADV_HUGEPAGE)
    madvise(p, mapped_bytes(r), MADV_HUGEPAGE);
#endif
    return p;
}
static void *take(void *buffer) {
    HostBuffer *r = buffer;
    while (r->locked < r->bytes && !r->closes) {
        const size_t n = piece(r, r->locked);
        memset(r->memory + r->locked, 0, n);
        if (!r->dev->host_lock(r->near, r->memory + r->locked, n)) break;
        r->locked += n;
    }
    r->ended = 1;
    return NULL;
}

HostBuffer *host_buffer_open(const Device *dev, const void *near, size_t bytes) {
    HostBuffer *r = mem_alloc(sizeof *r);
    r->dev = dev;
    r->near = near;
    r->bytes = bytes;
    r->mapped = map(r);
    if (!r->mapped) return r;
    r->memory = r->mapped + (HOST_PIECE - (uintptr_t)r->mapped % HOST_PIECE) % HOST_PIECE;
    r->has_thread = !pthread_create(&r->thread, NULL, take, r);
    if (!r->has_thread) take(r);
    return r;
}
BufferState host_buffer_state(HostBuffer *r, int waits) {
    if (r->has_thread && (waits || r->ended)) {
        pthread_join(r->thread, NULL);
        r->has_thread = 0;
    }
    return r->has_thread ? BUFFER_LATER : r->mapped && r->locked == r->bytes ? BUFFER_READY : BUFFER_NONE;
}
void *host_buffer_memory(const HostBuffer *r) { return r->memory; }
void host_buffer_close(HostBuffer *r) {
    if (!r) return;
    r->closes = 1;
    host_buffer_state(r, 1);
    for (size_t at = 0; at < r->locked; at += piece(r, at)) r->dev->host_unlock(r->memory + at);
    if (r->mapped) munmap(r->mapped, mapped_bytes(r));
    free(r);
}
