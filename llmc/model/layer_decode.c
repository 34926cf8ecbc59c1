/* layer_decode.c: sub-layers when text is generated. Keys and values of past tokens are in a cache,
 * to which step 5 of attention.c adds those of new ones. One new token for each of some sequences
 * may also pass a whole sub-layer at once, from residual stream to residual stream, by operations
 * that fuse its steps (DecodeOperations in kernels.h). */
#include "sublayers.h"

/* More than one token of a sequence come into an empty cache: these see only each other. */
int attention_to_past(Model *m, int l) {
    const Config *c = &m->config;
    const LayerActs *a = &m->acts[l];
    const int B = m->batch.B, N = m->batch.N, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    if (m->cache) m->dev->cache_store(m->cache[l], a->kv, m->cache_row, N, 2*G*D);
    if (!m->cache || m->batch.T > 1) return 0;
    m->dev->attention_cached(a->mixed, a->q, m->cache[l], m->lp[l].sink, m->batch.position, config_window(c, l),
                             head_order(c), B, m->cache_capacity, G, Q, D);
    return 1;
}

/* Of an attention expert. */
static int heads_width(const Config *c) { return c->kv_heads * c->head_size * (is_mixture(c) ? 1 : c->query_heads); }

/* A GPU reads codes of all of its weights again for each of so many groups of tokens, rather than
 * to widen all experts. */
enum { AT_ONCE = 8, CODED_GROUPS = 6 };

static int fits(const Model *m, int N) {
    const Config *c = &m->config;
    const DecodeOperations *decode = m->dev->decode;
    const int C = c->channels, mixtures = config_mixtures(c);
    const Format all = m->codes ? c->weights : OF_FLOATX, experts = m->codes && c->experts_in ? c->experts_in : all;
    return (!mixtures || decode->fits(N, C, c->width, c->experts, c->topk, experts))
        && (mixtures == c->layers || decode->fits(N, C, config_dense_width(c), 1, 1, all))
        && (!c->shared_width || decode->fits(N, C, c->shared_width, 1, 1, all))
        && decode->fits(N, C, heads_width(c), c->attention_experts, c->attention_topk, all);
}
/* One token of each sequence, in layers that are not too wide and have nothing more than these. */
int layers_decode(const Model *m) {
    const Config *c = &m->config;
    const int N = m->batch.N;
    if (!m->dev->decode || m->mode != MODEL_INFER || !m->cache || m->batch.T != 1 || m->forced || c->kv_rank
        || (c->key_shift && c->head_size % 8)) return 0;
    if (fits(m, N)) return N;
    for (int n = AT_ONCE; n && m->codes; n /= 2) if (fits(m, n)) return N <= CODED_GROUPS * n ? n : 0;
    return 0;
}

/* A weight, as numbers or as the codes that are kept of it. */
static Weight weight_of(const floatX *numbers, const Weight *codes) {
    return codes ? *codes : (Weight){ .at = numbers };
}
/* Of the tokens from this one on. */
static Choice choice_from(const Model *m, const Route *r, int first) {
    const size_t slots = (size_t)first * (size_t)r->K;
    if (!r->expert) return (Choice){ 0 };
    return (Choice){ r->expert + slots, real_at(m, r->weight, slots) };
}
static LayerCodes codes_of(const Model *m, int l) { return m->lc ? m->lc[l] : (LayerCodes){ 0 }; }

/* How many tokens are in the group that begins with this one. */
static int group_from(const Model *m, int first) {
    const int left = m->batch.N - first;
    return left < m->decodes ? left : m->decodes;
}

static void attention_layer_decode(Model *m, int l, floatX *out, const floatX *resid) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int N = m->batch.N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    const int H = heads_width(c);
    const Router router = { .weight = p->att_router, .bias = a->att.bias, .scores = c->scores,
                            .E = c->attention_experts, .K = c->attention_topk };
    const LayerCodes k = codes_of(m, l);
    const Weight output = weight_of(p->output, k.output);
    const NewHeads heads = { p->query_bias, p->kv_bias, p->value_gate ? NULL : p->value_embed, m->batch.tokens,
                             norm_of(m, p->query_norm), norm_of(m, p->key_norm), c->qk_norm == NORM_ALL,
                             p->sink, m->own_keys[l] };

    /* 1 to 3. */
    for (int n = 0; n < N; n += m->decodes)
        dev->decode->in(float_at(m, a->q, (size_t)n * (size_t)(Q*G*D)), float_at(m, a->kv, (size_t)n * (size_t)(2*G*D)),
                        choice_from(m, &a->att, n), float_at(m, resid, (size_t)n * (size_t)C), norm_of(m, p->att_norm),
                        router, weight_of(p->query, k.query), NULL, weight_of(p->kv, k.kv), output,
                        (size_t)C * (size_t)H, IDENTITY, group_from(m, n), C, H, 2*G*D);
    if (p->value_gate) {
        dev->rmsnorm_forward(a->att_normed, a->att_rstd, resid, norm_of(m, p->att_norm), N, C);
        values_add(m, l, a->att_normed);
    }
    /* 4, 5. */
    dev->decode->attention(a->mixed, m->cache[l], a->q, a->kv, &heads, m->rope, m->batch.position, m->cache_row,
                          config_window(c, l), head_order(c), m->batch.B, m->cache_capacity, G, Q, D);
    /* 6, 7. */
    for (int n = 0; n < N; n += m->decodes) {
        const size_t from = (size_t)n * (size_t)C, heads_from = (size_t)n * (size_t)(Q*G*D);
        dev->decode->out(float_at(m, out, from), float_at(m, resid, from), float_at(m, a->mixed, heads_from),
                         choice_from(m, &a->att, n), output, NULL, p->att_bias, (float)c->residual_scale,
                         group_from(m, n), router.E, router.K, H, C);
    }
}

