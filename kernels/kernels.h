/* kernels.h: everything a device can do. The only interface between llmc/ and kernels/.
 *
 * A Device is a table of functions. kernels/cpu/ fills one per number type (f32, bf16, f64), kernels/cuda/ likewise;
 * the model is written once against the table. To add an operation: document it here, define it for every device,
 * add a case to tests/ops/cases.c.
 *
 * True for every function:
 *   - outputs first, then inputs, then sizes; matrices are row-major; weights are (out, in), as in the files on disk;
 *   - OUT is overwritten, ACC is accumulated into, the rest is only read; outputs overlap nothing unless it says so;
 *   - offsets are computed in 64 bits; any size from 0 (rows) or 1 (columns) up is an ordinary input;
 *   - sums run in `real` and in an order that depends on the sizes only: same inputs, same bits, any thread count;
 *   - work is queued on the device's one stream. Only download, sync and the *_to_double functions wait;
 *   - what changes from step to step (data, dropout's key, the optimizer's settings) is read from device memory, not
 *     passed by value, so that a step can be recorded once and replayed.
 *
 * Sizes: B sequences, T tokens in each, N = B*T tokens, C channels, V vocabulary,
 *        E experts, K experts per token, S = N*K slots, F expert width, O outputs of a product,
 *        G key/value heads, Q query heads per key/value head, D head size.
 *
 * A slot is a (token, choice) pair: slot s = n*K + k. A row is a place in expert order: the rows of expert e are
 * [start[e], start[e+1]), and within an expert they keep slot order. Where routing is rounded (Rounding) tokens own as many
 * slots as experts took them, and S is the most there can be: buffers have S rows, of which start[E] are used.
 *
 * Error bounds are relative to the same operation in f64 on the same inputs, and hold for f32 (unit: eps = 2^-24)
 * and bf16 (eps = 2^-8, one rounding of each stored value) alike; "exact" means bit for bit. */
#ifndef KERNELS_H
#define KERNELS_H
#include <stddef.h>
#include <stdint.h>

#ifndef KERNELS_IMPLEMENTATION          /* the host moves these, it never looks inside */
typedef struct floatX floatX;           /* weights and activations: f32, bf16 or f64 */
typedef struct real   real;             /* statistics, routing weights, gradients of weights: f32, or f64 on cpu-f64 */
#endif
#define OUT                             /* x  = ... */
#define ACC                             /* x += ... */

/* How the rows of a ParallelLinear operand lie in memory. */
typedef enum {
    BY_TOKEN,                           /* (N,.)  one row per token, read by each of its K slots */
    BY_SLOT,                            /* (S,.)  row of slot n*K + k */
    GROUPED                             /* (S,.)  sorted by expert */
} Rows;

/* One router's decision about one batch, as every ParallelLinear of its layer needs it. Filled by route_plan. */
typedef struct {
    int N, E, K, S;
    int *start;                         /* (E+1)  rows of expert e: start[e] .. start[e+1]-1 */
    int *slot_of_row, *token_of_row;    /* (S)    token = slot / K, unless rounded */
    int *row_of_slot;                   /* (S)    the inverse of slot_of_row */
    int *first;                         /* (N+1)  slots of token n: first[n] .. first[n+1]-1; NULL: n*K .. n*K + K-1 */
} Plan;

/* The nonlinearity of an expert. `pre` is what the up projection makes: gate and up halves for the gated kind. */
typedef enum {
    SWIGLU,                             /* act = silu(gate) * up      pre (.,2F): gate columns first */
    GELU,                               /* act = gelu(pre), tanh form pre (.,F) */
    RELU2,                              /* act = max(pre,0)^2         pre (.,F) */
    IDENTITY                            /* act = pre                  pre (.,F): attention experts have none */
} Activation;

/* From router logits to the K weights of a token. Experts are chosen by the largest score + bias; where those are
 * equal by the larger logit, then the lower id.
 * p = softmax(logits) over all E, T the chosen set. */
typedef enum {
    TOPK_SOFTMAX,                       /* weight = softmax of the K chosen logits (JetMoE, Mixtral, Granite) */
    SOFTMAX_TOPK,                       /* weight = p of the chosen, sums to less than one (OLMoE, Switch) */
    SIGMOID_TOPK                        /* weight = sigmoid(logit), renormalized over the chosen (DeepSeek-V3) */
} Scores;

