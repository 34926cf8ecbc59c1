/* web.c: see web.h. */
#define _POSIX_C_SOURCE 200809L
#include "web.h"
#include "http.h"
#include "llmc/base/sha256.h"
#include "llmc/ranks/net.h"
#include "llmc/ranks/secret.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

extern const char *const web_page[];                    /* lines of llmc/run/web/, made by the Makefile */

enum { CLIENTS = 64, QUEUE = 16, SLOTS = 2, PENDING = 1 << 18, TOKEN_BYTES = 16,
       READ = 1 << 16,                  /* bytes at a time of one */
       MANY = 8,                        /* up to so many are waited for, also idle ones: browsers open some early */
       AT_ONCE = 16 };                  /* new connections between two looks at the others */
/* Seconds: a request arrives; a client takes no byte; a generation; one waits for its client, and
 * others for it; an answered client closes; between looks at the sockets while a prompt is read. */
static const double ARRIVE = 10, SILENT = 30, LONGEST = 600, BLOCKED = 10, LINGER = 1, GLANCE = 0.01;
/* A connection is idle after; between looks at idle ones; at all of them while texts are made. */
static const double IDLE = 0.1, SWEEP = 0.02, PACE = 0.001;

typedef struct Server Server;
typedef struct {
    Generator *g;
    Server *server;
    int     busy, running;              /* running: it computes; then sockets are looked at in between (slot_pause) */
    ApiJob *job, *orphan;               /* orphan: the job, once its client has gone while it computes */
    double  resumed;                    /* when it last began to compute */
} Slot;

typedef enum { CLOSED, READING, WAITING, GENERATING, SENDING, LINGERING } State;
typedef struct {
    int    fd;
    State  state;
    double came;
    double since;                   /* when it came; from SENDING on and while it generates: when it last took a byte */
    Text   in, out;
    size_t sent;                        /* bytes of out */
    /* of a generation */
    ApiJob *job;
    int64_t order;                      /* in which it came */
    int    published;                   /* the position in the queue that the client knows of */
    double start, blocked;              /* blocked: seconds for which it took less than was generated */
    Slot  *slot;
} Client;

struct Server {
    const Web *w;
    Api    api;
    int    listener[NET_LISTENERS], listeners, slots;
    Slot   slot[SLOTS];
    Generator second;
    Client client[CLIENTS];
    int64_t requests;
    char   token[2 * TOKEN_BYTES + 1];  /* "": none is needed */
    Text   page, policy, model, models;
    double looked, swept, rest;         /* when sockets, and idle ones, were last looked at; nobody is accepted until */
};

/* ---- answers --------------------------------------------------------------------------------- */

