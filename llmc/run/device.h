/* device.h: choosing the device that a user asks for by name (-dv). Devices: kernels/devices.c. */
#pragma once
#include "kernels/kernels.h"
#include "llmc/base/base.h"
#include "llmc/model/cost.h"

/* The GPUs that this process drives, one thread each: `count` of the machine's GPUs from number
 * `first`. Of the run's `locals` processes here this is number `local`. A CPU is one device. */
typedef struct { int local, locals, count, first; } LocalDevices;

/* name: auto, the best device that works here; cpu or cuda, the best of that kind; or a device's
 * name. Opens this process's first device for this thread. local: on entry, local, locals and count
 * (0: the machine's GPUs divided by locals); on return, count and first. Fails with EXIT_USAGE (not
 * in this build, or too few GPUs) or EXIT_CUDA (this GPU cannot be used). why_cpu: the reason if
 * auto finds no usable GPU in a build for GPUs; else "". */
const Device *device_choose(const char *name, LocalDevices *local, char why_cpu[256]);

/* A device with the sizes of a GPU elsewhere, for plans: nothing can be computed on it.
 * name: cuda, or the name of a device for GPUs; memory: of the GPU, as a name (h100) or in GB (80),
 * "" if it is not known. NULL if the memory is neither. */
const Device *device_imagine(const char *name, const char *memory, int gpus, Error *e);
const char   *device_example(int i, OUT double *gigabytes); /* GPUs of four sizes, by name; NULL past the last */
/* The bytes of -gm, below which a run on this device is held. 0: it is no number of gigabytes, nor,
 * on a GPU, the name of one. */
int           device_limit(const char *memory, const Device *dev, OUT size_t *bytes, Error *e);
/* The rates of such a GPU for heads of this size; 0: its memory alone is known. memory: as above,
 * or GB:GB/s:TFLOP/s, such as 80:2000:312. */
int           device_rates(const char *memory, int head_size, Rates *rates);
int           device_usable(const char *name);              /* would device_choose find it? */

/* Bytes per second, read plus written, of large copies on the device. 0: no 512 MB are left. */
double device_copy_rate(const Device *dev);
