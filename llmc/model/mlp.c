/* mlp.c: MLPs that every token passes, out (N,C) = down f(up x): the dense one of a layer without
 * experts, and the shared expert beside those of moe.c, perhaps times sigmoid(gate x). */
#include "gradients.h"
#include "route.h"
#include "sublayers.h"

typedef struct { const floatX *up, *down; void *dup, *ddown; floatX *pre; int F; } Mlp;     /* pre (N,2F) or (N,F) */

static Mlp dense(const Model *m, int l) {
    const LayerParams *p = &m->lp[l];
    return (Mlp){ p->up, p->down, m->lg[l].up, m->lg[l].down, m->acts[l].pre, config_width(&m->config, l) };
}
static Mlp shared(const Model *m, int l) {
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    return (Mlp){ p->shared_up, p->shared_down, g->shared_up, g->shared_down, m->acts[l].shared_pre,
                  m->config.shared_width };
}

static void up(Model *m, Mlp mlp, const floatX *x) {
    m->dev->matmul_forward(mlp.pre, x, mlp.up, m->batch.N, m->config.channels, pre_width(&m->config, mlp.F));
}
static void forward(Model *m, Mlp mlp, floatX *out, const floatX *x) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, F = mlp.F;
    up(m, mlp, x);
    dev->activation_forward(m->s.act, mlp.pre, m->config.activation, N, F);
    dev->matmul_forward(out, m->s.act, mlp.down, N, F, C);
}
/* Adds an addend to dx. gate: NULL, or of weights of the output, whose gradient is s.dweight. */
static void backward(Model *m, Mlp mlp, const Route *gate, Sum *dx, const floatX *dout, const floatX *x, Write how) {
    const Device *dev = m->dev;
    const Activation f = m->config.activation;
    const int N = m->batch.N, C = m->config.channels, F = mlp.F, P = pre_width(&m->config, F);
    floatX *const dpre = m->s.dpre, *const dact = m->s.dact, *const act = m->s.act;         /* act: times the weight */
    if (gate)
        dev->expert_down_backward(dev, dpre, act, m->s.dweight, dact, dout, mlp.down, mlp.pre, gate->weight,
                                  &gate->plan, f, C, F, BY_TOKEN);
    else {
        dev->matmul_backward_input(dact, dout, mlp.down, N, F, C, SET);
        dev->activation_backward(dpre, act, NULL, dact, mlp.pre, NULL, NULL, BY_TOKEN, f, N, F);
    }
    dev->matmul_backward_weight(mlp.ddown, dout, act, N, F, C, how);
    sum_add(dx, dpre, mlp.up, P);
    dev->matmul_backward_weight(mlp.dup, dpre, x, N, C, P, how);
}

/* ---- a dense MLP ---------------------------------------------------------------------------- */

void dense_up(Model *m, int l, const floatX *x) { up(m, dense(m, l), x); }
Sum dense_forward(Model *m, int l, const floatX *x) {
    forward(m, dense(m, l), m->s.branch, x);
    return (Sum){ .rows = m->s.branch };
}
Sum dense_backward(Model *m, int l, const floatX *dout, const floatX *x, Write how) {
    Sum dx = { 0 };
    backward(m, dense(m, l), NULL, &dx, dout, x, how);
    return dx;
}

/* ---- a shared expert. Its gate is a router with one expert, whose weight is a sigmoid ------- */

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
    dev->router_backward(m->s.dgate, m->s.dweight, r->weight, r->lse, r->expert, NULL, r->logits, m->s.gate_load, 0, 0,
                         model_counted(m), SIGMOID_EACH, N, 1, 1);
    sum_add(dx, m->s.dgate, m->lp[l].shared_gate, 1);
    dev->matmul_backward_weight(m->lg[l].shared_gate, m->s.dgate, x, N, C, 1, how);
}

void shared_up(Model *m, int l, const floatX *x) { up(m, shared(m, l), x); }

/* It needs the buffer of the rows, so these are summed first. out is free until the layer ends. */
Sum shared_forward(Model *m, int l, const floatX *x, Sum routed) {
    const Device *dev = m->dev;
    LayerActs *a = &m->acts[l];
    const int C = m->config.channels, gated = m->config.shared_gate;
    floatX *const sum = m->s.branch, *const own = m->s.rows, *const product = a->out;
    dev->combine_forward(sum, routed.rows, routed.weight, routed.bias, routed.plan, C, GROUPED);
    forward(m, shared(m, l), own, x);
    if (gated) gate_forward(m, l, x);
    if (gated) dev->combine_forward(product, own, a->gate.weight, NULL, &a->gate.plan, C, GROUPED);
    dev->residual(sum, sum, gated ? product : own, (Dropout){ 0 }, (size_t)m->batch.N * (size_t)C);
    return (Sum){ .rows = sum };
}
void shared_backward(Model *m, int l, Sum *dx, const floatX *dout, const floatX *x, Write how) {
    const int gated = m->config.shared_gate;
    backward(m, shared(m, l), gated ? &m->acts[l].gate : NULL, dx, dout, x, how);
    if (gated) gate_backward(m, l, dx, x, kept_gradient_write(m, l));
}
