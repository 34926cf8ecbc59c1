/* smoe.c: a sparse mixture-of-experts language model in one file: forward, backward, AdamW, text.
 *
 *     cc -O3 -march=native -fopenmp smoe.c -o smoe -lm && ./smoe data/tinyshakespeare/input.txt
 *
 * A transformer is a stack of layers, and a layer is two sub-layers: attention, by which a token
 * looks at earlier tokens, and an MLP, which works on each token alone. Most of the weights are in
 * the MLPs, and a dense model multiplies every token by all of them. A mixture has E small MLPs
 * instead, the experts, and a router that picks K of them for each token: it has the weights of E
 * experts and takes the time of K. With 8 experts, 2 of them for each token, the model below has
 * 1.9 million parameters, of which a token uses 0.7 million.
 *
 * Attention can be a mixture, too: an expert then owns the query and output weights of some heads,
 * and all share keys and values. A = 1, the default, is plain attention; A = 8 has 8 experts.
 *
 * Read it from the top; what is before `linear` can wait. If you know nanoGPT, you will find a
 * transformer without a framework, and three new things: `linear` with its two index arrays,
 * `router`, and `experts`. The backward of a function is below it, and ADDS to the gradients that
 * it is given, dx += ..., so these begin at zero. (It says so where it sets them instead.)
 *
 * dx is the gradient of the loss with respect to x and has its shape. Shapes stand in comments, the
 * last dimension contiguous: x (N,C) is x[n*C + c]. A weight (O,I) has one row for each output.
 *
 * train_moe computes the same on GPUs, for more models and data, in several processes. Same losses:
 * train_moe -e m4:z1 -wo adamw -l 1e-3 -k cosine -u 50 -q 0.1 -c 0.1 -ra 0.01 (tests/smoe.sh) */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef _OPENMP                          /* run a loop on all cores; compute a sum in vectors */
#define PARALLEL   _Pragma("omp parallel for")
#define VECTOR_SUM _Pragma("omp simd reduction(+:sum)")
#else
#define PARALLEL
#define VECTOR_SUM
#endif

/* ---- sizes. To change them: cc -DSIZES="L = 2, C = 64, ..." ---------------------------------- */
#ifndef SIZES
#define SIZES L = 4, C = 128, HEADS = 4, E = 8, F = 128, A = 1, B = 24, T = 128
#endif
enum {      /* L layers; C channels: a token is a vector of C numbers; E experts, each F wide;
             * A attention experts; B sequences of a batch, of T tokens */
    SIZES,
    K = E > 1 ? 2 : 1, X = A > 1 ? 2 : 1,           /* experts and attention experts of a token */
    D = C / HEADS,                                  /* size of a head */
    G = HEADS / X,                  /* key/value heads, and as many query heads for each expert */
    KEYS = G*D, QUERIES = X*G*D,                    /* numbers in a token's keys, in its queries */
    V = 256,                                        /* vocabulary: a token is a byte */
    N = B*T,                                        /* tokens of a batch */
    MOST_E = E > A ? E : A, MOST_K = K > X ? K : X, WIDEST = F > KEYS ? F : KEYS,
    S = N*MOST_K                                    /* slots: see router */
};
_Static_assert(C % HEADS == 0 && HEADS % X == 0 && D % 2 == 0 && T > 8, "these SIZES do not fit");
static const float EPSILON = 1e-6f, BALANCE = 0.01f, Z = 0.001f;    /* of norms; of router losses */

/* ---- parameters. Gradients, and Adam's two moments, are the same struct again ---------------- */
typedef struct {
    float att_norm[C];
    float att_router[A*C];                          /* (A,C) */
    float kv[2*KEYS*C];                             /* (2,G*D,C) keys, then values */
    float query[A*KEYS*C], output[A*C*KEYS];        /* (A,G*D,C) (A,C,G*D) */
    float query_norm[D], key_norm[D];               /* one for all heads */
    float att_bias[C];
    float mlp_norm[C];
    float router[E*C];                              /* (E,C) */
    float up[E*2*F*C], down[E*C*F];                 /* (E,2F,C) gate rows, then up rows; (E,C,F) */
    float mlp_bias[C];
} Layer;
typedef struct {
    float embed[V*C];                               /* (V,C) also the head: the two are tied */
    Layer layer[L];
    float final_norm[C];
} Params;
static Params p, g, moment1, moment2;

/* One list of tensors serves initial values, gradient norm and update; at(&g, t) is tensor t in g.
 * init: the standard deviation, or ONES; output and down begin at 0, so that at first a layer adds
 * nothing. decay: 1 for what weight decay pulls to 0. moa: only models with attention experts have
 * it. In others it stays 0: a router of zeros gives its only expert weight 1, and no gradient. */
