/* expert.h: the gated nonlinearity, for expert.c and fp8.c. */
#pragma once
#include "impl.h"

static inline real fast_sigmoid(real x) { return 1 / (1 + fast_exp(-x)); }

/* act = silu(g) u, with silu(g) = g s and s = sigmoid(g):  silu'(g) = s (1 + g (1 - s)).
 * With da = v and the row's weight w: dg = w v u silu'(g),  du = w v silu(g). */
static inline real swiglu(real g, real u) { return g * fast_sigmoid(g) * u; }
typedef struct { real dweight, wact, dg, du; } SwigluGradient;          /* dweight: this element's addend */
static inline SwigluGradient swiglu_backward(real g, real u, real v, real w) {
    const real s = fast_sigmoid(g), silu = g * s;
    return (SwigluGradient){ v * silu * u, w * silu * u, w * v * u * s * (1 + g * (1 - s)), w * v * silu };
}

/* With g sigmoid(1.702 g) for silu and u + 1 for u, clamped: no gradient beyond. NaN stays NaN. */
static inline real clamp_gate(real g) { return g > (real)CLAMPED_LIMIT ? (real)CLAMPED_LIMIT : g; }
static inline real clamp_up(real u) { return u < -(real)CLAMPED_LIMIT ? -(real)CLAMPED_LIMIT : clamp_gate(u); }
static inline real clamped_swiglu(real g, real u) {
    return clamp_gate(g) * fast_sigmoid((real)CLAMPED_SLOPE * clamp_gate(g)) * (clamp_up(u) + 1);
}
static inline SwigluGradient clamped_swiglu_backward(real g, real u, real v, real w) {
    const real limit = (real)CLAMPED_LIMIT, gate = clamp_gate(g), up = clamp_up(u) + 1;
    const real s = fast_sigmoid((real)CLAMPED_SLOPE * gate), silu = gate * s;
    const real dg = w * v * up * s * (1 + (real)CLAMPED_SLOPE * gate * (1 - s)), du = w * v * silu;
    return (SwigluGradient){ v * silu * up, w * silu * up, g > limit ? 0 : dg, u > limit || u < -limit ? 0 : du };
}
