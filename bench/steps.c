/* steps.c: see layers.h. A step is what train_moe does between two lines of its log: data from the
 * host, forward, loss, backward, update, and one read of the results. */
#include "layers.h"
#include "llmc/model/batch.h"
#include "tests/model/trainee.h"
#include <stdio.h>

static int64_t waits(const Device *dev) { return dev->waits().syncs + dev->waits().reads; }

/* Waits of the host for the device: while the step is queued, and to read what it has left. */
typedef struct { int64_t inside, outside; } Waited;
static double step(Trainee *t, Waited *w) {
    const Device *dev = t->m.dev;
    const int64_t before = waits(dev);
    const double start = now();
    trainee_do(t, 0);
    const int64_t queued = waits(dev);
    StepResults r = model_results(&t->m);
    results_free(&r);
    *w = (Waited){ queued - before, waits(dev) - queued };
    return 1e3 * (now() - start);
}

void bench_steps(const Device *dev) {
    enum { STEPS = 9 };
    const char *descriptor = dev->is_gpu ? "m12" : "m4";
    const int B = dev->is_gpu ? 16 : 8, T = dev->is_gpu ? 1024 : 128, N = B * T;
    const Config c = trainee_config(descriptor, dev->is_gpu ? 50304 : 256, T);
    printf("\nTraining steps of %s on %s: B=%d T=%d V=%d, median of %d\n", descriptor, dev->name, B, T, c.vocab, STEPS);
    for (int record = 0; record <= (dev->record_begin != NULL); record++) {
        Trainee t;
        Waited w;
        double ms[STEPS];
        if (!trainee_open(&t, dev, &c,
                          (TraineeOptions){ .B = B, .T = T, .gradients = FLOATX, .record = record, .balance = 0.01f }))
            printf("does not fit into this device's memory\n");
        else {
            t.adamw.lr = 1e-4f;        /* routing stays as it is at the start: timings compare the same loads */
            for (int i = 0; i < 3; i++) step(&t, &w);        /* plainly, recorded, and once more */
            for (int i = 0; i < STEPS; i++) ms[i] = step(&t, &w);
            const double middle = median(ms, STEPS);
            printf("%-9s %9.3f ms (%.3f - %.3f)  %8.0f tokens/s  host waits: %lld inside the model, %lld to "
                   "read the step\n", record ? "recorded" : "queued", middle, ms[0], ms[STEPS - 1], 1e3 * N / middle,
                   (long long)w.inside, (long long)w.outside);
        }
        trainee_close(&t);
    }
}
