/* rope.c: rotary positions. Pair (i, i + D/2) is rotated by the angle of its position. A rotation's
 * transpose is its inverse, so backward is the rotation by the opposite angle. */
#include "impl.h"

static void rope(floatX *x, const real *table, const int *position, int direction, int N, int stride, int heads,
                 int D) {
    #pragma omp parallel for PARALLEL_IF((size_t)N * heads * D)
    for (int n = 0; n < N; n++) {
        const real *angles = table + (size_t)position[n] * D;
        for (int h = 0; h < heads; h++) {
            floatX *low = x + (size_t)n*stride + h*D, *high = low + D/2;
            for (int i = 0; i < D/2; i++) {
                real cosine = angles[2*i], sine = direction * angles[2*i + 1], a = R(low[i]), b = R(high[i]);
                low[i]  = X(a * cosine - b * sine);
                high[i] = X(b * cosine + a * sine);
            }
        }
    }
}

PART(rope) { d->rope = rope; }