static void client_close(Client *c) {
    if (c->slot && c->slot->running) { c->slot->orphan = c->job; c->job = NULL; }
    else if (c->slot) c->slot->busy = 0;
    close(c->fd);
    free_each(c->in.at, c->out.at);
    api_close(c->job);
    *c = (Client){ .state = CLOSED };
}
static void answer(Client *c, int status, const char *type, const Text *body, const char *more) {
    http_answer(&c->out, status, type, (long)body->length, more);
    text_add_bytes(&c->out, body->at, body->length);
    c->state = SENDING;
    c->since = now();
}
static void refuse_with(Client *c, const ApiError *e) {
    Text body = { 0 };
    api_error(e, &body);
    answer(c, e->status, "application/json", &body, e->status == 405 ? "Allow: GET, POST\r\n" : "");
    free(body.at);
}
static void refuse(Client *c, int status, const char *why) {
    ApiError e = { .status = status, .type = status < 500 ? "invalid_request_error" : "server_error",
                   .code = status == 401 ? "invalid_api_key" : NULL };
    error_set(&e.e, "%s", why);
    refuse_with(c, &e);
}
static void send_chunk(Client *c, Text *events) {
    if (events->length) http_chunk(&c->out, events->at, events->length);
    free(events->at);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A generation waits from now on. */
static void generation_queue(Server *s, Client *c, const HttpRequest *r, int is_chat) {
    ApiError e = { .status = 400 };
    int waiting = 0;
    for (const Client *o = s->client; o < s->client + CLIENTS; o++) waiting += o->state == WAITING;
    if (waiting == QUEUE) { refuse(c, 503, "too many wait already: try again later"); return; }
    if (!(c->job = api_open(&s->api, is_chat, c->in.at + r->head, r->body, &e))) { refuse_with(c, &e); return; }
    c->order = s->requests++;
    c->published = -1;
    c->state = WAITING;
    c->since = now();
    if (c->job->q.stream) http_answer(&c->out, 200, "text/event-stream", -1, "");
}

/* localhost, 127.0.0.1:8080, [::1]:8080: of a loopback address, perhaps with a port */
static int names_loopback(HttpText host) {
    char name[64];
    if (host.bytes >= sizeof name) return 0;
    memcpy(name, host.at, host.bytes);
    name[host.bytes] = 0;
    char *end = *name == '[' ? strchr(name, ']') : name + strcspn(name, ":");
    const char *rest = end && *end == ']' ? end + 1 : end;
    if (!rest || (*rest && *rest != ':') || (*rest && rest[1 + strspn(rest + 1, "0123456789")])) return 0;
    *end = 0;
    return *name == '[' ? strchr(name, ':') && net_is_loopback(name + 1) : net_is_loopback(name);
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
/* /v1/models/NAME */
static int names_model(const Server *s, HttpText path) {
    const size_t n = strlen("/v1/models/"), m = strlen(s->api.name);
    return path.bytes == n + m && !memcmp(path.at, "/v1/models/", n) && !memcmp(path.at + n, s->api.name, m);
}
static void refuse_model(const Server *s, Client *c) {
    ApiError e = { .status = 404, .type = "invalid_request_error", .param = "model", .code = "model_not_found" };
    error_set(&e.e, "there is no such model here; this server has %s", s->api.name);
    refuse_with(c, &e);
}
static void request_answer(Server *s, Client *c, const HttpRequest *r) {
    const int get = http_is(r->method, "GET"), post = http_is(r->method, "POST");
    const int is_models = http_is(r->path, "/v1/models"), is_completion = http_is(r->path, "/v1/completions"),
        is_chat = http_is(r->path, "/v1/chat/completions");
    if (!*s->token && !names_loopback(r->host))
        refuse(c, 421, "this server answers to the name of a loopback address only");
    else if (!is_same_origin(r)) refuse(c, 403, "a page of another origin may not use this server");
    else if (!get && !post) refuse(c, 405, "only GET and POST are known");
    else if (get && http_is(r->path, "/")) answer(c, 200, "text/html; charset=utf-8", &s->page, s->policy.at);
    else if (!shows_token(s, r->authorization))
        refuse(c, 401, "the key is missing or wrong: it is the end of the link that infer_moe printed");
    else if (r->site.at && !http_is(r->site, "same-origin") && !http_is(r->site, "none"))
        refuse(c, 403, "a page of another site may not use this server");
    else if (is_completion || is_chat) {
        if (!post) refuse(c, 405, "expected POST");
        else if (!http_is_type(r->type, "application/json"))
            refuse(c, 415, "expected the header Content-Type: application/json");
        else generation_queue(s, c, r, is_chat);
    } else if (http_is(r->path, "/") || is_models || names_model(s, r->path)) {
        if (!get) refuse(c, 405, "expected GET");
        else answer(c, 200, "application/json", is_models ? &s->models : &s->model, "");
    } else if (r->path.bytes > 11 && !memcmp(r->path.at, "/v1/models/", 11)) refuse_model(s, c);
    else refuse(c, 404, "there is nothing here; the calls are /v1/models, /v1/completions and /v1/chat/completions");
}
/* Of a client whose request is complete, bytes are read to see whether it is still there. */
static void client_read(Server *s, Client *c) {
    char part[READ];
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
        api_queued(c->job, c->published = position, &event);
        send_chunk(c, &event);
    }
}

static void generation_begin(Slot *slot, Client *c) {
    slot->busy = 1;
    slot->job = c->job;
    c->slot = slot;
    c->state = GENERATING;
    c->start = now();
}
static void generations_begin(Server *s) {
    for (int i = 0; i < s->slots; i++) {
        Client *first = NULL;
        for (Client *c = s->client; c < s->client + CLIENTS; c++)
            if (c->state == WAITING && (!first || c->order < first->order)) first = c;
        if (first && !s->slot[i].busy) generation_begin(&s->slot[i], first);
    }
}

static void generation_slice(const Server *s, Client *c, int expired) {
    Text out = { 0 };
    Slot *slot = c->slot;
    const int stream = c->job->q.stream;
    slot->running = 1;
    slot->resumed = now();
    const int ended = api_step(c->job, slot->g, expired || now() - c->start > LONGEST, &out);
    slot->running = 0;
    if (slot->orphan) {                                     /* c is nobody, or another, by now */
        api_close(slot->orphan);
        slot->orphan = NULL;
        slot->busy = 0;
        free(out.at);
        return;
    }
    if (ended) {
        if (s->w->verbose) generator_report(slot->g, stderr);
        slot->busy = 0;
        c->slot = NULL;
        c->state = SENDING;
        api_close(c->job);
        c->job = NULL;
    }
    if (stream) send_chunk(c, &out);
    if (stream && ended) http_chunk(&c->out, "", 0);
    if (!stream && ended) answer(c, 200, "application/json", &out, "");
    if (!stream) free(out.at);
    client_write(c);
}

/* ---- the server ------------------------------------------------------------------------------ */

static int can_go_on(const Client *c) { return c->state == GENERATING && c->out.length - c->sent < PENDING; }

/* Closes the oldest connection without a complete request, or, if most are being answered, the
 * oldest of those: honest clients take moments for it. NULL: there is none. */
static Client *give_way(Server *s) {
    Client *oldest = NULL;
    int sending = 0;
    for (const Client *c = s->client; c < s->client + CLIENTS; c++) sending += c->state == SENDING;
    for (Client *c = s->client; c < s->client + CLIENTS; c++)
        if ((sending > CLIENTS / 2 ? c->state == SENDING : c->state == READING || c->state == LINGERING)
            && (!oldest || c->came < oldest->came)) oldest = c;
    if (oldest) client_close(oldest);
    return oldest;
}
/* What has come with a connection is read at once: it may have to give way soon. */
static void server_accept(Server *s, int listener) {
    for (int n = 0, fd; n < AT_ONCE; n++) {
        Client *c = s->client;
        if ((fd = net_accept(listener)) < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK && !give_way(s)) s->rest = now() + 0.1;
            return;
        }
        while (c < s->client + CLIENTS && c->state != CLOSED) c++;
        if (c == s->client + CLIENTS && !(c = give_way(s))) { close(fd); return; }
        *c = (Client){ .fd = fd, .state = READING, .came = now(), .since = now() };
        client_read(s, c);
        if (c->state == SENDING) client_write(c);
    }
}
/* A text whose client takes it slower than it is made ends early while others wait for a cache. */
static void client_check_pace(const Server *s, Client *c, double seconds) {
    int waiting = 0;
    if (c->state != GENERATING || can_go_on(c)) return;
    c->blocked += seconds;
    for (const Client *o = s->client; o < s->client + CLIENTS; o++) waiting += o->state == WAITING;
    if (waiting && c->blocked > BLOCKED) generation_slice(s, c, 1);
}
/* Without a complete request, or with an answer that it does not take. To wait for many of them
 * costs more than a request, so they are looked at now and then. */
