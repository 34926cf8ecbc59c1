/* test_gpu.c: the devices of a GPU against those of the CPU, in whole training steps: cuda-f32
 * against cpu-f64, and cuda-bf16 against cpu-bf16, which rounds at the same points. Recordings,
 * faults, decoding. (Single operations: tests/ops.) */
#define _POSIX_C_SOURCE 200809L
#include "models.h"
#include "trainee.h"
#include "tests/test.h"
#include "llmc/model/check.h"
#include "llmc/model/recompute.h"
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct { const char *descriptor; int scores, activation, recompute; float dropout; } grid[] = {
    { "m2:c64h4e8k2f64a8x2n0",       TOPK_SOFTMAX, SWIGLU, 0, 0 },
    { "m2:c128h4e8k2f128a8x2n0",     TOPK_SOFTMAX, SWIGLU, 2, 0.2f },
    { "m2:c64h4d32q2e6k3f40a1s1n0",  SIGMOID_TOPK, SWIGLU, 1, 0 },
    { "m2:c128h2d64e4k1f96a2x1n0",   SOFTMAX_TOPK, GELU,   0, 0.1f },
    { "d2:c128h4q1f192n0",           TOPK_SOFTMAX, RELU2,  0, 0 },
    { "u3:c64h4e4k2f64a4x2n0",       TOPK_SOFTMAX, SWIGLU, 0, 0 },
    { "m2:c20h2d10e3k2f14a3x2n0",    TOPK_SOFTMAX, SWIGLU, 0, 0 },          /* no size is a multiple of 8 */
    { "m2:c64h6d32q2e8k2f64a8x3n1l5v1w200", TOPK_SOFTMAX, SWIGLU, 0, 0 },   /* the ingredients of a recipe */
    { "d2:c128h4q1f192n1l5v2",     TOPK_SOFTMAX, RELU2,  2, 0.1f },
    { "d3:c128h4q2f192n1v2g1j2o7t5p1",   TOPK_SOFTMAX, SWIGLU, 0, 0.1f },         /* tables and scalars */
    { "m3:c72h4d20q2e4k2f64a4x2v1g1j1t3p1", TOPK_SOFTMAX, SWIGLU, 1, 0 },
    { "m1:c128h4e4k2f256a4x2n0",     TOPK_SOFTMAX, SWIGLU, 2, 0.1f },     /* these in 8 bits, the last with its head */
    { "m1:c256h4d64q2e6k3f128s1n0",  SIGMOID_TOPK, SWIGLU, 0, 0 },
};

enum { GRID = sizeof grid / sizeof *grid, IN_8_BITS = 2 };
static size_t configurations(void) {
    size_t families = 0;
    while (family_case((int)families, NULL)) families++;
    return quick ? 1 : GRID + families;
}

static Config small(const char *descriptor, int context) { return trainee_config(descriptor, 96, context); }
/* What rounding to bf16 does to a model's gradients: 0.02 to 0.03 of their norm, of 16 channels a
 * twentieth. Each of two devices may be as far from the truth. */
static double rounding_error(const Check *c) {
    double worst;
    check_devices(c, device_find("cpu-bf16"), device_find("cpu-f64"), 1, stdout, 0, &worst);
    return worst;
}

/* The i-th of the grid, and after them those with what published families have. */
static const char *name_of(size_t i) { return i < GRID ? grid[i].descriptor : family_case((int)(i - GRID), NULL); }
static Config configuration(size_t i) {
    Config c = small(name_of(i), 48);
    if (i < GRID)
        c.scores = grid[i].scores, c.activation = grid[i].activation, c.fp8 = i >= GRID - IN_8_BITS ? FP8_ALL : 0;
    else family_case((int)(i - GRID), &c);
    if (i == GRID - 1) c.vocab = 128, c.fp8_head = 1;
    return c;
}
static int is_missing(const Config *c, const Device *dev) {
    return c->fp8 && !(dev->fp8 && dev->fp8->fits(c->channels, c->width));
}
static Recompute recompute_of(size_t i) { return recompute_numbered(i < GRID ? grid[i].recompute : (int)i % 3); }
static float dropout_of(size_t i)   { return i < GRID ? grid[i].dropout : i % 2 ? 0.1f : 0; }

