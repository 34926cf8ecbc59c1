// 3_tensor_cores.cu: both products on the tensor cores; weights in between never leave registers.
//
// A block of 4 warps owns 64 queries of one head, a warp 16 of them; keys and values pass in tiles
// of 64. mma (ptx.cuh) computes S = q k^T in 8 blocks of 16 x 8. A row of scores is spread over 4
// lanes, so its maximum takes two shuffles. In out += P v the weights are the first operand of mma,
// and they already are where it expects them: the lane that holds two neighbouring sums of S needs
// just these two of the operand, rounded to bf16. v is needed by columns; ldmatrix transposes it.
//
// W: 64 or 128, the smallest that is at least D; the rest of a row is zeros. As in rung 3 of
// ParallelLinear, rows are 16 bytes longer against bank conflicts, and copies overlap nothing.
#include "rung.cuh"

enum { QUERIES = 64, KEYS = 64, THREADS = 128 };

// Rows 0 .. 63 of `from`, `step` elements apart; zeros past `rows` rows and from column D on.
template <int W> __device__ static inline void
load_tile(floatX (&tile)[64][W + 8], const floatX *from, int64_t step, int rows, const Attention &a) {
    for (int i = threadIdx.x; i < 64 * W / VECTOR; i += THREADS) {
        const int row = i / (W / VECTOR), d = i % (W / VECTOR) * VECTOR;
        Vec v = {};
        if (row < rows && a.vectors && d < a.D) v = load_vec(from + row * step + d);
        if (row < rows && !a.vectors)
            for (int x = 0; x < VECTOR; x++) if (d + x < a.D) v.x[x] = from[row * step + d + x];
        store_vec(&tile[row][d], v);
    }
}

// Raises the largest score of each of this lane's two rows, and scales its sums to the new one.
template <int W> __device__ static inline void
raise_top(float top[2], float sum[2], float out[W / 8][4], const float s[KEYS / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {              // elements 0 1 of a block belong to one row, 2 3 to the other
        float most = top[half];
        for (int n = 0; n < KEYS / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float shrink = expf(top[half] - most);
        top[half] = most;
        sum[half] *= shrink;
        for (int n = 0; n < W / 8; n++) out[n][2 * half] *= shrink, out[n][2 * half + 1] *= shrink;
    }
}

// Adds up the sums of exponentials of four lanes, divides the rows by them and stores both.
template <int W> static __device__ void store_rows(const Attention &a, const Head &at, int t, const float (&top)[2],
                                                   float (&sum)[2], const float (&out)[W / 8][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        if (t + half * 8 >= a.T) continue;
        const size_t row = query_row(a, at, t + half * 8);
        if (lane % 4 == 0) a.lse[row] = top[half] + logf(sum[half]);
#pragma unroll
        for (int n = 0; n < W / 8; n++)
            for (int i = 0; i < 2; i++) {
                const int d = n * 8 + lane % 4 * 2 + i;
                if (d < a.D) a.out[row * a.D + d] = X(out[n][2 * half + i] / sum[half]);
            }
    }
}

template <int W> static __global__ __launch_bounds__(THREADS) void tensor_cores(const Attention a) {
    __shared__ __align__(16) floatX k[KEYS][W + 8], v[KEYS][W + 8];
    int first;
    const Head at = my_queries<QUERIES>(a, &first);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = first + warp * 16 + lane / 4;
    const int end = min(first + QUERIES, a.T);

    uint32_t q[W / 16][4], b[4];                            // the warp's 16 queries, staged in the keys' buffer
    load_tile<W>(k, a.q + query_row(a, at, first) * a.D, (int64_t)a.Q * a.G * a.D, a.T - first, a);
    __syncthreads();
#pragma unroll
    for (int d = 0; d < W; d += 16) ldmatrix(q[d / 16], shared_address(&k[warp * 16 + lane % 16][d + lane / 16 * 8]));

    float out[W / 8][4] = {}, top[2] = { -INFINITY, -INFINITY }, sum[2] = {};
    for (int j0 = 0; j0 < end; j0 += KEYS) {
        __syncthreads();
        load_tile<W>(k, key(a, at, j0), (int64_t)2 * a.G * a.D, a.T - j0, a);
        load_tile<W>(v, key(a, at, j0) + a.G * a.D, (int64_t)2 * a.G * a.D, a.T - j0, a);
        __syncthreads();

        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < W; d += 16)
#pragma unroll
            for (int j = 0; j < KEYS; j += 16) {
                ldmatrix(b, shared_address(&k[j + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]));
                mma_bf16(s[j / 8], q[d / 16], b);
                mma_bf16(s[j / 8 + 1], q[d / 16], b + 2);
            }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int j = j0 + n * 8 + lane % 4 * 2 + i % 2;
                s[n][i] = j <= t + i / 2 * 8 ? s[n][i] * a.scale : -INFINITY;
            }
        raise_top<W>(top, sum, out, s);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i / 2] += s[n][i] = expf(s[n][i] - top[i / 2]);

#pragma unroll
        for (int j = 0; j < KEYS; j += 16) {
            const float *left = s[j / 8], *right = s[j / 8 + 1];
            const uint32_t p[4] = { pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3]),
                                    pack_bf16(right[0], right[1]), pack_bf16(right[2], right[3]) };
#pragma unroll
            for (int d = 0; d < W; d += 16) {
                ldmatrix_trans(b, shared_address(&v[j + lane % 16][d + lane / 16 * 8]));
                mma_bf16(out[d / 8], p, b);
                mma_bf16(out[d / 8 + 1], p, b + 2);
            }
        }
    }
    store_rows<W>(a, at, t, top, sum, out);
}

ATTENTION(attention_tensor_cores) {
    const Attention a = attention(out, lse, q, kv, order, B, T, G, Q, D);
    if (D <= 64) LAUNCH(tensor_cores<64>, tiles<QUERIES>(a), THREADS, 0, a);
    else if (D <= 128) LAUNCH(tensor_cores<128>, tiles<QUERIES>(a), THREADS, 0, a);
    else attention_naive(out, lse, q, kv, position, order, B, T, G, Q, D);
}
