/* attention.c: see layers.h. Backward includes its delta and whatever else it computes first. */
#include "layers.h"
#include "llmc/base/base.h"
#include <stdio.h>
#include <string.h>

typedef struct { const char *name; int B, T, G, Q, D; } Size;
static const Size sizes[] = {
    { "D=128 T=1024",  16, 1024,  16, 1, 128 },
    { "D=128 T=4096",  4,  4096,  16, 1, 128 },
    { "D=128 T=16384", 1,  16384, 16, 1, 128 },
    { "D=64 T=1024",   16, 1024,  16, 1, 64 },
    { "D=64 T=4096",   4,  4096,  16, 1, 64 },
    { "D=64 T=16384",  1,  16384, 16, 1, 64 },
    { "m12",           64, 1024,  6,  2, 64 },                  /* that of m12, 64 sequences */
};
enum { SIZES = sizeof sizes / sizeof *sizes, RUNS = 9 };

typedef struct {
    const Device *dev;
    Size   z;
    floatX *q, *kv, *out, *dout, *dq, *dkv;
    real   *lse;
} Heads;

static floatX *normal(const Device *dev, size_t n) {
    floatX *to = dev->alloc(n * dev->floatX_size);
    if (to) fill_normal(dev, to, n, 1, 1);
    return to;
}
static void heads_close(Heads *h) {
    void *all[] = { h->q, h->kv, h->out, h->dout, h->dq, h->dkv, h->lse };
    for (int i = 0; i < 7; i++) if (all[i]) h->dev->release(all[i]);
}
static int heads_open(Heads *h, const Device *dev, Size z) {
    const size_t rows = (size_t)z.B * (size_t)z.T * (size_t)z.G, Q = (size_t)z.Q, D = (size_t)z.D, X = dev->floatX_size;
    *h = (Heads){ dev, z, normal(dev, rows*Q*D), normal(dev, rows*2*D), dev->alloc(rows*Q*D*X), normal(dev, rows*Q*D),
                  dev->alloc(rows*Q*D*X), dev->alloc(rows*2*D*X), dev->alloc(rows*Q*dev->real_size) };
    return h->q && h->kv && h->out && h->dout && h->dq && h->dkv && h->lse;
}
static void forward(void *heads) {
    const Heads *h = heads;
    h->dev->attention_forward(h->out, h->lse, h->q, h->kv, NULL, HEADS_TILED, h->z.B, h->z.T, h->z.G, h->z.Q, h->z.D);
}
static void backward(void *heads) {
    const Heads *h = heads;
    h->dev->attention_backward(h->dq, h->dkv, h->dout, h->out, h->lse, h->q, h->kv, NULL, HEADS_TILED, h->z.B, h->z.T,
                               h->z.G, h->z.Q, h->z.D);
}

static void time_heads(Heads *h) {
    const Size z = h->z;
    const double flop = 2.0 * z.B * z.G * z.Q * z.D * z.T * (z.T + 1.0) / 1e9;
    const int calls = h->dev->is_gpu ? 10 : 1;                  /* the host runs ahead */
    const double f = calls_ms(h->dev, forward, h, RUNS, calls, 0), b = calls_ms(h->dev, backward, h, RUNS, calls, 0);
    printf("%-13s %2d,%d,%d,%d,%d  %8.3f + %8.3f ms  %6.1f / %6.1f / %6.1f TFLOP/s\n", z.name, z.B, z.T, z.G, z.Q, z.D,
           f, b, flop / f, 2.5 * flop / b, 3.5 * flop / (f + b));
    fflush(stdout);
}

void bench_attention(const Device *dev, const char *filter, int wait) {
    char line[8];
    printf("\ncausal attention on %s: medians of %d; B,T,G,Q,D; TFLOP/s forward / backward / both\n", dev->name, RUNS);
    for (int i = 0; i < SIZES; i++) {
        Size z = sizes[i];
        Heads h;
        if (filter && !strstr(z.name, filter)) continue;
        if (!dev->is_gpu) z.B = 1, z.T = 1024;
        if (!heads_open(&h, dev, z)) printf("%-13s does not fit into this device's memory\n", z.name);
        else do time_heads(&h);
             while (wait && fgets(line, sizeof line, stdin));
        heads_close(&h);
    }
}
