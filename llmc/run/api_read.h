/* api_read.h: requests of the API (api.h): what each key means, or that it is refused by name. */
#pragma once
#include "llmc/data/chat.h"
#include "llmc/files/hf.h"
#include "options.h"

/* most choices of an answer, stop strings, alternatives of a token, tokens of a choice; a measure
 * of the bytes of an answer that is sent in one piece */
enum { API_CHOICES = 16, API_STOPS = 16, API_LIKELY = 20, API_TOKENS = 1 << 16, API_PIECE = 1 << 19 };

typedef struct {                        /* of the model, for all requests */
    const char *name;                   /* in requests and answers */
    Options options;                    /* of infer_moe: the values of what a request does not set */
    const Tokenizer *tokenizer;         /* NULL: prompts are ids */
    const Chat *chat;                   /* how conversations are written; NULL, or without a template: there are none */
    int     vocab, capacity;            /* ids; positions of the cache */
    int     width;                      /* experts that a token has, in all layers */
    int     end[MOST_ENDS], ends;       /* tokens that end a text */
    int64_t created;                    /* seconds since 1970 */
    const char *device, *prompt;        /* prompt: in the page at first */
} Api;

typedef struct { int status; const char *type; char param[64]; const char *code; Error e; } ApiError;
typedef struct { char *text; size_t bytes; int *ids, count; } ApiPrompt;        /* text: NULL if ids were given */
typedef struct {                        /* what a request says */
    int     is_chat, stream, echo, logprobs, experts;
    int     usage, cut;                 /* usage: at the end of a stream; cut: "truncation": "auto" */
    int     calls;                      /* functions were offered: calls are read out of the answer */
    int     likely;                     /* alternatives of each token, if logprobs */
    int     tokens, n, top_k, best_of;  /* tokens: at most; 0: as many as fit, unless `limited` */
    int     limited;                    /* 1: tokens is from the request */
    float   temperature, top_p, min_p, penalty, presence, frequency;
    int64_t seed;                       /* -1: none is given */
    char  **stops;
    ApiPrompt *prompt;
    int     prompts;
    size_t  dropped, controls;          /* tokens of the prompt that were left out; control tokens in messages */
} ApiRequest;

/* Reads a request (a body of JSON) into q, which api_free_request frees in any case. 0 and e: it is
 * refused. */
int  api_read(const Api *a, ApiRequest *q, int is_chat, const char *body, size_t bytes, ApiError *e);
void api_free_request(ApiRequest *q);
/* Members of a JSON object: the numbers that a page may offer, with ranges; the stop strings. */
void api_settings(const Api *a, Text *out);