static void lockstep(const Device *dev) {
    const Device *twin = device_find(dev->floatX_size == 2 ? "cpu-bf16" : "cpu-f64");
    /* In bf16 few tokens: check_devices must find a batch that rounding routes the same. */
    const int T = dev->floatX_size == 2 ? 16 : 48;
    for (size_t i = 0; i < 2 * configurations(); i++) {                 /* each as it is, and with rounded routing */
        const size_t rounds = i >= configurations(), at = i % configurations();
        double worst;
        Check c = { .config = configuration(at), .B = 1, .T = T, .recompute = recompute_of(at),
                    .samples = 1, .balance = 0.1f, .z = 0.01f, .dropout = dropout_of(at), .seed = 100 * i };
        c.config.rounding = rounds && c.config.experts > 1, c.config.tile = 4;
        if (is_missing(&c.config, dev)) continue;
        /* With rounded routing many tokens have one expert, with weight 1 and no gradient: the
         * router's gradient is a sum of few terms. */
        const double bound = dev->floatX_size != 2 ? 1e-4 : rounds ? 1e-1 : fmax(3e-2, 2 * rounding_error(&c));
        const int bad = check_devices(&c, dev, twin, bound, stdout, 0, &worst);
        check(bad == 0, "%s%s: %s agrees with %s, %d bad tensors, worst %.1e", name_of(at), rounds ? " rounded" : "",
              dev->name, twin->name, bad, worst);
    }
}

static void learning(const Device *dev, const Config *c) {
    uint64_t first, second;
    for (int how = 0; how <= (LEAN | MUON); how++) {
        check_error(overfit(dev, c, 250, how, &first), 0.05, "%s%s%s: overfits one batch: loss", dev->name,
                    how & LEAN ? " without master weights" : "", how & MUON ? ", Muon" : "");
        overfit(dev, c, 250, how, &second);
        check(first == second, "%s: the same run gives the same bits", dev->name);
    }
}

/* Three micro-batches with dropout, queued or recorded: a hash of losses and what is left. With a
 * momentum below 0.92 gradients are added to it (-ga momentum). */
enum { MICRO = 3, STEPS = 5, QUICK_STEPS = 3 };             /* QUICK_STEPS: -q */
static uint64_t trained(const Device *dev, const Config *c, Recompute recompute, float dropout, float momentum,
                        int record, int *recorded) {
    Trainee t;
    uint64_t hash = 0;
    int bad;
    check(trainee_open(&t, dev, c, (TraineeOptions){ .B = 2, .T = c->context, .micro_batches = MICRO,
                                                     .recompute = recompute, .gradients = FLOATX, .seed = 3,
                                                     .record = record, .momentum = momentum, .period = 2,
                                                     .row_decay = momentum > 0 ? 0.9f : 0,
                                                     .absorbs = momentum > 0 && momentum < 0.92f, .most = 4,
                                                     .balance = 0.01f, .dropout = dropout, .filled = c->rounding }),
          "memory");
    t.adamw.decay = t.adamw.clip = 0;
    for (int step = 0; step < (quick ? QUICK_STEPS : STEPS); step++) {
        t.adamw.lr = 1e-2f / (float)(step + 1);
        trainee_do(&t, step);
        const double loss = trainee_loss(&t, &bad);
        check(bad < 0, "%s: a finite gradient at step %d", dev->name, step);
        hash = hash_bytes(hash, &loss, sizeof loss);
    }
    const uint64_t weights = trainee_hash(&t);
    *recorded = t.batch[PHASE_FIRST].recording && t.batch[PHASE_MIDDLE].recording && t.batch[PHASE_LAST].recording
             && (t.update[0].recording || (quick && momentum > 0)) && (t.update[1].recording || momentum <= 0);
    trainee_close(&t);
    return hash_bytes(hash, &weights, sizeof weights);
}
static void recording(const Device *dev) {
    for (size_t i = 0; i < configurations(); i++) {
        int recorded, plain;
        Config c = configuration(i);
        c.rounding = c.experts > 1 && i % 2, c.tile = 16;
        if (is_missing(&c, dev)) continue;
        const float momentum = i % 2 ? i % 4 == 1 ? 0.95f : 0.9f : 0;
        const uint64_t expected = trained(dev, &c, recompute_of(i), dropout_of(i), momentum, 0, &plain);
        const uint64_t hash = trained(dev, &c, recompute_of(i), dropout_of(i), momentum, 1, &recorded);
        check(recorded && !plain, "%s: %s: a step is recorded if and only if requested", dev->name, name_of(i));
        check(hash == expected, "%s: %s: replayed steps give the same bits", dev->name, name_of(i));
    }
}

