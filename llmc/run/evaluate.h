/* evaluate.h: how many questions a model answers rightly, if its answer is the most likely choice,
 * in three measures, because a sum over the tokens of a choice favours short ones. */
#pragma once
#include <signal.h>
#include "llmc/data/questions.h"
#include "llmc/model/relay.h"

typedef enum {
    RAW,                             /* log-likelihood: lm-eval's acc */
    PER_TOKEN,                           /* per token of the choice: llm.c's accuracy */
    PER_CHARACTER,                       /* per character of the choice's text: lm-eval's acc_norm */
    MEASURES
} Measure;

typedef struct {
    int64_t questions;                  /* answered; fewer than there are after an interruption */
    int64_t right[MEASURES];
    int     has_characters;             /* 0: the texts are not known, and right[PER_CHARACTER] means nothing */
} Evaluation;

/* The index of the largest value; of equal ones the first, as numpy's argmax. */
int evaluate_answer(const Question *q, const double *logp, Measure by);

/* Plans a model for batches of such questions, each of several choices of several questions;
 * allocates nothing. relay: NULL, or the devices that its layers are dealt out to. */
void evaluate_plan(Model *m, const Device *dev, const Config *c, const Questions *q, Relay *relay);

/* details: NULL, or receives a line of JSON for each question: {"line", "answer", "logprobs",
 * "tokens", "characters"}. visible: progress is shown on stderr. 0 and e: a likelihood is not
 * finite, or details cannot be written. */
int evaluate(Model *m, const Questions *q, const volatile sig_atomic_t *interrupted, int visible, FileWriter *details,
             Evaluation *out, Error *e);

/* The standard error of a mean of n values that are 0 or 1, `right` of which are 1. */
double evaluate_error(int64_t right, int64_t n);
