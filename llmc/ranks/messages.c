/* messages.c: see messages.h. */
#define _POSIX_C_SOURCE 200809L
#include "messages.h"
#include <stdlib.h>
#include <string.h>

const char greeting_magic[8] = { 'm', 'o', 'e', '-', 'r', 'u', 'n', '2' };

_Static_assert(sizeof(Greeting) == 48 && sizeof(Hello) == 208 && sizeof(Process) == 76 && sizeof(RankStatus) == 48
               && sizeof(MessageHead) == 8, "structs that are sent have no padding");

void one_line(char *text, size_t capacity, const char *bytes, size_t n) {
    size_t i = 0;
    for (; i < n && i + 1 < capacity && bytes[i]; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        text[i] = c < 0x20 || c == 0x7F ? '?' : bytes[i];
    }
    memset(text + i, 0, capacity - i);
}
static void end_text(char *text, size_t capacity) { one_line(text, capacity, text, capacity); }

/* ---- introductions --------------------------------------------------------------------------- */

void proof_make(unsigned char proof[PROOF_BYTES], const char *secret, Direction direction, const Greeting *g,
                const unsigned char nonce[NONCE_BYTES]) {
    struct { char direction[32]; Greeting greeting; unsigned char nonce[NONCE_BYTES]; } all = { .greeting = *g };
    _Static_assert(sizeof all == 32 + sizeof(Greeting) + NONCE_BYTES, "no padding");
    strcpy(all.direction, direction == FROM_HUB ? "moe.c: process 0 to another" : "moe.c: a process to process 0");
    memcpy(all.nonce, nonce, NONCE_BYTES);
    hmac_sha256(secret, strlen(secret), &all, sizeof all, proof);
}

void *introduction_buffer(Introduction *i, size_t *bytes) {
    const struct { void *at; size_t bytes; } of[] = {
        [GREETING] = { &i->greeting, sizeof i->greeting }, [PROVING] = { i->proof, sizeof i->proof },
        [HELLO] = { &i->hello, sizeof i->hello }, [SETTINGS] = { i->settings, i->hello.settings }, };
    *bytes = i->stage > SETTINGS ? 0 : of[i->stage].bytes - i->have;
    return *bytes ? (char *)of[i->stage].at + i->have : NULL;
}

/* The message of this stage is complete. */
static size_t next_stage(Introduction *i, const char *secret, unsigned char answer[PROOF_BYTES]) {
    unsigned char right[PROOF_BYTES];
    Hello *h = &i->hello;
    i->have = 0;
    switch (i->stage) {
    case GREETING:
        i->stage = i->greeting.watch <= 1 ? PROVING : WRONG;
        if (i->stage == PROVING) memcpy(answer, i->nonce, NONCE_BYTES);
        return i->stage == PROVING ? NONCE_BYTES : 0;
    case PROVING:
        proof_make(right, secret, FROM_PROCESS, &i->greeting, i->nonce);
        i->stage = same_in_constant_time(right, i->proof, PROOF_BYTES) ? HELLO : WRONG_SECRET;
        if (i->stage == HELLO) proof_make(answer, secret, FROM_HUB, &i->greeting, i->nonce);
        else memset(answer, 0, PROOF_BYTES);
        return PROOF_BYTES;
    case HELLO:
        end_text(h->version, sizeof h->version);
        end_text(h->job, sizeof h->job);
        end_text(h->host, sizeof h->host);
        i->stage = h->settings > MOST_SETTINGS ? WRONG : h->settings ? SETTINGS : INTRODUCED;
        if (i->stage != WRONG) i->settings = mem_alloc((size_t)h->settings + 1);
        return 0;
    default:
        i->stage = INTRODUCED;
        return 0;
    }
}

size_t introduction_advance(Introduction *i, size_t bytes, const char *secret, unsigned char answer[PROOF_BYTES]) {
    size_t missing;
    i->have += bytes;
    if (i->stage == GREETING                                /* another program: the first wrong byte is enough */
        && memcmp(i->greeting.magic, greeting_magic, i->have < sizeof greeting_magic ? i->have : sizeof greeting_magic))
        i->stage = WRONG;
    introduction_buffer(i, &missing);
    return missing || i->stage > SETTINGS ? 0 : next_stage(i, secret, answer);
}

/* The first difference of two lists {"name": value, ...}. An item begins after a comma or brace. */
static void first_difference(char *text, size_t capacity, const char *a, const char *b) {
    size_t at = 0, item = 0;
    for (; a[at] && a[at] == b[at]; at++) if (strchr(",{", a[at])) item = at + 1;
    if (a[item] == ' ' && b[item] == ' ') item++;
    snprintf(text, capacity, "%.*s there, %.*s in process 0", (int)strcspn(b + item, ",}"), b + item,
             (int)strcspn(a + item, ",}"), a + item);
}

