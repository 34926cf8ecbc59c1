/* config.c: see config.h. */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const scores_names[] = { "topk-softmax", "softmax-topk", "softmax-renorm", "sigmoid",
                                            "sigmoid-each" };
const char *scores_name(Scores s) { return scores_names[s]; }
int scores_by_name(const char *name, Scores *s) {
    for (int i = 0; i <= SIGMOID_EACH; i++) if (!strcmp(name, scores_names[i])) return *s = i, 1;
    return 0;
}

/* ---- descriptor ------------------------------------------------------------------------------ */

/* As config_descriptor prints them. Those from s on may be 0, printed where that is no default. */
static const char letters[] = "chdqaxekfsnzuvgjotpliywr";
static int may_be_zero(char letter) { return strchr(letters, letter) >= strchr(letters, 's'); }
static const struct { const char *what, *otherwise; } fields[] = {      /* in the order of the letters */
    { "channels, the width of the residual stream",                  "128 with 4 layers, else 64 per layer" },
    { "query heads of a token, in all",         "4 below 128 channels or with 4 layers, else one per 64 channels" },
    { "size of a head",                                              "channels / heads" },
    { "kv heads (= heads of an attention expert)",               "as many as heads; with attention experts heads / x" },
    { "attention experts; 1: plain attention",                       "1" },
    { "attention experts per token",                                 "2" },
    { "experts of the MLP; 1: a dense MLP",                          "m, u: 8; d: 1" },
    { "experts per token",                                           "2" },
    { "width of an expert, or of the dense MLP",      "128 channels: 128 (d: 256), else channels * 4/3 (d: 8/3)" },
    { "shared experts, which every token has",                       "0" },
    { "norm of queries and keys: 1 of each head, 2 of all together", "1; 0: none" },
    { "matrices that start at zero: 1 outputs of layers, 2 head, too", "0: none" },
    { "1: a head of its own",                                        "0: the head is the embedding" },
    { "value embeddings in every v-th layer from the end",           "0: none" },
    { "1: gates of the value embeddings, by kv head",                "0: none" },
    { "half of keys from the token before: every j-th layer from the end", "0: none" },
    { "keys that a query sees, itself included, in layers without j",   "0: all" },
    { "a table for pairs of tokens, t times the vocabulary's rows",  "0: none" },
    { "1: scalars of the stream and of its beginning, for each layer", "0: none" },
    { "cap of the logits: l tanh(x / l)",                            "0: none" },
    { "initial scale of matrices over sqrt(inputs), in hundredths",  "0: all 0.02" },
    { "initial scale of the embedding, in hundredths",               "0: 0.02" },
    { "scale of the routed experts' weights, in hundredths",         "0: 1" },
    { "base of the rotary positions, in thousands",                  "0: 10" },
};
_Static_assert(sizeof fields / sizeof *fields == sizeof letters - 1, "a row for each letter");

void config_explain(Text *out) {
    text_add_string(out,
        "A model is described in one word: kind, layers, and fields after a colon: m12:c768e64k8f256a8x2\n\n"
        "  m12   a mixture of experts with 12 layers;   d12   dense;   u6   one block that is used 6 times\n\n"
        "  field  what it is                                                        if it is not given\n");
    for (size_t i = 0; letters[i]; i++)
        text_add(out, "  %c      %-66s%s\n", letters[i], fields[i].what, fields[i].otherwise);
    text_add_string(out, "\nThe start-up table shows what a word stands for, with all its fields, and what it takes: "
        "./train_moe -x 0 -e m12:e64k8f256\n"
        "Saved as a family that Transformers knows if there is one: m4 Qwen3-MoE, m4:n0 Mixtral, m4:n2 OLMoE, d4 "
        "Qwen3, d4:n0 Llama,\n"
        "m4:a8n0 JetMoE (docs/families.md). A folder with a model of these or other families can stand here, too: it "
        "is trained further.\n");
}

static int divides(int a, int b) { return a > 0 && b % a == 0; }
static int nearest64(double x) { return x < 64 ? 64 : (int)(x / 64 + 0.5) * 64; }

