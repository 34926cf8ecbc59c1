/* route.c: which tokens go to which experts, what it costs, and how their results are combined. */
#include "route.h"

/* The distribution p over all experts that the balance loss uses, for one token. Sigmoids are
 * normalized as a softmax of their logarithms, which stays right where all of them underflow. */
static void probabilities(real *p, const floatX *x, real lse, Scores scores, int E) {
    if (scores < SIGMOID_TOPK) {
        for (int e = 0; e < E; e++) p[e] = exp(R(x[e]) - lse);
        return;
    }
    real max = log_sigmoid(R(x[0])), sum = 0;
    for (int e = 0; e < E; e++) { p[e] = log_sigmoid(R(x[e])); if (p[e] > max) max = p[e]; }
    for (int e = 0; e < E; e++) sum += p[e] = exp(p[e] - max);
    for (int e = 0; e < E; e++) p[e] /= sum;
}

/* Where the slots of token n begin; they end where those of token n + 1 begin. */
static inline size_t first_slot(const int *first, int n, int K) { return first ? (size_t)first[n] : (size_t)n*K; }

/* ---- router -------------------------------------------------------------------------------------
 * TOPK_SOFTMAX compares logits; the others probabilities or sigmoids. Where two of these round to
 * the same number (a sigmoid of 17 is 1 in f32) the logits decide, whose order is the same. */

void DEVICE(choice_weights)(real *w, const int *chosen, int K, const floatX *x, real lse, Scores scores) {
    real max = 0, kept = 0;
    for (int k = 0; k < K; k++) {
        w[k] = scores >= SIGMOID_TOPK ? log_sigmoid(R(x[chosen[k]])) : R(x[chosen[k]]);
        if (k == 0 || w[k] > max) max = w[k];
    }
    for (int k = 0; k < K; k++)
        kept += w[k] = exp(w[k] - (scores == SOFTMAX_TOPK ? lse : scores == SIGMOID_EACH ? 0 : max));
    if (SUMS_TO_ONE(scores)) for (int k = 0; k < K; k++) w[k] /= kept;
}

/* Scores of experts that are not of the best groups become -infinity. */
static void mask_groups(real *score, Groups groups, int E) {
    const int width = E / groups.count;
    real sum[MOST_GROUPS];
    for (int g = 0; g < groups.count; g++) {
        real first = -(real)INFINITY, second = first;
        for (int e = g * width; e < (g + 1) * width; e++) {
            if (score[e] > first) { second = first; first = score[e]; }
            else if (score[e] > second) second = score[e];
        }
        sum[g] = groups.by_best ? first : first + second;
    }
    for (int g = 0; g < groups.count; g++) {
        int better = 0;
        for (int h = 0; h < groups.count; h++) better += sum[h] > sum[g] || (sum[h] == sum[g] && h < g);
        for (int e = g * width; e < (g + 1) * width && better >= groups.chosen; e++) score[e] = -(real)INFINITY;
    }
}
static void router_forward(int *expert, real *weight, real *lse, const floatX *logits, const real *bias,
                           Scores scores, Groups groups, int forced, int N, int E, int K) {
    #pragma omp parallel PARALLEL_IF((size_t)N*E*K)
    {
        real *score = scratch((size_t)E * sizeof *score);
        #pragma omp for
        for (int n = 0; n < N; n++) {
            const floatX *x = logits + (size_t)n*E;
            int *chosen = expert + (size_t)n*K;
            real max = R(x[0]), sum = 0;
            for (int e = 1; e < E; e++) if (R(x[e]) > max) max = R(x[e]);
            for (int e = 0; e < E; e++) sum += exp(R(x[e]) - max);
            lse[n] = max + log(sum);
            for (int e = 0; e < E; e++) {
                score[e] = scores >= SIGMOID_TOPK ? sigmoid(R(x[e]))
                         : SCORES_ARE_P(scores) ? exp(R(x[e]) - lse[n]) : R(x[e]);
                if (bias) score[e] += bias[e];
            }
            if (groups.count > 1) mask_groups(score, groups, E);
            for (int k = 0; k < K; k++) {
                int best = -1;
                for (int e = 0; e < E; e++) {
                    int wins = best < 0 || score[e] > score[best]
                        || (score[e] == score[best] && R(x[e]) > R(x[best]));
                    for (int j = 0; j < k && wins; j++) wins = chosen[j] != e;
                    if (wins) best = e;
                }
                chosen[k] = forced ? (int)(((size_t)n*K + (size_t)k) % (size_t)E) : best;
            }
            DEVICE(choice_weights)(weight + (size_t)n*K, chosen, K, x, lse[n], scores);
        }
        free(score);
    }
}

