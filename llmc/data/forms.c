/* forms.c: see forms.h. */
#include "forms.h"
#include "records.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tables ------------------------------------------------------------------------------ */

/* What a key of a record stands for. */
typedef enum { TEXT, LIST, SYSTEM, TOOLS, QUESTION, CONTEXT, ANSWER, HISTORY, PROMPT, COMPLETION, VARIABLES,
               DOCUMENTS, LABEL, REFUSED } Part;
#define PREFERENCE "it belongs to preference data, which this trainer does not know: of each pair keep the better " \
    "answer, as \"completion\" beside \"prompt\" or in \"messages\""
#define MEDIA "this trainer reads text only"
#define WEIGHTS "only messages have a weight: \"weight\": 0 or 1 in those of the assistant"
static const struct { const char *key; Part part; const char *why; } keys[] = {
    { "text",          TEXT,       NULL },
    { "messages",      LIST,       NULL },  { "conversations", LIST,       NULL },  { "conversation", LIST,  NULL },
    { "system",        SYSTEM,     NULL },  { "system_prompt", SYSTEM,     NULL },
    { "tools",         TOOLS,      NULL },  { "functions",     TOOLS,      NULL },
    { "instruction",   QUESTION,   NULL },  { "question",      QUESTION,   NULL },  { "query",        QUESTION, NULL },
    { "input",         CONTEXT,    NULL },  { "context",       CONTEXT,    NULL },
    { "output",        ANSWER,     NULL },  { "response",      ANSWER,     NULL },  { "answer",       ANSWER, NULL },
    { "history",       HISTORY,    NULL },
    { "prompt",        PROMPT,     NULL },  { "completion",    COMPLETION, NULL },
    { "chat_template_kwargs", VARIABLES, NULL }, { "documents", DOCUMENTS, NULL },
    { "label",         LABEL,      PREFERENCE },
    { "chosen",        REFUSED,    PREFERENCE }, { "rejected",  REFUSED,   PREFERENCE },
    { "kto_tag",       REFUSED,    PREFERENCE }, { "rejected_response", REFUSED, PREFERENCE },
    { "image",         REFUSED,    MEDIA }, { "images",        REFUSED,    MEDIA }, { "video",        REFUSED, MEDIA },
    { "videos",        REFUSED,    MEDIA }, { "audio",         REFUSED,    MEDIA }, { "audios",       REFUSED, MEDIA },
    { "weight",        REFUSED,    WEIGHTS }, { "mask",        REFUSED,    WEIGHTS },
    { "loss_mask",     REFUSED,    WEIGHTS }, { "train",       REFUSED,    WEIGHTS },
    { "trainable",     REFUSED,    WEIGHTS }, { "training",    REFUSED,    WEIGHTS },
};
enum { KEYS = sizeof keys / sizeof *keys };

/* A question, what it is about, and its answer, in one key each. */
static const struct { const char *question, *context, *answer; } pairs[] = {
    { "instruction", "input",   "output" },                 /* Alpaca, LLaMA-Factory */
    { "instruction", "context", "response" },               /* Dolly */
    { "question",    NULL,      "response" },               /* OpenOrca */
    { "question",    NULL,      "answer" },                 /* GSM8K */
    { "query",       NULL,      "response" },               /* ms-swift */
};

/* Keys that data sets have for their own purposes, in records and messages. */
static const char *const harmless[] = {
    "_id", "annotations", "author", "categories", "category", "comment", "comments", "conv_id", "conversation_hash",
    "conversation_id", "country", "create_time", "created", "created_at", "data_source", "dataset", "dataset_name",
    "date", "detailed_moderation", "difficulty", "domain", "domains", "file", "file_name", "file_path", "filename",
    "full_topic", "generator", "hash", "hashed_ip", "header", "id", "idx", "index", "info", "item_id", "lang",
    "language", "length", "level", "license", "md5", "message_id", "meta", "metadata", "model", "model_name", "note",
    "notes", "num_tokens", "num_turns", "openai_moderation", "origin", "parallel_tool_calls", "parent_id", "path",
    "prompt_id", "quality", "quality_score", "question_id", "rating", "redacted", "sample_id", "score", "source",
    "source_id", "sources", "split", "state", "subject", "subset", "tag", "tags", "task", "task_category", "task_id",
    "task_name", "task_type", "time", "timestamp", "title", "token_count", "topic", "topics", "toxic", "toxicity",
    "turn", "turn_identifier", "turns", "type", "url", "user_id", "uuid", "version", "year" };

