/* parallel.h: several ranks train one model: data parallelism with a sharded optimizer state.
 *
 * Every rank holds all weights and works on its own samples of a step. The gradient of the step's loss is the sum over ranks.
 * It is reduced range by range (tensor.h) while backward still computes the ranges before it, once a step, however many
 * micro-batches there are. Loads of experts are summed over all ranks before the routers' backward reads them; the head and
 * its loss are computed meanwhile.
 *
 * Sharded (ZeRO-1): AdamW needs master, m and v of an element only where that element is updated. Each rank updates one of W
 * equal pieces of every range and keeps the state of those only: 12/W bytes a parameter instead of 12. A reduce-scatter gives
 * each rank the sum of its own pieces, and an all-gather distributes the updated weights. A rank sends (W-1)/W of 4 bytes a
 * gradient and of 2 (bf16) or 4 bytes a weight; without sharding twice (W-1)/W of 4 (all-reduce).
 * Source: Rajbhandari et al. 2020, arXiv 1910.02054.
 *
 * Ordered: the same bits on any number of ranks, as long as a micro-batch has the same size; it makes no difference which rank
 * takes which of a step's M micro-batches. The gradient of each is computed apart from the others, and they are added in order,
 * g_0 + g_1 + ... + g_(M-1): after each round of micro-batches every rank gathers the gradients of all ranks and adds them to
 * its own sum. All ranks then hold the whole sum, and compute the same norm and update. Balance is that of each micro-batch
 * alone. This sends (W-1) * 4 bytes a parameter for every micro-batch, hidden behind nothing, and needs 4 bytes a parameter more
 * on each rank: it is for comparing runs. Without it a sum in another order has another last bit, some token eventually
 * goes to another expert, and a hundred steps later the loss differs.
 *
 * All ranks call these functions in the same order. Those of a model do nothing if it has no other ranks. */
#ifndef PARALLEL_H
#define PARALLEL_H
#include "kernels/comm.h"
#include "model.h"
#include "llmc/ranks/group.h"

struct Parallel {
    int    rank, ranks;
    int    sharded;                     /* 1: the optimizer's state is */
    int    ordered;                     /* 1: the same bits on any number of ranks */
    int    one_process;                 /* 1: one process drives all ranks, which may then reach each other's memory */
    Group *group;                       /* this rank's host among the others, */
    Comm  *comm;                        /* and its device: NULL while only planning, and for a rank that is alone */
};

/* The calling thread opens the which-th of its devices and becomes the local-th rank of its process; or the program ends.
 * ranks and sharded are set before. Disconnecting waits for the others. */
void parallel_connect(Parallel *p, const Device *dev, int which, ProcessGroup *processes, int local);
void parallel_disconnect(Parallel *p);
double parallel_sum(const Parallel *p, double x);       /* over all ranks, in their order */

/* After model_allocate, where one process drives all ranks: lets transports reach the arenas of peers directly. */
void parallel_register_memory(const Model *m);
void parallel_sum_loads(Model *m);              /* after model_forward: starts load = the sum of all own_load */
void parallel_wait_loads(Model *m);             /* work queued from now on may read it */
/* The gradients of this range are complete on this rank. After range 0, the last one: work queued from now on may read the
 * sums, if this was the step's last micro-batch. */
void parallel_gradients(Model *m, int range);
/* Starts the pending all-reduce, which otherwise starts with the next range. The block's backward calls it just before
 * attention, where a NCCL kernel costs least: attention's blocks fetch work dynamically and adapt to fewer multiprocessors,
 * while the persistent products do not. */
void parallel_send_gradients(Model *m);
void parallel_sum_results(Model *m);            /* of a step: losses, and where the optimizer is sharded the squared norms */
/* After each rank has updated its pieces. behind 1: ranges are gathered in the order in which forward uses them, while it
 * runs; parallel_wait_weights says where it needs which. 0: work queued from now on may read all; this can be recorded. */
void parallel_gather_weights(Model *m, int behind);
void parallel_wait_weights(const Model *m, int range);      /* this range and those before it */
void parallel_wait_all_weights(const Model *m);             /* before anything but model_forward reads them */
#endif
