/* test_train.c: what surrounds the model in training. Schedules, sampling, statistics and options against their definitions;
 * accumulation, threads and recordings, which must not change a gradient; checkpoints, which must restore every bit, survive
 * damage and exclude a second trainer; config.json, written and read; files. What the programs do with these is tested by
 * tests/programs.sh. */
#define _DEFAULT_SOURCE
#include "trainee.h"
#include "tests/test.h"
#include "llmc/files/checkpoint.h"
#include "llmc/run/progress.h"
#include "llmc/run/options.h"
#include "llmc/run/settings.h"
#include "llmc/base/random.h"
#include "llmc/model/gradients.h"
#include "llmc/model/ranges.h"
#include "llmc/model/schedule.h"
#include "llmc/base/text.h"
#include "llmc/base/json.h"
#include "llmc/base/omp.h"
#include "llmc/model/replay.h"
#include "llmc/files/config_json.h"
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the learning rate --------------------------------------------------------------------------------- */

static void schedules(void) {
    static const char *const names[] = { "cosine", "linear", "constant", "wsd" };
    /* 100 steps, 20 of warm-up, down to 0.1 */
    static const struct { Schedule kind; long step; double rate; } points[] = {
        { COSINE, 0, 1/21. }, { COSINE, 19, 20/21. }, { COSINE, 20, 1 }, { COSINE, 60, 0.55 },
        { COSINE, 100, 0.1 }, { COSINE, 1000, 0.1 },
        { COSINE, 40, 0.1 + 0.9 * (0.5 + 0.35355339059327379) },          /* a quarter: cos(pi/4) = sqrt(1/2) */
        { LINEAR, 10, 11/21. }, { LINEAR, 20, 1 }, { LINEAR, 60, 0.55 }, { LINEAR, 80, 0.325 },
        { LINEAR, 100, 0.1 },
        { CONSTANT, 0, 1/21. }, { CONSTANT, 20, 1 }, { CONSTANT, 99, 1 }, { CONSTANT, 1000, 1 },
        { WSD, 5, 6/21. }, { WSD, 20, 1 }, { WSD, 83, 1 }, { WSD, 84, 1 }, { WSD, 92, 0.55 },
        { WSD, 100, 0.1 },
    };
    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        check_error(fabs(schedule_rate(points[i].kind, points[i].step, 100, 20, 0.1) - points[i].rate), 1e-12,
                    "%s at step %ld is %g", names[points[i].kind], points[i].step, points[i].rate);
    for (int k = 0; k < 4; k++) {
        int rises = 1, falls = 1, inside = 1;
        for (long s = 0; s < 1000; s++) {
            const double a = schedule_rate((Schedule)k, s, 1000, 100, 0.2);
            const double b = schedule_rate((Schedule)k, s + 1, 1000, 100, 0.2);
            rises &= s >= 100 || b > a;
            falls &= s < 100 || b <= a;
            inside &= a > 0 && a <= 1 && (s < 100 || a >= 0.2);
        }
        check(rises && falls && inside, "%s rises only during warm-up and stays above its final rate", names[k]);
        check_error(fabs(schedule_rate((Schedule)k, 0, 10, 0, 0.5) - 1), 0,
                    "%s without warm-up starts at the peak", names[k]);
        check_error(fabs(schedule_rate((Schedule)k, 9, 10, 50, 0.5) - 10/51.), 1e-12,
                    "%s with a warm-up longer than the run is warm-up to the end", names[k]);
        check_error(fabs(schedule_rate((Schedule)k, 10, 10, 10, 0.5) - (k == 2 ? 1 : 0.5)), 1e-12,
                    "%s with a warm-up as long as the run does not divide by zero", names[k]);
    }
}

/* ---- sampling ------------------------------------------------------------------------------------------ */

typedef struct { float temperature, top_p, min_p; int top_k; uint64_t key; } Draw;
static int draw(Draw s, const double *logits, int count, uint64_t position) {
    const Device *dev = device_find("cpu-f64");
    const Sampler sampler = { .temperature = s.temperature, .top_p = s.top_p, .min_p = s.min_p, .top_k = s.top_k };
    const int before = (int)position - 1;
    int token;
    dev->sample(&token, (const floatX *)logits, &s.key, &before, sampler, 1, count, count);
    return token;
}

/* The tokens order[0..n-1] must be drawn in proportion to p, and no others: counts of 20000 draws, and their largest distance from
 * the expectation in standard deviations (plus one draw, for tokens that are hardly ever drawn). */
static void proportions(const char *what, Draw s, const double *logits, const double *p, const int *order,
                        int count, int n) {
    enum { DRAWS = 20000 };
    int seen[64] = { 0 };
    double kept = 0, worst = 0;
    for (int i = 0; i < DRAWS; i++) seen[draw(s, logits, count, (uint64_t)i)]++;
    for (int r = 0; r < n; r++) kept += p[order[r]];
    for (int r = 0; r < count; r++) {
        const double share = r < n ? p[order[r]] / kept : 0, deviation = sqrt(DRAWS * share * (1 - share)) + (r < n);
        const double off = fabs(seen[order[r]] - DRAWS * share) / fmax(deviation, 1e-9);
        if (!(off <= worst)) worst = off;
    }
    check_error(worst, 5, "%s, %d of %d, in standard deviations", what, n, count);
}

static void sampling(void) {
    enum { V = 12 };
    double logits[V], p[V], sum = 0, most = 0;
    int order[V], n;
    for (int i = 0; i < V; i++) { logits[i] = 2 * normal(); order[i] = i; }
    for (int i = 0; i < V; i++)
        for (int j = i; j > 0 && logits[order[j]] > logits[order[j-1]]; j--) {
            const int t = order[j];
            order[j] = order[j-1];
            order[j-1] = t;
        }
    for (int i = 0; i < V; i++) sum += p[i] = exp(logits[i]);
    for (int i = 0; i < V; i++) p[i] /= sum;

    const Draw plain = { .temperature = 1, .top_p = 1, .key = (uint64_t)(uniform() * 1e15) };
    Draw s = plain;
    proportions("draws follow the softmax", s, logits, p, order, V, V);
    s.top_k = 3;
    proportions("top-k draws from the k most likely", s, logits, p, order, V, 3);
    s = plain;
    s.top_p = 0.6f;
    for (n = 0; n < V && most < (double)s.top_p; n++) most += p[order[n]];
    proportions("top-p draws from the smallest set with that probability", s, logits, p, order, V, n);
    s = plain;
    s.min_p = 0.2f;
    for (n = 0; n < V && p[order[n]] >= (double)s.min_p * p[order[0]]; n++);
    proportions("min-p draws from tokens with that fraction of the largest probability", s, logits, p, order, V, n);
    s.top_k = n > 2 ? 2 : 1;
    proportions("the narrower of two limits applies", s, logits, p, order, V, s.top_k);
    s = plain;
    s.top_k = V + 5;
    proportions("a limit above the vocabulary changes nothing", s, logits, p, order, V, V);
    s = plain;
    s.temperature = 0.5f;
    for (int i = 0; i < V; i++) p[i] *= p[i];
    proportions("temperature 0.5 squares the odds", s, logits, p, order, V, V);

    const double even[V] = { 0 }, ties[5] = { 1, 3, 3, 0, 3 };
    const double nothing[4] = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    const double nans[4] = { NAN, NAN, NAN, NAN };
    const double holes[5] = { NAN, -INFINITY, 0.5, NAN, 0.4 }, boundless[4] = { 0, 1, INFINITY, 2 };
    int greedy = 1, none = 1, one = 1, cold = 1, strict = 1, same = 1, differs = 0, moves = 0;
    for (uint64_t i = 0; i < 200; i++) {
        greedy &= draw((Draw){ .temperature = 0, .top_p = 1, .key = i }, logits, V, i) == order[0];
        none   &= draw((Draw){ .temperature = 1, .top_p = 0, .key = i }, logits, V, i) == order[0];
        one    &= draw((Draw){ .temperature = 9, .top_p = 1, .top_k = 1, .key = i }, logits, V, i) == order[0];
        strict &= draw((Draw){ .temperature = 1, .top_p = 1, .min_p = 1, .key = i }, logits, V, i) == order[0];
        cold   &= draw((Draw){ .temperature = 1e-30f, .top_p = 1, .key = i }, logits, V, i) == order[0];
        s = plain;
        s.key++;
        same    &= draw(plain, even, V, i) == draw(plain, even, V, i);
        moves   += draw(plain, even, V, i) != draw(plain, even, V, i + 1);
        differs += draw(plain, even, V, i) != draw(s, even, V, i);
    }
    check(greedy, "temperature 0 gives the most likely token");
    check(none, "top-p 0 gives the most likely token");
    check(one, "top-k 1 gives the most likely token");
    check(strict, "min-p 1 gives the most likely token");
    check(cold, "a temperature near 0 gives the most likely token, without overflow");
    check(same && moves > 100 && differs > 100, "a draw depends on key and position and on nothing else");

    check(draw((Draw){ .temperature = 0, .top_p = 1 }, ties, 5, 0) == 1
          && draw((Draw){ .temperature = 1, .top_p = 0 }, ties, 5, 0) == 1, "ties go to the lower id");
    check(draw(plain, nothing, 4, 0) == 0 && draw((Draw){ .temperature = 1, .top_p = 0.9f, .top_k = 2 },
                                                  nothing, 4, 0) == 0,
                                                  "if everything is masked, token 0");
    check(draw(plain, nans, 4, 0) == 0 && draw((Draw){ .temperature = 1, .top_p = 0.5f }, nans, 4, 0) == 0,
          "if everything is NaN, token 0");
    check(draw(plain, boundless, 4, 0) == 2, "an infinite logit wins");
    int right = 1, seen[2] = { 0 };
    for (uint64_t i = 0; i < 500; i++) {
        const int a = draw(plain, holes, 5, i);
        const int b = draw((Draw){ .temperature = 2, .top_p = 0.9f, .min_p = 0.01f, .key = i },
                           holes, 5, i);
        right &= (a == 2 || a == 4) && (b == 2 || b == 4);
        seen[0] += a == 4;
        seen[1] += b == 4;
    }
    check(right && seen[0] > 100 && seen[1] > 100, "NaN and masked tokens are never drawn, all others are");
}

