/* test_large.c: tests that only a GPU has the memory and the speed for.
 *
 *   soak   kernels whose threads pass work to each other, 200 times on the same inputs, at sizes
 *          that fill the GPU. Outputs start as NaN each time and must be the same bits: a race
 *          condition shows now and then.
 *   large  chains of operations on tensors of more than 2^31 and 2^32 elements, and of more rows
 *          than the second dimension of a grid. cpu-f64 computes a few sampled units (tokens, or
 *          sequences) alone, for the rows of a token depend on no other token. Gradients of weights
 *          are sums over all tokens, so the upstream gradient is zero except for the sampled ones.
 *          With -q the chains are short, and every device runs them. */
#include "cases.h"
#include "tests/model/trainee.h"
#include "tests/test.h"
#include "llmc/model/decode.h"
#include "llmc/model/plan.h"
#include "llmc/base/random.h"

/* ---- soak ------------------------------------------------------------------------------------ */

enum { TIMES = 200 };
static const Shape full[] = {
    { "soak",      2, 1024, 768, 64,  8, 2, 512, 6, 2,  64, MIXED },
    { "soak fine", 1, 1024, 512, 64, 32, 8, 128, 2, 8, 128, MIXED },
};
static const char *const passing_work[] = { "parallel_linear_", "expert_", "attention_", "matmul_backward_input",
                                            "route_plan", "fp8_" };

static void soak_case(Case *c, void *device) {
    const Device *dev = device;
    CaseOnDevice p, fresh;
    size_t bytes[MOST_BUFFERS];
    void *first[MOST_BUFFERS] = { NULL }, *again[MOST_BUFFERS] = { NULL };
    int wanted = 0, differ = 0;
    for (size_t i = 0; i < sizeof passing_work / sizeof *passing_work; i++)
        wanted |= !strncmp(c->op, passing_work[i], strlen(passing_work[i]));
    if (!wanted || !case_fits(c, dev)) return;
    const int one = case_allocate(&p, c, dev), both = one && case_allocate(&fresh, c, dev);
    if (one && !both) case_release(&p);
    if (!both) { check(0, "%s: no memory for %s", dev->name, c->what); return; }
    for (int run = 0; run < TIMES; run++) {
        for (int i = 0; i < c->buffers; i++) {
            if (c->buffer[i].role == INPUT || !p.at[i]) continue;
            if (!first[i]) first[i] = case_bits(&fresh, i, &bytes[i]), again[i] = mem_alloc(bytes[i]);
            dev->copy(p.at[i], fresh.at[i], bytes[i]);
        }
        case_run(&p);
        for (int i = 0; i < c->buffers; i++) {
            if (c->buffer[i].role < OUTPUT || !p.at[i]) continue;
            dev->download(run ? again[i] : first[i], p.at[i], bytes[i]);
            differ += run && memcmp(first[i], again[i], bytes[i]);
        }
    }
    check(!differ, "%s %s: the same bits in %d runs; %d differ", dev->name, c->what, TIMES, differ);
    for (int i = 0; i < MOST_BUFFERS; i++) free(first[i]), free(again[i]);
    case_release(&p), case_release(&fresh);
}

/* Recorded steps of decoding, in which each kernel starts before the previous one has ended. */
static void soak_decoding(const Device *dev, int B) {
    enum { FIRST = 3, STEPS = 24, VOCAB = 512 };
    const size_t bytes = (size_t)B * VOCAB * dev->floatX_size;
    int head[FIRST * 16], token[2][STEPS * 16], differ = 0;
    void *logits[2] = { mem_alloc(bytes), mem_alloc(bytes) };
    uint64_t key[16];
    const Config c = trainee_config("m4:c768h12e16k2f256a8x2n0", VOCAB, FIRST + STEPS);
    Decoder d;
    check(decoder_open(&d, dev, &c, B, c.context, NULL), "memory to decode");
    model_initialize(&d.model, 5);
    for (int i = 0; i < FIRST * B; i++) head[i] = (int)(uniform() * VOCAB);
    for (int b = 0; b < B; b++) key[b] = (uint64_t)b + 1;
    decoder_draw(&d, (Sampler){ .temperature = 1, .top_p = 0.9f }, key);
    for (int run = 0; run < TIMES; run++) {
        decoder_reset(&d);
        decoder_feed(&d, head, FIRST);
        decoder_queue(&d, STEPS, 0);
        decoder_collect(&d, token[run > 0], 0);
        dev->download(logits[run > 0], d.logits, bytes);
        differ += run && (memcmp(token[0], token[1], (size_t)(STEPS * B) * sizeof **token)
                          || memcmp(logits[0], logits[1], bytes));
    }
    check(!differ, "%s: decoding %d sequences, the same bits in %d runs; %d differ", dev->name, B, TIMES, differ);
    decoder_close(&d), free(logits[0]), free(logits[1]);
}

