/* test_house.c: the rules of the source tree. A table says which folder may include which; includes
 * form no circle, and inside a folder of llmc neither do calls (through pointers they may);
 * functions and columns have a limit, and some words are no part of names. The sources are read as
 * text, in the style that they are written in: a function begins and ends at the left margin. A
 * synthetic tree with faults of each kind shows that they are found. */
#define _DEFAULT_SOURCE
#include "test.h"
#include "kernels/kernels.h"
#include "llmc/base/text.h"
#include <ctype.h>
#include <dirent.h>
#include <fnmatch.h>
#include <math.h>

/* The first row that a file matches lists what it may include. A name that ends in / stands for the
 * folder; others are patterns, in which * matches no /. Callers stand above what they call. */
static const struct { const char *files, *may; } rows[] = {
    { "*.c",            "llmc/ kernels/*.h" },                                  /* the programs */
    { "llmc/run/",      "llmc/run/ llmc/files/ llmc/model/ llmc/ranks/ llmc/data/ llmc/base/ kernels/*.h" },
    { "llmc/files/",    "llmc/files/ llmc/model/ llmc/data/ llmc/base/" },
    { "llmc/model/",    "llmc/model/ llmc/ranks/group.h llmc/base/ kernels/*.h" },
    { "llmc/ranks/",    "llmc/ranks/ llmc/base/ kernels/comm.h" },
    { "llmc/data/",     "llmc/data/ llmc/base/" },
    { "llmc/base/",     "llmc/base/ kernels/*.h" },
    { "kernels/ladder/", "kernels/ladder/ kernels/cuda/*.cuh kernels/cpu/impl.h kernels/*.h" },
    { "kernels/cuda/",  "kernels/cuda/ kernels/*.h" },
    { "kernels/cpu/",   "kernels/cpu/ kernels/*.h" },
    { "kernels/",       "kernels/*.h" },
    { "tests/",         "tests/ llmc/ kernels/*.h kernels/ladder/*.h" },
    { "bench/",         "bench/ tests/ llmc/ kernels/*.h kernels/ladder/*.h" },
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Lines of a function, from its name to its closing brace, and of a macro. The main loop of a
 * kernel may be longer if cutting it costs speed: a comment in the function or directly above it
 * then contains the words "main loop". */
enum { LONGEST = 60, LONGEST_MAIN_LOOP = 80, LONGEST_TEST = 80 };
enum { WIDEST = 120, WIDEST_COMMENT = 100 };

/* Words that no identifier contains, and what says the same (CONTRIBUTING.md, Words), but in files
 * whose path contains `but`. */
static const struct { const char *words, *instead, *but; } words[] = {
    { " turn turns turned ", "angles, slice, iteration, transposed", "chat" },
    { " few ", "small, decode", NULL },
    { " meet meets meeting meetings ", "barrier", NULL },
    { " room rooms ", "buffer, capacity, folder", NULL },
    { " place places placed ", "offset, position", NULL },
    { " tell tells told ask asks asked ", "publish, observe, report, request", NULL },
    { " whole ", "full, complete", NULL },
    { " share shares ", "part, shard, fraction", NULL },
};

enum { MOST_INCLUDES = 64 };
typedef struct {
    char *path, *text, *code;   /* path: from the root of the tree; code: text with blanks for comments and quotes */
    int   include[MOST_INCLUDES], line[MOST_INCLUDES], includes;        /* indices of files; lines */
} Source;
enum { FORM, CIRCLES, COLUMNS, WORDS, OPENS, RULES };
static const char *const rules[RULES] = {
    [FORM]    = "includes not allowed, functions too long, operations in other files than on a CPU",
    [CIRCLES] = "includes and calls that are part of a circle in a folder of llmc",
    [COLUMNS] = "lines that are too wide",
    [WORDS]   = "identifiers with a word that has another meaning elsewhere, or several here",
    [OPENS]   = "files opened by other functions than those of llmc/base/file.c, which never wait",
};
typedef struct { int from, to, line; char *what; } Edge;    /* why a file needs another of its folder */
typedef struct {
    const char *root;
    Source *at;
    Edge   *edge;
    int     count, edges, includes, functions, faults[RULES];
    Text    says[RULES];                        /* a line for each fault */
} Tree;

static void fault(Tree *t, int rule, const Source *s, int line, const char *what, const char *which) {
    text_add(&t->says[rule], "%s:%d: %s%s\n", s->path, line, what, which);
    t->faults[rule]++;
}

/* ---- reading a tree -------------------------------------------------------------------------- */

static int is_source(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, ".c") || !strcmp(dot, ".h") || !strcmp(dot, ".cu") || !strcmp(dot, ".cuh"));
}
static char *code_of(const char *text) {
    char *code = text_format("%s", text);
    for (char *c = code, *end; *c; c = end) {
        const char *close = strstr(c, "*/");
        end = c + 1;
        if (!strncmp(c, "/*", 2) && close) end = code + (close - code) + 2;
        else if (!strncmp(c, "//", 2)) end = c + strcspn(c, "\n");
        else if (*c == '"' || *c == '\'') {
            while (*end && *end != *c && *end != '\n') end += *end == '\\' ? 2 : 1;
            end += *end == *c;
        } else continue;
        for (const int quote = *c != '/'; c < end; c++) if (*c != '\n' && !(quote && *c == '"')) *c = ' ';
    }
    return code;
}
static void add_source(Tree *t, const char *path) {
    char *full = text_format("%s/%s", t->root, path);
    size_t bytes;
    Error e;
    if (!(t->at = realloc(t->at, (size_t)(t->count + 1) * sizeof *t->at))) fail(EXIT_MEMORY, "no memory for %s", path);
    t->at[t->count++] = (Source){ .path = text_format("%s", path), .text = file_read(full, &bytes, &e) };
    if (!t->at[t->count - 1].text) fail(EXIT_INPUT, "%s", e.text);
    t->at[t->count - 1].code = code_of(t->at[t->count - 1].text);
    free(full);
}
/* Everything in a folder, "" being the root. deep: and in those below it. */
static void add_folder(Tree *t, const char *folder, int deep) {
    char *full = text_format("%s/%s", t->root, folder);
    struct dirent **entry;
    const int n = scandir(full, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char *path = text_format("%s%s%s", folder, *folder ? "/" : "", entry[i]->d_name);
        char *below = text_format("%s/%s", t->root, path);
        if (is_source(path)) add_source(t, path);
        else if (deep && entry[i]->d_name[0] != '.' && is_folder(below)) add_folder(t, path, 1);
        free(path), free(below), free(entry[i]);
    }
    if (n >= 0) free(entry);
    free(full);
}
static int find_source(const Tree *t, const char *path) {
    int i = 0;
    while (i < t->count && strcmp(t->at[i].path, path)) i++;
    return i < t->count ? i : -1;
}
static void tree_free(Tree *t) {
    for (int i = 0; i < t->count; i++) free(t->at[i].path), free(t->at[i].text), free(t->at[i].code);
    for (int i = 0; i < t->edges; i++) free(t->edge[i].what);
    free(t->at), free(t->edge);
    for (int r = 0; r < RULES; r++) free(t->says[r].at);
}

