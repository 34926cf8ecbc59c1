/* config.c: see config.h. Three tables: the descriptor's letters, the keys of
 * config.json, the values it may not have. */
#include "config.h"
#include "llmc/base/text.h"
#include "llmc/base/json.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const scores_names[] = { "topk-softmax", "softmax-topk", "sigmoid" };
static const char *const activation_names[] = { "silu", "gelu_pytorch_tanh", "relu2" };     /* Hugging Face's words */
static const char *const rounding_names[] = { "off", "nearest", "stochastic", "up", "down" };

const char *scores_name(int s)     { return scores_names[s]; }
const char *activation_name(int a) { return activation_names[a]; }
const char *rounding_name(int r)   { return rounding_names[r]; }
int scores_by_name(const char *name) {
    for (int i = 0; i < 3; i++) if (!strcmp(name, scores_names[i])) return i;
    return -1;
}
int rounding_by_name(const char *name) {
    for (int i = 0; i <= ROUND_DOWN; i++) if (!strcmp(name, rounding_names[i])) return i;
    return -1;
}
int activation_by_name(const char *name) {
    if (!strcmp(name, "swiglu")) return SWIGLU;
    if (!strcmp(name, "gelu")) return GELU;
    for (int i = 0; i < 3; i++) if (!strcmp(name, activation_names[i])) return i;
    return -1;
}

/* ---- descriptor ---------------------------------------------------------------------------------------- */

static const char letters[] = "chdqaxekfs";                  /* in the order in which config_descriptor prints them */

static int divides(int a, int b) { return a > 0 && b % a == 0; }
static int nearest64(double x) { return x < 64 ? 64 : (int)(x / 64 + 0.5) * 64; }

int config_parse(Config *c, const char *text, Error *e) {
    const char kind = text[0];
    int value[26] = { 0 };
    char *end;
    if (!strchr("mdu", kind) || !kind || text[1] < '0' || text[1] > '9')
        return error_set(e, "model %s: a descriptor is m (mixture), d (dense) or u (one shared block), a "
                            "number of layers, and fields: m12:e64k8f256", text);
    long layers = strtol(text + 1, &end, 10);
    if (layers < 1 || layers > 10000) return error_set(e, "model %s: 1 to 10000 layers", text);
    if (*end == ':' && end[1]) end++;
    else if (*end)
        return error_set(e, "model %s: a colon and fields can follow the number of layers, not \"%s\"", text,
                         end);
    while (*end) {
        const char letter = *end++;
        if (!strchr(letters, letter))
            return error_set(e, "model %s: no field %c; there are c channels, h heads, d head size, q kv "
                                "heads, a attention experts, x of them per token, e experts, k per token, f "
                                "expert width, s shared experts", text, letter);
        char *digits = end;
        long v = strtol(digits, &end, 10);
        if (end == digits || *digits == '-' || *digits == '+' || v < 0 || v > 1 << 24)
            return error_set(e, "model %s: field %c needs a whole number, at most %d", text, letter, 1 << 24);
        if (value[letter - 'a']) return error_set(e, "model %s: field %c is given twice", text, letter);
        if (v == 0 && letter != 's') return error_set(e, "model %s: field %c must be at least 1", text, letter);
        value[letter - 'a'] = (int)v;
    }
#define FIELD(letter, otherwise) (value[letter - 'a'] ? value[letter - 'a'] : (otherwise))
    const int small = layers == 4 && !value['c' - 'a'], mixture = kind != 'd';
    *c = (Config){ .layers = (int)layers, .universal = kind == 'u', .tied = 1, .scores = TOPK_SOFTMAX, .tile = ROW_TILE,
                   .activation = SWIGLU, .rope_theta = 10000, .norm_eps = 1e-6, .final_eps = 1e-6,
                   .init_std = 0.02 };
    c->channels = FIELD('c', small ? 128 : (int)(64 * layers));
    c->attention_experts = FIELD('a', mixture ? 8 : 1);
    c->attention_topk = FIELD('x', c->attention_experts > 1 ? 2 : 1);
    c->experts = FIELD('e', mixture ? 8 : 1);
    c->topk = FIELD('k', c->experts > 1 ? 2 : 1);
    c->width = FIELD('f', c->channels == 128 ? (mixture ? 128 : 256)
                        : nearest64(c->channels * (mixture ? 4 : 8) / 3.0));
    c->shared_width = value['s' - 'a'] * c->width;
    c->output_bias = c->attention_experts > 1 && c->experts > 1 && !c->shared_width;

    const int heads = FIELD('h', value['q' - 'a'] && c->attention_experts > 1 ? value['q' - 'a'] * c->attention_topk
                               : small || c->channels < 128 ? 4 : c->channels / 64);
    if (!value['d' - 'a'] && !divides(heads, c->channels))
        return error_set(e, "model %s: %d heads do not divide %d channels; give other heads (h) "
                            "or a head size (d)", text, heads, c->channels);
    c->head_size = FIELD('d', c->channels / heads);
    if (c->attention_experts > 1) {
        c->query_heads = c->attention_topk;
        c->kv_heads = FIELD('q', heads / c->attention_topk);
        if (c->kv_heads * c->attention_topk != heads)
            return error_set(e, "model %s: h = x * q query heads are needed, but %d is not %d * %d", text,
                             heads, c->attention_topk, c->kv_heads);
    } else {
        c->kv_heads = FIELD('q', heads);
        if (!divides(c->kv_heads, heads))
            return error_set(e, "model %s: %d kv heads (q) do not divide %d query heads (h)", text,
                             c->kv_heads, heads);
        c->query_heads = heads / c->kv_heads;
    }
#undef FIELD
    Error why;
    return config_check(c, &why) ? 1 : error_set(e, "model %s: %s", text, why.text);
}

