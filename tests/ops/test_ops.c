/* test_kernels.c: is every operation of every CPU device right? Over all cases of cases.c:
 *
 *   cpu-f64 against loops      each operation once more, by its definition in kernels.h, as naively as can be (below)
 *   cpu-f64 against itself     every backward against finite differences of its forward
 *   cpu-f64 against PyTorch    tests/reference/ops.safetensors, written by tests/reference.py
 *   others against cpu-f64     within the bound of kernels.h, or bit for bit where the inputs make sums exact
 *   all                        outputs that start as NaN are all written, inputs and the bytes around buffers are not,
 *                              one thread and two give the same bits, arguments that may be the same pointer can be
 *
 * -q keeps the small shapes: enough for mutate.py to tell right from wrong. Of a GPU it keeps one shape that divides nothing,
 * those that all fast kernels can take, and the special ones, and runs each case once: enough for a sanitizer to have
 * seen every kernel. */
#include "tests/test.h"
#include "cases.h"
#include "kernels/ladder/ladder.h"
#include "llmc/model/model.h"
#include "llmc/base/random.h"
#include "llmc/files/safetensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_OPENMP)
#include <omp.h>
#else
static void omp_set_num_threads(int n) { (void)n; }
static int omp_get_max_threads(void) { return 1; }
#endif

/* B T C V E K F G Q D. The odd ones divide nothing; `one` is larger than any tile or
 * block of a product in every direction. */
static const Shape small[] = {
    { "smallest",   1,  1,   1,   1,  1, 1,   1, 1, 1,  2, MIXED },
    { "none",       0,  5,   7,  11,  3, 2,   5, 2, 2,  4, MIXED },
    { "odd",        3, 11,  23,  53,  7, 3,  19, 3, 3,  6, MIXED },
    { "all chosen", 1,  9,  12,  30,  4, 4,   8, 1, 4,  8, MIXED },
    { "one expert", 2,  7,  10,  21,  1, 1,  13, 2, 1,  4, MIXED },
    { "half empty", 2,  4,  18,  40, 12, 2,  21, 2, 2,  6, HALF },
    { "wide",       1, 47,  75,  90,  3, 2,  70, 2, 2, 18, MIXED },
    { "long",      60, 10,   3,   7,  2, 1, 300, 1, 1,  2, ONE },        /* longer sums than a block of a product's */
}, large[] = {
    { "one",        1, 301, 261, 150,  5, 1,  67, 2, 1, 34, ONE },
    { "ladder",     8,  73,  37,  97,  9, 1,  21, 1, 2, 10, LADDER },
    { "real",       2, 128, 128, 256,  8, 2, 128, 2, 2, 32, MIXED },
}, tiles[] = {                                   /* for the ladder: rows of 16 bytes, several tiles, full and not, on all sides */
    { "tiles",      1, 200, 128,  40,  2, 2, 136, 1, 3, 128, MIXED },
    { "tiles",      8,  73, 264,  40,  9, 1,  72, 2, 2, 72, LADDER },
};
enum { SMALL = sizeof small / sizeof *small, LARGE = sizeof large / sizeof *large, TILES = sizeof tiles / sizeof *tiles };

/* Sizes that single operations treat in another way (`only`: how their names begin): rows as wide as a GPU's block of
 * threads and wider, more rows than all its blocks take at a time, tails of vectors, tokens enough for a lane each, more
 * tiles than blocks and some of them without rows. */
