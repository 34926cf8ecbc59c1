/* report.c: see report.h.
 *
 * Two passes over the log. A run that stopped at step 480 and resumed from step 400 has logged steps 401 to 480 twice, and the
 * first of each is void. So the first pass collects the cuts, lines at which the step goes back; a line is void if a later
 * cut goes back to before its step. The second pass reads the remaining lines, in order of steps.
 *
 * Thinning a series of unknown length. A curve has a fixed number of buckets of `stride` points each. When all are full,
 * neighbours are merged and the stride doubles: constant memory, constant work per point, and in the end between half and
 * all of the buckets are used. A bucket keeps mean, minimum and maximum, so a spike of one step stays visible in a run of
 * millions. Expert loads are thinned in the same way, with one bucket per column of the heat map.
 *
 * Expert load is drawn relative to the mean over the experts of the router: 1 is even, 0 is dead, E/K takes every token. It
 * is drawn as nine paths of horizontal runs, one per shade, several times smaller than a rectangle per cell.
 *
 * The page is well-formed XML as well as HTML: everything from the log passes through add_escaped. */
#define _POSIX_C_SOURCE 200809L
#include "report.h"
#include "llmc/base/json.h"
#include "llmc/base/text.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    POINTS = 1024,                      /* buckets of a curve; even */
    DOTS = 200,                         /* a curve of at most this many points marks each */
    COLUMNS = 256, CELLS = 120000,      /* of one heat map (at least 8); of all of them together */
    ROUTERS = 128, EXPERTS = 512,       /* drawn */
    FIRST = 8, LAST = 24,               /* how many of the first and last samples and warnings are shown */
    RESUMES = 64, OPTIONS = 512,        /* marked, shown */
    TEXT_BYTES = 4000                   /* of one string */
};
static const double LARGEST = 1e30, LAST_STEP = 1e15;   /* larger values are treated as damage; sums of the rest are finite */

/* ---- what is drawn of a run ------------------------------------------------------------------------------------- */

typedef struct { int64_t taken, finite; double step, sum, min, max; } Bucket;       /* step: also a sum */
typedef struct { int n; int64_t stride; Bucket *at; } Curve;

typedef struct { double step; char *text; } Entry;                                  /* text: already escaped */
typedef struct { Entry first[FIRST], last[LAST]; int64_t n; } List;

typedef struct { char *name; int row, experts; } Router;             /* its experts: rows row .. row+experts-1 */
typedef struct {
    Router  router[ROUTERS];
    int     routers, hidden, rows, capacity, n;                          /* capacity, n: columns */
    int64_t stride, *taken;                                          /* [capacity] load events in a column */
    double *sum, *last;                                              /* load/mean: [capacity][rows]; [rows] of the last */
    double  first_step, last_step;
} Heat;

enum { LOSS, VALIDATION, RATE, NORM, BALANCE, ATTENTION_BALANCE, MAX_LOAD, SPEED, Z_LOSS, DEAD, CURVES };
static const struct { const char *event, *key, *name; } curves[CURVES] = {
    [LOSS]              = { "step", "loss", "training" },
    [VALIDATION]        = { "val", "loss", "validation" },
    [RATE]              = { "step", "lr", "" },
    [NORM]              = { "step", "norm", "" },
    [BALANCE]           = { "step", "balance", "MLP" },
    [ATTENTION_BALANCE] = { "step", "att_balance", "attention" },
    [MAX_LOAD]          = { "step", "max_load", "" },
    [SPEED]             = { "step", "tok_s", "" },
    [Z_LOSS]            = { "step", "z", "" },
    [DEAD]              = { "step", "dead", "" },
};

