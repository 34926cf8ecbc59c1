/* test_report.c: the page of a run. Its data are read back and compared with the log. Truncated and
 * damaged logs must still give a whole page. Steps that a resumed run has redone must not appear.
 * How the page draws them: tests/report.sh, in a browser. */
#include "tests/test.h"
#include "llmc/run/plot.h"
#include "llmc/run/report.h"
#include "llmc/base/json.h"
#include <math.h>

/* ---- helpers --------------------------------------------------------------------------------- */

/* The page of a log; NULL and a message if there is none. free() it. */
static char *page_of(const char *log, size_t bytes) {
    Error e;
    size_t size;
    char *path = scratch_put("log.jsonl", log, bytes), *html = scratch_path("report.html"), *page = NULL;
    remove(html);
    if (report_write(scratch(), &e)) page = file_read(html, &size, &e);
    if (!page) printf("%s\n", e.text);
    free(path), free(html);
    return page;
}
static char *page_of_text(const Text *log) { return page_of(log->at ? log->at : "", log->length); }

/* The data of a page, parsed; NULL and a message if they are not there or not JSON. The page must
 * be whole, and its data must not contain what HTML would read: json_free() them. */
static const char mark[] = "<script type=\"application/json\" id=\"data\">\n";
static Json *data_of(const char *page, const char *what) {
    Error e = { .text = "no page" };
    Json *json = NULL;
    const char *from = page ? strstr(page, mark) : NULL, *to = from ? strstr(from, "</script>") : NULL;
    const size_t length = page ? strlen(page) : 0;
    if (to && length > 8 && !strcmp(page + length - 8, "</html>\n") && !page[utf8_valid(page, length)]) {
        from += sizeof mark - 1;
        json = memchr(from, '<', (size_t)(to - from)) ? NULL : json_parse(from, (size_t)(to - from), &e);
    }
    if (!json) printf("%s: no data in the page: %s\n", what, e.text);
    return json;
}
static Json *data_of_text(const Text *log) {
    char *page = page_of_text(log);
    Json *json = data_of(page, "page");
    free(page);
    if (!json) fail(EXIT_INPUT, "no data in the page");
    return json;
}
static int is_complete(const char *page, const char *what) {
    Json *json = data_of(page, what);
    json_free(json);
    return json != NULL;
}
static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *c = text; (c = strstr(c, what)); c += strlen(what)) n++;
    return n;
}
static double number_of(const JsonValue *o, const char *key) { return json_double(json_get(o, key), NAN); }
static const JsonValue *curve_of(const Json *json, const char *name) {
    return json_get(json_get(json_root(json), "curves"), name);
}
/* Of an array of numbers; NaN for null. Returns how many. */
static int values_of(const JsonValue *array, double *x, int capacity) {
    int n = 0;
    for (const JsonValue *v = json_first(array); v && n < capacity; v = v->next) x[n++] = json_double(v, NAN);
    return n;
}

static void add_step(Text *log, int step, double loss) {
    text_add(log, "{\"event\":\"step\",\"step\":%d,\"loss\":%.6f,\"norm\":1.5,\"lr\":0.001,\"ms\":100,"
                  "\"tok_s\":5000,", step, loss);
    text_add(log, "%s\n", "\"balance\":1.25,\"z\":0.5,\"att_balance\":1.125,\"max_load\":2,\"dead\":0}");
}
static void add_start(Text *log) {
    text_add(log, "%s\n", "{\"event\":\"start\",\"time\":\"T\",\"version\":\"v\",\"device\":\"cpu-f32\","
                          "\"model\":\"m4:c128\",\"family\":\"jetmoe\",\"parameters\":1921408,"
                          "\"active\":611000,\"data\":\"one <line> & \\\"two\\\"\",\"fallback\":false,"
                          "\"train_tokens\":1003854,\"val_tokens\":111540,"
                          "\"options\":{\"train\":\"data\",\"steps\":20,\"rate\":0.001,\"tied\":true,"
                          "\"prompt\":null,\"list\":[1,\"a\",[2]]}}");
}
/* A small log of every event. */
static void add_everything(Text *log) {
    add_start(log);
    for (int s = 1; s <= 20; s++) {
        add_step(log, s, 5 - 0.1 * s);
        if (s % 10) continue;
        text_add(log, "{\"event\":\"val\",\"step\":%d,\"loss\":%d.5,\"bits_per_byte\":3.25,\"best\":%d.5,"
                      "\"best_step\":%d}\n", s, 5 - s / 10, 5 - s / 10, s);
        text_add(log, "{\"event\":\"usage\",\"step\":%d,\"validation_seconds\":0.25,\"peak_memory\":5e7}\n", s);
        text_add(log, "{\"event\":\"load\",\"step\":%d,\"routers\":["
                      "{\"name\":\"layer 0 attention\",\"load\":[10,10,10,10]},"
                      "{\"name\":\"layer 0 mlp\",\"load\":[0,16,%d,20]}]}\n", s, s / 10 * 4);
        text_add(log, "{\"event\":\"sample\",\"step\":%d,\"text\":\"\\n\\u0000<script>alert('x')</script> "
                      "\\\"&amp; %d\\u202e\\ufffe\"}\n", s, s);
    }
    text_add(log, "%s\n", "{\"event\":\"warning\",\"step\":12,\"text\":\"slow <disk>\"}\n"
             "{\"event\":\"skip\",\"step\":12,\"tensor\":\"layers.0.up\"}\n{\"event\":\"news\",\"step\":13}\n"
             "{\"event\":\"end\",\"steps\":20,\"seconds\":3725,\"best\":3.5,\"best_step\":20,"
             "\"tokens\":819200,\"tok_s\":10234,\"fingerprint\":\"abc123\"}");
}

