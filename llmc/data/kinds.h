/* kinds.h: recognizes files that were given as text but are something else. */
#pragma once
#include "llmc/base/base.h"

/* NULL: maybe text. Else what it is, by its bytes; *remedy: advice, or a command (%s: the file). */
const char *kind_of_binary(const char *bytes, size_t count, const char **remedy);

/* 0, and a message that says what a file is and what to do; more: what to do else, or "" */
int kind_refuse(const char *path, const char *what, const char *remedy, const char *more, Error *e);
int kind_is_table(const char *what);                    /* Parquet or Arrow: whose folder has it, means it as data */

/* Does a text look like JSON: an object or array to its end? */
int kind_is_json(const char *text, size_t bytes);
