/* options.c: see options.h. */
#include "options.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number of a word among the choices; -1: it is none of them. */
static int chosen(const char *choices, const char *text) {
    const size_t n = strcspn(text, "|");
    int number = 0;
    for (const char *c = text[n] ? NULL : choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL, number++)
        if (n && !strncmp(c, text, n) && (c[n] == '|' || !c[n])) return number;
    return -1;
}
static int is_text(const Option *o) { return o->kind == OPTION_TEXT || o->kind == OPTION_CHOICE; }

#define LOST "it gained nothing; the last version with it is 0e76f454"
/* What old command lines, settings and checkpoints still name. values NULL: a whole option. */
static const struct { const char *letter, *name, *values, *instead; } removed[] = {
    { "tb", "tensorboard", NULL, "scripts/tensorboard.py makes event files from the log of a run" },
    { "we", "end-momentum", NULL, LOST }, { "e1", "end-beta1", NULL, LOST }, { "e2", "end-beta2", NULL, LOST },
    { "rt", "rounding", "stochastic|up|down",
      "-rt nearest costs no loss; -rt off rounds nothing. The last version with it is c776785" }, };
enum { REMOVED = sizeof removed / sizeof *removed };

int option_removed(const char *option, int in_use) {
    static int warned[REMOVED];
    const size_t n = strcspn(option, "=");
    for (int i = 0; i < REMOVED; i++) {
        const int is_name = !strncmp(option, removed[i].name, n) && !removed[i].name[n];
        if (removed[i].values || (strcmp(option, removed[i].letter) && !is_name)) continue;
        if (in_use && !warned[i]++)
            warn("-%s (--%s) was removed and is ignored: %s", removed[i].letter, removed[i].name, removed[i].instead);
        return 1;
    }
    return 0;
}
const char *option_value_removed(const Option *o, const char *value) {
    for (int i = 0; i < REMOVED; i++)
        if (!strcmp(o->name, removed[i].name) && chosen(removed[i].values, value) >= 0) return removed[i].instead;
    return NULL;
}

/* Checks and stores a value. text: as written; v: its number, if is_number. NaN fails ranges. */
static int accept(const Option *o, void *settings, const char *text, int is_number, int is_integer,
                  double v, Error *e) {
    void *field = (char *)settings + o->field;
    const int integer = o->kind != OPTION_FLOAT;
    if (is_text(o)) {
        const int choice = chosen(o->choices, text);
        const char *instead = option_value_removed(o, text);
        if (instead) return error_set(e, "-%s %s was removed: %s", o->letter, text, instead);
        if (o->choices && choice < 0)
            return error_set(e, "-%s %.200s: expected one of %s (--%s: %s)", o->letter, text, o->choices,
                             o->name, o->help);
        if (o->kind == OPTION_CHOICE) *(int *)field = choice;
        else *(const char **)field = text;
        return 1;
    }
    if (!is_number || (integer && !is_integer) || !(v >= o->low && v <= o->high))
        return error_set(e, "-%s %.200s: expected %s%s%s from %.10g to %.10g (--%s: %s)", o->letter, text, o->choices
                         ? o->choices : "", o->choices ? ", or " : "", integer ? "a whole number" : "a number",
                         o->choices ? o->low + 1 : o->low, o->high, o->name, o->help);
    if (o->kind == OPTION_INT)  *(int *)field = (int)v;
    if (o->kind == OPTION_LONG) *(int64_t *)field = (int64_t)v;      /* exact: ranges end below 2^53 */
    if (o->kind == OPTION_FLOAT) *(float *)field = (float)v;
    return 1;
}

/* A value as the user wrote it: a number is the whole text; one that overflows is out of range. */
static int set(const Option *o, void *settings, const char *text, Error *e) {
    char *end = NULL;
    if (o->kind == OPTION_INT && o->choices && !strcmp(text, o->choices))
        return accept(o, settings, text, 1, 1, o->low, e);
    errno = 0;
    const double v = o->kind == OPTION_FLOAT ? strtod(text, &end) : (double)strtoll(text, &end, 10);
    const int is_number = end > text && !*end && (!errno || (errno == ERANGE && fabs(v) < 1));
    return accept(o, settings, text, is_number, 1, v, e);
}
static void must_set(const Option *o, void *settings, const char *text) {
    Error e;
    if (!set(o, settings, text, &e)) fail_with(&e, EXIT_USAGE);
}

int option_read(const Option *o, void *settings, const JsonValue *value, Error *e) {
    const char *text = NULL;
    double v = 0;
    if (is_text(o) ? !json_read_string(value, o->name, &text, e)
                   : !json_read_double(value, o->name, o->low, o->high, &v, e)) return 0;
    char digits[32];
    if (!text) { snprintf(digits, sizeof digits, "%.17g", v); }
    return accept(o, settings, text ? text : digits, 1, json_is(value, JSON_INT), v, e);
}

