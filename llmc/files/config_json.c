/* config_json.c: see config_json.h. Tables: its keys, their defaults, what is refused. */
#include "config_json.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json: one table reads and writes it ---------------------------------------------- */

typedef enum { NUMBER, DOUBLE, FLAG, VOCAB, PADDED, HEADS, SCORE, RENORM, SHARED, ACTIVATION, BIASES, MULTIPLIER,
               OF_SCORES, OPTION, OPTIONAL_DOUBLE, RANK, UNROTATED } KeyKind;
static int is_double(KeyKind kind) {
    return kind == DOUBLE || kind == MULTIPLIER || kind == OF_SCORES || kind == OPTIONAL_DOUBLE;
}
enum { REQUIRED = -1, DEPENDS = -2 };                       /* DEPENDS: see default_of */
enum {
    JET = FAMILY_JETMOE, MIX = FAMILY_MIXTRAL, LLA = FAMILY_LLAMA, MIS = FAMILY_MISTRAL, OWN = FAMILY_SMOE,
    OLM = FAMILY_OLMOE, QW3 = FAMILY_QWEN3, Q3M = FAMILY_QWEN3_MOE, Q2M = FAMILY_QWEN2_MOE,
    GRA = FAMILY_GRANITE | FAMILY_GRANITE_SHARED, GRS = FAMILY_GRANITE_SHARED, DOT = FAMILY_DOTS, GLM = FAMILY_GLM,
    ERN = FAMILY_ERNIE, DS2 = FAMILY_DEEPSEEK_V2, DS3 = FAMILY_DEEPSEEK_V3, GPT = FAMILY_GPT_OSS,
    QW2 = FAMILY_QWEN2, LIT = FAMILY_GLM_LITE, SOL = FAMILY_SOLAR, MMX = FAMILY_MINIMAX_M2, MLA = DS2 | DS3 | LIT,
    ALL = FAMILIES_END - 1, QWENS = Q3M | Q2M, DENSE = LLA | MIS | QW2 | QW3,
    GLMS = GLM | SOL | DS3 | LIT,
    DEEP = DOT | GLMS, DEEPS = DEEP | DS2,                  /* sigmoids with a bias; scales, groups, dense layers */
    MOES = QWENS | DEEPS | ERN,                             /* dense layers may be between their mixtures */
    LOCAL = JET | MIX | OWN | GRA, BIASED = LLA | OLM | QW3 | Q3M | GRA | DOT | GLM | SOL,
    PARTIAL = GLM | MMX,                                    /* parts of heads may rotate */
    LISTED = QW2 | QW3 | Q2M | DOT | GPT,                               /* layer_types says which have a window */
    WINDOWED = LISTED | MIX | MIS | Q3M,
};
static const struct { int families; const char *key, *alias; KeyKind kind; size_t field; double otherwise; } keys[] = {
#define AT(field) offsetof(Config, field)
    /* otherwise: its value when missing
     * families           key                                alias              kind        field */
    { ALL,                "vocab_size",                      NULL,              VOCAB,      AT(vocab),       REQUIRED },
    { ALL,                "hidden_size",                     NULL,              NUMBER,     AT(channels),    REQUIRED },
    { ALL,                "num_hidden_layers",               NULL,              NUMBER,     AT(layers),      REQUIRED },
    { ALL,                "max_position_embeddings",         NULL,              NUMBER,     AT(context),      DEPENDS },
    { ALL & ~MOES,        "intermediate_size",               "ffn_hidden_size", NUMBER,     AT(width),       REQUIRED },
    { MOES,               "moe_intermediate_size",           NULL,              NUMBER,     AT(width),       REQUIRED },
    { MOES & ~SOL,        "intermediate_size",               NULL,              NUMBER,     AT(dense_width),        0 },
    { ALL,                "rms_norm_eps",                    NULL,              DOUBLE,     AT(final_eps),    DEPENDS },
    { ALL,                "rope_theta",                      NULL,              DOUBLE,     AT(rope_theta),   DEPENDS },
    { ALL,                "tie_word_embeddings",             NULL,              FLAG,       AT(tied),         DEPENDS },
    { ALL,                "initializer_range",               NULL,              DOUBLE,     AT(init_std),     DEPENDS },
    { ALL & ~JET,         "num_attention_heads",             NULL,              HEADS,      AT(query_heads), REQUIRED },
    { ALL,                "num_key_value_heads",             NULL,              NUMBER,     AT(kv_heads),     DEPENDS },
    { ALL & ~JET & ~MLA,  "head_dim",                        NULL,              NUMBER,     AT(head_size),    DEPENDS },
    { MLA,                "kv_lora_rank",                    NULL,              NUMBER,     AT(kv_rank),      DEPENDS },
    { MLA,                "q_lora_rank",                     NULL,              RANK,       AT(query_rank),   DEPENDS },
    { MLA,                "qk_rope_head_dim",                NULL,              NUMBER,     AT(rotated),      DEPENDS },
    { MLA,                "qk_nope_head_dim",                NULL,              UNROTATED,  AT(head_size),    DEPENDS },
    { MLA,                "v_head_dim",                      NULL,              NUMBER,     AT(value_size),   DEPENDS },
    { DS3 | LIT,          "rope_interleave",                 NULL,              FLAG,       AT(rope_pairs),         1 },
    { JET,                "kv_channels",                     NULL,              NUMBER,     AT(head_size),   REQUIRED },
    { LOCAL,              "num_local_experts",               "moe_num_experts", NUMBER,     AT(experts),      DEPENDS },
    { LOCAL,              "num_experts_per_tok",             "moe_top_k",       NUMBER,     AT(topk),         DEPENDS },
    { OLM | Q2M,          "num_experts",                     "num_local_experts", NUMBER,   AT(experts),      DEPENDS },
    { Q3M | GPT | MMX,    "num_local_experts",               "num_experts",     NUMBER,     AT(experts),      DEPENDS },
    { DEEP,               "n_routed_experts",                "num_local_experts", NUMBER,   AT(experts),      DEPENDS },
    { DS2,                "n_routed_experts",                "num_experts",     NUMBER,     AT(experts),      DEPENDS },
    { OLM | QWENS | DEEPS | GPT | MMX, "num_experts_per_tok", NULL,             NUMBER,     AT(topk),         DEPENDS },
    { ERN,                "moe_num_experts",                 "num_experts",     NUMBER,     AT(experts),      DEPENDS },
    { ERN,                "moe_k",                           "num_experts_per_tok", NUMBER, AT(topk),         DEPENDS },
    { JET,                "activation_function",             NULL,              ACTIVATION, AT(activation),    SWIGLU },
    { ALL & ~JET,         "hidden_act",                      NULL,              ACTIVATION, AT(activation),    SWIGLU },
    { OWN,                "num_attention_experts",           NULL,              NUMBER,     AT(attention_experts),  1 },
    { OWN,                "num_attention_experts_per_tok",   NULL,              NUMBER,     AT(attention_topk),     1 },
    { OWN | GRS,          "shared_intermediate_size",        NULL,              NUMBER,     AT(shared_width),       0 },
    { Q2M,                "shared_expert_intermediate_size", NULL,              NUMBER,    AT(shared_width), REQUIRED },
    { DOT,                "n_shared_experts",                NULL,              SHARED,    AT(shared_width), REQUIRED },
    { GLMS,               "n_shared_experts",                NULL,              SHARED,     AT(shared_width),       1 },
    { DS2,                "n_shared_experts",                NULL,              SHARED,     AT(shared_width),       2 },
    { ERN,                "moe_num_shared_experts",          NULL,              SHARED,     AT(shared_width),       2 },
    { OWN,                "router_scores",                   NULL,              SCORE,      AT(scores),  TOPK_SOFTMAX },
    { OLM | QWENS | DOT,  "norm_topk_prob",                  NULL,              RENORM,     AT(scores),             0 },
    { GLMS,               "norm_topk_prob",                  NULL,              RENORM,     AT(scores),             1 },
    { OWN,                "universal",                       NULL,              FLAG,       AT(universal),          0 },
    { OWN,                "output_bias",                     NULL,              FLAG,       AT(output_bias),        0 },
    { OWN,                "block_norm_eps",                  NULL,              DOUBLE,     AT(norm_eps),        1e-6 },
    { BIASED,             "attention_bias",                  NULL,              BIASES,     AT(attention_bias),     0 },
    { GPT,                "attention_bias",                  NULL,              BIASES,     AT(attention_bias),     1 },
    { Q2M,                "qkv_bias",                        NULL,              BIASES,     AT(attention_bias),     1 },
    { GLM,                "use_qk_norm",                     NULL,              FLAG,       AT(qk_norm),            0 },
    { GRA,                "embedding_multiplier",            NULL,              MULTIPLIER, AT(embed_scale),        1 },
    { GRA,                "residual_multiplier",             NULL,              MULTIPLIER, AT(residual_scale),     1 },
    { GRA,                "attention_multiplier",            NULL,              OF_SCORES,  AT(attention_scale),    1 },
    { GRA,                "logits_scaling",                  NULL,              MULTIPLIER, AT(logit_divisor),      1 },
    { DEEPS,              "routed_scaling_factor",           NULL,              MULTIPLIER, AT(route_scale),  DEPENDS },
    { DEEPS,              "n_group",                         NULL,              NUMBER,     AT(groups),       DEPENDS },
    { DEEPS,              "topk_group",                      NULL,              NUMBER,    AT(groups_chosen), DEPENDS },
    /* these are written only where they are not 0 */
    { OWN,                "qk_norm",                         NULL,              OPTION,     AT(qk_norm),            0 },
    { OWN,                "value_embedding_interval",        NULL,              OPTION,     AT(value_embeddings),   0 },
    { OWN,                "value_embedding_gate",            NULL,              OPTION,     AT(value_gate),         0 },
    { OWN,                "key_shift_interval",              NULL,              OPTION,     AT(key_shift),          0 },
    { OWN,                "attention_window",                NULL,              OPTION,     AT(window),             0 },
    { OWN,                "bigram_table_factor",             NULL,              OPTION,     AT(bigram),             0 },
    { OWN,                "stream_scalars",                  NULL,              OPTION,     AT(stream_scalars),     0 },
    { OWN,                "final_logit_softcapping",         NULL,              OPTIONAL_DOUBLE, AT(logit_cap),     0 },
    { OWN,                "routed_scaling_factor",           NULL,              OPTIONAL_DOUBLE, AT(route_scale),   0 },
    { OWN,                "router_choice_bias",              NULL,              OPTION,     AT(choice_bias),        0 },
    { ALL,                "initializer_zero_outputs",        NULL,              OPTION,     AT(zero_output),        0 },
    { ALL,                "initializer_fan_in_scale",        NULL,              OPTIONAL_DOUBLE, AT(init_fan),      0 },
    { ALL,                "initializer_embedding_range",     NULL,              OPTIONAL_DOUBLE, AT(init_embed),    0 },
    /* in run.json only */
    { ALL,                "padded_vocab_size",               NULL,              PADDED,     AT(padding),            0 },
#undef AT
};
enum { KEYS = sizeof keys / sizeof *keys };

