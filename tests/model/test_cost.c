/* test_cost.c: the time of a step that is planned: counted operations agree with the formula of the
 * model's flop, and times with those that were measured. Part of the group model. */
#include "models.h"
#include "trainee.h"
#include "tests/test.h"
#include "llmc/model/cost.h"
#include "llmc/model/recompute.h"
#include "llmc/run/device.h"
#include <math.h>

static Work work_of(int B, int T, int micro_batches, MuonOptions muon, int lean) {
    return (Work){ .B = B, .T = T, .micro_batches = micro_batches, .recompute = recompute_numbered(0),
                   .gradients = FLOATX, .moments = lean ? FLOATX : REAL, .master = !lean, .muon = muon };
}

/* Products alone take time: then seconds are flop. */
static void counts(void) {
    static const char *const models[] = { "m4:z1", "d4", "u3:e16k4", "m4:a8e16k4f128", "m3:c256h4q2e8k2f128s1",
                                          "m2:c128h4v1g1t5j2p1l20" };
    const Rates rates = { 1, 1, 1, 1, 1, 1e30, 0 };
    for (size_t i = 0; i < COUNT(models); i++) {
        const Config c = trainee_config(models[i], 512, 128);
        const Device *dev = device_find("cpu-f32");
        const Work one = work_of(4, 128, 1, (MuonOptions){ 0 }, 0), three = work_of(4, 128, 3, (MuonOptions){ 0 }, 0);
        const StepCost cost = cost_of_step(&c, dev, &one, &rates), more = cost_of_step(&c, dev, &three, &rates);
        const double formula = config_flops(&c, 128) * one.B * one.T;
        check_error(fabs(cost.flop / formula - 1), 0.03, "%s: flop of a step, by its operations and by the formula",
                    models[i]);
        check_error(fabs(cost.passes / cost.flop - 1), 1e-9, "%s: at a rate of 1 they are seconds", models[i]);
        check_error(fabs(more.passes / more.flop - 1), 1e-9, "%s: of three micro-batches, too", models[i]);
        check_error(fabs(more.flop / cost.flop - 3), 1e-9, "%s: three micro-batches have three times as many",
                    models[i]);
        check(cost.forward > 0.3 * cost.passes && cost.forward < 0.37 * cost.passes, "%s: forward is a third: %.3f",
              models[i], cost.forward / cost.passes);
    }
    const Config c = trainee_config("m4:c256h4e8k2f128", 512, 128);
    const Work muon = work_of(4, 128, 1, (MuonOptions){ .momentum = 0.9f, .period = 1 }, 0),
        slices = work_of(4, 128, 1, (MuonOptions){ .momentum = 0.9f, .period = 4 }, 0);
    const double all = cost_of_step(&c, device_find("cpu-f32"), &muon, &rates).update,
        quarter = cost_of_step(&c, device_find("cpu-f32"), &slices, &rates).update;
    check(all > 0 && quarter > 0.2 * all && quarter < 0.7 * all, "-wp 4 takes %.3f of Muon's update", quarter / all);
}

/* H200: bench/results: 1 to 7 h200.txt, 8 h200-ranks.txt, 9 and 10 pays-h200.txt, 11
 * docs/commands.md, 12 h200-sharded.txt, 13 to 15 h200-portable.txt. CPU: one core of an EPYC,
 * processor time, at the rates that rates_measure found there: docs/LOG.md, "Time in the plan". */
