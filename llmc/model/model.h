/* model.h: what the model is made of. The layers themselves: attention.c, moe.c and route.c; their order: model.c.
 *
 * Sizes as in kernels.h. A layer has two routers, one before its attention experts and one before its MLP experts. */
#ifndef MODEL_H
#define MODEL_H
#include "arena.h"
#include "config.h"
#include "tensor.h"

/* Learnable tensors, with their shapes; described in model.c. Gradients are the same structs over `void`, for those of
 * matrices may be stored as floatX: Tensor.dtype. Fields that a configuration does not have stay NULL. A, X, Gq: attention
 * experts, top-k, G*D. */
#define LAYER_TENSORS(T) \
    T *att_norm;        /* (C) */                                                                             \
    T *att_router;      /* (A,C)         NULL when attention is plain */                                      \
    T *kv;              /* (2,G,D, C)    keys, then values, shared by all attention experts */                \
    T *query;           /* (A, G*D, C)   or (Q*G*D, C) when plain */                                          \
    T *output;          /* (A, C, G*D)   or (C, Q*G*D) */                                                     \
    T *att_bias;        /* (C)           once per token, after the experts are combined */                    \
    T *mlp_norm;        /* (C) */                                                                             \
    T *router;          /* (E,C)         NULL when the MLP is dense */                                        \
    T *up;              /* (E, 2F, C)    gate rows first; (E, F, C) for kinds without a gate; no E when dense */\
    T *down;            /* (E, C, F) */                                                                       \
    T *mlp_bias;        /* (C) */                                                                             \
    T *shared_up;       /* (2Fs, C)      the always-on expert */                                              \
    T *shared_down;     /* (C, Fs) */
#define MODEL_TENSORS(T) \
    T *embed;           /* (V,C) */                                                                           \
    T *final_norm;      /* (C) */                                                                             \
    T *head;            /* (V,C)         the same memory as embed when tied */
typedef struct { LAYER_TENSORS(floatX) } LayerParams;
typedef struct { LAYER_TENSORS(void) }   LayerGrads;
typedef struct { MODEL_TENSORS(floatX) } ModelParams;
typedef struct { MODEL_TENSORS(void) }   ModelGrads;

typedef struct {                        /* one router's work on one batch */
    floatX *logits;                     /* (N,E) */
    real   *lse, *weight;               /* (N) (S) */
    int    *expert;                     /* (S) */
    Plan    plan;
    int    *first;                      /* (N+1) plan.first where routing is rounded; NULL: it never is */
    int     site;                      /* a number of its own, of what is drawn at random */
    int    *own_load, *load;            /* (E)  into Model.own_load, Model.load */
    real   *losses;                     /* (2)  balance and z, into Model.losses */
    real   *bias;                       /* (E)  added to the scores for choosing, into Model.bias */
} Route;

typedef struct {                        /* what a layer's forward leaves for its backward */
    floatX *att_normed;  real *att_rstd;    /* (N,C) (N) */
    Route   att;
    floatX *q;                          /* (N, Q*G*D) queries by slot, rotated */
    floatX *kv;                         /* (N, 2,G,D) keys rotated */
    floatX *mixed;  real *att_lse;      /* (N, Q*G*D) what attention returned, (N, Q*G) */
    floatX *mid;                        /* (N,C) residual stream between attention and MLP */
    floatX *mlp_normed;  real *mlp_rstd;
    Route   mlp;
    floatX *pre;                        /* (S,2F) or (S,F) before the experts' nonlinearity, by row */
    floatX *shared_pre;                 /* (N,2Fs) or (N,Fs) */
    floatX *out;                        /* (N,C) residual stream after the layer */
} LayerActs;

typedef struct {                      /* one layer at a time uses these */
    floatX *branch;                   /* (N,C)   what a half of a layer adds to the residual stream; in backward, its gradient */
    floatX *rows;                     /* (S,C)   expert outputs; in backward, gradients of expert inputs */
    floatX *act, *dact;               /* (S,F)   also attention: (N, Q*G*D) */
    floatX *dpre;                     /* (S,2F) */
    floatX *dq, *dmixed, *dkv;        /* (N, Q*G*D) (N, Q*G*D) (N, 2,G,D) */
    floatX *dlogits;  real *dweight;  /* (N,E) (S) */
    int    *choice;                   /* (N,K) what tokens chose, before it is rounded */
    floatX *dnormed[2], *dresid;      /* (N,C)   dnormed: addends of the gradient of a norm's output */
    floatX *logits;                   /* (head_rows, V) a chunk of the head's output */
} Scratch;

