/* safetensors.c: see safetensors.h. Headers are written by the reader's rules. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"
#include "llmc/base/json.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are read and written in memory order, which must be little-endian"
#endif

enum { HEADER_MAX = 100000000 };                     /* the limit of the reference implementation */

/* ---- dtypes ---------------------------------------------------------------------------------- */

static float float_of(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static double f64_at(const unsigned char *p) { double x; memcpy(&x, p, 8); return x; }
static double f32_at(const unsigned char *p) { float x; memcpy(&x, p, 4); return (double)x; }
static double bf16_at(const unsigned char *p) {         /* the upper half of an f32 */
    uint16_t half;
    memcpy(&half, p, 2);
    return (double)float_of((uint32_t)half << 16);
}
static double f16_at(const unsigned char *p) {          /* 1 sign, 5 exponent (bias 15), 10 fraction bits */
    uint16_t bits;
    memcpy(&bits, p, 2);
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023, sign = (uint32_t)(bits >> 15) << 31;
    const float size = exponent == 31 ? float_of(0x7f800000u | fraction << 13)
                     : exponent ? float_of((exponent + 112) << 23 | fraction << 13) : (float)fraction / (1 << 24);
    return (double)(sign ? -size : size);
}
/* n elements to doubles. A loop for each type, so that the compiler makes vector code. */
#define CONVERTER(type, bytes) \
    static void from_##type(double *to, const unsigned char *from, size_t n) { \
        for (size_t i = 0; i < n; i++) to[i] = type##_at(from + i * (bytes)); \
    }
CONVERTER(f64, 8) CONVERTER(f32, 4) CONVERTER(bf16, 2) CONVERTER(f16, 2)
static void to_f64(void *to, const double *from, size_t n) { memcpy(to, from, n * sizeof *from); }
static void to_f32(void *to, const double *from, size_t n) {
    float *x = to;
    for (size_t i = 0; i < n; i++) x[i] = (float)from[i];
}
static void to_bf16(void *to, const double *from, size_t n) {
    uint16_t *x = to;
    for (size_t i = 0; i < n; i++) {
        const float f = (float)from[i];
        uint32_t bits;
        memcpy(&bits, &f, 4);
        x[i] = f == f ? (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : 0x7fc0;
    }
}
static uint16_t f16_of(double x) {
    int exponent;
    frexp(x, &exponent);                                /* 2^(exponent-1) <= |x| < 2^exponent */
    const int last = exponent - 11 > -24 ? exponent - 11 : -24;             /* its last binary place */
    const int units = (int)nearbyint(ldexp(fabs(x), -last < 1000 ? -last : 1000));  /* of that place; at most 2048 */
    /* the exponent field stands for the first 1024 units of a normal number */
    const int bits = exponent > 16 ? 31 << 10 : x == 0 ? 0 : ((last + 24) << 10) + units;
    return (uint16_t)((bits < 31 << 10 ? bits : 31 << 10) | (signbit(x) ? 1 << 15 : 0));
}
static void to_f16(void *to, const double *from, size_t n) {
    uint16_t *x = to;
    for (size_t i = 0; i < n; i++) x[i] = f16_of(from[i]);
}

/* All dtypes of the format; `read` and `write` convert elements, where this program knows them. */
typedef struct {
    const char *name;
    int bits;
    void (*read)(double *to, const unsigned char *from, size_t n);
    void (*write)(void *to, const double *from, size_t n);
} FileDtype;
static const FileDtype dtypes[] = {
    { "F32", 32, from_f32, to_f32 }, { "BF16", 16, from_bf16, to_bf16 }, { "F16", 16, from_f16, to_f16 },
    { "F64", 64, from_f64, to_f64 },
#define OTHER(name, bits) { name, bits, NULL, NULL }
    OTHER("BOOL", 8), OTHER("U8", 8), OTHER("I8", 8), OTHER("I16", 16), OTHER("U16", 16), OTHER("I32", 32),
    OTHER("U32", 32), OTHER("I64", 64), OTHER("U64", 64), OTHER("C64", 64), OTHER("F8_E5M2", 8), OTHER("F8_E4M3", 8),
    OTHER("F8_E8M0", 8), OTHER("F8_E5M2FNUZ", 8), OTHER("F8_E4M3FNUZ", 8), OTHER("F6_E2M3", 6), OTHER("F6_E3M2", 6),
    OTHER("F4", 4),
#undef OTHER
};
static const FileDtype *dtype_named(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) if (!strcmp(name, dtypes[i].name)) return &dtypes[i];
    return NULL;
}

