/* pieces.c: see pieces.h. */
#include "pieces.h"
#include "families.h"
#include "llmc/model/rope.h"
#include "llmc/model/routers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

/* HEADS: rows of heads, which files may have in another order; KEYS: only in the first half;
 * LATENT: one head at the end. */
typedef enum { HEADS = 1, KEYS, LATENT, TRANSPOSED, INTERLEAVED, BOTH } Order;
enum { OURS = FAMILY_JETMOE | FAMILY_SMOE, OTHERS = ~OURS, GRANITES = FAMILY_GRANITE | FAMILY_GRANITE_SHARED,
       MIXTRALS = FAMILY_MIXTRAL | FAMILY_MINIMAX_M2 };
/* A tensor of a layer, as it is called here (Tensor.name), and in files; NULL: likewise. A '|' is
 * between names of parts that lie one after the other; a '%' stands for the number of an expert,
 * and such a name is of tensors of experts only. The first row that fits counts. Tensors that are
 * not here have their own name in all files. */
static const struct { int families; const char *here, *there; Order order; } names[] = {
    { OTHERS,           "self_attention.q_proj.weight",    "self_attn.q_proj.weight", HEADS },
    { OTHERS,           "self_attention.q_proj.bias",      "self_attn.q_proj.bias", HEADS },
    { OTHERS,           "self_attention.q_norm.weight",    "self_attn.q_norm.weight", HEADS },
    { OTHERS,           "self_attention.k_norm.weight",    "self_attn.k_norm.weight", HEADS },
    { OTHERS,           "self_attention.kv_proj.weight",   "self_attn.k_proj.weight|self_attn.v_proj.weight", KEYS },
    { OTHERS,           "self_attention.kv_proj.bias",     "self_attn.k_proj.bias|self_attn.v_proj.bias", KEYS },
    { OTHERS,           "self_attention.o_proj.weight",    "self_attn.o_proj.weight", 0 },
    { OTHERS,           "self_attention.o_proj.bias",      "self_attn.o_proj.bias", 0 },
    { OTHERS,           "self_attn.q_proj.weight",         NULL, HEADS },           /* of latent attention */
    { OTHERS,           "self_attn.q_b_proj.weight",       NULL, HEADS },
    { OTHERS,           "self_attn.kv_a_proj_with_mqa.weight", NULL, LATENT },
    { FAMILY_MINIMAX_M2, "mlp.router.choice_bias",         "block_sparse_moe.e_score_correction_bias", 0 },
    { MIXTRALS,         "mlp.router.layer.weight",         "block_sparse_moe.gate.weight", 0 },
    { MIXTRALS,         "mlp.input_linear.weight",
      "block_sparse_moe.experts.%.w1.weight|block_sparse_moe.experts.%.w3.weight", 0 },
    { MIXTRALS,         "mlp.output_linear.weight",        "block_sparse_moe.experts.%.w2.weight", 0 },
    { GRANITES,         "mlp.router.layer.weight",         "block_sparse_moe.router.layer.weight", 0 },
    { GRANITES,         "mlp.input_linear.weight",         "block_sparse_moe.input_linear.weight", 0 },
    { GRANITES,         "mlp.output_linear.weight",        "block_sparse_moe.output_linear.weight", 0 },
    { GRANITES,         "mlp.shared_input_linear.weight",  "shared_mlp.input_linear.weight", 0 },
    { GRANITES,         "mlp.shared_output_linear.weight", "shared_mlp.output_linear.weight", 0 },
    { FAMILY_GPT_OSS,   "mlp.router.layer.weight",         "mlp.router.weight", 0 },
    { FAMILY_GPT_OSS,   "mlp.input_linear.weight",         "mlp.experts.gate_up_proj", BOTH },
    { FAMILY_GPT_OSS,   "mlp.experts.gate_up_proj_bias",   NULL, INTERLEAVED },
    { FAMILY_GPT_OSS,   "mlp.output_linear.weight",        "mlp.experts.down_proj", TRANSPOSED },
    { FAMILY_QWEN2_MOE, "mlp.shared_input_linear.weight",
      "mlp.shared_expert.gate_proj.weight|mlp.shared_expert.up_proj.weight", 0 },
    { FAMILY_QWEN2_MOE, "mlp.shared_output_linear.weight", "mlp.shared_expert.down_proj.weight", 0 },
    { FAMILY_ERNIE,     "mlp.router.choice_bias",          "mlp.moe_statics.e_score_correction_bias", 0 },
    { OTHERS,           "mlp.router.choice_bias",          "mlp.gate.e_score_correction_bias", 0 },
    { OTHERS,           "mlp.router.layer.weight",         "mlp.gate.weight", 0 },
    { OTHERS,           "mlp.input_linear.weight",   "mlp.experts.%.gate_proj.weight|mlp.experts.%.up_proj.weight", 0 },
    { OTHERS,           "mlp.output_linear.weight",        "mlp.experts.%.down_proj.weight", 0 },
    /* one MLP */
    { OTHERS,           "mlp.input_linear.weight",         "mlp.gate_proj.weight|mlp.up_proj.weight", 0 },
    { OTHERS,           "mlp.output_linear.weight",        "mlp.down_proj.weight", 0 },
    { OTHERS,           "mlp.shared_input_linear.weight",
      "mlp.shared_experts.gate_proj.weight|mlp.shared_experts.up_proj.weight", 0 },
    { OTHERS,           "mlp.shared_output_linear.weight", "mlp.shared_experts.down_proj.weight", 0 },
};
enum { NAMES = sizeof names / sizeof *names };

