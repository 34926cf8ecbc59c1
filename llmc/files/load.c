/* load.c: see load.h. While all threads fill a batch, the calling one sends that before. */
#include "load.h"
#include "llmc/base/omp.h"
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 19 };               /* elements, unless a unit has more */

typedef struct { const Load *load; size_t first, n, capacity; void *data; int ok; Error why; } Part;
typedef struct { Part *parts; int count; } Batch;
/* the next part: of loads[next], from its element first on */
typedef struct { const Load *loads; size_t count, next, first; } Cursor;

const char *load_dtype(const Device *dev, Dtype type) {
    return type == FLOATX ? dev->dtype : dev->real_size == 8 ? "F64" : "F32";
}
static char *address_of(const Device *dev, const Part *p, size_t copy) {
    return (char *)p->load->to + (p->first + copy * p->load->stride) * dtype_size(dev, p->load->type);
}

/* As many of the next parts as a batch has room for. */
static void take(Batch *b, int most, Cursor *at) {
    for (b->count = 0; b->count < most && at->next < at->count; ) {
        const Load *l = &at->loads[at->next];
        const size_t most_here = l->unit > MOST ? l->unit : MOST / l->unit * l->unit, left = l->count - at->first;
        Part *p = &b->parts[b->count];
        p->load = l, p->first = at->first, p->n = left < most_here ? left : most_here;
        b->count += p->n > 0;
        at->first += p->n;
        if (at->first == l->count) at->next++, at->first = 0;
    }
}
static void fill(const Device *dev, Safetensors *s, Part *p) {
    const size_t bytes = p->n * dtype_size(dev, p->load->type);
    void *data = address_of(dev, p, 0);
    if (dev->is_gpu) {
        if (bytes > p->capacity) {
            free(p->data);
            p->data = mem_alloc(p->capacity = bytes);
        }
        data = p->data;
    }
    const Load *l = p->load;
    const char *type = load_dtype(dev, l->type);
    const uint64_t first = l->first + p->first;
    p->ok = (!l->scales ? safetensors_read_as(s, l->tensor, first, type, data, p->n, &p->why)
             : !strcmp(l->tensor->dtype, "U8")
                   ? safetensors_read_mxfp4(s, l->tensor, l->scales, first, type, data, p->n, &p->why)
                   : safetensors_read_fp8(s, l->tensor, l->scales, first, type, data, p->n, &p->why))
             && p->load->check(p->load, data, p->first, p->n, &p->why);
    if (!p->ok) memset(data, 0, bytes);                     /* on a CPU it is the model's own memory */
    for (size_t k = 1; k < p->load->copies && !dev->is_gpu; k++) memcpy(address_of(dev, p, k), data, bytes);
}
/* What the last batch holds. 0: one of its parts is bad. */
static int send(const Device *dev, const Batch *b, Error *e) {
    for (int i = 0; i < b->count; i++) {
        const Part *p = &b->parts[i];
        if (!p->ok) return error_set(e, "%s", p->why.text);
        for (size_t k = 0; dev->is_gpu && (!k || k < p->load->copies); k++)
            dev->upload(address_of(dev, p, k), p->data, p->n * dtype_size(dev, p->load->type));
    }
    return 1;
}
size_t load_host_bytes(const Device *dev, size_t unit) {
    const size_t threads = (size_t)omp_get_max_threads(), most = unit > MOST ? unit * dev->floatX_size
        : MOST * dev->real_size;
    return threads * ((dev->is_gpu ? 2 * 2 * most : 0) + unit * dev->floatX_size);     /* a check copies a unit */
}
int load_all(const Device *dev, Safetensors *s, const Load *loads, size_t count, Error *e) {
    const int most = 2 * omp_get_max_threads();
    Batch batches[2] = { { 0 } };
    Cursor at = { loads, count, 0, 0 };
    int ok = 1;
    for (int i = 0; i < 2; i++) batches[i].parts = mem_alloc((size_t)most * sizeof(Part));
    for (int current = 0; ok; current ^= 1) {
        Batch *const now = &batches[current], *const before = &batches[!current];
        take(now, most, &at);
        if (!now->count && !before->count) break;
        #pragma omp parallel if (now->count > 1)
        {
            #pragma omp master
            ok = send(dev, before, e);
            #pragma omp for schedule(dynamic, 1)
            for (int i = 0; i < now->count; i++) fill(dev, s, &now->parts[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < most; k++) free(batches[i].parts[k].data);
        free(batches[i].parts);
    }
    return ok;
}
