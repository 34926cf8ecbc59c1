/* print.c: see print.h. */
#define _DEFAULT_SOURCE
#include "print.h"
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* The length of a character that begins with byte c, and the range of its second byte, which
 * excludes overlong forms, surrogates and codes above U+10FFFF. 0 if no character begins with c. */
static size_t lead(unsigned char c, unsigned char *low, unsigned char *high) {
    *low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    *high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
}
/* How many bytes of the first character are valid; *length: how many it should have. */
static size_t prefix(const char *text, size_t bytes, size_t *length) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned char low, high;
    size_t n = 1;
    *length = bytes ? lead(s[0], &low, &high) : 0;
    if (!*length) return 0;
    for (; n < *length && n < bytes; n++, low = 0x80, high = 0xBF) if (s[n] < low || s[n] > high) break;
    return n;
}

size_t utf8_decode(const char *text, size_t bytes, uint32_t *code) {
    static const unsigned char mask[5] = { 0, 0x7F, 0x1F, 0x0F, 0x07 };
    size_t length;
    if (prefix(text, bytes, &length) != length || !length) return 0;
    *code = (unsigned char)text[0] & mask[length];
    for (size_t i = 1; i < length; i++) *code = *code << 6 | ((unsigned char)text[i] & 0x3F);
    return length;
}

size_t utf8_encode(uint32_t code, char *text) {
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; code >>= 6) text[i] = (char)(0x80 | (code & 0x3F));
    text[0] = (char)(n == 1 ? code : (0xF00u >> n & 0xF0) | code);
    return n;
}

size_t utf8_valid(const char *text, size_t bytes) {
    size_t at = 0, n;
    uint32_t code;
    while (at < bytes && (n = utf8_decode(text + at, bytes - at, &code))) at += n;
    return at;
}

size_t utf8_count(const char *text, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += (text[i] & 0xC0) != 0x80;
    return n;
}
size_t utf8_complete(const char *text, size_t bytes) {
    for (size_t back = 1; back < 4 && back <= bytes; back++) {
        size_t length, right = prefix(text + bytes - back, back, &length);
        if (right == back && right < length) return bytes - back;
    }
    return bytes;
}

/* ---- text from outside ----------------------------------------------------------------------- */

size_t text_show(const char *text, size_t bytes, char shown[5]) {
    uint32_t code;
    const size_t n = utf8_decode(text, bytes, &code);
    if (!n || (code >= 0x80 && code < 0xA0) || code == 0xFFFE || code == 0xFFFF) code = 0xFFFD;
    else if (code < 0x20 && code != '\n' && code != '\t') code += 0x2400;
    else if (code == 0x7F) code = 0x2421;
    shown[utf8_encode(code, shown)] = 0;
    return n ? n : 1;
}

void text_write(FILE *to, const char *text, size_t bytes) {
    char shown[5];
    size_t from = 0;                            /* what stays as it is, is written in one piece: stderr has no buffer */
    for (size_t at = 0, n; at < bytes; at += n) {
        n = text_show(text + at, bytes - at, shown);
        if (!strncmp(text + at, shown, n) && !shown[n]) continue;
        fwrite(text + from, 1, at - from, to);
        fputs(shown, to);
        from = at + n;
    }
    fwrite(text + from, 1, bytes - from, to);
}

/* Without memory a long text is cut. */
void text_vprint(FILE *to, const char *format, va_list args) {
    char fixed[2048], *all = fixed;
    va_list again;
    va_copy(again, args);
    const int needs = vsnprintf(fixed, sizeof fixed, format, args);
    size_t bytes = needs < 0 ? 0 : (size_t)needs;
    if (bytes >= sizeof fixed) {
        if ((all = malloc(bytes + 1))) vsnprintf(all, bytes + 1, format, again);
        else { all = fixed; bytes = sizeof fixed - 1; }
    }
    va_end(again);
    text_write(to, all, bytes);
    if (all != fixed) free(all);
}
void text_print(FILE *to, const char *format, ...) {
    va_list args;
    va_start(args, format);
    text_vprint(to, format, args);
    va_end(args);
}

int terminal_width(int fd) {
    struct winsize size;
    if (!isatty(fd)) return 0;
    if (!ioctl(fd, TIOCGWINSZ, &size) && size.ws_col > 1) return size.ws_col;
    const char *columns = getenv("COLUMNS");
    const long width = columns ? strtol(columns, NULL, 10) : 0;
    return width > 1 && width < 10000 ? (int)width : 80;
}
void text_wrap(FILE *to, int column, int width, const char *margin, const char *text) {
    for (size_t n; *text; text += n) {
        const size_t blanks = strspn(text, " "), word = strcspn(text + blanks, " ");
        const int breaks = blanks && width && column + (int)(blanks + word) > width;
        if (breaks) column = fprintf(to, "\n%s", margin) - 1;
        const size_t from = breaks ? blanks : 0;
        n = blanks + word;
        text_write(to, text + from, n - from);
        column += (int)(n - from);
    }
}
