/* check.h: is the backward pass the derivative of the forward pass? On any configuration. */
#pragma once
#include <stdio.h>
#include "model.h"

typedef struct {
    Config config;                      /* vocab and context set */
    int    B, T, samples;               /* a small batch; elements tried per tensor */
    Recompute recompute;
    float  balance, z, dropout;
    uint64_t seed;
} Check;

/* Finite differences in f64: for each tensor, `samples` elements, the loss at four points around
 * the element's value, and nearer ones if the error exceeds `bound` (relu^2 has a second derivative
 * that jumps). Where a token changes its experts the loss has a step: such elements are skipped.
 * Prints a line per tensor (without `all` only the bad ones). Returns how many exceed `bound`, -1
 * without memory; *worst: the largest error, relative to the larger of the element's gradient and
 * the tensor's root mean square. */
int check_gradients(const Check *c, double bound, FILE *report, int all, double *worst);

/* The same batch on two devices: the norm-wise relative difference of every tensor's gradient, for
 * TENSOR_SCALARS relative to those of all layers. Both have the weights as dev rounds them: a short
 * row's norm magnifies that rounding a hundred times. Where rounding sends a token elsewhere both
 * are right, percents apart: up to 20 seeds are tried until both route alike. Returns as above. */
int check_devices(const Check *c, const Device *dev, const Device *twin, double bound, FILE *report, int all,
                  double *worst);
