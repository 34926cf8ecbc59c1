/* file.c: files as a whole; see base.h. */
#define _DEFAULT_SOURCE
#define _FILE_OFFSET_BITS 64
#include "base.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BUFFER = 1 << 20 };

int is_folder(const char *path) { struct stat s; return stat(path, &s) == 0 && S_ISDIR(s.st_mode); }
int is_same_folder(const char *a, const char *b) {
    struct stat s, t;
    return stat(a, &s) == 0 && stat(b, &t) == 0 && S_ISDIR(s.st_mode) && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}
int is_file(const char *path)   { struct stat s; return stat(path, &s) == 0 && S_ISREG(s.st_mode); }
int folder_has(const char *folder, const char *name) {
    char *path = text_format("%s/%s", folder, name);
    const int has = is_there(path);
    free(path);
    return has;
}
int is_there(const char *path)  { struct stat s; return !lstat(path, &s) || (errno != ENOENT && errno != ENOTDIR); }

/* ---- opening --------------------------------------------------------------------------------- */

/* Nothing waits here: O_NONBLOCK, because a pipe without a writer would. */
static int open_at_once(const char *path, int how, Error *e) {
    const int fd = open(path, how | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    if (fd < 0) error_set(e, "%s: %s", path, errno == ENXIO ? "a pipe that nobody reads, or no file" : strerror(errno));
    return fd;
}
static int is_regular(const char *path, const struct stat *s, Error *e) {
    return S_ISREG(s->st_mode)
        || error_set(e, "%s: not a regular file but a %s", path,
                     S_ISDIR(s->st_mode) ? "folder" : S_ISFIFO(s->st_mode) ? "pipe (FIFO)"
                     : S_ISSOCK(s->st_mode) ? "socket" : "device");
}
/* Looks before it opens, as a device may act on that, and again at what it got. */
int file_open(const char *path, uint64_t *bytes, Error *e) {
    struct stat s;
    if (!stat(path, &s) && !is_regular(path, &s, e)) return -1;
    const int fd = open_at_once(path, O_RDONLY, e);
    if (fd < 0) return -1;
    if (fstat(fd, &s)) error_set(e, "%s: %s", path, strerror(errno));
    else if (is_regular(path, &s, e)) { *bytes = (uint64_t)s.st_size; return fd; }
    close(fd);
    return -1;
}
FILE *file_stream(const char *path, uint64_t *bytes, Error *e) {
    const int fd = file_open(path, bytes, e);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    if (fd >= 0 && !f) { error_set(e, "%s: %s", path, strerror(errno)); close(fd); }
    return f;
}
int file_open_to_write(const char *path, int how, Error *e) {
    const int fd = open_at_once(path, how | O_CREAT, e);
    if (fd >= 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);      /* a full pipe with a reader may wait */
    return fd;
}

void process_protect(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)  /* each gets the lowest number that is free */
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF
            && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            fail(EXIT_DISK, "descriptor %d is closed, and /dev/null cannot take its number: %s", fd, strerror(errno));
}

/* ---- reading --------------------------------------------------------------------------------- */

char *file_read(const char *path, size_t *bytes, Error *e) {
    uint64_t there;
    FILE *f = file_stream(path, &there, e);
    if (!f) return NULL;
    size_t size = (size_t)there;
    char *data = malloc(size + 1);
    if (!data) fail(EXIT_MEMORY, "out of host memory: %s has %zu bytes", path, size);
    if (fread(data, 1, size, f) != size) {
        error_set(e, "%s: cannot read all of its %zu bytes", path, size);
        free(data);
        data = NULL;
    }
    fclose(f);
    if (data) { data[size] = 0; *bytes = size; }
    return data;
}

