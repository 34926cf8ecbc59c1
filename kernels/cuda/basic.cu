// basic.cu: memory, embedding, norm, rotary positions, residual and dropout; and the device table itself. The
// formulas stand in kernels/cpu/basic.c, and these kernels round where it rounds.
//
// All of them move bytes and hardly compute. What makes such a kernel fast: 16 bytes per load and store,
// several loads of each thread under way at once, every byte moved once. W is how many elements a thread
// takes at a time: VECTOR (16 bytes), or 1 where a width or a pointer does not allow that.
#include "impl.cuh"
#include <math.h>
#include <string.h>

template<int W> struct alignas(W * sizeof(floatX)) Pack { floatX x[W]; };
template<int W> struct alignas(W < 4 ? W * sizeof(real) : 16) Reals { real x[W]; };
template<int W> __device__ static inline Pack<W> load(const floatX *p) { return *(const Pack<W> *)p; }
template<int W> __device__ static inline void store(floatX *p, Pack<W> v) { *(Pack<W> *)p = v; }

// Can rows of C elements at these places be taken 16 bytes at a time?
static bool wide(int C, const void *a, const void *b = NULL, const void *c = NULL, const void *d = NULL) {
    return C % VECTOR == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}
// A block of 256 threads as a rectangle: x along rows of `units`, y over rows.
static dim3 rectangle(size_t units) {
    unsigned x = 1;
    while (x < 256 && x < units) x *= 2;
    return dim3(x, 256 / x);
}
// Threads for a row that is reduced: a warp (8 rows to a block) if `each` units per thread are enough, else
// up to a block.
static dim3 row_threads(size_t units, int each, unsigned most) {
    unsigned x = 32;
    while (x < most && x * each < units) x *= 2;
    return dim3(x, x == 32 ? 8 : 1);
}
// The sum over the threads of a row, as row_threads lays them out; all get it.
__device__ static real row_sum(real x) {
    __shared__ real part[32];
    x = warp_sum(x);
    if (blockDim.x == 32) return x;
    __syncthreads();                                        // nobody reads the last sum any more
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) x += part[warp];
    return x;
}

// ---- memory -----------------------------------------------------------------------------------------------
// What the host sends goes through two pieces of pinned memory by turns: while the GPU fetches one, the host
// fills the other, and the caller's memory is its own again as soon as the call returns.

enum { PIECE = 4 << 20 };
static thread_local struct { char *at[2]; cudaEvent_t fetched[2]; int turn; } pieces;

static char *piece(void) {
    for (int i = 0; i < 2 && !pieces.fetched[i]; i++) {
        CUDA_CHECK(cudaMallocHost((void **)&pieces.at[i], PIECE));
        CUDA_CHECK(cudaEventCreateWithFlags(&pieces.fetched[i], cudaEventDisableTiming));
    }
    CUDA_CHECK(cudaEventSynchronize(pieces.fetched[pieces.turn]));
    return pieces.at[pieces.turn];
}
static void piece_send(void *dst, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(dst, pieces.at[pieces.turn], bytes, cudaMemcpyHostToDevice, context()->stream));
    CUDA_CHECK(cudaEventRecord(pieces.fetched[pieces.turn], context()->stream));
    pieces.turn ^= 1;
}

static void *alloc(size_t bytes) {
    void *p = NULL;
    const cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();                                 // it has been reported, by NULL
        return NULL;
    }
    if (e != cudaSuccess) cuda_fail(__FILE__, __LINE__, "cudaMalloc", e);
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes ? bytes : 1, context()->stream));
    return p;
}
static void sync_stream(void) { CUDA_CHECK(cudaStreamSynchronize(context()->stream)); }
static void release(void *p) {
    if (!p) return;
    sync_stream();
    CUDA_CHECK(cudaFree(p));
}
static size_t memory(void) {
    size_t available = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    return available;
}
static void upload(void *dst, const void *host, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        memcpy(piece(), (const char *)host + at, n);
        piece_send((char *)dst + at, n);
    }
}
static void download(void *host, const void *src, size_t bytes) {
    if (bytes) CUDA_CHECK(cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, context()->stream));
    sync_stream();
}
static void copy(void *dst, const void *src, size_t bytes) {
    if (bytes) CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, context()->stream));
}
static void zero(void *dst, size_t bytes) {
    if (bytes) CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, context()->stream));
}

