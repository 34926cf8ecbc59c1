/* chat.c: see chat.h. */
#define _POSIX_C_SOURCE 200809L
#include "chat.h"
#include <stdlib.h>
#include <string.h>

extern const char *const templates_txt[];       /* lines of templates.txt, made by the Makefile */

/* ---- which template -------------------------------------------------------------------------- */

/* The text of a template of templates.txt: the lines after "==== NAME". NULL: there is none. */
static char *named_text(const char *name) {
    static const char begins[] = "==== ";
    const size_t n = strlen(begins), length = strlen(name);
    Text text = { 0 };
    int inside = 0;
    for (const char *const *line = templates_txt; *line; line++) {
        if (strncmp(*line, begins, n)) { if (inside) text_add_string(&text, *line); continue; }
        inside = !strncmp(*line + n, name, length) && (*line)[n + length] == '\n';
    }
    return text.at;
}
static int is_named_text(const char *text) {
    static const char names[] = CHAT_NAMES;
    char name[32];
    for (const char *at = names; *at; at += strspn(at, ", ")) {
        const size_t n = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        char *one = named_text(name);
        const int same = one && !strcmp(one, text);
        free(one);
        if (same) return 1;
        at += n;
    }
    return 0;
}

/* What is read of a folder. complete 0 and e: a file of it is damaged. */
typedef struct { const char *folder; int complete; Error e; } Beside;

static char *read_small(Beside *s, const char *name) {
    size_t bytes;
    char *path = text_format("%s/%s", s->folder, name), *text = NULL;
    if (is_there(path) && !(text = file_read(path, &bytes, &s->e))) s->complete = 0;
    free(path);
    return text;
}
static Json *read_json(Beside *s, const char *name) { return json_read_beside(s->folder, name, &s->complete, &s->e); }
/* A template, or that of this name in a list of them. */
static const char *in_list(const JsonValue *v, const char *name) {
    if (!json_is(v, JSON_ARRAY)) return strcmp(name, "default") ? NULL : json_string(v, NULL);
    for (const JsonValue *one = json_first(v); one; one = one->next)
        if (!strcmp(json_string(json_get(one, "name"), ""), name)) return json_string(json_get(one, "template"), NULL);
    return NULL;
}
/* The template of a folder, as Transformers looks for it. name: "default", or "tool_use". */
static char *find_text(Beside *s, const JsonValue *config, const char *name) {
    const int is_default = !strcmp(name, "default");
    char *path = text_format("additional_chat_templates/%s.jinja", name);
    char *text = read_small(s, is_default ? "chat_template.jinja" : path);
    Json *json = text || !is_default ? NULL : read_json(s, "chat_template.json");
    if (json && json_string(json_get(json_root(json), "chat_template"), NULL))
        text = text_format("%s", json_string(json_get(json_root(json), "chat_template"), ""));
    const char *listed = in_list(json_get(config, "chat_template"), name);
    if (!text && listed) text = text_format("%s", listed);
    json_free(json);
    free(path);
    return text;
}
/* Programs are read; c->why: there are none, or they cannot be used. */
static void use_texts(Chat *c, const char *from, char *text, char *tools) {
    Error e;
    c->text = text;
    c->form = text ? jinja_open(text, strlen(text), &e) : NULL;
    if (c->form && tools && !(c->with_tools = jinja_open(tools, strlen(tools), &e))) {
        jinja_close(c->form);
        c->form = NULL;
    }
    c->unknown = text && !c->form;
    if (!text) c->why = text_format("%s has no chat template", from);
    else if (!c->form) c->why = text_format("%s: %s", from, e.text);
    c->tools = tools;
}
/* The templates of a folder; none of them if a file that may name one is damaged. */
static void use_folder(Chat *c, Beside *s, const JsonValue *config) {
    char *text = find_text(s, config, "default"), *tools = find_text(s, config, "tool_use");
    if (s->complete) { use_texts(c, s->folder, text, tools); return; }
    c->unknown = 1;
    c->why = text_format("%s", s->e.text);
    free_each(text, tools);
}
/* What -ct names. 0: nothing. */
static int use_name(Chat *c, const char *name, Error *e) {
    size_t bytes;
    char *text = named_text(name);
    if (text) use_texts(c, name, text, NULL);
    else if (is_folder(name)) {
        Beside s = { .folder = name, .complete = 1 };
        Json *json = read_json(&s, "tokenizer_config.json");
        use_folder(c, &s, json ? json_root(json) : NULL);
        json_free(json);
    } else if (is_there(name)) {
        if (!(text = file_read(name, &bytes, e))) return 0;
        use_texts(c, name, text, NULL);
    } else return error_set(e, "-ct %s: no chat template, file or folder has this name; known are %s", name,
                            CHAT_NAMES);
    return c->form != NULL || error_set(e, "-ct %.900s", c->why);
}

