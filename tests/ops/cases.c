/* cases.c: see cases.h. The tools, a constructor for each operation as in kernels.h, the list. */
#include "cases.h"
#include "llmc/base/random.h"
#include <stdlib.h>
#include <string.h>

uint64_t case_seed = 1;

/* ---- building a case ------------------------------------------------------------------------- */

typedef void Call(const Device *d, const Case *c, void *const *b);
static const int ladder[] = { 0, 1, 7, 63, 64, 65, 127, 128, 129 },
    in_tiles[] = { 2*ROW_TILE, 0, ROW_TILE, 3*ROW_TILE, 0 };

/* The number of slots of tokens 0 .. n-1. */
static int slots_before(const Shape *s, int n) {
    if (s->routing != VARIED) return n * s->K;
    int count = 0;
    for (int i = 0; i < n; i++) count += (int)(random_bits(case_seed, (uint64_t)i) % (uint64_t)(s->K + 1));
    return count;
}

static Case *begin(const char *op, Call *call, const Shape *s, int exact, const char *format, ...) PRINTF(5, 6);
static Case *begin(const char *op, Call *call, const Shape *s, int exact, const char *format, ...) {
    Case *c = mem_alloc(sizeof *c);
    int n = snprintf(c->what, sizeof c->what, "%s%s ", op, exact ? " exact" : "");
    va_list args;
    va_start(args, format);
    vsnprintf(c->what + n, sizeof c->what - (size_t)n, format, args);
    va_end(args);
    c->op = op, c->call = call, c->s = *s, c->exact = exact, c->plan = -1, c->N = s->B * s->T;
    c->S = slots_before(s, c->N);
    c->C = s->C, c->eps = 1e-5f;
    return c;
}
static uint64_t key_of(const Case *c, const char *name) {
    return hash_bytes(hash_bytes(case_seed, c->what, strlen(c->what)), name, strlen(name));
}
static Buffer *add(Case *c, Role role, int dtype, const char *name, size_t n, double *value) {
    if (c->buffers == MOST_BUFFERS) fail(EXIT_USAGE, "%s: more than %d buffers", c->what, MOST_BUFFERS);
    Buffer *b = &c->buffer[c->buffers++];
    *b = (Buffer){ .name = name, .role = role, .dtype = dtype, .n = n, .value = value, .given = n };
    return b;
}
static void absent(Case *c) { add(c, INPUT, FLOATX, NULL, 0, NULL); }     /* an optional argument that is not given */

/* n normal numbers. Large buffers repeat a block of prime length: drawing takes longer than the
 * test. */
enum { PERIOD = 8191 };
static double *draw(const Case *c, const char *name, size_t n, double mean, double spread) {
    double *value = mem_alloc(n * sizeof *value);
    uint64_t key = key_of(c, name);
    for (size_t i = 0; i < n; i++)
        value[i] = i >= PERIOD ? value[i - PERIOD]
                 : c->exact ? (double)(random_bits(key, i) % 257) / 128 - 1 : mean + spread * random_normal(key, i);
    return value;
}
/* A buffer of such numbers. For timing the host sends one block, and the device repeats it. */
static int to_be_timed;
static Buffer *drawn(Case *c, Role role, int dtype, const char *name, size_t n, double mean, double spread) {
    const size_t given = to_be_timed && n > PERIOD ? PERIOD : n;
    Buffer *b = add(c, role, dtype, name, n, draw(c, name, given, mean, spread));
    b->given = given;
    return b;
}
/* These return the case, so that a constructor may end with any of them. */
static Case *in(Case *c, int dtype, const char *name, size_t n, double mean, double spread) {
    return drawn(c, INPUT, dtype, name, n, mean, spread), c;
}
static Case *bound(Case *c, Buffer *b, double stored, double summed) {
    b->stored = c->exact ? 0 : stored;
    b->summed = c->exact ? 0 : summed;
    return c;
}
static Case *out(Case *c, int dtype, const char *name, size_t n, double stored, double summed) {
    return bound(c, add(c, OUTPUT, dtype, name, n, NULL), stored, summed);
}
static Case *acc(Case *c, int dtype, const char *name, size_t n, double mean, double spread, double stored,
                double summed) {
    return bound(c, drawn(c, UPDATE, dtype, name, n, mean, spread), stored, summed);
}
/* Whole numbers from 0 to below - 1. */
static double *integers(Case *c, const char *name, size_t n, int below) {
    double *value = mem_alloc(n * sizeof *value);
    uint64_t key = key_of(c, name);
    for (size_t i = 0; i < n; i++) value[i] = (double)(random_bits(key, i) % (uint64_t)below);
    add(c, INPUT, INTEGER, name, n, value);
    return value;
}

/* A struct in the device's memory. */
static Case *bytes(Case *c, const char *name, const void *at, size_t n) {
    double *value = mem_alloc(n * sizeof *value);
    for (size_t i = 0; i < n; i++) value[i] = ((const unsigned char *)at)[i];
    return add(c, INPUT, BYTE, name, n, value), c;
}

/* The experts of the S slots; the same for every case of a shape. */
static double *chosen(const Shape *s) {
    const int N = s->B * s->T, E = s->E, K = s->K;
    const uint64_t key = hash_bytes(case_seed, s->name, strlen(s->name));
    double *expert = mem_alloc((size_t)N * (size_t)K * sizeof *expert);
    const int *counts = s->routing == IN_TILES ? in_tiles : s->routing == LADDER ? ladder : NULL;
    int next = 0, left = counts ? counts[0] : 0;
    for (int n = 0, i = 0; n < N; n++)
        for (const int from = i, to = i + slots_before(s, n + 1) - slots_before(s, n); i < to; i++) {
        int e = (int)(random_bits(key, (uint64_t)i) % (uint64_t)E);
        if (s->routing == ONE) e = E / 2;
        if (s->routing == HALF) e |= 1;
        if (counts) { while (!left) left = counts[++next]; left--; e = next; }
        for (int again = 1; again && s->routing != ONE; ) {                 /* this token must not have it already */
            again = 0;
            for (int j = from; j < i; j++) again |= (int)expert[j] == e;
            if (again) e = (e + (s->routing == HALF ? 2 : 1)) % E;
        }
        expert[i] = e;
    }
    for (int i = N - 1; i > 0 && counts; i--) {               /* K = 1: shuffles the tokens */
        int j = (int)(random_bits(key, (uint64_t)(N + i)) % (uint64_t)(i + 1));
        double kept = expert[i];
        expert[i] = expert[j], expert[j] = kept;
    }
    return expert;
}
/* The plan of these: rows in the order of experts, and of slots within an expert. */
static void first_slots(Case *c) {
    double *first = mem_alloc(((size_t)c->N + 1) * sizeof *first);
    for (int n = 0; n <= c->N; n++) first[n] = slots_before(&c->s, n);
    add(c, INPUT, INTEGER, "first", (size_t)c->N + 1, first);
}
static int unplanned;                                       /* 1: cases are built without a plan */
static Case *routed(Case *c) {
    if (unplanned) return c;
    const int S = c->S, E = c->s.E;
    double *expert = chosen(&c->s), *start = mem_alloc((size_t)(E + 1) * sizeof *start);
    double *slot = mem_alloc((size_t)S * sizeof *slot), *token = mem_alloc((size_t)S * sizeof *token);
    double *row = mem_alloc((size_t)S * sizeof *row), *next = mem_alloc((size_t)E * sizeof *next);
    for (int i = 0; i < S; i++) start[(int)expert[i] + 1]++;
    for (int e = 0; e < E; e++) start[e + 1] += next[e] = start[e];
    for (int n = 0, i = 0; n < c->N; n++) for (const int to = slots_before(&c->s, n + 1); i < to; i++) {
        const int at = (int)next[(int)expert[i]]++;
        slot[at] = i, token[at] = n, row[i] = at;
    }
    free(next);
    c->plan = c->buffers;
    add(c, INPUT, INTEGER, "start", (size_t)E + 1, start);
    add(c, INPUT, INTEGER, "slot_of_row", (size_t)S, slot);
    add(c, INPUT, INTEGER, "token_of_row", (size_t)S, token);
    add(c, INPUT, INTEGER, "row_of_slot", (size_t)S, row);
    if (c->s.routing == VARIED) first_slots(c);
    return free(expert), c;
}
static Case *load(Case *c, int times) {
    double *expert = chosen(&c->s), *count = mem_alloc((size_t)c->s.E * sizeof *count);
    for (int i = 0; i < c->S; i++) count[(int)expert[i]] += times;
    add(c, INPUT, INTEGER, "load", (size_t)c->s.E, count);
    return free(expert), c;
}

/* The call of an operation, from the buffers b and the arguments in c. */
static Plan plan_at(const Case *c, void *const *b) {
    Plan p = { .N = c->N, .E = c->s.E, .K = c->s.K, .S = c->S };
    if (c->plan < 0) return p;
    p.start = b[c->plan];
    p.slot_of_row = b[c->plan + 1];
    p.token_of_row = b[c->plan + 2];
    p.row_of_slot = b[c->plan + 3];
    if (c->s.routing == VARIED) p.first = b[c->plan + 4];
    return p;
}
#define RUN(op, operation, ...) static void run_##op(const Device *d, const Case *c, void *const *b) { \
    Plan plan = plan_at(c, b); \
    (void)plan; \
    operation(__VA_ARGS__); \
}
#define CALL(op, ...) RUN(op, d->op, __VA_ARGS__)
#define CALL_FP8(op, ...) RUN(fp8_##op, d->fp8->op, __VA_ARGS__)
#define BEGIN(op, s, exact, ...) begin(#op, run_##op, s, exact, __VA_ARGS__)

static Case *backward_of(Case *c, Case *forward) { c->forward[0] = forward; return c; }

static const char *const rows_name[] = { "token", "slot", "grouped" };
static size_t rows_in(const Case *c, Rows rows) { return (size_t)(rows == BY_TOKEN ? c->N : c->S); }
static size_t times(int a, int b) { return (size_t)a * (size_t)b; }
/* A sum of n products has an error of about sqrt(n) roundings. */
static double sum_error(int n) { return 2 * sqrt(n) + 2; }

/* ---- embedding ------------------------------------------------------------------------------- */

CALL(embed_forward, b[0], b[1], b[2], c->N, c->C)
static Case *embed_forward(const Shape *s) {
    Case *c = BEGIN(embed_forward, s, 0, "N=%d V=%d C=%d", s->B * s->T, s->V, s->C);
    out(c, FLOATX, "out", times(c->N, c->C), 0, 0);                         /* a copy: exact */
    integers(c, "token", (size_t)c->N, s->V);
    return in(c, FLOATX, "weight", times(s->V, c->C), 0, 1);
}
CALL(embed_backward, b[0], b[1], b[2], c->N, c->s.V, c->C)
/* few: 90 % of tokens are 11 ids spread over the vocabulary (frequent words; multi-digit keys). */
static Case *embed_backward(const Shape *s, int repeats, int exact) {
    Case *c = BEGIN(embed_backward, s, exact, "%sN=%d V=%d C=%d", repeats ? "few " : "", s->B * s->T, s->V, s->C);
    acc(c, REAL, "dweight", times(s->V, c->C), 0, 1, 0, 1 + c->N);          /* all N may add to one row */
    in(c, FLOATX, "dout", times(c->N, c->C), 0, 1);
    double *token = integers(c, "token", (size_t)c->N, s->V);
    for (int n = 0; repeats && n < c->N; n++)
        if (n % 10) token[n] = (double)((size_t)token[n] % 11 * (size_t)(s->V - 1) / 10);
    return backward_of(c, embed_forward(s));
}

/* ---- rmsnorm --------------------------------------------------------------------------------- */

CALL(rmsnorm_forward, b[0], b[1], b[2], ((Norm){ b[3], c->eps }), c->N, c->C)
static Case *rmsnorm_forward(const Shape *s) {
    Case *c = BEGIN(rmsnorm_forward, s, 0, "N=%d C=%d", s->B * s->T, s->C);
    out(c, FLOATX, "out", times(c->N, c->C), 4, 0);                     /* rounded twice, times an rstd with errors */
    out(c, REAL, "rstd", (size_t)c->N, 0, 4);                           /* a mean of positive numbers, under a root */
    in(c, FLOATX, "inp", times(c->N, c->C), 0, 1);
    return in(c, FLOATX, "weight", (size_t)c->C, 1, 0.2);
}
CALL(rmsnorm_backward, b[0], b[1], b[2], b[3], ((Norm){ b[4], c->eps }), b[5], c->N, c->C)
static Case *rmsnorm_backward(const Shape *s) {
    Case *c = BEGIN(rmsnorm_backward, s, 0, "N=%d C=%d", s->B * s->T, s->C);
    acc(c, FLOATX, "dinp", times(c->N, c->C), 0, 1, 8, 0);
    acc(c, REAL, "dweight", (size_t)c->C, 0, 1, 8, 0);                      /* a sum of x rstd rounded to floatX */
    in(c, FLOATX, "dout", times(c->N, c->C), 0, 1);
    in(c, FLOATX, "inp", times(c->N, c->C), 0, 1);
    in(c, FLOATX, "weight", (size_t)c->C, 1, 0.2);
    in(c, REAL, "rstd", (size_t)c->N, 1, 0.1);
    return backward_of(c, rmsnorm_forward(s));
}

/* ---- rope ------------------------------------------------------------------------------------ */

static void rotations(Case *c) {
    const size_t n = times(c->s.T, c->s.D);
    double *table = mem_alloc(n * sizeof *table);
    for (size_t i = 0; i < n; i++) {
        double angle = 6.283185307179586 * random_uniform(key_of(c, "table"), i / 2);
        table[i] = i % 2 ? sin(angle) : cos(angle);
    }
    add(c, INPUT, REAL, "table", n, table);
    integers(c, "position", (size_t)c->N, c->s.T);
}
CALL(rope, b[0], b[1], b[2], c->direction, c->N, c->stride, c->heads, c->s.D)
static Case *rope(const Shape *s, int direction, int stride, int heads) {
    Case *c = BEGIN(rope, s, 0, "%+d N=%d stride=%d heads=%d D=%d", direction, s->B * s->T, stride, heads, s->D);
    c->direction = direction, c->stride = stride, c->heads = heads;
    acc(c, FLOATX, "x", times(c->N, stride), 0, 1, 2, 0);
    rotations(c);
    return c;
}
CALL(norm_rope_forward, b[0], b[1], b[2], b[3], ((Norm){ b[4], c->eps }), c->N, c->stride, c->heads, c->s.D)
static Case *norm_rope_forward(const Shape *s, int keep, int stride, int heads) {
    Case *c = BEGIN(norm_rope_forward, s, 0, "%sN=%d stride=%d heads=%d D=%d", keep ? "" : "forgets ", s->B * s->T,
                    stride, heads, s->D);
    c->stride = stride, c->heads = heads;
    acc(c, FLOATX, "x", times(c->N, stride), 0, 1, 4, 0);
    if (keep) out(c, FLOATX, "before", times(c->N, heads * s->D), 0, 0);
    else absent(c);
    rotations(c);
    return in(c, FLOATX, "weight", (size_t)s->D, 1, 0.2);
}
CALL(norm_rope_backward, b[0], b[1], b[2], b[3], b[4], ((Norm){ b[5], c->eps }), c->N, c->stride, c->heads, c->s.D)
static Case *norm_rope_backward(const Shape *s, int stride, int heads) {
    Case *c = BEGIN(norm_rope_backward, s, 0, "N=%d stride=%d heads=%d D=%d", s->B * s->T, stride, heads, s->D);
    c->stride = stride, c->heads = heads;
    c->eps = 0.1f;                          /* of two numbers near zero dx would be a small difference of large terms */
    acc(c, FLOATX, "dx", times(c->N, stride), 0, 1, 8, 8);
    acc(c, REAL, "dweight", (size_t)s->D, 0, 1, 8, 8);
    in(c, FLOATX, "before", times(c->N, heads * s->D), 0, 1);
    rotations(c);
    return in(c, FLOATX, "weight", (size_t)s->D, 1, 0.2);
}

