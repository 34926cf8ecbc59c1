/* base.h: what every file of llmc/ and both programs share: ending with a reason, memory, time, whole files.
 *
 * Errors. A library file reports a problem by returning 0 or NULL and filling an Error; whoever knows what the user
 * asked for calls fail(), which says what was found, what was expected and what to
 * do, and exits with the code below. */
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
/* always 0, so that a parser can `return error_set(...)` */
int  error_set(Error *e, const char *format, ...) PRINTF(2, 3);

_Noreturn void fail(int code, const char *format, ...) PRINTF(2, 3); /* "error: ..." on stderr, then exit(code) */
void  warn(const char *format, ...) PRINTF(1, 2);        /* "warning: ..." on stderr, and in the log if one is open */
void  warn_hook(void (*also)(const char *text));                     /* where else warnings go; NULL: nowhere */

void *mem_alloc(size_t bytes);                                       /* zeroed; fails with EXIT_MEMORY */
void *mem_grow(void *p, size_t bytes);                               /* realloc; fails with EXIT_MEMORY */
char *text_format(const char *format, ...) PRINTF(1, 2);             /* a new string; free() it */

double now(void);                                                    /* seconds, monotonic */

/* Files. `path` of file_write is replaced as a whole or not at all: temporary name,
 * fsync, rename, fsync of the folder. */
char *file_read(const char *path, size_t *bytes, Error *e);  /* whole file and a final NUL; NULL on error; free() it */
int   file_write(const char *path, const void *data, size_t bytes, Error *e);
int   folder_make(const char *path, Error *e);               /* mkdir -p; an existing folder is fine */
int   folder_sync(const char *path);                         /* fsync: a rename inside it survives a power loss */
int   is_folder(const char *path);
int   is_file(const char *path);

/* FNV-1a over 8-byte words: fingerprints, not security */
uint64_t hash_bytes(uint64_t seed, const void *data, size_t bytes);
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);       /* Castagnoli polynomial; start with 0 */
#endif
