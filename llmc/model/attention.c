/* attention.c: the attention sub-layer of a block. A mixture of attention heads: every token picks a few of A attention experts,
 * each with a query projection and an output projection. Keys and values come from one projection that all experts share, so
 * the cache and the cost of attention do not grow with the number of experts. With one expert it is plain attention. Some
 * experts may be every token's, beside those it picks (arXiv 2410.11842): their slots come first, and nothing else differs.
 * Source: Zhang et al. 2022, arXiv 2210.05144; the form is JetMoE's, arXiv 2404.07413. */
#include "gradients.h"
#include "route.h"

/* C channels in, G*D in the heads of one expert, Q*G*D in all query heads of a token, and V of D in a head's values. */
typedef struct { int N, C, G, Q, D, V, mixture; HeadOrder order; } Sizes;

static Sizes sizes_of(const Model *m) {
    const Config *c = &m->config;
    const int mixture = c->attention_experts > 1;
    return (Sizes){ m->batch.N, c->channels, c->kv_heads, c->query_heads, c->head_size, config_value_size(c), mixture,
                    mixture ? HEADS_TILED : HEADS_GROUPED };
}

/* How many keys before its own each query of layer l sees; NULL: all of its row. A window as long as the row is none. */
static const int *reach(const Model *m, int l) {
    const int W = config_window(&m->config, l);
    return W && W < m->batch.T ? m->batch.reach : m->batch.packed ? m->batch.position : NULL;
}

/* Queries, and the keys in the first half of kv. Backward is the same rotation the other way. */
static void rotate(Model *m, Sizes z, floatX *q, floatX *kv, int direction) {
    m->dev->rope(q,  m->rope, m->batch.position, direction, z.N, z.Q*z.G*z.D, z.Q*z.G, z.D);
    m->dev->rope(kv, m->rope, m->batch.position, direction, z.N, 2*z.G*z.D, z.G, z.D);
}
static Norm head_norm(const Model *m, const floatX *weight) { return (Norm){ weight, (float)m->config.norm_eps }; }

/* The same where every head is normalized before: then the length of a query or key is a weight of the layer, the same for all
 * tokens. Source: Henry et al. 2020, arXiv 2010.04245; the form is Qwen3's. */
static void norm_rotate(Model *m, int l, Sizes z) {
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int GD = z.G * z.D;
    m->dev->norm_rope_forward(a->q, a->q_before, m->rope, m->batch.position, head_norm(m, p->query_norm), z.N, z.Q*GD, z.Q*z.G, z.D);
    m->dev->norm_rope_forward(a->kv, a->k_before, m->rope, m->batch.position, head_norm(m, p->key_norm), z.N, 2*GD, z.G, z.D);
}
static void norm_rotate_backward(Model *m, int l, Sizes z) {
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    const LayerActs *a = &m->acts[l];
    const int GD = z.G * z.D;
    m->dev->norm_rope_backward(m->s.dq, g->query_norm, a->q_before, m->rope, m->batch.position, head_norm(m, p->query_norm),
                               z.N, z.Q*GD, z.Q*z.G, z.D);
    m->dev->norm_rope_backward(m->s.dkv, g->key_norm, a->k_before, m->rope, m->batch.position, head_norm(m, p->key_norm),
                               z.N, 2*GD, z.G, z.D);
}