typedef struct { Family family; int heads; Error *e; } Reader;  /* heads: query heads in all, once that key is read */

static double value_of(const Config *c, int i) {
    const char *field = (const char *)c + keys[i].field;
    return is_double(keys[i].kind) ? *(const double *)(const void *)field : *(const int *)(const void *)field;
}
/* The row of a key in the file of a family; -1: it is not in the table. */
static int row_of(const char *key, Family f) {
    for (int i = 0; i < KEYS; i++)
        if (keys[i].families & (int)f && (!strcmp(key, keys[i].key) || (keys[i].alias && !strcmp(key, keys[i].alias))))
            return i;
    return -1;
}
/* What a missing key means; -1: it must be there. */
static double default_of(int i, const Config *c, const Reader *r) {
    static const Config common = { .context = 2048, .groups = 1, .groups_chosen = 1, .final_eps = 1e-6,
                                   .rope_theta = 1e4, .init_std = 0.02, .route_scale = 1 };
    const double own = value_of(family_defaults(r->family), i), otherwise = own > 0 ? own : value_of(&common, i);
    if (otherwise > 0 || keys[i].kind == FLAG) return otherwise;
    if (keys[i].field == offsetof(Config, kv_heads)) return r->heads;
    /* rounded down, as Transformers does */
    return keys[i].field == offsetof(Config, head_size) && r->heads > 0 ? c->channels / r->heads : REQUIRED;
}

/* Describes positions: rope_parameters. Transformers takes older files' rope_scaling before it. */
static const JsonValue *rope_of(const JsonValue *root) {
    const JsonValue *older = json_get(root, "rope_scaling");
    return json_is(older, JSON_OBJECT) && json_first(older) ? older : json_given(root, "rope_parameters");
}
static int is_flag(int i) { return keys[i].kind == FLAG || keys[i].kind == BIASES || keys[i].kind == RENORM; }
/* null of a flag is false, as in Python */
static int flag_of(const JsonValue *v, int otherwise) { return !json_is(v, JSON_NULL) && json_bool(v, otherwise); }
static const JsonValue *find_key(const JsonValue *root, int i) {
    const JsonValue *v = (keys[i].kind == RANK || is_flag(i) ? json_get : json_given)(root, keys[i].key);
    if (!v && keys[i].alias) v = json_given(root, keys[i].alias);
    if (!strcmp(keys[i].key, "rope_theta") && json_given(rope_of(root), "rope_theta"))
        v = json_given(rope_of(root), "rope_theta");
    return v;
}

/* Versions of Transformers differ in which of two names they take. */
static int one_value(const JsonValue *root, int i, Error *e) {
    const JsonValue *v = json_given(root, keys[i].key), *other = keys[i].alias ? json_given(root, keys[i].alias) : NULL;
    return !v || !other || json_double(v, 0) == json_double(other, 0)
        || error_set(e, "\"%s\" and \"%s\" mean the same, but differ", keys[i].key, keys[i].alias);
}

/* The readers of numbers. key: for messages. */
static int read_integer(int *to, const char *key, const JsonValue *v, double otherwise, Error *e) {
    int64_t number = (int64_t)otherwise;
    if (!v && otherwise == REQUIRED) return error_set(e, "\"%s\" is missing", key);
    if (v && !json_read_int(v, key, 0, SIZE_LIMIT, &number, e)) return 0;
    *to = (int)number;
    return 1;
}
static int read_real(double *to, const char *key, const JsonValue *v, double otherwise, Error *e) {
    *to = otherwise;
    if (!v && otherwise == REQUIRED) return error_set(e, "\"%s\" is missing", key);
    return !v || json_read_double(v, key, -1e308, 1e308, to, e);
}
static int integer_of(int *to, const JsonValue *object, const char *key, double otherwise, Error *e) {
    return read_integer(to, key, json_given(object, key), otherwise, e);
}
static int real_of(double *to, const JsonValue *object, const char *key, double otherwise, Error *e) {
    return read_real(to, key, json_given(object, key), otherwise, e);
}

/* Fields of these types are read and written as ints, by their offset. */
_Static_assert(sizeof(Scores) == sizeof(int) && sizeof(Activation) == sizeof(int) && sizeof(HeadNorm) == sizeof(int),
               "enums are ints");