/* Products take rows by the tile, and an expert's last one is seldom full. Rounding the routing to whole tiles makes it so
 * while a model is trained. Of an expert that f tokens chose, with lo <= f <= hi the multiples of the tile around f, it keeps */
typedef enum {
    ROUND_OFF,                          /* f */
    ROUND_NEAREST,                      /* the nearer one; lo in the middle */
    ROUND_STOCHASTIC,                   /* hi with probability (f - lo) / tile: f on average */
    ROUND_SCORE,                        /* the same of probabilities instead of tokens: what the tokens have that lo would
                                         * drop, over that of them and those that hi would add */
    ROUND_BALANCED,                     /* the one with which all experts up to here, together, are nearest to their choices */
    ROUND_UP, ROUND_DOWN                /* hi; lo */
} Rounding;
enum { ROW_TILE = 128 };                    /* rows that the products of a GPU take at a time */

/* Which key/value head a query head attends with. */
typedef enum {
    HEADS_TILED,                        /* head r*G + g uses g: the K slots of a mixture of attention heads (JetMoE) */
    HEADS_GROUPED                       /* head g*Q + r uses g: grouped-query attention (Llama, Mixtral) */
} HeadOrder;

/* An RMSNorm: weight (C). */
typedef struct { const floatX *weight; float eps; } Norm;

/* A router: weight (E,C), bias (E) or NULL, added to the scores for choosing only. weight NULL: there is none, E = K = 1. */
typedef struct { const floatX *weight; const real *bias; Scores scores; int E, K; } Router;

/* What it chose for N tokens: (N,K) each. */
typedef struct { int *expert; real *weight; } Choice;

/* Dropout at one site of the model. p in [0,1); key: of this batch, in device memory; NULL if p is 0. site: a number that no
 * other site has. */
typedef struct { float p; const uint64_t *key; int site; } Dropout;

/* A sub-layer's result before it is summed. Forward, the answers of a token's experts: rows by weight, plus bias. Backward,
 * the addends of the gradient of its input: rows, and products that are still to be made. */
typedef struct { const floatX *dout, *weight; int O; } Term;   /* dout weight, of (N,O) and (O,C) */
typedef struct {
    const floatX *rows;                 /* (S,C) GROUPED, or, without a plan, (N,C); NULL: none */
    const Plan   *plan;
    const real   *weight;               /* (S)  NULL: ones */
    const floatX *bias;                 /* (C)  NULL: zeros */
    Term term[2];  int terms;
} Sum;
static inline void sum_add(Sum *s, const floatX *dout, const floatX *weight, int O) {
    s->term[s->terms].dout = dout, s->term[s->terms].weight = weight, s->term[s->terms].O = O;
    s->terms++;
}

/* Overwrite or accumulate, where a caller needs both; and, of gradients of weights, overwrite as floatX: one rounding more. */
typedef enum { SET, ADD, SET_ROUNDED } Write;

typedef enum { REAL, FLOATX } Dtype;     /* what an array of numbers that a caller chooses the type of is made of */

/* A learnable tensor, or a rank's share of one, as the optimizer sees it: a range of the flat parameter arena. */
typedef struct {
    size_t offset, count;               /* elements; of the weight */
    float  decay;                       /* 0 or 1 */
    size_t shift;                       /* master, m and v begin at offset - shift: of ranks that share the optimizer's
                                         * state each keeps its own parts only, one after the other */
    Dtype dtype;                      /* what its gradient is made of, */
    size_t gradient;                    /* and where that begins, in elements of that kind; aligned as the weight is */
    float  rate;                        /* of the learning rate */
    size_t without_v;                   /* elements before it that have no v: v begins at offset - shift - without_v */
    size_t at;                          /* of a matrix, or a part of one: where it is in Muon's buffers */
} Segment;
typedef struct {
    float lr, beta1, beta2, eps, decay; /* decay: decoupled, multiplied by the segment's */
    float clip;                         /* largest global gradient norm; 0: no clipping */
    double fix1, fix2;                  /* 1 / (1 - beta^t) at update t = 1, 2, ...: m and v start at zero */
    uint64_t key;                       /* of this update's stochastic rounding */
} AdamW;

