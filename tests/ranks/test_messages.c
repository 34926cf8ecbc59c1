/* test_messages.c: what processes send each other, as bytes in memory: published vectors of SHA-256
 * and HMAC, introductions that are wrong in each place, lists and messages with impossible numbers;
 * the file with the secret; the addresses that are listened on. */
#define _DEFAULT_SOURCE
#include "tests/test.h"
#include "processes.h"
#include "llmc/ranks/messages.h"
#include "llmc/ranks/net.h"
#include "llmc/ranks/secret.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- SHA-256 and HMAC ------------------------------------------------------------------------ */

static int is_hex(const unsigned char *bytes, size_t n, const char *hex) {
    char text[2 * SHA256_BYTES + 1] = "";
    for (size_t i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return !strcmp(text, hex);
}
/* FIPS 180-4's examples (FIPS 180-2, appendix B), the empty text and NIST's million of `a`. */
static void hash_vectors(void) {
    static const struct { const char *text; int times; const char *digest; } vectors[] = {
        { "", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
          "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu", 1,
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
        { "aaaaaaaaaa", 100000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" },
    };
    for (size_t i = 0; i < COUNT(vectors); i++) {
        unsigned char digest[SHA256_BYTES];
        Sha256 s;
        sha256_begin(&s);
        for (int k = 0; k < vectors[i].times; k++) sha256_add(&s, vectors[i].text, strlen(vectors[i].text));
        sha256_end(&s, digest);
        check(is_hex(digest, sizeof digest, vectors[i].digest), "SHA-256 of %d times '%.20s'", vectors[i].times,
              vectors[i].text);
    }
}

/* RFC 4231, sections 4.2 to 4.8. A key or text of one repeated byte: the byte, its count. */
static void hmac_vectors(void) {
    static const char larger_than_block[] = "This is a test using a larger than block-size key and a larger than "
        "block-size data. The key needs to be hashed before being used by the HMAC algorithm.";
    static const struct { unsigned char key; size_t key_bytes; const char *key_text;  unsigned char data; size_t bytes;
                          const char *text;
                          size_t shown; const char *mac; } vectors[] = {
        { 0x0b, 20, NULL, 0, 8, "Hi There", 32, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7" },
        { 0, 4, "Jefe", 0, 28, "what do ya want for nothing?", 32,
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843" },
        { 0xaa, 20, NULL, 0xdd, 50, NULL, 32, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe" },
        { 0, 25, "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19",
          0xcd, 50, NULL, 32, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b" },
        { 0x0c, 20, NULL, 0, 20, "Test With Truncation", 16, "a3b6167473100ee06e0c796c2955552b" },
        { 0xaa, 131, NULL, 0, 54, "Test Using Larger Than Block-Size Key - Hash Key First", 32,
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54" },
        { 0xaa, 131, NULL, 0, 152, larger_than_block, 32,
          "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2" }, };
    for (size_t i = 0; i < COUNT(vectors); i++) {
        unsigned char key[256], data[256], mac[SHA256_BYTES];
        memset(key, vectors[i].key, sizeof key);
        memset(data, vectors[i].data, sizeof data);
        if (vectors[i].key_text) memcpy(key, vectors[i].key_text, vectors[i].key_bytes);
        if (vectors[i].text) memcpy(data, vectors[i].text, vectors[i].bytes);
        hmac_sha256(key, vectors[i].key_bytes, data, vectors[i].bytes, mac);
        check(is_hex(mac, vectors[i].shown, vectors[i].mac), "HMAC-SHA-256, test case %zu of RFC 4231", i + 1);
    }
    int right = 0;
    for (int i = 0; i < 64; i++) {                          /* every bit counts */
        unsigned char a[64] = { 0 }, b[64] = { 0 };
        b[i] = (unsigned char)(1 << i % 8);
        right += same_in_constant_time(a, a, sizeof a) && !same_in_constant_time(a, b, sizeof a);
    }
    check(right == 64 && same_in_constant_time("", "x", 0), "comparison in constant time finds each of 64 differences");
}

/* ---- introductions --------------------------------------------------------------------------- */

static const char secret[] = "a secret of this test", settings[] = "{\"lr\": 0.1}";

/* Sends `bytes` in pieces of at most `piece` bytes; the length of the last answer. */
static size_t feed(Introduction *i, const void *data, size_t bytes, size_t piece, unsigned char answer[PROOF_BYTES]) {
    const char *at = data;
    size_t length = 0, space;
    for (void *buffer; bytes && (buffer = introduction_buffer(i, &space)); ) {
        const size_t n = bytes < piece ? bytes : piece, take = n < space ? n : space;
        memcpy(buffer, at, take);
        const size_t answered = introduction_advance(i, take, secret, answer);
        if (answered) length = answered;
        at += take;
        bytes -= take;
    }
    return length;
}

typedef enum { RIGHT, FIRST_BYTE, LATER_BYTE, OLD, NO_CONNECTION, OTHER_SECRET, REFLECTED_NONCE, OTHER_DIRECTION,
               REPLAYED, OTHER_CLAIM, OTHER_CONNECTION, LAST_BIT, TOO_LONG } Wrong;

/* An introduction that is wrong in one place; the stage in which it ends. */
static Stage introduce_wrongly(Wrong wrong, size_t piece, size_t *answers) {
    Introduction i = { .stage = GREETING };
    Greeting g = { .watch = wrong == NO_CONNECTION ? 2 : 1, .process = 3 }, proved;
    Hello h = { .processes = 4, .ranks = 1, .pid = 7,
                .settings = wrong == TOO_LONG ? MOST_SETTINGS + 1 : sizeof settings - 1 };
    unsigned char answer[PROOF_BYTES], proof[PROOF_BYTES], nonce[NONCE_BYTES], right[PROOF_BYTES];
    memcpy(g.magic, greeting_magic, sizeof g.magic);
    memset(h.host, 'h', sizeof h.host);                     /* no end */
    if (wrong == OLD) g.magic[7] = '1';
    if (wrong == FIRST_BYTE || wrong == LATER_BYTE) g.magic[wrong == FIRST_BYTE ? 0 : 5] ^= 32;
    for (int k = 0; k < NONCE_BYTES; k++) { g.nonce[k] = (unsigned char)k; i.nonce[k] = (unsigned char)(100 + k); }
    *answers = feed(&i, &g, sizeof g, piece, answer);
    if (i.stage == WRONG) return i.stage;
    proved = g;
    memcpy(nonce, answer, sizeof nonce);
    if (wrong == OTHER_CLAIM) proved.process = 2;
    if (wrong == OTHER_CONNECTION) proved.watch = 0;
    if (wrong == REPLAYED) nonce[31] ^= 1;
    proof_make(proof, wrong == OTHER_SECRET ? "another secret of this test" : secret,
               wrong == OTHER_DIRECTION ? FROM_HUB : FROM_PROCESS, &proved, nonce);
    if (wrong == REFLECTED_NONCE) memcpy(proof, answer, sizeof proof);
    if (wrong == LAST_BIT) proof[31] ^= 0x80;
    const size_t length = feed(&i, proof, sizeof proof, piece, answer);
    *answers += length;
    if (i.stage != HELLO) {
        memset(right, 0, sizeof right);
        if (length && memcmp(answer, right, sizeof right)) *answers = 0;
        return i.stage;
    }
    proof_make(right, secret, FROM_HUB, &g, i.nonce);
    if (memcmp(answer, right, sizeof right)) *answers = 0;
    feed(&i, &h, sizeof h, piece, answer);
    feed(&i, settings, sizeof settings - 1, piece, answer);
    const int ends = i.stage == WRONG || (i.settings && !strcmp(i.settings, settings) && strlen(i.hello.host) == 63);
    free(i.settings);
    return ends ? i.stage : GREETING;
}

static void introductions(void) {
    static const struct { const char *name; Wrong wrong; Stage ends; size_t answers; } cases[] = {
        { "right", RIGHT, INTRODUCED, 64 },                     { "the first byte is wrong", FIRST_BYTE, WRONG, 0 },
        { "the sixth byte is wrong", LATER_BYTE, WRONG, 0 },    { "the previous protocol", OLD, WRONG, 0 },
        { "neither data nor watch", NO_CONNECTION, WRONG, 0 },  { "another secret", OTHER_SECRET, WRONG_SECRET, 64 },
        { "the nonce as proof", REFLECTED_NONCE, WRONG_SECRET, 64 },
        { "a proof of the other direction", OTHER_DIRECTION, WRONG_SECRET, 64 },
        { "a proof for another nonce", REPLAYED, WRONG_SECRET, 64 },
        { "a proof for another number", OTHER_CLAIM, WRONG_SECRET, 64 },
        { "a proof for the other connection", OTHER_CONNECTION, WRONG_SECRET, 64 },
        { "one bit of the proof", LAST_BIT, WRONG_SECRET, 64 },
        { "settings of more than a megabyte", TOO_LONG, WRONG, 64 }, };
    for (size_t i = 0; i < COUNT(cases); i++) {
        int right = 0;
        for (size_t piece = 1; piece <= 512; piece *= 2) {
            size_t answers;
            right += introduce_wrongly(cases[i].wrong, piece, &answers) == cases[i].ends && answers == cases[i].answers;
        }
        check(right == 10, "introduction, in pieces of 1 to 512 bytes: %s (%d of 10)", cases[i].name, right);
    }
}

static void hellos(void) {
    static const struct { int32_t processes, ranks; uint32_t process; const char *version, *settings,
                          *expected; } cases[] = {
        { 4, 1, 3, "v1", settings, NULL }, { 4, 1, 3, "v2", settings, "is version v2 of this program" },
        { 5, 1, 3, "v1", settings, "one of 5 processes" },          { 4, 1, 0, "v1", settings, "numbered 0 to 3" },
        { 4, 1, 4, "v1", settings, "numbered 0 to 3" }, { 4, 1, 0x80000000u, "v1", settings, "numbered 0 to 3" },
        { 4, 0, 3, "v1", settings, "has 0 ranks" }, { 4, INT32_MAX, 3, "v1", settings, "has 2147483647 ranks" },
        { 4, INT32_MIN, 3, "v1", settings, "has -2147483648" },     { 4, MOST_RANKS_HERE, 3, "v1", settings, NULL },
        { 4, MOST_RANKS_HERE + 1, 3, "v1", settings, "has 4097" },  { 4, 1, 3, "v1", "", "other settings" },
        { 4, 1, 3, "v1", "{\"lr\": 0.\033[2J\n}", "0.?[2J? there, \"lr\": 0.1 in process 0" },
    };
    const Hello mine = { .version = "v1", .processes = 4, .ranks = 1, .pid = 9 };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Hello h = { .processes = cases[i].processes, .ranks = cases[i].ranks, .pid = 7 };
        Error e = { 0 };
        strcpy(h.version, cases[i].version);
        const int ok = hello_check(&mine, settings, &h, cases[i].process, cases[i].settings, &e);
        check(cases[i].expected ? !ok && strstr(e.text, cases[i].expected) : ok, "hello %zu: expected %s: %s", i,
              cases[i].expected ? cases[i].expected : "no complaint", e.text);
    }
}

/* ---- the list of processes, and messages ----------------------------------------------------- */

static void lists(void) {
    enum { P = 3 };
    static const struct { int32_t ranks[P], first[P], my_pid;  int ok; } cases[] = {
        { { 2, 1, 4 }, { 0, 2, 3 }, 7, 1 },                     { { 2, 1, 4 }, { 0, 5000000, 3 }, 7, 0 },
        { { 2, 1, 4 }, { 0, 2, 4 }, 7, 0 },                     { { 2, 1, 4 }, { 1, 3, 4 }, 7, 0 },
        { { 2, 1, 0 }, { 0, 2, 3 }, 7, 0 }, { { INT32_MAX, 1, INT32_MAX }, { 0, INT32_MAX, INT32_MIN }, 7, 0 },
        { { 2, 1, -4 }, { 0, 2, 3 }, 7, 0 },                    { { -1, 1, 4 }, { 0, -1, 0 }, 7, 0 },
        { { MOST_RANKS_HERE + 1, 1, 4 }, { 0, MOST_RANKS_HERE + 1, MOST_RANKS_HERE + 2 }, 7, 0 },
        { { 2, 2, 4 }, { 0, 2, 4 }, 7, 0 },                     { { 2, 1, 4 }, { 0, 2, 3 }, 8, 0 },
    };
    const Process mine = { .ranks = 1, .pid = 7 };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Process at[P] = { { 0 } };
        Error e = { 0 };
        for (int p = 0; p < P; p++) {
            at[p] = (Process){ .ranks = cases[i].ranks[p], .first = cases[i].first[p],
                               .pid = p == 1 ? cases[i].my_pid : 100 + p };
            memset(at[p].host, '\033', sizeof at[p].host);
        }
        const int ok = processes_check(at, P, 1, &mine, &e);
        check(ok == cases[i].ok && (!ok || strlen(at[2].host) == 63) && !strchr(e.text, '\033'),
              "list of processes %zu: %s", i, e.text);
    }
    enum { MANY = MOST_RANKS / MOST_RANKS_HERE };
    Process *many = mem_alloc((MANY + 1) * sizeof *many);
    Error e = { 0 };
    for (int p = 0; p <= MANY; p++) many[p] = (Process){ .ranks = MOST_RANKS_HERE, .pid = 1 };
    check(processes_number(many, MANY, &e) && many[MANY - 1].first == MOST_RANKS - MOST_RANKS_HERE
          && processes_check(many, MANY, 5, &many[5], &e), "a list of %d ranks: %s", MOST_RANKS, e.text);
    check(!processes_number(many, MANY + 1, &e) && strstr(e.text, "more than"), "a list of more ranks: %s", e.text);
    many[MANY].first = MOST_RANKS;
    check(!processes_check(many, MANY + 1, 5, &many[5], &e), "such a list, received: %s", e.text);
    free(many);
}

static void hosts(void) {
    static const struct { int processes, ranks[4]; const char *hosts, *expected; int each; } cases[] = {
        { 1, { 8 }, "a", NULL, 8 }, { 2, { 4, 4 }, "ab", NULL, 4 }, { 4, { 1, 1, 1, 1 }, "aabb", NULL, 2 },
        { 3, { 3, 1, 4 },    "aab",  NULL, 4 },  { 4, { 1, 1, 1, 1 }, "aaaa", NULL, 4 },
        { 2, { 4, 2 },       "ab",   "host a has 4 ranks and host b has 2", 0 },
        { 4, { 1, 1, 1, 1 }, "aaab", "host a has 3 ranks and host b has 1", 0 },
        { 4, { 1, 1, 1, 1 }, "abab", "ranks 0 and 2 are on host a, and those between are not all", 0 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Process at[4];
        Error e = { 0 };
        for (int p = 0; p < cases[i].processes; p++)
            at[p] = (Process){ .ranks = cases[i].ranks[p], .host = { cases[i].hosts[p] } };
        check(processes_number(at, cases[i].processes, &e)
              && processes_host_ranks(at, cases[i].processes, &e) == cases[i].each
              && !strcmp(e.text, cases[i].expected ? cases[i].expected : ""), "hosts %s: %s", cases[i].hosts, e.text);
    }
}

static void messages(void) {
    enum { R = 3, S = R * sizeof(RankStatus) };
    static const struct { uint32_t kind, bytes; size_t have; long took; } cases[] = {
        { MESSAGE_ALIVE, S, S + 8, S + 8 },       { MESSAGE_ALIVE, S, S + 7, 0 },         { MESSAGE_ALIVE, S, 7, 0 },
        { MESSAGE_ALIVE, S, 8, 0 },               { MESSAGE_ALIVE, S + 8, S + 8, -1 },    { MESSAGE_ALIVE, 0, 8, -1 },
        { MESSAGE_LOST, 0, 8, 8 }, { MESSAGE_LOST, MOST_REASON, 8, 0 }, { MESSAGE_LOST, MOST_REASON + 1, 8, -1 },
        { MESSAGE_LOST, UINT32_MAX, 8, -1 },      { MESSAGE_GOODBYE, 0, 100, 8 },         { MESSAGE_GOODBYE, 1, 9, -1 },
        { MESSAGE_WELCOME, 76, 84, -1 },          { MESSAGE_ADMITTED, 0, 8, -1 },         { 99, 0, 8, -1 },
        { UINT32_MAX, UINT32_MAX, 8, -1 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *exact = mem_alloc(cases[i].have);             /* no more than what is there, for the address sanitizer */
        Message m = { 0 };
        memcpy(exact, &cases[i], cases[i].have < 8 ? cases[i].have : 8);
        const long took = message_read(&m, exact, cases[i].have, R);
        check(took == cases[i].took && took <= (long)message_most(R) && (took <= 0 || m.bytes == cases[i].bytes),
              "message %zu: takes %ld of %zu bytes, expected %ld", i, took, cases[i].have, cases[i].took);
        free(exact);
    }
    RankStatus s = { .count = 5, .limit = NAN };
    memset(s.phase, 'p', sizeof s.phase);
    s.phase[3] = '\n';
    const RankStatus read = status_read((const char *)&s);
    check(strlen(read.phase) == sizeof s.phase - 1 && !strncmp(read.phase, "ppp?pp", 6)
          && read.limit == 0 && read.count == 5, "a phase without an end is cut: %s", read.phase);
    char line[8];
    one_line(line, sizeof line, "a\033b\0\n\x7f" "cdefg", 11);
    check(!strcmp(line, "a?b"), "a text ends at its NUL: %s", line);
    one_line(line, sizeof line, "\x7f" "bcdefghijk", 11);
    check(!strcmp(line, "?bcdefg"), "a text is cut: %s", line);
}

/* ---- connections: deadlines, addresses ------------------------------------------------------- */

static void deadlines(void) {
    int pair[2];
    char byte, *much = mem_alloc(1 << 24);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) { check(0, "socketpair"); return; }
    double start = now();
    check(!net_receive(pair[0], &byte, 1, now() + 0.2) && errno == EAGAIN, "a receive has a deadline");
    check(!net_send(pair[0], much, 1 << 24, now() + 0.2) && errno == EAGAIN, "so has a send that nobody reads");
    check_error(now() - start, 1.5 * BUSY, "seconds for both");
    const pid_t dripping = fork();
    if (!dripping) {
        for (int i = 0; i < 20; i++) { net_send(pair[1], "x", 1, now() + 1); pause_for(0.05); }
        _exit(0);
    }
    start = now();
    check(!net_receive(pair[0], much, 1000, now() + 0.4) && errno == EAGAIN, "a byte now and then does not help");
    check_error(now() - start, 1.5 * BUSY, "seconds until then");
    waitpid(dripping, NULL, 0);
    close(pair[0]), close(pair[1]), free(much);
}

/* Which of these addresses is a connection possible to? Bit i: the i-th. */
static int reachable(const char *const *addresses, int count, int port) {
    int reached = 0;
    for (int i = 0; i < count; i++) {
        Error e;
        const int fd = net_connect(addresses[i], port, 1, &e);
        if (fd >= 0) { reached |= 1 << i; close(fd); }
    }
    return reached;
}
static void addresses(void) {
    static const char *const to[] = { "127.0.0.1", "127.0.0.2", "::1" };
    static const struct { const char *address; int reached; } cases[] = {
        { "127.0.0.1", 1 }, { "127.0.0.2", 2 }, { "::1", 4 }, { "0.0.0.0", 3 }, { "::", 7 },
    };
    Error e;
    int fd[NET_LISTENERS], port = free_port(), n = net_listen("::1", port, 0, fd, &e);
    const int six = n > 0;
    while (n) close(fd[--n]);
    if (!six) skip("listening on ::1: %s", e.text);
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (strchr(cases[i].address, ':') && !six) continue;
        port = free_port();
        n = net_listen(cases[i].address, port, 0, fd, &e);
        const int reached = reachable(to, 3, port);
        check(n == 1 && reached == cases[i].reached, "on %s: %d, not %d", cases[i].address, reached, cases[i].reached);
        while (n) close(fd[--n]);
    }
    n = net_listen("localhost", port, 0, fd, &e);
    const int reached = reachable(to, 3, port);
    check(n >= 1 && !(reached & 2) && reached & 5, "listening on localhost: where the name leads (%d)", reached);
    while (n) close(fd[--n]);
    check(!net_listen("192.0.2.1", port, 0, fd, &e) && strstr(e.text, "no address of this machine"),
          "another machine's address: %s", e.text);
    check(!net_listen("127.0.0.1", port, 1, fd, &e) && strstr(e.text, "loopback"), "not for others: %s", e.text);
    check(net_is_loopback("localhost") && net_is_loopback("127.1.2.3") && net_is_loopback("::1")
          && !net_is_loopback("127.example.org") && !net_is_loopback("0.0.0.0") && !net_is_loopback("::")
          && !net_is_loopback("10.0.0.1"), "which addresses are loopback ones");
}

/* Linux gives even ports from 32,768 on to connections, and comes to this one sooner or later. */
static void connections_to_nobody(void) {
    const int port = free_port() / 2 * 2, attempts = 80000;
    int own = 0;
    for (int i = 0; i < attempts && !own; i++) {
        Error e;
        struct sockaddr_in here = { 0 };
        socklen_t size = sizeof here;
        const int fd = net_connect("127.0.0.1", port, 1, &e);
        if (fd < 0) continue;
        if (!getsockname(fd, (struct sockaddr *)&here, &size) && ntohs(here.sin_port) == port) own = i + 1;
        close(fd);
    }
    check(!own, "nobody listens: attempt %d of %d is connected to itself", own, attempts);
}

/* ---- the secret ------------------------------------------------------------------------------ */

static const char *given;                                   /* MOE_SECRET */
static const char *get(const char *name) { return strcmp(name, "MOE_SECRET") ? NULL : given; }
static void secret_of_environment(void) {
    static const struct { const char *given; const char *address; int locals, code; const char *expected; } cases[] = {
        { "0123456789abcdef",  "node1",     0, 0,          "0123456789abcdef" },
        { "0123456789abcde",   "localhost", 2, EXIT_USAGE, "15 characters" },
        { "",                  "node1",     0, EXIT_USAGE, "export MOE_SECRET=$(" },
        { NULL,                "node1",     1, EXIT_USAGE, "export MOE_SECRET=$(" },
        { NULL,                "0.0.0.0",   0, EXIT_USAGE, "export MOE_SECRET=$(" },
    };
    char *folder = scratch_path("no/such/folder");
    for (size_t i = 0; i < COUNT(cases); i++) {
        Launch l = { .process = 0, .processes = 2, .locals = cases[i].locals };
        Error e = { 0 };
        strcpy(l.address, cases[i].address);
        given = cases[i].given;
        char *found = secret_find(&l, folder, get, 0.1, &e);
        check(cases[i].code ? !found && (e.code ? e.code : EXIT_USAGE) == cases[i].code
              && strstr(e.text, cases[i].expected) : found && !strcmp(found, cases[i].expected),
              "secret %zu: %s %s", i, found ? found : "none", e.text);
        free(found);
    }
    free(folder);
}

/* A file that somebody else made, or that others can read, is refused. */
static void bad_files(const Launch *l, const char *folder, const char *path) {
    static const struct { const char *name, *before; int digits; const char *after; int mode; const char *expected; }
        cases[] = {
        { "readable by the group", "", 64, "\n", 0640, "mode 640" },
        { "readable by all", "", 64, "\n", 0604, "mode 604" }, { "writable by others", "", 64, "\n", 0602, "mode 602" },
        { "empty", "", 0, "", 0600, "not a secret" }, { "without its end", "", 64, "", 0600, "not a secret" },
        { "longer", "", 64, "\n\n", 0600, "not a secret" }, { "other characters", "X", 63, "\n", 0600, "not a secret" },
        { "another user's", "", 64, "\n", 0600, "not to you" }, { "a link", NULL, 0, NULL, 0, "is a link" },
        { "a folder", NULL, 0, NULL, 0700, "not a secret" }, };
    char *elsewhere = scratch_path("elsewhere");
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int other = !strcmp(cases[i].expected, "not to you");
        Error e = { 0 };
        if (other && geteuid()) { skip("secret file of another user: this is not root"); continue; }
        if (cases[i].before) {
            char *text = text_format("%s%0*d%s", cases[i].before, cases[i].digits, 0, cases[i].after);
            check(file_write(path, text, strlen(text), &e) && !chmod(path, (mode_t)cases[i].mode), "%s", e.text);
            free(text);
        } else check(cases[i].mode ? !mkdir(path, 0700) : !symlink(elsewhere, path), "%s: %s", path, cases[i].name);
        if (other) check(!chown(path, 65534, (gid_t)-1), "chown");
        char *found = secret_find(l, folder, get, 0.1, &e);
        check(!found && !e.code && strstr(e.text, cases[i].expected), "secret file, %s: %s", cases[i].name, e.text);
        free(found);
        check(!remove(path), "remove %s", path);
    }
    check(!is_file(elsewhere), "nothing is written through a link");
    free(elsewhere);
}

/* It is the system's fault, not the user's, if a file cannot be opened. */
static void no_descriptors(const Launch *l, const char *folder) {
    struct rlimit most, none;
    Error e = { 0 };
    check(!getrlimit(RLIMIT_NOFILE, &most), "getrlimit");
    none = most, none.rlim_cur = 0;
    check(!setrlimit(RLIMIT_NOFILE, &none), "setrlimit");
    char *found = secret_find(l, folder, get, 0.1, &e);
    check(!setrlimit(RLIMIT_NOFILE, &most), "setrlimit");
    check(!found && e.code == EXIT_DISK, "secret file without descriptors: exit code %d: %s", e.code, e.text);
    free(found);
}

static void secret_of_file(void) {
    const Launch first = { .process = 0, .processes = 2, .locals = 2 },
        second = { .process = 1, .processes = 2, .locals = 2 };
    char *folder = scratch_path("runs/out//"), *path = secret_path(folder), *expected = scratch_path("runs/out.secret");
    struct stat s;
    Error e = { 0 };
    given = NULL;
    check(!strcmp(path, expected), "the file is beside the folder: %s", path);
    const double start = now();
    check(!secret_find(&second, folder, get, 0.3, &e) && e.code == EXIT_PEER && strstr(e.text, "has not written"),
          "without process 0: %s", e.text);
    check_error(now() - start, 2 * BUSY, "seconds until that is told");
    const mode_t before = umask(0);
    const pid_t late = fork();
    if (!late) {
        pause_for(0.2);
        _exit(secret_find(&first, folder, get, 1, &e) ? 0 : 1);
    }
    char *b = secret_find(&second, folder, get, 5, &e), *a = secret_find(&first, folder, get, 1, &e);
    umask(before);
    waitpid(late, NULL, 0);
    check(a && b && !strcmp(a, b) && strlen(a) == 64, "process 0 makes the file, the other waits for it: %s", e.text);
    check(!stat(path, &s) && (s.st_mode & 07777) == 0600 && s.st_size == 65, "its mode is 600, whatever the umask");
    check(!unlink(path), "remove it");
    char *other = secret_find(&first, folder, get, 1, &e);
    check(other && a && strcmp(other, a), "a new file has another secret");
    no_descriptors(&first, folder), no_descriptors(&second, folder);
    check(!unlink(path), "remove it");
    bad_files(&first, folder, path);
    bad_files(&second, folder, path);
    free(a), free(b), free(other), free(folder), free(path), free(expected);
}

void test_messages(void) {
    PART(hash_vectors()); PART(hmac_vectors()); PART(introductions()); PART(hellos()); PART(lists());
    PART(hosts()); PART(messages()); PART(deadlines()); PART(addresses()); PART(connections_to_nobody());
    PART(secret_of_environment());
    PART(secret_of_file());
}
