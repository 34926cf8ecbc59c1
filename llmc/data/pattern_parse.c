/* pattern_parse.c: see pattern_parse.h. The program is written while the expression is read. Jumps
 * are relative, so a part of the program can be moved and repeated. */
#include "pattern_parse.h"
#include "unicode.h"
#include <stdlib.h>
#include <string.h>

enum { ENDLESS = -1 };
typedef struct {
    PatternProgram *p;
    const char *begin, *at, *end;
    int ignore_case, dot_all, depth, in_class;
    CodeSet cased;                      /* letters with another case, beyond ASCII, when first needed */
    uint32_t letter;                    /* the letter of ASCII before, under (?i); 0: none */
    Instruction *look[LOOKS]; int look_length[LOOKS];
    Error *e;
} Parser;

static int refuse(const Parser *s, const char *what, const char *at) {
    const size_t rest = (size_t)(s->end - at);
    return error_set(s->e, "the pattern %.200s: %s is not supported, at \"%.*s\"", s->begin, what,
                     (int)(rest < 20 ? rest : 20), at);
}
static int is_next(const Parser *s, const char *text) {
    const size_t n = strlen(text);
    return (size_t)(s->end - s->at) >= n && !memcmp(s->at, text, n);
}
static int skip(Parser *s, const char *text) {
    const int is = is_next(s, text);
    if (is) s->at += strlen(text);
    return is;
}

/* ---- the program ----------------------------------------------------------------------------- */

static int emit(Parser *s, Instruction i) {
    if (s->p->length == CODE_LENGTH) return refuse(s, "a pattern of this length", s->at);
    s->p->code[s->p->length++] = i;
    return 1;
}
static int insert(Parser *s, int at, Instruction i) {
    if (!emit(s, i)) return 0;
    Instruction *code = s->p->code + at;
    memmove(code + 1, code, (size_t)(s->p->length - 1 - at) * sizeof *code);
    *code = i;
    return 1;
}

/* The number of a set, which it takes; -1: too many. */
static int set_number(Parser *s, CodeSet *set) {
    PatternProgram *p = s->p;
    int i = 0;
    while (i < p->sets && (p->set[i].count != set->count
                           || (set->count && memcmp(p->set[i].at, set->at, set->count * sizeof *set->at)))) i++;
    if (i == PATTERN_SETS) return free(set->at), refuse(s, "so many characters and classes", s->at) - 1;
    if (i == p->sets) p->set[p->sets++] = *set; else free(set->at);
    return i;
}
static int emit_set(Parser *s, Operation op, CodeSet *set, int edge) {
    const int i = set_number(s, set);
    s->p->has_behind |= op == BEHIND;
    return i >= 0 && emit(s, (Instruction){ op, i, edge });
}
static CodeSet property(const char *name) {
    CodeSet set = { 0 };
    unicode_add(&set, name, strlen(name));
    return set;
}
/* Oniguruma's \w has these numbers, too, but not in a class. */
static CodeSet word(void) {
    static const uint32_t more[] = { 0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE };
    CodeSet set = property("word");
    for (int i = 0; i < 6; i++) codeset_add(&set, more[i], more[i]);
    codeset_sort(&set);
    return set;
}
static void find_cased(CodeSet *cased) {
    static const char *const names[] = { "Lu", "Ll", "Lt" };
    CodeSet beyond = { 0 };
    for (int i = 0; i < 3; i++) unicode_add(cased, names[i], 2);
    codeset_add(&beyond, 0, 0x7F);
    codeset_add(&beyond, 0x17F, 0x17F);
    codeset_add(&beyond, 0x212A, 0x212A);
    codeset_invert(&beyond);
    codeset_cross(cased, &beyond);
    free(beyond.at);
}
/* The set, and under (?i) the other case of its letters. Its Unicode folds s and k to two more. */
static int fold_case(Parser *s, CodeSet *set, const char *at) {
    if (!s->ignore_case) return 1;
    CodeSet within = { 0 };
    if (!s->cased.count) find_cased(&s->cased);
    codeset_join(&within, set);
    codeset_cross(&within, &s->cased);
    const int some = within.count > 0, all = within.count == s->cased.count
        && !memcmp(within.at, s->cased.at, within.count * sizeof *within.at);
    within.count = 0;
    for (uint32_t c = 'a'; c <= 'z'; c++) {
        const uint32_t other = c == 's' ? 0x17F : c == 'k' ? 0x212A : c;
        if (!codeset_has(set, c) && !codeset_has(set, c - 'a' + 'A') && !codeset_has(set, other)) continue;
        codeset_add(&within, c, c);
        codeset_add(&within, c - 'a' + 'A', c - 'a' + 'A');
        codeset_add(&within, other, other);
    }
    codeset_sort(&within);
    codeset_join(set, &within);
    free(within.at);
    return !some || all || refuse(s, "(?i) for letters beyond ASCII", at);
}

