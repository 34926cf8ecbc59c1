/* test_web.c: heads of requests to infer_moe -m web. The server and its page: tests/web.py. */
#include "tests/test.h"
#include "llmc/run/http.h"

#define HOST "Host: localhost:8080\r\n"
static const struct { const char *what; int status; const char *text; } heads[] = {
    { "a request", 200, "GET /a?b=c HTTP/1.1\r\n" HOST "\r\n" }, { "HTTP/1.0", 200, "GET / HTTP/1.0\r\n" HOST "\r\n" },
    { "an empty value", 200, "GET / HTTP/1.1\r\n" HOST "Origin:\r\n\r\n" },
    { "no end yet", 0, "GET / HTTP/1.1\r\n" HOST }, { "nothing yet", 0, "" },
    { "no host", 400, "GET / HTTP/1.1\r\n\r\n" }, { "two hosts", 400, "GET / HTTP/1.1\r\n" HOST HOST "\r\n" },
    { "no line at all", 400, "\r\n" HOST "\r\n" }, { "no path", 400, "GET HTTP/1.1\r\n" HOST "\r\n" },
    { "a target that is no path", 400, "GET http://a/ HTTP/1.1\r\n" HOST "\r\n" },
    { "two spaces", 400, "GET /  HTTP/1.1\r\n" HOST "\r\n" },
    { "a method with a sign", 400, "G(T / HTTP/1.1\r\n" HOST "\r\n" },
    { "a path with a byte above ASCII", 400, "GET /\xC3\xA4 HTTP/1.1\r\n" HOST "\r\n" },
    { "a control character in the path", 400, "GET /\x01 HTTP/1.1\r\n" HOST "\r\n" },
    { "another version", 505, "GET / HTTP/3.0\r\n" HOST "\r\n" },
    { "a word for the version", 400, "GET / HTTPS\r\n" HOST "\r\n" },
    { "a bare line feed", 400, "GET / HTTP/1.1\r\n" HOST "\n" },
    { "a carriage return alone", 400, "GET / HTTP/1.1\r\n" HOST "X: a\rb\r\n\r\n" },
    { "a folded field", 400, "GET / HTTP/1.1\r\n" HOST " b\r\n\r\n" },
    { "a space before the colon", 400, "GET / HTTP/1.1\r\n" HOST "X : a\r\n\r\n" },
    { "a field without a name", 400, "GET / HTTP/1.1\r\n" HOST ": a\r\n\r\n" },
    { "a delete in a value", 400, "GET / HTTP/1.1\r\n" HOST "X: \x7F\r\n\r\n" },
    { "chunks", 501, "POST / HTTP/1.1\r\n" HOST "transfer-encoding: chunked\r\n\r\n" },
    { "the longest body", 200, "POST / HTTP/1.1\r\n" HOST "content-length: 262144\r\n\r\n" },
    { "a longer one", 413, "POST / HTTP/1.1\r\n" HOST "Content-Length: 262145\r\n\r\n" },
    { "one beyond all numbers", 413, "POST / HTTP/1.1\r\n" HOST "Content-Length: 18446744073709551617\r\n\r\n" },
    { "a sign", 400, "POST / HTTP/1.1\r\n" HOST "Content-Length: +1\r\n\r\n" },
    { "no digits", 400, "POST / HTTP/1.1\r\n" HOST "Content-Length: \r\n\r\n" },
    { "two lengths", 400, "POST / HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n" },
};

static void test_heads(void) {
    HttpRequest r;
    for (size_t i = 0; i < COUNT(heads); i++) {
        const size_t n = strlen(heads[i].text);
        char *own = mem_alloc(n ? n : 1); /* without a NUL, so that the sanitizer sees a byte too far */
        memcpy(own, heads[i].text, n);
        const int status = http_parse(own, n, &r);
        check(status == heads[i].status, "http: %s: %d, expected %d", heads[i].what, status, heads[i].status);
        check(!status || strcmp(http_reason(status), "Error"), "http: %d has a reason", status);
        free(own);
    }
    static const char text[] = "POST /a?b=c HTTP/1.1\r\nhOST:\t localhost:8080 \r\nOrigin: o\r\nSec-Fetch-Site: "
        "s\r\nAuthorization: Bearer t\r\n" "Content-Type: Application/JSON\r\nContent-Length: 7\r\n\r\n{\"a\": 1";
    check(http_parse(text, sizeof text - 1, &r) == 200 && r.body == 7 && text[r.head] == '{', "http: head and body");
    check(http_is(r.method, "POST") && http_is(r.path, "/a")
          && http_is(r.query, "b=c") && http_is(r.host, "localhost:8080") && http_is(r.origin, "o")
          && http_is(r.site, "s") && http_is(r.authorization, "Bearer t") && http_is_name(r.type, "application/json")
          && !http_is(r.type, "application/json"), "http: parts");
}
static void test_limits(void) {
    HttpRequest r;
    Text t = { 0 };
    text_add_string(&t, "GET / HTTP/1.1\r\n" HOST);
    for (int i = 0; i < HTTP_FIELDS - 1; i++) text_add_string(&t, "X: a\r\n");
    const size_t most = t.length;
    text_add_string(&t, "\r\n");
    check(http_parse(t.at, t.length, &r) == 200, "http: %d fields", HTTP_FIELDS);
    t.length = most;
    text_add_string(&t, "X: a\r\n\r\n");
    check(http_parse(t.at, t.length, &r) == 431, "http: a field more");
    t.length = 0;
    text_add_string(&t, "GET / HTTP/1.1\r\n" HOST "X: ");
    while (t.length < HTTP_HEAD - 4) text_add_string(&t, "a");
    check(http_parse(t.at, t.length, &r) == 0, "http: a head that may still end");
    text_add_string(&t, "\r\n\r\n");
    check(http_parse(t.at, t.length, &r) == 200 && r.head == HTTP_HEAD, "http: the longest head");
    t.at[HTTP_HEAD - 4] = 'a';
    check(http_parse(t.at, t.length, &r) == 400, "http: which does not end");
    t.at[HTTP_HEAD - 3] = t.at[HTTP_HEAD - 2] = t.at[HTTP_HEAD - 1] = 'a';
    check(http_parse(t.at, t.length, &r) == 431, "http: a longer one");
    free(t.at);
}
static void test_answer(void) {
    Text t = { 0 };
    http_answer(&t, 404, "text/plain", 3, "Allow: GET\r\n");
    check(strstr(t.at, "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: "
                 "3\r\nConnection: close\r\n") == t.at
          && !strcmp(t.at + t.length - 16, "\r\nAllow: GET\r\n\r\n"), "http: an answer\n%s", t.at);
    t.length = 0;
    http_answer(&t, 200, "text/plain", -1, "");
    check(strstr(t.at, "Transfer-Encoding: chunked\r\n") && !strstr(t.at, "Content-Length"), "http: in chunks");
    t.length = 0;
    http_chunk(&t, "0123456789abcdefg", 17);
    http_chunk(&t, "", 0);
    check(!strcmp(t.at, "11\r\n0123456789abcdefg\r\n0\r\n\r\n"), "http: chunks");
    free(t.at);
}
void test_web(void) {
    PART(test_heads()); PART(test_limits()); PART(test_answer());
}
