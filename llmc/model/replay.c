/* replay.c: see replay.h. */
#include "replay.h"
#include "llmc/base/base.h"

void replay_run(Replay *r, const Device *dev, uint64_t state, void (*work)(void *context), void *context) {
    if (r->state != state) {
        replay_free(r, dev);
        r->state = state;
    }
    if (!r->recording && !r->off && dev->record_begin && ++r->runs == 2) {
        const char *why = dev->record_begin();
        if (!why) {
            work(context);
            r->recording = dev->record_end(&why);
        }
        if (!r->recording) {
            warn("the work of %s could not be recorded (%s) and is queued again each time, which is slower",
                 dev->name, why);
            r->off = 1;
        }
    }
    if (r->recording) dev->replay(r->recording);
    else work(context);
}
void replay_free(Replay *r, const Device *dev) {
    if (r->recording) dev->record_free(r->recording);
    *r = (Replay){ .off = r->off };
}
