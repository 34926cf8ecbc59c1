// device.cu: memory, transfers, and the device table.
#include "impl.cuh"
#include "kernels/compound.h"

// ---- memory -------------------------------------------------------------------------------------
// Uploads go through two pinned staging buffers: while the GPU copies from one, the host fills the
// other. The caller may reuse its own memory as soon as the call returns.

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
static void copy_out(void *host, const void *src, size_t bytes) {
    if (!leaving.stream) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&leaving.stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&leaving.ready, cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&leaving.complete, cudaEventDisableTiming));
    }
    CUDA_CHECK(cudaEventRecord(leaving.ready, context()->stream));
    CUDA_CHECK(cudaStreamWaitEvent(leaving.stream, leaving.ready, 0));
    for (size_t at = 0, n; at < bytes; at += n) {
        n = HOST_PIECE - ((uintptr_t)host + at) % HOST_PIECE;
        if (n > bytes - at) n = bytes - at;
        CUDA_CHECK(cudaMemcpyAsync((char *)host + at, (const char *)src + at, n, cudaMemcpyDeviceToHost,
                                   leaving.stream));
    }
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
static void zero(void *dst, size_t bytes) {
    if (bytes) CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, context()->stream));
}

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

extern "C" {
void DEVICE(embed)(Device *d);
void DEVICE(norm)(Device *d);
void DEVICE(rope)(Device *d);
void DEVICE(heads)(Device *d);
void DEVICE(columns)(Device *d);
void DEVICE(bias)(Device *d);
void DEVICE(dropout)(Device *d);
void DEVICE(matmul)(Device *d);
void DEVICE(matmul_portable)(Device *d);
void DEVICE(hopper)(Device *d);
void DEVICE(fp8_codes)(Fp8Operations *d);
void DEVICE(fp8_rows)(Fp8Operations *d);
void DEVICE(fp8_down)(Fp8Operations *d);
void DEVICE(fp8_weight)(Fp8Operations *d);
void DEVICE(route)(Device *d);
void DEVICE(round)(Device *d);
void DEVICE(expert)(Device *d);
void DEVICE(attention)(Device *d);
void DEVICE(attention_hopper)(Device *d);
void DEVICE(loss)(Device *d);
void DEVICE(sum)(Device *d);
void DEVICE(optimizer)(Device *d);
void DEVICE(muon)(Device *d);
void DEVICE(muon_portable)(Device *d);
void DEVICE(decode_attention)(Device *d);
void DEVICE(sample)(Device *d);
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
    DEVICE(heads)(d);
    DEVICE(columns)(d);
    DEVICE(bias)(d);
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
    DEVICE(muon)(d);
    DEVICE(decode_attention)(d);
    DEVICE(sample)(d);
    static DecodeOperations decode;
    DEVICE(decode_layer)(&decode);
    DEVICE(decode_heads)(&decode);
    if (decode.fits) d->decode = &decode;
#if defined(PRECISION_BF16)
    DEVICE(hopper)(d);                                      // after the functions that it replaces
    static Fp8Operations fp8;
    DEVICE(fp8_codes)(&fp8);
    DEVICE(fp8_rows)(&fp8);
    DEVICE(fp8_down)(&fp8);
    DEVICE(fp8_weight)(&fp8);
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
