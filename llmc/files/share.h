/* share.h: what one rank writes of a model and its optimizer's state. Every rank has a share of every tensor, whatever is sharded: its
 * piece of the range (tensor.h). It is read from the device, or from a copy in the host's memory, which is made at once; then training
 * goes on while files are written. No rank needs what others have, but of sharded experts that files have in another order (transposed):
 * of those that are cut, the rank that has the beginning borrows the rest. */
#ifndef SHARE_H
#define SHARE_H
#include "llmc/model/optim.h"
#include "safetensors.h"

enum { SHARE_WEIGHTS = STATE_KINDS, SHARE_ARRAYS };        /* before it, the kinds of the optimizer's state */
typedef struct {
    size_t first, count;                /* elements of the tensor that this rank writes; */
    size_t own;                         /* it has the first ones of them itself; */
    size_t source;                      /* they begin here in the array, in elements, */
    size_t at;                          /* and here in the copy, in bytes; */
    size_t borrowed;                    /* the others begin here among the borrowed ones, in bytes */
} SharePart;
typedef struct {
    const Model     *model;
    const Optimizer *optimizer;         /* NULL: weights only */
    int              leads;             /* 1: rank 0, which also writes what all ranks have: heads of files, the routers' biases */
    SharePart       *parts[SHARE_ARRAYS];   /* (tensors) */
    size_t           bytes;             /* of a copy */
    size_t           bias_at;
    size_t           borrowed_bytes;
    char            *borrowed;          /* in the host's memory, while something is saved */
    char            *copy;              /* memory of the host for s->bytes, which the device reaches directly; NULL: there is none */
    int              copied;            /* 1: it has what is to be saved */
} Share;

void share_open(Share *s, const Model *m, const Optimizer *o);      /* of a planned model and optimizer */
void share_close(Share *s);

/* Gets from other ranks what is borrowed, as it is now: called by all ranks. Starts the copy of what the device has now; Device.copied
 * tells when it is complete; weights_only: without the optimizer's state. drop: from now on the device is read, and nothing is borrowed. */
void share_borrow(Share *s);
void share_copy(Share *s, int weights_only);
void share_drop(Share *s);

/* n elements of this rank's part of a tensor, from its element `first` on (of the tensor): where they are on the host, or in `buffer`. */
const void *share_read(const Share *s, int array, int tensor, size_t first, size_t n, void *buffer);
const void *share_bias(const Share *s, void *buffer);       /* the routers' biases, (routers, E) */
Dtype  share_type(const Share *s, int array);
size_t share_element(const Share *s, int array);            /* bytes */
int    share_has(const Share *s, int array, int tensor);    /* has this tensor that state? */
#endif
