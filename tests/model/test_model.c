/* test_model.c: the model as a whole. All gradients of every kind of model against finite
 * differences; its devices against each other; decoding with a cache against a full pass;
 * recomputation; what a layer keeps in memory. */
#include "models.h"
#include "trainee.h"
#include "tests/test.h"
#include "llmc/model/batch.h"
#include "llmc/model/check.h"
#include "llmc/model/decode.h"
#include "llmc/model/gradients.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include "llmc/run/generate.h"
#include "llmc/model/routers.h"
#include "llmc/model/recompute.h"
#include "llmc/base/random.h"
#include "llmc/files/config_json.h"

static Config config_of(const char *descriptor, int scores, int activation, int tied) {
    Config c = trainee_config(descriptor, 29, 16);
    c.scores = scores, c.activation = activation, c.tied = tied;
    return c;
}

/* Configurations in which every part and every kind of model appears. */
static const struct { const char *descriptor; int scores, activation, tied, recompute; float dropout; } grid[] = {
    { "m2:c16h4d4e4k2f12a4x2n0",     TOPK_SOFTMAX, SWIGLU, 1, 0, 0 },    /* the default kind, as JetMoE */
    { "m2:c16h4d4e4k2f12a4x2n0",     TOPK_SOFTMAX, SWIGLU, 0, 1, 0.2f }, /* untied, dropout, norms recomputed */
    { "m3:c12h6d2e5k3f7a3x3n0",      TOPK_SOFTMAX, SWIGLU, 1, 2, 0.1f }, /* odd sizes, layers recomputed, x = a */
    { "m2:c16h4d4e4k1f12a1n0",       SOFTMAX_TOPK, SWIGLU, 1, 0, 0 },    /* one expert per token (Switch) */
    { "m2:c16h4d4q2e6k2f8a1s1n0",    SIGMOID_TOPK, SWIGLU, 0, 0, 0 },    /* grouped queries, shared expert, sigmoid */
    { "m2:c16h4d4e4k2f12a4x2s2n0",   SOFTMAX_TOPK, GELU,   1, 0, 0 },
    { "m2:c16h2d4e3k3f12a2x1n0",     SIGMOID_TOPK, RELU2,  1, 0, 0 },    /* all experts chosen, x = 1 */
    { "d2:c16h4d4f20n0",             TOPK_SOFTMAX, SWIGLU, 1, 0, 0 },    /* dense */
    { "d2:c16h4d4q1f20n0",           TOPK_SOFTMAX, GELU,   0, 2, 0.1f }, /* one kv head */
    { "u3:c16h4d4e4k2f12a4x2n0",     TOPK_SOFTMAX, SWIGLU, 1, 0, 0 },    /* one block three times */
    { "u2:c16h4d4e4k2f12a4x2n0",     TOPK_SOFTMAX, RELU2,  0, 2, 0.3f },
    { "m2:c16h4d4e4k2f12a4x2n1",   TOPK_SOFTMAX, SWIGLU, 1, 2, 0 },    /* the ingredients of a recipe, one by one */
    { "u2:c16h4d4q2f12e4k2a1n1",   TOPK_SOFTMAX, SWIGLU, 1, 1, 0 },
    { "d2:c16h4d4f12l2n0",           TOPK_SOFTMAX, SWIGLU, 1, 0, 0 },
    { "m2:c16h6d4q2e4k2f12a4x3n0", TOPK_SOFTMAX, SWIGLU, 1, 2, 0.1f },
    { "d3:c16h4d4q2f12v2n0",         TOPK_SOFTMAX, SWIGLU, 0, 1, 0 },
    { "d3:c20h4d4q2f12v2g1n0",       TOPK_SOFTMAX, SWIGLU, 0, 1, 0 },
    { "d3:c16h4d4f12t2n0",           TOPK_SOFTMAX, SWIGLU, 1, 0, 0.1f },
    { "m2:c16h4d4e4k2f12p1n0",       TOPK_SOFTMAX, SWIGLU, 0, 2, 0 },
    { "m3:c20h6d4q2e4k2f12a4x3v1g1j1t3p1n1", TOPK_SOFTMAX, SWIGLU, 1, 1, 0 },
    { "m3:c20h4d4q2e4k2f12s1v2g1j2o3t3p1n2", TOPK_SOFTMAX, RELU2, 0, 2, 0.2f },
    { "m2:c16h4d4e4k2f12a1s1w250n0", SIGMOID_TOPK, RELU2,  1, 0, 0 },
    { "m2:c16h4d4e4k2f12a4x2n0",     SIGMOID_EACH, SWIGLU, 1, 0, 0 },
    { "m2:c16h6d4q2e4k2f12a4x3n1z2i100v1l5w150y100", TOPK_SOFTMAX, SWIGLU, 0, 0, 0.1f },     /* and all at once */
};

/* Rounded routing. */
static const struct { const char *descriptor; int scores, activation, recompute; } rounded[] = {
    { "m2:c16h4d4e5k2f12a4x2n0",     TOPK_SOFTMAX, SWIGLU, 0 },
    { "m2:c16h4d4e6k3f12a1s1n0",     SIGMOID_TOPK, SWIGLU, 1 },
    { "m2:c16h4d4e5k1f12a1n0",       SOFTMAX_TOPK, GELU,   2 },
    { "u2:c16h4d4e6k2f12a1n0",       SOFTMAX_TOPK, SWIGLU, 0 },
    { "m2:c16h6d4q2e5k2f12a4x3w200n0", TOPK_SOFTMAX, SWIGLU, 0 },
};