static const struct { Shape s; const char *only; } special[] = {
    { { "tall",      1, 4200,   136,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm" },
    { { "full",      1,   37,  4096,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm" },
    { { "over",      1,   35,  4104,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm" },
    { { "widest",    1,    5,  8192,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm_backward" },
    { { "beyond",    1,    5,  8200,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm_backward" },
    { { "odd row",   1,  700,  1027,      5,   1,  1,   1, 1, 1, 2, MIXED }, "rmsnorm" },
    { { "tall",      1, 4200,   264,      5,   1,  1,   1, 1, 1, 2, MIXED }, "bias_backward" },
    { { "K = 7",     1, 2700,   136,      5,  16,  7,   1, 1, 1, 2, MIXED }, "join" },
    { { "full",      1,   37,  4096,      5,   3,  2,   1, 1, 1, 2, MIXED }, "join" },
    { { "widest",    1,    5,  8192,      5,   3,  2,   1, 1, 1, 2, MIXED }, "join" },
    { { "beyond",    1,    5,  8200,      5,   3,  2,   1, 1, 1, 2, MIXED }, "join" },
    { { "odd row",   1,  700,  1027,      5,   3,  2,   1, 1, 1, 2, MIXED }, "join" },
    { { "text",      1, 4200,    24,  50304,   1,  1,   1, 1, 1, 2, MIXED }, "embed" },
    { { "odd text",  1, 1000,     9,  50304,   1,  1,   1, 1, 1, 2, MIXED }, "embed" },
    { { "wide text", 1,  330,  2056,    700,   1,  1,   1, 1, 1, 2, MIXED }, "embed" },
    { { "tokens",    1, 2100,     4,      5, 136,  8,   1, 1, 1, 2, MIXED }, "route" },
    { { "fine",      1, 2048,     4,      5, 264, 10,   1, 1, 1, 2, MIXED }, "route" },
    { { "odd E",     1, 2077,     4,      5,  67,  3,   1, 1, 1, 2, MIXED }, "route" },
    { { "all of E",  1, 2500,     4,      5,   8,  8,   1, 1, 1, 2, MIXED }, "route" },
    { { "one of E", 40,  110,     4,      5,  40,  1,   1, 1, 1, 2, ONE   }, "route_plan" },
    { { "skewed",    1, 2100,     4,      5,  40,  2,   1, 1, 1, 2, HALF  }, "route_round" },
    { { "whole",     3,  256,   136,      5,   5,  1, 128, 1, 1, 2, IN_TILES }, "parallel_linear" },
    { { "whole",     3,  256,   136,      5,   5,  1, 128, 1, 1, 2, IN_TILES }, "expert" },
    { { "varied",    3,   70,   264,      5,  16,  7,  72, 1, 1, 2, VARIED }, "combine" },
    { { "varied",    3,   70,   264,      5,  16,  7,  72, 1, 1, 2, VARIED }, "join" },
    { { "varied",    3,   70,     4,      5,  16,  7,  72, 1, 1, 2, VARIED }, "activation_backward" },
    { { "varied",    3,   70,     4,      5,  70,  7,   1, 1, 1, 2, VARIED }, "router_backward" },
    { { "varied",    3,   70,    40,      5,   6,  5,  64, 1, 1, 2, VARIED }, "parallel_linear" },
    { { "varied",    3,   70,    40,      5,   6,  5,  64, 1, 1, 2, VARIED }, "expert" },
    { { "many",      1, 1100,   72,      5, 150,  2,  64, 1, 1, 2, MIXED }, "parallel_linear_forward" },
    { { "many",      1, 1100,   72,      5, 150,  2,  64, 1, 1, 2, MIXED }, "expert" },
    { { "K = 11",    1,   70,   264,      5,  16, 11,   1, 1, 1, 2, MIXED }, "combine" },
    { { "K = 16",    1,   70,   264,      5,  24, 16,   1, 1, 1, 2, MIXED }, "combine" },
    { { "F = 8",     1,  501,     4,      5,   5,  3,   8, 1, 1, 2, MIXED }, "activation" },
    { { "F = 72",    1,  501,     4,      5,   5,  3,  72, 1, 1, 2, MIXED }, "activation" },
    { { "F = 128",   1,  501,     4,      5,   5,  3, 128, 1, 1, 2, MIXED }, "activation" },
    { { "F = 2064",  1,   50,     4,      5,   5,  3, 2064, 1, 1, 2, MIXED }, "activation" },
    { { "GPT-2",     1,    6,     4,  50304,   1,  1,   1, 1, 1, 2, MIXED }, "cross_entropy" },
    { { "Qwen",      1,    4,     4, 151936,   1,  1,   1, 1, 1, 2, MIXED }, "cross_entropy" },
    { { "odd V",     1,    6,     4,  30001,   1,  1,   1, 1, 1, 2, MIXED }, "cross_entropy" },
    { { "matrices",  1,   1,   512,      5,   3,  1, 256, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "matrices",  1,   1,   256,      5,   2,  1, 256, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "matrices",  1,   1,   328,      5,   2,  1, 256, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "matrices",  1,   1,   328,      5,   7,  1, 256, 1, 1, 2, MIXED }, "muon" },
    { { "matrices",  1,   1,   264,      5,   3,  1, 136, 1, 1, 2, MIXED }, "orthogonalize" },
    { { "cache",    40,   10,     4,      5,   1,  1,   1, 3, 1, 24, MIXED }, "cache" },
    { { "heads 64",   2, 215,   6,   9,  3, 1,   5, 2, 3,  64, MIXED }, "attention" },
    { { "heads 64",   1, 129,   6,   9,  3, 1,   5, 1, 8,  64, MIXED }, "attention" },
    { { "heads 128",  3, 390,   6,   9,  3, 1,   5, 3, 1, 128, MIXED }, "attention" },
    { { "heads 128",  2,  65,   6,   9,  3, 1,   5, 2, 2, 128, MIXED }, "attention" },
};
enum { SPECIAL = sizeof special / sizeof *special };

/* ---- the definitions, as loops in double ---------------------------------------------------------------------
 * v[i] is buffer i of the case; an output it leaves NULL is not compared. */

static int K_of(const Case *c) { return c->s.K; }
static int expert_of(const Case *c, double **v, int slot) {
    int e = 0;
    while (v[c->plan + 3][slot] >= v[c->plan][e + 1]) e++;
    return e;
}
static size_t place(const Case *c, double **v, int slot, Rows rows) {
    return (size_t)(rows == BY_TOKEN ? slot / K_of(c) : rows == BY_SLOT ? slot : (int)v[c->plan + 3][slot]);
}
static void naive_embed_forward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) for (int i = 0; i < c->C; i++) v[0][n*c->C + i] = v[2][(int)v[1][n]*c->C + i];
}
static void naive_embed_backward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) for (int i = 0; i < c->C; i++) v[0][(int)v[2][n]*c->C + i] += v[1][n*c->C + i];
}
static void naive_rmsnorm_forward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) {
        double mean = 0;
        for (int i = 0; i < c->C; i++) mean += v[2][n*c->C + i] * v[2][n*c->C + i] / c->C;
        v[1][n] = 1 / sqrt(mean + (double)c->eps);
        for (int i = 0; i < c->C; i++) v[0][n*c->C + i] = v[2][n*c->C + i] * v[1][n] * v[3][i];
    }
}
static void naive_rope_table(const Case *c, double **v) {
    for (int t = 0; t < c->s.T; t++)
        for (int i = 0; i < c->s.D/2; i++) {
            double angle = t / pow(10000, 2.0 * i / c->s.D);
            v[0][t*c->s.D + 2*i] = cos(angle);
            v[0][t*c->s.D + 2*i + 1] = sin(angle);
        }
}
/* The complex number x_i + j x_(i+D/2) times cos + j sin; the conjugate turns it back. */
static void naive_rope(const Case *c, double **v) {
    const int half = c->s.D / 2;
    for (int n = 0; n < c->N; n++)
        for (int h = 0; h < c->heads; h++)
            for (int i = 0; i < half; i++) {
                const double *turn = v[1] + (int)v[2][n] * c->s.D + 2*i;
                double *re = v[0] + n*c->stride + h*c->s.D + i, *im = re + half, a = *re, b = *im;
                *re = a * turn[0] - b * turn[1] * c->direction;
                *im = a * turn[1] * c->direction + b * turn[0];
            }
}
/* Element i is kept if its quarter of splitmix64's number i / 4 is large enough. Seeded with 0, the first number is known. */
static uint64_t splitmix64(uint64_t state) {
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
    state = (state ^ state >> 27) * 0x94D049BB133111EBu;
    return state ^ state >> 31;
}
static double dropped(const Case *c, size_t i, double x) {
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    const uint64_t here = splitmix64(splitmix64(c->key + ((uint64_t)c->site + 1) * golden) + 0x6D6F66 * golden);
    const uint64_t four = splitmix64(here + (i / 4 + 1) * golden);
    double draw = (double)(four / (uint64_t)pow(2, i % 4 * 16.0) % 65536);
    return draw < floor((double)c->p * 65536) ? 0 : x / (1 - (double)c->p);
}
static void naive_residual(const Case *c, double **v) {
    for (size_t i = 0; i < c->buffer[0].n; i++) v[0][i] = v[1][i] + dropped(c, i, v[2][i]);
}
static void naive_dropout(const Case *c, double **v) {
    for (size_t i = 0; i < c->buffer[0].n; i++) v[0][i] = dropped(c, i, v[1][i]);
}
/* x += a b over the three indices of a product: what matmul and ParallelLinear have in common. */
static void row_times_weight(double *y, const double *x, const double *weight, int C, int O) {
    for (int o = 0; o < O; o++) for (int i = 0; i < C; i++) y[o] += x[i] * weight[o*C + i];
}
static void row_times_transposed(double *dx, const double *dy, const double *weight, int C, int O) {
    for (int o = 0; o < O; o++) for (int i = 0; i < C; i++) dx[i] += dy[o] * weight[o*C + i];
}
static void outer_product(double *dweight, const double *dy, const double *x, int C, int O) {
    for (int o = 0; o < O; o++) for (int i = 0; i < C; i++) dweight[o*C + i] += dy[o] * x[i];
}
static void naive_matmul_forward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) row_times_weight(v[0] + n*c->O, v[1] + n*c->C, v[2], c->C, c->O);
}
static void naive_matmul_backward_input(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) row_times_transposed(v[0] + n*c->C, v[1] + n*c->O, v[2], c->C, c->O);
}
static void naive_matmul_backward_weight(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) outer_product(v[0], v[1] + n*c->O, v[2] + n*c->C, c->C, c->O);
}
static void naive_parallel_linear_forward(const Case *c, double **v) {
    const size_t C = (size_t)c->C, O = (size_t)c->O;
    for (int s = 0; s < c->S; s++) {
        const size_t e = (size_t)expert_of(c, v, s);
        double *y = v[0] + place(c, v, s, c->to) * O;
        row_times_weight(y, v[1] + place(c, v, s, c->from) * C, v[2] + e*O*C, c->C, c->O);
    }
}
static void naive_parallel_linear_backward_input(const Case *c, double **v) {
    const size_t C = (size_t)c->C, O = (size_t)c->O;
    for (int s = 0; s < c->S; s++)
        row_times_transposed(v[0] + place(c, v, s, c->to) * C, v[1] + place(c, v, s, c->from) * O,
                             v[2] + (size_t)expert_of(c, v, s)*O*C, c->C, c->O);
}
static void naive_parallel_linear_backward_weight(const Case *c, double **v) {
    const size_t C = (size_t)c->C, O = (size_t)c->O;
    for (int s = 0; s < c->S; s++) {
        const size_t e = (size_t)expert_of(c, v, s);
        outer_product(v[0] + e*O*C, v[1] + place(c, v, s, c->to) * O, v[2] + place(c, v, s, c->from) * C, c->C, c->O);
    }
}
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static void naive_router_forward(const Case *c, double **v) {
    const int E = c->s.E, K = c->s.K;
    for (int n = 0; n < c->N; n++) {
        const double *x = v[3] + n*E;
        double sum = 0, kept = 0;
        for (int e = 0; e < E; e++) sum += exp(x[e]);
        v[2][n] = log(sum);
        for (int e = 0; e < E; e++) {                       /* its rank: how many are before it */
            int rank = 0;
            for (int i = 0; i < E; i++) {
                double a[2] = { x[e], x[i] };
                for (int j = 0; j < 2; j++) {
                    if (c->scores == SOFTMAX_TOPK) a[j] = exp(a[j]) / sum;
                    if (c->scores == SIGMOID_TOPK) a[j] = sigmoid(a[j]);
                    if (v[4]) a[j] += v[4][j ? i : e];
                }
                rank += a[1] > a[0] || (a[1] == a[0] && i < e);
            }
            if (rank < K && !c->forced) v[0][n*K + rank] = e;
        }
        for (int k = 0; k < K; k++) {
            if (c->forced) v[0][n*K + k] = (n*K + k) % E;
            double l = x[(int)v[0][n*K + k]];
            v[1][n*K + k] = c->scores == SIGMOID_TOPK ? sigmoid(l) : exp(l);
            kept += v[1][n*K + k];
        }
        for (int k = 0; k < K; k++) v[1][n*K + k] /= c->scores == SOFTMAX_TOPK ? sum : kept;
    }
}
static void naive_router_losses(const Case *c, double **v) {
    const int E = c->s.E;
    for (int n = 0; n < c->N; n++) {
        double sum = 0, all = 0;
        for (int e = 0; e < E; e++) { sum += sigmoid(v[1][n*E + e]); all += exp(v[1][n*E + e]); }
        for (int e = 0; e < E; e++) {
            double p = c->scores == SIGMOID_TOPK ? sigmoid(v[1][n*E + e]) / sum : exp(v[1][n*E + e]) / all;
            v[0][0] += (double)E / c->s.K * v[3][e] / c->tokens * p / c->N;
        }
        v[0][1] += pow(log(all), 2) / c->N;
    }
}
static void naive_route_plan(const Case *c, double **v) {
    int row = 0;
    for (int e = 0; e < c->s.E; e++) {
        v[0][e] = row;
        for (int s = 0; s < c->S; s++)
            if ((int)v[5][s] == e) { v[1][row] = s; v[2][row] = s / K_of(c); v[3][s] = row++; v[4][e]++; }
    }
    v[0][c->s.E] = row;
}
/* Of every expert's tokens, those are kept before which there are fewer than it is to have. */
static float score_of(const Case *c, double **v, int n, int e) {
    float score = (float)(v[9][n*c->s.E + e] - (c->scores == SIGMOID_TOPK ? 0 : v[10][n]));
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    bits &= ~1u;
    memcpy(&score, &bits, sizeof score);
    return score;
}
static int chose(const Case *c, double **v, int n, int e) {
    int yes = 0;
    for (int k = 0; k < K_of(c); k++) yes |= (int)v[8][n*K_of(c) + k] == e;
    return yes;
}
static void naive_route_round(const Case *c, double **v) {
    const int E = c->s.E, N = c->N, T = c->tile;
    const uint64_t draws = splitmix64(splitmix64(c->key + ((uint64_t)c->site + 1) * 0x9E3779B97F4A7C15u)
                                      + 0x6D6F66 * 0x9E3779B97F4A7C15u);
    int *rank = mem_alloc(((size_t)N + 1) * sizeof *rank), error = 0, row = 0, slot = 0;
    char *kept = mem_alloc((size_t)N * (size_t)E + 1);
    for (int e = 0; e < E; e++) {
        double lost = 0, gained = 0;
        int f = 0, rows;
        for (int n = 0; n < N; n++) f += chose(c, v, n, e);
        const int lo = f / T * T, hi = (f + T - 1) / T * T;
        for (int n = 0; n < N; n++) {
            const int mine = chose(c, v, n, e);
            const double p = c->scores == SIGMOID_TOPK ? sigmoid(v[9][n*E + e]) : exp(v[9][n*E + e] - v[10][n]);
            rank[n] = 0;
            for (int i = 0; i < N; i++) {
                const int its = chose(c, v, i, e);
                const float a = score_of(c, v, i, e), b = score_of(c, v, n, e);
                rank[n] += its > mine || (its == mine && (a > b || (a == b && i < n)));
            }
            if (rank[n] >= lo && rank[n] < hi) { if (mine) lost += p; else gained += p; }
        }
        const double u = (double)(splitmix64(draws + ((uint64_t)e + 1) * 0x9E3779B97F4A7C15u) >> 11) / 9007199254740992.0;
        switch (c->rule) {
        case ROUND_NEAREST:    rows = hi - f < f - lo ? hi : lo; break;
        case ROUND_STOCHASTIC: rows = f > lo && floor(u * T) >= hi - f ? hi : lo; break;
        case ROUND_SCORE:      rows = u * (lost + gained) < lost ? hi : lo; break;
        case ROUND_BALANCED:   rows = abs(error + hi - f) < abs(error + lo - f) ? hi : lo; break;
        case ROUND_UP:         rows = hi; break;
        default:               rows = lo;
        }
        if (hi > N) rows = f; else error += rows - f;
        v[0][e] = row;
        v[5][e] = f;
        for (int n = 0; n < N; n++) if (rank[n] < rows) { v[2][row++] = n; kept[n*E + e] = 1; }
    }
    v[0][E] = row;
    for (int n = 0; n < N; n++) {
        double sum = 0;
        v[4][n] = slot;
        for (int e = 0; e < E; e++) {
            if (!kept[n*E + e]) continue;
            for (row = (int)v[0][e]; (int)v[2][row] != n; row++);
            v[1][row] = slot;
            v[3][slot] = row;
            v[6][slot] = e;
            sum += v[7][slot++] = c->scores == SIGMOID_TOPK ? sigmoid(v[9][n*E + e]) : exp(v[9][n*E + e] - v[10][n]);
        }
        for (int s = (int)v[4][n]; s < slot && c->scores != SOFTMAX_TOPK; s++) v[7][s] /= sum;
    }
    v[4][N] = slot;
    free(rank);
    free(kept);
}
static void naive_router_bias(const Case *c, double **v) {
    for (int e = 0; e < c->s.E; e++) {
        double more = v[1][e] * c->s.E - c->S;              /* than the mean, in whole numbers */
        v[0][e] += more < 0 ? (double)c->rate : more > 0 ? -(double)c->rate : 0;
    }
}
static void naive_combine_forward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++)
        for (int i = 0; i < c->C; i++) {
            double sum = v[3] ? v[3][i] : 0;
            for (int s = n * K_of(c); s < (n + 1) * K_of(c); s++)
                sum += (v[2] ? v[2][s] : 1) * v[1][place(c, v, s, c->from) * (size_t)c->C + (size_t)i];
            v[0][n*c->C + i] = sum;
        }
}
static double activate(Activation f, const double *pre, int F) {
    double x = *pre;
    switch (f) {
    case SWIGLU: return x * sigmoid(x) * pre[F];
    case GELU:   return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case RELU2:  return x > 0 ? x * x : 0;
    default:     return x;
    }
}
static void naive_activation_forward(const Case *c, double **v) {
    for (int m = 0; m < c->M; m++)
        for (int i = 0; i < c->F; i++)
            v[0][m*c->F + i] = activate(c->f, v[1] + m*c->F * (c->f == SWIGLU ? 2 : 1) + i, c->F);
}
static void naive_activation_backward(const Case *c, double **v) {
    free(v[0]), v[0] = NULL;                                /* dpre is left to finite differences */
    for (int m = 0; m < c->M; m++) {
        int slot = v[2] && c->from == GROUPED ? (int)v[c->plan + 1][m] : m;
        for (int i = 0; i < c->F; i++) {
            double act = activate(c->f, v[4] + m*c->F * (c->f == SWIGLU ? 2 : 1) + i, c->F);
            v[1][m*c->F + i] = (v[5] ? v[5][slot] : 1) * act;
            if (v[2]) v[2][slot] += v[3][m*c->F + i] * act;
        }
    }
}
static void naive_bias_backward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) for (int i = 0; i < c->C; i++) v[0][i] += v[1][n*c->C + i];
}
/* One query (D) over the first `seen` positions of the keys and values of head h; returns the log of the sum. */
static double attend(const Case *c, double *y, const double *q, const double *kv, int h, int seen) {
    const int G = c->s.G, D = c->s.D, g = c->order == HEADS_TILED ? h % G : h / c->s.Q;
    double total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < seen; j++) {
            const double *k = kv + j*2*G*D + g*D, *value = k + G*D;
            double dot = 0;
            for (int d = 0; d < D; d++) dot += q[d] * k[d] / sqrt(D);
            if (!pass) total += exp(dot);
            else for (int d = 0; d < D; d++) y[d] += exp(dot) / total * value[d];
        }
    return log(total);
}
static void naive_attention_forward(const Case *c, double **v) {
    const int H = c->s.Q * c->s.G, D = c->s.D;
    for (int b = 0; b < c->s.B; b++)
        for (int t = 0; t < c->s.T; t++)
            for (int h = 0; h < H; h++) {
                int at = (b*c->s.T + t)*H + h;
                v[1][at] = attend(c, v[0] + at*D, v[2] + at*D, v[3] + b*c->s.T*2*c->s.G*D, h, t + 1);
            }
}
static void naive_attention_cached(const Case *c, double **v) {
    const int H = c->s.Q * c->s.G, D = c->s.D;
    for (int b = 0; b < c->s.B; b++)
        for (int h = 0; h < H; h++)
            attend(c, v[0] + (b*H + h)*D, v[1] + (b*H + h)*D, v[2] + b*c->s.T*2*c->s.G*D, h, (int)v[3][b] + 1);
}
static void naive_cache_store(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) for (int i = 0; i < c->C; i++) v[0][(int)v[2][n]*c->C + i] = v[1][n*c->C + i];
}
/* Takes the most likely of those that are left until enough are kept, then again until the draw is reached. */
static void naive_sample(const Case *c, double **v) {
    const Sampler s = c->sampler;
    const int limits = s.top_k || s.top_p < 1 || s.min_p > 0, greedy = !(s.temperature > 0);
    double *p = mem_alloc((size_t)c->used * sizeof *p);
    int *order = mem_alloc((size_t)c->used * sizeof *order);
    for (int n = 0; n < c->N; n++) {
        const double *x = v[1] + n*c->s.V;
        const uint64_t key = (uint64_t)v[2][2*n] | (uint64_t)v[2][2*n + 1] << 32;
        double all = 0, kept = 0, sum = 0;
        int count = 0, i;
        for (i = 0; i < c->used; i++) {
            int rank = 0;
            for (int j = 0; j < c->used; j++) rank += x[j] > x[i] || (x[j] == x[i] && j < i);
            order[limits || greedy ? rank : i] = i;
            all += p[i] = exp(greedy ? 0 : x[i] / (double)s.temperature);
        }
        while (count < c->used && (!count || !limits || ((!s.top_k || count < s.top_k) && kept < (double)s.top_p * all
                                                         && p[order[count]] >= (double)s.min_p * p[order[0]])))
            kept += p[order[count++]];
        const double draw = kept * random_uniform(key, (uint64_t)v[3][n] + 1);
        for (i = 0; i < count - 1 && (sum += p[order[i]]) <= draw; i++);
        v[0][n] = order[greedy ? 0 : i];
    }
    free(order);
    free(p);
}
static void naive_advance(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) {
        v[0][n]++;
        v[1][n]++;
        v[2][(int)v[0][n]*c->N + n] = v[3][n];
    }
}
static void naive_cross_entropy(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) {
        double *x = v[1] + n*c->s.V, sum = 0, relative = 0;
        const int target = (int)v[2][n];
        for (int i = 0; i < c->used; i++) { sum += exp(x[i]); if (target >= 0) relative += exp(x[i] - x[target]); }
        v[0][n] = target < 0 ? 0 : log(relative);
        for (int i = 0; c->gradient && i < c->s.V; i++)
            x[i] = target < 0 || i >= c->used ? 0 : (double)c->scale * (exp(x[i]) / sum - (i == target));
    }
}
static void naive_sum(const Case *c, double **v) { for (size_t i = 0; i < c->buffer[1].n; i++) v[0][0] += v[1][i]; }
static void naive_accumulate(const Case *c, double **v) { for (size_t i = 0; i < c->buffer[1].n; i++) v[0][i] += v[1][i]; }
static void naive_grad_sq_norms(const Case *c, double **v) {
    for (int s = 0; s < c->count; s++)
        for (size_t i = 0; i < c->segment[s].count; i++) {
            double x = v[1][c->segment[s].offset + i];
            v[0][s] += x * x;
            v[0][c->count] += x * x;
        }
}
static void naive_adamw(const Case *c, double **v) {
    const double b1 = (double)c->adamw.beta1, b2 = (double)c->adamw.beta2;
    const double norm = sqrt(v[5][c->count]), clip = (double)c->adamw.clip;
    const double shrink = clip > 0 ? fmin(1, clip / norm) : 1;
    if (!isfinite(norm)) return;
    for (int s = 0; s < c->count; s++)
        for (size_t i = c->segment[s].offset; i < c->segment[s].offset + c->segment[s].count; i++) {
            const double lr = (double)c->adamw.lr * (double)c->segment[s].rate;
            double g = v[4][i] * shrink, w = v[1] ? v[1][i] : v[0][i];
            v[2][i] = b1 * v[2][i] + (1 - b1) * g;
            v[3][i] = b2 * v[3][i] + (1 - b2) * g * g;
            double mean = v[2][i] / (1 - pow(b1, c->updates)), spread = sqrt(v[3][i] / (1 - pow(b2, c->updates)));
            w -= lr * (double)c->adamw.decay * (double)c->segment[s].decay * w
                + lr * mean / (spread + (double)c->adamw.eps);
            v[0][i] = w;
            if (v[1]) v[1][i] = w;
        }
}
/* x (rows, columns), k = rows <= columns; the other way round it is transposed first. */
static void naive_newton_schulz(double *x, int rows, int columns) {
    const int k = rows < columns ? rows : columns, n = rows < columns ? columns : rows, down = rows <= columns ? n : 1, across = rows <= columns ? 1 : k;
    double *y = mem_alloc((size_t)(k * n) * sizeof *y), *a = mem_alloc((size_t)(k * k) * sizeof *a), *p = mem_alloc((size_t)(k * k) * sizeof *p), sum = 0;
#define X(i, j) x[(i) * down + (j) * across]
    for (int i = 0; i < k * n; i++) sum += x[i] * x[i];
    for (int i = 0; i < k * n && sum > 0; i++) x[i] /= sqrt(sum);
    for (int step = 0; step < 5; step++) {
        memset(a, 0, (size_t)(k * k) * sizeof *a);
        memset(y, 0, (size_t)(k * n) * sizeof *y);
        for (int i = 0; i < k; i++) for (int j = 0; j < k; j++) for (int l = 0; l < n; l++) a[i * k + j] += X(i, l) * X(j, l);
        for (int i = 0; i < k; i++) for (int j = 0; j < k; j++) {
            double square = 0;
            for (int l = 0; l < k; l++) square += a[i * k + l] * a[l * k + j];
            p[i * k + j] = (i == j) * 3.4445 - 4.7750 * a[i * k + j] + 2.0315 * square;
        }
        for (int i = 0; i < k; i++) for (int j = 0; j < k; j++) for (int l = 0; l < n; l++) y[i * n + l] += p[i * k + j] * X(j, l);
        for (int i = 0; i < k; i++) for (int l = 0; l < n; l++) X(i, l) = y[i * n + l];
    }
#undef X
    free(y), free(a), free(p);
}
static void naive_orthogonalize(const Case *c, double **v) {
    const size_t each = (size_t)(c->F * c->C);
    memcpy(v[0], v[1], (size_t)c->count * each * sizeof(double));
    for (int e = 0; e < c->count; e++) naive_newton_schulz(v[0] + (size_t)e * each, c->F, c->C);
}
static void naive_muon_momentum(const Case *c, double **v) {
    const double beta = (double)c->muon.momentum, norm = sqrt(v[3][0]), clip = (double)c->muon.clip;
    if (!isfinite(norm)) return;
    for (int e = 0; e < c->count; e++)
        for (size_t i = 0; i < c->segment[e].count; i++) {
            const Segment *s = &c->segment[e];
            const double g = v[2][s->gradient + i] * (clip > 0 ? fmin(1, clip / norm) : 1), m = beta * v[1][s->offset + i] + (1 - beta) * g;
            v[1][s->offset + i] = m;
            v[0][s->at + i] = beta * m + (1 - beta) * g;
        }
}
static void naive_muon_update(const Case *c, double **v) {
    if (!isfinite(v[3][0])) return;
    for (int e = 0; e < c->count; e++)
        for (size_t i = 0; i < c->segment[e].count; i++) {
            const Segment *s = &c->segment[e];
            const double lr = (double)c->muon.lr * (double)s->rate, size = 0.2 * sqrt(fmax(c->F, c->C));
            double *w = v[0] + s->offset + i;
            if (v[1]) w = v[1] + s->offset + i;
            *w = *w * (1 - lr * (double)c->muon.decay * (double)s->decay) - lr * size * v[2][s->at + i];
            v[0][s->offset + i] = *w;
        }
}
static void naive_set_master(const Case *c, double **v) { memcpy(v[0], v[1], c->buffer[0].n * sizeof(double)); }

