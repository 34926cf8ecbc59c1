/* pass.c: the order in which a model runs.
 *
 * A token's embedding enters the residual stream x. As in smoe.c a layer adds two sub-layers:
 *
 *     mid = x   + drop(attention(norm(x)))
 *     out = mid + drop(experts(norm(mid)))            the x of the next layer
 *
 * and the head reads norm(x) after the last layer. No function computes one of these lines: a norm
 * needs all of the sum before it, so one operation adds a sub-layer and computes the next norm:
 *
 *     embed_forward, rmsnorm_forward  x, norm(x) of the first layer
 *     attention_layer_forward         what attention(norm(x)) adds: a Sum over experts
 *     add_norm_forward                mid, norm(mid)
 *     moe_layer_forward               what experts(norm(mid)) add, likewise
 *     add_norm_forward                out, and the norm of the next layer, or of the head
 *
 * Backward takes the same steps in the opposite order. A sub-layer leaves dx, the gradient of the
 * stream, as it is, and adds its own part: add_norm_backward sums the gradient of a norm's output,
 * takes it through the norm, and adds it to dx (m->s.dresid). */
#include "codes.h"
#include "mix.h"
#include "pass.h"
#include "sublayers.h"
#include "plan.h"
#include "route.h"

static Norm final_norm(const Model *m) { return (Norm){ m->p.final_norm, (float)m->config.final_eps }; }

/* Site 0: the embedding; 2l+1 and 2l+2: the sub-layers of layer l. Multipliers come with it. */
static Dropout dropout_at(const Model *m, int site) {
    return (Dropout){ m->dropout, m->batch.key, site, site ? m->config.residual_scale : m->config.embed_scale };
}
static int drops(Dropout d) { return d.p > 0 || d.scale > 0; }
/* Divides x (N,width) by Config.logit_divisor: the logits, or, because they are linear in it, the
 * head's input; in backward, the gradient of that. */
static void divide_logits(const Model *m, floatX *x, int width) {
    const double divisor = m->config.logit_divisor;
    if (divisor > 0) m->dev->scale(x, 1 / divisor, (size_t)m->batch.N * (size_t)width);
}

/* ---- what other ranks add, if there are any (exchange.h) ------------------------------------- */

