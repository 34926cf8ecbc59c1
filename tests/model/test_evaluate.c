/* test_evaluate.c: multiple-choice questions: what a tiny model answers, beside PyTorch
 * (reference/make_questions.py), and files that are wrong. Part of the group reference. */
#include "llmc/model/plan.h"
#include "tests/test.h"
#include "llmc/files/hf.h"
#include "llmc/run/evaluate.h"
#include <math.h>

#define FOLDER "tests/reference/questions"
static const volatile sig_atomic_t never = 0, at_once = 1;

static Json *parse_file(const char *path) {
    Error e = { 0 };
    size_t bytes;
    char *text = file_read(path, &bytes, &e);
    Json *json = text ? json_parse(text, bytes, &e) : NULL;
    check(json != NULL, "%s: %s", path, e.text);
    free(text);
    return json;
}
static Tokenizer *load_tokenizer(const char *name) {
    Error e = { 0 };
    char *path = text_format("tests/reference/tokenizers/%s.json", name);
    Tokenizer *t = tokenizer_load(path, &e);
    check(t != NULL, "%s", e.text);
    free(path);
    return t;
}

/* Details of a question, a line of JSON, beside the reference: the largest difference. */
static double compare_line(const char *line, size_t bytes, const JsonValue *expected, const char *what) {
    static const char *const same[] = { "tokens", "characters" };
    Error e;
    Json *json = json_parse(line, bytes, &e);
    const JsonValue *got = json_root(json), *v = json_first(json_get(got, "logprobs")),
        *w = json_first(json_get(expected, "logprobs"));
    double worst = json && json_int(json_get(got, "answer"), -1) == json_int(json_get(expected, "answer"), -2)
        ? 0 : NAN;
    for (; v && w; v = v->next, w = w->next) worst = fmax(worst, fabs(json_double(v, NAN) - json_double(w, NAN)));
    if (v || w) worst = NAN;
    for (size_t k = 0; k < COUNT(same); k++) {
        v = json_first(json_get(got, same[k]));
        w = json_first(json_get(expected, same[k]));
        for (; v && w; v = v->next, w = w->next)
            if (json_int(v, -1) != json_int(w, -2)) check(0, "%s: %s", what, same[k]);
        check(!v && !w, "%s: as many %s as choices", what, same[k]);
    }
    json_free(json);
    return worst;
}

static void compare(const Questions *q, const Evaluation *v, const char *path, const JsonValue *expected,
                    const char *what) {
    Error e = { 0 };
    size_t bytes, n = 0;
    double worst = 0;
    int64_t right[MEASURES] = { 0 };
    char *text = file_read(path, &bytes, &e);
    check(text && v->questions == (int64_t)q->count && q->count == expected->length,
          "%s: every question is answered %s", what, e.text);
    const JsonValue *one = json_first(expected);
    for (char *at = text, *next; at && one && (next = strchr(at, '\n')); at = next + 1, one = one->next, n++) {
        worst = fmax(worst, compare_line(at, (size_t)(next - at), one, what));
        const JsonValue *p = json_first(json_get(one, "predicted"));
        for (int by = 0; by < MEASURES; by++, p = p->next)
            right[by] += json_int(p, -1) == json_int(json_get(one, "answer"), -2);
    }
    check(n == q->count, "%s: a line of details for each question", what);
    check_error(worst, 3e-4, "%s: log-likelihoods as PyTorch's", what);         /* sums of up to hundreds, in f32 */
    for (int by = 0; by < MEASURES; by++)
        check(v->right[by] == right[by], "%s: measure %d has the answers of PyTorch", what, by);
    free(text);
}

