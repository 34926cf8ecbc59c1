// device.cu: memory, transfers, and the device table.
#include "impl.cuh"
#include "kernels/compound.h"

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
void DEVICE(upload)(void *dst, const void *host, size_t bytes) {
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

extern "C" {
void DEVICE(embed)(Device *d);
void DEVICE(norm)(Device *d);
void DEVICE(rope)(Device *d);
void DEVICE(dropout)(Device *d);
void DEVICE(matmul)(Device *d);
void DEVICE(matmul_portable)(Device *d);
void DEVICE(hopper)(Device *d);
void DEVICE(route)(Device *d);
void DEVICE(round)(Device *d);
void DEVICE(expert)(Device *d);
void DEVICE(attention)(Device *d);
void DEVICE(attention_hopper)(Device *d);
void DEVICE(loss)(Device *d);
void DEVICE(sum)(Device *d);
void DEVICE(optimizer)(Device *d);
void DEVICE(decode_attention)(Device *d);
void DEVICE(sample)(Device *d);
void DEVICE(decode_layer)(Device *d);
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
    d->upload = DEVICE(upload);               d->download = cuda_read;
    d->copy = copy;                           d->zero = zero;
    d->from_double = from_double;             d->to_double = to_double;
    d->reals_from_double = reals_from_double; d->reals_to_double = reals_to_double;
    d->post = post;                           d->collect = collect;
    d->waits = cuda_waits;                    d->record_begin = cuda_record_begin;
    d->record_end = cuda_record_end;          d->replay = cuda_replay;
    d->record_free = cuda_record_free;
    d->mark = cuda_mark;                      d->elapsed = cuda_elapsed;
    d->set_activity = cuda_set_activity;
    d->expert_up_forward = compound_expert_up_forward;
    d->expert_down_backward = compound_expert_down_backward;
    DEVICE(embed)(d);
    DEVICE(norm)(d);
    DEVICE(rope)(d);
    DEVICE(dropout)(d);
    DEVICE(matmul)(d);
    DEVICE(route)(d);
    DEVICE(round)(d);
    DEVICE(expert)(d);
    DEVICE(attention)(d);
    DEVICE(attention_hopper)(d);
    DEVICE(loss)(d);
    DEVICE(sum)(d);
    DEVICE(optimizer)(d);
    DEVICE(decode_attention)(d);
    DEVICE(sample)(d);
    DEVICE(decode_layer)(d);
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
    d->expert_up_forward = compound_expert_up_forward;
    d->expert_down_backward = compound_expert_down_backward;
}
#endif
