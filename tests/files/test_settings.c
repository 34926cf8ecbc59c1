/* test_settings.c: what surrounds the model in a run: the learning rate, what is sampled, scores of
 * losses, options and defaults, against their definitions. Part of the group train. */
#include "tests/test.h"
#include "llmc/model/schedule.h"
#include "llmc/run/options.h"
#include "llmc/run/presets.h"
#include "llmc/run/progress.h"
#include "llmc/run/settings.h"
#include <math.h>

/* ---- the learning rate ----------------------------------------------------------------------- */

static void schedules(void) {
    static const char *const names[] = { "cosine", "linear", "constant", "wsd" };
    /* 100 steps, 20 of warm-up, down to 0.1 */
    static const struct { Schedule kind; long step; double rate; } points[] = {
        { COSINE, 0, 1/21. }, { COSINE, 19, 20/21. }, { COSINE, 20, 1 }, { COSINE, 60, 0.55 },
        { COSINE, 100, 0.1 }, { COSINE, 1000, 0.1 },
        { COSINE, 40, 0.1 + 0.9 * (0.5 + 0.35355339059327379) },          /* a quarter: cos(pi/4) = sqrt(1/2) */
        { LINEAR, 10, 11/21. }, { LINEAR, 20, 1 }, { LINEAR, 60, 0.55 }, { LINEAR, 80, 0.325 }, { LINEAR, 100, 0.1 },
        { CONSTANT, 0, 1/21. }, { CONSTANT, 20, 1 }, { CONSTANT, 99, 1 }, { CONSTANT, 1000, 1 },
        { WSD, 5, 6/21. }, { WSD, 20, 1 }, { WSD, 83, 1 }, { WSD, 84, 1 }, { WSD, 92, 0.55 }, { WSD, 100, 0.1 },
    };
    for (size_t i = 0; i < COUNT(points); i++)
        check_error(fabs(schedule_rate(points[i].kind, points[i].step, 100, 20, 0.1, 0.2) - points[i].rate), 1e-12,
                    "%s at step %ld is %g", names[points[i].kind], points[i].step, points[i].rate);
    for (int k = 0; k < 4; k++) {
        int rises = 1, falls = 1, inside = 1;
        for (long s = 0; s < 1000; s++) {
            const double a = schedule_rate((Schedule)k, s, 1000, 100, 0.2, 0.6);
            const double b = schedule_rate((Schedule)k, s + 1, 1000, 100, 0.2, 0.6);
            rises &= s >= 100 || b > a;
            falls &= s < 100 || b <= a;
            inside &= a > 0 && a <= 1 && (s < 100 || a >= 0.2);
        }
        check(rises && falls && inside, "%s rises only during warm-up and stays above its final rate", names[k]);
        check_error(fabs(schedule_rate((Schedule)k, 0, 10, 0, 0.5, 1) - 1), 0, "%s without warm-up", names[k]);
        check_error(fabs(schedule_rate((Schedule)k, 9, 10, 50, 0.5, 1) - 10/51.), 1e-12,
                    "%s with a warm-up longer than the run is warm-up to the end", names[k]);
        check_error(fabs(schedule_rate((Schedule)k, 10, 10, 10, 0.5, 1) - (k == 2 ? 1 : 0.5)), 1e-12,
                    "%s with a warm-up as long as the run does not divide by zero", names[k]);
    }
}

/* Constant, and linear over the last 60 %; the weights of further targets. */
static void stages(void) {
    for (int i = 0; i <= 5; i++)
        check_error(fabs(schedule_rate(WSD, 20 + 16 * i, 100, 20, 0.15, 0.6) - (i <= 2 ? 1 : 1 - 0.85 * (i - 2) / 3)),
                    1e-12, "wsd that decays over 0.6, at %d fifths", i);
    static const struct { double done; float second, third; } points[] = {
        { 0, 0.5f, 0.25f }, { 1/6., 0.5f, 0.125f }, { 0.5, 0.25f, 0 }, { 0.7, 0, 0 }, { 1, 0, 0 } };
    for (size_t i = 0; i < COUNT(points); i++) {
        float weight[2];
        schedule_further(points[i].done, 0.5, weight);
        check_error((double)(fabsf(weight[0] - points[i].second) + fabsf(weight[1] - points[i].third)), 1e-6,
                    "weights of further targets when %g of a run is done", points[i].done);
    }
}

