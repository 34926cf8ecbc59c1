/* test_report.c: the page of a run. Curves and heat maps are read back from the page and compared with the log. Truncated and
 * damaged logs must still give a well-formed page. Steps that a resumed run has redone must not appear. */
#include "tests/test.h"
#include "llmc/run/plot.h"
#include "llmc/run/report.h"
#include "llmc/base/text.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

/* The page of a log; NULL and a message if there is none. free() it. */
static char *page_of(const char *log, size_t bytes) {
    Error e;
    size_t size;
    char *path = scratch_path("log.jsonl"), *html = scratch_path("report.html"), *page = NULL;
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(log, 1, bytes, f) != bytes || fclose(f)) fail(EXIT_DISK, "%s: cannot be written", path);
    remove(html);
    if (report_write(scratch(), &e)) page = file_read(html, &size, &e);
    if (!page) printf("%s\n", e.text);
    free(path);
    free(html);
    return page;
}
static char *page_of_text(const Text *log) { return page_of(log->at ? log->at : "", log->length); }

static int is_name(char c) { return isalnum((unsigned char)c) || c == '-' || c == ':'; }

/* Well-formed as XML: tags nest, attributes are quoted and unique, `&` starts one of five entities, no control
 * characters, valid UTF-8, one root. Returns where the first fault is, or NULL. */