/* "e64k8f256": value[letter] of each field, NOT_GIVEN of the others. */
enum { NOT_GIVEN = -1 };
#define GIVEN(letter) (value[(letter) - 'a'] != NOT_GIVEN)
#define FIELD(letter, otherwise) (GIVEN(letter) ? value[(letter) - 'a'] : (otherwise))
static int parse_fields(const char *text, const char *at, int value[26], Error *e) {
    for (int i = 0; i < 26; i++) value[i] = NOT_GIVEN;
    while (*at) {
        const char letter = *at++, *digits = at;
        if (letter == 'b') return error_set(e, "model %s: field b: " WITHOUT_ALWAYS, text);
        if (!strchr(letters, letter))
            return error_set(e, "model %s: no field is called %c. c is channels, e experts, k experts per token, f "
                             "their width; ./train_moe --help model lists all", text, letter);
        char *end;
        const long v = strtol(digits, &end, 10);
        if (end == digits || *digits == '-' || *digits == '+' || v < 0 || v > SIZE_LIMIT)
            return error_set(e, "model %s: field %c needs a whole number, at most %d", text, letter, SIZE_LIMIT);
        if (GIVEN(letter)) return error_set(e, "model %s: field %c is given twice", text, letter);
        if (v == 0 && !may_be_zero(letter)) return error_set(e, "model %s: field %c must be at least 1", text, letter);
        value[letter - 'a'] = (int)v;
        at = end;
    }
    return 1;
}

static int choose_heads(Config *c, const char *text, const int value[26], int small, Error *e) {
    const int active = c->attention_topk;
    const int heads = FIELD('h', GIVEN('q') && c->attention_experts > 1 ? value['q' - 'a'] * active
                               : small || c->channels < 128 ? 4 : c->channels / 64);
    if (!GIVEN('d') && !divides(heads, c->channels))
        return error_set(e, "model %s: %d heads do not divide %d channels; give other heads (h) or a head size (d)",
                         text, heads, c->channels);
    c->head_size = FIELD('d', c->channels / heads);
    if (c->attention_experts > 1) {
        c->query_heads = active;
        c->kv_heads = FIELD('q', heads / active);
        if (c->kv_heads * active != heads)
            return error_set(e, "model %s: h = x * q query heads are needed, but %d is not %d * %d", text, heads,
                             active, c->kv_heads);
        return 1;
    }
    c->kv_heads = FIELD('q', heads);
    if (!divides(c->kv_heads, heads))
        return error_set(e, "model %s: %d kv heads (q) do not divide %d query heads (h)", text, c->kv_heads, heads);
    c->query_heads = heads / c->kv_heads;
    return 1;
}

