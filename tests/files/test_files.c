/* test_files.c: the readers of files from elsewhere: JSON, safetensors, tokenizer.json. Valid files
 * give the right values, invalid ones an error message. Damaged ones by the million: tests/fuzz. */
#define _POSIX_C_SOURCE 200809L
#include "tests/test.h"
#include "llmc/base/json.h"
#include "llmc/base/random.h"
#include "llmc/files/foreign.h"
#include "llmc/files/hf.h"
#include "llmc/files/safetensors.h"
#include "kernels/kernels.h"
#include "llmc/data/tokenizer.h"
#include <locale.h>
#include <math.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDENS "tests/reference/tokenizers"

static size_t below(size_t n) { return (size_t)(uniform() * (double)n); }

/* ---- JSON ------------------------------------------------------------------------------------ */

static Json *parse(const char *text, Error *e) { return json_parse(text, strlen(text), e); }
static void test_json_values(void) {
    static const char text[] = " {\"a\": [1, -2.5, 1e3, true, null, \"x\\u00e9\\ud83d\\ude00\\n\\u0000y\"],\n"
        "\"max\": 9223372036854775807, \"min\": -9223372036854775808, \"more\": 9223372036854775808, \"zero\": -0,\n"
        "\"o\": {\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"\":10}, "
        "\"e\": {}, \"l\": []} \n";
    Error e = { 0 };
    Json *json = parse(text, &e);
    check(json != NULL, "json: a document with values of every kind parses %s", e.text);
    if (!json) return;
    const JsonValue *root = json_root(json), *v = json_first(json_get(root, "a")), *o = json_get(root, "o");
    check(json_get(root, "a")->length == 6 && json_int(v, 0) == 1, "json: array and integer");
    v = v->next; check(json_double(v, 0) == -2.5 && json_int(v, 7) == 7, "json: a double is not an integer");
    v = v->next; check(json_double(v, 0) == 1000 && v->type == JSON_DOUBLE, "json: exponent");
    v = v->next; check(json_bool(v, 0) == 1 && json_is(v->next, JSON_NULL), "json: true and null");
    v = v->next->next;
    check(v->length == 10 && !memcmp(v->is.string, "x\xC3\xA9\xF0\x9F\x98\x80\n\0y", 10) && !v->next, "json: escapes");
    check(json_string(v, NULL) == NULL, "json: a string with a NUL inside is not a C string");
    check(json_int(json_get(root, "max"), 0) == INT64_MAX && json_int(json_get(root, "min"), 0) == INT64_MIN,
          "json: 64-bit integers are exact");
    check(json_int(json_get(root, "more"), -1) == -1 && json_double(json_get(root, "more"), 0) == 0x1p63,
          "json: an integer beyond 64 bits becomes a double");
    check(signbit(json_double(json_get(root, "zero"), 1)) != 0, "json: negative zero");
    int found = 1, n = 0;
    for (v = json_first(o); v; v = v->next) { n++; found &= json_get(o, v->key) == v && json_int(v, 0) == n; }
    check(found && n == 10 && !json_get(o, "j") && !json_get(o, "aa"), "json: lookup in a large object, their order");
    check(!json_first(json_get(root, "e")) && !json_first(json_get(root, "l")), "json: empty containers");
    check(json_int(json_get(json_get(json_get(root, "no"), "no"), "no"), 5) == 5, "json: lookups in nothing chain");
    json_free(json);
}

/* Data files are read as Python reads JSON; other files are not. */
static void test_json_python(void) {
    static const char *const texts[] = { "{\"a\": NaN}", "[Infinity, -Infinity]", "1e999", "NaN" },
        *const wrong[] = { "nan", "{\"a\": NaNa}", "-NaN", "+Infinity", "\"\\ud83d\"", "\"\\ude00\"", "inf" };
    Error e = { 0 };
    for (size_t i = 0; i < COUNT(texts); i++) {
        Json *json = json_parse_record(texts[i], strlen(texts[i]), &e);
        const JsonValue *v = json ? json_root(json) : NULL;
        if (json_first(v)) v = json_first(v);
        check(json_is(v, JSON_DOUBLE) && !isfinite(json_double(v, 0)), "json: a record may be %s", texts[i]);
        json_free(json);
        json = json_parse(texts[i], strlen(texts[i]), &e);
        check(!json, "json: a document may not be %s", texts[i]);
        json_free(json);
    }
    for (size_t i = 0; i < COUNT(wrong); i++) {
        Json *json = json_parse_record(wrong[i], strlen(wrong[i]), &e);
        check(!json, "json: a record may not be %s", wrong[i]);
        json_free(json);
    }
}
static void test_json_refused(void) {
    static const char *const wrong[] = {
        "", " ", "{", "[", "[1", "[1,", "[1,]", "[,1]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{a:1}",
        "{\"a\":1 \"b\":2}", "[1 2]", "[1}", "{\"a\":1]",
        "1 2", "{}x", "{}}", "[]]", "nul", "tru", "True", "NaN", "Infinity", "-", "+1", "01", "-01", "1.",
        ".5", "1e", "1e+", "1.e5", "0x10", "1e999", "-1e999",
        "\"", "\"abc", "\"\\\"", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\ud800x\"",
        "\"\\ud800\\u0041\"", "\"\\udc00\"", "\"a\nb\"", "\"\t\"",
        "\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xE2\x82\"",
        "\xEF\xBB\xBF{}", "{\"a\":1,\"a\":1}", "{\"a\":1,\"\\u0061\":2}",
        "{\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,\"8\":0,\"9\":0,\"1\":0}", "'a'", "[1]//",
        "{\"a\":{\"b\":1,\"b\":2}}",
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        Error e = { 0 };
        Json *json = parse(wrong[i], &e);
        check(!json && e.text[0], "json: refused with a message: %s", wrong[i]);
        json_free(json);
    }
    Error e = { 0 };
    check(!json_parse("1\0", 2, &e) && !json_parse("{\0}", 3, &e), "json: NUL bytes are refused");

    char deep[2 * 70 + 1];
    for (int depth = JSON_DEPTH; depth <= JSON_DEPTH + 1; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        Json *json = json_parse(deep, 2 * (size_t)depth, &e);
        check((json != NULL) == (depth <= JSON_DEPTH), "json: %d levels", depth);
        json_free(json);
    }
    size_t bytes = 4 << 20;
    char *hostile = mem_alloc(bytes);
    memset(hostile, '[', bytes);
    check(!json_parse(hostile, bytes, &e), "json: millions of open brackets are refused");
    free(hostile);
}

static void test_json_large(void) {
    Text t = { 0 };
    enum { N = 150000 };
    text_add(&t, "{");
    for (int i = 0; i < N; i++) text_add(&t, "%s\"token number %d\":%d", i ? "," : "", i, i);
    text_add(&t, "}");
    double start = cpu_seconds();
    Error e;
    Json *json = json_parse(t.at, t.length, &e);
    int ok = json != NULL, n = 0;
    for (const JsonValue *v = ok ? json_first(json_root(json)) : NULL; v; v = v->next)
        ok &= json_int(json_get(json_root(json), v->key), -1) == n++;
    double seconds = cpu_seconds() - start;
    check(ok && n == N, "json: every one of %d keys is found", N);
    check_error(seconds, 3, "json: seconds for %d keys and as many lookups", N);
    json_free(json), free(t.at);
}

