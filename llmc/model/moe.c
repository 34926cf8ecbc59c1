/* moe.c: the MLP sub-layer of a block. A sparse mixture of experts, each a small gated MLP; or one dense MLP; and, if the
 * model has one, a shared expert beside the routed ones. Backward mirrors forward, step by step, with the same numbers. */
#include "gradients.h"
#include "route.h"

/* ---- one MLP on every token: a dense one, or the shared expert --------------------------------------------- */

typedef struct { const floatX *up, *down; void *dup, *ddown; floatX *pre; int F; } DenseMlp;    /* pre (N,2F) or (N,F) */

static DenseMlp dense_mlp(const Model *m, int l) {
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    return (DenseMlp){ p->up, p->down, g->up, g->down, m->acts[l].pre, config_width(&m->config, l) };
}
static DenseMlp shared_expert(const Model *m, int l) {
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    return (DenseMlp){ p->shared_up, p->shared_down, g->shared_up, g->shared_down, m->acts[l].shared_pre, m->config.shared_width };
}
static int pre_width(const Model *m, int F) { return IS_GATED(m->config.activation) ? 2 * F : F; }

static void mlp_up(Model *m, DenseMlp mlp, const floatX *x) {
    m->dev->matmul_forward(mlp.pre, x, mlp.up, m->batch.N, m->config.channels, pre_width(m, mlp.F));
}
/* out = down f(up x) */
static void mlp_forward(Model *m, DenseMlp mlp, floatX *out, const floatX *x) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, F = mlp.F;
    mlp_up(m, mlp, x);
    dev->activation_forward(m->s.act, mlp.pre, (Activation)m->config.activation, N, F);
    dev->matmul_forward(out, m->s.act, mlp.down, N, F, C);
}
/* Adds its addend to dx. gate: NULL, or of the weights that its output was multiplied by; then m->s.dweight is their gradient. */
static void mlp_backward(Model *m, DenseMlp mlp, const Route *gate, Sum *dx, const floatX *dout, const floatX *x, Write how) {
    const Device *dev = m->dev;
    const Activation f = (Activation)m->config.activation;
    const int N = m->batch.N, C = m->config.channels, F = mlp.F, P = pre_width(m, F);
    if (gate)
        dev->expert_down_backward(dev, m->s.dpre, m->s.act, m->s.dweight, m->s.dact, dout, mlp.down, mlp.pre, gate->weight, &gate->plan,
                                  f, C, F, BY_TOKEN);
    else {
        dev->matmul_backward_input(m->s.dact, dout, mlp.down, N, F, C, SET);
        dev->activation_backward(m->s.dpre, m->s.act, NULL, m->s.dact, mlp.pre, NULL, NULL, BY_TOKEN, f, N, F);
    }
    dev->matmul_backward_weight(mlp.ddown, dout, m->s.act, N, F, C, how);
    sum_add(dx, m->s.dpre, mlp.up, P);
    dev->matmul_backward_weight(mlp.dup, m->s.dpre, x, N, C, P, how);
}

/* ---- a shared expert whose output is multiplied by sigmoid(gate x): the only expert of a router whose weights are sigmoids -- */

static void gate_forward(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    Route *r = &m->acts[l].gate;
    const int N = m->batch.N;
    dev->matmul_forward(r->logits, x, m->lp[l].shared_gate, N, m->config.channels, 1);
    dev->router_forward(r->expert, r->weight, r->lse, r->logits, NULL, SIGMOID_EACH, (Groups){ 0 }, 0, N, 1, 1);
    r->plan.N = r->plan.S = N;
    dev->route_plan(&r->plan, m->s.gate_load, r->expert);
}
static void gate_backward(Model *m, int l, Sum *dx, const floatX *x, Write how) {
    const Device *dev = m->dev;
    const Route *r = &m->acts[l].gate;
    const int N = m->batch.N, C = m->config.channels;
    dev->router_backward(m->s.dgate, m->s.dweight, r->weight, r->lse, r->expert, NULL, r->logits, m->s.gate_load, 0, 0, N,
                         SIGMOID_EACH, N, 1, 1);
    sum_add(dx, m->s.dgate, m->lp[l].shared_gate, 1);
    dev->matmul_backward_weight(m->lg[l].shared_gate, m->s.dgate, x, N, C, 1, how);
}

/* ---- experts in 8 bits: steps 3 and 4 of the mixture, and what they need ------------------------------------- */

static int in_8_bits(const Model *m, int l, int passes) { return m->fp8 && m->fp8_passes & passes && config_has_experts(&m->config, l); }
static const ExpertCodes *codes_of(const Model *m, int l) { return &m->codes[m->config.universal || m->codes_shared ? 0 : l]; }

/* The optimizer has changed the weights since the last step, so the first forward of a step encodes them. Where weights are sharded all
 * layers use one buffer for their codes, and encode them in every pass. */