/* Names of modules in Transformers 5, in which it saves with save_original_format=False, and
 * trainers that keep experts in one tensor. of: parts of each expert, of which it is number `part`;
 * 0: the same tensor. */
static const struct { const char *file, *module; int of, part; } modules[] = {
    { "mlp.experts.%.gate_proj.weight",            "mlp.experts.gate_up_proj", 2, 0 },
    { "mlp.experts.%.up_proj.weight",              "mlp.experts.gate_up_proj", 2, 1 },
    { "mlp.experts.%.down_proj.weight",            "mlp.experts.down_proj",    1, 0 },
    { "block_sparse_moe.experts.%.w1.weight",      "mlp.experts.gate_up_proj", 2, 0 },
    { "block_sparse_moe.experts.%.w3.weight",      "mlp.experts.gate_up_proj", 2, 1 },
    { "block_sparse_moe.experts.%.w2.weight",      "mlp.experts.down_proj",    1, 0 },
    { "block_sparse_moe.gate.weight",              "mlp.gate.weight", 0, 0 },
    { "block_sparse_moe.e_score_correction_bias",  "mlp.e_score_correction_bias", 0, 0 },
    { "block_sparse_moe.input_linear.weight",      "block_sparse_moe.experts.gate_up_proj", 0, 0 },
    { "block_sparse_moe.output_linear.weight",     "block_sparse_moe.experts.down_proj", 0, 0 },
    { "block_sparse_moe.router.layer.weight",      "block_sparse_moe.router.weight", 0, 0 },
    { "mlp.moe_statics.e_score_correction_bias",   "mlp.gate.moe_statics.e_score_correction_bias", 0, 0 },
};
enum { MODULES = sizeof modules / sizeof *modules };