static const struct { const char *name, *role; } roles[] = {        /* NULL: a call, written as JSON */
    { "system", "system" }, { "developer", "developer" }, { "user", "user" }, { "assistant", "assistant" },
    { "tool", "tool" }, { "human", "user" }, { "gpt", "assistant" }, { "model", "assistant" }, { "bot", "assistant" },
    { "chatgpt", "assistant" }, { "observation", "tool" }, { "tool_response", "tool" }, { "function", "tool" },
    { "ipython", "tool" }, { "function_call", NULL }, { "tool_call", NULL } };

/* What a message may have besides: what goes to the template as it is, of this type; a weight; or
 * what is refused. */
enum { WEIGHT = 100, CALL, NOT };
static const struct { const char *key; int is; const char *why; } more[] = {
    { "tool_calls", JSON_ARRAY, NULL },         { "tool_call_id", JSON_STRING, NULL }, { "name", JSON_STRING, NULL },
    { "reasoning_content", JSON_STRING, NULL }, { "thinking", JSON_STRING, NULL },     { "function_call", CALL, NULL },
    { "weight", WEIGHT, NULL },                 { "train", WEIGHT, NULL },             { "trainable", WEIGHT, NULL },
    { "training", WEIGHT, NULL },               { "loss_mask", WEIGHT, NULL },         { "loss", WEIGHT, NULL },
    { "mask", NOT, ", which some take for learned and others for left out: write \"weight\": 0 for what is not to be "
      "learned" },
};
enum { MORE = sizeof more / sizeof *more };

/* ---- making JSON ----------------------------------------------------------------------------- */

