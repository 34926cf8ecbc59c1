/* cost.h: how long a training step would take, before anything runs: what its operations compute
 * and move (kernels/operations.h), divided by the rates of a machine. */
#pragma once
#include "optim.h"

/* Of one device: flop per second of dense products, of routed rows, of these in 8 bits, of Muon's
 * products and of attention; bytes per second, read and written; seconds that each operation takes
 * besides. */
typedef struct { double dense, routed, fp8, muon, attention, bytes, start; } Rates;

typedef struct {
    int B, T, micro_batches;            /* of one rank */
    Recompute recompute;
    Dtype gradients, moments;
    int master;
    MuonOptions muon;
    float dropout;
    int rounds;                         /* -rt */
} Work;

/* Seconds of a step of one rank, and of its parts: forward of a micro-batch, all passes of a step,
 * the optimizer's update. flop: of the products and attention of a step. */
typedef struct { double forward, passes, update, flop; } StepCost;

/* Makes the calls of a step on a device of which nothing but the sizes is used: nothing is computed
 * or allocated on it. An operation takes sqrt(c^2 + m^2) seconds, c its flop and m its bytes at the
 * device's rates, as one hides part of the other, and Rates.start. */
StepCost cost_of_step(const Config *c, const Device *dev, const Work *w, const Rates *rates);

/* The rates of this device with sizes of this model, measured in about half a second: of products,
 * attention and bytes; the others are in proportion to them, as measured once (docs/LOG.md, "Time
 * in the plan"). 0: no memory. */
int rates_measure(const Device *dev, const Config *c, int T, Rates *rates);
