/* comm.h: the collective operations of ranks on device memory.
 *
 * A rank is a host thread that drives one device; ranks 0..size-1 may be threads of one process,
 * processes of one machine, or spread over many machines. A Device is a rank's table of operations
 * on its own memory; a Comm is its table of operations with all other ranks. Device.connect makes
 * it: NCCL between GPUs (kernels/cuda/nccl.cu), or, with the same meaning, a loopback through host
 * memory between CPU ranks (kernels/cpu/loopback.c).
 *
 * Every operation of a Comm:
 *   - is collective: all ranks call it, in the same order, with the same sizes;
 *   - is queued on a communication stream of the rank. It starts after everything queued on the
 *     device before the call; work queued after the call runs concurrently and must not touch x
 *     until wait_all() or wait();
 *   - neither allocates nor blocks the host, so it can be captured in a CUDA graph. (The loopback
 *     has no stream:
 *     there the call itself waits for the other ranks.)
 *   - gives all ranks the same bits. The loopback, scatter_add, and the reduce_scatter of
 *     registered memory (kernels/cuda/copies.cu) add in rank order, so the sum does not depend on
 *     how ranks are spread over processes. NCCL's own order depends on the sizes and the machine,
 *     and is the same in every run;
 *   - does nothing if size is 1, but for scatter_add, which adds x to shard, and all_gather, which
 *     copies mine to x;
 *   - returns no error when a rank is lost: llmc/ranks/group.h watches all ranks and ends the
 *     process. */
#ifndef COMM_H
#define COMM_H
#include "kernels.h"

/* Collective operations on host memory, which transports use, too. Filled by llmc/ranks/group.c. */
struct Group {
    int rank, size;
    /* All-gather: all (size, bytes) = the blocks of all ranks in rank order. mine may be this
     * rank's block of all. */
    void (*exchange)(Group *group, OUT void *all, const void *mine, size_t bytes);
    /* All-reduce: x of every rank becomes x_0, then add(x_1), then add(x_2), ...: the same bits
     * everywhere. add may be called for pieces of x, whose boundaries are multiples of 64 bytes. */
    void (*reduce)(Group *group, ACC void *x, size_t bytes, void (*add)(ACC void *x, const void *y, size_t bytes));
};

struct Comm {
    const char *name;                               /* "loopback", "NCCL 2.28.9" */
    int    rank, size;
    Group *group;

    void (*all_reduce     )(Comm *c, real *x, size_t n);        /* x = sum over ranks.   x (n) */
    void (*all_reduce_ints)(Comm *c, int *x, size_t n);
    /* In place: shard r of x becomes the sum on rank r; the other shards of x are undefined
     * afterwards.   x (size, n) */
    void (*reduce_scatter )(Comm *c, real *x, size_t n);
    /* shard += shard r of x_0, then that of x_1, ..., on rank r: in the order of the ranks, by
     * every transport. x stays as it is, and must until it is waited for. After register_memory.
     * shard (n)  x (size, n) */
    void (*scatter_add    )(Comm *c, ACC real *shard, const real *x, size_t n);
    /* All-gather: x = mine of all ranks. mine may be this rank's shard of x.   x (size, bytes)
     * mine (bytes) */
    void (*all_gather     )(Comm *c, OUT void *x, const void *mine, size_t bytes);
    /* Once, not while recording; optional for a rank that needs no scatter_add. stage (size, most):
     * memory for what other ranks send; most: the largest n. base, unless NULL: x of the last three
     * operations will always be in these bytes, which contain the stage, too, and have the same
     * layout on all ranks. Some transports can then exchange by copy engines, without
     * multiprocessors. Waits for the other hosts. */
    void (*register_memory)(Comm *c, void *base, size_t bytes, real *stage, size_t most);
    /* Work queued on the device after this call starts after all communication queued so far. Does
     * not block the host. */
    void (*wait_all)(Comm *c);
    /* wait_all in two parts: work queued on the device after wait(i) starts after all communication
     * queued before the last record(i), if there was one. i counts from 0. Not for recorded work: a
     * replay would wait for the event of its recording. */
    void (*record)(Comm *c, int i);
    void (*wait)(Comm *c, int i);
    /* wait, by the host itself, so that it does not queue work far ahead of what other ranks have
     * sent. Not while recording. */
    void (*host_wait)(Comm *c, int i);
    const char *(*error)(Comm *c);              /* why pending operations will never finish, or NULL; from any thread */
    void (*close)(Comm *c);                         /* after all ranks are done; waits for queued operations */
};
#endif
