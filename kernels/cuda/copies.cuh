// copies.cuh: reduce-scatter and all-gather among GPUs of one process, moved by their copy engines.
#pragma once
#include "impl.cuh"
extern "C" {
#include "kernels/comm.h"
}

struct Copies;
// Called by all ranks. Each has memory of the same layout, `bytes` from `base` on, with stage and
// every x below. NULL on all ranks if there are several processes, or two GPUs without peer access.
Copies *copies_open(Group *group, void *base, size_t bytes, real *stage);
void    copies_close(Copies *c);                            // when all queued work is done
bool    copies_contain(const Copies *c, const void *x, size_t bytes);
// Queued on the caller's stream, with the semantics of Comm.
void    copies_gather(Copies *c, cudaStream_t stream, void *x, const void *mine, size_t bytes);
// Only sends: shard r of x to row `rank` of rank r's stage. add_shards adds.
void    copies_scatter(Copies *c, cudaStream_t stream, const real *x, size_t n);
// On the device's stream: out = (onto: out +) stage row 0 + row 1 + ...; `own`: this rank's.
void    add_shards(real *out, const real *own, const real *stage, size_t n, int rank, int size, bool onto);
