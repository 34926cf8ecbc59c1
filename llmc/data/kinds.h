/* kinds.h: recognizes files that were given as text but are something else. */
#ifndef KINDS_H
#define KINDS_H
#include <stddef.h>

/* NULL: maybe text. Else what it is, by its bytes; *remedy: advice, or a command (%s: the file). */
const char *kind_of_binary(const char *bytes, size_t count, const char **remedy);

/* Does a text look like JSON: an object or array to its end? */
int kind_is_json(const char *text, size_t bytes);
#endif
