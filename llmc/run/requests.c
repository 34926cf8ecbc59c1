/* requests.c: see requests.h. */
#define _DEFAULT_SOURCE
#include "requests.h"
#include "llmc/ranks/group.h"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static volatile sig_atomic_t stop_requested, save_requested;

static void on_signal(int number) {
    if (number == SIGUSR1) { save_requested = 1; return; }
    if (stop_requested && number == SIGINT) _exit(128 + SIGINT);
    stop_requested = 1;
}
void requests_listen(void) {
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&act.sa_mask);
    const int numbers[] = { SIGINT, SIGTERM, SIGUSR1, SIGUSR2 };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &act, NULL);
    signal(SIGHUP, SIG_IGN);
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
                    | (saves ? REQUEST_SAVE : 0) | own);
}
