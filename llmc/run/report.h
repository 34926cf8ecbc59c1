/* report.h: a finished or running training run as one HTML page, and a small curve for the terminal. */
#ifndef REPORT_H
#define REPORT_H
#include "llmc/base/base.h"
#include <stdio.h>

/* Reads <folder>/log.jsonl and replaces <folder>/report.html: curves, expert loads, samples, warnings and options in
 * one page without scripts or anything from elsewhere. Any log gives a valid page: empty, cut short, or damaged;
 * lines that a resumed run has redone are left out. 1, or 0 and the reason when the log cannot be read or the page
 * not written. Linear time; memory and page are bounded, however long the log. */
int report_write(const char *folder, Error *e);
#endif
