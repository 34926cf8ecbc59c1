/* expert.c: the nonlinearity inside an expert, together with the gradient of the router's weight.
 *
 * Why together: a token's output is the sum over its slots of weight_s act_s w[e]^T, so with
 * da_s = dout w[e], of slot s of expert e, not yet weighted (smoe.c, before combine_backward):
 *     dweight_s = <dout, act_s w[e]^T> = <da_s, act_s>      the expert's output is not needed
 *     dact_s    = weight_s da_s           dw[e] += dout^T (weight_s act_s)
 * act is recomputed from pre. So a layer saves its input and pre, and nothing of size (S,C). */
#include "expert.h"

/* gelu(x) = x/2 (1 + t), t = tanh(u) = 2 sigmoid(2u) - 1, u = sqrt(2/pi) (x + 0.044715 x^3):
 * gelu'(x) = (1 + t)/2 + x/2 (1 - t^2) u'.   Source: Hendrycks and Gimpel 2016, arXiv 1606.08415 */
#define GELU_C ((real)0.7978845608028654)
#define GELU_A ((real)0.044715)

static void activation_forward(floatX *act, const floatX *pre, Activation f, int M, int F) {
    #pragma omp parallel for PARALLEL_IF((size_t)M*F*8)
    for (int m = 0; m < M; m++) {
        floatX *a = act + (size_t)m*F;
        const floatX *x = pre + (size_t)m*F * (IS_GATED(f) ? 2 : 1), *up = x + F;
        switch (f) {
        case SWIGLU:
            for (int i = 0; i < F; i++) a[i] = X(swiglu(R(x[i]), R(up[i])));
            break;
        case CLAMPED:
            for (int i = 0; i < F; i++) a[i] = X(clamped_swiglu(R(x[i]), R(up[i])));
            break;
        case GELU:
            for (int i = 0; i < F; i++) {
                real v = R(x[i]), u = GELU_C * (v + GELU_A * v * v * v);
                a[i] = X(v * fast_sigmoid(2 * u));
            }
            break;
        case RELU2:
            for (int i = 0; i < F; i++) { real v = R(x[i]) > 0 ? R(x[i]) : 0 * R(x[i]); a[i] = X(v * v); }
            break;
        case IDENTITY:
            memcpy(a, x, (size_t)F * sizeof *a);
            break;
        }
    }
}

/* One row of activation_backward of a gated kind: returns its dweight. dx (2F) may be x. */
static inline __attribute__((always_inline)) real gated_row(floatX *dx, floatX *wact, const floatX *da, const floatX *x,
                                                            real w, int F, int clamped) {
    real dot = 0;
    #pragma omp simd reduction(+:dot)
    for (int i = 0; i < F; i++) {
        const SwigluGradient y = (clamped ? clamped_swiglu_backward : swiglu_backward)(R(x[i]), R(x[F + i]),
                                                                                       R(da[i]), w);
        dot += y.dweight;
        wact[i]   = X(y.wact);
        dx[i]     = X(y.dg);
        dx[F + i] = X(y.du);
    }
    return dot;
}

static void activation_backward(floatX *dpre, floatX *wact, real *dweight, const floatX *da, const floatX *pre,
                                const real *weight, const Plan *plan, Rows rows, Activation f, int M, int F) {
    const int wide = IS_GATED(f) ? 2 : 1;
    if (plan && plan->start[plan->E] < M) M = plan->start[plan->E];
    #pragma omp parallel for PARALLEL_IF((size_t)M*F*8)
    for (int m = 0; m < M; m++) {
        const size_t slot = plan && rows == GROUPED ? (size_t)plan->slot_of_row[m] : (size_t)m;
        const real w = weight ? weight[slot] : 1;
        const floatX *d = da + (size_t)m*F, *x = pre + (size_t)m*F*wide;
        floatX *dx = dpre + (size_t)m*F*wide, *wa = wact + (size_t)m*F;
        real dot = 0;
        switch (f) {
        case SWIGLU:  dot = gated_row(dx, wa, d, x, w, F, 0); break;
        case CLAMPED: dot = gated_row(dx, wa, d, x, w, F, 1); break;
        case GELU:
            #pragma omp simd reduction(+:dot)
            for (int i = 0; i < F; i++) {
                real g = R(x[i]), v = R(d[i]);
                real s = fast_sigmoid(2 * GELU_C * (g + GELU_A * g * g * g)), t = 2 * s - 1;
                real slope = s + g / 2 * (1 - t * t) * GELU_C * (1 + 3 * GELU_A * g * g);
                dot += v * g * s;
                wa[i] = X(w * g * s);
                dx[i] = X(w * v * slope);
            }
            break;
        case RELU2:
            #pragma omp simd reduction(+:dot)
            for (int i = 0; i < F; i++) {
                real g = R(x[i]) > 0 ? R(x[i]) : 0 * R(x[i]), v = R(d[i]);
                dot += v * g * g;
                wa[i] = X(w * g * g);
                dx[i] = X(w * v * 2 * g);
            }
            break;
        case IDENTITY:
            #pragma omp simd reduction(+:dot)
            for (int i = 0; i < F; i++) {
                real g = R(x[i]), v = R(d[i]);
                dot += v * g;
                wa[i] = X(w * g);
                dx[i] = X(w * v);
            }
            break;
        }
        if (dweight) dweight[slot] = dot;
    }
}

PART(expert) { d->activation_forward = activation_forward;  d->activation_backward = activation_backward; }
