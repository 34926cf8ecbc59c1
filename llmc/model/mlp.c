/* mlp.c: MLPs that every token passes: a dense one, and the shared expert beside routed ones, with its gate. */
#include "sublayers.h"

/* ---- one MLP on every token: a dense one, or the shared expert --------------------------------------------- */

DenseMlp dense_mlp(const Model *m, int l) {
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    return (DenseMlp){ p->up, p->down, g->up, g->down, m->acts[l].pre, config_width(&m->config, l) };
}
DenseMlp shared_expert(const Model *m, int l) {
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    return (DenseMlp){ p->shared_up, p->shared_down, g->shared_up, g->shared_down, m->acts[l].shared_pre, m->config.shared_width };
}
int pre_width(const Model *m, int F) { return IS_GATED(m->config.activation) ? 2 * F : F; }

void mlp_up(Model *m, DenseMlp mlp, const floatX *x) {
    m->dev->matmul_forward(mlp.pre, x, mlp.up, m->batch.N, m->config.channels, pre_width(m, mlp.F));
}
/* out = down f(up x) */
void mlp_forward(Model *m, DenseMlp mlp, floatX *out, const floatX *x) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, F = mlp.F;
    mlp_up(m, mlp, x);
    dev->activation_forward(m->s.act, mlp.pre, (Activation)m->config.activation, N, F);
    dev->matmul_forward(out, m->s.act, mlp.down, N, F, C);
}
/* Adds its addend to dx. gate: NULL, or of the weights that its output was multiplied by; then m->s.dweight is their gradient. */
void mlp_backward(Model *m, DenseMlp mlp, const Route *gate, Sum *dx, const floatX *dout, const floatX *x, Write how) {
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

void gate_forward(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    Route *r = &m->acts[l].gate;
    const int N = m->batch.N;
    dev->matmul_forward(r->logits, x, m->lp[l].shared_gate, N, m->config.channels, 1);
    dev->router_forward(r->expert, r->weight, r->lse, r->logits, NULL, SIGMOID_EACH, (Groups){ 0 }, 0, N, 1, 1);
    r->plan.N = r->plan.S = N;
    dev->route_plan(&r->plan, m->s.gate_load, r->expert);
}
void gate_backward(Model *m, int l, Sum *dx, const floatX *x, Write how) {
    const Device *dev = m->dev;
    const Route *r = &m->acts[l].gate;
    const int N = m->batch.N, C = m->config.channels;
    dev->router_backward(m->s.dgate, m->s.dweight, r->weight, r->lse, r->expert, NULL, r->logits, m->s.gate_load, 0, 0, N,
                         SIGMOID_EACH, N, 1, 1);
    sum_add(dx, m->s.dgate, m->lp[l].shared_gate, 1);
    dev->matmul_backward_weight(m->lg[l].shared_gate, m->s.dgate, x, N, C, 1, how);
}
