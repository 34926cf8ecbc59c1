/* model.h: the data of a model. Sizes as in kernels.h; A: attention experts. A layer has up to two
 * routers, one before its attention experts and one before its MLP experts. */
#pragma once
#include "arena.h"
#include "config.h"
#include "exchange.h"
#include "tensor.h"

/* ---- learnable tensors --------------------------------------------------------------------------
 * Their shapes; plan.c describes them. Gradients are the same structs over `void`: those of
 * matrices may be stored as floatX (Tensor.dtype). What a model does not have stays NULL. */
#define LAYER_TENSORS(T)                                                                           \
    T *att_norm;        /* (C) */                                                                  \
    T *att_router;      /* (A,C)        NULL when attention is plain */                            \
    T *kv;              /* (2,G,D, C)   keys, then values, of all attention experts */             \
    T *query;           /* (A, G*D, C)  or (Q*G*D, C) when plain */                                \
    T *output;          /* (A, C, G*D)  or (C, Q*G*D) */                                           \
    /* Latent attention: (kv_rank + rotated, C) (query_rank, C), to the latents. Its kv is         \
     * (G*(own + value), kv_rank) and its query (G*D, query_rank) or (G*D, C). */                  \
    T *kv_down, *query_down;                                                                       \
    T *query_norm, *key_norm;   /* (D) of every head; or (Q*G*D) (G*D) of all; or of latents */    \
    T *query_bias, *kv_bias;    /* (Q*G*D) (2,G,D) */                                              \
    T *sink;            /* (Q*G)        scores of a key without a value, by head */                \
    T *value_embed, *value_gate; /* (V, G*D) added to the values of a token; (G, gate_inputs) */   \
    T *stream;          /* (3)          Mix.scalars of the stream that enters the layer */         \
    T *att_bias;        /* (C)          once per token, after experts are combined */              \
    T *mlp_norm;        /* (C) */                                                                  \
    T *router;          /* (E,C)        NULL when the MLP is dense */                              \
    T *up;              /* (E, 2F, C)   gate rows first; (E, F, C) without a gate; no E when dense */\
    T *down;            /* (E, C, F) */                                                            \
    T *router_bias, *up_bias, *down_bias;   /* (E) (E, 2F) (E, C) */                               \
    T *mlp_bias;        /* (C) */                                                                  \
    T *shared_up;       /* (2Fs, C)     the shared expert */                                       \
    T *shared_down;     /* (C, Fs) */                                                              \
    T *shared_gate;     /* (1, C) */
#define MODEL_TENSORS(T)                                                                           \
    T *embed;           /* (V,C) */                                                                \
    T *embed_norm;      /* (C) */                                                                  \
    T *bigram;          /* (bigram*V, C) added to the stream */                                    \
    T *final_norm;      /* (C) */                                                                  \
    T *head;            /* (V,C)        the same memory as embed when tied */
typedef struct { LAYER_TENSORS(floatX) } LayerParams;
typedef struct { LAYER_TENSORS(void) }   LayerGrads;
typedef struct { MODEL_TENSORS(floatX) } ModelParams;
typedef struct { MODEL_TENSORS(void) }   ModelGrads;
typedef struct { LAYER_TENSORS(const Weight) } LayerCodes;  /* of those in codes (codes.h) */

/* ---- activations and scratch ----------------------------------------------------------------- */

/* One router's work on one batch (smoe.c: Routes): it chooses K of E experts for every token. */
typedef struct {
    int     E, K;
    float   scale;                      /* of weights */
    Groups  groups;                     /* of experts */
    floatX *logits;                     /* (N,E) */
    real   *lse;                        /* (N) */
    real   *weight, *chosen_weight;   /* (S)  of the plan; before they are scaled: the same buffer where they are not */
    int    *expert;                     /* (S) */
    Plan    plan;
    int    *first;                      /* (N+1) plan.first where routing is rounded; NULL: it never is */
    int    *own_load, *load;            /* (E)  into DataParallel.own_load, ResultBuffers.load */
    real   *losses;                     /* (2)  balance and z, into ResultBuffers.losses */
    real   *bias;                       /* (E)  added to the scores for choosing, into Model.bias; NULL: none */
} Route;

