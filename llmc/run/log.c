/* log.c: see log.h. */
#define _POSIX_C_SOURCE 200809L
#include "log.h"
#include "plot.h"
#include "llmc/base/text.h"
#include "llmc/base/json.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Log *current;                    /* where warnings go: one log is open at a time */

static void write_line(Log *l, FILE **file, const char *text) {
    if (!*file) return;
    if (fprintf(*file, "%s\n", text) > 0 && fflush(*file) == 0) return;
    clearerr(*file);                                        /* training goes on; a disk may get room again */
    if (l->lost++ % 100 == 0)
        fprintf(stderr, "warning: %s: log lines cannot be written (%s); training goes on\n", l->folder,
                strerror(errno));
}
void log_event(Log *l, const char *json_object) { write_line(l, &l->json, json_object); }
void log_silence(Log *l) { *l = (Log){ .silent = 1 }; }

static void on_warning(const char *text) {
    Text t = { 0 };
    if (!current) return;
    text_add(&t, "{\"event\": \"warning\", \"text\": ");
    text_add_json(&t, text, strlen(text));
    text_add(&t, "}");
    log_event(current, t.at);
    free(t.at);
}

/* Keeps the lines of a log up to `step`, as number_of tells it; lines without a step
 * stay with what came before them. */
static int64_t json_step(const char *line, size_t n) {
    Error e;
    Json *j = json_parse(line, n, &e);
    int64_t step = j ? json_int(json_get(json_root(j), "step"), -1) : INT64_MAX;       /* a torn line is dropped */
    json_free(j);
    return step;
}
static int64_t main_step(const char *line, size_t n) {
    return n > 2 && line[0] == 's' && line[1] == ':' ? strtoll(line + 2, NULL, 10) : -1;
}

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

int log_open(Log *l, const char *folder, int64_t resume_step, Error *e) {
    char *main_path = text_format("%s/main.log", folder), *json_path = text_format("%s/log.jsonl", folder);
    *l = (Log){ .folder = text_format("%s", folder), .terminal = isatty(STDOUT_FILENO) };
    if (resume_step >= 0) { cut(main_path, resume_step, main_step); cut(json_path, resume_step, json_step); }
    l->main = fopen(main_path, resume_step >= 0 ? "a" : "w");
    l->json = fopen(json_path, resume_step >= 0 ? "a" : "w");
    int ok = l->main && l->json ? 1 : error_set(e, "%s: %s", l->main ? json_path : main_path, strerror(errno));
    free(main_path);
    free(json_path);
    current = ok ? l : NULL;
    warn_hook(on_warning);
    return ok;
}
void log_close(Log *l) {
    warn_hook(NULL);
    current = NULL;
    if (l->main) fclose(l->main);
    if (l->json) fclose(l->json);
    if (l->lost) fprintf(stderr, "warning: %s: %ld log lines were lost\n", l->folder, l->lost);
    free(l->folder);
    free(l->curve);
}

