/* data.c: see data.h.
 *
 * A Data is two lists of parts. A part is a run of tokens that windows may not leave: a file, or its training or
 * held-out share. Tokens of files stay on disk and are read with pread (a mapped file that shrinks would kill the
 * process); text is tokenized once and stays in memory, as wide as its ids need.
 *
 * Order. Epoch k of a seed is a permutation of its windows that is computed, not stored: a Feistel network turns the
 * number of a window into two halves and mixes one into the other, round by round; whatever the mixing function, each
 * round can be undone, so the whole is a permutation, of 4^h numbers. To have one of any size below, apply it until the
 * result is small enough ("cycle walking": Black and Rogaway 2002, Ciphers with arbitrary finite domains). */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "data.h"
#include "llmc/base/random.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    KEEP_OPEN = 256,                    /* descriptors held; files beyond these are opened for each read */
    CHUNK = 1 << 18,                    /* bytes a scan reads at once */
    PRINTED = 1 << 16,                  /* bytes at each end of a file that the fingerprint covers */
    ROUNDS = 12                         /* of the Feistel network: four do for many windows, five windows need more */
};

typedef struct {
    char *path;
    int   fd;                           /* -1: not kept open */
    int   width;                        /* bytes of a token */
    void *memory;                       /* the tokens, or NULL: they are in the file, from byte `start` on */
    int64_t  start, tokens;
    uint32_t max;                       /* the largest id and its first place */
    int64_t  max_at;
} Part;

typedef struct {
    const char *name;
    uint32_t magic, version;            /* 0: the file has no header */
    int header, width;                  /* bytes of the header and of a token */
} Format;
static const Format formats[] = {
    { "text",                    0,        0,    0, 1 },
    { "nanoGPT tokens (uint16)", 0,        0,    0, 2 },
    { "llm.c tokens (uint16)",   20240520, 1, 1024, 2 },
    { "llm.c tokens (uint32)",   20240801, 7, 1024, 4 },
};
enum { TEXT, NANOGPT, SHARD, FORMATS = sizeof formats / sizeof *formats };

struct Data {
    Part *part[2];
    int   parts[2];
    int64_t tokens[2], bytes[2];
    int   descriptors, files, held_out, is_bytes, is_fallback, max_id;
    const Format *format;               /* of the first file: the others must have tokens of the same width */
    const Tokenizer *tokenizer;
    uint64_t fingerprint;
    char *description;
};

/* ---- reading ------------------------------------------------------------------------------------------- */

static int read_at(const Part *p, void *to, size_t bytes, int64_t at, Error *e) {
    int fd = p->fd >= 0 ? p->fd : open(p->path, O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && done < bytes) {
        n = pread(fd, (char *)to + done, bytes - done, (off_t)(at + (int64_t)done));
        if (n > 0) done += (size_t)n;
        else if (n < 0 && errno == EINTR) n = 1;
    }
    int why = errno;
    struct stat s = { .st_size = 0 };
    if (fd >= 0 && done < bytes) fstat(fd, &s);
    if (fd >= 0 && p->fd < 0) close(fd);
    if (done == bytes) return 1;
    if (n < 0) return error_set(e, "%s: could not be read at byte %lld: %s", p->path, (long long)at, strerror(why));
    return error_set(e, "%s: found %lld bytes, expected at least %lld as when it was opened: it was "
                        "shortened while in use", p->path, (long long)s.st_size,
                        (long long)at + (long long)bytes);
}

/* `n` tokens as they are stored: in memory, or read into the buffer. */
static const void *stored(const Part *p, int64_t first, int64_t n, void *buffer, Error *e) {
    if (p->memory) return (const char *)p->memory + first * p->width;
    return read_at(p, buffer, (size_t)(n * p->width), p->start + first * p->width, e) ? buffer : NULL;
}

static uint32_t token(const void *tokens, int width, int64_t i) {
    return width == 1 ? ((const uint8_t *)tokens)[i] : width == 2 ? ((const uint16_t *)tokens)[i]
         : ((const uint32_t *)tokens)[i];
}

