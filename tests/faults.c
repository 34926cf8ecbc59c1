/* faults.c: makes one call of a program fail; tests/faults.sh builds it as a library and preloads
 * it (glibc, Linux).
 *
 *   FAULT=CALL:N:WHAT  the N-th CALL of the program itself (not of libraries inside one) does WHAT.
 *                      CALL: write, fsync, rename, link, truncate, open, mkdir, close, opendir,
 *                      flush, malloc; or any: all of them but malloc.
 *                      WHAT: the name of an errno; short: write only half; kill, killed: SIGKILL
 *                      before or after the call; wait: until the file FAULT_GO exists.
 *                      N+: the N-th and all later calls
 *   FAULT_HIT=FILE     FILE is created when the fault happens
 *   FAULT_MEMORY=FILE  FILE is read in place of /proc/meminfo
 *   FAULT_TRACE=FILE   FILE receives the program's create, write, fsync, link and rename calls,
 *                      with their paths
 *
 * As a program:   faults flip FILE BIT    faults cut FILE BYTES    faults size FILE */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NO = 0, ERROR, SHORT, KILL, KILLED, WAIT };
static struct { char call[16]; long n; int sticky, what, error; } fault;
static atomic_long counted;
static atomic_int happened;
static uintptr_t begin, end;            /* code of the program */

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

static int main_program(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            end = begin + info->dlpi_phdr[i].p_memsz;
        }
    return 1;                           /* the first object is the program */
}

__attribute__((constructor)) static void read_environment(void) {
    static const struct { const char *name; int what, error; } kinds[] = {
        { "EIO", ERROR, EIO }, { "ENOSPC", ERROR, ENOSPC }, { "ENOMEM", ERROR, ENOMEM }, { "EMFILE", ERROR, EMFILE },
        { "EACCES", ERROR, EACCES }, { "EPERM", ERROR, EPERM }, { "EINTR", ERROR, EINTR },
        { "short", SHORT, 0 }, { "kill", KILL, 0 }, { "killed", KILLED, 0 }, { "wait", WAIT, 0 },
    };
    dl_iterate_phdr(main_program, NULL);
    const char *text = getenv("FAULT"), *n = text ? strchr(text, ':') : NULL, *what = n ? strchr(n + 1, ':') : NULL;
    if (!what || (size_t)(n - text) >= sizeof fault.call) return;
    memcpy(fault.call, text, (size_t)(n - text));
    fault.sticky = what[-1] == '+';
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(what + 1, kinds[i].name)) { fault.what = kinds[i].what; fault.error = kinds[i].error; }
    fault.n = strtol(n + 1, NULL, 10);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Counts a call and returns the fault that it gets, or NO. KILL does not return. */
static int hit(const char *call, void *from) {
    if (!fault.n || (uintptr_t)from < begin || (uintptr_t)from >= end) return NO;
    if (strcmp(fault.call, call) && (strcmp(fault.call, "any") || !strcmp(call, "malloc"))) return NO;
    const long i = atomic_fetch_add(&counted, 1) + 1;
    if (i != fault.n && !(fault.sticky && i > fault.n)) return NO;
    if (!atomic_exchange(&happened, 1)) {
        const char *path = getenv("FAULT_HIT");
        const long fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT, 0666) : -1;
        if (fd >= 0) syscall(SYS_close, fd);
    }
    if (fault.what == KILL) die();
    while (fault.what == WAIT && access(getenv("FAULT_GO"), F_OK)) usleep(10000);
    errno = fault.error;
    return fault.what;
}
static void after(int what) { if (what == KILLED) die(); }

