/* test_reference.c: does the model compute the published mathematics? Tiny models of Hugging Face
 * Transformers, with the logits, the loss and all gradients that PyTorch computed (reference.py),
 * are compared with ours; then saved and read again. */
#include "tests/test.h"
#include "llmc/files/export.h"
#include "llmc/files/config_json.h"
#include "llmc/files/pieces.h"
#include "llmc/model/batch.h"
#include "llmc/model/decode.h"
#include "llmc/model/gradients.h"
#include "llmc/model/pass.h"
#include "llmc/model/plan.h"
#include <math.h>

/* The whole of one tensor of expected.safetensors. */
static double *read_all(Safetensors *s, const char *name, size_t *count) {
    Error e;
    const FileTensor *t = safetensors_find(s, name);
    check(t != NULL, "expected.safetensors has %s", name);
    if (!t) return NULL;
    double *x = mem_alloc(t->count * sizeof *x);
    *count = t->count;
    if (!strcmp(t->dtype, "I32")) {
        int32_t *i = mem_alloc(t->bytes);
        check(safetensors_read(s, t, 0, i, t->bytes, &e), "reading %s", name);
        for (size_t k = 0; k < t->count; k++) x[k] = i[k];
        free(i);
    } else check(safetensors_read_double(s, t, 0, x, t->count, &e), "reading %s", name);
    return x;
}
static int *read_ints(Safetensors *s, const char *name, size_t *count) {
    double *x = read_all(s, name, count);
    int *i = mem_alloc(*count * sizeof *i);
    for (size_t k = 0; k < *count; k++) i[k] = (int)x[k];
    free(x);
    return i;
}

/* The gradient of a piece in the order of memory, where that is another than the file's. */
static void reorder(const Config *c, const Piece *p, double *g) {
    const size_t row = p->count / p->shape[0], D = (size_t)p->head;
    double *was = mem_alloc(p->count * sizeof *was);
    memcpy(was, g, p->count * sizeof *was);
    if (p->transposed || p->interleaved) {
        /* experts, (E, columns, rows) or a bias (E, rows); rows: gate, up, gate, up, ... */
        const size_t columns = p->transposed ? p->shape[1] : 1, rows = p->shape[p->rank - 1], half = rows / 2;
        for (size_t i = 0; i < p->count; i++) {
            const size_t r = i % rows, k = i / rows % columns, e = i / rows / columns,
                to = !p->interleaved ? r : r % 2 ? half + r / 2 : r / 2;
            g[(e * rows + to) * columns + k] = was[i];
        }
    }
    for (size_t i = 0; p->head && i < p->count; i++) {
        const size_t r = i / row, to = r / D * D + (size_t)piece_row(c, (int)D, (int)(r % D));
        g[to * row + i % row] = was[i];
    }
    free(was);
}

/* times: ours are of a loss this many times as large: 1 / times would be rounded to float. */
static void compare_gradients(const Model *m, Safetensors *expected, const char *family, double times, double bound) {
    double *all = mem_alloc(m->manifest.total * sizeof *all);
    model_gradients(m, all);
    size_t count;
    Piece *pieces = pieces_of(m, &count);
    for (size_t k = 0; k < count; k++) {
        const Piece *p = &pieces[k];
        char name[160];
        size_t n = 0;
        snprintf(name, sizeof name, "grad.%s", p->name);
        double *g = read_all(expected, name, &n);
        check(n == p->count, "%s: %s has %zu elements", family, name, p->count);
        if (g && n == p->count) reorder(&m->config, p, g);
        for (size_t i = 0; g && i < n; i++) g[i] *= times;
        if (g && n == p->count)
            check_error(relative_error(all + p->offset, g, n), bound, "%s on %s: %s", family, m->dev->name, name);
        free(g);
    }
    free(pieces), free(all);
}

static int is_packed(const char *folder) { return strstr(folder, "mxfp4") || strstr(folder, "fp8"); }

