/* decode.h: generating with a key/value cache. B sequences advance together; each
 * has read the same number of tokens. */
#ifndef DECODE_H
#define DECODE_H
#include "model.h"
#include "sample.h"

typedef struct {
    Model   model;
    int     length;                     /* positions in the cache, of each sequence */
    double *logits;                     /* (B, V) after the last token fed; only ids below used_vocab count */
    int    *order;                      /* room for sample_token */
    int     chunk;                      /* tokens per sequence that one pass can read into an empty cache */
    int     sequences;                  /* B */
} Decoder;

/* Memory for `sequences` of up to `room` positions; 0 if the device does not have it. weights_of: see model.h. With
 * NULL the weights must be loaded into d->model afterwards. */
int  decoder_open(Decoder *d, const Device *dev, const Config *c, int sequences, int room, const Model *weights_of);
void decoder_close(Decoder *d);
void decoder_reset(Decoder *d);                             /* forget everything read */

/* Reads `count` more tokens of every sequence, tokens (B,count), and makes the logits that follow the last one.
 * 0, having read nothing, if they do not fit into the cache. */
int  decoder_feed(Decoder *d, const int *tokens, int count);

/* The next token of sequence b by its sampler; position = number of tokens read, so
 * a sequence is a function of the key. */
int  decoder_sample(Decoder *d, int b, const Sampler *s);
#endif
