/* bpe.c: see bpe.h.
 *
 *   1. Count the words of the text: a hash table for each thread, added up afterwards.
 *   2. A word becomes an array of symbols, at first its bytes. Each pair of neighbouring symbols
 *      has a count, over the text, and a list of the words it occurs in.
 *   3. The pair with the largest count becomes a token: it is replaced in its words, which changes
 *      the counts of the pairs around it. A heap holds the pairs by count. Counts only fall, except
 *      those of new pairs, so an entry that is out of date is noticed when it comes out, and goes
 *      back with the right count. Lists of words are not shortened either: a word without the pair
 *      is passed over.
 *
 * The order of words, which depends on threads, has no effect: counts are sums, and among equal
 * counts the pair with the smaller ids comes first. */
#include "bpe.h"
#include "tokenizer_impl.h"
#include "llmc/base/omp.h"
#include <stdlib.h>
#include <string.h>

/* ---- counting words -------------------------------------------------------------------------- */

enum { WORD_LIMIT = 4096 };             /* longer words are counted in pieces: each merge passes over whole words */
typedef struct { const char *at; uint32_t bytes, hash; int64_t count; } Word;   /* count 0: a free entry */
typedef struct { Word *at; size_t capacity, used; } Words;                      /* hash table */

static Word *words_find(const Words *w, const char *s, size_t n, uint32_t hash) {
    size_t i = hash & (w->capacity - 1);
    for (Word *p; (p = &w->at[i])->count; i = (i + 1) & (w->capacity - 1))
        if (p->hash == hash && p->bytes == n && !memcmp(p->at, s, n)) return p;
    return &w->at[i];
}
static void words_add(Words *w, const char *s, size_t n, uint32_t hash, int64_t count) {
    if (2 * w->used >= w->capacity) {
        Words larger = { .capacity = w->capacity ? 2 * w->capacity : 1 << 12, .used = w->used };
        larger.at = mem_alloc(larger.capacity * sizeof(Word));
        for (size_t i = 0; i < w->capacity; i++)
            if (w->at[i].count) *words_find(&larger, w->at[i].at, w->at[i].bytes, w->at[i].hash) = w->at[i];
        free(w->at);
        *w = larger;
    }
    Word *word = words_find(w, s, n, hash);
    if (!word->count) *word = (Word){ s, (uint32_t)n, hash, 0 }, w->used++;
    word->count += count;
}

/* All text matches the patterns that there are. */
static void count_text(Words *w, const Pattern *pattern, const char *s, size_t n) {
    PatternSearch search = { .p = pattern, .s = s, .n = n };
    for (Match match; pattern_next(&search, &match, 1); )
        for (size_t at = match.from, length; at < match.to; at += length) {
            length = match.to - at < WORD_LIMIT ? match.to - at : WORD_LIMIT;
            words_add(w, s + at, length, (uint32_t)hash_bytes(0, s + at, length), 1);
        }
}

/* Where END_OF_TEXT is written in s, or n. */
static size_t end_of_text(const char *s, size_t n) {
    const size_t length = sizeof END_OF_TEXT - 1;
    for (const char *p = s; n >= length && (p = memchr(p, '<', (size_t)(s + n - p) - length + 1)); p++)
        if (!memcmp(p, END_OF_TEXT, length)) return (size_t)(p - s);
    return n;
}
static Words count_words(const Document *text, size_t documents, const Pattern *pattern, int show) {
    const int threads = omp_get_max_threads();
    Words *of = mem_alloc((size_t)threads * sizeof *of), all;
    Job *jobs;
    const int64_t n = (int64_t)documents_jobs(text, documents, 1, &jobs);
    int64_t bytes = 0;
    Meter meter;
    for (int64_t i = 0; i < n; i++) bytes += (int64_t)jobs[i].bytes;
    meter_begin(&meter, show, "tokenizer: counting words", bytes, "MB");
    #pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < n; i++) {
        Words *mine = &of[omp_get_thread_num()];
        for (size_t k = 0; k < jobs[i].count; k++) {
            int last;
            const Document d = job_piece(&jobs[i], k, &last);
            for (size_t at = 0, end; at < d.bytes; at = end + sizeof END_OF_TEXT - 1) {
                end = at + end_of_text(d.at + at, d.bytes - at);
                count_text(mine, pattern, d.at + at, end - at);
            }
        }
        meter_add(&meter, (int64_t)jobs[i].bytes);
    }
    meter_end(&meter);
    all = of[0];
    for (int t = 1; t < threads; t++) {
        for (size_t i = 0; i < of[t].capacity; i++) {
            const Word *w = &of[t].at[i];
            if (w->count) words_add(&all, w->at, w->bytes, w->hash, w->count);
        }
        free(of[t].at);
    }
    free_each(of, jobs);
    return all;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