static const char *xml_fault(const char *page) {
    static const char *const entities[] = { "&lt;", "&gt;", "&amp;", "&quot;", "&#39;" };
    const char *open[64], *c = page;
    size_t length[64];
    int depth = 0, roots = 0;
    const size_t valid = utf8_valid(page, strlen(page));
    if (page[valid]) return page + valid;
    if (strstr(page, "\xEF\xBF\xBE") || strstr(page, "\xEF\xBF\xBF")) return "U+FFFE or U+FFFF";
    if (!strncmp(c, "<!DOCTYPE html>\n", 16)) c += 16;
    while (*c) {
        if (*c == '&') {
            size_t k = 0;
            while (k < 5 && strncmp(c, entities[k], strlen(entities[k]))) k++;
            if (k == 5 || !depth) return c;
            c += strlen(entities[k]);
        } else if (*c != '<') {
            if (((unsigned char)*c < 0x20 && *c != '\n' && *c != '\t') || (!depth && *c != '\n')) return c;
            c++;
        } else if (c[1] == '/') {
            const char *name = c + 2;
            if (!depth) return c;
            depth--;
            if (strncmp(name, open[depth], length[depth]) || name[length[depth]] != '>') return c;
            c = name + length[depth] + 1;
        } else {
            const char *tag = ++c, *names[16];
            size_t sizes[16], n = 0;
            while (is_name(*c)) c++;
            const size_t size = (size_t)(c - tag);
            if (!size) return tag;
            while (*c == ' ') {
                const char *name = ++c;
                while (is_name(*c)) c++;
                if (c == name || n == 16 || c[0] != '=' || c[1] != '"') return c;
                for (size_t k = 0; k < n; k++)
                    if (sizes[k] == (size_t)(c - name) && !strncmp(names[k], name, sizes[k])) return name;
                names[n] = name;
                sizes[n++] = (size_t)(c - name);
                c += 2;
                while (*c && *c != '"' && *c != '<' && *c != '>') c++;
                if (*c++ != '"') return c - 1;
            }
            if (!depth && roots++) return tag;
            if (c[0] == '/' && c[1] == '>') { c += 2; continue; }
            if (*c++ != '>' || depth == 64) return c - 1;
            open[depth] = tag;
            length[depth++] = size;
        }
    }
    return depth || !roots ? c : NULL;
}
static int well_formed(const char *page, const char *what) {
    const char *fault = page ? xml_fault(page) : "no page";
    if (fault) printf("%s: not well-formed at: %.60s\n", what, fault);
    return !fault;
}
static int count(const char *page, const char *what) {
    int n = 0;
    for (const char *c = page; (c = strstr(c, what)); c += strlen(what)) n++;
    return n;
}
/* The chart with this title, up to the next one, in a new string. */
static char *chart_of(const char *page, const char *title) {
    char *caption = text_format("<figcaption><b>%s</b>", title);
    const char *from = strstr(page, caption), *to = from ? strstr(from, "</figure>") : NULL;
    free(caption);
    return from && to ? text_format("%.*s", (int)(to - from), from) : text_format("%s", "");
}
/* The points of the k-th path of a class. */
static int points_of(const char *chart, const char *class, double *x, double *y, int capacity) {
    const char *c = strstr(chart, class);
    int n = 0, used;
    if (!c || !(c = strstr(c, " d=\""))) return 0;
    for (c += 4; n < capacity && (*c == 'M' || *c == 'L')
         && sscanf(c + 1, "%lf %lf%n", &x[n], &y[n], &used) == 2; n++) c += 1 + used;
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

/* ---- what is shown ----------------------------------------------------------------------------------------------- */

static void test_contents(void) {
    static const char *const shown[] = {
        "<h1>Training report: m4:c128</h1>", "1,921,408", "611,000", "cpu-f32",
        "one &lt;line&gt; &amp; &quot;two&quot;", "1,003,854", "1 h 02 min",
        "10,234", "819,200", "abc123", "best 3.5 at step 20", "3.25 bits/byte", "slow &lt;disk&gt;",
        "layers.0.up", "<td>train</td><td>data</td>",
        "<td>rate</td><td>0.001</td>", "<td>tied</td><td>yes</td>", "<td>prompt</td><td>–</td>",
        "<td>list</td><td>1, a, …</td>",
        "\xE2\x90\x80&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &quot;&amp;amp; 10",
    };
    static const char *const charts[] = { "Loss", "Learning rate", "Gradient norm",
                                          "Balance loss (1 is even)", "Load of the busiest expert / mean",
                                          "Tokens per second", "Router z-loss" };
    Text log = {0};
    add_everything(&log);
    char *page = page_of_text(&log);
    check(well_formed(page, "every event"), "report: well-formed with every event");
    if (page) {
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
            check(strstr(page, shown[i]) != NULL, "report: shows %s", shown[i]);
        for (size_t i = 0; i < sizeof charts / sizeof *charts; i++) {
            char *chart = chart_of(page, charts[i]);
            check(strstr(chart, "<path class=\"line c0\" d=\"M") != NULL, "report: chart %s has a curve", charts[i]);
            free(chart);
        }
        check(!strstr(page, "Experts without a token"), "report: no chart for a curve of zeros");
        check(!strstr(page, "<script") && !strstr(page, "://") && !strstr(page, "<link") && !strstr(page, "@import"),
              "report: no scripts, nothing from elsewhere");
        check(strstr(page, ">step 10<") && strstr(page, ">step 10<") < strstr(page, ">step 20<"),
              "report: samples in order");
        check(!strstr(page, "no end") && !strstr(page, "could not be read"), "report: no complaints");
    }
    free(page);
    free(log.at);
}

/* A straight line must be drawn as one: equally spaced points, from end to end. */
static void test_curve(void) {
    enum { STEPS = 800 };
    static double x[STEPS + 1], y[STEPS + 1];
    Text log = {0};
    double worst = 0;
    for (int s = 1; s <= STEPS; s++) add_step(&log, s, 10 - 0.01 * s);
    char *page = page_of_text(&log), *loss = chart_of(page, "Loss"), *rate = chart_of(page, "Learning rate");
    int n = points_of(loss, "\"line c0\"", x, y, STEPS + 1);
    check(n == STEPS, "report: %d points of %d steps", n, STEPS);
    for (int i = 1; n == STEPS && i < n - 1; i++) {
        const double part = (double)i / (n - 1);
        worst = fmax(worst, fabs(x[i] - (x[0] + part * (x[n - 1] - x[0]))));
        worst = fmax(worst, fabs(y[i] - (y[0] + part * (y[n - 1] - y[0]))));
    }
    check_error(n == STEPS ? worst : NAN, 0.11, "report: a line is straight, in pixels of 0.1");
    check(n == STEPS && y[0] < 30 && y[n - 1] > 270 && x[n - 1] - x[0] > 700,
          "report: from the upper left to the lower right");
    check(strstr(loss, ">10</text>") && strstr(loss, ">5</text>") && strstr(loss, ">400</text>"),
          "report: round labels");
    check(strstr(rate, ">1.0e-3</text>") != NULL, "report: small labels");
    check(!strstr(loss, "class=\"band") && !strstr(loss, "validation") && !strstr(loss, "class=\"best"),
          "report: no band, validation or best mark without data");
    free(page);
    free(loss);
    free(rate);
    free(log.at);
}

/* A long run: the page is bounded, and one bad step out of many is still visible, at the right step. */
static void test_thinning(void) {
    enum { STEPS = 50000, SPIKE = 31000 };
    static double x[2100], y[2100];
    Text log = {0};
    int highest = 0;
    for (int s = 1; s <= STEPS; s++) add_step(&log, s, s == SPIKE ? 9 : 2 + 0.0001 * (s % 10));
    char *page = page_of_text(&log), *loss = chart_of(page, "Loss");
    const int line = points_of(loss, "\"line c0\"", x, y, 2100), band = points_of(loss, "\"band c0\"", x, y, 2100);
    for (int i = 0; i < band; i++) if (y[i] < y[highest]) highest = i;
    check(line >= 512 && line <= 1024 && band == 2 * line, "report: %d steps thinned to %d points", STEPS, line);
    check(page && strlen(page) < 300000, "report: page of %zu bytes", page ? strlen(page) : 0);
    check_error(band ? fabs((x[highest] - x[0]) / (x[line - 1] - x[0]) - (double)SPIKE / STEPS) : NAN, 0.002,
                "report: the spike is at its step");
    check(band && y[highest] < 30, "report: the spike has its height");
    free(page);
    free(loss);
    free(log.at);
}

/* null leaves a gap: the path starts again. A single point between two gaps is a dot. */
static void test_gaps(void) {
    Text log = {0};
    for (int s = 1; s <= 9; s++)
        if (s == 4 || s == 6) text_add(&log, "{\"event\":\"step\",\"step\":%d,\"loss\":null,\"norm\":1e300}\n", s);
        else add_step(&log, s, s);
    text_add(&log, "%s\n", "{\"event\":\"val\",\"step\":9,\"loss\":4,\"bits_per_byte\":0}");          /* 0: not known */
    char *page = page_of_text(&log), *loss = chart_of(page, "Loss"), *norm = chart_of(page, "Gradient norm");
    const char *line = strstr(loss, "\"line c0\"");
    const char *d = line ? strstr(line, " d=\"") : NULL;
    const int length = d ? (int)strcspn(d + 4, "\"") : 0;
    char *path = text_format("%.*s", length, d ? d + 4 : "");
    check(count(path, "M") == 3 && count(path, "L") == 4 && count(path, "h0") == 1,
          "report: null leaves a gap: %s", path);
    check(count(norm, ">1.4</text>") == 1 && count(norm, "</text>") == 8 + 5 + 1,
          "report: an outlier does not set the axis");
    check(page && strstr(page, "best 4 at step 9") && !strstr(page, "bits/byte"),
          "report: no bits per byte where they are not known");
    check(well_formed(page, "gaps"), "report: well-formed with gaps");
    free(path);
    free(page);
    free(loss);
    free(norm);
    free(log.at);
}

/* Heat maps: the shade of each load, read back from the rectangles of the page. */
static void test_heat(void) {
    enum { EVENTS = 2000, E = 5 };
    static const int load[E] = { 0, 10, 20, 30, 40 };       /* / mean: 0, 0.5, 1, 1.5, 2 */
    Text log = {0};
    for (int s = 1; s <= EVENTS; s++) {
        text_add(&log, "{\"event\":\"load\",\"step\":%d,\"routers\":[{\"name\":\"<r>\",\"load\":[", s);
        for (int e = 0; e < E; e++) text_add(&log, "%s%d", e ? "," : "", load[e]);
        text_add(&log, "]},{\"name\":\"turns\",\"load\":[%d,%d]},{\"name\":\"none\",\"load\":[0,0,0]}]}\n",
                 s <= 800, s > 800);
        if (s == 7)
            text_add(&log, "{\"event\":\"load\",\"step\":7,\"routers\":[{\"name\":\"other\","
                           "\"load\":[1,2]}]}\n");
    }
    char *page = page_of_text(&log), *strip = chart_of(page, "&lt;r&gt;");
    char *turns = chart_of(page, "turns"), *none = chart_of(page, "none");
    int columns = 0, from, row, run, back, turn = 0;
    check(well_formed(page, "heat"), "report: well-formed heat maps");
    const char *box = strstr(strip, "viewBox=\"0 0 ");
    check(box && sscanf(box, "viewBox=\"0 0 %d 5\"", &columns) == 1 && columns >= 128 && columns <= 256,
          "report: %d load events in %d columns", EVENTS, columns);
    static const struct { const char *class; int row; }
    expected[] = { { "s0", 0 }, { "s3", 1 }, { "s6", 3 }, { "s7", 4 } };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        char *path = text_format("<path class=\"%s\" d=\"", expected[i].class);
        const char *d = strstr(strip, path);
        const int read = d ? sscanf(d + strlen(path), "M%d %dh%dv1H%dz", &from, &row, &run, &back) : 0;
        check(read == 4 && from == 0 && row == expected[i].row && run == columns && back == 0
              && d[strcspn(d, "z") + 1] == '"',
              "report: load / mean of expert %d has shade %s from first to last", expected[i].row,
              expected[i].class);
        free(path);
    }
    check(!strstr(strip, "<path class=\"s4\"") && count(strip, "<path") == 4, "report: the even expert is background");
    check(strstr(strip, "0.00 (expert 0) to 2.00 (expert 4)") != NULL, "report: least and most loaded expert");
    const char *d = strstr(turns, "<path class=\"s0\" d=\"");
    check(d && sscanf(d, "<path class=\"s0\" d=\"M%d 0h", &turn) == 1, "report: a router that switches experts");
    check_error(fabs((double)turn / columns - 0.4), 0.02, "report: it switches at the right step");
    check(strstr(none, "h") && count(none, "<path") == 1, "report: a router without tokens is dead");
    check(!strstr(page, ">other<"), "report: loads of another model are left out");
    free(page);
    free(strip);
    free(turns);
    free(none);
    free(log.at);
}

