/* heads.c: forms of heads that only some models have, in steps of attention.c: 3 biases; 4 norms; 5
 * a key without a value. For other models a function does nothing. */
#include "sublayers.h"

/* ---- 3: what is added to new heads. q (N, Q*G*D)  kv (N, 2,G,D) ----------------------------- */

void heads_add(Model *m, int l) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int N = m->batch.N, GD = m->config.kv_heads * m->config.head_size, QGD = m->config.query_heads * GD;
    if (p->query_bias) dev->bias_forward(a->q, p->query_bias, N, QGD);
    if (p->kv_bias) dev->bias_forward(a->kv, p->kv_bias, N, 2*GD);
}
void heads_add_backward(Model *m, int l) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    const int N = m->batch.N, GD = m->config.kv_heads * m->config.head_size, QGD = m->config.query_heads * GD;
    if (p->query_bias) dev->bias_backward(g->query_bias, m->s.dq, N, QGD);
    if (p->kv_bias) dev->bias_backward(g->kv_bias, m->s.dkv, N, 2*GD);
}

/* ---- 4: norms and rotation ------------------------------------------------------------------ */

/* All queries of a token are normed as one vector, and so are its keys. The form is OLMoE's, arXiv
 * 2409.02060. Keys are half of the rows of kv, so they are taken out and put back. */
static void norm_all(Model *m, int l) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int N = m->batch.N, GD = m->config.kv_heads * m->config.head_size, QGD = m->config.query_heads * GD;
    floatX *const k = m->s.values;
    dev->copy(a->q_before, a->q, (size_t)N * (size_t)QGD * dev->floatX_size);
    dev->rmsnorm_forward(a->q, a->q_rstd, a->q_before, norm_of(m, p->query_norm), N, QGD);
    dev->columns_take(a->k_before, a->kv, N, 2*GD, 0, GD);
    dev->rmsnorm_forward(k, a->k_rstd, a->k_before, norm_of(m, p->key_norm), N, GD);
    dev->columns_put(a->kv, k, N, 2*GD, 0, GD);
}
/* rmsnorm_backward adds, hence the zeros. Three buffers are free by now. */
static void norm_all_backward(Model *m, int l) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    const LayerActs *a = &m->acts[l];
    const int N = m->batch.N, GD = m->config.kv_heads * m->config.head_size, QGD = m->config.query_heads * GD;
    const size_t bytes = (size_t)N * (size_t)GD * dev->floatX_size, all_bytes = (size_t)m->config.query_heads * bytes;
    floatX *const dq_normed = m->s.act, *const dk_normed = m->s.values, *const dk = m->s.dmixed;
    dev->copy(dq_normed, m->s.dq, all_bytes);
    dev->zero(m->s.dq, all_bytes);
    dev->rmsnorm_backward(m->s.dq, g->query_norm, dq_normed, a->q_before, norm_of(m, p->query_norm), a->q_rstd, N, QGD);
    dev->columns_take(dk_normed, m->s.dkv, N, 2*GD, 0, GD);
    dev->zero(dk, bytes);
    dev->rmsnorm_backward(dk, g->key_norm, dk_normed, a->k_before, norm_of(m, p->key_norm), a->k_rstd, N, GD);
    dev->columns_put(m->s.dkv, dk, N, 2*GD, 0, GD);
}

/* Queries, and keys, the first half of kv. Backward is the same rotation the other way. */
static void rotate(Model *m, floatX *q, floatX *kv, int direction) {
    const int N = m->batch.N, G = m->config.kv_heads, Q = m->config.query_heads, D = m->config.head_size;
    m->dev->rope(q,  m->rope, m->batch.position, direction, N, Q*G*D, Q*G, D);
    m->dev->rope(kv, m->rope, m->batch.position, direction, N, 2*G*D, G, D);
}

/* In some layers half of a key is that of the token before: one layer then finds what followed a
 * token like this one. Of new tokens the one before is in a cache of keys as they were (row r + 1
 * of it for token r, so that the first has one before it, too). Source: see shift_keys. */