/* ---- header ---------------------------------------------------------------------------------- */

typedef struct {
    char *path;
    int fd;
    uint64_t data;                      /* offset of the data in the file */
    Json *json;                         /* owns names and notes */
    FileTensor *tensors;                /* in the order of the data */
    size_t count;
    uint64_t *shapes;
} Shard;

static int multiply(uint64_t *product, uint64_t factor) {
    if (factor && *product > UINT64_MAX / factor) return 0;
    *product *= factor;
    return 1;
}

/* Reads one entry of the header. shape (rank): receives its sizes. */
static int entry_read(const char *path, const JsonValue *entry, FileTensor *t, uint64_t *shape, Error *e) {
    const JsonValue *dtype = json_get(entry, "dtype"), *sizes = json_get(entry, "shape"),
        *offsets = json_get(entry, "data_offsets");
    const char *name = entry->key, *type = json_string(dtype, NULL);
    if (memchr(name, 0, entry->key_length)) return error_set(e, "%s: a tensor's name has a NUL inside", path);
    if (!json_is(entry, JSON_OBJECT) || !type || !json_is(sizes, JSON_ARRAY) || !json_is(offsets, JSON_ARRAY)
        || offsets->length != 2)
        return error_set(e, "%s: tensor %.200s needs \"dtype\", \"shape\" and two \"data_offsets\"", path, name);
    const FileDtype *known = dtype_named(type);
    if (!known) return error_set(e, "%s: tensor %.200s has the unknown dtype %.40s", path, name, type);

    int64_t begin = json_int(json_first(offsets), -1), end = json_int(json_first(offsets)->next, -1);
    if (begin < 0 || end < begin) return error_set(e, "%s: tensor %.200s has invalid data_offsets", path, name);
    *t = (FileTensor){ .name = name, .dtype = type, .shape = shape, .count = 1,
                       .begin = (uint64_t)begin, .bytes = (uint64_t)(end - begin) };
    for (const JsonValue *v = json_first(sizes); v; v = v->next) {
        int64_t size = json_int(v, -1);
        if (size < 0)
            return error_set(e, "%s: tensor %.200s: its shape is not made of whole numbers from 0 up", path, name);
        if (!multiply(&t->count, (uint64_t)size))
            return error_set(e, "%s: tensor %.200s: its shape overflows", path, name);
        shape[t->rank++] = (uint64_t)size;
    }
    uint64_t total = t->count;
    if (!multiply(&total, (uint64_t)known->bits))
        return error_set(e, "%s: tensor %.200s: its size overflows", path, name);
    if (total % 8) return error_set(e, "%s: tensor %.200s does not fill whole bytes", path, name);
    if (total / 8 != t->bytes)
        return error_set(e, "%s: tensor %.200s has %llu bytes between its data_offsets, its shape needs %llu", path,
                         name, (unsigned long long)t->bytes, (unsigned long long)(total / 8));
    return 1;
}

static int by_offset(const void *a, const void *b) {
    const FileTensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;         /* empty ones first */
    return strcmp(x->name, y->name);
}

