/* api_read.c: see api_read.h. */
#include "api_read.h"
#include "calls.h"
#include "llmc/data/forms.h"
#include "stream.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { COMPLETION = 1, CHAT = 2, BOTH = 3 };

/* ---- the tables ------------------------------------------------------------------------------ */

#define FIELD(name) offsetof(ApiRequest, name)
/* Numbers. letter: the option of infer_moe that has the value of what is not given; help: on the
 * page; NULL: the option's, and with neither it is not offered there. */
static const struct { const char *key; int in, is_float; size_t field; double low, high; const char *letter, *help; }
numbers[] = {
    { "max_tokens", BOTH, 0, FIELD(tokens), 0, API_TOKENS, "n", "tokens to generate at most" },
    { "max_completion_tokens", CHAT, 0, FIELD(tokens), 0, API_TOKENS, NULL, NULL },
    { "temperature", BOTH, 1, FIELD(temperature), 0, 100, "t", NULL },
    { "top_p", BOTH, 1, FIELD(top_p), 0, 1, "p", NULL },
    { "min_p", BOTH, 1, FIELD(min_p), 0, 1, "mp", NULL },
    { "top_k", BOTH, 0, FIELD(top_k), -1, INT_MAX, "k", NULL },
    { "repetition_penalty", BOTH, 1, FIELD(penalty), 0.01, 100, "rp", NULL },
    { "presence_penalty", BOTH, 1, FIELD(presence), -2, 2, NULL,
      "subtracted from the logits of tokens that the answer has" },
    { "frequency_penalty", BOTH, 1, FIELD(frequency), -2, 2, NULL, "the same, for each time that it has them" },
    { "n", BOTH, 0, FIELD(n), 1, API_CHOICES, NULL, NULL },
    { "best_of", COMPLETION, 0, FIELD(best_of), 1, API_CHOICES, NULL, NULL },
    { "logprobs", COMPLETION, 0, FIELD(likely), 0, API_LIKELY, NULL, NULL },
    { "top_logprobs", CHAT, 0, FIELD(likely), 0, API_LIKELY, NULL, NULL },
};
static const struct { const char *key; int in; size_t field; } switches[] = {
    { "stream", BOTH, FIELD(stream) }, { "echo", COMPLETION, FIELD(echo) }, { "logprobs", CHAT, FIELD(logprobs) },
    { "experts", BOTH, FIELD(experts) },
};
/* Read elsewhere in this file; and what changes no answer: names, places where others keep things,
 * and hints about speed. */
static const struct { const char *key; int in; } others[] = {
    { "model", BOTH }, { "seed", BOTH }, { "stop", BOTH }, { "stream_options", BOTH }, { "truncation", BOTH },
    { "prompt", COMPLETION }, { "messages", CHAT }, { "chat_template_kwargs", CHAT }, { "reasoning_effort", CHAT },
    { "user", BOTH }, { "metadata", BOTH }, { "store", BOTH }, { "service_tier", BOTH }, { "safety_identifier", BOTH },
    { "prompt_cache_key", BOTH }, { "prompt_cache_retention", BOTH }, { "prediction", CHAT },
    { "tools", CHAT }, { "tool_choice", CHAT }, { "parallel_tool_calls", CHAT },
};
/* Known, and done in one way only: accepted if that is asked for. */
static const struct { const char *key; int in; const char *only, *why; } single[] = {
    { "logit_bias", BOTH, "{}", "single tokens cannot be made likelier here" },
    { "suffix", COMPLETION, "\"\"", "texts are continued here, not filled in" },
    { "functions", CHAT, "[]", "the old form of tools" },
    { "function_call", CHAT, "\"none\"", "the old form of tool_choice" },
    { "response_format", CHAT, "{\"type\": \"text\"}",
      "answers follow no grammar here: ask for the form in a message" },
    { "modalities", CHAT, "[\"text\"]", "answers are text" },
};
#define ROWS(table) (sizeof table / sizeof *table)

/* ---- errors ---------------------------------------------------------------------------------- */

static int refuse(ApiError *e, const char *key, const char *code) {
    *e = (ApiError){ .status = 400, .type = "invalid_request_error", .code = code, .e = e->e };
    snprintf(e->param, sizeof e->param, "%.63s", key);
    return 0;
}
#define wrong(e, key, ...) (error_set(&(e)->e, __VA_ARGS__), refuse(e, key, NULL))

