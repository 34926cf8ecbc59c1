/* web.c: see web.h. */
#define _POSIX_C_SOURCE 200809L
#include "web.h"
#include "converse.h"
#include "http.h"
#include "llmc/base/sha256.h"
#include "llmc/data/forms.h"
#include "llmc/ranks/net.h"
#include "llmc/ranks/secret.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern const char *const web_page[];                    /* lines of llmc/run/web/, made by the Makefile */

enum { CLIENTS = 32, QUEUE = 16, SLOTS = 2, AHEAD = 12, PENDING = 1 << 18, TOKENS = 1 << 16, TOKEN_BYTES = 16 };
/* Seconds: a request arrives; a client takes no byte; a generation; an answered client closes. */
static const double ARRIVE = 10, SILENT = 30, LONGEST = 600, LINGER = 1;

typedef struct {                        /* what a request sets; prompt NULL: it asks for an answer */
    const char *prompt, *stop;
    int     tokens, top_k;
    float   temperature, top_p, min_p, penalty;
    int64_t seed;
} Query;
static const struct { const char *letter; size_t field; } query_options[] = {
    { "i", offsetof(Query, prompt) }, { "n", offsetof(Query, tokens) }, { "t", offsetof(Query, temperature) },
    { "p", offsetof(Query, top_p) }, { "mp", offsetof(Query, min_p) }, { "k", offsetof(Query, top_k) },
    { "rp", offsetof(Query, penalty) },
    { "s", offsetof(Query, seed) }, { "st", offsetof(Query, stop) }, };
enum { QUERY_OPTIONS = sizeof query_options / sizeof *query_options };

typedef struct { Generator *g; TextStyle style; char *stop; int busy; } Slot;

typedef enum { CLOSED, READING, WAITING, GENERATING, SENDING, LINGERING } State;
typedef struct {
    int    fd;
    State  state;
    double since;                   /* when it came; from SENDING on and while it generates: when it last took a byte */
    Text   in, out;
    size_t sent;                        /* bytes of out */
    /* of a generation */
    Query    query;
    Json  *json;                        /* holds the texts of query */
    int   *ids, count;                  /* the prompt, until it is read */
    size_t dropped;
    int64_t order, left;                /* in which it came; tokens to generate */
    int    published;                   /* the position in the queue that the client knows of */
    double start;
    Slot  *slot;
} Client;

typedef struct {
    const Web *w;
    int    listener[NET_LISTENERS], listeners, slots, vocab, ends;      /* ends: tokens that end every text */
    Slot   slot[SLOTS];
    Generator second;
    Client client[CLIENTS];
    int64_t requests;
    char   token[2 * TOKEN_BYTES + 1];  /* "": none is needed */
    Text   page, policy, model;
} Server;

/* ---- answers --------------------------------------------------------------------------------- */

static void client_close(Client *c) {
    if (c->slot) c->slot->busy = 0;
    close(c->fd);
    free(c->in.at);
    free(c->out.at);
    free(c->ids);
    json_free(c->json);
    *c = (Client){ .state = CLOSED };
}
static void answer(Client *c, int status, const char *type, const Text *body, const char *more) {
    http_answer(&c->out, status, type, (long)body->length, more);
    text_add_bytes(&c->out, body->at, body->length);
    c->state = SENDING;
    c->since = now();
}
static void refuse(Client *c, int status, const char *why) {
    Text body = { 0 };
    text_add_string(&body, "{\"error\": ");
    text_add_json(&body, why, strlen(why));
    text_add_string(&body, "}\n");
    answer(c, status, "application/json", &body, status == 405 ? "Allow: GET, POST\r\n" : "");
    free(body.at);
}
static void send_event(Client *c, Text *event) {
    text_add_string(event, "}\n");
    http_chunk(&c->out, event->at, event->length);
    free(event->at);
}

/* ---- requests -------------------------------------------------------------------------------- */

