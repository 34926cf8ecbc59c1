/* room.h: much memory of the host, which a device reaches directly, made by a thread. Fresh pages of tens of GB take many seconds, and
 * locking them for a GPU some more; a run trains meanwhile, as nothing is saved in its first minute. */
#ifndef ROOM_H
#define ROOM_H
#include "llmc/model/tensor.h"

typedef struct Room Room;
typedef enum { ROOM_NONE, ROOM_LATER, ROOM_READY } RoomState;  /* NONE: the host does not have it. In this order: the least of several counts */

Room     *room_open(const Device *dev, const void *near, size_t bytes);     /* near: memory of the device */
RoomState room_state(Room *r, int waits);                   /* waits: not LATER */
void     *room_memory(const Room *r);                       /* of one that is READY: zeros */
void      room_close(Room *r);                              /* also LATER */
#endif