/* ---- columns --------------------------------------------------------------------------------- */

#define COLUMNS(op, result, ...) \
    CALL(columns_##op, b[0], b[1], c->N, c->stride, c->count, c->C) \
    static Case *columns_##op(const Shape *s, int stride, int from) { \
        const int N = s->B * s->T, width = s->G * s->D; \
        Case *c = BEGIN(columns_##op, s, 0, "N=%d stride=%d from=%d width=%d", N, stride, from, width); \
        c->stride = stride, c->count = from, c->C = width; \
        result; \
        __VA_ARGS__; \
        return c; \
    }
COLUMNS(add, acc(c, FLOATX, "x", times(N, stride), 0, 1, 1, 0), in(c, FLOATX, "part", times(N, width), 0, 1))
COLUMNS(put, acc(c, FLOATX, "x", times(N, stride), 0, 1, 0, 0), in(c, FLOATX, "part", times(N, width), 0, 1))
COLUMNS(take, out(c, FLOATX, "part", times(N, width), 0, 0), in(c, FLOATX, "x", times(N, stride), 0, 1))

/* ---- values from a table --------------------------------------------------------------------- */

CALL(value_forward, b[0], b[1], b[2], b[3], c->N, c->s.G, c->s.D)
static Case *value_forward(const Shape *s, int gate) {
    Case *c = BEGIN(value_forward, s, 0, "%sN=%d G=%d D=%d", gate ? "gate " : "", s->B * s->T, s->G, s->D);
    acc(c, FLOATX, "kv", times(c->N, 2 * s->G * s->D), 0, 1, 1, gate ? 8 : 0);
    if (gate) in(c, FLOATX, "gate", times(c->N, s->G), 0, 2); else absent(c);
    integers(c, "token", (size_t)c->N, s->V);
    return in(c, FLOATX, "table", times(s->V, s->G * s->D), 0, 1);
}
CALL(value_backward, b[0], b[1], b[2], b[3], b[4], b[5], c->N, c->s.G, c->s.D)
static Case *value_backward(const Shape *s) {
    Case *c = BEGIN(value_backward, s, 0, "N=%d G=%d D=%d", s->B * s->T, s->G, s->D);
    out(c, FLOATX, "dvalues", times(c->N, s->G * s->D), 1, 8);
    out(c, FLOATX, "dgate", times(c->N, s->G), 1, 8 + 2 * sqrt(s->D));
    in(c, FLOATX, "dkv", times(c->N, 2 * s->G * s->D), 0, 1);
    in(c, FLOATX, "gate", times(c->N, s->G), 0, 2);
    integers(c, "token", (size_t)c->N, s->V);
    return in(c, FLOATX, "table", times(s->V, s->G * s->D), 0, 1);
}

/* ---- half of a key of the token before: positions begin again -------------------------------- */

CALL(shift_keys, b[0], b[1], b[2], b[3], c->N, c->s.G, c->s.D)
static Case *shift_keys(const Shape *s, int backward) {
    Case *c = BEGIN(shift_keys, s, 0, "%sN=%d G=%d D=%d", backward ? "backward " : "", s->B * s->T, s->G, s->D);
    acc(c, FLOATX, "kv", times(c->N, 2 * s->G * s->D), 0, 1, backward, 0);
    in(c, FLOATX, "own", times(c->N, s->G * s->D), 0, 1);
    if (backward) absent(c); else in(c, FLOATX, "before", times(c->N, s->G * s->D), 0, 1);
    integers(c, "position", (size_t)c->N, 3);
    return c;
}

/* ---- mix: given has bits 1, first, and 2, extra ---------------------------------------------- */

static Mix mix_at(void *const *b, int i) { return (Mix){ b[i], b[i + 1], b[i + 2] }; }
static Case *mix_inputs(Case *c, int given) {
    if (given & 1) in(c, FLOATX, "first", times(c->N, c->C), 0, 1); else absent(c);
    if (given & 2) in(c, FLOATX, "extra", times(c->N, c->C), 0, 1); else absent(c);
    return in(c, FLOATX, "scalars", 3, 0.2, 0.3);
}
CALL(mix_forward, b[0], mix_at(b, 1), c->N, c->C)
static Case *mix_forward(const Shape *s, int given) {
    Case *c = BEGIN(mix_forward, s, 0, "%d N=%d C=%d", given, s->B * s->T, s->C);
    acc(c, FLOATX, "x", times(c->N, c->C), 0, 1, 1, 8);
    return mix_inputs(c, given);
}
CALL(mix_backward, b[0], b[1], b[2], b[3], b[4], mix_at(b, 5), c->N, c->C)
static Case *mix_backward(const Shape *s, int given) {
    Case *c = BEGIN(mix_backward, s, 0, "%d N=%d C=%d", given, s->B * s->T, s->C);
    acc(c, FLOATX, "d", times(c->N, c->C), 0, 1, 1, 8);
    if (given & 1) acc(c, FLOATX, "dfirst", times(c->N, c->C), 0, 1, 1, 8); else absent(c);
    if (given & 2) acc(c, FLOATX, "dextra", times(c->N, c->C), 0, 1, 1, 8); else absent(c);
    acc(c, REAL, "dscalars", 3, 0, 1, 0, 4 * sum_error(c->N * c->C) + 16);
    in(c, FLOATX, "out", times(c->N, c->C), 0, 1);
    return mix_inputs(c, given);
}

/* ---- bigrams: positions begin again, and of new tokens those before are in the cache --------- */

CALL(bigram_rows, b[0], b[1], b[2], b[3], b[4], b[5], c->N, c->count, c->used)
static Case *bigram_rows(const Shape *s, int cached) {
    Case *c = BEGIN(bigram_rows, s, 0, "%sN=%d V=%d", cached ? "cached " : "", s->B * s->T, s->V);
    c->count = cached ? 1 : s->T, c->used = 3 * s->V + 1;
    add(c, OUTPUT, INTEGER, "row", (size_t)c->N, NULL);
    add(c, OUTPUT, INTEGER, "before", (size_t)c->N, NULL);
    if (cached) { integers(c, "seen", times(c->N, 3), s->V); c->buffer[2].role = UPDATE; } else absent(c);
    integers(c, "token", (size_t)c->N, s->V);
    double *position = integers(c, "position", (size_t)c->N, 4);
    for (int n = 0; n < c->N; n++) if (!cached && n % s->T == 0) position[n] = 0;
    if (!cached) { absent(c); return c; }
    double *at = integers(c, "at", (size_t)c->N, 2);
    for (int n = 0; n < c->N; n++) at[n] = 3 * (c->N - 1 - n) + 1 + at[n];
    return c;
}
CALL(flip_signs, b[0], b[1], b[2], c->N, c->C)
static Case *flip_signs(const Shape *s) {
    Case *c = BEGIN(flip_signs, s, 0, "N=%d C=%d", s->B * s->T, s->C);
    acc(c, FLOATX, "x", times(c->N, c->C), 0, 1, 0, 0);
    integers(c, "token", (size_t)c->N, s->V);
    integers(c, "before", (size_t)c->N, s->V + 1);
    return c;
}

/* ---- shared keys: two thirds of a key are its head's own, and the values as wide as that or as
 *      keys ------------------------------------------------------------------------------------ */

static int own_key(const Shape *s) { return s->D * 2 / 3; }
CALL(shared_keys_forward, b[0], b[1], b[2], c->N, c->s.G, c->s.D, c->count, c->C)
static Case *shared_keys_forward(const Shape *s, int value) {
    const int key = own_key(s);
    Case *c = BEGIN(shared_keys_forward, s, 0, "N=%d G=%d D=%d key=%d value=%d", s->B * s->T, s->G, s->D, key, value);
    c->count = key, c->C = value;
    out(c, FLOATX, "kv", times(c->N, 2 * s->G * s->D), 0, 0);
    in(c, FLOATX, "parts", times(c->N, s->G * (key + value)), 0, 1);
    return in(c, FLOATX, "shared", times(c->N, s->D - key), 0, 1);
}
CALL(shared_keys_backward, b[0], b[1], b[2], c->N, c->s.G, c->s.D, c->count, c->C)
static Case *shared_keys_backward(const Shape *s, int value) {
    const int key = own_key(s);
    Case *c = BEGIN(shared_keys_backward, s, 0, "N=%d G=%d D=%d key=%d value=%d", s->B * s->T, s->G, s->D, key, value);
    c->count = key, c->C = value;
    out(c, FLOATX, "dparts", times(c->N, s->G * (key + value)), 0, 0);
    out(c, FLOATX, "dshared", times(c->N, s->D - key), 1, s->G);
    in(c, FLOATX, "dkv", times(c->N, 2 * s->G * s->D), 0, 1);
    return backward_of(c, shared_keys_forward(s, value));
}

/* ---- residual and dropout -------------------------------------------------------------------- */

enum { SITE = 5 };
CALL(residual, b[0], b[1], b[2], ((Dropout){ c->p, b[3], SITE, c->scale }), c->buffer[0].n)
static Case *residual(const Shape *s, float p, float scale) {
    Case *c = BEGIN(residual, s, 0, "p=%g scale=%g n=%d", (double)p, (double)scale, s->B * s->T * s->C);
    c->p = p, c->scale = scale, c->key = 0x123456789abcdef, c->site = SITE;
    out(c, FLOATX, "out", times(c->N, c->C), 1, 4);                         /* stored once; 1/(1-p), product, sum */
    in(c, FLOATX, "residual", times(c->N, c->C), 0, 1);
    in(c, FLOATX, "branch", times(c->N, c->C), 0, 1);
    if (p > 0) bytes(c, "key", &c->key, sizeof c->key); else absent(c);
    return c;
}
CALL(dropout, b[0], b[1], ((Dropout){ c->p, b[2], SITE, c->scale }), c->buffer[0].n)
static Case *dropout(const Shape *s, float p, float scale) {
    Case *c = BEGIN(dropout, s, 0, "p=%g scale=%g n=%d", (double)p, (double)scale, s->B * s->T * s->C);
    c->p = p, c->scale = scale, c->key = 0xfedcba987654321, c->site = SITE;
    out(c, FLOATX, "out", times(c->N, c->C), 1, 4);
    in(c, FLOATX, "inp", times(c->N, c->C), 0, 1);
    if (p > 0) bytes(c, "key", &c->key, sizeof c->key); else absent(c);
    return c;
}
CALL(scale, b[0], (double)c->scale, c->buffer[0].n)
static Case *scale(const Shape *s) {
    Case *c = BEGIN(scale, s, 0, "n=%d", s->B * s->T * s->C);
    c->scale = 0.22f;
    return acc(c, FLOATX, "x", times(c->N, c->C), 0, 1, 1, 1);
}

/* ---- matmul: each stored element is rounded once --------------------------------------------- */

CALL(matmul_forward, b[0], b[1], b[2], c->N, c->C, c->O)
static Case *matmul_forward(const Shape *s, int rows, int C, int O, int exact) {
    Case *c = BEGIN(matmul_forward, s, exact, "N=%d C=%d O=%d", rows, C, O);
    c->N = rows, c->C = C, c->O = O;
    out(c, FLOATX, "out", times(rows, O), 1, sum_error(C));
    in(c, FLOATX, "inp", times(rows, C), 0, 1);
    in(c, FLOATX, "weight", times(O, C), 0, 1 / sqrt(C));
    return c;
}
CALL(matmul_backward_input, b[0], b[1], b[2], c->N, c->C, c->O, c->how)
static Case *matmul_backward_input(const Shape *s, int rows, int C, int O, Write how, int exact) {
    Case *c = BEGIN(matmul_backward_input, s, exact, "%s N=%d C=%d O=%d", how == ADD ? "ADD" : "SET", rows, C, O);
    c->N = rows, c->C = C, c->O = O, c->how = how;
    if (how == ADD) acc(c, FLOATX, "dinp", times(rows, C), 0, 1, 1, sum_error(O));
    else            out(c, FLOATX, "dinp", times(rows, C), 1, sum_error(O));
    in(c, FLOATX, "dout", times(rows, O), 0, 1);
    in(c, FLOATX, "weight", times(O, C), 0, 1 / sqrt(C));
    return backward_of(c, matmul_forward(s, rows, C, O, exact));
}
static void weight_gradient(Case *c, size_t n, int rows, Write how) {
    c->how = how;
    if (how == ADD)           acc(c, REAL, "dweight", n, 0, 1, 0, sum_error(rows));
    else if (how == SET_ROUNDED) out(c, FLOATX, "dweight", n, 1, sum_error(rows));
    else                      out(c, REAL, "dweight", n, 0, sum_error(rows));
}
static const char *const how_name[] = { "", " add", " as floatX" };
CALL(matmul_backward_weight, b[0], b[1], b[2], c->N, c->C, c->O, c->how)
static Case *matmul_backward_weight(const Shape *s, int rows, int C, int O, Write how, int exact) {
    Case *c = BEGIN(matmul_backward_weight, s, exact, "N=%d C=%d O=%d%s", rows, C, O, how_name[how]);
    c->N = rows, c->C = C, c->O = O;
    weight_gradient(c, times(O, C), rows, how);
    in(c, FLOATX, "dout", times(rows, O), 0, 1);
    in(c, FLOATX, "inp", times(rows, C), 0, 1);
    return backward_of(c, matmul_forward(s, rows, C, O, exact));
}

/* ---- ParallelLinear -------------------------------------------------------------------------- */

CALL(parallel_linear_forward, b[0], b[1], b[2], &plan, c->C, c->O, c->from, c->to)
static Case *parallel_linear_forward(const Shape *s, int C, int O, Rows from, Rows to, int exact) {
    Case *c = BEGIN(parallel_linear_forward, s, exact, "%s>%s %s C=%d O=%d", rows_name[from], rows_name[to],
                    s->name, C, O);
    c->C = C, c->O = O, c->from = from, c->to = to;
    out(c, FLOATX, "out", times(c->S, O), 1, sum_error(C));
    in(c, FLOATX, "inp", rows_in(c, from) * (size_t)C, 0, 1);
    in(c, FLOATX, "weight", times(s->E * O, C), 0, 1 / sqrt(C));
    return routed(c);
}
CALL(parallel_linear_backward_input, b[0], b[1], b[2], &plan, c->C, c->O, c->to, c->from)
static Case *parallel_linear_backward_input(const Shape *s, int C, int O, Rows dinp_rows, Rows dout_rows, int exact) {
    Case *c = BEGIN(parallel_linear_backward_input, s, exact, "%s<%s %s C=%d O=%d", rows_name[dinp_rows],
                    rows_name[dout_rows], s->name, C, O);
    c->C = C, c->O = O, c->to = dinp_rows, c->from = dout_rows;
    out(c, FLOATX, "dinp", times(c->S, C), 1, sum_error(O));
    in(c, FLOATX, "dout", rows_in(c, dout_rows) * (size_t)O, 0, 1);
    in(c, FLOATX, "weight", times(s->E * O, C), 0, 1 / sqrt(C));
    routed(c);
    if (dout_rows != BY_TOKEN) c->forward[0] = parallel_linear_forward(s, C, O, dinp_rows, dout_rows, exact);
    return c;
}
CALL(parallel_linear_backward_weight, b[0], b[1], b[2], &plan, c->C, c->O, c->from, c->to, c->how)
static Case *parallel_linear_backward_weight(const Shape *s, int C, int O, Rows inp_rows, Rows dout_rows,
                                             Write how, int exact) {
    Case *c = BEGIN(parallel_linear_backward_weight, s, exact, "%s,%s %s C=%d O=%d%s", rows_name[inp_rows],
                    rows_name[dout_rows], s->name, C, O, how_name[how]);
    c->C = C, c->O = O, c->from = inp_rows, c->to = dout_rows;
    weight_gradient(c, times(s->E * O, C), c->S, how);
    in(c, FLOATX, "dout", rows_in(c, dout_rows) * (size_t)O, 0, 1);
    in(c, FLOATX, "inp", rows_in(c, inp_rows) * (size_t)C, 0, 1);
    routed(c);
    if (dout_rows != BY_TOKEN) c->forward[0] = parallel_linear_forward(s, C, O, inp_rows, dout_rows, exact);
    return c;
}

/* ---- router ---------------------------------------------------------------------------------- */

static const char *const scores_name[] = { "topk_softmax", "softmax_topk", "softmax_renorm", "sigmoid_topk",
                                           "sigmoid_each" };

/* Logits are multiples of 1/64. Among equal ones the lower id must win on every device; the others
 * are so far apart that no rounding can change their order. */
static double *logits_of(Case *c, double spread) {
    size_t n = times(c->N, c->s.E);
    double *x = draw(c, "logits", n, 0, spread);
    for (size_t i = 0; i < n; i++) x[i] = fmin(fmax(round(x[i] * 64) / 64, -2.5 * spread), 2.5 * spread);
    add(c, INPUT, FLOATX, "logits", n, x);
    return x;
}
static void lse_of(Case *c, const double *logits) {
    double *lse = mem_alloc((size_t)c->N * sizeof *lse);
    for (int n = 0; n < c->N; n++) {
        double sum = 0;
        for (int e = 0; e < c->s.E; e++) sum += exp(logits[(size_t)n * (size_t)c->s.E + (size_t)e]);
        lse[n] = log(sum);
    }
    add(c, INPUT, REAL, "lse", (size_t)c->N, lse);
}
CALL(router_forward, b[0], b[1], b[2], b[3], b[4], c->scores, c->groups, c->forced, c->N, c->s.E, c->s.K)
static Case *router_forward_of_groups(const Shape *s, Scores scores, int bias, int forced, int wide, Groups groups) {
    char in_groups[40] = "";
    if (groups.count) snprintf(in_groups, sizeof in_groups, " %d of %d groups%s", groups.chosen, groups.count,
                               groups.by_best ? " by best" : "");
    Case *c = BEGIN(router_forward, s, 0, "%s%s%s%s%s N=%d E=%d K=%d", scores_name[scores], bias ? " bias" : "",
                    forced ? " forced" : "", wide ? " wide" : "", in_groups, s->B * s->T, s->E, s->K);
    c->groups = groups, c->scores = scores, c->forced = forced;
    out(c, INTEGER, "expert", (size_t)c->S, 0, 0);
    out(c, REAL, "weight", (size_t)c->S, 0, wide ? 8 + 25 : 8);          /* exp(l - lse): relative to lse, up to 25 */
    out(c, REAL, "lse", (size_t)c->N, 0, 8);
    logits_of(c, wide ? 10 : 1.5);                                          /* wide: in f32, sigmoid(17) is 1 */
    if (bias) {
        double *bias_of = draw(c, "bias", (size_t)s->E, 0, 0.3);
        /* no ties here */
        for (int e = 0; e < s->E; e++) bias_of[e] = (round(bias_of[e] * 64) + e / (2.0 * s->E)) / 64;
        add(c, INPUT, REAL, "bias", (size_t)s->E, bias_of);
    } else absent(c);
    return c;
}
static Case *router_forward(const Shape *s, Scores scores, int bias, int forced, int wide) {
    return router_forward_of_groups(s, scores, bias, forced, wide, (Groups){ 0 });
}
/* Targets, if a third of the tokens is filler. As if two other ranks had the same load; but of
 * filler each has another number. */
static void counted_of(Case *c, int filled) {
    double *target = filled ? mem_alloc((size_t)c->N * sizeof *target) : NULL, *tokens = mem_alloc(sizeof *tokens);
    for (int n = 0; n < c->N; n++) {
        const int is_filler = filled && random_bits(case_seed, (uint64_t)n) % 3 == 0;
        if (filled) target[n] = is_filler ? FILLER : n % 2 - 1;
        *tokens += is_filler ? 0 : 3;
    }
    *tokens += filled && *tokens > 0;
    if (filled) add(c, INPUT, INTEGER, "target", (size_t)c->N, target); else absent(c);
    add(c, INPUT, INTEGER, "tokens", 1, tokens);
    c->ranks = 3;
}
CALL(router_losses, b[0], b[1], b[2], b[3], (Counted){ b[4], b[5], c->ranks }, c->scores, c->N, c->s.E, c->s.K)
static Case *router_losses(const Shape *s, Scores scores, int filled) {
    Case *c = BEGIN(router_losses, s, 0, "%s%s %s N=%d E=%d K=%d", scores_name[scores], filled ? " filled" : "",
                    s->name, s->B * s->T, s->E, s->K);
    c->scores = scores;
    out(c, REAL, "loss", 2, 0, 16);
    lse_of(c, logits_of(c, 1.5));
    load(c, 3);
    counted_of(c, filled);
    return c;
}
CALL(router_backward, b[0], b[1], b[2], b[3], b[4], c->s.routing == VARIED ? b[10] : NULL, b[5], b[6], c->balance,
     c->zloss, (Counted){ b[7], b[8], c->ranks }, c->scores, c->N, c->s.E, c->s.K)
static Case *router_backward(const Shape *s, Scores scores, float balance, float zloss, int filled) {
    Case *c = BEGIN(router_backward, s, 0, "%s%s %s balance=%g z=%g N=%d E=%d K=%d", scores_name[scores],
                    filled ? " filled" : "", s->name, (double)balance, (double)zloss, s->B * s->T, s->E, s->K);
    c->scores = scores, c->balance = balance, c->zloss = zloss;
    out(c, FLOATX, "dlogits", times(c->N, s->E), 1, 8);
    in(c, REAL, "dweight", (size_t)c->S, 0, 1);
    in(c, REAL, "weight", (size_t)c->S, 1.0 / s->K, 0.2 / s->K);
    int lse = c->buffers++;
    add(c, INPUT, INTEGER, "expert", (size_t)c->S, chosen(s));
    double *logits = logits_of(c, 1.5);
    load(c, 3);
    counted_of(c, filled);
    int end = c->buffers;                                   /* lse comes before the logits, from which it is computed */
    c->buffers = lse, lse_of(c, logits), c->buffers = end;
    double *dloss = mem_alloc(2 * sizeof *dloss);   /* not an argument: the upstream gradient for the gradient check */
    dloss[0] = balance, dloss[1] = zloss;
    add(c, INPUT, REAL, "dloss", 2, dloss);
    if (s->routing == VARIED) first_slots(c);
    c->forward[0] = router_forward(s, scores, 0, 0, 0);
    c->forward[1] = router_losses(s, scores, filled);
    return c;
}
CALL(scale_weights, b[0], b[1], c->scale, (size_t)c->S)
static Case *scale_weights(const Shape *s) {
    Case *c = BEGIN(scale_weights, s, 0, "n=%d", s->B * s->T * s->K);
    c->scale = 1.7f;
    out(c, REAL, "out", (size_t)c->S, 0, 1);
    return in(c, REAL, "weight", (size_t)c->S, 0, 1);
}
CALL(route_plan, &plan, b[4], b[5])
static Case *route_plan(const Shape *s) {
    Case *c = BEGIN(route_plan, s, 0, "%s N=%d E=%d K=%d", s->name, s->B * s->T, s->E, s->K);
    c->plan = 0;
    out(c, INTEGER, "start", (size_t)s->E + 1, 0, 0);
    out(c, INTEGER, "slot_of_row", (size_t)c->S, 0, 0);
    out(c, INTEGER, "token_of_row", (size_t)c->S, 0, 0);
    out(c, INTEGER, "row_of_slot", (size_t)c->S, 0, 0);
    out(c, INTEGER, "load", (size_t)s->E, 0, 0);
    add(c, INPUT, INTEGER, "expert", (size_t)c->S, chosen(s));
    return c;
}
CALL(route_discount, b[0], b[1], b[2], c->N, c->s.K)
static Case *route_discount(const Shape *s) {
    Case *c = BEGIN(route_discount, s, 0, "%s N=%d E=%d K=%d", s->name, s->B * s->T, s->E, s->K);
    load(c, 1);
    c->buffer[0].role = UPDATE;
    add(c, INPUT, INTEGER, "choice", times(c->N, s->K), chosen(s));
    counted_of(c, 1);
    return c;
}
/* Buffers have space for more rows than there are in the end; the rest of them is set to zero. */
static void run_route_round(const Device *d, const Case *c, void *const *b) {
    Plan plan = plan_at(c, b);
    plan.first = b[4];
    for (int i = 1; i < 8; i++)
        if (i != 4 && i != 5) d->zero(b[i], c->buffer[i].n * (i == 7 ? d->real_size : sizeof(int)));
    d->route_round(&plan, b[5], b[6], b[7], b[8], b[9], b[10], c->scores, c->tile);
}
static Case *route_round(const Shape *s, Scores scores) {
    const int N = s->B * s->T, tile = N < 200 ? 4 : ROW_TILE;
    Case *c = BEGIN(route_round, s, 0, "%s %s N=%d E=%d K=%d tile=%d", scores_name[scores], s->name, N, s->E,
                    s->K, tile);
    double *expert = chosen(s);
    c->plan = 0, c->scores = scores, c->tile = tile;
    c->S += s->E * (tile - 1);
    out(c, INTEGER, "start", (size_t)s->E + 1, 0, 0);
    out(c, INTEGER, "slot_of_row", (size_t)c->S, 0, 0);
    out(c, INTEGER, "token_of_row", (size_t)c->S, 0, 0);
    out(c, INTEGER, "row_of_slot", (size_t)c->S, 0, 0);
    out(c, INTEGER, "first", (size_t)N + 1, 0, 0);
    out(c, INTEGER, "load", (size_t)s->E, 0, 0);
    out(c, INTEGER, "expert", (size_t)c->S, 0, 0);
    out(c, REAL, "weight", (size_t)c->S, 0, 8);
    add(c, INPUT, INTEGER, "choice", times(N, s->K), expert);
    lse_of(c, logits_of(c, 1.5));
    return c;
}
CALL(router_bias, b[0], b[1], c->rate, c->relative, c->s.E)
static Case *router_bias(const Shape *s, int relative) {
    Case *c = BEGIN(router_bias, s, 0, "%s%s E=%d", relative ? "relative " : "", s->name, s->E);
    c->rate = relative ? 0.1f : 0.001f, c->relative = relative;
    acc(c, REAL, "bias", (size_t)s->E, 0, 0.1, 0, relative ? 4 : 0);
    return load(c, 1);
}

/* ---- combine --------------------------------------------------------------------------------- */

CALL(combine_forward, b[0], b[1], b[2], b[3], &plan, c->C, c->from)
static Case *combine_forward(const Shape *s, Rows rows, int weight, int bias, int exact) {
    Case *c = BEGIN(combine_forward, s, exact, "%s %s%s%s C=%d", rows_name[rows], s->name,
                    weight ? " weight" : "", bias ? " bias" : "", s->C);
    c->from = rows;
    out(c, FLOATX, "out", times(c->N, c->C), 1, s->K + 1);
    in(c, FLOATX, "inp", times(c->S, c->C), 0, 1);
    if (weight) in(c, REAL, "weight", (size_t)c->S, 1.0 / s->K, 0.2 / s->K); else absent(c);
    if (bias) in(c, FLOATX, "bias", (size_t)c->C, 0, 1); else absent(c);
    return routed(c);
}

/* ---- activation ------------------------------------------------------------------------------ */

static const char *const activation_name[] = { "swiglu", "gelu", "relu2", "identity", "clamped" };

/* Some of what CLAMPED gets is clamped, and none is where the slope changes. */
static void pre(Case *c, size_t n) {
    Buffer *b = drawn(c, INPUT, FLOATX, "pre", n, 0, c->f == CLAMPED ? 4 : 1);
    for (size_t i = 0; i < b->given && c->f == CLAMPED; i++)
        if (fabs(fabs(b->value[i]) - CLAMPED_LIMIT) < 0.2) b->value[i] *= 1.1;
}

CALL(activation_forward, b[0], b[1], c->f, c->M, c->F)
static Case *activation_forward(const Shape *s, Activation f) {
    Case *c = BEGIN(activation_forward, s, 0, "%s M=%d F=%d", activation_name[f], s->B * s->T * s->K, s->F);
    c->f = f, c->M = c->S, c->F = s->F;
    out(c, FLOATX, "act", times(c->M, c->F), 8, 0);
    pre(c, times(c->M, c->F) * (IS_GATED(f) ? 2 : 1));
    return c;
}
CALL(activation_backward, b[0], b[1], b[2], b[3], b[4], b[5], c->plan < 0 ? NULL : &plan, c->from, c->f, c->M, c->F)
static Case *activation_backward(const Shape *s, Activation f, Rows rows) {          /* BY_TOKEN: dense, no weights */
    Case *c = BEGIN(activation_backward, s, 0, "%s %s %s M=%d F=%d", activation_name[f],
                    rows == BY_TOKEN ? "dense" : rows_name[rows], s->name, s->B * s->T * s->K, s->F);
    c->f = f, c->from = rows, c->M = c->S, c->F = s->F;
    out(c, FLOATX, "dpre", times(c->M, c->F) * (IS_GATED(f) ? 2 : 1), 8, 0);
    out(c, FLOATX, "wact", times(c->M, c->F), 8, 0);
    /* devices may use act rounded or not */
    if (rows != BY_TOKEN) out(c, REAL, "dweight", (size_t)c->S, 8, sum_error(c->F)); else absent(c);
    in(c, FLOATX, "da", times(c->M, c->F), 0, 1);
    pre(c, times(c->M, c->F) * (IS_GATED(f) ? 2 : 1));
    if (rows == BY_TOKEN) absent(c);
    else { in(c, REAL, "weight", (size_t)c->S, 0.5, 0.2); routed(c); }
    return backward_of(c, activation_forward(s, f));
}

CALL(expert_up_forward, d, b[0], b[1], b[2], b[3], &plan, c->f, c->C, c->F, c->from)
static Case *expert_up_forward(const Shape *s, Activation f, Rows inp_rows) {
    Case *c = BEGIN(expert_up_forward, s, 0, "%s %s %s C=%d F=%d", activation_name[f], rows_name[inp_rows], s->name,
                    s->C, s->F);
    c->f = f, c->from = inp_rows, c->F = s->F, c->O = IS_GATED(f) ? 2 * s->F : s->F;
    out(c, FLOATX, "pre", times(c->S, c->O), 1, sum_error(c->C));
    out(c, FLOATX, "act", times(c->S, c->F), 12, 2 * sum_error(c->C));
    in(c, FLOATX, "inp", rows_in(c, inp_rows) * (size_t)c->C, 0, 1);
    in(c, FLOATX, "weight", times(s->E * c->O, c->C), 0, 1 / sqrt(c->C));
    return routed(c);
}
CALL(expert_down_backward, d, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], &plan, c->f, c->C, c->F, c->from)
static Case *expert_down_backward(const Shape *s, Activation f, Rows dout_rows) {
    Case *c = BEGIN(expert_down_backward, s, 0, "%s %s %s C=%d F=%d", activation_name[f], rows_name[dout_rows], s->name,
                    s->C, s->F);
    c->f = f, c->from = dout_rows, c->F = s->F, c->O = IS_GATED(f) ? 2 * s->F : s->F;
    out(c, FLOATX, "dpre", times(c->S, c->O), 12, 2 * sum_error(c->C));
    out(c, FLOATX, "wact", times(c->S, c->F), 8, 0);
    out(c, REAL, "dweight", (size_t)c->S, 12, sum_error(c->F) + 2 * sum_error(c->C));
    add(c, SCRATCH, FLOATX, "da", times(c->S, c->F), NULL);
    in(c, FLOATX, "dout", rows_in(c, dout_rows) * (size_t)c->C, 0, 1);
    in(c, FLOATX, "down", times(s->E * c->C, c->F), 0, 1 / sqrt(c->C));
    pre(c, times(c->S, c->O));
    in(c, REAL, "weight", (size_t)c->S, 0.5, 0.2);
    return routed(c);
}

