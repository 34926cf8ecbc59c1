/* config.h: what a model is. Made from a descriptor such as m12:e64k8f256 or from a config.json
 * (llmc/files/config_json.h), and never changed after. */
#pragma once
#include "llmc/base/base.h"
#include "llmc/base/text.h"
#include "kernels/kernels.h"

/* An RMSNorm of queries and keys before rotation: of each head, or of all of a token (OLMoE). */
typedef enum { NORM_NONE, NORM_EACH, NORM_ALL } HeadNorm;

/* Passes of experts in 8 bits. FP8_WHERE_FASTER: all if fp8.c knows them to be faster, else 0. */
typedef enum { FP8_FORWARD = 1, FP8_BACKWARD = 2, FP8_ALL = 3, FP8_WHERE_FASTER = 4 } Fp8Passes;

/* How positions beyond the original context are made to fit (rope.c). */
typedef enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } RopeKind;
typedef struct {
    RopeKind kind;
    int    exact;                   /* 1: YaRN's range of pairs is not rounded to whole ones */
    double factor, low, high;       /* a pair with low .. high rotations in the original context is scaled in part */
    double original, attention;     /* the context before; YaRN's factor of queries and of keys */
    double scores;              /* DeepSeek's mscale_all_dim: scores are multiplied by rope_mscale(factor, scores)^2 */
} RopeScaling;

#define WITHOUT_ALWAYS \
    "attention experts that every token has were removed from this program; the last version with them is c776785"

enum { MOST_LISTED = 256 };         /* layers that may differ from others */
typedef struct { uint64_t bits[MOST_LISTED / 64]; } Layers;             /* bit l % 64 of bits[l / 64]: layer l */

typedef struct {
    int layers;                     /* L: blocks a token passes */
    int universal;                  /* 1: all passes use one block's weights */
    int channels;                   /* C */
    int vocab;                      /* V: rows of the embedding */
    int context;                    /* longest sequence it is meant for */
    int attention_experts, attention_topk;   /* 1, 1: plain attention */
    int kv_heads, head_size;        /* G, D */
    int query_heads;                /* Q: query heads per kv head; in a mixture of attention heads attention_topk */
    int experts, topk, width;       /* E, K, F; 1, 1: a dense MLP */
    int shared_width;               /* width of the shared expert beside the routed ones; 0: none */
    Scores scores;
    Activation activation;
    int output_bias;                /* 1: a bias (C) on the output of every mixture, as JetMoE has */
    int tied;                       /* 1: the head is the embedding */
    int rounding, tile;    /* 1: the MLP's routing is rounded while it is trained (route_round); to multiples of what */
    Fp8Passes fp8;  /* whose products of the MLP's experts are in 8 bits while it is trained (fp8_fits in kernels.h) */
    int fp8_head;                   /* 1: the head's products, too */
    Format weights, experts_in;     /* of a model that is not trained (codes.h): large matrices; experts, OF_MXFP4 */
    double rope_theta, norm_eps, final_eps, init_std;

    /* Ingredients of a recipe. All of them are off at 0. */
    HeadNorm qk_norm;
    int zero_output;                /* 1: outputs of sub-layers begin as zeros; 2: an untied head, too */
    int key_shift;  /* n: in the last layer and each n-th before it half of a key is the token before's (shift_keys) */
    int value_embeddings;           /* n: the last layer and each n-th before it add an embedding to the values */
    int value_gate;                 /* 1: times 2 sigmoid(gate), by kv head, of the layer's first GATE_INPUTS inputs */
    int bigram;                     /* n: a table of n V rows for pairs of tokens is added to the stream (mix.h) */
    int stream_scalars;             /* 1: a norm of the embedding; before a layer a x + b (that), a and b learned */
    double init_fan;                /* matrices begin with standard deviation init_fan / sqrt(inputs), not init_std */
    double init_embed;              /* the embedding's standard deviation, not init_std */
    double logit_cap;               /* logits become cap tanh(logits / cap) */
    double route_scale;             /* weights of routed MLP experts are multiplied by it */
    int choice_bias;  /* 1: routers have a bias for choosing (Router.bias) that is part of the model and of its files */

    /* What published families have, likewise. */
    int family;             /* whose files it was read from (llmc/files/families.h); 0: the first that can express it */
    int padding;                    /* of the V rows of embedding and head, those at the end that no file has */
    int groups, groups_chosen, groups_by_best;      /* of experts, from which a token chooses (Groups); 0: none */
    int dense_width;                /* F of the layers below */
    Layers dense;                   /* of a mixture: those that have one MLP, no experts */
    int window;                     /* keys that a query sees, itself included, in these layers; 0: all */
    Layers windowed;
    int shared_gate;                /* 1: the shared expert's output is multiplied by sigmoid(gate x) */
    int attention_bias;             /* 1: biases of queries, keys and values; 2: and of the output */
    int sinks;                  /* 1: every query head has a learned score of a key without a value (sink_forward) */
    int expert_bias;                /* 1: biases of the MLP's router, and of each expert's two products */
    int rotated;  /* dimensions of a head that positions rotate: the first, or, of latent attention, the last; 0: all */
    int kv_rank, query_rank;        /* latent attention (latent.c): sizes of its latents; 0: none of these */
    int value_size;                 /* of a head's values, at most head_size; 0: head_size */
    int rope_pairs;                 /* 1: in files neighbouring dimensions are rotated together */
    RopeScaling rope;
    double embed_scale, residual_scale;   /* multiply the embedding, and what a sub-layer adds to the residual stream */
    double attention_scale;         /* of the scores q k, instead of 1 / sqrt(D) */
    double logit_divisor;
} Config;