typedef struct {
    float lr, momentum, decay, clip;    /* as AdamW's; momentum: of the running mean of gradients */
    uint64_t key;
} Muon;
enum { MUON_STEPS = 5 };                /* of Newton and Schulz */
/* What Muon needs for `count` matrices of rows x columns at a time; k: the smaller side. */
typedef struct {
    floatX *x, *out;                    /* (count, rows, columns) momentum; the same with singular values near 1 */
    floatX *gram, *square;              /* (count, k, k) */
    real   *sums;                       /* (count, MUON_SUMS) */
    int    *start;                      /* (2, count + 1) */
} MuonBuffers;
enum { MUON_SUMS = 32, MUON_MATRICES = 1 << 15 };         /* count: at most so many */

typedef struct Recording Recording;     /* work that can be replayed; the device's own */
typedef struct { int64_t syncs, reads; } Waits;     /* how often the host waited for the device, and read from it */

typedef struct Comm Comm;               /* one rank among several, and */
typedef struct Group Group;             /* how their hosts reach each other: kernels/comm.h */

/* How the next token is drawn: from the most likely ones, as few as have probability top_p together, at most top_k, none
 * less likely than min_p times the largest. */
typedef struct {
    float temperature;                  /* 0: the most likely token */
    float top_p, min_p;                 /* 1, 0: off */
    int   top_k;                        /* 0: off */
} Sampler;

typedef struct Device Device;
struct Device {
    const char *name;                   /* "cpu-f32", "cuda-bf16", ... */
    const char *dtype;                  /* of floatX in files: "F32", "BF16", "F64" */
    size_t floatX_size, real_size;      /* bytes */
    int    is_gpu;

    /* ---- memory: pointers are the device's; host pointers are called host ------------------------------------- */
    /* For the calling thread: everything else it calls works on the which-th of them. NULL if usable, else why not. */
    const char *(*open)(int which);
    int   (*count)(void);                                          /* GPUs here; a CPU is one, which threads may share */
    void *(*alloc)(size_t bytes);                                  /* zeroed; NULL when there is not enough */
    void  (*release)(void *p);
    size_t (*memory)(void);                                        /* bytes that alloc could give now; 0: unknown */
    void  (*upload)(void *dst, const void *host, size_t bytes);
    void  (*download)(void *host, const void *src, size_t bytes);
    void  (*copy)(void *dst, const void *src, size_t bytes);
    void  (*zero)(void *dst, size_t bytes);
    void  (*sync)(void);                                           /* wait until all queued work is done */
    void  (*from_double)(floatX *dst, const double *host, size_t n);   /* rounds to nearest even */
    void  (*to_double)(double *host, const floatX *src, size_t n);
    void  (*reals_from_double)(real *dst, const double *host, size_t n);
    void  (*reals_to_double)(double *host, const real *src, size_t n);

    /* post: a copy to the host begins when its turn comes; collect: waits for it, and for nothing that was queued after
     * it. slot: 0 or 1, so that two can be under way. */
    void  (*post)(int slot, const void *src, size_t bytes);
    void  (*collect)(void *host, int slot, size_t bytes);

    Waits (*waits)(void);                                          /* so far: by sync; by download and *_to_double */
    /* What the program is about to do, in a few words, for messages about errors of the device; kept until the next call.
     * NULL on a CPU, which has no such errors. */
    void  (*set_activity)(const char *what);
    /* mark(i) notes the moment when all work queued before it is done; after sync, elapsed tells the seconds between
     * two of them. i counts from 0. NULL on a CPU, where calls return when their work is done. */
    void   (*mark)(int i);
    double (*elapsed)(int from, int to);

    /* ---- recording: work is queued once without being done, then done as a whole as often as wanted ---------------
     * Starting a kernel costs the host microseconds; starting a recording of a thousand of them costs as much as one.
     * To be recorded, work must have run before with the same sizes (that is when libraries are opened and scratch
     * memory grows), and between begin and end only operations, copy and zero are allowed: nothing that allocates,
     * waits, or sends from the host. A replay does the same on the same addresses; what is to differ must be read from
     * memory. Where work cannot be recorded nothing was done: queue it again. All four are NULL on a CPU. */
    const char *(*record_begin)(void);                             /* NULL if it records now, else why it cannot */
    Recording  *(*record_end)(const char **why);                   /* NULL, and why, if something could not be recorded */
    void (*replay)(const Recording *r);
    void (*record_free)(Recording *r);
    /* ---- ranks: a Comm with all other ranks, which call this too, each in its own thread after open. NULL and why
     * if that cannot be. */
    Comm *(*connect)(Group *group, char why[256]);

