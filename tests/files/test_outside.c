/* test_outside.c: what strangers may send: text that a terminal would obey, input that costs too
 * much, and what `make fuzz` has found. Part of the group files. */
#define _POSIX_C_SOURCE 200809L
#include "tests/test.h"
#include "llmc/data/tokenizer.h"
#include "llmc/run/log.h"
#include "llmc/run/options.h"
#include "llmc/run/stream.h"
#include <sys/wait.h>
#include <unistd.h>


/* ---- text on its way to a terminal ----------------------------------------------------------- */

/* Every kind of character that a terminal obeys, and what is shown instead. The last: as they
 * are. */
static const struct { const char *text, *shown; } outside[] = {
    { "\x1B]0;title\x07", "\xE2\x90\x9B]0;title\xE2\x90\x87" },
    { "\r\x08", "\xE2\x90\x8D\xE2\x90\x88" }, { "\x7F", "\xE2\x90\xA1" }, { "a\xC2\x9B[31mb", "a\xEF\xBF\xBD[31mb" }, {
    "\xC2\x80\xC2\x9F", "\xEF\xBF\xBD\xEF\xBF\xBD" }, { "\x9B[31m", "\xEF\xBF\xBD[31m" }, { "\xC3(", "\xEF\xBF\xBD(" },
    { "\xEF\xBF\xBF", "\xEF\xBF\xBD" }, { "\xEF(", "\xEF\xBF\xBD(" }, { "tab\tline\n", "tab\tline\n" },
    { "caf\xC3\xA9 \xC2\xA0 \xF0\x9F\x98\x80", "caf\xC3\xA9 \xC2\xA0 \xF0\x9F\x98\x80" }, { "", "" }, };
static void fail_of(int i)   { fail(EXIT_INPUT, "%s", outside[i].text); }
static void warn_of(int i)   { warn("%s", outside[i].text); }
static void print_of(int i)  { text_print(stderr, "%s", outside[i].text); }
static void sample_of(int i) {
    Log log = { .folder = "" };
    log_sample(&log, 1, outside[i].text, strlen(outside[i].text));
}
static void stream_text(const char *text, int answers) {        /* of a model, on a terminal */
    Tokenizer *t = tokenizer_bytes();
    const TextStyle style = { .tokenizer = t, .terminal = 1, .answers = answers };
    Stream o;
    stream_open(&o, &style);
    for (const char *c = text; *c; c++) {
        stream_generated(&o, (unsigned char)*c, 0);
        if (answers) stream_print(&o, 0);
    }
    stream_print(&o, 1);
    stream_close(&o), tokenizer_free(t);
}
static void stream_of(int i) { stream_text(outside[i].text, 0); }
static void answer_of(int i) {                          /* in a chat: without the spaces in front */
    char *text = text_format("  %s", outside[i].text);
    stream_text(text, 1);
    free(text);
}
static void options_of(int i) {                         /* a setting restored from a checkpoint */
    const char *text = NULL;
    char given[1];
    static const Option row = { "group", "i", "name", OPTION_TEXT, 0, "", 0, 0, NULL, "" };
    const Options o = { &row, 1, &text, given, NULL };
    options_parse(o, 1, NULL, "", NULL, 0);
    options_default(o, "i", outside[i].text);
    options_print(o, NULL);
}
/* Whatever is written to a user passes through text_show: what arrives, from a child process. */
static void test_text_from_outside(void) {
    static const struct { const char *name; void (*write)(int); const char *form; } ways[] = {
        { "fail", fail_of, "error: %s\n" }, { "warn", warn_of, "warning: %s\n" }, { "text_print", print_of, "%s" },
        { "log_sample", sample_of, "---\n%s\n---\n" }, { "stream_print", stream_of, "%s" },
        { "an answer", answer_of, "%s" },
        { "options_print", options_of, "| group\n|   -i   name            | %s\n" },
    };
    char *path = scratch_path("shown");
    for (size_t w = 0; w < COUNT(ways); w++)
        for (size_t i = 0; i < COUNT(outside); i++) {
            size_t bytes = 0, end;
            Error e;
            fflush(stdout);
            const pid_t child = fork();
            if (!child) {
                if (!freopen(path, "w", stdout) || dup2(fileno(stdout), 2) < 0) _exit(1);
                ways[w].write((int)i);
                fflush(stdout);
                _exit(0);
            }
            waitpid(child, NULL, 0);
            char *got = file_read(path, &bytes, &e), *shown = text_format("%s", outside[i].shown);
            if (ways[w].write == options_of && !*shown) { free(shown); shown = text_format("-"); }
            if (ways[w].write == fail_of && !*shown) {
                free(shown);
                shown = text_format("the reason is unknown; exit code %d", EXIT_INPUT);
            }
            end = strcspn(ways[w].form, "%");
            check(got && bytes == strlen(ways[w].form) - 2 + strlen(shown) && !memcmp(got, ways[w].form, end)
                  && !memcmp(got + end, shown, strlen(shown))
                  && !strcmp(got + end + strlen(shown), ways[w].form + end + 2),
                  "%s writes case %zu as a terminal may show it", ways[w].name, i);
            free(got), free(shown);
        }
    free(path);
    Text long_one = { 0 };
    for (int i = 0; i < 3000; i++) text_add_string(&long_one, "\x1B");
    char *written = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&written, &bytes);
    text_print(f, "%s", long_one.at);
    fclose(f);
    check(bytes == 9000 && !memchr(written, 27, bytes), "text from outside: a long text");
    Text quoted = { 0 };
    text_add_json(&quoted, "\xC2\x9B\x7F\x1B", 4);
    check(!strcmp(quoted.at, "\"\\u009b\\u007f\\u001b\""), "text from outside: JSON has control characters as escapes");
    free(quoted.at), free(written), free(long_one.at);
}