/* ---- variables ------------------------------------------------------------------------------- */

static void read_tokens(Chat *c, Beside *s) {
    c->memory = json_empty();
    c->config = s->folder ? read_json(s, "tokenizer_config.json") : NULL;
    c->map = s->folder ? read_json(s, "special_tokens_map.json") : NULL;
    c->tokens = tokenizer_specials(c->memory, c->config ? json_root(c->config) : NULL,
                                   c->map ? json_root(c->map) : NULL);
}
static struct tm date_of(const Chat *c) {
    struct tm date = { .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_wday = 5, .tm_yday = 207 };
    const time_t clock = time(NULL);
    if (c->today) localtime_r(&clock, &date);
    return date;
}
static int has_key(const Chat *c, const char *key) {
    return jinja_has_key(c->form, key) || (c->with_tools && jinja_has_key(c->with_tools, key));
}
/* The text, and the origin of each byte (jinja.h). */
static int render(const Chat *c, const JsonValue *talk, int prompt, Text *text, Text *origins, Error *e) {
    enum { MOST = 64 };
    static const JsonValue none = { .type = JSON_NULL }, truth[2] = { { .type = JSON_BOOL },
                                                                       { .type = JSON_BOOL, .is.integer = 1 } };
    const JsonValue *tools = json_get(talk, "tools"), *documents = json_get(talk, "documents"),
        *more[] = { c->tokens, json_get(talk, "chat_template_kwargs") };
    JinjaVariable v[MOST] = { { "messages", json_get(talk, "messages"), VARIABLE_MESSAGES },
                              { "tools", tools ? tools : &none, VARIABLE_GIVEN },
                              { "documents", documents ? documents : &none, VARIABLE_GIVEN },
                              { "add_generation_prompt", &truth[prompt != 0], VARIABLE_OWN } };
    const struct tm date = date_of(c);
    const int has_tools = json_is(tools, JSON_ARRAY) && tools->length;
    int n = 4;
    for (int i = 0; i < 2; i++)
        for (const JsonValue *x = json_first(more[i]); x && n < MOST; x = x->next)
            v[n++] = (JinjaVariable){ x->key, x, i ? VARIABLE_GIVEN : VARIABLE_OWN };
    if (n == MOST) return error_set(e, "chat_template_kwargs has too many members");
    if (jinja_run(has_tools && c->with_tools ? c->with_tools : c->form, v, n, &date, text, origins, e)) return 1;
    const Error why = *e;
    for (const JsonValue *m = json_first(json_get(talk, "messages")); m; m = m->next) {
        const char *role = json_string(json_get(m, "role"), "");
        if (strcmp(role, "user") && strcmp(role, "assistant") && !has_key(c, role))
            return error_set(e, "%.700s; the template has no role \"%.40s\": write another (for \"developer\" "
                             "\"system\"), or choose another template (-ct)", why.text, role);
    }
    if (strstr(e->text, "eos_token' is undefined"))
        return error_set(e, "the chat template ends answers with the eos_token of tokenizer_config.json, which is not "
                         "there; chatml (-ct) needs none");
    return 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

static const char *role_of(const JsonValue *message) { return json_string(json_get(message, "role"), ""); }
static double weight_of(const JsonValue *message) {
    const JsonValue *v = json_get(message, "weight");
    return !v || json_is(v, JSON_NULL) ? 1 : json_is(v, JSON_BOOL) ? json_bool(v, 0) : json_double(v, -1);
}
static int is_empty(const JsonValue *v) {
    return json_is_empty(v) || (json_is(v, JSON_BOOL) && !v->is.integer);
}
static int reads(const Chat *c, const char *name) {
    return jinja_reads(c->form, name) || (c->with_tools && jinja_reads(c->with_tools, name));
}
/* Keys without which the same is meant. What answers a call follows it, and need not be named. */
static int is_harmless(const char *key, const char *role) {
    static const char *const keys[] = { "role", "content", "weight", "tool_call_id" };
    return text_is_among(key, keys) || (!strcmp(key, "name") && !strcmp(role, "tool"));
}
static int check_message(const Chat *c, const JsonValue *v, size_t number, Error *e) {
    const double weight = weight_of(v);
    const JsonValue *content = json_get(v, "content"), *role = json_get(v, "role");
    int others = 0;
    if (!json_is(v, JSON_OBJECT)) return error_set(e, "message %zu is no object", number);
    if (!json_string(role, NULL)) return error_set(e, "message %zu has no \"role\"", number);
    if (weight != 0 && weight != 1)
        return error_set(e, "message %zu has a \"weight\" that is neither 0 nor 1", number);
    for (const JsonValue *x = json_first(v); x; x = x->next) {
        if (is_harmless(x->key, json_string(role, "")) || is_empty(x)) continue;
        if (!has_key(c, x->key)) {              /* "reasoning" is what vLLM and OpenRouter call it */
            const int thought = !strncmp(x->key, "reasoning", 9) || !strcmp(x->key, "thinking");
            return error_set(e, "message %zu has \"%.60s\", which the chat template %s does not read: another template "
                             "(-ct) may, or write it as \"%s\"", number, x->key, c->name,
                             thought && has_key(c, "reasoning_content") ? "reasoning_content"
                             : thought && has_key(c, "thinking") ? "thinking" : "content");
        }
        others++;
    }
    return (content && !json_is(content, JSON_NULL)) || others
        || error_set(e, "message %zu has no \"content\"", number);
}
/* [{"type": "text", "text": ...}], for a template that takes nothing else. */
static JsonValue *part_of(Json *memory, const JsonValue *content) {
    JsonValue *list = json_make(memory, JSON_ARRAY), *part = json_append(list, NULL, json_make(memory, JSON_OBJECT));
    json_append(part, "type", json_make_string(memory, "text", 4));
    json_append(part, "text", json_copy(memory, content));
    return list;
}
/* What the template gets: talk, or, with contents as parts, another one in memory. */
static const JsonValue *prepare(const Chat *c, Json *memory, const JsonValue *talk) {
    if (!c->takes_parts) return talk;
    JsonValue *own = json_make(memory, JSON_OBJECT), *messages = json_make(memory, JSON_ARRAY);
    for (const JsonValue *v = json_first(json_get(talk, "messages")); v; v = v->next) {
        JsonValue *m = json_append(messages, NULL, json_make(memory, JSON_OBJECT));
        for (const JsonValue *x = json_first(v); x; x = x->next)
            json_append(m, x->key, !strcmp(x->key, "content") && json_is(x, JSON_STRING) ? part_of(memory, x)
                                                                                        : json_copy(memory, x));
    }
    for (const JsonValue *x = json_first(talk); x; x = x->next)
        json_append(own, x->key, strcmp(x->key, "messages") ? json_copy(memory, x) : messages);
    return own;
}
static int check_talk(const Chat *c, const JsonValue *talk, Error *e) {
    static const char *const others[] = { "tools", "documents" },
        *const own[] = { "add_generation_prompt", "messages", "tools", "documents" };
    const JsonValue *list = json_get(talk, "messages");
    size_t number = 0;
    if (!json_is(list, JSON_ARRAY)) return error_set(e, "its messages are no list");
    if (!list->length) return error_set(e, "its list of messages is empty");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!is_empty(json_get(talk, others[i])) && !reads(c, others[i]))
            return error_set(e, "it has \"%s\", which the chat template %s does not read: another template (-ct) may, "
                             "or write them into the message of the system", others[i], c->name);
    for (const JsonValue *v = json_first(json_get(talk, "chat_template_kwargs")); v; v = v->next) {
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            if (!strcmp(v->key, own[i]))
                return error_set(e, "its chat_template_kwargs have \"%s\", which is %s", own[i],
                                 i ? "a key of its own" : "set where an answer begins");
        if (!is_empty(v) && !reads(c, v->key))
            return error_set(e, "its chat_template_kwargs have \"%.60s\", which the chat template %s does not read: "
                             "another template (-ct) may, or remove it", v->key, c->name);
    }
    for (const JsonValue *v = json_first(list); v; v = v->next) if (!check_message(c, v, ++number, e)) return 0;
    return 1;
}

