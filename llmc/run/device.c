/* device.c: see device.h. */
#include "device.h"
#include "llmc/base/text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Launchers may show every process all GPUs of the machine, or only its own. */
static void complete(const Device *d, LocalDevices *s) {
    const int there = d->count(), locals = s->locals > 1 ? s->locals : 1, asked = s->count;
    if (!s->count) s->count = d->is_gpu && there > locals ? there / locals : 1;
    s->first = d->is_gpu && there > 0 ? s->local * s->count % there : 0;
    if (d->is_gpu && there > 0 && s->first + s->count > there)
        fail(EXIT_USAGE, "-ng %d: the GPUs here are %d", asked, there);
}

const Device *device_choose(const char *name, LocalDevices *share, char why_cpu[256]) {
    const LocalDevices asked = *share;
    const int automatic = !strcmp(name, "auto");
    const Device *d;
    Text names = { 0 };
    *why_cpu = 0;
    for (int i = 0; (d = device_list(i)); i++) {
        const int wanted = automatic || !strcmp(name, d->is_gpu ? "cuda" : "cpu") || !strcmp(name, d->name);
        *share = asked;
        if (wanted) complete(d, share);
        const char *why = wanted ? d->open(share->first) : NULL;
        if (wanted && !why) break;
        if (why && !automatic) fail(d->is_gpu ? EXIT_CUDA : EXIT_USAGE, "-dv %s: %s", name, why);
        if (why && !*why_cpu) snprintf(why_cpu, 256, "%s", why);
        text_add(&names, " %s", d->name);
    }
    if (!d) fail(EXIT_USAGE, "-dv %s: no such device in this build. There are: auto cpu cuda%s", name, names.at);
    if (d->is_gpu) *why_cpu = 0;
    free(names.at);
    return d;
}