static const void *setting(const Server *s, const Option *o) { return (const char *)s->w->options.settings + o->field; }
/* What the command line says. */
static Query query_default(const Server *s) {
    Query query;
    for (int i = 0; i < QUERY_OPTIONS; i++) {
        const Option *o = option_row(s->w->options, query_options[i].letter);
        memcpy((char *)&query + query_options[i].field, setting(s, o),
               o->kind == OPTION_TEXT ? sizeof(char *) : o->kind == OPTION_LONG
               ? sizeof(int64_t) : o->kind == OPTION_INT ? sizeof(int) : sizeof(float));
    }
    query.prompt = "";
    if (query.tokens < 0) query.tokens = 0;
    return query;
}
static int query_read(const Server *s, const JsonValue *body, Query *query, Error *e) {
    if (!json_is(body, JSON_OBJECT)) return error_set(e, "expected a JSON object");
    *query = query_default(s);
    for (const JsonValue *v = json_first(body); v; v = v->next) {
        int i = 0;
        if (!strcmp(v->key, "messages") || !strcmp(v->key, "tools") || !strcmp(v->key,
                "chat_template_kwargs")) continue;
        while (i < QUERY_OPTIONS && strcmp(option_row(s->w->options, query_options[i].letter)->name, v->key)) i++;
        if (i == QUERY_OPTIONS) return error_set(e, "%.100s: no such option", v->key);
        Option own = *option_row(s->w->options, query_options[i].letter);
        own.field = query_options[i].field;
        if (!option_read(&own, query, v, e)) return 0;
    }
    if (query->tokens < 0 || query->tokens > TOKENS)
        return error_set(e, "tokens: expected 0 (until the context is full) to %d", TOKENS);
    return 1;
}

/* The tokens of a conversation, up to where the answer begins. With more than three quarters of the
 * context, the oldest questions go with their answers. */
static int conversation_read(const Server *s, Client *c, const JsonValue *body, size_t *count, Error *e) {
    const size_t most = (size_t)s->slot[0].g->capacity * 3 / 4;
    const Chat *chat = s->w->chat;
    const JsonValue *variables = json_get(body, "chat_template_kwargs");
    int64_t tokens, all = -1;
    size_t first, gone;
    Form f;
    if (!chat || !*chat_name(chat)) return error_set(e, "messages: this model has no chat template that is known");
    if (!form_read_chat(&f, c->json, json_get(body, "messages"), json_get(body, "tools"), e)) return 0;
    JsonValue *talk = json_copy(c->json, f.chat), *messages = (JsonValue *)json_get(talk, "messages");
    if (json_is(variables, JSON_OBJECT)) json_append(talk, "chat_template_kwargs", json_copy(c->json, variables));
    while ((tokens = chat_encode(chat, s->w->tokenizer, talk, 1, &c->ids, NULL, e)) > (int64_t)most
           && (gone = chat_oldest(messages, &first))) {
        json_cut(messages, first, gone);
        if (all < 0) all = tokens;
        free(c->ids);
        c->ids = NULL;
    }
    if (tokens < 0) return 0;
    c->dropped = all > tokens ? (size_t)(all - tokens) : 0;
    *count = (size_t)tokens;
    c->query.prompt = NULL;
    return 1;
}
static int prompt_read_ids(const Server *s, Client *c, size_t *count, Error *e) {
    const JsonValue *body = json_root(c->json), *messages = json_get(body, "messages");
    if (messages && *c->query.prompt) return error_set(e, "expected prompt or messages, not both");
    return messages ? conversation_read(s, c, body, count, e)
                    : prompt_tokens(s->w->tokenizer, s->vocab, c->query.prompt, strlen(c->query.prompt), 1,
                                    &c->ids, count, e);
}
/* A generation waits from now on. */
static void generation_queue(Server *s, Client *c, const HttpRequest *r) {
    Error e;
    const Generator *g = s->slot[0].g;
    size_t count;
    uint64_t draw;
    int waiting = 0;
    for (const Client *o = s->client; o < s->client + CLIENTS; o++) waiting += o->state == WAITING;
    if (waiting == QUEUE) { refuse(c, 503, "too many wait already: try again later"); return; }
    c->json = json_parse(c->in.at + r->head, r->body, &e);
    if (!c->json || !query_read(s, json_root(c->json), &c->query, &e) || !prompt_read_ids(s, c, &count, &e)) {
        refuse(c, 400, e.text);
        return;
    }
    const size_t beyond = count > (size_t)g->capacity ? count - (size_t)g->capacity : 0;
    memmove(c->ids, c->ids + beyond, (count - beyond) * sizeof *c->ids);
    c->dropped += beyond;
    c->count = (int)(count - beyond);
    c->left = c->query.tokens ? c->query.tokens : g->capacity - c->count;
    if (c->query.seed < 0 && random_bytes(&draw, sizeof draw)) c->query.seed = (int64_t)(draw % 1000000000);
    if (c->query.seed < 0) c->query.seed = s->requests;
    c->order = s->requests++;
    c->published = -1;
    c->state = WAITING;
    c->since = now();
    http_answer(&c->out, 200, "application/x-ndjson", -1, "");
}

