/* report.c: see report.h.
 *
 * The log is read on from where it was read to. Two passes over what is new. A run that stopped at
 * step 480 and resumed from step 400 has logged steps 401 to 480 twice, and the first of each is
 * void. So the first pass collects the cuts, lines at which the step goes back; a line is void if a
 * later cut goes back to before its step. The second pass reads the remaining lines, in order of
 * steps. A new cut may void what was read before: then the second pass begins again at the first
 * line.
 *
 * Thinning a series of unknown length. A curve has a fixed number of buckets of `stride` points
 * each. When all are full, neighbours are merged and the stride doubles: constant memory, constant
 * work per point, and in the end between half and all of the buckets are used. A bucket keeps mean,
 * minimum and maximum, so a spike of one step stays visible in a run of millions. Expert loads are
 * thinned in the same way, with one bucket per column of the heat map.
 *
 * The page itself is report/page.html, page.css and page.js, which the build puts into report_page.
 * It draws; here are only data. They are JSON inside of a script element, which ends at the first
 * "</script": text from outside has no "<" there. */
#define _POSIX_C_SOURCE 200809L
#include "report.h"
#include "llmc/base/json.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

extern const char *const report_page[];         /* its lines, then NULL; one of them is "@data" */

enum {
    POINTS = 1024,                      /* buckets of a curve; even */
    COLUMNS = 256, CELLS = 60000,       /* of one heat map (at least 8); of all of them together */
    ROUTERS = 128, EXPERTS = 512,       /* drawn */
    FIRST = 8, LAST = 24,               /* how many of the first and last samples and warnings are shown */
    RESUMES = 64, MEMBERS = 512,        /* marked; of an object or array of the log */
    TEXT_BYTES = 4000                   /* of one string */
};
/* larger values are treated as damage; sums of the rest are finite */
static const double LARGEST = 1e30, LAST_STEP = 1e15;
/* seconds from one page to the next at least; largest part of the time spent on pages */
static const double EVERY = 3, FRACTION = 0.005;

/* ---- what is drawn of a run ------------------------------------------------------------------ */

typedef struct { int64_t taken, finite; double step, sum, min, max; } Bucket;       /* step: also a sum */
typedef struct { int n; int64_t stride; Bucket *at; } Curve;

typedef struct { double step; char *text; } Entry;                                  /* text: as JSON */
typedef struct { Entry first[FIRST], last[LAST]; int64_t n; } List;

typedef struct { char *name; int row, experts; } HeatRows;             /* its experts: rows row .. row+experts-1 */
typedef struct {
    HeatRows  router[ROUTERS];
    int     routers, hidden, rows, capacity, n;                          /* capacity, n: columns */
    int64_t stride, *taken;                                          /* [capacity] load events in a column */
    double *sum, *last;                                         /* load/mean: [capacity][rows]; [rows] of the last */
    double *step;                                                    /* [capacity] of the last event in a column */
} Heat;

enum { LOSS, VALIDATION, VALIDATION_SHORT, RATE, NORM, BALANCE, ATTENTION_BALANCE, MAX_LOAD, SPEED, Z_LOSS, DEAD, TIME,
       CURVES };
static const struct { const char *event, *key, *name; } curves[CURVES] = {       /* name: in the page's data */
    [LOSS]     = { "step", "loss", "loss" },          [VALIDATION] = { "val", "loss", "val" },
    [VALIDATION_SHORT] = { "val_short", "loss", "val_short" },
    [RATE]     = { "step", "lr", "lr" },              [NORM]   = { "step", "norm", "norm" },
    [BALANCE]  = { "step", "balance", "balance" },    [ATTENTION_BALANCE] = { "step", "att_balance", "att_balance" },
    [MAX_LOAD] = { "step", "max_load", "max_load" },  [SPEED]  = { "step", "tok_s", "tok_s" },
    [Z_LOSS]   = { "step", "z", "z" },                [DEAD]   = { "step", "dead", "dead" },
    [TIME]     = { "step", "ms", "ms" }, };

