/* questions.c: see questions.h. */
#include "questions.h"
#include "forms.h"
#include "records.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHOICES = 1 << 10 };

void questions_free(Questions *q) {
    for (size_t i = 0; i < q->count; i++) {
        for (int k = 0; k < q->at[i].choices; k++) free(q->at[i].choice[k].ids);
        free(q->at[i].choice);
    }
    free(q->at);
    *q = (Questions){ 0 };
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* What a model reads before a choice, as lm-eval's tasks have it: the context; "Question: ...
 * Answer:"; or that with all choices as a list of letters, which then are the choices. */
typedef enum { PLAIN, QUESTION, LETTERS } Style;
static const struct { const char *context, *choices, *answer; Style style; } forms[] = {
    { "ctx",           "endings", "label",     PLAIN },                 /* HellaSwag */
    { "context",       "choices", "answer",    PLAIN },
    { "question_stem", "choices", "answerKey", PLAIN },                 /* OpenBookQA */
    { "question",      "choices", "answerKey", QUESTION },                  /* ARC */
    { "question",      "choices", "answer",    LETTERS },               /* MMLU */
};
enum { FORMS = sizeof forms / sizeof *forms };
#define EXPECTED "expected {\"context\": \"...\", \"choices\": [\"...\", ...], \"answer\": 0} or the keys of " \
    "HellaSwag, ARC, OpenBookQA or MMLU"
/* What is there besides, and means nothing. */
static const char *const besides[] = { "ind", "activity_label", "ctx_a", "ctx_b", "split_type", "fact1", "humanScore",
                                       "clarity", "turkIdAnonymized" };

/* White space at the end of the context belongs to the choice. 0: the choice has no tokens. */
static int encode_choice(Candidate *c, const Tokenizer *t, Words context, Words choice) {
    size_t n = context.bytes;
    while (n && text_is_white(context.at[n - 1])) n--;
    Text full = { 0 };
    int *ids;
    text_add_bytes(&full, context.at, context.bytes);
    if (n == context.bytes && !text_is_white(*choice.at)) text_add_string(&full, " ");
    text_add_bytes(&full, choice.at, choice.bytes);
    size_t before = tokenizer_encode(t, context.at, n, &ids);
    free(ids);
    size_t count = tokenizer_encode(t, full.at, full.length, &ids);
    free(full.at);
    const size_t plain = count;
    count = tokenizer_begin(t, &ids, count, !before);
    before += count - plain;
    if (before >= count) before = count - 1;                /* the last token of the context reaches into the choice */
    *c = (Candidate){ .ids = ids, .count = (int)count, .scored = (int)(count - before),
                   .characters = (int)utf8_count(choice.at, choice.bytes) };
    return count > 1;
}

/* Choices with their labels, of which .at is NULL if they have none. */
typedef struct { Words *text, *label; int count; } Choices;

static int add_choice(Choices *c, const JsonValue *text, const JsonValue *label, const char *key, Error *e) {
    const int k = c->count++;
    if (!json_is(text, JSON_STRING) || text_is_blank(text->is.string, text->length))
        return error_set(e, "choice %d of \"%s\" is %s", k, key, json_is(text, JSON_STRING) ? "empty" : "not a string");
    if (label && (!json_is(label, JSON_STRING) || !label->length))
        return error_set(e, "choice %d of \"%s\" has a label that is not a string", k, key);
    c->text[k] = (Words){ text->is.string, text->length };
    c->label[k] = label ? (Words){ label->is.string, label->length } : (Words){ 0 };
    return 1;
}
/* A list of strings or of {"text", "label"}; or {"text": [...], "label": [...]}. */
static int read_choices(Choices *c, const JsonValue *v, const char *key, Error *e) {
    const JsonValue *list = json_is(v, JSON_OBJECT) && json_get(v, "text") ? json_get(v, "text") : v,
        *labels = list == v ? NULL : json_get(v, "label");
    if (!json_is(list, JSON_ARRAY)) return error_set(e, "\"%s\" is not a list", key);
    if (list->length < 2 || list->length > MOST_CHOICES)
        return error_set(e, "\"%s\" has %zu choices; it has 2 to %d", key, list->length, MOST_CHOICES);
    if (list != v && (!json_is(labels, JSON_ARRAY) || labels->length != list->length))
        return error_set(e, "\"%s\" does not have a \"label\" for each \"text\"", key);
    *c = (Choices){ mem_alloc(list->length * sizeof *c->text), mem_alloc(list->length * sizeof *c->label), 0 };
    labels = json_first(labels);
    for (const JsonValue *one = json_first(list); one; one = one->next, labels = labels ? labels->next : NULL) {
        const int is_object = json_is(one, JSON_OBJECT);
        const JsonValue *text = is_object ? json_get(one, "text") : one, *label = is_object ? json_get(one, "label")
                                                                                            : labels;
        if (!add_choice(c, text, label, key, e)) return 0;
    }
    return 1;
}

static int same_words(Words w, const JsonValue *v) {
    return w.at && w.bytes == v->length && !memcmp(w.at, v->is.string, w.bytes);
}
/* The number of a string: that of the label, if there are labels; else a letter from A on, or
 * digits, from 0 on, as some copies of HellaSwag have them. -1: it is neither. */
static long number_of(const JsonValue *v, const Choices *c) {
    const char *text = json_string(v, "");
    char *end;
    for (int k = 0; k < c->count; k++) if (same_words(c->label[k], v)) return k;
    if (c->label->at || !*text) return -1;
    if (*text >= 'A' && *text <= 'Z' && !text[1]) return *text - 'A';
    const long number = strtol(text, &end, 10);
    return *end ? -1 : number;
}
static int read_answer(const JsonValue *v, const char *key, const Choices *c, int *answer, Error *e) {
    if (!v) return error_set(e, "\"%s\" is missing", key);
    const int is_string = json_is(v, JSON_STRING);
    const long number = json_is(v, JSON_INT) ? (long)json_int(v, -1) : is_string ? number_of(v, c) : -1;
    if (number < 0 && !json_is(v, JSON_INT) && (c->label->at || strcmp(json_string(v, ""), "-1")))
        return error_set(e, c->label->at ? "\"%s\" is none of the labels of the choices"
                                         : "\"%s\" is no whole number and no letter", key);
    if (number < 0 || number >= c->count)
        return error_set(e, "\"%s\" is %ld, but the choices are 0 to %d", key, number, c->count - 1);
    for (int k = 0; k < c->count; k++)
        if (k != number && is_string && same_words(c->text[k], v))
            return error_set(e, "\"%s\" is the text of choice %d, and stands for choice %ld, too: write the number, "
                             "from 0 on", key, k, number);
    *answer = (int)number;
    return 1;
}

/* What is read before a choice; choices become letters where they are listed. */
static Text write_context(const JsonValue *root, Words context, Choices *c, Style style) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *subject = json_string(json_get(root, "subject"), "");
    Text text = { 0 };
    if (style == LETTERS) {
        while (context.bytes && text_is_white(*context.at)) context.at++, context.bytes--;
        while (context.bytes && text_is_white(context.at[context.bytes - 1])) context.bytes--;
        if (*subject) text_add_string(&text, "The following are multiple choice questions (with answers) about ");
        for (const char *s = subject; *s; s++) text_add_bytes(&text, *s == '_' ? " " : s, 1);
        if (*subject) text_add_string(&text, ".\n\n");
    }
    if (style == QUESTION) text_add_string(&text, "Question: ");
    text_add_bytes(&text, context.at, context.bytes);
    for (int k = 0; k < c->count && style == LETTERS; k++) {
        text_add(&text, "\n%c. ", letters[k]);
        text_add_bytes(&text, c->text[k].at, c->text[k].bytes);
        c->text[k] = (Words){ letters + k, 1 };
    }
    if (style != PLAIN) text_add_string(&text, "\nAnswer:");
    return text;
}