size_t file_read_at(int fd, uint64_t at, void *data, size_t bytes) {
    size_t done = 0;
    for (ssize_t n = 1; n && done < bytes; done += n > 0 ? (size_t)n : 0) {
        const size_t left = bytes - done;
        n = pread(fd, (char *)data + done, left < 1 << 30 ? left : 1 << 30, (off_t)(at + done));
        if (n < 0 && errno != EINTR) break;
        if (!n) errno = 0;
    }
    return done;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct FileWriter {
    char *path;
    int fd, failed;
    uint64_t written;                   /* where the next byte of the buffer goes */
    size_t waiting;                     /* bytes in the buffer */
    unsigned char buffer[BUFFER];
};

static FileWriter *writer(const char *path, int how, Error *e) {
    const int fd = file_open_to_write(path, O_WRONLY | how, e);
    if (fd < 0) return NULL;
    FileWriter *w = mem_alloc(sizeof *w);
    w->path = text_format("%s", path);
    w->fd = fd;
    return w;
}
FileWriter *file_create(const char *path, Error *e) { return writer(path, O_TRUNC, e); }
FileWriter *file_join(const char *path, uint64_t bytes, Error *e) {
    FileWriter *w = writer(path, 0, e);
    if (!w || !ftruncate(w->fd, (off_t)bytes)) return w;
    error_set(e, "%s: %s", path, strerror(errno));
    file_abandon(w);
    return NULL;
}

static int write_all(FileWriter *w, const unsigned char *data, size_t bytes, Error *e) {
    while (bytes) {
        const ssize_t n = write(w->fd, data, bytes < 1 << 30 ? bytes : 1 << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            w->failed = 1;
            return error_set(e, "%s: after %llu bytes: %s", w->path, (unsigned long long)w->written,
                             n ? strerror(errno) : "nothing more could be written");
        }
        data += n;
        w->written += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 1;
}
static int flush(FileWriter *w, Error *e) {
    const size_t n = w->waiting;
    w->waiting = 0;
    return write_all(w, w->buffer, n, e);
}
static int usable(const FileWriter *w, Error *e) {
    return w->failed ? error_set(e, "%s: an earlier write failed", w->path) : 1;
}

int file_add(FileWriter *w, const void *data, size_t bytes, Error *e) {
    if (!usable(w, e) || (w->waiting + bytes > BUFFER && !flush(w, e))) return 0;
    if (bytes >= BUFFER) return write_all(w, data, bytes, e);
    if (bytes) memcpy(w->buffer + w->waiting, data, bytes);
    w->waiting += bytes;
    return 1;
}

int file_seek(FileWriter *w, uint64_t at, Error *e) {
    if (at == w->written + w->waiting) return 1;
    if (!usable(w, e) || !flush(w, e)) return 0;
    if (lseek(w->fd, (off_t)at, SEEK_SET) < 0) {
        w->failed = 1;
        return error_set(e, "%s: %s", w->path, strerror(errno));
    }
    w->written = at;
    return 1;
}

int file_patch(FileWriter *w, uint64_t at, const void *data, size_t bytes, Error *e) {
    if (!usable(w, e) || !flush(w, e)) return 0;
    if (at > w->written || bytes > w->written - at)
        return error_set(e, "%s: only %llu bytes to patch", w->path, (unsigned long long)w->written);
    const uint64_t end = w->written;
    return file_seek(w, at, e) && write_all(w, data, bytes, e) && file_seek(w, end, e);
}

/* macOS syncs only to the disk's cache unless asked; some file systems cannot do more. */
static int sync_fd(int fd) {
#ifdef F_FULLFSYNC
    if (!fcntl(fd, F_FULLFSYNC)) return 0;
#endif
    return fsync(fd);
}

int file_finish(FileWriter *w, Error *e) {
    int ok = usable(w, e) && flush(w, e);
    while (ok && sync_fd(w->fd)) if (errno != EINTR) ok = error_set(e, "%s: fsync: %s", w->path, strerror(errno));
    if (ok) {
        const int fd = w->fd;
        w->fd = -1;                                         /* closed even if close() fails */
        if (close(fd) && errno != EINTR) ok = error_set(e, "%s: close: %s", w->path, strerror(errno));
    }
    file_abandon(w);
    return ok;
}

void file_abandon(FileWriter *w) {
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    free_each(w->path, w);
}

int file_put(const char *path, const void *data, size_t bytes, Error *e) {
    FileWriter *w = file_create(path, e);
    if (w && file_add(w, data, bytes, e)) return file_finish(w, e);
    file_abandon(w);
    return 0;
}

static int by_file_offset(const void *a, const void *b) {
    const FilePart *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}
int file_sum(FilePart *parts, size_t count, FileSum *sum) {
    *sum = (FileSum){ 0 };
    qsort(parts, count, sizeof *parts, by_file_offset);
    for (size_t i = 0; i < count; i++) {
        if (parts[i].at != sum->bytes) return 0;
        sum->crc = crc32c_combine(sum->crc, parts[i].sum.crc, parts[i].sum.bytes);
        sum->bytes += parts[i].sum.bytes;
    }
    return 1;
}

/* ---- publishing ------------------------------------------------------------------------------ */

/* Some network file systems cannot sync a folder, and say so. */
int folder_sync(const char *path, Error *e) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int ok = fd >= 0;
    while (ok && sync_fd(fd)) {
        if (errno == EINTR) continue;
        if (errno == EINVAL || errno == ENOTSUP || errno == ENOSYS) break;
        ok = 0;
    }
    if (!ok) error_set(e, "%s: fsync of the folder: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return ok;
}

char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? text_format("%.*s", slash == path ? 1 : (int)(slash - path), path) : text_format(".");
}
int file_publish(const char *temporary, const char *path, Error *e) {
    Error why;
    if (rename(temporary, path)) return error_set(e, "%s: %s", path, strerror(errno));
    char *folder = folder_of(path);
    const int ok = folder_sync(folder, &why);
    if (!ok) error_set(e, "%s is in place, but may not survive a power loss: %.800s", path, why.text);
    free(folder);
    return ok;
}

int file_replace(const char *path, FileBody body, const void *with, Error *e) {
    char *temporary = text_format("%s.tmp.%ld", path, (long)getpid());
    const int ok = body(temporary, with, e) && file_publish(temporary, path, e);
    if (!ok) unlink(temporary);
    free(temporary);
    return ok;
}

/* "model.safetensors.tmp": of versions before file_replace. */
int file_is_temporary(const char *name) {
    const char *process = strstr(name, ".tmp.");
    return (process && process[5] && !process[5 + strspn(process + 5, "0123456789")])
        || !strcmp(name, "model.safetensors.tmp");
}

typedef struct { const void *data; size_t bytes; } Contents;
static int put_contents(const char *temporary, const void *with, Error *e) {
    const Contents *c = with;
    return file_put(temporary, c->data, c->bytes, e);
}
int file_write(const char *path, const void *data, size_t bytes, Error *e) {
    return file_replace(path, put_contents, &(Contents){ data, bytes }, e);
}

static int copy(const char *from, const char *to, Error *e) {
    uint64_t there;
    FILE *in = file_stream(from, &there, e);
    if (!in) return 0;
    FileWriter *w = file_create(to, e);
    char *buffer = mem_alloc(BUFFER);
    int ok = w != NULL;
    for (size_t n; ok && (n = fread(buffer, 1, BUFFER, in)); ) ok = file_add(w, buffer, n, e);
    if (ok && ferror(in)) ok = error_set(e, "%s: cannot be read", from);
    fclose(in);
    free(buffer);
    if (ok) return file_finish(w, e);
    file_abandon(w);
    return 0;
}
static int link_or_copy(const char *temporary, const void *from, Error *e) {
    unlink(temporary);
    if (!link(from, temporary)) return 1;
    if (errno == EPERM || errno == ENOTSUP || errno == EMLINK || errno == ENOSYS || errno == EXDEV)
        return copy(from, temporary, e);
    return error_set(e, "%s: %s", temporary, strerror(errno));
}
int file_link(const char *from, const char *path, Error *e) { return file_replace(path, link_or_copy, from, e); }

double file_space(const char *path) {
    struct statvfs s;
    char *part = text_format("%s", path);
    size_t n = strlen(part);
    int there;
    while (!(there = !statvfs(n ? part : *path == '/' ? "/" : ".", &s)) && n) {
        do part[--n] = 0; while (n && part[n - 1] != '/');
    }
    free(part);
    return there ? (double)s.f_bavail * (double)s.f_frsize : -1;
}
int folder_make(const char *path, Error *e) {
    char *part = text_format("%s", path);
    for (char *c = part + 1; ; c++) {
        if (*c && *c != '/') continue;
        char kept = *c;
        *c = 0;
        if (mkdir(part, 0777) && !(errno == EEXIST && is_folder(part))) {
            error_set(e, "%s: %s", part, errno == EEXIST ? "exists and is not a folder" : strerror(errno));
            free(part);
            return 0;
        }
        if (!(*c = kept)) break;
    }
    free(part);
    return 1;
}