/* c is NULL, or has the sizes of the descriptor. */
const char *family_case(int i, Config *c) {
    static const struct { const char *descriptor; Config with; } cases[] = {
        { "m2:c16h4d4e4k2f12a1n2u1", { .scores = SOFTMAX_TOPK, .attention_bias = 2 } },                 /* as OLMoE */
        { "m3:c16h4d6q2e5k2f12a1n1u1",                                                              /* as Qwen3-MoE */
          { .scores = TOPK_SOFTMAX, .dense_width = 20, .dense = { { 2 } } } },
        { "m2:c16h4q2e4k2f12a1s2n0",                                                                /* as Qwen2-MoE */
          { .scores = SOFTMAX_TOPK, .attention_bias = 1, .shared_gate = 1 } },
        { "m2:c16h4q2e4k2f12a1s1n0",                                                                    /* as Granite */
          { .scores = TOPK_SOFTMAX, .embed_scale = 3, .residual_scale = 0.22, .attention_scale = 0.17,
            .logit_divisor = 1.7 } },
        { "m3:c16h4d8q2e6k2f12a1s2w250n1u1",                                                            /* as GLM 4.5 */
          { .scores = SIGMOID_TOPK, .choice_bias = 1, .dense_width = 20, .dense = { { 1 } }, .rotated = 4,
            .attention_bias = 1 } },
        { "m2:c16h4q2e6k2f12a1s1w250n1u1",                                                              /* as Dots 1 */
          { .scores = SIGMOID_TOPK, .choice_bias = 1, .groups = 3, .groups_chosen = 2 } },
        { "m3:c16h6d8q3e5k2f7a1n0u1",                                                                   /* as gpt-oss */
          { .scores = TOPK_SOFTMAX, .activation = CLAMPED, .attention_bias = 2, .sinks = 1, .expert_bias = 1,
            .window = 3, .windowed = { { 5 } }, .rope = { ROPE_YARN, 1, 3, 1, 32, 12, 1.11 } } },
        { "m2:c16h4q2e6k3f12a1s1n0", { .scores = SOFTMAX_RENORM, .choice_bias = 1, .rope_pairs = 1 } },   /* as ERNIE */
        { "m3:c16h3d10e6k2f12a1s2w250n0u1",                                                         /* as DeepSeek-V3 */
          { .scores = SIGMOID_TOPK, .choice_bias = 1, .groups = 3, .groups_chosen = 2, .dense_width = 20,
            .dense = { { 1 } }, .rotated = 4, .kv_rank = 9, .query_rank = 5, .value_size = 7, .rope_pairs = 1,
            .rope = { ROPE_YARN, 0, 3, 1, 32, 12, 1.11, 0.7 } } },
        { "m2:c16h4d6e6k2f12a1s1n0u1",                                                              /* as DeepSeek-V2 */
          { .scores = SOFTMAX_TOPK, .groups = 3, .groups_chosen = 2, .groups_by_best = 1, .rotated = 2, .kv_rank = 7,
            .value_size = 6, .rope_pairs = 1 } },
        { "d2:c16h4q2f20n0", { .window = 5, .windowed = { { 3 } } } },                                  /* as Mistral */
        { "m3:c16h6d6q2e5k2f12a1n1u1",
          { .scores = SIGMOID_TOPK, .choice_bias = 1, .window = 3, .windowed = { { 5 } } } },
        { "d2:c16h4q2f20n0", { .rope = { ROPE_LLAMA3, 0, 4, 1, 4, 12, 0 } } },
        { "d2:c16h2q1f20n2u1", { .rope = { ROPE_YARN, 1, 3, 1, 32, 12, 1.11 }, .residual_scale = 0.5 } },
    };
    if (i >= (int)COUNT(cases)) return NULL;
    const Config *w = &cases[i].with;
    if (!c) return cases[i].descriptor;
#define COPY(a, b, d, e, f, g) c->a = w->a, c->b = w->b, c->d = w->d, c->e = w->e, c->f = w->f, c->g = w->g
    COPY(scores, activation, attention_bias, shared_gate, choice_bias, dense_width);
    COPY(dense, rotated, rope_pairs, rope, groups, groups_chosen);
    COPY(groups_by_best, embed_scale, residual_scale, attention_scale, logit_divisor, window);
    COPY(windowed, kv_rank, query_rank, value_size, sinks, expert_bias);
    return cases[i].descriptor;
}

static void gradients_of(Check *c, const char *name) {
    double worst;
    c->B = 2, c->T = 7, c->samples = 8, c->balance = 0.3f, c->z = 0.1f, c->seed = (uint64_t)(uniform() * 1e9);
    const int bad = check_gradients(c, 1e-6, stdout, 0, &worst);
    check(bad == 0, "%s: gradients of all tensors against finite differences, %d bad, worst %.1e", name, bad, worst);
    const int differ = check_devices(c, device_find("cpu-f32"), device_find("cpu-f64"), 1e-4, stdout, 0, &worst);
    check(differ == 0, "%s: cpu-f32 agrees with cpu-f64, worst %.1e", name, worst);
}
static void gradients(void) {
    for (size_t i = 0; i < sizeof grid / sizeof *grid; i++) {
        Check c = { .config = config_of(grid[i].descriptor, grid[i].scores, grid[i].activation, grid[i].tied),
                    .recompute = recompute_numbered(grid[i].recompute), .dropout = grid[i].dropout };
        gradients_of(&c, grid[i].descriptor);
    }
    for (int i = 0; family_case(i, NULL); i++) {
        Check c = { .config = trainee_config(family_case(i, NULL), 29, 16), .recompute = recompute_numbered(i % 3),
                    .dropout = i % 2 ? 0.1f : 0 };
        family_case(i, &c.config);
        gradients_of(&c, family_case(i, NULL));
    }
    for (size_t i = 0; i < sizeof rounded / sizeof *rounded; i++) {
        Check c = { .config = config_of(rounded[i].descriptor, rounded[i].scores, rounded[i].activation, 1),
                    .recompute = recompute_numbered(rounded[i].recompute) };
        c.config.rounding = 1, c.config.tile = 4;           /* of 14 tokens */
        gradients_of(&c, rounded[i].descriptor);
    }
}

/* Inputs rounded to bf16 send a few tokens to other experts: only a dense model has a bound. */
static void bf16(void) {
    double worst;
    Check c = { .config = config_of("d2:c32h4f40n0", TOPK_SOFTMAX, SWIGLU, 1), .B = 2, .T = 12, .samples = 1,
                .seed = 5 };
    const int differ = check_devices(&c, device_find("cpu-bf16"), device_find("cpu-f64"), 0.05, stdout, 0, &worst);
    check(differ == 0, "dense model in bf16: gradients within 5 %%, worst %.1e", worst);
}

