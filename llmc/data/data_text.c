/* data_text.c: from texts and conversations to segments of tokens. Finds the documents, holds some
 * out, trains a tokenizer if asked to, and encodes; or reads token_cache.c's tokens. */
#include "data_impl.h"
#include "bpe.h"
#include "forms.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { Split split; const Source *source; Documents documents; size_t bytes; } Portion;
typedef struct { Portion *at; int count; } Portions;

static void add_portion(Portions *p, Split split, const Source *source, Documents documents) {
    Portion portion = { split, source, documents, 0 };
    for (size_t i = 0; i < documents.count; i++) portion.bytes += documents.at[i].bytes;
    p->at[p->count++] = portion;
}
static int find_documents(Data *d, const DataRequest *r, Portions *p, Error *e) {
    int has_chats = 0;
    p->at = mem_alloc(2 * (size_t)d->texts.count * sizeof *p->at);
    for (int i = 0; i < d->texts.count; i++) {
        Source *s = &d->texts.at[i];
        const int use = d->texts.use[i];
        Documents train, held_out;
        /* else a conversation is tried when it is encoded */
        if (!source_parse(s, r && data_trains_tokenizer(r) ? &d->chat : NULL, d->field, e)) return 0;
        has_chats |= s->has_chats;
        if (s->has_pairs && *chat_name(&d->chat) && r && r->show)
            warn("%s: prompts and completions that are strings are read as they are, as TRL does, without the chat "
                 "template; lists of messages are written with it", s->path);
        if (use != BOTH) {
            Documents all = { mem_alloc(s->documents * sizeof(Document)), s->documents };
            memcpy(all.at, s->document, s->documents * sizeof(Document));
            add_portion(p, (Split)use, s, all);
            continue;
        }
        const int two = source_hold_out(s, &train, &held_out);
        add_portion(p, DATA_TRAIN, s, train);
        add_portion(p, DATA_VALIDATION, s, held_out);
        if (!two && s->has_chats)
            return error_set(e, "%s: found one conversation, expected at least 2 to hold one out for validation; or "
                             "give validation data of its own (-j)", s->path);
        if (!two) return data_too_small(s->path, (int64_t)s->bytes, e);
        d->held_out = s->documents == 1 ? HELD_OUT_TENTH : s->documents < 10 ? HELD_OUT_LAST : HELD_OUT_DOCUMENTS;
    }
    d->has_chats = has_chats;
    return 1;
}

/* The number of tokens, if the name of the tokenizer is a number; else -1. */
static int tokens_wanted(const char *name) {
    if (!*name || strspn(name, "0123456789") != strlen(name)) return -1;
    const long long n = strtoll(name, NULL, 10);
    return n > INT_MAX ? INT_MAX : (int)n;
}

/* A document that is a record, which source_parse accepted; json_free the result. */
static Json *read_record(const Document *d, const char *field, Form *f) {
    Error e;
    Json *json = json_parse_record(d->at, d->bytes, &e);
    if (!json || !form_read(f, json, field, &e)) fail(EXIT_INPUT, "a record that was accepted: %s", e.text);
    return json;
}

/* A prompt and its completion. */
static Text join_pair(const Form *f) {
    Text text = { 0 };
    text_add_bytes(&text, f->prompt.at, f->prompt.bytes);
    text_add_bytes(&text, f->completion.at, f->completion.bytes);
    return text;
}

/* A record as text. NULL: it is none. */
static char *write_record(const Data *data, const Document *d, size_t *bytes) {
    Error e;
    Text text = { 0 };
    if (!d->is_record) return NULL;
    Form f;
    Json *json = read_record(d, data->field, &f);
    if (!f.chat) text = join_pair(&f);
    else if (!chat_write(&data->chat, f.chat, 0, &text, NULL, &e))
        fail(EXIT_INPUT, "a conversation that was accepted: %s", e.text);
    json_free(json);
    *bytes = text.length;
    return text.at;
}

