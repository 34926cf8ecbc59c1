/* heads.c: norms and forms of heads: norms of each or of all, rotation, tables of values, values narrower than keys. */
#include "sublayers.h"

HeadSizes head_sizes(const Model *m) {
    const Config *c = &m->config;
    const int mixture = c->attention_experts > 1;
    return (HeadSizes){ m->batch.N, c->channels, c->kv_heads, c->query_heads, c->head_size, config_value_size(c), mixture,
                    mixture ? HEADS_TILED : HEADS_GROUPED };
}

/* Queries, and the keys in the first half of kv. Backward is the same rotation the other way. */
void rotate(Model *m, HeadSizes z, floatX *q, floatX *kv, int direction) {
    m->dev->rope(q,  m->rope, m->batch.position, direction, z.N, z.Q*z.G*z.D, z.Q*z.G, z.D);
    m->dev->rope(kv, m->rope, m->batch.position, direction, z.N, 2*z.G*z.D, z.G, z.D);
}
Norm head_norm(const Model *m, const floatX *weight) { return (Norm){ weight, (float)m->config.norm_eps }; }

/* The same where every head is normalized before: then the length of a query or key is a weight of the layer, the same for all
 * tokens. Source: Henry et al. 2020, arXiv 2010.04245; the form is Qwen3's. */
void norm_rotate(Model *m, int l, HeadSizes z) {
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int GD = z.G * z.D;
    m->dev->norm_rope_forward(a->q, a->q_before, m->rope, m->batch.position, head_norm(m, p->query_norm), z.N, z.Q*GD, z.Q*z.G, z.D);
    m->dev->norm_rope_forward(a->kv, a->k_before, m->rope, m->batch.position, head_norm(m, p->key_norm), z.N, 2*GD, z.G, z.D);
}
void norm_rotate_backward(Model *m, int l, HeadSizes z) {
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
void norm_all(Model *m, int l, HeadSizes z) {
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
void norm_all_backward(Model *m, int l, HeadSizes z) {
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
void add_values(Model *m, int l, HeadSizes z) {
    const int GD = z.G * z.D;
    m->dev->embed_forward(m->s.values, m->batch.tokens, m->lp[l].value_embed, z.N, GD);
    m->dev->columns_add(m->acts[l].kv, m->s.values, z.N, 2*GD, GD, GD);
}
void add_values_backward(Model *m, int l, HeadSizes z) {
    const int GD = z.G * z.D;
    m->dev->columns_take(m->s.values, m->s.dkv, z.N, 2*GD, GD, GD);
    m->dev->embed_backward(m->lg[l].value_embed, m->s.values, m->batch.tokens, z.N, m->config.vocab, GD);
}
/* Where values are narrower than keys, zeros follow them, and follow what attention returns of them: (N, Q*G*V) without these. */
const floatX *mixed_values(Model *m, int l, HeadSizes z) {
    if (z.V == z.D) return m->acts[l].mixed;
    m->dev->columns_take(m->s.act, m->acts[l].mixed, z.N * z.Q * z.G, z.D, 0, z.V);
    return m->s.act;
}
void mixed_values_backward(Model *m, int l, HeadSizes z, const floatX *dout) {
    const Device *dev = m->dev;
    floatX *const dvalues = z.V == z.D ? m->s.dmixed : m->s.act;
    dev->matmul_backward_input(dvalues, dout, m->lp[l].output, z.N, z.Q * z.G * z.V, z.C, SET);
    if (z.V == z.D) return;
    dev->zero(m->s.dmixed, (size_t)z.N * (size_t)(z.Q * z.G * z.D) * dev->floatX_size);
    dev->columns_put(m->s.dmixed, dvalues, z.N * z.Q * z.G, z.D, 0, z.V);
}
