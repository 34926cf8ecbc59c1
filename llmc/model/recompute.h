/* recompute.h: what backward makes once more instead of keeping it (model.h: LayerPart, Recompute), and which of it pays.
 *
 * A layer's forward leaves buffers for its backward. For a part, layers can share one buffer instead, and backward makes the part once
 * more from what is kept: the same operations on the same numbers, so gradients are the same bit for bit whatever is recomputed. Of n
 * layers a part then takes n buffers less and its forward n times more. Routing is never recomputed: it is small.
 * Source: Chen et al. 2016, arXiv 1604.06174; by parts: Korthikanti et al. 2022, arXiv 2205.05198. */
#ifndef RECOMPUTE_H
#define RECOMPUTE_H
#include "llmc/base/text.h"
#include "model.h"

Recompute recompute_parts(unsigned parts, int layers);  /* those whose bits (1 << LayerPart) are set, in so many layers or all there are */
Recompute recompute_numbered(int number);               /* of -r: 0 nothing, 1 norms, 2 whole layers */

/* The functions below are about a planned model, allocated or not. */

/* Bytes that this saves over recomputing nothing; and what it costs, as a share of the step's work: an estimate by counts of flop and
 * bytes and the pace at which devices did each. */
size_t recompute_saves(const Model *m, Recompute r);
double recompute_costs(const Model *m, Recompute r);

/* What saves at least `bytes` and costs least: some parts in all layers, and one in as many as it takes. If nothing saves that much:
 * all there is. */
Recompute recompute_choose(const Model *m, size_t bytes);

/* Appends "up projections of 17 of 48 layers: 11.20 GB less, about 4 % more work"; nothing where r recomputes nothing. */
void recompute_describe(const Model *m, Recompute r, Text *out);
void recompute_list(const Model *m, Text *out);         /* each part, in all layers: what it saves and costs */
#endif
