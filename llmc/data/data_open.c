/* data_open.c: what a path stands for (data.h): folders, formats of files, what is held out. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "data_impl.h"
#include "forms.h"
#include "kinds.h"
#include "records.h"
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PRINTED = 1 << 16 };             /* bytes at each end of a file that the fingerprint covers */

static const Format formats[] = {
    { "text",                    0,        0,    0, 1 },
    { "nanoGPT tokens (uint16)", 0,        0,    0, 2 },
    { "llm.c tokens (uint16)",   20240520, 1, 1024, 2 },
    { "llm.c tokens (uint32)",   20240801, 7, 1024, 4 },
};
enum { TEXT, NANOGPT, SHARD, FORMATS = sizeof formats / sizeof *formats };

/* ---- opening --------------------------------------------------------------------------------- */

/* The next text, to be read into it. */
static Source *add_source(Data *d, int use) {
    const size_t n = (size_t)d->texts.count++;
    d->texts.at = mem_grow(d->texts.at, (n + 1) * sizeof *d->texts.at);
    d->texts.use = mem_grow(d->texts.use, (n + 1) * sizeof *d->texts.use);
    d->texts.at[n] = (Source){ 0 };
    d->texts.use[n] = use;
    return &d->texts.at[n];
}

/* Where the training part of `count` tokens ends; 0 on error. */
static int64_t cut(Data *d, const char *path, int64_t count, Error *e) {
    int64_t at = count / 10 * 9 + count % 10 * 9 / 10;
    d->held_out = HELD_OUT_TENTH;
    return at ? at : data_too_small(path, count, e);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Tokens of programs that call their files *.bin, too. 1 and a message: what they are. */
static int foreign_tokens(const char *path, Error *e) {
    enum { MAGIC = 9, TYPE = 17, UINT16 = 8 };              /* of Megatron-LM's index: magic, version, type */
    const size_t n = strlen(path);
    const char *name = base_name(path), *digits = name + 4;
    char *index = text_format("%.*s.idx", (int)(n > 4 ? n - 4 : n), path);
    Error none;
    uint64_t bytes;
    FILE *f = file_stream(index, &bytes, &none);
    char head[TYPE + 1] = "";
    Text word = { 0 };
    text_add_word(&word, path);
    const int megatron = f && fread(head, 1, sizeof head, f) == sizeof head && !memcmp(head, "MMIDIDX\0\0", MAGIC),
        llama2 = !strncmp(name, "data", 4) && *digits && !strcmp(digits + strspn(digits, "0123456789"), ".bin");
    if (megatron && head[TYPE] == UINT16)
        error_set(e, "%s: found tokens of Megatron-LM (%s), uint16 without a header, as nanoGPT has them: mkdir "
                  "tokens && cp %s tokens/train.bin, then -i tokens", path, index, word.at);
    else if (megatron)
        error_set(e, "%s: found tokens of Megatron-LM (%s). Write them as uint16, as nanoGPT has them: mkdir tokens && "
                  "python3 -c 'import sys, numpy; numpy.fromfile(sys.argv[1], \"int32\").astype(\"uint16\")"
                  ".tofile(\"tokens/train.bin\")' %s, then -i tokens (for ids below 65536)", path, index, word.at);
    else if (llama2)
        error_set(e, "%s: found tokens of llama2.c, uint16 without a header, as nanoGPT has them: mkdir tokens && "
                  "cat data*.bin > tokens/train.bin, then -i tokens; its tokenizer.model is not read", path);
    if (f) fclose(f);
    free_each(index, word.at);
    return megatron || llama2;
}

/* nanoGPT's tokens of characters. */
static void warn_of_meta(const char *path) {
    const char *name = base_name(path);
    char *meta = text_format("%.*smeta.pkl", (int)(name - path), path);
    if (is_file(meta))
        warn("%s says which characters these tokens are. It is not read: text can be neither shown nor given. To train "
             "on characters, give the text itself (-i input.txt)", meta);
    free(meta);
}

/* The format of a file; NULL if it only looks like one. */
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
            error_set(e, "%s: found version %u, expected %u for magic %u; make it again with llm.c's current scripts",
                      path, header[1], format->version, format->magic);
        else if (size != expected)
            error_set(e, "%s: %s: found %lld bytes, expected %lld for the %u tokens in its header; fetch or make it "
                      "again", path, size < expected ? "truncated" : "trailing bytes", (long long)size,
                      (long long)expected, header[2]);
        else if (!header[2])
            error_set(e, "%s: found 0 tokens, expected at least 2; leave it out or make it again", path);
        else return format;
        return NULL;
    }
    if (!strcmp(name, "train.bin") || !strcmp(name, "val.bin")) {
        if (size % 2 == 0) return &formats[NANOGPT];
        return error_set(e, "%s: found an odd size, %lld bytes, expected uint16 tokens; fetch or make it again",
                         path, (long long)size), NULL;
    }
    if (length < 4 || strcmp(name + length - 4, ".bin")) return &formats[TEXT];
    if (foreign_tokens(path, e)) return NULL;
    if (size < 4) error_set(e, "%s: found %lld bytes, expected the header of an llm.c shard", path, (long long)size);
    else error_set(e, "%s: found magic %u, expected %u (llm.c, uint16) or %u (llm.c, uint32). nanoGPT's files, which "
                   "have none, must be called train.bin and val.bin; text must not end in .bin", path, header[0],
                   formats[SHARD].magic, formats[SHARD + 1].magic);
    return NULL;
}

