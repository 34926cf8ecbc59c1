/* recompute.c: see recompute.h. */
#include "recompute.h"
#include "plan.h"
#include <limits.h>
#include <stdlib.h>

static const char *const part_name[LAYER_PARTS] = { "norms", "QKV projections", "attention", "output projections",
                                                    "up projections" };

Recompute recompute_parts(unsigned parts, int layers) {
    Recompute r = { { 0 } };
    for (int p = 0; p < LAYER_PARTS; p++) if (parts >> p & 1) r.layers[p] = layers;
    return r;
}
enum { ALL_PARTS = (1 << LAYER_PARTS) - 1 };
Recompute recompute_numbered(int number) {
    return recompute_parts(number <= 0 ? 0 : number == 1 ? 1u << PART_NORMS : ALL_PARTS, INT_MAX);
}

/* ---- bytes and work -------------------------------------------------------------------------- */

/* Layers that can recompute a part: all but the last, which need not. */
static int most(const Model *m) { return m->config.layers - 1; }
static int clipped(const Model *m, int layers) { return layers < most(m) ? layers : most(m); }

/* The time of a flop of a product, of a flop of attention, and of a byte read or written, in units
 * of the mean time of a flop of a step. Measured: docs/LOG.md, "Recomputing by parts". */
typedef struct { double product, attention, byte; } Pace;
static Pace pace_of(const Device *dev) { return dev->is_gpu ? (Pace){ 0.85, 1.3, 120 } : (Pace){ 0.65, 2.4, 5 }; }

static double layer_work(const Model *m, int l, LayerPart part) {
    const Config *c = &m->config;
    const Pace pace = pace_of(m->dev);
    const double X = (double)m->dev->floatX_size, T = m->batch.T, gate = IS_GATED(c->activation) ? 2 : 1;
    const double C = c->channels, GD = (double)c->kv_heads * c->head_size, QGD = GD * c->query_heads;
    const double F = config_has_experts(c, l) ? (double)c->topk * c->width + c->shared_width : config_width(c, l);
    const double unseen = config_unseen(c, l, m->batch.T);
    double flop = 0, moved = 0;                             /* of a token */
    switch (part) {
    case PART_NORMS:     moved = 4 * C; break;
    case PART_HEADS:     flop = 2 * config_projections(c, 0), moved = 2 * (QGD + GD); break;
    case PART_ATTENTION: return m->batch.N * pace.attention * 2 * QGD * (T - unseen);
    case PART_MIDDLE:
        flop = 2 * config_projections(c, 1), moved = (3 + (c->attention_experts > 1 ? c->query_heads : 1)) * C; break;
    default:             flop = 2 * C * gate * F, moved = F;
    }
    return m->batch.N * (pace.product * flop + pace.byte * X * moved);
}

/* What recomputing a part in 0, 1, ... layers, which share a buffer, saves and costs. */
typedef struct { size_t bytes; double work; } Effect;
static Effect *effects(const Model *m, LayerPart part) {
    Effect *e = mem_alloc((size_t)m->config.layers * sizeof *e);
    size_t shared[LAYER_PARTS], last[LAYER_PARTS], bytes[LAYER_PARTS], sum;
    model_part_bytes(m, -1, shared);
    model_part_bytes(m, most(m), last);
    sum = last[part];
    for (int n = 1; n <= most(m); n++) {
        model_part_bytes(m, most(m) - n, bytes);
        sum += bytes[part];
        e[n].bytes = sum > shared[part] ? sum - shared[part] : 0;
        e[n].work = e[n-1].work + layer_work(m, most(m) - n, part);
    }
    return e;
}
static Effect effect_of(const Model *m, Recompute r) {
    Effect sum = { 0, 0 };
    for (int p = 0; p < LAYER_PARTS; p++) {
        Effect *e = effects(m, (LayerPart)p);
        sum.bytes += e[clipped(m, r.layers[p])].bytes;
        sum.work += e[clipped(m, r.layers[p])].work;
        free(e);
    }
    return sum;
}
size_t recompute_saves(const Model *m, Recompute r) { return effect_of(m, r).bytes; }
double recompute_costs(const Model *m, Recompute r) {
    return effect_of(m, r).work / (m->batch.N * config_flops(&m->config, m->batch.T));
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* Savings and costs of a part are in proportion to its layers, so the best choice is some parts in
 * all layers and one in as many as it takes. There are few such choices: all are tried. */
Recompute recompute_choose(const Model *m, size_t bytes) {
    Recompute best = recompute_parts(ALL_PARTS, most(m));
    double least = effect_of(m, best).work;
    Effect *part[LAYER_PARTS];
    for (int p = 0; p < LAYER_PARTS; p++) part[p] = effects(m, (LayerPart)p);
    for (unsigned full = 0; full <= ALL_PARTS; full++) {
        const Effect sum = effect_of(m, recompute_parts(full, most(m)));
        for (int p = 0, n; p < LAYER_PARTS; p++) {
            if (full >> p & 1) continue;
            for (n = 0; n < most(m) && sum.bytes + part[p][n].bytes < bytes; ) n++;
            if (sum.bytes + part[p][n].bytes < bytes || sum.work + part[p][n].work >= least) continue;
            least = sum.work + part[p][n].work;
            best = recompute_parts(full, most(m));
            best.layers[p] = n;
        }
    }
    for (int p = 0; p < LAYER_PARTS; p++) free(part[p]);
    return best;
}

/* ---- words ----------------------------------------------------------------------------------- */

static void add_effect(const Model *m, Recompute r, const char *less, const char *more, Text *out) {
    const double percent = 100 * recompute_costs(m, r), bytes = (double)recompute_saves(m, r);
    text_add(out, "%.2f %s%s %.*f %%%s", bytes / (bytes < 1e9 ? 1e6 : 1e9), bytes < 1e9 ? "MB" : "GB", less,
             percent < 10 ? 1 : 0, percent, more);
}
void recompute_describe(const Model *m, Recompute r, Text *out) {
    int kinds = 0, said = 0, same = 1;
    for (int p = 0; p < LAYER_PARTS; p++) {
        r.layers[p] = clipped(m, r.layers[p]);
        kinds += r.layers[p] > 0;
        same &= r.layers[p] == r.layers[0];
    }
    if (!kinds) return;
    for (int p = 0; p < LAYER_PARTS && !same; p++) {
        if (!r.layers[p]) continue;
        said++;
        text_add(out, "%s of %d%s", part_name[p], r.layers[p],
                 said == kinds ? " of" : said == kinds - 1 ? " and " : ", ");
    }
    if (same) text_add(out, "%d of", r.layers[0]);
    text_add(out, " %d layers: ", m->config.layers);
    add_effect(m, r, " less, about", " more work", out);
}
void recompute_list(const Model *m, Text *out) {
    for (int p = 0; p < LAYER_PARTS; p++) {
        text_add(out, "%s%s ", p ? ", " : "", part_name[p]);
        add_effect(m, recompute_parts(1u << p, most(m)), " for", "", out);
    }
}
