/* bpe.c: training a tokenizer on any text. What it makes has exactly as many tokens as asked for,
 * is readable, and gives the text back. The first two bytes say how many tokens, and which pattern
 * cuts the text; the rest is documents. */
#define _GNU_SOURCE
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/bpe.h"

void fuzz_one(const uint8_t *data, size_t size) {
    enum { MOST = 8 };
    Part rest = { (const char *)data, size };
    const int tokens = BPE_MIN - 1 + (int)fuzz_choice(&rest, 64);
    const char *pattern = fuzz_choice(&rest, 2) ? "gpt2" : "cl100k";
    Document document[MOST];
    size_t n = 0;
    Error e = { 0 };
    while (rest.bytes && n < MOST) {
        const Part part = fuzz_part(&rest);
        document[n++] = (Document){ part.at, part.bytes, 0, 0 };
    }
    Tokenizer *t = bpe_train(document, n, tokens, pattern, 0, &e);
    if (!t) { fuzz_check(*e.text); return; }
    fuzz_check(tokenizer_vocab(t) == tokens && tokenizer_id(t, END_OF_TEXT) == 0);
    for (size_t i = 0; i < n; i++) {
        int *ids;
        size_t bytes;
        const size_t count = tokenizer_encode(t, document[i].at, document[i].bytes, &ids);
        char *back = tokenizer_decode(t, ids, count, &bytes);
        fuzz_check(bytes <= document[i].bytes);
        if (!document[i].bytes || !memmem(document[i].at, document[i].bytes, END_OF_TEXT, sizeof END_OF_TEXT - 1))
            fuzz_check(bytes == document[i].bytes && !memcmp(back, document[i].at, bytes));
        free(back), free(ids);
    }
    tokenizer_free(t);
}
