/* test_fp8.c: training with experts, or the head, in 8 bits (-pe). Single operations: tests/ops. */
#include "models.h"
#include "trainee.h"
#include "tests/test.h"
#include "llmc/model/batch.h"
#include "llmc/model/fp8.h"
#include "llmc/model/pass.h"
#include "llmc/model/recompute.h"
#include <math.h>

static Config config_of(const char *descriptor, int fp8) {
    Config c = trainee_config(descriptor, 29, 64);
    return c.fp8 = fp8, c;
}
static TraineeOptions options(int recompute, int micro_batches) {
    return (TraineeOptions){ .B = 2, .T = 64, .recompute = recompute_numbered(recompute),
                             .micro_batches = micro_batches, .gradients = FLOATX, .seed = 3, .balance = 0.01f };
}
static void open_model(Trainee *t, const Device *dev, const Config *c) {
    check(trainee_open(t, dev, c, options(0, 1)), "memory");
}
/* Of one step, with the head in chunks of head_rows (0: as planned). free() it. */
static double *gradients(const Device *dev, const Config *c, int head_rows, double *loss) {
    Trainee t;
    int bad;
    open_model(&t, dev, c);
    if (head_rows) t.m.head_rows = head_rows;
    trainee_do(&t, 0);
    *loss = trainee_loss(&t, &bad);
    double *g = trainee_gradients(&t);
    trainee_close(&t);
    return g;
}

/* Codes are wrong by up to a sixteenth of a value, a fiftieth on average, and a gradient passes
 * several. One layer: in a second one a few tokens would choose other experts. Without a gradient
 * of weights in 8 bits those of the experts are closer. */
static void near(const Device *dev, const char *what) {
    const Config exact = config_of("m1:c128h4e4k2f256a8x2n0", 0), c = config_of("m1:c128h4e4k2f256a8x2n0", FP8_ALL);
    double loss[2], *want = gradients(dev, &exact, 0, &loss[0]), *got = gradients(dev, &c, 0, &loss[1]);
    Trainee t;
    open_model(&t, dev, &exact);
    check_error(fabs(loss[1] - loss[0]), 1e-2, "%s %s: loss of a step in 8 bits", dev->name, what);
    for (int i = 0; i < t.m.manifest.count; i++) {
        const Tensor *x = &t.m.manifest.at[i];
        const double error = relative_error(got + x->offset, want + x->offset, x->count);
        const int of_experts = strstr(x->name, "mlp.input") || strstr(x->name, "mlp.output");
        check_error(error, 0.12, "%s %s: gradient of %s in 8 bits", dev->name, what, x->name);
        if (of_experts) check(error > 0.005, "%s %s: gradient of %s is that of 8 bits, %.1e from that of more",
                              dev->name, what, x->name, error);
    }
    trainee_close(&t), free(want), free(got);
}

/* The same for the head: at once, and in chunks, of which the last is shorter. */
static void head(const Device *dev, const char *what) {
    Config exact = trainee_config("m1:c128h4e4k2f128n0", 128, 64), c = exact;
    c.fp8_head = 1;
    double loss[2], *want = gradients(dev, &exact, 0, &loss[0]);
    Trainee t;
    open_model(&t, dev, &exact);
    for (int rows = 0; rows <= 48; rows += 48) {
        double *got = gradients(dev, &c, rows, &loss[1]);
        check(loss[0] != loss[1], "%s %s: the head is in 8 bits", dev->name, what);
        check_error(fabs(loss[1] - loss[0]), 1e-2, "%s %s: loss with a head in 8 bits", dev->name, what);
        for (int i = 0; i < t.m.manifest.count; i++) {
            const Tensor *x = &t.m.manifest.at[i];
            const double error = relative_error(got + x->offset, want + x->offset, x->count);
            check_error(error, 0.06, "%s %s: gradient of %s with a head in 8 bits", dev->name, what, x->name);
            check(error > 0.005, "%s %s: gradient of %s: %.1e from that of more bits", dev->name, what, x->name,
                  error);
        }
        free(got);
    }
    trainee_close(&t), free(want);
}

