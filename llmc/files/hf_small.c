/* hf_small.c: see hf.h. The small files of a folder: what a model came with, and what others read
 * to open it, to end its texts, and to know its context. */
#include "hf.h"
#include "config_json.h"
#include "families.h"
#include <stdlib.h>
#include <string.h>

static int write_file(const char *folder, const char *name, const char *text, size_t bytes, Error *e) {
    char *path = text_format("%s/%s", folder, name);
    size_t n;
    Error none;
    char *there = is_file(path) ? file_read(path, &n, &none) : NULL;
    const int ok = (there && n == bytes && !memcmp(there, text, n)) || file_write(path, text, bytes, e);
    free_each(there, path);
    return ok;
}

/* Files of the tokenizer, and, last, generation_config.json. */
static const char *const companions[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt",
    "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json",
};
enum { COMPANIONS = sizeof companions / sizeof *companions };
struct HfOrigin {
    Json *config;
    Safetensors *weights;               /* for their types; NULL: they are not there any more */
    const char *type;                   /* of most of them */
    struct { char *data; size_t bytes; } file[COMPANIONS];
};

static const char *const types[] = { "F32", "BF16", "F16", "F64" };
enum { TYPES = sizeof types / sizeof *types };

static const char *type_of_most(const HfOrigin *o) {
    uint64_t count[TYPES] = { 0 };
    const JsonValue *root = json_root(o->config);
    const char *named = json_string(json_get(root, "dtype"), json_string(json_get(root, "torch_dtype"), ""));
    int best = 0;
    for (size_t i = 0; o->weights && i < safetensors_count(o->weights); i++)
        for (int k = 0; k < TYPES; k++)
            if (!strcmp(safetensors_at(o->weights, i)->dtype, types[k]))
                count[k] += safetensors_at(o->weights, i)->count;
    for (int k = 0; k < TYPES; k++)
        if (o->weights ? count[k] > count[best] : !strcmp(named, config_type(types[k]))) best = k;
    return types[best];
}
const char *hf_origin_type(const HfOrigin *o, const char *tensor) {
    const FileTensor *t = o->weights && tensor ? safetensors_find(o->weights, tensor) : NULL;
    for (int k = 0; t && k < TYPES; k++) if (!strcmp(t->dtype, types[k])) return types[k];
    return o->type;
}

HfOrigin *hf_origin_open(const char *folder, const char *weights) {
    Error e;
    Json *config = json_read_file(folder, "config.json", &e);
    HfOrigin *o = config ? mem_alloc(sizeof *o) : NULL;
    if (!o) return NULL;
    o->config = config;
    o->weights = is_folder(weights) ? safetensors_open(weights, &e) : NULL;
    o->type = type_of_most(o);
    for (int i = 0; i < COMPANIONS; i++) {
        char *path = text_format("%s/%s", folder, companions[i]);
        if (is_file(path) && !i) o->file[i].data = tokenizer_read(path, &o->file[i].bytes, NULL, &e);
        if (is_file(path) && !o->file[i].data) o->file[i].data = file_read(path, &o->file[i].bytes, &e);
        free(path);
    }
    return o;
}
void hf_origin_free(HfOrigin *o) {
    for (int i = 0; o && i < COMPANIONS; i++) free(o->file[i].data);
    if (o) json_free(o->config);
    if (o) safetensors_close(o->weights);
    free(o);
}

/* Has the model still the tokenizer it came with, which may be one that cannot be read here? */
static int keeps_tokenizer(const HfOrigin *o, const Tokenizer *t) {
    size_t bytes = 0;
    const char *json = t ? tokenizer_json(t, &bytes) : NULL;
    return o && (!t || (o->file[0].data && o->file[0].bytes == bytes && !memcmp(o->file[0].data, json, bytes)));
}

/* ---- where texts end ------------------------------------------------------------------------- */

static int read_ends(const JsonValue *root, int ids[MOST_ENDS]) {
    const JsonValue *v = json_get(root, "eos_token_id");
    int n = 0;
    if (json_is(v, JSON_INT)) ids[n++] = (int)json_int(v, -1);
    else for (const JsonValue *id = json_is(v, JSON_ARRAY) ? json_first(v) : NULL; id && n < MOST_ENDS; id = id->next)
        ids[n++] = (int)json_int(id, -1);
    return n;
}
static int ends_of_file(const char *folder, const char *file, int ids[MOST_ENDS]) {
    Error e;
    Json *json = json_read_file(folder, file, &e);
    const int n = json ? read_ends(json_root(json), ids) : 0;
    json_free(json);
    return n;
}
int hf_end_tokens(const char *folder, const Tokenizer *tokenizer, int ids[MOST_ENDS]) {
    const int n = ends_of_file(folder, "generation_config.json", ids),
        m = n ? n : ends_of_file(folder, "config.json", ids);
    return m || !tokenizer ? m : tokenizer_ends(tokenizer, ids, MOST_ENDS);
}

/* The tokens that end a text or an answer, and the string that ends an answer if it is no token;
 * "": there is none. */
typedef struct { int ids[MOST_ENDS], count; const char *stop; } Ends;

