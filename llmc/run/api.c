/* api.c: answers of the API, see api.h. A choice is generated token by token, or some tokens at a
 * time on a GPU if nothing is to be said of each. The part of its text that later tokens cannot
 * change is the next piece of a stream, or waits for the end. */
#define _DEFAULT_SOURCE
#include "api.h"
#include "calls.h"
#include "converse.h"
#include "llmc/ranks/secret.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The text of a token; of a special one its name, which no text has: *in_text 0. free() it. */
static char *token_text(const Api *a, int id, size_t *bytes, int *in_text) {
    const char *piece = a->tokenizer ? tokenizer_piece(a->tokenizer, id, bytes) : NULL;
    char *own = a->tokenizer ? NULL : text_format(" %d", id);
    *in_text = own || *bytes;
    if (own) { *bytes = strlen(own); return own; }
    if (!*in_text) piece = tokenizer_shown(a->tokenizer, id, bytes);
    return memcpy(mem_alloc(*bytes + 1), piece, *bytes);
}
/* As OpenAI's completions name a token: its text, or its bytes if they are no UTF-8. */
static void name_write(const Api *a, int id, Text *out) {
    size_t bytes;
    int in_text;
    char *text = token_text(a, id, &bytes, &in_text);
    if (utf8_valid(text, bytes) == bytes) text_add_json(out, text, bytes);
    else {
        text_add_string(out, "\"bytes:");
        for (size_t i = 0; i < bytes; i++) text_add(out, "\\\\x%02x", (unsigned char)text[i]);
        text_add_string(out, "\"");
    }
    free(text);
}
/* As chats name it. text: what it is in the text; NULL: its own. The brace stays open. */
static void odd_write(const Api *a, int id, double log, const char *text, size_t bytes, Text *out) {
    size_t own;
    int in_text;
    char *name = token_text(a, id, &own, &in_text);
    text_add_string(out, "{\"token\": ");
    text_add_json(out, name, own);
    text_add_string(out, ", \"logprob\": ");
    text_add(out, "%.6f", log);
    if (!text) text = name, bytes = in_text ? own : 0;
    for (size_t i = 0; i < bytes; i++) text_add(out, i ? ", %d" : ", \"bytes\": [%d", (unsigned char)text[i]);
    text_add_string(out, bytes ? "]" : ", \"bytes\": null");
    free(name);
}
static void chat_odds_write(const ApiJob *j, const char *text, int count, Text *out) {
    text_add_string(out, "{\"content\": [");
    for (const ApiToken *t = j->token; t < j->token + count; t++) {
        text_add_string(out, t == j->token ? "" : ", ");
        odd_write(j->api, t->id, t->log, t->bytes ? text + (t->from - j->sent) : "", t->bytes, out);
        text_add_string(out, ", \"top_logprobs\": [");
        for (int i = 0; i < t->bests; i++) {
            text_add_string(out, i ? ", " : "");
            odd_write(j->api, t->best[i].id, t->best[i].log, NULL, 0, out);
            text_add_string(out, "}");
        }
        text_add_string(out, "]}");
    }
    text_add_string(out, "], \"refusal\": null}");
}
/* Names with logarithms, each name once: tokens may have the same. */
static void bests_write(const ApiJob *j, const ApiToken *t, Text *out) {
    Text names[API_LIKELY + 1] = { { 0 } };
    int n = 0;
    text_add_string(out, "{");
    for (int i = 0; i <= t->bests; i++) {
        int known = 0;
        name_write(j->api, i < t->bests ? t->best[i].id : t->id, &names[n]);
        for (int k = 0; k < n; k++) known |= !strcmp(names[k].at, names[n].at);
        if (known) { names[n].length = 0; continue; }
        text_add(out, "%s%s: ", n ? ", " : "", names[n].at);
        text_add(out, "%.6f", i < t->bests ? t->best[i].log : t->log);
        n++;
    }
    text_add_string(out, "}");
    for (int i = 0; i <= API_LIKELY; i++) free(names[i].at);
}
static void text_odds_write(const ApiJob *j, const char *text, int count, Text *out) {
    const ApiToken *end = j->token + count;
    size_t at = 0, offset = j->characters;
    text_add_string(out, "{\"tokens\": [");
    for (const ApiToken *t = j->token; t < end; t++) {
        text_add_string(out, t == j->token ? "" : ", ");
        name_write(j->api, t->id, out);
    }
    text_add_string(out, "], \"token_logprobs\": [");
    for (const ApiToken *t = j->token; t < end; t++) {
        text_add_string(out, t == j->token ? "" : ", ");
        if (t->is_first) text_add_string(out, "null");
        else text_add(out, "%.6f", t->log);
    }
    text_add_string(out, "], \"top_logprobs\": ");
    for (const ApiToken *t = j->token; t < end && j->q.likely; t++) {
        text_add_string(out, t == j->token ? "[" : ", ");
        if (t->is_first) text_add_string(out, "null");
        else bests_write(j, t, out);
    }
    text_add_string(out, !j->q.likely ? "null" : count ? "]" : "[]");
    text_add_string(out, ", \"text_offset\": [");
    for (const ApiToken *t = j->token; t < end; t++) {
        for (; at < t->from - j->sent; at++) offset += (text[at] & 0xC0) != 0x80;
        text_add(out, t == j->token ? "%zu" : ", %zu", offset);
    }
    text_add_string(out, "]}");
}
static void experts_write(const ApiJob *j, const View *v, int count, Text *out) {
    text_add_string(out, ", \"experts\": [");
    for (const ApiToken *t = j->token; t < j->token + count; t++) {
        text_add_string(out, t == j->token ? "[" : ", [");
        for (int i = 0, expert; t->record >= 0 && i < v->width; i++) {
            const size_t at = (size_t)t->record * (size_t)v->width + (size_t)i;
            memcpy(&expert, v->record.at + at * sizeof expert, sizeof expert);
            text_add(out, i ? ",%d" : "%d", expert);
        }
        text_add_string(out, "]");
    }
    text_add_string(out, "]");
}

