/* matmul.c: every matrix product of the model, dense or by expert, forward and backward: one GEMM.
 *
 * With rows of a and b as vectors over k, each product is, for every expert (one if dense),
 *
 *     c[m][n] = sum over k of  a[m][k] * b[n][k]
 *
 *                        m                 n          k           a[m][k]           b[n][k]
 *     forward            rows of e         O          C           inp[row m][k]     weight[e][n][k]
 *     backward_input     rows of e         C          O           dout[row m][k]    weight[e][k][n]
 *     backward_weight    O                 C          rows of e   dout[row k][m]    inp[row k][n]
 *
 * Three plain loops reach a few percent of a machine's peak: a core can start two vector FMAs a
 * cycle, and each needs three numbers from memory. So use a number many times once it is near:
 *
 *   registers  the micro-kernel keeps a tile of c, MR x NR with NR two vectors, during its whole
 *              loop over k. A step loads 2 vectors of b and MR numbers of a for 2*MR vector FMAs.
 *              With AVX-512 MR = 12: 24 sums + 2 of b + 1 of a are 27 of 32 registers; 14 loads in
 *              12 cycles, which could do 24; 24 independent sums, where 2 units x 4 cycles need 8.
 *   L1         a panel of b, NR columns x KC: 32 * 272 floats = 34 KB of 48 (AVX2: 17 of 32). It is
 *              used for MA rows of a, whose panels of MR x KC (13 KB) stream through from L2.
 *   L2         a block of b, NB columns x KC: 256 * 272 floats = 272 KB of 512 to 2048, and MA rows
 *              of a (51 KB); backward_weight: MB rows (306 KB; AVX2: 153).
 *
 * Packing, that is copying numbers into panels in the order of use and widening them to real, costs
 * about as much as eight FMAs for each number, more if they come from memory. So rows are read in
 * order, and a few of them are prefetched. b is packed once for up to MB rows of c (TALL, if one
 * block of k is all), a once for up to NB columns. Packing also gathers rows (the idea of
 * ParallelLinear: a routed row is read and written in place), and transposes b if k is its fast
 * dimension. a may have either order: one number of it at a time goes to all lanes.
 *
 * A job is a tile of one expert's c. Threads take jobs from a common list, large ones first and
 * small ones at the end, so that all finish at about the same time however uneven the experts are.
 * An element of c belongs to one job, and its sum runs over k = 0, 1, 2, ... in blocks of KC for
 * any tile: the bits depend on neither tiles nor threads.
 *
 * With a small number of rows (decoding a token) the time is that of reading the weights: forward
 * then uses them without packing (small_rows). The choice depends on the number of rows alone. */
#include "matmul.h"

#if defined(__AVX512F__) || defined(__aarch64__)
#define MR 12
#else                                       /* 16 registers: 12 sums + 2 of b + 1 of a */
#define MR 6
#endif
#if defined(PRECISION_F64)
typedef int64_t lane_index;
#else
typedef int32_t lane_index;
#endif
typedef real vec __attribute__((vector_size(VECTOR_BYTES)));         /* aligned, for registers and panels */

enum {
    NR = 2 * LANES,
    KC = 272,           /* a multiple of LANES; with a power of two, rows of a panel would be in the same sets of L1 */
    NB = 256,                               /* a multiple of NR */
    MA = 4 * MR,
    MB = 6 * MA,
    TALL = 4 * MB,
    AHEAD = 8,                              /* rows that are prefetched while one is packed */
    SMALL = 4                               /* small_rows is faster up to this many rows */
};

static inline size_t at_most(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }

static inline vec load(const floatX *p) {
#if defined(PRECISION_BF16)                 /* bf16 is the upper half of a float */
    typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
    typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));
    return (vec)(__builtin_convertvector(*(const halves *)p, words) << 16);
#else
    return *(const Vector *)p;
#endif
}

static inline void store(real *p, vec v) { *(Vector *)p = v; }

