/* test_data.c: every layout of training data, the order of samples, and what happens to bad files.
 * Most files hold the tokens 0, 1, 2, ..., so that a batch shows where it was cut. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "tests/test.h"
#include "llmc/base/random.h"
#include "llmc/data/data.h"
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GPT2 = 20240520, LLAMA3 = 20240801 };

/* ---- making files ---------------------------------------------------------------------------- */

static char *at(const char *name) {                         /* a path in scratch(), valid for the next 127 calls */
    static char path[128][512];
    static int next;
    char *p = path[next++ % 128];
    snprintf(p, sizeof path[0], "%s/%s", scratch(), name);
    return p;
}
static char *put(const char *name, const void *data, size_t bytes) {
    free(scratch_put(name, data, bytes));
    return at(name);
}
static char *put_text(const char *name, const char *text) { return put(name, text, strlen(text)); }
static char *put_folder(const char *name) { free(scratch_folder(name)); return at(name); }

/* Tokens first, first+1, ...; magic 0: without a header. */
static char *put_tokens(const char *name, uint32_t magic, uint32_t first, int n) {
    size_t header = magic ? 1024 : 0, width = magic == LLAMA3 ? 4 : 2, bytes = header + (size_t)n * width;
    char *data = mem_alloc(bytes);
    const uint32_t fields[] = { magic, magic == LLAMA3 ? 7 : 1, (uint32_t)n };
    if (magic) memcpy(data, fields, sizeof fields);
    for (int i = 0; i < n; i++) {
        uint32_t id = first + (uint32_t)i;
        uint16_t narrow = (uint16_t)id;
        memcpy(data + header + (size_t)i * width, width == 4 ? (void *)&id : (void *)&narrow, width);
    }
    char *path = put(name, data, bytes);
    free(data);
    return path;
}
static void put_numbered(const char *beginning, int number, int first, int n) {
    char name[64];
    snprintf(name, sizeof name, "%s%03d.bin", beginning, number);
    put_tokens(name, GPT2, (uint32_t)first, n);
}

static int is_bytes(const Data *d) { return strstr(data_description(d), "text as bytes") != NULL; }
static Data *must_open(const char *train, const char *validation, const Tokenizer *tokenizer) {
    Error e;
    Data *d = data_open(train, validation, tokenizer, &e);
    if (!d) fail(EXIT_INPUT, "a good file was refused: %s", e.text);
    return d;
}

static void refused(const char *what, const char *train, const char *validation, const char *words) {
    Error e = { 0 };
    Data *d = data_open(train, validation, NULL, &e);
    check(d == NULL, "%s is refused", what);
    if (!d) check_message(&e, words, what);
    data_close(d);
}

/* ---- layouts --------------------------------------------------------------------------------- */

static int starts_with(const Data *d, int first) {              /* of the validation split */
    Error e;
    int in[4], out[4];
    return data_validation(d, 0, 1, 4, in, out, NULL, &e) && in[0] == first;
}
static void opens(const char *what, const char *train, const char *validation, int64_t tokens, int64_t held,
                  int first, int max) {
    Data *d = must_open(train, validation, NULL);
    check(data_tokens(d, DATA_TRAIN) == tokens && data_tokens(d, DATA_VALIDATION) == held,
          "%s: %lld + %lld tokens, expected %lld + %lld", what, (long long)data_tokens(d, DATA_TRAIN),
          (long long)data_tokens(d, DATA_VALIDATION), (long long)tokens, (long long)held);
    check(starts_with(d, first), "%s: validation starts with %d", what, first);
    check(data_max_id(d) == max, "%s: largest id %d, expected %d", what, data_max_id(d), max);
    check(!data_is_fallback(d) && !strchr(data_description(d), '\n'), "%s: %s", what, data_description(d));
    data_close(d);
}
static void test_layouts(void) {
    char *one = put_tokens("one.bin", GPT2, 100, 1000), *wide = put_tokens("wide.bin", LLAMA3, 100000, 50);
    opens("llm.c shard", one, NULL, 900, 100, 1000, 1099);
    opens("llm.c shard without .bin", put_tokens("shard", GPT2, 5, 20), "", 18, 2, 23, 24);
    opens("llm.c shard, uint32", wide, NULL, 45, 5, 100045, 100049);
    opens("two llm.c shards", one, put_tokens("two.bin", GPT2, 7, 30), 1000, 30, 7, 1099);
    opens("text", put_text("a text", "abcdefghijklmnopqrst"), NULL, 18, 2, 's', 't');
    opens("two texts", at("a text"), put_text("b.txt", "0123456789"), 20, 10, '0', 't');

    put_folder("g/[x]");                                        /* brackets in a folder's own name are no pattern */
    for (int i = 11; i >= 0; i--) put_numbered("g/[x]/p", i, i * 100, 100);
    put_tokens("g/[x]/val", GPT2, 3, 9);
    opens("pattern", at("g/\\[x]/p*.bin"), at("g/[x]/val"), 1200, 9, 3, 1199);
    opens("pattern for validation, sorted", one, at("g/*/p00[4-9].bin"), 1000, 600, 400, 1099);
    opens("pattern, a tenth of each", at("g/*/p*.bin"), NULL, 1080, 120, 90, 1199);
    put_tokens("g/[x]/z_val_1.bin", GPT2, 77, 10);
    put_tokens("g/[x]/z_val_0.bin", GPT2, 66, 10);
    put_tokens("g/[x]/z_train_0.bin", GPT2, 11, 40);
    opens("folder with brackets in its name", at("g/[x]"), NULL, 40, 20, 66, 86);

    /* One folder, to which layouts of higher and higher precedence are added. */
    char *f = put_folder("layouts");
    put_text("layouts/book.txt", "the one text in here");
    opens("single .txt", f, NULL, 18, 2, 'r', 'x');
    put_text("layouts/more.txt", "another");
    opens("two .txt: documents", f, NULL, 20, 7, 'a', 'x');
    put_text("layouts/train.txt", "ABCDEFGHIJ");
    opens("train.txt without val.txt: a document", f, NULL, 27, 10, 'A', 'x');
    put_text("layouts/input.txt", "abcdefghij");
    opens("input.txt", f, NULL, 9, 1, 0, 'j'); /* one token: it has no target, so the batch is padding */
    put_text("layouts/train.jsonl", "{\"text\": \"uvw\"}\n{\"text\": \"xyz\"}\n");
    opens("train.jsonl without val.jsonl", f, NULL, 9, 1, 0, 'j');
    put_text("layouts/val.jsonl", "{\"text\": \"rst\"}\n");
    opens("train.jsonl and val.jsonl", f, NULL, 6, 3, 'r', 'z');
    put_text("layouts/val.txt", "KLMNOP");
    opens("train.txt and val.txt", f, NULL, 10, 6, 'K', 'P');
    opens("the same for validation alone", at("a text"), f, 20, 6, 'K', 't');
    put_tokens("layouts/train.bin", 0, 1, 40);
    opens("train.bin alone", f, NULL, 36, 4, 37, 40);
    put_tokens("layouts/val.bin", 0, 9, 12);
    opens("train.bin and val.bin", f, NULL, 40, 12, 9, 40);
    opens("train.bin as a file", at("layouts/train.bin"), at("layouts/val.bin"), 40, 12, 9, 40);
    opens("folder for validation alone", one, f, 1000, 12, 9, 1099);
    put_tokens("layouts/t_train_2.bin", GPT2, 50, 20);
    put_tokens("layouts/t_train_1.bin", GPT2, 30, 20);
    opens("shards without validation", f, NULL, 36, 4, 48, 69);
    put_tokens("layouts/t_val_0.bin", GPT2, 2, 10);
    opens("*_train*.bin and *_val*.bin", f, NULL, 40, 10, 2, 69);
    char *slashes = text_format("%s//", f);
    opens("slashes at the end", slashes, NULL, 40, 10, 2, 69);
    opens("a folder and other validation data", f, one, 40, 1000, 100, 1099);
    free(slashes);
}

