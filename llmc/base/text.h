/* text.h: a text builder, used for everything that is written, and UTF-8. Neither depends on the locale. */
#ifndef TEXT_H
#define TEXT_H
#include <stdarg.h>
#include <stdio.h>
#include "base.h"

/* A string that grows. Start with {0}; `at` is NULL until something is added, and then ends with a NUL; free() it. */
typedef struct { char *at; size_t length, capacity; } Text;
void text_add(Text *t, const char *format, ...) PRINTF(2, 3);
void text_add_bytes(Text *t, const void *data, size_t bytes);
void text_add_string(Text *t, const char *string);                  /* verbatim */
void text_add_word(Text *t, const char *string);                    /* as a shell reads it: in quotes where it needs them */
void text_add_json(Text *t, const char *string, size_t bytes);      /* quoted, control characters escaped; invalid UTF-8 becomes U+FFFD */
void text_add_double(Text *t, double x);                            /* the shortest text that reads back as x; null if not finite */
void text_add_real(Text *t, double x);                              /* the same, but a point or an exponent shows that it is no integer: 2.0 */

/* UTF-8, strict: no surrogates, overlong forms or codes above U+10FFFF. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *code);     /* bytes of the first character; 0: malformed */
size_t utf8_encode(uint32_t code, char *text);                          /* writes 1 to 4 bytes, returns how many */
size_t utf8_valid(const char *text, size_t bytes);                      /* length of the longest well-formed prefix */
size_t utf8_complete(const char *text, size_t bytes);                   /* length without an incomplete last character */

/* Text from outside on its way to a terminal or a page: from files, names of files, the network, a model. A terminal obeys
 * control characters, U+0080 to U+009F included. text_show reads one character and returns its bytes, at least 1; shown: the
 * character, NUL-terminated, or what stands for it: pictures (U+2400 to U+2421) for control characters but new line and tab,
 * U+FFFD for U+0080 to U+009F, U+FFFE, U+FFFF and a byte that is not UTF-8. The others write whole texts so; text_print: printf. */
size_t text_show(const char *text, size_t bytes, char shown[5]);

/* White space: blanks, tabs, ends of lines and pages. */
int text_is_white(char c);
int text_is_blank(const char *text, size_t bytes);          /* nothing else is in it */
void text_write(FILE *to, const char *text, size_t bytes);
void text_print(FILE *to, const char *format, ...) PRINTF(2, 3);
void text_vprint(FILE *to, const char *format, va_list args);

double text_strtod(const char *text, char **end);                       /* strtod with a decimal point in every locale */
#endif