void test_soak(void) {
    const Device *dev;
    int found = 0;
    for (int i = 0; (dev = tested_device(i)); i++) {
        if (!dev->is_gpu || dev->floatX_size != 2) continue;
        Device gpu = *dev;
        found = 1;
        for (size_t s = 0; s < sizeof full / sizeof *full; s++) each_case(&full[s], 0, "", soak_case, &gpu);
        for (int B = 1; B <= 16; B *= 4) soak_decoding(dev, B);
    }
    if (!found) skip("there is no GPU here, or this build has no CUDA");
}

/* ---- large ----------------------------------------------------------------------------------- */

enum { MOST_PARTS = 24, MOST_SAMPLES = 64, DRAWN = 1000003 };

/* The buffers of a chain: `width` elements for each unit, or once. */
typedef enum {
    RANDOM,                             /* normal numbers times scale, a power of two */
    SPARSE,                             /* the same for the sampled units, 0 for the others */
    EXPERTS, TARGETS,           /* `width` different ids below `below`; one id, but -1 for units that are not sampled */
    EMPTY,
    RESULT                              /* compared: of the sampled units, or the whole */
} Fill;
typedef struct { const char *name; int dtype; int each; size_t width; Fill fill; double scale; int below; } Part;
typedef struct {
    const char *name;
    int  units, samples, parts;
    Part part[MOST_PARTS];
    void (*run)(const Device *d, int units, void *const *b);
} Chain;

/* A chain on a device. unit: the numbers of its units; NULL: all. */
typedef struct { const Chain *c; const Device *dev; int units; const int *unit; void *at[MOST_PARTS]; } Side;

static double *drawn;                   /* representable in bf16 */
static size_t size_of(const Part *p, const Device *d) {
    return p->dtype == FLOATX ? d->floatX_size : p->dtype == REAL ? d->real_size : sizeof(int);
}
static size_t count_of(const Side *s, const Part *p) { return p->width * (p->each ? (size_t)s->units : 1); }
static double value_at(const Part *p, size_t i) { return p->scale * drawn[(i + p->width % 97) % DRAWN]; }

static void send(const Side *s, const Part *p, void *to, const double *value, size_t n) {
    if (p->dtype == FLOATX) s->dev->from_double(to, value, n);
    else s->dev->reals_from_double(to, value, n);
}
/* n elements from index `first` on. */
static void send_drawn(const Side *s, const Part *p, void *to, size_t first, size_t n) {
    double *value = mem_alloc(n * sizeof *value);
    for (size_t i = 0; i < n; i++) value[i] = value_at(p, first + i);
    send(s, p, to, value, n);
    free(value);
}
/* The experts of a unit are an arithmetic progression with an odd step; their number is a power of
 * two, so all are different. */