static const struct { const char *op; void (*compute)(const Case *c, double **v); } naive[] = {
#define NAIVE(op) { #op, naive_##op }
    NAIVE(embed_forward), NAIVE(embed_backward), NAIVE(rmsnorm_forward), NAIVE(rope_table), NAIVE(rope),
    NAIVE(residual), NAIVE(dropout),
    NAIVE(matmul_forward), NAIVE(matmul_backward_input), NAIVE(matmul_backward_weight),
    NAIVE(parallel_linear_forward), NAIVE(parallel_linear_backward_input), NAIVE(parallel_linear_backward_weight),
    NAIVE(router_forward), NAIVE(router_losses), NAIVE(route_plan), NAIVE(route_round), NAIVE(router_bias),
    NAIVE(combine_forward),
    NAIVE(activation_forward), NAIVE(activation_backward), NAIVE(bias_backward), NAIVE(attention_forward),
    NAIVE(attention_cached), NAIVE(cache_store), NAIVE(sample), NAIVE(advance), NAIVE(cross_entropy), NAIVE(sum),
    NAIVE(accumulate), NAIVE(grad_sq_norms), NAIVE(adamw), NAIVE(set_master), NAIVE(orthogonalize), NAIVE(muon_momentum), NAIVE(muon_update)
};