static void test_text(void) {
    static const char accents[] = "a\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9";
    Data *d = must_open(put_text("utf8", accents), NULL, NULL);
    check(data_tokens(d, DATA_TRAIN) == 17 && data_tokens(d, DATA_VALIDATION) == 4, "text is split between characters");
    check(data_is_text(d) && is_bytes(d) && data_bytes(d, DATA_TRAIN) == 17
          && data_bytes(d, DATA_VALIDATION) == 4, "bytes");
    data_close(d);
    d = must_open(at("one.bin"), NULL, NULL);
    check(!data_is_text(d) && !is_bytes(d) && data_bytes(d, DATA_TRAIN) == 0, "tokens are not text");
    data_close(d);
    Tokenizer *t = tokenizer_bytes();
    d = must_open(at("utf8"), NULL, t);
    check(data_is_text(d) && is_bytes(d) && data_max_id(d) == 0xc3, "text with the tokenizer of bytes");
    data_close(d), tokenizer_free(t);
}

/* A byte-level tokenizer.json: 256 bytes (GPT-2 writes those that do not print as U+0100 and up),
 * `unused` ids that no merge gives, and two merges. Unused ids make the others large. begins: a
 * text begins with the token "the". */
static Tokenizer *small_bpe(int unused, int begins) {
    Error e = { 0 };
    Text json = { 0 };
    uint32_t next = 0x100;
    text_add(&json, "{\"model\":{\"type\":\"BPE\",\"merges\":[\"t h\",\"th e\"],\"vocab\":{");
    for (uint32_t byte = 0; byte < 256; byte++) {
        char piece[4];
        int prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        text_add_json(&json, piece, utf8_encode(prints ? byte : next++, piece));
        text_add(&json, ":%d,", (int)byte);
    }
    for (int i = 0; i < unused; i++) text_add(&json, "\"unused%d\":%d,", i, 256 + i);
    text_add(&json, "\"th\":%d,\"the\":%d}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
             "\"decoder\":{\"type\":\"ByteLevel\"}%s}", 256 + unused, 257 + unused,
             !begins ? "" : begins == 2 ? ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
             "[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"the\",\"type_id\":0}}]}"
             : ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
             "[{\"SpecialToken\":{\"id\":\"the\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]}");
    Tokenizer *t = tokenizer_load_text(json.at, json.length, &e);
    if (!t) fail(EXIT_INPUT, "the tokenizer of the test was refused: %s", e.text);
    free(json.at);
    return t;
}
/* Each text begins with the token that the tokenizer puts in front of one; and the fingerprint says
 * so, because earlier versions left it out of training. */
