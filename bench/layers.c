/* layers.c: see layers.h. The calls are those of llmc/model/moe.c and llmc/model/attention.c,
 * without a model. */
#define _POSIX_C_SOURCE 200809L
#include "layers.h"
#include "kernels/ladder/ladder.h"
#include "llmc/base/base.h"
#include "llmc/base/random.h"
#include "llmc/model/rope.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The attention layer of a size has the E, K and F of the MLP layer; F is G heads of D = 64 if C is
 * 768, else of D = 128. Its two products thus have the granularity of the MLP's. Sequences have up
 * to 4096 tokens. */
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
    { "OLMoE",       32768, 2048, 1024, 64,  8 },
    { "Qwen3-30B",   65536, 2048, 768,  128, 8 },
};
enum { SIZES = sizeof sizes / sizeof *sizes, MOST = 64 };

typedef struct {
    const Device *dev;
    Size   z;
    int    S;
    Plan   plan;
    int   *expert, *load;
    floatX *x, *up, *down, *pre, *act, *rows, *out;     /* forward; in attention, up is the query, down the output, */
    floatX *dout, *dact, *dpre, *dx, *dup, *ddown;      /* pre the queries, act the result of attention. Backward: */
    real   *weight, *dweight;
    int     heads, B, T, G, D;                                  /* attention (heads 1), and only then: */
    floatX *to_kv, *dto_kv, *kv, *wact, *dkv;
    real   *lse, *rope;
    int    *position;
    /* MLP layers in 8 bits */
    Fp8     x8, dout8, up8, up8_transposed, down8, down8_transposed, act8, dpre8, wact8, left, right;
    Device  limit;                                              /* see find_ceiling */
    void   *owned[MOST];
    int     count;
} Layer;

#ifdef WITH_CUDA
int find_ceiling(Device *limit, const Device *dev) {
    return dev->is_gpu && dev->floatX_size == 2 && ladder_uniform(limit, dev);
}
#else
int find_ceiling(Device *limit, const Device *dev) { (void)limit, (void)dev; return 0; }
#endif

static void *take(Layer *l, size_t bytes) {
    void *p = l->dev->alloc(bytes);
    if (p) l->owned[l->count++] = p;
    return p;
}
void fill_normal(const Device *dev, floatX *to, size_t n, uint64_t key, double scale) {
    enum { SOME = 1048573 };
    double *values = mem_alloc(SOME * sizeof *values);
    const size_t some = n < SOME ? n : SOME, size = dev->floatX_size;
    for (size_t i = 0; i < some; i++) values[i] = scale * random_normal(key, i);
    dev->from_double(to, values, some);
    for (size_t i = some; i < n; i += some)
        dev->copy((char *)to + i * size, to, (n - i < some ? n - i : some) * size);
    free(values);
}
static void fill(Layer *l, floatX *to, size_t n, double scale) {
    fill_normal(l->dev, to, n, 7 + (uint64_t)l->count, scale);
}

static int attention_open(Layer *l) {
    const Device *dev = l->dev;
    const size_t X = dev->floatX_size, Re = dev->real_size, N = (size_t)l->z.N, C = (size_t)l->z.C, F = (size_t)l->z.F;
    l->T = l->z.N < 4096 ? l->z.N : 4096;
    l->B = l->z.N / l->T;
    l->D = C == 768 ? 64 : 128;
    l->G = l->z.F / l->D;
    l->to_kv = take(l, 2*F*C*X);    l->dto_kv = take(l, 2*F*C*X);   l->kv = take(l, N*2*F*X); l->dkv = take(l, N*2*F*X);
    l->wact = take(l, (size_t)l->S*F*X);
    l->lse = take(l, (size_t)(l->S * l->G) * Re);
    l->rope = take(l, (size_t)(l->T * l->D) * Re);
    if (!(l->position = take(l, N * sizeof(int))) || l->count < 29) return 0;
    int *position = mem_alloc(N * sizeof *position);
    for (int n = 0; n < l->z.N; n++) position[n] = n % l->T;
    dev->upload(l->position, position, N * sizeof *position);
    dev->sync();
    free(position);
    rope_table(dev, l->rope, &(Config){ .head_size = l->D, .rope_theta = 10000 }, l->T);
    fill(l, l->to_kv, 2*F*C, 0.02);
    return 1;
}
static int layer_open(Layer *l, const Device *dev, Size z, int heads) {
    *l = (Layer){ .dev = dev, .z = z, .S = z.N * z.K, .heads = heads };
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
    l->weight = take(l, S*Re);   l->dweight = take(l, S*Re);  l->dup = take(l, E*2*F*C*X);
    if (!(l->ddown = take(l, E*C*F*X)) || l->count < 21) return 0;
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
    return !heads || attention_open(l);
}
static void layer_close(Layer *l) { for (int i = 0; i < l->count; i++) l->dev->release(l->owned[i]); }