/* ---- comparing ----------------------------------------------------------------------------------------- */

/* The largest relative error of one rounding: half a unit in the last of 8, 24 or 53 bits. */
static double unit(size_t bytes) { return bytes == 2 ? 0x1p-8 : bytes == 4 ? 0x1p-24 : 0x1p-53; }

static double worse(double worst, double error) {           /* the larger one; a NaN stays */
    return !(error <= worst) && worst == worst ? error : worst;
}

/* Errors are relative to the typical element (norm / sqrt(n)): where large terms cancel, the error is theirs.
 * A handful of elements can all be such small differences; terms are of size 1 here, and so that is then
 * taken as typical. A norm hides one wrong row among many, so single elements have a bound too: four times
 * that of the norm (the largest of 10^5 normal errors is 4.5 times the typical one, and the bounds of
 * kernels.h are two or three times that). */
enum { SINGLE = 4, HANDFUL = 64 };
static void compare(const Buffer *b, const double *got, const double *want, double bound, const char *who,
                    const char *what) {
    double squares = 0, difference = 0, worst = 0;
    for (size_t i = 0; i < b->n; i++) {
        squares += want[i] * want[i];
        difference += (got[i] - want[i]) * (got[i] - want[i]);
    }
    const double n = b->n ? (double)b->n : 1, typical = b->n < HANDFUL ? fmax(1, sqrt(squares / n)) : sqrt(squares / n);
    const double norm = difference > 0 ? sqrt(difference / n) / typical : difference;
    for (size_t i = 0; i < b->n; i++)
        worst = worse(worst, got[i] == want[i] ? 0 : fabs(got[i] - want[i]) / (typical + fabs(want[i])));
    if (worst <= SINGLE * bound) check_error(norm, bound, "%s %s: %s", who, what, b->name);
    else check_error(worst, SINGLE * bound, "%s %s: one element of %s", who, what, b->name);
}
static double bound_of(const Buffer *b, const Device *dev) {
    return b->stored * unit(dev->floatX_size) + b->summed * unit(dev->real_size);
}

/* A case that has run: nothing outside its outputs may have changed. */
static void check_surroundings(const Placed *p) {
    const Case *c = p->c;
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (!b->name) continue;
        if (!case_guard(p, i)) check(0, "%s %s: wrote outside of %s", p->dev->name, c->what, b->name);
        if (b->role == SCRATCH || b->role == OUTPUT || (b->role == UPDATE && !c->unchanged)) continue;
        double *now_there = case_read(p, i);
        int same = 1;
        for (size_t j = 0; j < b->n; j++)                   /* NaN is a legitimate input */
            same &= now_there[j] == b->value[j] || (isnan(now_there[j]) && isnan(b->value[j]));
        if (!same) check(0, "%s %s: changed %s", p->dev->name, c->what, b->name);
        free(now_there);
    }
}
static int put_in_memory(Placed *p, const Case *c, const Device *dev) {
    int ok = case_place(p, c, dev);
    if (!ok) check(0, "%s: not enough memory for %s", dev->name, c->what);
    return ok;
}

static void against_naive(Case *c, const Device *dev) {
    size_t which = 0;
    Placed p;
    double *v[MOST_BUFFERS] = { NULL };
    while (which < sizeof naive / sizeof *naive && strcmp(naive[which].op, c->op)) which++;
    if (which == sizeof naive / sizeof *naive) return;
    case_round(c, dev);
    if (!put_in_memory(&p, c, dev)) return;
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (!b->name) continue;
        v[i] = mem_alloc(b->n * sizeof **v);
        if (b->value) memcpy(v[i], b->value, b->n * sizeof **v);
    }
    naive[which].compute(c, v);
    case_run(&p);
    dev->sync();
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (b->role >= OUTPUT && v[i]) {
            double *got = case_read(&p, i);                 /* 1e-12: hundreds of roundings of 1e-16, on both sides */
            compare(b, got, v[i], b->stored + b->summed > 0 ? 1e-12 : 0, dev->name, c->what);
            free(got);
        }
        free(v[i]);
    }
    case_release(&p);
}

/* Bits must not depend on the number of threads: everything else here runs on one. */
static void check_repeats(const Placed *first) {
    Placed again;
    size_t n;
    if (!put_in_memory(&again, first->c, first->dev)) return;
    omp_set_num_threads(2);
    case_run(&again);
    first->dev->sync();
    omp_set_num_threads(1);
    for (int i = 0; i < first->c->buffers; i++) {
        if (first->c->buffer[i].role < OUTPUT || !first->at[i]) continue;
        void *a = case_bits(first, i, &n), *b = case_bits(&again, i, &n);
        check(!memcmp(a, b, n), "%s %s: %s, the same bits with one thread and two", first->dev->name,
              first->c->what, first->c->buffer[i].name);
        free(a);
        free(b);
    }
    case_release(&again);
}

static void against_oracle(Case *c, const Device *dev, const Device *oracle) {
    Placed got, want;
    const int hurry = quick && dev->is_gpu;                 /* under a sanitizer every call of the device takes a millisecond */
    case_round(c, hurry ? device_find(dev->floatX_size == 2 ? "cpu-bf16" : "cpu-f32") : dev);
    if (!put_in_memory(&got, c, dev)) return;
    if (!put_in_memory(&want, c, oracle)) { case_release(&got); return; }
    case_run(&got);
    dev->sync();
    case_run(&want);
    oracle->sync();
    if (!hurry) check_surroundings(&got);
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (b->role < OUTPUT || !got.at[i]) continue;
        const double bound = bound_of(b, dev);
        Case one = { .buffer = { *b }, .buffers = 1 };
        one.buffer[0].value = case_read(&want, i);
        if (!(bound > 0)) case_round(&one, dev);
        double *is = case_read(&got, i);
        compare(b, is, one.buffer[0].value, bound, dev->name, c->what);
        free(is);
        free(one.buffer[0].value);
    }
    if (!hurry) check_repeats(&got);
    case_release(&got);
    case_release(&want);
}

