/* replay.h: work that is recorded once and replayed. */
#pragma once
#include "kernels/kernels.h"

/* Work that is queued repeatedly and differs only in the contents of device memory: queued the
 * first time, recorded the second, then replayed, where the device can. Starts as { 0 }. */
typedef struct {
    int        off;                     /* 1: never record. Set by the user, or after it has failed once */
    int        runs;                    /* of this state, without a recording */
    uint64_t   state;
    Recording *recording;
} Replay;

/* state: a number of everything on the host that work(context) depends on (model_state). If it has
 * changed, the recording is dropped. While work is recorded it is called, but not executed. */
void replay_run(Replay *r, const Device *dev, uint64_t state, void (*work)(void *context), void *context);
void replay_free(Replay *r, const Device *dev);
