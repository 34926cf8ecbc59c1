/* log.c: the log of a run that is continued, and the report of it. The first byte is the step after
 * which lines are removed; then log.jsonl and main.log. The page may hold nothing that a browser
 * would run or that would spoil it, and is the same if the log is read while it grows. */
#define _GNU_SOURCE
#include "tests/fuzz/support/fuzz.h"
#include "llmc/run/log.h"
#include "llmc/run/report.h"

const int fuzz_is_json = 1;

/* The data end where they should, and are JSON. */
static void check_page(const char *page, size_t bytes) {
    static const char mark[] = "<script type=\"application/json\" id=\"data\">\n";
    Error e;
    fuzz_check_shown(page, bytes);
    const char *from = strstr(page, mark), *to = from ? strchr(from + sizeof mark - 1, '<') : NULL;
    fuzz_check(bytes > 100 && !strcmp(page + bytes - 8, "</html>\n") && to
               && !strncmp(to, "</script>\n<script>\n", 19));
    Json *json = json_parse(from + sizeof mark - 1, (size_t)(to - from) - sizeof mark + 1, &e);
    fuzz_check(json != NULL);
    json_free(json);
}

static char *page_written(size_t *bytes) {
    Error e;
    char *name = text_format("%s/report.html", fuzz_folder()), *page = file_read(name, bytes, &e);
    fuzz_check(page != NULL);
    free(name);
    return page;
}
static void check_growing(Part json, const char *page, size_t bytes) {
    Error e;
    size_t length;
    fuzz_file("log.jsonl", json.at, json.bytes / 2);
    Report *r = report_open(fuzz_folder());
    fuzz_check(report_update(r, 1, &e));
    fuzz_file("log.jsonl", json.at, json.bytes);
    fuzz_check(report_update(r, 0, &e));
    report_close(r);
    char *grown = page_written(&length);
    fuzz_check(length == bytes && !memcmp(grown, page, bytes));
    free(grown);
}
void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const int step = (int)fuzz_choice(&rest, 200) - 20;
    const Part json = fuzz_part(&rest);
    Error e = { 0 };
    Log log;
    const char *path = fuzz_file("log.jsonl", json.at, json.bytes);
    fuzz_file("main.log", rest.at, rest.bytes);
    if (!json_sealed(json.at, json.bytes, &e)) fuzz_check(*e.text);
    if (step >= 0) {                                            /* else the report of the log as it is */
        fuzz_check(log_open(&log, fuzz_folder(), step, "", &e));
        log_close(&log);
        size_t bytes;
        char *text = file_read(path, &bytes, &e);
        fuzz_check(text && bytes <= json.bytes);
        free(text);
    }
    size_t bytes;
    fuzz_check(report_write(fuzz_folder(), &e));
    char *page = page_written(&bytes);
    check_page(page, bytes);
    if (step < 0) check_growing(json, page, bytes);
    free(page);
}