/* ---- gradients --------------------------------------------------------------------------------------------
 * With L = <dy, y(x)> over the outputs y of the forward, for fixed random dy, the backward must return dL/dx. Buffers
 * find each other by name: dy is what the backward reads for the output y, dx what it writes for the input x. */

static Case *family(Case *c, int i) { return i ? c->forward[i - 1] : c; }        /* the backward, then its forwards */
static double *input_of(Case *c, const char *name, size_t *n) {
    int i = c ? case_find(c, name) : -1;
    if (i < 0 || c->buffer[i].role != INPUT) return NULL;
    *n = c->buffer[i].n;
    return c->buffer[i].value;
}
static void share(Case *c, int from, int to, const char *name, const double *value, size_t n) {
    for (int i = from; i < to; i++) {
        size_t there;
        double *mine = input_of(family(c, i), name, &there);
        if (mine && there == n) memcpy(mine, value, n * sizeof *mine);
    }
}
/* L; outputs of one forward are inputs of the next, and in the first run of the backward too. chosen: a sum that tells
 * whether the experts are still the same ones. */
static double loss_of(Case *c, const Device *dev, int first, double *chosen) {
    double loss = 0;
    *chosen = 0;
    for (int f = 1; f <= 2 && family(c, f); f++) {
        Case *forward = family(c, f);
        Placed p;
        if (!put_in_memory(&p, forward, dev)) return NAN;
        case_run(&p);
        dev->sync();
        for (int i = 0; i < forward->buffers; i++) {
            const Buffer *y = &forward->buffer[i];
            if (y->role == INPUT || !y->name) continue;
            double *value = case_read(&p, i);
            char upstream[32];
            size_t n;
            snprintf(upstream, sizeof upstream, "d%s", !strcmp(y->name, "act") ? "a" : y->name);
            const double *dy = input_of(c, upstream, &n), *weight = input_of(c, "weight", &n);
            const double *slot = input_of(c, "slot_of_row", &n);
            for (size_t j = 0; j < y->n; j++) {
                double w = 1;                               /* activation_backward: rows of act are weighted */
                if (!strcmp(y->name, "act") && weight)
                    w = weight[c->from == GROUPED ? (size_t)slot[j / (size_t)c->F] : j / (size_t)c->F];
                if (dy) loss += w * dy[j] * value[j];
                if (!strcmp(y->name, "expert")) *chosen += value[j] * (double)(j + 1);
            }
            share(c, first ? 0 : f + 1, 3, y->name, value, y->n);
            free(value);
        }
        case_release(&p);
    }
    return loss;
}
static void check_gradients(Case *c, const Device *dev) {
    const double h = 1e-5;
    double before;
    Placed p;
    if (!c->forward[0] || !c->N) return;
    for (int i = 0; i < c->buffers; i++) if (c->buffer[i].role == INPUT && c->buffer[i].name)
        share(c, 1, 3, c->buffer[i].name, c->buffer[i].value, c->buffer[i].n);
    loss_of(c, dev, 1, &before);
    if (!put_in_memory(&p, c, dev)) return;
    case_run(&p);
    dev->sync();
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (b->role == INPUT || !b->name || b->name[0] != 'd') continue;
        double *x = NULL, *gradient = case_read(&p, i), norm = 0, worst = 0;
        const char *name = b->name + 1;
        size_t n = 0;
        for (int f = 0; f < 3 && !x; f++) x = input_of(family(c, f), name, &n);
        if (!x || n != b->n) {
            check(0, "%s: found no input %s that %s is the gradient of", c->what, name, b->name);
            free(gradient);
            continue;
        }
        for (size_t j = 0; j < n; j++) {
            if (b->role == UPDATE) gradient[j] -= b->value[j];
            norm += gradient[j] * gradient[j];
        }
        int checked = 0, tries = 0;
        for (; tries < 30; tries++) {
            size_t j = n <= 30 ? (size_t)tries % n : (size_t)(uniform() * (double)n);
            double kept = x[j], L[2], same[2];
            for (int side = 0; side < 2; side++)
                for (int f = 0; f < 3; f++) {
                    double *mine = input_of(family(c, f), name, &n);
                    if (mine) mine[j] = kept + (side ? -h : h);
                    if (f == 2) L[side] = loss_of(c, dev, 0, &same[side]);
                }
            for (int f = 0; f < 3; f++) { double *mine = input_of(family(c, f), name, &n); if (mine) mine[j] = kept; }
            if (same[0] != before || same[1] != before) continue;       /* the loss has a step where experts change */
            double numeric = (L[0] - L[1]) / (2 * h);
            double error = fabs(numeric - gradient[j]) / (fabs(numeric) + sqrt(norm / (double)n) + 1e-3);
            worst = worse(worst, error);
            checked++;
        }
        check_error(worst, 1e-6, "%s: %s by finite differences", c->what, b->name);
        check(checked >= tries / 4, "%s: %s by finite differences, %d elements", c->what, b->name, checked);
        free(gradient);
    }
    case_release(&p);
}

/* The logits of cross entropy become their gradient in place: its own little check. */
static void check_cross_entropy_gradient(Case *c, const Device *dev) {
    if (strcmp(c->op, "cross_entropy") || !c->gradient || !c->N) return;
    Placed p;
    if (!put_in_memory(&p, c, dev)) return;
    case_run(&p);
    dev->sync();
    double *gradient = case_read(&p, 1), worst = 0;
    case_release(&p);
    c->gradient = 0;
    for (int i = 0; i < 40; i++) {
        size_t j = (size_t)(uniform() * (double)c->buffer[1].n);
        double kept = c->buffer[1].value[j], difference = 0;       /* of the loss of its row */
        for (int side = 0; side < 2; side++) {
            c->buffer[1].value[j] = kept + (side ? -1e-5 : 1e-5);
            if (!put_in_memory(&p, c, dev)) break;
            case_run(&p);
            dev->sync();
            double *loss = case_read(&p, 0);
            difference += (side ? -1 : 1) * (double)c->scale * loss[j / (size_t)c->s.V];
            free(loss);
            case_release(&p);
        }
        c->buffer[1].value[j] = kept;
        double error = fabs(difference / 2e-5 - gradient[j]) / (fabs(gradient[j]) + 1e-2);
        worst = worse(worst, error);
    }
    c->gradient = 1;
    check_error(worst, 1e-6, "%s: by finite differences", c->what);
    free(gradient);
}

/* ---- arguments that may be the same pointer ------------------------------------------------------------ */

static void check_alias(Case *c, const Device *dev) {
    static const struct { const char *op, *out, *in; int identity; } may[] = {
        { "residual", "out", "residual", 0 }, { "residual", "out", "branch", 0 }, { "dropout", "out", "inp", 0 },
        { "activation_backward", "dpre", "pre", 0 }, { "activation_backward", "dpre", "da", 1 },
    };
    for (size_t i = 0; i < sizeof may / sizeof *may; i++) {
        if (strcmp(c->op, may[i].op) || (may[i].identity && c->f != IDENTITY)) continue;
        Placed apart, together;
        size_t n;
        case_round(c, dev);
        if (!put_in_memory(&apart, c, dev)) return;
        if (!put_in_memory(&together, c, dev)) { case_release(&apart); return; }
        int to = case_find(c, may[i].out);
        together.at[to] = together.at[case_find(c, may[i].in)];
        case_run(&apart);
        case_run(&together);
        dev->sync();
        for (int j = 0; j < c->buffers; j++) {
            if (c->buffer[j].role == INPUT || !apart.at[j]) continue;
            void *a = case_bits(&apart, j, &n), *b = case_bits(&together, j, &n);
            check(!memcmp(a, b, n), "%s %s: %s when %s is %s", dev->name, c->what, c->buffer[j].name,
                  may[i].out, may[i].in);
            free(a);
            free(b);
        }
        case_release(&apart);
        case_release(&together);
    }
}

/* ---- PyTorch ----------------------------------------------------------------------------------------------
 * A case of the same sizes gets the contents of its inputs from the file, by name; then its outputs
 * have to be those in the file. An operation's tensors are named PREFIX.buffer; attention's outputs
 * have another prefix than its inputs. */

