/* generate.c: see generate.h. */
#include "generate.h"
#include "device.h"
#include "llmc/base/random.h"
#include "llmc/model/codes.h"
#include "llmc/model/plan.h"
#include <stdlib.h>
#include <string.h>

int generator_open(Generator *g, const Config *c, int capacity, const TextStyle *style) {
    const size_t B = (size_t)g->sequences;
    g->capacity = capacity;
    g->stream = mem_alloc(B * sizeof *g->stream);
    g->window = mem_alloc(B * (size_t)capacity * sizeof *g->window);
    for (size_t b = 0; b < B; b++) stream_open(&g->stream[b], style);
    if (g->relay) decoder_plan_dealt(&g->d, g->dev, c, g->sequences, capacity, g->relay);
    return g->relay ? model_allocate(&g->d.model)
                    : decoder_open(&g->d, g->dev, c, g->sequences, capacity, g->weights_of);
}
void generator_close(Generator *g) {
    for (int b = 0; b < g->sequences; b++) stream_close(&g->stream[b]);
    free_each(g->stream, g->window, g->drawn);
    view_close(&g->view);
    decoder_close(&g->d);
}
void generator_reset(Generator *g) {
    decoder_reset(&g->d);
    g->rounds++;
}
void generator_restart(Generator *g) {
    decoder_reset(&g->d);
    g->rounds = g->slides = g->full = 0;
    g->prompt_tokens = g->steps = g->tokens = g->positions = 0;
    g->prompt_time = g->time = 0;
    g->view.record.length = 0;
    free(g->drawn);
    g->drawn = NULL;
    for (int b = 0; b < g->sequences; b++) stream_restart(&g->stream[b]);
}

/* ---- reading tokens -------------------------------------------------------------------------- */

/* tokens (sequences, count), which must fit. experts (count): the first choices of the watched
 * router, or NULL. Then there is one sequence, and no pass overwrites the choices of another. */
static void feed(Generator *g, const int *tokens, int count, int *experts) {
    const int watched = experts && g->view.main;
    for (int t = 0, n; t < count; t += n) {
        n = !watched ? count : g->d.length ? 1 : count < g->d.chunk ? count : g->d.chunk;
        if (!decoder_feed(&g->d, tokens + t, n))
            fail(EXIT_MEMORY, "%d tokens do not fit into a context of %d", count, g->capacity);
        if (g->d.model.stopped) return;
        if (watched) view_read(&g->view, tokens + t, n, experts + t);
    }
}

/* Frees half of a full context by reading its last half again. Cached keys and values cannot be
 * moved instead: they were computed with the other half in view. */
static void slide(Generator *g) {
    const int B = g->sequences, length = g->d.length, keep = length < g->capacity / 2 ? length : g->capacity / 2;
    int *last = mem_alloc((size_t)B * (size_t)keep * sizeof *last);
    for (int b = 0; b < B; b++) {
        int *window = g->window + (size_t)b * (size_t)g->capacity;
        memmove(window, window + length - keep, (size_t)keep * sizeof *window);
        memcpy(last + (size_t)b * (size_t)keep, window, (size_t)keep * sizeof *window);
    }
    generator_reset(g);
    feed(g, last, keep, NULL);
    g->slides++;
    free(last);
}

/* The sampler skips NaN, so without this check a model that overflows would generate text. */
static void check_logits(const Generator *g) {
    if (g->trusts || g->d.model.stopped || decoder_is_finite(&g->d)) return;
    fflush(stdout);
    fail(EXIT_NUMERICS, "the model's logits are not finite on %s: its weights are damaged, or too large for "
         "this device (-dv)", g->dev->name);
}

static void read_tokens(Generator *g, const int *tokens, int count, int *experts) {
    if (count > g->capacity - g->d.length) slide(g);
    for (int b = 0; b < g->sequences; b++)
        memcpy(g->window + (size_t)b * (size_t)g->capacity + g->d.length, tokens + (size_t)b * (size_t)count,
               (size_t)count * sizeof *tokens);
    feed(g, tokens, count, experts);
}

void generator_read(Generator *g, const int *ids, int count, const char *text, size_t bytes) {
    const size_t B = (size_t)g->sequences, n = (size_t)count;
    int *tokens = mem_alloc(B * n * sizeof *tokens), *experts = mem_alloc(n * sizeof *experts);
    const double start = now();
    for (size_t b = 0; b < B; b++) memcpy(tokens + b * n, ids, n * sizeof *ids);
    read_tokens(g, tokens, count, experts);
    g->prompt_time += now() - start;
    g->prompt_tokens += (int64_t)(B * n);
    if (count) check_logits(g);
    for (size_t b = 0; b < B && !g->d.model.stopped; b++)
        stream_prompt(&g->stream[b], text, bytes, ids, experts, count);
    free_each(tokens, experts);
}

