/* devices.c: the devices of this build, best first. */
#include "kernels.h"
#include <string.h>

void cpu_f32_device(Device *d);
void cpu_bf16_device(Device *d);
void cpu_f64_device(Device *d);
#ifdef WITH_CUDA
void cuda_bf16_device(Device *d);
void cuda_f32_device(Device *d);
void cuda_bf16_portable(Device *d);
#endif

static void (*const fill[])(Device *) = {
#ifdef WITH_CUDA
    cuda_bf16_device,
#ifndef EMULATED
    cuda_f32_device,
#endif
    cuda_bf16_portable,
#endif
    cpu_f32_device, cpu_bf16_device, cpu_f64_device,
};
enum { COUNT = sizeof fill / sizeof *fill };

const Device *device_list(int i) {
    static Device devices[COUNT];
    if (!devices[COUNT - 1].name) for (int k = 0; k < COUNT; k++) fill[k](&devices[k]);
    return i < 0 || i >= COUNT ? NULL : &devices[i];
}

const Device *device_find(const char *name) {
    const Device *d;
    for (int i = 0; (d = device_list(i)); i++) if (!strcmp(name, d->name)) return d;
    return NULL;
}
