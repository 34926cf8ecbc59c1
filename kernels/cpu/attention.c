/* attention.c: causal attention with Q query heads for every key/value head.
 *
 * Forward, for one query t of one head: s_j = <q_t, k_j> / sqrt(D) for j <= t, p = softmax(s),
 * out_t = sum_j p_j v_j. Backward computes p_j = exp(s_j - lse) again, lse = log sum exp(s):
 *
 *     dv_j  += p_tj dout_t        dp_tj = <dout_t, v_j>
 *     ds_tj  = p_tj (dp_tj - delta_t) / sqrt(D),   delta_t = sum_j p_tj dp_tj = <dout_t, out_t>
 *     dq_t  += ds_tj k_j          dk_j += ds_tj q_t
 *
 * In a row of several samples, or with a window, a query sees only some of the keys before it,
 * j >= t - reach[t]. The first of them never decreases from query to query, so the first key that a
 * block of queries needs is that of its first query.
 *
 * A thread processes one (sequence, key/value head) pair at a time: all Q query heads of the pair
 * add to its dk and dv, so threads share no sum. Keys and values are converted to real once for
 * these, and queries come in blocks of BLOCK: the largest intermediate is a (BLOCK, T) matrix of
 * scores. All products are one small routine.   Source: FlashAttention, arXiv 2205.14135. */
#include "impl.h"

enum { BLOCK = 16, TILE_M = 4 };        /* BLOCK: query rows at a time; half of a diagonal block is masked, wasted */

/* TILE_M rows of `vectors` vectors, in registers during the loop over k. */
static inline __attribute__((always_inline)) void tile(real *c, int ldc, const real *a, int a_row, int a_col,
                                                       const real *b, int ldb, int K, Write how, const int vectors) {
    Vector sum[TILE_M][2] = { 0 };
    for (int k = 0; k < K; k++)
        UNROLL(4)
        for (int i = 0; i < TILE_M; i++)
            UNROLL(2)
            for (int j = 0; j < vectors; j++)
                sum[i][j] += a[(size_t)i*a_row + (size_t)k*a_col] * *(const Vector *)(b + (size_t)k*ldb + j * LANES);
    UNROLL(4)
    for (int i = 0; i < TILE_M; i++)
        UNROLL(2)
        for (int j = 0; j < vectors; j++) {
            Vector *at = (Vector *)(c + (size_t)i*ldc + j * LANES);
            if (how == ADD) *at += sum[i][j]; else *at = sum[i][j];
        }
}
/* c (M,N) = or += a (M,K) b (K,N). a is read at a[m*a_row + k*a_col], so that it can be a
 * transpose; c and b have rows of ldc and ldb elements. Pairs of vectors first; where a vector is
 * as long as a block of queries (AVX-512) every other block leaves one vector. */
static void product(real *c, int ldc, const real *a, int a_row, int a_col, const real *b, int ldb, int M,
                    int N, int K, Write how) {
    for (int m = 0; m < M; m += TILE_M) {
        const real *am = a + (size_t)m*a_row;
        real *cm = c + (size_t)m*ldc;
        int n = 0;
        if (m + TILE_M <= M) {
            for (; n + 2 * LANES <= N; n += 2 * LANES) tile(cm + n, ldc, am, a_row, a_col, b + n, ldb, K, how, 2);
            for (; n + LANES <= N; n += LANES) tile(cm + n, ldc, am, a_row, a_col, b + n, ldb, K, how, 1);
        }
        for (; n < N; n++)
            for (int i = 0; i < TILE_M && m + i < M; i++) {
                real sum = 0;
                for (int k = 0; k < K; k++) sum += am[(size_t)i*a_row + (size_t)k*a_col] * b[(size_t)k*ldb + n];
                cm[(size_t)i*ldc + n] = how == ADD ? cm[(size_t)i*ldc + n] + sum : sum;
            }
    }
}

/* The number, among the Q*G heads of a token, of query head r of key/value head g. */
static inline size_t head(HeadOrder order, int r, int g, int G, int Q) {
    return order == HEADS_TILED ? (size_t)r*G + (size_t)g : (size_t)g*Q + (size_t)r;
}
/* Rows (count,D) of real from floatX rows `stride` elements apart, scaled; transposed, (D,ld). */
static void convert(real *to, const floatX *from, size_t stride, int count, int D, real scale) {
    for (int t = 0; t < count; t++)
        for (int d = 0; d < D; d++) to[(size_t)t*D + d] = R(from[(size_t)t*stride + d]) * scale;
}
static void transpose(real *to, const real *from, int count, int D, int ld) {
    for (int t = 0; t < count; t++)
        for (int d = 0; d < D; d++) to[(size_t)d*ld + t] = from[(size_t)t*D + d];
}

/* The first key that query t of sequence b sees. */
static inline int first_key(const int *reach, int b, int T, int t) { return reach ? t - reach[(size_t)b*T + t] : 0; }

