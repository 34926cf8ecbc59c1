// dropout.cu: the residual stream, and dropout.
#include "dropout.cuh"

// A thread has DROP_EACH packs of W. residual NULL: dropout alone. Moves 3*n elements, or 2*n.
enum { DROP_EACH = 2, DROP_THREADS = 256 };
template<int W> static __global__ void drop_kernel(floatX *out, const floatX *residual, const floatX *branch,
        Mask dropout, size_t n) {
    enum { STEP = DROP_THREADS * W };
    const size_t first = (size_t)blockIdx.x * DROP_EACH * STEP + threadIdx.x * W, full = n / W * W;
    const int count = first >= full ? 0 : min((full - first + STEP - 1) / STEP, (size_t)DROP_EACH);
    Pack<W> x[DROP_EACH], old[DROP_EACH];
    #pragma unroll
    for (int k = 0; k < DROP_EACH; k++) if (k < count) x[k] = load<W>(branch + first + k*STEP);
    #pragma unroll
    for (int k = 0; k < DROP_EACH; k++) if (k < count && residual) old[k] = load<W>(residual + first + k*STEP);
    const uint64_t key = drop_key(dropout);
    #pragma unroll
    for (int k = 0; k < DROP_EACH; k++) if (k < count) {
        Reals<W> y = unpack(x[k]);
        drop<W>(y.x, dropout, key, first + k*STEP);
        if (residual) for (int i = 0; i < W; i++) y.x[i] += unpack(old[k]).x[i];
        store(out + first + k*STEP, pack(y));
    }
    const size_t rest = full + global_index();              // the last few
    if (rest < n) {
        real sum = R(branch[rest]);
        drop<1>(&sum, dropout, key, rest);
        out[rest] = X(residual ? R(residual[rest]) + sum : sum);
    }
}
static void residual(floatX *out, const floatX *residual, const floatX *branch, Dropout d, size_t n) {
    const bool w = wide(0, out, residual, branch);
    auto kernel = w ? drop_kernel<VECTOR> : drop_kernel<1>;
    LAUNCH(kernel, divide_up(n, DROP_THREADS * DROP_EACH * (w ? VECTOR : 1)), DROP_THREADS, 0, out, residual, branch,
           mask_of(d), n);
}
static void dropout(floatX *out, const floatX *inp, Dropout d, size_t n) { residual(out, NULL, inp, d, n); }
static void scale(floatX *x, double factor, size_t n) { dropout(x, x, { 0, NULL, 0, factor }, n); }

PART(dropout) { d->residual = residual; d->dropout = dropout; d->scale = scale; }