/* ---- characters and classes ------------------------------------------------------------------ */

static int character(Parser *s, uint32_t *code) {
    const size_t n = utf8_decode(s->at, (size_t)(s->end - s->at), code);
    s->at += n;
    return n || refuse(s, "what is not UTF-8", s->at);
}

static int hexadecimal(Parser *s, int digits, uint32_t *code) {
    const char *at = s->at;
    const int braces = digits == 2 && skip(s, "{");
    int n = 0;
    *code = 0;
    for (const char *found; n < (braces ? 6 : digits) && s->at < s->end
         && (found = memchr("0123456789abcdefABCDEF", *s->at, 22)); s->at++, n++) {
        const int digit = *found < 'A' ? *found - '0' : (*found | 32) - 'a' + 10;
        *code = 16 * *code + (uint32_t)digit;
    }
    /* \xE4 is a byte of a character to Oniguruma */
    const int ok = n && (braces ? skip(s, "}") : n == digits) && *code <= CODE_MAX
                && (digits > 2 || braces || *code < 0x80);
    return ok || refuse(s, "this number of a character", at);
}

/* \p{Name}, \p{^Name}, after the p. */
static int property_of(Parser *s, int negative, CodeSet *set) {
    const char *at = s->at - 2, *close = memchr(s->at, '}', (size_t)(s->end - s->at));
    if (!skip(s, "{") || !close) return refuse(s, "\\p without a name in braces", at);
    negative ^= skip(s, "^");
    if (!unicode_add(set, s->at, (size_t)(close - s->at))) return refuse(s, "this property", at);
    s->at = close + 1;
    if (negative) codeset_invert(set);
    return 1;
}

/* What follows a backslash, in a class or not: 1: a character, 2: a set. 0: neither. */
static int escape(Parser *s, uint32_t *code, CodeSet *set) {
    static const char letters[] = "nrtfvae", codes[] = "\n\r\t\f\v\a\033";
    static const char kinds[] = "sdw", *const names[] = { "space", "Nd", "word" };
    const char *at = s->at - 1;
    if (s->at == s->end) return refuse(s, "a \\ at the end", at);
    const char c = *s->at, *known = memchr(letters, c, sizeof letters - 1), *kind = memchr("sdwSDW", c, 6);
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))) return character(s, code);
    s->at++;
    if (known) return *code = (uint32_t)codes[known - letters], 1;
    if (c == 'x' || c == 'u') return hexadecimal(s, c == 'x' ? 2 : 4, code);
    if (c == 'p' || c == 'P') return property_of(s, c == 'P', set) ? 2 : 0;
    if (!kind) return refuse(s, "this escape", at);
    const int number = (int)(strchr(kinds, c | 32) - kinds);
    *set = number == 2 && !s->in_class ? word() : property(names[number]);
    if (c < 'a') codeset_invert(set);
    return 2;
}

static int class_members(Parser *s, CodeSet *set);
static int class(Parser *s, CodeSet *set) {             /* after its [ */
    const char *at = s->at - 1;
    if (++s->depth > DEPTH) return refuse(s, "so deep a nesting", at);
    const int negative = skip(s, "^");
    s->in_class++;
    if (!class_members(s, set) || !fold_case(s, set, at)) return 0;
    if (negative) codeset_invert(set);
    s->depth--;
    s->in_class--;
    return 1;
}
/* One member: a set, a character, or the first of a range. */
static int member(Parser *s, CodeSet *set) {
    uint32_t code = 0, last;
    CodeSet more = { 0 };
    const char *at = s->at;
    if (is_next(s, "[:")) return refuse(s, "a class of POSIX", at);
    int kind = skip(s, "[") ? 2 * class(s, &more) : skip(s, "\\") ? escape(s, &code, &more) : character(s, &code);
    if (kind == 1) {
        last = code;
        if (s->end - s->at > 1 && s->at[0] == '-' && s->at[1] != ']') {
            s->at++;
            if (is_next(s, "[") || is_next(s, "&&")) kind = refuse(s, "this range", at);
            else kind = skip(s, "\\") ? escape(s, &last, &more) : character(s, &last);
            if (kind == 2 || (kind && last < code)) kind = refuse(s, "this range", at);
        }
        if (kind) codeset_add(set, code, last);
    } else if (kind) codeset_join(set, &more);
    free(more.at);
    return kind != 0;
}
static int class_members(Parser *s, CodeSet *set) {
    CodeSet all = { 0 };
    const char *at = s->at;
    int crosses = 0, ok = 1;
    for (int first = 1; ok && (first || !is_next(s, "]")); first = 0) {
        if (s->at == s->end) ok = refuse(s, "a [ without its ]", at);
        else if (!skip(s, "&&")) ok = member(s, set);
        else {
            codeset_sort(set);
            if (crosses++) codeset_cross(&all, set); else codeset_join(&all, set);
            set->count = 0;
        }
    }
    s->at += ok;
    codeset_sort(set);
    if (crosses) codeset_cross(set, &all);
    free(all.at);
    return ok;
}

