/* packing.c: conversations of different lengths in rows of T inputs, several in one row. Attention
 * never crosses from one to another: their positions begin at 0 (Batch.position in
 * llmc/model/model.h), so a sample learns what it would learn alone.
 *
 * Samples are put where they leave the least room, the longest first (best-fit decreasing, at most
 * 11/9 of the fewest rows: Johnson 1973). The rows are the same in every epoch, which changes only
 * their order: that of a sample alone is not known, but a row is a function of the data and T, and
 * a run resumes by counting. */
#include "segment.h"
#include <stdlib.h>

void packing_free(Packing *p) {
    free_each(p->sample, p->row);
    *p = (Packing){ 0 };
}

/* ---- samples --------------------------------------------------------------------------------- */

enum { CHUNK = 1 << 16 };               /* tokens */

/* Ends the sample from `at` on: cut to T inputs, or left out. counted: one of T targets counts. */
static void end_sample(Packing *p, size_t *n, size_t *capacity, int64_t at, int64_t end, int counted) {
    const int64_t inputs = end - at - 1;
    if (!counted) { p->unanswered++; return; }
    array_grow(p->sample, *n, *capacity);
    p->sample[(*n)++] = (Sample){ at, (int)(inputs < p->T ? inputs : p->T) };
    p->cut += inputs > p->T;
}
static int find_samples(const Segment *s, Packing *p, size_t *n, Error *e) {
    uint32_t *tokens = mem_alloc(CHUNK * sizeof *tokens);
    size_t capacity = 0;
    int64_t at = -1;
    int counted = 0, ok = 1;
    for (int64_t first = 0; ok && first < s->tokens; first += CHUNK) {
        const int64_t count = s->tokens - first < CHUNK ? s->tokens - first : CHUNK;
        ok = data_read_raw(s, first, count, tokens, e);
        for (int64_t i = 0; ok && i < count; i++) {
            if (tokens[i] & TOKEN_FIRST) {
                if (at >= 0) end_sample(p, n, &capacity, at, first + i, counted);
                at = first + i;
                counted = 0;
            } else if (tokens[i] & TOKEN_COUNTS) *(first + i - at <= p->T ? &counted : &p->late) = 1;
        }
    }
    if (ok && at >= 0) end_sample(p, n, &capacity, at, s->tokens, counted);
    free(tokens);
    return ok;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Longest first; those of one length as in the data. */
static int by_length(const void *a, const void *b) {
    const Sample *x = a, *y = b;
    return x->inputs != y->inputs ? y->inputs - x->inputs : x->at < y->at ? -1 : 1;
}

/* Each sample's row, and the number of rows. Those with the same space left are a list. */
static int64_t choose_rows(const Sample *sample, size_t n, int T, int64_t *row) {
    int64_t *front = mem_alloc(((size_t)T + 1) * sizeof *front), *next = mem_alloc((n + 1) * sizeof *next), rows = 0;
    uint64_t *is_some = mem_alloc(((size_t)T / 64 + 1) * sizeof *is_some);  /* bit r: some row has r of space left */
    for (size_t i = 0; i < n; i++) {
        int space = sample[i].inputs;                                                   /* the least that suffices */
        uint64_t some = is_some[space / 64] >> space % 64 << space % 64;
        while (!some && space / 64 < T / 64) some = is_some[(space = (space / 64 + 1) * 64) / 64];
        if (some) {
            for (space = space / 64 * 64; !(some & 1); some >>= 1) space++;
            row[i] = front[space] - 1;
            front[space] = next[row[i]];
            if (!front[space]) is_some[space / 64] &= ~(1ull << space % 64);
        } else space = T, row[i] = rows++;
        space -= sample[i].inputs;
        next[row[i]] = front[space];
        front[space] = row[i] + 1;
        is_some[space / 64] |= 1ull << space % 64;
    }
    free_each(front, next, is_some);
    return rows;
}

static void make_rows(Packing *p, size_t n) {
    int64_t *of = mem_alloc((n + 1) * sizeof *of);
    Sample *sorted = mem_alloc((n + 1) * sizeof *sorted);
    qsort(p->sample, n, sizeof *p->sample, by_length);
    p->rows = choose_rows(p->sample, n, p->T, of);
    p->row = mem_alloc(((size_t)p->rows + 2) * sizeof *p->row);
    for (size_t i = 0; i < n; i++) p->row[of[i] + 2]++;
    for (int64_t r = 0; r < p->rows; r++) p->row[r + 2] += p->row[r + 1];
    for (size_t i = 0; i < n; i++) sorted[p->row[of[i] + 1]++] = p->sample[i];
    free_each(p->sample, of);
    p->sample = sorted;
}

int packing_make(Segment *s, int T, Error *e) {
    Packing *p = &s->packing;
    size_t n = 0;
    if (p->T == T) return 1;
    packing_free(p);
    p->T = T;
    if (!find_samples(s, p, &n, e)) return 0;
    if (!n && p->late)
        return error_set(e, "%s: none of its %lld conversations has an answer of the assistant within the first %d "
                         "tokens: a larger -t would do", s->path, (long long)p->unanswered, T + 1);
    if (!n) return error_set(e, "%s: none of its %lld conversations has an answer: a message with content whose "
                             "role is assistant", s->path, (long long)p->unanswered);
    make_rows(p, n);
    return 1;
}

int packing_row(const Segment *s, int64_t row, int T, int *inputs, int *targets, int *positions, Error *e) {
    const Packing *p = &s->packing;
    uint32_t *tokens = mem_alloc(((size_t)T + 1) * sizeof *tokens);
    int at = 0, ok = 1;
    for (int64_t i = p->row[row]; ok && i < p->row[row + 1]; at += p->sample[i++].inputs) {
        const int n = p->sample[i].inputs;
        ok = data_read_raw(s, p->sample[i].at, n + 1, tokens, e);
        for (int t = 0; ok && t < n; t++) {
            inputs[at + t] = (int)(tokens[t] & TOKEN_ID);
            targets[at + t] = tokens[t + 1] & TOKEN_COUNTS ? (int)(tokens[t + 1] & TOKEN_ID) : -1;
            positions[at + t] = t;
        }
    }
    for (int t = 0; at + t < T; t++) inputs[at + t] = 0, targets[at + t] = NO_TOKEN, positions[at + t] = t;
    free(tokens);
    return ok;
}
