/* records.h: the JSON values that a data file consists of: one in each line (JSON Lines), the
 * elements of an array, or one after another, each over several lines. */
#pragma once
#include "llmc/base/base.h"

typedef struct { const char *at; size_t bytes, line; } Record;         /* line: in which it begins, from 1 */
typedef struct { Record *at; size_t count; } Records;

/* Does a file of this name consist of records: .jsonl, .ndjson or .json, in letters of any case? */
int records_named(const char *path);

/* Which of the three ways a text is written in, its first value says: one that ends in its line has
 * each line for itself; an array that does not, or that is all of the text, holds the records,
 * unless its elements are messages, {"role"} or {"from"}: then it is one conversation. The records'
 * own JSON is not checked. 0 and a message with the line: no records, or an end is missing;
 * free(r->at) in any case. */
int records_find(Records *r, const char *text, size_t bytes, Error *e);