static JsonValue *append(Json *json, JsonValue *to, const char *key, const JsonValue *v) {
    return json_append(to, key, json_copy(json, v));
}
static void append_string(Json *json, JsonValue *to, const char *key, const char *s) {
    json_append(to, key, json_make_string(json, s, strlen(s)));
}
/* The value of a string that holds JSON; NULL: it holds none. */
static const JsonValue *parse_inner(Json *json, const JsonValue *v) {
    Error e;
    return json_is(v, JSON_STRING) ? json_parse_inner(json, v->is.string, v->length, &e) : NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

static const char *name_of(const JsonValue *v) {
    static const char *const names[] = { "null", "true or false", "a number", "a number", "a string", "a list",
                                         "an object" };
    return v->type == JSON_DOUBLE && isnan(v->is.number) ? "NaN, a missing value of pandas" : names[v->type];
}
static int expect_string(const JsonValue *v, const char *key, Error *e) {
    return json_is(v, JSON_STRING) || error_set(e, "\"%s\" is %s; expected a string", key, name_of(v));
}
int form_is_harmless(const JsonValue *v) {
    return v->key_length == strlen(v->key) && text_is_among(v->key, harmless);
}
/* The row of a table that a key has, by its first column; the number of rows if it has none. */
static int row_of(const JsonValue *v, const void *table, size_t rows, size_t width) {
    size_t i = 0;
    for (const char *row = table; i < rows; i++, row += width) {
        const char *key;
        memcpy(&key, row, sizeof key);
        if (v->key_length == strlen(key) && !memcmp(key, v->key, v->key_length)) break;
    }
    return (int)i;
}
#define ROW_OF(v, table) row_of(v, table, sizeof table / sizeof *table, sizeof *table)

/* ---- messages -------------------------------------------------------------------------------- */

typedef struct {
    Json *json;
    JsonValue *list;
    size_t number;
    int only_answers;
    const JsonValue *variables, *documents;
} Reader;

/* What is read of a message. Errors do not name it: read_messages does.
 * A content of parts: their texts, joined as templates do that know parts. */
static int join_parts(const Reader *r, const JsonValue *list, JsonValue **joined, Error *e) {
    Text text = { 0 };
    int ok = 1;
    text_add_bytes(&text, "", 0);
    for (const JsonValue *part = json_first(list); ok && part; part = part->next) {
        const JsonValue *type = json_given(part, "type"),
            *words = json_is(part, JSON_STRING) ? part : json_given(part, "text");
        const char *name = json_string(type, json_is(words, JSON_STRING) ? "text" : "?");
        static const char *const texts[] = { "text", "input_text", "output_text" };
        if (!text_is_among(name, texts))
            ok = error_set(e, "has a part of \"content\" of the type \"%.40s\"; " MEDIA, name);
        else if (!json_is(words, JSON_STRING))
            ok = error_set(e, "has a part of \"content\" without a \"text\" that is a string");
        else text_add_bytes(&text, words->is.string, words->length);
        for (const JsonValue *v = json_is(part, JSON_OBJECT) ? json_first(part) : NULL; ok && v; v = v->next)
            if (v != type && v != words && !json_is_null(v))
                ok = error_set(e, "has a part of \"content\" with the key \"%.60s\", which is not known", v->key);
    }
    *joined = json_make_string(r->json, json_keep(r->json, text.at, text.length), text.length);
    free(text.at);
    return ok;
}

/* {"name", "arguments"}, maybe several, as tool_calls; arguments that hold an object are one. */
static int add_calls(const Reader *r, JsonValue *message, const JsonValue *calls, Error *e) {
    JsonValue *list = json_append(message, "tool_calls", json_make(r->json, JSON_ARRAY));
    const int several = json_is(calls, JSON_ARRAY);
    for (const JsonValue *v = several ? json_first(calls) : calls; v; v = several ? v->next : NULL) {
        const JsonValue *name = json_given(v, "name"), *arguments = json_given(v, "arguments"),
            *inner = parse_inner(r->json, arguments);
        if (!json_is(name, JSON_STRING) || !arguments || v->length != 2)
            return error_set(e, "has a call that is not {\"name\": \"...\", \"arguments\": {...}}");
        JsonValue *call = json_append(list, NULL, json_make(r->json, JSON_OBJECT));
        append_string(r->json, call, "type", "function");
        JsonValue *function = json_append(call, "function", json_make(r->json, JSON_OBJECT));
        append(r->json, function, "name", name);
        append(r->json, function, "arguments", json_is(inner, JSON_OBJECT) ? inner : arguments);
    }
    return list->length > 0 || error_set(e, "has no call in its list of calls");
}

/* 0 or 1 from a number or a truth value; -1: an error. */
static int weight_of(const JsonValue *v, int assistant, Error *e) {
    const double x = json_is(v, JSON_BOOL) ? json_bool(v, 0) : json_double(v, NAN);
    if (x != 0 && x != 1 && (v->type == JSON_INT || v->type == JSON_DOUBLE))
        return error_set(e, "has \"%s\": %g; expected 0 or 1, as other weights are not implemented", v->key, x) - 1;
    if (x != 0 && x != 1) return error_set(e, "has %s as \"%s\"; expected 0 or 1", name_of(v), v->key) - 1;
    if (x == 1 && !assistant)
        return error_set(e, "has \"%s\", but only what the assistant says is learned: leave it out or write 0",
                         v->key) - 1;
    return x != 0;
}

/* What is in a message besides its role and content. *weight: -1 if none is given. */
static int add_others(const Reader *r, JsonValue *message, const JsonValue *m, const JsonValue *role,
                      const JsonValue *content, int assistant, int *weight, Error *e) {
    for (const JsonValue *v = json_first(m); v; v = v->next) {
        const int i = ROW_OF(v, more), is = i < MORE ? more[i].is : NOT;
        if (v == role || v == content || json_is_null(v)) continue;
        if (i < MORE && is == WEIGHT) {
            const int given = weight_of(v, assistant, e);
            if (given < 0) return 0;
            if (*weight >= 0 && *weight != given) return error_set(e, "has two weights that differ");
            *weight = given;
        } else if (i < MORE && is == CALL) { if (!add_calls(r, message, v, e)) return 0; }
        else if (i < MORE && is == NOT) return error_set(e, "has \"%s\"%s", v->key, more[i].why);
        else if (json_is_empty(v)) continue;
        else if (i < MORE && (int)v->type == is) append(r->json, message, more[i].key, v);
        else if (i < MORE) return error_set(e, "has %s as \"%s\"", name_of(v), v->key);
        else if (strlen(v->key) != v->key_length) return error_set(e, "has a key with a NUL");
        else if (!form_is_harmless(v)) append(r->json, message, v->key, v);
    }
    return 1;
}

static int find_role(const JsonValue *role, const char **name, Error *e) {
    const char *given = json_string(role, "");
    *name = NULL;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(given, roles[i].name)) { *name = roles[i].role; return 1; }
    return error_set(e, "has the role \"%.40s\", expected system, developer, user, assistant or tool",
                     json_string(role, "?"));
}