int config_parse(Config *c, const char *text, Error *e) {
    const char kind = text[0];
    int value[26];
    char *end;
    if (!strchr("mdu", kind) || !kind || text[1] < '0' || text[1] > '9')
        return error_set(e, "model %s: there is no such folder, and a descriptor is m (mixture), d (dense) or u (one "
                            "shared block), a number of layers, and fields: m12:e64k8f256", text);
    const long layers = strtol(text + 1, &end, 10);
    if (layers < 1 || layers > LAYERS_MAX) return error_set(e, "model %s: 1 to %d layers", text, LAYERS_MAX);
    if (*end == ':' && end[1]) end++;
    else if (*end)
        return error_set(e, "model %s: a colon and fields can follow the number of layers, not \"%s\"", text, end);
    if (!parse_fields(text, end, value, e)) return 0;
    const int small = layers == 4 && !GIVEN('c'), mixture = kind != 'd';
    *c = (Config){ .layers = (int)layers, .universal = kind == 'u', .tied = 1, .scores = TOPK_SOFTMAX, .tile = ROW_TILE,
                   .activation = SWIGLU, .rope_theta = 10000, .norm_eps = 1e-6, .final_eps = 1e-6, .init_std = 0.02 };
    c->channels = FIELD('c', small ? 128 : (int)(64 * layers));
    c->attention_experts = FIELD('a', 1);
    c->attention_topk = FIELD('x', c->attention_experts > 1 ? 2 : 1);
    c->experts = FIELD('e', mixture ? 8 : 1);
    c->topk = FIELD('k', c->experts > 1 ? 2 : 1);
    c->width = FIELD('f', c->channels == 128 ? (mixture ? 128 : 256)
                        : nearest64(c->channels * (mixture ? 4 : 8) / 3.0));
    c->shared_width = FIELD('s', 0) * c->width;
    c->qk_norm = FIELD('n', 1);
    c->zero_output = FIELD('z', 0);
    c->tied = !FIELD('u', 0);
    c->value_embeddings = FIELD('v', 0);
    c->value_gate = FIELD('g', 0);
    c->key_shift = FIELD('j', 0);
    config_set_own_window(c, FIELD('o', 0));
    c->bigram = FIELD('t', 0);
    c->stream_scalars = FIELD('p', 0);
    c->logit_cap = FIELD('l', 0);
    c->init_fan = FIELD('i', 0) / 100.0;
    c->init_embed = FIELD('y', 0) / 100.0;
    c->route_scale = FIELD('w', 0) / 100.0;
    if (FIELD('r', 0)) c->rope_theta = FIELD('r', 0) * 1000.0;
    c->output_bias = c->attention_experts > 1 && c->experts > 1 && !c->shared_width;
    Error why;
    if (!choose_heads(c, text, value, small, e)) return 0;
    return config_check(c, &why) ? 1 : error_set(e, "model %s: %s", text, why.text);
}

int config_upcycle(Config *c, const char *given, Error *e) {
    int value[26];
    Error why;
    if (!parse_fields(given, given, value, &why)) return error_set(e, "-up %.900s", why.text + strlen("model "));
    for (const char *l = letters; *l; l++)
        if (GIVEN(*l) && !strchr("ekf", *l))
            return error_set(e, "-up %s: experts are copies of the MLP, so only e, k and f can be given, not %c", given,
                             *l);
    if (c->experts > 1) return error_set(e, "-up %s: this model has experts already, %d of them; only a dense one can "
                                         "become a mixture", given, c->experts);
    if (FIELD('f', c->width) != c->width)
        return error_set(e, "-up %s: experts are copies of the MLP, whose width is %d", given, c->width);
    c->experts = FIELD('e', 8);
    c->topk = FIELD('k', 2);
    if (c->experts < 2) return error_set(e, "-up %s: a mixture has at least two experts", given);
    c->scores = TOPK_SOFTMAX;
    return config_check(c, &why) || error_set(e, "-up %s: %.900s", given, why.text);
}
#undef FIELD
#undef GIVEN

static int hundredths(double x) { return (int)(x * 100 + 0.5); }
static int thousands(double base) {                         /* 0: as without the field, or no whole number of them */
    const int n = base <= SIZE_LIMIT * 1000.0 ? (int)(base / 1000) : 0;
    return n != 10 && n * 1000.0 == base ? n : 0;
}
void config_descriptor(const Config *c, char text[128]) {
    const int dense = c->experts == 1 && c->attention_experts == 1;
    int n = snprintf(text, 128, "%c%d:", c->universal ? 'u' : dense ? 'd' : 'm', c->layers);
    for (const char *l = letters; *l && n < 110; l++) {
        int v = *l == 'c' ? c->channels : *l == 'h' ? c->kv_heads * c->query_heads
              : *l == 'd' ? c->head_size : *l == 'q' ? c->kv_heads
              : *l == 'a' ? c->attention_experts : *l == 'x' ? c->attention_topk
              : *l == 'e' ? c->experts : *l == 'k' ? c->topk
              : *l == 'f' ? c->width : *l == 's' ? (c->shared_width + c->width - 1) / c->width
              : *l == 'n' ? (int)c->qk_norm : *l == 'z' ? c->zero_output
              : *l == 'u' ? !c->tied : *l == 'v' ? c->value_embeddings : *l == 'l' ? (int)c->logit_cap
              : *l == 'g' ? c->value_gate : *l == 'j' ? c->key_shift : *l == 't' ? c->bigram
              : *l == 'p' ? c->stream_scalars : *l == 'o' ? config_own_window(c)
              : *l == 'i' ? hundredths(c->init_fan) : *l == 'y' ? hundredths(c->init_embed)
              : *l == 'w' ? hundredths(c->route_scale) : thousands(c->rope_theta);
        if (!v && may_be_zero(*l) && *l != 'n') continue;
        n += snprintf(text + n, 128 - (size_t)n, "%c%d", *l, v);
    }
}

