/* generate.h: generating texts: the prompt is read into the cache (prefill), then tokens are drawn
 * and read (decode). When the context is full, its last half is read again, as if the text began
 * there. A text depends on the weights, the prompt, the sampling options, seed and sequence. */
#pragma once
#include <signal.h>
#include <stdio.h>
#include "llmc/files/hf.h"
#include "llmc/model/decode.h"
#include "llmc/model/relay.h"
#include "stream.h"
#include "view.h"

typedef struct {
    /* set by the caller */
    const Device *dev;
    Sampler  sampler;
    float    penalty;                   /* of tokens that the text has already, prompt included; 0 or 1: none */
    float    presence, frequency;   /* subtracted from logits of tokens that were drawn: once, and for each time */
    uint64_t seed;
    int      first;                     /* of a seed there are many texts: the number of the first of these */
    int      end_token[MOST_ENDS], end_tokens; /* those that end a text, and how many they are */
    int      sequences;
    const volatile sig_atomic_t *interrupted;               /* decoding stops when it is not 0 */
    int      silent;                    /* 1: nothing is printed: the caller takes the text from the stream */
    int      trusts;                    /* 1: logits that are not finite do not end the program */
    const Model *weights_of;        /* a model with weights loaded, which this one uses, too; NULL: it has its own */
    Relay   *relay;                     /* the layers are dealt out over these devices; NULL: all are on dev */
    View     view;                      /* opened after generator_open; main NULL: no experts are watched */

    Decoder  d;
    Stream  *stream;                    /* (sequences) */
    int     *window;                    /* (sequences, capacity) the tokens in the cache */
    int     *drawn;                     /* (sequences, vocab) how often each was drawn; NULL: not counted */
    int      capacity;                  /* positions of the cache */
    int      rounds;                    /* how often the cache was emptied: the sampler starts again with another key */
    int      slides;                    /* how often because it was full */
    int      full;                      /* 1: the last text ended because the context was full */
    int64_t  prompt_tokens, steps, tokens;  /* read; decoding steps, and the tokens drawn in them, of all sequences */
    int64_t  positions;                 /* of the cache read by attention in these steps, in each sequence */
    double   prompt_time, time;         /* seconds of prefill and of decoding */
} Generator;

/* 0: the device lacks d.model.arena.total bytes. Its own weights must then be loaded. */
int  generator_open(Generator *g, const Config *c, int capacity, const TextStyle *style);
void generator_close(Generator *g);
void generator_reset(Generator *g);     /* forgets what was read */
void generator_restart(Generator *g);   /* and is as if just opened: the next text depends on no text before */

/* Reads the prompt in every sequence. text (bytes): what to print of it; NULL: nothing. If the
 * model's pause gives it up (d.model.stopped), generator_restart is what may follow. */
void generator_read(Generator *g, const int *ids, int count, const char *text, size_t bytes);

/* Draws tokens until every text has ended; prints the first one meanwhile. tokens: at most this
 * many per sequence; 0: until the context is full; -1: no limit. ends 0: no token ends one. */
void generator_write(Generator *g, int tokens, int ends);

/* A line about speed and context. On a GPU also in percent of the memory's bandwidth. */
void generator_report(const Generator *g, FILE *out);
