/* plan.c: see plan.h. */
#include "plan.h"
#include "codes.h"
#include "fp8.h"
#include "parallel.h"
#include "ranges.h"
#include "rope.h"
#include "routers.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- learnable tensors, each once. To add one: a field in model.h, a line here. -----------------
 * Their initial values are drawn by their names, which checkpoints have, too; what they are called
 * in the files of a family of models is in llmc/files/pieces.c. */

/* The standard deviation of the initial values of a matrix with `inputs` columns. */
static float initial(const Config *c, int inputs) {
    return c->init_fan > 0 ? (float)(c->init_fan / sqrt((double)inputs)) : (float)c->init_std;
}
/* The same if its result is added to the residual stream, as those of 2 L sub-layers are. */
static float initial_output(const Config *c, int inputs) {
    return c->zero_output ? ZEROS : initial(c, inputs) / sqrtf(2.0f * (float)c->layers);
}

#define ADD(params, layer, field, name, init, kind, ...) \
    manifest_add(m, layer, offsetof(params, field), name, init, kind, \
                 (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})
#define TENSOR(...) ADD(LayerParams, l, __VA_ARGS__)
#define TENSOR_IF(condition, ...) do { if (condition) TENSOR(__VA_ARGS__); } while (0)
static void describe_latents(Manifest *m, const Config *c, int l) {
    const int C = c->channels, G = c->kv_heads, D = c->head_size, R = c->rotated, V = config_value_size(c);
    const int keys = c->kv_rank, queries = c->query_rank, from = queries ? queries : C;
    const char *name = queries ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight";

    TENSOR(kv_down,    "self_attn.kv_a_proj_with_mqa.weight", initial(c, C), TENSOR_ATTENTION, keys + R, C);
    TENSOR(key_norm,   "self_attn.kv_a_layernorm.weight", ONES, TENSOR_NORM, keys);
    TENSOR(kv,         "self_attn.kv_b_proj.weight", initial(c, keys), TENSOR_ATTENTION, G*(D - R + V), keys);
    TENSOR_IF(queries, query_down, "self_attn.q_a_proj.weight", initial(c, C), TENSOR_ATTENTION, queries, C);
    TENSOR_IF(queries, query_norm, "self_attn.q_a_layernorm.weight", ONES, TENSOR_NORM, queries);
    TENSOR(query,      name, initial(c, from), TENSOR_ATTENTION, G*D, from);
    TENSOR(output,     "self_attn.o_proj.weight", initial_output(c, G*V), TENSOR_ATTENTION, C, G*V);
}
static void describe_attention(Manifest *m, const Config *c, int l) {
    const int C = c->channels, A = c->attention_experts;
    const int GD = c->kv_heads * c->head_size, QGD = c->query_heads * GD;
    const int all = c->qk_norm == NORM_ALL, key_norm = all ? c->kv_heads : 1;
    const int norm = all ? c->query_heads * key_norm : 1;
    const float std = initial(c, C), out = initial_output(c, QGD);

    TENSOR(att_norm,   "input_layernorm.weight", ONES, TENSOR_NORM, C);
    if (c->kv_rank) { describe_latents(m, c, l); return; }
    TENSOR(kv,         "self_attention.kv_proj.weight", std, TENSOR_KEYS_VALUES, 2*GD, C);
    if (A > 1) {
        TENSOR(att_router, "self_attention.experts.router.layer.weight",  std, TENSOR_ROUTER,    A, C);
        TENSOR(query,      "self_attention.experts.input_linear.weight",  std, TENSOR_ATTENTION, A, GD, C);
        TENSOR(output,     "self_attention.experts.output_linear.weight", out, TENSOR_ATTENTION, A, C, GD);
        TENSOR_IF(c->output_bias, att_bias, "self_attention.experts.bias", ZEROS, TENSOR_BIAS, C);
    } else {
        TENSOR(query,      "self_attention.q_proj.weight", std, TENSOR_ATTENTION, QGD, C);
        TENSOR(output,     "self_attention.o_proj.weight", out, TENSOR_ATTENTION, C, QGD);
    }
    TENSOR_IF(c->attention_bias,     query_bias, "self_attention.q_proj.bias",  ZEROS, TENSOR_BIAS, QGD);
    TENSOR_IF(c->attention_bias,     kv_bias,    "self_attention.kv_proj.bias", ZEROS, TENSOR_BIAS, 2*GD);
    TENSOR_IF(c->attention_bias > 1, att_bias,   "self_attention.o_proj.bias",  ZEROS, TENSOR_BIAS, C);
    TENSOR_IF(c->sinks,   sink,       "self_attn.sinks", ZEROS, TENSOR_BIAS, c->query_heads * c->kv_heads);
    TENSOR_IF(c->qk_norm, query_norm, "self_attention.q_norm.weight", ONES, TENSOR_NORM, norm * c->head_size);
    TENSOR_IF(c->qk_norm, key_norm,   "self_attention.k_norm.weight", ONES, TENSOR_NORM, key_norm * c->head_size);
    TENSOR_IF(config_has_values(c, l), value_embed, "self_attention.value_embed.weight", std, TENSOR_VALUES,
              c->vocab, GD);
    TENSOR_IF(config_has_values(c, l) && c->value_gate, value_gate, "self_attention.value_gate.weight", ZEROS,
              TENSOR_GATE, c->kv_heads, config_gate_inputs(c));
    TENSOR_IF(config_mixes(c), stream, "stream", ZEROS, TENSOR_SCALARS, 3);
}

