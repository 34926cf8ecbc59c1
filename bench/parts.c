/* parts.c: see layers.h. What each part of a layer saves and costs where backward makes it once
 * more (train_moe -r), beside what the plan of memory says of it: recompute.c's pace is from
 * here. */
#include "layers.h"
#include "tests/model/trainee.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include "llmc/model/recompute.h"
#include <limits.h>
#include <stdio.h>

enum { STEPS = 7 };
/* Seconds of a micro-batch's forward and backward, the median; 0: no memory. */
static double time_of(const Device *dev, const Config *c, TraineeOptions o, double *megabytes, double *loss) {
    Trainee t;
    double seconds[STEPS];
    const int fits = trainee_open(&t, dev, c, o);
    for (int i = -2; i < STEPS && fits; i++) {              /* the first two do not count */
        int bad;
        t.adamw.lr = t.adamw.decay = 0;                     /* all steps are the same */
        trainee_do(&t, 0);
        *loss = trainee_loss(&t, &bad);
        dev->sync();
        const double start = now();
        model_learn(&t.m, 1);
        dev->sync();
        if (i >= 0) seconds[i] = now() - start;
    }
    *megabytes = (double)t.m.arena.total / 1e6;
    trainee_close(&t);
    return fits ? median(seconds, STEPS) : 0;
}

static void parts_of(const Device *dev, const char *descriptor, TraineeOptions o) {
    static const char *const names[] = { "nothing", "norms", "QKV projections", "attention", "output projections",
                                         "up projections", "whole layers",
                                         "nothing" };
    const Config c = trainee_config(descriptor, dev->is_gpu ? 50304 : 256, o.T);
    double kept = 0, before = 0, first = 0;
    Model m;
    model_plan_training(&m, dev, &c, o.B, o.T, NULL, 1, o.gradients, NULL);
    printf("\n%s on %s, %d x %d tokens: forward and backward, median of %d\n%-20s %10s %9s %10s %10s %9s  %s\n",
           descriptor, dev->name, o.B, o.T, STEPS, "once more", "ms", "slower", "estimate", "MB", "less", "loss");
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        double bytes, loss = 0;
        o.recompute = i == 0 || i > LAYER_PARTS + 1 ? recompute_numbered(0) : i > LAYER_PARTS ? recompute_numbered(2)
                    : recompute_parts(1u << (i - 1), INT_MAX);
        const double s = time_of(dev, &c, o, &bytes, &loss);
        if (!s) { printf("%-20s does not fit: %.0f MB\n", names[i], bytes); continue; }
        if (!i) kept = s, before = bytes, first = loss;
        printf("%-20s %10.3f %8.1f%% %9.1f%% %10.1f %9.1f  %s\n", names[i], 1e3 * s, 100 * (s / kept - 1),
               100 * recompute_costs(&m, o.recompute), bytes, before - bytes, loss == first ? "the same bits"
                                                                                            : "ANOTHER");
        fflush(stdout);
    }
    model_free(&m);
}

void bench_parts(const Device *dev) {
    if (!dev->is_gpu) {
        parts_of(dev, "m4:c256e16k4f128", (TraineeOptions){ .B = 1, .T = 512, .gradients = FLOATX });
        parts_of(dev, "d4:c256", (TraineeOptions){ .B = 1, .T = 512, .gradients = FLOATX });
        return;
    }
    parts_of(dev, "m12:e64k8f256", (TraineeOptions){ .B = 32, .T = 1024, .gradients = FLOATX });
    parts_of(dev, "m16:c2048h16e64k8f1024a1",
             (TraineeOptions){ .B = 4, .T = 4096, .gradients = FLOATX, .no_master = 1, .moments = FLOATX });
}
