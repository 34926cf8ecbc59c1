/* api.h: the API of infer_moe -m web, in OpenAI's forms: what /v1/completions and
 * /v1/chat/completions are sent, and what they answer. docs/api.md describes it.
 *
 * api_open reads a request as a whole (api_read.c): each key of it is used, or is known to change
 * nothing, or is refused by name. api_step then generates a little and writes what there is to
 * send (api.c). Nothing here knows of connections; web.c has them. */
#pragma once
#include "api_read.h"
#include "generate.h"
#include "odds.h"

typedef struct {                        /* a token of a text */
    int     id, record;                 /* record: of View; -1: none */
    size_t  from, bytes;                /* in the text */
    double  log;
    Odd     best[API_LIKELY];
    int     bests;
    int     is_first;                   /* nothing was before it: it has no odds */
} ApiToken;
typedef struct {                        /* an answer on its way */
    const Api *api;
    ApiRequest q;
    char    id[40];
    int64_t created;
    int     choice, read, begun;    /* of prompts * n, the one that is generated; how much of its prompt is read */
    int     fills;                      /* 1: it may go on until the context is full */
    int64_t left, prompt_tokens, tokens;                /* tokens that it may still draw; of all choices */
    size_t  sent, characters;           /* bytes and characters of its text */
    ApiToken *token;                    /* not sent yet */
    int     listed, capacity;
    Odds    odds;
    TextStyle style;
    int     end[MOST_ENDS], ends;
    Text    choices;                    /* complete ones, if they are not streamed */
    Text    calls, rest;                /* of functions, in a choice that has ended; its text without them */
} ApiJob;

/* Reads a request (a body of JSON). NULL and e: it is refused. */
ApiJob *api_open(const Api *a, int is_chat, const char *body, size_t bytes, ApiError *e);
void    api_close(ApiJob *j);

/* Generates a little with a generator of one sequence, whose style, sampler, seed and ends are
 * replaced; its view has all layers, or none. Appends to out what is to be sent now: of a stream,
 * events; else all at the end. expired: its time is over. Returns 1 at the end. If the model's
 * pause gives it up (g->d.model.stopped), api_close is what may follow. */
int  api_step(ApiJob *j, Generator *g, int expired, Text *out);
int  api_unread(const ApiJob *j);       /* tokens of its prompt that are still to be read */
void api_queued(const ApiJob *j, int before, Text *out);    /* of a stream: a comment: how many are before it */

void api_error(const ApiError *e, Text *out);               /* the body of an answer */
/* A model as /v1/models lists it, with what a page must know of it. */
void api_model(const Api *a, const Generator *g, Text *out);
/* The name of a model: that of its folder, or of the run whose best it is; free() it. */
char *api_name(const char *folder);
