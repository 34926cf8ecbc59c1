/* moe.c: the MLP sub-layer, a sparse mixture of experts. Every token chooses K of E gated MLPs:
 *
 *     1  router   logits = router x; the K largest are chosen,     x (N,C)  router (E,C)
 *                 and weighted by their softmax                    weight (S), S = N*K slots
 *     2  plan     slots sorted by expert: each has consecutive rows
 *     3  up       pre = up[e] x                                    up (E,2F,C)  pre (S,2F)
 *     4           act = silu(gate) * up, the two halves of pre     act (S,F)
 *     5  down     rows = down[e] act (y)                           down (E,C,F)  rows (S,C)
 *     6  sum      out = sum of a token's slots, weight row         out (N,C)
 *
 * An expert reads the rows of its tokens where they are: nothing is padded, sorted or copied.
 * Backward takes the same steps from the last to the first. Forward keeps pre, but neither act nor
 * rows: backward computes act again, and dweight without the rows (kernels/cpu/expert.c).
 *
 * What a model may have besides is a call on a line of its own: a dense MLP instead of experts, or
 * one beside them that every token passes (mlp.c); experts with smaller numbers (fp8.c). */
#include "gradients.h"
#include "route.h"
#include "sublayers.h"

/* 3, 4. pre (S,P) = up[e] x, act (S,F) = f(pre); P = 2F for a gated f. A bias comes between. */
static void experts_up(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    const LayerActs *a = &m->acts[l];
    const Plan *plan = &a->mlp.plan;
    const Activation f = c->activation;
    const int C = c->channels, F = c->width, P = pre_width(c, F);
    if (encoded_up(m, l, x)) return;
    if (!p->up_bias) dev->expert_up_forward(dev, a->pre, m->s.act, x, p->up, plan, f, C, F, BY_TOKEN);
    else {
        dev->parallel_linear_forward(a->pre, x, p->up, plan, C, P, BY_TOKEN, GROUPED);
        dev->expert_bias_forward(a->pre, p->up_bias, plan, P);
        dev->activation_forward(m->s.act, a->pre, f, plan->S, F);
    }
}
/* 5. rows (S,C) = down[e] act. */
static void experts_down(Model *m, int l) {
    const Device *dev = m->dev;
    const LayerParams *p = &m->lp[l];
    const Plan *plan = &m->acts[l].mlp.plan;
    const int C = m->config.channels, F = m->config.width;
    if (!encoded_down(m, l)) dev->parallel_linear_forward(m->s.rows, m->s.act, p->down, plan, F, C, GROUPED, GROUPED);
    if (p->down_bias) dev->expert_bias_forward(m->s.rows, p->down_bias, plan, C);
}

Sum moe_layer_forward(Model *m, int l, const floatX *x) {
    const LayerParams *p = &m->lp[l];
    Route *r = &m->acts[l].mlp;
    if (!config_has_experts(&m->config, l)) return dense_forward(m, l, x);

    route_forward(m, r, p->router, p->router_bias, x);                      /* 1, 2 */
    experts_up(m, l, x);                                                    /* 3, 4 */
    experts_down(m, l);                                                     /* 5 */

    /* 6. Left to add_norm_forward, which adds the sum to the residual stream. */
    const Sum out = { .rows = m->s.rows, .plan = &r->plan, .weight = r->weight, .bias = p->mlp_bias };
    return m->config.shared_width ? shared_forward(m, l, x, out) : out;
}

/* 6 to 3. da = dout down[e], dout by token; dweight = <da, act>; dpre = weight da f'(pre);
 * ddown[e] = dout^T weighted, where weighted = weight act;
 * drows = dpre up[e], the gradient of what the expert read; dup[e] = dpre^T x. */
static void experts_backward(Model *m, int l, const floatX *dout, const floatX *x, Write how) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    const LayerActs *a = &m->acts[l];
    const Plan *plan = &a->mlp.plan;
    const Activation f = c->activation;
    real *const weight = a->mlp.weight, *const dweight = m->s.dweight;
    const int C = c->channels, F = c->width, P = pre_width(c, F);
    floatX *const dpre = m->s.dpre, *const da = m->s.dact, *const weighted = m->s.act, *const drows = m->s.rows;
    if (encoded_backward(m, l, dout, x, how)) return;

    /* 6, 5, 4. */
    dev->expert_down_backward(dev, dpre, weighted, dweight, da, dout, p->down, a->pre, weight, plan, f, C, F, BY_TOKEN);
    if (p->down_bias) dev->expert_bias_backward(g->down_bias, dweight, dout, p->down_bias, weight, plan, C, BY_TOKEN);
    dev->parallel_linear_backward_weight(g->down, dout, weighted, plan, F, C, GROUPED, BY_TOKEN, how);

    /* 3. */
    if (p->up_bias) dev->expert_bias_backward(g->up_bias, NULL, dpre, p->up_bias, NULL, plan, P, GROUPED);
    dev->parallel_linear_backward_input(drows, dpre, p->up, plan, C, P, GROUPED, GROUPED);
    dev->parallel_linear_backward_weight(g->up, dpre, x, plan, C, P, BY_TOKEN, GROUPED, how);
}

/* Returns the addends of dx, for add_norm_backward: what a token's experts and its router read. */
Sum moe_layer_backward(Model *m, int l, const floatX *dout, const floatX *x, float scale) {
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    Route *r = &m->acts[l].mlp;
    const Write how = gradient_write(m, l);
    if (!config_has_experts(&m->config, l)) return dense_backward(m, l, dout, x, how);

    experts_backward(m, l, dout, x, how);                                   /* 6 to 3 */
    Sum dx = { .rows = m->s.rows, .plan = &r->plan };
    route_backward(m, r, p->router, g->router, g->router_bias, &dx, x, scale,
                   kept_gradient_write(m, l));                              /* 2, 1 */
    if (m->config.shared_width) shared_backward(m, l, &dx, dout, x, how);
    return dx;
}

/* pre once more, for a backward whose forward did not keep it; routing was kept. */
void moe_recompute_up(Model *m, int l, const floatX *x) {
    if (!config_has_experts(&m->config, l)) { dense_up(m, l, x); return; }
    experts_up(m, l, x);
    if (m->config.shared_width) shared_up(m, l, x);
}