void option_value(const Option *o, const void *settings, char *text, size_t capacity) {
    const void *field = (const char *)settings + o->field;
    if (o->kind == OPTION_INT && o->choices && *(const int *)field == (int)o->low)
        snprintf(text, capacity, "%s", o->choices);
    else if (o->kind == OPTION_INT) snprintf(text, capacity, "%d", *(const int *)field);
    if (o->kind == OPTION_LONG)  snprintf(text, capacity, "%lld", (long long)*(const int64_t *)field);
    /* the fewest digits that give the same float */
    for (int digits = 6; o->kind == OPTION_FLOAT && digits <= 9; digits++) {
        snprintf(text, capacity, "%.*g", digits, (double)*(const float *)field);
        if ((float)strtod(text, NULL) == *(const float *)field) break;
    }
    if (o->kind == OPTION_TEXT)  snprintf(text, capacity, "%s", *(const char *const *)field);
    const char *word = o->choices;
    for (int i = o->kind == OPTION_CHOICE ? *(const int *)field : 0; i > 0; i--) word = strchr(word, '|') + 1;
    if (o->kind == OPTION_CHOICE) snprintf(text, capacity, "%.*s", (int)strcspn(word, "|"), word);
}

static void print_help(const char *letter, const char *name, const char *help) {
    enum { INDENT = 25, WIDTH = 120 };
    char margin[INDENT + 1];
    snprintf(margin, sizeof margin, "%*s", INDENT, "");
    printf("  -%-3s --%-15s ", letter, name);
    text_wrap(stdout, INDENT, WIDTH, margin, help);
    putchar('\n');
}
void options_help(Options o, const char *usage, int as_set) {
    const char *group = "";
    puts(usage);
    for (int i = 0; i < o.count; i++) {
        const Option *row = &o.rows[i];
        char value[256];
        if (strcmp(group, row->group)) printf("\n%s\n", group = row->group);
        option_value(row, o.settings, value, sizeof value);
        if (!as_set) snprintf(value, sizeof value, "%s", row->init);
        const int choices = row->choices && is_text(row);
        char *help = text_format(*value ? "%s%s%s [%s]%s" : "%s%s%s%s%s", row->help, choices ? ": " : "",
                                 choices ? row->choices : "", value, as_set && o.given[i] ? " (given)" : "");
        print_help(row->letter, row->name, help);
        free(help);
    }
    putchar('\n');
    print_help("cf", "config", "a file of settings: lines \"name = value\", names as here, long or short; lines that "
               "begin with # are comments. Options of the command line take precedence");
    printf("  -h   --help            this text\n       --version         the version\n");
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
/* Does the text contain the word, or what it is the plural of, with blanks for its hyphens? */
static int mentions(const char *text, const char *word) {
    char blank[64];
    snprintf(blank, sizeof blank, "%s", word);
    for (char *c = blank; (c = strchr(c, '-')); ) *c = ' ';
    const size_t n = strlen(blank);
    if (n > 2 && strstr(text, blank)) return 1;
    if (n < 5 || blank[n - 1] != 's') return 0;
    blank[n - 1] = 0;
    return strstr(text, blank) != NULL;
}
/* The row that an unknown word of a command line or a file was most likely meant for, or NULL. */
static const Option *nearest(Options o, const char *word) {
    const Option *best = NULL;
    int fewest = (int)strcspn(word, "=") / 3 + 1;           /* more edits than this, and it is another word */
    char bare[64];
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(word, "="), word);
    for (char *c = bare; (c = strchr(c, '_')); ) *c = '-';  /* as other programs spell it */
    for (const Option *row = o.rows; row < o.rows + o.count; row++) {
        const int d = !strcmp(bare, row->name) ? 0 : strlen(bare) < 3 ? 99 : edits(bare, row->name);
        const int begins = strlen(row->name) > 3 && !strncmp(bare, row->name, strlen(row->name));
        if (begins || d < fewest || (d == fewest && !best)) { fewest = begins ? 0 : d; best = row; }
    }
    for (const Option *row = o.rows; row < o.rows + o.count && !best; row++) if (mentions(row->help, bare)) best = row;
    return best;
}
static int not_known(Options o, const char *flag, const char *word, Error *e) {
    const Option *best = nearest(o, word);
    if (!best) return error_set(e, "%.100s: no such option. --help lists all", flag);
    return error_set(e, "%.100s: no such option. The nearest is -%s (--%s): %s. --help lists all", flag, best->letter,
                     best->name, best->help);
}
static _Noreturn void unknown(Options o, const char *flag) {
    Error e;
    for (const Option *row = o.rows; row < o.rows + o.count; row++) {
        const char *value = flag + 1 + strlen(row->letter);
        if (!strncmp(flag + 1, row->letter, strlen(row->letter)) && (*value == '=' || (*value >= '0' && *value <= '9')))
            fail(EXIT_USAGE, "%s: no such option. A value stands after a space: -%s %s", flag, row->letter,
                 value + (*value == '='));
    }
    not_known(o, flag, flag + strspn(flag, "-"), &e);
    fail_with(&e, EXIT_USAGE);
}

