/* base.h: used by every file of llmc/ and both programs: errors, memory, time, whole files, checksums.
 *
 * Errors. A library function reports a problem by returning 0 or NULL and filling an Error. The caller that knows what
 * the user asked for calls fail(), with a message that says what was found, what was expected and what to do. */
#ifndef BASE_H
#define BASE_H
#include <stddef.h>
#include <stdint.h>

enum {                                  /* exit codes of both programs */
    EXIT_DONE = 0, EXIT_USAGE = 2, EXIT_INPUT = 3, EXIT_CHECKPOINT = 4, EXIT_DISK = 5, EXIT_CUDA = 6, EXIT_MEMORY = 7,
    EXIT_PEER = 8, EXIT_NUMERICS = 9, EXIT_STOPPED = 75
};
#if defined(__GNUC__)
#define PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define PRINTF(f, a)
#endif

typedef struct { char text[1024]; } Error;
int  error_set(Error *e, const char *format, ...) PRINTF(2, 3);      /* always 0, for `return error_set(...)` */

_Noreturn void fail(int code, const char *format, ...) PRINTF(2, 3); /* "error: ..." on stderr, then _exit(code) */
void  warn(const char *format, ...) PRINTF(1, 2);                    /* "warning: ..." on stderr, and to the hook */
void  warn_hook(void (*also)(const char *text));                     /* receives warnings, too; NULL: none */

void *mem_alloc(size_t bytes);                                       /* zeroed; fails with EXIT_MEMORY */
void *mem_grow(void *p, size_t bytes);                               /* realloc; fails with EXIT_MEMORY */
char *text_format(const char *format, ...) PRINTF(1, 2);             /* a new string; free() it */

double now(void);                                                    /* seconds, monotonic */

/* Files. file_write replaces `path` as a whole or not at all: temporary name, fsync, rename, fsync of the folder. */
char *file_read(const char *path, size_t *bytes, Error *e);          /* the whole file, then a NUL; NULL on error; free() it */
int   file_write(const char *path, const void *data, size_t bytes, Error *e);
int   folder_make(const char *path, Error *e);                       /* mkdir -p; an existing folder is fine */
int   folder_sync(const char *path);                                 /* fsync: renames inside it survive a power loss */
int   is_folder(const char *path);
int   is_file(const char *path);

uint64_t hash_bytes(uint64_t seed, const void *data, size_t bytes);  /* FNV-1a over 8-byte words: not for security */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);       /* Castagnoli polynomial; start with 0 */
#endif
