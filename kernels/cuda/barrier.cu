// barrier.cu: one process's threads keep step in queueing their GPUs' joint work; compiled once.
//
// A call of CUDA (a kernel's first launch; allocating, freeing or locking memory) may wait for all
// that its GPU has queued, and block the process's other threads meanwhile. If its GPU is then in
// an operation whose part another thread has yet to queue, both wait forever. So after each
// operation among GPUs no thread goes on until all of its process have queued their parts. Threads
// run far ahead of their GPUs, which do not notice.
#include "impl.cuh"
extern "C" {
#include "kernels/comm.h"
}
#include <atomic>
#include <stdlib.h>
#include <unistd.h>

struct HostBarrier {
    int ranks;
    std::atomic<int> arrived, closed;
    std::atomic<unsigned> round;
};

// All ranks make one; those of a process use that of its first rank.
HostBarrier *host_barrier_open(Group *group) {
    HostBarrier *mine = new HostBarrier(), **all = (HostBarrier **)calloc(group->size, sizeof *all);
    if (!all) CUDA_CHECK(cudaErrorMemoryAllocation);
    group->exchange(group, all, &mine, sizeof mine);
    HostBarrier *shared = NULL;
    int ranks = 0;
    for (int r = 0; r < group->size; r++) {
        if (!group->is_here(group, r)) continue;            // an address of another process
        if (!ranks++) shared = all[r];
    }
    if (shared == mine) shared->ranks = ranks;
    else delete mine;
    group->exchange(group, all, &mine, sizeof mine);        // none begins before it is complete
    free(all);
    if (!context()->barrier) context()->barrier = shared;
    return shared;
}
void host_barrier_close(HostBarrier *b) {
    if (context()->barrier == b) context()->barrier = NULL;
    if (++b->closed == b->ranks) delete b;
}

void host_barrier_wait(HostBarrier *b) {
    enum { SPINS = 20000 };                                 // some 100 us
    if (context()->recording) context()->recorded_exchange = true;
    if (!b || context()->recording) return;
    const unsigned round = b->round;
    if (++b->arrived == b->ranks) {
        b->arrived = 0;
        b->round++;
        return;
    }
    for (int i = 0; b->round == round; i++) if (i >= SPINS) usleep(20);
}