static int check_keys(const JsonValue *root, int form, Error *e) {
    for (const JsonValue *v = json_first(root); v; v = v->next) {
        if (!text_is_among(v->key, besides) && strcmp(v->key, forms[form].context)
            && strcmp(v->key, forms[form].choices) && strcmp(v->key, forms[form].answer) && !form_is_harmless(v)
            && v->type != JSON_NULL)
            return error_set(e, "found the key \"%.60s\", which is not known: take it out if it means nothing to the "
                             "question", v->key);
    }
    return 1;
}
static int read_question(Question *q, const JsonValue *root, const Tokenizer *t, Error *e) {
    const JsonValue *inner = json_get(json_get(root, "question"), "stem") ? json_get(root, "question") : root;
    int f = -1;
    for (int i = 0; i < FORMS; i++)                         /* the first with an answer, or just the first */
        if (json_get(root, forms[i].context) && json_get(inner, forms[i].choices)
            && (f < 0 || (!json_get(root, forms[f].answer) && json_get(root, forms[i].answer)))) f = i;
    const JsonValue *context = f < 0 ? NULL : inner == root ? json_get(root, forms[f].context)
                                            : json_get(inner, "stem");
    Choices c = { 0 };
    if (!json_is(context, JSON_STRING)) return error_set(e, EXPECTED);
    if (context->length > INT_MAX / 8) return error_set(e, "\"%s\" is too long", forms[f].context);
    int ok = check_keys(root, f, e) && read_choices(&c, json_get(inner, forms[f].choices), forms[f].choices, e)
        && read_answer(json_get(root, forms[f].answer), forms[f].answer, &c, &q->answer, e)
        && (forms[f].style != LETTERS || c.count <= 26 || error_set(e, "more choices than letters"));
    if (ok) {
        Text before = write_context(root, (Words){ context->is.string, context->length }, &c, forms[f].style);
        q->choice = mem_alloc((size_t)c.count * sizeof *q->choice);
        for (int k = 0; ok && k < c.count; k++, q->choices++)
            ok = encode_choice(&q->choice[k], t, (Words){ before.at, before.length }, c.text[k])
                || error_set(e, "choice %d has no tokens", k);
        free(before.at);
    }
    free_each(c.text, c.label);
    return ok;
}

