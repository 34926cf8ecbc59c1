/* attention.c: the attention sub-layer of a block. A mixture of attention heads: every token picks a few of A attention experts,
 * each with a query projection and an output projection. Keys and values come from one projection that all experts share, so
 * the cache and the cost of attention do not grow with the number of experts. With one expert it is plain attention. Some
 * experts may be every token's, beside those it picks (arXiv 2410.11842): their slots come first, and nothing else differs.
 * Source: Zhang et al. 2022, arXiv 2210.05144; the form is JetMoE's, arXiv 2404.07413. */
#include "gradients.h"
#include "sublayers.h"
#include "route.h"

/* How many keys before its own each query of layer l sees; NULL: all of its row. A window as long as the row is none. */
static const int *reach(const Model *m, int l) {
    const int W = config_window(&m->config, l);
    return W && W < m->batch.T ? m->batch.reach : m->batch.packed ? m->batch.position : NULL;
}

Sum attention_layer_forward(Model *m, int l, const floatX *x) {
    /* 1, 2. Choose attention experts; sort the slots by expert. */
    if (m->config.attention_experts > 1) route_forward(m, &m->acts[l].att, m->lp[l].att_router, NULL, x);

    /* 3, 4; 5; 6. */
    attention_heads(m, l, x);
    attention_mix(m, l);
    return attention_output(m, l);
}

void attention_heads(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Route *r = &a->att;
    const HeadSizes z = head_sizes(m);
    const int N = z.N, C = z.C, G = z.G, Q = z.Q, D = z.D;
    if (m->config.kv_rank) { latent_heads(m, l, x); return; }

    /* 3. Queries from the chosen experts, G heads for each slot; keys and values from the shared projection. */
    if (z.mixture) dev->parallel_linear_forward(a->q, x, p->query, &r->plan, C, G*D, BY_TOKEN, BY_SLOT);
    else           dev->matmul_forward(a->q, x, p->query, N, C, Q*G*D);
    dev->matmul_forward(a->kv, x, p->kv, N, C, 2*G*D);
    if (p->query_bias) {
        dev->bias_forward(a->q, p->query_bias, N, Q*G*D);
        dev->bias_forward(a->kv, p->kv_bias, N, 2*G*D);
    }
    if (p->value_embed) add_values(m, l, z);

    /* 4. Positions rotate queries and keys. */
    const int norms = m->config.qk_norm;
    if (norms > 1) norm_all(m, l, z);
    if (norms == 1) norm_rotate(m, l, z);
    else            rotate(m, z, a->q, a->kv, +1);
}

void attention_mix(Model *m, int l) {
    const Device *dev = m->dev;
    LayerActs *a = &m->acts[l];
    const floatX *sink = m->lp[l].sink;
    const HeadSizes z = head_sizes(m);
    const int G = z.G, Q = z.Q, D = z.D, B = m->batch.B, T = m->batch.T;

    /* 5. Every query head attends. The heads of a token's slots are more heads of that token. A cache is empty when it gets
     * more than one token. */
    if (m->cache) dev->cache_store(m->cache[l], a->kv, m->cache_row, z.N, 2*G*D);
    if (m->cache && T == 1) dev->attention_cached(a->mixed, a->q, m->cache[l], sink, m->batch.position, config_window(&m->config, l),
                                                  z.order, B, m->cache_capacity, G, Q, D);
    else {
        dev->attention_forward(a->mixed, a->att_lse, a->q, a->kv, reach(m, l), z.order, B, T, G, Q, D);
        if (sink) dev->sink_forward(a->mixed, a->att_lse, sink, z.N, Q*G, D);
    }
}

