/* pattern.c: a regular expression of a tokenizer, and a text that it cuts. Matches are in order and
 * in the text; no pattern takes much memory, nor a short text much time. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/pattern.h"

void fuzz_one(const uint8_t *data, size_t size) {
    Part text = { (const char *)data, size };
    const Part regex = fuzz_part(&text);
    Error e = { 0 };
    Pattern *p = pattern_open(regex.at, regex.bytes, 0, &e);
    if (!p) { fuzz_check(*e.text); return; }
    if (text.bytes > 2000) text.bytes = 2000;
    PatternSearch search = { .p = p, .s = text.at, .n = text.bytes };
    Match match[MATCHES];
    size_t done = 0, count = MATCHES, matches = 0;
    while (count == MATCHES) {
        count = pattern_next(&search, match, MATCHES);
        for (size_t i = 0; i < count; done = match[i++].to, matches++)
            fuzz_check(match[i].from >= done && match[i].to >= match[i].from && match[i].to <= text.bytes
                       && (!matches || match[i].to > done));
    }
    pattern_close(p);
}
