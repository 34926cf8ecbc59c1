/* room.h: much memory of the host, taken by a thread. Fresh pages of tens of GB take many seconds; a run trains meanwhile, as nothing is
 * saved in its first minute. */
#ifndef ROOM_H
#define ROOM_H
#include <stddef.h>

typedef struct Room Room;
typedef enum { ROOM_NONE, ROOM_LATER, ROOM_READY } RoomState;  /* NONE: the host does not have it. In this order: the least of several counts */

Room     *room_open(size_t bytes);
RoomState room_state(Room *r, int waits);                   /* waits: not LATER */
void     *room_memory(const Room *r);                       /* of one that is READY */
void      room_close(Room *r);                              /* also LATER: then its thread frees it */
#endif