/* ---- experts in 8 bits ----------------------------------------------------------------------- */

/* Codes and their scales. Exact: small whole numbers. Else any but NaN, about `size` times 128
 * large. Scales differ by up to 2^spread. */
static void coded(Case *c, const char *name, const char *scale_name, size_t codes, size_t scales, double size,
                  int spread) {
    static const unsigned char full[] = { 0x00, 0x38, 0x40, 0x44, 0x48, 0x80, 0xb8, 0xc0, 0xc4, 0xc8 };    /* -4 to 4 */
    const uint64_t key = key_of(c, name);
    const size_t given = to_be_timed && codes > PERIOD ? PERIOD : codes,
        given_scales = given < codes && scales > PERIOD ? PERIOD : scales;
    double *code = mem_alloc(given * sizeof *code), *scale = mem_alloc(given_scales * sizeof *scale);
    for (size_t i = 0; i < given; i++) {
        const uint64_t draw = random_bits(key, i);
        code[i] = c->exact ? full[draw % 10] : (double)(draw % 2 << 7 | draw / 2 % 0x7f);
    }
    for (size_t i = 0; i < given_scales; i++)
        scale[i] = c->exact ? ldexp(1, (int)(random_bits(key, ~i) % 3) - 1)
                            : ldexp(size, (int)(random_bits(key, ~i) % (uint64_t)spread));
    add(c, INPUT, BYTE, name, codes, code)->given = given;
    add(c, INPUT, REAL, scale_name, scales, scale)->given = given_scales;
}
static void coded_rows(Case *c, const char *name, const char *scale_name, int rows, int columns) {
    coded(c, name, scale_name, times(rows, columns), times(rows, columns / FP8_BLOCK), 0x1p-8, 3);
}
static void coded_weight(Case *c, const char *name, const char *scale_name, int O, int C) {
    coded(c, name, scale_name, times(c->s.E * O, C), times(c->s.E * O / FP8_BLOCK, C / FP8_BLOCK),
          0x1p-8 / sqrt(C / 16 * 16) , 3);
}
static void codes_out(Case *c, const char *name, const char *scale_name, int rows, int columns) {
    bound(c, add(c, OUTPUT, CODES, name, times(rows, columns), NULL), 1, 0);
    add(c, SCRATCH, REAL, scale_name, times(rows, columns / FP8_BLOCK), NULL);
}
static Fp8 fp8_at(void *const *b, int i) { return (Fp8){ b[i], b[i + 1] }; }