static void fingerprint(Data *d, int use, const char *name, int64_t size, const void *head, const void *tail,
                        size_t bytes) {
    uint64_t h = hash_bytes(d->fingerprint + (uint64_t)use, name, strlen(name));
    h = hash_bytes(h, &size, sizeof size);
    d->fingerprint = hash_bytes(hash_bytes(h, head, bytes), tail, bytes);
}

/* Before forms.h only *.jsonl was read as JSON, and what has another name trained on as it is. */
static void fingerprint_form(Data *d, const TextFile *f) {
    const size_t n = strlen(f->path);
    if (f->records && (n < 6 || strcmp(f->path + n - 6, ".jsonl")))
        d->fingerprint = hash_bytes(d->fingerprint, "records", 7);
}

/* The beginning tells: an encoding holds for a whole file. */
static void check_utf8(const Source *s) {
    enum { LOOKED_AT = 1 << 20 };
    const size_t some = s->bytes > LOOKED_AT ? utf8_complete(s->text, LOOKED_AT) : s->bytes,
        valid = utf8_valid(s->text, some);
    if (valid == some) return;
    Text command = { 0 };
    text_add_string(&command, "iconv -f ISO-8859-1 -t UTF-8 ");
    text_add_word(&command, s->path);
    warn("%s is not UTF-8: byte %zu is 0x%02x. It is trained on as it is, and generated text will not show such "
         "characters. If it is Latin-1: %s > utf-8.txt", s->path, valid, (unsigned char)s->text[valid], command.at);
    free(command.at);
}
static void warn_of_table(const char *path) {
    const char *dot = strrchr(path, '.');
    const int tabs = dot && !strcasecmp(dot, ".tsv");
    Text word = { 0 };
    text_add_word(&word, path);
    if (tabs || (dot && !strcasecmp(dot, ".csv")))
        warn("%s is read as plain text, with the marks between its columns. To train on one of them, make JSON of it: "
             "python3 -c 'import sys, pandas; pandas.read_csv(sys.argv[1]%s).to_json(sys.argv[2], orient=\"records\", "
             "lines=True)' %s data.jsonl, then -i data.jsonl -tf COLUMN", path, tabs ? ", sep=\"\\t\"" : "", word.at);
    free(word.at);
}
/* 0: it is another kind of file, whose bytes nobody wants to train on. */
static int is_text(const Data *d, const Source *s, Error *e) {
    const char *remedy, *what = d->any_bytes ? NULL : kind_of_binary(s->text, s->bytes, &remedy);
    if (what) return kind_refuse(s->path, what, remedy, ". To train on its bytes as they are: -ab 1", e);
    if (!d->any_bytes && !s->separate && forms_held(s->text, s->bytes))
        return error_set(e, "%s holds JSON of texts or conversations, but its name does not end in .jsonl, .ndjson or "
                         ".json: call it so. To train on the JSON itself: -ab 1", s->path);
    if (!d->any_bytes && !s->separate && kind_is_json(s->text, s->bytes))
        warn("%s looks like JSON, and is read as plain text", s->path);
    if (!d->any_bytes) warn_of_table(s->path);
    if (!d->any_bytes && !s->separate) check_utf8(s);
    return 1;
}