template<class T> static void convert_up(T *dst, const double *host, size_t n) {
    for (size_t at = 0, count; at < n; at += count) {
        T *to = (T *)piece();
        count = n - at < PIECE / sizeof(T) ? n - at : PIECE / sizeof(T);
        for (size_t i = 0; i < count; i++) to[i] = (T)(real)host[at + i];
        piece_send(dst + at, count * sizeof(T));
    }
}
template<class T> static void convert_down(double *host, const T *src, size_t n) {
    for (size_t at = 0, count; at < n; at += count) {
        T *from = (T *)piece();
        count = n - at < PIECE / sizeof(T) ? n - at : PIECE / sizeof(T);
        download(from, src + at, count * sizeof(T));
        for (size_t i = 0; i < count; i++) host[at + i] = (double)(real)from[i];
    }
}
static void from_double(floatX *dst, const double *host, size_t n) { convert_up(dst, host, n); }
static void to_double(double *host, const floatX *src, size_t n) { convert_down(host, src, n); }
static void reals_from_double(real *dst, const double *host, size_t n) { convert_up(dst, host, n); }
static void reals_to_double(double *host, const real *src, size_t n) { convert_down(host, src, n); }

// ---- embedding --------------------------------------------------------------------------------------------

// A block is a rectangle of tokens and units of W columns. Moves 2*N*C elements.
template<int W> static __global__ void embed_forward_kernel(floatX *out, const int *token,
        const floatX *weight, int N, int C) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (n >= N) return;
    const floatX *row = weight + (size_t)token[n] * C;
    #pragma unroll 4
    for (int c = threadIdx.x * W; c < C; c += blockDim.x * W) store(out + n*C + c, load<W>(row + c));
}
static void embed_forward(floatX *out, const int *token, const floatX *weight, int N, int C) {
    const bool w = wide(C, out, weight);
    const dim3 block = rectangle(w ? C / VECTOR : C);
    auto kernel = w ? embed_forward_kernel<VECTOR> : embed_forward_kernel<1>;
    LAUNCH(kernel, divide_up(N, block.y), block, 0, out, token, weight, N, C);
}

// route.cu: a stable counting sort. order: the numbers 0..n-1 (or those in `from`, if given) sorted by the
// digit (key[i] >> shift) % buckets, equal digits in the order they came in. place: where each went, or NULL.
size_t DEVICE(sort_scratch)(int n, int buckets);            // how many ints of scratch it needs
void   DEVICE(sort)(int *order, int *place, const int *key, const int *from, int n, int buckets, int shift,
        int *scratch);

// order: the positions 0..N-1 sorted by token. A block has W columns per thread of one place in that order;
// if that is the first of its token it adds up all of them, in order, as a CPU would do; others have nothing
// to do. A warp looks up 32 positions at a time, and AHEAD rows are under way together, for some tokens are
// every tenth word of a text. Reads N*C elements, and reads and writes one row of reals for each token that
// occurs.
template<int W> static __global__ void embed_backward_kernel(real *dweight, const floatX *dout,
        const int *token, const int *order, int N, int C) {
    enum { AHEAD = 8 };
    const int first = blockIdx.x, lane = threadIdx.x % 32, v = token[order[first]];
    if (first > 0 && token[order[first - 1]] == v) return;
    const int c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const bool mine = c < C;
    Reals<W> *const to = (Reals<W> *)(dweight + (size_t)v*C + c);
    Reals<W> sum = {};
    if (mine) sum = *to;
    for (int at = first, found = 32; found == 32; at += 32) {
        const int n = at + lane < N ? order[at + lane] : -1;
        found = __popc(__ballot_sync(0xffffffffu, n >= 0 && token[n] == v));    // the first ones: sorted
        for (int from = 0; from < found; from += AHEAD) {
            Pack<W> d[AHEAD];
            #pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int row = __shfl_sync(0xffffffffu, n, from + i);
                if (mine && from + i < found) d[i] = load<W>(dout + (size_t)row*C + c);
            }
            #pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (from + i < found)
                    for (int j = 0; j < W; j++) sum.x[j] += R(d[i].x[j]);
        }
    }
    if (mine) *to = sum;
}
// Sorting by token: digit after digit, the lowest first, each time stably. Digits have at most 10 bits, so
// two do for any vocabulary up to a million.
static void embed_backward(real *dweight, const floatX *dout, const int *token, int N, int V, int C) {
    int bits = 1;
    while (bits < 31 && V > 1 << bits) bits++;
    const int digits = (int)divide_up(bits, 10), width = (int)divide_up(bits, digits);
    if (!N) return;
    int *const scratch = (int *)workspace((2 * (size_t)N + DEVICE(sort_scratch)(N, 1 << width)) * sizeof(int));
    int *order[2] = { scratch, scratch + N };
    for (int i = 0; i < digits; i++)
        DEVICE(sort)(order[i % 2], NULL, token, i ? order[1 - i % 2] : NULL, N, 1 << width, i * width,
                scratch + 2 * (size_t)N);

    const bool w = wide(C, dweight, dout);
    const size_t units = w ? C / VECTOR : C, threads = units < 256 ? divide_up(units, 32) * 32 : 256;
    auto kernel = w ? embed_backward_kernel<VECTOR> : embed_backward_kernel<1>;
    LAUNCH(kernel, dim3(N, divide_up(units, threads)), threads, 0, dweight, dout, token,
            order[1 - digits % 2], N, C);
}

