/* fp8.c: experts in 8 bits: steps 3 to 6 of moe.c on codes, for sizes that are faster that way; and
 * the head (pass.c) by the same operations, as one expert that has all rows. */
#include "fp8.h"
#include "sublayers.h"

/* Faster, forward and backward, are all sizes that were measured (docs/numerics.md), and larger
 * products gain more. So a size is faster if it is nowhere smaller than one of these, the smallest
 * measured; rows: of one expert in a micro-batch. */
static const struct { int C, F, rows; } faster[] = {
    {  768, 256, 2560 },                    /* one H200 */
    { 1536, 256, 1536 },
};

/* The same on every device, so that a CPU computes what a GPU does. */
int fp8_passes(const Config *c, int N) {
    const double rows = (double)N * c->topk / c->experts;
    if (c->experts == 1) return 0;
    if (!(c->fp8 & FP8_WHERE_FASTER)) return c->fp8;
    for (size_t i = 0; i < sizeof faster / sizeof *faster; i++)
        if (c->channels >= faster[i].C && c->width >= faster[i].F && rows >= faster[i].rows) return FP8_ALL;
    return 0;
}

static int in_8_bits(const Model *m, int l, int passes) {
    return m->fp8 && m->fp8_passes & passes && config_has_experts(&m->config, l);
}
static const ExpertCodes *codes_of(const Model *m, int l) {
    return &m->expert_codes[m->config.universal || m->codes_shared ? 0 : l];
}

/* The optimizer has changed the weights since the last step, so the first forward of a step encodes
 * them. Where weights are sharded all layers use one buffer, and encode theirs in every pass. */
void encode_experts(Model *m, int l, int backward) {
    const Config *c = &m->config;
    const int are_new = !backward && m->batch.phase & PHASE_FIRST && !(c->universal && l);
    if (!in_8_bits(m, l, backward || !m->codes_shared ? FP8_ALL : FP8_FORWARD) || !(are_new || m->codes_shared)) return;
    const ExpertCodes *w = codes_of(m, l);
    m->dev->fp8->weight(w->up, w->up_transposed, m->lp[l].up, c->experts, 2 * c->width, c->channels);
    m->dev->fp8->weight(w->down, w->down_transposed, m->lp[l].down, c->experts, c->channels, c->width);
}

int encoded_up(Model *m, int l, const floatX *x) {
    const Device *dev = m->dev;
    const int C = m->config.channels, F = m->config.width;
    if (!in_8_bits(m, l, FP8_FORWARD)) return 0;
    dev->fp8->rows(m->s.x8, x, m->batch.N, C);
    dev->fp8->up_forward(dev, m->acts[l].pre, m->s.act8, m->s.x8, codes_of(m, l)->up, &m->acts[l].mlp.plan, C, F);
    return 1;
}
int encoded_down(Model *m, int l) {
    const Device *dev = m->dev;
    const int C = m->config.channels, F = m->config.width;
    if (!in_8_bits(m, l, FP8_FORWARD)) return 0;
    dev->fp8->linear(dev, m->s.rows, m->s.act8, codes_of(m, l)->down, &m->acts[l].mlp.plan, F, C);
    return 1;
}