double overfit(const Device *dev, const Config *c, int steps, int how, uint64_t *hash) {
    const int lean = how & LEAN;
    double loss = NAN;
    Trainee t;
    if (!trainee_open(&t, dev, c, (TraineeOptions){ .B = 2, .T = c->context, .no_master = lean, .seed = 3,
                                                    .moments = lean ? FLOATX : REAL,
                                                    .gradients = FLOATX, .balance = 0.01f, .z = 0.001f,
                                                    .momentum = how & MUON ? 0.95f : 0,
                                                    .row_decay = how == (LEAN | MUON) ? 0.9f : 0 })) return NAN;
    t.adamw.decay = 0.01f;
    for (int s = 0; s < steps; s++) {
        int bad;
        const Waits before = dev->waits();
        /* With a constant rate the last loss would be accidental: there are sudden rises. */
        const float left = 4 * (float)(steps - s) / (float)steps;
        t.adamw.lr = 3e-3f * (left < 1 ? left : 1);
        t.adamw.key = (uint64_t)s;
        trainee_do(&t, 0);
        loss = trainee_loss(&t, &bad);
        const Waits after = dev->waits();
        check(after.syncs == before.syncs && after.reads == before.reads + 1,
              "%s: a step waits only to read what it has left", dev->name);
        check(bad < 0, "%s: a finite gradient at step %d", dev->name, s);
    }
    if (hash) *hash = trainee_hash(&t);
    trainee_close(&t);
    return loss;
}

static void training(void) {
    static const struct { const char *device, *model; int steps, how, tile; const char *what; } runs[] = {
        { "cpu-f32", "m2:c32h4e4k2f32a4x2n0", 120, 0, 0, "a mixture" },
        { "cpu-f32", "d2:c32h4f64n0", 120, 0, 0, "a dense model" },
        { "cpu-f32", "u2:c32h4e4k2f32a4x2n0", 120, 0, 0, "a universal model" },
        { "cpu-f32", "m2:c32h4e4k2f32a4x2n0", 120, 0, 8, "with rounded routing a mixture" },
        { "cpu-bf16", "m2:c32h4e4k2f32a4x2n0", 120, 0, 0, "bf16 with a master copy" },
        { "cpu-bf16", "m2:c32h4e4k2f32a4x2n0", 120, LEAN, 0, "bf16 without a master copy and with bf16 moments" },
        { "cpu-f32", "m2:c32h4e4k2f32a4x2n0", 200, MUON, 0, "Muon" },
        { "cpu-bf16", "m2:c32h4e4k2f32a4x2n0", 200, LEAN | MUON, 0, "Muon with equal rows, without a master copy" },
    };
    uint64_t hash[sizeof runs / sizeof *runs], again;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        Config c = config_of(runs[i].model, TOPK_SOFTMAX, SWIGLU, 1);
        c.rounding = runs[i].tile > 0, c.tile = runs[i].tile;
        check_error(overfit(device_find(runs[i].device), &c, runs[i].steps, runs[i].how, &hash[i]), 0.05,
                    "%s overfits one batch in %d steps: loss", runs[i].what, runs[i].steps);
        if (i == 0) overfit(device_find(runs[i].device), &c, runs[i].steps, runs[i].how, &again);
    }
    check(hash[0] == again && hash[0] != hash[3], "the same run gives the same bits, and rounded routing others");
}

/* A NaN in one weight: there is no update, the tensor is found, and the state is unchanged. */
static void bad_gradient(void) {
    const Device *dev = device_find("cpu-f32");
    const Config c = config_of("m2:c32h4e4k2f32a4x2n0", TOPK_SOFTMAX, SWIGLU, 1);
    const Tensor *broken = NULL;
    const double nan = NAN;
    Trainee t;
    int bad;
    check(trainee_open(&t, dev, &c, (TraineeOptions){ .B = 1, .T = 16, .gradients = FLOATX, .seed = 3 }), "memory");
    for (int i = 0; i < t.m.manifest.count; i++)
        if (strstr(t.m.manifest.at[i].name, "layers.1.mlp.output")) broken = &t.m.manifest.at[i];
    dev->from_double(float_at(&t.m, t.m.params, broken->offset), &nan, 1);
    const uint64_t before = trainee_hash(&t);
    trainee_do(&t, 0);
    check(isnan(trainee_loss(&t, &bad)) && bad >= 0, "a NaN weight shows in the loss and in the norm of the gradient");
    check(trainee_hash(&t) == before, "a NaN in the gradient changes no weight and no moment");
    check(t.o.updates == 0, "a skipped step does not count as an update");
    trainee_close(&t);
}

/* Norms and biases begin as ones and zeros, which hide what is not applied. */
static void vary_vectors(const Model *m) {
    const size_t biases = router_offset(m, m->routers);
    double *values = mem_alloc(m->manifest.total * sizeof *values);
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (t->kind != TENSOR_NORM && t->kind != TENSOR_BIAS && t->kind < TENSOR_VALUES) continue;
        for (size_t k = 0; k < t->count; k++) values[k] = (t->kind == TENSOR_NORM) + 0.3 * normal();
        m->dev->from_double(float_at(m, m->params, t->offset), values, t->count);
    }
    for (size_t k = 0; k < biases; k++) values[k] = 0.1 * normal();
    if (biases) m->dev->reals_from_double(m->bias, values, biases);
    free(values);
}

static void open_model(Model *m, const Device *dev, const Config *c, int B, int T, int micro_batches, Dtype gradients,
                       uint64_t seed) {
    model_plan_training(m, dev, c, B, T, 0, micro_batches, gradients, NULL);
    check(model_allocate(m), "memory");
    model_initialize(m, seed);
}
static double *all_gradients(const Model *m) {
    double *all = mem_alloc(m->manifest.total * sizeof *all);
    model_gradients(m, all);
    return all;
}