/* ---- includes -------------------------------------------------------------------------------- */

static int matches(const char *path, const char *pattern) {
    const size_t n = strlen(pattern);
    return n && pattern[n - 1] == '/' ? !strncmp(path, pattern, n) : !fnmatch(pattern, path, FNM_PATHNAME);
}
static int may_include(const char *list, const char *path) {
    char pattern[128];
    int used;
    for (; sscanf(list, "%127s%n", pattern, &used) == 1; list += used) if (matches(path, pattern)) return 1;
    return 0;
}
/* A quoted name is relative to the including file's folder, or else to the root. */
static int resolve(const Tree *t, const Source *s, const char *name) {
    const char *slash = strrchr(s->path, '/');
    char *beside = text_format("%.*s%s", slash ? (int)(slash + 1 - s->path) : 0, s->path, name);
    const int found = find_source(t, beside);
    free(beside);
    return found >= 0 ? found : find_source(t, name);
}
static void read_includes(Tree *t, Source *s) {
    int row = 0, number = 1;
    while (row < ROWS && !matches(s->path, rows[row].files)) row++;
    if (row == ROWS) fault(t, FORM, s, 1, "no row of the table is for this file", "");
    for (const char *line = s->text; row < ROWS && *line; line += strcspn(line, "\n"),
         line += *line == '\n', number++) {
        char code[256], name[256];
        snprintf(code, sizeof code, "%.*s", (int)strcspn(line, "\n"), line);
        if (sscanf(code, " # include \"%255[^\"]\"", name) != 1) continue;
        const int found = resolve(t, s, name);
        t->includes++;
        if (found < 0) fault(t, FORM, s, number, "there is no file ", name);
        else if (!may_include(rows[row].may, t->at[found].path))
            fault(t, FORM, s, number, "may not include ", t->at[found].path);
        if (found < 0) continue;
        if (s->includes == MOST_INCLUDES) fail(EXIT_USAGE, "%s: more than %d includes", s->path, MOST_INCLUDES);
        s->include[s->includes] = found;
        s->line[s->includes++] = number;
    }
}
/* ---- functions ------------------------------------------------------------------------------- */