/* ---- z-scores ------------------------------------------------------------------------------------------ */

static void windows(void) {
    Window w = { 0 };
    double x[WINDOW], mean = 0, variance = 0;
    int early = 1;
    for (int i = 0; i < WINDOW; i++) { x[i] = normal(); early &= isnan(window_score(&w, x[i])); }
    check(early && w.count == WINDOW, "no score before there are %d values", WINDOW);
    for (int i = 0; i < WINDOW; i++) mean += x[i] / WINDOW;
    for (int i = 0; i < WINDOW; i++) variance += (x[i] - mean) * (x[i] - mean) / WINDOW;
    const Window before = w;
    check(isnan(window_score(&w, NAN)) && isinf(window_score(&w, INFINITY)) && !memcmp(&before, &w, sizeof w),
          "a value that is not finite has no score and is not kept");
    check_error(fabs(window_score(&w, mean + 3 * sqrt(variance)) - 3), 1e-9, "three deviations above the mean");
    check(w.count == WINDOW && w.x[0] > mean, "the window drops its oldest value");
    Window flat = { 0 };
    for (int i = 0; i < WINDOW; i++) window_score(&flat, 4);
    check(window_score(&flat, 5) == 0, "a window without spread has score 0");
}

/* ---- options ------------------------------------------------------------------------------------------- */

typedef struct { int count; int64_t large; float rate; const char *kind; } Small;
static const Option table[] = {
    { "a", "c",  "count",  OPTION_INT,   offsetof(Small, count), "3",      1,    100,  NULL,          "how many" },
    { "a", "l",  "large",  OPTION_LONG,  offsetof(Small, large), "-1",     -1,   9e15, NULL,          "how large" },
    { "b", "ra", "rate",   OPTION_FLOAT, offsetof(Small, rate),  "0.1",    0,    10,   NULL,          "how fast" },
    { "b", "k",  "kind",   OPTION_TEXT,  offsetof(Small, kind),  "cosine", 0,    0,    "cosine|wsd",  "which" },
};
enum { ROWS = sizeof table / sizeof *table };

/* Runs `child` in its own process; returns the exit code, and in `said` its stderr. */
static int in_child(void (*child)(void *), void *argument, char *said, size_t capacity) {
    char *path = scratch_path("said");
    size_t n = 0;
    int status = 0;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(path, "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
        child(argument);
        fflush(stderr);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) status = 99 << 8;
    FILE *f = fopen(path, "r");
    if (f) { n = fread(said, 1, capacity - 1, f); fclose(f); }
    said[n] = 0;
    unlink(path);
    free(path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
static int split(const char *line, char *argv[16]) {
    static char words[256];
    int n = 0;
    snprintf(words, sizeof words, "program %s", line);
    for (char *word = strtok(words, " "); word && n < 15; word = strtok(NULL, " ")) argv[n++] = word;
    argv[n] = NULL;
    return n;
}
static void parse_line(void *line) {
    Small s;
    char given[ROWS], *argv[16];
    const char *word;
    const Options o = { table, ROWS, &s, given, NULL };
    options_parse(o, split(line, argv), argv, "usage", &word, 1);
}

/* What -cf reads, after a command line that gave -c and -ra. */
static void settings_files(Options o, Small *s) {
    static const struct { const char *text, *says; } files[] = {
        { "# a comment\n\n  kind = wsd  \r\n c=9\n--rate 3\n", "" },  { "k wsd", "" },  { "k = \"wsd\"", "" },  { "", "" },  { "\xef\xbb\xbfk wsd", "" },
        { "kind = wsd\n\nk wsd\n", "line 3: kind (-k) is given twice" },  { "colour = red", "line 1: colour: no such option" },
        { "kind = step", "line 1: -k step: expected one of" },              { "kind\n", "line 1: -k : expected one of" },
    };
    Error e = { 0 };
    const Small before = *s;
    char given[ROWS];
    memcpy(given, o.given, sizeof given);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char text[128];
        const size_t n = (size_t)snprintf(text, sizeof text, "%s", files[i].text);
        const int ok = options_read(o, text, n, &e);
        check(ok == !*files[i].says && (ok || strstr(e.text, files[i].says)), "settings file \"%s\": %s", files[i].text, e.text);
        check(s->count == before.count && s->rate == before.rate, "the command line counts more than the file");
        if (i == 0) check(!strcmp(s->kind, "wsd"), "the file is read, to the end of the value: \"%s\"", s->kind);
        *s = before;
        memcpy(o.given, given, sizeof given);
    }
    Text written = { 0 };
    options_write(o, &written);
    check(strstr(written.at, "\ncount             = 7\n") != NULL, "settings are written as name = value: %s", written.at);
    s->kind = " \"a ";
    written.length = 0;
    options_write(o, &written);
    s->kind = before.kind;
    check(strstr(written.at, "\nkind              = \" \"a \"\n") != NULL, "blanks at the ends are in quotes: %s", written.at);
    char nul[] = "c 8\0x";
    check(!options_read(o, nul, sizeof nul - 1, &e) && strstr(e.text, "binary"), "a binary file is refused: %s", e.text);
    free(written.at);
}

static void options(void) {
    static const struct { const char *line, *says; } wrong[] = {
        { "-x 3", "no such option" },           { "--conut 3", "nearest is -c (--count)" }, { "--rte=1", "nearest is -ra (--rate)" },
        { "-", "" },
        { "-c 3 -c 3", "given twice" },         { "-c 3 --count=4", "given twice" },
        { "-c", "needs a value" },              { "-k wsd --rate", "needs a value" },       { "-c=3", "after a space: -c 3" },
        { "-c3", "after a space: -c 3" },       { "-ra=", "after a space: -ra" },
        { "-c 3x", "a whole number" },          { "-c 3.5", "a whole number" },             { "--count=", "a whole number" },
        { "-c 0", "from 1 to 100" },            { "-c 101", "from 1 to 100" },              { "-c 4294967298", "from 1 to 100" },
        { "-l 9223372036854775808", "whole" },  { "-l -9223372036854775809", "whole" },     { "-l 9000000000000001", "from -1" },
        { "-ra nan", "a number from 0 to 10" }, { "-ra inf", "a number from 0 to 10" },     { "-ra -0.1", "a number from 0 to 10" },
        { "-ra 1e400", "a number from 0 to" },  { "-ra 0,1", "a number from 0 to 10" },     { "-ra ten", "a number from 0 to 10" },
        { "-k step", "one of cosine|wsd" },     { "-k cos", "one of cosine|wsd" },          { "-k cosine|wsd", "one of cosine|wsd" },
        { "one two", "two: not an option" },
    };
    char said[2048];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[64];
        snprintf(line, sizeof line, "%s", wrong[i].line);
        /* "-" is a word: standard input */
        const int dash = !strcmp(line, "-"), code = in_child(parse_line, line, said, sizeof said);
        check(code == (dash ? 0 : EXIT_USAGE) && strstr(said, wrong[i].says),
              "options \"%s\": exit code %d, \"%s\" in \"%.200s\"", wrong[i].line, code, wrong[i].says, said);
    }

    Small s, again;
    char given[ROWS], value[64], *argv[16];
    const char *word = NULL;
    const int n = split("-c 7 out --rate=0.00123456789 -l 9000000000000000", argv);
    const Options o = { table, ROWS, &s, given, NULL }, other = { table, ROWS, &again, given, NULL };
    options_parse(o, n, argv, "usage", &word, 1);
    check(s.count == 7 && s.large == 9000000000000000 && s.rate == 0.00123456789f && !strcmp(s.kind, "cosine")
          && word && !strcmp(word, "out"), "good options are read");
    check(option_given(o, "c") && !option_given(o, "k"),
          "given options are marked as given");
    options_default(o, "c", "9");
    options_default(o, "k", "wsd");
    check(s.count == 7 && !strcmp(s.kind, "wsd"), "a later default only fills what was not given");

    settings_files(o, &s);
    Text json = { 0 };
    Error e;
    options_json(o, &json);
    Json *j = json_parse(json.at, json.length, &e);
    check(j && json_int(json_get(json_root(j), "large"), 0) == s.large
          && !strcmp(json_string(json_get(json_root(j), "kind"), ""), "wsd"), "settings as JSON: %s",
          json.at);
    json_free(j), free(json.at);
    int exact = 1;
    for (int i = 0; i < 2000; i++) {                                    /* a resumed run must have exactly the same rate */
        s.rate = (float)(10 * pow(uniform(), 8));
        option_value(&table[2], &s, value, sizeof value);
        again = s;
        memset(given, 0, sizeof given);
        options_default(other, "ra", value);
        exact &= again.rate == s.rate;
    }
    check(exact, "a number that is written reads back exactly");
    s.rate = 0.1f;
    option_value(&table[2], &s, value, sizeof value);
    check(!strcmp(value, "0.1"), "a number is written with as few digits as possible: %s", value);
}

