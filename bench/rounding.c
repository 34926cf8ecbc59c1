/* rounding.c: what do whole tiles gain? An SMoE MLP layer with few rows per expert, its routing as
 * chosen and rounded. The layer is the model's own, with router and plan; the time of routing is
 * also printed alone. */
#include "layers.h"
#include "llmc/model/sublayers.h"
#include "llmc/model/gradients.h"
#include "llmc/model/sublayers.h"
#include "llmc/model/plan.h"
#include "llmc/model/route.h"
#include <stdio.h>
#include <stdlib.h>

enum { RUNS = 9, PARTS = 4 };

/* What add_norm_forward and add_norm_backward do with it, without the norm. */
static void add_up(Model *m, Sum s) {
    const int N = m->batch.N, C = m->config.channels;
    if (s.plan) m->dev->combine_forward(m->s.dnormed[0], s.rows, s.weight, s.bias, s.plan, C, GROUPED);
    for (int i = 0; i < s.terms; i++)
        m->dev->matmul_backward_input(m->s.branch, s.term[i].dout, s.term[i].weight, N, C, s.term[i].O, SET);
}
static void work(Model *m, int part) {
    LayerActs *a = m->acts;
    Sum s = { 0 };
    if (part == 0) s = moe_layer_forward(m, 0, a->mlp_normed);
    if (part == 1) s = moe_layer_backward(m, 0, m->s.dresid, a->mlp_normed, 1);
    if (part == 2) route_forward(m, &a->mlp, m->lp->router, m->lp->router_bias, a->mlp_normed);
    if (part == 3) route_backward(m, &a->mlp, m->lp->router, m->lg->router, m->lg->router_bias, &s, a->mlp_normed, 1,
                                  gradient_write(m, 0));
    add_up(m, s);
}

void bench_rounding(const Device *dev) {
    Config c = trainee_config(dev->is_gpu ? "m1:c4096h32a1e256k4f1024" : "m1:c128h4a1e16k4f64", 256, 1024);
    Model m;
    static double ms[2][PARTS][RUNS], took[2][PARTS];
    double rows[2];
    c.rounding = 1;
    model_plan_training(&m, dev, &c, dev->is_gpu ? 16 : 1, c.context, 0, 1, FLOATX, NULL);
    if (!model_allocate(&m)) { puts("rounding: does not fit into this device's memory"); return; }
    const size_t NC = (size_t)m.batch.N * (size_t)c.channels;
    const int E = c.experts;
    int *start = mem_alloc(((size_t)E + 1) * sizeof *start);
    fill_normal(dev, m.params, m.manifest.total, 1, 0.02);
    fill_normal(dev, m.acts->mlp_normed, NC, 2, 1);
    fill_normal(dev, m.s.dresid, NC, 3, 0.1);
    m.batch.phase = PHASE_FIRST;
    m.balance_coef = 0.01f;
    printf("\nSMoE MLP layer on %s, routing rounded: N,C,F,E,K = %d,%d,%d,%d,%d; median ms of %d, in alternation\n"
           "%-12s %8s %9s %9s %9s %9s %9s\n", dev->name, m.batch.N, c.channels, c.width, E, c.topk, RUNS, "rule",
           "rows", "forward",
           "backward", "route fwd", "route bwd", "speed-up");
    for (int run = -1; run < RUNS; run++)                   /* the first warms up */
        for (int rounds = 0; rounds < 2; rounds++) {
            m.rounds = rounds;
            for (int part = 0; part < PARTS; part++) {
                dev->sync();
                const double begin = now();
                work(&m, part);
                dev->sync();
                if (run >= 0) ms[rounds][part][run] = 1e3 * (now() - begin);
            }
            dev->download(start, m.acts->mlp.plan.start, ((size_t)E + 1) * sizeof *start);
            rows[rounds] = start[E];
        }
    for (int rounds = 0; rounds < 2; rounds++) {
        for (int part = 0; part < PARTS; part++) took[rounds][part] = median(ms[rounds][part], RUNS);
        const double *t = took[rounds], *off = took[0];
        printf("%-12s %8.0f %9.3f %9.3f %9.3f "
               "%9.3f  %5.3f forward, %5.3f backward, %5.3f both; without routing %5.3f\n", rounds ? "nearest" : "off",
               rows[rounds], t[0], t[1], t[2], t[3], off[0] / t[0], off[1] / t[1], (off[0] + off[1]) / (t[0] + t[1]),
               (off[0] + off[1] - off[2] - off[3]) / (t[0] + t[1] - t[2] - t[3]));
    }
    free(start);
    model_free(&m);
}
