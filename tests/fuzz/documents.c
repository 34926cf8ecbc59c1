/* documents.c: JSONL. Documents lie one after another in the text, in the order of their lines;
 * holding some out and cutting all of them into jobs loses no byte. */
#include "tests/fuzz/support/fuzz.h"
#include "llmc/data/chat.h"
#include "llmc/data/documents.h"

const int fuzz_is_json = 1;
static Chat chat;
void fuzz_start(void) {
    Error e;
    if (!chat_open(&chat, "chatml", NULL, &e)) abort();
}

static void check_jobs(const Source *s, int divisible) {
    Job *jobs;
    const size_t n = documents_jobs(s->document, s->documents, divisible, &jobs);
    size_t bytes = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        size_t of_job = 0;
        for (size_t k = 0; k < jobs[i].count; k++) {
            int last;
            of_job += job_piece(&jobs[i], k, &last).bytes;
        }
        fuzz_check(of_job == jobs[i].bytes);
        bytes += of_job;
    }
    for (size_t i = 0; i < s->documents; i++) all += s->document[i].bytes;
    fuzz_check(bytes == all);
    free(jobs);
}
static void check_held_out(const Source *s) {
    Documents train, held_out;
    size_t bytes = 0, all = 0;
    source_hold_out(s, &train, &held_out);
    for (size_t i = 0; i < train.count; i++) bytes += train.at[i].bytes;
    for (size_t i = 0; i < held_out.count; i++) bytes += held_out.at[i].bytes;
    for (size_t i = 0; i < s->documents; i++) all += s->document[i].bytes;
    fuzz_check(bytes == all);
    free(train.at), free(held_out.at);
}
void fuzz_one(const uint8_t *data, size_t size) {
    Source s = { 0 };
    Error e = { 0 };
    char *text = mem_alloc(size + 1);
    if (size) memcpy(text, data, size);
    source_take_text(&s, "x.jsonl", text, size);
    source_hash(&s, 1);
    if (source_parse(&s, &chat, "", &e)) {
        const char *before = s.text;
        for (size_t i = 0; i < s.documents; i++) {
            const Document d = s.document[i];
            fuzz_check(d.bytes && d.at >= before && d.at + d.bytes <= s.text + s.bytes
                       && utf8_valid(d.at, d.bytes) == d.bytes);
            before = d.at + d.bytes;
        }
        check_jobs(&s, 0);
        check_jobs(&s, 1);
        check_held_out(&s);
    } else fuzz_check(*e.text);
    source_free(&s);
}
