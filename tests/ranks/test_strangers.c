/* test_strangers.c: who else connects. Strangers that do not know the secret play all their tricks
 * at the start of a run and while it works, and disturb nothing; processes that know it and then
 * misbehave, and a false process 0, end the run with a message. */
#define _POSIX_C_SOURCE 200809L
#include "tests/test.h"
#include "processes.h"
#include "llmc/ranks/introductions.h"
#include "llmc/ranks/net.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- processes that behave, and what they print ---------------------------------------------- */

enum { MOST_PROCESSES = 3 };
typedef struct { double start; int processes; pid_t pid[MOST_PROCESSES]; FILE *said[MOST_PROCESSES]; } Run;

typedef struct { int rounds; double limit; } Work;          /* limit: seconds of a phase */
static int work(Group *group, const void *argument) {
    const Work *todo = argument;
    for (int i = 0; i < todo->rounds; i++) {
        group_phase(group, "work", todo->limit);
        if (todo->rounds > 1) pause_for(0.05);
        group_barrier(group);
    }
    return 0;
}
/* Starts process p of a run after `delay` seconds. files: the most descriptors; 0: no limit. */
static void start_task(Run *run, GroupOptions o, double delay, int files, int (*task)(Group *, const void *),
                       const void *todo) {
    const int p = o.launch.process;
    fflush(stdout);
    if (!(run->said[p] = tmpfile())) fail(EXIT_DISK, "no temporary file");
    run->processes = o.launch.processes;
    if ((run->pid[p] = fork())) return;
    dup2(fileno(run->said[p]), STDERR_FILENO);
    alarm(40);
    if (files) setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)files, (rlim_t)files });
    o.lost = report_and_exit;
    pause_for(delay);
    _exit(run_process(o, task, todo) ? EXIT_PEER : 0);
}
static void start_process(Run *run, GroupOptions o, double delay, int files, const Work *todo) {
    start_task(run, o, delay, files, work, todo);
}
/* Waits for process p; its exit code, and what it printed. */
static int end_process(Run *run, int p, char *text, size_t capacity) {
    return end_of_process(run->pid[p], run->said[p], text, capacity);
}

/* ---- strangers ------------------------------------------------------------------------------- */

typedef enum { SILENT, OTHER_PROGRAM, PREVIOUS_PROTOCOL, WRONG_SECRET_SENT, NONCE_SENT_BACK, OLD_PROOF, SHORT_GREETING,
               SHORT_PROOF, FLOOD_OF_BYTES, DRIPS, FLOOD_OF_CONNECTIONS } Trick;

static int dial(int port) {
    Error e;
    return net_connect("127.0.0.1", port, 1, &e);
}
static Greeting greeting_of(int watch, int process) {
    Greeting g = { .watch = (uint32_t)watch, .process = (uint32_t)process };
    memcpy(g.magic, greeting_magic, sizeof g.magic);
    memset(g.nonce, 'n', sizeof g.nonce);
    return g;
}
/* One connection of a stranger. *learned counts what process 0 sent besides a nonce and zeros. */
static int play(Trick trick, int port, int *learned) {
    static char much[1 << 20];
    const Greeting g = greeting_of(0, 1);
    unsigned char nonce[NONCE_BYTES], proof[PROOF_BYTES], rest[512];
    long more = 0;
    const int fd = dial(port);
    if (fd < 0) return -1;
    switch (trick) {
    case SILENT: case FLOOD_OF_CONNECTIONS: return fd;
    case OTHER_PROGRAM:     net_send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, now() + 1); break;
    case PREVIOUS_PROTOCOL: strcpy(much, "moe-run1v9"); net_send(fd, much, 208, now() + 1); break;
    case SHORT_GREETING:    net_send(fd, &g, sizeof g / 2, now() + 1); break;
    case FLOOD_OF_BYTES:    net_send(fd, &g, sizeof g, now() + 1); net_send(fd, much, sizeof much, now() + 1); break;
    case DRIPS:
        for (size_t i = 0; i < 20 && net_send(fd, (const char *)&g + i, 1, now() + 1); i++) pause_for(0.15);
        break;
    default:
        if (!net_send(fd, &g, sizeof g, now() + 1) || !net_receive(fd, nonce, sizeof nonce, now() + 1)) break;
        memcpy(proof, nonce, sizeof proof);
        if (trick == WRONG_SECRET_SENT) proof_make(proof, "known to no one but me", FROM_PROCESS, &g, nonce);
        nonce[0] ^= 1;
        if (trick == OLD_PROOF) proof_make(proof, "known to all of them", FROM_PROCESS, &g, nonce);
        net_send(fd, proof, trick == SHORT_PROOF ? sizeof proof / 2 : sizeof proof, now() + 1);
    }
    shutdown(fd, SHUT_WR);
    for (const double end = now() + 0.5; now() < end && more >= 0; pause_for(0.01)) {
        more = net_read(fd, rest, sizeof rest);
        for (long i = trick == FLOOD_OF_BYTES && more > 0 ? NONCE_BYTES : 0; i < more; i++) *learned += rest[i] != 0;
    }
    close(fd);
    return -1;
}

