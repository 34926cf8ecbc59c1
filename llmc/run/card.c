/* card.c: see card.h. */
#include "card.h"
#include "llmc/files/families.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the text -------------------------------------------------------------------------------- */

/* The last part of a path, as code of Markdown. */
static void add_name(Text *t, const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from && path[from - 1] != '/') from--;
    text_add_string(t, "`");
    for (size_t i = from; i < n; i++) {
        const char c = path[i] == '`' || (unsigned char)path[i] < ' ' ? '_' : path[i];
        text_add_bytes(t, &c, 1);
    }
    text_add_string(t, "`");
}
/* What the Hub reads (huggingface.co/docs/hub/model-cards). A licence is the user's to name. */
static void add_metadata(Text *t, const Run *r) {
    text_add(t, "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n%s- smoe.c\n"
             "# license: fill it in, such as apache-2.0\n%s---\n\n", r->config.experts > 1 ? "- moe\n" : "",
             is_folder(r->s.model) ? "# base_model: fill in the Hub's name of the model it was trained from\n" : "");
}
static void add_model(Text *t, const Run *r) {
    const Config *c = &r->config;
    const size_t total = r->model.manifest.learnable;
    char descriptor[128];
    config_descriptor(c, descriptor);
    text_add_string(t, "# ");
    add_name(t, r->s.out);
    text_add(t, "\n\nA language model in the form of a `%s`.\n\n## Model\n\n", family_name(config_family(c)));
    text_add(t, "| | |\n| --- | --- |\n| parameters | %zu, %zu of them active for a token |\n", total,
             config_active(c, total));
    text_add(t, "| layers, channels | %d, %d |\n", c->layers, c->channels);
    if (c->experts > 1)
        text_add(t, "| experts | %d in a layer, %d per token, of width %d |\n", c->experts, c->topk, c->width);
    text_add(t, "| attention | %d query heads of %d, %d heads of keys and values |\n", c->kv_heads * c->query_heads,
             c->head_size, c->kv_heads);
    text_add(t, "| vocabulary, context | %d tokens%s, %d tokens |\n| in smoe.c's words | `%s` |\n", config_ids(c),
             r->tokenizer && tokenizer_vocab(r->tokenizer) == 256 ? " (bytes)" : "", c->context, descriptor);
}
static void add_training(Text *t, const Run *r) {
    const Settings *s = &r->s;
    const Progress *p = &r->progress;
    text_add_string(t, "\n## Training\n\nTrained with smoe.c on ");
    add_name(t, s->train);
    text_add(t, ", which has %lld tokens: %lld tokens in %lld steps of %lld.",
             (long long)data_tokens(r->data, DATA_TRAIN), (long long)p->tokens, (long long)p->step,
             (long long)tokens_per_step(r));
    if (is_folder(s->model)) {
        text_add_string(t, " It began with the weights of ");
        add_name(t, s->model);
        text_add_string(t, ".");
    }
    if (*s->upcycle) text_add(t, " Every expert began as a copy of its MLP (%s).", s->upcycle);
    if (data_has_chats(r->data)) text_add_string(t, " The data are conversations, of which the answers are learned.");
    text_add(t, " %s, peak learning rate %g, seed %lld, in %s, on %s; %.0f s. All settings: `settings.txt`.\n",
             s->optimizer == MUON ? "Muon and AdamW" : "AdamW", (double)s->lr, (long long)s->seed, r->dev->dtype,
             r->dev->is_gpu ? "a GPU" : "a CPU", p->seconds);
}
static void add_losses(Text *t, const Run *r) {
    const Best *best = &r->progress.best;
    const double bytes = (double)data_bytes(r->data, DATA_VALIDATION),
        tokens = (double)data_tokens(r->data, DATA_VALIDATION);
    if (best->step < 0) return;
    text_add(t, "\n## Losses\n\nBest validation loss %.4f nats per token", best->loss);
    if (bytes > 0) text_add(t, " (%.4f bits per byte)", best->loss * tokens / bytes / log(2));
    text_add(t, ", at step %lld, over %lld tokens in sequences of %lld.%s\n", (long long)best->step,
             (long long)best->tokens, (long long)best->length, r->progress.diverged ? " The run diverged later." : "");
}
static void add_use(Text *t, const Run *r) {
    const int own = config_family(&r->config) == FAMILY_SMOE,
        chats = data_has_chats(r->data) && *chat_name(data_chat(r->data));
    text_add(t, "\n## Use\n\n```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
             "model = AutoModelForCausalLM.from_pretrained(\"FOLDER\"%s)\n"
             "tokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")\n", own ? ", trust_remote_code=True" : "");
    if (chats)
        text_add_string(t, "messages = [{\"role\": \"user\", \"content\": \"Hello\"}]\n"
                        "ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, "
                        "return_tensors=\"pt\", return_dict=True)\n");
    else text_add_string(t, "ids = tokenizer(\"Hello\", return_tensors=\"pt\")\n");
    text_add(t, "print(tokenizer.decode(model.generate(**ids, max_new_tokens=100, tokenizer=tokenizer)[0]))\n```\n\n"
             "or `./infer_moe FOLDER%s`.\n", chats ? " -m chat" : "");
    text_add_string(t, "\n## Limits and licence\n\nNobody has checked what it says. Fill in: what it is for, what it "
                    "must not be used for, the licences of the data and of this model.\n");
}
void card_text(const Run *r, Text *t) {
    add_metadata(t, r);
    add_model(t, r);
    add_training(t, r);
    add_losses(t, r);
    add_use(t, r);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The last line says what the text before it was: a card that was edited is nobody else's. */
static const char mark[] = "\n<!-- written by smoe.c, which replaces this file unless it was edited: ";
static int is_ours(const char *text, size_t bytes) {
    const char *at = NULL;
    for (const char *next = text; (next = strstr(next, mark)); next++) at = next;
    char digits[17];
    if (!at || bytes < strlen(mark)) return 0;
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)hash_bytes(0, text, (size_t)(at - text)));
    return !strncmp(at + strlen(mark), digits, 16) && !strcmp(at + strlen(mark) + 16, " -->\n");
}
int card_write(const char *folder, const char *text, Error *e) {
    size_t bytes;
    char *path = text_format("%s/README.md", folder), *there = is_file(path) ? file_read(path, &bytes, e) : NULL;
    int written = 0;
    if (!is_file(path) || (there && is_ours(there, bytes))) {
        Text t = { 0 };
        text_add_string(&t, text);
        text_add(&t, "%s%016llx -->\n", mark, (unsigned long long)hash_bytes(0, text, strlen(text)));
        written = file_write(path, t.at, t.length, e) ? 1 : -1;
        free(t.at);
    } else if (!there) written = -1;
    free_each(path, there);
    return written;
}