/* all: weight gradients, too; a device that cannot needs dpre and weighted act as floatX for it. */
int encoded_backward(Model *m, int l, const floatX *dout, const floatX *x, Write how) {
    const Device *dev = m->dev;
    const LayerActs *a = &m->acts[l];
    const Plan *plan = &a->mlp.plan;
    const LayerGrads *g = &m->lg[l];
    const Scratch *s = &m->s;
    const int N = m->batch.N, C = m->config.channels, F = m->config.width;
    const Fp8 none = { 0 }, dout8 = s->x8, x8 = s->x8;              /* one buffer: first of dout, then of x */
    if (!in_8_bits(m, l, FP8_BACKWARD)) return 0;
    const ExpertCodes *w = codes_of(m, l);
    const int all = dev->fp8->columns != NULL;

    /* 6, 5, 4. */
    dev->fp8->rows(dout8, dout, N, C);
    dev->fp8->down_backward(dev, all ? NULL : s->dpre, s->dpre8, all ? NULL : s->act, all ? s->act8 : none, s->dweight,
                           dout8, w->down_transposed, a->pre, a->mlp.weight, plan, C, F);
    if (all) {
        dev->fp8->columns(s->columns_C, dout8, plan, C, BY_TOKEN);
        dev->fp8->columns(s->columns_F, s->act8, plan, F, GROUPED);
        dev->fp8->backward_weight(dev, g->down, s->columns_C, s->columns_F, plan, F, C, how);
    } else dev->parallel_linear_backward_weight(g->down, dout, s->act, plan, F, C, GROUPED, BY_TOKEN, how);

    /* 3. */
    dev->fp8->linear(dev, s->rows, s->dpre8, w->up_transposed, plan, 2*F, C);
    if (all) {
        dev->fp8->rows(x8, x, N, C);
        dev->fp8->columns(s->columns_C, x8, plan, C, BY_TOKEN);
        dev->fp8->columns(s->columns_F, s->dpre8, plan, 2*F, GROUPED);
        dev->fp8->backward_weight(dev, g->up, s->columns_F, s->columns_C, plan, C, 2*F, how);
    } else dev->parallel_linear_backward_weight(g->up, s->dpre, x, plan, C, 2*F, BY_TOKEN, GROUPED, how);
    return 1;
}

/* ---- the head -------------------------------------------------------------------------------- */

static int head_in_8_bits(const Model *m) { return m->fp8 && m->head8.start; }
static Plan head_plan(const Model *m, int rows) {
    return (Plan){ .N = rows, .E = 1, .K = 1, .S = rows, .start = m->head8.start + (rows == m->head_rows ? 0 : 2) };
}
static floatX *rows_from(const Model *m, floatX *x, int first) {
    return float_at(m, x, (size_t)first * (size_t)m->config.channels);
}
int encoded_logits(Model *m, int first, int rows) {
    const Device *dev = m->dev;
    const HeadCodes *h = &m->head8;
    const int C = m->config.channels, V = m->config.vocab;
    if (!head_in_8_bits(m)) return 0;
    const Plan plan = head_plan(m, rows);
    if (first == 0 && m->batch.phase & PHASE_FIRST) dev->fp8->weight(h->weight, h->transposed, m->p.head, 1, V, C);
    dev->fp8->rows(h->x, rows_from(m, m->final, first), rows, C);
    dev->fp8->linear(dev, m->s.logits, h->x, h->weight, &plan, C, V);
    return 1;
}
/* A device without columns needs the gradient as floatX, for that of the weight. */
int encoded_cross_entropy(Model *m, int first, int rows) {
    const Device *dev = m->dev;
    const Batch *b = &m->batch;
    if (!head_in_8_bits(m) || !dev->fp8->columns) return 0;
    dev->fp8->cross_entropy(dev, real_at(m, m->loss, (size_t)first), m->head8.dlogits, m->s.logits, b->targets + first,
                            m->further ? b->position + first : NULL, b->loss_scale, (float)m->config.logit_cap, rows,
                            m->config.vocab, m->used_vocab);
    return 1;
}
int encoded_logits_backward(Model *m, int first, int rows, Write how) {
    const Device *dev = m->dev;
    const HeadCodes *h = &m->head8;
    const int C = m->config.channels, V = m->config.vocab;
    if (!head_in_8_bits(m)) return 0;
    const Plan plan = head_plan(m, rows);
    if (!dev->fp8->columns) dev->fp8->rows(h->dlogits, m->s.logits, rows, V);
    dev->fp8->linear(dev, rows_from(m, m->dfinal, first), h->dlogits, h->transposed, &plan, V, C);
    if (dev->fp8->columns) {
        dev->fp8->columns(h->columns_V, h->dlogits, &plan, V, GROUPED);
        dev->fp8->columns(h->columns_C, h->x, &plan, C, GROUPED);
        dev->fp8->backward_weight(dev, m->g.head, h->columns_V, h->columns_C, &plan, C, V, how);
    } else dev->matmul_backward_weight(m->g.head, m->s.logits, rows_from(m, m->final, first), rows, C, V, how);
    return 1;
}
