/* questions.c: see questions.h. */
#include "questions.h"
#include "llmc/base/json.h"
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

static int characters(const char *text, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return (int)n;
}

/* ---- JSONL ----------------------------------------------------------------------------------- */

static const struct { const char *context, *choices, *answer; } forms[] = {
    { "ctx", "endings", "label" }, { "context", "choices", "answer" },
};

/* White space at the end of the context belongs to the choice. 0: the choice has no tokens. */
static int encode_choice(Candidate *c, const Tokenizer *t, const JsonValue *context, const JsonValue *choice) {
    size_t n = context->length;
    while (n && text_is_white(context->is.string[n - 1])) n--;
    Text full = { 0 };
    int *ids;
    text_add_bytes(&full, context->is.string, context->length);
    if (n == context->length && !text_is_white(choice->is.string[0])) text_add_string(&full, " ");
    text_add_bytes(&full, choice->is.string, choice->length);
    size_t before = tokenizer_encode(t, context->is.string, n, &ids);
    free(ids);
    size_t count = tokenizer_encode(t, full.at, full.length, &ids);
    free(full.at);
    if (tokenizer_bos(t) >= 0 || !before) {
        ids = mem_grow(ids, (count + 1) * sizeof *ids);
        memmove(ids + 1, ids, count++ * sizeof *ids);
        ids[0] = tokenizer_first(t);
        before++;
    }
    if (before >= count) before = count - 1;                /* the last token of the context reaches into the choice */
    *c = (Candidate){ .ids = ids, .count = (int)count, .scored = (int)(count - before),
                   .characters = characters(choice->is.string, choice->length) };
    return count > 1;
}

static int check_choices(const JsonValue *choices, const char *key, Error *e) {
    int k = 0;
    if (!json_is(choices, JSON_ARRAY)) return error_set(e, "\"%s\" is not a list", key);
    if (choices->length < 2 || choices->length > MOST_CHOICES)
        return error_set(e, "\"%s\" has %zu choices; it has 2 to %d", key, choices->length, MOST_CHOICES);
    for (const JsonValue *v = json_first(choices); v; v = v->next, k++)
        if (!json_is(v, JSON_STRING) || text_is_blank(v->is.string, v->length))
            return error_set(e, "choice %d of \"%s\" is %s", k, key,
                             json_is(v, JSON_STRING) ? "empty" : "not a string");
    return 1;
}

/* A number, or a string of one, as some copies of HellaSwag have it. */
static int read_answer(const JsonValue *v, const char *key, int choices, int *answer, Error *e) {
    const char *text = json_string(v, "");
    char *end;
    const long number = json_is(v, JSON_INT) ? (long)json_int(v, -1) : strtol(text, &end, 10);
    if (!v) return error_set(e, "\"%s\" is missing", key);
    if (!json_is(v, JSON_INT) && (!*text || *end)) return error_set(e, "\"%s\" is no whole number", key);
    if (number < 0 || number >= choices)
        return error_set(e, "\"%s\" is %ld, but the choices are 0 to %d", key, number, choices - 1);
    *answer = (int)number;
    return 1;
}

static int read_question(Question *q, const JsonValue *root, const Tokenizer *t, Error *e) {
    const int f = json_get(root, forms[0].choices) ? 0 : 1;
    const JsonValue *context = json_get(root, forms[f].context), *choices = json_get(root, forms[f].choices);
    if (!choices || !json_is(context, JSON_STRING))
        return error_set(e, "expected {\"context\": \"...\", \"choices\": [\"...\", ...], \"answer\": 0} or "
                            "HellaSwag's \"ctx\", \"endings\" and \"label\"");
    if (context->length > INT_MAX / 8) return error_set(e, "\"%s\" is too long", forms[f].context);
    if (!check_choices(choices, forms[f].choices, e)) return 0;
    if (!read_answer(json_get(root, forms[f].answer), forms[f].answer, (int)choices->length, &q->answer, e)) return 0;
    q->choice = mem_alloc(choices->length * sizeof *q->choice);
    for (const JsonValue *v = json_first(choices); v; v = v->next)
        if (!encode_choice(&q->choice[q->choices++], t, context, v))
            return error_set(e, "choice %d has no tokens", q->choices - 1);
    return 1;
}

static int read_line(Question *q, const char *line, size_t bytes, const Tokenizer *t, Error *e) {
    Error why;
    Json *json = json_parse_line(line, bytes, &why);
    const int ok = json ? read_question(q, json_root(json), t, e)
                 : error_set(e, "expected {\"context\": \"...\", \"choices\": [\"...\", ...], \"answer\": 0} or "
                             "HellaSwag's form: %.400s", why.text);
    json_free(json);
    return ok;
}
static int parse_lines(Questions *q, const char *path, const char *text, size_t bytes, const Tokenizer *t, Error *e) {
    const char **at = NULL, *end = text + bytes;
    size_t lines = 0, capacity = 0;
    if (!t) return error_set(e, "%s: its texts need a tokenizer (-z)", path);
    for (const char *from = text, *next; from < end; from = next + 1) {
        if (!(next = memchr(from, '\n', (size_t)(end - from)))) next = end;
        if (lines + 1 >= capacity) at = mem_grow(at, (capacity = 2 * capacity + 16) * sizeof *at);
        at[lines++] = from;
        at[lines] = next + 1;
    }
    Question *all = mem_alloc(lines * sizeof *all);
    int64_t bad = INT64_MAX;
    Error why = { 0 };
    #pragma omp parallel for schedule(dynamic, 8)
    for (int64_t i = 0; i < (int64_t)lines; i++) {
        Error mine;
        const size_t n = (size_t)(at[i + 1] - at[i]) - 1;
        if (text_is_blank(at[i], n) || read_line(&all[i], at[i], n, t, &mine)) continue;
        #pragma omp critical(questions)
        if (i < bad) bad = i, why = mine;
    }
    for (size_t i = 0; i < lines; i++) all[i].line = i + 1;
    for (size_t i = 0; i < lines; i++) if (all[i].choices) all[q->count++] = all[i];
    q->at = all;
    free(at);
    if (bad == INT64_MAX) return q->count > 0 || error_set(e, "%s: it holds no questions", path);
    return error_set(e, "%s: line %lld: %.800s", path, (long long)bad + 1, why.text);
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
        n += characters(piece, bytes) - (i == 0 && bytes && *piece == ' ');
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
                                                       : parse_lines(q, path, text, bytes, t, e);
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