/* Checks ids against the largest one seen at the start: what a model gets to see is never beyond its embedding. */
static int read_tokens(const Part *p, int64_t first, int64_t count, int *out, Error *e) {
    uint32_t buffer[2048];
    while (count > 0) {
        int64_t n = (int64_t)sizeof buffer / p->width;
        if (n > count) n = count;
        const void *tokens = stored(p, first, n, buffer, e);
        if (!tokens) return 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = token(tokens, p->width, i);
            if (id > p->max)
                return error_set(e, "%s: token id %lu at byte %lld, but the largest was %lu when it was "
                                    "opened: it was rewritten while in use", p->path, (unsigned long)id,
                                    (long long)(p->start + (first + i) * p->width), (unsigned long)p->max);
            out[i] = (int)id;
        }
        first += n;
        out += n;
        count -= n;
    }
    return 1;
}

static uint32_t largest(const void *tokens, int width, int64_t n) {
    uint16_t lane[16] = { 0 };                                  /* uint16 a vector at a time: shards are big */
    uint32_t max = 0;
    int64_t i = 0;
    for (const uint16_t *two = tokens; width == 2 && i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) lane[j] = two[i + j] > lane[j] ? two[i + j] : lane[j];
    for (int j = 0; j < 16; j++) max = lane[j] > max ? lane[j] : max;
    for (; i < n; i++) { uint32_t id = token(tokens, width, i); max = id > max ? id : max; }
    return max;
}