/* Names for older readers, which may follow. */
static int is_older(const char *key) {
    return !strcmp(key, "num_experts") || !strcmp(key, "rope_theta") || !strcmp(key, "rope_scaling")
        || !strcmp(key, "partial_rotary_factor") || !strcmp(key, "rotary_dim");
}
/* Every key of their config.json with its value, in the order of theirs; and nothing else but names
 * for older readers. typed: also the number type. Weights that are not quantized any more have no
 * quantization_config. */
static void compare_configs(const char *folder, const char *family, int typed) {
    char *path[2] = { text_format("%s/config.json", folder), scratch_path("config.json") }, *text[2];
    Json *json[2];
    Error e;
    size_t bytes;
    for (int i = 0; i < 2; i++) {
        text[i] = file_read(path[i], &bytes, &e);
        json[i] = text[i] ? json_parse(text[i], bytes, &e) : NULL;
        check(json[i] != NULL, "%s: %s: %s", family, path[i], e.text);
    }
    const JsonValue *a = json[0] ? json_first(json_root(json[0])) : NULL,
        *b = json[1] ? json_first(json_root(json[1])) : NULL;
    for (; a && b; a = a->next, b = b->next) {
        if (is_packed(folder) && !strcmp(a->key, "quantization_config")) a = a->next;
        Text x = { 0 }, y = { 0 };
        json_write(&x, a, 0);
        json_write(&y, b, 0);
        check(!strcmp(a->key, b->key) && ((!typed && !strcmp(a->key, "dtype")) || !strcmp(x.at, y.at)),
              "%s: config.json has \"%s\": %s, not \"%s\": %s", family, a->key, x.at, b->key, y.at);
        free(x.at), free(y.at);
    }
    while (b && is_older(b->key)) b = b->next;
    check(!a && !b, "%s: config.json has no other keys than it had", family);
    for (int i = 0; i < 2; i++) { json_free(json[i]); free(text[i]); free(path[i]); }
}

/* Every tensor of theirs that is not in MXFP4 or FP8, by its name: the same shape and values.
 * typed: also the number type, and no file of several tensors is larger than that many bytes. */
static int is_part(const FileTensor *t) {                   /* blocks or scales */
    return !strcmp(t->dtype, "U8") || !strcmp(t->dtype, "F8_E4M3") || strstr(t->name, "_scale_inv");
}
static void compare_tensors(const char *folder, const char *family, uint64_t typed) {
    Error e = { 0 };
    size_t pairs = 0;
    uint64_t largest = 0;
    Safetensors *theirs = safetensors_open(folder, &e), *ours = safetensors_open(scratch(), &e);
    check(theirs && ours, "%s: both files open: %s", family, e.text);
    for (size_t i = 0; theirs && ours && i < safetensors_count(theirs); i++) {
        if (is_part(safetensors_at(theirs, i))) { pairs++; continue; }
        const FileTensor *a = safetensors_at(theirs, i), *b = safetensors_find(ours, a->name);
        const int shaped = b && a->rank == b->rank && !memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape);
        check(shaped && (!typed || !strcmp(a->dtype, b->dtype)), "%s: %s is in our file", family, a->name);
        if (!shaped) continue;
        double *x = mem_alloc(a->count * sizeof *x), *y = mem_alloc(a->count * sizeof *y);
        check(safetensors_read_double(theirs, a, 0, x, a->count, &e)
              && safetensors_read_double(ours, b, 0, y, a->count, &e)
              && !memcmp(x, y, a->count * sizeof *x), "%s: %s has the values it had", family, a->name);
        if (b->begin && b->begin + b->bytes > largest) largest = b->begin + b->bytes;
        free(x), free(y);
    }
    check(!ours || safetensors_count(theirs) - pairs / 2 == safetensors_count(ours),
          "%s: as many tensors as that of Transformers", family);
    check(!typed || largest <= typed, "%s: no file of several tensors is larger than asked: %llu", family,
          (unsigned long long)largest);
    safetensors_close(theirs), safetensors_close(ours);
}
/* What was written, read again: the weights bit for bit. */
static void read_again(const Model *m, const char *family) {
    const size_t bytes = m->manifest.total * m->dev->floatX_size;
    void *a = mem_alloc(bytes), *b = mem_alloc(bytes);
    Error e = { 0 };
    Config c;
    Model again;
    check(hf_load_config(scratch(), &c, &e) && config_same(&m->config, &c, &e), "%s: config.json is the same: %s",
          family, e.text);
    model_plan_inference(&again, m->dev, &c, 1, 1, 0, NULL);
    check(model_allocate(&again) && hf_load_weights(&again, scratch(), &e), "%s: loads again: %s", family, e.text);
    m->dev->download(a, m->params, bytes), m->dev->download(b, again.params, bytes);
    check(!memcmp(a, b, bytes), "%s on %s: weights are the same bit for bit", family, m->dev->name);
    model_free(&again), free(a), free(b);
}

