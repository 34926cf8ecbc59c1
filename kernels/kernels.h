/* kernels.h: everything a device can do. The only interface between llmc/ and kernels/.
 *
 * A Device is a table of functions. kernels/cpu/ fills one per number type (f32, bf16, f64),
 * kernels/cuda/ likewise; the model is written once against the table. To add an operation:
 * document it here, define it for every device, add a case to tests/ops/cases.c.
 *
 * True for every function:
 *   - outputs first, then inputs, then sizes; matrices are row-major, weights (out, in);
 *   - OUT is overwritten, ACC added to, the rest only read; outputs alias nothing unless stated;
 *   - offsets are computed in 64 bits; there may be 0 rows or more, and 1 column or more;
 *   - sums are `real`, in an order that depends on sizes only: the same bits with any thread count;
 *   - work is queued on one stream. Only download, collect, copied(1), sync and *_to_double wait;
 *   - what changes from step to step (data, dropout's key, the optimizer's settings) is read from
 *     device memory, not passed by value, so that a step can be recorded once and replayed.
 *
 * Sizes: B sequences, T tokens in each, N = B*T tokens, C channels, V vocabulary,
 *        E experts, K experts per token, S = N*K slots, F expert width, O outputs of a product,
 *        G key/value heads, Q query heads per key/value head, D head size.
 *
 * A slot is a (token, choice) pair: slot s = n*K + k. Rows are slots in the order of experts:
 * expert e has rows [start[e], start[e+1]), in the order of slots. Where routing is rounded
 * (route_round), a token has one slot for each expert that keeps it, and S is an upper bound:
 * buffers have S rows, of which start[E] are used.
 *
 * Errors are relative to the same operation in f64 on the same inputs, for f32 (eps = 2^-24) and
 * for bf16 (eps = 2^-8, one rounding of each stored value); "exact" means bit for bit. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifndef KERNELS_IMPLEMENTATION          /* opaque to the host */
typedef struct floatX floatX;           /* weights and activations: f32, bf16 or f64 */
typedef struct real   real;             /* statistics, routing weights, gradients of weights: f32, or f64 on cpu-f64 */
#endif
#define OUT                             /* x  = ... */
#define ACC                             /* x += ... */

/* ==== types of the plain model ================================================================ */
/* The order of the rows of a ParallelLinear operand in memory. */
typedef enum {
    BY_TOKEN,                           /* (N,.)  one row per token, read by each of its K slots */
    BY_SLOT,                            /* (S,.)  row of slot n*K + k */
    GROUPED                             /* (S,.)  sorted by expert */
} Rows;

/* One router's decision about one batch, for the ParallelLinears of its layer (smoe.c: Routes). */
typedef struct {
    int N, E, K, S;
    int *start;                         /* (E+1)  expert e has rows start[e] .. start[e+1]-1 */
    int *slot_of_row, *token_of_row;    /* (S)    smoe.c's slot and token; token = slot / K, unless rounded */
    int *row_of_slot;                   /* (S)    the inverse of slot_of_row */
    int *first;                         /* (N+1)  token n has slots first[n] .. first[n+1]-1; NULL: n*K .. n*K + K-1 */
} Plan;

/* The nonlinearity of an expert. pre: the output of the up projection; of gated kinds: gate, up. */
typedef enum {
    SWIGLU,                             /* act = silu(gate) * up      pre (.,2F): gate columns first */
    GELU,                               /* act = gelu(pre), tanh form pre (.,F) */
    RELU2,                              /* act = max(pre,0)^2         pre (.,F) */
    IDENTITY,                           /* act = pre                  pre (.,F): attention experts have none */
    CLAMPED         /* act = g sigmoid(1.702 g) (u + 1), g = min(gate, 7), u = up within +-7; pre as SWIGLU (gpt-oss) */
} Activation;
#define IS_GATED(f) ((f) == SWIGLU || (f) == CLAMPED)
#define CLAMPED_SLOPE 1.702             /* of CLAMPED: in its sigmoid, and where it clamps */
#define CLAMPED_LIMIT 7.0

/* From router logits to the K weights of a token. The experts with the largest score + bias are
 * chosen; of equal ones the larger logit, then the lower id. p: softmax of all E logits. */
typedef enum {
    TOPK_SOFTMAX,                       /* weight = softmax of the K chosen logits (JetMoE, Mixtral, Granite) */
    SOFTMAX_TOPK,                       /* weight = p of the chosen; they sum to less than one (OLMoE, Switch) */
    SOFTMAX_RENORM,         /* the weights of TOPK_SOFTMAX, but the score to which a bias is added is p (ERNIE 4.5) */
    SIGMOID_TOPK,                       /* weight = sigmoid(logit), renormalized over the chosen (DeepSeek-V3) */
    SIGMOID_EACH                    /* weight = sigmoid(logit) (Llama 4). From SIGMOID_TOPK on scores are sigmoids */
} Scores;
#define SUMS_TO_ONE(scores) ((scores) == TOPK_SOFTMAX || (scores) == SOFTMAX_RENORM || (scores) == SIGMOID_TOPK)
#define SCORES_ARE_P(scores) ((scores) == SOFTMAX_TOPK || (scores) == SOFTMAX_RENORM)

/* Experts may be chosen by groups: the E experts are `count` groups of consecutive ones, and a
 * token's are of the `chosen` groups with the largest sums of their two largest scores + bias (of
 * their largest, if by_best); of equal ones the first. E / count is at least 2. count 0, 1: no
 * groups. Source: DeepSeek-V3, arXiv 2412.19437; by_best: DeepSeek-V2, arXiv 2405.04434. */
typedef struct { int count, chosen, by_best; } Groups;
enum { MOST_GROUPS = 32 };

/* Which key/value head a query head uses. */
typedef enum {
    HEADS_TILED,                        /* head r*G + g uses g: the K slots of a mixture of attention heads (JetMoE) */
    HEADS_GROUPED                       /* head g*Q + r uses g: grouped-query attention (Llama, Mixtral) */
} HeadOrder;

/* An RMSNorm: weight (C). */
typedef struct { const floatX *weight; float eps; } Norm;

/* Dropout at one site of the model. p: in [0,1). key: of this batch, in device memory; NULL if p is
 * 0. site: each has its number. scale: also multiplies what is kept; 0: nothing does. */
typedef struct { float p; const uint64_t *key; int site; double scale; } Dropout;

/* A sub-layer's result before it is summed. Forward: a token's expert outputs by weight, plus bias.
 * Backward: the addends of the gradient of its input: rows, and products still to be computed. */
typedef struct { const floatX *dout, *weight; int O; } Term;   /* the product of dout (N,O) and weight (O,C) */
typedef struct {
    const floatX *rows;                 /* (S,C) GROUPED; without a plan (N,C); NULL: none */
    const Plan   *plan;
    const real   *weight;               /* (S)  NULL: ones */
    const floatX *bias;                 /* (C)  NULL: zeros */
    Term term[3];  int terms;
    const floatX *narrow;  int narrow_width;   /* backward: (N,narrow_width), of the first columns; NULL: none */
    const struct Mix *mix;              /* forward: what the stream goes through after the sum; NULL: nothing */
} Sum;
static inline void sum_add(Sum *s, const floatX *dout, const floatX *weight, int O) {
    s->term[s->terms].dout = dout, s->term[s->terms].weight = weight, s->term[s->terms].O = O;
    s->terms++;
}