static void test_text(void) {
    static const double numbers[] = { 0, 1, -1, 0.1, 1.0 / 3, 1e300, 5e-324, 1.7976931348623157e308,
                                      123456789012345680.0, 3e-4 };
    static const char *const locales[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "da_DK.UTF-8" };
    static const char odd[] = "quote \" backslash \\ newline \n tab \t nul \0 \x01 \x7F \xC3\xA9 \xF0\x9F\x98\x80";
    int comma = 0;
    for (size_t i = 0; i < COUNT(locales) && !comma; i++) comma = setlocale(LC_NUMERIC, locales[i]) != NULL;
    if (!comma) skip("json: no locale with a decimal comma is installed");
    Text t = { 0 };
    Error e;
    text_add(&t, "[%.1f", 0.5);
    for (size_t i = 0; i < COUNT(numbers); i++) { text_add(&t, ","); text_add_double(&t, numbers[i]); }
    text_add(&t, ",");
    text_add_double(&t, (double)NAN);
    text_add(&t, ",");
    text_add_json(&t, odd, sizeof odd - 1);
    text_add(&t, ",");
    text_add_json(&t, "bad \xFF\xC3", 6);
    text_add(&t, "]");
    Json *json = json_parse(t.at, t.length, &e);
    check(json != NULL, "text: what it writes can be parsed");
    const JsonValue *v = json ? json_first(json_root(json)) : NULL;
    check(json_double(v, 0) == 0.5, "text: a decimal point in every locale");
    for (size_t i = 0; i < COUNT(numbers) && v; i++)
        check(json_double(v = v->next, -7) == numbers[i], "text: %g reads back exactly", numbers[i]);
    check(v && json_is(v = v->next, JSON_NULL), "text: NaN is written as null");
    check(v && (v = v->next)->length == sizeof odd - 1 && !memcmp(v->is.string, odd, sizeof odd - 1),
          "text: escaped string reads back");
    check(v && !strcmp(json_string(v = v->next, ""), "bad \xEF\xBF\xBD\xEF\xBF\xBD"), "text: bad UTF-8 becomes U+FFFD");
    json_free(json), free(t.at);
    setlocale(LC_NUMERIC, "C");
}

static void test_utf8(void) {
    static const char text[] = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";           /* 1, 2, 3 and 4 bytes */
    static const size_t complete[] = { 0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11 };
    for (size_t n = 0; n < COUNT(complete); n++)
        check(utf8_complete(text, n) == complete[n], "utf8: the first %zu bytes of a stream", n);
    check(utf8_complete("a\xFF", 2) == 2 && utf8_complete("\x80\x80", 2) == 2
          && utf8_complete("\xC0", 1) == 1, "utf8: malformed bytes count as complete");
    check(utf8_complete("\xED\xA0", 2) == 2 && utf8_complete("\xF4\x8F", 2) == 0,
          "utf8: so does the start of what can never be a character");
    int ok = 1;
    for (uint32_t code = 0; code < 0x110000; code += code < 0x1000 ? 1 : 13) {
        char bytes[4];
        uint32_t back = 0;
        size_t n = utf8_encode(code, bytes), m = utf8_decode(bytes, n, &back);
        ok &= code >= 0xD800 && code < 0xE000 ? m == 0 : m == n && back == code;
    }
    check(ok, "utf8: every code but the surrogates reads back");
}

/* ---- safetensors ----------------------------------------------------------------------------- */

static void write_file(const char *path, const void *data, size_t bytes) {
    Error e;
    if (!file_write(path, data, bytes, &e)) fail(EXIT_DISK, "%s", e.text);
}
/* A file of a header and `data` bytes of data. */
static void write_tensors(const char *path, uint64_t length, const char *header, size_t bytes, size_t data) {
    Text t = { 0 };
    for (int i = 0; i < 8; i++) { char c = (char)(length >> 8 * i); text_add_bytes(&t, &c, 1); }
    text_add_bytes(&t, header, bytes);
    for (size_t i = 0; i < data; i++) text_add_bytes(&t, "\1", 1);
    write_file(path, t.at, t.length);
    free(t.at);
}

/* Numbers as other types hold them: the nearest, of two the even one. */
static void test_conversion(void) {
    static const struct { const char *type; double x; unsigned bits; } good[] = {
        { "F16", 0, 0 }, { "F16", -0.0, 0x8000 }, { "F16", 1, 0x3c00 }, { "F16", -2, 0xc000 }, { "F16", 65504, 0x7bff },
        { "F16", 65519, 0x7bff }, { "F16", 0x1p-14, 0x0400 }, { "F16", 0x1p-24, 1 }, { "F16", 0x1p-25, 0 }, {
        "F16", 0x1.8p-24, 2 }, { "F16", 0x1.01p-25, 1 }, { "F16", 0x1.ffep-15, 0x0400 }, { "F16", 1 + 0x1p-11, 0x3c00 },
        { "F16", 1 + 0x3p-11, 0x3c02 }, { "F16", 2 - 0x1p-12, 0x4000 }, { "F16", 1e-300, 0 }, { "BF16", 0, 0 },
        { "BF16", 1, 0x3f80 }, { "BF16", -1.5, 0xbfc0 }, { "BF16", 1 + 0x1p-8, 0x3f80 }, { "BF16", 1 + 0x3p-8, 0x3f82 },
        { "BF16", 1 + 0x1.1p-8, 0x3f81 }, { "BF16", 3e38, 0x7f62 },
    };
    static const struct { const char *type; double x; } bad[] = { { "F16", 65520 }, { "F16", -1e30 },
                                                                  { "BF16", 3.4e38 }, { "F32", 1e39 }, { "I32", 1 } };
    static const uint64_t shape[1] = { 1 };
    char *path = scratch_path("converted.safetensors");
    for (size_t i = 0; i < COUNT(good) + COUNT(bad); i++) {
        const size_t k = i - COUNT(good);
        const int is_good = i < COUNT(good);
        const char *type = is_good ? good[i].type : bad[k].type;
        const double x = is_good ? good[i].x : bad[k].x;
        const FileTensor t = { .name = "t", .dtype = type, .rank = 1, .shape = shape };
        Error e = { 0 };
        uint16_t bits = 0;
        SafetensorsWriter *w = safetensors_create(path, &t, 1, NULL, 0, &e);
        const int ok = safetensors_append_double(w, "t", type, &x, 1, &e);
        if (!is_good) { check(!ok && *e.text, "%g is no %s: %s", x, type, e.text); safetensors_abandon(w); continue; }
        check(ok && safetensors_finish(w, &e, NULL, NULL), "%g as %s %s", x, type, e.text);
        Safetensors *s = safetensors_open(path, &e);
        check(s && safetensors_read(s, safetensors_at(s, 0), 0, &bits, 2, &e) && bits == good[i].bits,
              "%a as %s is %04x, not %04x", x, type, good[i].bits, bits);
        safetensors_close(s);
    }
    free(path);
}

