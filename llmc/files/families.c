/* families.c: see families.h. Their keys: config_json.c; their tensors: pieces.c. */
#include "families.h"

/* What a family must have, and what it may have besides. */
enum {
    HAS_MIXED_ATTENTION = 1 << 0, HAS_EXPERTS = 1 << 1, HAS_SHARED = 1 << 2, HAS_GATE = 1 << 3,
    HAS_DENSE_LAYERS = 1 << 4,
    HAS_HEAD_NORM = 1 << 5, HAS_JOINT_NORM = 1 << 6, HAS_QKV_BIAS = 1 << 7, HAS_QKVO_BIAS = 1 << 8,
    HAS_CHOICE_BIAS = 1 << 9,
    HAS_SCALES = 1 << 10, HAS_ROUTE_SCALE = 1 << 11, HAS_PARTIAL = 1 << 12, HAS_PAIRS = 1 << 13,
    HAS_OUTPUT_BIAS = 1 << 14,
    HAS_OWN = 1 << 15,                  /* what only smoe has */
    HAS_BLOCK_EPS = 1 << 16,            /* another epsilon at the end */
    HAS_SCALED_ROPE = 1 << 17,
    HAS_GROUPS = 1 << 19,
    HAS_ODD_HEADS = 1 << 18,            /* channels no multiple of heads: Transformers refuses such a llama */
    HAS_WINDOW = 1 << 20, HAS_SOME_WINDOWS = 1 << 21,       /* in all layers, in some */
    HAS_SINKS = 1 << 22, HAS_EXPERT_BIAS = 1 << 23, HAS_CLAMPED = 1 << 24,
    HAS_LATENTS = 1 << 25, HAS_GROUPS_BY_BEST = 1 << 26
};
enum { BY_SOFTMAX = 1 << TOPK_SOFTMAX, BY_P = 1 << SOFTMAX_TOPK, BY_P_BIASED = 1 << SOFTMAX_RENORM,
       BY_SIGMOID = 1 << SIGMOID_TOPK | 1 << SIGMOID_EACH };