/* Every part alone and all together, of layers as small as any and of some that fill tiles. */
static void recomputing(const Device *dev) {
    static const char *const models[] = { "m3:c64h4e8k2f64a8x2n0", "m3:c128h2d64e8k2f128a8x2n0",
                                          "m3:c128h2d64e8k2f128a1s1n2", "d3:c128h2d64n0" };
    for (int i = 0; i < 4; i++) {
        int recorded;
        const Config c = small(models[i], 160);
        const uint64_t kept = trained(dev, &c, recompute_numbered(0), 0.1f, 0, 0, &recorded);
        for (int p = 0; p <= LAYER_PARTS; p++) {
            const Recompute again = p < LAYER_PARTS ? recompute_parts(1u << p, 1 + p % 2) : recompute_numbered(2);
            check(trained(dev, &c, again, 0.1f, 0, 1, &recorded) == kept, "%s: %s: part %d recomputed changes no bit",
                  dev->name, models[i], p);
        }
    }
}

/* Products work on whole tiles of buffers with unused rows. */
static void forgetting(const Device *dev) {
    Config c = small("m2:c128h2d64e8k2f128a8x2n0", 160);
    c.rounding = 1, c.tile = ROW_TILE;
    check(forgets(dev, &c, 4), "%s: model_clear_activations removes traces of a batch that was not finite", dev->name);
}

/* Batches of one, of a few (the decode_* operations) and of more. In bf16 two ways to compute the
 * same logits may send a token to different experts, so only the smallest are compared. */