/* The residual stream before a layer: x becomes exp(scalars[0]) x + scalars[1] first + (1 +
 * scalars[2]) extra. first, extra (N,C), or NULL; without first the factor of x is 1. */
typedef struct Mix { const floatX *first, *extra, *scalars; } Mix;

/* Overwrite or add. SET_ROUNDED, of gradients of weights only: overwrite, rounded to floatX. */
typedef enum { SET, ADD, SET_ROUNDED } Write;

typedef enum { REAL, FLOATX, INT8 } Dtype;  /* element type of an array whose type the caller chooses; INT8: Momentum */

/* A learnable tensor, or a rank's shard of one, as the optimizer sees it: a range of the arena. */
typedef struct {
    size_t offset, count;               /* of the weight, in elements */
    float  decay;                       /* 0 or 1 */
    size_t shift;                       /* master, m and v begin at offset - shift: a rank has only its own shards */
    Dtype dtype;                        /* of its gradient */
    size_t gradient;                    /* where that begins, in elements of that dtype; aligned as the weight is */
    float  rate;                        /* multiplies the learning rate */
    size_t shift_m, shift_v;            /* m, v begin so much earlier: matrices of Muon have no v, or their m apart */
    size_t muon_offset;                 /* of a matrix, or a part of one: in Muon's buffers */
    size_t squares;                     /* of a matrix: where its mean squares begin (muon_scale) */
    size_t norms;                       /* of a tensor: where its mean norm is, for files */
    int    is_table;                    /* of which a batch reads few rows: it has AdamW's betas of tables */
} Segment;
typedef struct { float beta1, beta2, eps; double fix1, fix2; } AdamBetas;
typedef struct {
    float lr, beta1, beta2, eps, decay; /* decay: decoupled; multiplied by the segment's decay */
    float clip;                         /* largest global gradient norm; 0: no clipping */
    int   cautious;                     /* 1: only elements that the update makes smaller decay, too */
    double fix1, fix2;                  /* 1 / (1 - beta^t) at update t = 1, 2, ...: m and v start at zero */
    uint64_t key;                       /* of this update's stochastic rounding */
    AdamBetas table;                    /* instead of those above, for tables */
} AdamW;

/* ==== types of generation, ingredients and the device ========================================= */
/* A router: weight (E,C); bias (E) or NULL, added to the scores for choosing only; scale: of the
 * chosen experts' weights, 0: none; added (E) or NULL: to the logits. weight NULL: no router,
 * E = K = 1. */
typedef struct { const floatX *weight; const real *bias; Scores scores; int E, K; Groups groups; float scale;
                 const floatX *added; } Router;

/* The tokens that routers' losses and loads count: those of a sample. Filler ends a row of samples;
 * its results are computed like all others, but nothing reads them. */
typedef struct {
    const int *target;                  /* (N) FILLER: is that; other negative ones: a token. NULL: there is none */
    const int *tokens;      /* (1) those that are counted by load */
    int ranks;              /* which load counts together */
} Counted;
enum { FILLER = -2 };

/* A router's choice for N tokens: (N,K) each. */
typedef struct { int *expert; real *weight; } Choice;

/* What new queries, keys and values go through before rotation, in this order; NULL: nothing. */
typedef struct {
    const floatX *query_bias, *kv_bias;     /* (Q*G*D) (2,G,D) */
    const floatX *value_embed;              /* (V, G*D)  row *token of it is added to the values */
    const int *token;                       /* (B) */
    Norm query_norm, key_norm;              /* (D) of every head, or, if joint, (Q*G*D) (G*D) of all heads together */
    int  joint;
    const floatX *sink;                     /* (Q*G) as sink_forward */
    floatX *own_keys;           /* (rows of the cache + 1, G*D)  shift_keys after rotation; row r is of row r - 1 */
} NewHeads;

/* How the next token is drawn: from the most likely tokens that reach probability top_p together,
 * at most top_k of them, and only those at least min_p times as likely as the first. */
typedef struct {
    float temperature;                  /* 0: the most likely token */
    float top_p, min_p;                 /* 1, 0: off */
    int   top_k;                        /* 0: off */
} Sampler;

/* Products process rows in tiles, and an expert's last tile is seldom full. In training, routing
 * can be rounded so that it is: an expert chosen by f tokens keeps the nearest multiple of it, of
 * two the lower. MULTIPROCESSORS: of an H100 or H200; launches, and so the orders of sums, have
 * sizes for it, whatever GPU is there. */
enum { ROW_TILE = 128, MULTIPROCESSORS = 132 };

/* Numbers in 8 bits: e4m3 codes (sign, 4 bits of exponent, 3 of mantissa; largest 448; 0x7f is NaN)
 * in blocks that share a scale, a power of two: value = code * scale. Blocks are
 *     of rows (N,C)            1 x 128: scale (N, C/128)
 *     of a weight (E,O,C)      128 x 128: scale (E, O/128, C/128)
 *     of columns, which Fp8Operations.columns makes.
 * From floats: a scale is the smallest power of two, from 2^-117 on, for which no magnitude of its
 * block is above 448 * scale, and a code is the nearest, even of two, to value / scale. So nothing
 * saturates, the largest magnitude of a block is more than 224 times its scale, and what is at most
 * 2^-10 of the scale becomes zero. With m the bits of the largest magnitude as f32, the scale's are
 * (max((m + 0x1fffff) >> 23, 18) - 8) << 23. A block with a value that is not finite has scale NaN,
 * and all its codes are 0x7f. */
typedef struct { uint8_t *code; real *scale; } Fp8;
enum { FP8_BLOCK = 128 };
/* Blocks of columns: 128 rows of one expert. Row r of expert e is row (r - start[e]) % 128 of block
 * start[e]/128 + e + (r - start[e])/128; blocks that this gives no row are not used. */
static inline int fp8_blocks(int S, int E) { return S / FP8_BLOCK + E; }

/* A weight (E,O,C) as it is in memory: numbers, or codes whose blocks share a scale.
 *     OF_FLOATX  at: floatX
 *     OF_FP8     at: e4m3 codes as above, of any O and C: the last blocks may be smaller. scale:
 *                real (E, O/128, C/128), rounded up; powers of two, if weight_to_codes made them
 *     OF_MXFP4   at: e2m1 codes (sign, 2 bits of exponent, 1 of mantissa; largest 6), two in a
 *                byte, the first in its lower half. scale: a byte for each 32 of a row, (E, O,
 *                C/32): 2^(byte - 127)
 * Source of OF_MXFP4: OCP Microscaling Formats 1.0, 2023 */
typedef enum { OF_FLOATX, OF_FP8, OF_MXFP4 } Format;
typedef struct { const void *at, *scale; Format format; } Weight;
enum { MXFP4_BLOCK = 32, MXFP4_SCALE_MAX = 127 + 33 };      /* the largest that decoding one token knows */

