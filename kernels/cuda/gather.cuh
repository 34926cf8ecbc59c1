// gather.cuh: the sum over a token's rows, for norm.cu and route.cu.
#pragma once
#include "impl.cuh"

// A token's rows. row_of_slot NULL: they are in the order of slots. first: the plan's, or NULL.
typedef struct { const int *row_of_slot, *first; int K; } TokenRows;
typedef struct { int begin, end; } Slots;
__device__ static inline Slots slots_of(TokenRows t, size_t n) {
    const int begin = t.first ? t.first[n] : (int)n * t.K;
    return { begin, t.first ? t.first[n + 1] : begin + t.K };
}

// sum += COUNT rows from `slot` on, by weight (NULL: ones). All their loads are in flight at once.
template<int W, int COUNT> __device__ static inline void add_some_rows(real *sum, const floatX *inp, const real *weight,
        const int *row_of_slot, int slot, int C) {
    const floatX *row[COUNT];
    real w[COUNT];
    Pack<W> x[COUNT];
    #pragma unroll
    for (int k = 0; k < COUNT; k++) row[k] = inp + (size_t)(row_of_slot ? row_of_slot[slot + k] : slot + k) * C;
    #pragma unroll
    for (int k = 0; k < COUNT; k++) w[k] = weight ? weight[slot + k] : 1;
    #pragma unroll
    for (int k = 0; k < COUNT; k++) x[k] = load<W>(row[k]);
    #pragma unroll
    for (int k = 0; k < COUNT; k++) for (int i = 0; i < W; i++) sum[i] += w[k] * unpack(x[k]).x[i];
}
// sum += the rows of these slots, AT_ONCE (2 or 4) at a time, at the columns that inp points at.
template<int W, int AT_ONCE> __device__ static inline void add_rows(real *sum, const floatX *inp, const real *weight,
        TokenRows t, Slots s, int C) {
    int slot = s.begin;
    #pragma unroll 1
    for (; slot + AT_ONCE <= s.end; slot += AT_ONCE)
        add_some_rows<W, AT_ONCE>(sum, inp, weight, t.row_of_slot, slot, C);
    if (AT_ONCE > 2 && slot + 2 <= s.end) {
        add_some_rows<W, 2>(sum, inp, weight, t.row_of_slot, slot, C);
        slot += 2;
    }
    if (slot < s.end) add_some_rows<W, 1>(sum, inp, weight, t.row_of_slot, slot, C);
}