static void describe_mlp(Manifest *m, const Config *c, int l) {
    const int C = c->channels, E = c->experts, F = config_width(c, l), Fs = c->shared_width;
    const int gate = IS_GATED(c->activation) ? 2 : 1;
    const float std = initial(c, C), out = initial_output(c, F);
    const TensorKind up = gate == 2 ? TENSOR_GATE_UP : TENSOR_MLP;

    TENSOR(mlp_norm, "post_attention_layernorm.weight", ONES, TENSOR_NORM, C);
    if (!config_has_experts(c, l)) {
        TENSOR(up,   "mlp.input_linear.weight",  std, up, gate*F, C);
        TENSOR(down, "mlp.output_linear.weight", out, TENSOR_MLP, C, F);
        return;
    }
    TENSOR(router,   "mlp.router.layer.weight",  std, TENSOR_ROUTER, E, C);
    TENSOR(up,       "mlp.input_linear.weight",  std, up, E, gate*F, C);
    TENSOR(down,     "mlp.output_linear.weight", out, TENSOR_MLP, E, C, F);
    TENSOR_IF(c->expert_bias, router_bias, "mlp.router.bias",               ZEROS, TENSOR_BIAS, E);
    TENSOR_IF(c->expert_bias, up_bias,     "mlp.experts.gate_up_proj_bias", ZEROS, TENSOR_BIAS, E, gate*F);
    TENSOR_IF(c->expert_bias, down_bias,   "mlp.experts.down_proj_bias",    ZEROS, TENSOR_BIAS, E, C);
    TENSOR_IF(c->output_bias, mlp_bias,    "mlp.bias",                      ZEROS, TENSOR_BIAS, C);
    TENSOR_IF(Fs, shared_up,   "mlp.shared_input_linear.weight",  std, up, gate*Fs, C);
    TENSOR_IF(Fs, shared_down, "mlp.shared_output_linear.weight", initial_output(c, Fs), TENSOR_MLP, C, Fs);
    TENSOR_IF(Fs && c->shared_gate, shared_gate, "mlp.shared_expert_gate.weight", std, TENSOR_ROUTER, 1, C);
}
#undef TENSOR_IF
#undef TENSOR

/* With layers from .. to - 1. The head may be the embedding. */
static void describe_model(Manifest *m, const Config *c, int from, int to) {
    const int C = c->channels, V = c->vocab, blocks = c->universal ? 1 : c->layers, begins = !from,
        ends = to == c->layers;
    const float embed = c->init_embed > 0 ? (float)c->init_embed : (float)c->init_std;
    const float head = c->zero_output > 1 ? ZEROS : initial(c, C);
    m->padding = c->padding;
#define TENSOR_IF(condition, ...) do { if (condition) ADD(ModelParams, -1, __VA_ARGS__); } while (0)
    TENSOR_IF(begins || (ends && c->tied), embed, "model.embed_tokens.weight", embed, TENSOR_EMBEDDING, V, C);
    TENSOR_IF(begins && c->stream_scalars, embed_norm, "model.embed_norm.weight", ONES, TENSOR_NORM, C);
    TENSOR_IF(begins && c->bigram, bigram, "model.bigram_embed.weight", ZEROS, TENSOR_BIGRAM, config_bigram_rows(c), C);
    manifest_end_range(m);
    for (int l = 0; l < blocks; l++) {
        if (l >= from && l < to) { describe_attention(m, c, l); describe_mlp(m, c, l); }
        manifest_end_range(m);
    }
    TENSOR_IF(ends, final_norm, "model.norm.weight", ONES, TENSOR_NORM, C);
    TENSOR_IF(ends && !c->tied, head, "lm_head.weight", head, TENSOR_HEAD, V, C);
    manifest_end_range(m);
}
#undef TENSOR_IF
#undef ADD

/* ---- activations, each once ---------------------------------------------------------------------
 * Each belongs to the part of the layer that computes it: layers that recompute this part share one
 * buffer for it. KEEP: it is never recomputed. Without training all layers share all buffers. */

enum { KEEP = LAYER_PARTS };                  /* a LayerPart, or this */
typedef enum { PLAN_KEPT, PLAN_SHARED, BIND_SHARED, MEASURE } ActsPass;

static int can_round(const Model *m) {
    return m->mode == MODEL_TRAIN && m->config.rounding && m->config.experts > 1;
}

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

