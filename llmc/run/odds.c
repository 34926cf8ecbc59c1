/* odds.c: see odds.h. */
#include "odds.h"
#include <math.h>
#include <stdlib.h>

void odds_read(Odds *o, const Decoder *d, int vocab) {
    const size_t V = (size_t)d->model.config.vocab;
    double max = -INFINITY, sum = 0;
    if (!o->logit) o->logit = mem_alloc(V * sizeof *o->logit);
    o->vocab = vocab;
    d->model.dev->to_double(o->logit, d->logits, V);
    for (int i = 0; i < vocab; i++) if (o->logit[i] > max) max = o->logit[i];
    for (int i = 0; i < vocab; i++) sum += exp(o->logit[i] - max);
    o->sum = max + log(sum);
}
double odds_of(const Odds *o, int id) {
    const double x = o->logit[id] - o->sum;
    return x > LEAST_LOG ? x : LEAST_LOG;
}
/* By insertion: `most` is small. */
int odds_best(const Odds *o, Odd *best, int most) {
    int n = 0;
    for (int id = 0; id < o->vocab; id++) {
        const double x = odds_of(o, id);
        int at = n;
        if (n == most && (!most || x <= best[n - 1].log)) continue;
        if (n < most) n++;
        else at--;
        for (; at > 0 && best[at - 1].log < x; at--) best[at] = best[at - 1];
        best[at] = (Odd){ id, x };
    }
    return n;
}
void odds_free(Odds *o) { free(o->logit); }
