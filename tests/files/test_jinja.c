/* test_jinja.c: chat templates against Transformers (tests/reference/make_templates.py): programs
 * of our own, and published ones, if the environment's MOE_TEMPLATES names a folder of them;
 * limits. */
#include "tests/test.h"
#include "llmc/base/sha256.h"
#include "llmc/data/chat.h"
#include <dirent.h>

#define GOLDENS "tests/reference/templates.json"
static const struct tm july = { .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_wday = 5, .tm_yday = 207 };

/* What a program writes with the members of an object; NULL and e: it is refused. free() it. */
static char *run(const char *program, size_t bytes, const JsonValue *object, size_t *length, Error *e) {
    Text text = { 0 }, origins = { 0 };
    JinjaVariable v[16];
    int n = 0;
    for (const JsonValue *x = json_first(object); x && n < 16; x = x->next)
        v[n++] = (JinjaVariable){ x->key, x, !strcmp(x->key, "messages") };
    Jinja *j = jinja_open(program, bytes, e);
    text_add_bytes(&text, "", 0);
    const int ok = j && jinja_run(j, v, n, &july, &text, &origins, e);
    check(!ok || origins.length == text.length * sizeof(uint32_t), "jinja: an origin for each byte of %s", program);
    *length = text.length;
    jinja_close(j), free(origins.at);
    if (ok) return text.at;
    free(text.at);
    return NULL;
}
static void test_programs(const JsonValue *root) {
    int n = 0, refused = 0;
    for (const JsonValue *pair = json_first(json_get(root, "programs")); pair; pair = pair->next, n++) {
        const JsonValue *program = json_first(pair), *text = program->next;
        const char *name = program->is.string;
        Error e = { 0 };
        size_t bytes;
        char *got = run(name, program->length, json_get(root, "variables"), &bytes, &e);
        if (json_is(text, JSON_NULL)) check(!got && strstr(e.text, "line "), "jinja: %s is refused: %s", name, got
                                            ? got : e.text);
        else if (!got) refused++, check(strstr(e.text, "too large") != NULL, "jinja: %s: %s", name, e.text);
        else check(bytes == text->length && !memcmp(got, text->is.string, bytes), "jinja: %s writes %s, expected %s",
                   name,
                   got, text->is.string);
        free(got);
    }
    check(n > 250 && refused <= 1, "jinja: %d programs, %d refused that Transformers runs", n, refused);
}