/* ---- what is learned ------------------------------------------------------------------------- */

typedef struct { size_t from, to, first, last; } Extent;        /* what an iteration wrote, and the fields in it */
typedef struct {
    const Chat *c;
    const char *text;
    const uint32_t *origins;
    size_t bytes, messages;
    Extent *extent;                     /* of each message; from == SIZE_MAX: nothing was written */
    size_t before;                      /* what is learned next begins here or later */
    Text  *learned;
} Finder;

/* Where what a message wrote begins and ends: until something is of another message. */
static void find_extents(Finder *f) {
    for (size_t i = 0; i < f->messages; i++) f->extent[i] = (Extent){ SIZE_MAX, 0, SIZE_MAX, 0 };
    for (size_t at = 0; at < f->bytes; ) {
        const uint32_t number = f->origins[at] >> ORIGIN_SHIFT;
        Extent *x = number ? &f->extent[number - 1] : NULL;
        if (!x || x->from != SIZE_MAX) { at++; continue; }
        for (x->from = at; at < f->bytes; at++) {
            const uint32_t other = f->origins[at] >> ORIGIN_SHIFT, field = f->origins[at] & ORIGIN_FIELD;
            if (other != number && !field) break;
            if (other != number || !field) { if (other == number) x->to = at + 1; continue; }
            if (x->first == SIZE_MAX) x->first = at;
            x->to = x->last = at + 1;
        }
        at = x->to;
    }
}
static size_t trimmed(const Finder *f, size_t from, size_t to) {
    while (to > from && text_is_white(f->text[to - 1])) to--;
    return to;
}
/* How much of the generation prompt is at `at`. */
static size_t same_prompt(const Finder *f, size_t at) {
    size_t n = 0;
    while (f->c->prompt[n] && at + n < f->bytes && f->text[at + n] == f->c->prompt[n]) n++;
    return n;
}
/* Where an answer begins: after the generation prompt; if only a part of it is there, after that;
 * if there is none, with the message, but for what stands around its content. */