typedef struct {
    float lr, momentum, decay, clip;    /* as AdamW's; momentum: of the running mean of gradients */
    float ahead;                        /* how far the update looks ahead: momentum (Nesterov), or 1: not at all */
    int   cautious;
    uint64_t key;
    float second;                       /* decay rate of the mean squares of muon_scale */
    float most;                         /* times its mean norm is a gradient at most as long (muon_limits); 0: any */
} Muon;
/* Muon's m. INT8: codes, and a scale for each MOMENT_BLOCK of them, value = code * scale; parts
 * begin and end with a block, arrays at 16 bytes. Coded (codes.h) by random bits of a key, in
 * muon_momentum of a.key, and the element: an error of up to a scale. */
typedef struct { void *at; Dtype dtype; floatX *scale; } Momentum;
enum { MOMENT_BLOCK = 64 };             /* parts of tensors begin at multiples of it (tensor.h) */
enum { MUON_STEPS = 5 };                /* of Newton and Schulz */
#define MUON_NORM_DECAY 0.98f       /* of the mean norms of muon_limits, in a micro-batch */
enum { MUON_LIMITED = 256 };            /* most tensors of muon_limits */
#define MUON_LEAST_SQUARE 1e-10f    /* of rows: those of an update with singular values near 1 are far above it */
#define MUON_LEAST 1e-30f   /* far below any gradient, and far above what is lost when the squares of f32 are added */
/* What Muon needs for `count` matrices of rows x columns at a time; k: the smaller side. */
typedef struct {
    floatX *x, *out;                    /* (count, rows, columns) momentum; the same with singular values near 1 */
    floatX *gram, *square;              /* (count, k, k) */
    real   *sums;                       /* (count, MUON_SUMS) */
    int    *start;                      /* (2, count + 1) */
} MuonBuffers;
enum { MUON_SUMS = 32, MUON_MATRICES = 1 << 15 };         /* MUON_MATRICES: the largest count */

enum { HOST_PIECE = 32 << 20 };         /* of the host's memory that a device reaches directly: Device.host_lock */
typedef struct Recording Recording;     /* work that can be replayed; opaque */
typedef struct { int64_t syncs, reads; } Waits;  /* how often the host waited in sync, and in the functions that read */

typedef struct Comm Comm;               /* one of several ranks: kernels/comm.h */
typedef struct Group Group;             /* the ranks' hosts: kernels/comm.h */

typedef struct DecodeOperations DecodeOperations;
typedef struct Fp8Operations Fp8Operations;
typedef struct Device Device;
struct Device {
    const char *name;                   /* "cpu-f32", "cuda-bf16", ... */
    const char *dtype;                  /* of floatX in files: "F32", "BF16", "F64" */
    size_t floatX_size, real_size;      /* bytes */
    int    is_gpu;
    const DecodeOperations *decode;     /* more operations, below; NULL: this device has none of them */
    const Fp8Operations    *fp8;

    /* ---- memory: pointers are the device's; host pointers are called host -------------------- */
    /* The calling thread will use the which-th device of this kind. NULL, or why it cannot. */
    const char *(*open)(int which);
    int   (*count)(void);                               /* GPUs of this machine; CPUs: 1, for any number of threads */
    void *(*alloc)(size_t bytes);                                  /* zeroed; NULL if there is not enough memory */
    void  (*release)(void *p);
    size_t (*memory)(void);                                        /* bytes that alloc can provide now; 0: unknown */
    void  (*upload)(void *dst, const void *host, size_t bytes);
    void  (*download)(void *host, const void *src, size_t bytes);
    void  (*copy)(void *dst, const void *src, size_t bytes);
    void  (*zero)(void *dst, size_t bytes);
    void  (*sync)(void);                                           /* wait until all queued work is done */
    void  (*from_double)(floatX *dst, const double *host, size_t n);   /* rounds to nearest even */
    void  (*to_double)(double *host, const floatX *src, size_t n);
    void  (*reals_from_double)(real *dst, const double *host, size_t n);
    void  (*reals_to_double)(double *host, const real *src, size_t n);

    /* ==== the plain model: from tokens to a loss, and back ==================================== */
    /* ---- embedding: out[n] = weight[token[n]].   out (N,C)  weight (V,C)  token (N) in [0,V) ----
     * error: forward exact; backward N eps_f32 */
    void (*embed_forward )(OUT floatX *out, const int *token, const floatX *weight, int N, int C);
    void (*embed_backward)(ACC real *dweight, const floatX *dout, const int *token, int N, int V, int C);

    /* ---- rmsnorm: out = round(inp * rstd) * weight, rstd = 1/sqrt(mean(inp^2) + eps) ------------
     * out, inp (N,C)  rstd (N), saved for backward. The inner rounding to floatX is Hugging Face's.
     * error: 4 eps forward, 8 eps backward (norm-wise).   Source: arXiv 1910.07467 */
    void (*rmsnorm_forward )(OUT floatX *out, OUT real *rstd, const floatX *inp, Norm norm, int N, int C);
    void (*rmsnorm_backward)(ACC floatX *dinp, ACC real *dweight, const floatX *dout, const floatX *inp,
                             Norm norm, const real *rstd, int N, int C);

    /* ---- rope: rotate pairs (i, i + D/2) of each head, in place ---------------------------------
     * table (T,D/2,2): cos and sin for positions 0..T-1, or a multiple of both (llmc/model/rope.c).
     * x (N,stride): the first heads*D of each row are rotated.   position (N).   D even.
     * direction: +1; backward: -1, which undoes it.   error: 2 eps.   Source: arXiv 2104.09864 */
    void (*rope)(floatX *x, const real *table, const int *position, int direction, int N, int stride, int heads, int D);

    /* ---- residual and dropout: out = residual + drop(branch), drop(x) = x mask scale / (1-p) ----
     * mask[i] is a function of (*key, site, i) alone: keep if random_16 >= floor(p * 2^16). dropout
     * is its own backward. out may be inp or residual.   error: one rounding */
    void (*residual)(OUT floatX *out, const floatX *residual, const floatX *branch, Dropout d, size_t n);
    void (*dropout )(OUT floatX *out, const floatX *inp, Dropout d, size_t n);
    void (*scale   )(floatX *x, double factor, size_t n);           /* x *= factor.   error: one rounding */

    /* ---- matmul: out = inp weight^T.   out (N,O)  inp (N,C)  weight (O,C) -----------------------
     * dweight: reals, or floatX if SET_ROUNDED.   error: sqrt(reduction) * 2 eps_f32 + eps */
    void (*matmul_forward        )(OUT floatX *out, const floatX *inp, const floatX *weight, int N, int C, int O);
    void (*matmul_backward_input )(floatX *dinp, const floatX *dout, const floatX *weight, int N, int C,
                                   int O, Write how);
    void (*matmul_backward_weight)(void *dweight, const floatX *dout, const floatX *inp, int N, int C, int O,
                                   Write how);

