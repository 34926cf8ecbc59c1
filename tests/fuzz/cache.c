/* cache.c: tokens.cache. The input is its header and what follows; sizes, hashes and the checksum
 * are set right, so that what lies behind them is reached, but for every fourth input. What is
 * accepted is read to the last token. The source is included: the form of the header is its own. */
#define _GNU_SOURCE
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/token_cache.c"

static void seed(void) {
    char *given = getenv("FUZZ_SEEDS"), *path = given ? text_format("%s/cache", given) : NULL,
        *text = text_format("%s/t.txt", fuzz_folder());
    Tokenizer *t = NULL;
    Error e;
    size_t bytes;
    if (!given) return;
    fuzz_file("t.txt", "the experts of the router and the router of the experts", 55);
    const DataRequest request = { .train = text, .tokenizer = "260", .pattern = "gpt2" };
    Data *d = data_open_text(&request, &t, &e);
    if (!d || !data_keep(d, t, fuzz_folder(), &e)) fail(EXIT_INPUT, "%s", e.text);
    char *from = cache_path(fuzz_folder()), *cache = file_read(from, &bytes, &e), *input = text_format("%c", 1);
    input = mem_grow(input, bytes + 1);
    memcpy(input + 1, cache, bytes);
    if (!file_write(path, input, bytes + 1, &e)) fail(EXIT_DISK, "%s", e.text);
}
void fuzz_start(void) { seed(); }

static void read_all(const Data *d) {
    Error e;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < d->segments[k]; i++) {
            Segment *s = &d->segment[k][i];
            char *tokens = mem_alloc((size_t)s->tokens * (size_t)s->width);
            if (data_scan(s, &e))
                fuzz_check(data_read_at(s, tokens, (size_t)s->tokens * (size_t)s->width, s->start, &e));
            fuzz_check(s->tokens > 0 && (s->width == 2 || s->width == 4));
            free(tokens);
        }
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const int right = fuzz_choice(&rest, 4) != 0;
    Header h = { 0 };
    memcpy(&h, rest.at, rest.bytes < sizeof h ? rest.bytes : sizeof h);
    const size_t bytes = rest.bytes > sizeof h ? rest.bytes : sizeof h;
    char *file = mem_alloc(bytes);
    memcpy(file, rest.at, rest.bytes);
    if (right) {
        h.magic = MAGIC, h.size = bytes;
        h.hash = bytes > sizeof h ? hash_bytes(hash_header(h), file + sizeof h, bytes - sizeof h) : hash_header(h);
    }
    memcpy(file, &h, sizeof h);
    fuzz_file("tokens.cache", file, bytes);
    free(file);
    Data *d = mem_alloc(sizeof *d);
    Tokenizer *t = NULL;
    d->text_hash = h.text, d->recipe_hash = h.recipe;
    if (cache_read(d, fuzz_folder(), &t)) read_all(d);
    tokenizer_free(t), data_close(d);
}
