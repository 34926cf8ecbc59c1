/* model.c: every tensor the model has, every buffer it needs, and the order in which it runs. */
#include "parallel.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- learnable tensors, each once. To add one: a field in model.h, a line here. ---------------------------
 * Names are those of the files. JetMoE's is our own family's layout too; what Mixtral and Llama call differently or
 * keep in several tensors stands in `pieces` (see tensor.h). */

static const char *pick(Family f, const char *ours, const char *mixtral, const char *llama) {
    return f == FAMILY_MIXTRAL ? mixtral : f == FAMILY_LLAMA ? llama : ours;
}

static void describe_layer(Manifest *m, const Config *c, int l) {
    const int C = c->channels, A = c->attention_experts, E = c->experts, F = c->width, Fs = c->shared_width;
    const int GD = c->kv_heads * c->head_size, QGD = c->query_heads * GD, gate = c->activation == SWIGLU ? 2 : 1;
    const float std = (float)c->init_std, out = std / sqrtf(2.0f * (float)c->layers);
    const Family f = config_family(c);

#define TENSOR(field, name, pieces, init, decay, ...) \
    manifest_add(m, l, offsetof(LayerParams, field), name, pieces, init, decay, \
                 (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

    TENSOR(att_norm,   "*input_layernorm.weight", NULL, ONES, NO_DECAY, C);
    TENSOR(kv,         "*self_attention.kv_proj.weight",
           pick(f, NULL, "*self_attn.k_proj.weight|*self_attn.v_proj.weight",
                         "*self_attn.k_proj.weight|*self_attn.v_proj.weight"), std, DECAY, 2*GD, C);
    if (A > 1) {
        TENSOR(att_router, "*self_attention.experts.router.layer.weight",  NULL, std,   DECAY,    A, C);
        TENSOR(query,      "*self_attention.experts.input_linear.weight",  NULL, std,   DECAY,    A, GD, C);
        TENSOR(output,     "*self_attention.experts.output_linear.weight", NULL, out,   DECAY,    A, C, GD);
        if (c->output_bias)
        TENSOR(att_bias,   "*self_attention.experts.bias",                 NULL, ZEROS, NO_DECAY, C);
    } else {
        TENSOR(query,      "*self_attention.q_proj.weight", pick(f, NULL, "*self_attn.q_proj.weight", "*self_attn.q_proj.weight"), std, DECAY, QGD, C);
        TENSOR(output,     "*self_attention.o_proj.weight", pick(f, NULL, "*self_attn.o_proj.weight", "*self_attn.o_proj.weight"), out, DECAY, C, QGD);
    }
    TENSOR(mlp_norm,   "*post_attention_layernorm.weight", NULL, ONES, NO_DECAY, C);
    if (E > 1) {
        TENSOR(router,     "*mlp.router.layer.weight",  pick(f, NULL, "*block_sparse_moe.gate.weight", NULL), std, DECAY, E, C);
        TENSOR(up,         "*mlp.input_linear.weight",  pick(f, NULL, "*block_sparse_moe.experts.%.w1.weight|*block_sparse_moe.experts.%.w3.weight", NULL),
               std, DECAY, E, gate*F, C);
        TENSOR(down,       "*mlp.output_linear.weight", pick(f, NULL, "*block_sparse_moe.experts.%.w2.weight", NULL), out, DECAY, E, C, F);
        if (c->output_bias)
        TENSOR(mlp_bias,   "*mlp.bias", NULL, ZEROS, NO_DECAY, C);
        if (Fs) {
        TENSOR(shared_up,   "*mlp.shared_input_linear.weight",  NULL, std, DECAY, gate*Fs, C);
        TENSOR(shared_down, "*mlp.shared_output_linear.weight", NULL, out, DECAY, C, Fs);
        }
    } else {
        TENSOR(up,         "*mlp.input_linear.weight",  pick(f, NULL, NULL, "*mlp.gate_proj.weight|*mlp.up_proj.weight"), std, DECAY, gate*F, C);
        TENSOR(down,       "*mlp.output_linear.weight", pick(f, NULL, NULL, "*mlp.down_proj.weight"), out, DECAY, C, F);
    }
#undef TENSOR
}

static void describe_model(Manifest *m, const Config *c) {
    const int C = c->channels, V = c->vocab, blocks = c->universal ? 1 : c->layers;
    const float std = (float)c->init_std;
    manifest_add(m, -1, offsetof(ModelParams, embed), "model.embed_tokens.weight", NULL, std, NO_DECAY, 2,
                 (int[]){ V, C });
    manifest_end_range(m);
    for (int l = 0; l < blocks; l++) { describe_layer(m, c, l); manifest_end_range(m); }
    manifest_add(m, -1, offsetof(ModelParams, final_norm), "model.norm.weight", NULL, ONES, NO_DECAY, 1, (int[]){ C });
    if (!c->tied)
        manifest_add(m, -1, offsetof(ModelParams, head), "lm_head.weight", NULL, std, DECAY, 2,
                     (int[]){ V, C });
    manifest_end_range(m);
}

/* ---- activations, each once. -------------------------------------------------------------------------------
 * KEEP: backward needs what forward made, one buffer per layer. NORM and LAYER: the same, unless that much is
 * recomputed (-r 1, -r 2), when all layers use one buffer; so do they all when nothing is trained. */

typedef enum { KEEP, NORM, LAYER } Lifetime;
typedef enum { PLAN_KEPT, PLAN_SHARED, BIND_SHARED } ActsPass;

/* Upper bound on slots: rounding adds at most tile - 1 (UP, STOCHASTIC) or tile / 2 (NEAREST) rows per expert; an expert never
 * has more than N. */
int mlp_slots(const Config *c, int N, int rounds) {
    const int64_t chosen = (int64_t)N * c->topk, all = (int64_t)N * c->experts, E = c->experts;
    if (!rounds || !c->rounding || E == 1) return (int)chosen;
    const int64_t more = c->rounding == ROUND_DOWN ? 0
                       : c->rounding == ROUND_NEAREST ? E * ((c->tile - 1) / 2) : E * (c->tile - 1);
    return (int)(chosen + more < all ? chosen + more : all);
}
static int can_round(const Model *m) {
    return m->mode == MODEL_TRAIN && m->config.rounding && m->config.experts > 1;
}

static int is_shared(const Model *m, Lifetime life) {
    return m->mode == MODEL_INFER || (life == NORM && m->recompute >= 1) || (life == LAYER && m->recompute >= 2);
}
/* One buffer of one layer: planned if this pass is for its kind, or pointed at the shared one. */
static void act(Model *m, ActsPass pass, Lifetime life, const char *name, void *pointer, void *shared, size_t bytes) {
    if (pass == BIND_SHARED) { if (is_shared(m, life)) memcpy(pointer, shared, sizeof(void *)); }
    else if (is_shared(m, life) == (pass == PLAN_SHARED))
        arena_add(&m->arena, pass == PLAN_SHARED ? MEM_SHARED : MEM_KEPT, name, pointer, bytes);
}

static void describe_acts(Model *m, LayerActs *a, ActsPass pass) {
    const Config *c = &m->config;
    const size_t X = m->dev->floatX_size, Re = m->dev->real_size, I = sizeof(int);
    const size_t N = (size_t)m->N, C = (size_t)c->channels, G = (size_t)c->kv_heads, D = (size_t)c->head_size;
    const size_t Q = (size_t)c->query_heads;
    const size_t gate = c->activation == SWIGLU ? 2 : 1, S = (size_t)mlp_slots(c, m->N, m->mode == MODEL_TRAIN);
    LayerActs *s = &m->shared;

#define ACT(life, field, bytes) act(m, pass, life, #field, &a->field, &s->field, bytes)
    ACT(NORM,  att_normed, N*C*X);
    ACT(KEEP,  att_rstd,   N*Re);
    ACT(LAYER, q,          N*Q*G*D*X);
    ACT(LAYER, kv,         N*2*G*D*X);
    ACT(LAYER, mixed,      N*Q*G*D*X);
    ACT(LAYER, att_lse,    N*Q*G*Re);
    ACT(LAYER, mid,        N*C*X);
    ACT(NORM,  mlp_normed, N*C*X);
    ACT(KEEP,  mlp_rstd,   N*Re);
    ACT(LAYER, pre,        S*gate*(size_t)c->width*X);
    if (c->experts > 1 && c->shared_width)
    ACT(LAYER, shared_pre, N*gate*(size_t)c->shared_width*X);
    ACT(KEEP,  out,        N*C*X);
#define ROUTE(r, experts, slots) do { const size_t E = (size_t)(experts), S_ = (size_t)(slots); \
    ACT(KEEP, r.logits, N*E*X);           ACT(KEEP, r.lse, N*Re);            ACT(KEEP, r.weight, S_*Re); \
    ACT(KEEP, r.expert, S_*I);            ACT(KEEP, r.plan.start, (E+1)*I);  ACT(KEEP, r.plan.slot_of_row, S_*I); \
    ACT(KEEP, r.plan.token_of_row, S_*I); ACT(KEEP, r.plan.row_of_slot, S_*I); } while (0)
    if (c->attention_experts > 1) ROUTE(att, c->attention_experts, N*(size_t)c->attention_topk);
    if (c->experts > 1)           ROUTE(mlp, c->experts, S);
    if (can_round(m))             ACT(KEEP, mlp.first, (N+1)*I);
#undef ROUTE
#undef ACT
}

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

static void describe_scratch(Model *m) {
    const Config *c = &m->config;
    const size_t X = m->dev->floatX_size, Re = m->dev->real_size;
    const size_t N = (size_t)m->N, C = (size_t)c->channels, V = (size_t)c->vocab;
    const size_t GD = (size_t)(c->kv_heads * c->head_size);
    const size_t QGD = (size_t)c->query_heads * GD, F = (size_t)c->width;
    const size_t Fs = c->experts > 1 ? (size_t)c->shared_width : 0;
    const int train = m->mode == MODEL_TRAIN;
    const size_t gate = c->activation == SWIGLU ? 2 : 1, S = (size_t)mlp_slots(c, m->N, train);
    const size_t most = max(S, N * (size_t)c->attention_topk);
    Scratch *s = &m->s;

#define SHARED(field, bytes) arena_add(&m->arena, MEM_SHARED, #field, &s->field, bytes)
    SHARED(branch, N*C*X);
    SHARED(rows, most*C*X);
    SHARED(act, max(N*QGD, max(S*F, N*Fs)) * X);
    SHARED(logits, (size_t)m->head_rows*V*X);
    if (train) {
        SHARED(dact, max(S*F, N*Fs) * X);
        SHARED(dpre, max(S*F, N*Fs) * gate*X);
        SHARED(dq, N*QGD*X);
        SHARED(dmixed, N*QGD*X);
        SHARED(dkv, N*2*GD*X);
        SHARED(dlogits, N*(size_t)(c->experts > c->attention_experts ? c->experts : c->attention_experts)*X);
        SHARED(dweight, most*Re);
        if (can_round(m)) SHARED(choice, N*(size_t)c->topk * sizeof(int));
        SHARED(dnormed[0], N*C*X);
        SHARED(dnormed[1], N*C*X);
        SHARED(dresid, N*C*X);
    }
#undef SHARED
}

/* ---- planning and memory ------------------------------------------------------------------------------- */

int router_experts(const Config *c) {
    int a = c->attention_experts > 1 ? c->attention_experts : 0, e = c->experts > 1 ? c->experts : 0;
    return a > e ? a : e;
}

/* Tokens whose logits exist at once. Every chunk reads and writes the whole gradient of the head, so where memory is plenty
 * and products want to be large, a chunk is 256 M logits; else 16 M. A multiple of 128 rows, if it is that many. */
static int head_chunk(const Model *m) {
    const size_t logits = (size_t)(m->dev->is_gpu && m->mode == MODEL_TRAIN ? 256 : 16) << 20;
    const size_t rows = logits / (size_t)m->config.vocab + 1, N = (size_t)m->N;
    return (int)(rows >= N ? N : rows >= 128 ? rows / 128 * 128 : rows);
}

static size_t loads(const Model *m) { return (size_t)m->routers * (size_t)router_experts(&m->config); }
static size_t result_reals(const Model *m) {
    return (size_t)m->all_micro_batches + (size_t)(2 * m->routers) + (size_t)m->manifest.count + 1;
}

/* A matrix of a layer gets its gradient from one product. Where that is all, in one micro-batch of one rank, it may be rounded;
 * sums are kept in reals. */
static void place_gradients(Model *m, Dtype matrices) {
    const int once = m->micro_batches == 1 && m->ranks == 1 && !m->ordered && !m->config.universal;
    m->set = matrices == FLOATX && once && m->dev->floatX_size < m->dev->real_size ? SET_ROUNDED : SET;
    for (int i = 0; i < m->manifest.count; i++) {
        Tensor *t = &m->manifest.at[i];
        t->dtype = m->set == SET_ROUNDED && t->layer >= 0 && t->rank > 1 ? FLOATX : REAL;
    }
    manifest_place_gradients(&m->manifest, m->dev);
}

/* What training and generating have in common. */
static void plan(Model *m, int micro_batches, Dtype gradients) {
    const Device *dev = m->dev;
    const Config *c = &m->config;
    const size_t X = dev->floatX_size, Re = dev->real_size, I = sizeof(int), L = (size_t)c->layers;
    const size_t N = (size_t)m->N, C = (size_t)c->channels;
    const int train = m->mode == MODEL_TRAIN;
    m->head_rows = head_chunk(m);
    m->used_vocab = c->vocab;
    m->manifest.shards = m->ranks;
    m->micro_batches = micro_batches;
    m->all_micro_batches = micro_batches * m->ranks;
    describe_model(&m->manifest, c);
    place_gradients(m, gradients);

    Arena *a = &m->arena;
    if (!m->weights_of) arena_add(a, MEM_WEIGHTS, "weights", &m->params, m->manifest.total * X);
    if (train) arena_add(a, MEM_GRADIENTS, "gradients", &m->grads, m->manifest.gradient_bytes);
    if (m->parallel && m->parallel->one_process && m->parallel->sharded)
        arena_add(a, MEM_GRADIENTS, "gradients of other ranks", &m->stage, manifest_largest(&m->manifest) * Re);
    if (m->ordered) arena_add(a, MEM_GRADIENTS, "ordered sums", &m->sums, m->manifest.total * Re);
    if (m->ordered && m->ranks > 1)
        arena_add(a, MEM_GRADIENTS, "gathered gradients", &m->gathered, (size_t)m->ranks * GATHERED * Re);
    m->lp = mem_alloc(L * sizeof *m->lp);
    m->lg = mem_alloc(L * sizeof *m->lg);
    m->acts = mem_alloc(L * sizeof *m->acts);
    for (size_t l = 0; l < L; l++) describe_acts(m, &m->acts[l], PLAN_KEPT);
    describe_acts(m, &m->shared, PLAN_SHARED);
    describe_scratch(m);
    arena_add(a, train ? MEM_KEPT : MEM_SHARED, "encoded", &m->encoded, N*C*X);
    arena_add(a, train ? MEM_KEPT : MEM_SHARED, "final", &m->final, N*C*X);
    arena_add(a, MEM_SHARED, "final_rstd", &m->final_rstd, N*Re);
    if (train) arena_add(a, MEM_SHARED, "dfinal", &m->dfinal, N*C*X);

    arena_add(a, MEM_DATA, "tokens", &m->tokens, N*I);
    arena_add(a, MEM_DATA, "targets", &m->targets, N*I);
    arena_add(a, MEM_DATA, "position", &m->position, N*I);
    arena_add(a, MEM_DATA, "loss", &m->loss, N*Re);
    arena_add(a, MEM_DATA, "loss_sum", &m->loss_sum, Re);
    arena_add(a, MEM_DATA, "dropout key", &m->key, sizeof *m->key);
    if (train) {
        arena_add(a, MEM_DATA, "tokens of a step", &m->step_tokens, (size_t)micro_batches*N*I);
        arena_add(a, MEM_DATA, "targets of a step", &m->step_targets, (size_t)micro_batches*N*I);
        arena_add(a, MEM_DATA, "dropout keys of a step", &m->step_keys, (size_t)micro_batches * sizeof *m->step_keys);
    }
    arena_add(a, MEM_DATA, "rope", &m->rope,
              (size_t)(m->cache_capacity > m->T ? m->cache_capacity : m->T) * (size_t)c->head_size * Re);
    m->routers = c->layers * ((c->attention_experts > 1) + (c->experts > 1));
    if (m->routers && !m->weights_of) arena_add(a, MEM_WEIGHTS, "router bias", &m->bias, loads(m)*Re);
    if (m->ranks > 1) arena_add(a, MEM_DATA, "own load", &m->own_load, loads(m)*I);
    arena_add(a, MEM_DATA, "found", &m->results, result_reals(m)*Re + loads(m)*I);
    if (m->cache_capacity) {
        m->cache = mem_alloc(L * sizeof *m->cache);
        for (size_t l = 0; l < L; l++)
            arena_add(a, MEM_CACHE, "cache", &m->cache[l],
                      (size_t)m->B * (size_t)m->cache_capacity * 2 * (size_t)(c->kv_heads * c->head_size) * X);
        arena_add(a, MEM_DATA, "cache_row", &m->cache_row, N*I);
    }
}
void model_plan_training(Model *m, const Device *dev, const Config *c, int B, int T, int recompute, int micro_batches,
                         Dtype gradients, const Parallel *parallel) {
    *m = (Model){ .dev = dev, .config = *c, .mode = MODEL_TRAIN, .B = B, .T = T, .N = B * T, .recompute = recompute,
                  .parallel = parallel, .ranks = parallel ? parallel->ranks : 1, .ordered = parallel && parallel->ordered };
    plan(m, micro_batches, gradients);
}
void model_plan_inference(Model *m, const Device *dev, const Config *c, int B, int T, int capacity,
                          const Model *weights_of) {
    *m = (Model){ .dev = dev, .config = *c, .mode = MODEL_INFER, .B = B, .T = T, .N = B * T, .ranks = 1,
                  .cache_capacity = capacity, .weights_of = weights_of };
    plan(m, 1, REAL);
}

static void bind_route(Model *m, Route *r, int router, int E, int K) {
    const size_t wide = (size_t)router_experts(&m->config), at = (size_t)router * wide;
    r->plan.E = E;
    r->plan.K = K;
    r->site = 2 * m->config.layers + 1 + router;           /* dropout's come before */
    r->own_load = m->own_load + at;
    r->load = m->ordered ? r->own_load : m->load + at;
    r->losses = real_at(m, m->losses, (size_t)router * 2);
    r->bias = real_at(m, m->bias, at);
}

int model_allocate(Model *m) {
    const Config *c = &m->config;
    const Device *dev = m->dev;
    if (!arena_allocate(&m->arena, dev)) return 0;
    if (m->weights_of) {
        m->params = m->weights_of->params;
        m->bias = m->weights_of->bias;
        m->used_vocab = m->weights_of->used_vocab;
    }
    manifest_bind(&m->manifest, -1, &m->p, m->params, dev->floatX_size);
    if (m->grads) manifest_bind_gradients(&m->manifest, -1, &m->g, m->grads);
    if (c->tied) { m->p.head = m->p.embed; m->g.head = m->g.embed; }
    m->step_losses = (real *)m->results;
    m->losses = real_at(m, m->step_losses, (size_t)m->all_micro_batches);
    m->grad_sq_norms = real_at(m, m->losses, (size_t)(2 * m->routers));
    m->load = (int *)(m->results + result_reals(m) * dev->real_size);
    if (m->ranks == 1) m->own_load = m->load;
    for (int l = 0, router = 0; l < c->layers; l++) {
        const int block = c->universal ? 0 : l;
        manifest_bind(&m->manifest, block, &m->lp[l], m->params, dev->floatX_size);
        if (m->grads) manifest_bind_gradients(&m->manifest, block, &m->lg[l], m->grads);
        describe_acts(m, &m->acts[l], BIND_SHARED);
        if (c->attention_experts > 1) bind_route(m, &m->acts[l].att, router++, c->attention_experts, c->attention_topk);
        if (c->experts > 1)           bind_route(m, &m->acts[l].mlp, router++, c->experts, c->topk);
    }
    dev->rope_table(m->rope, (float)c->rope_theta, m->cache_capacity > m->T ? m->cache_capacity : m->T, c->head_size);
    return 1;
}

void model_initialize(Model *m, uint64_t seed) {
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        double *values = mem_alloc(t->count * sizeof *values);
        manifest_initial(t, seed, values);
        m->dev->from_double((floatX *)((char *)m->params + t->offset * m->dev->floatX_size), values, t->count);
        free(values);
    }
}