/* The name before the port, of a loopback address. */
static int names_loopback(HttpText host) {
    char name[64];
    const size_t six = host.bytes && *host.at == '[';       /* [::1]:8080 */
    const char *end = memchr(host.at, six ? ']' : ':', host.bytes);
    const size_t n = (end ? (size_t)(end - host.at) : host.bytes) - six;
    if (n >= sizeof name) return 0;
    memcpy(name, host.at + six, n);
    name[n] = 0;
    return net_is_loopback(name);
}
static int is_same_origin(const HttpRequest *r) {
    const char scheme[] = "http://";
    const size_t n = strlen(scheme);
    return !r->origin.at || (r->origin.bytes == n + r->host.bytes && !memcmp(r->origin.at, scheme, n)
                             && !memcmp(r->origin.at + n, r->host.at, r->host.bytes));
}
static int shows_token(const Server *s, HttpText t) {
    const char scheme[] = "Bearer ";
    const size_t n = strlen(scheme), m = strlen(s->token);
    return !m || (t.at && t.bytes == n + m && !memcmp(t.at, scheme, n) && same_in_constant_time(t.at + n, s->token, m));
}
static void request_answer(Server *s, Client *c, const HttpRequest *r) {
    const int get = http_is(r->method, "GET"), post = http_is(r->method, "POST");
    if (!*s->token && !names_loopback(r->host))
        refuse(c, 421, "this server answers to the name of a loopback address only");
    else if (!is_same_origin(r)) refuse(c, 403, "a page of another origin may not use this server");
    else if (!get && !post) refuse(c, 405, "only GET and POST are known");
    else if (get && http_is(r->path, "/")) answer(c, 200, "text/html; charset=utf-8", &s->page, s->policy.at);
    else if (!shows_token(s, r->authorization)) refuse(c, 401, "the token of the link is missing or wrong");
    else if (r->site.at && !http_is(r->site, "same-origin") && !http_is(r->site, "none"))
        refuse(c, 403, "a page of another site may not use this server");
    else if (http_is(r->path, "/model") && get) answer(c, 200, "application/json", &s->model, "");
    else if (http_is(r->path, "/generate") && post) {
        if (r->type.bytes < 16 || !http_is_name((HttpText){ r->type.at, 16 }, "application/json"))
            refuse(c, 415, "expected the header Content-Type: application/json");
        else generation_queue(s, c, r);
    } else if (http_is(r->path, "/") || http_is(r->path, "/model") || http_is(r->path, "/generate"))
        refuse(c, 405, "not this method");
    else refuse(c, 404, "there is nothing here");
}
/* Of a client whose request is complete, bytes are read to see whether it is still there. */
static void client_read(Server *s, Client *c) {
    char part[4096];
    HttpRequest r;
    const long n = net_read(c->fd, part, sizeof part);
    if (n < 0) client_close(c);
    if (n <= 0 || c->state != READING) return;
    text_add_bytes(&c->in, part, (size_t)n);
    const int status = http_parse(c->in.at, c->in.length, &r);
    if (status == 200 && c->in.length - r.head >= r.body) request_answer(s, c, &r);
    else if (status > 200) refuse(c, status, http_reason(status));
}

