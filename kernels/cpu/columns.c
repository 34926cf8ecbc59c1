/* columns.c: columns of a wider matrix. */
#include "impl.h"

static void columns_add(floatX *x, const floatX *part, int N, int stride, int from, int width) {
    #pragma omp parallel for PARALLEL_IF((size_t)N * width)
    for (int n = 0; n < N; n++) {
        floatX *to = x + (size_t)n*stride + from;
        for (int i = 0; i < width; i++) to[i] = X(R(to[i]) + R(part[(size_t)n*width + i]));
    }
}
static void columns_put(floatX *x, const floatX *part, int N, int stride, int from, int width) {
    for (int n = 0; n < N; n++) memcpy(x + (size_t)n*stride + from, part + (size_t)n*width, (size_t)width * sizeof *x);
}
static void columns_take(floatX *part, const floatX *x, int N, int stride, int from, int width) {
    for (int n = 0; n < N; n++) memcpy(part + (size_t)n*width, x + (size_t)n*stride + from, (size_t)width * sizeof *x);
}

PART(columns) { d->columns_add = columns_add; d->columns_put = columns_put; d->columns_take = columns_take; }