static int is_idle(const Client *c) {
    return (c->state == READING || c->state >= SENDING) && now() - c->since > IDLE;
}
/* Waits for sockets, unless there is something to generate. */
static void server_poll(Server *s) {
    struct pollfd p[NET_LISTENERS + CLIENTS];
    Client *of[CLIENTS];
    int n = 0, clients = 0, busy = 0, idle = 0, open = 0;
    const int sweep = now() - s->swept >= SWEEP;
    for (const Client *c = s->client; c < s->client + CLIENTS; c++) {
        busy |= can_go_on(c);
        idle |= is_idle(c);
        open += c->state != CLOSED;
    }
    idle &= open > MANY;
    if (busy && now() - s->looked < PACE) return;
    if (sweep) s->swept = now();
    for (Client *c = s->client; c < s->client + CLIENTS; c++) {
        if (c->state == CLOSED || (idle && !sweep && is_idle(c))) continue;
        p[clients].fd = c->fd;
        p[clients].events = (short)((c->state != SENDING ? POLLIN : 0) | (c->sent < c->out.length ? POLLOUT : 0));
        of[clients++] = c;
    }
    n = clients;
    for (int i = 0; i < s->listeners && now() >= s->rest; i++)
        p[n++] = (struct pollfd){ .fd = s->listener[i], .events = POLLIN };
    const int wait = busy || (idle && sweep) ? 0 : idle ? (int)(SWEEP * 1e3) : clients ? 200 : 1000;
    const int ready = poll(p, (nfds_t)n, wait);
    const double before = s->looked;
    s->looked = now();
    if (ready < 0) return;
    for (int i = 0; i < clients; i++) {
        Client *c = of[i];
        if (p[i].revents & POLLNVAL) client_close(c);
        else if (c->state == SENDING && p[i].revents & (POLLERR | POLLHUP)) client_close(c);
        else if (p[i].revents & (POLLIN | POLLERR | POLLHUP)) client_read(s, c);
        /* also if poll does not say so: it waits until a third of the system's buffer is free */
        if ((p[i].revents || sweep) && c->state != CLOSED && c->sent < c->out.length) client_write(c);
        if (c->state != CLOSED) client_check_time(c);
        client_check_pace(s, c, s->looked - before);
    }
    for (int i = clients; i < n; i++) if (p[i].revents) server_accept(s, p[i].fd);
}
/* Computes a little for each text but that of `me`, unless it has a longer prompt still to be read;
 * for how many. */