/* ---- answers --------------------------------------------------------------------------------- */

void api_error(const ApiError *e, Text *out) {
    text_add_string(out, "{\"error\": {\"message\": ");
    text_add_json(out, e->e.text, strlen(e->e.text));
    text_add(out, ", \"type\": \"%s\", \"param\": ", e->type);
    if (*e->param) text_add_json(out, e->param, strlen(e->param));
    else text_add_string(out, "null");
    text_add_string(out, ", \"code\": ");
    if (e->code) text_add_json(out, e->code, strlen(e->code));
    else text_add_string(out, "null");
    text_add_string(out, "}}\n");
}

/* What an answer, and each event of a stream, begins with. */
static void head_write(const ApiJob *j, Text *out) {
    const char *object = !j->q.is_chat ? "text_completion" : j->q.stream ? "chat.completion.chunk" : "chat.completion";
    text_add(out, "%s{\"id\": \"%s\", \"object\": \"%s\", \"created\": %" PRId64 ", \"model\": \"%s\", ",
             j->q.stream ? "data: " : "", j->id, object, j->created, j->api->name);
    text_add(out, "\"system_fingerprint\": \"%s-%s\", \"seed\": %" PRId64 ", \"dropped\": %zu, ",
             MOE_VERSION, j->api->device, j->q.seed, j->q.dropped);
    if (j->q.controls) text_add(out, "\"control_tokens\": %zu, ", j->q.controls);
    text_add_string(out, "\"choices\": [");
}
static void usage_write(const ApiJob *j, Text *out) {
    text_add(out, "], \"usage\": {\"prompt_tokens\": %" PRId64 ", ", j->prompt_tokens);
    text_add(out, "\"completion_tokens\": %" PRId64 ", ", j->tokens);
    text_add(out, "\"total_tokens\": %" PRId64 "}}", j->prompt_tokens + j->tokens);
}
/* Text (bytes) and the first `count` tokens of the list as a choice. why NULL: it goes on. */
static void choice_write(const ApiJob *j, const Generator *g, const char *text, size_t bytes, int count,
                         const char *why, Text *out) {
    const ApiRequest *q = &j->q;
    const int is_delta = q->is_chat && q->stream, calls = why && j->calls.length;
    const char *drawn = g->stream[0].text.at;
    text_add(out, "{\"index\": %d, %s", j->choice, !q->is_chat ? "\"text\": " : is_delta ? "\"delta\": {"
             : "\"message\": {\"role\": \"assistant\", \"refusal\": null, \"content\": ");
    if (is_delta && !why && j->begun == 1) text_add_string(out, "\"role\": \"assistant\", ");
    if (is_delta && !why) text_add_string(out, "\"content\": ");
    if (calls && !is_delta && !bytes) text_add_string(out, "null");
    else if (!is_delta || !why) text_add_json(out, text, bytes);
    if (calls) text_add(out, "%s\"tool_calls\": %s", is_delta ? "" : ", ", j->calls.at);
    text_add_string(out, q->is_chat ? "}, \"logprobs\": " : ", \"logprobs\": ");
    if (!q->logprobs || (q->stream && !count)) text_add_string(out, "null");
    else if (q->is_chat) chat_odds_write(j, drawn, count, out);
    else text_odds_write(j, drawn, count, out);
    if (q->experts) experts_write(j, &g->view, count, out);
    const char *reason = calls ? "tool_calls" : why && strcmp(why, "stop") ? "length" : "stop";
    text_add_string(out, ", \"finish_reason\": ");
    if (why) text_add(out, "\"%s\", \"ended\": \"%s\"}", reason, why);
    else text_add_string(out, "null}");
}
static void event_end(const ApiJob *j, Text *out) {
    text_add_string(out, j->q.usage ? "], \"usage\": null}\n\n" : "]}\n\n");
}