/* The gradient of a token's logits has three parts (smoe.c, before router_backward):
 *  - through the weights. With these a softmax over the chosen experts J, all others cancel, and
 *        dlogit_e = weight_e (dweight_e - sum over j in J of weight_j dweight_j)  for e in J.
 *    SOFTMAX_TOPK: weight_e = p_e, so dlogit_e = p_e ([e in J] dweight_e - the same sum) for all e.
 *    SIGMOID_TOPK: a softmax over J of log s_e, and dlog s_e / dlogit_e = 1 - s_e, another factor.
 *    SIGMOID_EACH: dlogit_e = dweight_e s_e (1 - s_e).
 *  - balance: E/K sum over e of (load_e / tokens) mean(p_e), load constant, through the softmax:
 *        dlogit_e = balance E / (K n tokens) p_e (load_e - sum over j of p_j load_j),
 *    or through the normalized sigmoid p_e = s_e / sum: times (1 - s_e).   n = tokens / ranks
 *  - z: mean of lse^2, and dlse / dlogit_e = softmax_e: dlogit_e = zloss 2 lse / n softmax_e.
 * Filler has only the first. */
static int counts(Counted c, int n) { return *c.tokens && !(c.target && c.target[n] == FILLER); }
static double tokens_of_rank(Counted c) { return (double)*c.tokens / c.ranks; }

static void router_backward(floatX *dlogits, const real *dweight, const real *weight, const real *lse,
                            const int *expert, const int *first, const floatX *logits, const int *load, float balance,
                            float zloss, Counted counted, Scores scores, int N, int E, int K) {
    const real tokens = (real)*counted.tokens, here = (real)tokens_of_rank(counted);
    #pragma omp parallel PARALLEL_IF((size_t)N*E*8)
    {
        real *p = scratch((size_t)E * 2 * sizeof *p), *d = p + E;
        #pragma omp for
        for (int n = 0; n < N; n++) {
            const floatX *x = logits + (size_t)n*E;
            const size_t slot = first_slot(first, n, K), count = first_slot(first, n + 1, K) - slot;
            const int *chosen = expert + slot;
            const real *w = weight + slot, *dw = dweight + slot;
            real dot = 0, pull = 0;

            probabilities(p, x, lse[n], scores, E);
            for (int e = 0; e < E; e++) pull += p[e] * (real)load[e];
            for (int e = 0; e < E; e++) {
                real slope = scores >= SIGMOID_TOPK ? p[e] * sigmoid(-R(x[e])) : p[e];
                d[e] = (real)balance * E / ((real)K * here * tokens) * ((real)load[e] - pull) * slope;
                d[e] += (real)zloss * 2 * lse[n] / here * exp(R(x[e]) - lse[n]);
            }
            if (!counts(counted, n)) memset(d, 0, (size_t)E * sizeof *d);
            for (size_t k = 0; k < count && scores != SIGMOID_EACH; k++) dot += w[k] * dw[k];
            if (scores == SOFTMAX_TOPK) for (int e = 0; e < E; e++) d[e] -= p[e] * dot;
            for (size_t k = 0; k < count; k++)
                d[chosen[k]] += scores == SOFTMAX_TOPK ? w[k] * dw[k]
                              : scores >= SIGMOID_TOPK ? w[k] * (dw[k] - dot) * sigmoid(-R(x[chosen[k]]))
                              :                          w[k] * (dw[k] - dot);
            for (int e = 0; e < E; e++) dlogits[(size_t)n*E + e] = X(d[e]);
        }
        free(p);
    }
}

/* ---- plan: a stable counting sort of the slots by expert. In smoe.c's example, (2 0) (1 2) (2 1),
 * load = {1,2,3}, start = {0,1,3,6}, slot_of_row = {1, 2,5, 0,3,4}, row_of_slot = {3,0,1,4,5,2} */
