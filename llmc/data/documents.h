/* documents.h: texts in memory, and how they are cut into jobs for threads. */
#ifndef DOCUMENTS_H
#define DOCUMENTS_H
#include <stddef.h>

typedef struct { const char *at; size_t bytes; } Document;

/* About a megabyte of work: `count` documents, from byte `from` of the first to byte `to` of the last. */
typedef struct { const Document *first; size_t count, from, to, bytes; } Job;

/* divisible: a document may be cut between a letter or digit of ASCII and a space, where each of the patterns of GPT-2 and
 * its successors ends a word whatever comes before and after. Returns the number of jobs; free(*jobs). */
size_t documents_jobs(const Document *documents, size_t count, int divisible, Job **jobs);

/* The piece of the job's document i. last: it ends with the document. */
Document job_piece(const Job *job, size_t i, int *last);
#endif
