/* config.c: config.json of a model, and the descriptor of -e. What is accepted can be counted,
 * written and read again as the same. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/files/config_json.h"
#include "llmc/files/hf.h"
#include "llmc/model/model.h"
#include <math.h>

const int fuzz_is_json = 1;

static void write_again(const Config *c) {
    Text t = { 0 };
    Error e = { 0 };
    Config again;
    config_to_json(c, "F32", 1, &t);
    Json *json = json_parse(t.at, t.length, &e);
    fuzz_check(json && config_from_json(&again, json_root(json), &e) && config_same(c, &again, &e));
    json_free(json), free(t.at);
}
/* The same model by its descriptor, if that is short enough to hold all. */
static void describe_again(const Config *c) {
    char text[128];
    Config again;
    Error e;
    config_descriptor(c, text);
    fuzz_check(strlen(text) < sizeof text - 1 && config_parse(&again, text, &e));
    again.vocab = c->vocab, again.context = c->context;
    fuzz_check(config_same(c, &again, &e));
}
static void use(const Config *c) {
    Error e;
    fuzz_check(config_check(c, &e) && isfinite(config_flops(c, 16)) && family_name(config_family(c)));
    fuzz_check(c->layers >= 1 && c->layers <= 10000);
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    Config c;
    Error e = { 0 };
    if (fuzz_choice(&rest, 2)) {
        char *text = fuzz_text(rest);
        if (config_parse(&c, text, &e)) {
            c.vocab = 100, c.context = 32;
            if (config_check(&c, &e)) {
                use(&c);
                describe_again(&c);
                write_again(&c);
            }
        } else fuzz_check(*e.text);
        free(text);
        return;
    }
    fuzz_file("config.json", rest.at, rest.bytes);
    if (hf_load_config(fuzz_folder(), &c, &e)) {
        use(&c);
        write_again(&c);
        char text[128];
        config_descriptor(&c, text);
    } else fuzz_check(*e.text);
}
