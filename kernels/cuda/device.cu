// device.cu: memory, transfers, and the device table.
#include "impl.cuh"
#include "kernels/compound.h"

// ---- memory -------------------------------------------------------------------------------------
// Uploads go through two pinned buffers: the GPU copies from one while the host fills the other.

enum { STAGING = 4 << 20 };
static thread_local struct { char *at[2]; cudaEvent_t copied[2]; int current; } staging;

// The buffer to fill next; staging_send copies it to the device.
static char *staging_buffer(void) {
    for (int i = 0; i < 2 && !staging.copied[i]; i++) {
        CUDA_CHECK(cudaMallocHost((void **)&staging.at[i], STAGING));
        CUDA_CHECK(cudaEventCreateWithFlags(&staging.copied[i], cudaEventDisableTiming));
    }
    // A replay would upload whatever the buffer holds at that time, so uploads cannot be recorded.
    CUDA_CHECK(context()->recording ? cudaErrorStreamCaptureUnsupported
                                    : cudaEventSynchronize(staging.copied[staging.current]));
    return staging.at[staging.current];
}
static void staging_send(void *dst, size_t bytes) {
    if (context()->recording) return;                       // staging_buffer has reported it
    CUDA_CHECK(cudaMemcpyAsync(dst, staging.at[staging.current], bytes, cudaMemcpyHostToDevice, context()->stream));
    CUDA_CHECK(cudaEventRecord(staging.copied[staging.current], context()->stream));
    staging.current ^= 1;
}

static void *alloc(size_t bytes) {
    void *p = NULL;
    const cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();                                 // NULL reports it
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
// Less than is free: the library, recordings and the workspace are allocated later.
static size_t memory(void) {
    const size_t later = (size_t)512 << 20;
    size_t available = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    return available > later ? available - later : 1;
}
void DEVICE(upload)(void *dst, const void *host, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < STAGING ? bytes - at : STAGING;
        memcpy(staging_buffer(), (const char *)host + at, n);
        staging_send((char *)dst + at, n);
    }
}

// Each slot of post has a pinned buffer, and an event that tells when its copy is complete.
static thread_local struct { void *at; size_t capacity; cudaEvent_t complete; } posts[2];
static void post(int slot, const void *src, size_t bytes) {
    auto &p = posts[slot];
    if (!p.complete) CUDA_CHECK(cudaEventCreateWithFlags(&p.complete, cudaEventDisableTiming));
    if (bytes > p.capacity) {
        if (p.at) CUDA_CHECK(cudaFreeHost(p.at));
        CUDA_CHECK(cudaMallocHost(&p.at, p.capacity = bytes));
    }
    CUDA_CHECK(cudaMemcpyAsync(p.at, src, bytes, cudaMemcpyDeviceToHost, context()->stream));
    CUDA_CHECK(cudaEventRecord(p.complete, context()->stream));
}
static void collect(void *host, int slot, size_t bytes) {
    context()->waited.reads++;
    CUDA_CHECK(cudaEventSynchronize(posts[slot].complete));
    memcpy(host, posts[slot].at, bytes);
}

// Copies for saving have a stream of their own, and are queued in pieces, as the host's memory was
// locked in pieces; transfers between GPUs find the copy engines free in between.
static thread_local struct { cudaStream_t stream; cudaEvent_t ready, complete; } leaving;
static int host_lock(const void *near, void *host, size_t bytes) {
    cudaPointerAttributes there;
    if (cudaPointerGetAttributes(&there, near) == cudaSuccess && cudaSetDevice(there.device) == cudaSuccess
        && cudaHostRegister(host, bytes, cudaHostRegisterDefault) == cudaSuccess) return 1;
    cudaGetLastError();                                     // 0 reports it
    return 0;
}
static void host_unlock(void *host) { CUDA_CHECK(cudaHostUnregister(host)); }
static void copy_pieces(char *to, const char *from, const void *host, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = HOST_PIECE - ((uintptr_t)host + at) % HOST_PIECE;
        if (n > bytes - at) n = bytes - at;
        CUDA_CHECK(cudaMemcpyAsync(to + at, from + at, n, kind, stream));
    }
}
static void copy_in(void *dst, const void *host, size_t bytes) {
    copy_pieces((char *)dst, (const char *)host, host, bytes, cudaMemcpyHostToDevice, context()->stream);
}
static void copy_out(void *host, const void *src, size_t bytes) {
    if (!leaving.stream) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&leaving.stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&leaving.ready, cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&leaving.complete, cudaEventDisableTiming));
    }
    CUDA_CHECK(cudaEventRecord(leaving.ready, context()->stream));
    CUDA_CHECK(cudaStreamWaitEvent(leaving.stream, leaving.ready, 0));
    copy_pieces((char *)host, (const char *)src, host, bytes, cudaMemcpyDeviceToHost, leaving.stream);
    CUDA_CHECK(cudaEventRecord(leaving.complete, leaving.stream));
}
static void copied(int host_waits) {
    if (!leaving.stream) return;
    if (host_waits) CUDA_CHECK(cudaEventSynchronize(leaving.complete));
    else CUDA_CHECK(cudaStreamWaitEvent(context()->stream, leaving.complete, 0));
}
static void copy(void *dst, const void *src, size_t bytes) {
    if (bytes) CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, context()->stream));
}
static void zero(void *dst, size_t bytes) { if (bytes) CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, context()->stream)); }

