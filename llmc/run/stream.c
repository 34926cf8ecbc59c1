/* stream.c: see stream.h. */
#include "stream.h"
#include "view.h"
#include "llmc/base/json.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens to text -------------------------------------------------------------------------- */

void stream_open(Stream *o, const TextStyle *style) { *o = (Stream){ .style = style, .color = -1 }; }
void stream_close(Stream *o) { free(o->text.at); free(o->experts.at); }
void stream_restart(Stream *o) {
    o->text.length = o->experts.length = o->prompt = 0;
    o->ended = o->last = 0;
}

static void add(Stream *o, const char *text, size_t bytes, int expert) {
    text_add_bytes(&o->text, text, bytes);
    for (size_t i = 0; o->style->marked && i < bytes; i++) text_add_bytes(&o->experts, &expert, sizeof expert);
}
static void add_token(Stream *o, int token, int expert) {
    const Tokenizer *t = o->style->tokenizer;
    size_t bytes;
    char *text = !t ? text_format(" %d", token) : o->strip ? tokenizer_decode(t, &token, 1, &bytes) : NULL;
    const char *piece = text ? text : tokenizer_piece(t, token, &bytes);
    if (!t) bytes = strlen(text);
    if (bytes) o->strip = 0;
    add(o, piece, bytes, expert);
    free(text);
}

void stream_prompt(Stream *o, const char *text, size_t bytes, const int *ids, const int *experts, int count) {
    o->strip = !bytes || (text && o->style->marked);
    for (int i = 0; text && bytes && o->style->marked && i < count; i++) add_token(o, ids[i], experts[i]);
    if (text && !o->style->marked) add(o, text, bytes, -1);
    o->prompt = o->text.length;
}

void stream_read(Stream *o, int token) {
    add_token(o, token, -1);
    o->prompt = o->text.length;
}

void stream_generated(Stream *o, int token, int expert) {
    char *const *stops = o->style->stops;
    const size_t before = o->text.length;
    size_t longest = 0;
    add_token(o, token, expert);
    for (char *const *stop = stops; stop && *stop; stop++) longest = strlen(*stop) > longest ? strlen(*stop) : longest;
    const size_t from = before > o->prompt + longest ? before - longest : o->prompt;
    const size_t end = stops_find(stops, o->text.at, from, o->text.length);
    o->ended = end < o->text.length;
    o->text.length = end;
}

/* How many bytes at the end may be the beginning of a stop string. */
static size_t kept_back(const Stream *o) {
    const size_t drawn = o->text.length - o->prompt;
    size_t most = 0;
    for (char *const *stop = o->style->stops; stop && *stop; stop++) {
        size_t n = strlen(*stop) - 1;
        if (n > drawn) n = drawn;
        while (n > most && memcmp(o->text.at + o->text.length - n, *stop, n)) n--;
        if (n > most) most = n;
    }
    return most;
}

static void set_color(Stream *o, int expert) {
    if (expert == o->color) return;
    if (o->style->colored && expert >= 0) printf("\033[38;5;%dm", view_color(expert));
    else if (o->style->colored) printf("\033[0m");
    else if (expert >= 0) printf("[%d]", expert);
    o->color = expert;
}

size_t stream_ready(const Stream *o, int end) {
    return utf8_complete(o->text.at, o->text.length - (end ? 0 : kept_back(o)));
}
void stream_drop(Stream *o, size_t bytes) {
    const int marked = o->style->marked;
    o->text.length -= bytes;
    o->prompt -= o->prompt < bytes ? o->prompt : bytes;
    if (o->text.length) memmove(o->text.at, o->text.at + bytes, o->text.length);
    if (marked && o->text.length)
        memmove(o->experts.at, o->experts.at + bytes * sizeof(int), o->text.length * sizeof(int));
    o->experts.length = marked ? o->text.length * sizeof(int) : 0;
}

void stream_flush(void) {
    if (!fflush(stdout) || errno == EINTR) return;
    if (errno == EPIPE) { signal(SIGPIPE, SIG_DFL); raise(SIGPIPE); }
    fail(EXIT_DISK, "cannot write the text: %s", strerror(errno));
}
void stream_print(Stream *o, int end) {
    const int marked = o->style->marked;
    const size_t ready = stream_ready(o, end);
    size_t begin = 0;
    while (o->style->answers && !o->last && begin < ready && o->text.at[begin] == ' ') begin++;
    for (size_t i = begin, n; i < ready; i += n) {
        char shown[5];
        int expert;
        n = text_show(o->text.at + i, ready - i, shown);
        if (marked) { memcpy(&expert, o->experts.at + i * sizeof expert, sizeof expert); set_color(o, expert); }
        if (o->style->terminal) fputs(shown, stdout);
        else fwrite(o->text.at + i, 1, n, stdout);
        o->last = o->text.at[i + n - 1];
    }
    if (end) set_color(o, -1);
    stream_flush();
    stream_drop(o, ready);
}