/* What a batch is in each stage, and that what was before a step adds up. */
static void batch_stages(void) {
    static const char *const wrong[] = { "2:3", "1:", "1::2", "1:0", "1:-2", "1:x", "1,2", "1:2:3:4:5:6:7:8:9",
                                         "1:2000" };
    Stages s;
    Error e;
    for (size_t i = 0; i < COUNT(wrong); i++) check(!stages_parse(&s, wrong[i], &e), "stages %s are refused", wrong[i]);
    check(stages_parse(&s, "", &e) && s.count == 1 && stages_at(&s, 5, 10) == 1 && stages_before(&s, 7, 10) == 7,
          "without stages a step is a step");
    check(stages_parse(&s, "1:2:3", &e) && s.most == 3, "1:2:3 are stages: %s", e.text);
    for (int64_t steps = 3; steps < 12; steps++) {
        int64_t sum = 0, of[4] = { 0 };
        int ok = 1;
        for (int64_t i = 0; i <= steps; i++) {
            ok &= stages_before(&s, i, steps) == sum;
            if (i < steps) sum += stages_at(&s, i, steps), of[stages_at(&s, i, steps)]++;
        }
        check(ok && of[1] + 1 >= of[2] && of[1] >= of[3] && of[1] <= of[3] + 1 && of[2] <= of[3] + 1,
              "%d steps in three stages", (int)steps);
    }
}

/* ---- sampling -------------------------------------------------------------------------------- */

typedef struct { float temperature, top_p, min_p; int top_k; uint64_t key; } Draw;
static int draw(Draw s, const double *logits, int count, uint64_t position) {
    const Device *dev = device_find("cpu-f64");
    const Sampler sampler = { .temperature = s.temperature, .top_p = s.top_p, .min_p = s.min_p, .top_k = s.top_k };
    const int before = (int)position - 1;
    int token;
    dev->sample(&token, (const floatX *)logits, &s.key, &before, sampler, 1, count, count);
    return token;
}
/* The tokens order[0..n-1] must be drawn in proportion to p, and no others: counts of 20000 draws,
 * and their largest distance from the expectation in standard deviations (plus one draw). */
