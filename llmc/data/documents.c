/* documents.c: see documents.h. */
#define _POSIX_C_SOURCE 200809L
#include "chat.h"
#include "documents.h"
#include "forms.h"
#include "kinds.h"
#include "records.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* ---- reading --------------------------------------------------------------------------------- */

static void add_file(Source *s, const char *path, size_t bytes) {
    s->file = mem_grow(s->file, (s->files + 1) * sizeof *s->file);
    s->file[s->files++] = (TextFile){ .path = text_format("%s", path), .from = s->bytes, .to = s->bytes + bytes };
    s->bytes += bytes;
}
void source_take_text(Source *s, const char *path, char *text, size_t bytes) {
    s->path = text_format("%s", path);
    s->text = text;
    add_file(s, path, bytes);
    s->separate = s->file->records = records_named(path);
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

/* In a folder, where settings of programs may lie, *.json may be a text like others. */
static int is_data(const char *path, const char *text, size_t bytes) {
    const char *dot = strrchr(path, '.');
    return records_named(path) && (strcasecmp(dot, ".json") || forms_held(text, bytes));
}

/* Is it data that would be missed: a table, or texts that are packed? */
static int is_meant(const char *path, const char *what) {
    static const char *const names[] = { ".json", ".ndjson", ".txt" };
    const char *slash = strrchr(path, '/'), *name = slash ? slash : path;
    int is = kind_is_table(what);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) is |= strstr(name, names[i]) != NULL;
    return is;
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
        const char *what = ok ? kind_of_binary(text, bytes, &remedy) : NULL;
        if (what && is_meant(paths.at[i], what)) ok = kind_refuse(paths.at[i], what, remedy, "", e);
        else if (what) { if (!binary++) first_binary = paths.at[i]; }
        else if (ok && bytes) {
            if (s->bytes + bytes > capacity) s->text = mem_grow(s->text, capacity = 2 * capacity + bytes);
            memcpy(s->text + s->bytes, text, bytes);
            add_file(s, paths.at[i], bytes);
            s->file[s->files - 1].records = is_data(paths.at[i], text, bytes);
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
        const int lines = s->file[i].records;
        h = hash_bytes(h, &s->file[i].to, sizeof s->file[i].to);
        h = hash_bytes(h, &lines, sizeof lines);
    }
    return hash_bytes(h, s->text, s->bytes);
}

/* ---- documents ------------------------------------------------------------------------------- */

static void add_document(Source *s, size_t *capacity, const char *at, size_t bytes, size_t line) {
    array_grow(s->document, s->documents, *capacity);
    s->document[s->documents++] = (Document){ at, bytes, 0, (unsigned)line };
}

typedef struct { const Chat *chat; const char *field; } Reading;

static int check_chat(const JsonValue *talk, const Chat *chat, Error *e) {
    Text text = { 0 };
    const int ok = chat_write(chat, talk, 0, &text, NULL, e);
    free(text.at);
    return ok;
}

/* Decodes a text in place: a string is never longer than its JSON. Other records stay. */
static int parse_record(Document *record, const Reading *how, Error *e) {
    Error why;
    Form f = { 0 };
    Json *json = json_parse_record(record->at, record->bytes, &why);
    int ok = json ? form_read(&f, json, how->field, e)
                  : error_set(e, "expected JSON, {\"text\": \"...\"} or {\"messages\": [...]}: %.400s", why.text);
    record->is_record = !ok || f.text.at ? 0 : f.chat ? RECORD_CHAT : RECORD_PAIR;
    if (ok && f.chat && how->chat) ok = check_chat(f.chat, how->chat, e);
    if (ok && f.text.at) memmove((char *)record->at, f.text.at, record->bytes = f.text.bytes);
    json_free(json);
    return ok;
}

int source_refuse(const Source *s, const Document *record, const char *why, Error *e) {
    char found[64];
    size_t i = 0;
    while (i + 1 < s->files && record->at >= s->text + s->file[i].to) i++;
    snprintf(found, sizeof found, "%.*s", (int)(record->bytes < 60 ? record->bytes : 60), record->at);
    return error_set(e, "%s: line %u: %.700s: %s%s", s->file[i].path, record->line, why, found,
                     record->bytes > 60 ? "..." : "");
}

/* Documents first ... are the records of a file. The message is about the first wrong one. */
static int parse_records(Source *s, size_t first, const Reading *how, Error *e) {
    const int64_t n = (int64_t)(s->documents - first);
    int64_t bad = n;
    Error why = { 0 };
    #pragma omp parallel for schedule(dynamic, 64)
    for (int64_t i = 0; i < n; i++) {
        Error mine;
        Document record = s->document[first + (size_t)i];
        if (parse_record(&record, how, &mine)) { s->document[first + (size_t)i] = record; continue; }
        #pragma omp critical
        if (i < bad) bad = i, why = mine;
    }
    return bad == n || source_refuse(s, &s->document[first + (size_t)bad], why.text, e);
}

static int parse_file(Source *s, const TextFile *f, size_t *capacity, const Reading *how, Error *e) {
    Records r;
    Error why;
    const char *at = s->text + f->from;
    const size_t first = s->documents, bytes = f->to - f->from;
    if (!f->records) { add_document(s, capacity, at, bytes, 0); return 1; }
    int ok = records_find(&r, at, bytes, &why) || error_set(e, "%s: %.700s", f->path, why.text);
    for (size_t i = 0; ok && i < r.count; i++) add_document(s, capacity, r.at[i].at, r.at[i].bytes, r.at[i].line);
    ok = ok && parse_records(s, first, how, e);
    free(r.at);
    return ok;
}

int source_parse(Source *s, const Chat *chat, const char *field, Error *e) {
    const Reading how = { chat, field };
    size_t capacity = 0, kept = 0;
    for (size_t i = 0; i < s->files; i++) if (!parse_file(s, &s->file[i], &capacity, &how, e)) return 0;
    for (size_t i = 0; i < s->documents; i++) if (s->document[i].bytes) s->document[kept++] = s->document[i];
    s->documents = kept;
    for (size_t i = 0; i < kept; i++) {
        s->has_chats |= s->document[i].is_record != 0;
        s->has_pairs |= s->document[i].is_record == RECORD_PAIR;
    }
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
        train->at[train->count++] = (Document){ d.at, at, 0, 0 };
        held_out->at[held_out->count++] = (Document){ d.at + at, d.bytes - at, 0, 0 };
        return at > 0;
    }
    for (size_t i = 0; i < s->documents; i++) {
        Documents *to = i % 10 == 9 || (s->documents < 10 && i + 1 == s->documents) ? held_out : train;
        to->at[to->count++] = s->document[i];
    }
    return train->count > 0;
}
