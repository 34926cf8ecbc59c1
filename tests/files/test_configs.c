/* test_configs.c: config.json of every family, read, written, refused. Part of the group train. */
#include "tests/model/trainee.h"
#include "tests/test.h"
#include "llmc/files/config_json.h"

static Config config_of(const char *descriptor) { return trainee_config(descriptor, 40, 32); }
static int from_text(Config *c, const char *text, Error *e) {
    Json *j = json_parse(text, strlen(text), e);
    const int ok = j && config_from_json(c, json_root(j), e);
    json_free(j);
    return ok;
}
static void configs(void) {
    static const struct { const char *descriptor; int scores, activation, tied; double eps; Family family; } kinds[] = {
        { "m2:c16h4d4e4k2f12a4x2n0",   TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_JETMOE },
        { "m3:c24h6d8e6k3f10a6x3n0",   TOPK_SOFTMAX, SWIGLU, 0, 1e-5, FAMILY_JETMOE },
        { "m2:c16h4q2e8k2f12a1n0",     TOPK_SOFTMAX, SWIGLU, 0, 1e-5, FAMILY_MIXTRAL },
        { "m2:c16h4d6q1e8k3f12a1n0",   TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_MIXTRAL },
        { "d2:c16h4q2f20n0",           TOPK_SOFTMAX, SWIGLU, 0, 1e-5, FAMILY_LLAMA },
        { "d5:c16h2d10f20n0",          TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_LLAMA },
        { "m2:c16h4d4e4k2f12a4x2n0",   SIGMOID_TOPK, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "m2:c16h4d4e4k2f12a4x2n0",   TOPK_SOFTMAX, GELU,   1, 1e-6, FAMILY_SMOE },
        { "m2:c16h4d4e8k2f12a4x2n0",   SOFTMAX_TOPK, RELU2,  0, 1e-6, FAMILY_SMOE },
        { "m2:c16h4q2e6k2f8a1s2n0",    SIGMOID_TOPK, SWIGLU, 0, 1e-6, FAMILY_SMOE },
        { "u3:c16h4d4e4k2f12a4x2n0",   TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "m2:c16h4d4e1f12a4x2n0",     TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "d2:c16h4f20n0",             TOPK_SOFTMAX, RELU2,  1, 1e-6, FAMILY_SMOE },
        { "d2:c16h4f20n1",           TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_QWEN3 },
        { "m2:c16h4q2e8k2f12a1n1",   SOFTMAX_TOPK, SWIGLU, 1, 1e-6, FAMILY_QWEN3_MOE },
        { "m2:c16h4q2e8k2f12a1n2",   SOFTMAX_TOPK, SWIGLU, 0, 1e-6, FAMILY_OLMOE },
        { "m2:c16h4q2e8k2f12a1s2n0",   TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_GRANITE_SHARED },
        { "d3:c16h6d8q2f12n0", TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_MISTRAL }, /* 6 heads do not divide 16 channels */
        { "d2:c16h4f20l15v2n0",        TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_SMOE },
        { "d3:c16h4f20v2g1j2o5t5p1r500",       TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "m2:c16h4q2e8k2f12t2",       TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_SMOE },
        { "m2:c16h4q2e8k2f12a1w250n0", SIGMOID_EACH, SWIGLU, 1, 1e-6, FAMILY_SMOE },
        { "m2:c16h6d4q2e4k2f12a4x3z2i75y100n0", TOPK_SOFTMAX, SWIGLU, 0, 1e-6, FAMILY_SMOE },
        { "d2:c16h4f20z1i100y50n0",    TOPK_SOFTMAX, SWIGLU, 1, 1e-6, FAMILY_LLAMA },     /* only how it began */
    };
    for (size_t i = 0; i < COUNT(kinds); i++) {
        Config c = config_of(kinds[i].descriptor), back;
        Error e = { 0 };
        Text json = { 0 };
        char was[128], is[128];
        c.scores = kinds[i].scores, c.activation = kinds[i].activation, c.tied = kinds[i].tied;
        c.final_eps = kinds[i].eps;
        if (!(kinds[i].family & (FAMILY_JETMOE | FAMILY_SMOE))) c.norm_eps = c.final_eps;
        c.rope_theta = 12345.678;
        config_to_json(&c, "BF16", 1, &json);
        const int read = from_text(&back, json.at, &e);
        if (kinds[i].family == FAMILY_GRANITE_SHARED)       /* nothing: 1 / sqrt(4), and not 0 */
            check(strstr(json.at, "\"attention_multiplier\": 0.5,") != NULL, "%s: its scores have the usual scale",
                  kinds[i].descriptor);
        check(config_family(&c) == kinds[i].family, "%s is a %s", kinds[i].descriptor, family_name(kinds[i].family));
        check(read && config_same(&c, &back, &e), "%s comes back from config.json: %s", kinds[i].descriptor, e.text);
        if (read) {
            config_descriptor(&c, was);
            config_descriptor(&back, is);
            check(!strcmp(was, is) && back.output_bias == c.output_bias && back.norm_eps == c.norm_eps
                  && config_family(&back) == config_family(&c), "%s comes back: %s", kinds[i].descriptor, is);
        }
        free(json.at);
    }
}

