/* optim.h: one step of the optimizer, AdamW or Muon (optim_state.h). */
#pragma once
#include "optim_state.h"

/* Adds its buffers to m->arena, before model_allocate. master 0: no copy of the weights even where
 * floatX is coarse; then updates are rounded stochastically. */
void optimizer_plan(Optimizer *o, Model *m, int master, Dtype moments, MuonOptions muon);
void optimizer_start(Optimizer *o, Model *m);               /* after the weights are there */
/* One step: its settings (fix1 and fix2 are set here), then the update of the weights. Updates of
 * the same slice are the same work, so that each slice can be recorded (replay.h). */
void optimizer_set(Optimizer *o, Model *m, AdamW a);
void optimizer_update(Optimizer *o, Model *m);

/* From StepResults.grad_sq_norms: the gradient's global norm, and the last tensor whose gradient is
 * not finite (-1: none). A fault spreads from its origin towards the embedding, so the last is the
 * nearest to the origin. A step with a bad gradient changed nothing: `updates` is decremented. */
double optimizer_norm(Optimizer *o, const double *grad_sq_norms, int *bad_tensor);