static void client_write(Client *c) {
    const size_t pending = c->out.length - c->sent;
    const long n = pending ? net_write(c->fd, c->out.at + c->sent, pending) : 0;
    if (n < 0) { client_close(c); return; }
    if (n > 0) c->since = now();
    if ((c->sent += (size_t)n) < c->out.length) return;
    c->sent = c->out.length = 0;
    if (c->state != SENDING) return;
    shutdown(c->fd, SHUT_WR);                       /* closing while the client still sends would destroy the answer */
    c->state = LINGERING;
    c->since = now();
}

static void client_check_time(Client *c) {
    const double t = now() - c->since;
    if (c->state == READING && t > ARRIVE) refuse(c, 408, "the request took too long");
    else if (c->state == LINGERING && t > LINGER) client_close(c);
    else if (c->state > READING && c->sent < c->out.length && t > SILENT) client_close(c);
}

/* ---- generations ----------------------------------------------------------------------------- */

static void queue_publish(Server *s) {
    for (Client *c = s->client; c < s->client + CLIENTS; c++) {
        int position = 0;
        if (c->state != WAITING) continue;
        for (const Client *o = s->client; o < s->client + CLIENTS; o++)
            position += o->state == WAITING && o->order < c->order;
        if (position == c->published) continue;
        Text event = { 0 };
        text_add(&event, "{\"queue\": %d", c->published = position);
        send_event(c, &event);
    }
}

/* An answer also ends with its template's token, or its string, unless the request names one. */
static void generation_begin(const Server *s, Slot *slot, Client *c) {
    Generator *g = slot->g;
    g->end_tokens = s->ends;
    if (!c->query.prompt) {
        const Conversation v = { .chat = *s->w->chat };
        const char *end = converse_end(&v, s->w->tokenizer, g->end_token, &g->end_tokens);
        if (!*c->query.stop) c->query.stop = end;
    }
    free(slot->stop);
    slot->style.stop = slot->stop = stop_string(c->query.stop);
    g->sampler = (Sampler){ .temperature = c->query.temperature, .top_p = c->query.top_p, .min_p = c->query.min_p,
                            .top_k = c->query.top_k };
    g->penalty = c->query.penalty;
    g->seed = (uint64_t)c->query.seed;
    generator_restart(g);
    slot->busy = 1;
    c->slot = slot;
    c->state = GENERATING;
    c->start = now();
    Text event = { 0 };
    text_add(&event, "{\"seed\": %lld, \"prompt_tokens\": %d, \"dropped\": %zu", (long long)c->query.seed, c->count,
             c->dropped);
    send_event(c, &event);
}
static void generations_begin(Server *s) {
    for (int i = 0; i < s->slots; i++) {
        Client *first = NULL;
        for (Client *c = s->client; c < s->client + CLIENTS; c++)
            if (c->state == WAITING && (!first || c->order < first->order)) first = c;
        if (first && !s->slot[i].busy) generation_begin(s, &s->slot[i], first);
    }
}