/* Saved in one file, and in the number types of their files in several. */
static void save_and_read(const Model *m, const char *family, const char *folder) {
    char *file = scratch_path("model.safetensors");
    HfOrigin *origin = hf_origin_open(folder, folder);
    int files = 0;
    Error e = { 0 };
    FileSum sum;
    check(hf_save_small(scratch(), m, NULL, origin, &e) && hf_save_weights(m, file, 7, &sum, &e), "%s: saves", family);
    compare_configs(folder, family, 0);
    compare_tensors(folder, family, 0);
    read_again(m, family);
    check(export_weights(scratch(), (ExportForm){ .shard = 3000 }, origin, &files, &e) && files > 2, "%s: %d files %s",
          family, files, e.text);
    check(!is_file(file), "%s: shards replace the single file", family);
    compare_configs(folder, family, 1);
    compare_tensors(folder, family, 3000);
    read_again(m, family);
    check(export_remove_shards(scratch(), 0, &e) && !safetensors_open(scratch(), &e), "shards are removed: %s", e.text);
    hf_origin_free(origin), free(file);
}

static void compare_model(Model *m, Safetensors *expected, const char *family, double bound) {
    const Device *dev = m->dev;
    const int N = m->batch.N;
    const size_t all = (size_t)N * (size_t)m->config.vocab;
    size_t n;
    int used = 0;
    double *logits = mem_alloc(all * sizeof *logits), *want = read_all(expected, "logits", &n),
        *loss = read_all(expected, "loss", &n), sum;
    int *targets = read_ints(expected, "targets", &n);
    for (int i = 0; i < N; i++) used += targets[i] >= 0;
    model_forward(m);
    check(m->head_rows >= N, "all logits at once");
    model_logits(m, 0, N);
    dev->to_double(logits, m->s.logits, all);
    check_error(relative_error(logits, want, all), bound, "%s on %s: logits", family, dev->name);
    model_scale_loss(m, 1);
    model_loss(m, 1);
    dev->reals_to_double(&sum, m->loss_sum, 1);
    sum /= (double)used;
    check_error(relative_error(&sum, loss, 1), bound, "%s on %s: loss", family, dev->name);
    model_backward(m, 1);
    compare_gradients(m, expected, family, used, bound);
    free(logits), free(want), free(loss), free(targets);
}

/* The most likely tokens, one by one through the cache, are those of expected.safetensors. */
static void decode_greedily(const Model *m, Safetensors *expected, const char *family, const int *tokens) {
    enum { PROMPT = 5 };
    Decoder d;
    size_t n;
    if (!safetensors_find(expected, "greedy")) return;
    int *want = read_ints(expected, "greedy", &n), *got = mem_alloc(n * sizeof *got), same = 0;
    check(decoder_open(&d, m->dev, &m->config, 1, PROMPT + (int)n, m), "%s: memory of decoding", family);
    decoder_feed(&d, tokens, PROMPT);
    decoder_draw(&d, (Sampler){ 0 }, &(uint64_t){ 0 });
    for (size_t i = 0; i < n; i++) {
        decoder_sample(&d, &got[i]);
        if (i + 1 < n) decoder_feed(&d, &got[i], 1);
    }
    while (same < (int)n && got[same] == want[same]) same++;
    check(same == (int)n, "%s on %s: %d of %zu tokens are those of Transformers", family, m->dev->name, same, n);
    decoder_close(&d), free(want), free(got);
}

