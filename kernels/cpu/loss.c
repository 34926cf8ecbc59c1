/* loss.c: cross entropy. With x the logits (N,V), loss = lse(x) - x[target], and dlse/dx_v =
 * softmax_v, so dx_v = softmax_v - [v = target]. Of a weighted sum of losses of the same logits it
 * is (sum of the weights) softmax_v - (the weights whose target is v). */
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
static void cap_row(floatX *x, float cap, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = X((real)cap * tanh(R(x[i]) / (real)cap));
}
static void soft_cap(floatX *x, float cap, size_t n) {
    enum { CHUNK = 1024 };
    #pragma omp parallel for PARALLEL_IF(n * 16)
    for (size_t i = 0; i < n; i += CHUNK) cap_row(x + i, cap, n - i < CHUNK ? n - i : CHUNK);
}
/* What a row is to predict, and how much each of these counts. */
enum { MOST_GOALS = 3 };
typedef struct { int count, at[MOST_GOALS]; real weight[MOST_GOALS], sum; } Goals;
static Goals goals_of(const int *target, const int *position, const real *scale, int n) {
    Goals g = { .count = 1, .at = { target[n] }, .weight = { scale ? *scale : 1 } };
    g.sum = g.weight[0];
    for (int i = 1; position && i < MOST_GOALS && position[n + i]; i++) {
        int same = 0;
        if (target[n + i] < 0) continue;
        while (same < g.count && g.at[same] != target[n + i]) same++;
        g.at[same] = target[n + i];
        g.weight[same] = (same < g.count ? g.weight[same] : 0) + scale[i];
        g.sum += scale[i];
        g.count += same == g.count;
    }
    return g;
}
static void cross_entropy(real *loss, floatX *logits, const int *target, const int *position, const real *scale,
                          float cap, int gradient, int N, int V, int used) {
    const real steep = cap > 0 ? 1 / ((real)cap * (real)cap) : 0;
    #pragma omp parallel for PARALLEL_IF((size_t)N*V*8)
    for (int n = 0; n < N; n++) {
        floatX *x = logits + (size_t)n*V;
        if (target[n] < 0) {
            loss[n] = 0;
            if (gradient) for (int v = 0; v < V; v++) x[v] = X((real)0);
            continue;
        }
        if (cap > 0) cap_row(x, cap, (size_t)used);
        real max = R(x[0]);
        #pragma omp simd reduction(max:max)
        for (int v = 1; v < used; v++) max = R(x[v]) > max ? R(x[v]) : max;
        const real sum = sum_of_exp(x, used, max);
        loss[n] = log(sum) + max - R(x[target[n]]);
        if (!gradient) continue;
        const Goals g = goals_of(target, position, scale, n);
        real norm = g.sum / sum, hit[MOST_GOALS];
        for (int i = 0; i < g.count; i++) hit[i] = R(x[g.at[i]]);
        if (cap > 0)
            for (int v = 0; v < used; v++) x[v] = X(fast_exp(R(x[v]) - max) * norm * (1 - R(x[v]) * R(x[v]) * steep));
        else for (int v = 0; v < used; v++) x[v] = X(fast_exp(R(x[v]) - max) * norm);
        for (int i = 0; i < g.count; i++)
            x[g.at[i]] = X((fast_exp(hit[i] - max) * norm - g.weight[i]) * (1 - hit[i] * hit[i] * steep));
        for (int v = used; v < V; v++) x[v] = X((real)0);
    }
}

PART(loss) { d->cross_entropy = cross_entropy;  d->soft_cap = soft_cap; }
