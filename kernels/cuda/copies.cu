// copies.cu: see copies.cuh; compiled once.
//
// A collective kernel takes multiprocessors from kernels whose blocks stay on all of them. Where
// each block has a fixed part of the work (hopper/weight.cu), blocks that found none free start
// when the others end, and the kernel takes twice its time. A copy engine needs no multiprocessor.
// Where one process drives all GPUs, every rank pushes to all others:
//
//   all-gather      its own shard, to the same position there
//   reduce-scatter  the receiver's shard, to the receiver's stage: (size, n), one row per sender.
//                   The receiver then adds the rows in rank order, so that the sum depends on
//                   nothing else: x_0 + x_1 + ... Everything is read once, at the rate of memory.
//
// In between, streams synchronize without the host: one stream operation writes a number to memory,
// local or remote, when what was queued before is done; another waits until a number is there. Each
// rank has two flags from every other rank: READY, "my memory may be written to", and DONE, "your
// memory has been written to". The number is that of the operation, so nothing is ever reset. Rank
// r begins with r + 1: in every round each GPU sends to one and receives from one. CUDA does not
// see these waits, so they must not be between streams of one GPU, which may be one queue.
#include "copies.cuh"
#include <cuda.h>
#include <stdlib.h>

struct Address {                            // what a rank sends to all others
    char     *base;
    real     *stage;                        // (size, n)
    unsigned *flags;                        // (2, size)
    int      device, able;                  // able: this rank can use copies
};
struct Copies {
    int      rank, size;
    size_t   bytes;
    Address  *at;                           // (size)
    unsigned number;                        // of the last operation
};
enum Flag { READY, DONE };

static decltype(&cuStreamWriteValue32) write_value;
static decltype(&cuStreamWaitValue32) wait_value;

Copies *copies_open(Group *group, void *base, size_t bytes, real *stage) {
    static const bool can_signal = driver_function("cuStreamWriteValue32", &write_value)
        && driver_function("cuStreamWaitValue32", &wait_value);
    const size_t size = group->size, flags = 2 * size * sizeof(unsigned);
    Address mine = {};
    mine.base = (char *)base, mine.stage = stage, mine.device = context()->device;
    Copies *c = (Copies *)calloc(1, sizeof *c);
    Address *at = (Address *)calloc(size, sizeof *at);
    if (!c || !at) CUDA_CHECK(cudaErrorMemoryAllocation);
    mine.able = can_signal && cudaMalloc(&mine.flags, flags) == cudaSuccess;
    if (mine.able) {
        CUDA_CHECK(cudaMemset(mine.flags, 0, flags));
        CUDA_CHECK(cudaStreamSynchronize(0));
    }
    for (int round = 0; round < 2; round++) {
        // round 0: exchange addresses; round 1: confirm that every pair has peer access
        group->exchange(group, at, &mine, sizeof mine);
        for (int r = 0; r < (int)size; r++) {
            mine.able &= at[r].able && group->is_here(group, r);
            if (!mine.able || round || r == group->rank) continue;
            const cudaError_t e = cudaDeviceEnablePeerAccess(at[r].device, 0);
            mine.able = e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled;
        }
    }
    cudaGetLastError();                                     // of calls that failed above
    if (mine.able) {
        // a first copy between two GPUs may make CUDA wait, as barrier.cu says: now, not later
        for (int r = 0; r < (int)size; r++)
            CUDA_CHECK(cudaMemcpyAsync(at[r].flags + group->rank, mine.flags + group->rank, sizeof *mine.flags,
                                       cudaMemcpyDefault, context()->stream));
        CUDA_CHECK(cudaStreamSynchronize(context()->stream));
        c->rank = group->rank, c->size = (int)size, c->bytes = bytes, c->at = at;
        return c;
    }
    cudaFree(mine.flags);
    free(at);
    free(c);
    return NULL;
}
void copies_close(Copies *c) {
    CUDA_CHECK(cudaFree(c->at[c->rank].flags));
    free(c->at);
    free(c);
}
bool copies_contain(const Copies *c, const void *x, size_t bytes) {
    const char *base = c->at[c->rank].base;
    return (const char *)x >= base && (const char *)x + bytes <= base + c->bytes;
}

