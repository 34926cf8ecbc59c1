/* save_shard.h: what one rank writes of a model and its optimizer's state. Every rank has a shard
 * of every tensor, whatever is sharded: its piece of the range (tensor.h). It is read from the
 * device, in pieces through a small buffer that it reaches directly, while training waits; or from
 * a copy in the host's memory, which is made at once, and training goes on while files are written.
 * No rank needs what others have, but of sharded experts that files have in another order
 * (transposed): of those that are cut, the rank that has the beginning borrows the rest. */
#pragma once
#include "llmc/model/optim.h"
#include "host_buffer.h"
#include "safetensors.h"

enum { SHARD_WEIGHTS = STATE_KINDS, SHARD_ARRAYS };        /* before it, the kinds of the optimizer's state */
typedef struct {
    size_t first, count;                /* elements of the tensor that this rank writes; */
    size_t own;                         /* it has the first ones of them itself; */
    size_t source;                      /* they begin here in the array, in elements, */
    size_t at;                          /* and here in the copy, in bytes; */
    size_t borrowed;                    /* the others begin here among the borrowed ones, in bytes */
} SaveShardPart;
/* A buffer with a piece of this rank's part of a tensor: n elements from `first` on. */
typedef struct { HostBuffer *memory; size_t bytes; int array, tensor; size_t first, n; } SaveStream;
enum { SAVE_PIECE = HOST_PIECE };               /* its bytes, at most */
typedef struct {
    const Model     *model;
    const Optimizer *optimizer;         /* NULL: weights only */
    int              leads;  /* 1: rank 0, which also writes what all ranks have: heads of files, the routers' biases */
    SaveShardPart       *parts[SHARD_ARRAYS];  /* (tensors) */
    size_t           bytes;             /* of a copy */
    size_t           bias_at;
    size_t           most_parts;        /* of a file, that a rank writes: a bound for what others say of theirs */
    size_t           borrowed_bytes;
    char            *borrowed;          /* in the host's memory, while something is saved */
    char            *copy;              /* in the host's memory, `bytes`; NULL: there is none */
    int              copied;            /* 1: it has what is to be saved */
    SaveStream      *stream;            /* else, while something is saved; NULL on a CPU, or without memory */
} SaveShard;

void save_shard_open(SaveShard *s, const Model *m, const Optimizer *o);  /* of a planned model and optimizer */
void save_shard_close(SaveShard *s);

/* Gets from other ranks what is borrowed, as it is now: called by all ranks. Starts the copy of
 * what the device has now; Device.copied tells when it is complete; weights_only: without the
 * optimizer's state. stream: makes the buffer instead. drop: of all of this nothing is left; from
 * now on the device is read. */
void save_shard_borrow(SaveShard *s);
void save_shard_copy(SaveShard *s, int weights_only);
void save_shard_stream(SaveShard *s);
void save_shard_drop(SaveShard *s);

/* n elements of this rank's part, from the tensor's element `first` on: in buffer, or on the host
 * until the next call. */
const void *save_shard_read(const SaveShard *s, int array, int tensor, size_t first, size_t n, void *buffer);
const void *save_shard_bias(const SaveShard *s, void *buffer);  /* the routers' biases, (routers, E) */
/* The sum of a file, of which this rank has written these parts, on rank 0. 0: those of all ranks
 * do not make up a file. Called by all ranks of the group; NULL: there is one. */
int save_shard_sum(const SaveShard *s, Group *group, const FilePart *parts, size_t count, FileSum *sum);
Dtype  save_shard_type(const SaveShard *s, int array);
size_t save_shard_element(const SaveShard *s, int array);   /* bytes */
int    save_shard_has(const SaveShard *s, int array, int tensor);  /* has this tensor that state? */