/* ---- groups and repetition ------------------------------------------------------------------- */

/* empty: may what was read match without reading? */
static int alternation(Parser *s, int *empty);

static int is_one_set(const Parser *s, int begin) {
    return s->p->length == begin + 1 && s->p->code[begin].op == SET;
}

/* A look-ahead of one character reads AHEAD; another becomes a program of its own. */
static int look_ahead(Parser *s, int begin, int negative) {
    PatternProgram *p = s->p;
    if (is_one_set(s, begin)) {
        CodeSet set = { 0 };
        codeset_join(&set, &p->set[p->code[begin].x]);
        if (negative) codeset_invert(&set);
        p->length = begin;
        return emit_set(s, AHEAD, &set, negative);
    }
    if (p->looks == LOOKS) return refuse(s, "more than four look-aheads of several characters", s->at);
    const int i = p->looks++, n = s->look_length[i] = p->length - begin;
    s->look[i] = mem_alloc((size_t)n * sizeof *p->code + 1);
    memcpy(s->look[i], p->code + begin, (size_t)n * sizeof *p->code);
    p->length = begin;
    return emit(s, (Instruction){ LOOK, i, negative });
}
static int look_behind(Parser *s, int begin, int negative, const char *at) {
    PatternProgram *p = s->p;
    CodeSet set = { 0 };
    if (!is_one_set(s, begin)) return refuse(s, "a look-behind of more than one character", at);
    codeset_join(&set, &p->set[p->code[begin].x]);
    if (negative) codeset_invert(&set);
    p->length = begin;
    return emit_set(s, BEHIND, &set, negative);
}

static int group(Parser *s, int *empty) {                /* after its ( */
    static const char *const starts[] = { "?=", "?!", "?<=", "?<!" };
    const char *at = s->at - 1;
    const int begin = s->p->length, ignore_case = s->ignore_case, dot_all = s->dot_all;
    int kind = -1, on = 1;
    for (int i = 0; i < 4 && kind < 0; i++) if (skip(s, starts[i])) kind = i;
    if (kind < 0 && skip(s, "?")) {
        for (; s->at < s->end && *s->at && memchr("im-", *s->at, 3); s->at++)
            if (*s->at == '-') on = 0;
            else if (*s->at == 'i') s->ignore_case = on;
            else s->dot_all = on;
        if (at == s->begin && is_next(s, ")")) return s->at++, *empty = 1;      /* for all that follows */
        if (!skip(s, ":")) return refuse(s, "this kind of group", at);
    }
    s->letter = 0;
    if (!alternation(s, empty)) return 0;
    if (!skip(s, ")")) return refuse(s, "a ( without its )", at);
    s->ignore_case = ignore_case;
    s->dot_all = dot_all;
    s->letter = 0;
    if (kind < 0) return 1;
    *empty = 1;
    return kind < 2 ? look_ahead(s, begin, kind == 1) : look_behind(s, begin, kind == 3, at);
}

/* ^ $ \A \z: an edge of the text, or, with a set, such a character. */
static int edge(Parser *s, Operation op, const char *of) {
    CodeSet set = { 0 };
    if (*of) codeset_add(&set, (unsigned char)*of, (unsigned char)*of);
    return emit_set(s, op, &set, 1);
}
/* \b and \B: two ways, each a character before and one after. */
static int word_edge(Parser *s, int is_edge) {
    CodeSet is[2] = { word(), word() }, other[2] = { word(), word() };
    codeset_invert(&other[0]);
    codeset_invert(&other[1]);
    return (emit(s, (Instruction){ SPLIT, 1, 4 }) & emit_set(s, BEHIND, &is[0], 0)
        & emit_set(s, AHEAD, is_edge ? &other[1] : &is[1], is_edge) & emit(s, (Instruction){ JUMP, 3, 0 })
        & emit_set(s, BEHIND, &other[0], 1) & emit_set(s, AHEAD, is_edge ? &is[1] : &other[1], !is_edge));
}

