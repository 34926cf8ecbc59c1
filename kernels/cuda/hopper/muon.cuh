// hopper/muon.cuh: what kernels/cuda/muon.cu calls of hopper/muon.cu.
#pragma once
#include "kernels/cuda/impl.cuh"

#if defined(PRECISION_BF16)
// out = orthogonalize(x), x untouched. False: not on this GPU, not for these sizes; nothing was done.
bool hopper_newton_schulz(floatX *out, const floatX *x, int count, int rows, int columns);
#endif
