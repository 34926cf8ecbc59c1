/* tokenizer.c: see tokenizer.h. Normalization, merging, encoding, decoding; files are read in
 * tokenizer_json.c.
 *
 * A text goes through these steps: added tokens are taken out; the rest is normalized, cut into
 * words, each word into symbols (bytes or characters), and neighbouring symbols are merged in the
 * order of the file's list. */
#include "tokenizer_impl.h"
#include "unicode.h"
#include <stdlib.h>
#include <string.h>

/* ---- normalization --------------------------------------------------------------------------- */

/* The space of SentencePiece: U+2581 for each space, and one in front if wanted. */
static void underline(const char *s, size_t n, int prepend, Text *out) {
    if (prepend) text_add_bytes(out, UNDERLINE, 3);
    for (size_t i = 0; i < n; i++) {
        if (s[i] == ' ') text_add_bytes(out, UNDERLINE, 3);
        else text_add_bytes(out, s + i, 1);
    }
}

static void replace(const Change *c, const char *s, size_t n, Text *out) {
    PatternSearch search = { .p = c->pattern, .s = s, .n = n };
    Match match;
    size_t done = 0;
    for (; pattern_next(&search, &match, 1); done = match.to) {
        text_add_bytes(out, s + done, match.from - done);
        text_add_string(out, c->text);
    }
    text_add_bytes(out, s + done, n - done);
}
void tokenizer_normalize(const Tokenizer *t, const char *s, size_t n, Text *out) {
    Text now = { 0 };
    text_add_bytes(&now, s, n);
    for (int i = 0; i < t->changes; i++) {
        const Change *c = &t->change[i];
        Text next = { 0 };
        if (c->kind <= NFD) unicode_normalize(&next, now.at, now.length, c->kind == NFC);
        if (c->kind == REPLACE) replace(c, now.at, now.length, &next);
        if (c->kind == PREPEND && now.length) text_add_string(&next, c->text);
        if (c->kind == PREPEND) text_add_bytes(&next, now.at, now.length);
        free(now.at);
        now = next;
    }
    text_add_bytes(out, now.at, now.length);
    free(now.at);
}

/* ---- merging ------------------------------------------------------------------------------------
 * The pair of lowest rank is merged first, the leftmost of equals. Candidates wait in a heap as
 * rank << 32 | position and are checked when they come out: n log n for n symbols. */

enum { WORD_MAX = 1 << 28 };                             /* positions fit an int; a longer word is cut */
typedef struct { int id, previous, next; } Symbol;       /* id -1: merged into the one before */

/* Words of up to 15 bytes and 4 tokens are kept with their tokens: a few thousand words are nine
 * tenths of a text. A newer word replaces the older one of the same slot. */
enum { SLOTS = 1 << 15, SLOT_IDS = 4 };
typedef struct { uint64_t key[2]; int ids[SLOT_IDS]; } Slot;    /* key: the bytes, zeros, the length; ids end with -1 */

typedef struct {
    const Tokenizer *t;
    const char *end;                                     /* of the text that is being encoded */
    int *ids;
    size_t count, capacity;
    Symbol *symbols;
    uint64_t *heap;
    size_t symbol_capacity, waiting;
    Slot *slots;
    Controls *controls;
    Text *seams;                                /* NULL, or TokenSeams, of places in the text that begins at `text` */
    const char *text;
} Encoder;

static void emit(Encoder *e, int id) {
    array_grow(e->ids, e->count, e->capacity);
    e->ids[e->count++] = id;
}

static size_t pair_slot(uint64_t pair, size_t mask) {
    return (size_t)((pair ^ pair >> 29) * 0x9E3779B97F4A7C15u >> 20) & mask;
}
Merge *tokenizer_merge(const Tokenizer *t, uint64_t pair) {
    size_t i = pair_slot(pair, t->merges_mask);
    while (t->merges[i].rank >= 0 && t->merges[i].pair != pair) i = (i + 1) & t->merges_mask;
    return &t->merges[i];
}

/* The id of a symbol, or -1. */
static int tokenizer_find(const Tokenizer *t, const char *s, size_t n) {
    size_t i = (size_t)hash_bytes(0, s, n) & t->words_mask;
    for (int id; (id = t->words[i]) >= 0; i = (i + 1) & t->words_mask)
        if (t->symbol[id].bytes == n && !memcmp(t->symbol[id].at, s, n)) return id;
    return -1;
}

