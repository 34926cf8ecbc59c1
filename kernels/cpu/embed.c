/* embed.c: the embedding. Forward looks rows up; backward adds a token's gradient to its row. */
#include "impl.h"

static void embed_forward(floatX *out, const int *token, const floatX *weight, int N, int C) {
    for (int n = 0; n < N; n++) memcpy(out + (size_t)n*C, weight + (size_t)token[n]*C, (size_t)C * sizeof(floatX));
}

/* Threads split columns, not tokens: these may have the same row, and add to it in their order. */
static void embed_backward(real *dweight, const floatX *dout, const int *token, int N, int V, int C) {
    enum { WIDE = 16 };
    (void)V;
    #pragma omp parallel for PARALLEL_IF((size_t)N*C)
    for (int from = 0; from < C; from += WIDE)
        for (int n = 0; n < N; n++) {
            real *w = dweight + (size_t)token[n]*C;
            const floatX *d = dout + (size_t)n*C;
            for (int c = from; c < C && c < from + WIDE; c++) w[c] += R(d[c]);
        }
}

PART(embed) { d->embed_forward = embed_forward; d->embed_backward = embed_backward; }
