/* recompute.h: which parts of layers backward recomputes (model.h), what that saves and costs.
 *
 * A layer's forward keeps buffers for its backward. Layers that recompute a part share one buffer
 * for it, and backward computes it again from what is kept: the same operations on the same
 * numbers, so gradients have the same bits whatever is recomputed. n layers then need n buffers
 * less, and n more forwards of the part. Routing is never recomputed: it is small.
 * Source: Chen et al. 2016, arXiv 1604.06174; by parts: arXiv 2205.05198. */
#pragma once
#include "llmc/base/text.h"
#include "model.h"

Recompute recompute_parts(unsigned parts, int layers);  /* bits: 1 << LayerPart; in this many layers, or all */
Recompute recompute_numbered(int number);               /* of -r: 0 nothing, 1 norms, 2 whole layers */

/* The functions below are about a planned model, allocated or not. */

/* Bytes that this saves over recomputing nothing; and its cost as a fraction of the step's work,
 * estimated from counts of flop and bytes and measured rates of devices. */
size_t recompute_saves(const Model *m, Recompute r);
double recompute_costs(const Model *m, Recompute r);

/* The cheapest choice that saves at least `bytes`. If none saves that much: everything. */
Recompute recompute_choose(const Model *m, size_t bytes);

/* Appends "up projections of 17 of 48 layers: 11.20 GB less, about 4 % more work", or nothing. */
void recompute_describe(const Model *m, Recompute r, Text *out);
void recompute_list(const Model *m, Text *out);         /* each part, in all layers: what it saves and costs */