/* What is ready of the text becomes an event. */
static void piece_write(ApiJob *j, Generator *g, size_t ready, int end, Text *out) {
    Stream *o = &g->stream[0];
    int count = 0;
    while (count < j->listed && (end || j->token[count].from < j->sent + ready)) count++;
    if (!ready && !count && j->begun > 1) return;
    head_write(j, out);
    if (j->calls.length) choice_write(j, g, j->rest.at ? j->rest.at : "", j->rest.length, count, NULL, out);
    else choice_write(j, g, o->text.at ? o->text.at : "", ready, count, NULL, out);
    event_end(j, out);
    j->begun = 2;
    j->characters += utf8_count(o->text.at, ready);
    j->sent += ready;
    stream_drop(o, ready);
    j->listed -= count;
    if (count) memmove(j->token, j->token + count, (size_t)j->listed * sizeof *j->token);
    if (!j->listed) g->view.record.length = 0;
}
/* Did a stop string take all of a token's text away? */
static int was_cut(const ApiJob *j, const ApiToken *t, size_t ready) { return t->bytes && t->from >= j->sent + ready; }
/* A choice is complete. Returns 1 if it was the last. */
static int choice_end(ApiJob *j, Generator *g, const char *why, Text *out) {
    const Stream *o = &g->stream[0];
    const size_t ready = stream_ready(o, 1);
    const char *text = o->text.at ? o->text.at : "";
    char id[64];
    while (j->listed && o->ended && was_cut(j, &j->token[j->listed - 1], ready)) j->listed--;
    j->tokens += g->tokens;
    j->calls.length = j->rest.length = 0;
    snprintf(id, sizeof id, "%s-%d", j->id, j->choice);
    if (j->q.calls) calls_read(text, ready, id, j->q.stream, &j->calls, &j->rest);
    if (j->q.stream) {
        piece_write(j, g, ready, 1, out);
        head_write(j, out);
        choice_write(j, g, "", 0, 0, why, out);
        event_end(j, out);
    } else {
        const Text *rest = j->calls.length ? &j->rest : NULL;
        text_add_string(&j->choices, j->choice ? ", " : "");
        choice_write(j, g, rest ? rest->at : text, rest ? rest->length : ready, j->listed, why, &j->choices);
    }
    j->begun = 0;
    if (++j->choice < j->q.prompts * j->q.n) return 0;
    if (!j->q.stream || j->q.usage) head_write(j, out);
    if (!j->q.stream) text_add_bytes(out, j->choices.at, j->choices.length);
    if (!j->q.stream || j->q.usage) usage_write(j, out);
    text_add_string(out, !j->q.stream ? "\n" : j->q.usage ? "\n\ndata: [DONE]\n\n" : "data: [DONE]\n\n");
    return 1;
}
void api_queued(const ApiJob *j, int before, Text *out) { if (j->q.stream) text_add(out, ": queue %d\n\n", before); }

/* ---- generating ------------------------------------------------------------------------------ */

static const ApiPrompt *prompt_of(const ApiJob *j) { return &j->q.prompt[j->choice / j->q.n]; }

