/* decode.c: see decode.h. The model is the one of model.c; only where keys and
 * values lie differs (attention.c, step 5). */
#include "decode.h"
#include <stdlib.h>
#include <string.h>

int decoder_open(Decoder *d, const Device *dev, const Config *c, int sequences, int room, const Model *weights_of) {
    const int chunk = 4096 / sequences > 1 ? 4096 / sequences : 1;
    *d = (Decoder){ .sequences = sequences, .chunk = chunk < room ? chunk : room };
    model_plan_inference(&d->model, dev, c, sequences, d->chunk, room, weights_of);
    if (!model_allocate(&d->model)) return 0;
    d->logits = mem_alloc((size_t)sequences * (size_t)c->vocab * sizeof *d->logits);
    d->order = mem_alloc((size_t)c->vocab * sizeof *d->order);
    return 1;
}
void decoder_close(Decoder *d) {
    model_free(&d->model);
    free(d->logits);
    free(d->order);
}
void decoder_reset(Decoder *d) { d->length = 0; }

/* One pass of T tokens per sequence: into an empty cache any T up to the chunk, later one at a time. */
static void pass(Decoder *d, const int *tokens, int stride, int T) {
    Model *m = &d->model;
    const int B = d->sequences, N = B * T;
    int few[3 * 64], *batch = N <= 64 ? few : mem_alloc((size_t)N * 3 * sizeof *batch);
    int *position = batch + N, *row = position + N;
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            batch[b*T + t] = tokens[(size_t)b * (size_t)stride + (size_t)t];
            position[b*T + t] = d->length + t;
            row[b*T + t] = b * m->cache_room + d->length + t;
        }
    m->B = B;
    m->T = T;
    m->N = N;
    m->dev->upload(m->tokens, batch, (size_t)N * sizeof *batch);
    m->dev->upload(m->position, position, (size_t)N * sizeof *position);
    m->dev->upload(m->cache_row, row, (size_t)N * sizeof *row);
    model_forward(m);
    d->length += T;
    if (batch != few) free(batch);
}

int decoder_feed(Decoder *d, const int *tokens, int count) {
    Model *m = &d->model;
    const int V = m->config.vocab;
    if (count > m->cache_room - d->length) return 0;
    for (int t = 0, T; t < count; t += T) {
        T = d->length ? 1 : count < d->chunk ? count : d->chunk;
        pass(d, tokens + t, count, T);
    }
    for (int b = 0; count && b < d->sequences; b++) {
        model_logits(m, b * m->T + m->T - 1, 1);
        m->dev->to_double(d->logits + (size_t)b * (size_t)V, m->s.logits, (size_t)V);
    }
    return 1;
}

int decoder_sample(Decoder *d, int b, const Sampler *s) {
    return sample_token(s, d->logits + (size_t)b * (size_t)d->model.config.vocab, d->model.used_vocab,
                        d->order, (uint64_t)d->length);
}
