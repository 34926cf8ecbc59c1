// meeting.cu: threads of ranks in one process keep step while they queue what their GPUs do together; compiled once.
//
// A call of CUDA may wait for all that its GPU has queued, and keep the other threads of the process from queueing anything meanwhile: the
// first launch of a kernel, which loads it, or a call that allocates, frees or locks memory. If its GPU is then in an operation whose part
// another thread has yet to queue, both wait forever. So after each operation among GPUs no thread goes on until all of its process have
// queued their parts: what a GPU waits for has then been queued, here and, by the same rule, in every other process. Threads run
// far ahead of their GPUs, which therefore do not notice.
#include "impl.cuh"
extern "C" {
#include "kernels/comm.h"
}
#include <atomic>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct Meeting {
    int ranks;
    std::atomic<int> here, closed;
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

// The first rank of a process brings the meeting.
Meeting *meeting_open(Group *group) {
    struct Invitation { uint64_t process; Meeting *meeting; } mine = { this_process(), new Meeting() };
    Invitation *all = (Invitation *)calloc(group->size, sizeof *all);
    if (!all) CUDA_CHECK(cudaErrorMemoryAllocation);
    group->exchange(group, all, &mine, sizeof mine);
    Meeting *shared = NULL;
    int ranks = 0;
    for (int r = 0; r < group->size; r++) {
        if (all[r].process != mine.process) continue;
        if (!ranks++) shared = all[r].meeting;
    }
    if (shared == mine.meeting) shared->ranks = ranks;
    else delete mine.meeting;
    group->exchange(group, all, &mine, sizeof mine);        // none begins before it is complete
    free(all);
    if (!context()->meeting) context()->meeting = shared;
    return shared;
}
void meeting_close(Meeting *m) {
    if (context()->meeting == m) context()->meeting = NULL;
    if (++m->closed == m->ranks) delete m;
}

void cuda_meet(Meeting *m) {
    enum { SPINS = 20000 };                                 // some 100 us
    if (context()->recording) context()->recorded_exchange = true;
    if (!m || context()->recording) return;
    const unsigned round = m->round;
    if (++m->here == m->ranks) {
        m->here = 0;
        m->round++;
        return;
    }
    for (int i = 0; m->round == round; i++)
        if (i >= SPINS) usleep(20);
}