/* Experts in 4 bits have no initial values: draws codes and scales, of numbers up to 0.2. */
static void draw_4_bits(const Model *m) {
    for (int i = 0; m->codes && i < m->manifest.count; i++) {
        const Weight *w = &m->codes[i];
        const size_t n = w->format == OF_MXFP4 ? m->manifest.at[i].count : 0;
        unsigned char *drawn = mem_alloc(n / 2);
        for (size_t k = 0; k < n / 2; k++) drawn[k] = (unsigned char)(uniform() * 256);
        m->dev->upload((void *)w->at, drawn, n / 2);
        for (size_t k = 0; k < n / MXFP4_BLOCK; k++) drawn[k] = (unsigned char)(119 + uniform() * 3);
        m->dev->upload((void *)w->scale, drawn, n / MXFP4_BLOCK);
        free(drawn);
    }
}
/* Weights are in codes in a model that is not trained. */
static void open_to_decode(Model *m, const Device *dev, const Config *c, int B, int T) {
    if (!c->weights && !c->experts_in) { open_model(m, dev, c, B, T, 1, FLOATX, 9); return; }
    model_plan_inference(m, dev, c, B, T, 0, NULL);
    check(model_allocate(m), "memory");
    model_initialize(m, 9);
    draw_4_bits(m);
}
double decoding_errors(const Device *dev, const Config *c, int B, int T, int first, double bound) {
    const size_t N = (size_t)(B * T), V = (size_t)c->vocab;
    int *tokens = mem_alloc(N * sizeof *tokens), *head = mem_alloc(N * sizeof *head);
    int *next = mem_alloc((size_t)B * sizeof *next);
    double *full = mem_alloc(N * V * sizeof *full), *logits = mem_alloc((size_t)B * V * sizeof *logits);
    int wrong = 0, all = 0;
    Model m;
    Decoder d;
    open_to_decode(&m, dev, c, B, T);
    vary_vectors(&m);
    for (size_t i = 0; i < N; i++) tokens[i] = (int)(uniform() * c->vocab);
    model_batch(&m, tokens, NULL, B, T);
    model_forward(&m);
    model_logits(&m, 0, B * T);
    dev->to_double(full, m.s.logits, N * V);

    check(decoder_open(&d, dev, c, B, T, &m), "decoder memory");
    for (int b = 0; b < B; b++) memcpy(head + b * first, tokens + b * T, (size_t)first * sizeof *head);
    for (int t = first; t <= T; t++) {
        for (int b = 0; b < B; b++) next[b] = tokens[b * T + t - 1];
        check(t == first ? decoder_feed(&d, head, first) : decoder_feed(&d, next, 1), "fits");
        dev->to_double(logits, d.logits, (size_t)B * V);
        for (int b = 0; b < B; b++) {
            const double error = relative_error(logits + (size_t)b * V, full + (size_t)(b * T + t - 1) * V, V);
            wrong += !(error <= bound), all++;
        }
    }
    check(!decoder_feed(&d, tokens, 1), "a full cache takes no more");
    decoder_close(&d), model_free(&m);
    free(tokens); free(head); free(full); free(logits); free(next);
    return (double)wrong / all;
}

/* A pause between halves of layers changes no bit, and what it gives up leaves nothing behind. */
typedef struct { int calls, last; } Pauses;
static int pause_until(void *with) { return ++((Pauses *)with)->calls != ((Pauses *)with)->last; }
static void pauses(const char *descriptor) {
    enum { T = 20, LAYERS = 3 };
    const Device *dev = device_find("cpu-f32");
    Error e;
    Config c;
    check(config_parse(&c, descriptor, &e), "%s: %s", descriptor, e.text);
    c.vocab = 256, c.context = 64;
    Model m;
    Decoder d;
    Pauses p = { .last = -1 };
    int tokens[T];
    const size_t bytes = (size_t)c.vocab * dev->floatX_size;
    char *before = mem_alloc(bytes), *after = mem_alloc(bytes);
    model_plan_inference(&m, dev, &c, 1, 1, 0, NULL);
    check(model_allocate(&m) && decoder_open(&d, dev, &c, 1, 2 * T, &m), "memory");
    model_initialize(&m, 5);
    for (int i = 0; i < T; i++) tokens[i] = (int)(uniform() * c.vocab);
    decoder_feed(&d, tokens, T);
    dev->download(before, d.logits, bytes);
    d.model.pause = pause_until, d.model.pause_with = &p;
    for (int last = 2 * LAYERS + 1; last >= 0; last--) {            /* 0: of none */
        p = (Pauses){ .last = last };
        decoder_reset(&d);
        decoder_feed(&d, tokens, T);
        check(p.calls == (last ? last : 2 * LAYERS + 1) && d.model.stopped == (last > 0),
              "%s: a pass pauses twice in each layer, and stops when told: %d of %d", descriptor, p.calls, last);
    }
    dev->download(after, d.logits, bytes);
    check(!memcmp(before, after, bytes), "%s: the same logits", descriptor);
    p = (Pauses){ .last = 5 };
    check(decoder_feed(&d, tokens, T) && d.model.stopped && d.length == T + 4 && p.calls == 5,
          "%s: where tokens are read one by one, it pauses between them: %d, %d", descriptor, d.length, p.calls);
    decoder_close(&d), model_free(&m);
    free(before), free(after);
}

int steps_agree(const Device *dev, const Config *c, int B, Sampler s) {
    enum { FIRST = 3, STEPS = 12, BACK = 7 };
    const size_t row = (size_t)B;
    int *head = mem_alloc(FIRST * row * sizeof *head), *one = mem_alloc(STEPS * row * sizeof *one);
    int *many = mem_alloc(2 * STEPS * row * sizeof *many), same = 1;
    uint64_t *key = mem_alloc(row * sizeof *key);
    Model m;
    Decoder d;
    model_plan_inference(&m, dev, c, 1, 1, 0, NULL);
    check(model_allocate(&m) && decoder_open(&d, dev, c, B, FIRST + STEPS, &m), "memory");
    model_initialize(&m, 5);
    for (int i = 0; i < FIRST * B; i++) head[i] = (int)(uniform() * c->vocab);
    for (int b = 0; b < B; b++) key[b] = (uint64_t)(uniform() * 1e15);
    decoder_draw(&d, s, key);
    check(decoder_feed(&d, head, FIRST), "fits");
    for (int i = 0; i < STEPS; i++) {
        decoder_sample(&d, one + (size_t)i * row);
        check(decoder_feed(&d, one + (size_t)i * row, 1), "fits");
    }
    decoder_reset(&d);
    check(decoder_feed(&d, head, FIRST), "fits");
    decoder_queue(&d, 5, 0);
    decoder_queue(&d, STEPS - 5, 1);
    decoder_collect(&d, many, 0);
    decoder_collect(&d, many + 5 * row, 1);
    same &= !memcmp(one, many, STEPS * row * sizeof *one);
    decoder_rewind(&d, many + (STEPS - 1 - BACK) * row, FIRST + STEPS - BACK);
    check(d.length == FIRST + STEPS - BACK, "the decoder is rewound");
    decoder_queue(&d, BACK, 0);
    decoder_collect(&d, many, 0);
    same &= !memcmp(one + (STEPS - BACK) * row, many, BACK * row * sizeof *one);
    decoder_close(&d), model_free(&m);
    free(head); free(one); free(many); free(key);
    return same;
}