static void attention_forward(floatX *out, real *lse, const floatX *q, const floatX *kv, const int *reach,
                              HeadOrder order, int B, int T, int G, int Q, int D) {
    const size_t row = (size_t)Q*G*D, kv_row = (size_t)2*G*D;
    #pragma omp parallel PARALLEL_IF((size_t)B*T*T*G*Q*D)
    {
        real *keys = scratch(((size_t)3*T*D + (size_t)BLOCK*(T + 2*D)) * sizeof *keys);
        real *values = keys + (size_t)T*D, *keys_t = values + (size_t)T*D;
        real *scores = keys_t + (size_t)T*D, *queries = scores + (size_t)BLOCK*T, *result = queries + (size_t)BLOCK*D;
        #pragma omp for schedule(dynamic)
        for (size_t bg = 0; bg < (size_t)B*G; bg++) {
            const int b = (int)(bg / (size_t)G), g = (int)(bg % (size_t)G);
            const floatX *k0 = kv + (size_t)b*T*kv_row + (size_t)g*D;
            convert(keys, k0, kv_row, T, D, 1);
            convert(values, k0 + (size_t)G*D, kv_row, T, D, 1);
            transpose(keys_t, keys, T, D, T);
            for (int r = 0; r < Q; r++)
                for (int t0 = 0; t0 < T; t0 += BLOCK) {
                    const int count = T - t0 < BLOCK ? T - t0 : BLOCK, seen = t0 + count,
                        from = first_key(reach, b, T, t0);
                    const size_t h = head(order, r, g, G, Q);
                    convert(queries, q + ((size_t)b*T + t0)*row + h*D, row, count, D, 1 / sqrt((real)D));
                    product(scores + from, T, queries, D, 1, keys_t + from, T, count, seen - from, D, SET);
                    for (int i = 0; i < count; i++) {
                        real *s = scores + (size_t)i*T, max = s[t0 + i], sum = 0;
                        const int last = t0 + i, first = first_key(reach, b, T, last);
                        /* So that loops run to `seen`, a multiple of BLOCK except at the end. */
                        for (int j = last + 1; j < seen; j++) s[j] = -(real)INFINITY;
                        for (int j = from; j < first; j++) s[j] = -(real)INFINITY;
                        #pragma omp simd reduction(max:max)
                        for (int j = from; j < seen; j++) max = s[j] > max ? s[j] : max;
                        #pragma omp simd reduction(+:sum)
                        for (int j = from; j < seen; j++) { s[j] = fast_exp(s[j] - max); sum += s[j]; }
                        const real scale = 1 / sum;
                        for (int j = from; j < seen; j++) s[j] *= scale;
                        lse[((size_t)b*T + last)*Q*G + h] = max + log(sum);
                    }
                    product(result, D, scores + from, T, 1, values + (size_t)from*D, D, count, D, seen - from, SET);
                    for (int i = 0; i < count; i++)
                        for (int d = 0; d < D; d++) out[((size_t)b*T + t0 + i)*row + h*D + d] = X(result[i*D + d]);
                }
        }
        free(keys);
    }
}

static void attention_backward(floatX *dq, floatX *dkv, const floatX *dout, const floatX *out, const real *lse,
                               const floatX *q, const floatX *kv, const int *reach, HeadOrder order, int B, int T,
                               int G, int Q, int D) {
    const size_t row = (size_t)Q*G*D, kv_row = (size_t)2*G*D;
    const real scale = 1 / sqrt((real)D);
    #pragma omp parallel PARALLEL_IF((size_t)B*T*T*G*Q*D)
    {
        real *keys = scratch(((size_t)6*T*D + (size_t)BLOCK*(2*T + 3*D)) * sizeof *keys);
        real *keys_t = keys + (size_t)T*D, *values = keys_t + (size_t)T*D, *values_t = values + (size_t)T*D;
        real *dkeys = values_t + (size_t)T*D, *dvalues = dkeys + (size_t)T*D;
        real *p = dvalues + (size_t)T*D, *ds = p + (size_t)BLOCK*T;
        real *queries = ds + (size_t)BLOCK*T, *dresult = queries + (size_t)BLOCK*D;
        real *dqueries = dresult + (size_t)BLOCK*D;
        #pragma omp for schedule(dynamic)
        for (size_t bg = 0; bg < (size_t)B*G; bg++) {
            const int b = (int)(bg / (size_t)G), g = (int)(bg % (size_t)G);
            const size_t kv0 = (size_t)b*T*kv_row + (size_t)g*D;
            convert(keys, kv + kv0, kv_row, T, D, 1);
            convert(values, kv + kv0 + (size_t)G*D, kv_row, T, D, 1);
            transpose(keys_t, keys, T, D, T);
            transpose(values_t, values, T, D, T);
            memset(dkeys, 0, (size_t)2*T*D * sizeof *dkeys);
            for (int r = 0; r < Q; r++)
                for (int t0 = 0; t0 < T; t0 += BLOCK) {
                    const int count = T - t0 < BLOCK ? T - t0 : BLOCK, seen = t0 + count,
                        from = first_key(reach, b, T, t0);
                    const int keys_seen = seen - from;
                    const size_t h = head(order, r, g, G, Q), at = ((size_t)b*T + t0)*row + h*D;
                    convert(queries, q + at, row, count, D, scale);
                    convert(dresult, dout + at, row, count, D, 1);
                    product(p + from, T, queries, D, 1, keys_t + from, T, count, keys_seen, D, SET);
                    product(ds + from, T, dresult, D, 1, values_t + from, T, count, keys_seen, D, SET);
                    for (int i = 0; i < count; i++) {
                        real *pi = p + (size_t)i*T, *di = ds + (size_t)i*T, delta = 0;
                        const int last = t0 + i, first = first_key(reach, b, T, last);
                        const real l = lse[((size_t)b*T + last)*Q*G + h];
                        for (int d = 0; d < D; d++) delta += dresult[i*D + d] * R(out[at + (size_t)i*row + d]);
                        for (int j = last + 1; j < seen; j++) pi[j] = -(real)INFINITY;
                        for (int j = from; j < first; j++) pi[j] = -(real)INFINITY;
                        for (int j = from; j < seen; j++) {
                            pi[j] = fast_exp(pi[j] - l);
                            di[j] = pi[j] * (di[j] - delta);
                        }
                    }
                    product(dqueries, D, ds + from, T, 1, keys + (size_t)from*D, D, count, D, keys_seen, SET);
                    /* queries include the scale */
                    product(dkeys + (size_t)from*D, D, ds + from, 1, T, queries, D, keys_seen, D, count, ADD);
                    product(dvalues + (size_t)from*D, D, p + from, 1, T, dresult, D, keys_seen, D, count, ADD);
                    for (int i = 0; i < count; i++)
                        for (int d = 0; d < D; d++) dq[at + (size_t)i*row + d] = X(dqueries[i*D + d] * scale);
                }
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) {
                    dkv[kv0 + (size_t)t*kv_row + d] = X(dkeys[(size_t)t*D + d]);
                    dkv[kv0 + (size_t)t*kv_row + (size_t)G*D + d] = X(dvalues[(size_t)t*D + d]);
                }
        }
        free(keys);
    }
}