static void send_integers(const Side *s, const Part *p, void *to, const int *sampled, int samples) {
    int *value = mem_alloc(count_of(s, p) * sizeof *value);
    for (int i = 0; i < s->units; i++) {
        const uint64_t bits = random_bits(11, (uint64_t)(s->unit ? s->unit[i] : i));
        for (size_t k = 0; k < p->width; k++)
            value[(size_t)i * p->width + k] = p->fill == TARGETS && !s->unit ? -1
                : (int)(((bits >> 8) + (bits & 0xFE) * k + k) % (uint64_t)p->below);
    }
    for (int j = 0; j < samples && p->fill == TARGETS && !s->unit; j++)
        value[sampled[j]] = (int)((random_bits(11, (uint64_t)sampled[j]) >> 8) % (uint64_t)p->below);
    s->dev->upload(to, value, count_of(s, p) * sizeof *value);
    s->dev->sync();
    free(value);
}
static void fill(const Side *s, const Part *p, void *to, const int *sampled, int samples) {
    const size_t n = count_of(s, p), size = size_of(p, s->dev), some = n < DRAWN ? n : DRAWN;
    if (p->fill == EXPERTS || p->fill == TARGETS) send_integers(s, p, to, sampled, samples);
    else if (p->each && s->unit && (p->fill == RANDOM || p->fill == SPARSE))
        for (int i = 0; i < s->units; i++)
            send_drawn(s, p, (char *)to + (size_t)i * p->width * size, (size_t)s->unit[i] * p->width, p->width);
    else if (p->fill == SPARSE)                             /* alloc has zeroed the rest */
        for (int j = 0; j < samples; j++)
            send_drawn(s, p, (char *)to + (size_t)sampled[j] * p->width * size,
                       (size_t)sampled[j] * p->width, p->width);
    else if (p->fill == RANDOM) {
        send_drawn(s, p, to, 0, some);
        for (size_t at = some, more; at < n; at += more) {  /* doubles the part that is filled */
            more = n - at < at ? n - at : at;
            s->dev->copy((char *)to + at * size, to, more * size);
        }
    }
}
static void release(Side *s) { for (int i = 0; i < s->c->parts; i++) if (s->at[i]) s->dev->release(s->at[i]); }
static int run_side(Side *s, const int *sampled, int samples) {
    for (int i = 0; i < s->c->parts; i++) {
        const Part *p = &s->c->part[i];
        if (!(s->at[i] = s->dev->alloc(count_of(s, p) * size_of(p, s->dev)))) { release(s); return 0; }
        fill(s, p, s->at[i], sampled, samples);
    }
    s->c->run(s->dev, s->units, s->at);
    s->dev->sync();
    return 1;
}
static double *read_from(const Side *s, int part, size_t first, size_t n) {
    const Part *p = &s->c->part[part];
    double *value = mem_alloc(n * sizeof *value);
    void *from = (char *)s->at[part] + first * size_of(p, s->dev);
    if (p->dtype == FLOATX) s->dev->to_double(value, from, n);
    else s->dev->reals_to_double(value, from, n);
    return value;
}
/* The largest error of a unit, or that of a part without units. */
static double compare_part(const Side *got, const Side *want, int part, const int *sampled) {
    const Part *p = &got->c->part[part];
    double worst = 0;
    for (int j = 0; j < (p->each ? want->units : 1); j++) {
        double *a = read_from(got, part, p->each ? (size_t)sampled[j] * p->width : 0, p->width);
        double *b = read_from(want, part, (size_t)j * p->width, p->width);
        const double error = relative_error(a, b, p->width);
        if (!(error <= worst)) worst = error;
        free(a), free(b);
    }
    return worst;
}
static void check_chain(const Device *dev, const Chain *c) {
    int sampled[MOST_SAMPLES];
    Side big = { .c = c, .dev = dev, .units = c->units };
    Side small = { .c = c, .dev = device_find("cpu-f64"), .units = c->samples, .unit = sampled };
    double bytes = 0;
    for (int i = 0; i < c->parts; i++) bytes += (double)(count_of(&big, &c->part[i]) * size_of(&c->part[i], dev));
    for (int j = 0; j < c->samples; j++)                /* the first, the last, and one of each interval in between */
        sampled[j] =
            (int)(((double)j + (j && j < c->samples - 1 ? 0.7 * uniform() : 0)) * (c->units - 1) / (c->samples - 1));
    if (bytes > 0.95 * (double)dev->memory()) {
        skip("%s %s: takes %.0f GB of memory, %.0f are free", dev->name, c->name, bytes / 1e9,
             (double)dev->memory() / 1e9);
        return;
    }
    if (!run_side(&big, sampled, c->samples)) { skip("%s %s: not enough memory", dev->name, c->name); return; }
    if (!run_side(&small, sampled, c->samples)) fail(EXIT_MEMORY, "%s: no memory for %d samples", c->name, c->samples);
    for (int i = 0; i < c->parts; i++)
        if (c->part[i].fill == RESULT)
            check_error(compare_part(&big, &small, i, sampled), dev->floatX_size == 2 ? 3e-2 : 1e-4,
                        "%s %s, %.2g bytes: %s of %d samples", dev->name, c->name, bytes, c->part[i].name, c->samples);
    release(&big), release(&small);
}