    /* ---- attention: causal softmax(q k^T / sqrt(D)) v, Q*G query heads over G key/value heads ---
     * q, out (B,T,Q*G,D)   kv (B,T,2,G,D): keys, then values   lse (B,T,Q*G) saved for backward
     * A mixture of attention heads has Q = K: its slots are packed query heads.
     * reach (B,T): query t sees keys t - reach[t] .. t, the first of which never decreases with t.
     * In a row of several samples that is a token's position in its own; with a window of W keys it
     * is at most W - 1. NULL: all, reach[t] = t.
     * error: 8 eps + 8 eps_f32 forward, 32 eps backward.   Source: arXiv 2205.14135 */
    void (*attention_forward )(OUT floatX *out, OUT real *lse, const floatX *q, const floatX *kv, const int *reach,
                               HeadOrder order, int B, int T, int G, int Q, int D);
    void (*attention_backward)(OUT floatX *dq, OUT floatX *dkv, const floatX *dout, const floatX *out, const real *lse,
                               const floatX *q, const floatX *kv, const int *reach, HeadOrder order, int B, int T,
                               int G, int Q, int D);

    /* ---- router: choose K of E experts for every token ------------------------------------------
     * logits (N,E)   bias (E), added to the scores for choosing only, or NULL   weight (N,K)
     * expert (N,K) by descending score + bias, of the token's groups   lse (N) log sum exp(logits)
     * forced: slot s takes expert s mod E instead (benchmarks: perfect balance)
     * backward: dlogits from dweight, plus the gradients of balance * balance_loss and
     * zloss * z_loss (see router_losses), with load as a constant. first: the plan's, or NULL.
     * error: expert exact, the rest 8 eps_f32; SOFTMAX_TOPK's weights |logit - lse| eps_f32 more */
    void (*router_forward )(OUT int *expert, OUT real *weight, OUT real *lse, const floatX *logits, const real *bias,
                            Scores scores, Groups groups, int forced, int N, int E, int K);
    void (*router_backward)(OUT floatX *dlogits, const real *dweight, const real *weight, const real *lse,
                            const int *expert, const int *first, const floatX *logits, const int *load, float balance,
                            float zloss, Counted counted, Scores scores, int N, int E, int K);

    /* ---- route_plan: stable counting sort of the S slots by expert.   error: exact --------------
     * Fills plan and load (E), slots per expert. The caller owns its arrays and set N, E, K, S. */
    void (*route_plan)(OUT Plan *plan, OUT int *load, const int *expert);
    /* load (E) -= the choices (N,K) of filler, which a plan has like all others. error: exact */
    void (*route_discount)(ACC int *load, const int *choice, const int *target, int N, int K);

    /* ---- router_losses: loss[0] = balance, loss[1] = z ------------------------------------------
     * balance = E/K * sum over e of (load_e / tokens) * (mean of p_e): 1 if all loads are equal.
     *           p: the softmax, or the sigmoid scores normalized over E. tokens: those that load
     *           counts, here or on all ranks.   Source: arXiv 2101.03961, eq. 4
     * z       = mean of lse^2.   Source: arXiv 2202.08906, eq. 5.   error: 16 eps_f32
     * A mean is the sum over this rank's tokens without filler, divided by tokens / ranks: the mean
     * over all ranks' tokens is then that of their means, however many each has. tokens 0: 0 */
    void (*router_losses)(OUT real *loss, const floatX *logits, const real *lse, const int *load, Counted counted,
                          Scores scores, int N, int E, int K);

    /* ---- ParallelLinear: every slot's row times its expert's matrix, out = inp weight[e]^T ------
     * weight (E,O,C).   inp: any Rows layout;   out: BY_SLOT or GROUPED.
     * Rows are read and written in place: nothing is padded, sorted or copied in memory.
     * backward_input: dinp = dout weight[e], dout in any layout (BY_TOKEN: the K slots of a token
     * have the same row), dinp BY_SLOT or GROUPED; combine_forward adds a token's K rows.
     * backward_weight: dweight[e] = or += the sum over e's rows of dout^T inp; without rows zeros.
     * error: as matmul; cost 2*S*C*O flop each.   Source: ScatterMoE, arXiv 2403.08245 */
    void (*parallel_linear_forward        )(OUT floatX *out, const floatX *inp, const floatX *weight,
                                            const Plan *plan, int C, int O, Rows inp_rows, Rows out_rows);
    void (*parallel_linear_backward_input )(OUT floatX *dinp, const floatX *dout, const floatX *weight,
                                            const Plan *plan, int C, int O, Rows dinp_rows, Rows dout_rows);
    void (*parallel_linear_backward_weight)(void *dweight, const floatX *dout, const floatX *inp,
                                            const Plan *plan, int C, int O, Rows inp_rows, Rows dout_rows, Write how);

    /* ---- activation and the router weight's gradient --------------------------------------------
     * forward: act = f(pre), rows by row.   act (M,F)  pre (M,2F) or (M,F)
     * backward: an expert's output is weighted after its last product, out = sum weight (act W^T),
     * so with da = dout W (a row for each slot, not weighted) and w the row's weight:
     *     dpre = w da f'(pre)      dweight = <da, act>      wact = w act  (what dW needs)
     * act is recomputed from pre, so neither it nor the expert's output is saved.
     * (expert_bias_backward adds what a bias of the last product adds to dweight.)
     * weight and dweight (S) are indexed by slot for any `rows`; M = S. plan, weight and dweight
     * NULL: w = 1, M rows (dense). dpre may be da (IDENTITY) or pre.   error: 8 eps.
     * Source: SonicMoE, arXiv 2512.14080, section 4 */
    void (*activation_forward )(OUT floatX *act, const floatX *pre, Activation f, int M, int F);
    void (*activation_backward)(OUT floatX *dpre, OUT floatX *wact, OUT real *dweight, const floatX *da,
                                const floatX *pre, const real *weight, const Plan *plan, Rows rows,
                                Activation f, int M, int F);

    /* ---- combine: out[n] = sum_k weight[n,k] inp[slot n*K+k] + bias -----------------------------
     * out (N,C)  inp (S,C), BY_SLOT or GROUPED   weight (S), or NULL for ones   bias (C), or NULL
     * With weight NULL it is the backward of reading BY_TOKEN.   error: (K+1) eps_f32 + eps */
    void (*combine_forward)(OUT floatX *out, const floatX *inp, const real *weight, const floatX *bias,
                            const Plan *plan, int C, Rows rows);