/* What is refused, and what the message names. */
#define LATENTS "\"moe_intermediate_size\": 8, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_group\": 1, " \
    "\"topk_group\": 1, " \
                "\"first_k_dense_replace\": 1, \"num_key_value_heads\": 4, "
#define KV4 "\"num_key_value_heads\": 4, "
static const struct { const char *type, *extra, *names; } wrong[] = {
    { "mixtral", KV4 "\"attention_bias\": true", "attention_bias" }, { "llama", "\"mlp_bias\": true", "mlp_bias" },
    { "llama",   "\"quantization_config\": {\"bits\": 4}",            "quantization_config" },
    { "llama",   "\"logit_softcap\": 8.0",                            "logit_softcap" },
    { "llama",   "\"num_experts\": 4",                               "num_experts" },
    { "llama",   "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 3.0}}", "full_attention" },
    { "llama",   "\"layer_types\": [\"sliding_attention\"]",         "layer_types" },
    { "llama",   "\"clip_qkv\": 8.0",                                 "clip_qkv" },
    { "llama",   "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}",          "dynamic" },
    { "llama",   "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}",      "low_freq_factor" },
    { "llama",   "\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 1e4}", "factor" },
    { "llama",   "\"partial_rotary_factor\": 0.5",                   "partial_rotary_factor" },
    { "smoe",    "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}",           "linear" },
    { "olmoe",   "\"num_local_experts\": 1",                        "two experts" },
    { "mixtral", "\"num_local_experts\": 1, \"num_key_value_heads\": 4, \"num_experts_per_tok\": 1", "two experts" },
    { "qwen2_moe", "\"moe_intermediate_size\": 8",                  "shared_expert_intermediate_size" },
    { "qwen3", KV4 "\"use_sliding_window\": true, \"sliding_window\": 8, "
                 "\"layer_types\": [\"full_attention\", \"chunked_attention\"]", "chunked_attention" },
    { "qwen3", KV4 "\"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"sliding_attention\"]",
      "no \"sliding_window\"" },
    { "qwen3", KV4 "\"use_sliding_window\": true, \"layer_types\": [\"full_attention\"]", "of layer 1" },
    { "mixtral", KV4 "\"sliding_window\": -1", "sliding_window" },
    { "mixtral", KV4 "\"sliding_window\": 3.5", "sliding_window" },
    { "mistral", KV4 "\"sliding_window\": 0", "null is none" },
    { "dots1",   "\"moe_intermediate_size\": 8, \"n_shared_experts\": 1, \"n_routed_experts\": "
      "8, \"num_experts_per_tok\": 2, \"num_key_value_heads\": 4, \"n_group\": 3, \"topk_group\": 2", "3 groups" },
    { "ernie4_5_moe", "\"moe_intermediate_size\": 8, \"use_bias\": true", "use_bias" },
    { "ernie4_5_moe", "\"moe_intermediate_size\": 8, \"moe_layer_start_index\": 5", "no layer" },
    { "glm4_moe", "\"moe_intermediate_size\": 8, \"num_key_value_heads\": 4, \"partial_rotary_factor\": 0.3",
      "partial_rotary_factor" },
    { "granitemoe", "\"residual_multiplier\": 0.0",                 "residual_multiplier" },
    { "llama", "\"hidden_act\": \"gelu\"", "hidden_act" }, /* exact GELU; ours is the tanh form */
    { "llama", "\"hidden_act\": \"gelu_pytorch_tanh\"", "hidden_act" }, /* gated GELU: not supported */
    { "mixtral", "\"hidden_act\": \"relu\"",                          "hidden_act" },
    { "smoe",    "\"router_scores\": \"softmax\"",                    "router_scores" },
    { "smoe", "\"num_attention_experts\": 4, \"num_always_on_attention_experts\": 1", "every token has were removed" },
    { "gpt2",    "\"n_embd\": 16",                                    "learned positions" },
    { "gpt_oss", "\"num_local_experts\": 4, \"num_key_value_heads\": 2, \"swiglu_limit\": 6.0", "swiglu_limit" },
    { "gpt_oss", "\"num_local_experts\": 4, \"num_key_value_heads\": 2, \"swiglu_alpha\": 1.0", "swiglu_alpha" },
    { "gpt_oss", "\"num_local_experts\": 4, \"num_key_value_heads\": 2, \"quantization_config\": "
      "{\"quant_method\": \"gptq\"}", "gptq" },
    { "qwen3_moe", "\"num_experts\": 8, \"num_key_value_heads\": 2, \"moe_intermediate_size\": 8, "
                   "\"quantization_config\": {\"quant_method\": \"mxfp4\"}", "mxfp4" },
    { "gpt_oss", "\"num_local_experts\": 1, \"num_experts_per_tok\": 1, \"num_key_value_heads\": 2", "two experts" },
    { "kimi_k2", LATENTS "\"topk_method\": \"greedy\"",                "topk_method" },
    { "glm4_moe_lite", "\"moe_intermediate_size\": 8, \"num_key_value_heads\": 4, \"first_k_dense_replace\": 2",
      "mlp_layer_types" },
    { "deepseek_v3", LATENTS "\"quantization_config\": {\"quant_method\": \"fp8\"}", "quantization_config" },
    { "deepseek_v3", LATENTS "\"attention_bias\": true",              "attention_bias" },
    { "deepseek_v3", LATENTS "\"scoring_func\": \"softmax\"",         "scoring_func" },
    { "deepseek_v3", LATENTS "\"topk_method\": \"greedy\"",           "topk_method" },
    { "deepseek_v3", LATENTS "\"moe_layer_freq\": 2",                 "moe_layer_freq" },
    { "deepseek_v3", LATENTS "\"v_head_dim\": 193",                   "values of 193" },
    { "deepseek_v3", LATENTS "\"qk_rope_head_dim\": 63",              "even" },
    { "deepseek_v3", LATENTS "\"qk_nope_head_dim\": 0",               "64 of 64" },
    { "deepseek_v3", LATENTS "\"kv_lora_rank\": 0",                   "latent of keys and values" },
    { "deepseek_v3", LATENTS "\"kv_lora_rank\": 16777217",            "kv_lora_rank" },
    { "deepseek_v3", LATENTS "\"q_lora_rank\": 0",                    "null is none" },
    { "deepseek_v3", LATENTS "\"head_dim\": null",                    "qk_rope_head_dim" },
    { "deepseek_v3", LATENTS "\"head_dim\": 32",                      "qk_rope_head_dim" },
    { "qwen3_moe", KV4 "\"moe_intermediate_size\": 8, \"num_experts\": 8, \"num_local_experts\": 4", "num_experts" },
    { "glm4_moe", KV4 "\"moe_intermediate_size\": 8, \"topk_group\": 2", "\"topk_group\" is 2, \"n_group\" 1" },
    { "llama", "\"rope_scaling\": {\"type\": \"yarn\", \"rope_type\": \"linear\", \"factor\": 2.0}", "differ" },
    { "llama", "\"rope_theta\": 1e4, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0, \"rope_theta\": 5e5}",
      "rope_theta" },
    { "deepseek_v3", LATENTS "\"partial_rotary_factor\": 0.5",        "partial_rotary_factor" },
    { "deepseek_v3", "\"moe_intermediate_size\": 8, \"n_group\": 1, \"topk_group\": 1, \"num_key_value_heads\": 2",
      "2 key/value heads and 4" },
    { "deepseek_v2", LATENTS "\"norm_topk_prob\": true",              "norm_topk_prob" },
    { "deepseek_v2", LATENTS "\"topk_method\": \"noaux_tc\"",         "greedy and group_limited_greedy" },
    /* more than a float holds */
    { "smoe",    "\"routed_scaling_factor\": 3e81",                   "multiplier of 3e+81" },
    { "smoe",    "\"final_logit_softcapping\": 1e300",                "multiplier of 1e+300" },
    { "smoe",    "\"initializer_fan_in_scale\": 1e300",               "multiplier of" },
    { "smoe", "\"rms_norm_eps\": 1e300", "multiplier of" }, { "smoe", "\"rope_theta\": 1e300", "rotary" },
    { "llama", "\"num_key_value_heads\": 3", "3" }, { "llama", "\"head_dim\": 5", "5" },
    { "mixtral", KV4 "\"num_local_experts\": 4, \"num_experts_per_tok\": 5", "5 of 4" },
    { "mixtral", "\"num_local_experts\": 2.5",                        "num_local_experts" },
    { "mixtral", "\"num_local_experts\": -2",                         "num_local_experts" },
    { "mixtral", "\"num_local_experts\": 4000000000000",              "num_local_experts" },
    { "smoe",    "\"shared_intermediate_size\": 1073741824",          "shared_intermediate_size" },
    { "llama",   "\"num_key_value_heads\": 33554432",                 "num_key_value_heads" },
    { "llama", "\"tie_word_embeddings\": 1", "tie_word_embeddings" }, { "llama", "\"rms_norm_eps\": -1.0", "epsilon" },
    { "llama",   "\"rms_norm_eps\": \"small\"",                       "rms_norm_eps" },
    { "jetmoe",  "\"kv_channels\": 4, \"num_key_value_heads\": 1, \"num_local_experts\": 1, \"num_experts_per_tok\": 1",
      "two experts" },
    { "jetmoe",  "\"num_key_value_heads\": 1",                        "kv_channels" },
    { "granitemoe", "\"num_local_experts\": 4, \"position_embedding_type\": \"nope\"", "position_embedding_type" },
    { "granitemoe", "\"num_local_experts\": 4, \"position_embedding_type\": null", "position_embedding_type" },
    { "gpt_oss", KV4 "\"num_local_experts\": 4, \"rope_scaling\": null", "rope_scaling" },
    { "minimax_m2", "\"num_key_value_heads\": 4, \"layernorm_mlp_beta\": 2.0", "layernorm_mlp_beta" },
};

