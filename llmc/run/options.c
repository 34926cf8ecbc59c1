/* options.c: see options.h. */
#include "options.h"
#include "llmc/base/text.h"
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

/* Everything must be used up, NaN fails every range, and a number too large to hold is out of range. */
static void set(const Option *o, void *settings, const char *text) {
    void *field = (char *)settings + o->field;
    char *end = NULL;
    errno = 0;
    if (o->kind == OPTION_TEXT) {
        if (o->choices && !chosen(o->choices, text))
            fail(EXIT_USAGE, "-%s %s: expected one of %s (--%s: %s)", o->letter, text, o->choices,
                 o->name, o->help);
        *(const char **)field = text;
        return;
    }
    const int whole = o->kind != OPTION_FLOAT;
    const double v = whole ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    if (end == text || *end || (errno && !(errno == ERANGE && fabs(v) < 1)) || !(v >= o->low && v <= o->high))
        fail(EXIT_USAGE, "-%s %s: expected %s from %.10g to %.10g (--%s: %s)", o->letter, text,
             whole ? "a whole number" : "a number", o->low, o->high, o->name, o->help);
    if (o->kind == OPTION_INT)  *(int *)field = (int)v;
    if (o->kind == OPTION_LONG) *(int64_t *)field = strtoll(text, NULL, 10);
    if (o->kind == OPTION_FLOAT) *(float *)field = (float)v;
}

void option_value(const Option *o, const void *settings, char *text, size_t capacity) {
    const void *field = (const char *)settings + o->field;
    if (o->kind == OPTION_INT)   snprintf(text, capacity, "%d", *(const int *)field);
    if (o->kind == OPTION_LONG)  snprintf(text, capacity, "%lld", (long long)*(const int64_t *)field);
    /* the fewest that give the same float */
    for (int digits = 6; o->kind == OPTION_FLOAT && digits <= 9; digits++) {
        snprintf(text, capacity, "%.*g", digits, (double)*(const float *)field);
        if ((float)strtod(text, NULL) == *(const float *)field) break;
    }
    if (o->kind == OPTION_TEXT)  snprintf(text, capacity, "%s", *(const char *const *)field);
}

static void help(const Option *table, int count, const char *usage) {
    const char *group = "";
    puts(usage);
    for (int i = 0; i < count; i++) {
        const Option *o = &table[i];
        if (strcmp(group, o->group)) printf("\n%s\n", group = o->group);
        printf("  -%-3s --%-15s %s", o->letter, o->name, o->help);
        if (o->choices) printf(": %s", o->choices);
        printf(*o->init ? " [%s]\n" : "\n", o->init);
    }
    printf("\n  -?   --help            this text\n       --version         the version\n");
}

/* The known option that is fewest edits away, for "did you mean". */
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
static _Noreturn void unknown(const Option *table, int count, const char *flag) {
    const int wordy = !strncmp(flag, "--", 2);
    int best = 0, fewest = 99;
    for (int i = 0; i < count; i++) {
        int d = edits(flag + 1 + wordy, wordy ? table[i].name : table[i].letter);
        if (d < fewest) { fewest = d; best = i; }
    }
    fail(EXIT_USAGE, "%s: no such option. The nearest is -%s (--%s): %s. --help lists all", flag,
         table[best].letter, table[best].name, table[best].help);
}

void options_parse(const Option *table, int count, void *settings, char *given, int argc, char **argv,
                   const char *usage, const char **words, int max_words) {
    int word = 0;
    for (int i = 0; i < count; i++) { set(&table[i], settings, table[i].init); given[i] = 0; }
    for (int a = 1; a < argc; a++) {
        const char *flag = argv[a], *equals = strchr(flag, '=');
        int i = 0;
        if (!strcmp(flag, "--help") || !strcmp(flag, "-?")) { help(table, count, usage); exit(EXIT_DONE); }
        if (!strcmp(flag, "--version")) { printf("moe trainer, %s\n", MOE_VERSION); exit(EXIT_DONE); }
        if (flag[0] != '-' || !flag[1]) {
            if (word == max_words)
                fail(EXIT_USAGE, "%s: not an option (options begin with -; --help lists them)", flag);
            words[word++] = flag;
            continue;
        }
        if (strncmp(flag, "--", 2)) equals = NULL;
        for (; i < count; i++) {
            const size_t n = equals ? (size_t)(equals - flag) - 2 : strlen(flag);
            if (!strcmp(flag + 1, table[i].letter)) break;
            if (!strncmp(flag, "--", 2) && !strncmp(flag + 2, table[i].name, equals ? n : n + 1)
                && (!equals || !table[i].name[n])) break;
        }
        if (i == count) unknown(table, count, flag);
        if (given[i]) fail(EXIT_USAGE, "-%s (--%s) is given twice", table[i].letter, table[i].name);
        if (!equals && a + 1 == argc)
            fail(EXIT_USAGE, "%s needs a value (--%s: %s)", flag, table[i].name, table[i].help);
        given[i] = 1;
        set(&table[i], settings, equals ? equals + 1 : argv[++a]);
    }
}

static int find(const Option *table, int count, const char *letter) {
    for (int i = 0; i < count; i++) if (!strcmp(table[i].letter, letter)) return i;
    fail(EXIT_USAGE, "no option -%s in the table", letter);
}
void options_default(const Option *table, int count, void *settings, const char *given, const char *letter,
                     const char *value) {
    const int i = find(table, count, letter);
    if (!given[i]) set(&table[i], settings, value);
}
int option_given(const Option *table, int count, const char *given, const char *letter) {
    return given[find(table, count, letter)];
}

void options_print(const Option *table, int count, const void *settings, const char *given) {
    const char *group = "";
    for (int i = 0; i < count; i++) {
        char value[256];
        if (strcmp(group, table[i].group)) printf("| %s\n", group = table[i].group);
        option_value(&table[i], settings, value, sizeof value);
        printf("|   -%-3s %-15s | %s%s\n", table[i].letter, table[i].name, *value ? value : "-",
               given[i] ? "  (given)" : "");
    }
}
void options_json(const Option *table, int count, const void *settings, Text *out) {
    text_add(out, "{");
    for (int i = 0; i < count; i++) {
        char value[4096];
        option_value(&table[i], settings, value, sizeof value);
        text_add(out, "%s\"%s\": ", i ? ", " : "", table[i].name);
        if (table[i].kind == OPTION_TEXT) text_add_json(out, value, strlen(value));
        else text_add(out, "%s", value);
    }
    text_add(out, "}");
}
