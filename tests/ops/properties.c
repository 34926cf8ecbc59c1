/* properties.c: what operations promise beyond single cases. AdamW and Muon: stochastic rounding
 * without bias. AdamW: shards that add up to the whole. route_round: whole tiles, the best tokens
 * kept, weights that still sum to one, whatever the router says. Fused decoding: what the single
 * operations make of new heads. */
#include "ops.h"
#include "llmc/model/rope.h"
#include "llmc/model/routers.h"
#include <math.h>

/* ---- AdamW ----------------------------------------------------------------------------------- */

/* Stochastic rounding must keep the mean: the exact results are a quarter or half of a unit from
 * the nearest bf16 numbers, to which rounding to nearest would always go. Even and odd elements use
 * different bits, so they are averaged separately. */
enum { SIDE = 256, ROUNDED = SIDE * SIDE };
/* the last: not all elements, so GPUs take no four at once */
typedef enum { ADAMW, MUON, MUON_ONE_BY_ONE, ADDED, ROUNDERS } Rounder;
static double *rounded_update(const Device *dev, Rounder by, uint64_t key) {    /* weights, then v */
    const Segment all = { .count = ROUNDED - (by == MUON_ONE_BY_ONE), .rate = 1 };
    const AdamW a = { .lr = 0x1p-9f, .beta1 = 0, .beta2 = 0.999f, .fix1 = 1, .fix2 = 1, .key = key };
    const Muon u = { .lr = 0x1p-9f / (0.2f * 16), .key = key };                 /* 16: the root of SIDE */
    double *value = mem_alloc(2 * ROUNDED * sizeof *value), norm[2] = { 1, 1 };
    floatX *w = dev->alloc(ROUNDED * dev->floatX_size), *m = dev->alloc(ROUNDED * dev->floatX_size);
    floatX *v = dev->alloc(ROUNDED * dev->floatX_size), *out = dev->alloc(ROUNDED * dev->floatX_size);
    real *g = dev->alloc(ROUNDED * dev->real_size), *grad_sq_norms = dev->alloc(2 * dev->real_size);
    Segment *segments = dev->alloc(sizeof *segments);
    AdamW *adamw = dev->alloc(sizeof *adamw);
    Muon *muon = dev->alloc(sizeof *muon);
    for (int i = 0; i < ROUNDED; i++) value[i] = 1;
    dev->from_double(w, value, ROUNDED);
    dev->from_double(v, value, ROUNDED);
    for (int i = 0; i < ROUNDED; i++) value[i] = 0.5;
    dev->reals_from_double(g, value, ROUNDED);
    dev->from_double(out, value, ROUNDED);
    dev->reals_from_double(grad_sq_norms, norm, 2);
    dev->upload(segments, &all, sizeof all);
    dev->upload(adamw, &a, sizeof a);
    dev->upload(muon, &u, sizeof u);
    if (by == ADDED) {                      /* 1 - 1/1024, a quarter of the way to the next number */
        const double factors[2] = { 1, -0x1p-9 };
        real *of = dev->alloc(2 * dev->real_size);
        uint64_t *at = dev->alloc(sizeof key);
        dev->reals_from_double(of, factors, 2);
        dev->upload(at, &key, sizeof key);
        dev->muon_add((Momentum){ w, FLOATX, NULL }, g, of, segments, 1, ROUNDED, at);
        dev->sync();
        dev->release(of), dev->release(at);
    } else if (by == ADAMW) dev->adamw(w, NULL, m, v, FLOATX, g, grad_sq_norms, segments, 1, adamw);
    else dev->muon_update(w, NULL, out, NULL, grad_sq_norms, segments, 1, SIDE, SIDE, muon);
    dev->to_double(value, w, ROUNDED);
    dev->to_double(value + ROUNDED, v, ROUNDED);
    dev->release(w), dev->release(m), dev->release(v), dev->release(out), dev->release(g), dev->release(grad_sq_norms),
        dev->release(segments);
    dev->release(adamw), dev->release(muon);
    return value;
}
static void check_rounder(const Device *dev, Rounder by) {
    const char *const name = (const char *[]){ "adamw", "muon_update", "muon_update one by one", "muon_add" }[by];
    const double square = by == ADAMW ? 0.999 + 0.001 * 0.25 : 1, want[2] = { 1 - 0x1p-9 * 0.5 / sqrt(square), square };
    double *got = rounded_update(dev, by, 1), *again = rounded_update(dev, by, 1), *other = rounded_update(dev, by, 2);
    double *cpu = rounded_update(device_find("cpu-bf16"), by, 1);
    for (int kind = 0; kind < (by == ADAMW ? 2 : 1); kind++) for (int odd = 0; odd < 2; odd++) {
        double mean = 0;
        for (int i = odd; i < ROUNDED; i += 2) mean += got[kind*ROUNDED + i] / (ROUNDED / 2);
        check_error(fabs(mean - want[kind]), 5 * 0x1p-8 * 0.5 / sqrt(ROUNDED / 2), "%s %s: mean of %s %s that "
                    "are rounded stochastically", dev->name, name, odd ? "odd" : "even", kind ? "v" : "weights");
    }
    int differs = 0, from_cpu = 0, both = 0, pairs = 0;
    for (int i = 0; i < 2*ROUNDED; i++) {
        differs += got[i] != other[i];
        from_cpu += got[i] != cpu[i];
        both += i < ROUNDED && got[i] < 1 && got[ROUNDED + i] < 1;
        pairs += i < ROUNDED && i % 2 && got[i] < 1 && got[i - 1] < 1;
    }
    check(!memcmp(got, again, 2*ROUNDED * sizeof *got), "%s %s: the same key rounds the same way", dev->name, name);
    check(differs > ROUNDED / 4, "%s %s: another key rounds %d of %d differently", dev->name, name, differs, 2*ROUNDED);
    if (by == ADAMW)
        check_error((double)both / ROUNDED, 0.07,
                    "%s adamw: a weight and its v are rounded independently: share of both down", dev->name);
    check_error((double)pairs / (ROUNDED / 2), 0.09, "%s %s: neighbours that both go down", dev->name, name);
    check_error((double)from_cpu / ROUNDED, 1e-3, "%s %s: differs from cpu-bf16", dev->name, name);
    free(got), free(again), free(other), free(cpu);
}
void check_rounded_update(const Device *dev) {
    if (dev->floatX_size == 2) for (int by = 0; by < ROUNDERS; by++) check_rounder(dev, by);
}
/* Two tensors updated by one rank, and by two ranks with half of the elements and their state each:
 * the same bits. The first shard ends within the first tensor. */
