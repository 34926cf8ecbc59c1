/* emulator.cpp: the threads of a block as fibers, and what they wait for. */
#include "instructions.h"
#include <sys/mman.h>
#include <deque>
#include <map>
#include <vector>

namespace emulator {
enum { MOST_THREADS = 1024, STACK = 128 << 10, WARPS = MOST_THREADS / 32, NAMED_BARRIERS = 16, PATIENCE = 400000 };
State now;
alignas(1024) unsigned char shared[256 << 10];

void defect(const char *what) {
    fprintf(stderr, "emulator: %s (block %u, thread %d)\n", what, now.block.x, now.id);
    abort();
}
/* Marsaglia's xorshift; EMULATOR_SEED in the environment chooses another order of everything. */
static uint64_t state;
static unsigned draw(void) {
    if (!state) state = 88172645463325252u
        + 0x9e3779b97f4a7c15u * strtoull(getenv("EMULATOR_SEED") ? getenv("EMULATOR_SEED") : "0", NULL, 0);
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)(state >> 20);
}

/* ---- fibers ---------------------------------------------------------------------------------- */

static void *fiber[MOST_THREADS], *scheduler;
static bool ended[MOST_THREADS];
static int living, rounds;                                          /* rounds: since something last happened */
static const std::function<void(void)> *kernel;

/* Saves the registers that a call preserves on the stack, that stack at *from, and goes on with
 * another. */
