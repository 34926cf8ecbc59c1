/* converse.c: see converse.h. */
#include "converse.h"
#include <stdlib.h>
#include <string.h>

static void add(Conversation *v, const char *role, const char *text, size_t bytes) {
    char *copy = mem_alloc(bytes + 1);
    memcpy(copy, text, bytes);
    v->text = mem_grow(v->text, (v->texts + 1) * sizeof *v->text);
    v->text[v->texts++] = copy;
    JsonValue *m = json_append(v->messages, NULL, json_make(v->json, JSON_OBJECT));
    json_append(m, "role", json_make_string(v->json, role, strlen(role)));
    json_append(m, "content", json_make_string(v->json, copy, bytes));
}
static void begin(Conversation *v, const char *system, size_t bytes) {
    v->json = json_empty();
    v->talk = json_make(v->json, JSON_OBJECT);
    v->messages = json_append(v->talk, "messages", json_make(v->json, JSON_ARRAY));
    if (bytes) add(v, "system", system, bytes);
}
static void end(Conversation *v) {
    for (size_t i = 0; i < v->texts; i++) free(v->text[i]);
    free(v->text);
    json_free(v->json);
    v->text = NULL;
    v->texts = 0;
}

int converse_open(Conversation *v, const char *name, const char *folder, const char *system, Error *e) {
    *v = (Conversation){ 0 };
    if (!chat_open(&v->chat, name, folder, e)) return 0;
    v->chat.today = 1;
    begin(v, system, strlen(system));
    return 1;
}
void converse_close(Conversation *v) {
    end(v);
    chat_close(&v->chat);
}
void converse_reset(Conversation *v) {
    Conversation old = *v;
    const JsonValue *first = json_first(v->messages);
    const int kept = first && !strcmp(json_string(json_get(first, "role"), ""), "system");
    v->text = NULL;
    v->texts = 0;
    begin(v, kept ? old.text[0] : "", kept ? json_get(first, "content")->length : 0);
    end(&old);
    v->forgotten = 0;
}

const char *converse_end(const Conversation *v, const Tokenizer *t, int *ids, int *count) {
    const char *end = chat_end(&v->chat);
    int id = *end ? tokenizer_id(t, end) : -1, *marks = NULL;
    size_t bytes = 1;
    Controls own = { .given = mem_alloc(strlen(end) + 1) };                 /* 0: of the template */
    /* of several tokens, the first is enough if it is special; then it is not shown, and no string
     * ends there */
    if (id < 0 && *end && tokenizer_encode_part(t, end, 0, strlen(end), &marks, NULL, &own))
        tokenizer_piece(t, marks[0], &bytes);
    free((void *)own.given);
    if (!bytes) id = marks[0];
    free(marks);
    for (int i = 0; i < *count; i++) if (ids[i] == id) return "";
    if (id < 0 || *count == MOST_ENDS) return end;
    ids[(*count)++] = id;
    return "";
}

/* The tokens of the conversation up to the answer, at most `most`: drops the oldest messages
 * (chat_oldest) until it fits. -1 and a message if the last one alone does not. */
static int64_t encode(Conversation *v, const Tokenizer *t, int most, int **ids, Error *e) {
    for (;;) {
        Controls controls = { 0 };
        const int64_t n = chat_encode(&v->chat, t, v->talk, 1, ids, NULL, &controls, e);
        v->controls = controls.count;
        if (n < 0 || n <= most) return n;
        free(*ids);
        *ids = NULL;
        size_t first, gone = chat_oldest(v->messages, &first);
        if (!gone)
            return error_set(e, "the message has %lld tokens with all that is around it; %d fit into the context and "
                             "leave room for an answer", (long long)n, most) - 1;
        json_cut(v->messages, first, gone);
        v->forgotten += (int)gone;
    }
}

/* Reads the tokens that the cache lacks; many at once if it is empty, which is faster. */
static void read(Generator *g, const int *ids, int n) {
    int same = 0;
    while (same < n - 1 && same < g->d.length && g->window[same] == ids[same]) same++;
    if (n - same > n / 4 + 1) same = 0;
    if (same) g->d.length = same;
    else generator_reset(g);
    generator_read(g, ids + same, n - same, NULL, 0);
}

/* What was generated after the first n tokens, without what ended it. */
static void add_answer(Conversation *v, const Generator *g, int n) {
    const TextStyle *style = g->stream[0].style;
    size_t bytes;
    int count = g->d.length - n;
    for (int i = 0; count && i < g->end_tokens; i++)
        if (g->window[g->d.length - 1] == g->end_token[i]) { count--; break; }
    char *text = tokenizer_decode(style->tokenizer, g->window + n, (size_t)count, &bytes);
    add(v, "assistant", text, stops_find(style->stops, text, 0, bytes));
    free(text);
}
int converse_say(Conversation *v, Generator *g, const char *text, size_t bytes, int limit, Error *e) {
    Stream *o = &g->stream[0];
    int *ids = NULL;
    const int reserve = g->capacity / 4 < 64 ? g->capacity / 4 : 64;            /* for an answer */
    add(v, "user", text, bytes);
    const int n = (int)encode(v, o->style->tokenizer, g->capacity - (reserve > 1 ? reserve : 1), &ids, e);
    if (n <= 0) {
        json_cut(v->messages, v->messages->length - 1, 1);
        free(ids);
        return n < 0 ? 0 : error_set(e, "the chat template makes no tokens of it");
    }
    stream_restart(o);
    read(g, ids, n);
    generator_write(g, limit > 0 && limit < g->capacity - n ? limit : g->capacity - n, 1);
    add_answer(v, g, n);
    stream_print(o, 1);
    free(ids);
    return 1;
}
