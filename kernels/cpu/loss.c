/* loss.c: cross entropy. With x the logits (N,V), loss = lse(x) - x[target], and dlse/dx_v =
 * softmax_v, so dx_v = softmax_v - [v = target]. */
#include "impl.h"

/* The sum of n exp(x - max): blocks in real, as vectors, and these in double: n can be large. */
static real sum_of_exp(const floatX *x, int n, real max) {
    enum { CHUNK = 1024 };
    double total = 0;
    for (int from = 0; from < n; from += CHUNK) {
        const int to = n - from < CHUNK ? n : from + CHUNK;
        real sum = 0;
        #pragma omp simd reduction(+:sum)
        for (int v = from; v < to; v++) sum += fast_exp(R(x[v]) - max);
        total += (double)sum;
    }
    return (real)total;
}
/* With y = cap tanh(x / cap), dy/dx = 1 - (y / cap)^2. */
static void soft_cap(floatX *x, float cap, size_t n) {
    #pragma omp parallel for PARALLEL_IF(n * 16)
    for (size_t i = 0; i < n; i++) x[i] = X((real)cap * tanh(R(x[i]) / (real)cap));
}
static void cross_entropy(real *loss, floatX *logits, const int *target, const real *scale, float cap, int gradient,
                          int N, int V, int used) {
    const real factor = scale ? *scale : 1, steep = cap > 0 ? 1 / ((real)cap * (real)cap) : 0;
    #pragma omp parallel for PARALLEL_IF((size_t)N*V*8)
    for (int n = 0; n < N; n++) {
        floatX *x = logits + (size_t)n*V;
        if (target[n] < 0) {
            loss[n] = 0;
            if (gradient) for (int v = 0; v < V; v++) x[v] = X((real)0);
            continue;
        }
        real max = R(x[0]);
        #pragma omp simd reduction(max:max)
        for (int v = 1; v < used; v++) max = R(x[v]) > max ? R(x[v]) : max;
        const real sum = sum_of_exp(x, used, max);
        loss[n] = log(sum) + max - R(x[target[n]]);
        if (!gradient) continue;
        real norm = factor / sum, hit = R(x[target[n]]);
        if (cap > 0)
            for (int v = 0; v < used; v++) x[v] = X(fast_exp(R(x[v]) - max) * norm * (1 - R(x[v]) * R(x[v]) * steep));
        else for (int v = 0; v < used; v++) x[v] = X(fast_exp(R(x[v]) - max) * norm);
        x[target[n]] = X((fast_exp(hit - max) * norm - factor) * (1 - hit * hit * steep));
        for (int v = used; v < V; v++) x[v] = X((real)0);
    }
}

PART(loss) { d->cross_entropy = cross_entropy;  d->soft_cap = soft_cap; }