/* Does the code end with the opening brace of a function: `) {`? */
static int opens_function(const char *code) {
    size_t n = strlen(code);
    if (!n || code[--n] != '{') return 0;
    while (n && code[n - 1] == ' ') n--;
    return n && code[n - 1] == ')';
}
static int contains(const char *line, size_t n, const char *word) {
    const char *found = strstr(line, word);
    return found && (size_t)(found - line) + strlen(word) <= n;
}
static void judge(Tree *t, const Source *s, const char *what, int first, int last, int main_loop) {
    const int limit = matches(s->path, "tests/") ? LONGEST_TEST : main_loop ? LONGEST_MAIN_LOOP : LONGEST;
    char counts[64];
    snprintf(counts, sizeof counts, " of %d lines, at most %d", last - first + 1, limit);
    t->functions++;
    if (last - first + 1 > limit) fault(t, FORM, s, first, what, counts);
}
static void read_functions(Tree *t, const Source *s) {
    /* first: line of the signature, 0: none */
    int number = 1, first = 0, macro = 0, in_template = 0, inside = 0, main_loop = 0;
    for (const char *line = s->text; *line; line += strcspn(line, "\n"), line += *line == '\n', number++) {
        const size_t n = strcspn(line, "\n");
        char code[512];
        snprintf(code, sizeof code, "%.*s", (int)n, s->code + (line - s->text));
        for (size_t end = strlen(code); end && strchr(" \r", code[end - 1]); ) code[--end] = 0;
        if (!inside && !n) main_loop = 0;
        main_loop |= contains(line, n, "main loop");
        if (macro || (!inside && *line == '#')) {
            if (!macro) macro = number;
            if (n && line[n - 1] == '\\') continue;
            judge(t, s, "macro", macro, number, 0);
            macro = 0;
        } else if (inside) {
            if (*line != '}') continue;
            judge(t, s, "function", first, number, main_loop);
            inside = first = main_loop = 0;
        } else {
            const int margin = *code && !strchr(" \t}", *code);
            if (margin && !in_template) first = number;
            if (margin) in_template = !strncmp(code, "template", 8) && !opens_function(code);
            if (first && opens_function(code)) inside = 1, in_template = 0;
            else if (*code && strchr(";}{", code[strlen(code) - 1])) first = in_template = 0;
        }
    }
}

static int is_name(int c) { return c == '_' || isalnum(c); }

/* ---- columns and words ----------------------------------------------------------------------- */

static void read_columns(Tree *t, const Source *s) {
    int number = 1;
    for (const char *line = s->text; *line; line += strcspn(line, "\n"), line += *line == '\n', number++) {
        const size_t n = strcspn(line, "\n"), blanks = strspn(s->code + (line - s->text), " ");
        int columns = 0;
        for (size_t i = 0; i < n; i++) columns += (line[i] & 0xC0) != 0x80;         /* of UTF-8, the characters */
        if (columns > (blanks < n ? WIDEST : WIDEST_COMMENT))
            fault(t, COLUMNS, s, number, blanks < n ? "code" : "comment", " is too wide");
    }
}
/* The parts of a name: one, two, three of one_two or oneTwoThree. */
static void judge_name(Tree *t, const Source *s, int line, const char *name, int n) {
    char part[64] = " ";
    for (int i = 0, length = 1; i <= n; i++) {
        const int ends = i == n || name[i] == '_'
            || (i && isupper((unsigned char)name[i]) && islower((unsigned char)name[i - 1]));
        if (ends) memcpy(part + length, " ", 2), length = 1;
        for (size_t w = 0; ends && w < sizeof words / sizeof *words; w++) {
            if (!strstr(words[w].words, part) || strlen(part) < 3 || (words[w].but && strstr(s->path, words[w].but)))
                continue;
            char *says = text_format("%.*s: better ", n, name);
            fault(t, WORDS, s, line, says, words[w].instead);
            free(says);
        }
        if (i < n && name[i] != '_' && length < 60) part[length++] = (char)tolower((unsigned char)name[i]);
    }
}
static void read_words(Tree *t, const Source *s) {
    int line = 1;
    for (const char *c = s->code, *name; *c; c++) {
        line += *c == '\n';
        for (name = c; is_name((unsigned char)*c); ) c++;
        if (c > name) judge_name(t, s, line, name, (int)(c-- - name));
    }
}

/* ---- what opens files ------------------------------------------------------------------------ */

