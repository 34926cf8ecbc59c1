/* fuzz.c: see fuzz.h. The linker sends fail, exit, warn, malloc ... here (--wrap). */
#define _GNU_SOURCE
#include "fuzz.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
const char *__asan_default_options(void);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
_Noreturn void __wrap_fail(int code, const char *format, ...) PRINTF(2, 3);
_Noreturn void __wrap_exit(int code);
_Noreturn void __real_exit(int code);
void __wrap_warn(const char *format, ...) PRINTF(1, 2);
void *__wrap_malloc(size_t bytes), *__real_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes), *__real_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes), *__real_realloc(void *p, size_t bytes);
void __wrap_free(void *p), __real_free(void *p);

static jmp_buf begin;
static int active;                              /* 1: an input is being processed */
static int leaves_memory;
static double slowest;                          /* seconds of one input */

/* Leaks are found here; a small store of freed memory fits into the caches. */
const char *__asan_default_options(void) { return "detect_leaks=0:quarantine_size_mb=8"; }

/* ---- memory: the blocks of this input, in a hash table without gaps -------------------------- */

typedef struct { void *at; size_t bytes; } Allocated;
static Allocated *table;
static size_t mask, count, bytes_now, most_bytes, limit;

static size_t slot_of(const void *p) { return (size_t)((uintptr_t)p >> 4) * 0x9E3779B97F4A7C15u >> 20 & mask; }
static void note(void *p, size_t bytes) {
    if (2 * count >= mask) {
        Allocated *old = table;
        const size_t had = old ? mask + 1 : 0;
        mask = had ? 2 * mask + 1 : 1023;
        table = __real_calloc(mask + 1, sizeof *table);
        count = bytes_now = 0;
        for (size_t i = 0; i < had; i++) if (old[i].at) note(old[i].at, old[i].bytes);
        __real_free(old);
    }
    size_t i = slot_of(p);
    while (table[i].at) i = (i + 1) & mask;
    table[i] = (Allocated){ p, bytes };
    count++;
    bytes_now += bytes;
    if (bytes_now > most_bytes) most_bytes = bytes_now;
}
/* 0: it is not of this input. */
static int forget(const void *p) {
    size_t i = slot_of(p), hole;
    if (!count) return 0;
    for (; table[i].at != p; i = (i + 1) & mask) if (!table[i].at) return 0;
    count--;
    bytes_now -= table[i].bytes;
    for (hole = i, i = (i + 1) & mask; table[i].at; i = (i + 1) & mask)
        if (((i - slot_of(table[i].at)) & mask) >= ((i - hole) & mask)) { table[hole] = table[i]; hole = i; }
    table[hole].at = NULL;
    return 1;
}
static void within_limit(size_t n, size_t bytes) {
    size_t all;
    if (!active || (!__builtin_mul_overflow(n, bytes, &all) && all <= limit && bytes_now + all <= limit)) return;
    active = 0;
    fprintf(stderr, "fuzz: %zu times %zu more bytes, besides %zu: more than %zu in all\n", n, bytes, bytes_now, limit);
    abort();
}
void *__wrap_malloc(size_t bytes) {
    within_limit(1, bytes);
    void *p = __real_malloc(bytes);
    if (p && active) note(p, bytes);
    return p;
}
void *__wrap_calloc(size_t n, size_t bytes) {
    within_limit(n, bytes);
    void *p = __real_calloc(n, bytes);
    if (p && active) note(p, n * bytes);
    return p;
}
void *__wrap_realloc(void *p, size_t bytes) {
    within_limit(1, bytes);
    const int ours = !p || (active && forget(p));
    p = __real_realloc(p, bytes);
    if (p && active && ours) note(p, bytes);
    return p;
}
void __wrap_free(void *p) {
    if (p && active) forget(p);
    __real_free(p);
}

/* ---- one input ------------------------------------------------------------------------------- */

