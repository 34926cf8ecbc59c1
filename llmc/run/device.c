/* device.c: see device.h. */
#include "device.h"
#include "llmc/base/text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A launcher may show a process all GPUs of the machine, or its own: first wraps around. */
static void complete(const Device *d, LocalDevices *s) {
    const int visible = d->count(), locals = s->locals > 1 ? s->locals : 1, requested = s->count;
    if (!s->count) s->count = d->is_gpu && visible > locals ? visible / locals : 1;
    s->first = d->is_gpu && visible > 0 ? s->local * s->count % visible : 0;
    if (d->is_gpu && visible > 0 && s->first + s->count > visible)
        fail(EXIT_USAGE, "-ng %d: this process sees %d GPU%s", requested, visible, visible == 1 ? "" : "s");
}
const Device *device_choose(const char *name, LocalDevices *local, char why_cpu[256]) {
    const LocalDevices requested = *local;
    const int automatic = !strcmp(name, "auto");
    int gpus = 0;
    const Device *d;
    Text names = { 0 };
    *why_cpu = 0;
    for (int i = 0; (d = device_list(i)); i++) {
        const int wanted = automatic || !strcmp(name, d->is_gpu ? "cuda" : "cpu") || !strcmp(name, d->name);
        *local = requested;
        if (wanted) complete(d, local);
        const char *why = wanted ? d->open(local->first) : NULL;
        if (wanted && !why) break;
        if (why && !automatic) fail(d->is_gpu ? EXIT_CUDA : EXIT_USAGE, "-dv %s: %s", name, why);
        if (why && !*why_cpu) snprintf(why_cpu, 256, "%s", why);
        text_add(&names, "%s %s", d->is_gpu && !gpus++ ? " cuda" : "", d->name);
    }
    if (!d) fail(EXIT_USAGE, "-dv %s: no such device in this build. It has: auto cpu%s%s", name, names.at,
                 strncmp(name, "cuda", 4)
                 ? "" : ". To plan a training run for a GPU you don't have: train_moe -x 0 -gm h100");
    if (d->is_gpu) *why_cpu = 0;
    free(names.at);
    return d;
}

int device_usable(const char *name) {
    const Device *d;
    for (int i = 0; (d = device_list(i)); i++)
        if ((!strcmp(name, d->is_gpu ? "cuda" : "cpu") || !strcmp(name, d->name)) && !d->open(0)) return 1;
    return 0;
}

/* Memory in GB; bytes per second and flop per second of dense bf16 products with f32 sums, as their
 * makers say; GB/s and TFLOP/s. kernels: how its products are computed. */
typedef enum { PORTABLE, HOPPER, BLACKWELL } Kernels;
typedef struct { const char *name; double gigabytes, bandwidth, teraflops; Kernels kernels; } Gpu;
static const Gpu known[] = {
    { "a10", 24, 600, 125, PORTABLE }, { "a30", 24, 933, 165, PORTABLE }, { "a40", 48, 696, 150, PORTABLE },
    { "a6000", 48, 768, 155, PORTABLE }, { "a100-40", 40, 1555, 312, PORTABLE }, { "a100", 80, 2039, 312, PORTABLE },
    { "l4", 24, 300, 121, PORTABLE },
    { "l40", 48, 864, 181, PORTABLE }, { "l40s", 48, 864, 362, PORTABLE }, { "rtx3060", 12, 360, 25, PORTABLE },
    { "rtx3090", 24, 936, 71, PORTABLE }, { "rtx4090", 24, 1008, 165, PORTABLE },
    { "rtx5090", 32, 1792, 209, PORTABLE }, { "h100", 80, 3350, 989, HOPPER }, { "h200", 141, 4800, 989, HOPPER },
    { "b200", 180, 8000, 2250, BLACKWELL }, };
