// nccl.cu: ranks that are GPUs, by NVIDIA's library of collective operations; compiled once.
//
// NCCL is opened when a run has several ranks: neither the build nor a run on one GPU needs it. A
// collective operation is a kernel on a few multiprocessors that waits until the other ranks'
// kernels have started. It has a stream of its own, of high priority, so that a reduction starts
// although the backward pass has filled the queue; two events order the two streams.
//
// Only its rank's thread uses a communicator. If a rank is lost, llmc/ranks/watch.c ends us.
#include "copies.cuh"
extern "C" {
Comm *nccl_connect(Group *group, char why[256]);
}
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the library: the part of its C interface that is used here, unchanged since version 2.13 ---

typedef struct ncclComm *NcclComm;
typedef struct { char bytes[128]; } NcclId;
enum NcclType { NCCL_BYTE = 0, NCCL_INT = 2, NCCL_FLOAT = 7 };
enum { NCCL_SUM = 0, NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };

static struct {
    int (*GetVersion)(int *version);
    int (*GetUniqueId)(NcclId *id);
    int (*CommInitRank)(NcclComm *comm, int size, NcclId id, int rank);
    int (*CommDestroy)(NcclComm comm);
    int (*CommGetAsyncError)(NcclComm comm, int *error);
    int (*AllReduce)(const void *send, void *receive, size_t count, int type, int op, NcclComm comm, cudaStream_t s);
    int (*ReduceScatter)(const void *send, void *receive, size_t count, int type, int op, NcclComm comm,
                         cudaStream_t s);
    int (*AllGather)(const void *send, void *receive, size_t count, int type, NcclComm comm, cudaStream_t s);
    int (*Send)(const void *send, size_t count, int type, int to, NcclComm comm, cudaStream_t s);
    int (*Recv)(void *receive, size_t count, int type, int from, NcclComm comm, cudaStream_t s);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    const char *(*GetErrorString)(int error);
    const char *(*GetLastError)(NcclComm comm);
} nccl;
#define NCCL(name) { "nccl" #name, &nccl.name }
static const struct { const char *name; void *at; } functions[] = {
    NCCL(GetVersion), NCCL(GetUniqueId), NCCL(CommInitRank), NCCL(CommDestroy), NCCL(CommGetAsyncError),
    NCCL(AllReduce), NCCL(ReduceScatter), NCCL(AllGather), NCCL(GetErrorString), NCCL(Send), NCCL(Recv),
    NCCL(GroupStart), NCCL(GroupEnd), NCCL(GetLastError)
};

// NULL, or why there is no NCCL. Reductions inside NVLink switches (NVLS) are off unless the user
// turns them on: bits depend on what else has used the switch, and a crash inside can disable GPUs.
static const char *load(void) {
    static char why[200];
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library) {
        snprintf(why, sizeof why, "several GPUs need NCCL, which cannot be opened: %s. Install it, or add its folder "
                 "to LD_LIBRARY_PATH", dlerror());
        return why;
    }
    for (auto &f : functions) {
        void *found = dlsym(library, f.name);
        if (!found) {
            snprintf(why, sizeof why, "this NCCL is too old: it has no %s", f.name);
            return why;
        }
        memcpy(f.at, &found, sizeof found);
    }
    return NULL;
}

// ---- a rank's communicator ----------------------------------------------------------------------

// A sum whose addends travel to the stage: added when needed, or before the stage is used again.
struct Pending { real *out; const real *own; size_t n; bool onto; int64_t number; };
struct Recorded { cudaEvent_t event; int64_t sums; };       // sums: how many were queued before it
struct Nccl : Comm {
    NcclComm     comm;                      // NULL: this rank is alone
    HostBarrier  *barrier;                  // of this process's ranks, after each operation
    cudaStream_t stream;
    // on the device's stream; on this one: all so far, all addends of the pending sum
    cudaEvent_t  queued, done, received;
    Recorded    *recorded;                  // (events) by record
    int          events;
    Copies       *copies;                   // for registered memory; NULL: not available
    real         *stage;                    // (size, most)
    size_t       most;
    Pending      pending;                   // out NULL: none
    int64_t      sums;                      // how many were pending so far
    char         label[32];
};

