/* requests.c: see requests.h. */
#define _DEFAULT_SOURCE
#include "requests.h"
#include "llmc/ranks/group.h"
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stop_requested, save_requested, answers, step;

/* A handler may call little: write(), and nothing that allocates or locks. */
static void say(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) answers = 0;
}
static void say_number(int n) {
    char digits[16], *at = digits + sizeof digits - 1;
    *at = 0;
    for (; n > 0; n /= 10) *--at = (char)('0' + n % 10);
    say(at);
}
static void answer(int number) {
    say("\n");
    if (step) say("finishing step "), say_number(step), say(", then saving");
    else say("saving");
    say(number == SIGINT ? "; Ctrl-C again stops at once\n" : "\n");
}
static void on_signal(int number) {
    const int before = errno;
    if (number == SIGUSR1) { save_requested = 1; return; }
    if (stop_requested && number == SIGINT) _exit(128 + SIGINT);
    if (!stop_requested && answers) answer(number);
    stop_requested = 1;
    errno = before;
}
static void on_early_signal(int number) {
    if (number == SIGUSR1) { save_requested = 1; return; }
    say("\nstopped before the first step: there is nothing new to save\n");
    _exit(EXIT_STOPPED);
}
static void listen_to(void (*handler)(int number), int interrupts) {
    struct sigaction act = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigemptyset(&act.sa_mask);
    const int numbers[] = { SIGTERM, SIGUSR1, SIGUSR2, SIGINT };
    for (int i = 0; i < 3 + interrupts; i++) sigaction(numbers[i], &act, NULL);
    signal(SIGHUP, SIG_IGN);
}
void requests_begin(void) { listen_to(on_early_signal, 0); }
void requests_step(int64_t number) { step = number < SIG_ATOMIC_MAX ? (sig_atomic_t)number : 0; }
void requests_listen(int leads) {
    answers = leads;
    listen_to(on_signal, 1);
}

static int consume_stop_file(const char *folder) {
    char *path = text_format("%s/STOP", folder);
    const int found = is_file(path);
    if (found) unlink(path);
    free(path);
    return found;
}

int requests_stopping(void) { return stop_requested; }

int requests_collect(Group *group, int signals, const char *folder, int own) {
    const int saves = signals && save_requested;
    if (saves) save_requested = 0;
    return group_or(group, (stop_requested || (folder && consume_stop_file(folder)) ? REQUEST_STOP : 0)
                    | (saves ? REQUEST_SAVE : 0) | own,
                    REQUEST_STOP | REQUEST_SAVE | REQUEST_TIMED_SAVE | REQUEST_BUSY);
}
