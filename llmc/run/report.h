/* report.h: a finished or running training run as one HTML page. */
#ifndef REPORT_H
#define REPORT_H
#include "llmc/base/base.h"
#include <stdio.h>

/* Reads <folder>/log.jsonl and replaces <folder>/report.html: curves, expert loads, samples, warnings and options on one
 * page without scripts or external resources. Any log gives a valid page: empty, truncated or damaged; lines that a
 * resumed run has repeated are ignored. 1; or 0 and e if the log cannot be read or the page cannot be written. Linear
 * time; memory and page size are bounded, however long the log. */
int report_write(const char *folder, Error *e);
#endif
