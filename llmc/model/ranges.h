/* ranges.h: where the weights and the gradients of a range are: in m->params and m->grads, or, of
 * sharded ones, in the buffer that the range has while it is whole (parallel.h, shards.c). */
#pragma once
#include "model.h"

void ranges_plan(Model *m);             /* adds the buffers to the arena */
int  range_buffer(const Model *m, const Ranges *r, int range);      /* its index in Ranges.at */
static inline void *range_memory(const Model *m, const Ranges *r, int i) { return r->at[range_buffer(m, r, i)]; }
static inline int last_range(const Model *m) { return m->manifest.range_count - 1; }
floatX *model_weight(const Model *m, const Tensor *t);
void   *model_gradient(const Model *m, const Tensor *t);