typedef struct { int64_t line; double step; } Cut;
typedef struct {
    Cut    *cut;                                /* from line `line` on, steps continue after `step`; both ascend */
    size_t  cuts, capacity, next;
    double  before;                             /* first pass: the last step seen */
    int64_t lines, damaged;
    Json   *start, *end;                        /* the last event of each kind */
    Curve   curve[CURVES];
    Heat    heat;
    List    samples, warnings;
    double  first_step, last_step, seconds, tokens, loss, best, best_step, best_bits, resume[RESUMES];
    int64_t resumes;
} Run;

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
/* Is there something to draw? A model without attention experts logs no attention balance, or zeros. */
static int curve_shown(const Curve *c) {
    for (int i = 0; i < c->n; i++)
        if (c->at[i].finite && (c->at[i].min < 0 || c->at[i].max > 0)) return 1;
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

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Text of the log as text of the page: by text_show, markup escaped, long text cut. */
static void add_escaped(Text *t, const char *s, size_t bytes) {
    static const struct { char code; const char *entity; } entities[] = {
        { '<', "&lt;" }, { '>', "&gt;" }, { '&', "&amp;" }, { '"', "&quot;" }, { '\'', "&#39;" },
    };
    size_t at = 0, n;
    for (; at < bytes && at < TEXT_BYTES; at += n) {
        char shown[5];
        const char *put = shown;
        n = text_show(s + at, bytes - at, shown);
        for (size_t k = 0; k < sizeof entities / sizeof *entities; k++)
            if (entities[k].code == *shown) put = entities[k].entity;
        text_add_string(t, put);
    }
    if (at < bytes) text_add_string(t, "…");
}
static void add_value(Text *t, const JsonValue *v) {
    if (!v || v->type == JSON_NULL) text_add_string(t, "–");
    else if (v->type == JSON_STRING) add_escaped(t, v->is.string, v->length);
    else if (v->type == JSON_BOOL) text_add_string(t, v->is.integer ? "yes" : "no");
    else if (v->type == JSON_INT) text_add(t, "%lld", (long long)v->is.integer);
    else if (v->type == JSON_DOUBLE) text_add_double(t, v->is.number);
    else
        for (const JsonValue *item = json_first(v); item; item = item->next) {
            if (item != json_first(v)) text_add_string(t, ", ");
            if (item->key) { add_escaped(t, item->key, item->key_length); text_add_string(t, "="); }
            if (item->type == JSON_ARRAY || item->type == JSON_OBJECT) text_add_string(t, "…"); else add_value(t, item);
            if (t->length > (size_t)1 << 24) return;
        }
}
/* A whole number with thousands separated, clipped at 10^18. */
static void add_count(Text *t, double x) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%.0f", fmin(fmax(x, 0), 1e18));
    for (int i = 0; i < n; i++) text_add(t, "%s%c", i && (n - i) % 3 == 0 ? "," : "", digits[i]);
}
static void add_seconds(Text *t, double s) {
    if (s < 60) { text_add(t, "%.1f s", s); return; }
    s = floor(fmin(s, 1e12) + 0.5);
    if (s >= 3600) text_add(t, "%.0f h %02.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
    else text_add(t, "%.0f min %02.0f s", floor(s / 60), fmod(s, 60));
}
/* A label of an axis whose ticks are `step` apart and whose largest value is `largest`: 0.25, 40k, 1.5e-4. */
static void add_tick(Text *t, double v, double step, double largest) {
    const char *unit = "";
    double scale = 1;
    char power[16];
    if (largest >= 1e12 || (largest > 0 && largest < 0.01)) {
        int exponent = (int)floor(log10(largest) + 1e-9);
        scale = pow(10, exponent);
        snprintf(power, sizeof power, "e%d", exponent);
        unit = power;
    }
    else if (largest >= 1e9) { scale = 1e9; unit = "G"; }
    else if (largest >= 1e6) { scale = 1e6; unit = "M"; }
    else if (largest >= 1e4) { scale = 1e3; unit = "k"; }
    if (v == 0) { text_add_string(t, "0"); return; }
    int decimals = (int)ceil(-log10(step / scale) - 1e-6);
    text_add(t, "%.*f%s", decimals < 0 ? 0 : decimals > 9 ? 9 : decimals, v / scale, unit);
}

/* ---- reading the log --------------------------------------------------------------------------------------------- */

static const JsonValue *root_of(const Json *doc) { return doc ? json_root(doc) : NULL; }
static double number(const JsonValue *object, const char *key) { return json_double(json_get(object, key), NAN); }

static void set_end(Run *r, Json *doc) { json_free(r->end); r->end = doc; }      /* NULL: the run continued */

/* Each reads what it knows of an event; 1: it keeps the document. */
static int take_start(Run *r, Json *doc, double step) {
    (void)step;
    json_free(r->start);
    r->start = doc;
    set_end(r, NULL);
    return 1;
}
static int take_end(Run *r, Json *doc, double step) {
    (void)step;
    set_end(r, doc);
    return 1;
}
static int take_resume(Run *r, Json *doc, double step) {
    (void)doc;
    if (step >= 0) r->resume[r->resumes++ % RESUMES] = step;
    set_end(r, NULL);
    return 0;
}
static void take_curves(Run *r, const JsonValue *o, double step, const char *event) {
    if (r->last_step < 0) r->first_step = step;
    r->last_step = fmax(r->last_step, step);
    for (int i = 0; i < CURVES; i++) {
        const JsonValue *v = json_get(o, curves[i].key);
        if (v && !strcmp(curves[i].event, event)) curve_add(&r->curve[i], step, json_double(v, NAN));
    }
}
static int take_step(Run *r, Json *doc, double step) {
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
static int take_val(Run *r, Json *doc, double step) {
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
static int take_sample(Run *r, Json *doc, double step) {
    const JsonValue *text = json_get(json_root(doc), "text");
    if (!json_is(text, JSON_STRING)) return 0;
    Text t = {0};
    add_value(&t, text);
    list_add(&r->samples, step, t.at);
    return 0;
}
static int take_warning(Run *r, Json *doc, double step) {
    Text t = {0};
    add_value(&t, json_get(json_root(doc), "text"));
    list_add(&r->warnings, step, t.at);
    return 0;
}
static int take_skip(Run *r, Json *doc, double step) {
    Text t = {0};
    text_add_string(&t, "update skipped, gradient not finite: ");
    add_value(&t, json_get(json_root(doc), "tensor"));
    list_add(&r->warnings, step, t.at);
    return 0;
}

/* The first load event defines what is drawn; later ones with the same routers are added. */
static void heat_start(Heat *h, const JsonValue *routers) {
    for (const JsonValue *v = json_first(routers); v; v = v->next) {
        const JsonValue *name = json_get(v, "name"), *load = json_get(v, "load");
        if (!json_is(load, JSON_ARRAY) || !load->length || h->routers == ROUTERS) { h->hidden++; continue; }
        Text t = {0};
        add_value(&t, name);
        h->router[h->routers++] = (Router){ t.at, h->rows, load->length < EXPERTS ? (int)load->length : EXPERTS };
        h->rows += load->length < EXPERTS ? (int)load->length : EXPERTS;
    }
    if (!h->rows) return;
    h->capacity = CELLS / h->rows / 2 * 2;
    h->capacity = h->capacity < 8 ? 8 : h->capacity > COLUMNS ? COLUMNS : h->capacity;
    h->stride = 1;
    h->taken = mem_alloc((size_t)h->capacity * sizeof *h->taken);
    h->sum = mem_alloc((size_t)h->capacity * (size_t)h->rows * sizeof *h->sum);
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
static int take_load(Run *r, Json *doc, double step) {
    Heat *h = &r->heat;
    const JsonValue *routers = json_get(json_root(doc), "routers");
    if (step < 0 || !json_is(routers, JSON_ARRAY)) return 0;
    if (!h->rows) {
        heat_start(h, routers);
        h->first_step = step;
    }
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
        const Router *router = &h->router[i++];
        double sum = 0;
        for (x = json_first(load); x; x = x->next) sum += tokens_of(x);
        x = json_first(load);
        for (int k = 0; k < router->experts; k++, x = x->next) {
            const double ratio = sum > 0 ? tokens_of(x) / sum * (double)load->length : 0;
            h->last[router->row + k] = ratio;
            column[router->row + k] += ratio;
        }
    }
    h->last_step = step;
    return 0;
}

static const struct { const char *name; int (*take)(Run *r, Json *doc, double step); int can_be_void; } events[] = {
    { "start", take_start, 0 }, { "resume", take_resume, 0 }, { "step", take_step, 1 }, { "val", take_val, 1 },
    { "load", take_load, 1 }, { "sample", take_sample, 1 }, { "warning", take_warning, 0 }, { "skip", take_skip, 0 },
    { "end", take_end, 0 },
};

/* First pass. A cut replaces earlier cuts with later steps, so the steps of the remaining ones ascend. */
static void find_cut(Run *r, const char *event, double step, int64_t line) {
    const int resume = !strcmp(event, "resume"), again = !strcmp(event, "step") && step <= r->before;
    if (step < 0) return;
    if (resume || again) {
        const Cut cut = { line, resume ? step : step - 1 };
        while (r->cuts && r->cut[r->cuts - 1].step >= cut.step) r->cuts--;
        if (r->cuts == r->capacity) r->cut = mem_grow(r->cut, (r->capacity = r->capacity * 2 + 16) * sizeof *r->cut);
        r->cut[r->cuts++] = cut;
    }
    if (resume || !strcmp(event, "step")) r->before = step;
}
/* Second pass. */
static int take_event(Run *r, Json *doc, const char *event, double step, int64_t line) {
    while (r->next < r->cuts && r->cut[r->next].line <= line) r->next++;
    const int is_void = r->next < r->cuts && r->cut[r->next].step < step;
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (!strcmp(events[i].name, event) && !(is_void && events[i].can_be_void)) return events[i].take(r, doc, step);
    return 0;
}
/* The second pass stops where the first did, because the run may still be writing. */
static int read_log(Run *r, FILE *f, int second) {
    char *text = NULL;
    size_t capacity = 0;
    ssize_t bytes = 0;
    int64_t line = 0;
    for (; (!second || line < r->lines) && (bytes = getline(&text, &capacity, f)) > 0; line++) {
        Error why;
        const int whole = text[bytes - 1] == '\n';
        Json *doc = json_parse(text, (size_t)bytes, &why);
        const JsonValue *o = root_of(doc);
        const char *event = json_string(json_get(o, "event"), "");
        double step = json_double(json_get(o, "step"), -1);
        if (!(step >= 0 && step <= LAST_STEP)) step = -1;
        if (!doc && whole && strspn(text, " \t\r\n") < (size_t)bytes) r->damaged += second;
        if (!second) find_cut(r, event, step, line);
        if (!second || !doc || !take_event(r, doc, event, step, line)) json_free(doc);
    }
    free(text);
    if (!second) r->lines = line;
    return bytes > 0 || feof(f) || (second && line == r->lines);
}

/* ---- curves ------------------------------------------------------------------------------------------------------ */

enum { FROM_ZERO = 1, EVEN_IS_ONE = 2, MAYBE_LOG = 4, WIDE = 8 };
typedef struct { const char *title; int curve[2], count, how; } Chart;
static const Chart charts[] = {
    { "Loss", { LOSS, VALIDATION }, 2, WIDE },
    { "Learning rate", { RATE }, 1, FROM_ZERO },
    { "Gradient norm", { NORM }, 1, FROM_ZERO | MAYBE_LOG },
    { "Balance loss (1 is even)", { BALANCE, ATTENTION_BALANCE }, 2, EVEN_IS_ONE },
    { "Load of the busiest expert / mean", { MAX_LOAD }, 1, EVEN_IS_ONE },
    { "Tokens per second", { SPEED }, 1, FROM_ZERO },
    { "Router z-loss", { Z_LOSS }, 1, FROM_ZERO },
    { "Experts without a token", { DEAD }, 1, FROM_ZERO },
};
enum { CHARTS = sizeof charts / sizeof *charts };

typedef struct { double x0, x1, y0, y1, left, right, top, bottom; int log; } Axes;     /* y0, y1: of log10 y, if log */
static double at_x(const Axes *a, double x) { return a->left + (x - a->x0) / (a->x1 - a->x0) * (a->right - a->left); }
static double at_y(const Axes *a, double y) {
    return a->bottom - ((a->log ? log10(y) : y) - a->y0) / (a->y1 - a->y0) * (a->bottom - a->top);
}

/* 1, 2 or 5 times a power of ten, so that a range has about n of them. */
static double nice_step(double range, int n) {
    const double raw = range / n, power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part < 1.5 ? 1 : part < 3.2 ? 2 : part < 7.1 ? 5 : 10);
}
static void axes_range(Axes *a, const Run *r, const Chart *c) {
    double low = INFINITY, high = -INFINITY, range;
    for (int i = 0; i < c->count; i++) {
        const Curve *curve = &r->curve[c->curve[i]];
        if (!curve_shown(curve)) continue;
        for (int k = 0; k < curve->n; k++)
            if (curve->at[k].finite) { low = fmin(low, curve->at[k].min); high = fmax(high, curve->at[k].max); }
    }
    a->log = (c->how & MAYBE_LOG) && low > 1e-30 && high / low >= 100;
    if (a->log) { low = log10(low); high = log10(high); }
    else if (c->how & FROM_ZERO) { low = fmin(low, 0); high = fmax(high, 0); }
    else if (c->how & EVEN_IS_ONE) { low = fmin(low, 1); high = fmax(high, 1); }
    range = fmax(high - low, 1e-6 * fmax(fabs(low), fabs(high)) + 1e-30);
    a->y0 = low == 0 && (c->how & FROM_ZERO) ? 0 : low - 0.04 * range;
    a->y1 = high + 0.04 * range;
    a->x0 = r->first_step < 0.2 * r->last_step ? 0 : r->first_step;
    a->x1 = fmax(r->last_step, a->x0 + 1);
}

static void draw_y_tick(Text *t, const Axes *a, double y, double step, double largest) {
    const double py = at_y(a, y);
    text_add(t, "<path class=\"grid\" d=\"M%.0f %.1fH%.0f\"/>", a->left, py, a->right);
    text_add(t, "<text class=\"end\" x=\"%.0f\" y=\"%.1f\">", a->left - 6, py + 4);
    add_tick(t, y, step, largest);
    text_add_string(t, "</text>\n");
}
static void draw_axes(Text *t, const Axes *a, int wide) {
    if (a->log) {                                    /* every n-th power of ten; with 2 and 5 if there are few */
        const double decades = a->y1 - a->y0, every = ceil(decades / 6);
        for (double k = floor(a->y0); k <= a->y1; k += every)
            for (int m = 1; m <= 5; m += m == 2 ? 3 : 1) {
                const double y = m * pow(10, k), place = log10(y);
                if (place >= a->y0 && place <= a->y1 && (m == 1 || decades < 3)) draw_y_tick(t, a, y, pow(10, k), y);
            }
    } else {
        const double step = nice_step(a->y1 - a->y0, wide ? 7 : 5), first = ceil(a->y0 / step - 1e-9);
        for (int i = 0; i < 20 && (first + i) * step <= a->y1; i++)
            draw_y_tick(t, a, (first + i) * step, step, fmax(fabs(a->y0), fabs(a->y1)));
    }
    const double step = fmax(nice_step(a->x1 - a->x0, wide ? 8 : 5), 1), first = ceil(a->x0 / step);
    for (int i = 0; i < 20 && (first + i) * step <= a->x1; i++) {
        const double x = (first + i) * step, px = at_x(a, x);
        text_add(t, "<path class=\"axis\" d=\"M%.1f %.0fv4\"/>", px, a->bottom);
        text_add(t, "<text class=\"mid\" x=\"%.1f\" y=\"%.0f\">", px, a->bottom + 17);
        add_tick(t, x, step, a->x1);
        text_add_string(t, "</text>\n");
    }
    text_add(t, "<path class=\"axis\" d=\"M%.0f %.0fH%.0f\"/>", a->left, a->bottom, a->right);
    text_add(t, "<text class=\"mid\" x=\"%.0f\" y=\"%.0f\">step</text>\n", (a->left + a->right) / 2, a->bottom + 33);
}

static void draw_point(Text *t, const Axes *a, int first, const Bucket *b, double y) {
    text_add(t, "%c%.1f %.1f", first ? 'M' : 'L', at_x(a, b->step / (double)b->finite), at_y(a, y));
}
/* The mean as a line, minimum to maximum as a band behind it; a bucket without numbers is a gap. */
static void draw_curve(Text *t, const Axes *a, const Curve *c, int color) {
    const Bucket *b = c->at;
    for (int from = 0, to; c->stride > 1 && from < c->n; from = to + 1) {
        for (to = from; to < c->n && b[to].finite; to++) { }
        if (to == from) continue;
        text_add(t, "<path class=\"band c%d\" d=\"", color);
        for (int k = from; k < to; k++) draw_point(t, a, k == from, &b[k], b[k].max);
        for (int k = to; k-- > from;) draw_point(t, a, 0, &b[k], b[k].min);
        text_add_string(t, "z\"/>\n");
    }
    text_add(t, "<path class=\"line c%d\" d=\"", color);
    for (int k = 0; k < c->n; k++) {
        if (!b[k].finite) continue;
        const int first = !k || !b[k - 1].finite, last = k + 1 == c->n || !b[k + 1].finite;
        draw_point(t, a, first, &b[k], b[k].sum / (double)b[k].finite);
        if (first && last) text_add_string(t, "h0");    /* a single point: the round cap of an empty line */
    }
    text_add_string(t, "\"/>\n");
}
static void draw_dots(Text *t, const Axes *a, const Curve *c, int color) {
    if (c->stride > 1 || c->n > DOTS) return;
    for (int k = 0; k < c->n; k++)
        if (c->at[k].finite)
            text_add(t, "<circle class=\"dot c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"><title>step %.0f: "
                        "%.4f</title></circle>\n", color, at_x(a, c->at[k].step), at_y(a, c->at[k].sum),
                        c->at[k].step, c->at[k].sum);
}

static int chart_shown(const Run *r, const Chart *c) {
    for (int i = 0; i < c->count; i++) if (curve_shown(&r->curve[c->curve[i]])) return 1;
    return 0;
}
static void draw_chart(Text *t, const Run *r, const Chart *c) {
    const int wide = c->how & WIDE, best = wide && isfinite(r->best);
    const double width = wide ? 860 : 420, height = wide ? 340 : 210;
    Axes a = { .left = 48, .right = width - 18, .top = 8, .bottom = height - 38 };
    if (!chart_shown(r, c)) return;
    axes_range(&a, r, c);
    text_add(t, "<figure class=\"%s\"><figcaption><b>%s</b>%s", wide ? "wide" : "", c->title,
             a.log ? " (logarithmic)" : "");
    for (int i = 0; i < c->count && c->count > 1; i++)
        if (curve_shown(&r->curve[c->curve[i]]))
            text_add(t, " <span class=\"key\"><i class=\"c%d\"></i>%s</span>", i, curves[c->curve[i]].name);
    if (best) {
        text_add(t, " <span class=\"key\"><i class=\"ring\"></i>best %.4g at step ", r->best);
        add_count(t, r->best_step);
        text_add_string(t, "</span>");
    }
    text_add_string(t, "</figcaption>\n");
    text_add(t, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s over steps\">\n", width, height, c->title);
    draw_axes(t, &a, wide);
    if (c->how & EVEN_IS_ONE)
        text_add(t, "<path class=\"even\" d=\"M%.0f %.1fH%.0f\"/>\n", a.left, at_y(&a, 1), a.right);
    for (int64_t i = 0; wide && i < r->resumes && i < RESUMES; i++)
        if (r->resume[i] >= a.x0 && r->resume[i] <= a.x1)
            text_add(t, "<path class=\"even\" d=\"M%.1f %.0fV%.0f\"><title>resumed at step %.0f</title></path>\n",
                     at_x(&a, r->resume[i]), a.top, a.bottom, r->resume[i]);
    for (int i = 0; i < c->count; i++)
        if (curve_shown(&r->curve[c->curve[i]])) draw_curve(t, &a, &r->curve[c->curve[i]], i);
    if (wide) draw_dots(t, &a, &r->curve[VALIDATION], 1);
    if (best)
        text_add(t, "<circle class=\"best\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\"/>\n", at_x(&a, r->best_step),
                 at_y(&a, r->best));
    text_add_string(t, "</svg></figure>\n");
}

/* ---- expert loads ------------------------------------------------------------------------------------------------ */

static const struct { double below; const char *name; } shades[] = {        /* of load / mean */
    { 1e-9, "0" }, { 0.25, "&lt; 0.25" }, { 0.5, "&lt; 0.5" }, { 0.8, "&lt; 0.8" }, { 1.25, "0.8 to 1.25" },
    { 1.5, "&gt; 1.25" }, { 2, "&gt; 1.5" }, { 3, "&gt; 2" }, { INFINITY, "&gt; 3" },
};
enum { SHADES = sizeof shades / sizeof *shades, EVEN_SHADE = 4 };
static int shade_of(const Heat *h, int row, int column) {
    const double ratio = h->sum[(size_t)column * (size_t)h->rows + (size_t)row] / (double)h->taken[column];
    int s = 0;
    while (s < SHADES - 1 && !(ratio < shades[s].below)) s++;
    return s;
}
/* One router: a row per expert, a column per bucket of time. The even shade is the background. */
static void draw_router(Text *t, const Heat *h, const Router *router) {
    int least = 0, most = 0;
    for (int k = 0; k < router->experts; k++) {
        if (h->last[router->row + k] < h->last[router->row + least]) least = k;
        if (h->last[router->row + k] > h->last[router->row + most]) most = k;
    }
    text_add(t, "<figure><figcaption><b>%s</b> last: %.2f (expert %d) to %.2f (expert %d)</figcaption>\n", router->name,
             h->last[router->row + least], least, h->last[router->row + most], most);
    text_add(t, "<svg class=\"heat\" viewBox=\"0 0 %d %d\" style=\"height:%dpx\" "
                "preserveAspectRatio=\"none\"", h->n, router->experts,
             router->experts * (router->experts <= 16 ? 8 : router->experts <= 64 ? 4 : 2));
    text_add_string(t, " role=\"img\" aria-label=\"load of each expert over time\">\n");
    text_add(t, "<rect class=\"s%d\" width=\"%d\" height=\"%d\"/>\n", EVEN_SHADE, h->n, router->experts);
    Text runs[SHADES] = {{0}};
    for (int k = 0; k < router->experts; k++)
        for (int from = 0, to; from < h->n; from = to) {
            const int s = shade_of(h, router->row + k, from);
            for (to = from + 1; to < h->n && shade_of(h, router->row + k, to) == s; to++) { }
            if (s != EVEN_SHADE) text_add(&runs[s], "M%d %dh%dv1H%dz", from, k, to - from, from);
        }
    for (int s = 0; s < SHADES; s++) {
        if (runs[s].at) text_add(t, "<path class=\"s%d\" d=\"%s\"/>\n", s, runs[s].at);
        free(runs[s].at);
    }
    text_add_string(t, "</svg></figure>\n");
}
static void draw_heat(Text *t, const Heat *h) {
    if (!h->n) return;
    text_add_string(t, "<h2>Expert load</h2>\n<p>A strip per router, a row per expert (0 on top), time from step ");
    add_count(t, h->first_step);
    text_add_string(t, " on the left to step ");
    add_count(t, h->last_step);
    text_add_string(t, " on the right. Shade: tokens of the expert / mean of its router.</p>\n<p>");
    for (int s = 0; s < SHADES; s++)
        text_add(t, "<span class=\"key\"><svg class=\"swatch\" viewBox=\"0 0 1 1\"><rect class=\"s%d\" "
                    "width=\"1\" height=\"1\"/></svg>%s</span> ", s, shades[s].name);
    text_add_string(t, "</p>\n<div class=\"grid2\">\n");
    for (int i = 0; i < h->routers; i++) draw_router(t, h, &h->router[i]);
    text_add_string(t, "</div>\n");
    if (h->hidden) text_add(t, "<p>%d more routers are not drawn.</p>\n", h->hidden);
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--dim:#68717d;--grid:#e6e9ed;--axis:#9aa3ad;\n"
    "  --box:#f6f7f9;--c0:#3b76c4;--c1:#d4620a;--s0:#16161d;--s1:#1f5fa8;--s2:#6aa3d9;--s3:#c0d9ef;--s4:#f0f0ec;\n"
    "  --s5:#fbdcb4;--s6:#f3ab62;--s7:#d96a1b;--s8:#93360a}\n"
    "@media screen and (prefers-color-scheme:dark){\n"
    ":root{--bg:#15181c;--fg:#dfe3e8;--dim:#97a1ac;--grid:#2a2f36;--axis:#59626d;--box:#1e2227;--c0:#6ea8f0;\n"
    "  --c1:#f5974a;--s0:#f4f4ff;--s1:#79bbff;--s2:#3f80c4;--s3:#2c4a6b;--s4:#2a2e33;--s5:#5e4426;--s6:#a0621f;\n"
    "  --s7:#e08a2e;--s8:#ffd08a}}\n"
    "body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--bg);color:var(--fg);\n"
    "  font:15px/1.45 system-ui,sans-serif;print-color-adjust:exact;-webkit-print-color-adjust:exact}\n"
    "h1{font-size:1.5rem;margin:.5rem 0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2rem 0 .5rem}\n"
    "p{margin:.4rem 0}\n"
    "dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.5rem;margin:1rem 0}\n"
    "dl div{background:var(--box);border-radius:6px;padding:.5rem .7rem}dl div.span{grid-column:1/-1}\n"
    "dt,figcaption,.dim{color:var(--dim);font-size:.85rem}dd{margin:0;overflow-wrap:anywhere}\n"
    "dl div.main dd{font-size:1.25rem;line-height:1.3}dd .dim{display:block}\n"
    "figure{margin:0 0 1rem;min-width:0;break-inside:avoid}figcaption b{color:var(--fg);margin-right:.4rem}\n"
    "figure.wide{overflow-x:auto}figure.wide svg{min-width:34rem}\n"
    ".grid2{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(24rem,100%),1fr));gap:.6rem 1.2rem}\n"
    "svg{display:block;width:100%}svg text{font:11px system-ui,sans-serif;fill:var(--dim)}.end{text-anchor:end}\n"
    ".mid{text-anchor:middle}path{fill:none}.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}\n"
    ".even{stroke:var(--axis);stroke-dasharray:4 3}.c0{--c:var(--c0)}.c1{--c:var(--c1)}\n"
    ".line{stroke:var(--c);stroke-width:1.4;stroke-linejoin:round;stroke-linecap:round}\n"
    ".band{fill:var(--c);stroke:var(--c);opacity:.3}.dot{fill:var(--c)}\n"
    ".best{fill:none;stroke:var(--fg);stroke-width:1.5}.key{white-space:nowrap;margin-right:.7rem}\n"
    ".key i{display:inline-block;width:1.3em;border-top:3px solid var(--c);vertical-align:.25em;margin-right:.35em}\n"
    ".key i.ring{width:.6em;height:.6em;border:1.5px solid var(--fg);border-radius:50%;vertical-align:-.05em}\n"
    ".heat{shape-rendering:crispEdges}\n"
    ".swatch{display:inline-block;width:1em;height:1em;vertical-align:-.12em;margin-right:.35em}.s0{fill:var(--s0)}\n"
    ".s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}.s4{fill:var(--s4)}.s5{fill:var(--s5)}\n"
    ".s6{fill:var(--s6)}.s7{fill:var(--s7)}.s8{fill:var(--s8)}\n"
    "pre{background:var(--box);border-radius:6px;padding:.6rem .8rem;margin:.2rem 0 1rem;white-space:pre-wrap;\n"
    "  overflow-wrap:anywhere;unicode-bidi:isolate;font:13px/1.4 ui-monospace,monospace}\n"
    "table{border-collapse:collapse}\n"
    "td{padding:.15rem 1.2rem .15rem 0;border-top:1px solid var(--grid);vertical-align:top;overflow-wrap:anywhere;\n"
    "  unicode-bidi:isolate}\n"
    "td:first-child{color:var(--dim);white-space:nowrap}\n"
    "@media print{\n"
    "html{font-size:11px}body{max-width:none;font-size:11px}h2,.dim{break-after:avoid}\n"
    ".grid2{grid-template-columns:1fr 1fr}figure.wide svg{min-width:0}}\n";

static void cell(Text *t, const char *kind, const char *name) {
    text_add(t, "<div class=\"%s\"><dt>%s</dt><dd>", kind, name);
}
static void cell_end(Text *t) { text_add_string(t, "</dd></div>\n"); }
static void cell_of(Text *t, const char *kind, const char *name, const JsonValue *v) {
    if (!v || v->type == JSON_NULL) return;
    cell(t, kind, name);
    if (v->type == JSON_INT && v->is.integer >= 0) add_count(t, (double)v->is.integer); else add_value(t, v);
    cell_end(t);
}
static void write_summary(Text *t, const Run *r) {
    const JsonValue *start = root_of(r->start), *end = root_of(r->end);
    const double seconds = json_double(json_get(end, "seconds"), r->seconds);
    const double steps = json_double(json_get(json_get(start, "options"), "steps"), 0);
    const double speed = json_double(json_get(end, "tok_s"), r->seconds > 0 ? r->tokens / r->seconds : NAN);
    text_add_string(t, "<dl>\n");
    if (isfinite(r->best)) {
        cell(t, "main", "Best validation loss");
        text_add(t, "%.4g <span class=\"dim\">at step ", r->best);
        add_count(t, r->best_step);
        if (r->best_bits > 0 && r->best_bits <= LARGEST) text_add(t, ", %.4g bits/byte", r->best_bits);
        text_add_string(t, "</span>");
        cell_end(t);
    }
    if (isfinite(r->loss)) { cell(t, "main", "Last training loss"); text_add(t, "%.4g", r->loss); cell_end(t); }
    if (r->last_step >= 0) {
        cell(t, "main", "Steps");
        add_count(t, r->last_step);
        if (steps > r->last_step && steps <= LAST_STEP) {
            text_add_string(t, " <span class=\"dim\">of ");
            add_count(t, steps);
            text_add_string(t, "</span>");
        }
        cell_end(t);
    }
    if (seconds > 0) { cell(t, "main", "Time"); add_seconds(t, seconds); cell_end(t); }
    if (speed > 0) { cell(t, "main", "Tokens per second"); add_count(t, speed); cell_end(t); }
    cell_of(t, "", "Parameters", json_get(start, "parameters"));
    cell_of(t, "", "Active for each token", json_get(start, "active"));
    cell_of(t, "", "Family", json_get(start, "family"));
    cell_of(t, "", "Device", json_get(start, "device"));
    cell_of(t, "", "Training tokens", json_get(start, "train_tokens"));
    cell_of(t, "", "Validation tokens", json_get(start, "val_tokens"));
    cell_of(t, "", "Tokens seen", json_get(end, "tokens"));
    cell_of(t, "", r->resumes ? "Last started" : "Started", json_get(start, "time"));
    cell_of(t, "", "Version", json_get(start, "version"));
    cell_of(t, "", "Weights fingerprint", json_get(end, "fingerprint"));
    if (r->resumes) { cell(t, "", "Times resumed"); add_count(t, (double)r->resumes); cell_end(t); }
    cell_of(t, "span", json_bool(json_get(start, "fallback"), 0) ? "Data (fallback)" : "Data", json_get(start, "data"));
    text_add_string(t, "</dl>\n");
}
static void write_list(Text *t, const List *l, const char *title, int table) {
    const Entry *e;
    if (!l->n) return;
    text_add(t, "<h2>%s</h2>\n%s", title, table ? "<table>\n" : "");
    for (int i = 0; i < FIRST + LAST && (e = list_at(l, i)); i++) {
        if (i == FIRST && l->n > FIRST + LAST)
            text_add(t, table ? "<tr><td></td><td>%lld more</td></tr>\n" : "<p>%lld more</p>\n",
                     (long long)(l->n - FIRST - LAST));
        text_add_string(t, table ? "<tr><td>" : "<div class=\"dim\">");
        if (e->step >= 0) { text_add_string(t, "step "); add_count(t, e->step); }
        text_add(t, table ? "</td><td>%s</td></tr>\n" : "</div>\n<pre>\n%s</pre>\n", e->text ? e->text : "");
    }
    if (table) text_add_string(t, "</table>\n");
}
static void write_options(Text *t, const JsonValue *options) {
    int n = 0;
    if (!json_is(options, JSON_OBJECT) || !options->length) return;
    text_add_string(t, "<h2>Options</h2>\n<table>\n");
    for (const JsonValue *v = json_first(options); v && n < OPTIONS; v = v->next, n++) {
        text_add_string(t, "<tr><td>");
        add_escaped(t, v->key, v->key_length);
        text_add_string(t, "</td><td>");
        add_value(t, v);
        text_add_string(t, "</td></tr>\n");
    }
    text_add_string(t, "</table>\n");
}
static void write_page(Text *t, const Run *r) {
    const JsonValue *start = root_of(r->start), *model = json_get(start, "model");
    Text title = {0};
    text_add_string(&title, "Training report");
    if (model) { text_add_string(&title, ": "); add_value(&title, model); }
    text_add_string(t, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\n"
           "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
           "'unsafe-inline'\"/>\n");
    text_add(t, "<title>%s</title>\n<style>\n", title.at);
    text_add_string(t, style);
    text_add(t, "</style></head><body>\n<h1>%s</h1>\n", title.at);
    free(title.at);
    if (!r->end)
        text_add(t, "<p>%s</p>\n", r->last_step < 0 ? "The log has no steps yet."
                                                    : "The log has no end: the run goes on, or was interrupted.");
    if (r->damaged)
        text_add(t, "<p>%lld lines of the log could not be read and are left out.</p>\n", (long long)r->damaged);
    write_summary(t, r);
    draw_chart(t, r, &charts[0]);
    text_add_string(t, "<div class=\"grid2\">\n");
    for (int i = 1; i < CHARTS; i++) draw_chart(t, r, &charts[i]);
    text_add_string(t, "</div>\n");
    draw_heat(t, &r->heat);
    write_list(t, &r->samples, "Samples", 0);
    write_list(t, &r->warnings, "Warnings", 1);
    write_options(t, json_get(start, "options"));
    text_add_string(t, "</body></html>\n");
}

static void run_free(Run *r) {
    for (int i = 0; i < CURVES; i++) free(r->curve[i].at);
    for (int i = 0; i < r->heat.routers; i++) free(r->heat.router[i].name);
    free(r->heat.taken);
    free(r->heat.sum);
    free(r->heat.last);
    list_free(&r->samples);
    list_free(&r->warnings);
    json_free(r->start);
    json_free(r->end);
    free(r->cut);
    free(r);
}

int report_write(const char *folder, Error *e) {
    char *log = text_format("%s/log.jsonl", folder), *html = text_format("%s/report.html", folder);
    Run *r = mem_alloc(sizeof *r);
    Text page = {0};
    r->before = r->last_step = r->first_step = -1;
    r->loss = r->best = r->best_bits = NAN;
    errno = 0;
    FILE *f = fopen(log, "rb");
    int ok = f && read_log(r, f, 0) && fseek(f, 0, SEEK_SET) == 0 && read_log(r, f, 1);
    if (!ok) error_set(e, "%s: %s", log, errno ? strerror(errno) : "could not be read");
    if (f) fclose(f);
    if (ok) {
        write_page(&page, r);
        ok = file_write(html, page.at, page.length, e);
    }
    free(page.at);
    run_free(r);
    free(log);
    free(html);
    return ok;
}
