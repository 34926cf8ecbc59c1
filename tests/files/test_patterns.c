/* test_patterns.c: how text is cut before it is encoded: regular expressions, and the steps of
 * tokenizer.json, against what Hugging Face's library makes of the same text
 * (tests/reference/make_tokenizers.py). */
#include "tests/test.h"
#include "llmc/base/json.h"
#include "llmc/data/pattern.h"
#include "llmc/data/tokenizer.h"
#include <stdlib.h>
#include <string.h>

/* The tokenizer `base` with other values for some keys. */
static Tokenizer *changed(const JsonValue *base, const JsonValue *change, Error *e) {
    Text json = { 0 };
    for (const JsonValue *v = json_first(base); v; v = v->next) {
        const JsonValue *other = json_get(change, v->key);
        text_add(&json, "%s\"%s\": ", json.length ? ",\n" : "{", v->key);
        json_write(&json, other ? other : v, 0);
    }
    text_add(&json, "}");
    Tokenizer *t = tokenizer_load_text(json.at, json.length, e);
    free(json.at);
    return t;
}
static uint32_t hash_of(const Tokenizer *t, const JsonValue *text) {
    int *ids;
    uint32_t h = 0;
    const size_t n = tokenizer_encode(t, text->is.string, text->length, &ids);
    for (size_t i = 0; i < n; i++) h = h * 31 + (uint32_t)ids[i] + 1;
    free(ids);
    return h;
}
static Json *golden_json(const char *path) {
    size_t bytes = 0;
    Error e = { 0 };
    char *text = file_read(path, &bytes, &e);
    Json *json = text ? json_parse(text, bytes, &e) : NULL;
    check(json != NULL, "%s loads (tests run in the root of the repository) %s", path, e.text);
    free(text);
    return json;
}
static void test_steps(void) {
    Json *base = golden_json("tests/reference/tokenizers/o200k.json"),
        *steps = golden_json("tests/reference/tokenizers/steps.json");
    const JsonValue *root = steps ? json_root(steps) : NULL;
    int cases = 0;
    for (const JsonValue *c = json_first(json_get(root, "cases")); base && c; c = c->next, cases++) {
        Error e = { 0 };
        const char *name = json_string(json_get(c, "name"), "?");
        Tokenizer *t = changed(json_root(base), json_get(c, "change"), &e);
        check(t != NULL, "%s: loads %s", name, e.text);
        const JsonValue *text = json_first(json_get(root, "texts"));
        for (const JsonValue *h = json_first(json_get(c, "hashes")); t && h; h = h->next, text = text->next)
            check(json_int(h, -1) == (int64_t)hash_of(t, text), "%s: encodes as the reference: \"%s\"", name,
                  text->is.string);
        tokenizer_free(t);
    }
    check(cases > 40, "%d cases of steps", cases);
    json_free(base), json_free(steps);
}