/* ---- drawing tokens -------------------------------------------------------------------------- */

static int all_ended(const Generator *g) {
    for (int b = 0; b < g->sequences; b++) if (!g->stream[b].ended) return 0;
    return 1;
}

static void set_sampler(Generator *g) {
    uint64_t *key = mem_alloc((size_t)g->sequences * sizeof *key);
    for (int b = 0; b < g->sequences; b++)
        key[b] = random_key(random_key(g->seed, (uint64_t)(g->first + b)), (uint64_t)g->rounds);
    decoder_draw(&g->d, g->sampler, key);
    free(key);
}

static int is_set(float x) { return x < 0 || x > 0; }
static int counts_drawn(const Generator *g) { return is_set(g->presence) || is_set(g->frequency); }
static int has_penalty(const Generator *g) { return (g->penalty > 0 && is_set(g->penalty - 1)) || counts_drawn(g); }
/* The logits of tokens in the cache, each once, are divided by the penalty, negative ones
 * multiplied (arXiv 1909.05858, section 4.1, as in Transformers). From those of tokens that were
 * drawn, presence and frequency are subtracted, as OpenAI does. By the host, step by step. */
static void penalize(Generator *g) {
    const Model *m = &g->d.model;
    const size_t B = (size_t)g->sequences, V = (size_t)m->config.vocab;
    if (!has_penalty(g)) return;
    double *logits = mem_alloc(B * V * sizeof *logits);
    g->dev->to_double(logits, g->d.logits, B * V);
    for (size_t b = 0; b < B; b++) {
        char *seen = mem_alloc(V);
        for (int i = 0; i < g->d.length; i++) {
            const size_t id = (size_t)g->window[b * (size_t)g->capacity + (size_t)i];
            double *x = logits + b * V + id;
            if (!seen[id] && g->penalty > 0) *x = *x > 0 ? *x / (double)g->penalty : *x * (double)g->penalty;
            seen[id] = 1;
        }
        for (size_t id = 0; g->drawn && id < V; id++)
            logits[b*V + id] -= (double)g->frequency * g->drawn[b*V + id] + (g->drawn[b*V + id] ? g->presence : 0);
        free(seen);
    }
    g->dev->from_double(g->d.logits, logits, B * V);
    free(logits);
}

static int is_end(const Generator *g, int token) {
    for (int i = 0; i < g->end_tokens; i++) if (g->end_token[i] == token) return 1;
    return 0;
}
/* One token of every sequence was drawn and read. Ended ones stay in the batch, ignored. */
static void take(Generator *g, const int *tokens, int expert, int ends) {
    for (int b = 0; b < g->sequences; b++) {
        Stream *o = &g->stream[b];
        if (o->ended) continue;
        g->tokens++;
        if (g->drawn) g->drawn[(size_t)b * (size_t)g->d.model.config.vocab + (size_t)tokens[b]]++;
        if (ends && is_end(g, tokens[b])) o->ended = 1;
        else stream_generated(o, tokens[b], expert);
    }
    g->steps++;
}

/* The context is full: draws a token from it, and reads that token after a slide. */
static void step_over(Generator *g, int *tokens, int *expert) {
    penalize(g);
    decoder_sample(&g->d, tokens);
    read_tokens(g, tokens, 1, expert);
    set_sampler(g);
}
/* A GPU is kept busy by double buffering: the next AHEAD steps are queued before the tokens of the
 * last AHEAD steps are read back. Steps after the end of a text are discarded. */