/* ---- steps that were redone ------------------------------------------------------------------------------------ */

static void add_part(Text *log, int from, int to, double loss) {
    for (int s = from; s <= to; s++) {
        add_step(log, s, loss + 0.001 * s);
        if (s % 5) continue;
        text_add(log, "{\"event\":\"val\",\"step\":%d,\"loss\":%.3f}\n", s, loss);
        text_add(log, "{\"event\":\"sample\",\"step\":%d,\"text\":\"%g\"}\n", s, loss);
        text_add(log, "{\"event\":\"load\",\"step\":%d,\"routers\":[{\"name\":\"r\",\"load\":[1,%d]}]}\n",
                 s, (int)loss);
    }
}
static int same_page(const Text *a, const Text *b) {
    char *one = page_of_text(a), *two = page_of_text(b);
    const int same = one && two && !strcmp(one, two) && well_formed(one, "resumed");
    free(one);
    free(two);
    return same;
}
static void test_resume(void) {
    static const char *const resume = "{\"event\":\"resume\",\"step\":%d}\n";
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
    Text restarted = {0};
    add_part(&restarted, 1, 40, 3);
    text_add(&restarted, resume, 40);
    text_add(&twice, resume, 0);
    text_add(&twice, "%s", restarted.at);
    add_part(&twice, 41, 60, 2);
    char *page = page_of_text(&twice), *loss = page ? chart_of(page, "Loss") : NULL;
    static double x[200], y[200];
    int n = loss ? points_of(loss, "\"line c0\"", x, y, 200) : 0, ascend = n == 60;
    for (int i = 1; i < n; i++) ascend &= x[i] > x[i - 1];
    check(ascend, "report: several restarts, %d points in order", n);
    free(page);
    free(loss);

    add_part(&shorter, 1, 30, 3);
    add_part(&shorter_lost, 1, 50, 4);
    add_part(&shorter_lost, 1, 30, 3);                      /* a new run in the same folder */
    check(same_page(&shorter, &shorter_lost), "report: a run that starts over replaces the old one");

    add_everything(&again);
    page = page_of_text(&again);
    check(page && !strstr(page, "no end"), "report: ended");
    free(page);
    text_add(&again, resume, 20);
    page = page_of_text(&again);
    check(page && strstr(page, "no end"), "report: a run resumed after its end has no end");
    free(page);
    free(clean.at); free(lost.at); free(twice.at); free(restarted.at); free(again.at); free(shorter.at);
    free(shorter_lost.at);
}

