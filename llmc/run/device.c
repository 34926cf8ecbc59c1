/* device.c: see device.h. */
#include "device.h"
#include "llmc/base/text.h"
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

static size_t imagined_bytes;
static int imagined_gpus;
static size_t imagined_memory(void) { return imagined_bytes; }
static int imagined_count(void) { return imagined_gpus; }
const Device *device_imagine(const char *name, const char *memory, int gpus, Error *e) {
    static const struct { const char *name; int gigabytes; } known[] = {
        { "a10", 24 }, { "a30", 24 }, { "a40", 48 }, { "a6000", 48 }, { "a100", 80 }, { "l4", 24 }, { "l40", 48 },
        { "l40s", 48 }, { "rtx3060", 12 }, { "rtx3090", 24 }, { "rtx4090", 24 }, { "rtx5090", 32 }, { "h100", 80 },
        { "h200", 141 }, { "b200", 180 }, };
    static Device d;
    char *end;
    double gigabytes = strtod(memory, &end);
    int i = 0;
    while (i < (int)(sizeof known / sizeof *known) && strcasecmp(memory, known[i].name)) i++;
    const char *const gpu = i < (int)(sizeof known / sizeof *known) ? known[i].name : NULL;
    if (gpu) gigabytes = known[i].gigabytes;
    else if (*memory && (*end || !(gigabytes > 0 && gigabytes <= 1024))) {         /* 4090 is a name without its rtx */
        Text names = { 0 };
        for (i = 0; i < (int)(sizeof known / sizeof *known); i++) text_add(&names, " %s", known[i].name);
        error_set(e, "-gm %s: expected the memory of a GPU in GB, or one of%s", memory, names.at);
        free(names.at);
        return NULL;
    }
    d = *device_find(strstr(name, "f32") ? "cpu-f32" : "cpu-bf16");
    d.name = strstr(name, "f32") ? "cuda-f32" : "cuda-bf16";
    d.is_gpu = 1;
    if (gpu && *gpu != 'h') d.fp8 = NULL;                   /* only Hoppers have experts in 8 bits */
    d.memory = imagined_memory;
    d.count = imagined_count;
    imagined_bytes = (size_t)(1e9 * gigabytes);
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