void check_sharded_update(const Device *dev) {
    enum { FIRST = 777, SECOND = 340, COUNT = FIRST + SECOND + 3, CUT = COUNT / 2 };
    const Segment full[2] = { { .count = FIRST, .decay = 1, .rate = 1 },
                              { .offset = FIRST, .count = SECOND, .gradient = FIRST, .rate = 1 } };
    const Segment shard[2][2] = { { { .count = CUT, .decay = 1, .rate = 1 }, { 0 } },
                                  { { .offset = CUT, .count = FIRST - CUT, .decay = 1, .shift = CUT, .gradient = CUT,
                                      .rate = 1 },
                                    { .offset = FIRST, .count = SECOND, .shift = CUT, .gradient = FIRST,
                                      .rate = 1 } } };
    const AdamW a = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .clip = 1,
                      .fix1 = 2, .fix2 = 3 };
    const size_t bytes = COUNT * dev->floatX_size;
    double value[COUNT];
    char *got[2];
    floatX *weight[2];
    real *grad = dev->alloc(COUNT * dev->real_size), *grad_sq_norms = dev->alloc(3 * dev->real_size);
    Segment *segments = dev->alloc(sizeof full);
    AdamW *settings = dev->alloc(sizeof a);
    for (int i = 0; i < COUNT; i++) value[i] = normal();
    dev->reals_from_double(grad, value, COUNT);
    dev->upload(settings, &a, sizeof a);
    dev->upload(segments, full, sizeof full);
    dev->grad_sq_norms(grad_sq_norms, grad, segments, 2);
    for (int split = 0; split < 2; split++) {
        weight[split] = dev->alloc(bytes);
        dev->from_double(weight[split], value, COUNT);
        for (int r = 0; r <= split; r++) {
            const size_t own = split ? COUNT - CUT : COUNT;
            real *state[3];
            for (int i = 0; i < 3; i++) state[i] = dev->alloc(own * dev->real_size);    /* master, m, v */
            dev->reals_from_double(state[0], value + r * CUT, own);
            dev->upload(segments, split ? shard[r] : full, sizeof full);
            dev->adamw(weight[split], state[0], state[1], state[2], REAL, grad, grad_sq_norms, segments, 2, settings);
            dev->sync();
            for (int i = 0; i < 3; i++) dev->release(state[i]);
        }
        got[split] = malloc(bytes);
        dev->download(got[split], weight[split], bytes);
        dev->release(weight[split]);
    }
    check(!memcmp(got[0], got[1], bytes), "%s adamw: half of the state on two ranks: the same weights", dev->name);
    dev->release(grad), dev->release(grad_sq_norms), dev->release(segments), dev->release(settings);
    free(got[0]), free(got[1]);
}

/* ---- Muon ------------------------------------------------------------------------------------ */

