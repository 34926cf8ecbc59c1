/* documents.c: see documents.h. */
#define _POSIX_C_SOURCE 200809L
#include "chat.h"
#include "documents.h"
#include "kinds.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- reading --------------------------------------------------------------------------------- */

static int is_jsonl(const char *path) {
    const size_t n = strlen(path);
    return n > 6 && !strcmp(path + n - 6, ".jsonl");
}

static void add_file(Source *s, const char *path, size_t bytes) {
    s->file = mem_grow(s->file, (s->files + 1) * sizeof *s->file);
    s->file[s->files++] = (TextFile){ text_format("%s", path), s->bytes, s->bytes + bytes };
    s->bytes += bytes;
}
void source_take_text(Source *s, const char *path, char *text, size_t bytes) {
    s->path = text_format("%s", path);
    s->text = text;
    s->separate = is_jsonl(path);
    add_file(s, path, bytes);
}

int source_read_file(Source *s, const char *path, Error *e) {
    size_t bytes = 0;
    char *text = file_read(path, &bytes, e);
    if (text) source_take_text(s, path, text, bytes);
    return text != NULL;
}

typedef struct { char **at; size_t count; } Paths;

/* Did a run write into this folder? Its logs are no training data, but with -i . they lie there. */
static int is_run(const char *folder) {
    char *log = text_format("%s/log.jsonl", folder), *main_log = text_format("%s/main.log", folder);
    const int is = is_file(log) && is_file(main_log);
    free_each(log, main_log);
    return is;
}

/* All regular files below a folder, not of runs. Links to folders, maybe circles, are left out. */
static int list_files(const char *folder, Paths *paths, Error *e) {
    DIR *dir = opendir(folder);
    int ok = dir != NULL || error_set(e, "%s: %s", folder, strerror(errno));
    for (struct dirent *entry; ok && (errno = 0, entry = readdir(dir)); ) {
        struct stat here, there;
        if (entry->d_name[0] == '.') continue;
        char *path = text_format("%s/%s", folder, entry->d_name);
        if (lstat(path, &here)) ok = error_set(e, "%s: %s", path, strerror(errno));
        else if (S_ISLNK(here.st_mode) && stat(path, &there)) {}                /* a link to nothing */
        else if (S_ISDIR(here.st_mode)) ok = is_run(path) || list_files(path, paths, e);
        else if (S_ISREG(S_ISLNK(here.st_mode) ? there.st_mode : here.st_mode)) {
            paths->at = mem_grow(paths->at, (paths->count + 1) * sizeof *paths->at);
            paths->at[paths->count++] = path;
            path = NULL;
        }
        free(path);
    }
    if (ok && errno) ok = error_set(e, "%s: %s", folder, strerror(errno));
    if (dir) closedir(dir);
    return ok;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
int source_read_folder(Source *s, const char *folder, Error *e) {
    Paths paths = { 0 };
    size_t binary = 0, capacity = 0;
    const char *first_binary = "", *remedy;
    int ok = list_files(folder, &paths, e);
    s->path = text_format("%s", folder);
    s->separate = 1;
    if (paths.count) qsort(paths.at, paths.count, sizeof *paths.at, by_name);
    for (size_t i = 0; ok && i < paths.count; i++) {
        size_t bytes = 0;
        char *text = file_read(paths.at[i], &bytes, e);
        ok = text != NULL;
        if (ok && kind_of_binary(text, bytes, &remedy)) { if (!binary++) first_binary = paths.at[i]; }
        else if (ok && bytes) {
            if (s->bytes + bytes > capacity) s->text = mem_grow(s->text, capacity = 2 * capacity + bytes);
            memcpy(s->text + s->bytes, text, bytes);
            add_file(s, paths.at[i], bytes);
        }
        free(text);
    }
    if (ok && binary)
        warn("%s: %zu binary file%s %s not text and left out, %s%s", folder, binary, binary > 1 ? "s" : "",
             binary > 1 ? "are" : "is", binary > 1 ? "the first " : "", first_binary);
    if (ok && !s->files) ok = error_set(e, "%s: no text in any of its %zu files", folder, paths.count);
    for (size_t i = 0; i < paths.count; i++) free(paths.at[i]);
    free(paths.at);
    return ok;
}

void source_free(Source *s) {
    for (size_t i = 0; i < s->files; i++) free(s->file[i].path);
    free_each(s->file, s->document, s->text, s->path);
}

uint64_t source_hash(const Source *s, uint64_t seed) {
    uint64_t h = hash_bytes(seed, &s->separate, sizeof s->separate);
    for (size_t i = 0; i < s->files; i++) {
        const int lines = is_jsonl(s->file[i].path);
        h = hash_bytes(h, &s->file[i].to, sizeof s->file[i].to);
        h = hash_bytes(h, &lines, sizeof lines);
    }
    return hash_bytes(h, s->text, s->bytes);
}

/* ---- documents ------------------------------------------------------------------------------- */

static void add_document(Source *s, size_t *capacity, const char *at, size_t bytes) {
    if (s->documents == *capacity)
        s->document = mem_grow(s->document, (*capacity = 2 * *capacity + 16) * sizeof *s->document);
    s->document[s->documents++] = (Document){ at, bytes, 0 };
}

static int check_chat(const JsonValue *talk, const Chat *chat, Error *e) {
    Text text = { 0 };
    const int ok = chat_write(chat, talk, 0, &text, NULL, e);
    free(text.at);
    return ok;
}

#define A_LINE "{\"text\": \"...\"} or {\"messages\": [{\"role\": \"...\", \"content\": \"...\"}, ...]}"

/* Decodes a line in place (a string is never longer than its JSON). A conversation stays. */
static int parse_line(Document *line, const Chat *chat, Error *e) {
    Error why;
    Json *json = json_parse_line(line->at, line->bytes, &why);
    if (!json) return error_set(e, "expected " A_LINE ": %.400s", why.text);
    const JsonValue *root = json_root(json), *text = json_get(root, "text"), *talk = chat_talk(json);
    static const char *const names[] = { "null", "true or false", "a number", "a number", "a string", "an array",
                                         "an object" };
    int ok = talk ? line->is_chat = check_chat(talk, chat, e) : json_is(text, JSON_STRING);
    if (talk) {}
    else if (ok) memmove((char *)line->at, text->is.string, line->bytes = text->length);
    else if (!json_is(root, JSON_OBJECT)) error_set(e, "expected " A_LINE ": found %s", names[root->type]);
    else if (!text) error_set(e, "expected " A_LINE ": found an object without \"text\" and \"messages\"");
    else error_set(e, "expected " A_LINE ": found %s as \"text\"", names[text->type]);
    json_free(json);
    return ok;
}

/* Documents first ... are the lines of a JSONL file. The message is about the first wrong line. */
static int parse_lines(Source *s, size_t first, const size_t *line_number, const char *path,
                       const Chat *chat, Error *e) {
    const int64_t n = (int64_t)(s->documents - first);
    int64_t bad = n;
    Error why = { 0 };
    #pragma omp parallel for schedule(dynamic, 64)
    for (int64_t i = 0; i < n; i++) {
        Error mine;
        Document line = s->document[first + (size_t)i];
        if (parse_line(&line, chat, &mine)) { s->document[first + (size_t)i] = line; continue; }
        #pragma omp critical
        if (i < bad) bad = i, why = mine;
    }
    if (bad == n) return 1;
    char found[64];
    const Document *line = &s->document[first + (size_t)bad];
    snprintf(found, sizeof found, "%.*s", (int)(line->bytes < 60 ? line->bytes : 60), line->at);
    return error_set(e, "%s: line %zu: %.600s: %s%s", path, line_number[bad], why.text, found,
                     line->bytes > 60 ? "..." : "");
}

static int parse_file(Source *s, const TextFile *f, size_t *capacity, const Chat *chat, Error *e) {
    const char *at = s->text + f->from, *end = s->text + f->to;
    size_t first = s->documents, *number = NULL, numbers = 0;
    if (!is_jsonl(f->path)) { add_document(s, capacity, at, (size_t)(end - at)); return 1; }
    if (end - at >= 3 && !memcmp(at, "\xEF\xBB\xBF", 3)) at += 3;        /* a byte-order mark, as Windows writes it */
    for (size_t line = 1; at < end; line++) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        const size_t bytes = (size_t)((next ? next : end) - at);
        if (!text_is_blank(at, bytes)) {
            const size_t n = s->documents - first;
            if (n == numbers) number = mem_grow(number, (numbers = 2 * numbers + 16) * sizeof *number);
            number[n] = line;
            add_document(s, capacity, at, bytes);
        }
        at += bytes + 1;
    }
    const int ok = s->documents > first ? parse_lines(s, first, number, f->path, chat, e)
                 : error_set(e, "%s: found no lines, expected {\"text\": \"...\"} or {\"messages\": [...]} in each",
                             f->path);
    free(number);
    return ok;
}