CALL_FP8(rows, fp8_at(b, 0), b[2], c->N, c->C)
static Case *fp8_rows(const Shape *s) {
    Case *c = BEGIN(fp8_rows, s, 0, "N=%d C=%d", s->B * s->T, s->C);
    out(c, BYTE, "code", times(c->N, c->C), 0, 0);
    out(c, REAL, "scale", times(c->N, c->C / FP8_BLOCK), 0, 0);
    Buffer *inp = drawn(c, INPUT, FLOATX, "inp", times(c->N, c->C), 0, 1);
    for (size_t i = 0; i < inp->given && !to_be_timed; i++) {
        const size_t b = i / FP8_BLOCK;     /* of all sizes; zeros; largest ones at a limit; one that is not finite */
        if (i % FP8_BLOCK == 0 && b % 7 < 2) inp->value[i] = b % 7 ? 7.03125 : -7;
        inp->value[i] *= b % 7 == 3 ? 0 : ldexp(1, (int)(b * 37 % 250) - 140);
        if (b % 11 == 5 && i % FP8_BLOCK == b % FP8_BLOCK) inp->value[i] = b % 2 ? NAN : -INFINITY;
    }
    return c;
}
/* Every code, what is halfway to the next, and its neighbours, both signs, at a scale of 1; then
 * every scale, with largest magnitudes around its limit. */
static Case *fp8_rows_table(const Shape *s) {
    enum { CODES_ROWS = 8, LEAST = -149, KINDS = 4, ROWS = CODES_ROWS + (128 - LEAST) * KINDS };
    Case *c = BEGIN(fp8_rows, s, 0, "table");
    double *x = mem_alloc((size_t)ROWS * FP8_BLOCK * sizeof *x);
    c->N = ROWS, c->C = FP8_BLOCK;
    out(c, BYTE, "code", times(c->N, c->C), 0, 0);
    out(c, REAL, "scale", (size_t)c->N, 0, 0);
    add(c, INPUT, FLOATX, "inp", times(c->N, c->C), x);
    for (int row = 0; row < ROWS; row++, x += FP8_BLOCK) for (int i = 0; i < FP8_BLOCK; i++) {
        const int j = row * (FP8_BLOCK - 1) + i - 1, k = (row - CODES_ROWS) / KINDS + LEAST;
        const float code = (float)case_e4m3(j / 8 % 0x7f),
            next = j / 8 == 0x7e ? 480 : (float)case_e4m3(j / 8 % 0x7f + 1), middle = (code + next) / 2;
        const float some[] = { code, middle, nextafterf(middle, 0), nextafterf(middle, 500) },
            limit[KINDS] = { 1, 1.75f, nextafterf(1.75f, 2), nextafterf(2, 0) };
        if (row < CODES_ROWS) x[i] = i ? fmin(448, some[j / 2 % 4]) * (j % 2 ? -1 : 1) : 448;
        else x[i] = ldexp(limit[(row - CODES_ROWS) % KINDS], k - i);
    }
    return c;
}
CALL_FP8(weight, fp8_at(b, 0), fp8_at(b, 2), b[4], c->s.E, c->O, c->C)
static Case *fp8_weight(const Shape *s, int O, int C) {
    Case *c = BEGIN(fp8_weight, s, 0, "E=%d O=%d C=%d", s->E, O, C);
    const size_t all = times(s->E * O, C);
    c->O = O, c->C = C;
    for (int transposed = 0; transposed < 2; transposed++) {
        out(c, BYTE, transposed ? "transposed" : "code", all, 0, 0);
        out(c, REAL, transposed ? "transposed scale" : "scale", all / (FP8_BLOCK * FP8_BLOCK), 0, 0);
    }
    in(c, FLOATX, "weight", all, 0, 1 / sqrt(C));
    return c;
}
/* Blocks at the ends of rows and of columns may be smaller. */
static size_t weight_blocks(int E, int O, int C) {
    return times(E * ((O + FP8_BLOCK - 1) / FP8_BLOCK), (C + FP8_BLOCK - 1) / FP8_BLOCK);
}
CALL(weight_to_codes, fp8_at(b, 0), b[2], c->s.E, c->O, c->C)
static Case *weight_to_codes(const Shape *s, int O, int C) {
    Case *c = BEGIN(weight_to_codes, s, 0, "E=%d O=%d C=%d", s->E, O, C);
    c->O = O, c->C = C;
    out(c, BYTE, "code", times(s->E * O, C), 0, 0);
    out(c, REAL, "scale", weight_blocks(s->E, O, C), 0, 0);
    Buffer *w = drawn(c, INPUT, FLOATX, "weight", times(s->E * O, C), 0, 1 / sqrt(C));
    if (w->given && s->E > 1) w->value[w->given - 1] = NAN;
    return c;
}
static Weight weight_at(const Case *c, void *const *b, int i) {
    return (Weight){ b[i], b[i + 1], c->stride ? OF_MXFP4 : OF_FP8 };
}
CALL(weight_from_codes, b[0], weight_at(c, b, 1), c->s.E, c->O, c->C)
static Case *weight_from_codes(const Shape *s, int O, int C, int in_4_bits) {
    Case *c = BEGIN(weight_from_codes, s, 0, "%s E=%d O=%d C=%d", in_4_bits ? "MXFP4" : "FP8", s->E, O, C);
    const size_t all = times(s->E * O, C);
    c->O = O, c->C = C, c->stride = in_4_bits;
    out(c, FLOATX, "out", all, 0, 0);
    if (!in_4_bits) { coded(c, "code", "scale", all, weight_blocks(s->E, O, C), 0x1p-9, 5); return c; }
    for (int scales = 0; scales < 2; scales++) {
        const size_t n = all / (scales ? MXFP4_BLOCK : 2);
        double *x = integers(c, scales ? "scale" : "code", n, scales ? 200 : 256);
        c->buffer[c->buffers - 1].dtype = BYTE;
        if (scales && n > 5) x[3] = 0, x[5] = 255;
    }
    return c;
}
CALL_FP8(up_forward, d, b[0], fp8_at(b, 1), fp8_at(b, 3), fp8_at(b, 5), &plan, c->C, c->F)
static Case *fp8_up_forward(const Shape *s) {
    Case *c = BEGIN(fp8_up_forward, s, 0, "%s C=%d F=%d", s->name, s->C, s->F);
    c->F = s->F;
    out(c, FLOATX, "pre", times(c->S, 2 * c->F), 2, sum_error(c->C));
    codes_out(c, "act", "act scale", c->S, c->F);
    coded_rows(c, "inp", "inp scale", c->N, c->C);
    coded_weight(c, "weight", "weight scale", 2 * c->F, c->C);
    return routed(c);
}
CALL_FP8(linear, d, b[0], fp8_at(b, 1), fp8_at(b, 3), &plan, c->C, c->O)
static Case *fp8_linear(const Shape *s, int C, int O, int exact) {
    Case *c = BEGIN(fp8_linear, s, exact, "%s C=%d O=%d", s->name, C, O);
    c->C = C, c->O = O;
    out(c, FLOATX, "out", times(c->S, O), 2, sum_error(C));
    coded_rows(c, "inp", "inp scale", c->S, C);
    coded_weight(c, "weight", "weight scale", O, C);
    return routed(c);
}
CALL_FP8(down_backward, d, b[0], fp8_at(b, 1), b[3], fp8_at(b, 4), b[6], fp8_at(b, 7), fp8_at(b, 9), b[11], b[12],
         &plan, c->C, c->F)
static Case *fp8_down_backward(const Shape *s, int floats, int codes) {
    Case *c = BEGIN(fp8_down_backward, s, 0, "%s%s%s C=%d F=%d", s->name, floats ? " floats" : "",
                    codes ? " codes" : "", s->C, s->F);
    c->F = s->F;
    for (int i = 2; i >= 1; i--) {
        const char *const name[] = { "wact", "dpre" }, *const code[] = { "wact8", "dpre8" },
            *const scale[] = { "wact8 scale", "dpre8 scale" };
        if (floats)
            out(c, FLOATX, name[i - 1], times(c->S, i * c->F), i == 2 ? 14 : 8, i == 2 ? 2 * sum_error(c->C) : 0);
        else absent(c);
        if (codes) codes_out(c, code[i - 1], scale[i - 1], c->S, i * c->F);
        else absent(c), absent(c);
    }
    out(c, REAL, "dweight", (size_t)c->S, 14, sum_error(c->F) + 2 * sum_error(c->C));
    coded_rows(c, "dout", "dout scale", c->N, c->C);
    coded_weight(c, "down", "down scale", c->F, c->C);
    in(c, FLOATX, "pre", times(c->S, 2 * c->F), 0, 1);
    in(c, REAL, "weight", (size_t)c->S, 0.5, 0.2);
    return routed(c);
}
/* The codes of columns for rows that an expert does not have are 0. */
static void clear_tails(Case *c, int codes, int C) {
    const double *start = c->buffer[c->plan].value;
    double *code = c->buffer[codes].value;
    for (int e = 0; e < c->s.E && !to_be_timed; e++) {
        const size_t rows = (size_t)(start[e + 1] - start[e]),
            first = ((size_t)start[e] / FP8_BLOCK + (size_t)e) * FP8_BLOCK;
        for (size_t r = rows; r % FP8_BLOCK; r++) for (size_t i = 0; i < (size_t)C; i++)
            code[((first + r) / FP8_BLOCK * (size_t)C + i) * FP8_BLOCK + r % FP8_BLOCK] = 0;
    }
}
CALL_FP8(columns, fp8_at(b, 0), fp8_at(b, 2), &plan, c->C, c->from)
static Case *fp8_columns(const Shape *s, int C, Rows rows) {
    Case *c = BEGIN(fp8_columns, s, 0, "%s %s C=%d", rows_name[rows], s->name, C);
    const int blocks = fp8_blocks(c->S, s->E);
    c->C = C, c->from = rows;
    out(c, BYTE, "code", times(blocks * FP8_BLOCK, C), 0, 0);
    out(c, REAL, "scale", times(blocks, C / FP8_BLOCK), 0, 0);
    coded(c, "inp", "inp scale", rows_in(c, rows) * (size_t)C, rows_in(c, rows) * (size_t)C / FP8_BLOCK, 0x1p-20, 16);
    for (size_t i = 2 * FP8_BLOCK; i < 3 * FP8_BLOCK && c->buffer[2].given >= 3 * FP8_BLOCK; i++) {
        c->buffer[2].value[i] = 0x7f, c->buffer[3].value[2] = NAN;          /* one is not finite */
    }
    return routed(c);
}
CALL_FP8(backward_weight, d, b[0], fp8_at(b, 1), fp8_at(b, 3), &plan, c->C, c->O, c->how)
static Case *fp8_backward_weight(const Shape *s, int C, int O, Write how, int exact) {
    Case *c = BEGIN(fp8_backward_weight, s, exact, "%s C=%d O=%d%s", s->name, C, O, how_name[how]);
    const int blocks = fp8_blocks(c->S, s->E);
    c->C = C, c->O = O;
    weight_gradient(c, times(s->E * O, C), c->S, how);
    if (!exact) c->buffer[0].stored += 1;
    coded(c, "dout", "dout scale", times(blocks * FP8_BLOCK, O), times(blocks, O / FP8_BLOCK), 0x1p-9, 3);
    coded(c, "inp", "inp scale", times(blocks * FP8_BLOCK, C), times(blocks, C / FP8_BLOCK), 0x1p-9, 3);
    routed(c);
    clear_tails(c, 1, O);
    clear_tails(c, 3, C);
    return c;
}

CALL(bias_forward, b[0], b[1], c->N, c->C)
static Case *bias_forward(const Shape *s) {
    Case *c = BEGIN(bias_forward, s, 0, "N=%d C=%d", s->B * s->T, s->C);
    acc(c, FLOATX, "x", times(c->N, c->C), 0, 1, 1, 0);
    return in(c, FLOATX, "bias", (size_t)c->C, 0, 1);
}
CALL(bias_backward, b[0], b[1], c->N, c->C)
static Case *bias_backward(const Shape *s, int exact) {
    Case *c = BEGIN(bias_backward, s, exact, "N=%d C=%d", s->B * s->T, s->C);
    acc(c, REAL, "dbias", (size_t)c->C, 0, 1, 0, c->N + 1);                 /* a running sum */
    in(c, FLOATX, "dout", times(c->N, c->C), 0, 1);
    return backward_of(c, combine_forward(s, BY_SLOT, 1, 1, 0));
}