/* ---- stop strings ---------------------------------------------------------------------------- */

char **stops_add(char **stops, const char *text, size_t bytes) {
    size_t n = 0;
    for (; stops && stops[n]; n++) if (strlen(stops[n]) == bytes && !memcmp(stops[n], text, bytes)) return stops;
    if (!bytes) return stops;
    stops = mem_grow(stops, (n + 2) * sizeof *stops);
    stops[n] = memcpy(mem_alloc(bytes + 1), text, bytes);
    stops[n + 1] = NULL;
    return stops;
}
char **stops_option(char **stops, const char *text) {
    Error e;
    Text one = { 0 };
    Json *json = *text == '[' ? json_parse(text, strlen(text), &e) : NULL;
    const JsonValue *v = json ? json_first(json_root(json)) : NULL;
    for (; v && json_string(v, NULL); v = v->next) stops = stops_add(stops, v->is.string, v->length);
    for (; !json && *text; text++) {
        const int escaped = *text == '\\' && (text[1] == 'n' || text[1] == 't' || text[1] == '\\');
        if (escaped) text++;
        text_add_bytes(&one, escaped && *text == 'n' ? "\n" : escaped && *text == 't' ? "\t" : text, 1);
    }
    if (v) fail(EXIT_USAGE, "-st: a list of stop strings has something else in it: [\"a\", \"b\"] is one");
    stops = stops_add(stops, one.at ? one.at : "", one.length);
    json_free(json);
    free(one.at);
    return stops;
}
size_t stops_find(char *const *stops, const char *text, size_t from, size_t bytes) {
    for (size_t i = from; i < bytes; i++)
        for (char *const *stop = stops; stop && *stop; stop++) {
            const size_t n = strlen(*stop);
            if (n <= bytes - i && !memcmp(text + i, *stop, n)) return i;
        }
    return bytes;
}
void stops_free(char **stops) {
    for (char **stop = stops; stop && *stop; stop++) free(*stop);
    free(stops);
}

/* ---- text to tokens -------------------------------------------------------------------------- */

long stdin_read(Text *text, int line) {
    int c;
    text->length = 0;
    text_add_bytes(text, "", 0);
    while ((c = getchar()) != EOF) {
        const char byte = (char)c;
        if (text->length == MOST_INPUT)
            fail(EXIT_INPUT, "stdin: %s of more than %d MB is not read", line ? "a line" : "a text", MOST_INPUT >> 20);
        text_add_bytes(text, &byte, 1);
        if (line && c == '\n') break;
    }
    return ferror(stdin) || (c == EOF && !text->length) ? -1 : (long)text->length;
}
char *prompt_read(const char *prompt, size_t *bytes) {
    Error e;
    Text text = { 0 };
    char *full;
    if (*prompt == '@') {
        if (!(full = file_read(prompt + 1, bytes, &e))) fail(EXIT_INPUT, "-i %s: %s", prompt, e.text);
        return full;
    }
    if (strcmp(prompt, "-")) text_add_string(&text, prompt);
    else stdin_read(&text, 0);
    if (ferror(stdin)) fail(EXIT_DISK, "-i -: stdin cannot be read: %s", strerror(errno));
    *bytes = text.length;
    return text.at;
}

static int parse_ids(const char *text, size_t bytes, int vocab, int **ids, size_t *count, Error *e) {
    *count = 0;
    *ids = mem_alloc((bytes + 1) * sizeof **ids);
    for (char *end; text += strspn(text, " \t\r\n"), *text; text = end) {
        const long id = strtol(text, &end, 10);
        if (end == text || id < 0 || id >= vocab)
            return error_set(e, "without a tokenizer the prompt must be numbers from 0 to %d", vocab - 1);
        (*ids)[(*count)++] = (int)id;
    }
    return 1;
}
int prompt_tokens(const Tokenizer *t, int vocab, const char *text, size_t bytes, int begin, int **ids,
                  size_t *count, Error *e) {
    if (t) *count = tokenizer_encode(t, text, bytes, ids);
    else if (!parse_ids(text, bytes, vocab, ids, count, e)) { free(*ids); return 0; }
    if (begin && t) *count = tokenizer_begin(t, ids, *count, !*count);
    else if (begin && !*count) *ids = mem_grow(*ids, sizeof **ids), (*ids)[(*count)++] = 0;
    return 1;
}
int prompt_encode(const Tokenizer *t, int vocab, const char *text, size_t bytes, int begin, int most, int **ids) {
    size_t count;
    Error e;
    if (!prompt_tokens(t, vocab, text, bytes, begin, ids, &count, &e)) fail_with(&e, EXIT_INPUT);
    if (count > (size_t)most) {
        warn("the prompt has %zu tokens, too many for the context: only the last %d are read", count, most);
        memmove(*ids, *ids + (count - (size_t)most), (size_t)most * sizeof **ids);
        count = (size_t)most;
    }
    return (int)count;
}
