/* gradients.c: does a backward compute the gradient of its forward? With L = <dy, y(x)> over the
 * outputs y of the forward, for fixed random dy, it must return dL/dx; that is compared with finite
 * differences of L in double. Buffers find each other by name: dy is what the backward reads for
 * the output y, dx what it writes for the input x.
 *
 * L is differentiated along random directions, which any wrong element of dx changes, and by single
 * elements, which also works where a direction would always make some token choose another
 * expert. */
#include "ops.h"
#include <math.h>

enum { FAMILY = 3 };                    /* a backward and its forwards, in the order in which they run */
static Case *family(Case *c, int i) { return i ? c->forward[i - 1] : c; }

static double *input_of(Case *c, const char *name, size_t *n) {
    const int i = c ? case_find(c, name) : -1;
    if (i < 0 || c->buffer[i].role != INPUT) return NULL;
    *n = c->buffer[i].n;
    return c->buffer[i].value;
}
/* Gives all inputs of this name the same contents. */
static void set_inputs(Case *c, int from, const char *name, const double *value, size_t n) {
    for (int i = from; i < FAMILY; i++) {
        size_t there;
        double *mine = input_of(family(c, i), name, &there);
        if (mine && there == n) memcpy(mine, value, n * sizeof *mine);
    }
}

/* <dy, y> of one output. In two cases a row of dy serves several rows of y: activation_backward has
 * rows of act times their weights; products read one row of dout for the K slots of a token. */
static double product_with(Case *c, const Buffer *y, const double *value) {
    char upstream[32];
    size_t n, m;
    const int act = !strcmp(y->name, "act");
    double sum = 0;
    snprintf(upstream, sizeof upstream, "d%s", act ? "a" : y->name);
    const double *dy = input_of(c, upstream, &n), *weight = input_of(c, "weight", &m),
        *slot = input_of(c, "slot_of_row", &m);
    const size_t width = act ? (size_t)c->F : (size_t)c->O, K = (size_t)c->s.K;
    for (size_t j = 0; dy && j < y->n; j++) {
        const size_t row = width ? j / width : 0;
        const double w = act && weight ? weight[c->from == GROUPED ? (size_t)slot[row] : row] : 1;
        sum += w * value[j] * dy[n < y->n ? row / K * width + j % width : j];
    }
    return sum;
}
/* L, and a number that tells which experts were chosen. Outputs of one forward are inputs of the
 * next; in the first run also those of the backward. */
static double loss_of(Case *c, const Device *dev, int first, double *chosen) {
    double loss = 0;
    *chosen = 0;
    for (int f = 1; f < FAMILY && family(c, f); f++) {
        Case *forward = family(c, f);
        CaseOnDevice p;
        if (!allocate_case(&p, forward, dev)) return NAN;
        case_run(&p);
        dev->sync();
        for (int i = 0; i < forward->buffers; i++) {
            const Buffer *y = &forward->buffer[i];
            if (y->role == INPUT || !y->name) continue;
            double *value = case_read(&p, i);
            loss += product_with(c, y, value);
            for (size_t j = 0; j < y->n && !strcmp(y->name, "expert"); j++) *chosen += value[j] * (double)(j + 1);
            set_inputs(c, first ? 0 : f + 1, y->name, value, y->n);
            free(value);
        }
        case_release(&p);
    }
    return loss;
}