/* rows: of what is weighted after the bias, or, GROUPED, is not weighted. The sum that it is added
 * to has no part in the gradient. */
CALL(expert_bias_forward, b[0], b[1], &plan, c->C)
static Case *expert_bias_forward(const Shape *s, const char *name, double spread) {
    Case *c = BEGIN(expert_bias_forward, s, 0, "%s %s C=%d", name, s->name, s->C);
    acc(c, FLOATX, name, times(c->S, c->C), 0, spread, 1, 0);
    in(c, FLOATX, "bias", times(s->E, c->C), 0, 1);
    return routed(c);
}
CALL(expert_bias_backward, b[0], b[1], b[2], b[3], b[4], &plan, c->C, c->from)
static Case *expert_bias_backward(const Shape *s, Rows dout_rows, int exact) {
    const int weighted = dout_rows == BY_TOKEN;
    Case *c = BEGIN(expert_bias_backward, s, exact, "%s %s C=%d", rows_name[dout_rows], s->name, s->C);
    c->from = dout_rows;
    acc(c, REAL, "dbias", times(s->E, c->C), 0, 1, 0, c->S + 2);           /* a running sum */
    if (weighted) acc(c, REAL, "dweight", (size_t)c->S, 0, 1, 0, sum_error(c->C)); else absent(c);
    in(c, FLOATX, "dout", rows_in(c, dout_rows) * (size_t)c->C, 0, 1);
    in(c, FLOATX, "bias", times(s->E, c->C), 0, 1);
    if (weighted) in(c, REAL, "weight", (size_t)c->S, 0.5, 0.2); else absent(c);
    routed(c);
    c->forward[0] = expert_bias_forward(s, weighted ? "inp" : "out", 0);
    if (weighted) c->forward[1] = combine_forward(s, GROUPED, 1, 0, 0);
    return c;
}

static void run_add_norm_forward(const Device *d, const Case *c, void *const *b) {
    const Plan plan = plan_at(c, b);
    const Mix mix = mix_at(b, 9);
    const Sum sum = { .rows = b[4], .weight = b[5], .bias = b[6], .plan = c->plan < 0 ? NULL : &plan,
                      .mix = mix.scalars ? &mix : NULL };
    d->add_norm_forward(d, b[0], b[1], b[2], b[3], &sum, (Dropout){ c->p, b[7], SITE, c->scale },
                        (Norm){ b[8], c->eps }, c->N, c->C);
}
static Case *add_norm_forward(const Shape *s, int routes, float p, float scale, int mixed) {
    Case *c = BEGIN(add_norm_forward, s, 0, "%s p=%g scale=%g mix=%d %s C=%d", routes ? "grouped" : "token", (double)p,
                    (double)scale, mixed, s->name, s->C);
    const size_t rows = (size_t)(routes ? c->S : c->N);
    c->p = p, c->scale = scale, c->key = 0x123456789abcdef;
    out(c, FLOATX, "out", times(c->N, c->C), 8, s->K + 1);
    out(c, REAL, "rstd", (size_t)c->N, 4, 8);               /* of a stream that was rounded two or three times */
    out(c, FLOATX, "resid", times(c->N, c->C), 4, s->K + 8);
    in(c, FLOATX, "residual", times(c->N, c->C), 0, 1);
    in(c, FLOATX, "inp", rows * (size_t)c->C, 0, 1);
    if (routes) in(c, REAL, "weight", (size_t)c->S, 1.0 / s->K, 0.2 / s->K); else absent(c);
    if (routes) in(c, FLOATX, "bias", (size_t)c->C, 0, 1); else absent(c);
    if (p > 0) bytes(c, "key", &c->key, sizeof c->key); else absent(c);
    in(c, FLOATX, "norm", (size_t)c->C, 1, 0.2);
    if (mixed >= 0) mix_inputs(c, mixed);
    else for (int i = 0; i < 3; i++) absent(c);
    if (routes) routed(c);
    return c;
}
static void run_add_norm_backward(const Device *d, const Case *c, void *const *b) {
    const Plan plan = plan_at(c, b);
    Sum sum = { .rows = b[5], .plan = c->plan < 0 ? NULL : &plan, .narrow = b[15], .narrow_width = c->count };
    for (int i = 6; i < 12; i += 2) if (b[i]) sum_add(&sum, b[i], b[i + 1], c->O);
    d->add_norm_backward(d, b[0], b[1], b[2], (floatX *[]){ b[3], d->is_gpu ? b[4] : NULL }, &sum, b[12],
                         (Norm){ b[13], c->eps }, b[14], c->N, c->C);
}
static Case *add_norm_backward(const Shape *s, int routes, int inp, int terms, int bias, int narrow) {
    static const char *const added[] = { "", " + 1", " + 2", " + 3" };
    Case *c = BEGIN(add_norm_backward, s, 0, "%s%s%s%s %s C=%d", routes ? "grouped" : inp ? "token" : "no rows",
                    added[terms], bias ? " bias" : "", narrow ? " narrow" : "", s->name, s->C);
    const size_t rows = (size_t)(routes ? c->S : c->N);
    c->O = s->E, c->count = s->C < 16 ? s->C : 16;
    acc(c, FLOATX, "dresid", times(c->N, c->C), 0, 1, 16, s->K + 3);
    acc(c, REAL, "dnorm", (size_t)c->C, 0, 1, 16, s->K + 3);        /* of products that were rounded */
    if (bias) acc(c, REAL, "dbias", (size_t)c->C, 0, 1, 16, c->N + 1); else absent(c);
    for (int i = 0; i < 2; i++) add(c, SCRATCH, FLOATX, i ? "scratch 1" : "scratch 0", times(c->N, c->C), NULL);
    if (inp) in(c, FLOATX, "inp", rows * (size_t)c->C, 0, 1); else absent(c);
    for (int i = 0; i < 3; i++) {
        static const char *const dout[] = { "dout 0", "dout 1", "dout 2" },
            *const weight[] = { "weight 0", "weight 1", "weight 2" };
        if (i < terms) in(c, FLOATX, dout[i], times(c->N, c->O), 0, 1); else absent(c);
        if (i < terms) in(c, FLOATX, weight[i], times(c->O, c->C), 0, 1 / sqrt(c->O)); else absent(c);
    }
    in(c, FLOATX, "resid", times(c->N, c->C), 0, 1);
    in(c, FLOATX, "norm", (size_t)c->C, 1, 0.2);
    in(c, REAL, "rstd", (size_t)c->N, 1, 0.1);
    if (narrow) in(c, FLOATX, "narrow", times(c->N, c->count), 0, 1); else absent(c);
    if (routes) routed(c);
    return c;
}

/* ---- attention ------------------------------------------------------------------------------- */

static const char *const order_name[] = { "tiled", "grouped" };
#define HEADS "%s B=%d T=%d G=%d Q=%d D=%d"
#define HEADS_OF(s, order) order_name[order], (s)->B, (s)->T, (s)->G, (s)->Q, (s)->D

/* What a query sees: its whole row, its own of several samples in it, of 1 to about T/2 tokens, and
 * of these the last few keys. */
typedef enum { FULL, PACKED, WINDOW, VIEWS } View;
static const char *const view_name[] = { "", "packed ", "window " };
static int window_of(const Case *c) { return c->s.T / 5 + 1; }
static void reaches(Case *c, View view) {
    if (view == FULL) return;
    double *position = mem_alloc((size_t)c->N * sizeof *position);
    const uint64_t key = key_of(c, "position");
    for (int n = 0, left = 0; n < c->N; n++, left--) {
        const int begins = n % c->s.T == 0 || left <= 0;
        if (begins) left = 1 + (int)(random_bits(key, (uint64_t)n)
                                     % (uint64_t)(random_bits(key, ~(uint64_t)n) % 4 ? c->s.T / 2 + 1 : 3));
        position[n] = begins ? 0 : position[n - 1] + 1;
    }
    for (int n = 0; n < c->N && view == WINDOW; n++) position[n] = fmin(position[n], window_of(c) - 1);
    add(c, INPUT, INTEGER, "reach", (size_t)c->N, position);
}
#define REACH_OF(c) (case_find(c, "reach") < 0 ? NULL : b[case_find(c, "reach")])

CALL(attention_forward, b[0], b[1], b[2], b[3], REACH_OF(c), c->order, c->s.B, c->s.T, c->s.G, c->s.Q, c->s.D)
static Case *attention_forward(const Shape *s, HeadOrder order, View view) {
    Case *c = BEGIN(attention_forward, s, 0, "%s" HEADS, view_name[view], HEADS_OF(s, order));
    const int H = s->Q * s->G;
    c->order = order;
    out(c, FLOATX, "out", times(c->N, H * s->D), 8, 8);                     /* the weights are rounded, then the sum */
    out(c, REAL, "lse", times(c->N, H), 0, 8);
    in(c, FLOATX, "q", times(c->N, H * s->D), 0, 1);
    in(c, FLOATX, "kv", times(c->N, 2 * s->G * s->D), 0, 1);
    reaches(c, view);
    return c;
}
CALL(attention_backward, b[0], b[1], b[2], b[3], b[4], b[5], b[6], REACH_OF(c), c->order, c->s.B, c->s.T, c->s.G,
     c->s.Q, c->s.D)
static Case *attention_backward(const Shape *s, HeadOrder order, View view) {
    Case *c = BEGIN(attention_backward, s, 0, "%s" HEADS, view_name[view], HEADS_OF(s, order));
    const int H = s->Q * s->G;
    c->order = order;
    out(c, FLOATX, "dq", times(c->N, H * s->D), 32, 0);
    out(c, FLOATX, "dkv", times(c->N, 2 * s->G * s->D), 32, 0);
    in(c, FLOATX, "dout", times(c->N, H * s->D), 0, 1);
    in(c, FLOATX, "out", times(c->N, H * s->D), 0, 0.3);
    in(c, REAL, "lse", times(c->N, H), 0.5 + log(s->T), 0.1);
    in(c, FLOATX, "q", times(c->N, H * s->D), 0, 1);
    in(c, FLOATX, "kv", times(c->N, 2 * s->G * s->D), 0, 1);
    reaches(c, view);
    return backward_of(c, attention_forward(s, order, view));
}
/* Over one key sinks that are large matter as much as small ones over many. */
CALL(sink_forward, b[0], b[1], b[2], c->N, c->s.Q * c->s.G, c->s.D)
static Case *sink_forward(const Shape *s) {
    const int H = s->Q * s->G;
    Case *c = BEGIN(sink_forward, s, 0, "N=%d H=%d D=%d", s->B * s->T, H, s->D);
    acc(c, FLOATX, "out", times(c->N, H * s->D), 0, 1, 2, 16);
    acc(c, REAL, "lse", times(c->N, H), 2, 2, 0, 8);
    return in(c, FLOATX, "sink", (size_t)H, 2, 3);
}
CALL(sink_backward, b[0], b[1], b[2], b[3], b[4], c->N, c->s.Q * c->s.G, c->s.D)
static Case *sink_backward(const Shape *s) {
    const int H = s->Q * s->G;
    Case *c = BEGIN(sink_backward, s, 0, "N=%d H=%d D=%d", s->B * s->T, H, s->D);
    acc(c, REAL, "dsink", (size_t)H, 0, 1, 0, sum_error(c->N * s->D) + 16);
    in(c, FLOATX, "dout", times(c->N, H * s->D), 0, 1);
    in(c, FLOATX, "out", times(c->N, H * s->D), 0, 0.3);
    in(c, REAL, "lse", times(c->N, H), 4, 1);
    in(c, FLOATX, "sink", (size_t)H, 2, 1);
    return backward_of(c, sink_forward(s));
}
CALL(attention_cached, b[0], b[1], b[2], b[3], b[4], c->window, c->order, c->s.B, c->s.T, c->s.G, c->s.Q, c->s.D)
static Case *attention_cached(const Shape *s, HeadOrder order, View view, int sinks) {
    Case *c = BEGIN(attention_cached, s, 0, "%s%s" HEADS, view_name[view], sinks ? "sink " : "", HEADS_OF(s, order));
    const int H = s->Q * s->G;
    c->order = order;
    c->window = view == WINDOW ? window_of(c) : 0;
    out(c, FLOATX, "out", times(s->B, H * s->D), 8, 0);
    in(c, FLOATX, "q", times(s->B, H * s->D), 0, 1);
    in(c, FLOATX, "cache", times(c->N, 2 * s->G * s->D), 0, 1);
    if (sinks) in(c, FLOATX, "sink", (size_t)H, 1, 2); else absent(c);
    double *position = integers(c, "position", (size_t)s->B, s->T);
    if (s->B) position[0] = s->T - 1;
    return c;
}
CALL(cache_store, b[0], b[1], b[2], c->N, c->C)
static Case *cache_store(const Shape *s) {
    Case *c = BEGIN(cache_store, s, 0, "N=%d width=%d", s->B * s->T, 2 * s->G * s->D);
    const int capacity = c->N + 3;
    c->C = 2 * s->G * s->D;
    acc(c, FLOATX, "cache", times(capacity, c->C), 0, 1, 0, 0);
    in(c, FLOATX, "kv", times(c->N, c->C), 0, 1);
    double *row = integers(c, "row", (size_t)c->N, 1);
    /* distinct; three rows are not written */
    for (int n = 0; n < c->N; n++) row[n] = capacity - 1 - n - 2 * (n >= c->N / 2);
    return c;
}

/* ---- sampling -------------------------------------------------------------------------------- */

CALL(sample, b[0], b[1], (const uint64_t *)b[2], b[3], c->sampler, c->N, c->s.V, c->used)
static Case *sample(const Shape *s, int rows, Sampler sampler) {
    Case *c = BEGIN(sample, s, 0, "t=%g p=%g m=%g k=%d N=%d V=%d", (double)sampler.temperature, (double)sampler.top_p,
                    (double)sampler.min_p, sampler.top_k, rows, s->V);
    c->N = rows, c->sampler = sampler;
    c->used = s->V - (s->V > 2);
    add(c, OUTPUT, INTEGER, "token", (size_t)rows, NULL);
    in(c, FLOATX, "logits", times(rows, s->V), 0, 2);
    integers(c, "key", times(2, rows), INT32_MAX);          /* read in pairs as 64-bit numbers */
    integers(c, "position", (size_t)rows, 1000);
    return c;
}
CALL(advance, b[0], b[1], b[2], b[3], c->N)
static Case *advance(const Shape *s) {
    enum { POSITIONS = 3, CALLS = 6 };                      /* where tokens are at first, and how far the log goes */
    Case *c = BEGIN(advance, s, 0, "N=%d", s->B);
    c->N = s->B, c->calls = CALLS;
    integers(c, "position", (size_t)c->N, POSITIONS);
    integers(c, "row", (size_t)c->N, 1000);
    integers(c, "log", times(POSITIONS + CALLS, c->N), 1000);
    for (int i = 0; i < 3; i++) c->buffer[i].role = UPDATE;
    integers(c, "token", (size_t)c->N, s->V);
    return c;
}

/* ---- loss and optimizer ---------------------------------------------------------------------- */

