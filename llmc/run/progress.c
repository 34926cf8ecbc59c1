/* progress.c: see progress.h. */
#include "progress.h"
#include <limits.h>
#include <math.h>
#include <string.h>

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

double progress_bound(const Progress *p, double chance) {
    const double first = p->first > 0 ? p->first : p->lowest, top = first > chance ? first : chance,
        above = top + (top > 5 ? top / 10 : 0.5), way = (first - p->lowest) / 2, back = p->lowest + (way > 1 ? way : 1);
    return p->lowest > 0 && back < above ? back : above;
}
Course progress_course(Progress *p, double loss, double chance) {
    const Window *w = &p->loss;
    if (!isfinite(loss)) return COURSE_SAME;                /* not in the window; its update is skipped */
    if (p->step == 0) p->first = loss;
    if (w->count < RECENT) {
        if (loss <= progress_bound(p, chance)) p->sound = p->step + 1;
        return COURSE_SAME;
    }
    double mean = 0, least = INFINITY, most = -INFINITY;
    for (int i = 1; i <= RECENT; i++) {
        const double x = w->x[(w->next + WINDOW - i) % WINDOW];
        mean += x / RECENT;
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    if (p->lowest <= 0 || mean < p->lowest) p->lowest = mean;
    const double bound = progress_bound(p, chance);
    if (mean - p->lowest <= (bound - p->lowest) / 2) p->sound = p->step + 1;
    if (!p->diverged && least > bound) { p->diverged = p->step + 1; return COURSE_DIVERGED; }
    if (!p->diverged || most > bound) return COURSE_SAME;
    p->diverged = 0;
    return COURSE_RECOVERED;
}
void progress_new_data(Progress *p) {
    p->loss = (Window){ 0 };
    p->first = p->lowest = 0;
    p->diverged = 0;
    p->best.step = -1;
}

static void window_to_json(Text *t, const Window *w) {
    text_add(t, "{\"next\": %d, \"x\": [", w->next);
    for (int i = 0; i < w->count; i++) { if (i) text_add(t, ", "); text_add_double(t, w->x[i]); }
    text_add(t, "]}");
}
static int window_from_json(const JsonValue *v, const char *name, Window *w, Error *e) {
    const JsonValue *list = json_get(v, "x");
    int64_t next;
    *w = (Window){ 0 };
    if (!json_is(list, JSON_ARRAY) || list->length > WINDOW)
        return error_set(e, "\"%s\" is no list of at most %d numbers", name, WINDOW);
    for (const JsonValue *x = json_first(list); x; x = x->next)
        if (!json_read_double(x, name, -1e308, 1e308, &w->x[w->count++], e)) return 0;
    /* next: anywhere in a full window; else at the end of its values */
    if (!json_read_int(json_get(v, "next"), name, w->count < WINDOW ? w->count : 0,
                       w->count < WINDOW ? w->count : WINDOW - 1, &next, e))
        return 0;
    w->next = (int)next;
    return 1;
}

/* 64-bit numbers are hexadecimal strings, because many JSON readers would round them. */
void progress_to_json(const Progress *p, const char *device, Text *out) {
    text_add(out,
             "  \"step\": %lld,\n  \"samples\": %lld,\n  \"tokens\": %lld,\n  \"updates\": %d,\n  \"bad_steps\": %d,\n",
             (long long)p->step, (long long)p->samples, (long long)p->tokens, p->updates, p->bad_steps);
    if (p->run) text_add(out, "  \"run\": \"%016llx\",\n", (unsigned long long)p->run);
    text_add(out, "  \"seed\": \"%016llx\",\n  \"data\": \"%016llx\",\n  \"device\": \"%s\",\n  \"seconds\": ",
             (unsigned long long)p->seed, (unsigned long long)p->data, device);
    text_add_double(out, p->seconds);
    text_add(out, ",\n  \"best_loss\": ");
    text_add_double(out, p->best.step < 0 ? 0 : p->best.loss);
    text_add(out, ",\n  \"best_step\": %lld,\n  \"best_tokens\": %lld,\n  \"best_length\": %lld,\n  \"loss_window\": ",
             (long long)p->best.step, (long long)p->best.tokens, (long long)p->best.length);
    window_to_json(out, &p->loss);
    text_add(out, ",\n  \"norm_window\": ");
    window_to_json(out, &p->norm);
    text_add(out, ",\n  \"first_loss\": ");
    text_add_double(out, p->first);
    text_add(out, ",\n  \"lowest_loss\": ");
    text_add_double(out, p->lowest);
    text_add(out, ",\n  \"sound_step\": %lld,\n  \"diverged_step\": %lld", (long long)p->sound,
             (long long)p->diverged);
    if (p->unvalidated) text_add(out, ",\n  \"unvalidated\": 1");
}

/* Members of run.json. The last row is read by llmc/files/checkpoint.c, settings.c, and people. */
static int is_known(const char *key) {
    static const char *const members[] = {
        "step", "samples", "tokens", "updates", "bad_steps", "seed", "data", "seconds", "best_loss", "best_step",
        "best_tokens", "best_length", "loss_window", "norm_window", "unvalidated",
        "first_loss", "lowest_loss", "sound_step", "diverged_step", "run",
        "due_step", "format", "device", "files", "config", "options", "crc32c", };
    return text_is_among(key, members);
}
int progress_from_json(const JsonValue *run, Progress *p, Error *e) {
    const int64_t most = (int64_t)9e15;                     /* below 2^53; far beyond any run */
    int64_t updates, bad_steps, unvalidated = 0;
    *p = (Progress){ 0 };
#define GET(key) json_get(run, key), key
    if (!json_read_int(GET("step"), 0, (int64_t)1e12, &p->step, e)
        || !json_read_int(GET("samples"), 0, most, &p->samples, e)
        || !json_read_int(GET("tokens"), 0, most, &p->tokens, e)
        || !json_read_int(GET("updates"), 0, p->step < INT_MAX ? p->step : INT_MAX, &updates, e)
        || !json_read_int(GET("bad_steps"), 0, p->step < INT_MAX ? p->step : INT_MAX, &bad_steps, e)
        || !json_read_double(GET("seconds"), 0, (double)most, &p->seconds, e)
        || !json_read_double(GET("best_loss"), -1e308, 1e308, &p->best.loss, e)
        || !json_read_int(GET("best_step"), -1, p->step, &p->best.step, e)
        || !json_read_hex(GET("seed"), &p->seed, e) || !json_read_hex(GET("data"), &p->data, e)
        || !window_from_json(GET("loss_window"), &p->loss, e) || !window_from_json(GET("norm_window"), &p->norm, e)
        || (json_get(run, "best_tokens") && !json_read_int(GET("best_tokens"), 0, most, &p->best.tokens, e))
        || (json_get(run, "best_length") && !json_read_int(GET("best_length"), 0, most, &p->best.length, e))
        || (json_get(run, "first_loss") && !json_read_double(GET("first_loss"), -1e308, 1e308, &p->first, e))
        || (json_get(run, "lowest_loss") && !json_read_double(GET("lowest_loss"), -1e308, 1e308, &p->lowest, e))
        || (json_get(run, "sound_step") && !json_read_int(GET("sound_step"), 0, p->step, &p->sound, e))
        || (json_get(run, "diverged_step") && !json_read_int(GET("diverged_step"), 0, p->step, &p->diverged, e))
        || (json_get(run, "run") && !json_read_hex(GET("run"), &p->run, e))
        || (json_get(run, "unvalidated") && !json_read_int(GET("unvalidated"), 0, 1, &unvalidated, e))) return 0;
#undef GET
    for (const JsonValue *v = json_first(run); v; v = v->next)
        if (!is_known(v->key))
            return error_set(e, "\"%.100s\": no such member is known; is it of a newer program?", v->key);
    p->updates = (int)updates;
    p->bad_steps = (int)bad_steps;
    p->unvalidated = (int)unvalidated;
    return 1;
}
