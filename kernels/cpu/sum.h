/* sum.h: sums of many numbers, and what that of the gradients' squares decides. */
#pragma once
#include "impl.h"

typedef enum { PLAIN, SQUARED, SQUARED_FLOATX } Summand;
double DEVICE(sum_of)(const void *x, size_t n, Summand term);

/* What clipping multiplies gradients by. Negative: their norm is not finite; nothing changes. */
real DEVICE(gradient_scale)(real sq_norm, float clip);
