/* jinja.h: chat templates: the language Jinja, as far as they use it, as Transformers runs it:
 * trim_blocks and lstrip_blocks are on, its own tojson, raise_exception, strftime_now, break,
 * continue, {% generation %}; nothing can be changed but namespaces.
 *
 * What a program writes remembers where it came from: each byte of the output has an origin, the
 * message whose field it was, or the message whose iteration of a loop wrote it. So one rendering
 * shows what the assistant says (chat.c). Strings that are made of others keep the origins of their
 * bytes through slices, strip, split, replace, join, tojson, sums.
 *
 * What is not known (include, import, extends, filters and tests of other names) is an error when
 * the program is read, with its name and line. Programs read no files; time, memory (64 MB) and
 * depth are bounded. Differences from Python: integers have 64 bits, and the case of letters
 * outside ASCII cannot be changed; both are errors. */
#pragma once
#include "llmc/base/json.h"
#include "origin.h"
#include <time.h>

typedef struct Jinja Jinja;
Jinja *jinja_open(const char *text, size_t bytes, Error *e);        /* NULL and e: it is no program, or not known */
void   jinja_close(Jinja *j);
int    jinja_has_key(const Jinja *j, const char *key);      /* does it have this attribute, or this string? */
int    jinja_reads(const Jinja *j, const char *name);       /* does it ask for a variable of this name? */
int    jinja_has_generation(const Jinja *j);

/* A variable; value NULL: it is not set. GIVEN: it is the conversation's; MESSAGES: so, and its
 * elements are messages with origins. */
typedef enum { VARIABLE_OWN, VARIABLE_GIVEN, VARIABLE_MESSAGES } VariableKind;
typedef struct { const char *name; const JsonValue *value; VariableKind kind; } JinjaVariable;

/* Appends to text, and to origins a uint32_t for each byte. date: what strftime_now shows. 0 and
 * e. */
int jinja_run(const Jinja *j, const JinjaVariable *variables, int n, const struct tm *date, Text *text, Text *origins,
              Error *e);