/* What is given stays; the rest suits the machine and the text. */
static void defaults(void) {
    static const struct { const char *arguments; int gpu; int64_t tokens; const char *model; Updates optimizer; float lr; int batch; } cases[] = {
        { "",                   0, 1000000,   "m4:z1", MUON, 6e-3f, 24 },
        { "",                   0, 100000000, "m4:z1", MUON, 4e-3f, 32 },
        { "",                   1, 1000000,   "m6:z1", MUON, 4e-3f, 64 },
        { "",                   1, 100000000, "m6:c512e128k6f256", MUON, 4e-3f, 64 },
        { "-wo adamw -e d12",   1, 100000000, "d12", ADAMW, 6e-4f, 64 },
        { "-wo adamw -b 3",     0, 1000000,   "m4:z1", ADAMW, 1e-3f, 3 },
        { "-wo adamw",          1, 1000000,   "m6:z1", ADAMW, 2e-3f, 64 },
        { "-l 1e-4 -wo muon",   1, 100000000, "m6:c512e128k6f256", MUON, 1e-4f, 64 },
        { "-e tests",           0, 1000000,   "tests", ADAMW, 1e-3f, 24 },
        { "-e tests",           1, 100000000, "tests", ADAMW, 6e-4f, 64 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64], *argv[8] = { text };
        int argc = 1;
        Settings s;
        snprintf(text, sizeof text, "train_moe %s", cases[i].arguments);
        for (char *at = text; (at = strchr(at, ' ')); *at++ = 0) if (at[1]) argv[argc++] = at + 1;
        settings_parse(&s, argc, argv);
        settings_suit(&s, cases[i].gpu, cases[i].tokens);
        check(!strcmp(s.model, cases[i].model) && s.optimizer == cases[i].optimizer && s.lr == cases[i].lr
              && s.batch == cases[i].batch && s.period == (cases[i].gpu && cases[i].tokens == 100000000 ? 2 : 1),
              "defaults of \"%s\" for %s and %lld tokens: -e %s -wo %d -wp %d -l %g -b %d", cases[i].arguments,
              cases[i].gpu ? "a GPU" : "a CPU", (long long)cases[i].tokens, s.model, s.optimizer, s.period, (double)s.lr, s.batch);
    }
}

/* Of a model of a folder: rate and rows follow the model, batch and warm-up the conversations. What is given stays. */
static void fine_tuning_defaults(void) {
    static const struct { const char *argument; int gpu, channels, context, chats; int64_t rows; float lr; int batch, seq; int64_t steps, warmup; } cases[] = {
        { "-v=9",   1, 2048, 4096,  1, 10000, 2e-5f, 8, 2048, -2, 10 },  { "-v=9",   1, 1024, 1000, 1, 100, 4e-5f, 5, 1000, -2, 4 },
        { "-v=9",   0, 64,   128,   1, 3,     6.4e-4f, 1, 128, -2, 0 },  { "-b=3",   0, 8,    4096, 1, 600, 1e-3f, 3, 512, -2, 10 },
        { "-l=0.5", 1, 2048, 4096,  0, 0,     0.5f, 64, 256, 800, 10 },  { "-x=50",  1, 4096, 4096, 1, 1000, 1e-5f, 8, 2048, 50, 5 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16], *argv[] = { "train_moe", text, NULL };
        Settings s;
        strcpy(text, cases[i].argument);
        argv[2] = strchr(text, '=') + 1;
        argv[2][-1] = 0;
        settings_parse(&s, 3, argv);
        settings_suit(&s, cases[i].gpu, 1000);
        settings_fine_tune(&s, cases[i].gpu, cases[i].channels, cases[i].context, cases[i].chats);
        if (cases[i].chats) settings_fit_rows(&s, cases[i].rows);
        check(s.lr == cases[i].lr && s.batch == cases[i].batch && s.seq == cases[i].seq && s.steps == cases[i].steps
              && s.warmup == cases[i].warmup && !(s.decay > 0) && !(s.dropout > 0),
              "fine-tuning case %zu: -l %g -b %d -t %d -x %lld -u %lld", i, (double)s.lr, s.batch, s.seq, (long long)s.steps, (long long)s.warmup);
    }
}

/* ---- training: what must not change a gradient --------------------------------------------------------- */

static Config config_of(const char *descriptor) { return trainee_config(descriptor, 40, 32); }
/* lean: no master weights, moments in floatX. */
static void open_trainee(Trainee *t, const char *device, const Config *c, TraineeOptions o, int lean) {
    o.gradients = FLOATX;
    o.no_master = lean;
    o.moments = lean ? FLOATX : REAL;
    check(trainee_open(t, device_find(device), c, o), "%s has memory", device);
    t->m.z_coef = 0.001f;
}
static void step(Trainee *t, int number) {
    trainee_send(t, number);
    trainee_step(t);
}

/* Without the balance loss, which is a function of a whole batch; all other losses are sums over tokens. */
static void accumulation(void) {
    static const struct { const char *device; double bound; } devices[] = { { "cpu-f64", 1e-12 }, { "cpu-f32", 1e-5 } };
    enum { B = 8, PARTS = 4, T = 12 };
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    for (int d = 0; d < 2; d++) {
        double *g[2], loss[2];
        size_t n = 0;
        int bad;
        for (int parts = 0; parts < 2; parts++) {
            Trainee t;
            const int count = parts ? PARTS : 1;
            open_trainee(&t, devices[d].device, &c, (TraineeOptions){ .B = B / count, .T = T, .micro_batches = count, .seed = 7 }, 0);
            n = t.m.manifest.total;
            step(&t, 0);
            g[parts] = mem_alloc(n * sizeof **g);
            model_gradients(&t.m, g[parts]);
            loss[parts] = trainee_loss(&t, &bad);
            trainee_close(&t);
        }
        check_error(relative_error(g[1], g[0], n), devices[d].bound,
                    "%s: 4 micro-batches of 2 have the gradients of one batch of 8", devices[d].device);
        check_error(fabs(loss[0] - loss[1]), devices[d].bound, "%s: 4 micro-batches of 2 have its loss", devices[d].device);
        free(g[0]), free(g[1]);
    }
}

/* Elements of one tensor of a kind of the optimizer's state, or, kind -1, of the weights. */
static double *state_of(const Trainee *t, int kind, int i) {
    const Device *dev = t->m.dev;
    const Tensor *tensor = &t->m.manifest.at[i];
    double *x = mem_alloc(tensor->count * sizeof *x);
    if (kind < 0) dev->to_double(x, model_weight(&t->m, tensor), tensor->count);
    else dev->reals_to_double(x, real_at(&t->m, optimizer_part(&t->o, kind), optimizer_place(optimizer_segment(&t->o, &t->m, i), kind)), tensor->count);
    return x;
}
/* With Muon, tensors that are no matrices have AdamW's m and v, and move by as much as without, times the rate of their kind. An
 * element of a matrix moves by 0.2 times its rate, or less where the gradient has less than full rank, and by no more than that
 * in any direction. */
