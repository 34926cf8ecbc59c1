/* hf.c: see hf.h. What tensors are called in files, and how their rows lie there: pieces.h. */
#define _DEFAULT_SOURCE
#include "hf.h"
#include "llmc/model/codes.h"
#include "llmc/model/parallel.h"
#include "llmc/model/plan.h"
#include "llmc/model/ranges.h"
#include "llmc/model/routers.h"
#include "config_json.h"
#include "foreign.h"
#include "families.h"
#include "load.h"
#include "pieces.h"
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __APPLE__
#define st_mtim st_mtimespec            /* POSIX's name of 2008 */
#endif

enum { BUFFER = 1 << 20 };              /* elements moved at a time */

/* ---- finding a model ------------------------------------------------------------------------- */

int hf_has_weights(const char *folder) {
    return folder_has(folder, "model.safetensors") || folder_has(folder, "model.safetensors.index.json");
}
static int is_model(const char *folder) { return folder_has(folder, "config.json") && hf_has_weights(folder); }

static int later(struct timespec a, struct timespec b) {
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}
static char *newest_model(void) {
    static const char *const patterns[] = { "*/model.safetensors", "*/best/model.safetensors",
                                            "*/model.safetensors.index.json", "*/best/model.safetensors.index.json" };
    struct timespec latest = { 0 };
    char *folder = NULL;
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        glob_t found;
        struct stat s;
        const int none = glob(patterns[k], 0, NULL, &found);
        if (none == GLOB_NOSPACE) fail(EXIT_MEMORY, "out of host memory: the models of this folder cannot be listed");
        if (none) continue;
        for (size_t i = 0; i < found.gl_pathc; i++) {
            char *path = text_format("%s", found.gl_pathv[i]);
            *strrchr(path, '/') = 0;
            if (is_model(path) && !stat(found.gl_pathv[i], &s) && (!folder || later(s.st_mtim, latest))) {
                free(folder);
                folder = path;
                latest = s.st_mtim;
            } else free(path);
        }
        globfree(&found);
    }
    return folder;
}

