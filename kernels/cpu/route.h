/* route.h: what route.c and round.c share: the weights of the experts that a token has. */
#ifndef ROUTE_H
#define ROUTE_H
#include "impl.h"

static inline real sigmoid(real x) { return 1 / (1 + exp(-x)); }
static inline real log_sigmoid(real x) { return x < 0 ? x - log(1 + exp(x)) : -log(1 + exp(-x)); }

/* Of the K chosen experts of a token with logits x. A softmax over them, of logits or of log sigmoids; or what they have of
 * the softmax over all. */
void DEVICE(choice_weights)(real *w, const int *chosen, int K, const floatX *x, real lse, Scores scores);
#endif
