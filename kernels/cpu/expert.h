/* expert.h: the gated nonlinearity, for expert.c and fp8.c. */
#ifndef EXPERT_H
#define EXPERT_H
#include "impl.h"

static inline real sigmoid(real x) { return 1 / (1 + fast_exp(-x)); }

/* act = silu(g) u, with silu(g) = g s and s = sigmoid(g):  silu'(g) = s (1 + g (1 - s)).
 * With da = v and the row's weight w: dg = w v u silu'(g),  du = w v silu(g). */
static inline real swiglu(real g, real u) { return g * sigmoid(g) * u; }
typedef struct { real dweight, wact, dg, du; } SwigluGradient;          /* dweight: this element's addend */
static inline SwigluGradient swiglu_backward(real g, real u, real v, real w) {
    const real s = sigmoid(g), silu = g * s;
    return (SwigluGradient){ v * silu * u, w * silu * u, w * v * u * s * (1 + g * (1 - s)), w * v * silu };
}
#endif
