// expert.cuh: the nonlinearities of experts.
//
// For results in bf16, exponential and quotient are single approximate instructions (errors of 1e-6
// against a bound of 8 * 2^-8), as tensor cores wait for them; for float they are exact.
#pragma once
#include "ptx.cuh"

// Where a plan's number of used rows is, if it may be less than S (rounded routing); else NULL.
static inline const int *end_of(const Plan *plan) { return plan->first ? plan->start + plan->E : NULL; }
__device__ static inline real fast_sigmoid(real x) {
    return sizeof(floatX) == 2 ? inverse_fast(1 + exp2_fast(-LOG2E * x)) : 1 / (1 + expf(-x));
}

// An activation and its derivatives by gate and up. Only gated kinds use `up`.
typedef struct { real act, dgate, dup; } Slope;
template<Activation f> __device__ static inline Slope slope_of(real g, real up) {
    if (f == SWIGLU) {                                      // silu(g) = g s:  silu' = s (1 + g (1 - s))
        const real s = fast_sigmoid(g), silu = g * s;
        return { silu * up, up * (s + silu * (1 - s)), silu };
    }
    if (f == CLAMPED) {                                     // beyond the limits the slope is 0; NaN stays NaN
        const real limit = (real)CLAMPED_LIMIT, slope = (real)CLAMPED_SLOPE, gate = g > limit ? limit : g,
            u = (up > limit ? limit : up < -limit ? -limit : up) + 1;
        const real s = fast_sigmoid(slope * gate), silu = gate * s;
        return { silu * u, g > limit ? 0 : u * s * (1 + slope * gate * (1 - s)), up > limit || up < -limit ? 0 : silu };
    }
    if (f == GELU) {                                        // g sigmoid(2u), u = sqrt(2/pi) (g + 0.044715 g^3)
        const real c = 0.7978845608028654f, a = 0.044715f, s = fast_sigmoid(2 * c * (g + a * g * g * g));
        const real t = 2 * s - 1;
        return { g * s, s + g / 2 * (1 - t * t) * c * (1 + 3 * a * g * g), 0 };
    }
    if (f == RELU2) {
        const real v = g > 0 ? g : 0 * g;                   // so that NaN stays NaN
        return { v * v, 2 * v, 0 };
    }
    return { g, 1, 0 };
}

#if defined(PRECISION_BF16)
// The gradient of each row's router weight: the ordered sum of its parts (parts,S).
void sum_router_parts(real *dweight, const real *part, const Plan *plan, int parts);
#endif
