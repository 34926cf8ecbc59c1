// route.cuh: how a warp chooses and weighs a token's experts, and the order of floats as integers.
#pragma once
#include "impl.cuh"
#include "kernels/round.h"

__device__ static inline real sigmoid(real x) { return 1 / (1 + expf(-x)); }
__device__ static inline real log_sigmoid(real x) { return x < 0 ? x - log1pf(expf(x)) : -log1pf(expf(-x)); }
// Unsigned integers in the order of the floats; 0 is below all of them.
__device__ static inline unsigned ordered(real x) {
    const unsigned bits = ordered_bits(x);
    return bits ? bits : 1;
}

// log sum exp of the logits x (E), by a warp.
__device__ static inline real log_sum(const floatX *x, int E) {
    const int lane = threadIdx.x % 32;
    real max = -INFINITY, sum = 0;
    #pragma unroll 1
    for (int e = lane; e < E; e += 32) max = fmaxf(max, R(x[e]));
    max = warp_max(max);
    #pragma unroll 1
    for (int e = lane; e < E; e += 32) sum += expf(R(x[e]) - max);
    return max + logf(warp_sum(sum));
}

// ---- the best K experts of a token, by a warp ---------------------------------------------------
//
// Lane l has experts l, l + 32, ... and proposes the best of them that is not chosen yet: the one
// with the largest score, of equal ones the larger logit, then the lower id. score 0: none.
typedef struct { unsigned score, logit, expert; } Candidate;

// Experts are compared by score; without bias by logit v, the same order. l: log_sum, for scores p.
__device__ static inline unsigned biased_score(real v, real bias, Scores scores, real l) {
    return ordered((scores >= SIGMOID_TOPK ? sigmoid(v) : SCORES_ARE_P(scores) ? expf(v - l) : v) + bias);
}
// E <= 32: a lane has one expert at most, with logit v.
__device__ static inline Candidate only_candidate(real v, const real *bias, Scores scores, real l, int E) {
    const unsigned e = threadIdx.x % 32, logit = ordered(v);
    if (e >= E) return { 0, 0, e };
    return { bias ? biased_score(v, bias[e], scores, l) : logit, logit, e };
}
// score (E): 0 where an expert is chosen. A lane's experts ascend: of equal ones the lower stays.
__device__ static Candidate next_candidate(const unsigned *score, const floatX *x, int E) {
    Candidate best = { 0, 0, ALL };
    #pragma unroll 1
    for (int e = threadIdx.x % 32; e < E; e += 32) {
        if (score[e] < best.score || !score[e]) continue;
        const unsigned logit = ordered(R(x[e]));
        if (score[e] > best.score || logit > best.logit) best = { score[e], logit, (unsigned)e };
    }
    return best;
}
// The lanes with the best candidate by score and logit; of single experts the lowest lane's wins.
__device__ static inline unsigned best_lanes(Candidate mine) {
    const unsigned top = __reduce_max_sync(ALL, mine.score);
    unsigned lanes = __ballot_sync(ALL, mine.score == top);
    if (lanes & (lanes - 1)) {                              // several lanes have that score
        const unsigned logit = __reduce_max_sync(ALL, mine.score == top ? mine.logit : 0);
        lanes = __ballot_sync(ALL, mine.score == top && mine.logit == logit);
    }
    return lanes;
}
// found(k, e), k < count: e is the k-th best expert. many: E > 32, using score (E), shared, and x.
template <bool many, class Found> __device__ static inline void
top_experts(Candidate mine, unsigned *score, const floatX *x, int E, int count, Found found) {
    const int lane = threadIdx.x % 32;
    #pragma unroll 1
    for (int k = 0; k < count; k++) {
        const unsigned lanes = best_lanes(mine);
        int e = __ffs(lanes) - 1;
        if (many) e = (int)__reduce_min_sync(ALL, lanes >> lane & 1 ? mine.expert : ALL);
        found(k, e);
        if (lane != (many ? e % 32 : e)) continue;
        mine.score = 0;
        if (many) {
            score[e] = 0;
            mine = next_candidate(score, x, E);
        }
    }
}

