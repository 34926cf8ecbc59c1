/* random.c: normal numbers, several at a time.
 *
 * What takes time in random_normal are the calls of log and cos, which compute one number each.
 * Here both are series, in loops that become vector code. They are less exact than double, by a
 * known bound, and a float has only 24 bits: where both ends of the bound are the same float, so is
 * the exact number. The others, one in thousands, are drawn by random_normal. */
#include "random.h"
#include <string.h>

enum { BLOCK = 256 };                   /* numbers at a time: they stay in the first cache */

static inline uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* An integer below 2^52, exactly: not all processors have an instruction for vectors of them. */
static inline double exact(uint64_t n) { return double_of(n | 0x4330000000000000u) - 0x1p52; }
static inline double uniform(uint64_t key, uint64_t index) {
    const uint64_t n = random_bits(key, index) >> 11;
    return exact(n >> 1) * 0x1p-52 + exact(n & 1) * 0x1p-53;
}

/* log(w), 0 < w <= 1, relative error below 2^-39: w = 2^e m with sqrt(1/2) <= m < sqrt(2), and with
 * s = (m-1)/(m+1) log(m) = 2 (s + s^3/3 + ...); the first term left out is s^15/15. */
static inline double log_of(double w) {
    const uint64_t bits = bits_of(w), e = (bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu)) >> 52;
    const double m = double_of(bits - ((e - 1023) << 52)), s = (m - 1) / (m + 1), z = s * s;
    const double series = 1 + z * (1. / 3 + z * (1. / 5 + z * (1. / 7 + z * (1. / 9 + z * (1. / 11 + z * (1. / 13))))));
    return (exact(e) - 1023) * 0.6931471805599453 + 2 * s * series;
}
/* cos(2 pi v) of a random v, error below 2^-43: the sine of an angle between -pi/2 and pi/2; the
 * first term left out is (pi/2)^19/19!. Of the 53 bits of v the last one is dropped. */
static inline double cos_of(uint64_t bits) {
    const double v = double_of(bits >> 12 | 0x3ff0000000000000u) - 1,
        x = 6.283185307179586 * (fabs(v - 0.5) - 0.25), z = x * x;
    const double c = 1. / 355687428096000, b = -1. / 1307674368000, a = 1. / 6227020800;
    return x * (1 + z * (-1. / 6 + z * (
            1. / 120 + z * (-1. / 5040 + z * (1. / 362880 + z * (-1. / 39916800 + z * (a + z * (b + z * c))))))));
}
/* Of at most BLOCK numbers. Those that are not certain become NaN; 1: there are some. */
static int draw(uint64_t key, uint64_t first, size_t n, double scale, double *values) {
    const double bound = 0x1p-38 * fabs(scale);             /* of the error, as a part of the radius */
    int some = 0;
    #pragma omp simd reduction(|: some)
    for (size_t i = 0; i < n; i++) {
        const double radius = sqrt(-2 * log_of(1 - uniform(key, 2 * (first + i))));
        const double x = scale * (radius * cos_of(random_bits(key, 2 * (first + i) + 1))), error = bound * radius;
        const int is_certain = (float)(x - error) == (float)(x + error) && error > 0;
        values[i] = is_certain ? x : NAN;
        some |= !is_certain;
    }
    return some;
}
void random_normals(uint64_t key, uint64_t first, size_t n, double scale, double *values) {
    for (size_t at = 0, count; at < n; at += count) {
        count = n - at < BLOCK ? n - at : BLOCK;
        if (!draw(key, first + at, count, scale, values + at)) continue;
        for (size_t i = at; i < at + count; i++)
            if (isnan(values[i])) values[i] = scale * random_normal(key, first + i);
    }
}
