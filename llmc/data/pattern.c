/* pattern.c: see pattern.h. A program becomes a table of states, and the table reads text.
 *
 * A state is a list of instructions, the threads of a search by backtracking, first choice first.
 * Where a thread has matched, those after it are dropped. What AHEAD needs is known when the next
 * character is, so threads wait in front of their conditions, not behind. Characters that no set of
 * the pattern tells apart are one class. */
#include "pattern.h"
#include "pattern_parse.h"
#include <stdlib.h>
#include <string.h>

enum { STATES = 4096, TABLE = 1 << 20, THREADS = 1 << 20, CLASSES = 250, BLOCK = 256, BLOCKS = (CODE_MAX + 1) / BLOCK };
#define WORK_MOST ((size_t)1 << 26)
#define STEPS_MOST ((size_t)1 << 30)    /* more than so many for a text, and 64 for each byte: seconds */

struct Pattern {
    uint8_t ascii[128];                 /* classes */
    uint16_t block[BLOCKS];             /* of 256 characters, which of those here: */
    uint8_t *class;
    int classes, columns;               /* columns: (classes + the end) for each set of look-aheads that match */
    uint32_t *next;             /* (states, columns) row of the next state << 1 | there is a match; row 0: none */
    uint8_t *pending;                   /* (states) look-aheads that the state depends on */
    uint32_t start[1 + LOOKS][CLASSES + 1];             /* by the class before, if has_behind */
    int has_behind, looks, stops, begins;
    char *regex;
};

/* ---- classes --------------------------------------------------------------------------------- */

static int by_code(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}
/* All first characters of runs that no set cuts; the last one is CODE_MAX + 1. */
static uint32_t *run_starts(const PatternProgram *g, size_t *count) {
    size_t n = 0, kept = 0;
    for (int i = 0; i < g->sets; i++) n += 2 * g->set[i].count;
    uint32_t *at = mem_alloc((n + 2) * sizeof *at);
    at[0] = 0, at[1] = CODE_MAX + 1, n = 2;
    for (int i = 0; i < g->sets; i++)
        for (size_t k = 0; k < g->set[i].count; k++) {
            at[n++] = g->set[i].at[k].first;
            at[n++] = g->set[i].at[k].last + 1;
        }
    qsort(at, n, sizeof *at, by_code);
    for (size_t i = 0; i < n; i++) if (!kept || at[i] != at[kept - 1]) at[kept++] = at[i];
    *count = kept - 1;
    return at;
}
/* The number of the run that begins with the code; it is not before run k. */
static size_t run_of(const uint32_t *run, size_t k, size_t runs, uint32_t code) {
    size_t step = 1, high;
    while (k + step < runs && run[k + step] < code) k += step, step *= 2;
    for (high = k + step < runs ? k + step : runs; k < high; ) {
        const size_t mid = (k + high) / 2;
        if (run[mid] < code) k = mid + 1; else high = mid;
    }
    return k;
}
/* Splits each class of runs into those in the set and those that are not. 0: too many. */
static int refine(const CodeSet *set, const uint32_t *run, size_t runs, int *class, size_t *size, int *classes) {
    size_t within[CLASSES] = { 0 };
    int inside[CLASSES], count = *classes;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0, k = 0; i < set->count; i++)
            for (k = run_of(run, k, runs, set->at[i].first); run[k] <= set->at[i].last; k++)
                if (pass) class[k] = inside[class[k]]; else within[class[k]]++;
        for (int c = 0, had = count; c < had && !pass; c++) {
            const int splits = within[c] && within[c] < size[c];
            if (splits && count == CLASSES) return 0;
            inside[c] = splits ? count++ : c;
            if (splits) size[inside[c]] = within[c], size[c] -= within[c];
        }
    }
    *classes = count;
    return 1;
}
/* Blocks of one class are the same one. */
static void fill_blocks(Pattern *p, const uint32_t *run, const int *class) {
    int same[CLASSES], count = 0, capacity = 0;         /* same: the block of one class, by class; -1: there is none */
    for (int c = 0; c < CLASSES; c++) same[c] = -1;
    size_t i = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const uint32_t begin = b * BLOCK, end = begin + BLOCK;
        while (run[i + 1] <= begin) i++;
        const int alone = run[i + 1] >= end, c = class[i];
        if (alone && same[c] >= 0) { p->block[b] = (uint16_t)same[c]; continue; }
        if (count == capacity) p->class = mem_grow(p->class, (size_t)(capacity = 2 * capacity + 64) * BLOCK);
        for (uint32_t code = begin, to; code < end; code = to) {
            while (run[i + 1] <= code) i++;
            to = run[i + 1] < end ? run[i + 1] : end;
            memset(p->class + count * BLOCK + (int)(code - begin), class[i], to - code);
        }
        if (alone) same[c] = count;
        p->block[b] = (uint16_t)count++;
    }
    memcpy(p->ascii, p->class + p->block[0] * BLOCK, sizeof p->ascii);
}
/* in: (sets, CLASSES) is the class in the set? free() it. NULL: too many classes. */
static uint8_t *make_classes(Pattern *p, const PatternProgram *g) {
    size_t runs, size[CLASSES];
    uint32_t *run = run_starts(g, &runs);
    int *class = mem_alloc((runs + 1) * sizeof *class), ok = 1;
    p->classes = 1;
    size[0] = runs;
    for (int i = 0; i < g->sets && ok; i++) ok = refine(&g->set[i], run, runs, class, size, &p->classes);
    uint8_t *in = mem_alloc((size_t)(g->sets + 1) * CLASSES);
    for (int i = 0; i < g->sets && ok; i++)
        for (size_t r = 0, k = 0; r < g->set[i].count; r++)
            for (k = run_of(run, k, runs, g->set[i].at[r].first); run[k] <= g->set[i].at[r].last; k++)
                in[i * CLASSES + class[k]] = 1;
    if (ok) fill_blocks(p, run, class);
    free_each(run, class);
    if (ok) return in;
    free(in);
    return NULL;
}