static void heap_push(Encoder *e, uint64_t x) {
    size_t i = e->waiting++;
    for (; i && e->heap[(i - 1) / 2] > x; i = (i - 1) / 2) e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = x;
}
static uint64_t heap_pop(Encoder *e) {
    uint64_t top = e->heap[0], x = e->heap[--e->waiting];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < e->waiting; i = child) {
        if (child + 1 < e->waiting && e->heap[child + 1] < e->heap[child]) child++;
        if (e->heap[child] >= x) break;
        e->heap[i] = e->heap[child];
    }
    e->heap[i] = x;
    return top;
}

static const Merge *merge_at(const Encoder *e, int at) {
    const Symbol *left = &e->symbols[at];
    if (left->id < 0 || left->next < 0) return NULL;
    const Merge *m = tokenizer_merge(e->t, (uint64_t)left->id << 32 | (uint32_t)e->symbols[left->next].id);
    return m->rank >= 0 ? m : NULL;
}
static void consider(Encoder *e, int at) {
    const Merge *m = at >= 0 ? merge_at(e, at) : NULL;
    if (m) heap_push(e, (uint64_t)m->rank << 32 | (uint32_t)at);
}

/* Fills in the symbols that a word starts with and returns their number. */
static int first_symbols(Encoder *e, const char *s, size_t n) {
    const Tokenizer *t = e->t;
    int count = 0;
    for (size_t at = 0, length; at < n; at += length) {
        uint32_t code;
        length = t->byte_level ? 1 : utf8_decode(s + at, n - at, &code);
        if (!length) length = 1;
        int id = t->byte_level ? -1 : tokenizer_find(t, s + at, length);
        if (id < 0 && t->lacks_bytes && t->byte_id[(unsigned char)s[at]] < 0) {  /* U+FFFD, as other programs read it */
            for (int i = 0; i < 3; i++) e->symbols[count++].id = t->byte_id[(unsigned char)"\xEF\xBF\xBD"[i]];
            continue;
        }
        if (id >= 0) e->symbols[count++].id = id;
        else for (size_t i = 0; i < length; i++) e->symbols[count++].id = t->byte_id[(unsigned char)s[at + i]];
    }
    return count;
}

static void merge_word(Encoder *e, const char *s, size_t n) {
    int full = e->t->ignore_merges ? tokenizer_find(e->t, s, n) : -1;
    if (full >= 0) { emit(e, full); return; }
    const size_t most = e->t->lacks_bytes ? 3 * n : n;
    if (most > e->symbol_capacity) {
        e->symbol_capacity = 2 * most;
        e->symbols = mem_grow(e->symbols, e->symbol_capacity * sizeof *e->symbols);
        /* n pairs at first, two more for each merge */
        e->heap = mem_grow(e->heap, 3 * e->symbol_capacity * sizeof *e->heap);
    }
    int count = first_symbols(e, s, n);
    e->waiting = 0;
    for (int i = 0; i < count; i++) {
        e->symbols[i].previous = i - 1;
        e->symbols[i].next = i + 1 < count ? i + 1 : -1;
    }
    for (int i = 0; i < count; i++) consider(e, i);
    while (e->waiting) {
        uint64_t top = heap_pop(e);
        int at = (int)(uint32_t)top;
        const Merge *m = merge_at(e, at);
        if (!m || (uint64_t)m->rank != top >> 32) continue;                     /* stale: the pair here has changed */
        Symbol *left = &e->symbols[at], *right = &e->symbols[left->next];
        left->id = m->id;
        right->id = -1;
        left->next = right->next;
        if (right->next >= 0) e->symbols[right->next].previous = at;
        consider(e, left->previous);
        consider(e, at);
    }
    for (int i = count ? 0 : -1; i >= 0; i = e->symbols[i].next) emit(e, e->symbols[i].id);
}

/* At most 15 bytes of a word, then zeros, then the length: one comparison of 16 bytes. */
static void slot_key(const Encoder *e, const char *s, size_t n, uint64_t key[2]) {
    char bytes[16] = { 0 };
    if (e->end - s < 16) memcpy(bytes, s, n);
    else {                                               /* 16 bytes at once, and then the rest of them cleared */
        static const char mask[31] = { -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1 };
        memcpy(bytes, s, 16);
        for (int i = 0; i < 16; i++) bytes[i] &= mask[15 - n + (size_t)i];
    }
    bytes[15] = (char)n;
    memcpy(key, bytes, 16);
}

