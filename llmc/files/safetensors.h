/* safetensors.h: named tensors in the file format of Hugging Face.
 *
 * A file is: 8 bytes N (little-endian), N bytes of JSON, the data. The JSON maps each name to
 * {"dtype", "shape", "data_offsets": [begin, end)} relative to the data, and "__metadata__" to
 * strings. Arrays are row-major and little-endian. Tensors fill the data without holes or overlap.
 * The format does not promise alignment, so files are not mapped: data is read by pread, and a file
 * that is truncated meanwhile is an error, not a signal. */
#pragma once
#include "llmc/base/base.h"

typedef struct {
    const char *name, *dtype;           /* "F32", "BF16", ... */
    int rank;
    const uint64_t *shape;
    uint64_t count, bytes;              /* elements, size of the data */
    uint64_t begin;                     /* offset in the data of its file */
    int file;
} FileTensor;                           /* a writer sets name, dtype, rank and shape only */

typedef struct { const char *key, *value; } FileNote;       /* an entry of __metadata__ */

/* Opens a file, or a folder: its model.safetensors, or as one set the shards that its
 * model.safetensors.index.json names. NULL and e: a rule of the format is broken. */
typedef struct Safetensors Safetensors;
Safetensors *safetensors_open(const char *path, Error *e);
void safetensors_close(Safetensors *s);

size_t            safetensors_count(const Safetensors *s);
const FileTensor *safetensors_at(const Safetensors *s, size_t i);               /* in the order of the data */
const FileTensor *safetensors_find(const Safetensors *s, const char *name);     /* NULL if it is missing */
int by_tensor_name(const void *a, const void *b);                               /* for qsort, of FileTensor * */
const char       *safetensors_note(const Safetensors *s, const char *key);      /* NULL if it is missing */

/* Reads `bytes` bytes from `offset` of the tensor's data; or n elements from element `first`,
 * converted to F64, F32 or BF16 (to nearest even, by way of F32) if its dtype is F16, BF16, F32 or
 * F64. Several threads may read at a time. */
int safetensors_read(Safetensors *s, const FileTensor *t, uint64_t offset, void *data, size_t bytes, Error *e);
int safetensors_read_as(Safetensors *s, const FileTensor *t, uint64_t first, const char *dtype, void *data,
                        size_t n, Error *e);
/* The same of n weights in MXFP4: 32 in a row share a scale. blocks (.., 16): each byte two codes
 * e2m1 (sign, 2 bits of exponent, 1 of mantissa), the lower half first; scales, one for each:
 * 2^(byte - 127), 255 is NaN. first, n: multiples of 32. (OCP Microscaling Formats 1.0, 2023.) */
enum { MXFP4_SIDE = 32 };
int safetensors_read_mxfp4(Safetensors *s, const FileTensor *blocks, const FileTensor *scales, uint64_t first,
                           const char *dtype, void *data, size_t n, Error *e);
/* The same of n weights in F8_E4M3 (.., rows, columns), of which 128 x 128 share a scale: scales
 * (.., rows / 128, columns / 128), both rounded up, in a type that read_as reads. DeepSeek-V3 is
 * published so, a weight's scales as weight_scale_inv. */
enum { FP8_SIDE = 128 };
int safetensors_read_fp8(Safetensors *s, const FileTensor *codes, const FileTensor *scales, uint64_t first,
                         const char *dtype, void *data, size_t n, Error *e);
/* The same of n numbers in I8, of which as many as scales has fewer share a scale, in the order of
 * memory. first, n: multiples of that. */
int safetensors_read_int8(Safetensors *s, const FileTensor *codes, const FileTensor *scales, uint64_t first,
                          const char *dtype, void *data, size_t n, Error *e);
double safetensors_value(const char *dtype, const void *element);      /* of one of these types */
#define safetensors_read_double(s, t, first, data, n, e) safetensors_read_as(s, t, first, "F64", data, n, e)

/* Writes directly to `path`: the caller picks a temporary name and renames the file. Data is
 * appended in pieces of any size, in the order of the list. finish checks that the data is
 * complete, syncs it to disk, and returns size and CRC-32C of the file. finish and abandon free the
 * writer.
 * join: one of several writers of the file, with the same list (file_join). `first` writes the
 * head, on one of them. seek: the next piece goes to that byte of the data. leave: syncs what this
 * writer has written, and returns its parts, of which file_sum makes the file's sum; free()
 * them. */
typedef struct SafetensorsWriter SafetensorsWriter;
SafetensorsWriter *safetensors_create(const char *path, const FileTensor *tensors, size_t n, const FileNote *notes,
                                      size_t note_count, Error *e);
SafetensorsWriter *safetensors_join(const char *path, const FileTensor *tensors, size_t n, const FileNote *notes,
                                    size_t note_count, int first, Error *e);
int  safetensors_seek(SafetensorsWriter *w, uint64_t at, Error *e);
int  safetensors_leave(SafetensorsWriter *w, FilePart **parts, size_t *count, Error *e);
int  safetensors_append(SafetensorsWriter *w, const void *data, size_t bytes, Error *e);
size_t safetensors_width(const char *dtype);                /* bytes of an element of a dtype that this program reads */
/* n elements, converted to a dtype that this program reads: to the nearest number, of two the even
 * one. 0 and an error if one is beyond its range; name: of the tensor, for that message. */
int  safetensors_append_double(SafetensorsWriter *w, const char *name, const char *dtype, const double *data,
                               size_t n, Error *e);
int  safetensors_finish(SafetensorsWriter *w, Error *e, uint64_t *bytes, uint32_t *crc);
void safetensors_abandon(SafetensorsWriter *w);
