// hopper/muon.cuh: what kernels/cuda/muon.cu and hopper/muon.cu have in common.
#pragma once
#include "kernels/cuda/impl.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/random.h"
#include <type_traits>

// All matrices of a shape, or some, as muon_momentum and muon_update of kernels.h have them.
struct MuonWork {
    floatX *weight;
    real *master;
    void *m;
    Dtype moments;
    const void *grads;
    const real *grad_sq_norm;
    const Segment *parts;
    int count;
    real size;                                                          // of the update
    const Muon *settings;
    bool aligned;                                                       // all of these begin at multiples of 16 bytes
};
__device__ static inline bool happens(const real *grad_sq_norm) { return sqrtf(*grad_sq_norm) <= 3e38f; }

// Part s is taken four elements at a time, 16 bytes of reals, if it begins and ends on a multiple of four everywhere.
__device__ static inline bool in_fours(const Segment &s, bool aligned) {
    return aligned && (s.offset | s.count | s.shift | s.gradient | s.at) % 4 == 0;
}

// Of `step` threads this is number `first`. Each takes W elements, then those W * step further, and loads UNROLL times W of them before it
// uses the first; those that it will load two turns later are requested for the L2 cache.
struct Share { unsigned first, step; };
template <int UNROLL, class T> __device__ static inline void request(const T *from, size_t i, size_t n, Share t) {
    if (UNROLL == 1) return;
    const size_t bytes = i * sizeof(T) / 128 * 128 + (size_t)t.first * 128;
    if ((size_t)t.first * 128 < (size_t)t.step * 4 * UNROLL * sizeof(T) && bytes < n * sizeof(T)) prefetch_line((const char *)from + bytes);
}
// One turn: UNROLL times W elements, all of them there.
template <int W, int UNROLL, class M, class G> __device__ static inline void momentum_turn(floatX *x, M *m, const G *grad, real beta, real scale,
        unsigned step) {
    Array<G, W> g[UNROLL];
    Array<M, W> mean[UNROLL];
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) g[u] = load<W>(grad + u * step * W), mean[u] = load<W>(m + u * step * W);
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        Pack<W> to;
        for (int j = 0; j < W; j++) {
            const real now = (real)g[u].x[j] * scale, next = beta * (real)mean[u].x[j] + (1 - beta) * now;
            mean[u].x[j] = (M)next;
            to.x[j] = X(beta * next + (1 - beta) * now);
        }
        store(m + u * step * W, mean[u]);
        store(x + u * step * W, to);
    }
}
template <int W, int UNROLL, class M, class G> __device__ static inline void momentum_of(floatX *x, M *m, const G *grad, size_t n,
        real beta, real scale, Share t) {
    const size_t turn = (size_t)t.step * W * UNROLL;
    size_t i = (size_t)t.first * W;
    #pragma unroll 1
    for (; UNROLL > 1 && i - t.first * W + turn <= n; i += turn) {
        request<UNROLL>(grad, i - t.first * W + 2 * turn, n, t), request<UNROLL>(m, i - t.first * W + 2 * turn, n, t);
        momentum_turn<W, UNROLL>(x + i, m + i, grad + i, beta, scale, t.step);
    }
    #pragma unroll 1
    for (; i < n; i += t.step * W) momentum_turn<W, 1>(x + i, m + i, grad + i, beta, scale, t.step);
}
template <int UNROLL, class M, class G> __device__ static inline void momentum_of_part(floatX *x, M *m, const G *grads, const Segment &s,
        bool aligned, real beta, real scale, Share t) {
    m += s.offset - s.shift, grads += s.gradient;
    if (in_fours(s, aligned)) momentum_of<4, UNROLL>(x, m, grads, s.count, beta, scale, t);
    else momentum_of<1, 1>(x, m, grads, s.count, beta, scale, t);
}
// x: where the part goes. The momentum looks one gradient ahead (Nesterov).
template <int UNROLL, class M> __device__ static inline void momentum(floatX *x, const MuonWork &w, const Segment &s, Share t) {
    const real norm = sqrtf(*w.grad_sq_norm), clip = w.settings->clip, beta = w.settings->momentum;
    const real scale = clip > 0 && norm > clip ? clip / norm : 1;
    if (s.dtype == REAL) momentum_of_part<UNROLL>(x, (M *)w.m, (const real *)w.grads, s, w.aligned, beta, scale, t);
    else momentum_of_part<UNROLL>(x, (M *)w.m, (const floatX *)w.grads, s, w.aligned, beta, scale, t);
}