static void word(Encoder *e, const char *s, size_t n) {
    uint64_t key[2];
    if (n > 15 || !e->slots) { merge_word(e, s, n); return; }
    slot_key(e, s, n, key);
    const uint64_t mixed = (key[0] ^ key[1] * 0xC2B2AE3D27D4EB4Fu) * 0x9E3779B97F4A7C15u;
    Slot *slot = &e->slots[(mixed ^ mixed >> 32) % SLOTS];
    if (slot->key[0] != key[0] || slot->key[1] != key[1]) {
        const size_t first = e->count;
        merge_word(e, s, n);
        const size_t made = e->count - first;
        if (made > SLOT_IDS) return;
        *slot = (Slot){ { key[0], key[1] }, { -1, -1, -1, -1 } };
        memcpy(slot->ids, e->ids + first, made * sizeof *e->ids);
        return;
    }
    for (int i = 0; i < SLOT_IDS && slot->ids[i] >= 0; i++) emit(e, slot->ids[i]);
}

/* ---- encoding and decoding ------------------------------------------------------------------- */

static void cut(Encoder *e, int step, const char *s, size_t n);
static inline void cut_on(Encoder *e, int step, const char *s, size_t n) {
    if (step == e->t->steps && n <= WORD_MAX) word(e, s, n); else cut(e, step, s, n);
}

/* A piece waits for those that may join it. */
typedef struct { Encoder *e; int step, waits, counts; size_t from, to; const char *s; } Pieces;
static void piece_send(Pieces *p) {
    const Step *k = &p->e->t->step[p->step];
    if (p->waits && p->to > p->from && !(k->behavior == REMOVED && p->counts))
        cut_on(p->e, p->step + 1, p->s + p->from, p->to - p->from);
}
static inline void piece_add(Pieces *p, size_t from, size_t to, int counts) {
    const Behavior b = p->e->t->step[p->step].behavior;
    const int joins = p->waits && (b == WITH_PREVIOUS ? counts && !p->counts : b == WITH_NEXT ? !counts && p->counts
                                   : b == CONTIGUOUS && counts == p->counts);
    if (!joins) {
        piece_send(p);
        p->from = from;
    }
    p->to = to;
    p->waits = 1;
    p->counts = counts;
}
static void cut_at_matches(Encoder *e, int step, const char *s, size_t n) {
    const Step *k = &e->t->step[step];
    PatternSearch search = { .p = k->pattern, .s = s, .n = n };
    Pieces p = { .e = e, .step = step, .s = s };
    size_t done = 0;
    const int alone = k->behavior == ISOLATED;
    Match match[MATCHES];
    for (size_t count = MATCHES; count == MATCHES; ) {
        count = pattern_next(&search, match, MATCHES);
        for (size_t i = 0; i < count; done = match[i++].to) {
            const size_t from = match[i].from, to = match[i].to;
            if (alone) {                                /* the inner loop of most */
                if (from > done) cut_on(e, step + 1, s + done, from - done);
                if (to > from) cut_on(e, step + 1, s + from, to - from);
                continue;
            }
            if (from > done) piece_add(&p, done, from, k->invert);
            piece_add(&p, from, to, !k->invert);
        }
    }
    if (n > done) piece_add(&p, done, n, k->invert);
    piece_send(&p);
}

/* Cuts s by the steps from number `step` on, and encodes the words. */
static void cut(Encoder *e, int step, const char *s, size_t n) {
    const Tokenizer *t = e->t;
    if (step < t->steps && t->step[step].pattern) cut_at_matches(e, step, s, n);
    else if (step < t->steps && *s != ' ') {
        Text led = { 0 };
        const char *end = e->end;
        text_add(&led, " ");
        text_add_bytes(&led, s, n);
        e->end = led.at + led.length;
        cut(e, step + 1, led.at, led.length);
        e->end = end;
        free(led.at);
    } else if (step < t->steps) cut(e, step + 1, s, n);
    else for (size_t length; n; s += length, n -= length) word(e, s, length = n < WORD_MAX ? n : WORD_MAX);
}

