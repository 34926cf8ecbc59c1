/* optim.h: the optimizer's state and one step of it.
 *
 * AdamW updates all tensors; or Muon the matrices, and AdamW the rest. A table in optim.c says which kind of tensor
 * is updated by what, at which multiple of the rate, and with how much weight decay. Muon's tensors have no v. */
#ifndef OPTIM_H
#define OPTIM_H
#include "model.h"

typedef struct { int rows, columns, first, count; } MatrixShape;    /* matrices first .. first + count - 1 have it */
enum { MATRIX_SHAPES = 16 };

typedef struct {
    void    *m, *v;           /* running means of the gradient, (manifest.total / shards), and of its square, of AdamW's tensors */
    Dtype   moments;         /* what they are stored as */
    real    *master;          /* the weights in `real`, where floatX is too coarse to take small updates; else NULL */
    Segment *segments;        /* (tensors) on the device: this rank's share of each */
    Segment *summed;          /* (tensors) whose summed gradients it has: segments, or whole tensors if ordered */
    AdamW   *settings;        /* of this update, on the device */
    float    momentum;        /* Muon's; 0: AdamW updates all */
    Muon    *muon_settings;   /* as settings */
    Segment *matrices;        /* on the device: Muon's, those of equal shape one after the other, */
    MatrixShape shapes[MATRIX_SHAPES];  /* and which shapes these are */
    int      shape_count;
    MuonBuffers buffers;
    int      tensors;
    int      shards, shard;   /* how many ranks the state is sharded over (parallel.h), and which shard this is */
    int      updates;         /* made so far: Adam's clock. A skipped step does not count */
} Optimizer;

/* Adds its buffers to m->arena, before model_allocate. master 0: no copy of the weights even where floatX is coarse;
 * then updates are rounded stochastically. momentum: of Muon, which needs an optimizer that is not sharded; 0: AdamW only. */
void optimizer_plan(Optimizer *o, Model *m, int master, Dtype moments, float momentum);
void optimizer_start(Optimizer *o, Model *m);               /* after the weights are there */
/* One step: its settings (fix1 and fix2 are set here), and then gradients to weights, which is the same work every time. */
void optimizer_set(Optimizer *o, Model *m, AdamW a);
void optimizer_update(Optimizer *o, Model *m);

/* From StepResults.grad_sq_norms: the gradient's global norm, and the last tensor whose gradient is not finite (-1: none). A
 * fault spreads from its origin towards the embedding, so the last is the nearest to the origin. A step with a bad gradient
 * changed nothing: `updates` is decremented. */
double optimizer_norm(Optimizer *o, const double *grad_sq_norms, int *bad_tensor);

/* The state of the whole model: of kind 0 (m), 1 (v) or 2 (master, NULL where there is none). Laid out like its weights, except
 * v, if Muon's tensors have none: optimizer_offset tells where tensor i begins, in elements.
 * Where it is sharded, all ranks call this together, rank 0 decides which kind, and it is gathered into the gradient
 * buffer, which is free between steps. Rank 0 ends with STATE_END; the others call optimizer_lend, which returns then. */
enum { STATE_KINDS = 3, STATE_END = -1 };
extern const char *const state_suffix[STATE_KINDS];         /* of the names in files */
const void *optimizer_whole(const Optimizer *o, const Model *m, int kind);
void        optimizer_lend(const Optimizer *o, const Model *m);
void       *optimizer_part(const Optimizer *o, int kind);   /* this rank's shard */
size_t      optimizer_count(const Optimizer *o, const Model *m, int kind);      /* elements of it */
int         optimizer_has(const Optimizer *o, const Model *m, int kind, int i);     /* does tensor i have that kind? */
size_t      optimizer_offset(const Optimizer *o, const Model *m, int kind, int i);
Dtype      optimizer_type(const Optimizer *o, int kind);
size_t      optimizer_element(const Optimizer *o, const Model *m, int kind);    /* bytes */
#endif