static void test_refused_patterns(void) {
    static const char endless[] = "(?:a|b)*a(?:a|b){20}";
    static const struct { const char *regex, *says; } cases[] = {
        { "(?>a+)b", "this kind of group" }, { "(?<name>a)", "this kind of group" }, { "(?s:a)", "this kind of group" },
        { "(a)\\1", "this escape" }, { "\\Ra", "this escape" }, { "\\p{Script=Han}", "this property" },
        { "\\p{L", "a name in braces" }, { "\\xE4", "this number" }, { "(?:ab)++", "a possessive repetition" },
        { "(?:a?)+", "what may be empty" }, { "*a", "repetition of nothing" }, { "a{3,2}", "this repetition" },
        { "(?i:\xC3\xA4)", "letters beyond ASCII" }, { "(?i:miss)", "letters that can be one" },
        { "(?<=ab)c", "look-behind of more than one" }, { "[a-\\d]", "this range" }, { "[b-a]", "this range" },
        { "[[:alpha:]]", "a class of POSIX" }, { "[ab", "a [ without its ]" }, { "(ab", "a ( without its )" },
        { "ab)", "a ) without its (" }, { "ab\\", "a \\ at the end" }, { "a{4000}{4000}", "so many repetitions" },
        { endless, "too complicated" }, { "(?=aa)(?=ab)(?=ac)(?=ad)(?=ae)a", "more than four look-aheads" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Error e = { 0 };
        Pattern *p = pattern_open(cases[i].regex, strlen(cases[i].regex), 0, &e);
        check(!p && strstr(e.text, cases[i].says), "pattern %s: refused (%s)", cases[i].regex, e.text);
        pattern_close(p);
    }
    Text deep = { 0 };
    Error e = { 0 };
    for (int i = 0; i < 2000; i++) text_add(&deep, i < 1000 ? "(" : ")");
    check(!pattern_open(deep.at, deep.length, 0, &e) && strstr(e.text, "so deep"), "a deep pattern: %s", e.text);
    for (int i = 0; i < 2000; i++) text_add(&deep, "[a]");
    check(!pattern_open(deep.at, deep.length, 0, &e) && strstr(e.text, "8000 bytes"), "a long pattern: %s", e.text);
    free(deep.at);
}

/* A byte that is not UTF-8 is U+FFFD: no letter, but a symbol. */
static void test_matches(void) {
    static const struct { const char *regex; int is_text; const char *text; int count; Match match[4]; } cases[] = {
        { "\\p{S}", 0, "a\xFF\xE4\xB8" "b", 3, { { 1, 2 }, { 2, 3 }, { 3, 4 } } },
        { "[^a]+", 0, "a\xC3(", 1, { { 1, 3 } } }, { "a.c|b", 1, "b a.c abc", 0, { { 0, 0 } } },
        { "a.c", 1, "abca.c", 1, { { 3, 6 } } }, { "(?<=\xC3\xA4)b", 0, "ab\xC3\xA4" "bb", 1, { { 4, 5 } } },
        { "x*", 0, "axa", 3, { { 0, 0 }, { 1, 2 }, { 3, 3 } } },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Error e = { 0 };
        Match found[4];
        Pattern *p = pattern_open(cases[i].regex, strlen(cases[i].regex), cases[i].is_text, &e);
        check(p != NULL, "pattern %s: %s", cases[i].regex, e.text);
        if (!p) continue;
        PatternSearch search = { .p = p, .s = cases[i].text, .n = strlen(cases[i].text) };
        const int n = (int)pattern_next(&search, found, 4);
        int same = n == cases[i].count;
        for (int k = 0; k < n && same; k++)
            same = found[k].from == cases[i].match[k].from && found[k].to == cases[i].match[k].to;
        check(same, "pattern %s in \"%s\": %d matches", cases[i].regex, cases[i].text, n);
        pattern_close(p);
    }
}

/* Where texts may be cut for threads: after a letter, before a space. */
static void test_spaces(void) {
    static const struct { const char *regex; int stops, begins; } cases[] = {
        { " ?\\w+|\\s+", 1, 1 }, { "\\p{N}", 1, 0 }, { "\\w+ ?", 0, 0 }, { "\\w+(?! )", 0, 0 }, { "a b|\\s", 0, 1 },
        { "(?<!a) |\\n|\\w", 0, 0 }, { "a\\n?|\\s", 0, 1 }, { "\\w+| \\w", 1, 0 }, { "\\w+(?=ab)|\\s", 0, 0 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        Error e = { 0 };
        Pattern *p = pattern_open(cases[i].regex, strlen(cases[i].regex), 0, &e);
        check(p && pattern_stops_at_space(p) == cases[i].stops && pattern_begins_at_space(p) == cases[i].begins,
              "pattern %s: stops at a space: %d, begins there: %d %s", cases[i].regex, p && pattern_stops_at_space(p),
              p && pattern_begins_at_space(p), e.text);
        pattern_close(p);
    }
}

void test_patterns(void) {
    PART(test_steps()); PART(test_refused_patterns()); PART(test_matches()); PART(test_spaces());
}