static int within_limits(const Config *c, Error *e) {
    const int sizes[] = { c->channels, c->vocab, c->context, c->attention_experts, c->kv_heads, c->query_heads,
                          c->head_size, c->experts, c->width, c->shared_width, c->dense_width, c->value_embeddings,
                          c->bigram, c->kv_rank, c->query_rank, c->value_size };
    const double most = 2147483647, C = c->channels, experts = c->attention_experts, vocab = c->vocab ? c->vocab : 1;
    const double row = 2.0 * c->width * c->experts + 2.0 * c->shared_width + 2.0 * c->dense_width;
    const double one = (double)c->kv_heads * c->head_size;
    const double heads = one * (experts > 1 && experts > c->query_heads ? experts : c->query_heads);
    if (c->layers > LAYERS_MAX) return error_set(e, "%d layers; at most %d", c->layers, LAYERS_MAX);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > SIZE_LIMIT) return error_set(e, "a size of %d; at most %d", sizes[i], SIZE_LIMIT);
    const double scales[] = { c->init_std, c->init_fan, c->init_embed, c->logit_cap, c->route_scale, c->attention_scale,
                              c->embed_scale, c->residual_scale, c->logit_divisor, c->final_eps, c->norm_eps,
                              c->rope.scores };
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (!(scales[i] >= 0 && scales[i] <= 1e6))
            return error_set(e, "an epsilon, initializer_range, cap, scale or multiplier of %g; it is 0 to 1e6",
                             scales[i]);
    if (!(c->rope_theta > 0 && c->rope_theta < 1e30))
        return error_set(e, "rotary positions to the base %g are impossible", c->rope_theta);
    const double latents = (double)c->kv_rank + c->query_rank + c->rotated;
    const double layer = C * (1.5 * row + 2 * heads + 2 * one + c->experts + experts + latents)
                       + (c->value_embeddings ? vocab * one : 0) + latents * 3 * heads;
    if (C * vocab > 1e12 || row > most || heads > most || 2 * one > most || latents > most || layer * c->layers > 1e15)
        return error_set(e, "these sizes are beyond what one tensor can hold");
    return 1;
}

/* Of values and the stream (values.c, mix.h). */
static int additions_fit(const Config *c, Error *e) {
    const double rows = (double)c->bigram * c->vocab, pairs = (double)c->vocab * c->vocab;
    if (c->value_embeddings < 0 || (c->value_embeddings && c->universal))
        return error_set(e, "value embeddings (v) need blocks with weights of their own");
    if (c->value_gate < 0 || c->value_gate > 1 || (c->value_gate && !c->value_embeddings))
        return error_set(e, "gates of values (g) are 0 or 1, and need value embeddings (v)");
    if (c->key_shift < 0 || (c->key_shift && c->head_size % 4))
        return error_set(e, "keys of which half is the token before's (j) need heads of a multiple of 4");
    if (c->stream_scalars < 0 || c->stream_scalars > 1) return error_set(e, "scalars of the stream (p) are 0 or 1");
    if (c->window < 0 || (c->window && c->layers > MOST_LISTED))
        return error_set(e, "a window (o) has at least one key, in models of at most %d layers", MOST_LISTED);
    if (config_mixes(c) && c->universal)
        return error_set(e, "a table of bigrams (t) and scalars of the stream (p) need blocks with weights of their "
                            "own");
    if (c->bigram < 0 || rows > pairs)
        return error_set(e, "a table of bigrams (t) with %d rows for each of %d tokens: there are no more pairs than "
                            "%.0f", c->bigram, c->vocab, pairs);
    if (rows > 2147483647 || rows * c->channels > 1e12)
        return error_set(e, "a table of bigrams (t) with %.0f rows of %d channels is beyond what one tensor can hold",
                         rows, c->channels);
    return 1;
}

