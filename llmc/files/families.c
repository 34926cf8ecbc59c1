/* families.c: see families.h. Two tables: the keys of config.json, and the keys that it may not have. */
#include "families.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- config.json: one table reads and writes it -------------------------------------------------------- */

typedef enum { NUMBER, DOUBLE, FLAG, HEADS, SCORE, ACTIVATION, OPTION, OPTIONAL_DOUBLE } KeyKind;
static int is_double(KeyKind kind) { return kind == DOUBLE || kind == OPTIONAL_DOUBLE; }
enum { REQUIRED = -1, DEPENDS = -2 };                       /* DEPENDS: see default_of */
enum { ALL = 15, MOE = FAMILY_JETMOE | FAMILY_MIXTRAL | FAMILY_SMOE, PLAIN = FAMILY_MIXTRAL | FAMILY_LLAMA };
static const struct { int families; const char *key, *alias; KeyKind kind; size_t field; double otherwise; } keys[] = {
#define AT(field) offsetof(Config, field)
    /* otherwise: its value when missing
     * families           key                                alias              kind        field                    otherwise */
    { ALL,                "vocab_size",                      NULL,              NUMBER,     AT(vocab),               REQUIRED },
    { ALL,                "hidden_size",                     NULL,              NUMBER,     AT(channels),            REQUIRED },
    { ALL,                "num_hidden_layers",               NULL,              NUMBER,     AT(layers),              REQUIRED },
    { ALL,                "max_position_embeddings",         NULL,              NUMBER,     AT(context),             2048 },
    { ALL,                "intermediate_size",               "ffn_hidden_size", NUMBER,     AT(width),               REQUIRED },
    { ALL,                "rms_norm_eps",                    NULL,              DOUBLE,     AT(final_eps),           1e-6 },
    { ALL,                "rope_theta",                      NULL,              DOUBLE,     AT(rope_theta),          DEPENDS },
    { ALL,                "tie_word_embeddings",             NULL,              FLAG,       AT(tied),                DEPENDS },
    { ALL,                "initializer_range",               NULL,              DOUBLE,     AT(init_std),            0.02 },
    { PLAIN | FAMILY_SMOE, "num_attention_heads",            NULL,              HEADS,      AT(query_heads),         REQUIRED },
    { ALL,                "num_key_value_heads",             NULL,              NUMBER,     AT(kv_heads),            DEPENDS },
    { PLAIN | FAMILY_SMOE, "head_dim",                       NULL,              NUMBER,     AT(head_size),           DEPENDS },
    { FAMILY_JETMOE,      "kv_channels",                     NULL,              NUMBER,     AT(head_size),           REQUIRED },
    { MOE,                "num_local_experts",               "moe_num_experts", NUMBER,     AT(experts),             8 },
    { MOE,                "num_experts_per_tok",             "moe_top_k",       NUMBER,     AT(topk),                2 },
    { FAMILY_JETMOE,      "activation_function",             NULL,              ACTIVATION, AT(activation),          SWIGLU },
    { PLAIN | FAMILY_SMOE, "hidden_act",                     NULL,              ACTIVATION, AT(activation),          SWIGLU },
    { FAMILY_SMOE,        "num_attention_experts",           NULL,              NUMBER,     AT(attention_experts),   1 },
    { FAMILY_SMOE,        "num_attention_experts_per_tok",   NULL,              NUMBER,     AT(attention_topk),      1 },
    { FAMILY_SMOE,        "shared_intermediate_size",        NULL,              NUMBER,     AT(shared_width),        0 },
    { FAMILY_SMOE,        "router_scores",                   NULL,              SCORE,      AT(scores),              TOPK_SOFTMAX },
    { FAMILY_SMOE,        "universal",                       NULL,              FLAG,       AT(universal),           0 },
    { FAMILY_SMOE,        "output_bias",                     NULL,              FLAG,       AT(output_bias),         0 },
    { FAMILY_SMOE,        "block_norm_eps",                  NULL,              DOUBLE,     AT(norm_eps),            1e-6 },
    /* these are written only where they are not 0 */
    { FAMILY_SMOE,        "num_always_on_attention_experts", NULL,              OPTION,     AT(attention_always),    0 },
    { FAMILY_SMOE,        "qk_norm",                         NULL,              OPTION,     AT(qk_norm),             0 },
    { FAMILY_SMOE,        "value_embedding_interval",        NULL,              OPTION,     AT(value_embeddings),    0 },
    { FAMILY_SMOE,        "final_logit_softcapping",         NULL,              OPTIONAL_DOUBLE, AT(logit_cap),      0 },
    { FAMILY_SMOE,        "routed_scaling_factor",           NULL,              OPTIONAL_DOUBLE, AT(route_scale),    0 },
    { ALL,                "initializer_zero_outputs",        NULL,              OPTION,     AT(zero_output),         0 },
    { ALL,                "initializer_fan_in_scale",        NULL,              OPTIONAL_DOUBLE, AT(init_fan),       0 },
    { ALL,                "initializer_embedding_range",     NULL,              OPTIONAL_DOUBLE, AT(init_embed),     0 },
#undef AT
};
enum { KEYS = sizeof keys / sizeof *keys };