static void overwrite_activations(const Model *m) {        /* with NaN */
    for (int i = 0; i < m->arena.count; i++) {
        const ArenaEntry *a = &m->arena.at[i];
        if (a->category != MEM_KEPT && a->category != MEM_SHARED) continue;
        void *nan = mem_alloc(a->bytes);
        memset(nan, 0xff, a->bytes);
        m->dev->upload(*a->pointer, nan, a->bytes);
        m->dev->sync();
        free(nan);
    }
}
int forgets(const Device *dev, const Config *c, int B) {
    double *grads[2];
    Trainee t;
    check(trainee_open(&t, dev, c, (TraineeOptions){ .B = B, .T = c->context, .gradients = FLOATX, .seed = 3,
                                                     .balance = 0.01f }), "memory");
    t.adamw.lr = t.adamw.decay = 0;                         /* the weights stay the same */
    for (int run = 0; run < 2; run++) {
        if (run) overwrite_activations(&t.m), model_clear_activations(&t.m);
        trainee_do(&t, 0);
        grads[run] = trainee_gradients(&t);
    }
    int same = !memcmp(grads[0], grads[1], t.m.manifest.total * sizeof **grads);
    for (size_t i = 0; i < t.m.manifest.total; i++) same &= isfinite(grads[1][i]);
    trainee_close(&t), free(grads[0]), free(grads[1]);
    return same;
}

static void decoding_of(const Config *c, const char *descriptor) {
    const int T = 12;
    for (int first = 1; first <= T; first += first < 3 ? 1 : 4)
        check_error(decoding_errors(device_find("cpu-f32"), c, 3, T, first, 1e-4), 0,
                    "%s: decoding after %d tokens at once, fraction that differs from a full pass", descriptor, first);
    for (int B = 1; B <= 4; B += 3)
        check(steps_agree(device_find("cpu-f32"), c, B, (Sampler){ .temperature = 1, .top_p = 0.9f }),
              "%s: %d sequences, drawn ahead or one at a time", descriptor, B);
}
static void decoding(const char *descriptor, int scores) {
    const Config c = config_of(descriptor, scores, SWIGLU, 1);
    decoding_of(&c, descriptor);
}

/* Greedy text with penalties, token by token as the formula says: of the logits after all tokens so
 * far, those of tokens that are among them are divided by the first, negative ones multiplied; from
 * those that were drawn, presence and as many times frequency as they were are subtracted. */
static void penalties(float penalty, float presence, float frequency) {
    enum { PROMPT = 5, NEW = 30, ALL = PROMPT + NEW };
    static const volatile sig_atomic_t never = 0;
    const Config c = config_of("m2:c32h4e4k2f32a4x2n0", TOPK_SOFTMAX, SWIGLU, 0);
    const Device *dev = device_find("cpu-f64");
    const size_t V = (size_t)c.vocab;
    int ids[ALL], same = 0, changed = 0;
    double *logits = mem_alloc(V * sizeof *logits);
    Model m;
    model_plan_inference(&m, dev, &c, 1, ALL, 0, NULL);
    check(model_allocate(&m), "memory");
    model_initialize(&m, 5);
    Generator g = { .dev = dev, .penalty = penalty, .presence = presence, .frequency = frequency, .sequences = 1,
                    .interrupted = &never, .silent = 1, .weights_of = &m };
    check(generator_open(&g, &c, ALL, &(TextStyle){ 0 }), "memory");
    for (int i = 0; i < PROMPT; i++) ids[i] = (int)(random_uniform(3, (uint64_t)i) * c.vocab);
    generator_read(&g, ids, PROMPT, NULL, 0);
    generator_write(&g, NEW, 0);
    for (int t = PROMPT; t < ALL; t++) {
        int plain = 0, best = 0;
        model_batch(&m, ids, NULL, 1, t);
        model_forward(&m);
        model_logits(&m, t - 1, 1);
        dev->to_double(logits, m.s.logits, V);
        for (size_t v = 0; v < V; v++) if (logits[v] > logits[plain]) plain = (int)v;
        for (size_t v = 0; v < V; v++) {
            int seen = 0, drawn = 0;
            for (int i = 0; i < t; i++) seen |= ids[i] == (int)v, drawn += i >= PROMPT && ids[i] == (int)v;
            if (seen) logits[v] = logits[v] < 0 ? logits[v] * (double)penalty : logits[v] / (double)penalty;
            logits[v] -= (drawn > 0) * (double)presence + drawn * (double)frequency;
        }
        for (size_t v = 0; v < V; v++) if (logits[v] > logits[best]) best = (int)v;
        ids[t] = best;
        changed += best != plain;
        same += g.window[t] == best;
    }
    check(same == NEW && changed > 0, "penalties %g, %g, %g: %d of %d tokens as by the formula, which chose %d others",
          (double)penalty, (double)presence, (double)frequency, same, (int)NEW, changed);
    generator_close(&g), model_free(&m), free(logits);
}

