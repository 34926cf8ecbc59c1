/* routers.c: see routers.h. */
#include "routers.h"
#include <stdio.h>

/* Routers are numbered by layer, attention first. */
int router_layer(const Config *c, int router, int *attention) {
    *attention = 0;
    for (int l = 0; l < c->layers; l++) {
        if (c->attention_experts > 1 && router-- == 0) return *attention = 1, l;
        if (config_has_experts(c, l) && router-- == 0) return l;
    }
    return -1;
}
static int is_attention(const Model *m, int router) {
    int attention;
    router_layer(&m->config, router, &attention);
    return attention;
}

int router_width(const Model *m, int router) {
    return is_attention(m, router) ? m->config.attention_experts : m->config.experts;
}
size_t router_offset(const Model *m, int router) {
    const Config *c = &m->config;
    const int attention = c->attention_experts > 1 ? c->attention_experts : 0, mlp = c->experts > 1 ? c->experts : 0;
    return (size_t)router * (size_t)(attention > mlp ? attention : mlp);
}
const char *router_name(const Model *m, int router, char text[48]) {
    int attention, layer = router_layer(&m->config, router, &attention);
    snprintf(text, 48, "layer %d %s", layer, attention ? "attention" : "mlp");
    return text;
}

/* Rounding adds at most half a tile to an expert, which never has more than N. */
int64_t mlp_slots(const Config *c, int N, int rounds) {
    const int64_t chosen = (int64_t)N * c->topk, all = (int64_t)N * c->experts, E = c->experts;
    if (!rounds || !c->rounding || E == 1) return chosen;
    const int64_t most = chosen + E * ((c->tile - 1) / 2);
    return most < all ? most : all;
}

RouterStats router_stats(const Model *m, const int *load, const double *losses) {
    RouterStats s = { 0 };
    int mlp = 0, attention = 0;
    for (int r = 0; r < m->routers; r++) {
        const int experts = router_width(m, r), *own = load + router_offset(m, r);
        int64_t total = 0;
        int most = 0;
        for (int e = 0; e < experts; e++) {
            total += own[e];
            if (own[e] > most) most = own[e];
            s.dead += own[e] == 0;
        }
        s.experts += experts;
        const double load_of_most = total ? (double)most * experts / (double)total : 0;
        if (load_of_most > s.max_load) s.max_load = load_of_most;
        if (is_attention(m, r)) { s.att_balance += losses[2*r]; attention++; }
        else                    { s.balance += losses[2*r]; mlp++; }
        s.z += losses[2*r + 1] / m->routers;
    }
    if (mlp) s.balance /= mlp;
    if (attention) s.att_balance /= attention;
    return s;
}

void routers_update_bias(Model *m, float rate, int relative) {
    for (int r = 0; r < m->routers; r++)
        m->dev->router_bias(real_at(m, m->bias, router_offset(m, r)), m->results.load + router_offset(m, r), rate,
                            relative, router_width(m, r));
}