static double moved(const Tensor *t, const double *after, double decay, double lr) {
    double squares = 0, *before = mem_alloc(t->count * sizeof *before);
    manifest_initial(t, 3, 0, t->count, 0, before);
    for (size_t n = 0; n < t->count; n++) squares += pow(after[n] - (float)before[n] * (1 - lr * decay), 2);
    free(before);
    return sqrt(squares / (double)t->count) / lr;
}
static void muon_and_adamw(void) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    const double lr = 3e-3;
    Trainee t[2];
    int others = 0, matrices = 0;
    for (int i = 0; i < 2; i++) {
        open_trainee(&t[i], "cpu-f32", &c, (TraineeOptions){ .B = 8, .T = 16, .seed = 3, .momentum = i ? 0.95f : 0 }, 0);
        step(&t[i], 0);
    }
    check(optimizer_count(&t[1].o, &t[1].m, 1) < optimizer_count(&t[0].o, &t[0].m, 1) / 4, "Muon's tensors have no v");
    for (int i = 0; i < t[0].m.manifest.count; i++) {
        const Tensor *tensor = &t[0].m.manifest.at[i];
        double *x[2][3];
        const int has = optimizer_has(&t[1].o, &t[1].m, 1, i), kinds = has ? 3 : 1;
        for (int j = 0; j < 2; j++) for (int k = 0; k < kinds; k++) x[j][k] = state_of(&t[j], k - 1, i);
        const Segment part = optimizer_segment(&t[1].o, &t[1].m, i);
        const double rate = lr * (double)part.rate, size = moved(tensor, x[1][0], 0.1 * (double)part.decay, rate);
        if (has) {
            const double alone = moved(tensor, x[0][0], 0.1 * (double)part.decay, lr);
            check(fabs(size - alone) < 1e-4 * alone, "%s moves by %.6f of its rate, with AdamW alone by %.6f", tensor->name, size, alone);
            int same = 1;
            for (int k = 1; k < 3; k++) same &= !memcmp(x[0][k], x[1][k], tensor->count * sizeof **x[0]);
            check(same, "%s: m and v are AdamW's", tensor->name);
            others++;
        } else {
            check(size > 0.05 && size < 0.25, "%s: elements move by %.3f of their rate", tensor->name, size);
            matrices++;
        }
        for (int j = 0; j < 2; j++) for (int k = 0; k < kinds; k++) free(x[j][k]);
    }
    int count = 0;                                          /* keys, values; 4 queries, 4 outputs; 4 gates, ups and downs */
    for (int i = 0; i < t[1].o.muon.shape_count; i++) count += t[1].o.muon.shapes[i].count;
    check(count == 2 * (2 + 4 + 4 + 3 * 4), "each expert's matrix is one, and so is each half of two that are stacked: %d", count);
    check(matrices == 2 * 5 && others == 1 + 2 * 4 + 1 + 2 * 2, "%d tensors are Muon's, %d AdamW's", matrices, others);
    for (int i = 0; i < 2; i++) trainee_close(&t[i]);
}

/* Does each expert move if it has its turn, and only then? The first time by PERIOD times as much as without turns, and all have a momentum. */
static void experts_in_turn(void) {
    enum { PERIOD = 3, UPDATES = 4 };
    const Config c = config_of("m2:c16h4d4e5k2f12a4x2n0");
    const Device *dev = device_find("cpu-f32");
    Trainee t, plain;
    int wrong = 0, moved = 0, kept = 0, still = 0;
    double apart = 0, whole = 0;
    open_trainee(&t, "cpu-f32", &c, (TraineeOptions){ .B = 8, .T = 16, .seed = 3, .momentum = 0.9f, .period = PERIOD }, 0);
    open_trainee(&plain, "cpu-f32", &c, (TraineeOptions){ .B = 8, .T = 16, .seed = 3, .momentum = 0.9f }, 0);
    step(&plain, 1);
    const size_t all = t.m.manifest.total;
    float *before = mem_alloc(all * sizeof *before), *after = mem_alloc(all * sizeof *after), *usual = mem_alloc(all * sizeof *usual);
    dev->download(usual, plain.m.params, all * sizeof *usual);
    for (int update = 1; update <= UPDATES; update++) {
        dev->download(before, t.m.params, all * sizeof *before);
        step(&t, update);
        dev->download(after, t.m.params, all * sizeof *after);
        for (int i = 0; i < t.m.manifest.count; i++) {
            const Tensor *x = &t.m.manifest.at[i];
            const int experts = muon_updates(&t.o, x) && x->rank > 2, parts = experts ? x->shape[0] : 1;
            const size_t each = x->count / (size_t)parts;
            for (int e = 0; e < parts; e++) {
                const size_t from = x->offset + (size_t)e * each;
                const int due = !experts || e % PERIOD == update % PERIOD, same = !memcmp(before + from, after + from, each * sizeof *after);
                wrong += due == same;
                if (experts && due) moved++;
                else if (experts) kept++;
                for (size_t n = from; experts && due && update == 1 && n < from + each; n++)
                    apart += pow((after[n] - before[n]) - PERIOD * (usual[n] - before[n]), 2), whole += pow(after[n] - before[n], 2);
            }
            if (!experts || update > 1) continue;
            double *momentum = state_of(&t, 0, i);
            for (size_t n = 0; n < x->count; n++) still += momentum[n] == 0;
            free(momentum);
        }
    }
    check(!wrong && moved && kept > moved, "what has its turn moves, %d times, and no other expert, %d times: %d are wrong", moved, kept, wrong);
    check(whole > 0 && apart < 1e-6 * whole, "by as many times as much: %.2g of it is not", sqrt(apart / whole));
    check(still < 100, "every expert has a momentum after one update; %d elements are 0", still);
    free(before), free(after), free(usual), trainee_close(&t), trainee_close(&plain);
}

static void threads(float momentum) {
#ifdef _OPENMP
    static const char *const devices[] = { "cpu-f32", "cpu-bf16" };
    const int usual = omp_get_max_threads();
    for (int d = 0; d < 2; d++) {
        const Config c = config_of("m2:c48h4e6k2f40a4x2n0");
        uint64_t hash[3];
        for (int n = 1; n <= 3; n++) {
            Trainee t;
            omp_set_num_threads(n);
            open_trainee(&t, devices[d], &c, (TraineeOptions){ .B = 4, .T = 32, .seed = 11, .momentum = momentum }, 0);
            t.m.balance_coef = 0.01f;
            for (int s = 0; s < 20; s++) step(&t, s);
            hash[n - 1] = trainee_hash(&t);
            trainee_close(&t);
        }
        check(hash[0] == hash[1] && hash[0] == hash[2],
              "%s: 20 steps%s give the same bits with 1, 2 and 3 threads", devices[d], momentum > 0 ? " of Muon" : "");
    }
    omp_set_num_threads(usual);
#else
    (void)momentum;
    skip("built without OpenMP: there is only one thread");
#endif
}

/* ---- replaying: a device that logs its calls ------------------------------------------- */

static char asked[64];
static void note(const char *what) { strncat(asked, what, sizeof asked - strlen(asked) - 1); }
static void work(void *context) { note(context); }
static const char *refuses_at;                              /* begin, end, or nowhere */
static const char *fake_begin(void) { note("("); return strcmp(refuses_at, "begin") ? NULL : "too old"; }
static Recording *fake_end(const char **why) {
    note(")");
    *why = "too new";
    return strcmp(refuses_at, "end") ? (Recording *)asked : NULL;
}
static void fake_replay(const Recording *r) { note(r ? "r" : "?"); }
static void fake_free(Recording *r) { note(r ? "f" : "?"); }
static void expect(Replay *r, const Device *dev, const uint64_t *states, const char *expected, const char *what) {
    asked[0] = 0;
    for (; *states; states++) replay_run(r, dev, *states, work, "w");
    check(!strcmp(asked, expected), "%s: calls %s, expected %s", what, asked, expected);
}
static int refusals;
static void count_refusal(const char *text) { refusals += strstr(text, "fake could not be recorded (too") != NULL; }
static void replaying(void) {
    static const uint64_t same[] = { 5, 5, 5, 5, 0 }, changes[] = { 5, 5, 7, 7, 7, 0 };
    Device dev = { .name = "fake", .record_begin = fake_begin, .record_end = fake_end, .replay = fake_replay,
                   .record_free = fake_free }, plain = { .name = "plain" };
    Replay r = { 0 }, off = { .off = 1 }, begin = { 0 }, end = { 0 }, cpu = { 0 };
    refuses_at = "nowhere";
    expect(&r, &dev, same, "w(w)rrr", "once plainly, once recorded, then replayed");
    expect(&r, &dev, changes, "rrfw(w)rr", "in another state the recording is dropped and made again");
    asked[0] = 0;
    replay_free(&r, &dev);
    check(!strcmp(asked, "f") && !r.recording, "a recording is freed");
    expect(&off, &dev, same, "wwww", "recording is off");
    expect(&cpu, &plain, same, "wwww", "a device that cannot record");
    warn_hook(count_refusal);
    refuses_at = "begin";
    expect(&begin, &dev, same, "w(www", "recording is refused: work is queued plainly, and recording is not tried again");
    refuses_at = "end";
    expect(&end, &dev, same, "w(w)www", "work that could not be recorded is queued plainly");
    warn_hook(NULL);
    check(refusals == 2, "each refusal is reported once (above)");
}

/* ---- checkpoints --------------------------------------------------------------------------------------- */

