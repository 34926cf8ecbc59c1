/* encode.c: any text with the tokenizers of tests/reference, and Unicode's NFC. Encoding and
 * decoding give the text back, but for what tokenizer.h names; cutting it into documents and jobs
 * changes nothing. The first byte picks the tokenizer. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/tokenizer_impl.h"
#include "llmc/data/unicode.h"

static const char *const names[] = { "", "gpt2", "qwen2", "neox", "llama3", "o200k", "starcoder", "llama2", "llama2_v5",
                                     "trained_gpt2", "trained_cl100k" };
enum { TOKENIZERS = COUNT(names) };
static Tokenizer *tokenizer[TOKENIZERS];

void fuzz_start(void) { fuzz_tokenizers(tokenizer, names, TOKENIZERS); }

/* What decoding gives for `text`: after NFC, with a space for each U+2581 if it is SentencePiece,
 * less one in front if it is the newer spelling. A text with special tokens is left out. */
static int expected(const Tokenizer *t, const int *ids, size_t n, const char *text, size_t bytes, Text *out) {
    for (size_t i = 0; i < n; i++) {
        size_t length;
        tokenizer_piece(t, ids[i], &length);
        if (!length) return 0;
    }
    Text composed = { 0 };
    int nfc = 0;
    for (int i = 0; i < t->changes; i++) nfc |= t->change[i].kind == NFC;
    if (nfc) unicode_normalize(&composed, text, bytes, 1);
    else text_add_bytes(&composed, text, bytes);
    text_add_bytes(out, "", 0);
    for (size_t at = 0; at < composed.length; at++) {
        const int mark = !t->byte_level && composed.length - at >= 3 && !memcmp(composed.at + at, UNDERLINE, 3);
        if (!(at == 0 && t->metaspace && (mark || composed.at[0] == ' ')))
            text_add_bytes(out, mark ? " " : composed.at + at, 1);
        at += mark ? 2 : 0;
    }
    free(composed.at);
    return 1;
}

static int has_added(const Tokenizer *t, const int *ids, size_t n) {
    for (size_t i = 0; i < n; i++) for (int k = 0; k < t->added_count; k++) if (t->added[k].id == ids[i]) return 1;
    return 0;
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part text = { (const char *)data, size };
    const Tokenizer *t = tokenizer[fuzz_choice(&text, TOKENIZERS)];
    int *ids;
    size_t bytes;
    const size_t n = tokenizer_encode(t, text.at, text.bytes, &ids);
    for (size_t i = 0; i < n; i++) fuzz_check(ids[i] >= 0 && ids[i] < tokenizer_vocab(t));
    char *back = tokenizer_decode(t, ids, n, &bytes);
    Text wanted = { 0 };
    /* an added token cuts the text: NFC and the space in front are of each piece */
    const int plain = !has_added(t, ids, n);
    if (plain && expected(t, ids, n, text.at, text.bytes, &wanted))
        fuzz_check(wanted.length == bytes && !memcmp(wanted.at, back, bytes));
    Document document = { .at = text.at, .bytes = text.bytes };
    void *wide;
    Meter meter = { 0 };
    if (text.bytes % 8 == 0) {
        fuzz_check(tokenizer_encode_documents(t, &document, text.bytes > 0, -1, &meter, &wide, NULL)
                   == n + (text.bytes && tokenizer_bos(t) >= 0));
        free(wide);
    }
    free(wanted.at), free(back), free(ids);
}
