/* progress.c: see progress.h. */
#include "progress.h"
#include <math.h>
#include <stdlib.h>

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

static void window_to_json(Text *t, const Window *w) {
    text_add(t, "{\"next\": %d, \"x\": [", w->next);
    for (int i = 0; i < w->count; i++) { if (i) text_add(t, ", "); text_add_double(t, w->x[i]); }
    text_add(t, "]}");
}
static Window window_from_json(const JsonValue *v) {
    Window w = { .next = (int)json_int(json_get(v, "next"), 0) };
    if (w.next < 0 || w.next >= WINDOW) w.next = 0;
    for (const JsonValue *x = json_first(json_get(v, "x")); x && w.count < WINDOW; x = x->next)
        w.x[w.count++] = json_double(x, 0);
    return w;
}

/* 64-bit numbers are hexadecimal strings, because many JSON readers would round them. */
void progress_to_json(const Progress *p, const char *device, Text *out) {
    text_add(out, "  \"step\": %lld,\n  \"samples\": %lld,\n  \"tokens\": %lld,\n  \"updates\": %d,\n  \"bad_steps\": %d,\n",
             (long long)p->step, (long long)p->samples, (long long)p->tokens, p->updates, p->bad_steps);
    text_add(out, "  \"seed\": \"%016llx\",\n  \"data\": \"%016llx\",\n  \"device\": \"%s\",\n  \"seconds\": ",
             (unsigned long long)p->seed, (unsigned long long)p->data, device);
    text_add_double(out, p->seconds);
    text_add(out, ",\n  \"best_loss\": ");
    text_add_double(out, p->best_step < 0 ? 0 : p->best_loss);
    text_add(out, ",\n  \"best_step\": %lld,\n  \"loss_window\": ", (long long)p->best_step);
    window_to_json(out, &p->loss);
    text_add(out, ",\n  \"norm_window\": ");
    window_to_json(out, &p->norm);
}

Progress progress_from_json(const JsonValue *object) {
    return (Progress){
        .step = json_int(json_get(object, "step"), 0), .samples = json_int(json_get(object, "samples"), 0),
        .tokens = json_int(json_get(object, "tokens"), 0),
        .updates = (int)json_int(json_get(object, "updates"), 0),
        .bad_steps = (int)json_int(json_get(object, "bad_steps"), 0),
        .seconds = json_double(json_get(object, "seconds"), 0),
        .best_loss = json_double(json_get(object, "best_loss"), 0),
        .best_step = json_int(json_get(object, "best_step"), -1),
        .seed = strtoull(json_string(json_get(object, "seed"), "0"), NULL, 16),
        .data = strtoull(json_string(json_get(object, "data"), "0"), NULL, 16),
        .loss = window_from_json(json_get(object, "loss_window")),
        .norm = window_from_json(json_get(object, "norm_window")),
    };
}