/* x = sum of s_i u_i v_i^T, s from 1 to 0.01: the result has these u and v, and values near 1. */
static void orthonormal(double *u, int count, int n) {
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < n; j++) u[i*n + j] = normal();
        for (int before = 0; before <= i; before++) {
            double product = 0;
            for (int j = 0; j < n; j++) product += u[i*n + j] * u[before*n + j];
            for (int j = 0; j < n; j++)
                u[i*n + j] = before < i ? u[i*n + j] - product * u[before*n + j] : u[i*n + j] / sqrt(product);
        }
    }
}
static void singular_values_of(const Device *dev, int rows, int columns) {
    enum { RANK = 24 };
    const int n = rows * columns, k = rows < columns ? rows : columns;
    double *u = mem_alloc((size_t)(RANK * rows) * sizeof *u), *v = mem_alloc((size_t)(RANK * columns) * sizeof *v);
    double *x = mem_alloc((size_t)n * sizeof *x), least = 1e9, most = 0, other = 0;
    orthonormal(u, RANK, rows);
    orthonormal(v, RANK, columns);
    for (int r = 0; r < RANK; r++) for (int i = 0; i < n; i++)
        x[i] += pow(0.01, (double)r / (RANK - 1)) * u[r*rows + i / columns] * v[r*columns + i % columns];
    const MuonBuffers b = { dev->alloc((size_t)n * dev->floatX_size), dev->alloc((size_t)n * dev->floatX_size),
                            dev->alloc((size_t)(k * k) * dev->floatX_size),
                            dev->alloc((size_t)(k * k) * dev->floatX_size), dev->alloc(MUON_SUMS * dev->real_size),
                            dev->alloc(4 * sizeof(int)) };
    dev->from_double(b.x, x, (size_t)n);
    dev->orthogonalize(dev, &b, 1, rows, columns);
    dev->to_double(x, b.out, (size_t)n);
    for (int r = 0; r < RANK; r++) for (int c = 0; c < RANK; c++) {
        double value = 0;
        for (int i = 0; i < n; i++) value += u[r*rows + i / columns] * x[i] * v[c*columns + i % columns];
        if (r != c) other = fmax(other, fabs(value));
        else least = fmin(least, value), most = fmax(most, value);
    }
    check(least > 0.6 && most < 1.25, "%s orthogonalize: singular values of %dx%d are %.3f to %.3f", dev->name, rows,
          columns, least, most);
    check_error(other, dev->floatX_size == 2 ? 0.1 : 1e-5, "%s orthogonalize: %dx%d has other singular vectors",
                dev->name, rows, columns);
    dev->release(b.x), dev->release(b.out), dev->release(b.gram), dev->release(b.square), dev->release(b.sums),
        dev->release(b.start);
    free(u), free(v), free(x);
}
/* Squares that leave the range of reals (an expert without tokens has only an old momentum): the
 * result is that of the same matrix in a larger unit, or, from MUON_LEAST on, zeros. */
static void check_small_matrices(const Device *dev, int rows, int columns) {
    const size_t n = (size_t)(rows * columns), k = (size_t)(rows < columns ? rows : columns);
    double *x = mem_alloc(n * sizeof *x), *scaled = mem_alloc(n * sizeof *x), *want = NULL;
    const MuonBuffers b = { dev->alloc(n * dev->floatX_size), dev->alloc(n * dev->floatX_size),
                            dev->alloc(k * k * dev->floatX_size), dev->alloc(k * k * dev->floatX_size),
                            dev->alloc(MUON_SUMS * dev->real_size), dev->alloc(4 * sizeof(int)) };
    for (size_t i = 0; i < n; i++) x[i] = normal();
    for (int down = 0; down < 150; down += down < 40 ? 40 : down < 76 ? 2 : 7) {
        /* f32: squares are subnormal from 2^-63 on, values from 2^-126 */
        double *got = mem_alloc(n * sizeof *got), difference = 0, squares = 0, norm = 0;
        for (size_t i = 0; i < n; i++) scaled[i] = ldexp(x[i], -down), norm += scaled[i] * scaled[i];
        dev->from_double(b.x, scaled, n);
        dev->orthogonalize(dev, &b, 1, rows, columns);
        dev->to_double(got, b.out, n);
        for (size_t i = 0; i < n; i++)
            squares += got[i] * got[i], difference += want ? (got[i] - want[i]) * (got[i] - want[i]) : 0;
        check(norm > (double)MUON_LEAST ? squares != 0 : squares == 0,
              "%s orthogonalize: %dx%d times 2^-%d: zeros from MUON_LEAST on", dev->name, rows, columns, down);
        if (squares != 0) check_error(sqrt(difference / (double)k), 1e-2, "%s orthogonalize: %dx%d times 2^-%d",
                                      dev->name, rows, columns, down);
        if (want) free(got); else want = got;
    }
    dev->release(b.x), dev->release(b.out), dev->release(b.gram), dev->release(b.square), dev->release(b.sums),
        dev->release(b.start);
    free(x), free(scaled), free(want);
}
void check_singular_values(const Device *dev) {
    check_small_matrices(dev, 24, 40);
    check_small_matrices(dev, 160, 136);
    singular_values_of(dev, 24, 40);
    singular_values_of(dev, 300, 256);
    singular_values_of(dev, 256, 512);
}

/* ---- rounded routing ------------------------------------------------------------------------- */

/* N tokens that chose K of E experts, by these logits; and what route_round has made of that. */
enum { START, SLOT_OF_ROW, TOKEN_OF_ROW, ROW_OF_SLOT, FIRST, LOAD, EXPERT, CHOICE, ARRAYS };
typedef struct {
    const Device *dev;
    int     N, E, K, S, tile;
    Scores  scores;
    double *x;                          /* (N,E) logits, as the device has rounded them */
    floatX *logits;
    real   *weight, *lse;
    int    *on_device[ARRAYS], *host[ARRAYS];   /* host: after routed_read */
    size_t  size[ARRAYS];
} Routed;