static int scan(Part *p, Error *e) {
    char *buffer = mem_alloc(CHUNK);
    int64_t step = CHUNK / p->width;
    int ok = 1;
    for (int64_t first = 0; ok && first < p->tokens; first += step) {
        int64_t n = step < p->tokens - first ? step : p->tokens - first;
        const void *tokens = stored(p, first, n, buffer, e);
        ok = tokens != NULL;
        uint32_t max = ok ? largest(tokens, p->width, n) : 0;
        if (!ok || (first && max <= p->max)) continue;
        p->max = max;
        for (p->max_at = 0; token(tokens, p->width, p->max_at) != max; ) p->max_at++;
        p->max_at += first;
    }
    free(buffer);
    if (ok && p->max > INT_MAX)
        return error_set(e, "%s: token id %lu at byte %lld, expected at most %d: not a file of tokens, or damaged",
                         p->path, (unsigned long)p->max, (long long)(p->start + p->max_at * p->width), INT_MAX);
    return ok;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

enum { BOTH = 2 };                      /* beside DATA_TRAIN and DATA_VALIDATION: a file to hold out a tenth of */

static Part *add_part(Data *d, Split split, const char *path, int width) {
    int n = d->parts[split]++;
    d->part[split] = mem_grow(d->part[split], (size_t)(n + 1) * sizeof(Part));
    Part *p = &d->part[split][n];
    *p = (Part){ .path = text_format("%s", path), .fd = -1, .width = width };
    return p;
}

static void add_tokens(Data *d, Split split, const char *path, int fd, int width, int64_t start, int64_t tokens) {
    Part *p = add_part(d, split, path, width);
    p->start = start;
    p->tokens = tokens;
    if (d->descriptors < KEEP_OPEN) p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    d->descriptors += p->fd >= 0;
}

static int add_text(Data *d, Split split, const char *path, const char *text, int64_t bytes, Error *e) {
    d->bytes[split] += bytes;
    if (d->is_bytes) {
        Part *p = add_part(d, split, path, 1);
        p->memory = mem_alloc((size_t)bytes);
        memcpy(p->memory, text, (size_t)bytes);
        p->tokens = bytes;
        return 1;
    }
    int *ids = NULL;
    int64_t n = (int64_t)tokenizer_encode(d->tokenizer, text, (size_t)bytes, &ids);
    if (n <= 0) {
        free(ids);
        return error_set(e, "%s: the tokenizer makes no tokens of its %lld bytes", path, (long long)bytes);
    }
    Part *p = add_part(d, split, path, tokenizer_vocab(d->tokenizer) <= 1 << 16 ? 2 : 4);
    p->tokens = n;
    p->memory = ids;
    if (p->width == 2) {                                   /* in place: each id is read before its place is written */
        uint16_t *narrow = p->memory = mem_alloc((size_t)n * 2);
        for (int64_t i = 0; i < n; i++) narrow[i] = (uint16_t)ids[i];
        free(ids);
    }
    return 1;
}

/* Where the training share of `count` tokens or bytes ends; 0 on error. */
static int64_t cut(Data *d, const char *path, int64_t count, Error *e) {
    int64_t at = count / 10 * 9 + count % 10 * 9 / 10;
    d->held_out = 1;
    return at ? at
        : error_set(e, "%s: found %lld token%s, expected at least 2 to hold out a tenth for validation; give "
                       "more data, or validation data of its own (-j)", path, (long long)count,
                       count == 1 ? "" : "s");
}

/* Text is cut as text and then tokenized, at a UTF-8 character: a byte 10xxxxxx continues one. */
static int use_text(Data *d, int use, const char *path, const char *text, int64_t bytes, Error *e) {
    if (use != BOTH) return add_text(d, (Split)use, path, text, bytes, e);
    int64_t at = cut(d, path, bytes, e);
    if (!at) return 0;
    for (int i = 0; i < 3 && at > 1 && ((unsigned char)text[at] & 0xC0) == 0x80; i++) at--;
    return add_text(d, DATA_TRAIN, path, text, at, e) && add_text(d, DATA_VALIDATION, path, text + at, bytes - at, e);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Which format a file has; refuses what only looks like one. */
static const Format *recognize(const char *path, const uint32_t header[3], int64_t size, Error *e) {
    const char *name = base_name(path);
    size_t length = strlen(name);
    for (int f = SHARD; f < FORMATS; f++) {
        const Format *format = &formats[f];
        int64_t expected = format->header + (int64_t)header[2] * format->width;
        if (size < 4 || header[0] != format->magic) continue;
        if (size < format->header)
            error_set(e, "%s: truncated: found %lld bytes, expected a header of %d; fetch or make it again",
                      path, (long long)size, format->header);
        else if (header[1] != format->version)
            error_set(e, "%s: found version %lu, expected %lu for magic %lu; make it again with "
                         "llm.c's current scripts", path, (unsigned long)header[1],
                         (unsigned long)format->version, (unsigned long)format->magic);
        else if (size != expected)
            error_set(e, "%s: %s: found %lld bytes, expected %lld for the %lu tokens its header tells; "
                         "fetch or make it again", path, size < expected ? "truncated" : "trailing bytes",
                         (long long)size, (long long)expected, (unsigned long)header[2]);
        else if (!header[2])
            error_set(e, "%s: found 0 tokens, expected at least 2; leave it out or make it again", path);
        else return format;
        return NULL;
    }
    if (!strcmp(name, "train.bin") || !strcmp(name, "val.bin")) {
        if (size % 2 == 0) return &formats[NANOGPT];
        error_set(e, "%s: found an odd size, %lld bytes, expected uint16 tokens; fetch or make it again",
                  path, (long long)size);
        return NULL;
    }
    if (length < 4 || strcmp(name + length - 4, ".bin")) return &formats[TEXT];
    if (size < 4) error_set(e, "%s: found %lld bytes, expected the header of an llm.c shard", path, (long long)size);
    else error_set(e, "%s: found magic %lu, expected %lu (llm.c, uint16) or %lu (llm.c, uint32). nanoGPT's "
                      "files, which have none, must be called train.bin and val.bin; text "
                      "must not end in .bin", path, (unsigned long)header[0],
                      (unsigned long)formats[SHARD].magic, (unsigned long)formats[SHARD + 1].magic);
    return NULL;
}

static void fingerprint(Data *d, int use, const char *name, int64_t size, const void *head, const void *tail,
                        size_t bytes) {
    uint64_t h = hash_bytes(d->fingerprint + (uint64_t)use, name, strlen(name));
    h = hash_bytes(h, &size, sizeof size);
    d->fingerprint = hash_bytes(hash_bytes(h, head, bytes), tail, bytes);
}

static int use_open_file(Data *d, int use, const char *path, int fd, int64_t size, Error *e) {
    const Part whole = { .path = (char *)path, .fd = fd };
    uint32_t header[3] = { 0, 0, 0 };
    if (!read_at(&whole, header, size < 12 ? (size_t)size : 12, 0, e)) return 0;
    const Format *format = recognize(path, header, size, e);
    if (!format) return 0;
    if (!d->format) d->format = format;
    if (d->format->width != format->width)
        return error_set(e, "%s: found %s, expected %s as in the files before it; all data "
                            "must be of one kind", path, format->name, d->format->name);

    size_t ends = size < PRINTED ? (size_t)size : PRINTED;
    char *buffer = mem_alloc(2 * ends);
    int ok = read_at(&whole, buffer, ends, 0, e) && read_at(&whole, buffer + ends, ends, size - (int64_t)ends, e);
    if (ok) fingerprint(d, use, base_name(path), size, buffer, buffer + ends, ends);
    free(buffer);
    if (!ok) return 0;

    if (format == &formats[TEXT]) {
        size_t bytes = 0;
        char *text = file_read(path, &bytes, e);
        ok = text && (bytes ? use_text(d, use, path, text, (int64_t)bytes, e) : error_set(e, "%s: became empty", path));
        free(text);
        return ok;
    }
    int64_t tokens = (size - format->header) / format->width, at = use == BOTH ? cut(d, path, tokens, e) : tokens;
    if (!at) return 0;
    add_tokens(d, use == DATA_VALIDATION ? DATA_VALIDATION : DATA_TRAIN, path, fd, format->width, format->header, at);
    if (use == BOTH)
        add_tokens(d, DATA_VALIDATION, path, fd, format->width, format->header + at * format->width, tokens - at);
    return 1;
}

static int use_file(Data *d, int use, const char *path, Error *e) {
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), ok = 0;        /* a pipe without a writer must not hang */
    if (fd < 0 || fstat(fd, &s)) error_set(e, "%s: cannot be read: %s", path, strerror(errno));
    else if (!S_ISREG(s.st_mode))
        error_set(e, "%s: not a regular file; data must be files or folders, no pipes or devices", path);
    else if (!s.st_size) error_set(e, "%s: found 0 bytes, expected text or tokens; fetch or make it again", path);
    else ok = use_open_file(d, use, path, fd, (int64_t)s.st_size, e);
    if (fd >= 0) close(fd);
    d->files += ok;
    return ok;
}

/* Sorted matches of a pattern, inside a folder if one is given (whose own name is no pattern). globfree() it. */
static int matches(const char *folder, const char *pattern, glob_t *found) {
    char *full = mem_alloc(2 * (folder ? strlen(folder) : 0) + strlen(pattern) + 2), *to = full;
    for (const char *c = folder; c && *c; *to++ = *c++)
        if (strchr("*?[]\\", *c)) *to++ = '\\';
    sprintf(to, "%s%s", folder ? "/" : "", pattern);
    memset(found, 0, sizeof *found);
    int n = pattern[0] && glob(full, 0, NULL, found) == 0 ? (int)found->gl_pathc : 0;
    free(full);
    return n;
}

static int use_files(Data *d, int use, const glob_t *found, Error *e) {
    for (size_t i = 0; i < found->gl_pathc; i++)
        if (!use_file(d, use, found->gl_pathv[i], e)) return 0;
    return 1;
}

/* What stands in for tinyshakespeare where it could not be fetched: the text of the project around the
 * folder, as one text. -1: it is not there. */
static int use_project(Data *d, int use, const char *folder, Error *e) {
    static const char *const patterns[] = { "README.md", "docs/*.md", "kernels/kernels.h", "llmc/*/*.[ch]",
                                            "kernels/cpu/*.c" };
    char *root = text_format("%s/../..", folder), *proof = text_format("%s/kernels/kernels.h", root), *text = NULL;
    size_t length = 0;
    int ok = is_file(proof) ? 1 : -1;                           /* never train on somebody else's README.md */
    for (size_t i = 0; ok == 1 && i < sizeof patterns / sizeof *patterns; i++) {
        glob_t found;
        matches(root, patterns[i], &found);
        for (size_t j = 0; ok == 1 && j < found.gl_pathc; j++) {
            size_t bytes = 0;
            char *more = file_read(found.gl_pathv[j], &bytes, e);
            ok = more != NULL;
            text = mem_grow(text, length + bytes);
            if (more) memcpy(text + length, more, bytes);
            length += bytes;
            free(more);
        }
        globfree(&found);
    }
    if (ok == 1) {
        size_t ends = length < PRINTED ? length : PRINTED;
        d->is_fallback = 1;
        d->format = &formats[TEXT];
        d->files = 1;
        fingerprint(d, use, "", (int64_t)length, text, text + length - ends, ends);
        ok = use_text(d, use, "the project's own text", text, (int64_t)length, e);
    }
    free(text);
    free(root);
    free(proof);
    return ok;
}

static int use_folder(Data *d, int use, const char *folder, Error *e) {
    static const struct { const char *train, *validation; } layouts[] = {
        { "*_train*.bin", "*_val*.bin" }, { "train.bin", "val.bin" }, { "input.txt", "" }, { "*.txt", "" },
    };
    int texts = 0, shakespeare = !strcmp(base_name(folder), "tinyshakespeare");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const char *wanted = use == DATA_VALIDATION && layouts[i].validation[0] ? layouts[i].validation
                           : layouts[i].train;
        glob_t found, beside;
        int n = matches(folder, wanted, &found), ok = 0;
        if (n > 1 && !strcmp(wanted, "*.txt")) texts = n;
        else if (n) {
            int paired = matches(folder, use == BOTH ? layouts[i].validation : "", &beside) > 0;
            ok = use_files(d, paired ? DATA_TRAIN : use, &found, e) && use_files(d, DATA_VALIDATION, &beside, e);
            globfree(&beside);
        }
        globfree(&found);
        if (n && !texts) return ok;
    }
    if (shakespeare && use != DATA_VALIDATION) {
        int ok = use_project(d, use, folder, e);
        if (ok >= 0) return ok;
    }
    char *count = texts ? text_format("%d *.txt files and no input.txt", texts) : text_format("no data");
    char *hint = shakespeare ? text_format("; fetch it: sh %s/fetch.sh", folder) : text_format("%s", "");
    error_set(e, "%s: a folder with %s, expected one of\n"
              "  %-29s shards of llm.c\n  %-29s nanoGPT, uint16 without a header\n"
              "  input.txt or a single *.txt   text; or name a file, or a pattern in quotes%s", folder, count,
              use == DATA_VALIDATION ? "*_val*.bin" : "*_train*.bin and *_val*.bin",
              use == DATA_VALIDATION ? "val.bin" : "train.bin and val.bin", hint);
    free(count);
    free(hint);
    return 0;
}

