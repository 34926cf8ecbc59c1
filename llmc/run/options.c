/* options.c: see options.h. */
#include "options.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int chosen(const char *choices, const char *text) {
    const size_t n = strcspn(text, "|");
    for (const char *c = text[n] ? NULL : choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
        if (n && !strncmp(c, text, n) && (c[n] == '|' || !c[n])) return 1;
    return 0;
}

/* Checks and stores a value. text: as the user or a file wrote it; v: its number, if is_number. NaN fails every range. */
static int accept(const Option *o, void *settings, const char *text, int is_number, int is_whole, double v, Error *e) {
    void *field = (char *)settings + o->field;
    const int whole = o->kind != OPTION_FLOAT;
    if (o->kind == OPTION_TEXT) {
        if (o->choices && !chosen(o->choices, text))
            return error_set(e, "-%s %.200s: expected one of %s (--%s: %s)", o->letter, text, o->choices, o->name, o->help);
        *(const char **)field = text;
        return 1;
    }
    if (!is_number || (whole && !is_whole) || !(v >= o->low && v <= o->high))
        return error_set(e, "-%s %.200s: expected %s from %.10g to %.10g (--%s: %s)", o->letter, text,
                         whole ? "a whole number" : "a number", o->low, o->high, o->name, o->help);
    if (o->kind == OPTION_INT)  *(int *)field = (int)v;
    if (o->kind == OPTION_LONG) *(int64_t *)field = (int64_t)v;      /* exact: ranges end below 2^53 */
    if (o->kind == OPTION_FLOAT) *(float *)field = (float)v;
    return 1;
}

/* A number must use the whole text; one that overflows is out of range. */
static void set(const Option *o, void *settings, const char *text) {
    Error e;
    char *end = NULL;
    errno = 0;
    const double v = o->kind == OPTION_FLOAT ? strtod(text, &end) : (double)strtoll(text, &end, 10);
    const int is_number = end > text && !*end && (!errno || (errno == ERANGE && fabs(v) < 1));
    if (!accept(o, settings, text, is_number, 1, v, &e)) fail(EXIT_USAGE, "%s", e.text);
}

int option_read(const Option *o, void *settings, const JsonValue *value, Error *e) {
    const char *text = NULL;
    double v = 0;
    if (o->kind == OPTION_TEXT ? !json_read_string(value, o->name, &text, e)
                               : !json_read_double(value, o->name, o->low, o->high, &v, e)) return 0;
    char digits[32];
    if (!text) { snprintf(digits, sizeof digits, "%.17g", v); }
    return accept(o, settings, text ? text : digits, 1, json_is(value, JSON_INT), v, e);
}

void option_value(const Option *o, const void *settings, char *text, size_t capacity) {
    const void *field = (const char *)settings + o->field;
    if (o->kind == OPTION_INT)   snprintf(text, capacity, "%d", *(const int *)field);
    if (o->kind == OPTION_LONG)  snprintf(text, capacity, "%lld", (long long)*(const int64_t *)field);
    /* the fewest digits that give the same float */
    for (int digits = 6; o->kind == OPTION_FLOAT && digits <= 9; digits++) {
        snprintf(text, capacity, "%.*g", digits, (double)*(const float *)field);
        if ((float)strtod(text, NULL) == *(const float *)field) break;
    }
    if (o->kind == OPTION_TEXT)  snprintf(text, capacity, "%s", *(const char *const *)field);
}

static void help(Options o, const char *usage) {
    const char *group = "";
    puts(usage);
    for (const Option *row = o.rows; row < o.rows + o.count; row++) {
        if (strcmp(group, row->group)) printf("\n%s\n", group = row->group);
        printf("  -%-3s --%-15s %s", row->letter, row->name, row->help);
        if (row->choices) printf(": %s", row->choices);
        printf(*row->init ? " [%s]\n" : "\n", row->init);
    }
    printf("\n  -?   --help            this text\n       --version         the version\n");
}

/* Levenshtein distance, for "did you mean". */
static int edits(const char *a, const char *b) {
    int row[64], n = (int)strlen(b);
    if (n > 60) return 99;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}