static uint64_t trained(const Config *c, int recompute, int micro_batches) {
    return trainee_trained(device_find("cpu-f32"), c, options(recompute, micro_batches), 3);
}
static void recomputing(const char *descriptor) {
    const Config c = config_of(descriptor, FP8_ALL), exact = config_of(descriptor, 0);
    const uint64_t kept = trained(&c, 0, 2);
    check(kept == trained(&c, 1, 2) && kept == trained(&c, 2, 2),
          "%s: in 8 bits recomputing gives the same bits as keeping", descriptor);
    check(kept != trained(&exact, 0, 2), "%s: 8 bits are not the default", descriptor);
}

/* A validation does not compute in 8 bits; what the forward leaves for the backward is the same. */
static void beside(const Device *dev, int of_head) {
    Config configs[2];
    for (int i = 0; i < 2; i++) configs[i] = trainee_config("m2:c128h4e4k2f128a4x2n0", of_head ? 128 : 29, 64);
    configs[1].fp8 = of_head ? 0 : FP8_ALL, configs[1].fp8_head = of_head;
    double loss[2][2];
    size_t kept[2];
    for (int fp8 = 0; fp8 < 2; fp8++) {
        Trainee t;
        int bad;
        open_model(&t, dev, &configs[fp8]);
        t.adamw.lr = t.adamw.decay = 0;
        kept[fp8] = t.m.arena.category[MEM_KEPT];
        for (int trains = 0; trains < 2; trains++) {
            t.m.fp8 = trains;
            trainee_send(&t, 0);
            if (trains) trainee_step(&t);
            else {
                model_begin_micro(&t.m, 0);
                model_forward(&t.m);
                model_loss(&t.m, 0);
                model_end_micro(&t.m, 0);
            }
            loss[fp8][trains] = trainee_loss(&t, &bad);
        }
        trainee_close(&t);
    }
    check(loss[0][0] == loss[1][0] && loss[0][1] != loss[1][1], "%s: 8 bits are for training only", dev->name);
    check(kept[0] == kept[1], "%s: in 8 bits the forward keeps %zu bytes, else %zu", dev->name, kept[1], kept[0]);
}

/* One pass in 8 bits: the loss is that of its forward pass; gradients of experts differ from both
 * in bf16 and both in 8 bits. */
static void one_pass(const Device *dev) {
    double loss[4], *g[4];
    for (int passes = 0; passes < 4; passes++) {
        const Config c = config_of("m1:c128h4e4k2f128a4x2n0", passes);
        g[passes] = gradients(dev, &c, 0, &loss[passes]);
    }
    check(loss[FP8_FORWARD] == loss[FP8_ALL] && loss[FP8_BACKWARD] == loss[0] && loss[0] != loss[FP8_ALL],
          "%s: forward or backward in 8 bits", dev->name);
    Trainee t;
    const Config exact = config_of("m1:c128h4e4k2f128a4x2n0", 0);
    open_model(&t, dev, &exact);
    for (int i = 0; i < t.m.manifest.count; i++) {
        const Tensor *x = &t.m.manifest.at[i];
        if (!strstr(x->name, "mlp.input")) continue;
        for (int passes = FP8_FORWARD; passes <= FP8_BACKWARD; passes++) {
            const double error = relative_error(g[passes] + x->offset, g[0] + x->offset, x->count);
            check(error > 0.005 && error <= 0.12
                  && relative_error(g[passes] + x->offset, g[FP8_ALL] + x->offset, x->count) > 0.005,
                  "%s: gradient of %s with %s in 8 bits differs by %.1e", dev->name, x->name,
                  passes == FP8_FORWARD ? "forward" : "backward", error);
        }
    }
    trainee_close(&t);
    for (int passes = 0; passes < 4; passes++) free(g[passes]);
}