/* missing: Transformers' defaults of missing keys. 0: as in most families (config_json.c). */
static const struct { Family family; const char *name, *architecture; int must, may,
                      scores; Config missing; } rows[] = {
    { FAMILY_JETMOE, "jetmoe", "JetMoeForCausalLM", HAS_MIXED_ATTENTION | HAS_EXPERTS | HAS_OUTPUT_BIAS,
      HAS_BLOCK_EPS, BY_SOFTMAX,
      { .context = 4096, .kv_heads = 16, .experts = 8, .topk = 2, .tied = 1, .init_std = 0.01 } },
    { FAMILY_MIXTRAL, "mixtral", "MixtralForCausalLM", HAS_EXPERTS,
      HAS_SCALED_ROPE | HAS_ODD_HEADS | HAS_WINDOW, BY_SOFTMAX,
      { .context = 131072, .kv_heads = 8, .experts = 8, .topk = 2, .final_eps = 1e-5, .rope_theta = 1e6 } },
    { FAMILY_LLAMA, "llama", "LlamaForCausalLM", 0,
      HAS_QKVO_BIAS | HAS_SCALED_ROPE, 0, { 0 } },
    { FAMILY_MISTRAL, "mistral", "MistralForCausalLM", 0,
      HAS_SCALED_ROPE | HAS_ODD_HEADS | HAS_WINDOW, 0, { .context = 131072, .kv_heads = 8 } },
    { FAMILY_QWEN3, "qwen3", "Qwen3ForCausalLM", HAS_HEAD_NORM,
      HAS_QKVO_BIAS | HAS_SCALED_ROPE | HAS_ODD_HEADS | HAS_WINDOW | HAS_SOME_WINDOWS, 0,
      { .context = 32768, .kv_heads = 32, .head_size = 128 } },
    { FAMILY_QWEN2, "qwen2", "Qwen2ForCausalLM", HAS_QKV_BIAS,
      HAS_SCALED_ROPE | HAS_WINDOW | HAS_SOME_WINDOWS, 0, { .context = 32768, .kv_heads = 32 } },
    { FAMILY_OLMOE, "olmoe", "OlmoeForCausalLM", HAS_EXPERTS | HAS_JOINT_NORM,
      HAS_QKVO_BIAS | HAS_SCALED_ROPE, BY_SOFTMAX | BY_P,
      { .context = 4096, .experts = 64, .topk = 8, .final_eps = 1e-5 } },
    { FAMILY_QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM", HAS_EXPERTS | HAS_HEAD_NORM,
      HAS_DENSE_LAYERS | HAS_QKVO_BIAS | HAS_SCALED_ROPE | HAS_ODD_HEADS | HAS_WINDOW, BY_SOFTMAX | BY_P,
      { .context = 32768, .kv_heads = 4, .experts = 128, .topk = 8 } },
    { FAMILY_QWEN2_MOE, "qwen2_moe", "Qwen2MoeForCausalLM", HAS_EXPERTS | HAS_SHARED | HAS_GATE,
      HAS_DENSE_LAYERS | HAS_QKV_BIAS | HAS_SCALED_ROPE | HAS_WINDOW | HAS_SOME_WINDOWS, BY_SOFTMAX | BY_P,
      { .context = 32768, .kv_heads = 16, .experts = 60, .topk = 4 } },
    { FAMILY_GRANITE, "granitemoe", "GraniteMoeForCausalLM", HAS_EXPERTS,
      HAS_SCALES | HAS_QKVO_BIAS | HAS_SCALED_ROPE, BY_SOFTMAX, { .experts = 8, .topk = 2 } },
    { FAMILY_GRANITE_SHARED, "granitemoeshared", "GraniteMoeSharedForCausalLM", HAS_EXPERTS,
      HAS_SHARED | HAS_SCALES | HAS_QKVO_BIAS | HAS_SCALED_ROPE, BY_SOFTMAX, { .experts = 8, .topk = 2 } },
    { FAMILY_DOTS, "dots1", "Dots1ForCausalLM", HAS_EXPERTS | HAS_SHARED | HAS_HEAD_NORM | HAS_CHOICE_BIAS,
      HAS_DENSE_LAYERS | HAS_QKVO_BIAS | HAS_ROUTE_SCALE | HAS_SCALED_ROPE | HAS_ODD_HEADS | HAS_GROUPS | HAS_WINDOW
      | HAS_SOME_WINDOWS, BY_SIGMOID, { .kv_heads = 32 } },
    { FAMILY_GLM, "glm4_moe", "Glm4MoeForCausalLM", HAS_EXPERTS | HAS_SHARED | HAS_CHOICE_BIAS,
      HAS_DENSE_LAYERS | HAS_HEAD_NORM | HAS_QKV_BIAS | HAS_ROUTE_SCALE | HAS_PARTIAL | HAS_SCALED_ROPE
      | HAS_ODD_HEADS | HAS_GROUPS, BY_SIGMOID,
      { .context = 131072, .kv_heads = 8, .experts = 128, .topk = 8, .final_eps = 1e-5 } },
    { FAMILY_SOLAR, "solar_open", "SolarOpenForCausalLM", HAS_EXPERTS | HAS_SHARED | HAS_CHOICE_BIAS,
      HAS_QKV_BIAS | HAS_ROUTE_SCALE | HAS_SCALED_ROPE | HAS_ODD_HEADS | HAS_GROUPS, BY_SIGMOID,
      { .context = 131072, .kv_heads = 8, .head_size = 128, .experts = 128, .topk = 8, .final_eps = 1e-5,
        .rope_theta = 1e6 } },
    { FAMILY_ERNIE, "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", HAS_EXPERTS | HAS_CHOICE_BIAS | HAS_PAIRS,
      HAS_SHARED | HAS_DENSE_LAYERS | HAS_SCALED_ROPE | HAS_ODD_HEADS, BY_P_BIASED,
      { .context = 131072, .kv_heads = 4, .experts = 64, .topk = 6, .tied = 1, .final_eps = 1e-5, .rope_theta = 5e5 } },
    { FAMILY_GPT_OSS, "gpt_oss", "GptOssForCausalLM", HAS_EXPERTS | HAS_SINKS | HAS_EXPERT_BIAS | HAS_CLAMPED,
      HAS_QKVO_BIAS | HAS_SCALED_ROPE | HAS_ODD_HEADS | HAS_WINDOW | HAS_SOME_WINDOWS, BY_SOFTMAX,
      { .context = 131072, .kv_heads = 8, .head_size = 64, .experts = 128, .topk = 4, .final_eps = 1e-5,
        .rope_theta = 150000 } },
    { FAMILY_DEEPSEEK_V3, "deepseek_v3", "DeepseekV3ForCausalLM", HAS_EXPERTS | HAS_SHARED | HAS_CHOICE_BIAS
      | HAS_LATENTS,
      HAS_DENSE_LAYERS | HAS_ROUTE_SCALE | HAS_GROUPS | HAS_PAIRS | HAS_SCALED_ROPE | HAS_ODD_HEADS, BY_SIGMOID,
      { .context = 4096, .kv_heads = 128, .experts = 256, .topk = 8, .groups = 8, .groups_chosen = 4,
        .route_scale = 2.5, .kv_rank = 512, .query_rank = 1536, .rotated = 64, .head_size = 128, .value_size = 128 } },
    { FAMILY_GLM_LITE, "glm4_moe_lite", "Glm4MoeLiteForCausalLM", HAS_EXPERTS | HAS_SHARED | HAS_CHOICE_BIAS
      | HAS_LATENTS,
      HAS_DENSE_LAYERS | HAS_ROUTE_SCALE | HAS_GROUPS | HAS_PAIRS | HAS_SCALED_ROPE | HAS_ODD_HEADS, BY_SIGMOID,
      { .context = 202752, .kv_heads = 20, .experts = 64, .topk = 4, .route_scale = 1.8, .final_eps = 1e-5,
        .kv_rank = 512, .query_rank = 768, .rotated = 64, .head_size = 192, .value_size = 256 } },
    { FAMILY_DEEPSEEK_V2, "deepseek_v2", "DeepseekV2ForCausalLM", HAS_EXPERTS | HAS_SHARED | HAS_LATENTS
      | HAS_PAIRS,
      HAS_DENSE_LAYERS | HAS_ROUTE_SCALE | HAS_GROUPS_BY_BEST | HAS_SCALED_ROPE, BY_P,
      { .experts = 64, .kv_rank = 512, .query_rank = 1536, .rotated = 64, .head_size = 128, .value_size = 128 } },
    { FAMILY_MINIMAX_M2, "minimax_m2", "MiniMaxM2ForCausalLM", HAS_EXPERTS | HAS_JOINT_NORM | HAS_CHOICE_BIAS,
      HAS_PARTIAL | HAS_SCALED_ROPE | HAS_ODD_HEADS, 1 << SIGMOID_TOPK,
      { .context = 196608, .kv_heads = 8, .head_size = 128, .experts = 256, .topk = 8, .rope_theta = 5e6 } },
    { FAMILY_SMOE, "smoe", "SmoeForCausalLM", 0,
      HAS_MIXED_ATTENTION | HAS_EXPERTS | HAS_SHARED | HAS_HEAD_NORM | HAS_JOINT_NORM | HAS_CHOICE_BIAS
      | HAS_ROUTE_SCALE | HAS_OUTPUT_BIAS | HAS_OWN | HAS_BLOCK_EPS | HAS_ODD_HEADS | HAS_WINDOW, ~0,
      { .experts = 8, .topk = 2 } },
};
enum { ROWS = sizeof rows / sizeof *rows };