int source_parse(Source *s, const Chat *chat, Error *e) {
    size_t capacity = 0, kept = 0;
    for (size_t i = 0; i < s->files; i++) if (!parse_file(s, &s->file[i], &capacity, chat, e)) return 0;
    for (size_t i = 0; i < s->documents; i++) if (s->document[i].bytes) s->document[kept++] = s->document[i];
    s->documents = kept;
    for (size_t i = 0; i < kept; i++) s->has_chats |= s->document[i].is_chat;
    return kept > 0 || error_set(e, "%s: all its documents are empty", s->path);
}

int source_hold_out(const Source *s, Documents *train, Documents *held_out) {
    *train = (Documents){ mem_alloc(s->documents * sizeof(Document)), 0 };
    *held_out = (Documents){ mem_alloc(s->documents * sizeof(Document)), 0 };
    if (s->documents == 1 && !s->has_chats) {
        /* cut before a byte that does not continue a UTF-8 character: 10xxxxxx does */
        const Document d = s->document[0];
        size_t at = d.bytes / 10 * 9 + d.bytes % 10 * 9 / 10;
        for (int i = 0; i < 3 && at > 1 && ((unsigned char)d.at[at] & 0xC0) == 0x80; i++) at--;
        train->at[train->count++] = (Document){ d.at, at, 0 };
        held_out->at[held_out->count++] = (Document){ d.at + at, d.bytes - at, 0 };
        return at > 0;
    }
    for (size_t i = 0; i < s->documents; i++) {
        Documents *to = i % 10 == 9 || (s->documents < 10 && i + 1 == s->documents) ? held_out : train;
        to->at[to->count++] = s->document[i];
    }
    return train->count > 0;
}
