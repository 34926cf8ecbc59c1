/* safetensors.h: named tensors in files that every tool of the field reads and writes.
 *
 * A file is: 8 bytes N (little-endian), N bytes of JSON, the data. The JSON maps each name to {"dtype", "shape",
 * "data_offsets": [begin, end)} relative to the data, and "__metadata__" to strings. Arrays are row-major and
 * little-endian. Tensors fill the data without holes or overlap; alignment is not promised, so nothing is mapped: data
 * is read by pread, in pieces if wanted, and a file that is cut off meanwhile is an error and not a signal. */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include "llmc/base/base.h"

typedef struct {
    const char *name, *dtype;           /* "F32", "BF16", ... */
    int rank;
    const uint64_t *shape;
    uint64_t count, bytes;              /* elements, size of the data; a writer need not set what follows the shape */
    uint64_t begin;                     /* in the data of its file */
    int file;
} FileTensor;

typedef struct { const char *key, *value; } FileNote;       /* an entry of __metadata__ */

/* Opens a file, or a folder: its model.safetensors, or the shards that its model.safetensors.index.json names,
 * presented as one set. Every rule of the format is checked first; NULL if one is broken. */
typedef struct Safetensors Safetensors;
Safetensors *safetensors_open(const char *path, Error *e);
void safetensors_close(Safetensors *s);

size_t            safetensors_count(const Safetensors *s);
const FileTensor *safetensors_at(const Safetensors *s, size_t i);               /* in the order of the data */
const FileTensor *safetensors_find(const Safetensors *s, const char *name);     /* NULL if there is none */
const char       *safetensors_note(const Safetensors *s, const char *key);      /* NULL if there is none */

/* bytes from `offset` of the tensor's data; or n elements from element `first` as
 * doubles, if they are floating-point. */
int safetensors_read(Safetensors *s, const FileTensor *t, uint64_t offset, void *data, size_t bytes, Error *e);
int safetensors_read_double(Safetensors *s, const FileTensor *t, uint64_t first, double *data, size_t n, Error *e);

/* Writes exactly the path given (the caller picks a temporary name and renames). The data is appended in pieces of any
 * size, in the order of the list. finish checks that all of it came, and that it is on the disk; then it tells the size
 * and CRC-32C of the file. finish and abandon free the writer. */
typedef struct SafetensorsWriter SafetensorsWriter;
SafetensorsWriter *safetensors_create(const char *path, const FileTensor *tensors, size_t n, const FileNote *notes,
                                      size_t note_count, Error *e);
int  safetensors_append(SafetensorsWriter *w, const void *data, size_t bytes, Error *e);
int  safetensors_finish(SafetensorsWriter *w, Error *e, uint64_t *bytes, uint32_t *crc);
void safetensors_abandon(SafetensorsWriter *w);
#endif
