/* attention.c: the attention half of a layer. A mixture of attention heads: every token picks K attention experts,
 * each of which owns a query projection and an output projection; keys and values come from one projection that all
 * share, so the cache and the cost of attention do not grow with the number of experts. With one expert it is plain
 * attention. Source: Zhang et al. 2022, arXiv 2210.05144; the form is JetMoE's, arXiv 2404.07413. */
#include "parallel.h"

static HeadOrder head_order(const Config *c) { return c->attention_experts > 1 ? HEADS_TILED : HEADS_GROUPED; }

Sum attention_layer_forward(Model *m, LayerActs *a, const LayerParams *p, const floatX *x, int layer) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const Route *r = &a->att;
    const int mixture = c->attention_experts > 1;
    const int N = m->N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;

    /* 1, 2. Choose attention experts; sort the slots by expert. */
    if (mixture) route_forward(m, &a->att, p->att_router, x);

    /* 3. Queries from the chosen experts, G heads for each slot; keys and values from the shared projection. */
    if (mixture) dev->parallel_linear_forward(a->q, x, p->query, &r->plan, C, G*D, BY_TOKEN, BY_SLOT);
    else         dev->matmul_forward(a->q, x, p->query, N, C, Q*G*D);
    dev->matmul_forward(a->kv, x, p->kv, N, C, 2*G*D);

    /* 4. Positions turn queries and keys. */
    dev->rope(a->q,  m->rope, m->position, +1, N, Q*G*D, Q*G, D);
    dev->rope(a->kv, m->rope, m->position, +1, N, 2*G*D, G, D);

    /* 5. Every query head attends; the heads of a token's slots are simply more heads of that token. */
    if (!m->cache) dev->attention_forward(a->mixed, a->att_lse, a->q, a->kv, head_order(c), m->B, m->T, G, Q, D);
    else {
        dev->cache_store(m->cache[layer], a->kv, m->cache_row, N, 2*G*D);
        if (m->T == 1)
            dev->attention_cached(a->mixed, a->q, m->cache[layer], m->position, head_order(c), m->B,
                                  m->cache_capacity, G, Q, D);
        else           dev->attention_forward(a->mixed, a->att_lse, a->q, a->kv, head_order(c), m->B, m->T, G, Q, D);
    }

    /* 6. Back to C channels by the same experts, and 7. summed by the router's weights. */
    if (!mixture) {
        dev->matmul_forward(m->s.branch, a->mixed, p->output, N, Q*G*D, C);
        return (Sum){ .rows = m->s.branch };
    }
    dev->parallel_linear_forward(m->s.rows, a->mixed, p->output, &r->plan, G*D, C, BY_SLOT, GROUPED);
    return (Sum){ .rows = m->s.rows, .plan = &r->plan, .weight = r->weight, .bias = p->att_bias };
}

/* The same for a token of each of a few sequences, from the residual stream to the residual stream. */
void attention_layer_decode(Model *m, LayerActs *a, const LayerParams *p, floatX *out, const floatX *resid, int layer) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const int A = c->attention_experts, X = c->attention_topk;
    const int N = m->N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    const int H = A > 1 ? G*D : Q*G*D;                      /* width of an expert's heads */
    const Norm norm = { p->att_norm, (float)c->norm_eps };
    const Router router = { p->att_router, a->att.bias, (Scores)c->scores, A, X };
    const Choice choice = { a->att.expert, a->att.weight };

    /* 1 to 3, 4 and 5, 6 and 7. */
    dev->decode_in(a->q, a->kv, choice, resid, norm, router, p->query, p->kv, p->output, (size_t)C * (size_t)H, IDENTITY,
                   N, C, H, 2*G*D);
    dev->decode_attention(a->mixed, m->cache[layer], a->q, a->kv, m->rope, m->position, m->cache_row, head_order(c), m->B,
                       m->cache_capacity, G, Q, D);
    dev->decode_out(out, resid, a->mixed, choice, p->output, p->att_bias, N, A, X, H, C);
}

Sum attention_layer_backward(Model *m, LayerActs *a, const LayerParams *p, LayerGrads *g, const floatX *dout,
                             const floatX *x, float scale) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const Route *r = &a->att;
    const int mixture = c->attention_experts > 1;
    const int N = m->N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    Sum dx = { 0 };

    /* 7, 6. As in moe.c, with experts whose nonlinearity is the identity. */
    if (mixture) {
        dev->parallel_linear_backward_input(m->s.dmixed, dout, p->output, &r->plan, G*D, C, BY_SLOT, BY_TOKEN);
        dev->activation_backward(m->s.dmixed, m->s.act, m->s.dweight, m->s.dmixed, a->mixed, r->weight,
                                 &r->plan, BY_SLOT, IDENTITY, N*Q, G*D);
        dev->parallel_linear_backward_weight(g->output, dout, m->s.act, &r->plan, G*D, C, BY_SLOT, BY_TOKEN,
                                             m->write);
    } else {
        dev->matmul_backward_input(m->s.dmixed, dout, p->output, N, Q*G*D, C, SET);
        dev->matmul_backward_weight(g->output, dout, a->mixed, N, Q*G*D, C, m->write);
    }

    /* 5 */
    parallel_send_gradients(m);
    dev->attention_backward(m->s.dq, m->s.dkv, m->s.dmixed, a->mixed, a->att_lse, a->q, a->kv, head_order(c),
                            m->B, m->T, G, Q, D);

    /* 4 */
    dev->rope(m->s.dq,  m->rope, m->position, -1, N, Q*G*D, Q*G, D);
    dev->rope(m->s.dkv, m->rope, m->position, -1, N, 2*G*D, G, D);

    /* 3 */
    if (mixture) {
        dev->parallel_linear_backward_input(m->s.rows, m->s.dq, p->query, &r->plan, C, G*D, GROUPED, BY_SLOT);
        dev->parallel_linear_backward_weight(g->query, m->s.dq, x, &r->plan, C, G*D, BY_TOKEN, BY_SLOT,
                                             m->write);
        dx.rows = m->s.rows, dx.plan = &r->plan;
    } else {
        sum_add(&dx, m->s.dq, p->query, Q*G*D);
        dev->matmul_backward_weight(g->query, m->s.dq, x, N, C, Q*G*D, m->write);
    }
    sum_add(&dx, m->s.dkv, p->kv, 2*G*D);
    dev->matmul_backward_weight(g->kv, m->s.dkv, x, N, C, 2*G*D, m->write);

    /* 2, 1 */
    if (mixture) route_backward(m, &a->att, p->att_router, g->att_router, &dx, x, scale);
    return dx;
}