    /* ---- compound operations: d is the device itself. kernels/compound.c makes each from the
     * operations named here, for devices that have nothing better. error: that of the parts.
     * expert_up_forward:    parallel_linear_forward(pre, inp, weight, inp_rows, GROUPED),
     *                       activation_forward(act, pre)
     * expert_down_backward: parallel_linear_backward_input(da, dout, down, GROUPED, dout_rows),
     *                       activation_backward(dpre, wact, dweight, da, pre, ...). da (S,F):
     *                       scratch. up (E,2F,C) or (E,F,C), down (E,C,F). Neither has biases.
     * add_norm_forward:   branch = combine_forward(s), residual(resid, residual, branch, dropout),
     *                     mix_forward(resid, *mix) if s has one, rmsnorm_forward(out, rstd, resid,
     *                     norm). s has no terms, and without a plan no weight.
     * add_norm_backward:  dout = combine_forward(rows of s) + the terms of s, at least one of them,
     *                     columns_add(dout, narrow), which needs a term;
     *                     rmsnorm_backward(dresid, dnorm, dout, resid, norm, rstd), then
     *                     bias_backward(dbias, dresid) unless dbias is NULL. scratch: two of (N,C);
     *                     on a CPU the second may be NULL. */
    void (*expert_up_forward)(const Device *d, OUT floatX *pre, OUT floatX *act, const floatX *inp,
                              const floatX *weight, const Plan *plan, Activation f, int C, int F, Rows inp_rows);
    void (*expert_down_backward)(const Device *d, OUT floatX *dpre, OUT floatX *wact, OUT real *dweight, OUT floatX *da,
                                 const floatX *dout, const floatX *down, const floatX *pre, const real *weight,
                                 const Plan *plan, Activation f, int C, int F, Rows dout_rows);
    void (*add_norm_forward )(const Device *d, OUT floatX *out, OUT real *rstd, OUT floatX *resid,
                              const floatX *residual, const Sum *s, Dropout dropout, Norm norm, int N, int C);
    void (*add_norm_backward)(const Device *d, ACC floatX *dresid, ACC real *dnorm, ACC real *dbias,
                              floatX *const scratch[2], const Sum *s, const floatX *resid, Norm norm, const real *rstd,
                              int N, int C);

    /* ---- cross entropy: loss[n] = -log softmax(logits[n])[target[n]] ----------------------------
     * logits (N,V); with gradient they become scale * dloss/dlogits in place; scale (1), NULL: 1.
     * Only the first `used` columns count; the others are padding and get gradient 0. target[n] <
     * used; negative (FILLER, too): loss and gradient 0. cap: the logits pass soft_cap first, so
     * does the gradient; 0: none. Without gradient they may be left capped.
     * position: NULL, or the gradient, not the loss, has further targets, target[n+1] and then
     * target[n+2], as far as the position of neither is 0, where another text begins: it is that of
     *     sum over i of scale[i] * -log softmax(logits[n])[target[n+i]]     i = 0, 1, 2
     * target, position (N+2)   scale (3). A negative one of these does not count.
     * error: loss 4 eps_f32, gradient 4 eps; with a cap, whose results may be rounded, loss 4 eps,
     * gradient 16 eps.
     * Source of further targets: arXiv 2404.19737, here of one head */
    void (*cross_entropy)(OUT real *loss, floatX *logits, const int *target, const int *position, const real *scale,
                          float cap, int gradient, int N, int V, int used);

    void (*sum)(OUT real *out, const real *inp, size_t n);          /* fixed order.   error: 4 eps_f32 norm-wise */
    void (*accumulate)(ACC real *acc, const real *x, size_t n);     /* acc += x.   error: exact, rounded once */

    /* ---- optimizer ------------------------------------------------------------------------------
     * grad_sq_norms: out[i] = sum of the squares of segment i's gradient, out[count] = their sum.
     * out (count+1)   error: 4 eps_f32
     * adamw: one Adam update of every segment, with decoupled weight decay. Gradients are scaled by
     * min(1, clip/norm); if the norm is not finite nothing changes. a: in device memory.
     * master: a copy of the weights in real, or NULL: then the weights themselves are updated, and
     * rounded stochastically, and so is v as floatX: to one of the two neighbours, so that the
     * expectation is exact, because most updates are smaller than half a unit and would be lost.
     * (m changes by tenths of itself: to nearest.) Element i uses random_32(key, i): 16 bits for
     * the weight, the next 16 for v.   Source: arXiv 1711.05101; rounding: arXiv 1502.02551;
     * cautious decay: arXiv 2411.16085, here of the decay alone
     * error: 8 eps_f32; 2 eps more where rounded stochastically, eps for m as floatX
     * set_master: master = weight.   master, weight (n).   error: exact */
    void (*grad_sq_norms)(OUT real *out, const void *grads, const Segment *segments, int count);
    void (*adamw)(floatX *weight, real *master, void *m, void *v, Dtype moments, const void *grads,
                  const real *grad_sq_norms, const Segment *segments, int count, const AdamW *a);
    void (*set_master)(OUT real *master, const floatX *weight, size_t n);

    /* ==== generation ========================================================================== */
    /* One new token per sequence: q, out (B,Q*G,D); cache (B,T,2,G,D); sequence b attends to
     * positions 0..position[b], with a window only to the last `window` of them. window 0: none.
     * sink (Q*G), or NULL: as sink_forward.   error: 8 eps */
    void (*attention_cached  )(OUT floatX *out, const floatX *q, const floatX *cache, const floatX *sink,
                               const int *position, int window, HeadOrder order, int B, int T, int G, int Q, int D);

    /* cache[row[n]] = kv[n], rows of `width` elements. Rows distinct. error: exact */
    void (*cache_store)(floatX *cache, const floatX *kv, const int *row, int N, int width);

    /* ---- sample: the next token of each sequence ------------------------------------------------
     * token (N)   logits (N,V): only the first `used` columns are candidates   key, position (N)
     * p = softmax(logits / temperature), in descending order, for equal logits by ascending id.
     * Tokens are kept as the Sampler says, and one of them is drawn in proportion to p by
     * random_uniform(key[n], position[n] + 1). Without limits the order is that of ids. NaN is
     * never chosen; without any candidate the result is token 0.   error: exact
     * Source: top-p: Holtzman et al. 2019, arXiv 1904.09751; min-p: arXiv 2407.01082 */
    void (*sample)(OUT int *token, const floatX *logits, const uint64_t *key, const int *position, Sampler s,
                   int N, int V, int used);

    /* ---- weights in codes: code, OF_FP8, from numbers; numbers from codes of any kind.   error:
     * exact; where scales are no powers of two one rounding */
    void (*weight_to_codes  )(OUT Fp8 code, const floatX *weight, int E, int O, int C);
    void (*weight_from_codes)(OUT floatX *out, Weight code, int E, int O, int C);

    /* row[n] += 1, position[n] += 1, log[position[n]*N + n] = token[n]: what the next pass reads */
    void (*advance)(ACC int *position, ACC int *row, OUT int *log, const int *token, int N);

    /* ==== ingredients: what some models have besides ========================================== */
    /* out = scale * weight (n): of slots, or their gradients; in place, too. error: one rounding */
    void (*scale_weights)(OUT real *out, const real *weight, float scale, size_t n);

    /* bias[e] += rate * sign(mean load - load[e]); relative: rate * (1 - load[e] / mean load).
     * error: exact; relative: 4 eps_f32.   Source: loss-free balancing, arXiv 2408.15664 */
    void (*router_bias)(ACC real *bias, const int *load, float rate, int relative, int E);

    /* ---- route_round: a plan whose experts have whole tiles -------------------------------------
     * choice (N,K) is router_forward's. Every expert ranks all tokens: those that chose it before
     * those that did not; then by score, logit - lse (sigmoids: logit) as a float without its last
     * bit; then the lower token. It keeps the first ones: f rounded to the nearest multiple of the
     * tile; if f rounded up is more than N, those that chose it. A token's slots are the experts
     * that keep it, in ascending order, possibly none.
     * Fills plan, with first; expert (S); weight (S) as in router_forward, over the experts that
     * keep the token; load (E): choices per expert.
     * error: weight 8 eps_f32, the rest exact.   Source: SonicMoE, arXiv 2512.14080 */
    void (*route_round)(OUT Plan *plan, OUT int *load, OUT int *expert, OUT real *weight, const int *choice,
                        const floatX *logits, const real *lse, Scores scores, int tile);

