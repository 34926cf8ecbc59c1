// tables.cu: what some models add beside the layers: values from a table, and to the residual
// stream what it began with and rows of pairs of tokens.
#include "columns.cuh"
#include "mix.cuh"

// to += factor d.
template<int W> __device__ static inline void add_multiple(floatX *to, real factor, const Reals<W> &d) {
    Reals<W> sum = unpack(load<W>(to));
    for (int j = 0; j < W; j++) sum.x[j] += factor * d.x[j];
    store(to, pack(sum));
}

// ---- values from a table ------------------------------------------------------------------------

__device__ static inline real twice_sigmoid(real x) { return 2 / (1 + expf(-x)); }

// Thread i has W elements of a token's values. Moves 3 N G D elements.
template<int W> static __global__ void __launch_bounds__(256) value_forward_kernel(floatX *kv, const floatX *gate,
        const int *token, const floatX *table, size_t units, int G, int D) {
    const size_t i = global_index(), width = (size_t)G * D;
    if (i >= units) return;
    const size_t n = i * W / width, at = i * W % width;
    const real factor = gate ? twice_sigmoid(R(gate[n * G + at / D])) : 1;
    add_multiple<W>(kv + n * 2 * width + width + at, factor, unpack(load<W>(table + token[n] * width + at)));
}
static void value_forward(floatX *kv, const floatX *gate, const int *token, const floatX *table, int N, int G, int D) {
    const bool w = wide(D, kv, table);
    const size_t units = (size_t)N * G * D / (w ? VECTOR : 1);
    LAUNCH((w ? value_forward_kernel<VECTOR> : value_forward_kernel<1>), (unsigned)divide_up(units, 256), 256, 0, kv,
           gate, token, table, units, G, D);
}
// A row is a head of a token. Moves 3 N G D elements.
template<int W> static __global__ void value_backward_kernel(floatX *dvalues, floatX *dgate, const floatX *dkv,
        const floatX *gate, const int *token, const floatX *table, size_t rows, int G, int D) {
    const size_t m = (size_t)blockIdx.x * blockDim.y + threadIdx.y, n = m / G, g = m % G, width = (size_t)G * D;
    const int end = m < rows ? D : 0;
    const real factor = end ? twice_sigmoid(R(gate[m])) : 0;
    const floatX *const dv = dkv + n * 2 * width + width + g * D,
        *const row = table + (end ? token[n] * width : 0) + g * D;
    real dot = 0;
    for (int c = threadIdx.x * W; c < end; c += blockDim.x * W) {
        Reals<W> d = unpack(load<W>(dv + c));
        const Reals<W> x = unpack(load<W>(row + c));
        for (int i = 0; i < W; i++) dot += d.x[i] * x.x[i], d.x[i] *= factor;
        store(dvalues + m * D + c, pack(d));
    }
    dot = row_sum(dot);
    if (end && threadIdx.x == 0) dgate[m] = X(dot * factor * (1 - factor / 2));
}
static void value_backward(floatX *dvalues, floatX *dgate, const floatX *dkv, const floatX *gate, const int *token,
        const floatX *table, int N, int G, int D) {
    const bool w = wide(D, dvalues, dkv, table);
    const size_t rows = (size_t)N * G;
    const dim3 block = row_threads(w ? D / VECTOR : D, 4, 256);
    LAUNCH((w ? value_backward_kernel<VECTOR> : value_backward_kernel<1>), (unsigned)divide_up(rows, block.y), block, 0,
           dvalues, dgate, dkv, gate, token, table, rows, G, D);
}

// ---- mix ----------------------------------------------------------------------------------------

// Thread i has W elements. Moves 2 to 4 N C elements.
template<int W> static __global__ void __launch_bounds__(256) mix_forward_kernel(floatX *x, Mix m, size_t units) {
    const size_t i = global_index();
    if (i < units) store(x + i * W, mixed<W>(load<W>(x + i * W), m, factors_of(m), i * W));
}
static void mix_forward(floatX *x, Mix m, int N, int C) {
    const bool w = wide(C, x, m.first, m.extra);
    const size_t units = (size_t)N * C / (w ? VECTOR : 1);
    LAUNCH((w ? mix_forward_kernel<VECTOR> : mix_forward_kernel<1>), (unsigned)divide_up(units, 256), 256, 0, x, m,
           units);
}