/* small: batches of 64 tokens, of which a block has few; else one batch holds all. */
static void run(const Device *dev, const Tokenizer *t, const char *file, int small, const JsonValue *expected,
                const char *what) {
    Error e = { 0 };
    Config c;
    Model m;
    Questions q;
    Evaluation v;
    size_t cut = 0;
    char *path = text_format(FOLDER "/%s", file), *details = scratch_path("details.jsonl");
    check(hf_load_config(FOLDER, &c, &e) && questions_read(&q, path, t, c.vocab, &e)
          && questions_cut(&q, path, c.context, &cut, &e),
          "%s: %s", what, e.text);
    check(cut == (strcmp(file, "choices.jsonl") == 0), "%s: %zu contexts are cut", what, cut);
    FileWriter *w = file_create(details, &e);
    if (small) model_plan_inference(&m, dev, &c, 1, 64, 0, NULL);
    else evaluate_plan(&m, dev, &c, &q, NULL);
    const int ready = model_allocate(&m) && hf_load_weights(&m, FOLDER, &e) && evaluate(&m, &q, &never, 0, w, &v, &e);
    check(ready && file_finish(w, &e), "%s: %s", what, e.text);
    if (ready) compare(&q, &v, details, expected, what);
    check(evaluate(&m, &q, &at_once, 0, NULL, &v, &e) && v.questions == 0, "%s: an interruption ends it", what);
    model_free(&m), questions_free(&q), free(details), free(path);
}

static void test_answers(void) {
    static const char *const files[] = { "hellaswag.jsonl", "choices.jsonl", "hellaswag.bin" },
        *const kinds[] = { "gpt2", "llama2" };
    Json *expected = parse_file(FOLDER "/expected.json");
    const Device *dev;
    for (int k = 0; k < 2; k++) {
        Tokenizer *t = load_tokenizer(kinds[k]);
        for (size_t f = 0; f < COUNT(files) - (k != 0); f++) for (int i = 0; (dev = tested_device(i)); i++) {
            char *key = text_format("%.*s %s", (int)strcspn(files[f], "."), files[f], kinds[k]);
            char *what = text_format("%s: %s with %s", dev->name, files[f], kinds[k]);
            if (dev->floatX_size > 2) run(dev, t, files[f], (i + k) % 2, json_get(json_root(expected), key), what);
            free(what), free(key);
        }
        tokenizer_free(t);
    }
    json_free(expected);
}

static void test_scores(void) {
    Candidate c[] = { { .scored = 2, .characters = 9 }, { .scored = 4, .characters = 10 },
                      { .scored = 4, .characters = 30 } };
    const Question q = { .choice = c, .choices = 3 };
    check(evaluate_answer(&q, (double[]){ -5, -8, -20 }, RAW) == 0
          && evaluate_answer(&q, (double[]){ -5, -8, -20 }, PER_TOKEN) == 1
          && evaluate_answer(&q, (double[]){ -5, -8, -12 }, PER_CHARACTER) == 2, "the three measures");
    check(evaluate_answer(&q, (double[]){ -7, -5, -5 }, RAW) == 1, "of equal choices the first is the answer");
    check_error(fabs(evaluate_error(1, 5) - 0.2), 1e-15, "standard error of 1 right of 5");
}

/* ---- files that are wrong -------------------------------------------------------------------- */