void moe_encode_weights(Model *m, int l, int backward) {
    const Config *c = &m->config;
    const int are_new = !backward && m->batch.phase & PHASE_FIRST && !(c->universal && l);
    if (!in_8_bits(m, l, backward || !m->codes_shared ? FP8_ALL : FP8_FORWARD) || !(are_new || m->codes_shared)) return;
    const ExpertCodes *w = codes_of(m, l);
    m->dev->fp8_weight(w->up, w->up_transposed, m->lp[l].up, c->experts, 2 * c->width, c->channels);
    m->dev->fp8_weight(w->down, w->down_transposed, m->lp[l].down, c->experts, c->channels, c->width);
}

static void up_in_8_bits(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const int C = m->config.channels;
    dev->fp8_rows(m->s.x8, x, m->batch.N, C);
    dev->fp8_up_forward(dev, m->acts[l].pre, m->s.act8, m->s.x8, codes_of(m, l)->up, &m->acts[l].mlp.plan, C, m->config.width);
}

/* The same steps as in moe_layer_backward. all: weight gradients are in 8 bits, too; a device that cannot do that needs dpre and act as
 * floatX for them. */
static void backward_in_8_bits(Model *m, int l, const floatX *dout, const floatX *x, Write how) {
    const Device *dev = m->dev;
    const LayerActs *a = &m->acts[l];
    const Plan *plan = &a->mlp.plan;
    const ExpertCodes *w = codes_of(m, l);
    const LayerGrads *g = &m->lg[l];
    const Scratch *s = &m->s;
    const int N = m->batch.N, C = m->config.channels, F = m->config.width, all = dev->fp8_columns != NULL;
    dev->fp8_rows(s->x8, dout, N, C);
    dev->fp8_down_backward(dev, all ? NULL : s->dpre, s->dpre8, all ? NULL : s->act, all ? s->act8 : (Fp8){ 0 }, s->dweight, s->x8,
                           w->down_transposed, a->pre, a->mlp.weight, plan, C, F);
    if (all) {
        dev->fp8_columns(s->columns_C, s->x8, plan, C, BY_TOKEN);
        dev->fp8_columns(s->columns_F, s->act8, plan, F, GROUPED);
        dev->fp8_backward_weight(dev, g->down, s->columns_C, s->columns_F, plan, F, C, how);
    } else dev->parallel_linear_backward_weight(g->down, dout, s->act, plan, F, C, GROUPED, BY_TOKEN, how);
    dev->fp8_linear(dev, s->rows, s->dpre8, w->up_transposed, plan, 2*F, C);
    if (all) {
        dev->fp8_rows(s->x8, x, N, C);
        dev->fp8_columns(s->columns_C, s->x8, plan, C, BY_TOKEN);
        dev->fp8_columns(s->columns_F, s->dpre8, plan, 2*F, GROUPED);
        dev->fp8_backward_weight(dev, g->up, s->columns_F, s->columns_C, plan, C, 2*F, how);
    } else dev->parallel_linear_backward_weight(g->up, s->dpre, x, plan, C, 2*F, BY_TOKEN, GROUPED, how);
}

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

/* The forward pass for one token of each of a few sequences, from the residual stream to the residual stream: a mixture, or, with
 * router.weight NULL, one MLP. */
static void mlp_decode(Model *m, floatX *out, const floatX *resid, const floatX *x, Norm norm, Router router, Choice choice,
                       DenseMlp mlp, const floatX *bias) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, F = mlp.F;
    dev->decode_in(m->s.act, NULL, choice, x, norm, router, mlp.up, NULL, mlp.down, (size_t)C * (size_t)F,
                   (Activation)m->config.activation, N, C, F, 0);
    dev->decode_out(out, resid, m->s.act, choice, mlp.down, bias, (float)m->config.residual_scale, N, router.E, router.K, F, C);
}
void moe_layer_decode(Model *m, int l, floatX *out, const floatX *resid) {
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    const Route *r = &m->acts[l].mlp, *gate = &m->acts[l].gate;
    const Norm norm = { p->mlp_norm, (float)c->norm_eps };
    const Router none = { .E = 1, .K = 1 };
    DenseMlp experts = dense_mlp(m, l);
    if (!config_has_experts(c, l)) {
        mlp_decode(m, out, resid, resid, norm, none, (Choice){ 0 }, experts, NULL);
        return;
    }

    /* 1 to 4. */
    const Router router = { p->router, r->bias, (Scores)c->scores, r->E, r->K, r->groups, (float)c->route_scale };
    mlp_decode(m, out, resid, resid, norm, router, (Choice){ r->expert, r->weight }, experts, p->mlp_bias);

    /* 5. Its gate is a router that has one expert. */
    if (!c->shared_width) return;
    const Router gating = c->shared_gate ? (Router){ .weight = p->shared_gate, .scores = SIGMOID_EACH, .E = 1, .K = 1 } : none;
    const Choice choice = c->shared_gate ? (Choice){ gate->expert, gate->weight } : (Choice){ 0 };
    mlp_decode(m, out, out, resid, norm, gating, choice, shared_expert(m, l), NULL);
}