static void forward(Layer *l) {
    const Device *d = l->dev;
    const int C = l->z.C, F = l->z.F;
    d->route_plan(&l->plan, l->load, l->expert);
    d->expert_up_forward(d, l->pre, l->act, l->x, l->up, &l->plan, SWIGLU, C, F, BY_TOKEN);
    d->parallel_linear_forward(l->rows, l->act, l->down, &l->plan, F, C, GROUPED, GROUPED);
    d->combine_forward(l->out, l->rows, l->weight, NULL, &l->plan, C, GROUPED);
}
static void backward(Layer *l) {
    const Device *d = l->dev;
    const int C = l->z.C, F = l->z.F;
    d->expert_down_backward(d, l->dpre, l->act, l->dweight, l->dact, l->dout, l->down, l->pre, l->weight, &l->plan,
                                SWIGLU, C, F, BY_TOKEN);
    d->parallel_linear_backward_weight(l->ddown, l->dout, l->act, &l->plan, F, C, GROUPED, BY_TOKEN, SET_ROUNDED);
    d->parallel_linear_backward_input(l->rows, l->dpre, l->up, &l->plan, C, 2*F, GROUPED, GROUPED);
    d->parallel_linear_backward_weight(l->dup, l->dpre, l->x, &l->plan, C, 2*F, BY_TOKEN, GROUPED, SET_ROUNDED);
    d->combine_forward(l->dx, l->rows, NULL, NULL, &l->plan, C, GROUPED);
}