/* Of added tokens i ... end-1, equal before byte k, the first with at least `byte` there. */
static int added_from(const Tokenizer *t, int i, int end, size_t k, int byte) {
    while (i < end) {
        const int middle = i + (end - i) / 2;
        if ((unsigned char)t->added[middle].at[k] < byte) i = middle + 1; else end = middle;
    }
    return i;
}
/* The longest that s begins with. Those that agree so far are neighbours, shortest first. */
static const Added *added_match(const Tokenizer *t, const char *s, size_t n, int normalized) {
    const int *start = t->added_start[normalized] + (unsigned char)s[0];
    const Added *longest = NULL;
    for (int i = start[0], end = start[1], k = 1; i < end; k++) {
        if (t->added[i].bytes == (size_t)k) longest = &t->added[i++];
        if (i == end || (size_t)k == n) break;
        const int byte = (unsigned char)s[k];
        if ((unsigned char)t->added[i].at[k] == byte && (unsigned char)t->added[end - 1].at[k] == byte) continue;
        i = added_from(t, i, end, (size_t)k, byte);
        end = added_from(t, i, end, (size_t)k, byte + 1);
    }
    return longest;
}

/* Added tokens are taken out first: those of the raw text before normalization, the others after
 * it. The text between them is encoded. first: s is the start of the whole text. */
static void encode(Encoder *e, const char *s, size_t n, int normalized, int first);

static void between(Encoder *e, const char *s, size_t n, int normalized, int first) {
    const Tokenizer *t = e->t;
    Text changed = { 0 };
    if (!normalized) {
        if (t->changes) { tokenizer_normalize(t, s, n, &changed); s = changed.at; n = changed.length; }
        encode(e, s, n, 1, first);
    } else {
        if (t->metaspace) {
            int led = s[0] == ' ' || (n >= 3 && !memcmp(s, UNDERLINE, 3));
            underline(s, n, !led && (t->metaspace_prepend == ALWAYS || (t->metaspace_prepend == FIRST && first)),
                      &changed);
            s = changed.at; n = changed.length;
        }
        e->end = s + n;
        cut(e, 0, s, n);
    }
    free(changed.at);
}

/* The bytes of the character before s[at], or of that at it, if it is in the set; else 0. */
static size_t neighbour(const CodeSet *set, const char *s, size_t at, size_t n, int before) {
    uint32_t code;
    size_t bytes = before ? 0 : utf8_decode(s + at, n - at, &code);
    for (size_t k = 1; before && !bytes && k <= 4 && k <= at; k++)
        if (utf8_decode(s + at - k, k, &code) == k) bytes = k;
    return bytes && codeset_has(set, code) ? bytes : 0;
}

/* Is a control token a user's, wholly (2) or in part (1)? Each of the user's counts. */
static int is_given(Encoder *e, const char *at, const Added *a) {
    Controls *c = e->controls;
    size_t given = a->bytes;
    if (!a->is_special || !c) return a->is_special ? 2 : 0;
    if (c->given && a->normalized && e->t->changes) return 0;
    for (size_t i = 0; c->given && i < a->bytes; i++) given -= !c->given[(size_t)(at - e->text) + i];
    if (given && !c->count++) c->first = a->id;
    return given == a->bytes ? 2 : given > 0;
}
/* That a token after one with spaces may begin among them, and they are encoded twice, is the way
 * of Hugging Face's library. */
static void encode(Encoder *e, const char *s, size_t n, int normalized, int first) {
    const Tokenizer *t = e->t;
    const int *start = t->added_start[normalized];
    size_t done = 0;
    for (size_t at = 0; at < n; ) {
        const unsigned char c = (unsigned char)s[at];
        const Added *a = start[c] == start[c + 1] ? NULL : added_match(t, s + at, n - at, normalized);
        if (!a) { at++; continue; }
        size_t from = at, to = at + a->bytes;
        at = to;
        if (a->is_word && (neighbour(&t->letter, s, from, n, 1) || neighbour(&t->letter, s, to, n, 0))) continue;
        const int given = t->splits || e->controls ? is_given(e, s + from, a) : 0;
        if (given && t->splits) { at = given == 2 ? to : from + 1; continue; }
        for (size_t k; a->strips & 1 && (k = neighbour(&t->space, s, from, n, 1)); ) from -= k;
        for (size_t k; a->strips & 2 && (k = neighbour(&t->space, s, to, n, 0)); ) to += k;
        if (from < done) from = done;
        if (from > done) between(e, s + done, from - done, normalized, first && !done);
        emit(e, a->id);
        done = to;
        if (e->seams && !normalized && !t->added_flags)
            text_add_bytes(e->seams, &(TokenSeam){ (size_t)(s + at - e->text), e->count }, sizeof(TokenSeam));
    }
    if (n > done) between(e, s + done, n - done, normalized, first && !done);
}

