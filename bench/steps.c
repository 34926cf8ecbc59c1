/* steps.c: see layers.h. A step is what train_moe does between two lines of its log: data from the host, forward, loss,
 * backward, update, and one read of what it has left. */
#include "layers.h"
#include "../llmc/device.h"
#include "../llmc/optim.h"
#include "../llmc/random.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    Model m;
    Optimizer o;
    Replay batch, update;
    int *tokens;
    int64_t inside, outside;            /* waits for the device while the step is queued, and to read it */
} Bench;

static void forward_backward(void *bench) {
    Model *m = &((Bench *)bench)->m;
    model_forward(m);
    model_loss(m, 1.0f / (float)m->N, 1);
    model_router_losses(m);
    model_backward(m, 1);
}
static void update(void *bench) {
    Bench *b = bench;
    optimizer_update(&b->o, &b->m);
}
static int64_t waits(const Device *dev) { return dev->waits().syncs + dev->waits().reads; }

static double step(Bench *b, int number) {
    Model *m = &b->m;
    const Device *dev = m->dev;
    const uint64_t key = (uint64_t)number;
    const double start = now();
    const int64_t before = waits(dev);
    model_send(m, b->tokens, b->tokens + 1, &key, m->B, m->T);
    optimizer_set(&b->o, m, (AdamW){ .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1 });
    model_start_step(m);
    model_begin_micro(m, 0);
    replay_run(&b->batch, dev, model_state(m), forward_backward, b);
    model_end_micro(m, 0);
    replay_run(&b->update, dev, 0, update, b);
    const int64_t queued = waits(dev);
    Found f = model_found(m);
    found_free(&f);
    b->inside = queued - before;
    b->outside = waits(dev) - queued;
    return 1e3 * (now() - start);
}
static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void bench_steps(const Device *dev) {
    enum { STEPS = 9 };
    const char *descriptor = dev->is_gpu ? "m12" : "m4";
    const int B = dev->is_gpu ? 16 : 8, T = dev->is_gpu ? 1024 : 128, N = B * T;
    Config c;
    Error e;
    if (!config_parse(&c, descriptor, &e)) fail(EXIT_USAGE, "%s", e.text);
    c.vocab = dev->is_gpu ? 50304 : 256;
    c.context = T;
    printf("\nTraining steps of %s on %s: B=%d T=%d V=%d, median of %d\n", descriptor, dev->name, B, T, c.vocab, STEPS);
    for (int record = 0; record <= (dev->record_begin != NULL); record++) {
        Bench b = { .batch = { .off = !record }, .update = { .off = !record }, .tokens = mem_alloc((size_t)(N + 1) * sizeof(int)) };
        double ms[STEPS];
        for (int n = 0; n <= N; n++) b.tokens[n] = (int)(random_uniform(1, (uint64_t)n) * c.vocab);
        model_plan_training(&b.m, dev, &c, B, T, 0, 1, NULL);
        optimizer_plan(&b.o, &b.m, 1, REAL_MOMENTS);
        if (!model_allocate(&b.m)) printf("does not fit into this device's memory\n");
        else {
            b.m.balance_coef = 0.01f;
            model_initialize(&b.m, 1);
            optimizer_start(&b.o, &b.m);
            for (int i = 0; i < 3; i++) step(&b, i);        /* plainly, recorded, and once more */
            for (int i = 0; i < STEPS; i++) ms[i] = step(&b, i);
            qsort(ms, STEPS, sizeof *ms, ascending);
            printf("%-9s %9.3f ms (%.3f - %.3f)  %8.0f tokens/s  host waits: %lld inside the model, %lld to read the step\n",
                   record ? "recorded" : "queued", ms[STEPS / 2], ms[0], ms[STEPS - 1], 1e3 * N / ms[STEPS / 2],
                   (long long)b.inside, (long long)b.outside);
        }
        replay_free(&b.batch, dev);
        replay_free(&b.update, dev);
        model_free(&b.m);
        free(b.tokens);
    }
}