/* Why there is no model of this name. */
static const char *no_model(const char *given) {
    return folder_has(given, "run.json") ? "this is the state of a run, from which -y 1 resumes; with config.json and "
        "tokenizer.json of the run beside it, it is a model"
         : is_folder(given) ? "there is no model in this folder" : "no such folder (a prompt is given with -i)";
}
char *hf_find_model(const char *given, Error *e) {
    char *best = text_format("%s/best", given ? given : "out"), *folder = NULL;
    if (given && is_model(given)) folder = text_format("%s", given);
    else if (is_model(best)) folder = text_format("%s", best);
    else if (!given) folder = is_model("out") ? text_format("out") : newest_model();
    if (!folder && given && foreign_model(given, e))
        error_set(e, "%s: %s; a checkpoint is a folder with config.json and model.safetensors", given, no_model(given));
    else if (!folder && !given) error_set(e, "there is no model in out/best, in out, or in any other folder here");
    free(best);
    return folder;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A file may say that the head is the embedding, and have another one. 1: it has. */
static int has_other_head(const char *folder, Error *e) {
    enum { SOME = 1 << 14 };
    Safetensors *s = safetensors_open(folder, e);
    const FileTensor *head = s ? safetensors_find(s, "lm_head.weight") : NULL,
        *embedding = s ? safetensors_find(s, "model.embed_tokens.weight") : NULL;
    int other = head && embedding && head->count != embedding->count;
    double *a = mem_alloc(2 * SOME * sizeof *a), *b = a + SOME;
    for (uint64_t i = 0; head && embedding && !other && i < head->count; i += SOME) {
        const size_t n = head->count - i < SOME ? (size_t)(head->count - i) : SOME;
        if (!safetensors_read_double(s, head, i, a, n, e) || !safetensors_read_double(s, embedding, i, b, n, e)) break;
        other = memcmp(a, b, n * sizeof *a) != 0;
    }
    free(a);
    safetensors_close(s);
    return other;
}
int hf_load_config(const char *folder, Config *c, Error *e) {
    if (!is_model(folder) && !foreign_model(folder, e)) return 0;
    if (folder_has(folder, "adapter_config.json"))
        return error_set(e, "%s: a model, and beside it a LoRA adapter (adapter_config.json), which changes that model "
                         "or another. Merge it first (peft: merge_and_unload(), save_pretrained()); or take the model "
                         "from a folder without the adapter", folder);
    Json *json = json_read_file(folder, "config.json", e);
    Error why;
    const int ok = json && (config_from_json(c, json_root(json), &why) || error_set(e, "%s/%.900s", folder, why.text));
    json_free(json);
    if (ok && c->tied && has_other_head(folder, &why)) {
        c->tied = 0;
        warn("%s: \"tie_word_embeddings\" is true, but lm_head.weight is not the embedding: both are taken, as "
             "Transformers 5 does; 4 would ignore the head", folder);
    }
    return ok;
}

/* Experts may be in MXFP4, as two tensors, not transposed: p becomes such a piece. */
static const FileTensor *find_mxfp4(const Safetensors *s, Piece *p, const FileTensor **scales) {
    char name[TENSOR_NAME + 32];
    const FileTensor *t;
    snprintf(name, sizeof name, "%s_scales", p->name);
    *scales = safetensors_find(s, name);
    snprintf(name, sizeof name, "%s_blocks", p->name);
    if (!*scales || !(t = safetensors_find(s, name))) return *scales = NULL;
    const uint64_t columns = p->shape[1];
    p->shape[1] = p->shape[2];
    p->shape[2] = columns;
    p->transposed = 0;
    return t;
}
/* The tensor that a piece is, or is a part of; p becomes the piece as the file has it. */
static const FileTensor *find_piece(const Safetensors *s, const Config *c, Piece *p, const FileTensor **scales) {
    char name[TENSOR_NAME + 32];
    Piece other;
    const FileTensor *t = safetensors_find(s, p->name);
    *scales = NULL;
    if (!t && p->transposed) return find_mxfp4(s, p, scales);
    if (!t && piece_by_module(c, p, &other) && (t = safetensors_find(s, other.name))) *p = other;
    if (!t || strcmp(t->dtype, "F8_E4M3")) return t;
    snprintf(name, sizeof name, "%s_scale_inv", p->name);
    *scales = safetensors_find(s, name);
    return t;
}
static int same_mxfp4(const FileTensor *blocks, const FileTensor *scales, const Piece *p) {
    const uint64_t all = (uint64_t)p->count / MXFP4_BLOCK;
    return p->shape[2] % MXFP4_BLOCK == 0 && blocks->rank == 4 && scales->rank == 3
        && blocks->count == all * (MXFP4_BLOCK / 2) && scales->count == all
        && !strcmp(blocks->dtype, "U8") && !strcmp(scales->dtype, "U8") && blocks->shape[0] == p->shape[0]
        && blocks->shape[1] == p->shape[1] && scales->shape[0] == blocks->shape[0]
        && scales->shape[1] == blocks->shape[1];
}
/* Blocks of 128 x 128 of the tensor's last two dimensions have a scale each. */
static int same_fp8(const FileTensor *t, const FileTensor *scales) {
    int same = t->rank >= 2 && scales->rank == t->rank;
    for (int d = 0; same && d < t->rank; d++)
        same = scales->shape[d] == (d < t->rank - 2 ? t->shape[d] : (t->shape[d] + FP8_BLOCK - 1) / FP8_BLOCK);
    return same && (!strcmp(scales->dtype, "F32") || !strcmp(scales->dtype, "BF16"));
}
static int same_shape(const FileTensor *t, const Piece *p) {
    if (p->of) return t->rank == 3 && p->rank == 2 && t->shape[0] == (uint64_t)p->experts
                   && t->shape[1] == (uint64_t)p->of * p->shape[0] && t->shape[2] == p->shape[1];
    if (t->rank != p->rank) return 0;
    for (int d = 0; d < p->rank; d++) if (t->shape[d] != p->shape[d]) return 0;
    return 1;
}
static void shape_text(char *text, size_t capacity, const uint64_t *shape, int rank) {
    size_t n = (size_t)snprintf(text, capacity, "[");
    for (int d = 0; d < rank && n < capacity; d++)
        n += (size_t)snprintf(text + n, capacity - n, "%s%llu", d ? ", " : "", (unsigned long long)shape[d]);
    if (n < capacity) snprintf(text + n, capacity - n, "]");
}

/* Where a tensor of a file goes, and again `stride` elements later, `copies` times in all. */
typedef struct { const Tensor *tensor; void *to; size_t stride, copies; } Target;

/* Of a piece of `was`: the tensor of the same layer and field in m, or in its every expert. */
static Target target_of(const Model *m, const Model *was, const Piece *p) {
    const Tensor *t = &was->manifest.at[p->tensor], *to = m->manifest.at;
    while (to->layer != t->layer || to->field != t->field) to++;
    return (Target){ to, float_at(m, model_weight(m, to), p->offset - t->offset), t->count, to->count / t->count };
}

typedef struct { const Model *m; Piece piece; } LoadedPiece;
static int check_piece(const Load *l, void *data, size_t first, size_t n, Error *e) {
    const LoadedPiece *of = l->of;
    const Device *dev = of->m->dev;
    const size_t bad = first_not_finite(dev->dtype, data, n);
    if (bad < n) return error_set(e, "tensor %s: element %zu is NaN or infinite", of->piece.name,
                                  (size_t)l->first + first + bad);
    piece_reorder(&of->m->config, &of->piece, data, n, dev->floatX_size, 1);
    return 1;
}
/* Weights that are kept in codes have a buffer for a range at a time. is_coded: by tensor. */
static int load_for_codes(Model *m, Safetensors *s, const Load *loads, const size_t *first, const char *is_coded,
                          Error *e) {
    const int ranges = m->manifest.range_count;
    Loader *l = load_open(m->dev, s, loads, first[ranges]);
    int ok = 1;
    for (int r = 0; r < ranges && ok; r++) {
        ok = load_next(l, first[r + 1] - first[r], e);
        for (int i = 0; i < m->manifest.count && ok; i++)
            if (m->manifest.at[i].range == r) codes_keep(m, i, is_coded[i]);
    }
    load_close(l);
    return ok;
}
/* All ranks load sharded weights by ranges; each keeps its own. first: of a range's loads. */
static int load_ranges(Model *m, Safetensors *s, const Load *loads, const size_t *first, Error *e) {
    const int ranges = m->manifest.range_count;
    int ok = 1;
    if (m->dp.level < 3) return load_all(m->dev, s, loads, first[ranges], e);
    Loader *l = load_open(m->dev, s, loads, first[ranges]);
    parallel_begin_weights(m);
    for (int r = 0; r < ranges && ok; r++) {
        parallel_wait_weights(m, r, 0);                     /* tensors that the file does not have stay */
        if ((ok = load_next(l, first[r + 1] - first[r], e))) parallel_keep_weights(m, r);
    }
    load_close(l);
    return ok;
}
/* Of sharded weights a rank keeps its part: of a piece, `at` elements into a tensor, what is read
 * are the whole units that it is in. */
static void load_own(const Model *m, Load *l, const Tensor *t, size_t at) {
    if (m->dp.level < 3 || !m->dp.parallel || l->copies > 1 || l->scales) return;
    const Segment own = manifest_segment(&m->manifest, (int)(t - m->manifest.at), m->dp.shards,
                                         parallel_shard(m->dp.parallel));
    const size_t begin = own.offset - t->offset, last = begin + own.count, unit = l->unit;
    const size_t from = begin > at ? (begin - at) / unit * unit : 0,
        end = last > at ? (last - at + unit - 1) / unit * unit : 0, before = end < l->count ? end : l->count;
    l->count = own.count && from < before ? before - from : 0;
    l->first += from;
    l->to = float_at(m, l->to, from);
}
/* Codes as the file has them. Of some the last blocks of 8 bits would be of other rows. */
static int check_codes(const Load *l, void *data, size_t first, size_t n, Error *e) {
    const LoadedPiece *of = l->of;
    const unsigned char *byte = data, mask = l->scales ? 0x7f : 0xff;       /* codes in 8 bits have a sign */
    const int any = !strcmp(l->tensor->dtype, "U8") && l->scales;       /* two codes */
    for (size_t i = 0; i < n && !any; i++)
        if ((byte[i] & mask) == mask)
            return error_set(e, "tensor %s: code or scale %zu is NaN", l->tensor->name, first + i);
    for (size_t i = 0; i < n && !l->scales; i++)
        if (byte[i] > MXFP4_SCALE_MAX)
            return error_set(e, "tensor %s: scale %zu is 2^%d, expected at most 2^%d", l->tensor->name, first + i,
                             byte[i] - 127, MXFP4_SCALE_MAX - 127);
    piece_reorder(&of->m->config, &of->piece, data, n, 1, 1);
    return 1;
}
static int check_scales(const Load *l, void *data, size_t first, size_t n, Error *e) {
    const size_t bad = first_not_finite(load_dtype(((const LoadedPiece *)l->of)->m->dev, REAL), data, n);
    return bad >= n || error_set(e, "tensor %s: scale %zu is NaN or infinite", l->tensor->name, first + bad);
}
/* 1: the model keeps this piece's codes as they are in the file; or their values, without codes. */
static int has_codes(const Model *m, const Piece *p, const FileTensor *t, const FileTensor *scales) {
    const Format f = m->codes ? m->codes[p->tensor].format : OF_FLOATX;
    if (!scales || !m->codes) return scales != NULL;
    if (f == OF_FLOATX) return 0;
    return f == OF_MXFP4 ? !strcmp(t->dtype, "U8")
         : !strcmp(t->dtype, "F8_E4M3") && p->shape[p->rank - 1] % FP8_BLOCK == 0
           && p->shape[p->rank - 2] % FP8_BLOCK == 0 && (!p->head || FP8_BLOCK % p->head == 0);
}
/* Codes of a piece, and their scales: two loads. */
static void load_codes(Load to[2], LoadedPiece of[2], const Model *m, Piece p, const FileTensor *t,
                       const FileTensor *scales) {
    const Weight *w = &m->codes[p.tensor];
    const int in_4_bits = w->format == OF_MXFP4;
    const size_t at = p.offset - m->manifest.at[p.tensor].offset, of_scales = in_4_bits ? MXFP4_BLOCK
        : FP8_BLOCK * FP8_BLOCK, of_codes = in_4_bits ? 2 : 1;
    for (int i = 0; i < 2; i++) {
        Piece q = p;
        q.shape[q.rank - 1] /= in_4_bits ? i ? of_scales : of_codes : 1;
        q.count /= i ? of_scales : of_codes;
        of[i] = (LoadedPiece){ m, q };
        to[i] = (Load){ .tensor = i ? scales : t, .scales = i ? NULL : scales, .raw = !i || in_4_bits,
                        .first = p.first / (i ? of_scales : of_codes), .count = q.count,
                        .unit = !i || in_4_bits ? piece_unit(&q) : 1, .type = REAL,
                        .check = !i || in_4_bits ? check_codes : check_scales, .of = &of[i] };
    }
    to[0].to = (char *)w->at + at / of_codes;
    to[1].to = (char *)w->scale + at / of_scales * (in_4_bits ? 1 : m->dev->real_size);
}
/* All tensors of the file that are those of the model `was`, to the device. */
static int load_pieces(Model *m, const Model *was, Safetensors *s, Error *e) {
    const Manifest *f = &was->manifest;
    size_t count, n = 0, *first = mem_alloc((size_t)(f->range_count + 1) * sizeof *first);
    Piece *pieces = pieces_of(was, &count);
    LoadedPiece *of = mem_alloc(2 * count * sizeof *of);
    Load *loads = mem_alloc(2 * count * sizeof *loads);
    char *is_coded = mem_alloc((size_t)f->count);
    const FileTensor *scales;
    memset(is_coded, 1, (size_t)f->count);
    for (size_t k = 0; k < count; k++) {
        Piece p = pieces[k];
        const FileTensor *tensor = find_piece(s, &was->config, &p, &scales);
        is_coded[p.tensor] &= (char)has_codes(m, &p, tensor, scales);
    }
    int range = 0;
    for (size_t k = 0; k < count; k++) {
        Piece p = pieces[k];
        const FileTensor *tensor = find_piece(s, &was->config, &p, &scales);
        while (range < f->at[p.tensor].range) first[++range] = n;
        if (m->codes && is_coded[p.tensor]) { load_codes(loads + n, of + n, m, p, tensor, scales), n += 2; continue; }
        const Target target = target_of(m, was, &p);
        of[n] = (LoadedPiece){ m, p };
        loads[n] = (Load){ .tensor = tensor, .scales = scales, .first = p.first, .count = p.count,
                           .unit = piece_unit(&p), .to = target.to,
                           .copies = target.copies, .stride = target.stride, .type = FLOATX,
                           .check = check_piece, .of = &of[n] };
        load_own(m, &loads[n], target.tensor, p.offset - f->at[p.tensor].offset);
        n++;
    }
    while (range < f->range_count) first[++range] = n;
    const int ok = m->config.weights || m->codes ? load_for_codes(m, s, loads, first, is_coded, e)
                                                 : load_ranges(m, s, loads, first, e);
    free_each(first, pieces, of, loads, is_coded);
    return ok;
}

/* ---- the routers' biases for choosing: part of a model that has them, but not learned, so not in
 *      its manifest ---------------------------------------------------------------------------- */

static int bias_count(const Model *m) { return m->config.choice_bias ? m->routers : 0; }
static const FileTensor *find_bias(const Safetensors *s, const Model *m, int r, Piece *p) {
    const FileTensor *scales;
    *p = piece_of_bias(m, r);
    return find_piece(s, &m->config, p, &scales);
}
static int load_bias(Model *m, Safetensors *s, int r, Error *e) {
    Piece p;
    const FileTensor *t = find_bias(s, m, r, &p);
    const size_t E = p.count;
    double *values = mem_alloc(E * sizeof *values);
    int ok = safetensors_read_double(s, t, 0, values, E, e);
    if (ok && first_not_finite("F64", values, E) < E)
        ok = error_set(e, "tensor %s: an element is NaN or infinite", p.name);
    if (ok) m->dev->reals_from_double(real_at(m, m->bias, router_offset(m, r)), values, E);
    free(values);
    return ok;
}
static void mark(char *known, const Safetensors *s, const FileTensor *t) {
    if (t) known[t - safetensors_at(s, 0)] = 1;
}
static void warn_of_unknown(const Model *m, const Safetensors *s, const char *path) {
    const size_t count = safetensors_count(s);
    char *known = mem_alloc(count);
    size_t n;
    Piece *pieces = pieces_of(m, &n);
    for (size_t k = 0; k < n; k++) {
        const FileTensor *scales;
        mark(known, s, find_piece(s, &m->config, &pieces[k], &scales));
        mark(known, s, scales);
    }
    for (int r = 0; r < bias_count(m); r++) {
        Piece p;
        mark(known, s, find_bias(s, m, r, &p));
    }
    for (size_t i = 0, warnings = 0; i < count && warnings < 5; i++) {
        const char *name = safetensors_at(s, i)->name;
        if (known[i] || is_idle(&m->config, name)) continue;
        warn("%s: tensor %s is not part of this model and is ignored", path, name);
        warnings++;
    }
    free_each(pieces, known);
}

/* What is wrong with a tensor of the file, as a line; NULL: nothing. free() it. */
static char *problem_of(const Piece *p, const FileTensor *t, const FileTensor *scales) {
    char found[96], expected[96];
    const int coded = t && !strcmp(t->dtype, "F8_E4M3"), packed = scales && !coded;
    if (t && (packed ? same_mxfp4(t, scales, p) : same_shape(t, p)) && (!coded || (scales && same_fp8(t, scales))))
        return NULL;
    shape_text(expected, sizeof expected, p->shape, p->rank);
    if (!t) return text_format("%s %s is missing", p->name, expected);
    if (packed) return text_format("%s in MXFP4: its blocks and scales are not those of shape %s", p->name, expected);
    shape_text(found, sizeof found, t->shape, t->rank);
    if (!same_shape(t, p)) return text_format("%s has shape %s, the model needs %s%s", p->name, found, expected,
                                              p->of == 2 ? ", twice for each expert" : p->of ? " for each expert" : "");
    return text_format("%s is in F8_E4M3, and %s_scale_inv %s", p->name, p->name,
                       scales ? "is no scale in F32 or BF16 of each 128 x 128 elements" : "is missing");
}
/* A file none of whose names are those of this model: what it is instead. */
static void explain_names(const Model *m, const Safetensors *s, Text *problems) {
    static const struct { const char *part, *is; } others[] = {
        { "lora_A", "it is a LoRA adapter: merge it into its base model (PEFT: merge_and_unload(), "
          "save_pretrained())" },
        { "base_model.", "PEFT saved it with its own names: merge_and_unload() and save_pretrained() of what that "
          "returns" },
        { ".qweight", "its weights are quantized (GPTQ or AWQ): a folder in bf16 is needed" },
        { ".weight_packed", "its weights are quantized (compressed-tensors): a folder in bf16 is needed" },
        { ".absmax", "its weights are quantized (bitsandbytes): a folder in bf16 is needed" },
        { "language_model.", "it is a model of images and text: only models of text are read" },
        { "_orig_mod.", "it was saved from a compiled module (torch.compile), whose names begin with _orig_mod: save "
          "the module in it" },
        { "module.", "it was saved from a wrapped module (DDP, DeepSpeed), whose names begin with module: save the "
          "module in it" },
    };
    const char *name = safetensors_count(s) ? safetensors_at(s, 0)->name : "none";
    const char *is = NULL;
    for (size_t i = 0; i < safetensors_count(s) && !is; i++)
        for (size_t k = 0; k < sizeof others / sizeof *others && !is; k++) {
            if (!strstr(safetensors_at(s, i)->name, others[k].part)) continue;
            is = others[k].is;
            name = safetensors_at(s, i)->name;
        }
    text_add(problems, "\n  no tensor has a name of a %s; the file has %zu, among them %.200s%s%s",
             family_name(config_family(&m->config)), safetensors_count(s), name, is ? ": " : "", is ? is : "");
}

/* Are all tensors there, in the right shapes? problems: a line for each that is not. used: of the
 * file's. */
static int find_problems(const Model *m, Safetensors *s, Text *problems, size_t *used) {
    int n = 0;
    size_t count;
    Piece *pieces = pieces_of(m, &count);
    for (size_t k = 0; k < count; k++) {
        Piece *p = &pieces[k];
        const FileTensor *scales, *t = find_piece(s, &m->config, p, &scales);
        if (!p->first) *used += (t != NULL) + (scales != NULL);             /* of several pieces in one the first */
        char *problem = problem_of(p, t, scales);
        n += problem != NULL;
        if (problem && problems->length <= sizeof(Error)) text_add(problems, "\n  %s", problem);
        free(problem);                                      /* others are counted, but not listed */
    }
    for (int r = 0; r < bias_count(m); r++) {
        Piece p;
        const FileTensor *t = find_bias(s, m, r, &p);
        *used += t != NULL;
        if (t && t->count == p.count) continue;
        text_add(problems, "\n  %s of %zu elements is %s", p.name, p.count, t ? "of another size" : "missing");
        n++;
    }
    if (!*used) {
        problems->length = 0;
        explain_names(m, s, problems);
    }
    free(pieces);
    return n;
}
static int report_problems(const char *path, int n, const Text *problems, Error *e) {
    return !n || error_set(e, "%s: %d tensor%s cannot be used:%.900s", path, n, n > 1 ? "s" : "", problems->at);
}
int hf_check_weights(const Device *dev, const Config *c, const char *path, Error *e) {
    Model m;
    Text problems = { 0 };
    size_t used = 0;
    Safetensors *s = safetensors_open(path, e);
    if (!s) return 0;
    model_plan_inference(&m, dev, c, 1, 1, 0, NULL);
    const int ok = report_problems(path, find_problems(&m, s, &problems, &used), &problems, e);
    model_free(&m);
    safetensors_close(s);
    free(problems.at);
    return ok;
}

int hf_in_mxfp4(const Device *dev, const Config *c, const char *path) {
    Error e;
    Model m;
    size_t count;
    int all = 1, some = 0;
    Safetensors *s = safetensors_open(path, &e);
    if (!s) return 0;
    model_plan_inference(&m, dev, c, 1, 1, 0, NULL);
    Piece *pieces = pieces_of(&m, &count);
    for (size_t k = 0; k < count; k++) {
        const FileTensor *scales;
        if (!pieces[k].transposed) continue;
        find_piece(s, c, &pieces[k], &scales);
        some = 1, all &= scales != NULL;
    }
    free(pieces);
    model_free(&m);
    safetensors_close(s);
    return some && all;
}

/* was: the model that the files have; m itself, or the dense one that it is a mixture of. */
static int load_weights(Model *m, const Model *was, const char *path, Error *e) {
    Safetensors *s = safetensors_open(path, e);
    Text problems = { 0 };
    size_t used = 0;
    if (!s) return 0;
    Error why;
    int n = find_problems(was, s, &problems, &used);
    used += m->config.tied && safetensors_find(s, "lm_head.weight");            /* a redundant copy of the embedding */
    if (!n) n = !load_pieces(m, was, s, &why);
    for (int r = 0; r < bias_count(was) && !n; r++) n = !load_bias(m, s, r, &why);
    if (n && !problems.at) text_add(&problems, "\n  %s", why.text);
    if (!n && used < safetensors_count(s) && was->to - was->from == was->config.layers) warn_of_unknown(was, s, path);
    report_problems(path, n, &problems, e);
    safetensors_close(s);
    free(problems.at);
    return !n;
}
size_t hf_host_bytes(const Model *m) {
    size_t count, unit = 1;
    Piece *pieces = pieces_of(m, &count);
    for (size_t i = 0; i < count; i++) if (piece_unit(&pieces[i]) > unit) unit = piece_unit(&pieces[i]);
    free(pieces);
    return load_host_bytes(m->dev, unit);
}
int hf_load_weights(Model *m, const char *path, Error *e) { return load_weights(m, m, path, e); }
int hf_load_upcycled(Model *m, const Config *dense, const char *path, Error *e) {
    Model was;
    model_plan_inference(&was, m->dev, dense, 1, 1, 0, NULL);
    const int ok = load_weights(m, &was, path, e);
    model_free(&was);
    return ok;
}

/* ---- the file of the weights ----------------------------------------------------------------- */

typedef struct {
    size_t learned, count;              /* those of the manifest; and with the biases, which come after */
    Piece *pieces;
    FileTensor *tensors;
} WeightsFile;

static WeightsFile weights_file(const Model *m) {
    WeightsFile f = { 0 };
    f.pieces = pieces_of(m, &f.learned);
    f.count = f.learned + (size_t)bias_count(m);
    f.pieces = mem_grow(f.pieces, f.count * sizeof *f.pieces);
    f.tensors = mem_alloc(f.count * sizeof *f.tensors);
    for (size_t k = 0; k < f.count; k++) {
        const Piece *p = &f.pieces[k];
        if (k >= f.learned) f.pieces[k] = piece_of_bias(m, (int)(k - f.learned));
        f.tensors[k] = (FileTensor){ .name = p->name, .dtype = load_dtype(m->dev, k < f.learned ? FLOATX : REAL),
                                     .rank = p->rank, .shape = p->shape };
    }
    return f;
}

/* elements: of buffer */
typedef struct { SafetensorsWriter *to; const SaveShard *shard; char *buffer; size_t elements; } Writing;

/* Elements from .. end - 1 of a head, whose first element is `head` of the piece: rows that the
 * file has in another order. They are in w->buffer. at: where the piece begins in the data. */
static int write_rows(const Writing *w, const Piece *p, uint64_t at, size_t head, size_t from, size_t end, Error *e) {
    const Model *m = w->shard->model;
    const size_t size = m->dev->floatX_size, row = p->count / p->shape[0];
    int ok = 1;
    for (int i = 0; i < p->head && ok; i++) {
        const size_t target = head + (size_t)piece_row(&m->config, p->head, i) * row;
        const size_t a = target > from ? target : from, b = target + row < end ? target + row : end;
        if (a >= b) continue;
        ok = safetensors_seek(w->to, at + (head + (size_t)i * row + (a - target)) * size, e)
          && safetensors_append(w->to, w->buffer + (a - from) * size, (b - a) * size, e);
    }
    return ok;
}
/* This rank's part of a piece. Only heads may be cut (save_shard.h). */
static int write_piece(const Writing *w, const Piece *p, uint64_t at, Error *e) {
    const Model *m = w->shard->model;
    const SaveShardPart *part = &w->shard->parts[SHARD_WEIGHTS][p->tensor];
    const size_t size = m->dev->floatX_size, unit = piece_unit(p), chunk = w->elements / unit * unit,
        before = p->offset - m->manifest.at[p->tensor].offset;
    const size_t first = part->first > before ? part->first - before : 0, last = part->first + part->count;
    const size_t end = last > before ? last - before < p->count ? last - before : p->count : 0;
    int ok = 1;
    for (size_t i = first, n; i < end && ok; i += n) {
        const size_t to_unit = (unit - i % unit) % unit;    /* to the end of a unit whose beginning another rank has */
        n = to_unit ? to_unit : end - i < unit ? end - i : end - i < chunk ? (end - i) / unit * unit : chunk;
        if (n > end - i) n = end - i;
        const int full = !to_unit && n >= unit;
        const void *values = save_shard_read(w->shard, SHARD_WEIGHTS, p->tensor, before + i, n, w->buffer);
        if (first_not_finite(m->dev->dtype, values, n) < n)
            return error_set(e, "tensor %s is not finite: not saved", p->name);
        if (unit > 1 && values != w->buffer) memcpy(w->buffer, values, n * size);
        if (unit > 1 && full) piece_reorder(&m->config, p, w->buffer, n, size, 0);
        if (unit > 1 && !full) ok = write_rows(w, p, at, i / unit * unit, i, i + n, e);
        else ok = safetensors_seek(w->to, at + i * size, e)
            && safetensors_append(w->to, unit > 1 ? w->buffer : values, n * size, e);
    }
    return ok;
}
static int write_biases(const Writing *w, uint64_t at, Error *e) {
    const Model *m = w->shard->model;
    const size_t Re = m->dev->real_size;
    if (!w->shard->leads || !bias_count(m)) return 1;
    char *buffer = mem_alloc(router_offset(m, m->routers) * Re);
    const char *all = save_shard_bias(w->shard, buffer);
    int ok = safetensors_seek(w->to, at, e);
    for (int r = 0; r < bias_count(m) && ok; r++) {
        const char *bias = all + router_offset(m, r) * Re;
        const size_t E = (size_t)router_width(m, r);
        if (first_not_finite(load_dtype(m->dev, REAL), bias, E) < E)
            ok = error_set(e, "a router's bias is not finite: not saved");
        ok = ok && safetensors_append(w->to, bias, E * Re, e);
    }
    free(buffer);
    return ok;
}
int hf_write_weights(const SaveShard *s, const char *path, int64_t step, FilePart **parts, size_t *count, Error *e) {
    const Model *m = s->model;
    WeightsFile f = weights_file(m);
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)step);
    const FileNote notes[] = { { "format", "pt" }, { "step", number } };
    Writing w = { safetensors_join(path, f.tensors, f.count, notes, 2, s->leads, e), s, NULL,
                  m->manifest.total < BUFFER ? m->manifest.total : BUFFER };
    int ok = w.to != NULL;
    for (size_t k = 0; k < f.learned; k++)
        if (piece_unit(&f.pieces[k]) > w.elements) w.elements = piece_unit(&f.pieces[k]);
    w.buffer = mem_alloc(w.elements * m->dev->floatX_size);
    uint64_t at = 0;
    for (size_t k = 0; k < f.learned && ok; at += f.pieces[k++].count * m->dev->floatX_size)
        ok = write_piece(&w, &f.pieces[k], at, e);
    ok = ok && write_biases(&w, at, e);
    if (ok) ok = safetensors_leave(w.to, parts, count, e);
    else if (w.to) safetensors_abandon(w.to);
    free_each(w.buffer, f.pieces, f.tensors);
    return ok;
}
int hf_save_weights(const Model *m, const char *path, int64_t step, FileSum *sum, Error *e) {
    SaveShard s;
    FilePart *parts = NULL;
    size_t count;
    save_shard_open(&s, m, NULL);
    int ok = hf_write_weights(&s, path, step, &parts, &count, e);
    if (ok && !file_sum(parts, count, sum)) ok = error_set(e, "%s: other ranks have parts of it", path);
    free(parts);
    save_shard_close(&s);
    return ok;
}