typedef struct { const char *name; size_t offset, bytes; float init, decay; int moa; } Tensor;
enum { ONES = -1 };
static const Tensor tensors[] = {
#define TENSOR(field, ...) offsetof(Layer, field), sizeof ((Layer *)0)->field, __VA_ARGS__
    { "input_layernorm.weight",                      TENSOR(att_norm, ONES, 0, 0) },
    { "self_attention.experts.router.layer.weight",  TENSOR(att_router, 0.02f, 1, 1) },
    { "self_attention.kv_proj.weight",               TENSOR(kv, 0.02f, 1, 0) },
    { A > 1 ? "self_attention.experts.input_linear.weight"
            : "self_attention.q_proj.weight",        TENSOR(query, 0.02f, 1, 0) },
    { A > 1 ? "self_attention.experts.output_linear.weight"
            : "self_attention.o_proj.weight",        TENSOR(output, 0, 1, 0) },
    { "self_attention.experts.bias",                 TENSOR(att_bias, 0, 0, 1) },
    { "self_attention.q_norm.weight",                TENSOR(query_norm, ONES, 0, 0) },
    { "self_attention.k_norm.weight",                TENSOR(key_norm, ONES, 0, 0) },
    { "post_attention_layernorm.weight",             TENSOR(mlp_norm, ONES, 0, 0) },
    { "mlp.router.layer.weight",                     TENSOR(router, E > 1 ? 0.02f : 0, 1, 0) },
    { "mlp.input_linear.weight",                     TENSOR(up, 0.02f, 1, 0) },
    { "mlp.output_linear.weight",                    TENSOR(down, 0, 1, 0) },
    { "mlp.bias",                                    TENSOR(mlp_bias, 0, 0, 1) },
};
/* Calls visit for every tensor, with its full name and its offset in Params. */
static void each_tensor(void visit(const Tensor *t, void *more), void *more) {
    char name[128];
    visit(&(Tensor){ "model.embed_tokens.weight", 0, sizeof p.embed, 0.02f, 0, 0 }, more);
    for (size_t l = 0; l < L; l++)
        for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
            Tensor t = tensors[i];
            snprintf(name, sizeof name, "model.layers.%zu.%s", l, t.name);
            t.name = name;
            t.offset += offsetof(Params, layer) + l * sizeof(Layer);
            if (A > 1 || !t.moa) visit(&t, more);
        }
    visit(&(Tensor){ "model.norm.weight", offsetof(Params, final_norm), C * 4, ONES, 0, 0 }, more);
}
static float *at(Params *x, const Tensor *t) { return (float *)((char *)x + t->offset); }

