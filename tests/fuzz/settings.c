/* settings.c: the command line, settings restored from a checkpoint, the launcher's environment,
 * and a file of settings (-cf). The first byte says which; the rest is arguments, JSON, or
 * NAME=VALUE, each in a line. Settings that were read are written as JSON, which restores the same,
 * and as a file, which reads the same. */
#define _GNU_SOURCE
#include "tests/fuzz/support/fuzz.h"
#include "llmc/ranks/launch.h"
#include "llmc/run/settings.h"

enum { MOST = 64 };
typedef struct { char *at[MOST + 1]; int count; } Lines;
static Lines lines;                                             /* also read by `get`, which has no argument for it */

static void cut(char *text) {
    lines.count = 0;
    for (char *next; text && lines.count < MOST; text = next) {
        if ((next = strchr(text, '\n'))) *next++ = 0;
        lines.at[lines.count++] = text;
    }
    lines.at[lines.count] = NULL;
}
static const char *get(const char *name) {
    const size_t n = strlen(name);
    for (int i = 0; i < lines.count; i++)
        if (!strncmp(lines.at[i], name, n) && lines.at[i][n] == '=') return lines.at[i] + n + 1;
    return NULL;
}

static void check_printed(const Settings *s) {
    char *shown = NULL;
    size_t bytes = 0;
    FILE *before = stdout;
    stdout = open_memstream(&shown, &bytes);
    settings_print(s);
    fclose(stdout);
    stdout = before;
    fuzz_check_shown(shown, bytes);
    free(shown);
}
static Json *written(const Settings *s, Text *t) {
    Error e;
    settings_json(s, t);
    Json *json = json_parse(t->at, t->length, &e);
    fuzz_check(json != NULL);
    return json;
}
static void check_restored(const Settings *s) {
    static char *nothing[] = { "train_moe", NULL };
    Text once = { 0 }, twice = { 0 };
    Error e;
    Settings again;
    Json *json = written(s, &once);
    settings_parse(&again, 1, nothing);
    fuzz_check(settings_restore(&again, json_root(json), &e));
    again.out = s->out;                                         /* these are not restored: of one start */
    again.resume = s->resume, again.allow_data = s->allow_data, again.check = s->check;
    json_free(written(&again, &twice));
    /* a text that is not UTF-8 is not the same, nor is one that was cut */
    if (!strstr(once.at, "\xEF\xBF\xBD") && once.length < 4000) fuzz_check(!strcmp(once.at, twice.at));
    json_free(json), free(once.at), free(twice.at);
}

static void read_as_file(Settings *s, const char *text, size_t bytes) {
    char path[300], *arguments[] = { "train_moe", "-cf", path, NULL };
    snprintf(path, sizeof path, "%s", fuzz_file("settings.txt", text, bytes));
    settings_parse(s, 3, arguments);
}
/* What is written reads as the same, once more. */
static void check_file(const Settings *s) {
    Text once = { 0 }, twice = { 0 };
    Settings again;
    settings_write(s, &once);
    read_as_file(&again, once.at, once.length);
    settings_write(&again, &twice);
    if (once.length < 4000 && !strstr(once.at, "cannot be written")) fuzz_check(!strcmp(once.at, twice.at));
    free(once.at), free(twice.at);
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const unsigned form = fuzz_choice(&rest, 4);
    char *text = fuzz_text(rest), *arguments[MOST + 2] = { "train_moe" };
    Settings s;
    Error e = { 0 };
    fuzz_may_leave_memory(); /* texts of restored settings live as long as the program */
    cut(form == 1 || form == 3 ? NULL : text);
    if (form == 2) {
        Launch l, flags = { .launcher = "flags", .process = -1 };
        if (!launch_find(&l, &flags, get, &e)) fuzz_check(*e.text);
        else fuzz_check(l.processes >= 1 && l.process >= 0 && l.process < l.processes && l.port > 0 && l.port < 65536);
        return;
    }
    memcpy(arguments + 1, lines.at, (size_t)lines.count * sizeof *arguments);
    if (form == 3) read_as_file(&s, rest.at, rest.bytes);
    else settings_parse(&s, lines.count + 1, arguments);
    if (form == 1) {
        Json *json = json_parse(rest.at, rest.bytes, &e);
        if (json && !settings_restore(&s, json_root(json), &e)) fuzz_check(*e.text);
        json_free(json);
    }
    check_printed(&s);
    check_restored(&s);
    check_file(&s);
}