static int latents_fit(const Config *c, Error *e) {
    if (!c->kv_rank && !c->query_rank && !c->value_size) return 1;
    if (c->kv_rank < 1 || c->query_rank < 0) return error_set(e, "latent attention has a latent of keys and values");
    if (c->attention_experts > 1 || c->query_heads > 1 || c->qk_norm || c->attention_bias || c->sinks
        || c->value_embeddings || c->key_shift || c->window)
        return error_set(e, "latent attention has one key for every query head, and no other ingredients");
    if (c->rotated < 2 || c->rotated >= c->head_size)
        return error_set(e, "positions rotate %d of %d dimensions of a head, which has others beside them", c->rotated,
                         c->head_size);
    if (c->value_size < 1 || c->value_size > c->head_size)
        return error_set(e, "values of %d dimensions; they have at most as many as keys, %d", c->value_size,
                         c->head_size);
    return 1;
}
int config_check(const Config *c, Error *e) {
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
    if (c->route_scale > 0 && c->experts == 1)
        return error_set(e, "a scale of the routed experts' weights (w) needs routed experts (e > 1)");
    if (c->qk_norm > NORM_ALL) return error_set(e, "the norm of queries and keys (n) is 0, 1 or 2");
    if (c->qk_norm == NORM_ALL && c->attention_experts > 1)
        return error_set(e, "a norm of all queries (n2) needs plain attention (a1)");
    if (c->zero_output < 0 || c->zero_output > 2) return error_set(e, "zero output matrices (z) are 0, 1 or 2");
    if (!additions_fit(c, e)) return 0;
    if (c->groups > 1) {
        const int width = c->experts / c->groups;
        if (c->groups > MOST_GROUPS || c->experts % c->groups || width < 2 || c->groups_chosen < 1
            || c->groups_chosen * width < c->topk)
            return error_set(e, "%d experts cannot be %d groups, of which %d have %d experts for each token",
                             c->experts, c->groups, c->groups_chosen, c->topk);
    }
    if ((c->kv_rank ? c->rotated : c->head_size) % 2)
        return error_set(e, "the head size %d must be even: positions rotate pairs",
                         c->kv_rank ? c->rotated : c->head_size);
    if (!latents_fit(c, e)) return 0;
    if (c->experts > 4096 || c->attention_experts > 4096) return error_set(e, "at most 4096 experts");
    if (c->shared_width && c->experts == 1)
        return error_set(e, "a shared expert (s) needs routed ones beside it (e > 1)");
    return within_limits(c, e);
}