static inline vec load_some(const floatX *p, size_t n) {        /* the first n lanes, then zeros */
    if (n >= LANES) return load(p);
    vec v = { 0 };
    for (size_t i = 0; i < n; i++) v[i] = R(p[i]);
    return v;
}

/* Interleaves two vectors, LOW their lower halves (a0 b0 a1 b1 ...), HIGH their upper halves. */
#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef lane_index indices __attribute__((vector_size(VECTOR_BYTES)));
#define PICK(a, b, ...) __builtin_shuffle(a, b, (indices){ __VA_ARGS__ })
#endif
#if LANES == 16
#define LOW(a, b)  PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif LANES == 8
#define LOW(a, b)  PICK(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH(a, b) PICK(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif LANES == 4
#define LOW(a, b)  PICK(a, b, 0, 4, 1, 5)
#define HIGH(a, b) PICK(a, b, 2, 6, 3, 7)
#else
#define LOW(a, b)  PICK(a, b, 0, 2)
#define HIGH(a, b) PICK(a, b, 1, 3)
#endif

/* v[i][j] <-> v[j][i]. A round moves the top bit of the lane to the bottom of the row number, and
 * the other way round; after log2(LANES) rounds the two numbers are exchanged. */
static inline void transpose(vec v[LANES]) {
    for (int round = 1; round < LANES; round *= 2) {
        vec w[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            w[2 * i] = LOW(v[i], v[i + LANES / 2]);
            w[2 * i + 1] = HIGH(v[i], v[i + LANES / 2]);
        }
        for (int i = 0; i < LANES; i++) v[i] = w[i];
    }
}

/* Lane i of the result is the sum of the lanes of v[i]: each round halves the number of vectors. */
static inline vec sums(vec v[LANES]) {
    for (int n = LANES / 2; n >= 1; n /= 2)
        for (int i = 0; i < n; i++) v[i] = LOW(v[i], v[i + n]) + HIGH(v[i], v[i + n]);
    return v[0];
}

/* ---- a product, and its slice for one expert ------------------------------------------------- */

typedef struct { const floatX *data; size_t width; const int *row; } Matrix;      /* row i is row[i] of data; NULL: i */
typedef enum { FORWARD, INPUT, WEIGHT } ProductKind;
typedef struct {
    ProductKind kind;
    Matrix a, b;
    floatX *out; const int *out_row;                            /* FORWARD, INPUT */
    real *dweight;                                              /* WEIGHT */
    Write how;
    const int *start; int E, C, O;
    int symmetric;                                  /* c is, and only its panels that reach the diagonal are computed */
} Product;
typedef struct { size_t m, n, k, a, b, c; } Slice;              /* of one expert: sizes; its first row in a, b and c */

static const floatX *row_of(Matrix x, size_t i) { return x.data + (x.row ? (size_t)x.row[i] : i) * x.width; }

static Slice slice_of(const Product *p, int e) {
    size_t first = (size_t)p->start[e], rows = (size_t)p->start[e + 1] - first;
    size_t C = (size_t)p->C, O = (size_t)p->O, w = (size_t)e * O;
    if (p->kind == FORWARD) return (Slice){ rows, O, C, first, w, first };
    if (p->kind == INPUT) return (Slice){ rows, C, O, first, w, first };
    return (Slice){ O, rows ? C : 0, rows, first, first, w };   /* without rows nothing is added */
}

static size_t row_of_c(const Product *p, Slice s, size_t i) {
    return p->out_row ? (size_t)p->out_row[s.c + i] : s.c + i;
}

/* Stores n finished sums of row i of c, from column j on, rounded once. */
static void write(const Product *p, Slice s, size_t i, size_t j, size_t n, const real *restrict sum) {
    size_t at = row_of_c(p, s, i) * s.n + j;
    if (p->kind == WEIGHT) for (size_t x = 0; x < n; x++) p->dweight[at + x] += sum[x];
    else if (p->how == ADD) for (size_t x = 0; x < n; x++) p->out[at + x] = X(R(p->out[at + x]) + sum[x]);
    else for (size_t x = 0; x < n; x++) p->out[at + x] = X(sum[x]);
}