typedef enum { MODEL_TRAIN, MODEL_INFER } ModelMode;

typedef struct Model Model;
typedef struct Parallel Parallel;      /* parallel.h */
struct Model {
    const Device *dev;
    Config    config;
    ModelMode mode;
    int       B, T, N;                  /* this batch: sequences, tokens in each, B*T; at most what was planned for */
    int       recompute;                /* 0 keep all, 1 recompute norms, 2 recompute whole layers */
    int       forced;                   /* 1: perfectly balanced routing, for benchmarks */
    int       rounds;                   /* 1: routing is rounded as the config says: in training. 0: it is not */
    const Parallel *parallel;           /* the other ranks of this run; NULL: there are none */
    int       ranks, last_micro;        /* how many in all; 1: after this micro-batch the step's gradients are complete */
    int       ordered;                  /* 1: the same bits on any number of ranks */
    int       due;                      /* 1 + the range of gradients that is complete and not yet on its way to other ranks; 0: none */
    int       head_rows;                /* tokens whose logits exist at one time */
    int       used_vocab;               /* ids that the tokenizer has; the other columns of the head are padding */
    float     dropout;
    int       started;                  /* 1: the next batch is the first of a step */
    int       fresh;                    /* 1: this one is: nothing of the step is in the gradients yet, */
    Write     set, write;               /* so that products set them instead of adding; set: as what */
    float     balance_coef, z_coef;     /* of the losses added to the cross entropy */

    const Model *weights_of;            /* another model whose weights this one uses; NULL: its own */
    Manifest  manifest;
    Arena     arena;
    floatX   *params;  void *grads;     /* (manifest.total) (manifest.gradient_bytes) */
    real     *sums, *gathered;          /* if ordered: (manifest.total), (ranks, GATHERED) */
    real     *stage;                    /* where ranks share: what others have found of a range, (largest range) */
    ModelParams p;  LayerParams *lp;    /* L of them; all the same in a universal model */
    ModelGrads  g;  LayerGrads  *lg;

    LayerActs  *acts;                   /* L */
    LayerActs   shared;                 /* the buffers of those that are not kept per layer */
    Scratch     s;
    floatX *encoded;                    /* (N,C) the first residual stream */
    floatX *final, *dfinal;  real *final_rstd;   /* (N,C) (N,C) (N) */
    int    *tokens, *targets, *position;         /* (N) this micro-batch */
    uint64_t *key;                      /* its dropout */
    int    *step_tokens, *step_targets; /* (micro-batches of a step, N) */
    uint64_t *step_keys;                /* (micro-batches of a step) */
    real   *rope;                       /* (context, D/2, 2) */
    real   *loss;                       /* (N) */
    real   *loss_sum;                   /* (1) of this micro-batch */
    int     micro_batches, all_micro_batches;       /* of a step, on this rank and on all of them: turn = micro * ranks + rank */
    int     routers;                    /* 2 a layer, or fewer; arrays over all of them: */
    real   *bias;                       /* (routers, E) */
    int    *own_load;                   /* (routers, E) of this rank; the same memory as load when it is the only one */

    char   *results;                      /* what a step leaves for the host, in one piece of memory: */
    real   *step_losses;                /* (turns) sums of loss */
    real   *losses;                     /* (routers, 2) */
    real   *grad_sq_norms;                    /* (tensors + 1) the optimizer's: squared norms of the gradients */
    int    *load;                       /* (routers, E) slots per expert in the last micro-batch, of all ranks */

    floatX **cache;  int cache_capacity;  int *cache_row;   /* decoding: L caches (B, cache_capacity, 2,G,D); NULL when not */
};

enum { GATHERED = 1 << 22 };            /* elements that each rank contributes to a piece of ordered sums */

/* Element i of an array of reals. */
static inline real *real_at(const Model *m, real *x, size_t i) { return (real *)((char *)x + i * m->dev->real_size); }

/* Plans a model for batches of up to B x T tokens, and the layout of its arena for these ranks (NULL: one). Nothing is allocated,
 * so the plan can be printed first: m->arena. More buffers may be added to it before model_allocate. gradients FLOATX: those
 * of layers' matrices are stored so where nothing is added to them: one micro-batch, one rank, no layer used twice. */