/* ---- fields ---------------------------------------------------------------------------------- */

/* Do two values say the same? Members may come in any order. */
static int is_same(const JsonValue *a, const JsonValue *b) {
    if (!a || !b || a->type != b->type || (a->type >= JSON_STRING && a->length != b->length)) return 0;
    if (a->type == JSON_STRING) return !memcmp(a->is.string, b->is.string, a->length);
    if (a->type < JSON_STRING) return a->type != JSON_DOUBLE && a->is.integer == b->is.integer;
    const JsonValue *y = json_first(b);
    for (const JsonValue *x = json_first(a); x; x = x->next, y = y->next)
        if (!is_same(x, x->key ? json_find(b, x->key, x->key_length) : y)) return 0;
    return 1;
}
static int read_number(ApiRequest *q, size_t i, const JsonValue *v, ApiError *e) {
    char *field = (char *)q + numbers[i].field;
    int64_t integer;
    double x;
    if (numbers[i].is_float ? !json_read_double(v, v->key, numbers[i].low, numbers[i].high, &x, &e->e)
        : !json_read_int(v, v->key, (int64_t)numbers[i].low, (int64_t)numbers[i].high, &integer, &e->e))
        return refuse(e, v->key, NULL);
    if (numbers[i].is_float) *(float *)(void *)field = (float)x;
    else *(int *)(void *)field = (int)integer;
    q->limited |= numbers[i].field == FIELD(tokens);
    return 1;
}
static int read_switch(ApiRequest *q, size_t i, const JsonValue *v, ApiError *e) {
    if (v->type != JSON_BOOL) return wrong(e, v->key, "%s: expected true or false", v->key);
    *(int *)(void *)((char *)q + switches[i].field) = json_bool(v, 0);
    return 1;
}
static int read_single(size_t i, const JsonValue *v, ApiError *e) {
    Error none;
    Json *only = json_parse(single[i].only, strlen(single[i].only), &none);
    const int same = is_same(v, json_root(only));
    json_free(only);
    if (same) return 1;
    error_set(&e->e, "%s: %s; accepted is %s", v->key, single[i].why, single[i].only);
    return refuse(e, v->key, "unsupported_value");
}
/* A number that is not given is that of the command line. */
static void set_defaults(const Api *a, ApiRequest *q) {
    *q = (ApiRequest){ .n = 1, .best_of = 1, .likely = -1 };
    for (size_t i = 0; i < ROWS(numbers); i++) {
        const Option *o = numbers[i].letter ? option_row(a->options, numbers[i].letter) : NULL;
        if (o) memcpy((char *)q + numbers[i].field, (const char *)a->options.settings + o->field, sizeof(int));
    }
    memcpy(&q->seed, (const char *)a->options.settings + option_row(a->options, "s")->field, sizeof q->seed);
    if (q->tokens < 0) q->tokens = 0;
}
static int read_field(ApiRequest *q, int form, const JsonValue *v, ApiError *e) {
    if (strlen(v->key) != v->key_length) return wrong(e, "", "a key contains NUL");
    if (json_is_null(v)) return 1;
    for (size_t i = 0; i < ROWS(numbers); i++)
        if (numbers[i].in & form && !strcmp(numbers[i].key, v->key)) return read_number(q, i, v, e);
    for (size_t i = 0; i < ROWS(switches); i++)
        if (switches[i].in & form && !strcmp(switches[i].key, v->key)) return read_switch(q, i, v, e);
    for (size_t i = 0; i < ROWS(single); i++)
        if (single[i].in & form && !strcmp(single[i].key, v->key)) return read_single(i, v, e);
    for (size_t i = 0; i < ROWS(others); i++) if (others[i].in & form && !strcmp(others[i].key, v->key)) return 1;
    error_set(&e->e, "unknown key %.100s: the answer might not be the one that is meant. Remove it; docs/api.md lists "
              "those that are known", v->key);
    return refuse(e, v->key, "unsupported_parameter");
}