static int use_path(Data *d, int use, const char *given, Error *e) {
    struct stat s;
    if (!given || !given[0]) return error_set(e, "no training data given (-i): expected a folder, a file or a pattern");
    char *path = text_format("%s", given);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; ) path[--n] = 0;
    int ok = 0, why = stat(path, &s) ? errno : 0;
    if (!why) ok = (S_ISDIR(s.st_mode) ? use_folder : use_file)(d, use, path, e);
    else if (strpbrk(path, "*?[")) {
        glob_t found;
        ok = matches(NULL, path, &found) ? use_files(d, use, &found, e)
           : error_set(e, "%s: no file matches this pattern, expected llm.c shards or text", path);
        globfree(&found);
    } else
        error_set(e, "%s: %s; looked for a folder, a file or a pattern of that name (%s)%s", path, strerror(why),
                  use == DATA_VALIDATION ? "validation data, -j" : "training data, -i",
                  strcmp(base_name(path), "tinyshakespeare") ? "; see data/README.md for data to fetch"
                                                             : "; fetch it: sh data/tinyshakespeare/fetch.sh");
    free(path);
    return ok;
}

/* Files are scanned side by side: a hundred shards of 200 MB are worth several cores. What is said is about the first bad one. */
static int scan_all(Data *d, Error *e) {
    int all = d->parts[0] + d->parts[1], bad = all;
#ifdef _OPENMP
    #pragma omp parallel for schedule(dynamic)
#endif
    for (int i = 0; i < all; i++) {
        Error mine;
        Part *p = i < d->parts[0] ? &d->part[0][i] : &d->part[1][i - d->parts[0]];
        if (scan(p, &mine)) continue;
#ifdef _OPENMP
        #pragma omp critical
#endif
        if (i < bad) bad = i, *e = mine;
    }
    return bad == all;
}

