/* schedule.c: see schedule.h. WSD: Hu et al. 2024, arXiv 2404.06395. */
#include "schedule.h"
#include <math.h>

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