enum { FIRST_BYTE = 1 };                /* an id; 0 is END_OF_TEXT */
typedef struct { int64_t count; uint32_t *symbols; uint32_t length; } Sequence;         /* a word, as symbols */
/* in: words it may occur in */
typedef struct { uint64_t ids; int64_t count; uint32_t *in, n, capacity; int merge; } Pair;
typedef struct { int64_t count; uint64_t ids; uint32_t pair; } Candidate;
typedef struct { uint64_t pair; uint32_t id; } Merged;

typedef struct {
    Sequence *words;
    uint32_t *symbols;                  /* of all words */
    size_t word_count;
    Pair *pairs;
    uint32_t pair_count, pair_capacity;
    uint32_t *table, mask;              /* hash table of pairs: index + 1; 0: a free entry */
    Candidate *heap;
    size_t heap_count, heap_capacity;
    uint32_t *grown;                    /* pairs whose count the current merge has raised */
    size_t grown_count, grown_capacity;
    Merged *merges;
    int merge_count;
    Text bytes;                         /* of all tokens, one after another */
    size_t *start;                      /* where each begins; one more for the end of the last */
    int tokens;
    int32_t *token_table; uint32_t token_mask;          /* hash table of tokens by their bytes: id or -1 */
} Trainer;

static uint64_t pair_of(uint32_t left, uint32_t right) { return (uint64_t)left << 32 | right; }
static uint32_t pair_hash(uint64_t ids) { return (uint32_t)((ids ^ ids >> 29) * 0x9E3779B97F4A7C15u >> 32); }

/* The table's entry of a pair: its index + 1, or 0 where it belongs. */
static uint32_t *pair_entry(const Trainer *t, uint64_t ids) {
    uint32_t i = pair_hash(ids) & t->mask;
    while (t->table[i] && t->pairs[t->table[i] - 1].ids != ids) i = (i + 1) & t->mask;
    return &t->table[i];
}
static Pair *pair_make(Trainer *t, uint64_t ids) {
    uint32_t *entry = pair_entry(t, ids);
    if (*entry) return &t->pairs[*entry - 1];
    if (t->pair_count == t->pair_capacity) {
        t->pair_capacity *= 2;
        t->pairs = mem_grow(t->pairs, t->pair_capacity * sizeof *t->pairs);
        t->mask = 2 * t->mask + 1;
        free(t->table);
        t->table = mem_alloc(((size_t)t->mask + 1) * sizeof *t->table);
        for (uint32_t i = 0; i < t->pair_count; i++) *pair_entry(t, t->pairs[i].ids) = i + 1;
        entry = pair_entry(t, ids);
    }
    t->pairs[t->pair_count] = (Pair){ .ids = ids, .merge = -1 };
    *entry = ++t->pair_count;
    return &t->pairs[t->pair_count - 1];
}