extern "C" void emulator_switch(void **from, void *to);
#if defined(__x86_64__)
enum { SAVED = 6 };
asm(".text\n.globl emulator_switch\nemulator_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#else
#error "the emulator knows x86-64 only"
#endif
void yield(void) { emulator_switch(&fiber[now.id], scheduler); }

/* ---- threads that meet ----------------------------------------------------------------------- */

static struct { int arrived, generation; } barriers[NAMED_BARRIERS];
static struct Warp {
    const void *of[32];
    std::function<void(const void **)> f;
    int arrived, lanes, kind, generation;
} warps[WARPS];

void barrier(int id, int threads) {
    auto &b = barriers[id];
    const int generation = b.generation;
    if (++b.arrived == (id ? threads : living)) b.arrived = rounds = 0, b.generation++;
    while (b.generation == generation) yield();
}
static void go_on(Warp &w) { w.arrived = rounds = 0, w.f(w.of), w.generation++; }
void collective(const void *mine, int kind, const std::function<void(const void **)> &f) {
    Warp &w = warps[now.id / 32];
    const int generation = w.generation;
    if (w.arrived && w.kind != kind) defect("lanes of a warp are at different instructions");
    if (!w.arrived) w.f = f, w.kind = kind, std::fill(w.of, w.of + 32, nullptr);
    w.of[now.id % 32] = mine;
    if (++w.arrived == w.lanes) go_on(w);
    while (w.generation == generation) yield();
}
/* The others may have waited for this thread alone. */
static void end_thread(void) {
    Warp &w = warps[now.id / 32];
    ended[now.id] = true, living--;
    if (--w.lanes && w.arrived == w.lanes) go_on(w);
    if (living && barriers[0].arrived == living) barriers[0].arrived = rounds = 0, barriers[0].generation++;
}
static void run_thread(void) {
    (*kernel)();
    end_thread();
    for (;;) yield();
}

/* ---- barriers in shared memory, work in the background --------------------------------------- */

static std::map<uint32_t, Barrier> in_shared;
Barrier &barrier_at(uint32_t address) { return in_shared[address]; }
void may_complete(Barrier &b) {
    if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.arrivals, rounds = 0;
}

struct Piece { long group; std::function<void(void)> work; };
static std::deque<Piece> begun[3][MOST_THREADS];
static long groups[3][MOST_THREADS];
static std::vector<std::pair<Work, int>> waiting;                   /* one for each piece: its kind and thread */

void begin(Work kind, std::function<void(void)> work) {
    begun[kind][now.id].push_back({ groups[kind][now.id], work });
    waiting.push_back({ kind, now.id });
}
static void end_piece(std::deque<Piece> &of, size_t i) {
    const auto work = of[i].work;
    of.erase(of.begin() + (long)i), rounds = 0;
    work();
}
static void end_some(void) {
    if (waiting.empty()) return;
    const size_t i = draw() % waiting.size();
    auto &of = begun[waiting[i].first][waiting[i].second];
    const bool load = waiting[i].first == LOAD;
    waiting[i] = waiting.back(), waiting.pop_back();
    if (!of.empty()) end_piece(of, load ? draw() % of.size() : 0);
}
void commit(Work kind) { groups[kind][now.id]++; }
void wait(Work kind, int pending) {
    auto &of = begun[kind][now.id];
    while (!of.empty() && of[0].group < groups[kind][now.id] - pending) end_piece(of, 0);
}

/* ---- products of a warpgroup ----------------------------------------------------------------- */

struct Step { float *d[128]; Operand x[128]; Product product; };
static struct Warpgroup {
    Step next;
    std::vector<Step> open;
    std::deque<std::vector<Step>> closed;
    int issuing, committing, waiting;
    long issued, waited;
} warpgroups[MOST_THREADS / 128];

void multiply(float *d, const uint32_t *x, Product product) {
    Warpgroup &w = warpgroups[now.id / 128];
    const long issued = w.issued;
    w.next.d[now.id % 128] = d;
    if (x) memcpy(&w.next.x[now.id % 128], x, sizeof(Operand));
    if (++w.issuing == 128) w.issuing = rounds = 0, w.next.product = product, w.open.push_back(w.next), w.issued++;
    while (w.issued == issued) yield();
}
static void end_products(Warpgroup &w, size_t pending) {
    for (; w.closed.size() > pending; w.closed.pop_front())
        for (Step &s : w.closed[0]) s.product(s.d, s.x);
}
void commit_products(void) {
    Warpgroup &w = warpgroups[now.id / 128];
    if (++w.committing < 128) return;
    w.committing = 0, w.closed.push_back(w.open), w.open.clear();
    if (draw() % 2) end_products(w, 0);
}
void wait_for_products(int pending) {
    Warpgroup &w = warpgroups[now.id / 128];
    const long waited = w.waited;
    if (++w.waiting == 128) w.waiting = rounds = 0, end_products(w, (size_t)pending), w.waited++;
    while (w.waited == waited) yield();
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static State states[MOST_THREADS];
static void begin_block(dim3 grid, dim3 block, uint3 at, size_t bytes, char *stacks) {
    const int threads = (int)(block.x * block.y * block.z);
    memset(shared, 0xff, bytes);                                    /* NaN */
    in_shared.clear(), living = threads, rounds = 0;
    for (auto &b : barriers) b.arrived = 0;
    for (auto &w : warpgroups) w = Warpgroup();
    for (int i = 0; i < WARPS; i++) warps[i].arrived = 0, warps[i].lanes = max(0, min(32, threads - i * 32));
    for (unsigned i = 0; i < (unsigned)threads; i++) {
        states[i] = { { i % block.x, i / block.x % block.y, i / (block.x * block.y) }, at, grid, block, (int)i };
        ended[i] = false;
        void **top = (void **)(stacks + (size_t)(i + 1) * STACK) - 2;
        *--top = NULL, *--top = (void *)run_thread;                 /* where it returns to, and where it begins */
        for (int r = 0; r < SAVED; r++) *--top = NULL;
        fiber[i] = top;
    }
}
static void run_block(int threads) {
    const unsigned count = (unsigned)(threads + 31) / 32;
    while (living) {
        const int first = (int)(draw() % count) * 32, lanes = min(32, threads - first);
        const unsigned from = draw(), some = draw() | draw();       /* lanes need not go on together */
        for (int l = 0; l < lanes; l++) {
            const int i = first + (int)((from + (unsigned)l) % (unsigned)lanes);
            if (!ended[i] && some >> i % 32 & 1) now = states[i], emulator_switch(&scheduler, fiber[i]);
        }
        if (draw() % 2) end_some();
        if (++rounds > PATIENCE) defect("a block waits for ever");
    }
    while (!waiting.empty()) end_some();
    for (auto &kind : begun)
        for (int i = 0; i < threads; i++)
            if (!kind[i].empty()) defect("work has no end");
}
void launch(dim3 grid, dim3 block, size_t bytes, std::function<void(void)> f) {
    static char *stacks;
    const int threads = (int)(block.x * block.y * block.z);
    if (!stacks) stacks = (char *)mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (threads > MOST_THREADS || bytes > 232448 || stacks == MAP_FAILED)
        defect("more threads or shared memory than a block can have");
    kernel = &f;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++)
                begin_block(grid, block, { x, y, z }, bytes, stacks), run_block(threads);
}
}