static int read_record(Question *q, const Record *r, const Tokenizer *t, Error *e) {
    Error why;
    Json *json = json_parse_record(r->at, r->bytes, &why);
    const int ok = json ? read_question(q, json_root(json), t, e) : error_set(e, EXPECTED ": %.400s", why.text);
    json_free(json);
    return ok;
}
static int parse_records(Questions *q, const char *path, const char *text, size_t bytes, const Tokenizer *t, Error *e) {
    Records r = { 0 };
    Error why = { 0 };
    if (!t) return error_set(e, "%s: its texts need a tokenizer (-z)", path);
    if (text_is_blank(text, bytes)) return error_set(e, "%s: it holds no questions", path);
    int64_t bad = records_find(&r, text, bytes, &why) ? INT64_MAX : -1;
    q->at = mem_alloc((r.count + 1) * sizeof *q->at);
    q->count = r.count;
    #pragma omp parallel for schedule(dynamic, 8)
    for (int64_t i = 0; i < (bad < 0 ? 0 : (int64_t)r.count); i++) {
        Error mine;
        q->at[i].line = r.at[i].line;
        if (read_record(&q->at[i], &r.at[i], t, &mine)) continue;
        #pragma omp critical(questions)
        if (i < bad) bad = i, why = mine;
    }
    if (bad < 0) error_set(e, "%s: %.800s", path, why.text);
    else if (bad < INT64_MAX) error_set(e, "%s: line %zu: %.800s", path, r.at[bad].line, why.text);
    else if (!r.count) bad = error_set(e, "%s: it holds no questions", path);
    free(r.at);
    return bad == INT64_MAX;
}

/* ---- llm.c's binary: 256 int32, then numbers of 16 bits -------------------------------------- */

enum { MAGIC = 20240522, HEADER = 1024, START = 65535, NUMBERS = 6 };

static int word(const char *at) { return (unsigned char)at[0] | (unsigned char)at[1] << 8; }
static int64_t word32(const char *at) { return word(at) | (int64_t)word(at + 2) << 16; }

/* The characters of a choice: those of its tokens without the space in front of it. */
static int token_characters(const Tokenizer *t, const int *ids, int count) {
    int n = 0;
    size_t bytes;
    if (!t) return 0;
    for (int i = 0; i < count; i++) {
        const char *piece = tokenizer_piece(t, ids[i], &bytes);
        n += (int)utf8_count(piece, bytes) - (i == 0 && bytes && *piece == ' ');
    }
    return n;
}

/* START, bytes of the question, its number, answer, choices; then, each after their number, the
 * tokens of the context and of each choice. Returns the bytes; 0 if they are damaged. */
