/* test_texts.c: from raw text to tokens: training a tokenizer, documents of folders and JSONL,
 * encoding on several threads, and the cache of tokens. */
#define _POSIX_C_SOURCE 200809L
#include "tests/test.h"
#include "llmc/data/kinds.h"
#include "llmc/base/omp.h"
#include "llmc/data/bpe.h"
#include "llmc/data/data.h"
#include <sys/stat.h>
#include <unistd.h>

#define GOLDENS "tests/reference/tokenizers"

/* ---- helpers --------------------------------------------------------------------------------- */

static char *put_text(const char *name, const char *text) { return scratch_put(name, text, strlen(text)); }

/* Words that often recur, in paragraphs, with some rare ones: about `bytes` bytes. */
static Text random_text(size_t bytes) {
    static const char *const syllables[] = { "ka", "to", "mi", "re", "so", "lu", "na", "ti",
                                             "_", "'s", "12", "\xC3\xA9", "\xE4\xB8\xAD", "--", "A", "the", "ing" };
    static const char *const spaces[] = { " ", " ", " ", " ", "\n", "\n\n", "  ", "\t", ", ", ". " };
    Text t = { 0 };
    while (t.length < bytes) {
        for (size_t k = 1 + (size_t)(uniform() * 3); k--; )
            text_add_string(&t, syllables[(size_t)(uniform() * uniform() * (double)COUNT(syllables))]);
        text_add_string(&t, spaces[(size_t)(uniform() * (double)COUNT(spaces))]);
    }
    return t;
}

static Tokenizer *train(const char *text, size_t bytes, int tokens, const char *pattern, Error *e) {
    const Document d = { .at = text, .bytes = bytes };
    return bpe_train(&d, 1, tokens, pattern, 0, e);
}

/* ---- training -------------------------------------------------------------------------------- */

/* A merge as "left right", from either spelling. */
static char *merge_text(const JsonValue *v) {
    if (json_is(v, JSON_STRING)) return text_format("%s", v->is.string);
    return text_format("%s %s", json_string(json_first(v), ""), json_string(json_first(v)->next, ""));
}
/* The reference is what Hugging Face's trainer makes of it, to the last pair that occurs twice. */
static void test_trained_as_reference(void) {
    static const char *const names[] = { "cl100k", "gpt2" };
    size_t bytes = 0, json_bytes, length;
    Error e = { 0 };
    char *text = file_read(GOLDENS "/trained.txt", &bytes, &e);
    if (!text) { skip("not run in the repository: %s", e.text); return; }
    for (size_t i = 0; i < COUNT(names); i++) {
        char *path = text_format("%s/trained_%s.json", GOLDENS, names[i]), *expected = file_read(path, &json_bytes, &e);
        Json *json = expected ? json_parse(expected, json_bytes, &e) : NULL, *ours = NULL;
        const JsonValue *model = json ? json_get(json_root(json), "model") : NULL, *vocab = json_get(model, "vocab");
        const int tokens = vocab ? (int)vocab->length : 0;
        Tokenizer *t = train(text, bytes, tokens, names[i], &e);
        check(t != NULL && tokens > 600, "bpe %s: %d tokens: %s", names[i], tokens, e.text);
        const char *json_of_ours = t ? tokenizer_json(t, &length) : NULL;
        if (t) ours = json_parse(json_of_ours, length, &e);
        const JsonValue *made = ours ? json_get(json_root(ours), "model") : NULL, *a, *b;
        int same = made != NULL, merges = 0;
        for (a = json_first(json_get(model, "merges")), b = json_first(json_get(made, "merges")); a && b && same;
             a = a->next, b = b->next, merges++) {
            char *x = merge_text(a), *y = merge_text(b);
            same = !strcmp(x, y);
            if (!same) check(0, "bpe %s: merge %d is \"%s\", the reference has \"%s\"", names[i], merges, y, x);
            free(x), free(y);
        }
        check(same && !a && !b && merges > 400, "bpe %s: the %d merges of the reference", names[i], merges);
        for (a = json_first(vocab); a && same; a = a->next)
            same = json_int(json_find(json_get(made, "vocab"), a->key, a->key_length), -1) == json_int(a, -2);
        check(same, "bpe %s: the ids of the reference", names[i]);
        tokenizer_free(t);
        t = train(text, bytes, tokens + 1, names[i], &e);
        check(!t, "bpe %s: no more tokens than the text supports", names[i]);
        char *wanted = text_format("%d tokens|supports %d|fewer", tokens + 1, tokens);
        check_message(&e, wanted, "bpe: too many tokens");
        free(wanted), json_free(ours), json_free(json), free(expected), free(path);
    }
    free(text);
}