/* ---- what is in the data --------------------------------------------------------------------- */

static void test_contents(void) {
    static const char *const curves[] = { "loss", "val", "lr", "norm", "balance", "att_balance", "max_load", "tok_s",
                                          "z", "ms" };
    Text log = {0};
    add_everything(&log);
    char *page = page_of_text(&log);
    Json *json = data_of(page, "every event");
    const JsonValue *d = json ? json_root(json) : NULL, *start = json_get(d, "start"), *end = json_get(d, "end");
    const JsonValue *samples = json_get(json_get(d, "samples"), "list"), *options = json_get(start, "options");
    check(json != NULL, "report: data with every event");
    for (size_t i = 0; json && i < COUNT(curves); i++)
        check(curve_of(json, curves[i]) != NULL, "report: a curve of %s", curves[i]);
    check(json && !curve_of(json, "dead"), "report: no curve of zeros");
    check(!strcmp(json_string(json_get(start, "data"), ""), "one <line> & \"two\""), "report: the data's name");
    check(json_int(json_get(start, "parameters"), 0) == 1921408
          && !strcmp(json_string(json_get(end, "fingerprint"), ""), "abc123"), "report: start and end of the run");
    check(json_bool(json_get(options, "tied"), 0) && json_get(options, "prompt") && number_of(options, "rate") == 0.001,
          "report: options");
    check(number_of(d, "best") == 3.5 && number_of(d, "best_step") == 20
          && number_of(d, "best_bits") == 3.25 && number_of(d, "step") == 20, "report: the best validation");
    check(number_of(d, "validation_seconds") == 0.5 && number_of(d, "peak_memory") == 5e7, "report: seconds, memory");
    check(!strcmp(json_string(json_get(json_first(samples), "text"), ""),
                  "\n\xE2\x90\x80<script>alert('x')</script> \"&amp; 10\xE2\x80\xAE\xEF\xBF\xBD"),
          "report: a sample as it is, but for control characters");
    check(number_of(json_first(samples), "step") == 10 && number_of(json_first(samples)->next, "step") == 20,
          "report: samples in order");
    const JsonValue *warnings = json_get(json_get(d, "warnings"), "list");
    check(!strcmp(json_string(json_get(json_first(warnings), "text"), ""), "slow <disk>") &&
          strstr(json_string(json_get(json_first(warnings)->next, "text"), ""), "layers.0.up"), "report: warnings");
    check(number_of(d, "damaged") == 0 && number_of(d, "every") == 0, "report: no complaints, and no further page");
    check(page && count(page, "://") == 1 && strstr(page, "://www.w3.org/2000/svg'") && !strstr(page, "<link")
          && !strstr(page, "@import") && !strstr(page, " src=") && strstr(page, "default-src 'none'"),
          "report: nothing from elsewhere, but the name of SVG");
    json_free(json), free(page), free(log.at);
}