typedef struct { int64_t line; double step; } Cut;
typedef struct {                                /* what the second pass has found */
    int64_t line, damaged;
    size_t  next;                               /* of the cuts */
    Json   *start, *resumed, *end;              /* the last event of each kind */
    Curve   curve[CURVES];
    Heat    heat;
    List    samples, warnings;
    double  last_step, seconds, validation_seconds, peak_memory, tokens, loss, best, best_step, best_bits,
                diverged,               /* at this step; NAN: not, or recovered */
            short_tokens, resume[RESUMES];
    int64_t resumes;
} Summary;
struct Report {
    char   *log, *html;
    off_t   read;                               /* bytes of whole lines */
    double  next, every;                        /* when the page is due; seconds from the last one to then */
    Cut    *cut;                                /* from line `line` on, steps continue after `step`; both ascend */
    size_t  cuts, capacity;
    double  before;                             /* first pass: the last step seen */
    int64_t lines;
    Summary summary;
};

static Bucket bucket_merge(Bucket a, Bucket b) {
    Bucket one = a.finite ? a : b;
    one.taken = a.taken + b.taken;
    if (!a.finite || !b.finite) return one;
    return (Bucket){ one.taken, a.finite + b.finite, a.step + b.step, a.sum + b.sum,
                     fmin(a.min, b.min), fmax(a.max, b.max) };
}
static void curve_add(Curve *c, double step, double y) {
    if (!c->at) { c->at = mem_alloc(POINTS * sizeof *c->at); c->stride = 1; }
    if (!c->n || c->at[c->n - 1].taken == c->stride) {
        if (c->n == POINTS) {
            for (int i = 0; i < POINTS / 2; i++) c->at[i] = bucket_merge(c->at[2*i], c->at[2*i + 1]);
            c->n = POINTS / 2;
            c->stride *= 2;
        }
        c->at[c->n++] = (Bucket){0};
    }
    const Bucket point = { 1, 1, step, y, y, y }, gap = { .taken = 1 };
    c->at[c->n - 1] = bucket_merge(c->at[c->n - 1], fabs(y) <= LARGEST ? point : gap);
}
/* Is there something to see? Without attention experts there is no attention balance, or zeros. */
static int curve_shown(const Curve *c) {
    for (int i = 0; i < c->n; i++) if (c->at[i].finite && (c->at[i].min < 0 || c->at[i].max > 0)) return 1;
    return 0;
}