/* ---- many rows: packed panels ---------------------------------------------------------------- */

/* Prefetches row i, if it is one of n: rows may be anywhere, which no processor foresees. */
static inline void prefetch_row(Matrix x, size_t r0, size_t i, size_t n, size_t c0, size_t columns) {
    if (i >= n) return;
    const floatX *row = row_of(x, r0 + i) + c0;
    for (size_t c = 0; c < columns; c += 64 / sizeof *row) __builtin_prefetch(row + c);
}

/* to[r*KC + c] = element (r0 + r, c0 + c) of x. */
static void pack(real *to, Matrix x, size_t r0, size_t rows, size_t c0, size_t columns) {
    for (size_t r = 0; r < rows; r++, to += KC) {
        const floatX *from = row_of(x, r0 + r) + c0;
        size_t c = 0;
        prefetch_row(x, r0, r + AHEAD, rows, c0, columns);
        for (; c + LANES <= columns; c += LANES) store(to + c, load(from + c));
        for (; c < columns; c++) to[c] = R(from[c]);
    }
}

/* The same in panels of `width` columns, a constant and a multiple of LANES:
 * to[c/width*width*rows + r*width + c%width]. The last panel is padded with zeros. */
static inline __attribute__((always_inline))
void pack_panels(real *to, const size_t width, Matrix x, size_t r0, size_t rows, size_t c0, size_t columns) {
    for (size_t r = 0; r < rows; r++, to += width) {
        const floatX *from = row_of(x, r0 + r) + c0;
        size_t c = 0;
        prefetch_row(x, r0, r + AHEAD, rows, c0, columns);
        for (; c + width <= columns; c += width)
            for (size_t i = 0; i < width; i += LANES) store(to + c * rows + i, load(from + c + i));
        for (size_t i = 0; c < columns && i < width; i += LANES)
            store(to + c * rows + i, c + i < columns ? load_some(from + c + i, columns - c - i) : (vec){ 0 });
    }
}

/* One panel, transposed: to[c*pitch + r] = element (r0 + r, c0 + c) of x. Rows end with zeros. */
static void pack_transposed(real *to, size_t pitch, Matrix x, size_t r0, size_t rows, size_t c0, size_t columns) {
    for (size_t r = 0; r < rows; r += LANES) {
        const floatX *from[LANES];
        size_t some = at_most(LANES, rows - r);
        for (size_t i = 0; i < some; i++) from[i] = row_of(x, r0 + r + i) + c0;
        for (size_t c = 0; c < columns; c += LANES) {
            size_t n = at_most(LANES, columns - c);
            vec v[LANES];
            if (some == LANES && n == LANES) for (int i = 0; i < LANES; i++) v[i] = load(from[i] + c);
            else for (size_t i = 0; i < LANES; i++) v[i] = i < some ? load_some(from[i] + c, n) : (vec){ 0 };
            transpose(v);
            if (n == LANES) for (int i = 0; i < LANES; i++) store(to + (c + i) * pitch + r, v[i]);
            else for (size_t i = 0; i < n; i++) store(to + (c + i) * pitch + r, v[i]);
        }
    }
}

/* The micro-kernel. a: mr rows, KC apart, or, by_k, mr numbers of each k, MA apart; b: NR numbers
 * for each k; to: NR sums in each of mr rows, prefetched because they may be far away. mr and by_k
 * are constants in each copy of this function, so that `s` is registers. */