/* The same in 8 bits. Weights become codes once a step, so that is not part of the layer. */
static Fp8 take_codes(Layer *l, size_t rows, size_t columns) {
    return (Fp8){ take(l, rows * columns), take(l, rows * columns / FP8_BLOCK * l->dev->real_size) };
}
static Fp8 take_squares(Layer *l, size_t n) {
    return (Fp8){ take(l, n), take(l, n / FP8_BLOCK / FP8_BLOCK * l->dev->real_size) };
}
static void weights8(Layer *l) {
    l->dev->fp8->weight(l->up8, l->up8_transposed, l->up, l->z.E, 2 * l->z.F, l->z.C);
    l->dev->fp8->weight(l->down8, l->down8_transposed, l->down, l->z.E, l->z.C, l->z.F);
}
static int codes_open(Layer *l) {
    const size_t N = (size_t)l->z.N, C = (size_t)l->z.C, F = (size_t)l->z.F, E = (size_t)l->z.E, S = (size_t)l->S;
    const size_t widest = C > 2 * F ? C : 2 * F, blocks = (size_t)fp8_blocks(l->S, l->z.E), before = (size_t)l->count;
    l->x8 = take_codes(l, N, C);                  l->dout8 = take_codes(l, N, C);
    l->up8 = take_squares(l, E*2*F*C);            l->up8_transposed = take_squares(l, E*2*F*C);
    l->down8 = take_squares(l, E*C*F);            l->down8_transposed = take_squares(l, E*C*F);
    l->act8 = take_codes(l, S, F);                l->dpre8 = take_codes(l, S, 2*F);      l->wact8 = take_codes(l, S, F);
    l->left = (Fp8){ take(l, blocks * widest * FP8_BLOCK), take(l, blocks * widest / FP8_BLOCK * l->dev->real_size) };
    l->right = (Fp8){ take(l, blocks * widest * FP8_BLOCK), take(l, blocks * widest / FP8_BLOCK * l->dev->real_size) };
    if ((size_t)l->count != before + 22) return l->x8.code = NULL, 0;
    weights8(l);
    return 1;
}
static void x_codes(Layer *l) { l->dev->fp8->rows(l->x8, l->x, l->z.N, l->z.C); }
static void up_codes(Layer *l) {
    l->dev->fp8->up_forward(l->dev, l->pre, l->act8, l->x8, l->up8, &l->plan, l->z.C, l->z.F);
}
static void down_codes(Layer *l) { l->dev->fp8->linear(l->dev, l->rows, l->act8, l->down8, &l->plan, l->z.F, l->z.C); }
static void dout_codes(Layer *l) { l->dev->fp8->rows(l->dout8, l->dout, l->z.N, l->z.C); }
static void down_backward_codes(Layer *l) {
    l->dev->fp8->down_backward(l->dev, NULL, l->dpre8, NULL, l->wact8, l->dweight, l->dout8, l->down8_transposed,
                              l->pre, l->weight, &l->plan, l->z.C, l->z.F);
}
static void dout_columns(Layer *l) { l->dev->fp8->columns(l->left, l->dout8, &l->plan, l->z.C, BY_TOKEN); }
static void wact_columns(Layer *l) { l->dev->fp8->columns(l->right, l->wact8, &l->plan, l->z.F, GROUPED); }
static void ddown_codes(Layer *l) {
    l->dev->fp8->backward_weight(l->dev, l->ddown, l->left, l->right, &l->plan, l->z.F, l->z.C, SET_ROUNDED);
}
static void up_input_codes(Layer *l) {
    l->dev->fp8->linear(l->dev, l->rows, l->dpre8, l->up8_transposed, &l->plan, 2*l->z.F, l->z.C);
}
static void dpre_columns(Layer *l) { l->dev->fp8->columns(l->left, l->dpre8, &l->plan, 2*l->z.F, GROUPED); }
static void x_columns(Layer *l) { l->dev->fp8->columns(l->right, l->x8, &l->plan, l->z.C, BY_TOKEN); }
static void dup_codes(Layer *l) {
    l->dev->fp8->backward_weight(l->dev, l->dup, l->left, l->right, &l->plan, l->z.C, 2*l->z.F, SET_ROUNDED);
}
static void forward8(Layer *l) {
    l->dev->route_plan(&l->plan, l->load, l->expert);
    x_codes(l), up_codes(l), down_codes(l);
    l->dev->combine_forward(l->out, l->rows, l->weight, NULL, &l->plan, l->z.C, GROUPED);
}
static void backward8(Layer *l) {
    dout_codes(l), down_backward_codes(l);
    dout_columns(l), wact_columns(l), ddown_codes(l);
    up_input_codes(l);
    dpre_columns(l), x_columns(l), dup_codes(l);
    l->dev->combine_forward(l->dx, l->rows, NULL, NULL, &l->plan, l->z.C, GROUPED);
}

static void attention_forward(Layer *l) {
    const Device *d = l->dev;
    const int N = l->z.N, C = l->z.C, F = l->z.F, G = l->G, K = l->z.K, D = l->D;
    d->route_plan(&l->plan, l->load, l->expert);
    d->parallel_linear_forward(l->pre, l->x, l->up, &l->plan, C, F, BY_TOKEN, BY_SLOT);
    d->matmul_forward(l->kv, l->x, l->to_kv, N, C, 2*F);
    d->rope(l->pre, l->rope, l->position, +1, N, K*F, K*G, D);
    d->rope(l->kv, l->rope, l->position, +1, N, 2*F, G, D);
    d->attention_forward(l->act, l->lse, l->pre, l->kv, NULL, HEADS_TILED, l->B, l->T, G, K, D);
    d->parallel_linear_forward(l->rows, l->act, l->down, &l->plan, F, C, BY_SLOT, GROUPED);
    d->combine_forward(l->out, l->rows, l->weight, NULL, &l->plan, C, GROUPED);
}
static void attention_backward(Layer *l) {
    const Device *d = l->dev;
    const int N = l->z.N, C = l->z.C, F = l->z.F, G = l->G, K = l->z.K, D = l->D;
    d->parallel_linear_backward_input(l->dact, l->dout, l->down, &l->plan, F, C, BY_SLOT, BY_TOKEN);
    d->activation_backward(l->dact, l->wact, l->dweight, l->dact, l->act, l->weight, &l->plan, BY_SLOT,
                           IDENTITY, l->S, F);
    d->parallel_linear_backward_weight(l->ddown, l->dout, l->wact, &l->plan, F, C, BY_SLOT, BY_TOKEN, SET_ROUNDED);
    d->attention_backward(l->dpre, l->dkv, l->dact, l->act, l->lse, l->pre, l->kv, NULL, HEADS_TILED, l->B,
                          l->T, G, K, D);
    d->rope(l->dpre, l->rope, l->position, -1, N, K*F, K*G, D);
    d->rope(l->dkv, l->rope, l->position, -1, N, 2*F, G, D);
    d->parallel_linear_backward_input(l->rows, l->dpre, l->up, &l->plan, C, F, GROUPED, BY_SLOT);
    d->parallel_linear_backward_weight(l->dup, l->dpre, l->x, &l->plan, C, F, BY_TOKEN, BY_SLOT, SET_ROUNDED);
    d->combine_forward(l->dx, l->rows, NULL, NULL, &l->plan, C, GROUPED);
    d->matmul_backward_input(l->dx, l->dkv, l->to_kv, N, C, 2*F, ADD);
    d->matmul_backward_weight(l->dto_kv, l->dkv, l->x, N, C, 2*F, SET_ROUNDED);
}