static Progress progress_at(int64_t step) {
    Progress p = { .step = step, .samples = step * 12345678901, .tokens = step * 98765432109,
                   .updates = (int)step - 2, .bad_steps = 1, .seconds = uniform() * 1e5,
                   .best = { 1 + uniform(), step - 3, 1000 + step, 77 }, .seed = 0xfedcba9876543210u,
                   .data = 0x8000000000000001u };
    for (int i = 0; i < 200; i++) { window_score(&p.loss, normal()); if (i < 77) window_score(&p.norm, exp(normal())); }
    return p;
}
static int same_progress(const Progress *a, const Progress *b) {
    return a->step == b->step && a->samples == b->samples && a->tokens == b->tokens
        && a->updates == b->updates && a->bad_steps == b->bad_steps
        && a->seconds == b->seconds && a->best.loss == b->best.loss && a->best.step == b->best.step && a->best.tokens == b->best.tokens && a->best.length == b->best.length
        && a->seed == b->seed && a->data == b->data
        && !memcmp(&a->loss, &b->loss, sizeof a->loss) && !memcmp(&a->norm, &b->norm, sizeof a->norm);
}
static int progress_usable(const JsonValue *run, Error *e) {
    Progress p;
    return progress_from_json(run, &p, e);
}
static int save_kept(const char *folder, const Trainee *t, const Progress *p, const char *options, Keep keep, Error *e) {
    Text json = { 0 };
    progress_to_json(p, t->m.dev->name, &json);
    const Snapshot s = { .model = &t->m, .optimizer = &t->o, .step = p->step, .progress = json.at, .options = options };
    const Saved saved = checkpoint_save(folder, &s, keep, e);
    free(json.at);
    return saved == SAVED_ALL;
}
static int save_with(const char *folder, const Trainee *t, const Progress *p, const char *options, int keep, int64_t major, Error *e) {
    return save_kept(folder, t, p, options, (Keep){ keep, 0, major }, e);
}
static int save(const char *folder, const Trainee *t, int64_t step, int keep, int64_t major) {
    Error e = { 0 };
    const Progress p = progress_at(step);
    const int ok = save_with(folder, t, &p, "{\"lr\": 0.001}", keep, major, &e);
    check(ok, "step %lld is saved: %s", (long long)step, e.text);
    return ok;
}
static char *step_file(const char *folder, int64_t step, const char *name) {
    return text_format("%s/state/step-%08lld/%s", folder, (long long)step, name);
}

/* A checkpoint whose optimizer state has other types than the reader's: converted, with a warning. */
static int conversions;
static void count_conversion(const char *text) {
    conversions += strstr(text, "in BF16 and was converted") != NULL || strstr(text, "in F32 and was converted") != NULL
                || strstr(text, "no master copy") != NULL || strstr(text, "which is dropped") != NULL;
}
static void conversion(void) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    const Device *dev = device_find("cpu-bf16");
    for (int lean = 0; lean < 2; lean++) {
        char *folder = text_format("%s/convert-%d", scratch(), lean);
        const Progress p = progress_at(7);
        Trainee a, b;
        Error e = { 0 };
        open_trainee(&a, "cpu-bf16", &c, (TraineeOptions){ .B = 2, .T = 8, .seed = 1 }, lean);
        open_trainee(&b, "cpu-bf16", &c, (TraineeOptions){ .B = 2, .T = 8, .seed = 2 }, !lean);
        const size_t n = a.m.manifest.total;
        double *v[2] = { mem_alloc(n * sizeof **v), mem_alloc(n * sizeof **v) };
        for (int s = 0; s < 5; s++) step(&a, s);
        check(save_with(folder, &a, &p, "{}", 2, 0, &e), "saved %s", e.text);
        Checkpoint *from = checkpoint_open(folder, progress_usable, &e);
        conversions = 0;
        warn_hook(count_conversion);
        check(from && checkpoint_load(from, &b.m, &b.o, &e), "loaded with other types: %s", e.text);
        warn_hook(NULL);
        check(conversions == 2, "moments are converted and a master copy is made or dropped; %d warnings (above)", conversions);
        for (int i = 0; i < 2; i++) {
            const Trainee *t = i ? &b : &a;
            if (t->o.moments == REAL) dev->reals_to_double(v[i], t->o.v, n);
            else dev->to_double(v[i], t->o.v, n);
        }
        check_error(relative_error(v[1], v[0], n), lean ? 0 : 0x1p-8, "v is restored, %s", lean ? "exactly" : "rounded");
        checkpoint_close(from);
        trainee_close(&a), trainee_close(&b), free(v[0]), free(v[1]), free(folder);
    }
}

static void round_trip(const char *device, int lean, float momentum) {
    const Config c = config_of("m2:c16h4d4e4k2f12a4x2n0");
    char *folder = text_format("%s/run-%s-%d%s", scratch(), device, lean, momentum > 0 ? "-muon" : "");
    const Device *dev = device_find(device);
    Trainee a, b;
    Error e = { 0 };
    Config read;
    Progress p = progress_at(42), q;
    double bias[16], back[16];
    open_trainee(&a, device, &c, (TraineeOptions){ .B = 2, .T = 8, .seed = 1, .momentum = momentum }, lean);
    for (int s = 0; s < 5; s++) step(&a, s);
    for (int i = 0; i < 16; i++) bias[i] = (float)normal();
    dev->reals_from_double(a.m.bias, bias, 16);
    check(save_with(folder, &a, &p, "{\"lr\": 0.001, \"train\": \"a \\\"b\\\"\"}", 2, 0, &e), "%s: saved %s", device, e.text);

    Checkpoint *from = checkpoint_open(folder, progress_usable, &e);
    check(from != NULL, "%s: opened %s", device, e.text);
    if (from) {
        open_trainee(&b, device, &c, (TraineeOptions){ .B = 2, .T = 8, .seed = 99, .momentum = momentum }, lean);     /* other weights, to be overwritten */
        check(trainee_hash(&a) != trainee_hash(&b), "%s: before loading they differ", device);
        read = checkpoint_config(from);
        check(config_same(&read, &c, &e), "%s: the configuration is restored", device);
        check(checkpoint_load(from, &b.m, &b.o, &e), "%s: loaded %s", device, e.text);
        check(progress_from_json(checkpoint_run(from), &q, &e), "%s: %s", device, e.text);
        dev->reals_to_double(back, b.m.bias, 16);
        check(trainee_hash(&a) == trainee_hash(&b), "%s: weights, moments and master copy are restored bit for bit", device);
        check(!memcmp(bias, back, sizeof bias), "%s: the routers' biases are restored bit for bit", device);
        check(same_progress(&p, &q), "%s: and the progress with its windows", device);
        check(b.o.updates == p.updates, "%s: Adam's clock goes on", device);
        check(!strcmp(json_string(json_get(checkpoint_options(from), "train"), ""), "a \"b\""),
              "%s: the options are restored", device);
        b.o.updates = a.o.updates;
        step(&a, 5);
        step(&b, 5);
        check(trainee_hash(&a) == trainee_hash(&b), "%s: the next step is the same", device);
        trainee_close(&b);
    }
    checkpoint_close(from);
    trainee_close(&a), free(folder);
}

/* Overwrites, cuts or removes a file of a step folder; or its run.json. */
static void damage(const char *folder, int64_t step_number, int kind) {
    static const char *const file[] = { "model.safetensors", "optimizer.safetensors", "run.json",
                                        "optimizer.safetensors" };
    char *path = step_file(folder, step_number, file[kind]), byte;
    const int fd = open(path, O_RDWR);
    struct stat s;
    int ok = fd >= 0 && !fstat(fd, &s);
    if (ok && kind == 0)
        ok = pread(fd, &byte, 1, s.st_size - 5) == 1
            && (byte ^= 16, pwrite(fd, &byte, 1, s.st_size - 5) == 1);
    if (ok && kind == 1) ok = !ftruncate(fd, s.st_size - 1);
    if (ok && kind == 2) ok = !ftruncate(fd, s.st_size / 2);
    if (ok && kind == 3) ok = !unlink(path);
    if (fd >= 0) close(fd);
    check(ok, "%s could be damaged", path);
    free(path);
}

static void fallback(void) {
    static const char *const what[] = { "a flipped bit in the weights",
                                        "a lost byte of the optimizer's state", "half a run.json",
                                        "a missing file" };
    const Config c = config_of("m1:c16h4d4e4k2f12a4x2n0");
    Trainee t;
    Error e;
    open_trainee(&t, "cpu-f32", &c, (TraineeOptions){ .B = 1, .T = 8, .seed = 1 }, 0);
    for (int kind = 0; kind < 4; kind++) {
        char *folder = text_format("%s/damaged-%d", scratch(), kind);
        for (int i = 1; i <= 3; i++) save(folder, &t, 10 * i, 3, 0);
        damage(folder, 30, kind);
        damage(folder, 20, (kind + 1) % 4);
        const int stderr_copy = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY);   /* without its warnings */
        fflush(stderr);
        dup2(null, STDERR_FILENO);
        Checkpoint *from = checkpoint_open(folder, progress_usable, &e);
        check(from && checkpoint_load(from, &t.m, &t.o, &e) && json_int(json_get(checkpoint_run(from), "step"), 0) == 10,
              "%s: the newest intact checkpoint is used", what[kind]);
        checkpoint_close(from);
        damage(folder, 10, kind);
        from = checkpoint_open(folder, progress_usable, &e);
        check(!from && strstr(e.text, "step-00000010"), "%s in all checkpoints: refused, naming the file: %s",
              what[kind], from ? "" : e.text);
        checkpoint_close(from);
        fflush(stderr);
        dup2(stderr_copy, STDERR_FILENO);
        close(stderr_copy);
        close(null);
        save(folder, &t, 30, 3, 0);                       /* the same step again replaces the damaged one */
        check((from = checkpoint_open(folder, progress_usable, &e)) != NULL, "%s: saving again replaces the damaged checkpoint", what[kind]);
        checkpoint_close(from);
        free(folder);
    }
    trainee_close(&t);
}

static int has_step(const char *folder, int64_t number) {
    char *path = step_file(folder, number, "run.json");
    const int there = is_file(path);
    free(path);
    return there;
}