/* Of layer l; -1: of any. The last layer shares the buffer, too, but need not recompute. */
static int is_shared(const Model *m, int l, int part) {
    const int again = part == KEEP ? 0 : m->recompute.layers[part];
    return m->mode == MODEL_INFER || (again && (l < 0 || l >= m->config.layers - 1 - again));
}
int model_recomputes(const Model *m, int l, LayerPart part) {
    return l < m->config.layers - 1 && is_shared(m, l, part);
}

/* A buffer of a layer: planned if it is of the pass's kind, pointed at the shared one, measured. */
static void act(Model *m, int l, ActsPass pass, int part, const char *name, void *pointer, void *shared, size_t bytes,
                size_t *measured) {
    const int one_copy = is_shared(m, l, part);
    if (pass == MEASURE) { if (part != KEEP) measured[part] += arena_rounded(bytes); }
    else if (pass == BIND_SHARED) { if (one_copy) memcpy(pointer, shared, sizeof(void *)); }
    else if (one_copy == (pass == PLAN_SHARED))
        arena_add(&m->arena, pass == PLAN_SHARED ? MEM_SHARED : MEM_KEPT, name, pointer, bytes);
}

/* l: the layer; -1: any of them, for buffers that all share. */
static void describe_acts(Model *m, int l, ActsPass pass, size_t *measured) {
    const Config *c = &m->config;
    const int routed = l < 0 ? c->experts > 1 : config_has_experts(c, l), dense = l < 0 || !routed;
    LayerActs *const a = l < 0 ? &m->shared : &m->acts[l];
    const size_t X = m->dev->floatX_size, Re = m->dev->real_size, I = sizeof(int);
    const size_t N = (size_t)m->batch.N, C = (size_t)c->channels, G = (size_t)c->kv_heads, D = (size_t)c->head_size;
    const size_t Q = (size_t)c->query_heads, kv_rank = (size_t)c->kv_rank, query_rank = (size_t)c->query_rank;
    const size_t gate = IS_GATED(c->activation) ? 2 : 1, S = (size_t)mlp_slots(c, m->batch.N, m->mode == MODEL_TRAIN);
    LayerActs *s = &m->shared;

#define ACT(part, field, bytes) act(m, l, pass, part, #field, &a->field, &s->field, bytes, measured)
    ACT(PART_NORMS,     att_normed, N*C*X);
    ACT(KEEP,           att_rstd,   N*Re);
    ACT(PART_HEADS,     q,          N*Q*G*D*X);
    ACT(PART_HEADS,     kv,         N*2*G*D*X);
    if (c->value_gate && (l < 0 || config_has_values(c, l)))
    ACT(PART_HEADS,     value_gate, N*G*X);
    if (c->qk_norm == NORM_ALL || (c->qk_norm && m->mode == MODEL_TRAIN)) {
    ACT(PART_HEADS,     q_before,   N*Q*G*D*X);
    ACT(PART_HEADS,     k_before,   N*G*D*X);
    }
    if (c->kv_rank) {
    ACT(PART_HEADS,     q_before,   N*query_rank*X);
    ACT(PART_HEADS,     k_before,   N*kv_rank*X);
    ACT(PART_HEADS,     q_latent,   N*query_rank*X);
    ACT(PART_HEADS,     kv_latent,  N*kv_rank*X);
    }
    if (c->qk_norm == NORM_ALL || c->kv_rank) {
    ACT(PART_HEADS,     q_rstd,     N*Re);
    ACT(PART_HEADS,     k_rstd,     N*Re);
    }
    ACT(PART_ATTENTION, mixed,      N*Q*G*D*X);
    ACT(PART_ATTENTION, att_lse,    N*Q*G*Re);
    ACT(PART_MIDDLE,    mid,        N*C*X);
    ACT(PART_NORMS,     mlp_normed, N*C*X);
    ACT(KEEP,           mlp_rstd,   N*Re);
    ACT(PART_UP,       pre, max(routed ? S*(size_t)c->width : 0, dense ? N*(size_t)config_dense_width(c) : 0) * gate*X);
    if (routed && c->shared_width)
    ACT(PART_UP,        shared_pre, N*gate*(size_t)c->shared_width*X);
    ACT(KEEP,           out,        N*C*X);
#define ROUTE(r, experts, slots, scales) do { const size_t E = (size_t)(experts), S_ = (size_t)(slots); \
    ACT(KEEP, r.logits, N*E*X);           ACT(KEEP, r.lse, N*Re);            ACT(KEEP, r.weight, S_*Re); \
    ACT(KEEP, r.expert, S_*I);            ACT(KEEP, r.plan.start, (E+1)*I);  ACT(KEEP, r.plan.slot_of_row, S_*I); \
    ACT(KEEP, r.plan.token_of_row, S_*I); ACT(KEEP, r.plan.row_of_slot, S_*I); \
    if (scales) ACT(KEEP, r.chosen_weight, S_*Re); } while (0)
    if (c->attention_experts > 1) ROUTE(att, c->attention_experts, N*Q, 0);
    if (routed)                   ROUTE(mlp, c->experts, S, c->route_scale > 0);
    if (routed && c->shared_gate) ROUTE(gate, 1, N, 0);
    if (routed && can_round(m))   ACT(KEEP, mlp.first, (N+1)*I);