/* CLAMPED: by family */
static const char *const activation_names[] = { "silu", "gelu_pytorch_tanh", "relu2", [CLAMPED] = "silu" };
static int read_name(Config *c, int i, const JsonValue *v, const Reader *r) {
    const int is_score = keys[i].kind == SCORE;
    const Activation last = is_score ? 0 : r->family == FAMILY_SMOE ? RELU2 : SWIGLU;
    const char *name = v ? json_string(v, "") : is_score ? scores_name(0) : activation_names[SWIGLU];
    if (is_score && scores_by_name(name, &c->scores)) return 1;
    for (Activation a = SWIGLU; a <= last && !is_score; a++)
        if (!strcmp(name, activation_names[a])) return c->activation = a, 1;
    return error_set(r->e, "\"%s\" is \"%s\", which this program does not know in a %s", keys[i].key, name,
                     family_name(r->family));
}
static int read_key(Config *c, int i, const JsonValue *v, Reader *r) {
    const char *key = keys[i].key;
    void *field = (char *)c + keys[i].field;
    int *const integer = field;
    const double otherwise = keys[i].otherwise == DEPENDS ? default_of(i, c, r) : keys[i].otherwise;
    const KeyKind kind = keys[i].kind;
    if (kind == RANK && json_is(v, JSON_NULL)) return *integer = 0, 1;      /* there is no latent */
    if (kind == SCORE || kind == ACTIVATION) return read_name(c, i, v, r);
    if (is_flag(i)) {
        if (v && !json_is(v, JSON_BOOL) && !json_is(v, JSON_NULL))
            return error_set(r->e, "\"%s\" must be true or false", key);
        *integer = flag_of(v, otherwise != 0);
    } else if (is_double(kind) ? !read_real(field, key, v, otherwise, r->e)
                               : !read_integer(integer, key, v, kind == PADDED ? c->vocab : otherwise, r->e)) return 0;
    if ((kind == MULTIPLIER || kind == OF_SCORES) && !(*(double *)field > 0))
        return error_set(r->e, "\"%s\" is %g, no positive number", key, *(double *)field);
    switch (kind) {
    case HEADS: r->heads = *integer; break;
    case SHARED:                                            /* a number of experts that are one in memory */
        if ((double)*integer * c->width > SIZE_LIMIT) return error_set(r->e, "\"%s\" is %d", key, *integer);
        *integer *= c->width;
        break;
    case RANK: return *integer || error_set(r->e, "\"%s\" is 0; null is none", key);
    case UNROTATED: *integer += c->rotated; break;          /* the head without what positions rotate */
    case PADDED:
        if (*integer < c->vocab) return error_set(r->e, "\"%s\" is %d, less than \"vocab_size\"", key, *integer);
        *integer -= c->vocab;
        c->vocab += *integer;
        break;
    case MULTIPLIER: if (*(double *)field == 1) *(double *)field = 0; break;
    case OF_SCORES: if (*(double *)field == 1 / sqrt(c->head_size)) *(double *)field = 0; break;
    case BIASES: if (*integer) *integer = r->family & (Q2M | GLM | SOL) ? 1 : 2; break;
    case RENORM:
        *integer = r->family & DEEP ? *integer ? SIGMOID_TOPK : SIGMOID_EACH : *integer ? TOPK_SOFTMAX : SOFTMAX_TOPK;
        break;
    default: break;
    }
    return 1;
}

/* ---- positions ------------------------------------------------------------------------------- */

static const char *const rope_names[] = { "default", "linear", "llama3", "yarn" };

static int read_rope(Config *c, const JsonValue *root, const Reader *r) {
    const JsonValue *v = rope_of(root);
    Error *e = r->e;
    RopeScaling *s = &c->rope;
    double part = 1, all = 0, by = 0;
    const char *type = json_string(json_get(v, "rope_type"), json_string(json_get(v, "type"), "default"));
    int kind = 0;
    while (kind <= ROPE_YARN && strcmp(type, rope_names[kind])) kind++;
    if (!v && r->family & GPT && json_get(root, "rope_scaling"))
        return error_set(e, "\"rope_scaling\" is null: Transformers 4 then scales nothing, 5 takes yarn; write "
                         "{\"rope_type\": \"default\"} or what it should be");
    if (!v && r->family & GPT) {                            /* what its class has where nothing is said */
        *s = (RopeScaling){ ROPE_YARN, 1, 32, 1, 32, 4096, rope_mscale(32, 1), 0 };
        return 1;
    }
    if (strcmp(type, json_string(json_get(v, "type"), type)))
        return error_set(e, "\"type\" and \"rope_type\" of the scaled positions differ");
    if (v && v == json_get(root, "rope_scaling") && json_given(v, "rope_theta")
        && json_double(json_given(root, "rope_theta"), 0) != c->rope_theta)
        return error_set(e, "\"rope_theta\" of \"rope_scaling\", which only Transformers 5 reads, is not the one "
                         "beside \"rope_scaling\"; remove the wrong one, and write the other beside it");
    if (kind > ROPE_YARN)
        return error_set(e, "rope_type \"%.60s\"; this program knows default, linear, llama3 and yarn. Others need "
                         "their frequencies in llmc/model/rope.c", type);
    s->kind = kind;
    if (s->kind && r->family & (JET | OWN))
        return error_set(e, "rope_type \"%s\", which a %s does not have here", type, family_name(r->family));
    if (!real_of(&s->original, v, "original_max_position_embeddings", c->context, e)
        || !real_of(&s->factor, v, "factor",
                    s->kind == ROPE_YARN ? c->context / s->original : s->kind ? REQUIRED : 1, e)) return 0;
    if (s->kind == ROPE_LLAMA3 && !(real_of(&s->low, v, "low_freq_factor", REQUIRED, e)
                                    && real_of(&s->high, v, "high_freq_factor", REQUIRED, e))) return 0;
    if (s->kind == ROPE_YARN
        && !(real_of(&s->low, v, "beta_slow", 1, e) && real_of(&s->high, v, "beta_fast", 32, e)
             && real_of(&by, v, "mscale", 0, e) && real_of(&all, v, "mscale_all_dim", 0, e)
             && real_of(&s->attention, v, "attention_factor",
                        by > 0 && all > 0 ? rope_mscale(s->factor, by) / rope_mscale(s->factor, all)
                                          : rope_mscale(s->factor, 1), e))) return 0;
    if (s->kind && r->family & MLA && !real_of(&s->scores, v, "mscale_all_dim", 0, e)) return 0;
    s->exact = s->kind == ROPE_YARN && !flag_of(json_get(v, "truncate"), 1);
    if (s->kind && !(s->factor > 0 && s->original > 0 && s->low >= 0 && s->high >= s->low && s->attention >= 0
                     && s->factor < 1e9 && s->scores >= 0 && s->scores <= 1e6))
        return error_set(e, "a factor of rope_type \"%s\" is impossible", type);
    if (s->kind == ROPE_PLAIN) *s = (RopeScaling){ 0 };
    if (s->kind == ROPE_LINEAR) s->original = 0;
    int dim = c->head_size;
    if (r->family & MMX && !integer_of(&dim, root, "rotary_dim", c->head_size, e)) return 0;
    if (!real_of(&part, json_given(v, "partial_rotary_factor") ? v : root, "partial_rotary_factor",
                 r->family == FAMILY_GLM ? 0.5 : (double)dim / c->head_size, e)) return 0;
    if (part != 1 && !(r->family & PARTIAL))
        return error_set(e, "\"partial_rotary_factor\" is %g; of a %s this program rotates whole heads", part,
                         family_name(r->family));
    if (r->family & MLA) return 1;
    c->rotated = part > 0 && part < 1 ? (int)(c->head_size * part + 1e-6) : 0;
    if (!(part > 0 && part <= 1) || c->rotated % 2 || (part < 1 && !c->rotated))
        return error_set(e, "\"partial_rotary_factor\" %g of heads of %d is no even number of dimensions", part,
                         c->head_size);
    return 1;
}