static void describe(Data *d) {
    const Part *first = d->part[DATA_TRAIN], *last = first + d->parts[DATA_TRAIN] - 1;
    char *to = first == last ? text_format("%s", "") : text_format(" ... %s", base_name(last->path));
    d->description = text_format("%s%s%s: %s, %d file%s, %lld tokens for training, %lld for validation%s",
        d->is_fallback ? "NOT tinyshakespeare, which is missing, but " : "", first->path, to,
        d->is_bytes && d->format == &formats[TEXT] ? "text as bytes" : d->format->name, d->files,
        d->files == 1 ? "" : "s", (long long)d->tokens[DATA_TRAIN], (long long)d->tokens[DATA_VALIDATION],
        d->held_out ? " (the last tenth)" : "");
    free(to);
}

Data *data_open(const char *train, const char *validation, const Tokenizer *tokenizer, Error *e) {
    Data *d = mem_alloc(sizeof *d);
    int apart = validation && validation[0];
    d->tokenizer = tokenizer;
    d->is_bytes = !tokenizer || tokenizer_is_bytes(tokenizer);
    if (!use_path(d, apart ? DATA_TRAIN : BOTH, train, e) || (apart && !use_path(d, DATA_VALIDATION, validation, e))
        || !scan_all(d, e)) {
        data_close(d);
        return NULL;
    }
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < d->parts[s]; i++) {
            d->tokens[s] += d->part[s][i].tokens;
            if ((int)d->part[s][i].max > d->max_id) d->max_id = (int)d->part[s][i].max;
        }
    describe(d);
    d->tokenizer = NULL;
    return d;
}