Sum attention_output(Model *m, int l) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Route *r = &a->att;
    const HeadSizes z = head_sizes(m);
    const int N = z.N, C = z.C, G = z.G, Q = z.Q, D = z.D;

    /* 6. Back to C channels by the same experts; 7. summed by the router's weights, in add_norm_forward. */
    if (!z.mixture) {
        dev->matmul_forward(m->s.branch, mixed_values(m, l, z), p->output, N, Q*G*z.V, C);
        if (p->att_bias) dev->bias_forward(m->s.branch, p->att_bias, N, C);
        return (Sum){ .rows = m->s.branch };
    }
    dev->parallel_linear_forward(m->s.rows, a->mixed, p->output, &r->plan, G*D, C, BY_SLOT, GROUPED);
    return (Sum){ .rows = m->s.rows, .plan = &r->plan, .weight = r->weight, .bias = p->att_bias };
}

void attention_output_backward(Model *m, int l, const floatX *dout) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Route *r = &a->att;
    const HeadSizes z = head_sizes(m);
    const Write how = gradient_write(m, l);
    void *doutput = m->lg[l].output;

    /* 7, 6. As in moe.c, with experts whose nonlinearity is the identity. */
    if (z.mixture) {
        const int GD = z.G * z.D;
        dev->parallel_linear_backward_input(m->s.dmixed, dout, p->output, &r->plan, GD, z.C, BY_SLOT, BY_TOKEN);
        dev->activation_backward(m->s.dmixed, m->s.act, m->s.dweight, m->s.dmixed, a->mixed, r->weight, &r->plan, BY_SLOT,
                                 IDENTITY, z.N * z.Q, GD);
        dev->parallel_linear_backward_weight(doutput, dout, m->s.act, &r->plan, GD, z.C, BY_SLOT, BY_TOKEN, how);
    } else {
        mixed_values_backward(m, l, z, dout);
        dev->matmul_backward_weight(doutput, dout, mixed_values(m, l, z), z.N, z.Q * z.G * z.V, z.C, how);
    }
}

Sum attention_input_backward(Model *m, int l, const floatX *x, float scale) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    LayerGrads *g = &m->lg[l];
    LayerActs *a = &m->acts[l];
    const Plan *plan = &a->att.plan;
    const HeadSizes z = head_sizes(m);
    const int N = z.N, C = z.C, G = z.G, Q = z.Q, D = z.D;
    const Write how = gradient_write(m, l);
    Sum dx = { 0 };

    /* 5 */
    if (p->sink) dev->sink_backward(g->sink, m->s.dmixed, a->mixed, a->att_lse, p->sink, N, Q*G, D);
    dev->attention_backward(m->s.dq, m->s.dkv, m->s.dmixed, a->mixed, a->att_lse, a->q, a->kv, reach(m, l), z.order, m->batch.B, m->batch.T,
                            G, Q, D);
    if (m->config.kv_rank) { latent_heads_backward(m, l, x, &dx); return dx; }

    /* 4 */
    const int norms = m->config.qk_norm;
    if (norms == 1) norm_rotate_backward(m, l, z);
    else            rotate(m, z, m->s.dq, m->s.dkv, -1);
    if (norms > 1) norm_all_backward(m, l, z);

    /* 3 */
    if (p->value_embed) add_values_backward(m, l, z);
    if (p->query_bias) {
        dev->bias_backward(g->query_bias, m->s.dq, N, Q*G*D);
        dev->bias_backward(g->kv_bias, m->s.dkv, N, 2*G*D);
    }
    if (z.mixture) {
        dev->parallel_linear_backward_input(m->s.rows, m->s.dq, p->query, plan, C, G*D, GROUPED, BY_SLOT);
        dev->parallel_linear_backward_weight(g->query, m->s.dq, x, plan, C, G*D, BY_TOKEN, BY_SLOT, how);
        dx.rows = m->s.rows, dx.plan = plan;
    } else {
        sum_add(&dx, m->s.dq, p->query, Q*G*D);
        dev->matmul_backward_weight(g->query, m->s.dq, x, N, C, Q*G*D, how);
    }
    sum_add(&dx, m->s.dkv, p->kv, 2*G*D);
    dev->matmul_backward_weight(g->kv, m->s.dkv, x, N, C, 2*G*D, how);

    /* 2, 1 */
    if (z.mixture) route_backward(m, &a->att, p->att_router, g->att_router, NULL, &dx, x, scale, how);
    return dx;
}
