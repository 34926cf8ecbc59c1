/* moe.c: the MLP half of a layer. A sparse mixture of experts, each a small gated MLP; or one dense
 * MLP; and, if the model has one, a shared expert beside the routed ones. Backward mirrors forward,
 * step by step, with the same numbers. */
#include "model.h"

static int pre_width(const Config *c, int width) { return c->activation == SWIGLU ? 2 * width : width; }

/* A dense MLP of F hidden units on every token: out = down f(up x). */
static void mlp_forward(Model *m, floatX *pre, const floatX *up, const floatX *down, floatX *out,
                        const floatX *x, int F) {
    const Device *dev = m->dev;
    const int N = m->N, C = m->config.channels, P = pre_width(&m->config, F);
    dev->matmul_forward(pre, x, up, N, C, P);
    dev->activation_forward(m->s.act, pre, (Activation)m->config.activation, N, F);
    dev->matmul_forward(out, m->s.act, down, N, F, C);
}
static void mlp_backward(Model *m, const floatX *pre, const floatX *up, const floatX *down, void *dup, void *ddown,
                         Sum *dx, const floatX *dout, const floatX *x, int F) {
    const Device *dev = m->dev;
    const int N = m->N, C = m->config.channels, P = pre_width(&m->config, F);
    dev->matmul_backward_input(m->s.dact, dout, down, N, F, C, SET);
    dev->activation_backward(m->s.dpre, m->s.act, NULL, m->s.dact, pre, NULL, NULL, BY_TOKEN,
                             (Activation)m->config.activation, N, F);
    dev->matmul_backward_weight(ddown, dout, m->s.act, N, F, C, m->write);
    sum_add(dx, m->s.dpre, up, P);
    dev->matmul_backward_weight(dup, m->s.dpre, x, N, C, P, m->write);
}

Sum moe_layer_forward(Model *m, LayerActs *a, const LayerParams *p, const floatX *x) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const Route *r = &a->mlp;
    const int C = c->channels, F = c->width;
    const Activation f = (Activation)c->activation;
    if (c->experts == 1) {
        mlp_forward(m, a->pre, p->up, p->down, m->s.branch, x, F);
        return (Sum){ .rows = m->s.branch };
    }

    /* 1, 2. Choose experts; sort the slots by expert. */
    route_forward(m, &a->mlp, p->router, x);

    /* 3. Each expert is a small MLP on its own rows, which it reads where the tokens lie. */
    dev->expert_up_forward(dev, a->pre, m->s.act, x, p->up, &r->plan, f, C, F, BY_TOKEN);
    dev->parallel_linear_forward(m->s.rows, m->s.act, p->down, &r->plan, F, C, GROUPED, GROUPED);

    /* 4. Each token adds up what its K experts answered, by weight. */
    if (!c->shared_width)
        return (Sum){ .rows = m->s.rows, .plan = &r->plan, .weight = r->weight, .bias = p->mlp_bias };
    dev->combine_forward(m->s.branch, m->s.rows, r->weight, p->mlp_bias, &r->plan, C, GROUPED);

    /* 5. The shared expert sees every token. */
    mlp_forward(m, a->shared_pre, p->shared_up, p->shared_down, m->s.rows, x, c->shared_width);
    dev->residual(m->s.branch, m->s.branch, m->s.rows, (Dropout){ 0 }, (size_t)m->N * (size_t)C);
    return (Sum){ .rows = m->s.branch };
}

/* The same for a token of each of a few sequences, from the residual stream to the residual stream. */
void moe_layer_decode(Model *m, LayerActs *a, const LayerParams *p, floatX *out, const floatX *resid) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const Activation f = (Activation)c->activation;
    const Norm norm = { p->mlp_norm, (float)c->norm_eps };
    const Router router = { p->router, a->mlp.bias, (Scores)c->scores, c->experts, c->topk }, none = { .E = 1, .K = 1 };
    const Choice choice = { a->mlp.expert, a->mlp.weight }, one = { 0 };
    const int N = m->N, C = c->channels, F = c->width, Fs = c->experts > 1 ? c->shared_width : 0;

    /* 1 to 3; 3 and 4; 5. */
    dev->decode_in(m->s.act, NULL, choice, resid, norm, router, p->up, NULL, p->down, (size_t)C * (size_t)F, f, N, C, F, 0);
    dev->decode_out(out, resid, m->s.act, choice, p->down, p->mlp_bias, N, c->experts, c->topk, F, C);
    if (!Fs) return;
    dev->decode_in(m->s.act, NULL, one, resid, norm, none, p->shared_up, NULL, NULL, 0, f, N, C, Fs, 0);
    dev->decode_out(out, out, m->s.act, one, p->shared_down, NULL, N, 1, 1, Fs, C);
}

/* Neither the experts' answers nor their activations were kept: activation_backward recomputes the latter from a->pre
 * and has the gradient of the router weights fall out of the former's gradient (kernels/cpu/expert.c). */
Sum moe_layer_backward(Model *m, LayerActs *a, const LayerParams *p, LayerGrads *g, const floatX *dout, const floatX *x,
                       float scale) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const Route *r = &a->mlp;
    const int C = c->channels, F = c->width, P = pre_width(c, F);
    const Activation f = (Activation)c->activation;
    Sum dx = { 0 };
    if (c->experts == 1) {
        mlp_backward(m, a->pre, p->up, p->down, g->up, g->down, &dx, dout, x, F);
        return dx;
    }

    /* 4, 3. The gradient of the sum is the same for all K experts: they read it where it lies, by token. */
    dev->expert_down_backward(dev, m->s.dpre, m->s.act, m->s.dweight, m->s.dact, dout, p->down, a->pre, r->weight, &r->plan,
                              f, C, F, BY_TOKEN);
    dev->parallel_linear_backward_weight(g->down, dout, m->s.act, &r->plan, F, C, GROUPED, BY_TOKEN,
                                         m->write);
    dev->parallel_linear_backward_input(m->s.rows, m->s.dpre, p->up, &r->plan, C, P, GROUPED, GROUPED);
    dev->parallel_linear_backward_weight(g->up, m->s.dpre, x, &r->plan, C, P, BY_TOKEN, GROUPED,
                                         m->write);
    dx.rows = m->s.rows, dx.plan = &r->plan;

    /* 2, 1 */
    route_backward(m, &a->mlp, p->router, g->router, &dx, x, scale);

    /* 5 */
    if (c->shared_width)
        mlp_backward(m, a->shared_pre, p->shared_up, p->shared_down, g->shared_up, g->shared_down, &dx, dout, x,
                     c->shared_width);
    return dx;
}
