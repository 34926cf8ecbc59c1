/* data.c: see data.h. What training sees: tokens of segments, and the order of samples.
 *
 * Epoch k of a seed is a permutation of its windows that is computed, not stored: a Feistel network splits the number of a
 * window into two halves and mixes one into the other, round by round. Whatever the mixing function, each round can be
 * undone, so the whole is a permutation of 4^h numbers. To permute any smaller count, apply it until the result is below
 * that count ("cycle walking": Black and Rogaway 2002, Ciphers with arbitrary finite domains). */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "data_impl.h"
#include "llmc/base/random.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 1 << 18,                    /* bytes a scan reads at once */
    ROUNDS = 12                         /* of the Feistel network: four do for many windows, five windows need more */
};

/* ---- reading ------------------------------------------------------------------------------------------- */

int data_read_at(const Segment *p, void *to, size_t bytes, int64_t at, Error *e) {
    int fd = p->fd >= 0 ? p->fd : open(p->path, O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && done < bytes) {
        n = pread(fd, (char *)to + done, bytes - done, (off_t)(at + (int64_t)done));
        if (n > 0) done += (size_t)n;
        else if (n < 0 && errno == EINTR) n = 1;
    }
    int why = errno;
    struct stat s = { .st_size = 0 };
    if (fd >= 0 && done < bytes) fstat(fd, &s);
    if (fd >= 0 && p->fd < 0) close(fd);
    if (done == bytes) return 1;
    if (n < 0) return error_set(e, "%s: could not be read at byte %lld: %s", p->path, (long long)at, strerror(why));
    return error_set(e, "%s: found %lld bytes, expected at least %lld as when it was opened: it was "
                        "shortened while in use", p->path, (long long)s.st_size,
                        (long long)at + (long long)bytes);
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

/* Checks ids against the largest one found when the file was opened, so that no id exceeds the model's embedding. */
static int read_tokens(const Segment *p, int64_t first, int64_t count, int *out, Error *e) {
    uint32_t buffer[2048];
    while (count > 0) {
        int64_t n = (int64_t)sizeof buffer / p->width;
        if (n > count) n = count;
        const void *tokens = stored(p, first, n, buffer, e);
        if (!tokens) return 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = token(tokens, p->width, i);
            if (id > p->max)
                return error_set(e, "%s: token id %lu at byte %lld, but the largest was %lu when it was "
                                    "opened: it was rewritten while in use", p->path, (unsigned long)id,
                                    (long long)(p->start + (first + i) * p->width), (unsigned long)p->max);
            out[i] = (int)id;
        }
        first += n;
        out += n;
        count -= n;
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

/* ---- facts --------------------------------------------------------------------------------------------- */

int64_t     data_tokens(const Data *d, Split split) { return d->tokens[split]; }
int64_t     data_bytes(const Data *d, Split split)  { return d->bytes[split]; }
int         data_max_id(const Data *d)              { return d->max_id; }
int         data_is_text(const Data *d)             { return d->is_text; }
int         data_is_fallback(const Data *d)         { return d->is_fallback; }
int         data_has_chats(const Data *d)           { return d->has_chats; }
const Chat *data_chat(const Data *d)                { return &d->chat; }
const char *data_description(const Data *d)         { return d->description; }
uint64_t    data_fingerprint(const Data *d)         { return d->fingerprint; }

/* ---- windows ------------------------------------------------------------------------------------------- */

/* Windows of a segment in an epoch: as many as fit at every phase from 0 to T-1, and one if only one fits at phase 0. */
static int64_t windows(const Segment *p, int T) {
    if (p->is_chats) return p->packing.T == T ? p->packing.rows : 0;
    return T < 1 || p->tokens <= T ? 0 : p->tokens < 2 * (int64_t)T ? 1 : p->tokens / T - 1;
}

static int64_t validation_windows(const Segment *p, int T) {
    return p->is_chats ? windows(p, T) : T < 1 ? 0 : (p->tokens - 1 + T - 1) / T;
}

static int check_packing(Segment *p, const char *use, int T, Error *e) {
    if (T < 1 || !packing_make(p, T, e)) return 0;
    if (p->packing.cut)             /* not the path: it may be that of the cache */
        warn("conversations for %s that are longer than -t %d tokens: %lld; their ends are cut off; a larger -t keeps them", use, T,
             (long long)p->packing.cut);
    if (p->packing.unanswered)
        warn("conversations for %s without an answer of the assistant in their first %lld tokens: %lld; they are left out", use,
             (long long)T + 1, (long long)p->packing.unanswered);
    return 1;
}

int data_check(Data *d, int T, int vocab, Error *e) {
    static const char *const names[] = { "training", "validation" };
    for (int s = 0; s < 2; s++) {
        const Segment *longest = d->segment[s];
        for (int i = 0; i < d->segments[s]; i++) {
            Segment *p = &d->segment[s][i];
            if (p->max >= (uint32_t)vocab)
                return error_set(e, "%s: token id %lu at %s %lld, expected ids below the vocabulary of %d; "
                                    "the data are for another tokenizer", p->path, (unsigned long)p->max,
                                    p->memory ? "token" : "byte",
                                    (long long)(p->memory ? p->max_at : p->start + p->max_at * p->width),
                                    vocab);
            if (p->is_chats && !check_packing(p, names[s], T, e)) return 0;
            if (p->is_chats || (p->tokens > longest->tokens && !longest->is_chats)) longest = p;
        }
        if (longest->tokens <= T && !longest->is_chats)
            return error_set(e, "%s: found %lld tokens for %s, expected at least %lld, one window of T+1; "
                                "use a shorter context or more data", longest->path,
                                (long long)longest->tokens, names[s], (long long)T + 1);
    }
    for (int i = 0; i < d->segments[DATA_TRAIN]; i++)
        if (!windows(&d->segment[DATA_TRAIN][i], T))
            warn("%s: its %lld tokens are less than one window of T+1 = %lld and will not be used",
                 d->segment[DATA_TRAIN][i].path, (long long)d->segment[DATA_TRAIN][i].tokens, (long long)T + 1);
    return 1;
}

/* The image of i, one of 0 ... size-1, under the permutation of that key. */
static uint64_t permute(uint64_t i, uint64_t size, uint64_t key) {
    int half = 1;                                               /* bits of a half: the smallest with 4^half >= size */
    while (half < 31 && 1ull << 2 * half < size) half++;
    const uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t mixed = left ^ (random_bits(random_bits(key, round), right) & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= size);
    return i;
}

int64_t data_epoch_samples(const Data *d, int T) {
    int64_t sum = 0;
    for (int i = 0; i < d->segments[DATA_TRAIN]; i++) sum += windows(&d->segment[DATA_TRAIN][i], T);
    return sum;
}

/* The positions of row b of a batch: those of a window, which no other text shares. NULL is fine. */
static int *count_up(int *positions, int b, int T) {
    int *row = positions ? positions + (size_t)b * (size_t)T : NULL;
    for (int t = 0; t < T && row; t++) row[t] = t;
    return row;
}

int data_batch(const Data *d, int64_t first, int B, int T, uint64_t seed, int *inputs, int *targets, int *positions, Error *e) {
    const int64_t epoch_samples = data_epoch_samples(d, T);
    if (!epoch_samples) return error_set(e, "the training data hold no window of %lld tokens", (long long)T + 1);
    for (int b = 0; b < B; b++, inputs += T, targets += T) {
        int *const row = count_up(positions, b, T);
        const uint64_t key = random_key(seed, (uint64_t)((first + b) / epoch_samples));
        int64_t w = (int64_t)permute((uint64_t)((first + b) % epoch_samples), (uint64_t)epoch_samples,
                                     random_key(key, 0));
        const Segment *p = d->segment[DATA_TRAIN];
        for (; w >= windows(p, T); p++) w -= windows(p, T);
        if (p->is_chats) {
            if (!packing_row(p, w, T, inputs, targets, row, e)) return 0;
            continue;
        }
        const int64_t slack = p->tokens - 1 - windows(p, T) * T;
        const uint64_t phase = random_bits(random_key(key, 1),
                                           (uint64_t)(p - d->segment[DATA_TRAIN])) % (uint64_t)(slack + 1);
        const int64_t at = (int64_t)phase + w * T;
        if (!read_tokens(p, at, T, inputs, e) || !read_tokens(p, at + 1, T, targets, e)) return 0;
    }
    return 1;
}

int64_t data_counted(const Data *d, int64_t first, int B, int T, uint64_t seed, Error *e) {
    int64_t counted = 0;
    if (!data_has_chats(d)) return (int64_t)B * T;
    int *row = mem_alloc(3 * (size_t)T * sizeof *row);
    for (int b = 0; b < B; b++) {
        if (!data_batch(d, first + b, 1, T, seed, row, row + T, row + 2 * (size_t)T, e)) { free(row); return -1; }
        for (int t = 0; t < T; t++) counted += row[T + t] >= 0;
    }
    free(row);
    return counted;
}

int64_t data_validation_batches(const Data *d, int B, int T) {
    int64_t sum = 0;
    for (int i = 0; i < d->segments[DATA_VALIDATION]; i++) sum += validation_windows(&d->segment[DATA_VALIDATION][i], T);
    return (sum + B - 1) / B;
}

int data_validation(const Data *d, int64_t first, int B, int T, int *inputs, int *targets, int *positions, Error *e) {
    const Segment *end = d->segment[DATA_VALIDATION] + d->segments[DATA_VALIDATION];
    for (int b = 0; b < B; b++, inputs += T, targets += T) {
        int *const row = count_up(positions, b, T);
        const Segment *p = d->segment[DATA_VALIDATION];
        int64_t w = first + b, n = 0;
        for (; p < end && w >= validation_windows(p, T); p++) w -= validation_windows(p, T);
        if (p < end && p->is_chats) {
            if (!packing_row(p, w, T, inputs, targets, row, e)) return 0;
            continue;
        }
        if (p < end) {
            n = p->tokens - 1 - w * T < T ? p->tokens - 1 - w * T : T;
            if (!read_tokens(p, w * T, n, inputs, e) || !read_tokens(p, w * T + 1, n, targets, e)) return 0;
        }
        for (; n < T; n++) { inputs[n] = 0; targets[n] = -1; }
    }
    return 1;
}