/* ---- states ---------------------------------------------------------------------------------- */

typedef struct { int at, n, before; } State;            /* its threads; the class before, or 0 */
typedef struct {
    Pattern *p;
    const PatternProgram *g;
    const uint8_t *in;
    State *state; int states;
    int *thread, threads, thread_capacity, state_capacity;
    int table[2 * STATES];              /* hash table: number + 1 */
    int *mark, stamp, *stack;           /* (length) the last stamp of each instruction */
    size_t work;
} Builder;

/* Space for one more state, and for its threads. */
static void reserve(Builder *b) {
    if (b->states + 1 >= b->state_capacity) {
        b->state_capacity = 2 * b->state_capacity + 32;
        b->p->next = mem_grow(b->p->next, (size_t)(b->state_capacity * b->p->columns) * sizeof *b->p->next);
    }
    if (b->threads + CODE_LENGTH >= b->thread_capacity)
        b->thread = mem_grow(b->thread, (size_t)(b->thread_capacity = 2 * b->thread_capacity + 2 * CODE_LENGTH)
                                        * sizeof *b->thread);
}

/* The number of the state with these threads at the end of b->thread, which may be a new one; -1:
 * there are too many. */
static int state_of(Builder *b, int n, int before) {
    int *list = b->thread + b->threads;
    size_t i = (size_t)hash_bytes((uint64_t)before, list, (size_t)n * sizeof *list);
    for (int k; (k = b->table[i %= 2 * STATES]); i++) {
        const State *s = &b->state[k - 1];
        if (s->n == n && s->before == before && !memcmp(b->thread + s->at, list, (size_t)n * sizeof *list))
            return k - 1;
    }
    if (b->states == STATES || (b->states + 1) * b->p->columns > TABLE || b->threads + n > THREADS) return -1;
    b->state[b->states] = (State){ b->threads, n, before };
    b->threads += n;
    reserve(b);
    return (b->table[i] = ++b->states) - 1;
}

/* Lets the threads of a state read a character of class c, or the end, when look-aheads match as
 * bits say. Those that did follow b->thread. Returns how many; *matched: one was at the end. */
static int advance(Builder *b, const State *s, int c, int bits, int *matched, uint8_t *pending) {
    const Pattern *p = b->p;
    const int end = p->classes;
    int *out = b->thread + b->threads, n = 0;
    *matched = 0;
    b->stamp++;
    for (int i = 0; i < s->n; i++) {
        int waiting = 1;
        b->stack[0] = b->thread[s->at + i];
        while (waiting) {
            const int at = b->stack[--waiting];
            const Instruction x = b->g->code[at];
            if (b->mark[at] == b->stamp) continue;
            b->mark[at] = b->stamp;
            b->work++;
            int goes = 0;
            switch (x.op) {
            case MATCH: return *matched = 1, n;
            case SET:   if (c != end && b->in[x.x * CLASSES + c]) out[n++] = at + 1; break;
            case AHEAD: goes = c == end ? x.y : b->in[x.x * CLASSES + c]; break;
            case BEHIND: goes = s->before == end ? x.y : b->in[x.x * CLASSES + s->before]; break;
            case LOOK:  *pending |= (uint8_t)(1 << x.x); goes = (bits >> x.x & 1) != x.y; break;
            case SPLIT: b->stack[waiting++] = at + x.y; b->stack[waiting++] = at + x.x; break;
            case JUMP:  b->stack[waiting++] = at + x.x; break;
            }
            if (goes) b->stack[waiting++] = at + 1;
        }
    }
    return n;
}