/* The first character of pairs that are also one character in another case: \u00DF is ss. */
static int is_folded_pair(uint32_t a, uint32_t b) {
    return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}
static int emit_character(Parser *s, uint32_t code, const char *at) {
    CodeSet set = { 0 };
    const uint32_t lower = s->ignore_case && code < 0x80 ? code | 32 : 0;
    if (s->letter && is_folded_pair(s->letter, lower)) return refuse(s, "(?i) of letters that can be one", at);
    s->letter = lower;
    codeset_add(&set, code, code);
    if (fold_case(s, &set, at)) return emit_set(s, SET, &set, 0);
    free(set.at);
    return 0;
}

static int atom(Parser *s, int *empty) {
    CodeSet set = { 0 };
    const char *at = s->at;
    uint32_t code = 0;
    const char c = *at;
    *empty = 0;
    if (memchr("*+?", c, 3)) return refuse(s, "repetition of nothing", at);
    if (c == '(') return s->at++, group(s, empty);
    *empty = c == '^' || c == '$';
    if (skip(s, "$")) return edge(s, AHEAD, "\n");
    if (skip(s, "^")) {                                 /* not after a new line that ends the text */
        CodeSet any = { 0 };
        codeset_add(&any, 0, CODE_MAX);
        return emit(s, (Instruction){ SPLIT, 1, 3 }) & edge(s, BEHIND, "") & emit(s, (Instruction){ JUMP, 3, 0 })
            & edge(s, BEHIND, "\n") & emit_set(s, AHEAD, &any, 0);
    }
    *empty = is_next(s, "\\A") || is_next(s, "\\z") || is_next(s, "\\b") || is_next(s, "\\B");
    if (*empty) {
        s->at += 2;
        return at[1] == 'A' ? edge(s, BEHIND, "") : at[1] == 'z' ? edge(s, AHEAD, "") : word_edge(s, at[1] == 'b');
    }
    int kind = skip(s, "\\") ? escape(s, &code, &set) : 0;
    if (!kind && s->at != at) return free(set.at), 0;
    if (!kind && skip(s, ".")) {
        if (!s->dot_all) codeset_add(&set, '\n', '\n');
        codeset_invert(&set);
        kind = 2;
    }
    if (!kind) kind = skip(s, "[") ? 2 * class(s, &set) : character(s, &code);
    if (kind == 1) return free(set.at), emit_character(s, code, at);
    s->letter = 0;
    if (kind == 2) return emit_set(s, SET, &set, 0);
    free(set.at);
    return 0;
}

/* The part from `begin` on, `min` to `max` times. */
static int repeat(Parser *s, int begin, int min, int max, int lazy, int *empty) {
    PatternProgram *p = s->p;
    const int n = p->length - begin, more = max == ENDLESS ? 1 : max - min;
    if (*empty && max != 1) return refuse(s, "repetition of what may be empty", s->at);
    if ((int64_t)(n + 1) * (min + more) > CODE_LENGTH) return refuse(s, "so many repetitions", s->at);
    Instruction *part = mem_alloc((size_t)n * sizeof *part + 1);
    int ok = 1;
    memcpy(part, p->code + begin, (size_t)n * sizeof *part);
    p->length = begin;
    for (int k = 0; k < min + more && ok; k++) {
        const int is_loop = max == ENDLESS && k == min, skips = is_loop ? n + 2 : (min + more - k) * (n + 1);
        if (is_loop && min) break;
        if (k >= min) ok = emit(s, (Instruction){ SPLIT, lazy ? skips : 1, lazy ? 1 : skips });
        for (int i = 0; i < n && ok; i++) ok = emit(s, part[i]);
        if (is_loop) ok = ok && emit(s, (Instruction){ JUMP, -n - 1, 0 });
    }
    if (max == ENDLESS && min) ok = ok && emit(s, (Instruction){ SPLIT, lazy ? 1 : -n, lazy ? -n : 1 });
    free(part);
    *empty |= !min;
    return ok;
}

