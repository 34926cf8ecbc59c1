/* codes.h: weights in codes (Weight in kernels.h), of models that generate or are measured:
 * matrices of attention and MLPs and the head in 8 bits (Config.weights), experts in the 4 bits in
 * which their files may have them (Config.experts_in). Embedding, routers, norms, biases are not.
 *
 * Devices that decode from codes (Device.decode) keep nothing else of such a weight: passes of more
 * tokens widen a layer's to a buffer that all layers share. On others a weight is rounded to what
 * its codes would say when it is loaded. So both compute the same, but for the order of sums. */
#pragma once
#include "model.h"

void codes_plan(Model *m);                      /* after the manifest is complete: which, and their memory */
void codes_bind(Model *m);
/* Tensor number i has been loaded, to model_weight: makes its codes. Of those that are there
 * already, because the file has codes, only what the head needs. */
void codes_keep(Model *m, int tensor, int is_coded);
void codes_widen(const Model *m, int range);    /* to model_weight, and the head's to m->p.head */
/* NULL, or the first tensor in 8 bits whose rows are no whole 16 bytes */
const Tensor *codes_misfit(const Model *m);
double codes_bytes(const Model *m, int tensor); /* of an element in memory, and of the head: tensor manifest.count */
static inline int codes_shape(const Tensor *t, int from_end) { return t->shape[t->rank - from_end]; }
