/* tokenizer.c: tokenizer.json of every kind. A few texts, and those of the file, are encoded and
 * decoded: all ids are tokens, and all but what tokenizer.h names comes back. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/tokenizer_impl.h"

const int fuzz_is_json = 1;

static void encode(const Tokenizer *t, const char *text, size_t bytes) {
    int *ids;
    size_t length;
    size_t n = tokenizer_encode(t, text, bytes, &ids);
    for (size_t i = 0; i < n; i++) fuzz_check(ids[i] >= 0 && ids[i] < tokenizer_vocab(t));
    free(tokenizer_decode(t, ids, n, &length));
    if (bytes % 8) { free(ids); return; }
    const Document document = { .at = text, .bytes = bytes };
    void *wide;
    Meter meter = { 0 };
    if (bytes) n = tokenizer_begin(t, &ids, n, 0);
    const size_t again = tokenizer_encode_documents(t, &document, bytes > 0, -1, &meter, &wide, NULL);
    fuzz_check(again == n);
    for (size_t i = 0; i < n; i++)
        fuzz_check((tokenizer_width(t) == 2 ? ((uint16_t *)wide)[i] : (int)((uint32_t *)wide)[i]) == ids[i]);
    free(wide), free(ids);
}
void fuzz_one(const uint8_t *data, size_t size) {
    static const char sample[] = "The 12 experts' routers\tdidn't  <s>agree</s>:\n\n caf\xC3\xA9 e\xCC\x81 "
        "\xE2\x96\x81\xF0\x9F\x98\x80 \xFF\x00<|x|>  ";
    Error e = { 0 };
    Tokenizer *t = tokenizer_load_text((const char *)data, size, &e);
    if (!t) { fuzz_check(*e.text); return; }
    size_t bytes;
    fuzz_check(tokenizer_eos(t) < tokenizer_vocab(t) && tokenizer_bos(t) < tokenizer_vocab(t)
               && tokenizer_vocab(t) > 0);
    for (int i = -1; i <= tokenizer_vocab(t); i++) tokenizer_piece(t, i, &bytes);
    encode(t, sample, sizeof sample - 1);
    encode(t, (const char *)data, size < 3000 ? size : 3000);
    tokenizer_free(t);
}