/* Plays for some seconds with several connections, as a process. Exit code 1: it learned
 * something. */
static pid_t send_stranger(Trick trick, int port, int connections, double seconds) {
    const pid_t pid = fork();
    if (pid) return pid;
    const double end = now() + seconds;
    int *fd = mem_alloc((size_t)connections * sizeof *fd), learned = 0;
    char bytes[64];
    alarm(20 * BUSY);
    for (int i = 0; i < connections; i++) fd[i] = -1;
    while (now() < end) {
        for (int i = 0; i < connections && now() < end; i++) {
            if (fd[i] >= 0 && trick == FLOOD_OF_CONNECTIONS) { close(fd[i]); fd[i] = -1; }
            if (fd[i] >= 0) {
                const long n = net_read(fd[i], bytes, sizeof bytes);
                learned += n > 0;
                if (n >= 0) continue;
                close(fd[i]);
            }
            fd[i] = play(trick, port, &learned);
        }
        pause_for(0.01);
    }
    _exit(learned != 0);
}

static const struct { const char *name; Trick trick; int connections; } strangers[] = {
    { "silent connections",               SILENT, 300 },        { "as many, and few descriptors",      SILENT, 300 },
    { "another program",                  OTHER_PROGRAM, 2 },
    { "the previous protocol", PREVIOUS_PROTOCOL, 2 }, { "another secret", WRONG_SECRET_SENT, 2 },
    { "the nonce is sent back",           NONCE_SENT_BACK, 2 }, { "a proof of another introduction",   OLD_PROOF, 2 },
    { "half a greeting",                  SHORT_GREETING, 2 },  { "half a proof",                      SHORT_PROOF, 2 },
    { "a megabyte after the greeting",    FLOOD_OF_BYTES, 2 },  { "a byte now and then",               DRIPS, 1 },
    { "a flood of connections",           FLOOD_OF_CONNECTIONS, 20 },
};
enum { STRANGERS = COUNT(strangers), AT_ONCE = 4 };

/* A run of three, of which the others start later than the stranger. Every second process 0 may
 * have few descriptors. It starts, works for more than a second, and ends. */
static void undisturbed(void) {
    static const Work todo = { 25, 0 };
    for (int from = 0; from < STRANGERS; from += AT_ONCE) {
        Run runs[AT_ONCE];
        pid_t stranger[AT_ONCE];
        const int count = STRANGERS - from < AT_ONCE ? STRANGERS - from : AT_ONCE;
        for (int i = 0; i < count; i++) {
            const int port = free_port();
            runs[i].start = now();
            for (int p = 0; p < 3; p++) {
                GroupOptions o = group_options(p, 3, 1, port);
                o.silence_seconds = 1.2;
                start_process(&runs[i], o, p ? 0.5 : 0, !p && i % 2 ? 60 : 0, &todo);
            }
            stranger[i] = send_stranger(strangers[from + i].trick, port, strangers[from + i].connections, 2.5);
        }
        for (int i = 0; i < count; i++) {
            for (int p = 0; p < 3; p++) {
                char text[1024];
                const int code = end_process(&runs[i], p, text, sizeof text);
                check(code == 0, "%s: process %d ends with code %d: %s", strangers[from + i].name, p, code, text);
            }
            check_error(now() - runs[i].start, 6 * BUSY, "%s: seconds of the run", strangers[from + i].name);
            int status;
            waitpid(stranger[i], &status, 0);
            check(!status, "%s: the stranger learns nothing (%d)", strangers[from + i].name, exit_code(status));
        }
    }
}