    /* ---- norm_rope: rmsnorm of every head, then rope, in place ----------------------------------
     * x (N,stride): the first heads*D of each row are heads of D; norm.weight (D), for all of them.
     * before (N,heads,D), or NULL: what x held, for backward, where the gradient dx of the result
     * becomes that of x.   error: 4 eps, backward 16 eps (norm-wise).   Source: arXiv 2505.09388 */
    void (*norm_rope_forward )(floatX *x, OUT floatX *before, const real *table, const int *position, Norm norm, int N,
                               int stride, int heads, int D);
    void (*norm_rope_backward)(floatX *dx, ACC real *dweight, const floatX *before, const real *table,
                               const int *position, Norm norm, int N, int stride, int heads, int D);

    /* ---- columns of a wider matrix.   x (N,stride)   part (N,width) -----------------------------
     * columns_add: x[n,from+i] += part[n,i].   columns_put: x[n,from+i] = part[n,i].
     * columns_take: part[n,i] = x[n,from+i].   error: one rounding; exact; exact */
    void (*columns_add )(ACC floatX *x, const floatX *part, int N, int stride, int from, int width);
    void (*columns_put )(floatX *x, const floatX *part, int N, int stride, int from, int width);
    void (*columns_take)(OUT floatX *part, const floatX *x, int N, int stride, int from, int width);

    /* ---- values from a table: kv[n,1,g] += 2 sigmoid(gate[n,g]) table[token[n],g] ---------------
     * kv (N,2,G,D)   gate (N,G), or NULL: then the factor is 1   table (V,G,D)   token (N)
     * backward, with a gate: dvalues (N,G,D), of the rows, dgate (N,G).   error: eps + 8 eps_f32,
     * dgate eps + (8 + 2 sqrt(D)) eps_f32
     * Source: Zhou et al. 2024, arXiv 2410.17897; gates: modded-nanogpt */
    void (*value_forward )(ACC floatX *kv, const floatX *gate, const int *token, const floatX *table, int N, int G,
                           int D);
    void (*value_backward)(OUT floatX *dvalues, OUT floatX *dgate, const floatX *dkv, const floatX *gate,
                           const int *token, const floatX *table, int N, int G, int D);

    /* ---- mix: x goes through it, in place.   x, d (N,C), scalars (3), see Mix -------------------
     * backward: out is what forward returned, and d its gradient, which becomes that of x:
     * dfirst += scalars[1] d, dextra += (1 + scalars[2]) d, dscalars += <d, exp(scalars[0]) x>,
     * <d, first>, <d, extra>.   error: eps + 8 eps_f32; dscalars (24 + 8 sqrt(N C)) eps_f32 */
    void (*mix_forward )(ACC floatX *x, Mix mix, int N, int C);
    void (*mix_backward)(ACC floatX *d, ACC floatX *dfirst, ACC floatX *dextra, ACC real *dscalars, const floatX *out,
                         Mix mix, int N, int C);

    /* ---- bigrams: rows of a table for pairs of tokens -------------------------------------------
     * before[n] = 1 + the token before token[n] in its sample, 0 if position[n] is 0. That is in
     * token[n-1] if T > 1. Otherwise it is at seen[at[n] - 1]: seen[at[n]] = token[n] is stored, if
     * at is not NULL. row[n] = random_bits(before << 32 | token, 2^32) / 2^33 % rows.
     * flip_signs: x[n,c] = -x[n,c] where bit c % 64 of random_bits(the same, c / 64) is 1, so that
     * pairs that share a row use it in different ways. Its own backward.   error: exact
     * Source: modded-nanogpt, pull requests 201 and 299 */
    void (*bigram_rows)(OUT int *row, OUT int *before, ACC int *seen, const int *token, const int *position,
                        const int *at, int N, int T, int rows);
    void (*flip_signs)(floatX *x, const int *token, const int *before, int N, int C);

    /* ---- shift_keys: a part of each key is that of the token before -----------------------------
     * kv (N,2,G,D): in its keys, channels D/4 .. D/2-1 and 3D/4 .. D-1 become those of before[n],
     * or of own[n] where position[n] is 0.   own, before (N,G,D)   D a multiple of 4
     * before NULL: backward. kv is the gradient of that, and own a copy of its keys; token n was
     * before n + 1 unless position[n+1] is 0.   error: exact; backward one rounding
     * Source: the key offset of modded-nanogpt, pull request 169 */
    void (*shift_keys)(floatX *kv, const floatX *own, const floatX *before, const int *position, int N, int G, int D);

    /* ---- shared keys: keys have a part that all heads share, and values may be narrower ---------
     * kv[n,0,g] = parts[n,g,0..key-1], shared[n]   kv[n,1,g] = parts[n,g,key..key+value-1], zeros
     * kv (N,2,G,D)   parts (N,G,key+value)   shared (N,D-key)   0 < key < D, 0 < value <= D
     * backward: dparts, and dshared, the sum over g.   error: exact; dshared G eps_f32 + eps
     * Source: DeepSeek-V2, arXiv 2405.04434 */
    void (*shared_keys_forward )(OUT floatX *kv, const floatX *parts, const floatX *shared, int N, int G, int D,
                                 int key, int value);
    void (*shared_keys_backward)(OUT floatX *dparts, OUT floatX *dshared, const floatX *dkv, int N, int G, int D,
                                 int key, int value);

    /* ---- sink: every query sees one more key, whose score is learned and whose value is zero ----
     * H = Q*G query heads   sink (H)   attention_forward's out (N,H,D) and lse (N,H) become
     *     all = log(exp(lse) + exp(sink))   out *= exp(lse - all)   lse = all
     * With these attention_backward returns the right dq and dkv. backward: dsink -= sum over n of
     * exp(sink - lse) <dout, out>.   error: forward out 2 eps + 16 eps_f32, lse 8 eps_f32; backward
     * (2 sqrt(N D) + 18) eps_f32.   Source: gpt-oss, arXiv 2508.10925 */
    void (*sink_forward )(ACC floatX *out, ACC real *lse, const floatX *sink, int N, int H, int D);
    void (*sink_backward)(ACC real *dsink, const floatX *dout, const floatX *out, const real *lse, const floatX *sink,
                          int N, int H, int D);

    /* ---- bias: x[n,c] += bias[c].   x (N,C)  bias (C).   error: one rounding --------------------
     * backward: dbias[c] += sum over rows of dout.   dbias (C)  dout (N,C).   error: N eps_f32 */
    void (*bias_forward )(ACC floatX *x, const floatX *bias, int N, int C);
    void (*bias_backward)(ACC real *dbias, const floatX *dout, int N, int C);

