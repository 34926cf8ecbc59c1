/* processes.c: see processes.h. */
#define _DEFAULT_SOURCE
#include "processes.h"
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int free_port(void) {
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t size = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || getsockname(fd, (struct sockaddr *)&a, &size)) return 0;
    close(fd);
    return ntohs(a.sin_port);
}
void pause_for(double seconds) {
    const struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    nanosleep(&t, NULL);
}
GroupOptions group_options(int process, int processes, int ranks, int port) {
    GroupOptions o = { .launch = { .launcher = "flags", .process = process, .processes = processes,
                                   .address = "localhost", .port = port, .job = "" }, .ranks = ranks, .version = "v1",
                       .secret = "known to all of them", .settings = "{\"seed\": 1, \"lr\": 0.1, \"x\": \"y\"}",
                       .join_seconds = 5, .silence_seconds = 5 };
    return o;
}

typedef struct { Group *group; int (*work)(Group *, const void *); const void *argument; int bad; } Job;
static void *job(void *argument) {
    Job *j = argument;
    j->bad = j->work(j->group, j->argument);
    return NULL;
}
/* A thread for each rank of this process; the sum of what they return. */
static int run_ranks(ProcessGroup *w, int ranks, int (*work)(Group *, const void *), const void *argument) {
    pthread_t thread[8];
    Job jobs[8];
    int bad = 0;
    for (int r = 0; r < ranks; r++) {
        jobs[r] = (Job){ group_of(w, r), work, argument, 0 };
        if (pthread_create(&thread[r], NULL, job, &jobs[r])) return 1;
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(thread[r], NULL);
        bad += jobs[r].bad;
    }
    return bad;
}
int run_process(GroupOptions o, int (*work)(Group *, const void *), const void *argument) {
    Error e;
    ProcessGroup *w = group_join(&o, &e);
    if (!w) { fprintf(stderr, "%s\n", e.text); return 1; }
    const int bad = run_ranks(w, o.ranks, work, argument);
    group_leave(w);
    return bad != 0;
}
int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }
int end_of_process(pid_t pid, FILE *said, char *text, size_t capacity) {
    int status;
    waitpid(pid, &status, 0);
    rewind(said);
    text[fread(text, 1, capacity - 1, said)] = 0;
    fclose(said);
    return exit_code(status);
}
void report_and_exit(const char *why) {
    fprintf(stderr, "%s\n", why);
    _exit(EXIT_PEER);
}
