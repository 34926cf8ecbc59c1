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

/* One token of each sequence, in layers that are not too wide and have nothing more than these. */
int layers_decode(const Model *m) {
    const Config *c = &m->config;
    const DecodeOperations *decode = m->dev->decode;
    const int N = m->batch.N, C = c->channels, mixtures = config_mixtures(c);
    const Format all = m->codes ? c->weights : OF_FLOATX, experts = m->codes && c->experts_in ? c->experts_in : all;
    return decode && m->mode == MODEL_INFER && m->cache && m->batch.T == 1 && !m->forced
        && !c->kv_rank && !(c->key_shift && c->head_size % 8)
        && (!mixtures || decode->fits(N, C, c->width, c->experts, c->topk, experts))
        && (mixtures == c->layers || decode->fits(N, C, config_dense_width(c), 1, 1, all))
        && (!c->shared_width || decode->fits(N, C, c->shared_width, 1, 1, all))
        && decode->fits(N, C, heads_width(c), c->attention_experts, c->attention_topk, all);
}

/* A weight, as numbers or as the codes that are kept of it. */
static Weight weight_of(const floatX *numbers, const Weight *codes) {
    return codes ? *codes : (Weight){ .at = numbers };
}
static LayerCodes codes_of(const Model *m, int l) { return m->lc ? m->lc[l] : (LayerCodes){ 0 }; }

static void attention_layer_decode(Model *m, int l, floatX *out, const floatX *resid) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int N = m->batch.N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    const int H = heads_width(c);
    const Router router = { .weight = p->att_router, .bias = a->att.bias, .scores = c->scores,
                            .E = c->attention_experts, .K = c->attention_topk };
    const Choice choice = { a->att.expert, a->att.weight };
    const LayerCodes k = codes_of(m, l);
    const Weight output = weight_of(p->output, k.output);
    const NewHeads heads = { p->query_bias, p->kv_bias, p->value_gate ? NULL : p->value_embed, m->batch.tokens,
                             norm_of(m, p->query_norm), norm_of(m, p->key_norm), c->qk_norm == NORM_ALL,
                             p->sink, m->own_keys[l] };

    /* 1 to 3. */
    dev->decode->in(a->q, a->kv, choice, resid, norm_of(m, p->att_norm), router,
                   weight_of(p->query, k.query), NULL, weight_of(p->kv, k.kv), output,
                   (size_t)C * (size_t)H, IDENTITY, N, C, H, 2*G*D);
    if (p->value_gate) {
        dev->rmsnorm_forward(a->att_normed, a->att_rstd, resid, norm_of(m, p->att_norm), N, C);
        values_add(m, l, a->att_normed);
    }
    /* 4, 5. */
    dev->decode->attention(a->mixed, m->cache[l], a->q, a->kv, &heads, m->rope, m->batch.position, m->cache_row,
                          config_window(c, l), head_order(c), m->batch.B, m->cache_capacity, G, Q, D);
    /* 6, 7. */
    dev->decode->out(out, resid, a->mixed, choice, output, NULL, p->att_bias, (float)c->residual_scale, N, router.E,
                    router.K, H, C);
}

/* out = resid + what experts or, with router.weight NULL, one MLP make of norm(x). */
typedef struct { Weight up, down; const floatX *up_bias, *down_bias; int F; } Weights;
static void mlp_decode(Model *m, int l, floatX *out, const floatX *resid, const floatX *x, Router router, Choice choice,
                       Weights w, const floatX *bias) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const int N = m->batch.N, C = c->channels, F = w.F;
    const Norm norm = norm_of(m, m->lp[l].mlp_norm);
    dev->decode->in(m->s.act, NULL, choice, x, norm, router, w.up, w.up_bias, (Weight){ 0 }, w.down,
                   (size_t)C * (size_t)F, c->activation, N, C, F, 0);
    dev->decode->out(out, resid, m->s.act, choice, w.down, w.down_bias, bias, (float)c->residual_scale, N,
                     router.E, router.K, F, C);
}
static void moe_layer_decode(Model *m, int l, floatX *out, const floatX *resid) {
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    const Route *r = &m->acts[l].mlp, *gate = &m->acts[l].gate;
    const LayerCodes k = codes_of(m, l);
    const Weights weights = { weight_of(p->up, k.up), weight_of(p->down, k.down), p->up_bias, p->down_bias,
                              config_width(c, l) };
    const Weights shared = { weight_of(p->shared_up, k.shared_up), weight_of(p->shared_down, k.shared_down), NULL, NULL,
                             c->shared_width };
    const Router none = { .E = 1, .K = 1 };
    const Choice all = { 0 };
    if (!config_has_experts(c, l)) { mlp_decode(m, l, out, resid, resid, none, all, weights, NULL); return; }

    /* 1 to 6. */
    const Router router = { p->router, r->bias, c->scores, r->E, r->K, r->groups, (float)c->route_scale,
                            p->router_bias };
    mlp_decode(m, l, out, resid, resid, router, (Choice){ r->expert, r->weight }, weights, p->mlp_bias);

    /* A shared expert. Its gate is a router that has one expert. */
    if (!c->shared_width) return;
    const Router gating = { .weight = p->shared_gate, .scores = SIGMOID_EACH, .E = 1, .K = 1 };
    if (c->shared_gate) mlp_decode(m, l, out, out, resid, gating, (Choice){ gate->expert, gate->weight }, shared, NULL);
    else                mlp_decode(m, l, out, out, resid, none, all, shared, NULL);
}

void layer_decode(Model *m, int l, const floatX *resid) {
    attention_layer_decode(m, l, m->acts[l].mid, resid);
    moe_layer_decode(m, l, m->acts[l].out, m->acts[l].mid);
}
void head_decode(Model *m, floatX *logits, Norm norm) {
    m->dev->decode->in(logits, NULL, (Choice){ 0 }, m->acts[m->config.layers - 1].out, norm, (Router){ .E = 1, .K = 1 },
                      weight_of(m->p.head, m->head_codes), NULL, (Weight){ 0 }, (Weight){ 0 }, 0, IDENTITY,
                      m->batch.N, m->config.channels, m->config.vocab, 0);
}