static int use_open_file(Data *d, int use, const char *path, int fd, int64_t size, Error *e) {
    const Segment entire = { .path = (char *)path, .fd = fd };
    uint32_t header[3] = { 0, 0, 0 };
    if (!data_read_at(&entire, header, size < 12 ? (size_t)size : 12, 0, e)) return 0;
    const Format *format = recognize(path, header, size, e);
    if (!format) return 0;
    if (!d->format && format == &formats[NANOGPT]) warn_of_meta(path);
    if (!d->format) d->format = format;
    if (d->format->width != format->width)
        return error_set(e, "%s: found %s, expected %s as in the files before it; all data must be of one kind", path,
                         format->name, d->format->name);
    size_t ends = size < PRINTED ? (size_t)size : PRINTED;
    char *buffer = mem_alloc(2 * ends);
    int ok = data_read_at(&entire, buffer, ends, 0, e)
        && data_read_at(&entire, buffer + ends, ends, size - (int64_t)ends, e);
    if (ok) fingerprint(d, use, base_name(path), size, buffer, buffer + ends, ends);
    free(buffer);
    if (!ok) return 0;
    if (format == &formats[TEXT]) {
        Source *text = add_source(d, use);
        ok = source_read_file(text, path, e) && (text->bytes || error_set(e, "%s: became empty", path))
            && is_text(d, text, e);
        if (ok) fingerprint_form(d, &text->file[0]);
        return ok;
    }
    int64_t tokens = (size - format->header) / format->width, at = use == BOTH ? cut(d, path, tokens, e) : tokens;
    if (!at) return 0;
    data_add_tokens(d, use == DATA_VALIDATION ? DATA_VALIDATION : DATA_TRAIN, path, fd, format->width,
                    format->header, at);
    if (use == BOTH)
        data_add_tokens(d, DATA_VALIDATION, path, fd, format->width, format->header + at * format->width, tokens - at);
    return 1;
}

static int use_file(Data *d, int use, const char *path, Error *e) {
    uint64_t bytes;
    if (is_folder(path))
        return error_set(e, "%s: a folder, where a pattern must match files alone; a folder is given by its name",
                         path);
    const int fd = file_open(path, &bytes, e);
    if (fd < 0) return 0;
    const int ok = bytes ? use_open_file(d, use, path, fd, (int64_t)bytes, e)
                         : error_set(e, "%s: found 0 bytes, expected text or tokens; fetch or make it again", path);
    close(fd);
    d->files += ok;
    return ok;
}

/* Sorted matches of a pattern, in a folder if given (whose name is no pattern). globfree() it. */
static int matches(const char *folder, const char *pattern, glob_t *found) {
    char *full = mem_alloc(2 * (folder ? strlen(folder) : 0) + strlen(pattern) + 2), *to = full;
    for (const char *c = folder; c && *c; *to++ = *c++)
        if (strchr("*?[]\\", *c)) *to++ = '\\';
    sprintf(to, "%s%s", folder ? "/" : "", pattern);
    memset(found, 0, sizeof *found);
    const int none = pattern[0] ? glob(full, 0, NULL, found) : GLOB_NOMATCH;
    if (none == GLOB_NOSPACE) fail(EXIT_MEMORY, "out of host memory: the files %s cannot be listed", full);
    free(full);
    return none ? 0 : (int)found->gl_pathc;
}

static int use_files(Data *d, int use, const glob_t *found, Error *e) {
    for (size_t i = 0; i < found->gl_pathc; i++)
        if (!use_file(d, use, found->gl_pathv[i], e)) return 0;
    return 1;
}

/* Where tinyshakespeare is missing: the project's own text, as one. -1: it is not there. */
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
        source_take_text(add_source(d, use), "the project's own text", text, length);
    } else free(text);
    free_each(root, proof);
    return ok;
}

/* Every file is a document. */
static int use_documents(Data *d, int use, const char *folder, Error *e) {
    Source *s = add_source(d, use);
    if (d->format && d->format != &formats[TEXT])
        return error_set(e, "%s: a folder of text, expected %s as before it", folder, d->format->name);
    d->format = &formats[TEXT];
    if (!source_read_folder(s, folder, e)) return 0;
    for (size_t i = 0; i < s->files; i++) {
        const TextFile *f = &s->file[i];
        const size_t bytes = f->to - f->from, ends = bytes < PRINTED ? bytes : PRINTED;
        fingerprint(d, use, f->path + strlen(folder), (int64_t)bytes, s->text + f->from, s->text + f->to - ends, ends);
        fingerprint_form(d, f);
    }
    d->files += (int)s->files;
    return 1;
}

