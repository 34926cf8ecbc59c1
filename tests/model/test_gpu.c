/* test_gpu.c: a GPU's devices against the CPU's, a whole training step at a time. cuda-f32 is held to
 * cpu-f64, cuda-bf16 to cpu-bf16, which rounds in the same places. (Single operations: test_kernels.c,
 * which visits every device that opens.) */
#define _POSIX_C_SOURCE 200809L
#include "models.h"
#include "tests/test.h"
#include "llmc/model/check.h"
#include "llmc/run/device.h"
#include "llmc/model/optim.h"
#include "llmc/base/random.h"
#include "llmc/model/replay.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct { const char *descriptor; int scores, activation, recompute; float dropout; } grid[] = {
    { "m2:c64h4e8k2f64a8x2",       TOPK_SOFTMAX, SWIGLU, 0, 0 },
    { "m2:c128h4e8k2f128a8x2",     TOPK_SOFTMAX, SWIGLU, 2, 0.2f },
    { "m2:c64h4d32q2e6k3f40a1s1",  SIGMOID_TOPK, SWIGLU, 1, 0 },
    { "m2:c128h2d64e4k1f96a2x1",   SOFTMAX_TOPK, GELU,   0, 0.1f },
    { "d2:c128h4q1f192",           TOPK_SOFTMAX, RELU2,  0, 0 },
    { "u3:c64h4e4k2f64a4x2",       TOPK_SOFTMAX, SWIGLU, 0, 0 },
    { "m2:c20h2d10e3k2f14a3x2",    TOPK_SOFTMAX, SWIGLU, 0, 0 },          /* no width is a multiple of 8 */
};

static size_t configurations(void) { return quick ? 1 : sizeof grid / sizeof *grid; }

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
    for (size_t i = 0; i < 2 * configurations(); i++) {                     /* each plain and, by some rule, rounded */
        const size_t rounds = i >= configurations(), at = i % configurations();
        double worst;
        Check c = { .config = small(grid[at].descriptor, 48), .B = 1, .T = T, .recompute = grid[at].recompute,
                    .samples = 1, .balance = 0.1f, .z = 0.01f, .dropout = grid[at].dropout, .seed = 100 * i };
        c.config.scores = grid[at].scores;
        c.config.activation = grid[at].activation;
        c.config.rounding = rounds ? 1 + (int)at % ROUND_DOWN : ROUND_OFF;
        c.config.tile = 4;
        /* Rounded, many tokens have one expert, whose weight of 1 has no gradient: that of the router is a sum of few. */
        const double bound = dev->floatX_size != 2 ? 1e-4 : rounds ? 1e-1 : 3e-2;
        const int bad = check_devices(&c, dev, twin, bound, stdout, 0, &worst);
        check(bad == 0, "%s%s: %s in step with %s, %d bad tensors, worst %.1e", grid[at].descriptor, rounds ? " rounded" : "", dev->name,
              twin->name, bad, worst);
    }
}

static void learning(const Device *dev, const Config *c) {
    uint64_t first, second;
    for (int how = 0; how <= (LEAN | MUON); how++) {
        check_error(overfit(dev, c, 250, 0, how, &first), 0.05, "%s%s%s: one batch is learned by heart: loss", dev->name,
                    how & LEAN ? " without master weights" : "", how & MUON ? ", Muon" : "");
        overfit(dev, c, 250, 0, how, &second);
        check(first == second, "%s: the same run gives the same bits", dev->name);
    }
}