typedef struct {                        /* what a layer's forward keeps for its backward */
    floatX *att_normed;  real *att_rstd;    /* (N,C) (N) */
    Route   att;
    floatX *q;                          /* (N, Q*G*D) queries by slot, rotated */
    floatX *kv;                         /* (N, 2,G,D) keys rotated */
    floatX *value_gate;                 /* (N,G) logits of the gates of values from a table */
    floatX *q_before, *k_before;        /* (N, Q*G*D) (N, G*D) before norms; or latents (N, query_rank) (N, kv_rank) */
    real   *q_rstd, *k_rstd;            /* (N) of norms of all heads, or of latents */
    floatX *q_latent, *kv_latent;       /* (N, query_rank) (N, kv_rank) after their norms */
    floatX *mixed;  real *att_lse;      /* (N, Q*G*D) what attention returned, (N, Q*G) */
    floatX *mid;                        /* (N,C) residual stream between attention and MLP */
    floatX *mlp_normed;  real *mlp_rstd;
    Route   mlp;
    floatX *pre;                        /* (S,2F) or (S,F) before the experts' nonlinearity, by row */
    floatX *shared_pre;                 /* (N,2Fs) or (N,Fs) */
    Route   gate;                       /* of the shared expert: a router of one expert, whose weight is a sigmoid */
    floatX *out;                        /* (N,C) residual stream after the layer */
} LayerActs;

/* Parts of a layer that backward can recompute: layers then share a buffer. In forward's order. */
typedef enum {
    PART_NORMS,                         /* att_normed, mlp_normed */
    PART_HEADS,                         /* q, kv, and what they were before their norms */
    PART_ATTENTION,                     /* mixed, att_lse */
    PART_MIDDLE,                        /* mid */
    PART_UP,                            /* pre, shared_pre */
    LAYER_PARTS
} LayerPart;
/* How many layers recompute it, back from the last but one: the last's is still in the buffer. */
typedef struct { int layers[LAYER_PARTS]; } Recompute;

typedef struct { Fp8 up, up_transposed, down, down_transposed; } ExpertCodes;   /* (E,2F,C) (E,C,2F) (E,C,F) (E,F,C) */

/* The head in 8 bits, of a chunk of R = head_rows rows: (V,C) (C,V) (R,C) (R,V), columns of the
 * last two. start (2,2): of plans of one expert, of R rows or those of a shorter last chunk. */
typedef struct { Fp8 weight, transposed, x, dlogits, columns_C, columns_V; int *start; } HeadCodes;

typedef struct {                        /* used by one layer at a time */
    floatX *branch;             /* (N,C)   what a sub-layer adds to the residual stream; in backward, its gradient */
    floatX *rows;                       /* (S,C)   expert outputs; in backward, gradients of expert inputs */
    floatX *act, *dact;                 /* (S,F)   also attention: (N, Q*G*D) */
    floatX *dpre;                       /* (S,2F) */
    floatX *dq, *dmixed, *dkv;          /* (N, Q*G*D) (N, Q*G*D) (N, 2,G,D) */
    floatX *dlogits;  real *dweight;    /* (N,E) (S) */
    floatX *values;                     /* (N, G*D) normalized keys, or gradients of values or of them */
    floatX *gate_inputs, *dgate_inputs, *dvalue_gate;   /* (N, gate_inputs) twice, (N,G) of gates of values */
    floatX *dstream[2];                 /* (N,C) gradients of Mixed.first and of Mixed.extra */
    floatX *down;   /* (N, kv_rank + rotated) latents of keys and values, and the part of keys that all heads share */
    floatX *parts;      /* (N,G, own + value) of keys and values, as shared_keys_forward has them; or their gradients */
    floatX *turning;    /* (N,G, rotated) what positions rotate, of all heads' queries or of the shared part of keys */
    floatX *dlatent[2];             /* (N, kv_rank or query_rank) gradients of latents after their norm, and before */
    floatX *dgate;  int *gate_load;     /* (N,1) gradient of Route gate's logits; (1) */
    int    *choice;                     /* (N,K) what tokens chose, before it is rounded */
    floatX *dnormed[2], *dresid;        /* (N,C)   scratch of add_norm_backward, [1] on GPUs; gradient of the stream */
    floatX *logits;                     /* (head_rows, V) a chunk of the head's output */
    Fp8     x8, act8, dpre8;            /* (N,C) (S,F) (S,2F) in 8 bits; x8: of the input, or of dout */
    Fp8     columns_C, columns_F;       /* columns of x8, and of act8 or dpre8 */
} Scratch;

