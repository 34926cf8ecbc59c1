/* jinja.c: chat templates. The input is a program and, after it, an object of JSON with its
 * variables. What is written is the same each time, in memory and time that are bounded, with an
 * origin for each byte; what is refused is named. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/jinja.h"

static int run(const Jinja *j, const JsonValue *object, Text *text, Text *origins, Error *e) {
    static const struct tm july = { .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_wday = 5, .tm_yday = 207 };
    JinjaVariable v[16];
    int n = 0;
    for (const JsonValue *x = json_first(object); x && n < 16; x = x->next)
        v[n++] = (JinjaVariable){ x->key, x, x->type == JSON_ARRAY };
    return jinja_run(j, v, n, &july, text, origins, e);
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const Part program = fuzz_part(&rest);
    Error e = { 0 };
    Text text = { 0 }, again = { 0 }, origins = { 0 };
    Jinja *j = jinja_open(program.at, program.bytes, &e);
    Json *json = json_parse(rest.at, rest.bytes, &(Error){ 0 });
    if (j) {
        const JsonValue *object = json ? json_root(json) : NULL;
        const int ok = run(j, object, &text, &origins, &e);
        fuzz_check(ok || *e.text);
        fuzz_check(!ok || (origins.length == text.length * sizeof(uint32_t)
                           && utf8_valid(text.at, text.length) == text.length));
        origins.length = 0;
        fuzz_check(run(j, object, &again, &origins, &e) == ok);
        fuzz_check(!ok || (again.length == text.length && (!text.length || !memcmp(again.at, text.at, text.length))));
    } else fuzz_check(*e.text);
    free(text.at), free(again.at), free(origins.at);
    json_free(json), jinja_close(j);
}