_Noreturn void fuzz_fault(const char *file, int line, const char *what) {
    active = 0;
    fprintf(stderr, "fuzz: %s:%d: this does not hold: %s\n", file, line, what);
    abort();
}
static void check_message(const char *format, va_list args) {
    char text[4096];
    if (vsnprintf(text, sizeof text, format, args) < 0) fuzz_fault(__FILE__, __LINE__, format);
}
_Noreturn void __wrap_fail(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    check_message(format, args);
    va_end(args);
    if (!active) { fprintf(stderr, "fuzz: outside of an input the program ends with %d: %s\n", code, format); abort(); }
    longjmp(begin, 1);
}
_Noreturn void __wrap_exit(int code) {
    if (!active) __real_exit(code);
    longjmp(begin, 1);
}
void __wrap_warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    check_message(format, args);
    va_end(args);
}

__attribute__((weak)) void fuzz_start(void) {}
void fuzz_may_leave_memory(void) { leaves_memory = 1; }

static int lowest_free(void) {
    const int fd = dup(0);
    close(fd);
    return fd;
}
static int first_free;

/* After a long jump: what the input had. */
static void clean_up(void) {
    for (int fd = first_free; fd < first_free + 16; fd++) close(fd);
    for (size_t i = 0; count && i <= mask; ) {
        void *p = table[i].at;
        if (p) { forget(p); __real_free(p); } else i++;
    }
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);       /* other work on the machine does not count */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const double start = seconds();
    limit = FUZZ_BYTES + 16 * size;
    leaves_memory = 0;
    first_free = lowest_free();
    if (!setjmp(begin)) {
        active = 1;
        fuzz_one(data, size);
        active = 0;
        if (leaves_memory) clean_up();
        if (count || lowest_free() != first_free)
            fprintf(stderr, "fuzz: %zu blocks of memory with %zu bytes were not freed, %d files not closed\n", count,
                    bytes_now, lowest_free() - first_free), abort();
    } else {
        active = 0;
        clean_up();
    }
    const double took = seconds() - start;
    if (took > slowest) slowest = took;
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static char folder[64];

static void at_end(void) {
    char command[128];
    fprintf(stderr, "fuzz: slowest input %.1f ms, at most %.1f MB allocated\n", 1e3 * slowest,
            (double)most_bytes / 1e6);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) fprintf(stderr, "fuzz: %s could not be removed\n", folder);
}
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv) {
    struct stat s;
    const char *given = getenv("FUZZ_FOLDER"), *memory = "/dev/shm";
    (void)argc;
    (void)argv;
    snprintf(folder, sizeof folder, "%.40s/moe-fuzz-XXXXXX", given ? given : !stat(memory, &s) ? memory : "/tmp");
    if (!mkdtemp(folder)) { perror(folder); __real_exit(2); }
    atexit(at_end);
    fuzz_start();
    return 0;
}
const char *fuzz_folder(void) { return folder; }