/* The upper limit: the routed products of a layer alone, of equal groups and with all rows in order
 * (ladder_uniform). */
static void uniform_forward(Layer *l) {
    const int C = l->z.C, F = l->z.F, O = l->heads ? F : 2*F;
    l->limit.parallel_linear_forward(l->pre, l->rows, l->up, &l->plan, C, O, GROUPED, GROUPED);
    l->limit.parallel_linear_forward(l->rows, l->act, l->down, &l->plan, F, C, GROUPED, GROUPED);
}
static void uniform_backward(Layer *l) {
    const int C = l->z.C, F = l->z.F, O = l->heads ? F : 2*F;
    l->limit.parallel_linear_backward_input(l->dact, l->rows, l->down, &l->plan, F, C, GROUPED, GROUPED);
    l->limit.parallel_linear_backward_weight(l->ddown, l->rows, l->act, &l->plan, F, C, GROUPED, GROUPED, SET_ROUNDED);
    l->limit.parallel_linear_backward_input(l->rows, l->dpre, l->up, &l->plan, C, O, GROUPED, GROUPED);
    l->limit.parallel_linear_backward_weight(l->dup, l->dpre, l->rows, &l->plan, C, O, GROUPED, GROUPED, SET_ROUNDED);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return x[n / 2];
}
/* Median ms of each work. Runs alternate, so that all have the same clocks. */
enum { WORKS = 7, RUNS = 9 };
typedef void Part(Layer *);
static void time_works(Layer *l, Part *const work[WORKS], double ms[WORKS]) {
    double took[WORKS][RUNS];
    for (int run = -2; run < RUNS; run++)                       /* two to warm up */
        for (int w = 0; w < WORKS; w++) {
            if (!work[w]) continue;
            const double start = now();
            work[w](l);
            l->dev->sync();
            if (run >= 0) took[w][run] = 1e3 * (now() - start);
        }
    for (int w = 0; w < WORKS; w++) ms[w] = work[w] ? median(took[w], RUNS) : 0;
}
double calls_ms(const Device *d, void (*work)(void *), void *of, int runs, int calls, double rest) {
    double *ms = mem_alloc((size_t)runs * sizeof *ms), *at = mem_alloc((size_t)(runs + 1) * sizeof *at);
    for (int i = -1; i < runs; i++) {
        for (int c = 0; c < calls; c++) work(of);
        if (i < 0 && rest > 0) { d->sync(); nanosleep(&(struct timespec){ .tv_nsec = (long)(rest * 1e9) }, NULL); }
        if (d->mark) d->mark(i + 1);
        else at[i + 1] = now();
    }
    d->sync();
    for (int i = 0; i < runs; i++) ms[i] = 1e3 / calls * (d->mark ? d->elapsed(i, i + 1) : at[i + 1] - at[i]);
    const double middle = median(ms, runs);
    free(ms), free(at);
    return middle;
}
/* Timed as bench/peers.py times the others, after a rest: a GPU that has rested may draw more power
 * for a while. */
typedef struct { Layer *l; Part *first, *second; } Pair;
static void run_pair(void *pair) {
    const Pair *p = pair;
    p->first(p->l);
    if (p->second) p->second(p->l);
}
static double rested_ms(Layer *l, Part *first, Part *second) {
    return calls_ms(l->dev, run_pair, &(Pair){ l, first, second }, 5, 1, 30e-3);
}
/* GFLOP of the forward and of the backward pass. */
static void work_of(const Layer *l, double *forward_work, double *backward_work) {
    const double products = 2.0 * l->S * l->z.F * l->z.C * (l->heads ? 2 : 3)
        + (l->heads ? 4.0 * l->z.N * l->z.C * l->z.F : 0);
    const double pairs = l->heads ? (double)l->S * l->G * (l->T + 1.0) / 2 : 0;     /* of a query and a visible key */
    *forward_work = (products + 4 * pairs * l->D) / 1e9;
    *backward_work = (2 * products + 10 * pairs * l->D) / 1e9;
}

