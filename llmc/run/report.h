/* report.h: a finished or running training run as one HTML page. */
#pragma once
#include "llmc/base/base.h"
#include <stdio.h>

/* Replaces <folder>/report.html by what <folder>/log.jsonl says: one page, with style, script and
 * data inside. Any log gives a page: empty, truncated or damaged; steps that a resumed run has
 * repeated are ignored, and so is a last line that is not whole. Memory, data and the size of the
 * page are bounded, however long the log.
 *
 * report_update reads on from where it stopped. live: the run goes on, and the page loads itself
 * again. 0 and e: the log cannot be read or the page cannot be written. report_due: three seconds
 * have passed, and enough that pages take at most half a percent of the time. report_write: the
 * page of a run that has ended, at once. */
typedef struct Report Report;
Report *report_open(const char *folder);
int     report_due(const Report *r);
int     report_update(Report *r, int live, Error *e);
void    report_close(Report *r);        /* accepts NULL */
int     report_write(const char *folder, Error *e);
