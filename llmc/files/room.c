/* room.c: see room.h. */
#define _POSIX_C_SOURCE 200809L
#include "room.h"
#include "llmc/base/base.h"
#include "llmc/model/tensor.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { WORKS, ENDED, CLOSED };          /* CLOSED: by its owner, while the thread worked */
struct Room {
    size_t bytes;
    char *memory;
    int   has_thread;
    pthread_t thread;
    atomic_int state;
};

static const Device *host(void) { return device_find("cpu-f32"); }
static void drop(Room *r) {
    if (r->memory) host()->release(r->memory);
    free(r);
}
static void *take(void *room) {
    Room *r = room;
    r->memory = host()->alloc(r->bytes);                    /* which writes to all of it */
    if (atomic_exchange(&r->state, ENDED) == CLOSED) drop(r);
    return NULL;
}

/* At least large pages, so that no page has anything else, too. */
Room *room_open(size_t bytes) {
    enum { LEAST = 2 << 20 };
    Room *r = mem_alloc(sizeof *r);
    r->bytes = bytes > LEAST ? bytes : LEAST;
    r->has_thread = !pthread_create(&r->thread, NULL, take, r);
    if (!r->has_thread) take(r);
    return r;
}
RoomState room_state(Room *r, int waits) {
    if (r->has_thread && (waits || atomic_load(&r->state) == ENDED)) {
        pthread_join(r->thread, NULL);
        r->has_thread = 0;
    }
    return r->has_thread ? ROOM_LATER : r->memory ? ROOM_READY : ROOM_NONE;
}
void *room_memory(const Room *r) { return r->memory; }
void room_close(Room *r) {
    if (!r) return;
    const pthread_t thread = r->thread;                     /* it may free r as soon as it is CLOSED */
    if (!r->has_thread) drop(r);
    else if (atomic_exchange(&r->state, CLOSED) == WORKS) pthread_detach(thread);
    else {
        pthread_join(thread, NULL);
        drop(r);
    }
}