static void number(Text *t, const char *key, double x) {
    text_add(t, ", \"%s\": ", key);
    text_add_double(t, x);
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
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static void score_text(char text[16], double z) {
    if (isfinite(z)) snprintf(text, 16, "%+5.2fz", z);
    else snprintf(text, 16, " --- z");
}

void log_step(Log *l, const StepStats *s, int64_t steps, double loss_z, double norm_z, int keep_line) {
    char zl[16], zn[16], bal[64] = "", att[32] = "", line[400];
    const int eta = (int)(s->eta + 0.5);
    if (l->silent) return;
    if (l->terminal) {
        if ((l->points & (l->points - 1)) == 0)
            l->curve = mem_grow(l->curve, (size_t)(l->points ? 4 * l->points : 4) * sizeof *l->curve);
        l->curve[2*l->points] = (double)s->step;
        l->curve[2*l->points++ + 1] = s->loss;
    }
    score_text(zl, loss_z);
    score_text(zn, norm_z);
    if (s->balance > 0 || s->att_balance > 0)
        snprintf(bal, sizeof bal, " | bal %.2f max %.1f dead %d/%d",
                 s->balance > 0 ? s->balance : s->att_balance, s->max_load, s->dead, s->experts);
    if (s->att_balance > 0) snprintf(att, sizeof att, " att %.2f", s->att_balance);
    snprintf(line, sizeof line, "step %4lld/%lld | loss %.6f (%s)| norm %.4f (%s)| lr %.2e | %.2f ms | %.0f "
                                "tok/s%s%s | eta %d:%02d", (long long)s->step, (long long)steps, s->loss, zl,
                                s->norm, zn, s->lr, s->ms, s->tok_s, bal, att, eta / 60, eta % 60);
    if (!l->terminal) { puts(line); fflush(stdout); }
    else if (keep_line || now() - l->shown > 0.05) {        /* twenty times a second is as fast as anyone reads */
        printf("\r%s\033[K", line);
        l->open_line = 1;
        if (keep_line) finish_line(l);
        fflush(stdout);
        l->shown = now();
    }
    snprintf(line, sizeof line, "s:%lld trl:%.6f lr:%.6f norm:%.4f bal:%.3f max:%.2f dead:%d",
             (long long)s->step, s->loss, s->lr, s->norm, s->balance, s->max_load, s->dead);
    write_line(l, &l->main, line);

    Text t = { 0 };
    text_add(&t, "{\"event\": \"step\", \"step\": %lld", (long long)s->step);
    number(&t, "loss", s->loss);
    number(&t, "norm", s->norm);
    number(&t, "lr", s->lr);
    number(&t, "ms", s->ms);
    number(&t, "tok_s", s->tok_s);
    number(&t, "balance", s->balance);
    number(&t, "z", s->z);
    number(&t, "att_balance", s->att_balance);
    number(&t, "max_load", s->max_load);
    text_add(&t, ", \"dead\": %d}", s->dead);
    log_event(l, t.at);
    free(t.at);
}

void log_validation(Log *l, int64_t step, double loss, double bits_per_byte, double best, int64_t best_step) {
    char bits[48] = "", line[128];
    if (l->silent) return;
    if (bits_per_byte > 0) snprintf(bits, sizeof bits, " | %.4f bits/byte", bits_per_byte);
    log_line(l, "val loss %.6f%s | best %.6f @ %lld", loss, bits, best, (long long)best_step);
    snprintf(line, sizeof line, "s:%lld tel:%.6f", (long long)step, loss);
    write_line(l, &l->main, line);
    Text t = { 0 };
    text_add(&t, "{\"event\": \"val\", \"step\": %lld", (long long)step);
    number(&t, "loss", loss);
    number(&t, "bits_per_byte", bits_per_byte);
    number(&t, "best", best);
    text_add(&t, ", \"best_step\": %lld}", (long long)best_step);
    log_event(l, t.at);
    free(t.at);
}

static int terminal_is_utf8(void) {
    const char *locale = getenv("LC_ALL");
    if (!locale || !*locale) locale = getenv("LC_CTYPE");
    if (!locale || !*locale) locale = getenv("LANG");
    return locale && (strstr(locale, "UTF-8") || strstr(locale, "utf8"));
}
void log_end(Log *l, const Progress *p, uint64_t fingerprint) {
    Text t = { 0 };
    text_add(&t, "{\"event\": \"end\", \"steps\": %lld", (long long)p->step);
    number(&t, "seconds", p->seconds);
    number(&t, "best", p->best_step < 0 ? NAN : p->best_loss);
    text_add(&t, ", \"best_step\": %lld, \"tokens\": %lld", (long long)p->best_step, (long long)p->tokens);
    number(&t, "tok_s", p->seconds > 0 ? (double)p->tokens / p->seconds : NAN);
    text_add(&t, ", \"fingerprint\": \"%016llx\"}", (unsigned long long)fingerprint);
    log_event(l, t.at);
    free(t.at);
    if (l->points < 8) return;
    double *x = mem_alloc((size_t)l->points * sizeof *x), *y = mem_alloc((size_t)l->points * sizeof *y);
    for (int i = 0; i < l->points; i++) { x[i] = l->curve[2*i]; y[i] = l->curve[2*i + 1]; }
    finish_line(l);
    plot_terminal(stdout, x, y, l->points, 80, 10, "training loss", terminal_is_utf8());
    free(x);
    free(y);
}

/* A young model writes any bytes: what is not text, or would steer the terminal, is shown as U+FFFD. */
static void add_printable(Text *t, const char *text, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n) {
        uint32_t code;
        n = utf8_decode(text + at, bytes - at, &code);
        if (!n || code == 0x7f || (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x80 && code < 0xa0)) {
            text_add_string(t, "\xEF\xBF\xBD");
            n += !n;
        } else text_add_bytes(t, text + at, n);
    }
}
void log_sample(Log *l, int64_t step, const char *text, size_t bytes) {
    Text t = { 0 }, shown = { 0 };
    text_add_string(&shown, "");
    add_printable(&shown, text, bytes);
    log_line(l, "---\n%s\n---", shown.at);
    free(shown.at);
    text_add(&t, "{\"event\": \"sample\", \"step\": %lld, \"text\": ", (long long)step);
    text_add_json(&t, text, bytes);
    text_add(&t, "}");
    log_event(l, t.at);
    free(t.at);
}