static void test_training(void) {
    static const char text[] = "low low low low lower lower newest newest newest widest<|endoftext|>low<|endoftext|>";
    Error e = { 0 };
    int *ids;
    Tokenizer *t = train(text, sizeof text - 1, 263, "gpt2", &e);
    check(t != NULL, "bpe: a small text: %s", e.text);
    if (!t) return;
    const size_t n = tokenizer_encode(t, text, sizeof text - 1, &ids);
    size_t bytes;
    char *back = tokenizer_decode(t, ids, n, &bytes);
    check(tokenizer_vocab(t) == 263 && tokenizer_eos(t) == 0 && !tokenizer_is_bytes(t), "bpe: 263 tokens, 0 ends text");
    check(tokenizer_id(t, "low") > 256 && tokenizer_id(t, " low") > 256, "bpe: \"low\" and \" low\" are tokens");
    check(ids[n - 1] == 0 && ids[n - 3] == 0 && tokenizer_id(t, "endoftext") < 0 && tokenizer_id(t, "<|") < 0,
          "bpe: the end of text is one token, and none is made of its letters");
    check(bytes == sizeof text - 1 - 26 && !memcmp(back, text, bytes - 3) && !strcmp(back + bytes - 3, "low"),
          "bpe: text comes back: %s", back);
    free(back), free(ids), tokenizer_free(t);

    fails(train(text, sizeof text - 1, 300, "gpt3", &e) != NULL, &e, "gpt3|cl100k|gpt2", "bpe: an unknown pattern");
    fails(train(text, sizeof text - 1, 256, "gpt2", &e) != NULL, &e, "256 tokens|257", "bpe: fewer tokens than bytes");
    check(!train(text, sizeof text - 1, 1 << 21, "gpt2", &e), "bpe: far too many tokens");
    check(!train("", 0, 258, "gpt2", &e) && !train("abc", 3, 258, "gpt2", &e), "bpe: no text, a short text");
    t = train("", 0, 257, "cl100k", &e);
    check(t != NULL, "bpe: 257 tokens need no text: %s", e.text);
    tokenizer_free(t);

    const size_t length = 1 << 20;                          /* one word */
    char *word = mem_alloc(length);
    for (size_t i = 0; i < length; i++) word[i] = "abcde"[(int)(uniform() * 5)];
    const double start = cpu_seconds();
    t = train(word, length, 400, "gpt2", &e);
    check(t != NULL, "bpe: a word of 1 MB: %s", e.text);
    check_error(cpu_seconds() - start, 20, "bpe: seconds for a word of 1 MB");
    tokenizer_free(t), free(word);
}

