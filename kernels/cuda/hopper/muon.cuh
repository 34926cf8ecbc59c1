// hopper/muon.cuh: what kernels/cuda/muon.cu calls of hopper/muon.cu.
#pragma once
#include "kernels/cuda/impl.cuh"

#if defined(PRECISION_BF16)
// b->out = orthogonalize(b->x); x, gram: scratch. False, nothing done: not this GPU or size.
bool hopper_newton_schulz(const MuonBuffers *b, int count, int rows, int columns);
#endif