static int read_content(const Reader *r, const JsonValue *v, int has_calls, JsonValue **content, Error *e) {
    if (json_is(v, JSON_ARRAY)) return join_parts(r, v, content, e);
    if (json_is_null(v) && !has_calls) return error_set(e, "has no \"content\"");
    if (!json_is_null(v) && v->type != JSON_STRING)
        return error_set(e, "has a \"content\" that is no string but %s", name_of(v));
    *content = json_copy(r->json, v);
    return 1;
}

static int read_message(Reader *r, const JsonValue *m, Error *e) {
    const JsonValue *role = json_given(m, "role"), *content = json_get(m, "content");
    const int has_calls = !json_is_empty(json_get(m, "tool_calls")) || json_given(m, "function_call");
    JsonValue *words = NULL, *message;
    const char *name;
    int weight = -1;
    if (!json_is(m, JSON_OBJECT)) return error_set(e, "is no object");
    if (!role) role = json_given(m, "from");
    if (!content) content = json_get(m, "value");
    if (!role) return error_set(e, "has no \"role\"");
    if (!find_role(role, &name, e) || !read_content(r, content, has_calls, &words, e)) return 0;
    const int assistant = !name || !strcmp(name, "assistant");
    message = json_append(r->list, NULL, json_make(r->json, JSON_OBJECT));
    append_string(r->json, message, "role", name ? name : "assistant");
    if (name && words) json_append(message, "content", words);
    if (!name) {
        const JsonValue *calls = parse_inner(r->json, words);
        append_string(r->json, message, "content", "");
        if (!calls) return error_set(e, "has the role %s, but its text is no JSON of a call", json_string(role, ""));
        if (!add_calls(r, message, calls, e)) return 0;
    }
    if (!add_others(r, message, m, role, content, assistant, &weight, e)) return 0;
    if (r->only_answers && assistant) weight = 0;
    if (weight >= 0) append(r->json, message, "weight", &(JsonValue){ .type = JSON_INT, .is.integer = weight });
    return 1;
}

static int read_messages(Reader *r, const JsonValue *list, const char *key, Error *e) {
    if (!json_is(list, JSON_ARRAY))
        return error_set(e, "\"%s\" is %s; expected a list of messages", key, name_of(list));
    if (!list->length) return error_set(e, "\"%s\" is empty", key);
    for (const JsonValue *m = json_first(list); m; m = m->next, r->number++) {
        Error why;
        if (!read_message(r, m, &why)) return error_set(e, "message %zu %.900s", r->number, why.text);
    }
    return 1;
}

static void say(const Reader *r, const char *role, const JsonValue *content) {
    JsonValue *message = json_append(r->list, NULL, json_make(r->json, JSON_OBJECT));
    append_string(r->json, message, "role", role);
    append(r->json, message, "content", content);
}

/* ---- records --------------------------------------------------------------------------------- */

#define A_RECORD "{\"text\": \"...\"} or {\"messages\": [{\"role\": \"...\", \"content\": \"...\"}, ...]}"
enum { MOST_USED = 8 };
typedef struct { Json *json; const JsonValue *record, *used[MOST_USED]; int count; } Keys;

static const JsonValue *use(Keys *k, const JsonValue *v) {
    if (v) k->used[k->count++] = v;
    return v;
}
/* The first key of a kind. */
static const JsonValue *find(const JsonValue *record, Part part) {
    for (int i = 0; i < KEYS; i++) {
        const JsonValue *v = keys[i].part == part ? json_given(record, keys[i].key) : NULL;
        if (v) return v;
    }
    return NULL;
}

