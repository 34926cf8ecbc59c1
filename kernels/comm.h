/* comm.h: everything that ranks do together on device memory.
 *
 * A rank is a host thread that drives one device; ranks 0..size-1 may be threads of one process, processes of one
 * machine, or spread over many machines. A Comm is one rank's table of operations among all ranks, as a Device is its
 * table of operations on its own. Device.connect makes it: NCCL between GPUs (kernels/cuda/nccl.cu), a loopback through
 * host memory between CPU ranks (kernels/cpu/loopback.c) with the same meaning.
 *
 * True for every operation of a Comm:
 *   - all ranks call it, in the same order, with the same sizes;
 *   - it is queued on a communication stream of the rank's own: it starts when all that the rank had queued on its
 *     device before the call is done, and work queued after the call runs beside it. Nothing queued later may touch x
 *     until wait_all(), or wait();
 *   - no allocation and no waiting of the host, so it can be captured in a CUDA graph. (The loopback has no
 *     stream: there the call itself waits for the other ranks.)
 *   - all ranks get the same bits. The loopback adds in rank order, so that the sum does not depend on how ranks are
 *     spread over processes, and so does reduce_scatter of shared memory (kernels/cuda/copies.cu); NCCL's order
 *     depends on the sizes and on the machine, and is the same in every run;
 *   - with size 1 nothing happens at all;
 *   - a rank that is lost never makes it return an error: llmc/ranks/group.h watches all ranks and ends the process. */
#ifndef COMM_H
#define COMM_H
#include "kernels.h"

/* What a rank's host does with the other hosts, for transports and for everyone else. Filled by llmc/ranks/group.c. */
struct Group {
    int rank, size;
    /* all = the blocks of `bytes` of all ranks in rank order, all (size, bytes). mine may be its own place in all. */
    void (*exchange)(Group *p, OUT void *all, const void *mine, size_t bytes);
    /* x of every rank becomes x_0, then add(x_1), then add(x_2), ...: the same bits everywhere. add may be called for
     * pieces of x; their limits are multiples of 64 bytes. */
    void (*reduce)(Group *p, ACC void *x, size_t bytes, void (*add)(ACC void *x, const void *y, size_t bytes));
};

struct Comm {
    const char *name;                               /* "loopback", "NCCL 2.28.9" */
    int    rank, size;
    Group *group;

    void (*all_reduce     )(Comm *c, real *x, size_t n);        /* x = sum over ranks.   x (n) */
    void (*all_reduce_ints)(Comm *c, int *x, size_t n);
    /* Shard r of x becomes the sum on rank r; the other shards of x are worthless afterwards.   x (size, n) */
    void (*reduce_scatter )(Comm *c, real *x, size_t n);
    /* Shard r of x comes from rank r, where it already lies in its place.   x (size, bytes) */
    void (*all_gather     )(Comm *c, void *x, size_t bytes);
    /* Optional, once and outside of recordings: x of the last two will lie in these bytes, which are laid out alike
     * on all ranks. stage (size, most): in them, too; most: the largest n. Then there may be a way that leaves the
     * multiprocessors alone. Waits for the other hosts. */
    void (*register_memory)(Comm *c, void *base, size_t bytes, real *stage, size_t most);
    /* What is queued on the device from now on starts after all communication queued so far. Does not wait itself. */
    void (*wait_all)(Comm *c);
    /* wait_all in two parts: what is queued on the device after wait(i) starts after all communication queued before the
     * last record(i), if there was one. i counts from 0. Not for recorded work: a replay does not know what was noted
     * since. */
    void (*record)(Comm *c, int i);
    void (*wait)(Comm *c, int i);
    const char *(*error)(Comm *c);                  /* why it will never finish, or NULL; any thread may ask */
    void (*close)(Comm *c);                         /* when all ranks are through; waits for what is queued */
};
#endif
