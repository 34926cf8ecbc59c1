/* print.h: UTF-8, and printing of text from outside. Errors are reported through it, too. */
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#if defined(__GNUC__)
#define PRINTF(f, a) __attribute__((format(printf, f, a)))
#define UNUSED __attribute__((unused))  /* a parameter that other functions of the same type need */
#else
#define PRINTF(f, a)
#define UNUSED
#endif

/* UTF-8, strict: no surrogates, overlong forms or codes above U+10FFFF. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *code);     /* bytes of the first character; 0: malformed */
size_t utf8_encode(uint32_t code, char *text);                          /* writes 1 to 4 bytes, returns how many */
size_t utf8_valid(const char *text, size_t bytes);                      /* length of the longest well-formed prefix */
size_t utf8_count(const char *text, size_t bytes);                      /* its characters */
size_t utf8_complete(const char *text, size_t bytes);               /* length without an incomplete last character */

/* Text from outside on its way to a terminal or a page: files, network, a model. A terminal obeys
 * control characters, U+0080 to U+009F included. text_show reads one character and returns its
 * bytes, at least 1; shown: the character, NUL-terminated, or what stands for it: pictures (U+2400
 * to U+2421) for control characters but new line and tab, U+FFFD for U+0080 to U+009F, U+FFFE,
 * U+FFFF and bytes that are not UTF-8. The others write whole texts so. */
size_t text_show(const char *text, size_t bytes, char shown[5]);
void text_write(FILE *to, const char *text, size_t bytes);
void text_print(FILE *to, const char *format, ...) PRINTF(2, 3);
void text_vprint(FILE *to, const char *format, va_list args);
/* Writes the text from this column on, in lines of at most `width` columns, broken at blanks; lines
 * after the first begin with `margin`. width 0: no limit. */
void text_wrap(FILE *to, int column, int width, const char *margin, const char *text);

/* Columns of the terminal: as it says, else $COLUMNS, else 80. 0: this is no terminal. */
int  terminal_width(int fd);