static void nccl_check(Nccl *n, int result, const char *what) {
    if (result == NCCL_SUCCESS) return;
    fprintf(stderr, "error: rank %d: NCCL: %s: %s. %s\n", n->rank, what, nccl.GetErrorString(result),
            nccl.GetLastError(n->comm));
    _exit(8);                                               // EXIT_PEER. Threads of other ranks may be anywhere
}

// The communication stream, which will wait for all that is queued on the device's stream so far.
static cudaStream_t after_queued(Nccl *n) {
    CUDA_CHECK(cudaEventRecord(n->queued, context()->stream));
    CUDA_CHECK(cudaStreamWaitEvent(n->stream, n->queued, 0));
    return n->stream;
}
static void sum(Comm *c, void *x, size_t n, NcclType type) {
    Nccl *g = (Nccl *)c;
    if (g->comm) nccl_check(g, nccl.AllReduce(x, x, n, type, NCCL_SUM, g->comm, after_queued(g)), "all-reduce");
    host_barrier_wait(g->barrier);
}
static void all_reduce(Comm *c, real *x, size_t n)     { sum(c, x, n, NCCL_FLOAT); }
static void all_reduce_ints(Comm *c, int *x, size_t n) { sum(c, x, n, NCCL_INT); }
// Not while work is recorded: copies number operations, and a replay would repeat the numbers.
static bool by_copies(const Nccl *g, const void *x, size_t bytes) {
    return g->copies && !context()->recording && copies_contain(g->copies, x, bytes * g->size);
}
static void finish(Nccl *g) {
    const Pending p = g->pending;
    if (!p.out) return;
    CUDA_CHECK(cudaStreamWaitEvent(context()->stream, g->received, 0));
    add_shards(p.out, p.own, g->stage, p.n, g->rank, g->size, p.onto);
    g->pending.out = NULL;
}
// What is queued sends x's shards to the stages of all ranks.
static void pend(Nccl *g, real *out, const real *x, size_t n, bool onto) {
    CUDA_CHECK(cudaEventRecord(g->received, g->stream));
    g->pending = { out, x + g->rank * n, n, onto, ++g->sums };
}
static void reduce_scatter(Comm *c, real *x, size_t n) {
    Nccl *g = (Nccl *)c;
    if (n <= g->most && by_copies(g, x, n * sizeof *x)) {
        finish(g);
        copies_scatter(g->copies, after_queued(g), x, n);
        pend(g, x + g->rank * n, x, n, false);
    } else if (g->comm)
        nccl_check(g, nccl.ReduceScatter(x, x + (size_t)c->rank * n, n, NCCL_FLOAT, NCCL_SUM, g->comm,
                                         after_queued(g)), "reduce-scatter");
    host_barrier_wait(g->barrier);
}
// NCCL sums in another order, so it only carries the shards: each rank sends one to every other.
static void send_shards(Nccl *g, const real *x, size_t n) {
    cudaStream_t stream = after_queued(g);
    nccl_check(g, nccl.GroupStart(), "send and receive");
    for (int i = 1; i < g->size && n; i++) {
        const int to = (g->rank + i) % g->size, from = (g->rank + g->size - i) % g->size;
        nccl_check(g, nccl.Send(x + to * n, n, NCCL_FLOAT, to, g->comm, stream), "send");
        nccl_check(g, nccl.Recv(g->stage + from * n, n, NCCL_FLOAT, from, g->comm, stream), "receive");
    }
    nccl_check(g, nccl.GroupEnd(), "send and receive");
}
static void scatter_add(Comm *c, real *shard, const real *x, size_t n) {
    Nccl *g = (Nccl *)c;
    if (!g->comm) { add_shards(shard, x, x, n, 0, 1, true); return; }
    finish(g);
    if (by_copies(g, x, n * sizeof *x)) copies_scatter(g->copies, after_queued(g), x, n);
    else send_shards(g, x, n);
    pend(g, shard, x, n, true);
    host_barrier_wait(g->barrier);
}
static void all_gather(Comm *c, void *x, const void *mine, size_t bytes) {
    Nccl *g = (Nccl *)c;
    if (by_copies(g, x, bytes)) copies_gather(g->copies, after_queued(g), x, mine, bytes);
    else if (g->comm) nccl_check(g, nccl.AllGather(mine, x, bytes, NCCL_BYTE, g->comm, after_queued(g)), "all-gather");
    else if (x != mine && bytes)
        CUDA_CHECK(cudaMemcpyAsync(x, mine, bytes, cudaMemcpyDeviceToDevice, context()->stream));
    host_barrier_wait(g->barrier);
}
static void wait_all(Comm *c) {
    Nccl *g = (Nccl *)c;
    if (!g->comm) return;
    CUDA_CHECK(cudaEventRecord(g->done, g->stream));
    CUDA_CHECK(cudaStreamWaitEvent(context()->stream, g->done, 0));
    finish(g);
}
static void register_memory(Comm *c, void *base, size_t bytes, real *stage, size_t most) {
    Nccl *g = (Nccl *)c;
    if (!g->comm || g->stage) return;
    g->stage = stage, g->most = most;
    if (base) g->copies = copies_open(c->group, base, bytes, stage);
}
static void record(Comm *c, int i) {
    Nccl *g = (Nccl *)c;
    if (!g->comm) return;
    for (; g->events <= i; g->events++) {
        g->recorded = (Recorded *)realloc(g->recorded, (g->events + 1) * sizeof *g->recorded);
        if (!g->recorded) CUDA_CHECK(cudaErrorMemoryAllocation);
        CUDA_CHECK(cudaEventCreateWithFlags(&g->recorded[g->events].event, cudaEventDisableTiming));
        g->recorded[g->events].sums = 0;
    }
    CUDA_CHECK(cudaEventRecord(g->recorded[i].event, g->stream));
    g->recorded[i].sums = g->sums;
}
// A sum that was queued later stays pending: the work that follows need not wait for its addends.
static void wait(Comm *c, int i) {
    Nccl *g = (Nccl *)c;
    if (i >= g->events) return;
    CUDA_CHECK(cudaStreamWaitEvent(context()->stream, g->recorded[i].event, 0));
    if (g->pending.number <= g->recorded[i].sums) finish(g);
}
static void host_wait(Comm *c, int i) {
    Nccl *g = (Nccl *)c;
    if (i < g->events && !context()->recording) CUDA_CHECK(cudaEventSynchronize(g->recorded[i].event));
}
static const char *error(Comm *c) {
    Nccl *g = (Nccl *)c;
    int state = NCCL_SUCCESS;
    if (!g->comm || (nccl.CommGetAsyncError(g->comm, &state) == NCCL_SUCCESS
                      && (state == NCCL_SUCCESS || state == NCCL_IN_PROGRESS))) return NULL;
    return nccl.GetErrorString(state);
}
static void leave(Comm *c) {
    Nccl *g = (Nccl *)c;
    if (g->comm) {
        CUDA_CHECK(cudaStreamSynchronize(g->stream));
        if (g->copies) copies_close(g->copies);
        nccl_check(g, nccl.CommDestroy(g->comm), "leaving");
        CUDA_CHECK(cudaEventDestroy(g->queued));
        CUDA_CHECK(cudaEventDestroy(g->done));
        CUDA_CHECK(cudaEventDestroy(g->received));
        for (int i = 0; i < g->events; i++) CUDA_CHECK(cudaEventDestroy(g->recorded[i].event));
        free(g->recorded);
        CUDA_CHECK(cudaStreamDestroy(g->stream));
        host_barrier_close(g->barrier);
    }
    free(g);
}

