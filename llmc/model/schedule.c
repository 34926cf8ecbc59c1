/* schedule.c: see schedule.h. WSD: Hu et al. 2024, arXiv 2404.06395. */
#include "schedule.h"
#include <math.h>

double schedule_rate(Schedule s, long step, long steps, long warmup, double final) {
    if (step < warmup) return (double)(step + 1) / (double)(warmup + 1);
    const double left = (double)(steps - warmup), done = left > 0 ? (double)(step - warmup) / left : 1;
    const double part = done < 1 ? done : 1;
    if (s == CONSTANT) return 1;
    if (s == LINEAR) return 1 - (1 - final) * part;
    if (s == WSD) return part < 0.8 ? 1 : 1 - (1 - final) * (part - 0.8) / 0.2;
    return final + (1 - final) * 0.5 * (1 + cos(3.141592653589793 * part));
}
