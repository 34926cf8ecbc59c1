/* heads.c: what some models do with heads: norms, keys with a part that all share, sinks. */
#include "impl.h"

/* ---- norm_rope: round(round(x r) w) with r = (mean(x^2) + eps)^(-1/2), then rope.c's rotation */

static real head_rstd(const floatX *x, real eps, int D) {
    real squares = 0;
    #pragma omp simd reduction(+:squares)
    for (int i = 0; i < D; i++) squares += R(x[i]) * R(x[i]);
    return 1 / sqrt(squares / D + eps);
}
static void norm_rope_forward(floatX *x, floatX *before, const real *table, const int *position, Norm norm, int N,
                              int stride, int heads, int D) {
    const floatX *w = norm.weight;
    #pragma omp parallel for PARALLEL_IF((size_t)N * heads * D)
    for (int n = 0; n < N; n++) {
        const real *angles = table + (size_t)position[n] * D;
        for (int h = 0; h < heads; h++) {
            floatX *low = x + (size_t)n*stride + h*D, *high = low + D/2;
            const real r = head_rstd(low, (real)norm.eps, D);
            if (before) memcpy(before + ((size_t)n*heads + h) * D, low, (size_t)D * sizeof *x);
            for (int i = 0; i < D/2; i++) {
                const real cosine = angles[2*i], sine = angles[2*i + 1];
                const real a = R(X(R(X(R(low[i]) * r)) * R(w[i]))), b = R(X(R(X(R(high[i]) * r)) * R(w[i + D/2])));
                low[i]  = X(a * cosine - b * sine);
                high[i] = X(b * cosine + a * sine);
            }
        }
    }
}

/* The rotation the other way gives dn, and that goes through the norm as in norm.c. dweight: each
 * block of ROWS tokens makes a partial sum, and these are added in order. */
static void norm_rope_backward(floatX *dx, real *dweight, const floatX *before, const real *table, const int *position,
                               Norm norm, int N, int stride, int heads, int D) {
    enum { ROWS = 64 };
    const floatX *w = norm.weight;
    const int blocks = (N + ROWS - 1) / ROWS;
    real *partial = zeroed_scratch((size_t)blocks * 2 * (size_t)D * sizeof *partial);        /* and dn of one head */
    #pragma omp parallel for PARALLEL_IF((size_t)N * heads * D)
    for (int b = 0; b < blocks; b++) {
        real *sum = partial + (size_t)b * 2 * D, *dn = sum + D;
        for (int n = b * ROWS; n < N && n < (b + 1) * ROWS; n++) {
            const real *angles = table + (size_t)position[n] * D;
            for (int h = 0; h < heads; h++) {
                const floatX *y = before + ((size_t)n*heads + h) * D;
                floatX *d = dx + (size_t)n*stride + h*D;
                const real r = head_rstd(y, (real)norm.eps, D);
                real dot = 0;
                for (int i = 0; i < D/2; i++) {
                    const real cosine = angles[2*i], sine = angles[2*i + 1], low = R(d[i]), high = R(d[i + D/2]);
                    dn[i]       = low * cosine + high * sine;
                    dn[i + D/2] = high * cosine - low * sine;
                }
                for (int i = 0; i < D; i++) dot += dn[i] * R(w[i]) * R(y[i]);
                const real k = r * r * r / D * dot;
                for (int i = 0; i < D; i++) {
                    d[i] = X(r * dn[i] * R(w[i]) - k * R(y[i]));
                    sum[i] += dn[i] * R(X(R(y[i]) * r));
                }
            }
        }
    }
    for (int b = 0; b < blocks; b++) for (int i = 0; i < D; i++) dweight[i] += partial[(size_t)b * 2 * D + i];
    free(partial);
}

/* ---- keys with a part that all heads share --------------------------------------------------- */

static void shared_keys_forward(floatX *kv, const floatX *parts, const floatX *shared, int N, int G, int D, int key,
                                int value) {
    const size_t common = (size_t)(D - key), all = (size_t)D, one = sizeof *kv;
    #pragma omp parallel for PARALLEL_IF((size_t)N*G*D)
    for (int n = 0; n < N; n++)
        for (int g = 0; g < G; g++) {
            floatX *k = kv + ((size_t)n*2*G + (size_t)g)*all, *v = k + (size_t)G*all;
            const floatX *from = parts + ((size_t)n*G + (size_t)g)*(size_t)(key + value);
            memcpy(k, from, (size_t)key * one);
            memcpy(k + key, shared + (size_t)n*common, common * one);
            memcpy(v, from + key, (size_t)value * one);
            memset(v + value, 0, (size_t)(D - value) * one);
        }
}
static void shared_keys_backward(floatX *dparts, floatX *dshared, const floatX *dkv, int N, int G, int D, int key,
                                 int value) {
    const size_t all = (size_t)D, one = sizeof *dkv;
    #pragma omp parallel for PARALLEL_IF((size_t)N*G*D)
    for (int n = 0; n < N; n++) {
        const floatX *k = dkv + (size_t)n*2*G*all, *v = k + (size_t)G*all;
        for (int g = 0; g < G; g++) {
            floatX *to = dparts + ((size_t)n*G + (size_t)g)*(size_t)(key + value);
            memcpy(to, k + (size_t)g*all, (size_t)key * one);
            memcpy(to + key, v + (size_t)g*all, (size_t)value * one);
        }
        for (int i = key; i < D; i++) {
            real sum = 0;
            for (int g = 0; g < G; g++) sum += R(k[(size_t)g*all + (size_t)i]);
            dshared[(size_t)n*(size_t)(D - key) + (size_t)(i - key)] = X(sum);
        }
    }
}

/* ---- sinks: the softmax's sum gets exp(sink), which scales its results ----------------------- */

static void sink_forward(floatX *out, real *lse, const floatX *sink, int N, int H, int D) {
    #pragma omp parallel for PARALLEL_IF((size_t)N*H*D)
    for (int n = 0; n < N; n++)
        for (int h = 0; h < H; h++) {
            const size_t at = (size_t)n*H + (size_t)h;
            const real l = lse[at], s = R(sink[h]), t = exp(l > s ? s - l : l - s), scale = (l > s ? 1 : t) / (1 + t);
            for (int d = 0; d < D; d++) out[at*(size_t)D + d] = X(R(out[at*(size_t)D + d]) * scale);
            lse[at] = (l > s ? l : s) + log1p(t);
        }
}
static void sink_backward(real *dsink, const floatX *dout, const floatX *out, const real *lse, const floatX *sink,
                          int N, int H, int D) {
    #pragma omp parallel for PARALLEL_IF((size_t)N*H*D)
    for (int h = 0; h < H; h++) {
        real sum = 0;
        for (int n = 0; n < N; n++) {
            const size_t at = (size_t)n*H + (size_t)h;
            real dot = 0;
            for (int d = 0; d < D; d++) dot += R(dout[at*(size_t)D + d]) * R(out[at*(size_t)D + d]);
            sum += exp(R(sink[h]) - lse[at]) * dot;
        }
        dsink[h] -= sum;
    }
}

PART(heads) {
    d->norm_rope_forward = norm_rope_forward;      d->norm_rope_backward = norm_rope_backward;
    d->shared_keys_forward = shared_keys_forward;  d->shared_keys_backward = shared_keys_backward;
    d->sink_forward = sink_forward;                d->sink_backward = sink_backward;
}
