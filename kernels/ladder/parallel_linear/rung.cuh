// rung.cuh: what all rungs of ParallelLinear share: the arguments, and which rows of which expert a block works on.
//
//     out[row i] = inp[row i] weight[e]^T     for the rows i of each expert e: start[e] .. start[e+1]-1
//
// Rows lie where they lie: row i of an operand is found through a list (token_of_row, slot_of_row; none if sorted). From
// the first rung on, the product itself looks up where a row is (Tan et al. 2024, ScatterMoE, arXiv 2403.08245): what is
// copied before it is multiplied may as well come from anywhere, and no sorted copy of inp ever exists.
#pragma once
#include "kernels/cuda/ptx.cuh"
extern "C" {
#include "kernels/ladder/ladder.h"
}

typedef struct {
    floatX *out;
    const floatX *inp, *weight;
    const int *start, *inp_row, *out_row;       // where row i of inp and out lies; NULL: at i
    int E, S, C, O;
    bool vectors;                               // rows of inp and weight are multiples of 16 bytes
} Product;

static inline Product product(floatX *out, const floatX *inp, const floatX *weight, const Plan *plan,
                              int C, int O, Rows inp_rows, Rows out_rows) {
    const int *const list[] = { plan->token_of_row, plan->slot_of_row, NULL };      // by Rows
    const bool vectors = C % VECTOR == 0 && ((uintptr_t)inp | (uintptr_t)weight) % 16 == 0;
    return { out, inp, weight, plan->start, list[inp_rows], list[out_rows], plan->E, plan->N * plan->K, C, O, vectors };
}

__device__ static inline const floatX *inp_at(const Product &p, int row) {
    return p.inp + (size_t)(p.inp_row ? p.inp_row[row] : row) * p.C;
}
__device__ static inline const floatX *weight_at(const Product &p, int expert, int column) {
    return p.weight + ((size_t)expert * p.O + column) * p.C;
}
__device__ static inline void store(const Product &p, int expert, int row, int column, float sum) {
    p.out[(size_t)(p.out_row ? p.out_row[row] : row) * p.O + column] = X(sum);
}

// The last expert e with start[e]/height + e*step <= x, by halving.
__device__ static inline int last_expert(const Product &p, int x, int height, int step) {
    int e = 0;
    for (int n = p.E; n > 1;) {
        const int half = n / 2, middle = e + half;
        if (p.start[middle] / height + middle * step <= x) e = middle, n -= half;
        else n = half;
    }
    return e;
}

// A block's tile of out: rows row .. row+rows-1, all of one expert, and columns from `column` on. rows <= 0: no work.
//
// How many rows an expert has is known only on the GPU, so the grid is sized for the worst case. Numbers of row tiles are
// dealt out so that expert e has those from start[e]/HEIGHT + e on: enough for its rows wherever they begin, at most one
// too many, S/HEIGHT + E in all, and e is found from a number without a table.
typedef struct { int expert, row, rows, column; } Tile;
template <int HEIGHT, int WIDTH> __device__ static inline Tile my_tile(const Product &p) {
    const int across = (p.O + WIDTH - 1) / WIDTH, i = blockIdx.x / across, e = last_expert(p, i, HEIGHT, 1);
    const int row = p.start[e] + (i - p.start[e] / HEIGHT - e) * HEIGHT;
    return { e, row, min(HEIGHT, p.start[e + 1] - row), (int)(blockIdx.x % across) * WIDTH };
}
template <int HEIGHT, int WIDTH> static inline unsigned tiles(const Product &p) {
    return (unsigned)(divide_up((size_t)p.O, WIDTH) * (p.S / HEIGHT + p.E));
}
