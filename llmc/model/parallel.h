/* parallel.h: data parallelism, in which optimizer state, gradients and weights may be sharded.
 *
 * Every rank works on its own samples of a step. The gradient of the step's loss is the sum over
 * ranks. Loads of experts are summed over all ranks before the routers' backward reads them; the
 * head and its loss are computed meanwhile. What a rank stores depends on the level (Rajbhandari et
 * al. 2020, arXiv 1910.02054); W ranks, bytes for each parameter, of bf16 weights:
 *
 *     level          weights   gradients   state    sent, each time (W-1)/W of it
 *     0              2         4           12       twice 4 for the gradients (all-reduce)
 *     1  (ZeRO-1)    2         4           12/W     4 for the gradients, 2 for the updated weights
 *     2  (ZeRO-2)    2         4/W         12/W     4 for each micro-batch, 2
 *     3  (ZeRO-3)    2/W       4/W         12/W     4 + 2 + 2 for each micro-batch
 *
 * From level 1 on each rank updates one of W equal pieces of every range (tensor.h), and has the
 * optimizer's state of those only. A reduce-scatter gives each rank the sum of its own pieces,
 * range by range, while backward still computes the ranges before; an all-gather distributes the
 * updated weights. Below level 2 gradients of a step are summed first, and sent once.
 *
 * From level 2 on a rank has only its own pieces of the sum. A range's gradient is made in a buffer
 * for whole ranges, of each micro-batch apart, and its pieces are added to the sums of their owners
 * in the order of the ranks. At level 3 a rank has only its own pieces of the weights, too: a range
 * is gathered while forward, or backward, works on the two before it, and dropped after its use.
 * Both need buffers for a few whole ranges (shards.c). With -ga momentum sums of Muon's matrices
 * are not kept (absorb.h). A rank that is alone has level 0.
 *
 * Nodes: ranks may be sharded in groups of `shards` consecutive ones, those of a node; W above is
 * then their number, and every node has all of the model. A rank's sums are at first those of its
 * node. After the step's last micro-batch, range by range, rank i of each node adds its sum to
 * those of rank i of the others: 8/W bytes a parameter a step. All nodes then update alike.
 *
 * Ordered: the same bits on any number of ranks, as long as a micro-batch has the same size; it
 * makes no difference which rank takes which of a step's M micro-batches. The gradient of each is
 * computed apart from the others, and they are added in order, g_0 + g_1 + ... + g_(M-1): after
 * each round of micro-batches every rank gathers the gradients of all ranks and adds them to its
 * own sum. All ranks then hold the whole sum, and compute the same norm and update. Balance is that
 * of each micro-batch alone. This sends (W-1) * 4 bytes a parameter for every micro-batch, hidden
 * behind nothing, and needs 4 bytes a parameter more on each rank: it is for comparing runs. From
 * level 2 on sums have this order anyway; only the norm needs every gradient once more. With nodes
 * all gradients go to all ranks, too, each of which adds those of its pieces in the order of all
 * ranks: neither what is sharded nor over how many changes a bit.
 * Without it a sum in another order has another last bit, some token eventually goes to another
 * expert, and a hundred steps later the loss differs.
 *
 * All ranks call these functions in the same order; alone, those of a model do nothing. */
#pragma once
#include "model.h"

/* The calling thread opens the which-th of its devices and becomes the local-th rank of its
 * process; or the program ends. ranks is set before. Disconnecting waits for the others. */
void parallel_connect(Parallel *p, const Device *dev, int which, ProcessGroup *processes, int local);
/* After level and shards were chosen, by all ranks alike, which may be after connecting. */
void parallel_form_nodes(Parallel *p, const Device *dev);
void parallel_disconnect(Parallel *p);
/* Over all ranks, in their order; x of each is from low to high (group_gather). */
double parallel_sum(const Parallel *p, double x, double low, double high);

/* After model_allocate: gives transports the memory for what other ranks send, and, where one
 * process drives all ranks, lets them reach the arenas of peers directly. */
void parallel_register_memory(const Model *m);
const Exchange *parallel_exchange(const Parallel *p);   /* NULL: this rank is alone, and its sums have no order */
void parallel_sum_loads(Model *m);          /* as Exchange.sum_loads, wait_loads; nothing for a rank that is alone */
void parallel_wait_loads(Model *m);
/* The sums of a whole range. Sharded ones are gathered into a buffer, which the next call may use
 * again, and begin there; else the result is m->grads. */
const void *parallel_full_gradients(Model *m, int range);
void parallel_sum_results(Model *m);    /* of a step: losses, and where the optimizer is sharded the squared norms */
/* After each rank has updated its pieces. behind 1: ranges are gathered in the order in which
 * forward uses them, while it runs; parallel_wait_weights says where it needs which. 0: work queued
 * from now on may read all; this can be recorded. At level 3 nothing is gathered here. */
void parallel_gather_weights(Model *m, int behind);
/* A pass begins: of sharded weights no range is gathered. Then, for each range: work queued from
 * now on may read it. way 1 (forward, ranges in ascending order) and -1 (backward, descending): it
 * no longer reads the ranges before this one in the pass, and the next ranges may be gathered into
 * their buffers. 0: it still reads them. */
void parallel_begin_weights(Model *m);
void parallel_wait_weights(Model *m, int range, int way);
void parallel_pass_weights(Model *m);           /* forward of the other ranks, in which this one has no part */
void parallel_wait_all_weights(const Model *m);         /* before anything but model_forward reads unsharded weights */
/* Stores sharded weights of a range that all ranks have written where model_weight says. */
void parallel_keep_weights(Model *m, int range);
/* The weights of a whole range, on the device until the next call; all ranks call it. */
const void *parallel_full_weights(const Model *m, int range);
