/* unicode.h: Unicode's properties of characters, normalization form C. UTF-8: llmc/base/text.h. */
#ifndef UNICODE_H
#define UNICODE_H
#include "codeset.h"
#include "llmc/base/text.h"

/* Adds the characters of a property, as regular expressions name it: a general category (Lu), a
 * group of them (L), a script (Han, Hiragana, Katakana, Hangul), space or word. 0: unknown. */
int  unicode_add(CodeSet *out, const char *name, size_t n);
void unicode_nfc(Text *out, const char *s, size_t n);           /* appends s in normalization form C */
#endif