static int no_data(const char *folder, int use, int shakespeare, Error *e) {
    glob_t bins;
    const int foreign = matches(folder, "*.bin", &bins) && foreign_tokens(bins.gl_pathv[0], e);
    globfree(&bins);
    if (foreign) return 0;
    char *fetch = text_format("%s/fetch.sh", folder);
    char *hint = shakespeare || is_file(fetch) ? text_format("; fetch it: sh %s", fetch) : text_format("%s", "");
    error_set(e, "%s: a folder with no data, expected one of\n"
              "  %-29s shards of llm.c\n  %-29s nanoGPT, uint16 without a header\n"
              "  %-29s text, or records of JSON: .jsonl\n  input.txt                     text\n"
              "  any files but *.bin           text, a document in each, or in each record of JSON; or name a file, or "
              "a pattern in quotes%s", folder,
              use == DATA_VALIDATION ? "*_val*.bin" : "*_train*.bin and *_val*.bin",
              use == DATA_VALIDATION ? "val.bin" : "train.bin and val.bin", "train.txt and val.txt", hint);
    free_each(fetch, hint);
    return 0;
}

static int count_matches(const char *folder, const char *pattern) {
    glob_t found;
    const int n = matches(folder, pattern, &found);
    globfree(&found);
    return n;
}
static int use_folder(Data *d, int use, const char *folder, Error *e) {
    static const struct { const char *train, *validation; int both; } layouts[] = {   /* both: only if both are there */
        { "*_train*.bin", "*_val*.bin", 0 }, { "train.bin", "val.bin", 0 }, { "train.txt", "val.txt", 1 },
        { "train.jsonl", "val.jsonl", 1 }, { "input.txt", "", 0 }, };
    const int shakespeare = !strcmp(base_name(folder), "tinyshakespeare");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const char *train = layouts[i].train, *validation = layouts[i].validation;
        glob_t found, beside;
        if (layouts[i].both && (!count_matches(folder, train) || !count_matches(folder, validation))) continue;
        int n = matches(folder, use == DATA_VALIDATION && *validation ? validation : train, &found), ok = 0;
        if (n) {
            int paired = matches(folder, use == BOTH ? validation : "", &beside) > 0;
            ok = use_files(d, paired ? DATA_TRAIN : use, &found, e) && use_files(d, DATA_VALIDATION, &beside, e);
            globfree(&beside);
        }
        globfree(&found);
        if (n) return ok;
    }
    const int project = shakespeare && use != DATA_VALIDATION ? use_project(d, use, folder, e) : -1;
    if (project >= 0) return project;
    const int all = count_matches(folder, "*");             /* hidden ones aside */
    if (!all || count_matches(folder, "*.bin") || count_matches(folder, "fetch.sh"))
        return no_data(folder, use, shakespeare, e);
    glob_t lone;
    const int is_lone = all == 1 && matches(folder, "*.txt", &lone) == 1 && is_file(lone.gl_pathv[0]);
    const int ok = is_lone ? use_files(d, use, &lone, e) : use_documents(d, use, folder, e);
    if (all == 1) globfree(&lone);
    return ok;
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

/* In parallel: a hundred shards of 200 MB keep cores busy. The error is of the first bad file. */
static int scan_all(Data *d, Error *e) {
    int all = d->segments[0] + d->segments[1], bad = all;
    #pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < all; i++) {
        Error mine;
        Segment *p = i < d->segments[0] ? &d->segment[0][i] : &d->segment[1][i - d->segments[0]];
        if (data_scan(p, &mine)) continue;
        #pragma omp critical
        if (i < bad) bad = i, *e = mine;
    }
    return bad == all;
}

