/* stream.c: text in and out of infer_moe. The first bytes pick the tokenizer, the stop string and
 * how text is written; then a prompt, and the ids that a model draws. On a terminal nothing may
 * control it; elsewhere it is the text of the tokens up to the stop string. */
#define _GNU_SOURCE
#include "tests/fuzz/support/fuzz.h"
#include "llmc/run/stream.h"

static const char *const names[] = { "", "gpt2", "llama2", "llama2_v5" },
    *const stops[] = { "", "\\n", "ab", "\\n\\n", "\xC3\xA9", "[\"ab\", \"\\n\", \"b\"]" };
enum { TOKENIZERS = COUNT(names), STOPS = COUNT(stops) };
static Tokenizer *tokenizer[TOKENIZERS];

void fuzz_start(void) { fuzz_tokenizers(tokenizer, names, TOKENIZERS); }

static char *written(const TextStyle *style, Part prompt, const int *ids, const int *experts, int count, Part drawn,
                     size_t *bytes) {
    const int vocab = style->tokenizer ? tokenizer_vocab(style->tokenizer) : 1 << 16;
    char *shown = NULL;
    FILE *before = stdout;
    Stream o;
    stdout = open_memstream(&shown, bytes);
    stream_open(&o, style);
    stream_prompt(&o, prompt.at, prompt.bytes, ids, experts, count);
    for (size_t i = 0; i < drawn.bytes && !o.ended; i++) {
        const unsigned char c = (unsigned char)drawn.at[i];
        stream_generated(&o, (c & 128 ? c * 37 : c) % vocab, c % 5);
        stream_print(&o, 0);
    }
    stream_print(&o, 1);
    stream_close(&o), fclose(stdout);
    stdout = before;
    return shown;
}

void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const unsigned kind = fuzz_choice(&rest, TOKENIZERS + 1), stop = fuzz_choice(&rest, STOPS),
        how = fuzz_choice(&rest, 16);
    const Part prompt = fuzz_part(&rest);
    char **list = stops_option(NULL, stops[stop]);
    TextStyle style = { kind < TOKENIZERS ? tokenizer[kind] : NULL, list, how & 1, how >> 1 & 1, how >> 2 & 1,
                        how >> 3 & 1 };
    char *text = fuzz_text(prompt);
    int *ids;
    size_t bytes;
    const int count = prompt_encode(style.tokenizer, 300, text, prompt.bytes, 1, 1000, &ids);
    int *experts = mem_alloc((size_t)count * sizeof *experts);
    for (int i = 0; i < count; i++) { experts[i] = i % 3; fuzz_check(ids[i] >= 0); }
    char *shown = written(&style, prompt, ids, experts, count, rest, &bytes);
    if (style.terminal && !style.colored) fuzz_check_shown(shown, bytes);
    if (!prompt.bytes && !style.marked && style.tokenizer) fuzz_check(stops_find(list, shown, 0, bytes) == bytes);
    stops_free(list);
    free(shown), free(experts), free(ids), free(text);
}