static void test_safetensors_round_trip(void) {
    static const uint64_t shapes[] = { 3, 5, 2, 0, 7, 4 };
    const FileTensor list[] = {
        { .name = "z.f32", .dtype = "F32", .rank = 2, .shape = shapes },
        { .name = "b.bf16", .dtype = "BF16", .rank = 1, .shape = shapes + 1 },
        { .name = "empty", .dtype = "F64", .rank = 2, .shape = shapes + 2 },
        { .name = "a \"quoted\" \xC3\xA9", .dtype = "F64", .rank = 0, .shape = NULL },
        { .name = "h.f16", .dtype = "F16", .rank = 1, .shape = shapes + 4 },
        { .name = "bytes", .dtype = "U8", .rank = 1, .shape = shapes + 5 },
    };
    static const FileNote notes[] = { { "format", "pt" }, { "odd\n", "\"x\"" } };
    static const uint16_t bf16[5] = { 0x3F80, 0xC000, 0x7F80, 0x0001, 0x8000 };
    static const uint16_t f16[7] = { 0x3C00, 0xC000, 0x7BFF, 0x0001, 0x03FF, 0xFC00, 0x3555 };
    static const double as_double[] = { 1, -2, (double)INFINITY, 0x1p-133, -0.0, 1, -2, 65504, 0x1p-24,
                                        1023 * 0x1p-24, -(double)INFINITY, 0x1.554p-2 };
    float f32[15];
    double f64 = 0.1, got[15];
    unsigned char data[60 + 10 + 8 + 14 + 4], raw[60];
    for (int i = 0; i < 15; i++) f32[i] = (float)normal();
    memcpy(data, f32, 60); memcpy(data + 60, bf16, 10); memcpy(data + 70, &f64, 8);
    memcpy(data + 78, f16, 14); memcpy(data + 92, "\1\2\3\4", 4);

    char *path = scratch_path("round.safetensors");
    Error e = { 0 };
    uint64_t bytes = 0;
    uint32_t crc = 0;
    SafetensorsWriter *w = safetensors_create(path, list, COUNT(list), notes, COUNT(notes), &e);
    check(w != NULL, "safetensors: create %s", e.text);
    if (!w) return;
    int ok = 1;
    for (size_t at = 0, n; at < sizeof data; at += n) {
        n = 1 + below(sizeof data - at);
        ok &= safetensors_append(w, data + at, n, &e);
    }
    check(ok && safetensors_finish(w, &e, &bytes, &crc), "safetensors: append in odd pieces and finish %s", e.text);
    size_t size = 0;
    char *file = file_read(path, &size, &e);
    check(file && size == bytes && crc == crc32c(0, file, size), "safetensors: finish returns size and checksum");
    check(crc32c(0, "123456789", 9) == 0xe3069283 && crc32c(crc32c(0, "123", 3), "456789", 6) == 0xe3069283,
          "CRC-32C of its usual example");
    for (size_t n = 0; n <= 9; n++)
        check(crc32c_combine(crc32c(0, "123456789", n), crc32c(0, &"123456789"[n], 9 - n), 9 - n) == 0xe3069283,
              "CRC-32C of two parts, joined");
    check(file && (size - sizeof data) % 8 == 0 && !memcmp(file + size - sizeof data, data, sizeof data),
          "safetensors: data aligned and in order");
    check(file && strstr(file + 8, "\"__metadata__\":{\"format\":\"pt\",\"odd\\n\":\"\\\"x\\\"\"}"), "metadata");
    free(file);
    Safetensors *s = safetensors_open(path, &e);
    check(s != NULL, "safetensors: open what was written %s", e.text);
    free(path);
    if (!s) return;
    check(safetensors_count(s) == COUNT(list), "safetensors: number of tensors");
    for (size_t i = 0; i < COUNT(list); i++) {
        const FileTensor *t = safetensors_find(s, list[i].name);
        ok = t && !strcmp(t->dtype, list[i].dtype) && t->rank == list[i].rank;
        for (int d = 0; ok && d < t->rank; d++) ok = t->shape[d] == list[i].shape[d];
        check(ok, "safetensors: name, dtype and shape of %s", list[i].name);
    }
    check(!safetensors_find(s, "nothing"), "safetensors: a missing tensor is NULL");
    const FileTensor *z = safetensors_find(s, "z.f32"), *b = safetensors_find(s, "b.bf16");
    const FileTensor *h = safetensors_find(s, "h.f16");
    const FileTensor *u = safetensors_find(s, "bytes"), *one = safetensors_find(s, "a \"quoted\" \xC3\xA9");
    check(safetensors_read(s, z, 0, raw, 60, &e) && !memcmp(raw, f32, 60), "safetensors: read a whole tensor");
    check(safetensors_read(s, z, 8, raw, 20, &e) && !memcmp(raw, f32 + 2, 20), "safetensors: read a part");
    check(safetensors_read(s, z, 60, raw, 0, &e) && !safetensors_read(s, z, 57, raw, 4, &e)
          && !safetensors_read(s, z, UINT64_MAX, raw, 4, &e), "safetensors: nothing is read beyond a tensor's end");
    ok = safetensors_read_double(s, z, 4, got, 11, &e);
    for (int i = 0; i < 11; i++) ok &= got[i] == (double)f32[4 + i];
    check(ok, "safetensors: F32 as doubles");
    check(safetensors_read_double(s, b, 0, got, 5, &e) && safetensors_read_double(s, h, 0, got + 5, 7, &e)
          && !memcmp(got, as_double, sizeof as_double), "safetensors: BF16, F16 as doubles, denormals, infinities");
    check(safetensors_read_double(s, one, 0, got, 1, &e) && got[0] == 0.1, "safetensors: F64 of rank 0");
    check(!safetensors_read_double(s, u, 0, got, 1, &e) && !safetensors_read_double(s, z, 15, got, 1, &e),
          "safetensors: bytes are not read as doubles, nor elements past the end");
    safetensors_close(s);
}

static void test_safetensors_large(void) {
    enum { N = 700000 };
    uint64_t shape = N;
    FileTensor list[] = { { .name = "a", .dtype = "F32", .rank = 1, .shape = &shape },
                          { .name = "b", .dtype = "F32", .rank = 1, .shape = &shape } };
    char *path = scratch_path("large.safetensors");
    float *data = mem_alloc(N * sizeof *data);
    double *got = mem_alloc(N * sizeof *got);
    Error e = { 0 };
    for (int i = 0; i < N; i++) data[i] = (float)i;
    SafetensorsWriter *w = safetensors_create(path, list, 2, NULL, 0, &e);
    int ok = w && safetensors_append(w, data, N * 4, &e) && safetensors_append(w, data, 1, &e)
        && safetensors_append(w, (char *)data + 1, 1 << 20, &e)
        && safetensors_append(w, (char *)data + 1 + (1 << 20), N * 4 - 1 - (1 << 20), &e);
    ok = ok && safetensors_finish(w, &e, NULL, NULL);
    Safetensors *s = ok ? safetensors_open(path, &e) : NULL;
    check(s && safetensors_read_double(s, safetensors_find(s, "b"), 0, got, N, &e),
          "safetensors: a file larger than the writer's buffer %s", e.text);
    for (int i = 0; i < N && s; i++) ok &= got[i] == i;
    check(ok, "safetensors: a file larger than the writer's buffer reads back");
    if (s) {
        size_t size = 0;
        char *file = file_read(path, &size, &e);
        FILE *f = fopen(path, "wb");
        if (f) { fwrite(file, 1, size - 1000, f); fclose(f); }
        check(!safetensors_read(s, safetensors_find(s, "b"), 0, got, N * 4, &e) && strstr(e.text, "shorter"),
              "safetensors: truncating an open file is an error");
        free(file);
    }
    safetensors_close(s), free(path), free(data), free(got);
}

static void test_safetensors_writer_errors(void) {
    uint64_t shape[] = { 4, UINT64_MAX };
    FileTensor list[] = { { .name = "a", .dtype = "F32", .rank = 1, .shape = shape },
                          { .name = "a", .dtype = "F32", .rank = 1, .shape = shape } };
    FileTensor type = { .name = "a", .dtype = "F31", .rank = 1, .shape = shape };
    FileTensor huge = { .name = "a", .dtype = "F32", .rank = 2, .shape = shape };
    FileTensor name = { .name = "\xFF", .dtype = "F32", .rank = 1, .shape = shape };
    char *path = scratch_path("bad.safetensors");
    char data[17] = { 0 };
    Error e;
    check(!safetensors_create(path, list, 2, NULL, 0, &e) && strstr(e.text, "twice"),
          "safetensors: writing two tensors of one name is refused");
    check(!safetensors_create(path, &type, 1, NULL, 0, &e), "safetensors: writing an unknown dtype is refused");
    check(!safetensors_create(path, &huge, 1, NULL, 0, &e) && strstr(e.text, "overflow"),
          "safetensors: writing an overflowing shape is refused");
    check(!safetensors_create(path, &name, 1, NULL, 0, &e), "safetensors: writing a name that is not UTF-8 is refused");
    check(!safetensors_create("/nowhere/at/all", list, 1, NULL, 0, &e), "safetensors: a missing folder is refused");
    SafetensorsWriter *w = safetensors_create(path, list, 1, NULL, 0, &e);
    check(w && safetensors_append(w, data, 15, &e) && !safetensors_finish(w, &e, NULL, NULL),
          "safetensors: too little data is an error");
    w = safetensors_create(path, list, 1, NULL, 0, &e);
    check(w && !safetensors_append(w, data, 17, &e) && !safetensors_finish(w, &e, NULL, NULL),
          "safetensors: too much data is an error, also in finish");
    if (!access("/dev/full", W_OK)) {
        w = safetensors_create("/dev/full", list, 1, NULL, 0, &e);
        check(w && safetensors_append(w, data, 16, &e) && !safetensors_finish(w, &e, NULL, NULL)
              && strstr(e.text, "space"), "safetensors: a full disk is an error: %s", e.text);
        shape[0] = 1 << 20;
        char *much = mem_alloc(4 << 20);
        w = safetensors_create("/dev/full", list, 1, NULL, 0, &e);
        check(w && !safetensors_append(w, much, 4 << 20, &e) && !safetensors_append(w, much, 0, &e),
              "safetensors: a full disk is an error during append, too");
        safetensors_abandon(w);
        free(much);
    } else skip("safetensors: no /dev/full here");
    free(path);
}

