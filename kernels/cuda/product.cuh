// product.cuh: what matmul.cu and hopper.cu share: a matrix product grouped by expert, and which tile of it is whose.
// The three kinds of product, and what a, b and c are in each: the table at the top of matmul.cu.
#pragma once
#include "ptx.cuh"

typedef enum { FORWARD, INPUT, WEIGHT } Kind;

typedef struct {
    const floatX *a, *b;
    void *c;                                // floatX; WEIGHT: real, or, SET_ROUNDED, floatX
    const int *a_row, *b_row, *c_row;       // where row i of a, of b (WEIGHT), of c (FORWARD, INPUT) lies; NULL: at i
    Write how;                              // c += or c =
    const int *start;                       // rows of expert e: start[e] .. start[e+1]-1; NULL: one expert has all
    int E, rows, C, O;                      // rows: of all experts
} Product;

template <Kind kind> struct Out { typedef floatX type; };
template <> struct Out<WEIGHT> { typedef real type; };

template <Kind kind> __host__ __device__ static inline int columns_of(const Product &p) { return kind == FORWARD ? p.O : p.C; }

// ---- which tile of which expert is whose ------------------------------------------------------------------------------

// The last expert e with start[e]/height + e*step <= x, found by a whole warp: 32 candidates at a time.
__device__ static inline int last_expert(const int *start, int E, int x, int height, int step) {
    int e = 0;
    for (int n = E; n > 1;) {
        const int stride = (n + 31) / 32, mine = threadIdx.x % 32 * stride;
        const unsigned yes = __ballot_sync(0xffffffffu, mine < n && start[e + mine] / height + (e + mine) * step <= x);
        const int skip = (__popc(yes) - 1) * stride;            // lane 0 always says yes
        e += skip;
        n = min(stride, n - skip);
    }
    return e;
}

// Expert, its first row and their number; first row and column of the tile in the expert's c. No tile: m < 0.
typedef struct { int expert, first, rows, m, n; } Place;

// Rows of tiles are numbered over all experts, those of e from start[e]/HEIGHT + e on. That leaves each expert room for
// start[e+1]/HEIGHT - start[e]/HEIGHT + 1 of them, enough wherever it begins, and one too many at times; all in all
// rows/HEIGHT + E; and to find e from the number takes no table, only a search in start.
// A band of 8 rows of tiles is done column by column, so that tiles that are made together share what they read.
template <Kind kind, int HEIGHT, int WIDTH> __device__ static inline Place place_of(const Product &p, int tile) {
    const int across = (columns_of<kind>(p) + WIDTH - 1) / WIDTH;
    const int down = kind == WEIGHT ? (p.O + HEIGHT - 1) / HEIGHT : p.rows / HEIGHT + p.E;
    const int of_expert = kind == WEIGHT ? tile % (down * across) : tile;
    const int band = of_expert / (8 * across), within = of_expert % (8 * across), tall = min(8, down - band * 8);
    int i = band * 8 + within % tall;
    Place at;
    at.expert = kind == WEIGHT ? tile / (down * across) : p.start ? last_expert(p.start, p.E, i, HEIGHT, 1) : 0;
    at.first = p.start ? p.start[at.expert] : 0;
    at.rows = p.start ? p.start[at.expert + 1] - at.first : p.rows;
    if (kind != WEIGHT) i -= at.first / HEIGHT + at.expert;
    at.m = i * HEIGHT;
    at.n = within / tall * WIDTH;
    if (kind == WEIGHT ? at.rows == 0 && p.how == ADD : at.m >= at.rows) at.m = -1;
    return at;
}

template <Kind kind, int HEIGHT, int WIDTH> static inline unsigned blocks_for(const Product &p) {
    const size_t across = divide_up((size_t)columns_of<kind>(p), WIDTH);
    return (unsigned)(across * (kind == WEIGHT ? p.E * divide_up((size_t)p.O, HEIGHT) : (size_t)(p.rows / HEIGHT + p.E)));
}

// One expert that has all rows; or those of a plan.
static inline Product dense(const floatX *a, const floatX *b, void *c, int rows, int C, int O) {
    Product p = {};
    p.a = a, p.b = b, p.c = c, p.E = 1, p.rows = rows, p.C = C, p.O = O;
    return p;
}

static inline const int *rows_of(const Plan *plan, Rows rows) {
    return rows == GROUPED ? NULL : rows == BY_SLOT ? plan->slot_of_row : plan->token_of_row;
}

static inline Product routed(const floatX *a, const floatX *b, void *c, const Plan *plan, int C, int O) {
    Product p = dense(a, b, c, plan->S, C, O);
    p.start = plan->start, p.E = plan->E;
    return p;
}

#if defined(PRECISION_BF16)
// The same products by Hopper's own instructions (hopper.cu). False: not on this GPU, not for these sizes; nothing was done.
bool hopper_forward(const Product &p);
bool hopper_input(const Product &p);
bool hopper_weight(const Product &p);
#endif