void data_close(Data *d) {
    if (!d) return;
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < d->parts[s]; i++) {
            if (d->part[s][i].fd >= 0) close(d->part[s][i].fd);
            free(d->part[s][i].memory);
            free(d->part[s][i].path);
        }
        free(d->part[s]);
    }
    free(d->description);
    free(d);
}

int64_t     data_tokens(const Data *d, Split split) { return d->tokens[split]; }
int64_t     data_bytes(const Data *d, Split split)  { return d->bytes[split]; }
int         data_max_id(const Data *d)              { return d->max_id; }
int         data_is_text(const Data *d)             { return d->format == &formats[TEXT]; }
int         data_is_bytes(const Data *d)            { return data_is_text(d) && d->is_bytes; }
int         data_is_fallback(const Data *d)         { return d->is_fallback; }
const char *data_description(const Data *d)         { return d->description; }
uint64_t    data_fingerprint(const Data *d)         { return d->fingerprint; }

/* ---- windows ------------------------------------------------------------------------------------------- */

/* Windows of a part in an epoch: as many as fit at every phase from 0 to T-1, but
 * one if there is room for one at all. */
static int64_t windows(const Part *p, int T) {
    return T < 1 || p->tokens <= T ? 0 : p->tokens < 2 * (int64_t)T ? 1 : p->tokens / T - 1;
}

static int64_t validation_windows(const Part *p, int T) { return T < 1 ? 0 : (p->tokens - 1 + T - 1) / T; }