// ---- rmsnorm ----------------------------------------------------------------------------------------------
// A row has one warp while 32 threads with KEEP units each can hold it in registers (C up to 1024 in bf16),
// then more, so that it is read once however long it is; only what is beyond the largest block is read again.

enum { KEEP = 4 };

// Moves 2*N*C elements.
template<int W> static __global__ void rmsnorm_forward_kernel(floatX *out, real *rstd, const floatX *inp,
        const floatX *weight, real eps, int N, int C) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int first = threadIdx.x * W, step = blockDim.x * W;
    if (n >= N) return;
    const floatX *x = inp + n*C;
    Pack<W> kept[KEEP];
    real sum = 0;
    auto add_squares = [&](const Pack<W> &v) { for (int i = 0; i < W; i++) sum += R(v.x[i]) * R(v.x[i]); };
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) kept[j] = load<W>(x + first + j*step);
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) add_squares(kept[j]);
    for (int c = first + KEEP*step; c < C; c += step) add_squares(load<W>(x + c));

    const real r = 1 / sqrtf(row_sum(sum) / C + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    auto write = [&](Pack<W> v, int c) {
        const Pack<W> w = load<W>(weight + c);
        for (int i = 0; i < W; i++) v.x[i] = X(R(X(R(v.x[i]) * r)) * R(w.x[i]));
        store(out + n*C + c, v);
    };
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) write(kept[j], first + j*step);
    for (int c = first + KEEP*step; c < C; c += step) write(load<W>(x + c), c);
}
static void rmsnorm_forward(floatX *out, real *rstd, const floatX *inp, const floatX *weight, float eps,
        int N, int C) {
    const bool w = wide(C, out, inp, weight);
    const dim3 block = row_threads(w ? C / VECTOR : C, KEEP, 1024);
    auto kernel = w ? rmsnorm_forward_kernel<VECTOR> : rmsnorm_forward_kernel<1>;
    LAUNCH(kernel, divide_up(N, block.y), block, 0, out, rstd, inp, weight, eps, N, C);
}

// out[c] += the sum of column c of partial (rows,C). A block has 32 columns; each of its warps adds every
// 32nd row, and then their sums are added in order.
static __global__ void add_rows_kernel(real *out, const real *partial, int rows, int C) {
    __shared__ real part[32][32];
    const int c = blockIdx.x * 32 + threadIdx.x;
    real sum = 0;
    #pragma unroll 4
    for (int row = threadIdx.y; row < rows; row += 32) if (c < C) sum += partial[(size_t)row*C + c];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= C) return;
    sum = 0;
    for (int y = 0; y < 32; y++) sum += part[y][threadIdx.x];
    out[c] += sum;
}