typedef struct { floatX *d, *first, *extra; } MixGradients;
// A block has every gridDim.x-th group of 256 units, and a row of `partial` (gridDim.x, 3). Moves
// N C elements, 5 N C more with first, 3 N C more with extra.
enum { MIX_THREADS = 256 };
template<int W> static __global__ void __launch_bounds__(MIX_THREADS) mix_backward_kernel(MixGradients to,
        real *partial, const floatX *out, Mix m, size_t units) {
    const Factors f = factors_of(m);
    real of_x = 0, of_first = 0, of_extra = 0;
    let_next_start();
    for (size_t i = global_index() * W; i < units * W; i += (size_t)gridDim.x * MIX_THREADS * W) {
        Reals<W> d = unpack(load<W>(to.d + i)), first = {}, extra = {};
        if (m.extra) extra = unpack(load<W>(m.extra + i));
        for (int j = 0; j < W; j++) of_extra += d.x[j] * extra.x[j];
        if (to.extra) add_multiple<W>(to.extra + i, f.extra, d);
        if (!m.first) continue;                                 // the factor of x is 1
        first = unpack(load<W>(m.first + i));
        const Reals<W> y = unpack(load<W>(out + i));
        for (int j = 0; j < W; j++) {
            of_x += d.x[j] * (y.x[j] - f.first * first.x[j] - f.extra * extra.x[j]);
            of_first += d.x[j] * first.x[j];
        }
        if (to.first) add_multiple<W>(to.first + i, f.first, d);
        for (int j = 0; j < W; j++) d.x[j] *= f.x;
        store(to.d + i, pack(d));
    }
    of_x = block_sum<MIX_THREADS / 32>(of_x);
    of_first = block_sum<MIX_THREADS / 32>(of_first);
    of_extra = block_sum<MIX_THREADS / 32>(of_extra);
    if (threadIdx.x < 3) partial[3 * blockIdx.x + threadIdx.x] = threadIdx.x ? threadIdx.x == 1 ? of_first : of_extra
                                                                             : of_x;
}
static void mix_backward(floatX *d, floatX *dfirst, floatX *dextra, real *dscalars, const floatX *out, Mix m, int N,
                         int C) {
    const bool w = wide(C, d, dfirst, dextra, out) && wide(C, m.first, m.extra);
    const size_t units = (size_t)N * C / (w ? VECTOR : 1), all = divide_up(units, MIX_THREADS * 4);
    const size_t most = 8 * MULTIPROCESSORS, blocks = all < most ? all : most;
    if (!units) return;
    real *const partial = (real *)workspace(blocks * 3 * sizeof(real));
    LAUNCH((w ? mix_backward_kernel<VECTOR> : mix_backward_kernel<1>), (unsigned)blocks, MIX_THREADS, 0,
           MixGradients{ d, dfirst, dextra }, partial, out, m, units);
    add_partial(dscalars, NULL, partial, blocks, 3);
}

// ---- bigrams ------------------------------------------------------------------------------------

static __global__ void bigram_rows_kernel(int *row, int *before, int *seen, const int *token, const int *position,
        const int *at, int N, int T, int rows) {
    const size_t n = global_index();
    if (n >= N) return;
    if (at) seen[at[n]] = token[n];
    const int b = !position[n] ? 0 : 1 + (T > 1 ? token[n - 1] : seen[at[n] - 1]);
    before[n] = b;
    row[n] = pair_row(b, token[n], rows);
}
static void bigram_rows(int *row, int *before, int *seen, const int *token, const int *position, const int *at, int N,
                        int T, int rows) {
    LAUNCH(bigram_rows_kernel, (unsigned)divide_up(N, 256), 256, 0, row, before, seen, token, position, at, N, T, rows);
}
// Thread i has W elements of a token, W a divisor of 64. Moves 2 N C elements.
template<int W> static __global__ void __launch_bounds__(256) flip_signs_kernel(floatX *x, const int *token,
        const int *before, size_t units, int C) {
    const size_t i = global_index();
    if (i >= units) return;
    const size_t n = i * W / C, c = i * W % C;
    const uint64_t bits = pair_bits(before[n], token[n], c / 64) >> c % 64;
    Reals<W> v = unpack(load<W>(x + i * W));
    for (int j = 0; j < W; j++) v.x[j] = bits >> j & 1 ? -v.x[j] : v.x[j];
    store(x + i * W, pack(v));
}
static void flip_signs(floatX *x, const int *token, const int *before, int N, int C) {
    const bool w = wide(C, x);
    const size_t units = (size_t)N * C / (w ? VECTOR : 1);
    LAUNCH((w ? flip_signs_kernel<VECTOR> : flip_signs_kernel<1>), (unsigned)divide_up(units, 256), 256, 0, x, token,
           before, units, C);
}

PART(tables) {
    d->value_forward = value_forward;  d->value_backward = value_backward;
    d->mix_forward = mix_forward;      d->mix_backward = mix_backward;
    d->bigram_rows = bigram_rows;      d->flip_signs = flip_signs;
}
