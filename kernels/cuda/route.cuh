// route.cuh: how a warp chooses the experts of a token, for route.cu and few.cu.
#pragma once
#include "impl.cuh"

__device__ static inline real sigmoid(real x) { return 1 / (1 + expf(-x)); }
__device__ static inline real log_sigmoid(real x) { return x < 0 ? x - log1pf(expf(x)) : -log1pf(expf(-x)); }

// Unsigned integers in the order of the floats; 0 is below all of them.
__device__ static inline unsigned ordered(real x) {
    const unsigned bits = __float_as_uint(x + 0.0f);        // -0 becomes +0: they are equal
    const unsigned image = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return image ? image : 1;
}
typedef struct { unsigned score, logit, expert; } Best;
// The best of a lane's experts that are not taken. Experts come in ascending order, so of equal ones the
// lower stays.
__device__ static Best best_of_lane(const unsigned *score, const floatX *x, int E) {
    Best best = { 0, 0, ALL };
    #pragma unroll 1
    for (int e = threadIdx.x % 32; e < E; e += 32) {
        if (score[e] < best.score || !score[e]) continue;
        const unsigned logit = ordered(R(x[e]));
        if (score[e] > best.score || logit > best.logit) best = { score[e], logit, (unsigned)e };
    }
    return best;
}

// The lanes with the best: by score, then logit. With one expert to a lane the lowest of them has the answer.
__device__ static inline unsigned best_of_warp(Best best) {
    const unsigned top = __reduce_max_sync(ALL, best.score);
    unsigned those = __ballot_sync(ALL, best.score == top);
    if (those & (those - 1)) {                              // several lanes have that score
        const unsigned logit = __reduce_max_sync(ALL, best.score == top ? best.logit : 0);
        those = __ballot_sync(ALL, best.score == top && best.logit == logit);
    }
    return those;
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
// What experts are compared by: of the one with logit v. l: the logits' log sum exp, for SOFTMAX_TOPK.
__device__ static inline unsigned score_expert(real v, const real *bias, int e, Scores scores, real l) {
    if (!bias) return ordered(v);
    return ordered((scores >= SIGMOID_TOPK ? sigmoid(v) : scores == SOFTMAX_TOPK ? expf(v - l) : v) + bias[e]);
}
// The weights w (K) of the chosen experts, by a warp.
__device__ static inline void weigh_experts(real *w, const int *chosen, const floatX *x, Scores scores, real l, int K) {
    const int lane = threadIdx.x % 32;
    auto value = [&](int k) {
        const real v = R(x[chosen[k]]);
        return scores >= SIGMOID_TOPK ? log_sigmoid(v) : v;
    };
    real top = -INFINITY, kept = 0;
    #pragma unroll 1
    for (int k = lane; k < K; k += 32) top = fmaxf(top, value(k));
    top = scores == SOFTMAX_TOPK ? l : scores == SIGMOID_EACH ? 0 : warp_max(top);
    #pragma unroll 1
    for (int k = lane; k < K; k += 32) kept += w[k] = expf(value(k) - top);
    kept = warp_sum(kept);
    if (SUMS_TO_ONE(scores)) for (int k = lane; k < K; k += 32) w[k] /= kept;
}

// From the logits x (E) of token n. K times: every lane names its best, the warp finds the best of those by score, then
// logit, then lower id, and its owner strikes it out and looks for its next. Without a bias scores are in the order of
// the logits, and those are compared. chosen, w (K), *lse (or NULL): results. score (E): shared memory
// of the warp, which it needs for more than 32 experts.
__device__ static inline void choose_experts(int *chosen, real *w, real *lse, const floatX *x, const real *bias,
        unsigned *score, Scores scores, int forced, size_t n, int E, int K) {
    const int lane = threadIdx.x % 32;
    real l = 0;
    if (lse || scores == SOFTMAX_TOPK) l = log_sum(x, E);
    if (lse && lane == 0) *lse = l;

    if (forced)
        #pragma unroll 1
        for (int k = lane; k < K; k += 32) chosen[k] = (int)((n*K + k) % E);
    else {
        auto score_of = [&](int e) { return score_expert(R(x[e]), bias, e, scores, l); };
        Best best = { 0, 0, (unsigned)lane };
        if (E > 32) {
            #pragma unroll 1
            for (int e = lane; e < E; e += 32) score[e] = score_of(e);
            best = best_of_lane(score, x, E);
        } else if (lane < E) best = { score_of(lane), ordered(R(x[lane])), (unsigned)lane };
        #pragma unroll 1
        for (int k = 0; k < K; k++) {
            const unsigned those = best_of_warp(best);
            const bool mine = those >> lane & 1;
            unsigned e = those ? __ffs(those) - 1 : 0;
            if (E > 32) e = __reduce_min_sync(ALL, mine ? best.expert : ALL);
            if (lane == 0) chosen[k] = (int)e;
            if (lane != e % 32) continue;
            best.score = 0;
            if (E > 32) {
                score[e] = 0;
                best = best_of_lane(score, x, E);
            }
        }
    }
    __syncwarp();                                           // chosen is there for all lanes
    weigh_experts(w, chosen, x, scores, l, K);
}
