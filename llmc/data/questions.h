/* questions.h: multiple-choice questions, which measure a model: each has a context, choices that
 * could follow it, and the number of the right one.
 *
 * Forms, told apart by their content:
 *   llm.c      its binary of HellaSwag (dev/data/hellaswag.py): tokens of GPT-2, version 1
 *   JSON       records (records.h) with the keys of HellaSwag (ctx, endings, label), ARC (question,
 *              choices {text, label}, answerKey; also with the question's stem and choices in an
 *              object), OpenBookQA, MMLU (question, choices, answer, subject), or plain ones:
 *              {"context": "...", "choices": ["...", ...], "answer": 2}. An answer is a number
 *              from 0 on, a letter from A on, or the label of a choice.
 * lm-eval's tasks say what stands before a choice: for ARC "Question: ...\nAnswer:", for MMLU the
 * question, its choices as a list from A on, and "\nAnswer:", after which letters are the choices
 * (in front of it the line that names the subject, if there is one; no examples).
 * Texts are encoded as lm-eval does: context and choice as one text, with a space between them
 * unless there is white space already; what remains after the context's own number of tokens is the
 * choice's. A context without tokens becomes the token that begins a text (tokenizer_first). */
#pragma once
#include "tokenizer.h"

typedef struct {
    int *ids, count;                    /* of context and choice */
    int  scored;                        /* how many of them, the last ones, are the choice's; fewer than all */
    int  characters;                    /* of the choice's text, as Python counts them; 0: not known */
} Candidate;
/* line: of the file; in a binary, its number; from 1 */
typedef struct { Candidate *choice; int choices, answer; size_t line; } Question;
typedef struct { Question *at; size_t count; int binary; } Questions;

/* Of a file, or of its bytes; path: for messages. tokenizer: may be NULL for llm.c's binary. vocab:
 * ids are below. On an error the line is in the message and *q is empty. */
int  questions_read(Questions *q, const char *path, const Tokenizer *tokenizer, int vocab, Error *e);
int  questions_parse(Questions *q, const char *path, const char *text, size_t bytes, const Tokenizer *tokenizer,
                     int vocab, Error *e);
void questions_free(Questions *q);

/* Removes tokens at the beginning of contexts, so that a model of `context` tokens sees each choice
 * to its end. *cut: questions that lost any. 0 and e: a choice alone is longer. */
int  questions_cut(Questions *q, const char *path, int context, size_t *cut, Error *e);