static size_t begin_of(const Finder *f, const Extent *x) {
    enum { PART = 4 };
    const size_t all = strlen(f->c->prompt), most = x->first == SIZE_MAX ? x->to : x->first;
    size_t best = 0, at = x->from;
    for (size_t i = x->from; all && i <= most; i++) if (same_prompt(f, i) == all) return i + all;
    for (size_t i = x->from; all && i-- > f->before; ) if (same_prompt(f, i) == all) return i + all;
    for (size_t i = x->from; all && i <= most; i++)
        if (same_prompt(f, i) > best) best = same_prompt(f, at = i);
    /* a part ends where the content begins, or with one of its marks: <tool_call> is not cut after
     * <t */
    while (best && at + best != x->first && !strchr("\n >]:", f->text[at + best - 1])) best--;
    if (best >= PART) return at + best;
    return x->first != SIZE_MAX && !text_is_blank(f->text + x->from, x->first - x->from) ? x->first : x->from;
}
/* After the mark of the next role that begins at or after `at`: up to a line end, or a field. */
static size_t end_of_mark(const Finder *f, size_t at) {
    const size_t from = at;
    while (at < f->bytes && !(f->origins[at] & ORIGIN_FIELD) && text_is_white(f->text[at])) at++;
    while (at < f->bytes && !(f->origins[at] & ORIGIN_FIELD) && f->text[at] != '\n') at++;
    return trimmed(f, from, at);
}
static size_t end_of(const Finder *f, const Extent *x, size_t begin) {
    const size_t said = x->last > begin ? x->last : begin, after = x->to > said ? x->to : said;
    const size_t end = *f->c->mark ? said : trimmed(f, said, after), mark = end > said ? end : end_of_mark(f, after);
    return mark > said ? mark : f->bytes;       /* there is none: chat_encode adds it */
}
static void add_learned(Finder *f, size_t from, size_t to) {
    const size_t both[] = { from, to };
    if (to > from) text_add_bytes(f->learned, both, sizeof both);
    if (to > f->before) f->before = to;
}
/* By {% generation %}, in answers of weight 1 (weights: of each message). */
static void find_marked(Finder *f, const char *weights) {
    for (size_t at = 0, from; at < f->bytes; at++) {
        for (from = at; at < f->bytes && f->origins[at] & ORIGIN_GENERATION; ) at++;
        const size_t number = at > from ? f->origins[from] >> ORIGIN_SHIFT : 0;
        if (at > from && (!number || weights[number - 1])) add_learned(f, from, at);
    }
}
static int find_answers(Finder *f, const JsonValue *list, const char *weights, Error *e) {
    size_t i = 0;
    for (const JsonValue *m = json_first(list); m; m = m->next, i++) {
        const Extent *x = &f->extent[i];
        if (strcmp(role_of(m), "assistant") || x->from == SIZE_MAX) continue;
        const size_t begin = begin_of(f, x), from = begin > f->before ? begin : f->before, to = end_of(f, x, from);
        for (size_t at = from; at < to && weights[i]; at++)
            if (f->origins[at] & ORIGIN_FIELD && f->origins[at] >> ORIGIN_SHIFT != i + 1)
                return error_set(e, "the chat template writes a part of message %u into the answer of message %zu, "
                                 "so what is learned is not known; {%% generation %%} in the template would say it",
                                 (unsigned)(f->origins[at] >> ORIGIN_SHIFT), i + 1);
        if (weights[i]) add_learned(f, from, to);
        else if (to > f->before) f->before = to;
    }
    return 1;
}
/* A message with content of which nothing was written is lost. */
static int check_written(const Finder *f, const JsonValue *list, Error *e) {
    char *seen = mem_alloc(f->messages + 1);
    size_t i = 0;
    int ok = 1;
    for (size_t at = 0; at < f->bytes; at++)
        if (f->origins[at] & ORIGIN_FIELD) seen[f->origins[at] >> ORIGIN_SHIFT] = 1;
    for (const JsonValue *m = json_first(list); m && ok; m = m->next) {
        i++;
        const JsonValue *v = json_get(m, "content");
        const int says = json_is(v, JSON_STRING) ? !text_is_blank(v->is.string, v->length) : json_is(v, JSON_ARRAY)
            && v->length;
        if (says && !seen[i])
            ok = error_set(e, "the chat template %s writes nothing of message %zu, of the role %.40s: give the message "
                           "a role that the template knows, or choose another template (-ct)", f->c->name, i,
                           role_of(m));
    }
    free(seen);
    return ok;
}
/* given: NULL, or 1 for each byte that is of the conversation. */
static int write_talk(const Chat *c, const JsonValue *talk, int prompt, Text *text, Text *learned, Text *given,
                      Error *e) {
    const JsonValue *list = json_get(talk, "messages");
    Text origins = { 0 };
    text_add_bytes(text, "", 0);
    const int rendered = render(c, talk, prompt, text, &origins, e);
    Finder f = { .c = c, .text = text->at, .origins = (const uint32_t *)(const void *)origins.at, .bytes = text->length,
                 .messages = list->length, .learned = learned };
    int ok = rendered && check_written(&f, list, e);
    if (ok && learned) {
        char *weights = mem_alloc(f.messages + 1);
        size_t i = 0;
        for (const JsonValue *m = json_first(list); m; m = m->next) weights[i++] = weight_of(m) != 0;
        f.extent = mem_alloc((f.messages + 1) * sizeof *f.extent);
        find_extents(&f);
        if (jinja_has_generation(c->form)) find_marked(&f, weights);
        else ok = find_answers(&f, list, weights, e);
        free_each(f.extent, weights);
    }
    if (given) text_add_bytes(given, f.text, f.bytes);
    for (size_t at = 0; given && at < f.bytes; at++) given->at[at] = (f.origins[at] & ORIGIN_GIVEN) != 0;
    free(origins.at);
    return ok;
}
static int write_checked(const Chat *c, const JsonValue *talk, int prompt, Text *text, Text *learned, Text *given,
                         Error *e) {
    if (!c->form) return error_set(e, "%.600s; -ct NAME chooses one of %s", c->why, CHAT_NAMES);
    if (!check_talk(c, talk, e)) return 0;
    Json *memory = c->takes_parts ? json_empty() : NULL;
    const int ok = write_talk(c, prepare(c, memory, talk), prompt, text, learned, given, e);
    json_free(memory);
    return ok;
}
int chat_write(const Chat *c, const JsonValue *talk, int prompt, Text *text, Text *learned, Error *e) {
    return write_checked(c, talk, prompt, text, learned, NULL, e);
}