static double rotated_part(const Config *c) { return c->rotated ? (double)c->rotated / c->head_size : 1; }
/* with_theta: as Transformers 5 has it; 4 has rope_theta beside it. */
static void write_rope(const Config *c, int with_theta, Text *out) {
    const RopeScaling *s = &c->rope;
    text_add(out, "{\"rope_type\": \"%s\"", rope_names[s->kind]);
    const struct { const char *key; double value; int kinds, integer; } numbers[] = {
        { "rope_theta", c->rope_theta, with_theta ? ~0 : 0, 0 },
        { "factor", s->factor, 1 << ROPE_LINEAR | 1 << ROPE_LLAMA3 | 1 << ROPE_YARN, 0 },
        { "original_max_position_embeddings", s->original, 1 << ROPE_LLAMA3 | 1 << ROPE_YARN, 1 },
        { "low_freq_factor", s->low, 1 << ROPE_LLAMA3, 0 }, { "high_freq_factor", s->high, 1 << ROPE_LLAMA3, 0 },
        { "beta_slow", s->low, 1 << ROPE_YARN, 0 }, { "beta_fast", s->high, 1 << ROPE_YARN, 0 },
        { "attention_factor", s->attention, 1 << ROPE_YARN, 0 },
        { "mscale_all_dim", s->scores, s->scores > 0 ? ~0 : 0, 0 },
        { "partial_rotary_factor", rotated_part(c), with_theta && config_family(c) & PARTIAL ? ~0 : 0, 0 },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].kinds >> s->kind & 1) {
            text_add(out, ", \"%s\": ", numbers[i].key);
            if (numbers[i].integer) text_add_double(out, numbers[i].value);
            else text_add_real(out, numbers[i].value);
        }
    text_add(out, s->exact ? ", \"truncate\": false}" : "}");
}

/* How a deepseek_v2 chooses experts, if not of all of them. */
static const char by_groups[] = "group_limited_greedy";

/* ---- layers that differ: without experts ----------------------------------------------------- */

static int read_layers(Config *c, const JsonValue *root, const Reader *r) {
    int step = 1, first = 0, start = 0, end = -1, interval = 1;
    Error *e = r->e;
    if (!(r->family & MOES)) return 1;
    if (r->family & QWENS && !integer_of(&step, root, "decoder_sparse_step", 1, e)) return 0;
    if (r->family & DEEPS && !integer_of(&first, root, "first_k_dense_replace",
                                         r->family & DS3 ? 3 : r->family & (GLM | LIT) ? 1 : 0, e)) return 0;
    const JsonValue *types = r->family & LIT ? json_given(root, "mlp_layer_types") : NULL, *type = json_first(types);
    if ((r->family & LIT && !types && first != 1) || (r->family & SOL && first))
        return error_set(e, "\"first_k_dense_replace\" is %d; Transformers ignores it in a %s%s", first,
                         family_name(r->family), r->family & LIT ? ", where \"mlp_layer_types\" says it" : "");
    if (r->family & ERN && !(integer_of(&start, root, "moe_layer_start_index", 1, e)
                             && integer_of(&interval, root, "moe_layer_interval", 1, e)
                             && (json_int(json_given(root, "moe_layer_end_index"), -1) == -1
                                 || integer_of(&end, root, "moe_layer_end_index", -1, e)))) return 0;
    if (step < 1 || interval < 1) return error_set(e, "every 0-th layer has experts");
    for (int l = 0; l < c->layers; l++, type = type ? type->next : NULL) {
        const char *name = json_string(type, "");
        if (types && strcmp(name, "dense") && strcmp(name, "sparse"))
            return error_set(e, "\"mlp_layer_types\" of layer %d is \"%.60s\"; dense and sparse are known", l, name);
        if (types ? *name == 'd' : (l + 1) % step || l < first
            || (r->family & ERN && ((l + 1) % interval || l < start || (end >= 0 && l > end)))) {
            if (l >= MOST_LISTED)
                return error_set(e, "layer %d has no experts; only the first %d may differ (MOST_LISTED in "
                                 "llmc/model/config.h)", l, MOST_LISTED);
            layers_add(&c->dense, l);
        }
    }
    const JsonValue *dense = r->family & QWENS ? json_get(root, "mlp_only_layers") : NULL;
    for (const JsonValue *v = json_first(dense); v; v = v->next) {
        int l;
        if (!read_integer(&l, "mlp_only_layers", v, REQUIRED, e)) return 0;
        if (l >= MOST_LISTED) return error_set(e, "\"mlp_only_layers\" has %d; at most %d here", l, MOST_LISTED - 1);
        if (l < c->layers) layers_add(&c->dense, l);
    }
    const int mixtures = config_mixtures(c);
    if (!mixtures) return error_set(e, "no layer of this %s has experts", family_name(r->family));
    if (mixtures == c->layers) c->dense_width = 0;
    else if (c->dense_width < 1) return error_set(e, "\"intermediate_size\" is missing");
    return 1;
}

static void write_layers(const Config *c, Text *out) {
    const Family f = config_family(c);
    int first = 0, end = c->layers - 1, n = 0, interval = 1;
    while (first < c->layers && !config_has_experts(c, first)) first++;
    while (end > 0 && !config_has_experts(c, end)) end--;
    for (int same = 0; f & ERN && !same && interval <= c->layers; interval += !same) {
        same = 1;
        for (int l = first; l <= end; l++) same &= ((l + 1) % interval == 0) == config_has_experts(c, l);
    }
    if (f & DEEPS && !(f & SOL)) text_add(out, ",\n  \"first_k_dense_replace\": %d", first);
    for (int l = 0; f & LIT && l < c->layers; l++)
        text_add(out, "%s\"%s\"%s", l ? ", " : ",\n  \"mlp_layer_types\": [",
                 config_has_experts(c, l) ? "sparse" : "dense", l == c->layers - 1 ? "]" : "");
    if (f & DS2) text_add(out, ",\n  \"topk_method\": \"%s\"", c->groups_by_best ? by_groups : "greedy");
    if (f & ERN)
        text_add(out, ",\n  \"moe_layer_start_index\": %d,\n  \"moe_layer_end_index\": %d,\n  "
                 "\"moe_layer_interval\": %d", first, end, interval);
    if (!(f & QWENS)) return;
    text_add(out, ",\n  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [");
    for (int l = 0; l < c->layers; l++) if (!config_has_experts(c, l)) text_add(out, "%s%d", n++ ? ", " : "", l);
    text_add(out, "]");
}

/* ---- and with a window ----------------------------------------------------------------------- */

