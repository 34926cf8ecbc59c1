/* unicode.c: see unicode.h. The tables are generated (unicode_table.h). */
#define _POSIX_C_SOURCE 200809L
#include "unicode.h"
#include "unicode_table.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COUNT(a) (sizeof (a) / sizeof *(a))

/* The row of a table of `width` columns whose range [column 0, last] holds the code, or NULL. */
static const uint32_t *row_of(const uint32_t *table, size_t rows, size_t width, size_t last, uint32_t code) {
    size_t low = 0, high = rows;
    while (low < high) {
        size_t mid = (low + high) / 2;
        const uint32_t *row = table + mid * width;
        if (code < row[0]) high = mid;
        else if (code > row[last]) low = mid + 1;
        else return row;
    }
    return NULL;
}

/* The bits of a category (Lu), or of a group of them (L). */
static uint32_t mask_of(const char *name, size_t n) {
    uint32_t mask = 0;
    for (uint32_t i = 0; UNICODE_CATEGORIES[2 * i]; i++)
        if (n && n <= 2 && !memcmp(&UNICODE_CATEGORIES[2 * i], name, n)) mask |= 1u << i;
    return mask;
}
static size_t letters(const char *name) { return (size_t)(name[0] & 31) * 32 + (size_t)(name[1] & 31); }
/* The characters of the categories whose bits are in `mask`. */
static void add_categories(CodeSet *out, uint32_t mask) {
    enum { UPPER = 1, LOWER = 2 };
    uint32_t bits[32 * 32] = { 0 }, code = 0;               /* bits: of a category, by the letters of its name */
    for (uint32_t i = 0; UNICODE_CATEGORIES[2 * i]; i++) bits[letters(&UNICODE_CATEGORIES[2 * i])] = 1u << i;
    bits[letters("LC")] = UPPER | LOWER;
    for (size_t i = 0; i < COUNT(unicode_categories); i++)
        for (const char *at = unicode_categories[i]; *at; at += *at == ' ') {
            const uint32_t of = bits[letters(at)];
            uint32_t n = 0;
            for (at += 2; *at >= '0' && *at <= '9'; at++) n = 10 * n + (uint32_t)(*at - '0');
            const uint32_t next = code + (n ? n : 1);
            if ((mask & of) == of) codeset_add(out, code, next - 1);
            else if (mask & of) for (code += !(mask & UPPER); code < next; code += 2) codeset_add(out, code, code);
            code = next;
        }
}

int unicode_add(CodeSet *out, const char *name, size_t n) {
#define ROWS(name) { #name, unicode_##name, COUNT(unicode_##name) }
    static const struct { const char *name; const uint32_t (*rows)[2]; size_t count; } tables[] = {
        ROWS(han), ROWS(hiragana), ROWS(katakana), ROWS(hangul), { "space", unicode_spaces, COUNT(unicode_spaces) },
        { "word", unicode_words, COUNT(unicode_words) } };
    static const char *const words[] = { "L", "M", "Nd", "Nl", "Pc" };
    const int is_word = n == 4 && !strncasecmp(name, "word", n);
    uint32_t mask = mask_of(name, n);
    for (size_t i = 0; i < COUNT(words) && is_word; i++) mask |= mask_of(words[i], strlen(words[i]));
    add_categories(out, mask);
    codeset_sort(out);
    size_t found = mask != 0;
    for (size_t i = 0; i < COUNT(tables); i++)
        if (strlen(tables[i].name) == n && !strncasecmp(tables[i].name, name, n)) {
            CodeSet rows = { 0 };
            for (size_t k = 0; k < tables[i].count; k++) codeset_add(&rows, tables[i].rows[k][0], tables[i].rows[k][1]);
            codeset_join(out, &rows);
            free(rows.at);
            found = 1;
        }
    return found != 0;
}

/* ---- normalization ------------------------------------------------------------------------------
 * Decompose every character fully, order combining marks by class, and for form C compose again
 * (Unicode Standard Annex 15). Bytes that are not UTF-8 are represented by codes above Unicode. */

enum { MALFORMED = 0x110000 };
enum { S_BASE = 0xAC00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28 };
typedef struct { uint32_t *at; size_t count, capacity; } Codes;

static void codes_add(Codes *c, uint32_t code) {
    array_grow(c->at, c->count, c->capacity);
    c->at[c->count++] = code;
}

static uint32_t combining_class(uint32_t code) {
    const uint32_t *row = code < 0x300 ? NULL : row_of(unicode_combining[0], COUNT(unicode_combining), 3, 1, code);
    return row ? row[2] : 0;
}

