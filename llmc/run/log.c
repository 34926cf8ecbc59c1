/* log.c: see log.h. */
#define _DEFAULT_SOURCE
#include "log.h"
#include "plot.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Log *current;                    /* receives warnings; one log is open at a time */

/* ---- events and lines ------------------------------------------------------------------------ */

static void write_line(Log *l, FILE *file, const char *text) {
    if (!file) return;
    if (fprintf(file, "%s\n", text) > 0 && fflush(file) == 0) return;
    clearerr(file);                                         /* training continues; the disk may get space again */
    if (l->lost++ % 100 == 0)
        text_print(stderr, "warning: %s: log lines cannot be written (%s); training continues\n", l->folder,
                strerror(errno));
}

static void key(Text *e, const char *name) { text_add(e, ", \"%s\": ", name); }
Text event(const char *name) {
    Text e = { 0 };
    text_add(&e, "{\"event\": \"%s\"", name);
    return e;
}
void event_int(Text *e, const char *name, int64_t x)        { key(e, name); text_add(e, "%lld", (long long)x); }
void event_double(Text *e, const char *name, double x)      { key(e, name); text_add_double(e, x); }
void event_json(Text *e, const char *name, const char *json) { key(e, name); text_add_string(e, json); }
void event_text(Text *e, const char *name, const char *text, size_t bytes) {
    key(e, name);
    text_add_json(e, text, bytes);
}
void log_event(Log *l, Text *e) {
    text_add(e, "}");
    write_line(l, l->json, e->at);
    free(e->at);
}

static void finish_line(Log *l) {
    if (l->open_line) putchar('\n');
    l->open_line = 0;
}
void log_line(Log *l, const char *format, ...) {
    va_list args;
    if (l->silent) return;
    finish_line(l);
    va_start(args, format);
    text_vprint(stdout, format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void on_warning(const char *text) {
    if (!current) return;
    Text e = event("warning");
    event_text(&e, "text", text, strlen(text));
    log_event(current, &e);
}

/* The step of a line; -1: a line without one; INT64_MAX: a damaged line. */
static int64_t json_step(const char *line, size_t n) {
    Error e;
    Json *j = json_parse(line, n, &e);
    int64_t step = j ? json_int(json_get(json_root(j), "step"), -1) : INT64_MAX;
    json_free(j);
    return step;
}
static int64_t main_step(const char *line, size_t n) {
    return n > 2 && line[0] == 's' && line[1] == ':' ? strtoll(line + 2, NULL, 10) : -1;
}

/* Removes the lines after `step`. A line without a step belongs to the line before it. */
static void cut(const char *path, int64_t step, int64_t (*step_of)(const char *, size_t)) {
    size_t bytes, kept = 0;
    Error e;
    char *text = file_read(path, &bytes, &e);
    int beyond = 0;
    for (size_t at = 0; text && at < bytes; ) {
        char *end = memchr(text + at, '\n', bytes - at);
        const size_t n = end ? (size_t)(end - text) - at + 1 : bytes - at;
        const int64_t s = step_of(text + at, n - (end != NULL));
        if (s >= 0) beyond = s > step;
        if (!beyond && end) { memmove(text + kept, text + at, n); kept += n; }
        at += n;
    }
    if (text && kept < bytes && !file_write(path, text, kept, &e)) warn("%s", e.text);
    free(text);
}

void log_silence(Log *l) { *l = (Log){ .silent = 1 }; }
static FILE *open_log(const char *path, int how, Error *e) {
    const int fd = file_open_to_write(path, O_WRONLY | O_APPEND | how, e);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "a");
    if (fd >= 0 && !f) error_set(e, "%s: %s", path, strerror(errno));
    return f;
}
int log_open(Log *l, const char *folder, int64_t resume_step, const char *start, Error *e) {
    char *main_path = text_format("%s/main.log", folder), *json_path = text_format("%s/log.jsonl", folder);
    *l = (Log){ .folder = text_format("%s", folder), .terminal = isatty(STDOUT_FILENO) };
    if (resume_step >= 0) { cut(main_path, resume_step, main_step); cut(json_path, resume_step, json_step); }
    char *line = text_format("%s\n", start);
    int ok = (resume_step >= 0 && is_file(json_path)) || file_write(json_path, line, strlen(line), e);
    if (ok) {
        l->main = open_log(main_path, resume_step >= 0 ? 0 : O_TRUNC, e);
        l->json = l->main ? open_log(json_path, 0, e) : NULL;
        ok = l->json != NULL;
    }
    free_each(line, main_path, json_path);
    current = ok ? l : NULL;
    warn_hook(on_warning);
    return ok;
}
void log_close(Log *l) {
    warn_hook(NULL);
    current = NULL;
    if (l->main) fclose(l->main);
    if (l->json) fclose(l->json);
    if (l->lost) text_print(stderr, "warning: %s: %ld log lines were lost\n", l->folder, l->lost);
    free_each(l->folder, l->curve);
}

/* ---- steps and validations ------------------------------------------------------------------- */

static void add_point(Log *l, double x, double y) {
    if ((l->points & (l->points - 1)) == 0)                 /* full: capacities are powers of two */
        l->curve = mem_grow(l->curve, (size_t)(l->points ? 4 * l->points : 4) * sizeof *l->curve);
    l->curve[2*l->points] = x;
    l->curve[2*l->points++ + 1] = y;
}

/* " (+0.05z)"; nothing while there are too few values. */
static const char *score_text(char text[16], double z) {
    *text = 0;
    if (isfinite(z)) snprintf(text, 16, " (%+.2fz)", z);
    return text;
}
/* "3:07" minutes and seconds, "5h03" hours and minutes, "2.4 days". */
void duration_text(char text[32], double seconds) {
    const double minutes = seconds / 60;
    if (minutes < 60) snprintf(text, 32, "%d:%02d", (int)(seconds + 0.5) / 60, (int)(seconds + 0.5) % 60);
    else if (minutes < 48 * 60) snprintf(text, 32, "%dh%02d", (int)minutes / 60, (int)minutes % 60);
    else snprintf(text, 32, "%.1f days", minutes / (24 * 60));
}
/* The parts of a line, as many as fit into `width` columns; 0: all. */
static void join_parts(char line[400], int width, char parts[][64], int count) {
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        const size_t more = strlen(parts[i]) + (i ? 3 : 0);
        if (!*parts[i] || n + more >= 400 || (width && i && n + more >= (size_t)width)) continue;
        n += (size_t)snprintf(line + n, 400 - n, "%s%s", i ? " | " : "", parts[i]);
    }
    if (width && n >= (size_t)width) line[width - 1] = 0;
}
/* Of the terminal's width: what a user looks for first comes first, and what does not fit is left
 * out. A file has everything, in llm.c's order. */