static int refuse(const Keys *k, const JsonValue *v, Error *e) {
    const int i = ROW_OF(v, keys);
    const char *with = k->count ? k->used[0]->key : "", *why = i < KEYS ? keys[i].why : NULL;
    const JsonType type = k->count ? k->used[0]->type : JSON_NULL;
    if (why) return error_set(e, "found the key \"%.60s\": %s", v->key, why);
    if ((type == JSON_STRING && !strcmp(with, "text")) || (type == JSON_ARRAY && strcmp(with, "prompt")))
        return error_set(e, "found the key \"%.60s\" beside \"%.60s\", which is not known there: -tf %.60s reads "
                         "\"%.60s\" and leaves out what is not known", v->key, with, with, with);
    return error_set(e, "found the key \"%.60s\" beside \"%.60s\", which is not known there: take it out if it means "
                     "nothing to training", v->key, with);
}
/* Is every key used or without meaning? A text may have any beside it that no form has. */
static int check_keys(const Keys *k, int is_text, Error *e) {
    for (const JsonValue *v = json_first(k->record); v; v = v->next) {
        const int i = ROW_OF(v, keys);
        int used = 0;
        for (int n = 0; n < k->count; n++) used |= v == k->used[n];
        if (used || json_is_null(v)) continue;
        if (i == KEYS ? is_text || form_is_harmless(v) || json_is_empty(v)
                      : json_is_empty(v) || (is_text && keys[i].part == LABEL && v->type != JSON_BOOL)) continue;
        return refuse(k, v, e);
    }
    return 1;
}

/* Functions that stand alone are put into {"type": "function", "function": ...}. */
static int read_tools(Json *json, const JsonValue *v, JsonValue *chat, Error *e) {
    const JsonValue *list = json_is(v, JSON_STRING) ? parse_inner(json, v) : v;
    JsonValue *tools = json_make(json, JSON_ARRAY);
    if (!json_is(list, JSON_ARRAY))
        return error_set(e, "\"%s\" is %s; expected a list of functions", v->key, name_of(v));
    if (list->length) json_append(chat, "tools", tools);
    for (const JsonValue *one = json_first(list); one; one = one->next) {
        const int bare = json_is(json_get(one, "name"), JSON_STRING) && !json_get(one, "function");
        if (!bare && !json_is(json_get(one, "function"), JSON_OBJECT))
            return error_set(e, "\"%s\" has an element that is not {\"type\": \"function\", \"function\": {\"name\": "
                             "\"...\", ...}}", v->key);
        if (!bare) { append(json, tools, NULL, one); continue; }
        JsonValue *outer = json_append(tools, NULL, json_make(json, JSON_OBJECT));
        append_string(json, outer, "type", "function");
        append(json, outer, "function", one);
    }
    return 1;
}

/* The conversation of the messages that were read. */
static int finish(const Reader *r, const JsonValue *tools, Form *f, Error *e) {
    JsonValue *chat = json_make(r->json, JSON_OBJECT);
    f->chat = chat;
    json_append(chat, "messages", r->list);
    if (r->variables && r->variables->type != JSON_OBJECT)
        return error_set(e, "\"%s\" is %s; expected an object", r->variables->key, name_of(r->variables));
    if (r->variables) append(r->json, chat, "chat_template_kwargs", r->variables);
    if (r->documents) append(r->json, chat, "documents", r->documents);
    return json_is_empty(tools) || read_tools(r->json, tools, chat, e);
}
static Reader begin(Json *json) { return (Reader){ json, json_make(json, JSON_ARRAY), 1, 0, NULL, NULL }; }

/* The system's message beside a list that may have it, too. */
static int say_system(const Reader *r, const JsonValue *v, const JsonValue *list, Error *e) {
    const JsonValue *first = json_first(list), *role = json_given(first, "role"), *words = json_given(first, "content");
    if (json_is_empty(v)) return 1;
    if (!role) role = json_given(first, "from");
    if (!words) words = json_given(first, "value");
    if (!expect_string(v, v->key, e)) return 0;
    if (strcmp(json_string(role, ""), "system")) { say(r, "system", v); return 1; }
    return (json_is(words, JSON_STRING) && words->length == v->length
            && !memcmp(words->is.string, v->is.string, v->length))
        || error_set(e, "found two messages of the system: \"%s\", and the first of \"%s\"", v->key, list->key);
}