static Safetensors *reference;
static double *recorded(const char *prefix, const char *name, size_t n) {
    char *full = text_format("%s.%s", prefix, name);
    const FileTensor *t = safetensors_find(reference, full);
    double *value = NULL;
    Error e;
    if (t && t->count == n) {
        value = mem_alloc(n * sizeof *value);
        if (!strcmp(t->dtype, "I32")) {
            int32_t *whole = mem_alloc(n * sizeof *whole);
            if (!safetensors_read(reference, t, 0, whole, n * sizeof *whole, &e)) check(0, "%s: %s", full, e.text);
            for (size_t i = 0; i < n; i++) value[i] = whole[i];
            free(whole);
        } else if (!safetensors_read_double(reference, t, 0, value, n, &e)) check(0, "%s: %s", full, e.text);
    }
    free(full);
    return value;
}
static double scalar(const char *prefix, const char *name) {
    double *value = recorded(prefix, name, 1), x = value ? *value : NAN;
    free(value);
    return x;
}
typedef struct { const Device *dev; int compared; const char *only; } Reference;
static void against_pytorch(Case *c, void *context) {
    static const char *const scores[] = { "router_topk_softmax", "router_softmax_topk", "router_sigmoid_topk" };
    static const char *const experts[] = { "expert_swiglu", "expert_gelu", "expert_relu2", "" };
    static const char *const orders[] = { "attention_tiled", "attention_grouped" };
    Reference *r = context;
    const char *prefix = r->only, *outputs = prefix;
    if (strncmp(c->op, prefix, strlen(prefix))) return;
    if (!strcmp(prefix, "router")) outputs = prefix = scores[c->scores];
    if (!strcmp(prefix, "activation")) outputs = prefix = experts[c->f];
    if (!*prefix) return;
    if (!strcmp(prefix, "attention")) outputs = orders[c->order];
    if (!strcmp(c->op, "router_bias") || !strcmp(c->op, "attention_cached")
        || (c->from == GROUPED && !strcmp(c->op, "activation_backward"))) return;
    if (!strcmp(c->op, "router_forward")
        && (c->forced || c->buffer[1].summed > 8
            || (case_find(c, "bias") >= 0) != (c->scores == SIGMOID_TOPK))) return;
    if (!strcmp(prefix, "rmsnorm")) c->eps = (float)scalar(prefix, "eps");
    if (!strncmp(c->op, "router_", 7)) c->tokens = (int)scalar(prefix, "tokens");

    for (int i = 0; i < c->buffers; i++) {
        Buffer *b = &c->buffer[i];
        if (b->role == UPDATE) memset(b->value, 0, b->n * sizeof *b->value);
        if (b->role != INPUT || !b->name || !strcmp(b->name, "dloss") || i == c->plan
            || (c->plan >= 0 && i > c->plan)) continue;
        double *value = recorded(prefix, b->name, b->n);
        if (!value) value = recorded(outputs, b->name, b->n);
        if (!value) { check(0, "reference has no %s.%s for %s", prefix, b->name, c->what); return; }
        free(b->value);
        b->value = value;
    }
    Placed p;
    case_round(c, r->dev);
    if (!put_in_memory(&p, c, r->dev)) return;
    case_run(&p);
    r->dev->sync();
    for (int i = 0; i < c->buffers; i++) {
        const Buffer *b = &c->buffer[i];
        if (b->role == INPUT || !b->name) continue;
        const int dense = !strcmp(b->name, "dpre") && case_find(c, "weight") < 0;
        if (!dense && !strcmp(b->name, "wact") && case_find(c, "weight") < 0) continue;
        double *want = recorded(outputs, dense ? "dpre_dense" : b->name, b->n), *got = case_read(&p, i);
        if (!want) { check(0, "reference has no %s.%s for %s", outputs, b->name, c->what); free(got); continue; }
        if (!strcmp(b->name, "dlogits")) {
            double *balance = recorded(prefix, "dbalance", b->n), *z = recorded(prefix, "dz", b->n);
            for (size_t j = 0; balance && z && j < b->n; j++)
                want[j] += (double)c->balance * balance[j] + (double)c->zloss * z[j];
            free(balance);
            free(z);
        }
        /* what the device was given was rounded: rstd, lse and weights by `real`,
         * out by floatX. Hence twice the bound. */
        double bound = r->dev->floatX_size == 8 ? 1e-12 : 2 * bound_of(b, r->dev);
        if (!strcmp(c->op, "attention_backward")) bound *= 2;
        compare(b, got, want, bound, r->dev->name, c->what);
        r->compared++;
        free(want);
        free(got);
    }
    case_release(&p);
}
static void adamw_against_pytorch(const Device *dev) {
    enum { COUNT = 8, STEPS = 3, SEGMENTS = 2 };
    const char *const kept[] = { "weights", "m", "v" };
    const Segment segment[SEGMENTS] = { { .count = 5, .decay = 1, .rate = 1 }, { .offset = 5, .count = 3, .gradient = 5, .rate = 1 } };
    double *weight = recorded("adamw", "weight", COUNT), *grad = recorded("adamw", "grad", STEPS * COUNT);
    double *lr = recorded("adamw", "lr", STEPS), got[COUNT];
    if (!weight || !grad || !lr) { check(0, "reference has no adamw"); return; }
    floatX *w = dev->alloc(COUNT * dev->floatX_size);
    real *state[3], *g = dev->alloc(COUNT * dev->real_size), *grad_sq_norms = dev->alloc((SEGMENTS + 1) * dev->real_size);
    Segment *segments = dev->alloc(sizeof segment);
    AdamW *settings = dev->alloc(sizeof *settings);
    dev->upload(segments, segment, sizeof segment);
    for (int i = 0; i < 3; i++) state[i] = dev->alloc(COUNT * dev->real_size);         /* master, m, v */
    dev->from_double(w, weight, COUNT);
    dev->set_master(state[0], w, COUNT);
    for (int step = 0; step < STEPS; step++) {
        AdamW a = { (float)lr[step], (float)scalar("adamw", "beta1"), (float)scalar("adamw", "beta2"),
                    (float)scalar("adamw", "eps"),
                    (float)scalar("adamw", "decay"), (float)scalar("adamw", "clip"), 0, 0, 0 };
        a.fix1 = 1 / (1 - pow((double)a.beta1, step + 1));
        a.fix2 = 1 / (1 - pow((double)a.beta2, step + 1));
        dev->upload(settings, &a, sizeof a);
        dev->reals_from_double(g, grad + step * COUNT, COUNT);
        dev->grad_sq_norms(grad_sq_norms, g, segments, SEGMENTS);
        dev->adamw(w, state[0], state[1], state[2], REAL, g, grad_sq_norms, segments, SEGMENTS, settings);
        for (int i = 0; i < 3; i++) {
            double *want = recorded("adamw", kept[i], STEPS * COUNT);
            dev->reals_to_double(got, state[i], COUNT);
            if (!want) { check(0, "reference has no adamw.%s", kept[i]); continue; }
            check_error(relative_error(got, want + step * COUNT, COUNT),
                        dev->real_size == 8 ? 1e-12 : 8 * (step + 1) * 0x1p-24, "%s adamw: %s after step %d",
                        dev->name, kept[i], step + 1);
            free(want);
        }
    }
    for (int i = 0; i < 3; i++) dev->release(state[i]);
    dev->release(w), dev->release(g), dev->release(grad_sq_norms), dev->release(segments), dev->release(settings);
    free(weight), free(grad), free(lr);
}
/* Stochastic rounding: two expected values that lie a quarter of a unit from the nearest bf16 number, which rounding to
 * nearest would give every time. Even and odd elements apart, for they use different bits. */
enum { ROUNDED = 1 << 16 };
static double *round_updates(const Device *dev, uint64_t key) {     /* weights, then v */
    const Segment all = { .count = ROUNDED, .rate = 1 };
    const AdamW a = { .lr = 0x1p-9f, .beta1 = 0, .beta2 = 0.999f, .fix1 = 1, .fix2 = 1, .key = key };
    double *value = mem_alloc(2 * ROUNDED * sizeof *value), norm[2] = { 1, 1 };
    floatX *w = dev->alloc(ROUNDED * dev->floatX_size), *m = dev->alloc(ROUNDED * dev->floatX_size);
    floatX *v = dev->alloc(ROUNDED * dev->floatX_size);
    real *g = dev->alloc(ROUNDED * dev->real_size), *grad_sq_norms = dev->alloc(2 * dev->real_size);
    Segment *segments = dev->alloc(sizeof *segments);
    AdamW *settings = dev->alloc(sizeof *settings);
    for (int i = 0; i < ROUNDED; i++) value[i] = 1;
    dev->from_double(w, value, ROUNDED);
    dev->from_double(v, value, ROUNDED);
    for (int i = 0; i < ROUNDED; i++) value[i] = 0.5;
    dev->reals_from_double(g, value, ROUNDED);
    dev->reals_from_double(grad_sq_norms, norm, 2);
    dev->upload(segments, &all, sizeof all);
    dev->upload(settings, &a, sizeof a);
    dev->adamw(w, NULL, m, v, FLOATX, g, grad_sq_norms, segments, 1, settings);
    dev->to_double(value, w, ROUNDED);
    dev->to_double(value + ROUNDED, v, ROUNDED);
    dev->release(w), dev->release(m), dev->release(v), dev->release(g), dev->release(grad_sq_norms), dev->release(segments);
    dev->release(settings);
    return value;
}
static void stochastic_rounding(const Device *dev) {
    if (dev->floatX_size != 2) return;
    const double square = 0.999 + 0.001 * 0.25, want[2] = { 1 - 0x1p-9 * 0.5 / sqrt(square), square };
    double *got = round_updates(dev, 1), *again = round_updates(dev, 1), *other = round_updates(dev, 2);
    double *cpu = round_updates(device_find("cpu-bf16"), 1);
    for (int kind = 0; kind < 2; kind++)
        for (int odd = 0; odd < 2; odd++) {
            double mean = 0;
            for (int i = odd; i < ROUNDED; i += 2) mean += got[kind*ROUNDED + i] / (ROUNDED / 2);
            check_error(fabs(mean - want[kind]), 5 * 0x1p-8 * 0.5 / sqrt(ROUNDED / 2), "%s adamw: mean of %s %s that "
                        "are rounded stochastically, within five deviations", dev->name, odd ? "odd" : "even",
                        kind ? "v" : "weights");
        }
    int differs = 0, from_cpu = 0, both = 0, pairs = 0;
    for (int i = 0; i < 2*ROUNDED; i++) {
        differs += got[i] != other[i];
        from_cpu += got[i] != cpu[i];
        both += i < ROUNDED && got[i] < 1 && got[ROUNDED + i] < 1;
        pairs += i < ROUNDED && i % 2 && got[i] < 1 && got[i - 1] < 1;
    }
    check(!memcmp(got, again, 2*ROUNDED * sizeof *got), "%s adamw: the same key rounds alike", dev->name);
    check(differs > ROUNDED / 4, "%s adamw: another key rounds %d of %d otherwise", dev->name, differs, 2*ROUNDED);
    check_error((double)both / ROUNDED, 0.07, "%s adamw: a weight and its v are rounded independently, both down",
                dev->name);
    check_error((double)pairs / (ROUNDED / 2), 0.09, "%s adamw: and so are neighbours", dev->name);
    check_error((double)from_cpu / ROUNDED, 1e-3, "%s adamw: rounds as cpu-bf16 does; share of others", dev->name);
    free(got), free(again), free(other), free(cpu);
}
/* x = sum of s_i u_i v_i^T with s from 1 to 0.01: what comes out has the same u and v, and values near 1. */
static void orthonormal(double *u, int count, int n) {
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < n; j++) u[i*n + j] = normal();
        for (int before = 0; before <= i; before++) {
            double product = 0;
            for (int j = 0; j < n; j++) product += u[i*n + j] * u[before*n + j];
            for (int j = 0; j < n; j++) u[i*n + j] = before < i ? u[i*n + j] - product * u[before*n + j] : u[i*n + j] / sqrt(product);
        }
    }
}
static void singular_values(const Device *dev, int rows, int columns) {
    enum { RANK = 24 };
    const int n = rows * columns, k = rows < columns ? rows : columns;
    double *u = mem_alloc((size_t)(RANK * rows) * sizeof *u), *v = mem_alloc((size_t)(RANK * columns) * sizeof *v);
    double *x = mem_alloc((size_t)n * sizeof *x), least = 1e9, most = 0, other = 0;
    orthonormal(u, RANK, rows);
    orthonormal(v, RANK, columns);
    for (int r = 0; r < RANK; r++)
        for (int i = 0; i < n; i++) x[i] += pow(0.01, (double)r / (RANK - 1)) * u[r*rows + i / columns] * v[r*columns + i % columns];
    const MuonBuffers b = { dev->alloc((size_t)n * dev->floatX_size), dev->alloc((size_t)n * dev->floatX_size),
                            dev->alloc((size_t)(k * k) * dev->floatX_size), dev->alloc((size_t)(k * k) * dev->floatX_size),
                            dev->alloc(MUON_SUMS * dev->real_size), dev->alloc(4 * sizeof(int)) };
    dev->from_double(b.x, x, (size_t)n);
    dev->orthogonalize(dev, &b, 1, rows, columns);
    dev->to_double(x, b.out, (size_t)n);
    for (int r = 0; r < RANK; r++)
        for (int c = 0; c < RANK; c++) {
            double value = 0;
            for (int i = 0; i < n; i++) value += u[r*rows + i / columns] * x[i] * v[c*columns + i % columns];
            if (r != c) other = fmax(other, fabs(value));
            else least = fmin(least, value), most = fmax(most, value);
        }
    check(least > 0.6 && most < 1.25, "%s orthogonalize: singular values of %dx%d are %.3f to %.3f", dev->name, rows, columns, least, most);
    check_error(other, dev->floatX_size == 2 ? 0.1 : 1e-5, "%s orthogonalize: %dx%d has other singular vectors", dev->name, rows, columns);
    dev->release(b.x), dev->release(b.out), dev->release(b.gram), dev->release(b.square), dev->release(b.sums), dev->release(b.start);
    free(u), free(v), free(x);
}
/* Two tensors updated by one rank, and by two that own half of the elements each and keep the state of those only: the
 * same bits. The first shard ends within the first tensor. */
