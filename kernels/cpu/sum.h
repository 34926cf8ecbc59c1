/* sum.h: sums of many numbers, for sum.c and optimizer.c. */
#ifndef SUM_H
#define SUM_H
#include "impl.h"

typedef enum { PLAIN, SQUARED, SQUARED_FLOATX } Summand;
double DEVICE(sum_of)(const void *x, size_t n, Summand term);
#endif
