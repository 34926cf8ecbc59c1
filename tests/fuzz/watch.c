/* watch.c: what another process sends while a run works: messages on a watch connection, which
 * arrive in pieces. The first byte is the number of its ranks, the second the length of a piece. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/ranks/messages.h"

static void check_message(const Message *m, int ranks) {
    fuzz_check(m->kind == MESSAGE_ALIVE || m->kind == MESSAGE_LOST || m->kind == MESSAGE_GOODBYE);
    fuzz_check(m->kind != MESSAGE_ALIVE || m->bytes == (size_t)ranks * sizeof(RankStatus));
    for (int r = 0; r < ranks && m->kind == MESSAGE_ALIVE; r++) {
        const RankStatus s = status_read(m->data + (size_t)r * sizeof s);
        fuzz_check(strlen(s.phase) < sizeof s.phase && s.limit >= 0);
    }
    char why[MOST_REASON + 1];
    one_line(why, sizeof why, m->data, m->kind == MESSAGE_LOST ? m->bytes : 0);
    fuzz_check(strlen(why) <= m->bytes);
}
/* As receive_messages in llmc/ranks/watch.c. */
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const int ranks = 1 + (int)fuzz_choice(&rest, 40);
    const size_t piece = 1 + 16 * fuzz_choice(&rest, 100), most = message_most(ranks);
    char *inbox = malloc(most);
    size_t have = 0;
    long took = 0;
    while (rest.bytes && took >= 0) {
        const size_t space = most - have, wanted = rest.bytes < piece ? rest.bytes : piece,
            n = wanted < space ? wanted : space;
        size_t at = 0;
        Message m;
        fuzz_check(n > 0);                                  /* no message is longer than the inbox */
        memcpy(inbox + have, rest.at, n);
        rest = (Part){ rest.at + n, rest.bytes - n };
        have += n;
        while ((took = message_read(&m, inbox + at, have - at, ranks)) > 0) {
            fuzz_check((size_t)took <= have - at && m.data + m.bytes == inbox + at + took);
            check_message(&m, ranks);
            at += (size_t)took;
        }
        memmove(inbox, inbox + at, have -= at);
    }
    free(inbox);
}