static void list_add(List *l, double step, char *text) {
    Entry *e = l->n < FIRST ? &l->first[l->n] : &l->last[(l->n - FIRST) % LAST];
    free(e->text);
    *e = (Entry){ step, text };
    l->n++;
}
static const Entry *list_at(const List *l, int i) {     /* i from 0 to FIRST + LAST - 1; NULL: fewer entries */
    int64_t k = i < FIRST || l->n <= FIRST + LAST ? i : l->n - LAST + i - FIRST;
    return k >= l->n ? NULL : k < FIRST ? &l->first[k] : &l->last[(k - FIRST) % LAST];
}
static void list_free(List *l) {
    for (int i = 0; i < FIRST; i++) free(l->first[i].text);
    for (int i = 0; i < LAST; i++) free(l->last[i].text);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Text of the log as a string of the page's data: by text_show, and without what HTML might read as
 * its own. Long text is cut. */
static void add_outside(Text *t, const char *s, size_t bytes) {
    size_t at = 0, n;
    text_add_bytes(t, "\"", 1);
    for (; at < bytes && at < TEXT_BYTES; at += n) {
        char shown[5];
        n = text_show(s + at, bytes - at, shown);
        if (strchr("<>&\"\\\n\t", *shown)) text_add(t, "\\u%04x", (unsigned)*shown); else text_add_string(t, shown);
    }
    text_add_string(t, at < bytes ? "…\"" : "\"");
}
static void add_value(Text *t, const JsonValue *v, int depth) {
    const int list = v && v->type == JSON_ARRAY, pairs = v && v->type == JSON_OBJECT;
    if (!v || v->type == JSON_NULL || ((list || pairs) && depth == 0)) text_add_string(t, "null");
    else if (v->type == JSON_STRING) add_outside(t, v->is.string, v->length);
    else if (v->type == JSON_BOOL) text_add_string(t, v->is.integer ? "true" : "false");
    else if (v->type == JSON_INT) text_add(t, "%lld", (long long)v->is.integer);
    else if (v->type == JSON_DOUBLE) text_add_double(t, v->is.number);
    else {
        int n = 0;
        text_add_string(t, list ? "[" : "{");
        for (const JsonValue *item = json_first(v); item && n < MEMBERS; item = item->next, n++) {
            if (n) text_add_string(t, ",");
            if (pairs) { add_outside(t, item->key, item->key_length); text_add_string(t, ":"); }
            add_value(t, item, depth - 1);
        }
        text_add_string(t, list ? "]" : "}");
    }
}
/* A number with `digits` digits; null if it is not finite. */
static void add_number(Text *t, double x, int digits) {
    if (isfinite(x)) text_add(t, "%.*g", digits, x); else text_add_string(t, "null");
}

/* ---- reading the log ------------------------------------------------------------------------- */

static const JsonValue *root_of(const Json *doc) { return doc ? json_root(doc) : NULL; }
static double number(const JsonValue *object, const char *key) { return json_double(json_get(object, key), NAN); }

static void set_end(Summary *r, Json *doc) { json_free(r->end); r->end = doc; }      /* NULL: the run continued */

/* Each reads what it knows of an event; 1: it keeps the document. */
static int take_start(Summary *r, Json *doc, UNUSED double step) {
    json_free(r->start);
    r->start = doc;
    set_end(r, NULL);
    return 1;
}
static int take_end(Summary *r, Json *doc, UNUSED double step) {
    set_end(r, doc);
    return 1;
}
static int take_resume(Summary *r, Json *doc, double step) {
    if (step >= 0) r->resume[r->resumes++ % RESUMES] = step;
    set_end(r, NULL);
    json_free(r->resumed);
    r->resumed = doc;
    return 1;
}
static void take_curves(Summary *r, const JsonValue *o, double step, const char *event) {
    r->last_step = fmax(r->last_step, step);
    for (int i = 0; i < CURVES; i++) {
        const JsonValue *v = json_get(o, curves[i].key);
        if (v && !strcmp(curves[i].event, event)) curve_add(&r->curve[i], step, json_double(v, NAN));
    }
}
static int take_step(Summary *r, Json *doc, double step) {
    if (step < 0) return 0;
    const JsonValue *o = json_root(doc);
    const double seconds = number(o, "ms") / 1000, speed = number(o, "tok_s"), loss = number(o, "loss");
    take_curves(r, o, step, "step");
    if (loss <= LARGEST) r->loss = loss;
    if (seconds >= 0 && seconds <= 1e9 && speed >= 0 && speed <= LARGEST) {
        r->seconds += seconds;
        r->tokens += seconds * speed;
    }
    set_end(r, NULL);
    return 0;
}
static int take_val(Summary *r, Json *doc, double step) {
    if (step < 0) return 0;
    const JsonValue *o = json_root(doc);
    const double loss = number(o, "loss");
    take_curves(r, o, step, "val");
    if (fabs(loss) <= LARGEST && !(loss >= r->best)) {      /* best starts as NaN */
        r->best = loss;
        r->best_step = step;
        r->best_bits = number(o, "bits_per_byte");
    }
    return 0;
}
static int take_val_short(Summary *r, Json *doc, double step) {
    if (step >= 0) take_curves(r, json_root(doc), step, "val_short");
    r->short_tokens = number(json_root(doc), "tokens");
    return 0;
}
static int take_diverged(Summary *r, UNUSED Json *doc, double step) {
    r->diverged = step;
    return 0;
}
static int take_recovered(Summary *r, UNUSED Json *doc, UNUSED double step) {
    r->diverged = NAN;
    return 0;
}
static int take_usage(Summary *r, Json *doc, double step) {
    const double seconds = number(json_root(doc), "validation_seconds"), memory = number(json_root(doc), "peak_memory");
    if (step >= 0 && seconds >= 0 && seconds <= 1e9) r->validation_seconds += seconds;
    if (step >= 0 && memory >= 0 && memory <= LARGEST) r->peak_memory = memory;
    return 0;
}
static int take_sample(Summary *r, Json *doc, double step) {
    const JsonValue *text = json_get(json_root(doc), "text");
    if (!json_is(text, JSON_STRING)) return 0;
    Text t = {0};
    add_value(&t, text, 0);
    list_add(&r->samples, step, t.at);
    return 0;
}
static int take_warning(Summary *r, Json *doc, double step) {
    Text t = {0};
    add_value(&t, json_get(json_root(doc), "text"), 0);
    list_add(&r->warnings, step, t.at);
    return 0;
}
static int take_skip(Summary *r, Json *doc, double step) {
    const char *tensor = json_string(json_get(json_root(doc), "tensor"), "?");
    Text t = {0};
    char *text = text_format("update skipped, gradient not finite: %.200s", tensor);
    add_outside(&t, text, strlen(text));
    free(text);
    list_add(&r->warnings, step, t.at);
    return 0;
}

/* The first load event defines what is drawn; later ones with the same routers are added. */
static void heat_start(Heat *h, const JsonValue *routers) {
    for (const JsonValue *v = json_first(routers); v; v = v->next) {
        const JsonValue *name = json_get(v, "name"), *load = json_get(v, "load");
        if (!json_is(load, JSON_ARRAY) || !load->length || h->routers == ROUTERS) { h->hidden++; continue; }
        Text t = {0};
        add_value(&t, name, 0);
        h->router[h->routers++] = (HeatRows){ t.at, h->rows, load->length < EXPERTS ? (int)load->length : EXPERTS };
        h->rows += load->length < EXPERTS ? (int)load->length : EXPERTS;
    }
    if (!h->rows) return;
    h->capacity = CELLS / h->rows / 2 * 2;
    h->capacity = h->capacity < 8 ? 8 : h->capacity > COLUMNS ? COLUMNS : h->capacity;
    h->stride = 1;
    h->taken = mem_alloc((size_t)h->capacity * sizeof *h->taken);
    h->sum = mem_alloc((size_t)h->capacity * (size_t)h->rows * sizeof *h->sum);
    h->step = mem_alloc((size_t)h->capacity * sizeof *h->step);
    h->last = mem_alloc((size_t)h->rows * sizeof *h->last);
}
static double *heat_column(Heat *h) {                   /* the column of the next event; like curve_add */
    const size_t rows = (size_t)h->rows;
    if (!h->n || h->taken[h->n - 1] == h->stride) {
        if (h->n == h->capacity) {
            for (int i = 0; i < h->capacity / 2; i++) {
                double *to = h->sum + (size_t)i * rows;
                const double *a = h->sum + 2 * (size_t)i * rows, *b = a + rows;
                for (size_t k = 0; k < rows; k++) to[k] = a[k] + b[k];
                h->step[i] = h->step[2*i + 1];
                h->taken[i] = h->taken[2*i] + h->taken[2*i + 1];
            }
            h->n = h->capacity / 2;
            h->stride *= 2;
        }
        memset(h->sum + (size_t)h->n * rows, 0, rows * sizeof *h->sum);
        h->taken[h->n++] = 0;
    }
    h->taken[h->n - 1]++;
    return h->sum + (size_t)(h->n - 1) * rows;
}
static double tokens_of(const JsonValue *load) {
    double x = json_double(load, 0);
    return x > 0 && x <= LARGEST ? x : 0;
}
static int take_load(Summary *r, Json *doc, double step) {
    Heat *h = &r->heat;
    const JsonValue *routers = json_get(json_root(doc), "routers");
    if (step < 0 || !json_is(routers, JSON_ARRAY)) return 0;
    if (!h->rows) heat_start(h, routers);
    int i = 0, hidden = 0;
    for (const JsonValue *v = json_first(routers); v; v = v->next) {
        const JsonValue *load = json_get(v, "load");
        if (!json_is(load, JSON_ARRAY) || !load->length || i == h->routers) { hidden++; continue; }
        if ((load->length < EXPERTS ? (int)load->length : EXPERTS) != h->router[i++].experts) return 0;
    }
    if (!h->rows || i != h->routers || hidden != h->hidden) return 0;
    double *column = heat_column(h);
    i = 0;
    for (const JsonValue *v = json_first(routers); v && i < h->routers; v = v->next) {
        const JsonValue *load = json_get(v, "load"), *x;
        if (!json_is(load, JSON_ARRAY) || !load->length) continue;
        const HeatRows *router = &h->router[i++];
        double sum = 0;
        for (x = json_first(load); x; x = x->next) sum += tokens_of(x);
        x = json_first(load);
        for (int k = 0; k < router->experts; k++, x = x->next) {
            const double ratio = sum > 0 ? tokens_of(x) / sum * (double)load->length : 0;
            h->last[router->row + k] = ratio;
            column[router->row + k] += ratio;
        }
    }
    h->step[h->n - 1] = step;
    return 0;
}

static const struct { const char *name; int (*take)(Summary *r, Json *doc, double step); int can_be_void; } events[] = {
    { "start", take_start, 0 }, { "resume", take_resume, 0 }, { "step", take_step, 1 }, { "val", take_val, 1 },
    { "val_short", take_val_short, 1 }, { "diverged", take_diverged, 1 }, { "recovered", take_recovered, 1 },
    { "load", take_load, 1 }, { "usage", take_usage, 1 }, { "sample", take_sample, 1 }, { "warning", take_warning, 0 },
    { "skip", take_skip, 0 }, { "end", take_end, 0 }, };

/* First pass. A cut replaces earlier ones with later steps, so steps ascend. 1: a new one. */
static int find_cut(Report *r, const char *event, double step, int64_t line) {
    const int resume = !strcmp(event, "resume"), again = !strcmp(event, "step") && step <= r->before;
    if (step < 0) return 0;
    if (resume || again) {
        const Cut cut = { line, resume ? step : step - 1 };
        while (r->cuts && r->cut[r->cuts - 1].step >= cut.step) r->cuts--;
        array_grow(r->cut, r->cuts, r->capacity);
        r->cut[r->cuts++] = cut;
    }
    if (resume || !strcmp(event, "step")) r->before = step;
    return resume || again;
}
/* Second pass. 1: the document is kept. */
static int take_event(Report *report, Json *doc, const char *event, double step) {
    Summary *r = &report->summary;
    while (r->next < report->cuts && report->cut[r->next].line <= r->line) r->next++;
    const int is_void = r->next < report->cuts && report->cut[r->next].step < step;
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (!strcmp(events[i].name, event) && !(is_void && events[i].can_be_void)) return events[i].take(r, doc, step);
    return 0;
}

static void summary_free(Summary *r) {
    for (int i = 0; i < CURVES; i++) free(r->curve[i].at);
    for (int i = 0; i < r->heat.routers; i++) free(r->heat.router[i].name);
    free_each(r->heat.taken, r->heat.sum, r->heat.last, r->heat.step);
    list_free(&r->samples);
    list_free(&r->warnings);
    json_free(r->start);
    json_free(r->resumed);
    json_free(r->end);
}
static void summary_start(Summary *r) {
    *r = (Summary){ .last_step = -1, .loss = NAN, .best = NAN, .best_bits = NAN, .peak_memory = NAN,
                     .diverged = NAN, .short_tokens = NAN };
}

/* One pass over the whole lines from r->read on, or, second, up to the line where the first pass
 * stopped: the run may still be writing. *end: behind the last of them. 1: a new cut was found; 0:
 * none; -1: the file cannot be read. */
static int read_lines(Report *r, FILE *f, int second, off_t *end) {
    char *text = NULL;
    size_t capacity = 0;
    ssize_t bytes = 0;
    int cut = 0;
    while ((!second || r->summary.line < r->lines) && (bytes = getline(&text, &capacity, f)) > 0
           && text[bytes - 1] == '\n') {
        Error why;
        Json *doc = json_parse(text, (size_t)bytes, &why);
        const JsonValue *o = root_of(doc);
        const char *event = json_string(json_get(o, "event"), "");
        double step = json_double(json_get(o, "step"), -1);
        if (!(step >= 0 && step <= LAST_STEP)) step = -1;
        if (!second) cut |= find_cut(r, event, step, r->lines++);
        else if (!doc) r->summary.damaged += strspn(text, " \t\r\n") < (size_t)bytes;
        if (!second || !doc || !take_event(r, doc, event, step)) json_free(doc);
        r->summary.line += second;
        *end += bytes;
    }
    free(text);
    return ferror(f) ? -1 : cut;
}
static int read_on(Report *r, Error *e) {
    off_t end = r->read, again;
    uint64_t bytes;
    FILE *f = file_stream(r->log, &bytes, e);
    if (!f) return 0;
    errno = 0;
    const int cut = fseeko(f, r->read, SEEK_SET) == 0 ? read_lines(r, f, 0, &end) : -1;
    if (cut == 1) {
        summary_free(&r->summary);
        summary_start(&r->summary);
        r->read = 0;
    }
    again = r->read;
    const int ok = cut >= 0 && fseeko(f, r->read, SEEK_SET) == 0 && read_lines(r, f, 1, &again) >= 0;
    r->read = end;
    if (!ok) error_set(e, "%s: %s", r->log, errno ? strerror(errno) : "could not be read");
    fclose(f);
    return ok;
}

/* ---- the data of the page -------------------------------------------------------------------- */

static void add_key(Text *t, const char *name) {
    text_add(t, "%s\"%s\":", strchr("{[", t->at[t->length - 1]) ? "" : ",", name);
}
static void add_member(Text *t, const char *name, double x) { add_key(t, name); add_number(t, x, 10); }
static void add_event(Text *t, const char *name, const Json *doc) { add_key(t, name); add_value(t, root_of(doc), 3); }

static int same_steps(const Curve *a, const Curve *b) {
    if (a->n != b->n) return 0;
    for (int i = 0; i < a->n; i++) if (a->at[i].finite != b->at[i].finite || a->at[i].step != b->at[i].step) return 0;
    return 1;
}
enum { STEPS, MEANS, LEAST, MOST };
static void add_points(Text *t, const char *name, const Curve *c, int what) {
    add_key(t, name);
    text_add_string(t, "[");
    for (int i = 0; i < c->n; i++) {
        const Bucket *b = &c->at[i];
        const double n = (double)b->finite;
        const double x = what == STEPS ? b->step / n : what == MEANS ? b->sum / n : what == LEAST ? b->min : b->max;
        if (i) text_add_string(t, ",");
        add_number(t, b->finite ? x : NAN, what == STEPS ? 10 : 6);
    }
    text_add_string(t, "]");
}
/* x: only if it is not that of the loss. low, high: only if there are several steps to a point. */
static void add_curves(Text *t, const Summary *r) {
    add_key(t, "curves");
    text_add_string(t, "{");
    for (int i = 0; i < CURVES; i++) {
        const Curve *c = &r->curve[i];
        if (!curve_shown(c)) continue;
        add_key(t, curves[i].name);
        text_add(t, "{\"stride\":%lld", (long long)c->stride);
        if (i == LOSS || !curve_shown(&r->curve[LOSS]) || !same_steps(c, &r->curve[LOSS])) add_points(t, "x", c, STEPS);
        add_points(t, "y", c, MEANS);
        if (c->stride > 1) { add_points(t, "low", c, LEAST); add_points(t, "high", c, MOST); }
        text_add_string(t, "}");
    }
    text_add_string(t, "}");
}
/* Loads in hundredths of the mean: "load" for each column and expert, "last": the last event. */
static void add_loads(Text *t, const Heat *h) {
    add_key(t, "loads");
    text_add(t, "{\"hidden\":%d,\"steps\":[", h->hidden);
    for (int i = 0; i < h->n; i++) text_add(t, "%s%.0f", i ? "," : "", h->step[i]);
    text_add_string(t, "],\"routers\":[");
    for (int k = 0; k < h->routers && h->n; k++) {
        const HeatRows *router = &h->router[k];
        text_add(t, "%s{\"name\":%s,\"experts\":%d,\"last\":[", k ? "," : "", router->name, router->experts);
        for (int e = 0; e < router->experts; e++) text_add(t, "%s%.0f", e ? "," : "", 100 * h->last[router->row + e]);
        text_add_string(t, "],\"load\":[");
        for (int i = 0; i < h->n; i++)
            for (int e = 0; e < router->experts; e++)
                text_add(t, "%s%.0f", i + e ? "," : "",
                         100 * h->sum[(size_t)i * (size_t)h->rows + (size_t)(router->row + e)] / (double)h->taken[i]);
        text_add_string(t, "]}");
    }
    text_add_string(t, "]}");
}
static void add_list(Text *t, const char *name, const List *l) {
    const Entry *e;
    add_key(t, name);
    text_add(t, "{\"hidden\":%lld,\"list\":[", (long long)(l->n > FIRST + LAST ? l->n - FIRST - LAST : 0));
    for (int i = 0; i < FIRST + LAST && (e = list_at(l, i)); i++)
        text_add(t, "%s{\"step\":%.0f,\"text\":%s}", i ? "," : "", e->step, e->text);
    text_add_string(t, "]}");
}
static void add_data(Text *t, const Summary *r, double every) {
    const int live = every > 0 && !r->end;
    const struct { const char *name; double x; } totals[] = {
        { "step", r->last_step }, { "seconds", r->seconds }, { "validation_seconds", r->validation_seconds },
        { "peak_memory", r->peak_memory }, { "tokens", r->tokens }, { "last_loss", r->loss }, { "best", r->best },
        { "best_step", r->best_step }, { "best_bits", r->best_bits },
        { "diverged", r->diverged }, { "short_tokens", r->short_tokens }, };
    text_add_string(t, "{");
    add_member(t, "every", live ? every : 0);           /* seconds from one page to the next; 0: this is the last one */
    add_member(t, "written", live ? (double)time(NULL) : 0);
    add_member(t, "damaged", (double)r->damaged);
    add_event(t, "start", r->start);
    add_event(t, "resumed", r->resumed);
    add_event(t, "end", r->end);
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) add_member(t, totals[i].name, totals[i].x);
    add_key(t, "resumes");
    text_add_string(t, "[");
    for (int64_t i = 0; i < r->resumes && i < RESUMES; i++) text_add(t, "%s%.0f", i ? "," : "", r->resume[i]);
    text_add_string(t, "]");
    add_curves(t, r);
    add_loads(t, &r->heat);
    add_list(t, "samples", &r->samples);
    add_list(t, "warnings", &r->warnings);
    text_add_string(t, "}\n");
}

