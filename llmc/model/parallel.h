/* parallel.h: several ranks train one model: data parallelism with a shared optimizer state.
 *
 * Every rank has all weights and works on its own samples of a step. The gradient of the step's loss is the sum of what
 * the ranks found; it is summed range by range (tensor.h) while backward still computes the ranges before it, and once a
 * step, however many micro-batches there are. Which expert is how busy is counted over all ranks, too, before the
 * routers' backward asks for it; the head and its loss are computed meanwhile.
 *
 * Sharded (ZeRO-1): AdamW needs master, m and v of an element only where that element is updated, so each rank updates
 * one of W equal pieces of every range and has the state of those only, 12/W instead of 12 bytes a parameter. Summing
 * then means that each rank gets the sum of its own pieces (reduce-scatter), and the updated weights of all pieces are
 * dealt out afterwards (all-gather). A rank sends (W-1)/W of 4 bytes a gradient and of 2 (bf16) or 4 a weight; without
 * sharding it is twice (W-1)/W of 4 (all-reduce).   Source: Rajbhandari et al. 2020, arXiv 1910.02054.
 *
 * Ordered: the same bits on any number of ranks, as long as a micro-batch has the same size: of M micro-batches in a
 * step it makes no difference who does which. Each one's gradient is found apart from the others, and they are added
 * up one after the other, g_0 + g_1 + ... + g_(M-1): after each round of micro-batches every rank gets the gradients
 * of all ranks, and adds them to its own sum in their order. Then all have the whole sum, of which norm and update
 * are the same everywhere. Balance is that of each micro-batch alone. This sends (W-1) 4 bytes a parameter for every
 * micro-batch, behind nothing, and needs 4 bytes a parameter more on each rank: it is for finding out whether two
 * runs are the same. Without it, a sum in another order is another last bit, sooner or later another expert for some
 * token, and a hundred steps later another loss.
 *
 * All ranks call these functions in the same order. Those of a model do nothing in one without other ranks. */
#ifndef PARALLEL_H
#define PARALLEL_H
#include "kernels/comm.h"
#include "model.h"
#include "llmc/ranks/group.h"

struct Parallel {
    int    rank, ranks;
    int    sharded;                     /* 1: the optimizer's state is */
    int    ordered;                     /* 1: the same bits on any number of ranks */
    int    one_process;                      /* 1: one process drives all ranks, so they might reach each other's memory */
    Group *group;                       /* the other hosts, */
    Comm  *comm;                        /* and their devices: NULL while only planning, and for a rank that is alone */
};

/* The calling thread opens the which-th of its devices and becomes the local-th rank of its process; or the program ends.
 * ranks and sharded are set before. Disconnecting waits for the others. */
void parallel_connect(Parallel *p, const Device *dev, int which, ProcessGroup *processes, int local);
void parallel_disconnect(Parallel *p);
double parallel_sum(const Parallel *p, double x);       /* over all ranks, in their order */

void parallel_register_memory(const Model *m);            /* after model_allocate, where ranks share: ranges may go the shortest way */
void parallel_sum_loads(Model *m);              /* after model_forward: m->load = sum of all m->own_load */
void parallel_wait_loads(Model *m);            /* what is computed from now on may use m->load */
/* The gradients of this range are complete, here. After range 0, the last: what is computed from now on may use the sums,
 * if this was the step's last micro-batch. */
void parallel_gradients(Model *m, int range);
/* They begin to travel with the next range, or here: attention calls it, because a reduction by a kernel does least
 * harm there. It takes multiprocessors; blocks of attention take their work piece by piece and share it among fewer,
 * those of some products have each their part, and who waits for a place is late with all of it. */
void parallel_send_gradients(Model *m);
void parallel_sum_results(Model *m);              /* what ranks found apart in a step: losses, and their part of squares */
/* After each rank has updated its pieces. behind 1: the ranges come in the order in which forward uses them, while it
 * runs: what is computed from an await on may use the range's weights, and those of the ranges before it. 0: what is
 * computed from now on may use all of them; that way it can be recorded. */
void parallel_gather_weights(Model *m, int behind);
void parallel_wait_weights(const Model *m, int range);
void parallel_wait_all_weights(const Model *m);            /* before anything but model_forward reads them */
#endif