/* Files of published models are read as Transformers' AutoConfig reads them (make_configs.py), also
 * once they have been written here. */
static double value_of(const Config *c, const char *key) {
    int windows = 0;
    for (int l = 0; l < c->layers; l++) windows += config_window(c, l) > 0;
    const struct { const char *key; double is; } all[] = {
        { "vocab", c->vocab }, { "channels", c->channels }, { "layers", c->layers },
        { "heads", c->kv_heads * c->query_heads }, { "kv_heads", c->kv_heads },
        { "head_size", c->head_size }, { "experts", c->experts }, { "topk", c->topk },
        { "width", c->width }, { "context", c->context }, { "tied", c->tied }, { "eps", c->final_eps },
        { "theta", c->rope_theta }, { "factor", c->rope.kind ? c->rope.factor : 1 }, { "kv_rank", c->kv_rank },
        { "query_rank", c->query_rank }, { "windows", windows },
        { "rotated", c->rotated ? c->rotated : c->head_size } };
    for (size_t i = 0; i < COUNT(all); i++) if (!strcmp(all[i].key, key)) return all[i].is;
    return -1;
}
static void published_configs(void) {
    Error none;
    Json *json = json_read_file("tests/reference", "configs.json", &none);
    int models = 0;
    for (const JsonValue *m = json ? json_first(json_root(json)) : NULL; m; m = m->next, models++) {
        const char *name = json_string(json_get(m, "name"), "?");
        Config c, again;
        Error e = { 0 };
        Text text = { 0 };
        const int ok = config_from_json(&c, json_get(m, "config"), &e);
        check(ok, "%s: %s", name, e.text);
        if (!ok) continue;
        for (const JsonValue *v = json_first(json_get(m, "is")); v; v = v->next)
            check(value_of(&c, v->key) == json_double(v, -1), "%s: %s is %g, Transformers has %g", name, v->key,
                  value_of(&c, v->key), json_double(v, -1));
        config_to_json(&c, "BF16", 0, &text);
        check(from_text(&again, text.at, &e) && config_same(&c, &again, &e), "%s, written and read again: %s", name,
              e.text);
        free(text.at);
    }
    check(models > 20, "%d configs of published models", models);
    json_free(json);
}