/* ---- routers ------------------------------------------------------------------------------------------- */

static int kinds(const Config *c) { return (c->attention_experts > 1) + (c->experts > 1); }
static int is_attention(const Model *m, int router) {
    return m->config.attention_experts > 1 && router % kinds(&m->config) == 0;
}

const char *router_name(const Model *m, int router, char text[48]) {
    snprintf(text, 48, "layer %d %s", router / kinds(&m->config), is_attention(m, router) ? "attention" : "mlp");
    return text;
}
int router_width(const Model *m, int router, int *experts) {
    *experts = is_attention(m, router) ? m->config.attention_experts : m->config.experts;
    return router * router_experts(&m->config);
}

void router_stats(StepStats *s, const Model *m, const int *load, const double *losses) {
    int mlp = 0, att = 0;
    s->balance = s->att_balance = s->z = s->max_load = 0;
    s->dead = s->experts = 0;
    for (int r = 0; r < m->routers; r++) {
        int experts, total = 0, most = 0;
        const int *at = load + router_width(m, r, &experts);
        for (int e = 0; e < experts; e++) {
            total += at[e];
            if (at[e] > most) most = at[e];
            s->dead += at[e] == 0;
        }
        s->experts += experts;
        if (total && (double)most * experts / total > s->max_load) s->max_load = (double)most * experts / total;
        if (is_attention(m, r)) { s->att_balance += losses[2*r]; att++; }
        else                    { s->balance += losses[2*r]; mlp++; }
        s->z += losses[2*r + 1] / m->routers;
    }
    if (mlp) s->balance /= mlp;
    if (att) s->att_balance /= att;
}

/* With show, a table on the terminal: one row a router, load of each expert as a share of the mean in eight shades. */
void log_loads(Log *l, int64_t step, const Model *m, const int *load, int show) {
    static const char *const shades[] = { " ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    Text t = { 0 };
    if (!m->routers) return;
    text_add(&t, "{\"event\": \"load\", \"step\": %lld, \"routers\": [", (long long)step);
    for (int r = 0; r < m->routers; r++) {
        char name[48];
        int experts, total = 0;
        const int *at = load + router_width(m, r, &experts);
        for (int e = 0; e < experts; e++) total += at[e];
        text_add(&t, "%s{\"name\": \"%s\", \"load\": [", r ? ", " : "", router_name(m, r, name));
        for (int e = 0; e < experts; e++) text_add(&t, "%s%d", e ? ", " : "", at[e]);
        text_add(&t, "]}");
        if (!show) continue;
        finish_line(l);
        printf("  %-20s |", name);
        for (int e = 0; e < experts; e++) {
            const double share = total ? (double)at[e] * experts / total : 0;
            const int shade = share <= 0 ? 0 : share >= 2 ? 8 : 1 + (int)(share * 3.5);
            if (experts <= 16) printf(" %s%4.2f", shades[shade], share); else printf("%s", shades[shade]);
        }
        printf(" |\n");
    }
    text_add(&t, "]}");
    log_event(l, t.at);
    free(t.at);
}

double window_score(Window *w, double x) {
    double score = NAN;
    if (w->count == WINDOW) {
        double mean = 0, variance = 0;
        for (int i = 0; i < WINDOW; i++) mean += w->x[i] / WINDOW;
        for (int i = 0; i < WINDOW; i++) variance += (w->x[i] - mean) * (w->x[i] - mean) / WINDOW;
        score = variance > 0 ? (x - mean) / sqrt(variance) : 0;
    }
    if (!isfinite(x)) return score;                         /* one bad value must not spoil the next 128 scores */
    w->x[w->next] = x;
    w->next = (w->next + 1) % WINDOW;
    if (w->count < WINDOW) w->count++;
    return score;
}
