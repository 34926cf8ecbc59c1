/* pretokenizer.h: cuts text into words (pre-tokens); byte pairs are merged within a word only.
 *
 * These are hand-written scanners, one for each regular expression that published tokenizers use,
 * because the C library has no regular expressions with Unicode classes. A scanner returns the
 * length of the first word of a text, at least 1, and every character belongs to a word. A byte
 * that is not UTF-8 counts as a character that is neither letter, number nor space. */
#ifndef PRETOKENIZER_H
#define PRETOKENIZER_H
#include <stddef.h>

#define UNDERLINE "\xE2\x96\x81"        /* U+2581, SentencePiece's space */

typedef struct PreTokenizer PreTokenizer;
struct PreTokenizer {
    size_t (*next)(const PreTokenizer *p, const char *s, size_t n);     /* n > 0 */
    size_t limit;                                                       /* digits that one word may have */
};

const PreTokenizer *pretokenizer_of_regex(const char *regex);   /* GPT-2, Qwen2, GPT-4, GPT-4o; NULL: not supported */
PreTokenizer pretokenizer_gpt2(void);
const char  *pretokenizer_cl100k_regex(void);                           /* GPT-4's */
PreTokenizer pretokenizer_digits(size_t limit);                         /* numbers apart from everything else */
PreTokenizer pretokenizer_underline(void);                              /* a word begins with U+2581 */

/* Does a word always end between an ASCII letter or digit and a space or new line? */
int pretokenizer_ends_before_space(const PreTokenizer *p);
#endif
