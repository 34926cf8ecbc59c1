/* test_forms.c: forms of data. What each record means, or why it is refused; files of records;
 * files that are no text, and what is said of them. Part of the group data. */
#define _POSIX_C_SOURCE 200809L
#include "tests/test.h"
#include "llmc/data/data.h"
#include "llmc/data/forms.h"
#include "llmc/data/records.h"

static char *put_text(const char *name, const char *text) { return scratch_put(name, text, strlen(text)); }

/* ---- records --------------------------------------------------------------------------------- */

/* JSON in one line, ' for ". */
static void add_short(Text *to, const JsonValue *v) {
    if (v->type != JSON_ARRAY && v->type != JSON_OBJECT) { json_write(to, v, 0); return; }
    text_add_string(to, v->type == JSON_OBJECT ? "{" : "[");
    for (const JsonValue *x = json_first(v); x; x = x->next) {
        text_add(to, x == json_first(v) ? "" : ", ");
        if (x->key) text_add(to, "%s: ", x->key);
        add_short(to, x);
    }
    text_add_string(to, v->type == JSON_OBJECT ? "}" : "]");
}
/* What a record means: its conversation, "text: ..." or "pair: ...|..."; or "error: ..." */
static char *meaning(const char *record, const char *field) {
    Error e = { 0 };
    Form f = { 0 };
    Text text = { 0 };
    Json *json = json_parse_record(record, strlen(record), &e);
    if (!json || !form_read(&f, json, field, &e)) text_add(&text, "error: %s", e.text);
    else if (f.chat) add_short(&text, f.chat);
    else if (f.text.at) text_add(&text, "text: %.*s", (int)f.text.bytes, f.text.at);
    else text_add(&text, "pair: %.*s|%.*s", (int)f.prompt.bytes, f.prompt.at, (int)f.completion.bytes, f.completion.at);
    json_free(json);
    for (char *c = text.at; *c; c++) if (*c == '"') *c = '\'';
    return text.at;
}
/* ' for " in both. expected: all of it; or, of an error, words between | that it has */
static void means(const char *record, const char *field, const char *expected) {
    char *json = text_format("%s", record);
    for (char *c = json; *c; c++) if (*c == '\'') *c = '"';
    char *found = meaning(json, field);
    int same = strncmp(expected, "error: ", 7) ? !strcmp(found, expected) : !strncmp(found, "error: ", 7);
    char *words = text_format("%s", strncmp(expected, "error: ", 7) ? "" : expected + 7);
    for (char *w = strtok(words, "|"); w; w = strtok(NULL, "|")) same &= strstr(found, w) != NULL;
    check(same, "%s is %s, expected %s", record, found, expected);
    free(words), free(found), free(json);
}

