/* test_gpu.c: a GPU's devices against the CPU's, a whole training step at a time. cuda-f32 is held to cpu-f64, cuda-bf16 to
 * cpu-bf16, which rounds in the same places. (Single operations: test_kernels.c, which visits every device that opens.) */
#include "test.h"
#include "../llmc/check.h"
#include "../llmc/decode.h"
#include "../llmc/optim.h"
#include "../llmc/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *descriptor; int scores, activation, recompute; float dropout; } grid[] = {
    { "m2:c64h4e8k2f64a8x2",       TOPK_SOFTMAX, SWIGLU, 0, 0 },
    { "m2:c128h4e8k2f128a8x2",     TOPK_SOFTMAX, SWIGLU, 2, 0.2f },
    { "m2:c64h4d32q2e6k3f40a1s1",  SIGMOID_TOPK, SWIGLU, 1, 0 },
    { "m2:c128h2d64e4k1f96a2x1",   SOFTMAX_TOPK, GELU,   0, 0.1f },
    { "d2:c128h4q1f192",           TOPK_SOFTMAX, RELU2,  0, 0 },
    { "u3:c64h4e4k2f64a4x2",       TOPK_SOFTMAX, SWIGLU, 0, 0 },
    { "m2:c20h2d10e3k2f14a3x2",    TOPK_SOFTMAX, SWIGLU, 0, 0 },          /* no width is a multiple of 8 */
};

static void lockstep(const Device *dev) {
    const Device *twin = device_find(dev->floatX_size == 2 ? "cpu-bf16" : "cpu-f64");
    for (size_t i = 0; i < sizeof grid / sizeof *grid; i++) {
        double worst;
        Error e;
        Check c = { .B = 2, .T = 48, .recompute = grid[i].recompute, .samples = 1, .balance = 0.1f, .z = 0.01f, .dropout = grid[i].dropout, .seed = 11 + i };
        check(config_parse(&c.config, grid[i].descriptor, &e), "%s parses", grid[i].descriptor);
        c.config.scores = grid[i].scores;
        c.config.activation = grid[i].activation;
        c.config.vocab = 96;
        c.config.context = 48;
        const int bad = check_devices(&c, dev, twin, dev->floatX_size == 2 ? 3e-2 : 1e-4, stdout, 0, &worst);
        check(bad == 0, "%s: %s in step with %s, %d bad tensors, worst %.1e", grid[i].descriptor, dev->name, twin->name, bad, worst);
    }
}

/* Learns one batch by heart; the hash of the weights afterwards. */
static double overfit(const Device *dev, uint64_t *hash) {
    Config c;
    Error e;
    Model m;
    Optimizer o;
    enum { B = 2, T = 64, N = B * T };
    int tokens[N], targets[N];
    double loss = NAN;
    check(config_parse(&c, "m2:c64h4e8k2f64a8x2", &e), "parses");
    c.vocab = 96;
    c.context = T;
    model_plan_training(&m, dev, &c, B, T, 0, 1);
    optimizer_plan(&o, &m);
    if (!model_allocate(&m)) return NAN;
    m.balance_coef = 0.01f;
    model_initialize(&m, 3);
    optimizer_start(&o, &m);
    for (int n = 0; n < N; n++) tokens[n] = (int)(random_uniform(1, (uint64_t)n) * 96), targets[n] = (int)(random_uniform(2, (uint64_t)n) * 96);
    for (int s = 0; s < 150; s++) {
        dev->zero(m.grads, m.manifest.total * dev->real_size);
        model_batch(&m, tokens, targets, B, T);
        model_forward(&m);
        model_loss(&m, 1.0f / N, 1, 0);
        model_backward(&m, 1);
        optimizer_step(&o, &m, (AdamW){ .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .decay = 0.01f, .clip = 1 });
    }
    dev->reals_to_double(&loss, m.loss_sum, 1);
    const size_t bytes = m.manifest.total * dev->floatX_size;
    void *w = mem_alloc(bytes);
    dev->download(w, m.params, bytes);
    *hash = hash_bytes(0, w, bytes);
    free(w);
    model_free(&m);
    return loss / N;
}

static void decoding(const Device *dev) {
    Config c;
    Error e;
    Model m;
    Decoder d;
    enum { T = 40, B = 3 };
    int tokens[B * T], head[B * T];
    double error = 0;
    check(config_parse(&c, "m2:c64h4e8k2f64a8x2", &e), "parses");
    c.vocab = 96;
    c.context = T;
    model_plan_training(&m, dev, &c, B, T, 0, 1);
    check(model_allocate(&m), "memory");
    model_initialize(&m, 9);
    for (int i = 0; i < B * T; i++) tokens[i] = (int)(uniform() * c.vocab);
    model_batch(&m, tokens, NULL, B, T);
    model_forward(&m);
    const size_t V = (size_t)c.vocab;
    double *full = mem_alloc(B * T * V * sizeof *full);
    model_logits(&m, 0, B * T);
    dev->to_double(full, m.s.logits, B * T * V);
    check(decoder_open(&d, dev, &c, B, T, &m), "decoder memory");
    for (int b = 0; b < B; b++) memcpy(head + b * 9, tokens + b * T, 9 * sizeof *head);
    for (int t = 9; t <= T; t++) {
        const int next[B] = { tokens[t - 1], tokens[T + t - 1], tokens[2*T + t - 1] };
        check(t == 9 ? decoder_feed(&d, head, 9) : decoder_feed(&d, next, 1), "fits");
        for (int b = 0; b < B; b++) {
            const double r = relative_error(d.logits + (size_t)b * V, full + ((size_t)b * T + (size_t)t - 1) * V, V);
            if (!(r <= error)) error = r;
        }
    }
    check_error(error, dev->floatX_size == 2 ? 5e-2 : 1e-4, "%s: decoding with a cache as without one", dev->name);
    decoder_close(&d);
    model_free(&m);
    free(full);
}

void test_gpu(void) {
    const Device *dev;
    int found = 0;
    for (int i = 0; (dev = device_list(i)); i++) {
        if (!dev->is_gpu || dev->open()) continue;
        uint64_t first, second;
        found = 1;
        lockstep(dev);
        check_error(overfit(dev, &first), 0.1, "%s: one batch is learned by heart: loss", dev->name);
        overfit(dev, &second);
        check(first == second, "%s: the same run gives the same bits", dev->name);
        decoding(dev);
    }
    if (!found) skip("there is no GPU here, or this build has no CUDA");
}
