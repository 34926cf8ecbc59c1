/* tokenizers.c: see fuzz_tokenizers in fuzz.h. */
#include "fuzz.h"
#include "llmc/data/tokenizer.h"
#include <stdlib.h>

void fuzz_tokenizers(Tokenizer **to, const char *const *names, int count) {
    Error e;
    for (int i = 0; i < count; i++) {
        char *path = text_format("tests/reference/tokenizers/%s.json", names[i]);
        to[i] = *names[i] ? tokenizer_load(path, &e) : tokenizer_bytes();
        if (!to[i]) fail(EXIT_INPUT, "%s (start it in the root of the repository)", e.text);
        free(path);
    }
}
