/* columns.c: columns of a wider matrix, and parts of keys. */
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

static void shift_keys(floatX *kv, const floatX *own, const floatX *before, const int *position, int N, int G,
                       int D) {
    #pragma omp parallel for PARALLEL_IF((size_t)N * G * D)
    for (int n = 0; n < N; n++) {
        const size_t GD = (size_t)G * (size_t)D, quarter = (size_t)(D / 4), row = (size_t)n * GD;
        const int first = position[n] == 0, next = n + 1 < N && position[n + 1] > 0;
        for (size_t i = quarter; i < GD; i += 2 * quarter) {
            floatX *to = kv + 2 * row + i;
            const floatX *from = own + row + i;
            if (before) memcpy(to, first ? from : before + row + i, quarter * sizeof *to);
            else
                for (size_t j = 0; j < quarter; j++)
                    to[j] = X((first ? R(from[j]) : 0) + (next ? R(from[GD + j]) : 0));
        }
    }
}

PART(columns) {
    d->columns_add = columns_add;  d->columns_put = columns_put;  d->columns_take = columns_take;
    d->shift_keys = shift_keys;
}
