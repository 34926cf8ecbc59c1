// basic.cu: memory, embedding, norm, rotary positions, residual and dropout; and the device table itself. The
// formulas stand in kernels/cpu/basic.c, and these kernels round where it rounds.
//
// All of them move bytes and hardly compute. What makes such a kernel fast: 16 bytes per load and store,
// several loads of each thread under way at once, every byte moved once. W is how many elements a thread
// takes at a time: VECTOR (16 bytes), or 1 where a width or a pointer does not allow that.
#include "norm.cuh"
#include "kernels/compound.h"
#include "sort.cuh"
#include <math.h>
#include <string.h>

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
    CUDA_CHECK(context()->recording ? cudaErrorStreamCaptureUnsupported     // a replay would send what is there then
                                    : cudaEventSynchronize(pieces.fetched[pieces.turn]));
    return pieces.at[pieces.turn];
}
static void piece_send(void *dst, size_t bytes) {
    if (context()->recording) return;                       // piece has said so
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
    CUDA_CHECK(e);
    if (e != cudaSuccess) return NULL;                      // while work is recorded
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes ? bytes : 1, context()->stream));
    return p;
}
static void release(void *p) {
    if (!p) return;
    cuda_sync();
    CUDA_CHECK(cudaFree(p));
}
// Less than there is: the library, recordings and the workspace come later and want some.
static size_t memory(void) {
    const size_t later = (size_t)512 << 20;
    size_t available = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    return available > later ? available - later : 1;
}
static void upload(void *dst, const void *host, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        memcpy(piece(), (const char *)host + at, n);
        piece_send((char *)dst + at, n);
    }
}

