/* test_chats.c: conversations. Chat templates and their tokens against Transformers (tests/reference/make_chats.py); JSONL of
 * messages; samples in rows (packing.c). */
#include "tests/test.h"
#include "llmc/data/chat.h"
#include "llmc/data/data.h"
#include <stdlib.h>
#include <string.h>

#define GOLDENS "tests/reference/chats.json"

/* ---- templates ------------------------------------------------------------------------------------------- */

static char *write_scratch(const char *name, const char *text, size_t bytes) {
    Error e;
    char *path = scratch_path(name);
    if (!file_write(path, text, bytes, &e)) fail(EXIT_DISK, "%s", e.text);
    return path;
}

/* The tokenizer of a golden template: one of tests/reference/tokenizers with more added tokens. */
static Tokenizer *golden_tokenizer(const JsonValue *golden) {
    static const char list[] = "\"added_tokens\":[";
    Error e;
    size_t bytes;
    const char *added = json_string(json_get(golden, "added"), "");
    char *path = text_format("tests/reference/tokenizers/%s.json", json_string(json_get(golden, "tokenizer"), "")), *text = file_read(path, &bytes, &e);
    char *at = text ? strstr(text, list) : NULL;
    Text all = { 0 };
    if (!at) fail(EXIT_INPUT, "%s has no list of added tokens", path);
    at += strlen(list);
    text_add_bytes(&all, text, (size_t)(at - text));
    if (*added) text_add(&all, "%s,", added);
    text_add_string(&all, at);
    Tokenizer *t = tokenizer_load_text(all.at, all.length, &e);
    if (!t) fail(EXIT_INPUT, "%s: %s", path, e.text);
    free(all.at);
    free(text);
    free(path);
    return t;
}

static int same_ints(const JsonValue *list, const int *x, const unsigned char *bytes, int64_t n) {
    int64_t i = 0;
    for (const JsonValue *v = json_first(list); v; v = v->next, i++)
        if (i >= n || json_int(v, -1) != (x ? x[i] : bytes[i])) return 0;
    return i == n;
}

static void test_case(const Chat *c, const Tokenizer *t, const char *name, const JsonValue *golden) {
    Error e = { "" };
    ChatMessage *messages;
    Text text = { 0 };
    int *ids = NULL;
    unsigned char *counts = NULL;
    const JsonValue *expected = json_get(golden, "text"), *mask = json_get(golden, "counts");
    const int prompt = (int)json_int(json_get(golden, "prompt"), 0);
    const size_t n = chat_read(json_get(golden, "messages"), &messages, &e);
    const int written = n && chat_write(c, messages, n, prompt, &text, NULL, &e);
    check(written && text.length == expected->length && !memcmp(text.at, expected->is.string, text.length),
          "%s: wrote %s%.300s, expected %.300s", name, e.text, text.at ? text.at : "", expected->is.string);
    const int64_t made = n ? chat_encode(c, t, messages, n, prompt, &ids, &counts, &e) : -1;
    check(same_ints(json_get(golden, "ids"), ids, NULL, made), "%s: other tokens of %.200s", name, expected->is.string);
    if (json_is(mask, JSON_ARRAY)) check(same_ints(mask, NULL, counts, made), "%s: other tokens count of %.200s", name, expected->is.string);
    free(ids);
    free(counts);
    free(messages);
    free(text.at);
}

static void test_template(const JsonValue *golden) {
    Error e;
    Chat found, named;
    Text config = { 0 };
    const char *name = json_string(json_get(golden, "name"), "");
    json_write(&config, json_get(golden, "config"), 0);
    free(write_scratch("tokenizer_config.json", config.at, config.length));
    free(config.at);
    check(chat_open(&found, "", scratch(), &e) && !strcmp(chat_name(&found), name), "%s is recognized as %s%s", name, chat_name(&found),
          found.why ? found.why : "");
    check(chat_open(&named, name, scratch(), &e) && named.form && named.form == found.form, "-ct %s", name);
    Tokenizer *t = golden_tokenizer(golden);
    for (const JsonValue *one = json_first(json_get(golden, "cases")); one && found.form; one = one->next) test_case(&found, t, name, one);
    tokenizer_free(t);
    chat_close(&found);
    chat_close(&named);
}

static void test_goldens(void) {
    Error e;
    size_t bytes;
    char *text = file_read(GOLDENS, &bytes, &e);
    Json *json = text ? json_parse(text, bytes, &e) : NULL;
    int n = 0;
    if (!json) fail(EXIT_INPUT, "%s", e.text);
    for (const JsonValue *one = json_first(json_get(json_root(json), "templates")); one; one = one->next, n++) test_template(one);
    check(n == 17, "%d templates in %s", n, GOLDENS);
    json_free(json);
    free(text);
}

void test_chats(void) {
    test_goldens();
}