static void pair_more(Trainer *t, uint32_t left, uint32_t right, uint32_t word) {
    Pair *p = pair_make(t, pair_of(left, right));
    p->count += t->words[word].count;
    if (!p->n || p->in[p->n - 1] != word) {
        if (p->n == p->capacity)
            p->in = mem_grow(p->in, (p->capacity = p->capacity ? 2 * p->capacity : 2) * sizeof *p->in);
        p->in[p->n++] = word;
    }
    if (p->merge == t->merge_count) return;
    p->merge = t->merge_count;
    array_grow(t->grown, t->grown_count, t->grown_capacity);
    t->grown[t->grown_count++] = (uint32_t)(p - t->pairs);
}

static void pair_less(Trainer *t, uint32_t left, uint32_t right, uint32_t word) {
    pair_make(t, pair_of(left, right))->count -= t->words[word].count;
}

static int comes_before(const Candidate *a, const Candidate *b) {
    return a->count != b->count ? a->count > b->count : a->ids < b->ids;
}
static void heap_push(Trainer *t, uint32_t pair) {
    const Candidate x = { t->pairs[pair].count, t->pairs[pair].ids, pair };
    size_t i = t->heap_count++;
    array_grow(t->heap, i, t->heap_capacity);
    for (; i && comes_before(&x, &t->heap[(i - 1) / 2]); i = (i - 1) / 2) t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = x;
}
static Candidate heap_pop(Trainer *t) {
    const Candidate top = t->heap[0], x = t->heap[--t->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < t->heap_count; i = child) {
        if (child + 1 < t->heap_count && comes_before(&t->heap[child + 1], &t->heap[child])) child++;
        if (!comes_before(&t->heap[child], &x)) break;
        t->heap[i] = t->heap[child];
    }
    t->heap[i] = x;
    return top;
}
static void push_grown(Trainer *t) {
    for (size_t i = 0; i < t->grown_count; i++) heap_push(t, t->grown[i]);
    t->grown_count = 0;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Ids of bytes are in the order of their characters in the file, as in Hugging Face's library. */
static void byte_ids(uint32_t id[256]) {
    for (int b = 0; b < 256; b++) {
        id[b] = FIRST_BYTE;
        for (int c = 0; c < 256; c++) id[b] += tokenizer_byte_code(c) < tokenizer_byte_code(b);
    }
}

static uint32_t token_hash(const char *s, size_t n) { return (uint32_t)hash_bytes(1, s, n); }
static Document token_bytes(const Trainer *t, uint32_t id) {
    return (Document){ t->bytes.at + t->start[id], t->start[id + 1] - t->start[id], 0, 0 };
}

/* The token of these bytes, or a new one: two pairs may make the same, "ab" "c" and "a" "bc". */
static uint32_t token_of(Trainer *t, const char *s, size_t n) {
    uint32_t i = token_hash(s, n) & t->token_mask;
    for (int32_t id; (id = t->token_table[i]) >= 0; i = (i + 1) & t->token_mask) {
        const Document d = token_bytes(t, (uint32_t)id);
        if (d.bytes == n && !memcmp(d.at, s, n)) return (uint32_t)id;
    }
    text_add_bytes(&t->bytes, s, n);
    t->token_table[i] = t->tokens++;
    t->start[t->tokens] = t->bytes.length;
    return (uint32_t)t->tokens - 1;
}

static uint32_t token_joined(Trainer *t, uint32_t left, uint32_t right) {
    Text both = { 0 };
    const Document a = token_bytes(t, left), b = token_bytes(t, right);
    text_add_bytes(&both, a.at, a.bytes);
    text_add_bytes(&both, b.at, b.bytes);
    const uint32_t id = token_of(t, both.at, both.length);
    free(both.at);
    return id;
}

static void trainer_begin(Trainer *t, const Words *words, int tokens) {
    uint32_t id[256];
    size_t symbols = 0;
    *t = (Trainer){ .pair_capacity = 1 << 16, .mask = (1 << 17) - 1, .token_mask = 1023 };
    while (t->token_mask < 2 * (uint32_t)tokens) t->token_mask = 2 * t->token_mask + 1;
    t->token_table = mem_alloc(((size_t)t->token_mask + 1) * sizeof *t->token_table);
    memset(t->token_table, -1, ((size_t)t->token_mask + 1) * sizeof *t->token_table);
    t->start = mem_alloc(((size_t)tokens + 1) * sizeof *t->start);
    t->pairs = mem_alloc(t->pair_capacity * sizeof *t->pairs);
    t->table = mem_alloc(((size_t)t->mask + 1) * sizeof *t->table);
    byte_ids(id);
    token_of(t, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    for (uint32_t i = 0; i < 256; i++)
        for (int b = 0; b < 256; b++)
            if (id[b] == FIRST_BYTE + i) token_of(t, &(const char){ (char)b }, 1);
    for (size_t i = 0; i < words->capacity; i++) symbols += words->at[i].count ? words->at[i].bytes : 0;
    t->words = mem_alloc(words->used * sizeof *t->words);
    uint32_t *next = t->symbols = mem_alloc(symbols * sizeof *t->symbols);
    for (size_t i = 0; i < words->capacity; i++) {
        const Word *w = &words->at[i];
        if (w->count < 1 || w->bytes < 2) continue;
        const uint32_t n = (uint32_t)t->word_count++;
        t->words[n] = (Sequence){ w->count, next, w->bytes };
        for (uint32_t k = 0; k < w->bytes; k++) *next++ = id[(unsigned char)w->at[k]];
        for (uint32_t k = 0; k + 1 < w->bytes; k++)
            pair_more(t, t->words[n].symbols[k], t->words[n].symbols[k + 1], n);
    }
    push_grown(t);
}

/* Replaces a pair by a token in one word. */
static void merge_in_word(Trainer *t, uint32_t word, uint32_t left, uint32_t right, uint32_t token) {
    uint32_t *s = t->words[word].symbols, length = t->words[word].length, kept = 0;
    for (uint32_t i = 0; i < length; i++) {
        if (i + 1 == length || s[i] != left || s[i + 1] != right) { s[kept++] = s[i]; continue; }
        pair_less(t, left, right, word);
        if (kept) pair_less(t, s[kept - 1], left, word), pair_more(t, s[kept - 1], token, word);
        if (i + 2 < length) pair_less(t, right, s[i + 2], word), pair_more(t, token, s[i + 2], word);
        s[kept++] = token;
        i++;
    }
    t->words[word].length = kept;
}

/* Merges until there are `tokens` tokens, or no pair occurs twice. */
static void merge_all(Trainer *t, int tokens, int show) {
    Meter meter;
    meter_begin(&meter, show, "tokenizer: merging", tokens, "tokens");
    meter_add(&meter, t->tokens);
    t->merges = mem_alloc((size_t)tokens * 2 * sizeof *t->merges);
    while (t->tokens < tokens && t->heap_count) {
        const Candidate c = heap_pop(t);
        Pair *p = &t->pairs[c.pair];
        if (p->count != c.count) {
            if (p->count > 1 && p->count < c.count) heap_push(t, c.pair);
            continue;
        }
        if (c.count < 2) break;
        const uint32_t left = (uint32_t)(c.ids >> 32), right = (uint32_t)c.ids, n = p->n, before = (uint32_t)t->tokens;
        uint32_t *in = p->in;
        p->in = NULL;
        p->n = p->capacity = 0;
        const uint32_t token = token_joined(t, left, right);
        t->merges[t->merge_count++] = (Merged){ c.ids, token };
        for (uint32_t i = 0; i < n; i++) merge_in_word(t, in[i], left, right, token);
        free(in);
        push_grown(t);
        meter_add(&meter, t->tokens - (int)before);
    }
    meter_end(&meter);
}

static void trainer_end(Trainer *t) {
    for (uint32_t i = 0; i < t->pair_count; i++) free(t->pairs[i].in);
    free_each(t->words, t->symbols, t->pairs, t->table, t->heap, t->grown, t->merges, t->bytes.at, t->start,
              t->token_table);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* A token as byte-level files write it: a character for each byte. */
static void add_key(Text *json, Document token) {
    for (size_t i = 0; i < token.bytes; i++) {
        char c[4];
        const uint32_t code = tokenizer_byte_code((unsigned char)token.at[i]);
        if (code == '"' || code == '\\') text_add_bytes(json, "\\", 1);
        text_add_bytes(json, c, utf8_encode(code, c));
    }
}
static Tokenizer *tokenizer_of(const Trainer *t, const char *regex, Error *e) {
    Text json = { 0 };
    text_add(&json,
             "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n\"added_tokens\":[{\"id\":0,\"content\":\""
             END_OF_TEXT "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
             "\"special\":true}],\n\"normalizer\":null,\n\"pre_tokenizer\":");
    if (regex) {
        text_add(&json, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        text_add_json(&json, regex, strlen(regex));
        text_add(&json, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    text_add(&json, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":%s}%s,\n"
             "\"post_processor\":null,\n\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
             "\"trim_offsets\":true,\"use_regex\":true},\n\"model\":{\"type\":\"BPE\",\"dropout\":null,"
             "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
             "\"byte_fallback\":false,\"ignore_merges\":false,\n\"vocab\":{\"" END_OF_TEXT "\":0",
             regex ? "false" : "true", regex ? "]}" : "");
    for (int i = FIRST_BYTE; i < t->tokens; i++) {
        text_add(&json, ",\n\"");
        add_key(&json, token_bytes(t, (uint32_t)i));
        text_add(&json, "\":%d", i);
    }
    text_add(&json, "},\n\"merges\":[");
    for (int i = 0; i < t->merge_count; i++) {
        text_add(&json, i ? ",\n\"" : "\n\"");
        add_key(&json, token_bytes(t, (uint32_t)(t->merges[i].pair >> 32)));
        text_add(&json, " ");
        add_key(&json, token_bytes(t, (uint32_t)t->merges[i].pair));
        text_add(&json, "\"");
    }
    text_add(&json, "]}}\n");
    Tokenizer *tokenizer = tokenizer_load_text(json.at, json.length, e);
    free(json.at);
    return tokenizer;
}

Tokenizer *bpe_train(const Document *text, size_t documents, int tokens, const char *pattern, int show, Error *e) {
    const int gpt2 = !strcmp(pattern, "gpt2");
    if (!gpt2 && strcmp(pattern, "cl100k"))
        return error_set(e, "pattern \"%.80s\" (-tp): expected one of %s", pattern, BPE_PATTERNS), NULL;
    if (tokens < BPE_MIN || tokens > BPE_MAX)
        return error_set(e, "a tokenizer of %d tokens (-tk): expected %d (256 bytes and the end of text) to %d", tokens,
                         BPE_MIN, BPE_MAX), NULL;
    const char *regex = gpt2 ? NULL : CL100K_PATTERN, *cuts = gpt2 ? GPT2_PATTERN : CL100K_PATTERN;
    Pattern *compiled = pattern_open(cuts, strlen(cuts), 0, e);
    if (!compiled) return NULL;
    Trainer t;
    Words words = count_words(text, documents, compiled, show);
    pattern_close(compiled);
    trainer_begin(&t, &words, tokens);
    free(words.at);
    merge_all(&t, tokens, show);
    Tokenizer *tokenizer = t.tokens == tokens ? tokenizer_of(&t, regex, e) : NULL;
    if (t.tokens != tokens)
        error_set(e, "a tokenizer of %d tokens (-tk): the training text supports %d, after which no pair of tokens "
                  "occurs twice; ask for fewer tokens or give more text", tokens, t.tokens);
    trainer_end(&t);
    return tokenizer;
}