void hello_name(char name[128], const Hello *h, uint32_t process) {
    snprintf(name, 128, "process %u (host %.63s, pid %d)", (unsigned)process, h->host, h->pid);
}
int hello_check(const Hello *mine, const char *my_settings, const Hello *h, uint32_t process,
                const char *settings, Error *e) {
    char name[128], what[400], line[400];
    hello_name(name, h, process);
    if (strcmp(h->version, mine->version))
        return error_set(e, "%s is version %s of this program, process 0 is version %s", name, h->version,
                         mine->version);
    if (h->processes != mine->processes)
        return error_set(e, "%s was started as one of %d processes, process 0 as one of %d", name, h->processes,
                         mine->processes);
    if (process < 1 || process >= (uint32_t)mine->processes)
        return error_set(e, "%s: processes must be numbered 0 to %d, each number once; process 0 has pid %d",
                         name, mine->processes - 1, mine->pid);
    if (h->ranks < 1 || h->ranks > MOST_RANKS_HERE)
        return error_set(e, "%s has %d ranks; a process has 1 to %d", name, h->ranks, MOST_RANKS_HERE);
    if (strcmp(settings, my_settings)) {
        first_difference(what, sizeof what, my_settings, settings);
        one_line(line, sizeof line, what, sizeof what);
        return error_set(e, "%s has other settings: %s", name, line);
    }
    return 1;
}

/* ---- the list of processes ------------------------------------------------------------------- */

int processes_number(Process *at, int processes, Error *e) {
    int64_t ranks = 0;
    for (int p = 0; p < processes; p++) {
        at[p].first = (int32_t)ranks;
        if ((ranks += at[p].ranks) > MOST_RANKS)
            return error_set(e, "the processes have more than %d ranks together", MOST_RANKS);
    }
    return 1;
}

int processes_host_ranks(const Process *at, int processes, Error *e) {
    int first = 0;                                          /* ranks of the first host */
    for (int p = 0, q; p < processes; p = q) {
        const char *const host = at[p].host;
        int ranks = 0;
        for (q = p; q < processes && !strcmp(at[q].host, host); q++) ranks += at[q].ranks;
        for (int later = q; later < processes; later++)
            if (!strcmp(at[later].host, host))
                return error_set(e, "ranks %d and %d are on host %s, and those between are not all", at[p].first,
                                 at[later].first, host);
        if (!first) first = ranks;
        if (ranks != first)
            return error_set(e, "host %s has %d ranks and host %s has %d", at[0].host, first, host, ranks);
    }
    return first;
}

int processes_check(Process *at, int processes, int me, const Process *mine, Error *e) {
    int64_t ranks = 0;
    for (int p = 0; p < processes; ranks += at[p++].ranks) {
        end_text(at[p].host, sizeof at[p].host);
        if (at[p].ranks < 1 || at[p].ranks > MOST_RANKS_HERE || at[p].first != ranks
            || ranks + at[p].ranks > MOST_RANKS)
            return error_set(e, "process 0 sent an impossible list of processes: process %d with %d ranks, the "
                             "first of number %d", p, at[p].ranks, at[p].first);
    }
    if (at[me].ranks != mine->ranks || at[me].pid != mine->pid)
        return error_set(e, "process 0 takes another process (host %s, pid %d) for number %d, which is this one",
                         at[me].host, at[me].pid, me);
    return 1;
}

/* ---- messages after the introduction --------------------------------------------------------- */

RankStatus status_read(const char *bytes) {
    RankStatus s;
    memcpy(&s, bytes, sizeof s);
    end_text(s.phase, sizeof s.phase);
    if (!(s.limit > 0)) s.limit = 0;                        /* NaN, too */
    return s;
}

size_t message_most(int ranks) {
    const size_t statuses = (size_t)ranks * sizeof(RankStatus);
    return sizeof(MessageHead) + (statuses > MOST_REASON ? statuses : MOST_REASON);
}

long message_read(Message *m, const char *bytes, size_t have, int ranks) {
    MessageHead head;
    if (have < sizeof head) return 0;
    memcpy(&head, bytes, sizeof head);
    const int valid = head.kind == MESSAGE_ALIVE ? head.bytes == (size_t)ranks * sizeof(RankStatus)
                    : head.kind == MESSAGE_LOST  ? head.bytes <= MOST_REASON
                                                 : head.kind == MESSAGE_GOODBYE && !head.bytes;
    if (!valid) return -1;
    if (have - sizeof head < head.bytes) return 0;
    *m = (Message){ (MessageKind)head.kind, bytes + sizeof head, head.bytes };
    return (long)(sizeof head + head.bytes);
}