static void choice_begin(ApiJob *j, Generator *g) {
    const ApiRequest *q = &j->q;
    const ApiPrompt *p = prompt_of(j);
    const int free_positions = g->capacity - p->count;
    g->stream[0].style = &j->style;
    memcpy(g->end_token, j->end, sizeof j->end);
    g->end_tokens = j->ends;
    g->sampler = (Sampler){ .temperature = q->temperature, .top_p = q->top_p, .min_p = q->min_p, .top_k = q->top_k };
    g->penalty = q->penalty;
    g->presence = q->presence;
    g->frequency = q->frequency;
    g->seed = (uint64_t)q->seed;
    g->first = j->choice % q->n;
    g->view.main = q->experts && g->view.lenses ? &g->view.lens[g->view.lenses - 1] : NULL;
    generator_restart(g);
    j->fills = (!q->tokens && !q->limited) || (!q->cut && q->tokens > free_positions);
    j->left = j->fills ? free_positions : q->tokens;
    j->read = j->listed = 0;
    j->sent = j->characters = 0;
    j->begun = 1;
}

static ApiToken *list_token(ApiJob *j, int id) {
    array_grow(j->token, j->listed, j->capacity);
    j->token[j->listed] = (ApiToken){ .id = id, .record = -1 };
    return &j->token[j->listed++];
}
static void odds_take(ApiJob *j, ApiToken *t) {
    t->log = odds_of(&j->odds, t->id);
    t->bests = odds_best(&j->odds, t->best, j->q.likely);
}
/* Of a token whose text a stop string took away again, the bytes are not known: 1. */
static void bytes_take(const ApiJob *j, const Stream *o, size_t before, ApiToken *t) {
    const size_t after = j->sent + o->text.length;
    t->from = before;
    t->bytes = after > before ? after - before : o->ended ? 1 : 0;
}

static char *ids_text(const Api *a, const ApiPrompt *p, size_t *bytes) {
    Text text = { 0 };
    if (a->tokenizer) return tokenizer_decode(a->tokenizer, p->ids, (size_t)p->count, bytes);
    for (int i = 0; i < p->count; i++) text_add(&text, " %d", p->ids[i]);
    *bytes = text.length;
    return text.at;
}
/* Some of the prompt, or all of it. With what is known of its tokens, they are the text. */
static void prompt_step(ApiJob *j, Generator *g) {
    const ApiPrompt *p = prompt_of(j);
    const ApiRequest *q = &j->q;
    Stream *o = &g->stream[0];
    const int lists = q->echo && (q->logprobs || q->experts), n = lists && q->logprobs ? 1 : p->count;
    if (!lists) {
        size_t bytes = p->text ? p->bytes : !q->is_chat;
        char *text = q->echo && !p->text ? ids_text(j->api, p, &bytes) : NULL;
        generator_read(g, p->ids, p->count, text ? text : q->echo ? p->text : NULL, bytes);
        free(text);
    }
    if (lists && q->logprobs && j->read) odds_read(&j->odds, &g->d, j->api->vocab);
    if (lists) generator_read(g, p->ids + j->read, n, NULL, o->text.length);
    if (g->d.model.stopped) return;
    for (int i = j->read; lists && i < j->read + n; i++) {
        const size_t before = o->text.length;
        ApiToken *t = list_token(j, p->ids[i]);
        stream_read(o, p->ids[i]);
        bytes_take(j, o, before, t);
        t->is_first = !i;
        if (g->view.main) t->record = i;
        if (q->logprobs && i) odds_take(j, t);
    }
    j->read += n;
    if (!lists) g->view.record.length = 0;
}

static int is_end(const ApiJob *j, int id) {
    for (int i = 0; i < j->ends; i++) if (j->end[i] == id) return 1;
    return 0;
}
static void draw_step(ApiJob *j, Generator *g) {
    enum { AHEAD = 12 };
    const ApiRequest *q = &j->q;
    const Stream *o = &g->stream[0];
    const int lists = q->logprobs || q->experts, most = g->dev->is_gpu && !lists ? AHEAD : 1;
    const int n = j->left < most ? (int)j->left : most;
    const int64_t tokens = g->tokens;
    const size_t before = j->sent + o->text.length;
    if (q->logprobs) odds_read(&j->odds, &g->d, j->api->vocab);
    generator_write(g, n, 1);
    if (g->d.model.stopped) return;
    j->left -= n;
    const int id = g->window[g->d.length - 1];
    if (!lists || g->tokens == tokens || (o->ended && is_end(j, id))) return;
    ApiToken *t = list_token(j, id);
    bytes_take(j, o, before, t);
    if (q->logprobs) odds_take(j, t);
    if (g->view.main) t->record = (int)(g->view.record.length / sizeof(int)) / g->view.width - 1;
}
int api_unread(const ApiJob *j) { return prompt_of(j)->count - j->read; }
int api_step(ApiJob *j, Generator *g, int expired, Text *out) {
    const Stream *o = &g->stream[0];
    if (!j->begun) choice_begin(j, g);
    else if (!expired && j->read < prompt_of(j)->count) prompt_step(j, g);
    else if (!expired && j->left) draw_step(j, g);
    if (g->d.model.stopped) return 0;
    const int reads = j->read < prompt_of(j)->count;
    const char *why = expired ? "time" : reads ? NULL : o->ended ? "stop" : j->left ? NULL
                    : j->fills ? "context" : "length";
    if (j->q.stream && !j->q.calls && j->begun && !why && !reads) piece_write(j, g, stream_ready(o, 0), 0, out);
    return why && choice_end(j, g, why, out);
}

