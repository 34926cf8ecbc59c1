/* ranks.h: the rates of what ranks do together. */
#ifndef RANKS_H
#define RANKS_H
#include "kernels/kernels.h"

/* For 2, 4, 8 ranks as far as there are GPUs (or 2 and 4 of a CPU): reduce-scatter, all-gather and all-reduce of several
 * sizes, and what a large matrix product and a reduce-scatter cost beside each other. Then weak scaling: a training step
 * with as many tokens on each of 1, 2, 4, ... ranks. */
void bench_ranks(const Device *dev, double seconds);
#endif
