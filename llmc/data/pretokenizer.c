/* pretokenizer.c: see pretokenizer.h. A scanner tries its alternatives in order. */
#include "pretokenizer.h"
#include "unicode.h"
#include <string.h>

#define COUNT(a) (sizeof (a) / sizeof *(a))

enum { END = SPACE + 1 };               /* beside the classes of characters */
typedef struct { size_t bytes; int class; } Char;

/* The classes of ASCII, '0' + CharClass: most text, in the inner loop of encoding. */
static const char ascii[] =
    "0000000003333300" "0000000000000000"           /* tab to carriage return are spaces */
    "3000000000000000" "2222222222000000"           /* space; digits */
    "0111111111111111" "1111111111100000"           /* capitals */
    "0111111111111111" "1111111111100000";

static inline Char look(const char *s, size_t n) {
    uint32_t code;
    if (!n) return (Char){ 0, END };
    if ((unsigned char)*s < 0x80) return (Char){ 1, ascii[(unsigned char)*s] - '0' };
    const size_t bytes = utf8_decode(s, n, &code);
    return bytes ? (Char){ bytes, unicode_class(code) } : (Char){ 1, OTHER };
}

/* Bytes of the characters of a class at the start of s, at most `limit` characters. */
static size_t span(const char *s, size_t n, int class, size_t limit) {
    size_t at = 0;
    for (Char c; limit-- && (c = look(s + at, n - at)).class == class; ) at += c.bytes;
    return at;
}

/* 's 't 're 've 'm 'll 'd, in any case. U+017F (long s) is an s, as in Unicode's case folding. */
static size_t contraction(const char *s, size_t n, int any_case) {
    static const char *const endings[] = { "s", "t", "re", "ve", "m", "ll", "d" };
    if (!n || s[0] != '\'') return 0;
    for (size_t i = 0; i < COUNT(endings); i++) {
        size_t length = strlen(endings[i]), k = 0;
        while (k < length && 1 + k < n
               && (s[1 + k] == endings[i][k] || (any_case && s[1 + k] == endings[i][k] - 'a' + 'A'))) k++;
        if (k == length) return 1 + length;
    }
    return any_case && n >= 3 && !memcmp(s + 1, "\xC5\xBF", 2) ? 3 : 0;
}

/* \s+(?!\S)|\s+ : all spaces at the end; before a word all but one, which the word may take. */
static size_t whitespace(const char *s, size_t n) {
    size_t at = 0, last = 0;
    for (Char c; (c = look(s + at, n - at)).class == SPACE; at += c.bytes) last = at;
    return at == n || !last ? at : last;
}

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
static size_t next_gpt2(const PreTokenizer *p, const char *s, size_t n) {
    (void)p;
    size_t k = contraction(s, n, 0), blank = s[0] == ' ';
    if (k) return k;
    Char c = look(s + blank, n - blank);
    if (c.class == SPACE || c.class == END) return whitespace(s, n);
    return blank + span(s + blank, n - blank, c.class, SIZE_MAX);
}

/* GPT-4 and relatives: numbers of `limit` digits, letters led by one sign, signs then new lines. */
#define GPT4_PATTERN(digits) "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static int is_line_end(char c) { return c == '\n' || c == '\r'; }
/* ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ ; slashes: with / among the line ends. */
static size_t signs_or_spaces(const char *s, size_t n, int slashes) {
    const size_t blank = s[0] == ' ';
    size_t k;
    if (look(s + blank, n - blank).class == OTHER) {
        k = blank + span(s + blank, n - blank, OTHER, SIZE_MAX);
        while (k < n && (is_line_end(s[k]) || (slashes && s[k] == '/'))) k++;
        return k;
    }
    for (k = span(s, n, SPACE, SIZE_MAX); k; k--) if (is_line_end(s[k - 1])) return k;
    return whitespace(s, n);
}
static size_t next_gpt4(const PreTokenizer *p, const char *s, size_t n) {
    size_t k = contraction(s, n, 1);
    if (k) return k;
    Char c = look(s, n);
    if (c.class == NUMBER) return span(s, n, NUMBER, p->limit);
    k = c.class == LETTER || is_line_end(s[0]) ? 0 : c.bytes;
    if (look(s + k, n - k).class == LETTER) return k + span(s + k, n - k, LETTER, SIZE_MAX);
    return signs_or_spaces(s, n, 0);
}