/* ---- random numbers: a function of (key, index), so there is no state to keep ---------------- */
static uint64_t bits(uint64_t key, uint64_t i) {             /* splitmix64 */
    uint64_t z = key + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static uint64_t key_of(uint64_t seed, uint64_t use) { return bits(bits(seed, use), 0x6D6F65); }
static double uniform(uint64_t key, uint64_t i) { return (double)(bits(key, i) >> 11) * 0x1p-53; }
static double normal(uint64_t key, uint64_t i) {                    /* Box and Muller's method */
    return sqrt(-2 * log(1 - uniform(key, 2*i))) * cos(6.283185307179586 * uniform(key, 2*i + 1));
}
static uint64_t hash(const char *s, size_t n) {                     /* after FNV-1a */
    uint64_t h = 0xcbf29ce484222325u, word;
    for (; n >= 8; s += 8, n -= 8)
        memcpy(&word, s, 8), h = (h ^ word) * 0x100000001b3u, h ^= h >> 29;
    for (; n; n--) h = (h ^ (unsigned char)*s++) * 0x100000001b3u;
    return h ^ h >> 32;
}
/* A tensor's values depend on its name, not on what was drawn before. */
static void initialize(const Tensor *t, void *seed) {
    const uint64_t key = key_of(*(uint64_t *)seed, hash(t->name, strlen(t->name)));
    float *w = at(&p, t);
    for (size_t i = 0; i < t->bytes / sizeof *w; i++)
        w[i] = t->init == ONES ? 1 : t->init > 0 ? t->init * normal(key, i) : 0;
}

/* ---- linear: out = x w^T, for n rows x (I) and out (O), w (O,I) -------------------------------
 * Row i of the product reads x[from[i]] and writes out[to[i]]; without index arrays (NULL) both are
 * row i. This is all that an expert needs: it has some of the rows, and reads and writes them where
 * they are. No row is gathered or padded. (The idea is ScatterMoE's, arXiv 2403.08245.) */
static float dot(const float *a, const float *b, int n) {
    float sum = 0;
    VECTOR_SUM
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
static long row(const int *index, int i) { return index ? index[i] : i; }
static void linear(float *out, const int *to, const float *x, const int *from, const float *w,
                   int n, int I, int O) {
    PARALLEL
    for (int i = 0; i < n; i++)
        for (int o = 0; o < O; o++) out[row(to, i)*O + o] = dot(x + row(from, i)*I, w + o*I, I);
}
/* Small changes x' and w' change the loss by <dout, x' w^T + x w'^T>, where <a, b> is the sum of
 * the products of all elements. This is <dout w, x'> + <dout^T x, w'>. What stands beside x' is dx:
 *     dx += dout w        dw += dout^T x
 * Rows are divided among threads, so `from` must not name a row of dx twice. Of an expert it does
 * not, because a token chooses an expert at most once. */
static void linear_backward(float *dx, float *dw, const float *dout, const int *to,
                            const float *x, const int *from, const float *w, int n, int I, int O) {
    PARALLEL
    for (int i = 0; i < n; i++)
        for (int o = 0; o < O; o++) {
            const float d = dout[row(to, i)*O + o];
            float *dx_i = dx + row(from, i)*I;
            for (int c = 0; c < I; c++) dx_i[c] += d * w[o*I + c];
        }
    PARALLEL
    for (int o = 0; o < O; o++)
        for (int i = 0; i < n; i++) {
            const float d = dout[row(to, i)*O + o], *x_i = x + row(from, i)*I;
            for (int c = 0; c < I; c++) dw[o*I + c] += d * x_i[c];
        }
}

/* ---- rmsnorm: out = x r w, with r = 1 / sqrt(mean(x^2) + epsilon) of each row of n ------------
 * r depends on all of x: dr/dx_c = -r^3 x_c / n. Hence, with u = w dout,
 *     dx_c += r u_c - r^3 / n <u, x> x_c        dw_c += sum over rows of dout_c x_c r
 * rstd (rows) keeps r. */
static void rmsnorm(float *out, float *rstd, const float *x, const float *w, long rows, int n) {
    PARALLEL
    for (long i = 0; i < rows; i++) {
        const float r = 1 / sqrtf(dot(x + i*n, x + i*n, n) / n + EPSILON);
        for (int c = 0; c < n; c++) out[i*n + c] = x[i*n + c] * r * w[c];
        rstd[i] = r;
    }
}
static void rmsnorm_backward(float *dx, float *dw, const float *dout, const float *x,
                             const float *w, const float *rstd, long rows, int n) {
    for (long i = 0; i < rows; i++) {
        const float r = rstd[i], *x_i = x + i*n, *d = dout + i*n;
        float sum = 0;
        for (int c = 0; c < n; c++) sum += w[c] * d[c] * x_i[c];
        for (int c = 0; c < n; c++) {
            dx[i*n + c] += r * w[c] * d[c] - r*r*r / n * sum * x_i[c];
            dw[c] += d[c] * x_i[c] * r;
        }
    }
}

/* ---- rope: pair (i, i + D/2) of each head is rotated by an angle that grows with the position --
 * So a dot product of two of them depends on their positions only by the distance. Backward is the
 * rotation by the opposite angle: direction -1. x (tokens, heads*D), in place. */
static void rope(float *x, int direction, int tokens, int heads, int length) {
    PARALLEL
    for (long n = 0; n < tokens; n++)
        for (int i = 0; i < D/2; i++) {
            const double angle = n % length * pow(10000, -2.0 * i / D);
            const float c = cos(angle), s = direction * sin(angle);
            for (int h = 0; h < heads; h++) {
                float *a = x + (n*heads + h)*D + i, *b = a + D/2, a0 = *a, b0 = *b;
                *a = a0 * c - b0 * s;
                *b = b0 * c + a0 * s;
            }
        }
}

/* ---- attention: out_t = sum over j <= t of p_tj v_j, with p_t = softmax(q_t k_j / sqrt(D)) -----
 * q, out (N,X*G*D): of a token's X*G query heads, head h attends with key/value head h % G.
 * k, v (N,G*D). The (T,T) matrix p is not kept: from lse (N,X*G), the logarithm of the softmax's
 * denominator, backward computes it again. */
static void attention(float *out, float *lse, const float *q, const float *k, const float *v,
                      int tokens, int length) {
    PARALLEL
    for (int nh = 0; nh < tokens * X*G; nh++) {
        const long n = nh / (X*G), first = n - n % length;     /* n's sequence begins at first */
        const int h = nh % (X*G), kv = h % G * D;
        const float *query = q + n*QUERIES + h*D;
        float score[T], max = -INFINITY, sum = 0, *o = out + n*QUERIES + h*D;
        for (long j = first; j <= n; j++) {
            const float s = score[j - first] = dot(query, k + j*KEYS + kv, D) / sqrtf(D);
            if (s > max) max = s;
        }
        for (long j = first; j <= n; j++) sum += score[j - first] = expf(score[j - first] - max);
        for (int d = 0; d < D; d++) o[d] = 0;
        for (long j = first; j <= n; j++)
            for (int d = 0; d < D; d++) o[d] += score[j - first] / sum * v[j*KEYS + kv + d];
        lse[nh] = max + logf(sum);
    }
}
/* out is linear in p and in v: dv_j += p_tj dout_t, dp_tj = <dout_t, v_j>. A softmax has
 *     ds_j = p_j (dp_j - sum over i of p_i dp_i)
 * and this sum is sum p_i <dout_t, v_i> = <dout_t, sum p_i v_i> = <dout_t, out_t>. The scores s are
 * dot products: dq_t += ds_tj k_j, dk_j += ds_tj q_t, over sqrt(D). A thread takes a key/value head
 * of a sequence with all of its query heads, so that no other adds to the same dk and dv. */
static void attention_backward(float *dq, float *dk, float *dv, const float *dout,
                               const float *out, const float *lse, const float *q,
                               const float *k, const float *v, int tokens, int length) {
    PARALLEL
    for (int bg = 0; bg < tokens / length * G; bg++)
        for (int h = bg % G; h < X*G; h += G) {
            const long first = (long)(bg / G) * length;
            for (long n = first; n < first + length; n++) {
                const long t = n*QUERIES + h*D;                     /* where its query is */
                const float delta = dot(dout + t, out + t, D);
                for (long j = first; j <= n; j++) {
                    const long i = j*KEYS + h % G * D;              /* where key and value are */
                    const float prob = expf(dot(q + t, k + i, D) / sqrtf(D) - lse[n*X*G + h]);
                    const float ds = prob * (dot(dout + t, v + i, D) - delta) / sqrtf(D);
                    for (int d = 0; d < D; d++) {
                        dv[i + d] += prob * dout[t + d];
                        dq[t + d] += ds * k[i + d];
                        dk[i + d] += ds * q[t + d];
                    }
                }
            }
        }
}

/* ---- router: which experts a token uses, and how much each of them counts ---------------------
 * Every token scores every expert, logits = x w^T (N,E), and chooses the K best. Their weights are
 * the softmax of the chosen logits. A choice is a slot: slot s = n*K + k is choice k of token n. An
 * expert needs a list of its slots, so slot[] has all slots sorted by expert; rows stay where they
 * are. With three tokens that choose experts (2 0) (1 2) (2 1) (drawn in docs/figures/slots.svg):
 *
 *     expert    0 | 1 1 | 2 2 2      start = 0 1 3, load = 1 2 3
 *     slot[i]   1 | 2 5 | 0 3 4      where an expert writes what it makes of a row
 *     token[i]  0 | 1 2 | 0 1 2      slot / K: where it reads the row */
typedef struct {
    int   E, K;                                     /* of the MLP, or of attention: A, X */
    float logits[N*MOST_E], lse[N];                 /* (N,E) (N) log sum of exp(logits) */
    int   expert[S];                                /* (N,K) by slot: the chosen expert, */
    float weight[S];                                /* (N,K)          and its weight */
    int   load[MOST_E], start[MOST_E];              /* (E) slots of an expert; the first of them */
    int   slot[S], token[S];                        /* sorted by expert */
    float balance;                                  /* a loss: 1 if all experts have equal loads */
} Routes;
static void choose(Routes *r, int n) {              /* the experts of token n, and their weights */
    const float *l = r->logits + n * r->E;
    int *expert = r->expert + n * r->K;
    float *weight = r->weight + n * r->K, left[MOST_E], all = 0, kept = 0;
    memcpy(left, l, r->E * sizeof *l);
    for (int k = 0; k < r->K; k++) {
        int best = 0;
        for (int e = 1; e < r->E; e++) if (left[e] > left[best]) best = e;
        expert[k] = best, left[best] = -INFINITY;
    }
    const float max = l[expert[0]];
    for (int e = 0; e < r->E; e++) all += expf(l[e] - max);
    for (int k = 0; k < r->K; k++) kept += weight[k] = expf(l[expert[k]] - max);
    for (int k = 0; k < r->K; k++) weight[k] /= kept;
    r->lse[n] = max + logf(all);
}
static void router(Routes *r, const float *x, const float *w, int tokens, int experts, int chosen) {
    int next[MOST_E];
    r->E = experts, r->K = chosen;
    linear(r->logits, NULL, x, NULL, w, tokens, C, experts);
    for (int n = 0; n < tokens; n++) choose(r, n);
    memset(r->load, 0, sizeof r->load);             /* a counting sort of the slots */
    for (int s = 0; s < tokens * chosen; s++) r->load[r->expert[s]]++;
    for (int e = 0, sum = 0; e < experts; sum += r->load[e++]) r->start[e] = next[e] = sum;
    for (int s = 0; s < tokens * chosen; s++) {
        const int i = next[r->expert[s]]++;
        r->slot[i] = s, r->token[i] = s / chosen;
    }
}
/* The choice itself has no gradient: a small change of the logits does not change it. A router
 * learns through the weights of the experts that it chose. But experts that are chosen learn, are
 * then chosen more often, and in the end two of them do everything. A loss prevents that,
 *     balance = E/K * sum over e of (load_e / N) * (mean over the tokens of prob_e)
 * with prob the softmax of all logits: 1 if the load is even, near E/K if all tokens want the same
 * K. Its gradient takes load as a constant, and pushes down the probability of busy experts. A
 * second loss, mean(lse^2), keeps the logits small. Both exist only as gradients, here; the loss
 * that is printed is the cross entropy alone. For the logits of a token:
 *     dlogit_e = weight_e (dweight_e - sum over chosen j of weight_j dweight_j)     if e is chosen
 *              + BALANCE * E/K / N^2 * prob_e (load_e - sum over j of prob_j load_j)
 *              + Z * 2 lse / N * prob_e
 * dweight (N,K) comes from combine_backward. */
static void router_backward(float *dx, float *dw, Routes *r, const float *dweight,
                            const float *x, const float *w, int tokens) {
    static float dlogits[N*MOST_E];
    const float even = (float)r->E / r->K / tokens / tokens;
    r->balance = 0;
    for (int n = 0; n < tokens; n++) {
        float prob[MOST_E], *d = dlogits + n * r->E, pull = 0, sum = 0;
        for (int e = 0; e < r->E; e++) {
            prob[e] = expf(r->logits[n * r->E + e] - r->lse[n]);
            pull += prob[e] * r->load[e];
        }
        for (int e = 0; e < r->E; e++)
            d[e] = BALANCE * even * prob[e] * (r->load[e] - pull)
                 + Z * 2 * r->lse[n] / tokens * prob[e];
        for (int s = n * r->K; s < (n + 1) * r->K; s++) sum += r->weight[s] * dweight[s];
        for (int s = n * r->K; s < (n + 1) * r->K; s++)
            d[r->expert[s]] += r->weight[s] * (dweight[s] - sum);
        r->balance += even * pull;
    }
    linear_backward(dx, dw, dlogits, NULL, x, NULL, w, tokens, C, r->E);
}

/* ---- ParallelLinear: every expert multiplies its own rows by its own matrix, w (E,O,I) ---------
 * out is by slot; x by token (from = r->token: K experts read one row) or by slot (r->slot). */
static void parallel_linear(float *out, const float *x, const int *from, const float *w,
                            const Routes *r, int I, int O) {
    for (int e = 0; e < r->E; e++) {
        const int i = r->start[e];
        linear(out, r->slot + i, x, from + i, w + (long)e*O*I, r->load[e], I, O);
    }
}
/* dout by slot (to = r->slot), or by token (to = r->token). */
static void parallel_linear_backward(float *dx, float *dw, const float *dout, const int *to,
                                     const float *x, const int *from, const float *w,
                                     const Routes *r, int I, int O) {
    for (int e = 0; e < r->E; e++) {
        const int i = r->start[e];
        const long we = (long)e*O*I;
        linear_backward(dx, dw + we, dout, to + i, x, from + i, w + we, r->load[e], I, O);
    }
}

/* The way back to tokens: out_n += bias + sum over the slots s of n of weight_s y_s, where
 * y_s = act_s w[e]^T for the expert e of the slot. act (S,I) by slot, w (E,C,I). */
static void combine(float *out, const float *act, const float *w, const float *bias,
                    const Routes *r, int tokens, int I) {
    static float y[S*C];
    parallel_linear(y, act, r->slot, w, r, I, C);
    PARALLEL
    for (long n = 0; n < tokens; n++)
        for (int c = 0; c < C; c++) {
            float sum = bias[c];
            for (long s = n * r->K; s < (n + 1) * r->K; s++) sum += r->weight[s] * y[s*C + c];
            out[n*C + c] += sum;
        }
}
/* All slots of a token have the same dout_n. Let da_s = dout_n w[e]. Then (setting dact, dweight)
 *     dact_s    = weight_s da_s
 *     dweight_s = <dout_n, y_s> = <dout_n, act_s w[e]^T> = <dout_n w[e], act_s> = <da_s, act_s>
 *     dw[e]    += sum over the slots of e of dout_n^T (weight_s act_s)
 * The second line is why y need not be kept: da is needed anyway, and gives dweight as well. */
static void combine_backward(float *dact, float *dweight, float *dw, float *dbias,
                             const float *dout, const float *act, const float *w,
                             const Routes *r, int tokens, int I) {
    static float weighted[S*WIDEST];
    const long slots = (long)tokens * r->K;
    for (long n = 0; n < tokens; n++) for (int c = 0; c < C; c++) dbias[c] += dout[n*C + c];
    for (long s = 0; s < slots; s++)
        for (int i = 0; i < I; i++) weighted[s*I + i] = r->weight[s] * act[s*I + i];
    memset(dact, 0, slots * I * sizeof *dact);
    parallel_linear_backward(dact, dw, dout, r->token, weighted, r->slot, w, r, I, C);
    for (long s = 0; s < slots; s++) {              /* dact is da so far */
        dweight[s] = dot(dact + s*I, act + s*I, I);
        for (int i = 0; i < I; i++) dact[s*I + i] *= r->weight[s];
    }
}

/* ---- experts: each is a gated MLP -------------------------------------------------------------
 *     (gate, u) = x up[e]^T        act = silu(gate) * u        y = act down[e]^T
 * silu(x) = x sigmoid(x). pre (S,2F), all (gate, u), is kept; act is computed from it again. */
static float act[S*F];
static float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static void activate(const float *pre, int tokens) {
    PARALLEL
    for (long s = 0; s < (long)tokens * K; s++)
        for (int f = 0; f < F; f++) {
            const float gate = pre[s*2*F + f], u = pre[s*2*F + F + f];
            act[s*F + f] = gate * sigmoid(gate) * u;
        }
}
static void experts(float *out, float *pre, const float *x, const Layer *w, const Routes *r,
                    int tokens) {
    parallel_linear(pre, x, r->token, w->up, r, C, 2*F);
    activate(pre, tokens);
    combine(out, act, w->down, w->mlp_bias, r, tokens, F);
}
/* The derivative of silu is sigmoid (1 + x (1 - sigmoid)). */
static void experts_backward(float *dx, float *dweight, Layer *dw, const float *dout,
                             const float *pre, const float *x, const Layer *w, const Routes *r,
                             int tokens) {
    static float dact[S*F], dpre[S*2*F];
    activate(pre, tokens);
    combine_backward(dact, dweight, dw->down, dw->mlp_bias, dout, act, w->down, r, tokens, F);
    PARALLEL
    for (long s = 0; s < (long)tokens * K; s++)
        for (int f = 0; f < F; f++) {
            const long i = s*2*F + f;
            const float gate = pre[i], u = pre[i + F], da = dact[s*F + f], sig = sigmoid(gate);
            dpre[i] = da * u * sig * (1 + gate * (1 - sig));
            dpre[i + F] = da * gate * sig;
        }
    parallel_linear_backward(dx, dw->up, dpre, r->slot, x, r->token, w->up, r, C, 2*F);
}

/* ---- the model --------------------------------------------------------------------------------
 * A token enters as its row of embed. This is the residual stream x, to which sub-layers add:
 *     mid = x + attention(norm(x))        out = mid + experts(norm(mid)), the x of the next layer
 * After the last layer, logits compare norm(x) with every row of embed. (docs/figures/block.svg;
 * backward.svg. The numbers 1 to 7 are those of llmc/model/attention.c and moe.c.) */
typedef struct {                                    /* what a layer keeps for its backward */
    float x[N*C], att_normed[N*C], att_rstd[N];     /* (N,C) (N,C) (N) */
    Routes att;
    float q_before[N*QUERIES], k_before[N*KEYS];    /* (N,X*G*D) (N,G*D) before their norms */
    float q_rstd[N*X*G], k_rstd[N*G];
    float q[N*QUERIES], k[N*KEYS], v[N*KEYS];
    float mixed[N*QUERIES], att_lse[N*X*G];         /* what attention returned */
    float mid[N*C], mlp_normed[N*C], mlp_rstd[N];
    Routes mlp;
    float pre[S*2*F];                               /* (N*K,2F) */
} Acts;
static Acts acts[L];
static float last[N*C], final[N*C], final_rstd[N];  /* x after the last layer, and its norm */
static float logits[N*V];
static int inputs[N], targets[N];                   /* (sequences, length) */

static void forward(int n, int length) {            /* of n tokens, sequences of this length */
    for (int i = 0; i < n; i++)
        memcpy(acts[0].x + i*C, p.embed + inputs[i]*C, C * sizeof(float));
    for (int l = 0; l < L; l++) {
        const Layer *w = &p.layer[l];
        Acts *a = &acts[l];
        float *out = l + 1 < L ? acts[l + 1].x : last;
        rmsnorm(a->att_normed, a->att_rstd, a->x, w->att_norm, n, C);
        router(&a->att, a->att_normed, w->att_router, n, A, X);                         /* 1, 2 */
        /* 3. The slots of a token lie side by side, so (S,G*D) by slot is (N,X*G*D) by token. */
        parallel_linear(a->q_before, a->att_normed, a->att.token, w->query, &a->att, C, KEYS);
        linear(a->k_before, NULL, a->att_normed, NULL, w->kv, n, C, KEYS);
        linear(a->v, NULL, a->att_normed, NULL, w->kv + KEYS*C, n, C, KEYS);
        rmsnorm(a->q, a->q_rstd, a->q_before, w->query_norm, n * X*G, D);               /* 4 */
        rmsnorm(a->k, a->k_rstd, a->k_before, w->key_norm, n * G, D);
        rope(a->q, +1, n, X*G, length);
        rope(a->k, +1, n, G, length);
        attention(a->mixed, a->att_lse, a->q, a->k, a->v, n, length);                   /* 5 */
        memcpy(a->mid, a->x, n*C * sizeof(float));
        combine(a->mid, a->mixed, w->output, w->att_bias, &a->att, n, KEYS);            /* 6, 7 */

        rmsnorm(a->mlp_normed, a->mlp_rstd, a->mid, w->mlp_norm, n, C);
        router(&a->mlp, a->mlp_normed, w->router, n, E, K);                             /* 1, 2 */
        memcpy(out, a->mid, n*C * sizeof(float));
        experts(out, a->pre, a->mlp_normed, w, &a->mlp, n);                             /* 3 to 6 */
    }
    rmsnorm(final, final_rstd, last, p.final_norm, n, C);
    linear(logits, NULL, final, NULL, p.embed, n, C, V);
}

/* The mean of -log softmax(logits)[target]; logits become its gradient, softmax - [v = target]. */
static double cross_entropy(int tokens) {
    double loss = 0;
    for (long n = 0; n < tokens; n++) {
        float *x = logits + n*V, max = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) if (x[v] > max) max = x[v];
        for (int v = 0; v < V; v++) sum += expf(x[v] - max);
        loss += (double)(max + logf(sum) - x[targets[n]]) / tokens;
        for (int v = 0; v < V; v++) x[v] = (expf(x[v] - max) / sum - (v == targets[n])) / tokens;
    }
    return loss;
}

/* The lines of forward, from the last to the first. dx is the gradient of the stream: a sub-layer
 * leaves it as it is, because of `x +`, and adds its own part. */
static void backward(int n, int length) {
    static float dx[N*C], dnormed[N*C], dmixed[N*QUERIES], dq[N*QUERIES], dq_before[N*QUERIES];
    static float dk[N*KEYS], dk_before[N*KEYS], dv[N*KEYS], dweight[S];
#define CLEAR(array) memset(array, 0, sizeof array)
    memset(&g, 0, sizeof g);
    CLEAR(dx), CLEAR(dnormed);
    linear_backward(dnormed, g.embed, logits, NULL, final, NULL, p.embed, n, C, V);
    rmsnorm_backward(dx, g.final_norm, dnormed, last, p.final_norm, final_rstd, n, C);
    for (int l = L - 1; l >= 0; l--) {
        const Layer *w = &p.layer[l];
        Layer *dw = &g.layer[l];
        Acts *a = &acts[l];
        CLEAR(dnormed);
        experts_backward(dnormed, dweight, dw, dx, a->pre, a->mlp_normed, w, &a->mlp, n); /* 6..3 */
        router_backward(dnormed, dw->router, &a->mlp, dweight, a->mlp_normed, w->router, n);
        rmsnorm_backward(dx, dw->mlp_norm, dnormed, a->mid, w->mlp_norm, a->mlp_rstd, n, C);

        CLEAR(dnormed), CLEAR(dq), CLEAR(dk), CLEAR(dv), CLEAR(dq_before), CLEAR(dk_before);
        combine_backward(dmixed, dweight, dw->output, dw->att_bias, dx, a->mixed, w->output,
                         &a->att, n, KEYS);                                             /* 7, 6 */
        attention_backward(dq, dk, dv, dmixed, a->mixed, a->att_lse, a->q, a->k, a->v, n, length);
        rope(dq, -1, n, X*G, length);                                                   /* 5, 4 */
        rope(dk, -1, n, G, length);
        rmsnorm_backward(dq_before, dw->query_norm, dq, a->q_before, w->query_norm, a->q_rstd,
                         n * X*G, D);
        rmsnorm_backward(dk_before, dw->key_norm, dk, a->k_before, w->key_norm, a->k_rstd,
                         n * G, D);
        parallel_linear_backward(dnormed, dw->query, dq_before, a->att.slot, a->att_normed,
                                 a->att.token, w->query, &a->att, C, KEYS);             /* 3 */
        linear_backward(dnormed, dw->kv, dk_before, NULL, a->att_normed, NULL, w->kv, n, C, KEYS);
        linear_backward(dnormed, dw->kv + KEYS*C, dv, NULL, a->att_normed, NULL, w->kv + KEYS*C,
                        n, C, KEYS);
        router_backward(dnormed, dw->att_router, &a->att, dweight, a->att_normed, w->att_router, n);
        rmsnorm_backward(dx, dw->att_norm, dnormed, a->x, w->att_norm, a->att_rstd, n, C);
    }
    for (int i = 0; i < n; i++)
        for (int c = 0; c < C; c++) g.embed[inputs[i]*C + c] += dx[i*C + c];
}

/* ---- AdamW: every weight moves by about the rate, against the sign of its mean gradient --------
 *     m = b1 m + (1 - b1) g    v = b2 v + (1 - b2) g^2    w = w (1 - rate decay) - rate m / sqrt(v)
 * m and v begin at 0, so at first they are too small, by factors of 1 - b1^step and 1 - b2^step. If
 * the norm of the whole gradient is above 1, the gradient is scaled down to norm 1. */
typedef struct { double rate, norm; int step; } Update;
static void add_squares(const Tensor *t, void *sum) {
    const float *d = at(&g, t);
    for (size_t i = 0; i < t->bytes / sizeof *d; i++) *(double *)sum += (double)d[i] * d[i];
}
static void adamw(const Tensor *t, void *update) {
    const Update *u = update;
    const float b1 = 0.9f, b2 = 0.99f, rate = u->rate, shrink = 1 - rate * 0.1f * t->decay;
    const float fix1 = 1 / (1 - pow(b1, u->step)), fix2 = 1 / (1 - pow(b2, u->step));
    const float scale = u->norm > 1 ? 1 / u->norm : 1;
    float *w = at(&p, t), *m = at(&moment1, t), *v = at(&moment2, t);
    for (size_t i = 0; i < t->bytes / sizeof *w; i++) {
        const float d = at(&g, t)[i] * scale;
        m[i] = b1 * m[i] + (1 - b1) * d;
        v[i] = b2 * v[i] + (1 - b2) * d * d;
        w[i] = w[i] * shrink - rate * (m[i] * fix1) / (sqrtf(v[i] * fix2) + 1e-8f);
    }
}
static double learning_rate(int step, int steps) {          /* warm-up, then a cosine to a tenth */
    const double peak = 1e-3, warmup = 50, done = (step - warmup) / (steps - warmup);
    return step < warmup ? peak * (step + 1) / (warmup + 1)
                         : peak * (0.1 + 0.9 * 0.5 * (1 + cos(3.141592653589793 * done)));
}

/* ---- data: the model learns from the first nine tenths of a file, the rest is for validation ---
 * An epoch is a permutation of the windows of T bytes, which begin at another byte in each. */
static unsigned char text[1 << 28];

/* A permutation of 0 .. size - 1: rounds of a Feistel network, each of which can be undone. */
static uint64_t permute(uint64_t i, uint64_t size, uint64_t key) {
    int half = 1;
    while (half < 31 && 1ull << 2*half < size) half++;
    const uint64_t mask = (1ull << half) - 1;
    do {
        for (uint64_t round = 0; round < 12; round++) {
            const uint64_t left = i >> half, right = i & mask;
            i = right << half | (left ^ (bits(bits(key, round), right) & mask));
        }
    } while (i >= size);
    return i;
}
static void load(int sequence, const unsigned char *from, int length) {
    for (int n = sequence * length, t = 0; t < length; t++)
        inputs[n + t] = from[t], targets[n + t] = from[t + 1];
}
static void load_batch(uint64_t bytes, uint64_t seed, uint64_t first) {
    const uint64_t windows = bytes / T - 1, left = bytes - windows * T;
    for (int b = 0; b < B; b++) {
        const uint64_t i = first + b, key = key_of(seed, i / windows);
        const uint64_t phase = bits(key_of(key, 1), 0) % left;
        load(b, text + phase + permute(i % windows, windows, key_of(key, 0)) * T, T);
    }
}

/* ---- a run: train, validate, write text ------------------------------------------------------ */
static double validate(size_t from, size_t to) {            /* the mean loss of bytes from .. to */
    const int bytes = (int)(to - from) - 1;
    double sum = 0;
    for (int i = 0, length, sequences; i < bytes; i += sequences * length) {
        length = bytes - i < T ? bytes - i : T;             /* the last sequence may be shorter */
        sequences = (bytes - i) / length < B ? (bytes - i) / length : B;
        for (int b = 0; b < sequences; b++) load(b, text + from + i + b * length, length);
        forward(sequences * length, length);
        sum += cross_entropy(sequences * length) * sequences * length;
    }
    return sum / bytes;
}
/* Draws bytes from softmax(logits / 0.8). The whole context, of which half goes when it is full, is
 * computed again for every byte; infer_moe keeps keys and values instead. */
static void sample(int count, uint64_t seed) {
    inputs[0] = '\n';
    for (int i = 0, n = 1; i < count; i++) {
        double prob[V], sum = 0;
        int next = 0;
        forward(n, n);
        for (int v = 0; v < V; v++) sum += prob[v] = exp(logits[(n - 1)*V + v] / 0.8);
        double u = uniform(seed, i) * sum;
        while (next < V - 1 && u >= prob[next]) u -= prob[next++];
        putchar(next);
        if (n == T) memmove(inputs, inputs + T/2, (T - T/2) * sizeof *inputs), n = T - T/2;
        inputs[n++] = next;
    }
    putchar('\n');
}
static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv) {
    char *end = "";
    const int steps = argc > 2 ? (int)strtol(argv[2], &end, 10) : 500;
    uint64_t seed = 1337;
    FILE *file = argc == 2 || (argc == 3 && !*end && steps >= 0) ? fopen(argv[1], "rb") : NULL;
    if (!file) return fprintf(stderr, "usage: %s FILE [STEPS], of a text to read\n", *argv), 2;
    const size_t bytes = fread(text, 1, sizeof text, file), train = bytes - (bytes + 9) / 10;
    fclose(file);
    if (train < 2*T || bytes == sizeof text) return fputs("text too short or long\n", stderr), 3;
    setvbuf(stdout, NULL, _IOLBF, 0);               /* lines appear when they are complete */
    each_tensor(initialize, &seed);
    for (int step = 0; step < steps; step++) {
        const double begin = seconds();
        load_batch(train, seed, (uint64_t)step * B);
        forward(N, T);
        const double loss = cross_entropy(N);
        backward(N, T);
        Update u = { learning_rate(step, steps), 0, step + 1 };
        each_tensor(add_squares, &u.norm);
        u.norm = sqrt(u.norm);
        if (!isfinite(u.norm)) return fprintf(stderr, "the gradient is not finite\n"), 5;
        each_tensor(adamw, &u);
        printf("step %d/%d | loss %.6f | norm %.5f | lr %.2e | balance %.2f | %.0f ms\n", step + 1,
               steps, loss, u.norm, u.rate, acts[L-1].mlp.balance, 1e3 * (seconds() - begin));
    }
    printf("val loss %.6f\n", validate(train, bytes));
    sample(400, seed);
    return 0;
}
