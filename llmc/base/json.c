/* json.c: see json.h. The parser copies the text once and unescapes strings in place: no escape is
 * shorter than its meaning. Open containers are kept on a stack of fixed depth; there is no
 * recursion. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- parser ---------------------------------------------------------------------------------- */

struct Json { char *text; Block *blocks; const JsonValue *root; Json *inner; };

typedef struct {
    Json *json;
    const char *original;               /* the text before unescaping, to count lines for errors */
    char *at, *end;
    int python;                         /* NaN, Infinity and -Infinity are numbers, as in Python's json */
    Error *e;
} Parser;

static int wrong(Parser *p, const char *what) {
    size_t at = (size_t)(p->at - p->json->text), line = 1;
    for (size_t i = 0; i < at; i++) line += p->original[i] == '\n';
    return error_set(p->e, "line %zu, byte %zu: %s", line, at, p->at == p->end ? "the text ends too early" : what);
}

static void blanks(Parser *p) { while (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t') p->at++; }

static int hex4(const char *s, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return 0;
        *value = *value << 4 | (uint32_t)digit;
    }
    return 1;
}

/* Hugging Face's tokenizers take no such text, either. */
#define HALF "half of a surrogate pair, which is no character: write \\ufffd in its place, or leave the text out"
/* After a backslash: writes the meaning of the escape at *to and advances both. */
static int escape(Parser *p, char **to) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *found = *p->at ? strchr(letters, *p->at) : NULL;
    uint32_t code, low;
    if (found) { *(*to)++ = meanings[found - letters]; p->at++; return 1; }
    if (*p->at != 'u' || !hex4(p->at + 1, &code)) return wrong(p, "unknown escape in a string");
    if (code >= 0xDC00 && code < 0xE000) return wrong(p, HALF);
    p->at += 5;
    if (code >= 0xD800 && code < 0xDC00) {
        if (p->at[0] != '\\' || p->at[1] != 'u' || !hex4(p->at + 2, &low) || low < 0xDC00 || low > 0xDFFF)
            return wrong(p, HALF);
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        p->at += 6;
    }
    *to += utf8_encode(code, *to);
    return 1;
}

static int string(Parser *p, const char **string, size_t *length) {
    char *to = ++p->at;
    *string = to;
    while (*p->at != '"') {
        if (*p->at == '\\') { p->at++; if (!escape(p, &to)) return 0; }
        else if ((unsigned char)*p->at < 0x20) return wrong(p, "control character in a string");
        else *to++ = *p->at++;
    }
    *length = (size_t)(to - *string);
    if (*length > UINT32_MAX) return wrong(p, "string longer than 4 GiB");
    *to = 0;
    p->at++;
    return 1;
}

static int digits(Parser *p) {
    char *begin = p->at;
    while (*p->at >= '0' && *p->at <= '9') p->at++;
    return p->at > begin;
}
static int number(Parser *p, JsonValue *v) {
    char *begin = p->at, *first = begin + (*begin == '-');
    int is_integer = 1;
    p->at = first;
    if (!digits(p)) return wrong(p, "expected a value");
    if (*first == '0' && p->at > first + 1) return wrong(p, "number with a leading zero");
    if (*p->at == '.') { p->at++; is_integer = 0; if (!digits(p)) return wrong(p, "no digit after the decimal point"); }
    if (*p->at == 'e' || *p->at == 'E') {
        p->at++;
        is_integer = 0;
        if (*p->at == '+' || *p->at == '-') p->at++;
        if (!digits(p)) return wrong(p, "no digit in the exponent");
    }
    uint64_t size = 0, limit = first > begin ? (uint64_t)1 << 63 : INT64_MAX;
    for (char *c = first; is_integer && c < p->at; c++) {
        uint64_t digit = (uint64_t)(*c - '0');
        if (size > (limit - digit) / 10) is_integer = 0;
        else size = size * 10 + digit;
    }
    if (is_integer && first > begin && size == 0) is_integer = 0;        /* -0 is a double */
    v->type = is_integer ? JSON_INT : JSON_DOUBLE;
    if (is_integer) v->is.integer = first == begin ? (int64_t)size : -(int64_t)(size - 1) - 1;
    else v->is.number = text_strtod(begin, NULL);
    return is_integer || p->python || isfinite(v->is.number) ? 1 : wrong(p, "number too large for a double");
}

