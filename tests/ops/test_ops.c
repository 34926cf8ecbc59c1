/* test_ops.c: is every operation of every device right? Over all cases of cases.c:
 *
 *   cpu-f64 against oracle.c  each operation once more, by its definition and as naively as
 *                             possible
 *   cpu-f64 against itself    every backward against finite differences of its forward
 *                             (gradients.c)
 *   all against PyTorch       tests/reference/ops.safetensors, written by tests/reference.py
 *                             (pytorch.c)
 *   others against cpu-f64    within the bounds of kernels.h, or bit for bit where the inputs make
 *                             sums exact
 *   all                       outputs, which start as NaN, are written; inputs and the bytes around
 *                             buffers are not; one thread and two give the same bits; arguments
 *                             that may be the same pointer can be
 * and what operations promise beyond single cases: properties.c.
 *
 * -q keeps the small shapes, which is enough for mutate.py. On a GPU it keeps one shape that is a
 * multiple of nothing, those that all fast kernels accept, and the special ones, and runs each case
 * once: a sanitizer then sees every kernel. */
#include "ops.h"
#include "kernels/ladder/ladder.h"
#include "llmc/base/omp.h"
#include <math.h>

/* B T C V E K F G Q D. Most sizes are multiples of nothing. `one` is larger than any tile or block
 * of a product in every direction. */
static const Shape small[] = {
    { "smallest",   1,  1,   1,   1,  1, 1,   1, 1, 1,  2, MIXED },
    { "none",       0,  5,   7,  11,  3, 2,   5, 2, 2,  4, MIXED },
    { "odd",        3, 11,  23,  53,  7, 3,  19, 3, 3,  6, MIXED },
    { "all chosen", 1,  9,  12,  30,  4, 4,   8, 1, 4,  8, MIXED },
    { "one expert", 2,  7,  10,  21,  1, 1,  13, 2, 1,  4, MIXED },
    { "half empty", 2,  4,  18,  40, 12, 2,  21, 2, 2,  6, HALF },
    { "wide",       1, 47,  75,  90,  3, 2,  70, 2, 2, 18, MIXED },
    { "long",      60, 10,   3,   7,  2, 1, 300, 1, 1,  2, ONE },        /* sums longer than a block of a product */
}, large[] = {
    { "one",        1, 301, 261, 150,  5, 1,  67, 2, 1, 34, ONE },
    { "ladder",     8,  73,  37,  97,  9, 1,  21, 1, 2, 10, LADDER },
    { "real",       2, 128, 128, 256,  8, 2, 128, 2, 2, 32, MIXED },
}, tiles[] = {      /* for the ladder: rows of whole 16 bytes, several tiles in each direction, the last ones partial */
    { "tiles",      1, 200, 128,  40,  2, 2, 136, 1, 3, 128, MIXED },
    { "tiles",      8,  73, 264,  40,  9, 1,  72, 2, 2, 72, LADDER },
};
static const Shape eights[] = {
    /* multiples of 128: experts with more than a tile of rows, with none, with tails */
    { "8 bits",     1,   37, 128,   5,  3, 2, 128, 1, 1, 2, MIXED },
    { "8 bits varied", 3, 70, 256,  5,  6, 5, 128, 1, 1, 2, VARIED },
    { "8 bits ladder", 8, 73, 128,  5,  9, 1, 128, 1, 1, 2, LADDER },
    { "8 bits half",   1, 150, 384, 5,  4, 2, 128, 1, 1, 2, HALF },
};
enum { EIGHTS = sizeof eights / sizeof *eights };
enum { SMALL = sizeof small / sizeof *small, LARGE = sizeof large / sizeof *large,
       TILES = sizeof tiles / sizeof *tiles };

/* Sizes that single operations treat differently (`only`: how their names begin): rows as wide as a
 * GPU's block of threads and wider, more rows than all blocks process at a time, tails of vectors,
 * a token for every lane, more tiles than blocks, tiles without rows. */
