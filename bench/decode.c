/* decode.c: see layers.h. Published models with random weights, and small ones of ours: how fast
 * they are loaded and how fast they write. */
#define _POSIX_C_SOURCE 200809L
#include "layers.h"
#include "llmc/files/hf.h"
#include "llmc/model/decode.h"
#include "llmc/model/plan.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct { const char *name, *descriptor; int scores, vocab, gpu; } Published;
static const Published models[] = {
    { "m4",             "m4:a8n0",                                     TOPK_SOFTMAX, 256,    0 },
    { "m4 plain",       "m4:n0",                                       TOPK_SOFTMAX, 256,    0 },
    { "m4 plain, norm", "m4",                                          TOPK_SOFTMAX, 256,    0 },
    { "m12",            "m12:a8n0",                                    TOPK_SOFTMAX, 50304,  1 },
    { "m12 plain",      "m12:n0",                                      TOPK_SOFTMAX, 50304,  1 },
    { "m12 plain, norm","m12:u1",                                      TOPK_SOFTMAX, 50304,  1 },
    { "m12 e64",        "m12:e64k8f256u1",                             TOPK_SOFTMAX, 16384,  1 },
    { "OLMoE-1B-7B",    "m16:c2048h16d128e64k8f1024n2u1",              SOFTMAX_TOPK, 50304,  1 },
    { "Qwen3, 8 layers", "m8:c2048h32d128q4e128k8f768u1",              TOPK_SOFTMAX, 16384,  1 },
    { "Qwen3-30B-A3B",  "m48:c2048h32d128q4e128k8f768u1",              TOPK_SOFTMAX, 151936, 1 },
    { "gpt-oss, 8 layers", "m8:c2880h64d64q8e32k4f2880n0u1",           TOPK_SOFTMAX, 16384,  1 },
};
enum { MODELS = sizeof models / sizeof *models, CONTEXT = 1024, PROMPT = 64, WARM = 16, STEPS = 240 };

static Config config_of(const Published *p) {
    Config c = trainee_config(p->descriptor, p->vocab, CONTEXT);
    c.scores = p->scores;
    if (!strncmp(p->name, "gpt-oss", 7)) {                /* what no descriptor says */
        c.activation = CLAMPED, c.attention_bias = 2, c.sinks = c.expert_bias = 1, c.window = 128;
        for (int l = 0; l < c.layers; l += 2) layers_add(&c.windowed, l);
        c.rope = (RopeScaling){ ROPE_YARN, 1, 32, 1, 32, 4096, 1.3466, 0 };
    }
    return c;
}
static int fits(const Device *dev, const Published *p, const char *filter) {
    return (p->gpu == dev->is_gpu || filter) && (!filter || strstr(p->name, filter));
}

/* Random matrices, norms of ones. */
static void fill_weights(Model *m) {
    fill_normal(m->dev, m->params, m->manifest.total, 11, 0.02);
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (t->kind != TENSOR_NORM && t->kind != TENSOR_BIAS) continue;
        double *values = mem_alloc(t->count * sizeof *values);
        manifest_initial(t, 1, 0, t->count, 0, values);
        m->dev->from_double(float_at(m, m->params, t->offset), values, t->count);
        free(values);
    }
}

/* Bytes of weights that a token needs: those of its experts, and of an untied embedding one row. */
static double bytes_of_token(const Model *m) {
    const Config *c = &m->config;
    const double all = (double)config_active(c, m->manifest.total) - (c->tied ? 0 : (double)c->vocab * c->channels);
    return all * (double)m->dev->floatX_size;
}

