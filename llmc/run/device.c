/* device.c: see device.h. */
#include "device.h"
#include "llmc/base/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A launcher may show every process all GPUs of the machine, or only its own: first wraps around. */
static void complete(const Device *d, LocalDevices *s) {
    const int visible = d->count(), locals = s->locals > 1 ? s->locals : 1, asked = s->count;
    if (!s->count) s->count = d->is_gpu && visible > locals ? visible / locals : 1;
    s->first = d->is_gpu && visible > 0 ? s->local * s->count % visible : 0;
    if (d->is_gpu && visible > 0 && s->first + s->count > visible)
        fail(EXIT_USAGE, "-ng %d: this process sees %d GPU%s", asked, visible, visible == 1 ? "" : "s");
}

const Device *device_choose(const char *name, LocalDevices *local, char why_cpu[256]) {
    const LocalDevices asked = *local;
    const int automatic = !strcmp(name, "auto");
    int gpus = 0;
    const Device *d;
    Text names = { 0 };
    *why_cpu = 0;
    for (int i = 0; (d = device_list(i)); i++) {
        const int wanted = automatic || !strcmp(name, d->is_gpu ? "cuda" : "cpu") || !strcmp(name, d->name);
        *local = asked;
        if (wanted) complete(d, local);
        const char *why = wanted ? d->open(local->first) : NULL;
        if (wanted && !why) break;
        if (why && !automatic) fail(d->is_gpu ? EXIT_CUDA : EXIT_USAGE, "-dv %s: %s", name, why);
        if (why && !*why_cpu) snprintf(why_cpu, 256, "%s", why);
        text_add(&names, "%s %s", d->is_gpu && !gpus++ ? " cuda" : "", d->name);
    }
    if (!d) fail(EXIT_USAGE, "-dv %s: no such device in this build. It has: auto cpu%s", name, names.at);
    if (d->is_gpu) *why_cpu = 0;
    free(names.at);
    return d;
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