    /* ---- embedding: out[n] = weight[token[n]].   out (N,C)  weight (V,C)  token (N) in [0,V) -------------------
     * error: forward exact; backward N*eps */
    void (*embed_forward )(OUT floatX *out, const int *token, const floatX *weight, int N, int C);
    void (*embed_backward)(ACC real *dweight, const floatX *dout, const int *token, int N, int V, int C);

    /* ---- rmsnorm: out = round(inp * rstd) * weight, rstd = 1/sqrt(mean(inp^2) + eps) ----------------------------
     * out, inp (N,C)  rstd (N), saved for backward. The inner rounding to floatX is Hugging Face's.
     * Source: Zhang and Sennrich 2019, arXiv 1910.07467.   error: 4 eps forward, 8 eps backward (norm-wise) */
    void (*rmsnorm_forward )(OUT floatX *out, OUT real *rstd, const floatX *inp, Norm norm, int N, int C);
    void (*rmsnorm_backward)(ACC floatX *dinp, ACC real *dweight, const floatX *dout, const floatX *inp,
                             Norm norm, const real *rstd, int N, int C);

    /* ---- rope: rotate pairs (i, i + D/2) of each head by position * theta^(-2i/D), in place ---------------------
     * table (T,D/2,2) cos and sin for positions 0..T-1.   x (N,stride), of which the first heads*D of each row are
     * rotated.   position (N).   direction +1, or -1 to undo (which is also the backward). D even.   error: 2 eps
     * Source: Su et al. 2021, arXiv 2104.09864. */
    void (*rope_table)(OUT real *table, float theta, int T, int D);
    void (*rope)(floatX *x, const real *table, const int *position, int direction, int N, int stride, int heads, int D);

    /* ---- residual and dropout: out = residual + drop(branch), drop(x) = x * mask / (1-p) ------------------------
     * mask[i] is a function of (*key, site, i) alone: keep if random_16 >= p * 2^16 (kernels/cpu/basic.c).
     * dropout is its own backward. out may be inp or residual.   error: one rounding */
    void (*residual)(OUT floatX *out, const floatX *residual, const floatX *branch, Dropout d, size_t n);
    void (*dropout )(OUT floatX *out, const floatX *inp, Dropout d, size_t n);

    /* ---- matmul: out = inp weight^T.   out (N,O)  inp (N,C)  weight (O,C) ---------------------------------------
     * dweight: of reals, or, how SET_ROUNDED, of floatX.   error: sqrt(reduction) * 2 eps_f32 + eps */
    void (*matmul_forward        )(OUT floatX *out, const floatX *inp, const floatX *weight, int N, int C, int O);
    void (*matmul_backward_input )(floatX *dinp, const floatX *dout, const floatX *weight, int N, int C,
                                   int O, Write how);
    void (*matmul_backward_weight)(void *dweight, const floatX *dout, const floatX *inp, int N, int C, int O,
                                   Write how);

    /* ---- ParallelLinear: every slot's row times its expert's matrix, out = inp weight[e]^T ----------------------
     * weight (E,O,C).   inp: any Rows layout;   out: BY_SLOT or GROUPED.
     * Rows are read and written where they lie: nothing is padded, sorted or copied in memory.
     * backward_input is the same product with weight[e]: dout in any layout (BY_TOKEN: one upstream row serves the K
     * slots of its token), dinp BY_SLOT or GROUPED; what a BY_TOKEN input needs, the sum over K, is combine_forward.
     * backward_weight: dweight[e] = or += sum over the rows of e of dout^T inp; of an empty expert: zeros.
     * Source: Tan et al. 2024, ScatterMoE, arXiv 2403.08245.   error: as matmul; cost 2*S*C*O flop each */
    void (*parallel_linear_forward        )(OUT floatX *out, const floatX *inp, const floatX *weight,
                                            const Plan *plan, int C, int O, Rows inp_rows, Rows out_rows);
    void (*parallel_linear_backward_input )(OUT floatX *dinp, const floatX *dout, const floatX *weight,
                                            const Plan *plan, int C, int O, Rows dinp_rows, Rows dout_rows);
    void (*parallel_linear_backward_weight)(void *dweight, const floatX *dout, const floatX *inp,
                                            const Plan *plan, int C, int O, Rows inp_rows, Rows dout_rows,
                                            Write how);