static int by_key(const void *a, const void *b) {
    const JsonValue *x = *(const JsonValue *const *)a, *y = *(const JsonValue *const *)b;
    size_t n = x->key_length < y->key_length ? x->key_length : y->key_length;
    int order = memcmp(x->key, y->key, n);
    return order ? order : (x->key_length > y->key_length) - (x->key_length < y->key_length);
}

/* At the end of an object: sorts its members, to find duplicate keys and for json_get. */
static int index_members(Parser *p, JsonValue *object) {
    enum { SMALL = 8 };
    const JsonValue *small[SMALL], **sorted = small;
    if (object->length > SMALL) sorted = block_alloc(&p->json->blocks, object->length * sizeof *sorted);
    size_t n = 0;
    for (const JsonValue *v = object->is.children.first; v; v = v->next) sorted[n++] = v;
    qsort(sorted, n, sizeof *sorted, by_key);
    for (size_t i = 1; i < n; i++)
        if (by_key(sorted + i - 1, sorted + i) == 0)
            return error_set(p->e, "the key \"%.200s\" appears twice in one object", sorted[i]->key);
    if (sorted != small) object->is.children.sorted = sorted;
    return 1;
}

/* Reads a whole value, or the opening bracket of a container. */
static int value(Parser *p, JsonValue *v) {
    static const struct { const char *word; size_t bytes; JsonType type; int64_t is; } words[] = {
        { "null", 4, JSON_NULL, 0 }, { "true", 4, JSON_BOOL, 1 }, { "false", 5, JSON_BOOL, 0 }, };
    static const struct { const char *word; size_t bytes; double is; } numbers[] = {
        { "NaN", 3, NAN }, { "Infinity", 8, INFINITY }, { "-Infinity", 9, -INFINITY }, };
    switch (*p->at) {
    case '{': p->at++; v->type = JSON_OBJECT; return 1;
    case '[': p->at++; v->type = JSON_ARRAY; return 1;
    case '"': v->type = JSON_STRING; return string(p, &v->is.string, &v->length);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strncmp(p->at, words[i].word, words[i].bytes)) {
            v->type = words[i].type;
            v->is.integer = words[i].is;
            p->at += words[i].bytes;
            return 1;
        }
    for (size_t i = 0; p->python && i < sizeof numbers / sizeof *numbers; i++)
        if (!strncmp(p->at, numbers[i].word, numbers[i].bytes)) {
            v->type = JSON_DOUBLE;
            v->is.number = numbers[i].is;
            p->at += numbers[i].bytes;
            return 1;
        }
    return number(p, v);
}