// One pass: a block takes every gridDim-th row (or 8 of them, a warp each) and gathers its share of dweight
// on the way, a thread having the same columns of every row: in shared memory, or where that is too small in
// the share itself. Shares are rows of `partial` (blocks,C), to be added by add_rows_kernel. Moves 4*N*C
// elements, dinp being read and written, and 2*blocks*C reals.
template<int W> static __global__ void __launch_bounds__(256) rmsnorm_backward_kernel(floatX *dinp,
        real *partial, const floatX *dout, const floatX *inp, const floatX *weight, const real *rstd,
        int in_shared, int N, int C) {
    extern __shared__ real gathered[];                      // (blockDim.y,C)
    const int first = threadIdx.x * W, step = blockDim.x * W;
    real *const share = partial + (size_t)blockIdx.x * C;
    real *const own = in_shared ? gathered + threadIdx.y * C : share;
    for (int c = first; c < C; c += step) *(Reals<W> *)(own + c) = Reals<W>();

    for (size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y; n < N; n += (size_t)gridDim.x * blockDim.y) {
        const floatX *x = inp + n*C, *dy = dout + n*C;
        floatX *dx = dinp + n*C;
        const real r = rstd[n];
        Pack<W> xs[KEEP], dys[KEEP], dxs[KEEP];
        real dot = 0;
        auto multiply = [&](const Pack<W> &a, const Pack<W> &d, int c) {
            const Pack<W> w = load<W>(weight + c);
            for (int i = 0; i < W; i++) dot += R(d.x[i]) * R(w.x[i]) * R(a.x[i]);
        };
        #pragma unroll
        for (int j = 0; j < KEEP; j++) {
            const int c = first + j*step;
            if (c < C) { xs[j] = load<W>(x + c); dys[j] = load<W>(dy + c); dxs[j] = load<W>(dx + c); }
        }
        #pragma unroll
        for (int j = 0; j < KEEP; j++) if (first + j*step < C) multiply(xs[j], dys[j], first + j*step);
        for (int c = first + KEEP*step; c < C; c += step) multiply(load<W>(x + c), load<W>(dy + c), c);

        const real k = r * r * r / C * row_sum(dot);
        auto update = [&](const Pack<W> &a, const Pack<W> &d, Pack<W> to, int c) {
            const Pack<W> w = load<W>(weight + c);
            Reals<W> sum = *(Reals<W> *)(own + c);
            for (int i = 0; i < W; i++) {
                to.x[i] = X(R(to.x[i]) + (r * R(d.x[i]) * R(w.x[i]) - k * R(a.x[i])));
                sum.x[i] += R(d.x[i]) * R(X(R(a.x[i]) * r));
            }
            *(Reals<W> *)(own + c) = sum;
            store(dx + c, to);
        };
        #pragma unroll
        for (int j = 0; j < KEEP; j++) if (first + j*step < C) update(xs[j], dys[j], dxs[j], first + j*step);
        for (int c = first + KEEP*step; c < C; c += step)
            update(load<W>(x + c), load<W>(dy + c), load<W>(dx + c), c);
    }
    if (!in_shared) return;
    __syncthreads();
    for (int c = threadIdx.y * blockDim.x + threadIdx.x; c < C; c += blockDim.x * blockDim.y) {
        real sum = 0;
        for (int y = 0; y < blockDim.y; y++) sum += gathered[y*C + c];
        share[c] = sum;
    }
}
static void rmsnorm_backward(floatX *dinp, real *dweight, const floatX *dout, const floatX *inp,
        const floatX *weight, const real *rstd, int N, int C) {
    const bool w = wide(C, dinp, dout, inp, weight);
    const dim3 block = row_threads(w ? C / VECTOR : C, KEEP, 256);
    const size_t groups = divide_up(N, block.y), blocks = groups < 512 ? groups : 512;
    const size_t bytes = block.y * C * sizeof(real);
    const int in_shared = bytes <= 47 << 10;                // of 48 KiB without asking; row_sum needs some
    if (!N) return;
    real *const partial = (real *)workspace(blocks * C * sizeof(real));
    auto kernel = w ? rmsnorm_backward_kernel<VECTOR> : rmsnorm_backward_kernel<1>;
    LAUNCH(kernel, blocks, block, in_shared ? bytes : 0, dinp, partial, dout, inp, weight, rstd, in_shared, N, C);
    LAUNCH(add_rows_kernel, divide_up(C, 32), dim3(32, 32), 0, dweight, partial, (int)blocks, C);
}

// ---- rope -------------------------------------------------------------------------------------------------