/* Some data sets repeat the first question as the prompt. */
static int is_copied(const JsonValue *prompt, const JsonValue *list) {
    for (const JsonValue *m = json_first(list); m && json_is(prompt, JSON_STRING); m = m->next) {
        const JsonValue *words = json_given(m, "content");
        if (!strcmp(json_string(json_given(m, "role"), ""), "user"))
            return json_is(words, JSON_STRING) && words->length == prompt->length
                && !memcmp(words->is.string, prompt->is.string, prompt->length);
    }
    return 0;
}

static int read_list(Form *f, Keys *k, const JsonValue *list, int named, Error *e) {
    Reader r = begin(k->json);
    const JsonValue *prompt = json_given(k->record, "prompt");
    use(k, list);
    const JsonValue *system = use(k, find(k->record, SYSTEM)), *tools = use(k, find(k->record, TOOLS));
    r.documents = use(k, find(k->record, DOCUMENTS));
    r.variables = use(k, find(k->record, VARIABLES));
    if (prompt && is_copied(prompt, list)) use(k, prompt);
    return (named || check_keys(k, 0, e)) && say_system(&r, system, list, e) && read_messages(&r, list, list->key, e)
        && finish(&r, tools, f, e);
}

static int read_pair(Form *f, Keys *k, Error *e) {
    const JsonValue *prompt = use(k, json_given(k->record, "prompt")),
        *completion = use(k, json_given(k->record, "completion"));
    Reader r = begin(k->json);
    const int lists = json_is(prompt, JSON_ARRAY) && json_is(completion, JSON_ARRAY);
    const JsonValue *tools = lists ? use(k, find(k->record, TOOLS)) : NULL;
    r.variables = lists ? use(k, find(k->record, VARIABLES)) : NULL;
    if (!check_keys(k, 0, e)) return 0;
    if (!prompt || !completion)
        return error_set(e, "found \"%s\" without \"%s\"", prompt ? "prompt" : "completion",
                         prompt ? "completion" : "prompt");
    if (lists) {
        r.only_answers = 1;
        if (!read_messages(&r, prompt, "prompt", e)) return 0;
        r.only_answers = 0;
        r.number = 1;
        return read_messages(&r, completion, "completion", e) && finish(&r, tools, f, e);
    }
    if (!json_is(prompt, JSON_STRING) || !json_is(completion, JSON_STRING))
        return error_set(e, "\"prompt\" is %s and \"completion\" %s; expected two strings, or two lists of messages",
                         name_of(prompt), name_of(completion));
    f->prompt = (Words){ prompt->is.string, prompt->length };
    f->completion = (Words){ completion->is.string, completion->length };
    return completion->length > 0 || error_set(e, "\"completion\" is empty");
}

/* Earlier questions with their answers: [["...", "..."], ...] */
static int read_history(const Reader *r, const JsonValue *history, Error *e) {
    if (!json_is_empty(history) && history->type != JSON_ARRAY)
        return error_set(e, "\"history\" is %s; expected a list of pairs", name_of(history));
    for (const JsonValue *pair = json_is_empty(history) ? NULL : json_first(history); pair; pair = pair->next) {
        const JsonValue *question = json_first(pair), *answer = question ? question->next : NULL;
        if (pair->type != JSON_ARRAY || pair->length != 2 || !json_is(question, JSON_STRING)
            || !json_is(answer, JSON_STRING))
            return error_set(e, "\"history\" has an element that is not [\"a question\", \"its answer\"]");
        say(r, "user", question);
        say(r, "assistant", answer);
    }
    return 1;
}

/* A question and its context are two lines, as LLaMA-Factory has them. */
static int read_question(Form *f, Keys *k, int row, Error *e) {
    const JsonValue *question = use(k, json_given(k->record, pairs[row].question)),
        *answer = use(k, json_given(k->record, pairs[row].answer)),
        *context = use(k, json_given(k->record, pairs[row].context)),
        *system = use(k, find(k->record, SYSTEM)), *history = use(k, json_given(k->record, "history")),
        *tools = use(k, find(k->record, TOOLS));
    Reader r = begin(k->json);
    r.variables = use(k, find(k->record, VARIABLES));
    const JsonValue *both = question;
    if (!check_keys(k, 0, e) || !expect_string(question, pairs[row].question, e)
        || !expect_string(answer, pairs[row].answer, e) || (context && !expect_string(context, pairs[row].context, e))
        || !say_system(&r, system, NULL, e) || !read_history(&r, history, e)) return 0;
    if (!json_is_empty(context)) {
        Text text = { 0 };
        text_add_bytes(&text, question->is.string, question->length);
        if (question->length) text_add_string(&text, "\n");
        text_add_bytes(&text, context->is.string, context->length);
        both = json_make_string(k->json, json_keep(k->json, text.at, text.length), text.length);
        free(text.at);
    }
    say(&r, "user", both);
    say(&r, "assistant", answer);
    return finish(&r, tools, f, e);
}