static int document(Parser *p) {
    struct { JsonValue *value; const JsonValue **tail; } open[JSON_DEPTH];
    int depth = 0;
    do {
        JsonValue *in = depth ? open[depth - 1].value : NULL;
        blanks(p);
        if (in && *p->at == (in->type == JSON_OBJECT ? '}' : ']')) {
            p->at++;
            if (in->type == JSON_OBJECT && !index_members(p, in)) return 0;
            depth--;
            continue;
        }
        if (in && in->length) {
            if (*p->at != ',') return wrong(p, in->type == JSON_OBJECT ? "expected ',' or '}'" : "expected ',' or ']'");
            p->at++;
            blanks(p);
        }
        JsonValue *v = block_alloc(&p->json->blocks, sizeof *v);
        *v = (JsonValue){ 0 };
        if (in) { *open[depth - 1].tail = v; open[depth - 1].tail = &v->next; in->length++; }
        else p->json->root = v;
        if (in && in->type == JSON_OBJECT) {
            size_t length;
            if (*p->at != '"') return wrong(p, "expected a key in quotes");
            if (!string(p, &v->key, &length)) return 0;
            v->key_length = (uint32_t)length;
            blanks(p);
            if (*p->at != ':') return wrong(p, "expected ':'");
            p->at++;
            blanks(p);
        }
        if (!value(p, v)) return 0;
        if (v->type == JSON_ARRAY || v->type == JSON_OBJECT) {
            if (depth == JSON_DEPTH) return wrong(p, "nested too deeply");
            open[depth].value = v;
            open[depth++].tail = &v->is.children.first;
        }
    } while (depth);
    blanks(p);
    return p->at == p->end ? 1 : wrong(p, "something follows the end of the value");
}

static Json *parse(const char *text, size_t bytes, int python, Error *e) {
    size_t valid = utf8_valid(text, bytes);
    if (valid < bytes) { error_set(e, "byte %zu: not UTF-8", valid); return NULL; }
    Json *json = mem_alloc(sizeof *json);
    json->text = mem_grow(NULL, bytes + 1);
    if (bytes) memcpy(json->text, text, bytes);
    json->text[bytes] = 0;
    Parser p = { json, text, json->text, json->text + bytes, python, e };
    int ok = document(&p);
    if (!ok) { json_free(json); json = NULL; }
    return json;
}
Json *json_parse(const char *text, size_t bytes, Error *e) { return parse(text, bytes, 0, e); }
Json *json_parse_record(const char *text, size_t bytes, Error *e) {
    static const char first[] = "line 1, ";
    Json *json = parse(text, bytes, 1, e);
    if (!json && !strncmp(e->text, first, strlen(first)))
        memmove(e->text, e->text + strlen(first), strlen(e->text + strlen(first)) + 1);
    return json;
}

void json_free(Json *json) {
    for (Json *next; json; json = next) {
        next = json->inner;
        block_free(&json->blocks);
        free_each(json->text, json);
    }
}

const JsonValue *json_root(const Json *json) { return json->root; }

/* ---- building -------------------------------------------------------------------------------- */

Json *json_empty(void) { return mem_alloc(sizeof(Json)); }
char *json_keep(Json *json, const char *text, size_t bytes) {
    char *copy = block_alloc(&json->blocks, bytes + 1);
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    return copy;
}
const JsonValue *json_parse_inner(Json *json, const char *text, size_t bytes, Error *e) {
    Json *inner = json_parse(text, bytes, e), *last = inner;
    if (!inner) return NULL;
    while (last->inner) last = last->inner;
    last->inner = json->inner;
    json->inner = inner;
    return inner->root;
}
JsonValue *json_make(Json *json, JsonType type) {
    JsonValue *v = block_alloc(&json->blocks, sizeof *v);
    *v = (JsonValue){ .type = type };
    return v;
}
JsonValue *json_make_string(Json *json, const char *text, size_t bytes) {
    JsonValue *v = json_make(json, JSON_STRING);
    v->is.string = text;
    v->length = bytes;
    return v;
}
JsonValue *json_copy(Json *json, const JsonValue *from) {
    if (!from) return NULL;
    JsonValue *v = block_alloc(&json->blocks, sizeof *v);
    *v = *from;
    v->next = NULL;
    v->key = NULL;
    v->key_length = 0;
    return v;
}
JsonValue *json_append(JsonValue *container, const char *key, JsonValue *v) {
    JsonValue *last = container->is.children.last;
    if (!last) last = (JsonValue *)container->is.children.first;
    while (last && last->next) last = (JsonValue *)last->next;
    if (last) last->next = v;
    else container->is.children.first = v;
    container->is.children.last = v;
    container->is.children.sorted = NULL;
    container->length++;
    v->key = key;
    v->key_length = key ? (uint32_t)strlen(key) : 0;
    return v;
}
void json_cut(JsonValue *array, size_t first, size_t count) {
    JsonValue *before = NULL;
    const JsonValue *after = array->is.children.first;
    for (size_t i = 0; i < first && after; i++) after = (before = (JsonValue *)after)->next;
    for (size_t i = 0; i < count && after; i++, array->length--) after = after->next;
    if (before) before->next = after;
    else array->is.children.first = after;
    array->is.children.last = NULL;
}