/* The experts of an MLP, with the operations of llmc/model/moe.c; the two products of an attention
 * layer, with those of attention.c. */
enum { EXPERTS_C = 512, EXPERTS_F = 512, EXPERTS_E = 16, EXPERTS_K = 8 };
enum { X, UP, DOWN, EXPERT, WEIGHT, DOUT, START, SLOT, TOKEN, ROW, LOAD, PRE, ACT, ROWS, DACT, DPRE, Y, DX, DWEIGHT,
       DUP, DDOWN };
static Plan planned(const Device *d, int N, void *const *b) {
    Plan plan = { .N = N, .E = EXPERTS_E, .K = EXPERTS_K, .S = N * EXPERTS_K, .start = b[START], .slot_of_row = b[SLOT],
                  .token_of_row = b[TOKEN], .row_of_slot = b[ROW] };
    d->route_plan(&plan, b[LOAD], b[EXPERT]);
    return plan;
}
static void run_mlp(const Device *d, int N, void *const *b) {
    const int C = EXPERTS_C, F = EXPERTS_F;
    const Plan plan = planned(d, N, b);
    d->expert_up_forward(d, b[PRE], b[ACT], b[X], b[UP], &plan, SWIGLU, C, F, BY_TOKEN);
    d->parallel_linear_forward(b[ROWS], b[ACT], b[DOWN], &plan, F, C, GROUPED, GROUPED);
    d->combine_forward(b[Y], b[ROWS], b[WEIGHT], NULL, &plan, C, GROUPED);

    d->expert_down_backward(d, b[DPRE], b[ACT], b[DWEIGHT], b[DACT], b[DOUT], b[DOWN], b[PRE], b[WEIGHT], &plan, SWIGLU,
                                C, F, BY_TOKEN);
    d->parallel_linear_backward_weight(b[DDOWN], b[DOUT], b[ACT], &plan, F, C, GROUPED, BY_TOKEN, SET);
    d->parallel_linear_backward_input(b[ROWS], b[DPRE], b[UP], &plan, C, 2*F, GROUPED, GROUPED);
    d->parallel_linear_backward_weight(b[DUP], b[DPRE], b[X], &plan, C, 2*F, BY_TOKEN, GROUPED, SET);
    d->combine_forward(b[DX], b[ROWS], NULL, NULL, &plan, C, GROUPED);
}
static void run_heads(const Device *d, int N, void *const *b) {         /* 2F wide: up is the query, down the output */
    const int C = EXPERTS_C, H = 2 * EXPERTS_F, S = N * EXPERTS_K;
    const Plan plan = planned(d, N, b);
    d->parallel_linear_forward(b[PRE], b[X], b[UP], &plan, C, H, BY_TOKEN, BY_SLOT);
    d->parallel_linear_forward(b[ROWS], b[PRE], b[DOWN], &plan, H, C, BY_SLOT, GROUPED);
    d->combine_forward(b[Y], b[ROWS], b[WEIGHT], NULL, &plan, C, GROUPED);

    d->parallel_linear_backward_input(b[DPRE], b[DOUT], b[DOWN], &plan, H, C, BY_SLOT, BY_TOKEN);
    d->activation_backward(b[DPRE], b[ACT], b[DWEIGHT], b[DPRE], b[PRE], b[WEIGHT], &plan, BY_SLOT, IDENTITY, S, H);
    d->parallel_linear_backward_weight(b[DDOWN], b[DOUT], b[ACT], &plan, H, C, BY_SLOT, BY_TOKEN, SET);
    d->parallel_linear_backward_input(b[ROWS], b[DPRE], b[UP], &plan, C, H, GROUPED, BY_SLOT);
    d->parallel_linear_backward_weight(b[DUP], b[DPRE], b[X], &plan, C, H, BY_TOKEN, BY_SLOT, SET);
    d->combine_forward(b[DX], b[ROWS], NULL, NULL, &plan, C, GROUPED);
}
static Chain experts(int heads) {
    const size_t C = EXPERTS_C, F = EXPERTS_F, E = EXPERTS_E, K = EXPERTS_K, inner = heads ? 2*F : F;
    return (Chain){
        .name = heads ? "experts of attention" : "experts of an MLP", .units = (1 << 19) + 512, .samples = 64,
        .parts = DDOWN + 1,
        .run = heads ? run_heads : run_mlp,
        .part = {
            [X]      = { "x",      FLOATX, 1, C,           RANDOM, 1, 0 },
            [UP]     = { "up",     FLOATX, 0, E*2*F*C,     RANDOM, 0x1p-4, 0 },
            [DOWN]   = { "down",   FLOATX, 0, E*C*inner,   RANDOM, 0x1p-4, 0 },
            [EXPERT] = { "expert", INTEGER, 1, K,          EXPERTS, 0, (int)E },
            [WEIGHT] = { "weight", REAL,   1, K,           RANDOM, 0x1p-2, 0 },
            [DOUT]   = { "dout",   FLOATX, 1, C,           SPARSE, 1, 0 },
            [START]  = { "start",  INTEGER, 0, E + 1,      EMPTY, 0, 0 },
            [SLOT]   = { "slot",   INTEGER, 1, K,          EMPTY, 0, 0 },
            [TOKEN]  = { "token",  INTEGER, 1, K,          EMPTY, 0, 0 },
            [ROW]    = { "row",    INTEGER, 1, K,          EMPTY, 0, 0 },
            [LOAD]   = { "load",   INTEGER, 0, E,          EMPTY, 0, 0 },
            [PRE]    = { "pre",    FLOATX, 1, K*2*F,       EMPTY, 0, 0 },
            [ACT]    = { "act",    FLOATX, 1, K*inner,     EMPTY, 0, 0 },
            [ROWS]   = { "rows",   FLOATX, 1, K*C,         EMPTY, 0, 0 },
            [DACT]   = { "dact",   FLOATX, 1, heads ? 1 : K*F, EMPTY, 0, 0 },
            [DPRE]   = { "dpre",   FLOATX, 1, K*2*F,       EMPTY, 0, 0 },
            [Y]      = { "out",    FLOATX, 1, C,           RESULT, 0, 0 },
            [DX]     = { "dx",     FLOATX, 1, C,           RESULT, 0, 0 },
            [DWEIGHT] = { "dweight", REAL, 1, K,           RESULT, 0, 0 },
            [DUP]    = { "dup",    REAL,   0, E*2*F*C,     RESULT, 0, 0 },
            [DDOWN]  = { "ddown",  REAL,   0, E*C*inner,   RESULT, 0, 0 },
        } };
}

