/* steps.c: see layers.h. A step is what train_moe does between two lines of its log: data from the host, forward, loss,
 * backward, update, and one read of what it has left. */
#include "layers.h"
#include "trainee.h"
#include "llmc/run/device.h"
#include "llmc/model/replay.h"
#include <stdio.h>

typedef struct {
    Trainee t;
    Replay batch, update;
    int64_t inside, outside;            /* waits for the device while the step is queued, and to read it */
} Bench;

static void update(void *trainee) {
    Trainee *t = trainee;
    optimizer_update(&t->o, &t->m);
}
static int64_t waits(const Device *dev) { return dev->waits().syncs + dev->waits().reads; }

static double step(Bench *b, int number) {
    Model *m = &b->t.m;
    const Device *dev = m->dev;
    const double start = now();
    const int64_t before = waits(dev);
    trainee_send(&b->t, number);
    model_begin_micro(m, 0);
    replay_run(&b->batch, dev, model_state(m), trainee_learn, m);
    model_end_micro(m, 0);
    replay_run(&b->update, dev, 0, update, &b->t);
    const int64_t queued = waits(dev);
    StepResults f = model_results(m);
    results_free(&f);
    b->inside = queued - before;
    b->outside = waits(dev) - queued;
    return 1e3 * (now() - start);
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
        Bench b = { .batch = { .off = !record }, .update = { .off = !record } };
        double ms[STEPS];
        if (!trainee_open(&b.t, dev, &c, (Lesson){ B, T, 0, 1, REAL, FLOATX, 0, NULL })) printf("does not fit into this device's memory\n");
        else {
            for (int i = 0; i < 3; i++) step(&b, i);        /* plainly, recorded, and once more */
            for (int i = 0; i < STEPS; i++) ms[i] = step(&b, i);
            const double middle = median(ms, STEPS);
            printf("%-9s %9.3f ms (%.3f - %.3f)  %8.0f tokens/s  host waits: %lld inside the model, %lld to read the step\n",
                   record ? "recorded" : "queued", middle, ms[0], ms[STEPS - 1], 1e3 * N / middle,
                   (long long)b.inside, (long long)b.outside);
        }
        replay_free(&b.batch, dev);
        replay_free(&b.update, dev);
        trainee_close(&b.t);
    }
}
