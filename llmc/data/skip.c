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

typedef struct { uint16_t *follows; int bits; } Memory;     /* 1 + token % 65535; 0: none */

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
        const uint16_t now = (uint16_t)(tokens[t] % UINT16_MAX + 1);
        right += m.follows[slot[t]] == now;
        m.follows[slot[t]] = now;
    }
    return right;
}

typedef struct { Segment *of; int64_t number; int score; } Window;

/* Of n windows keeps the `most` with the lowest scores. with: how many have a score. */
static void keep(const Window *window, int n, int T, int most) {
    int *with = mem_alloc(((size_t)T + 1) * sizeof *with), limit = 0, below = 0;
    for (int i = 0; i < n; i++) with[window[i].score]++;
    while (below + with[limit] < most) below += with[limit++];
    for (int i = 0, equal = most - below; i < n; i++) {
        Segment *p = window[i].of;
        if (window[i].score < limit || (window[i].score == limit && equal-- > 0))
            p->kept[p->kept_windows++] = window[i].number;
    }
    free(with);
}

static int skip_windows(Data *d, int T, int percent, Memory memory, Error *e) {
    int *tokens = mem_alloc((size_t)T * sizeof *tokens), n = 0, ok = 1;
    uint32_t *slot = mem_alloc((size_t)T * sizeof *slot);
    Window *window = mem_alloc(NEIGHBOURS * sizeof *window);
    for (int i = 0; ok && i < d->segments[DATA_TRAIN]; i++) {
        Segment *p = &d->segment[DATA_TRAIN][i];
        const int64_t windows = data_windows(p, T);
        if (windows) p->kept = mem_alloc((size_t)windows * sizeof *p->kept), p->kept_T = T;
        for (int64_t w = 0; ok && w < windows; w++) {
            if (!(ok = data_read_tokens(p, w * T, T, tokens, e))) break;
            window[n++] = (Window){ p, w, foreseen(memory, tokens, T, slot) };
            if (n == NEIGHBOURS) keep(window, n, T, n - n * percent / 100), n = 0;
        }
    }
    if (ok && n) keep(window, n, T, n - n * percent / 100);
    free_each(tokens, slot, window);
    return ok;
}

int data_skip(Data *d, int T, int percent, Error *e) {
    Memory memory = { NULL, BITS_MIN };
    if (d->has_chats) return error_set(e, "-sk %d: the data hold conversations, and none of them is left out", percent);
    if (T <= GRAM) return error_set(e, "-sk %d: windows of %d tokens (-t), expected at least %d", percent, T, GRAM + 1);
    while (memory.bits < BITS_MAX && 1ll << memory.bits < d->tokens[DATA_TRAIN]) memory.bits++;
    memory.follows = mem_alloc(sizeof *memory.follows << memory.bits);
    const int ok = skip_windows(d, T, percent, memory, e);
    free(memory.follows);
    d->fingerprint = hash_bytes(d->fingerprint, &percent, sizeof percent);
    return ok;
}