#undef ROUTE
#undef ACT
}
void model_part_bytes(const Model *m, int l, size_t bytes[LAYER_PARTS]) {
    Model measured = *m;
    memset(bytes, 0, LAYER_PARTS * sizeof *bytes);
    describe_acts(&measured, l, MEASURE, bytes);
}

/* ---- experts in 8 bits ----------------------------------------------------------------------- */

static void add_codes(Model *m, MemCategory category, const char *name, Fp8 *x, size_t codes, size_t scales) {
    arena_add(&m->arena, category, name, &x->code, codes);
    arena_add(&m->arena, category, name, &x->scale, scales * m->dev->real_size);
}
static void add_weight_codes(Model *m, Fp8 *x, Fp8 *transposed, size_t size) {
    add_codes(m, MEM_WEIGHTS, "weights in 8 bits", x, size, size / (FP8_BLOCK * FP8_BLOCK));
    add_codes(m, MEM_WEIGHTS, "weights in 8 bits, transposed", transposed, size, size / (FP8_BLOCK * FP8_BLOCK));
}
/* Codes of weights, and what one layer at a time makes of its activations and gradients. */
static void plan_expert_codes(Model *m) {
    const Config *c = &m->config;
    const size_t N = (size_t)m->batch.N, C = (size_t)c->channels, F = (size_t)c->width;
    const size_t weight = (size_t)c->experts * C * F;
    const int S = (int)mlp_slots(c, m->batch.N, 1);
    const size_t rows = (size_t)S, blocks = (size_t)fp8_blocks(S, c->experts);
    if (!m->fp8_passes) return;
    m->expert_codes = mem_alloc((size_t)c->layers * sizeof *m->expert_codes);
    m->codes_shared = m->dp.level >= 3 && !c->universal;
    for (int l = 0; l < (c->universal || m->codes_shared ? 1 : c->layers); l++) {
        if (!m->codes_shared && !config_has_experts(c, l)) continue;
        add_weight_codes(m, &m->expert_codes[l].up, &m->expert_codes[l].up_transposed, 2 * weight);
        add_weight_codes(m, &m->expert_codes[l].down, &m->expert_codes[l].down_transposed, weight);
    }
    add_codes(m, MEM_SHARED, "x8", &m->s.x8, N * C, N * C / FP8_BLOCK);
    add_codes(m, MEM_SHARED, "act8", &m->s.act8, rows * F, rows * F / FP8_BLOCK);
    add_codes(m, MEM_SHARED, "dpre8", &m->s.dpre8, rows * 2*F, rows * 2*F / FP8_BLOCK);
    if (!(m->fp8_passes & FP8_BACKWARD) || !m->dev->fp8->columns) return;
    add_codes(m, MEM_SHARED, "columns_C", &m->s.columns_C, blocks * FP8_BLOCK * C, blocks * C / FP8_BLOCK);
    add_codes(m, MEM_SHARED, "columns_F", &m->s.columns_F, blocks * FP8_BLOCK * 2*F, blocks * 2*F / FP8_BLOCK);
}

static void plan_head_codes(Model *m) {
    const size_t R = (size_t)m->head_rows, C = (size_t)m->config.channels, V = (size_t)m->config.vocab;
    const size_t padded = (size_t)fp8_blocks(m->head_rows, 1) * FP8_BLOCK;
    HeadCodes *h = &m->head8;
    if (!m->config.fp8_head || m->mode != MODEL_TRAIN) return;
    add_weight_codes(m, &h->weight, &h->transposed, V * C);
    add_codes(m, MEM_SHARED, "head's x8", &h->x, R * C, R * C / FP8_BLOCK);
    add_codes(m, MEM_SHARED, "dlogits8", &h->dlogits, R * V, R * V / FP8_BLOCK);
    if (m->dev->fp8->columns) {
        add_codes(m, MEM_SHARED, "head's columns_C", &h->columns_C, padded * C, padded * C / FP8_BLOCK);
        add_codes(m, MEM_SHARED, "columns_V", &h->columns_V, padded * V, padded * V / FP8_BLOCK);
    }
    arena_add(&m->arena, MEM_DATA, "head's starts", &h->start, 4 * sizeof *h->start);
}