static void family_on(const char *subfolder, const char *family, const Device *dev, double bound) {
    char *folder = text_format("tests/reference/%s", subfolder), *path = text_format("%s/expected.safetensors", folder);
    Error e;
    Config c;
    Model m;
    size_t n;
    Safetensors *expected = safetensors_open(path, &e);
    check(expected != NULL, "%s: %s", path, e.text);
    if (!expected) return;
    check(hf_load_config(folder, &c, &e), "%s: its config.json is read", family);
    check(!strcmp(family_name(config_family(&c)), family), "%s: is recognized as its family, not as %s", family,
          family_name(config_family(&c)));
    const FileTensor *shape = safetensors_find(expected, "tokens");
    const int B = (int)shape->shape[0], T = (int)shape->shape[1];
    int *tokens = read_ints(expected, "tokens", &n), *targets = read_ints(expected, "targets", &n);
    model_plan_training(&m, dev, &c, B, T, 0, 1, FLOATX, NULL);
    check(model_allocate(&m), "%s: memory", family);
    check(hf_load_weights(&m, folder, &e), "%s: weights load: %s", family, e.text);
    model_batch(&m, tokens, targets, B, T);
    compare_model(&m, expected, subfolder, bound);
    decode_greedily(&m, expected, subfolder, tokens);
    save_and_read(&m, family, folder);
    model_free(&m), safetensors_close(expected), free(folder), free(path), free(tokens), free(targets);
}

/* ---- upcycling: experts are copies of a dense MLP -------------------------------------------- */

/* Loss of a batch, and its gradient without that of the routers' losses. */
static double loss_of(Model *m, const int *tokens, const int *targets, int B, int T, double *gradients) {
    double sum;
    model_batch(m, tokens, targets, B, T);
    model_set_phase(m, PHASE_ONLY);
    model_forward(m);
    model_scale_loss(m, 1);
    model_loss(m, 1);
    m->dev->reals_to_double(&sum, m->loss_sum, 1);
    model_router_losses(m);
    model_backward(m, 1);
    model_gradients(m, gradients);
    return sum;
}

/* Every token's weights add to one, so the gradients of the copies add to that of the dense MLP. A
 * router has a gradient only from its own losses, as long as all experts answer alike. */
static void compare_copies(const Model *m, const double *g, const Model *was, const double *dense, const char *what,
                           double bound) {
    for (int i = 0; i < was->manifest.count; i++) {
        const Tensor *t = &was->manifest.at[i], *u = m->manifest.at;
        while (u->layer != t->layer || u->field != t->field) u++;
        const size_t copies = u->count / t->count, experts = t->kind == TENSOR_MLP
            || t->kind == TENSOR_GATE_UP ? (size_t)m->config.experts : 1;
        double *sum = mem_alloc(t->count * sizeof *sum);
        for (size_t k = 0; k < u->count; k++) sum[k % t->count] += g[u->offset + k];
        check(copies == experts, "%s: %zu copies of %s", what, copies, t->name);
        check_error(relative_error(sum, dense + t->offset, t->count), bound, "%s: copies of %s", what, t->name);
        free(sum);
    }
    for (int i = 0; i < m->manifest.count; i++) {
        const Tensor *t = &m->manifest.at[i];
        double norm = 0;
        for (size_t k = 0; k < t->count && t->kind == TENSOR_ROUTER; k++) norm += g[t->offset + k] * g[t->offset + k];
        check(t->kind != TENSOR_ROUTER || norm > 1e-12, "%s: %s has a gradient", what, t->name);
    }
}

