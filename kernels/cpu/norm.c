/* norm.c: RMSNorm. out_c = w_c x_c r with r = (mean(x^2) + eps)^(-1/2), so dr/dx_c = -r^3 x_c / C.
 * Hence, with u = w dout, as in smoe.c:
 *     dx_c += r u_c - r^3 / C <u, x> x_c          dw_c += sum over rows of dout_c x_c r */
#include "impl.h"

static void rmsnorm_forward(floatX *out, real *rstd, const floatX *inp, Norm norm, int N, int C) {
    enum { CHUNK = 256 };
    const floatX *weight = norm.weight;
    #pragma omp parallel for PARALLEL_IF((size_t)N*C)
    for (int n = 0; n < N; n++) {
        const floatX *x = inp + (size_t)n*C;
        floatX *y = out + (size_t)n*C;
        real sum = 0;
        for (int from = 0; from < C; from += CHUNK) {               /* sums of CHUNK elements, then of these */
            const int to = C - from < CHUNK ? C : from + CHUNK;
            real chunk = 0;
            #pragma omp simd reduction(+:chunk)
            for (int c = from; c < to; c++) chunk += R(x[c]) * R(x[c]);
            sum += chunk;
        }
        real r = rstd[n] = 1 / sqrt(sum / C + (real)norm.eps);
        for (int c = 0; c < C; c++) y[c] = X(R(X(R(x[c]) * r)) * R(weight[c]));
    }
}

/* dweight: each block of ROWS rows has a partial sum; these are added in order. */
static void rmsnorm_backward(floatX *dinp, real *dweight, const floatX *dout, const floatX *inp, Norm norm,
                             const real *rstd, int N, int C) {
    enum { ROWS = 64 };
    const floatX *weight = norm.weight;
    int blocks = (N + ROWS - 1) / ROWS;
    real *partial = zeroed_scratch((size_t)blocks*C * sizeof *partial);
    #pragma omp parallel for PARALLEL_IF((size_t)N*C)
    for (int b = 0; b < blocks; b++) {
        real *sum = partial + (size_t)b*C;
        for (int n = b * ROWS; n < N && n < (b + 1) * ROWS; n++) {
            const floatX *x = inp + (size_t)n*C, *dy = dout + (size_t)n*C;
            floatX *dx = dinp + (size_t)n*C;
            real r = rstd[n], dot = 0;
            #pragma omp simd reduction(+:dot)
            for (int c = 0; c < C; c++) dot += R(dy[c]) * R(weight[c]) * R(x[c]);
            real k = r * r * r / C * dot;
            for (int c = 0; c < C; c++) {
                dx[c] = X(R(dx[c]) + (r * R(dy[c]) * R(weight[c]) - k * R(x[c])));
                sum[c] += R(dy[c]) * R(X(R(x[c]) * r));
            }
        }
    }
    for (int b = 0; b < blocks; b++) for (int c = 0; c < C; c++) dweight[c] += partial[(size_t)b*C + c];
    free(partial);
}

PART(norm) { d->rmsnorm_forward = rmsnorm_forward; d->rmsnorm_backward = rmsnorm_backward; }