// What goes to the host without its waiting lands in pinned memory, and an event says when.
static thread_local struct { void *at; size_t capacity; cudaEvent_t landed; } letters[2];
static void post(int slot, const void *src, size_t bytes) {
    auto &l = letters[slot];
    if (!l.landed) CUDA_CHECK(cudaEventCreateWithFlags(&l.landed, cudaEventDisableTiming));
    if (bytes > l.capacity) {
        if (l.at) CUDA_CHECK(cudaFreeHost(l.at));
        CUDA_CHECK(cudaMallocHost(&l.at, l.capacity = bytes));
    }
    CUDA_CHECK(cudaMemcpyAsync(l.at, src, bytes, cudaMemcpyDeviceToHost, context()->stream));
    CUDA_CHECK(cudaEventRecord(l.landed, context()->stream));
}
static void collect(void *host, int slot, size_t bytes) {
    context()->waited.reads++;
    CUDA_CHECK(cudaEventSynchronize(letters[slot].landed));
    memcpy(host, letters[slot].at, bytes);
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
        cuda_read(from, src + at, count * sizeof(T));
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

// The positions 0..N-1, sorted by token (`order`), are cut into pieces of 32, one to a block: some tokens are every
// tenth word of a text, others occur once. A run is what a piece has of one token, in order. The block adds up each
// run, a thread W columns of it with AHEAD rows under way, and adds that to the token's row of dweight; but a run that
// goes on beyond the piece has to wait for the other parts: what a piece begins with and the one before has too goes
// to edge[piece][0], what it ends with and the next one has too to edge[piece][1]. The rows of dweight are under way
// with those that are added. Reads N*C elements, reads and writes one row of reals for each token that occurs.
enum { RUN = 32, AHEAD = 4 };
__device__ static int token_at(const int *token, const int *order, size_t at, int N) {
    return at < N ? token[order[at]] : -1;                  // before the first (that is: at huge) and past the last: none
}
template<int W> static __global__ void embed_runs_kernel(real *dweight, real *edge, const floatX *dout,
        const int *token, const int *order, int N, int C) {
    const size_t first = (size_t)blockIdx.x * RUN;
    const int lane = threadIdx.x % 32, c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const int n = first + lane < N ? order[first + lane] : -1, v = n >= 0 ? token[n] : -1;
    int next = __shfl_down_sync(ALL, v, 1);
    if (lane == 31) next = token_at(token, order, first + RUN, N);
    const unsigned ends = __ballot_sync(ALL, v >= 0 && v != next);
    const bool joined = __shfl_sync(ALL, v, 0) == token_at(token, order, first - 1, N);        // with the piece before
    const unsigned whole = joined ? ends & (ends - 1) : ends;                   // runs that are all here end there
    real *const edges = edge + 2 * (size_t)blockIdx.x * C + c;
    Reals<W> sum = {};
    #pragma unroll 1
    for (int from = 0; from < RUN; from += AHEAD) {
        Pack<W> d[AHEAD];
        Reals<W> old[AHEAD];
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int row = __shfl_sync(ALL, n, from + i), word = __shfl_sync(ALL, v, from + i);
            d[i] = Pack<W>();
            if (row >= 0 && c < C) d[i] = load<W>(dout + (size_t)row*C + c);
            if (c < C && whole >> (from + i) & 1) old[i] = *(const Reals<W> *)(dweight + (size_t)word*C + c);
        }
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int word = __shfl_sync(ALL, v, from + i);
            const bool all = whole >> (from + i) & 1;
            for (int j = 0; j < W; j++) sum.x[j] += R(d[i].x[j]);
            if (!(ends >> (from + i) & 1)) continue;
            if (all) for (int j = 0; j < W; j++) sum.x[j] += old[i].x[j];
            if (c < C) *(Reals<W> *)(all ? dweight + (size_t)word*C + c : edges) = sum;
            sum = Reals<W>();
        }
    }
    if (first + RUN < N && !(ends >> 31) && c < C) *(Reals<W> *)(edges + (joined && !ends ? 0 : C)) = sum;
}
// A run that goes on beyond its piece is finished by the block of the piece it begins in: its end there, and the
// beginnings of the pieces that follow, as many as begin with the same token.
template<int W> static __global__ void embed_edges_kernel(real *dweight, const real *edge, const int *token,
        const int *order, int N, int C) {
    const size_t first = (size_t)blockIdx.x * RUN, after = first + RUN;
    const int lane = threadIdx.x % 32, c = (blockIdx.y * blockDim.x + threadIdx.x) * W;
    const int v = token_at(token, order, after, N);
    if (v < 0 || token_at(token, order, after - 1, N) != v || token_at(token, order, first - 1, N) == v) return;
    const real *const edges = edge + 2 * (size_t)blockIdx.x * C + c;
    Reals<W> *const to = (Reals<W> *)(dweight + (size_t)v*C + c);
    Reals<W> sum = {};
    if (c < C) {
        const Reals<W> old = *to, end = *(const Reals<W> *)(edges + C);
        for (int j = 0; j < W; j++) sum.x[j] = old.x[j] + end.x[j];
    }
    for (size_t piece = 1, found = 32; found == 32; piece += 32) {
        const unsigned same = __ballot_sync(ALL, token_at(token, order, first + (piece + lane) * RUN, N) == v);
        found = __popc(same);                               // the first ones: sorted
        #pragma unroll 8
        for (size_t i = 0; i < (c < C ? found : 0); i++) {
            const Reals<W> begin = *(const Reals<W> *)(edges + 2 * (piece + i) * C);
            for (int j = 0; j < W; j++) sum.x[j] += begin.x[j];
        }
    }
    if (c < C) *to = sum;
}
// Sorting by token: digit after digit, the lowest first, each time stably. Digits have at most 10 bits, so
// two do for any vocabulary up to a million.
static void embed_backward(real *dweight, const floatX *dout, const int *token, int N, int V, int C) {
    int bits = 1;
    while (bits < 31 && V > 1 << bits) bits++;
    const int digits = (int)divide_up(bits, 10), width = (int)divide_up(bits, digits);
    const size_t pieces = divide_up(N, RUN), edges = 2 * pieces * C;
    if (!N) return;
    real *const edge = (real *)workspace((edges + 2 * (size_t)N + DEVICE(sort_scratch)(N, 1 << width)) * sizeof(real));
    int *const scratch = (int *)(edge + edges), *order[2] = { scratch, scratch + N };
    for (int i = 0; i < digits; i++)
        DEVICE(sort)(Sorted{ order[i % 2] }, token, i ? order[1 - i % 2] : NULL, N, 1 << width, i * width,
                scratch + 2 * (size_t)N);

    const bool w = wide(C, dweight, dout);
    const size_t units = w ? C / VECTOR : C, threads = units < 256 ? divide_up(units, 32) * 32 : 256;
    const dim3 grid = dim3(pieces, divide_up(units, threads));
    const int *const sorted = order[1 - digits % 2];
    auto runs = w ? embed_runs_kernel<VECTOR> : embed_runs_kernel<1>;
    auto ends = w ? embed_edges_kernel<VECTOR> : embed_edges_kernel<1>;
    LAUNCH(runs, grid, threads, 0, dweight, edge, dout, token, sorted, N, C);
    LAUNCH(ends, grid, threads, 0, dweight, edge, token, sorted, N, C);
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
    auto add_squares = [&](const Pack<W> &v) { for (int i = 0; i < W; i++) sum += unpack(v).x[i] * unpack(v).x[i]; };
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) kept[j] = load<W>(x + first + j*step);
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) add_squares(kept[j]);
    for (int c = first + KEEP*step; c < C; c += step) add_squares(load<W>(x + c));

    const real r = 1 / sqrtf(row_sum(sum) / C + eps);
    if (threadIdx.x == 0) rstd[n] = r;
    auto write = [&](const Pack<W> &v, int c) {
        const Reals<W> w = unpack(load<W>(weight + c));
        Reals<W> y = unpack(v);
        for (int i = 0; i < W; i++) y.x[i] *= r;
        y = unpack(pack(y));
        for (int i = 0; i < W; i++) y.x[i] *= w.x[i];
        store(out + n*C + c, pack(y));
    };
    #pragma unroll
    for (int j = 0; j < KEEP; j++) if (first + j*step < C) write(kept[j], first + j*step);
    for (int c = first + KEEP*step; c < C; c += step) write(load<W>(x + c), c);
}
static void rmsnorm_forward(floatX *out, real *rstd, const floatX *inp, Norm norm, int N, int C) {
    const bool w = wide(C, out, inp, norm.weight);
    const dim3 block = row_threads(w ? C / VECTOR : C, KEEP, 1024);
    auto kernel = w ? rmsnorm_forward_kernel<VECTOR> : rmsnorm_forward_kernel<1>;
    LAUNCH(kernel, divide_up(N, block.y), block, 0, out, rstd, inp, norm.weight, norm.eps, N, C);
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
// of its upper. Moves 2*N*heads*D elements; the table stays in the cache. A thread waits for a position, then for its part of
// the table: as many threads as there can be, with 32 registers.
template<int W> static __global__ void __launch_bounds__(256, 8) rope_kernel(floatX *x, const real *table,
        const int *position, int direction, int N, int stride, int heads, int D) {
    const size_t n = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int half = D / 2, units = half / W;               // of a head
    if (n >= N) return;
    const real *turn = table + (size_t)position[n] * D;
    for (int u = threadIdx.x; u < heads * units; u += blockDim.x) {
        const int i = u % units * W;
        floatX *low = x + n * stride + (size_t)(u / units) * D + i, *high = low + half;
        const Reals<2*W> t = *(const Reals<2*W> *)(turn + 2*i);
        Reals<W> a = unpack(load<W>(low)), b = unpack(load<W>(high));
        #pragma unroll
        for (int j = 0; j < W; j++) {
            const real cosine = t.x[2*j], sine = direction * t.x[2*j + 1], re = a.x[j], im = b.x[j];
            a.x[j] = re * cosine - im * sine;
            b.x[j] = im * cosine + re * sine;
        }
        store(low, pack(a));
        store(high, pack(b));
    }
}
static void rope(floatX *x, const real *table, const int *position, int direction, int N,
        int stride, int heads, int D) {
    const bool w = wide(D / 2, x, table) && stride % VECTOR == 0;
    const size_t units = (size_t)heads * (D / 2 / (w ? VECTOR : 1));
    const dim3 block = units < 256 ? dim3(units, 256 / units) : dim3(256);
    auto kernel = w ? rope_kernel<VECTOR> : rope_kernel<1>;
    LAUNCH(kernel, divide_up(N, block.y), block, 0, x, table, position, direction, N, stride, heads, D);
}

// ---- residual and dropout ---------------------------------------------------------------------------------

// A thread has W elements at each of DROP_EACH places, whose loads are under way while the key of the mask is made. residual
// NULL: dropout alone. Moves 3*n elements, or 2*n.
enum { DROP_EACH = 2, DROP_THREADS = 256 };
template<int W> static __global__ void drop_kernel(floatX *out, const floatX *residual, const floatX *branch,
        Mask dropout, size_t n) {
    enum { STEP = DROP_THREADS * W };
    const size_t first = (size_t)blockIdx.x * DROP_EACH * STEP + threadIdx.x * W, whole = n / W * W;
    const int count = first >= whole ? 0 : min((whole - first + STEP - 1) / STEP, (size_t)DROP_EACH);
    Pack<W> x[DROP_EACH], old[DROP_EACH];
    #pragma unroll
    for (int k = 0; k < DROP_EACH; k++) if (k < count) x[k] = load<W>(branch + first + k*STEP);
    #pragma unroll
    for (int k = 0; k < DROP_EACH; k++) if (k < count && residual) old[k] = load<W>(residual + first + k*STEP);
    const uint64_t here = drop_key(dropout);
    #pragma unroll
    for (int k = 0; k < DROP_EACH; k++) if (k < count) {
        Reals<W> y = unpack(x[k]);
        drop<W>(y.x, dropout, here, first + k*STEP);
        if (residual) for (int i = 0; i < W; i++) y.x[i] += unpack(old[k]).x[i];
        store(out + first + k*STEP, pack(y));
    }
    const size_t rest = whole + global_index();             // the last few
    if (rest < n) {
        real sum = R(branch[rest]);
        drop<1>(&sum, dropout, here, rest);
        out[rest] = X(residual ? R(residual[rest]) + sum : sum);
    }
}
static void residual(floatX *out, const floatX *residual, const floatX *branch, Dropout d, size_t n) {
    const bool w = wide(0, out, residual, branch);
    auto kernel = w ? drop_kernel<VECTOR> : drop_kernel<1>;
    LAUNCH(kernel, divide_up(n, DROP_THREADS * DROP_EACH * (w ? VECTOR : 1)), DROP_THREADS, 0, out, residual, branch,
           mask_of(d), n);
}
static void dropout(floatX *out, const floatX *inp, Dropout d, size_t n) {
    residual(out, NULL, inp, d, n);
}

extern "C" {
void DEVICE(matmul)(Device *d);
void DEVICE(matmul_portable)(Device *d);
void DEVICE(hopper)(Device *d);
void DEVICE(route)(Device *d);
void DEVICE(round)(Device *d);
void DEVICE(join)(Device *d);
void DEVICE(expert)(Device *d);
void DEVICE(attention)(Device *d);
void DEVICE(attention_hopper)(Device *d);
void DEVICE(optimizer)(Device *d);
void DEVICE(muon)(Device *d);
void DEVICE(muon_portable)(Device *d);
void DEVICE(decode)(Device *d);
void DEVICE(sample)(Device *d);
void DEVICE(few)(Device *d);
}
PART(device) {
    *d = Device();
    d->name = DEVICE_NAME;                    d->dtype = DEVICE_DTYPE;
    d->floatX_size = sizeof(floatX);          d->real_size = sizeof(real);
    d->is_gpu = 1;
    d->open = cuda_open;                      d->count = cuda_count;
    d->connect = cuda_connect;
    d->alloc = alloc;                         d->release = release;
    d->memory = memory;                       d->sync = cuda_sync;
    d->upload = upload;                       d->download = cuda_read;
    d->copy = copy;                           d->zero = zero;
    d->from_double = from_double;             d->to_double = to_double;
    d->reals_from_double = reals_from_double; d->reals_to_double = reals_to_double;
    d->post = post;                           d->collect = collect;
    d->waits = cuda_waits;                    d->record_begin = cuda_record_begin;
    d->record_end = cuda_record_end;          d->replay = cuda_replay;
    d->record_free = cuda_record_free;
    d->mark = cuda_mark;                      d->elapsed = cuda_elapsed;
    d->set_activity = cuda_doing;
    d->embed_forward = embed_forward;         d->embed_backward = embed_backward;
    d->rmsnorm_forward = rmsnorm_forward;
    d->rope_table = rope_table;               d->rope = rope;
    d->residual = residual;                   d->dropout = dropout;
    d->expert_up_forward = compound_expert_up_forward;
    d->expert_down_backward = compound_expert_down_backward;
    DEVICE(matmul)(d);
    DEVICE(route)(d);
    DEVICE(round)(d);
    DEVICE(join)(d);
    DEVICE(expert)(d);
    DEVICE(attention)(d);
    DEVICE(attention_hopper)(d);
    DEVICE(optimizer)(d);
    DEVICE(muon)(d);
    DEVICE(decode)(d);
    DEVICE(sample)(d);
    DEVICE(few)(d);
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
    DEVICE(muon_portable)(d);
    d->expert_up_forward = compound_expert_up_forward;
    d->expert_down_backward = compound_expert_down_backward;
}
#endif