static void test_begun(void) {
    enum { MOST = 64 };
    Error e;
    uint64_t prints[2], before[2];
    put_text("two.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n");
    for (int begins = 0; begins < 2; begins++) {
        Tokenizer *t = small_bpe(0, begins);
        Data *d = must_open(at("two.jsonl"), at("two.jsonl"), t);
        int in[MOST], out[MOST];
        const int expected[] = { 257, 'a', 'b', 'c', 257, 'd', 'e' }, n = begins ? 7 : 5;
        check(data_tokens(d, DATA_TRAIN) == n, "%lld tokens of two texts", (long long)data_tokens(d, DATA_TRAIN));
        check(data_batch(d, 0, 1, n - 1, 1, in, out, NULL, &e), "a batch: %s", e.text);
        for (int i = 0; i < n - 1 && begins; i++)
            check(in[i] == expected[i] && out[i] == expected[i + 1], "token %d: %d, then %d", i, in[i], out[i]);
        prints[begins] = data_fingerprint(d), before[begins] = data_print_without_bos(d);
        data_close(d), tokenizer_free(t);
    }
    check(prints[0] == before[0] && before[1] == before[0] && prints[1] != prints[0],
          "the fingerprint says whether texts begin with a token");
}
static int warned;
static void count_warning(const char *text) {
    warned += strstr(text, "add_bos_token") || strstr(text, "puts token 257 behind a text");
}
/* tokenizer_config.json says otherwise: a line tells which of the two counts. */
static void test_begun_otherwise(void) {
    static const struct { const char *config; int begins, warns; } cases[] = {
        { "{\"add_bos_token\": true, \"tokenizer_class\": \"LlamaTokenizerFast\"}", 0, 1 },
        { "{\"add_bos_token\": false, \"tokenizer_class\": \"LlamaTokenizer\"}", 1, 1 },
        { "{\"add_bos_token\": true}", 1, 0 },
        { "{\"add_bos_token\": false, \"tokenizer_class\": \"Qwen2TokenizerFast\"}", 1, 0 },
        { "{\"tokenizer_class\": \"LlamaTokenizerFast\"}", 0, 0 }, { "{}", 2, 1 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Error e;
        size_t bytes;
        Tokenizer *t = small_bpe(0, cases[i].begins);
        const char *json = tokenizer_json(t, &bytes);
        put_text("tokenizer.json", json);
        put_text("tokenizer_config.json", cases[i].config);
        warned = 0;
        warn_hook(count_warning);
        Tokenizer *loaded = tokenizer_load(at("tokenizer.json"), &e);
        check(loaded && (tokenizer_bos(loaded) >= 0) == (cases[i].begins == 1), "%s: the post-processor counts",
              cases[i].config);
        warn_hook(NULL);
        check(warned == cases[i].warns, "%s: warnings", cases[i].config);
        tokenizer_free(loaded), tokenizer_free(t);
    }
    Error e = { 0 };
    put_text("tokenizer_config.json", "{\"split_special_tokens\": true}");
    check(!tokenizer_load(at("tokenizer.json"), &e) && strstr(e.text, "split_special_tokens"), "named: %s", e.text);
}
static void test_tokenized(void) {
    static const char text[] = "the other\nthings the theory there then that the thin \xc3\xa9toil\xc3\xa9 "
                               "the end of the text";
    const int bytes = sizeof text - 1, cut = bytes * 9 / 10;
    for (int unused = 0; unused <= 70000; unused += 70000) {
        Error e = { 0 };
        Tokenizer *t = small_bpe(unused, 0);
        Data *d = must_open(put_text("the.txt", text), NULL, t);
        int *train = NULL, *held = NULL, in[sizeof text], out[sizeof text];
        const int n = (int)tokenizer_encode(t, text, (size_t)cut, &train);
        const int m = (int)tokenizer_encode(t, text + cut, (size_t)(bytes - cut), &held);
        check(data_is_text(d) && !is_bytes(d) && n < cut && m < bytes - cut, "BPE, %d ids: %s",
              tokenizer_vocab(t), data_description(d));
        check(data_tokens(d, DATA_TRAIN) == n && data_tokens(d, DATA_VALIDATION) == m && data_max_id(d) == 257 + unused,
              "BPE: %d + %d tokens up to %d", n, m, data_max_id(d));
        check(data_bytes(d, DATA_TRAIN) == cut && data_bytes(d, DATA_VALIDATION) == bytes - cut, "BPE: bytes of text");
        check(data_batch(d, 0, 1, n - 1, 1, in, out, NULL, &e) && !memcmp(in, train, (size_t)(n - 1) * sizeof *in)
              && !memcmp(out, train + 1, (size_t)(n - 1) * sizeof *in), "BPE: the tokens for training");
        check(data_validation(d, 0, 1, m - 1, in, out, NULL, &e) && !memcmp(in, held, (size_t)(m - 1) * sizeof *in)
              && !memcmp(out, held + 1, (size_t)(m - 1) * sizeof *in), "BPE: the tokens for validation");
        free(train), free(held), data_close(d), tokenizer_free(t);
    }
}

/* A folder like this project's, around an empty data/tinyshakespeare. */
static void test_fallback(void) {
    Error e;
    static const struct { const char *name, *text; } files[] = {            /* in the order in which they are read */
        { "project/README.md", "readme " }, { "project/docs/a.md", "a " }, { "project/docs/b.md", "b " },
        { "project/kernels/kernels.h", "kernels " },
        { "project/llmc/base/a.c", "a.c " }, { "project/llmc/base/a.h", "a.h " }, { "project/llmc/files/b.c", "b.c " },
        { "project/kernels/cpu/z.c", "z.c, the last one" },
    };
    char *folder = put_folder("project/data/tinyshakespeare"), full[200] = "";
    put_folder("project/docs");
    put_folder("project/llmc/base");
    put_folder("project/llmc/files");
    put_folder("project/kernels/cpu");
    put_text("project/llmc/base/ignored.o", "object");
    put_text("project/README.md", "readme ");
    refused("tinyshakespeare with a stranger's README", folder, NULL, "tinyshakespeare|no data|fetch.sh");
    for (size_t i = 0; i < COUNT(files); i++) {
        put_text(files[i].name, files[i].text);
        strcat(full, files[i].text);
    }
    Data *d = must_open(folder, NULL, NULL);
    const int n = (int)data_tokens(d, DATA_TRAIN), all = n + (int)data_tokens(d, DATA_VALIDATION);
    int in[200] = { 0 }, out[200], same = 0;
    check(data_is_fallback(d) && is_bytes(d) && strstr(data_description(d), "NOT tinyshakespeare"),
          "fallback: %s", data_description(d));
    check(all == (int)strlen(full) && data_batch(d, 0, 1, n - 1, 1, in, out, NULL, &e), "fallback: %d bytes", all);
    for (int i = 0; i < n - 1; i++) same += in[i] == full[i] && out[i] == full[i + 1];
    check(same == n - 1, "fallback: the project's files in order");
    data_close(d);
    refused("fallback as validation data", at("one.bin"), folder, "tinyshakespeare|fetch.sh");
    put_text("project/data/tinyshakespeare/input.txt", "To be, or not to be");
    d = must_open(folder, NULL, NULL);
    check(!data_is_fallback(d) && data_tokens(d, DATA_TRAIN) == 17, "input.txt has precedence over the fallback");
    data_close(d);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Samples first ... first+count-1: each a run of T+1 tokens; start[i] is where it begins. */
static int starts(const Data *d, int64_t first, int count, int T, uint64_t seed, int *start) {
    Error e;
    int *in = mem_alloc((size_t)count * (size_t)T * sizeof *in);
    int *out = mem_alloc((size_t)count * (size_t)T * sizeof *out), ok = 1;
    if (!data_batch(d, first, count, T, seed, in, out, NULL, &e)) ok = 0;
    for (int i = 0; ok && i < count; i++) {
        start[i] = in[i * T];
        for (int t = 0; t < T; t++) ok &= in[i * T + t] == start[i] + t && out[i * T + t] == start[i] + t + 1;
    }
    free(in), free(out);
    return ok;
}

/* Are these the windows of one epoch? Files of `size[f]` tokens that begin with the id base[f]: as
 * many windows as expected in each, consecutive from one phase, inside the file, none twice. */
static int is_epoch(const int *start, int count, int T, const int *base, const int *size, int files) {
    int seen = 0;
    for (int f = 0; f < files; f++) {
        int low = INT_MAX, high = -1, n = 0, expected = size[f] <= T ? 0 : size[f] < 2 * T ? 1 : size[f] / T - 1;
        for (int i = 0; i < count; i++) {
            if (start[i] < base[f] || start[i] >= base[f] + size[f]) continue;
            if (start[i] + T >= base[f] + size[f]) return 0;
            if (start[i] < low) low = start[i];
            if (start[i] > high) high = start[i];
            n++;
        }
        if (n != expected || (n && high - low != (n - 1) * T)) return 0;
        for (int i = 0; i < count; i++) for (int j = 0; j < i; j++) if (start[i] == start[j]) return 0;
        for (int i = 0; i < count && n; i++)
            if (start[i] >= base[f] && start[i] < base[f] + size[f] && (start[i] - low) % T) return 0;
        seen += n;
    }
    return seen == count;
}

static void test_epochs(void) {
    enum { FILES = 4, MOST = 400 };
    const int base[FILES] = { 0, 5000, 12000, 20000 }, size[FILES] = { 1000, 37, 333, 5 };
    const int lengths[] = { 1, 4, 5, 7, 36, 37, 300, 332, 500, 999 };
    put_folder("order");
    put_tokens("order/v", GPT2, 0, 2000);
    for (int f = 0; f < FILES; f++) put_numbered("order/", f, base[f], size[f]);
    Data *d = must_open(at("order/*.bin"), at("order/v"), NULL);
    for (size_t l = 0; l < COUNT(lengths); l++) {
        int T = lengths[l], n = (int)data_epoch_samples(d, T), good = 0, moved = 0, shifted = 0, seeds = 0,
            capacity = 0;
        int *a = mem_alloc(3 * (size_t)n * sizeof *a), *b = a + n, *c = b + n;
        for (int f = 0; f < FILES; f++) capacity += size[f] - T > 1;            /* are there two ways to cut? */
        for (int epoch = 0; epoch < 6; epoch++) {
            good += starts(d, (int64_t)epoch * n, n, T, 42, a) && is_epoch(a, n, T, base, size, FILES);
            starts(d, (int64_t)(epoch + 1) * n, n, T, 42, b);
            starts(d, (int64_t)epoch * n, n, T, 43, c);
            moved += memcmp(a, b, (size_t)n * sizeof *a) != 0;
            seeds += memcmp(a, c, (size_t)n * sizeof *a) != 0;
            for (int i = 0; i < n; i++) shifted |= b[i] % T != a[0] % T;
        }
        check(good == 6, "T=%d: each of 6 epochs visits its %d windows once", T, n);
        check(!capacity || (moved >= 5 && seeds >= 5), "T=%d: epochs, seeds differ (%d, %d of 6)", T, moved, seeds);
        check(!capacity || T == 1 || shifted, "T=%d: epochs cut the text at different positions", T);
        free(a);
    }
    check(data_epoch_samples(d, 1000) == 0, "no window of 1001 tokens");
    data_close(d);
}
/* Every token is used, the first and the last of a file too. */
static void test_every_token(void) {
    enum { T = 16 };
    const int tokens = 3 * T - 1;
    int count[3 * T] = { 0 }, start[2], missing = 0;
    Data *d = must_open(put_tokens("short.bin", GPT2, 0, tokens), at("order/v"), NULL);
    for (int epoch = 0; epoch < 400; epoch++)
        if (starts(d, epoch, 1, T, 7, start)) for (int t = 0; t <= T; t++) count[start[0] + t]++;
    for (int i = 0; i < tokens; i++) missing += count[i] == 0;
    check(data_epoch_samples(d, T) == 1 && !missing, "400 epochs of one window in %d tokens miss none", tokens);
    data_close(d);
}
/* Every window is equally likely anywhere in an epoch: 7 windows, 7000 epochs, 1000 +- 29. */
static void test_uniform_order(void) {
    int where[7][7] = { { 0 } }, order[7], worst = 0;
    Data *d = must_open(put_tokens("eight.bin", GPT2, 0, 8), at("order/v"), NULL);
    for (int epoch = 0; epoch < 7000; epoch++)
        if (starts(d, 7 * (int64_t)epoch, 7, 1, 1, order)) for (int i = 0; i < 7; i++) where[i][order[i]]++;
    for (int i = 0; i < 49; i++) if (abs(where[i / 7][i % 7] - 1000) > worst) worst = abs(where[i / 7][i % 7] - 1000);
    check(worst < 145, "windows at positions: at most %d off 1000, expected less than 5 sigma, 145", worst);
    data_close(d);
}

static void test_stateless(void) {
    enum { T = 9, ALL = 700 };                              /* several epochs, whose ends fall inside batches */
    int one[ALL], many[ALL], same = 0, equal = 1;
    Data *d = must_open(at("order/*.bin"), at("order/v"), NULL);
    for (int i = ALL - 1; i >= 0; i--) starts(d, i, 1, T, 5, one + i);
    for (int i = 0; i < ALL; i += 35) starts(d, i, 35, T, 5, many + i);
    for (int i = 0; i < ALL; i++) same += one[i] == many[i];
    check(same == ALL && data_epoch_samples(d, T) * 3 < ALL, "samples alone and in a batch: %d of %d", same, ALL);
    for (int step = 0; step < ALL / 70; step++) /* two ranks with 35 samples have the batches of one with 70 */
        for (int rank = 0; rank < 2; rank++) {
            int mine[35];
            equal &= starts(d, (step * 2 + rank) * 35, 35, T, 5, mine)
                && !memcmp(mine, one + step * 70 + rank * 35, sizeof mine);
        }
    check(equal, "ranks split the stream");
    data_close(d);
    d = must_open(at("order/*.bin"), at("order/v"), NULL);
    check(starts(d, 333, 35, T, 5, many) && !memcmp(many, one + 333, 35 * sizeof *one),
          "opened again, the stream continues with the same samples");
    check(starts(d, INT64_C(1) << 50, 35, T, 5, many), "sample 2^50");
    data_close(d);
}

/* ---- windows left out ------------------------------------------------------------------------ */

/* Windows of T tokens. Every `period`-th of the first `repeating` is window 0 again, the others
 * are new. Each begins with a token that tells its number. */
enum { SKIP_T = 8, SKIP_ID = 1000 };
static void put_windows(const char *name, int windows, int repeating, int period) {
    const int n = (windows + 1) * SKIP_T, header = 1024;
    const uint32_t fields[] = { GPT2, 1, (uint32_t)n };
    uint16_t *file = mem_alloc((size_t)header + (size_t)n * sizeof *file), *token = file + header / 2;
    memcpy(file, fields, sizeof fields);
    for (int i = 0; i < n; i++) {
        const int w = i / SKIP_T, t = i % SKIP_T, again = w < repeating && w % period == 0;
        token[i] = (uint16_t)(t ? random_bits(7, (uint64_t)(again ? t : i)) % SKIP_ID : (uint64_t)(SKIP_ID + w));
    }
    put(name, file, (size_t)header + (size_t)n * sizeof *file);
    free(file);
}
/* How often an epoch visits each window; 0 if a sample is no window from its beginning on. */
static int visits(const Data *d, int64_t epoch, int windows, int *times) {
    const int64_t n = data_epoch_samples(d, SKIP_T);
    int in[SKIP_T], out[SKIP_T], ok = 1;
    Error e;
    memset(times, 0, (size_t)windows * sizeof *times);
    for (int64_t i = epoch * n; i < (epoch + 1) * n && ok; i++) {
        ok = data_batch(d, i, 1, SKIP_T, 3, in, out, NULL, &e) && in[0] >= SKIP_ID && in[0] < SKIP_ID + windows
            && out[SKIP_T - 1] >= SKIP_ID && out[0] == in[1];
        if (ok) times[in[0] - SKIP_ID]++;
    }
    return ok;
}
static void test_skip(void) {
    enum { WINDOWS = 6000, REPEATING = 4096, PERIOD = 4 };
    int *times = mem_alloc(2 * WINDOWS * sizeof *times), *later = times + WINDOWS;
    int again = 0, twice = 0, first = 0, rest = 0;
    Error e;
    put_folder("skip");
    put_windows("skip/a_val_1.bin", 10, 0, 1);
    put_windows("skip/a_train_1.bin", WINDOWS, REPEATING, PERIOD);
    Data *d = must_open(at("skip"), NULL, NULL);
    const uint64_t before = data_fingerprint(d);
    check(data_skip(d, SKIP_T, 25, &e) && data_epoch_samples(d, SKIP_T) == WINDOWS / 4 * 3, "a quarter is left out");
    check(visits(d, 0, WINDOWS, times) && visits(d, 1, WINDOWS, later)
          && !memcmp(times, later, WINDOWS * sizeof *times), "windows that are kept are cut alike in each epoch");
    for (int w = 0; w < WINDOWS; w++) {
        *(w < REPEATING ? &first : &rest) += times[w];
        again += times[w] && w < REPEATING && w % PERIOD == 0, twice += times[w] > 1;
    }
    check(!twice && again == 1 && first == REPEATING / 4 * 3, "of 1,024 windows that are alike %d is kept, of the "
          "first %d windows %d", again, REPEATING, first);
    check(rest == (WINDOWS - REPEATING) / 4 * 3, "windows are compared with neighbours: of the later ones %d", rest);
    check(data_epoch_samples(d, SKIP_T + 1) == 0, "windows of another length were not chosen");
    const uint64_t quarter = data_fingerprint(d);
    data_close(d);
    d = must_open(at("skip"), NULL, NULL);
    check(data_skip(d, SKIP_T, 50, &e) && data_epoch_samples(d, SKIP_T) == WINDOWS / 2, "a half is left out");
    const uint64_t half = data_fingerprint(d);
    check(before != quarter && quarter != half && before != half, "the percentage is in the fingerprint");
    data_close(d);
    free(times);
}
/* What one file shows the next one knows, so that is what is left out of many. */
static void test_skip_files(void) {
    enum { MOST = 120 };
    int times[MOST], known = 0, fresh = 0;
    Error e;
    put_folder("skips");
    put_windows("skips/a_train_1.bin", 40, 0, 1);
    put_windows("skips/a_train_2.bin", 1, 1, 1);
    put_windows("skips/a_train_3.bin", 80, 0, 1);
    put_windows("skips/a_val_1.bin", 4, 0, 1);
    Data *d = must_open(at("skips"), NULL, NULL);
    check(data_skip(d, SKIP_T, 34, &e) && data_epoch_samples(d, SKIP_T) == 121 - 41, "41 of 121 windows are left out");
    check(visits(d, 0, MOST, times), "samples of several files");
    for (int w = 0; w < MOST; w++) known += w < 40 && times[w] > 1, fresh += w >= 40 ? times[w] : 0;
    check(!known && fresh == 40, "windows of the third file: %d that the first had, %d of 40 new ones", known, fresh);
    fails(data_skip(d, 4, 34, &e), &e, "-sk 34|4 tokens|at least 5", "leaving out windows of 4 tokens");
    data_close(d);
    put_text("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
             "{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
    const DataRequest request = { at("chats.jsonl"), .validation = at("chats.jsonl"), .tokenizer = "",
                                  .pattern = "cl100k", .chat = "chatml" };
    Tokenizer *t = NULL;
    d = data_open_text(&request, &t, &e);
    if (d) fails(data_skip(d, SKIP_T, 50, &e), &e, "-sk 50|conversations", "leaving out conversations");
    check(d != NULL, "conversations are opened");
    tokenizer_free(t);
    data_close(d);
}

static void test_validation(void) {
    enum { FILES = 3, MOST = 2000 };
    const int base[FILES] = { 100, 500, 900 }, size[FILES] = { 101, 1, 58 };
    put_folder("val");
    for (int f = 0; f < FILES; f++) put_numbered("val/", f, base[f], size[f]);
    Data *d = must_open(at("one.bin"), at("val/*.bin"), NULL);
    for (int T = 1; T <= 130; T += 1 + T / 3)
        for (int B = 1; B <= 9; B += 4) {
            Error e;
            int seen[MOST] = { 0 }, ok = 1, once = 1, *in = mem_alloc(2 * (size_t)(B * T) * sizeof *in);
            int *out = in + B * T;
            int64_t batches = data_validation_batches(d, B, T);
            for (int64_t i = 0; i < batches; i++) {
                int real = 0;
                ok &= data_validation(d, i * B, B, T, in, out, NULL, &e);
                for (int t = 0; t < B * T; t++) {
                    if (out[t] < 0) { ok &= out[t] == -2 && in[t] == 0; continue; }
                    ok &= out[t] == in[t] + 1;
                    seen[out[t]]++;
                    real++;
                }
                ok &= real > 0;
            }
            for (int i = 0; i < MOST; i++) {
                int expected = 0;
                for (int f = 0; f < FILES; f++) expected |= i > base[f] && i < base[f] + size[f];
                once &= seen[i] == expected;
            }
            check(ok && once, "B=%d T=%d: every token but the first of each file is a target once", B, T);
            ok = data_validation(d, batches * B, B, T, in, out, NULL, &e);
            for (int t = 0; t < B * T; t++) ok &= in[t] == 0 && out[t] == -2;
            check(ok, "B=%d T=%d: past the last batch everything is padding", B, T);
            free(in);
        }
    data_close(d);
}

static void test_fingerprint(void) {
    put_folder("p");
    put_folder("q");
    const char *p = put_tokens("p/a.bin", GPT2, 0, 70000), *q = put_tokens("q/a.bin", GPT2, 0, 70000);
    Data *d = must_open(p, NULL, NULL), *other = must_open(q, NULL, NULL);
    const uint64_t print = data_fingerprint(d);
    check(print == data_fingerprint(other), "the same file in another folder has the same fingerprint");
    data_close(other);
    const struct { const char *what; int tokens, first; const char *name, *validation; } differ[] = {
        { "size", 69999, 0, "q/a.bin", NULL }, { "content", 70000, 1, "q/a.bin", NULL },
        { "name", 70000, 0, "q/b.bin", NULL }, { "role", 70000, 0, "q/a.bin", p },
    };
    for (size_t i = 0; i < COUNT(differ); i++) {
        q = put_tokens(differ[i].name, GPT2, (uint32_t)differ[i].first, differ[i].tokens);
        other = must_open(q, differ[i].validation, NULL);
        check(print != data_fingerprint(other), "another %s has another fingerprint", differ[i].what);
        data_close(other);
    }
    static const struct { long byte; int seen; const char *where; } changes[] = {
        { 1024, 1, "the first token" }, { 65535, 1, "the end of the first 64 kB" },
        { 70000, 0, "neither the first nor the last 64 kB" },
        { 1024 + 140000 - 65536, 1, "the start of the last 64 kB" }, { 1024 + 140000 - 1, 1, "the last token" },
    };
    for (size_t i = 0; i < COUNT(changes); i++) {
        FILE *f = fopen(put_tokens("q/a.bin", GPT2, 0, 70000), "r+b");
        if (!f || fseek(f, changes[i].byte, SEEK_SET) || fputc(0x55, f) == EOF || fclose(f))
            fail(EXIT_DISK, "cannot change q/a.bin");
        other = must_open(at("q/a.bin"), NULL, NULL);
        check((print != data_fingerprint(other)) == changes[i].seen, "fingerprint, a change in %s", changes[i].where);
        data_close(other);
    }
    data_close(d);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void test_bad_files(void) {
    uint32_t header[261] = { GPT2, 1, 10 };                 /* and ten tokens */
    char *good = put_tokens("good.bin", GPT2, 0, 100);
    refused("no path", "", NULL, "-i");
    refused("missing path", at("nowhere/x"), NULL, "nowhere/x|No such file|folder, a file or a pattern");
    refused("missing tinyshakespeare", at("nowhere/tinyshakespeare"), NULL, "nowhere/tinyshakespeare|fetch.sh");
    refused("missing validation", good, at("novalidation"), "novalidation|-j");
    refused("pattern without a match", at("no*match?.bin"), NULL, "no*match?.bin|no file matches");
    refused("path through a file", at("good.bin/x"), NULL, "good.bin/x|Not a directory");
    refused("empty text", put_text("empty.txt", ""), NULL, "empty.txt|0 bytes");
    refused("empty shard", put_text("empty.bin", ""), NULL, "empty.bin|0 bytes");
    refused("empty folder", put_folder("void"), NULL, "void|no data|*_train*.bin|train.bin|input.txt|record of JSON");
    refused("empty folder for validation", good, put_folder("void"), "void|*_val*.bin|val.bin|input.txt");
    refused("folder that ends in .bin", put_folder("dir.bin"), NULL, "dir.bin|no data");
    refused("pattern that matches a folder", at("di?.bin"), NULL, "dir.bin|files alone");

    header[0] = 20240522;
    refused("other magic", put("magic.bin", header, 1044), NULL, "magic.bin|20240522|20240520|20240801|train.bin");
    refused("text called .bin", put_text("words.bin", "hello there, this is text"), NULL, "words.bin|magic|20240520");
    refused("three bytes", put_text("three.bin", "abc"), NULL, "three.bin|3 bytes");
    header[0] = GPT2;
    refused("truncated header", put("cut.bin", header, 1000), NULL, "cut.bin|truncated|1000|1024");
    refused("truncated header of 4 bytes", put("cut.bin", header, 4), NULL, "cut.bin|truncated|4 bytes|1024");
    refused("truncated", put("short.bin", header, 1024), NULL, "short.bin|truncated|1024|1044|10 tokens");
    header[1] = 2;
    refused("unknown version", put("version.bin", header, 1024), NULL, "version.bin|version 2|expected 1|20240520");
    header[0] = LLAMA3;
    refused("another version", put("version.bin", header, 1024), NULL, "version.bin|version 2|expected 7|20240801");
    header[0] = GPT2, header[1] = 1, header[2] = 0;
    refused("no tokens", put("none.bin", header, 1024), NULL, "none.bin|0 tokens");
    header[2] = 0xffffffff;
    refused("4 G tokens promised", put("none.bin", header, 1024), NULL, "none.bin|truncated|8589935614|4294967295");
    char *longer = put_tokens("trailing.bin", GPT2, 0, 10);
    FILE *f = fopen(longer, "ab");
    if (f) { fputc('x', f); fclose(f); }
    refused("trailing byte", longer, NULL, "trailing.bin|trailing|1045|1044|10 tokens");
    refused("odd nanoGPT file", put_text("train.bin", "12345"), NULL, "train.bin|odd|5 bytes|uint16");
    refused("one token to split", put_tokens("single.bin", GPT2, 3, 1), NULL, "single.bin|1 token,|at least 2|-j");
    refused("one byte to split", put_text("single.txt", "a"), NULL, "single.txt|at least 2");
    refused("id beyond int", put_tokens("huge.bin", LLAMA3, 0xfffffff0u, 16), NULL,
            /* the id of the training part; that of the other part is bad, too */
            "huge.bin|4294967293|1076|2147483647");
    refused("tokens for training, text for validation", good, put_text("v.txt", "some text"), "v.txt|text|uint16");
    refused("uint16 and uint32", good, at("wide.bin"), "wide.bin|uint32|uint16");

    char *fifo = at("fifo");
    if (mkfifo(fifo, 0600)) skip("no named pipes here");
    else refused("pipe", fifo, NULL, "fifo|regular file");
    chmod(good, 0);
    if (geteuid() == 0) skip("root may read everything: unreadable files");
    else refused("unreadable file", good, NULL, "good.bin|Permission denied");
    chmod(good, 0600);
    char *loop = at("loop");
    if (symlink(loop, loop)) skip("no symbolic links here");
    else refused("link to itself", loop, NULL, "loop|symbolic links");
}

static void test_check(void) {
    Error e = { 0 };
    Data *d = must_open(put_tokens("hundred.bin", GPT2, 1000, 100), put_tokens("forty.bin", GPT2, 1000, 40), NULL);
    check(data_check(d, 39, 1100, &e), "windows of 40 tokens and a vocabulary of 1100 are accepted: %s", e.text);
    fails(data_check(d, 39, 1099, &e), &e, "hundred.bin|1099|1222", "a vocabulary too small");  /* 1024 + 2*99 */
    fails(data_check(d, 40, 1100, &e), &e, "forty.bin|validation|40 tokens|41", "validation too short");
    fails(data_check(d, INT_MAX, 1100, &e), &e, "hundred.bin|training|100 tokens|2147483648", "too little data");
    int token;
    check(!data_batch(d, 0, 1, 100, 1, &token, &token, NULL, &e), "a batch of windows that do not fit is refused");
    data_close(d);
    d = must_open(put_text("tab.txt", "abcdefghijklmnopqrst~"), NULL, NULL);
    fails(data_check(d, 1, 126, &e), &e, "tab.txt|126|token 2", "text beyond the vocabulary");
    data_close(d);
}

/* A file that changes while it is open: an error with its name, no signal, no wrong token. */
static void test_changes(void) {
    Error e = { 0 };
    int in[64], out[64];
    char *path = put_tokens("changes.bin", GPT2, 0, 20000);
    Data *d = must_open(path, at("one.bin"), NULL);
    check(data_batch(d, 0, 1, 64, 1, in, out, NULL, &e), "before the change: %s", e.text);
    put_tokens("changes.bin", GPT2, 30000, 20000);          /* rewritten in place */
    fails(data_batch(d, 0, 1, 64, 1, in, out, NULL, &e), &e, "changes.bin|19999|rewritten|token id 3", "rewritten");
    if (truncate(path, 1024)) skip("cannot truncate");
    fails(data_batch(d, 0, 1, 64, 1, in, out, NULL, &e), &e, "changes.bin|1024 bytes|shortened", "truncated");
    put_tokens("changes.bin", GPT2, 0, 20000);
    unlink(path);
    check(data_batch(d, 0, 1, 64, 1, in, out, NULL, &e) && out[0] == in[0] + 1, "an unlinked file can still be read");
    data_close(d);
    put_tokens("changes.bin", GPT2, 0, 20000);
    d = must_open(at("one.bin"), path, NULL);
    if (truncate(path, 1024 + 2 * 50)) skip("cannot truncate");
    fails(data_validation(d, 0, 1, 64, in, out, NULL, &e), &e, "changes.bin|1124 bytes|shortened", "truncated");
    data_close(d);
}

/* More files than descriptors. */
static void test_many_files(void) {
    enum { FILES = 400, T = 9 };
    Error e = { 0 };
    struct rlimit old, low;
    int start[FILES], seen[FILES] = { 0 }, once = 1, in[T], out[T], vanished = 0;
    put_folder("many");
    for (int i = 0; i < FILES; i++) put_numbered("many/", i, i * 20, 12);
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = 300;
    setrlimit(RLIMIT_NOFILE, &low);
    Data *d = must_open(at("many/*.bin"), at("one.bin"), NULL);
    int ok = starts(d, 0, FILES, T, 3, start);
    for (int i = 0; ok && i < FILES; i++) seen[start[i] / 20]++;
    for (int i = 0; i < FILES; i++) once &= seen[i] == 1;
    check(data_epoch_samples(d, T) == FILES && ok && once, "%d files with 300 descriptors", FILES);
    int spare[20], left = 0;
    for (int i = 0; i < 20; i++) left += (spare[i] = dup(0)) >= 0;
    for (int i = 0; i < 20; i++) if (spare[i] >= 0) close(spare[i]);
    check(left == 20, "20 descriptors are left for others");
    unlink(at("many/399.bin"));
    for (int i = 0; i < FILES; i++) if (!data_batch(d, i, 1, T, 3, in, out, NULL, &e)) vanished++;
    check(vanished == 1, "one of %d files vanished: %d errors", FILES, vanished);
    check_message(&e, "many/399.bin|No such file", "vanished");
    data_close(d);
    setrlimit(RLIMIT_NOFILE, &old);
}

/* More than 2^31 tokens for training, a tenth of all for validation: counts exceed int, offsets 32
 * bits. The file is sparse, with data only at its end; in memory if possible, for reading a hole of
 * a file on disk can take ten seconds. */
static void test_large_file(void) {
    enum { T = 64, MARKS = 100 };
    const int64_t tokens = INT64_C(2386160000), train = tokens / 10 * 9, held = tokens - train;
    char *folder = is_folder("/dev/shm") ? text_format("/dev/shm/moe-test-%ld", (long)getpid()) : scratch_path("large");
    char *path = text_format("%s/train.bin", folder);
    Error e = { 0 };
    uint16_t mark[MARKS];
    struct stat s;
    int fd = folder_make(folder, &e) ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    for (int i = 0; i < MARKS; i++) mark[i] = (uint16_t)(1000 + i);
    int made = fd >= 0 && !ftruncate(fd, 2 * tokens)
        && pwrite(fd, mark, sizeof mark, 2 * (tokens - MARKS)) == sizeof mark && !fstat(fd, &s) && s.st_blocks < 32768;
    if (fd >= 0) close(fd);
    if (!made) skip("a sparse file of 4.8 GB cannot be created here");
    else {
        double start = now();
        Data *d = must_open(path, NULL, NULL);
        double seconds = now() - start;
        int in[2 * T], out[2 * T], ok = 1, last = (int)((held - 1) % T);        /* targets in the last window */
        check(data_tokens(d, DATA_TRAIN) == train && train > INT_MAX && data_max_id(d) == 1000 + MARKS - 1,
              "%lld tokens, scanned in %.2f s", (long long)tokens, seconds);
        check(data_epoch_samples(d, 1) == train - 1 && data_epoch_samples(d, T) == train / T - 1, "over 2^31 samples");
        check(data_validation_batches(d, 1, T) == (held - 1 + T - 1) / T, "windows of the last tenth");
        check(data_validation(d, (held - 1) / T - 1, 2, T, in, out, NULL, &e), "the last two windows: %s", e.text);
        for (int i = 0; i < 2 * T; i++) {                       /* target i is `back` tokens before the end */
            int back = T + last - i, expected = back < 1 ? -2 : back <= MARKS ? 1000 + MARKS - back : 0;
            ok &= out[i] == expected;
        }
        check(ok && last > 0, "the last tokens are the ones that were written");
        for (int i = 0; i < 200; i++) ok &= data_batch(d, i * INT64_C(99999999), 1, T, 1, in, out, NULL, &e);
        check(ok, "200 samples from the whole file: %s", e.text);
        fails(data_check(d, T, 1050, &e), &e, "train.bin|1099|4772319998", "an id at 4.8 GB");  /* 2 * (tokens - 1) */
        data_close(d);
    }
    unlink(path), rmdir(folder), free(path), free(folder);
}

/* ---- the fetch script ------------------------------------------------------------------------ */

static int script(const char *data_dir, const char *arguments) {
    /* its exit code; the proxy is a closed port, so there is no network */
    char *command = text_format("MOE_DATA_DIR='%s' https_proxy=http://127.0.0.1:9 sh '%s' %s 2>'%s'", data_dir,
                                at("fetch/fetch.sh"), arguments, at("fetch.log"));
    int status = system(command);
    free(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static void test_fetch(void) {
    Error e;
    size_t bytes;
    char *text = file_read("data/tinyshakespeare/fetch.sh", &bytes, &e), *log;
    if (!text) { skip("no data/tinyshakespeare/fetch.sh: not run in the repository"); return; }
    put_folder("fetch");
    put_folder("local/tinyshakespeare");
    put("fetch/fetch.sh", text, bytes);
    put_text("local/tinyshakespeare/input.txt", "not tinyshakespeare");
    free(text);
    check(script(at("local"), "") == 0 && !is_file(at("fetch/input.txt")), "fetch.sh ignores a wrong copy and exits 0");
    log = file_read(at("fetch.log"), &bytes, &e);
    check(log && strchr(log, '\n') == log + bytes - 1 && strstr(log, "local/tinyshakespeare"),
          "fetch.sh reports that in one line: %s", log ? log : "");
    free(log);
    check(script(at("local"), "--strict") == 1, "fetch.sh --strict exits 1");
    check(script(at("local"), "--what") == 2, "fetch.sh refuses unknown options");

    const char *root = getenv("MOE_DATA_DIR");
    char *there = text_format("%s/tinyshakespeare/input.txt", root ? root : "../shared/data");
    text = file_read(is_file(there) ? there : "data/tinyshakespeare/input.txt", &bytes, &e);
    if (!text) skip("tinyshakespeare is missing: fetch.sh from a local copy");
    else {
        text[bytes - 1] ^= 1;
        put("local/tinyshakespeare/input.txt", text, bytes);
        check(script(at("local"), "--strict") == 1 && !is_file(at("fetch/input.txt")), "fetch.sh sees one wrong bit");
        text[bytes - 1] ^= 1;
        put("local/tinyshakespeare/input.txt", text, bytes);
        put_text("fetch/input.txt", "an old one");
        check(script(at("local"), "--strict") == 0, "fetch.sh takes a correct copy");
        size_t got = 0;
        char *copy = file_read(at("fetch/input.txt"), &got, &e);
        check(copy && got == bytes && !memcmp(copy, text, bytes), "fetch.sh copied all %zu bytes", bytes);
        free(copy), unlink(at("local/tinyshakespeare/input.txt"));
        check(script(at("local"), "--strict") == 0, "fetch.sh does nothing if the text is there");
    }
    free(text), free(there);
}

void test_data(void) {
    PART(test_layouts()); PART(test_text());
    test_texts();
    test_forms();
    test_chats();
    test_jinja();
    PART(test_tokenized()); PART(test_begun()); PART(test_begun_otherwise()); PART(test_fallback());
    PART(test_epochs());
    PART(test_every_token()); PART(test_uniform_order()); PART(test_stateless()); PART(test_validation());
    PART(test_skip()); PART(test_skip_files());
    PART(test_fingerprint()); PART(test_bad_files()); PART(test_check()); PART(test_changes());
    PART(test_many_files()); PART(test_large_file()); PART(test_fetch());
}
