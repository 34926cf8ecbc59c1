/* values.c: values of a token that do not depend on its context, in step 3 of attention.c. They are
 * a row of a table, value_embed (V, G*D), which may pass a gate for each kv head: 2 sigmoid of a
 * product of the layer's first inputs, so that it begins as 1.
 * Source: Zhou et al. 2024, arXiv 2410.17897; the form is modded-nanogpt's. */
#include "sublayers.h"

void values_add(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    LayerActs *a = &m->acts[l];
    const int N = m->batch.N, G = c->kv_heads, I = config_gate_inputs(c);
    if (!p->value_embed) return;
    if (p->value_gate) {
        dev->columns_take(m->s.gate_inputs, x, N, c->channels, 0, I);
        dev->matmul_forward(a->value_gate, m->s.gate_inputs, p->value_gate, N, I, G);
    }
    dev->value_forward(a->kv, p->value_gate ? a->value_gate : NULL, m->batch.tokens, p->value_embed, N, G,
                       c->head_size);
}
void values_add_backward(Model *m, int l, const floatX *x, Sum *dx, Write how) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const LayerParams *p = &m->lp[l];
    const LayerGrads *g = &m->lg[l];
    const int N = m->batch.N, G = c->kv_heads, D = c->head_size, I = config_gate_inputs(c);
    floatX *const dvalues = m->s.values, *const dgate = m->s.dvalue_gate;
    if (!p->value_embed) return;
    if (p->value_gate) {
        dev->value_backward(dvalues, dgate, m->s.dkv, m->acts[l].value_gate, m->batch.tokens, p->value_embed, N, G, D);
        dev->columns_take(m->s.gate_inputs, x, N, c->channels, 0, I);
        dev->matmul_backward_weight(g->value_gate, dgate, m->s.gate_inputs, N, I, G, how);
        dev->matmul_backward_input(m->s.dgate_inputs, dgate, p->value_gate, N, I, G, SET);
        dx->narrow = m->s.dgate_inputs, dx->narrow_width = I;
    } else dev->columns_take(dvalues, m->s.dkv, N, 2*G*D, G*D, G*D);
    dev->embed_backward(g->value_embed, dvalues, m->batch.tokens, N, c->vocab, G*D);
}
