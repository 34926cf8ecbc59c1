/* attention.c: the attention sub-layer. Each of G heads of keys and values has Q heads of queries:
 *
 *     3  heads       q = query x;  k, v = kv x              query (Q*G*D, C)  kv (2,G,D, C)
 *     4  positions   q, k = rotate(norm(q)), rotate(norm(k))                  head by head
 *     5  attention   mixed = softmax(q k^T / sqrt(D)) v     mixed (N, Q*G*D)  causal
 *     6  output      out = output mixed                     output (C, Q*G*D)
 *
 * In a mixture of attention heads every token chooses Q of A experts, each with queries and an
 * output of G heads. A token's slots are more heads of it; all experts share keys and values:
 *
 *     1  router      as in moe.c                            router (A,C)
 *     2  plan
 *     3  heads       q = query[e] x                         query (A, G*D, C)  q by slot
 *     6  output      rows = output[e] mixed                 output (A, C, G*D)
 *     7  sum         out = sum of a token's slots, weight row
 *
 * Forward and backward are in parts, so that backward can compute again what was not kept, and
 * gradients can be sent halfway (pass.c). What a model may have besides is a call on a line of its
 * own: norms, and what is added to heads (heads.c); latent attention (latent.c).
 * Source: Zhang et al. 2022, arXiv 2210.05144; the form is JetMoE's, arXiv 2404.07413. */
#include "gradients.h"
#include "route.h"
#include "sublayers.h"

/* How many keys before its own a query sees; NULL: all. A window as long as the row is none. */
static const int *reach(const Model *m, int l) {
    const int W = config_window(&m->config, l);
    return W && W < m->batch.T ? m->batch.reach : m->batch.packed ? m->batch.position : NULL;
}

Sum attention_layer_forward(Model *m, int l, const floatX *x) {
    if (is_mixture(&m->config)) route_forward(m, &m->acts[l].att, m->lp[l].att_router, NULL, x);    /* 1, 2 */
    attention_heads(m, l, x);                                                                       /* 3, 4 */
    attention_mix(m, l);                                                                            /* 5 */
    return attention_output(m, l);                                                                  /* 6, 7 */
}

void attention_heads(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int N = m->batch.N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    if (c->kv_rank) { latent_heads(m, l, x); return; }

    /* 3. */
    if (is_mixture(c)) dev->parallel_linear_forward(a->q, x, p->query, &a->att.plan, C, G*D, BY_TOKEN, BY_SLOT);
    else               dev->matmul_forward(a->q, x, p->query, N, C, Q*G*D);
    dev->matmul_forward(a->kv, x, p->kv, N, C, 2*G*D);
    heads_add(m, l);
    values_add(m, l, x);

    /* 4. */
    heads_norm_rotate(m, l);
}

void attention_mix(Model *m, int l) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    LayerActs *a = &m->acts[l];
    const int B = m->batch.B, T = m->batch.T, G = c->kv_heads, Q = c->query_heads, D = c->head_size;

    /* 5. */
    if (attention_to_past(m, l)) return;
    dev->attention_forward(a->mixed, a->att_lse, a->q, a->kv, reach(m, l), head_order(c), B, T, G, Q, D);
    heads_empty_key(m, l);
}

Sum attention_output(Model *m, int l) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int N = m->batch.N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    if (c->kv_rank) return latent_output(m, l);

    /* 6; 7 is left to add_norm_forward. */
    if (is_mixture(c)) {
        dev->parallel_linear_forward(m->s.rows, a->mixed, p->output, &a->att.plan, G*D, C, BY_SLOT, GROUPED);
        return (Sum){ .rows = m->s.rows, .plan = &a->att.plan, .weight = a->att.weight, .bias = p->att_bias };
    }
    dev->matmul_forward(m->s.branch, a->mixed, p->output, N, Q*G*D, C);
    if (p->att_bias) dev->bias_forward(m->s.branch, p->att_bias, N, C);
    return (Sum){ .rows = m->s.branch };
}

void attention_output_backward(Model *m, int l, const floatX *dout) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Plan *plan = &a->att.plan;
    const int N = m->batch.N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    const Write how = gradient_write(m, l);
    floatX *const dmixed = m->s.dmixed, *const weighted = m->s.act;      /* weighted: mixed times weight */
    void *const doutput = m->lg[l].output;
    if (c->kv_rank) { latent_output_backward(m, l, dout, how); return; }

    /* 7, 6. As in moe.c, with experts whose nonlinearity is the identity. */
    if (is_mixture(c)) {
        dev->parallel_linear_backward_input(dmixed, dout, p->output, plan, G*D, C, BY_SLOT, BY_TOKEN);
        dev->activation_backward(dmixed, weighted, m->s.dweight, dmixed, a->mixed, a->att.weight, plan, BY_SLOT,
                                 IDENTITY, N*Q, G*D);
        dev->parallel_linear_backward_weight(doutput, dout, weighted, plan, G*D, C, BY_SLOT, BY_TOKEN, how);
    } else {
        dev->matmul_backward_input(dmixed, dout, p->output, N, Q*G*D, C, SET);
        dev->matmul_backward_weight(doutput, dout, a->mixed, N, Q*G*D, C, how);
    }
}

Sum attention_input_backward(Model *m, int l, const floatX *x, float scale) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    LayerActs *a = &m->acts[l];
    const Plan *plan = &a->att.plan;
    const int N = m->batch.N, C = c->channels, G = c->kv_heads, Q = c->query_heads, D = c->head_size;
    const Write how = gradient_write(m, l);
    floatX *const dq = m->s.dq, *const dkv = m->s.dkv, *const drows = m->s.rows;
    Sum dx = { 0 };

    /* 5. */
    heads_empty_key_backward(m, l);
    dev->attention_backward(dq, dkv, m->s.dmixed, a->mixed, a->att_lse, a->q, a->kv, reach(m, l), head_order(c),
                            m->batch.B, m->batch.T, G, Q, D);
    if (c->kv_rank) { latent_heads_backward(m, l, x, &dx, how); return dx; }

    /* 4. */
    heads_norm_rotate_backward(m, l);

    /* 3. */
    values_add_backward(m, l, x, &dx, kept_gradient_write(m, l));
    heads_add_backward(m, l);
    if (is_mixture(c)) {
        dev->parallel_linear_backward_input(drows, dq, p->query, plan, C, G*D, GROUPED, BY_SLOT);
        dev->parallel_linear_backward_weight(g->query, dq, x, plan, C, G*D, BY_TOKEN, BY_SLOT, how);
        dx.rows = drows, dx.plan = plan;
    } else {
        sum_add(&dx, dq, p->query, Q*G*D);
        dev->matmul_backward_weight(g->query, dq, x, N, C, Q*G*D, how);
    }
    sum_add(&dx, dkv, p->kv, 2*G*D);
    dev->matmul_backward_weight(g->kv, dkv, x, N, C, 2*G*D, how);

    /* 2, 1. */
    if (is_mixture(c))
        route_backward(m, &a->att, p->att_router, g->att_router, NULL, &dx, x, scale, kept_gradient_write(m, l));
    return dx;
}