/* A long run: data are bounded, and one bad step of many is still visible, at its step. */
static void test_thinning(void) {
    enum { STEPS = 50000, SPIKE = 31000, MOST = 1100 };
    static double x[MOST], y[MOST], high[MOST], low[MOST];
    Text log = {0};
    int highest = 0;
    double worst = 0;
    for (int s = 1; s <= STEPS; s++) add_step(&log, s, s == SPIKE ? 9 : 10 - 1e-4 * s);
    char *page = page_of_text(&log);
    Json *json = data_of(page, "thinning");
    const JsonValue *loss = curve_of(json, "loss");
    const int n = values_of(json_get(loss, "x"), x, MOST);
    check(n >= 512 && n <= 1024 && values_of(json_get(loss, "y"), y, MOST) == n
          && values_of(json_get(loss, "high"), high, MOST) == n &&
          values_of(json_get(loss, "low"), low, MOST) == n, "report: %d steps thinned to %d points", STEPS, n);
    check(page && strlen(page) < 300000, "report: page of %zu bytes", page ? strlen(page) : 0);
    for (int i = 0; i < n; i++) {
        if (high[i] - low[i] > high[highest] - low[highest]) highest = i;
        if (fabs(x[i] - SPIKE) > 100) worst = fmax(worst, fabs(y[i] - (10 - 1e-4 * x[i])));
    }
    check_error(n ? worst : NAN, 1e-4, "report: means of a line lie on it");
    check_error(fabs(x[highest] - SPIKE), 64, "report: the spike is at its step");
    check(high[highest] == 9, "report: the spike has its height");
    check(!json_get(curve_of(json, "lr"), "x"), "report: steps are written once");
    json_free(json), free(page), free(log.at);
}

static void test_gaps(void) {
    static double y[16];
    Text log = {0};
    for (int s = 1; s <= 9; s++)
        if (s == 4 || s == 6) text_add(&log, "{\"event\":\"step\",\"step\":%d,\"loss\":null,\"norm\":1e300}\n", s);
        else add_step(&log, s, s);
    text_add(&log, "%s\n", "{\"event\":\"val\",\"step\":9,\"loss\":4,\"bits_per_byte\":0}");          /* 0: not known */
    Json *json = data_of_text(&log);
    int n = values_of(json_get(curve_of(json, "loss"), "y"), y, 16), good = n == 9;
    for (int i = 0; i < n; i++) good &= i == 3 || i == 5 ? isnan(y[i]) : y[i] == i + 1;
    check(good, "report: null leaves a gap");
    n = values_of(json_get(curve_of(json, "norm"), "y"), y, 16);
    check(n == 9 && isnan(y[3]) && y[4] == 1.5, "report: an outlier is a gap");
    check(number_of(json_root(json), "best") == 4 && json_get(json_root(json), "end")->type == JSON_NULL, "no end");
    json_free(json), free(log.at);
}

/* Loads, in hundredths of the mean, of each column of time. */
static void test_heat(void) {
    enum { EVENTS = 2000, E = 5 };
    static const int load[E] = { 0, 10, 20, 30, 40 };       /* / mean: 0, 0.5, 1, 1.5, 2 */
    static double steps[300], values[300 * E];
    Text log = {0};
    for (int s = 1; s <= EVENTS; s++) {
        text_add(&log, "{\"event\":\"load\",\"step\":%d,\"routers\":[{\"name\":\"<r>\",\"load\":[", s);
        for (int e = 0; e < E; e++) text_add(&log, "%s%d", e ? "," : "", load[e]);
        text_add(&log, "]},{\"name\":\"turns\",\"load\":[%d,%d]},{\"name\":\"none\",\"load\":[0,0,0]}]}\n",
                 s <= 800, s > 800);
        if (s == 7)
            text_add(&log, "{\"event\":\"load\",\"step\":7,\"routers\":[{\"name\":\"other\"," "\"load\":[1,2]}]}\n");
    }
    Json *json = data_of_text(&log);
    const JsonValue *loads = json_get(json_root(json), "loads"), *router = json_first(json_get(loads, "routers"));
    const int columns = values_of(json_get(loads, "steps"), steps, 300);
    check(columns >= 128 && columns <= 256 && steps[columns - 1] == EVENTS, "%d loads, %d columns", EVENTS, columns);
    int even = columns > 0;
    for (int i = 0; i < columns - 1; i++) even &= steps[i] == (i + 1) * steps[0];
    check(even, "report: a column is named by its last step");
    check(!strcmp(json_string(json_get(router, "name"), ""), "<r>") && number_of(router, "experts") == E,
          "report: a router's name and experts");
    int good = values_of(json_get(router, "load"), values, 300 * E) == columns * E;
    for (int i = 0; good && i < columns * E; i++) good &= values[i] == 5 * load[i % E];
    check(good, "report: the load of each expert in each column");
    good = values_of(json_get(router->next, "load"), values, 300 * E) == columns * 2;
    for (int i = 1; good && i < columns; i++)
        if (steps[i] <= 800 || steps[i - 1] >= 800)
            good &= values[2*i] == (steps[i] <= 800 ? 200 : 0) && values[2*i] + values[2*i + 1] == 200;
    check(good, "report: loads change at their step");
    good = values_of(json_get(router->next->next, "load"), values, 300 * E) == columns * 3 && !router->next->next->next;
    for (int i = 0; good && i < columns * 3; i++) good &= values[i] == 0;
    check(good, "report: a router without tokens; other routers are left out");
    json_free(json), free(log.at);
}

