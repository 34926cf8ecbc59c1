/* device.h: the device that a user asks for by name (-dv). Which there are: kernels/devices.c. */
#ifndef DEVICE_H
#define DEVICE_H
#include "../kernels/kernels.h"

/* name: auto, the best that works here; cpu or cuda, the best of that kind; or the name of one. Opens it, or fails with
 * EXIT_USAGE (no such device in this build) or EXIT_CUDA (this GPU cannot be used). why_cpu: where auto found no GPU to
 * use in a build for GPUs, the reason; else "". */
const Device *device_choose(const char *name, char why_cpu[256]);
#endif
