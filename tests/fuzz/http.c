/* http.c: the head of a request. What is accepted lies inside of the input and holds no control
 * character; a head that was cut anywhere is not complete, or refused with the same status; a
 * request is read the same whatever follows it. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/run/http.h"

static void check_part(HttpText t, const char *text, const HttpRequest *r) {
    if (!t.at) return;
    fuzz_check(t.at >= text && t.at + t.bytes <= text + r->head);
    for (size_t i = 0; i < t.bytes; i++) fuzz_check((unsigned char)t.at[i] >= 0x20 || t.at[i] == '\t');
}
void fuzz_one(const uint8_t *data, size_t size) {
    char *text = mem_alloc(size + 1);                   /* as long as the input, so that a byte too far is found */
    memcpy(text, data, size);
    text = mem_grow(text, size ? size : 1);
    HttpRequest r, again;
    const int status = http_parse(text, size, &r);
    fuzz_check(status == 0 || status == 200
               || (status >= 400 && *http_reason(status) && strcmp(http_reason(status), "Error")));
    if (status == 200) {
        fuzz_check(r.head <= size && r.head <= HTTP_HEAD && r.body <= HTTP_BODY && r.host.at && r.path.bytes
                   && *r.path.at == '/');
        const HttpText parts[] = { r.method, r.path, r.query, r.host, r.origin, r.site, r.authorization, r.type };
        for (size_t i = 0; i < COUNT(parts); i++) check_part(parts[i], text, &r);
        fuzz_check(http_parse(text, r.head, &again) == 200 && again.head == r.head && again.body == r.body);
    }
    for (size_t i = 0; i < size && i < 400; i += 1 + i / 16) {
        const int part = http_parse(text, i, &again);
        fuzz_check(part == 0 || part == status || (status == 200 && i >= r.head));
    }
    free(text);
}
