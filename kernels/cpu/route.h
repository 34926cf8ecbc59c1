/* route.h: the weights of a token's experts, for route.c and round.c. */
#pragma once
#include "impl.h"

static inline real sigmoid(real x) { return 1 / (1 + exp(-x)); }
static inline real log_sigmoid(real x) { return x < 0 ? x - log(1 + exp(x)) : -log(1 + exp(-x)); }

/* w (K): the weights of the chosen experts of a token with logits x. A softmax over the chosen, of
 * logits or of log sigmoids; for SOFTMAX_TOPK their part of the softmax over all experts. */
void DEVICE(choice_weights)(real *w, const int *chosen, int K, const floatX *x, real lse, Scores scores);
