/* token_cache.c: keeps the tokens of a text, and the tokenizer, in one file, so that a second start
 * need not encode again.
 *
 *   Header | Row of each segment | tokenizer.json, padded to 8 bytes | tokens of each segment
 *
 * The file is used if the hash of all text is the same, and the tokenizer is the one given or was
 * trained with the same settings. Numbers have this machine's byte order, or MAGIC differs. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "data_impl.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x32736e656b6f746dull     /* "mtokens2"; a change of the format or of the tokens needs another digit */
enum { CHUNK = 1 << 20, ROWS_MAX = 1 << 20 };
typedef struct {
    uint64_t magic, text, recipe, tokenizer, size;      /* hashes, see Data; bytes of the file */
    uint64_t hash;                                      /* of this header with hash = 0, and of all that follows */
    uint32_t width, rows, held_out, json_bytes;
} Header;
typedef struct { int64_t split, tokens, bytes; } Row;   /* split: a Split, plus CHATS if tokens are of conversations */
enum { CHATS = 2 };

static size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }
static char *cache_path(const char *folder) { return text_format("%s/tokens.cache", folder); }

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct { Segment file; Header header; Row *rows; char *json; int64_t tokens_at; } Cache;

/* The hash that a file with this header begins with. */
static uint64_t hash_header(Header h) {
    h.hash = 0;
    return hash_bytes(0, &h, sizeof h);
}
static int check_hash(const Cache *c, Error *e) {
    const int64_t size = (int64_t)c->header.size;
    uint64_t hash = hash_header(c->header);
    char *buffer = mem_alloc(CHUNK);
    int ok = 1;
    for (int64_t at = sizeof c->header, n; ok && at < size; at += n) {
        n = size - at < CHUNK ? size - at : CHUNK;
        if ((ok = data_read_at(&c->file, buffer, (size_t)n, at, e))) hash = hash_bytes(hash, buffer, (size_t)n);
    }
    free(buffer);
    return ok && (hash == c->header.hash || error_set(e, "%s: damaged: its checksum is wrong", c->file.path));
}

static int cache_load(Cache *c, Error *e) {
    struct stat s;
    const Header *h = &c->header;
    int64_t at = sizeof *h, tokens = 0;
    if (fstat(c->file.fd, &s) || (uint64_t)s.st_size != h->size || h->rows > ROWS_MAX
        || (h->width != 2 && h->width != 4))
        return error_set(e, "%s: found %lld bytes, expected %llu", c->file.path, (long long)s.st_size,
                         (unsigned long long)h->size);
    if (sizeof *h + h->rows * sizeof *c->rows + padded(h->json_bytes) > h->size)
        return error_set(e, "%s: damaged: its parts are larger than the file", c->file.path);
    c->rows = mem_alloc(h->rows * sizeof *c->rows);
    c->json = mem_alloc(padded(h->json_bytes) + 1);
    if (!data_read_at(&c->file, c->rows, h->rows * sizeof *c->rows, at, e)) return 0;
    at += (int64_t)(h->rows * sizeof *c->rows);
    if (!data_read_at(&c->file, c->json, h->json_bytes, at, e)) return 0;
    c->tokens_at = at += (int64_t)padded(h->json_bytes);
    for (uint32_t i = 0; i < h->rows; i++) {
        if (c->rows[i].tokens < 1 || c->rows[i].tokens > s.st_size || c->rows[i].split < 0
            || c->rows[i].split >= 2 * CHATS || (c->rows[i].split & CHATS && h->width != 4))
            return error_set(e, "%s: damaged", c->file.path);
        tokens += c->rows[i].tokens;
    }
    return at + tokens * h->width == s.st_size ? check_hash(c, e) : error_set(e, "%s: damaged", c->file.path);
}

static void add_segments(Data *d, const Cache *c) {
    int64_t at = c->tokens_at;
    for (uint32_t i = 0; i < c->header.rows; i++) {
        const Row *row = &c->rows[i];
        const Split split = (Split)(row->split % CHATS);
        data_add_tokens(d, split, c->file.path, c->file.fd, (int)c->header.width, at, row->tokens);
        d->segment[split][d->segments[split] - 1].is_chats = row->split >= CHATS;
        d->bytes[split] += row->bytes;
        at += row->tokens * c->header.width;
    }
    d->held_out = (int)c->header.held_out;
    d->tokenizer_hash = c->header.tokenizer;
    d->is_bytes = 0;
    d->cached = 1;
}