static int others_go_on(Server *s, const Slot *me) {
    int others = 0;
    for (Client *c = s->client; c < s->client + CLIENTS; c++)
        if (can_go_on(c) && !c->slot->running
            && (!api_unread(c->job) || api_unread(c->job) < api_unread(me->job))) {
            generation_slice(s, c, 0);
            others++;
        }
    return others;
}
/* A Model's pause. While one prompt is read, sockets are served, and the other text is generated
 * for as long as the last piece of the prompt took. A prompt whose client has gone is given up. */
static int slot_pause(void *slot) {
    Slot *me = slot;
    Server *s = me->server;
    me->g->dev->sync();
    const double start = now(), piece = start - me->resumed;
    if (start - s->looked >= GLANCE) {
        do {
            server_poll(s);
            generations_begin(s);
            queue_publish(s);
        } while (!me->orphan && others_go_on(s, me) && now() - start < piece);
        me->resumed = now();
    }
    return !me->orphan && !*me->g->interrupted;
}
static void server_run(Server *s) {
    while (!*s->w->g->interrupted) {
        server_poll(s);
        generations_begin(s);
        queue_publish(s);
        for (Client *c = s->client; c < s->client + CLIENTS; c++) if (can_go_on(c)) generation_slice(s, c, 0);
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

static void model_write(Server *s) {
    api_model(&s->api, s->slot[0].g, &s->model);
    text_add_string(&s->models, "{\"object\": \"list\", \"data\": [");
    text_add_bytes(&s->models, s->model.at, s->model.length);
    text_add_string(&s->models, "]}\n");
    text_add_string(&s->model, "\n");
}

/* ---- start and end --------------------------------------------------------------------------- */

static void slot_open(Server *s, Generator *g) {
    Slot *slot = &s->slot[s->slots++];
    *slot = (Slot){ .g = g, .server = s };
    g->d.model.pause = slot_pause;
    g->d.model.pause_with = slot;
    view_open(&g->view, g->dev, &g->d.model, VIEW_ALL);
    g->silent = 1;
}
/* A second generation at a time, if there is memory for its cache. */
static void second_open(Server *s) {
    Generator *first = s->w->g, *g = &s->second;
    *g = (Generator){ .dev = first->dev, .end_tokens = first->end_tokens, .sequences = 1,
                      .interrupted = first->interrupted, .weights_of = &first->d.model };
    memcpy(g->end_token, first->end_token, sizeof g->end_token);
    if (generator_open(g, &first->d.model.config, first->capacity, first->stream[0].style)) slot_open(s, g);
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
static void api_set(Server *s) {
    const Generator *g = s->slot[0].g;
    s->api = s->w->api;
    s->api.vocab = config_ids(&g->d.model.config);
    s->api.capacity = g->capacity;
    s->api.width = g->view.width;
    s->api.ends = g->end_tokens;
    memcpy(s->api.end, g->end_token, sizeof s->api.end);
    s->api.created = (int64_t)time(NULL);
    s->api.device = g->dev->name;
}
int web_serve(const Web *w, Error *e) {
    Server *s = mem_alloc(sizeof *s);
    s->w = w;
    int ok = net_is_loopback(w->address) || token_make(s, e);
    if (ok) ok = s->listeners = net_listen(w->address, w->port, 0, s->listener, e);
    if (ok) {
        slot_open(s, w->g);
        second_open(s);
        api_set(s);
        page_write(s);
        model_write(s);
        print_link(s);
        server_run(s);
        for (int i = 0; i < s->listeners; i++) close(s->listener[i]);
        if (s->slots > 1) generator_close(&s->second);
    }
    free_each(s->page.at, s->policy.at, s->model.at, s->models.at, s);
    return ok;
}