template<class T> static void convert_up(T *dst, const double *host, size_t n) {
    for (size_t at = 0, count; at < n; at += count) {
        T *to = (T *)staging_buffer();
        count = n - at < STAGING / sizeof(T) ? n - at : STAGING / sizeof(T);
        #pragma omp parallel for if (count > 10000)
        for (size_t i = 0; i < count; i++) to[i] = (T)(real)host[at + i];
        staging_send(dst + at, count * sizeof(T));
    }
}
template<class T> static void convert_down(double *host, const T *src, size_t n) {
    for (size_t at = 0, count; at < n; at += count) {
        T *from = (T *)staging_buffer();
        count = n - at < STAGING / sizeof(T) ? n - at : STAGING / sizeof(T);
        cuda_read(from, src + at, count * sizeof(T));
        for (size_t i = 0; i < count; i++) host[at + i] = (double)(real)from[i];
    }
}
static void from_double(floatX *dst, const double *host, size_t n) { convert_up(dst, host, n); }
static void to_double(double *host, const floatX *src, size_t n) { convert_down(host, src, n); }
static void reals_from_double(real *dst, const double *host, size_t n) { convert_up(dst, host, n); }
static void reals_to_double(double *host, const real *src, size_t n) { convert_down(host, src, n); }

// The files that fill the table.
#define FILES(F) F(embed) F(norm) F(rope) F(heads) F(columns) F(bias) F(dropout) F(matmul) F(route) F(round) F(expert) \
    F(attention) F(attention_hopper) F(loss) F(sum) F(optimizer) F(muon) F(decode_attention) F(sample) \
    F(tables) F(fp8)
#define FP8_FILES(F) F(fp8_codes) F(fp8_rows) F(fp8_down) F(fp8_weight) F(fp8_loss)
extern "C" {
#define DECLARE(part) void DEVICE(part)(Device *d);
FILES(DECLARE) DECLARE(hopper) DECLARE(matmul_portable) DECLARE(muon_portable)
#define DECLARE_FP8(part) void DEVICE(part)(Fp8Operations *d);
FP8_FILES(DECLARE_FP8)
void DEVICE(decode_layer)(DecodeOperations *d);
void DEVICE(decode_heads)(DecodeOperations *d);
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
    d->host_lock = host_lock;                 d->host_unlock = host_unlock;
    d->copy_out = copy_out;                   d->copied = copied;
    d->copy_in = copy_in;
    d->waits = cuda_waits;                    d->record_begin = cuda_record_begin;
    d->record_end = cuda_record_end;          d->replay = cuda_replay;
    d->record_free = cuda_record_free;
    d->mark = cuda_mark;                      d->elapsed = cuda_elapsed;
    d->set_activity = cuda_set_activity;
    d->expert_up_forward = compound_expert_up_forward;
    d->expert_down_backward = compound_expert_down_backward;
#define FILL(part) DEVICE(part)(d);
    FILES(FILL)
    static DecodeOperations decode;
    DEVICE(decode_layer)(&decode);
    DEVICE(decode_heads)(&decode);
    d->decode = &decode;
#if defined(PRECISION_BF16)
    DEVICE(hopper)(d);                                      // after the functions that it replaces
    static Fp8Operations fp8;
#define FILL_FP8(part) DEVICE(part)(&fp8);
    FP8_FILES(FILL_FP8)
    d->fp8 = &fp8;
#endif
}

#if defined(PRECISION_BF16)
// The path for Ampere, which runs on every later GPU too, so that it can be tested and timed there.
PART(portable) {
    DEVICE(device)(d);
    d->name = DEVICE_NAME "-portable";
    DEVICE(matmul_portable)(d);
    DEVICE(attention)(d);
    DEVICE(muon_portable)(d);
    d->expert_up_forward = compound_expert_up_forward;
    d->expert_down_backward = compound_expert_down_backward;
    d->fp8 = NULL;
}
#endif