#define IN_LAYER "model.layers.%d."
static const char *within_layer(const Tensor *t) {
    return t->name + (t->layer < 0 ? 0 : snprintf(NULL, 0, IN_LAYER, t->layer));
}
/* The row of a tensor by its name within its layer; NAMES: it has none. */
static int row_of(Family f, const char *name, int is_experts) {
    int i = 0;
    while (i < NAMES && !(names[i].families & (int)f && !strcmp(names[i].here, name)
                          && (is_experts || !names[i].there || !strchr(names[i].there, '%')))) i++;
    return i;
}
/* Name number `part` of a list. */
static void write_name(char to[PIECE_NAME], int layer, const char *from, int part, int expert) {
    int n = layer < 0 ? 0 : snprintf(to, PIECE_NAME, IN_LAYER, layer);
    while (part--) from = strchr(from, '|') + 1;
    for (; *from && *from != '|'; from++)
        n += snprintf(to + n, PIECE_NAME - (size_t)n, *from == '%' ? "%d" : "%c", *from == '%' ? expert : *from);
    to[n] = 0;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static int rotated(const Config *c) { return c->rotated ? c->rotated : c->head_size; }
static int permutes(const Config *c) { return c->rope_pairs || rotated(c) < rope_head(c); }
int piece_row(const Config *c, int head, int i) {
    const int before = c->kv_rank ? head - c->rotated : 0, R = rotated(c), half = rope_head(c) / 2;
    if (i < before) return i;
    i -= before;
    /* those that do not rotate fill what is left of both halves */
    if (i >= R) return i - R < half - R/2 ? i - R/2 : i;
    if (c->rope_pairs) return before + i % 2 * half + i / 2;
    return before + (i < R/2 ? i : i - R/2 + half);
}

/* Number `part` of the parts of a tensor, or of each expert, in a file. */
static Piece piece(const Config *c, const Tensor *t, int parts, int part, int by_expert, Order order) {
    const int head = order == LATENT ? c->kv_rank + c->rotated
                                     : order == HEADS || (order == KEYS && !part) ? c->head_size : 0;
    Piece p = { .rank = t->rank - by_expert, .count = 1, .head = permutes(c) ? head : 0,
                .transposed = order == TRANSPOSED || order == BOTH, .interleaved = order == INTERLEAVED
                || order == BOTH };
    for (int d = 0; d < p.rank; d++) p.shape[d] = (uint64_t)t->shape[d + by_expert];
    p.shape[0] = (p.shape[0] - (uint64_t)t->padding) / (uint64_t)parts;
    for (int d = 0; d < p.rank; d++) p.count *= p.shape[d];
    if (p.transposed) {
        const uint64_t rows = p.shape[1];
        p.shape[1] = p.shape[2];
        p.shape[2] = rows;
    }
    return p;
}
Piece *pieces_of(const Model *m, size_t *count) {
    const Config *c = &m->config;
    const Family f = config_family(c);
    Piece *all = NULL;
    *count = 0;
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        const char *here = within_layer(t);
        const int row = row_of(f, here, t->rank == 3);
        const char *list = row < NAMES && names[row].there ? names[row].there : here;
        const int by_expert = strchr(list, '%') != NULL, experts = by_expert ? t->shape[0] : 1;
        int parts = 1;
        size_t offset = t->offset;
        for (const char *at = list; *at; at++) parts += *at == '|';
        all = mem_grow(all, (*count + (size_t)(experts * parts)) * sizeof *all);
        for (int k = 0; k < experts * parts; k++) {
            Piece *p = &all[(*count)++];
            *p = piece(c, t, parts, k % parts, by_expert, row < NAMES ? names[row].order : 0);
            p->tensor = i;
            p->offset = offset;
            offset += p->count;
            write_name(p->name, t->layer, list, k % parts, k / parts);
        }
    }
    return all;
}

Piece piece_of_bias(const Model *m, int r) {
    int attention;
    const Family f = config_family(&m->config);
    const int layer = router_layer(&m->config, r, &attention), is_row = f == FAMILY_ERNIE;
    const char *here = attention ? "self_attention.experts.router.choice_bias" : "mlp.router.choice_bias";
    const int row = row_of(f, here, 0);
    Piece p = { .rank = 1 + is_row, .shape = { 1 }, .count = (size_t)router_width(m, r) };
    p.shape[is_row] = p.count;
    write_name(p.name, layer, row < NAMES ? names[row].there : here, 0, 0);
    return p;
}

/* The number of the expert in a name of this form; -1: it is of another; 0 without a '%'. */
static int expert_in(const char *form, const char *name) {
    const char *at = strchr(form, '%');
    const size_t before = at ? (size_t)(at - form) : 0;
    if (strncmp(form, name, before)) return -1;
    if (!at) return strcmp(form, name) ? -1 : 0;
    const size_t digits = strspn(name + before, "0123456789");
    return !digits || strcmp(at + 1, name + before + digits) ? -1 : atoi(name + before);
}
int piece_by_module(const Config *c, const Piece *p, Piece *other) {
    int layer, length = 0;
    if (sscanf(p->name, IN_LAYER "%n", &layer, &length) < 1 || !length) return 0;
    for (int i = 0; i < MODULES; i++) {
        const int expert = expert_in(modules[i].file, p->name + length);
        if (expert < 0) continue;
        *other = *p;
        write_name(other->name, layer, modules[i].module, 0, 0);
        other->of = modules[i].of, other->experts = c->experts;
        other->first = (uint64_t)(expert * modules[i].of + modules[i].part) * p->count;
        return 1;
    }
    return 0;
}

