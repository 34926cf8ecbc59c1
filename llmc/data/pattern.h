/* pattern.h: the regular expressions by which tokenizers cut text, as Hugging Face's library (its
 * engine is Oniguruma) reads them.
 *
 * There are: characters, . and classes ([...] with ranges, ^, nested ones and &&); \p{..} of
 * general categories and some scripts, \s \d \w and their opposites; escapes; groups, also (?i:...)
 * for letters of ASCII; | ; * + ? {m,n}, each also lazy; *+ ++ ?+ after one character or class; ^ $
 * \A \z \b \B; (?=...) (?!...), and (?<=.) (?<!.) of one character. What else a pattern has is
 * refused by name. Of all ways to match, the first that a search by backtracking would find counts.
 *
 * A pattern is compiled into a table: state and class of a character give the next state, so a
 * match takes one step for each character that it reads. Source: R. Cox, Regular Expression
 * Matching in the Wild, 2010 (a state is a list of threads in order of priority). A pattern that
 * needs more than 8 MB is refused. A byte that is not UTF-8 counts as U+FFFD. */
#pragma once
#include "llmc/base/base.h"

typedef struct Pattern Pattern;
/* is_text: no regular expression, the text itself. NULL and e: it is not supported, or wrong. */
Pattern *pattern_open(const char *regex, size_t bytes, int is_text, Error *e);
void     pattern_close(Pattern *p);
/* Of ASCII: does a match never go on from a letter or digit to a space or new line, nor depend on
 * it? And does one begin at every space and new line? */
int      pattern_stops_at_space(const Pattern *p);
int      pattern_begins_at_space(const Pattern *p);

/* A search from the beginning of a text: start with { p, s, n }. */
typedef struct {
    const Pattern *p;
    const char *s;
    size_t n, at, steps;                /* from here on; steps taken */
    int after;                          /* a match ends at `at` */
} PatternSearch;
/* The next matches, at most `most` of them: bytes from ... to-1. One that is empty does not follow
 * another directly. Returns how many; fewer: there are no more. Ends the program where the search
 * takes more than a billion steps, and 64 for each byte. */
typedef struct { size_t from, to; } Match;
enum { MATCHES = 64 };                  /* as many at a time as are good for speed */
size_t   pattern_next(PatternSearch *search, Match *to, size_t most);