static void decoding(const Device *dev) {
    static const int batches[] = { 1, 3, 12, 20 };
    const int bf16 = dev->floatX_size == 2;
    for (size_t i = 0; i < configurations(); i++) {
        Config c = configuration(i);
        double loss;
        if (is_missing(&c, dev)) continue;
        check_error(packing_error(dev, &c, 1, &loss), bf16 ? 0.1 : 1e-4,
                    "%s %s: gradients of packed samples against each alone", dev->name, name_of(i));
        check_error(loss, bf16 ? 1e-2 : 1e-5, "%s %s: their loss", dev->name, name_of(i));
        for (int k = 0; k < (quick ? 2 : 4); k++) {
            if (!quick && (!bf16 || (i == 0 && k < 2)))
                check_error(decoding_errors(dev, &c, batches[k], 40, 9, bf16 ? 5e-2 : 1e-4), bf16 ? 0.1 : 0,
                            "%s %s: decoding %d with a cache, fraction that differs from a full pass", dev->name,
                            name_of(i), batches[k]);
            for (int greedy = 0; greedy < 2; greedy++)
                check(steps_agree(dev, &c, batches[k], (Sampler){ .temperature = !greedy, .top_p = 0.9f }),
                      "%s %s: %d sequences, drawn ahead or one at a time", dev->name, name_of(i), batches[k]);
        }
    }

    /* Heads of 64 and 128, for which decode_attention has kernels; one and several blocks of keys;
     * rows of many chunks. All experts are chosen, so that bf16 can be compared. */
    static const struct { const char *descriptor; int batch, context, first, window; } large[] = {
        { "m2:c768h12e2k2f512a2x2n0",    1, 300,  9, 0    },
        { "m1:c512h8e4k4f96a4x4n0",      1, 1100, 1070, 0 },     /* four queries per key */
        { "d2:c512h4f320n0",             1, 1100, 1070, 0 },
        { "d1:c640h5q1f1024n0",          2, 200,  180, 0  },
        { "m1:c1280h20e3k3f64a2x2s1n0",  1, 150,  120, 0  },
        { "m1:c256h4e33k33f64a2x2n0",    1, 150,  120, 0  },     /* more experts than lanes: decode_router */
        /* rows of eight chunks; as OLMoE, one norm of all heads */
        { "m2:c2048h16d128e20k20f128a1n2u1", 1, 300, 280, 0 },
        { "m1:c2048h32d128q4e24k24f96a1n1u1", 1, 200, 170, 0 },   /* as Qwen3-MoE */
        { "m2:c1792h14q2e4k4f64a1n1s1", 1, 150, 120, 0 },
        { "m2:c256h4e40k40f64a2x2n1v1w150", 1, 150, 120, 0 },
        { "m1:c512h8q2e34k34f64a1n1u1", 3, 150, 120, 0 },
        { "d2:c2304h8q2f320n1",        1, 150,  120, 0  },     /* too long for the kernels of one token */
        { "d2:c512h8f320n0",             1, 1100, 1070, 300 },   /* windows in the first layer: heads of 64, */
        { "m1:c512h4q2e4k4f96a1n0",      2, 1100, 1070, 33 },    /* of 128, */
        { "d1:c640h8q2f1024n0",          2, 600,  580,  130 },   /* and of 80 */
        { "m2:c512h8e4k4f64n1j1",        1, 300,  280,  0   },   /* keys of the token before: heads of 64, */
        { "m2:c512h4q2e4k4f64n1v1g1j1",  2, 300,  280,  0   },   /* of 128, */
        { "d2:c640h8q2f320n2j1",         2, 300,  280,  0   },   /* and of 80 */
        { "d1:c512h8f320n0",             1, 8400, 8390, 100 },  /* a longer cache than the clusters' without a window */
    };
    for (size_t i = 0; i < (quick ? 2 : sizeof large / sizeof *large); i++) {
        Config c = small(large[i].descriptor, large[i].context);
        c.window = large[i].window;
        if (c.window) layers_add(&c.windowed, 0);
        check_error(decoding_errors(dev, &c, large[i].batch, large[i].context, large[i].first, bf16 ? 5e-2 : 1e-4), 0,
                    "%s %s: decoding %d of %d, fraction that differs from a full pass", dev->name, large[i].descriptor,
                    large[i].batch, large[i].context);
    }
}

/* Decoding reads weights in codes, of 128 x 128 in 8 bits or 1 x 32 in 4; a full pass widens them
 * to the same numbers. Sizes that are and are no multiple of 128; all experts are chosen. */
static void decoding_codes(const Device *dev) {
    static const struct { const char *descriptor; int batch; Format weights, experts; } cases[] = {
        { "m2:c256h4q2e4k4f128a1n1s1", 1, OF_FP8, OF_FLOATX },
        { "m2:c288h3q1e3k3f160a1n0",   1, OF_FLOATX, OF_MXFP4 },     /* as gpt-oss from here, where experts are in 4 */
        { "m2:c672h6q2e3k3f144a1n0u1", 1, OF_FP8, OF_FLOATX },
        { "m1:c512h8e4k4f96a4x4n0",    3, OF_FP8, OF_FLOATX },
        { "d2:c640h5q1f320n1",         2, OF_FP8, OF_FLOATX },
        { "m1:c2304h4d128e1k1f96a1n0", 1, OF_FP8, OF_FLOATX },       /* rows of many chunks */
        { "m1:c2880h6d64q2e4k4f160a1n0", 1, OF_FLOATX, OF_MXFP4 },
        { "m1:c1120h10q2e5k5f96a1n0",  4, OF_FP8, OF_MXFP4 },
        { "m1:c256h4e4k4f128a1n0",     20, OF_FP8, OF_MXFP4 },       /* in groups of 8 tokens */
        { "m2:c256h8e4k4f128a4x4s1",  9,  OF_FP8, OF_FLOATX },
        { "m1:c256h4e4k4f128a1n0",     7,  OF_FLOATX, OF_MXFP4 },    /* in groups of 4 */
        { "m1:c256h4e4k4f128a1n0",     50, OF_FP8, OF_MXFP4 },       /* more than that */
    };
    const int bf16 = dev->floatX_size == 2;
    for (size_t i = 0; i < (quick ? 2 : sizeof cases / sizeof *cases); i++) {
        Config c = small(cases[i].descriptor, 40);
        c.weights = cases[i].weights, c.experts_in = cases[i].experts;
        if (c.experts_in) c.activation = CLAMPED, c.expert_bias = c.sinks = 1, c.attention_bias = 2;
        check_error(decoding_errors(dev, &c, cases[i].batch, 40, 9, bf16 ? 5e-2 : 1e-4), 0,
                    "%s %s, weights %d, experts %d: decoding %d from codes, fraction that differs from a full pass",
                    dev->name, cases[i].descriptor, c.weights, c.experts_in, cases[i].batch);
    }
}