static void proportions(const char *what, Draw s, const double *z, const double *p, const int *by, int count, int n) {
    enum { DRAWS = 20000 };
    int seen[64] = { 0 };
    double kept = 0, worst = 0;
    for (int i = 0; i < DRAWS; i++) seen[draw(s, z, count, (uint64_t)i)]++;
    for (int r = 0; r < n; r++) kept += p[by[r]];
    for (int r = 0; r < count; r++) {
        const double fraction = r < n ? p[by[r]] / kept : 0,
            deviation = sqrt(DRAWS * fraction * (1 - fraction)) + (r < n);
        const double off = fabs(seen[by[r]] - DRAWS * fraction) / fmax(deviation, 1e-9);
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

    const double even[V] = { 0 };
    static const struct { Draw how; const char *what; } certain[] = {
        { { .temperature = 0, .top_p = 1 }, "temperature 0" }, { { .temperature = 1, .top_p = 0 }, "top-p 0" },
        { { .temperature = 9, .top_p = 1, .top_k = 1 }, "top-k 1" },
        { { .temperature = 1, .top_p = 1, .min_p = 1 }, "min-p 1" },
        { { .temperature = 1e-30f, .top_p = 1 }, "a temperature near 0" },
    };
    for (size_t c = 0; c < COUNT(certain); c++) {
        int right = 1;
        s = certain[c].how;
        for (s.key = 0; s.key < 200; s.key++) right &= draw(s, logits, V, s.key) == order[0];
        check(right, "%s gives the most likely token", certain[c].what);
    }
    int same = 1, differs = 0, moves = 0;
    s = plain;
    s.key++;
    for (uint64_t i = 0; i < 200; i++) {
        same    &= draw(plain, even, V, i) == draw(plain, even, V, i);
        moves   += draw(plain, even, V, i) != draw(plain, even, V, i + 1);
        differs += draw(plain, even, V, i) != draw(s, even, V, i);
    }
    check(same && moves > 100 && differs > 100, "a draw depends on key and position and on nothing else");
}
/* Equal, masked, infinite logits and NaN. */
static void odd_logits(void) {
    const Draw plain = { .temperature = 1, .top_p = 1, .key = 77 };
    const double ties[5] = { 1, 3, 3, 0, 3 };
    const double nothing[4] = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    const double nans[4] = { NAN, NAN, NAN, NAN };
    const double holes[5] = { NAN, -INFINITY, 0.5, NAN, 0.4 }, boundless[4] = { 0, 1, INFINITY, 2 };
    check(draw((Draw){ .temperature = 0, .top_p = 1 }, ties, 5, 0) == 1
          && draw((Draw){ .temperature = 1, .top_p = 0 }, ties, 5, 0) == 1, "ties go to the lower id");
    check(draw(plain, nothing, 4, 0) == 0 && draw((Draw){ .temperature = 1, .top_p = 0.9f, .top_k = 2 },
                                                  nothing, 4, 0) == 0, "if everything is masked, token 0");
    check(draw(plain, nans, 4, 0) == 0 && draw((Draw){ .temperature = 1, .top_p = 0.5f }, nans, 4, 0) == 0,
          "if everything is NaN, token 0");
    check(draw(plain, boundless, 4, 0) == 2, "an infinite logit wins");
    int right = 1, seen[2] = { 0 };
    for (uint64_t i = 0; i < 500; i++) {
        const int a = draw(plain, holes, 5, i);
        const int b = draw((Draw){ .temperature = 2, .top_p = 0.9f, .min_p = 0.01f, .key = i }, holes, 5, i);
        right &= (a == 2 || a == 4) && (b == 2 || b == 4);
        seen[0] += a == 4;
        seen[1] += b == 4;
    }
    check(right && seen[0] > 100 && seen[1] > 100, "NaN and masked tokens are never drawn, all others are");
}

/* ---- z-scores -------------------------------------------------------------------------------- */

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

/* ---- options --------------------------------------------------------------------------------- */

typedef struct { int count; int64_t large; float rate; const char *kind; } Small;
static const Option table[] = {
    { "a", "c",  "count",  OPTION_INT,   offsetof(Small, count), "3",      1,    100,  NULL,          "how many" },
    { "a", "l",  "large",  OPTION_LONG,  offsetof(Small, large), "-1",     -1,   9e15, NULL,          "how large" },
    { "b", "ra", "rate",   OPTION_FLOAT, offsetof(Small, rate),  "0.1",    0,    10,   NULL,          "how fast" },
    { "b", "k",  "kind",   OPTION_TEXT,  offsetof(Small, kind),  "cosine", 0,    0,    "cosine|wsd",  "which" },
};
enum { ROWS = COUNT(table) };

enum { WORDS = 64 };
static int split(const char *line, char *argv[WORDS]) {
    static char words[512];
    int n = 0;
    snprintf(words, sizeof words, "program %s", line);
    for (char *word = strtok(words, " "); word && n < WORDS - 1; word = strtok(NULL, " ")) argv[n++] = word;
    argv[n] = NULL;
    return n;
}
static void parse_line(void *line) {
    Small s;
    char given[ROWS], *argv[WORDS];
    const char *word;
    const Options o = { table, ROWS, &s, given, NULL };
    options_parse(o, split(line, argv), argv, "usage", &word, 1);
}

/* What -cf reads, after a command line that gave -c and -ra. */
static void settings_files(Options o, Small *s) {
    static const struct { const char *text, *says; } files[] = {
        { "# a comment\n\n  kind = wsd  \r\n c=9\n--rate 3\n", "" },  { "k wsd", "" },  { "k = \"wsd\"", "" },
        { "", "" },  { "\xef\xbb\xbfk wsd", "" }, { "kind = wsd\n\nk wsd\n", "line 3: kind (-k) is given twice" },
        { "colour = red", "line 1: colour: no such option" },
        { "k wsd\nrtae 3", "line 2: rtae: no such option. The nearest is -ra (--rate)" },
        { "kind = step", "line 1: -k step: expected one of" },
        { "kind\n", "line 1: -k : expected one of" }, };
    Error e = { 0 };
    const Small before = *s;
    char given[ROWS];
    memcpy(given, o.given, sizeof given);
    for (size_t i = 0; i < COUNT(files); i++) {
        char text[128];
        const size_t n = (size_t)snprintf(text, sizeof text, "%s", files[i].text);
        const int ok = options_read(o, text, n, &e);
        check(ok == !*files[i].says && (ok || strstr(e.text, files[i].says)), "\"%s\": %s", files[i].text, e.text);
        check(s->count == before.count && s->rate == before.rate, "the command line counts more than the file");
        if (i == 0) check(!strcmp(s->kind, "wsd"), "the file is read, to the end of the value: \"%s\"", s->kind);
        *s = before;
        memcpy(o.given, given, sizeof given);
    }
    Text written = { 0 };
    options_write(o, &written);
    check(strstr(written.at, "\ncount             = 7\n") != NULL, "written as name = value: %s", written.at);
    s->kind = " \"a ";
    written.length = 0;
    options_write(o, &written);
    s->kind = before.kind;
    check(strstr(written.at, "\nkind              = \" \"a \"\n") != NULL, "blanks at the ends: %s", written.at);
    char nul[] = "c 8\0x";
    check(!options_read(o, nul, sizeof nul - 1, &e) && strstr(e.text, "binary"), "a binary file: %s", e.text);
    free(written.at);
}

static void options(void) {
    static const struct { const char *line, *says; } wrong[] = {
        { "-x 3", "no such option" },           { "--conut 3", "nearest is -c (--count)" },
        { "--rte=1", "nearest is -ra (--rate)" }, { "-", "" },
        { "-c 3 -c 3", "given twice" },         { "-c 3 --count=4", "given twice" },
        { "-c", "needs a value" }, { "-k wsd --rate", "needs a value" }, { "-c=3", "after a space: -c 3" },
        { "-c3", "after a space: -c 3" },       { "-ra=", "after a space: -ra" },
        { "-c 3x", "a whole number" }, { "-c 3.5", "a whole number" }, { "--count=", "a whole number" },
        { "-c 0", "from 1 to 100" }, { "-c 101", "from 1 to 100" }, { "-c 4294967298", "from 1 to 100" },
        { "-l 9223372036854775808", "whole" },  { "-l -9223372036854775809", "whole" },
        { "-l 9000000000000001", "from -1" }, { "-ra nan", "a number from 0 to 10" },
        { "-ra inf", "a number from 0 to 10" },     { "-ra -0.1", "a number from 0 to 10" },
        { "-ra 1e400", "a number from 0 to" },  { "-ra 0,1", "a number from 0 to 10" },
        { "-ra ten", "a number from 0 to 10" }, { "-k step", "one of cosine|wsd" }, { "-k cos", "one of cosine|wsd" },
        { "-k cosine|wsd", "one of cosine|wsd" }, { "one two", "two: not an option" },
    };
    char said[2048];
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char line[64];
        snprintf(line, sizeof line, "%s", wrong[i].line);
        /* "-" is a word: standard input */
        const int dash = !strcmp(line, "-"), code = in_child(parse_line, line, said, sizeof said);
        check(code == (dash ? 0 : EXIT_USAGE) && strstr(said, wrong[i].says),
              "options \"%s\": exit code %d, \"%s\" in \"%.200s\"", wrong[i].line, code, wrong[i].says, said);
    }

    Small s, again;
    char given[ROWS], value[64], *argv[WORDS];
    const char *word = NULL;
    const int n = split("-c 7 out --rate=0.00123456789 -l 9000000000000000", argv);
    const Options o = { table, ROWS, &s, given, NULL }, other = { table, ROWS, &again, given, NULL };
    options_parse(o, n, argv, "usage", &word, 1);
    check(s.count == 7 && s.large == 9000000000000000 && s.rate == 0.00123456789f && !strcmp(s.kind, "cosine")
          && word && !strcmp(word, "out"), "good options are read");
    check(option_given(o, "c") && !option_given(o, "k"), "given options are marked as given");
    options_default(o, "c", "9");
    options_default(o, "k", "wsd");
    check(s.count == 7 && !strcmp(s.kind, "wsd"), "a later default only fills what was not given");

    settings_files(o, &s);
    Text json = { 0 };
    Error e;
    options_json(o, &json);
    Json *j = json_parse(json.at, json.length, &e);
    check(j && json_int(json_get(json_root(j), "large"), 0) == s.large
          && !strcmp(json_string(json_get(json_root(j), "kind"), ""), "wsd"), "settings as JSON: %s", json.at);
    json_free(j), free(json.at);
    int exact = 1;
    for (int i = 0; i < 2000; i++) { /* a resumed run must have exactly the same rate */
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

/* A CPU, a GPU without products of 8 bits, and one with them. */
enum { A_CPU, A_GPU, A_HOPPER };
static Device machine(int which) {
    Device d = *device_find(which ? "cpu-bf16" : "cpu-f32");
    d.is_gpu = which > 0;
    if (which == A_GPU) d.fp8 = NULL;
    return d;
}
static void suit(Settings *s, const char *arguments, int which, int64_t tokens) {
    char *argv[WORDS];
    const Device d = machine(which);
    settings_parse(s, split(arguments, argv), argv);
    settings_suit(s, &d, tokens);
}

/* What is given stays; the rest suits the machine and the text. */
#define PLAIN_MODEL "m6:c512h4e128k4f256r100"
static void defaults(void) {
    static const struct { const char *arguments; int on; int64_t tokens; const char *model; Updates optimizer;
                          float lr; int batch; } cases[] = {
        { "", A_CPU, 1000000, "m4:u1z2", MUON, 8e-3f, 24 }, { "", A_CPU, 100000000, "m4:z1", MUON, 4e-3f, 32 },
        { "", A_GPU, 1000000, "m6:u1z2", MUON, 6e-3f, 64 }, { "", A_GPU, 100000000, PLAIN_MODEL, MUON, 6e-3f, 64 },
        { "-wo adamw -e d12",   A_GPU, 100000000, "d12", ADAMW, 6e-4f, 64 },
        { "-wo adamw -b 3",     A_CPU, 1000000,   "m4:u1z2", ADAMW, 1e-3f, 3 },
        { "-wo adamw",          A_GPU, 1000000,   "m6:u1z2", ADAMW, 2e-3f, 64 },
        { "-l 1e-4 -wo muon",   A_GPU, 100000000, PLAIN_MODEL, MUON, 1e-4f, 64 },
        { "-e tests", A_CPU, 1000000, "tests", ADAMW, 1e-3f, 24 },
        { "-e tests", A_GPU, 100000000, "tests", ADAMW, 6e-4f, 64 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Settings s;
        suit(&s, cases[i].arguments, cases[i].on, cases[i].tokens);
        check(!strcmp(s.model, cases[i].model) && s.optimizer == cases[i].optimizer && s.lr == cases[i].lr
              && s.batch == cases[i].batch && s.period == (cases[i].on && cases[i].tokens == 100000000 ? 2 : 1),
              "\"%s\", %s, %lld tokens: -e %s -wo %d -wp %d -l %g -b %d", cases[i].arguments, cases[i].on
              ? "a GPU" : "a CPU", (long long)cases[i].tokens, s.model, s.optimizer, s.period, (double)s.lr, s.batch);
    }
}

/* A preset's values are those of its words on a GPU that has what they need. Number types are left
 * alone where a machine, another option or another model may not go with them. */
static void preset_defaults(void) {
    static const struct { const char *arguments; int on; int64_t tokens; const char *preset; Schedule schedule;
                          Precision precision; int master; Dtype moments; } cases[] = {
        { "",            A_HOPPER, 100000000, "plain", WSD,    FP8_AND_HEAD, 0, FLOATX },
        { "-e plain",    A_HOPPER, 100000000, "plain", WSD,    FP8_AND_HEAD, 0, FLOATX },
        { "-e race",     A_HOPPER, 100000000, "race",  WSD,    FP8_AND_HEAD, 0, FLOATX },
        { "-e race",     A_HOPPER, 1000,      "race",  WSD,    FP8_AND_HEAD, 0, FLOATX },
        { "-e race",     A_GPU,    100000000, "race",  WSD,    PRECISE,    0, FLOATX },
        { "-e race",     A_CPU,    100000000, "race",  WSD,    PRECISE,    1, REAL },
        { "-e race -k cosine -mw 1", A_HOPPER, 100000000, "race", COSINE, FP8_AND_HEAD, 1, FLOATX },
        { "-e race -pe fp8", A_CPU, 100000000, "race", WSD,    FP8_IF_FASTER, 1, REAL },
        { "-e race -rp 1",   A_HOPPER, 100000000, "race", WSD, FP8_AND_HEAD, 1, REAL },
        { "-fa gelu",    A_HOPPER, 100000000, "plain", WSD,    PRECISE,    0, FLOATX },
        { "-e d6",       A_HOPPER, 100000000, NULL,    WSD,    PRECISE,    1, REAL },
        { "-e tests",    A_HOPPER, 100000000, NULL,    COSINE, PRECISE,    1, REAL },
        { "",            A_HOPPER, 1000,      NULL,    WSD,    PRECISE,    1, REAL },
        { "",            A_CPU,    1000,      NULL,    WSD,    PRECISE,    1, REAL },
        { "-e tests",    A_CPU,    1000,      NULL,    COSINE, PRECISE,    1, REAL },
        { "",            A_CPU,    100000000, NULL,    COSINE, PRECISE,    1, REAL },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Settings s;
        suit(&s, cases[i].arguments, cases[i].on, cases[i].tokens);
        check(cases[i].preset ? s.preset && !strcmp(s.preset, cases[i].preset) : !s.preset,
              "\"%s\": the preset is %s", cases[i].arguments, s.preset ? s.preset : "none");
        check(s.schedule == cases[i].schedule && s.precision == cases[i].precision && s.master == cases[i].master
              && s.moments == cases[i].moments, "\"%s\", machine %d: -k %d -pe %d -mw %d -mo %d", cases[i].arguments,
              cases[i].on, (int)s.schedule, (int)s.precision, s.master, (int)s.moments);
        const int longer = s.preset && cases[i].tokens >= LONG_TEXT;
        check(!s.preset || (s.total == (longer ? 131072 : 65536) && s.lr == (longer ? 6e-3f : 5e-3f)),
              "\"%s\", %lld tokens: -d %lld -l %g", cases[i].arguments, (long long)cases[i].tokens,
              (long long)s.total, (double)s.lr);
    }
}
/* Without the lookahead the rate is its square, unless it is given. */
static void plain_momentum(void) {
    static const struct { const char *arguments; int on; float momentum; } cases[] = {
        { "", A_CPU, 0.8f }, { "-wl 0", A_CPU, 0.64f }, { "-wl 0", A_GPU, 0.81f }, { "-wl 0 -wm 0.9", A_GPU, 0.9f },
        { "-wm 0.95 -wl 1", A_GPU, 0.95f }, { "-e tests -wo muon -wl 0", A_GPU, 0.81f },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Settings s;
        suit(&s, cases[i].arguments, cases[i].on, 1000000);
        check(s.momentum == cases[i].momentum, "\"%s\": -wm %g", cases[i].arguments, (double)s.momentum);
    }
}
/* A preset's command line is the preset, and so is the file of settings of its run. */
static void preset_words(void) {
    for (int race = 0; race < 2; race++) {
        const char *word = race ? "race" : "plain";
        Settings of_word, of_options, of_file;
        Text options = { 0 }, by_word = { 0 }, by_options = { 0 }, by_file = { 0 }, file = { 0 };
        char arguments[8] = "-e ";
        suit(&of_word, strcat(arguments, word), A_HOPPER, 100000000);
        settings_preset(word, 100000000, &options);
        suit(&of_options, options.at, A_HOPPER, 100000000);
        settings_json(&of_word, &by_word), settings_json(&of_options, &by_options);
        check(!strcmp(by_word.at, by_options.at), "%s is %s", word, options.at);
        settings_write(&of_word, &file);
        char *path = scratch_put("settings.txt", file.at, file.length), *again = text_format("-cf %s", path);
        suit(&of_file, again, A_CPU, 1000);
        settings_json(&of_file, &by_file);
        check(!strcmp(by_word.at, by_file.at), "the settings of a run of %s repeat it", word);
        check(!strcmp(of_word.model, suited[0].of[preset_named(word)]) && preset_named(of_word.model) == SUITS,
              "-e is %s", of_word.model);
        free(options.at), free(by_word.at), free(by_options.at), free(by_file.at), free(file.at), free(path);
        free(again);
    }
}

/* Of a folder's model: rate and rows follow it, batch and warm-up the chats. What is given
 * stays. */
static void fine_tuning_defaults(void) {
    static const struct { const char *argument; int gpu, channels, context, chats; int64_t rows; float lr; int batch,
                          seq; int64_t steps, warmup; } cases[] = {
        { "-e tests",           1, 2048, 4096, 1, 10000, 2e-5f, 8, 2048, -2, 10 },
        { "-e tests -wo muon",  1, 2048, 4096, 1, 10000, 4e-5f, 8, 2048, -2, 10 },
        { "-e tests -wo adamw", 1, 1024, 1000, 1, 100, 4e-5f, 5, 1000, -2, 4 },
        { "-e tests",  0, 64, 128, 1, 3, 6.4e-4f, 1, 128, -2, 0 },
        { "-e tests -b 3", 0, 8, 4096, 1, 600, 1e-3f, 3, 512, -2, 10 },
        { "-e tests -l 0.5",    1, 2048, 4096, 0, 0, 0.5f, 64, 256, 800, 10 },
        { "-e tests -x 50",     1, 4096, 4096, 1, 1000, 1e-5f, 8, 2048, 50, 5 }, };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Settings s;
        suit(&s, cases[i].argument, cases[i].gpu, 1000);
        settings_fine_tune(&s, cases[i].gpu, cases[i].channels, cases[i].context, cases[i].chats);
        if (cases[i].chats) settings_fit_rows(&s, cases[i].rows);
        check(s.lr == cases[i].lr && s.batch == cases[i].batch && s.seq == cases[i].seq && s.steps == cases[i].steps
              && s.warmup == cases[i].warmup && !(s.decay > 0) && !(s.dropout > 0) && s.schedule == COSINE
              && !(s.final_lr > 0) && !(s.row_decay > 0) && s.balance > 0.009f,
              "fine-tuning case %zu: -l %g -b %d -t %d -x %lld -u %lld", i, (double)s.lr, s.batch, s.seq,
              (long long)s.steps, (long long)s.warmup);
    }
}
void test_settings(void) {
    PART(schedules()); PART(stages()); PART(batch_stages()); PART(sampling()); PART(odd_logits());
    PART(windows()); PART(options()); PART(defaults());
    PART(preset_defaults()); PART(preset_words()); PART(plain_momentum());
    PART(fine_tuning_defaults());
}