static void adamw_in_shards(const Device *dev) {
    enum { FIRST = 777, SECOND = 340, COUNT = FIRST + SECOND + 3, CUT = COUNT / 2 };
    const Segment whole[2] = { { .count = FIRST, .decay = 1, .rate = 1 }, { FIRST, SECOND, 0, 0, REAL, FIRST, 1, 0, 0 } };
    const Segment shard[2][2] = { { { .count = CUT, .decay = 1, .rate = 1 }, { 0 } },
                                  { { CUT, FIRST - CUT, 1, CUT, REAL, CUT, 1, 0, 0 }, { FIRST, SECOND, 0, CUT, REAL, FIRST, 1, 0, 0 } } };
    const AdamW a = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .clip = 1,
                      .fix1 = 2, .fix2 = 3 };
    const size_t bytes = COUNT * dev->floatX_size;
    double value[COUNT];
    char *got[2];
    floatX *weight[2];
    real *grad = dev->alloc(COUNT * dev->real_size), *grad_sq_norms = dev->alloc(3 * dev->real_size);
    Segment *segments = dev->alloc(sizeof whole);
    AdamW *settings = dev->alloc(sizeof a);
    for (int i = 0; i < COUNT; i++) value[i] = normal();
    dev->reals_from_double(grad, value, COUNT);
    dev->upload(settings, &a, sizeof a);
    dev->upload(segments, whole, sizeof whole);
    dev->grad_sq_norms(grad_sq_norms, grad, segments, 2);
    for (int split = 0; split < 2; split++) {
        weight[split] = dev->alloc(bytes);
        dev->from_double(weight[split], value, COUNT);
        for (int r = 0; r <= split; r++) {
            const size_t own = split ? COUNT - CUT : COUNT;
            real *state[3];
            for (int i = 0; i < 3; i++) state[i] = dev->alloc(own * dev->real_size);    /* master, m, v */
            dev->reals_from_double(state[0], value + r * CUT, own);
            dev->upload(segments, split ? shard[r] : whole, sizeof whole);
            dev->adamw(weight[split], state[0], state[1], state[2], REAL, grad, grad_sq_norms, segments, 2,
                       settings);
            dev->sync();
            for (int i = 0; i < 3; i++) dev->release(state[i]);
        }
        got[split] = malloc(bytes);
        dev->download(got[split], weight[split], bytes);
        dev->release(weight[split]);
    }
    check(!memcmp(got[0], got[1], bytes), "%s adamw: two ranks with half of the state each make the same weights", dev->name);
    dev->release(grad), dev->release(grad_sq_norms), dev->release(segments), dev->release(settings);
    free(got[0]), free(got[1]);
}
/* What rounding promises, whatever the router says: logits that prefer some experts by far, sizes that divide nothing. */
static int *read_ints(const Device *dev, const int *from, int n) {
    int *x = mem_alloc((size_t)n * sizeof *x);
    dev->download(x, from, (size_t)n * sizeof *x);
    return x;
}
static void rounding_promises(const Device *dev, int try) {
    const int E = 1 + (int)(uniform() * 40), K = 1 + (int)(uniform() * (E < 9 ? E : 9)), tile = 1 << (int)(uniform() * 8);
    /* also: few more tokens than a tile, so that the busiest experts cannot be rounded */
    const int N = (int)(try % 2 ? uniform() * uniform() * 700 : tile * (1 + uniform())), S = N*K + E*tile, C = 3;
    const Rounding rule = (Rounding)(ROUND_NEAREST + try / 2 % ROUND_DOWN);
    const Scores scores = (Scores)(try / 2 / ROUND_DOWN % 3);
    const double skew = 4 * uniform();
    const uint64_t key[2] = { (uint64_t)(uniform() * 1e15), 5 };
    double *x = mem_alloc((size_t)(N*E + S*C + 1) * sizeof *x), *w = mem_alloc((size_t)S * sizeof *w);
    int **at[] = { NULL, NULL, NULL, NULL, NULL, NULL, NULL }, *v[7];
    const int size[] = { E + 1, S, S, S, N + 1, E, S };
    Plan p = { .N = N, .E = E, .K = K, .S = S };
    int *load, *expert, *choice = dev->alloc((size_t)(N*K + 1) * sizeof(int)), wrong = 0, unweighted = 0, sum = 0;
    at[0] = &p.start, at[1] = &p.slot_of_row, at[2] = &p.token_of_row, at[3] = &p.row_of_slot, at[4] = &p.first;
    at[5] = &load, at[6] = &expert;
    for (int i = 0; i < 7; i++) *at[i] = dev->alloc((size_t)(size[i] + 1) * sizeof(int));
    real *weight = dev->alloc((size_t)S * dev->real_size + 8), *lse = dev->alloc((size_t)N * dev->real_size + 8);
    floatX *logits = dev->alloc((size_t)(N*E + 1) * dev->floatX_size), *out = dev->alloc((size_t)(N*C + 1) * dev->floatX_size);
    floatX *ones = dev->alloc((size_t)(S*C + 1) * dev->floatX_size);
    uint64_t *keys = dev->alloc(sizeof key);
    for (int i = 0; i < N*E; i++) x[i] = normal() - skew * (i * 7 % E) / E;
    dev->from_double(logits, x, (size_t)(N*E));
    for (int i = 0; i < S*C; i++) x[i] = 1;
    dev->from_double(ones, x, (size_t)(S*C));
    dev->upload(keys, key, sizeof key);
    dev->router_forward(choice, weight, lse, logits, NULL, scores, 0, N, E, K);
    dev->route_round(&p, load, expert, weight, choice, logits, lse, scores, rule, tile, keys, 3);
    dev->combine_forward(out, ones, weight, NULL, &p, C, GROUPED);
    for (int i = 0; i < 7; i++) v[i] = read_ints(dev, *at[i], size[i]);
    int *chosen = read_ints(dev, choice, N*K);
    dev->reals_to_double(w, weight, (size_t)S);
    dev->to_double(x, logits, (size_t)(N*E));
    const int *start = v[0], *slot_of_row = v[1], *token_of_row = v[2], *row_of_slot = v[3], *first = v[4];
    const Config c = { .experts = E, .topk = K, .tile = tile, .rounding = (int)rule };
    wrong += start[0] != 0 || first[0] != 0 || first[N] != start[E] || start[E] > mlp_slots(&c, N, 1);
    for (int e = 0; e < E && !wrong; e++) {
        const int f = v[5][e], rows = start[e + 1] - start[e], whole = (f + tile - 1) / tile * tile <= N;
        sum += whole ? rows - f : 0;
        wrong += whole ? rows % tile != 0 : rows != f;
        wrong += abs(rows - f) >= tile + !whole || (rule == ROUND_NEAREST && 2 * abs(rows - f) > tile)
              || (rule == ROUND_UP && rows < f) || (rule == ROUND_DOWN && rows > f) || (rule == ROUND_BALANCED && 2 * abs(sum) > tile);
        float least[2] = { INFINITY, INFINITY }, most[2] = { -INFINITY, -INFINITY };   /* kept, left out; of those that did not choose and did */
        for (int n = 0, r = start[e]; n < N && !wrong; n++) {
            int mine = 0;
            double now_lse = 0;
            const int kept = r < start[e + 1] && token_of_row[r] == n, slot = kept ? slot_of_row[r] : 0;
            for (int k = 0; k < K; k++) mine |= chosen[n*K + k] == e;
            if (scores != SIGMOID_TOPK) for (int i = 0; i < E; i++) now_lse += exp(x[n*E + i]);
            const float score = (float)(x[n*E + e] - (scores == SIGMOID_TOPK ? 0 : log(now_lse)));
            if (kept) least[mine] = fminf(least[mine], score); else most[mine] = fmaxf(most[mine], score);
            wrong += kept && (row_of_slot[slot] != r || v[6][slot] != e || slot < first[n] || slot >= first[n + 1]
                              || (slot > first[n] && v[6][slot - 1] >= e));
            wrong += kept != mine && mine == (rows >= f);   /* drops who chose it only to have fewer, adds others only to have more */
            r += kept;
        }
        for (int mine = 0; mine < 2; mine++) wrong += least[mine] < most[mine] - 1e-5f;
    }
    check(!wrong, "%s route_round: rule %d keeps its promises, N=%d E=%d K=%d tile=%d skew=%.1f", dev->name, rule, N, E, K, tile, skew);
    dev->to_double(x, out, (size_t)(N*C));
    for (int n = 0; n < N && !wrong; n++) {
        double total = 0;
        for (int s = first[n]; s < first[n + 1]; s++) total += w[s];
        unweighted += !(fabs(total - x[n*C]) < 1e-2) || (first[n] == first[n + 1] && x[n*C] != 0)
                   || (scores != SOFTMAX_TOPK && first[n] < first[n + 1] && !(fabs(total - 1) < 1e-5));
    }
    check(!unweighted, "%s route_round: weights of what a token has; nothing for those that have nothing, N=%d", dev->name, N);
    for (int i = 0; i < 7; i++) { free(v[i]); dev->release(*at[i]); }
    dev->release(weight), dev->release(lse), dev->release(logits), dev->release(out), dev->release(ones), dev->release(keys);
    dev->release(choice);
    free(chosen), free(x), free(w);
}
/* By chance, but on average by as many as chose the expert: the mean of many draws, within five deviations. */
static void rounding_by_chance(const Device *dev) {
    enum { N = 64, E = 4, TILE_OF = 16, S = N + E * TILE_OF, DRAWS = 400 };
    double x[N * E], rows = 0;
    Plan p = { .N = N, .E = E, .K = 1, .S = S };
    int **at[] = { &p.start, &p.slot_of_row, &p.token_of_row, &p.row_of_slot, &p.first, NULL, NULL, NULL };
    int *load, *expert, *choice;
    at[5] = &load, at[6] = &expert, at[7] = &choice;
    for (int i = 0; i < 8; i++) *at[i] = dev->alloc((S + 1) * sizeof(int));
    real *weight = dev->alloc(S * dev->real_size), *lse = dev->alloc(N * dev->real_size);
    floatX *logits = dev->alloc(N * E * dev->floatX_size);
    uint64_t *key = dev->alloc(sizeof *key);
    for (int i = 0; i < N * E; i++) x[i] = i % E == i / E % 11 % E;     /* 21 tokens choose the last but one, each as much as the others */
    dev->from_double(logits, x, N * E);
    dev->router_forward(choice, weight, lse, logits, NULL, TOPK_SOFTMAX, 0, N, E, 1);
    int *chose = read_ints(dev, choice, N), f = 0, start[E + 1];
    for (int n = 0; n < N; n++) f += chose[n] == E - 2;
    for (uint64_t i = 0; i < DRAWS; i++) {
        dev->upload(key, &i, sizeof i);
        dev->route_round(&p, load, expert, weight, choice, logits, lse, TOPK_SOFTMAX, ROUND_STOCHASTIC, TILE_OF, key, 3);
        dev->download(start, p.start, sizeof start);
        rows += (double)(start[E - 1] - start[E - 2]) / DRAWS;
    }
    check(f % TILE_OF != 0, "%d tokens are no whole tiles", f);
    check_error(fabs(rows - f), 5 * TILE_OF / 2 / sqrt(DRAWS), "%s route_round: by chance %.2f rows on average where %d were chosen",
                dev->name, rows, f);
    for (int i = 0; i < 8; i++) dev->release(*at[i]);
    dev->release(weight), dev->release(lse), dev->release(logits), dev->release(key);
    free(chose);
}
static void against_reference(const Device *dev) {
    /* outputs: so that none is forgotten */
    static const struct { const char *only; Shape shape; int outputs; } part[] = {
        { "rmsnorm",    { "file", 1, 5, 12, 3, 2, 1, 3, 1, 1, 2, MIXED }, 2 + 2 },
        { "router",     { "file", 1, 9, 3, 3, 6, 3, 3, 1, 1, 2, MIXED }, 3 * 3 + 3 * 1 + 3 * 4 },
        { "activation", { "file", 1, 7, 3, 3, 2, 1, 5, 1, 1, 2, MIXED }, 3 * (1 + 1 + 3) },
        { "attention",  { "file", 2, 7, 3, 3, 3, 1, 3, 2, 3, 4, MIXED }, 2 * (2 + 2) },
    };
    Error e;
    if (!(reference = safetensors_open("tests/reference/ops.safetensors", &e))) {
        check(0, "%s (run from the folder of the Makefile)", e.text);
        return;
    }
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        Reference r = { dev, 0, part[i].only };
        each_case(&part[i].shape, 1, against_pytorch, &r);
        check(r.compared == part[i].outputs, "%s: compared %d outputs of %s with PyTorch's, of %d", dev->name,
              r.compared, part[i].only, part[i].outputs);
    }
    adamw_against_pytorch(dev);
    adamw_in_shards(dev);
    singular_values(dev, 24, 40);
    singular_values(dev, 300, 256);
    singular_values(dev, 256, 512);
    safetensors_close(reference);
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