static void describe(Data *d) {
    static const char *const held_out[] = { "", " (the last tenth)", " (every tenth document)",
                                            " (the last document)" };
    const Texts *texts = &d->texts;
    const char *first = texts->count ? texts->at[0].path : d->segment[DATA_TRAIN][0].path;
    const char *last = texts->count ? texts->at[0].path : d->segment[DATA_TRAIN][d->segments[DATA_TRAIN] - 1].path;
    for (int i = 0; i < texts->count; i++) if (texts->use[i] != DATA_VALIDATION) last = texts->at[i].path;
    char *to = !strcmp(first, last) ? text_format("%s", "") : text_format(" ... %s", base_name(last));
    d->description = text_format("%s%s%s: %s, %d file%s, %lld tokens for training, %lld for validation%s%s",
        d->is_fallback ? "NOT tinyshakespeare, which is missing, but " : "", first, to,
        d->has_chats ? "conversations" : d->is_bytes && d->is_text ? "text as bytes" : d->format->name, d->files,
        d->files == 1 ? "" : "s", (long long)d->tokens[DATA_TRAIN], (long long)d->tokens[DATA_VALIDATION],
        held_out[d->held_out], d->cached ? ", as encoded before" : "");
    free(to);
}

static void free_texts(Data *d) {
    for (int i = 0; i < d->texts.count; i++) source_free(&d->texts.at[i]);
    free_each(d->texts.at, d->texts.use);
    d->texts = (Texts){ 0 };
}

/* request: NULL, or what data_open_text was asked for. *tokenizer: given, loaded, or NULL. */
static Data *open_all(const char *train, const char *validation, const DataRequest *request, Tokenizer **tokenizer,
                      Error *e) {
    Data *d = mem_alloc(sizeof *d);
    const int apart = validation && validation[0];
    int begin = 0;
    d->bos = -1;
    d->any_bytes = !request || request->any_bytes;
    d->field = request && request->field ? request->field : "";
    int ok = use_path(d, apart ? DATA_TRAIN : BOTH, train, e)
        && (!apart || use_path(d, DATA_VALIDATION, validation, e));
    d->is_text = d->format == &formats[TEXT];
    if (ok && d->is_text) ok = data_encode_texts(d, request, tokenizer, e);
    else if (ok && request && request->splits)
        ok = error_set(e, "-sp 1: %s: found %s, whose control tokens are encoded already", train, d->format->name);
    else if (ok && request && data_trains_tokenizer(request))
        ok = error_set(e, "%s: found %s, expected text to train a tokenizer of %s tokens on (-tk)", train,
                       d->format->name, request->tokenizer);
    if (!ok || !scan_all(d, e)) return data_close(d), NULL;
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < d->segments[s]; i++) {
            d->tokens[s] += d->segment[s][i].tokens;
            if ((int)d->segment[s][i].max > d->max_id) d->max_id = (int)d->segment[s][i].max;
            d->has_chats |= d->segment[s][i].is_chats;
            begin |= d->bos >= 0 && !d->segment[s][i].is_chats;
        }
    if (d->has_chats) d->fingerprint = chat_hash(&d->chat, d->fingerprint);
    if (d->has_chats) d->fingerprint += FORMS_VERSION;
    if (*d->field) d->fingerprint = hash_bytes(d->fingerprint, d->field, strlen(d->field));
    if (request && request->splits) d->fingerprint = hash_bytes(d->fingerprint, "split", 5);
    d->field = NULL;
    d->without_bos = d->fingerprint;
    if (begin) d->fingerprint = hash_bytes(d->fingerprint, &d->bos, sizeof d->bos);
    describe(d);
    free_texts(d);
    return d;
}

Data *data_open(const char *train, const char *validation, const Tokenizer *tokenizer, Error *e) {
    Tokenizer *given = (Tokenizer *)tokenizer;              /* open_all only reads it, having no request */
    return open_all(train, validation, NULL, &given, e);
}

Data *data_open_text(const DataRequest *request, Tokenizer **tokenizer, Error *e) {
    *tokenizer = NULL;
    Data *d = data_load_tokenizer(request, tokenizer, e)
            ? open_all(request->train, request->validation, request, tokenizer, e) : NULL;
    if (d && *tokenizer) tokenizer_split_controls(*tokenizer, request->splits);     /* it may come from the cache */
    if (d) return d;
    tokenizer_free(*tokenizer);
    *tokenizer = NULL;
    return NULL;
}

void data_close(Data *d) {
    if (!d) return;
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < d->segments[s]; i++) {
            if (d->segment[s][i].fd >= 0) close(d->segment[s][i].fd);
            free(d->segment[s][i].memory);
            packing_free(&d->segment[s][i].packing);
            free_each(d->segment[s][i].path, d->segment[s][i].kept);
        }
        free(d->segment[s]);
    }
    free_texts(d);
    chat_close(&d->chat);
    free_each(d->description, d);
}
