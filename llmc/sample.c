/* sample.c: see sample.h. Top-p: Holtzman et al. 2019, arXiv 1904.09751. Min-p:
 * Nguyen et al. 2024, arXiv 2407.01082. */
#include "sample.h"
#include "random.h"
#include <math.h>
#include <stdlib.h>

/* The tokens by descending probability, so that every rule is a prefix. Only as many as could be kept are
 * sorted: a heap gives them one at a time. */
static void sift(int *heap, int n, int i, const double *p) {
    for (;;) {
        int best = i, l = 2*i + 1, r = l + 1;
        if (l < n && (p[heap[l]] > p[heap[best]] || (p[heap[l]] == p[heap[best]] && heap[l] < heap[best]))) best = l;
        if (r < n && (p[heap[r]] > p[heap[best]] || (p[heap[r]] == p[heap[best]] && heap[r] < heap[best]))) best = r;
        if (best == i) return;
        int t = heap[i]; heap[i] = heap[best]; heap[best] = t;
        i = best;
    }
}

int sample_token(const Sampler *s, double *logits, int count, int *order, uint64_t position) {
    double *p = logits, max = -INFINITY, sum = 0, kept = 0;
    int best = 0;
    for (int i = 0; i < count; i++) if (logits[i] > max) { max = logits[i]; best = i; }
    if (s->temperature <= 0 || max == -INFINITY || max == INFINITY) return best;
    for (int i = 0; i < count; i++) {
        p[i] = logits[i] == logits[i] ? exp((logits[i] - max) / (double)s->temperature) : 0;
        sum += p[i];
        order[i] = i;
    }
    const int all = s->top_k <= 0 && s->top_p >= 1 && s->min_p <= 0;
    int n = count, taken = 0;
    if (all) { taken = count; kept = sum; }
    else {
        for (int i = n / 2 - 1; i >= 0; i--) sift(order, n, i, p);
        while (n > 0) {                          /* the largest moves to the end: kept tokens are order[n..count-1] */
            const double largest = p[best], next = p[order[0]];
            if (taken && ((s->top_k > 0 && taken >= s->top_k) || kept >= (double)s->top_p * sum
                          || next < (double)s->min_p * largest)) break;
            kept += next;
            taken++;
            int t = order[0]; order[0] = order[--n]; order[n] = t;
            sift(order, n, 0, p);
        }
    }
    double draw = random_uniform(s->key, position) * kept;
    for (int i = 0; i < taken; i++) {
        int token = all ? i : order[count - 1 - i];
        if ((draw -= p[token]) < 0) return token;
    }
    return best;                                            /* rounding left a crumb */
}