static void describe_scratch(Model *m) {
    const Config *c = &m->config;
    const size_t X = m->dev->floatX_size, Re = m->dev->real_size;
    const size_t N = (size_t)m->batch.N, C = (size_t)c->channels, V = (size_t)c->vocab;
    const size_t GD = (size_t)(c->kv_heads * c->head_size);
    const size_t QGD = (size_t)c->query_heads * GD, F = c->experts > 1 ? (size_t)c->width : 0;
    /* of MLPs of all tokens */
    const size_t Fs = max((size_t)config_dense_width(c), c->experts > 1 ? (size_t)c->shared_width : 0);
    const int train = m->mode == MODEL_TRAIN;
    const size_t gate = IS_GATED(c->activation) ? 2 : 1, S = (size_t)mlp_slots(c, m->batch.N, train);
    /* what their backward has as floatX */
    const size_t SF = m->fp8_passes & FP8_BACKWARD && m->dev->fp8->columns ? 0 : S*F;
    const size_t most = max(S, c->attention_experts > 1 ? N * (size_t)c->query_heads : N);
    Scratch *s = &m->s;

#define SHARED(field, bytes) arena_add(&m->arena, MEM_SHARED, #field, &s->field, bytes)
    SHARED(branch, N*C*X);
    SHARED(rows, most*C*X);
    SHARED(act, max(N*QGD, max(S*F, N*Fs)) * X);
    SHARED(logits, (size_t)m->head_rows*V*X);
    if ((c->value_embeddings && train) || c->key_shift || c->qk_norm == NORM_ALL) SHARED(values, (N + 1)*GD*X);
    if (c->value_gate) SHARED(gate_inputs, N*(size_t)config_gate_inputs(c)*X);
    if (c->value_gate && train) SHARED(dgate_inputs, N*(size_t)config_gate_inputs(c)*X);
    if (c->value_gate && train) SHARED(dvalue_gate, N*(size_t)c->kv_heads*X);
    if (c->stream_scalars && train) SHARED(dstream[0], N*C*X);
    if (c->bigram && train) SHARED(dstream[1], N*C*X);
    if (c->kv_rank) {
        const size_t R = (size_t)c->rotated, kv_rank = (size_t)c->kv_rank, query_rank = (size_t)c->query_rank;
        SHARED(down, N*(kv_rank + R)*X);
        SHARED(parts, N*(size_t)(c->kv_heads * (c->head_size - c->rotated + config_value_size(c)))*X);
        SHARED(turning, N*(size_t)c->kv_heads*R*X);
        if (train) SHARED(dlatent[0], N*max(kv_rank, query_rank)*X);
        if (train) SHARED(dlatent[1], N*max(kv_rank, query_rank)*X);
    }
    if (c->shared_gate) SHARED(gate_load, sizeof(int));
    if (train) {
        SHARED(dact, max(SF, N*Fs) * X);
        SHARED(dpre, max(SF, N*Fs) * gate*X);
        SHARED(dq, N*QGD*X);
        SHARED(dmixed, N*QGD*X);
        SHARED(dkv, N*2*GD*X);
        SHARED(dlogits, N*(size_t)(c->experts > c->attention_experts ? c->experts : c->attention_experts)*X);
        SHARED(dweight, most*Re);
        if (c->shared_gate) SHARED(dgate, N*X);
        if (can_round(m)) SHARED(choice, N*(size_t)c->topk * sizeof(int));
        SHARED(dnormed[0], N*C*X);
        if (m->dev->is_gpu) SHARED(dnormed[1], N*C*X);
        SHARED(dresid, N*C*X);
    }
#undef SHARED
}

/* ---- planning and memory --------------------------------------------------------------------- */

/* Tokens whose logits exist at once. Every chunk reads and writes the whole gradient of the head,
 * so on GPUs it is 256 M logits; else 16 M. A multiple of 128 rows, if it is that many. */
static int head_chunk(const Model *m) {
    const size_t logits = (size_t)(m->dev->is_gpu && m->mode == MODEL_TRAIN ? 256 : 16) << 20;
    const size_t rows = logits / (size_t)m->config.vocab + 1, N = (size_t)m->batch.N;
    return (int)(rows >= N ? N : rows >= 128 ? rows / 128 * 128 : rows);
}

static size_t result_reals(const Model *m) {
    return (size_t)m->batch.all_micro_batches + (size_t)(2 * m->routers) + (size_t)m->manifest.count + 1;
}

/* The gradient of a layer's matrix comes from one product. If nothing is added to it, in a step of
 * one micro-batch on one rank, it may be rounded; sums are kept in reals. */
static void lay_out_gradients(Model *m, Dtype matrices) {
    const int once = m->batch.micro_batches == 1 && m->dp.ranks == 1 && !m->dp.ordered;
    m->product_gradients = m->dev->floatX_size < m->dev->real_size && !m->config.universal ? matrices : REAL;
    m->matrix_gradients = once ? m->product_gradients : REAL;
    for (int i = 0; i < m->manifest.count; i++) {
        Tensor *t = &m->manifest.at[i];
        t->dtype = t->layer >= 0 && !t->summed ? m->matrix_gradients : REAL;
    }
    manifest_lay_out_gradients(&m->manifest, m->dev);
}