/* Has layer l one, in Transformers? type: of layer_types, or NULL; most: max_window_layers. */
static int is_windowed(const Reader *r, const JsonValue *type, int most, int l) {
    if (type) return !strcmp(json_string(type, ""), "sliding_attention");
    return r->family & (QW2 | QW3 | DOT) ? l >= most : r->family & Q2M ? (l + 1) % 2 && l < most
                                   : r->family & GPT ? (l + 1) % 2 : 1;
}
static int read_windows(Config *c, const JsonValue *root, const Reader *r) {
    const JsonValue *types = r->family & LISTED ? json_given(root, "layer_types") : NULL, *type = json_first(types);
    Error *e = r->e;
    int window, most;
    if (r->family & OWN) config_set_own_window(c, c->window);
    if (!(r->family & WINDOWED)) return 1;
    if (!integer_of(&window, root, "sliding_window",
                    r->family & MIX || json_get(root, "sliding_window") ? 0 : r->family & GPT ? 128 : 4096, e)
        || !integer_of(&most, root, "max_window_layers", r->family & DOT ? 62 : 28, e)) return 0;
    if (r->family & (QW2 | QW3 | QWENS) && !json_bool(json_get(root, "use_sliding_window"), 0)) window = 0;
    else if (!window && json_given(root, "sliding_window"))
        return error_set(e, "\"sliding_window\" is 0; null is none");
    for (int l = 0; l < c->layers; l++, type = type ? type->next : NULL) {
        const char *name = json_string(type, "");
        if (types && strcmp(name, "full_attention") && strcmp(name, "sliding_attention"))
            return error_set(e, "\"layer_types\" of layer %d is \"%.60s\"; this program knows full_attention and "
                             "sliding_attention", l, name);
        if (!is_windowed(r, type, most, l)) continue;
        if (types && !window)
            return error_set(e, "layer %d is of sliding_attention, but there is no \"sliding_window\"", l);
        if (window >= c->context || !window) continue;
        if (l >= MOST_LISTED)
            return error_set(e, "layer %d has a window; only the first %d may (MOST_LISTED in llmc/model/config.h)", l,
                             MOST_LISTED);
        layers_add(&c->windowed, l);
        c->window = window;
    }
    return 1;
}

static void write_windows(const Config *c, Text *out) {
    const Family f = config_family(c);
    if (!(f & WINDOWED) || (!c->window && !(f & (MIS | DOT | GPT)))) return;
    if (f & (QW2 | QW3 | QWENS)) text_add(out, ",\n  \"use_sliding_window\": %s", c->window ? "true" : "false");
    if (c->window) text_add(out, ",\n  \"sliding_window\": %d", c->window);
    else if (f & GPT) text_add(out, ",\n  \"sliding_window\": %d", c->context);          /* it may not be null there */
    else text_add(out, ",\n  \"sliding_window\": null");
    for (int l = 0; f & LISTED && l < c->layers; l++)
        text_add(out, "%s\"%s_attention\"%s", l ? ", " : ",\n  \"layer_types\": [",
                 config_window(c, l) ? "sliding" : "full", l == c->layers - 1 ? "]" : "");
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* Would change the mathematics; harmless when missing, null or false. */
static const struct { int families; const char *key, *what; } refused[] = {
    { ALL & ~(BIASED | GPT), "attention_bias", "biases of queries, keys and values in this family" },
    { ALL, "mlp_bias", "biases in the MLP" }, { ERN, "use_bias", "biases in attention and MLP" },
    { ALL, "clip_qkv", "clipped queries, keys and values" },
    { DS2, "norm_topk_prob", "weights that are renormalized in this family" }, };
/* Where the value of a string is known, those that are; harmless when missing. */
static const struct { int families; const char *key, *values[2]; } named[] = {
    { GLMS | MMX, "scoring_func", { "sigmoid", NULL } },   { GLMS, "topk_method", { "noaux_tc", NULL } },
    { DOT, "scoring_func", { "sigmoid", "noaux_tc" } },
    { MMX, "qk_norm_type", { "per_layer", NULL } },   { GRA, "position_embedding_type", { "rope", NULL } },
    { DS2, "scoring_func", { "softmax", NULL } },   { DS2, "topk_method", { "greedy", by_groups } },
};
/* Keys that are read by their names above; a key in no table may change what a model computes. */
static const struct { int families; const char *key; } read_by_name[] = {
    { ALL, "model_type" }, { ALL, "rope_parameters" }, { ALL, "rope_scaling" }, { ALL, "partial_rotary_factor" },
    { ALL, "quantization_config" }, { MMX, "rotary_dim" }, { LISTED, "layer_types" }, { QWENS, "mlp_only_layers" },
    { QWENS, "decoder_sparse_step" }, { DEEPS, "first_k_dense_replace" }, { LIT, "mlp_layer_types" },
    { MLA | DEEP, "moe_layer_freq" }, { ERN, "moe_layer_start_index" }, { ERN, "moe_layer_end_index" },
    { ERN, "moe_layer_interval" }, { ERN, "moe_norm_min" }, { GPT, "swiglu_alpha" }, { GPT, "swiglu_limit" },
    { GLMS | DS2 | MMX | DOT, "scoring_func" }, { GLMS | DS2 | DOT, "topk_method" }, { MMX, "qk_norm_type" },
    { MMX, "attn_type_list" }, { JET, "num_attention_heads" }, { DS2, "norm_topk_prob" },
    /* what these families have always, or what they never read */
    { QW3 | Q3M | DOT | MMX, "use_qk_norm" }, { MMX, "use_routing_bias" }, { MMX, "shared_moe_mode" },
    { MMX, "mlp_intermediate_size" }, { MMX, "layernorm_full_attention_beta" },
    { MMX, "layernorm_linear_attention_beta" }, { MMX, "layernorm_mlp_beta" },
    { GPT, "experts_per_token" }, { JET, "glu" }, { JET, "bias" },
    { MLA, "head_dim" }, { SOL, "intermediate_size" },
};
/* Of training, of generation, of the names of things: they change no logit. */
static const char *const harmless[] = {
    "_name_or_path", "add_cross_attention", "architectures", "attention_dropout", "attn_implementation",
    "auto_map", "aux_loss_alpha", "aux_loss_coef", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "compression_ratio", "cross_attention_hidden_size", "decoder_start_token_id",
    "descriptor", "diversity_penalty",
    "do_sample", "dtype", "early_stopping", "embd_pdrop", "encoder_no_repeat_ngram_size", "eos_token_id", "ep_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "fuse_rope",
    "hidden_dropout", "id2label", "initial_context_length", "is_decoder", "is_encoder_decoder", "is_llama_config",
    "label2id",
    "length_penalty", "max_length", "max_model_len", "max_window_layers", "min_length", "moe_aux_loss_lambda",
    "moe_capacity", "moe_dropout_prob", "moe_gate", "moe_orthogonal_loss_lambda", "moe_use_aux_free",
    "moe_z_loss_lambda", "mtp_transformer_layers", "multi_token_pred_lambda", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_mtp_modules", "num_nextn_predict_layers", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_router_logits", "output_scores", "pad_token_id",
    "position_embedding_type", "prefix", "pretraining_tp", "problem_type", "pruned_heads", "qk_head_dim",
    "remove_invalid_values", "repetition_penalty", "resid_pdrop", "return_dict", "return_dict_in_generate",
    "router_aux_loss_coef", "router_jitter_noise", "sep_token_id", "seq_aux", "sliding_window", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k",
    "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "unk_token_id", "use_bfloat16",
    "use_cache", "use_mtp", "use_sliding_window",
};
static int is_empty(const JsonValue *v) {                   /* says nothing: null, false, 0, an empty list */
    return json_is(v, JSON_NULL) || (json_is(v, JSON_BOOL) && !json_bool(v, 1)) || json_double(v, 1) == 0
        || ((json_is(v, JSON_ARRAY) || json_is(v, JSON_OBJECT)) && !v->length);
}
static int is_known(const JsonValue *v, Family f) {
    int known = row_of(v->key, f) >= 0 || *v->key == '_' || !strncmp(v->key, "unsloth", 7) || is_empty(v);
    for (size_t i = 0; i < sizeof read_by_name / sizeof *read_by_name && !known; i++)
        known = read_by_name[i].families & (int)f && !strcmp(v->key, read_by_name[i].key);
    return known || text_is_among(v->key, harmless);
}
static int refuse_other_keys(const JsonValue *root, const Reader *r) {
    for (const JsonValue *v = json_first(root); v; v = v->next)
        if (!is_known(v, r->family))
            return error_set(r->e, "\"%.100s\" is not known of a %s, and might change what it computes. If it does "
                             "not, remove it from the file", v->key, family_name(r->family));
    static const char *const betas[] = { "layernorm_full_attention_beta", "layernorm_linear_attention_beta",
                                         "layernorm_mlp_beta" };
    for (size_t i = 0; i < sizeof betas / sizeof *betas && r->family & MMX; i++)
        if (json_double(json_get(root, betas[i]), 1) != 1)
            return error_set(r->e, "\"%s\" is not 1, and of a minimax_m2 this program knows no other", betas[i]);
    for (const JsonValue *v = r->family & MMX ? json_first(json_get(root, "attn_type_list")) : NULL; v; v = v->next)
        if (json_int(v, 0) != 1) return error_set(r->e, "\"attn_type_list\" has other layers than 1, full attention");
    for (const JsonValue *v = json_first(rope_of(root)); v; v = v->next) {
        static const char *const known[] = { "rope_type", "type", "rope_theta", "factor", "low_freq_factor",
            "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
            "mscale_all_dim", "attention_factor", "truncate", "partial_rotary_factor", "finetuned" };
        if (!text_is_among(v->key, known) && !is_empty(v))
            return error_set(r->e, "\"%.100s\" of the scaled positions is not known to this program", v->key);
    }
    return 1;
}
static int refuse_names(const JsonValue *root, const Reader *r) {
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        const JsonValue *v = named[i].families & r->family ? json_get(root, named[i].key) : NULL;
        if (json_is(v, JSON_NULL) && r->family & ~GRA) v = NULL;            /* of a granitemoe it is no rotation */
        const char *const *known = named[i].values, *name = json_string(v, "");
        if (v && strcmp(name, known[0]) && (!known[1] || strcmp(name, known[1])))
            return error_set(r->e, "\"%s\" is \"%.60s\"; of a %s this program knows %s%s%s", named[i].key, name,
                             family_name(r->family), known[0], known[1] ? " and " : "", known[1] ? known[1] : "");
    }
    return 1;
}
/* Weights in blocks are read: gpt_oss in MXFP4; others in FP8, 128 x 128 to a scale. */
static int refuse_quantized(const JsonValue *root, const Reader *r) {
    static const char way[] = "; a folder whose weights are in bf16 is needed";
    const JsonValue *q = json_given(root, "quantization_config"),
        *side = json_first(json_given(q, "weight_block_size"));
    const char *method = json_string(json_get(q, "quant_method"), ""),
        *form = json_string(json_given(q, "fmt"), "e4m3"),
        *scheme = json_string(json_given(q, "activation_scheme"), "dynamic");
    if (!q || (r->family & GPT && !strcmp(method, "mxfp4"))) return 1;
    if (r->family & GPT || strcmp(method, "fp8"))
        return error_set(r->e, "\"quantization_config\" has the quant_method \"%.60s\"; of a %s this program reads "
                         "%s%s", method, family_name(r->family),
                         r->family & GPT ? "mxfp4" : "fp8 in blocks of 128 x 128", way);
    if (json_int(side, 0) != 128 || !side->next || json_int(side->next, 0) != 128 || side->next->next)
        return error_set(r->e, "\"quantization_config\" has no \"weight_block_size\" of [128, 128], the only blocks of "
                         "fp8 that are read%s", way);
    if (strcmp(form, "e4m3") && strcmp(form, "float8_e4m3fn"))
        return error_set(r->e, "\"quantization_config\" has the fmt \"%.60s\"; e4m3 is read%s", form, way);
    return !strcmp(scheme, "dynamic")
        || error_set(r->e, "\"quantization_config\" has the activation_scheme \"%.60s\"; dynamic is known%s", scheme,
                     way);
}
static int refuse_unknown(const JsonValue *root, const Reader *r) {
    Error *e = r->e;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const JsonValue *v = json_given(root, refused[i].key);
        if (refused[i].families & r->family && v && !(json_is(v, JSON_BOOL) && !json_bool(v, 1)))
            return error_set(e, "\"%s\" is set, and this program does not know %s", refused[i].key, refused[i].what);
    }
    if (!refuse_quantized(root, r)) return 0;
    double least = 0, slope = 0, limit = 0;
    int every = 1;
    if (!refuse_names(root, r) || !refuse_other_keys(root, r)) return 0;
    if (r->family & (MLA | DEEP) && !integer_of(&every, root, "moe_layer_freq", 1, e)) return 0;
    if (every != 1) return error_set(e, "\"moe_layer_freq\" is %d; only 1 is known", every);
    if (r->family & GPT && !(real_of(&slope, root, "swiglu_alpha", CLAMPED_SLOPE, e)
                             && real_of(&limit, root, "swiglu_limit", CLAMPED_LIMIT, e))) return 0;
    if (r->family & GPT && (slope != CLAMPED_SLOPE || limit != CLAMPED_LIMIT))
        return error_set(e, "\"swiglu_alpha\" is %g and \"swiglu_limit\" %g; only %g and %g are known (CLAMPED in "
                         "kernels/kernels.h)", slope, limit, CLAMPED_SLOPE, CLAMPED_LIMIT);
    if (r->family & ERN && !real_of(&least, root, "moe_norm_min", 1e-12, e)) return 0;
    if (least > 1e-6) return error_set(e, "\"moe_norm_min\" is %g; only one that never matters (below 1e-6) is known",
                                       least);
    return 1;
}

