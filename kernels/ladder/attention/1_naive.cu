// 1_naive.cu: the formula, one head at a time, with all its scores in memory.
//
// Three kernels: T x T scores, the softmax of each row, weights times values. The scores of a head
// take 4 T^2 bytes, a gigabyte at T = 16384, and cross the bus five times: that is the limit.
#include "rung.cuh"

// A thread computes one score. Scores above the diagonal are minus infinity, whose exp is zero.
static __global__ void scores(float *s, const Attention a, Head at) {
    const size_t i = global_index();
    const int t = (int)(i / a.T), j = (int)(i % a.T);
    if (t >= a.T) return;
    const floatX *q = a.q + query_row(a, at, t) * a.D, *k = key(a, at, j);
    float sum = 0;
    if (j <= t) for (int d = 0; d < a.D; d++) sum += R(q[d]) * R(k[d]);
    s[i] = j <= t ? sum * a.scale : -INFINITY;
}

// A warp turns a row of scores into weights.
static __global__ void softmax(float *s, const Attention a, Head at) {
    const int t = (int)(global_index() / 32), lane = threadIdx.x % 32;
    if (t >= a.T) return;
    float *row = s + (size_t)t * a.T, top = -INFINITY, sum = 0;
    for (int j = lane; j < a.T; j += 32) top = fmaxf(top, row[j]);
    top = warp_max(top);
    for (int j = lane; j < a.T; j += 32) sum += row[j] = expf(row[j] - top);
    sum = warp_sum(sum);
    for (int j = lane; j < a.T; j += 32) row[j] /= sum;
    if (lane == 0) a.lse[query_row(a, at, t)] = top + logf(sum);
}

// A thread computes one element of out.
static __global__ void weighted_values(const float *p, const Attention a, Head at) {
    const size_t i = global_index();
    const int t = (int)(i / a.D), d = (int)(i % a.D);
    if (t >= a.T) return;
    float sum = 0;
    for (int j = 0; j <= t; j++) sum += p[(size_t)t * a.T + j] * R(key(a, at, j)[a.G * a.D + d]);
    a.out[query_row(a, at, t) * a.D + d] = X(sum);
}

ATTENTION(attention_naive) {
    (void)position;
    const Attention a = attention(out, lse, q, kv, order, B, T, G, Q, D);
    float *s = (float *)workspace((size_t)T * T * sizeof(float));
    for (int b = 0; b < B; b++)
        for (int h = 0; h < Q * G; h++) {
            const Head at = { b, h };
            LAUNCH(scores, (unsigned)divide_up((size_t)T * T, 256), 256, 0, s, a, at);
            LAUNCH(softmax, (unsigned)divide_up((size_t)T * 32, 256), 256, 0, s, a, at);
            LAUNCH(weighted_values, (unsigned)divide_up((size_t)T * D, 256), 256, 0, s, a, at);
        }
}