static const struct { Shape s; const char *only; } special[] = {
    { { "tall",      1, 4200,   136,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm" },
    { { "full",      1,   37,  4096,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm" },
    { { "over",      1,   35,  4104,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm" },
    { { "widest",    1,    5,  8192,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm_backward" },
    { { "beyond",    1,    5,  8200,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm_backward" },
    { { "odd row",   1,  700,  1027,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm" },
    { { "tall",      1, 4200,   264,      5,   1,  1,   1, 1, 1, 2, MIXED }, "bias_backward" },
    { { "tall",      1, 2500,    40,      5,   1,  1, 150, 1, 1, 2, MIXED }, "matmul" },
    { { "K = 7",     1, 2700,   136,      5,  16,  7,   1, 1, 1, 2, MIXED }, "add_norm" },
    { { "full",      1,   37,  4096,      5,   3,  2,   1, 1, 1, 2, MIXED }, "add_norm" },
    { { "widest",    1,    5,  8192,      5,   3,  2,   1, 1, 1, 2, MIXED }, "add_norm" },
    { { "beyond",    1,    5,  8200,      5,   3,  2,   1, 1, 1, 2, MIXED }, "add_norm" },
    { { "odd row",   1,  700,  1027,      5,   3,  2,   1, 1, 1, 2, MIXED }, "add_norm" },
    { { "text",      1, 4200,    24,  50304,   1,  1,   1, 1, 1, 2, MIXED }, "embed" },
    { { "odd text",  1, 1000,     9,  50304,   1,  1,   1, 1, 1, 2, MIXED }, "embed" },
    { { "wide text", 1,  330,  2056,    700,   1,  1,   1, 1, 1, 2, MIXED }, "embed" },
    { { "tokens",    1, 2100,     4,      5, 136,  8,   1, 1, 1, 2, MIXED }, "route" },
    { { "fine",      1, 2048,     4,      5, 264, 10,   1, 1, 1, 2, MIXED }, "route" },
    { { "odd E",     1, 2077,     4,      5,  67,  3,   1, 1, 1, 2, MIXED }, "route" },
    { { "all of E",  1, 2500,     4,      5,   8,  8,   1, 1, 1, 2, MIXED }, "route" },
    { { "one of E", 40,  110,     4,      5,  40,  1,   1, 1, 1, 2, ONE   }, "route_plan" },
    { { "skewed",    1, 2100,     4,      5,  40,  2,   1, 1, 1, 2, HALF  }, "route_round" },
    { { "whole",     3,  256,   136,      5,   5,  1, 128, 1, 1, 2, IN_TILES }, "parallel_linear" },
    { { "whole",     3,  256,   136,      5,   5,  1, 128, 1, 1, 2, IN_TILES }, "expert" },
    { { "varied",    3,   70,   264,      5,  16,  7,  72, 1, 1, 2, VARIED }, "combine" },
    { { "varied",    3,   70,   264,      5,  16,  7,  72, 1, 1, 2, VARIED }, "add_norm" },
    { { "varied",    3,   70,     4,      5,  16,  7,  72, 1, 1, 2, VARIED }, "activation_backward" },
    { { "varied",    3,   70,     4,      5,  70,  7,   1, 1, 1, 2, VARIED }, "router_backward" },
    { { "64",        3,   71,     4,      5,  64,  7,   1, 1, 1, 2, MIXED }, "router" },   /* experts that fill lanes */
    { { "128",       3,   71,     4,      5, 128,  8,   1, 1, 1, 2, MIXED }, "router" },
    { { "256",       3,   71,     4,      5, 256, 40,   1, 1, 1, 2, MIXED }, "router" },
    { { "varied",    3,   70,    40,      5,   6,  5,  64, 1, 1, 2, VARIED }, "parallel_linear" },
    { { "varied",    3,   70,    40,      5,   6,  5,  64, 1, 1, 2, VARIED }, "expert" },
    { { "many",      1, 1100,   72,      5, 150,  2,  64, 1, 1, 2, MIXED }, "parallel_linear_forward" },
    { { "many",      1, 1100,   72,      5, 150,  2,  64, 1, 1, 2, MIXED }, "expert" },
    { { "K = 11",    1,   70,   264,      5,  16, 11,   1, 1, 1, 2, MIXED }, "combine" },
    { { "K = 16",    1,   70,   264,      5,  24, 16,   1, 1, 1, 2, MIXED }, "combine" },
    { { "F = 8",     1,  501,     4,      5,   5,  3,   8, 1, 1, 2, MIXED }, "activation" },
    { { "F = 72",    1,  501,     4,      5,   5,  3,  72, 1, 1, 2, MIXED }, "activation" },
    { { "F = 128",   1,  501,     4,      5,   5,  3, 128, 1, 1, 2, MIXED }, "activation" },
    { { "F = 2064",  1,   50,     4,      5,   5,  3, 2064, 1, 1, 2, MIXED }, "activation" },
    { { "GPT-2",     1,    6,     4,  50304,   1,  1,   1, 1, 1, 2, MIXED }, "cross_entropy" },
    { { "Qwen",      1,    4,     4, 151936,   1,  1,   1, 1, 1, 2, MIXED }, "cross_entropy" },
    { { "odd V",     1,    6,     4,  30001,   1,  1,   1, 1, 1, 2, MIXED }, "cross_entropy" },
    { { "matrices",  1,   1,   512,      5,   3,  1, 256, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "matrices",  1,   1,   256,      5,   2,  1, 256, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "matrices",  1,   1,   328,      5,   2,  1, 256, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "matrices",  1,   1,   328,      5,   7,  1, 256, 1, 1, 2, MIXED }, "muon" },
    { { "matrices",  1,   1,   264,      5,   3,  1, 136, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "matrices",  1,   1,   192,      5,   2,  1, 136, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "matrices",  1,   1,   712,      5,   2,  1, 200, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "blocks",    1,   1,   416,      5,   3,  1, 100, 1, 1, 2, MIXED }, "weight_" },
    { { "cache",    40,   10,     4,      5,   1,  1,   1, 3, 1, 24, MIXED }, "cache" },
    { { "heads 64",   2, 215,   6,   9,  3, 1,   5, 2, 3,  64, MIXED }, "attention" },
    { { "heads 64",   1, 129,   6,   9,  3, 1,   5, 1, 8,  64, MIXED }, "attention" },
    { { "heads 128",  3, 390,   6,   9,  3, 1,   5, 3, 1, 128, MIXED }, "attention" },
    { { "heads 128",  2,  65,   6,   9,  3, 1,   5, 2, 2, 128, MIXED }, "attention" },
    { { "latent",     2,  70,   6,   9,  3, 1,   5, 3, 1, 192, MIXED }, "attention" },
    { { "latent",     2,  70,   6,   9,  3, 1,   5, 3, 1, 192, MIXED }, "shared_keys" },
};
enum { SPECIAL = sizeof special / sizeof *special };

/* A case that has run: nothing outside its outputs may have changed. */
static void check_surroundings(const CaseOnDevice *p) {
    const Case *c = p->c;
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (!b->name) continue;
        if (!case_guard(p, i)) check(0, "%s %s: wrote outside of %s", p->dev->name, c->what, b->name);
        if (b->role == SCRATCH || b->role == OUTPUT || (b->role == UPDATE && !c->unchanged)) continue;
        double *now_there = case_read(p, i);
        int same = 1;
        for (size_t j = 0; j < b->n; j++)                   /* NaN is a legitimate input */
            same &= now_there[j] == b->value[j] || (isnan(now_there[j]) && isnan(b->value[j]));
        if (!same) check(0, "%s %s: changed %s", p->dev->name, c->what, b->name);
        free(now_there);
    }
}
int allocate_case(CaseOnDevice *p, const Case *c, const Device *dev) {
    int ok = case_allocate(p, c, dev);
    if (!ok) check(0, "%s: not enough memory for %s", dev->name, c->what);
    return ok;
}

static void against_definition(Case *c, const Device *dev) {
    CaseOnDevice p;
    double *v[MOST_BUFFERS] = { NULL };
    case_round(c, dev);
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (!b->name) continue;
        v[i] = mem_alloc(b->n * sizeof **v);
        if (b->value) memcpy(v[i], b->value, b->n * sizeof **v);
    }
    if (oracle_compute(c, v) && allocate_case(&p, c, dev)) {
        case_run(&p);
        dev->sync();
        for (int i = 0; i < c->buffers; i++) {
            const Buffer *b = &c->buffer[i];
            if (b->role < OUTPUT || !v[i]) continue;
            double *got = case_read(&p, i);                 /* 1e-12: hundreds of roundings of 1e-16 on both sides */
            oracle_compare(b, got, v[i], b->stored + b->summed > 0 ? 1e-12 : 0, dev->name, c->what);
            free(got);
        }
        case_release(&p);
    }
    for (int i = 0; i < c->buffers; i++) free(v[i]);
}

/* The bits must not depend on the number of threads. All other tests here run on one. */
static void check_threads(const CaseOnDevice *first) {
    CaseOnDevice again;
    size_t n;
    if (!allocate_case(&again, first->c, first->dev)) return;
    omp_set_num_threads(2);
    case_run(&again);
    first->dev->sync();
    omp_set_num_threads(1);
    for (int i = 0; i < first->c->buffers; i++) {
        if (first->c->buffer[i].role < OUTPUT || !first->at[i]) continue;
        void *a = case_bits(first, i, &n), *b = case_bits(&again, i, &n);
        check(!memcmp(a, b, n), "%s %s: %s, the same bits with one thread and two", first->dev->name,
              first->c->what, first->c->buffer[i].name);
        free(a), free(b);
    }
    case_release(&again);
}

static void against_oracle(Case *c, const Device *dev, const Device *oracle) {
    CaseOnDevice got, want;
    const int hurry = quick && dev->is_gpu;                 /* under a sanitizer every call takes a millisecond */
    case_round(c, hurry ? device_find(dev->floatX_size == 2 ? "cpu-bf16" : "cpu-f32") : dev);
    if (!allocate_case(&got, c, dev)) return;
    if (!allocate_case(&want, c, oracle)) { case_release(&got); return; }
#ifdef WITH_CUDA
    if (dev->is_gpu && !hurry) ladder_poison();
#endif
    case_run(&got);
    dev->sync();
    case_run(&want);
    oracle->sync();
    if (!hurry) check_surroundings(&got);
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (b->role < OUTPUT || !got.at[i]) continue;
        const double bound = oracle_bound(b, dev);
        Case one = { .buffer = { *b }, .buffers = 1 };
        one.buffer[0].value = case_read(&want, i);
        if (!(bound > 0)) case_round(&one, dev);
        double *is = case_read(&got, i);
        oracle_compare(b, is, one.buffer[0].value, bound, dev->name, c->what);
        free(is), free(one.buffer[0].value);
    }
    if (!hurry) check_threads(&got);
    case_release(&got), case_release(&want);
}

/* Does operations.h know the operation, and count no more than its buffers hold? */
static void check_cost(const Case *c, const Device *dev) {
    double held = 0;
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        const size_t size = b->dtype == INTEGER ? sizeof(int) : b->dtype == BYTE ? 1 : dtype_size(dev, (Dtype)b->dtype);
        if (b->name) held += (double)(b->n * size) * (b->role == UPDATE || b->role == SCRATCH ? 2 : 1);
    }
    const double counted = case_cost(c, dev).bytes;
    check(counted >= 0.25 * held && counted <= 1.001 * held, "%s: moves %.0f bytes of %.0f", c->what, counted, held);
}

/* ---- arguments that may be the same pointer -------------------------------------------------- */

static void check_alias(Case *c, const Device *dev) {
    static const struct { const char *op, *out, *in; int identity; } may[] = {
        { "residual", "out", "residual", 0 }, { "residual", "out", "branch", 0 }, { "dropout", "out", "inp", 0 },
        { "activation_backward", "dpre", "pre", 0 }, { "activation_backward", "dpre", "da", 1 },
    };
    for (size_t i = 0; i < sizeof may / sizeof *may; i++) {
        if (strcmp(c->op, may[i].op) || (may[i].identity && c->f != IDENTITY)) continue;
        CaseOnDevice apart, together;
        size_t n;
        case_round(c, dev);
        if (!allocate_case(&apart, c, dev)) return;
        if (!allocate_case(&together, c, dev)) { case_release(&apart); return; }
        int to = case_find(c, may[i].out);
        together.at[to] = together.at[case_find(c, may[i].in)];
        case_run(&apart);
        case_run(&together);
        dev->sync();
        for (int j = 0; j < c->buffers; j++) {
            if (c->buffer[j].role == INPUT || !apart.at[j]) continue;
            void *a = case_bits(&apart, j, &n), *b = case_bits(&together, j, &n);
            check(!memcmp(a, b, n), "%s %s: %s when %s is %s", dev->name, c->what, c->buffer[j].name,
                  may[i].out, may[i].in);
            free(a), free(b);
        }
        case_release(&apart), case_release(&together);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int is_product(const Case *c) {
    return !strncmp(c->op, "parallel_linear", 15) || !strncmp(c->op, "matmul", 6) || !strncmp(c->op, "expert", 6)
        || !strncmp(c->op, "attention", 9) || !strncmp(c->op, "fp8", 3);
}
/* -q skips what a GPU has run: the same kernel with other numbers, or for another device. */
static int is_again(const Case *c, const Device *dev) {
    return quick && dev->is_gpu && (c->exact || (strstr(dev->name, "portable") && !is_product(c)));
}
static void check_case(Case *c, void *context) {
    const Device *f64 = device_find("cpu-f64"), *dev;
    const int is_small = *(int *)context;
    if (!is_wanted(c->op)) return;
    if (is_tested(f64)) against_definition(c, f64);
    if (!strcmp(c->s.name, "odd") || !strcmp(c->s.name, "8 bits")) check_cost(c, f64);
    for (int i = 0; (dev = tested_device(i)); i++) {
        if (is_again(c, dev) || !case_fits(c, dev)) continue;
        if (dev != f64 || is_small) against_oracle(c, dev, f64);
        if (dev != f64 && is_small) check_alias(c, dev);
    }
    if (is_tested(f64)) check_differences(c, f64, is_small);
}
static void check_all(Case *c, void *unused) {
    (void)unused;
    check_case(c, &(int){ 0 });
}
static void check_products(Case *c, void *unused) { if (is_product(c)) check_all(c, unused); }
typedef struct { const char *only; int found; } Special;
static void check_special(Case *c, void *context) {
    const Device *f64 = device_find("cpu-f64"), *dev;
    Special *s = context;
    s->found = 1;
    if (!is_wanted(c->op)) return;
    const int of_bf16 = !strcmp(s->only, "attention");      /* which has kernels for these heads */
    for (int i = 0; (dev = tested_device(i)); i++)
        if (dev != f64 && (dev->floatX_size == 2 || !of_bf16) && !is_again(c, dev)) against_oracle(c, dev, f64);
}
static void check_rounded_routings(const Device *dev, int tries) {
    for (int i = 0; i < tries; i++) check_rounded_routing(dev, i);
}
static void check_device(const Device *dev) {
    PART(check_pytorch(dev));
    PART(check_sharded_update(dev));
    PART(check_singular_values(dev));
    PART(check_rounded_update(dev));
    PART(check_unused_rows(dev));
    PART(check_new_heads(dev));
    PART(check_decoded_mlp(dev));
    PART(check_rounded_routings(dev, quick && dev->is_gpu ? 4 : 40));
}
void test_kernels(void) {
    const Device *dev;
    const int threads = omp_get_max_threads();
    int is_small, on_gpu = 0;
    omp_set_num_threads(1);
    check(splitmix64(0x9E3779B97F4A7C15u) == 0xE220A8397B1DCDAFu, "splitmix64, seed 0: the first number");
    for (int i = 0; (dev = tested_device(i)); i++) {
        check_device(dev);
        on_gpu |= dev->is_gpu;
    }
    for (int i = 0; i < SMALL + (quick ? 0 : LARGE); i++) {
        const Shape *s = i < SMALL ? &small[i] : &large[i - SMALL];
        if (quick && on_gpu && strcmp(s->name, "odd")) continue;
        is_small = s->B * s->T * s->F < 10000;              /* single elements call the forward hundreds of times */
        each_case(s, 1, wanted(), check_case, &is_small);
    }
    for (int i = 0; i < TILES && quick && on_gpu; i++)
        each_case(&tiles[i], 1, "", i ? check_products : check_all, NULL);
    for (int i = 0; i < (quick ? 2 : EIGHTS) && may_be_wanted("fp8"); i++)
        each_case(&eights[i], 1, "fp8", check_all, NULL);
    for (int i = 0; i < SPECIAL && (!quick || on_gpu); i++) {
        Special s = { .only = special[i].only };
        if (!may_be_wanted(s.only)) continue;
        Shape shape = special[i].s;
        if (!on_gpu && shape.T > 500) shape.T /= 4;         /* many rows are for GPUs */
        each_case(&shape, 1, s.only, check_special, &s);
        if (!s.found)
            check(0, "no operation begins with %s, for which there is the shape %s", s.only, special[i].s.name);
    }
    omp_set_num_threads(threads);
}

/* ---- the ladder: every rung of kernels/ladder on the cases of its operation ------------------ */

static void check_rungs(Case *c, void *base) {
    const Rung *rung;
    for (int i = 0; case_find(c, "reach") < 0 && (rung = ladder_list(i)); i++) {
        if (strcmp(rung->base, ((const Device *)base)->name) || !case_fits(c, base)) continue;
        const Device dev = ladder_device(base, rung);
        if (!strcmp(c->op, rung->op) && is_wanted(rung->op))
            against_oracle(c, &dev, device_find("cpu-f64"));
    }
}
static int is_first_of_operation(int i) {
    const Rung *rung = ladder_list(i), *other;
    for (int j = 0; j < i && (other = ladder_list(j)); j++)
        if (!strcmp(other->base, rung->base) && !strcmp(other->op, rung->op)) return 0;
    return 1;
}
static void climb(const char *base) {
    const Rung *rung;
    const Device *found = device_find(base);
    if (!found) { skip("this build has no CUDA: the rungs for GPUs were not tested"); return; }
    Device dev = *found;
    if (!is_tested(&dev)) return;
    if (dev.open(0)) { skip("there is no GPU here"); return; }
    for (int r = 0; (rung = ladder_list(r)); r++) {
        if (strcmp(rung->base, base) || !is_first_of_operation(r)) continue;
        for (int i = 0; i < SMALL && !quick; i++) each_case(&small[i], 1, rung->op, check_rungs, &dev);
        for (int i = 0; i < LARGE && !quick; i++) each_case(&large[i], 1, rung->op, check_rungs, &dev);
        for (int i = 0; i < TILES; i++) each_case(&tiles[i], 1, rung->op, check_rungs, &dev);
        /* rungs of CPUs know no tiles of 128 */
        for (int i = 0; i < EIGHTS && (dev.is_gpu || !strncmp(rung->op, "fp8", 3)); i++)
            each_case(&eights[i], 1, rung->op, check_rungs, &dev);
    }
}
void test_ladder(void) {
    climb("cpu-f32");
    climb("cuda-bf16");
}
