/* absorb.h: gradients that are added to Muon's momentum as soon as a layer has them (-ga momentum).
 *
 * Of the matrices that Muon updates no gradients are kept. Those of one layer are made in memory
 * that all layers share, and are added to the layer's momentum when they are complete, in every
 * micro-batch; the first of a step decays the momentum. What AdamW updates keeps its gradients.
 * This saves 2 or 4 bytes a parameter, and changes three things (docs/numerics.md):
 *
 * - The update is of the momentum itself. Nesterov's needs it apart from the gradient.
 * - There is no norm of all gradients to clip by. Each tensor's gradient of a micro-batch is made
 *   at most so many times as long as its mean (muon_limits); the means are part of the state.
 * - A bad step is found while it is computed: loss and the gradient of the head's input are tested
 *   before the layers', and each layer's before it is added. From a fault on nothing is added in
 *   this step, and weights stay. What layers behind the fault, and micro-batches before, have added
 *   remains. The device decides this: a step can be recorded.
 *
 * Where ranks shard gradients (levels 2 and 3 of parallel.h), a layer's of a micro-batch are summed
 * to their owners as always, but in memory for one layer's piece, and each owner adds its piece to
 * its part of the momentum. This happens when the next layer is about to be sent: the sums arrive
 * while that is computed. Squared norms are summed over the ranks, so that all have the same limits
 * of full tensors, and the same faults. */
#pragma once
#include "optim_state.h"

void absorb_plan(Optimizer *o, Model *m);       /* before model_allocate */
void absorb_start(Optimizer *o, const Model *m);
void absorb_begin(const Optimizer *o, const Model *m);  /* a step */
void absorb_end(const Optimizer *o, Model *m);          /* adds faults to StepResults.grad_sq_norms */