#define GOOD "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 1}\n"
static void test_wrong_lines(void) {
    static const struct { const char *text, *words; } wrong[] = {
        { "", "holds no questions" }, { "\n \r\n", "holds no questions" },
        { GOOD "{\"context\": \"a\", \"choices\": [\"b\", ", "line 2:" },
        { "\n" GOOD "{\"text\": \"a\"}\n", "line 3: expected {\"context\"" },
        { GOOD "{\"context\": \"a\", \"choices\": [], \"answer\": 0}\n", "line 2: \"choices\" has 0 choices" },
        { "{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 0}", "line 1: \"choices\" has 1 choices" },
        { "{\"context\": \"a\", \"choices\": {\"b\": 1}, \"answer\": 0}", "not a list" },
        { "{\"context\": \"a\", \"choices\": [\"b\", \"\"], \"answer\": 0}", "choice 1 of \"choices\" is empty" },
        { "{\"context\": \"a\", \"choices\": [\" \", \"c\"], \"answer\": 0}", "choice 0 of \"choices\" is empty" },
        { "{\"context\": \"a\", \"choices\": [1, 2], \"answer\": 0}", "choice 0 of \"choices\" is not a string" },
        { GOOD GOOD "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}\n",
          "line 3: \"answer\" is 2, but the choices are 0 to 1" },
        { "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": \"-1\"}", "\"label\" is -1" },
        { "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": \"\"}", "\"label\" is no whole number" },
        { "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"]}", "\"label\" is missing" },
        { "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": \"C\"}", "\"answer\" is 2" },
        { "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": \"b\"}", "no whole number and no letter" },
        { "{\"context\": \"a\", \"choices\": [\"B\", \"A\"], \"answer\": \"A\"}",
          "text of choice 1, and stands for choice 0" },
        { "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 1, \"shots\": 5}", "key \"shots\"" },
        { "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": NaN}", "no whole number" },
        { "{\"question\": \"a\", \"choices\": {\"text\": [\"b\", \"c\"], \"label\": [\"A\"]}, "
          "\"answerKey\": \"A\"}",
          "\"label\" for each" },
        { "{\"question\": \"a\", \"choices\": {\"text\": [\"b\", \"c\"], \"label\": [\"A\", \"B\"]}, "
          "\"answerKey\": \"1\"}",
          "none of the labels" },
        { "[\n" GOOD ",\n{}]", "line 4: expected {\"context\"" },
    };
    Tokenizer *t = tokenizer_bytes();
    for (size_t i = 0; i < COUNT(wrong); i++) {
        Questions q;
        Error e = { 0 };
        check(!questions_parse(&q, "f", wrong[i].text, strlen(wrong[i].text), t, 256, &e) && !q.count
              && strstr(e.text, wrong[i].words), "questions: '%s': %s", wrong[i].words, e.text);
    }
    Questions q;
    Error e = { 0 };
    size_t cut;
    check(!questions_parse(&q, "f", GOOD, strlen(GOOD), NULL, 256, &e) && strstr(e.text, "tokenizer"),
          "texts need a tokenizer: %s", e.text);
    check(questions_parse(&q, "f", GOOD, strlen(GOOD), t, 256, &e) && q.at[0].answer == 1, "%s", e.text);
    check(!questions_cut(&q, "f", 1, &cut, &e) && strstr(e.text, "line 1: choice 0 has 2 tokens, more than the 1"),
          "too long a choice: %s", e.text);
    check(questions_cut(&q, "f", 2, &cut, &e) && !cut, "3 tokens, of which 2 are read, are not cut");
    questions_free(&q), tokenizer_free(t);
}

