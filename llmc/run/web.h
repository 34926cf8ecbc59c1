/* web.h: a page to talk to a model (infer_moe -m web): an HTTP server of one thread, which between
 * the steps of generations looks at its sockets.
 *
 *   GET  /           the page (llmc/run/web/), one file without references
 *   GET  /model      JSON: what the page must know of the model; options that a request may set
 *   POST /generate   JSON (Content-Type: application/json): {"prompt": "...", "temperature": 0.8,
 *                    ...}, options by name; what is missing has infer_moe's value.
 *                    Or {"messages": [{"role": "user", "content": "..."}], ...}, where the model
 *                    has a chat template: the text is then the answer. Of a conversation that is
 *                    too long, the oldest questions and answers are left out.
 *                    The answer comes as it is made, a JSON object in each line:
 *     {"queue": 2}                                       how many wait before this one
 *     {"seed": 5, "prompt_tokens": 12, "dropped": 0}     it begins; dropped: tokens without room
 *     {"text": "The", "token": 3, "experts": [4, 1]}     of token 3 of prompt and text; experts: of
 *         all routers of /model in order; a token may come in several parts, or some together
 *     {"end": "stop", "tokens": 256, "seconds": 1.5}     or "length", "context", "time"
 * A client that closes its connection ends its generation. Two are generated at a time, in slices
 * of a token each (a few on a GPU that need not report experts), each with a cache of its own;
 * others wait in the order in which they came. The same request with the same seed gives the same
 * text, which is that of infer_moe -i.
 *
 * Everything is bounded: bytes, seconds, connections, generations. On a loopback address, requests
 * must name it as their host, so that no other site's name can be led here; elsewhere every request
 * but that for the page must show a token (Authorization: Bearer). A page of another origin is
 * refused. No file is served. */
#ifndef WEB_H
#define WEB_H
#include "generate.h"
#include "llmc/data/chat.h"
#include "options.h"

typedef struct {
    const char *address;                /* of this machine */
    int         port;                   /* 0: any that is free */
    Options     options;                /* of infer_moe: what a request may set, and the values where it does not */
    const Tokenizer *tokenizer;         /* NULL: prompts are ids */
    const Chat *chat;                   /* how conversations are written; NULL, or without a template: there are none */
    const char *prompt;                 /* in the page at first */
    Generator  *g;                      /* open, for one sequence, with weights; its style is replaced */
    int         verbose;                /* 1: a line on stderr for each generation */
} Web;

/* Prints the link on stdout and serves until *g->interrupted; closes what it opened. 0 and e: it
 * cannot listen. */
int web_serve(const Web *w, Error *e);
#endif
