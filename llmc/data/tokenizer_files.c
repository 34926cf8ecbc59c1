/* tokenizer_files.c: tokens that only the files beside a tokenizer.json name, as Transformers 5.24
 * reads them: added_tokens_decoder, special tokens and extra_special_tokens of
 * tokenizer_config.json; without the first, also special_tokens_map.json and added_tokens.json.
 * What is new gets the next id. Transformers 4.57 does the same, but also lets add_prefix_space of
 * tokenizer_config.json replace that of a tokenizer.json: where they differ it is refused. */
#define _POSIX_C_SOURCE 200809L
#include "tokenizer_impl.h"
#include "llmc/base/json.h"
#include <stdlib.h>
#include <string.h>

enum { SPECIAL, NORMALIZED, LSTRIP, RSTRIP, SINGLE_WORD, FLAGS };
static const char *const flag_names[FLAGS] = { "special", "normalized", "lstrip", "rstrip", "single_word" };
enum { NAMED = 7 };
static const char *const named[NAMED] = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                                          "mask_token" };

typedef struct { const char *at; size_t bytes; int64_t id; int flag[FLAGS]; } Token;
typedef struct {
    const JsonValue *vocab;
    Token *token; size_t count, capacity;               /* those of tokenizer.json, then new ones */
    int changed;
    Error *e;
} Tokens;

static Token *find(const Tokens *t, const char *at, size_t bytes) {
    for (size_t i = 0; i < t->count; i++)
        if (t->token[i].bytes == bytes && !memcmp(t->token[i].at, at, bytes)) return &t->token[i];
    return NULL;
}
static int64_t next_id(const Tokens *t) {
    int64_t id = (int64_t)t->vocab->length - 1;
    for (size_t i = 0; i < t->count; i++) if (t->token[i].id > id) id = t->token[i].id;
    return id + 1;
}
static void append(Tokens *t, Token x) {
    array_grow(t->token, t->count, t->capacity);
    t->token[t->count++] = x;
}

/* The token of a string, or an object with its "content" and flags. 0: it is neither. */
static int token_of(const JsonValue *v, int is_special, Token *x) {
    const JsonValue *content = json_is(v, JSON_OBJECT) ? json_get(v, "content") : v;
    if (!json_is(content, JSON_STRING)) return 0;
    *x = (Token){ .at = content->is.string, .bytes = content->length, .id = -1 };
    for (int i = 0; i < FLAGS; i++) x->flag[i] = json_bool(json_get(v, flag_names[i]), 0);
    x->flag[SPECIAL] |= is_special;
    if (!json_get(v, flag_names[NORMALIZED])) x->flag[NORMALIZED] = !x->flag[SPECIAL];
    return x->bytes > 0;
}

/* A token of a list with ids. It may have other flags than in tokenizer.json, but no other id. */
static int add_with_id(Tokens *t, Token x, const char *file) {
    Token *known = find(t, x.at, x.bytes);
    const int64_t wanted = x.id;
    const JsonValue *v = json_find(t->vocab, x.at, x.bytes);
    x.id = known ? known->id : v ? json_int(v, -1) : next_id(t);
    if (x.id != wanted)
        return error_set(t->e, "%s: token %.100s has the id %lld, but Transformers gives it %lld, of tokenizer.json or "
                         "the next one: correct the file", file, x.at, (long long)wanted, (long long)x.id);
    t->changed |= !known || memcmp(known->flag, x.flag, sizeof x.flag);
    if (known) *known = x; else append(t, x);
    return 1;
}
static void add_special(Tokens *t, const JsonValue *v) {
    Token x;
    if (!token_of(v, 1, &x) || find(t, x.at, x.bytes)) return;
    const JsonValue *in = json_find(t->vocab, x.at, x.bytes);
    x.id = in ? json_int(in, -1) : next_id(t);
    append(t, x);
    t->changed = 1;
}