/* What cannot be recorded gives no recording but a reason, and the device still works. */
static void unrecordable(const Device *dev) {
    static const char *const attempts[] = { "sending", "reading", "waiting", "allocating" };
    int *there = dev->alloc(sizeof *there), seven = 7, back = 0;
    for (int i = 0; i < 4; i++) {
        const char *why = NULL;
        check(!dev->record_begin(), "%s: records", dev->name);
        if (i == 0) dev->upload(there, &seven, sizeof seven);
        if (i == 1) dev->download(&back, there, sizeof back);
        if (i == 2) dev->sync();
        if (i == 3) check(!dev->alloc(1 << 20), "%s: no memory is allocated while it records", dev->name);
        Recording *r = dev->record_end(&why);
        check(!r && why, "%s: %s is not recorded: %s", dev->name, attempts[i], why ? why : "it was");
        dev->record_free(r);
    }
    dev->upload(there, &seven, sizeof seven);
    dev->download(&back, there, sizeof back);
    check(back == 7, "%s: works after that", dev->name);
    dev->release(there);
}

/* An error of the GPU ends the process with EXIT_CUDA and names the activity, the kernel and the
 * GPUs of the build. In a process of its own, run_tests -fault, a token is far outside of the
 * embedding. */
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
    static const char *const says[] = { "error: CUDA: ", "at step 7", "in embed_", "embed.cu", "built for sm_",
                                        "the GPU is sm_" };
    char program[4096], text[4096];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    char *command = text_format("CUDA_LAUNCH_BLOCKING=1 %s -fault -d %s 2>&1", program, dev->name);
    FILE *f = popen(command, "r");
    const size_t got = f ? fread(text, 1, sizeof text - 1, f) : 0;
    const int status = f ? pclose(f) : -1;
    text[got] = 0;
    check(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_CUDA, "%s: %s: code %d", dev->name, command, EXIT_CUDA);
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        check(strstr(text, says[i]) != NULL, "%s: an error says \"%s\": %s", dev->name, says[i], text);
    free(command);
}

void test_gpu(void) {
    const Device *dev;
    int found = 0;
    for (int i = 0; (dev = tested_device(i)); i++) {
        if (!dev->is_gpu) continue;
        Config c = small("m2:c64h4e8k2f64a8x2n0", 64);
        found = 1;
        lockstep(dev);
        if (!quick) learning(dev, &c);
        if (!quick) faults(dev);
        recording(dev);
        recomputing(dev);
        unrecordable(dev);
        forgetting(dev);
    }
    if (!found) skip("there is no GPU here, or this build has no CUDA");
}

void test_decoding(void) {
    const Device *dev;
    int found = 0;
    for (int i = 0; (dev = tested_device(i)); i++) {
        if (!dev->is_gpu) continue;
        found = 1;
        PART(decoding(dev));
        PART(decoding_codes(dev));
    }
    if (!found) skip("there is no GPU here, or this build has no CUDA");
}