// Queued on the stream: sets this rank's flag at rank `to`; waits for the flag of rank `from`.
static void set_flag(const Copies *c, cudaStream_t stream, int to, Flag flag) {
    if (write_value(stream, (CUdeviceptr)(c->at[to].flags + flag * c->size + c->rank), c->number,
                    CU_STREAM_WRITE_VALUE_DEFAULT))
        CUDA_CHECK(cudaErrorUnknown);
}
static void wait_flag(const Copies *c, cudaStream_t stream, int from, Flag flag) {
    if (wait_value(stream, (CUdeviceptr)(c->at[c->rank].flags + flag * c->size + from), c->number,
                   CU_STREAM_WAIT_VALUE_GEQ))
        CUDA_CHECK(cudaErrorUnknown);
}
// Each rank sends `bytes` to each other rank r: from from_at(r) here to to_at(r) there.
template<class To, class From> static void push(Copies *c, cudaStream_t stream, size_t bytes, To to_at, From from_at) {
    c->number++;
    for (int i = 1; i < c->size; i++) set_flag(c, stream, (c->rank + i) % c->size, READY);
    for (int i = 1; i < c->size; i++) {
        const int to = (c->rank + i) % c->size;
        wait_flag(c, stream, to, READY);
        if (bytes) CUDA_CHECK(cudaMemcpyAsync(to_at(to), from_at(to), bytes, cudaMemcpyDefault, stream));
        set_flag(c, stream, to, DONE);
    }
    for (int i = 1; i < c->size; i++) wait_flag(c, stream, (c->rank + i) % c->size, DONE);
}

void copies_gather(Copies *c, cudaStream_t stream, void *x, const void *mine, size_t bytes) {
    char *const block = (char *)x + c->rank * bytes;
    const auto at_rank = [=](int to) { return c->at[to].base + (block - c->at[c->rank].base); };
    if (mine != block && bytes) CUDA_CHECK(cudaMemcpyAsync(block, mine, bytes, cudaMemcpyDeviceToDevice, stream));
    push(c, stream, bytes, at_rank, [=](int) { return mine; });
}

void copies_scatter(Copies *c, cudaStream_t stream, const real *x, size_t n) {
    push(c, stream, n * sizeof *x, [=](int to) { return c->at[to].stage + c->rank * n; },
         [=](int to) { return x + to * n; });
}

// A thread adds W elements. Moves 4 (size + 1) bytes per element, 4 more if onto.
template<int W> static __global__ void add_shards_kernel(real *out, const real *own, const real *stage, size_t n,
                                                         int rank, int size, bool onto) {
    const size_t i = global_index() * W;
    if (i >= n) return;
    Reals<W> sum;
    if (onto) sum = load<W>(out + i);
    for (int r = 0; r < size; r++) {
        const Reals<W> a = load<W>((r == rank ? own : stage + r * n) + i);
#pragma unroll
        for (int j = 0; j < W; j++) sum.x[j] = r || onto ? sum.x[j] + a.x[j] : a.x[j];
    }
    store(out + i, sum);
}
void add_shards(real *out, const real *own, const real *stage, size_t n, int rank, int size, bool onto) {
    const bool four = n % 4 == 0 && ((uintptr_t)out | (uintptr_t)own | (uintptr_t)stage) % 16 == 0;
    if (four) LAUNCH(add_shards_kernel<4>, (unsigned)divide_up(n, 1024), 256, 0, out, own, stage, n, rank, size, onto);
    else      LAUNCH(add_shards_kernel<1>, (unsigned)divide_up(n, 256), 256, 0, out, own, stage, n, rank, size, onto);
}