// ---- connecting ---------------------------------------------------------------------------------

// What a rank sends to all others, so that all connect, or all give up for the same reason.
struct Card {
    NcclId id;                              // rank 0's is the one that counts
    char   uuid[16], error[192];
    int    version;
};

static bool agree(Card *cards, int size, char why[256]) {
    for (int r = 0; r < size; r++) {
        cards[r].error[sizeof cards[r].error - 1] = 0;
        if (*cards[r].error) snprintf(why, 256, "rank %d: %s", r, cards[r].error);
        else if (cards[r].version != cards[0].version)
            snprintf(why, 256, "rank %d has NCCL %d and rank 0 has NCCL %d", r, cards[r].version, cards[0].version);
        if (*why) return false;
        for (int q = 0; q < r; q++)
            if (!memcmp(cards[q].uuid, cards[r].uuid, sizeof cards[r].uuid)) {
                snprintf(why, 256, "ranks %d and %d are on the same GPU: use fewer ranks per process (-ng), or one "
                         "process per GPU with the launcher's local rank", q, r);
                return false;
            }
    }
    return true;
}

static Nccl *comm_new(Group *group) {
    Nccl *n = (Nccl *)calloc(1, sizeof *n);
    if (!n) return NULL;
    n->group = group;
    n->rank = group->rank;                    n->size = group->size;
    n->all_reduce = all_reduce;               n->all_reduce_ints = all_reduce_ints;
    n->reduce_scatter = reduce_scatter;       n->scatter_add = scatter_add;
    n->all_gather = all_gather;               n->register_memory = register_memory;
    n->wait_all = wait_all;                   n->error = error;
    n->record = record;                       n->wait = wait;
    n->host_wait = host_wait;                 n->close = leave;
    n->name = n->label;
    strcpy(n->label, "alone");
    return n;
}