void model_free(Model *m) {
    arena_free(&m->arena, m->dev);
    manifest_free(&m->manifest);
    free(m->lp);
    free(m->lg);
    free(m->acts);
    free(m->cache);
}

/* ---- the order in which it runs ------------------------------------------------------------------------ */

uint64_t model_state(const Model *m) {
    const double all[] = { m->B, m->T, m->recompute, m->forced, m->rounds, m->used_vocab, m->fresh, (double)m->dropout,
                           (double)m->balance_coef, (double)m->z_coef };
    return hash_bytes(0, all, sizeof all);
}

static void shape_batch(Model *m, int B, int T) {
    const size_t N = (size_t)B * (size_t)T;
    int *position = mem_alloc(N * sizeof *position);
    m->B = B;
    m->T = T;
    m->N = B * T;
    for (size_t n = 0; n < N; n++) position[n] = (int)(n % (size_t)T);
    m->dev->upload(m->position, position, N * sizeof *position);
    free(position);
}
static void begin_batch(Model *m) {
    m->fresh = m->started;
    m->started = 0;
}
void model_batch(Model *m, const int *tokens, const int *targets, int B, int T) {
    shape_batch(m, B, T);
    begin_batch(m);
    m->dev->upload(m->tokens, tokens, (size_t)m->N * sizeof *tokens);
    if (targets) m->dev->upload(m->targets, targets, (size_t)m->N * sizeof *targets);
}
void model_send(Model *m, const int *tokens, const int *targets, const uint64_t *keys, int B, int T) {
    shape_batch(m, B, T);
    const size_t all = (size_t)m->micro_batches * (size_t)m->N;
    m->dev->upload(m->step_tokens, tokens, all * sizeof *tokens);
    m->dev->upload(m->step_targets, targets, all * sizeof *targets);
    m->dev->upload(m->step_keys, keys, (size_t)m->micro_batches * sizeof *keys);
}
void model_begin_micro(Model *m, int micro) {
    const size_t N = (size_t)m->N, first = (size_t)micro * N;
    m->dev->copy(m->tokens, m->step_tokens + first, N * sizeof *m->tokens);
    m->dev->copy(m->targets, m->step_targets + first, N * sizeof *m->targets);
    m->dev->copy(m->key, m->step_keys + micro, sizeof *m->key);
    if (micro == 0 && m->ranks > 1) m->dev->zero(m->step_losses, (size_t)m->all_micro_batches * m->dev->real_size);
    if (micro == 0 && m->ordered) m->dev->zero(m->sums, m->manifest.total * m->dev->real_size);
    if (micro > 0 && m->ordered) model_start_step(m);
    begin_batch(m);
    m->last_micro = micro == m->micro_batches - 1;
}
void model_end_micro(Model *m, int micro) {
    const int micro_index = micro * m->ranks + (m->parallel ? m->parallel->rank : 0);
    m->dev->copy(real_at(m, m->step_losses, (size_t)micro_index), m->loss_sum, m->dev->real_size);
}