/* ---- input that costs too much --------------------------------------------------------------- */

/* The tokenizer of bytes with these added tokens, a list of JSON objects. */
static Tokenizer *with_added(const char *added, Error *e) {
    Tokenizer *bytes = tokenizer_bytes();
    size_t n;
    static const char empty[] = "\"added_tokens\":[";
    const char *json = tokenizer_json(bytes, &n), *at = strstr(json, empty) + sizeof empty - 1;
    char *text = text_format("%.*s%s%s", (int)(at - json), json, added, at);
    Tokenizer *t = tokenizer_load_text(text, strlen(text), e);
    free(text), tokenizer_free(bytes);
    return t;
}
/* Of added tokens that begin alike the longest is taken, and the time does not grow with their
 * number: of 30,000, or of 120 that are each other's beginnings. */
static void test_added_tokens(void) {
    static const struct { const char *text; int count, ids[4]; } cases[] = {
        { "<a", 1, { 257 } }, { "<ab", 1, { 258 } }, { "<abc", 2, { 258, 'c' } }, { "<abcd", 1, { 259 } },
        { "<", 1, { '<' } }, { "<abce", 3, { 258, 'c', 'e' } }, { "<b<az", 4, { '<', 'b', 257, 'z' } },
        { "=xy", 2, { 260, 'y' } }, { "=xyz", 1, { 256 } }, };
    Error e = { 0 };
    Tokenizer *t = with_added("{\"id\":256,\"content\":\"=xyz\"},{\"id\":257,\"content\":\"<a\"},"
                              "{\"id\":258,\"content\":\"<ab\"},{\"id\":259,\"content\":\"<abcd\"},"
                              "{\"id\":260,\"content\":\"=x\",\"normalized\":true}", &e);
    for (size_t i = 0; t && i < COUNT(cases); i++) {
        int *ids, n = (int)tokenizer_encode(t, cases[i].text, strlen(cases[i].text), &ids), same = n == cases[i].count;
        for (int k = 0; k < n && same; k++) same = ids[k] == cases[i].ids[k];
        check(same, "added tokens: \"%s\"", cases[i].text);
        free(ids);
    }
    int *ids = NULL;
    const size_t cut = t ? tokenizer_encode(t, "<abcd", 4, &ids) : 0;       /* the text ends within a token */
    check(cut == 2 && ids[0] == 258 && ids[1] == 'c', "added tokens: the text ends before the token does");
    free(ids);
    check(t != NULL, "added tokens: five load %s", e.text);
    tokenizer_free(t);
    for (int nested = 0; nested < 2; nested++) {
        enum { BYTES = 60000 };
        Text added = { 0 };
        const int count = nested ? 120 : 30000;
        for (int i = 0; i < count; i++) {
            text_add(&added, "%s{\"id\":%d,\"content\":\"", i ? "," : "", 256 + i);
            if (nested) {
                for (int k = 0; k < 2 * i + 2; k++) text_add_string(&added, "<");
                text_add_string(&added, "|\"}");
            }
            else text_add(&added, "<%d>\"}", i);
        }
        char *text = mem_alloc(BYTES);
        memset(text, '<', BYTES);
        ids = NULL;
        t = with_added(added.at, &e);
        const double start = cpu_seconds();
        const size_t n = t ? tokenizer_encode(t, text, BYTES, &ids) : 0;
        check(n == BYTES && ids[n - 1] == '<', "added tokens: %zu ids", n);
        check_error(cpu_seconds() - start, 1, "added tokens: seconds for 60 kB of what %d of them begin with", count);
        free(ids), free(text), free(added.at), tokenizer_free(t);
    }
    Text wide = { 0 };
    for (int i = 0; i < 257; i++) text_add_string(&wide, "<");
    char *added = text_format("{\"id\":256,\"content\":\"%s\"}", wide.at);
    t = with_added(added, &e);
    check(!t && strstr(e.text, "257 bytes"), "added tokens: one of 257 bytes is refused: %s", e.text);
    tokenizer_free(t), free(added), free(wide.at);
}

/* What SentencePiece loses, and nothing else: Metaspace one leading space, and both U+2581. */
static void test_lost_by_sentencepiece(void) {
    static const struct { const char *text, *llama2, *metaspace; } cases[] = {
        { " ", " ", "" }, { "  ", "  ", " " }, { " a", " a", "a" }, { "a ", "a ", "a " }, { "\n ", "\n ", "\n " },
        { "", "", "" }, { "\xE2\x96\x81", " ", "" }, { "a\xE2\x96\x81", "a ", "a " },
    };
    for (int metaspace = 0; metaspace < 2; metaspace++) {
        Error e = { 0 };
        Tokenizer *t = tokenizer_load(metaspace ? "tests/reference/tokenizers/llama2_v5.json"
                                                : "tests/reference/tokenizers/llama2.json", &e);
        check(t != NULL, "SentencePiece: a tokenizer loads %s", e.text);
        for (size_t i = 0; t && i < COUNT(cases); i++) {
            int *ids;
            const size_t n = tokenizer_encode(t, cases[i].text, strlen(cases[i].text), &ids);
            size_t bytes;
            char *back = tokenizer_decode(t, ids, n, &bytes);
            check(!strcmp(back, metaspace ? cases[i].metaspace : cases[i].llama2),
                  "SentencePiece %d: \"%s\" becomes \"%s\"", metaspace, cases[i].text, back);
            free(back), free(ids);
        }
        tokenizer_free(t);
    }
}

void test_outside(void) {
    PART(test_lost_by_sentencepiece()); PART(test_added_tokens());
    PART(test_text_from_outside());
}
