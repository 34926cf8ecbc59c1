/* segment.c: see segment.h. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "segment.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 18 };               /* bytes a scan reads at once */

int data_read_at(const Segment *p, void *to, size_t bytes, int64_t at, Error *e) {
    uint64_t there;
    int fd = p->fd >= 0 ? p->fd : file_open(p->path, &there, e);
    if (fd < 0) return 0;
    const size_t done = file_read_at(fd, (uint64_t)at, to, bytes);
    const int why = errno;
    struct stat s = { .st_size = 0 };
    if (done < bytes) fstat(fd, &s);
    if (p->fd < 0) close(fd);
    if (done == bytes) return 1;
    if (why) return error_set(e, "%s: could not be read at byte %lld: %s", p->path, (long long)at, strerror(why));
    return error_set(e, "%s: found %lld bytes, expected at least %lld as when it was opened: it was shortened while in "
                     "use", p->path, (long long)s.st_size, (long long)at + (long long)bytes);
}

/* `n` tokens as stored: in memory, or read into the buffer. */
static const void *stored(const Segment *p, int64_t first, int64_t n, void *buffer, Error *e) {
    if (p->memory) return (const char *)p->memory + first * p->width;
    return data_read_at(p, buffer, (size_t)(n * p->width), p->start + first * p->width, e) ? buffer : NULL;
}

static uint32_t token(const void *tokens, int width, int64_t i) {
    return width == 1 ? ((const uint8_t *)tokens)[i] : width == 2 ? ((const uint16_t *)tokens)[i]
         : ((const uint32_t *)tokens)[i];
}
int data_read_raw(const Segment *p, int64_t first, int64_t count, uint32_t *out, Error *e) {
    const void *tokens = stored(p, first, count, out, e);
    for (int64_t i = tokens ? count : 0; i-- > 0; ) out[i] = token(tokens, p->width, i);       /* backwards: in place */
    return tokens != NULL;
}

int data_read_tokens(const Segment *p, int64_t first, int64_t count, int *out, Error *e) {
    uint32_t buffer[2048];
    for (int64_t n; count > 0; first += n, out += n, count -= n) {
        n = (int64_t)sizeof buffer / p->width;
        if (n > count) n = count;
        const void *tokens = stored(p, first, n, buffer, e);
        if (!tokens) return 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = token(tokens, p->width, i);
            if (id > p->max)
                return error_set(e, "%s: token id %u at byte %lld, but the largest was %u when it was opened: it was "
                                 "rewritten while in use", p->path, id,
                                 (long long)(p->start + (first + i) * p->width), p->max);
            out[i] = (int)id;
        }
    }
    return 1;
}

/* What of a stored token is its id. */
static uint32_t id_bits(const Segment *p) { return p->is_chats ? TOKEN_ID : UINT32_MAX; }

static uint32_t largest(const void *tokens, int width, uint32_t bits, int64_t n) {
    uint16_t lane[16] = { 0 };                                  /* vectors of uint16, because shards are large */
    uint32_t max = 0;
    int64_t i = 0;
    for (const uint16_t *two = tokens; width == 2 && i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) lane[j] = two[i + j] > lane[j] ? two[i + j] : lane[j];
    for (int j = 0; j < 16; j++) max = lane[j] > max ? lane[j] : max;
    for (; i < n; i++) { uint32_t id = token(tokens, width, i) & bits; max = id > max ? id : max; }
    return max;
}
int data_scan(Segment *p, Error *e) {
    char *buffer = mem_alloc(CHUNK);
    int64_t step = CHUNK / p->width;
    int ok = 1;
    for (int64_t first = 0; ok && first < p->tokens; first += step) {
        int64_t n = step < p->tokens - first ? step : p->tokens - first;
        const void *tokens = stored(p, first, n, buffer, e);
        ok = tokens != NULL;
        uint32_t max = ok ? largest(tokens, p->width, id_bits(p), n) : 0;
        if (!ok || (first && max <= p->max)) continue;
        p->max = max;
        for (p->max_at = 0; (token(tokens, p->width, p->max_at) & id_bits(p)) != max; ) p->max_at++;
        p->max_at += first;
    }
    free(buffer);
    if (ok && p->max > INT_MAX)
        return error_set(e, "%s: token id %lu at byte %lld, expected at most %d: not a file of tokens, or damaged",
                         p->path, (unsigned long)p->max, (long long)(p->start + p->max_at * p->width), INT_MAX);
    return ok;
}