/* In llmc and the two programs. secret.c opens a device, and files that may be no links. */
static void read_opens(Tree *t, const Source *s) {
    static const char *const calls[] = { "open(", "openat(", "creat(", "fopen(", "freopen(" };
    if (!matches(s->path, "llmc/") && strcmp(s->path, "train_moe.c") && strcmp(s->path, "infer_moe.c")) return;
    if (!strcmp(s->path, "llmc/base/file.c") || !strcmp(s->path, "llmc/ranks/secret.c")) return;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (const char *c = s->code; (c = strstr(c, calls[i])); c++) {
            if (c > s->code && (is_name((unsigned char)c[-1]) || strchr(".>", c[-1]))) continue;
            int line = 1;
            for (const char *before = s->code; before < c; before++) line += *before == '\n';
            fault(t, OPENS, s, line, "may not call ", calls[i]);
        }
}

/* ---- circles --------------------------------------------------------------------------------- */

/* The node of a file in the graph: in llmc X.c, X.h and X_impl.h are one, the first of them. */
static size_t stem(const char *path) {
    const char *impl = strstr(path, "_impl.");
    return impl ? (size_t)(impl - path) : strcspn(path, ".");
}
static int node(const Tree *t, int i) {
    const char *path = t->at[i].path;
    const size_t n = stem(path);
    int first = matches(path, "llmc/") ? 0 : i;
    while (stem(t->at[first].path) != n || strncmp(t->at[first].path, path, n)) first++;
    return first;
}
static void needs(Tree *t, int from, int to, int line, const char *name, int length) {
    if (node(t, from) == node(t, to) && (length || from != to)) return;
    if (!(t->edge = realloc(t->edge, (size_t)(t->edges + 1) * sizeof *t->edge)))
        fail(EXIT_MEMORY, "no memory for edges");
    t->edge[t->edges++] = (Edge){ from, to, line, text_format(length ? "calls %.*s of %s" : "includes %.*s%s", length,
                                                              name, t->at[to].path) };
}
/* The name, before its first parenthesis, that a line defines for other files; NULL: none. */
static const char *defined(const char *line, int *length) {
    const size_t n = strcspn(line, "\n"), open = strcspn(line, "(\n");
    size_t from = open;
    while (from && is_name(line[from - 1])) from--;
    *length = (int)(open - from);
    if (!is_name(*line) || !from || !*length || open == n || !strncmp(line, "static ", 7)
        || !strncmp(line, "typedef ", 8)) return NULL;
    return line[n - 1] == ';' && !memchr(line, '{', n) ? NULL : line + from;
}
/* The first call of a function of file `of` in each other file of its folder; no fields. */
static void find_calls(Tree *t, int of, const char *name, int length) {
    char *call = text_format("%.*s(", length, name);
    const size_t folder = (size_t)(strrchr(t->at[of].path, '/') - t->at[of].path);
    for (int i = 0; i < t->count; i++) {
        if (strncmp(t->at[i].path, t->at[of].path, folder) || !matches(t->at[i].path + folder, "/*.c")) continue;
        for (const char *code = t->at[i].code, *c = code; (c = strstr(c, call)); c++) {
            if (c == code || is_name(c[-1]) || strchr(".>", c[-1])) continue;
            int line = 1;
            for (const char *before = code; before < c; before++) line += *before == '\n';
            needs(t, i, of, line, name, length);
            break;
        }
    }
    free(call);
}
/* An edge is part of a circle if what it leads to leads back. */
static void find_circles(Tree *t) {
    const int n = t->count;
    char *reach = calloc((size_t)n * n + 1, 1);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < t->at[i].includes; k++) needs(t, i, t->at[i].include[k], t->at[i].line[k], "", 0);
        int length = 0;
        const char *line = matches(t->at[i].path, "llmc/*/*.c") ? t->at[i].code : "", *name;
        for (; *line; line += strcspn(line, "\n"), line += *line == '\n')
            if ((name = defined(line, &length))) find_calls(t, i, name, length);
    }
    for (int i = 0; i < t->edges; i++) reach[node(t, t->edge[i].from) * n + node(t, t->edge[i].to)] = 1;
    for (int k = 0; k < n; k++) for (int i = 0; i < n; i++)
        for (int j = 0; reach[i * n + k] && j < n; j++) reach[i * n + j] |= reach[k * n + j];
    for (int i = 0; i < t->edges; i++) {
        const Edge *e = &t->edge[i];
        const Source *s = &t->at[e->from];
        if (reach[node(t, e->to) * n + node(t, e->from)])
            fault(t, matches(s->path, "llmc/") ? CIRCLES : FORM, s, e->line, "in a circle: ", e->what);
    }
    free(reach);
}

/* ---- where operations are -------------------------------------------------------------------- */

/* What kernels/cpu/x.c puts into the table of a device, kernels/cuda/x.cu does, or a file of
 * hopper/ or decode/ whose name begins with x. device.cu may, too: what is no kernel. */