static void pruning(void) {
    const Config c = config_of("m1:c16h4d4e4k2f12a4x2n0");
    char *folder = scratch_path("pruned"), *top = text_format("%s/model.safetensors", folder);
    char *stale = text_format("%s/state/.tmp-step-3", folder);
    Error e;
    struct stat s;
    Trainee t;
    open_trainee(&t, "cpu-f32", &c, (TraineeOptions){ .B = 1, .T = 8, .seed = 1 }, 0);
    check(checkpoint_exists(folder, &e) == HOLDS_NOTHING, "a missing folder holds nothing");
    check(folder_make(stale, &e) && checkpoint_exists(folder, &e) == HOLDS_NOTHING, "a folder with a partial save holds nothing");
    check(checkpoint_lock(folder, &e) && !is_folder(stale), "the temporary folder of a killed save is deleted by the next trainer");
    for (int i = 1; i <= 9; i++) save(folder, &t, i, 2, 4);
    int right = 1;
    for (int i = 1; i <= 9; i++) right &= has_step(folder, i) == (i >= 8 || i == 4);
    check(right, "of nine checkpoints the two newest and every fourth are kept");
    check(!stat(top, &s) && s.st_nlink == 2, "the newest weights have a second link at the top of the folder");
    check(checkpoint_exists(folder, &e) == HOLDS_STATE, "the folder holds a run");
    save(folder, &t, 10, 1, 0);
    check(has_step(folder, 10) && !has_step(folder, 9) && !has_step(folder, 8) && !has_step(folder, 4),
          "a single checkpoint can be kept");
    check(checkpoint_save_best(folder, &t.m, 10, NULL, NULL, &e), "the best weights are saved");
    check(checkpoint_clear(folder, &e) && checkpoint_exists(folder, &e) == HOLDS_NOTHING && !is_file(top),
          "a run can be deleted, and another starts there even if it is killed before its first save");

    for (int i = 1; i <= 9; i++) {                                   /* saved by time between steps that are multiples of 3 */
        const Progress p = progress_at(i == 9 ? 10 : i);
        check(save_kept(folder, &t, &p, "{}", (Keep){ 2, 3, 0 }, &e), "saved: %s", e.text);
    }
    right = 1;
    for (int i = 1; i <= 10; i++) right &= has_step(folder, i) == (i == 3 || i == 6 || i == 10);
    check(right, "the two newest multiples of -n stay, and of the others the newest alone");
    checkpoint_clear(folder, &e);

    double bad = NAN;                                                /* weights that are not finite must replace nothing */
    save(folder, &t, 11, 2, 0);
    t.m.dev->from_double(t.m.p.final_norm, &bad, 1);
    const Progress p = progress_at(12);
    check(!save_with(folder, &t, &p, "{}", 2, 0, &e)
          && strstr(e.text, "model.norm.weight"), "weights that are not finite are not saved: %s", e.text);
    check(has_step(folder, 11) && !has_step(folder, 12) && is_file(top), "the previous checkpoint is kept");
    trainee_close(&t), free(folder), free(top), free(stale);
}

static void try_lock(void *folder) {
    Error e;
    if (checkpoint_lock(folder, &e)) return;
    fail_with(&e, EXIT_DISK);
}
static void lock(void) {
    char *folder = scratch_path("locked"), *own = text_format("process %ld", (long)getpid()), said[512];
    Error e;
    check(in_child(try_lock, folder, said, sizeof said) == 0, "a free folder can be locked");
    check(checkpoint_lock(folder, &e), "the lock of a process that has ended is free");
    check(in_child(try_lock, folder, said, sizeof said) == EXIT_USAGE && strstr(said, "in use") && strstr(said, own),
          "a second trainer is refused, naming the first: %s", said);
    char *file = scratch_path("not-a-folder");
    check(file_write(file, "x", 1, &e) && !checkpoint_lock(file, &e) && !e.code && strstr(e.text, "not a folder"),
          "a file cannot be locked like a folder");
    free(folder), free(own), free(file);
}

/* ---- config.json --------------------------------------------------------------------------------------- */

static int from_text(Config *c, const char *text, Error *e) {
    Json *j = json_parse(text, strlen(text), e);
    const int ok = j && config_from_json(c, json_root(j), e);
    json_free(j);
    return ok;
}

static void configs(void) {
    static const struct { const char *descriptor; int scores, activation, tied; double eps; Family family; } kinds[] = {
        { "m2:c16h4d4e4k2f12a4x2n0",   TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_JETMOE },
        { "m3:c24h6d8e6k3f10a6x3n0",   TOPK_SOFTMAX, SWIGLU, 0, 1e-5, FAMILY_JETMOE },
        { "m2:c16h4q2e8k2f12a1n0",     TOPK_SOFTMAX, SWIGLU, 0, 1e-5, FAMILY_MIXTRAL },
        { "m2:c16h4d6q1e8k3f12a1n0",   TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_MIXTRAL },
        { "d2:c16h4q2f20n0",           TOPK_SOFTMAX, SWIGLU, 0, 1e-5, FAMILY_LLAMA },
        { "d5:c16h2d10f20n0",          TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_LLAMA },
        { "m2:c16h4d4e4k2f12a4x2n0",   SIGMOID_TOPK, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "m2:c16h4d4e4k2f12a4x2n0",   TOPK_SOFTMAX, GELU,   1, 1e-6, FAMILY_SMOE },
        { "m2:c16h4d4e8k2f12a4x2n0",   SOFTMAX_TOPK, RELU2,  0, 1e-6, FAMILY_SMOE },
        { "m2:c16h4q2e6k2f8a1s2n0",    SIGMOID_TOPK, SWIGLU, 0, 1e-6, FAMILY_SMOE },
        { "u3:c16h4d4e4k2f12a4x2n0",   TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "m2:c16h4d4e1f12a4x2n0",     TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "d2:c16h4f20n0",             TOPK_SOFTMAX, RELU2,  1, 1e-6, FAMILY_SMOE },
        { "d2:c16h4f20n1",           TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_QWEN3 },
        { "m2:c16h4q2e8k2f12a1n1",   SOFTMAX_TOPK, SWIGLU, 1, 1e-6, FAMILY_QWEN3_MOE },
        { "m2:c16h4q2e8k2f12a1n2",   SOFTMAX_TOPK, SWIGLU, 0, 1e-6, FAMILY_OLMOE },
        { "m2:c16h4q2e8k2f12a1s2n0",   TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_GRANITE_SHARED },
        { "d3:c16h6d8q2f12n0",         TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_MISTRAL },     /* 6 heads do not divide 16 channels */
        { "d2:c16h4f20l15v2n0",        TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_SMOE },
        { "m2:c16h4q2e8k2f12a1w250n0", SIGMOID_EACH, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "m2:c16h6d4q2e4k2f12a4x3z2i75y100n0", TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_SMOE },
        { "d2:c16h4f20z1i100y50n0",    TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_LLAMA },     /* only how it began */
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        Config c = config_of(kinds[i].descriptor), back;
        Error e = { 0 };
        Text json = { 0 };
        char was[128], is[128];
        c.scores = kinds[i].scores;
        c.activation = kinds[i].activation;
        c.tied = kinds[i].tied;
        c.final_eps = kinds[i].eps;
        if (!(kinds[i].family & (FAMILY_JETMOE | FAMILY_SMOE))) c.norm_eps = c.final_eps;
        c.rope_theta = 12345.678;
        config_to_json(&c, "BF16", 1, &json);
        const int read = from_text(&back, json.at, &e);
        if (kinds[i].family == FAMILY_GRANITE_SHARED)       /* nothing: 1 / sqrt(4), and not 0 */
            check(strstr(json.at, "\"attention_multiplier\": 0.5,") != NULL, "%s: its scores have the usual scale", kinds[i].descriptor);
        check(config_family(&c) == kinds[i].family, "%s is a %s", kinds[i].descriptor, family_name(kinds[i].family));
        check(read && config_same(&c, &back, &e), "%s comes back from config.json: %s", kinds[i].descriptor, e.text);
        if (read) {
            config_descriptor(&c, was);
            config_descriptor(&back, is);
            check(!strcmp(was, is) && back.output_bias == c.output_bias && back.norm_eps == c.norm_eps
                  && config_family(&back) == config_family(&c), "%s comes back in every detail: %s",
                  kinds[i].descriptor, is);
        }
        free(json.at);
    }
}

/* What is refused, and what the message names. */
#define LATENTS "\"moe_intermediate_size\": 8, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_group\": 1, \"topk_group\": 1, " \
                "\"first_k_dense_replace\": 1, \"num_key_value_heads\": 4, "
