/* tokenizer_json.c: reads tokenizer.json (tokenizer.h), and writes that of the tokenizer of bytes.
 *
 * Byte-level files write bytes as characters: the 188 printable ones of Latin-1 stand for
 * themselves, the other 68, in order, for U+0100 and up. That map is undone once, when the file is
 * read; from then on symbols are plain bytes. */
#define _POSIX_C_SOURCE 200809L
#include "tokenizer_impl.h"
#include "unicode.h"
#include "llmc/base/json.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof (a) / sizeof *(a))
enum { GAPS_MOST = 1 << 20 };           /* ids without a token */

/* ---- what happens to text -------------------------------------------------------------------- */

static const char *type_of(const JsonValue *v) { return json_string(json_get(v, "type"), "of unknown type"); }
static int text_is(const JsonValue *v, const char *expected) { return !strcmp(json_string(v, ""), expected); }
/* Has the object only these keys, separated by spaces? Others could change what it means. */
static int has_only(const JsonValue *v, const char *keys, const char *what, Error *e) {
    for (const JsonValue *x = json_first(v); x; x = x->next) {
        const char *at = strstr(keys, x->key);
        while (at && !((at == keys || at[-1] == ' ') && (at[x->key_length] == ' ' || !at[x->key_length])))
            at = strstr(at + 1, x->key);
        if (!at || !x->key_length)
            return error_set(e, "%.80s: \"%.80s\" is not known to this program; remove it if it changes nothing", what,
                             x->key);
    }
    return 1;
}

/* All parts of a "Sequence" of normalizers, of pre-tokenizers or of decoders. */
typedef int Reader(Tokenizer *t, const JsonValue *v, Error *e);
static int read_sequence(Tokenizer *t, const JsonValue *parts, Reader *read, Error *e) {
    for (const JsonValue *part = json_first(parts); part; part = part->next) if (!read(t, part, e)) return 0;
    return 1;
}

/* {"Regex": ...} or {"String": ...} */
static Pattern *read_pattern(const JsonValue *v, Error *e) {
    const JsonValue *regex = json_get(v, "Regex"), *text = json_get(v, "String"), *one = regex ? regex : text;
    if (!json_is(one, JSON_STRING) || json_get(v, regex ? "String" : "Regex"))
        return error_set(e, "a pattern has neither \"Regex\" nor \"String\""), NULL;
    return pattern_open(one->is.string, one->length, !regex, e);
}
static int add_change(Tokenizer *t, int kind, Pattern *pattern, const char *text, Error *e) {
    if (t->changes == STEPS || (kind > NFD && !text)) {
        pattern_close(pattern);
        return error_set(e, "normalizer: more than %d steps, or one without its text", STEPS);
    }
    t->change[t->changes++] = (Change){ kind, pattern, text ? text_format("%s", text) : NULL };
    return 1;
}
static int read_normalizer(Tokenizer *t, const JsonValue *v, Error *e) {
    const char *type = type_of(v);
    if (json_is_null(v)) return 1;
    if (!has_only(v, "type normalizers prepend pattern content strip_left strip_right", "normalizer", e)) return 0;
    if (!strcmp(type, "Sequence")) return read_sequence(t, json_get(v, "normalizers"), read_normalizer, e);
    if (!strcmp(type, "NFC")) return add_change(t, NFC, NULL, NULL, e);
    if (!strcmp(type, "NFD")) return add_change(t, NFD, NULL, NULL, e);
    if (!strcmp(type, "Prepend")) return add_change(t, PREPEND, NULL, json_string(json_get(v, "prepend"), NULL), e);
    if (!strcmp(type, "Replace")) {
        Pattern *pattern = read_pattern(json_get(v, "pattern"), e);
        return pattern && add_change(t, REPLACE, pattern, json_string(json_get(v, "content"), NULL), e);
    }
    if (!strcmp(type, "Strip")) {
        static const char *const keys[] = { "strip_left", "strip_right" }, *const regex[] = { "\\A\\s+", "\\s+\\z" };
        for (int i = 0; i < 2; i++) {
            Pattern *edge = json_bool(json_get(v, keys[i]), 1) ? pattern_open(regex[i], strlen(regex[i]), 0, e) : NULL;
            if (edge && !add_change(t, REPLACE, edge, "", e)) return 0;
        }
        return 1;
    }
    return error_set(e, "normalizer %.80s is not supported (NFKC, Lowercase and the like change letters, so decoding "
                     "would give another text); there are NFC, NFD, Prepend, Replace, Strip and Sequence. Data can "
                     "come as tokens that another program made (-i FILE.bin)", type);
}