#define Q "{role: 'user', content: 'q'}"
#define A "{role: 'assistant', content: 'a'}"
#define CHAT "{messages: [" Q ", " A "]}"
#define JQ "{'role': 'user', 'content': 'q'}"
#define JA "{'role': 'assistant', 'content': 'a'"
#define WEIGHS(more) "{'messages': [" JQ ", " JA ", " more "}]}"
#define WEIGHED(w) "{messages: [" Q ", {role: 'assistant', content: 'a', weight: " w "}]}"
#define TOOL "{type: 'function', function: {name: 'f'}}"
#define CALL(arguments) "tool_calls: [{type: 'function', function: {name: 'f', arguments: " arguments "}}]"
static const char *const cases[][2] = {
    /* texts */
    { "{'text': 'a b', 'n': [1, {}], 'score': NaN, 'label': 3}", "text: a b" },
    { "{'text': 'a', 'messages': null}", "text: a" },
    { "{'text': NaN}", "error: NaN, a missing value" },
    { "{'text': 'a', 'label': false}", "error: 'label'|preference" },
    { "{'text': 'a', 'system': 's'}", "error: 'system' beside 'text'|-tf text" },
    /* conversations */
    { "{'messages': [" JQ ", " JA "}], 'id': 7}", CHAT }, { "[" JQ ", " JA "}]", CHAT },
    { "{'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', 'value': 'a'}], 'system': null}", CHAT },
    { "{'conversations': [{'from': 'human', 'value': 'q'}, {'from': 'gpt', 'value': 'a'}], 'system': 's'}",
      "{messages: [{role: 'system', content: 's'}, " Q ", " A "]}" },
    { "{'system': 's', 'messages': [{'role': 'system', 'content': 's'}, " JQ ", " JA "}]}",
      "{messages: [{role: 'system', content: 's'}, " Q ", " A "]}" },
    { "{'system': 's', 'messages': [{'role': 'system', 'content': 't'}, " JQ "]}", "error: two messages" },
    { "{'messages': [" JQ ", " JA "}], 'quirk': 1}", "error: 'quirk' beside 'messages'|-tf messages" },
    { "{'messages': [" JQ ", " JA "}], 'images': ['x.png']}", "error: 'images'|text only" },
    { "{'messages': [" JQ ", " JA "}], 'images': []}", CHAT },
    { "{'messages': [" JQ ", " JA "}], 'text': 'rendered'}", "error: 'text' beside 'messages'|-tf" },
    { "{'messages': [" JQ ", " JA "}], 'prompt': 'q', 'prompt_id': 'x'}", CHAT },
    { "{'messages': [" JQ ", " JA "}], 'prompt': 'other'}", "error: 'prompt' beside" },
    { "{'messages': [" JQ ", " JA "}], 'chat_template_kwargs': {'a': 1}}",
      "{messages: [" Q ", " A "], chat_template_kwargs: {a: 1}}" },
    { "{'messages': [" JQ ", " JA "}], 'chat_template_kwargs': 1}", "error: chat_template_kwargs" },
    /* weights */
    { WEIGHS("'weight': 0"), WEIGHED("0") }, { WEIGHS("'weight': 1.0"), WEIGHED("1") },
    { WEIGHS("'train': false"), WEIGHED("0") }, { WEIGHS("'training': true"), WEIGHED("1") },
    { WEIGHS("'trainable': 0"), WEIGHED("0") }, { WEIGHS("'loss_mask': 0"), WEIGHED("0") },
    { WEIGHS("'loss': false"), WEIGHED("0") }, { WEIGHS("'weight': 0.5"), "error: 'weight': 0.5|0 or 1" },
    { WEIGHS("'weight': 'no'"), "error: a string as 'weight'" }, { WEIGHS("'mask': 0"), "error: 'mask'|'weight': 0" },
    { WEIGHS("'tool_calls': 'f'"), "error: a string as 'tool_calls'" },
    { WEIGHS("'thinking': NaN"), "error: NaN|'thinking'" },
    { WEIGHS("'weight': 0, 'train': true"), "error: two weights" }, { WEIGHS("'weight': null"), CHAT },
    { WEIGHS("'train_detail': [1]"), "{messages: [" Q ", {role: 'assistant', content: 'a', "
      "train_detail: [1]}]}" }, { WEIGHS("'a\\u0000': 1"), "error: message 2 has a key with a NUL" },
    { WEIGHS("'id': 3, 'prefix': null"), CHAT },
    { "{'messages': [{'role': 'user', 'content': 'q', 'train': true}, " JA "}]}", "error: message 1|'train'" },
    { "{'messages': [" JQ "], 'weight': 0.1}", "error: 'weight'|only messages" },
    /* contents and roles */
    { "{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'q', 'image': null}]}, " JA "}]}", CHAT },
    { "{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}]}",
      "{messages: [{role: 'user', content: 'ab'}]}" },
    { "{'messages': [{'role': 'user', 'content': [{'type': 'image_url', 'image_url': 'x'}]}]}",
      "error: message 1|'image_url'|text only" },
    { "{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'a', 'cache_control': {}}]}]}",
      "error: 'cache_control'" },
    { "{'messages': [{'role': 'user', 'content': {'a': 1}}]}", "error: no string but an object" },
    { "{'messages': [{'role': 'user', 'content': NaN}]}", "error: NaN" },
    { "{'messages': [{'role': 'developer', 'content': 'd'}]}", "{messages: [{role: 'developer', content: 'd'}]}" },
    { "{'messages': [{'role': 'robot', 'content': 'd'}]}", "error: role 'robot'" },
    { "{'messages': [{'role': 'assistant', 'content': '4', 'reasoning_content': 'Add.', 'name': ''}]}",
      "{messages: [{role: 'assistant', content: '4', reasoning_content: 'Add.'}]}" },
    { "{'messages': [{'role': 'assistant', 'content': '4', 'reasoning': 'Add.'}]}",
      "{messages: [{role: 'assistant', content: '4', reasoning: 'Add.'}]}" },
    { "{'messages': [" JQ "], 'documents': [{'title': 'd'}]}", "{messages: [" Q "], documents: [{title: 'd'}]}" },
    /* tools */
    { "{'messages': [{'role': 'assistant', 'content': null, 'tool_calls': [{'id': '1'}]}]}",
      "{messages: [{role: 'assistant', content: null, tool_calls: [{id: '1'}]}]}" },
    { "{'messages': [{'role': 'assistant', 'content': '', 'tool_calls': []}]}",
      "{messages: [{role: 'assistant', content: ''}]}" },
    { "{'messages': [{'role': 'assistant', 'content': null, 'function_call': {'name': 'f', 'arguments': "
      "'{\\'x\\': 1}'}}]}", "{messages: [{role: 'assistant', content: null, " CALL("{x: 1}") "}]}" },
    { "{'messages': [{'role': 'function', 'name': 'f', 'content': 'r'}]}",
      "{messages: [{role: 'tool', content: 'r', name: 'f'}]}" },
    { "{'conversations': [{'from': 'function_call', 'value': '{\\'name\\': \\'f\\', \\'arguments\\': {\\'x\\': 1}}'}, "
      "{'from': 'observation', 'value': 'r'}], 'tools': '[{\\'name\\': \\'f\\'}]'}",
      "{messages: [{role: 'assistant', content: '', " CALL("{x: 1}") "}, {role: 'tool', content: 'r'}], "
      "tools: [" TOOL "]}" },
    { "{'conversations': [{'from': 'function_call', 'value': 'call f'}]}", "error: no JSON of a call" },
    { "{'messages': [" JQ ", " JA "}], 'tools': [{'type': 'function', 'function': {'name': 'f'}}]}",
      "{messages: [" Q ", " A "], tools: [" TOOL "]}" },
    { "{'messages': [" JQ ", " JA "}], 'tools': 'none'}", "error: 'tools' is a string; expected a list" },
    { "{'messages': [" JQ ", " JA "}], 'functions': [{'x': 1}]}", "error: 'functions'|function" },
    { "{'messages': [" JQ ", " JA "}], 'tools': ''}", CHAT },
    /* questions and answers */
    { "{'instruction': 'q', 'input': '', 'output': 'a'}", CHAT },
    { "{'instruction': 'q', 'input': 'x', 'output': 'a', 'system': 's', 'history': [['b', 'c']]}",
      "{messages: [{role: 'system', content: 's'}, {role: 'user', content: 'b'}, {role: 'assistant', content: 'c'}, "
      "{role: 'user', content: 'q\\nx'}, " A "]}" },
    { "{'instruction': 'q', 'context': '', 'response': 'a', 'category': 'x'}", CHAT },
    { "{'query': 'q', 'response': 'a', 'history': []}", CHAT },
    { "{'id\\u0000': 1, 'query': 'q', 'response': 'a'}", "error: 'id'" },
    { "{'system_prompt': '', 'question': 'q', 'response': 'a'}", CHAT }, { "{'question': 'q', 'answer': 'a'}", CHAT },
    { "{'instruction': 'q', 'input': NaN, 'output': 'a'}", "error: 'input' is NaN" },
    { "{'instruction': 'q', 'output': 'a', 'text': 'rendered'}", "error: 'text' beside 'instruction'" },
    { "{'instruction': 'q', 'output': 'a', 'history': ['b']}", "error: 'history'" },
    { "{'instruction': 'q'}", "error: 'instruction'|-tf" }, { "{'instruction': 'q', 'output': 3}", "error: a number" },
    /* pairs */
    { "{'prompt': 'q ', 'completion': 'a'}", "pair: q |a" }, { "{'prompt': '', 'completion': 'a'}", "pair: |a" },
    { "{'prompt': [" JQ ", " JA "}], 'completion': [" JA "}]}",
      "{messages: [" Q ", {role: 'assistant', content: 'a', weight: 0}, " A "]}" },
    { "{'prompt': 'q', 'completion': [" JA "}]}", "error: two strings" },
    { "{'prompt': 'q'}", "error: 'prompt' without 'completion'" },
    { "{'prompt': 'q', 'completion': ''}", "error: 'completion' is empty" },
    { "{'prompt': 'q', 'completion': 'a', 'label': false}", "error: 'label'|preference" },
    { "{'prompt': 'q', 'completion': 'a', 'system': 's'}", "error: 'system'" },
    { "{'prompt': 'q', 'chosen': 'a', 'rejected': 'b'}", "error: 'chosen'|preference|keep the better" },
    { "{'conversations': [" JQ "], 'chosen': {}, 'rejected': {'a': 1}}", "error: 'rejected'|preference" },
    { "{'chosen': [" JQ ", " JA "}], 'rejected': [" JQ "]}", "error: 'chosen'|preference" },
    /* none */
    { "{'a': 1, 'b': 2}", "error: found 'a', 'b'|-tf" }, { "{}", "error: no key" }, { "3", "error: a number" },
    { "['text']", "error: a list" }, { "[]", "error: a list" }, { "{'messages': []}", "error: 'messages' is empty" },
    { "{'messages': [3]}", "error: message 1 is no object" },
};
static void test_meanings(void) {
    for (size_t i = 0; i < COUNT(cases); i++) means(cases[i][0], NULL, cases[i][1]);
    means("{'content': 'x', 'messages': 3, 'quirk': 1}", "content", "text: x");
    means("{'dialog': [" JQ ", " JA "}], 'quirk': 1, 'tools': [{'name': 'f'}]}", "dialog",
          "{messages: [" Q ", " A "], tools: [" TOOL "]}");
    means("{'text': 'x'}", "content", "error: 'content'|-tf");
    means("{'content': 5}", "content", "error: a number as 'content'");
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Records of a text, with their lines: "1:{} 2:{}", or the error. */
static void finds(const char *text, const char *expected) {
    Error e = { 0 };
    Records r;
    Text found = { 0 };
    text_add(&found, "%s", "");
    if (records_find(&r, text, strlen(text), &e))
        for (size_t i = 0; i < r.count; i++)
            text_add(&found, "%s%zu:%.*s", i ? " " : "", r.at[i].line, (int)r.at[i].bytes, r.at[i].at);
    else text_add(&found, "%s", e.text);
    check(*expected == '!' ? strstr(found.at, expected + 1) != NULL : !strcmp(found.at, expected),
          "records of '%s' are '%s', expected '%s'", text, found.at, expected);
    free(r.at), free(found.at);
}
static void test_records(void) {
    static const char *const names[] = { "a.jsonl", "a.b.JSONL", "x/y.NdJson", "a.json" },
        *const others[] = { "jsonl", "a.txt", "a.jsonl.gz", "a.json/b", "a.jsonlines" };
    for (size_t i = 0; i < COUNT(names); i++) check(records_named(names[i]), "%s holds records", names[i]);
    for (size_t i = 0; i < COUNT(others); i++) check(!records_named(others[i]), "%s does not", others[i]);
    finds("{\"a\": 1}\n\n {\"b\": \"]\"} \r\n", "1:{\"a\": 1} 3:{\"b\": \"]\"}");
    finds("\xEF\xBB\xBF{}\n{}", "1:{} 2:{}"), finds("{}", "1:{}"), finds("{}\nx", "1:{} 2:x");
    finds("[{\"a\": [1, 2]}, {\"b\": \"\\\"],\"}]\n", "1:{\"a\": [1, 2]} 1:{\"b\": \"\\\"],\"}");
    finds("[\n  {\n \"a\": 1\n }\n,\n  {}\n]\n", "2:{\n \"a\": 1\n } 6:{}"), finds("[1, \"x\" ]", "1:1 1:\"x\"");
    finds("[]", ""), finds(" [\n]\n", "");
    finds("{\n \"a\": 1\n}\n{ \"b\":\n 2}", "1:{\n \"a\": 1\n} 4:{ \"b\":\n 2}");
    finds("[{\"role\": \"user\"}, {}]\n[{\"role\": \"user\"}]",
          "1:[{\"role\": \"user\"}, {}] 2:[{\"role\": \"user\"}]");
    finds("[{\"from\": \"a\"}]", "1:[{\"from\": \"a\"}]");
    finds("[\n{\"role\": \"a\"}\n]", "1:[\n{\"role\": \"a\"}\n]");
    finds("[[{\"role\": \"a\"}], [{\"role\": \"b\"}]]", "1:[{\"role\": \"a\"}] 1:[{\"role\": \"b\"}]");
    finds("{\"a\": 1\n{\"b\": 2}", "1:{\"a\": 1 2:{\"b\": 2}");        /* a broken line does not hide the next */
    finds("", "!nothing"), finds(" \n\t", "!nothing"), finds("[{},\n{}", "!line 1: this array has no end");
    finds("[{},\n]", "!line 2: expected a value, found ']'"), finds("[{}\n{}]", "!line 2: expected ','");
    finds("[{},\n{}]\n\nx", "!line 4: something follows"), finds("{\n\"a\": 1}\n 5", "!line 3: expected an object");
    finds("{\n\"a\": {", "!line 1: this value has no end"), finds("[,1]", "!line 1: expected a value, found ','");
}

static Data *open_data(const char *path, const char *chat, const char *field, Error *e) {
    Tokenizer *t;
    const DataRequest request = { .train = path, .tokenizer = "", .pattern = "cl100k", .chat = chat, .field = field };
    Data *d = data_open_text(&request, &t, e);
    tokenizer_free(t);
    return d;
}
/* What is trained on: bytes that count, others as '.', samples after each other with '|'. */
static char *learned(const Data *d) {
    enum { T = 400 };
    int in[T], out[T], position[T];
    Text text = { 0 };
    Error e;
    text_add(&text, "%s", "");
    for (int64_t r = 0; r < data_epoch_samples(d, T); r++) {
        if (!data_batch(d, r, 1, T, 1, in, out, position, &e)) fail(EXIT_INPUT, "%s", e.text);
        for (int t = 0; t < T && (t == 0 || in[t] || position[t]); t++) {
            if (!position[t]) text_add(&text, "|");
            text_add(&text, "%c", out[t] < 0 ? '.' : out[t] == '\n' ? '/' : out[t]);
        }
    }
    return text.at;
}
static void trains_on(const char *name, const char *content, const char *field, const char *expected) {
    Error e = { 0 };
    char *path = put_text(name, content), *found = NULL;
    Data *d = open_data(path, "chatml", field, &e);
    if (d && data_check(d, 400, 256, &e)) found = learned(d);
    check(found && !strcmp(found, expected), "%s: trains on '%s', expected '%s': %s", content, found ? found : "",
          expected, e.text);
    data_close(d), free(found), remove(path), free(path);
}
#define Q_ALPACA "{\"instruction\": \"q\", \"output\": \"ans\"}"
#define ANSWERED "|.................................................." "ans<|im_end|>."
static void test_trained(void) {
    trains_on("a.json", "[\n" Q_ALPACA ",\n" Q_ALPACA "\n]", NULL, ANSWERED);
    trains_on("a.NDJSON", Q_ALPACA "\n" Q_ALPACA, NULL, ANSWERED);
    trains_on("a.jsonl", "{\"prompt\": \"1+1=\", \"completion\": \"2!\"}\n{\"prompt\": \"\", \"completion\": \"xy\"}",
              NULL, "|...2!");
    trains_on("b.jsonl", "{\"body\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": "
              "\"ans\"}]}\n{\"body\": [{\"role\": \"user\", \"content\": \"\"}, {\"role\": \"assistant\", \"content\": "
              "\"\"}]}", "body", ANSWERED);
}

static void refused(const char *name, const void *content, size_t bytes, const char *words) {
    Error e = { 0 };
    char *path = scratch_put(name, content, bytes);
    Data *d = open_data(path, "", NULL, &e);
    fails(d != NULL, &e, words, name);
    data_close(d), remove(path), free(path);
}
#define IS(name, text, words) refused(name, text, sizeof text - 1, words)
static void test_foreign(void) {
    IS("a.txt", "[" Q_ALPACA "]", "a.txt|does not end in|-ab 1"), IS("a.json", "{\n}", "no key");
    IS("a.json", "{\"a\": NaN}", "found \"a\""), IS("a.json", "[1", "this array has no end");
    IS("a.jsonl", "{\"text\": \"\\ud83d\"}", "line 1|half of a surrogate pair|\\ufffd");
    IS("a.parquet", "PAR1\0\1\2PAR1", "a Parquet table|pandas.read_parquet|a.parquet data.jsonl");
    IS("data-00000-of-00001.arrow", "\xff\xff\xff\xff\x10\0\0\0", "an Arrow table|Dataset.from_file");
    IS("meta.pkl", "\x80\4\x95.", "a pickle|nanoGPT|-i input.txt"), IS("a.idx", "MMIDIDX\0\0\1", "Megatron");
    IS("data03.bin", "\1\0\2\0\3\0", "llama2.c|tokens/train.bin");
    char *index = scratch_put("m.idx", "MMIDIDX\0\0\1\0\0\0\0\0\0\0\4", 18);
    IS("m.bin", "\1\0\0\0\2\0\0\0", "Megatron-LM|m.idx|int32|train.bin");
    free(scratch_put("m.idx", "MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18));
    IS("m.bin", "\1\0\2\0", "Megatron-LM|cp |train.bin");
    remove(index), free(index);
}

static char warned[1024];
static void keep_warning(const char *text) { snprintf(warned, sizeof warned, "%s", text); }
static void test_folders(void) {
    Error e = { 0 };
    char *folder = scratch_folder("many"), *note = put_text("many/README.md", "about it"),
        *table = scratch_put("many/t.parquet", "PAR1\0", 5);
    Data *d = open_data(folder, "", NULL, &e);
    fails(d != NULL, &e, "many/t.parquet|Parquet|pandas", "a folder with Parquet");
    remove(table), free(table), table = scratch_put("many/t.jsonl.gz", "\x1f\x8b\x08", 3);
    d = open_data(folder, "", NULL, &e);
    fails(d != NULL, &e, "t.jsonl.gz|gunzip", "a folder with packed JSON");
    remove(table), free(table), table = put_text("many/tsconfig.json", "{\"a\": 1,\n\"b\": [2]}");
    d = open_data(folder, "", NULL, &e);
    check(d != NULL, "a folder with settings in JSON: %s", e.text);
    data_close(d), remove(table), free(table);
    table = put_text("many/t.json", "[{\"text\": \"one\"},\n{\"text\": \"two\"}]");
    d = open_data(folder, "", NULL, &e);
    check(d && data_tokens(d, DATA_TRAIN) + data_tokens(d, DATA_VALIDATION) == 8 + 6, "a folder with records: %s",
          e.text);
    data_close(d), remove(table), free(table), remove(note), free(note), free(folder);

    char *tokens = scratch_folder("chars"), *meta = scratch_put("chars/meta.pkl", "\x80\4\x95", 3),
        *train = scratch_put("chars/train.bin", "\1\0\2\0\3\0\4\0", 8),
        *val = scratch_put("chars/val.bin", "\1\0\2\0", 4);
    warn_hook(keep_warning);
    d = open_data(tokens, "", NULL, &e);
    warn_hook(NULL);
    check(d && strstr(warned, "chars/meta.pkl") && strstr(warned, "-i input.txt"), "nanoGPT's characters: %s", warned);
    data_close(d), free(tokens), free(meta), free(train), free(val);
    warn_hook(keep_warning);
    char *columns = put_text("a b.tsv", "x\ty\nlong enough\t1\n");
    d = open_data(columns, "", NULL, &e);
    warn_hook(NULL);
    check(d && strstr(warned, "sep=\"\\t\"") && strstr(warned, "a b.tsv' data.jsonl"), "columns: %s", warned);
    data_close(d), remove(columns), free(columns);
}

void test_forms(void) {
    PART(test_meanings());
    PART(test_records());
    PART(test_trained());
    PART(test_foreign());
    PART(test_folders());
}