/* Of an ideograph that is there for compatibility, or 0. */
static uint32_t usual_ideograph(uint32_t code) {
    const uint32_t i = code - 0xF900, k = code - 0x2F800;
    return i < COUNT(unicode_ideographs_f900) ? unicode_ideographs_f900[i]
        : k < COUNT(unicode_ideographs_2f800) ? unicode_ideographs_2f800[k] : 0;
}
static void decompose(Codes *out, uint32_t code) {
    const uint32_t s = code - S_BASE, ideograph = usual_ideograph(code);
    if (code >= S_BASE && s < L_COUNT * V_COUNT * T_COUNT) {
        codes_add(out, L_BASE + s / (V_COUNT * T_COUNT));
        codes_add(out, V_BASE + s / T_COUNT % V_COUNT);
        if (s % T_COUNT) codes_add(out, T_BASE + s % T_COUNT);
        return;
    }
    if (ideograph) { decompose(out, ideograph); return; }
    const uint32_t *row = row_of(unicode_decompositions[0], COUNT(unicode_decompositions), 3, 0, code);
    if (!row) { codes_add(out, code); return; }
    decompose(out, row[1]);
    if (row[2]) decompose(out, row[2]);
}

/* The character that a pair composes to, or 0. */
static uint32_t compose(uint32_t a, uint32_t b) {
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a - S_BASE < L_COUNT * V_COUNT * T_COUNT && (a - S_BASE) % T_COUNT == 0 && b - T_BASE - 1 < T_COUNT - 1)
        return a + (b - T_BASE);
    size_t low = 0, high = COUNT(unicode_compositions);
    while (low < high) {
        size_t mid = (low + high) / 2;
        const uint32_t *row = unicode_decompositions[unicode_compositions[mid]];
        if (row[1] == a && row[2] == b) return row[0];
        if (row[1] < a || (row[1] == a && row[2] < b)) low = mid + 1;
        else high = mid;
    }
    return 0;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts each sequence of marks by class, stably: a key holds class, position and code. */
static void order_marks(Codes *c) {
    uint64_t *keys = NULL;
    for (size_t begin = 0, end; begin < c->count; begin = end + 1) {
        for (end = begin; end < c->count && combining_class(c->at[end]); end++) {}
        if (end < begin + 2) continue;
        keys = mem_grow(keys, (end - begin) * sizeof *keys);
        for (size_t i = begin; i < end; i++)
            keys[i - begin] = (uint64_t)combining_class(c->at[i]) << 56 | (uint64_t)(i - begin) << 21 | c->at[i];
        qsort(keys, end - begin, sizeof *keys, by_value);
        for (size_t i = begin; i < end; i++) c->at[i] = (uint32_t)keys[i - begin] & 0x1FFFFF;
    }
    free(keys);
}

static void compose_all(Codes *c) {
    size_t kept = 0, starter = SIZE_MAX;
    uint32_t last = 0;                                   /* class of the last mark kept since the starter */
    for (size_t i = 0; i < c->count; i++) {
        uint32_t code = c->at[i], class = combining_class(code);
        int free_way = starter != SIZE_MAX && (starter + 1 == kept || last < class);
        uint32_t composed = free_way ? compose(c->at[starter], code) : 0;
        if (composed) { c->at[starter] = composed; continue; }
        if (!class) starter = kept;
        last = class;
        c->at[kept++] = code;
    }
    c->count = kept;
}

void unicode_normalize(Text *out, const char *s, size_t n, int composes) {
    Codes c = { 0 };
    int plain = 1;                                       /* text below U+0300 is in form C, below U+00C0 in D */
    for (size_t i = 0; i < n; i++) plain &= (unsigned char)s[i] < (composes ? 0xCC : 0xC3);
    if (plain) { text_add_bytes(out, s, n); return; }
    for (size_t at = 0, step; at < n; at += step) {
        uint32_t code;
        step = utf8_decode(s + at, n - at, &code);
        if (step) decompose(&c, code);
        else { step = 1; codes_add(&c, MALFORMED + (unsigned char)s[at]); }
    }
    order_marks(&c);
    if (composes) compose_all(&c);
    for (size_t i = 0; i < c.count; i++) {
        char bytes[4] = { (char)(c.at[i] - MALFORMED) };
        text_add_bytes(out, bytes, c.at[i] >= MALFORMED ? 1 : utf8_encode(c.at[i], bytes));
    }
    free(c.at);
}