static Plan plan_of(const Routed *r) {
    return (Plan){ .N = r->N, .E = r->E, .K = r->K, .S = r->S,
                   .start = r->on_device[START], .first = r->on_device[FIRST], .slot_of_row = r->on_device[SLOT_OF_ROW],
                   .token_of_row = r->on_device[TOKEN_OF_ROW],
                   .row_of_slot = r->on_device[ROW_OF_SLOT] };
}
/* Sizes and scores are set before. x (N,E): logits; the Routed owns them from now on. */
static void routed_open(Routed *r, const Device *dev, double *x) {
    const size_t N = (size_t)r->N, E = (size_t)r->E, S = (size_t)r->S,
        size[] = { E + 1, S, S, S, N + 1, E, S, N * (size_t)r->K };
    r->dev = dev;
    r->x = x;
    for (int i = 0; i < ARRAYS; i++) r->on_device[i] = dev->alloc(((r->size[i] = size[i]) + 1) * sizeof(int));
    r->weight = dev->alloc((S + 1) * dev->real_size);
    r->lse = dev->alloc((N + 1) * dev->real_size);
    r->logits = dev->alloc((N * E + 1) * dev->floatX_size);
    dev->from_double(r->logits, x, N * E);
    dev->to_double(x, r->logits, N * E);
    dev->router_forward(r->on_device[CHOICE], r->weight, r->lse, r->logits, NULL, r->scores, (Groups){ 0 }, 0, r->N,
                        r->E, r->K);
}
static void routed_round(Routed *r) {
    Plan p = plan_of(r);
    r->dev->route_round(&p, r->on_device[LOAD], r->on_device[EXPERT], r->weight, r->on_device[CHOICE], r->logits,
                        r->lse, r->scores, r->tile);
}
static void routed_read(Routed *r, int array) {
    if (!r->host[array]) r->host[array] = mem_alloc(r->size[array] * sizeof(int));
    r->dev->download(r->host[array], r->on_device[array], r->size[array] * sizeof(int));
}
static void routed_close(Routed *r) {
    for (int i = 0; i < ARRAYS; i++) r->dev->release(r->on_device[i]), free(r->host[i]);
    r->dev->release(r->weight), r->dev->release(r->lse), r->dev->release(r->logits), free(r->x);
}

/* Does an expert that f tokens chose have any but the nearest number of rows? */
static int wrong_count(const Routed *r, int f, int rows) {
    /* 0: more tokens than there are */
    const int full = (f + r->tile - 1) / r->tile * r->tile <= r->N, off = abs(rows - f);
    return full ? rows % r->tile != 0 || 2 * off > r->tile || (2 * off == r->tile && rows > f) : rows != f;
}
static float score_of(const Routed *r, int n, int e) {
    const double *x = r->x + n * r->E;
    double sum = 0;
    for (int i = 0; i < r->E && r->scores < SIGMOID_TOPK; i++) sum += exp(x[i]);
    return (float)(x[e] - (r->scores >= SIGMOID_TOPK ? 0 : log(sum)));
}
/* Are its rows the tokens with the best scores, and do all arrays say so? Tokens that chose the
 * expert have precedence over those that are added; they are dropped only to have fewer rows,
 * others added only to have more. */
static int wrong_rows(const Routed *r, int e) {
    int *const *v = r->host, wrong = 0;
    const int end = v[START][e + 1], more = end - v[START][e] >= v[LOAD][e];
    /* of those that did not, did choose e */
    float worst_kept[2] = { INFINITY, INFINITY }, best_left[2] = { -INFINITY, -INFINITY };
    for (int n = 0, row = v[START][e]; n < r->N; n++) {
        int chose = 0;
        const int kept = row < end && v[TOKEN_OF_ROW][row] == n, slot = kept ? v[SLOT_OF_ROW][row] : 0;
        const float score = score_of(r, n, e);
        for (int k = 0; k < r->K; k++) chose |= v[CHOICE][n * r->K + k] == e;
        if (kept) worst_kept[chose] = fminf(worst_kept[chose], score);
        else best_left[chose] = fmaxf(best_left[chose], score);
        wrong |= kept
            && (v[ROW_OF_SLOT][slot] != row || v[EXPERT][slot] != e || slot < v[FIRST][n] || slot >= v[FIRST][n + 1]
                          || (slot > v[FIRST][n] && v[EXPERT][slot - 1] >= e));
        wrong |= kept != chose && chose == more;
        row += kept;
    }
    for (int chose = 0; chose < 2; chose++) wrong |= worst_kept[chose] < best_left[chose] - 1e-5f;
    return wrong;
}
/* Do weights sum to what combine_forward makes of rows of ones, and to 1 if they are normalized? */
static int wrong_weights(const Routed *r) {
    const size_t S = (size_t)r->S, N = (size_t)r->N;
    const Plan p = plan_of(r);
    double *ones = mem_alloc((S + 1) * sizeof *ones), *w = mem_alloc((S + 1) * sizeof *w),
        *sum = mem_alloc((N + 1) * sizeof *sum);
    floatX *rows = r->dev->alloc((S + 1) * r->dev->floatX_size), *out = r->dev->alloc((N + 1) * r->dev->floatX_size);
    int wrong = 0;
    for (size_t i = 0; i < S; i++) ones[i] = 1;
    r->dev->from_double(rows, ones, S);
    r->dev->combine_forward(out, rows, r->weight, NULL, &p, 1, GROUPED);
    r->dev->to_double(sum, out, N);
    r->dev->reals_to_double(w, r->weight, S);
    for (int n = 0; n < r->N; n++) {
        const int from = r->host[FIRST][n], to = r->host[FIRST][n + 1];
        double total = 0;
        for (int s = from; s < to; s++) total += w[s];
        wrong |= !(fabs(total - sum[n]) < 1e-2 * fmax(1, total)) || (from == to && sum[n] != 0)
              || (SUMS_TO_ONE(r->scores) && from < to && !(fabs(total - 1) < 1e-5));
    }
    r->dev->release(rows), r->dev->release(out), free(ones), free(w), free(sum);
    return wrong;
}
/* Logits that prefer some experts by far, sizes that are multiples of nothing; or barely more
 * tokens than a tile, so that the busiest experts cannot be rounded. */