static void plan_weights(Model *m) {
    const size_t X = m->dev->floatX_size, Re = m->dev->real_size;
    const Parallel *parallel = m->dp.parallel;
    Arena *a = &m->arena;
    const size_t total = m->manifest.total, ranks = (size_t)m->dp.ranks, shards = (size_t)m->dp.shards;
    if (!m->weights_of) arena_add(a, MEM_WEIGHTS, "weights", &m->params, total / (m->dp.level >= 3 ? shards : 1) * X);
    if (m->routers && !m->weights_of)
        arena_add(a, MEM_WEIGHTS, "router bias", &m->bias, router_offset(m, m->routers)*Re);
    if (m->mode == MODEL_TRAIN)
        arena_add(a, MEM_GRADIENTS, "gradients", &m->grads,
                  m->manifest.gradient_bytes / (m->dp.level >= 2 ? shards : 1));
    if (m->dp.level >= 2 || (m->dp.level && parallel->one_process))
        arena_add(a, MEM_GRADIENTS, "gradients of other ranks", &m->dp.stage, manifest_largest(&m->manifest) * Re);
    if (m->dp.ordered && m->dp.level < 2) arena_add(a, MEM_GRADIENTS, "ordered sums", &m->dp.sums, total * Re);
    if (m->dp.ordered && ranks > 1 && (m->dp.level < 2 || shards < ranks))
        arena_add(a, MEM_GRADIENTS, "gathered gradients", &m->dp.gathered,
                  ranks * (total < GATHERED ? total : GATHERED) * Re);
    ranges_plan(m);
}

static void plan_activations(Model *m) {
    const size_t X = m->dev->floatX_size, Re = m->dev->real_size, L = (size_t)m->config.layers;
    const size_t N = (size_t)m->batch.N, C = (size_t)m->config.channels;
    const MemCategory kept = m->mode == MODEL_TRAIN ? MEM_KEPT : MEM_SHARED;
    Arena *a = &m->arena;
    for (size_t l = 0; l < L; l++) describe_acts(m, (int)l, PLAN_KEPT, NULL);
    describe_acts(m, -1, PLAN_SHARED, NULL);
    describe_scratch(m);
    plan_expert_codes(m);
    plan_head_codes(m);
    arena_add(a, kept, "encoded", &m->encoded, N*C*X);
    if (m->config.stream_scalars) arena_add(a, kept, "first", &m->mixed.first, N*C*X);
    if (m->config.stream_scalars) arena_add(a, kept, "first_rstd", &m->mixed.first_rstd, N*Re);
    if (m->config.bigram) arena_add(a, kept, "extra", &m->mixed.extra, N*C*X);
    arena_add(a, kept, "final", &m->final, N*C*X);
    arena_add(a, MEM_SHARED, "final_rstd", &m->final_rstd, N*Re);
    if (m->mode == MODEL_TRAIN) arena_add(a, MEM_SHARED, "dfinal", &m->dfinal, N*C*X);
}

static int positions(const Model *m) { return m->cache_capacity > m->batch.T ? m->cache_capacity : m->batch.T; }

static void plan_batch(Model *m) {
    const size_t Re = m->dev->real_size, I = sizeof(int), N = (size_t)m->batch.N, M = (size_t)m->batch.micro_batches;
    Batch *b = &m->batch;
    Arena *a = &m->arena;
    arena_add(a, MEM_DATA, "tokens", &b->tokens, N*I);
    arena_add(a, MEM_DATA, "targets", &b->targets, N*I);
    arena_add(a, MEM_DATA, "position", &b->position, (N + 1)*I);    /* then 0 */
    if (m->config.window) arena_add(a, MEM_DATA, "reach", &b->reach, N*I);
    if (m->config.bigram) arena_add(a, MEM_DATA, "rows of bigrams", &m->mixed.row, N*I);
    if (m->config.bigram) arena_add(a, MEM_DATA, "tokens before", &m->mixed.before, N*I);
    arena_add(a, MEM_DATA, "loss", &m->loss, N*Re);
    arena_add(a, MEM_DATA, "loss_sum", &m->loss_sum, Re);
    arena_add(a, MEM_DATA, "dropout key", &b->key, sizeof *b->key);
    if (m->mode == MODEL_TRAIN) {
        arena_add(a, MEM_DATA, "loss scale", &b->loss_scale, 3*Re);
        arena_add(a, MEM_DATA, "tokens of a step", &b->step_tokens, M*N*I);
        arena_add(a, MEM_DATA, "targets of a step", &b->step_targets, M*N*I);
        arena_add(a, MEM_DATA, "positions of a step", &b->step_positions, M*N*I);
        if (m->config.window) arena_add(a, MEM_DATA, "reaches of a step", &b->step_reaches, M*N*I);
        arena_add(a, MEM_DATA, "dropout keys of a step", &b->step_keys, M * sizeof *b->step_keys);
        arena_add(a, MEM_DATA, "counts of a step", &b->step_counted, M*I);
    }
    arena_add(a, MEM_DATA, "rope", &m->rope, (size_t)positions(m) * (size_t)rope_head(&m->config) * Re);
    const size_t loads = (router_offset(m, m->routers) + 1) * I;
    if (m->dp.ranks > 1) arena_add(a, MEM_DATA, "own load", &m->dp.own_load, loads);
    arena_add(a, MEM_DATA, "step results", &m->results.base, result_reals(m)*Re + loads);
}