StepResults model_results(const Model *m) {
    const size_t reals = result_reals(m), bytes = reals * m->dev->real_size, load = loads(m) * sizeof(int);
    char *host = mem_alloc(bytes + load);
    StepResults f = { .step_losses = mem_alloc(reals * sizeof *f.step_losses), .load = mem_alloc(load) };
    m->dev->download(host, m->results, bytes + load);
    for (size_t i = 0; i < reals; i++)
        f.step_losses[i] = m->dev->real_size == sizeof(double) ? ((double *)host)[i] : (double)((float *)host)[i];
    f.losses = f.step_losses + m->all_micro_batches;
    f.grad_sq_norms = f.losses + 2 * m->routers;
    memcpy(f.load, host + bytes, load);
    free(host);
    return f;
}
void model_gradients(const Model *m, double *host) {
    memset(host, 0, m->manifest.total * sizeof *host);
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        const void *from = gradient_of(t, m->grads);
        if (t->dtype == REAL) m->dev->reals_to_double(host + t->offset, from, t->count);
        else m->dev->to_double(host + t->offset, from, t->count);
    }
}
void results_free(StepResults *f) {
    free(f->step_losses);
    free(f->load);
}

int model_decode_path(const Model *m) {
    const Config *c = &m->config;
    return m->mode == MODEL_INFER && m->cache && m->T == 1 && m->dev->decode_fits && !m->forced
        && m->dev->decode_fits(m->N, c->channels, c->width, c->experts, c->topk)
        && m->dev->decode_fits(m->N, c->channels, c->kv_heads * c->head_size, c->attention_experts, c->attention_topk);
}

