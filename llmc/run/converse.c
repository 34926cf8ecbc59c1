/* converse.c: see converse.h. */
#include "converse.h"
#include <stdlib.h>
#include <string.h>

static void add(Conversation *v, ChatRole role, const char *text, size_t bytes) {
    char *copy = mem_alloc(bytes + 1);
    memcpy(copy, text, bytes);
    v->message = mem_grow(v->message, (v->count + 1) * sizeof *v->message);
    v->message[v->count++] = (ChatMessage){ role, copy, bytes };
}
static void drop(Conversation *v, size_t i) {
    free((char *)v->message[i].text);
    memmove(&v->message[i], &v->message[i + 1], (--v->count - i) * sizeof *v->message);
}
static size_t kept(const Conversation *v) { return v->count && v->message->role == CHAT_SYSTEM; }

int converse_open(Conversation *v, const char *name, const char *folder, const char *system, Error *e) {
    *v = (Conversation){ 0 };
    if (!chat_open(&v->chat, name, folder, e)) return 0;
    v->chat.today = 1;
    if (*system) add(v, CHAT_SYSTEM, system, strlen(system));
    return 1;
}
void converse_close(Conversation *v) {
    while (v->count) drop(v, v->count - 1);
    free(v->message);
    chat_close(&v->chat);
}
void converse_reset(Conversation *v) {
    while (v->count > kept(v)) drop(v, v->count - 1);
    v->forgotten = 0;
}

const char *converse_end(const Conversation *v, const Tokenizer *t, int *ids, int *count) {
    const char *end = chat_end(&v->chat);
    const int id = *end ? tokenizer_id(t, end) : -1;
    for (int i = 0; i < *count; i++) if (ids[i] == id) return "";
    if (id < 0 || *count == MOST_ENDS) return end;
    ids[(*count)++] = id;
    return "";
}

/* The tokens of the conversation up to the answer, at most `most`: drops the oldest messages
 * (chat_oldest) until it fits. -1 and a message if the last one alone does not. */
static int64_t encode(Conversation *v, const Tokenizer *t, int most, int **ids, Error *e) {
    for (;;) {
        const int64_t n = chat_encode(&v->chat, t, v->message, v->count, 1, ids, NULL, e);
        if (n < 0 || n <= most) return n;
        free(*ids);
        *ids = NULL;
        size_t first, gone = chat_oldest(v->message, v->count, &first);
        if (!gone)
            return error_set(e, "the message has %lld tokens with all that is around it; %d fit into the context and "
                             "leave room for an answer", (long long)n, most) - 1;
        for (; gone; gone--, v->forgotten++) drop(v, first);
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
    const char *stop = *style->stop ? strstr(text, style->stop) : NULL;
    add(v, CHAT_ASSISTANT, text, stop ? (size_t)(stop - text) : bytes);
    free(text);
}
int converse_say(Conversation *v, Generator *g, const char *text, size_t bytes, int limit, Error *e) {
    Stream *o = &g->stream[0];
    int *ids = NULL;
    const int reserve = g->capacity / 4 < 64 ? g->capacity / 4 : 64;            /* for an answer */
    add(v, CHAT_USER, text, bytes);
    const int n = (int)encode(v, o->style->tokenizer, g->capacity - (reserve > 1 ? reserve : 1), &ids, e);
    if (n <= 0) {
        drop(v, v->count - 1);
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