static void plan_cache(Model *m) {
    const Config *c = &m->config;
    const size_t X = m->dev->floatX_size, L = (size_t)c->layers, GD = (size_t)(c->kv_heads * c->head_size);
    if (!m->cache_capacity) return;
    const size_t rows = (size_t)m->batch.B * (size_t)m->cache_capacity;
    m->cache = mem_alloc(L * sizeof *m->cache);
    m->own_keys = mem_alloc(L * sizeof *m->own_keys);
    for (int l = m->from; l < m->to; l++) {
        arena_add(&m->arena, MEM_CACHE, "cache", &m->cache[l], rows * 2*GD*X);
        if (config_shifts_keys(c, l)) arena_add(&m->arena, MEM_CACHE, "own keys", &m->own_keys[l], (1 + rows) * GD*X);
    }
    arena_add(&m->arena, MEM_DATA, "cache_row", &m->cache_row, (size_t)m->batch.N * sizeof(int));
    if (c->bigram)
        arena_add(&m->arena, MEM_CACHE, "tokens of the cache", &m->mixed.seen,
                  (size_t)m->batch.B * (size_t)m->cache_capacity * sizeof(int));
}

/* What training and generating have in common. */
static void plan(Model *m, int micro_batches, Dtype gradients) {
    const Config *c = &m->config;
    const size_t L = (size_t)c->layers;
    m->head_rows = head_chunk(m);
    m->fp8_passes = m->mode == MODEL_TRAIN ? fp8_passes(c, m->batch.N) : 0;
    m->fp8 = 1;
    m->used_vocab = config_ids(c);
    m->routers = (c->attention_experts > 1 ? c->layers : 0) + config_mixtures(c);
    m->batch.micro_batches = micro_batches;
    m->batch.all_micro_batches = micro_batches * m->dp.ranks;
    /* the same layout as its weights */
    m->manifest.shards = m->weights_of ? m->weights_of->manifest.shards : m->dp.shards;
    m->manifest.by_matrix = m->weights_of ? m->weights_of->manifest.by_matrix
                                          : m->dp.level && m->dp.parallel->by_matrix;
    describe_model(&m->manifest, c, m->from, m->to);
    lay_out_gradients(m, gradients);
    codes_plan(m);
    m->lp = mem_alloc(L * sizeof *m->lp);
    m->lg = mem_alloc(L * sizeof *m->lg);
    m->acts = mem_alloc(L * sizeof *m->acts);
    plan_weights(m);
    plan_activations(m);
    plan_batch(m);
    plan_cache(m);
}
void model_plan_training(Model *m, const Device *dev, const Config *c, int B, int T, const Recompute *recompute,
                         int micro_batches, Dtype gradients, const Parallel *parallel) {
    *m = (Model){ .dev = dev, .config = *c, .mode = MODEL_TRAIN, .batch = { .B = B, .T = T, .N = B * T },
                  .to = c->layers, .recompute = recompute ? *recompute : (Recompute){ { 0 } },
                  .dp = { .parallel = parallel, .exchange = parallel_exchange(parallel),
                          .ranks = parallel ? parallel->ranks : 1, .shards = parallel ? parallel_shards(parallel) : 1,
                          .level = parallel && parallel->ranks > 1 ? parallel->level : 0,
                          .ordered = parallel && parallel->ordered } };
    for (int p = 0; p < LAYER_PARTS; p++)
        if (m->recompute.layers[p] >= c->layers) m->recompute.layers[p] = c->layers - 1;
    plan(m, micro_batches, gradients);
}
static void plan_inference(Model *m, const Device *dev, const Config *c, int B, int T, int capacity,
                           const Model *weights_of, int from, int to) {
    *m = (Model){ .dev = dev, .config = *c, .mode = MODEL_INFER, .batch = { .B = B, .T = T, .N = B * T }, .from = from,
                  .to = to, .dp = { .ranks = 1, .shards = 1 }, .cache_capacity = capacity, .weights_of = weights_of };
    plan(m, 1, REAL);
}
void model_plan_inference(Model *m, const Device *dev, const Config *c, int B, int T, int capacity,
                          const Model *weights_of) {
    plan_inference(m, dev, c, B, T, capacity, weights_of, 0, c->layers);
}
void model_plan_layers(Model *m, const Device *dev, const Config *c, int B, int T, int capacity, int from, int to) {
    plan_inference(m, dev, c, B, T, capacity, NULL, from, to);
}

static void bind_route(Model *m, Route *r, int router, int E, int K, double scale) {
    const size_t at = router_offset(m, router);
    r->E = r->plan.E = E;
    r->K = r->plan.K = K;
    r->scale = scale > 0 ? (float)scale : 1;
    if (!r->chosen_weight) r->chosen_weight = r->weight;
    r->own_load = m->dp.own_load + at;
    r->load = m->dp.ordered ? r->own_load : m->results.load + at;
    r->losses = real_at(m, m->results.losses, (size_t)router * 2);
    r->bias = real_at(m, m->bias, at);
}