/* generation: the file, or NULL. origin: NULL if the tokenizer is not the one that it came with. */
static Ends ends_of(const JsonValue *generation, const HfOrigin *origin, const Tokenizer *t) {
    Ends ends = { .stop = "" };
    ends.count = read_ends(generation, ends.ids);
    if (!ends.count && origin) ends.count = read_ends(json_root(origin->config), ends.ids);
    if (!ends.count && t && tokenizer_eos(t) >= 0) ends.ids[ends.count++] = tokenizer_eos(t);
    const char *const answer = t ? tokenizer_answer_end(t) : NULL;
    const int id = answer && *answer ? tokenizer_id(t, answer) : -1;
    if (answer && id < 0) ends.stop = answer;
    for (int i = 0; i < ends.count; i++) if (ends.ids[i] == id) return ends;
    if (id >= 0 && ends.count < MOST_ENDS) ends.ids[ends.count++] = id;
    return ends;
}

/* ---- objects of JSON, some of whose members are others --------------------------------------- */

typedef struct { const char *key; Text value; } Member;             /* value: its JSON; empty: as it was */
enum { MOST_MEMBERS = 4 };

static void write_members(const JsonValue *object, const Member *members, Text *out) {
    const char *separator = "{\n  ";
    int written[MOST_MEMBERS] = { 0 };
    for (const JsonValue *v = json_first(object); v; v = v->next) {
        const char *other = NULL;
        for (int i = 0; i < MOST_MEMBERS && members[i].key; i++)
            if (!strcmp(v->key, members[i].key) && members[i].value.length) other = members[i].value.at, written[i] = 1;
        text_add_string(out, separator);
        text_add_json(out, v->key, v->key_length);
        text_add_string(out, ": ");
        if (other) text_add_string(out, other); else json_write(out, v, 1);
        separator = ",\n  ";
    }
    for (int i = 0; i < MOST_MEMBERS && members[i].key; i++) {
        if (written[i] || !members[i].value.length) continue;
        text_add(out, "%s\"%s\": %s", separator, members[i].key, members[i].value.at);
        separator = ",\n  ";
    }
    text_add_string(out, *separator == '{' ? "{}\n" : "\n}\n");
}
/* Writes a file of such an object; one that no member changes, byte by byte as it was. */
static int write_changed(const char *folder, const char *name, const char *text, size_t bytes, Member *members,
                         Error *e) {
    int changes = 0;
    Error none;
    Text out = { 0 };
    for (int i = 0; i < MOST_MEMBERS; i++) changes |= members[i].value.length > 0;
    Json *json = changes ? json_parse(text, bytes, &none) : NULL;
    if (json && json_is(json_root(json), JSON_OBJECT)) write_members(json_root(json), members, &out);
    const int ok = out.at ? write_file(folder, name, out.at, out.length, e) : write_file(folder, name, text, bytes, e);
    for (int i = 0; i < MOST_MEMBERS; i++) free(members[i].value.at);
    json_free(json);
    free(out.at);
    return ok;
}

static void write_id(Text *out, int id) {
    if (id < 0) text_add_string(out, "null");
    else text_add(out, "%d", id);
}
/* An integer, as most readers expect it; a list of several. */
static void write_ids(Text *out, const Ends *ends) {
    if (ends->count < 2) { write_id(out, ends->count ? ends->ids[0] : -1); return; }
    for (int i = 0; i < ends->count; i++) text_add(out, "%s%d", i ? ", " : "[", ends->ids[i]);
    text_add_string(out, "]");
}

/* ---- writing --------------------------------------------------------------------------------- */

enum { GENERATION = COMPANIONS - 1, TOKENIZER_CONFIG = 1 };

/* How text is drawn, and where it ends: generate() of Transformers, vLLM and SGLang read this. */
static int save_generation(const char *folder, const HfOrigin *origin, const Tokenizer *t, Error *e) {
    static const char usual[] = "{\n  \"do_sample\": true,\n  \"temperature\": 0.8,\n  \"top_p\": 0.95\n}\n";
    Member members[MOST_MEMBERS] = { { "eos_token_id", { 0 } }, { "stop_strings", { 0 } }, { "pad_token_id", { 0 } } };
    const char *text = origin && origin->file[GENERATION].data ? origin->file[GENERATION].data : usual;
    const size_t bytes = text == usual ? sizeof usual - 1 : origin->file[GENERATION].bytes;
    Error none;
    Json *json = json_parse(text, bytes, &none);
    const JsonValue *root = json ? json_root(json) : NULL, *stops = json_get(root, "stop_strings");
    int before[MOST_ENDS], known = 0;
    const Ends ends = ends_of(root, origin, t);
    if (ends.count != read_ends(root, before)) write_ids(&members[0].value, &ends);
    if (!origin && ends.count) write_id(&members[2].value, ends.ids[0]);
    for (const JsonValue *v = json_is(stops, JSON_ARRAY) ? json_first(stops) : stops; v; v = v->next) {
        known |= !strcmp(json_string(v, ""), ends.stop);
        if (json_is(stops, JSON_STRING)) break;
    }
    if (*ends.stop && !known) {
        text_add_string(&members[1].value, "[");
        text_add_json(&members[1].value, ends.stop, strlen(ends.stop));
        for (const JsonValue *v = json_is(stops, JSON_ARRAY) ? json_first(stops) : NULL; v; v = v->next) {
            text_add_string(&members[1].value, ", ");
            json_write(&members[1].value, v, 1);
        }
        text_add_string(&members[1].value, "]");
    }
    const int ok = write_changed(folder, companions[GENERATION], text, bytes, members, e);
    json_free(json);
    return ok;
}

