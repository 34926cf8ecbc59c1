/* meter.h: shows the progress of long work on stderr: nothing in the first second, then a line that
 * is rewritten, or off a terminal one every ten seconds; at last the time. */
#pragma once
#include <stdint.h>

typedef struct { const char *what, *unit; int64_t all, done; double began, shown; int visible, on_terminal; } Meter;

void meter_begin(Meter *m, int visible, const char *what, int64_t all, const char *unit);  /* unit: "MB" counts bytes */
void meter_add(Meter *m, int64_t done);                 /* from any thread */
void meter_end(Meter *m);
void meter_clear(Meter *m);                             /* instead: the line on a terminal is erased */
