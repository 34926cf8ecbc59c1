// mix.cuh: the residual stream before a layer, for tables.cu and norm.cu.
#pragma once
#include "impl.cuh"

// The factors of x, first and extra.
typedef struct { real x, first, extra; } Factors;
__device__ static inline Factors factors_of(const Mix &m) {
    return { m.first ? expf(R(m.scalars[0])) : 1, R(m.scalars[1]), 1 + R(m.scalars[2]) };
}
// Elements `at` .. of the stream, x before.
template<int W> __device__ static inline Pack<W> mixed(const Pack<W> &x, const Mix &m, const Factors &f, size_t at) {
    Reals<W> sum = unpack(x), first = {}, extra = {};
    if (m.first) first = unpack(load<W>(m.first + at));
    if (m.extra) extra = unpack(load<W>(m.extra + at));
    for (int j = 0; j < W; j++) sum.x[j] = f.x * sum.x[j] + f.first * first.x[j] + f.extra * extra.x[j];
    return pack(sum);
}
