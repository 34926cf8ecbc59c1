// copies.cuh: reduce-scatter and all-gather among GPUs of one process, moved by their copy engines.
#pragma once
#include "impl.cuh"
extern "C" {
#include "kernels/comm.h"
}

struct Copies;
// Called by all ranks. Each has memory of the same layout, `bytes` from `base` on, which contains stage and every x below. NULL
// on all ranks if it is impossible on one: several processes, or no peer access between two GPUs.
Copies *copies_open(Group *group, void *base, size_t bytes, real *stage);
void    copies_close(Copies *c);                            // when all queued work is done
bool    copies_contain(const Copies *c, const void *x, size_t bytes);
// Queued on the caller's stream, with the semantics of Comm.
void    copies_gather(Copies *c, cudaStream_t stream, void *x, size_t bytes);
// Only sends. copies_finish adds, on the device's stream: when the sum is needed, or before the next copies_scatter.
void    copies_scatter(Copies *c, cudaStream_t stream, real *x, size_t n);
void    copies_finish(Copies *c);