/* Programs that would never end, or fill the memory, or nest without end, are stopped. */
static void test_limits(void) {
    static const struct { const char *program, *says; } bad[] = {
        { "{% set l = range(9999) %}{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}", "too long" },
        { "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "deep" },
        { "{% set ns = namespace(s='0123456789') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
         "64 MB" },
        { "{{ 'a' * 99999999 }}", "" }, { "{{ range(999999) }}", "100000" }, { "{{ [[0] * 9999] * 9999999 }}", "" },
        { "{% set ns = namespace(l=[]) %}{% for i in range(300) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
         "deep" },
        { "{% set ns = namespace(a=1) %}{% for i in range(300) %}{% set ns.a = {'a': ns.a} %}{% endfor %}{{ ns.a | "
         "tojson }}",
          "deep" }, { "{{ 'a'.ljust(999999999) }}", "wide" }, { "{{ strftime_now('%Y' * 999) }}", "short" },
        { "{{ 'x'.replace('', 'y' * 9999999) | length }}", "" }, { "{% include '/etc/passwd' %}", "include" },
    };
    Text deep = { 0 };
    Error e = { 0 };
    size_t bytes;
    for (size_t i = 0; i < COUNT(bad); i++) {
        char *got = run(bad[i].program, strlen(bad[i].program), NULL, &bytes, &e);
        check((!got || !*bad[i].says) && (got || strstr(e.text, bad[i].says)), "jinja: %s: %s", bad[i].program, e.text);
        free(got);
    }
    for (int i = 0; i < 5000; i++) text_add_string(&deep, "{{ (((((not -[{% if x %}{% for y in");
    check(!run(deep.at, deep.length, NULL, &bytes, &e), "jinja: deep: %s", e.text);
    check(!run("\xff", 1, NULL, &bytes, &e) && strstr(e.text, "UTF-8"), "jinja: %s", e.text);
    free(deep.at);
}

/* ---- published templates --------------------------------------------------------------------- */

static void digest(const char *text, size_t bytes, char shown[65]) {
    Sha256 s;
    unsigned char d[SHA256_BYTES];
    sha256_begin(&s), sha256_add(&s, text, bytes), sha256_end(&s, d);
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(shown + 2 * i, 3, "%02x", d[i]);
}
typedef struct { int known, cases, equal, refused, alike,
                parts; } Score;       /* alike: templates whose cases are equal */

/* A conversation, without its last message if it is to end with a prompt, and all other variables.
 * */
static const JsonValue *variables(Json *memory, const JsonValue *talk, const JsonValue *tokens, int prompt) {
    static const JsonValue none = { .type = JSON_NULL };
    JsonValue *own = json_make(memory, JSON_OBJECT), *list = json_make(memory, JSON_ARRAY);
    const JsonValue *tools = json_get(talk, "tools");
    for (const JsonValue *m = json_first(json_get(talk, "messages")); m && (m->next || !prompt); m = m->next)
        json_append(list, NULL, json_copy(memory, m));
    json_append(own, "messages", list);
    json_append(own, "tools", json_copy(memory, tools ? tools : &none));
    json_append(own, "documents", json_copy(memory, &none));
    json_append(own, "add_generation_prompt", json_make(memory, JSON_BOOL))->is.integer = prompt;
    for (const JsonValue *x = json_first(tokens); x; x = x->next) json_append(own, x->key, json_copy(memory, x));
    return own;
}
/* A case: what the program writes is equal or refused; what chat_write does, too, unless the
 * template takes parts only: then it gets parts, where Transformers writes nothing of a string. */
static int test_one(const Chat *c, const char *program, size_t bytes, const JsonValue *all, int prompt,
                    const char *want) {
    Error e;
    Text text = { 0 };
    char hash[65] = "?";
    size_t length;
    char *got = run(program, bytes, all, &length, &e);
    if (got) digest(got, length, hash);
    check(!got || !strncmp(want, hash, 8), "%.40s writes another text: %s", program, got ? got : "");
    const int equal = got ? 1 : !strcmp(want, "?");
    if (c->form && !c->takes_parts && chat_write(c, all, prompt, &text, NULL, &e)) {
        digest(text.at, text.length, hash);
        check(!strncmp(want, hash, 8), "%.40s: a chat is another text: %s", program, text.at);
    }
    free(got), free(text.at);
    return equal;
}
static void test_file(const char *path, const JsonValue *root, Score *s) {
    Error e;
    Chat c = { 0 };
    size_t bytes;
    char *program = file_read(path, &bytes, &e), hash[65];
    const JsonValue *row = json_first(json_get(root, "templates"));
    int equal = 0, n = 0;
    digest(program, bytes, hash);
    while (row && strcmp(json_string(json_get(row, "sha256"), ""), hash)) row = row->next;
    const JsonValue *want = json_first(json_get(row, "texts"));
    if (want) chat_open(&c, path, scratch(), &e);
    for (const JsonValue *talk = json_first(json_get(root, "conversations")); want && talk; talk = talk->next)
        for (int prompt = 0; prompt < 2 && want; prompt++, want = want->next, n++) {
            Json *memory = json_empty();
            equal += test_one(&c, program, bytes, variables(memory, talk, json_get(root, "tokens"), prompt), prompt,
                              json_string(want, "?"));
            json_free(memory);
        }
    s->parts += c.takes_parts;
    if (c.memory) chat_close(&c);
    s->known += row != NULL, s->cases += n, s->refused += n - equal, s->equal += equal, s->alike += n && n == equal;
    free(program);
}
static void test_published(const JsonValue *root) {
    const char *folder = getenv("MOE_TEMPLATES");
    DIR *dir = folder ? opendir(folder) : NULL;
    Score s = { 0 };
    Text tokens = { 0 };
    if (!dir) { skip("MOE_TEMPLATES names no folder: published chat templates were not compared"); return; }
    json_write(&tokens, json_get(root, "tokens"), 0);
    free(scratch_put("tokenizer_config.json", tokens.at, tokens.length));
    for (struct dirent *entry; (entry = readdir(dir)); ) {
        char *path = text_format("%s/%s", folder, entry->d_name);
        if (strstr(entry->d_name, ".jinja")) test_file(path, root, &s);
        free(path);
    }
    printf("%d published templates, %d conversations: %d as Transformers, %d refused; %d templates equal in all, %d "
           "take "
           "parts only\n", s.known, s.cases, s.equal, s.refused, s.alike, s.parts);
    check(s.known && s.equal >= 0.9 * s.cases, "published templates: %d of %d are equal", s.equal, s.cases);
    closedir(dir), free(tokens.at);
}

void test_jinja(void) {
    Error e;
    size_t bytes;
    char *text = file_read(GOLDENS, &bytes, &e);
    Json *json = text ? json_parse(text, bytes, &e) : NULL;
    if (!json) fail(EXIT_INPUT, "%s", e.text);
    PART(test_programs(json_root(json))); PART(test_limits()); PART(test_published(json_root(json)));
    json_free(json), free(text);
}
