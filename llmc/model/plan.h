/* plan.h: every tensor and every buffer of a model, and the one block of memory they are in. */
#pragma once
#include "model.h"

/* Plans a model for batches of up to B x T tokens, and the layout of its arena for these ranks
 * (NULL: one). Nothing is allocated: the plan, m->arena, can be printed first, and more buffers
 * added. recompute NULL: nothing. gradients FLOATX: those of layers' matrices are stored so where
 * nothing is added to them: one micro-batch, one rank, no layer used twice. */
void model_plan_training(Model *m, const Device *dev, const Config *c, int B, int T, const Recompute *recompute,
                         int micro_batches, Dtype gradients, const Parallel *parallel);
void model_part_bytes(const Model *m, int l, OUT size_t bytes[LAYER_PARTS]);        /* kept or recomputed */
int  model_recomputes(const Model *m, int l, LayerPart part);       /* 1: in its backward */
/* For generating, with a cache of `capacity` positions; weights_of: whose weights; NULL: own. */
void model_plan_inference(Model *m, const Device *dev, const Config *c, int B, int T, int capacity,
                          const Model *weights_of);
/* Of layers from .. to - 1 only, and the embedding and the head if these are there (relay.h). */
void model_plan_layers(Model *m, const Device *dev, const Config *c, int B, int T, int capacity, int from, int to);
int  model_allocate(Model *m);                              /* 0: the device does not have m->arena.total bytes */
void model_initialize(Model *m, uint64_t seed);
/* One tensor, with the same values. Where something is sharded a rank draws its piece, as it
 * updates its piece later: so then comes parallel_gather_weights. */
void model_initialize_tensor(Model *m, int tensor, uint64_t seed);
void model_free(Model *m);
