// columns.cu: columns of a wider matrix, and parts of keys.
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

// Thread i has W of the N*G*D/2 channels that change. Moves N*G*D elements, backward 3/2 of that.
template<int W> static __global__ void __launch_bounds__(256) shift_keys_kernel(floatX *kv, const floatX *own,
        const floatX *before, const int *position, int N, int GD, int D) {
    const size_t i = global_index() * W, n = i / (GD / 2);
    if (n >= N) return;
    const int at = i % (GD / 2), quarter = D / 4;
    const size_t c = at / quarter * (D / 2) + quarter + at % quarter;       // of the row
    const bool first = position[n] == 0, next = n + 1 < N && position[n + 1] > 0;
    const floatX *from = own + n * GD + c;
    floatX *to = kv + 2 * n * GD + c;
    if (before) { store(to, load<W>(first ? from : before + n * GD + c)); return; }
    Reals<W> sum = {};
    if (next) sum = unpack(load<W>(from + GD));
    if (first) {
        const Reals<W> mine = unpack(load<W>(from));
        #pragma unroll
        for (int j = 0; j < W; j++) sum.x[j] += mine.x[j];
    }
    store(to, pack(sum));
}
static void shift_keys(floatX *kv, const floatX *own, const floatX *before, const int *position, int N, int G, int D) {
    const bool w = wide(D / 4, kv, own) && (!before || wide(D / 4, before));
    const size_t units = (size_t)N * G * (D / 2) / (w ? VECTOR : 1);
    auto kernel = w ? shift_keys_kernel<VECTOR> : shift_keys_kernel<1>;
    LAUNCH(kernel, (unsigned)divide_up(units, 256), 256, 0, kv, own, before, position, N, G * D, D);
}

PART(columns) {
    d->columns_add = columns_add;
    d->columns_put = columns_put;
    d->columns_take = columns_take;
    d->shift_keys = shift_keys;
}
