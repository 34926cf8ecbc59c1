/* evaluate.c: see evaluate.h. Questions are taken in blocks of several batches. Within a block the
 * sequences, a context and a choice each, are sorted by length, so that a batch holds sequences of
 * about the same length and little padding. Padding is at their ends, where no token sees it. */
#include "evaluate.h"
#include "llmc/data/meter.h"
#include "llmc/model/batch.h"
#include "llmc/model/pass.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 8 };                   /* of a block */

typedef struct { const Candidate *choice; size_t index; } Sequence;        /* index: of its result in the block */

static int batch_tokens(const Device *dev) { return dev->is_gpu ? 16384 : 4096; }

double evaluate_error(int64_t right, int64_t n) {
    const double p = n ? (double)right / (double)n : 0;
    return n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : 0;
}

int evaluate_answer(const Question *q, const double *logp, Measure by) {
    int best = 0;
    double most = -INFINITY;
    for (int k = 0; k < q->choices; k++) {
        const int size = by == PER_TOKEN ? q->choice[k].scored : by == PER_CHARACTER ? q->choice[k].characters : 1;
        const double score = logp[k] / (size > 0 ? size : 1);
        if (score > most) most = score, best = k;
    }
    return best;
}

void evaluate_plan(Model *m, const Device *dev, const Config *c, const Questions *q, Relay *relay) {
    int longest = 1;
    int64_t all = 0;
    for (size_t i = 0; i < q->count; i++)
        for (int k = 0; k < q->at[i].choices; k++) {
            const int n = q->at[i].choice[k].count - 1;     /* the last token is not read */
            if (n > longest) longest = n;
            all += n;
        }
    const int64_t tokens = all < batch_tokens(dev) ? all : batch_tokens(dev);
    const int B = (int)((tokens + longest - 1) / longest);
    model_plan_dealt(m, dev, c, B, longest, 0, relay);
}

static int longest_first(const void *a, const void *b) {
    const Sequence *x = a, *y = b;
    return x->choice->count != y->choice->count ? y->choice->count - x->choice->count : x->index < y->index ? -1 : 1;
}

/* logp of n sequences, of which the first is the longest. */
static int run_batch(Model *m, const Sequence *s, int n, double *logp, Error *e) {
    const size_t T = (size_t)s[0].choice->count - 1, N = (size_t)n * T;
    int *tokens = mem_alloc(2 * N * sizeof *tokens), *targets = tokens + N, ok = 1;
    double *loss = mem_alloc(N * sizeof *loss);
    for (int b = 0; b < n; b++) {
        const size_t bytes = (size_t)(s[b].choice->count - 1) * sizeof *tokens;
        memcpy(tokens + (size_t)b * T, s[b].choice->ids, bytes);
        memcpy(targets + (size_t)b * T, s[b].choice->ids + 1, bytes);
    }
    model_batch(m, tokens, targets, n, (int)T);
    model_forward(m);
    model_loss(m, 0);
    m->dev->reals_to_double(loss, m->loss, N);
    for (int b = 0; b < n; b++) {
        const Candidate *c = s[b].choice;
        double sum = 0;
        for (int i = c->count - 1 - c->scored; i < c->count - 1; i++) sum -= loss[(size_t)b * T + (size_t)i];
        logp[s[b].index] = sum;
        ok &= isfinite(sum) != 0;
    }
    free_each(loss, tokens);
    return ok || error_set(e, "a likelihood is not finite on %s: the weights are damaged, or too large for "
                           "this device (-dv)", m->dev->name);
}

static int add_details(FileWriter *to, const Question *q, const double *logp, Error *e) {
    Text line = { 0 };
    text_add(&line, "{\"line\": %zu, \"answer\": %d, \"logprobs\": [", q->line, q->answer);
    for (int k = 0; k < q->choices; k++) {
        if (k) text_add_string(&line, ", ");
        text_add_real(&line, logp[k]);
    }
    text_add_string(&line, "], \"tokens\": [");
    for (int k = 0; k < q->choices; k++) text_add(&line, k ? ", %d" : "%d", q->choice[k].scored);
    text_add_string(&line, "], \"characters\": [");
    for (int k = 0; k < q->choices; k++) text_add(&line, k ? ", %d" : "%d", q->choice[k].characters);
    text_add_string(&line, "]}\n");
    const int ok = file_add(to, line.at, line.length, e);
    free(line.at);
    return ok;
}

/* Questions from.. up to the end of a block. Returns the first question after it. */
static size_t block_end(const Questions *q, size_t from, int tokens) {
    int64_t all = 0;
    for (; from < q->count && all < (int64_t)BATCHES * tokens; from++)
        for (int k = 0; k < q->at[from].choices; k++) all += q->at[from].choice[k].count - 1;
    return from;
}

/* The sequences of questions from..to-1; logp of their choices, in order. 0: failed or stopped. */
static int run_block(Model *m, const Questions *q, size_t from, size_t to, const volatile sig_atomic_t *interrupted,
                     Meter *meter, double *logp, int tokens, Error *e) {
    size_t n = 0, k = 0;
    int ok = 1;
    for (size_t i = from; i < to; i++) n += (size_t)q->at[i].choices;
    Sequence *s = mem_alloc(n * sizeof *s);
    for (size_t i = from; i < to; i++)
        for (int c = 0; c < q->at[i].choices; c++, k++) s[k] = (Sequence){ &q->at[i].choice[c], k };
    qsort(s, n, sizeof *s, longest_first);
    for (size_t i = 0, b; i < n && ok && !*interrupted; i += b) {
        const size_t most = (size_t)(tokens / (s[i].choice->count - 1));
        b = n - i < most ? n - i : most;
        ok = run_batch(m, s + i, (int)b, logp, e);
        meter_add(meter, (int64_t)b);
    }
    free(s);
    return ok;
}
int evaluate(Model *m, const Questions *q, const volatile sig_atomic_t *interrupted, int visible, FileWriter *details,
             Evaluation *out, Error *e) {
    const int tokens = m->batch.N;
    size_t choices = 0, most = 0;
    Meter meter;
    *out = (Evaluation){ .has_characters = 1 };
    for (size_t i = 0; i < q->count; i++) choices += (size_t)q->at[i].choices;
    meter_begin(&meter, visible, "evaluating", (int64_t)choices, "choices");
    double *logp = NULL;
    int ok = 1;
    for (size_t from = 0, to; from < q->count && ok && !*interrupted; from = to) {
        size_t n = 0;
        to = block_end(q, from, tokens);
        for (size_t i = from; i < to; i++) n += (size_t)q->at[i].choices;
        if (n > most) logp = mem_grow(logp, (most = n) * sizeof *logp);
        ok = run_block(m, q, from, to, interrupted, &meter, logp, tokens, e);
        if (*interrupted) break;
        const double *at = logp;
        for (size_t i = from; i < to && ok; at += q->at[i++].choices) {
            const Question *one = &q->at[i];
            for (int by = 0; by < MEASURES; by++)
                out->right[by] += evaluate_answer(one, at, (Measure)by) == one->answer;
            for (int k = 0; k < one->choices; k++) out->has_characters &= one->choice[k].characters > 0;
            out->questions++;
            if (details) ok = add_details(details, one, at, e);
        }
    }
    meter_end(&meter);
    free(logp);
    return ok;
}
