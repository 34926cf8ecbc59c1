/* unicode.h: Unicode's classes of characters and normalization form C. UTF-8: llmc/base/text.h. */
#ifndef UNICODE_H
#define UNICODE_H
#include "llmc/base/text.h"

typedef enum { OTHER, LETTER, NUMBER, SPACE } CharClass;        /* \p{L}, \p{N} and \s of regular expressions */

CharClass unicode_class(uint32_t code);
/* May it be in a word's capitals, small letters, or both (letters without case, marks)? Bits. */
enum { MAY_BE_UPPER = 1, MAY_BE_LOWER = 2 };
int unicode_case(uint32_t code);
void unicode_nfc(Text *out, const char *s, size_t n);           /* appends s in normalization form C */
#endif