void config_descriptor(const Config *c, char text[128]) {
    const int dense = c->experts == 1 && c->attention_experts == 1;
    int n = snprintf(text, 128, "%c%d:", c->universal ? 'u' : dense ? 'd' : 'm', c->layers);
    for (const char *l = letters; *l && n < 110; l++) {
        int v = *l == 'c' ? c->channels : *l == 'h' ? c->kv_heads * c->query_heads
              : *l == 'd' ? c->head_size : *l == 'q' ? c->kv_heads
              : *l == 'a' ? c->attention_experts : *l == 'x' ? c->attention_topk
              : *l == 'e' ? c->experts : *l == 'k' ? c->topk
              : *l == 'f' ? c->width : c->shared_width / c->width;
        if (*l == 's' && !v) continue;
        n += snprintf(text + n, 128 - (size_t)n, "%c%d", *l, v);
    }
}

int config_check(const Config *c, Error *e) {
    const double most = 2147483647;
    if (c->layers < 1 || c->channels < 1 || c->kv_heads < 1 || c->query_heads < 1 || c->head_size < 1 || c->width < 1)
        return error_set(e, "every size must be at least 1");
    if (c->experts < 1 || c->topk < 1 || c->topk > c->experts)
        return error_set(e, "%d of %d experts per token (k of e) is impossible", c->topk, c->experts);
    if (c->attention_experts < 1 || c->attention_topk < 1 || c->attention_topk > c->attention_experts)
        return error_set(e, "%d of %d attention experts per token (x of a) is impossible", c->attention_topk,
                         c->attention_experts);
    if (c->attention_experts > 1 && c->query_heads != c->attention_topk)
        return error_set(e, "a mixture of attention heads has as many query heads per kv head (%d) as "
                            "experts per token (%d)", c->query_heads, c->attention_topk);
    if (c->head_size % 2) return error_set(e, "the head size %d must be even: positions rotate pairs", c->head_size);
    if (c->experts > 4096 || c->attention_experts > 4096) return error_set(e, "at most 4096 experts");
    if (c->shared_width && c->experts == 1)
        return error_set(e, "a shared expert (s) needs routed ones beside it (e > 1)");
    if (c->shared_width % c->width)
        return error_set(e, "the shared width %d is no multiple of the expert width %d",
                         c->shared_width, c->width);
    const double row = 2.0 * c->width * c->experts, heads = (double)c->kv_heads * c->query_heads * c->head_size;
    if ((double)c->channels * (c->vocab ? c->vocab : 1) > 1e12 || row > most || heads > most)
        return error_set(e, "these sizes are beyond what one tensor can hold");
    return 1;
}

/* ---- families ------------------------------------------------------------------------------------------ */

const char *family_name(Family f) {
    return f == FAMILY_JETMOE ? "jetmoe" : f == FAMILY_MIXTRAL ? "mixtral" : f == FAMILY_LLAMA ? "llama" : "smoe";
}
static const char *architecture(Family f) {
    return f == FAMILY_JETMOE ? "JetMoeForCausalLM" : f == FAMILY_MIXTRAL ? "MixtralForCausalLM"
         : f == FAMILY_LLAMA ? "LlamaForCausalLM" : "SmoeForCausalLM";
}
Family config_family(const Config *c) {
    if (c->universal || c->activation != SWIGLU || c->shared_width) return FAMILY_SMOE;
    if (c->experts > 1 && c->scores != TOPK_SOFTMAX) return FAMILY_SMOE;
    if (c->attention_experts > 1)
        return c->experts == c->attention_experts && c->topk == c->attention_topk && c->output_bias
            && c->norm_eps == 1e-6 ? FAMILY_JETMOE : FAMILY_SMOE;
    if (c->output_bias || c->norm_eps != c->final_eps) return FAMILY_SMOE;
    return c->experts > 1 ? FAMILY_MIXTRAL : FAMILY_LLAMA;
}

