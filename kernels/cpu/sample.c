/* sample.c: the next token from its logits. */
#include "impl.h"
#include "kernels/random.h"

/* Every rule keeps the first tokens by descending probability. A heap yields these one at a time,
 * so that no others get sorted. sift moves element i down to where it belongs. */
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

/* uniform: in [0,1). p, order (count): scratch. */
static int draw(const floatX *logits, Sampler s, double uniform, double *p, int *order, int count) {
    double max = -INFINITY, sum = 0, kept = 0;
    int best = 0;
    for (int i = 0; i < count; i++) if ((double)R(logits[i]) > max) { max = (double)R(logits[i]); best = i; }
    if (s.temperature <= 0 || max == -INFINITY || max == INFINITY) return best;
    for (int i = 0; i < count; i++) {
        const double x = (double)R(logits[i]);
        p[i] = x == x ? exp((x - max) / (double)s.temperature) : 0;
        sum += p[i];
        order[i] = i;
    }
    const int all = s.top_k <= 0 && s.top_p >= 1 && s.min_p <= 0;
    int n = count, taken = 0;
    if (all) taken = count, kept = sum;
    else {
        for (int i = n / 2 - 1; i >= 0; i--) sift(order, n, i, p);
        while (n > 0) {                          /* the largest goes to the end: kept tokens are order[n..count-1] */
            const double largest = p[best], next = p[order[0]];
            if (taken && ((s.top_k > 0 && taken >= s.top_k) || kept >= (double)s.top_p * sum
                          || next < (double)s.min_p * largest)) break;
            kept += next;
            taken++;
            int t = order[0]; order[0] = order[--n]; order[n] = t;
            sift(order, n, 0, p);
        }
    }
    double left = uniform * kept;
    for (int i = 0; i < taken; i++) {
        int token = all ? i : order[count - 1 - i];
        if ((left -= p[token]) < 0) return token;
    }
    return best;                                            /* only if rounding left a remainder */
}

static void sample(int *token, const floatX *logits, const uint64_t *key, const int *position, Sampler s, int N, int V,
                   int used) {
    double *p = scratch((size_t)used * sizeof *p);
    int *order = scratch((size_t)used * sizeof *order);
    for (int n = 0; n < N; n++) {
        const double uniform = random_uniform(key[n], (uint64_t)position[n] + 1);
        token[n] = draw(logits + (size_t)n*(size_t)V, s, uniform, p, order, used);
    }
    free(p);
    free(order);
}

static void advance(int *position, int *row, int *log, const int *token, int N) {
    for (int n = 0; n < N; n++) {
        row[n]++;
        log[(size_t)++position[n] * (size_t)N + (size_t)n] = token[n];
    }
}

PART(sample) { d->sample = sample;  d->advance = advance; }
