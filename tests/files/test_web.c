/* test_web.c: requests to infer_moe -m web: heads, bodies of the API, and what answers are made of:
 * stop strings, probabilities. The server and its page: tests/web.py. */
#include "tests/test.h"
#include "llmc/run/api.h"
#include "llmc/run/calls.h"
#include "llmc/run/http.h"
#include <math.h>

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
/* ---- bodies of requests ---------------------------------------------------------------------- */

static struct { int tokens, top_k; float temperature, top_p, min_p, penalty; int64_t seed; const char *stop; }
defaults = { 256, 5, 0.75f, 0.5f, 0.25f, 1.5f, -1, "a\\nb" };
#define AT(name) (size_t)((char *)&defaults.name - (char *)&defaults)
#define ROW(l, k, name) { .letter = l, .kind = k, .field = AT(name) }

#define HI "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"
#define TEXT(more) "{\"prompt\": \"abc\"" more "}"
#define TALK(more) "{" HI more "}"
/* param "": accepted; else the key that is refused. */
static const struct { const char *param, *body; int is_chat, status; } bodies[] = {
    { "", "{}", 0, 0 }, { "", TEXT(""), 0, 0 }, { "", TALK(""), 1, 0 }, { "", "{\"prompt\": [1, 2]}", 0, 0 },
    { "", "{\"prompt\": [[1], \"b\", [2, 3]]}", 0, 0 }, { "", TEXT(", \"foo\": null"), 0, 0 },
    { "", TEXT(", \"user\": \"u\", \"store\": true, \"metadata\": {}, \"service_tier\": \"auto\""), 0, 0 },
    { "", TEXT(", \"logit_bias\": {}, \"suffix\": \"\", \"best_of\": 1"), 0, 0 },
    { "", TALK(", \"response_format\": {\"type\": \"text\"}, \"tools\": [], \"tool_choice\": \"none\""), 1, 0 },
    { "", TEXT(", \"stream\": true, \"stream_options\": {\"include_usage\": true}"), 0, 0 },
    { "", TEXT(", \"model\": \"m\", \"seed\": 9000000000000000, \"n\": 16"), 0, 0 },
    { "", TALK(", \"chat_template_kwargs\": {}, \"logprobs\": true, \"top_logprobs\": 20"), 1, 0 },
    { "", TEXT(", \"truncation\": \"auto\", \"max_tokens\": 65536"), 0, 0 }, { "foo", TEXT(", \"foo\": 1"), 0, 400 },
    { "messages", TEXT(", \"messages\": []"), 0, 400 }, { "prompt", TALK(", \"prompt\": \"a\""), 1, 400 },
    { "max_completion_tokens", TEXT(", \"max_completion_tokens\": 1"), 0, 400 },
    { "echo", TALK(", \"echo\": true"), 1, 400 }, { "model", TEXT(", \"model\": \"gpt-4\""), 0, 404 },
    { "model", TEXT(", \"model\": 4"), 0, 404 }, { "temperature", TEXT(", \"temperature\": -0.1"), 0, 400 },
    { "temperature", TEXT(", \"temperature\": \"1\""), 0, 400 }, { "top_p", TEXT(", \"top_p\": 1.01"), 0, 400 },
    { "top_k", TEXT(", \"top_k\": -2"), 0, 400 },
    { "repetition_penalty", TEXT(", \"repetition_penalty\": 0"), 0, 400 },
    { "presence_penalty", TEXT(", \"presence_penalty\": 2.5"), 0, 400 },
    { "frequency_penalty", TEXT(", \"frequency_penalty\": -2.5"), 0, 400 }, { "n", TEXT(", \"n\": 0"), 0, 400 },
    { "n", TEXT(", \"n\": 1.5"), 0, 400 }, { "best_of", TEXT(", \"best_of\": 2"), 0, 400 },
    { "max_tokens", TEXT(", \"max_tokens\": 65537"), 0, 400 }, { "seed", TEXT(", \"seed\": \"a\""), 0, 400 },
    { "stream", TEXT(", \"stream\": 1"), 0, 400 }, { "stream_options", TEXT(", \"stream_options\": {}"), 0, 400 },
    { "stream_options", TEXT(", \"stream\": true, \"stream_options\": {\"foo\": 1}"), 0, 400 },
    { "stop", TEXT(", \"stop\": \"\""), 0, 400 }, { "stop", TEXT(", \"stop\": [\"a\", 1]"), 0, 400 },
    { "stop", TEXT(", \"stop\": \"a\\u0000b\""), 0, 400 },
    { "stop", TEXT(", \"stop\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"), 0, 400 },
    { "logprobs", TEXT(", \"logprobs\": 21"), 0, 400 }, { "logprobs", TALK(", \"logprobs\": 1"), 1, 400 },
    { "top_logprobs", TALK(", \"top_logprobs\": 2"), 1, 400 },
    { "logit_bias", TEXT(", \"logit_bias\": {\"1\": 1}"), 0, 400 }, { "suffix", TEXT(", \"suffix\": \"a\""), 0, 400 },
    { "tools", TALK(", \"tools\": [{}]"), 1, 400 }, { "tool_choice", TALK(", \"tool_choice\": \"required\""), 1, 400 },
    { "functions", TALK(", \"functions\": [{}]"), 1, 400 },
    { "response_format", TALK(", \"response_format\": {\"type\": \"json_object\"}"), 1, 400 },
    { "modalities", TALK(", \"modalities\": [\"text\", \"audio\"]"), 1, 400 },
    { "reasoning_effort", TALK(", \"reasoning_effort\": \"low\""), 1, 400 },
    { "truncation", TEXT(", \"truncation\": 1"), 0, 400 },
    { "chat_template_kwargs", TALK(", \"chat_template_kwargs\": []"), 1, 400 },
    { "experts", TEXT(", \"experts\": 1"), 0, 400 }, { "prompt", "{\"prompt\": []}", 0, 400 },
    { "prompt", "{\"prompt\": 3}", 0, 400 }, { "prompt", "{\"prompt\": [256]}", 0, 400 },
    { "prompt", "{\"prompt\": [-1]}", 0, 400 }, { "prompt", "{\"prompt\": [1, \"a\"]}", 0, 400 },
    { "prompt", "{\"prompt\": [[]]}", 0, 400 }, { "prompt", "{\"prompt\": [\"a\", 1]}", 0, 400 },
    { "prompt", "{\"prompt\": [\"a\", \"b\"], \"n\": 9}", 0, 400 },
    { "prompt", "{\"prompt\": \"0123456789012345678901234567890123456789012345678901234567890123\"}", 0, 400 },
    { "messages", "{}", 1, 400 }, { "messages", "{\"messages\": []}", 1, 400 },
    { "messages", "{\"messages\": [3]}", 1, 400 },
    { "messages", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"foo\": 1}]}", 1, 400 },
    { "max_tokens", TEXT(", \"truncation\": \"auto\", \"max_tokens\": 65536, \"logprobs\": 9"), 0, 400 },
};
static Api api_of_bytes(Tokenizer *t, const Chat *chat) {
    static const Option rows[] = { ROW("n", OPTION_INT, tokens), ROW("t", OPTION_FLOAT, temperature),
        ROW("p", OPTION_FLOAT, top_p), ROW("mp", OPTION_FLOAT, min_p), ROW("k", OPTION_INT, top_k),
        ROW("rp", OPTION_FLOAT, penalty), ROW("s", OPTION_LONG, seed), ROW("st", OPTION_TEXT, stop) };
    static char given[COUNT(rows)];
    return (Api){ .name = "m", .options = { rows, COUNT(rows), &defaults, given, NULL }, .tokenizer = t, .chat = chat,
                  .vocab = 256, .capacity = 64, .width = 4 };
}
static void test_requests(void) {
    Tokenizer *t = tokenizer_bytes();
    Chat chat;
    Error none;
    check(chat_open(&chat, "chatml", NULL, &none), "api: a template");
    const Api a = api_of_bytes(t, &chat);
    for (size_t i = 0; i < COUNT(bodies); i++) {
        ApiError e = { .status = 0 };
        ApiRequest q;
        Text said = { 0 };
        const int ok = api_read(&a, &q, bodies[i].is_chat, bodies[i].body, strlen(bodies[i].body), &e);
        check(ok == !*bodies[i].param && e.status == bodies[i].status && !strcmp(e.param, bodies[i].param)
              && (ok || *e.e.text), "api: %s: %d, key %s: %s", bodies[i].body, e.status, e.param, e.e.text);
        if (!ok) {
            api_error(&e, &said);
            Json *json = json_parse(said.at, said.length, &none);
            const JsonValue *error = json_get(json ? json_root(json) : NULL, "error");
            check(!strcmp(json_string(json_get(error, "param"), ""), bodies[i].param)
                  && !strcmp(json_string(json_get(error, "message"), ""), e.e.text), "api: its error: %s", said.at);
            json_free(json);
        }
        free(said.at);
        api_free_request(&q);
    }
    chat_close(&chat);
    tokenizer_free(t);
}
static void test_values(void) {
    Tokenizer *t = tokenizer_bytes();
    const Api a = api_of_bytes(t, NULL);
    ApiError e;
    ApiRequest q;
    check(api_read(&a, &q, 0, "{}", 2, &e) && q.tokens == 256 && q.temperature == 0.75f && q.top_p == 0.5f
          && q.min_p == 0.25f && q.top_k == 5 && q.penalty == 1.5f && q.seed == -1 && q.n == 1 && !q.logprobs
          && !q.stream && !q.limited && !strcmp(q.stops[0], "a\nb") && !q.stops[1] && q.prompts == 1
          && q.prompt[0].count == 1, "api: what is not given is of the command line");
    api_free_request(&q);
    static const char all[] = "{\"prompt\": [\"ab\", [7]], \"max_tokens\": 0, \"temperature\": 0, \"top_p\": 1, "
        "\"min_p\": 0, \"top_k\": -1, \"repetition_penalty\": 2, \"presence_penalty\": -1, \"frequency_penalty\": 0.5, "
        "\"seed\": 7, \"n\": 2, "
        "\"stop\": [\"x\", \"x\", \"y\"], \"logprobs\": 0, \"echo\": true, \"experts\": true, \"stream\": true}";
    check(api_read(&a, &q, 0, all, sizeof all - 1, &e) && q.tokens == 0 && q.limited && q.temperature == 0
          && q.top_p == 1 && q.min_p == 0 && q.top_k == 0 && q.penalty == 2 && q.presence == -1
          && q.frequency == 0.5f && q.seed == 7 && q.n == 2 && q.logprobs && q.likely == 0 && q.echo && q.experts
          && q.stream && !q.usage,
          "api: numbers and switches");
    check(!strcmp(q.stops[0], "x") && !strcmp(q.stops[1], "y") && !q.stops[2], "api: stop strings, each once");
    check(q.prompts == 2 && q.prompt[0].count == 2 && q.prompt[0].ids[1] == 'b' && !strcmp(q.prompt[0].text, "ab")
          && q.prompt[1].count == 1 && q.prompt[1].ids[0] == 7 && !q.prompt[1].text, "api: prompts");
    api_free_request(&q);
    char text[200];
    snprintf(text, sizeof text, "{\"prompt\": \"%070d\", \"truncation\": \"auto\"}", 1);
    check(api_read(&a, &q, 0, text, strlen(text), &e) && q.prompt[0].count == 64 && q.dropped == 6
          && q.prompt[0].ids[63] == '1', "api: of a prompt that is too long the beginning goes");
    api_free_request(&q);
    tokenizer_free(t);
}
static void test_stops(void) {
    Tokenizer *t = tokenizer_bytes();
    char **stops = stops_option(NULL, "[\"abc\", \"bd\", \"\", \"abc\"]"),
        **one = stops_option(NULL, "[x\\n\\\\");
    static const struct { const char *drawn, *shown, *ends; } cases[] = {      /* shown before the end; at the end */
        { "xab", "x", "xab" }, { "xabc", "x", "x" }, { "xabd", "x", "xa" }, { "xb", "x", "xb" },
        { "abab", "ab", "abab" },
        { "zz", "zz", "zz" }, { "bd", "", "" } };
    check(!strcmp(stops[0], "abc") && !strcmp(stops[1], "bd") && !stops[2], "stop strings: a list, each once");
    check(!strcmp(one[0], "[x\n\\") && !one[1], "stop strings: one");
    for (size_t i = 0; i < COUNT(cases); i++) {
        const TextStyle style = { .tokenizer = t, .stops = stops };
        Stream o;
        stream_open(&o, &style);
        for (const char *c = cases[i].drawn; *c; c++) stream_generated(&o, (unsigned char)*c, -1);
        check(stream_ready(&o, 0) == strlen(cases[i].shown) && stream_ready(&o, 1) == strlen(cases[i].ends)
              && o.ended == (strlen(cases[i].ends) < strlen(cases[i].drawn)), "stop strings: %s: %zu bytes are "
              "ready, %zu at the end", cases[i].drawn, stream_ready(&o, 0), stream_ready(&o, 1));
        stream_close(&o);
    }
    stops_free(stops), stops_free(one), tokenizer_free(t);
}
static void test_odds(void) {
    const Device *dev = device_find("cpu-f32");
    const double logits[] = { 1, 3, -2, 3, 0, 99 };
    Decoder d = { .model = { .dev = dev, .config = { .vocab = 6 } }, .logits = dev->alloc(sizeof logits) };
    Odds o = { .vocab = 0 };
    Odd best[3];
    double sum = 0;
    dev->from_double(d.logits, logits, 6);
    odds_read(&o, &d, 5);
    for (int i = 0; i < 5; i++) sum += exp(odds_of(&o, i));
    check_error(fabs(sum - 1), 1e-12, "odds: probabilities sum to 1");
    check_error(fabs(odds_of(&o, 1) - odds_of(&o, 0) - 2), 1e-12, "odds: differences are those of logits");
    check(odds_best(&o, best, 3) == 3 && best[0].id == 1 && best[1].id == 3 && best[2].id == 0
          && odds_best(&o, best, 0) == 0 && odds_best(&o, best, 3) == 3, "odds: the likeliest, best first");
    dev->release(d.logits);
    odds_free(&o);
}
#define CALL(inner) "<tool_call>\n" inner "\n</tool_call>"
#define ADD "{\"name\": \"add\", \"arguments\": {\"a\": [1, 2.5], \"b\": \"\\u00e9\"}}"
static void test_calls(void) {
    static const struct { const char *text, *rest; int calls; } cases[] = {
        { "Well. " CALL(ADD) "\n", "Well.", 1 }, { CALL(ADD) "\n" CALL("{\"arguments\": {}, \"name\": \"f\"}"), "", 2 },
        { "none", "", 0 }, { CALL("add(1)"), "", 0 }, { "<tool_call>" ADD, "", 0 }, { CALL(ADD) CALL("{}"), "", 0 },
        { CALL("{\"name\": \"f\", \"arguments\": \"x\"}"), "", 0 }, { CALL("{\"name\": 1, \"arguments\": {}}"), "", 0 },
        { CALL("{\"name\": \"f\", \"arguments\": {}, \"more\": 1}"), "", 0 }, { "", "", 0 } };
    check(calls_known("<tool_call>{\\\"arguments\\\": <args-json-object>}") && !calls_known("<tool_call>x")
          && !calls_known(NULL),
          "calls: templates that ask for the form");
    for (size_t i = 0; i < COUNT(cases); i++) {
        Text calls = { 0 }, rest = { 0 };
        Error e;
        const int n = calls_read(cases[i].text, strlen(cases[i].text), "x", i == 1, &calls, &rest);
        check(n == cases[i].calls && rest.length == strlen(cases[i].rest) && (n || !calls.length)
              && !memcmp(rest.at ? rest.at : "", cases[i].rest, rest.length), "calls: %s: %d", cases[i].text, n);
        Json *json = n ? json_parse(calls.at, calls.length, &e) : NULL;
        const JsonValue *first = json ? json_first(json_root(json)) : NULL, *function = json_get(first, "function");
        Json *inner = function ? json_parse(json_string(json_get(function, "arguments"), ""),
                                            json_get(function, "arguments")->length, &e) : NULL;
        check(!n || (json && json_root(json)->length == (size_t)n
                     && !strcmp(json_string(json_get(function, "name"), ""), "add")
                     && !strcmp(json_string(json_get(first, "id"), ""), "call_x_0") && inner
                     && json_double(json_first(json_get(json_root(inner), "a"))->next, 0) == 2.5
                     && !strcmp(json_string(json_get(json_root(inner), "b"), ""), "\xC3\xA9")
                     && (json_get(first, "index") != NULL) == (i == 1)), "calls: in OpenAI's form: %s", calls.at);
        json_free(inner), json_free(json), free(calls.at), free(rest.at);
    }
}
void test_web(void) {
    PART(test_heads()); PART(test_limits()); PART(test_answer());
    PART(test_requests()); PART(test_values()); PART(test_stops()); PART(test_odds());
    PART(test_calls());
}