static void test_threads(void) {
    static const char *const names[] = { "gpt2", "qwen2", "neox", "llama3", "o200k", "starcoder", "llama2" };
    const int threads = omp_get_max_threads();
    size_t bytes, first_bytes = 0;
    int begun = 0;
    Text text = random_text(5 << 19);
    Tokenizer *first = NULL;
    Error e = { 0 };
    for (int n = 1; n <= 3; n++) {
        omp_set_num_threads(n);
        Tokenizer *t = train(text.at, text.length, 2000, "cl100k", &e);
        check(t != NULL, "bpe: %d threads: %s", n, e.text);
        if (!first) { first = t; tokenizer_json(first, &first_bytes); continue; }
        const char *json = t ? tokenizer_json(t, &bytes) : "";
        check(t && bytes == first_bytes && !memcmp(json, tokenizer_json(first, &bytes), bytes),
              "bpe: the same tokenizer on %d threads", n);
        tokenizer_free(t);
    }
    for (size_t i = 0; i <= COUNT(names) && first; i++) {
        char *path = i < COUNT(names) ? text_format("%s/%s.json", GOLDENS, names[i]) : NULL;
        Tokenizer *t = path ? tokenizer_load(path, &e) : first;
        if (!t) { skip("not run in the repository: %s", e.text); free(path); continue; }
        const Document d[] = { { text.at, text.length, 0, 0 }, { "a b", 3, 0, 0 }, { text.at, 1000, 0, 0 } };
        int *ids;
        void *many;
        const size_t bare = tokenizer_encode(t, text.at, text.length, &ids), one = tokenizer_begin(t, &ids, bare, 0);
        const int bos = tokenizer_bos(t);
        check(one == bare + (bos >= 0) && (bos < 0 || ids[0] == bos), "tokenizer %s: a text begins with its token %d",
              path ? path : "trained", bos);
        begun += bos >= 0;
        Meter meter;
        meter_begin(&meter, 0, "", 1, "MB");
        omp_set_num_threads(3);
        const size_t all = tokenizer_encode_documents(t, d, COUNT(d), 7, &meter, &many, NULL);
        const uint16_t *narrow = many;
        int same = all > one + 4 && tokenizer_width(t) == 2 && narrow[one] == 7 && narrow[all - 1] == 7;
        for (size_t k = 0; k < one && same; k++) same = ids[k] == narrow[k];
        check(bos < 0 || (narrow[one + 1] == bos && all > one + 6), "tokenizer %s: every document begins with it",
              path ? path : "trained");
        check(same, "tokenizer %s: documents on 3 threads, %zu bytes", path ? path : "trained", text.length);
        free(many), free(ids), free(path);
        if (t != first) tokenizer_free(t);
    }
    check(begun > 0, "some tokenizers begin a text with a token");
    tokenizer_free(first);
    omp_set_num_threads(threads);
    free(text.at);
}

/* Words that share their first eight bytes, so that many fall into one slot of the encoder. */
static void test_slots(void) {
    Text prefix = { 0 }, text = { 0 };
    Error e = { 0 };
    for (int i = 0; i < 50; i++) text_add(&prefix, " abcdefg");
    Tokenizer *t = train(prefix.at, prefix.length, 264, "gpt2", &e);
    check(t && tokenizer_id(t, " abcdefg") == 263, "bpe: \" abcdefg\" is a token: %s", e.text);
    for (int i = 0; i < 26 * 26 * 26; i++)
        text_add(&text, " abcdefg%c%c%c", 'a' + i % 26, 'a' + i / 26 % 26, 'a' + i / 676);
    int *ids, *of_word, same = 1;
    const size_t n = tokenizer_encode(t, text.at, text.length, &ids);
    size_t at = 0;
    for (size_t word = 0; word < text.length && same; word += 11) {
        const size_t count = tokenizer_encode(t, text.at + word, 11, &of_word);
        same = at + count <= n && !memcmp(of_word, ids + at, count * sizeof *ids);
        at += count;
        free(of_word);
    }
    check(same && at == n, "tokenizer: 17576 words with one prefix, alone and in a text");
    free(ids), free(text.at), free(prefix.at), tokenizer_free(t);
}