/* Whatever a name stands for, opening it does not wait. */
static void test_kinds(void) {
    char *pipe = scratch_path("pipe"), *none = scratch_path("none"), *link_to_none = scratch_path("dangling");
    uint64_t bytes;
    Error e = { .code = 0 };
    check(!is_there(none) && file_open(none, &bytes, &e) < 0 && strstr(e.text, "No such file"), "a missing file: %s",
          e.text);
    check(file_open("/", &bytes, &e) < 0 && strstr(e.text, "but a folder"), "a folder is no file: %s", e.text);
    check(file_open("/dev/zero", &bytes, &e) < 0 && strstr(e.text, "but a device"), "a device is none: %s", e.text);
    check(!symlink(none, link_to_none) && is_there(link_to_none) && file_open(link_to_none, &bytes, &e) < 0,
          "a link to nothing is there, and no file: %s", e.text);
    if (mkfifo(pipe, 0600)) { skip("no named pipes here"); return; }
    check(is_there(pipe) && file_open(pipe, &bytes, &e) < 0 && strstr(e.text, "but a pipe"), "nor is a pipe: %s",
          e.text);
    check(!file_create(pipe, &e) && strstr(e.text, "nobody reads"), "nor one to be written: %s", e.text);
    const int reader = open(pipe, O_RDONLY | O_NONBLOCK);
    const int fd = file_open_to_write(pipe, O_WRONLY, &e);
    check(fd >= 0 && !(fcntl(fd, F_GETFL) & O_NONBLOCK), "with a reader it is written, as ever: %s", e.text);
    close(fd);
    close(reader);
    unlink(pipe), unlink(link_to_none);
    free(pipe), free(none), free(link_to_none);
}

