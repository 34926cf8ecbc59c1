/* main.c: runs the groups of tests named on the command line, or all of them: `usage` below. -q and
 * -d keep runs under compute-sanitizer short (sanitize.sh). */
#define _DEFAULT_SOURCE
#include "test.h"
#include "llmc/base/omp.h"
#include "llmc/ranks/threads.h"
#include "kernels/kernels.h"
#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int quick;
static int passed, failed, skipped, verbose, stop_at_first;
static const char *only_device = "*", *only_operation = "";
static const char *group = "";
static char folder[] = "/tmp/moe-tests-XXXXXX";
static uint64_t state = 1, first_state = 1;        /* of uniform(); at the beginning of a part */
enum { MOST_SECONDS = 3600 };               /* of a group: many minutes under compute-sanitizer, else one */

static void remove_folder(void) {
    char *clean = text_format("rm -rf %s", folder);
    if (system(clean)) fprintf(stderr, "could not remove %s\n", folder);
    free(clean);
}
static double said_at;                  /* when something was printed */
static void say(const char *verdict, const char *what, va_list args) {
    said_at = now();
    printf("%-4s %-9s ", verdict, group);
    vprintf(what, args);
    putchar('\n');
    fflush(stdout);
}
void check(int ok, const char *what, ...) {
    va_list args;
    va_start(args, what);
    if (ok) passed++; else failed++;
    if (!ok || verbose) say(ok ? "ok" : "FAIL", what, args);
    else if (now() - said_at > 8) {                         /* a slow machine is not silent */
        if (said_at > 0) printf("     %-9s %d checks so far\n", group, passed + failed);
        fflush(stdout);
        said_at = now();
    }
    va_end(args);
    if (!ok && stop_at_first) {
        remove_folder();
        _exit(1);
    }
}
void check_error(double error, double bound, const char *what, ...) {
    char text[512];
    va_list args;
    va_start(args, what);
    vsnprintf(text, sizeof text, what, args);
    va_end(args);
    check(error <= bound, "%-72s %.1e, allowed %.0e", text, error, bound);
}
void check_message(const Error *e, const char *words, const char *what) {
    char *list = text_format("%s", words);
    for (char *word = strtok(list, "|"); word; word = strtok(NULL, "|"))
        check(strstr(e->text, word) != NULL, "%s: the message names '%s': %s", what, word, e->text);
    free(list);
}
void fails(int ok, const Error *e, const char *words, const char *what) {
    check(!ok, "%s is an error", what), check_message(e, words, what);
}
void skip(const char *what, ...) {
    va_list args;
    va_start(args, what);
    skipped++;
    say("skip", what, args);
    va_end(args);
}

double relative_error(const double *got, const double *expected, size_t n) {
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += (got[i] - expected[i]) * (got[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return sqrt(diff / (norm + 1e-300));
}
double uniform(void) {
    state ^= state >> 12; state ^= state << 25; state ^= state >> 27;
    return (double)(state * 0x2545F4914F6CDD1Dull >> 11) * 0x1p-53;
}
double normal(void) { return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()); }

double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

const char *wanted(void) { return only_operation; }
int is_wanted(const char *operation) { return !strncmp(operation, only_operation, strlen(only_operation)); }
int may_be_wanted(const char *beginning) {
    return is_wanted(beginning) || !strncmp(beginning, only_operation, strlen(beginning));
}
int is_tested(const Device *d) { return !fnmatch(only_device, d->name, 0); }
const Device *tested_device(int i) {
    const Device *d;
    for (int at = 0; (d = device_list(at)); at++) if (is_tested(d) && !d->open(0) && !i--) return d;
    return NULL;
}
static double part_start;
static int passed_before;
int part_begins(const char *call) {
    if (!is_wanted(call)) return 0;
    state = first_state;
    part_start = now();
    passed_before = passed;
    return 1;
}
void part_ends(const char *call) {
    if (verbose) printf("part %-9s %s: %d passed, %.2f s\n", group, call, passed - passed_before, now() - part_start);
}
const char *scratch(void) { return folder; }
char *scratch_path(const char *name) { return text_format("%s/%s", folder, name); }
char *scratch_put(const char *name, const void *data, size_t bytes) {
    char *path = scratch_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f)) fail(EXIT_DISK, "%s: cannot be written", path);
    return path;
}
char *scratch_folder(const char *name) {
    Error e;
    char *path = scratch_path(name);
    if (!folder_make(path, &e)) fail(EXIT_DISK, "%s", e.text);
    return path;
}