/* A process is missing, and a stranger has something to say: -pw holds all the same. */
static void deadline_holds(void) {
    static const Work todo = { 1, 0 };
    static const Trick tricks[] = { SILENT, DRIPS, WRONG_SECRET_SENT, FLOOD_OF_CONNECTIONS };
    enum { TRICKS = COUNT(tricks) };
    Run runs[TRICKS];
    pid_t stranger[TRICKS];
    for (int i = 0; i < TRICKS; i++) {
        GroupOptions o = group_options(0, 2, 1, free_port());
        o.join_seconds = 1;
        runs[i].start = now();
        start_process(&runs[i], o, 0, 0, &todo);
        stranger[i] = send_stranger(tricks[i], o.launch.port, 3, 10 * BUSY);
    }
    for (int i = 0; i < TRICKS; i++) {
        char text[1024];
        int status;
        const int code = end_process(&runs[i], 0, text, sizeof text);
        check(code == EXIT_PEER && strstr(text, "1 of 2 processes have not connected"), "trick %d: code %d: %s",
              tricks[i], code, text);
        check((tricks[i] == WRONG_SECRET_SENT) == (strstr(text, ", the latest from 127.0.0.1)") != NULL),
              "trick %d: %s", tricks[i], text);
        check(!waitpid(stranger[i], &status, WNOHANG), "trick %d: -pw 1 ends the start while the stranger goes on",
              tricks[i]);
        kill(stranger[i], SIGKILL);
        waitpid(stranger[i], &status, 0);
    }
}

/* ---- more connections than process 0 keeps --------------------------------------------------- */

static int take(void *to, int fd, const Greeting *g, const Hello *h, const char *settings, Error *why) {
    (void)h; (void)why;
    *(int *)to = g->process == 3 && !strcmp(settings, "{}");
    close(fd);
    return 1;
}
/* Of these connections, how many are open? */
static int count_open(const int *fd, int count) {
    int n = 0;
    char byte;
    for (int i = 0; i < count; i++) n += fd[i] >= 0 && net_read(fd[i], &byte, 1) == 0;
    return n;
}

static void serve(Introductions *s, int *admitted) { introductions_step(s, take, admitted); pause_for(0.01); }
/* One that knows the secret; then 200 that say nothing: it is served, they have two seconds. */
static void crowd(void) {
    enum { SILENT_ONES = 200 };
    static const char secret[] = "known to all of them";
    const int port = free_port();
    const Greeting g = greeting_of(0, 3);
    const Hello h = { .settings = 2 };
    unsigned char nonce[NONCE_BYTES], proof[PROOF_BYTES];
    int fd[SILENT_ONES], admitted = 0;
    Error e;
    Introductions *s = introductions_open("127.0.0.1", port, 0, secret, &e);
    check(s != NULL, "introductions: %s", e.text);
    if (!s) return;
    const double start = now();
    const int honest = dial(port);
    net_send(honest, &g, sizeof g, now() + 1);
    for (int i = 0; i < 10 && net_read(honest, nonce, sizeof nonce) <= 0; i++) serve(s, &admitted);
    proof_make(proof, secret, FROM_PROCESS, &g, nonce);
    net_send(honest, proof, sizeof proof, now() + 1);
    for (int i = 0; i < 10 && net_read(honest, proof, sizeof proof) <= 0; i++) serve(s, &admitted);
    for (int i = 0; i < SILENT_ONES; i++) {
        fd[i] = dial(port);
        if (i % 10 == 9) introductions_step(s, take, &admitted);
    }
    for (int i = 0; i < 3; i++) serve(s, &admitted);
    const int open = count_open(fd, SILENT_ONES);
    check(open == MOST_INTRODUCTIONS - 1, "of %d silent connections, %d are open beside one that knows the secret",
          SILENT_ONES, open);
    net_send(honest, &h, sizeof h, now() + 1);
    net_send(honest, "{}", 2, now() + 1);
    for (int i = 0; i < 10 && !admitted; i++) serve(s, &admitted);
    check(admitted, "which is admitted");
    struct pollfd fds[INTRODUCTION_FDS];
    while (count_open(fd, SILENT_ONES) && now() < start + 10 * BUSY) {
        double until = start + 10 * BUSY;
        const int n = introductions_poll(s, fds, &until);
        poll(fds, (nfds_t)n, until > now() ? (int)((until - now()) * 1e3) + 1 : 0);
        introductions_step(s, take, &admitted);
    }
    check_error(now() - start, (INTRODUCTION_SECONDS + 1.5) * BUSY / 2,
                "seconds until all silent connections are closed");
    for (int i = 0; i < SILENT_ONES; i++) if (fd[i] >= 0) close(fd[i]);
    close(honest), introductions_close(s);
}

