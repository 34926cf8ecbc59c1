/* muon.c: Muon. The update of a matrix is its momentum with all singular values made nearly equal.
 *
 * If X = U diag(s) V^T, then (a I + b X X^T + c (X X^T)^2) X = U diag(a s + b s^3 + c s^5) V^T: an
 * odd polynomial of X is the same polynomial of every singular value, and takes products of
 * matrices only. Those of X / |X| (Frobenius) are at most 1. Jordan's coefficients have the largest
 * slope at 0, 3.44, for which the values then do not converge, but wander between 0.68 and 1.20:
 * five steps bring there all that were above 0.002. For the update that is as good as 1.
 *
 * With fewer rows than columns X X^T is the smaller one; else it is X^T X, and the polynomial is
 * multiplied from the right. Of X X^T and its square one half is computed (matmul.h). */
#include "matmul.h"
#include "sum.h"
#include "kernels/codes.h"

static const real newton_schulz[3] = { (real)3.4445, (real)-4.7750, (real)2.0315 };

/* x /= its Frobenius norm; zeros stay, and what an expert long without tokens has becomes 0. */
static void normalize(floatX *x, size_t n) {
    double sum = 0;
    #pragma omp simd reduction(+:sum)
    for (size_t i = 0; i < n; i++) sum += (double)R(x[i]) * (double)R(x[i]);
    const real scale = sum > MUON_LEAST ? (real)(1 / sqrt(sum)) : 0;
    for (size_t i = 0; i < n; i++) x[i] = X(R(x[i]) * scale);
}

/* square = a I + b gram + c square: k x k, from its upper half. */
static void polynomial(floatX *square, const floatX *gram, size_t k) {
    for (size_t i = 0; i < k; i++)
        for (size_t j = i; j < k; j++) {
            const size_t at = i * k + j;
            square[at] = X((i == j ? newton_schulz[0] : 0) + newton_schulz[1] * R(gram[at])
                           + newton_schulz[2] * R(square[at]));
        }
    DEVICE(complete_symmetric)(square, k);
}

/* One matrix, x, to y, as MUON_STEPS is odd. gram, square (k,k). */
static void orthogonalize_one(floatX *x, floatX *y, floatX *gram, floatX *square, int rows, int columns) {
    const int wide = rows <= columns, k = wide ? rows : columns;
    normalize(x, (size_t)rows * (size_t)columns);
    for (int step = 0; step < MUON_STEPS; step++) {
        DEVICE(symmetric_product)(gram, x, rows, columns, !wide);
        DEVICE(symmetric_product)(square, gram, k, k, 0);
        polynomial(square, gram, (size_t)k);
        DEVICE(product)(y, wide ? square : x, wide ? x : square, rows, k, columns);
        floatX *t = x;
        x = y, y = t;
    }
}

/* Of many matrices a thread does each, all in its cache; of few, threads share every product. */
static void orthogonalize(const Device *d, const MuonBuffers *b, int count, int rows, int columns) {
    const size_t n = (size_t)rows * (size_t)columns, k = (size_t)(rows < columns ? rows : columns);
    (void)d;
    #pragma omp parallel for schedule(dynamic) if (2 * count >= omp_get_max_threads())
    for (int e = 0; e < count; e++)
        orthogonalize_one(b->x + (size_t)e * n, b->out + (size_t)e * n, b->gram + (size_t)e * k * k,
                          b->square + (size_t)e * k * k, rows, columns);
}