/* GPT-4o, gpt-oss: capitals, small letters, an ending. Marks and letters without case are both. */
#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define ENDING "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define LED "[^\\r\\n\\p{L}\\p{N}]?"
#define GPT4O_PATTERN LED CAPITALS "*" SMALL "+" ENDING "|" LED CAPITALS "+" SMALL "*" ENDING \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static int case_at(const char *s, size_t n, size_t *bytes) {
    uint32_t code;
    *bytes = 1;
    if (!n) return 0;
    if ((unsigned char)*s < 0x80) return unicode_case((unsigned char)*s);
    const size_t read = utf8_decode(s, n, &code);
    if (read) *bytes = read;
    return read ? unicode_case(code) : 0;
}
/* CAPITALS*SMALL+, with backtracking. *capitals: their length alone. 0: no match. */
static size_t cased_word(const char *s, size_t n, size_t *capitals) {
    size_t at = 0, both = 0, bytes;
    int kind;
    while ((kind = case_at(s + at, n - at, &bytes)) & MAY_BE_UPPER) {
        at += bytes;
        if (kind & MAY_BE_LOWER) both = at;
    }
    *capitals = at;
    if (!(kind & MAY_BE_LOWER)) return both;
    for (; case_at(s + at, n - at, &bytes) & MAY_BE_LOWER; at += bytes) ;
    return at;
}
static size_t next_gpt4o(const PreTokenizer *p, const char *s, size_t n) {
    const Char c = look(s, n);
    if (c.class == NUMBER) return span(s, n, NUMBER, p->limit);
    /* it may be a mark, which can also begin a word */
    const size_t lead = c.class == LETTER || is_line_end(s[0]) ? 0 : c.bytes;
    size_t capitals[2], word = cased_word(s + lead, n - lead, &capitals[0]), from = lead;
    if (!word) word = cased_word(s, n, &capitals[1]), from = 0;
    if (!word) word = capitals[0], from = lead;
    if (word) return from + word + contraction(s + from + word, n - from - word, 1);
    return signs_or_spaces(s, n, 1);
}

static size_t next_digits(const PreTokenizer *p, const char *s, size_t n) {
    size_t at = span(s, n, NUMBER, p->limit);
    if (!at) for (Char c; (c = look(s + at, n - at)).class != NUMBER && c.class != END; ) at += c.bytes;
    return at;
}

static size_t next_underline(const PreTokenizer *p, const char *s, size_t n) {
    (void)p;
    size_t at = 1;
    while (at < n && !(n - at >= 3 && !memcmp(s + at, UNDERLINE, 3))) at++;
    return at;
}

static const struct { const char *regex; PreTokenizer scanner; } patterns[] = {
    { GPT2_PATTERN,                { next_gpt2, 0 } },
    { GPT4_PATTERN("\\p{N}"),      { next_gpt4, 1 } },      /* Qwen2 */
    { GPT4_PATTERN("\\p{N}{1,3}"), { next_gpt4, 3 } },      /* GPT-4, Llama-3 */
    { GPT4O_PATTERN,               { next_gpt4o, 3 } },
};

const PreTokenizer *pretokenizer_of_regex(const char *regex) {
    for (size_t i = 0; i < COUNT(patterns); i++)
        if (!strcmp(regex, patterns[i].regex)) return &patterns[i].scanner;
    return NULL;
}

PreTokenizer pretokenizer_gpt2(void)               { return patterns[0].scanner; }
const char  *pretokenizer_cl100k_regex(void)       { return patterns[2].regex; }
PreTokenizer pretokenizer_digits(size_t limit)     { return (PreTokenizer){ next_digits, limit }; }
PreTokenizer pretokenizer_underline(void)          { return (PreTokenizer){ next_underline, 0 }; }

int pretokenizer_ends_before_space(const PreTokenizer *p) {
    return p->next == next_gpt2 || p->next == next_gpt4 || p->next == next_gpt4o;
}