void check_rounded_routing(const Device *dev, int try) {
    const int E = 1 + (int)(uniform() * 40), K = 1 + (int)(uniform() * (E < 9 ? E : 9)),
        tile = 1 << (int)(uniform() * 8);
    const int N = (int)(try % 2 ? uniform() * uniform() * 700 : tile * (1 + uniform()));
    Routed r = { .N = N, .E = E, .K = K, .S = N*K + E*tile, .tile = tile,
                 .scores = (Scores)(try / 2 % (SIGMOID_EACH + 1)) };
    const Config c = { .experts = E, .topk = K, .tile = tile, .rounding = 1 };
    const double skew = 4 * uniform();
    double *x = mem_alloc((size_t)(N*E + 1) * sizeof *x);
    for (int i = 0; i < N*E; i++) x[i] = normal() - skew * (i * 7 % E) / E;
    routed_open(&r, dev, x);
    routed_round(&r);
    for (int i = 0; i < ARRAYS; i++) routed_read(&r, i);
    const int *start = r.host[START], *first = r.host[FIRST];
    int wrong = start[0] != 0 || first[0] != 0 || first[N] != start[E] || start[E] > mlp_slots(&c, N, 1);
    for (int e = 0; e < E && !wrong; e++)
        wrong = wrong_count(&r, r.host[LOAD][e], start[e + 1] - start[e]) || wrong_rows(&r, e);
    check(!wrong, "%s route_round: as promised, N=%d E=%d K=%d tile=%d skew=%.1f", dev->name, N, E, K, tile, skew);
    check(!wrong && !wrong_weights(&r), "%s route_round: weights of the slots that a token has, N=%d", dev->name, N);
    routed_close(&r);
}

/* Buffers have more rows than a rounded plan uses, and those are what an earlier step has left
 * there: NaN at worst. Experts without rows, in the middle and at the end, have a gradient of
 * zeros, others one without NaN; whole stages of 64 rows, as rounding leaves them. */
void check_unused_rows(const Device *dev) {
    enum { N = 128, E = 5, S = 512, C = 72, O = 136 };
    static const int start[E + 1] = { 0, 128, 128, 192, 256, 256 };
    const int used = start[E];
    const size_t X = dev->floatX_size;
    double *x = mem_alloc(S * O * sizeof *x), *got = mem_alloc(E * O * C * sizeof *got);
    int token[S], *on_device[2] = { dev->alloc(sizeof start), dev->alloc(sizeof token) };
    floatX *tokens = dev->alloc(N * O * X), *rows = dev->alloc(S * O * X);
    void *dweight = dev->alloc(E * O * C * dev->real_size);
    for (int i = 0; i < S; i++) token[i] = i % N;
    dev->upload(on_device[0], start, sizeof start);
    dev->upload(on_device[1], token, sizeof token);
    const Plan plan = { .N = N, .E = E, .K = 4, .S = S, .start = on_device[0], .token_of_row = on_device[1],
                        .slot_of_row = on_device[1] };
    for (int i = 0; i < S * O; i++) x[i] = normal();
    dev->from_double(tokens, x, N * O);
    for (int up = 0; up < 2; up++) {
        /* the rows are dout (S,O) of the up projection, or inp (S,C) of the down projection */
        const int width = up ? O : C;
        for (int i = 0; i < S * width; i++) x[i] = i < used * width ? normal() : NAN;
        dev->from_double(rows, x, (size_t)(S * width));
        dev->parallel_linear_backward_weight(dweight, up ? rows : tokens, up ? tokens : rows, &plan, C, O,
                                             up ? BY_TOKEN : GROUPED, up ? GROUPED : BY_TOKEN, SET);
        dev->reals_to_double(got, dweight, E * O * C);
        for (int e = 0; e < E; e++) {
            double squares = 0;
            for (int i = 0; i < O * C; i++) squares += got[e * O * C + i] * got[e * O * C + i];
            check(start[e] < start[e + 1] ? squares > 0 : squares == 0, "%s parallel_linear_backward_weight, %s: "
                  "expert %d beside rows that are not used", dev->name, up ? "up" : "down", e);
        }
    }
    dev->release(on_device[0]), dev->release(on_device[1]), dev->release(tokens), dev->release(rows),
        dev->release(dweight);
    free(x), free(got);
}

/* ---- new heads when text is generated -------------------------------------------------------- */