/* dL/dt of L(x + t v) at 0, by central differences; NaN if other experts are chosen on a side. */
typedef struct { Case *c; const Device *dev; const char *name; size_t n; const double *x; double chosen; } Slope;
static double slope(const Slope *s, const double *v, double h) {
    double *moved = mem_alloc(s->n * sizeof *moved), L[2], chosen[2];
    for (int side = 0; side < 2; side++) {
        for (size_t j = 0; j < s->n; j++) moved[j] = s->x[j] + (side ? -h : h) * v[j];
        set_inputs(s->c, 0, s->name, moved, s->n);
        L[side] = loss_of(s->c, s->dev, 0, &chosen[side]);
    }
    set_inputs(s->c, 0, s->name, s->x, s->n);
    free(moved);
    return chosen[0] == s->chosen && chosen[1] == s->chosen ? (L[0] - L[1]) / (2 * h) : NAN;
}
/* The largest error along `tries` random directions, or (elements) of single elements, relative to
 * the slope or the typical one, whichever is larger; counts those that could be checked, at most
 * `enough`. */
static double worst_error(const Slope *s, const double *gradient, int elements, int tries, int enough, int *checked) {
    const double h = elements ? 1e-5 : 1e-4 / sqrt((double)s->n);
    double *v = mem_alloc(s->n * sizeof *v), norm = 0, worst = 0;
    for (size_t j = 0; j < s->n; j++) norm += gradient[j] * gradient[j];
    for (int i = *checked = 0; i < tries && *checked < enough; i++) {
        double expected = 0;
        for (size_t j = 0; j < s->n; j++) v[j] = elements ? 0 : normal();
        if (elements) v[s->n <= (size_t)tries ? (size_t)i % s->n : (size_t)(uniform() * (double)s->n)] = 1;
        for (size_t j = 0; j < s->n; j++) expected += gradient[j] * v[j];
        const double numeric = slope(s, v, h), typical = sqrt(norm / (elements ? (double)s->n : 1)) + 1e-3;
        if (isnan(numeric)) continue;
        const double error = fabs(numeric - expected) / (fabs(numeric) + typical);
        if (!(error <= worst)) worst = error;
        ++*checked;
    }
    free(v);
    return worst;
}
static void check_gradient(const Slope *s, const double *gradient, int elements) {
    enum { DIRECTIONS = 3, ELEMENTS = 30 };
    int checked;
    /* any wrong element shows along any direction; of a large case one takes long */
    double worst = worst_error(s, gradient, 0, DIRECTIONS, elements ? DIRECTIONS : 1, &checked);
    if (checked) check_error(worst, 1e-6, "%s: d%s along %d directions", s->c->what, s->name, checked);
    if (!elements) return;
    worst = worst_error(s, gradient, 1, ELEMENTS, ELEMENTS, &checked);
    check_error(worst, 1e-6, "%s: d%s by finite differences", s->c->what, s->name);
    check(checked >= ELEMENTS / 4, "%s: d%s by finite differences, %d elements", s->c->what, s->name, checked);
}

void check_differences(Case *c, const Device *dev, int elements) {
    Slope s = { .c = c, .dev = dev };
    CaseOnDevice p;
    if (!c->forward[0] || !c->N) return;
    for (int i = 0; i < c->buffers; i++)
        if (c->buffer[i].role == INPUT && c->buffer[i].name)
            set_inputs(c, 1, c->buffer[i].name, c->buffer[i].value, c->buffer[i].n);
    loss_of(c, dev, 1, &s.chosen);
    if (!allocate_case(&p, c, dev)) return;
    case_run(&p);
    dev->sync();
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (b->role == INPUT || !b->name || b->name[0] != 'd') continue;
        const double *x = NULL;
        s.name = b->name + 1;
        for (int f = 0; f < FAMILY && !x; f++) x = input_of(family(c, f), s.name, &s.n);
        if (!x || s.n != b->n) { check(0, "%s: found no input whose gradient is %s", c->what, b->name); continue; }
        double *gradient = case_read(&p, i), *kept = mem_alloc(s.n * sizeof *kept);
        memcpy(kept, x, s.n * sizeof *kept);
        for (size_t j = 0; j < s.n && b->role == UPDATE; j++) gradient[j] -= b->value[j];
        s.x = kept;
        check_gradient(&s, gradient, elements);
        free(gradient), free(kept);
    }
    case_release(&p);
}
