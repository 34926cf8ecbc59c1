/* skip.c: which windows of a text training leaves out (-sk): those that the text before them
 * predicts best, such as the thousandth register of a generated header. What is foreseen teaches
 * little, and a step takes as long for it as for what is new.
 *
 * A table holds, for each hash of four tokens, the token that followed them last; a window's score
 * is how many of its tokens the table foresaw as it read on. Only neighbours are compared, because
 * the table knows more, and all scores rise, the longer it has read. One pass over the text: 2.4 s
 * for 179 million tokens. */
#include "data_impl.h"
#include <stdlib.h>

enum { GRAM = 4, NEIGHBOURS = 4096, BITS_MIN = 12, BITS_MAX = 26 };

typedef struct { uint16_t *follows; int bits; } Memory;     /* tokens plus one, modulo 2^16; 0: none */

/* slot: scratch, T. */
static int foreseen(Memory m, const int *tokens, int T, uint32_t *slot) {
    int right = 0;
    for (int t = GRAM; t < T; t++) {
        uint64_t hash = 0;
        for (int i = t - GRAM; i < t; i++) hash = (hash ^ (uint64_t)tokens[i]) * 0x9E3779B97F4A7C15u;
        slot[t] = (uint32_t)((hash ^ hash >> 32) * 0x9E3779B97F4A7C15u >> (64 - m.bits));
        __builtin_prefetch(&m.follows[slot[t]], 1);         /* most of them are far from any cache */
    }
    for (int t = GRAM; t < T; t++) {
        const uint16_t now = (uint16_t)(tokens[t] + 1);
        right += m.follows[slot[t]] == now;
        m.follows[slot[t]] = now;
    }
    return right;
}

/* Of `count` windows from `first` on keeps the `most` with the lowest scores. with: how many have
 * a score. */
static void keep(Segment *p, const int *score, int T, int64_t first, int count, int most) {
    int *with = mem_alloc(((size_t)T + 1) * sizeof *with), limit = 0, below = 0;
    for (int w = 0; w < count; w++) with[score[w]]++;
    while (below + with[limit] < most) below += with[limit++];
    for (int w = 0, equal = most - below; w < count; w++)
        if (score[w] < limit || (score[w] == limit && equal-- > 0)) p->kept[p->kept_windows++] = first + w;
    free(with);
}

static int skip_windows(Segment *p, int64_t windows, int T, int percent, Memory memory, Error *e) {
    int *tokens = mem_alloc((size_t)T * sizeof *tokens), score[NEIGHBOURS], n = 0;
    uint32_t *slot = mem_alloc((size_t)T * sizeof *slot);
    int ok = 1;
    p->kept = mem_alloc((size_t)windows * sizeof *p->kept);
    p->kept_T = T;
    for (int64_t w = 0; ok && w < windows; w++) {
        if (!(ok = data_read_tokens(p, w * T, T, tokens, e))) break;
        score[n++] = foreseen(memory, tokens, T, slot);
        if (n < NEIGHBOURS && w + 1 < windows) continue;
        keep(p, score, T, w + 1 - n, n, n - n * percent / 100);
        n = 0;
    }
    free_each(tokens, slot);
    return ok;
}

int data_skip(Data *d, int T, int percent, Error *e) {
    Memory memory = { NULL, BITS_MIN };
    int ok = 1;
    if (d->has_chats) return error_set(e, "-sk %d: the data hold conversations, and none of them is left out", percent);
    while (memory.bits < BITS_MAX && 1ll << memory.bits < d->tokens[DATA_TRAIN]) memory.bits++;
    memory.follows = mem_alloc(sizeof *memory.follows << memory.bits);
    for (int i = 0; ok && i < d->segments[DATA_TRAIN]; i++) {
        Segment *p = &d->segment[DATA_TRAIN][i];
        const int64_t windows = data_windows(p, T);
        if (windows) ok = skip_windows(p, windows, T, percent, memory, e);
    }
    free(memory.follows);
    d->fingerprint = hash_bytes(d->fingerprint, &percent, sizeof percent);
    return ok;
}
