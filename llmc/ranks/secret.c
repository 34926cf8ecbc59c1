/* secret.c: see secret.h. */
#define _DEFAULT_SOURCE
#include "secret.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RANDOM = 32, TEXT = 2 * RANDOM };    /* random bytes of a file, and their hexadecimal digits */
static const char remedy[] = "export MOE_SECRET=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \\n')";

int random_bytes(void *data, size_t bytes) {
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    char *at = data;
    while (fd >= 0 && bytes) {
        const ssize_t n = read(fd, at, bytes);
        if (n <= 0 && errno != EINTR) break;
        if (n > 0) { at += n; bytes -= (size_t)n; }
    }
    if (fd >= 0) close(fd);
    return fd >= 0 && !bytes;
}

char *secret_path(const char *folder) {
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    return text_format("%.*s.secret", (int)n, folder);
}

/* The file's text, or NULL. *missing: there is none yet. Else e says why it cannot be trusted. */
static char *read_file(const char *path, int *missing, Error *e) {
    struct stat s;
    char text[TEXT + 2] = "";
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *missing = fd < 0 && errno == ENOENT;
    if (fd < 0) {
        const int why = errno, mistake = why == ELOOP || why == EACCES;
        error_exit(e, mistake ? 0 : EXIT_DISK, "%s: %s", path, why == ELOOP ? "is a link" : strerror(why));
        return NULL;
    }
    const ssize_t n = fstat(fd, &s) || !S_ISREG(s.st_mode) ? -1 : read(fd, text, sizeof text);
    close(fd);
    if (n >= 0 && s.st_uid != geteuid())
        error_set(e, "%s belongs to user %ld, not to you: set MOE_SECRET, or use another folder (-o)", path,
                  (long)s.st_uid);
    else if (n >= 0 && s.st_mode & 077)
        error_set(e, "%s has mode %o, so others may know it: remove it, and process 0 makes a new one; or "
                  "set MOE_SECRET", path, (unsigned)s.st_mode & 07777);
    else if (n != TEXT + 1 || strspn(text, "0123456789abcdef") != TEXT || text[TEXT] != '\n')
        error_set(e, "%s is not a secret that this program wrote: remove it, and process 0 makes a new one", path);
    else return text_format("%.*s", TEXT, text);
    return NULL;
}

/* Complete under a temporary name first, and never in place of a file that is there by now. */
static int make_file(const char *path, Error *e) {
    unsigned char random[RANDOM + 8];
    uint64_t unique;
    char text[TEXT + 2], *temporary, *slash;
    if (!random_bytes(random, sizeof random)) return error_exit(e, EXIT_DISK, "/dev/urandom: %s", strerror(errno));
    for (int i = 0; i < RANDOM; i++) snprintf(text + 2 * i, 3, "%02x", random[i]);
    strcpy(text + TEXT, "\n");
    temporary = text_format("%s", path);                    /* the folder around it */
    if ((slash = strrchr(temporary, '/')) && slash != temporary) {
        *slash = 0;
        if (!folder_make(temporary, e)) { free(temporary); e->code = EXIT_DISK; return 0; }
    }
    free(temporary);
    memcpy(&unique, random + RANDOM, sizeof unique);
    temporary = text_format("%s.tmp.%016llx", path, (unsigned long long)unique);
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int ok = fd >= 0 && write(fd, text, TEXT + 1) == TEXT + 1 && !fsync(fd), why = errno;
    if (fd >= 0 && close(fd) && ok) { ok = 0; why = errno; }
    if (ok && link(temporary, path) && errno != EEXIST && rename(temporary, path)) { ok = 0; why = errno; }
    if (fd >= 0) unlink(temporary);
    if (!ok) error_exit(e, EXIT_DISK, "%s: %s (with MOE_SECRET set, this file is not needed)", path, strerror(why));
    free(temporary);
    return ok;
}
/* The file, which process 0 makes and the others wait for. */
static char *file_find(const Launch *l, const char *path, double seconds, Error *e) {
    const double until = now() + seconds;
    int missing;
    char *secret = read_file(path, &missing, e);
    if (missing && !l->process) {
        if (!make_file(path, e)) return NULL;
        secret = read_file(path, &missing, e);
    }
    while (!secret && missing && now() < until) {
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
        secret = read_file(path, &missing, e);
    }
    if (!secret && missing)
        error_exit(e, EXIT_PEER, "process 0 has not written %s in %.0f s: it has not started, was started in another "
                   "folder or with another -o, or runs on another machine", path, seconds);
    return secret;
}

int secret_check(const Launch *l, const char *(*get)(const char *name), Error *e) {
    const char *given = get("MOE_SECRET");
    if (l->processes == 1 || (given && strlen(given) >= LEAST_SECRET)) return 1;
    if (given && *given)
        return error_set(e, "MOE_SECRET has %zu characters; it needs at least %d that nobody can guess: %s",
                         strlen(given), LEAST_SECRET, remedy);
    return launch_is_local(l)
        || error_set(e, "processes on several machines need a secret, by which they know each other: set MOE_SECRET to "
                     "the same text for all of them, for example: %s", remedy);
}

char *secret_find(const Launch *l, const char *folder, const char *(*get)(const char *name), double seconds, Error *e) {
    const char *given = get("MOE_SECRET");
    if (!secret_check(l, get, e)) return NULL;
    if (given && *given) return text_format("%s", given);
    char *path = secret_path(folder), *secret = file_find(l, path, seconds, e);
    free(path);
    return secret;
}
