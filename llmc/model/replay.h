/* replay.h: work that is recorded once and replayed. */
#ifndef REPLAY_H
#define REPLAY_H
#include "kernels/kernels.h"

/* Work that is queued again and again, the same each time but for what lies in device memory: done plainly the first time,
 * recorded the second, and replayed from then on, where the device can (kernels.h). Starts as { 0 }. */
typedef struct {
    int        off;                     /* 1: never record. Set by the user, or after it has failed once */
    int        runs;                    /* in this state, without a recording */
    uint64_t   state;
    Recording *recording;
} Replay;

/* state: a number of everything on the host that work(context) depends on, such as sizes (model_state). When it is
 * another than last time the recording falls away, and it starts anew. work may be called without being done. */
void replay_run(Replay *r, const Device *dev, uint64_t state, void (*work)(void *context), void *context);
void replay_free(Replay *r, const Device *dev);
#endif