int data_check(const Data *d, int T, int vocab, Error *e) {
    static const char *const names[] = { "training", "validation" };
    for (int s = 0; s < 2; s++) {
        const Part *longest = d->part[s];
        for (int i = 0; i < d->parts[s]; i++) {
            const Part *p = &d->part[s][i];
            if (p->max >= (uint32_t)vocab)
                return error_set(e, "%s: token id %lu at %s %lld, expected ids below the vocabulary of %d; "
                                    "the data are for another tokenizer", p->path, (unsigned long)p->max,
                                    p->memory ? "token" : "byte",
                                    (long long)(p->memory ? p->max_at : p->start + p->max_at * p->width),
                                    vocab);
            if (p->tokens > longest->tokens) longest = p;
        }
        if (longest->tokens <= T)
            return error_set(e, "%s: found %lld tokens for %s, expected at least %lld, one window of T+1; "
                                "use a shorter context or more data", longest->path,
                                (long long)longest->tokens, names[s], (long long)T + 1);
    }
    for (int i = 0; i < d->parts[DATA_TRAIN]; i++)
        if (!windows(&d->part[DATA_TRAIN][i], T))
            warn("%s: its %lld tokens are less than one window of T+1 = %lld and will not be used",
                 d->part[DATA_TRAIN][i].path, (long long)d->part[DATA_TRAIN][i].tokens, (long long)T + 1);
    return 1;
}

/* Where number i of 0 ... size-1 goes in the permutation of that key. */
static uint64_t permute(uint64_t i, uint64_t size, uint64_t key) {
    int half = 1;                                               /* bits of a half: the smallest with 4^half >= size */
    while (half < 31 && 1ull << 2 * half < size) half++;
    const uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t mixed = left ^ (random_bits(random_bits(key, round), right) & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= size);
    return i;
}

int64_t data_epoch_samples(const Data *d, int T) {
    int64_t sum = 0;
    for (int i = 0; i < d->parts[DATA_TRAIN]; i++) sum += windows(&d->part[DATA_TRAIN][i], T);
    return sum;
}

int data_batch(const Data *d, int64_t first, int B, int T, uint64_t seed, int *inputs, int *targets, Error *e) {
    const int64_t epoch_samples = data_epoch_samples(d, T);
    if (!epoch_samples) return error_set(e, "the training data hold no window of %lld tokens", (long long)T + 1);
    for (int b = 0; b < B; b++, inputs += T, targets += T) {
        const uint64_t key = random_key(seed, (uint64_t)((first + b) / epoch_samples));
        int64_t w = (int64_t)permute((uint64_t)((first + b) % epoch_samples), (uint64_t)epoch_samples,
                                     random_key(key, 0));
        const Part *p = d->part[DATA_TRAIN];
        for (; w >= windows(p, T); p++) w -= windows(p, T);
        const int64_t slack = p->tokens - 1 - windows(p, T) * T;
        const uint64_t phase = random_bits(random_key(key, 1),
                                           (uint64_t)(p - d->part[DATA_TRAIN])) % (uint64_t)(slack + 1);
        const int64_t at = (int64_t)phase + w * T;
        if (!read_tokens(p, at, T, inputs, e) || !read_tokens(p, at + 1, T, targets, e)) return 0;
    }
    return 1;
}

int64_t data_validation_batches(const Data *d, int B, int T) {
    int64_t sum = 0;
    for (int i = 0; i < d->parts[DATA_VALIDATION]; i++) sum += validation_windows(&d->part[DATA_VALIDATION][i], T);
    return (sum + B - 1) / B;
}

int data_validation(const Data *d, int64_t first, int B, int T, int *inputs, int *targets, Error *e) {
    const Part *end = d->part[DATA_VALIDATION] + d->parts[DATA_VALIDATION];
    for (int b = 0; b < B; b++, inputs += T, targets += T) {
        const Part *p = d->part[DATA_VALIDATION];
        int64_t w = first + b, n = 0;
        for (; p < end && w >= validation_windows(p, T); p++) w -= validation_windows(p, T);
        if (p < end) {
            n = p->tokens - 1 - w * T < T ? p->tokens - 1 - w * T : T;
            if (!read_tokens(p, w * T, n, inputs, e) || !read_tokens(p, w * T + 1, n, targets, e)) return 0;
        }
        for (; n < T; n++) { inputs[n] = 0; targets[n] = -1; }
    }
    return 1;
}