/* The range (tensor.h) of layer l; -1: of the embedding; config.layers: of what follows layers. */
static int range_of(const Model *m, int l) {
    return l == m->config.layers ? m->manifest.range_count - 1 : l >= 0 && m->config.universal ? 1 : 1 + l;
}
static void wait_weights(Model *m, int l, int way) {
    if (m->dp.exchange) m->dp.exchange->wait_weights(m, range_of(m, l), way);
    if (m->codes && way && !m->decodes) codes_widen(m, range_of(m, l));
}
static void open_gradients(Model *m, int l) { if (m->dp.exchange) m->dp.exchange->open_gradients(m, range_of(m, l)); }
static void finish_gradients(Model *m, int l) {
    if (m->dp.exchange) m->dp.exchange->finish_gradients(m, range_of(m, l));
    else if (m->taker.complete) m->taker.complete(m, range_of(m, l));
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The stream that enters layer l. */
static floatX *stream(const Model *m, int l) { return l ? m->acts[l-1].out : m->encoded; }

static void norm_forward(Model *m, floatX *normed, real *rstd, const floatX *x, const floatX *weight) {
    m->dev->rmsnorm_forward(normed, rstd, x, norm_of(m, weight), m->batch.N, m->config.channels);
}
static void attention_norm(Model *m, int l) {
    norm_forward(m, m->acts[l].att_normed, m->acts[l].att_rstd, stream(m, l), m->lp[l].att_norm);
}
/* resid = residual + drop(s), normed = norm(resid): ends a sub-layer and begins the next. Between
 * layers resid also gets what mix.h adds. */
static void add_norm_forward(Model *m, floatX *normed, real *rstd, floatX *resid, const floatX *residual, const Sum *s,
                             int site, Norm norm) {
    m->dev->add_norm_forward(m->dev, normed, rstd, resid, residual, s, dropout_at(m, site), norm, m->batch.N,
                             m->config.channels);
}

static void add_attention(Model *m, int l, Sum output) {
    LayerActs *a = &m->acts[l];
    add_norm_forward(m, a->mlp_normed, a->mlp_rstd, a->mid, stream(m, l), &output, 2*l + 1,
                     norm_of(m, m->lp[l].mlp_norm));
}
/* The norm is the next layer's or the head's. Nothing reads it if the next layer is elsewhere. */
static void add_mlp(Model *m, int l, Sum output) {
    const int last = l == m->config.layers - 1, n = l + 1 < m->to ? l + 1 : l;
    LayerActs *a = &m->acts[l], *next = &m->acts[n];
    const Mix mix = mix_of(m, n);
    if (!last && mix.scalars) output.mix = &mix;
    if (last) add_norm_forward(m, m->final, m->final_rstd, a->out, a->mid, &output, 2*l + 2, final_norm(m));
    else add_norm_forward(m, next->att_normed, next->att_rstd, a->out, a->mid, &output, 2*l + 2,
                          norm_of(m, m->lp[n].att_norm));
}
int model_goes_on(Model *m) {
    if (m->pause && !m->stopped) m->stopped = !m->pause(m->pause_with);
    return !m->stopped;
}
static int goes_on(Model *m) { return m->batch.T == 1 || model_goes_on(m); }
/* Returns what its MLP adds to the stream. */
static Sum layer_forward(Model *m, int l) {
    add_attention(m, l, attention_layer_forward(m, l, m->acts[l].att_normed));
    goes_on(m);
    encode_experts(m, l, 0);
    return moe_layer_forward(m, l, m->acts[l].mlp_normed);
}

static void embed(Model *m, floatX *to) {
    const int N = m->batch.N, C = m->config.channels;
    m->dev->embed_forward(to, m->batch.tokens, m->p.embed, N, C);
    if (drops(dropout_at(m, 0))) m->dev->dropout(to, to, dropout_at(m, 0), (size_t)N * (size_t)C);
}
void model_forward(Model *m) {
    m->decodes = layers_decode(m);
    if (m->dp.exchange) m->dp.exchange->begin_weights(m);
    wait_weights(m, -1, 1);
    if (m->relay) m->relay_calls->forward(m->relay, m);
    else if (!m->from) embed(m, m->encoded), mix_begin(m);   /* else the stream is there already */
    wait_weights(m, 0, 0);
    for (int l = m->from; l < m->to && m->decodes; l++) {
        wait_weights(m, l, 1);
        mix_pass(m, l, stream(m, l));
        layer_decode(m, l, stream(m, l));
    }
    if (m->decodes) { wait_weights(m, m->config.layers, 1); return; }
    if (!m->from) mix_pass(m, 0, m->encoded);
    attention_norm(m, m->from);
    for (int l = m->from; l < m->to && goes_on(m); l++) {
        wait_weights(m, l, 1);
        const Sum output = layer_forward(m, l);
        wait_weights(m, l + 1, 0);                      /* of the next norm. 0: a bias of this layer is still read */
        add_mlp(m, l, output);
    }
    if (m->to < m->config.layers) return;
    if (m->codes) codes_widen(m, range_of(m, m->config.layers));
    divide_logits(m, m->final, m->config.channels);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* Rows first.. of an (N,C) matrix. */
static floatX *row(const Model *m, floatX *x, int first) {
    return float_at(m, x, (size_t)first * (size_t)m->config.channels);
}
void model_cap(const Model *m, floatX *logits, int rows) {
    if (m->config.logit_cap > 0)
        m->dev->soft_cap(logits, (float)m->config.logit_cap, (size_t)rows * (size_t)m->config.vocab);
}
static void head_forward(Model *m, int first, int count) {
    if (encoded_logits(m, first, count)) return;
    m->dev->matmul_forward(m->s.logits, row(m, m->final, first), m->p.head, count, m->config.channels, m->config.vocab);
}
void model_logits(Model *m, int first, int count) {
    head_forward(m, first, count);
    model_cap(m, m->s.logits, count);
}

void model_next(Model *m, floatX *logits) {
    const int N = m->batch.N, C = m->config.channels, V = m->config.vocab;
    if (m->decodes) head_decode(m, logits, final_norm(m)), divide_logits(m, logits, V);
    else m->dev->matmul_forward(logits, m->final, m->p.head, N, C, V);
    model_cap(m, logits, N);
}

/* The (N,V) logits are never in memory: a chunk (head_rows,V) of them is overwritten by its
 * gradient, which both products of the head's backward read before the next chunk is computed. */
void model_loss(Model *m, int gradient) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, V = m->config.vocab;
    if (gradient) open_gradients(m, m->config.layers);
    if (gradient && m->config.tied) open_gradients(m, -1);
    for (int n = 0; n < N; n += m->head_rows) {
        const int rows = N - n < m->head_rows ? N - n : m->head_rows;
        real *loss = real_at(m, m->loss, (size_t)n);
        head_forward(m, n, rows);
        if (!gradient || !encoded_cross_entropy(m, n, rows))
            dev->cross_entropy(loss, m->s.logits, m->batch.targets + n, m->further ? m->batch.position + n : NULL,
                               m->batch.loss_scale, (float)m->config.logit_cap, gradient, rows, V, m->used_vocab);
        const Write how = m->batch.phase & PHASE_FIRST && n == 0 ? SET : ADD;
        if (!gradient || encoded_logits_backward(m, n, rows, how)) continue;
        dev->matmul_backward_input(row(m, m->dfinal, n), m->s.logits, m->p.head, rows, C, V, SET);
        dev->matmul_backward_weight(m->g.head, m->s.logits, row(m, m->final, n), rows, C, V, how);
    }
    if (gradient) divide_logits(m, m->dfinal, C);
    dev->sum(m->loss_sum, m->loss, (size_t)N);
}

/* ---- backward -------------------------------------------------------------------------------- */

void model_router_losses(Model *m) {
    for (int l = 0; l < m->config.layers; l++) {
        if (m->config.attention_experts > 1) route_losses(m, &m->acts[l].att);
        if (config_has_experts(&m->config, l)) route_losses(m, &m->acts[l].mlp);
    }
}

/* dnorm: gradient of the norm's weight. dbias: of the output bias of the sub-layer before this
 * norm. With dropout between the two, dropout_backward computes it instead. */
static void add_norm_backward(Model *m, real *dnorm, real *dbias, const Sum *dx, const floatX *resid, Norm norm,
                              const real *rstd) {
    m->dev->add_norm_backward(m->dev, m->s.dresid, dnorm, drops(dropout_at(m, 1)) ? NULL : dbias, m->s.dnormed, dx,
                              resid, norm, rstd, m->batch.N, m->config.channels);
}
/* The gradient of what a sub-layer added: that of the stream, through dropout. */
static const floatX *dropout_backward(Model *m, real *dbias, int site) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels;
    if (!drops(dropout_at(m, site))) return m->s.dresid;
    dev->dropout(m->s.branch, m->s.dresid, dropout_at(m, site), (size_t)N * (size_t)C);
    if (dbias) dev->bias_backward(dbias, m->s.branch, N, C);
    return m->s.branch;
}