static void find_operations(Tree *t) {
    for (int i = 0; i < t->count; i++) {
        const char *path = t->at[i].path, *file = path + strlen("kernels/cpu/");
        if (!matches(path, "kernels/cpu/*.c") || !strcmp(file, "device.c")) continue;
        for (const char *c = t->at[i].code; (c = strstr(c, "d->")); c++) {
            char name[64], entry[80];
            int found = 0;
            if (sscanf(c, "d->%63[a-z0-9_]", name) != 1) continue;
            snprintf(entry, sizeof entry, "d->%s = ", name);
            if (strncmp(c, entry, strlen(entry))) continue;
            for (int k = 0; k < t->count; k++) {
                if (!matches(t->at[k].path, "kernels/cuda/") || !strstr(t->at[k].code, entry)) continue;
                const char *base = strrchr(t->at[k].path, '/') + 1;
                const size_t n = strcspn(file, ".") + !matches(t->at[k].path, "kernels/cuda/*/*.cu");    /* x or x. */
                if (strncmp(base, file, n) && strcmp(base, "device.cu"))
                    fault(t, FORM, &t->at[k], 1, "is not where kernels/cpu has ", name);
                found = 1;
            }
            if (!found) fault(t, FORM, &t->at[i], 1, "no file of kernels/cuda has ", name);
        }
    }
}

static void tree_read(Tree *t, const char *root) {
    static const char *const folders[] = { "llmc", "kernels", "tests", "bench" };
    *t = (Tree){ .root = root };
    add_folder(t, "", 0);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) add_folder(t, folders[i], 1);
    for (int i = 0; i < t->count; i++)
        read_includes(t, &t->at[i]), read_functions(t, &t->at[i]), read_columns(t, &t->at[i]),
            read_words(t, &t->at[i]), read_opens(t, &t->at[i]);
    find_circles(t);
    find_operations(t);
}

/* ---- can it fail? ---------------------------------------------------------------------------- */