static void refused_configs(void) {
#define SIZES "\"vocab_size\": 32, \"hidden_size\": 16, \"num_hidden_layers\": 2, \"intermediate_size\": 8, " \
              "\"num_attention_heads\": 4, \"max_position_embeddings\": 64"
    static const char *harmless[] = { "\"attention_bias\": false", "\"rope_scaling\": null", "\"sliding_window\": null",
                                      "\"sliding_window\": 64", "\"rope_parameters\": {\"rope_type\": \"default\"}",
                                      "\"quantization_config\": null", "\"hidden_act\": \"silu\"",
                                      "\"unsloth_version\": \"1\"", "\"logit_softcap\": null", "\"use_mrope\": false",
                                      "\"is_llama_config\": true" };
    Config c;
    Error e;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char *text = text_format("{\"model_type\": \"%s\", " SIZES ", %s}", wrong[i].type, wrong[i].extra);
        e.text[0] = 0;
        const int read = from_text(&c, text, &e);
        check(!read && strstr(e.text, wrong[i].names), "%s with %s is refused, naming the key: %s", wrong[i].type,
              wrong[i].extra, read ? "it was read" : e.text);
        free(text);
    }
    for (size_t i = 0; i < COUNT(harmless); i++) {
        char *text = text_format("{\"model_type\": \"llama\", " SIZES ", %s}", harmless[i]);
        check(from_text(&c, text, &e), "llama with %s is accepted: %s", harmless[i], e.text);
        free(text);
    }
    static const char *const layers[] = { "10001", "1000000000" };     /* 10^9 once took 7 GB and 25 s */
    for (int i = 0; i < 2; i++) {
        char *text = text_format("{\"model_type\": \"llama\", \"vocab_size\": 32, \"hidden_size\": 16, "
                                 "\"num_hidden_layers\": %s, \"intermediate_size\": 8, \"num_attention_heads\": 4}",
                                 layers[i]);
        check(!from_text(&c, text, &e) && strstr(e.text, "layers"), "%s layers are refused: %s", layers[i], e.text);
        free(text);
    }
    check(!from_text(&c, "{\"model_type\": \"llama\", \"vocab_size\": 16777216, \"hidden_size\": 16777216, "
                         "\"num_hidden_layers\": 10000, \"intermediate_size\": 8, \"num_attention_heads\": 4}", &e),
          "a model whose size overflows is refused: %s", e.text);
    check(!from_text(&c, "{\"model_type\": \"llama\", \"vocab_size\": 32}", &e)
          && strstr(e.text, "\"hidden_size\" is missing"), "a missing key is named: %s", e.text);
    check(config_parse(&c, "m2:c32l1000000", &e) && !config_parse(&c, "m2:c32l1000001", &e)
          && strstr(e.text, "multiplier of"), "a descriptor has the same limits: %s", e.text);
}