void model_plan_training(Model *m, const Device *dev, const Config *c, int B, int T, int recompute, int micro_batches,
                         Dtype gradients, const Parallel *parallel);
/* For generating, with a cache of `room` positions; weights_of: a model whose
 * weights to use, or NULL to have its own. */
void model_plan_inference(Model *m, const Device *dev, const Config *c, int B, int T, int capacity,
                          const Model *weights_of);
int  model_allocate(Model *m);                              /* 0: the device does not have m->arena.total bytes */
void model_initialize(Model *m, uint64_t seed);
void model_free(Model *m);

void model_batch(Model *m, const int *tokens, const int *targets, int B, int T);     /* uploads; targets may be NULL */
void model_start_step(Model *m);                            /* gradients count from the next batch on */
int  model_counted(const Model *m);                         /* tokens whose slots are counted in a router's load */
/* Or all micro-batches of a step at once, (micro-batches, B, T) and their keys for dropout; then one after the other is
 * made the batch, and its loss put aside for model_results. Between the two nothing comes from the host. */
void model_send(Model *m, const int *tokens, const int *targets, const uint64_t *keys, int B, int T);
void model_begin_micro(Model *m, int micro);
void model_end_micro(Model *m, int micro);
void model_forward(Model *m);                               /* up to m->final */
/* The head and the cross entropy, in chunks of tokens: *loss_sum = sum of -log p(target). gradient: also m->dfinal and
 * the head's gradient, both times scale. */
void model_loss(Model *m, float scale, int gradient);
void model_router_losses(Model *m);              /* of every router; after parallel_sum_loads, if there are other ranks */
/* From m->dfinal; scale: of the routers' losses, 1 / micro-batches of all ranks. After the last of a step m->grads is
 * the sum over the ranks, or this rank's shard of it is (parallel.h). */
void model_backward(Model *m, float scale);
/* All of these for one batch of training, in the order in which ranks need them; the arguments are those of model_loss and
 * model_backward. */
void model_learn(Model *m, float loss_scale, float router_scale);
/* After a batch that was not finite. Rounded routing leaves rows unused at the end of a buffer, other ones each time, and products
 * by whole tiles may multiply what lies there by zero: it must not be what is left of that batch. */
void model_forget(Model *m);
void model_logits(Model *m, int first, int count);          /* of tokens first.. into m->s.logits; count <= head_rows */
void model_next(Model *m, OUT floatX *logits);              /* decoding: of the one token of each sequence, (B,V) */
int  model_decode_path(const Model *m);                             /* decoding: does this batch take the few_* operations? */

/* What a step has left, on the host: the fields of Model of the same names. One read, which waits for the device. */
typedef struct { double *step_losses, *losses, *grad_sq_norms; int *load; } StepResults;
StepResults model_results(const Model *m);
void  model_gradients(const Model *m, OUT double *host);    /* (manifest.total) laid out like the weights */
void  results_free(StepResults *f);

uint64_t model_state(const Model *m);   /* a number of all that these functions' work depends on, besides device memory */

int  router_experts(const Config *c);                       /* E of the arrays over all routers: the larger kind's */
int  mlp_slots(const Config *c, int N, int rounds);         /* the most that N tokens have */

/* The two halves of a layer. Forward returns the answer to x; backward, with dout the gradient of that answer, that of x.
 * Weights' gradients accumulate. */
Sum  attention_layer_forward (Model *m, LayerActs *a, const LayerParams *p, const floatX *x, int layer);
Sum  attention_layer_backward(Model *m, LayerActs *a, const LayerParams *p, LayerGrads *g, const floatX *dout,
                              const floatX *x, float scale);
void attention_layer_decode(Model *m, LayerActs *a, const LayerParams *p, OUT floatX *out, const floatX *resid, int layer);
Sum  moe_layer_forward (Model *m, LayerActs *a, const LayerParams *p, const floatX *x);
void moe_layer_decode(Model *m, LayerActs *a, const LayerParams *p, OUT floatX *out, const floatX *resid);
Sum  moe_layer_backward(Model *m, LayerActs *a, const LayerParams *p, LayerGrads *g, const floatX *dout, const floatX *x,
                        float scale);
void route_forward (Model *m, Route *r, const floatX *router, const floatX *x);
void route_losses  (Model *m, Route *r);
void route_backward(Model *m, Route *r, const floatX *router, void *drouter, ACC Sum *dx, const floatX *x, float scale);
#endif