/* A short text is encoded sooner than the slots are cleared. */
static Encoder encoder_begin(const Tokenizer *t, size_t bytes) {
    return (Encoder){ .t = t, .slots = bytes < SLOTS ? NULL : mem_alloc(SLOTS * sizeof(Slot)) };
}
static void encoder_end(Encoder *e) { free_each(e->slots, e->symbols, e->heap); }
size_t tokenizer_encode_part(const Tokenizer *t, const char *text, size_t from, size_t end, int **ids, Text *seams,
                             Controls *controls) {
    Encoder e = encoder_begin(t, end - from);
    e.seams = seams, e.text = text, e.controls = controls;
    encode(&e, text + from, end - from, 0, !from);
    encoder_end(&e);
    *ids = e.ids ? e.ids : mem_alloc(sizeof **ids);
    return e.count;
}
size_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int **ids) {
    return tokenizer_encode_part(t, text, 0, bytes, ids, NULL, NULL);
}

/* May documents_jobs cut documents? Words must end there, and no added token go on. */
static int is_divisible(const Tokenizer *t) {
    int begins = 0;
    for (int i = 0; i < t->steps; i++) {
        const Step *k = &t->step[i];
        if (!k->pattern || k->behavior > REMOVED || !pattern_stops_at_space(k->pattern)) return 0;
        begins |= pattern_begins_at_space(k->pattern);
    }
    for (int i = 0; i < t->changes; i++) if (t->change[i].kind != NFC) return 0;
    for (int i = 0; i < t->added_count; i++)
        for (size_t k = 1; k < t->added[i].bytes; k++) if (strchr(" \n", t->added[i].at[k])) return 0;
    return begins && t->byte_level && !t->added_flags;
}

void controls_add(Controls *to, const Controls *more) {
    if (!to || !more->count) return;
    if (!to->count) to->first = more->first;
    to->count += more->count;
}
/* The ids of a job, each `width` bytes wide. */
static void *encode_job(Encoder *e, const Job *job, int end, int width, size_t *count) {
    e->count = 0;
    for (size_t i = 0; i < job->count; i++) {
        int last;
        const Document piece = job_piece(job, i, &last);
        if (piece.at == job->first[i].at && e->t->bos >= 0) emit(e, e->t->bos);
        encode(e, piece.at, piece.bytes, 0, 1);
        if (last && end >= 0) emit(e, end);
    }
    void *ids = mem_alloc(e->count * (size_t)width);
    for (size_t i = 0; i < e->count; i++)
        if (width == 2) ((uint16_t *)ids)[i] = (uint16_t)e->ids[i];
        else ((uint32_t *)ids)[i] = (uint32_t)e->ids[i];
    *count = e->count;
    return ids;
}

int tokenizer_width(const Tokenizer *t) { return t->vocab <= 1 << 16 ? 2 : 4; }

size_t tokenizer_encode_documents(const Tokenizer *t, const Document *documents, size_t count, int end, Meter *meter,
                                  void **ids, Controls *controls) {
    const int width = tokenizer_width(t);
    Job *jobs;
    const int64_t n = (int64_t)documents_jobs(documents, count, is_divisible(t), &jobs);
    struct { void *ids; size_t count, at; Controls controls; } *done = mem_alloc((size_t)n * sizeof *done);
    size_t all = 0;
    #pragma omp parallel
    {
        Encoder e = encoder_begin(t, SLOTS);
        #pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < n; i++) {
            e.controls = &done[i].controls;
            done[i].ids = encode_job(&e, &jobs[i], end, width, &done[i].count);
            meter_add(meter, (int64_t)jobs[i].bytes);
        }
        encoder_end(&e);
        free(e.ids);
    }
    for (int64_t i = 0; i < n; i++) {
        done[i].at = all, all += done[i].count;
        controls_add(controls, &done[i].controls);
    }
    *ids = mem_alloc(all * (size_t)width);
    for (int64_t i = 0; i < n; i++) {
        if (done[i].count)
            memcpy((char *)*ids + done[i].at * (size_t)width, done[i].ids, done[i].count * (size_t)width);
        free(done[i].ids);
    }
    free_each(done, jobs);
    return all;
}

