/* data_text.c: from texts to segments of tokens. Finds the documents, holds some out, trains a tokenizer if asked to, and
 * encodes; or reads the tokens that an earlier start has written (token_cache.c). */
#include "data_impl.h"
#include "bpe.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct { Split split; const Source *source; Documents documents; size_t bytes; } Portion;
typedef struct { Portion *at; int count; } Portions;

static void add_portion(Portions *p, Split split, const Source *source, Documents documents) {
    Portion portion = { split, source, documents, 0 };
    for (size_t i = 0; i < documents.count; i++) portion.bytes += documents.at[i].bytes;
    p->at[p->count++] = portion;
}

static int find_documents(Data *d, Portions *p, Error *e) {
    p->at = mem_alloc(2 * (size_t)d->texts.count * sizeof *p->at);
    for (int i = 0; i < d->texts.count; i++) {
        Source *s = &d->texts.at[i];
        const int use = d->texts.use[i];
        Documents train, held_out;
        if (!source_parse(s, e)) return 0;
        if (use != BOTH) {
            Documents all = { mem_alloc(s->documents * sizeof(Document)), s->documents };
            memcpy(all.at, s->document, s->documents * sizeof(Document));
            add_portion(p, (Split)use, s, all);
            continue;
        }
        const int two = source_hold_out(s, &train, &held_out);
        add_portion(p, DATA_TRAIN, s, train);
        add_portion(p, DATA_VALIDATION, s, held_out);
        if (!two) return data_too_small(s->path, (int64_t)s->bytes, e);
        d->held_out = s->documents > 1 ? HELD_OUT_DOCUMENTS : HELD_OUT_TENTH;
    }
    return 1;
}

/* The number of tokens, if the name of the tokenizer is a number; else -1. */
static int tokens_wanted(const char *name) {
    if (!*name || strspn(name, "0123456789") != strlen(name)) return -1;
    const long long n = strtoll(name, NULL, 10);
    return n > INT_MAX ? INT_MAX : (int)n;
}

static Tokenizer *train_tokenizer(const Portions *p, const DataRequest *r, Error *e) {
    size_t count = 0;
    Document *all = NULL;
    for (int i = 0; i < p->count; i++) {
        const Documents *d = &p->at[i].documents;
        if (p->at[i].split != DATA_TRAIN || !d->count) continue;
        all = mem_grow(all, (count + d->count) * sizeof *all);
        memcpy(all + count, d->at, d->count * sizeof *all);
        count += d->count;
    }
    Tokenizer *t = bpe_train(all, count, tokens_wanted(r->tokenizer), r->pattern, r->show, e);
    free(all);
    return t;
}

static int encode_portion(Data *d, const Portion *p, const Tokenizer *t, Meter *meter, Error *e) {
    Segment *s = data_add_segment(d, p->split, p->source->path, d->is_bytes ? 1 : tokenizer_width(t));
    d->bytes[p->split] += s->bytes = (int64_t)p->bytes;
    if (d->is_bytes) {
        char *next = s->memory = mem_alloc(p->bytes);
        for (size_t i = 0; i < p->documents.count; next += p->documents.at[i++].bytes)
            memcpy(next, p->documents.at[i].at, p->documents.at[i].bytes);
        s->tokens = (int64_t)p->bytes;
    } else
        s->tokens = (int64_t)tokenizer_encode_documents(t, p->documents.at, p->documents.count,
                                                        p->source->separate ? tokenizer_eos(t) : -1, meter, &s->memory);
    return s->tokens > 0 || error_set(e, "%s: the tokenizer makes no tokens of its %zu bytes", p->source->path, p->bytes);
}

static int encode(Data *d, const DataRequest *r, Tokenizer **tokenizer, const Portions *p, Error *e) {
    int64_t bytes = 0;
    int ok = 1;
    Meter meter;
    if (!*tokenizer && r && data_trains_tokenizer(r)) {
        if (!(*tokenizer = train_tokenizer(p, r, e))) return 0;
        d->is_bytes = 0;
    }
    for (int i = 0; i < p->count; i++) bytes += (int64_t)p->at[i].bytes;
    meter_begin(&meter, r && r->show && !d->is_bytes, "encoding the text", bytes, "MB");
    for (int i = 0; i < p->count && ok; i++) ok = encode_portion(d, &p->at[i], *tokenizer, &meter, e);
    meter_end(&meter);
    return ok;
}

int data_encode_texts(Data *d, const DataRequest *r, Tokenizer **tokenizer, Error *e) {
    const int wanted = r ? tokens_wanted(r->tokenizer) : -1;
    Portions p = { 0 };
    d->is_bytes = !*tokenizer || tokenizer_is_bytes(*tokenizer);
    if (r && (wanted >= 0 || !d->is_bytes)) {
        d->text_hash = 1;
        for (int i = 0; i < d->texts.count; i++)
            d->text_hash = source_hash(&d->texts.at[i], d->text_hash + (uint64_t)d->texts.use[i]);
        if (wanted >= 0) d->recipe_hash = hash_bytes((uint64_t)wanted, r->pattern, strlen(r->pattern));
        if (*tokenizer) d->tokenizer_hash = tokenizer_hash(*tokenizer);
        if (r->cache && cache_read(d, r->cache, tokenizer)) return 1;
    }
    const int ok = find_documents(d, &p, e) && encode(d, r, tokenizer, &p, e);
    for (int i = 0; i < p.count; i++) free(p.at[i].documents.at);
    free(p.at);
    return ok;
}

int data_trains_tokenizer(const DataRequest *r) { return tokens_wanted(r->tokenizer) >= 0; }

/* Loads the tokenizer, unless it is to be trained. 0 on error. */
int data_load_tokenizer(const DataRequest *r, Tokenizer **tokenizer, Error *e) {
    const char *path = tokens_wanted(r->tokenizer) < 0 ? r->tokenizer : r->trained ? r->trained : "";
    *tokenizer = *path ? tokenizer_load(path, e) : NULL;
    return *tokenizer || !*path;
}
