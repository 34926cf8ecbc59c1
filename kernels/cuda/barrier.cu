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
#include <time.h>
#include <unistd.h>

struct HostBarrier {
    int ranks;
    std::atomic<int> arrived, closed;
    std::atomic<unsigned> round;
};

uint64_t this_process(void) {
    static const uint64_t mark = [] {
        timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        return (uint64_t)getpid() << 40 ^ (uint64_t)t.tv_sec << 30 ^ (uint64_t)t.tv_nsec;
    }();
    return mark;
}

// All ranks make one; those of a process use that of its first rank.
HostBarrier *host_barrier_open(Group *group) {
    struct Offer { uint64_t process; HostBarrier *barrier; } mine = { this_process(), new HostBarrier() };
    Offer *all = (Offer *)calloc(group->size, sizeof *all);
    if (!all) CUDA_CHECK(cudaErrorMemoryAllocation);
    group->exchange(group, all, &mine, sizeof mine);
    HostBarrier *shared = NULL;
    int ranks = 0;
    for (int r = 0; r < group->size; r++) {
        if (all[r].process != mine.process) continue;
        if (!ranks++) shared = all[r].barrier;
    }
    if (shared == mine.barrier) shared->ranks = ranks;
    else delete mine.barrier;
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