CALL(cross_entropy, b[0], b[1], b[2], b[4], b[3], c->cap, c->gradient, c->N, c->s.V, c->used)
static Case *cross_entropy(const Shape *s, int rows, int gradient, int wide, int capped, int further, int ignored) {
    Case *c = BEGIN(cross_entropy, s, 0, "%s%s%s%sN=%d V=%d", gradient ? "gradient " : "", wide ? "wide " : "",
                    capped ? "capped " : "", further ? "further " : "", rows, s->V);
    const double spread = wide ? 40 : 2;                    /* wide: some probabilities are below the smallest float */
    const int padding = s->V / 10 < 47 ? s->V / 10 : 47;            /* 47: as for GPT-2's vocabulary */
    c->N = rows, c->gradient = gradient, c->scale = 0.25f, c->used = s->V - padding, c->cap = capped ? 12 : 0;
    out(c, REAL, "loss", (size_t)rows, capped ? 4 : 0, 4);
    if (gradient) acc(c, FLOATX, "logits", times(rows, s->V), 0, spread, capped ? 16 : 4, 0);
    else          in(c, FLOATX, "logits", times(rows, s->V), 0, spread);
    double *target = integers(c, "target", (size_t)rows + 2, c->used);
    for (int n = 3; ignored && n < rows; n += 5) target[n] = -1;
    for (int n = 4; further && n < rows; n += 6) target[n] = target[n + 2] = target[n + 1];     /* twice the same */
    in(c, REAL, "scale", 3, (double)c->scale, further ? 0.05 : 0);
    double *position = further ? integers(c, "position", (size_t)rows + 2, 5) : NULL;
    if (further) position[rows] = position[rows + 1] = 0;
    else absent(c);
    return c;
}
CALL_FP8(cross_entropy, d, b[0], fp8_at(b, 5), b[1], b[2], b[4], b[3], c->cap, c->N, c->s.V, c->used)
static Case *fp8_cross_entropy(const Shape *shape, int V, int capped) {
    Shape s = *shape;
    s.V = V;
    Case *c = BEGIN(fp8_cross_entropy, &s, 0, "%sN=%d V=%d", capped ? "capped further " : "", s.B * s.T, V);
    c->gradient = 1, c->scale = 0.25f, c->used = V - 47, c->cap = capped ? 12 : 0;
    out(c, REAL, "loss", (size_t)c->N, capped ? 4 : 0, 4);
    in(c, FLOATX, "logits", times(c->N, V), 0, 2);
    double *target = integers(c, "target", (size_t)c->N + 2, c->used);
    for (int n = 3; n < c->N; n += 5) target[n] = -1;
    in(c, REAL, "scale", 3, (double)c->scale, capped ? 0.05 : 0);
    double *position = capped ? integers(c, "position", (size_t)c->N + 2, 5) : NULL;
    if (capped) position[c->N] = position[c->N + 1] = 0;
    else absent(c);
    codes_out(c, "dlogits", "dlogits scale", c->N, V);
    return c;
}
CALL(soft_cap, b[0], c->cap, c->buffer[0].n)
static Case *soft_cap(const Shape *s, int rows) {
    Case *c = BEGIN(soft_cap, s, 0, "N=%d V=%d", rows, s->V);
    c->cap = 1.5f;
    return acc(c, FLOATX, "x", times(rows, s->V), 0, 2, 2, 4);
}
CALL(sum, b[0], b[1], c->buffer[1].n)
static Case *sum(const Shape *s) {
    Case *c = BEGIN(sum, s, 0, "n=%d", s->B * s->T * s->C);
    out(c, REAL, "out", 1, 0, 4);
    return in(c, REAL, "inp", times(c->N, c->C), 1, 0.2);   /* of a sum near zero only rounding errors would be left */
}
/* `count` segments of n elements. The last has half of them. The others are in the first third:
 * each takes a part of what the ones before have left (the last few elements one by one), except
 * for the second, which is empty. Between them there is a gap. */
static void segments(Case *c, size_t n, int count) {
    size_t at = 0;
    c->count = count;
    for (int i = 0; i < count; i++) {
        const size_t left = n / 3 - at, part = left < 16 ? left > 0 : 3 * left / (size_t)count;
        Segment *s = &c->segment[i];
        *s = i == count - 1 ? (Segment){ .offset = n - n / 2, .count = n / 2 }
                            : (Segment){ .offset = at, .count = i == 1 ? 0 : part, .decay = i % 3 != 2 };
        s->gradient = s->offset, s->dtype = c->gradients, s->rate = i % 4 ? 1 : 0.5f;
        s->is_table = i % 2;
        at += s->count;
    }
    bytes(c, "segments", c->segment, (size_t)count * sizeof *c->segment);
}
CALL(accumulate, b[0], b[1], c->buffer[0].n)
static Case *accumulate(const Shape *s) {
    Case *c = BEGIN(accumulate, s, 0, "n=%d", s->E * s->C * s->F);
    acc(c, REAL, "acc", times(s->E * s->C, s->F), 0, 1, 0, 1);
    return in(c, REAL, "x", times(s->E * s->C, s->F), 0, 1);
}
static const char *const dtype_name[] = { "", "gradients as floatX " };
CALL(grad_sq_norms, b[0], b[1], b[2], c->count)
static Case *grad_sq_norms(const Shape *s, int count, Dtype gradients) {
    Case *c = BEGIN(grad_sq_norms, s, 0, "%ssegments=%d n=%d", dtype_name[gradients], count, s->E * s->C * s->F);
    const size_t n = times(s->E * s->C, s->F);
    c->gradients = gradients;
    out(c, REAL, "out", (size_t)count + 1, 0, 4);
    in(c, gradients == FLOATX ? FLOATX : REAL, "grads", n, 0, 1);
    segments(c, n, count);
    return c;
}
CALL(adamw, b[0], b[1], b[2], b[3], c->moments, b[4], b[5], b[6], c->count, b[7])
static Case *adamw(const Shape *s, int master, Dtype moments, Dtype gradients, float clip, double norm, int count,
                   int cautious) {
    const int coarse = moments == FLOATX;
    Case *c = BEGIN(adamw, s, 0, "%s%s%s%sclip=%g norm=%g segments=%d n=%d", master ? "master " : "",
                    coarse ? "floatX " : "", cautious ? "cautious " : "", dtype_name[gradients], (double)clip, norm,
                    count, s->E * s->C * s->F);
    const size_t n = times(s->E * s->C, s->F);
    c->moments = moments, c->gradients = gradients, c->updates = 3;
    c->adamw = (AdamW){ .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .clip = clip,
                         .cautious = cautious };
    c->adamw.fix1 = 1 / (1 - pow((double)c->adamw.beta1, c->updates));
    c->adamw.fix2 = 1 / (1 - pow((double)c->adamw.beta2, c->updates));
    c->adamw.table = (AdamBetas){ .beta1 = 0.7f, .beta2 = 0.8f, .eps = 1e-3f };
    c->adamw.table.fix1 = 1 / (1 - pow((double)c->adamw.table.beta1, c->updates));
    c->adamw.table.fix2 = 1 / (1 - pow((double)c->adamw.table.beta2, c->updates));
    c->unchanged = !(norm < 1e30);
    const double units = c->unchanged ? 0 : 8, some = c->unchanged ? 0 : 1;
    acc(c, FLOATX, "weight", n, 0, 1, master ? some : 2*some, units);       /* 2: stochastic rounding */
    if (master) acc(c, REAL, "master", n, 0, 1, 0, units); else absent(c);
    acc(c, coarse ? FLOATX : REAL, "m", n, 0, 0.1, coarse ? some : 0, units);
    acc(c, coarse ? FLOATX : REAL, "v", n, 0.1, 0.01, coarse ? 2*some : 0, units);
    in(c, gradients == FLOATX ? FLOATX : REAL, "grads", n, 0, 1);
    in(c, REAL, "squares", (size_t)count + 1, norm * norm, 0);
    segments(c, n, count);
    return bytes(c, "settings", &c->adamw, sizeof c->adamw);
}
CALL(set_master, b[0], b[1], c->buffer[0].n)
static Case *set_master(const Shape *s) {
    Case *c = BEGIN(set_master, s, 0, "n=%d", s->E * s->C * s->F);
    out(c, REAL, "master", times(s->E * s->C, s->F), 0, 0);
    return in(c, FLOATX, "weight", times(s->E * s->C, s->F), 0, 1);
}

/* Scratch of Muon, from buffer `first` on. */
static void muon_buffers(Case *c, int rows, int columns) {
    const size_t n = (size_t)c->count, k = (size_t)(rows < columns ? rows : columns);
    add(c, SCRATCH, FLOATX, "gram", n * k * k, NULL);
    add(c, SCRATCH, FLOATX, "square", n * k * k, NULL);
    add(c, SCRATCH, REAL, "sums", n * MUON_SUMS, NULL);
    add(c, SCRATCH, INTEGER, "start", 2 * (n + 1), NULL);
}
/* A rounding of x is multiplied by up to 3.44^5 where singular values are small. */
enum { ORTHOGONAL_STORED = 20, ORTHOGONAL_SUMMED = 100 };
CALL(orthogonalize, d, &(MuonBuffers){ b[1], b[0], b[2], b[3], b[4], b[5] }, c->count, c->F, c->C)
static Case *orthogonalize(const Shape *s, int count, int rows, int columns) {
    Case *c = BEGIN(orthogonalize, s, 0, "count=%d %dx%d", count, rows, columns);
    const size_t n = times(count * rows, columns);
    c->count = count, c->F = rows, c->C = columns;
    out(c, FLOATX, "out", n, ORTHOGONAL_STORED, ORTHOGONAL_SUMMED);
    drawn(c, SCRATCH, FLOATX, "x", n, 0, 1e-3);
    muon_buffers(c, rows, columns);
    return c;
}
static int longer_side(const Case *c) { return c->F > c->C ? c->F : c->C; }
/* Parts of a matrix each, in memory in the opposite order with gaps of 4 elements between them; of
 * codes whole blocks, and gaps of one, without that before the first. */
static size_t gap_of(const Case *c) { return c->moments == INT8 ? MOMENT_BLOCK : 4; }
static void muon_parts(Case *c, int count, size_t each, Dtype gradients) {
    const size_t unit = c->moments == INT8 ? MOMENT_BLOCK : 1, shift = c->moments == INT8 ? 3 * MOMENT_BLOCK : 0;
    c->count = count;
    for (int i = 0; i < count; i++) {
        const size_t before = (size_t)(count - 1 - i) * (each + gap_of(c)), less = i % 2 * (each / unit / 3) * unit,
            more = i % 3 == 2 ? each / unit / 5 * unit : 0;
        c->segment[i] = (Segment){ .offset = before + less + shift, .count = each - less - more, .decay = i % 3 != 2,
                                   .dtype = gradients, .gradient = before + less, .rate = i % 2 ? 1 : 0.5f,
                                   .shift_m = shift,
                                   .muon_offset = (size_t)i * each + less,
                                   .squares = (size_t)(count - 1 - i) * ((size_t)longer_side(c) + 1) };
    }
    bytes(c, "parts", c->segment, (size_t)count * sizeof *c->segment);
    bytes(c, "settings", &c->muon, sizeof c->muon);
}
static void momentum(Case *c, size_t n, double stored, double units) {
    if (c->moments != INT8) { acc(c, c->moments, "m", n, 0, 0.1, stored, units); return; }
    integers(c, "m", to_be_timed && n > PERIOD ? PERIOD : n, 256);
    Buffer *b = &c->buffer[c->buffers - 1];
    b->dtype = BYTE, b->role = UPDATE, b->n = n;
}
/* The last buffer. */
static Case *scales(Case *c, size_t n) {
    if (c->moments != INT8) { absent(c); return c; }
    acc(c, FLOATX, "scale", n / MOMENT_BLOCK, 0, 0, 0, 0);
    Buffer *b = &c->buffer[c->buffers - 1];
    for (size_t i = 0; i < b->given; i++) b->value[i] = i % 5 == 3 ? 0 : ldexp(1, -(int)(i % 7) - 7);
    return c;
}
static Momentum momentum_at(const Case *c, void *const *b, int i) { return (Momentum){ b[i], c->moments, b[6] }; }
CALL(muon_momentum, b[0], momentum_at(c, b, 1), b[2], b[3], b[4], c->count, (size_t)(c->F * c->C), b[5])
static Case *muon_momentum(const Shape *s, int count, int rows, int columns, int with_x, Dtype moments, int gradients,
                           float ahead, float clip, double norm) {
    const int coarse = moments == FLOATX, coded = moments == INT8;
    Case *c = BEGIN(muon_momentum, s, coded, "%s%s%sahead=%g clip=%g norm=%g count=%d %dx%d", with_x ? "" : "no x ",
                    coarse ? "floatX " : coded ? "codes " : "", gradients < 0 ? "no gradients " : dtype_name[gradients],
                    (double)ahead, (double)clip, norm, count, rows, columns);
    c->moments = moments;
    const size_t each = times(rows, columns), n = (each + gap_of(c)) * (size_t)count;
    const Dtype dtype = gradients < 0 ? REAL : (Dtype)gradients;
    c->gradients = dtype, c->F = rows, c->C = columns;
    c->muon = (Muon){ .lr = 1, .momentum = coded ? 0.5f : 0.95f, .ahead = ahead, .decay = 0.1f, .clip = clip };
    c->muon.key = 23;
    c->unchanged = !(norm < 1e30);
    const double units = c->unchanged ? 0 : 8, some = c->unchanged ? 0 : 1;
    /* elements of no part stay */
    if (with_x) acc(c, FLOATX, "x", each * (size_t)count, 0, 1, some + coarse * some, units);
    else absent(c);
    momentum(c, n, coarse ? some : 0, units);
    if (gradients < 0) absent(c); else in(c, gradients == FLOATX ? FLOATX : REAL, "grads", n, 0, 1);
    in(c, REAL, "squares", 1, norm * norm, 0);
    if (coded) c->buffer[3].value[0] = norm * norm;
    muon_parts(c, count, each, dtype);
    return scales(c, n);
}
CALL(muon_limits, b[0], b[1], b[2], b[3], b[4], b[5], c->count, b[6])
/* bad: the number of a tensor whose norm is not finite; -1: none; -2: one of a layer before was. */
static Case *muon_limits(const Shape *s, int count, float most, int bad) {
    Case *c = BEGIN(muon_limits, s, 0, "most=%g bad=%d count=%d", (double)most, bad, count);
    const size_t n = (size_t)count;
    c->count = count;
    c->muon = (Muon){ .momentum = 0.9f, .most = most };
    const double units = bad == -1 ? 8 : 0;
    out(c, REAL, "factors", 2 * n, 0, units);
    acc(c, REAL, "norms", 2 * n, 3, 0.5, 0, units);
    for (size_t i = 0; i < n; i += 3) c->buffer[1].value[2*i] = c->buffer[1].value[2*i + 1] = 0;
    acc(c, REAL, "added", n, 0, 0, 0, 0);
    for (size_t i = 0; i < n; i += 2) c->buffer[2].value[i] = 1;
    acc(c, REAL, "faults", n, 0, 0, 0, 0);
    acc(c, REAL, "fault", 1, bad == -2, 0, 0, 0);
    in(c, REAL, "squares", n, 0, 0);
    for (size_t i = 0; i < n; i++) c->buffer[5].value[i] = (double)(float)(i % 5 ? pow((double)i, 4) / 16 : 0);
    if (bad >= 0) c->buffer[5].value[bad] = INFINITY;
    bytes(c, "settings", &c->muon, sizeof c->muon);
    return c;
}
CALL(muon_add, momentum_at(c, b, 0), b[1], b[2], b[3], c->count, (size_t)(c->F * c->C), b[5])
static Case *muon_add(const Shape *s, int count, int rows, int columns, Dtype moments, Dtype gradients) {
    const int coded = moments == INT8;
    Case *c = BEGIN(muon_add, s, coded, "%s%scount=%d %dx%d", moments == FLOATX ? "floatX " : coded ? "codes " : "",
                    dtype_name[gradients], count, rows, columns);
    c->moments = moments, c->gradients = gradients, c->F = rows, c->C = columns, c->key = 17;
    const size_t each = times(rows, columns), n = (each + gap_of(c)) * (size_t)count;
    momentum(c, n, moments == FLOATX ? 2 : 0, 8);
    in(c, gradients == FLOATX ? FLOATX : REAL, "grads", n, 0, 1);
    in(c, REAL, "factors", 2 * (size_t)count, 0.5, 0.1);
    for (int e = 0; e < count; e += 2) c->buffer[2].value[2*e] = 1, c->buffer[2].value[2*e + 1] = 0;
    for (int e = 1; e < count && coded; e += 2) c->buffer[2].value[2*e] = 0.5, c->buffer[2].value[2*e + 1] = 0.125;
    if (count == 1) c->buffer[2].value[1] = 0.25;
    muon_parts(c, count, each, gradients);
    bytes(c, "key", &c->key, sizeof c->key);
    if (coded && gradients == REAL) c->buffer[1].value[c->segment[count > 1].gradient + 5] = NAN;
    return scales(c, n);
}
CALL(muon_scale, b[0], b[1], b[2], b[3], b[4], c->count, c->F, c->C, b[5])
static Case *muon_scale(const Shape *s, int count, int rows, int columns, double norm) {
    Case *c = BEGIN(muon_scale, s, 0, "norm=%g count=%d %dx%d", norm, count, rows, columns);
    c->F = rows, c->C = columns;
    c->muon = (Muon){ .second = 0.9f };
    c->unchanged = !(norm < 1e30);
    const size_t side = (size_t)longer_side(c), n = (size_t)count * side;
    if (c->unchanged) add(c, SCRATCH, REAL, "scale", n, NULL);
    else out(c, REAL, "scale", n, 0, 8);
    acc(c, REAL, "squares", n + (size_t)count, 2, 0.2, 0, c->unchanged ? 0 : 8);
    in(c, FLOATX, "out", times(count * rows, columns), 0, 1);
    in(c, REAL, "norms", 1, norm * norm, 0);
    muon_parts(c, count, times(rows, columns), REAL);
    return c;
}
CALL(muon_update, b[0], b[1], b[2], b[3], b[4], b[5], c->count, c->F, c->C, b[6])
static Case *muon_update(const Shape *s, int count, int rows, int columns, int master, double norm,
                         int cautious, int scaled) {
    Case *c = BEGIN(muon_update, s, 0, "%s%s%snorm=%g count=%d %dx%d", master ? "master " : "",
                    cautious ? "cautious " : "", scaled ? "scaled " : "", norm, count, rows, columns);
    const size_t each = times(rows, columns), n = (each + 4) * (size_t)count;
    c->F = rows, c->C = columns;
    c->muon = (Muon){ .lr = 1, .momentum = 0.95f, .decay = 0.1f, .cautious = cautious };
    c->unchanged = !(norm < 1e30);
    const double units = c->unchanged ? 0 : 8, some = c->unchanged ? 0 : 1;
    acc(c, FLOATX, "weight", n, 0, 1, (master ? 1 : 2) * some, units);                  /* 2: rounded stochastically */
    if (master) acc(c, REAL, "master", n, 0, 1, 0, units); else absent(c);
    in(c, FLOATX, "out", each * (size_t)count, 0, 0.3);
    if (scaled) in(c, REAL, "scale", (size_t)(count * longer_side(c)), 1, 0.1); else absent(c);
    in(c, REAL, "squares", 1, norm * norm, 0);
    muon_parts(c, count, each, REAL);
    return c;
}

