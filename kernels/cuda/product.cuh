// product.cuh: the arguments of a matrix product grouped by expert, and the numbers of its tiles.
// The kinds of product, and what a, b and c are in each: the table at the top of matmul.cu.
#pragma once
#include "ptx.cuh"

typedef enum { FORWARD, INPUT, WEIGHT } ProductKind;

// The arguments of a product. A dense product has one expert.
typedef struct {
    const floatX *a, *b;
    void *c;                                // floatX; WEIGHT: real, or floatX if how == SET_ROUNDED
    // row i is row a_row[i] of a, or i if NULL (b_row: WEIGHT; c_row: FORWARD, INPUT)
    const int *a_row, *b_row, *c_row;
    Write how;                              // c += or c =
    const int *start;                       // expert e has rows start[e] .. start[e+1]-1; NULL: one expert has all
    int E, rows, C, O;                      // rows: of all experts
} Product;

template <ProductKind kind> struct Out { typedef floatX type; };
template <> struct Out<WEIGHT> { typedef real type; };

template <ProductKind kind> __host__ __device__ static inline int columns_of(const Product &p) {
    return kind == FORWARD ? p.O : p.C;
}

// ---- tiles --------------------------------------------------------------------------------------

// The last expert e with start[e]/height + e*step <= x, by a whole warp: 32 candidates at a time.
__device__ static inline int last_expert(const int *start, int E, int x, int height, int step) {
    int e = 0;
    for (int n = E; n > 1;) {
        const int stride = (n + 31) / 32, mine = threadIdx.x % 32 * stride;
        const unsigned yes = __ballot_sync(0xffffffffu, mine < n && start[e + mine] / height + (e + mine) * step <= x);
        const int skip = (__popc(yes) - 1) * stride;            // true for lane 0, always
        e += skip;
        n = min(stride, n - skip);
    }
    return e;
}

// A tile: its expert, whose first row and rows; first row m and column n in c. m < 0: no such tile.
typedef struct { int expert, first, rows, m, n; } TileCoord;

// Tile rows are numbered over all experts: those of expert e begin at start[e]/HEIGHT + e. So an
// expert has start[e+1]/HEIGHT - start[e]/HEIGHT + 1 numbers: always enough, sometimes one too
// many; rows/HEIGHT + E in total. A search in start finds a number's expert.
// Bands of 8 tile rows are numbered by columns: concurrent tiles share rows and columns in L2.
template <ProductKind kind, int HEIGHT, int WIDTH> __device__ static inline TileCoord
tile_coord(const Product &p, int tile) {
    const int across = (columns_of<kind>(p) + WIDTH - 1) / WIDTH;
    const int down = kind == WEIGHT ? (p.O + HEIGHT - 1) / HEIGHT : p.rows / HEIGHT + p.E;
    const int of_expert = kind == WEIGHT ? tile % (down * across) : tile;
    const int band = of_expert / (8 * across), within = of_expert % (8 * across), tall = min(8, down - band * 8);
    int i = band * 8 + within % tall;
    TileCoord at;
    at.expert = kind == WEIGHT ? tile / (down * across) : p.start ? last_expert(p.start, p.E, i, HEIGHT, 1) : 0;
    at.first = p.start ? p.start[at.expert] : 0;
    at.rows = p.start ? p.start[at.expert + 1] - at.first : p.rows;
    if (kind != WEIGHT) i -= at.first / HEIGHT + at.expert;
    at.m = i * HEIGHT;
    at.n = within / tall * WIDTH;
    if (kind == WEIGHT ? at.rows == 0 && p.how == ADD : at.m >= at.rows) at.m = -1;
    return at;
}

// How many numbers there are.
template <ProductKind kind, int HEIGHT, int WIDTH> static inline unsigned tile_count(const Product &p) {
    const size_t across = divide_up((size_t)columns_of<kind>(p), WIDTH);
    return (unsigned)(across * (kind == WEIGHT ? p.E * divide_up((size_t)p.O, HEIGHT)
                                               : (size_t)(p.rows / HEIGHT + p.E)));
}

// ---- on the host --------------------------------------------------------------------------------

// The arguments of a dense product, and of one whose experts have the rows of a plan.
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
// The same products with Hopper's instructions (hopper/rows.cu, hopper/weight.cu). Returns false,
// having done nothing, if this GPU or these sizes and addresses do not allow it.
bool hopper_product_forward(const Product &p);
bool hopper_product_input(const Product &p);
bool hopper_product_weight(const Product &p);
#endif