/* ---- steps that were redone ------------------------------------------------------------------ */

static void add_part(Text *log, int from, int to, double loss) {
    for (int s = from; s <= to; s++) {
        add_step(log, s, loss + 0.001 * s);
        if (s % 5) continue;
        text_add(log, "{\"event\":\"val\",\"step\":%d,\"loss\":%.3f}\n", s, loss);
        text_add(log, "{\"event\":\"sample\",\"step\":%d,\"text\":\"%g\"}\n", s, loss);
        text_add(log, "{\"event\":\"load\",\"step\":%d,\"routers\":[{\"name\":\"r\",\"load\":[1,%.0f]}]}\n", s, loss);
    }
}
static int same_page(const Text *a, const Text *b) {
    char *one = page_of_text(a), *two = page_of_text(b);
    const int same = one && two && !strcmp(one, two) && is_complete(one, "resumed");
    free(one), free(two);
    return same;
}
static int has_end(const Text *log) {
    Json *json = data_of_text(log);
    const int has = json_is(json_get(json_root(json), "end"), JSON_OBJECT);
    json_free(json);
    return has;
}
static void test_resume(void) {
    static const char *const resume = "{\"event\":\"resume\",\"step\":%d}\n";
    static double x[200];
    Text clean = {0}, lost = {0}, twice = {0}, again = {0}, shorter = {0}, shorter_lost = {0};
    add_part(&clean, 1, 40, 3);
    text_add(&clean, resume, 40);
    add_part(&clean, 41, 60, 2);

    add_part(&lost, 1, 40, 3);
    add_part(&lost, 41, 55, 1);                             /* redone below */
    text_add(&lost, resume, 40);
    add_part(&lost, 41, 60, 2);
    check(same_page(&clean, &lost), "report: steps after the resumed checkpoint do not appear");

    add_part(&twice, 1, 40, 3);
    add_part(&twice, 41, 70, 1);
    /* goes back without a resume event, then ends */
    text_add(&twice, "%s", "{\"event\":\"step\",\"step\":20,\"loss\":0.5}\n");
    add_part(&twice, 21, 22, 9);
    for (int s = 1; s <= 3; s++) text_add(&twice, "{\"event\":\"step\",\"step\":%d,\"loss\":7}\n", s);
    text_add(&twice, resume, 0);
    add_part(&twice, 1, 40, 3);
    text_add(&twice, resume, 40);
    add_part(&twice, 41, 60, 2);
    Json *json = data_of_text(&twice);
    const int n = values_of(json_get(curve_of(json, "loss"), "x"), x, 200);
    int ascend = n == 60;
    for (int i = 1; i < n; i++) ascend &= x[i] > x[i - 1];
    check(ascend, "report: several restarts, %d points in order", n);
    json_free(json);
    add_part(&shorter, 1, 30, 3);
    add_part(&shorter_lost, 1, 50, 4);
    add_part(&shorter_lost, 1, 30, 3);                      /* a new run in the same folder */
    check(same_page(&shorter, &shorter_lost), "report: a run that starts over replaces the old one");

    add_everything(&again);
    check(has_end(&again), "report: ended");
    text_add(&again, resume, 20);
    check(!has_end(&again), "report: a run resumed after its end has no end");
    free(clean.at); free(lost.at); free(twice.at); free(again.at); free(shorter.at); free(shorter_lost.at);
}