static const struct { const char *type, *extra, *names; } wrong[] = {
    { "mixtral", "\"num_key_value_heads\": 4, \"attention_bias\": true",                          "attention_bias" },
    { "llama",   "\"mlp_bias\": true",                                "mlp_bias" },
    { "llama",   "\"quantization_config\": {\"bits\": 4}",            "quantization_config" },
    { "llama",   "\"clip_qkv\": 8.0",                                 "clip_qkv" },
    { "llama",   "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}",          "dynamic" },
    { "llama",   "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}",      "low_freq_factor" },
    { "llama",   "\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 1e4}", "factor" },
    { "llama",   "\"partial_rotary_factor\": 0.5",                   "partial_rotary_factor" },
    { "smoe",    "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}",           "linear" },
    { "olmoe",   "\"num_local_experts\": 1",                        "two experts" },
    { "mixtral", "\"num_local_experts\": 1, \"num_key_value_heads\": 4, \"num_experts_per_tok\": 1", "two experts" },
    { "qwen2_moe", "\"moe_intermediate_size\": 8",                  "shared_expert_intermediate_size" },
    { "qwen3",   "\"num_key_value_heads\": 4, \"use_sliding_window\": true, \"sliding_window\": 8, "
                 "\"layer_types\": [\"full_attention\", \"chunked_attention\"]", "chunked_attention" },
    { "qwen3",   "\"num_key_value_heads\": 4, \"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"sliding_attention\"]", "no \"sliding_window\"" },
    { "qwen3",   "\"num_key_value_heads\": 4, \"use_sliding_window\": true, \"layer_types\": [\"full_attention\"]", "of layer 1" },
    { "mixtral", "\"num_key_value_heads\": 4, \"sliding_window\": -1", "sliding_window" },
    { "mixtral", "\"num_key_value_heads\": 4, \"sliding_window\": 3.5", "sliding_window" },
    { "dots1",   "\"moe_intermediate_size\": 8, \"n_shared_experts\": 1, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
                 "\"num_key_value_heads\": 4, \"n_group\": 3, \"topk_group\": 2", "3 groups" },
    { "ernie4_5_moe", "\"moe_intermediate_size\": 8, \"use_bias\": true", "use_bias" },
    { "ernie4_5_moe", "\"moe_intermediate_size\": 8, \"moe_layer_start_index\": 5", "no layer" },
    { "glm4_moe", "\"moe_intermediate_size\": 8, \"num_key_value_heads\": 4, \"partial_rotary_factor\": 0.3", "partial_rotary_factor" },
    { "granitemoe", "\"residual_multiplier\": 0.0",                 "residual_multiplier" },
    { "llama",   "\"hidden_act\": \"gelu\"",                          "hidden_act" },             /* exact GELU; ours is the tanh form */
    { "llama",   "\"hidden_act\": \"gelu_pytorch_tanh\"",             "hidden_act" },             /* gated GELU: not supported */
    { "mixtral", "\"hidden_act\": \"relu\"",                          "hidden_act" },
    { "smoe",    "\"router_scores\": \"softmax\"",                    "router_scores" },
    { "smoe",    "\"num_attention_experts\": 4, \"num_always_on_attention_experts\": 1", "every token has were removed" },
    { "gpt2",    "\"n_embd\": 16",                                    "gpt2" },
    { "gpt_oss", "\"num_local_experts\": 4, \"num_key_value_heads\": 2, \"swiglu_limit\": 6.0", "swiglu_limit" },
    { "gpt_oss", "\"num_local_experts\": 4, \"num_key_value_heads\": 2, \"swiglu_alpha\": 1.0", "swiglu_alpha" },
    { "gpt_oss", "\"num_local_experts\": 4, \"num_key_value_heads\": 2, \"quantization_config\": {\"quant_method\": \"gptq\"}", "gptq" },
    { "qwen3_moe", "\"num_experts\": 8, \"num_key_value_heads\": 2, \"moe_intermediate_size\": 8, "
                   "\"quantization_config\": {\"quant_method\": \"mxfp4\"}", "quantized weights" },
    { "gpt_oss", "\"num_local_experts\": 1, \"num_experts_per_tok\": 1, \"num_key_value_heads\": 2", "two experts" },
    { "kimi_k2", "\"n_group\": 1",                                    "model_type deepseek_v3" },
    { "deepseek_v3", LATENTS "\"quantization_config\": {\"quant_method\": \"fp8\"}", "quantization_config" },
    { "deepseek_v3", LATENTS "\"attention_bias\": true",              "attention_bias" },
    { "deepseek_v3", LATENTS "\"scoring_func\": \"softmax\"",         "scoring_func" },
    { "deepseek_v3", LATENTS "\"topk_method\": \"greedy\"",           "topk_method" },
    { "deepseek_v3", LATENTS "\"moe_layer_freq\": 2",                 "moe_layer_freq" },
    { "deepseek_v3", LATENTS "\"v_head_dim\": 193",                   "values of 193" },
    { "deepseek_v3", LATENTS "\"qk_rope_head_dim\": 63",              "even" },
    { "deepseek_v3", LATENTS "\"qk_nope_head_dim\": 0",               "64 of 64" },
    { "deepseek_v3", LATENTS "\"kv_lora_rank\": 0",                   "latent of keys and values" },
    { "deepseek_v3", LATENTS "\"kv_lora_rank\": 16777217",            "kv_lora_rank" },
    { "deepseek_v3", LATENTS "\"q_lora_rank\": 0",                    "null is none" },
    { "deepseek_v3", LATENTS "\"partial_rotary_factor\": 0.5",        "partial_rotary_factor" },
    { "deepseek_v3", "\"moe_intermediate_size\": 8, \"n_group\": 1, \"topk_group\": 1, \"num_key_value_heads\": 2", "2 key/value heads and 4" },
    { "deepseek_v2", LATENTS "\"norm_topk_prob\": true",              "norm_topk_prob" },
    { "deepseek_v2", LATENTS "\"topk_method\": \"noaux_tc\"",         "greedy and group_limited_greedy" },
    { "llama",   "\"num_key_value_heads\": 3",                        "3" },
    { "llama",   "\"head_dim\": 5",                                   "5" },
    { "mixtral", "\"num_key_value_heads\": 4, \"num_local_experts\": 4, \"num_experts_per_tok\": 5", "5 of 4" },
    { "mixtral", "\"num_local_experts\": 2.5",                        "num_local_experts" },
    { "mixtral", "\"num_local_experts\": -2",                         "num_local_experts" },
    { "mixtral", "\"num_local_experts\": 4000000000000",              "num_local_experts" },
    { "smoe",    "\"shared_intermediate_size\": 1073741824",          "shared_intermediate_size" },
    { "llama",   "\"num_key_value_heads\": 33554432",                 "num_key_value_heads" },
    { "llama",   "\"tie_word_embeddings\": 1",                        "tie_word_embeddings" },
    { "llama",   "\"rms_norm_eps\": -1.0",                            "epsilon" },
    { "llama",   "\"rms_norm_eps\": \"small\"",                       "rms_norm_eps" },
    { "jetmoe",  "\"kv_channels\": 4, \"num_key_value_heads\": 1, \"num_local_experts\": 1, \"num_experts_per_tok\": 1", "two experts" },
    { "jetmoe",  "\"num_key_value_heads\": 1",                        "kv_channels" },
};

static void refused_configs(void) {
#define SIZES "\"vocab_size\": 32, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"intermediate_size\": 8, " \
              "\"num_attention_heads\": 4, \"max_position_embeddings\": 64"
    static const char *const harmless[] = { "\"attention_bias\": false", "\"rope_scaling\": null",
                                            "\"sliding_window\": null", "\"sliding_window\": 64",
                                            "\"rope_parameters\": {\"rope_type\": \"default\"}",
                                            "\"quantization_config\": null", "\"hidden_act\": \"silu\"" };
    Config c;
    Error e;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *text = text_format("{\"model_type\": \"%s\", " SIZES ", %s}", wrong[i].type, wrong[i].extra);
        e.text[0] = 0;
        const int read = from_text(&c, text, &e);
        check(!read && strstr(e.text, wrong[i].names), "%s with %s is refused, naming the key: %s", wrong[i].type,
              wrong[i].extra, read ? "it was read" : e.text);
        free(text);
    }
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        char *text = text_format("{\"model_type\": \"llama\", " SIZES ", %s}", harmless[i]);
        check(from_text(&c, text, &e), "llama with %s is accepted: %s", harmless[i], e.text);
        free(text);
    }
    static const char *const layers[] = { "10001", "1000000000" };     /* 10^9 once took 7 GB and 25 s */
    for (int i = 0; i < 2; i++) {
        char *text = text_format("{\"model_type\": \"llama\", \"vocab_size\": 32, \"hidden_size\": 16, \"num_hidden_layers\": %s, "
                                 "\"intermediate_size\": 8, \"num_attention_heads\": 4}", layers[i]);
        check(!from_text(&c, text, &e) && strstr(e.text, "layers"), "%s layers are refused: %s", layers[i], e.text);
        free(text);
    }
    check(!from_text(&c, "{\"model_type\": \"llama\", \"vocab_size\": 16777216, \"hidden_size\": 16777216, \"num_hidden_layers\": 10000, "
                         "\"intermediate_size\": 8, \"num_attention_heads\": 4}", &e), "a model whose size overflows is refused: %s", e.text);
    check(!from_text(&c, "{\"model_type\": \"llama\", \"vocab_size\": 32}", &e)
          && strstr(e.text, "\"hidden_size\" is missing"), "a missing key is named: %s", e.text);
}