/* Jobs cover the documents once, and cut them only between a letter or digit and a space. */
static void test_jobs(void) {
    enum { N = 5 << 20 };
    char *text = mem_alloc(N);
    for (size_t i = 0; i < N; i++) text[i] = "a  ,.\n\n-1"[(int)(uniform() * 9)];
    const Document d[] = { { text, 3 << 20, 0, 0 }, { text, 0, 0, 0 }, { text + (3 << 20), 1000, 0, 0 },
                           { text + (3 << 20) + 1000, 100000, 0, 0 }, { text, N, 0, 0 } };
    for (int divisible = 0; divisible < 2; divisible++) {
        Job *jobs;
        size_t at[COUNT(d)] = { 0 }, ends = 0, cuts = 0, bad = 0;
        const size_t n = documents_jobs(d, COUNT(d), divisible, &jobs);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < jobs[i].count; k++) {
                int last;
                const Document piece = job_piece(&jobs[i], k, &last);
                const size_t of = (size_t)(jobs[i].first - d) + k, to = at[of] + piece.bytes;
                const char *cut = d[of].at + to;
                bad += piece.at != d[of].at + at[of] || to > d[of].bytes || (last != (to == d[of].bytes));
                bad += !last && (!strchr("a1", cut[-1]) || !strchr(" \n", cut[0]));
                at[of] = to;
                ends += (size_t)last;
                cuts += !last;
            }
        for (size_t i = 0; i < COUNT(d); i++) bad += at[i] != d[i].bytes;
        check(!bad && ends == COUNT(d) && (divisible ? cuts > 5 : !cuts), "%zu jobs, %zu cuts: %zu", n, cuts, bad);
        free(jobs);
    }
    free(text);
}

/* ---- documents ------------------------------------------------------------------------------- */

static Data *open_text(const char *train, const char *validation, const char *tokenizer, const char *cache,
                       Tokenizer **t, Error *e) {
    const DataRequest request = { .train = train, .validation = validation, .tokenizer = tokenizer, .pattern = "cl100k",
                                  .cache = cache };
    return data_open_text(&request, t, e);
}

/* All tokens of a split, decoded; the end-of-text token as '|'. */
static char *all_text(const Data *d, Split split, const Tokenizer *t) {
    const int n = (int)data_tokens(d, split);
    int *in = mem_alloc((size_t)n * sizeof *in), *out = mem_alloc((size_t)n * sizeof *out);
    Text text = { 0 };
    Error e;
    text_add(&text, "%s", "");
    if (n < 2 || !(split == DATA_TRAIN ? data_batch(d, 0, 1, n - 1, 1, in, out, NULL, &e)
                                       : data_validation(d, 0, 1, n - 1, in, out, NULL, &e))) return text.at;
    for (int i = 0; i < n; i++) {
        size_t bytes = 1;
        const int id = i ? out[i - 1] : in[0];
        const char byte = (char)id, *piece = t ? tokenizer_piece(t, id, &bytes) : &byte;
        if (t && id == tokenizer_eos(t)) text_add(&text, "|");
        else text_add_bytes(&text, piece, bytes);
    }
    free(in), free(out);
    return text.at;
}