/* One query per sequence against its cache: the same formulas, a key at a time. */
static void attention_cached(floatX *out, const floatX *q, const floatX *cache, const floatX *sink, const int *position,
                             int window, HeadOrder order, int B, int T, int G, int Q, int D) {
    const size_t kv_row = (size_t)2*G*D;
    #pragma omp parallel PARALLEL_IF((size_t)B*G*Q*D*(B ? position[0] + 1 : 0))
    {
        enum { CHUNK = 128 };
        real *scores = scratch(((size_t)T + 3*(size_t)D) * sizeof *scores);
        real *const query = scores + T, *const sum = query + D, *const part = sum + D;
        #pragma omp for
        for (size_t h = 0; h < (size_t)B*G*Q; h++) {
            const int b = (int)(h / Q / G), g = (int)(h / Q % G), r = (int)(h % Q), seen = position[b] + 1;
            const int first = window && seen > window ? seen - window : 0;
            const floatX *k = cache + (size_t)b*T*kv_row + (size_t)g*D, *v = k + (size_t)G*D;
            const size_t at = ((size_t)b*Q*G + head(order, r, g, G, Q)) * D;
            real max = sink ? R(sink[at / D % ((size_t)G*Q)]) : -(real)INFINITY, total = 0;
            const real extra = max;
            convert(query, q + at, 0, 1, D, 1 / sqrt((real)D));
            for (int j = first; j < seen; j++) {
                real s = 0;
                #pragma omp simd reduction(+:s)
                for (int d = 0; d < D; d++) s += query[d] * R(k[(size_t)j*kv_row + d]);
                scores[j] = s;
                if (s > max) max = s;
            }
            for (int d = 0; d < D; d++) sum[d] = 0;
            for (int from = first; from < seen; from += CHUNK) {        /* sums over CHUNK keys, then of these */
                const int to = seen - from < CHUNK ? seen : from + CHUNK;
                real chunk = 0;
                #pragma omp simd reduction(+:chunk)
                for (int j = from; j < to; j++) { scores[j] = fast_exp(scores[j] - max); chunk += scores[j]; }
                total += chunk;
                for (int d = 0; d < D; d++) part[d] = 0;
                for (int j = from; j < to; j++)
                    for (int d = 0; d < D; d++) part[d] += scores[j] * R(v[(size_t)j*kv_row + d]);
                for (int d = 0; d < D; d++) sum[d] += part[d];
            }
            if (sink) total += fast_exp(extra - max);
            for (int d = 0; d < D; d++) out[at + d] = X(sum[d] / total);
        }
        free(scores);
    }
}
static void cache_store(floatX *cache, const floatX *kv, const int *row, int N, int width) {
    for (int n = 0; n < N; n++)
        memcpy(cache + (size_t)row[n]*width, kv + (size_t)n*width, (size_t)width * sizeof *cache);
}

PART(attention) {
    d->attention_forward = attention_forward;  d->attention_backward = attention_backward;
    d->attention_cached = attention_cached;    d->cache_store = cache_store;
}
