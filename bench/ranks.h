/* ranks.h: rates of collectives, and weak scaling. */
#pragma once
#include "kernels/kernels.h"

/* On 2, 4, 8 ranks, up to the number of GPUs (on a CPU 2 and 4): reduce-scatter, all-gather and
 * all-reduce of several sizes, and how well a reduce-scatter overlaps with matrix products. Then
 * weak scaling: a training step with the same number of tokens on each of 1, 2, 4, ... ranks. */
void bench_ranks(const Device *dev, double seconds);
