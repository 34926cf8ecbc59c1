/* api.c: bodies of requests to the API. The first byte says whether it is a chat, and which
 * tokenizer. A request is accepted, and then all of it is within its bounds, or refused with a
 * message, in an answer that is JSON. Then as what a model wrote, which may have calls in it. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/run/api.h"
#include "llmc/run/calls.h"

const int fuzz_is_json = 1;
static const char *const names[] = { "", "gpt2", "llama2" };
enum { TOKENIZERS = COUNT(names) };
static Tokenizer *tokenizer[TOKENIZERS];
static Chat chat;

static struct { int tokens, top_k; float temperature, top_p, min_p, penalty; int64_t seed; const char *stop; }
settings = { 256, 0, 0.8f, 0.95f, 0, 1, -1, "a\\nb" };
#define AT(name) (size_t)((char *)&settings.name - (char *)&settings)
#define ROW(l, k, name) { .letter = l, .kind = k, .field = AT(name) }
static Option rows[8];
static char given[8];

void fuzz_start(void) {
    const Option all[] = { ROW("n", OPTION_INT, tokens), ROW("t", OPTION_FLOAT, temperature),
                           ROW("p", OPTION_FLOAT, top_p), ROW("mp", OPTION_FLOAT, min_p),
                           ROW("k", OPTION_INT, top_k), ROW("rp", OPTION_FLOAT, penalty),
                           ROW("s", OPTION_LONG, seed), ROW("st", OPTION_TEXT, stop) };
    Error e;
    memcpy(rows, all, sizeof rows);
    fuzz_tokenizers(tokenizer, names, TOKENIZERS);
    if (!chat_open(&chat, "chatml", NULL, &e)) abort();
}

static void check_request(const Api *a, const ApiRequest *q) {
    fuzz_check(q->n >= 1 && q->prompts >= 1 && q->n * q->prompts <= API_CHOICES);
    fuzz_check(q->temperature >= 0 && q->top_k >= 0);
    fuzz_check(q->top_p >= 0 && q->top_p <= 1 && q->min_p >= 0 && q->min_p <= 1);
    fuzz_check(q->penalty > 0 && q->presence >= -2 && q->presence <= 2 && q->frequency >= -2 && q->frequency <= 2);
    fuzz_check(q->tokens >= 0 && q->tokens <= API_TOKENS && q->likely >= 0 && q->likely <= API_LIKELY);
    fuzz_check(q->seed >= -1);
    fuzz_check(q->logprobs || !q->likely);
    for (int i = 0; i < q->prompts; i++) {
        const ApiPrompt *p = &q->prompt[i];
        fuzz_check(p->count >= 1 && p->count <= a->capacity && (q->cut || p->count < a->capacity || !q->tokens));
        for (int k = 0; k < p->count; k++) fuzz_check(p->ids[k] >= 0 && p->ids[k] < a->vocab);
    }
    int stops = 0;
    for (char **stop = q->stops; stop && *stop; stop++, stops++) fuzz_check(**stop);
    fuzz_check(stops <= API_STOPS + 1);
}
static void read_calls(Part text) {
    Text calls = { 0 }, rest = { 0 };
    Error e;
    const int n = calls_read(text.at, text.bytes, "x", 1, &calls, &rest);
    Json *json = n ? json_parse(calls.at, calls.length, &e) : NULL;
    fuzz_check(n ? json && json_root(json)->length == (size_t)n && rest.length < text.bytes
                 : !calls.length && !rest.length);
    json_free(json), free(calls.at), free(rest.at);
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const unsigned how = fuzz_choice(&rest, 2 * TOKENIZERS);
    Tokenizer *t = tokenizer[how / 2];
    const Api a = { .name = "m", .options = { rows, COUNT(rows), &settings, given, NULL }, .tokenizer = t,
                    .chat = &chat, .vocab = tokenizer_vocab(t), .capacity = 64, .width = 4 };
    ApiError e = { .status = 0 };
    ApiRequest q;
    if (api_read(&a, &q, how & 1, rest.at, rest.bytes, &e)) check_request(&a, &q);
    else {
        Text body = { 0 };
        Error why;
        api_error(&e, &body);
        Json *json = json_parse(body.at, body.length, &why);
        fuzz_check(e.status >= 400 && e.status < 500 && *e.e.text && json);
        json_free(json), free(body.at);
    }
    api_free_request(&q);
    read_calls(rest);
}