void generator_write(Generator *g, int limit, int ends) {
    enum { AHEAD = 12 };
    Decoder *d = &g->d;
    const size_t B = (size_t)g->sequences;
    const int ahead = g->dev->is_gpu && !g->view.main && !has_penalty(g);
    int *tokens = mem_alloc(B * AHEAD * sizeof *tokens), count[2] = { 0 }, expert = -1;
    int64_t left = limit > 0 ? limit : INT64_MAX;                   /* steps still to be queued */
    int read = d->length;                                           /* positions whose tokens are known here */
    const double start = now();
    g->full = 0;
    if (!g->drawn && counts_drawn(g)) g->drawn = mem_alloc(B * (size_t)d->model.config.vocab * sizeof *g->drawn);
    set_sampler(g);
    for (int slot = 0; !*g->interrupted && !g->d.model.stopped && !all_ended(g); slot ^= 1) {
        const int capacity = g->capacity - d->length, most = ahead ? AHEAD : 1, n = most < capacity ? most : capacity;
        const int older = ahead ? slot ^ 1 : slot;
        count[slot] = left < n ? (int)left : n;
        left -= count[slot];
        if (count[slot]) penalize(g), decoder_queue(d, count[slot], slot);
        else if (!count[older]) {
            g->full = !limit;
            if (!left || g->full) break;
            step_over(g, tokens, &expert);
            left--;
            take(g, tokens, expert, ends);
            g->positions += read = d->length;
        }
        if (count[older]) decoder_collect(d, tokens, older);
        if (count[older] && g->view.main) view_read(&g->view, tokens, 1, &expert);
        for (int i = 0; i < count[older] && !all_ended(g); i++, read++) {
            for (size_t b = 0; b < B; b++)
                g->window[b * (size_t)g->capacity + (size_t)read] = tokens[(size_t)i * B + b];
            take(g, tokens + (size_t)i * B, expert, ends);
            g->positions += read + 1;
        }
        count[older] = 0;
        if (!ahead) check_logits(g);
        if (!g->silent) stream_print(&g->stream[0], 0);
    }
    g->time += now() - start;
    check_logits(g);
    if (read < d->length) {
        for (size_t b = 0; b < B; b++) tokens[b] = g->window[b * (size_t)g->capacity + (size_t)read - 1];
        decoder_rewind(d, tokens, read);
    }
    free(tokens);
}

/* ---- speed ----------------------------------------------------------------------------------- */

static double per(double x, double y) { return y > 0 ? x / y : 0; }

/* What weights in codes save of the following. */
static double saved_by_codes(const Model *m) {
    const Config *c = &m->config;
    const double experts = (double)c->topk / c->experts, attention = (double)c->attention_topk / c->attention_experts,
        X = (double)m->dev->floatX_size;
    double saved = c->tied && m->codes ? (double)c->vocab * c->channels * (X - codes_bytes(m, m->manifest.count)) : 0;
    for (int i = 0; m->codes && i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        saved += (double)t->count * (t->rank < 3 ? 1 : t->kind == TENSOR_ATTENTION ? attention : experts)
               * (X - codes_bytes(m, i));
    }
    return saved;
}
/* Bytes that a decoding step reads per sequence: active weights, keys and values. An embedding that
 * is not also the head is not counted: a token reads one row of it. */
static double bytes_per_token(const Generator *g) {
    const Model *m = &g->d.model;
    const Config *c = &m->config;
    const size_t learnable = m->manifest.learnable + (m->relay ? relay_learnable(m->relay) : 0);
    const double weights = (double)config_active(c, learnable) - (c->tied ? 0 : (double)c->vocab * c->channels);
    const double row = 2.0 * c->layers * c->kv_heads * c->head_size;            /* of keys and values */
    double saved = saved_by_codes(m);
    for (int d = 0; m->relay && d < relay_devices(m->relay) - 1; d++) saved += saved_by_codes(relay_model(m->relay, d));
    return (weights + row * per((double)g->positions, (double)g->steps)) * (double)g->dev->floatX_size - saved;
}
void generator_report(const Generator *g, FILE *out) {
    if (!g->prompt_tokens && !g->tokens) return;
    const double bytes = bytes_per_token(g), rate = per(bytes * (double)g->steps, g->time);
    fflush(stdout);
    fprintf(out, "read %lld tokens of prompt at %.0f tokens/s, generated %lld tokens at %.0f tokens/s",
            (long long)g->prompt_tokens, per((double)g->prompt_tokens, g->prompt_time), (long long)g->tokens,
            per((double)g->tokens, g->time));
    if (g->sequences == 1)
        fprintf(out, "; each reads %.1f MB of weights and cache: %.1f GB/s", bytes / 1e6, rate / 1e9);
    if (g->sequences == 1 && g->dev->is_gpu && g->steps) {
        const double copy = device_copy_rate(g->dev);
        if (copy > 0) fprintf(out, ", %.1f %% of the %.0f GB/s of a copy", 100 * rate / copy, copy / 1e9);
    }
    if (g->slides)
        fprintf(out, "\nthe %d-token context overflowed %d time%s; each time only its last %d tokens were kept",
                g->capacity, g->slides, g->slides > 1 ? "s" : "", g->capacity / 2);
    else if (g->full) fprintf(out, "\nthe context of %d tokens is full; -n -1 continues", g->capacity);
    fputc('\n', out);
}