/* The head: more than 2^31 logits. */
enum { HEAD_C = 64, HEAD_V = 50304, HEAD_USED = 50257 };
enum { HX, HEAD, TARGET, LOGITS, LOSS, HDX, DHEAD };
static void run_head(const Device *d, int N, void *const *b) {
    d->matmul_forward(b[LOGITS], b[HX], b[HEAD], N, HEAD_C, HEAD_V);
    d->cross_entropy(b[LOSS], b[LOGITS], b[TARGET], NULL, NULL, 0, 1, N, HEAD_V, HEAD_USED);
    d->matmul_backward_input(b[HDX], b[LOGITS], b[HEAD], N, HEAD_C, HEAD_V, SET);
    d->matmul_backward_weight(b[DHEAD], b[LOGITS], b[HX], N, HEAD_C, HEAD_V, SET);
}
static Chain the_head(void) {
    return (Chain){
        .name = "head", .units = 43000, .samples = 64, .parts = DHEAD + 1, .run = run_head,
        .part = {
            [HX]     = { "x",      FLOATX, 1, HEAD_C,                  RANDOM, 1, 0 },
            [HEAD]   = { "head",   FLOATX, 0, (size_t)HEAD_V * HEAD_C, RANDOM, 0x1p-3, 0 },
            [TARGET] = { "target", INTEGER, 1, 1,                      TARGETS, 0, HEAD_USED },
            [LOGITS] = { "logits", FLOATX, 1, HEAD_V,                  EMPTY, 0, 0 },
            [LOSS]   = { "loss",   REAL,   1, 1,                       RESULT, 0, 0 },
            [HDX]    = { "dx",     FLOATX, 1, HEAD_C,                  RESULT, 0, 0 },
            [DHEAD]  = { "dhead",  REAL,   0, (size_t)HEAD_V * HEAD_C, RESULT, 0, 0 },
        } };
}

