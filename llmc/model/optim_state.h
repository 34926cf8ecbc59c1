/* optim_state.h: the optimizer's state: what updates which tensor, and where a rank has its state.
 *
 * AdamW updates all tensors; or Muon the matrices, and AdamW the rest. A table in optim_state.c has
 * each kind's multiple of the rate and weight decay. Muon's tensors have no v. */
#pragma once
#include "model.h"

/* How Muon runs. Experts have time slices: update u changes the matrices of expert e if (u - e) %
 * period is 0, at `period` times their rate, so all updates take equally long. Their momentum is
 * computed in every update. What this saves and costs: docs/recipe.md. */
typedef struct {
    float momentum;           /* decay rate of the running mean of gradients; 0: AdamW updates all */
    int   period;             /* 1 .. MUON_PERIODS; 0: 1 */
    float second;             /* decay rate of the mean squares of rows of updates (NorMuon); 0: there are none */
    int   plain;              /* 1: the update is of the momentum; 0: it looks one gradient ahead (Nesterov) */
    int   absorbs;            /* 1: gradients of micro-batches are added to the momentum (absorb.h); needs plain */
    float most;               /* then: times its mean norm is a tensor's gradient at most as long; 0: any length */
} MuonOptions;
enum { MUON_PERIODS = 8 };

/* Multiples of the learning rate for tables, in any run. Of their rows a batch reads few, each a
 * few times: rates are higher than others', and means shorter (TABLE_BETAS in optim.c). Source:
 * modded-nanogpt, where both are 75 and a row of pairs counts a twentieth at first. */
typedef struct { float values, bigrams; } TableRates;
#define TABLE_RATES ((TableRates){ 75, 4 })

/* Muon's matrices of one shape and slice on this rank: `count` of MatrixOptimizer.matrices, from
 * `first` on, and the first `full` of them are whole. Where the state is sharded, the others begin
 * or end on another rank. slice: u % period of the updates that change them; -1: all updates do. */
typedef struct { int rows, columns, slice, first, count, full; } MatrixShape;
enum { MATRIX_SHAPES = 16 + 4 * MUON_PERIODS };

typedef struct {
    MuonOptions  options;               /* they stay: a thread that saves reads them */
    Muon        *settings;    /* of this update, on the device */
    MatrixShape  shapes[MATRIX_SHAPES];
    int          shape_count;
    Segment     *matrices;    /* on the device: this rank's part of each, by shape, */
    Segment     *parts;       /* and, of those that other ranks have parts of, by their position in `shared` */
    int          part_count;
    floatX      *shared;      /* (shards, part_elements) momentum of all ranks' parts */
    size_t       part_elements;
    MuonBuffers  buffers;
    real        *scale;       /* (matrices of a batch, their longer side); NULL: there are no squares */
} MatrixOptimizer;

/* What absorb.c needs; tensors: of the model. On the device. */
typedef struct {
    Segment *parts;           /* (tensors) Muon's, others empty; then of the loss and of the head's input gradient */
    real    *sq_norms, *factors;        /* (MUON_LIMITED + 1) (MUON_LIMITED, 2) of a range */
    real    *added, *faults;            /* (tensors) (tensors + 1) of this step: muon_limits. One array */
} Absorb;

typedef struct {
    void    *m, *v;           /* (optimizer_count) running means of the gradient, and of its square (AdamW only) */
    Dtype    moments;         /* what they are stored as; INT8: Muon's m is codes, and the others' are floatX */
    void    *codes;           /* (optimizer_count) Muon's m in 8 bits (Momentum), or NULL, */
    floatX  *scales;          /* and its blocks' scales */
    real    *squares;         /* (optimizer_count) mean squares of rows or columns of Muon's updates, or NULL */
    real    *norms;           /* (tensors, 2) mean norms of gradients (muon_limits), or NULL */
    real    *master;          /* the weights in `real`, where floatX is too coarse to take small updates; else NULL */
    Segment *segments;        /* (tensors) on the device: this rank's shard of each, empty of Muon's */
    Segment *summed;    /* (tensors) whose summed gradients it has: this rank's shards, or full tensors if ordered */
    AdamW   *settings;        /* of this update, on the device */
    MatrixOptimizer muon;
    Absorb   absorb;
    TableRates tables;
    int      tensors;
    int      kinds;           /* of state that it has: STATE_KINDS, or without the last, the master copy */
    int      shards, shard;   /* how many ranks the state is sharded over (parallel.h), and which shard this is */
    int      updates;         /* made so far: Adam's clock. A skipped step does not count */
} Optimizer;

int  muon_updates(const Optimizer *o, const Tensor *t);
int  muon_slice(const Optimizer *o, const Tensor *t, size_t begin);     /* of its matrix that begins there */
int  optimizer_slice(const Optimizer *o);       /* of the update that was set: updates % period, below MUON_PERIODS */

/* The state, by kind; of squares, norms and master copies there may be none. Squares are few and
 * not sharded: of the matrices that a rank has a part of it has those that count. Nor are norms. */
enum { STATE_M, STATE_V, STATE_SQUARES, STATE_NORMS, STATE_CODES, STATE_SCALES, STATE_MASTER, STATE_KINDS };
extern const char *const state_suffix[STATE_KINDS];         /* of the names in files */
int         optimizer_has(const Optimizer *o, const Model *m, int kind, int i);     /* does tensor i have that kind? */
Momentum    optimizer_momentum(const Optimizer *o);         /* Muon's m */
void       *optimizer_part(const Optimizer *o, int kind);   /* this rank's shard, */
size_t      optimizer_count(const Optimizer *o, const Model *m, int kind);          /* its elements, */
size_t      optimizer_elements(const Optimizer *o, const Model *m, int kind, int i);    /* those of tensor i in full, */
Segment     optimizer_segment(const Optimizer *o, const Model *m, int i);   /* and its part of tensor i in the model; */
Segment     optimizer_stored(const Model *m, int i, Segment s);     /* such a part in this rank's memory */
size_t      optimizer_unit(int kind);       /* elements of a tensor for each: MOMENT_BLOCK of scales, else 1 */
size_t      optimizer_offset(Segment own, int kind);        /* where the shard has its state, in elements */
Dtype       optimizer_type(const Optimizer *o, int kind);
size_t      optimizer_element(const Optimizer *o, const Model *m, int kind);    /* bytes */
