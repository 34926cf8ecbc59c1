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

/* Other forms of vocabularies, and normalizers that lose text, are refused with the way out. */
static void test_other_forms(void) {
    static const struct { const char *file, *says; } is[] = {
        { "tiktoken.model", "convert_tiktoken_to_fast" }, { "cl100k_base.tiktoken", "tiktoken.get_encoding('NAME')" },
        { "tokenizer.model", "save_pretrained('FOLDER')" },
    };
    static const char nfkc[] = "{\"normalizer\": {\"type\": \"NFKC\"}}";
    Error e;
    for (size_t i = 0; i < COUNT(is); i++) {
        char *path = scratch_put(is[i].file, "IQ== 0\n", 7);
        Tokenizer *t = tokenizer_load(path, &e);
        check(!t && strstr(e.text, is[i].says) && strstr(e.text, is[i].file), "%s: %s", is[i].file,
              t ? "read" : e.text);
        tokenizer_free(t), free(path);
    }
    check(!tokenizer_load_text(nfkc, sizeof nfkc - 1, &e) && strstr(e.text, "NFKC is not supported")
          && strstr(e.text, "-i FILE.bin"), "NFKC: %s", e.text);
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

/* Tokens that only files beside tokenizer.json name, as Transformers 5.24 reads them. NULL: the
 * text of a file that is not there. */
#define TOKEN(content, more) "{\"content\":\"" content "\",\"lstrip\":false,\"rstrip\":false,\"normalized\":false," \
    "\"single_word\":false" more "}"
#define DECODER(id, content, more) "{\"added_tokens_decoder\":{\"" id "\":" TOKEN(content, more) "}}"
static void test_files_beside(void) {
    static const struct {
        const char *config, *map, *added, *text;
        int vocab, count, ids[4];
        const char *says;
    } cases[] = {
        { NULL, NULL, NULL, "a<|a|>", 450, 6, { 65, 28, 92, 65 }, NULL },
        { DECODER("450", "<|a|>", ",\"special\":true"), NULL, NULL, "a<|a|>b", 451, 3, { 65, 450, 66 }, NULL },
        { DECODER("450", "<|a|>", ""), "{\"eos_token\":\"<|b|>\"}", NULL, "<|a|>", 451, 1, { 450 }, NULL },
        { "{\"eos_token\":\"<|b|>\",\"pad_token\":\"<p>\"}", NULL, NULL, "<|b|><p>", 452, 2, { 450, 451 }, NULL },
        { "{\"eos_token\":\"<s>\"}", "{\"bos_token\":\"<|a|>\",\"eos_token\":" TOKEN("<|b|>", "") "}", NULL,
          "<|a|><|b|>", 452, 2, { 450, 451 }, NULL },
        { "{\"additional_special_tokens\":[\"<|a|>\"],\"image_token\":\"<|b|>\"}", NULL, NULL, "<|b|><|a|>", 452, 2,
          { 450, 451 }, NULL },
        { "{\"extra_special_tokens\":{\"x\":\"<|a|>\"},\"eos_token\":\"the\"}", NULL, NULL, "<|a|>", 452, 1, { 451 },
          NULL },
        { NULL, "{\"additional_special_tokens\":[\"<|b|>\"]}", NULL, "<|b|>", 451, 1, { 450 }, NULL },
        { NULL, NULL, "{\"<|b|>\":451,\"<|a|>\":450}", "<|b|><|a|>", 452, 2, { 451, 450 }, NULL },
        { "{\"added_tokens_decoder\":{\"0\":{\"content\":\"<|endoftext|>\",\"lstrip\":true,\"special\":true}}}", NULL,
          NULL, "a <|endoftext|>", 450, 2, { 65, 0 }, NULL },
        { DECODER("452", "<|a|>", ""), NULL, NULL, "", 0, 0, { 0 }, "gives it 450" },
        { "{\"add_prefix_space\":true}", NULL, NULL, "", 0, 0, { 0 }, "write the same in both" },
        { NULL, "{\"eos_token\":", NULL, "", 0, 0, { 0 }, "special_tokens_map.json" },
    };
    static const char *const names[] = { "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json" };
    char *folder = scratch_path("beside"), *path = text_format("%s/tokenizer.json", folder);
    size_t bytes = 0;
    Error e = { 0 };
    char *json = file_read("tests/reference/tokenizers/gpt2.json", &bytes, &e);
    if (!json || !folder_make(folder, &e) || !file_write(path, json, bytes, &e)) fail(EXIT_INPUT, "%s", e.text);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *const texts[] = { cases[i].config, cases[i].map, cases[i].added };
        for (int k = 0; k < 3; k++) {
            char *file = text_format("%s/%s", folder, names[k]);
            if (texts[k]) file_write(file, texts[k], strlen(texts[k]), &e); else remove(file);
            free(file);
        }
        Tokenizer *t = tokenizer_load(path, &e);
        if (!t) check(cases[i].says && strstr(e.text, cases[i].says), "files beside, case %zu: %s", i, e.text);
        if (!t) continue;
        int *ids, same;
        const int n = (int)tokenizer_encode(t, cases[i].text, strlen(cases[i].text), &ids);
        same = n == cases[i].count && tokenizer_vocab(t) == cases[i].vocab && !cases[i].says;
        for (int k = 0; k < n && k < 4 && same; k++) same = ids[k] == cases[i].ids[k];
        check(same, "files beside, case %zu: %d ids of %d tokens", i, n, tokenizer_vocab(t));
        size_t length;
        const char *merged = tokenizer_json(t, &length);        /* what is saved needs no files beside it */
        Tokenizer *again = tokenizer_load_text(merged, length, &e);
        check(again && tokenizer_vocab(again) == tokenizer_vocab(t), "files beside, case %zu: saved %s", i, e.text);
        free(ids), tokenizer_free(again), tokenizer_free(t);
    }
    free(json), free(path), free(folder);
}

void test_patterns(void) {
    PART(test_files_beside());
    PART(test_steps()); PART(test_other_forms());
    PART(test_refused_patterns()); PART(test_matches()); PART(test_spaces());
}
