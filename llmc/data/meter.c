/* meter.c: see meter.h. */
#define _POSIX_C_SOURCE 200809L
#include "meter.h"
#include "llmc/base/base.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void show(Meter *m, double at, int last) {
    const double scale = strcmp(m->unit, "MB") ? 1 : 1e-6, seconds = at - m->began;
    const double done = (double)m->done * scale, all = (double)m->all * scale;
    const char *begin = m->on_terminal ? "\r\33[K" : "", *end = m->on_terminal && !last ? "" : "\n";
    m->shown = at;
    if (last) fprintf(stderr, "%s%s: %.0f %s in %.1f s%s", begin, m->what, done, m->unit, seconds, end);
    else fprintf(stderr, "%s%s: %.0f of %.0f %s (%.0f %%), %.0f s left%s", begin, m->what, done, all, m->unit,
                 100 * done / all, done > 0 ? seconds * (all - done) / done : 0, end);
    fflush(stderr);
}

void meter_begin(Meter *m, int visible, const char *what, int64_t all, const char *unit) {
    *m = (Meter){ .what = what, .unit = unit, .all = all, .began = now(), .visible = visible && all > 0,
                  .on_terminal = isatty(2) };
    if (!m->on_terminal) m->shown = m->began;
}

void meter_add(Meter *m, int64_t done) {
    #pragma omp critical(meter)
    {
        const double at = now();
        m->done += done;
        if (m->visible && at - m->began > 1 && at - m->shown > (m->on_terminal ? 0.25 : 10)) show(m, at, 0);
    }
}

void meter_clear(Meter *m) {
    if (!m->visible || !m->on_terminal || m->shown <= 0) return;
    fputs("\r\33[K", stderr);
    fflush(stderr);
}

void meter_end(Meter *m) {
    const double at = now();
    if (m->visible && at - m->began > 1) show(m, at, 1);
}
