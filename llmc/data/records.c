/* records.c: see records.h. */
#define _POSIX_C_SOURCE 200809L
#include "records.h"
#include "llmc/base/json.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int records_named(const char *path) {
    static const char *const endings[] = { ".jsonl", ".ndjson", ".json" };
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++) if (!strcasecmp(dot, endings[i])) return 1;
    return 0;
}

typedef struct { Records *r; size_t capacity, line; const char *counted, *end; } Finder;

/* The line in which `at` is; calls go forward. */
static size_t line_of(Finder *f, const char *at) {
    for (const char *next; f->counted < at && (next = memchr(f->counted, '\n', (size_t)(at - f->counted))); f->line++)
        f->counted = next + 1;
    return f->line;
}
static void add(Finder *f, const char *at, const char *end) {
    Records *r = f->r;
    while (end > at && text_is_white(end[-1])) end--;
    array_grow(r->at, r->count, f->capacity);
    r->at[r->count++] = (Record){ at, (size_t)(end - at), line_of(f, at) };
}

static const char *after_white(const char *at, const char *end) {
    while (at < end && text_is_white(*at)) at++;
    return at;
}

/* Where a value ends: after its closing bracket, or before the comma or bracket that follows it; a
 * NULL: it does not. */
static const char *after_value(const char *at, const char *end) {
    int depth = 0, quoted = 0;
    for (; at < end; at++) {
        if (quoted) {
            if (*at == '\\') at++;
            else if (*at == '"') quoted = 0;
        } else if (*at == '"') quoted = 1;
        else if (*at == '{' || *at == '[') depth++;
        else if (*at == '}' || *at == ']') { if (!depth) return at; if (!--depth) return at + 1; }
        else if (*at == ',' && !depth) return at;
    }
    return NULL;
}

/* ---- the three ways -------------------------------------------------------------------------- */

static int find_lines(Finder *f, const char *at) {
    for (const char *next; at < f->end; at = next + 1) {
        if (!(next = memchr(at, '\n', (size_t)(f->end - at)))) next = f->end;
        const char *first = after_white(at, next);
        if (first < next) add(f, first, next);
    }
    return 1;
}

static int find_elements(Finder *f, const char *at, Error *e) {
    const size_t line = line_of(f, at++);
    for (;;) {
        const char *first = after_white(at, f->end), *end = after_value(first, f->end), *next = f->end;
        if (!end) break;
        if (end == first && *end == ']' && !f->r->count) next = end;                    /* no element at all */
        else if (end == first) return error_set(e, "line %zu: expected a value, found '%c'", line_of(f, end), *end);
        else {
            add(f, first, end);
            next = after_white(end, f->end);
        }
        if (next == f->end) break;
        at = next + 1;
        if (*next == ']') {
            at = after_white(at, f->end);
            return at == f->end || error_set(e, "line %zu: something follows the end of the array", line_of(f, at));
        }
        if (*next != ',')
            return error_set(e, "line %zu: expected ',' or ']' after an element of the array", line_of(f, next));
    }
    return error_set(e, "line %zu: this array has no end: is the file complete?", line);
}

static int find_values(Finder *f, const char *at, Error *e) {
    while ((at = after_white(at, f->end)) < f->end) {
        const char *end = *at == '{' || *at == '[' ? after_value(at, f->end) : NULL;
        if (!end) return error_set(e, "line %zu: %s", line_of(f, at), *at == '{' || *at == '['
                                   ? "this value has no end: is the file complete?" : "expected an object");
        add(f, at, end);
        at = end;
    }
    return 1;
}

/* Is the first element of an array a message? */
static int has_messages(const char *array, const char *end) {
    Error e;
    const char *first = after_white(array + 1, end), *last = after_value(first, end);
    Json *json = last && *first == '{' ? json_parse_record(first, (size_t)(last - first), &e) : NULL;
    const JsonValue *v = json ? json_root(json) : NULL;
    const int is = json_get(v, "role") || json_get(v, "from");
    json_free(json);
    return is;
}

int records_find(Records *r, const char *text, size_t bytes, Error *e) {
    Finder f = { r, 0, 1, text, text + bytes };
    *r = (Records){ 0 };
    if (bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) text += 3;       /* a byte-order mark, as Windows writes it */
    const char *at = after_white(text, f.end), *line = memchr(at, '\n', (size_t)(f.end - at));
    if (at == f.end) return error_set(e, "it holds nothing but white space");
    if (!line) line = f.end;
    const char *first = *at == '{' || *at == '[' ? after_value(at, line) : NULL, *last = line;
    const int alone = first && after_white(first, f.end) == f.end;
    while (last > at && text_is_white(last[-1])) last--;
    if (*at == '[' && (!first || alone) && !has_messages(at, f.end)) return find_elements(&f, at, e);
    /* a line that is broken ends anywhere, one of several in which a value is written at a seam */
    const int goes_on = !first && line < f.end && (*at == '{' || *at == '[') && strchr("{[,:", last[-1]);
    return goes_on ? find_values(&f, at, e) : find_lines(&f, text);
}