    /* ---- router: choose K of E experts for every token -----------------------------------------------------------
     * logits (N,E)   bias (E) or NULL: added to the scores for choosing only (balancing without a loss)
     * expert (N,K) by descending score + bias   weight (N,K)   lse (N) log sum exp of the logits, for the losses
     * forced: slot s takes expert s mod E instead (benchmarks: perfect balance)
     * backward: dlogits from dweight, plus the gradients of balance * balance_loss and zloss * z_loss (see
     * router_losses), load counted as constant. first: the plan's, or NULL.   error: expert exact, the rest 8 eps_f32 */
    void (*router_forward )(OUT int *expert, OUT real *weight, OUT real *lse, const floatX *logits, const real *bias,
                            Scores scores, int forced, int N, int E, int K);
    void (*router_backward)(OUT floatX *dlogits, const real *dweight, const real *weight, const real *lse,
                            const int *expert, const int *first, const floatX *logits, const int *load, float balance,
                            float zloss, int tokens, Scores scores, int N, int E, int K);

    /* ---- route_plan: stable counting sort of the S slots by expert ------------------------------------------------
     * fills plan (whose arrays the caller owns; N, E, K, S set) and load (E), slots per expert.   error: exact */
    void (*route_plan)(OUT Plan *plan, OUT int *load, const int *expert);

    /* ---- route_round: a plan whose experts have whole tiles ---------------------------------------------------------
     * choice (N,K) is router_forward's. Every expert ranks all tokens: those that chose it before those that did not; then by
     * score, logit - lse (SIGMOID_TOPK: logit) as a float without its last bit; then the lower token. It keeps as many of
     * the first as the rule says; or, if there are fewer than hi tokens at all, those that chose it. A token's slots are the
     * experts that keep it, in ascending order, maybe none.
     * fills plan, with first; expert (S), weight (S) as in router_forward, over the experts that keep the token; load (E):
     * choices per expert. key: of this batch, in device memory; place: every router has a number of its own.
     * Source: Guo et al. 2025, SonicMoE, arXiv 2512.14080.   error: weight 8 eps_f32, the rest exact */
    void (*route_round)(OUT Plan *plan, OUT int *load, OUT int *expert, OUT real *weight, const int *choice,
                        const floatX *logits, const real *lse, Scores scores, Rounding rule, int tile,
                        const uint64_t *key, int site);

    /* ---- router_losses: loss[0] = balance, loss[1] = z -------------------------------------------------------------
     * balance = E/K * sum_e f_e P_e, f_e = load[e]/tokens, P_e = mean over N of p_e; 1.0 is perfect balance. p is the
     *           softmax, or the sigmoid scores normalized over E for SIGMOID_TOPK. `tokens` is what load was counted
     *           over: N, or more when it was summed over ranks. Source: Fedus et al. 2021, arXiv 2101.03961, eq. 4.
     * z       = mean over N of lse^2. Source: Zoph et al. 2022, arXiv 2202.08906, eq. 5.   error: 16 eps_f32 */
    void (*router_losses)(OUT real *loss, const floatX *logits, const real *lse, const int *load, int tokens,
                          Scores scores, int N, int E, int K);

    /* ---- router_bias: bias[e] += rate * sign(mean load - load[e]) --------------------------------------------------
     * Source: Wang et al. 2024, loss-free balancing, arXiv 2408.15664.   error: exact */
    void (*router_bias)(ACC real *bias, const int *load, float rate, int E);

    /* ---- combine: out[n] = sum_k weight[n,k] inp[slot n*K+k] + bias -------------------------------------------------
     * out (N,C)  inp (S,C), BY_SLOT or GROUPED   weight (S), or NULL for ones   bias (C), or NULL
     * With weight NULL it is the backward of a BY_TOKEN input.   error: (K+1) eps_f32 + eps */
    void (*combine_forward)(OUT floatX *out, const floatX *inp, const real *weight, const floatX *bias,
                            const Plan *plan, int C, Rows rows);