    /* ---- biases of experts: x[row of e] += bias[e].   x (S,O) GROUPED   bias (E,O) --------------
     * backward: dbias[e] += sum over the rows of e of w dout, dout (S,O) GROUPED or (N,O) BY_TOKEN,
     * w the weight of the row's slot. If x is weighted after that, weight (S) is given and dweight
     * (S) += <dout, bias[e]>; else both are NULL, and w is 1.
     * error: one rounding; backward S eps_f32; dweight O eps_f32 */
    void (*expert_bias_forward )(ACC floatX *x, const floatX *bias, const Plan *plan, int O);
    void (*expert_bias_backward)(ACC real *dbias, ACC real *dweight, const floatX *dout, const floatX *bias,
                                 const real *weight, const Plan *plan, int O, Rows dout_rows);

    /* x = cap * tanh(x / cap), in place.   error: 2 eps + 4 eps_f32.   Source: arXiv 2408.00118 */
    void (*soft_cap)(floatX *x, float cap, size_t n);

    /* ---- Muon: matrices of equal shape ----------------------------------------------------------
     * m = beta m + (1-beta) g,  O = orthogonalize(a m + (1-a) g), a: Nesterov's beta, or 1,
     * w = w (1 - lr decay) - lr 0.2 sqrt(max(rows, columns)) O
     *
     * muon_momentum: g = gradient * min(1, clip/norm); m of each part, and a m + (1-a) g at
     *   x + muon_offset. x NULL: only m, with the same bits. grads NULL: m stays, and is x.
     * orthogonalize: b.out = for each of `count` matrices x of b.x: x_0 = x / |x| (Frobenius), five
     *   times A = x_i x_i^T, x_i+1 = (a I + b A + c A A) x_i; a, b, c = 3.4445, -4.7750, 2.0315.
     *   With more rows than columns A = x_i^T x_i, and the polynomial is the right factor. Zeros
     *   stay zeros, and what has a squared norm of at most MUON_LEAST counts as zeros. b.x and the
     *   other buffers are scratch. d: the device itself.
     * muon_scale (NorMuon): of each matrix O of out, q_i = mean square of row i, or of column i if
     *   there are more columns than rows; u = beta u + (1-beta) q, at squares + parts[e].squares;
     *   s_i = 1 / sqrt(max(u_i, MUON_LEAST_SQUARE)); scale_i = s_i sqrt(sum q / sum q s^2). beta:
     *   a.second; scale (count, max(rows, columns)). Rows become about equally long, and O stays as
     *   long as it was (Frobenius). Scales of zeros are 0.
     * muon_update: of each part w, with out + muon_offset as its part of O. scale: NULL, or what
     *   multiplies each row, or column, of O. master, and rounding without it: as adamw.
     *
     * Or m is where gradients of micro-batches are added up, each as soon as it is complete:
     *
     * muon_limits: of `count` tensors, at most MUON_LIMITED, whose gradients have norm n; r:
     *   norms[0] / norms[1], 0 / 0: none. l = min(1, a.most r / n), 1 without r or a.most.
     *   factors = (added ? 1 : beta, (1-beta) l), added = 1; unless n = 0, norms = rho norms +
     *   (1-rho) (n l, 1), rho = MUON_NORM_DECAY. Where n is not finite, sq_norms goes to faults
     *   and to *fault. Once that is not 0, factors are (1, 0), and nothing else changes. norms
     *   NULL: only the faults. factors, norms (count, 2)
     * muon_add: of each tensor's part m = factors[0] m + factors[1] gradient; where that is (1, 0)
     *   m stays. But for REAL rounded stochastically, by key, in device memory, and the element.
     *
     * parts: matrices or parts of some, in device memory; most: elements of the largest; count: at
     * most MUON_MATRICES. grad_sq_norm: of all gradients; if it is not finite, m, squares and w
     * stay. a: in device memory. Source: Jordan 2024, kellerjordan.github.io/posts/muon; scale of
     * the update: Moonlight, arXiv 2502.16982; muon_scale: arXiv 2510.05491.
     * error: m and x 8 eps_f32, as floatX eps more; orthogonalize 100 eps_f32 + 20 eps, norm-wise,
     * as each step multiplies the error of a small singular value by up to 3.44; scale and squares
     * 8 eps_f32; w 8 eps_f32, 2 eps more where rounded stochastically */
    void (*muon_momentum)(OUT floatX *x, ACC Momentum m, const void *grads, const real *grad_sq_norm,
                          const Segment *parts, int count, size_t most, const Muon *a);
    void (*muon_limits)(OUT real *factors, ACC real *norms, ACC real *added, ACC real *faults, ACC real *fault,
                        const real *sq_norms, int count, const Muon *a);
    void (*muon_add)(ACC Momentum m, const void *grads, const real *factors, const Segment *parts, int count,
                     size_t most, const uint64_t *key);
    void (*orthogonalize)(const Device *d, const MuonBuffers *b, int count, int rows, int columns);
    void (*muon_scale)(OUT real *scale, ACC real *squares, const floatX *out, const real *grad_sq_norm,
                       const Segment *parts, int count, int rows, int columns, const Muon *a);
    void (*muon_update)(ACC floatX *weight, ACC real *master, const floatX *out, const real *scale,
                        const real *grad_sq_norm, const Segment *parts, int count, int rows, int columns,
                        const Muon *a);

    /* ==== the device beside its operations ==================================================== */
    /* post queues a copy to the host; collect waits for it, but not for work that was queued after
     * it. slot: 0 or 1, so that two copies can be in flight. */
    void  (*post)(int slot, const void *src, size_t bytes);
    void  (*collect)(void *host, int slot, size_t bytes);

    /* Copies of much memory, to and from memory of the host that the device reaches directly.
     * host_lock, by any thread, prepares a piece: at most HOST_PIECE bytes, which do not cross a
     * multiple of it; near: memory of the device. 0: the system refuses. Tens of GB take seconds.
     * copy_out, to consecutive pieces, starts after all work queued so far and runs beside work
     * that is queued later, which leaves src as it is until copied(0): what is queued after that
     * starts when all such copies are complete. copied(1): the host waits for them. copy_in, from
     * consecutive pieces, is in the order of other work; host stays as it is until sync. */
    int   (*host_lock)(const void *near, void *host, size_t bytes);
    void  (*host_unlock)(void *host);
    void  (*copy_out)(void *host, const void *src, size_t bytes);
    void  (*copy_in)(void *dst, const void *host, size_t bytes);
    void  (*copied)(int host_waits);

    Waits (*waits)(void);                                   /* so far: by sync; by download, collect and *_to_double */
    /* What the program is about to do, for error messages of the device. Copied. NULL on a CPU. */
    void  (*set_activity)(const char *what);
    /* mark(i), i = 0, 1, ..., records the time when all work queued before it is done; after sync,
     * elapsed returns the seconds between two marks. NULL on a CPU: calls return with work done. */
    void   (*mark)(int i);
    double (*elapsed)(int from, int to);

    /* ---- recording: work is queued once without being done, then done as a whole any number of
     * times: starting a kernel costs the host microseconds, and a recording of a thousand as much.
     * Work must have run with the same sizes before it is recorded, because libraries are opened
     * and scratch memory grows at that time. Between begin and end only operations, copy and zero
     * are allowed: nothing that allocates, waits, or uploads. A replay does the same at the same
     * addresses; values that differ between replays must be read from memory. If recording fails
     * nothing was done: queue the work again. All four are NULL on a CPU. */
    const char *(*record_begin)(void);                             /* NULL, or why it cannot record */
    Recording  *(*record_end)(const char **why);                /* NULL, and why, if something could not be recorded */
    void (*replay)(const Recording *r);
    void (*record_free)(Recording *r);