/* The row of -letter, --name or --name=value, or -1; value: after '=', or NULL. */
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
    return -1;
}

/* ---- a file of settings ---------------------------------------------------------------------- */

enum { BY_USER = 1, BY_FILE };          /* Options.given */

static char *trim(char *text) {
    static const char blank[] = " \t\r";
    text += strspn(text, blank);
    for (size_t n = strlen(text); n && strchr(blank, text[n - 1]); ) text[--n] = 0;
    return text;
}
static int read_setting(Options o, char *line, Error *e) {
    char *name = trim(line), *rest = name + strcspn(name, " \t=");
    if (!*name || *name == '#') return 1;
    char *value = trim(rest);
    if (*value == '=') value = trim(value + 1);
    *rest = 0;
    const size_t length = strlen(value);
    if (length > 1 && value[0] == '"' && value[length - 1] == '"') value[length - 1] = 0, value++;
    name += strspn(name, "-");
    int i = 0;
    while (i < o.count && strcmp(name, o.rows[i].letter) && strcmp(name, o.rows[i].name)) i++;
    if (i == o.count && option_removed(name, strcmp(value, "0"))) return 1;
    if (i == o.count) return not_known(o, name, name, e);
    if (o.given[i] == BY_FILE) return error_set(e, "%s (-%s) is given twice", o.rows[i].name, o.rows[i].letter);
    if (o.given[i] == BY_USER) return 1;
    o.given[i] = BY_FILE;
    return set(&o.rows[i], o.settings, value, e);
}
int options_read(Options o, char *text, size_t bytes, Error *e) {
    int number = 1;
    /* a byte-order mark, which editors on Windows write */
    char *first = text + (strncmp(text, "\xef\xbb\xbf", 3) ? 0 : 3);
    if (memchr(text, 0, bytes)) return error_set(e, "this is not a file of settings, but binary");
    for (char *line = first, *end; line < text + bytes; line = end + 1, number++) {
        Error why;
        end = line + strcspn(line, "\n");
        *end = 0;
        if (!read_setting(o, line, &why)) return error_set(e, "line %d: %s", number, why.text);
    }
    return 1;
}

static void read_file(Options o, const char *path) {
    Error e;
    size_t bytes;
    char *text = file_read(path, &bytes, &e);               /* stays: texts of settings are in it */
    if (!text) fail(EXIT_USAGE, "-cf: %s", e.text);
    if (!options_read(o, text, bytes, &e)) fail(EXIT_USAGE, "-cf %s: %s", path, e.text);
}

void options_write(Options o, Text *out) {
    const char *group = "";
    for (int i = 0; i < o.count; i++) {
        const Option *row = &o.rows[i];
        char value[4096];
        if (strcmp(group, row->group)) text_add(out, "\n# %s\n", group = row->group);
        option_value(row, o.settings, value, sizeof value);
        const size_t n = strlen(value);
        const char *quote = n && (strchr(" \t=\"", value[0]) || strchr(" \t", value[n - 1])) ? "\"" : "";
        if (!strpbrk(value, "\r\n")) text_add(out, "%-17s = %s%s%s\n", row->name, quote, value, quote);
        else text_add(out, "# %s cannot be written here: to be given on the command line (-%s)\n", row->name,
                      row->letter);
    }
}

/* ---- the command line ------------------------------------------------------------------------ */

static int is_help(const char *flag) { return !strcmp(flag, "--help") || !strcmp(flag, "-h") || !strcmp(flag, "-?"); }

