/* pieces.h: a model's tensors as the files of its family have them: their names, their shapes, and
 * the order of their rows. A tensor in memory may be several in a file: keys and values, gate and
 * up, or one of each expert. Each piece is contiguous in memory. */
#pragma once
#include "llmc/model/model.h"

enum { PIECE_NAME = TENSOR_NAME + 16 };
typedef struct {
    char     name[PIECE_NAME];
    uint64_t shape[4];                  /* the file's */
    int      rank, tensor;               /* tensor: its number in the manifest */
    int      head;                  /* the file has the rows of heads of this size in another order; 0: it has not */
    int      transposed, interleaved;    /* of experts: transposed; rows of gate and up alternate */
    int      of, experts;                /* one of so many pieces of each of the experts in a tensor; 0: it is all */
    uint64_t first;                      /* its first element there */
    size_t   offset, count;              /* in the arena of weights, in elements */
} Piece;
/* All of them in the order of memory, which is the file's. free() it. */
Piece *pieces_of(const Model *m, OUT size_t *count);

/* The name and the place of a piece where Transformers 5 keeps all experts of a layer in a tensor,
 * and in its own names of other tensors. 0: there is no other. */
int    piece_by_module(const Config *c, const Piece *p, OUT Piece *other);
/* Router r's bias for choosing, if any: it is not learned, so not in the manifest. */
Piece  piece_of_bias(const Model *m, int r);
/* Is a tensor of this name in files of a family, but no part of its models? */
int    is_idle(const Config *c, const char *name);

/* Rows are moved within units of so many elements: a head, or an expert. 1: the same order. */
size_t piece_unit(const Piece *p);
size_t expert_unit(const Model *m, int tensor);             /* of units that are experts; a head may be cut */
/* From the order of files to that of memory, or back; n elements of `size` bytes, whole units. */
void   piece_reorder(const Config *c, const Piece *p, void *data, size_t n, size_t size, int to_memory);
/* The position in memory of dimension i of a head in files: pairs are (i, i + D/2) in memory, but
 * where only R of a head rotate, (i, i + R/2) in files, and in some families neighbours. In latent
 * attention these are the last ones. */
int    piece_row(const Config *c, int head, int i);