/* A page renewed while the log grows, by any number of bytes, ends as that of the whole log. */
static void test_live(void) {
    Error e = { 0 };
    Text log = {0};
    add_everything(&log);
    add_part(&log, 21, 60, 2);
    text_add(&log, "%s", "{\"event\":\"resume\",\"step\":40,\"command\":\"again\"}\n");
    add_part(&log, 41, 1500, 1);
    char *path = scratch_path("log.jsonl"), *html = scratch_path("report.html"), *expected = page_of_text(&log);
    size_t bytes, pages = 0;
    for (int trial = 0; trial < 4; trial++) {
        FILE *f = fopen(path, "wb");
        Report *r = report_open(scratch());
        int good = f != NULL && report_due(r);
        for (size_t at = 0; f && at < log.length; pages++) {
            size_t n = 1 + (size_t)(uniform() * (trial ? 40000 : 4000));
            if (n > log.length - at) n = log.length - at;
            good &= fwrite(log.at + at, 1, n, f) == n && fflush(f) == 0;
            good &= report_update(r, at + n < log.length, &e) && !report_due(r);
            at += n;
        }
        char *page = file_read(html, &bytes, &e);
        check(good && page && expected && !strcmp(page, expected),
              "report: a page renewed while the log grows is that of the whole log %s", e.text);
        free(page), report_close(r);
        if (f) fclose(f);
    }
    check(pages > 40, "report: %zu pages", pages);

    FILE *f = fopen(path, "wb"); /* a run that goes on says when to look again, and one that has ended does not */
    Report *r = report_open(scratch());
    Text part = {0};
    add_part(&part, 1, 9, 3);
    if (f) fwrite(part.at, 1, part.length, f);
    if (f) fflush(f);
    for (int ended = 0; f && ended < 2; ended++) {
        if (ended) fprintf(f, "{\"event\":\"end\",\"steps\":9}\n");
        fflush(f);
        char *page = report_update(r, 1, &e) ? file_read(html, &bytes, &e) : NULL;
        Json *json = data_of(page, "live");
        const double every = json ? number_of(json_root(json), "every") : NAN;
        check(ended ? every == 0 : every >= 3 && number_of(json_root(json), "written") > 1.7e9,
              "report: the next page in %g seconds", every);
        json_free(json), free(page);
    }
    report_close(r);
    if (f) fclose(f);
    free(path); free(html); free(expected); free(log.at); free(part.at);
}

static void test_damage(void) {
    Error e;
    Text log = {0};
    add_everything(&log);
    size_t cuts = 0, good = 0;
    /* truncated anywhere: no complaint */
    for (size_t n = 0; n <= log.length; n += 1 + (size_t)(uniform() * 200), cuts++) {
        char *page = page_of(log.at, n);
        Json *json = data_of(page, "torn");
        good += json && number_of(json_root(json), "damaged") == 0;
        json_free(json), free(page);
    }
    check(cuts > 20 && good == cuts, "report: %zu of %zu truncated logs give a complete page", good, cuts);

    /* that any damage gives a whole page: fuzz/log.c */
    *strstr(log.at, "{\"event\":\"step\",\"step\":12") = '[';
    Json *json = data_of_text(&log);
    check(number_of(json_root(json), "damaged") > 0, "report: damage within the log is reported");
    json_free(json), free(log.at);
    check(!report_write("/nonexistent", &e) && strstr(e.text, "/nonexistent/log.jsonl"),
          "report: without a log there is no page but an error");
}

/* The page is bounded even with very many samples, options and routers, and long texts. */
static void test_bounds(void) {
    Text log = {0};
    text_add(&log, "%s", "{\"event\":\"start\",\"options\":{");
    for (int i = 0; i < 3000; i++) text_add(&log, "%s\"option %d\":%d", i ? "," : "", i, i);
    text_add(&log, "%s", "}}\n");
    for (int s = 1; s <= 100; s++) {
        text_add(&log, "{\"event\":\"sample\",\"step\":%d,\"text\":\"", s);
        for (int i = 0; i < 20000; i++) text_add_bytes(&log, "\xC3\xA9", 2);
        text_add(&log, "%s", "\"}\n");
    }
    for (int s = 1; s <= 20; s++) {
        text_add(&log, "{\"event\":\"load\",\"step\":%d,\"routers\":[", s);
        for (int r = 0; r < 200; r++) {
            text_add(&log, "%s{\"name\":\"router %d.\",\"load\":[", r ? "," : "", r);
            for (int k = 0; k < (r == 3 ? 900 : 20); k++) text_add(&log, "%s%d", k ? "," : "", (int)(uniform() * 100));
            text_add(&log, "%s", "]}");
        }
        text_add(&log, "%s", "]}\n");
    }
    char *page = page_of_text(&log);
    Json *json = data_of(page, "bounds");
    const JsonValue *d = json ? json_root(json) : NULL, *samples = json_get(d, "samples"),
        *list = json_get(samples, "list");
    const JsonValue *routers = json_get(json_get(d, "loads"), "routers"),
        *options = json_get(json_get(d, "start"), "options");
    check(page && strlen(page) < 1000000, "report: %zu bytes of log, %zu of page", log.length, page ? strlen(page) : 0);
    int good = list && list->length == 32 && number_of(samples, "hidden") == 68, s = 1;
    for (const JsonValue *v = json_first(list); v; v = v->next, s += s == 8 ? 69 : 1)
        good &= number_of(v, "step") == s && json_get(v, "text")->length <= 4003;
    check(good, "report: the first 8 and the last 24 samples in order, cut");
    check(routers && routers->length == 128 && number_of(json_get(d, "loads"), "hidden") == 72, "128 routers");
    check(options && options->length == 512 && json_get(options, "option 511"), "report: the first 512 options");
    json_free(json), free(page), free(log.at);
}

