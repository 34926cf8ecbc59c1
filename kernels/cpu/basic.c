/* basic.c: memory, embedding, norm, rotary positions, residual and dropout; and the device table itself. */
#define _DEFAULT_SOURCE
#include "impl.h"
#include "kernels/compound.h"
#include "kernels/random.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

/* ---- memory: a CPU's memory is the host's -------------------------------------------------------------- */

static const char *open_device(int which) { (void)which; return NULL; }
static int count(void) { return 1; }
/* Large blocks ask for large pages: walking weights then needs a five-hundredth of the address translations. */
static void *alloc(size_t bytes) {
    const size_t align = bytes < HUGE_PAGE ? 256 : HUGE_PAGE;
    void *p = bytes < SIZE_MAX - 2 * align ? aligned_alloc(align, (bytes + align) / align * align) : NULL;
#if defined(MADV_HUGEPAGE)
    if (p && align == HUGE_PAGE) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p ? memset(p, 0, bytes) : NULL;
}
static void release(void *p) { free(p); }
static size_t memory(void) {
#if defined(_SC_AVPHYS_PAGES)
    long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : 0;
#else
    return 0;
#endif
}
static void copy(void *dst, const void *src, size_t bytes) { if (bytes) memcpy(dst, src, bytes); }

static _Thread_local Waits waited;              /* nothing to wait for here; counted so that a CPU can test who would */
static Waits waits(void) { return waited; }
static void count_sync(void) { waited.syncs++; }
static void download(void *host, const void *src, size_t bytes) {
    waited.reads++;
    copy(host, src, bytes);
}
static _Thread_local void *posted[2];
static void post(int slot, const void *src, size_t bytes) {
    free(posted[slot]);
    copy(posted[slot] = malloc(bytes + 1), src, bytes);
}
static void collect(void *host, int slot, size_t bytes) {
    waited.reads++;
    copy(host, posted[slot], bytes);
}
static void zero(void *dst, size_t bytes) { if (bytes) memset(dst, 0, bytes); }
static void from_double(floatX *dst, const double *host, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = X((real)host[i]);
}
static void to_double(double *host, const floatX *src, size_t n) {
    waited.reads++;
    for (size_t i = 0; i < n; i++) host[i] = (double)R(src[i]);
}
static void reals_from_double(real *dst, const double *host, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = (real)host[i];
}
static void reals_to_double(double *host, const real *src, size_t n) {
    waited.reads++;
    for (size_t i = 0; i < n; i++) host[i] = (double)src[i];
}

/* ---- embedding: a row is looked up, so its gradient goes back to that row ------------------------------ */

static void embed_forward(floatX *out, const int *token, const floatX *weight, int N, int C) {
    for (int n = 0; n < N; n++) memcpy(out + (size_t)n*C, weight + (size_t)token[n]*C, (size_t)C * sizeof(floatX));
}

/* Threads take columns, not tokens: two tokens may share a row, two columns never
 * do, and the order of the sum stays. */
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

/* ---- rmsnorm ----------------------------------------------------------------------------------------------
 * y_c = w_c x_c r with r = (mean(x^2) + eps)^(-1/2), so dr/dx_c = -r^3 x_c / C, and with g_c = dy_c w_c
 *     dx_c = r g_c - r^3 x_c / C * sum_i g_i x_i          dw_c = sum over rows of dy_c x_c r. */

static void rmsnorm_forward(floatX *out, real *rstd, const floatX *inp, Norm norm, int N, int C) {
    enum { FEW = 256 };
    const floatX *weight = norm.weight;
    #pragma omp parallel for PARALLEL_IF((size_t)N*C)
    for (int n = 0; n < N; n++) {
        const floatX *x = inp + (size_t)n*C;
        floatX *y = out + (size_t)n*C;
        real squares = 0;
        for (int from = 0; from < C; from += FEW) {                 /* sums of a few, and of those */
            const int to = C - from < FEW ? C : from + FEW;
            real few = 0;
            #pragma omp simd reduction(+:few)
            for (int c = from; c < to; c++) few += R(x[c]) * R(x[c]);
            squares += few;
        }
        real r = rstd[n] = 1 / sqrt(squares / C + (real)norm.eps);
        for (int c = 0; c < C; c++) y[c] = X(R(X(R(x[c]) * r)) * R(weight[c]));
    }
}

/* dweight: each block of ROWS rows makes a partial sum of its own, and the partial sums are added in order. */
static void rmsnorm_backward(floatX *dinp, real *dweight, const floatX *dout, const floatX *inp, Norm norm,
                             const real *rstd, int N, int C) {
    enum { ROWS = 64 };
    const floatX *weight = norm.weight;
    int blocks = (N + ROWS - 1) / ROWS;
    real *partial = calloc((size_t)blocks*C + 1, sizeof *partial);
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
    for (int b = 0; b < blocks; b++)
        for (int c = 0; c < C; c++) dweight[c] += partial[(size_t)b*C + c];
    free(partial);
}