static int any_dense(const Config *c) {
    int any = 0;
    for (int l = 0; l < MOST_LISTED / 64; l++) any |= c->dense.bits[l] != 0;
    return any && c->experts > 1;
}
static int features(const Config *c) {
    const int heads = c->kv_heads * c->query_heads, mixture = c->experts > 1;
    const int symmetric = c->experts == c->attention_experts && c->topk == c->attention_topk;
    int f = 0;
    if (c->attention_experts > 1)             f |= HAS_MIXED_ATTENTION | (symmetric ? 0 : HAS_OWN);
    if (mixture)                              f |= HAS_EXPERTS;
    if (mixture && c->shared_width)           f |= HAS_SHARED;
    if (c->shared_gate)                       f |= HAS_GATE;
    if (any_dense(c))                         f |= HAS_DENSE_LAYERS;
    if (c->qk_norm)                           f |= c->qk_norm == NORM_EACH ? HAS_HEAD_NORM : HAS_JOINT_NORM;
    if (c->attention_bias)                    f |= c->attention_bias == 1 ? HAS_QKV_BIAS : HAS_QKVO_BIAS;
    if (c->choice_bias)                       f |= HAS_CHOICE_BIAS;
    if (c->embed_scale > 0 || c->residual_scale > 0 || c->attention_scale > 0 || c->logit_divisor > 0) f |= HAS_SCALES;
    if (c->route_scale > 0)                   f |= HAS_ROUTE_SCALE;
    if (c->groups > 1)                        f |= c->groups_by_best ? HAS_GROUPS_BY_BEST : HAS_GROUPS;
    if (c->window)                            f |= config_own_window(c) ? HAS_WINDOW : HAS_SOME_WINDOWS;
    if (c->kv_rank)                           f |= HAS_LATENTS;
    else if (c->rotated && c->rotated < c->head_size) f |= HAS_PARTIAL;
    if (c->rope_pairs)                        f |= HAS_PAIRS;
    if (c->output_bias)                       f |= HAS_OUTPUT_BIAS;
    if (c->rope.kind)                         f |= HAS_SCALED_ROPE;
    if (c->channels % heads)                  f |= HAS_ODD_HEADS;
    if (c->norm_eps != c->final_eps || (c->attention_experts > 1 && c->norm_eps != 1e-6)) f |= HAS_BLOCK_EPS;
    if (c->sinks)                             f |= HAS_SINKS;
    if (c->expert_bias)                       f |= HAS_EXPERT_BIAS;
    if (c->activation == CLAMPED)             f |= HAS_CLAMPED;
    if (c->universal || (c->activation != SWIGLU && c->activation != CLAMPED) || c->value_embeddings
        || config_mixes(c) || c->key_shift || c->logit_cap > 0) f |= HAS_OWN;
    return f;
}
static int row_of(Family f) {
    int i = 0;
    while (i < ROWS && rows[i].family != f) i++;
    return i;
}
int family_expresses(Family f, const Config *c) {
    const int has = features(c), row = row_of(f);
    if (row == ROWS || (rows[row].must & ~has) || (has & ~(rows[row].must | rows[row].may))) return 0;
    if (f == FAMILY_JETMOE && c->norm_eps != 1e-6) return 0;            /* in no file */
    if (f == FAMILY_OLMOE && c->head_size * c->kv_heads * c->query_heads != c->channels) return 0;
    return c->experts == 1 || rows[row].scores >> c->scores & 1;
}
Family config_family(const Config *c) {
    if (c->family && family_expresses(c->family, c)) return c->family;
    for (int i = 0; i < ROWS; i++) if (family_expresses(rows[i].family, c)) return rows[i].family;
    return FAMILY_SMOE;
}
const char *family_name(Family f)         { return row_of(f) < ROWS ? rows[row_of(f)].name : ""; }
const char *family_architecture(Family f) { return row_of(f) < ROWS ? rows[row_of(f)].architecture : ""; }
const Config *family_defaults(Family f)   { return &rows[row_of(f)].missing; }

const char *family_gguf_scores(const Config *c) {
    const Family f = c->experts > 1 ? config_family(c) : FAMILY_SMOE;
    if (f == FAMILY_QWEN3_MOE) return c->scores == TOPK_SOFTMAX ? NULL : "topk-softmax";
    if (f == FAMILY_OLMOE || f == FAMILY_QWEN2_MOE) return c->scores == SOFTMAX_TOPK ? NULL : "softmax-topk";
    return NULL;
}

int family_upcycle(Config *c, const char *fields, Error *e) {
    if (!config_upcycle(c, fields, e)) return 0;
    if (c->family != FAMILY_SMOE) c->family = 0;
    if (c->attention_bias == 1) c->attention_bias = 2;      /* with one of the output, which begins at zero */
    return family_expresses(config_family(c), c)
        || error_set(e, "-up %s: no family of mixtures has windows (sliding_window) in some of the layers only",
                     fields);
}