static int is_product(const Case *c) {
    return !strncmp(c->op, "parallel_linear", 15) || !strncmp(c->op, "matmul", 6) || !strncmp(c->op, "expert", 6)
        || !strncmp(c->op, "attention", 9);
}
/* -q passes over what a GPU does a second time: the same kernel with other numbers, or for another device. */
static int is_again(const Case *c, const Device *dev) {
    return quick && dev->is_gpu && (c->exact || (strstr(dev->name, "portable") && !is_product(c)));
}
static void check_case(Case *c, void *context) {
    const Device *f64 = device_find("cpu-f64"), *dev;
    const int is_small = *(int *)context;
    if (!in_part()) return;
    if (is_tested(f64)) against_naive(c, f64);
    for (int i = 0; (dev = tested_device(i)); i++) {
        if (is_again(c, dev)) continue;
        if (dev != f64 || is_small) against_oracle(c, dev, f64);
        if (dev != f64 && is_small) check_alias(c, dev);
    }
    if (!is_tested(f64) || !is_small) return;
    check_gradients(c, f64);
    check_cross_entropy_gradient(c, f64);
}
static void check_all(Case *c, void *unused) {
    (void)unused;
    check_case(c, &(int){ 0 });
}
static void check_products(Case *c, void *unused) {
    if (is_product(c)) check_all(c, unused);
}
static void check_special(Case *c, void *only) {
    const Device *f64 = device_find("cpu-f64"), *dev;
    if (strncmp(c->op, only, strlen(only)) || !in_part()) return;
    const int of_bf16 = !strcmp(only, "attention");             /* which has kernels of its own for these heads */
    for (int i = 0; (dev = tested_device(i)); i++)
        if (dev != f64 && (dev->floatX_size == 2 || !of_bf16) && !is_again(c, dev)) against_oracle(c, dev, f64);
}
void test_kernels(void) {
    const Device *dev;
    const int threads = omp_get_max_threads();
    int is_small, on_gpu = 0;
    omp_set_num_threads(1);
    check(splitmix64(0x9E3779B97F4A7C15u) == 0xE220A8397B1DCDAFu, "splitmix64, seed 0: the first number");
    for (int i = 0; (dev = tested_device(i)); i++) {
        if (in_part()) against_reference(dev);
        if (in_part()) stochastic_rounding(dev);
        for (int try = 0; try < (quick && dev->is_gpu ? 2 : 2 * 3 * 3) * ROUND_DOWN; try++) if (in_part()) rounding_promises(dev, try);
        if ((!quick || !dev->is_gpu) && in_part()) rounding_by_chance(dev);
        on_gpu |= dev->is_gpu;
    }
    for (int i = 0; i < SMALL + (quick ? 0 : LARGE); i++) {
        const Shape *s = i < SMALL ? &small[i] : &large[i - SMALL];
        if (quick && on_gpu && strcmp(s->name, "odd")) continue;
        is_small = s->B * s->T * s->F < 10000;              /* finite differences call the forward hundreds of times */
        each_case(s, 1, check_case, &is_small);
    }
    for (int i = 0; i < TILES && quick && on_gpu; i++) each_case(&tiles[i], 1, i ? check_products : check_all, NULL);
    for (int i = 0; i < SPECIAL && (!quick || on_gpu); i++) {
        char only[32];
        snprintf(only, sizeof only, "%s", special[i].only);
        each_case(&special[i].s, 1, check_special, only);
    }
    omp_set_num_threads(threads);
}

/* ---- the ladder: every rung of kernels/ladder on the cases of its operation ------------------------------- */

#ifdef WITH_CUDA
static void check_rungs(Case *c, void *gpu) {
    const Rung *rung;
    for (int i = 0; (rung = ladder_list(i)); i++) {
        const Device dev = ladder_device(gpu, rung);
        if (!strcmp(c->op, rung->op) && in_part()) against_oracle(c, &dev, device_find("cpu-f64"));
    }
}
void test_ladder(void) {
    Device gpu = *device_find("cuda-bf16");
    if (!is_tested(&gpu)) return;
    if (gpu.open(0)) { skip("there is no GPU here"); return; }
    for (int i = 0; i < SMALL && !quick; i++) each_case(&small[i], 1, check_rungs, &gpu);
    for (int i = 0; i < LARGE && !quick; i++) each_case(&large[i], 1, check_rungs, &gpu);
    for (int i = 0; i < TILES; i++) each_case(&tiles[i], 1, check_rungs, &gpu);
}
#else
void test_ladder(void) { skip("the rungs run on GPUs, and this build has no CUDA"); }
#endif