/* Steps of three micro-batches with dropout, their work queued anew each time or recorded: a hash of all that is left. */
enum { MICRO = 3, STEPS = 5, FEW = 2 };                     /* FEW: -q */
typedef struct { Model m; Optimizer o; } Trainee;
static void one_batch(void *trainee) {
    Model *m = &((Trainee *)trainee)->m;
    model_learn(m, 1.0f / (float)(MICRO * m->batch.N), 1.0f / MICRO);
}
static void one_update(void *trainee) {
    Trainee *t = trainee;
    optimizer_update(&t->o, &t->m);
}
static uint64_t trained(const Device *dev, const Config *c, int recompute, float dropout, float momentum, int record,
                        int *recorded) {
    const int B = 2, T = c->context, N = B * T;
    int *tokens = mem_alloc(2 * MICRO * (size_t)N * sizeof *tokens), *targets = tokens + MICRO * N, bad;
    Replay batch[PHASES], update = { .off = !record };
    for (int i = 0; i < PHASES; i++) batch[i] = (Replay){ .off = !record };
    uint64_t keys[MICRO], hash = 0;
    Trainee t;
    model_plan_training(&t.m, dev, c, B, T, recompute, MICRO, FLOATX, NULL);
    optimizer_plan(&t.o, &t.m, 1, REAL, momentum);
    check(model_allocate(&t.m), "memory");
    t.m.balance_coef = 0.01f;
    t.m.dropout = dropout;
    t.m.rounds = 1;
    model_initialize(&t.m, 3);
    optimizer_start(&t.o, &t.m);
    for (int step = 0; step < (quick ? FEW : STEPS); step++) {
        for (int n = 0; n < 2 * MICRO * N; n++)
            tokens[n] = (int)(random_uniform((uint64_t)step, (uint64_t)n) * c->vocab);
        for (int i = 0; i < MICRO; i++) keys[i] = random_key((uint64_t)step, (uint64_t)i);
        model_send(&t.m, tokens, targets, keys, B, T);
        optimizer_set(&t.o, &t.m, (AdamW){ .lr = 1e-2f / (float)(step + 1), .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f });
        for (int i = 0; i < MICRO; i++) {
            model_begin_micro(&t.m, i);
            replay_run(&batch[t.m.batch.phase], dev, model_state(&t.m), one_batch, &t);
            model_end_micro(&t.m, i);
        }
        replay_run(&update, dev, 0, one_update, &t);
        StepResults f = model_results(&t.m);
        optimizer_norm(&t.o, f.grad_sq_norms, &bad);
        check(bad < 0, "%s: a finite gradient at step %d", dev->name, step);
        hash = hash_bytes(hash, f.step_losses, MICRO * sizeof *f.step_losses);
        results_free(&f);
    }
    const size_t bytes = t.m.manifest.total * dev->floatX_size;
    void *w = mem_alloc(bytes);
    dev->download(w, t.m.params, bytes);
    hash = hash_bytes(hash, w, bytes);
    free(w);
    *recorded = batch[PHASE_FIRST].recording && batch[PHASE_MIDDLE].recording && batch[PHASE_LAST].recording && update.recording;
    for (int i = 0; i < PHASES; i++) replay_free(&batch[i], dev);
    replay_free(&update, dev);
    model_free(&t.m);
    free(tokens);
    return hash;
}
static void recording(const Device *dev) {
    for (size_t i = 0; i < configurations(); i++) {
        int recorded, plain;
        Config c = small(grid[i].descriptor, 48);
        c.scores = grid[i].scores;
        c.activation = grid[i].activation;
        c.rounding = (int)(2 * i) % (ROUND_DOWN + 1);       /* also off */
        c.tile = 16;
        const uint64_t expected = trained(dev, &c, grid[i].recompute, grid[i].dropout, i % 2 ? 0.95f : 0, 0, &plain);
        const uint64_t hash = trained(dev, &c, grid[i].recompute, grid[i].dropout, i % 2 ? 0.95f : 0, 1, &recorded);
        check(recorded && !plain, "%s: %s: a step is recorded when asked for", dev->name, grid[i].descriptor);
        check(hash == expected, "%s: %s: replayed steps give the same bits", dev->name, grid[i].descriptor);
    }
}

/* Products of rows by tiles, of buffers that have rows to spare. */
static void forgetting(const Device *dev) {
    for (int rule = ROUND_NEAREST; rule <= ROUND_DOWN; rule++) {
        Config c = small("m2:c128h2d64e8k2f128a8x2", 160);
        c.rounding = rule;
        c.tile = ROW_TILE;
        check(forgets(dev, &c, 4), "%s: rounding rule %d, nothing is left of a batch that was not finite", dev->name, rule);
    }
}

/* Batches of one, of a few (decode_in and what belongs to it) and of more. In bf16 two ways to the same logits may send a token
 * to different experts, so that only the smallest are compared there. */