/* The operations of the layer in 8 bits, alone: products in TFLOP/s, the others in bytes. products:
 * of S*F*C. */
static void run_part(void *pair) { ((Pair *)pair)->first(((Pair *)pair)->l); }
static void print_parts8(Layer *l) {
    const double N = l->z.N, C = l->z.C, F = l->z.F, S = l->S, W = 3.0 * l->z.E * C * F;
    const struct { const char *name; Part *part; double products, bytes; } parts[] = {
        { "weights to codes", weights8, 0, 4 * W },             { "x to codes", x_codes, 0, 3 * N * C },
        { "up", up_codes, 2, 0 },                               { "down", down_codes, 1, 0 },
        { "dout to codes", dout_codes, 0, 3 * N * C },          { "down backward", down_backward_codes, 1, 0 },
        { "dout to columns", dout_columns, 0, 2 * S * C },      { "wact to columns", wact_columns, 0, 2 * S * F },
        { "ddown", ddown_codes, 1, 0 },                         { "up backward input", up_input_codes, 2, 0 },
        { "dpre to columns", dpre_columns, 0, 4 * S * F },      { "x to columns", x_columns, 0, 2 * S * C },
        { "dup", dup_codes, 2, 0 },
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const double ms = calls_ms(l->dev, run_part, &(Pair){ l, parts[i].part, NULL }, 5, 3, 0);
        printf("%-12s   %-20s %8.3f ms", "", parts[i].name, ms);
        if (parts[i].products > 0) printf("  %7.1f TFLOP/s\n", 2 * parts[i].products * S * F * C / 1e9 / ms);
        else printf("  %7.2f TB/s\n", parts[i].bytes / 1e9 / ms);
    }
}
/* How far results in 8 bits are from those in floatX: |difference| / |floatX|, of the first
 * elements of each. */
static void print_differences(Layer *l, Part *f, Part *b) {
    enum { SOME = 1 << 20, RESULTS = 5 };
    const Device *d = l->dev;
    const size_t N = (size_t)l->z.N, C = (size_t)l->z.C, W = (size_t)l->z.E * (size_t)l->z.F * C;
    const struct { const char *name; const void *x; size_t n; int reals; } of[RESULTS] = {
        { "out", l->out, N * C, 0 }, { "dx", l->dx, N * C, 0 }, { "dweight", l->dweight, (size_t)l->S, 1 },
        { "ddown", l->ddown, W, 0 }, { "dup", l->dup, 2 * W, 0 } };
    double *x[2][RESULTS];
    for (int bits8 = 0; bits8 < 2; bits8++) {
        (bits8 ? forward8 : f)(l), (bits8 ? backward8 : b)(l);
        for (int i = 0; i < RESULTS; i++) {
            const size_t n = of[i].n < SOME ? of[i].n : SOME, from = of[i].n - n;
            x[bits8][i] = mem_alloc(n * sizeof(double));
            if (of[i].reals)
                d->reals_to_double(x[bits8][i], (const real *)((const char *)of[i].x + from * d->real_size), n);
            else d->to_double(x[bits8][i], (const floatX *)((const char *)of[i].x + from * d->floatX_size), n);
        }
    }
    printf("%-12s   differs by", "");
    for (int i = 0; i < RESULTS; i++) {
        const size_t n = of[i].n < SOME ? of[i].n : SOME;
        double square = 0, full = 0;
        for (size_t j = 0; j < n; j++)
            square += (x[1][i][j] - x[0][i][j]) * (x[1][i][j] - x[0][i][j]), full += x[0][i][j] * x[0][i][j];
        printf("  %s %.4f", of[i].name, sqrt(square / full));
        free(x[0][i]), free(x[1][i]);
    }
    putchar('\n');
}