/* Parses the header into a list of tensors, which must cover exactly data_bytes. */
static int header_read(Shard *f, const char *text, size_t bytes, uint64_t data_bytes, Error *e) {
    Error why;
    if (!bytes || text[0] != '{') return error_set(e, "%s: its header does not begin with '{'", f->path);
    f->json = json_parse(text, bytes, &why);
    if (!f->json) return error_set(e, "%s: header: %.800s", f->path, why.text);
    const JsonValue *root = json_root(f->json), *notes = json_get(root, "__metadata__");
    if (notes && !json_is(notes, JSON_OBJECT)) return error_set(e, "%s: __metadata__ is not an object", f->path);
    for (const JsonValue *v = json_first(notes); v; v = v->next)
        if (!json_is(v, JSON_STRING))
            return error_set(e, "%s: __metadata__ entry %.200s is not a string", f->path, v->key);

    size_t sizes = 0;
    for (const JsonValue *v = json_first(root); v; v = v->next)
        if (json_is(json_get(v, "shape"), JSON_ARRAY)) sizes += json_get(v, "shape")->length;
    f->tensors = mem_alloc(root->length * sizeof *f->tensors);
    f->shapes = mem_alloc(sizes * sizeof *f->shapes);
    uint64_t *shape = f->shapes;
    for (const JsonValue *v = json_first(root); v; v = v->next) {
        if (v == notes) continue;
        FileTensor *t = &f->tensors[f->count];
        if (!entry_read(f->path, v, t, shape, e)) return 0;
        shape += t->rank;
        f->count++;
    }
    qsort(f->tensors, f->count, sizeof *f->tensors, by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < f->count; end += f->tensors[i++].bytes)
        if (f->tensors[i].begin != end)
            return error_set(e, "%s: tensor %.200s begins at %llu of the data, %s: the one before it ends at %llu",
                             f->path, f->tensors[i].name, (unsigned long long)f->tensors[i].begin,
                             f->tensors[i].begin < end ? "an overlap" : "a hole", (unsigned long long)end);
    if (end != data_bytes)
        return error_set(e, "%s: its tensors take %llu bytes but the file holds %llu: it is truncated or has extra "
                         "data at its end", f->path, (unsigned long long)end, (unsigned long long)data_bytes);
    return 1;
}

static int read_at(const Shard *f, uint64_t offset, void *data, size_t bytes, Error *e) {
    return file_read_at(f->fd, offset, data, bytes) == bytes
        || error_set(e, "%s: %s", f->path, errno ? strerror(errno) : "the file became shorter while it was read");
}

static int shard_open(Shard *f, const char *path, Error *e) {
    uint64_t size, n = 0;
    *f = (Shard){ .path = text_format("%s", path), .fd = file_open(path, &size, e) };
    if (f->fd < 0) return 0;
    if (size < 8) return error_set(e, "%s: %llu bytes are too few for a safetensors file", path,
                                   (unsigned long long)size);
    if (!read_at(f, 0, &n, 8, e)) return 0;                     /* little-endian, as the data */
    if (n > HEADER_MAX)
        return error_set(e, "%s: header of %llu bytes, but at most %d are allowed; is it a safetensors file?", path,
                         (unsigned long long)n, HEADER_MAX);
    if (n > size - 8) return error_set(e, "%s: header of %llu bytes in a file of %llu", path, (unsigned long long)n,
                                       (unsigned long long)size);
    f->data = 8 + n;
    char *text = mem_alloc((size_t)n);
    int ok = read_at(f, 8, text, (size_t)n, e) && header_read(f, text, (size_t)n, size - 8 - n, e);
    free(text);
    return ok;
}

static void shard_close(Shard *f) {
    if (f->fd >= 0) close(f->fd);
    json_free(f->json);
    free_each(f->path, f->tensors, f->shapes);
}

/* ---- a set of files -------------------------------------------------------------------------- */

struct Safetensors {
    Shard *shards;
    int shard_count;
    FileTensor *tensors;                /* of all shards */
    const FileTensor **by_name;
    size_t count;
};

int by_tensor_name(const void *a, const void *b) {
    return strcmp((*(const FileTensor *const *)a)->name, (*(const FileTensor *const *)b)->name);
}

