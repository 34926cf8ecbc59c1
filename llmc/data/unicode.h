/* unicode.h: Unicode's properties of characters, normalization forms C and D (UTF-8: text.h). */
#pragma once
#include "codeset.h"
#include "llmc/base/text.h"

/* Adds the characters of a property, as regular expressions name it: a general category (Lu), a
 * group of them (L), a script (Han, Hiragana, Katakana, Hangul), space or word. 0: unknown. */
int  unicode_add(CodeSet *out, const char *name, size_t n);
/* Appends s in normalization form C, or, without composing, D. */
void unicode_normalize(Text *out, const char *s, size_t n, int composes);