/* ---- rope: pair (i, i + D/2) turns by the angle position * theta^(-2i/D) -----------------------------------
 * A rotation's transpose is its inverse, so the backward is the same turn the other way. */

static void rope_table(real *table, float theta, int T, int D) {
    for (int t = 0; t < T; t++)
        for (int i = 0; i < D / 2; i++) {
            double angle = (double)t * pow((double)theta, -2.0 * i / D);
            table[((size_t)t * (D/2) + i) * 2]     = (real)cos(angle);
            table[((size_t)t * (D/2) + i) * 2 + 1] = (real)sin(angle);
        }
}
static void rope(floatX *x, const real *table, const int *position, int direction, int N, int stride, int heads,
                 int D) {
    #pragma omp parallel for PARALLEL_IF((size_t)N * heads * D)
    for (int n = 0; n < N; n++) {
        const real *turn = table + (size_t)position[n] * D;
        for (int h = 0; h < heads; h++) {
            floatX *low = x + (size_t)n*stride + h*D, *high = low + D/2;
            for (int i = 0; i < D/2; i++) {
                real cosine = turn[2*i], sine = direction * turn[2*i + 1], a = R(low[i]), b = R(high[i]);
                low[i]  = X(a * cosine - b * sine);
                high[i] = X(b * cosine + a * sine);
            }
        }
    }
}

/* ---- residual and dropout ---------------------------------------------------------------------------------
 * The mask is a hash of (key, site, i): nothing is stored, backward asks again, and no device or thread count changes
 * it. A number of 16 bits decides. */

static inline int kept(uint64_t key, uint64_t i, uint32_t least) { return random_16(key, i) >= least; }
typedef struct { uint64_t key; uint32_t least; real scale; } Mask;           /* least 0: everything is kept, unscaled */
static Mask mask_of(Dropout d) {
    const uint32_t least = (uint32_t)((double)d.p * 65536);
    return (Mask){ least ? random_key(*d.key, (uint64_t)d.site) : 0, least, (real)1 / ((real)1 - (real)d.p) };
}
static void dropout(floatX *out, const floatX *inp, Dropout d, size_t n) {
    const Mask m = mask_of(d);
    #pragma omp parallel for PARALLEL_IF(n)
    for (size_t i = 0; i < n; i++) out[i] = X(kept(m.key, i, m.least) ? R(inp[i]) * m.scale : 0);
}
static void residual(floatX *out, const floatX *residual, const floatX *branch, Dropout d, size_t n) {
    const Mask m = mask_of(d);
    #pragma omp parallel for PARALLEL_IF(n)
    for (size_t i = 0; i < n; i++) {
        const int stays = m.least == 0 || kept(m.key, i, m.least);
        out[i] = X(R(residual[i]) + (stays ? R(branch[i]) * m.scale : 0));
    }
}

/* ---- bias: added to every row, so its gradient is the sum over rows ------------------------------------ */

static void bias_backward(real *dbias, const floatX *dout, int N, int C) {
    enum { WIDE = 16 };
    #pragma omp parallel for PARALLEL_IF((size_t)N*C)
    for (int from = 0; from < C; from += WIDE)
        for (int n = 0; n < N; n++)
            for (int c = from; c < C && c < from + WIDE; c++) dbias[c] += R(dout[(size_t)n*C + c]);
}

void DEVICE(matmul)(Device *d);
void DEVICE(route)(Device *d);
void DEVICE(expert)(Device *d);
void DEVICE(attention)(Device *d);
void DEVICE(optimizer)(Device *d);
void DEVICE(muon)(Device *d);
void DEVICE(loopback)(Device *d);
void DEVICE(sample)(Device *d);
PART(device) {
    *d = (Device){
        .name = DEVICE_NAME, .dtype = DEVICE_DTYPE, .floatX_size = sizeof(floatX), .real_size = sizeof(real),
        .open = open_device, .count = count, .alloc = alloc, .release = release, .memory = memory,
        .upload = copy, .download = download, .copy = copy, .zero = zero, .sync = count_sync, .waits = waits,
        .post = post, .collect = collect,
        .from_double = from_double, .to_double = to_double,
        .reals_from_double = reals_from_double, .reals_to_double = reals_to_double,
        .embed_forward = embed_forward, .embed_backward = embed_backward,
        .rmsnorm_forward = rmsnorm_forward, .rmsnorm_backward = rmsnorm_backward,
        .rope_table = rope_table, .rope = rope, .residual = residual, .dropout = dropout,
        .bias_backward = bias_backward,
        .expert_up_forward = compound_expert_up_forward, .expert_down_backward = compound_expert_down_backward,
        .add_norm_forward = compound_add_norm_forward, .add_norm_backward = compound_add_norm_backward,
        .decode_fits = compound_decode_fits,
    };
    DEVICE(matmul)(d);
    DEVICE(route)(d);
    DEVICE(expert)(d);
    DEVICE(attention)(d);
    DEVICE(optimizer)(d);
    DEVICE(muon)(d);
    DEVICE(loopback)(d);
    DEVICE(sample)(d);
}