/* Of latent attention every query head has keys and values of its own. */
static int complete_latents(Config *c, const JsonValue *root, const Reader *r) {
    if (c->kv_heads != r->heads)
        return error_set(r->e, "%d key/value heads and %d heads; latent attention has as many of both", c->kv_heads,
                         r->heads);
    const JsonValue *head = json_get(root, "head_dim");     /* Transformers takes angles for so many dimensions */
    if (head && r->family & (DS3 | LIT) && json_int(head, 0) != c->rotated)
        return error_set(r->e, "\"head_dim\" is not \"qk_rope_head_dim\", %d; without it, it is", c->rotated);
    if (!(r->family & DS2)) return 1;
    c->scores = SOFTMAX_TOPK, c->rope_pairs = 1;
    c->groups_by_best = !strcmp(json_string(json_given(root, "topk_method"), ""), by_groups);
    if (!c->groups_by_best) c->groups = c->groups_chosen = 1;
    return 1;
}

/* What follows from the keys that a family has. */
static int complete(Config *c, const JsonValue *root, const Reader *r) {
    const int heads = r->heads;
    const Family f = r->family;
    if (f == FAMILY_JETMOE) {       /* one number of experts for both kinds; block norms have a fixed epsilon */
        c->attention_experts = c->experts;
        c->attention_topk = c->query_heads = c->topk;
        c->output_bias = 1;
        c->norm_eps = 1e-6;
    } else {
        if (c->kv_heads < 1 || heads % c->kv_heads)
            return error_set(r->e, "%d key/value heads do not divide %d heads", c->kv_heads, heads);
        c->query_heads = heads / c->kv_heads;
        if (f != FAMILY_SMOE) c->norm_eps = c->final_eps;
    }
    if (f & MLA && !complete_latents(c, root, r)) return 0;
    if (f & DEEPS && (c->groups_chosen < (c->groups > 0) || c->groups_chosen > c->groups))     /* 0, 0: none */
        return error_set(r->e, "\"topk_group\" is %d, \"n_group\" %d", c->groups_chosen, c->groups);
    if (f & (QW3 | Q3M | DOT)) c->qk_norm = 1;
    if (f & (OLM | MMX)) c->qk_norm = 2;
    if (f & MMX) c->scores = SIGMOID_TOPK;
    if (f & ERN) c->scores = SOFTMAX_RENORM, c->rope_pairs = 1;
    if (f & (DEEP | ERN | MMX)) c->choice_bias = 1;
    if (f & QW2) c->attention_bias = 1;
    if (f & Q2M) c->shared_gate = 1;
    if (f & GPT) c->activation = CLAMPED, c->sinks = c->expert_bias = 1;
    if (f & DENSE) c->experts = c->topk = 1;
    if (c->vocab < 1 || c->context < 1) return error_set(r->e, "the vocabulary and the context must be at least 1");
    if (f & ~(DENSE | OWN) && c->experts < 2)
        return error_set(r->e, "a %s needs at least two experts, this one has %d", family_name(f), c->experts);
    if (!(c->final_eps >= 0 && c->norm_eps >= 0 && c->rope_theta > 0 && c->init_std >= 0 && c->init_fan >= 0
          && c->init_embed >= 0 && c->logit_cap >= 0 && c->route_scale >= 0 && c->attention_scale >= 0))
        return error_set(r->e, "a negative or missing epsilon, rope_theta, initializer_range, cap or scale");
    return 1;
}