/* ---- a process that knows the secret, and then misbehaves ------------------------------------ */

typedef enum { ONE_BYTE_MORE, ONE_BYTE_MORE_WATCH, HELLO_DRIPS, MUCH_SETTINGS, OTHER_PID, ENDS_EARLY, PHASE_WITHOUT_END,
               DRIPS_LATER, STOPS, ESCAPES, LONG_MESSAGE, ONLY_GOODBYE } Fault;

static const struct { const char *name; Fault fault; const char *expected; } faults[] = { /* expected: of process 0 */
    { "a byte more on the data connection",   ONE_BYTE_MORE,       "sent something that this program does not send" },
    { "a byte more on the watch connection",  ONE_BYTE_MORE_WATCH, "sent something that this program does not send" },
    { "a hello that drips",                   HELLO_DRIPS,         "have not connected" },
    { "settings of 4 GB",                     MUCH_SETTINGS,       "have not connected" },
    { "the watch connection of another process", OTHER_PID,
      "two processes have the number 1: one on host x, pid 5, the other on host x, pid 6" },
    { "ends before all have connected",       ENDS_EARLY,          "ended before all processes had connected" },
    { "a phase without an end", PHASE_WITHOUT_END, "has been in 'ppppppppppppppppppppppppppppppppppppppp' for" },
    { "a watch connection that drips", DRIPS_LATER, "is silent" }, { "a process that stops", STOPS, "is silent" },
    { "escape sequences",                     ESCAPES,             "?[2J?]0;x?" },
    { "a message of 4 GB",                    LONG_MESSAGE,        "sent something that this program does not send" },
    { "a goodbye before the end",             ONLY_GOODBYE,        "is silent" },
};
enum { FAULTS = COUNT(faults) };

/* Introduces itself as far as the fault goes. -1: refused, or the fault has been played. */
static int introduce(int port, int watch, Fault fault) {
    const GroupOptions o = group_options(1, 3, 1, port);
    const Greeting g = greeting_of(watch, 1);
    Hello h = { .processes = fault > ENDS_EARLY ? 2 : 3, .ranks = 1, .pid = fault == OTHER_PID && watch ? 6 : 5,
                .host = "x", .settings = fault == MUCH_SETTINGS ? UINT32_MAX : (uint32_t)strlen(o.settings) };
    unsigned char nonce[NONCE_BYTES], proof[PROOF_BYTES];
    MessageHead head;
    int fd;
    strcpy(h.version, o.version);
    while ((fd = dial(port)) < 0) pause_for(0.02);          /* alarm ends this */
    net_send(fd, &g, sizeof g, now() + 1);
    if (!net_receive(fd, nonce, sizeof nonce, now() + 2)) return -1;
    proof_make(proof, o.secret, FROM_PROCESS, &g, nonce);
    net_send(fd, proof, sizeof proof, now() + 1);
    if (!net_receive(fd, nonce, sizeof nonce, now() + 2)) return -1;
    if (fault == HELLO_DRIPS) {
        for (size_t i = 0; i < sizeof h && net_send(fd, (char *)&h + i, 1, now() + 1); i++) pause_for(0.1);
        return -1;
    }
    net_send(fd, &h, sizeof h, now() + 1);
    net_send(fd, o.settings, strlen(o.settings), now() + 1);
    return net_receive(fd, &head, sizeof head, now() + 2) && head.kind == MESSAGE_ADMITTED ? fd : -1;
}

