/* load.h: loads parts of files' tensors into the memory of a device. All threads of the host read,
 * check and convert. Finished pieces are sent to a GPU at the same time, so the host holds only a
 * few; on a CPU files are read into the model's memory. */
#pragma once
#include "safetensors.h"
#include "llmc/model/tensor.h"

typedef struct Load Load;
/* Checks, and may reorder, n elements of a part, as the device has them. Several threads do. */
typedef int (*LoadCheck)(const Load *l, void *data, size_t first, size_t n, Error *e);
struct Load {
    const FileTensor *tensor, *scales;  /* scales: of its blocks in MXFP4, FP8 or I8; NULL: none */
    int      raw;                       /* 1: elements are bytes, as the file has them; type is unused */
    uint64_t first;                     /* of its elements, */
    size_t   count, unit;               /* `count` elements; a check gets whole units of them */
    void    *to;                        /* in the device's memory */
    size_t   copies, stride;        /* it goes there `copies` times, each `stride` elements after the last; 0: once */
    Dtype    type;
    LoadCheck check;
    const void *of;                     /* for check */
};
const char *load_dtype(const Device *dev, Dtype type);      /* its name in files */
size_t load_host_bytes(const Device *dev, size_t unit);     /* of the host's memory, for units of so many elements */
/* 0: the first error, in their order */
int load_all(const Device *dev, Safetensors *s, const Load *loads, size_t count, Error *e);
/* The same in steps of `count` loads, with one memory of the host, which takes time to lock. */
typedef struct Loader Loader;
Loader *load_open(const Device *dev, Safetensors *s, const Load *loads, size_t count);
int     load_next(Loader *l, size_t count, Error *e);
void    load_close(Loader *l);