static size_t moment_offset(const Segment *s) { return s->offset - s->shift - s->shift_m; }
/* A block of codes, from element `at` of m on, as numbers, and numbers as codes. */
static void decode(real *x, const Momentum *m, size_t at) {
    const int8_t *code = (const int8_t *)m->at + at;
    const real scale = R(m->scale[at / MOMENT_BLOCK]);
    for (int i = 0; i < MOMENT_BLOCK; i++) x[i] = scale * (real)code[i];
}
static void encode(const Momentum *m, size_t at, const real *x, uint64_t key, size_t element) {
    int8_t *code = (int8_t *)m->at + at;
    uint32_t largest = 0;
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        const uint32_t magnitude = as_bits((float)x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    const float scale = moment_scale(largest), inverse = 1 / scale;
    m->scale[at / MOMENT_BLOCK] = X((real)scale);
    for (size_t i = 0; i < MOMENT_BLOCK; i++) code[i] = moment_code((float)x[i], inverse, random_16(key, element + i));
}

/* x looks one gradient ahead (Nesterov), or is the momentum (plain). */
__attribute__((noinline)) static void momentum_of(floatX *x, void *m, Dtype moments, const void *grads,
                                                  const Segment *s, real beta, int plain, real scale) {
    real *m_real = moments == REAL ? (real *)m + moment_offset(s) : NULL;
    floatX *m_short = (floatX *)m + moment_offset(s);
    const real *g_real = s->dtype == REAL ? (const real *)grads + s->gradient : NULL;
    const floatX *g_short = (const floatX *)grads + s->gradient;
    for (size_t i = 0; i < s->count; i++) {
        const real g = (g_real ? g_real[i] : R(g_short[i])) * scale;
        const real mean = beta * (m_real ? m_real[i] : R(m_short[i])) + (1 - beta) * g;
        if (m_real) m_real[i] = mean; else m_short[i] = X(mean);
        x[i] = X(plain ? mean : beta * mean + (1 - beta) * g);
    }
}
/* Without x: m has the same bits, because it is the same loop, compiled once for each `plain`. */
static void momentum_alone(void *m, Dtype moments, const void *grads, Segment s, real beta, int plain, real scale) {
    enum { AT_ONCE = 512 };
    floatX unread[AT_ONCE];
    for (size_t left = s.count; left; left -= s.count, s.offset += s.count, s.gradient += s.count) {
        s.count = left < AT_ONCE ? left : AT_ONCE;
        momentum_of(unread, m, moments, grads, &s, beta, plain, scale);
    }
}
/* The same on the numbers of each block of codes. */
static void coded_momentum(floatX *x, const Momentum *m, const void *grads, const Segment *s, real beta, int plain,
                           real scale, uint64_t key) {
    real mean[MOMENT_BLOCK];
    floatX unread[MOMENT_BLOCK];
    for (size_t i = 0; i < s->count; i += MOMENT_BLOCK) {
        const Segment block = { .count = MOMENT_BLOCK, .dtype = s->dtype, .gradient = s->gradient + i };
        decode(mean, m, moment_offset(s) + i);
        momentum_of(x ? x + i : unread, mean, REAL, grads, &block, beta, plain, scale);
        encode(m, moment_offset(s) + i, mean, key, s->offset + i);
    }
}
static void copy_momentum(floatX *x, const Momentum *m, const Segment *s) {
    const size_t at = moment_offset(s);
    real block[MOMENT_BLOCK];
    for (size_t i = 0; i < s->count; i++) {
        if (m->dtype == INT8 && i % MOMENT_BLOCK == 0) decode(block, m, at + i);
        x[i] = m->dtype == INT8 ? X(block[i % MOMENT_BLOCK]) : m->dtype == REAL ? X(((const real *)m->at)[at + i])
             : ((const floatX *)m->at)[at + i];
    }
}
static void muon_momentum(floatX *x, Momentum m, const void *grads, const real *grad_sq_norm, const Segment *parts,
                          int count, size_t most, const Muon *a) {
    const real scale = DEVICE(gradient_scale)(*grad_sq_norm, a->clip);
    const int plain = a->ahead >= 1;
    const real beta = (real)a->momentum;
    const uint64_t key = random_key(a->key, RANDOM_MOMENTUM);
    (void)most;                         /* without OpenMP */
    #pragma omp parallel for schedule(dynamic) PARALLEL_IF((size_t)count * most)
    for (int e = 0; e < count; e++) {
        floatX *to = x ? x + parts[e].muon_offset : NULL;
        if (!grads) copy_momentum(to, &m, &parts[e]);
        else if (scale < 0) continue;
        else if (m.dtype == INT8) coded_momentum(to, &m, grads, &parts[e], beta, plain, scale, key);
        else if (x) momentum_of(to, m.at, m.dtype, grads, &parts[e], beta, plain, scale);
        else momentum_alone(m.at, m.dtype, grads, parts[e], beta, plain, scale);
    }
}

static void muon_limits(real *factors, real *norms, real *added, real *faults, real *fault, const real *sq_norms,
                        int count, const Muon *a) {
    const real beta = (real)a->momentum, rho = (real)MUON_NORM_DECAY;
    for (int i = 0; i < count; i++)
        if (!(sqrt(sq_norms[i]) <= (real)3e38)) faults[i] = *fault = sq_norms[i];
    for (int i = 0; i < count && norms; i++) {
        const real n = sqrt(sq_norms[i]), limit = norms[2*i + 1] > 0 ? (real)a->most * norms[2*i] / norms[2*i + 1] : 0,
            of = limit > 0 && n > limit ? limit / n : 1;
        factors[2*i] = 1, factors[2*i + 1] = 0;
        if (!(*fault == 0)) continue;
        factors[2*i] = added[i] > 0 ? 1 : beta, factors[2*i + 1] = (1 - beta) * of;
        added[i] = 1;
        if (!(n > 0)) continue;
        norms[2*i] = rho * norms[2*i] + (1 - rho) * (n * of), norms[2*i + 1] = rho * norms[2*i + 1] + (1 - rho);
    }
}
static void add_coded(const Momentum *m, const void *grads, const Segment *s, real keep, real scale, uint64_t key) {
    const real *g_real = s->dtype == REAL ? (const real *)grads + s->gradient : NULL;
    const floatX *g_short = (const floatX *)grads + s->gradient;
    #pragma omp parallel for PARALLEL_IF(s->count)
    for (size_t i = 0; i < s->count; i += MOMENT_BLOCK) {
        real next[MOMENT_BLOCK];
        decode(next, m, moment_offset(s) + i);
        for (size_t j = 0; j < MOMENT_BLOCK; j++)
            next[j] = keep * next[j] + scale * (g_real ? g_real[i + j] : R(g_short[i + j]));
        encode(m, moment_offset(s) + i, next, key, s->offset + i);
    }
}
static void muon_add(Momentum m, const void *grads, const real *factors, const Segment *parts, int count, size_t most,
                     const uint64_t *key) {
    const uint64_t rounding = random_key(*key, RANDOM_MOMENTUM);
    (void)most;
    for (int e = 0; e < count; e++) {
        const Segment *s = &parts[e];
        const real keep = factors[2*e], scale = factors[2*e + 1];
        const real *g_real = s->dtype == REAL ? (const real *)grads + s->gradient : NULL;
        const floatX *g_short = (const floatX *)grads + s->gradient;
        real *m_real = m.dtype == REAL ? (real *)m.at + moment_offset(s) : NULL;
        floatX *m_short = (floatX *)m.at + moment_offset(s);
        if (scale != 0 && m.dtype == INT8) add_coded(&m, grads, s, keep, scale, rounding);
        if (scale == 0 || m.dtype == INT8) continue;
        #pragma omp parallel for simd PARALLEL_IF(s->count)
        for (size_t i = 0; i < s->count; i++) {
            const real g = g_real ? g_real[i] : R(g_short[i]);
            const real next = keep * (m_real ? m_real[i] : R(m_short[i])) + scale * g;
            if (m_real) m_real[i] = next; else m_short[i] = X_random(next, random_32(rounding, s->offset + i));
        }
    }
}

/* Of one matrix (kernels.h): columns are added row by row, rows one after the other. */
static void scale_of(real *scale, real *squares, const floatX *out, int rows, int columns, real beta) {
    const int across = rows < columns, n = across ? columns : rows;
    double all = 0, scaled = 0;
    if (across) memset(scale, 0, (size_t)n * sizeof *scale);
    for (int r = 0; r < rows; r++, out += columns) {
        real sum = 0;
        if (across) for (int c = 0; c < columns; c++) scale[c] += R(out[c]) * R(out[c]);
        else {
            #pragma omp simd reduction(+:sum)
            for (int c = 0; c < columns; c++) sum += R(out[c]) * R(out[c]);
            scale[r] = sum;
        }
    }
    for (int i = 0; i < n; i++) {
        const real mean = scale[i] / (real)(across ? rows : columns);
        squares[i] = beta * squares[i] + (1 - beta) * mean;
        const real least = (real)MUON_LEAST_SQUARE;
        scale[i] = 1 / sqrt(squares[i] > least ? squares[i] : least);
        all += (double)mean, scaled += (double)(mean * scale[i]) * (double)scale[i];
    }
    const real keep = scaled > 0 ? (real)sqrt(all / scaled) : 0;
    for (int i = 0; i < n; i++) scale[i] *= keep;
}
static void muon_scale(real *scale, real *squares, const floatX *out, const real *grad_sq_norm, const Segment *parts,
                       int count, int rows, int columns, const Muon *a) {
    const size_t n = (size_t)rows * (size_t)columns, longer = (size_t)(rows > columns ? rows : columns);
    if (DEVICE(gradient_scale)(*grad_sq_norm, a->clip) < 0) return;
    #pragma omp parallel for schedule(dynamic) PARALLEL_IF((size_t)count * n)
    for (int e = 0; e < count; e++)
        scale_of(scale + (size_t)e * longer, squares + parts[e].squares, out + (size_t)e * n, rows, columns,
                 (real)a->second);
}

/* each: NULL, or what multiplies lr for each element. */
static void update_of(floatX *weight, real *master, const floatX *out, const Segment *s, real shrink, real lr,
                      const real *each, const Muon *a) {
    for (size_t j = 0; j < s->count; j++) {
        const size_t i = s->offset + j;
        const uint32_t bits = random_32(a->key, i);
        const real was = master ? master[i - s->shift] : R(weight[i]);
        const real keep = a->cautious && R(out[j]) * was <= 0 ? 1 : shrink;
        const real w = was * keep - (each ? lr * each[j] : lr) * R(out[j]);
        if (master) master[i - s->shift] = w;
        weight[i] = master ? X(w) : X_random(w, bits);
    }
}
/* Row by row. first: where the part begins in its matrix. */
static void update_scaled(floatX *weight, real *master, const floatX *out, const real *scale, Segment s, size_t first,
                          int across, size_t columns, real shrink, real lr, const Muon *a) {
    for (size_t at = first, end = first + s.count; at < end; at += s.count, s.offset += s.count, out += s.count) {
        const size_t row = at / columns, column = at % columns;
        s.count = end - at < columns - column ? end - at : columns - column;
        update_of(weight, master, out, &s, shrink, across ? lr : lr * scale[row], across ? scale + column : NULL, a);
    }
}
static void muon_update(floatX *weight, real *master, const floatX *out, const real *scale, const real *grad_sq_norm,
                        const Segment *parts, int count, int rows, int columns, const Muon *a) {
    const size_t longer = (size_t)(rows > columns ? rows : columns), n = (size_t)rows * (size_t)columns;
    const real size = (real)0.2 * sqrt((real)(rows > columns ? rows : columns));
    if (DEVICE(gradient_scale)(*grad_sq_norm, a->clip) < 0) return;
    #pragma omp parallel for schedule(dynamic) PARALLEL_IF((size_t)count * n)
    for (int e = 0; e < count; e++) {
        const Segment *s = &parts[e];
        const real lr = (real)a->lr * (real)s->rate, shrink = 1 - lr * (real)a->decay * (real)s->decay;
        const floatX *of = out + s->muon_offset;
        if (scale) update_scaled(weight, master, of, scale + (size_t)e * longer, *s, s->muon_offset - (size_t)e * n,
                                 rows < columns, (size_t)columns, shrink, lr * size, a);
        else update_of(weight, master, of, s, shrink, lr * size, NULL, a);
    }
}

PART(muon) {
    d->muon_momentum = muon_momentum, d->orthogonalize = orthogonalize, d->muon_scale = muon_scale;
    d->muon_update = muon_update, d->muon_limits = muon_limits, d->muon_add = muon_add;
}