/* Which layers have a window: the rules of each family, and layer_types where they are listed. */
static void windows_of_configs(void) {
    static const struct { const char *type, *extra; int window; uint64_t layers; } cases[] = {
        { "mixtral", "\"sliding_window\": 32", 32, 15 }, { "mistral", "\"sliding_window\": 64", 0, 0 },
        { "mistral", "\"sliding_window\": 63", 63, 15 },         { "mistral", "\"sliding_window\": null", 0, 0 },
        { "qwen3",   "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 1", 8, 14 },
        { "qwen3",   "\"use_sliding_window\": false, \"sliding_window\": 8, \"max_window_layers\": 1", 0, 0 },
        { "qwen3",   "\"use_sliding_window\": true, \"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"sliding_attention\", "
                     "\"full_attention\", \"sliding_attention\"]", 8, 10 },
        { "qwen3_moe", "\"use_sliding_window\": true, \"sliding_window\": 8, \"moe_intermediate_size\": 8", 8, 15 },
        { "qwen2_moe", "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 3, \"moe_intermediate_size\": 8, "
                       "\"shared_expert_intermediate_size\": 8", 8, 5 },
        { "dots1",   "\"sliding_window\": 8, \"max_window_layers\": 2, \"moe_intermediate_size\": 8, \"n_shared_experts\": 1, "
                     "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2", 8, 12 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("{\"model_type\": \"%s\", \"vocab_size\": 32, \"hidden_size\": 16, \"num_hidden_layers\": 4, "
                                 "\"intermediate_size\": 8, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"head_dim\": 4, "
                                 "\"max_position_embeddings\": 64, %s}", cases[i].type, cases[i].extra);
        Config c, again;
        Error e = { 0 };
        Text json = { 0 };
        const int read = from_text(&c, text, &e);
        check(read && c.window == cases[i].window && c.windowed.bits[0] == cases[i].layers, "%s with %s: a window of %d in layers %llx %s", cases[i].type,
              cases[i].extra, c.window, (unsigned long long)c.windowed.bits[0], e.text);
        if (read) config_to_json(&c, "BF16", 1, &json);
        check(read && from_text(&again, json.at, &e) && config_same(&c, &again, &e), "%s with %s comes back: %s", cases[i].type, cases[i].extra, e.text);
        free(json.at), free(text);
    }
}

/* As run.json has it. */
static void same_when_written(const Config *c, const char *what) {
    Text written = { 0 };
    Config again;
    Error e;
    config_to_json(c, "F32", 1, &written);
    check(from_text(&again, written.at, &e) && config_same(c, &again, &e), "%s is the same when it is written and read: %s", what, e.text);
    free(written.at);
}

/* A key that is missing means what Transformers takes it to be, in every family; or it is asked for by its name. defaults.json has
 * all keys of each family's own configuration. */
static void default_configs(void) {
    Error e;
    size_t bytes;
    char *text = file_read("tests/reference/families/defaults.json", &bytes, &e);
    Json *json = text ? json_parse(text, bytes, &e) : NULL;
    int families = 0, accepted = 0;
    check(json != NULL, "defaults.json: %s", e.text);
    for (const JsonValue *f = json ? json_first(json_root(json)) : NULL; f; f = f->next, families++) {
        Config whole, without;
        const int read = config_from_json(&whole, f, &e);
        check(read, "%s with its own defaults is read: %s", f->key, e.text);
        if (read) same_when_written(&whole, f->key);
        if (read && whole.kv_rank) {
            Config stretched = whole;
            stretched.rope = (RopeScaling){ ROPE_YARN, 0, 4, 1, 32, 24, 1.1, 0.7 };
            same_when_written(&stretched, f->key);
        }
        for (const JsonValue *left = read ? json_first(f) : NULL; left; left = left->next) {
            Text some = { 0 };
            if (!strcmp(left->key, "model_type")) continue;
            text_add(&some, "{\"model_type\": \"%s\"", f->key);
            for (const JsonValue *v = json_first(f); v; v = v->next) {
                if (v == left || !strcmp(v->key, "model_type")) continue;
                text_add(&some, ", \"%s\": ", v->key);
                json_write(&some, v, 0);
            }
            text_add(&some, "}");
            char *missing = text_format("\"%s\" is missing", left->key);
            const int window = !strcmp(f->key, "mistral") && !strcmp(left->key, "sliding_window");     /* then there is one */
            if (from_text(&without, some.at, &e)) {
                check(window ? without.window == 4096 && config_window(&without, 0) == 4096 : config_same(&whole, &without, &e),
                      "%s without \"%s\" is the same: %s", f->key, left->key, e.text);
                accepted++;
            } else check(strstr(e.text, missing) != NULL, "%s without \"%s\": %s", f->key, left->key, e.text);
            free(missing), free(some.at);
        }
    }
    check(families == 16 && accepted > 160, "%d families, %d keys may be missing", families, accepted);
    json_free(json), free(text);
}

/* ---- files --------------------------------------------------------------------------------------------- */

static void sums(void) {
    char text[100];
    uint32_t parts = 0;
    for (int i = 0; i < 100; i++) text[i] = (char)(7 * i + 3);
    check(crc32c(0, "123456789", 9) == 0xe3069283u, "CRC-32C of 123456789 is e3069283");
    check(crc32c(0, "", 0) == 0, "CRC-32C of nothing is 0");
    for (int i = 0; i < 100; i += 9) parts = crc32c(parts, text + i, (size_t)(100 - i < 9 ? 100 - i : 9));
    check(parts == crc32c(0, text, 100), "CRC-32C can be computed piece by piece");
    check(hash_bytes(0, "", 0) == 0xcbf29ce44fd0bfc1u
          && hash_bytes(0, "mixture of experts", 18) == 0x17defe3bbc473e16u
          && hash_bytes(5, text, 100) == 0x3ae5de80744d1fc9u,
          "fingerprints are the same in all versions: %016llx %016llx %016llx",
          (unsigned long long)hash_bytes(0, "", 0),
          (unsigned long long)hash_bytes(0, "mixture of experts", 18),
          (unsigned long long)hash_bytes(5, text, 100));
    int distinct = 1;
    const uint64_t whole = hash_bytes(0, text, 100);
    for (int bit = 0; bit < 800; bit++) {
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        distinct &= hash_bytes(0, text, 100) != whole;
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    check(distinct, "every flipped bit changes the fingerprint");
}

static void write_too_much(void *path) {
    const struct rlimit most = { 1000, 1000 };
    Error e;
    char *data = mem_alloc(5000);
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &most)) _exit(1);
    const int written = file_write(path, data, 5000, &e);
    fprintf(stderr, "%s", e.text);
    fflush(stderr);
    _exit(written ? 2 : 3);
}
static int holds(const char *path, const char *text) {
    Error e;
    size_t n;
    char *data = file_read(path, &n, &e);
    const int same = data && n == strlen(text) && !memcmp(data, text, n);
    free(data);
    return same;
}
static int files_in(const char *folder) {                    /* counted by ls, hidden files included */
    char *command = text_format("ls -A '%s' | wc -l", folder);
    FILE *f = popen(command, "r");
    int n = -1;
    if (f && fscanf(f, "%d", &n) != 1) n = -1;
    if (f) pclose(f);
    free(command);
    return n;
}
static void atomic_files(void) {
    char *folder = scratch_path("files"), *path = text_format("%s/target", folder);
    char *below = text_format("%s/target/below", folder), said[512];
    Error e;
    check(folder_make(folder, &e) && file_write(path, "old", 3, &e) && holds(path, "old"), "a file is written");
    check(in_child(write_too_much, path, said, sizeof said) == 3 && strstr(said, "target"),
          "a full disk is an error that names the file: %s", said);
    check(holds(path, "old") && files_in(folder) == 1, "the file is unchanged, and no temporary file remains");
    check(file_write(path, "new and longer", 14, &e) && holds(path, "new and longer")
          && files_in(folder) == 1, "it is replaced as a whole");
    check(!file_write(below, "x", 1, &e) && strstr(e.text, "below"), "a path through a file is an error: %s", e.text);
    check(!folder_make(below, &e) && strstr(e.text, "target"), "a folder below a file is an error: %s", e.text);
    if (geteuid() != 0) {
        check(!chmod(folder, 0500) && !file_write(path, "x", 1, &e) && holds(path, "new and longer"),
              "a read-only folder keeps its file: %s", e.text);
        chmod(folder, 0700);
    } else skip("root may write anywhere: read-only folders");
    free(folder), free(path), free(below);
}

void test_train(void) {
    PART(schedules());
    PART(sampling());
    PART(windows());
    PART(options());
    PART(defaults());
    PART(fine_tuning_defaults());
    PART(accumulation());
    PART(muon_and_adamw());
    PART(experts_in_turn());
    PART(threads(0));
    PART(threads(0.95f));
    PART(replaying());
    PART(round_trip("cpu-f32", 0, 0));
    PART(round_trip("cpu-bf16", 0, 0));
    PART(round_trip("cpu-bf16", 1, 0));
    PART(round_trip("cpu-f64", 0, 0));
    PART(round_trip("cpu-f32", 0, 0.95f));
    PART(round_trip("cpu-bf16", 1, 0.95f));
    PART(conversion());
    PART(fallback());
    PART(pruning());
    PART(lock());
    PART(configs());
    PART(refused_configs());
    PART(windows_of_configs());
    PART(default_configs());
    PART(sums());
    PART(atomic_files());
}