static void send_message(int fd, uint32_t kind, uint32_t bytes, const void *data, size_t length) {
    const MessageHead head = { kind, bytes };
    net_send(fd, &head, sizeof head, now() + 1);
    net_send(fd, data, length, now() + 1);
}
/* The run has begun. */
static void misbehave(int watch, Fault fault) {
    RankStatus s = { .count = 0, .limit = 0.1f, .phase = "reading" };
    const struct { MessageHead head; RankStatus s; } drops = { { MESSAGE_ALIVE, sizeof s }, s };
    const char *const escapes = "\033[2J\033]0;x\007";
    if (fault == PHASE_WITHOUT_END) memset(s.phase, 'p', sizeof s.phase);
    if (fault == ESCAPES) send_message(watch, MESSAGE_LOST, (uint32_t)strlen(escapes), escapes, strlen(escapes));
    if (fault == LONG_MESSAGE) send_message(watch, MESSAGE_LOST, UINT32_MAX, "x", 1);
    if (fault == ONLY_GOODBYE) { send_message(watch, MESSAGE_GOODBYE, 0, "", 0); shutdown(watch, SHUT_WR); }
    for (int i = 0; i < 40; i++) {
        if (fault == PHASE_WITHOUT_END) send_message(watch, MESSAGE_ALIVE, sizeof s, &s, sizeof s);
        if (fault == DRIPS_LATER) net_send(watch, (const char *)&drops + i, 1, now() + 1);
        pause_for(0.1);
    }
}
static pid_t send_member(Fault fault, int port) {
    const pid_t pid = fork();
    if (pid) return pid;
    alarm(20 * BUSY);
    signal(SIGPIPE, SIG_IGN);
    const int data = introduce(port, 0, fault), watch = data < 0 ? -1 : introduce(port, 1, fault);
    if (fault == ENDS_EARLY) _exit(0);
    if (fault <= ENDS_EARLY) {
        if (fault == ONE_BYTE_MORE) net_send(data, "x", 1, now() + 1);
        if (fault == ONE_BYTE_MORE_WATCH) net_send(watch, "x", 1, now() + 1);
        pause_for(4);
    } else misbehave(watch, fault);
    _exit(0);
}
static void misbehaving(void) {
    static const Work once = { 1, 0 }, limited = { 3, 0.3 };
    for (int from = 0; from < FAULTS; from += 8) {
        Run runs[8];
        pid_t member[8];
        const int count = FAULTS - from < 8 ? FAULTS - from : 8;
        for (int i = 0; i < count; i++) {
            const Fault fault = faults[from + i].fault;
            GroupOptions o = group_options(0, fault > ENDS_EARLY ? 2 : 3, 1, free_port());
            o.join_seconds = 2, o.silence_seconds = 0.8;
            runs[i].start = now();
            start_process(&runs[i], o, 0, 0, fault == PHASE_WITHOUT_END ? &limited : &once);
            member[i] = send_member(fault, o.launch.port);
        }
        for (int i = 0; i < count; i++) {
            char text[1024];
            const int code = end_process(&runs[i], 0, text, sizeof text);
            check(code == EXIT_PEER && strstr(text, faults[from + i].expected) && !strchr(text, '\033'),
                  "%s: process 0 ends with code %d: %s", faults[from + i].name, code, text);
            check_error(now() - runs[i].start, 4.5, "%s: seconds until that", faults[from + i].name);
            kill(member[i], SIGKILL);
            waitpid(member[i], NULL, 0);
        }
    }
}

/* ---- a process that takes part, and sends numbers beyond their bounds ------------------------ */

typedef enum { TOO_LARGE, TOO_SMALL, LESS_THAN_MINE, UNKNOWN_BITS, NOT_A_NUMBER, NO_SUCH_CHOICE, NO_SUCH_CODE,
               LIES } Lie;