static void time_layer(Layer *l, int ceiling, int rested) {
    double ms[WORKS], f_work, b_work;
    const Size z = l->z;
    const int codes = l->dev->is_gpu && !l->heads && l->dev->fp8 && l->dev->fp8->fits(z.C, z.F)
        && (l->x8.code || codes_open(l));
    Part *const f = l->heads ? attention_forward : forward, *const b = l->heads ? attention_backward : backward;
    if (rested) {
        ms[0] = rested_ms(l, f, NULL), ms[1] = rested_ms(l, f, b) - ms[0];
        if (codes) ms[4] = rested_ms(l, forward8, NULL), ms[5] = rested_ms(l, forward8, backward8) - ms[4];
    } else
        time_works(l, (Part *const[WORKS]){ f, b, ceiling ? uniform_forward : NULL, ceiling ? uniform_backward : NULL,
                    codes ? forward8 : NULL, codes ? backward8 : NULL, codes ? weights8 : NULL }, ms);
    work_of(l, &f_work, &b_work);
    printf("%-12s %6d,%d,%d,%d,%d  %8.3f + %8.3f ms  %6.1f / %6.1f / %6.1f TFLOP/s", z.name, z.N, z.C, z.F, z.E, z.K,
           ms[0], ms[1], f_work / ms[0], b_work / ms[1], (f_work + b_work) / (ms[0] + ms[1]));
    if (ceiling)
        printf("  cuBLAS %8.3f + %8.3f ms, %.0f / %.0f %% of it", ms[2], ms[3], 100 * ms[2] / ms[0],
               100 * ms[3] / ms[1]);
    if (codes && rested) printf("  in 8 bits %8.3f + %8.3f ms", ms[4], ms[5]);
    putchar('\n');
    if (codes && !rested)
        printf("%-12s in 8 bits             %8.3f + %8.3f ms  %6.1f / %6.1f / %6.1f TFLOP/s  %.2f times as fast; "
               "weights to codes %.3f ms\n",
               "", ms[4], ms[5], f_work / ms[4], b_work / ms[5], (f_work + b_work) / (ms[4] + ms[5]),
               (ms[0] + ms[1]) / (ms[4] + ms[5]), ms[6]);
    if (codes && !rested) {
        printf("%-12s   %d rows an expert: forward with the coding of all weights %.2f, backward %.2f times as fast\n",
               "", l->S / z.E, ms[0] / (ms[4] + ms[6]), ms[1] / ms[5]);
        print_parts8(l), print_differences(l, f, b);
    }
    fflush(stdout);
}

void bench_layers(const Device *dev, int heads, const char *filter, int shrink, int wait) {
    char line[8];

    printf("\n%s layer on %s: median of %d; N,C,F,E,K; TFLOP/s forward / backward / both\n",
           heads ? "Mixture-of-attention" : "SMoE MLP", dev->name, RUNS);
    for (int i = 0; i < SIZES; i++) {
        Layer l;
        Size z = sizes[i];
        if (filter && !strstr(z.name, filter)) continue;
        z.N /= shrink;
        if (!layer_open(&l, dev, z, heads)) printf("%-12s does not fit into this device's memory\n", z.name);
        else {
            const int ceiling = find_ceiling(&l.limit, dev) && !wait;
            do time_layer(&l, ceiling, wait);
            while (wait && fgets(line, sizeof line, stdin));
        }
        fflush(stdout);
        layer_close(&l);
    }
}

static void both(void *layer, const Device *dev) {
    Layer *l = layer;
    l->dev = dev;
    forward(l);
    backward(l);
}
void bench_layer_parts(const Device *dev, const char *filter, int shrink, double product_rate, const Copies *copies) {
    for (int i = 0; i < SIZES; i++) {
        Layer l;
        Size z = sizes[i];
        if (filter && !strstr(z.name, filter)) continue;
        z.N /= shrink;
        if (!layer_open(&l, dev, z, 0)) printf("%-12s does not fit into this device's memory\n", z.name);
        else {
            const Listed work = { .work = &l, .run = both, .spare = l.dup,
                                  .spare_bytes = (size_t)z.E * 2 * (size_t)(z.F * z.C) * dev->floatX_size };
            const double ms = 1e3 * time_operations(dev, &work, copies);
            printf("\n%s: N,C,F,E,K = %d,%d,%d,%d,%d, forward and backward %.3f ms, %.1f TFLOP/s\n", z.name, z.N, z.C,
                   z.F, z.E, z.K, ms, 18.0 * l.S * z.F * z.C / 1e9 / ms);
            print_operations(product_rate, copies);
        }
        l.dev = dev;
        layer_close(&l);
    }
}
