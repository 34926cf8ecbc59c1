/* unicode.h: what Unicode says about characters: which are letters, numbers and spaces, and which sequences of them are
 * the same text. Everything else that is known about text is in json.h (UTF-8) and tokenizer.h. */
#ifndef UNICODE_H
#define UNICODE_H
#include "llmc/base/text.h"

typedef enum { OTHER, LETTER, NUMBER, SPACE } CharClass;        /* \p{L}, \p{N} and \s of regular expressions */

CharClass unicode_class(uint32_t code);
void unicode_nfc(Text *out, const char *s, size_t n);           /* appends s in normalization form C */
#endif
