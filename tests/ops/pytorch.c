/* pytorch.c: operations against the values that PyTorch computed for
 * tests/reference/ops.safetensors (tests/reference.py). A case of the same sizes gets the contents
 * of its inputs from the file, by name; its outputs must then be those in the file. The tensors of
 * an operation are named PREFIX.buffer; outputs of attention have another prefix than its
 * inputs. */
#include "ops.h"
#include "llmc/files/safetensors.h"
#include <math.h>

static Safetensors *reference;
static double *recorded(const char *prefix, const char *name, size_t n) {
    char *full = text_format("%s.%s", prefix, name);
    const FileTensor *t = safetensors_find(reference, full);
    double *value = NULL;
    Error e;
    if (t && t->count == n) {
        value = mem_alloc(n * sizeof *value);
        if (!strcmp(t->dtype, "I32")) {
            int32_t *integers_of = mem_alloc(n * sizeof *integers_of);
            if (!safetensors_read(reference, t, 0, integers_of, n * sizeof *integers_of, &e))
                check(0, "%s: %s", full, e.text);
            for (size_t i = 0; i < n; i++) value[i] = integers_of[i];
            free(integers_of);
        } else if (!safetensors_read_double(reference, t, 0, value, n, &e)) check(0, "%s: %s", full, e.text);
    }
    free(full);
    return value;
}
static double scalar(const char *prefix, const char *name) {
    double *value = recorded(prefix, name, 1), x = value ? *value : NAN;
    free(value);
    return x;
}
/* only: how names of operations begin */
typedef struct { const Device *dev; int compared; const char *only; } Reference;

