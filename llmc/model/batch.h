/* batch.h: batches into a model, results out of it. */
#pragma once
#include "model.h"

/* uploads (B,T) each; targets may be NULL */
void model_batch(Model *m, const int *tokens, const int *targets, int B, int T);
void model_position(Model *m, const int *position);      /* uploads (N) positions, and what follows from them */
void model_pack(Model *m, const int *position);     /* then: sequences are rows of samples, (N): 0, 1, ... in each */
void model_scale_loss(Model *m, double scale);      /* what gradients of the loss are multiplied by from now on */
/* Before the backward of model_batch's batch. FIRST: prepares the gradients to be overwritten. */
void model_set_phase(Model *m, Phase phase);
/* Or all micro-batches of a step at once, (micro_batches, B, T), and their dropout keys; positions:
 * NULL, or as for model_pack. Then each is made the batch, with its phase, and its loss is kept for
 * model_results. Between the two nothing comes from the host. */
void model_send(Model *m, const int *tokens, const int *targets, const int *positions, const uint64_t *keys, int B,
                int T);
void model_begin_micro(Model *m, int micro);
void model_end_micro(Model *m, int micro);

/* The results of a step. One read, which waits for the device. */
StepResults model_results(const Model *m);
void  results_free(StepResults *r);
uint64_t model_state(const Model *m);  /* a hash of what the work of these functions depends on besides device memory */
/* Zeroes all activations, after a batch with NaN or infinity in them: rounded routing leaves other
 * rows of a buffer unused each time, and products of whole tiles multiply these by zero. */
void model_clear_activations(Model *m);
