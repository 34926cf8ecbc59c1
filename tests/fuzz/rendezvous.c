/* rendezvous.c: what a stranger, another process or a false process 0 sends while a run starts. The
 * first byte chooses: the bytes of an introduction, in pieces, with a proof of their own or the
 * right one; a list of processes; a reason. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/ranks/messages.h"

static const char secret[] = "the secret of this target", settings[] = "{\"lr\": 0.1, \"seed\": 1}";

static void check_line(const char *text, size_t capacity) {
    const size_t n = strlen(text);
    fuzz_check(n < capacity);
    for (size_t i = 0; i < n; i++) fuzz_check((unsigned char)text[i] >= 0x20 && text[i] != 0x7F);
}

/* Stores a piece of the input in its place. Returns its length. */
static size_t feed(Introduction *i, const char *at, size_t bytes, int *proved) {
    unsigned char answer[PROOF_BYTES];
    size_t space;
    const Stage before = i->stage;
    void *buffer = introduction_buffer(i, &space);
    fuzz_check((buffer != NULL) == (space > 0) && space <= MOST_SETTINGS);
    if (!buffer) return 0;
    const size_t n = bytes < space ? bytes : space;
    memcpy(buffer, at, n);
    const size_t answered = introduction_advance(i, n, secret, answer);
    fuzz_check(answered == 0 || (answered == NONCE_BYTES && before == GREETING && i->stage == PROVING)
               || (answered == PROOF_BYTES && before == PROVING && i->stage != PROVING));
    if (before == PROVING && i->stage == HELLO) {           /* an input can only copy this proof from a dictionary */
        unsigned char right[PROOF_BYTES];
        proof_make(right, secret, FROM_PROCESS, &i->greeting, i->nonce);
        fuzz_check(!memcmp(right, i->proof, sizeof right));
        *proved = 1;
    }
    return n;
}

static void introduce(Part rest) {
    Introduction i = { .stage = GREETING };
    const Hello mine = { .version = "v1", .processes = 4, .ranks = 1, .pid = 1 };
    const size_t piece = 1 + 8 * fuzz_choice(&rest, 64);
    const int knows = (int)fuzz_choice(&rest, 2);
    int proved = 0;
    for (int k = 0; k < NONCE_BYTES; k++) i.nonce[k] = (unsigned char)(k * 7);
    while (rest.bytes && i.stage < INTRODUCED) {
        if (knows && i.stage == PROVING && !i.have) {
            unsigned char proof[PROOF_BYTES];
            proof_make(proof, secret, FROM_PROCESS, &i.greeting, i.nonce);
            feed(&i, (char *)proof, sizeof proof, &proved);
            continue;
        }
        const size_t n = feed(&i, rest.at, rest.bytes < piece ? rest.bytes : piece, &proved);
        rest = (Part){ rest.at + n, rest.bytes - n };
    }
    fuzz_check(proved || i.stage <= PROVING || i.stage >= WRONG);
    if (i.stage == SETTINGS || i.stage == INTRODUCED) {
        check_line(i.hello.version, sizeof i.hello.version);
        check_line(i.hello.job, sizeof i.hello.job);
        check_line(i.hello.host, sizeof i.hello.host);
    }
    if (i.stage == INTRODUCED) {
        Error e = { 0 };
        fuzz_check(strlen(i.settings) <= i.hello.settings);
        const int ok = hello_check(&mine, settings, &i.hello, i.greeting.process, i.settings, &e);
        fuzz_check(ok == !*e.text && (!ok || (i.greeting.process && i.greeting.process < 4 && i.hello.ranks >= 1)));
        check_line(e.text, sizeof e.text);
    }
    free(i.settings);
}

static void list(Part rest) {
    const int processes = (int)(rest.bytes / sizeof(Process));
    if (processes < 1) return;
    Process *at = malloc((size_t)processes * sizeof *at);
    Error e = { 0 };
    int64_t ranks = 0;
    memcpy(at, rest.at, (size_t)processes * sizeof *at);
    const int me = processes - 1, ok = processes_check(at, processes, me, &(Process){ .ranks = 1, .pid = 7 }, &e);
    for (int p = 0; p < processes && ok; ranks += at[p++].ranks) {
        fuzz_check(at[p].ranks >= 1 && at[p].first == ranks);
        check_line(at[p].host, sizeof at[p].host);
    }
    fuzz_check(ok ? ranks <= MOST_RANKS && at[me].pid == 7 : *e.text != 0);
    free(at);
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    char reason[MOST_REASON + 1];
    switch (fuzz_choice(&rest, 4)) {
    case 0: list(rest); break;
    case 1:
        one_line(reason, sizeof reason, rest.at, rest.bytes < MOST_REASON ? rest.bytes : MOST_REASON);
        check_line(reason, sizeof reason);
        break;
    default: introduce(rest);
    }
}