// Weights are the softmax of these over the chosen (SOFTMAX_TOPK: all; SIGMOID_EACH: exp).
__device__ static inline real weight_logit(real v, Scores scores) {
    return scores >= SIGMOID_TOPK ? log_sigmoid(v) : v;
}

// The weights w (K) of the chosen experts.
__device__ static inline void weigh_experts(real *w, const int *chosen, const floatX *x, Scores scores, real l, int K) {
    const int lane = threadIdx.x % 32;
    auto value = [&](int k) { return weight_logit(R(x[chosen[k]]), scores); };
    real top = -INFINITY, kept = 0;
    #pragma unroll 1
    for (int k = lane; k < K; k += 32) top = fmaxf(top, value(k));
    top = scores == SOFTMAX_TOPK ? l : scores == SIGMOID_EACH ? 0 : warp_max(top);
    #pragma unroll 1
    for (int k = lane; k < K; k += 32) kept += w[k] = expf(value(k) - top);
    kept = warp_sum(kept);
    if (SUMS_TO_ONE(scores)) for (int k = lane; k < K; k += 32) w[k] /= kept;
}

// score (E), shared: 0, which no score is, outside of the best groups. A lane has a group.
__device__ static inline void mask_groups(unsigned *score, const floatX *x, const real *bias, Scores scores,
                                          Groups groups, real l, int E) {
    const int g = threadIdx.x % 32, width = E / groups.count;
    real first = -INFINITY, second = -INFINITY;
    for (int e = g * width; g < groups.count && e < (g + 1) * width; e++) {
        const real v = R(x[e]),
            s = (scores >= SIGMOID_TOPK ? sigmoid(v) : SCORES_ARE_P(scores) ? expf(v - l) : v) + (bias ? bias[e] : 0);
        second = fmaxf(second, fminf(first, s));
        first = fmaxf(first, s);
    }
    const real sum = groups.by_best ? first : first + second;
    int better = 0;
    for (int h = 0; h < groups.count; h++) {
        const real other = __shfl_sync(ALL, sum, h);
        better += other > sum || (other == sum && h < g);
    }
    for (int e = g * width; g < groups.count && better >= groups.chosen && e < (g + 1) * width; e++) score[e] = 0;
    __syncwarp();
}

// From the logits x (E) of token n: chosen, w (K) and, if not NULL, *lse. forced: as
// router_forward. score (E): shared memory of the warp, used for more than 32 experts.
__device__ static inline void choose_experts(int *chosen, real *w, real *lse, const floatX *x, const real *bias,
        unsigned *score, Scores scores, Groups groups, int forced, size_t n, int E, int K) {
    const int lane = threadIdx.x % 32;
    real l = 0;
    if (lse || SCORES_ARE_P(scores)) l = log_sum(x, E);
    if (lse && lane == 0) *lse = l;

    auto store = [&](int k, int e) { if (lane == 0) chosen[k] = e; };
    if (forced)
        #pragma unroll 1
        for (int k = lane; k < K; k += 32) chosen[k] = (int)((n*K + k) % E);
    else if (E <= 32 && groups.count <= 1)
        top_experts<false>(only_candidate(lane < E ? R(x[lane]) : 0, bias, scores, l, E), NULL, NULL, E, K, store);
    else {
        #pragma unroll 1
        for (int e = lane; e < E; e += 32)
            score[e] = bias ? biased_score(R(x[e]), bias[e], scores, l) : ordered(R(x[e]));
        __syncwarp();
        if (groups.count > 1) mask_groups(score, x, bias, scores, groups, l, E);
        top_experts<true>(next_candidate(score, x, E), score, x, E, K, store);
    }
    __syncwarp();                                           // chosen is there for all lanes
    weigh_experts(w, chosen, x, scores, l, K);
}