    /* Connects all ranks: each calls it in its thread, after open. NULL, and why, if it fails. */
    Comm *(*connect)(Group *group, char why[256]);
};

/* ---- a few tokens: a layer of decoding in five launches -----------------------------------------
 * Operations of Device, several fused into one and rounded as they round (`out` may skip roundings
 * within its sum), for devices where starting them one by one would take longer than the work.
 * fits: can N tokens of C channels and experts of width F, weights in this format, use these (all
 *   other widths must be multiples of F or C)? If not, call the operations they are made of.
 * in: x = rmsnorm_forward(inp, norm); choice = router_forward(x router.weight^T, ...), weight times
 *   router.scale; out (N,K,O) by slot = f(x w[expert]^T + bias[expert]), w (E,O,C), or (E,2O,C) for
 *   a gated f; bias (E,O) or (E,2O), or NULL; plain (N,P) = x plain_w^T; without plain_w P is 0.
 *   plain_w is of w's format, and rows of codes are multiples of 16, in 4 bits of 32. next: none,
 *   or the weights `out` will read, next_size elements for each expert; those of the chosen experts
 *   are prefetched.
 * out: out (N,O) = residual + scale (bias + sum_k weight[n,k] (inp[slot n*K+k] w[expert]^T +
 *   expert_bias[expert])).   inp (N*K,C)  w (E,O,C)  expert_bias (E,O), bias (O), or NULL. scale 0:
 *   none. choice: that of the last `in`, or NULLs: one expert. out may be residual.
 * attention: `heads`, as bias_forward, columns_add and the norms; rope(q), rope of the keys in kv;
 *   of own_keys, unless NULL, shift_keys with before = row row[b] of it, and the key as it was is
 *   stored in row row[b] + 1; cache_store(kv), attention_cached. kv (B,2,G,D)  row (B). position,
 *   row, token, own_keys and the cache must be complete before the PREVIOUS operation is queued:
 *   this one reads them early. Of own_keys only what shift_keys moves is read and stored; with it D
 *   is a multiple of 8. */
struct DecodeOperations {
    int  (*fits)(int N, int C, int F, int E, int K, Format format);
    void (*in )(OUT floatX *out, OUT floatX *plain, OUT Choice choice, const floatX *inp, Norm norm, Router router,
                Weight w, const floatX *bias, Weight plain_w, Weight next, size_t next_size, Activation f,
                int N, int C, int O, int P);
    void (*out)(OUT floatX *out, const floatX *residual, const floatX *inp, Choice choice, Weight w,
                const floatX *expert_bias, const floatX *bias, float scale, int N, int E, int K, int C, int O);
    void (*attention)(OUT floatX *out, floatX *cache, const floatX *q, const floatX *kv, const NewHeads *heads,
                      const real *table, const int *position, const int *row, int window, HeadOrder order, int B, int T,
                      int G, int Q, int D);
};

/* ---- experts in 8 bits: the products of gated experts (SWIGLU) on values of Fp8 -----------------
 * fits: can experts of F columns in a model of C channels use these? C and F must be multiples of
 * 128, and a GPU must be a Hopper. A product is the sum, over blocks of 128 of the reduction, of a
 * block's sum of products of codes times the two scales, as real. d is the device itself.
 *
 * rows: out = inp (N,C).  weight: out = weight (E,O,C), transposed (E,C,O): the same.  error: exact
 * up_forward: as expert_up_forward, inp (N,C) BY_TOKEN, weight (E,2F,C). act (S,F) is made from pre
 *   as it is stored, in real, and is rounded once, to its code.
 * linear: out (S,O) = inp (S,C) weight[e]^T, GROUPED. With a transposed weight it is
 *   parallel_linear_backward_input.
 * down_backward: as expert_down_backward, dout (N,C) BY_TOKEN, down (E,F,C) the transposed weight.
 *   da = dout down[e]^T is rounded to floatX; what is made of it, in real, once. dpre (S,2F) and
 *   wact (S,F): in 8 bits, as floatX, or both; codes or pointers that are NULL are not written.
 * columns: inp, (N,C) BY_TOKEN or (S,C) GROUPED, transposed within blocks of 128 rows of an expert.
 *   out.code (blocks, C, 128)  out.scale (blocks, C/128)   blocks: fp8_blocks(S, E). A block's
 *   scale is the largest of its rows', or NaN if one of those is; a code is that of its row's times
 *   row's scale / block's, nearest even: exact, unless it becomes subnormal. Signs of zeros stay.
 *   Rows after an expert's last have codes 0, and their scales do not count.   error: exact
 * backward_weight: dweight (E,O,C), as parallel_linear_backward_weight, of columns of dout (.,O)
 *   and inp (.,C).
 * cross_entropy: dlogits (N,V) = rows of the gradient that cross_entropy makes, and the loss. V: a
 *   multiple of 128.   error: as cross_entropy, and one unit in the last place of codes
 * error of products: as matmul, eps more because Hopper's sums have 14 bits within a block; of
 * codes: one unit in the last place. Source: DeepSeek-V3, arXiv 2412.19437, section 3.3 (blocks);
 * powers of two: Wang et al. 2025, FP8-Flow-MoE, arXiv 2511.02302. */
struct Fp8Operations {
    int  (*fits)(int C, int F);
    void (*rows)(OUT Fp8 out, const floatX *inp, int N, int C);
    void (*weight)(OUT Fp8 out, OUT Fp8 transposed, const floatX *weight, int E, int O, int C);
    void (*up_forward)(const Device *d, OUT floatX *pre, OUT Fp8 act, Fp8 inp, Fp8 weight, const Plan *plan,
                       int C, int F);
    void (*linear)(const Device *d, OUT floatX *out, Fp8 inp, Fp8 weight, const Plan *plan, int C, int O);
    void (*down_backward)(const Device *d, OUT floatX *dpre, OUT Fp8 dpre8, OUT floatX *wact, OUT Fp8 wact8,
                          OUT real *dweight, Fp8 dout, Fp8 down, const floatX *pre, const real *weight,
                          const Plan *plan, int C, int F);
    void (*columns)(OUT Fp8 out, Fp8 inp, const Plan *plan, int C, Rows inp_rows);
    void (*backward_weight)(const Device *d, void *dweight, Fp8 dout, Fp8 inp, const Plan *plan, int C,
                            int O, Write how);
    void (*cross_entropy)(const Device *d, OUT real *loss, OUT Fp8 dlogits, const floatX *logits, const int *target,
                          const int *position, const real *scale, float cap, int N, int V, int used);
};

static inline size_t dtype_size(const Device *dev, Dtype s) {
    return s == REAL ? dev->real_size : s == INT8 ? 1 : dev->floatX_size;
}

/* The i-th device, best first; NULL past the end. First called before there are threads. */
const Device *device_list(int i);
const Device *device_find(const char *name);    /* NULL if this build has no device of that name */