/* Tokens per second of one sequence. */
static double decode(Decoder *d) {
    int prompt[PROMPT], tokens[STEPS];
    for (int i = 0; i < PROMPT; i++) prompt[i] = i * 7 % d->model.config.vocab;
    decoder_reset(d);
    decoder_feed(d, prompt, PROMPT);
    decoder_draw(d, (Sampler){ 0 }, &(uint64_t){ 1 });
    decoder_queue(d, WARM, 0);
    decoder_collect(d, tokens, 0);
    const double start = now();
    decoder_queue(d, STEPS, 1);
    decoder_collect(d, tokens, 1);
    return STEPS / (now() - start);
}
/* Tokens per second of a prompt that fills the context, read at once. */
static double prefill(Decoder *d) {
    int prompt[CONTEXT], token;
    double runs[3];
    for (int i = 0; i < CONTEXT; i++) prompt[i] = i * 7 % d->model.config.vocab;
    for (int i = -1; i < 3; i++) {                          /* the first is not counted */
        decoder_reset(d);
        const double start = now();
        decoder_feed(d, prompt, CONTEXT);
        decoder_draw(d, (Sampler){ 0 }, &(uint64_t){ 1 });
        decoder_sample(d, &token);
        if (i >= 0) runs[i] = now() - start;
    }
    return CONTEXT / median(runs, 3);
}

static void bench_one(const Device *dev, const Published *p, const Copies *copies) {
    const Config c = config_of(p);
    Decoder d;
    if (!decoder_open(&d, dev, &c, 1, CONTEXT, NULL)) {
        printf("%-16s does not fit into this device's memory: it takes %.1f GB\n", p->name,
               (double)d.model.arena.total / 1e9);
        decoder_close(&d);
        return;
    }
    fill_weights(&d.model);
    Device general = *dev;
    general.decode = NULL;
    const double bytes = bytes_of_token(&d.model), limit = 1 / copy_seconds(copies, bytes);
    double runs[3];
    for (int i = 0; i < 3; i++) runs[i] = decode(&d);
    const double speed = median(runs, 3);
    const double reading = prefill(&d);
    d.model.dev = &general;
    replay_free(&d.replay, dev);
    const double without = decode(&d);
    printf("%-16s %9.2f MB  %9.0f tokens/s  %6.0f GB/s  %4.0f %%   by single operations %9.0f;  prompt %9.0f\n",
           p->name, bytes / 1e6, speed, speed * bytes / 1e9, 100 * speed / limit, without, reading);
    d.model.dev = dev;
    decoder_close(&d);
}
void bench_decoding(const Device *dev, const char *filter, const Copies *copies) {
    printf("\nDecoding on %s: one sequence, greedy, tokens %d to %d; weights that a token needs, and the share of the "
           "rate at which they are copied;\n"
           "prompt: tokens/s of %d tokens read at once\n",
           dev->name, PROMPT + WARM, PROMPT + WARM + STEPS, CONTEXT);
    for (int i = 0; i < MODELS; i++) if (fits(dev, &models[i], filter)) bench_one(dev, &models[i], copies);
}

/* ---- loading --------------------------------------------------------------------------------- */

static void load_one(const Device *dev, const Published *p, const char *folder) {
    const Config c = config_of(p);
    Model m;
    Error e;
    FileSum sum;
    char *path = text_format("%s/model.safetensors", folder);
    model_plan_inference(&m, dev, &c, 1, 1, 0, NULL);
    if (!model_allocate(&m)) printf("%-16s does not fit into this device's memory\n", p->name);
    else {
        fill_weights(&m);
        double start = now();
        if (!hf_save_small(folder, &m, NULL, NULL, &e) || !hf_save_weights(&m, path, 0, &sum, &e))
            fail(EXIT_DISK, "%s", e.text);
        printf("%-16s %9.2f GB  written in %.2f s;  loaded in", p->name, (double)sum.bytes / 1e9, now() - start);
        for (int i = 0; i < 3; i++) {
            fflush(stdout);
            start = now();
            if (!hf_load_weights(&m, folder, &e)) fail(EXIT_CHECKPOINT, "%s", e.text);
            dev->sync();
            const double seconds = now() - start;
            printf("  %.2f s (%.1f GB/s)", seconds, (double)sum.bytes / 1e9 / seconds);
        }
        printf("\n");
    }
    model_free(&m);
    free(path);
}
void bench_loading(const Device *dev, const char *filter, const char *folder) {
    printf("\nLoading on %s from %s, which stays there: train_moe -e and infer_moe take it\n", dev->name, folder);
    if (mkdir(folder, 0777) && !is_folder(folder)) fail(EXIT_DISK, "%s cannot be created", folder);
    for (int i = 0; i < MODELS; i++) if (fits(dev, &models[i], filter)) load_one(dev, &models[i], folder);
}
