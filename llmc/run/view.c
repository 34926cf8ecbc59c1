/* view.c: see view.h. */
#define _POSIX_C_SOURCE 200809L
#include "view.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void lens_open(View *v, int layer, Route *route, const char *name, const Model *m) {
    const size_t slots = (size_t)m->batch.N * (size_t)route->plan.K, E = (size_t)route->plan.E;
    Lens *o = v->main = &v->lens[v->lenses++];
    *o = (Lens){ .name = name, .layer = layer, .route = route, .own = v->dev->alloc(slots * sizeof(int)),
                 .host = mem_alloc(slots * sizeof(int)) };
    if (!o->own) fail(EXIT_MEMORY, "%s has not enough memory left to watch the experts", v->dev->name);
    route->expert = o->own;
    v->width += route->K;
    if (v->layer == VIEW_ALL) return;
    o->count = mem_alloc(E * (size_t)v->V * sizeof(unsigned));
    o->first = mem_alloc(E * sizeof(unsigned));
}
void view_open(View *v, const Device *dev, Model *m, int layer) {
    const Config *c = &m->config;
    const int from = layer == VIEW_ALL ? 0 : layer, to = layer == VIEW_ALL ? c->layers : layer + 1;
    *v = (View){ .layer = layer, .V = c->vocab, .dev = dev, .lens = mem_alloc((size_t)(to - from) * 2 * sizeof(Lens)) };
    for (int l = from; l < to; l++) {
        if (c->attention_experts > 1) lens_open(v, l, &m->acts[l].att, "attention", m);
        if (config_has_experts(c, l)) lens_open(v, l, &m->acts[l].mlp, "MLP", m);
    }
}
void view_close(View *v) {
    for (int i = 0; i < v->lenses; i++) {                   /* lens is NULL if it was not opened */
        const Lens *o = &v->lens[i];
        v->dev->release(o->own);
        free_each(o->host, o->count, o->first);
    }
    free_each(v->lens, v->record.at);
}

static void record(View *v, int N, int *number) {
    for (int n = 0; n < N; n++) {
        if (number) number[n] = (int)(v->record.length / ((size_t)v->width * sizeof(int)));
        for (const Lens *o = v->lens; o < v->lens + v->lenses; o++)
            text_add_bytes(&v->record, &o->host[n * o->route->K], (size_t)o->route->K * sizeof(int));
    }
}
void view_read(View *v, const int *tokens, int N, int *expert) {
    for (Lens *o = v->lens; o < v->lens + v->lenses; o++) {
        const int K = o->route->plan.K;
        v->dev->download(o->host, o->own, (size_t)N * (size_t)K * sizeof(int));
        for (int n = 0; n < N && o->count; n++) {
            for (int k = 0; k < K; k++) o->count[(size_t)o->host[n*K + k] * (size_t)v->V + (size_t)tokens[n]]++;
            o->first[o->host[n*K]]++;
            if (expert && o == v->main) expert[n] = o->host[n*K];
        }
    }
    if (v->layer == VIEW_ALL) record(v, N, expert);
}

int view_color(int e) {
    static const unsigned char distinct[] = { 203, 77, 75, 221, 176, 44, 208, 147, 118, 199, 39, 180, 36,
                                              161, 250, 100 };
    return e < 16 ? distinct[e] : 17 + e * 67 % 214;
}

void view_legend(const View *v, int colored) {
    double sum = 0;
    for (int e = 0; e < v->main->route->plan.E; e++) sum += v->main->first[e];
    fprintf(stderr, "layer %d, %s experts%s; percentage of tokens with this expert as first choice:\n", v->layer,
            v->main->name, colored ? "" : " (in brackets before the text they read; -co always colors the text)");
    colored = colored && isatty(2);
    for (int e = 0; e < v->main->route->plan.E; e++) {
        if (colored) fprintf(stderr, "\033[38;5;%dm", view_color(e));
        fprintf(stderr, " [%d] %.1f%%%s", e, 100 * v->main->first[e] / (sum > 0 ? sum : 1), colored ? "\033[0m" : "");
    }
    fputc('\n', stderr);
}

/* A token as a quoted string, on one line and without control characters. */
static void print_token(const Tokenizer *t, int id) {
    size_t n, step;
    char shown[5];
    const char *end;
    if (!t) { fprintf(stderr, " %d", id); return; }
    const char *p = tokenizer_piece(t, id, &n);
    fputs(n ? " '" : " <", stderr);
    end = n ? "'" : ">";
    if (!n) fprintf(stderr, "%d", id);
    for (; n; p += step, n -= step) {
        step = text_show(p, n, shown);
        if (*p == '\n') fputs("\\n", stderr);
        else if (*p != '\t' && !strncmp(p, shown, step) && !shown[step]) fputs(shown, stderr);
        else for (size_t i = 0; i < step; i++) fprintf(stderr, "\\x%02x", (unsigned char)p[i]);
    }
    fputs(end, stderr);
}
/* The most characteristic tokens of each expert: those with the largest contribution to the
 * Kullback-Leibler divergence of its tokens from all tokens, sum over t of p(t|e) log
 * (p(t|e) / p(t)). A table of plain counts would show little but spaces. */
static void print_favourites_of(const View *v, const Lens *o, const Tokenizer *t, int e, const double *all,
                                double total) {
    enum { SHOWN = 8 };
    const size_t V = (size_t)v->V;
    const int K = o->route->plan.K;
    const unsigned *count = o->count + (size_t)e*V;
    unsigned char *printed = mem_alloc(V);
    double own = 0;
    for (size_t i = 0; i < V; i++) own += count[i];
    fprintf(stderr, "%4d %5.1f%% ", e, 100 * own / (total > 0 ? total : 1));
    for (int k = 0; k < SHOWN; k++) {
        size_t best = V;
        double most = 0, score;
        for (size_t i = 0; i < V; i++)
            if (count[i] && !printed[i] && (score = count[i] * log(count[i] / own * total / all[i])) > most) {
                most = score;
                best = i;
            }
        if (best == V) break;
        printed[best] = 1;
        print_token(t, (int)best);
        fprintf(stderr, " %.0f%%", 100 * K * count[best] / all[best]);
    }
    fputc('\n', stderr);
    free(printed);
}
static void print_favourites(const View *v, const Lens *o, const Tokenizer *t) {
    const size_t V = (size_t)v->V;
    const int E = o->route->plan.E;
    double *all = mem_alloc(V * sizeof *all), total = 0;
    for (int e = 0; e < E; e++)
        for (size_t i = 0; i < V; i++) { all[i] += o->count[(size_t)e*V + i]; total += o->count[(size_t)e*V + i]; }
    fprintf(stderr, "layer %d, %s experts: percentage of all slots; favourite tokens (how often the expert is one of "
                    "the %d that read it)\n", v->layer, o->name, o->route->plan.K);
    for (int e = 0; e < E; e++) print_favourites_of(v, o, t, e, all, total);
    free(all);
}
void view_favourites(const View *v, const Tokenizer *t) {
    for (const Lens *o = v->lens; o < v->lens + v->lenses; o++) print_favourites(v, o, t);
}
