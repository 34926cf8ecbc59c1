/* questions.c: multiple-choice questions in all forms. The first byte picks the tokenizer. Every
 * choice of what is accepted has tokens of the vocabulary and something in front of them; cutting
 * to a context keeps the choice, or says that it cannot. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/questions.h"

const int fuzz_is_json = 1;

static const char *const names[] = { "", "gpt2", "llama2", "llama2_v5" };
enum { TOKENIZERS = COUNT(names) };
static Tokenizer *tokenizer[TOKENIZERS];

void fuzz_start(void) { fuzz_tokenizers(tokenizer, names, TOKENIZERS); }

static void check_all(const Questions *q, int vocab) {
    size_t line = 0;
    for (size_t i = 0; i < q->count; i++) {
        const Question *one = &q->at[i];
        fuzz_check(one->line > line && one->choices >= 2 && one->answer >= 0 && one->answer < one->choices);
        line = one->line;
        for (int k = 0; k < one->choices; k++) {
            const Candidate *c = &one->choice[k];
            fuzz_check(c->scored > 0 && c->scored < c->count && c->characters >= 0);
            for (int t = 0; t < c->count; t++) fuzz_check(c->ids[t] >= 0 && c->ids[t] < vocab);
        }
    }
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const unsigned kind = fuzz_choice(&rest, TOKENIZERS + 1);
    const Tokenizer *t = kind < TOKENIZERS ? tokenizer[kind] : NULL;
    const int vocab = t ? tokenizer_vocab(t) : 300, context = 3 + (int)(size % 40);
    Questions q;
    Error e = { 0 };
    size_t cut;
    if (!questions_parse(&q, "x", rest.at, rest.bytes, t, vocab, &e)) { fuzz_check(*e.text && !q.count); return; }
    fuzz_check(q.count > 0);
    check_all(&q, vocab);
    if (questions_cut(&q, "x", context, &cut, &e)) {
        fuzz_check(cut <= q.count);
        for (size_t i = 0; i < q.count; i++)
            for (int k = 0; k < q.at[i].choices; k++) fuzz_check(q.at[i].choice[k].count <= context + 1);
        check_all(&q, vocab);
    } else fuzz_check(*e.text);
    questions_free(&q);
}