static int make_states(Builder *b) {
    Pattern *p = b->p;
    const int end = p->classes, width = end + 1;
    b->states = 1;                                      /* 0: no threads */
    b->table[hash_bytes(0, "", 0) % (2 * STATES)] = 1;
    for (int k = 0; k <= p->looks; k++)
        for (int before = 0; before <= end; before++) {
            b->thread[b->threads] = b->g->begin[k];
            const int s = state_of(b, 1, p->has_behind ? before : 0);
            if (s < 0) return 0;
            p->start[k][before] = (uint32_t)(s * p->columns);
        }
    for (int s = 1; s < b->states; s++)
        for (int bits = 0; bits < 1 << p->looks; bits++)
            for (int c = 0; c <= end; c++) {
                const int column = s * p->columns + bits * width + c;
                const int unread = bits & ~p->pending[s];              /* no thread asked for them, in an earlier row */
                if (unread) { p->next[column] = p->next[column - unread * width]; continue; }
                int matched, n = advance(b, &b->state[s], c, bits, &matched, &p->pending[s]);
                const int next = n ? state_of(b, n, p->has_behind ? c : 0) : 0;
                if (next < 0 || b->work > WORK_MOST) return 0;
                p->next[column] = (uint32_t)(next * p->columns) << 1 | (uint32_t)matched;
            }
    return 1;
}

/* ---- spaces, where texts may be cut ---------------------------------------------------------- */