/* Points the fields of layer `layer` (-1: of none) to their weights and gradients. */
static void bind_tensors(const Model *m, int layer, void *weights, void *gradients) {
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        if (t->layer != layer) continue;
        *(void **)((char *)weights + t->field) = model_weight(m, t);
        if (m->grads) *(void **)((char *)gradients + t->field) = model_gradient(m, t);
    }
}

static void bind_results(Model *m) {
    ResultBuffers *r = &m->results;
    r->step_losses = (real *)r->base;
    r->losses = real_at(m, r->step_losses, (size_t)m->batch.all_micro_batches);
    r->grad_sq_norms = real_at(m, r->losses, (size_t)(2 * m->routers));
    r->load = (int *)(r->base + result_reals(m) * m->dev->real_size);
    r->tokens = r->load + router_offset(m, m->routers);
    if (m->dp.ranks == 1) m->dp.own_load = r->load;
    m->dp.own_tokens = m->dp.own_load + router_offset(m, m->routers);
}

int model_allocate(Model *m) {
    const Config *c = &m->config;
    const Device *dev = m->dev;
    if ((m->relay && !m->relay_calls->allocate(m->relay, m)) || !arena_allocate(&m->arena, dev)) return 0;
    if (m->weights_of) {
        m->params = m->weights_of->params;
        m->bias = m->weights_of->bias;
        m->used_vocab = m->weights_of->used_vocab;
        m->from_codes = m->weights_of->from_codes;
        if (m->weights_of->dp.level >= 3) {                 /* and the buffers in which they are whole */
            m->dp.parallel = m->weights_of->dp.parallel;
            m->dp.exchange = m->weights_of->dp.exchange;
            m->dp.level = m->weights_of->dp.level;
            m->dp.shards = m->weights_of->dp.shards;
            m->dp.weights = m->weights_of->dp.weights;
        }
    }
    bind_tensors(m, -1, &m->p, &m->g);
    if (c->tied) { m->p.head = m->p.embed; m->g.head = m->g.embed; }
    bind_results(m);
    for (int l = 0, router = 0; l < c->layers; l++) {
        const int block = c->universal ? 0 : l;
        bind_tensors(m, block, &m->lp[l], &m->lg[l]);
        describe_acts(m, l, BIND_SHARED, NULL);
        if (c->attention_experts > 1)
            bind_route(m, &m->acts[l].att, router++, c->attention_experts, c->attention_topk, 0);
        if (config_has_experts(c, l))
            m->acts[l].mlp.groups = (Groups){ c->groups, c->groups_chosen, c->groups_by_best };
        if (config_has_experts(c, l)) bind_route(m, &m->acts[l].mlp, router++, c->experts, c->topk, c->route_scale);
        if (config_has_experts(c, l) && c->shared_gate) m->acts[l].gate.plan.E = m->acts[l].gate.plan.K = 1;
    }
    codes_bind(m);
    rope_table(dev, m->rope, c, positions(m));
    return 1;
}

/* In parts that fit into caches: fresh pages for all elements would take longer than drawing. */
void model_initialize_tensor(Model *m, int tensor, uint64_t seed) {
    enum { PART = 1 << 18 };
    const int shards = m->dp.level ? m->dp.shards : 1, shard = shards > 1 ? parallel_shard(m->dp.parallel) : 0;
    const Tensor *t = &m->manifest.at[tensor];
    const Segment own = m->codes ? (Segment){ .offset = t->offset, .count = t->count }
                                 : manifest_segment(&m->manifest, tensor, shards, shard);
    const size_t stored = own.offset - (m->dp.level >= 3 ? own.shift : 0);
    floatX *const to = m->codes ? model_weight(m, t) : float_at(m, m->params, stored);
    double *values = mem_alloc((own.count < PART ? own.count : PART) * sizeof *values);
    for (size_t from = 0; from < own.count; from += PART) {
        const size_t n = own.count - from < PART ? own.count - from : PART, at = own.offset + from;
        manifest_initial(t, seed, at - t->offset, n, m->dev->real_size > sizeof(float), values);
        m->dev->from_double(float_at(m, to, from), values, n);
    }
    if (m->mode == MODEL_INFER) codes_keep(m, tensor, 0);
    free(values);
}
void model_initialize(Model *m, uint64_t seed) {
    for (int i = 0; i < m->manifest.count; i++) model_initialize_tensor(m, i, seed);
    parallel_gather_weights(m, 0);
}

void model_free(Model *m) {
    if (m->relay) m->relay_calls->free(m->relay);
    m->relay = NULL;
    arena_free(&m->arena, m->dev);
    manifest_free(&m->manifest);
    free_each(m->lp, m->lg, m->acts, m->expert_codes, m->codes, m->lc, m->cache, m->own_keys);
}