    /* ---- activation and the router weight's gradient ------------------------------------------------------
     * forward: act = f(pre), rows by row.   act (M,F)  pre (M,2F) or (M,F)
     * backward: an expert's output is weighted after its last product, out = sum weight * (act W^T), so with
     * da = dout W (one row per slot, weight not applied) and w the row's weight:
     *     dpre = w * da * f'(pre)      dweight = <da, act>      wact = w * act  (what dW needs)
     * act is recomputed from pre, so neither it nor the expert's output has to be kept. (The last product has no
     * bias: it would add <dout, bias> to dweight.)
     * weight and dweight (S) are indexed by slot whatever `rows` is; M = S. plan, weight
     * and dweight NULL: w = 1, M rows (dense).
     * dpre may be da (IDENTITY) or pre.   Source: SonicMoE, arXiv 2512.14080, section 4.   error: 8 eps */
    void (*activation_forward )(OUT floatX *act, const floatX *pre, Activation f, int M, int F);
    void (*activation_backward)(OUT floatX *dpre, OUT floatX *wact, OUT real *dweight, const floatX *da,
                                const floatX *pre, const real *weight, const Plan *plan, Rows rows,
                                Activation f, int M, int F);

    /* ---- compound operations: d is the device itself. kernels/compound.c makes each of the parts named here; a device
     * fills the table with that where it has nothing better. error: of the parts.
     * expert_up_forward:    parallel_linear_forward(pre, inp, weight, inp_rows, GROUPED), activation_forward(act, pre)
     * expert_down_backward: parallel_linear_backward_input(da, dout, down, GROUPED, dout_rows), activation_backward(dpre,
     *                       wact, dweight, da, pre, ...). da (S,F) is scratch: afterwards it may hold anything.
     *                       up weight (E,2F,C) or (E,F,C), down (E,C,F)
     * add_norm_forward:     branch = combine_forward(s), residual(resid, residual, branch, dropout),
     *                       rmsnorm_forward(out, rstd, resid, norm). Without a plan s has no weight; it never has terms.
     * add_norm_backward:    dout = combine_forward(rows of s) + its terms, at least one of them,
     *                       rmsnorm_backward(dresid, dnorm, dout, resid, norm, rstd), then bias_backward(dbias, dresid)
     *                       unless dbias is NULL. scratch: two of (N,C). */
    void (*expert_up_forward)(const Device *d, OUT floatX *pre, OUT floatX *act, const floatX *inp, const floatX *weight,
                              const Plan *plan, Activation f, int C, int F, Rows inp_rows);
    void (*expert_down_backward)(const Device *d, OUT floatX *dpre, OUT floatX *wact, OUT real *dweight, OUT floatX *da,
                                 const floatX *dout, const floatX *down, const floatX *pre, const real *weight,
                                 const Plan *plan, Activation f, int C, int F, Rows dout_rows);
    void (*add_norm_forward )(const Device *d, OUT floatX *out, OUT real *rstd, OUT floatX *resid, const floatX *residual,
                              const Sum *s, Dropout dropout, Norm norm, int N, int C);
    void (*add_norm_backward)(const Device *d, ACC floatX *dresid, ACC real *dnorm, ACC real *dbias, floatX *const scratch[2],
                              const Sum *s, const floatX *resid, Norm norm, const real *rstd, int N, int C);

    /* ---- bias_backward: dbias[c] += sum over rows of dout.   dbias (C)  dout (N,C).   error: N eps_f32 ----------- */
    void (*bias_backward)(ACC real *dbias, const floatX *dout, int N, int C);

