/* forms.c: what records mean. The first byte says whether a field is named. A conversation has
 * messages with a role and, beside calls maybe, a content; read once more it stays what it is.
 * Texts are UTF-8. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/forms.h"
#include "llmc/data/records.h"

const int fuzz_is_json = 1;

static int is_one_of(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++) if (!strcmp(key, list[i])) return 1;
    return 0;
}
static void check_message(const JsonValue *m) {
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool" };
    const JsonValue *content = json_get(m, "content"), *weight = json_get(m, "weight");
    fuzz_check(is_one_of(json_string(json_get(m, "role"), ""), roles, COUNT(roles)));
    fuzz_check(json_is(content, JSON_STRING) || json_get(m, "tool_calls"));
    fuzz_check(!weight || (json_is(weight, JSON_INT) && (json_int(weight, 2) | 1) == 1));
    for (const JsonValue *v = json_first(m); v; v = v->next) fuzz_check(strlen(v->key) == v->key_length);
}
static void check_words(Words w) { fuzz_check(!w.at || utf8_valid(w.at, w.bytes) == w.bytes); }

static void check_again(const JsonValue *chat) {
    Text once = { 0 }, twice = { 0 };
    Error e;
    Form f;
    json_write(&once, chat, 0);
    Json *json = json_parse_record(once.at, once.length, &e);
    if (json) {                                             /* NaN among arguments is written as null */
        fuzz_check(form_read(&f, json, NULL, &e) && f.chat);
        json_write(&twice, f.chat, 0);
        fuzz_check(once.length == twice.length && !memcmp(once.at, twice.at, once.length));
    }
    free(once.at), free(twice.at), json_free(json);
}
static void read_one(const Record *r, const char *field) {
    Error e = { 0 };
    Form f;
    Json *json = json_parse_record(r->at, r->bytes, &e);
    if (json && form_read(&f, json, field, &e)) {
        fuzz_check((f.chat != NULL) + (f.text.at != NULL) + (f.prompt.at != NULL) == 1);
        fuzz_check(!f.prompt.at == !f.completion.at);
        check_words(f.text), check_words(f.prompt), check_words(f.completion);
        const JsonValue *list = json_get(f.chat, "messages");
        fuzz_check(!f.chat || (json_is(list, JSON_ARRAY) && list->length));
        for (const JsonValue *m = json_first(list); m; m = m->next) check_message(m);
        if (f.chat) check_again(f.chat);
    } else fuzz_check(*e.text);
    json_free(json);
}
void fuzz_one(const uint8_t *data, size_t size) {
    static const char *const fields[] = { "", "messages", "text", "body" };
    Part rest = { (const char *)data, size };
    const char *field = fields[fuzz_choice(&rest, COUNT(fields))], *before = rest.at;
    Records r;
    Error e = { 0 };
    if (records_find(&r, rest.at, rest.bytes, &e))
        for (size_t i = 0; i < r.count; i++) {
            fuzz_check(r.at[i].at >= before && r.at[i].at + r.at[i].bytes <= rest.at + rest.bytes && r.at[i].bytes);
            before = r.at[i].at + r.at[i].bytes;
            read_one(&r.at[i], field);
        }
    else fuzz_check(*e.text);
    free(r.at);
    forms_held(rest.at, rest.bytes);
}