/* ---- config.json: one table reads and writes it -------------------------------------------------------- */

typedef enum { NUMBER, DOUBLE, FLAG, HEADS, SCORE, ACTIVATION } Kind;
enum { ALL = 15, MOE = FAMILY_JETMOE | FAMILY_MIXTRAL | FAMILY_SMOE, PLAIN = FAMILY_MIXTRAL | FAMILY_LLAMA };
static const struct { int families; const char *key, *alias; Kind kind; size_t field; double otherwise; } keys[] = {
#define AT(field) offsetof(Config, field)
    /* otherwise: its value when missing; -1: required, -2: see config_from_json
     * families           key                                alias              kind        field                    otherwise */
    { ALL,                "vocab_size",                      NULL,              NUMBER,     AT(vocab),               -1 },
    { ALL,                "hidden_size",                     NULL,              NUMBER,     AT(channels),            -1 },
    { ALL,                "num_hidden_layers",               NULL,              NUMBER,     AT(layers),              -1 },
    { ALL,                "max_position_embeddings",         NULL,              NUMBER,     AT(context),             2048 },
    { ALL,                "intermediate_size",               "ffn_hidden_size", NUMBER,     AT(width),               -1 },
    { ALL,                "rms_norm_eps",                    NULL,              DOUBLE,       AT(final_eps),           1e-6 },
    { ALL,                "rope_theta",                      NULL,              DOUBLE,       AT(rope_theta),          -2 },
    { ALL,                "tie_word_embeddings",             NULL,              FLAG,       AT(tied),                -2 },
    { ALL,                "initializer_range",               NULL,              DOUBLE,       AT(init_std),            0.02 },
    { PLAIN | FAMILY_SMOE, "num_attention_heads",            NULL,              HEADS,      AT(query_heads),         -1 },
    { ALL,                "num_key_value_heads",             NULL,              NUMBER,     AT(kv_heads),            -2 },
    { PLAIN | FAMILY_SMOE, "head_dim",                       NULL,              NUMBER,     AT(head_size),           -2 },
    { FAMILY_JETMOE,      "kv_channels",                     NULL,              NUMBER,     AT(head_size),           -1 },
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
    { FAMILY_SMOE,        "block_norm_eps",                  NULL,              DOUBLE,       AT(norm_eps),            1e-6 },
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

int config_from_json(Config *c, const JsonValue *root, Error *e) {
    const char *type = json_string(json_get(root, "model_type"), "");
    Family f = 0;
    for (int i = 1; i <= FAMILY_SMOE; i *= 2) if (!strcmp(type, family_name((Family)i))) f = (Family)i;
    if (!f) return error_set(e, "config.json: model_type \"%s\"; known are jetmoe, mixtral, llama and smoe", type);
    const JsonValue *rope = json_get(root, "rope_parameters");
    int heads = 0;
    *c = (Config){ .layers = 1, .attention_experts = 1, .attention_topk = 1, .experts = 1, .topk = 1, .tile = ROW_TILE,
                   .scores = TOPK_SOFTMAX };
    for (int i = 0; i < KEYS; i++) {
        if (!(keys[i].families & f)) continue;
        const JsonValue *v = json_get(root, keys[i].key);
        if (!v && keys[i].alias) v = json_get(root, keys[i].alias);
        if (!strcmp(keys[i].key, "rope_theta") && json_get(rope, "rope_theta")) v = json_get(rope, "rope_theta");
        if (json_is(v, JSON_NULL)) v = NULL;
        if (!v && keys[i].otherwise == -1) return error_set(e, "config.json: \"%s\" is missing", keys[i].key);
        double otherwise = keys[i].otherwise;
        if (otherwise == -2)            /* what depends on the family or on another key */
            otherwise = !strcmp(keys[i].key, "rope_theta") ? (f == FAMILY_MIXTRAL ? 1e6 : 1e4)
                      : !strcmp(keys[i].key, "tie_word_embeddings") ? f == FAMILY_JETMOE
                      : !strcmp(keys[i].key, "num_key_value_heads") ? heads
                      : heads > 0 && c->channels % heads == 0 ? c->channels / heads : 0;
        void *field = (char *)c + keys[i].field;
        const double number = json_double(v, otherwise);
        switch (keys[i].kind) {
        case NUMBER: case HEADS:
            if (v && !json_is(v, JSON_INT))
                return error_set(e, "config.json: \"%s\" must be a whole number", keys[i].key);
            if (!(number >= 0 && number <= 1 << 30))
                return error_set(e, "config.json: \"%s\" is %g", keys[i].key, number);
            *(int *)field = (int)number;
            if (keys[i].kind == HEADS) heads = (int)number;
            break;
        case DOUBLE:
            if (v && !json_is(v, JSON_INT) && !json_is(v, JSON_DOUBLE))
                return error_set(e, "config.json: \"%s\" must be a number", keys[i].key);
            *(double *)field = number;
            break;
        case FLAG:
            *(int *)field = json_bool(v, otherwise != 0);
            break;
        case SCORE: case ACTIVATION: {
            const char *name = v ? json_string(v, "") : keys[i].kind == SCORE ? scores_names[0] : activation_names[0];
            *(int *)field = keys[i].kind == SCORE ? scores_by_name(name) : activation_by_name(name);
            if (*(int *)field < 0
                || (keys[i].kind == ACTIVATION && (strcmp(name, activation_names[*(int *)field])
                                                   || (f != FAMILY_SMOE && *(int *)field != SWIGLU))))
                return error_set(e, "config.json: \"%s\" is \"%s\", which this program does not know in a %s",
                                 keys[i].key, name, family_name(f));
        }
        }
    }
    if (f == FAMILY_JETMOE) {           /* one number of experts for both kinds; block norms have a fixed epsilon */
        c->attention_experts = c->experts;
        c->attention_topk = c->query_heads = c->topk;
        c->output_bias = 1;
        c->norm_eps = 1e-6;
    } else {
        if (!divides(c->kv_heads, heads))
            return error_set(e, "config.json: %d key/value heads do not divide %d heads", c->kv_heads, heads);
        c->query_heads = heads / c->kv_heads;
        if (f != FAMILY_SMOE) c->norm_eps = c->final_eps;
    }
    if (c->vocab < 1 || c->context < 1)
        return error_set(e, "config.json: the vocabulary and the context must be at least 1");
    if (f == FAMILY_JETMOE && c->experts < 2) return error_set(e, "config.json: a jetmoe needs at least two experts");
    if (!(c->final_eps >= 0 && c->norm_eps >= 0 && c->rope_theta > 0 && c->init_std >= 0))
        return error_set(e, "config.json: negative or missing epsilon, rope_theta or initializer_range");
    return refuse_unknown(root, c->context, e) && config_check(c, e);
}

void config_to_json(const Config *c, const char *dtype, Text *out) {
    const Family f = config_family(c);
    char descriptor[128];
    config_descriptor(c, descriptor);
    text_add(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"", architecture(f), family_name(f));
    for (int i = 0; i < KEYS; i++) {
        if (!(keys[i].families & f)) continue;
        const char *field = (const char *)c + keys[i].field;
        const int number = keys[i].kind == DOUBLE ? 0 : *(const int *)(const void *)field;
        text_add(out, ",\n  \"%s\": ", keys[i].key);
        switch (keys[i].kind) {
        case NUMBER:     text_add(out, "%d", number); break;
        case HEADS:      text_add(out, "%d", number * c->kv_heads); break;
        case DOUBLE:       text_add_double(out, *(const double *)(const void *)field); break;
        case FLAG:       text_add(out, number ? "true" : "false"); break;
        case SCORE:      text_add(out, "\"%s\"", scores_names[number]); break;
        case ACTIVATION: text_add(out, "\"%s\"", activation_names[number]); break;
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
        const int is_real = keys[i].kind == DOUBLE;
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

/* ---- counting ------------------------------------------------------------------------------------------ */

static double idle(const Config *c) {               /* parameters of experts that a token does not visit, per block */
    const double gate = c->activation == SWIGLU ? 2 : 1, C = c->channels;
    return (c->experts - c->topk) * (gate + 1) * c->width * C
         + (c->attention_experts - c->attention_topk) * 2.0 * c->kv_heads * c->head_size * C;
}
size_t config_active(const Config *c, size_t total) {
    return total - (size_t)(idle(c) * (c->universal ? 1 : c->layers));
}

double config_flops(const Config *c, int T) {
    const double gate = c->activation == SWIGLU ? 2 : 1, C = c->channels;
    const double GD = (double)c->kv_heads * c->head_size, QGD = GD * c->query_heads;
    const double block = C * (2 * GD + 2 * QGD + (gate + 1) * ((double)c->topk * c->width + c->shared_width))
                       + (c->experts > 1 ? C * c->experts : 0)
                       + (c->attention_experts > 1 ? C * c->attention_experts : 0);
    /* causal attention: T/2 keys on average, two products */
    return 6 * (c->layers * (block + QGD * T) + C * c->vocab);
}