static _Noreturn void unknown(Options o, const char *flag) {
    const int is_name = !strncmp(flag, "--", 2);
    const Option *best = o.rows;
    int fewest = 99;
    for (const Option *row = o.rows; row < o.rows + o.count; row++) {
        const int d = edits(flag + 1 + is_name, is_name ? row->name : row->letter);
        if (d < fewest) { fewest = d; best = row; }
    }
    fail(EXIT_USAGE, "%s: no such option. The nearest is -%s (--%s): %s. --help lists all", flag,
         best->letter, best->name, best->help);
}

/* The row of -letter, --name or --name=value; value: after '=', or NULL. */
static int find_flag(Options o, const char *flag, const char **value) {
    const int is_name = !strncmp(flag, "--", 2);
    const char *equals = is_name ? strchr(flag, '=') : NULL;
    const size_t n = equals ? (size_t)(equals - flag) - 2 : strlen(flag);
    *value = equals ? equals + 1 : NULL;
    for (int i = 0; i < o.count; i++) {
        const Option *row = &o.rows[i];
        if (!strcmp(flag + 1, row->letter)) return i;
        if (is_name && !strncmp(flag + 2, row->name, equals ? n : n + 1) && (!equals || !row->name[n])) return i;
    }
    unknown(o, flag);
}

void options_parse(Options o, int argc, char **argv, const char *usage, const char **words, int max_words) {
    int word = 0;
    for (int i = 0; i < o.count; i++) { set(&o.rows[i], o.settings, o.rows[i].init); o.given[i] = 0; }
    for (int a = 1; a < argc; a++) {
        const char *flag = argv[a], *value;
        if (!strcmp(flag, "--help") || !strcmp(flag, "-?")) { help(o, usage); exit(EXIT_DONE); }
        if (!strcmp(flag, "--version")) { printf("moe.c %s\n", MOE_VERSION); exit(EXIT_DONE); }
        if (flag[0] != '-' || !flag[1]) {
            if (word == max_words)
                fail(EXIT_USAGE, "%s: not an option (options begin with -; --help lists them)", flag);
            words[word++] = flag;
            continue;
        }
        const int i = find_flag(o, flag, &value);
        const Option *row = &o.rows[i];
        if (o.given[i]) fail(EXIT_USAGE, "-%s (--%s) is given twice", row->letter, row->name);
        if (!value && a + 1 == argc) fail(EXIT_USAGE, "%s needs a value (--%s: %s)", flag, row->name, row->help);
        o.given[i] = 1;
        set(row, o.settings, value ? value : argv[++a]);
    }
}

static int find(Options o, const char *letter) {
    for (int i = 0; i < o.count; i++) if (!strcmp(o.rows[i].letter, letter)) return i;
    fail(EXIT_USAGE, "no option -%s in the table", letter);
}
void options_default(Options o, const char *letter, const char *value) {
    const int i = find(o, letter);
    if (!o.given[i]) set(&o.rows[i], o.settings, value);
}
int option_given(Options o, const char *letter) { return o.given[find(o, letter)]; }

void options_print(Options o) {
    const char *group = "";
    for (int i = 0; i < o.count; i++) {
        const Option *row = &o.rows[i];
        char value[256];
        if (strcmp(group, row->group)) printf("| %s\n", group = row->group);
        option_value(row, o.settings, value, sizeof value);
        text_print(stdout, "|   -%-3s %-15s | %s%s\n", row->letter, row->name, *value ? value : "-", o.given[i] ? "  (given)" : "");
    }
}
void options_json(Options o, Text *out) {
    text_add(out, "{");
    for (int i = 0; i < o.count; i++) {
        const Option *row = &o.rows[i];
        char value[4096];
        option_value(row, o.settings, value, sizeof value);
        text_add(out, "%s\"%s\": ", i ? ", " : "", row->name);
        if (row->kind == OPTION_TEXT) text_add_json(out, value, strlen(value));
        else text_add_string(out, value);
    }
    text_add(out, "}");
}
void options_given_json(Options o, Text *out) {
    int n = 0;
    text_add(out, "[");
    for (int i = 0; i < o.count; i++) if (o.given[i]) text_add(out, "%s\"%s\"", n++ ? ", " : "", o.rows[i].name);
    text_add(out, "]");
}