/* Or where all queries of a token are normalized as one vector, and so are its keys. The form is OLMoE's, arXiv 2409.02060. */
static void norm_all(Model *m, int l, Sizes z) {
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Device *dev = m->dev;
    const int GD = z.G * z.D, QGD = z.Q * GD;
    dev->copy(a->q_before, a->q, (size_t)z.N * (size_t)QGD * dev->floatX_size);
    dev->rmsnorm_forward(a->q, a->q_rstd, a->q_before, head_norm(m, p->query_norm), z.N, QGD);
    dev->columns_take(a->k_before, a->kv, z.N, 2*GD, 0, GD);
    dev->rmsnorm_forward(m->s.values, a->k_rstd, a->k_before, head_norm(m, p->key_norm), z.N, GD);
    dev->columns_put(a->kv, m->s.values, z.N, 2*GD, 0, GD);
}
/* rmsnorm_backward adds: to buffers of zeros. dmixed and act are free by now. */
static void norm_all_backward(Model *m, int l, Sizes z) {
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    const LayerActs *a = &m->acts[l];
    const Device *dev = m->dev;
    const int GD = z.G * z.D, QGD = z.Q * GD;
    const size_t queries = (size_t)z.N * (size_t)QGD * dev->floatX_size, keys = (size_t)z.N * (size_t)GD * dev->floatX_size;
    dev->copy(m->s.act, m->s.dq, queries);
    dev->zero(m->s.dq, queries);
    dev->rmsnorm_backward(m->s.dq, g->query_norm, m->s.act, a->q_before, head_norm(m, p->query_norm), a->q_rstd, z.N, QGD);
    dev->columns_take(m->s.values, m->s.dkv, z.N, 2*GD, 0, GD);
    dev->zero(m->s.dmixed, keys);
    dev->rmsnorm_backward(m->s.dmixed, g->key_norm, m->s.values, a->k_before, head_norm(m, p->key_norm), a->k_rstd, z.N, GD);
    dev->columns_put(m->s.dkv, m->s.dmixed, z.N, 2*GD, 0, GD);
}

/* Values of a token that do not depend on its context: a row of a table. Source: Zhou et al. 2024, arXiv 2410.17897; the form is
 * modded-nanogpt's. */
static void add_values(Model *m, int l, Sizes z) {
    const int GD = z.G * z.D;
    m->dev->embed_forward(m->s.values, m->batch.tokens, m->lp[l].value_embed, z.N, GD);
    m->dev->columns_add(m->acts[l].kv, m->s.values, z.N, 2*GD, GD, GD);
}
static void add_values_backward(Model *m, int l, Sizes z) {
    const int GD = z.G * z.D;
    m->dev->columns_take(m->s.values, m->s.dkv, z.N, 2*GD, GD, GD);
    m->dev->embed_backward(m->lg[l].value_embed, m->s.values, m->batch.tokens, z.N, m->config.vocab, GD);
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
    const Sizes z = sizes_of(m);
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
    const Sizes z = sizes_of(m);
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

/* Where values are narrower than keys, zeros follow them, and follow what attention returns of them: (N, Q*G*V) without these. */
static const floatX *mixed_values(Model *m, int l, Sizes z) {
    if (z.V == z.D) return m->acts[l].mixed;
    m->dev->columns_take(m->s.act, m->acts[l].mixed, z.N * z.Q * z.G, z.D, 0, z.V);
    return m->s.act;
}
static void mixed_values_backward(Model *m, int l, Sizes z, const floatX *dout) {
    const Device *dev = m->dev;
    floatX *const dvalues = z.V == z.D ? m->s.dmixed : m->s.act;
    dev->matmul_backward_input(dvalues, dout, m->lp[l].output, z.N, z.Q * z.G * z.V, z.C, SET);
    if (z.V == z.D) return;
    dev->zero(m->s.dmixed, (size_t)z.N * (size_t)(z.Q * z.G * z.D) * dev->floatX_size);
    dev->columns_put(m->s.dmixed, dvalues, z.N * z.Q * z.G, z.D, 0, z.V);
}

Sum attention_output(Model *m, int l) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Route *r = &a->att;
    const Sizes z = sizes_of(m);
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
    const Sizes z = sizes_of(m);
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
    const Sizes z = sizes_of(m);
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

/* The forward pass for one token of each of a few sequences, from the residual stream to the residual stream. */
void attention_layer_decode(Model *m, int l, floatX *out, const floatX *resid) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Sizes z = sizes_of(m);
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