/* A deepseek_v3 with code in its folder. It is saved as deepseek_v3, which other programs know,
 * without the names of that code. */
static const char kimi_k2[] = "kimi_k2";
/* What other families would take. */
#define IMAGES "images beside text: its model of text, saved alone, may be of a family that is"
#define AFTER "norms after attention and MLP"
static const struct { const char *type, *takes; } others[] = {
    { "deepseek_v32", "sparse attention (an indexer)" }, { "glm_moe_dsa", "sparse attention (an indexer)" },
    { "qwen3_next",  "linear attention (gated delta rule)" }, { "qwen3_5", "linear attention (gated delta rule)" },
    { "qwen3_5_moe", "linear attention (gated delta rule)" }, { "kimi_linear", "linear attention (gated delta rule)" },
    { "minimax", "linear attention" }, { "granitemoehybrid", "state-space layers (Mamba)" },
    { "nemotron_h", "state-space layers (Mamba)" }, { "jamba", "state-space layers (Mamba)" },
    { "falcon_h1", "state-space layers (Mamba)" }, { "bamba", "state-space layers (Mamba)" },
    { "lfm2", "short convolutions" }, { "lfm2_moe", "short convolutions" },
    { "llama4_text", "attention in chunks and layers without positions" }, { "llama4", IMAGES },
    { "smollm3", "layers without positions" }, { "exaone4", AFTER " and layers without positions" },
    { "gemma2", AFTER ", capped scores and a gated GELU" }, { "gemma3_text", AFTER " and a gated GELU" },
    { "gemma3", IMAGES }, { "olmo2", AFTER }, { "olmo3", AFTER }, { "flex_olmo", AFTER }, { "glm4", AFTER },
    { "phi3", "one tensor for queries, keys and values, and positions scaled by longrope" },
    { "phimoe", "LayerNorm with biases and SparseMixer routers" },
    { "hunyuan_v1_moe", "norms of queries and keys after their rotation" },
    { "gpt2", "LayerNorm with biases and learned positions" }, { "gpt_neox", "LayerNorm and parallel blocks" },
    { "starcoder2", "LayerNorm with biases" }, { "cohere2", "LayerNorm and parallel blocks" },
    { "qwen2_vl", IMAGES }, { "qwen2_5_vl", IMAGES }, { "qwen3_vl", IMAGES }, { "qwen3_vl_moe", IMAGES },
    { "mistral3", IMAGES }, { "kimi_k25", IMAGES }, { "ernie4_5_vl_moe", IMAGES },
};
static int known_names(Error *e, const char *type) {
    Text names = { 0 };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(type, others[i].type)) return error_set(e, "model_type \"%s\" is not implemented. It would take %s",
                                                            type, others[i].takes);
    for (int f = 1; f < FAMILIES_END; f *= 2)
        text_add(&names, "%s%s", f == 1 ? "" : f * 2 < FAMILIES_END ? ", " : " and ", family_name(f));
    error_set(e, "model_type \"%.100s\"; known are %s", type, names.at);
    free(names.at);
    return 0;
}

static int read_config(Config *c, const JsonValue *root, Error *e) {
    const char *type = json_string(json_get(root, "model_type"), "");
    Reader r = { .e = e };
    if (!strcmp(type, kimi_k2)) type = family_name(FAMILY_DEEPSEEK_V3);
    for (int i = 1; i < FAMILIES_END; i *= 2) if (!strcmp(type, family_name(i))) r.family = i;
    if (!r.family) return known_names(e, type);
    *c = (Config){ .layers = 1, .attention_experts = 1, .attention_topk = 1, .experts = 1, .topk = 1, .tile = ROW_TILE,
                   .scores = TOPK_SOFTMAX, .family = r.family };
    const JsonValue *always = json_given(root, "num_always_on_attention_experts");
    if (r.family == FAMILY_SMOE && json_int(always, always != NULL))
        return error_set(e, "num_always_on_attention_experts: " WITHOUT_ALWAYS);
    for (int i = 0; i < KEYS; i++)
        if (keys[i].families & r.family && !(one_value(root, i, e) && read_key(c, i, find_key(root, i), &r))) return 0;
    if (!complete(c, root, &r) || !config_check(c, e) || !read_layers(c, root, &r) || !read_rope(c, root, &r)
        || !read_windows(c, root, &r) || !refuse_unknown(root, &r)) return 0;
    return family_expresses(r.family, c) ? 1
        : error_set(e, "a %s of these sizes is not known to this program", family_name(r.family));
}
int config_from_json(Config *c, const JsonValue *root, Error *e) {
    Error why;
    return read_config(c, root, &why) || error_set(e, "config.json: %.900s", why.text);
}

/* ---- writing --------------------------------------------------------------------------------- */

const char *config_type(const char *dtype) {
    return !strcmp(dtype, "BF16") ? "bfloat16" : !strcmp(dtype, "F16") ? "float16" : !strcmp(dtype, "F64") ? "float64"
                                  : "float32";
}
static int is_written(const Config *c, int i) {
    const int optional = keys[i].kind == OPTION || keys[i].kind == OPTIONAL_DOUBLE || keys[i].kind == PADDED;
    return (keys[i].families & (int)config_family(c)) && (!optional || value_of(c, i) > 0);
}
static void write_value(const Config *c, int i, Text *out) {
    const double value = value_of(c, i);
    const int number = is_double(keys[i].kind) ? 0 : (int)value;
    switch (keys[i].kind) {
    case NUMBER: case OPTION: text_add(out, "%d", number); break;
    case VOCAB:      text_add(out, "%d", number - c->padding); break;
    case PADDED:     text_add(out, "%d", c->vocab); break;
    case HEADS:      text_add(out, "%d", number * c->kv_heads); break;
    case SHARED:     text_add(out, "%d", number / c->width); break;
    case RANK:       if (number) text_add(out, "%d", number); else text_add_string(out, "null"); break;
    case UNROTATED:  text_add(out, "%d", number - c->rotated); break;
    case DOUBLE: case OPTIONAL_DOUBLE: text_add_real(out, value); break;
    case MULTIPLIER: text_add_real(out, value > 0 ? value : 1); break;
    case OF_SCORES:  text_add_real(out, value > 0 ? value : 1 / sqrt(c->head_size)); break;
    case FLAG: case BIASES: text_add(out, number ? "true" : "false"); break;
    case RENORM:     text_add(out, SUMS_TO_ONE(c->scores) ? "true" : "false"); break;
    case SCORE:      text_add(out, "\"%s\"", scores_name(number)); break;
    case ACTIVATION: text_add(out, "\"%s\"", activation_names[number]); break;
    }
}