    /* ---- attention: causal softmax(q k^T / sqrt(D)) v, Q*G query heads over G key/value heads -------------
     * q, out (B,T,Q*G,D)   kv (B,T,2,G,D): keys, then values   lse (B,T,Q*G) saved for backward
     * A mixture of attention heads is Q = K: its slots are packed query heads, keys and values are never repeated.
     * backward: dq, dkv.   Source: Dao et al. 2022, arXiv 2205.14135.   error: 8 eps + 8 eps_f32 forward, 32 eps backward */
    void (*attention_forward )(OUT floatX *out, OUT real *lse, const floatX *q, const floatX *kv,
                               HeadOrder order, int B, int T, int G, int Q, int D);
    void (*attention_backward)(OUT floatX *dq, OUT floatX *dkv, const floatX *dout, const floatX *out, const real *lse,
                               const floatX *q, const floatX *kv, HeadOrder order, int B, int T, int G, int Q, int D);
    /* One new token per sequence: q, out (B,Q*G,D); cache (B,T,2,G,D); sequence b sees positions 0..position[b]. */
    void (*attention_cached  )(OUT floatX *out, const floatX *q, const floatX *cache, const int *position,
                               HeadOrder order, int B, int T, int G, int Q, int D);
    /* cache[row[n]] = kv[n], rows of `width` elements. Rows distinct. error: exact */
    void (*cache_store)(floatX *cache, const floatX *kv, const int *row, int N, int width);

    /* ---- a few tokens: a layer of decoding in five launches ------------------------------------------------
     * The operations above, several at a time and rounded as they round (decode_out may leave out roundings of what it adds
     * up), for devices where starting them one by one would take longer than the work. NULL elsewhere. decode_fits: are these
     * for N tokens of C channels with experts of width F (and all other widths multiples of F or C)? If not, call what they
     * are made of.
     *
     * decode_in: x = rmsnorm_forward(inp, norm); choice = router_forward(x router.weight^T, router.bias);
     *   out (N,K,O) by slot = f(x w[expert]^T), w (E,O,C), or (E,2O,C) for a gated f;  plain (N,P) = x plain_w^T.
     *   plain_w NULL: P = 0. next: NULL, or the weights decode_out will read, next_size elements for each expert; those of
     *   the chosen experts are prefetched.
     * decode_out: out (N,O) = residual + bias + sum_k weight[n,k] inp[slot n*K+k] w[expert]^T.   inp (N*K,C)  w (E,O,C)
     *   bias (O), or NULL. choice is that of the last decode_in, or of NULLs: one expert. out may be residual.
     * decode_attention: rope(q), rope of the keys in kv, cache_store(kv), attention_cached. kv (B,2,G,D)  row (B)
     *   position, row and what the cache holds were there before the operation before this one was queued. */
    int  (*decode_fits)(int N, int C, int F, int E, int K);
    void (*decode_in )(OUT floatX *out, OUT floatX *plain, OUT Choice choice, const floatX *inp, Norm norm, Router router,
                       const floatX *w, const floatX *plain_w, const floatX *next, size_t next_size, Activation f,
                       int N, int C, int O, int P);
    void (*decode_out)(OUT floatX *out, const floatX *residual, const floatX *inp, Choice choice, const floatX *w,
                       const floatX *bias, int N, int E, int K, int C, int O);
    void (*decode_attention)(OUT floatX *out, floatX *cache, const floatX *q, const floatX *kv, const real *table,
                          const int *position, const int *row, HeadOrder order, int B, int T, int G, int Q, int D);

    /* ---- sample: the next token of each sequence -----------------------------------------------------------
     * token (N)   logits (N,V), of which the first `used` columns take part   key, position (N)
     * With p = softmax(logits / temperature), in descending order, of equal logits the lower id first: tokens are kept as
     * the Sampler says, and one is drawn in proportion to p by random_uniform(key[n], position[n] + 1). Without limits
     * the order is that of ids. NaN is never chosen; if nothing can be, token 0.
     * Source: Holtzman et al. 2019, arXiv 1904.09751 (top-p); Nguyen et al. 2024, arXiv 2407.01082 (min-p).
     * error: exact */
    void (*sample)(OUT int *token, const floatX *logits, const uint64_t *key, const int *position, Sampler s,
                   int N, int V, int used);
    /* advance: row[n] += 1, position[n] += 1, log[position[n]*N + n] = token[n]: the tokens are the next to be read */
    void (*advance)(ACC int *position, ACC int *row, OUT int *log, const int *token, int N);

