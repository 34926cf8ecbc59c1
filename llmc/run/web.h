/* web.h: a page to talk to a model, and an API in OpenAI's forms (infer_moe -m web): an HTTP server
 * of one thread, which between the steps of generations looks at its sockets.
 *
 *   GET  /                      the page (llmc/run/web/), one file without references
 *   GET  /v1/models             the model, with what the page must know of it; /v1/models/NAME: one
 *   POST /v1/completions        continues texts; JSON (Content-Type: application/json), see api.h
 *   POST /v1/chat/completions   answers, where the model has a chat template
 *
 * A client that closes its connection ends its generation. Two are generated at a time, in slices
 * of a token each (a few on a GPU if nothing is to be said of them), each with a cache of its own;
 * others wait in the order in which they came. The same request with the same seed gives the same
 * text, which is that of infer_moe -i. A prompt is read in pieces, of half a layer each: between
 * them sockets are looked at, and the other text is generated for as long as the piece took.
 *
 * Everything is bounded: bytes, seconds, connections, generations. Where all places are taken, the
 * oldest connection without a complete request gives way to a new one, so silent and slow ones keep
 * nobody out. A text whose client takes it slower than it is made ends early if others wait. On a
 * loopback address, requests must name it as their host, so that no other site's name can be led
 * here; elsewhere every request but that for the page must show a token (Authorization: Bearer). A
 * page of another origin is refused. No file is served. */
#pragma once
#include "api.h"

typedef struct {
    const char *address;                /* of this machine */
    int         port;                   /* 0: any that is free */
    Api         api;                    /* but for its ends and what follows from g */
    Generator  *g;                      /* open, for one sequence, with weights; its style is replaced */
    int         verbose;                /* 1: a line on stderr for each generation */
} Web;

/* Prints the link on stdout and serves until *g->interrupted; closes what it opened. 0 and e: it
 * cannot listen. */
int web_serve(const Web *w, Error *e);
