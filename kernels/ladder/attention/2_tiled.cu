// 2_tiled.cu: softmax while keys stream past; no scores stored (Dao et al. 2022, arXiv 2205.14135).
//
// A softmax needs a row's largest score first, but one too small is easily corrected. With `top`
// the largest so far, keep sum = sum_j exp(s_j - top) and out = sum_j exp(s_j - top) v_j; a larger
// one scales both by exp(top - new top). The result is out / sum, lse top + log(sum).
//
// A block owns 32 queries of one head. Keys and values pass through shared memory in tiles of 32;
// each is read once for 32 queries. Four threads work on a query: each has every fourth element of
// its q and out in registers. The limit is now reading shared memory: an element per multiply-add.
#include "rung.cuh"

enum { QUERIES = 32, KEYS = 32, THREADS = 4 * QUERIES };

// PART: elements of a head in one thread; D <= 4*PART.
template <int PART> static __global__ __launch_bounds__(THREADS) void tiled(const Attention a) {
    __shared__ float k[KEYS][4 * PART], v[KEYS][4 * PART];
    int first;
    const Head at = my_queries<QUERIES>(a, &first);
    const int t = first + threadIdx.x / 4, part = threadIdx.x % 4, end = min(first + QUERIES, a.T);
    float q[PART], out[PART] = {}, top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PART; i++) {
        const int d = 4 * i + part;
        q[i] = t < a.T && d < a.D ? R(a.q[query_row(a, at, t) * a.D + d]) * a.scale : 0;
    }
    for (int j0 = 0; j0 < end; j0 += KEYS) {
        for (int i = threadIdx.x; i < KEYS * 4 * PART; i += THREADS) {
            const int j = i / (4 * PART), d = i % (4 * PART);
            const bool inside = j0 + j < a.T && d < a.D;
            k[j][d] = inside ? R(key(a, at, j0 + j)[d]) : 0;
            v[j][d] = inside ? R(key(a, at, j0 + j)[a.G * a.D + d]) : 0;
        }
        __syncthreads();
        float s[KEYS], most = top;
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < PART; i++) dot += q[i] * k[j][4 * i + part];
            dot += __shfl_xor_sync(0xffffffffu, dot, 1);
            dot += __shfl_xor_sync(0xffffffffu, dot, 2);
            s[j] = j0 + j <= t ? dot : -INFINITY;
            most = fmaxf(most, s[j]);
        }
        const float shrink = expf(top - most);              // 0 for the first tile: exp(-infinity)
        top = most;
        sum *= shrink;
#pragma unroll
        for (int i = 0; i < PART; i++) out[i] *= shrink;
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const float p = expf(s[j] - top);
            sum += p;
#pragma unroll
            for (int i = 0; i < PART; i++) out[i] += p * v[j][4 * i + part];
        }
        __syncthreads();
    }
    if (t >= a.T) return;
    if (part == 0) a.lse[query_row(a, at, t)] = top + logf(sum);
#pragma unroll
    for (int i = 0; i < PART; i++)
        if (4 * i + part < a.D) a.out[query_row(a, at, t) * a.D + 4 * i + part] = X(out[i] / sum);
}

ATTENTION(attention_tiled) {
    const Attention a = attention(out, lse, q, kv, order, B, T, G, Q, D);
    if (D <= 64) LAUNCH(tiled<16>, tiles<QUERIES>(a), THREADS, 0, a);
    else if (D <= 128) LAUNCH(tiled<32>, tiles<QUERIES>(a), THREADS, 0, a);
    else attention_naive(out, lse, q, kv, position, order, B, T, G, Q, D);
}