/* ---- access ---------------------------------------------------------------------------------- */

int json_is(const JsonValue *v, JsonType type) { return v && v->type == type; }

int json_is_null(const JsonValue *v) { return !v || v->type == JSON_NULL; }
int json_is_empty(const JsonValue *v) { return json_is_null(v) || (v->type >= JSON_STRING && !v->length); }
const JsonValue *json_first(const JsonValue *v) {
    return json_is(v, JSON_ARRAY) || json_is(v, JSON_OBJECT) ? v->is.children.first : NULL;
}

const JsonValue *json_find(const JsonValue *object, const char *key, size_t bytes) {
    if (!json_is(object, JSON_OBJECT) || bytes > UINT32_MAX) return NULL;
    JsonValue wanted = { .key = key, .key_length = (uint32_t)bytes };
    const JsonValue *w = &wanted, *const *found;
    if (object->is.children.sorted) {
        found = bsearch(&w, object->is.children.sorted, object->length, sizeof *found, by_key);
        return found ? *found : NULL;
    }
    for (const JsonValue *v = object->is.children.first; v; v = v->next) if (by_key(&v, &w) == 0) return v;
    return NULL;
}
const JsonValue *json_get(const JsonValue *object, const char *key) { return json_find(object, key, strlen(key)); }
const JsonValue *json_given(const JsonValue *object, const char *key) {
    const JsonValue *v = key ? json_get(object, key) : NULL;
    return json_is_null(v) ? NULL : v;
}

int64_t json_int(const JsonValue *v, int64_t otherwise) { return json_is(v, JSON_INT) ? v->is.integer : otherwise; }
int json_bool(const JsonValue *v, int otherwise) { return json_is(v, JSON_BOOL) ? (int)v->is.integer : otherwise; }
double json_double(const JsonValue *v, double otherwise) {
    return json_is(v, JSON_DOUBLE) ? v->is.number : json_is(v, JSON_INT) ? (double)v->is.integer : otherwise;
}
const char *json_string(const JsonValue *v, const char *otherwise) {
    return json_is(v, JSON_STRING) && !memchr(v->is.string, 0, v->length) ? v->is.string : otherwise;
}

void json_write(Text *to, const JsonValue *v, int depth) {
    const int object = v->type == JSON_OBJECT;
    switch (v->type) {
    case JSON_NULL:   text_add_string(to, "null"); break;
    case JSON_BOOL:   text_add_string(to, v->is.integer ? "true" : "false"); break;
    case JSON_INT:    text_add(to, "%lld", (long long)v->is.integer); break;
    case JSON_DOUBLE: text_add_real(to, v->is.number); break;
    case JSON_STRING: text_add_json(to, v->is.string, v->length); break;
    default:
        text_add_string(to, object ? "{" : "[");
        for (const JsonValue *x = json_first(v); x; x = x->next) {
            text_add(to, "%s\n%*s", x == json_first(v) ? "" : ",", 2 * depth + 2, "");
            if (object) { text_add_json(to, x->key, x->key_length); text_add_string(to, ": "); }
            json_write(to, x, depth + 1);
        }
        if (v->length) text_add(to, "\n%*s", 2 * depth, "");
        text_add_string(to, object ? "}" : "]");
    }
}

/* ---- checked reading ------------------------------------------------------------------------- */

