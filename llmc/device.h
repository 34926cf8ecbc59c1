/* device.h: the device that a user asks for by name (-dv). Which there are: kernels/devices.c. */
#ifndef DEVICE_H
#define DEVICE_H
#include "../kernels/kernels.h"

/* Which of a machine's GPUs are whose: it runs `locals` processes, of which this is number `local`, and each drives
 * `count` of them, one thread each, from `first` on. count 0: its share of those there are; a CPU is one. */
typedef struct { int local, locals, count, first; } DeviceShare;

/* name: auto, the best that works here; cpu or cuda, the best of that kind; or the name of one. Opens the first of this
 * process's share for this thread, and completes the share; or fails with EXIT_USAGE (no such device in this build, or
 * not so many) or EXIT_CUDA (this GPU cannot be used). why_cpu: where auto found no GPU to use in a build for GPUs, the
 * reason; else "". */
const Device *device_choose(const char *name, DeviceShare *share, char why_cpu[256]);

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
