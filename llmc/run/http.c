/* http.c: see http.h. */
#define _POSIX_C_SOURCE 200809L
#include "http.h"
#include <string.h>
#include <strings.h>

int http_is(HttpText t, const char *string) {
    return t.at && t.bytes == strlen(string) && !memcmp(t.at, string, t.bytes);
}
int http_is_name(HttpText t, const char *name) {
    return t.at && t.bytes == strlen(name) && !strncasecmp(t.at, name, t.bytes);
}

/* ---- requests -------------------------------------------------------------------------------- */

static int is_token(HttpText t) {                   /* of letters, digits and some signs: methods, names of fields */
    for (size_t i = 0; i < t.bytes; i++)
        if (!strchr("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", t.at[i])
            || !t.at[i]) return 0;
    return t.bytes > 0;
}
static int is_between(HttpText t, unsigned char low, unsigned char high, unsigned char also) {
    for (size_t i = 0; i < t.bytes; i++) {
        const unsigned char c = (unsigned char)t.at[i];
        if ((c < low || c > high) && c != also) return 0;
    }
    return 1;
}
/* What stands before the first c, which is removed with it; all of it if there is none. */
static HttpText cut(HttpText *rest, char c) {
    const char *at = memchr(rest->at, c, rest->bytes);
    const HttpText first = { rest->at, at ? (size_t)(at - rest->at) : rest->bytes };
    const size_t used = first.bytes + (at != NULL);
    *rest = (HttpText){ rest->at + used, rest->bytes - used };
    return first;
}
static HttpText trim(HttpText t) {
    while (t.bytes && (*t.at == ' ' || *t.at == '\t')) t.at++, t.bytes--;
    while (t.bytes && (t.at[t.bytes - 1] == ' ' || t.at[t.bytes - 1] == '\t')) t.bytes--;
    return t;
}

int http_is_type(HttpText t, const char *type) { return t.at && http_is_name(trim(cut(&t, ';')), type); }

/* GET /path?query HTTP/1.1 */
static int read_first_line(HttpText line, HttpRequest *r) {
    r->method = cut(&line, ' ');
    HttpText target = cut(&line, ' ');
    if (!is_token(r->method) || !target.bytes || *target.at != '/' || !is_between(target, 0x21, 0x7E, 0x21)) return 400;
    r->path = cut(&target, '?');
    r->query = target;
    if (http_is(line, "HTTP/1.1") || http_is(line, "HTTP/1.0")) return 200;
    return line.bytes == 8 && !memcmp(line.at, "HTTP/", 5) ? 505 : 400;
}

static int read_length(HttpText value, size_t *bytes) {
    *bytes = 0;
    if (!value.bytes || !is_between(value, '0', '9', '0')) return 400;
    for (size_t i = 0; i < value.bytes; i++) {
        *bytes = *bytes * 10 + (size_t)(value.at[i] - '0');
        if (*bytes > HTTP_BODY) return 413;
    }
    return 200;
}

static int read_field(HttpText line, HttpRequest *r, HttpText *length) {
    const struct { const char *name; HttpText *to; } known[] = {
        { "Host", &r->host }, { "Origin", &r->origin }, { "Sec-Fetch-Site", &r->site },
        { "Authorization", &r->authorization }, { "Content-Type", &r->type }, { "Content-Length", length }, };
    if (!memchr(line.at, ':', line.bytes)) return 400;
    const HttpText name = cut(&line, ':'), value = trim(line);
    if (!is_token(name) || !is_between(value, 0x20, 0xFF, '\t') || memchr(value.at, 0x7F, value.bytes)) return 400;
    if (http_is_name(name, "Transfer-Encoding")) return 501;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (http_is_name(name, known[i].name)) {
            if (known[i].to->at) return 400;
            *known[i].to = value;
        }
    return 200;
}
int http_parse(const char *text, size_t bytes, HttpRequest *r) {
    const size_t most = bytes < HTTP_HEAD ? bytes : HTTP_HEAD;
    HttpText rest = { text, most }, length = { NULL, 0 };
    int status = 200, lines = 0;
    *r = (HttpRequest){ .head = 0 };
    while (status == 200) {
        const char *end = memchr(rest.at, '\n', rest.bytes);
        if (!end) return most == HTTP_HEAD ? 431 : 0;
        HttpText line = cut(&rest, '\n');
        if (!line.bytes || line.at[line.bytes - 1] != '\r') return 400;
        line.bytes--;
        if (!line.bytes) break;
        if (lines > HTTP_FIELDS) return 431;
        status = lines++ ? read_field(line, r, &length) : read_first_line(line, r);
    }
    if (status != 200) return status;
    if (!lines || !r->host.at) return 400;
    r->head = (size_t)(rest.at - text);
    return length.at ? read_length(length, &r->body) : 200;
}

/* ---- answers --------------------------------------------------------------------------------- */

const char *http_reason(int status) {
    static const struct { int status; const char *reason; } known[] = {
        { 200, "OK" }, { 400, "Bad Request" }, { 401, "Unauthorized" }, { 403, "Forbidden" }, { 404, "Not Found" },
        { 405, "Method Not Allowed" }, { 408, "Request Timeout" }, { 413, "Content Too Large" },
        { 415, "Unsupported Media Type" }, { 421, "Misdirected Request" }, { 431, "Request Header Fields Too Large" },
        { 501, "Not Implemented" }, { 503, "Service Unavailable" }, { 505, "HTTP Version Not Supported" }, };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) if (known[i].status == status) return known[i].reason;
    return "Error";
}

void http_answer(Text *out, int status, const char *type, long bytes, const char *more) {
    text_add(out, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", status, http_reason(status), type);
    if (bytes >= 0) text_add(out, "Content-Length: %ld\r\n", bytes);
    else text_add_string(out, "Transfer-Encoding: chunked\r\n");
    text_add(out, "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
             "Referrer-Policy: no-referrer\r\n"
             "Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n%s\r\n", more);
}
void http_chunk(Text *out, const char *data, size_t bytes) {
    text_add(out, "%zx\r\n", bytes);
    text_add_bytes(out, data, bytes);
    text_add_string(out, "\r\n");
}