const char *fuzz_file(const char *name, const void *data, size_t bytes) {
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof *paths, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes || close(fd))
        fuzz_fault(path, errno, "a file can be written");
    return path;
}
void fuzz_remove(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

/* ---- parts of an input ----------------------------------------------------------------------- */

Part fuzz_part(Part *rest) {
    const char *end = rest->bytes ? memmem(rest->at, rest->bytes, PART_END, sizeof PART_END - 1) : NULL;
    Part part = { rest->at, end ? (size_t)(end - rest->at) : rest->bytes };
    const size_t taken = end ? part.bytes + sizeof PART_END - 1 : part.bytes;
    *rest = (Part){ rest->at + taken, rest->bytes - taken };
    return part;
}
char *fuzz_text(Part part) {
    char *text = malloc(part.bytes + 1);
    if (part.bytes) memcpy(text, part.at, part.bytes);
    text[part.bytes] = 0;
    return text;
}
unsigned fuzz_choice(Part *rest, unsigned n) {
    if (!rest->bytes) return 0;
    const unsigned choice = (unsigned char)*rest->at % n;
    *rest = (Part){ rest->at + 1, rest->bytes - 1 };
    return choice;
}
char *fuzz_tensors(Part header, Part data, size_t *bytes) {
    char *file = malloc(*bytes = 8 + header.bytes + data.bytes);
    for (int i = 0; i < 8; i++) file[i] = (char)((uint64_t)header.bytes >> 8 * i);
    if (header.bytes) memcpy(file + 8, header.at, header.bytes);
    if (data.bytes) memcpy(file + 8 + header.bytes, data.at, data.bytes);
    return file;
}

/* By bytes, not by utf8_decode, which is under test: what begins and follows. */
void fuzz_check_shown(const char *text, size_t bytes) {
    const unsigned char *s = (const unsigned char *)text;
    for (size_t at = 0, follow = 0; at <= bytes; at++) {
        const unsigned c = at < bytes ? s[at] : ' ';
        if (follow ? (c & 0xC0) != 0x80 : (c & 0xC0) == 0x80 || c >= 0xF8) fuzz_fault(__FILE__, __LINE__, "UTF-8");
        if (c == 0x7F || (c < 32 && c != '\n' && c != '\t')) fuzz_fault(__FILE__, __LINE__, "no control character");
        if (c == 0xC2 && at + 1 < bytes && s[at + 1] < 0xA0) fuzz_fault(__FILE__, __LINE__, "none of U+0080 to U+009F");
        if (follow) follow--;
        else follow = c < 0xC0 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
    }
}

/* ---- mutations of JSON --------------------------------------------------------------------------
 * A byte that is changed makes most JSON no JSON. So values are replaced by others of the text, or
 * by ones that are often forgotten; doubled, removed, or changed within. The text is scanned, not
 * parsed: it may already be damaged, or have other parts around it. */

__attribute__((weak)) const int fuzz_is_json = 0;

static size_t string_end(const char *s, size_t at, size_t n) {
    for (at++; at < n && s[at] != '"'; at++) at += s[at] == '\\';
    return at < n ? at + 1 : n;
}
/* After the value that begins at `at`. */
static size_t value_end(const char *s, size_t at, size_t n) {
    int depth = 0;
    do {
        if (s[at] == '"') { at = string_end(s, at, n); continue; }
        if (s[at] == '{' || s[at] == '[') depth++;
        else if (s[at] == '}' || s[at] == ']') depth--;
        else if (!depth) { while (at < n && !strchr(",:]} \n", s[at])) at++; return at; }
        at++;
    } while (at < n && depth > 0);
    return at;
}
/* The start of a value (or key), picked by `pick`; n: there is none. */
static size_t value_begin(const char *s, size_t n, unsigned pick) {
    size_t found = n, from = n ? pick % n : 0;
    for (size_t at = 0; at < n; at = s[at] == '"' ? string_end(s, at, n) : at + 1)
        if (strchr("\"{[-0123456789tfn", s[at]) && s[at] && (!at || strchr(",:[{ \n", s[at - 1]))) {
            found = at;
            if (at >= from) break;
        }
    return found;
}
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
    static const char *const pool[] = { "0", "-1", "1", "2147483647", "2147483648", "9223372036854775807",
                                        "-9223372036854775808", "1e308", "-0.5",
                                        "1e-400", "null", "true", "false", "\"\"", "[]", "{}", "[1]", "[null]",
                                        "{\"a\":1}", "\"\\u0000\"", "\"\\u001b\"" };
    char *s = (char *)data;
    const unsigned how = seed % 10, other = seed / 10 * 2654435761u;
    const size_t at = fuzz_is_json && how < 5 ? value_begin(s, size, seed / 16) : size;
    if (at == size) return LLVMFuzzerMutate(data, size, most);
    size_t end = value_end(s, at, size), new = 0, keep = end - at;
    char *text = malloc(2 * size + 64);
    if (how == 0) new = (size_t)sprintf(text, "%s", pool[other % (sizeof pool / sizeof *pool)]);
    else if (how == 1) {                                /* another value of the text */
        const size_t from = value_begin(s, size, other), to = from < size ? value_end(s, from, size) : from;
        memcpy(text, s + from, new = to - from);
    } else if (how == 2) {                              /* once more, after a comma */
        memcpy(text, s + at, keep);
        text[keep] = ',';
        memcpy(text + keep + 1, s + at, keep);
        new = 2 * keep + 1;
    } else if (how == 3) {                              /* without it and the comma behind it, or before it */
        if (end < size && s[end] == ',') end++;
        keep = end - at;
    } else {
        memcpy(text, s + at, keep);
        new = LLVMFuzzerMutate((uint8_t *)text, keep, keep + 60);
    }
    if (size - keep + new <= most) {
        memmove(s + at + new, s + end, size - end);
        memcpy(s + at, text, new);
        size = size - keep + new;
    }
    free(text);
    return size;
}