static void upcycle_on(const char *subfolder, const char *family, const Device *dev, double bound) {
    enum { B = 2, T = 9 };
    int tokens[B*T], targets[B*T];
    char *folder = text_format("tests/reference/%s", subfolder),
        *what = text_format("%s upcycled on %s", subfolder, dev->name);
    Error e = { 0 };
    Config dense, c;
    Model was, m;
    for (int i = 0; i < B*T; i++) tokens[i] = i * 7 % 23, targets[i] = (i * 5 + 2) % 23;
    check(hf_load_config(folder, &dense, &e), "%s: %s", what, e.text);
    c = dense;
    check(family_upcycle(&c, "e3k2", &e) && !strcmp(family_name(config_family(&c)), family), "%s: is a %s, not a %s %s",
          what, family, family_name(config_family(&c)), e.text);
    model_plan_training(&was, dev, &dense, B, T, 0, 1, REAL, NULL);
    model_plan_training(&m, dev, &c, B, T, 0, 1, REAL, NULL);
    check(model_allocate(&was) && model_allocate(&m) && hf_load_weights(&was, folder, &e), "%s: %s", what, e.text);
    for (int i = 0; i < m.manifest.count; i++)
        if (m.manifest.at[i].kind == TENSOR_ROUTER) model_initialize_tensor(&m, i, 5);
    check(hf_load_upcycled(&m, &dense, folder, &e), "%s: %s", what, e.text);
    double *g = mem_alloc(m.manifest.total * sizeof *g), *h = mem_alloc(was.manifest.total * sizeof *h);
    const double before = loss_of(&was, tokens, targets, B, T, h), after = loss_of(&m, tokens, targets, B, T, g);
    check_error(fabs(after - before) / before, bound / 10, "%s: its loss is the dense model's", what);
    double *with = mem_alloc(m.manifest.total * sizeof *with);
    m.balance_coef = 0.01f;
    loss_of(&m, tokens, targets, B, T, with);
    for (int i = 0; i < m.manifest.count; i++) {
        const Tensor *t = &m.manifest.at[i];
        if (t->kind == TENSOR_ROUTER) memcpy(g + t->offset, with + t->offset, t->count * sizeof *g);
    }
    compare_copies(&m, g, &was, h, what, bound);
    model_free(&m), model_free(&was), free(with), free(g), free(h), free(folder), free(what);
}

static void test_upcycling(void) {
    static const char *const models[][2] = { { "llama", "mixtral" }, { "families/qwen3", "qwen3_moe" },
        { "families/llama_scaled", "granitemoe" }, { "families/mistral_window", "mixtral" } };
    static const char *const wrong[][2] = {
        { "e", "needs a whole number" }, { "e1k1", "at least two experts" }, { "e4k5", "5 of 4 experts" },
        { "e4a2", "not a" }, { "e4k2f9", "whose width is 20" }, { "q8", "not q" },
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        upcycle_on(models[i][0], models[i][1], device_find("cpu-f64"), 1e-11);
        upcycle_on(models[i][0], models[i][1], device_find("cpu-f32"), 1e-5);
    }
    Config c, full;
    Error e;
    check(hf_load_config("tests/reference/llama", &c, &e) && hf_load_config("tests/reference/mixtral", &full, &e),
          "configurations: %s", e.text);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Config copy = c;
        check(!family_upcycle(&copy, wrong[i][0], &e) && strstr(e.text, wrong[i][1]), "-up %s: %s",
              wrong[i][0], e.text);
    }
    check(!family_upcycle(&full, "e8k2", &e) && strstr(e.text, "has experts already"), "-up of a mixture: %s", e.text);
    check(hf_load_config("tests/reference/families/qwen3", &c, &e), "%s", e.text);
    c.window = 5;
    layers_add(&c.windowed, 1);
    check(!family_upcycle(&c, "e8k2", &e) && strstr(e.text, "sliding_window"),
          "-up of a model with a window in one layer: %s", e.text);
}

/* ---- tensors that are no part of a model ----------------------------------------------------- */

static Text warnings;
static void keep_warning(const char *text) { text_add(&warnings, "%s\n", text); }