/* "m4", "d12", "u6:c256h4", "m12:e64k8f256". Letters after the colon: c channels, h query heads in
 * all, d head size, q kv heads (= heads per attention expert), a attention experts, x of them per
 * token, e experts, k per token, f expert width, s shared experts; n query and key norm (1; n0:
 * none), z1 zero output matrices (z2: and head), u1 untied head, v value embeddings every v layers,
 * g1 gates of these, j shifted keys every j layers, o window of the others, t rows of the table of
 * bigrams over V, p1 scalars of the stream, l cap of logits; in hundredths: i initial scale by
 * fan-in, y of the embedding, w scale of the routed experts' weights; r base of the positions in
 * thousands. 0 and a message when it cannot be. vocab and context are left 0. */
int  config_parse(Config *c, const char *descriptor, Error *e);
void config_explain(Text *out);                             /* descriptors, for people: a table of the fields */
/* A dense model becomes a mixture of e experts, k a token, as wide as its MLP: "e8k2", also with f,
 * which must be that width. 0 and a message if it cannot be. */
int  config_upcycle(Config *c, const char *fields, Error *e);
void config_descriptor(const Config *c, char text[128]);    /* the other way; complete, so parsing it gives c again */
/* 1, or 0 and the rule that is broken. The memory plan of what is accepted cannot overflow. */
int  config_check(const Config *c, Error *e);
enum { LAYERS_MAX = 10000, SIZE_LIMIT = 1 << 24 };                  /* SIZE_LIMIT: of every size but the layers */

const char *scores_name(Scores s);                                  /* in files and of the option */
int scores_by_name(const char *name, OUT Scores *s);                /* 0 if unknown */

int config_value_size(const Config *c);             /* of a head */
double rope_mscale(double factor, double by);       /* YaRN's factor of scores in a context `factor` times as long */
double config_score_scale(const Config *c);         /* scores are q k / sqrt(D) times this */
double config_projections(const Config *c, int output);         /* weights of attention's output, or of q, k, v */
int config_shifts_keys(const Config *c, int l);     /* is half of a key of layer l that of the token before? */
int config_has_values(const Config *c, int l);      /* does layer l have an embedding of its own? */
enum { GATE_INPUTS = 16 };
static inline int config_gate_inputs(const Config *c) { return c->channels < GATE_INPUTS ? c->channels : GATE_INPUTS; }
static inline int config_mixes(const Config *c) { return c->bigram || c->stream_scalars; }  /* the stream (mix.h) */
void layers_add(Layers *s, int l);                  /* l < MOST_LISTED */
int config_window(const Config *c, int l);          /* of layer l */
/* A window of all layers that shift no keys, as smoe has it (field o): those that do look far back.
 * The second returns it; 0: there is none, or other layers have one. */
void config_set_own_window(Config *c, int keys);
int config_own_window(const Config *c);
double config_unseen(const Config *c, int l, int T);    /* keys before the window: twice the mean over a row of T */
int config_has_experts(const Config *c, int l);     /* is the MLP of layer l a mixture? */
int config_width(const Config *c, int l);           /* F of layer l */
int config_dense_width(const Config *c);            /* F of layers with one MLP; 0: there are none */
int config_mixtures(const Config *c);               /* how many layers have one */
static inline int config_ids(const Config *c) { return c->vocab - c->padding; }     /* that files have rows for */
static inline int config_bigram_rows(const Config *c) { return c->bigram * config_ids(c); }
void config_pad_vocab(Config *c);                   /* adds rows up to whole tiles of the head: padding */

/* Parameters that work on one token (of `total` learnable ones): each router's k of its experts. */
size_t config_active(const Config *c, size_t total);
double config_flops(const Config *c, int T);       /* forward + backward matmul flop per token, active experts only */