/* ---- a job, and the model -------------------------------------------------------------------- */

ApiJob *api_open(const Api *a, int is_chat, const char *body, size_t bytes, ApiError *e) {
    ApiJob *j = mem_alloc(sizeof *j);
    uint64_t random[2] = { 0, 0 };
    *j = (ApiJob){ .api = a, .created = (int64_t)time(NULL), .ends = a->ends };
    if (!api_read(a, &j->q, is_chat, body, bytes, e)) { api_close(j); return NULL; }
    if (!random_bytes(random, sizeof random)) random[0] = (uint64_t)j->created, random[1] = (uint64_t)(1e9 * now());
    snprintf(j->id, sizeof j->id, "%s-%016" PRIx64, is_chat ? "chatcmpl" : "cmpl", random[0]);
    if (j->q.seed < 0) j->q.seed = (int64_t)(random[1] % 1000000000);
    memcpy(j->end, a->end, sizeof j->end);
    if (is_chat) {                      /* an answer also ends with its template's token, or its string */
        const Conversation v = { .chat = *a->chat };
        const char *end = converse_end(&v, a->tokenizer, j->end, &j->ends);
        j->q.stops = stops_add(j->q.stops, end, strlen(end));
    }
    j->style = (TextStyle){ .tokenizer = a->tokenizer, .stops = j->q.stops };
    for (int i = 0; i < j->q.prompts; i++) j->prompt_tokens += j->q.prompt[i].count;
    return j;
}
void api_close(ApiJob *j) {
    if (!j) return;
    api_free_request(&j->q);
    odds_free(&j->odds);
    free_each(j->token, j->choices.at, j->calls.at, j->rest.at, j);
}

char *api_name(const char *folder) {
    char *path = realpath(folder, NULL), *base;
    if (!path) path = text_format("%s", folder);
    while ((base = strrchr(path, '/')) && base > path && (!base[1] || !strcmp(base, "/best"))) *base = 0;
    char *name = text_format("%s", base && base[1] ? base + 1 : *path && *path != '/' ? path : "model");
    for (char *c = name; *c; c++)
        if (!strchr("-._0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", *c)) *c = '-';
    free(path);
    return name;
}
void api_model(const Api *a, const Generator *g, Text *out) {
    const Model *m = &g->d.model;
    char name[128];
    config_descriptor(&m->config, name);
    const size_t learnable = m->manifest.learnable, active = (size_t)config_active(&m->config, learnable);
    text_add(out, "{\"id\": \"%s\", \"object\": \"model\", \"created\": %" PRId64 ", ", a->name, a->created);
    text_add_string(out, "\"owned_by\": \"smoe.c\", \"smoe\": {");
    text_add(out, "\"descriptor\": \"%s\", \"parameters\": %zu, \"active\": %zu, \"context\": %d, \"device\": \"%s\", "
             "\"version\": \"%s\", \"chat\": ", name, learnable, active, a->capacity, a->device, MOE_VERSION);
    const char *chat = a->chat ? chat_name(a->chat) : "";
    text_add_json(out, chat, strlen(chat));
    text_add_string(out, ", \"prompt\": ");
    text_add_json(out, a->prompt, strlen(a->prompt));
    text_add_string(out, ", \"routers\": [");
    for (const Lens *o = g->view.lens; o < g->view.lens + g->view.lenses; o++)
        text_add(out, "%s{\"layer\": %d, \"name\": \"%s\", \"experts\": %d, \"chosen\": %d}",
                 o == g->view.lens ? "" : ", ", o->layer, o->name, o->route->E, o->route->K);
    text_add_string(out, "], ");
    api_settings(a, out);
    text_add_string(out, "}}");
}