/* After a letter or digit, in any state: does a space do what the end of the text does? */
static int stops(const Builder *b) {
    const Pattern *p = b->p;
    static const char spaces[] = " \n";
    int alnum[CLASSES] = { 0 };
    for (int c = 0; c < 128; c++)
        alnum[p->ascii[c]] |= (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
    if (p->has_behind || p->looks) return 0;
    for (int s = 1; s < b->states; s++)
        for (int c = 0; c < p->classes; c++) {
            const uint32_t after = p->next[s * p->columns + c] >> 1;
            for (int i = 0; i < 2 && alnum[c] && after; i++)
                if (p->next[after + p->ascii[(int)spaces[i]]] != p->next[after + (uint32_t)p->classes]) return 0;
        }
    return 1;
}
/* Is there a match of at least the space, whatever follows? */
static int begins(const Pattern *p) {
    int all = 1;
    for (int i = 0; i < 2 && !p->has_behind && !p->looks; i++) {
        const uint32_t after = p->next[p->start[0][0] + p->ascii[(int)" \n"[i]]] >> 1;
        for (int c = 0; c <= p->classes; c++) all &= after && p->next[after + (uint32_t)c] & 1;
    }
    return all && !p->has_behind && !p->looks;
}

static int build(Pattern *p, const PatternProgram *g, Error *e) {
    uint8_t *in = make_classes(p, g);
    Builder *b = mem_alloc(sizeof *b);
    *b = (Builder){ .p = p, .g = g, .in = in };
    p->looks = g->looks;
    p->has_behind = g->has_behind;
    p->columns = (p->classes + 1) << p->looks;
    b->state = mem_alloc(STATES * sizeof *b->state);
    reserve(b);
    b->mark = mem_alloc(CODE_LENGTH * sizeof *b->mark);
    b->stack = mem_alloc((2 * CODE_LENGTH + 2) * sizeof *b->stack);
    p->pending = mem_alloc(STATES);
    const int ok = in && make_states(b);
    if (ok) p->stops = stops(b), p->begins = begins(p);
    else error_set(e, "the pattern %.200s is too complicated for this program", p->regex);
    free_each(in, b->state, b->thread, b->mark, b->stack, b);
    return ok;
}
Pattern *pattern_open(const char *regex, size_t bytes, int is_text, Error *e) {
    Pattern *p = mem_alloc(sizeof *p);
    PatternProgram g = { 0 };
    p->regex = mem_alloc(bytes + 1);
    memcpy(p->regex, regex, bytes);
    const int ok = pattern_parse(&g, p->regex, bytes, is_text, e) && build(p, &g, e);
    pattern_program_free(&g);
    if (ok) return p;
    pattern_close(p);
    return NULL;
}
void pattern_close(Pattern *p) {
    if (p) free_each(p->class, p->next, p->pending, p->regex, p);
}
int pattern_stops_at_space(const Pattern *p)  { return p->stops; }
int pattern_begins_at_space(const Pattern *p) { return p->begins; }

/* ---- reading --------------------------------------------------------------------------------- */

/* The class of the character at the start of s, and its bytes. */
static inline unsigned class_at(const Pattern *p, const char *s, size_t n, size_t *bytes) {
    uint32_t code;
    *bytes = 1;
    if (!n) return (unsigned)p->classes;
    if ((unsigned char)*s < 0x80) return p->ascii[(unsigned char)*s];
    const size_t read = utf8_decode(s, n, &code);
    if (read) *bytes = read; else code = 0xFFFD;
    return p->class[p->block[code / BLOCK] * BLOCK + code % BLOCK];
}
static unsigned class_before(const Pattern *p, const char *s, size_t at) {
    size_t bytes;
    if (!at) return (unsigned)p->classes;
    for (size_t k = 4; k > 1; k--) {
        if (at < k) continue;
        const unsigned class = class_at(p, s + at - k, k, &bytes);
        if (bytes == k) return class;
    }
    return class_at(p, s + at - 1, 1, &bytes);
}

static size_t longest(PatternSearch *f, int which, unsigned before, size_t at);

/* Which of the look-aheads in `pending` match here, as bits. */
static unsigned look(PatternSearch *f, unsigned pending, unsigned before, size_t at) {
    unsigned bits = 0;
    for (int i = 0; pending >> i; i++)
        if (pending >> i & 1 && longest(f, 1 + i, before, at) != SIZE_MAX) bits |= 1u << i;
    return bits;
}
/* The end of the match of the pattern (0), or of a look-ahead, from `at` on; SIZE_MAX: none. */
static size_t longest(PatternSearch *f, int which, unsigned before, size_t at) {
    const Pattern *p = f->p;
    const size_t begin = at;
    size_t last = SIZE_MAX, bytes;
    for (uint32_t row = p->start[which][before], t; row; row = t >> 1) {
        const unsigned c = class_at(p, f->s + at, f->n - at, &bytes);
        unsigned column = c;
        const unsigned pending = p->pending[row / (uint32_t)p->columns];
        if (pending) column += look(f, pending, before, at) * (unsigned)(p->classes + 1);
        t = p->next[row + column];
        if (t & 1) last = at;
        at += bytes;
        before = c;
    }
    f->steps += at - begin;
    return last;
}
/* The same of a pattern without look-aheads: the inner loop of encoding. */
static inline size_t longest_plain(PatternSearch *f, unsigned before, size_t at) {
    const Pattern *p = f->p;
    const uint32_t *next = p->next;
    const unsigned char *s = (const unsigned char *)f->s;
    const size_t n = f->n, begin = at;
    size_t last = SIZE_MAX, bytes;
    uint32_t row = p->start[0][before];
    for (; at < n && row; at += bytes) {
        unsigned c = s[at];
        bytes = 1;
        if (c < 0x80) c = p->ascii[c]; else c = class_at(p, f->s + at, n - at, &bytes);
        const uint32_t t = next[row + c];
        last = t & 1 ? at : last;
        row = t >> 1;
    }
    f->steps += at - begin;
    return row && next[row + (uint32_t)p->classes] & 1 ? n : last;
}

size_t pattern_next(PatternSearch *f, Match *to, size_t most) {
    const Pattern *p = f->p;
    size_t count = 0;
    while (f->at <= f->n && count < most) {
        size_t bytes;
        const unsigned before = p->has_behind ? class_before(p, f->s, f->at) : 0;
        const size_t end = p->looks ? longest(f, 0, before, f->at) : longest_plain(f, before, f->at);
        if (end != SIZE_MAX && (end != f->at || !f->after)) {
            to[count++] = (Match){ f->at, end };
            f->at = end;
            f->after = 1;
            continue;
        }
        if (f->steps / 64 > f->n + STEPS_MOST / 64)
            fail(EXIT_INPUT, "the pattern %.200s takes too long for a text of %zu bytes", p->regex, f->n);
        f->after = 0;
        class_at(p, f->s + f->at, f->n - f->at, &bytes);
        f->at += bytes;
    }
    return count;
}
