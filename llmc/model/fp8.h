/* fp8.h: which sizes of experts are faster in 8 bits. */
#pragma once
#include "config.h"

int fp8_passes(const Config *c, int N);     /* Fp8Passes, for batches of N tokens */