static int read_text(Form *f, const JsonValue *v, Error *e) {
    if (!json_is(v, JSON_STRING))
        return error_set(e, "expected " A_RECORD ": found %s as \"%.60s\"", name_of(v), v->key);
    f->text = (Words){ v->is.string, v->length };
    return 1;
}

static int no_form(const JsonValue *record, Error *e) {
    Text found = { 0 };
    int n = 0;
    for (const JsonValue *v = json_first(record); v && n < 6; v = v->next, n++)
        text_add(&found, "%s\"%.30s\"", n ? ", " : "", v->key);
    error_set(e, "expected " A_RECORD ", or another form that docs/finetune.md has: found %s%s, an object without "
              "\"text\" and \"messages\"; -tf names the field that holds either", found.at ? found.at : "no key",
              record->length > 6 ? ", ..." : "");
    free(found.at);
    return 0;
}

static int read_field(Form *f, Keys *k, const char *field, Error *e) {
    const JsonValue *v = json_get(k->record, field);
    if (json_is(v, JSON_ARRAY)) return read_list(f, k, v, 1, e);
    return v ? read_text(f, v, e) : error_set(e, "found no \"%.100s\", the field that -tf names", field);
}
int form_read(Form *f, Json *json, const char *field, Error *e) {
    const JsonValue *record = json_root(json), *list = find(record, LIST), *preferred = find(record, REFUSED);
    Keys k = { .json = json, .record = record };
    *f = (Form){ 0 };
    const JsonValue *first = json_is(record, JSON_ARRAY) ? json_first(record) : NULL;
    if (json_given(first, "role") || json_given(first, "from"))
        return form_read_chat(f, json, record, NULL, e);
    if (!json_is(record, JSON_OBJECT)) return error_set(e, "expected " A_RECORD ": found %s", name_of(record));
    if (field && *field) return read_field(f, &k, field, e);
    if (list) return read_list(f, &k, list, 0, e);
    if (json_given(record, "completion") || (json_given(record, "prompt") && !preferred)) return read_pair(f, &k, e);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (json_given(record, pairs[i].question) && json_given(record, pairs[i].answer))
            return read_question(f, &k, (int)i, e);
    const JsonValue *text = use(&k, json_get(record, "text"));
    if (text) return read_text(f, text, e) && check_keys(&k, 1, e);
    return preferred ? refuse(&k, preferred, e) : no_form(record, e);
}

int forms_held(const char *text, size_t bytes) {
    enum { LOOKED_AT = 1 << 20 };
    Error e;
    Records r;
    const size_t some = bytes < LOOKED_AT ? bytes : LOOKED_AT;
    size_t white = some >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3) ? 3 : 0;
    while (white < some && text_is_white(text[white])) white++;
    if (white == some || (text[white] != '{' && text[white] != '[')) return 0;
    records_find(&r, text, some, &e);                       /* the last record may be cut */
    Json *json = r.count ? json_parse_record(r.at->at, r.at->bytes, &e) : NULL;
    const JsonValue *v = json ? json_root(json) : NULL;
    const int is = json_is(v, JSON_ARRAY) ? json_given(json_first(v), "role") || json_given(json_first(v), "from")
                 : json && (r.count > 1 || memchr(text, '[', (size_t)(r.at->at - text)))
                   && (find(v, LIST) || find(v, TEXT) || find(v, PROMPT) || (find(v, QUESTION) && find(v, ANSWER)));
    free(r.at);
    json_free(json);
    return is;
}

int form_read_chat(Form *f, Json *json, const JsonValue *messages, const JsonValue *tools, Error *e) {
    Reader r = begin(json);
    *f = (Form){ 0 };
    return read_messages(&r, messages, "messages", e) && finish(&r, tools, f, e);
}
