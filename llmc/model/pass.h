/* pass.h: forward, loss and backward of a whole model. */
#pragma once
#include "model.h"

void model_forward(Model *m);                               /* up to m->final */
int  model_goes_on(Model *m);                               /* calls m->pause, if it is set; 0: the work is given up */
/* The head and the cross entropy, in chunks of tokens: *loss_sum = sum of -log p(target). gradient:
 * also m->dfinal and the head's gradient, both times the scale of model_scale_loss. */
void model_loss(Model *m, int gradient);
void model_router_losses(Model *m);         /* of every router; after parallel_sum_loads, if there are other ranks */
/* From m->dfinal; scale: of the routers' losses, 1 / micro-batches of all ranks. After a step's
 * last one m->grads is the sum over the ranks, or this rank's shard of it (parallel.h). */
void model_backward(Model *m, float scale);
/* All of these for one batch of training, in the order that ranks need. */
void model_learn(Model *m, float scale);
void model_logits(Model *m, int first, int count);          /* of tokens first.. into m->s.logits; count <= head_rows */
void model_next(Model *m, OUT floatX *logits);              /* decoding: of the one token of each sequence, (B,V) */
void model_cap(const Model *m, floatX *logits, int rows);   /* of the head's products: the soft cap, if there is one */