// With NCCL even for a single rank: for tests.
Comm *nccl_connect(Group *group, char why[256]) {
    static const char *const missing = load();              // once per process
    Nccl *n = comm_new(group);
    Card mine = {}, *cards = (Card *)calloc(group->size, sizeof *cards);
    cudaDeviceProp properties;
    int least, greatest, result = NCCL_SUCCESS;
    if (!n || !cards) { strcpy(why, "out of host memory"); return NULL; }
    *why = 0;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, context()->device));
    memcpy(mine.uuid, &properties.uuid, sizeof mine.uuid);
    if (missing) snprintf(mine.error, sizeof mine.error, "%s", missing);
    else {
        nccl.GetVersion(&mine.version);
        if (!group->rank) result = nccl.GetUniqueId(&mine.id);
        if (result != NCCL_SUCCESS) snprintf(mine.error, sizeof mine.error, "NCCL: %s", nccl.GetErrorString(result));
    }
    group->exchange(group, cards, &mine, sizeof mine);
    if (agree(cards, group->size, why)) {
        CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        CUDA_CHECK(cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest));
        CUDA_CHECK(cudaEventCreateWithFlags(&n->queued, cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&n->done, cudaEventDisableTiming));
        CUDA_CHECK(cudaEventCreateWithFlags(&n->received, cudaEventDisableTiming));
        result = nccl.CommInitRank(&n->comm, group->size, cards[0].id, group->rank);
        if (result != NCCL_SUCCESS)
            snprintf(why, 256, "NCCL: %s. %s (NCCL_DEBUG=WARN prints details; a container needs --shm-size=1g; "
                     "NCCL_SOCKET_IFNAME selects the network)", nccl.GetErrorString(result), nccl.GetLastError(NULL));
        snprintf(n->label, sizeof n->label, "NCCL %d.%d.%d", mine.version / 10000, mine.version / 100 % 100,
                 mine.version % 100);
    }
    free(cards);
    if (!*why) {
        n->barrier = host_barrier_open(group);
        return n;
    }
    free(n);
    return NULL;
}

// Device.connect. A single rank needs no NCCL.
Comm *cuda_connect(Group *group, char why[256]) {
    if (group->size > 1) return nccl_connect(group, why);
    Nccl *n = comm_new(group);
    if (!n) strcpy(why, "out of host memory");
    return n;
}