static int add_step(Tokenizer *t, Pattern *pattern, Behavior behavior, int invert, Error *e) {
    if (t->steps == STEPS) {
        pattern_close(pattern);
        return error_set(e, "pre_tokenizer: more than %d steps", STEPS);
    }
    t->step[t->steps++] = (Step){ pattern, behavior, invert };
    return 1;
}
static int add_regex(Tokenizer *t, const char *regex, Behavior behavior, int invert, Error *e) {
    Pattern *pattern = pattern_open(regex, strlen(regex), 0, e);
    return pattern && add_step(t, pattern, behavior, invert, e);
}
static int read_metaspace(Tokenizer *t, const JsonValue *v, Error *e) {
    static const char *const schemes[] = { "never", "first", "always" };
    const char *old = json_bool(json_get(v, "add_prefix_space"), 1) ? "always" : "never";
    const char *scheme = json_string(json_get(v, "prepend_scheme"), old);
    for (int i = NEVER; i <= ALWAYS; i++)
        if (!strcmp(scheme, schemes[i]) && text_is(json_get(v, "replacement"), UNDERLINE) && !t->metaspace
            && !t->steps) {
            t->metaspace = 1;
            t->metaspace_prepend = i;
            return !json_bool(json_get(v, "split"), 1) || add_regex(t, UNDERLINE, WITH_NEXT, 0, e);
        }
    return error_set(e, "pre_tokenizer Metaspace: its options are not supported");
}

