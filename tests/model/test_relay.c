/* test_relay.c: layers dealt out over several devices, here the CPU: the same bits as on one. */
#include "models.h"
#include "trainee.h"
#include "tests/test.h"
#include "llmc/model/batch.h"
#include "llmc/model/decode.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include "llmc/model/relay.h"

enum { T = 12, B = 2, READ = 5, V = 29, SEED = 7 };

/* What a model makes of a text: the losses of all tokens in one pass; or the tokens it draws after
 * a prompt, and the last logits. */
typedef struct { double loss[B * T]; int token[B * (T - READ)]; double logits[B * 64]; } Made;

static int initialize(Model *m, void *none) { (void)none; model_initialize(m, SEED); return 1; }
static void begin(Model *m, Relay *r) {
    if (!model_allocate(m)) fail(EXIT_MEMORY, "no memory for a small model");
    model_initialize(m, SEED);
    if (r) relay_each(r, initialize, NULL);
}
static void make(Made *made, const Device *dev, const Config *c, Relay *r) {
    int tokens[B * T], targets[B * T];
    uint64_t keys[B] = { 3, 4 };
    Model m;
    Decoder d;
    memset(made, 0, sizeof *made);
    for (int i = 0; i < B * T; i++) tokens[i] = i * i % V, targets[i] = (i + 5) % V;
    model_plan_dealt(&m, dev, c, B, T, 0, r);
    begin(&m, r);
    for (int t = T; t > 0; t -= T / 2) {                    /* fewer tokens than planned, too */
        model_batch(&m, tokens, targets, B, t);
        model_forward(&m);
        model_loss(&m, 0);
    }
    dev->reals_to_double(made->loss, m.loss, B * T / 2);
    model_free(&m);

    decoder_plan_dealt(&d, dev, c, B, T, r);
    begin(&d.model, r);
    decoder_draw(&d, (Sampler){ .temperature = 1, .top_p = 1 }, keys);
    for (int again = 0; again < 2; again++) {               /* the second time after a reset */
        decoder_reset(&d);
        decoder_feed(&d, tokens, READ);
        decoder_queue(&d, T - READ, 0);
        decoder_collect(&d, made->token, 0);
    }
    dev->to_double(made->logits, d.logits, (size_t)B * (size_t)c->vocab);
    decoder_close(&d);
}

static void dealt_out(const char *device, const Config *c, const char *descriptor, int devices) {
    static Made one, dealt;
    const Device *dev = device_find(device);
    char why[256];
    Relay *r = relay_open(dev, 0, c, devices, T, why);
    check(r != NULL, "%s: layers on %d devices: %s", descriptor, devices, r ? "" : why);
    if (!r) return;
    make(&one, dev, c, NULL);
    make(&dealt, dev, c, r);
    check(!memcmp(&one, &dealt, sizeof one), "%s %s: layers dealt out over %d devices give the same bits as on one",
          device, descriptor, devices);
    relay_close(r);
}

/* Every layer is on one device, every device has some, and none has much more than its share. */
static void layers_dealt_out(const char *descriptor, int devices) {
    Config c = trainee_config(descriptor, 512, 64);
    c.tied = 0;
    const Device *dev = device_find("cpu-bf16");
    char why[256];
    Relay *r = relay_open(dev, 0, &c, devices, 64, why);
    Model m, full;
    model_plan_dealt(&m, dev, &c, 1, 8, 64, r);
    model_plan_inference(&full, dev, &c, 1, 8, 64, NULL);
    size_t all = full.arena.category[MEM_WEIGHTS] + full.arena.category[MEM_CACHE], most = 0, sum = 0;
    int next = 0, good = 1;
    for (int d = 0; d < devices; d++) {
        const Model *x = d == devices - 1 ? &m : relay_model(r, d);
        const size_t bytes = x->arena.category[MEM_WEIGHTS] + x->arena.category[MEM_CACHE];
        good &= x->from == next && x->to > x->from;
        next = x->to;
        sum += bytes;
        if (bytes > most) most = bytes;
    }
    check(good && next == c.layers, "%s on %d devices: each layer is on one of them", descriptor, devices);
    check(most * (size_t)devices <= all * 3 / 2 && sum < all + all / 8,
          "%s on %d devices: the fullest has %zu bytes of %zu, all together %zu", descriptor, devices, most, all, sum);
    check(m.manifest.learnable + relay_learnable(r) == full.manifest.learnable, "%s: all are dealt out", descriptor);
    model_free(&m), model_free(&full), relay_close(r);
}

/* Devices that have less than their layers need: nothing is allocated. */
static size_t small_bytes(void) { return 1 << 20; }
static void too_little(void) {
    const Config c = trainee_config("m4:c64h4e8k2f64n0", 512, 64);
    Device small = *device_find("cpu-f32");
    char why[256];
    small.memory = small_bytes;
    Relay *r = relay_open(&small, 0, &c, 2, 64, why);
    Model m;
    model_plan_dealt(&m, &small, &c, 1, 64, 64, r);
    check(m.arena.total > 1 << 20 && !model_allocate(&m) && !m.arena.base && !relay_model(r, 0)->arena.base,
          "two devices of 1 MB and %zu bytes of layers on one: refused", m.arena.total);
    check(relay_memory(r, 0) == 1 << 20, "a device's memory is asked in its thread");
    model_free(&m), relay_close(r);
}

static void impossible(void) {
    char why[256];
    const Config block = trainee_config("u3:c16h4d4e4k2f12n0", V, T),
        shallow = trainee_config("m2:c16h4d4e4k2f12n0", V, T);
    check(!relay_open(device_find("cpu-f32"), 0, &block, 2, 0, why) && strstr(why, "one block"),
          "one block for all layers: %s", why);
    check(!relay_open(device_find("cpu-f32"), 0, &shallow, 3, 0, why) && strstr(why, "only 2 layers"),
          "more devices than layers: %s", why);
}

void test_relay(void) {
    static const char *const models[] = { "m4:c16h4d4e4k2f12a4x2n0", "d3:c16h4d4f20n0",
                                          "m3:c16h6d4q2e4k2f12a4x3n1z2i100v1l5w150y100" };
    for (int i = 0; i < 3; i++) {
        const Config c = trainee_config(models[i], V, T);
        for (int devices = 2; devices <= c.layers; devices++)
            PART(dealt_out(i % 2 ? "cpu-bf16" : "cpu-f32", &c, models[i], devices));
    }
    for (int i = 0; family_case(i, NULL); i++) {
        Config c = trainee_config(family_case(i, NULL), V, T);
        family_case(i, &c);
        PART(dealt_out(i % 2 ? "cpu-f32" : "cpu-bf16", &c, family_case(i, NULL), 2));
    }
    PART(too_little());
    PART(layers_dealt_out("m8:c64h4e8k2f64n0", 2));
    PART(layers_dealt_out("m9:c64h4e8k2f64n0", 4));
    PART(impossible());
}