    /* ---- cross entropy: loss[n] = -log softmax(logits[n])[target[n]] --------------------------------------
     * logits (N,V), with gradient they become scale * dloss/dlogits in place; only the first `used` columns take part
     * (the rest is padding of the vocabulary and gets gradient 0). target[n] < 0:
     * loss and gradient 0.   error: 4 eps */
    void (*cross_entropy)(OUT real *loss, floatX *logits, const int *target, float scale, int gradient, int N,
                          int V, int used);
    void (*sum)(OUT real *out, const real *inp, size_t n);          /* fixed order.   error: 4 eps_f32 norm-wise */
    void (*accumulate)(ACC real *acc, const real *x, size_t n);     /* acc += x.   error: exact, rounded once */

    /* ---- optimizer ----------------------------------------------------------------------------------------
     * grad_sq_norms: out[i] = sum of the squares of segment i's gradient, out[count] = their sum.   out (count+1)
     * adamw: one decoupled-weight-decay Adam update of every segment; grad_sq_norms is what that operation made of the gradients:
     * they are scaled by min(1, clip/norm), and if the norm is not finite nothing changes at all. a: in device memory.
     * master: real copy of the weights, or NULL: then the weights themselves are updated.
     * Without a master weights are rounded stochastically, and so is v as floatX: to one of the two neighbours, with
     * the probabilities that make the exact value the expected one, because most updates of them are smaller than half
     * a unit and would be lost. (m moves by tenths of itself: to nearest.) Element i uses 32 bits of
     * random_bits(key, i / 2), the upper half if i is odd: 16 for the weight, the next 16 for v.
     * Source: Loshchilov and Hutter 2017, arXiv 1711.05101; rounding: Gupta et al. 2015, arXiv 1502.02551.
     * error: 8 eps_f32; 2 eps more where rounded stochastically, eps for m as floatX */
    void (*grad_sq_norms)(OUT real *out, const void *grads, const Segment *segments, int count);
    void (*adamw)(floatX *weight, real *master, void *m, void *v, Dtype moments, const void *grads,
                  const real *grad_sq_norms, const Segment *segments, int count, const AdamW *a);
    void (*set_master)(OUT real *master, const floatX *weight, size_t n);

    /* ---- Muon: matrices of equal shape ----------------------------------------------------------------------
     * w = w (1 - lr decay) - lr 0.2 sqrt(max(rows, columns)) O,  O = orthogonalize(beta m + (1-beta) g),  m = beta m + (1-beta) g
     *
     * muon_momentum: g = gradient * min(1, clip/norm); of each part m, and x + at = beta m + (1-beta) g (Nesterov).
     * orthogonalize: b.out = for each of `count` matrices x of b.x: x_0 = x / |x| (Frobenius); five times
     *     A = x_i x_i^T,  x_i+1 = (a I + b A + c A A) x_i     (a, b, c) = (3.4445, -4.7750, 2.0315)
     *   With more rows than columns A = x_i^T x_i, and the polynomial is the right factor. Zeros stay zeros. b.x and the other
     *   buffers are scratch. d: the device itself.
     * muon_update: of each part w, with out + at as its part of O. master, and rounding without it: as adamw.
     *
     * parts: matrices or parts of some, in device memory; most: elements of the largest. grad_sq_norm: of all gradients; if it is not
     * finite, m and w stay. a: in device memory. count: at most MUON_MATRICES.
     * Source: Jordan 2024, kellerjordan.github.io/posts/muon; scale of the update: Liu et al. 2025, Moonlight, arXiv 2502.16982.
     * error: m and x 8 eps_f32, as floatX eps more; orthogonalize 100 eps_f32 + 20 eps, norm-wise, as each step multiplies the
     * error of a small singular value by up to 3.44; w 8 eps_f32, 2 eps more where rounded stochastically */
    void (*muon_momentum)(OUT floatX *x, ACC void *m, Dtype moments, const void *grads, const real *grad_sq_norm,
                          const Segment *parts, int count, size_t most, const Muon *a);
    void (*orthogonalize)(const Device *d, const MuonBuffers *b, int count, int rows, int columns);
    void (*muon_update)(ACC floatX *weight, ACC real *master, const floatX *out, const real *grad_sq_norm, const Segment *parts,
                        int count, int rows, int columns, const Muon *a);
};

static inline size_t dtype_size(const Device *dev, Dtype s) { return s == REAL ? dev->real_size : dev->floatX_size; }

const Device *device_list(int i);              /* the i-th device of this build, best first; NULL past the end */
const Device *device_find(const char *name);   /* by name; NULL if this build has none of that name */
#endif
