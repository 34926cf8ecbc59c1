/* latent.c: latent attention (MLA): other steps 3, 4 and 6 of attention.c. Keys and values of all
 * heads are products of one small vector of a token, its latent. A latent has no position, so a key
 * has two parts: one of its head, which is not rotated, and one that all heads share, which is, and
 * which comes from the token itself. Queries have such parts, too, both of their head; they come
 * from a latent of their own, or from the token:
 *
 *     c, r = kv_down x                             own_g, value_g = kv norm(c)
 *     a_g, b_g = query norm(query_down x), or query x
 *     key_g = own_g, rotate(r)                     query_g = a_g, rotate(b_g)
 *
 * What follows is attention with as many heads of keys as of queries. Zeros fill narrower values;
 * the output's product leaves out their results.   Source: DeepSeek-V2, arXiv 2405.04434. */
#include "sublayers.h"

/* G heads of D, of which the last R rotate and V are a value's. */
typedef struct { int N, C, G, D, R, V, kv_rank, query_rank; } Sizes;
static Sizes sizes_of(const Model *m) {
    const Config *c = &m->config;
    return (Sizes){ m->batch.N, c->channels, c->kv_heads, c->head_size, c->rotated, config_value_size(c), c->kv_rank,
                    c->query_rank };
}
/* eps: in no file; of Transformers' class. */
static Norm latent_norm(const floatX *weight) { return (Norm){ weight, 1e-6f }; }

/* The last R of every query, in place; +1 forward, -1 backward. */
static void rotate_queries(Model *m, Sizes z, floatX *q, int direction) {
    const Device *dev = m->dev;
    const int heads = z.N * z.G, own = z.D - z.R;
    dev->columns_take(m->s.turning, q, heads, z.D, own, z.R);
    dev->rope(m->s.turning, m->rope, m->batch.position, direction, z.N, z.G * z.R, z.G, z.R);
    dev->columns_put(q, m->s.turning, heads, z.D, own, z.R);
}
/* Scores are a multiple of q k / sqrt(D): of queries, and of their gradients. */
static void scale_queries(Model *m, Sizes z, floatX *q) {
    const double scale = config_score_scale(&m->config);
    if (scale != 1) m->dev->scale(q, scale, (size_t)z.N * (size_t)z.G * (size_t)z.D);
}
static void rotate_shared(Model *m, Sizes z, int direction) {
    m->dev->rope(m->s.turning, m->rope, m->batch.position, direction, z.N, z.R, 1, z.R);
}

void latent_heads(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Sizes z = sizes_of(m);
    const int N = z.N, C = z.C, R = z.R, own = z.D - R, wide = z.kv_rank + R;

    /* 3. Queries. */
    if (z.query_rank) {
        dev->matmul_forward(a->q_before, x, p->query_down, N, C, z.query_rank);
        dev->rmsnorm_forward(a->q_latent, a->q_rstd, a->q_before, latent_norm(p->query_norm), N, z.query_rank);
        dev->matmul_forward(a->q, a->q_latent, p->query, N, z.query_rank, z.G * z.D);
    } else dev->matmul_forward(a->q, x, p->query, N, C, z.G * z.D);

    /* 4. */
    rotate_queries(m, z, a->q, +1);
    scale_queries(m, z, a->q);

    /* 3, 4. Keys and values. */
    dev->matmul_forward(m->s.down, x, p->kv_down, N, C, wide);
    dev->columns_take(a->k_before, m->s.down, N, wide, 0, z.kv_rank);
    dev->rmsnorm_forward(a->kv_latent, a->k_rstd, a->k_before, latent_norm(p->key_norm), N, z.kv_rank);
    dev->matmul_forward(m->s.parts, a->kv_latent, p->kv, N, z.kv_rank, z.G * (own + z.V));
    dev->columns_take(m->s.turning, m->s.down, N, wide, z.kv_rank, R);
    rotate_shared(m, z, +1);
    dev->shared_keys_forward(a->kv, m->s.parts, m->s.turning, N, z.G, z.D, own, z.V);
}