/* Which layers have a window: the rules of each family, and layer_types where they are listed. */
static void windows_of_configs(void) {
    static const struct { const char *type, *extra; int window; uint64_t layers; } cases[] = {
        { "mixtral", "\"sliding_window\": 32", 32, 15 }, { "mistral", "\"sliding_window\": 64", 0, 0 },
        { "mistral", "\"sliding_window\": 63", 63, 15 },         { "mistral", "\"sliding_window\": null", 0, 0 },
        { "qwen3",   "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 1", 8, 14 },
        { "qwen3",   "\"use_sliding_window\": false, \"sliding_window\": 8, \"max_window_layers\": 1", 0, 0 },
        { "qwen3",   "\"use_sliding_window\": true, \"sliding_window\": 8, \"layer_types\": [\"full_attention\", "
                     "\"sliding_attention\", \"full_attention\", \"sliding_attention\"]", 8, 10 },
        { "qwen3_moe", "\"use_sliding_window\": true, \"sliding_window\": 8, \"moe_intermediate_size\": 8", 8, 15 },
        { "qwen2_moe", "\"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 3, "
                       "\"moe_intermediate_size\": 8, \"shared_expert_intermediate_size\": 8", 8, 5 },
        { "dots1",   "\"sliding_window\": 8, \"max_window_layers\": 2, \"moe_intermediate_size\": 8, "
                     "\"n_shared_experts\": 1, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2", 8, 12 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = text_format("{\"model_type\": \"%s\", \"vocab_size\": 32, \"hidden_size\": "
                                 "16, \"num_hidden_layers\": 4, \"intermediate_size\": 8, \"num_attention_heads\": "
                                 "4, \"num_key_value_heads\": 4, \"head_dim\": 4, \"max_position_embeddings\": 64, %s}",
                                 cases[i].type, cases[i].extra);
        Config c, again;
        Error e = { 0 };
        Text json = { 0 };
        const int read = from_text(&c, text, &e);
        check(read && c.window == cases[i].window && c.windowed.bits[0] == cases[i].layers,
              "%s with %s: a window of %d in layers %llx %s", cases[i].type, cases[i].extra, c.window,
              (unsigned long long)c.windowed.bits[0], e.text);
        if (read) config_to_json(&c, "BF16", 1, &json);
        check(read && from_text(&again, json.at, &e) && config_same(&c, &again, &e), "%s with %s comes back: %s",
              cases[i].type, cases[i].extra, e.text);
        free(json.at), free(text);
    }
}

/* As run.json has it. */
static void same_when_written(const Config *c, const char *what) {
    Text written = { 0 };
    Config again;
    Error e;
    config_to_json(c, "F32", 1, &written);
    check(from_text(&again, written.at, &e) && config_same(c, &again, &e),
          "%s is the same when it is written and read: %s", what, e.text);
    free(written.at);
}
/* A key that is missing means what Transformers takes it to be, in every family; or it is asked for
 * by its name. defaults.json has all keys of each family's own configuration. */
static void default_configs(void) {
    Error e;
    size_t bytes;
    char *text = file_read("tests/reference/families/defaults.json", &bytes, &e);
    Json *json = text ? json_parse(text, bytes, &e) : NULL;
    int families = 0, accepted = 0;
    check(json != NULL, "defaults.json: %s", e.text);
    for (const JsonValue *f = json ? json_first(json_root(json)) : NULL; f; f = f->next, families++) {
        Config full, without;
        const int read = config_from_json(&full, f, &e);
        check(read, "%s with its own defaults is read: %s", f->key, e.text);
        if (read) same_when_written(&full, f->key);
        if (read && full.kv_rank) {
            Config stretched = full;
            stretched.rope = (RopeScaling){ ROPE_YARN, 0, 4, 1, 32, 24, 1.1, 0.7 };
            same_when_written(&stretched, f->key);
        }
        for (const JsonValue *left = read ? json_first(f) : NULL; left; left = left->next) {
            Text some = { 0 };
            if (!strcmp(left->key, "model_type")) continue;
            text_add(&some, "{\"model_type\": \"%s\"", f->key);
            for (const JsonValue *v = json_first(f); v; v = v->next) {
                if (v == left || !strcmp(v->key, "model_type")) continue;
                text_add(&some, ", \"%s\": ", v->key);
                json_write(&some, v, 0);
            }
            text_add(&some, "}");
            char *missing = text_format("\"%s\" is missing", left->key);
            /* then there is one */
            const int window = !strcmp(f->key, "mistral") && !strcmp(left->key, "sliding_window");
            if (from_text(&without, some.at, &e)) {
                check(window ? without.window == 4096 && config_window(&without, 0) == 4096
                      : config_same(&full, &without, &e), "%s without %s is the same: %s", f->key, left->key, e.text);
                accepted++;
            } else check(strstr(e.text, missing) != NULL, "%s without \"%s\": %s", f->key, left->key, e.text);
            free(missing), free(some.at);
        }
    }
    check(families == 20 && accepted > 200, "%d families, %d keys may be missing", families, accepted);
    json_free(json), free(text);
}
/* The two ways in which files describe positions, and the two names of a number of experts. */
static void older_and_newer_keys(void) {
    static const char both[] = "{\"model_type\": \"qwen3_moe\", " SIZES ", \"moe_intermediate_size\": 8, "
        "\"num_key_value_heads\": 4, \"num_experts\": 4, \"num_experts_per_tok\": 2, "
        "\"rope_theta\": 300.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0, "
        "\"original_max_position_embeddings\": 32}, "
        "\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 20.0, \"factor\": 3.0}}";
    static const char *const written[] = { "\"num_experts\": 4", "\"num_local_experts\": 4",
        "\"rope_theta\": 300.0,",
        ("\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2.0, \"original_max_position_embeddings\": 32,"),
        "\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 300.0, \"factor\": 2.0, " };
    Config c, again;
    Error e = { 0 };
    Text json = { 0 };
    check(from_text(&c, both, &e) && c.rope.kind == ROPE_YARN && c.rope_theta == 300,
          "rope_scaling counts before rope_parameters, as in Transformers: %s", e.text);
    config_to_json(&c, "BF16", 0, &json);
    for (size_t i = 0; i < COUNT(written); i++)
        check(strstr(json.at, written[i]) != NULL, "%s is in %s", written[i], json.at);
    check(from_text(&again, json.at, &e) && config_same(&c, &again, &e), "which is read as the same: %s", e.text);
    free(json.at);
}
/* A null is false, and of two numbers the one that counts is written for older readers. */
static void nulls_and_doubles(void) {
    static const char text[] = "{\"model_type\": \"glm4_moe\", " SIZES ", \"moe_intermediate_size\": 8, "
        "\"num_key_value_heads\": 4, \"norm_topk_prob\": null, \"rope_theta\": 55.0, \"rope_parameters\": "
        "{\"rope_type\": \"yarn\", \"rope_theta\": 300.0, \"factor\": 2.0, "
        "\"original_max_position_embeddings\": 32, \"truncate\": null}}";
    Config c;
    Error e = { 0 };
    Text like = { 0 };
    Json *json = json_parse(text, strlen(text), &e);
    check(json && config_from_json(&c, json_root(json), &e) && c.scores == SIGMOID_EACH && c.rope.exact
          && c.rope_theta == 300, "a null is false, as in Transformers: %s", e.text);
    if (json && config_to_json_like(&c, "F32", json_root(json), &like))
        check(strstr(like.at, "\"rope_theta\": 300.0,") && !strstr(like.at, "55.0"),
              "the rope_theta that counts is in %s", like.at);
    json_free(json), free(like.at);
    /* a gpt_oss whose positions are not scaled says so to readers whose default is yarn */
    static const char plain[] = "{\"model_type\": \"gpt_oss\", " SIZES ", \"num_local_experts\": 4, "
        "\"num_key_value_heads\": 4, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 300.0}}";
    Text fresh = { 0 };
    const int read = from_text(&c, plain, &e);
    if (read) config_to_json(&c, "F32", 0, &fresh);
    check(read && strstr(fresh.at, "\"rope_scaling\": {\"rope_type\": \"default\"}"), "unscaled: %s", e.text);
    free(fresh.at);
}
void test_configs(void) {
    PART(older_and_newer_keys()); PART(nulls_and_doubles()); PART(configs()); PART(refused_configs());
    PART(published_configs());
    PART(windows_of_configs()); PART(default_configs());
}
