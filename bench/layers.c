/* layers.c: see layers.h. The calls are those of llmc/moe.c, on buffers of our own. */
#include "layers.h"
#include "../llmc/base.h"
#include "../llmc/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *name; int N, C, F, E, K; } Size;
static const Size sizes[] = {
    { "1.4B n=256",  40960, 768,  256,  128, 8 },
    { "1.4B n=512",  40960, 768,  512,  64,  4 },
    { "1.4B n=1024", 40960, 768,  1024, 32,  2 },
    { "7B n=256",    24576, 1536, 256,  128, 8 },
    { "7B n=512",    24576, 1536, 512,  64,  4 },
    { "7B n=1024",   24576, 1536, 1024, 32,  2 },
    { "30B n=256",   32768, 4096, 256,  256, 16 },
    { "30B n=512",   32768, 4096, 512,  128, 8 },
    { "30B n=1024",  32768, 4096, 1024, 64,  4 },
    { "120B n=512",  32768, 4096, 512,  256, 16 },
    { "120B n=1024", 32768, 4096, 1024, 128, 8 },
    { "120B n=2048", 32768, 4096, 2048, 64,  4 },
};
enum { SIZES = sizeof sizes / sizeof *sizes, MOST = 40 };

typedef struct {
    const Device *dev;
    Size   z;
    int    S;
    Plan   plan;
    int   *expert, *load;
    floatX *x, *up, *down, *pre, *act, *rows, *out;             /* forward */
    floatX *dout, *dact, *dpre, *dx;                            /* backward */
    real   *weight, *dweight, *dup, *ddown;
    void   *owned[MOST];
    int     count;
} Layer;

static void *take(Layer *l, size_t bytes) {
    void *p = l->dev->alloc(bytes);
    if (p) l->owned[l->count++] = p;
    return p;
}
/* Normal numbers, a megabyte of them again and again: enough to be random, fast enough to make. */
static void fill(Layer *l, void *to, size_t n, double scale) {
    enum { SOME = 1 << 20 };
    double *values = mem_alloc(SOME * sizeof *values);
    const size_t some = n < SOME ? n : SOME, size = l->dev->floatX_size;
    for (size_t i = 0; i < some; i++) values[i] = scale * random_normal(7 + (uint64_t)l->count, i);
    l->dev->from_double(to, values, some);
    for (size_t i = some; i < n; i += some)
        l->dev->copy((char *)to + i * size, to, (n - i < some ? n - i : some) * size);
    free(values);
}

static int layer_open(Layer *l, const Device *dev, Size z) {
    *l = (Layer){ .dev = dev, .z = z, .S = z.N * z.K };
    const size_t X = dev->floatX_size, Re = dev->real_size, N = (size_t)z.N, C = (size_t)z.C, F = (size_t)z.F;
    const size_t E = (size_t)z.E, S = (size_t)l->S;
    l->plan = (Plan){ .N = z.N, .E = z.E, .K = z.K, .S = l->S,
                      .start = take(l, (E + 1) * sizeof(int)), .slot_of_row = take(l, S * sizeof(int)),
                      .token_of_row = take(l, S * sizeof(int)), .row_of_slot = take(l, S * sizeof(int)) };
    l->expert = take(l, S * sizeof(int));
    l->load = take(l, E * sizeof(int));
    l->x = take(l, N*C*X);       l->up = take(l, E*2*F*C*X);  l->down = take(l, E*C*F*X);  l->pre = take(l, S*2*F*X);
    l->act = take(l, S*F*X);     l->rows = take(l, S*C*X);    l->out = take(l, N*C*X);
    l->dout = take(l, N*C*X);    l->dact = take(l, S*F*X);    l->dpre = take(l, S*2*F*X);  l->dx = take(l, N*C*X);
    l->weight = take(l, S*Re);   l->dweight = take(l, S*Re);  l->dup = take(l, E*2*F*C*Re);
    if (!(l->ddown = take(l, E*C*F*Re)) || l->count < 21) return 0;
    fill(l, l->x, N*C, 0.2);
    fill(l, l->dout, N*C, 0.2);
    fill(l, l->up, E*2*F*C, 0.02);
    fill(l, l->down, E*C*F, 0.02);
    int *expert = mem_alloc(S * sizeof *expert);
    double *weight = mem_alloc(S * sizeof *weight);
    for (size_t n = 0; n < N; n++)                              /* K different experts at random for each token */
        for (size_t k = 0; k < (size_t)z.K; k++) {
            int e, again;
            uint64_t draw = n * 64 + k;
            do {
                e = (int)(random_uniform(99, draw) * z.E);
                draw += 1u << 30;
                again = 0;
                for (size_t j = 0; j < k; j++) again |= expert[n * (size_t)z.K + j] == e;
            } while (again);
            expert[n * (size_t)z.K + k] = e;
            weight[n * (size_t)z.K + k] = 1.0 / z.K;
        }
    dev->upload(l->expert, expert, S * sizeof *expert);
    dev->reals_from_double(l->weight, weight, S);
    free(expert);
    free(weight);
    return 1;
}
static void layer_close(Layer *l) { for (int i = 0; i < l->count; i++) l->dev->release(l->owned[i]); }