#define TEN "iiiiiiiiii"
#define NINETY TEN TEN TEN TEN TEN TEN TEN TEN TEN
static const struct { const char *path, *text; int lines; const char *fault; } synthetic[] = {
    /* lines: of a function after the text; fault: what follows the path */
    { "train.c",              "#include \"llmc/run/run.h\"\n#include <math.h>\n", 60, NULL },
    { "llmc/run/run.h",       "#include \"llmc/files/hf.h\"\n", 0, NULL },
    { "llmc/files/hf.h",      "#include \"llmc/model/model.h\"\n", 0, NULL },
    { "llmc/model/model.h",   "#include \"llmc/ranks/group.h\"\n#include \"kernels/kernels.h\"\n", 0, NULL },
    { "llmc/model/up.c",      "#include \"model.h\"\n#include \"llmc/files/hf.h\"\n", 0,
      ":2: may not include llmc/files/hf.h\n" },
    { "llmc/model/inside.c",  "\n  #  include \"llmc/ranks/net.h\"\n", 0, ":2: may not include llmc/ranks/net.h\n" },
    { "llmc/ranks/group.h",   "#include \"kernels/comm.h\"\n", 0, NULL },
    { "llmc/ranks/net.h",     "", 0, NULL },
    { "llmc/base/base.h",     "#include \"llmc/ranks/net.h\"\n", 0, ":1: may not include llmc/ranks/net.h\n" },
    { "llmc/data/lost.c",     "#include \"nothing.h\"\n", 0, ":1: there is no file nothing.h\n" },
    { "llmc/data/a.h",        "/* #include \"none.h\" */\n#include \"b.h\"\n", 0,
      ":2: in a circle: includes llmc/data/b.h\n" },
    { "llmc/data/b.h",        "#include \"c.h\"\n", 0, ":1: in a circle: includes llmc/data/c.h\n" },
    { "llmc/data/c.h",        "\n\n#include \"a.h\"\n", 0, ":3: in a circle: includes llmc/data/a.h\n" },
    { "llmc/data/d.c",        "#include \"e.h\"\nint d(void) { return 0; }   /* e(1) */\n", 0,
      ":1: in a circle: includes llmc/data/e.h\n" },
    { "llmc/data/e.h",        "", 0, NULL },
    { "llmc/data/e.c",        "#include \"e_impl.h\"\nint e(int a) {\n    return d();\n}\n", 0,
      ":3: in a circle: calls d of llmc/data/d.c\n" },
    { "llmc/data/e_impl.h",   "#include \"e.h\"\n", 0, NULL },
    { "llmc/data/f.c",        "#include \"e.h\"\nint f(int a) {\n    return e(f);\n}\n", 0, NULL },
    { "llmc/data/g.c",        "int g(int a) {\n    return x.f(g, \"f(1)\", f);\n}\n", 0, NULL },
    { "llmc/elsewhere.c",     "", 0, ":1: no row of the table is for this file\n" },
    { "kernels/kernels.h",    "", 0, NULL },
    { "kernels/comm.h",       "#include \"llmc/base/base.h\"\n", 0, ":1: may not include llmc/base/base.h\n" },
    { "kernels/cuda/impl.cuh","#include \"kernels/kernels.h\"\n", 0, NULL },
    { "kernels/cpu/up.c",    "#include \"kernels/cuda/impl.cuh\"\n", 0, ":1: may not include kernels/cuda/impl.cuh\n" },
    { "kernels/cpu/sum.c",    "PART(sum) { d->sum = sum; d->lost = lost; }\n", 0,
      ":1: no file of kernels/cuda has lost\n" },
    { "kernels/cuda/sum.cu",  "PART(sum) { d->sum = sum; }\n", 0, NULL },
    { "kernels/cuda/hopper/sum_of.cu", "PART(sums) { d->sum = sum; }\n", 0, NULL },
    { "kernels/cuda/sum_of.cu", "PART(sums) { d->sum = sum; }\n", 0, ":1: is not where kernels/cpu has sum\n" },
    { "kernels/cuda/long.cu", "", 61, ":1: function of 61 lines, at most 60\n" },
    { "kernels/cuda/loop.cu", "/* The main loop. */\n", 80, NULL },
    { "kernels/cuda/loops.cu","/* The main loop. */\n", 81, ":2: function of 81 lines, at most 80\n" },
    { "kernels/cuda/later.cu","/* Not the main loop. */\n\n", 61, ":3: function of 61 lines, at most 60\n" },
    { "kernels/cuda/self.h",  "#include \"self.h\"\n", 0, ":1: in a circle: includes kernels/cuda/self.h\n" },
    { "llmc/base/code.c",     "int " NINETY TEN TEN "iiiii;\nint " NINETY TEN TEN "iiiiii;\n", 0,
      ":2: code is too wide\n" },
    { "llmc/base/comment.c",  "/* " NINETY "iiii */\n/* " NINETY "iiiii */\n", 0, ":2: comment is too wide\n" },
    { "llmc/base/quote.c",    "\"" NINETY TEN "\"\n", 0, NULL },
    { "llmc/base/word.c",    "char *few_shared = \"room\"; /* turn */\n", 0, ":1: few_shared: better small, decode\n" },
    { "llmc/data/chat.c",     "int turns, furniture, roomy;\n", 0, NULL },
    { "llmc/run/opens.c",     "\n  f = fopen(path, \"r\");   /* open( */\n", 0, ":2: may not call fopen(\n" },
    { "llmc/run/open.c",      "d->open(1), x.open(1), file_open(2), \"open(\";\n", 0, NULL },
    { "infer_moe.c",          "fd = open(path, O_RDONLY);\n", 0, ":1: may not call open(\n" },
    { "tests/word.c",         "\n  nextTurn(1);\n", 0, ":2: nextTurn: better angles, slice, iteration, transposed\n" },
    { "bench/b.c",            "static const int x[] = {\n    1\n};\nMADE(x)\nstatic int one(void) { return 1; }\n", 61,
      ":6: function of 61 lines, at most 60\n" },
    { "tests/t.c",            "#include \"llmc/run/run.h\"\n", 80, NULL },
    { "tests/long.c",         "template <int N>\n", 81, ":1: function of 82 lines, at most 80\n" },
};
enum { SYNTHETIC = sizeof synthetic / sizeof *synthetic };

static void write_synthetic(const char *root, int i) {
    char *path = text_format("%s/%s", root, synthetic[i].path),
        *folder = text_format("%.*s", (int)(strrchr(path, '/') - path), path);
    Text t = { 0 };
    Error e;
    text_add_string(&t, synthetic[i].text);
    if (synthetic[i].lines) text_add(&t, "static int f(int a,\n             int b) {   /* with a comment { */\n");
    for (int k = 3; k < synthetic[i].lines; k++) text_add(&t, "    a += b;\n");
    text_add(&t, synthetic[i].lines ? "}\n" : "\n");
    if (!folder_make(folder, &e) || !file_write(path, t.at, t.length, &e)) fail(EXIT_DISK, "%s", e.text);
    free(path), free(folder), free(t.at);
}
static void finds_faults(void) {
    char *root = scratch_path("house");
    int expected = 0;
    Tree t;
    for (int i = 0; i < SYNTHETIC; i++) write_synthetic(root, i), expected += synthetic[i].fault != NULL;
    tree_read(&t, root);
    for (int i = 0, found; i < SYNTHETIC; i++) {
        if (!synthetic[i].fault) continue;
        char *fault = text_format("%s%s", synthetic[i].path, synthetic[i].fault);
        for (int r = found = 0; r < RULES; r++) found |= t.says[r].at && strstr(t.says[r].at, fault);
        check(found, "house: in a synthetic tree, finds %s", fault);
        free(fault);
    }
    for (int r = 0; r < RULES; r++) expected -= t.faults[r];
    check(!expected && t.count == SYNTHETIC, "house: %d files of %d, %d faults not found, or too many:\n%s%s%s%s%s",
          t.count, SYNTHETIC, expected, t.says[FORM].at, t.says[CIRCLES].at, t.says[COLUMNS].at, t.says[WORDS].at,
          t.says[OPENS].at);
    tree_free(&t), free(root);
}