int in_child(void (*child)(void *), void *argument, char *said, size_t capacity) {
    char *path = scratch_path("said");
    size_t n = 0;
    int status = 0;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(path, "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
        child(argument);
        fflush(stderr);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) status = 99 << 8;
    FILE *f = fopen(path, "r");
    if (f) { n = fread(said, 1, capacity - 1, f); fclose(f); }
    said[n] = 0;
    unlink(path);
    free(path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const struct { const char *name; void (*run)(void); } groups[] = {
    { "house", test_house }, { "files", test_files }, { "data", test_data }, { "kernels", test_kernels },
    { "model", test_model }, { "reference", test_reference }, { "train", test_train }, { "state", test_state },
    { "report", test_report }, { "web", test_web }, { "messages", test_messages }, { "strangers", test_strangers },
    { "comm", test_comm }, { "parallel", test_parallel }, { "gpu", test_gpu }, { "decoding", test_decoding },
    { "ladder", test_ladder }, { "soak", test_soak }, { "large", test_large },
};
enum { GROUPS = sizeof groups / sizeof *groups };

static void out_of_time(int unused) {       /* a signal handler: only calls that are safe in one */
    char text[128] = "FAIL ";
    (void)unused;
    strcat(strcat(text, group), " has run out of time\n");
    _exit(write(STDOUT_FILENO, text, strlen(text)) < 0 ? 2 : 1);
}
static void run_group(int g, uint64_t seed) {
    const double start = now();
    const int before = passed, bad = failed;
    group = groups[g].name;
    first_state = state = seed * 0x9E3779B97F4A7C15ull + 1;
    alarm(MOST_SECONDS);                    /* no test hangs */
    groups[g].run();
    alarm(0);
    printf("%-9s %d passed, %d failed, %.1f s\n", group, passed - before, failed - bad, now() - start);
}

static const char usage[] =
    "usage: run_tests [-v] [-q] [-f] [-d DEVICE] [-k NAME] [-s SEED] [GROUP...]\n"
    "Runs the groups of tests, without GROUP all of them. Start it from the folder of the Makefile.\n"
    "  -v         print every check, and how long each part of a group took\n"
    "  -q         quick: fewer and smaller cases\n"
    "  -f         stop at the first failed check\n"
    "  -d DEVICE  only devices of this pattern ('cuda-*'), in the groups kernels, comm, gpu, ladder, soak and large\n"
    "  -k NAME    only what begins with NAME: operations of the group kernels, parts of others (-v names them)\n"
    "  -s SEED    seed of random numbers, to repeat a run\n"
    "  -fault     no tests, but an error of the GPU that -d names\n"
    "groups:";
static _Noreturn void explain(FILE *to, int code) {
    fputs(usage, to);
    for (int g = 0; g < GROUPS; g++) fprintf(to, " %s", groups[g].name);
    fputc('\n', to);
    exit(code);
}
static int find_group(const char *name) {
    int g = 0;
    while (g < GROUPS && strcmp(name, groups[g].name)) g++;
    return g;
}

int main(int argc, char **argv) {
    uint64_t seed = (uint64_t)time(NULL);
    int wanted[GROUPS + 1] = { 0 }, named = 0, fault = 0;
    threads_settle(argv);
    /* shapes are small: more would only wait */
    if (!getenv("OMP_NUM_THREADS") && omp_get_max_threads() > 16) omp_set_num_threads(16);
    signal(SIGALRM, out_of_time);
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "-v")) verbose = 1;
        else if (!strcmp(argv[i], "-q")) quick = 1;
        else if (!strcmp(argv[i], "-f")) stop_at_first = 1;
        else if (!strcmp(argv[i], "-d") && i + 1 < argc) only_device = argv[++i];
        else if (!strcmp(argv[i], "-k") && i + 1 < argc) only_operation = argv[++i];
        else if (!strcmp(argv[i], "-fault")) fault = 1;
        else if (!strcmp(argv[i], "-s") && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) explain(stdout, 0);
        else if (find_group(argv[i]) == GROUPS) {
            fprintf(stderr, "%s: no option or group\n", argv[i]);
            explain(stderr, 2);
        }
        else wanted[find_group(argv[i])] = named = 1;
    if (fault) gpu_fault();
    if (!mkdtemp(folder)) { perror(folder); return 2; }
    device_list(0);                         /* before there are threads */
    printf("seed %llu\n", (unsigned long long)seed);
    for (int g = 0; g < GROUPS; g++) if (!named || wanted[g]) run_group(g, seed);
    remove_folder();
    printf("%d passed, %d failed", passed, failed);
    if (skipped) printf(", %d skipped", skipped);
    putchar('\n');
    return failed != 0 || passed == 0;
}
