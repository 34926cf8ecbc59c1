// expert.cuh: the nonlinearities of experts, for expert.cu and few.cu.
//
// Where results are stored as bf16, exponential and quotient are the GPU's single instructions (errors of 1e-6 against a
// bound of 8 * 2^-8): in the products' kernels this runs while no product does. For float they are the exact ones.
#pragma once
#include "ptx.cuh"

// How many rows of a plan are used, where that may be fewer than S; NULL: all.
static inline const int *end_of(const Plan *plan) { return plan->first ? plan->start + plan->E : NULL; }

__device__ static inline real fast_sigmoid(real x) {
    return sizeof(floatX) == 2 ? inverse_fast(1 + exp2_fast(-LOG2E * x)) : 1 / (1 + expf(-x));
}

// An activation and its derivatives. `up` counts for the gated kind only.
typedef struct { real act, dgate, dup; } Slope;
template<Activation f> __device__ static inline Slope slope_of(real g, real up) {
    if (f == SWIGLU) {                                      // silu(g) = g s:  silu' = s (1 + g (1 - s))
        const real s = fast_sigmoid(g), silu = g * s;
        return { silu * up, up * (s + silu * (1 - s)), silu };
    }
    if (f == GELU) {                                        // g sigmoid(2u), u = sqrt(2/pi) (g + 0.044715 g^3)
        const real c = 0.7978845608028654f, a = 0.044715f, s = fast_sigmoid(2 * c * (g + a * g * g * g));
        const real t = 2 * s - 1;
        return { g * s, s + g / 2 * (1 - t * t) * c * (1 + 3 * a * g * g), 0 };
    }
    if (f == RELU2) {
        const real v = g > 0 ? g : 0 * g;                   // NaN stays NaN
        return { v * v, 2 * v, 0 };
    }
    return { g, 1, 0 };
}