/* -cf FILE, --config FILE or --config=FILE: its value, and *a advances to it; else NULL. */
static const char *config_flag(int argc, char **argv, int *a) {
    const char *flag = argv[*a];
    if (!strncmp(flag, "--config=", 9)) return flag + 9;
    if (strcmp(flag, "-cf") && strcmp(flag, "--config")) return NULL;
    if (*a + 1 == argc) fail(EXIT_USAGE, "%s needs a value: a file of settings", flag);
    return argv[++*a];
}
void options_parse(Options o, int argc, char **argv, const char *usage, const char **words, int max_words) {
    int word = 0, help = 0;
    const char *file = NULL, *topic = "";
    for (int i = 0; i < o.count; i++) { must_set(&o.rows[i], o.settings, o.rows[i].init); o.given[i] = 0; }
    for (int a = 1; a < argc; a++) {
        const char *flag = argv[a], *value, *settings;
        if (is_help(flag)) {
            help = 1;
            if (a + 1 < argc && argv[a + 1][0] != '-') topic = argv[++a];
            continue;
        }
        if (!strcmp(flag, "--version")) { printf("smoe.c %s\n", MOE_VERSION); exit(EXIT_DONE); }
        if (flag[0] != '-' || !flag[1]) {
            if (word == max_words && !max_words && (is_file(flag) || is_folder(flag)))
                fail(EXIT_USAGE, "%s: options begin with -. Did you mean -%s %s? (--%s: %s)", flag, o.rows->letter,
                     flag, o.rows->name, o.rows->help);
            if (word == max_words)
                fail(EXIT_USAGE, "%s: not an option (options begin with -, such as -%s, --%s; --help lists them)", flag,
                     o.rows->letter, o.rows->name);
            words[word++] = flag;
            continue;
        }
        if ((settings = config_flag(argc, argv, &a))) {
            if (file) fail(EXIT_USAGE, "-cf (--config) is given twice");
            file = settings;
            continue;
        }
        const int i = find_flag(o, flag, &value);
        if (i < 0 && option_removed(flag + 1 + (flag[1] == '-'), 1)) { a += !value; continue; }
        if (i < 0) unknown(o, flag);
        const Option *row = &o.rows[i];
        if (o.given[i]) fail(EXIT_USAGE, "-%s (--%s) is given twice", row->letter, row->name);
        if (!value && a + 1 == argc) fail(EXIT_USAGE, "%s needs a value (--%s: %s)", flag, row->name, row->help);
        o.given[i] = BY_USER;
        must_set(row, o.settings, value ? value : argv[++a]);
    }
    if (file) read_file(o, file);
    if (!help) return;
    if (o.help) o.help(o, topic);
    else if (*topic) fail(EXIT_USAGE, "--help %s: there is no such topic", topic);
    else options_help(o, usage, 0);
    exit(EXIT_DONE);
}

const Option *option_row(Options o, const char *letter) {
    for (int i = 0; i < o.count; i++) if (!strcmp(o.rows[i].letter, letter)) return &o.rows[i];
    fail(EXIT_USAGE, "no option -%s in the table", letter);
}
void options_default(Options o, const char *letter, const char *value) {
    if (!option_given(o, letter)) must_set(option_row(o, letter), o.settings, value);
}
int option_given(Options o, const char *letter) { return o.given[option_row(o, letter) - o.rows]; }

/* The default, in the form that option_value has. */
static void usual_value(const Option *row, char *text, size_t capacity) {
    union { int number; int64_t number64; float real; const char *text; } field;
    Option alone = *row;
    alone.field = 0;
    must_set(&alone, &field, row->init);
    option_value(&alone, &field, text, capacity);
}
/* Was it given, has it another value than the default, or is it one of `always` (NULL: all are)? */
static int matters(Options o, int i, const char *const *always) {
    char value[256], usual[256];
    int shown = !always || o.given[i];
    for (int k = 0; !shown && always[k]; k++) shown = !strcmp(o.rows[i].letter, always[k]);
    option_value(&o.rows[i], o.settings, value, sizeof value);
    usual_value(&o.rows[i], usual, sizeof usual);
    return shown || strcmp(value, usual);
}
void options_print(Options o, const char *const *always) {
    const char *group = "";
    for (int i = 0; i < o.count; i++) {
        const Option *row = &o.rows[i];
        char value[256];
        if (!matters(o, i, always)) continue;
        if (!*group || (!always && strcmp(group, row->group))) printf("| %s\n", always ? "settings" : row->group);
        group = row->group;
        option_value(row, o.settings, value, sizeof value);
        text_print(stdout, "|   -%-3s %-15s | %s%s\n", row->letter, row->name, *value ? value : "-",
                   o.given[i] ? "  (given)" : "");
    }
}
void options_json(Options o, Text *out) {
    text_add(out, "{");
    for (int i = 0; i < o.count; i++) {
        const Option *row = &o.rows[i];
        char value[4096];
        option_value(row, o.settings, value, sizeof value);
        text_add(out, "%s\"%s\": ", i ? ", " : "", row->name);
        if (row->kind == OPTION_INT)
            text_add(out, "%d", *(const int *)(const void *)((const char *)o.settings + row->field));
        else if (is_text(row)) text_add_json(out, value, strlen(value));
        else text_add_string(out, value);
    }
    text_add(out, "}");
}
void options_names_json(Options o, const char *const *always, Text *out) {
    int n = 0;
    text_add(out, "[");
    for (int i = 0; i < o.count; i++)
        if (always ? matters(o, i, always) : o.given[i] != 0)
            text_add(out, "%s\"%s\"", n++ ? ", " : "", o.rows[i].name);
    text_add(out, "]");
}
