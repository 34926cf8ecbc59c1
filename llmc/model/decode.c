/* decode.c: see decode.h. The model is pass.c's; only keys and values come from a cache. */
#include "decode.h"
#include "batch.h"
#include "pass.h"
#include "plan.h"
#include "relay.h"
#include <stdlib.h>
#include <string.h>

static void plan(Decoder *d, const Device *dev, const Config *c, int sequences, int capacity, const Model *weights_of,
                 Relay *relay) {
    const int chunk = 4096 / sequences > 1 ? 4096 / sequences : 1;
    const size_t B = (size_t)sequences;
    Model *m = &d->model;
    *d = (Decoder){ .sequences = sequences, .chunk = chunk < capacity ? chunk : capacity };
    if (relay) model_plan_dealt(m, dev, c, sequences, d->chunk, capacity, relay);
    else model_plan_inference(m, dev, c, sequences, d->chunk, capacity, weights_of);
    d->replay.off = relay != NULL;                          /* work of several devices is not recorded */
    arena_add(&m->arena, MEM_SHARED, "next logits", &d->logits, B * (size_t)c->vocab * dev->floatX_size);
    arena_add(&m->arena, MEM_DATA, "drawn tokens", &d->log, B * (size_t)capacity * sizeof *d->log);
    arena_add(&m->arena, MEM_DATA, "sampling keys", &d->keys, B * sizeof *d->keys);
}
int decoder_open(Decoder *d, const Device *dev, const Config *c, int sequences, int capacity, const Model *weights_of) {
    plan(d, dev, c, sequences, capacity, weights_of, NULL);
    return model_allocate(&d->model);
}
void decoder_plan_dealt(Decoder *d, const Device *dev, const Config *c, int sequences, int capacity, Relay *relay) {
    plan(d, dev, c, sequences, capacity, NULL, relay);
}
size_t decoder_bytes(const Device *dev, const Config *c, int sequences, int capacity, const Model *weights_of) {
    Decoder d;
    plan(&d, dev, c, sequences, capacity, weights_of, NULL);
    const size_t bytes = d.model.arena.total;
    model_free(&d.model);
    return bytes;
}
void decoder_close(Decoder *d) {
    replay_free(&d->replay, d->model.dev);
    model_free(&d->model);
}
void decoder_reset(Decoder *d) { d->length = d->model.stopped = 0; }

/* The model on m->batch.tokens, up to the logits after the last token of every sequence. */
static void forward(Decoder *d) {
    Model *m = &d->model;
    const size_t V = (size_t)m->config.vocab, C = (size_t)m->config.channels;
    const size_t B = (size_t)d->sequences, T = (size_t)m->batch.T;
    model_forward(m);
    if (m->stopped) return;
    if (T == 1) { model_next(m, d->logits); return; }
    for (size_t b = 0; b < B; b++)
        m->dev->matmul_forward(float_at(m, d->logits, b*V), float_at(m, m->final, (b*T + T - 1) * C), m->p.head, 1,
                               (int)C, (int)V);
    model_cap(m, d->logits, (int)B);
}

/* Positions of the next T tokens of each sequence, and their rows in the cache. */
static void set_positions(Decoder *d, int from, int T) {
    Model *m = &d->model;
    const int B = d->sequences, N = B * T;
    int *position = mem_alloc((size_t)N * 2 * sizeof *position), *at = position + N;
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            position[b*T + t] = from + t;
            at[b*T + t] = b * m->cache_capacity + from + t;
        }
    m->batch.B = B, m->batch.T = T, m->batch.N = N;
    model_position(m, position);
    m->dev->upload(m->cache_row, at, (size_t)N * sizeof *at);
    free(position);
}

int decoder_feed(Decoder *d, const int *tokens, int count) {
    Model *m = &d->model;
    const size_t B = (size_t)d->sequences;
    if (count > m->cache_capacity - d->length) return 0;
    for (int t = 0, T; t < count && model_goes_on(m); t += T) {     /* many into an empty cache, then one by one */
        T = d->length ? 1 : count < d->chunk ? count : d->chunk;
        int *batch = mem_alloc(B * (size_t)T * sizeof *batch);
        for (size_t b = 0; b < B; b++)
            memcpy(batch + b * (size_t)T, tokens + b * (size_t)count + t, (size_t)T * sizeof *batch);
        m->dev->upload(m->batch.tokens, batch, B * (size_t)T * sizeof *batch);
        set_positions(d, d->length, T);
        forward(d);
        d->length += T;
        free(batch);
    }
    if (count && m->batch.T > 1) set_positions(d, d->length - 1, 1);      /* where decoder_queue continues */
    return 1;
}

void decoder_draw(Decoder *d, Sampler s, const uint64_t *key) {
    d->sampler = s;
    d->model.dev->upload(d->keys, key, (size_t)d->sequences * sizeof *key);
}

static void draw(Decoder *d) {
    const Model *m = &d->model;
    m->dev->sample(m->batch.tokens, d->logits, d->keys, m->batch.position, d->sampler, d->sequences, m->config.vocab,
                   m->used_vocab);
}
void decoder_sample(Decoder *d, int *tokens) {
    draw(d);
    d->model.dev->download(tokens, d->model.batch.tokens, (size_t)d->sequences * sizeof *tokens);
}

int decoder_is_finite(const Decoder *d) {
    const Model *m = &d->model;
    const size_t row_bytes = (size_t)m->config.vocab * m->dev->floatX_size, used = (size_t)m->used_vocab;
    char *logits = mem_alloc((size_t)d->sequences * row_bytes);
    int finite = 1;
    m->dev->download(logits, d->logits, (size_t)d->sequences * row_bytes);
    for (int b = 0; b < d->sequences && finite; b++)
        finite = first_not_finite(m->dev->dtype, logits + (size_t)b * row_bytes, used) == used;
    free(logits);
    return finite;
}

static void step(void *decoder) {
    Decoder *d = decoder;
    const Model *m = &d->model;
    draw(d);
    m->dev->advance(m->batch.position, m->cache_row, d->log, m->batch.tokens, d->sequences);
    forward(d);
}
void decoder_queue(Decoder *d, int count, int slot) {
    const Device *dev = d->model.dev;
    const size_t B = (size_t)d->sequences, from = (size_t)d->length;
    const uint64_t state = hash_bytes(model_state(&d->model), &d->sampler, sizeof d->sampler);
    for (int i = 0; i < count; i++) replay_run(&d->replay, dev, state, step, d);
    dev->post(slot, d->log + from * B, (size_t)count * B * sizeof *d->log);
    d->posted[slot] = count;
    d->length += count;
}
void decoder_collect(Decoder *d, int *tokens, int slot) {
    d->model.dev->collect(tokens, slot, (size_t)d->posted[slot] * (size_t)d->sequences * sizeof *tokens);
}

void decoder_rewind(Decoder *d, const int *tokens, int length) {
    d->length = length - 1;
    decoder_feed(d, tokens, 1);
}