/* ---- the prompt and the end ------------------------------------------------------------------ */

/* A short conversation of these messages, "user, assistant, ...", is written. */
static int probe(const Chat *c, int messages, int prompt, Text *text, Text *origins) {
    static const char *const says[] = { "qxq", "zyz", "xqx" };
    Json *json = json_empty();
    JsonValue *talk = json_make(json, JSON_OBJECT), *list = json_append(talk, "messages", json_make(json, JSON_ARRAY));
    Error e;
    for (int i = 0; i < messages; i++) {
        JsonValue *m = json_append(list, NULL, json_make(json, JSON_OBJECT));
        json_append(m, "role", i == 1 ? json_make_string(json, "assistant", 9) : json_make_string(json, "user", 4));
        json_append(m, "content", json_make_string(json, says[i], 3));
    }
    text->length = origins->length = 0;
    text_add_bytes(text, "", 0);
    const int ok = render(c, prepare(c, json, talk), prompt, text, origins, &e);
    json_free(json);
    return ok;
}
/* What add_generation_prompt adds; what follows an answer; and if that is the mark of the next
 * role, it once more. */
static void find_marks(Chat *c) {
    Text text = { 0 }, origins = { 0 }, with = { 0 };
    c->takes_parts = !probe(c, 1, 1, &text, &origins) || !strstr(text.at, "qxq");
    c->takes_parts = c->takes_parts && probe(c, 1, 1, &text, &origins) && strstr(text.at, "qxq");
    const int plain = probe(c, 1, 0, &text, &origins);
    size_t same = 0;
    if (plain && probe(c, 1, 1, &with, &origins)) {
        const uint32_t *o = (const uint32_t *)(const void *)origins.at;
        while (same < text.length && text.at[same] == with.at[same]) same++;
        /* where something else ends the text without it, it begins after the message */
        while (same < text.length && same && !(o[same - 1] >> ORIGIN_SHIFT)) same--;
    }
    c->prompt = text_format("%s", plain && with.length > same ? with.at + same : "");
    c->end = text_format("%s", "");
    c->mark = text_format("%s", "");
    const int messages = probe(c, 3, 0, &text, &origins) ? 3 : probe(c, 2, 0, &text, &origins) ? 2 : 0;
    if (messages) {
        Extent extent[3];
        Finder f = { .c = c, .text = text.at, .origins = (const uint32_t *)(const void *)origins.at,
                    .bytes = text.length,
                     .messages = 3, .extent = extent };
        find_extents(&f);
        size_t from = extent[1].last, to = extent[1].from == SIZE_MAX ? 0 : end_of(&f, &extent[1], from);
        const int is_next = to > extent[1].to && messages == 3 && extent[2].from < to;
        if (is_next) { free(c->mark); c->mark = text_format("%.*s", (int)(to - from), text.at + from); }
        while (from < to && text_is_white(text.at[from])) from++;
        if (from < to) { free(c->end); c->end = text_format("%.*s", (int)(to - from), text.at + from); }
    }
    free_each(text.at, origins.at, with.at);
}