/* x*+ reads all of x: it is x*(?!x). */
static int possessive(Parser *s, int begin, int min, int max, int *empty) {
    CodeSet other = { 0 };
    if (!is_one_set(s, begin)) return refuse(s, "a possessive repetition of more than one character", s->at - 2);
    codeset_join(&other, &s->p->set[s->p->code[begin].x]);
    codeset_invert(&other);
    if (max == ENDLESS) {
        if (repeat(s, begin, min, max, 0, empty)) return emit_set(s, AHEAD, &other, 1);
        return free(other.at), 0;
    }
    *empty = 1;
    return insert(s, begin, (Instruction){ SPLIT, 1, 3 }) & emit(s, (Instruction){ JUMP, 2, 0 })
        & emit_set(s, AHEAD, &other, 1);
}

static int number(const char **at, const char *end, int *value) {
    const char *from = *at;
    for (*value = 0; *at < end && **at >= '0' && **at <= '9'; ++*at)
        if (*value <= CODE_LENGTH) *value = 10 * *value + (**at - '0');
    return *at > from;
}
/* {m}, {m,}, {,n}, {m,n}; another { stands for itself. */
static int interval(Parser *s, int *min, int *max) {
    const char *at = s->at;
    if (at == s->end || *at++ != '{') return 0;
    const int has_min = number(&at, s->end, min);
    *max = *min;
    if (at < s->end && *at == ',') {
        at++;
        if (!number(&at, s->end, max)) *max = ENDLESS;
        if (!has_min && *max == ENDLESS) return 0;
    } else if (!has_min) return 0;
    if (at == s->end || *at != '}') return 0;
    s->at = at + 1;
    return 1;
}
static int quantifiers(Parser *s, int begin, int *empty) {
    for (int ok = 1; ok; ) {
        int min = 0, max = ENDLESS, braces = 0;
        if (skip(s, "+")) min = 1;
        else if (skip(s, "?")) max = 1;
        else if (!skip(s, "*") && !(braces = interval(s, &min, &max))) return 1;
        if (max != ENDLESS && max < min) return refuse(s, "this repetition", s->at);
        s->letter = 0;
        if (!braces && skip(s, "+")) ok = possessive(s, begin, min, max, empty);
        else ok = repeat(s, begin, min, max, min != max && skip(s, "?"), empty);
    }
    return 0;
}

static int sequence(Parser *s, int *empty) {
    *empty = 1;
    s->letter = 0;
    while (s->at < s->end && *s->at != '|' && *s->at != ')') {
        const int begin = s->p->length;
        int is_empty = 0;
        if (!atom(s, &is_empty) || !quantifiers(s, begin, &is_empty)) return 0;
        *empty &= is_empty;
    }
    return 1;
}
static int alternation(Parser *s, int *empty) {
    const int begin = s->p->length;
    if (++s->depth > DEPTH) return refuse(s, "so deep a nesting", s->at);
    int ok = sequence(s, empty), other;
    while (ok && skip(s, "|")) {
        const int n = s->p->length - begin, jump = begin + n + 1;
        ok = insert(s, begin, (Instruction){ SPLIT, 1, n + 2 }) && emit(s, (Instruction){ JUMP, 0, 0 })
          && sequence(s, &other);
        if (!ok) break;
        s->p->code[jump].x = s->p->length - jump;
        *empty |= other;
    }
    s->depth--;
    return ok;
}

static int parse_all(Parser *s, int is_text) {
    PatternProgram *p = s->p;
    int ok = 1, empty;
    uint32_t code;
    if (is_text) while (ok && s->at < s->end) ok = character(s, &code) && emit_character(s, code, s->at);
    else ok = alternation(s, &empty) && (s->at == s->end || refuse(s, "a ) without its (", s->at));
    ok = ok && emit(s, (Instruction){ MATCH, 0, 0 });
    for (int i = 0; i < p->looks; i++) {
        p->begin[1 + i] = p->length;
        for (int k = 0; k < s->look_length[i] && ok; k++) ok = emit(s, s->look[i][k]);
        ok = ok && emit(s, (Instruction){ MATCH, 0, 0 });
        free(s->look[i]);
    }
    return ok;
}
int pattern_parse(PatternProgram *p, const char *regex, size_t bytes, int is_text, Error *e) {
    Parser s = { .p = p, .begin = regex, .at = regex, .end = regex + bytes, .e = e };
    p->code = mem_alloc(CODE_LENGTH * sizeof *p->code);
    if (bytes > PATTERN_BYTES)
        return error_set(e, "a pattern of %zu bytes is not supported, only up to %d", bytes, PATTERN_BYTES);
    const int ok = parse_all(&s, is_text);
    free(s.cased.at);
    return ok;
}
void pattern_program_free(PatternProgram *p) {
    for (int i = 0; i < p->sets; i++) free(p->set[i].at);
    free(p->code);
}