static inline __attribute__((always_inline))
void multiply(int mr, int by_k, size_t kc, const real *restrict a, const real *restrict b, real *const *to, int add) {
    const size_t row = by_k ? 1 : KC;
    for (int i = 0; i < mr; i++) __builtin_prefetch(to[i], 1), __builtin_prefetch(to[i] + NR - 1, 1);
    vec s[12][2] = { 0 };
    for (size_t k = 0; k < kc; k++, a += by_k ? MA : 1, b += NR) {
        vec b0 = *(const vec *)b, b1 = *(const vec *)(b + LANES);
        UNROLL(12)
        for (int i = 0; i < mr; i++) {
            s[i][0] += a[(size_t)i * row] * b0;
            s[i][1] += a[(size_t)i * row] * b1;
        }
    }
    UNROLL(12)
    for (int i = 0; i < mr; i++) {
        Vector *c = (Vector *)to[i];
        if (add) s[i][0] += c[0], s[i][1] += c[1];
        c[0] = s[i][0], c[1] = s[i][1];
    }
}
typedef void Multiply(size_t kc, const real *a, const real *b, real *const *to, int add);
#define MULTIPLY(mr) \
    static void multiply_##mr(size_t kc, const real *a, const real *b, real *const *to, int add) { \
        multiply(mr, 0, kc, a, b, to, add); \
    } \
    static void multiply_by_k_##mr(size_t kc, const real *a, const real *b, real *const *to, int add) { \
        multiply(mr, 1, kc, a, b, to, add); \
    }
MULTIPLY(1) MULTIPLY(2) MULTIPLY(3) MULTIPLY(4) MULTIPLY(5) MULTIPLY(6)
MULTIPLY(7) MULTIPLY(8) MULTIPLY(9) MULTIPLY(10) MULTIPLY(11) MULTIPLY(12)
static Multiply *const multiply_rows[2][13] = {
    { NULL, multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
      multiply_7, multiply_8, multiply_9, multiply_10, multiply_11, multiply_12 },
    { NULL, multiply_by_k_1, multiply_by_k_2, multiply_by_k_3, multiply_by_k_4, multiply_by_k_5, multiply_by_k_6,
      multiply_by_k_7, multiply_by_k_8, multiply_by_k_9, multiply_by_k_10, multiply_by_k_11, multiply_by_k_12 }
};

typedef struct { real a[MB * KC], b[NB * KC], c[MB * NB]; } Panels;      /* 0.9 MB of stack for f32, 1.8 for f64 */

static void pack_b(const Product *p, Slice s, real *b, size_t k0, size_t kc, size_t n0, size_t columns) {
    if (p->kind != FORWARD) pack_panels(b, NR, p->b, s.b + k0, kc, n0, columns);
    else for (size_t n = 0; n < columns; n += NR)
        pack_transposed(b + n * kc, NR, p->b, s.b + n0 + n, at_most(NR, columns - n), k0, kc);
}

/* At most MB x NB elements of c, from (m0, n0) on. Sums are in c itself where it holds reals and
 * they fill a panel, else in x->c until they are rounded. has_b: x->b is packed already. */
static void block(const Product *p, Slice s, size_t m0, size_t rows, size_t n0, size_t columns, Panels *x, int has_b) {
    const int by_k = p->kind == WEIGHT;
    int reals = p->kind == WEIGHT || (sizeof(real) == sizeof(floatX));
    real *out = p->kind == WEIGHT ? p->dweight : (real *)p->out;
    size_t direct = reals ? columns / NR * NR : 0;
    for (size_t k0 = 0; k0 < s.k; k0 += KC) {
        size_t kc = at_most(KC, s.k - k0);
        if (!has_b) pack_b(p, s, x->b, k0, kc, n0, columns);
        if (by_k) pack_panels(x->a, MA, p->a, s.a + k0, kc, m0, rows);
        for (size_t m = 0; m < rows && !(p->symmetric && m0 + m >= n0 + columns); m += MA) {
            size_t ma = at_most(MA, rows - m);
            const real *a = by_k ? x->a + m * kc : x->a;
            if (!by_k) pack(x->a, p->a, s.a + m0 + m, ma, k0, kc);
            for (size_t n = 0; n < columns; n += NR)
                for (size_t i = m; i < m + ma; i += MR) {
                    if (p->symmetric && m0 + i >= n0 + n + NR) break;
                    size_t mr = at_most(MR, m + ma - i);
                    int here = n < direct;
                    real *to[MR];
                    for (size_t r = 0; r < mr; r++)
                        to[r] = here ? out + row_of_c(p, s, m0 + i + r) * s.n + n0 + n : x->c + (i + r) * NB + n;
                    multiply_rows[by_k][mr](kc, a + (i - m) * (by_k ? 1 : KC), x->b + n * kc, to,
                                            k0 > 0 || (here && p->how == ADD));
                }
        }
    }
    for (size_t m = 0; m < rows; m++) {
        const size_t panel = p->symmetric && m0 + m > n0 ? (m0 + m - n0) / NR * NR : 0,
            from = direct > panel ? direct : panel;
        if (from < columns) write(p, s, m0 + m, n0 + from, columns - from, x->c + m * NB + from);
    }
}