static void holds(const char *what, const char *path, const char *validation, const char *tokenizer, const char *train,
                  const char *held_out) {
    Tokenizer *t;
    Error e = { 0 };
    Data *d = open_text(path, validation, tokenizer, NULL, &t, &e);
    check(d != NULL, "%s opens: %s", what, e.text);
    if (!d) return;
    char *a = all_text(d, DATA_TRAIN, t), *b = all_text(d, DATA_VALIDATION, t);
    check(!strcmp(a, train), "%s: training text \"%s\", expected \"%s\"", what, a, train);
    check(!strcmp(b, held_out), "%s: validation text \"%s\", expected \"%s\"", what, b, held_out);
    free(a), free(b), data_close(d), tokenizer_free(t);
}
static void test_documents(void) {
    char *folder = scratch_folder("docs"), *inner = scratch_folder("docs/b/c"), *lines, *one, *other;
    free(put_text("docs/a.txt", "first ")), free(put_text("docs/z.txt", "last one "));
    free(put_text("docs/b/c/m.c", "inner ")), free(put_text("docs/b/empty.c", ""));
    free(put_text("docs/.hidden", "hidden "));
    free(put_text("docs/b/lines.jsonl", "{\"text\": \"line 1 \"}\n{\"n\": [1, {}], \"text\": \"l\\u00ednea 2 \"}\n"));
    free(scratch_put("docs/b/object.o", "a\0b", 3));
    free(scratch_folder("docs/out"));                                   /* a run: left out; logs alone are none */
    free(put_text("docs/out/main.log", "run "));
    free(put_text("docs/out/log.jsonl", "{\"event\": \"start\"}\n")), free(scratch_folder("docs/logs"));
    free(put_text("docs/logs/main.log", "inner log "));
    holds("a folder", folder, NULL, "257", "first |inner |line 1 |l\xC3\xADnea 2 |inner log |", "last one |");
    holds("a folder as bytes", folder, NULL, "", "first inner line 1 l\xC3\xADnea 2 inner log ", "last one ");
    one = put_text("one.jsonl", "{\"text\":\"only this one, cut as a text\"}");
    holds("a JSONL file of one document", one, NULL, "257", "only this one, cut as a t|", "ext|");
    other = put_text("o.jsonl", "\xEF\xBB\xBF\n {\"text\": \"held\"}\r\n\n{\"text\": \"\"}\n   \n{\"text\": \"out\"}");
    holds("a JSONL file for validation, a byte-order mark, blank lines and empty texts", folder, other, "257",
          "first |inner |line 1 |l\xC3\xADnea 2 |inner log |last one |", "held|out|");
    Text many = { 0 };
    for (int i = 0; i < 25; i++) text_add(&many, "{\"text\": \"%c\"}\n", 'a' + i);
    lines = scratch_put("many.jsonl", many.at, many.length);
    holds("25 documents", lines, NULL, "257", "a|b|c|d|e|f|g|h|i|k|l|m|n|o|p|q|r|s|u|v|w|x|y|", "j|t|");
    char *link = scratch_path("docs/b/nothing");
    if (symlink("nowhere", link)) skip("no symbolic links here");
    else holds("a folder with a link to nothing", folder, other, "257",
               "first |inner |line 1 |l\xC3\xADnea 2 |inner log |last one |",
               "held|out|");
    char *paths[] = { folder, inner, lines, one, other, link };
    for (size_t i = 0; i < COUNT(paths); i++) free(paths[i]);
    free(many.at);
}