int cache_read(Data *d, const char *folder, Tokenizer **tokenizer) {
    Cache c = { .file = { .path = cache_path(folder) } };
    Header *h = &c.header;
    Error e;
    uint64_t bytes;
    int ok = 0;
    c.file.fd = file_open(c.file.path, &bytes, &e);
    if (c.file.fd >= 0 && read(c.file.fd, h, sizeof *h) == sizeof *h && h->magic == MAGIC && h->text == d->text_hash
        && (d->tokenizer_hash ? h->tokenizer == d->tokenizer_hash : h->recipe == d->recipe_hash)) {
        ok = cache_load(&c, &e) && (*tokenizer || (*tokenizer = tokenizer_load_text(c.json, h->json_bytes, &e)));
        if (ok) add_segments(d, &c);
        else warn("%s; the text is encoded again", e.text);
    }
    if (c.file.fd >= 0) close(c.file.fd);
    free_each(c.file.path, c.rows, c.json);
    return ok;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Writes in chunks and hashes each chunk, as check_hash does. */
typedef struct { FileWriter *file; Error *e; uint64_t hash; char *chunk; size_t filled; int ok; } Sink;

static void sink_flush(Sink *s) {
    s->hash = hash_bytes(s->hash, s->chunk, s->filled);
    s->ok = s->ok && file_add(s->file, s->chunk, s->filled, s->e);
    s->filled = 0;
}
static void sink_put(Sink *s, const void *data, size_t bytes) {
    for (size_t at = 0, n; at < bytes && s->ok; at += n) {
        n = bytes - at < CHUNK - s->filled ? bytes - at : CHUNK - s->filled;
        memcpy(s->chunk + s->filled, (const char *)data + at, n);
        if ((s->filled += n) == CHUNK) sink_flush(s);
    }
}

typedef struct { const Data *data; const Tokenizer *tokenizer; } Kept;

/* All segments have one width. */
static int width_of(const Data *d) {
    int width = 0;
    for (int k = 0; k < 2; k++) for (int i = 0; i < d->segments[k]; i++)
        width = d->segment[k][i].width > width ? d->segment[k][i].width : width;
    return width;
}
static Header header_of(const Data *d, const Tokenizer *t, size_t json_bytes) {
    size_t tokens = 0;
    Header h = { .magic = MAGIC, .text = d->text_hash, .recipe = d->recipe_hash, .tokenizer = tokenizer_hash(t),
                 .width = (uint32_t)width_of(d), .rows = (uint32_t)(d->segments[0] + d->segments[1]),
                 .held_out = (uint32_t)d->held_out, .json_bytes = (uint32_t)json_bytes };
    for (int k = 0; k < 2; k++) for (int i = 0; i < d->segments[k]; i++) tokens += (size_t)d->segment[k][i].tokens;
    h.size = sizeof h + h.rows * sizeof(Row) + padded(json_bytes) + tokens * h.width;
    return h;
}

/* The header, with the hash of the rest, is written first without it and overwritten at the end. */
static int put_all(FileWriter *f, const Data *d, const Tokenizer *t, Error *e) {
    static const char zeros[8];
    size_t json_bytes;
    const char *json = tokenizer_json(t, &json_bytes);
    Header h = header_of(d, t, json_bytes);
    if (!file_add(f, &h, sizeof h, e)) return 0;
    Sink s = { .file = f, .e = e, .hash = hash_header(h), .chunk = mem_alloc(CHUNK), .ok = 1 };
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < d->segments[k]; i++) {
            const Row row = { k + CHATS * d->segment[k][i].is_chats, d->segment[k][i].tokens, d->segment[k][i].bytes };
            sink_put(&s, &row, sizeof row);
        }
    sink_put(&s, json, json_bytes);
    sink_put(&s, zeros, padded(json_bytes) - json_bytes);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < d->segments[k]; i++)
            sink_put(&s, d->segment[k][i].memory, (size_t)d->segment[k][i].tokens * h.width);
    if (s.filled) sink_flush(&s);
    free(s.chunk);
    h.hash = s.hash;
    return s.ok && file_patch(f, 0, &h, sizeof h, e);
}

static int write_cache(const char *temporary, const void *with, Error *e) {
    const Kept *k = with;
    FileWriter *f = file_create(temporary, e);
    if (f && put_all(f, k->data, k->tokenizer, e)) return file_finish(f, e);
    file_abandon(f);
    return 0;
}
int data_keep(const Data *d, const Tokenizer *t, const char *folder, Error *e) {
    if (!d->text_hash || d->is_bytes || d->cached || d->segments[0] + d->segments[1] > ROWS_MAX) return 1;
    char *path = cache_path(folder);
    const int ok = file_replace(path, write_cache, &(Kept){ d, t }, e);
    free(path);
    return ok;
}
