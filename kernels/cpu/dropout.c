/* dropout.c: the residual stream, and dropout.
 *
 * The mask is a hash of (key, site, i), 16 bits for each element: nothing is stored, backward
 * computes it again, and it is the same on every device with any number of threads. */
#include "impl.h"
#include "kernels/random.h"

static inline int kept(uint64_t key, uint64_t i, uint32_t least) { return random_16(key, i) >= least; }
typedef struct { uint64_t key; uint32_t least; real scale; } Mask;           /* least 0: everything is kept */
static Mask mask_of(Dropout d) {
    const uint32_t least = (uint32_t)((double)d.p * 65536);
    return (Mask){ least ? random_key(*d.key, (uint64_t)d.site) : 0, least,
                   (d.scale != 0 ? (real)d.scale : 1) / ((real)1 - (real)d.p) };
}
static void dropout(floatX *out, const floatX *inp, Dropout d, size_t n) {
    const Mask m = mask_of(d);
    #pragma omp parallel for PARALLEL_IF(n)
    for (size_t i = 0; i < n; i++) out[i] = X(m.least == 0 || kept(m.key, i, m.least) ? R(inp[i]) * m.scale : 0);
}
static void residual(floatX *out, const floatX *residual, const floatX *branch, Dropout d, size_t n) {
    const Mask m = mask_of(d);
    #pragma omp parallel for PARALLEL_IF(n)
    for (size_t i = 0; i < n; i++) {
        const int keep = m.least == 0 || kept(m.key, i, m.least);
        out[i] = X(R(residual[i]) + (keep ? R(branch[i]) * m.scale : 0));
    }
}

static void scale(floatX *x, double factor, size_t n) {
    #pragma omp parallel for PARALLEL_IF(n)
    for (size_t i = 0; i < n; i++) x[i] = X(R(x[i]) * (real)factor);
}

PART(dropout) { d->residual = residual; d->dropout = dropout; d->scale = scale; }
