/* sample.h: from logits to the next token. */
#ifndef SAMPLE_H
#define SAMPLE_H
#include <stdint.h>

typedef struct {
    float temperature;    /* 0: the most likely token */
    float top_p, min_p;   /* keep the smallest set with this probability; drop below min_p * the largest; 1, 0: off */
    int   top_k;          /* keep this many; 0: off */
    uint64_t key;         /* of this sequence: token `position` is drawn by random_uniform(key, position) */
} Sampler;

/* The next token of one sequence from its logits (count, as doubles; overwritten). Ties go to the lower id; NaN is
 * never chosen; if nothing can be, token 0. order: room for `count` ints. */
int sample_token(const Sampler *s, double *logits, int count, int *order, uint64_t position);
#endif
