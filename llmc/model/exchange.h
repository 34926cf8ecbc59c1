/* exchange.h: what a model has where other ranks train it, too (parallel.h). */
#pragma once
#include "kernels/comm.h"
#include "llmc/ranks/group.h"

enum { MOST_SHARDED = 3 };
typedef struct {
    int    rank, ranks;
    int    level;           /* what is sharded: 1 the optimizer's state, 2 gradients, too, 3 weights, too; 0 nothing */
    int    shards;                      /* over how many consecutive ranks, which divide `ranks`; 0: over all */
    int    by_matrix;                   /* 1: pieces end between the matrices of experts (tensor.h), for Muon */
    int    ordered;                     /* 1: the same bits on any number of ranks */
    int    one_process;     /* 1: one process drives all ranks that shard, which may then reach each other's memory */
    Group *group;                       /* this rank's host among the others, */
    Comm  *comm;                        /* and its device: NULL while only planning, and for a rank that is alone */
    Comm  *node, *across;               /* ranks that shard with it (all: comm); those with the same pieces, or NULL */
    Group *parts[2];                    /* of the last two, if these are not all */
} Parallel;
static inline int parallel_shards(const Parallel *p) { return p->level && p->shards ? p->shards : p->ranks; }
static inline int parallel_shard(const Parallel *p) { return p->rank % parallel_shards(p); }

/* Buffers for whole ranges, where a rank stores only a part of each (shards.c). */
enum { RANGE_BUFFERS = 5 };
typedef struct {
    void *at[RANGE_BUFFERS];
    int   held[RANGE_BUFFERS];          /* the range whose weights are in it, plus 1; 0: none */
    int   moving[RANGE_BUFFERS];        /* 1: they are still arriving; of gradients: still being sent */
    int   layers;                       /* how many of the buffers are for layers */
} Ranges;
/* What ranks add to a pass, at the beginning and the end of each layer (pass.c); by parallel.c. */
typedef struct Model Model;
typedef struct {
    /* As parallel_begin_weights and parallel_wait_weights. */
    void (*begin_weights)(Model *m);
    void (*wait_weights)(Model *m, int range, int way);
    /* Work queued from now on writes gradients of this range, the first of this micro-batch. */
    void (*open_gradients)(Model *m, int range);
    /* The gradients of this range are complete on this rank. After range 0, the last one: work
     * queued from now on may read the sums, if this was the step's last micro-batch. */
    void (*finish_gradients)(Model *m, int range);
    /* Starts the pending all-reduce, which otherwise starts with the next range. A layer's backward
     * calls it just before attention, where a NCCL kernel costs least: its thread blocks fetch work
     * dynamically and adapt to fewer multiprocessors, while those of products do not. */
    void (*send_gradients)(Model *m);
    void (*sum_loads)(Model *m);        /* after forward: starts load = the sum of all own_load */
    void (*wait_loads)(Model *m);       /* work queued from now on may read it */
} Exchange;

typedef struct {                        /* what a model needs where other ranks train it, too */
    const Parallel *parallel;           /* NULL: there are no others */
    const Exchange *exchange;           /* NULL: a pass has nothing to do for others */
    int   ranks;
    int   shards;                   /* how many of them share one copy of what is sharded: all, or those of a node */
    int   level;                        /* what is sharded, 0 to 3 (parallel.h) */
    int   ordered;                      /* 1: the same bits on any number of ranks */
    int   pending;                      /* gradient range awaiting its all-reduce, plus 1; 0: none */
    int   sent;                         /* gradient range whose sums a Taker awaits (model.h), plus 1; 0: none */
    int   crossing;                 /* gradient range whose sums have yet to go to the other nodes, plus 1; 0: none */
    real *sums, *gathered;              /* ordered: (total) below level 2; (ranks, GATHERED or total), and with nodes */
    real *stage;                        /* where peers write their gradients of a range: (largest range) */
    Ranges weights, gradients;          /* from level 3 and 2 on */
    int  *own_load;             /* (routers, E) of this rank; the same memory as ResultBuffers.load if it is alone */
    int  *own_tokens;                   /* (1) those that own_load counts; follows it */
} DataParallel;
enum { GATHERED = 1 << 22 };            /* elements that each rank contributes to a piece of ordered sums */