typedef struct { real step, shrink; uint64_t key; } Step;
// out: the same addresses had other contents before, so it is read from the L2 cache.
template <int W> __device__ static inline Pack<W> load_coherent(const floatX *p) {
    typedef std::conditional_t<sizeof(Pack<W>) == 2, unsigned short, std::conditional_t<sizeof(Pack<W>) == 4, unsigned,
            std::conditional_t<sizeof(Pack<W>) == 8, uint2, uint4>>> Bits;
    union { Bits bits; Pack<W> x; } u = { __ldcg((const Bits *)p) };
    return u.x;
}
// From element `first` of the arena on.
template <int W, int UNROLL> __device__ static inline void update_turn(floatX *weight, real *master, const floatX *out, size_t first, Step s,
        unsigned step) {
    Reals<W> w[UNROLL];
    Pack<W> o[UNROLL];
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        o[u] = load_coherent<W>(out + u * step * W);
        if (master) w[u] = load<W>(master + u * step * W);
        else {
            const Pack<W> now = load<W>(weight + u * step * W);
            for (int j = 0; j < W; j++) w[u].x[j] = R(now.x[j]);
        }
    }
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        Pack<W> to;
        for (int j = 0; j < W; j++) {
            const size_t e = first + u * step * W + j;
            w[u].x[j] = w[u].x[j] * s.shrink - s.step * R(o[u].x[j]);
            to.x[j] = master ? X(w[u].x[j]) : X_random(w[u].x[j], (uint32_t)(random_bits(s.key, e / 2) >> e % 2 * 32));
        }
        if (master) store(master + u * step * W, w[u]);
        store(weight + u * step * W, to);
    }
}
template <int W, int UNROLL> __device__ static inline void update_of(floatX *weight, real *master, const floatX *out, size_t first, size_t n,
        Step s, Share t) {
    const size_t turn = (size_t)t.step * W * UNROLL;
    size_t i = (size_t)t.first * W;
    #pragma unroll 1
    for (; UNROLL > 1 && i - t.first * W + turn <= n; i += turn) {
        if (master) request<UNROLL>(master, i - t.first * W + 2 * turn, n, t);
        else request<UNROLL>(weight, i - t.first * W + 2 * turn, n, t);
        update_turn<W, UNROLL>(weight + i, master ? master + i : NULL, out + i, first + i, s, t.step);
    }
    #pragma unroll 1
    for (; i < n; i += t.step * W) update_turn<W, 1>(weight + i, master ? master + i : NULL, out + i, first + i, s, t.step);
}
// out: of the part.
template <int UNROLL> __device__ static inline void update(const floatX *out, const MuonWork &w, const Segment &s, Share t) {
    const real lr = w.settings->lr * s.rate;
    const Step u = { lr * w.size, 1 - lr * w.settings->decay * s.decay, w.settings->key };
    real *const master = w.master ? w.master + (s.offset - s.shift) : NULL;
    if (in_fours(s, w.aligned)) update_of<4, UNROLL>(w.weight + s.offset, master, out, s.offset, s.count, u, t);
    else update_of<1, 1>(w.weight + s.offset, master, out, s.offset, s.count, u, t);
}

#if defined(PRECISION_BF16)
// b->out = orthogonalize(b->x), x untouched; gram and square are scratch. False: not on this GPU, not for these sizes; nothing was
// done.
bool hopper_newton_schulz(const MuonBuffers *b, int count, int rows, int columns);
// As muon_matrices; most: matrices that fit into b. False: as before.
bool hopper_muon(const MuonBuffers *b, int most, const MuonWork &work, int rows, int columns);
#endif