static int add_shard(Safetensors *s, const char *path, Error *e) {
    s->shards = mem_grow(s->shards, ((size_t)s->shard_count + 1) * sizeof *s->shards);
    Shard *f = &s->shards[s->shard_count++];
    if (!shard_open(f, path, e)) return 0;
    s->tensors = mem_grow(s->tensors, (s->count + f->count) * sizeof *s->tensors);
    for (size_t i = 0; i < f->count; i++) {
        s->tensors[s->count] = f->tensors[i];
        s->tensors[s->count++].file = s->shard_count - 1;
    }
    return 1;
}

static int index_names(Safetensors *s, Error *e) {
    s->by_name = mem_grow(s->by_name, s->count * sizeof *s->by_name);
    for (size_t i = 0; i < s->count; i++) s->by_name[i] = &s->tensors[i];
    qsort(s->by_name, s->count, sizeof *s->by_name, by_tensor_name);
    for (size_t i = 1; i < s->count; i++)
        if (by_tensor_name(&s->by_name[i - 1], &s->by_name[i]) == 0)
            return error_set(e, "tensor %.200s is in two files: %s and %s", s->by_name[i]->name,
                             s->shards[s->by_name[i - 1]->file].path, s->shards[s->by_name[i]->file].path);
    return 1;
}

