/* decode.h: generating with a key/value cache. B sequences advance together; each has read the same
 * number of tokens. They are drawn on the device: the host queues steps, and sees tokens later. */
#pragma once
#include "model.h"
#include "replay.h"

typedef struct {
    Model   model;
    int     length;                     /* positions in the cache, of each sequence, once all that is queued is done */
    int     chunk;                      /* tokens per sequence that one pass can read into an empty cache */
    int     sequences;                  /* B */
    floatX *logits;                     /* (B,V) after the last token read */
    int    *log;                        /* (capacity,B) the tokens that were drawn, by position */
    uint64_t *keys;                     /* (B) */
    Sampler sampler;
    Replay  replay;                     /* of a step */
    int     posted[2];                  /* tokens of each sequence that are being copied to the host */
} Decoder;

/* Memory for `sequences` of up to `capacity` positions; 0 if the device does not have it.
 * weights_of: see model.h. With NULL the weights must be loaded into d->model afterwards. */
int  decoder_open(Decoder *d, const Device *dev, const Config *c, int sequences, int capacity, const Model *weights_of);
size_t decoder_bytes(const Device *dev, const Config *c, int sequences, int capacity, const Model *weights_of);
/* Plans the same on several devices (relay.h; NULL: one): then comes model_allocate(&d->model). */
void decoder_plan_dealt(Decoder *d, const Device *dev, const Config *c, int sequences, int capacity, Relay *relay);
void decoder_close(Decoder *d);
void decoder_reset(Decoder *d);                             /* forget everything read */

/* Reads `count` more tokens of every sequence, tokens (B,count), and computes the logits that
 * follow the last one. 0, with nothing read, if they do not fit into the cache. If model.pause
 * gives it up (model.stopped), decoder_reset is what may follow. */
int  decoder_feed(Decoder *d, const int *tokens, int count);

/* How tokens are drawn from now on; key (B), of each sequence. A token is a function of the logits,
 * of the key and of the number of tokens before it. */
void decoder_draw(Decoder *d, Sampler s, const uint64_t *key);

/* The next token of every sequence, tokens (B), which is not read yet. Waits for it. */
void decoder_sample(Decoder *d, int *tokens);

/* 1: every logit that the next token is drawn from is finite. Waits for them. */
int  decoder_is_finite(const Decoder *d);

/* Queues `count` steps, each of which draws the next token of every sequence and reads it; they
 * must fit into the cache. slot: 0 or 1, under which decoder_collect waits for these tokens,
 * (count,B), and for nothing queued after them. */
void decoder_queue(Decoder *d, int count, int slot);
void decoder_collect(Decoder *d, int *tokens, int slot);

/* Forgets all but the first `length` positions, the last of which are read again: tokens (B). */
void decoder_rewind(Decoder *d, const int *tokens, int length);
