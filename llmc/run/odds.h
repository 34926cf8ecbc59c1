/* odds.h: how likely a model finds each token: logarithms of probabilities, from its logits as they
 * are, before penalties, temperature and the limits of sampling. */
#pragma once
#include "llmc/model/decode.h"

typedef struct { int id; double log; } Odd;                 /* a token; log: natural, at least LEAST_LOG */
typedef struct {
    double *logit;                      /* (vocab) */
    int     vocab;
    double  sum;                        /* logarithm of the sum of exp(logit) */
} Odds;
#define LEAST_LOG (-9999.0)

/* Reads the logits (capacity, the first vocab of them are used) that the next token of a decoder's
 * first sequence is drawn from. */
void   odds_read(Odds *o, const Decoder *d, int vocab);
double odds_of(const Odds *o, int id);
int    odds_best(const Odds *o, Odd *best, int most);       /* the likeliest, best first; returns how many */
void   odds_free(Odds *o);
