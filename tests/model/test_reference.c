/* test_reference.c: does the model compute the published mathematics? Tiny models of Hugging Face Transformers, with the logits,
 * the loss and all gradients that PyTorch computed (reference.py), are compared with ours; then saved and read again. */
#include "tests/test.h"
#include "llmc/files/hf.h"
#include "llmc/files/families.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void compare_gradients(const Model *m, Safetensors *expected, const char *family, double bound) {
    double *all = mem_alloc(m->manifest.total * sizeof *all);
    model_gradients(m, all);
    for (int i = 0; i < m->manifest.count; i++)
        for (int j = 0; j < manifest_piece_count(&m->manifest.at[i]); j++) {
            const Piece p = manifest_piece(&m->manifest.at[i], j);
            char name[160];
            size_t n = 0;
            snprintf(name, sizeof name, "grad.%s", p.name);
            double *g = read_all(expected, name, &n);
            check(n == p.count, "%s: %s has %zu elements", family, name, p.count);
            if (g && n == p.count)
                check_error(relative_error(all + p.offset, g, n), bound, "%s on %s: %s", family,
                            m->dev->name, name);
            free(g);
        }
    free(all);
}

/* Saved and read again: the same names, shapes and bits, and the same configuration. */
static void save_and_read(const Model *m, const char *family, const char *folder) {
    const Device *dev = m->dev;
    const size_t weights = m->manifest.total * dev->floatX_size;
    char *file = scratch_path("model.safetensors");
    Error e;
    Config c;
    Model again;
    uint64_t bytes;
    uint32_t crc;
    check(hf_save_small(scratch(), m, NULL, &e) && hf_save_weights(m, file, 7, &e, &bytes, &crc), "%s: saves", family);
    check(hf_load_config(scratch(), &c, &e) && config_same(&m->config, &c, &e), "%s: config.json is the same: %s", family, e.text);
    Safetensors *theirs = safetensors_open(folder, &e), *ours = safetensors_open(scratch(), &e);
    check(theirs && ours && safetensors_count(theirs) == safetensors_count(ours),
          "%s: our file has as many tensors as that of Transformers", family);
    for (size_t i = 0; theirs && ours && i < safetensors_count(theirs); i++)
        check(safetensors_find(ours, safetensors_at(theirs, i)->name) != NULL, "%s: %s is in our file",
              family, safetensors_at(theirs, i)->name);
    safetensors_close(theirs);
    safetensors_close(ours);
    model_plan_inference(&again, dev, &c, 1, 1, 0, NULL);
    check(model_allocate(&again) && hf_load_weights(&again, scratch(), &e), "%s: loads again", family);
    void *a = mem_alloc(weights), *b = mem_alloc(weights);
    dev->download(a, m->params, weights);
    dev->download(b, again.params, weights);
    check(!memcmp(a, b, weights), "%s on %s: weights are the same bit for bit", family, dev->name);
    model_free(&again);
    free(a), free(b), free(file);
}

static void compare_model(Model *m, Safetensors *expected, const char *family, double bound) {
    const Device *dev = m->dev;
    const int N = m->batch.N;
    const size_t all = (size_t)N * (size_t)m->config.vocab;
    size_t n;
    int used = 0;
    double *logits = mem_alloc(all * sizeof *logits), *want = read_all(expected, "logits", &n), *loss = read_all(expected, "loss", &n), sum;
    int *targets = read_ints(expected, "targets", &n);
    for (int i = 0; i < N; i++) used += targets[i] >= 0;
    model_forward(m);
    check(m->head_rows >= N, "all logits at once");
    model_logits(m, 0, N);
    dev->to_double(logits, m->s.logits, all);
    check_error(relative_error(logits, want, all), bound, "%s on %s: logits", family, dev->name);
    model_loss(m, 1 / (float)used, 1);
    dev->reals_to_double(&sum, m->loss_sum, 1);
    sum /= (double)used;
    check_error(relative_error(&sum, loss, 1), bound, "%s on %s: loss", family, dev->name);
    model_backward(m, 1);
    compare_gradients(m, expected, family, bound);
    free(logits), free(want), free(loss), free(targets);
}

static void family_on(const char *family, const Device *dev, double bound) {
    char *folder = text_format("tests/reference/%s", family), *path = text_format("%s/expected.safetensors", folder);
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
    compare_model(&m, expected, family, bound);
    save_and_read(&m, family, folder);
    model_free(&m);
    safetensors_close(expected);
    free(folder), free(path), free(tokens), free(targets);
}

void test_reference(void) {
    static const char *const families[] = { "jetmoe", "mixtral", "llama" };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        family_on(families[i], device_find("cpu-f64"), 1e-6);       /* the files hold f32 */
        family_on(families[i], device_find("cpu-f32"), 1e-5);
    }
}
