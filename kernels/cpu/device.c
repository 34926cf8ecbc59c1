/* device.c: memory, and the device table. */
#define _DEFAULT_SOURCE
#include "impl.h"
#include "kernels/compound.h"
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

/* ---- memory: that of the host ---------------------------------------------------------------- */

static const char *open_device(int which) { (void)which; return NULL; }
static int count(void) { return 1; }
/* Large blocks ask for huge pages: streaming weights then takes 1/512 of the TLB entries. */
static void *alloc(size_t bytes) {
    const size_t align = bytes < HUGE_PAGE ? 256 : HUGE_PAGE;
    void *p = bytes < SIZE_MAX - 2 * align ? aligned_alloc(align, (bytes + align) / align * align) : NULL;
#if defined(MADV_HUGEPAGE)
    if (p && align == HUGE_PAGE) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    /* the first to touch a page waits while the system clears it: all threads do */
    #pragma omp parallel for if (bytes > 16 * HUGE_PAGE)
    for (size_t at = 0; at < (p ? bytes : 0); at += HUGE_PAGE)
        memset((char *)p + at, 0, bytes - at < HUGE_PAGE ? bytes - at : HUGE_PAGE);
    return p;
}
static void release(void *p) { free(p); }
/* The number after `name` in a file of such lines; name "": the first of the file. -1: none. */
static double number_in(const char *path, const char *name) {
    char line[256];
    double x = -1;
    FILE *f = fopen(path, "r");
    while (f && x < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)) && sscanf(line + strlen(name), "%lf", &x) != 1) x = -1;
    if (f) fclose(f);
    return x;
}
/* Linux reports what is free, its caches of files included; a container's limit may be lower. */
static size_t memory(void) {
    double bytes = 1024 * number_in("/proc/meminfo", "MemAvailable:");
    const double most = number_in("/sys/fs/cgroup/memory.max", ""),
        used = number_in("/sys/fs/cgroup/memory.current", ""),
        cached = number_in("/sys/fs/cgroup/memory.stat", "file ");
    const double left = most < 0 ? -1 : used > most ? 0 : most - used + (cached > 0 ? cached : 0);
    if (left >= 0 && (bytes < 0 || left < bytes)) bytes = left;
    if (bytes > 0) return (size_t)bytes;
#if defined(_SC_AVPHYS_PAGES)
    long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : 0;
#else
    return 0;
#endif
}
static void copy(void *dst, const void *src, size_t bytes) { if (bytes) memcpy(dst, src, bytes); }

static _Thread_local Waits waited;          /* a CPU waits for nothing; calls that would wait are counted for tests */
static Waits waits(void) { return waited; }
static void count_sync(void) { waited.syncs++; }
static void download(void *host, const void *src, size_t bytes) { waited.reads++, copy(host, src, bytes); }
static _Thread_local void *posted[2];
static void post(int slot, const void *src, size_t bytes) {
    free(posted[slot]);
    copy(posted[slot] = scratch(bytes), src, bytes);
}
static void collect(void *host, int slot, size_t bytes) {
    waited.reads++;
    copy(host, posted[slot], bytes);
}
static int host_lock(const void *near, void *host, size_t bytes) { (void)near; (void)host; (void)bytes; return 1; }
static void host_unlock(void *host) { (void)host; }
static void copied(int host_waits) { (void)host_waits; }        /* copy_out has copied */
static void zero(void *dst, size_t bytes) { if (bytes) memset(dst, 0, bytes); }
static void from_double(floatX *dst, const double *host, size_t n) {
    #pragma omp parallel for if (n > 10000)
    for (size_t i = 0; i < n; i++) dst[i] = X((real)host[i]);
}
static void to_double(double *host, const floatX *src, size_t n) {
    waited.reads++;
    for (size_t i = 0; i < n; i++) host[i] = (double)R(src[i]);
}
static void reals_from_double(real *dst, const double *host, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = (real)host[i];
}
static void reals_to_double(double *host, const real *src, size_t n) {
    waited.reads++;
    for (size_t i = 0; i < n; i++) host[i] = (double)src[i];
}

/* The files that fill the rest of the table. */
#define PARTS(EACH) \
    EACH(embed) EACH(norm) EACH(rope) EACH(heads) EACH(columns) EACH(bias) EACH(dropout) EACH(matmul) EACH(route) \
    EACH(round) EACH(expert) EACH(attention) EACH(loss) EACH(sum) EACH(optimizer) EACH(muon) EACH(sample) EACH(fp8) \
    EACH(loopback) EACH(tables)
#define DECLARE(part) void DEVICE(part)(Device *d);
#define FILL(part)    DEVICE(part)(d);
PARTS(DECLARE)

PART(device) {
    *d = (Device){
        .name = DEVICE_NAME, .dtype = DEVICE_DTYPE, .floatX_size = sizeof(floatX), .real_size = sizeof(real),
        .open = open_device, .count = count, .alloc = alloc, .release = release, .memory = memory,
        .upload = copy, .download = download, .copy = copy, .zero = zero, .sync = count_sync, .waits = waits,
        .post = post, .collect = collect, .host_lock = host_lock, .host_unlock = host_unlock, .copy_out = copy,
        .copy_in = copy, .copied = copied, .from_double = from_double, .to_double = to_double,
        .reals_from_double = reals_from_double, .reals_to_double = reals_to_double,
        .expert_up_forward = compound_expert_up_forward, .expert_down_backward = compound_expert_down_backward,
        .add_norm_forward = compound_add_norm_forward, .add_norm_backward = compound_add_norm_backward,
    };
    PARTS(FILL)
}