/* ---- damaged logs ------------------------------------------------------------------------------------------------ */

static void test_damage(void) {
    Error e;
    Text log = {0};
    add_everything(&log);
    size_t cuts = 0, good = 0;
    /* truncated anywhere: no complaint */
    for (size_t n = 0; n <= log.length; n += 1 + (size_t)(uniform() * 200), cuts++) {
        char *page = page_of(log.at, n);
        good += well_formed(page, "torn") && !strstr(page, "could not be read");
        free(page);
    }
    check(cuts > 20 && good == cuts, "report: %zu of %zu truncated logs give a complete page without complaint", good, cuts);

    size_t tried = 0, complained = 0;
    good = 0;
    for (; tried < 80; tried++) {
        char *copy = mem_alloc(log.length + 1);
        size_t bytes = log.length;
        memcpy(copy, log.at, bytes);
        for (int k = 1 + (int)(uniform() * 12); k--;) {
            const size_t at = (size_t)(uniform() * (double)bytes);
            static const char *const values[] = { "null", "-1", "1e308", "\"<&>\"", "[]", "{}", "[[1]]",
                                                  "9e99", "true" };
            if (uniform() < 0.5) copy[at] = (char)(int)(uniform() < 0.5 ? 32 + uniform() * 95 : uniform() * 256);
            else {                                          /* another value, in the same number of bytes */
                const char *colon = memchr(copy + at, ':', bytes - at), *value = values[(size_t)(uniform() * 9)];
                const size_t old = colon ? strcspn(colon + 1, ",}]\n") : 0;
                if (!colon || old < strlen(value)) continue;
                memset(copy + (colon + 1 - copy), ' ', old);
                memcpy(copy + (colon + 1 - copy), value, strlen(value));
            }
        }
        char *page = page_of(copy, bytes);
        good += well_formed(page, "mutated");
        complained += page && strstr(page, "could not be read");
        free(page);
        free(copy);
    }
    check(good == tried, "report: %zu of %zu mutated logs give a complete page", good, tried);
    check(complained && complained < tried, "report: damage within the log is reported (%zu of %zu)", complained, tried);
    free(log.at);

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
    check(well_formed(page, "bounds"), "report: well-formed when thinned");
    if (page) {
        const char *c = strstr(page, "<h2>Samples</h2>");
        check(strlen(page) < 1000000, "report: %zu bytes of log, %zu of page", log.length, strlen(page));
        check(count(page, "…</pre>") == 32 && count(page, "<pre>") == 32 && strstr(page, "68 more"),
              "report: 32 samples, truncated");
        for (int s = 1; s <= 100 && c; s += s == 8 ? 69 : 1) {
            char *mark = text_format("<div class=\"dim\">step %d</div>", s);
            c = strstr(c, mark);
            free(mark);
        }
        check(c != NULL, "report: the first 8 and the last 24 samples in order");
        check(strstr(page, "router 127.") && !strstr(page, "router 128.") && strstr(page, "72 more routers"),
              "report: the first 128 routers");
        check(strstr(page, "option 511<") && !strstr(page, "option 512<"), "report: the first 512 options");
    }
    free(page);
    free(log.at);
}

/* ---- the terminal ------------------------------------------------------------------------------------------------ */

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
    check(!strcmp(plot, "title\n"
                        "      3 ┤⠑⠢⢄⡀\n"
                        "        │   ⠈⠑⠢⢄⡀\n"
                        "        │       ⠈⠑⠢⣀\n"
                        "      0 ┤           ⠉⠒⠤⣀\n"
                        "        └───────────────\n"
                        "         0             3\n"),
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
    free(plot);
    free(t);
    free(v);
}

void test_report(void) {
    test_contents();
    test_curve();
    test_thinning();
    test_gaps();
    test_heat();
    test_resume();
    test_damage();
    test_bounds();
    test_terminal();
}
