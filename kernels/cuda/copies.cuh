// copies.cuh: reduce-scatter and all-gather among GPUs of one process, moved by their copy engines.
#pragma once
#include "impl.cuh"
extern "C" {
#include "kernels/comm.h"
}

struct Copies;
// All ranks together, each with its own memory, laid out alike: `bytes` from `base` on, of which x of the operations
// and stage are parts. NULL on all of them if it cannot be on one: other processes, no way from GPU to GPU.
Copies *copies_open(Group *group, void *base, size_t bytes, real *stage);
void    copies_close(Copies *c);                            // when everything that was queued is done
bool    copies_know(const Copies *c, const void *x, size_t bytes);
// Queued on a stream of the caller's; what is in Comm's description holds.
void    copies_gather(Copies *c, cudaStream_t stream, void *x, size_t bytes);
// Sends. The sum is made on the device's stream, when it is needed or when the next one is sent: copies_finish.
void    copies_scatter(Copies *c, cudaStream_t stream, real *x, size_t n);
void    copies_finish(Copies *c);
