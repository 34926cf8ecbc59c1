/* data.c: see data.h. What training sees: tokens of segments, and the order of samples.
 *
 * Epoch k of a seed is a permutation of its windows that is computed, not stored: a Feistel network
 * splits the number of a window into two halves and mixes one into the other, round by round.
 * Whatever the mixing function, each round can be undone, so the whole is a permutation of 4^h
 * numbers. To permute any smaller count, apply it until the result is below that count ("cycle
 * walking": Black and Rogaway 2002, Ciphers with arbitrary finite domains). */
#define _POSIX_C_SOURCE 200809L
#include "data_impl.h"
#include "llmc/base/random.h"
#include <fcntl.h>
#include <stdlib.h>

enum { ROUNDS = 12 };                   /* of the Feistel network: four do for many windows, five windows need more */

/* ---- segments -------------------------------------------------------------------------------- */

enum { KEEP_OPEN = 256 };               /* descriptors held; files beyond these are opened for each read */

Segment *data_add_segment(Data *d, Split split, const char *path, int width) {
    int n = d->segments[split]++;
    d->segment[split] = mem_grow(d->segment[split], (size_t)(n + 1) * sizeof(Segment));
    Segment *p = &d->segment[split][n];
    *p = (Segment){ .path = text_format("%s", path), .fd = -1, .width = width };
    return p;
}

void data_add_tokens(Data *d, Split split, const char *path, int fd, int width, int64_t start, int64_t tokens) {
    Segment *p = data_add_segment(d, split, path, width);
    p->start = start;
    p->tokens = tokens;
    if (d->descriptors < KEEP_OPEN) p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    d->descriptors += p->fd >= 0;
}

int data_too_small(const char *path, int64_t count, Error *e) {
    return error_set(e, "%s: found %lld token%s, expected at least 2 to hold out a tenth for validation; give "
                     "more data, or validation data of its own (-j)", path, (long long)count, count == 1 ? "" : "s");
}

/* ---- facts ----------------------------------------------------------------------------------- */

int64_t     data_tokens(const Data *d, Split split) { return d->tokens[split]; }
int64_t     data_bytes(const Data *d, Split split)  { return d->bytes[split]; }
int         data_max_id(const Data *d)              { return d->max_id; }
int         data_is_text(const Data *d)             { return d->is_text; }
int         data_is_fallback(const Data *d)         { return d->is_fallback; }
int         data_has_chats(const Data *d)           { return d->has_chats; }
const Chat *data_chat(const Data *d)                { return &d->chat; }
const char *data_description(const Data *d)         { return d->description; }
uint64_t    data_fingerprint(const Data *d)         { return d->fingerprint; }
uint64_t    data_print_without_bos(const Data *d)   { return d->without_bos; }

/* ---- windows --------------------------------------------------------------------------------- */

int64_t data_windows(const Segment *p, int T) {
    return T < 1 || p->tokens <= T ? 0 : p->tokens < 2 * (int64_t)T ? 1 : p->tokens / T - 1;
}
/* Those of a segment that an epoch visits. */
static int64_t windows(const Segment *p, int T) {
    if (p->is_chats) return p->packing.T == T ? p->packing.rows : 0;
    if (p->kept) return p->kept_T == T ? p->kept_windows : 0;
    return data_windows(p, T);
}
static int64_t validation_windows(const Segment *p, int T) {
    return p->is_chats ? windows(p, T) : T < 1 ? 0 : (p->tokens - 1 + T - 1) / T;
}

static int check_packing(Segment *p, const char *use, int T, Error *e) {
    if (T < 1 || !packing_make(p, T, e)) return 0;
    if (p->packing.cut)             /* not the path: it may be that of the cache */
        warn("conversations for %s that are longer than -t %d tokens: %lld; their ends are cut off; a "
             "larger -t keeps them", use, T, (long long)p->packing.cut);
    if (p->packing.unanswered)
        warn("conversations for %s without an answer of the assistant in their first %lld tokens: %lld; "
             "they are left out", use, (long long)T + 1, (long long)p->packing.unanswered);
    return 1;
}
int data_check(Data *d, int T, int vocab, Error *e) {
    static const char *const names[] = { "training", "validation" };
    for (int s = 0; s < 2; s++) {
        const Segment *longest = d->segment[s];
        for (int i = 0; i < d->segments[s]; i++) {
            Segment *p = &d->segment[s][i];
            if (p->max >= (uint32_t)vocab)
                return error_set(e, "%s: token id %u at %s %lld, expected ids below the vocabulary of %d; the data "
                                 "are for another tokenizer", p->path, p->max, p->memory ? "token" : "byte",
                                 (long long)(p->memory ? p->max_at : p->start + p->max_at * p->width), vocab);
            if (p->is_chats && !check_packing(p, names[s], T, e)) return 0;
            if (p->is_chats || (p->tokens > longest->tokens && !longest->is_chats)) longest = p;
        }
        if (longest->tokens <= T && !longest->is_chats)
            return error_set(e, "%s: found %lld tokens for %s, expected at least %lld, one window of T+1; use a "
                             "shorter context or more data", longest->path, (long long)longest->tokens, names[s],
                             T + 1LL);
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

/* The positions of row b of a batch: those of a window of one text. NULL is fine. */
static int *count_up(int *positions, int b, int T) {
    int *row = positions ? positions + (size_t)b * (size_t)T : NULL;
    for (int t = 0; t < T && row; t++) row[t] = t;
    return row;
}
int data_batch(const Data *d, int64_t first, int B, int T, uint64_t seed, int *inputs, int *targets,
               int *positions, Error *e) {
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
        const int64_t slack = p->kept ? 0 : p->tokens - 1 - windows(p, T) * T;     /* chosen ones are cut as chosen */
        const uint64_t phase = random_bits(random_key(key, 1),
                                           (uint64_t)(p - d->segment[DATA_TRAIN])) % (uint64_t)(slack + 1);
        const int64_t at = (int64_t)phase + (p->kept ? p->kept[w] : w) * T;
        if (!data_read_tokens(p, at, T, inputs, e) || !data_read_tokens(p, at + 1, T, targets, e)) return 0;
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
    for (int i = 0; i < d->segments[DATA_VALIDATION]; i++)
        sum += validation_windows(&d->segment[DATA_VALIDATION][i], T);
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
            if (!data_read_tokens(p, w * T, n, inputs, e) || !data_read_tokens(p, w * T + 1, n, targets, e)) return 0;
        }
        for (; n < T; n++) { inputs[n] = 0; targets[n] = NO_TOKEN; }
    }
    return 1;
}