/* ---- the list -------------------------------------------------------------------------------- */

void case_free(Case *c) {
    if (!c) return;
    for (int i = 0; i < c->buffers; i++) free(c->buffer[i].value);
    for (int i = 0; i < 2; i++) case_free(c->forward[i]);
    case_free(c->dense), case_free(c->even), free(c);
}
Case *case_product(int N, int C, int O) {
    const Shape s = { .name = "" };
    to_be_timed = 1;
    return matmul_forward(&s, N, C, O, 0);
}
/* What each_case passes on. V: makes a case of an operation that is asked for, visits and frees it.
 * make: a call of a constructor, whose name begins with that of the operation. */
typedef struct { const Shape *s; int all; const char *only; void (*visit)(Case *c, void *context); void *context; }
    Visit;
static void pass_on(const Visit *v, const char *make, Case *c) {
    if (make && strncmp(make, c->op, strlen(c->op))) fail(EXIT_USAGE, "%s makes a case of %s", make, c->op);
    v->visit(c, v->context);
    case_free(c);
}
#define V(v, make) do { if (!strncmp(#make, (v)->only, strlen((v)->only))) pass_on(v, #make, make); } while (0)
static int head_rows(const Shape *s) {                          /* tokens whose logits a model has at a time */
    const int N = s->B * s->T, chunk = N / 16 < 512 ? 512 : N / 16;
    return N < chunk ? N : chunk;
}

static void each_on_tokens(const Visit *v) {
    const Shape *s = v->s;
    const int G = s->G, D = s->D;
    V(v, embed_forward(s));
    V(v, rmsnorm_forward(s));
    V(v, rmsnorm_backward(s));
    for (int direction = 1; direction >= -1; direction -= 2) {
        V(v, rope(s, direction, s->Q*G*D, s->Q*G));             /* queries */
        V(v, rope(s, direction, 2*G*D, G));                     /* keys, with values between them */
        if (v->all) V(v, rope(s, direction, G*D + 3, G));
    }
    const int stride[] = { s->Q*G*D, 2*G*D, G*D + 3 }, heads[] = { s->Q*G, G, G };
    for (int i = 0; i < (v->all ? 3 : 2); i++) {
        V(v, norm_rope_forward(s, i != 1, stride[i], heads[i]));
        V(v, norm_rope_backward(s, stride[i], heads[i]));
    }
    for (int i = 1; i < (v->all ? 3 : 2); i++) {
        V(v, columns_add(s, stride[i], i == 1 ? G*D : 2));
        V(v, columns_put(s, stride[i], i == 1 ? G*D : 2));
        V(v, columns_take(s, stride[i], i == 1 ? G*D : 2));
    }
    for (int gate = 0; gate < 2; gate++) V(v, value_forward(s, gate));
    V(v, value_backward(s));
    for (int given = v->all ? 0 : 3; given < 4; given++) {
        V(v, mix_forward(s, given));
        V(v, mix_backward(s, given));
    }
    for (int backward = 0; backward < 2 && D % 4 == 0; backward++) V(v, shift_keys(s, backward));
    for (int cached = 0; cached < 2; cached++) V(v, bigram_rows(s, cached));
    V(v, flip_signs(s));
    for (int full = 0; full < (v->all ? 2 : 1); full++) {
        V(v, shared_keys_forward(s, full ? D : own_key(s)));
        V(v, shared_keys_backward(s, full ? D : own_key(s)));
    }
    V(v, residual(s, 0, 0));
    V(v, residual(s, 0.3f, 0));
    V(v, dropout(s, 0.3f, 0));
    V(v, scale(s));
    if (v->all) {
        V(v, dropout(s, 0, 0));
        V(v, residual(s, 0, 0.22f));                            /* a multiplier: Granite */
        V(v, residual(s, 0.3f, 0.22f));
        V(v, dropout(s, 0, 0.22f));
        V(v, dropout(s, 0.3f, 0.22f));
    }
}
static void each_column_sum(const Visit *v, int exact) {
    V(v, embed_backward(v->s, 0, exact));
    V(v, embed_backward(v->s, 1, exact));
    V(v, bias_forward(v->s));
    V(v, bias_backward(v->s, exact));
    if (!v->all) return;
    V(v, expert_bias_forward(v->s, "x", 1));
    for (Rows rows = BY_TOKEN; rows <= GROUPED; rows += GROUPED - BY_TOKEN)
        V(v, expert_bias_backward(v->s, rows, exact));
}
/* Every layout of every product. */
static void each_product(const Visit *v, int exact) {
    const Shape *s = v->s;
    const int N = s->B * s->T, C = s->C, F = s->F;
    V(v, matmul_forward(s, N, C, 2*F, exact));
    for (int how = SET; how <= ADD; how++) V(v, matmul_backward_input(s, N, C, 2*F, (Write)how, exact));
    for (int how = SET; how <= SET_ROUNDED; how++) V(v, matmul_backward_weight(s, N, C, 2*F, (Write)how, exact));
    /* TALL for every width of vectors: kernels/cpu/matmul.c */
    if (F >= 300) V(v, matmul_backward_weight(s, N, C, 4*F, ADD, exact));
    for (Rows from = BY_TOKEN; from <= GROUPED; from++) for (Rows to = BY_TOKEN; to <= GROUPED; to++) {
        const int odd = ((int)from + (int)to + exact) % 2;
        if (to != BY_TOKEN) V(v, parallel_linear_forward(s, C, 2*F, from, to, exact));
        if (to != BY_TOKEN) V(v, parallel_linear_forward(s, F, C, from, to, exact));
        if (to != BY_TOKEN) V(v, parallel_linear_backward_input(s, C, 2*F, to, from, exact));
        V(v, parallel_linear_backward_weight(s, C, 2*F, from, to, SET, exact));
        V(v, parallel_linear_backward_weight(s, C, 2*F, from, to, ADD, exact));
        V(v, parallel_linear_backward_weight(s, C, 2*F, from, to, SET_ROUNDED, exact));
        V(v, parallel_linear_backward_weight(s, F, C, from, to, odd ? ADD : SET, exact));
    }
    for (Rows rows = BY_SLOT; rows <= GROUPED; rows++)
        for (int given = 0; given < 4; given++) V(v, combine_forward(s, rows, given & 1, given >> 1, exact));
}
static Case *with_limits(Case *c, Case *dense, Case *even) { c->dense = dense, c->even = even; return c; }
/* Those of a model, in the layouts in which it uses them. */
static void each_product_of_a_model(const Visit *v) {
    const Shape *s = v->s;
    const int N = s->B * s->T, S = N * s->K, C = s->C, F = s->F, H = s->G * s->D;
    /* router, kv, head */
    const struct { int C, O, rows; } dense[] = { { C, s->E, N }, { C, 2*H, N }, { C, s->V, head_rows(s) } };
    const struct { int C, O; Rows inp, out, dinp, dout; } expert[] = {
        { C, 2*F, BY_TOKEN, GROUPED, GROUPED, GROUPED },        /* up */
        { F, C,   GROUPED,  GROUPED, GROUPED, BY_TOKEN },       /* down: its upstream gradient has a row per token */
        { C, H,   BY_TOKEN, BY_SLOT, GROUPED, BY_SLOT },        /* query */
        { H, C,   BY_SLOT,  GROUPED, BY_SLOT, BY_TOKEN },       /* attention's output */
    };
    for (int i = 0; i < 3; i++) {
        V(v, matmul_forward(s, dense[i].rows, dense[i].C, dense[i].O, 0));
        V(v, matmul_backward_input(s, dense[i].rows, dense[i].C, dense[i].O, i == 2 ? SET : ADD, 0));
        V(v, matmul_backward_weight(s, dense[i].rows, dense[i].C, dense[i].O, SET, 0));
    }
    for (int i = 0; i < 4; i++) {
        const int in = expert[i].C, out = expert[i].O;
        unplanned = 1;
        Case *even[] = { parallel_linear_forward(s, in, out, GROUPED, GROUPED, 0),
                         parallel_linear_backward_input(s, in, out, GROUPED, GROUPED, 0),
                         parallel_linear_backward_weight(s, in, out, GROUPED, GROUPED, SET, 0) };
        unplanned = 0;
        pass_on(v, NULL, with_limits(parallel_linear_forward(s, in, out, expert[i].inp, expert[i].out, 0),
                                     matmul_forward(s, S, in, out, 0), even[0]));
        pass_on(v, NULL, with_limits(parallel_linear_backward_input(s, in, out, expert[i].dinp, expert[i].dout, 0),
                                     matmul_backward_input(s, S, in, out, SET, 0), even[1]));
        pass_on(v, NULL, with_limits(parallel_linear_backward_weight(s, in, out, expert[i].inp, expert[i].dout, SET, 0),
                                     matmul_backward_weight(s, S, in, out, SET, 0), even[2]));
    }
    V(v, combine_forward(s, GROUPED, 1, 0, 0));
    V(v, combine_forward(s, GROUPED, 0, 0, 0));
}
static void each_of_routing(const Visit *v) {
    const Shape *s = v->s;
    const Scores last = v->all ? SIGMOID_EACH : TOPK_SOFTMAX;
    for (Scores scores = TOPK_SOFTMAX; scores <= last; scores++) {
        V(v, router_forward(s, scores, 0, 0, 0));
        V(v, router_losses(s, scores, 0));
        V(v, router_backward(s, scores, 0.5f, 0.25f, 0));
        if (!v->all) continue;
        V(v, router_losses(s, scores, 1));
        V(v, router_backward(s, scores, 0.5f, 0.25f, 1));
        V(v, router_forward(s, scores, 0, 0, 1));
        V(v, router_forward(s, scores, 1, 0, 0));
        V(v, router_forward(s, scores, 0, 1, 0));
        const int one_of = s->B * s->T * s->E > 1 << 16 ? 4 : 1;       /* large ones take long */
        for (int count = 2; count <= 4; count++)                /* half of the groups or more, enough for K experts */
            for (int chosen = (count + 1) / 2; chosen < count; chosen++) for (int by_best = 0; by_best < 2; by_best++)
                if (s->E % count == 0 && s->E / count > 1 && s->E / count * chosen >= s->K
                    && (scores + count + chosen + by_best) % one_of == 0)
                    V(v, router_forward_of_groups(s, scores, chosen == 1, 0, 0, (Groups){ count, chosen, by_best }));
        V(v, router_backward(s, scores, 0, 0, 0));
        V(v, router_backward(s, scores, 2, 0, 0));
        V(v, router_backward(s, scores, 0, 1, 0));
    }
    V(v, scale_weights(s));
    V(v, route_plan(s));
    if (s->routing != VARIED) V(v, route_discount(s));
    for (Scores scores = TOPK_SOFTMAX; scores <= last; scores++) V(v, route_round(s, scores));
    for (int relative = 0; relative < 2; relative++) V(v, router_bias(s, relative));
}
static void each_of_experts(const Visit *v) {
    for (Activation f = SWIGLU; f <= CLAMPED; f++) {
        if (!v->all && f != SWIGLU && f != IDENTITY) continue;
        const Rows first = v->all ? BY_TOKEN : f == IDENTITY ? BY_SLOT : GROUPED;
        V(v, activation_forward(v->s, f));
        for (Rows rows = first; rows <= (v->all ? GROUPED : first); rows++) V(v, activation_backward(v->s, f, rows));
        for (Rows rows = BY_TOKEN; rows <= (v->all ? GROUPED : BY_TOKEN) && f != IDENTITY; rows++) {
            V(v, expert_up_forward(v->s, f, rows));
            V(v, expert_down_backward(v->s, f, rows));
        }
    }
}
static void each_in_8_bits(const Visit *v) {
    const Shape *s = v->s;
    const int C = s->C, F = s->F;
    V(v, weight_to_codes(s, 2 * F, C));
    V(v, weight_from_codes(s, 2 * F, C, 0));
    if (C % MXFP4_BLOCK == 0) V(v, weight_from_codes(s, 2 * F, C, 1));
    if (C % FP8_BLOCK || F % FP8_BLOCK) return;
    V(v, fp8_rows(s));
    if (v->all) V(v, fp8_rows_table(s));
    V(v, fp8_weight(s, 2 * F, C));
    V(v, fp8_weight(s, C, F));
    V(v, fp8_up_forward(s));
    V(v, fp8_cross_entropy(s, 3 * FP8_BLOCK, 0));
    if (v->all && s->B * s->T < 100)                        /* wide rows: more than a block of threads at a time */
        V(v, fp8_cross_entropy(s, 66 * FP8_BLOCK, 1));
    for (int exact = 0; exact <= v->all; exact++) {
        V(v, fp8_linear(s, F, C, exact));                       /* down */
        V(v, fp8_linear(s, 2 * F, C, exact));                   /* the input gradient */
        for (int how = SET; how <= (v->all ? SET_ROUNDED : SET); how++)
            V(v, fp8_backward_weight(s, C, 2 * F, (Write)how, exact));
        V(v, fp8_backward_weight(s, F, C, SET, exact));
    }
    for (int kinds = 1; kinds < 4; kinds++) V(v, fp8_down_backward(s, kinds & 1, kinds >> 1));
    V(v, fp8_columns(s, C, BY_TOKEN));
    V(v, fp8_columns(s, 2 * F, GROUPED));
}
static void each_sum_and_norm(const Visit *v) {
    for (int mixed = -1; mixed < 4; mixed += v->all ? 1 : 4) {
        V(v, add_norm_forward(v->s, 1, 0, 0, mixed));
        V(v, add_norm_forward(v->s, 0, 0, 0, mixed));
    }
    for (int routes = 0; routes < 2 && v->all; routes++)
        V(v, add_norm_forward(v->s, routes, 0.3f, routes ? 0.22f : 0, routes ? -1 : 3));
    V(v, add_norm_backward(v->s, 1, 1, 1, 1, 0));               /* an MLP of experts, */
    V(v, add_norm_backward(v->s, 1, 1, 2, 1, 0));               /* a mixture of attention heads, */
    V(v, add_norm_backward(v->s, 0, 0, 2, 0, 0));               /* plain attention, */
    V(v, add_norm_backward(v->s, 0, 0, 2, 0, 1));               /* and with gates of values */
    if (v->all) V(v, add_norm_backward(v->s, 1, 1, 3, 0, 1));   /* a shared expert with a gate */
    for (int bias = 0; bias < 2 && v->all; bias++) {
        V(v, add_norm_backward(v->s, 1, 1, 0, bias, 0));
        V(v, add_norm_backward(v->s, 0, 1, 0, bias, 0));
        V(v, add_norm_backward(v->s, 0, 0, 1, bias, 0));
    }
}
static void each_of_attention(const Visit *v) {
    for (HeadOrder order = HEADS_TILED; order <= (v->all ? HEADS_GROUPED : HEADS_TILED); order++) {
        for (View view = FULL; view < (v->all ? VIEWS : PACKED); view++) {
            V(v, attention_forward(v->s, order, view));
            V(v, attention_backward(v->s, order, view));
            if (view != PACKED) V(v, attention_cached(v->s, order, view, 0));
            if (view != PACKED && v->all) V(v, attention_cached(v->s, order, view, 1));
        }
    }
    if (v->all) V(v, sink_forward(v->s));
    if (v->all) V(v, sink_backward(v->s));
    V(v, cache_store(v->s));
}
static void each_at_the_head(const Visit *v) {
    static const Sampler samplers[] = {
        { .temperature = 0.8f, .top_p = 0.95f }, { .temperature = 0, .top_p = 1 },
        { .temperature = 1, .top_p = 1 }, { .temperature = 1.5f, .top_p = 1, .top_k = 5 },      /* the others: if all */
        { .temperature = 3, .top_p = 0.9f, .top_k = 40, .min_p = 0.1f }, { .temperature = 2, .top_p = 0 },
    };
    const int rows = head_rows(v->s);
    V(v, cross_entropy(v->s, rows, 0, 0, 0, 0, v->all));
    V(v, cross_entropy(v->s, rows, 1, 0, 0, 0, v->all));
    V(v, cross_entropy(v->s, rows, 1, 0, 1, 0, v->all));
    V(v, cross_entropy(v->s, rows, 1, 0, 0, 1, v->all));
    if (v->all) V(v, cross_entropy(v->s, rows, 1, 1, 0, 0, v->all));
    if (v->all) V(v, cross_entropy(v->s, rows, 1, 0, 1, 1, v->all));
    V(v, soft_cap(v->s, rows));
    for (int i = 0; i < (v->all ? 6 : 2); i++) V(v, sample(v->s, rows, samplers[i]));
    V(v, advance(v->s));
}
static int coded_width(int C) { return (C + MOMENT_BLOCK - 1) / MOMENT_BLOCK * MOMENT_BLOCK; }
static void each_of_muon(const Visit *v) {
    const Shape *s = v->s;
    const int C = s->C, F = s->F, count = s->E < 8 || !v->all ? s->E : 8;
    V(v, orthogonalize(s, count, F, C));
    V(v, orthogonalize(s, count, C, F));
    if (count > MOST_SEGMENTS) return;
    V(v, muon_momentum(s, count, F, C, 1, REAL, FLOATX, 0.95f, 1, 2));
    V(v, muon_limits(s, count, 2, -1));
    V(v, muon_add(s, count, F, C, FLOATX, FLOATX));
    V(v, muon_momentum(s, count, F, coded_width(C), 1, INT8, FLOATX, 1, 0, 2));
    V(v, muon_add(s, count, F, coded_width(C), INT8, FLOATX));
    V(v, muon_scale(s, count, F, C, 2));
    V(v, muon_scale(s, count, C, F, 2));
    V(v, muon_update(s, count, F, C, 1, 2, 0, 0));
    V(v, muon_update(s, count, F, C, 1, 2, 1, 0));
    V(v, muon_update(s, count, F, C, 1, 2, 0, 1));
    if (!v->all) return;
    V(v, muon_momentum(s, count, F, C, 1, FLOATX, REAL, 1, 0, 2));
    V(v, muon_momentum(s, count, C, F, 1, REAL, REAL, 0.95f, 3, 2));
    V(v, muon_momentum(s, count, C, F, 0, REAL, FLOATX, 1, 3, 2));
    V(v, muon_momentum(s, count, F, C, 0, FLOATX, FLOATX, 0.95f, 0, 2));
    V(v, muon_momentum(s, count, F, C, 1, REAL, FLOATX, 0.95f, 1, INFINITY));
    V(v, muon_momentum(s, count, F, C, 1, FLOATX, -1, 0.95f, 1, 2));
    V(v, muon_limits(s, count, 0, -1));
    V(v, muon_limits(s, count, 2, count / 2));
    V(v, muon_limits(s, count, 2, -2));
    V(v, muon_add(s, count, C, F, REAL, FLOATX));
    V(v, muon_add(s, count, F, C, FLOATX, REAL));
    V(v, muon_momentum(s, count, F, coded_width(C), 0, INT8, REAL, 0.5f, 0, 2));
    V(v, muon_momentum(s, count, F, coded_width(C), 1, INT8, REAL, 0.5f, 0, NAN));
    V(v, muon_momentum(s, count, F, coded_width(C), 1, INT8, -1, 0.5f, 0, 2));
    V(v, muon_add(s, count, F, coded_width(C), INT8, REAL));
    V(v, muon_scale(s, count, F, F, 2));
    V(v, muon_scale(s, count, F, C, NAN));
    V(v, muon_update(s, count, C, F, 0, 2, 0, 0));
    V(v, muon_update(s, count, C, F, 0, 2, 1, 1));
    V(v, muon_update(s, count, C, F, 1, NAN, 0, 1));
}
static void each_of_the_optimizer(const Visit *v) {
    const Shape *s = v->s;
    V(v, sum(s));
    V(v, accumulate(s));
    for (Dtype grads = REAL; grads <= FLOATX; grads++) {
        V(v, grad_sq_norms(s, 3, grads));
        if (v->all) V(v, grad_sq_norms(s, MOST_SEGMENTS, grads));
        for (Dtype moments = REAL; moments <= FLOATX; moments++) {
            V(v, adamw(s, 0, moments, grads, 1, 3, 3, 0));
            V(v, adamw(s, 1, moments, grads, 1, 3, 3, 0));
            V(v, adamw(s, 1, moments, grads, 1, 3, 3, 1));
            if (!v->all) continue;
            V(v, adamw(s, 1, moments, grads, 1, 3, MOST_SEGMENTS, 0));
            V(v, adamw(s, 1, moments, grads, 0, 3, 3, 0));                     /* no clipping */
            V(v, adamw(s, 0, moments, grads, 5, 3, 3, 0));                     /* below the clip */
            V(v, adamw(s, 1, moments, grads, 1, INFINITY, 3, 0));
            V(v, adamw(s, 0, moments, grads, 0, NAN, 3, 0));
        }
    }
    V(v, set_master(s));
    each_of_muon(v);
}

