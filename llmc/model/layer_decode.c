/* layer_decode.c: a layer for one token of each of a few sequences, by operations that fuse its steps. */
#include "sublayers.h"

/* The forward pass for one token of each of a few sequences, from the residual stream to the residual stream. */
void attention_layer_decode(Model *m, int l, floatX *out, const floatX *resid) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const HeadSizes z = head_sizes(m);
    const int N = z.N, C = z.C, G = z.G, Q = z.Q, D = z.D;
    const int H = z.mixture ? G*D : Q*G*D;                  /* width of an expert's heads */
    const Norm norm = { p->att_norm, (float)c->norm_eps };
    const Router router = { .weight = p->att_router, .bias = a->att.bias, .scores = (Scores)c->scores, .E = c->attention_experts,
                            .K = c->attention_topk };
    const Choice choice = { a->att.expert, a->att.weight };
    const NewHeads heads = { p->query_bias, p->kv_bias, p->value_embed, m->batch.tokens, head_norm(m, p->query_norm),
                             head_norm(m, p->key_norm), c->qk_norm > 1 };

    /* 1 to 3, 4 and 5, 6 and 7. */
    dev->decode_in(a->q, a->kv, choice, resid, norm, router, p->query, p->kv, p->output, (size_t)C * (size_t)H, IDENTITY,
                   N, C, H, 2*G*D);
    dev->decode_attention(a->mixed, m->cache[l], a->q, a->kv, &heads, m->rope, m->batch.position, m->cache_row,
                          config_window(c, l), z.order, m->batch.B, m->cache_capacity, G, Q, D);
    dev->decode_out(out, resid, a->mixed, choice, p->output, p->att_bias, (float)c->residual_scale, N, router.E, router.K, H, C);
}

/* The forward pass for one token of each of a few sequences, from the residual stream to the residual stream: a mixture, or, with
 * router.weight NULL, one MLP. */
static void mlp_decode(Model *m, floatX *out, const floatX *resid, const floatX *x, Norm norm, Router router, Choice choice,
                       DenseMlp mlp, const floatX *bias) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, F = mlp.F;
    dev->decode_in(m->s.act, NULL, choice, x, norm, router, mlp.up, NULL, mlp.down, (size_t)C * (size_t)F,
                   (Activation)m->config.activation, N, C, F, 0);
    dev->decode_out(out, resid, m->s.act, choice, mlp.down, bias, (float)m->config.residual_scale, N, router.E, router.K, F, C);
}
void moe_layer_decode(Model *m, int l, floatX *out, const floatX *resid) {
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    const Route *r = &m->acts[l].mlp, *gate = &m->acts[l].gate;
    const Norm norm = { p->mlp_norm, (float)c->norm_eps };
    const Router none = { .E = 1, .K = 1 };
    DenseMlp experts = dense_mlp(m, l);
    if (!config_has_experts(c, l)) {
        mlp_decode(m, out, resid, resid, norm, none, (Choice){ 0 }, experts, NULL);
        return;
    }

    /* 1 to 4. */
    const Router router = { p->router, r->bias, (Scores)c->scores, r->E, r->K, r->groups, (float)c->route_scale };
    mlp_decode(m, out, resid, resid, norm, router, (Choice){ r->expert, r->weight }, experts, p->mlp_bias);

    /* 5. Its gate is a router that has one expert. */
    if (!c->shared_width) return;
    const Router gating = c->shared_gate ? (Router){ .weight = p->shared_gate, .scores = SIGMOID_EACH, .E = 1, .K = 1 } : none;
    const Choice choice = c->shared_gate ? (Choice){ gate->expert, gate->weight } : (Choice){ 0 };
    mlp_decode(m, out, out, resid, norm, gating, choice, shared_expert(m, l), NULL);
}
