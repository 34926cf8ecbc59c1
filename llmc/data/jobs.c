/* jobs.c: see jobs.h. */
#include "jobs.h"

enum { JOB = 1 << 20 };                 /* bytes */

static int is_alphanumeric(char c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'); }

/* The first position from `at` on where the document may be cut; its end if there is none. */
static size_t cut_after(const Document *d, size_t at) {
    for (; at < d->bytes; at++)
        if ((d->at[at] == ' ' || d->at[at] == '\n') && at && is_alphanumeric(d->at[at - 1])) return at;
    return d->bytes;
}
size_t documents_jobs(const Document *d, size_t count, int divisible, Job **jobs) {
    size_t n = 0, capacity = 0;
    Job job = { .first = d };
    *jobs = NULL;
    for (size_t i = 0, at = 0; i < count; ) {
        const size_t wanted = at + (JOB - job.bytes);
        const size_t to = divisible && wanted < d[i].bytes ? cut_after(&d[i], wanted) : d[i].bytes;
        job.count++;
        job.bytes += to - at;
        job.to = at = to;
        if (at == d[i].bytes) i++, at = 0;
        if (job.bytes < JOB && i < count) continue;
        array_grow(*jobs, n, capacity);
        (*jobs)[n++] = job;
        job = (Job){ .first = d + i, .from = at };
    }
    return n;
}

Document job_piece(const Job *job, size_t i, int *last) {
    const Document *d = &job->first[i];
    const size_t from = i ? 0 : job->from, to = i + 1 < job->count ? d->bytes : job->to;
    *last = to == d->bytes;
    return (Document){ d->at + from, to - from, 0, 0 };
}