static size_t read_binary(Question *q, const char *at, size_t left, const Tokenizer *t, int vocab, Error *e) {
    const size_t bytes = left >= 2 * NUMBERS ? (size_t)word(at + 2) : 0;
    if (bytes < 2 * NUMBERS || bytes > left || word(at) != START) return (size_t)error_set(e, "it is damaged");
    const int choices = word(at + 8), context = word(at + 10);
    size_t from = 2 * NUMBERS + 2 * (size_t)context;
    q->answer = word(at + 6);
    if (choices < 2 || choices > MOST_CHOICES)
        return (size_t)error_set(e, "%d choices; a question has 2 to %d", choices, MOST_CHOICES);
    if (q->answer >= choices)
        return (size_t)error_set(e, "its answer is %d, but the choices are 0 to %d", q->answer, choices - 1);
    if (!context) return (size_t)error_set(e, "its context is empty");
    q->choice = mem_alloc((size_t)choices * sizeof *q->choice);
    for (int k = 0; k < choices; k++) {
        const int n = from + 2 <= bytes ? word(at + from) : 0;
        if (from + 2 + 2 * (size_t)n > bytes) return (size_t)error_set(e, "it is damaged");
        if (!n) return (size_t)error_set(e, "choice %d is empty", k);
        Candidate *c = &q->choice[q->choices++];
        *c = (Candidate){ .ids = mem_alloc((size_t)(context + n) * sizeof *c->ids), .count = context + n, .scored = n };
        for (int i = 0; i < c->count; i++) {
            c->ids[i] = word(at + (i < context ? (size_t)(2 * NUMBERS + 2 * i) : from + 2 + 2 * (size_t)(i - context)));
            if (c->ids[i] >= vocab)
                return (size_t)error_set(e, "token %d, but the model has %d: this file is for models with "
                                         "GPT-2's tokenizer", c->ids[i], vocab);
        }
        c->characters = token_characters(t, c->ids + context, n);
        from += 2 + 2 * (size_t)n;
    }
    return from == bytes ? bytes : (size_t)error_set(e, "it is damaged");
}

static int parse_binary(Questions *q, const char *path, const char *text, size_t bytes, const Tokenizer *t,
                        int vocab, Error *e) {
    const int64_t version = bytes >= HEADER ? word32(text + 4) : 0, count = bytes >= HEADER ? word32(text + 8) : 0;
    Error why;
    q->binary = 1;
    if (version != 1) return error_set(e, "%s: questions of llm.c, but not of version 1", path);
    if (!count || count > (int64_t)(bytes / (2 * NUMBERS)))
        return error_set(e, "%s: its head says %lld questions", path, (long long)count);
    q->at = mem_alloc((size_t)count * sizeof *q->at);
    size_t from = HEADER;
    for (size_t n; q->count < (size_t)count; from += n) {
        Question *one = &q->at[q->count++];
        one->line = q->count;
        if (!(n = read_binary(one, text + from, bytes - from, t, vocab, &why)))
            return error_set(e, "%s: question %zu: %.800s", path, one->line, why.text);
    }
    return from == bytes || error_set(e, "%s: %zu bytes after its last question", path, bytes - from);
}

/* ---- all of them ----------------------------------------------------------------------------- */

int questions_parse(Questions *q, const char *path, const char *text, size_t bytes, const Tokenizer *t,
                    int vocab, Error *e) {
    *q = (Questions){ 0 };
    const int ok = bytes >= 4 && word32(text) == MAGIC ? parse_binary(q, path, text, bytes, t, vocab, e)
                                                       : parse_records(q, path, text, bytes, t, e);
    if (!ok) questions_free(q);
    return ok;
}
int questions_read(Questions *q, const char *path, const Tokenizer *t, int vocab, Error *e) {
    size_t bytes;
    char *text = file_read(path, &bytes, e);
    const int ok = text && questions_parse(q, path, text, bytes, t, vocab, e);
    free(text);
    return ok;
}

int questions_cut(Questions *q, const char *path, int context, size_t *cut, Error *e) {
    *cut = 0;
    for (size_t i = 0; i < q->count; i++) {
        int is_cut = 0;
        for (int k = 0; k < q->at[i].choices; k++) {
            Candidate *c = &q->at[i].choice[k];
            const int more = c->count - (context + 1);      /* the last token is predicted, not read */
            if (c->scored > context)
                return error_set(e, "%s: %s %zu: choice %d has %d tokens, more than the %d that the model sees (-c)",
                                 path, q->binary ? "question" : "line", q->at[i].line, k, c->scored, context);
            if (more <= 0) continue;
            memmove(c->ids, c->ids + more, (size_t)(c->count -= more) * sizeof *c->ids);
            is_cut = 1;
        }
        *cut += (size_t)is_cut;
    }
    return 1;
}
