/* relay.c: see relay.h. */
#include "relay.h"
#include "batch.h"
#include "pass.h"
#include "plan.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A device before the last. Its thread waits for work, because a GPU belongs to one thread. */
typedef struct {
    Model m;
    int   from, to;                     /* its layers */
    int   which;                        /* its number among the devices of the machine */
    Relay *relay;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int (*work)(Model *m, void *context);       /* to be done; NULL: nothing */
    void *context;
    int   result, ends;
    const char *why;                    /* it could not be opened */
} Stage;
struct Relay {
    const Device *dev;
    Config config;
    int    devices, last_from;          /* the first layer of the last device */
    Stage *at;                          /* (devices - 1) */
    void  *stream;                      /* (N,C) */
    int   *tokens, *position, *row;     /* (N) of the batch; row: where keys go in the cache */
    int    N;                           /* that these have room for */
};

/* ---- threads --------------------------------------------------------------------------------- */

static void *serve(void *stage) {
    Stage *s = stage;
    s->why = s->relay->dev->open(s->which);
    pthread_mutex_lock(&s->lock);
    for (s->work = NULL, pthread_cond_broadcast(&s->changed); !s->ends; ) {
        if (!s->work) { pthread_cond_wait(&s->changed, &s->lock); continue; }
        s->result = s->work(&s->m, s->context);
        s->work = NULL;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
static int wait_for(Stage *s) {
    pthread_mutex_lock(&s->lock);
    while (s->work) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return s->result;
}
static int on(Stage *s, int (*work)(Model *m, void *context), void *context) {
    pthread_mutex_lock(&s->lock);
    s->work = work, s->context = context;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return wait_for(s);
}
static int nothing(UNUSED Model *m, UNUSED void *context) { return 1; }
static int start(Relay *r, int device, int first) {
    Stage *s = &r->at[device];
    s->relay = r, s->which = r->dev->is_gpu ? first + device : 0;
    s->work = nothing;                  /* opening the device */
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, serve, s))
        fail(EXIT_MEMORY, "a thread for device %d cannot be started", device);
    wait_for(s);
    return !s->why;
}

/* ---- dealing out the layers ------------------------------------------------------------------ */

/* Elements of each layer, its cache included, and of the tensors before and after the layers. */
static void sizes_of(const Device *dev, const Config *c, size_t cache, size_t *layer, size_t *before, size_t *behind) {
    Model m;
    model_plan_inference(&m, dev, c, 1, 1, 0, NULL);
    *before = *behind = 0;
    for (int l = 0; l < c->layers; l++) layer[l] = cache * 2 * (size_t)(c->kv_heads * c->head_size);
    for (int i = 0; i < m.manifest.count; i++) {
        const Tensor *t = &m.manifest.at[i];
        if (t->layer >= 0) layer[t->layer] += t->count;
        else if (t->kind == TENSOR_EMBEDDING) *before += t->count;
        else *behind += t->count;
    }
    if (c->tied) *behind += *before;
    model_free(&m);
}
/* Each device as many of the next layers as `most` elements allow, at least one, and one is left
 * for each that follows. from (devices). 1: the last has no more, either. */
static int deal(const size_t *layer, int layers, size_t before, size_t behind, size_t most, int devices, int *from) {
    size_t held = before, largest = 0;
    for (int l = from[0] = 0, d = 0; l < layers; l++) {
        const int begins = l > from[d];
        if (begins && d < devices - 1 && (held + layer[l] > most || layers - l == devices - 1 - d))
            from[++d] = l, held = 0;
        held += layer[l];
        if (held > largest) largest = held;
    }
    return largest <= most && held + behind <= most;
}
static void deal_evenly(Relay *r, size_t cache) {
    const int L = r->config.layers;
    int *from = mem_alloc((size_t)r->devices * sizeof *from);
    size_t before, behind, low = 0, high, *layer = mem_alloc((size_t)L * sizeof *layer);
    sizes_of(r->dev, &r->config, cache, layer, &before, &behind);
    high = before + behind;
    for (int l = 0; l < L; l++) high += layer[l];
    while (low < high) {                /* the least that the fullest device may have */
        const size_t middle = low + (high - low) / 2;
        if (deal(layer, L, before, behind, middle, r->devices, from)) high = middle; else low = middle + 1;
    }
    deal(layer, L, before, behind, low, r->devices, from);
    for (int d = 0; d < r->devices - 1; d++) r->at[d].from = from[d], r->at[d].to = from[d + 1];
    r->last_from = from[r->devices - 1];
    free_each(layer, from);
}

/* ---- opening --------------------------------------------------------------------------------- */