static Norm norm_of(const Model *m, const floatX *weight) { return (Norm){ weight, (float)m->config.norm_eps }; }
static Norm final_norm(const Model *m) { return (Norm){ m->p.final_norm, (float)m->config.final_eps }; }
static Dropout dropout_at(const Model *m, int site) { return (Dropout){ m->dropout, m->key, site }; }

/* resid = residual + drop(sum of s), and that normalized for the next sub-layer. */
static void add_norm_forward(Model *m, floatX *normed, real *rstd, floatX *resid, const floatX *residual, const Sum *s,
                             int site, Norm norm) {
    m->dev->add_norm_forward(m->dev, normed, rstd, resid, residual, s, dropout_at(m, site), norm, m->N, m->config.channels);
}
/* And back: dx is the gradient of what was normalized. The residual stream passes its gradient (m->s.dresid) on
 * unchanged and each sub-layer adds its own. dbias: of the sub-layer before, unless dropout comes first. */
static void add_norm_backward(Model *m, real *dnorm, real *dbias, const Sum *dx, const floatX *resid, Norm norm,
                              const real *rstd) {
    m->dev->add_norm_backward(m->dev, m->s.dresid, dnorm, m->dropout > 0 ? NULL : dbias, m->s.dnormed, dx, resid, norm, rstd,
                              m->N, m->config.channels);
}