/* A second file with two more: the prediction of later tokens, a layer after the last, which is
 * passed over, and one that is named. */
static void test_unknown_tensors(const char *folder) {
    static const char more[] = "{\"model.layers.3.eh_proj.weight\":{\"dtype\":\"F32\",\"shape\":[1],"
        "\"data_offsets\":[0,4]},\"model.surprise\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    Error e = { 0 };
    Config c;
    Model m;
    Text extra = { 0 }, map = { 0 };
    size_t bytes;
    char *weights = text_format("%s/model.safetensors", folder), *data = file_read(weights, &bytes, &e);
    char *paths[] = { scratch_path("first.safetensors"), scratch_path("second.safetensors"),
                      scratch_path("model.safetensors.index.json") };
    Safetensors *s = safetensors_open(folder, &e);
    check(data && s && hf_load_config(folder, &c, &e), "%s: %s", folder, e.text);
    text_add_bytes(&extra, (const char *)&(uint64_t){ sizeof more - 1 }, 8);
    text_add_bytes(&extra, more, sizeof more - 1);
    text_add_bytes(&extra, "\0\0\0\0\0\0\0\0", 8);
    text_add_string(&map, "{\"weight_map\": {\"model.layers.3.eh_proj.weight\": \"second.safetensors\", "
                    "\"model.surprise\": \"second.safetensors\"");
    for (size_t i = 0; i < safetensors_count(s); i++)
        text_add(&map, ", \"%s\": \"first.safetensors\"", safetensors_at(s, i)->name);
    text_add_string(&map, "}}");
    check(file_write(paths[0], data, bytes, &e) && file_write(paths[1], extra.at, extra.length, &e)
          && file_write(paths[2], map.at, map.length, &e), "%s", e.text);
    model_plan_inference(&m, device_find("cpu-f32"), &c, 1, 1, 0, NULL);
    warn_hook(keep_warning);
    check(model_allocate(&m) && hf_load_weights(&m, scratch(), &e), "more tensors than the model's: %s", e.text);
    warn_hook(NULL);
    check(warnings.at && strstr(warnings.at, "model.surprise is not part of this model")
          && !strstr(warnings.at, "layers.3"), "one is named: %s", warnings.at ? warnings.at : "none");
    model_free(&m), safetensors_close(s);
    for (int i = 0; i < 3; i++) { remove(paths[i]); free(paths[i]); }
    free(weights), free(data), free(extra.at), free(map.at), free(warnings.at);
    warnings = (Text){ 0 };
}

/* ---- a tied head that is in the file, too ---------------------------------------------------- */

static void test_other_head(void) {
    Error e = { 0 };
    Config c;
    size_t bytes;
    const char *from = "tests/reference/families/solar_open";          /* its head is its own */
    char *paths[] = { text_format("%s/config.json", from), text_format("%s/model.safetensors", from),
                      scratch_path("config.json"), scratch_path("model.safetensors") };
    char *config = file_read(paths[0], &bytes, &e),
        *flag = config ? strstr(config, "\"tie_word_embeddings\": false") : NULL;
    check(flag != NULL, "%s: %s", from, e.text);
    if (flag) memcpy(flag, "\"tie_word_embeddings\": true ", 28);
    size_t all = 0;
    char *weights = file_read(paths[1], &all, &e);
    check(weights && file_write(paths[2], config, bytes, &e) && file_write(paths[3], weights, all, &e), "%s", e.text);
    warn_hook(keep_warning);
    check(hf_load_config(scratch(), &c, &e) && !c.tied, "a head that is not the embedding is a head: %s", e.text);
    check(warnings.at && strstr(warnings.at, "lm_head.weight is not the embedding"), "which is said");
    free(warnings.at), warnings = (Text){ 0 };
    /* the head's name for another tensor: it is tied */
    Safetensors *s = safetensors_open(paths[3], &e);
    const size_t there = s ? (size_t)safetensors_find(s, "lm_head.weight")->bytes : 0;
    char *head = mem_alloc(there + 1), *embedding = mem_alloc(there + 1);
    check(s && safetensors_read(s, safetensors_find(s, "lm_head.weight"), 0, head, there, &e)
          && safetensors_read(s, safetensors_find(s, "model.embed_tokens.weight"), 0, embedding, there, &e),
          "%s", e.text);
    for (size_t i = 0; i + there <= all; i++)
        if (!memcmp(weights + i, head, there)) { memcpy(weights + i, embedding, there); break; }
    check(file_write(paths[3], weights, all, &e) && hf_load_config(scratch(), &c, &e) && c.tied && !warnings.at,
          "a copy of the embedding is none: %s", e.text);
    warn_hook(NULL);
    safetensors_close(s);
    for (int i = 0; i < 4; i++) { if (i > 1) remove(paths[i]); free(paths[i]); }
    free(config), free(weights), free(head), free(embedding);
}