static void refused(const char *what, const char *path, const char *tokenizer, const char *words) {
    Tokenizer *t;
    Error e = { 0 };
    Data *d = open_text(path, NULL, tokenizer, NULL, &t, &e);
    check(!d && !t, "%s is refused", what);
    if (!d) check_message(&e, words, what);
    data_close(d);
}
static void test_refused(void) {
    static const struct { const char *what, *text, *words; } lines[] = {
        { "JSONL with a broken line", "{\"text\": \"a\"}\n\n{\"text\": \"b\"\n{\"text\": 1}\n",
          "bad.jsonl: line 3|ends too early|{\"text\": \"b\"" },
        { "JSONL without text", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n",
          "bad.jsonl: line 2|without \"text\"|{\"txt\": \"b\"}" },
        { "JSONL with a number as text", "{\"text\": 17}\n", "bad.jsonl: line 1|a number as \"text\"|17" },
        { "JSONL of arrays", "{\"text\": \"a\"}\r\n[\"text\"]\r\n", "bad.jsonl: line 2|found a list" },
        { "JSONL with a raw tab", "{\"text\": \"a\tb\"}\n", "bad.jsonl: line 1|byte 11" },
        { "JSONL that is not UTF-8", "{\"text\": \"a\"}\n{\"text\": \"\xFF\"}\n", "bad.jsonl: line 2|UTF-8" },
        { "JSONL of blank lines", "\n \n", "bad.jsonl|nothing but white space" },
        { "JSONL of empty texts", "{\"text\": \"\"}\n", "bad.jsonl|empty" },
    };
    char *path = NULL;
    for (size_t i = 0; i < COUNT(lines); i++) {
        free(path);
        path = put_text("bad.jsonl", lines[i].text);
        refused(lines[i].what, path, "", lines[i].words);
    }
    free(path);
    path = put_text("small.txt", "a small text, a small text");
    refused("more tokens than the text supports", path, "16384", "16384 tokens|supports|fewer");
    refused("a huge number of tokens", path, "99999999999999999999", "expected 257");
    refused("no tokens", path, "0", "expected 257");
    refused("a tokenizer that is not there", path, "nowhere/tokenizer.json", "nowhere/tokenizer.json|No such file");
    free(path);
    path = scratch_put("train.bin", "abcdefgh", 8);
    refused("a tokenizer to be trained on tokens", path, "300", "train.bin|nanoGPT tokens|expected text|300");
    free(path);
    char *folder = scratch_folder("shut"), *file = put_text("shut/secret.txt", "secret"),
        *more = put_text("shut/a", "a");
    chmod(file, 0);
    if (geteuid() == 0) skip("root may read everything: an unreadable file in a folder");
    else refused("a folder with an unreadable file", folder, "", "shut/secret.txt|Permission denied");
    char *nothing = scratch_folder("nothing"), *object = scratch_put("nothing/a.o", "\0", 1);
    refused("a folder without text", nothing, "", "nothing|no text in any of its 1 files");
    char *unfetched = scratch_folder("unfetched"), *script = put_text("unfetched/fetch.sh", "echo"),
         *readme = put_text("unfetched/README.md", "how to fetch it");
    refused("a folder that is yet to be fetched", unfetched, "", "no data|sh |unfetched/fetch.sh");
    char *binary = scratch_folder("binary"), *shard = put_text("binary/part.bin", "text"),
         *note = put_text("binary/notes.txt", "about it");
    refused("a folder with unknown .bin files", binary, "", "binary|no data|*_train*.bin");
    char *paths[] = { folder, file, more, nothing, object, unfetched, script, readme, binary, shard, note };
    for (size_t i = 0; i < COUNT(paths); i++) free(paths[i]);
}

/* ---- the cache ------------------------------------------------------------------------------- */

/* Opens the text, keeps its tokens: are they from the cache, and `expected`? */
static int opens_cached(const char *path, const char *tokenizer, const char *folder, const char *expected) {
    Tokenizer *t;
    Error e = { 0 };
    Data *d = open_text(path, NULL, tokenizer, folder, &t, &e);
    check(d != NULL, "cache: %s opens: %s", path, e.text);
    if (!d) return -1;
    const int cached = strstr(data_description(d), "as encoded before") != NULL;
    char *text = all_text(d, DATA_TRAIN, t);
    check(!strcmp(text, expected) && data_is_text(d) && t && data_tokens(d, DATA_VALIDATION) > 0
          && data_bytes(d, DATA_TRAIN) == (int64_t)strlen(expected) && data_max_id(d) < tokenizer_vocab(t),
          "cache: the text of %s, %s", path, cached ? "cached" : "encoded");
    check(data_keep(d, t, folder, &e), "cache: kept: %s", e.text);
    free(text), data_close(d), tokenizer_free(t);
    return cached;
}

static void damage(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    if (!f || fseek(f, at, at < 0 ? SEEK_END : SEEK_SET)) fail(EXIT_DISK, "%s cannot be changed", path);
    const int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 1, f);
    fclose(f);
}

