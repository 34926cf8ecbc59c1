// rung.cuh: what all rungs of ParallelLinear share: arguments, and a block's rows and expert.
//
//     out[row i] = inp[row i] weight[e]^T   for start[e] <= i < start[e+1], of every expert e
//
// Rows are not moved: a list gives the position of row i in an operand (token_of_row, slot_of_row;
// none if sorted). From the first rung on, the product itself gathers rows (Tan et al. 2024,
// ScatterMoE, arXiv 2403.08245): it copies them to shared memory anyway, from any address.
#pragma once
#include "kernels/cuda/ptx.cuh"
extern "C" {
#include "kernels/ladder/ladder.h"
}

typedef struct {
    floatX *out;
    const floatX *inp, *weight;
    const int *start, *inp_row, *out_row;       // the position of row i in inp and out; NULL: i
    int E, S, C, O;
    bool vectors;                               // rows of inp and weight are multiples of 16 bytes
} Product;

static inline Product product(floatX *out, const floatX *inp, const floatX *weight, const Plan *plan,
                              int C, int O, Rows inp_rows, Rows out_rows) {
    const int *const list[] = { plan->token_of_row, plan->slot_of_row, NULL };      // by Rows
    const bool vectors = C % VECTOR == 0 && ((uintptr_t)inp | (uintptr_t)weight) % 16 == 0;
    return { out, inp, weight, plan->start, list[inp_rows], list[out_rows], plan->E, plan->S, C, O, vectors };
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

// The last expert e with start[e]/height + e*step <= x, by bisection.
__device__ static inline int last_expert(const Product &p, int x, int height, int step) {
    int e = 0;
    for (int n = p.E; n > 1;) {
        const int half = n / 2, middle = e + half;
        if (p.start[middle] / height + middle * step <= x) e = middle, n -= half;
        else n = half;
    }
    return e;
}

// A block's tile of out: `rows` rows of an expert from `row` on, columns from `column` on.
//
// Only the GPU knows an expert's rows, so the grid is sized for the worst case. Expert e's row
// tiles have numbers from start[e]/HEIGHT + e on: at most one too many, S/HEIGHT + E in total.
typedef struct { int expert, row, rows, column; } Tile;
template <int HEIGHT, int WIDTH> __device__ static inline Tile my_tile(const Product &p) {
    const int across = (p.O + WIDTH - 1) / WIDTH, i = blockIdx.x / across, e = last_expert(p, i, HEIGHT, 1);
    const int row = p.start[e] + (i - p.start[e] / HEIGHT - e) * HEIGHT;
    return { e, row, min(HEIGHT, p.start[e + 1] - row), (int)(blockIdx.x % across) * WIDTH };
}
template <int HEIGHT, int WIDTH> static inline unsigned tiles(const Product &p) {
    return (unsigned)(divide_up((size_t)p.O, WIDTH) * (p.S / HEIGHT + p.E));
}