#define TENSOR(name, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
/* A file of this header and so many bytes of data, opened. */
static Safetensors *open_with(const char *path, const char *header, int data, Error *e) {
    write_tensors(path, strlen(header), header, strlen(header), (size_t)data);
    return safetensors_open(path, e);
}
static void test_safetensors_bad_headers(const char *path) {
    static const struct { const char *what, *header; int data; } cases[] = {
        { "offset attack: begin after end",   "{" TENSOR("a", "[1]", "4", "0") "}", 4 },
        { "offset attack: far away",          "{" TENSOR("a", "[1]", "1000", "1004") "}", 4 },
        { "negative offset",                  "{" TENSOR("a", "[1]", "-4", "0") "}", 4 },
        { "offset beyond 64 bits",            "{" TENSOR("a", "[1]", "0", "18446744073709551620") "}", 4 },
        { "fractional offset",                "{" TENSOR("a", "[1]", "0", "4.0") "}", 4 },
        { "overlap", "{" TENSOR("a", "[2]", "0", "8") "," TENSOR("b", "[2]", "4", "12") "}", 12 },
        { "two tensors on the same data", "{" TENSOR("a", "[1]", "0", "4") "," TENSOR("b", "[1]", "0", "4") "}", 4 },
        { "hole between tensors", "{" TENSOR("a", "[1]", "0", "4") "," TENSOR("b", "[1]", "8", "12") "}", 12 },
        { "hole at the start",                "{" TENSOR("a", "[1]", "4", "8") "}", 8 },
        { "trailing bytes",                   "{" TENSOR("a", "[1]", "0", "4") "}", 5 },
        { "truncated data",                   "{" TENSOR("a", "[1]", "0", "4") "}", 3 },
        { "no data",                          "{" TENSOR("a", "[1]", "0", "4") "}", 0 },
        { "size and shape disagree",          "{" TENSOR("a", "[2]", "0", "4") "}", 4 },
        { "shape overflows",                  "{" TENSOR("a", "[4294967296,4294967296,4294967296]", "0", "4") "}", 4 },
        { "bytes overflow to the right size", "{" TENSOR("a", "[4611686018427387905]", "0", "4") "}", 4 },
        { "bits overflow",                    "{" TENSOR("a", "[2305843009213693952]", "0", "0") "}", 0 },
        { "negative size",                    "{" TENSOR("a", "[-1]", "0", "4") "}", 4 },
        { "two negative sizes",               "{" TENSOR("a", "[-1,-1]", "0", "4") "}", 4 },
        { "size is a string",                 "{" TENSOR("a", "[\"1\"]", "0", "4") "}", 4 },
        { "shape is a number",                "{" TENSOR("a", "1", "0", "4") "}", 4 },
        { "duplicate name", "{" TENSOR("a", "[1]", "0", "4") "," TENSOR("a", "[1]", "4", "8") "}", 8 },
        { "duplicate key", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4 },
        { "unknown dtype",                    "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4 },
        { "dtype in small letters",           "{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4 },
        { "no dtype",                         "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4 },
        { "no shape",                         "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4 },
        { "no offsets",                       "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4 },
        { "one offset",                       "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4 },
        { "three offsets",                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4 },
        { "half a byte",                      "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1 },
        { "a tensor that is a number",        "{\"a\":1}", 0 },
        { "NUL in a name", "{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4 },
        { "metadata is not an object",        "{\"__metadata__\":[]}", 0 },
        { "metadata is not text", "{\"__metadata__\":{\"a\":1}}", 0 }, { "leading blank", " {}", 0 },
        { "leading new line", "\n{}", 0 }, { "header is an array", "[]", 0 }, { "header is not JSON", "{\"a\"", 0 },
        { "something after the header",       "{} x", 0 },
        { "header is not UTF-8", "{\"\xFF\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4 },
        { "no header",                        "", 0 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Error e = { 0 };
        Safetensors *s = open_with(path, cases[i].header, cases[i].data, &e);
        check(!s && strstr(e.text, path), "safetensors: refused, naming the file: %s", cases[i].what);
        safetensors_close(s);
    }
}
static void test_safetensors_bad_lengths(const char *path) {
    static const struct { const char *what; uint64_t length; size_t bytes, data; } lengths[] = {
        { "header longer than the file", 3, 2, 0 }, { "header of 2^64-1 bytes", UINT64_MAX, 2, 0 },
        { "header length that wraps around", UINT64_MAX - 7, 2, 0 }, { "header above the limit", 100000001, 2, 0 },
        { "header one short", 1, 2, 0 }, { "header of 2^63 bytes", (uint64_t)1 << 63, 2, 9 },
    };
    for (size_t i = 0; i < COUNT(lengths); i++) {
        Error e = { 0 };
        write_tensors(path, lengths[i].length, "{}", lengths[i].bytes, lengths[i].data);
        Safetensors *s = safetensors_open(path, &e);
        check(!s && e.text[0], "safetensors: refused: %s", lengths[i].what);
        safetensors_close(s);
    }
    for (size_t n = 0; n < 8; n++) {
        Error e = { 0 };
        write_file(path, "\2\0\0\0\0\0\0\0", n);
        check(!safetensors_open(path, &e) && e.text[0], "safetensors: refused: a file of %zu bytes", n);
    }
    Error e = { 0 };
    check(!safetensors_open("/nowhere/at/all", &e) && e.text[0], "safetensors: refused: a missing file");
}
static void test_safetensors_legal(const char *path) {
    static const struct { const char *what, *header; int data, count; } legal[] = {
        { "no tensors", "{}", 0, 0 }, { "padding after the header", "{}      ", 0, 0 },
        { "only metadata", "{\"__metadata__\":{}}", 0, 0 },
        { "an empty tensor", "{" TENSOR("a", "[0,5]", "0", "0") "}", 0, 1 },
        { "rank 0", "{" TENSOR("a", "[]", "0", "4") "}", 4, 1 },
        { "any order of names", "{" TENSOR("b", "[1]", "4", "8") "," TENSOR("e", "[0]", "4", "4") ","
                                TENSOR("a", "[1]", "0", "4") "}", 8, 3 },
    };
    for (size_t i = 0; i < COUNT(legal); i++) {
        Error e = { 0 };
        Safetensors *s = open_with(path, legal[i].header, legal[i].data, &e);
        check(s && safetensors_count(s) == (size_t)legal[i].count, "safetensors: legal: %s %s", legal[i].what, e.text);
        safetensors_close(s);
    }
}
/* Weights in FP8 with a scale for 128 x 128: ragged blocks, every code, parts from anywhere. */
static void test_safetensors_fp8(void) {
    enum { ROWS = 130, COLUMNS = 133, ALL = 2 * ROWS * COLUMNS };
    static unsigned char code[ALL];
    static const float scale[] = { 1, 0.5F, 3, 0.25F, 7, 1.5F, 2, 0.125F };
    static float got[ALL];
    const uint64_t shape[] = { 2, ROWS, COLUMNS }, blocks[] = { 2, 2, 2 };
    const FileTensor tensors[] = { { .name = "w", .dtype = "F8_E4M3", .rank = 3, .shape = shape },
                                   { .name = "w_scale_inv", .dtype = "F32", .rank = 3, .shape = blocks } };
    char *path = scratch_path("fp8.safetensors");
    Error e = { 0 };
    int bad = 0;
    for (int i = 0; i < ALL; i++) code[i] = (unsigned char)(i * 7 % 256);
    SafetensorsWriter *w = safetensors_create(path, tensors, 2, NULL, 0, &e);
    check(w && safetensors_append(w, code, ALL, &e) && safetensors_append(w, scale, sizeof scale, &e)
          && safetensors_finish(w, &e, NULL, NULL), "%s", e.text);
    Safetensors *s = safetensors_open(path, &e);
    for (size_t first = 0, n; s && first < ALL; first += n) {
        n = 1 + first * 31 % 900;
        if (n > ALL - first) n = ALL - first;
        check(safetensors_read_fp8(s, safetensors_at(s, 0), safetensors_at(s, 1), first, "F32", got + first, n, &e),
              "%s", e.text);
    }
    for (int i = 0; i < ALL; i++) {
        const int c = code[i] & 127, matrix = i / (ROWS * COLUMNS), row = i / COLUMNS % ROWS, column = i % COLUMNS;
        const float size = c < 8 ? (float)c / 512 : (float)(8 + c % 8) * powf(2, (float)(c / 8 - 10));
        const float want = (code[i] > 127 ? -size : size) * scale[matrix * 4 + row / 128 * 2 + column / 128];
        bad += c == 127 ? !isnan(got[i]) : got[i] != want;
    }
    check(s && !bad, "FP8 in blocks: %d of %d elements are wrong", bad, ALL);
    safetensors_close(s);
    free(path);
}
static void test_safetensors_refused(void) {
    char *path = scratch_path("refused.safetensors");
    test_safetensors_bad_headers(path), test_safetensors_bad_lengths(path), test_safetensors_legal(path);
    free(path);
}

#define OUTSIDE "not the name of a file in this folder"
static int warnings;
static void count_warning(const char *text) { warnings += strstr(text, "among them c") != NULL; }
static void test_safetensors_folder(void) {
    static const struct { const char *what, *index; int opens; const char *says; } cases[] = {
        { "two shards",              "{\"metadata\":{\"total_size\":12},"
          "\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"," "\"c\":\"m-1.safetensors\"}}", 3, "" },
        { "a tensor not in the map", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}", 2, "" },
        { "missing shard", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-9.safetensors\"}}", 0, "m-9" },
        { "missing tensor", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"x\":\"m-1.safetensors\"}}", 0, "is not in" },
        { "another shard", "{\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}}", 0, "is not in" },
        { "in two shards", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-3.safetensors\"}}", 0, "two files" },
        { "a folder below", "{\"weight_map\":{\"a\":\"in/m-1.safetensors\",\"b\":\"m-2.safetensors\"}}", 2, "" },
        { "another folder",
          "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"c\":\"in/m-1.safetensors\"}}", 0, "two files" },
        { "inner ..", "{\"weight_map\":{\"a\":\"in/../m-1.safetensors\"}}", 0, OUTSIDE },
        { "name with .", "{\"weight_map\":{\"a\":\"./m-1.safetensors\"}}", 0, OUTSIDE },
        { "name with ..",            "{\"weight_map\":{\"a\":\"../folder/m-1.safetensors\"}}", 0, OUTSIDE },
        { "name that is ..",         "{\"weight_map\":{\"a\":\"..\"}}", 0, OUTSIDE },
        { "absolute name",           "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", 0, OUTSIDE },
        { "empty name",              "{\"weight_map\":{\"a\":\"\"}}", 0, OUTSIDE },
        { "name with a NUL",         "{\"weight_map\":{\"a\":\"m-1.safetensors\\u0000x\"}}", 0, OUTSIDE },
        { "name is a number",        "{\"weight_map\":{\"a\":1}}", 0, OUTSIDE },
        { "duplicate key", "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-1.safetensors\"}}", 0, "twice" },
        { "no map", "{}", 0, "weight_map" }, { "map is an array", "{\"weight_map\":[]}", 0, "weight_map" },
        { "not JSON",                "{\"weight_map\":", 0, "ends too early" },
    };
    static const char *const shards[3] = {
        "{" TENSOR("a", "[1]", "0", "4") "," TENSOR("c", "[1]", "4", "8") "}", "{" TENSOR("b", "[1]", "0", "4") "}",
        "{" TENSOR("b", "[1]", "0", "4") "," TENSOR("a", "[1]", "4", "8") "}",
    };
    char *folder = scratch_path("folder"), *index = scratch_path("folder/model.safetensors.index.json");
    Error e = { 0 };
    check(folder_make(folder, &e) && !safetensors_open(folder, &e) && strstr(e.text, "neither"),
          "safetensors: an empty folder is refused");
    free(scratch_folder("folder/in"));
    for (int i = 0; i < 4; i++) {
        char *name = text_format("%s/%sm-%d.safetensors", folder, i == 3 ? "in/" : "", i % 3 + 1);
        write_tensors(name, strlen(shards[i % 3]), shards[i % 3], strlen(shards[i % 3]), i == 1 ? 4 : 8);
        free(name);
    }
    warn_hook(count_warning);
    for (size_t i = 0; i < COUNT(cases); i++) {
        e.text[0] = 0;
        write_file(index, cases[i].index, strlen(cases[i].index));
        Safetensors *s = safetensors_open(folder, &e);
        check((s ? (int)safetensors_count(s) : 0) == cases[i].opens && (s || strstr(e.text, cases[i].says)),
              "safetensors: folder, %s %s", cases[i].what, cases[i].opens ? e.text : "");
        float x[2] = { 0 };
        if (s)
            check(safetensors_read(s, safetensors_find(s, "a"), 0, x, 4, &e)
                  && safetensors_read(s, safetensors_find(s, "b"), 0, x + 1, 4, &e) && x[0] > 0
                  && x[1] == x[0], "safetensors: reading from both shards");
        safetensors_close(s);
    }
    warn_hook(NULL);
    check(warnings == 2, "safetensors: a tensor that the map does not name causes a warning (above)");
    free(folder), free(index);
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

static int encodes_as(const Tokenizer *t, const char *text, const int *expected, int count) {
    int *ids;
    const size_t n = tokenizer_encode(t, text, strlen(text), &ids);
    const int same = n == (size_t)count && !memcmp(ids, expected, n * sizeof *ids);
    free(ids);
    return same;
}
static int gives_back(const Tokenizer *t, const char *text, size_t bytes) {
    int *ids, ok = 1;
    size_t n = tokenizer_encode(t, text, bytes, &ids), length;
    for (size_t i = 0; i < n; i++) ok &= ids[i] >= 0 && ids[i] < tokenizer_vocab(t);
    char *back = tokenizer_decode(t, ids, n, &length);
    ok = ok && length == bytes && !memcmp(back, text, bytes);
    free(ids), free(back);
    return ok;
}
static void test_tokenizer_bytes(void) {
    Tokenizer *t = tokenizer_bytes();
    char all[256];
    int *ids, ok = 1;
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    size_t n = tokenizer_encode(t, all, 256, &ids), bytes;
    for (int i = 0; i < 256; i++) ok &= ids[i] == i;
    check(n == 256 && ok && tokenizer_vocab(t) == 256 && tokenizer_is_bytes(t) && tokenizer_eos(t) == -1
          && tokenizer_bos(t) == -1, "bytes: ids are the bytes");
    check(gives_back(t, all, 256) && gives_back(t, "", 0), "bytes: encode and decode");
    free(ids);
    check(tokenizer_id(t, "A") == 'A' && tokenizer_id(t, "AB") == -1
          && tokenizer_piece(t, 10, &bytes)[0] == '\n' && bytes == 1, "bytes: single pieces");
    tokenizer_piece(t, 256, &bytes);
    check(bytes == 0 && (tokenizer_piece(t, -1, &bytes), bytes == 0), "bytes: unused ids have empty pieces");
    const char *json = tokenizer_json(t, &bytes);
    Error e = { 0 };
    Tokenizer *again = tokenizer_load_text(json, bytes, &e);
    check(again && tokenizer_is_bytes(again) && gives_back(again, all, 256),
          "bytes: its tokenizer.json loads as the same tokenizer %s", e.text);
    tokenizer_free(again), tokenizer_free(t);
}

static Tokenizer *golden(const char *name) {
    char *path = text_format("%s/%s.json", GOLDENS, name);
    Error e = { 0 };
    Tokenizer *t = tokenizer_load(path, &e);
    check(t != NULL, "tokenizer %s loads (tests run in the root of the repository) %s", name, e.text);
    free(path);
    return t;
}

static const struct { const char *name; int bos, eos; } goldens[] = {
    { "gpt2", -1, 0 }, { "qwen2", -1, 0 }, { "neox", -1, 0 }, { "llama3", 0, 0 }, { "o200k", -1, 0 },
    { "starcoder", -1, 0 }, { "llama2", 1, 2 }, { "llama2_v5", 1, 2 },
};

static void test_tokenizer_goldens(void) {
    for (size_t g = 0; g < COUNT(goldens); g++) {
        const char *name = goldens[g].name;
        Tokenizer *t = golden(name);
        if (!t) continue;
        char *path = text_format("%s/%s.cases.json", GOLDENS, name);
        size_t bytes = 0, count = 0;
        Error e = { 0 };
        char *text = file_read(path, &bytes, &e);
        Json *json = text ? json_parse(text, bytes, &e) : NULL;
        for (const JsonValue *c = json ? json_first(json_get(json_root(json), "cases")) : NULL; c;
             c = c->next, count++) {
            const JsonValue *input = json_get(c, "text"), *expected = json_get(c, "ids");
            const JsonValue *decoded = json_get(c, "decoded"), *id = json_first(expected);
            int *ids, same;
            size_t n = tokenizer_encode(t, input->is.string, input->length, &ids), length;
            same = n == expected->length;
            for (size_t i = 0; i < n && same; i++, id = id->next) same = json_int(id, -1) == ids[i];
            check(same, "tokenizer %s encodes as the reference: \"%s\"", name, input->is.string);
            char *back = tokenizer_decode(t, ids, n, &length);
            if (!json_is(decoded, JSON_NULL))
                check(length == decoded->length && !memcmp(back, decoded->is.string, length),
                      "tokenizer %s decodes as the reference: \"%s\"", name, input->is.string);
            free(ids), free(back);
        }
        check(count >= 100, "tokenizer %s: %zu cases %s", name, count, e.text);
        check(tokenizer_bos(t) == goldens[g].bos && tokenizer_eos(t) == goldens[g].eos, "tokenizer %s: bos, eos", name);
        json_free(json), free(text), free(path), tokenizer_free(t);
    }
}

/* Long words and blanks take no time. That any text comes back: tests/fuzz/encode.c. */
static void test_tokenizer_lossless(void) {
    for (size_t g = 0; g < COUNT(goldens); g++) {
        Tokenizer *t = golden(goldens[g].name);
        if (!t) continue;
        size_t bytes = 1 << 20;
        char *text = mem_alloc(bytes);
        for (size_t i = 0; i < bytes; i++) text[i] = "theroutxpsn"[below(11)];
        double start = cpu_seconds();
        int same = gives_back(t, text, bytes);
        double seconds = cpu_seconds() - start;
        check(same, "tokenizer %s: a word of 1 MB decodes to itself", goldens[g].name);
        check_error(seconds, 3, "tokenizer %s: seconds for it", goldens[g].name);
        memset(text, ' ', bytes);
        text[0] = '\n';
        start = cpu_seconds();
        same = gives_back(t, text, bytes);
        check(same && cpu_seconds() - start < 3, "tokenizer %s: 1 MB of spaces", goldens[g].name);
        free(text), tokenizer_free(t);
    }
}

/* A small byte-level tokenizer.json with the parts that a case changes. */
static char *tokenizer_text(const char *vocab, const char *merges, const char *model, const char *rest) {
    static const char *const pre = "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                                   "\"decoder\":{\"type\":\"ByteLevel\"}";
    Tokenizer *t = tokenizer_bytes();
    size_t bytes;
    const char *json = tokenizer_json(t, &bytes), *begin = strstr(json, "\"vocab\":{") + 9;
    char *text = text_format("{%s,\"model\":{\"type\":\"BPE\",%s\"vocab\":{%.*s%s},\"merges\":%s}}",
                             rest ? rest : pre, model, (int)(strstr(begin, "}}}") - begin), begin, vocab, merges);
    tokenizer_free(t);
    return text;
}

/* The files of GPT-NeoX and OLMoE have no tokens for the 13 bytes that UTF-8 never has. */
static void test_tokenizer_without_bytes(void) {
    static const int never[] = { 0xC0, 0xC1, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF };
    Tokenizer *bytes = tokenizer_bytes();
    for (int other = 0; other < 2; other++) {                   /* other: and one that UTF-8 has */
        size_t length, id = 0;
        const char *all = tokenizer_json(bytes, &length), *vocab = strstr(all, "\"vocab\":{") + 9;
        Text json = { 0 };
        Error e = { 0 };
        text_add_bytes(&json, all, (size_t)(vocab - all));
        for (int b = 0; b < 256; b++) {
            int lacks = other && b == 0xF4;
            for (size_t i = 0; i < COUNT(never); i++) lacks |= never[i] == b;
            const char *next = strstr(vocab + 1, "\":") + 1;
            if (!lacks) {
                text_add(&json, "%s%.*s:%zu", id ? "," : "", (int)(next - vocab), vocab, id);
                id++;
            }
            vocab = next + strcspn(next, ",}") + (b < 255);
        }
        text_add(&json, ",\"aa\":%zu},\"merges\":[\"a a\"]}}", id);
        char *merges = strstr(json.at, "\"merges\":[],");         /* those of the tokenizer of bytes */
        memset(merges, ' ', strlen("\"merges\":[],"));
        Tokenizer *t = tokenizer_load_text(json.at, json.length, &e);
        if (other)
            check(!t && strstr(e.text, "0xF4"), "a tokenizer without a byte that UTF-8 has is refused: %s", e.text);
        else {
            int *ids, *same, ok = t != NULL;
            size_t n = ok ? tokenizer_encode(t, "a\xFF", 2, &ids) : 0,
                m = ok ? tokenizer_encode(t, "a\xEF\xBF\xBD", 4, &same) : 0;
            check(ok && n == 4 && m == 4 && !memcmp(ids, same, 4 * sizeof *ids), "a lone byte: U+FFFD: %s", e.text);
            check(ok && gives_back(t, "\xF4\x8F\xBF\xBF\n", 5), "without bytes that UTF-8 never has");
            if (ok) { free(ids); free(same); }
        }
        tokenizer_free(t), free(json.at);
    }
    tokenizer_free(bytes);
}

static void test_tokenizer_refused(void) {
#define PRE "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define DECODER ",\"decoder\":{\"type\":\"ByteLevel\"}"
#define ADDED(content, id, flags) PRE DECODER ",\"added_tokens\":[{\"id\":" id ",\"content\":\"" content "\"" flags "}]"
#define SPLIT(regex, behavior, more) "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":" \
    "\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"" behavior "\",\"invert\":false" more "}," \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}" DECODER
    /* says: NULL if it must load */
    static const struct { const char *what, *vocab, *merges, *model, *rest, *says; } cases[] = {
        { "merges as strings", ",\"th\":256", "[\"t h\"]", "", NULL, NULL },
        { "merges as pairs", ",\"th\":256", "[[\"t\",\"h\"]]", "", NULL, NULL },
        { "no model type, as in old files", ",\"th\":256", "[\"t h\"]", "\"dropout\":null,\"end_of_word_suffix\":\"\",",
          NULL, NULL },
        { "an added token", "", "[]", "", ADDED("<x>", "256", ""), NULL },
        { "no merges at all", ",\"th\":256", "[]", "", NULL, "no merges" },
        { "merges of another spelling", ",\"th\":256", "[{\"a\":\"t\"}]", "", NULL, "merge 0" },
        { "a merge of one part", ",\"th\":256", "[\"th\"]", "", NULL, "merge 0" },
        { "a merge of three parts", ",\"th\":256", "[[\"t\",\"h\",\"e\"]]", "", NULL, "merge 0" },
        { "a merge of an unknown token", ",\"th\":256", "[\"t h\",\"th \\u00e9\\u00e9\"]", "", NULL, "merge 1" },
        { "a merge into an unknown token", ",\"th\":256", "[\"h t\"]", "", NULL, "merge 0" },
        { "merges missing", ",\"th\":256", "null", "", NULL, "needs" },
        { "duplicate ids", ",\"th\":255", "[\"t h\"]", "", NULL, "two tokens" },
        { "a gap in the ids", ",\"zz\":300,\"th\":256", "[\"t h\",\"z z\"]", "", NULL, NULL },
        { "a negative id", ",\"th\":-1", "[\"t h\"]", "", NULL, "no id" },
        { "a huge id", ",\"th\":4294967296", "[\"t h\"]", "", NULL, "4294967296" },
        { "an id that is text", ",\"th\":\"256\"", "[\"t h\"]", "", NULL, "no id" },
        { "a fractional id", ",\"th\":256.0", "[\"t h\"]", "", NULL, "no id" },
        { "a key twice", ",\"th\":256,\"th\":257", "[\"t h\"]", "", NULL, "twice" },
        { "dropout", ",\"th\":256", "[\"t h\"]", "\"dropout\":0.1,", NULL, "dropout" },
        { "word suffix", ",\"th\":256", "[\"t h\"]", "\"end_of_word_suffix\":\"</w>\",", NULL, "end_of_word_suffix" },
        { "subword prefix", ",\"th\":256", "[\"t h\"]", "\"continuing_subword_prefix\":\"##\",", NULL,
          "continuing_subword_prefix" },
        { "another normalizer", "", "[]", "", "\"normalizer\":{\"type\":\"Lowercase\"}," PRE DECODER, "Lowercase" },
        { "another pre-tokenizer", "", "[]", "", "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}"
          DECODER, "BertPreTokenizer" },
        { "a pattern", ",\"th\":256", "[\"t h\"]", "", SPLIT("a+", "Isolated", ""), NULL },
        { "an atomic group", "", "[]", "", SPLIT("(?>a+)b", "Isolated", ""), "this kind of group" },
        { "another behavior", "", "[]", "", SPLIT("a+", "Merged", ""), "behavior Merged" },
        { "a step's unknown key", "", "[]", "", SPLIT("a+", "Isolated", ",\"greedy\":true"), "greedy" },
        { "an unknown key", "", "[]", "", PRE DECODER ",\"casing\":\"lower\"", "casing" },
        { "a model's unknown key", "", "[]", "\"cache\":3,", NULL, "cache" },
        { "an added token's unknown key", "", "[]", "", ADDED("<x>", "256", ",\"strip\":true"), "strip" },
        { "a step after ByteLevel", "", "[]", "", "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
          "{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{\"type\":\"Digits\"}]}" DECODER, "after ByteLevel" },
        { "another decoder", "", "[]", "", PRE ",\"decoder\":{\"type\":\"WordPiece\"}", "WordPiece" },
        { "no decoder", "", "[]", "", PRE, "decoder" },
        { "no pre-tokenizer", "", "[]", "", "\"decoder\":{\"type\":\"ByteLevel\"}", "neither" },
        { "an added token with the id of another", "", "[]", "", ADDED("<x>", "255", ""), "two tokens" },
        { "an added token with another id in the vocabulary", "", "[]", "", ADDED("A", "66", ""), "another id" },
        { "an added token after a gap", "", "[]", "", ADDED("<x>", "257", ""), "gives it the next one, 256" },
        { "an added token without content", "", "[]", "", PRE DECODER ",\"added_tokens\":[{\"id\":256}]", "content" },
        { "an empty added token", "", "[]", "", ADDED("", "256", ""), "empty" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = tokenizer_text(cases[i].vocab, cases[i].merges, cases[i].model, cases[i].rest);
        Error e = { 0 };
        Tokenizer *t = tokenizer_load_text(text, strlen(text), &e);
        check(cases[i].says ? !t && strstr(e.text, cases[i].says) : t != NULL, "tokenizer %s: %s (%s)",
              cases[i].says ? "refused" : "loads", cases[i].what, e.text);
        int *ids = NULL;
        if (t && cases[i].vocab[0])
            check(tokenizer_encode(t, "that", 4, &ids) == 3 && ids[0] == 256, "tokenizer: %s applied", cases[i].what);
        free(ids), tokenizer_free(t), free(text);
    }
    static const char *const broken[] = {
        "", "{}", "1", "{\"model\":{\"type\":\"WordPiece\"}}",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}",
        "{" PRE DECODER ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
    };
    for (size_t i = 0; i < COUNT(broken); i++) {
        Error e = { 0 };
        check(!tokenizer_load_text(broken[i], strlen(broken[i]), &e) && e.text[0], "tokenizer refused: %s", broken[i]);
    }
    Error e = { 0 };
    check(!tokenizer_load("/nowhere/tokenizer.json", &e) && e.text[0], "tokenizer refused: a missing file");
}

static void test_tokenizer_order(void) {
    /* bc before ab, then bcd before abc */
    static const struct { const char *what, *text; int count, ids[4]; } cases[] = {
        { "the lowest rank first", "abcd", 2, { 'a', 258 } },
        { "a stale candidate is dropped", "xabcdx", 4, { 'x', 'a', 258, 'x' } },
        { "the leftmost of equals first", "ababab", 3, { 257, 257, 257 } },
        { "overlapping equals", "eee", 2, { 260, 'e' } }, { "ranks, not ids, decide", "abc", 1, { 259 } },
    };
    char *text = tokenizer_text(",\"bc\":256,\"ab\":257,\"bcd\":258,\"abc\":259,\"ee\":260",
                                "[\"b c\",\"a b\",\"bc d\",\"a bc\",\"e e\"]", "", NULL);
    Error e = { 0 };
    Tokenizer *t = tokenizer_load_text(text, strlen(text), &e);
    check(t != NULL, "tokenizer: five merges load %s", e.text);
    for (size_t i = 0; t && i < COUNT(cases); i++)
        check(encodes_as(t, cases[i].text, cases[i].ids, cases[i].count), "tokenizer merges: %s", cases[i].what);
    tokenizer_free(t), free(text);
}

static void test_tokenizer_stream(void) {
    static const char text[] = "caf\xC3\xA9 \xE6\xB7\xB7\xE5\x90\x88 \xF0\x9F\x98\x80 end";
    Tokenizer *t = golden("gpt2");
    if (!t) return;
    int *ids, full = 1;
    size_t n = tokenizer_encode(t, text, sizeof text - 1, &ids), shown = 0;
    Text all = { 0 };
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *piece = tokenizer_piece(t, ids[i], &bytes);
        text_add_bytes(&all, piece, bytes);
        size_t complete = utf8_complete(all.at + shown, all.length - shown);
        full &= utf8_valid(all.at + shown, complete) == complete;
        shown += complete;
    }
    check(full && shown == sizeof text - 1 && !strcmp(all.at, text),
          "tokenizer: streamed pieces are whole characters and add up to the text");
    int end = tokenizer_eos(t);
    size_t bytes = 1;
    tokenizer_piece(t, end, &bytes);
    check(end == tokenizer_id(t, "<|endoftext|>") && bytes == 0, "tokenizer: special tokens have empty pieces");
    free(all.at), free(ids), tokenizer_free(t);
}

/* Drawn several at a time they are, as floats, those of random_normal, not as doubles. The series
 * alone would be a wrong float once in millions; here are some of those, of 500 million. */
static void test_random_normals(void) {
    enum { N = 1 << 18, NEAR = 300 };
    static const uint64_t rare[] = { 3837263, 12254845, 23083219, 26060967, 27606332, 29135651, 30633800, 31597346,
                                     36058519, 37636640, 38442375, 40565388 };
    double *values = mem_alloc(N * sizeof *values);
    const double scales[] = { 0.02f, -1, 3e4 };
    const uint64_t key = random_key(0, 5);
    size_t wrong = 0, inexact = 0;
    for (uint64_t k = 0; k < COUNT(scales) + COUNT(rare); k++) {
        const int is_rare = k >= COUNT(scales);
        const uint64_t first = is_rare ? rare[k - COUNT(scales)] - k : k << 40, n = is_rare ? NEAR : N;
        const double scale = is_rare ? (double)0.02f : scales[k];
        random_normals(key, first, n, scale, values);
        for (size_t i = 0; i < n; i++) {
            const double x = scale * random_normal(key, first + i);
            wrong += (float)values[i] != (float)x;
            inexact += values[i] != x;
        }
    }
    check(!wrong, "of normal numbers drawn several at a time %zu are other floats", wrong);
    check(inexact > N, "only %zu of them differ as doubles: they are not drawn several at a time", inexact);
    values[1] = 7;
    random_normals(3, 9, 1, 1, values);
    check((float)values[0] == (float)random_normal(3, 9) && values[1] == 7, "one number alone");
    free(values);
}

/* To other number types, to nearest even, as the devices round. */
static void conversions(void) {
    /* the first two are ties */
    static const float x[] = { 1.00390625f, 1.01171875f, 1.005f, -2.71828f, 3e38f, 1e-40f, 0 };
    enum { N = COUNT(x) };
    const Device *dev = device_find("cpu-bf16");
    char *path = scratch_path("conversions.safetensors");
    uint16_t got[N], expected[N];
    double doubles[N], back[N];
    float floats[N];
    Error e;
    SafetensorsWriter *w = safetensors_create(path, &(FileTensor){ .name = "x", .dtype = "F32", .rank = 1,
                                                                   .shape = (uint64_t[]){ N } }, 1, NULL, 0, &e);
    check(w && safetensors_append(w, x, sizeof x, &e) && safetensors_finish(w, &e, NULL, NULL), "safetensors: written");
    for (int i = 0; i < N; i++) doubles[i] = (double)x[i];
    dev->from_double((floatX *)expected, doubles, N);
    Safetensors *s = safetensors_open(path, &e);
    const FileTensor *t = s ? safetensors_find(s, "x") : NULL;
    check(t && safetensors_read_as(s, t, 0, "BF16", got, N, &e) && !memcmp(got, expected, sizeof got), "F32 as BF16");
    check(t && safetensors_read_as(s, t, 1, "F32", floats, N - 1, &e) && !memcmp(floats, x + 1, sizeof x - sizeof *x),
          "F32 as it is");
    check(t && safetensors_read_as(s, t, 0, "F64", back, N, &e) && !memcmp(back, doubles, sizeof back), "F32 as F64");
    check(safetensors_value("BF16", &got[1]) == 1.015625 && safetensors_value("F32", &x[2]) == (double)x[2],
          "safetensors: one value");
    safetensors_close(s), free(path);
}

/* What people have in a model's place, and what is said of it. */
static void test_foreign_models(void) {
    static const struct { const char *file, *words; } cases[] = {
        { "pytorch_model.bin", "only Python reads|save_pretrained|foreign" },
        { "pytorch_model.bin.index.json", "only Python reads" }, { "adapter_config.json", "LoRA|merge_and_unload" },
        { "adapter_model.safetensors", "LoRA|merge_and_unload" },
        { "x-Q4.gguf", "GGUF" }, { "model-00001-of-00003.safetensors", "index.json is missing" },
        { "consolidated.safetensors", "other names|config.json" }, { "tf_model.h5", "TensorFlow" },
        { "x.pth", "Python" },
    };
    Error e = { 0 };
    char *folder = scratch_folder("foreign");
    check(foreign_model(folder, &e), "an empty folder is nothing foreign: %s", e.text);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *name = text_format("foreign/%s", cases[i].file), *path = scratch_put(name, "x", 1);
        fails(foreign_model(folder, &e), &e, cases[i].words, cases[i].file);
        if (strstr(name, "gguf")) fails(foreign_model(path, &e), &e, "GGUF", "a file of GGUF");
        remove(path), free(path), free(name);
    }
    fails(foreign_model("Qwen/Qwen3-30B", &e), &e, "no such folder|hf download Qwen/Qwen3-30B", "a name of the Hub");
    static const char *const others[] = { "ROMEO:", "m4:z1", "nowhere", "/no/where", "./no/where", "a/b/c", "a/",
                                          "a/b c" };
    for (size_t i = 0; i < COUNT(others); i++) check(foreign_model(others[i], &e), "%s: nothing foreign", others[i]);
    static const char *const both[] = { "foreign/config.json", "foreign/model.safetensors",
                                        "foreign/adapter_config.json" };
    for (size_t i = 0; i < COUNT(both); i++) free(scratch_put(both[i], "{}", 2));
    Config c;
    fails(hf_load_config(folder, &c, &e), &e, "a LoRA adapter|merge_and_unload", "a model and an adapter");
    free(folder);
}

void test_files(void) {
    PART(test_foreign_models());
    PART(test_random_normals()); PART(conversions()); PART(test_kinds());
    PART(test_json_values()); PART(test_json_python());
    PART(test_json_refused()); PART(test_json_large()); PART(test_text());
    PART(test_utf8()); PART(test_safetensors_round_trip());
    PART(test_safetensors_large()); PART(test_conversion()); PART(test_safetensors_writer_errors());
    PART(test_safetensors_fp8()); PART(test_safetensors_refused());
    PART(test_safetensors_folder()); PART(test_tokenizer_bytes());
    PART(test_tokenizer_goldens()); PART(test_tokenizer_lossless()); PART(test_tokenizer_without_bytes());
    PART(test_tokenizer_refused()); PART(test_tokenizer_order()); PART(test_tokenizer_stream());
    test_outside();
    test_patterns();
}