int config_value_size(const Config *c) { return c->value_size ? c->value_size : c->head_size; }
double rope_mscale(double factor, double by) { return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1; }
double config_score_scale(const Config *c) {
    const double stretched = rope_mscale(c->rope.factor, c->rope.scores);
    return (c->attention_scale > 0 ? c->attention_scale * sqrt(c->head_size) : 1) * stretched * stretched;
}
double config_projections(const Config *c, int output) {
    const double C = c->channels, V = config_value_size(c);
    const double GD = (double)c->kv_heads * c->head_size, QGD = GD * c->query_heads;
    if (output) return C * c->query_heads * c->kv_heads * V;
    if (!c->kv_rank) return C * (2 * GD + QGD);
    return (c->query_rank ? c->query_rank * (C + QGD) : C * QGD)
         + C * (c->kv_rank + c->rotated) + c->kv_rank * c->kv_heads * (c->head_size - c->rotated + V);
}
int config_shifts_keys(const Config *c, int l) {
    return c->key_shift && (c->layers - 1 - l) % c->key_shift == 0;
}
int config_has_values(const Config *c, int l) {
    return c->value_embeddings && (c->layers - 1 - l) % c->value_embeddings == 0;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static int has(const Layers *s, int l) { return l < MOST_LISTED && s->bits[l / 64] >> (l % 64) & 1; }
void layers_add(Layers *s, int l) { s->bits[l / 64] |= (uint64_t)1 << (l % 64); }
void config_set_own_window(Config *c, int keys) {
    c->window = keys;
    c->windowed = (Layers){ 0 };
    for (int l = 0; keys && l < c->layers && l < MOST_LISTED; l++)
        if (!config_shifts_keys(c, l)) layers_add(&c->windowed, l);
}
int config_own_window(const Config *c) {
    for (int l = 0; l < c->layers; l++) if (has(&c->windowed, l) == config_shifts_keys(c, l)) return 0;
    return c->window;
}
int config_window(const Config *c, int l) { return has(&c->windowed, l) ? c->window : 0; }
static int is_dense(const Config *c, int l) { return has(&c->dense, l); }
double config_unseen(const Config *c, int l, int T) {
    const double W = config_window(c, l);
    return W > 0 && W < T ? (T - W) * (T - W) / T : 0;
}
int config_has_experts(const Config *c, int l) { return c->experts > 1 && !is_dense(c, l); }
int config_width(const Config *c, int l) { return c->experts > 1 && is_dense(c, l) ? c->dense_width : c->width; }
int config_mixtures(const Config *c) {
    int n = 0;
    for (int l = 0; l < c->layers; l++) n += config_has_experts(c, l);
    return n;
}
int config_dense_width(const Config *c) {
    return c->experts == 1 ? c->width : config_mixtures(c) < c->layers ? c->dense_width : 0;
}
void config_pad_vocab(Config *c) {
    const int padded = c->vocab <= 256 ? c->vocab : (c->vocab + 127) / 128 * 128;   /* 128: whole tiles of the head */
    c->padding += padded - c->vocab;
    c->vocab = padded;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Less the experts that a token does not visit, and the rows of tables that it does not read. */
size_t config_active(const Config *c, size_t total) {
    const double gate = IS_GATED(c->activation) ? 2 : 1, C = c->channels;
    const double bias = c->expert_bias ? gate * c->width + C : 0;
    const double mlp = (c->experts - c->topk) * ((gate + 1) * c->width * C + bias)
                     * (c->universal ? 1 : config_mixtures(c));
    const double attention = (c->attention_experts - c->attention_topk) * 2.0 * c->kv_heads * c->head_size * C
                           * (c->universal ? 1 : c->layers);
    double tables = c->bigram ? (config_bigram_rows(c) - 1) * C : 0;
    for (int l = 0; l < c->layers; l++)
        tables += config_has_values(c, l) ? (c->vocab - 1.0) * c->kv_heads * c->head_size : 0;
    return total - (size_t)(mlp + attention + tables);
}

double config_flops(const Config *c, int T) {
    const double gate = IS_GATED(c->activation) ? 2 : 1, C = c->channels;
    const double block = config_projections(c, 0) + config_projections(c, 1)
        + (c->attention_experts > 1 ? C * c->attention_experts : 0);
    const double pair = (double)c->kv_heads * c->query_heads * (c->head_size + config_value_size(c)) / 2;
    const double mixture = C * ((gate + 1) * ((double)c->topk * c->width + c->shared_width) + c->experts);
    const int mixtures = config_mixtures(c), dense = c->layers - mixtures;
    const double one = C * (gate + 1) * config_dense_width(c);
    double unseen = 0;
    for (int l = 0; l < c->layers; l++) unseen += config_unseen(c, l, T);
    /* causal attention: T/2 keys on average, two products */
    return 6 * (c->layers * (block + pair * T) - pair * unseen + mixtures * mixture + dense * one + C * c->vocab);
}