/* arena_limit: two arenas that fit one after the other, but not both. */
static void memory_limit(void) {
    const Device *dev = device_find("cpu-f32");
    void *at[2];
    Arena a[2] = { 0 };
    arena_limit(1000);
    for (int i = 0; i < 2; i++) arena_add(&a[i], MEM_DATA, "half", &at[i], 512);
    check(arena_allocate(&a[0], dev) && !arena_allocate(&a[1], dev) && !a[1].base, "1024 bytes are more than 1000");
    arena_free(&a[0], dev);
    check(arena_allocate(&a[1], dev), "what is freed may be taken again");
    arena_free(&a[1], dev);
    arena_limit(0);
}
/* An SMoE MLP layer keeps only its input, the pre-activations of the experts, and the routing. */
static void memory_promise(void) {
    static const char *const models[] = { "m4:a8n0", "m2:c128h4e32k8f32a8x2n0", "m2:c128h4e64k4f64a8x2n0" };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Config c = config_of(models[i], TOPK_SOFTMAX, SWIGLU, 1);
        Model m;
        const size_t N = 4 * 16, S = N * (size_t)c.topk, X = 2;          /* bf16 */
        size_t kept = 0, routing = 0;
        model_plan_training(&m, device_find("cpu-bf16"), &c, 4, 16, 0, 1, FLOATX, NULL);
        for (int k = 0; k < m.arena.count; k++) {
            const ArenaEntry *a = &m.arena.at[k];
            if (a->category != MEM_KEPT) continue;
            if (!strcmp(a->name, "mlp_normed") || !strcmp(a->name, "pre")) kept += a->bytes;
            if (!strncmp(a->name, "mlp.", 4) || !strcmp(a->name, "mlp_rstd")) routing += a->bytes;
            check(strcmp(a->name, "act") && strcmp(a->name, "rows"),
                  "%s: neither activations nor expert outputs are kept", models[i]);
        }
        const size_t promise = (size_t)c.layers * (X * N * (size_t)c.channels + 2 * X * S * (size_t)c.width);
        check(kept == promise, "%s keeps %zu bytes for its MLP layers, 2NC + 4SF is %zu", models[i], kept, promise);
        check(routing <= (size_t)c.layers * (N * (size_t)c.experts * 2 + 24*S + 8*N + 16*256 + 4 * (size_t)c.experts),
              "%s: %zu bytes of routing", models[i], routing);
        model_free(&m);
    }
}

static void look_further(Model *m, int further) {
    m->further = further;
    m->further_weight[0] = 0.5f, m->further_weight[1] = 0.25f;
}
/* The gradients of a step whose micro-batches are the rows (M,T), sent at once. coef: of routers'
 * losses, whose sums over M are added to sums (2). */
static double *gradients_sent(const Device *dev, const Config *c, int further, int M, int T, const int *tokens,
                              const int *targets, const int *position, float coef, double sums[2]) {
    const uint64_t keys[2] = { 0 };
    Model m;
    open_model(&m, dev, c, 1, T, M, REAL, 4);
    look_further(&m, further);
    m.balance_coef = m.z_coef = coef;
    model_scale_loss(&m, 1.0 / M);
    model_send(&m, tokens, targets, position, keys, 1, T);
    for (int micro = 0; micro < M; micro++) {
        model_begin_micro(&m, micro);
        model_learn(&m, 1.0f / (float)M);
        model_end_micro(&m, micro);
        StepResults r = model_results(&m);
        for (int i = 0; i < 2 * m.routers; i++) sums[i % 2] += r.losses[i];
        results_free(&r);
    }
    double *all = all_gradients(&m);
    model_free(&m);
    return all;
}
double packing_error(const Device *dev, const Config *c, int further, double *loss) {
    enum { T = 24, N = 2 * T };
    static const int lengths[] = { 9, 1, 14, 5, 19 };           /* of the first row, and of the second */
    int tokens[N], targets[N], position[N];
    double sums[2] = { 0, 0 }, routers[2] = { 0, 0 }, one, *grads[3];
    Model m;
    open_model(&m, dev, c, 2, T, 1, REAL, 4);
    look_further(&m, further);
    model_scale_loss(&m, 0.5);
    for (int n = 0; n < N; n++) {
        tokens[n] = (int)(random_uniform(6, (uint64_t)n) * c->vocab);
        targets[n] = random_uniform(7, (uint64_t)n) < 0.3f ? -1 : (int)(random_uniform(8, (uint64_t)n) * c->vocab);
    }
    for (int i = 0, n = 0; i < (int)(sizeof lengths / sizeof *lengths); i++)
        for (int t = 0; t < lengths[i]; t++) position[n++] = t;
    for (int packed = 0; packed < 2; packed++) {
        for (int i = 0, at = 0; at < N; at += packed ? N : lengths[i++]) {
            model_set_phase(&m, at ? PHASE_MIDDLE : PHASE_FIRST);
            model_batch(&m, tokens + at, targets + at, packed ? 2 : 1, packed ? T : lengths[i]);
            if (packed) model_pack(&m, position);
            model_learn(&m, 0);
            dev->reals_to_double(&one, m.loss_sum, 1);
            sums[packed] += one;
        }
        grads[packed] = all_gradients(&m);
    }
    grads[2] = gradients_sent(dev, c, further, 2, T, tokens, targets, position, 0, routers);
    const double error = fmax(relative_error(grads[1], grads[0], m.manifest.total),
                              relative_error(grads[2], grads[0], m.manifest.total));
    *loss = fabs(sums[1] / sums[0] - 1);
    for (int i = 0; i < 3; i++) free(grads[i]);
    model_free(&m);
    return error;
}
/* Two samples learn the same in rows of any length: the filler behind them is in no statistic, of
 * choices that are balanced, of the gradient. Tokens whose target does not count are in all. */
