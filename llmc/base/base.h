/* base.h: used by all of llmc/ and both programs: errors, memory, time, whole files, checksums.
 *
 * Errors. A library function reports a problem by returning 0 or NULL and filling an Error. The
 * caller that knows what the user asked for calls fail(), with a message that says what was found,
 * what was expected and what to do. */
#pragma once
#include "print.h"

enum {                                  /* exit codes of both programs */
    EXIT_DONE = 0, EXIT_USAGE = 2, EXIT_INPUT = 3, EXIT_CHECKPOINT = 4, EXIT_DISK = 5, EXIT_CUDA = 6, EXIT_MEMORY = 7,
    EXIT_PEER = 8, EXIT_NUMERICS = 9, EXIT_STOPPED = 75
};
typedef struct { char text[1024]; int code; } Error;        /* code: to exit with, or 0: what the caller finds right */
int  error_exit(Error *e, int code, const char *format, ...) PRINTF(3, 4);   /* always 0, for `return error_set(...)` */
#define error_set(e, ...) error_exit(e, 0, __VA_ARGS__)

_Noreturn void fail(int code, const char *format, ...) PRINTF(2, 3); /* "error: ..." on stderr, then _exit(code) */
/* With the error's own code, if it has one. Inline: all ends are calls of fail, for tests/fuzz. */
_Noreturn static inline void fail_with(const Error *e, int code) { fail(e->code ? e->code : code, "%s", e->text); }
void  warn(const char *format, ...) PRINTF(1, 2);                    /* "warning: ..." on stderr, and to the hook */
void  warn_hook(void (*also)(const char *text));                     /* receives warnings, too; NULL: none */

void *mem_alloc(size_t bytes);                                       /* zeroed; fails with EXIT_MEMORY */
void *mem_grow(void *p, size_t bytes);                               /* realloc; fails with EXIT_MEMORY */
/* Memory for one more element of an array: `count` of them have fit, `capacity` do. */
#define array_grow(at, count, capacity) do { if ((count) == (capacity)) \
    (at) = mem_grow((at), (size_t)((capacity) = 2 * (capacity) + 16) * sizeof *(at)); } while (0)
void  mem_free(void **all, size_t n);                                /* free_each(a, b): free each */
#define free_each(...) mem_free((void *[]){ __VA_ARGS__ }, sizeof (void *[]){ __VA_ARGS__ } / sizeof(void *))
char *text_format(const char *format, ...) PRINTF(1, 2);             /* a new string; free() it */
/* Memory for many small things that are freed together, in blocks that double in size: NULL at
 * first. block_alloc: aligned to 8 bytes, not zeroed. block_more: the size of the block that this
 * then takes; 0: none. */
typedef struct Block Block;
size_t block_more(const Block *b, size_t bytes);
void *block_alloc(Block **blocks, size_t bytes);
void  block_free(Block **blocks);

double now(void);                                                    /* seconds, monotonic */

/* Called first of all, by both programs. A closed pipe (`| head`) and a limit on file sizes become
 * errors of write(), not signals. Descriptors 0 to 2 are taken afterwards, so that nothing that is
 * opened later, a client's socket for one, is read as stdin or gets messages; one that was closed
 * still fails to be read or written. */
void  process_protect(void);

/* Files (file.c). Errors name the path. Without host memory the program ends with EXIT_MEMORY. */
char *file_read(const char *path, size_t *bytes, Error *e);   /* the whole file, then a NUL; NULL on error; free() it */
int   folder_make(const char *path, Error *e);                       /* mkdir -p; an existing folder is fine */
double file_space(const char *path);        /* bytes free on the disk that it is on, or will be; below 0: not known */
int   folder_sync(const char *path, Error *e);                       /* fsync: renames inside it survive a power loss */
int   is_folder(const char *path);
int   is_same_folder(const char *a, const char *b);           /* by whatever names */
int   is_file(const char *path);                              /* a regular one */
int   is_there(const char *path);                             /* of whatever kind, also a link to nothing */
char *folder_of(const char *path);                            /* the part before the name, or "."; free() it */
int   folder_has(const char *folder, const char *name);       /* the same of folder/name */

/* All files are opened by these, which never wait. To read: regular files only; -1 or NULL and e
 * for pipes, devices, sockets and folders. bytes: its size. to_write: of open(), how it is written
 * (O_WRONLY or O_RDWR, O_APPEND, O_TRUNC); makes it if it is not there. */
int   file_open(const char *path, uint64_t *bytes, Error *e);
FILE *file_stream(const char *path, uint64_t *bytes, Error *e);
/* Bytes of an open file from `at` on; returns how many: fewer at its end, then errno is 0, or after
 * an error. */
size_t file_read_at(int fd, uint64_t at, void *data, size_t bytes);
int   file_open_to_write(const char *path, int how, Error *e);

/* A FileWriter writes a file from its first byte to its last, through a buffer. file_patch
 * overwrites bytes that were added. file_finish syncs the file to disk and closes it; finish and
 * abandon free the writer. After one error all later calls fail. file_join: a file of `bytes` bytes
 * that several writers fill, in any processes that see it: each writes its own bytes, from where
 * file_seek puts it. The first of them creates it. */
typedef struct FileWriter FileWriter;
FileWriter *file_create(const char *path, Error *e);
FileWriter *file_join(const char *path, uint64_t bytes, Error *e);
int  file_seek(FileWriter *w, uint64_t at, Error *e);
int  file_add(FileWriter *w, const void *data, size_t bytes, Error *e);
int  file_patch(FileWriter *w, uint64_t at, const void *data, size_t bytes, Error *e);
int  file_finish(FileWriter *w, Error *e);
void file_abandon(FileWriter *w);

/* Files that must be complete whenever they exist are written under a temporary name and then
 * published. file_publish renames a complete and synced file or folder and syncs its parent folder.
 * If only that sync fails (an error), a power loss may bring the old file back. file_replace lets
 * `body` write the temporary file and publishes it as `path`. file_write does this with data in
 * memory; file_link with a hard link to `from`, or a copy where there are none. */
typedef int (*FileBody)(const char *temporary, const void *with, Error *e);
int   file_publish(const char *temporary, const char *path, Error *e);
int   file_replace(const char *path, FileBody body, const void *with, Error *e);
int   file_put(const char *path, const void *data, size_t bytes, Error *e);      /* directly to `path`, synced */
int   file_write(const char *path, const void *data, size_t bytes, Error *e);
int   file_link(const char *from, const char *path, Error *e);
int   file_is_temporary(const char *name);                           /* is it a temporary name of file_replace? */

uint64_t hash_bytes(uint64_t seed, const void *data, size_t bytes);  /* FNV-1a over 8-byte words: not for security */
uint64_t hash_begin(uint64_t seed);         /* of parts, all but the last of a multiple of 8 bytes */
uint64_t hash_add(uint64_t h, const void *data, size_t bytes);
uint64_t hash_end(uint64_t h);
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);       /* Castagnoli polynomial; start with 0 */
/* The CRC of two parts together, of which the first has the CRC a, and the second, of `bytes`
 * bytes, the CRC b. Source: M. Adler, zlib, crc32_combine. */
uint32_t crc32c_combine(uint32_t a, uint32_t b, uint64_t bytes);

/* Bytes of a file and their CRC-32C. file_sum sorts the parts; 0: a hole or overlap. */
typedef struct { uint64_t bytes; uint32_t crc; } FileSum;
typedef struct { uint64_t at; FileSum sum; } FilePart;
int file_sum(FilePart *parts, size_t count, FileSum *sum);