static void print_step(Log *l, const StepStats *s, int keep_line) {
    enum { STEP, ETA, SPEED, LOSS, NORM, LR, MS, BALANCE, PARTS };
    static const int on_terminal[PARTS] = { STEP, ETA, SPEED, LOSS, BALANCE, NORM, LR, MS },
        in_file[PARTS] = { STEP, LOSS, NORM, LR, MS, SPEED, BALANCE, ETA };
    const RouterStats *r = &s->routers;
    char of[PARTS][64] = { "" }, parts[PARTS][64], z[16], left[32], attention[32] = "", line[400] = "";
    if (l->terminal && !keep_line && now() - l->refreshed <= 0.05) return;          /* at most 20 times a second */
    duration_text(left, s->eta);
    if (r->att_balance > 0) snprintf(attention, sizeof attention, " att %.2f", r->att_balance);
    snprintf(of[STEP], 64, "step %4lld/%lld", (long long)s->step, (long long)s->steps);
    snprintf(of[ETA], 64, "eta %s", left);
    snprintf(of[SPEED], 64, "%.0f tok/s", s->tok_s);
    snprintf(of[LOSS], 64, "loss %.6f%s", s->loss, score_text(z, s->loss_z));
    snprintf(of[NORM], 64, "norm %.4f%s", s->norm, score_text(z, s->norm_z));
    snprintf(of[LR], 64, "lr %.2e", s->lr);
    snprintf(of[MS], 64, "%.2f ms", s->ms);
    if (r->balance > 0 || r->att_balance > 0)
        snprintf(of[BALANCE], 64, "bal %.2f max %.1f dead %d/%d%s", r->balance > 0 ? r->balance : r->att_balance,
                 r->max_load, r->dead, r->experts, attention);
    for (int i = 0; i < PARTS; i++) memcpy(parts[i], of[(l->terminal ? on_terminal : in_file)[i]], 64);
    join_parts(line, terminal_width(STDOUT_FILENO), parts, PARTS);
    if (!l->terminal) puts(line);
    else {
        printf("\r%s\033[K", line);
        l->open_line = 1;
        if (keep_line) finish_line(l);
        l->refreshed = now();
    }
    fflush(stdout);
}
void log_first_step(Log *l, int64_t step, int64_t steps, int micro, int micro_batches, int64_t tokens) {
    if (!l->terminal || l->silent) return;
    printf("\rstep %4lld/%lld: the first, of %lld tokens", (long long)step, (long long)steps, (long long)tokens);
    if (micro_batches > 1) printf(", micro-batch %d of %d", micro + 1, micro_batches);
    printf("\033[K");
    l->open_line = 1;
    fflush(stdout);
}
void log_step(Log *l, const StepStats *s, int keep_line) {
    const RouterStats *r = &s->routers;
    const struct { const char *name; double x; } values[] = {
        { "loss", s->loss }, { "norm", s->norm }, { "lr", s->lr }, { "ms", s->ms }, { "tok_s", s->tok_s },
        { "balance", r->balance }, { "z", r->z }, { "att_balance", r->att_balance }, { "max_load", r->max_load }, };
    char line[400];
    if (l->silent) return;
    if (l->terminal) add_point(l, (double)s->step, s->loss);
    print_step(l, s, keep_line);
    snprintf(line, sizeof line, "s:%lld trl:%.6f lr:%.6f norm:%.4f bal:%.3f max:%.2f dead:%d",
             (long long)s->step, s->loss, s->lr, s->norm, r->balance, r->max_load, r->dead);
    write_line(l, l->main, line);

    Text e = event("step");
    event_int(&e, "step", s->step);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) event_double(&e, values[i].name, values[i].x);
    event_int(&e, "dead", r->dead);
    log_event(l, &e);
}

