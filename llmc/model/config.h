/* config.h: what a model is. Made from a descriptor such as m12:e64k8f256 or from a config.json (llmc/files/families.h), and
 * never changed after. */
#ifndef CONFIG_H
#define CONFIG_H
#include "llmc/base/base.h"
#include "kernels/kernels.h"

/* Model families that other tools know by name. What none of them can express is FAMILY_SMOE, ours alone. */
typedef enum { FAMILY_JETMOE = 1, FAMILY_MIXTRAL = 2, FAMILY_LLAMA = 4, FAMILY_SMOE = 8 } Family;

typedef struct {
    int layers;                     /* L: blocks a token passes */
    int universal;                  /* 1: all passes use one block's weights */
    int channels;                   /* C */
    int vocab;                      /* V: rows of the embedding */
    int context;                    /* longest sequence it is meant for */
    int attention_experts, attention_topk;   /* 1, 1: plain attention */
    int attention_always;           /* attention experts that every token has, beside those it chooses */
    int kv_heads, head_size;        /* G, D */
    int query_heads;                /* Q: query heads per kv head; in a mixture of attention heads that is the experts of a
                                     * token, attention_always + attention_topk */
    int experts, topk, width;       /* E, K, F; 1, 1: a dense MLP */
    int shared_width;               /* width of the always-on expert beside the routed ones; 0: none */
    int scores, activation;         /* enums Scores and Activation */
    int output_bias;                /* 1: a bias (C) on the output of every mixture, as JetMoE has */
    int tied;                       /* 1: the head is the embedding */
    int rounding, tile;             /* enum Rounding of the MLP's routing while it is trained, and to multiples of what */
    double rope_theta, norm_eps, final_eps, init_std;

    /* Ingredients of a recipe. All of them are off at 0. */
    int qk_norm;                    /* 1: an RMSNorm of every query and key, with one weight (D) for each kind, before rotation */
    int zero_output;                /* 1: matrices whose result is added to the residual stream begin as zeros; 2: an untied
                                     * head too */
    int value_embeddings;           /* n: in the last layer, and every n-th before it, an embedding of its own is added to
                                     * the values */
    double init_fan;                /* matrices begin with standard deviation init_fan / sqrt(inputs), not init_std */
    double init_embed;              /* the embedding's standard deviation, not init_std */
    double logit_cap;               /* logits become cap tanh(logits / cap) */
    double route_scale;             /* weights of routed MLP experts are multiplied by it */
} Config;

/* "m4", "d12", "u6:c256h4", "m12:e64k8f256". Letters after the colon: c channels, h query heads in all, d head size,
 * q kv heads (= heads per attention expert), a attention experts, x of them per token, e experts, k per token, f expert
 * width, s shared experts; b always-on attention experts, n1 query and key norm, z1 zero output matrices (z2: and head), u1
 * untied head, v value embeddings every v layers, l cap of logits; in hundredths: i initial scale by fan-in, y of the
 * embedding, w scale of the routed experts' weights. 0 and a message when it cannot be. vocab and context are left 0. */
int  config_parse(Config *c, const char *descriptor, Error *e);
void config_descriptor(const Config *c, char text[128]);    /* the other way; complete, so parsing it gives c again */
/* 1, or 0 with the rule that is broken. The memory plan of an accepted configuration cannot overflow. */
int  config_check(const Config *c, Error *e);
enum { LAYERS_MAX = 10000, SIZE_LIMIT = 1 << 24 };                  /* SIZE_LIMIT: of every size but the layers */

Family      config_family(const Config *c);
const char *family_name(Family f);                                  /* "jetmoe", ... */
const char *scores_name(int s);
const char *activation_name(int a);
const char *rounding_name(int r);
int         scores_by_name(const char *name);                       /* -1 if unknown */
int         activation_by_name(const char *name);
int         rounding_by_name(const char *name);


int config_has_values(const Config *c, int l);      /* does layer l have an embedding of its own? */

/* Parameters that work on one token (of `total` learnable ones): each router's k of its experts. */
size_t config_active(const Config *c, size_t total);
double config_flops(const Config *c, int T);       /* forward + backward matmul flop per token, active experts only */
#endif