/* From a->att_normed to the next layer's, or to m->final. again: only what backward needs is made once more. */
static void block_forward(Model *m, int l, const floatX *resid, int recompute) {
    const Config *c = &m->config;
    LayerActs *a = &m->acts[l], *next = a + 1;
    const LayerParams *p = &m->lp[l];
    const int last = l == c->layers - 1;
    if (model_decode_path(m)) {
        attention_layer_decode(m, a, p, a->mid, resid, l);
        moe_layer_decode(m, a, p, a->out, a->mid);
        return;
    }

    Sum answer = attention_layer_forward(m, a, p, a->att_normed, l);
    add_norm_forward(m, a->mlp_normed, a->mlp_rstd, a->mid, resid, &answer, 2*l + 1, norm_of(m, p->mlp_norm));

    answer = moe_layer_forward(m, a, p, a->mlp_normed);
    if (recompute) return;
    parallel_wait_weights(m, l + 2 < m->manifest.range_count ? l + 2 : m->manifest.range_count - 1);     /* the next norm's */
    if (last) add_norm_forward(m, m->final, m->final_rstd, a->out, a->mid, &answer, 2*l + 2, final_norm(m));
    else add_norm_forward(m, next->att_normed, next->att_rstd, a->out, a->mid, &answer, 2*l + 2, norm_of(m, m->lp[l+1].att_norm));
}

