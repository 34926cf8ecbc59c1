/* jobs.h: documents as work for threads that encode them, or count their words. */
#pragma once
#include "llmc/base/base.h"

/* is_record: 0: a text; else it is JSON of forms.h, as follows, from this line of its file on. */
enum { RECORD_CHAT = 1, RECORD_PAIR };
typedef struct { const char *at; size_t bytes; int is_record; unsigned line; } Document;

/* About a megabyte for a thread: `count` documents, from a byte of the first to one of the last. */
typedef struct { const Document *first; size_t count, from, to, bytes; } Job;

/* divisible: a document may be cut between a letter or digit of ASCII and a space or new line,
 * where the patterns of GPT-2 and its successors always end a word (pattern_stops_at_space).
 * Returns the number of jobs; free(*jobs). */
size_t documents_jobs(const Document *documents, size_t count, int divisible, Job **jobs);

/* The piece of the job's document i. last: it ends with the document. */
Document job_piece(const Job *job, size_t i, int *last);