/* 0 and e: it has none of these names. */
static int read_behavior(const JsonValue *v, Behavior *behavior, Error *e) {
    static const char *const names[] = { "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const char *name = json_string(json_get(v, "behavior"), "Isolated");
    for (*behavior = ISOLATED; *behavior < BEHAVIORS; ++*behavior) if (!strcmp(name, names[*behavior])) return 1;
    return error_set(e, "pre_tokenizer %.80s: behavior %.80s is not supported", type_of(v), name);
}
static int read_split(Tokenizer *t, const JsonValue *v, Error *e) {
    Behavior behavior;
    Pattern *pattern = read_behavior(v, &behavior, e) ? read_pattern(json_get(v, "pattern"), e) : NULL;
    return pattern && add_step(t, pattern, behavior, json_bool(json_get(v, "invert"), 0), e);
}
/* It can put a space in front of each piece, and cut as GPT-2 does. */
static int read_byte_level(Tokenizer *t, const JsonValue *v, Error *e) {
    t->byte_level = 1;
    return (!json_bool(json_get(v, "add_prefix_space"), 1) || add_step(t, NULL, ISOLATED, 0, e))
        && (!json_bool(json_get(v, "use_regex"), 1) || add_regex(t, GPT2_PATTERN, ISOLATED, 0, e));
}

#define WORD "\\w\\x{200C}\\x{200D}"       /* \w as Rust's library sees it */
static int read_pre_tokenizer(Tokenizer *t, const JsonValue *v, Error *e) {
    const char *type = type_of(v);
    Behavior behavior;
    if (json_is_null(v)) return 1;
    if (!has_only(v, "type pretokenizers pattern behavior invert individual_digits add_prefix_space trim_offsets "
                  "use_regex replacement prepend_scheme split str_rep", "pre_tokenizer", e)) return 0;
    if (!strcmp(type, "Sequence")) return read_sequence(t, json_get(v, "pretokenizers"), read_pre_tokenizer, e);
    if (t->byte_level) return error_set(e, "pre_tokenizer %.80s after ByteLevel is not supported", type);
    if (!strcmp(type, "Split")) return read_split(t, v, e);
    if (!strcmp(type, "ByteLevel")) return read_byte_level(t, v, e);
    if (!strcmp(type, "Metaspace")) return read_metaspace(t, v, e);
    if (!strcmp(type, "Digits"))
        return add_regex(t, "\\p{N}", json_bool(json_get(v, "individual_digits"), 0) ? ISOLATED : CONTIGUOUS, 0, e);
    if (!strcmp(type, "Punctuation"))
        return read_behavior(v, &behavior, e) && add_regex(t, "[!-/:-@\\[-`{-~\\p{P}]", behavior, 0, e);
    if (!strcmp(type, "Whitespace"))
        return add_regex(t, "[" WORD "]+|[^\\s" WORD "]+", REMOVED, 1, e);
    if (!strcmp(type, "WhitespaceSplit")) return add_regex(t, "\\s", REMOVED, 0, e);
    return error_set(e, "pre_tokenizer %.80s is not supported", type);
}

static int read_decoder(Tokenizer *t, const JsonValue *v, Error *e) {
    const char *type = type_of(v);
    if (!strcmp(type, "Sequence")) return read_sequence(t, json_get(v, "decoders"), read_decoder, e);
    if (t->byte_level && !strcmp(type, "ByteLevel")) return 1;
    if (t->byte_level) return error_set(e, "decoder %.80s with pre_tokenizer ByteLevel is not supported", type);
    if (!strcmp(type, "ByteFallback") || !strcmp(type, "Fuse")) return 1;
    if (!strcmp(type, "Replace") && text_is(json_get(json_get(v, "pattern"), "String"), UNDERLINE)
        && text_is(json_get(v, "content"), " ")) return 1;
    if (!strcmp(type, "Metaspace")) {
        t->strip = strcmp(json_string(json_get(v, "prepend_scheme"), "always"), "never") != 0;
        return 1;
    }
    if (!strcmp(type, "Strip") && text_is(json_get(v, "content"), " ") && json_int(json_get(v, "start"), -1) == 1
        && json_int(json_get(v, "stop"), -1) == 0) return t->strip = 1;
    return error_set(e, "decoder %.80s, or one of its options, is not supported", type);
}

/* Only a token in front of a single text matters; other post-processors change only offsets. */
static void read_post_processor(Tokenizer *t, const JsonValue *v) {
    for (const JsonValue *part = json_first(json_get(v, "processors")); part; part = part->next)
        read_post_processor(t, part);
    if (strcmp(type_of(v), "TemplateProcessing")) return;
    int first = 1;
    for (const JsonValue *x = json_first(json_get(v, "single")); x; x = x->next, first = 0) {
        const char *name = json_string(json_get(json_get(x, "SpecialToken"), "id"), NULL);
        if (name && first) t->bos = tokenizer_id(t, name);
        else if (name) t->behind = tokenizer_id(t, name);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static Slice keep(Tokenizer *t, const char *s, size_t n) {
    Slice kept = { t->arena_end, n };
    if (n) memcpy(t->arena_end, s, n);
    t->arena_end += n;
    return kept;
}

uint32_t tokenizer_byte_code(int byte) {
    /* how many there are below '!', and between the two printable ranges */
    enum { LOW = '!', HIGH = 0xA1 - ('~' + 1) };
    if (byte < '!') return 0x100 + (uint32_t)byte;
    if (byte > '~' && byte < 0xA1) return 0x100 + LOW + (uint32_t)(byte - '~' - 1);
    return byte == 0xAD ? 0x100 + LOW + HIGH : (uint32_t)byte;
}
/* Undoes tokenizer_byte_code for a key; 0 if it has other characters. */
static int bytes_of_key(const int *byte_of_code, const JsonValue *v, Text *out) {
    for (size_t at = 0, n; at < v->key_length; at += n) {
        uint32_t code = 0;
        n = utf8_decode(v->key + at, v->key_length - at, &code);
        if (!n || code >= 0x200 || byte_of_code[code] < 0) return 0;
        char byte = (char)byte_of_code[code];
        text_add_bytes(out, &byte, 1);
    }
    return 1;
}

static int byte_token(const char *s, size_t n) {         /* <0x4F> is the byte 79; -1 for other tokens */
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>' || !s[3] || !s[4]) return -1;
    const char *high = strchr(digits, s[3]), *low = strchr(digits, s[4]);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

static int id_free(const Tokenizer *t, const JsonValue *v, const char *name, Error *e) {
    int64_t id = json_int(v, -1);
    if (id < 0 || id >= t->vocab)
        return error_set(e, "token %.100s has no id, or one far from those of the others", name);
    return t->piece[id].at ? error_set(e, "two tokens have the id %lld; one is %.100s", (long long)id, name) : 1;
}

static void word_add(Tokenizer *t, int id) {
    size_t i = (size_t)hash_bytes(0, t->symbol[id].at, t->symbol[id].bytes) & t->words_mask;
    while (t->words[i] >= 0) i = (i + 1) & t->words_mask;
    t->words[i] = id;
}
static int read_vocab(Tokenizer *t, const JsonValue *vocab, Error *e) {
    int byte_of_code[0x200], ok = 1;
    for (int i = 0; i < 0x200; i++) byte_of_code[i] = -1;
    for (int b = 0; b < 256; b++) byte_of_code[tokenizer_byte_code(b)] = b;
    for (const JsonValue *v = json_first(vocab); v && ok; v = v->next) {
        if (!(ok = id_free(t, v, v->key, e))) break;
        int id = (int)v->is.integer, byte = -1, reachable = 1;
        Text raw = { 0 };
        if (t->byte_level) {
            reachable = v->key_length && bytes_of_key(byte_of_code, v, &raw);
            t->symbol[id] = t->piece[id] = reachable ? keep(t, raw.at, raw.length) : keep(t, v->key, v->key_length);
            if (reachable && raw.length == 1) byte = (unsigned char)raw.at[0];
        } else {
            t->symbol[id] = keep(t, v->key, v->key_length);
            byte = byte_token(v->key, v->key_length);
            char c = (char)byte;
            for (size_t i = 0, n; i < v->key_length && byte < 0; i += n) {          /* the piece: spaces for U+2581 */
                int space = v->key_length - i >= 3 && !memcmp(v->key + i, UNDERLINE, 3);
                n = space ? 3 : 1;
                text_add_bytes(&raw, space ? " " : v->key + i, 1);
            }
            t->piece[id] = byte < 0 ? keep(t, raw.at, raw.length) : keep(t, &c, 1);
        }
        if (byte >= 0) t->byte_id[byte] = id;
        if (reachable) word_add(t, id);
        free(raw.at);
    }
    for (int b = 0; b < 256 && ok; b++)
        if (t->byte_id[b] < 0 && (b == 0xC0 || b == 0xC1 || b >= 0xF5) && t->byte_level) t->lacks_bytes = 1;
        else if (t->byte_id[b] < 0)
            ok = error_set(e, "no token for the byte 0x%02X: text could not be encoded without loss", (unsigned)b);
    return ok;
}

static int by_bytes(const void *x, const void *y) {
    const Added *a = x, *b = y;
    if (a->normalized != b->normalized) return a->normalized - b->normalized;
    const int order = memcmp(a->at, b->at, a->bytes < b->bytes ? a->bytes : b->bytes);
    return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}
/* Sorts the added tokens for added_match, and refuses two of the same text. */
static int index_added(Tokenizer *t, Error *e) {
    if (t->added_count) qsort(t->added, (size_t)t->added_count, sizeof *t->added, by_bytes);
    for (int i = 1; i < t->added_count; i++)
        if (by_bytes(&t->added[i - 1], &t->added[i]) == 0)
            return error_set(e, "added token %.100s appears twice", t->added[i].at);
    for (int i = 0; i < t->added_count; i++)
        t->added_start[t->added[i].normalized][(unsigned char)t->added[i].at[0] + 1]++;
    for (int c = 0; c < 256; c++) t->added_start[0][c + 1] += t->added_start[0][c];
    t->added_start[1][0] = t->added_start[0][256];
    for (int c = 0; c < 256; c++) t->added_start[1][c + 1] += t->added_start[1][c];
    return 1;
}

/* A token that is not in the vocabulary gets this id from Hugging Face's library, whatever the file
 * says: the next after those before it, or after the vocabulary. */
static int64_t next_id(const Tokenizer *t) {
    int64_t id = t->model_tokens - 1;
    for (int i = 0; i < t->added_count; i++) if (t->added[i].id > id) id = t->added[i].id;
    return id + 1;
}
static int read_one_added(Tokenizer *t, const JsonValue *v, const JsonValue *vocab, Error *e) {
    const JsonValue *content = json_get(v, "content"), *known = json_find(vocab, content->is.string, content->length),
        *number = json_get(v, "id");
    const char *name = content->is.string;
    if (!has_only(v, "id content special normalized lstrip rstrip single_word", "added token", e)) return 0;
    if (known ? json_int(known, -1) != json_int(number, -2) : !id_free(t, number, name, e))
        return known ? error_set(e, "added token %.100s has another id in the vocabulary", name) : 0;
    if (!known && json_int(number, -1) != next_id(t))
        return error_set(e, "added token %.100s has the id %lld, but Transformers gives it the next one, %lld: write "
                         "the id that the model learned it by, and tokens for the gap", name,
                         (long long)json_int(number, -1), (long long)next_id(t));
    Added *a = &t->added[t->added_count++];
    Text wanted = { 0 };
    *a = (Added){ .id = (int)number->is.integer, .content = keep(t, name, content->length) };
    a->normalized = json_bool(json_get(v, "normalized"), 0);
    a->strips = json_bool(json_get(v, "lstrip"), 0) + 2 * json_bool(json_get(v, "rstrip"), 0);
    a->is_word = json_bool(json_get(v, "single_word"), 0);
    t->added_flags |= a->strips || a->is_word;
    a->is_special = json_bool(json_get(v, "special"), 0);
    t->piece[a->id] = a->is_special ? (Slice){ "", 0 } : a->content;
    if (!known) t->symbol[a->id] = a->content;
    if (a->normalized) tokenizer_normalize(t, name, content->length, &wanted);
    else text_add_bytes(&wanted, name, content->length);
    a->at = wanted.at;
    a->bytes = wanted.length;
    if (!a->bytes) return error_set(e, "added token %d is empty", a->id);
    return a->bytes <= ADDED_MOST
        || error_set(e, "added token %.100s has %zu bytes; at most %d are supported", name, a->bytes, ADDED_MOST);
}
static int read_added(Tokenizer *t, const JsonValue *list, const JsonValue *vocab, Error *e) {
    t->added = mem_alloc((list ? list->length : 0) * sizeof *t->added);
    for (const JsonValue *v = json_first(list); v; v = v->next) if (!read_one_added(t, v, vocab, e)) return 0;
    for (int i = 0; i < t->vocab; i++) if (!t->piece[i].at) t->piece[i] = t->symbol[i] = (Slice){ "", 0 };
    if (t->added_flags) {
        unicode_add(&t->space, "space", 5);
        unicode_add(&t->letter, "word", 4);
        codeset_add(&t->letter, 0x200C, 0x200D);
        codeset_sort(&t->letter);
    }
    return index_added(t, e);
}

/* A merge is "left right" or ["left", "right"]; both and their concatenation must be tokens. */
static int read_merges(Tokenizer *t, const JsonValue *list, const JsonValue *vocab, Error *e) {
    int rank = 0;
    for (const JsonValue *v = json_first(list); v; v = v->next, rank++) {
        const JsonValue *a = json_first(v), *b = a ? a->next : NULL;
        Slice left = { NULL, 0 }, right = { NULL, 0 };
        if (json_is(v, JSON_STRING)) {
            const char *space = memchr(v->is.string, ' ', v->length);
            if (space) {
                left = (Slice){ v->is.string, (size_t)(space - v->is.string) };
                right = (Slice){ space + 1, v->length - left.bytes - 1 };
            }
        } else if (json_is(v, JSON_ARRAY) && v->length == 2 && json_is(a, JSON_STRING) && json_is(b, JSON_STRING)) {
            left = (Slice){ a->is.string, a->length };
            right = (Slice){ b->is.string, b->length };
        }
        if (!left.bytes || !right.bytes)
            return error_set(e, "merge %d is neither \"left right\" nor [\"left\", \"right\"]", rank);
        Text full = { 0 };
        text_add_bytes(&full, left.at, left.bytes);
        text_add_bytes(&full, right.at, right.bytes);
        int64_t l = json_int(json_find(vocab, left.at, left.bytes), -1),
            r = json_int(json_find(vocab, right.at, right.bytes), -1);
        int64_t id = json_int(json_find(vocab, full.at, full.length), -1);
        free(full.at);
        if (l < 0 || r < 0 || id < 0)
            return error_set(e, "merge %d, of %.80s and what follows, is not made of tokens or makes none",
                             rank, left.at);
        uint64_t pair = (uint64_t)l << 32 | (uint32_t)r;
        *tokenizer_merge(t, pair) = (Merge){ pair, rank, (int)id };
    }
    if (!rank && !(t->byte_level && t->vocab - t->added_count == 256))
        return error_set(e, "it has no merges, so %d tokens could never be used", t->model_tokens);
    return 1;
}

static size_t table_size(size_t entries) {
    size_t size = 8;
    while (size < 2 * entries) size *= 2;
    return size;
}

/* Sizes the tables: the vocabulary, and the added tokens that are not in it. Ids may have gaps. */
static int prepare(Tokenizer *t, size_t json_bytes, const JsonValue *vocab, const JsonValue *merges,
                   const JsonValue *added, Error *e) {
    size_t total = vocab->length;
    int64_t last = -1;
    for (const JsonValue *v = json_first(vocab); v; v = v->next) if (json_int(v, -1) > last) last = json_int(v, -1);
    for (const JsonValue *v = json_first(added); v; v = v->next) {
        const JsonValue *content = json_get(v, "content");
        if (!json_is(content, JSON_STRING)) return error_set(e, "an added token has no \"content\"");
        total += !json_find(vocab, content->is.string, content->length);
        if (json_int(json_get(v, "id"), -1) > last) last = json_int(json_get(v, "id"), -1);
    }
    if (total > INT_MAX / 4 || merges->length > INT_MAX / 4)
        return error_set(e, "more tokens than this program can count");
    if (last >= (int64_t)total + GAPS_MOST)
        return error_set(e, "a token has the id %lld, but there are only %zu tokens", (long long)last, total);
    t->vocab = (int)((int64_t)total > last + 1 ? (int64_t)total : last + 1);
    t->model_tokens = (int)vocab->length;
    total = (size_t)t->vocab;
    t->arena = t->arena_end = mem_alloc(2 * json_bytes + 1);            /* at most a symbol and a piece for each key */
    t->symbol = mem_alloc(total * sizeof *t->symbol);
    t->piece = mem_alloc(total * sizeof *t->piece);
    t->words_mask = table_size(total) - 1;
    t->merges_mask = table_size(merges->length) - 1;
    t->words = mem_alloc((t->words_mask + 1) * sizeof *t->words);
    t->merges = mem_alloc((t->merges_mask + 1) * sizeof *t->merges);
    for (size_t i = 0; i <= t->words_mask; i++) t->words[i] = -1;
    for (size_t i = 0; i <= t->merges_mask; i++) t->merges[i].rank = -1;
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
    return 1;
}

static int read_model(Tokenizer *t, const JsonValue *root, size_t bytes, Error *e) {
    const JsonValue *model = json_get(root, "model"), *vocab = json_get(model, "vocab"),
        *merges = json_get(model, "merges");
    const JsonValue *added = json_get(root, "added_tokens");
    static const char *const refused[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    if (!json_is(model, JSON_OBJECT)) return error_set(e, "it has no \"model\"");
    if (!has_only(model, "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
                  "ignore_merges vocab merges", "model", e)) return 0;
    if (json_get(model, "type") && strcmp(type_of(model), "BPE"))
        return error_set(e, "model %.80s is not supported, only BPE is", type_of(model));
    if (!json_is(vocab, JSON_OBJECT) || !json_is(merges, JSON_ARRAY))
        return error_set(e, "its model needs \"vocab\" and \"merges\"");
    if (json_double(json_get(model, "dropout"), 0) != 0) return error_set(e, "model: dropout is not supported");
    for (size_t i = 0; i < COUNT(refused); i++)
        if (!json_is_null(json_get(model, refused[i])) && !text_is(json_get(model, refused[i]), ""))
            return error_set(e, "model: %s is not supported", refused[i]);
    if (!t->byte_level && !json_bool(json_get(model, "byte_fallback"), 0))
        return error_set(e, "neither byte-level nor with byte_fallback: text could not be encoded without loss");
    t->ignore_merges = json_bool(json_get(model, "ignore_merges"), 0);
    return prepare(t, bytes, vocab, merges, added, e) && read_vocab(t, vocab, e) && read_added(t, added, vocab, e)
        && read_merges(t, merges, vocab, e);
}

static int check_family(const Tokenizer *t, Error *e) {
    int underlines = t->metaspace;
    for (int i = 0; i < t->changes; i++) underlines |= t->change[i].text && !strcmp(t->change[i].text, UNDERLINE);
    if (t->byte_level && underlines) return error_set(e, "ByteLevel together with U+2581 for spaces is not supported");
    return t->byte_level || underlines
        || error_set(e, "neither ByteLevel nor U+2581 for spaces: this kind of BPE is not supported");
}
static int read_all(Tokenizer *t, const JsonValue *root, size_t bytes, Error *e) {
    if (!json_is(root, JSON_OBJECT)) return error_set(e, "it is not a JSON object");
    if (!has_only(root, "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model",
                  "it", e)) return 0;
    if (!read_normalizer(t, json_get(root, "normalizer"), e)
        || !read_pre_tokenizer(t, json_get(root, "pre_tokenizer"), e)
        || !check_family(t, e) || !read_decoder(t, json_get(root, "decoder"), e)
        || !read_model(t, root, bytes, e)) return 0;
    t->bos = t->eos = t->behind = -1;
    read_post_processor(t, json_get(root, "post_processor"));
    int ends[1];
    if (tokenizer_ends(t, ends, 1)) t->eos = ends[0];
    t->is_bytes = t->byte_level && t->vocab == 256 && t->model_tokens == 256 && !t->added_count && !t->changes;
    for (int b = 0; b < 256; b++) t->is_bytes &= t->byte_id[b] == b;
    return 1;
}

Tokenizer *tokenizer_load_text(const char *text, size_t bytes, Error *e) {
    Error why;
    Json *json = json_parse(text, bytes, &why);
    if (!json) return error_set(e, "tokenizer: %.900s", why.text), NULL;
    Tokenizer *t = mem_alloc(sizeof *t);
    t->json = mem_alloc(bytes + 1);
    memcpy(t->json, text, bytes);
    t->json_bytes = bytes;
    int ok = read_all(t, json_root(json), bytes, &why);
    json_free(json);
    if (ok) return t;
    error_set(e, "tokenizer: %.900s", why.text);
    tokenizer_free(t);
    return NULL;
}

/* add_bos_token of tokenizer_config.json, where it says something else than the post-processor:
 * Transformers 4 follows the first with these classes, 5 the second. And a token behind a text. */
static void compare_config(const Tokenizer *t, const char *path) {
    static const char *const classes[] = { "", "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer",
                                           "CohereTokenizer" };
    char *folder = folder_of(path);
    Error e;
    Json *json = json_read_file(folder, "tokenizer_config.json", &e);
    const JsonValue *add = json ? json_get(json_root(json), "add_bos_token") : NULL;
    const char *type = json ? json_string(json_get(json_root(json), "tokenizer_class"), "") : "";
    const size_t length = strlen(type), n = length > 4 && !strcmp(type + length - 4, "Fast") ? length - 4 : length;
    int follows = 0;
    for (size_t i = 0; i < COUNT(classes); i++)
        follows |= strlen(classes[i]) == n && !strncmp(classes[i], type, n);
    if (add && follows && json_bool(add, 0) != (t->bos >= 0))
        warn("%s: add_bos_token of tokenizer_config.json is %s, but tokenizer.json puts %s in front of a text. "
             "Transformers 4 follows the first, 5 and this program the second; to change it: post_processor in "
             "tokenizer.json", path, json_bool(add, 0) ? "true" : "false", t->bos >= 0 ? "a token" : "no token");
    if (t->behind >= 0)
        warn("%s puts token %d behind a text, as Transformers does with every text, prompts too. This program ends %s "
             "with it", path, t->behind, t->behind == t->eos ? "documents of a folder or of JSON" : "no text");
    json_free(json);
    free(folder);
}
/* Vocabularies in other forms, by their names. */
static int is_json(const char *path, Error *e) {
#define CONVERT "from transformers.integrations.tiktoken import convert_tiktoken_to_fast as c; "
    static const char needs[] = " (needs the packages tiktoken and blobfile)";
    static const struct { const char *end, *way, *needs; } others[] = {
        { "tiktoken.model", CONVERT
          "c(t.AutoTokenizer.from_pretrained('FOLDER', trust_remote_code=True).model, 'FOLDER')", needs },
        { ".tiktoken", CONVERT "import tiktoken; c(tiktoken.get_encoding('NAME'), 'FOLDER')", needs },
        { "tokenizer.model", "t.AutoTokenizer.from_pretrained('FOLDER').save_pretrained('FOLDER')", "" } };
    const size_t n = strlen(path);
    for (size_t i = 0; i < COUNT(others); i++) {
        const size_t k = strlen(others[i].end);
        if (n >= k && !strcmp(path + n - k, others[i].end))
            return error_set(e, "%.300s: only a tokenizer.json is read. To make one: python3 -c \"import transformers "
                             "as t; %s\"%s", path, others[i].way, others[i].needs);
    }
    return 1;
}
Tokenizer *tokenizer_load(const char *path, Error *e) {
    size_t bytes;
    Error why;
    char *eos = NULL, *text = tokenizer_read(path, &bytes, &eos, e);
    if (!text || !is_json(path, e)) return free_each(text, eos), NULL;
    Tokenizer *t = tokenizer_load_text(text, bytes, &why);
    if (!t) error_set(e, "%.400s: %.600s", path, why.text);
    else compare_config(t, path);
    if (t && t->eos < 0 && eos && (t->eos = tokenizer_id(t, eos)) >= 0) t->eos_named = 1;
    free_each(text, eos);
    return t;
}

Tokenizer *tokenizer_bytes(void) {
    Text json = { 0 };
    Error e;
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false},\n"
    text_add(&json, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],"
             "\"normalizer\":null,\n\"pre_tokenizer\":" BYTE_LEVEL "\"post_processor\":null,\n\"decoder\":" BYTE_LEVEL
             "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\n"
             "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
             "\"merges\":[],\n\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        char key[4];
        text_add(&json, b ? "," : "");
        text_add_json(&json, key, utf8_encode(tokenizer_byte_code(b), key));
        text_add(&json, ":%d", b);
    }
    text_add(&json, "}}}\n");
    Tokenizer *t = tokenizer_load_text(json.at, json.length, &e);
    if (!t) fail(EXIT_INPUT, "%s", e.text);
    free(json.at);
    return t;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    for (int i = 0; i < t->added_count; i++) free(t->added[i].at);
    for (int i = 0; i < t->changes; i++) { pattern_close(t->change[i].pattern); free(t->change[i].text); }
    for (int i = 0; i < t->steps; i++) pattern_close(t->step[i].pattern);
    free_each(t->space.at, t->letter.at, t->json, t->chat, t->answer_end, t->arena, t->symbol, t->piece, t->words,
              t->merges, t->added, t);
}