static int wrong_value(const JsonValue *v, const char *name, const char *expected, Error *e) {
    Text is = { 0 };
    if (!v) return error_set(e, "\"%s\" is missing", name);
    if (v->type == JSON_INT) text_add(&is, "%lld", (long long)v->is.integer);
    else if (v->type == JSON_DOUBLE) text_add_double(&is, v->is.number);
    else if (v->type == JSON_STRING) text_add_json(&is, v->is.string, v->length < 40 ? v->length : 40);
    else text_add_string(&is, v->type == JSON_NULL ? "null" : v->type == JSON_BOOL ? (v->is.integer ? "true" : "false")
                            : v->type == JSON_ARRAY ? "a list" : "an object");
    error_set(e, "\"%s\" is %s; expected %s", name, is.at, expected);
    free(is.at);
    return 0;
}

int json_read_int(const JsonValue *v, const char *name, int64_t low, int64_t high, int64_t *x, Error *e) {
    char expected[96];
    if (json_is(v, JSON_INT) && v->is.integer >= low && v->is.integer <= high) { *x = v->is.integer; return 1; }
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)low, (long long)high);
    return wrong_value(v, name, expected, e);
}
int json_read_double(const JsonValue *v, const char *name, double low, double high, double *x, Error *e) {
    char expected[96];
    const double d = json_double(v, NAN);
    if (d >= low && d <= high) { *x = d; return 1; }
    snprintf(expected, sizeof expected, "a number from %.10g to %.10g", low, high);
    return wrong_value(v, name, expected, e);
}
int json_read_hex(const JsonValue *v, const char *name, uint64_t *x, Error *e) {
    const char *s = json_string(v, "");
    const size_t n = strspn(s, "0123456789abcdef");
    if (n && n <= 16 && !s[n]) { *x = strtoull(s, NULL, 16); return 1; }
    return wrong_value(v, name, "up to 16 hexadecimal digits in quotes", e);
}
int json_read_string(const JsonValue *v, const char *name, const char **x, Error *e) {
    return (*x = json_string(v, NULL)) ? 1 : wrong_value(v, name, "a text in quotes, without NUL", e);
}

static const char seal[] = "\"crc32c\": \"";

void json_seal(Text *t) {
    text_add_string(t, ", ");
    text_add(t, "%s%08x\"}", seal, crc32c(0, t->at, t->length));
}

int json_sealed(const char *text, size_t bytes, Error *e) {
    enum { DIGITS = 8, KEY = sizeof seal - 1 };
    while (bytes && text[bytes - 1] && strchr(" \n\r\t", text[bytes - 1])) bytes--;
    if (bytes < KEY + DIGITS + 2) return 1;
    const size_t at = bytes - (KEY + DIGITS + 2);
    char digits[DIGITS + 1] = "";
    if (memcmp(text + at, seal, KEY) || memcmp(text + bytes - 2, "\"}", 2)) return 1;
    memcpy(digits, text + at + KEY, DIGITS);
    const uint32_t is = crc32c(0, text, at);
    char expected[DIGITS + 1];
    snprintf(expected, sizeof expected, "%08x", is);
    return !strcmp(digits, expected) || error_set(e, "damaged: its CRC-32C is %s, expected %.8s", expected, digits);
}

/* ---- files ----------------------------------------------------------------------------------- */

Json *json_read_file(const char *folder, const char *name, Error *e) {
    char *path = text_format("%s/%s", folder, name);
    size_t bytes;
    Error why;
    char *text = file_read(path, &bytes, e);
    Json *json = text ? json_parse(text, bytes, &why) : NULL;
    if (text && !json) error_set(e, "%s: %.900s", path, why.text);
    free_each(text, path);
    return json;
}
Json *json_read_beside(const char *folder, const char *name, int *ok, Error *e) {
    const int there = folder_has(folder, name);
    Json *json = there ? json_read_file(folder, name, e) : NULL;
    if (!json && there) *ok = 0;
    return json;
}