const char *tokenizer_piece(const Tokenizer *t, int id, size_t *bytes) {
    Slice none = { "", 0 }, piece = id >= 0 && id < t->vocab ? t->piece[id] : none;
    *bytes = piece.bytes;
    return piece.at;
}
const char *tokenizer_shown(const Tokenizer *t, int id, size_t *bytes) {
    const char *piece = tokenizer_piece(t, id, bytes);
    if (*bytes || t->is_bytes || id < 0 || id >= t->vocab) return piece;
    *bytes = t->symbol[id].bytes;
    return t->symbol[id].at;
}

char *tokenizer_decode(const Tokenizer *t, const int *ids, size_t n, size_t *bytes) {
    Text out = { 0 };
    int strip = t->strip;
    text_add_bytes(&out, "", 0);
    for (size_t i = 0; i < n; i++) {
        size_t length;
        const char *piece = tokenizer_piece(t, ids[i], &length);
        if (strip && length) {
            strip = 0;
            if (piece[0] == ' ') { piece++; length--; }
        }
        text_add_bytes(&out, piece, length);
    }
    *bytes = out.length;
    return out.at;
}

int tokenizer_first(const Tokenizer *t) {
    int *newline = NULL, first = tokenizer_bos(t) >= 0 ? tokenizer_bos(t) : tokenizer_eos(t);
    if (first < 0) first = tokenizer_encode(t, "\n", 1, &newline) ? newline[0] : 0;
    free(newline);
    return first;
}

size_t tokenizer_begin(const Tokenizer *t, int **ids, size_t count, int needs_one) {
    if (t->bos < 0 && !needs_one) return count;
    *ids = mem_grow(*ids, (count + 1) * sizeof **ids);
    memmove(*ids + 1, *ids, count * sizeof **ids);
    (*ids)[0] = tokenizer_first(t);
    return count + 1;
}

int tokenizer_ends(const Tokenizer *t, int *ids, int most) {
    static const char *const names[] = { "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>",
                                         "<|eot_id|>" };
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && n < most; i++)
        if ((ids[n] = tokenizer_id(t, names[i])) >= 0) n++;
    return n;
}
void tokenizer_split_controls(Tokenizer *t, int splits)     { t->splits = splits; }
int tokenizer_splits_controls(const Tokenizer *t)           { return t->splits; }
int tokenizer_finds_controls(const Tokenizer *t) {
    int finds = 1;
    for (int i = 0; i < t->added_count && t->changes; i++) finds &= !(t->added[i].is_special && t->added[i].normalized);
    return finds;
}
int tokenizer_vocab(const Tokenizer *t)    { return t->vocab; }
int tokenizer_eos(const Tokenizer *t)      { return t->eos; }
int tokenizer_bos(const Tokenizer *t)      { return t->bos; }
int tokenizer_is_bytes(const Tokenizer *t) { return t->is_bytes; }
void tokenizer_set_chat(Tokenizer *t, char *jinja) { free(t->chat); t->chat = jinja; }
const char *tokenizer_chat(const Tokenizer *t) { return t->chat; }
void tokenizer_set_answer_end(Tokenizer *t, const char *end) {
    free(t->answer_end);
    t->answer_end = text_format("%s", end);
}
const char *tokenizer_answer_end(const Tokenizer *t) { return t->answer_end; }
const char *tokenizer_added(const Tokenizer *t, int id, size_t *bytes) {
    int i = 0;
    while (i < t->added_count && t->added[i].id != id) i++;
    if (i == t->added_count) return NULL;
    *bytes = t->added[i].content.bytes;
    return t->added[i].content.at;
}
uint64_t tokenizer_hash(const Tokenizer *t) {
    const uint64_t h = hash_bytes(t->eos_named ? (uint64_t)t->eos + 1 : 0, t->json, t->json_bytes);
    return t->splits ? ~h : h;
}
const char *tokenizer_json(const Tokenizer *t, size_t *bytes) { *bytes = t->json_bytes; return t->json; }

int tokenizer_id(const Tokenizer *t, const char *piece) {
    size_t n = strlen(piece);
    for (int i = 0; i < t->added_count; i++)
        if (t->added[i].content.bytes == n && !memcmp(t->added[i].content.at, piece, n)) return t->added[i].id;
    return tokenizer_find(t, piece, n);
}
