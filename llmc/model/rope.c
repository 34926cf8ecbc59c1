/* rope.c: see rope.h. */
#include "rope.h"
#include <math.h>
#include <stdlib.h>

static const double PI = 3.14159265358979323846;

static int rotated(const Config *c) { return c->rotated ? c->rotated : c->head_size; }
int rope_head(const Config *c) { return c->kv_rank ? c->rotated : c->head_size; }

/* Llama 3.1: slow pairs are slowed down by `factor`, fast ones left; between, a mean of both. */
static double llama3(const RopeScaling *s, double rate) {
    const double rotations = s->original * rate / (2 * PI);     /* of this pair within the original context */
    if (rotations < s->low) return rate / s->factor;
    if (rotations > s->high) return rate;
    const double smooth = (rotations - s->low) / (s->high - s->low);
    return (1 - smooth) * rate / s->factor + smooth * rate;
}
/* The pair, not rounded, that rotates so often within the original context. */
static double pair_of_rotations(const Config *c, double rotations) {
    return rotated(c) * log(c->rope.original / (rotations * 2 * PI)) / (2 * log(c->rope_theta));
}
/* YaRN: the same with a ramp over the pairs' numbers. Source: arXiv 2309.00071. */
static double yarn(const Config *c, double rate, int i) {
    const RopeScaling *s = &c->rope;
    const int R = rotated(c);
    double first = pair_of_rotations(c, s->high), last = pair_of_rotations(c, s->low);
    if (!s->exact) first = floor(first), last = ceil(last);
    if (first < 0) first = 0;
    if (last > R - 1) last = R - 1;
    if (first == last) last += 0.001;
    const double ramp = (i - first) / (last - first), slow = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return slow * rate / s->factor + (1 - slow) * rate;
}

void rope_table(const Device *dev, real *table, const Config *c, int T) {
    enum { ROWS = 1024 };                                       /* positions uploaded at a time */
    const int half = rope_head(c) / 2, R = rotated(c);
    const size_t width = (size_t)rope_head(c);
    double *rate = mem_alloc((size_t)half * sizeof *rate), *rows = mem_alloc(ROWS * width * sizeof *rows);
    for (int i = 0; i < R/2; i++) {
        const double plain = pow(c->rope_theta, -2.0 * i / R);
        rate[i] = c->rope.kind == ROPE_LINEAR ? plain / c->rope.factor
                : c->rope.kind == ROPE_LLAMA3 ? llama3(&c->rope, plain)
                : c->rope.kind == ROPE_YARN   ? yarn(c, plain, i) : plain;
    }
    const double both = c->kv_rank ? 1 : sqrt(config_score_scale(c));       /* of latent attention: latent.c */
    const double turning = c->rope.kind == ROPE_YARN ? both * c->rope.attention : both;
    for (int from = 0; from < T; from += ROWS) {
        const int count = T - from < ROWS ? T - from : ROWS;
        for (int t = 0; t < count; t++)
            for (int i = 0; i < half; i++) {
                const double angle = (double)(from + t) * rate[i], scale = i < R/2 ? turning : both;
                rows[(size_t)t * width + 2 * (size_t)i]     = scale * cos(angle);
                rows[(size_t)t * width + 2 * (size_t)i + 1] = scale * sin(angle);
            }
        dev->reals_from_double((real *)((char *)table + (size_t)from * width * dev->real_size), rows,
                               (size_t)count * width);
    }
    free_each(rate, rows);
}