/* FP8_WHERE_FASTER: in bf16 where no size was measured that is nowhere larger. */
static void by_size(void) {
    Config c = config_of("m2:c2048h16e64k8f1024", FP8_WHERE_FASTER),
        wide = config_of("m2:c4096h16e64k4f2048", FP8_WHERE_FASTER);
    check(fp8_passes(&c, 32768) == FP8_ALL && fp8_passes(&wide, 32768) == FP8_ALL,
          "sizes that were measured are in 8 bits");
    check(fp8_passes(&c, 40000) == FP8_ALL && fp8_passes(&c, 12287) == 0,
          "more rows are, fewer than any measured are not");
    c.width = 192;
    check(fp8_passes(&c, 32768) == 0, "nor are narrower experts");
    Config narrow = config_of("m2:c768h12e128k8f256", FP8_WHERE_FASTER);
    check(fp8_passes(&narrow, 40960) == FP8_ALL && fp8_passes(&narrow, 40959) == 0,
          "the smallest that was measured is");
    c.fp8 = FP8_BACKWARD;
    check(fp8_passes(&c, 64) == FP8_BACKWARD, "passes that are named do not depend on the size");
    Config small = config_of("m2:c128h4e4k2f128a4x2n0", FP8_WHERE_FASTER),
        never = config_of("m2:c128h4e4k2f128a4x2n0", 0);
    Trainee t[2];
    open_model(&t[0], device_find("cpu-f32"), &small), open_model(&t[1], device_find("cpu-f32"), &never);
    check(t[0].m.arena.total == t[1].m.arena.total, "where it is not faster no memory is planned for it");
    trainee_close(&t[0]), trainee_close(&t[1]);
    check(trained(&small, 0, 2) == trained(&never, 0, 2), "and the bits are those of bf16");
}

/* A weight that is not finite makes its whole block so. */
static void not_finite(void) {
    const Device *dev = device_find("cpu-f32");
    const Config c = config_of("m1:c128h4e4k2f128n0", FP8_ALL);
    const double value[2] = { NAN, INFINITY };
    for (int kind = 0; kind < 2; kind++) for (int down = 0; down < 2; down++) {
        Trainee t;
        int bad;
        open_model(&t, dev, &c);
        for (int i = 0; i < t.m.manifest.count; i++)
            if (strstr(t.m.manifest.at[i].name, down ? "mlp.output" : "mlp.input"))
                dev->from_double(float_at(&t.m, t.m.params, t.m.manifest.at[i].offset), &value[kind], 1);
        const uint64_t before = trainee_hash(&t);
        trainee_do(&t, 0);
        check(!isfinite(trainee_loss(&t, &bad)) && bad >= 0, "a weight of %g shows in a step in 8 bits", value[kind]);
        check(trainee_hash(&t) == before, "and changes nothing");
        trainee_close(&t);
    }
}

/* Packed samples put other tokens into a block of columns: gradients are as near as 8 bits are. */
static void packed(const Device *dev) {
    const Config c = config_of("m2:c128h4e4k2f128a4x2n0", FP8_ALL);
    double loss;
    check_error(packing_error(dev, &c, 0, &loss), 0.05, "%s: gradients of packed samples in 8 bits", dev->name);
    check_error(loss, 1e-5, "%s: their loss", dev->name);
}
static void learning(void) {
    Config c = config_of("m1:c128h4e4k2f128n0", FP8_ALL);
    check_error(overfit(device_find("cpu-f32"), &c, 80, 0, NULL), 0.05, "in 8 bits a model overfits one batch: loss");
    c.rounding = 1, c.tile = 16;
    check(forgets(device_find("cpu-f32"), &c, 3),
          "in 8 bits model_clear_activations removes all traces of a batch that was not finite");
}

/* A device without operations in 8 bits (cuda-f32, cuda-bf16-portable) and for decoding. */
static void without_tables(const Device *dev) {
    Device bare = *dev;
    const Config c = config_of("m2:c32h4e4k2f16", 0);
    uint64_t with, without;
    bare.fp8 = NULL, bare.decode = NULL;
    overfit(dev, &c, 3, 0, &with);
    overfit(&bare, &c, 3, 0, &without);
    check(with == without, "a device without tables of 8 bits and decoding trains to the same bits");
}

void test_fp8(void) {
    const Device *f64 = device_find("cpu-f64");
    Device half = *f64;                                     /* one whose gradients of weights are not in 8 bits */
    Fp8Operations some = *f64->fp8;
    some.columns = NULL, some.backward_weight = NULL, half.fp8 = &some;
    PART(near(f64, ""));
    PART(near(&half, "without columns"));
    PART(near(device_find("cpu-f32"), ""));
    PART(recomputing("m2:c128h4e4k2f128a4x2n0"));
    PART(recomputing("u2:c128h4e4k2f128a4x2n0"));
    PART(head(f64, ""));
    PART(head(&half, "without columns"));
    PART(beside(f64, 0));
    PART(beside(f64, 1));
    PART(one_pass(f64));
    PART(one_pass(&half));
    PART(by_size());
    PART(packed(device_find("cpu-f32")));
    PART(not_finite());
    PART(learning());
    PART(without_tables(device_find("cpu-f32")));
}
