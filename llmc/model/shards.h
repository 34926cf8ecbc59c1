/* shards.h: what levels 2 and 3 need, and sums in the order of ranks. Called by parallel.c. */
#pragma once
#include "model.h"

void shards_forget(Model *m);
void shards_wait(Model *m, int range, int way);
void shards_keep(Model *m, int range);
void shards_open(Model *m, int range);
void shards_send(Model *m, int range);
void shards_cross(Model *m, int sent);  /* a range was sent within the node: the one before goes to other nodes */
void shards_finish(Model *m);           /* after range 0 of the last micro-batch: the last one, too; all have arrived */
/* sums += x of all ranks, rank by rank. sums NULL: not here, but all ranks call it.   x (n) */
void sum_in_order(Model *m, real *sums, const real *x, size_t n);
const real *shards_gather_gradients(Model *m, int range);