/* ---- experts in one tensor ------------------------------------------------------------------- */

/* Of each expert: gate, up and down, as a family's files call them. */
typedef struct { const char *family, *block, *part[3]; } ExpertNames;
/* All of a layer, as Transformers 5 keeps them. Returns how many bytes. */
static size_t experts_of(Safetensors *s, const ExpertNames *n, int layer, int down, char *to) {
    size_t at = 0;
    Error e;
    for (int x = 0; ; x++)
        for (int k = down ? 2 : 0; k < (down ? 3 : 2); k++) {
            char *name = text_format("model.layers.%d.%s.experts.%d.%s.weight", layer, n->block, x, n->part[k]);
            const FileTensor *t = safetensors_find(s, name);
            free(name);
            if (!t) return at;
            check(safetensors_read(s, t, 0, to + at, t->bytes, &e), "%s", e.text);
            at += t->bytes;
        }
}
static void write_experts_in_one(Safetensors *s, const ExpertNames *n, const Config *c) {
    Error e;
    FileTensor *all = mem_alloc((safetensors_count(s) + 2 * (size_t)c->layers) * sizeof *all);
    const uint64_t E = (uint64_t)c->experts, F = (uint64_t)c->width, C = (uint64_t)c->channels, up[] = { E, 2*F, C },
        down[] = { E, C, F };
    char *data = mem_alloc(16 * E * F * C), *path = scratch_path("model.safetensors");
    size_t count = 0, kept;
    for (size_t i = 0; i < safetensors_count(s); i++)
        if (!strstr(safetensors_at(s, i)->name, ".experts.")) all[count++] = *safetensors_at(s, i);
    kept = count;
    for (int l = 0; l < c->layers; l++)
        for (int k = 0; k < 2 && config_has_experts(c, l); k++)
            all[count++] = (FileTensor){ .name = text_format("model.layers.%d.mlp.experts.%s", l, k ? "down_proj"
                                         : "gate_up_proj"), .dtype = "F32", .rank = 3, .shape = k ? down : up };
    SafetensorsWriter *w = safetensors_create(path, all, count, NULL, 0, &e);
    for (size_t i = 0; i < kept; i++) {
        const FileTensor *t = safetensors_find(s, all[i].name);
        char *copy = mem_alloc(t->bytes);
        check(safetensors_read(s, t, 0, copy, t->bytes, &e) && safetensors_append(w, copy, t->bytes, &e), "%s", e.text);
        free(copy);
    }
    for (int l = 0; l < c->layers; l++)
        for (int k = 0; k < 2 && config_has_experts(c, l); k++)
            check(safetensors_append(w, data, experts_of(s, n, l, k, data), &e), "%s", e.text);
    check(safetensors_finish(w, &e, NULL, NULL), "%s", e.text);
    for (size_t i = kept; i < count; i++) free((char *)all[i].name);
    free(all), free(data), free(path);
}
static void test_experts_in_one(void) {
    static const ExpertNames families[] = {
        { "mixtral_linear", "block_sparse_moe", { "w1", "w3", "w2" } },
        { "olmoe", "mlp", { "gate_proj", "up_proj", "down_proj" } },
        { "glm4_moe", "mlp", { "gate_proj", "up_proj", "down_proj" } },
    };
    for (int i = 0; i < 3; i++) {
        char *folder = text_format("tests/reference/families/%s", families[i].family);
        Error e = { 0 };
        Config c;
        Model m[2];
        void *weights[2];
        Safetensors *s = safetensors_open(folder, &e);
        check(s && hf_load_config(folder, &c, &e), "%s: %s", folder, e.text);
        write_experts_in_one(s, &families[i], &c);
        for (int k = 0; k < 2; k++) {
            model_plan_inference(&m[k], device_find("cpu-f32"), &c, 1, 1, 0, NULL);
            check(model_allocate(&m[k]) && hf_load_weights(&m[k], k ? scratch() : folder, &e), "%s: %s", folder,
                  e.text);
            weights[k] = mem_alloc(m[k].manifest.total * 4);
            m[k].dev->download(weights[k], m[k].params, m[k].manifest.total * 4);
        }
        check(!memcmp(weights[0], weights[1], m[0].manifest.total * 4), "%s: experts in one tensor are the same",
              folder);
        for (int k = 0; k < 2; k++) model_free(&m[k]), free(weights[k]);
        safetensors_close(s), free(folder);
        char *path = scratch_path("model.safetensors");
        remove(path), free(path);
    }
}