/* A new tokenizer's files. */
static int save_tokenizer(const char *folder, const Model *m, const Tokenizer *t, Error *e) {
    static const char *const roles[] = { "eos_token", "pad_token", "bos_token" };
    const int ids[] = { tokenizer_eos(t), tokenizer_eos(t), tokenizer_bos(t) };
    size_t bytes, length;
    Text settings = { 0 };
    const char *json = tokenizer_json(t, &bytes);
    text_add(&settings, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  "
                        "\"clean_up_tokenization_spaces\": false,\n");
    for (int i = 0; i < 3; i++) {
        const char *piece = tokenizer_added(t, ids[i], &length);
        if (!piece) continue;
        text_add(&settings, "  \"%s\": ", roles[i]);
        text_add_json(&settings, piece, length);
        text_add_string(&settings, ",\n");
    }
    text_add(&settings, "  \"model_max_length\": %d\n}\n", m->config.context);
    const int ok = write_file(folder, "tokenizer.json", json, bytes, e)
                && write_file(folder, companions[TOKENIZER_CONFIG], settings.at, settings.length, e);
    free(settings.at);
    return ok;
}
/* The files of the tokenizer that the model came with; its longest text grows with the context. */
static int keep_tokenizer(const char *folder, const Model *m, const HfOrigin *o, Error *e) {
    int ok = 1;
    for (int i = 0; i < GENERATION && ok; i++) {
        Member members[MOST_MEMBERS] = { { "model_max_length", { 0 } } };
        Error none;
        Json *json = i == TOKENIZER_CONFIG && o->file[i].data ? json_parse(o->file[i].data, o->file[i].bytes, &none)
                                                             : NULL;
        const double longest = json ? json_double(json_get(json_root(json), "model_max_length"), 1e30) : 1e30;
        if (longest < m->config.context) text_add(&members[0].value, "%d", m->config.context);
        json_free(json);
        if (o->file[i].data)
            ok = write_changed(folder, companions[i], o->file[i].data, o->file[i].bytes, members, e);
    }
    return ok;
}

/* Of a family that only this project has: its model in PyTorch, for Transformers. */
extern const char *const modeling_smoe_py[];            /* llmc/files/modeling_smoe.py, line by line; NULL at the end */
static int save_modeling(const char *folder, Error *e) {
    Text text = { 0 };
    for (int i = 0; modeling_smoe_py[i]; i++) text_add_string(&text, modeling_smoe_py[i]);
    const int ok = write_file(folder, "modeling_smoe.py", text.at, text.length, e);
    free(text.at);
    return ok;
}
/* config.json. Of a new tokenizer also its ids: where they are missing, classes have others. */
static int save_config(const char *folder, const Model *m, const HfOrigin *origin, const Tokenizer *t, int keeps,
                       Error *e) {
    Text config = { 0 };
    Member members[MOST_MEMBERS] = { { "bos_token_id", { 0 } }, { "eos_token_id", { 0 } }, { "pad_token_id", { 0 } } };
    const char *type = origin ? origin->type : m->dev->dtype;              /* that of the files at the end (export.h) */
    if (!origin || !config_to_json_like(&m->config, type, json_root(origin->config), &config)) {
        config_to_json(&m->config, type, 0, &config);
        if (origin && keeps) config_add_ids(&config, json_root(origin->config));
    }
    if (!keeps) {
        write_id(&members[0].value, t ? tokenizer_bos(t) : -1);
        write_id(&members[1].value, t ? tokenizer_eos(t) : -1);
        write_id(&members[2].value, -1);
    }
    const int ok = write_changed(folder, "config.json", config.at, config.length, members, e);
    free(config.at);
    return ok;
}
int hf_save_small(const char *folder, const Model *m, const Tokenizer *tokenizer, const HfOrigin *origin, Error *e) {
    const int keeps = keeps_tokenizer(origin, tokenizer);
    int ok = save_config(folder, m, origin, tokenizer, keeps, e);
    if (ok && config_family(&m->config) == FAMILY_SMOE) ok = save_modeling(folder, e);
    if (ok && keeps) ok = keep_tokenizer(folder, m, origin, e);
    if (ok && tokenizer && !keeps) ok = save_tokenizer(folder, m, tokenizer, e);
    ok = ok && save_generation(folder, keeps ? origin : NULL, tokenizer, e);
    const char *chat = tokenizer ? tokenizer_chat(tokenizer) : NULL;
    if (ok && chat) ok = write_file(folder, "chat_template.jinja", chat, strlen(chat), e);
    return ok;
}
