/* schedule.c: see schedule.h. WSD: Hu et al. 2024, arXiv 2404.06395. */
#include "schedule.h"
#include <math.h>
#include <stdlib.h>

double schedule_rate(Schedule s, long step, long steps, long warmup, double final, double decay) {
    if (step < warmup) return (double)(step + 1) / (double)(warmup + 1);
    const double left = (double)(steps - warmup), done = left > 0 ? (double)(step - warmup) / left : 1;
    const double part = done < 1 ? done : 1;
    if (s == CONSTANT) return 1;
    if (s == LINEAR) return 1 - (1 - final) * part;
    if (s == WSD) return part <= 1 - decay ? 1 : 1 - (1 - final) * (part - (1 - decay)) / decay;
    return final + (1 - final) * 0.5 * (1 + cos(3.141592653589793 * part));
}

void schedule_further(double done, double first, float weight[2]) {
    const double falls = 2 - 3 * done, sooner = 1 - 3 * done;
    weight[0] = (float)(falls > 1 ? first : falls > 0 ? first * falls : 0);
    weight[1] = (float)(sooner > 0 ? first / 2 * sooner : 0);
}

int stages_parse(Stages *s, const char *text, Error *e) {
    *s = (Stages){ .count = 1, .most = 1, .times = { 1 } };
    if (!*text) return 1;
    for (s->count = 0; s->count < MOST_STAGES; text++) {
        char *end;
        const long times = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : 0;
        if (times < 1 || times > 1024) return error_set(e, "a stage is a number from 1 to 1024, as in 1:2:3");
        s->times[s->count++] = (int)times;
        if (times > s->most) s->most = (int)times;
        text = end;
        if (!*text) return s->times[0] == 1 ? 1 : error_set(e, "the first stage is 1: -d is the tokens of its steps");
        if (*text != ':') return error_set(e, "stages are numbers with : between them, as in 1:2:3");
    }
    return error_set(e, "more than %d stages", MOST_STAGES);
}
/* Stage i begins with the first step that is not before i / count of them. */
static int64_t stage_begin(const Stages *s, int i, int64_t steps) { return (i * steps + s->count - 1) / s->count; }
int stages_at(const Stages *s, int64_t step, int64_t steps) {
    int i = s->count - 1;
    while (i > 0 && step < stage_begin(s, i, steps)) i--;
    return s->times[i];
}
int64_t stages_before(const Stages *s, int64_t step, int64_t steps) {
    int64_t sum = 0;
    for (int i = 0; i < s->count; i++) {
        const int64_t begin = stage_begin(s, i, steps), end = i == s->count - 1 ? step : stage_begin(s, i + 1, steps);
        if (step > begin) sum += s->times[i] * ((step < end ? step : end) - begin);
    }
    return sum;
}