static void filler(const char *descriptor, int scores) {
    enum { M = 2, SHORT = 13, LONG = 40 };
    static const int lengths[M] = { 13, 6 };
    const Config c = config_of(descriptor, scores, SWIGLU, 0);
    const Device *dev = device_find("cpu-f64");
    double sums[3][2] = { { 0 } }, *grads[3];
    size_t total = 0;
    for (int run = 0; run < 3; run++) {                     /* 2: all targets count */
        const int T = run ? LONG : SHORT;
        int tokens[M * LONG], targets[M * LONG], position[M * LONG];
        for (int m = 0; m < M; m++)
            for (int t = 0, n = m * T; t < T; t++, n++) {
                const uint64_t i = (uint64_t)(100 * m + t);
                const int is_sample = t < lengths[m];
                tokens[n] = is_sample ? (int)(random_uniform(6, i) * c.vocab) : 0;
                targets[n] = !is_sample ? FILLER : t % 3 || run == 2 ? (int)(random_uniform(8, i) * c.vocab) : -1;
                position[n] = is_sample ? t : t - lengths[m];
            }
        grads[run] = gradients_sent(dev, &c, 0, M, T, tokens, targets, position, 0.5f, sums[run]);
    }
    Model m;
    model_plan_training(&m, dev, &c, 1, LONG, 0, 1, REAL, NULL);
    total = m.manifest.total;
    model_free(&m);
    check_error(relative_error(grads[1], grads[0], total), 1e-12, "%s: gradients with more filler", descriptor);
    for (int i = 0; i < 4; i++)
        check_error(fabs(sums[1 + i / 2][i % 2] / sums[0][i % 2] - 1), 1e-12, "%s: %s loss with %s", descriptor,
                    i % 2 ? "z" : "balance", i < 2 ? "more filler" : "more targets");
    check(sums[0][0] > 0 && sums[0][1] > 0, "%s has routers' losses", descriptor);
    for (int i = 0; i < 3; i++) free(grads[i]);
}
static void packing(const Config *c, const char *model) {
    static const struct { const char *device; double bound; } devices[] = { { "cpu-f64", 1e-12 }, { "cpu-f32", 1e-5 } };
    for (int i = 0; i < 2; i++) {
        double loss;
        check_error(packing_error(device_find(devices[i].device), c, 1, &loss), devices[i].bound,
                    "%s on %s: gradients of packed samples and further targets", model, devices[i].device);
        check_error(packing_error(device_find(devices[i].device), c, 0, &loss), devices[i].bound,
                    "%s on %s: gradients of packed samples", model, devices[i].device);
        check_error(loss, devices[i].bound, "%s on %s: their loss", model, devices[i].device);
    }
}

/* Gradients with those of matrices as `dtype`; every micro-batch has the same random tokens. */
static double *gradients_stored(Model *m, const char *model, Dtype dtype, int micro_batches) {
    const int B = 2, T = 16, N = B * T;
    const Config c = config_of(model, TOPK_SOFTMAX, SWIGLU, 1);
    int *tokens = mem_alloc((size_t)(N + 1) * sizeof *tokens);
    for (int n = 0; n <= N; n++) tokens[n] = (int)(random_uniform(5, (uint64_t)n) * c.vocab);
    open_model(m, device_find("cpu-bf16"), &c, B, T, micro_batches, dtype, 2);
    for (int i = 0; i < micro_batches; i++) {
        model_set_phase(m, i == 0 ? PHASE_FIRST : PHASE_MIDDLE);
        model_batch(m, tokens, tokens + 1, B, T);
        model_scale_loss(m, (double)(1.0f / (float)(N * micro_batches)));
        model_learn(m, 1.0f / (float)micro_batches);
    }
    free(tokens);
    return all_gradients(m);
}
/* Gradients of matrices stored as floatX are those stored as reals, rounded once. Sums of several
 * micro-batches are not rounded. */
static void rounded_gradients(void) {
    static const char *const models[] = { "m2:c32h4e4k2f32a4x2n0", "m2:c32h4q2e4k2f32a1s1n0", "d2:c32h4f64n0",
                                          "u2:c32h4e4k2f32a4x2n0" };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Model exact, coarse, several;
        double *want = gradients_stored(&exact, models[i], REAL, 1),
            *got = gradients_stored(&coarse, models[i], FLOATX, 1);
        double *sum = gradients_stored(&several, models[i], FLOATX, 2);
        const Manifest *m = &coarse.manifest;
        double *once = mem_alloc(m->total * sizeof *once);                  /* want, rounded */
        floatX *x = exact.dev->alloc(m->total * exact.dev->floatX_size);
        exact.dev->from_double(x, want, m->total);
        exact.dev->to_double(once, x, m->total);
        exact.dev->release(x);
        size_t bytes = 0, different = 0, twice = 0;
        for (int t = 0; t < m->count; t++) {
            const int rounded_here = !exact.config.universal && m->at[t].layer >= 0 && m->at[t].rank > 1;
            bytes += m->at[t].count * (rounded_here ? 2 : 4);
            check(m->at[t].dtype == (rounded_here ? FLOATX : REAL), "%s: %s is stored right", models[i], m->at[t].name);
            check(several.manifest.at[t].dtype == REAL, "%s: %s is a sum", models[i], m->at[t].name);
            for (size_t j = m->at[t].offset; j < m->at[t].offset + m->at[t].count; j++) {
                different += got[j] != (rounded_here ? once[j] : want[j]);
                twice += !(fabs(sum[j] - want[j]) <= 1e-5 * fabs(want[j]) + 1e-9);
            }
        }
        check(different == 0, "%s: gradients are rounded once, %zu are not", models[i], different);
        check(twice == 0, "%s: two equal micro-batches have the gradients of one, %zu differ", models[i], twice);
        check(m->gradient_bytes >= bytes && m->gradient_bytes < bytes + 4 * 64 * (size_t)m->count,
              "%s: %zu bytes of gradients, in %zu of memory", models[i], bytes, m->gradient_bytes);
        model_free(&exact), model_free(&coarse), model_free(&several), free(want), free(got), free(sum), free(once);
    }
}