static void route_plan(Plan *plan, int *load, const int *expert) {
    const int S = plan->S, E = plan->E, K = plan->K;
    int *start = plan->start;
    memset(load, 0, (size_t)E * sizeof *load);
    for (int s = 0; s < S; s++) load[expert[s]]++;
    start[0] = 0;
    for (int e = 0; e < E; e++) start[e + 1] = start[e] + load[e];
    for (int s = 0; s < S; s++) {                           /* start[e] doubles as the next free row of expert e... */
        int row = start[expert[s]]++;
        plan->slot_of_row[row] = s;
        plan->token_of_row[row] = s / K;
        plan->row_of_slot[s] = row;
    }
    for (int e = E; e > 0; e--) start[e] = start[e - 1];    /* ...and is then where expert e + 1 begins */
    start[0] = 0;
}

static void route_discount(int *load, const int *choice, const int *target, int N, int K) {
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K && target[n] == FILLER; k++) load[choice[(size_t)n*K + k]]--;
}

/* ---- losses and bias ------------------------------------------------------------------------- */

static void router_losses(real *loss, const floatX *logits, const real *lse, const int *load, Counted counted,
                          Scores scores, int N, int E, int K) {
    const double tokens = *counted.tokens, here = tokens_of_rank(counted);
    enum { ROWS = 256 };                                /* tokens of a partial sum; these are added in order */
    int blocks = (N + ROWS - 1) / ROWS;
    double *partial = zeroed_scratch((size_t)blocks * 2 * sizeof *partial);
    #pragma omp parallel PARALLEL_IF((size_t)N*E*8)
    {
        real *p = scratch((size_t)E * sizeof *p);
        #pragma omp for
        for (int b = 0; b < blocks; b++)
            for (int n = b * ROWS; n < N && n < (b + 1) * ROWS; n++) {
                double inner = 0;
                if (!counts(counted, n)) continue;
                probabilities(p, logits + (size_t)n*E, lse[n], scores, E);
                for (int e = 0; e < E; e++) inner += (double)p[e] * load[e];
                partial[2*b] += inner;
                partial[2*b + 1] += (double)lse[n] * (double)lse[n];
            }
        free(p);
    }
    double balance = 0, z = 0;
    for (int b = 0; b < blocks; b++) { balance += partial[2*b]; z += partial[2*b + 1]; }
    free(partial);
    loss[0] = (real)(here > 0 ? balance * E / ((double)K * here * tokens) : 0);
    loss[1] = (real)(here > 0 ? z / here : 0);
}

static void router_bias(real *bias, const int *load, float rate, int relative, int E) {
    int64_t sum = 0;                            /* load < mean is load * E < sum in integers, so nothing is rounded */
    for (int e = 0; e < E; e++) sum += load[e];
    for (int e = 0; e < E; e++) {
        const int64_t here = (int64_t)load[e] * E;
        if (relative) bias[e] += sum ? (real)rate * (1 - (real)here / (real)sum) : 0;
        else bias[e] += here < sum ? (real)rate : here > sum ? -(real)rate : 0;
    }
}

/* ---- combine: a token's output is the weighted sum of its experts' results ------------------- */

static void combine_forward(floatX *out, const floatX *inp, const real *weight, const floatX *bias,
                            const Plan *plan, int C, Rows rows) {
    const int N = plan->N, K = plan->K;
    enum { WIDE = 64 };
    #pragma omp parallel for PARALLEL_IF((size_t)N*K*C)
    for (int n = 0; n < N; n++)
        for (int from = 0; from < C; from += WIDE) {
            int wide = C - from < WIDE ? C - from : WIDE;
            real sum[WIDE];
            for (int c = 0; c < wide; c++) sum[c] = bias ? R(bias[from + c]) : 0;
            for (size_t s = first_slot(plan->first, n, K); s < first_slot(plan->first, n + 1, K); s++) {
                size_t row = rows == GROUPED ? (size_t)plan->row_of_slot[s] : s;
                const floatX *x = inp + row*C + from;
                real w = weight ? weight[s] : 1;
                for (int c = 0; c < wide; c++) sum[c] += w * R(x[c]);
            }
            for (int c = 0; c < wide; c++) out[(size_t)n*C + from + c] = X(sum[c]);
        }
}

static void scale_weights(real *out, const real *weight, float scale, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = (real)scale * weight[i];
}

PART(route) {
    d->router_forward = router_forward;  d->router_backward = router_backward;  d->router_losses = router_losses;
    d->route_plan = route_plan;          d->combine_forward = combine_forward;  d->router_bias = router_bias;
    d->scale_weights = scale_weights;    d->route_discount = route_discount;
}