void each_case(const Shape *s, int all, const char *only, void (*visit)(Case *c, void *context), void *context) {
    const Visit v = { s, all, only, visit, context };
    to_be_timed = !all;
    each_on_tokens(&v);
    for (int exact = 0; exact <= all; exact++) {
        each_column_sum(&v, exact);
        if (all) each_product(&v, exact);
    }
    if (!all) each_product_of_a_model(&v);
    each_of_routing(&v);
    each_of_experts(&v);
    each_in_8_bits(&v);
    each_sum_and_norm(&v);
    each_of_attention(&v);
    each_at_the_head(&v);
    each_of_the_optimizer(&v);
}

/* ---- a case and a device --------------------------------------------------------------------- */

double case_e4m3(int code) {
    const int e = code >> 3 & 15, m = code & 7;
    const double x = (code & 0x7f) == 0x7f ? NAN : e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return code & 0x80 ? -x : x;
}
int case_fits(const Case *c, const Device *dev) {
    return strncmp(c->op, "fp8", 3) || (dev->fp8 && dev->fp8->fits(c->C, c->s.F));
}

int case_find(const Case *c, const char *name) {
    for (int i = 0; i < c->buffers; i++) if (c->buffer[i].name && !strcmp(c->buffer[i].name, name)) return i;
    return -1;
}
static size_t size_of(const Buffer *b, const Device *dev) {
    return b->dtype == FLOATX ? dev->floatX_size : b->dtype == REAL ? dev->real_size
         : b->dtype == INTEGER ? sizeof(int) : 1;
}
/* Doubles to and from a device's memory. The first `given` are sent, then repeated up to n. */
static void put_floats(const Device *dev, const Buffer *b, void *to, const double *value, size_t given) {
    const size_t size = size_of(b, dev);
    if (b->dtype == FLOATX) dev->from_double(to, value, given);
    else dev->reals_from_double(to, value, given);
    for (size_t at = given, n; at < b->n; at += n) {        /* doubles the part that is filled */
        n = b->n - at < at ? b->n - at : at;
        dev->copy((char *)to + at * size, to, n * size);
    }
}
static void put(const Device *dev, const Buffer *b, void *to, const double *value) {
    if (b->dtype == FLOATX || b->dtype == REAL) { put_floats(dev, b, to, value, b->given); return; }
    int *full = mem_alloc(b->n * size_of(b, dev));
    unsigned char *byte = (unsigned char *)full;
    for (size_t i = 0; i < b->n; i++) {
        if (b->dtype == INTEGER) full[i] = (int)value[i % b->given];
        else byte[i] = (unsigned char)value[i % b->given];
    }
    dev->upload(to, full, b->n * size_of(b, dev));
    dev->sync();
    free(full);
}
static double *get(const Device *dev, const Buffer *b, const void *from) {
    double *value = mem_alloc(b->n * sizeof *value);
    if (b->dtype == FLOATX) dev->to_double(value, from, b->n);
    if (b->dtype == REAL) dev->reals_to_double(value, from, b->n);
    if (b->dtype >= INTEGER) {
        int *full = mem_alloc(b->n * size_of(b, dev));
        unsigned char *byte = (unsigned char *)full;
        dev->download(full, from, b->n * size_of(b, dev));
        for (size_t i = 0; i < b->n; i++) value[i] = b->dtype == INTEGER ? full[i] : byte[i];
        free(full);
    }
    return value;
}

void case_round(Case *c, const Device *dev) {
    for (int i = 0; i < c->buffers; i++) {
        Buffer *b = &c->buffer[i];
        if (!b->value || b->dtype >= INTEGER) continue;
        void *there = dev->alloc(b->n * size_of(b, dev));
        if (!there) fail(EXIT_MEMORY, "%s: no memory for %s of %s", dev->name, b->name, c->what);
        put(dev, b, there, b->value);
        free(b->value);
        b->value = get(dev, b, there);
        dev->release(there);
    }
}

/* Fills what has to be overwritten with values that cannot be right. */
static void poison(const Device *dev, const Buffer *b, void *at) {
    if (!b->n) return;
    if (b->dtype < INTEGER) {
        double nan[1024];
        for (int i = 0; i < 1024; i++) nan[i] = NAN;
        put_floats(dev, b, at, nan, b->n < 1024 ? b->n : 1024);
        return;
    }
    double *value = mem_alloc(b->n * sizeof *value);
    for (size_t i = 0; i < b->n; i++) value[i] = b->dtype == INTEGER ? -123456789 : 0x7f;       /* a code that is NaN */
    put(dev, b, at, value);
    free(value);
}
int case_allocate(CaseOnDevice *p, const Case *c, const Device *dev) {
    *p = (CaseOnDevice){ .c = c, .dev = dev };
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        const size_t bytes = b->n * size_of(b, dev);
        if (!b->name) continue;
        if (!(p->base[i] = dev->alloc(bytes + 2 * GUARD))) { case_release(p); return 0; }
        p->at[i] = (char *)p->base[i] + GUARD;
        unsigned char guard[GUARD];
        memset(guard, 0xA5, sizeof guard);
        dev->upload(p->base[i], guard, GUARD);
        dev->upload((char *)p->at[i] + bytes, guard, GUARD);
        dev->sync();
    }
    case_fill(p);
    return 1;
}
void case_fill(const CaseOnDevice *p) {
    for (int i = 0; i < p->c->buffers; i++) {
        const Buffer *b = &p->c->buffer[i];
        if (!b->name) continue;
        if (b->value) put(p->dev, b, p->at[i], b->value);
        else poison(p->dev, b, p->at[i]);
        p->dev->sync();
    }
}
void case_run(const CaseOnDevice *p) { p->c->call(p->dev, p->c, p->at); }
double *case_read(const CaseOnDevice *p, int i) {
    double *value = get(p->dev, &p->c->buffer[i], p->at[i]);
    if (p->c->buffer[i].dtype != CODES) return value;
    double *scale = case_read(p, i + 1);
    for (size_t j = 0; j < p->c->buffer[i].n; j++) value[j] = case_e4m3((int)value[j]) * scale[j / FP8_BLOCK];
    free(scale);
    return value;
}
void *case_bits(const CaseOnDevice *p, int i, size_t *bytes) {
    *bytes = p->c->buffer[i].n * size_of(&p->c->buffer[i], p->dev);
    void *bits = mem_alloc(*bytes);
    p->dev->download(bits, p->at[i], *bytes);
    return bits;
}
int case_guard(const CaseOnDevice *p, int i) {
    unsigned char guard[2 * GUARD];
    const size_t bytes = p->c->buffer[i].n * size_of(&p->c->buffer[i], p->dev);
    if (!p->base[i]) return 1;
    p->dev->download(guard, p->base[i], GUARD);
    p->dev->download(guard + GUARD, (char *)p->at[i] + bytes, GUARD);
    for (int j = 0; j < 2 * GUARD; j++) if (guard[j] != 0xA5) return 0;
    return 1;
}
void case_release(CaseOnDevice *p) {
    for (int i = 0; i < MOST_BUFFERS; i++) if (p->base[i]) p->dev->release(p->base[i]);
    *p = (CaseOnDevice){ 0 };
}