static void shift_keys(Model *m, int l) {
    if (!config_shifts_keys(&m->config, l)) return;
    const Device *dev = m->dev;
    const int N = m->batch.N, G = m->config.kv_heads, D = m->config.head_size, GD = G * D;
    const size_t row = (size_t)GD * dev->floatX_size;
    floatX *const kv = m->acts[l].kv, *const own = (floatX *)((char *)m->s.values + row);       /* N + 1 rows, the */
    const floatX *before = m->s.values;                                                  /* first not read */
    dev->columns_take(own, kv, N, 2*GD, 0, GD);
    if (m->cache && m->batch.T == 1) {
        dev->embed_forward(m->s.act, m->cache_row, m->own_keys[l], N, GD);
        before = m->s.act;
    }
    dev->shift_keys(kv, own, before, m->batch.position, N, G, D);
    if (m->cache) dev->cache_store((floatX *)((char *)m->own_keys[l] + row), own, m->cache_row, N, GD);
}
static void shift_keys_backward(Model *m, int l) {
    const int N = m->batch.N, G = m->config.kv_heads, D = m->config.head_size;
    if (!config_shifts_keys(&m->config, l)) return;
    m->dev->columns_take(m->s.values, m->s.dkv, N, 2*G*D, 0, G*D);
    m->dev->shift_keys(m->s.dkv, m->s.values, NULL, m->batch.position, N, G, D);
}

/* With a norm of every head the length of a query or key is a weight of the layer, the same for all
 * tokens. Source: Henry et al. 2020, arXiv 2010.04245; the form is Qwen3's. */
void heads_norm_rotate(Model *m, int l) {
    LayerActs *a = &m->acts[l];
    const int N = m->batch.N, G = m->config.kv_heads, Q = m->config.query_heads, D = m->config.head_size;
    const int *at = m->batch.position;
    const Norm q_norm = norm_of(m, m->lp[l].query_norm), k_norm = norm_of(m, m->lp[l].key_norm);
    switch (m->config.qk_norm) {
    case NORM_NONE: rotate(m, a->q, a->kv, +1); break;
    case NORM_ALL:  norm_all(m, l); rotate(m, a->q, a->kv, +1); break;
    case NORM_EACH: m->dev->norm_rope_forward(a->q,  a->q_before, m->rope, at, q_norm, N, Q*G*D, Q*G, D);
                    m->dev->norm_rope_forward(a->kv, a->k_before, m->rope, at, k_norm, N, 2*G*D, G, D);
                    break;
    }
    shift_keys(m, l);
}
void heads_norm_rotate_backward(Model *m, int l) {
    const LayerGrads *g = &m->lg[l];
    const LayerActs *a = &m->acts[l];
    const int N = m->batch.N, G = m->config.kv_heads, Q = m->config.query_heads, D = m->config.head_size;
    const int *at = m->batch.position;
    const Norm q_norm = norm_of(m, m->lp[l].query_norm), k_norm = norm_of(m, m->lp[l].key_norm);
    floatX *const dq = m->s.dq, *const dkv = m->s.dkv;
    shift_keys_backward(m, l);
    switch (m->config.qk_norm) {
    case NORM_NONE: rotate(m, dq, dkv, -1); break;
    case NORM_ALL:  rotate(m, dq, dkv, -1); norm_all_backward(m, l); break;
    case NORM_EACH: m->dev->norm_rope_backward(dq,  g->query_norm, a->q_before, m->rope, at, q_norm, N, Q*G*D, Q*G, D);
                    m->dev->norm_rope_backward(dkv, g->key_norm,   a->k_before, m->rope, at, k_norm, N, 2*G*D, G, D);
                    break;
    }
}

/* ---- 5: a key without a value, of which each query head learns the score -------------------- */

void heads_empty_key(Model *m, int l) {
    const int H = m->config.query_heads * m->config.kv_heads, D = m->config.head_size;
    const floatX *sink = m->lp[l].sink;
    if (sink) m->dev->sink_forward(m->acts[l].mixed, m->acts[l].att_lse, sink, m->batch.N, H, D);
}
void heads_empty_key_backward(Model *m, int l) {
    const LayerActs *a = &m->acts[l];
    const int H = m->config.query_heads * m->config.kv_heads, D = m->config.head_size;
    const floatX *sink = m->lp[l].sink;
    if (sink) m->dev->sink_backward(m->lg[l].sink, m->s.dmixed, a->mixed, a->att_lse, sink, m->batch.N, H, D);
}
