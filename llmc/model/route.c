/* route.c: one router, whatever its experts are. */
#include "route.h"
#include "routers.h"

void route_forward(Model *m, Route *r, const floatX *router, const floatX *bias, const floatX *x) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, E = r->E, K = r->K;
    const Scores scores = m->config.scores;
    const int rounds = m->rounds && r->first;
    int *choice = rounds ? m->s.choice : r->expert;

    /* 1. Every token scores every expert and keeps the best K. */
    dev->matmul_forward(r->logits, x, router, N, C, E);
    if (bias) dev->bias_forward(r->logits, bias, N, E);
    dev->router_forward(choice, r->chosen_weight, r->lse, r->logits, r->bias, scores, r->groups, m->forced, N, E, K);

    /* 2. The slots are sorted by expert: each has consecutive rows; if rounded, whole tiles. */
    r->plan.N = N;
    r->plan.S = rounds ? (int)mlp_slots(&m->config, N, 1) : N * K;
    r->plan.first = rounds ? r->first : NULL;
    if (rounds) dev->route_round(&r->plan, r->own_load, r->expert, r->chosen_weight, choice, r->logits, r->lse, scores,
                                 m->config.tile);
    else dev->route_plan(&r->plan, r->own_load, r->expert);
    if (m->batch.filled) dev->route_discount(r->own_load, choice, m->batch.targets, N, K);
    if (r->weight != r->chosen_weight) dev->scale_weights(r->weight, r->chosen_weight, r->scale, (size_t)r->plan.S);
}

/* The tokens that loads count, and over which experts are balanced: those of a step's ranks, or, if
 * the result must not depend on their number, of this rank's micro-batch. */
Counted model_counted(const Model *m) {
    return (Counted){ .target = m->batch.filled ? m->batch.targets : NULL,
                      .tokens = m->dp.ordered ? m->dp.own_tokens : m->results.tokens,
                      .ranks = m->dp.ordered ? 1 : m->dp.ranks };
}
void route_losses(Model *m, Route *r) {
    const int N = m->batch.N, E = r->E, K = r->K;
    m->dev->router_losses(r->losses, r->logits, r->lse, r->load, model_counted(m), m->config.scores, N, E, K);
}

/* 2, 1. The choice has no gradient; the weights (m->s.dweight) and the two losses have. */
void route_backward(Model *m, Route *r, const floatX *router, void *drouter, real *dbias, Sum *dx, const floatX *x,
                    float scale, Write how) {
    const Device *dev = m->dev;
    const int N = m->batch.N, C = m->config.channels, E = r->E, K = r->K;
    if (r->weight != r->chosen_weight) dev->scale_weights(m->s.dweight, m->s.dweight, r->scale, (size_t)r->plan.S);
    dev->router_backward(m->s.dlogits, m->s.dweight, r->chosen_weight, r->lse, r->expert, r->plan.first,
                         r->logits, r->load, m->balance_coef * scale, m->z_coef * scale, model_counted(m),
                         m->config.scores, N, E, K);
    if (dbias) dev->bias_backward(dbias, m->s.dlogits, N, E);
    sum_add(dx, m->s.dlogits, router, E);
    dev->matmul_backward_weight(drouter, m->s.dlogits, x, N, C, E, how);
}