void test_reference(void) {
    PART(test_experts_in_one());
    PART(test_other_head());
    PART(test_upcycling());
    PART(test_unknown_tensors("tests/reference/families/glm4_moe"));
    PART(test_unknown_tensors("tests/reference/families/deepseek_v3"));
    test_evaluate();
    static const char *const models[][2] = {
        { "jetmoe", "jetmoe" }, { "mixtral", "mixtral" }, { "llama", "llama" }, { "families/llama_scaled", "llama" },
        { "families/qwen3", "qwen3" }, { "families/mixtral_linear", "mixtral" },
        { "families/mistral_window", "mistral" }, { "families/dots1_windows", "dots1" },
        { "families/qwen2_moe_windows", "qwen2_moe" }, { "families/olmoe", "olmoe" },
        { "families/qwen3_moe", "qwen3_moe" }, { "families/granitemoe", "granitemoe" },
        { "families/granitemoeshared", "granitemoeshared" }, { "families/qwen2_moe", "qwen2_moe" },
        { "families/dots1", "dots1" }, { "families/glm4_moe", "glm4_moe" }, { "families/ernie4_5_moe", "ernie4_5_moe" },
        { "families/deepseek_v3", "deepseek_v3" }, { "families/deepseek_v3_plain", "deepseek_v3" },
        { "families/deepseek_v2", "deepseek_v2" }, { "families/deepseek_v2_groups", "deepseek_v2" },
        { "families/deepseek_v3_fp8", "deepseek_v3" }, { "families/glm4_moe_lite", "glm4_moe_lite" },
        { "families/solar_open", "solar_open" }, { "families/minimax_m2", "minimax_m2" },
        { "families/qwen2", "qwen2" }, { "families/gpt_oss", "gpt_oss" }, { "families/gpt_oss_mxfp4", "gpt_oss" },
        { "families/smoe_universal", "smoe" }, { "families/smoe_whole", "smoe" },
        { "families/smoe_renormalized", "smoe" }, { "families/smoe_dense", "smoe" }, { "families/smoe_tables", "smoe" },
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const int in_f64 = models[i][0][0] == 'f';              /* of the first three the expected values are f32 */
        PART(family_on(models[i][0], models[i][1], device_find("cpu-f64"), in_f64 ? 1e-9 : 1e-6));
        PART(family_on(models[i][0], models[i][1], device_find("cpu-f32"), 1e-5));
        const Device *gpu = device_find("cuda-f32");            /* with the bound of test_gpu.c */
        if (gpu && gpu->count() > 0 && !gpu->open(0)) PART(family_on(models[i][0], models[i][1], gpu, 1e-4));
    }
}