/* Attention: a unit is a sequence. */
enum { SEQUENCE = 128, WIDTH = 4096, SHARING = 4 };         /* positions; Q*G*D; Q */
enum { AQ, AKV, ADOUT, AOUT, LSE, DQ, DKV };
static void attend(const Device *d, int B, void *const *b, int D) {
    const int G = WIDTH / SHARING / D;
    d->attention_forward(b[AOUT], b[LSE], b[AQ], b[AKV], NULL, HEADS_TILED, B, SEQUENCE, G, SHARING, D);
    d->attention_backward(b[DQ], b[DKV], b[ADOUT], b[AOUT], b[LSE], b[AQ], b[AKV], NULL, HEADS_TILED, B, SEQUENCE, G,
                          SHARING, D);
}
static void run_attention_64(const Device *d, int B, void *const *b)  { attend(d, B, b, 64); }
static void run_attention_128(const Device *d, int B, void *const *b) { attend(d, B, b, 128); }
static Chain attention(int D) {
    const size_t q = (size_t)SEQUENCE * WIDTH, kv = 2 * q / SHARING, H = (size_t)(WIDTH / D);
    return (Chain){
        .name = D == 64 ? "attention, heads of 64" : "attention, heads of 128", .units = 4100, .samples = 6,
        .parts = DKV + 1,
        .run = D == 64 ? run_attention_64 : run_attention_128,
        .part = {
            [AQ]    = { "q",    FLOATX, 1, q,            RANDOM, 1, 0 },
            [AKV]   = { "kv",   FLOATX, 1, kv,           RANDOM, 1, 0 },
            [ADOUT] = { "dout", FLOATX, 1, q,            RANDOM, 1, 0 },
            [AOUT]  = { "out",  FLOATX, 1, q,            RESULT, 0, 0 },
            [LSE]   = { "lse",  REAL,   1, SEQUENCE * H, RESULT, 0, 0 },
            [DQ]    = { "dq",   FLOATX, 1, q,            RESULT, 0, 0 },
            [DKV]   = { "dkv",  FLOATX, 1, kv,           RESULT, 0, 0 },
        } };
}

void test_large(void) {
    const Device *dev, *bf16 = device_find("cpu-bf16");
    Chain chains[] = { experts(0), experts(1), the_head(), attention(64), attention(128) };
    int found = 0;
    for (int i = 0; (dev = tested_device(i)); i++) {
        if (!dev->is_gpu && !quick) continue;
        if (!found++) {
            double *value = mem_alloc(DRAWN * sizeof *value);
            floatX *rounded = bf16->alloc(DRAWN * bf16->floatX_size);
            for (size_t n = 0; n < DRAWN; n++) value[n] = random_normal(3, n);
            bf16->from_double(rounded, value, DRAWN);
            bf16->to_double(drawn = value, rounded, DRAWN);
            bf16->release(rounded);
        }
        for (size_t k = 0; k < sizeof chains / sizeof *chains; k++) {
            if (quick) chains[k].units = 4 * chains[k].samples;
            check_chain(dev, &chains[k]);
        }
    }
    free(drawn);
    drawn = NULL;
    if (!found) skip("there is no GPU here, or this build has no CUDA");
}