/* Published forms are what lm-eval makes of them, written as the plain form. */
static void test_published(void) {
#define PLAIN "{'context': 'Question: Why?\\nAnswer:', 'choices': ['a', 'b c'], 'answer': 1}"
    static const char *const same[][2] = {
        { "{'id': 'x', 'question': 'Why?', 'choices': {'text': ['a', 'b c'], 'label': ['A', 'B']}, 'answerKey': 'B'}",
          PLAIN },
        { "{'question': 'Why?', 'choices': {'text': ['a', 'b c'], 'label': ['1', '2']}, 'answerKey': '2'}", PLAIN },
        { "{'id': 'x', 'question': {'stem': 'Why?', 'choices': [{'text': 'a', 'label': 'A'}, {'text': 'b c', 'label': "
          "'B'}]}, 'answerKey': 'B'}", PLAIN },
        { "{'question_stem': 'It is', 'choices': {'text': ['a', 'b'], 'label': ['A', 'B']}, 'answerKey': 'A'}",
          "{'context': 'It is', 'choices': ['a', 'b'], 'answer': 0}" },
        { "{'question': ' Why? ', 'subject': 'high_school_law', 'choices': ['x', 'y', 'z'], 'answer': 2}",
          "{'context': 'The following are multiple choice questions (with answers) about high school law.\\n\\nWhy?"
          "\\nA. x\\nB. y\\nC. z\\nAnswer:', 'choices': ['A', 'B', 'C'], 'answer': 2}" },
        { "{'question': 'Why?', 'choices': ['x', 'y'], 'answer': 'B'}",
          "{'context': 'Why?\\nA. x\\nB. y\\nAnswer:', 'choices': ['A', 'B'], 'answer': 1}" },
        { "[\n{'context': 'a', 'choices': ['b', 'c'],\n 'answer': 'A'}]",
          "{'context': 'a', 'choices': ['b', 'c'], 'answer': 0}" },
    };
    Tokenizer *t = tokenizer_bytes();
    for (size_t i = 0; i < COUNT(same); i++) {
        Questions q[2];
        Error e = { 0 };
        int ok = 1;
        for (int k = 0; k < 2; k++) {
            char *json = text_format("%s", same[i][k]);
            for (char *c = json; *c; c++) if (*c == '\'') *c = '"';
            ok &= questions_parse(&q[k], "f", json, strlen(json), t, 256, &e);
            free(json);
        }
        ok = ok && q[0].at->choices == q[1].at->choices && q[0].at->answer == q[1].at->answer;
        for (int k = 0; ok && k < q[0].at->choices; k++) {
            const Candidate *a = &q[0].at->choice[k], *b = &q[1].at->choice[k];
            ok = a->count == b->count && a->scored == b->scored
                && !memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids);
        }
        check(ok, "%s is %s: %s", same[i][0], same[i][1], e.text);
        questions_free(&q[0]), questions_free(&q[1]);
    }
    tokenizer_free(t);
}

static void put(char *file, size_t at, int number) {
    file[at] = (char)(number & 255);
    file[at + 1] = (char)(number >> 8);
}
static void test_wrong_binary(void) {
    static const struct { size_t at; int number; const char *words; } wrong[] = {
        { 4, 2, "not of version 1" }, { 8, 0, "0 questions" }, { 8, 25, "question 25: it is damaged" },
        { 8, 23, "bytes after its last question" }, { 1024, 7, "question 1: it is damaged" },
        { 1026, 11, "question 1: it is damaged" }, { 1030, 4, "answer is 4" }, { 1032, 1, "1 choices" },
        { 1034, 0, "context is empty" }, { 1036, 620, "token 620, but the model has 620" }, };
    Error e = { 0 };
    size_t bytes;
    char *file = file_read(FOLDER "/hellaswag.bin", &bytes, &e), *copy = mem_alloc(bytes);
    Questions q;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        memcpy(copy, file, bytes);
        put(copy, wrong[i].at, wrong[i].number);
        check(!questions_parse(&q, "f", copy, bytes, NULL, 620, &e) && strstr(e.text, wrong[i].words),
              "llm.c's: '%s': %s", wrong[i].words, e.text);
    }
    size_t last = 1024 + 10;                            /* the number of tokens of the first question's last choice */
    for (int k = 0; k < 4; k++) last += 2 + 2 * (size_t)file[last];
    memcpy(copy, file, bytes);
    put(copy, last, file[last] - 1);
    check(!questions_parse(&q, "f", copy, bytes, NULL, 620, &e) && strstr(e.text, "question 1: it is damaged"),
          "llm.c's: a token too many: %s", e.text);
    for (size_t n = 4; n < bytes; n += 1 + n / 9)
        check(!questions_parse(&q, "f", file, n, NULL, 620, &e),
              "llm.c's questions, cut after %zu bytes: %s", n, e.text);
    free(copy), free(file);
}

void test_evaluate(void) {
    PART(test_answers());
    PART(test_scores());
    PART(test_published());
    PART(test_wrong_lines());
    PART(test_wrong_binary());
}
