/* tensor.h: the manifest, one record for every learnable tensor. Allocation, initial values, the
 * optimizer, checks, checkpoints and export are loops over it; none of them knows the model. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "kernels/kernels.h"

#define TENSOR_NAME 112
/* What a tensor is to the optimizer (optim_state.c). ATTENTION, MLP: matrices, (rows, columns), of
 * experts (E, rows, columns); KEYS_VALUES, GATE_UP: two above each other, (.., 2 rows, columns).
 * VALUES, BIGRAM: tables (values.c, mix.h), GATE: of values, SCALARS: of the stream. */
typedef enum { TENSOR_EMBEDDING, TENSOR_HEAD, TENSOR_NORM, TENSOR_BIAS, TENSOR_ROUTER, TENSOR_ATTENTION,
               TENSOR_KEYS_VALUES, TENSOR_MLP, TENSOR_GATE_UP, TENSOR_VALUES, TENSOR_BIGRAM, TENSOR_GATE,
               TENSOR_SCALARS, TENSOR_KINDS } TensorKind;
typedef struct {
    char   name[TENSOR_NAME];           /* in logs, checks, and files of optimizers; of models: llmc/files/pieces.h */
    int    shape[4], rank;
    size_t offset, count;               /* elements; one offset addresses weight, master copy and moments */
    Dtype  dtype;                       /* of its gradient; */
    size_t element, gradient;           /* bytes of one element of that, and where it begins, in elements */
    int    passes;                      /* 1: the gradient is in memory that all ranges share (absorb.h) */
    float  init;                        /* standard deviation of the initial values, or ONES, or ZEROS */
    TensorKind kind;
    size_t field;                       /* where the struct of pointers keeps this one */
    int    layer;                       /* -1: not in a layer */
    int    summed;                      /* 1: its gradient is added to, so it begins at zero and is kept in reals */
    int    range;                       /* its number among the manifest's ranges */
    int    padding;                     /* rows at its end that no file has */
} Tensor;

/* What ranks exchange as a whole: the embedding, a block, what follows the last one. Backward
 * completes their gradients in the opposite order, so that one is reduced while the next is
 * computed. Ranges fill the arena without gaps, and each is padded so that it divides into `shards`
 * equal pieces: rank r updates piece r of every range. by_matrix: and so that pieces end between
 * the matrices of experts, which Muon updates as wholes: pieces are multiples of such a matrix,
 * and experts begin at one; unless the padding would be more than a sixteenth of the range. */
typedef struct {
    size_t offset, count;
    size_t parts_at, parts;     /* muon.c: this range's slot among the parts of shared matrices: its offset and size */
    size_t sums;                /* sharded gradients: where a rank's sum of its piece begins, in reals */
    int    passes;              /* 1: some of its gradients pass: its sums are in memory that such ranges share */
} Range;
typedef struct {
    Tensor *at;
    int     count, capacity;
    Range  *ranges;
    int     range_count, shards, by_matrix, padding;        /* padding: of every tensor of the vocabulary */
    size_t  total, learnable;           /* elements; total: with padding */
    size_t  gradient_bytes;             /* of all gradients, padded likewise; if sharded, of all shards */
} Manifest;

#define ONES  (-1.0f)
#define ZEROS (0.0f)

/* Appends a tensor. Its name is "model.layers.<layer>.<name>", or `name` outside of layers. */
void manifest_add(Manifest *m, int layer, size_t field, const char *name, float init, TensorKind kind, int rank,
                  const int *shape);
void manifest_end_range(Manifest *m);                       /* the tensors since the last call are one */
int    tensor_rows(const Tensor *t);                        /* of one of its matrices (TensorKind) */
int    tensor_is_experts(const Tensor *t);                  /* of an MLP, one matrix each */
size_t manifest_largest(const Manifest *m);                 /* elements of the largest range */
/* Lays out the gradients in the order of the weights, those that pass after the others; after the
 * dtype of each is set. */
void manifest_lay_out_gradients(Manifest *m, const Device *dev);
/* The same of a shard's sums: where a range has gradients that pass, its piece is in memory that
 * all such ranges share, and a shard's part of its other gradients begins at Tensor.gradient. */
void manifest_lay_out_sums(Manifest *m, const Device *dev);
void manifest_free(Manifest *m);

void *gradient_of(const Tensor *t, const void *gradients);  /* its gradient in that arena */

/* The optimizer's view: what a shard has of a range, of tensor i (shards 1: all). May be empty. */
Segment manifest_part(const Manifest *m, int range, int shards, int shard);
Segment manifest_segment(const Manifest *m, int i, int shards, int shard);      /* of rate 1 and without decay */
size_t  manifest_sums(const Manifest *m, int range, Segment s);     /* where the shard of s has the sums of its piece */

/* Initial values of n elements of a tensor, a function of (seed, name, index): no order, thread or
 * device changes them. exact 0: the same numbers only as floats, in a fifth of the time. */
void manifest_initial(const Tensor *t, uint64_t seed, size_t from, size_t n, int exact, double *values);

/* The index of the first element that is NaN or infinite, or count. dtype: F64, F32, BF16 or I8. */
size_t first_not_finite(const char *dtype, const void *data, size_t count);