enum { NEW_B = 2, NEW_G = 2, NEW_Q = 2, NEW_STEPS = 5 };
typedef struct {                                            /* what a layer keeps, and what it makes of a token */
    floatX *q, *kv, *cache, *own, *out;
    size_t q_size, kv_size, cache_size, own_size;
} NewHeadsOf;
static NewHeadsOf new_heads(const Device *dev, int T, int D) {
    const size_t GD = (size_t)(NEW_G * D), rows = (size_t)(NEW_B * T), X = dev->floatX_size;
    NewHeadsOf h = { .q_size = NEW_B * NEW_Q * GD, .kv_size = NEW_B * 2 * GD, .cache_size = rows * 2 * GD,
                     .own_size = (rows + 1) * GD };
    h.q = dev->alloc(h.q_size * X), h.kv = dev->alloc(h.kv_size * X), h.out = dev->alloc(h.q_size * X);
    h.cache = dev->alloc(h.cache_size * X), h.own = dev->alloc(h.own_size * X);
    return h;
}
/* The same by single operations. scratch: two of (B,G*D). */
static void new_heads_singly(const Device *dev, const NewHeadsOf *h, const NewHeads *heads, floatX *const scratch[2],
                             const real *table, const int *position, const int *row, int T, int D) {
    enum { B = NEW_B, G = NEW_G, Q = NEW_Q };
    const int GD = G * D;
    dev->norm_rope_forward(h->q, NULL, table, position, heads->query_norm, B, Q*GD, Q*G, D);
    dev->norm_rope_forward(h->kv, NULL, table, position, heads->key_norm, B, 2*GD, G, D);
    if (heads->own_keys) {
        dev->columns_take(scratch[0], h->kv, B, 2*GD, 0, GD);
        dev->embed_forward(scratch[1], row, h->own, B, GD);
        dev->shift_keys(h->kv, scratch[0], scratch[1], position, B, G, D);
        dev->cache_store((floatX *)((char *)h->own + (size_t)GD * dev->floatX_size), scratch[0], row, B, GD);
    }
    dev->cache_store(h->cache, h->kv, row, B, 2*GD);
    dev->attention_cached(h->out, h->q, h->cache, NULL, position, 0, HEADS_GROUPED, B, T, G, Q, D);
}
static double of_new_heads(const Device *dev, const floatX *a, const floatX *b, size_t n) {
    double *x = mem_alloc(n * sizeof *x), *y = mem_alloc(n * sizeof *y);
    dev->to_double(x, a, n), dev->to_double(y, b, n);
    const double error = relative_error(x, y, n);
    free(x), free(y);
    return error;
}
/* Two sequences: the first tokens, one of which has none before it, and the last ones that fit. The
 * tokens between them are zeros. Without and with keys of the token before. */
static void check_new_heads_of(const Device *dev, int T, int D, int shifts) {
    enum { B = NEW_B, G = NEW_G, Q = NEW_Q, REALS = 4 };
    const Config c = { .head_size = D, .rope_theta = 100 };
    const size_t X = dev->floatX_size, GD = (size_t)(G * D);
    NewHeadsOf fused = new_heads(dev, T, D), single = new_heads(dev, T, D);
    floatX *weight = dev->alloc((size_t)D * X), *scratch[2] = { dev->alloc(B * GD * X), dev->alloc(B * GD * X) };
    real *table = dev->alloc((size_t)(T * D) * dev->real_size);
    int *at = dev->alloc(2 * B * sizeof *at);
    double *x = mem_alloc(fused.q_size * REALS * sizeof *x);
    const Norm norm = { weight, 1e-6f };
    const NewHeads heads = { .query_norm = norm, .key_norm = norm, .own_keys = shifts ? fused.own : NULL };
    rope_table(dev, table, &c, T);
    for (int d = 0; d < D; d++) x[d] = 1 + 0.1 * normal();
    dev->from_double(weight, x, (size_t)D);
    for (int t = 0; t < NEW_STEPS; t++) {
        const int now = t < 2 ? t : T - NEW_STEPS + t, host[2 * B] = { now, now, now, T + now };
        dev->upload(at, host, sizeof host);
        for (int kv = 0; kv < 2; kv++) {
            const size_t n = kv ? fused.kv_size : fused.q_size;
            for (size_t i = 0; i < n; i++) x[i] = normal();
            dev->from_double(kv ? fused.kv : fused.q, x, n);
            dev->copy(kv ? single.kv : single.q, kv ? fused.kv : fused.q, n * X);
        }
        dev->decode->attention(fused.out, fused.cache, fused.q, fused.kv, &heads, table, at, at + B, 0, HEADS_GROUPED,
                               B, T, G, Q, D);
        new_heads_singly(dev, &single, &heads, scratch, table, at, at + B, T, D);
        check_error(of_new_heads(dev, fused.out, single.out, fused.q_size), X == 2 ? 0.01 : 1e-5,
                    "%s decode->attention: as single operations, T=%d D=%d, step %d, keys %s", dev->name, T, D, t,
                    shifts ? "of the token before" : "as they are");
    }
    check_error(of_new_heads(dev, fused.cache, single.cache, fused.cache_size), X == 2 ? 0.01 : 1e-5,
                "%s decode->attention: its cache, T=%d D=%d", dev->name, T, D);
    dev->release(weight), dev->release(scratch[0]), dev->release(scratch[1]), dev->release(table), dev->release(at);
    NewHeadsOf both[] = { fused, single };
    for (int i = 0; i < 2; i++)
        dev->release(both[i].q), dev->release(both[i].kv), dev->release(both[i].out), dev->release(both[i].cache),
            dev->release(both[i].own);
    free(x);
}
void check_new_heads(const Device *dev) {
    static const struct { int T, D; } sizes[] = { { 300, 8 }, { 300, 40 }, { 100, 64 }, { 100, 128 } };
    for (size_t i = 0; i < COUNT(sizes) && dev->decode; i++)
        for (int shifts = 0; shifts < 2; shifts++) check_new_heads_of(dev, sizes[i].T, sizes[i].D, shifts);
}