/* The tile of c from (m0, n0) on. One that is higher than MB has one block of k: b stays packed. */
static void tile(const Product *p, Slice s, size_t m0, size_t rows, size_t n0, size_t columns) {
    Panels x __attribute__((aligned(64)));
    for (size_t m = 0; m < rows; m += MB)
        block(p, s, m0 + m, at_most(MB, rows - m), n0, columns, &x, m > 0);
}

/* ---- few rows, forward: LANES rows of weights at a time with one row of inp ---------------------
 * Both are contiguous along k; a product of vectors is LANES partial sums, added at the end. */
static vec dot_products(const floatX *a, const floatX *const b[LANES], size_t k) {
    vec s[LANES];
    for (int l = 0; l < LANES; l++) {                   /* row by row: contiguous memory, one stream to prefetch */
        vec even = { 0 }, odd = { 0 };
        size_t i = 0;
        for (; i + 2*LANES <= k; i += 2*LANES) {
            even += load(a + i) * load(b[l] + i);
            odd += load(a + i + LANES) * load(b[l] + i + LANES);
        }
        for (; i < k; i += LANES) even += load_some(a + i, k - i) * load_some(b[l] + i, k - i);
        s[l] = even + odd;
    }
    return sums(s);
}

static void small_rows(const Product *p, Slice s, size_t n0, size_t columns) {
    for (size_t n = n0; n < n0 + columns; n += LANES) {
        const floatX *weight[LANES];
        for (size_t l = 0; l < LANES; l++) weight[l] = row_of(p->b, s.b + at_most(n + l, s.n - 1));
        for (size_t m = 0; m < s.m; m++) {
            vec c = dot_products(row_of(p->a, s.a + m), weight, s.k);
            write(p, s, m, n, at_most(LANES, n0 + columns - n), (const real *)&c);
        }
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* The tiles of an expert's c: about equal, at most NB wide and MB high (TALL, if one block of k is
 * all), and of at most `most` FMAs unless they are MA x NR. */
typedef struct { size_t rows, columns, down, across; } Tiling;
static Tiling tiling_of(Slice s, double most) {
    Tiling t = { s.k <= KC ? TALL : MB, NB, 0, 0 };
    for (;;) {
        t.down = divide_up(s.m, t.rows), t.across = divide_up(s.n, t.columns);
        if (!t.down || !t.across) return t;
        t.rows = divide_up(divide_up(s.m, t.down), MA) * MA;
        t.columns = divide_up(divide_up(s.n, t.across), NR) * NR;
        if ((double)t.rows * t.columns * s.k <= most) return t;
        if (t.rows > MA && (t.rows >= t.columns || t.columns == NR)) t.rows = divide_up(t.rows / 2, MA) * MA;
        else if (t.columns > NR) t.columns = divide_up(t.columns / 2, NR) * NR;
        else return t;
    }
}

static long next_job(long *next) {
    long job;
#pragma omp atomic capture
    job = (*next)++;
    return job;
}

static void run(const Product *p) {
    int rows = p->start[p->E], parts = omp_in_parallel() ? 1 : 2 * omp_get_max_threads();
    double each = (double)p->C * p->O;                  /* FMAs of a row; 16 of them count as one operation */
    long next = 0;
#pragma omp parallel PARALLEL_IF(rows * each / 16)
    {
        long job = next_job(&next), first = 0;    /* every thread walks the list of all jobs and runs those it drew */
        for (int e = 0; e < p->E; e++) {
            Slice s = slice_of(p, e);
            /* a part of the work of this and later experts */
            Tiling t = tiling_of(s, (rows - p->start[e]) * each / parts);
            long count = (long)(t.down * t.across);
            for (; job < first + count; job = next_job(&next)) {
                size_t at = (size_t)(job - first), m0 = at / t.across * t.rows, n0 = at % t.across * t.columns;
                size_t tall = at_most(t.rows, s.m - m0), wide = at_most(t.columns, s.n - n0);
                if (p->kind == FORWARD && s.m <= SMALL) small_rows(p, s, n0, wide);
                else tile(p, s, m0, tall, n0, wide);
            }
            first += count;
        }
    }
}

/* ---- ParallelLinear -----------------------------------------------------------------------------
 * For every row of expert e, with x and y its rows of inp and out:  y = x W[e]^T. */

static const int *rows_of(const Plan *plan, Rows rows) {
    return rows == GROUPED ? NULL : rows == BY_SLOT ? plan->slot_of_row : plan->token_of_row;
}

static void parallel_linear_forward(OUT floatX *out, const floatX *inp, const floatX *weight, const Plan *plan,
                                    int C, int O, Rows inp_rows, Rows out_rows) {
    run(&(Product){ .kind = FORWARD, .a = { inp, (size_t)C, rows_of(plan, inp_rows) }, .b = { weight, (size_t)C, NULL },
                    .out = out, .out_row = rows_of(plan, out_rows),
                    .start = plan->start, .E = plan->E, .C = C, .O = O });
}

/* y_o = sum_c W_oc x_c, so dL/dx_c = sum_o dL/dy_o W_oc:  dx = dy W[e], a product over O. */
static void parallel_linear_backward_input(OUT floatX *dinp, const floatX *dout, const floatX *weight,
                                           const Plan *plan, int C, int O, Rows dinp_rows, Rows dout_rows) {
    run(&(Product){ .kind = INPUT, .a = { dout, (size_t)O, rows_of(plan, dout_rows) }, .b = { weight, (size_t)C, NULL },
                    .out = dinp, .out_row = rows_of(plan, dinp_rows), .how = SET,
                    .start = plan->start, .E = plan->E, .C = C, .O = O });
}

/* Every row of e uses W[e]: dL/dW_oc = sum over rows of dL/dy_o x_c:  dW[e] = dy^T x. */
static void parallel_linear_backward_weight(void *dweight, const floatX *dout, const floatX *inp,
                                            const Plan *plan, int C, int O, Rows inp_rows, Rows dout_rows, Write how) {
    const size_t all = (size_t)plan->E * (size_t)O * (size_t)C;
    if (how == SET_ROUNDED && sizeof(floatX) != sizeof(real)) {                /* sums first, then rounding */
        real *sum = scratch(all * sizeof *sum);
        parallel_linear_backward_weight(sum, dout, inp, plan, C, O, inp_rows, dout_rows, SET);
        #pragma omp parallel for simd PARALLEL_IF(all)
        for (size_t i = 0; i < all; i++) ((floatX *)dweight)[i] = X(sum[i]);
        free(sum);
        return;
    }
    if (how != ADD) memset(dweight, 0, all * sizeof(real));
    run(&(Product){ .kind = WEIGHT, .a = { dout, (size_t)O, rows_of(plan, dout_rows) },
                    .b = { inp, (size_t)C, rows_of(plan, inp_rows) }, .dweight = dweight, .how = ADD,
                    .start = plan->start, .E = plan->E, .C = C, .O = O });
}

/* ---- symmetric products: an element and its mirror image are the same sum, in one order ------ */

void DEVICE(complete_symmetric)(floatX *x, size_t k) {
    for (size_t r = 0; r < k; r += LANES)               /* rows r.. of the upper half become columns of the lower */
        for (size_t c = r; c < k; c += LANES) {
            const size_t rows = at_most(LANES, k - r), columns = at_most(LANES, k - c);
            if (sizeof(floatX) == sizeof(real) && rows == LANES && columns == LANES && c > r) {
                vec v[LANES];
                for (int i = 0; i < LANES; i++) v[i] = load(x + (r + (size_t)i) * k + c);
                transpose(v);
                for (int i = 0; i < LANES; i++) store((real *)x + (c + (size_t)i) * k + r, v[i]);
            } else
                for (size_t i = 0; i < rows; i++)
                    for (size_t j = 0; j < columns; j++)
                        if (c + j > r + i) x[(c + j) * k + r + i] = x[(r + i) * k + c + j];
        }
}

void DEVICE(symmetric_product)(OUT floatX *out, const floatX *x, int rows, int columns, int transposed) {
    const size_t k = (size_t)(transposed ? columns : rows);
    const int start[2] = { 0, rows }, rounds = transposed && sizeof(floatX) != sizeof(real);
    const Matrix all = { x, (size_t)columns, NULL };
    real *sum = rounds ? scratch(k * k * sizeof *sum) : (real *)out;
    if (transposed) memset(sum, 0, k * k * sizeof *sum);
    run(&(Product){ .kind = transposed ? WEIGHT : FORWARD, .a = all, .b = all, .out = out,
                    .dweight = sum, .how = transposed ? ADD : SET, .start = start, .E = 1, .C = columns,
                    .O = transposed ? columns : rows, .symmetric = 1 });
    for (size_t i = 0; i < (rounds ? k * k : 0); i++) out[i] = X(sum[i]);
    if (rounds) free(sum);
    DEVICE(complete_symmetric)(out, k);
}

/* ---- dense: one expert, with all rows in order ----------------------------------------------- */

static Plan one_expert(int *start, int N) {
    start[0] = 0, start[1] = N;
    return (Plan){ .N = N, .E = 1, .K = 1, .start = start };
}

/* out = inp W^T */
static void matmul_forward(OUT floatX *out, const floatX *inp, const floatX *weight, int N, int C, int O) {
    int start[2];
    Plan plan = one_expert(start, N);
    parallel_linear_forward(out, inp, weight, &plan, C, O, GROUPED, GROUPED);
}

/* dinp = dout W, or dinp += dout W where inp is the input of other products too */
static void matmul_backward_input(floatX *dinp, const floatX *dout, const floatX *weight, int N, int C, int O,
                                  Write how) {
    int start[2] = { 0, N };
    run(&(Product){ .kind = INPUT, .a = { dout, (size_t)O, NULL }, .b = { weight, (size_t)C, NULL },
                    .out = dinp, .how = how, .start = start, .E = 1, .C = C, .O = O });
}

void DEVICE(product)(OUT floatX *out, const floatX *a, const floatX *b, int rows, int k, int columns) {
    matmul_backward_input(out, a, b, rows, columns, k, SET);
}

/* dW = dout^T inp, or dW += dout^T inp */
static void matmul_backward_weight(void *dweight, const floatX *dout, const floatX *inp, int N, int C, int O,
                                   Write how) {
    int start[2];
    Plan plan = one_expert(start, N);
    parallel_linear_backward_weight(dweight, dout, inp, &plan, C, O, GROUPED, GROUPED, how);
}

PART(matmul) {
    d->matmul_forward = matmul_forward;
    d->matmul_backward_input = matmul_backward_input;
    d->matmul_backward_weight = matmul_backward_weight;
    d->parallel_linear_forward = parallel_linear_forward;
    d->parallel_linear_backward_input = parallel_linear_backward_input;
    d->parallel_linear_backward_weight = parallel_linear_backward_weight;
}
