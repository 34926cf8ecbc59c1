/* test_gpu.c: a GPU's devices against the CPU's, a whole training step at a time. cuda-f32 is held to
 * cpu-f64, cuda-bf16 to cpu-bf16, which rounds in the same places. (Single operations: test_kernels.c,
 * which visits every device that opens.) */
#include "models.h"
#include "test.h"
#include "../llmc/check.h"
#include <stdio.h>

static const struct { const char *descriptor; int scores, activation, recompute; float dropout; } grid[] = {
    { "m2:c64h4e8k2f64a8x2",       TOPK_SOFTMAX, SWIGLU, 0, 0 },
    { "m2:c128h4e8k2f128a8x2",     TOPK_SOFTMAX, SWIGLU, 2, 0.2f },
    { "m2:c64h4d32q2e6k3f40a1s1",  SIGMOID_TOPK, SWIGLU, 1, 0 },
    { "m2:c128h2d64e4k1f96a2x1",   SOFTMAX_TOPK, GELU,   0, 0.1f },
    { "d2:c128h4q1f192",           TOPK_SOFTMAX, RELU2,  0, 0 },
    { "u3:c64h4e4k2f64a4x2",       TOPK_SOFTMAX, SWIGLU, 0, 0 },
    { "m2:c20h2d10e3k2f14a3x2",    TOPK_SOFTMAX, SWIGLU, 0, 0 },          /* no width is a multiple of 8 */
};

static Config small(const char *descriptor, int context) {
    Config c;
    Error e;
    check(config_parse(&c, descriptor, &e), "%s parses", descriptor);
    c.vocab = 96;
    c.context = context;
    return c;
}

static void lockstep(const Device *dev) {
    const Device *twin = device_find(dev->floatX_size == 2 ? "cpu-bf16" : "cpu-f64");
    /* Few tokens in bf16, so that a batch is found in which rounding sends none to another expert. */
    const int T = dev->floatX_size == 2 ? 16 : 48;
    for (size_t i = 0; i < sizeof grid / sizeof *grid; i++) {
        double worst;
        Check c = { .config = small(grid[i].descriptor, 48), .B = 1, .T = T, .recompute = grid[i].recompute,
                    .samples = 1, .balance = 0.1f, .z = 0.01f, .dropout = grid[i].dropout, .seed = 100 * i };
        c.config.scores = grid[i].scores;
        c.config.activation = grid[i].activation;
        const int bad = check_devices(&c, dev, twin, dev->floatX_size == 2 ? 3e-2 : 1e-4, stdout, 0, &worst);
        check(bad == 0, "%s: %s in step with %s, %d bad tensors, worst %.1e", grid[i].descriptor, dev->name,
              twin->name, bad, worst);
    }
}

static void learning(const Device *dev, const Config *c) {
    uint64_t first, second;
    check_error(overfit(dev, c, 250, 0, &first), 0.1, "%s: one batch is learned by heart: loss", dev->name);
    overfit(dev, c, 250, 0, &second);
    check(first == second, "%s: the same run gives the same bits", dev->name);
}

void test_gpu(void) {
    const Device *dev;
    int found = 0;
    for (int i = 0; (dev = device_list(i)); i++) {
        if (!dev->is_gpu || dev->open(0)) continue;
        Config c = small("m2:c64h4e8k2f64a8x2", 64);
        found = 1;
        lockstep(dev);
        learning(dev, &c);
        check_error(decoding_error(dev, &c, 40, 9), dev->floatX_size == 2 ? 5e-2 : 1e-4,
                    "%s: decoding with a cache as without one", dev->name);
    }
    if (!found) skip("there is no GPU here, or this build has no CUDA");
}