// Cosines and sines come from the host: in double, and the same bits on every device. The frequency of pair i
// is theta^(-2i/D).
static void rope_table(real *table, float theta, int T, int D) {
    const int most = PIECE / (D * (int)sizeof(real));       // rows at a time
    for (int from = 0; from < T; from += most) {
        const int rows = T - from < most ? T - from : most;
        real *const to = (real *)piece();
        for (int i = 0; i < D / 2; i++) {
            const double frequency = pow((double)theta, -2.0 * i / D);
            for (int t = 0; t < rows; t++) {
                const double angle = (double)(from + t) * frequency;
                to[(size_t)t * D + 2*i]     = (real)cos(angle);
                to[(size_t)t * D + 2*i + 1] = (real)sin(angle);
            }
        }
        piece_send(table + (size_t)from * D, (size_t)rows * D * sizeof(real));
    }
}

// A block is a rectangle of rows and units; a unit is W pairs of one head: W elements of its lower half and W
// of its upper. Moves 2*N*heads*D elements; the table stays in the cache.
template<int W> static __global__ void rope_kernel(floatX *x, const real *table, const int *position,
        int direction, int N, int stride, int heads, int D) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int half = D / 2, units = half / W;               // of a head
    if (n >= N) return;
    const real *turn = table + (size_t)position[n] * D;
    for (int u = threadIdx.x; u < heads * units; u += blockDim.x) {
        const int i = u % units * W;
        floatX *low = x + n * stride + (size_t)(u / units) * D + i, *high = low + half;
        const Reals<2*W> t = *(const Reals<2*W> *)(turn + 2*i);
        Pack<W> a = load<W>(low), b = load<W>(high);
        #pragma unroll
        for (int j = 0; j < W; j++) {
            const real cosine = t.x[2*j], sine = direction * t.x[2*j + 1], re = R(a.x[j]), im = R(b.x[j]);
            a.x[j] = X(re * cosine - im * sine);
            b.x[j] = X(im * cosine + re * sine);
        }
        store(low, a);
        store(high, b);
    }
}
static void rope(floatX *x, const real *table, const int *position, int direction, int N,
        int stride, int heads, int D) {
    const bool w = wide(D / 2, x, table) && stride % VECTOR == 0;
    const dim3 block = rectangle((size_t)heads * (D / 2 / (w ? VECTOR : 1)));
    auto kernel = w ? rope_kernel<VECTOR> : rope_kernel<1>;
    LAUNCH(kernel, divide_up(N, block.y), block, 0, x, table, position, direction, N, stride, heads, D);
}

// ---- residual and dropout ---------------------------------------------------------------------------------

// Bit for bit that of kernels/cpu/basic.c.
__device__ static inline uint32_t mask_bits(uint64_t key, uint64_t i) {
    uint64_t z = key + i * 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return (uint32_t)((z ^ z >> 31) >> 32);
}
// A thread has W elements, the last one maybe fewer. residual NULL: dropout alone. Moves 3*n elements, or
// 2*n.
template<int W> static __global__ void drop_kernel(floatX *out, const floatX *residual,
        const floatX *branch, uint32_t least, real scale, uint64_t key, size_t n) {
    const size_t from = global_index() * W;
    auto value = [&](floatX old, floatX x, size_t i) {
        const real kept = least == 0 || mask_bits(key, i) >= least ? R(x) * scale : 0;
        return X(residual ? R(old) + kept : kept);
    };
    if (from + W <= n) {
        Pack<W> x = load<W>(branch + from), old = residual ? load<W>(residual + from) : x;
        #pragma unroll
        for (int i = 0; i < W; i++) x.x[i] = value(old.x[i], x.x[i], from + i);
        store(out + from, x);
    } else
        for (size_t i = from; i < n; i++) out[i] = value(residual ? residual[i] : branch[i], branch[i], i);
}
static void residual(floatX *out, const floatX *residual, const floatX *branch, float p, uint64_t key, size_t n) {
    const uint32_t least = (uint32_t)((double)p * 4294967296.0);
    const real scale = (real)1 / ((real)1 - (real)p);
    const bool w = wide(0, out, residual, branch);
    auto kernel = w ? drop_kernel<VECTOR> : drop_kernel<1>;
    LAUNCH(kernel, divide_up(n, 256 * (w ? VECTOR : 1)), 256, 0, out, residual, branch, least, scale, key, n);
}
static void dropout(floatX *out, const floatX *inp, float p, uint64_t key, size_t n) {
    residual(out, NULL, inp, p, key, n);
}