/* The characters from `at` on that belong to one token. */
static size_t same_token(const Stream *o, size_t at, size_t ready, int *token) {
    char shown[5];
    size_t n = 0;
    *token = -1;
    if (o->style->marked) memcpy(token, o->experts.at + at * sizeof *token, sizeof *token);
    for (int own = *token; at + n < ready; n += text_show(o->text.at + at + n, ready - at - n, shown)) {
        if (o->style->marked) memcpy(&own, o->experts.at + (at + n) * sizeof own, sizeof own);
        if (own != *token) break;
    }
    return n;
}
static void text_send(Client *c, int end) {
    const View *v = &c->slot->g->view;
    Stream *o = &c->slot->g->stream[0];
    const size_t ready = stream_ready(o, end);
    for (size_t at = 0, n; at < ready; at += n) {
        Text event = { 0 };
        int token, expert;
        n = same_token(o, at, ready, &token);
        text_add_string(&event, "{\"text\": ");
        text_add_json(&event, o->text.at + at, n);
        if (token >= 0) text_add(&event, ", \"token\": %d, \"experts\": [", token);
        for (int i = 0; token >= 0 && i < v->width; i++) {
            memcpy(&expert, v->record.at + ((size_t)token * (size_t)v->width + (size_t)i) * sizeof expert,
                   sizeof expert);
            text_add(&event, i ? ",%d" : "%d", expert);
        }
        if (token >= 0) text_add_string(&event, "]");
        send_event(c, &event);
    }
    stream_drop(o, ready);
}

static void generation_end(const Server *s, Client *c, const char *why) {
    const Generator *g = c->slot->g;
    Text event = { 0 };
    text_add(&event, "{\"end\": \"%s\", \"tokens\": %lld, \"seconds\": %.6f, \"prompt_seconds\": %.6f", why,
             (long long)g->tokens, g->time, g->prompt_time);
    send_event(c, &event);
    http_chunk(&c->out, "", 0);
    if (s->w->verbose) generator_report(g, stderr);
    c->slot->busy = 0;
    c->slot = NULL;
    c->state = SENDING;
}
static void generation_slice(const Server *s, Client *c) {
    Generator *g = c->slot->g;
    const int most = g->dev->is_gpu && !g->view.main ? AHEAD : 1;
    if (c->ids) generator_read(g, c->ids, c->count, c->query.prompt, c->query.prompt ? strlen(c->query.prompt) : 0);
    else {
        const int n = c->left < most ? (int)c->left : most;
        generator_write(g, n, 1);
        c->left -= n;
    }
    free(c->ids);
    c->ids = NULL;
    const char *why = g->stream[0].ended ? "stop" : !c->left ? c->query.tokens ? "length" : "context"
                    : now() - c->start > LONGEST ? "time" : NULL;
    text_send(c, why != NULL);
    if (why) generation_end(s, c, why);
}

/* ---- the server ------------------------------------------------------------------------------ */

static int can_go_on(const Client *c) { return c->state == GENERATING && c->out.length - c->sent < PENDING; }

static void server_accept(Server *s, int listener) {
    Client *c = s->client;
    while (c < s->client + CLIENTS && c->state != CLOSED) c++;
    if (c == s->client + CLIENTS) return;
    const int fd = net_accept(listener);
    if (fd >= 0) *c = (Client){ .fd = fd, .state = READING, .since = now() };
}
/* Waits for sockets, unless there is something to generate. With all places taken, others wait. */
static void server_poll(Server *s) {
    struct pollfd p[NET_LISTENERS + CLIENTS];
    Client *of[CLIENTS];
    int n = 0, clients = 0, busy = 0;
    for (Client *c = s->client; c < s->client + CLIENTS; c++) {
        if (c->state == CLOSED) continue;
        busy |= can_go_on(c);
        p[clients].fd = c->fd;
        p[clients].events = (short)((c->state != SENDING ? POLLIN : 0) | (c->sent < c->out.length ? POLLOUT : 0));
        of[clients++] = c;
    }
    n = clients;
    for (int i = 0; i < s->listeners && clients < CLIENTS; i++)
        p[n++] = (struct pollfd){ .fd = s->listener[i], .events = POLLIN };
    if (poll(p, (nfds_t)n, busy ? 0 : clients ? 200 : 1000) < 0) return;
    for (int i = 0; i < clients; i++) {
        Client *c = of[i];
        if (p[i].revents & POLLNVAL) client_close(c);
        else if (c->state == SENDING && p[i].revents & (POLLERR | POLLHUP)) client_close(c);
        else if (p[i].revents & (POLLIN | POLLERR | POLLHUP)) client_read(s, c);
        if (c->state != CLOSED && c->sent < c->out.length) client_write(c);
        if (c->state != CLOSED) client_check_time(c);
    }
    for (int i = clients; i < n; i++) if (p[i].revents) server_accept(s, p[i].fd);
}
static void server_run(Server *s) {
    while (!*s->w->g->interrupted) {
        server_poll(s);
        generations_begin(s);
        queue_publish(s);
        for (Client *c = s->client; c < s->client + CLIENTS; c++) if (can_go_on(c)) generation_slice(s, c);
    }
    for (Client *c = s->client; c < s->client + CLIENTS; c++) if (c->state != CLOSED) client_close(c);
}