/* Predictors of later tokens (GLM, DeepSeek: more layers), angles, a head that is the embedding. */
int is_idle(const Config *c, const char *name) {
    static const char layers[] = "model.layers.";
    const int more = config_family(c) & (FAMILY_GLM | FAMILY_GLM_LITE | FAMILY_DEEPSEEK_V3 | FAMILY_MINIMAX_M2)
        && !strncmp(name, layers, strlen(layers));
    return strstr(name, "rotary_emb.inv_freq") || strstr(name, "mtp")
        || (more && atoi(name + strlen(layers)) >= c->layers)
        || (c->tied && !strcmp(name, "lm_head.weight"));
}

/* ---- the order of rows ----------------------------------------------------------------------- */

static int of_experts(const Piece *p) { return p->transposed || p->interleaved; }
size_t piece_unit(const Piece *p) {
    return p->head || of_experts(p) ? (size_t)(p->head ? p->head : 1) * (p->count / p->shape[0]) : 1;
}

size_t expert_unit(const Model *m, int tensor) {
    const Tensor *t = &m->manifest.at[tensor];
    const int row = row_of(config_family(&m->config), within_layer(t), t->rank == 3);
    return row < NAMES && names[row].order >= TRANSPOSED ? t->count / (size_t)t->shape[0] : 1;
}

/* An expert's matrix, (rows, columns) in memory. In files it may be transposed, and rows of gate
 * and up may alternate. It is transposed in tiles that stay in the first cache; when a model is
 * loaded, other threads have other experts. */
static size_t row_in_file(const Piece *p, size_t r, size_t rows) {
    return !p->interleaved ? r : r < rows / 2 ? 2*r : 2*(r - rows / 2) + 1;
}
#define TRANSPOSE(type) do { \
    const type *from = copy; \
    type *to = data; \
    _Pragma("omp parallel for") \
    for (size_t k0 = 0; k0 < columns; k0 += TILE) \
        for (size_t r0 = 0; r0 < rows; r0 += TILE) \
            for (size_t r = r0; r < rows && r < r0 + TILE; r++) { \
                const size_t file = row_in_file(p, r, rows), memory = r * columns, \
                    end = columns < k0 + TILE ? columns : k0 + TILE; \
                if (to_memory) for (size_t k = k0; k < end; k++) to[memory + k] = from[k * rows + file]; \
                else           for (size_t k = k0; k < end; k++) to[k * rows + file] = from[memory + k]; \
            } \
    } while (0)
static void reorder_expert(const Piece *p, void *data, void *copy, size_t size, int to_memory) {
    enum { TILE = 64 };
    const size_t rows = p->shape[p->transposed ? 2 : 1], columns = p->rank < 3 ? 1 : p->shape[p->transposed ? 1 : 2];
    memcpy(copy, data, rows * columns * size);
    if (!p->transposed) {
        for (size_t r = 0, row = columns * size; r < rows; r++) {
            const size_t file = row_in_file(p, r, rows) * row, memory = r * row;
            memcpy((char *)data + (to_memory ? memory : file), (char *)copy + (to_memory ? file : memory), row);
        }
    } else if (size == 2) TRANSPOSE(uint16_t);
    else if (size == 4) TRANSPOSE(uint32_t);
    else TRANSPOSE(uint64_t);
}
void piece_reorder(const Config *c, const Piece *p, void *data, size_t n, size_t size, int to_memory) {
    const size_t row = p->count / p->shape[0] * size, head = row * (size_t)p->head;
    char *copy = p->head || of_experts(p) ? mem_alloc(piece_unit(p) * size) : NULL;
    for (size_t i = 0; of_experts(p) && i < n; i += piece_unit(p))
        reorder_expert(p, (char *)data + i * size, copy, size, to_memory);
    for (char *at = data; p->head && at < (char *)data + n * size; at += head) {
        memcpy(copy, at, head);
        for (int i = 0; i < p->head; i++) {
            const size_t file = (size_t)i * row, memory = (size_t)piece_row(c, p->head, i) * row;
            memcpy(at + (to_memory ? memory : file), copy + (to_memory ? file : memory), row);
        }
    }
    free(copy);
}