/* What would change the mathematics in a way this program does not know; harmless
 * when missing, null, false or the value. */
static const struct { const char *key, *harmless; } refused[] = {
    { "attention_bias", "" }, { "mlp_bias", "" }, { "quantization_config", "" }, { "clip_qkv", "" },
};

static int refuse_unknown(const JsonValue *root, int context, Error *e) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const JsonValue *v = json_get(root, refused[i].key);
        if (v && !json_is(v, JSON_NULL) && !(json_is(v, JSON_BOOL) && !json_bool(v, 1)))
            return error_set(e, "config.json: \"%s\" is set, and this program does not know "
                                "that kind of model", refused[i].key);
    }
    const JsonValue *scaling = json_get(root, "rope_scaling"), *rope = json_get(root, "rope_parameters");
    const JsonValue *window = json_get(root, "sliding_window");
    const char *type = json_string(json_get(rope, "rope_type"), "default");
    if (strcmp(type, "default")) return error_set(e, "config.json: rope_type \"%s\"; only \"default\" is known", type);
    if (json_is(scaling, JSON_OBJECT)
        && strcmp(json_string(json_get(scaling, "rope_type"), json_string(json_get(scaling, "type"), "")),
                  "default"))
        return error_set(e, "config.json: \"rope_scaling\" is set, and this program only knows plain rotary positions");
    if (window && !json_is(window, JSON_NULL) && json_int(window, 0) < context)
        return error_set(e, "config.json: \"sliding_window\" is shorter than the context, and this program "
                            "attends to all of it");
    return 1;
}

typedef struct { Family family; int heads; Error *e; } Reader;      /* heads: query heads in all, once that key is read */

/* What a missing key means where that depends on the family or on another key. */
static double default_of(const char *key, const Config *c, const Reader *r) {
    if (!strcmp(key, "rope_theta"))          return r->family == FAMILY_MIXTRAL ? 1e6 : 1e4;
    if (!strcmp(key, "tie_word_embeddings")) return r->family == FAMILY_JETMOE;
    if (!strcmp(key, "num_key_value_heads")) return r->heads;
    return r->heads > 0 && c->channels % r->heads == 0 ? c->channels / r->heads : 0;        /* head_dim */
}

static const JsonValue *find_key(const JsonValue *root, int i) {
    const JsonValue *v = json_get(root, keys[i].key), *rope = json_get(root, "rope_parameters");
    if (!v && keys[i].alias) v = json_get(root, keys[i].alias);
    if (!strcmp(keys[i].key, "rope_theta") && json_get(rope, "rope_theta")) v = json_get(rope, "rope_theta");
    return json_is(v, JSON_NULL) ? NULL : v;
}

static int read_name(int *field, int i, const JsonValue *v, const Reader *r) {
    const int is_score = keys[i].kind == SCORE;
    const char *name = v ? json_string(v, "") : is_score ? scores_name(0) : activation_name(0);
    *field = is_score ? scores_by_name(name) : activation_by_name(name);
    if (*field >= 0 && (is_score || (!strcmp(name, activation_name(*field)) && (r->family == FAMILY_SMOE || *field == SWIGLU))))
        return 1;
    return error_set(r->e, "config.json: \"%s\" is \"%s\", which this program does not know in a %s",
                     keys[i].key, name, family_name(r->family));
}

static int read_key(Config *c, int i, const JsonValue *v, Reader *r) {
    const char *key = keys[i].key;
    void *field = (char *)c + keys[i].field;
    const double otherwise = keys[i].otherwise == DEPENDS ? default_of(key, c, r) : keys[i].otherwise;
    double number = otherwise;
    int64_t whole = (int64_t)otherwise;
    Error why;
    if (!v && keys[i].otherwise == REQUIRED) return error_set(r->e, "config.json: \"%s\" is missing", key);
    switch (keys[i].kind) {
    case NUMBER: case OPTION: case HEADS:
        if (v && !json_read_int(v, key, 0, SIZE_LIMIT, &whole, &why)) return error_set(r->e, "config.json: %.900s", why.text);
        *(int *)field = (int)whole;
        if (keys[i].kind == HEADS) r->heads = (int)whole;
        return 1;
    case DOUBLE: case OPTIONAL_DOUBLE:
        if (v && !json_read_double(v, key, -1e308, 1e308, &number, &why)) return error_set(r->e, "config.json: %.900s", why.text);
        *(double *)field = number;
        return 1;
    case FLAG:
        if (v && !json_is(v, JSON_BOOL)) return error_set(r->e, "config.json: \"%s\" must be true or false", key);
        *(int *)field = json_bool(v, otherwise != 0);
        return 1;
    default:
        return read_name(field, i, v, r);
    }
}