/* ---- the model ------------------------------------------------------------------------------- */

/* Of a micro-batch in its step: the first overwrites gradients; after the last, ranks exchange. */
typedef enum { PHASE_MIDDLE = 0, PHASE_FIRST = 1, PHASE_LAST = 2, PHASE_ONLY = PHASE_FIRST | PHASE_LAST,
               PHASES = 4 } Phase;

typedef struct {                        /* what the model reads */
    int  B, T, N;                       /* sequences, tokens in each, B*T; at most what was planned for */
    int *tokens, *targets, *position;   /* (N); after the last position 0 */
    int *reach;                         /* (N) min(position, window - 1), if the model has a window */
    int  packed;                        /* 1: sequences are rows of several samples, whose positions begin at 0 */
    int  filled;                        /* 1: some tokens may be filler (Counted): their target is FILLER */
    real *loss_scale;                   /* (3) of gradients of the loss, by the next token and further targets */
    uint64_t *key;                      /* of its dropout */
    Phase phase;
    int  micro_batches;                 /* of the step; at most what was planned for */
    int  all_micro_batches;             /* that, on all ranks. That of rank r: index m*ranks + r */
    int *step_tokens, *step_targets, *step_positions, *step_reaches;    /* (micro_batches, N); the last two if packed */
    uint64_t *step_keys;                /* (micro_batches) */
    int *step_counted;                  /* (micro_batches) tokens without filler */
} Batch;

typedef struct {                        /* the results of a step, one block of device memory that the host reads */
    char *base;
    real *step_losses;                  /* (all_micro_batches) sums of loss */
    real *losses;                       /* (routers, 2) */
    real *grad_sq_norms;                /* (tensors + 1) */
    int  *load;                 /* (routers, E) choices of each expert in the last micro-batch, of all ranks */
    int  *tokens;                       /* (1) that made them: without filler; follows load */
} ResultBuffers;
typedef struct { double *step_losses, *losses, *grad_sq_norms; int *load; } StepResults;    /* the same on the host */

/* What is added to the stream before each layer (mix.h); NULL: it is not. */
typedef struct {
    floatX *first;  real *first_rstd;   /* (N,C) (N)  the normed embedding */
    floatX *extra;                      /* (N,C)      rows of pairs of tokens */
    int    *row, *before;               /* (N)        of bigram_rows */
    int    *seen;                       /* (B, cache_capacity) tokens in the cache */
} Mixed;

typedef enum { MODEL_TRAIN, MODEL_INFER } ModelMode;

/* What relay.c does for a model whose first layers are on other devices. */
typedef struct Relay Relay;
typedef struct {
    int  (*allocate)(Relay *r, const Model *last);          /* 0: a device does not have what its layers need */
    void (*forward)(Relay *r, Model *last);                 /* the stream that enters its first layer, of its batch */
    void (*free)(Relay *r);
} RelayCalls;

/* What takes the gradients of a range when they are complete, in every micro-batch (absorb.h). */
typedef struct {
    void (*complete)(Model *m, int range);  void *with;     /* NULL: they are kept until the step ends */
    Dtype dtype;                        /* what gradients of matrices are stored as until then */
} Taker;