/* What backward reads and forward did not keep: each part from the one before. Routing is kept. */
static void recompute(Model *m, int l) {
    const LayerActs *a = &m->acts[l];
    if (model_recomputes(m, l, PART_NORMS)) attention_norm(m, l);
    if (model_recomputes(m, l, PART_HEADS)) attention_heads(m, l, a->att_normed);
    if (model_recomputes(m, l, PART_ATTENTION)) attention_mix(m, l);
    if (model_recomputes(m, l, PART_MIDDLE)) add_attention(m, l, attention_output(m, l));
    else if (model_recomputes(m, l, PART_NORMS)) norm_forward(m, a->mlp_normed, a->mlp_rstd, a->mid, m->lp[l].mlp_norm);
    if (model_recomputes(m, l, PART_UP)) moe_recompute_up(m, l, a->mlp_normed);
}

/* From m->s.dresid, the gradient of the layer's output, to that of its first norm's output. */
static Sum layer_backward(Model *m, int l, float scale) {
    LayerActs *a = &m->acts[l];
    LayerGrads *g = &m->lg[l];
    encode_experts(m, l, 1);
    recompute(m, l);
    const floatX *dout = dropout_backward(m, g->mlp_bias, 2*l + 2);
    Sum dx = moe_layer_backward(m, l, dout, a->mlp_normed, scale);
    add_norm_backward(m, g->mlp_norm, g->att_bias, &dx, a->mid, norm_of(m, m->lp[l].mlp_norm), a->mlp_rstd);

    dout = dropout_backward(m, g->att_bias, 2*l + 1);
    attention_output_backward(m, l, dout);
    if (m->dp.exchange) m->dp.exchange->send_gradients(m);
    return attention_input_backward(m, l, a->att_normed, scale);
}