/* The figures of the documents are what their script makes. */
static void figures_are_drawn(void) {
    if (system("command -v python3 > /dev/null && test -f docs/figures/figures.py")) {
        skip("no python3 or no documents here: the figures were not compared");
        return;
    }
    check(!system("python3 docs/figures/figures.py -check"),
          "house: docs/figures/*.svg are what docs/figures/figures.py makes");
}
static int lines_of(const char *path) {
    FILE *f = fopen(path, "r");
    int lines = 0;
    for (int c; f && (c = getc(f)) != EOF; ) lines += c == '\n';
    if (f) fclose(f);
    return lines;
}
/* What documents name exists: files, headings, targets, options, groups of tests, functions. */
static void documents_are_true(void) {
    if (system("command -v python3 > /dev/null && test -f README.md")) {
        skip("no python3 or no documents here: what they name was not looked for");
        return;
    }
    check(!system("python3 tests/documents.py > /dev/null"),
          "house: what the documents name exists (python3 tests/documents.py)");
    static const char wrong[] = "`make tset`\n`llmc/model/mo.c`\n[map](map.md)\n`./train_moe -zz 1`\n`-bq "
        "3`\n`./run_tests kernel`\n"
                                "`describe_" "layers`\n    ./infer_moe out -zq 1\n# A heading: "
                                "`x`\n[right](#a-heading-x)\n[wrong](#a-heading)\n";
    char *path = scratch_path("wrong.md"), *said = scratch_path("said"),
        *command = text_format("python3 tests/documents.py %s > %s", path, said);
    FILE *f = fopen(path, "w");
    if (f) { fputs(wrong, f); fclose(f); }
    check(f && system(command) == 256, "house: documents.py finds faults");
    const int lines = lines_of(said);
    check(lines == 9 + 1, "house: and a fault in each of nine lines, %d", lines - 1);
    free(path), free(said), free(command);
}

/* The limits of tests/size.sh hold, and README.md has its table. In a synthetic tree that is just
 * within the limits, a line more in each file, too long for two of them and with a word that two
 * must not have, a file without a row and a row that README.md lacks are twelve faults. */
static void sizes_hold(void) {
    check(!system("sh tests/size.sh -c"),
          "house: sizes are within their limits, and those of README.md (sh tests/size.sh)");
    char *root = scratch_path("sizes"), *said = scratch_path("sizes.txt"),
        *faults = text_format("sh tests/size.sh -c %s > %s", root, said);
    char *within = text_format("mkdir -p %s/llmc/model %s/kernels/cuda %s/tests && cd %s && n() { yes x | head -n $1 "
        "> $2; } && n 680 smoe.c && n 150 llmc/model/moe.c && n 150 llmc/model/attention.c && n 2700 llmc/model/pass.c "
        "&& n 150 Makefile && n 48400 kernels/cuda/x.cu && printf '<!-- size -->\n<!-- /size -->\n' > README.md && cd "
        "- > /dev/null && sh tests/size.sh -w %s", root, root, root, root, root);
    char *beyond = text_format("cd %s && for f in smoe.c llmc/model/moe.c llmc/model/attention.c Makefile; do printf "
                               "'%%0130dfp8_\n' 0 >> $f; done && yes x | head -n 60 > tests/t.c && : > other.c", root);
    check(!system(within) && !system(faults), "house: a synthetic tree just within the limits has no fault");
    check(!system(beyond) && system(faults) == 256, "house: beyond them it has");
    check(lines_of(said) == 12, "house: all of them, %d", lines_of(said));
    free(root), free(said), free(faults), free(within), free(beyond);
}

/* The example of math.md, section 8, is what cpu-f64 computes: its lines are written here from the
 * results and looked for there. */