static int by_string(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int is_inside(const char *name) {
    for (const char *part = name, *end; ; part = end + 1) {
        end = part + strcspn(part, "/");
        if (end == part || !strncmp(part, "..", (size_t)(end - part))) return 0;           /* "", ".", ".." */
        if (!*end) return 1;
    }
}

/* Opens every shard of "weight_map" once, in the order of their names. */
static int open_mapped(Safetensors *s, const char *folder, const char *index, const JsonValue *map, Error *e) {
    const char **names = mem_alloc(map->length * sizeof *names);
    size_t n = 0;
    int ok = 1;
    for (const JsonValue *v = json_first(map); v && ok; v = v->next) {
        const char *name = names[n++] = json_string(v, "");
        if (!is_inside(name))
            ok = error_set(e, "%s: tensor %.200s is in \"%.200s\", which is not the name of a file in this "
                           "folder", index, v->key, name);
    }
    if (ok) qsort(names, n, sizeof *names, by_string);
    for (size_t i = 0; i < n && ok; i++) {
        if (i && !strcmp(names[i], names[i - 1])) continue;
        char *path = text_format("%s/%s", folder, names[i]);
        ok = add_shard(s, path, e);
        free(path);
    }
    free(names);
    return ok;
}

/* The map and the files must agree. Warns of tensors that the map does not name. */
static int check_map(Safetensors *s, const char *folder, const char *index, const JsonValue *map, Error *e) {
    const size_t before = strlen(folder) + 1;
    for (const JsonValue *v = json_first(map); v; v = v->next) {
        const FileTensor *t = safetensors_find(s, v->key);
        if (!t || strlen(v->key) != v->key_length || strcmp(s->shards[t->file].path + before, json_string(v, "")))
            return error_set(e, "%s: tensor %.200s is not in %.200s", index, v->key, json_string(v, ""));
    }
    size_t kept = 0;
    const char *extra = NULL;
    for (size_t i = 0; i < s->count; i++)
        if (json_get(map, s->tensors[i].name)) s->tensors[kept++] = s->tensors[i];
        else extra = s->tensors[i].name;
    if (extra) warn("%s: ignored %zu tensors that its map does not name, among them %.200s", index,
                    s->count - kept, extra);
    s->count = kept;
    return index_names(s, e);
}

#define INDEX "model.safetensors.index.json"
static int open_index(Safetensors *s, const char *folder, const char *index, Error *e) {
    Json *json = json_read_file(folder, INDEX, e);
    if (!json) return 0;
    const JsonValue *map = json_get(json_root(json), "weight_map");
    int ok = json_is(map, JSON_OBJECT) ? 1 : error_set(e, "%s: \"weight_map\" is missing", index);
    ok = ok && open_mapped(s, folder, index, map, e) && index_names(s, e) && check_map(s, folder, index, map, e);
    json_free(json);
    return ok;
}

static int open_folder(Safetensors *s, const char *folder, Error *e) {
    char *single = text_format("%s/model.safetensors", folder), *index = text_format("%s/" INDEX, folder);
    int ok = is_there(single) ? add_shard(s, single, e) && index_names(s, e)
           : is_there(index) ? open_index(s, folder, index, e)
           : error_set(e, "%s: holds neither model.safetensors nor " INDEX, folder);
    free_each(single, index);
    return ok;
}
Safetensors *safetensors_open(const char *path, Error *e) {
    Safetensors *s = mem_alloc(sizeof *s);
    if (is_folder(path) ? open_folder(s, path, e) : add_shard(s, path, e) && index_names(s, e)) return s;
    safetensors_close(s);
    return NULL;
}

void safetensors_close(Safetensors *s) {
    if (!s) return;
    for (int i = 0; i < s->shard_count; i++) shard_close(&s->shards[i]);
    free_each(s->shards, s->tensors, s->by_name, s);
}

size_t safetensors_count(const Safetensors *s) { return s->count; }
const FileTensor *safetensors_at(const Safetensors *s, size_t i) { return &s->tensors[i]; }

const FileTensor *safetensors_find(const Safetensors *s, const char *name) {
    FileTensor wanted = { .name = name };
    const FileTensor *w = &wanted, **found = NULL;
    if (s->count) found = bsearch(&w, s->by_name, s->count, sizeof *found, by_tensor_name);
    return found ? *found : NULL;
}

const char *safetensors_note(const Safetensors *s, const char *key) {
    const char *value = NULL;
    for (int i = 0; i < s->shard_count && !value; i++)
        value = json_string(json_get(json_get(json_root(s->shards[i].json), "__metadata__"), key), NULL);
    return value;
}

/* ---- reading --------------------------------------------------------------------------------- */

int safetensors_read(Safetensors *s, const FileTensor *t, uint64_t offset, void *data, size_t bytes, Error *e) {
    const Shard *f = &s->shards[t->file];
    if (offset > t->bytes || bytes > t->bytes - offset)
        return error_set(e, "%s: tensor %.200s has %llu bytes; cannot read %zu from byte %llu", f->path, t->name,
                         (unsigned long long)t->bytes, bytes, (unsigned long long)offset);
    return read_at(f, f->data + t->begin + offset, data, bytes, e);
}

int safetensors_read_as(Safetensors *s, const FileTensor *t, uint64_t first, const char *dtype, void *data,
                        size_t n, Error *e) {
    enum { SOME = 1 << 12 };
    unsigned char piece[SOME * 8];
    double values[SOME];
    const FileDtype *from = dtype_named(t->dtype), *to = dtype_named(dtype);
    if (!from->read) return error_set(e, "%s: tensor %.200s has dtype %s; it must be F16, BF16, F32 or F64",
                                      s->shards[t->file].path, t->name, t->dtype);
    if (first > t->count || n > t->count - first)
        return error_set(e, "%s: tensor %.200s has %llu elements; cannot read %zu from element %llu",
                         s->shards[t->file].path, t->name, (unsigned long long)t->count, n, (unsigned long long)first);
    const size_t width = (size_t)from->bits / 8, wide = (size_t)to->bits / 8;
    if (from == to) return safetensors_read(s, t, first * width, data, n * width, e);
    for (size_t part; n; n -= part, first += part, data = (char *)data + part * wide) {
        part = n < SOME ? n : SOME;
        if (!safetensors_read(s, t, first * width, piece, part * width, e)) return 0;
        from->read(values, piece, part);
        to->write(data, values, part);
    }
    return 1;
}
int safetensors_read_mxfp4(Safetensors *s, const FileTensor *blocks, const FileTensor *scales, uint64_t first,
                           const char *dtype, void *data, size_t n, Error *e) {
    enum { SOME = 128, BYTES = MXFP4_SIDE / 2 };           /* blocks at a time */
    static const double e2m1[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };
    unsigned char codes[SOME * BYTES], scale[SOME];
    double values[SOME * MXFP4_SIDE];
    const FileDtype *to = dtype_named(dtype);
    const size_t wide = (size_t)to->bits / 8;
    for (size_t at = (size_t)first / MXFP4_SIDE, end = at + n / MXFP4_SIDE, part; at < end; at += part) {
        part = end - at < SOME ? end - at : SOME;
        if (!safetensors_read(s, blocks, at * BYTES, codes, part * BYTES, e)
            || !safetensors_read(s, scales, at, scale, part, e)) return 0;
        for (size_t b = 0; b < part; b++) {
            const double unit = scale[b] == 255 ? NAN : ldexp(1, scale[b] - 127);
            for (size_t i = 0; i < BYTES; i++) {
                values[b * MXFP4_SIDE + 2*i]     = unit * e2m1[codes[b * BYTES + i] & 15];
                values[b * MXFP4_SIDE + 2*i + 1] = unit * e2m1[codes[b * BYTES + i] >> 4];
            }
        }
        to->write(data, values, part * MXFP4_SIDE);
        data = (char *)data + part * MXFP4_SIDE * wide;
    }
    return 1;
}
/* e4m3: a sign, 4 bits of exponent, 3 of mantissa; no infinity, 127 is NaN. */
static double e4m3(unsigned char code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double size = (code & 127) == 127 ? NAN : exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 128 ? -size : size;
}
int safetensors_read_fp8(Safetensors *s, const FileTensor *codes, const FileTensor *scales, uint64_t first,
                         const char *dtype, void *data, size_t n, Error *e) {
    enum { SOME = 1 << 15 };
    const FileDtype *to = dtype_named(dtype);
    const uint64_t columns = codes->shape[codes->rank - 1], rows = codes->shape[codes->rank - 2],
        down = scales->shape[scales->rank - 2], across = scales->shape[scales->rank - 1];
    unsigned char *code = mem_alloc(SOME);
    double values[FP8_SIDE], *scale = mem_alloc(across * sizeof *scale);
    uint64_t blocks = UINT64_MAX, at = first;               /* blocks: the row of blocks whose scales are there */
    int ok = 1;
    for (uint64_t end = first + n, some; at < end && ok; at += some) {
        some = end - at < SOME ? end - at : SOME;
        ok = safetensors_read(s, codes, at, code, some, e);
        for (uint64_t i = 0, part; i < some && ok; i += part) {
            const uint64_t row = (at + i) / columns, column = (at + i) % columns, matrix = row / rows,
                left = FP8_SIDE - column % FP8_SIDE, wanted = matrix * down + row % rows / FP8_SIDE;
            part = left < columns - column ? left : columns - column;       /* of this row of a block */
            if (part > some - i) part = some - i;
            if (wanted != blocks) ok = safetensors_read_double(s, scales, wanted * across, scale, across, e);
            blocks = wanted;
            for (uint64_t k = 0; k < part; k++) values[k] = scale[column / FP8_SIDE] * e4m3(code[i + k]);
            to->write((char *)data + (at + i - first) * (uint64_t)to->bits / 8, values, part);
        }
    }
    free_each(code, scale);
    return ok;
}
int safetensors_read_int8(Safetensors *s, const FileTensor *codes, const FileTensor *scales, uint64_t first,
                          const char *dtype, void *data, size_t n, Error *e) {
    enum { SOME = 1 << 12 };
    int8_t code[SOME];
    double values[SOME], scale[SOME];
    const FileDtype *to = dtype_named(dtype);
    const size_t side = (size_t)(codes->count / scales->count), most = SOME / side * side;
    for (size_t part; n; n -= part, first += part, data = (char *)data + part * (size_t)to->bits / 8) {
        part = n < most ? n : most;
        if (!safetensors_read(s, codes, first, code, part, e)
            || !safetensors_read_double(s, scales, first / side, scale, part / side, e)) return 0;
        for (size_t i = 0; i < part; i++) values[i] = scale[i / side] * code[i];
        to->write(data, values, part);
    }
    return 1;
}
double safetensors_value(const char *dtype, const void *element) {
    double value;
    dtype_named(dtype)->read(&value, element, 1);
    return value;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct SafetensorsWriter {
    FileWriter *file;
    char *path;
    uint64_t data, size, at;            /* where the data begins in the file; bytes of the data;
                                         * where the next byte goes in the file */
    FilePart *parts;                    /* what was written, neighbours as one */
    size_t count, capacity;
    int too_much;
};

static int put(SafetensorsWriter *w, const void *data, size_t bytes, Error *e) {
    const FilePart *before = w->count ? &w->parts[w->count - 1] : NULL;
    if (!before || before->at + before->sum.bytes != w->at) {
        array_grow(w->parts, w->count, w->capacity);
        w->parts[w->count++] = (FilePart){ .at = w->at };
    }
    FilePart *now = &w->parts[w->count - 1];
    now->sum.crc = crc32c(now->sum.crc, data, bytes);
    now->sum.bytes += bytes;
    w->at += bytes;
    return file_add(w->file, data, bytes, e);
}

static int header_write(Text *h, const FileTensor *tensors, size_t n, const FileNote *notes, size_t note_count,
                        uint64_t *end, Error *e) {
    *end = 0;
    text_add(h, "{");
    for (size_t i = 0; i < note_count; i++) {
        text_add(h, i ? "," : "\"__metadata__\":{");
        text_add_json(h, notes[i].key, strlen(notes[i].key));
        text_add(h, ":");
        text_add_json(h, notes[i].value, strlen(notes[i].value));
    }
    if (note_count) text_add(h, n ? "}," : "}");
    for (size_t i = 0; i < n; i++) {
        const FileTensor *t = &tensors[i];
        const FileDtype *dtype = dtype_named(t->dtype);
        const size_t length = strlen(t->name);
        if (!dtype) return error_set(e, "tensor %.200s: unknown dtype %.40s", t->name, t->dtype);
        if (utf8_valid(t->name, length) < length) return error_set(e, "the name of tensor %zu is not UTF-8", i);
        uint64_t bits = (uint64_t)dtype->bits;
        if (i) text_add(h, ",");
        text_add_json(h, t->name, length);
        text_add(h, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
        for (int d = 0; d < t->rank; d++) {
            text_add(h, d ? ",%llu" : "%llu", (unsigned long long)t->shape[d]);
            if (!multiply(&bits, t->shape[d])) return error_set(e, "tensor %.200s: its size overflows", t->name);
        }
        uint64_t begin = *end;
        if (begin > INT64_MAX - bits / 8) return error_set(e, "tensor %.200s: the file would be too large", t->name);
        *end += bits / 8;
        text_add(h, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin, (unsigned long long)*end);
    }
    text_add(h, "}");
    while (h->length % 8) text_add(h, " ");             /* aligns the data for programs that map the file */
    if (h->length <= HEADER_MAX) return 1;
    return error_set(e, "the names and shapes of %zu tensors need more than %d bytes", n, HEADER_MAX);
}

/* how: of several writers the first, or one of the others; or the only one. */
enum { ALONE = -1, OTHERS, FIRST };
static SafetensorsWriter *create(const char *path, const FileTensor *tensors, size_t n, const FileNote *notes,
                                 size_t note_count, int how, Error *e) {
    Error why;
    Text h = { 0 };
    Shard check = { .path = text_format("%s", path), .fd = -1 };
    SafetensorsWriter *w = mem_alloc(sizeof *w);
    w->path = text_format("%s", path);
    int ok = header_write(&h, tensors, n, notes, note_count, &w->size, &why);
    if (!ok) error_set(e, "%s: %.900s", path, why.text);
    w->data = 8 + h.length;
    ok = ok && (how == OTHERS || header_read(&check, h.at, h.length, w->size, e))
      && (w->file = how == ALONE ? file_create(path, e) : file_join(path, w->data + w->size, e));
    const uint64_t length = h.length;                           /* little-endian, as the data */
    if (how != OTHERS) ok = ok && put(w, &length, 8, e) && put(w, h.at, h.length, e);
    else ok = ok && safetensors_seek(w, 0, e);
    shard_close(&check);
    free(h.at);
    if (ok) return w;
    safetensors_abandon(w);
    return NULL;
}
SafetensorsWriter *safetensors_create(const char *path, const FileTensor *tensors, size_t n, const FileNote *notes,
                                      size_t note_count, Error *e) {
    return create(path, tensors, n, notes, note_count, ALONE, e);
}
SafetensorsWriter *safetensors_join(const char *path, const FileTensor *tensors, size_t n, const FileNote *notes,
                                    size_t note_count, int first, Error *e) {
    return create(path, tensors, n, notes, note_count, first ? FIRST : OTHERS, e);
}

int safetensors_seek(SafetensorsWriter *w, uint64_t at, Error *e) {
    if (at > w->size)
        return error_set(e, "%s: byte %llu of %llu", w->path, (unsigned long long)at, (unsigned long long)w->size);
    w->at = w->data + at;
    return file_seek(w->file, w->at, e);
}
int safetensors_append(SafetensorsWriter *w, const void *data, size_t bytes, Error *e) {
    const uint64_t left = w->data + w->size - w->at;
    if (bytes > left) {
        w->too_much = 1;
        return error_set(e, "%s: %zu more bytes of data, but only %llu are missing", w->path, bytes,
                         (unsigned long long)left);
    }
    return put(w, data, bytes, e);
}

size_t safetensors_width(const char *dtype) { return dtype_named(dtype) ? (size_t)dtype_named(dtype)->bits / 8 : 0; }

int safetensors_append_double(SafetensorsWriter *w, const char *name, const char *type, const double *data,
                              size_t n, Error *e) {
    enum { SOME = 1 << 12 };
    double piece[SOME], back[SOME];                     /* piece: elements of any type */
    const FileDtype *dtype = dtype_named(type);
    if (!dtype || !dtype->write) return error_set(e, "%s: dtype %s is not written", w->path, type);
    for (size_t part; n; n -= part, data += part) {
        part = n < SOME ? n : SOME;
        dtype->write(piece, data, part);
        dtype->read(back, (const unsigned char *)piece, part);
        for (size_t i = 0; i < part; i++)
            if (!isfinite(back[i]))
                return error_set(e, "%s: tensor %.200s has the number %g, which is beyond the range of %s", w->path,
                                 name, data[i], type);
        if (!safetensors_append(w, piece, part * safetensors_width(type), e)) return 0;
    }
    return 1;
}

int safetensors_leave(SafetensorsWriter *w, FilePart **parts, size_t *count, Error *e) {
    const int ok = file_finish(w->file, e);
    w->file = NULL;
    if (ok) *parts = w->parts, *count = w->count, w->parts = NULL;
    safetensors_abandon(w);
    return ok;
}
int safetensors_finish(SafetensorsWriter *w, Error *e, uint64_t *bytes, uint32_t *crc) {
    FileSum sum;
    const uint64_t left = w->data + w->size - w->at;
    int ok = w->too_much ? error_set(e, "%s: more data than its tensors hold", w->path)
           : left ? error_set(e, "%s: %llu bytes of data are missing", w->path, (unsigned long long)left)
           : file_sum(w->parts, w->count, &sum) ? 1 : error_set(e, "%s: its data are not complete", w->path);
    if (ok) ok = file_finish(w->file, e), w->file = NULL;
    if (ok && bytes) *bytes = sum.bytes;
    if (ok && crc) *crc = sum.crc;
    safetensors_abandon(w);
    return ok;
}

void safetensors_abandon(SafetensorsWriter *w) {
    if (!w) return;
    file_abandon(w->file);
    free_each(w->parts, w->path, w);
}