/* The gradient of a half's answer: that of the stream, through dropout. */
static const floatX *sublayer_backward(Model *m, real *dbias, int site) {
    const Device *dev = m->dev;
    const int N = m->N, C = m->config.channels;
    if (!(m->dropout > 0)) return m->s.dresid;
    dev->dropout(m->s.branch, m->s.dresid, dropout_at(m, site), (size_t)N * (size_t)C);
    if (dbias) dev->bias_backward(dbias, m->s.branch, N, C);
    return m->s.branch;
}

/* m->s.dresid: on entry the gradient of the layer's output, on return that of its input. */
static void block_backward(Model *m, int l, const floatX *resid, float scale) {
    const Device *dev = m->dev;
    const int N = m->N, C = m->config.channels;
    LayerActs *a = &m->acts[l];
    const LayerParams *p = &m->lp[l];
    LayerGrads *g = &m->lg[l];
    Sum dx;

    if (m->recompute >= 2) dev->rmsnorm_forward(a->att_normed, a->att_rstd, resid, norm_of(m, p->att_norm), N, C);
    if (m->recompute >= 2) block_forward(m, l, resid, 1);
    if (m->recompute == 1) dev->rmsnorm_forward(a->mlp_normed, a->mlp_rstd, a->mid, norm_of(m, p->mlp_norm), N, C);
    const floatX *dout = sublayer_backward(m, g->mlp_bias, 2*l + 2);
    dx = moe_layer_backward(m, a, p, g, dout, a->mlp_normed, scale);
    add_norm_backward(m, g->mlp_norm, g->att_bias, &dx, a->mid, norm_of(m, p->mlp_norm), a->mlp_rstd);

    if (m->recompute == 1) dev->rmsnorm_forward(a->att_normed, a->att_rstd, resid, norm_of(m, p->att_norm), N, C);
    dout = sublayer_backward(m, g->att_bias, 2*l + 1);
    dx = attention_layer_backward(m, a, p, g, dout, a->att_normed, scale);
    add_norm_backward(m, g->att_norm, l ? m->lg[l-1].mlp_bias : NULL, &dx, resid, norm_of(m, p->att_norm), a->att_rstd);
}