/* Where ranks share a step, the gradients of a range are sent as soon as they are complete. The
 * ranges: the embedding, one for each layer, and the last for the final norm and the head. */
void model_backward(Model *m, float scale) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, V = m->config.vocab, L = m->config.layers;
    const int mixes = config_mixes(&m->config);
    const size_t NC = (size_t)N * (size_t)C;
    dev->zero(m->s.dresid, NC * dev->floatX_size);
    mix_clear(m);
    open_gradients(m, L - 1);
    add_norm_backward(m, m->g.final_norm, m->lg[L-1].mlp_bias, &(Sum){ .rows = m->dfinal }, m->acts[L-1].out,
                      final_norm(m), m->final_rstd);
    finish_gradients(m, L);
    for (int l = L-1; l >= 0; l--) {
        const int ends = range_of(m, l) != range_of(m, l - 1);      /* 0: layers share one set of weights */
        wait_weights(m, l, -1);
        const Sum dx = layer_backward(m, l, scale);
        if (l && ends) open_gradients(m, l - 1);                    /* its mlp_bias is the first */
        real *const dbias = l ? m->lg[l-1].mlp_bias : NULL;
        add_norm_backward(m, m->lg[l].att_norm, mixes ? NULL : dbias, &dx, stream(m, l),
                          norm_of(m, m->lp[l].att_norm), m->acts[l].att_rstd);
        mix_backward(m, l, stream(m, l));
        if (mixes && dbias && !drops(dropout_at(m, 1))) dev->bias_backward(dbias, m->s.dresid, N, C);
        if (ends) finish_gradients(m, l);
    }
    if (!m->config.tied) open_gradients(m, -1);
    if (m->mixed.first) wait_weights(m, -1, 0), embed(m, m->s.branch);
    mix_end(m, m->s.branch);
    if (drops(dropout_at(m, 0))) dev->dropout(m->s.dresid, m->s.dresid, dropout_at(m, 0), NC);
    dev->embed_backward(m->g.embed, m->s.dresid, m->batch.tokens, N, V, C);
    finish_gradients(m, -1);
}

void model_learn(Model *m, float scale) {
    model_forward(m);
    if (m->dp.exchange && !m->dp.ordered) m->dp.exchange->sum_loads(m);
    model_loss(m, 1);
    if (m->dp.exchange) m->dp.exchange->wait_loads(m);
    model_router_losses(m);
    model_backward(m, scale);
}
