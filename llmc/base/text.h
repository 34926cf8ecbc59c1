/* text.h: a text builder, used for everything that is written; it does not depend on the locale. */
#pragma once
#include "base.h"

/* A string that grows. Start with {0}; `at`: NULL, later the text and a NUL; free() it. */
typedef struct { char *at; size_t length, capacity; } Text;
void text_add(Text *t, const char *format, ...) PRINTF(2, 3);
void text_add_bytes(Text *t, const void *data, size_t bytes);
void text_add_string(Text *t, const char *string);                  /* verbatim */
void text_add_word(Text *t, const char *string);                /* as a shell reads it: in quotes where it needs them */
void text_add_json(Text *t, const char *string, size_t bytes);      /* quoted, escaped; invalid UTF-8 becomes U+FFFD */
void text_add_double(Text *t, double x);                /* the shortest text that reads back as x; null if not finite */
void text_add_real(Text *t, double x);      /* the same, but a point or an exponent shows that it is no integer: 2.0 */

/* Is the text one of an array's? */
#define text_is_among(text, array) text_is_in(text, array, sizeof (array) / sizeof *(array))
int text_is_in(const char *text, const char *const *list, size_t n);
int text_is_white(char c);                                  /* blanks, tabs, ends of lines and pages */
int text_is_blank(const char *text, size_t bytes);          /* nothing else is in it */
double text_strtod(const char *text, char **end);                   /* strtod with a decimal point in every locale */