struct Model {
    const Device *dev;
    Config    config;
    ModelMode mode;
    Recompute recompute;                /* at most layers - 1 of each part */
    int       forced;                   /* 1: perfectly balanced routing, for benchmarks */
    int       rounds;                   /* 1, in training: routing is rounded as the config says */
    int       fp8;                      /* 1: experts train in 8 bits as fp8_passes says. 0: forward only, in floatX */
    int       fp8_passes;               /* Fp8Passes for which the codes are planned */
    int       head_rows;                /* tokens whose logits are in memory at a time */
    int       used_vocab;               /* ids that files have rows for, if with a token or not; then padding */
    float     dropout;
    float     balance_coef, z_coef;     /* of the losses added to the cross entropy */
    int       further;                  /* 1: gradients are those of further targets, too (cross_entropy), */
    float     further_weight[2];        /* of these weights; the next token's is 1. Losses are of that alone */
    Dtype     matrix_gradients;         /* what gradients of layers' matrices are stored as, */
    Dtype     product_gradients;        /* and what those may be that are one product */
    Taker     taker;
    int       routers;                  /* 2 a layer, or fewer */
    int       decodes;                  /* the last forward pass was by layer_decode.c, of so many tokens at a time */
    int       from, to;         /* its layers are from .. to - 1: all, unless they are spread over devices (relay.h) */
    /* called before each half of a layer in passes of more tokens than one. 0: this pass is given
     * up, which sets stopped; what it computes then means nothing. NULL: nothing is called */
    int     (*pause)(void *with);  void *pause_with;  int stopped;
    Relay    *relay;                    /* has the layers before `from`; NULL: this model has the first */
    const RelayCalls *relay_calls;

    const Model *weights_of;            /* another model whose weights this one uses; NULL: its own */
    Manifest  manifest;
    Arena     arena;
    floatX   *params;  void *grads;     /* (manifest.total) (manifest.gradient_bytes), or this rank's shards of them */
    real     *bias;                     /* (routers, E) */
    ModelParams p;  LayerParams *lp;    /* L of them; all the same in a universal model */
    ModelGrads  g;  LayerGrads  *lg;
    ExpertCodes *expert_codes;      /* L, or one that all layers use in turn; or NULL: of experts' weights (moe.c) */
    int       codes_shared;             /* 1: one */
    HeadCodes head8;                    /* start NULL: the head is not in 8 bits */

    /* weights in codes (codes.h); NULL: there are none. from_codes: as floatX, a range at a time */
    Weight    *codes;                   /* (manifest.count + 1) by tensor; then the head's, if that is the embedding */
    LayerCodes *lc;  const Weight *head_codes;
    floatX    *from_codes;
    Fp8        one_matrix;              /* where weights are only rounded to values of codes */

    Batch         batch;
    ResultBuffers results;
    DataParallel  dp;

    LayerActs  *acts;                   /* L */
    LayerActs   shared;                 /* the buffers of those that are not kept per layer */
    Scratch     s;
    floatX *encoded;                    /* (N,C) the first residual stream */
    Mixed   mixed;
    floatX *final, *dfinal;  real *final_rstd;   /* (N,C) (N,C) (N) */
    real   *rope;                       /* (T or cache_capacity, D/2, 2) */
    real   *loss, *loss_sum;            /* (N), (1): of this micro-batch */

    /* decoding: L of (B, cache_capacity, 2,G,D); NULL when not. own_keys: where keys are shifted,
     * those before that: (1 + B * cache_capacity, G*D) */
    floatX **cache, **own_keys;  int cache_capacity;  int *cache_row;
};

/* Element i of an array of reals, and of one of floatX. */
static inline real *real_at(const Model *m, real *x, size_t i) { return (real *)((char *)x + i * m->dev->real_size); }
static inline floatX *float_at(const Model *m, const floatX *x, size_t i) {
    return (floatX *)((char *)x + i * m->dev->floatX_size);
}