static void looks_for(const char *document, Text *line) {
    check(strstr(document, line->at) != NULL, "house: docs/math.md has the computed line: %s", line->at);
    free(line->at);
    *line = (Text){ 0 };
}
static void add_integers(Text *line, const char *name, const int *x, int n) {
    text_add(line, "%-12s", name);
    for (int i = 0; i < n; i++) text_add(line, "    %d", x[i]);
}
static void add_pair(Text *line, const double *x) {
    text_add(line, "(%g, %g)", round(x[0] * 1000) / 1000, round(x[1] * 1000) / 1000);
}
static void example_is_computed(void) {
    enum { N = 4, E = 3, K = 2, S = N * K, C = 2 };
    static const double H[N * C] = { 1, 0, 0, 1, 1, 2, 2, -1 }, Wr[E * C] = { 1, 0, 0, 1, .5, .8 };
    static const double W[E * C * C] = { 1, 2, 0, 1, 1, 0, 1, -1, 2, 0, 0, 3 },
        dout[N * C] = { 1, 0, 1, 0, 1, 0, 1, 0 };
    double logits[N * E], weight[S], lse[N], grouped[S * C], out[N * C], dweight[S], dlogits[N * E];
    int expert[S], load[E], tokens = N, start[E + 1], slot_of_row[S], token_of_row[S], row_of_slot[S];
    Plan p = { .N = N, .E = E, .K = K, .S = S, .start = start, .slot_of_row = slot_of_row, .token_of_row = token_of_row,
               .row_of_slot = row_of_slot };
    const Device *d = device_find("cpu-f64");
    size_t bytes;
    Error e;
    char *document = file_read("docs/math.md", &bytes, &e);
    Text line = { 0 };
    if (!document) { skip("no documents here: the example of math.md was not computed"); return; }
    d->matmul_forward((floatX *)logits, (const floatX *)H, (const floatX *)Wr, N, C, E);
    d->router_forward(expert, (real *)weight, (real *)lse, (floatX *)logits, NULL, TOPK_SOFTMAX, (Groups){ 0 },
                      0, N, E, K);
    d->route_plan(&p, load, expert);
    d->parallel_linear_forward((floatX *)grouped, (const floatX *)H, (const floatX *)W, &p, C, C, BY_TOKEN, GROUPED);
    d->combine_forward((floatX *)out, (floatX *)grouped, (real *)weight, NULL, &p, C, GROUPED);
    for (int s = 0; s < S; s++) dweight[s] = dout[s / K * C] * grouped[row_of_slot[s] * C]
        + dout[s / K * C + 1] * grouped[row_of_slot[s] * C + 1];
    d->router_backward((floatX *)dlogits, (real *)dweight, (real *)weight, (real *)lse, expert, NULL, (floatX *)logits,
                       load, 0, 0, (Counted){ NULL, &tokens, 1 }, TOPK_SOFTMAX, N, E, K);
    for (int n = 0; n < N; n++) {
        const double *l = logits + n * E, *w = weight + n * K;
        text_add(&line, "| %d | %g, %g, %g | %d, %d | %.3f, %.3f |", n, l[0], l[1], l[2], expert[n * K],
                 expert[n * K + 1], w[0], w[1]);
        looks_for(document, &line);
    }
    add_integers(&line, "slot_of_row", slot_of_row, S), looks_for(document, &line);
    add_integers(&line, "row_of_slot", row_of_slot, S), looks_for(document, &line);
    add_integers(&line, "token_of_row", token_of_row, S), looks_for(document, &line);
    text_add(&line, "load = (%d, %d, %d)         start = (%d, %d, %d, %d)", load[0], load[1], load[2], start[0],
             start[1], start[2], start[3]);
    looks_for(document, &line);
    text_add(&line, "y = W[e] h      ");
    for (int row = 0; row < S; row++) {
        const size_t from = line.length;
        add_pair(&line, grouped + row * C);
        if (row < S - 1) text_add(&line, "%*s", 11 - (int)(line.length - from), "");
    }
    looks_for(document, &line);
    for (int n = 0; n < N; n++) add_pair(&line, out + n * C), looks_for(document, &line);
    text_add(&line, "(%.3f, %g, %.3f)", dlogits[0], dlogits[1], dlogits[2]), looks_for(document, &line);
    free(document);
}

static void tree_is_in_order(void) {
    Tree t;
    tree_read(&t, ".");
    for (int r = 0; r < RULES; r++)
        check(!t.faults[r], "house: %d %s\n%s", t.faults[r], rules[r], t.says[r].at ? t.says[r].at : "");
    check(t.count > 100 && t.includes > 300 && t.functions > 1000, "house: read %d files, %d includes, %d functions "
          "and macros (run from the folder of the Makefile)", t.count, t.includes, t.functions);
    tree_free(&t);
}

void test_house(void) {
    PART(finds_faults());
    PART(figures_are_drawn());
    PART(documents_are_true());
    PART(sizes_hold());
    PART(example_is_computed());
    PART(tree_is_in_order());
}
