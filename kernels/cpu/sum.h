/* sum.h: sums of many numbers, and what that of the gradients' squares decides, for sum.c,
 * optimizer.c and muon.c. */
#ifndef SUM_H
#define SUM_H
#include "impl.h"

typedef enum { PLAIN, SQUARED, SQUARED_FLOATX } Summand;
double DEVICE(sum_of)(const void *x, size_t n, Summand term);

/* What clipping multiplies gradients by. Negative: their norm is NaN or infinite, and this step
 * does not happen. */
real DEVICE(gradient_scale)(real sq_norm, float clip);
#endif
