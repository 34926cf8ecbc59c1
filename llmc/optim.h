/* optim.h: the optimizer's state and one step of it. */
#ifndef OPTIM_H
#define OPTIM_H
#include "model.h"

typedef struct {
    real    *m, *v;           /* (manifest.total) running means of the gradient and of its square */
    real    *master;          /* the weights in `real`, where floatX is too coarse to take small updates; else NULL */
    Segment *segments;        /* (tensors) on the device */
    AdamW   *settings;        /* of this update, on the device */
    int      tensors;
    int      updates;         /* made so far: Adam's clock. A skipped step does not count */
} Optimizer;

void optimizer_plan(Optimizer *o, Model *m);                /* adds its buffers to m->arena, before model_allocate */
void optimizer_start(Optimizer *o, Model *m);               /* after the weights are there */
/* One step: its settings (fix1 and fix2 are set here), and then gradients to weights, which is the same work every time. */
void optimizer_set(Optimizer *o, Model *m, AdamW a);
void optimizer_update(Optimizer *o, Model *m);

/* What the step found, from Found.squares: the gradient's global norm, and the last tensor whose gradient is not finite
 * (-1: none). A fault spreads from where it arises towards the embedding, so the last is the nearest to its origin.
 * Then `updates` is put right: a step with a bad gradient changed nothing. */
double optimizer_norm(Optimizer *o, const double *squares, int *bad_tensor);
#endif