static void decoding(const Device *dev) {
    static const int batches[] = { 1, 3, 12, 20 };
    const int bf16 = dev->floatX_size == 2;
    for (size_t i = 0; i < configurations(); i++) {
        Config c = small(grid[i].descriptor, 48);
        c.scores = grid[i].scores;
        c.activation = grid[i].activation;
        for (int k = 0; k < (quick ? 2 : 4); k++) {
            if (!quick && (!bf16 || (i == 0 && k < 2)))
                check_error(decoding_errors(dev, &c, batches[k], 40, 9, bf16 ? 5e-2 : 1e-4), bf16 ? 0.1 : 0,
                            "%s %s: decoding %d with a cache as without one; share of others", dev->name, grid[i].descriptor,
                            batches[k]);
            for (int greedy = 0; greedy < 2; greedy++)
                check(steps_agree(dev, &c, batches[k], (Sampler){ .temperature = !greedy, .top_p = 0.9f }),
                      "%s %s: %d sequences, drawn ahead or singly", dev->name, grid[i].descriptor, batches[k]);
        }
    }

    /* Heads of 64 and 128, of which decode_attention has kernels, one and several blocks of keys; rows of many chunks. All
     * experts are chosen, so that bf16 can be compared. */
    static const struct { const char *descriptor; int batch, context, first; } large[] = {
        { "m2:c768h12e2k2f512a2x2",    1, 300,  9    },
        { "m1:c512h8e4k4f96a4x4",      1, 1100, 1070 },     /* four queries to a key */
        { "d2:c512h4f320",             1, 1100, 1070 },
        { "d1:c640h5q1f1024",          2, 200,  180  },
        { "m1:c1280h20e3k3f64a2x2s1",  1, 150,  120  },
        { "m1:c256h4e33k33f64a2x2",    1, 150,  120  },     /* more experts than lanes */
    };
    for (size_t i = 0; i < (quick ? 2 : sizeof large / sizeof *large); i++) {
        Config c = small(large[i].descriptor, large[i].context);
        check_error(decoding_errors(dev, &c, large[i].batch, large[i].context, large[i].first, bf16 ? 5e-2 : 1e-4), 0,
                    "%s %s: decoding %d of %d; share of others", dev->name, large[i].descriptor, large[i].batch, large[i].context);
    }
}

/* What cannot be recorded makes no recording, says why, and leaves a device that works. */
static void unrecordable(const Device *dev) {
    static const char *const attempts[] = { "sending", "reading", "waiting", "allocating" };
    int *there = dev->alloc(sizeof *there), seven = 7, back = 0;
    for (int i = 0; i < 4; i++) {
        const char *why = NULL;
        check(!dev->record_begin(), "%s: records", dev->name);
        if (i == 0) dev->upload(there, &seven, sizeof seven);
        if (i == 1) dev->download(&back, there, sizeof back);
        if (i == 2) dev->sync();
        if (i == 3) check(!dev->alloc(1 << 20), "%s: no memory while it records", dev->name);
        Recording *r = dev->record_end(&why);
        check(!r && why, "%s: %s is not recorded: %s", dev->name, attempts[i], why ? why : "it was");
        dev->record_free(r);
    }
    dev->upload(there, &seven, sizeof seven);
    dev->download(&back, there, sizeof back);
    check(back == 7, "%s: works as before", dev->name);
    dev->release(there);
}

/* An error of the GPU ends a process with EXIT_CUDA and says what was done, by which kernel, and for what was built. It takes
 * a process of its own, run_tests -fault, in which a token lies far beyond the embedding. */
void gpu_fault(void) {
    const Device *dev = tested_device(0);
    const int token = 1 << 30;
    if (!dev || !dev->is_gpu) fail(EXIT_USAGE, "-fault is for GPUs");
    int *tokens = dev->alloc(sizeof token);
    void *out = dev->alloc(1 << 16);
    dev->upload(tokens, &token, sizeof token);
    dev->set_activity("step 7");
    dev->embed_forward(out, tokens, out, 1, 4096);
    dev->sync();
    fail(EXIT_DONE, "no error");
}
static void faults(const Device *dev) {
    static const char *const says[] = { "error: CUDA: ", "at step 7", "in embed_", "basic.cu", "built for sm_", "the GPU is sm_" };
    char program[4096], text[4096];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *command = text_format("CUDA_LAUNCH_BLOCKING=1 %s -fault -d %s 2>&1", program, dev->name);
    FILE *f = popen(command, "r");
    const size_t got = f ? fread(text, 1, sizeof text - 1, f) : 0;
    const int status = f ? pclose(f) : -1;
    text[got] = 0;
    check(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_CUDA, "%s: %s ends with code %d", dev->name, command, EXIT_CUDA);
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        check(strstr(text, says[i]) != NULL, "%s: an error says \"%s\": %s", dev->name, says[i], text);
    free(command);
}

void test_gpu(void) {
    const Device *dev;
    int found = 0;
    for (int i = 0; (dev = tested_device(i)); i++) {
        if (!dev->is_gpu) continue;
        Config c = small("m2:c64h4e8k2f64a8x2", 64);
        found = 1;
        lockstep(dev);
        if (!quick) learning(dev, &c);
        if (!quick) faults(dev);
        recording(dev);
        unrecordable(dev);
        forgetting(dev);
        decoding(dev);
    }
    if (!found) skip("there is no GPU here, or this build has no CUDA");
}