int chat_open(Chat *c, const char *name, const char *folder, Error *e) {
    Beside s = { .folder = folder, .complete = 1 };
    *c = (Chat){ 0 };
    read_tokens(c, &s);
    const JsonValue *config = c->config ? json_root(c->config) : NULL;
    int ok = 1;
    if (*name) ok = s.complete ? use_name(c, name, e) : error_set(e, "%s", s.e.text);
    else if (folder) use_folder(c, &s, config);
    else use_texts(c, "a model that is not from a folder", NULL, NULL);
    c->ours = !*name && c->form && is_named_text(c->text);
    char *named = *name ? named_text(name) : NULL;
    c->name = text_format("%s", !c->form ? "" : named ? name : "own");
    free(named);
    if (c->form) find_marks(c);
    if (!ok) chat_close(c);
    return ok;
}
void chat_close(Chat *c) {
    jinja_close(c->form);
    jinja_close(c->with_tools);
    json_free(c->config);
    json_free(c->map);
    json_free(c->memory);
    free_each(c->why, c->text, c->tools, c->name, c->prompt, c->end, c->mark);
    *c = (Chat){ 0 };
}
const char *chat_name(const Chat *c) { return c->form ? c->name : ""; }
const char *chat_end(const Chat *c) { return c->form ? c->end : ""; }
char *chat_jinja(const Chat *c) { return c->form ? text_format("%s", c->text) : NULL; }
uint64_t chat_hash(const Chat *c, uint64_t seed) {
    if (!c->form) return seed;
    uint64_t h = hash_bytes(seed, c->text, strlen(c->text));
    if (c->tools) h = hash_bytes(h, c->tools, strlen(c->tools));
    for (const JsonValue *v = json_first(c->tokens); v; v = v->next)
        h = hash_bytes(hash_bytes(h, v->key, strlen(v->key) + 1), v->is.string, v->length);
    return h;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* How many of the first tokens are those of the first `bytes` bytes of the text. The token in which
 * this prefix ends, if it ends within one, belongs to what follows, and *within is 1. *seam: the
 * last seam before the last call's bytes, which were not more; so a conversation whose turns have
 * added tokens takes linear time. */
static size_t tokens_before(const Tokenizer *t, const char *text, size_t bytes, const int *ids, size_t count,
                            const TokenSeam **seam, Controls controls, int *within) {
    int *more;
    *within = 0;
    if (tokenizer_is_bytes(t)) return bytes;                        /* every byte is a token */
    while (seam[0][1].bytes <= bytes) ++*seam;
    const size_t n = tokenizer_encode_part(t, text, (*seam)->bytes, bytes, &more, NULL, &controls);
    size_t same = 0, at = (*seam)->ids;
    while (same < n && at + same < count && more[same] == ids[at + same]) same++;
    free(more);
    *within = same < n;
    return at + same;
}
/* How many tokens there are up to the end of what is learned. A token that joins this end with
 * what follows ("|>" and a new line, in an own BPE) is learned, as in Transformers' mask; an answer
 * would have no end otherwise. */
static size_t tokens_until(const Tokenizer *t, const char *text, size_t bytes, size_t all, const int *ids, size_t count,
                           const TokenSeam **seam, Controls controls) {
    enum { MOST = 32 };                         /* bytes of such a token beyond the end */
    int within;
    if (bytes == all) return count;
    const size_t first = tokens_before(t, text, bytes, ids, count, seam, controls, &within);
    for (size_t more = 1; within && more <= MOST && bytes + more <= all; more++) {
        const TokenSeam *at = *seam;
        const size_t n = bytes + more == all ? count
            : tokens_before(t, text, bytes + more, ids, count, &at, controls, &within);
        if (!within || bytes + more == all) return n;
    }
    return first;
}

/* Does the last message end with the text, as an answer that is learned? */
static int ends_open(const Chat *c, const JsonValue *talk, const Text *text, const Text *learned) {
    const JsonValue *last = json_first(json_get(talk, "messages"));
    size_t end = 0;
    while (last && last->next) last = last->next;
    if (learned->length) memcpy(&end, learned->at + learned->length - sizeof end, sizeof end);
    return *c->mark && !jinja_has_generation(c->form) && !strcmp(role_of(last), "assistant") && weight_of(last) != 0
        && end == text->length;
}
int64_t chat_encode(const Chat *c, const Tokenizer *t, const JsonValue *talk, int prompt, int **ids,
                    unsigned char **counts, Controls *controls, Error *e) {
    Text text = { 0 }, learned = { 0 }, seams = { 0 }, given = { 0 };
    int64_t tokens = -1;
    Controls own = { 0 };
    text_add_bytes(&seams, &(TokenSeam){ 0, 0 }, sizeof(TokenSeam));
    if (tokenizer_splits_controls(t) && !tokenizer_finds_controls(t))
        return error_set(e, "-sp 1: this tokenizer changes text before it looks for control tokens, so whose they are "
                         "is not known in conversations") - 1;
    if (write_checked(c, talk, prompt, &text, counts ? &learned : NULL, &given, e)) {
        if (counts && !prompt && ends_open(c, talk, &text, &learned)) {         /* else it would never learn to end */
            const size_t white = strspn(c->mark, " \n\t"), there = text.length >= white
                && !memcmp(text.at + text.length - white, c->mark, white) ? white : 0;
            text_add_string(&text, c->mark + there);
            memcpy(learned.at + learned.length - sizeof text.length, &text.length, sizeof text.length);
            while (given.length < text.length) text_add_bytes(&given, "", 1);
        }
        own.given = (const unsigned char *)given.at;
        const size_t n = tokenizer_encode_part(t, text.at, 0, text.length, ids, counts ? &seams : NULL, &own),
            ends = learned.length / sizeof(size_t);
        tokens = (int64_t)n;
        text_add_bytes(&seams, &(TokenSeam){ SIZE_MAX, n }, sizeof(TokenSeam));
        const TokenSeam *seam = (const TokenSeam *)(const void *)seams.at;
        if (counts) *counts = mem_alloc(n + 1);
        for (size_t i = 0; i + 1 < ends; i += 2) {
            size_t at[2];
            memcpy(at, learned.at + i * sizeof *at, sizeof at);
            int within;
            const size_t from = tokens_before(t, text.at, at[0], *ids, n, &seam, own, &within),
                to = tokens_until(t, text.at, at[1], text.length, *ids, n, &seam, own);
            if (to > from) memset(*counts + from, 1, to - from);
        }
    }
    free_each(text.at, learned.at, seams.at, given.at);
    controls_add(controls, &own);
    return tokens;
}

size_t chat_oldest(const JsonValue *messages, size_t *first) {
    const JsonValue *m = json_first(messages);
    const size_t count = m ? messages->length : 0;
    *first = m && !strcmp(role_of(m), "system");
    if (count < *first + 2) return 0;
    size_t gone = (count - *first - 1) / 2 / 4 * 2 + 1;
    for (size_t i = 0; i < *first + gone; i++) m = m->next;
    while (m->next && strcmp(role_of(m), "user")) m = m->next, gone++;
    return gone;
}