static Tokenizer *train_tokenizer(const Data *data, const Portions *p, const DataRequest *r, Error *e) {
    size_t count = 0;
    Document *all = NULL;
    for (int i = 0; i < p->count; i++) {
        const Documents *d = &p->at[i].documents;
        if (p->at[i].split != DATA_TRAIN || !d->count) continue;
        all = mem_grow(all, (count + d->count) * sizeof *all);
        memcpy(all + count, d->at, d->count * sizeof *all);
        count += d->count;
    }
    char **written = mem_alloc((count + 1) * sizeof *written);
    for (size_t i = 0; i < count; i++)
        if ((written[i] = write_record(data, &all[i], &all[i].bytes))) all[i].at = written[i];
    Tokenizer *t = bpe_train(all, count, tokens_wanted(r->tokenizer), r->pattern, r->show, e);
    for (size_t i = 0; i < count; i++) free(written[i]);
    free_each(written, all);
    return t;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* A pair's tokens: those of both texts as one; the prompt's own, as far as they are the same, do
 * not count. */
static int64_t encode_pair(const Tokenizer *t, const Form *f, int **ids, unsigned char **counts, Controls *controls) {
    int *own;
    Text text = join_pair(f);
    const size_t n = tokenizer_encode_part(t, text.at, 0, text.length, ids, NULL, controls),
        prompt = tokenizer_encode(t, f->prompt.at, f->prompt.bytes, &own);
    size_t same = 0;
    while (same < n && same < prompt && own[same] == (*ids)[same]) same++;
    memset(*counts = mem_alloc(n + 1), 1, n + 1);
    memset(*counts, 0, same);
    free_each(text.at, own);
    return (int64_t)n;
}

/* A conversation, or a text or a pair with the token that ends it, as tokens with flags;
 * free(*tokens). -1: the chat template refuses it. */
static int64_t encode_sample(const Data *data, const Tokenizer *t, const Document *d, uint32_t **tokens,
                             Controls *controls, Error *e) {
    int *ids = NULL;
    unsigned char *counts = NULL;
    Form f = { 0 };
    Json *json = d->is_record ? read_record(d, data->field, &f) : NULL;
    const int is_chat = f.chat != NULL;
    const int64_t made = is_chat ? chat_encode(&data->chat, t, f.chat, 0, &ids, &counts, controls, e)
                       : json ? encode_pair(t, &f, &ids, &counts, controls)
                       : (int64_t)tokenizer_encode_part(t, d->at, 0, d->bytes, &ids, NULL, controls);
    json_free(json);
    if (made < 0) return -1;
    const size_t begun = is_chat ? (size_t)made : tokenizer_begin(t, &ids, (size_t)made, 0), own = begun - (size_t)made,
        ends = !is_chat && tokenizer_eos(t) >= 0, count = begun + ends;
    *tokens = mem_alloc((count + 1) * sizeof **tokens);
    for (size_t i = 0; i < count; i++)
        (*tokens)[i] = (uint32_t)(i < begun ? ids[i] : tokenizer_eos(t))
            | (counts && i < begun && (i < own || !counts[i - own]) ? 0 : TOKEN_COUNTS);
    (*tokens)[0] |= TOKEN_FIRST;
    free_each(ids, counts);
    return (int64_t)count;
}

/* All of a portion; -1 and a message about the first that is refused. */
static int64_t encode_samples(const Data *data, const Tokenizer *t, const Portion *p, Meter *meter, void **to,
                              Controls *controls, Error *e) {
    const int64_t n = (int64_t)p->documents.count;
    struct { uint32_t *tokens; int64_t count; Controls controls; } *done = mem_alloc(((size_t)n + 1) * sizeof *done);
    int64_t all = 0, bad = n;
    Error why = { 0 };
    #pragma omp parallel for schedule(dynamic, 16)
    for (int64_t i = 0; i < n; i++) {
        Error mine;
        done[i].count = encode_sample(data, t, &p->documents.at[i], &done[i].tokens, &done[i].controls, &mine);
        meter_add(meter, (int64_t)p->documents.at[i].bytes);
        if (done[i].count >= 0) continue;
        done[i].count = 0;
        #pragma omp critical(samples)
        if (i < bad) bad = i, why = mine;
    }
    for (int64_t i = 0; i < n; i++) {
        all += done[i].count;
        controls_add(controls, &done[i].controls);
    }
    uint32_t *next = *to = mem_alloc(((size_t)all + 1) * sizeof *next);
    for (int64_t i = 0; i < n; next += done[i++].count) {
        if (done[i].count) memcpy(next, done[i].tokens, (size_t)done[i].count * sizeof *next);
        free(done[i].tokens);
    }
    free(done);
    return bad == n ? all : source_refuse(p->source, &p->documents.at[bad], why.text, e) - 1;
}

int data_show_chat(const Data *d, const Tokenizer *t, int most, Text *out) {
    const Segment *p = d->segment[DATA_TRAIN], *end = p + d->segments[DATA_TRAIN];
    Error e;
    while (p < end && !p->is_chats) p++;
    if (p == end) return 0;
    const int64_t n = p->tokens < most ? p->tokens : most;
    uint32_t *tokens = mem_alloc((size_t)n * sizeof *tokens);
    int learned = 0;
    int64_t i = 0;
    const int ok = data_read_raw(p, 0, n, tokens, &e);
    for (; ok && i < n && !(i && tokens[i] & TOKEN_FIRST); i++) {
        size_t bytes;
        const int counts = i && tokens[i] & TOKEN_COUNTS;
        const char *piece = tokenizer_shown(t, (int)(tokens[i] & TOKEN_ID), &bytes);
        if (counts != learned) text_add_string(out, counts ? "[[" : "]]");
        text_add_bytes(out, piece, bytes);
        learned = counts;
    }
    if (learned) text_add_string(out, "]]");
    if (i == n && n < p->tokens) text_add_string(out, " ...");
    free(tokens);
    return ok;
}

/* Tokens of 16 bits as 32: all segments of a cache have one width. */
static void widen(Segment *s) {
    uint32_t *wide = mem_alloc((size_t)s->tokens * sizeof *wide);
    for (int64_t i = 0; i < s->tokens; i++) wide[i] = ((const uint16_t *)s->memory)[i];
    free(s->memory);
    s->memory = wide;
    s->width = 4;
}
/* What a file spells out may be meant, as <|endoftext|> between stories, or may not. */
static void say_controls(const Portion *p, const Tokenizer *t, const Controls *c) {
    size_t bytes;
    const char *first = c->count ? tokenizer_added(t, c->first, &bytes) : NULL;
    if (!first) return;
    warn("%s spells out %zu control token%s, the first %.*s: %s", p->source->path, c->count, c->count > 1 ? "s" : "",
         (int)bytes, first, tokenizer_splits_controls(t) ? "encoded as text (-sp)"
         : "encoded as control tokens, as Transformers does; -sp 1 encodes them as ordinary text");
}
static int encode_portion(Data *d, const Portion *p, const Tokenizer *t, int says, Meter *meter, Error *e) {
    const int chats = p->source->has_chats;
    Controls controls = { 0 };
    Segment *s = data_add_segment(d, p->split, p->source->path, chats ? 4 : d->is_bytes ? 1 : tokenizer_width(t));
    s->is_chats = chats;
    if (!chats) d->bytes[p->split] += s->bytes = (int64_t)p->bytes;
    if (chats) {
        Tokenizer *bytes = t ? NULL : tokenizer_bytes();
        s->tokens = encode_samples(d, t ? t : bytes, p, meter, &s->memory, &controls, e);
        tokenizer_free(bytes);
        if (s->tokens < 0) return s->tokens = 0;
    } else if (d->is_bytes) {
        char *next = s->memory = mem_alloc(p->bytes);
        for (size_t i = 0; i < p->documents.count; next += p->documents.at[i++].bytes)
            memcpy(next, p->documents.at[i].at, p->documents.at[i].bytes);
        s->tokens = (int64_t)p->bytes;
    } else
        s->tokens = (int64_t)tokenizer_encode_documents(t, p->documents.at, p->documents.count,
                                                        p->source->separate ? tokenizer_eos(t) : -1, meter, &s->memory,
                                                        &controls);
    if (says && t) say_controls(p, t, &controls);
    if (d->has_chats && s->width == 2) widen(s);
    return s->tokens > 0
        || error_set(e, "%s: the tokenizer makes no tokens of its %zu bytes", p->source->path, p->bytes);
}

static int encode(Data *d, const DataRequest *r, Tokenizer **tokenizer, const Portions *p, Error *e) {
    int64_t bytes = 0;
    int ok = 1;
    Meter meter;
    if (!*tokenizer && r && data_trains_tokenizer(r)) {
        if (!(*tokenizer = train_tokenizer(d, p, r, e))) return 0;
        d->is_bytes = 0;
        tokenizer_split_controls(*tokenizer, r->splits);
    }
    for (int i = 0; i < p->count; i++) bytes += (int64_t)p->at[i].bytes;
    meter_begin(&meter, r && r->show && !d->is_bytes, "encoding the text", bytes, "MB");
    for (int i = 0; i < p->count && ok; i++) ok = encode_portion(d, &p->at[i], *tokenizer, r && r->show, &meter, e);
    meter_end(&meter);
    return ok;
}

/* -ct, or the template of the folder that the tokenizer is in. */
static int open_chat(Data *d, const DataRequest *r, Error *e) {
    const char *path = r && tokens_wanted(r->tokenizer) < 0 && *r->tokenizer ? r->tokenizer : NULL,
        *slash = path ? strrchr(path, '/') : NULL;
    char *folder = !path ? NULL : slash ? text_format("%.*s", (int)(slash - path), path) : text_format(".");
    const int ok = chat_open(&d->chat, r && r->chat ? r->chat : "", folder, e);
    free(folder);
    return ok;
}
int data_encode_texts(Data *d, const DataRequest *r, Tokenizer **tokenizer, Error *e) {
    const int wanted = r ? tokens_wanted(r->tokenizer) : -1;
    Portions p = { 0 };
    d->is_bytes = !*tokenizer || tokenizer_is_bytes(*tokenizer);
    d->bos = *tokenizer ? tokenizer_bos(*tokenizer) : -1;
    if (!open_chat(d, r, e)) return 0;
    if (r && (wanted >= 0 || !d->is_bytes)) {
        d->text_hash = FORMS_VERSION;
        for (int i = 0; i < d->texts.count; i++)
            d->text_hash = source_hash(&d->texts.at[i], d->text_hash + (uint64_t)d->texts.use[i]);
        if (wanted >= 0) d->recipe_hash = hash_bytes((uint64_t)wanted, r->pattern, strlen(r->pattern));
        if (*tokenizer) d->tokenizer_hash = tokenizer_hash(*tokenizer);
        if (r->splits) d->text_hash = hash_bytes(d->text_hash, "split", 5);
        if (*d->field) d->text_hash = hash_bytes(d->text_hash, d->field, strlen(d->field));
        d->text_hash = chat_hash(&d->chat, d->text_hash);
        if (d->bos >= 0) d->text_hash = hash_bytes(d->text_hash, &d->bos, sizeof d->bos);
        if (r->cache && cache_read(d, r->cache, tokenizer)) return 1;
    }
    const int ok = find_documents(d, r, &p, e) && encode(d, r, tokenizer, &p, e);
    for (int i = 0; i < p.count; i++) free(p.at[i].documents.at);
    free(p.at);
    return ok;
}

int data_trains_tokenizer(const DataRequest *r) { return tokens_wanted(r->tokenizer) >= 0; }

/* Loads the tokenizer, unless it is to be trained. 0 on error. */
int data_load_tokenizer(const DataRequest *r, Tokenizer **tokenizer, Error *e) {
    const char *path = tokens_wanted(r->tokenizer) < 0 ? r->tokenizer : r->trained ? r->trained : "";
    if (*path && path == r->tokenizer && !is_file(path))
        return error_set(e, "-tk %s: %s; expected a tokenizer.json, or a number: the size of a BPE to train on the "
                         "text", path,
                         is_folder(path) ? "a folder" : access(path, F_OK) ? strerror(errno) : "not a regular file");
    *tokenizer = *path ? tokenizer_load(path, e) : NULL;
    if (*tokenizer) tokenizer_split_controls(*tokenizer, r->splits);
    return *tokenizer || !*path;
}