Relay *relay_open(const Device *dev, int first, const Config *c, int devices, size_t cache, char why[256]) {
    Relay *r = mem_alloc(sizeof *r);
    *r = (Relay){ .dev = dev, .config = *c, .devices = devices, .at = mem_alloc((size_t)devices * sizeof(Stage)) };
    int ok = !c->universal && !config_mixes(c) && devices <= c->layers;
    if (!ok && config_mixes(c))
        snprintf(why, 256, "each layer adds rows of bigrams (t) or the embedding (p), which only the first device has");
    else if (!ok) snprintf(why, 256, c->universal ? "all its layers are one block, which cannot be dealt out"
                                                  : "it has only %d layer%s", c->layers, c->layers == 1 ? "" : "s");
    else deal_evenly(r, cache);
    for (int d = 0; d < devices - 1 && ok; d++) {
        ok = start(r, d, first);
        if (!ok) snprintf(why, 256, "%s", r->at[d].why);
    }
    if (ok) return r;
    relay_close(r);
    return NULL;
}
void relay_close(Relay *r) {
    for (int d = 0; r && d < r->devices - 1; d++) {
        Stage *s = &r->at[d];
        if (!s->relay) continue;
        pthread_mutex_lock(&s->lock);
        s->ends = 1;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    if (r) free(r->at), free(r->stream), free(r->tokens);
    free(r);
}

int relay_devices(const Relay *r) { return r->devices; }
const Model *relay_model(const Relay *r, int device) { return &r->at[device].m; }
size_t relay_learnable(const Relay *r) {
    size_t sum = 0;
    for (int d = 0; d < r->devices - 1; d++) sum += r->at[d].m.manifest.learnable;
    return sum - (r->config.tied ? (size_t)r->config.vocab * (size_t)r->config.channels : 0);
}
int relay_each(Relay *r, int (*work)(Model *m, void *context), void *context) {
    for (int d = 0; d < r->devices - 1; d++) if (!on(&r->at[d], work, context)) return 0;
    return 1;
}
static int query_memory(Model *m, void *bytes) {
    *(size_t *)bytes = m->dev->memory();
    return 1;
}
size_t relay_memory(Relay *r, int device) {
    size_t bytes = 0;
    on(&r->at[device], query_memory, &bytes);
    return bytes;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

static int pass(Model *m, void *last_model) {
    const Model *last = last_model;
    const Relay *r = last->relay;
    const size_t N = (size_t)last->batch.N, bytes = N * (size_t)m->config.channels * m->dev->floatX_size;
    m->batch.B = last->batch.B, m->batch.T = last->batch.T, m->batch.N = last->batch.N;
    m->dev->upload(m->batch.tokens, r->tokens, N * sizeof *r->tokens);
    model_position(m, r->position);
    if (m->cache) m->dev->upload(m->cache_row, r->row, N * sizeof *r->row);
    if (m->from) m->dev->upload(m->acts[m->from - 1].out, r->stream, bytes);
    model_forward(m);
    m->dev->download(r->stream, m->acts[m->to - 1].out, bytes);
    return 1;
}
static void bring(Relay *r, Model *last) {
    const Device *dev = last->dev;
    const size_t N = (size_t)last->batch.N;
    dev->download(r->tokens, last->batch.tokens, N * sizeof *r->tokens);
    dev->download(r->position, last->batch.position, N * sizeof *r->position);
    if (last->cache) dev->download(r->row, last->cache_row, N * sizeof *r->row);
    relay_each(r, pass, last);
    dev->upload(last->acts[last->from - 1].out, r->stream, N * (size_t)last->config.channels * dev->floatX_size);
}

/* ---- planning, and what the model of the last device calls ----------------------------------- */

static int allocate(Model *m, UNUSED void *context) { return model_allocate(m); }
/* Pretended devices have one memory. */
static int allocate_all(Relay *r, const Model *last) {
    size_t together = last->arena.total;
    for (int d = 0; d < r->devices - 1; d++) {
        const size_t need = r->at[d].m.arena.total, have = relay_memory(r, d);
        together += need;
        if (have && (r->dev->is_gpu ? need : together) > have) return 0;
    }
    return relay_each(r, allocate, NULL);
}
static int release(Model *m, UNUSED void *context) { model_free(m); return 1; }
static void free_all(Relay *r) {
    relay_each(r, release, NULL);
    free(r->stream), free(r->tokens);
    r->stream = NULL, r->tokens = NULL;
}
static const RelayCalls calls = { allocate_all, bring, free_all };

void model_plan_dealt(Model *m, const Device *dev, const Config *c, int B, int T, int capacity, Relay *r) {
    for (int d = 0; r && d < r->devices - 1; d++)
        model_plan_layers(&r->at[d].m, dev, c, B, T, capacity, r->at[d].from, r->at[d].to);
    model_plan_layers(m, dev, c, B, T, capacity, r ? r->last_from : 0, c->layers);
    if (!r) return;
    m->relay = r, m->relay_calls = &calls;
    const size_t N = (size_t)B * (size_t)T;
    r->N = (int)N;
    r->stream = mem_alloc(N * (size_t)c->channels * dev->floatX_size);
    r->tokens = mem_alloc(3 * N * sizeof *r->tokens);
    r->position = r->tokens + N, r->row = r->position + N;
}
