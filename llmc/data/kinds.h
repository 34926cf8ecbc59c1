/* kinds.h: recognizes files that were given as text but are something else. */
#ifndef KINDS_H
#define KINDS_H
#include <stddef.h>

/* NULL: it may be text. Otherwise what it is, by its first bytes or a NUL byte; *remedy: a shell
 * command in which %s is the file's name, or other advice. */
const char *kind_of_binary(const char *bytes, size_t count, const char **remedy);

/* Does a text look like JSON: an object or array to its end? */
int kind_is_json(const char *text, size_t bytes);
#endif
