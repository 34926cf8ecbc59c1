/* calls.c: see calls.h. */
#include "calls.h"
#include "llmc/base/json.h"
#include <stdlib.h>
#include <string.h>

static const char begins[] = "<tool_call>", ends[] = "</tool_call>";

int calls_known(const char *chat_template) {
    return chat_template && strstr(chat_template, begins) && strstr(chat_template, "<args-json-object>");
}

static const char *find(const char *text, const char *end, const char *mark) {
    const size_t n = strlen(mark);
    for (; (size_t)(end - text) >= n; text++) if (!memcmp(text, mark, n)) return text;
    return NULL;
}
/* The arguments are a string that holds JSON. */
static int call_write(const char *text, const char *end, const char *id, int number, int numbered, Text *out) {
    Error e;
    Text arguments = { 0 };
    Json *json = json_parse(text, (size_t)(end - text), &e);
    const JsonValue *root = json ? json_root(json) : NULL, *name = json_get(root, "name"),
        *given = json_get(root, "arguments");
    const int ok = root && root->length == 2 && json_is(name, JSON_STRING) && json_is(given, JSON_OBJECT);
    if (ok) {
        json_write(&arguments, given, 0);
        text_add_string(out, number ? ", {" : "{");
        if (numbered) text_add(out, "\"index\": %d, ", number);
        text_add(out, "\"id\": \"call_%s_%d\", \"type\": \"function\", \"function\": {\"name\": ", id, number);
        text_add_json(out, name->is.string, name->length);
        text_add_string(out, ", \"arguments\": ");
        text_add_json(out, arguments.at, arguments.length);
        text_add_string(out, "}}");
    }
    free(arguments.at);
    json_free(json);
    return ok;
}
int calls_read(const char *text, size_t bytes, const char *id, int numbered, Text *calls, Text *rest) {
    const char *const stop = text + bytes;
    const size_t before = calls->length, said = rest->length;
    int n = 0, ok = 1;
    text_add_string(calls, "[");
    while (ok) {
        const char *from = find(text, stop, begins), *to = from ? find(from, stop, ends) : NULL;
        text_add_bytes(rest, text, (size_t)((from ? from : stop) - text));
        if (!from) break;
        ok = to && call_write(from + strlen(begins), to, id, n++, numbered, calls);
        if (ok) text = to + strlen(ends);
    }
    text_add_string(calls, "]");
    while (rest->length > said && text_is_white(rest->at[rest->length - 1])) rest->length--;
    if (ok && n) return n;
    calls->length = before;
    rest->length = said;
    return 0;
}