/* What follows from the keys that a family has. */
static int complete(Config *c, const Reader *r) {
    const int heads = r->heads;
    if (r->family == FAMILY_JETMOE) {       /* one number of experts for both kinds; block norms have a fixed epsilon */
        c->attention_experts = c->experts;
        c->attention_topk = c->query_heads = c->topk;
        c->output_bias = 1;
        c->norm_eps = 1e-6;
    } else {
        if (c->kv_heads < 1 || heads % c->kv_heads)
            return error_set(r->e, "config.json: %d key/value heads do not divide %d heads", c->kv_heads, heads);
        c->query_heads = heads / c->kv_heads;
        if (r->family != FAMILY_SMOE) c->norm_eps = c->final_eps;
    }
    if (c->vocab < 1 || c->context < 1)
        return error_set(r->e, "config.json: the vocabulary and the context must be at least 1");
    if (r->family == FAMILY_JETMOE && c->experts < 2)
        return error_set(r->e, "config.json: a jetmoe needs at least two experts");
    if (!(c->final_eps >= 0 && c->norm_eps >= 0 && c->rope_theta > 0 && c->init_std >= 0 && c->init_fan >= 0 && c->init_embed >= 0
          && c->logit_cap >= 0 && c->route_scale >= 0))
        return error_set(r->e, "config.json: a negative or missing epsilon, rope_theta, initializer_range, cap or scale");
    return 1;
}

int config_from_json(Config *c, const JsonValue *root, Error *e) {
    const char *type = json_string(json_get(root, "model_type"), "");
    Reader r = { .e = e };
    for (int i = 1; i <= FAMILY_SMOE; i *= 2) if (!strcmp(type, family_name((Family)i))) r.family = (Family)i;
    if (!r.family) return error_set(e, "config.json: model_type \"%s\"; known are jetmoe, mixtral, llama and smoe", type);
    *c = (Config){ .layers = 1, .attention_experts = 1, .attention_topk = 1, .experts = 1, .topk = 1, .tile = ROW_TILE,
                   .scores = TOPK_SOFTMAX };
    for (int i = 0; i < KEYS; i++)
        if (keys[i].families & r.family && !read_key(c, i, find_key(root, i), &r)) return 0;
    return complete(c, &r) && refuse_unknown(root, c->context, e) && config_check(c, e);
}

static const char *architecture(Family f) {
    return f == FAMILY_JETMOE ? "JetMoeForCausalLM" : f == FAMILY_MIXTRAL ? "MixtralForCausalLM"
         : f == FAMILY_LLAMA ? "LlamaForCausalLM" : "SmoeForCausalLM";
}
void config_to_json(const Config *c, const char *dtype, Text *out) {
    const Family f = config_family(c);
    char descriptor[128];
    config_descriptor(c, descriptor);
    text_add(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"", architecture(f), family_name(f));
    for (int i = 0; i < KEYS; i++) {
        if (!(keys[i].families & f)) continue;
        const char *field = (const char *)c + keys[i].field;
        const int number = is_double(keys[i].kind) ? 0 : *(const int *)(const void *)field;
        if (keys[i].kind == OPTION && !number) continue;
        if (keys[i].kind == OPTIONAL_DOUBLE && !(*(const double *)(const void *)field > 0)) continue;
        text_add(out, ",\n  \"%s\": ", keys[i].key);
        switch (keys[i].kind) {
        case NUMBER: case OPTION: text_add(out, "%d", number); break;
        case HEADS:      text_add(out, "%d", number * c->kv_heads); break;
        case DOUBLE: case OPTIONAL_DOUBLE: text_add_double(out, *(const double *)(const void *)field); break;
        case FLAG:       text_add(out, number ? "true" : "false"); break;
        case SCORE:      text_add(out, "\"%s\"", scores_name(number)); break;
        case ACTIVATION: text_add(out, "\"%s\"", activation_name(number)); break;
        }
    }
    if (f == FAMILY_JETMOE) text_add(out, ",\n  \"num_attention_heads\": %d", c->kv_heads * c->query_heads);
    text_add(out, ",\n  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": ");
    text_add_double(out, c->rope_theta);
    text_add(out, "},\n  \"dtype\": \"%s\",\n  \"descriptor\": \"%s\"\n}\n",
             !strcmp(dtype, "BF16") ? "bfloat16" : !strcmp(dtype, "F64") ? "float64" : "float32", descriptor);
}

int config_same(const Config *a, const Config *b, Error *difference) {
    int same = 1;
    size_t n = 0;
    difference->text[0] = 0;
    for (int i = 0; i < KEYS; i++) {
        const char *fa = (const char *)a + keys[i].field, *fb = (const char *)b + keys[i].field;
        const int is_real = is_double(keys[i].kind);
        double va = is_real ? *(const double *)(const void *)fa : *(const int *)(const void *)fa;
        double vb = is_real ? *(const double *)(const void *)fb : *(const int *)(const void *)fb;
        if (va == vb) continue;
        same = 0;
        if (n < sizeof difference->text)
            n += (size_t)snprintf(difference->text + n, sizeof difference->text - n, "%s%s %g and %g",
                                  n ? ", " : "", keys[i].key, va, vb);
    }
    return same;
}
