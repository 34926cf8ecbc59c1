/* comm.h: the collective operations of ranks on device memory.
 *
 * A rank is a host thread that drives one device; ranks 0..size-1 may be threads of one process,
 * processes of one machine, or spread over many machines. A Device is a rank's table of operations
 * on its own memory; a Comm, which Device.connect makes, is that with all other ranks: NCCL between
 * GPUs (kernels/cuda/nccl.cu), or a loopback through host memory (kernels/cpu/loopback.c).
 *
 * Every operation of a Comm:
 *   - is collective: all ranks call it, in the same order, with the same sizes;
 *   - is queued on a communication stream of the rank. It starts after everything queued on the
 *     device before; what is queued later runs beside it, not touching x until wait_all or wait;
 *   - neither allocates nor blocks the host, so it can be captured in a CUDA graph. (The loopback
 *     has no stream: there the call itself waits for the other ranks.)
 *   - gives all ranks the same bits. The loopback, scatter_add, and the reduce_scatter of
 *     registered memory (kernels/cuda/copies.cu) add in rank order, so the sum does not depend on
 *     how ranks are spread over processes. NCCL's own order depends on sizes and machine only;
 *   - does nothing if size is 1, but scatter_add adds x to shard, and all_gather copies mine to x;
 *   - returns no error when a rank is lost: llmc/ranks/group.h watches all and ends the process. */
#pragma once
#include "kernels.h"

/* Collective operations on host memory, which transports use, too. Filled by llmc/ranks/group.c. */
struct Group {
    int rank, size;
    /* all (size, bytes) = mine of all ranks, in order. mine may be this rank's part of all. */
    void (*exchange)(Group *group, OUT void *all, const void *mine, size_t bytes);
    /* All-reduce: x of every rank becomes x_0, then add(x_1), then add(x_2), ...: the same bits
     * everywhere. add may be called for pieces of x, whose boundaries are multiples of 64 bytes. */
    void (*reduce)(Group *group, ACC void *x, size_t bytes, void (*add)(ACC void *x, const void *y, size_t bytes));
    int (*is_here)(const Group *group, int rank);   /* is it a rank of this process, whose addresses mean something? */
};

struct Comm {
    const char *name;                               /* "loopback", "NCCL 2.28.9" */
    int    rank, size;
    Group *group;

    void (*all_reduce     )(Comm *c, real *x, size_t n);        /* x = sum over ranks.   x (n) */
    void (*all_reduce_ints)(Comm *c, int *x, size_t n);
    /* In place: shard r of x becomes the sum on rank r; its others are undefined.   x (size, n) */
    void (*reduce_scatter )(Comm *c, real *x, size_t n);
    /* shard += shard r of x_0, then that of x_1, ..., on rank r, by every transport. x must stay
     * until it is waited for. After register_memory.   shard (n)  x (size, n) */
    void (*scatter_add    )(Comm *c, ACC real *shard, const real *x, size_t n);
    /* x = mine of all ranks. mine (bytes): it may be this rank's shard of x (size, bytes) */
    void (*all_gather     )(Comm *c, OUT void *x, const void *mine, size_t bytes);
    /* Once, not while recording; optional for a rank that needs no scatter_add. stage (size, most):
     * memory for what other ranks send; most: the largest n. base, unless NULL: x of the last three
     * operations will always be in these bytes, with the stage, and have one layout on all
     * ranks: copy engines may then exchange, not multiprocessors. Waits for the other hosts. */
    void (*register_memory)(Comm *c, void *base, size_t bytes, real *stage, size_t most);
    /* Work queued on the device after this starts after all communication so far. Never blocks. */
    void (*wait_all)(Comm *c);
    /* wait_all in two parts: work queued on the device after wait(i) starts after all communication
     * queued before the last record(i), if there was one. i counts from 0. Not for recorded work: a
     * replay would wait for the event of its recording. */
    void (*record)(Comm *c, int i);
    void (*wait)(Comm *c, int i);
    /* wait, by the host, which then does not run far ahead of other ranks. Not while recording. */
    void (*host_wait)(Comm *c, int i);
    const char *(*error)(Comm *c);              /* why pending operations will never finish, or NULL; from any thread */
    void (*close)(Comm *c);                         /* after all ranks are done; waits for queued operations */
};