// ---- bias -------------------------------------------------------------------------------------------------

// Sums of columns. A block has 32 units of columns and 8 rows at a time, 4 of which a thread has under way;
// its sum over every gridDim.y-th group of rows becomes a row of `partial` (gridDim.y,C). Reads N*C elements.
template<int W> static __global__ void bias_backward_kernel(real *partial, const floatX *dout, int N, int C) {
    __shared__ real part[8][32 * W];
    const int c = (blockIdx.x * 32 + threadIdx.x) * W;
    real sum[W] = {};
    if (c < C) {
        #pragma unroll 4
        for (size_t n = blockIdx.y * 8 + threadIdx.y; n < N; n += gridDim.y * 8) {
            const Pack<W> d = load<W>(dout + n*C + c);
            for (int i = 0; i < W; i++) sum[i] += R(d.x[i]);
        }
    }
    for (int i = 0; i < W; i++) part[threadIdx.y][threadIdx.x * W + i] = sum[i];
    __syncthreads();
    const int column = threadIdx.y * 32 + threadIdx.x, to = blockIdx.x * 32 * W + column;
    if (column >= 32 * W || to >= C) return;
    real total = 0;
    for (int y = 0; y < 8; y++) total += part[y][column];
    partial[(size_t)blockIdx.y * C + to] = total;
}
static void bias_backward(real *dbias, const floatX *dout, int N, int C) {
    const bool w = wide(C, dout);
    const size_t across = divide_up(w ? C / VECTOR : C, 32), most = across < 1024 ? 1024 / across : 1;
    const size_t groups = divide_up(N, 32), down = groups < most ? groups : most;
    if (!N) return;
    real *const partial = (real *)workspace(down * C * sizeof(real));
    auto kernel = w ? bias_backward_kernel<VECTOR> : bias_backward_kernel<1>;
    LAUNCH(kernel, dim3(across, down), dim3(32, 8), 0, partial, dout, N, C);
    LAUNCH(add_rows_kernel, divide_up(C, 32), dim3(32, 32), 0, dbias, partial, (int)down, C);
}

extern "C" {
void DEVICE(matmul)(Device *d);
void DEVICE(matmul_portable)(Device *d);
void DEVICE(hopper)(Device *d);
void DEVICE(route)(Device *d);
void DEVICE(expert)(Device *d);
void DEVICE(attention)(Device *d);
void DEVICE(attention_hopper)(Device *d);
void DEVICE(optimizer)(Device *d);
}
PART(device) {
    *d = Device();
    d->name = DEVICE_NAME;                    d->dtype = DEVICE_DTYPE;
    d->floatX_size = sizeof(floatX);          d->real_size = sizeof(real);
    d->is_gpu = 1;                            d->open = cuda_open;
    d->alloc = alloc;                         d->release = release;
    d->memory = memory;                       d->sync = sync_stream;
    d->upload = upload;                       d->download = download;
    d->copy = copy;                           d->zero = zero;
    d->from_double = from_double;             d->to_double = to_double;
    d->reals_from_double = reals_from_double; d->reals_to_double = reals_to_double;
    d->embed_forward = embed_forward;         d->embed_backward = embed_backward;
    d->rmsnorm_forward = rmsnorm_forward;     d->rmsnorm_backward = rmsnorm_backward;
    d->rope_table = rope_table;               d->rope = rope;
    d->residual = residual;                   d->dropout = dropout;
    d->bias_backward = bias_backward;
    DEVICE(matmul)(d);
    DEVICE(route)(d);
    DEVICE(expert)(d);
    DEVICE(attention)(d);
    DEVICE(attention_hopper)(d);
    DEVICE(optimizer)(d);
#if defined(PRECISION_BF16)
    DEVICE(hopper)(d);                                      // after what it may have to call instead
#endif
}

#if defined(PRECISION_BF16)
// The same with nothing that only newer GPUs have: what runs on Ampere, to be tested and timed anywhere.
PART(portable) {
    DEVICE(device)(d);
    d->name = DEVICE_NAME "-portable";
    DEVICE(matmul_portable)(d);
    DEVICE(attention)(d);
    d->expert_up_forward = NULL;
    d->expert_down_backward = NULL;
}
#endif
