/* moe.c: the MLP sub-layer of a block. A sparse mixture of experts, each a small gated MLP; or one dense MLP; and, if the
 * model has one, a shared expert beside the routed ones. Backward mirrors forward, step by step, with the same numbers. */
#include "gradients.h"
#include "sublayers.h"
#include "route.h"

/* ---- the mixture ------------------------------------------------------------------------------------------ */

/* a->pre (S,2F) = up x, and its nonlinearity: m->s.act (S,F), or m->s.act8. A bias comes between the two, which are separate operations
 * then. */
static void experts_up(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    const LayerActs *a = &m->acts[l];
    const Plan *plan = &a->mlp.plan;
    const Activation f = (Activation)m->config.activation;
    const int C = m->config.channels, F = m->config.width, P = pre_width(m, F);
    if (in_8_bits(m, l, FP8_FORWARD)) { up_in_8_bits(m, l, x); return; }
    if (!p->up_bias) { dev->expert_up_forward(dev, a->pre, m->s.act, x, p->up, plan, f, C, F, BY_TOKEN); return; }
    dev->parallel_linear_forward(a->pre, x, p->up, plan, C, P, BY_TOKEN, GROUPED);
    dev->expert_bias_forward(a->pre, p->up_bias, plan, P);
    dev->activation_forward(m->s.act, a->pre, f, plan->S, F);
}
void moe_recompute_up(Model *m, int l, const floatX *x) {
    if (!config_has_experts(&m->config, l)) { mlp_up(m, dense_mlp(m, l), x); return; }
    experts_up(m, l, x);
    if (m->config.shared_width) mlp_up(m, shared_expert(m, l), x);
}

Sum moe_layer_forward(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const Route *r = &a->mlp;
    const int C = c->channels, F = c->width;
    if (!config_has_experts(c, l)) {
        mlp_forward(m, dense_mlp(m, l), m->s.branch, x);
        return (Sum){ .rows = m->s.branch };
    }

    /* 1, 2. Choose experts; sort the slots by expert. */
    route_forward(m, &a->mlp, p->router, p->router_bias, x);

    /* 3. Each expert is a small MLP on its own rows, which it reads in token order. */
    experts_up(m, l, x);
    if (in_8_bits(m, l, FP8_FORWARD)) dev->fp8_linear(dev, m->s.rows, m->s.act8, codes_of(m, l)->down, &r->plan, F, C);
    else dev->parallel_linear_forward(m->s.rows, m->s.act, p->down, &r->plan, F, C, GROUPED, GROUPED);
    if (p->down_bias) dev->expert_bias_forward(m->s.rows, p->down_bias, &r->plan, C);

    /* 4. Each token's output is the weighted sum over its K experts: left to add_norm_forward, */
    if (!c->shared_width)
        return (Sum){ .rows = m->s.rows, .plan = &r->plan, .weight = r->weight, .bias = p->mlp_bias };

    /* 5. unless there is a shared expert, which sees every token and needs the buffer of the rows. */
    floatX *const shared = c->shared_gate ? a->out : m->s.rows;             /* a->out is not needed before this sub-layer ends */
    dev->combine_forward(m->s.branch, m->s.rows, r->weight, p->mlp_bias, &r->plan, C, GROUPED);
    mlp_forward(m, shared_expert(m, l), m->s.rows, x);
    if (c->shared_gate) {
        gate_forward(m, l, x);
        dev->combine_forward(shared, m->s.rows, a->gate.weight, NULL, &a->gate.plan, C, GROUPED);
    }
    dev->residual(m->s.branch, m->s.branch, shared, (Dropout){ 0 }, (size_t)m->batch.N * (size_t)C);
    return (Sum){ .rows = m->s.branch };
}

/* Neither the experts' outputs nor their activations were kept. activation_backward recomputes the activations from a->pre, and gets the
 * gradient of the router's weights without the outputs (kernels/cpu/expert.c). Rows are in the order of experts: s.act (S,F), weighted
 * activations; s.dpre (S,2F), gradient of a->pre; s.rows (S,C), of the experts' inputs; by slot: s.dweight (S). */
Sum moe_layer_backward(Model *m, int l, const floatX *dout, const floatX *x, float scale) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerGrads *g = &m->lg[l];
    LayerActs *a = &m->acts[l];
    const Plan *plan = &a->mlp.plan;
    const int C = c->channels, F = c->width, P = pre_width(m, F);
    const Write how = gradient_write(m, l);
    Sum dx = { 0 };
    if (!config_has_experts(c, l)) {
        mlp_backward(m, dense_mlp(m, l), NULL, &dx, dout, x, how);
        return dx;
    }

    /* 4, 3. All K experts of a token share one gradient of the sum, and read it in token order. */
    if (in_8_bits(m, l, FP8_BACKWARD)) backward_in_8_bits(m, l, dout, x, how);
    else {
        dev->expert_down_backward(dev, m->s.dpre, m->s.act, m->s.dweight, m->s.dact, dout, p->down, a->pre, a->mlp.weight, plan,
                                  (Activation)c->activation, C, F, BY_TOKEN);
        if (p->up_bias) {
            dev->expert_bias_backward(g->down_bias, m->s.dweight, dout, p->down_bias, a->mlp.weight, plan, C, BY_TOKEN);
            dev->expert_bias_backward(g->up_bias, NULL, m->s.dpre, p->up_bias, NULL, plan, P, GROUPED);
        }
        dev->parallel_linear_backward_weight(g->down, dout, m->s.act, plan, F, C, GROUPED, BY_TOKEN, how);
        dev->parallel_linear_backward_input(m->s.rows, m->s.dpre, p->up, plan, C, P, GROUPED, GROUPED);
        dev->parallel_linear_backward_weight(g->up, m->s.dpre, x, plan, C, P, BY_TOKEN, GROUPED, how);
    }
    dx.rows = m->s.rows, dx.plan = plan;

    /* 2, 1 */
    route_backward(m, &a->mlp, p->router, g->router, g->router_bias, &dx, x, scale, how);

    /* 5 */
    if (c->shared_width) mlp_backward(m, shared_expert(m, l), c->shared_gate ? &a->gate : NULL, &dx, dout, x, how);
    if (c->shared_gate) gate_backward(m, l, &dx, x, how);
    return dx;
}