/* Classes of modeling_smoe.py (hf.c writes it), for what Transformers does not know. */
#define AUTO_MAP "\"auto_map\": {\n    \"AutoConfig\": \"modeling_smoe.SmoeConfig\",\n" \
                 "    \"AutoModelForCausalLM\": \"modeling_smoe.SmoeForCausalLM\"\n  }"

/* What older versions of Transformers, and what reads files as they do, call it: written beside the
 * newer keys, if the file (NULL: a new one) does not have it. */
static void write_older(const Config *c, const JsonValue *origin, const char *separator, Text *out) {
    const Family f = config_family(c);
    const int newer = !origin || json_is(json_given(origin, "rope_parameters"), JSON_OBJECT);
    if (f & Q3M && !json_get(origin, "num_experts"))          /* before 5.8 */
        text_add(out, "%s\"num_experts\": %d", separator, c->experts);
    if (newer && origin && !json_get(origin, "rope_theta")) {
        text_add(out, "%s\"rope_theta\": ", separator);
        text_add_real(out, c->rope_theta);
    }
    if (newer && (c->rope.kind || f & GPT) && !json_get(origin, "rope_scaling")) {
        text_add(out, "%s\"rope_scaling\": ", separator);
        write_rope(c, 0, out);
    }
    if (newer && f & MMX && !json_get(origin, "rotary_dim"))
        text_add(out, "%s\"rotary_dim\": %d", separator, c->rotated ? c->rotated : c->head_size);
    if (newer && f == FAMILY_GLM && !json_get(origin, "partial_rotary_factor")) {
        text_add(out, "%s\"partial_rotary_factor\": ", separator);
        text_add_real(out, rotated_part(c));
    }
}
void config_to_json(const Config *c, const char *dtype, int in_memory, Text *out) {
    const Family f = config_family(c);
    char descriptor[128];
    config_descriptor(c, descriptor);
    text_add(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"", family_architecture(f),
             family_name(f));
    if (f == FAMILY_SMOE && !in_memory) text_add(out, ",\n  " AUTO_MAP);
    for (int i = 0; i < KEYS; i++) {
        if (!is_written(c, i) || (keys[i].kind == PADDED && !in_memory)) continue;
        text_add(out, ",\n  \"%s\": ", keys[i].key);
        write_value(c, i, out);
    }
    if (f == FAMILY_JETMOE) text_add(out, ",\n  \"num_attention_heads\": %d", c->kv_heads * c->query_heads);
    write_layers(c, out);
    write_windows(c, out);
    text_add_string(out, ",\n  \"rope_parameters\": ");
    write_rope(c, 1, out);
    if (!in_memory) write_older(c, NULL, ",\n  ", out);
    text_add(out, ",\n  \"dtype\": \"%s\",\n  \"descriptor\": \"%s\"\n}\n", config_type(dtype), descriptor);
}

/* Is it the same in the file's words? */
static int is_kept(const Config *c, const Config *was, int i) {
    return keys[i].kind == VOCAB ? config_ids(c) == config_ids(was) : value_of(c, i) == value_of(was, i);
}

/* The beginning of a member. separator: what stands before it, and then before the next one. */
static void write_key(const JsonValue *v, const char **separator, Text *out) {
    text_add_string(out, *separator);
    text_add_json(out, v->key, v->key_length);
    text_add_string(out, ": ");
    *separator = ",\n  ";
}
/* A rope_theta that another, of rope_parameters, is taken before. */
static int is_hidden(const Config *c, const JsonValue *v) {
    return !strcmp(v->key, "rope_theta") && json_double(v, c->rope_theta) != c->rope_theta;
}
static int is_type(const JsonValue *v) { return !strcmp(v->key, "dtype") || !strcmp(v->key, "torch_dtype"); }
int config_to_json_like(const Config *c, const char *dtype, const JsonValue *origin, Text *out) {
    const Family f = config_family(c);
    Config was;
    Error e;
    const char *separator = "{\n  ";
    if (!config_from_json(&was, origin, &e) || was.family != (int)f) return 0;
    for (const JsonValue *v = json_first(origin); v; v = v->next) {
        const int row = row_of(v->key, f);
        const int renamed = !strcmp(json_string(json_get(origin, "model_type"), ""), kimi_k2);
        if (!strcmp(v->key, "descriptor") || !strcmp(v->key, "quantization_config")
            || (renamed && !strcmp(v->key, "auto_map"))
            || (row >= 0 && keys[row].kind == PADDED)) continue;
        write_key(v, &separator, out);
        if (is_type(v)) text_add(out, "\"%s\"", config_type(dtype));
        else if (renamed && !strcmp(v->key, "model_type")) text_add(out, "\"%s\"", family_name(f));
        else if (row < 0 || (is_kept(c, &was, row) && !is_hidden(c, v))) json_write(out, v, 1);
        else write_value(c, row, out);
    }
    if (f == FAMILY_SMOE && !json_get(origin, "auto_map")) text_add(out, "%s" AUTO_MAP, separator);
    for (int i = 0; i < KEYS; i++) {
        if (!is_written(c, i) || is_kept(c, &was, i) || keys[i].kind == PADDED) continue;
        if (json_get(origin, keys[i].key) || (keys[i].alias && json_get(origin, keys[i].alias))) continue;
        text_add(out, "%s\"%s\": ", separator, keys[i].key);
        write_value(c, i, out);
    }
    write_older(c, origin, separator, out);
    text_add_string(out, "\n}\n");
    return 1;
}

void config_with_type(const JsonValue *config, const char *dtype, Text *out) {
    const char *separator = "{\n  ";
    for (const JsonValue *v = json_first(config); v; v = v->next) {
        write_key(v, &separator, out);
        if (is_type(v)) text_add(out, "\"%s\"", config_type(dtype));
        else json_write(out, v, 1);
    }
    text_add_string(out, "\n}\n");
}

void config_add_ids(Text *config, const JsonValue *origin) {
    static const char *const names[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
    config->length -= strlen("\n}\n");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_get(origin, names[i])) {
            text_add(config, ",\n  \"%s\": ", names[i]);
            json_write(config, json_get(origin, names[i]), 1);
        }
    text_add_string(config, "\n}\n");
}

int config_same(const Config *a, const Config *b, Error *difference) {
    int same = 1;
    size_t n = 0;
    difference->text[0] = 0;
    for (int i = 0; i < KEYS; i++) {
        const double va = value_of(a, i), vb = value_of(b, i);
        int seen = va == vb;
        for (int j = 0; j < i && !seen; j++) seen = keys[j].field == keys[i].field;        /* under another name */
        if (seen) continue;
        same = 0;
        if (n < sizeof difference->text)
            n += (size_t)snprintf(difference->text + n, sizeof difference->text - n, "%s%s %g and %g",
                                  n ? ", " : "", keys[i].key, va, vb);
    }
    const RopeScaling *r = &a->rope, *s = &b->rope;
    const int rope = r->kind == s->kind && r->exact == s->exact && r->factor == s->factor && r->low == s->low
        && r->high == s->high && r->original == s->original && r->attention == s->attention && r->scores == s->scores
        && a->rotated == b->rotated && a->rope_pairs == b->rope_pairs;
    const int dense = !memcmp(&a->dense, &b->dense, sizeof a->dense);
    const int windows = a->window == b->window && !memcmp(&a->windowed, &b->windowed, sizeof a->windowed);
    if (n < sizeof difference->text && (!rope || !dense || !windows))
        snprintf(difference->text + n, sizeof difference->text - n, "%s%s", n ? ", " : "",
                 !rope ? "rope_parameters" : dense ? "sliding_window" : "layers without experts");
    return same && rope && dense && windows;
}