/* ---- decode->in and decode->out: experts of a few tokens, by their definition ---------------- */

typedef struct { int N, C, F, E, K; Activation f; Format format; int biases; } MlpCase;
static double gate_of(const MlpCase *s, double g, double u) {
    if (s->f == CLAMPED) return fmin(g, 7) / (1 + exp(-1.702 * fmin(g, 7))) * (fmax(-7, fmin(u, 7)) + 1);
    return s->f == SWIGLU ? g / (1 + exp(-g)) * u : s->f == RELU2 ? fmax(g, 0) * fmax(g, 0) : g;
}
static floatX *drawn_numbers(const Device *dev, double *value, size_t n, double spread) {
    floatX *x = dev->alloc(n * dev->floatX_size);
    for (size_t i = 0; i < n; i++) value[i] = spread * normal();
    dev->from_double(x, value, n);
    dev->to_double(value, x, n);
    return x;
}
/* A weight (E,O,C) of this format, and its values. */
static Weight drawn_weight(const Device *dev, Format f, double *value, int E, int O, int C) {
    const size_t n = (size_t)E * (size_t)O * (size_t)C, blocks = (size_t)(E * ((O + 127) / 128) * ((C + 127) / 128));
    floatX *x = drawn_numbers(dev, value, n, 1 / sqrt(C));
    if (f == OF_FLOATX) return (Weight){ .at = x };
    void *code = dev->alloc(n), *scale = dev->alloc(f == OF_FP8 ? blocks * dev->real_size : n / MXFP4_BLOCK);
    unsigned char *random = mem_alloc(n);
    if (f == OF_FP8) dev->weight_to_codes((Fp8){ code, scale }, x, E, O, C);
    for (size_t i = 0; i < n; i++) random[i] = (unsigned char)(uniform() * 256);
    if (f == OF_MXFP4) dev->upload(code, random, n / 2);
    for (size_t i = 0; i < n / MXFP4_BLOCK; i++) random[i] = (unsigned char)(117 + uniform() * 4);
    if (f == OF_MXFP4) dev->upload(scale, random, n / MXFP4_BLOCK);
    dev->weight_from_codes(x, (Weight){ code, scale, f }, E, O, C);
    dev->to_double(value, x, n);
    dev->release(x), free(random);
    return (Weight){ code, scale, f };
}
static double dot_of(const double *x, const double *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}
static void check_decoded_mlp_of(const Device *dev, const MlpCase *s) {
    const int N = s->N, C = s->C, F = s->F, E = s->E, K = s->K, O = IS_GATED(s->f) ? 2 * F : F;
    enum { P = 40 };
    const size_t X = dev->floatX_size, NK = (size_t)(N * K);
#define DOUBLES(name, n) double *name = mem_alloc((size_t)(n) * sizeof *name)
    DOUBLES(x, N * C);
    DOUBLES(norm, C);
    DOUBLES(router, E * C);
    DOUBLES(up, E * O * C);
    DOUBLES(down, E * F * C);
    DOUBLES(plain, P * C);
    DOUBLES(up_bias, E * O);
    DOUBLES(down_bias, E * C);
    DOUBLES(added, E);
    DOUBLES(y, C); DOUBLES(act, F);
    DOUBLES(want, N * C); DOUBLES(want_plain, N * P);
    DOUBLES(got, N * C);  DOUBLES(got_plain, N * P);
#undef DOUBLES
    floatX *dx = drawn_numbers(dev, x, (size_t)(N * C), 1), *dnorm = drawn_numbers(dev, norm, (size_t)C, 1),
        *drouter = drawn_numbers(dev, router, (size_t)(E * C), 1 / sqrt(C)),
        *dup_bias = drawn_numbers(dev, up_bias, (size_t)(E * O), 1), *dadded = drawn_numbers(dev, added, (size_t)E, 1),
        *ddown_bias = drawn_numbers(dev, down_bias, (size_t)(E * C), 1);
    const Weight wup = drawn_weight(dev, s->format, up, E, O, C), wdown = drawn_weight(dev, s->format, down, E, C, F),
        wplain = drawn_weight(dev, s->format, plain, 1, P, C);
    floatX *dact = dev->alloc(NK * (size_t)F * X), *out = dev->alloc((size_t)(N * C) * X),
        *dplain = dev->alloc((size_t)(N * P) * X);
    const Choice choice = { dev->alloc(NK * sizeof(int)), dev->alloc(NK * dev->real_size) }, none = { 0 };
    const Router r = { .weight = E > 1 ? drouter : NULL, .scores = TOPK_SOFTMAX, .E = E, .K = K,
                       .added = s->biases ? dadded : NULL };
    const Norm n = { dnorm, 1e-6f };
    dev->decode->in(dact, dplain, choice, dx, n, r, wup, s->biases ? dup_bias : NULL, wplain, wdown,
                    (size_t)F * (size_t)C, s->f, N, C, F, P);
    dev->sync();                            /* with a plain product the next operation would be that of attention */
    dev->decode->out(out, dx, dact, E > 1 ? choice : none, wdown, s->biases ? ddown_bias : NULL, NULL, 0, N, E, K, F,
                     C);
    dev->to_double(got, out, (size_t)(N * C)), dev->to_double(got_plain, dplain, (size_t)(N * P));
    int *expert = mem_alloc(NK * sizeof *expert);
    dev->download(expert, choice.expert, E > 1 ? NK * sizeof *expert : 0);

    /* The experts are those that it chose: in bf16 nearly equal logits may be ranked otherwise. */
    for (int t = 0; t < N; t++) {
        const double rms = sqrt(dot_of(x + t*C, x + t*C, C) / C + 1e-6);
        double sum = 0, weight[8];
        for (int c = 0; c < C; c++) y[c] = x[t*C + c] / rms * norm[c], want[t*C + c] = x[t*C + c];
        for (int i = 0; i < P; i++) want_plain[t*P + i] = dot_of(y, plain + i*C, C);
        for (int k = 0; k < K; k++) {
            const int e = expert[t*K + k];
            weight[k] = E > 1 ? exp(dot_of(y, router + e*C, C) + (s->biases ? added[e] : 0)) : 1;
            sum += weight[k];
            for (int j = 0; j < k; j++) check(expert[t*K + j] != e, "experts of a token differ");
        }
        for (int k = 0; k < K; k++) {
            const int e = expert[t*K + k];
            for (int i = 0; i < F; i++) {
                double pre[2] = { 0, 0 };
                for (int h = 0; h < O / F; h++)
                    pre[h] = dot_of(y, up + ((size_t)(e * O + h*F + i)) * (size_t)C, C)
                           + (s->biases ? up_bias[e * O + h*F + i] : 0);
                act[i] = gate_of(s, pre[0], pre[1]);
            }
            for (int c = 0; c < C; c++)
                want[t*C + c] += weight[k] / sum * (dot_of(act, down + ((size_t)(e * C + c)) * (size_t)F, F)
                                                    + (s->biases ? down_bias[e * C + c] : 0));
        }
    }
    const double bound = X == 2 ? 0.02 : 1e-5;
    check_error(relative_error(got, want, (size_t)(N * C)), bound,
                "%s decode in, out: N=%d C=%d F=%d E=%d f=%d format=%d%s", dev->name, N, C, F, E, s->f, s->format,
                s->biases ? " biases" : "");
    check_error(relative_error(got_plain, want_plain, (size_t)(N * P)), bound,
                "%s decode in: its plain product, N=%d C=%d E=%d format=%d", dev->name, N, C, E, s->format);
    floatX *all[] = { dx, dnorm, drouter, dup_bias, dadded, ddown_bias, dact, out, dplain };
    for (size_t i = 0; i < COUNT(all); i++) dev->release(all[i]);
    const Weight weights[] = { wup, wdown, wplain };
    for (int i = 0; i < 3; i++) dev->release((void *)weights[i].at), dev->release((void *)weights[i].scale);
    dev->release(choice.expert), dev->release(choice.weight);
    free_each(x, norm, router, up, down, plain, up_bias, down_bias, added, y, want, want_plain, got, got_plain, act,
              expert);
}
void check_decoded_mlp(const Device *dev) {
    static const MlpCase cases[] = {
        { 1, 160, 96, 5, 2, SWIGLU, OF_FLOATX, 0 },  { 1, 2880, 64, 3, 2, CLAMPED, OF_FLOATX, 1 },
        { 1, 160, 96, 5, 2, SWIGLU, OF_FP8, 0 },     { 1, 640, 288, 3, 2, CLAMPED, OF_FP8, 1 },
        { 1, 2304, 96, 1, 1, RELU2, OF_FP8, 0 },     { 3, 640, 288, 5, 2, SWIGLU, OF_FP8, 1 },
        { 1, 1120, 96, 5, 2, CLAMPED, OF_MXFP4, 1 }, { 1, 2208, 2080, 5, 4, SWIGLU, OF_MXFP4, 0 },
        { 4, 1120, 96, 5, 2, CLAMPED, OF_MXFP4, 1 }, { 2, 288, 160, 1, 1, IDENTITY, OF_FP8, 0 },
        { 2, 160, 96, 5, 2, CLAMPED, OF_FLOATX, 1 }, { 1, 4640, 32, 40, 3, SWIGLU, OF_FP8, 0 },
        { 8, 1056, 96, 20, 4, SWIGLU, OF_FP8, 1 },   { 7, 2880, 160, 9, 4, CLAMPED, OF_MXFP4, 1 },
        { 1, 4128, 96, 3, 2, CLAMPED, OF_MXFP4, 1 },
    };
    for (size_t i = 0; i < COUNT(cases) && dev->decode; i++) {
        const MlpCase *s = &cases[i];
        if (dev->decode->fits(s->N, s->C, s->F, s->E, s->K, s->format)) check_decoded_mlp_of(dev, s);
    }
}
