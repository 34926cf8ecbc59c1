/* log.c: the log of a run that is continued, and the report of it. The first byte is the step after which lines are removed; then
 * log.jsonl and main.log. The page may hold nothing that a browser would run or that would spoil it. */
#define _GNU_SOURCE
#include "tests/fuzz/support/fuzz.h"
#include "llmc/run/log.h"
#include "llmc/run/report.h"
#include <stdlib.h>
#include <string.h>

const int fuzz_is_json = 1;

/* Tags close in the order in which they were opened; every & begins an entity. */
static void check_page(const char *page, size_t bytes) {
    const char *open[64];
    int depth = 0;
    fuzz_check_shown(page, bytes);
    fuzz_check(bytes > 100 && !strncmp(page + bytes - 8, "</html>\n", 8) && !strstr(page, "<script"));
    for (const char *c = strchr(page, '<'); c; c = strchr(c, '<')) {
        const char *end = strchr(c, '>');
        fuzz_check(end && !memchr(c + 1, '<', (size_t)(end - c - 1)));
        const size_t n = strcspn(c + 1 + (c[1] == '/'), " />\n");
        if (c[1] == '/') { fuzz_check(depth > 0 && !strncmp(open[--depth], c + 2, n)); }
        else if (c[1] != '!' && c[1] != '?' && end[-1] != '/' && strncmp(c + 1, "meta", 4)) {
            fuzz_check(depth < 64);
            open[depth++] = c + 1;
        }
        c = end;
    }
    fuzz_check(depth == 0);
    for (const char *c = strchr(page, '&'); c; c = strchr(c + 1, '&')) fuzz_check(strspn(c + 1, "abcdefghijklmnopqrstuvwxyz#0123456789") > 1 && strchr(c, ';'));
}

void fuzz_one(const uint8_t *data, size_t size) {
    Part rest = { (const char *)data, size };
    const int step = (int)fuzz_choice(&rest, 200) - 20;
    const Part json = fuzz_part(&rest);
    Error e = { "" };
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
    char *name = text_format("%s/report.html", fuzz_folder()), *page = file_read(name, &bytes, &e);
    fuzz_check(page != NULL);
    check_page(page, bytes);
    free(page);
    free(name);
}
