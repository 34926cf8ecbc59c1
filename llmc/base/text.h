/* text.h: a text builder for everything that is written, and UTF-8. Neither looks at the locale. */
#ifndef TEXT_H
#define TEXT_H
#include "base.h"

/* Text that grows. Start with {0}; `at` ends with a NUL once something was added; free() it. */
typedef struct { char *at; size_t length, capacity; } Text;
void text_add(Text *t, const char *format, ...) PRINTF(2, 3);
void text_add_bytes(Text *t, const void *data, size_t bytes);
void text_add_string(Text *t, const char *string);                  /* as it is, per cent signs and all */
void text_add_json(Text *t, const char *string, size_t bytes);      /* quoted and escaped; bad UTF-8 becomes U+FFFD */
void text_add_double(Text *t, double x);                            /* shortest that reads back; null if not finite */

/* UTF-8 without surrogates, overlong forms or codes above U+10FFFF. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *code);     /* bytes of the first character; 0: malformed */
size_t utf8_encode(uint32_t code, char *text);                          /* writes 1 to 4 bytes, returns how many */
size_t utf8_valid(const char *text, size_t bytes);                      /* length of the longest well-formed prefix */
size_t utf8_complete(const char *text, size_t bytes);           /* length without a character that is still growing */

double text_strtod(const char *text, char **end);                       /* strtod with a decimal point in every locale */
#endif
