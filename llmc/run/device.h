/* device.h: the device that a user asks for by name (-dv). Which there are: kernels/devices.c. */
#ifndef DEVICE_H
#define DEVICE_H
#include "kernels/kernels.h"

/* Which of a machine's GPUs are whose: it runs `locals` processes, of which this is number `local`, and each drives
 * `count` of them, one thread each, from `first` on. count 0: its share of those there are; a CPU is one. */
typedef struct { int local, locals, count, first; } LocalDevices;

/* name: auto, the best that works here; cpu or cuda, the best of that kind; or the name of one. Opens the first of this
 * process's share for this thread, and completes the share; or fails with EXIT_USAGE (no such device in this build, or
 * not so many) or EXIT_CUDA (this GPU cannot be used). why_cpu: where auto found no GPU to use in a build for GPUs, the
 * reason; else "". */
const Device *device_choose(const char *name, LocalDevices *share, char why_cpu[256]);
#endif