static int read_stops(const Api *a, ApiRequest *q, const JsonValue *v, ApiError *e) {
    const char *option;
    memcpy(&option, (const char *)a->options.settings + option_row(a->options, "st")->field, sizeof option);
    if (!v) { q->stops = stops_option(NULL, option); return 1; }
    const int several = v->type == JSON_ARRAY;
    if (several && v->length > API_STOPS) return wrong(e, "stop", "stop: at most %d strings", API_STOPS);
    for (const JsonValue *s = several ? json_first(v) : v; s; s = several ? s->next : NULL) {
        if (!json_string(s, NULL) || !s->length)
            return wrong(e, "stop", "stop: expected a string, or a list of strings, none of them empty or with NUL");
        q->stops = stops_add(q->stops, s->is.string, s->length);
    }
    return 1;
}
static int read_stream_options(ApiRequest *q, const JsonValue *v, ApiError *e) {
    if (v && v->type != JSON_OBJECT) return wrong(e, "stream_options", "stream_options: expected an object");
    if (v && !q->stream) return wrong(e, "stream_options", "stream_options: only with \"stream\": true");
    for (const JsonValue *x = json_first(v); x; x = x->next) {
        const int usage = !strcmp(x->key, "include_usage");
        if (!usage && strcmp(x->key, "include_obfuscation"))
            return wrong(e, "stream_options", "stream_options: %.60s is not known", x->key);
        if (!json_is_null(x) && x->type != JSON_BOOL)
            return wrong(e, "stream_options", "stream_options: %s: expected true or false", x->key);
        if (usage) q->usage = json_bool(x, 0);
        else if (json_bool(x, 0)) return wrong(e, "stream_options", "stream_options: nothing is obfuscated here");
    }
    return 1;
}
static int read_model(const Api *a, const JsonValue *v, ApiError *e) {
    if (!v || (json_string(v, NULL) && !strcmp(v->is.string, a->name))) return 1;
    error_set(&e->e, "model: %.200s is not here; this server has %s", json_string(v, "that"), a->name);
    refuse(e, "model", "model_not_found");
    e->status = 404;
    return 0;
}
static int read_others(const Api *a, ApiRequest *q, const JsonValue *root, ApiError *e) {
    const JsonValue *cut = json_given(root, "truncation"), *seed = json_given(root, "seed");
    const char *how = cut ? json_string(cut, "") : "disabled";
    q->cut = !strcmp(how, "auto");
    if (!q->cut && strcmp(how, "disabled")) return wrong(e, "truncation", "truncation: expected auto or disabled");
    if (seed && !json_read_int(seed, "seed", -1, (int64_t)9e15, &q->seed, &e->e)) return refuse(e, "seed", NULL);
    if (q->best_of > 1 && q->best_of != q->n)
        return wrong(e, "best_of", "best_of: all choices are sent: expected the number of n");
    if (q->is_chat && q->likely >= 0 && !q->logprobs)
        return wrong(e, "top_logprobs", "top_logprobs: only with \"logprobs\": true");
    if (q->top_k < 0) q->top_k = 0;
    q->logprobs |= q->likely >= 0;
    if (q->likely < 0) q->likely = 0;
    return read_model(a, json_given(root, "model"), e) && read_stops(a, q, json_given(root, "stop"), e)
        && read_stream_options(q, json_given(root, "stream_options"), e);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static int too_long(const Api *a, size_t tokens, const char *key, ApiError *e) {
    error_set(&e->e, "%s: %zu tokens; the model sees %d, and the answer needs some of them: \"truncation\": \"auto\" "
              "leaves out the beginning", key, tokens, a->capacity);
    return refuse(e, key, "context_length_exceeded");
}
/* The prompt must leave something of the context; or its beginning is left out. */
static int fit(const Api *a, ApiRequest *q, ApiPrompt *p, size_t count, const char *key, ApiError *e) {
    const size_t most = (size_t)a->capacity, needed = q->limited && !q->tokens ? 0 : 1;
    if (count + needed > most && !q->cut) return too_long(a, count, key, e);
    const size_t beyond = count > most ? count - most : 0;
    memmove(p->ids, p->ids + beyond, (count - beyond) * sizeof *p->ids);
    q->dropped += beyond;
    p->count = (int)(count - beyond);
    return 1;
}
static int read_ids(const Api *a, ApiRequest *q, const JsonValue *list, ApiError *e) {
    ApiPrompt *p = &q->prompt[q->prompts++];
    size_t n = 0;
    p->ids = mem_alloc((list->length + 1) * sizeof *p->ids);
    for (const JsonValue *v = json_first(list); v; v = v->next) {
        int64_t id;
        if (!json_read_int(v, "prompt", 0, a->vocab - 1, &id, &e->e)) return refuse(e, "prompt", NULL);
        p->ids[n++] = (int)id;
    }
    return n ? fit(a, q, p, n, "prompt", e) : wrong(e, "prompt", "prompt: a list of tokens is empty");
}
static int read_text(const Api *a, ApiRequest *q, const JsonValue *v, ApiError *e) {
    ApiPrompt *p = &q->prompt[q->prompts++];
    const char *text = v ? v->is.string : "";
    size_t count;
    p->bytes = v ? v->length : 0;
    p->text = memcpy(mem_alloc(p->bytes + 1), text, p->bytes);
    if (!prompt_tokens(a->tokenizer, a->vocab, p->text, p->bytes, 1, &p->ids, &count, &e->e)) {
        p->ids = NULL;
        return refuse(e, "prompt", NULL);
    }
    return fit(a, q, p, count, "prompt", e);
}
/* A string, a list of ids, or a list of either. */
static int read_prompts(const Api *a, ApiRequest *q, const JsonValue *v, ApiError *e) {
    const JsonValue *first = json_first(v);
    const int is_list = json_is(v, JSON_ARRAY), is_ids = json_is(first, JSON_INT);
    if (v && v->type != JSON_STRING && (!is_list || !first))
        return wrong(e, "prompt", "prompt: expected a string, a list of strings, of tokens, or of lists of tokens");
    const size_t count = is_list && !is_ids ? v->length : 1;
    if (count * (size_t)q->n > API_CHOICES)
        return wrong(e, "prompt", "prompt: %zu prompts with n %d: at most %d choices", count, q->n, API_CHOICES);
    q->prompt = mem_alloc(count * sizeof *q->prompt);
    if (!is_list) return read_text(a, q, v, e);
    if (is_ids) return read_ids(a, q, v, e);
    for (; first; first = first->next) {
        const int text = first->type == JSON_STRING;
        if (!text && first->type != JSON_ARRAY)
            return wrong(e, "prompt", "prompt: expected strings, or lists of tokens, in the list");
        if (text ? !read_text(a, q, first, e) : !read_ids(a, q, first, e)) return 0;
    }
    return 1;
}

/* What is offered to the model: functions, if the form of its calls is known; else NULL. */
static int read_tools(const Api *a, ApiRequest *q, const JsonValue *root, const JsonValue **tools, ApiError *e) {
    const JsonValue *given = json_given(root, "tools"), *choice = json_given(root, "tool_choice"),
        *several = json_given(root, "parallel_tool_calls");
    const char *how = choice ? json_string(choice, "") : "auto";
    *tools = NULL;
    if (strcmp(how, "auto") && strcmp(how, "none")) {
        error_set(&e->e, "tool_choice: the model cannot be made to call: expected auto or none");
        return refuse(e, "tool_choice", "unsupported_value");
    }
    if (given && given->type != JSON_ARRAY) return wrong(e, "tools", "tools: expected a list");
    if (!given || !given->length || !strcmp(how, "none")) return 1;
    if (!calls_known(a->chat->with_tools ? a->chat->tools : a->chat->text)) {
        error_set(&e->e, "tools: the form of this model's calls is not known here, so they could not be read out of "
                  "its answers: describe the functions in a message");
        return refuse(e, "tools", "unsupported_value");
    }
    if (several && !json_bool(several, 0)) {
        error_set(&e->e, "parallel_tool_calls: the model may call several times: expected true");
        return refuse(e, "parallel_tool_calls", "unsupported_value");
    }
    *tools = given;
    q->calls = 1;
    return 1;
}
static int has_plain_keys(const JsonValue *object) {
    for (const JsonValue *v = json_first(object); v; v = v->next) if (strlen(v->key) != v->key_length) return 0;
    return json_is(object, JSON_OBJECT);
}
/* Calls of earlier answers: OpenAI has arguments as a string of JSON, templates as an object. */
static JsonValue *calls_of(Json *json, const JsonValue *calls) {
    JsonValue *list = json_make(json, JSON_ARRAY);
    Error none;
    for (const JsonValue *call = json_first(calls); call; call = call->next) {
        const JsonValue *function = json_get(call, "function"), *given = json_get(function, "arguments");
        const JsonValue *object = json_is(given, JSON_STRING)
            ? json_parse_inner(json, given->is.string, given->length, &none) : NULL;
        if (!json_is(object, JSON_OBJECT) || !has_plain_keys(call) || !has_plain_keys(function)) {
            json_append(list, NULL, json_copy(json, call));
            continue;
        }
        JsonValue *own = json_append(list, NULL, json_make(json, JSON_OBJECT)),
            *inner = json_make(json, JSON_OBJECT);
        for (const JsonValue *v = json_first(call); v; v = v->next)
            json_append(own, v->key, v == function ? inner : json_copy(json, v));
        for (const JsonValue *v = json_first(function); v; v = v->next)
            json_append(inner, v->key, json_copy(json, v == given ? object : v));
    }
    return list;
}
static const JsonValue *messages_of(Json *json, const JsonValue *given) {
    if (!json_is(given, JSON_ARRAY)) return given;
    JsonValue *list = json_make(json, JSON_ARRAY);
    for (const JsonValue *m = json_first(given); m; m = m->next) {
        const JsonValue *calls = has_plain_keys(m) ? json_given(m, "tool_calls") : NULL;
        const int has_calls = json_is(calls, JSON_ARRAY);
        JsonValue *own = json_append(list, NULL, has_calls ? json_make(json, JSON_OBJECT) : json_copy(json, m));
        for (const JsonValue *v = has_calls ? json_first(m) : NULL; v; v = v->next)
            json_append(own, v->key, v == calls ? calls_of(json, v) : json_copy(json, v));
    }
    return list;
}
/* Values for the template: those of chat_template_kwargs, and how much it is to think. */
static int read_variables(const Api *a, Json *json, JsonValue *talk, const JsonValue *root, ApiError *e) {
    static const char effort[] = "reasoning_effort";
    const JsonValue *given = json_given(root, "chat_template_kwargs"), *thinks = json_given(root, effort);
    JsonValue *all = json_make(json, JSON_OBJECT);
    if (given && given->type != JSON_OBJECT)
        return wrong(e, "chat_template_kwargs", "chat_template_kwargs: expected an object");
    for (const JsonValue *v = json_first(given); v; v = v->next) json_append(all, v->key, json_copy(json, v));
    if (thinks && !jinja_reads(a->chat->form, effort)) {
        error_set(&e->e, "%s: the chat template of this model does not read it", effort);
        return refuse(e, effort, "unsupported_parameter");
    }
    if (thinks && !json_given(given, effort)) json_append(all, effort, json_copy(json, thinks));
    json_append(talk, "chat_template_kwargs", all);
    return 1;
}
/* The key of a request that an error about its conversation is about. */
static const char *blamed(const Error *e) {
    return strstr(e->text, "chat_template_kwargs") ? "chat_template_kwargs"
         : !strncmp(e->text, "\"tools\"", 7) || !strncmp(e->text, "it has \"tools\"", 14) ? "tools" : "messages";
}
/* The tokens of a conversation, up to where the answer begins. With "truncation": "auto", if they
 * are more than three quarters of the context, the oldest questions go with their answers. */
static int read_talk(const Api *a, ApiRequest *q, Json *json, const JsonValue *root, ApiError *e) {
    const size_t most = (size_t)a->capacity * 3 / 4;
    int64_t tokens, all = -1;
    size_t first, gone;
    Form f;
    Controls controls = { 0 };
    const JsonValue *given = json_given(root, "messages"), *tools;
    if (!a->chat || !*chat_name(a->chat))
        return wrong(e, "messages", "messages: this model has no chat template that is known; /v1/completions "
                     "continues texts, and -ct names a template");
    if (!given) return wrong(e, "messages", "messages: missing");
    if (!read_tools(a, q, root, &tools, e)) return 0;
    if (!form_read_chat(&f, json, messages_of(json, given), tools, &e->e))
        return refuse(e, blamed(&e->e), NULL);
    JsonValue *talk = json_copy(json, f.chat), *messages = (JsonValue *)json_get(talk, "messages");
    if (!read_variables(a, json, talk, root, e)) return 0;
    ApiPrompt *p = q->prompt = mem_alloc(sizeof *q->prompt);
    q->prompts = 1;
    while ((tokens = chat_encode(a->chat, a->tokenizer, talk, 1, &p->ids, NULL, &controls, &e->e)) > (int64_t)most
           && q->cut && (gone = chat_oldest(messages, &first))) {
        json_cut(messages, first, gone);
        if (all < 0) all = tokens;
        free(p->ids);
        p->ids = NULL;
        controls.count = 0;
    }
    q->controls = controls.count;
    if (!tokens) error_set(&e->e, "messages: the chat template makes no tokens of them");
    if (tokens <= 0) return refuse(e, tokens < 0 ? blamed(&e->e) : "messages", NULL);
    q->dropped = all > tokens ? (size_t)(all - tokens) : 0;
    return fit(a, q, p, (size_t)tokens, "messages", e);
}

/* ---- the request ----------------------------------------------------------------------------- */

/* What is sent in one piece must fit into memory: all of an answer that is not streamed, and a
 * prompt with what is known of its tokens. */
static int check_bytes(const Api *a, const ApiRequest *q, ApiError *e) {
    const int64_t weight = 1 + q->likely + (q->experts ? a->width / 16 : 0);
    int64_t most = 0, all = 0;
    for (int i = 0; i < q->prompts; i++) {
        const int64_t left = a->capacity - q->prompt[i].count, echo = q->echo ? q->prompt[i].count : 0;
        const int64_t tokens = q->tokens && (q->cut || q->tokens < left) ? q->tokens : left;
        all += (tokens + echo) * q->n;
        if (echo > most) most = echo;
    }
    return (q->stream ? most : all) * weight <= API_PIECE
        || wrong(e, "max_tokens", "the tokens of the %s and what is to be said of each are too much to be sent in one "
                 "piece: ask for less%s", q->stream ? "prompt" : "answer", q->stream ? "" : ", or for a stream");
}
static int read_root(const Api *a, ApiRequest *q, Json *json, ApiError *e) {
    const JsonValue *root = json_root(json);
    const int form = q->is_chat ? CHAT : COMPLETION;
    if (!json_is(root, JSON_OBJECT)) return wrong(e, "", "expected a JSON object");
    for (const JsonValue *v = json_first(root); v; v = v->next) if (!read_field(q, form, v, e)) return 0;
    return read_others(a, q, root, e)
        && (q->is_chat ? read_talk(a, q, json, root, e) : read_prompts(a, q, json_given(root, "prompt"), e))
        && check_bytes(a, q, e);
}
int api_read(const Api *a, ApiRequest *q, int is_chat, const char *body, size_t bytes, ApiError *e) {
    set_defaults(a, q);
    q->is_chat = is_chat;
    Json *json = json_parse(body, bytes, &e->e);
    const int ok = json ? read_root(a, q, json, e) : refuse(e, "", NULL);
    json_free(json);
    return ok;
}
void api_free_request(ApiRequest *q) {
    for (int i = 0; i < q->prompts; i++) free_each(q->prompt[i].text, q->prompt[i].ids);
    free(q->prompt);
    stops_free(q->stops);
}

/* What the page offers: the numbers that have a help, and the stop strings of the command line. */
void api_settings(const Api *a, Text *out) {
    ApiRequest q = { .n = 0 };
    ApiError e;
    int n = 0;
    text_add_string(out, "\"settings\": [");
    for (size_t i = 0; i < ROWS(numbers); i++) {
        const Option *o = numbers[i].letter ? option_row(a->options, numbers[i].letter) : NULL;
        const char *help = o && !numbers[i].help ? o->help : numbers[i].help;
        char value[64] = "0";
        if (!help) continue;
        if (o) option_value(o, a->options.settings, value, sizeof value);
        text_add(out, "%s{\"name\": \"%s\", \"whole\": %s, \"value\": %s, ", n++ ? ", " : "", numbers[i].key,
                 numbers[i].is_float ? "false" : "true", value);
        text_add(out, "\"low\": %.10g, \"high\": %.10g, \"help\": ", numbers[i].low, numbers[i].high);
        text_add_json(out, help, strlen(help));
        text_add_string(out, "}");
    }
    text_add_string(out, "], \"stop\": [");
    read_stops(a, &q, NULL, &e);
    for (char **stop = q.stops; stop && *stop; stop++) {
        text_add_string(out, stop == q.stops ? "" : ", ");
        text_add_json(out, *stop, strlen(*stop));
    }
    text_add_string(out, "]");
    stops_free(q.stops);
}
