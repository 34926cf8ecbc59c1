/* text.c: see text.h. */
#define _POSIX_C_SOURCE 200809L
#include "text.h"
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int text_is_in(const char *text, const char *const *list, size_t n) {
    while (n) if (!strcmp(text, list[--n])) return 1;
    return 0;
}
int text_is_white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
int text_is_blank(const char *text, size_t bytes) {
    while (bytes && text_is_white(text[bytes - 1])) bytes--;
    return !bytes;
}

/* ---- the locale ---------------------------------------------------------------------------------
 * printf and strtod use the decimal point of the thread's locale: switch to "C" around them. */

static locale_t locale_enter(void) {
    static _Thread_local locale_t c;
    if (!c && !(c = newlocale(LC_ALL_MASK, "C", (locale_t)0)))
        fail(EXIT_MEMORY, "out of host memory: a locale is needed");
    return uselocale(c);
}

double text_strtod(const char *text, char **end) {
    locale_t before = locale_enter();
    const double x = strtod(text, end);
    uselocale(before);
    return x;
}

/* ---- the builder ----------------------------------------------------------------------------- */

static void text_reserve(Text *t, size_t bytes) {
    if (t->capacity - t->length > bytes) return;                            /* one byte more, for the NUL */
    t->capacity = 2 * t->capacity + bytes + 64;
    t->at = mem_grow(t->at, t->capacity);
}

void text_add_bytes(Text *t, const void *data, size_t bytes) {
    text_reserve(t, bytes);
    if (bytes) memcpy(t->at + t->length, data, bytes);
    t->length += bytes;
    t->at[t->length] = 0;
}
void text_add_string(Text *t, const char *string) { text_add_bytes(t, string, strlen(string)); }
void text_add_word(Text *t, const char *string) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=+@%";
    if (*string && !string[strspn(string, plain)]) { text_add_string(t, string); return; }
    text_add_string(t, "'");
    for (const char *c = string; *c; c++) if (*c == '\'') text_add_string(t, "'\\''"); else text_add_bytes(t, c, 1);
    text_add_string(t, "'");
}

void text_add(Text *t, const char *format, ...) {
    locale_t before = locale_enter();
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n < 0) n = 0;
    text_reserve(t, (size_t)n);
    vsnprintf(t->at + t->length, (size_t)n + 1, format, again);
    t->length += (size_t)n;
    va_end(again);
    va_end(args);
    uselocale(before);
}

void text_add_json(Text *t, const char *string, size_t bytes) {
    text_add_bytes(t, "\"", 1);
    for (size_t at = 0, n; at < bytes; at += n) {
        uint32_t code;
        n = utf8_decode(string + at, bytes - at, &code);
        if (!n) { n = 1; text_add_bytes(t, "\xEF\xBF\xBD", 3); }
        else if (code == '"' || code == '\\') { char pair[2] = { '\\', (char)code }; text_add_bytes(t, pair, 2); }
        else if (code == '\n') text_add_bytes(t, "\\n", 2);
        else if (code < 0x20 || (code >= 0x7F && code < 0xA0)) text_add(t, "\\u%04x", (unsigned)code);
        else text_add_bytes(t, string + at, n);
    }
    text_add_bytes(t, "\"", 1);
}

void text_add_real(Text *t, double x) {
    if (fabs(x) < 1e15 && x == floor(x)) text_add(t, "%.0f.0", x);
    else text_add_double(t, x);
}
void text_add_double(Text *t, double x) {
    char number[40] = "null";
    locale_t before = locale_enter();
    for (int precision = 1; isfinite(x) && precision <= 17; precision++) {
        snprintf(number, sizeof number, "%.*g", precision, x);
        if (strtod(number, NULL) == x) break;
    }
    uselocale(before);
    text_add_string(t, number);
}