/* ---- the page -------------------------------------------------------------------------------- */

/* 'sha256-...' of what is between two lines of the page: the browser runs and applies only that. */
static void policy_add(Text *policy, const char *what, const char *from, const char *to) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char hash[SHA256_BYTES + 1] = { 0 };
    int i = 0;
    Sha256 sha;
    sha256_begin(&sha);
    while (strcmp(web_page[i], from)) i++;
    sha256_add(&sha, "\n", 1);
    while (strcmp(web_page[++i], to)) sha256_add(&sha, web_page[i], strlen(web_page[i]));
    sha256_end(&sha, hash);
    text_add(policy, "%s 'sha256-", what);
    for (i = 0; i < SHA256_BYTES; i += 3) {                 /* base64 of 32 bytes: 43 digits and a = */
        const unsigned x = (unsigned)hash[i] << 16 | (unsigned)hash[i + 1] << 8
            | (i + 2 < SHA256_BYTES ? hash[i + 2] : 0);
        for (int k = 18; k >= 0; k -= 6) text_add(policy, "%c", i + 2 >= SHA256_BYTES && !k ? '=' : digit[x >> k & 63]);
    }
    text_add_string(policy, "'; ");
}
static void page_write(Server *s) {
    for (int i = 0; web_page[i]; i++) text_add_string(&s->page, web_page[i]);
    text_add_string(&s->policy, "Content-Security-Policy: default-src 'none'; connect-src 'self'; img-src data:; "
                    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; ");
    policy_add(&s->policy, "style-src", "<style>\n", "</style>\n");
    policy_add(&s->policy, "script-src", "<script>\n", "</script>\n");
    text_add_string(&s->policy, "\r\n");
}

static void option_write(const Server *s, Text *t, const char *letter) {
    static const char *const kinds[] = { "int", "int", "float", "text" };
    const Option *o = option_row(s->w->options, letter);
    char value[256];
    option_value(o, s->w->options.settings, value, sizeof value);
    text_add(t, "{\"name\": \"%s\", \"kind\": \"%s\", \"value\": ", o->name, kinds[o->kind]);
    if (o->kind == OPTION_TEXT) text_add_json(t, value, strlen(value));
    else text_add_string(t, value);
    text_add(t, ", \"low\": %.10g, \"high\": %.10g, \"help\": ", o->kind == OPTION_INT && o->low < 0 ? 0 : o->low,
             !strcmp(letter, "n") ? TOKENS : o->high);
    text_add_json(t, o->help, strlen(o->help));
    text_add_string(t, "}");
}
static void model_write(Server *s) {
    const Generator *g = s->slot[0].g;
    const Model *m = &g->d.model;
    Text *t = &s->model;
    char name[128];
    config_descriptor(&m->config, name);
    text_add(t, "{\"model\": \"%s\", \"parameters\": %zu, \"active\": %zu, \"context\": "
             "%d, \"device\": \"%s\", \"version\": \"%s\", \"chat\": \"%s\", \"prompt\": ", name, m->manifest.learnable,
             (size_t)config_active(&m->config, m->manifest.learnable), g->capacity, g->dev->name, MOE_VERSION,
             s->w->chat ? chat_name(s->w->chat) : "");
    text_add_json(t, s->w->prompt, strlen(s->w->prompt));
    text_add_string(t, ", \"routers\": [");
    for (const Lens *o = g->view.lens; o < g->view.lens + g->view.lenses; o++)
        text_add(t, "%s{\"layer\": %d, \"name\": \"%s\", \"experts\": %d, \"chosen\": %d}",
                 o == g->view.lens ? "" : ", ", o->layer, o->name, o->route->E, o->route->K);
    text_add_string(t, "], \"options\": [");
    for (int i = 1; i < QUERY_OPTIONS; i++) {
        if (i > 1) text_add_string(t, ", ");
        option_write(s, t, query_options[i].letter);
    }
    text_add_string(t, "]}\n");
}

/* ---- start and end --------------------------------------------------------------------------- */

static void slot_open(Server *s, Generator *g) {
    Slot *slot = &s->slot[s->slots++];
    *slot = (Slot){ .g = g, .stop = stop_string("") };
    view_open(&g->view, g->dev, &g->d.model, VIEW_ALL);
    slot->style = (TextStyle){ .tokenizer = s->w->tokenizer, .stop = slot->stop, .marked = g->view.main != NULL };
    g->stream[0].style = &slot->style;
    g->silent = 1;
}
/* A second generation at a time, if there is memory for its cache. */
static void second_open(Server *s) {
    Generator *first = s->w->g, *g = &s->second;
    *g = (Generator){ .dev = first->dev, .end_tokens = first->end_tokens, .sequences = 1,
                      .interrupted = first->interrupted, .weights_of = &first->d.model };
    memcpy(g->end_token, first->end_token, sizeof g->end_token);
    if (generator_open(g, &first->d.model.config, first->capacity, &s->slot[0].style)) slot_open(s, g);
    else warn("%s has no memory for a second cache: one text is generated at a time", first->dev->name);
}

static int token_make(Server *s, Error *e) {
    unsigned char random[TOKEN_BYTES];
    if (!random_bytes(random, sizeof random)) return error_set(e, "/dev/urandom: %s", strerror(errno));
    for (int i = 0; i < TOKEN_BYTES; i++) snprintf(s->token + 2 * i, 3, "%02x", random[i]);
    return 1;
}
static void print_link(const Server *s) {
    char host[256] = "";
    const char *name = s->w->address;
    const int any = !strcmp(name, "0.0.0.0") || !strcmp(name, "::");
    if (any && !gethostname(host, sizeof host - 1)) name = host;
    text_print(stdout, strchr(name, ':') ? "http://[%s]:%d/%s%s\n" : "http://%s:%d/%s%s\n", name,
               net_port(s->listener[0]), *s->token ? "#" : "", s->token);
    if (fflush(stdout) && *s->token) fail(EXIT_DISK, "cannot write the link: %s", strerror(errno));
    clearerr(stdout);                                       /* without a token, everyone here can do without the link */
    if (*s->token && s->w->verbose)
        fprintf(stderr, "anyone who has this link can use the model; the connection is not encrypted\n");
}
int web_serve(const Web *w, Error *e) {
    Server *s = mem_alloc(sizeof *s);
    s->w = w;
    s->vocab = config_ids(&w->g->d.model.config);
    s->ends = w->g->end_tokens;
    int ok = net_is_loopback(w->address) || token_make(s, e);
    if (ok) ok = s->listeners = net_listen(w->address, w->port, 0, s->listener, e);
    if (ok) {
        slot_open(s, w->g);
        second_open(s);
        page_write(s);
        model_write(s);
        print_link(s);
        server_run(s);
        for (int i = 0; i < s->listeners; i++) close(s->listener[i]);
        for (int i = 0; i < s->slots; i++) free(s->slot[i].stop);
        if (s->slots > 1) generator_close(&s->second);
    }
    free(s->page.at);
    free(s->policy.at);
    free(s->model.at);
    free(s);
    return ok;
}
