// columns.cu: columns of a wider matrix.
#include "impl.cuh"

// Thread i has W elements of part. COLUMNS_ADD: x += part, moves 3 N width; others copy, 2 N width.
typedef enum { COLUMNS_ADD, COLUMNS_PUT, COLUMNS_TAKE } Columns;
template<int W, Columns HOW> static __global__ void __launch_bounds__(256) columns_kernel(floatX *x, floatX *part,
        size_t units, int stride, int from, int width) {
    const size_t i = global_index();
    if (i >= units) return;
    const size_t n = i * W / width, at = i * W % width;
    floatX *const there = x + n * stride + from + at;
    if (HOW == COLUMNS_TAKE) { store(part + i * W, load<W>(there)); return; }
    if (HOW == COLUMNS_PUT) { store(there, load<W>(part + i * W)); return; }
    Reals<W> sum = unpack(load<W>(there));
    const Reals<W> more = unpack(load<W>(part + i * W));
    for (int j = 0; j < W; j++) sum.x[j] += more.x[j];
    store(there, pack(sum));
}
template<Columns HOW> static void columns(floatX *x, floatX *part, int N, int stride, int from, int width) {
    const bool w = wide(width, x, part) && stride % VECTOR == 0 && from % VECTOR == 0;
    const size_t units = (size_t)N * width / (w ? VECTOR : 1);
    auto kernel = w ? columns_kernel<VECTOR, HOW> : columns_kernel<1, HOW>;
    LAUNCH(kernel, (unsigned)divide_up(units, 256), 256, 0, x, part, units, stride, from, width);
}
static void columns_add(floatX *x, const floatX *part, int N, int stride, int from, int width) {
    columns<COLUMNS_ADD>(x, (floatX *)part, N, stride, from, width);
}
static void columns_put(floatX *x, const floatX *part, int N, int stride, int from, int width) {
    columns<COLUMNS_PUT>(x, (floatX *)part, N, stride, from, width);
}
static void columns_take(floatX *part, const floatX *x, int N, int stride, int from, int width) {
    columns<COLUMNS_TAKE>((floatX *)x, part, N, stride, from, width);
}

PART(columns) { d->columns_add = columns_add; d->columns_put = columns_put; d->columns_take = columns_take; }