typedef struct {
    const char *machine, *model;
    int B, T, V;
    MuonOptions muon;
    int lean, fp8;                      /* lean: -mw 0 -mo bf16 */
    double ms;
} Measured;
static const Measured measured[] = {
    { "h200", "d12:n0", 64, 1024, 50304, { .period = 0 }, 0, 0, 107.87 },
    { "h200", "m12:a8n0", 64, 1024, 50304, { .period = 0 }, 0, 0, 113.45 },
    { "h200", "m12:e64k8f256a8n0", 64, 1024, 50304, { .period = 0 }, 0, 0, 125.85 },
    { "h200", "m12:a8n0", 16, 1024, 50304, { .period = 0 }, 0, 0, 31.115 },
    { "h200", "m12:e64k8f256a8n0", 16, 1024, 50304, { .period = 0 }, 0, 0, 35.219 },
    { "h200", "d12:n0", 16, 1024, 50304, { .period = 0 }, 0, 0, 27.291 },
    { "h200", "m16:c2048h16e64k8f1024a1", 8, 4096, 50304, { .period = 0 }, 1, 0, 505.182 },
    { "h200", "m12:e64k8f256a8n0", 32, 1024, 50304, { .period = 0 }, 0, 0, 68.137 },
    { "h200", "m12:e96k7f256", 64, 1024, 16384, { .momentum = 0.9f, .period = 2 }, 1, FP8_ALL, 102.8 },
    { "h200", "d12:f1792", 64, 1024, 16384, { .momentum = 0.9f, .period = 1 }, 1, 0, 95.0 },
    { "h200", "m6:c512e128k6f256", 64, 1024, 16384, { .momentum = 0.9f, .period = 2 }, 1, 0, 38.33 },
    { "h200", "m8:c2048h32d128q4e128k8f768u1", 4, 4096, 50304, { .momentum = 0.9f, .period = 1 }, 1, 0, 354.2 },
    { "portable", "d12:n0", 64, 1024, 50304, { .period = 0 }, 0, 0, 124.0 },
    { "portable", "m12:a8n0", 64, 1024, 50304, { .period = 0 }, 0, 0, 181.8 },
    { "portable", "m12:e64k8f256a8n0", 64, 1024, 50304, { .period = 0 }, 0, 0, 198.3 },
    { "cpu", "m4:z1", 24, 128, 256, { .momentum = 0.8f, .period = 1 }, 0, 0, 279.7 },
    { "cpu", "d4:z1", 24, 128, 256, { .momentum = 0.8f, .period = 1 }, 0, 0, 225.8 },
    { "cpu", "m4:c256e16k4f128", 8, 256, 256, { .momentum = 0.8f, .period = 1 }, 0, 0, 731.6 },
    { "cpu", "m6:c384e8k2", 4, 128, 16384, { .momentum = 0.8f, .period = 1 }, 0, 0, 3231.4 },
    { "cpu", "m4:a8", 16, 128, 256, { .momentum = 0.8f, .period = 1 }, 0, 0, 215.2 },
};
static void agrees_with(const Measured *x) {
    static const Rates portable = { 640e12, 300e12, 300e12, 300e12, 187e12, 4.0e12, 8e-6 },
        cpu = { 81.5e9, 71e9, 16e9, 136e9, 31.5e9, 38e9, 2e-5 };
    const int gpu = *x->machine != 'c';
    Error e;
    Rates rates = *x->machine == 'p' ? portable : cpu;
    const Device *dev = gpu ? device_imagine("cuda", "h200", 1, &e) : device_find("cpu-f32");
    Config c = trainee_config(x->model, x->V, x->T);
    c.fp8 = (Fp8Passes)x->fp8;
    if (*x->machine == 'h') check(device_rates("h200", c.head_size, &rates), "an H200 has rates");
    const Work w = work_of(x->B, x->T, 1, x->muon, x->lean);
    const StepCost cost = cost_of_step(&c, dev, &w, &rates);
    check_error(fabs(1e3 * (cost.passes + cost.update) / x->ms - 1), 0.15, "%s on %s: measured %.2f ms, estimated %.2f",
                x->model, x->machine, x->ms, 1e3 * (cost.passes + cost.update));
}
/* What a GPU may be called. */
static void names(void) {
    Rates a, b;
    check(device_rates("a100", 64, &a) && device_rates("80:2039:312", 64, &b) && fabs(a.dense / b.dense - 1) < 1e-9
          && fabs(a.bytes / b.bytes - 1) < 1e-9, "by a name, or by numbers");
    static const char *const none[] = { "80", "80:2000", "80:0:312", "80:2000:312x", "h1000", "" };
    for (size_t i = 0; i < COUNT(none); i++) check(!device_rates(none[i], 64, &a), "\"%s\" has no rates", none[i]);
    check(device_rates("h100", 128, &a) && device_rates("h200", 128, &b) && b.bytes > a.bytes,
          "an H200 has more bandwidth");
    const Config c = trainee_config("m2:c64h4", 256, 32);
    const int fits = rates_measure(device_find("cpu-f32"), &c, 32, &a);
    check(fits && a.dense > 1e8 && a.attention > 1e7 && a.bytes > 1e8
          && a.dense < 1e14, "rates are measured: %.3g flop/s, %.3g bytes/s", a.dense, a.bytes);
}

void test_cost(void) {
    PART(counts());
    for (size_t i = 0; i < COUNT(measured); i++) PART(agrees_with(&measured[i]));
    PART(names());
}
