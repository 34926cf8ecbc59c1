/* muon.h: the matrices that Muon updates, in batches. Called by optim.c. */
#pragma once
#include "optim_state.h"

void muon_plan(Optimizer *o, Model *m);
void muon_start(Optimizer *o, const Model *m);
void muon_update(Optimizer *o, const Model *m);