typedef struct { Lie lie; int liar; } Lying;
static void forget(void *x, const void *y, size_t bytes) { (void)x, (void)y, (void)bytes; }
static void linger(void) { pause_for(4); }                  /* or the other sees its end before its lie */
/* The liar's own bounds let it. What comes back to it does not matter. */
static int lie(Group *group, const void *argument) {
    const Lying *l = argument;
    const int lies = group->rank == l->liar;
    int zero = 0;
    double all[2];
    Error why = { .code = lies ? 1 << 30 : EXIT_DISK };
    switch (l->lie) {
    case TOO_LARGE:      group_max(group, lies ? 1 << 30 : 1, lies ? INT_MAX : 4); break;
    case TOO_SMALL:      group_min(group, lies ? -1 : 1, lies ? INT_MIN : 0); break;
    case LESS_THAN_MINE: if (lies) group->reduce(group, &zero, sizeof zero, forget); else group_max(group, 3, 4); break;
    case UNKNOWN_BITS:   group_or(group, lies ? 64 : 1, lies ? -1 : 7); break;
    case NOT_A_NUMBER:   group_gather(group, all, lies ? NAN : 1, lies ? -INFINITY : 0, INFINITY); break;
    case NO_SUCH_CHOICE: group_broadcast(group, lies ? 7 : 1, 0, lies ? 7 : 2); break;
    default:
        if (lies) atexit(linger);
        group_agree(group, !lies, &why);
    }
    return 0;
}
static void lying(void) {
    for (int i = 0; i < 2 * LIES; i++) {
        const Lying todo = { (Lie)(i / 2), i % 2 };
        Run run;
        char text[1024];
        const int port = free_port(), other = !todo.liar;
        if ((todo.lie == LESS_THAN_MINE || todo.lie == NO_SUCH_CHOICE) && todo.liar) continue;  /* process 0 alone */
        for (int p = 0; p < 2; p++) start_task(&run, group_options(p, 2, 1, port), 0, 0, lie, &todo);
        const int code = end_process(&run, other, text, sizeof text);
        check(code == EXIT_PEER && strstr(text, "this program does not send that"),
              "lie %d of process %d: the other ends with code %d: %s", todo.lie, todo.liar, code, text);
        kill(run.pid[todo.liar], SIGKILL);
        waitpid(run.pid[todo.liar], NULL, 0);
    }
}

/* ---- a false process 0 ----------------------------------------------------------------------- */

typedef enum { GARBAGE, ZEROS, CLOSES, FIRST, NOT_ME, SHORT_LIST, LONG_LIST, REASON, LONG_WHY, NO_ADMISSION } Falsehood;
static const struct { const char *name; Falsehood kind; const char *expected; } falsehoods[] = {
    { "a proof of random bytes",      GARBAGE,      "does not know this run's secret" },
    { "a proof of zeros", ZEROS, "has another secret" }, { "no proof", CLOSES, "closed the connection" },
    { "first = 5,000,000",            FIRST,        "impossible list of processes" },
    { "another process of our number", NOT_ME,      "takes another process" },
    { "a list of one process",        SHORT_LIST,   "ended while it started the run" },
    { "a list of three processes",    LONG_LIST,    "ended while it started the run" },
    { "a reason with escapes",        REASON,       "?[31m reason" },
    { "a reason of 4 GB",             LONG_WHY,     "ended while it started the run" },
    { "neither admitted nor refused", NO_ADMISSION, "ended while it started the run" },
};

