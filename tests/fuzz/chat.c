/* chat.c: conversations. The first byte says which: a line of JSONL, written by every template; a
 * Jinja program and a tokenizer_config.json, which write a conversation; a JSONL file, whose
 * samples are packed into rows. What is written is the same each time, answers lie in it one after
 * another, and a row has only tokens of its samples, whose positions count up. */
#include "tests/fuzz/support/fuzz.h"
#include "kernels/kernels.h"
#include "llmc/data/chat.h"
#include "llmc/data/data.h"
#include "llmc/data/forms.h"

const int fuzz_is_json = 1;
enum { LINE, JINJA, FILES, FORMS, MOST = 32 };
static Chat chats[MOST];
static int known;
static Tokenizer *tokenizer;

void fuzz_start(void) {
    static char names[] = CHAT_NAMES;
    static const char *const one[] = { "llama2" };
    Error e;
    fuzz_file("tokenizer_config.json", "{\"eos_token\": \"</s>\"}", 21);
    for (char *name = strtok(names, ", "); name && known < MOST; name = strtok(NULL, ", ")) {
        if (!chat_open(&chats[known], name, fuzz_folder(), &e)) abort();
        known++;
    }
    fuzz_remove("tokenizer_config.json");
    fuzz_tokenizers(&tokenizer, one, 1);
}

static void write_one(const Chat *c, const JsonValue *talk) {
    Error e = { 0 };
    Text text = { 0 }, again = { 0 }, turns = { 0 };
    int *ids;
    unsigned char *counts;
    const int ok = chat_write(c, talk, 0, &text, &turns, &e);
    fuzz_check(ok == chat_write(c, talk, 0, &again, NULL, &e) && (!ok || text.length == again.length)
               && (!ok || !memcmp(text.at, again.at, text.length)));
    size_t before = 0, at;
    for (size_t i = 0; ok && i < turns.length / sizeof at; i++, before = at) {
        memcpy(&at, turns.at + i * sizeof at, sizeof at);
        fuzz_check(at >= before && at <= text.length);
    }
    if (ok) {
        fuzz_check(turns.length % (2 * sizeof at) == 0 && utf8_valid(text.at, text.length) == text.length);
        Controls controls = { 0 };
        const int64_t tokens = chat_encode(c, tokenizer, talk, 0, &ids, &counts, &controls, &e);
        fuzz_check(tokens >= 0);
        for (int64_t i = 0; i < tokens; i++)
            fuzz_check(ids[i] >= 0 && ids[i] < tokenizer_vocab(tokenizer) && counts[i] <= 1);
        int *split;                                         /* control tokens of the conversation as text */
        unsigned char *marked = NULL;
        tokenizer_split_controls(tokenizer, 1);
        const int64_t n = chat_encode(c, tokenizer, talk, 0, &split, &marked, NULL, &e);
        tokenizer_split_controls(tokenizer, 0);
        fuzz_check(n >= 0 && (controls.count || (n == tokens && !memcmp(split, ids, (size_t)n * sizeof *ids))));
        free(ids), free(counts), free(split), free(marked);
    } else fuzz_check(*e.text);
    free(text.at), free(again.at), free(turns.at);
}

static void line(Part rest) {
    Error e = { 0 };
    Json *json = json_parse(rest.at, rest.bytes, &e);
    Form f = { 0 };
    const JsonValue *talk = json && form_read(&f, json, NULL, &e) ? f.chat : NULL;
    for (int i = 0; i < known && talk; i++) write_one(&chats[i], talk);
    json_free(json);
}

static void jinja(Part rest) {
    static const char talk[] = "{\"messages\": [{\"role\": \"system\", \"content\": \" be brief \"}, {\"role\": "
        "\"user\", "
        "\"content\": \"a <b> \\u00e9\"}, {\"role\": \"assistant\", \"content\": \"c\", \"tool_calls\": "
            "[{\"function\": "
        "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, null, true]}}}]}, {\"role\": \"user\", \"content\": "
            "[{\"type\": "
        "\"text\", \"text\": \"d\"}]}, {\"role\": \"assistant\", \"content\": \"<think>e</think>f\"}], \"tools\": "
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}]}";
    const Part program = fuzz_part(&rest);
    Error e;
    Chat c;
    if (program.bytes) fuzz_file("chat_template.jinja", program.at, program.bytes);
    else fuzz_remove("chat_template.jinja");
    fuzz_file("tokenizer_config.json", rest.at, rest.bytes);
    fuzz_check(chat_open(&c, "", fuzz_folder(), &e));
    fuzz_check(c.form ? *chat_name(&c) != 0 && !c.why : c.why != NULL);
    Json *json = json_parse(talk, strlen(talk), &e);
    if (c.form) write_one(&c, json_root(json));
    json_free(json), chat_close(&c);
}

static void files(Part rest) {
    enum { T = 24 };
    Error e = { 0 };
    Tokenizer *none;
    int in[T], out[T], position[T];
    const char *path = fuzz_file("x.jsonl", rest.at, rest.bytes);
    const DataRequest request = { .train = path, .tokenizer = "", .pattern = "gpt2", .chat = "qwen2" };
    Data *d = data_open_text(&request, &none, &e);
    if (!d) { fuzz_check(*e.text); return; }
    if (data_check(d, T, 256, &e)) {
        const int64_t rows = data_epoch_samples(d, T);
        int64_t counted = 0;
        fuzz_check(rows > 0);
        for (int64_t r = 0; r < rows && r < 50; r++) {
            fuzz_check(data_batch(d, r, 1, T, 3, in, out, position, &e));
            for (int t = 0; t < T; t++) {
                fuzz_check(in[t] >= 0 && in[t] < 256 && out[t] >= FILLER && out[t] < 256
                           && (!position[t] || position[t] == position[t - 1] + 1));
                fuzz_check(t == T - 1 || !position[t + 1] || out[t] < 0 || out[t] == in[t + 1]);
                counted += out[t] >= 0;
            }
        }
        fuzz_check(rows > 50 || data_counted(d, 0, (int)rows, T, 3, &e) == counted);
    } else fuzz_check(*e.text);
    data_close(d);
}

void fuzz_one(const uint8_t *data, size_t size) {
    static void (*const forms[FORMS])(Part) = { line, jinja, files };
    Part rest = { (const char *)data, size };
    const unsigned form = fuzz_choice(&rest, FORMS);
    forms[form](rest);
}