/* out = resid + what experts or, with router.weight NULL, one MLP make of norm(x). */
typedef struct { Weight up, down; const floatX *up_bias, *down_bias; int F; } Weights;
static void mlp_decode(Model *m, int l, floatX *out, const floatX *resid, const floatX *x, Router router, Choice choice,
                       Weights w, const floatX *bias, int N) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const int C = c->channels, F = w.F;
    const Norm norm = norm_of(m, m->lp[l].mlp_norm);
    dev->decode->in(m->s.act, NULL, choice, x, norm, router, w.up, w.up_bias, (Weight){ 0 }, w.down,
                   (size_t)C * (size_t)F, c->activation, N, C, F, 0);
    dev->decode->out(out, resid, m->s.act, choice, w.down, w.down_bias, bias, (float)c->residual_scale, N,
                     router.E, router.K, F, C);
}
/* Of N tokens from the one of number `first` on. */
static void moe_layer_decode(Model *m, int l, int first, int N) {
    const Config *c = &m->config;
    const size_t from = (size_t)first * (size_t)c->channels;
    const floatX *const resid = float_at(m, m->acts[l].mid, from);
    floatX *const out = float_at(m, m->acts[l].out, from);
    const LayerParams *p = &m->lp[l];
    const Route *r = &m->acts[l].mlp, *gate = &m->acts[l].gate;
    const LayerCodes k = codes_of(m, l);
    const Weights weights = { weight_of(p->up, k.up), weight_of(p->down, k.down), p->up_bias, p->down_bias,
                              config_width(c, l) };
    const Weights shared = { weight_of(p->shared_up, k.shared_up), weight_of(p->shared_down, k.shared_down), NULL, NULL,
                             c->shared_width };
    const Router none = { .E = 1, .K = 1 };
    const Choice all = { 0 };
    if (!config_has_experts(c, l)) { mlp_decode(m, l, out, resid, resid, none, all, weights, NULL, N); return; }

    /* 1 to 6. */
    const Router router = { p->router, r->bias, c->scores, r->E, r->K, r->groups, (float)c->route_scale,
                            p->router_bias };
    mlp_decode(m, l, out, resid, resid, router, choice_from(m, r, first), weights, p->mlp_bias, N);

    /* A shared expert. Its gate is a router that has one expert. */
    if (!c->shared_width) return;
    const Router gating = { .weight = p->shared_gate, .scores = SIGMOID_EACH, .E = 1, .K = 1 };
    if (c->shared_gate) mlp_decode(m, l, out, out, resid, gating, choice_from(m, gate, first), shared, NULL, N);
    else                mlp_decode(m, l, out, out, resid, none, all, shared, NULL, N);
}

void layer_decode(Model *m, int l, const floatX *resid) {
    attention_layer_decode(m, l, m->acts[l].mid, resid);
    for (int n = 0; n < m->batch.N; n += m->decodes) moe_layer_decode(m, l, n, group_from(m, n));
}
void head_decode(Model *m, floatX *logits, Norm norm) {
    const Config *c = &m->config;
    const floatX *const x = m->acts[c->layers - 1].out;
    for (size_t n = 0; n < (size_t)m->batch.N; n += (size_t)m->decodes)
        m->dev->decode->in(float_at(m, logits, n * (size_t)c->vocab), NULL, (Choice){ 0 },
                           float_at(m, x, n * (size_t)c->channels), norm, (Router){ .E = 1, .K = 1 },
                           weight_of(m->p.head, m->head_codes), NULL, (Weight){ 0 }, (Weight){ 0 }, 0, IDENTITY,
                           group_from(m, (int)n), c->channels, c->vocab, 0);
}