void model_forward(Model *m) {
    const Device *dev = m->dev;
    const int N = m->N, C = m->config.channels, L = m->config.layers;
    parallel_wait_weights(m, 0);
    dev->embed_forward(m->encoded, m->tokens, m->p.embed, N, C);
    if (m->dropout > 0) dev->dropout(m->encoded, m->encoded, dropout_at(m, 0), (size_t)N * (size_t)C);
    parallel_wait_weights(m, 1);
    if (!model_decode_path(m))                                      /* which has norms of its own */
        dev->rmsnorm_forward(m->acts[0].att_normed, m->acts[0].att_rstd, m->encoded, norm_of(m, m->lp[0].att_norm), N, C);
    for (int l = 0; l < L; l++) block_forward(m, l, l ? m->acts[l-1].out : m->encoded, 0);
}

/* Rows first.. of an (N,C) matrix. */
static floatX *row(const Model *m, floatX *x, int first) {
    return (floatX *)((char *)x + (size_t)first * (size_t)m->config.channels * m->dev->floatX_size);
}
void model_logits(Model *m, int first, int count) {
    m->dev->matmul_forward(m->s.logits, row(m, m->final, first), m->p.head, count, m->config.channels, m->config.vocab);
}

void model_next(Model *m, floatX *logits) {
    const Device *dev = m->dev;
    const int N = m->N, C = m->config.channels, V = m->config.vocab;
    if (model_decode_path(m))
        dev->decode_in(logits, NULL, (Choice){ 0 }, m->acts[m->config.layers - 1].out,
                       (Norm){ m->p.final_norm, (float)m->config.final_eps }, (Router){ .E = 1, .K = 1 },
                       m->p.head, NULL, NULL, 0, IDENTITY, N, C, V, 0);
    else dev->matmul_forward(logits, m->final, m->p.head, N, C, V);
}

