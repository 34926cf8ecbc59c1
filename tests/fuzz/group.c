/* group.c: what admitted processes send on the data connection while a run works. The input begins
 * with who they are; then come an operation and the bytes that it receives, again and again. What
 * the operations return is within their bounds, or the program ends. */
#define _POSIX_C_SOURCE 200809L
#include "tests/fuzz/support/fuzz.h"
#include "llmc/files/save_shard.h"
#include "llmc/model/plan.h"
#include "llmc/ranks/group_impl.h"
#include "kernels/kernels.h"
#include <math.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_PROCESSES = 3, MOST_RANKS_EACH = 3, MOST_SIZE = MOST_PROCESSES * MOST_RANKS_EACH };
static Model model;
static SaveShard shard;
static char piece[PIECE];

void fuzz_start(void) {
    Config c;
    Error e;
    if (!config_parse(&c, "m2:c32h4e4k2f32", &e)) abort();
    c.vocab = 256, c.context = 32;
    model_plan_inference(&model, device_find("cpu-f32"), &c, 1, 1, 0, NULL);
    save_shard_open(&shard, &model, NULL);
}
static void lost(const char *why) { fail(EXIT_PEER, "%s", why); }

/* The bytes of the others wait in their sockets; then these end. Sockets hold what is answered. */
static void connect_them(ProcessGroup *g, Part *rest, int *other) {
    const int first = g->process ? 0 : 1, count = g->process ? 1 : g->processes - 1;
    for (int i = 0; i < count; i++) {
        int pair[2];
        const size_t n = rest->bytes / (size_t)(count - i);
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) abort();
        if (n && write(pair[1], rest->at, n) != (ssize_t)n) abort();
        shutdown(pair[1], SHUT_WR);
        *rest = (Part){ rest->at + n, rest->bytes - n };
        g->link[first + i].data = pair[0];
        other[i] = pair[1];
    }
}
static void check_agreement(Group *group, int ok) {
    Error why = { .text = "it could not", .code = EXIT_DISK };
    if (group_agree(group, ok, &why)) fuzz_check(ok);
    else fuzz_check(memchr(why.text, 0, sizeof why.text) && why.code >= 0 && why.code <= EXIT_STOPPED);
}
/* As the calls in llmc/run and llmc/files. */
static void operate(Group *group, unsigned which) {
    double all[MOST_SIZE];
    int x;
    FileSum sum;
    FilePart parts[2] = { { 100, { 20, 3 } }, { 0, { 100, 4 } } };
    switch (which) {
    case 0: x = group_max(group, 1, 4); fuzz_check(x >= 1 && x <= 4); break;
    case 1: x = group_min(group, 2, 0); fuzz_check(x >= 0 && x <= 2); break;
    case 2: x = group_or(group, 1, 15); fuzz_check(!(x & ~15)); break;
    case 3: x = group_all(group, 1) | group_any(group, 0); fuzz_check(x == 0 || x == 1); break;
    case 4: group_gather(group, all, 5, 0, 1e18);
            for (int r = 0; r < group->size; r++) fuzz_check(all[r] >= 0 && all[r] <= 1e18);
            break;
    case 5: group_gather(group, all, 5, -INFINITY, INFINITY); break;
    case 6: fuzz_check(group_broadcast(group, 2, 0, 2) <= 2); break;
    case 7: check_agreement(group, 1); break;
    case 8: check_agreement(group, 0); break;
    case 9: save_shard_sum(&shard, group, parts, 2, &sum); break;
    default: group_barrier(group);
    }
}

void fuzz_one(const uint8_t *data, size_t size) {
    enum { MOST_OPERATIONS = 8, OPERATIONS = 11 };
    Part rest = { (const char *)data, size };
    Process at[MOST_PROCESSES] = { { 0 } };
    Link link[MOST_PROCESSES] = { { 0 } };
    Rank rank[1];
    int other[MOST_PROCESSES] = { -1, -1, -1 };
    unsigned which[MOST_OPERATIONS];
    Error e;
    ProcessGroup g = { .processes = 2 + (int)fuzz_choice(&rest, MOST_PROCESSES - 1), .ranks = 1, .at = at, .link = link,
                       .rank = rank, .piece = piece, .silence = -2 * LINGER, .lost = lost };
    g.process = (int)fuzz_choice(&rest, (unsigned)g.processes);
    for (int p = 0; p < g.processes; p++)
        at[p].ranks = p == g.process ? 1 : 1 + (int)fuzz_choice(&rest, MOST_RANKS_EACH);
    const unsigned operations = 1 + fuzz_choice(&rest, MOST_OPERATIONS);
    for (unsigned i = 0; i < operations; i++) which[i] = fuzz_choice(&rest, OPERATIONS);
    if (!processes_number(at, g.processes, &e)) abort();
    pthread_mutex_init(&g.mutex, NULL);
    pthread_cond_init(&g.all_here, NULL);
    group_begin(&g);
    connect_them(&g, &rest, other);
    for (unsigned i = 0; i < operations; i++) operate(group_of(&g, 0), which[i]);
    for (int p = 0; p < MOST_PROCESSES; p++) {
        if (other[p] >= 0) close(other[p]);
        if (p < g.processes && p != g.process && (!g.process || !p)) close(link[p].data);
    }
}