/* ---- the page -------------------------------------------------------------------------------- */

Report *report_open(const char *folder) {
    Report *r = mem_alloc(sizeof *r);
    r->log = text_format("%s/log.jsonl", folder);
    r->html = text_format("%s/report.html", folder);
    r->before = -1;
    r->every = EVERY;
    summary_start(&r->summary);
    return r;
}
void report_close(Report *r) {
    if (!r) return;
    summary_free(&r->summary);
    free_each(r->cut, r->log, r->html, r);
}
int report_due(const Report *r) { return now() >= r->next; }
int report_update(Report *r, int live, Error *e) {
    int ok = read_on(r, e);
    const double start = now();                 /* the first page of a resumed run reads all of its log: not counted */
    if (ok) {
        Text page = {0};
        for (int i = 0; report_page[i]; i++)
            if (strcmp(report_page[i], "@data\n")) text_add_string(&page, report_page[i]);
            else add_data(&page, &r->summary, live ? r->every : 0);
        ok = file_write(r->html, page.at, page.length, e);
        free(page.at);
    }
    r->every = fmax(EVERY, (now() - start) / FRACTION);
    r->next = now() + r->every;
    return ok;
}
int report_write(const char *folder, Error *e) {
    Report *r = report_open(folder);
    const int ok = report_update(r, 0, e);
    report_close(r);
    return ok;
}