/* A name; or numbers: GB, or GB:GB/s:TFLOP/s. 0: neither. */
static int gpu_named(const char *text, Gpu *gpu) {
    char *end;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcasecmp(text, known[i].name)) return *gpu = known[i], 1;
    *gpu = (Gpu){ .gigabytes = strtod(text, &end) };
    if (*end == ':') gpu->bandwidth = strtod(end + 1, &end);
    if (*end == ':' && gpu->bandwidth > 0) gpu->teraflops = strtod(end + 1, &end);
    return !*end && gpu->gigabytes > 0 && gpu->gigabytes <= 1024 && (!gpu->bandwidth == !gpu->teraflops);
}
const char *device_example(int i, OUT double *gigabytes) {
    static const char *const names[] = { "rtx4090", "a100-40", "h100", "h200" };
    Gpu gpu;
    if (i < 0 || i >= (int)(sizeof names / sizeof *names) || !gpu_named(names[i], &gpu)) return NULL;
    *gigabytes = gpu.gigabytes;
    return names[i];
}
/* Parts of what the maker says that our kernels reach. Measured on an H200, with its own kernels
 * and with the portable ones; of other GPUs nothing is (docs/LOG.md, "Time in the plan"). */
int device_rates(const char *memory, int head_size, Rates *rates) {
    static const Rates reached[] = { [PORTABLE]  = { 0.7,  0.48, 0.48, 0.48, 0.3,  0.85, 8e-6 },
                                     [HOPPER]    = { 0.73, 0.6,  0.96, 0.57, 0.3,  0.84, 8e-6 },
                                     [BLACKWELL] = { 0.7,  0.2,  0.2,  0.2,  0.12, 0.85, 8e-6 } };
    Gpu gpu;
    if (!gpu_named(memory, &gpu) || !(gpu.teraflops > 0)) return 0;
    const Rates *part = &reached[gpu.kernels];
    const double flop = 1e12 * gpu.teraflops;
    *rates = (Rates){ flop * part->dense, flop * part->routed, flop * part->fp8, flop * part->muon,
                      flop * part->attention * sqrt(head_size / 64.0), 1e9 * gpu.bandwidth * part->bytes, part->start };
    return 1;
}

int device_limit(const char *memory, const Device *dev, OUT size_t *bytes, Error *e) {
    Gpu gpu;
    if (!gpu_named(memory, &gpu) || (!dev->is_gpu && gpu.bandwidth > 0))
        return error_set(e, "-gm %s: a run on %s is held below a number of gigabytes, such as -gm 40%s. The plan for a "
                         "GPU that is not here needs -x 0, and -dv cuda or none", memory, dev->name,
                         dev->is_gpu ? ", or below what a GPU has, such as -gm h100" : "");
    *bytes = (size_t)(1e9 * gpu.gigabytes);
    return 1;
}

static size_t imagined_bytes;
static int imagined_gpus;
static size_t imagined_memory(void) { return imagined_bytes; }
static int imagined_count(void) { return imagined_gpus; }
const Device *device_imagine(const char *name, const char *memory, int gpus, Error *e) {
    static Device d;
    Gpu gpu = { 0 };
    if (*memory && !gpu_named(memory, &gpu)) {
        Text names = { 0 };
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) text_add(&names, " %s", known[i].name);
        error_set(e, "-gm %s: expected the memory of a GPU in GB, or one of%s; or its GB, GB/s and TFLOP/s of bf16: "
                  "80:2000:312", memory, names.at);
        free(names.at);
        return NULL;
    }
        d = *device_find(strstr(name, "f32") ? "cpu-f32" : "cpu-bf16");
    d.name = strstr(name, "f32") ? "cuda-f32" : "cuda-bf16";
    d.is_gpu = 1;
    if (gpu.name && gpu.kernels != HOPPER) d.fp8 = NULL;    /* only Hoppers have experts in 8 bits */
    d.memory = imagined_memory;
    d.count = imagined_count;
    imagined_bytes = (size_t)(1e9 * gpu.gigabytes);
    imagined_gpus = gpus > 0 ? gpus : 1;
    return &d;
}

double device_copy_rate(const Device *dev) {
    enum { TIMES = 20 };
    const size_t bytes = (size_t)1 << 28;
    char *a = dev->alloc(2 * bytes);
    double start = 0;
    for (int i = -2; a && i < TIMES; i++) {                 /* the first two do not count */
        if (i <= 0) { dev->sync(); start = now(); }
        dev->copy(a, a + bytes, bytes);
    }
    dev->sync();
    const double seconds = now() - start;
    dev->release(a);
    return a && seconds > 0 ? 2.0 * TIMES * (double)bytes / seconds : 0;
}