static char warned[1024];
static void keep_warning(const char *text) { snprintf(warned, sizeof warned, "%s", text); }
static void test_cache(void) {
    static const struct { const char *what; long at; } damages[] = {
        { "the number of the format", 0 }, { "a token", -3 }, { "the tokenizer", 200 }, { "the tokens of a row", 72 },
        { "the bytes of a row", 80 }, { "the number of rows", 52 }, { "the size", 32 }, { "what was held out", 56 },
    };
    Text text = random_text(20000);
    const size_t cut = text.length / 10 * 9 + text.length % 10 * 9 / 10;
    size_t at = cut;
    while (((unsigned char)text.at[at] & 0xC0) == 0x80) at--;
    char *expected = text_format("%.*s", (int)at, text.at), *folder = scratch_folder("kept");
    char *path = scratch_put("kept.txt", text.at, text.length), *file = scratch_path("kept/tokens.cache");
    check(opens_cached(path, "400", folder, expected) == 0 && is_file(file), "cache: nothing at first");
    check(opens_cached(path, "400", folder, expected) == 1, "cache: a second start reads it");
    check(opens_cached(path, "401", folder, expected) == 0, "cache: another number of tokens is encoded");
    check(opens_cached(path, "401", folder, expected) == 1, "cache: and replaces it");
    for (size_t i = 0; i < COUNT(damages); i++) {
        damage(file, damages[i].at);
        check(opens_cached(path, "401", folder, expected) == 0, "cache: damage of %s is seen", damages[i].what);
        check(opens_cached(path, "401", folder, expected) == 1, "cache: and repaired");
    }
    warn_hook(keep_warning);                            /* found by fuzzing: 4 GB for the tokenizer of a small file */
    damage(file, 63);
    check(opens_cached(path, "401", folder, expected) == 0 && strstr(warned, "its parts are larger than the file"),
          "cache: a tokenizer larger than the file is not allocated: %s", warned);
    warn_hook(NULL);
    if (truncate(file, 5000)) skip("cannot truncate");
    check(opens_cached(path, "401", folder, expected) == 0, "cache: a truncated one is not used");

    Error e = { 0 };
    size_t bytes;
    Tokenizer *t = train(text.at, at, 401, "cl100k", &e);
    const char *json = t ? tokenizer_json(t, &bytes) : NULL;
    char *saved = t ? scratch_put("saved.json", json, bytes) : NULL;
    if (t)
        check(opens_cached(path, saved, folder, expected) == 1, "cache: of the tokenizer that was trained, as a file");
    tokenizer_free(t);
    text.at[100] ^= 1;
    expected[100] ^= 1;
    free(scratch_put("kept.txt", text.at, text.length));
    check(opens_cached(path, "401", folder, expected) == 0, "cache: another text is encoded");
    char *owned[] = { expected, folder, path, file, saved, text.at };
    for (size_t i = 0; i < COUNT(owned); i++) free(owned[i]);
}

static void test_kinds(void) {
    static const struct { const char *bytes; size_t count; const char *what; } cases[] = {
        { "\x1f\x8b\x08 text", 8, "gzip" }, { "%PDF-1.4\nabc", 12, "PDF" }, { "\xff\xfe" "a\0b\0", 6, "UTF-16" },
        { "\xff\xfe\0\0a\0\0\0", 8, "UTF-32" }, { "\0\0\xfe\xff\0\0\0a", 8, "UTF-32" },
        { "PK\3\4\0", 5, "zip" },             { "PAR1 is a word", 14, NULL },          { "PAR1\0", 5, "Parquet" },
        { "a\0b", 3, "NUL" },                  { "plain", 5, NULL },                    { "", 0, NULL },
        { "\x1f\x8b", 1, NULL },               { "{\\rtf1 a", 8, "rich" },             { "BZh, a word", 11, NULL },
    };
    const char *remedy;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *what = kind_of_binary(cases[i].bytes, cases[i].count, &remedy);
        check(cases[i].what ? what && strstr(what, cases[i].what) && *remedy : !what, "kind of file %zu: %s", i,
              what ? what : "text");
    }
    check(kind_is_json(" {\"a\": 1}\n", 11) && kind_is_json("[1]", 3) && !kind_is_json("{ x }", 5)
          && !kind_is_json("{\"a\": 1", 7) && !kind_is_json("", 0) && !kind_is_json("}", 1), "JSON is told from text");
}
void test_texts(void) {
    PART(test_kinds()); PART(test_trained_as_reference()); PART(test_training()); PART(test_slots());
    PART(test_jobs()); PART(test_threads()); PART(test_documents()); PART(test_refused()); PART(test_cache());
}