/* The names of this case's tensors in the file. Returns 0 if it has none. */
static int prefixes(const Case *c, const char *only, const char **inputs, const char **outputs) {
    static const char *const scores[] = { "router_topk_softmax", "router_softmax_topk", NULL, "router_sigmoid_topk" };
    static const char *const experts[] = { "expert_swiglu", "expert_gelu", "expert_relu2", "", "expert_clamped" };
    static const char *const orders[] = { "attention_tiled", "attention_grouped" };
    const int with_bias = case_find(c, "bias") >= 0, wide = c->buffer[1].summed > 8;
    if (strncmp(c->op, only, strlen(only)) || c->scores == SIGMOID_EACH || c->scores == SOFTMAX_RENORM) return 0;
    if (!strcmp(only, "router") && case_find(c, "target") >= 0) return 0;
    *inputs = !strcmp(only, "router") ? scores[c->scores] : !strcmp(only, "activation") ? experts[c->f] : only;
    *outputs = !strcmp(only, "attention") ? orders[c->order] : *inputs;
    if (!strcmp(c->op, "router_forward"))
        return !c->forced && c->groups.count < 2 && !wide && with_bias == (c->scores == SIGMOID_TOPK);
    if (!strcmp(c->op, "activation_backward") && c->from == GROUPED) return 0;
    if (!strcmp(only, "attention") && case_find(c, "reach") >= 0) return 0;
    return **inputs && strcmp(c->op, "router_bias") && strcmp(c->op, "attention_cached");
}
/* Returns 0 if the file lacks one. */
static int take_inputs(Case *c, const char *prefix, const char *outputs) {
    if (!strcmp(prefix, "rmsnorm")) c->eps = (float)scalar(prefix, "eps");
    if (!strncmp(c->op, "router_", 7)) c->ranks = (int)scalar(prefix, "tokens") / c->N;
    for (int i = 0; i < c->buffers; i++) {
        Buffer *b = &c->buffer[i];
        if (b->role == UPDATE) memset(b->value, 0, b->n * sizeof *b->value);
        if (b->role != INPUT || !b->name || !strcmp(b->name, "dloss") || i == c->plan
            || (c->plan >= 0 && i > c->plan)) continue;
        double *value = recorded(prefix, b->name, b->n);
        if (!value) value = recorded(outputs, b->name, b->n);
        if (!value) { check(0, "reference has no %s.%s for %s", prefix, b->name, c->what); return 0; }
        free(b->value);
        b->value = value;
    }
    return 1;
}
static void against_pytorch(Case *c, void *context) {
    Reference *r = context;
    const char *prefix, *outputs;
    CaseOnDevice p;
    if (!prefixes(c, r->only, &prefix, &outputs) || !take_inputs(c, prefix, outputs)) return;
    case_round(c, r->dev);
    if (!allocate_case(&p, c, r->dev)) return;
    case_run(&p);
    r->dev->sync();
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (b->role == INPUT || !b->name) continue;
        const int dense = !strcmp(b->name, "dpre") && case_find(c, "weight") < 0;
        if (!dense && !strcmp(b->name, "wact") && case_find(c, "weight") < 0) continue;
        double *want = recorded(outputs, dense ? "dpre_dense" : b->name, b->n), *got = case_read(&p, i);
        if (!want) { check(0, "reference has no %s.%s for %s", outputs, b->name, c->what); free(got); continue; }
        if (!strcmp(b->name, "dlogits")) {
            double *balance = recorded(prefix, "dbalance", b->n), *z = recorded(prefix, "dz", b->n);
            for (size_t j = 0; balance && z && j < b->n; j++)
                want[j] += (double)c->balance * balance[j] + (double)c->zloss * z[j];
            free(balance), free(z);
        }
        /* Twice the bound: inputs were rounded, rstd, lse and weights to real, the others to
         * floatX. */
        double bound = r->dev->floatX_size == 8 ? 1e-12 : 2 * oracle_bound(b, r->dev);
        if (!strcmp(c->op, "attention_backward")) bound *= 2;
        oracle_compare(b, got, want, bound, r->dev->name, c->what);
        r->compared++;
        free(want), free(got);
    }
    case_release(&p);
}
static void adamw_against_pytorch(const Device *dev) {
    enum { COUNT = 8, STEPS = 3, SEGMENTS = 2 };
    const char *const kept[] = { "weights", "m", "v" };
    const Segment segment[SEGMENTS] = { { .count = 5, .decay = 1, .rate = 1 },
                                        { .offset = 5, .count = 3, .gradient = 5, .rate = 1 } };
    double *weight = recorded("adamw", "weight", COUNT), *grad = recorded("adamw", "grad", STEPS * COUNT);
    double *lr = recorded("adamw", "lr", STEPS), got[COUNT];
    if (!weight || !grad || !lr) { check(0, "reference has no adamw"); return; }
    floatX *w = dev->alloc(COUNT * dev->floatX_size);
    real *state[3], *g = dev->alloc(COUNT * dev->real_size),
        *grad_sq_norms = dev->alloc((SEGMENTS + 1) * dev->real_size);
    Segment *segments = dev->alloc(sizeof segment);
    AdamW *settings = dev->alloc(sizeof *settings);
    dev->upload(segments, segment, sizeof segment);
    for (int i = 0; i < 3; i++) state[i] = dev->alloc(COUNT * dev->real_size);         /* master, m, v */
    dev->from_double(w, weight, COUNT);
    dev->set_master(state[0], w, COUNT);
    for (int step = 0; step < STEPS; step++) {
        AdamW a = { .lr = (float)lr[step], .beta1 = (float)scalar("adamw", "beta1"),
                    .beta2 = (float)scalar("adamw", "beta2"), .eps = (float)scalar("adamw", "eps"),
                    .decay = (float)scalar("adamw", "decay"), .clip = (float)scalar("adamw", "clip") };
        a.fix1 = 1 / (1 - pow((double)a.beta1, step + 1));
        a.fix2 = 1 / (1 - pow((double)a.beta2, step + 1));
        dev->upload(settings, &a, sizeof a);
        dev->reals_from_double(g, grad + step * COUNT, COUNT);
        dev->grad_sq_norms(grad_sq_norms, g, segments, SEGMENTS);
        dev->adamw(w, state[0], state[1], state[2], REAL, g, grad_sq_norms, segments, SEGMENTS, settings);
        for (int i = 0; i < 3; i++) {
            double *want = recorded("adamw", kept[i], STEPS * COUNT);
            dev->reals_to_double(got, state[i], COUNT);
            if (!want) { check(0, "reference has no adamw.%s", kept[i]); continue; }
            check_error(relative_error(got, want + step * COUNT, COUNT),
                        dev->real_size == 8 ? 1e-12 : 8 * (step + 1) * 0x1p-24, "%s adamw: %s after step %d",
                        dev->name, kept[i], step + 1);
            free(want);
        }
    }
    for (int i = 0; i < 3; i++) dev->release(state[i]);
    dev->release(w), dev->release(g), dev->release(grad_sq_norms), dev->release(segments), dev->release(settings);
    free(weight), free(grad), free(lr);
}
void check_pytorch(const Device *dev) {
    /* outputs: how many must be compared */
    static const struct { const char *only; Shape shape; int outputs; } part[] = {
        { "rmsnorm",    { "file", 1, 5, 12, 3, 2, 1, 3, 1, 1, 2, MIXED }, 2 + 2 },
        { "router",     { "file", 1, 9, 3, 3, 6, 3, 3, 1, 1, 2, MIXED }, 3 * 3 + 3 * 1 + 3 * 4 },
        { "activation", { "file", 1, 7, 3, 3, 2, 1, 5, 1, 1, 2, MIXED }, 4 * (1 + 1 + 3) },
        { "attention",  { "file", 2, 7, 3, 3, 3, 1, 3, 2, 3, 4, MIXED }, 2 * (2 + 2) },
    };
    Error e;
    if (!(reference = safetensors_open("tests/reference/ops.safetensors", &e))) {
        check(0, "%s (run from the folder of the Makefile)", e.text);
        return;
    }
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        Reference r = { dev, 0, part[i].only };
        each_case(&part[i].shape, 1, "", against_pytorch, &r);
        check(r.compared == part[i].outputs, "%s: compared %d outputs of %s with those of PyTorch, of %d", dev->name,
              r.compared, part[i].only, part[i].outputs);
    }
    adamw_against_pytorch(dev);
    safetensors_close(reference);
}