/* The (N,V) logits never exist: a chunk of tokens at a time is turned into its own gradient and used up at once. */
void model_loss(Model *m, float scale, int gradient) {
    const Device *dev = m->dev;
    const int N = m->N, C = m->config.channels, V = m->config.vocab;
    for (int n = 0; n < N; n += m->head_rows) {
        const int rows = N - n < m->head_rows ? N - n : m->head_rows;
        real *loss = real_at(m, m->loss, (size_t)n);
        model_logits(m, n, rows);
        dev->cross_entropy(loss, m->s.logits, m->targets + n, scale, gradient, rows, V, m->used_vocab);
        if (!gradient) continue;
        dev->matmul_backward_input(row(m, m->dfinal, n), m->s.logits, m->p.head, rows, C, V, SET);
        dev->matmul_backward_weight(m->g.head, m->s.logits, row(m, m->final, n), rows, C, V,
                                    m->fresh && n == 0 ? SET : ADD);
    }
    dev->sum(m->loss_sum, m->loss, (size_t)N);
}

/* Gradients of matrices are set by the first product that has something to say; all others are sums from the start. */
void model_start_step(Model *m) {
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        void *gradient = gradient_of(t, m->grads);
        const int set = t->rank > 1 && (gradient != m->g.embed || m->g.embed == m->g.head);
        if (!set) m->dev->zero(gradient, t->count * t->element);
    }
    m->started = 1;
}

void model_forget(Model *m) {
    for (int i = 0; i < m->arena.count; i++) {
        const ArenaEntry *a = &m->arena.at[i];
        if (a->category == MEM_KEPT || a->category == MEM_SHARED) m->dev->zero(*a->pointer, a->bytes);
    }
}

int model_counted(const Model *m) { return m->ordered ? m->N : m->N * m->ranks; }
void model_router_losses(Model *m) {
    for (int l = 0; l < m->config.layers; l++) {
        if (m->config.attention_experts > 1) route_losses(m, &m->acts[l].att);
        if (m->config.experts > 1)           route_losses(m, &m->acts[l].mlp);
    }
}

/* Where ranks share a step, the gradients of a range are on their way as soon as they are complete. The ranges: the
 * embedding, one for each block, and the last for the final norm and the head. */
void model_backward(Model *m, float scale) {
    const Device *dev = m->dev;
    const int N = m->N, C = m->config.channels, V = m->config.vocab, L = m->config.layers;
    const size_t NC = (size_t)N * (size_t)C;
    dev->zero(m->s.dresid, NC * dev->floatX_size);
    add_norm_backward(m, m->g.final_norm, m->lg[L-1].mlp_bias, &(Sum){ .rows = m->dfinal }, m->acts[L-1].out, final_norm(m),
                      m->final_rstd);
    parallel_gradients(m, m->manifest.range_count - 1);
    for (int l = L-1; l >= 0; l--) {
        const int first = m->fresh && (l == L-1 || !m->config.universal);
        m->write = first || m->set == SET_ROUNDED ? m->set : ADD;       /* what is rounded is never a sum */
        block_backward(m, l, l ? m->acts[l-1].out : m->encoded, scale);
        if (l == 0 || !m->config.universal) parallel_gradients(m, 1 + l);
    }
    if (m->dropout > 0) dev->dropout(m->s.dresid, m->s.dresid, dropout_at(m, 0), NC);
    dev->embed_backward(m->g.embed, m->s.dresid, m->tokens, N, V, C);
    parallel_gradients(m, 0);
}

void model_learn(Model *m, float loss_scale, float router_scale) {
    model_forward(m);
    if (!m->ordered) parallel_sum_loads(m);
    model_loss(m, loss_scale, 1);
    parallel_wait_loads(m);
    model_router_losses(m);
    model_backward(m, router_scale);
}
