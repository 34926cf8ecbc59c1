/* test_reference.c: is it the published mathematics? Tiny models that Transformers built, with the logits, the loss and
 * every gradient that PyTorch computed for them (reference.py), against ours. Then the way
 * back: what we save must be what we read. */
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

static void family_on(const char *family, const Device *dev, double bound) {
    Error e;
    Config c;
    Model m;
    size_t n, used, tokens_read, logits_read, one;
    char *folder = text_format("tests/reference/%s", family), *path = text_format("%s/expected.safetensors", folder);
    Safetensors *expected = safetensors_open(path, &e);
    check(expected != NULL, "%s: %s", path, e.text);
    if (!expected) return;
    check(hf_load_config(folder, &c, &e), "%s: its config.json is understood", family);
    check(!strcmp(family_name(config_family(&c)), family), "%s: is recognized as itself, not as %s", family,
          family_name(config_family(&c)));
    const FileTensor *shape = safetensors_find(expected, "tokens");
    const int B = (int)shape->shape[0], T = (int)shape->shape[1], N = B * T, V = c.vocab;
    int *tokens = read_ints(expected, "tokens", &tokens_read), *targets = read_ints(expected, "targets", &n);

    model_plan_training(&m, dev, &c, B, T, 0, 1, FLOATX, NULL);
    check(model_allocate(&m), "%s: memory", family);
    check(hf_load_weights(&m, folder, &e), "%s: weights load: %s", family, e.text);
    used = 0;
    for (int i = 0; i < N; i++) used += targets[i] >= 0;
    model_batch(&m, tokens, targets, B, T);
    model_forward(&m);

    double *logits = mem_alloc((size_t)N * (size_t)V * sizeof *logits);
    double *want = read_all(expected, "logits", &logits_read);
    check(m.head_rows >= N, "all logits at once");
    model_logits(&m, 0, N);
    dev->to_double(logits, m.s.logits, (size_t)N * (size_t)V);
    check_error(relative_error(logits, want, (size_t)N * (size_t)V), bound, "%s on %s: logits", family, dev->name);

    double *loss = read_all(expected, "loss", &one), sum;
    model_loss(&m, 1 / (float)used, 1);
    dev->reals_to_double(&sum, m.loss_sum, 1);
    sum /= (double)used;
    check_error(relative_error(&sum, loss, 1), bound, "%s on %s: loss", family, dev->name);

    model_backward(&m, 1);
    compare_gradients(&m, expected, family, bound);

    /* Saved and read again: the same names, shapes and bits, and a config.json that says the same. */
    Model again;
    Config c2;
    uint64_t bytes;
    uint32_t crc;
    char *file = scratch_path("model.safetensors");
    check(hf_save_small(scratch(), &m, NULL, &e) && hf_save_weights(&m, file, 7, &e, &bytes, &crc),
          "%s: saves", family);
    check(hf_load_config(scratch(), &c2, &e) && config_same(&c, &c2, &e), "%s: config.json survives: %s",
          family, e.text);
    Safetensors *theirs = safetensors_open(folder, &e), *ours = safetensors_open(scratch(), &e);
    check(theirs && ours && safetensors_count(theirs) == safetensors_count(ours),
          "%s: as many tensors in the file as Transformers wrote", family);
    for (size_t i = 0; theirs && ours && i < safetensors_count(theirs); i++)
        check(safetensors_find(ours, safetensors_at(theirs, i)->name) != NULL, "%s: %s is in our file",
              family, safetensors_at(theirs, i)->name);
    if (theirs) safetensors_close(theirs);
    if (ours) safetensors_close(ours);
    model_plan_inference(&again, dev, &c2, B, T, 0, NULL);
    check(model_allocate(&again) && hf_load_weights(&again, scratch(), &e), "%s: loads again", family);
    void *a = mem_alloc(m.manifest.total * dev->floatX_size), *b = mem_alloc(m.manifest.total * dev->floatX_size);
    dev->download(a, m.params, m.manifest.total * dev->floatX_size);
    dev->download(b, again.params, m.manifest.total * dev->floatX_size);
    check(!memcmp(a, b, m.manifest.total * dev->floatX_size), "%s on %s: weights survive bit for bit",
          family, dev->name);

    model_free(&m); model_free(&again); safetensors_close(expected);
    free(a); free(b); free(file); free(folder); free(path); free(tokens); free(targets); free(logits);
    free(want); free(loss);
}

void test_reference(void) {
    static const char *const families[] = { "jetmoe", "mixtral", "llama" };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        family_on(families[i], device_find("cpu-f64"), 1e-6);       /* the files hold f32 */
        family_on(families[i], device_find("cpu-f32"), 1e-5);
    }
}