void log_validation(Log *l, const ValidationStats *v) {
    char bits[48] = "", best[64] = "", line[128];
    if (l->silent) return;
    if (v->bits_per_byte > 0) snprintf(bits, sizeof bits, " | %.4f bits/byte", v->bits_per_byte);
    if (v->best_step >= 0) snprintf(best, sizeof best, " | best %.6f @ %lld", v->best, (long long)v->best_step);
    log_line(l, "val loss %.6f%s%s", v->loss, bits, best);
    snprintf(line, sizeof line, "s:%lld tel:%.6f", (long long)v->step, v->loss);
    write_line(l, l->main, line);
    Text e = event("val");
    event_int(&e, "step", v->step);
    event_double(&e, "loss", v->loss);
    event_double(&e, "bits_per_byte", v->bits_per_byte);
    event_double(&e, "best", v->best_step < 0 ? NAN : v->best);
    event_int(&e, "best_step", v->best_step);
    log_event(l, &e);
}

/* ---- the end --------------------------------------------------------------------------------- */

static int terminal_is_utf8(void) {
    const char *locale = getenv("LC_ALL");
    if (!locale || !*locale) locale = getenv("LC_CTYPE");
    if (!locale || !*locale) locale = getenv("LANG");
    return locale && (strstr(locale, "UTF-8") || strstr(locale, "utf8"));
}
static void draw_curve(Log *l) {
    double *x = mem_alloc((size_t)l->points * sizeof *x), *y = mem_alloc((size_t)l->points * sizeof *y);
    for (int i = 0; i < l->points; i++) { x[i] = l->curve[2*i]; y[i] = l->curve[2*i + 1]; }
    finish_line(l);
    plot_terminal(stdout, x, y, l->points, 80, 10, "training loss", terminal_is_utf8());
    free_each(x, y);
}
void log_end(Log *l, const Progress *p, uint64_t fingerprint, double peak_memory) {
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)fingerprint);
    Text e = event("end");
    event_int(&e, "steps", p->step);
    event_double(&e, "seconds", p->seconds);
    event_double(&e, "best", p->best.step < 0 ? NAN : p->best.loss);
    event_int(&e, "best_step", p->best.step);
    event_json(&e, "diverged", p->diverged ? "true" : "false");
    event_int(&e, "tokens", p->tokens);
    event_double(&e, "tok_s", p->seconds > 0 ? (double)p->tokens / p->seconds : NAN);
    event_text(&e, "fingerprint", digits, strlen(digits));
    event_double(&e, "peak_memory", peak_memory);
    log_event(l, &e);
    if (l->points >= 8) draw_curve(l);
}

/* ---- samples and loads ----------------------------------------------------------------------- */

void log_sample(Log *l, int64_t step, const char *text, size_t bytes) {
    log_line(l, "---");
    if (!l->silent) text_write(stdout, text, bytes);
    log_line(l, "\n---");
    Text e = event("sample");
    event_int(&e, "step", step);
    event_text(&e, "text", text, bytes);
    log_event(l, &e);
}

/* A row of the table: the load of every expert relative to the mean, in eight shades. */
static void print_loads(const char *name, const int *load, int experts) {
    static const char *const shades[] = { " ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    int total = 0;
    for (int e = 0; e < experts; e++) total += load[e];
    printf("  %-20s |", name);
    for (int e = 0; e < experts; e++) {
        const double relative = total ? (double)load[e] * experts / total : 0;
        const int shade = relative <= 0 ? 0 : relative >= 2 ? 8 : 1 + (int)(relative * 3.5);
        if (experts <= 16) printf(" %s%4.2f", shades[shade], relative); else printf("%s", shades[shade]);
    }
    printf(" |\n");
}
void log_loads(Log *l, int64_t step, const Model *m, const int *load, int show) {
    Text routers = { 0 };
    if (!m->routers) return;
    for (int r = 0; r < m->routers; r++) {
        char name[48];
        const int experts = router_width(m, r), *own = load + router_offset(m, r);
        text_add(&routers, "%s{\"name\": \"%s\", \"load\": [", r ? ", " : "[", router_name(m, r, name));
        for (int i = 0; i < experts; i++) text_add(&routers, "%s%d", i ? ", " : "", own[i]);
        text_add(&routers, "]}");
        if (!show) continue;
        finish_line(l);
        print_loads(name, own, experts);
    }
    text_add(&routers, "]");
    Text e = event("load");
    event_int(&e, "step", step);
    event_json(&e, "routers", routers.at);
    log_event(l, &e);
    free(routers.at);
}
