/* json.c: the parser of JSON, and text: an accepted document is visited, its strings and numbers
 * are written again and must read back; any bytes are shown to a terminal. */
#define _GNU_SOURCE
#include "tests/fuzz/support/fuzz.h"
#include "llmc/base/json.h"
#include <math.h>

const int fuzz_is_json = 1;

static void check_string(const char *text, size_t bytes) {
    Text t = { 0 };
    Error e;
    text_add_json(&t, text, bytes);
    fuzz_check_shown(t.at, t.length);
    Json *again = json_parse(t.at, t.length, &e);
    fuzz_check(again && json_root(again)->length == bytes && !memcmp(json_root(again)->is.string, text, bytes));
    json_free(again), free(t.at);
}
static void check_double(double x) {
    Text t = { 0 };
    text_add_double(&t, x);
    fuzz_check(text_strtod(t.at, NULL) == x);
    free(t.at);
}
static void visit(const JsonValue *v, int depth, int *strings) {
    size_t n = 0;
    fuzz_check(depth <= JSON_DEPTH);
    if (v->type == JSON_STRING && ++*strings < 100) check_string(v->is.string, v->length);
    if (v->type == JSON_DOUBLE) { fuzz_check(isfinite(v->is.number)); check_double(v->is.number); }
    for (const JsonValue *c = json_first(v); c; c = c->next, n++) {
        fuzz_check((v->type == JSON_OBJECT) == (c->key != NULL));
        if (c->key) fuzz_check(json_find(v, c->key, c->key_length) == c && strlen(c->key) <= c->key_length);
        visit(c, depth + 1, strings);
    }
    if (v->type == JSON_ARRAY || v->type == JSON_OBJECT) fuzz_check(n == v->length);
    fuzz_check(!json_get(v, "no such key") || v->type == JSON_OBJECT);
    json_int(v, 0); json_double(v, 0); json_bool(v, 0); json_string(v, "");
}

static void check_shown(const char *text, size_t bytes) {
    char *shown = NULL;
    size_t length = 0, at = 0, valid = utf8_valid(text, bytes);
    FILE *f = open_memstream(&shown, &length);
    text_write(f, text, bytes);
    fclose(f);
    fuzz_check_shown(shown, length);
    fuzz_check(valid <= bytes && utf8_complete(text, bytes) <= bytes);
    for (uint32_t code; at < valid; ) {
        char again[4];
        const size_t n = utf8_decode(text + at, bytes - at, &code);
        fuzz_check(n && utf8_encode(code, again) == n && !memcmp(again, text + at, n));
        at += n;
    }
    free(shown);
}
void fuzz_one(const uint8_t *data, size_t size) {
    Error e = { 0 };
    int strings = 0;
    Json *json = json_parse((const char *)data, size, &e);
    if (json) visit(json_root(json), 0, &strings);
    else fuzz_check(*e.text);
    json_free(json);
    check_shown((const char *)data, size);
}
