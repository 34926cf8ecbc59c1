/* load.c: see load.h. While all threads fill a batch, that before is sent: a GPU copies it from the
 * host's memory itself, if that is locked for it, else the calling thread does. */
#include "load.h"
#include "host_buffer.h"
#include "llmc/base/omp.h"
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 19,                 /* elements of a part, unless a unit has more */
       MUCH = 256 << 20 };             /* bytes from which locking memory takes less time than it spares */

typedef struct { const Load *load; size_t first, n; void *data; int ok; Error why; } Part;
typedef struct { Part *parts; int count; } Batch;
/* the next part: of loads[next], from its element first on */
typedef struct { const Load *loads; size_t count, next, first; } Cursor;

const char *load_dtype(const Device *dev, Dtype type) {
    return type == FLOATX ? dev->dtype : type == INT8 ? "I8" : dev->real_size == 8 ? "F64" : "F32";
}
static size_t size_of(const Device *dev, const Load *l) { return l->raw ? 1 : dtype_size(dev, l->type); }
static char *address_of(const Device *dev, const Part *p, size_t copy) {
    return (char *)p->load->to + (p->first + copy * p->load->stride) * size_of(dev, p->load);
}

/* Of its elements, in a part. */
static size_t part_most(const Load *l) { return l->unit > MOST ? l->unit : MOST / l->unit * l->unit; }

/* As many of the next parts as a batch has room for. */
static void take(Batch *b, int most, Cursor *at) {
    for (b->count = 0; b->count < most && at->next < at->count; ) {
        const Load *l = &at->loads[at->next];
        const size_t most_here = part_most(l), left = l->count - at->first;
        Part *p = &b->parts[b->count];
        p->load = l, p->first = at->first, p->n = left < most_here ? left : most_here;
        b->count += p->n > 0;
        at->first += p->n;
        if (at->first == l->count) at->next++, at->first = 0;
    }
}
static void fill(const Device *dev, Safetensors *s, Part *p) {
    const size_t bytes = p->n * size_of(dev, p->load);
    void *const data = dev->is_gpu ? p->data : address_of(dev, p, 0);
    const Load *l = p->load;
    const char *type = load_dtype(dev, l->type);
    const uint64_t first = l->first + p->first;
    p->ok = (l->raw ? safetensors_read(s, l->tensor, first, data, p->n, &p->why)
             : !l->scales ? safetensors_read_as(s, l->tensor, first, type, data, p->n, &p->why)
             : !strcmp(l->tensor->dtype, "I8")
                   ? safetensors_read_int8(s, l->tensor, l->scales, first, type, data, p->n, &p->why)
             : !strcmp(l->tensor->dtype, "U8")
                   ? safetensors_read_mxfp4(s, l->tensor, l->scales, first, type, data, p->n, &p->why)
                   : safetensors_read_fp8(s, l->tensor, l->scales, first, type, data, p->n, &p->why))
             && p->load->check(p->load, data, p->first, p->n, &p->why);
    if (!p->ok) memset(data, 0, bytes);                     /* on a CPU it is the model's own memory */
    for (size_t k = 1; k < p->load->copies && !dev->is_gpu; k++) memcpy(address_of(dev, p, k), data, bytes);
}
/* What the last batch holds. 0: one of its parts is bad. */
static int send(const Device *dev, const Batch *b, int locked, Error *e) {
    void (*const copy)(void *, const void *, size_t) = locked ? dev->copy_in : dev->upload;
    for (int i = 0; i < b->count; i++) {
        const Part *p = &b->parts[i];
        if (!p->ok) return error_set(e, "%s", p->why.text);
        for (size_t k = 0; dev->is_gpu && (!k || k < p->load->copies); k++)
            copy(address_of(dev, p, k), p->data, p->n * size_of(dev, p->load));
    }
    return 1;
}
size_t load_host_bytes(const Device *dev, size_t unit) {
    const size_t threads = (size_t)omp_get_max_threads(), most = unit > MOST ? unit * dev->floatX_size
        : MOST * dev->real_size;
    return threads * ((dev->is_gpu ? 2 * 2 * most : 0) + unit * dev->floatX_size);     /* a check copies a unit */
}
/* Memory for the parts of two batches: all threads fill one while the other is sent. Without a
 * buffer it is not locked for the GPU. */
struct Loader {
    const Device *dev;
    Safetensors  *s;
    const Load   *loads;                /* the next ones */
    HostBuffer   *buffer;
    char         *memory;
    int           most;                 /* parts of a batch */
    Batch         batches[2];
};
Loader *load_open(const Device *dev, Safetensors *s, const Load *loads, size_t count) {
    Loader *l = mem_alloc(sizeof *l);
    size_t all = 0, bytes = 0;
    l->dev = dev, l->s = s, l->loads = loads, l->most = 2 * omp_get_max_threads();
    const size_t parts = 2 * (size_t)l->most;
    for (size_t i = 0; i < count && dev->is_gpu; i++) {
        const size_t most = part_most(&loads[i]), n = loads[i].count < most ? loads[i].count : most,
            element = size_of(dev, &loads[i]);
        if (n * element > bytes) bytes = (n * element + 7) / 8 * 8;
        all += loads[i].count * element;
    }
    if (all >= MUCH) l->buffer = host_buffer_open(dev, loads->to, parts * bytes);
    if (l->buffer && host_buffer_state(l->buffer, 1) != BUFFER_READY) host_buffer_close(l->buffer), l->buffer = NULL;
    l->memory = l->buffer ? host_buffer_memory(l->buffer) : mem_alloc(parts * bytes);
    for (int i = 0; i < 2; i++) l->batches[i].parts = mem_alloc((size_t)l->most * sizeof(Part));
    for (size_t i = 0; i < parts; i++) l->batches[i % 2].parts[i / 2].data = l->memory + i * bytes;
    return l;
}
void load_close(Loader *l) {
    if (!l->buffer) free(l->memory);
    host_buffer_close(l->buffer);
    free_each(l->batches[0].parts, l->batches[1].parts, l);
}
int load_next(Loader *l, size_t count, Error *e) {
    Cursor at = { l->loads, count, 0, 0 };
    int ok = 1;
    l->batches[0].count = l->batches[1].count = 0;
    for (int current = 0; ok; current ^= 1) {
        Batch *const now = &l->batches[current], *const before = &l->batches[!current];
        take(now, l->most, &at);
        if (!now->count && !before->count) break;
        #pragma omp parallel if (now->count > 1)
        {
            #pragma omp master
            ok = send(l->dev, before, l->buffer != NULL, e);
            #pragma omp for schedule(dynamic, 1)
            for (int i = 0; i < now->count; i++) fill(l->dev, l->s, &now->parts[i]);
        }
        if (l->buffer) l->dev->sync();                      /* what was sent is filled next */
    }
    l->loads += count;
    return ok;
}
int load_all(const Device *dev, Safetensors *s, const Load *loads, size_t count, Error *e) {
    Loader *l = load_open(dev, s, loads, count);
    const int ok = load_next(l, count, e);
    load_close(l);
    return ok;
}