static int by_id(const void *a, const void *b) {
    const int64_t x = ((const Token *)a)->id, y = ((const Token *)b)->id;
    return (x > y) - (x < y);
}
/* The members {"id": {"content", ...}} or, plain, {"content": id}; special: what then is. */
static int add_listed(Tokens *t, const JsonValue *list, int plain, const Tokens *special, const char *file) {
    Token *sorted = mem_alloc((list ? list->length : 0) * sizeof *sorted);
    size_t n = 0;
    int ok = 1;
    for (const JsonValue *v = json_first(list); v; v = v->next) {
        Token x = { .at = v->key, .bytes = v->key_length, .id = json_int(v, -1) };
        if (plain) x.flag[SPECIAL] = find(special, x.at, x.bytes) != NULL, x.flag[NORMALIZED] = !x.flag[SPECIAL];
        else if (token_of(v, 0, &x)) x.id = strtoll(v->key, NULL, 10);
        else continue;
        sorted[n++] = x;
    }
    if (n) qsort(sorted, n, sizeof *sorted, by_id);
    for (size_t i = 0; i < n && ok; i++) ok = add_with_id(t, sorted[i], file);
    free(sorted);
    return ok;
}

/* The value of a special token's name: of special_tokens_map.json (map), else of the config. */
static const JsonValue *value_of(const JsonValue *config, const JsonValue *map, const char *key) {
    return json_get(map, key) ? json_get(map, key) : json_get(config, key);
}
static void add_members(Tokens *t, const JsonValue *list) {
    for (const JsonValue *v = json_first(list); v; v = v->next) add_special(t, v);
}
/* A name beyond the usual ones: image_token and the like. */
static int is_other_name(const JsonValue *v) {
    const size_t n = v->key ? v->key_length : 0;
    int is = n >= 7 && !strcmp(v->key + n - 6, "_token") && json_is(v, JSON_STRING);
    for (int k = 0; k < NAMED; k++) is &= n && strcmp(v->key, named[k]);
    return is;
}
static void add_specials(Tokens *t, const JsonValue *config, const JsonValue *map) {
    const JsonValue *both[] = { config, map };
    const JsonValue *extra = json_get(config, "extra_special_tokens"),
        *old = json_get(config, "additional_special_tokens");
    for (int i = 0; i < NAMED; i++) add_special(t, value_of(config, map, named[i]));
    for (int i = 0; i < 2; i++)
        for (const JsonValue *v = json_first(both[i]); v; v = v->next) if (is_other_name(v)) add_special(t, v);
    if (!extra || !extra->length) extra = old;
    add_members(t, extra);
    add_members(t, json_get(map, "extra_special_tokens"));
    if (!extra) add_members(t, json_get(map, "additional_special_tokens"));
}

static void add_variable(Json *memory, JsonValue *all, const char *name, const JsonValue *v) {
    const JsonValue *content = json_is(v, JSON_OBJECT) ? json_get(v, "content") : v;
    if (json_is(content, JSON_STRING) && !json_get(all, name)) json_append(all, name, json_copy(memory, content));
}
JsonValue *tokenizer_specials(Json *memory, const JsonValue *config, const JsonValue *map) {
    JsonValue *all = json_make(memory, JSON_OBJECT);
    const JsonValue *extra = json_get(config, "extra_special_tokens");
    if (json_get(config, "added_tokens_decoder")) map = NULL;
    for (int i = 0; i < NAMED; i++) add_variable(memory, all, named[i], value_of(config, map, named[i]));
    const JsonValue *others[] = { config, map, json_is(extra, JSON_OBJECT) ? extra : NULL };
    for (int i = 0; i < 3; i++)
        for (const JsonValue *v = json_first(others[i]); v; v = v->next)
            if (i == 2 || is_other_name(v)) add_variable(memory, all, v->key, v);
    return all;
}

