// heads.cu: what some models do with heads: norms, keys with a part that all share, sinks.
#include "columns.cuh"

// ---- norm_rope ----------------------------------------------------------------------------------
// A head has `lanes` threads (a power of two <= 32), each W pairs (i, i + D/2) at a time.

enum { HEAD_THREADS = 256 };
typedef struct { const real *table; const int *position; const floatX *weight; real eps; size_t rows; int stride, heads,
                 D, lanes; } Heads;

__device__ static inline real lanes_sum(real x, int lanes) {
    for (int step = lanes / 2; step; step /= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}
template<int W> __device__ static inline Reals<W> rounded(Reals<W> x) { return unpack(pack(x)); }

// Moves 3 N heads D elements, 2 without `before`.
template<int W> static __global__ void __launch_bounds__(HEAD_THREADS) norm_rope_forward_kernel(floatX *x,
        floatX *before, const Heads z) {
    const size_t row = global_index() / z.lanes;
    const int first = threadIdx.x % z.lanes * W, half = z.D / 2, end = row < z.rows ? half : 0, step = z.lanes * W;
    const size_t n = row / z.heads, h = row % z.heads;
    floatX *const low = x + n * z.stride + h * z.D, *const high = low + half,
        *const kept = before ? before + row * z.D : NULL;
    real squares = 0;
    for (int i = first; i < end; i += step) {
        const Reals<W> a = unpack(load<W>(low + i)), b = unpack(load<W>(high + i));
        for (int j = 0; j < W; j++) squares += a.x[j] * a.x[j] + b.x[j] * b.x[j];
    }
    const real r = 1 / sqrtf(lanes_sum(squares, z.lanes) / z.D + z.eps);
    const real *const angles = z.table + (size_t)(end ? z.position[n] : 0) * z.D;
    for (int i = first; i < end; i += step) {
        const Pack<W> was_low = load<W>(low + i), was_high = load<W>(high + i);
        if (kept) { store(kept + i, was_low); store(kept + half + i, was_high); }
        Reals<W> a = unpack(was_low), b = unpack(was_high);
        const Reals<W> wa = unpack(load<W>(z.weight + i)), wb = unpack(load<W>(z.weight + half + i));
        for (int j = 0; j < W; j++) a.x[j] *= r, b.x[j] *= r;
        a = rounded(a), b = rounded(b);
        for (int j = 0; j < W; j++) a.x[j] *= wa.x[j], b.x[j] *= wb.x[j];
        a = rounded(a), b = rounded(b);
        rotate(a, b, angles + 2 * i, +1);
        store(low + i, pack(a));
        store(high + i, pack(b));
    }
}

// Pairs i.. of a head: what it was, and the gradient before the rotation.
template<int W> struct Pairs { Pack<W> low, high; Reals<W> da, db; };
template<int W> __device__ static inline Pairs<W> pairs_at(const floatX *d, const floatX *y, const real *angles,
                                                           int half, int i) {
    Pairs<W> p = { load<W>(y + i), load<W>(y + half + i), unpack(load<W>(d + i)), unpack(load<W>(d + half + i)) };
    rotate(p.da, p.db, angles + 2 * i, -1);
    return p;
}
// A block's sums (groups,D), added 16 at a time (a chain of 256 loses 8 eps), to a row of partial.
__device__ static inline void store_partial(real *partial, const real *sums, int groups, int D) {
    __syncthreads();
    for (int i = threadIdx.x; i < D; i += HEAD_THREADS) {
        real total = 0;
        for (int g = 0; g < groups; ) {
            real part = 0;
            for (const int end = min(g + 16, groups); g < end; g++) part += sums[g * D + i];
            total += part;
        }
        partial[(size_t)blockIdx.x * D + i] = total;
    }
}
// A block has every gridDim.x-th group of heads, and a row of `partial` (gridDim.x,D). A group of
// lanes adds up in the order of heads, in its row of shared memory. Moves 3 N heads D elements.
template<int W> static __global__ void __launch_bounds__(HEAD_THREADS, 3) norm_rope_backward_kernel(floatX *dx,
        real *partial, const floatX *before, const Heads z) {
    extern __shared__ real sums[];                          // (groups,D)
    const int groups = HEAD_THREADS / z.lanes, group = threadIdx.x / z.lanes;
    const int first = threadIdx.x % z.lanes * W, half = z.D / 2, step = z.lanes * W;
    real *const sum = sums + group * z.D;
    Reals<W> low_sum = {}, high_sum = {};
    for (int i = first; i < half; i += step) store(sum + i, low_sum), store(sum + half + i, high_sum);
    for (size_t from = (size_t)blockIdx.x * groups; from < z.rows; from += (size_t)gridDim.x * groups) {
        const size_t row = from + group, n = row / z.heads, h = row % z.heads;
        const int end = row < z.rows ? half : 0;
        floatX *const d = dx + n * z.stride + h * z.D;
        const floatX *const y = before + row * z.D;
        const real *const angles = z.table + (size_t)(end ? z.position[n] : 0) * z.D;
        real squares = 0, dot = 0;
        for (int i = first; i < end; i += step) {
            const Pairs<W> p = pairs_at<W>(d, y, angles, half, i);
            const Reals<W> wa = unpack(load<W>(z.weight + i)), wb = unpack(load<W>(z.weight + half + i));
            const Reals<W> ya = unpack(p.low), yb = unpack(p.high);
            for (int j = 0; j < W; j++) {
                squares += ya.x[j] * ya.x[j] + yb.x[j] * yb.x[j];
                dot += p.da.x[j] * wa.x[j] * ya.x[j] + p.db.x[j] * wb.x[j] * yb.x[j];
            }
        }
        const real r = 1 / sqrtf(lanes_sum(squares, z.lanes) / z.D + z.eps),
            k = r * r * r / z.D * lanes_sum(dot, z.lanes);
        for (int i = first; i < end; i += step) {
            Pairs<W> p = pairs_at<W>(d, y, angles, half, i);
            low_sum = load<W>(sum + i), high_sum = load<W>(sum + half + i);
            const Reals<W> wa = unpack(load<W>(z.weight + i)), wb = unpack(load<W>(z.weight + half + i));
            const Reals<W> ya = unpack(p.low), yb = unpack(p.high);
            for (int j = 0; j < W; j++) {
                low_sum.x[j]  += p.da.x[j] * R(X(ya.x[j] * r));
                high_sum.x[j] += p.db.x[j] * R(X(yb.x[j] * r));
                p.da.x[j] = r * p.da.x[j] * wa.x[j] - k * ya.x[j];
                p.db.x[j] = r * p.db.x[j] * wb.x[j] - k * yb.x[j];
            }
            store(d + i, pack(p.da));
            store(d + half + i, pack(p.db));
            store(sum + i, low_sum), store(sum + half + i, high_sum);
        }
    }
    store_partial(partial, sums, groups, z.D);
}

// The same where a thread has one piece of a head, W pairs: it keeps the weights and its part of
// dweight in registers, and requests its piece of the next head before it works on this one.
template<int W> struct Piece { Pack<W> low, high, dlow, dhigh; floatX *d; int position; };
template<int W> static __global__ void __launch_bounds__(HEAD_THREADS, 2) norm_rope_backward_once_kernel(floatX *dx,
        real *partial, const floatX *before, const Heads z) {
    extern __shared__ real sums[];                          // (groups,D)
    const int groups = HEAD_THREADS / z.lanes, group = threadIdx.x / z.lanes, first = threadIdx.x % z.lanes * W,
        half = z.D / 2;
    const size_t each = (size_t)gridDim.x * groups, more_n = each / z.heads;
    const int more_h = (int)(each % z.heads);
    const bool mine = first < half;
    const real inverse = 1 / (real)z.D;
    Reals<W> wa = {}, wb = {}, low_sum = {}, high_sum = {};
    if (mine) wa = unpack(load<W>(z.weight + first)), wb = unpack(load<W>(z.weight + half + first));
    size_t row = (size_t)blockIdx.x * groups + group, n = row / z.heads;
    int h = (int)(row % z.heads);
    Piece<W> next = {};
    auto request = [&] {                                    // of head h of token n
        if (!mine || row >= z.rows) return;
        const floatX *const y = before + row * z.D + first;
        next.d = dx + n * z.stride + h * z.D + first, next.position = z.position[n];
        next.low = load<W>(y), next.high = load<W>(y + half), next.dlow = load<W>(next.d),
            next.dhigh = load<W>(next.d + half);
    };
    request();
    for (size_t from = (size_t)blockIdx.x * groups; from < z.rows; from += each) {
        const bool here = mine && row < z.rows;
        const Piece<W> p = next;
        row += each, n += more_n, h += more_h;
        if (h >= z.heads) h -= z.heads, n++;
        request();
        Reals<2 * W> angles = {};                           // cosine and sine of each pair
        for (int j = 0; j < 2 * W && here; j += 4) {
            const Reals<4> two = load<4>(z.table + (size_t)p.position * z.D + 2 * first + j);
            for (int i = 0; i < 4; i++) angles.x[j + i] = two.x[i];
        }
        const Reals<W> ya = unpack(p.low), yb = unpack(p.high);
        Reals<W> da = unpack(p.dlow), db = unpack(p.dhigh);
        rotate(da, db, angles.x, -1);
        real squares = 0, dot = 0;
        for (int j = 0; j < W; j++) {
            squares += ya.x[j] * ya.x[j] + yb.x[j] * yb.x[j];
            dot += da.x[j] * wa.x[j] * ya.x[j] + db.x[j] * wb.x[j] * yb.x[j];
        }
        const real r = 1 / sqrtf(lanes_sum(squares, z.lanes) * inverse + z.eps),
            k = r * r * r * inverse * lanes_sum(dot, z.lanes);
        if (!here) continue;
        for (int j = 0; j < W; j++) {
            low_sum.x[j]  += da.x[j] * R(X(ya.x[j] * r));
            high_sum.x[j] += db.x[j] * R(X(yb.x[j] * r));
            da.x[j] = r * da.x[j] * wa.x[j] - k * ya.x[j];
            db.x[j] = r * db.x[j] * wb.x[j] - k * yb.x[j];
        }
        store(p.d, pack(da));
        store(p.d + half, pack(db));
    }
    if (mine) store(sums + group * z.D + first, low_sum), store(sums + group * z.D + half + first, high_sum);
    store_partial(partial, sums, groups, z.D);
}

// Are these pairs to be moved 16 bytes at a time? And how many threads has a head?
static bool vectors(const void *x, const void *before, const floatX *weight, int stride, int D) {
    return wide(D / 2, x, before, weight) && stride % VECTOR == 0;
}
static Heads heads_of(const real *table, const int *position, Norm norm, int N, int stride, int heads, int D, bool w) {
    int lanes = 1;
    while (lanes < 32 && lanes * (w ? VECTOR : 1) < D / 2) lanes *= 2;
    return { table, position, norm.weight, norm.eps, (size_t)N * heads, stride, heads, D, lanes };
}
static void norm_rope_forward(floatX *x, floatX *before, const real *table, const int *position, Norm norm, int N,
        int stride, int heads, int D) {
    const bool w = vectors(x, before, norm.weight, stride, D);
    const Heads z = heads_of(table, position, norm, N, stride, heads, D, w);
    auto kernel = w ? norm_rope_forward_kernel<VECTOR> : norm_rope_forward_kernel<1>;
    LAUNCH(kernel, (unsigned)divide_up(z.rows * z.lanes, HEAD_THREADS), HEAD_THREADS, 0, x, before, z);
}
static void norm_rope_backward(floatX *dx, real *dweight, const floatX *before, const real *table, const int *position,
        Norm norm, int N, int stride, int heads, int D) {
    const bool w = vectors(dx, before, norm.weight, stride, D);
    const Heads z = heads_of(table, position, norm, N, stride, heads, D, w);
    const bool once = w && z.lanes * VECTOR >= D / 2 && (uintptr_t)table % 16 == 0;
    // one wave
    const size_t groups = HEAD_THREADS / z.lanes, all = divide_up(z.rows, groups),
        most = (once ? 2 : 3) * MULTIPROCESSORS;
    const size_t blocks = all < most ? all : most, shared = groups * D * sizeof(real);
    if (!z.rows) return;
    real *const partial = (real *)workspace(blocks * D * sizeof(real));
    auto kernel = once ? norm_rope_backward_once_kernel<VECTOR> : w ? norm_rope_backward_kernel<VECTOR>
                       : norm_rope_backward_kernel<1>;
    LAUNCH(kernel, (unsigned)blocks, HEAD_THREADS, shared, dx, partial, before, z);
    add_partial(dweight, NULL, partial, blocks, D);
}

// ---- shared keys --------------------------------------------------------------------------------

struct SharedKeys { int N, G, D, key, value; };
// W elements at a time, if no part begins or ends within them.
static bool shared_keys_wide(SharedKeys z, const void *a, const void *b, const void *c) {
    return wide(z.D, a, b, c) && z.key % VECTOR == 0 && z.value % VECTOR == 0;
}

// Thread i has W elements of kv. Moves at most N (4 G D) elements; what heads share is cached.
template<int W> static __global__ void __launch_bounds__(256) shared_keys_kernel(floatX *kv, const floatX *parts,
        const floatX *shared, SharedKeys z) {
    const size_t i = global_index() * W;
    if (i >= (size_t)z.N * 2 * z.G * z.D) return;
    const int at = (int)(i % z.D), g = (int)(i / z.D % z.G), is_value = (int)(i / z.D / z.G % 2),
        own = is_value ? z.value : z.key;
    const size_t n = i / z.D / z.G / 2;
    Pack<W> x = pack(Reals<W>{});
    if (at < own) x = load<W>(parts + (n * z.G + g) * (z.key + z.value) + (is_value ? z.key : 0) + at);
    else if (!is_value) x = load<W>(shared + n * (z.D - z.key) + (at - z.key));
    store(kv + i, x);
}
static void shared_keys_forward(floatX *kv, const floatX *parts, const floatX *shared, int N, int G, int D, int key,
                                int value) {
    const SharedKeys z = { N, G, D, key, value };
    const bool w = shared_keys_wide(z, kv, parts, shared);
    const size_t units = (size_t)N * 2 * G * D / (w ? VECTOR : 1);
    auto kernel = w ? shared_keys_kernel<VECTOR> : shared_keys_kernel<1>;
    LAUNCH(kernel, (unsigned)divide_up(units, 256), 256, 0, kv, parts, shared, z);
}

// Thread i has W elements of a token's dparts or, after those, dshared. Moves at most N (4 G D).
template<int W> static __global__ void __launch_bounds__(256) shared_keys_backward_kernel(floatX *dparts,
        floatX *dshared, const floatX *dkv, SharedKeys z) {
    const int width = z.key + z.value, own = z.G * width, common = z.D - z.key;
    const size_t i = global_index() * W, n = i / (own + common);
    if (n >= z.N) return;
    const int at = (int)(i % (own + common)), in_head = at % width;
    const floatX *const keys = dkv + n * 2 * z.G * z.D;
    if (at < own) {
        const floatX *const head = keys + (size_t)(at / width) * z.D;
        store(dparts + n * own + at,
              load<W>(in_head < z.key ? head + in_head : head + (size_t)z.G * z.D + (in_head - z.key)));
        return;
    }
    Reals<W> sum = {};
    for (int g = 0; g < z.G; g++) {
        const Reals<W> x = unpack(load<W>(keys + (size_t)g * z.D + z.key + (at - own)));
        #pragma unroll
        for (int j = 0; j < W; j++) sum.x[j] += x.x[j];
    }
    store(dshared + n * common + (at - own), pack(sum));
}
static void shared_keys_backward(floatX *dparts, floatX *dshared, const floatX *dkv, int N, int G, int D, int key,
                                 int value) {
    const SharedKeys z = { N, G, D, key, value };
    const bool w = shared_keys_wide(z, dkv, dparts, dshared);
    const size_t units = (size_t)N * (G * (key + value) + D - key) / (w ? VECTOR : 1);
    auto kernel = w ? shared_keys_backward_kernel<VECTOR> : shared_keys_backward_kernel<1>;
    LAUNCH(kernel, (unsigned)divide_up(units, 256), 256, 0, dparts, dshared, dkv, z);
}

// ---- sinks --------------------------------------------------------------------------------------

// A row is a head of a token. Moves 2*N*H*D elements.
template<int W> static __global__ void sink_kernel(floatX *out, real *lse, const floatX *sink, size_t rows,
                                                   int H, int D) {
    const size_t m = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const real l = m < rows ? lse[m] : 0, s = m < rows ? R(sink[m % H]) : 0;
    const real t = expf(-fabsf(l - s)), scale = (l > s ? 1 : t) / (1 + t);
    __syncthreads();                                        // all threads of the row have read lse
    if (m >= rows) return;
    if (threadIdx.x == 0) lse[m] = fmaxf(l, s) + log1pf(t);
    for (int c = threadIdx.x * W; c < D; c += blockDim.x * W) {
        Reals<W> x = unpack(load<W>(out + m*D + c));
        for (int i = 0; i < W; i++) x.x[i] *= scale;
        store(out + m*D + c, pack(x));
    }
}
static void sink_forward(floatX *out, real *lse, const floatX *sink, int N, int H, int D) {
    const bool w = wide(D, out);
    const size_t rows = (size_t)N * H;
    const dim3 block = row_threads(w ? D / VECTOR : D, 4, 256);
    LAUNCH((w ? sink_kernel<VECTOR> : sink_kernel<1>), (unsigned)divide_up(rows, block.y), block, 0, out, lse, sink,
           rows, H, D);
}

// Blocks (h,part): part of the tokens, `lanes` threads each. partial (parts,H). Reads 2*N*H*D.
enum { SINK_WARPS = 8, SINK_PARTS = 64 };
template<int W> static __global__ void __launch_bounds__(32 * SINK_WARPS)
dsink_kernel(real *partial, const floatX *dout, const floatX *out, const real *lse, const floatX *sink, int N, int H,
             int D, int lanes) {
    const int h = blockIdx.x, lane = threadIdx.x % lanes, at_once = 32 * SINK_WARPS / lanes;
    const real s = R(sink[h]);
    real sum = 0;
    for (size_t n = blockIdx.y * at_once + threadIdx.x / lanes; n < N; n += gridDim.y * at_once) {
        const size_t at = n*H + h;
        real dot = 0;
        for (int c = lane * W; c < D; c += lanes * W) {
            const Reals<W> d = unpack(load<W>(dout + at*D + c)), x = unpack(load<W>(out + at*D + c));
            for (int i = 0; i < W; i++) dot += d.x[i] * x.x[i];
        }
        sum += expf(s - lse[at]) * dot;
    }
    sum = block_sum<SINK_WARPS>(sum);
    if (threadIdx.x == 0) partial[(size_t)blockIdx.y * H + h] = sum;
}
static __global__ void add_sink_parts(real *dsink, const real *partial, int parts, int H) {
    const size_t h = global_index();
    if (h >= H) return;
    real sum = 0;
    for (int i = 0; i < parts; i++) sum += partial[(size_t)i * H + h];
    dsink[h] -= sum;
}
static void sink_backward(real *dsink, const floatX *dout, const floatX *out, const real *lse, const floatX *sink,
                          int N, int H, int D) {
    const bool w = wide(D, dout, out);
    const size_t groups = divide_up(N, 128);
    const int parts = groups < SINK_PARTS ? (int)groups : SINK_PARTS, units = w ? D / VECTOR : D;
    int lanes = 1;
    if (!N) return;
    while (lanes < 32 && lanes < units) lanes *= 2;
    real *const partial = (real *)workspace((size_t)parts * H * sizeof(real));
    LAUNCH((w ? dsink_kernel<VECTOR> : dsink_kernel<1>), dim3(H, parts), 32 * SINK_WARPS, 0, partial, dout, out, lse,
           sink, N, H, D, lanes);
    LAUNCH(add_sink_parts, (unsigned)divide_up(H, 256), 256, 0, dsink, partial, parts, H);
}

PART(heads) {
    d->norm_rope_forward = norm_rope_forward;      d->norm_rope_backward = norm_rope_backward;
    d->shared_keys_forward = shared_keys_forward;  d->shared_keys_backward = shared_keys_backward;
    d->sink_forward = sink_forward;                d->sink_backward = sink_backward;
}
