/* round.c: routing rounded to whole tiles. Experts keep the r tokens of largest rank (round.h). */
#include "route.h"
#include "kernels/round.h"

/* The r-th largest of n different numbers, bit by bit, or any number that just r of them reach. */
static uint64_t nth_largest(const uint64_t *x, int n, int r) {
    uint64_t limit = 0;
    if (r == 0) return UINT64_MAX;
    for (uint64_t bit = 1ull << 63; bit; bit /= 2) {
        int reach = 0;
        for (int i = 0; i < n; i++) reach += x[i] >= (limit | bit);
        if (reach >= r) limit |= bit;
        if (reach == r) break;
    }
    return limit;
}

static void route_round(Plan *plan, int *load, int *expert, real *weight, const int *choice, const floatX *logits,
                        const real *lse, Scores scores, int tile) {
    const int N = plan->N, E = plan->E, K = plan->K;
    uint64_t *rank = scratch((size_t)N * sizeof *rank);
    int row = 0, *first = plan->first;
    memset(load, 0, (size_t)E * sizeof *load);
    memset(first, 0, ((size_t)N + 1) * sizeof *first);
    for (size_t s = 0; s < (size_t)N*K; s++) load[choice[s]]++;
    for (int e = 0; e < E; e++) {
        for (int n = 0; n < N; n++) {
            const real x = R(logits[(size_t)n*E + e]);
            int chose = 0;
            for (int k = 0; k < K; k++) chose |= choice[(size_t)n*K + k] == e;
            rank[n] = rank_of(chose, (float)(scores >= SIGMOID_TOPK ? x : x - lse[n]), n);
        }
        const uint64_t limit = nth_largest(rank, N, rounded(load[e], N, tile));
        plan->start[e] = row;
        for (int n = 0; n < N; n++) if (rank[n] >= limit) { plan->token_of_row[row++] = n; first[n + 1]++; }
    }
    plan->start[E] = row;
    free(rank);

    for (int n = 0; n < N; n++) first[n + 1] += first[n];
    for (int e = 0; e < E; e++)
        for (int r = plan->start[e]; r < plan->start[e + 1]; r++) {     /* first[n] doubles as the token's next slot */
            const int slot = first[plan->token_of_row[r]]++;
            expert[slot] = e;
            plan->slot_of_row[r] = slot;
            plan->row_of_slot[slot] = r;
        }
    for (int n = N; n > 0; n--) first[n] = first[n - 1];
    first[0] = 0;
    for (int n = 0; n < N; n++)
        DEVICE(choice_weights)(weight + first[n], expert + first[n], first[n + 1] - first[n], logits + (size_t)n*E,
                               lse[n], scores);
}

PART(round) { d->route_round = route_round; }