/* Does the config contradict the step of tokenizer.json, or ask for what is an option here? */
static int check_prefix(const JsonValue *root, const JsonValue *config, Error *e) {
    const JsonValue *step = json_get(root, "pre_tokenizer"), *theirs = json_get(config, "add_prefix_space");
    const int ours = json_bool(json_get(step, "add_prefix_space"), 1);
    if (json_bool(json_get(config, "split_special_tokens"), 0))
        return error_set(e, "split_special_tokens is true in tokenizer_config.json: control tokens in texts are split; "
                         "-sp 1 does that. Remove the key, and choose by -sp");
    if (strcmp(json_string(json_get(step, "type"), ""), "ByteLevel") || !json_is(theirs, JSON_BOOL)
        || json_bool(theirs, 0) == ours) return 1;
    return error_set(e, "add_prefix_space is %s in tokenizer.json, but %s in tokenizer_config.json, and versions of "
                     "Transformers differ in which they follow: write the same in both", ours ? "true" : "false",
                     ours ? "false" : "true");
}

static void write_token(Text *out, const Token *x) {
    text_add(out, "\n    {\"id\": %lld, \"content\": ", (long long)x->id);
    text_add_json(out, x->at, x->bytes);
    for (int i = 0; i < FLAGS; i++) text_add(out, ", \"%s\": %s", flag_names[i], x->flag[i] ? "true" : "false");
    text_add(out, "}");
}
/* tokenizer.json with these added tokens, in the order of their ids. */
static void write_all(Text *out, const JsonValue *root, Tokens *t) {
    qsort(t->token, t->count, sizeof *t->token, by_id);
    text_add(out, "{\n  \"added_tokens\": [");
    for (size_t i = 0; i < t->count; i++) {
        text_add(out, i ? "," : "");
        write_token(out, &t->token[i]);
    }
    text_add(out, "\n  ]");
    for (const JsonValue *v = json_first(root); v; v = v->next) {
        if (!strcmp(v->key, "added_tokens")) continue;
        text_add(out, ",\n  ");
        text_add_json(out, v->key, v->key_length);
        text_add(out, ": ");
        json_write(out, v, 1);
    }
    text_add(out, "\n}\n");
}

/* Adds what the files of the folder say to tokenizer.json's text, if it changes it. */
static int add_files(const char *folder, const JsonValue *root, Text *out, char **eos, Error *e) {
    int ok = 1;
    Json *config = json_read_beside(folder, "tokenizer_config.json", &ok, e),
        *map = json_read_beside(folder, "special_tokens_map.json", &ok, e),
        *added = json_read_beside(folder, "added_tokens.json", &ok, e);
    const JsonValue *c = config ? json_root(config) : NULL, *m = map ? json_root(map) : NULL,
        *decoder = json_get(c, "added_tokens_decoder");
    Tokens t = { .vocab = json_get(json_get(root, "model"), "vocab"), .e = e }, special = { .vocab = t.vocab };
    if (decoder) m = NULL;
    for (const JsonValue *v = json_first(json_get(root, "added_tokens")); v; v = v->next) {
        Token x;
        if (token_of(v, 0, &x)) x.id = json_int(json_get(v, "id"), -1), append(&t, x);
    }
    if (ok && json_is(t.vocab, JSON_OBJECT)) {
        add_specials(&special, c, m);
        if (decoder) ok = add_listed(&t, decoder, 0, NULL, "tokenizer_config.json, added_tokens_decoder");
        else if (added) ok = add_listed(&t, json_root(added), 1, &special, "added_tokens.json");
        if (ok) add_specials(&t, c, m);
        ok = ok && check_prefix(root, c, e);
        Token end;
        if (ok && token_of(value_of(c, m, "eos_token"), 1, &end)) *eos = text_format("%s", end.at);
        if (ok && t.changed) write_all(out, root, &t);
    }
    free_each(t.token, special.token);
    json_free(config), json_free(map), json_free(added);
    return ok;
}

char *tokenizer_read(const char *path, size_t *bytes, char **eos, Error *e) {
    static const char name[] = "tokenizer.json";
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    char *text = file_read(path, bytes, e), *own = NULL, **end = eos ? eos : &own;
    if (!text || strcmp(file, name)) return text;
    Error why;
    Json *json = json_parse(text, *bytes, &why);
    char *folder = folder_of(path);
    Text out = { 0 };
    const int ok = !json || add_files(folder, json_root(json), &out, end, e);
    json_free(json);
    free_each(folder, own);
    if (ok && !out.at) return text;
    free(text);
    *bytes = out.length;
    return out.at;
}