/* From the gradient dlatent[0] of a latent after its norm to that before, dlatent[1]. */
static void norm_backward(Model *m, void *dweight, const floatX *before, const floatX *weight, const real *rstd, int N,
                          int rank) {
    m->dev->zero(m->s.dlatent[1], (size_t)N * (size_t)rank * m->dev->floatX_size);
    m->dev->rmsnorm_backward(m->s.dlatent[1], dweight, m->s.dlatent[0], before, latent_norm(weight), rstd, N, rank);
}

void latent_heads_backward(Model *m, int l, const floatX *x, Sum *dx, Write how) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    const LayerActs *a = &m->acts[l];
    const Sizes z = sizes_of(m);
    const int N = z.N, C = z.C, R = z.R, own = z.D - R, wide = z.kv_rank + R;
    const int heads = z.G * z.D, parts = z.G * (own + z.V);

    /* 4, 3. Keys and values. */
    dev->shared_keys_backward(m->s.parts, m->s.turning, m->s.dkv, N, z.G, z.D, own, z.V);
    rotate_shared(m, z, -1);
    dev->columns_put(m->s.down, m->s.turning, N, wide, z.kv_rank, R);
    dev->matmul_backward_input(m->s.dlatent[0], m->s.parts, p->kv, N, z.kv_rank, parts, SET);
    dev->matmul_backward_weight(g->kv, m->s.parts, a->kv_latent, N, z.kv_rank, parts, how);
    norm_backward(m, g->key_norm, a->k_before, p->key_norm, a->k_rstd, N, z.kv_rank);
    dev->columns_put(m->s.down, m->s.dlatent[1], N, wide, 0, z.kv_rank);
    sum_add(dx, m->s.down, p->kv_down, wide);
    dev->matmul_backward_weight(g->kv_down, m->s.down, x, N, C, wide, how);

    /* 4, 3. Queries. */
    scale_queries(m, z, m->s.dq);
    rotate_queries(m, z, m->s.dq, -1);
    if (z.query_rank) {
        dev->matmul_backward_input(m->s.dlatent[0], m->s.dq, p->query, N, z.query_rank, heads, SET);
        dev->matmul_backward_weight(g->query, m->s.dq, a->q_latent, N, z.query_rank, heads, how);
        norm_backward(m, g->query_norm, a->q_before, p->query_norm, a->q_rstd, N, z.query_rank);
        sum_add(dx, m->s.dlatent[1], p->query_down, z.query_rank);
        dev->matmul_backward_weight(g->query_down, m->s.dlatent[1], x, N, C, z.query_rank, how);
    } else {
        sum_add(dx, m->s.dq, p->query, heads);
        dev->matmul_backward_weight(g->query, m->s.dq, x, N, C, heads, how);
    }
}

/* Values are the first V of D columns of each head. */
static floatX *narrow_mixed(Model *m, int l, Sizes z) {
    if (z.V == z.D) return m->acts[l].mixed;
    floatX *const narrow = m->s.act;
    m->dev->columns_take(narrow, m->acts[l].mixed, z.N * z.G, z.D, 0, z.V);
    return narrow;
}
Sum latent_output(Model *m, int l) {
    const Sizes z = sizes_of(m);

    /* 6. */
    m->dev->matmul_forward(m->s.branch, narrow_mixed(m, l, z), m->lp[l].output, z.N, z.G * z.V, z.C);
    return (Sum){ .rows = m->s.branch };
}
void latent_output_backward(Model *m, int l, const floatX *dout, Write how) {
    const Device *dev = m->dev;
    const Sizes z = sizes_of(m);
    const int heads = z.N * z.G;
    floatX *const dmixed = m->s.dmixed, *const dnarrow = z.V == z.D ? dmixed : m->s.act;

    /* 6. */
    dev->matmul_backward_input(dnarrow, dout, m->lp[l].output, z.N, z.G * z.V, z.C, SET);
    if (z.V < z.D) {
        dev->zero(dmixed, (size_t)heads * (size_t)z.D * dev->floatX_size);
        dev->columns_put(dmixed, dnarrow, heads, z.D, 0, z.V);
    }
    dev->matmul_backward_weight(m->lg[l].output, dout, narrow_mixed(m, l, z), z.N, z.G * z.V, z.C, how);
}