/* ---- the terminal ---------------------------------------------------------------------------- */

static char *plot_of(const double *x, const double *y, int n, int width, int height, int utf8) {
    FILE *f = tmpfile();
    if (!f) fail(EXIT_DISK, "no temporary file");
    plot_terminal(f, x, y, n, width, height, "title", utf8);
    const long size = ftell(f);
    char *text = mem_alloc((size_t)size + 1);
    rewind(f);
    if (fread(text, 1, (size_t)size, f) != (size_t)size) fail(EXIT_DISK, "temporary file cannot be read");
    fclose(f);
    return text;
}
static int widest(const char *text) {                       /* in characters */
    int most = 0, n = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '\n') n = 0;
        else if (((unsigned char)*c & 0xC0) != 0x80) n++;
        if (n > most) most = n;
    }
    return most;
}
static void test_terminal(void) {
    const double x[] = { 0, 1, 2, 3 }, down[] = { 3, 2, 1, 0 }, odd[] = { NAN, INFINITY, -INFINITY, 1e300 };
    const double gap[] = { 3, 3, NAN, 0 };
    /* 24 wide leaves 15 cells, 30 by 16 dots: the dots of a falling diagonal, two to a row. */
    char *plot = plot_of(x, down, 4, 24, 4, 1);
    check(!strcmp(plot, "title\n" "      3 ┤⠑⠢⢄⡀\n" "        │   ⠈⠑⠢⢄⡀\n" "        │       ⠈⠑⠢⣀\n"
                  "      0 ┤           ⠉⠒⠤⣀\n" "        └───────────────\n" "         0             3\n"),
          "plot: a diagonal in braille\n%s", plot);
    free(plot);
    plot = plot_of(x, down, 4, 24, 4, 0);
    int ascii = 1;
    for (const char *c = plot; *c; c++) ascii &= *c == '\n' || (*c >= 32 && *c < 127);
    check(ascii && strstr(plot, "      3 +'") && strstr(plot, ".\n        +---------------\n") && widest(plot) == 24,
          "plot: a diagonal in ASCII\n%s", plot);
    free(plot);
    plot = plot_of(x, gap, 4, 40, 3, 0);
    check(strstr(plot, "+'''''''''''\n") && strstr(plot, "|\n      0 +                              .\n"),
          "plot: a gap stays empty\n%s", plot);
    free(plot);
    for (int n = 0; n <= 4; n += 4) {
        plot = plot_of(x, odd, n, 80, 8, 1);
        check(!strcmp(plot, "title\n  nothing to draw\n"), "plot: %d points, none of them finite", n);
        free(plot);
    }
    for (int n = 1; n <= 2; n++) {
        const double same[] = { -5, -5 };
        plot = plot_of(same, same, n, -1, -1, 1);
        check(count(plot, "\n") == 5 && strstr(plot, "     -5 "), "plot: a single value, no width or height\n%s", plot);
        free(plot);
    }
    enum { MANY = 100000 };
    double *t = mem_alloc(MANY * sizeof *t), *v = mem_alloc(MANY * sizeof *v);
    for (int i = 0; i < MANY; i++) { t[i] = uniform() * 1e6; v[i] = normal() * 1e-20; }
    plot = plot_of(t, v, MANY, 100000, 100000, 1);
    check(widest(plot) == 400 && count(plot, "\n") == 103, "plot: many points, bounded size");
    free(plot), free(t), free(v);
}

void test_report(void) {
    PART(test_contents()); PART(test_thinning()); PART(test_gaps()); PART(test_heat()); PART(test_resume());
    PART(test_live()); PART(test_damage()); PART(test_bounds()); PART(test_terminal());
}