static void forward(Layer *l) {
    const Device *d = l->dev;
    const int C = l->z.C, F = l->z.F;
    d->route_plan(&l->plan, l->load, l->expert);
    if (d->expert_up_forward) d->expert_up_forward(l->pre, l->act, l->x, l->up, &l->plan, SWIGLU, C, F, BY_TOKEN);
    else {
        d->parallel_linear_forward(l->pre, l->x, l->up, NULL, &l->plan, C, 2*F, BY_TOKEN, GROUPED);
        d->activation_forward(l->act, l->pre, SWIGLU, l->S, F);
    }
    d->parallel_linear_forward(l->rows, l->act, l->down, NULL, &l->plan, F, C, GROUPED, GROUPED);
    d->combine_forward(l->out, l->rows, l->weight, NULL, &l->plan, C, GROUPED);
}
static void backward(Layer *l) {
    const Device *d = l->dev;
    const int C = l->z.C, F = l->z.F;
    if (d->expert_down_backward)
        d->expert_down_backward(l->dpre, l->act, l->dweight, l->dact, l->dout, l->down, l->pre, l->weight, &l->plan, SWIGLU, C, F,
                                BY_TOKEN);
    else {
        d->parallel_linear_backward_input(l->dact, l->dout, l->down, &l->plan, F, C, GROUPED, BY_TOKEN);
        d->activation_backward(l->dpre, l->act, l->dweight, l->dact, l->pre, l->weight, &l->plan, GROUPED, SWIGLU, l->S, F);
    }
    d->parallel_linear_backward_weight(l->ddown, NULL, l->dout, l->act, &l->plan, F, C, GROUPED, BY_TOKEN, SET);
    d->parallel_linear_backward_input(l->rows, l->dpre, l->up, &l->plan, C, 2*F, GROUPED, GROUPED);
    d->parallel_linear_backward_weight(l->dup, NULL, l->dpre, l->x, &l->plan, C, 2*F, BY_TOKEN, GROUPED, SET);
    d->combine_forward(l->dx, l->rows, NULL, NULL, &l->plan, C, GROUPED);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return x[n / 2];
}
static double median_ms(Layer *l, void (*work)(Layer *)) {
    enum { RUNS = 9 };
    double ms[RUNS];
    work(l);
    work(l);
    l->dev->sync();
    for (int i = 0; i < RUNS; i++) {
        const double start = now();
        work(l);
        l->dev->sync();
        ms[i] = 1e3 * (now() - start);
    }
    return median(ms, RUNS);
}

void bench_layers(const Device *dev, const char *filter, int shrink) {
    printf("\nSMoE MLP layer on %s: median of 9; N,C,F,E,K; TFLOP/s forward / backward / both\n", dev->name);
    for (int i = 0; i < SIZES; i++) {
        Layer l;
        Size z = sizes[i];
        if (filter && !strstr(z.name, filter)) continue;
        z.N /= shrink;
        if (!layer_open(&l, dev, z)) printf("%-12s does not fit into this device's memory\n", z.name);
        else {
            const double work = 6.0 * l.S * z.F * z.C / 1e9, f = median_ms(&l, forward), b = median_ms(&l, backward);
            printf("%-12s %6d,%d,%d,%d,%d  %8.3f + %8.3f ms  %6.1f / %6.1f / %6.1f TFLOP/s\n",
                   z.name, z.N, z.C, z.F, z.E, z.K, f, b, work / f, 2 * work / b, 3 * work / (f + b));
        }
        fflush(stdout);
        layer_close(&l);
    }
}