/* Writes a line of FAULT_TRACE about the open file fd, or, if fd < 0, about one or two paths. */
static void trace(void *from, const char *call, int fd, const char *path, const char *other) {
    static const char *file;
    static int out = -2;
    char link[64], at[3000] = "", here[1000] = "", line[8000];
    if (out == -2) out = (file = getenv("FAULT_TRACE"))
        ? (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (out < 0 || (uintptr_t)from < begin || (uintptr_t)from >= end) return;
    const int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (fd >= 0 && readlink(link, at, sizeof at - 1) < 0) return;
    if (!getcwd(here, sizeof here)) return;
    const int n = fd >= 0 ? snprintf(line, sizeof line, "%s %s\n", call, at)
                : snprintf(line, sizeof line, "%s %s%s%s%s%s%s%s\n", call, *path == '/' ? "" : here,
                           *path == '/' ? "" : "/", path, other ? " " : "", !other || *other == '/' ? "" : here,
                           !other || *other == '/' ? "" : "/", other ? other : "");
    syscall(SYS_write, out, line, n);
    errno = kept;
}

#define FROM __builtin_return_address(0)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- the calls ------------------------------------------------------------------------------- */

void *malloc(size_t n)            { return hit("malloc", FROM) == ERROR ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m)  { return hit("malloc", FROM) == ERROR ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n)  { return hit("malloc", FROM) == ERROR ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return hit("malloc", FROM) == ERROR ? NULL : __libc_memalign(a, n); }

static ssize_t any_write(int what, int fd, const void *data, size_t n, off_t at) {
    if (what == ERROR) return -1;
    if (what == SHORT && n > 1) n /= 2;
    const ssize_t done = at < 0 ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, at);
    after(what);
    return done;
}
#define WRITE(name, parameters, at) ssize_t name parameters { \
    trace(FROM, "write", fd, NULL, NULL); \
    return any_write(hit("write", FROM), fd, data, n, at); \
}
WRITE(write, (int fd, const void *data, size_t n), -1)
WRITE(pwrite, (int fd, const void *data, size_t n, off_t at), at)
WRITE(pwrite64, (int fd, const void *data, size_t n, off64_t at), at)

#define CALL(name, result) const int what = hit(name, FROM); if (what == ERROR) return -1; \
    const int r = (int)(result); after(what); return r
int fsync(int fd)                                   {
    trace(FROM, "fsync", fd, NULL, NULL);
    CALL("fsync", syscall(SYS_fsync, fd));
}
int ftruncate(int fd, off_t n)                      { CALL("truncate", syscall(SYS_ftruncate, fd, n)); }
int ftruncate64(int fd, off64_t n)                  { CALL("truncate", syscall(SYS_ftruncate, fd, n)); }
int rename(const char *from, const char *to)        {
    trace(FROM, "rename", -1, from, to);
    CALL("rename", syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int link(const char *from, const char *to)          {
    trace(FROM, "link", -1, from, to);
    CALL("link", syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int mkdir(const char *path, mode_t mode)            { CALL("mkdir", syscall(SYS_mkdirat, AT_FDCWD, path, mode)); }
#define OPEN(open) int open(const char *path, int flags, ...) { \
    va_list args; \
    va_start(args, flags); \
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0; \
    va_end(args); \
    if (flags & O_CREAT) trace(FROM, "create", -1, path, NULL); \
    CALL("open", syscall(SYS_openat, AT_FDCWD, path, flags, mode)); \
}
OPEN(open)
OPEN(open64)
int close(int fd)                                   {         /* closed, whatever it returns */
    const int what = hit("close", FROM), r = (int)syscall(SYS_close, fd);
    after(what);
    if (what == ERROR) errno = fault.error;
    return what == ERROR ? -1 : r;
}
FILE *fopen(const char *path, const char *mode)     {
    const int what = hit("open", FROM);
    const char *memory = strcmp(path, "/proc/meminfo") ? NULL : getenv("FAULT_MEMORY");
    FILE *f = what == ERROR ? NULL : REAL(fopen)(memory ? memory : path, mode);
    after(what);
    return f;
}
FILE *fopen64(const char *path, const char *mode)   {
    const int what = hit("open", FROM);
    FILE *f = what == ERROR ? NULL : REAL(fopen64)(path, mode);
    after(what);
    return f;
}
DIR *opendir(const char *path)                      {
    const int what = hit("opendir", FROM);
    DIR *d = what == ERROR ? NULL : REAL(opendir)(path);
    after(what);
    return d;
}
int fflush(FILE *f)                                 {
    const int what = f && f != stderr ? hit("flush", FROM) : NO, r = what == ERROR ? EOF : REAL(fflush)(f);
    after(what);
    if (what == ERROR) errno = fault.error;
    return r;
}

/* ---- as a program ---------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    struct stat s;
    unsigned char byte;
    const int fd = argc > 2 ? (int)syscall(SYS_openat, AT_FDCWD, argv[2], O_RDWR) : -1;
    const long x = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    if (fd < 0 || fstat(fd, &s)) return 1;
    if (!strcmp(argv[1], "size")) return printf("%lld\n", (long long)s.st_size) < 0;
    if (!strcmp(argv[1], "cut")) return ftruncate(fd, x) != 0;
    if (strcmp(argv[1], "flip") || x / 8 >= s.st_size || pread(fd, &byte, 1, x / 8) != 1) return 1;
    byte ^= (unsigned char)(1 << x % 8);
    return pwrite64(fd, &byte, 1, x / 8) != 1;
}