static void descriptors(void) {
    static const char *const good[] = { "m4", "d12", "u12", "m6", "m12:e64k8f256", "m12:c768h12e64k8f256s1a8x2",
        "m16:c2048e64k8f1024a1", "d4:q2", "m12:a8n1z2i100u1v2l20w250y100", "m12:a8n0x2q3", "m4:n2", "d12:n1z1u1",
        "m4:n0u0", "d12:v2g1j3o9t5p1l20" };
    static const char *const bad[] = { "", "x4", "m", "m0", "m4:", "m4:e", "m4:e8e9", "m4:k9", "m4:m3", "m4:z3",
        "m4:a8n2", "m4:a1b1", "d4:w200", "u4:v1", "m4:c100h3", "m4:h5", "m4:q3h4", "m4:d3", "m4:e8k0", "d4:s1", "m4x",
        "m99999", "m4:c99999999999", "m4:c-8", "m4:a1x2", "d4:q3", "u4:t2", "u4:p1", "m4:g1", "m4:v1g2", "m4:p2" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Config c, again;
        Error e;
        char text[128];
        check(config_parse(&c, good[i], &e), "%s: %s", good[i], e.text);
        config_descriptor(&c, text);
        check(config_parse(&again, text, &e) && config_same(&c, &again, &e), "%s is %s: %s", good[i], text, e.text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Config c;
        Error e;
        check(!config_parse(&c, bad[i], &e) && e.text[0], "descriptor \"%s\" is refused", bad[i]);
    }
    Config c;
    Error e;
    Model m;
    check(config_parse(&c, "m4", &e), "m4");
    c.vocab = 256, c.context = 64;
    model_plan_training(&m, device_find("cpu-f32"), &c, 1, 1, 0, 1, FLOATX, NULL);
    size_t sum = 0;
    for (int i = 0; i < m.manifest.count; i++) sum += m.manifest.at[i].count;
    check(sum == m.manifest.learnable, "the manifest counts %zu parameters, its tensors have %zu",
          m.manifest.learnable, sum);
    check(config_active(&c, sum) < sum / 2, "m4: %zu of %zu parameters are active", config_active(&c, sum), sum);
    model_free(&m);
    check(config_parse(&c, "d4:c128h4v2t3", &e), "tables");
    c.vocab = 256, c.context = 64;
    model_plan_training(&m, device_find("cpu-f32"), &c, 1, 1, 0, 1, FLOATX, NULL);
    const size_t unread = (size_t)(2 * 255 * 128 + (3 * 256 - 1) * 128);
    check(config_active(&c, m.manifest.learnable) == m.manifest.learnable - unread, "of a table a token reads a row");
    model_free(&m);
}

/* Weights are drawn in parts (the embedding has several), floats several at a time: the same
 * values. */
static void initial_weights(const char *device) {
    const Config c = trainee_config("d1:c32h4f64n0", 20000, 8);
    const Device *dev = device_find(device);
    Model m;
    model_plan_inference(&m, dev, &c, 1, 8, 8, NULL);
    if (!model_allocate(&m)) fail(EXIT_MEMORY, "no memory for the weights of a test");
    model_initialize(&m, 7);
    double *got = mem_alloc(m.manifest.total * sizeof *got), *want = mem_alloc(m.manifest.total * sizeof *want);
    dev->to_double(got, m.params, m.manifest.total);
    for (int i = 0; i < m.manifest.count; i++) {
        const Tensor *t = &m.manifest.at[i];
        manifest_initial(t, 7, 0, t->count, 1, want);
        for (size_t n = 0; n < t->count && dev->real_size == sizeof(float); n++) want[n] = (double)(float)want[n];
        check(!memcmp(got + t->offset, want, t->count * sizeof *want),
              "%s: initial values of %s are those of the whole tensor", device, t->name);
    }
    free(got), free(want), model_free(&m);
}

static void forgetting(void) {
    Config tiled = config_of("m2:c32h4e4k2f32a4x2n0", TOPK_SOFTMAX, SWIGLU, 1);
    tiled.rounding = 1, tiled.tile = 16;
    check(forgets(device_find("cpu-bf16"), &tiled, 3),
          "with rounded routing, model_clear_activations removes all traces of a batch that was not finite");
    const Config recipe = config_of("m2:c32h6d8q2e4k2f32a4x3n1l3v1w200", TOPK_SOFTMAX, SWIGLU, 0);
    const Config tables = config_of("m3:c32h4q2e4k2f32v2g1j2o6t3p1n1", TOPK_SOFTMAX, SWIGLU, 1);
    check(forgets(device_find("cpu-f32"), &tables, 3), "with tables and their gates likewise");
    check(forgets(device_find("cpu-f32"), &recipe, 3),
          "with a recipe's ingredients likewise, and all gradients begin at zero");
}

void test_model(void) {
    PART(initial_weights("cpu-f64"));
    PART(initial_weights("cpu-f32"));
    PART(descriptors());
    PART(gradients());
    PART(bf16());
    PART(penalties(1.5f, 0, 0));
    PART(penalties(0.8f, 0, 0));
    PART(penalties(1, 0.7f, 0));
    PART(penalties(1, 0, 0.4f));
    PART(penalties(1.2f, -0.3f, 0.2f));
    PART(memory_promise());
    PART(memory_limit());
    PART(rounded_gradients());
    PART(forgetting());
    PART(pauses("m3:c32h4e4k2f32"));
    PART(decoding("m2:c32h4e4k2f32a4x2n0", TOPK_SOFTMAX));
    PART(decoding("m2:c32h4q2e4k2f32a1s1n0", SIGMOID_TOPK));
    for (int k = 0; family_case(k, NULL); k++) {
        Config c = trainee_config(family_case(k, NULL), 29, 16);
        family_case(k, &c);
        PART(decoding_of(&c, family_case(k, NULL)));
        PART(packing(&c, family_case(k, NULL)));
    }
    PART(decoding("u2:c32h4e4k2f32a4x2n0", SOFTMAX_TOPK));
    PART(decoding("d2:c32h4q2f64n0", TOPK_SOFTMAX));
    PART(decoding("m2:c32h6d8q2e4k2f32a4x3n1u1l3v1w200", TOPK_SOFTMAX));
    PART(decoding("d2:c32h4q2f64n1l3", TOPK_SOFTMAX));
    PART(decoding("m3:c32h4q2e4k2f32v2g1j2o6t3p1n1", TOPK_SOFTMAX));
    static const char *const packed[] = { "m2:c32h4e4k2f32a4x2n0", "m2:c32h6d8q2e4k2f32a4x3n1l3v1",
                                          "u2:c32h4q2e4k2f32a1s1n0", "m3:c32h4q2e4k2f32v2g1j2o6t3p1n1" };
    for (int k = 0; k < 4; k++) {
        const Config c = config_of(packed[k], TOPK_SOFTMAX, SWIGLU, 1);
        PART(packing(&c, packed[k]));
        PART(filler(packed[k], k ? SIGMOID_TOPK : TOPK_SOFTMAX));
    }
    PART(bad_gradient());
    PART(training());
    test_fp8();
    test_codes();
    test_recompute();
    test_cost();
    test_relay();
}