static int has_arrived(int fd, int milliseconds) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, milliseconds) > 0;
}
/* Plays process 0 for one connection as far as the falsehood goes. *pid: of the other process. */
static int receive_process(int listener, Falsehood kind, const char *secret, int32_t *pid, int *learned) {
    Greeting g;
    Hello h;
    unsigned char nonce[NONCE_BYTES] = { 7 }, proof[PROOF_BYTES], expected[PROOF_BYTES];
    char text[512];
    if (!has_arrived(listener, 2000)) return -1;
    const int fd = net_accept(listener);
    if (!net_receive(fd, &g, sizeof g, now() + 1)) { close(fd); return -1; }
    net_send(fd, nonce, sizeof nonce, now() + 1);
    if (!net_receive(fd, proof, sizeof proof, now() + 1) || kind == CLOSES) { close(fd); return -1; }
    proof_make(expected, secret, FROM_PROCESS, &g, nonce);
    check(!memcmp(proof, expected, sizeof proof), "false process 0: the process proves that it knows the secret");
    proof_make(proof, kind == GARBAGE ? "a guess, nothing more" : secret, FROM_HUB, &g, nonce);
    if (kind == ZEROS) memset(proof, 0, sizeof proof);
    net_send(fd, proof, sizeof proof, now() + 1);
    if (kind == GARBAGE || kind == ZEROS) {                 /* nothing more may come */
        *learned += net_receive(fd, text, 1, now() + 0.3);
        close(fd);
        return -1;
    }
    if (net_receive(fd, &h, sizeof h, now() + 1)) { net_receive(fd, text, h.settings, now() + 1); *pid = h.pid; }
    send_message(fd, kind == NO_ADMISSION ? MESSAGE_GOODBYE : MESSAGE_ADMITTED, 0, "", 0);
    return fd;
}
static void send_falsehood(int data, Falsehood kind, int32_t pid) {
    Process at[3] = { { .ranks = 1, .first = 0, .pid = 1 }, { .ranks = 1, .first = 1, .pid = pid },
                      { .ranks = 1, .first = 2, .pid = 3 } };
    const char *const why = "\033[31m reason";
    if (kind == FIRST) at[1].first = 5000000;
    if (kind == NOT_ME) at[1].pid = pid + 1;
    const size_t bytes = (kind == SHORT_LIST ? 1 : kind == LONG_LIST ? 3 : 2) * sizeof *at;
    if (kind == REASON || kind == LONG_WHY)
        send_message(data, MESSAGE_LOST, kind == REASON ? (uint32_t)strlen(why) : UINT32_MAX, why, strlen(why));
    else send_message(data, MESSAGE_WELCOME, (uint32_t)bytes, at, bytes);
}
static void false_hub(void) {
    static const Work todo = { 1, 0 };
    for (size_t i = 0; i < COUNT(falsehoods); i++) {
        const Falsehood kind = falsehoods[i].kind;
        GroupOptions o = group_options(1, 2, 1, free_port());
        int listener[NET_LISTENERS], learned = 0;
        int32_t pid = 0;
        char text[1024];
        Error e;
        Run run = { .start = now() };
        o.join_seconds = 0.5;
        const int n = net_listen("127.0.0.1", o.launch.port, 0, listener, &e);
        check(n == 1, "false process 0: %s", e.text);
        if (n != 1) continue;
        start_process(&run, o, 0, 0, &todo);
        int data = receive_process(listener[0], kind, o.secret, &pid, &learned);
        while (data < 0 && kind != ZEROS && has_arrived(listener[0], 800))
            data = receive_process(listener[0], kind, o.secret, &pid, &learned);
        const int watch = data < 0 || kind == NO_ADMISSION
            ? -1 : receive_process(listener[0], kind, o.secret, &pid, &learned);
        if (watch >= 0) send_falsehood(data, kind, pid);
        const int code = end_process(&run, 1, text, sizeof text);
        check(code == EXIT_PEER && strstr(text, falsehoods[i].expected) && !strchr(text, '\033') && !learned,
              "false process 0, %s: the other ends with code %d: %s", falsehoods[i].name, code, text);
        check_error(now() - run.start, 3.5, "false process 0, %s: seconds until that", falsehoods[i].name);
        if (data >= 0) close(data);
        if (watch >= 0) close(watch);
        close(listener[0]);
    }
}

/* ---- names and addresses --------------------------------------------------------------------- */

static void runs_at(const char *address) {
    static const Work todo = { 3, 0 };
    Run run = { .start = now() };
    const int port = free_port();
    for (int p = 0; p < 2; p++) {
        GroupOptions o = group_options(p, 2, 1, port);
        o.launch.locals = 2; /* a name of this machine may stand for a loopback address */
        strcpy(o.launch.address, address);
        start_process(&run, o, 0, 0, &todo);
    }
    for (int p = 0; p < 2; p++) {
        char text[1024];
        const int code = end_process(&run, p, text, sizeof text);
        check(code == 0, "a run at %s: process %d ends with code %d: %s", address, p, code, text);
    }
}
void test_strangers(void) {
    char host[256] = "";
    int fd[NET_LISTENERS], n;
    Error e;
    PART(crowd()); PART(misbehaving()); PART(lying()); PART(false_hub());
    if (quick) return;
    PART(undisturbed()); PART(deadline_holds()); PART(runs_at("127.0.0.1"));
    if (!gethostname(host, sizeof host - 1)) PART(runs_at(host));
    if ((n = net_listen("::1", free_port(), 0, fd, &e))) PART(runs_at("::1"));
    else skip("a run at ::1: %s", e.text);
    while (n) close(fd[--n]);
}
