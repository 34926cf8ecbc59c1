/* oracle.c: what each operation must return: its definition in kernels.h once more, in double and
 * as naively as possible; and how far a result may be from it. Devices are not called here. */
#include "ops.h"
#include "llmc/base/random.h"

/* ---- the definitions, in the order of kernels.h ---------------------------------------------- */

static int K_of(const Case *c) { return c->s.K; }
static int expert_of(const Case *c, double **v, int slot) {
    int e = 0;
    while (v[c->plan + 3][slot] >= v[c->plan][e + 1]) e++;
    return e;
}
static size_t row_of(const Case *c, double **v, int slot, Rows rows) {
    return (size_t)(rows == BY_TOKEN ? slot / K_of(c) : rows == BY_SLOT ? slot : (int)v[c->plan + 3][slot]);
}
/* Definitions of a line: of element i of row n, of element i. */
#define ROWS(op, definition) static void naive_##op(const Case *c, double **v) { \
    for (int n = 0; n < c->N; n++) for (int i = 0; i < c->C; i++) definition; \
}
#define ELEMENTS(op, definition) static void naive_##op(const Case *c, double **v) { \
    for (size_t i = 0; i < c->buffer[0].n; i++) definition; \
}
ROWS(embed_forward, v[0][n*c->C + i] = v[2][(int)v[1][n]*c->C + i])
ROWS(columns_add, v[0][n*c->stride + c->count + i] += v[1][n*c->C + i])
ROWS(columns_put, v[0][n*c->stride + c->count + i] = v[1][n*c->C + i])
ROWS(columns_take, v[0][n*c->C + i] = v[1][n*c->stride + c->count + i])
ROWS(bias_forward, v[0][n*c->C + i] += v[1][i])
ROWS(cache_store, v[0][(int)v[2][n]*c->C + i] = v[1][n*c->C + i])
ELEMENTS(scale, v[0][i] *= (double)c->scale)
ELEMENTS(scale_weights, v[0][i] = (double)c->scale * v[1][i])
ELEMENTS(accumulate, v[0][i] += v[1][i])
ELEMENTS(soft_cap, v[0][i] = (double)c->cap * (1 - 2 / (exp(2 * v[0][i] / (double)c->cap) + 1)))
static void naive_rmsnorm_forward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) {
        double mean = 0;
        for (int i = 0; i < c->C; i++) mean += v[2][n*c->C + i] * v[2][n*c->C + i] / c->C;
        v[1][n] = 1 / sqrt(mean + (double)c->eps);
        for (int i = 0; i < c->C; i++) v[0][n*c->C + i] = v[2][n*c->C + i] * v[1][n] * v[3][i];
    }
}
static void naive_shift_keys(const Case *c, double **v) {
    const int G = c->s.G, D = c->s.D;
    for (int n = 0; n < c->N; n++) for (int i = 0; i < G*D; i++) {
        const int first = v[3][n] == 0, next = n + 1 < c->N && v[3][n + 1] > 0;
        if (i % (D/2) < D/4) continue;
        v[0][n*2*G*D + i] = v[2] ? v[first ? 1 : 2][n*G*D + i]
                                 : (first ? v[1][n*G*D + i] : 0) + (next ? v[1][(n + 1)*G*D + i] : 0);
    }
}
static void naive_rope(const Case *c, double **v) {
    const int half = c->s.D / 2;
    for (int n = 0; n < c->N; n++) for (int h = 0; h < c->heads; h++) for (int i = 0; i < half; i++) {
        const double *table = v[1] + (int)v[2][n] * c->s.D + 2*i;
        double *re = v[0] + n*c->stride + h*c->s.D + i, *im = re + half, a = *re, b = *im;
        *re = a * table[0] - b * table[1] * c->direction;
        *im = a * table[1] * c->direction + b * table[0];
    }
}
static void naive_norm_rope_forward(const Case *c, double **v) {
    const int D = c->s.D;
    for (int n = 0; n < c->N; n++) for (int h = 0; h < c->heads; h++) {
        double *x = v[0] + n*c->stride + h*D, mean = 0;
        for (int i = 0; i < D; i++) {
            if (v[1]) v[1][(n*c->heads + h)*D + i] = x[i];
            mean += x[i] * x[i] / D;
        }
        for (int i = 0; i < D; i++) x[i] *= v[4][i] / sqrt(mean + (double)c->eps);
    }
    Case rotated = *c;
    double *w[3] = { v[0], v[2], v[3] };
    rotated.direction = 1;
    naive_rope(&rotated, w);
}
/* With J the Jacobian of x r, dx = J^T (w dn): J_ij = r [i = j] - r^3 x_i x_j / D. */
static void naive_norm_rope_backward(const Case *c, double **v) {
    const int D = c->s.D;
    Case rotated = *c;
    double *w[3] = { v[0], v[3], v[4] }, *dx = mem_alloc((size_t)D * sizeof *dx);
    rotated.direction = -1;
    naive_rope(&rotated, w);
    for (int n = 0; n < c->N; n++) for (int h = 0; h < c->heads; h++) {
        double *dn = v[0] + n*c->stride + h*D, *x = v[2] + (n*c->heads + h)*D, mean = 0;
        for (int i = 0; i < D; i++) mean += x[i] * x[i] / D;
        const double r = 1 / sqrt(mean + (double)c->eps);
        for (int i = 0; i < D; i++) {
            dx[i] = 0;
            for (int j = 0; j < D; j++) dx[i] += v[5][j] * dn[j] * (r * (i == j) - r*r*r * x[i] * x[j] / D);
            v[1][i] += dn[i] * x[i] * r;
        }
        memcpy(dn, dx, (size_t)D * sizeof *dx);
    }
    free(dx);
}
uint64_t splitmix64(uint64_t state) {
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
    state = (state ^ state >> 27) * 0x94D049BB133111EBu;
    return state ^ state >> 31;
}
static double gate_at(const double *gate, int i) { return gate ? 2 / (1 + exp(-gate[i])) : 1; }
static void naive_value_forward(const Case *c, double **v) {
    const int G = c->s.G, D = c->s.D;
    for (int n = 0; n < c->N; n++) for (int g = 0; g < G; g++) for (int i = 0; i < D; i++)
        v[0][((n*2 + 1)*G + g)*D + i] += gate_at(v[1], n*G + g) * v[3][((int)v[2][n]*G + g)*D + i];
}
static void naive_value_backward(const Case *c, double **v) {
    const int G = c->s.G, D = c->s.D;
    for (int n = 0; n < c->N; n++) for (int g = 0; g < G; g++) {
        const double f = gate_at(v[3], n*G + g), *d = v[2] + ((n*2 + 1)*G + g)*D;
        for (int i = 0; i < D; i++) {
            v[0][(n*G + g)*D + i] = f * d[i];
            v[1][n*G + g] += d[i] * v[5][((int)v[4][n]*G + g)*D + i] * f * (2 - f) / 2;
        }
    }
}
/* What x (its factor), first and extra add to an element. first and extra may be NULL. */
static void mix_parts(double part[3], double factor[3], double *const *v, size_t i) {
    factor[0] = v[0] ? exp(v[2][0]) : 1, factor[1] = v[2][1], factor[2] = 1 + v[2][2];
    part[1] = v[0] ? v[0][i] : 0, part[2] = v[1] ? v[1][i] : 0;
}
static void naive_mix_forward(const Case *c, double **v) {
    double part[3], factor[3];
    for (size_t i = 0; i < c->buffer[0].n; i++) {
        mix_parts(part, factor, v + 1, i);
        v[0][i] = factor[0] * v[0][i] + factor[1] * part[1] + factor[2] * part[2];
    }
}
static void naive_mix_backward(const Case *c, double **v) {
    double part[3], factor[3];
    for (size_t i = 0; i < c->buffer[0].n; i++) {
        const double d = v[0][i];
        mix_parts(part, factor, v + 5, i);
        if (v[5]) v[3][0] += d * (v[4][i] - factor[1] * part[1] - factor[2] * part[2]);
        for (int j = 1; j < 3; j++) {
            v[3][j] += d * part[j];
            if (v[j]) v[j][i] += factor[j] * d;
        }
        v[0][i] = factor[0] * d;
    }
}
static void naive_bigram_rows(const Case *c, double **v) {
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    for (int n = 0; n < c->N; n++) {
        if (v[5]) v[2][(int)v[5][n]] = v[3][n];
        v[1][n] = v[4][n] <= 0 ? 0 : 1 + (v[5] ? v[2][(int)v[5][n] - 1] : v[3][n - 1]);
        const uint64_t pair = ((uint64_t)v[1][n] << 32) + (uint64_t)v[3][n];
        v[0][n] = (double)((splitmix64(pair + (((uint64_t)1 << 32) + 1) * golden) >> 33) % (uint64_t)c->used);
    }
}
static void naive_flip_signs(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) for (int i = 0; i < c->C; i++) {
        const uint64_t pair = ((uint64_t)v[2][n] << 32) + (uint64_t)v[1][n];
        if (splitmix64(pair + ((uint64_t)i / 64 + 1) * 0x9E3779B97F4A7C15u) >> i % 64 & 1) v[0][n*c->C + i] *= -1;
    }
}
static void naive_shared_keys_forward(const Case *c, double **v) {
    const int G = c->s.G, D = c->s.D, key = c->count, value = c->C;
    for (int n = 0; n < c->N; n++) for (int g = 0; g < G; g++) for (int i = 0; i < D; i++) {
        const double *head = v[1] + (n*G + g)*(key + value);
        v[0][((n*2 + 0)*G + g)*D + i] = i < key ? head[i] : v[2][n*(D - key) + i - key];
        v[0][((n*2 + 1)*G + g)*D + i] = i < value ? head[key + i] : 0;
    }
}
static void naive_expert_bias_forward(const Case *c, double **v) {
    const double *start = v[c->plan];
    for (int e = 0; e < c->s.E; e++) for (int row = (int)start[e]; row < (int)start[e + 1]; row++)
        for (int i = 0; i < c->C; i++) v[0][row*c->C + i] += v[1][e*c->C + i];
}
/* Dropout keeps element i if its 16 bits of splitmix64's number i / 4 are large enough. */
static double dropped(const Case *c, size_t i, double x) {
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    const uint64_t here = splitmix64(splitmix64(c->key + ((uint64_t)c->site + 1) * golden) + 0x6D6F66 * golden);
    const uint64_t four = splitmix64(here + (i / 4 + 1) * golden);
    double draw = (double)(four / (uint64_t)pow(2, i % 4 * 16.0) % 65536);
    return draw < floor((double)c->p * 65536) ? 0 : x / (1 - (double)c->p) * (c->scale != 0 ? (double)c->scale : 1);
}
ELEMENTS(residual, v[0][i] = v[1][i] + dropped(c, i, v[2][i]))
ELEMENTS(dropout, v[0][i] = dropped(c, i, v[1][i]))
static void row_times_weight(double *y, const double *x, const double *weight, int C, int O) {
    for (int o = 0; o < O; o++) for (int i = 0; i < C; i++) y[o] += x[i] * weight[o*C + i];
}
static void naive_matmul_forward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) row_times_weight(v[0] + n*c->O, v[1] + n*c->C, v[2], c->C, c->O);
}
static void naive_parallel_linear_forward(const Case *c, double **v) {
    const size_t C = (size_t)c->C, O = (size_t)c->O;
    for (int s = 0; s < c->S; s++) {
        const size_t e = (size_t)expert_of(c, v, s);
        double *y = v[0] + row_of(c, v, s, c->to) * O;
        row_times_weight(y, v[1] + row_of(c, v, s, c->from) * C, v[2] + e*O*C, c->C, c->O);
    }
}
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double router_score(const Case *c, double logit, double sum, double bias) {
    return bias + (c->scores >= SIGMOID_TOPK ? sigmoid(logit) : SCORES_ARE_P(c->scores) ? exp(logit) / sum : logit);
}
/* How many groups have a larger sum of two scores than that of expert e: the largest sum over
 * pairs, so that nothing is sorted. Or a larger score. */
static int better_groups(const Case *c, const double *x, const double *bias, double sum, int e) {
    const int width = c->groups.count > 1 ? c->s.E / c->groups.count : c->s.E;
    double best[MOST_GROUPS];
    int better = 0;
    for (int g = 0; g < c->groups.count; g++) {
        best[g] = -INFINITY;
        for (int i = g * width; i < (g + 1) * width; i++)
            if (c->groups.by_best) best[g] = fmax(best[g], router_score(c, x[i], sum, bias ? bias[i] : 0));
            else for (int j = i + 1; j < (g + 1) * width; j++)
                best[g] = fmax(best[g], router_score(c, x[i], sum, bias ? bias[i] : 0)
                               + router_score(c, x[j], sum, bias ? bias[j] : 0));
    }
    for (int g = 0; g < c->groups.count; g++)
        better += best[g] > best[e / width] || (best[g] == best[e / width] && g < e / width);
    return better;
}
static void naive_router_forward(const Case *c, double **v) {
    const int E = c->s.E, K = c->s.K;
    for (int n = 0; n < c->N; n++) {
        const double *x = v[3] + n*E;
        double sum = 0, kept = 0;
        for (int e = 0; e < E; e++) sum += exp(x[e]);
        v[2][n] = log(sum);
        for (int e = 0; e < E; e++) {                       /* its rank: how many have precedence */
            int rank = 0;
            const int groups = c->groups.count > 1;
            if (groups && better_groups(c, x, v[4], sum, e) >= c->groups.chosen) continue;
            const double own = router_score(c, x[e], sum, v[4] ? v[4][e] : 0);
            for (int i = 0; i < E; i++) {
                const double other = router_score(c, x[i], sum, v[4] ? v[4][i] : 0);
                if (groups && better_groups(c, x, v[4], sum, i) >= c->groups.chosen) continue;
                rank += other > own || (other == own && i < e);
            }
            if (rank < K && !c->forced) v[0][n*K + rank] = e;
        }
        for (int k = 0; k < K; k++) {
            if (c->forced) v[0][n*K + k] = (n*K + k) % E;
            double l = x[(int)v[0][n*K + k]];
            v[1][n*K + k] = c->scores >= SIGMOID_TOPK ? sigmoid(l) : exp(l);
            kept += v[1][n*K + k];
        }
        for (int k = 0; k < K; k++)
            v[1][n*K + k] /= SUMS_TO_ONE(c->scores) ? kept : c->scores == SOFTMAX_TOPK ? sum : 1;
    }
}
static void naive_router_losses(const Case *c, double **v) {
    const int E = c->s.E;
    const double tokens = v[5][0];
    for (int n = 0; n < c->N; n++) {
        if (v[4] && (int)v[4][n] == FILLER) continue;
        double sum = 0, all = 0;
        for (int e = 0; e < E; e++) { sum += sigmoid(v[1][n*E + e]); all += exp(v[1][n*E + e]); }
        for (int e = 0; e < E; e++) {
            double p = c->scores >= SIGMOID_TOPK ? sigmoid(v[1][n*E + e]) / sum : exp(v[1][n*E + e]) / all;
            v[0][0] += (double)E / c->s.K * v[3][e] / tokens * p / (tokens / c->ranks);
        }
        v[0][1] += pow(log(all), 2) / (tokens / c->ranks);
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
static void naive_route_discount(const Case *c, double **v) {
    for (int s = 0; s < c->S; s++) v[0][(int)v[1][s]] -= (int)v[2][s / c->s.K] == FILLER;
}
/* Rounded routing: of the tokens in the order of their scores an expert keeps the first `rows`. */
static float score_of(const Case *c, double **v, int n, int e) {
    float score = (float)(v[9][n*c->s.E + e] - (c->scores >= SIGMOID_TOPK ? 0 : v[10][n]));
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
    int *rank = mem_alloc(((size_t)N + 1) * sizeof *rank), row = 0, slot = 0;
    char *kept = mem_alloc((size_t)N * (size_t)E + 1);
    for (int e = 0; e < E; e++) {
        int f = 0;
        for (int n = 0; n < N; n++) f += chose(c, v, n, e);
        const int lo = f / T * T, hi = (f + T - 1) / T * T;
        for (int n = 0; n < N; n++) {
            const int mine = chose(c, v, n, e);
            rank[n] = 0;
            for (int i = 0; i < N; i++) {
                const int its = chose(c, v, i, e);
                const float a = score_of(c, v, i, e), b = score_of(c, v, n, e);
                rank[n] += its > mine || (its == mine && (a > b || (a == b && i < n)));
            }
        }
        const int rows = hi > N ? f : hi - f < f - lo ? hi : lo;
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
            sum += v[7][slot++] = c->scores >= SIGMOID_TOPK ? sigmoid(v[9][n*E + e]) : exp(v[9][n*E + e] - v[10][n]);
        }
        for (int s = (int)v[4][n]; s < slot && SUMS_TO_ONE(c->scores); s++) v[7][s] /= sum;
    }
    v[4][N] = slot;
    free(rank), free(kept);
}
static void naive_router_bias(const Case *c, double **v) {
    for (int e = 0; e < c->s.E; e++) {
        double excess = v[1][e] * c->s.E - c->S;            /* E times the load above the mean: a whole number */
        if (c->relative) v[0][e] -= c->S ? (double)c->rate * excess / c->S : 0;
        else v[0][e] += excess < 0 ? (double)c->rate : excess > 0 ? -(double)c->rate : 0;
    }
}
static void naive_combine_forward(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) for (int i = 0; i < c->C; i++) {
        double sum = v[3] ? v[3][i] : 0;
        for (int s = n * K_of(c); s < (n + 1) * K_of(c); s++)
            sum += (v[2] ? v[2][s] : 1) * v[1][row_of(c, v, s, c->from) * (size_t)c->C + (size_t)i];
        v[0][n*c->C + i] = sum;
    }
}
static double activate(Activation f, const double *pre, int F) {
    double x = *pre;
    switch (f) {
    case SWIGLU: return x * sigmoid(x) * pre[F];
    case CLAMPED: return fmin(x, 7) * sigmoid(1.702 * fmin(x, 7)) * (fmax(-7, fmin(pre[F], 7)) + 1);
    case GELU:   return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case RELU2:  return x > 0 ? x * x : 0;
    default:     return x;
    }
}
static void naive_activation_forward(const Case *c, double **v) {
    for (int m = 0; m < c->M; m++) for (int i = 0; i < c->F; i++)
        v[0][m*c->F + i] = activate(c->f, v[1] + m*c->F * (IS_GATED(c->f) ? 2 : 1) + i, c->F);
}
static void naive_activation_backward(const Case *c, double **v) {        /* only wact: the others are gradients */
    const int grouped = v[5] && c->from == GROUPED;
    free(v[0]), free(v[2]), v[0] = v[2] = NULL;
    for (int m = 0; m < c->M; m++) for (int i = 0; i < c->F; i++) {
        const double act = activate(c->f, v[4] + m*c->F * (IS_GATED(c->f) ? 2 : 1) + i, c->F);
        v[1][m*c->F + i] = act * (v[5] ? v[5][grouped ? (int)v[c->plan + 1][m] : m] : 1);
    }
}
/* ---- 8 bits: x as f32 becomes the code whose value is nearest, of all codes; of two the even
 *      one ------------------------------------------------------------------------------------- */

static int nearest_code(double x) {
    static double value[0x7f];
    int best = 0;
    for (int code = 0; code < 0x7f && value[0x7e] == 0; code++) value[code] = case_e4m3(code);
    if (isnan(x)) return 0x7f;
    for (int code = 1; code < 0x7f; code++) {
        const double here = fabs(value[code] - fabs(x)), there = fabs(value[best] - fabs(x));
        if (here < there || (here == there && code % 2 == 0)) best = code;
    }
    return best | (signbit(x) ? 0x80 : 0);
}
static double nearest_value(double x) { return case_e4m3(nearest_code(x)); }
/* The scale of n values in rows of `wide`, `stride` apart. */
static double scale_for(const double *x, int n, int wide, int stride) {
    double largest = 0, scale = 0x1p-117;
    for (int i = 0; i < n; i++) {
        const double magnitude = fabs((double)(float)x[i / wide * stride + i % wide]);
        if (!isfinite(magnitude)) return NAN;
        largest = fmax(largest, magnitude);
    }
    while (largest > 448 * scale) scale *= 2;
    return scale;
}
static void naive_fp8_rows(const Case *c, double **v) {
    for (int i = 0; i < c->N * c->C; i++) {
        double *scale = v[1] + i / FP8_BLOCK;
        if (i % FP8_BLOCK == 0) *scale = scale_for(v[2] + i, FP8_BLOCK, FP8_BLOCK, 0);
        v[0][i] = nearest_code((double)(float)v[2][i] / *scale);
    }
}
static void naive_codes(const Case *c, double *code, double *scales, const double *weight) {
    const int O = c->O, C = c->C, across = (C + FP8_BLOCK - 1) / FP8_BLOCK, down = (O + FP8_BLOCK - 1) / FP8_BLOCK;
    for (int e = 0; e < c->s.E; e++) for (int o = 0; o < O; o++) for (int i = 0; i < C; i++) {
        double *const scale = scales + (e*down + o / FP8_BLOCK) * across + i / FP8_BLOCK;
        const double *const block = weight + (e*O + o / FP8_BLOCK * FP8_BLOCK) * C + i / FP8_BLOCK * FP8_BLOCK;
        const int wide = C - i < FP8_BLOCK - i % FP8_BLOCK ? C % FP8_BLOCK : FP8_BLOCK,
            high = O - o < FP8_BLOCK - o % FP8_BLOCK ? O % FP8_BLOCK : FP8_BLOCK;
        if (o % FP8_BLOCK == 0 && i % FP8_BLOCK == 0) *scale = scale_for(block, high * wide, wide, C);
        code[(e*O + o) * C + i] = nearest_code((double)(float)weight[(e*O + o) * C + i] / *scale);
    }
}
static void naive_weight_to_codes(const Case *c, double **v) { naive_codes(c, v[0], v[1], v[2]); }
static void naive_fp8_weight(const Case *c, double **v) {
    const int O = c->O, C = c->C, down = O / FP8_BLOCK, across = C / FP8_BLOCK;
    naive_codes(c, v[0], v[1], v[4]);
    for (int e = 0; e < c->s.E; e++) for (int o = 0; o < O; o++) for (int i = 0; i < C; i++) {
        v[2][(e*C + i) * O + o] = v[0][(e*O + o) * C + i];
        v[3][(e*across + i / FP8_BLOCK) * down + o / FP8_BLOCK] =
            v[1][(e*down + o / FP8_BLOCK) * across + i / FP8_BLOCK];
    }
}
static void naive_weight_from_codes(const Case *c, double **v) {
    static const double e2m1[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    const int O = c->O, C = c->C, across = (C + FP8_BLOCK - 1) / FP8_BLOCK, down = (O + FP8_BLOCK - 1) / FP8_BLOCK;
    for (int i = 0; i < c->s.E * O * C; i++) {
        const int row = i / C, code = (int)v[1][c->stride ? i / 2 : i] >> (c->stride && i % 2 ? 4 : 0);
        const int block = (row / O * down + row % O / FP8_BLOCK) * across + i % C / FP8_BLOCK;
        const double byte = c->stride ? v[2][i / MXFP4_BLOCK] : 0,
            scale = !c->stride ? v[2][block] : byte >= 255 ? NAN : exp2(byte - 127);
        v[0][i] = scale * (c->stride ? e2m1[code & 7] * (code & 8 ? -1 : 1) : case_e4m3(code));
    }
}
static double *decoded_rows(double **code, int rows, int C) {
    double *x = mem_alloc((size_t)(rows * C) * sizeof *x);
    for (int i = 0; i < rows * C; i++) x[i] = case_e4m3((int)code[0][i]) * code[1][i / FP8_BLOCK];
    return x;
}
static double *decoded_weight(double **code, int rows, int C) {
    double *x = mem_alloc((size_t)(rows * C) * sizeof *x);
    for (int i = 0; i < rows * C; i++)
        x[i] = case_e4m3((int)code[0][i]) * code[1][i / C / FP8_BLOCK * (C / FP8_BLOCK) + i % C / FP8_BLOCK];
    return x;
}
/* out (S,O) GROUPED from the codes of rows and weights. */
static void naive_fp8_product(const Case *c, double **v, double *out, double **inp, double **weight, Rows rows,
                              int C, int O) {
    double *x = decoded_rows(inp, rows == BY_TOKEN ? c->N : c->S, C), *w = decoded_weight(weight, c->s.E * O, C);
    for (int e = 0; e < c->s.E; e++) for (int r = (int)v[c->plan][e]; r < (int)v[c->plan][e + 1]; r++)
        row_times_weight(out + r*O, x + (rows == BY_TOKEN ? (int)v[c->plan + 2][r] : r) * C, w + e*O*C, C, O);
    free(x), free(w);
}
static void naive_fp8_linear(const Case *c, double **v) {
    naive_fp8_product(c, v, v[0], v + 1, v + 3, GROUPED, c->C, c->O);
}
/* n values of rows, each as its code has it. */
static void through_codes(double *x, int n) {
    for (int i = 0; i < n; i += FP8_BLOCK) {
        const double scale = scale_for(x + i, FP8_BLOCK, FP8_BLOCK, 0);
        for (int j = i; j < i + FP8_BLOCK; j++) x[j] = nearest_value((double)(float)x[j] / scale) * scale;
    }
}
static void naive_fp8_up_forward(const Case *c, double **v) {
    const int F = c->F;
    naive_fp8_product(c, v, v[0], v + 3, v + 5, BY_TOKEN, c->C, 2*F);
    for (int i = 0; i < c->S * F; i++) v[1][i] = activate(SWIGLU, v[0] + i / F * 2*F + i % F, F);
    through_codes(v[1], c->S * F);
}
static void naive_fp8_down_backward(const Case *c, double **v) {
    const int F = c->F, S = c->S;
    double *da = mem_alloc((size_t)(S * F) * sizeof *da), *dpre = mem_alloc((size_t)(2 * S * F) * sizeof *dpre),
        *wact = mem_alloc((size_t)(S * F) * sizeof *wact);
    naive_fp8_product(c, v, da, v + 7, v + 9, BY_TOKEN, c->C, F);
    for (int i = 0; i < S * F; i++) {
        const int r = i / F, slot = (int)v[c->plan + 1][r];
        const double g = v[11][r*2*F + i % F], u = v[11][r*2*F + F + i % F], w = v[12][slot], s = sigmoid(g);
        v[6][slot] += da[i] * g * s * u;
        wact[i] = w * g * s * u;
        dpre[r*2*F + i % F] = w * da[i] * u * (s + g * s * sigmoid(-g));
        dpre[r*2*F + F + i % F] = w * da[i] * g * s;
    }
    if (v[0]) memcpy(v[0], dpre, (size_t)(2 * S * F) * sizeof *dpre);
    if (v[3]) memcpy(v[3], wact, (size_t)(S * F) * sizeof *wact);
    if (v[1]) memcpy(v[1], dpre, (size_t)(2 * S * F) * sizeof *dpre), through_codes(v[1], 2 * S * F);
    if (v[4]) memcpy(v[4], wact, (size_t)(S * F) * sizeof *wact), through_codes(v[4], S * F);
    free(da), free(dpre), free(wact);
}
/* Where row r of expert e is among columns, and its column i. */
static int column_at(const Case *c, double **v, int e, int r, int C, int i) {
    const int row = ((int)v[c->plan][e] / FP8_BLOCK + e) * FP8_BLOCK + r - (int)v[c->plan][e];
    return (row / FP8_BLOCK * C + i) * FP8_BLOCK + row % FP8_BLOCK;
}
/* What no row is for stays as case_allocate has filled it. */
static void naive_fp8_columns(const Case *c, double **v) {
    const int C = c->C, across = C / FP8_BLOCK;
    for (size_t i = 0; i < c->buffer[0].n; i++) v[0][i] = 0x7f;
    for (size_t i = 0; i < c->buffer[1].n; i++) v[1][i] = NAN;
    for (int e = 0; e < c->s.E; e++) {
        const int first = (int)v[c->plan][e], end = (int)v[c->plan][e + 1];
        for (int top = first; top < end; top += FP8_BLOCK) for (int i = 0; i < C; i++) {
            double *scale = v[1] + column_at(c, v, e, top, C, i) / FP8_BLOCK / C * across + i / FP8_BLOCK;
            for (int pass = 0; pass < 2; pass++) for (int r = top; r < top + FP8_BLOCK; r++) {
                const int row = r >= end ? 0 : c->from == BY_TOKEN ? (int)v[c->plan + 2][r] : r;
                const double its = v[3][row*across + i / FP8_BLOCK], x = case_e4m3((int)v[2][row*C + i]) * its;
                if (pass) v[0][column_at(c, v, e, r, C, i)] = r < end ? nearest_code(x / *scale) : 0;
                /* NaN stays */
                else if (r < end) *scale = r == top || isnan(its) || its > *scale ? its : *scale;
            }
        }
    }
}
/* Row r of expert e from columns of width C. free() it. */
static double *row_of_columns(const Case *c, double **v, double **code, int e, int r, int C) {
    double *x = mem_alloc((size_t)C * sizeof *x);
    for (int i = 0; i < C; i++) {
        const int at = column_at(c, v, e, r, C, i);
        x[i] = case_e4m3((int)code[0][at]) * code[1][at / FP8_BLOCK / C * (C / FP8_BLOCK) + i / FP8_BLOCK];
    }
    return x;
}
static void naive_fp8_backward_weight(const Case *c, double **v) {
    const int O = c->O, C = c->C;
    for (int e = 0; e < c->s.E; e++) for (int r = (int)v[c->plan][e]; r < (int)v[c->plan][e + 1]; r++) {
        double *dy = row_of_columns(c, v, v + 1, e, r, O), *x = row_of_columns(c, v, v + 3, e, r, C);
        for (int o = 0; o < O; o++) for (int i = 0; i < C; i++) v[0][(e*O + o) * C + i] += dy[o] * x[i];
        free(dy), free(x);
    }
}
/* One query (D) over the positions first ... seen-1 of the keys and values of head h; returns the
 * log of the sum, to which the sink, if any, adds. */
static double attend(const Case *c, double *y, const double *q, const double *kv, const double *sink, int h,
                     int first, int seen) {
    const int G = c->s.G, D = c->s.D, g = c->order == HEADS_TILED ? h % G : h / c->s.Q;
    double total = sink ? exp(sink[h]) : 0;
    for (int pass = 0; pass < 2; pass++) for (int j = first; j < seen; j++) {
        const double *k = kv + j*2*G*D + g*D, *value = k + G*D;
        double dot = 0;
        for (int d = 0; d < D; d++) dot += q[d] * k[d] / sqrt(D);
        if (!pass) total += exp(dot);
        else for (int d = 0; d < D; d++) y[d] += exp(dot) / total * value[d];
    }
    return log(total);
}
static void naive_attention_forward(const Case *c, double **v) {
    const int H = c->s.Q * c->s.G, D = c->s.D, limited = case_find(c, "reach");
    for (int b = 0; b < c->s.B; b++) for (int t = 0; t < c->s.T; t++) for (int h = 0; h < H; h++) {
        const int n = b*c->s.T + t, at = n*H + h, first = limited < 0 ? 0 : t - (int)v[limited][n];
        v[1][at] = attend(c, v[0] + at*D, v[2] + at*D, v[3] + b*c->s.T*2*c->s.G*D, NULL, h, first, t + 1);
    }
}
static void naive_attention_cached(const Case *c, double **v) {
    const int H = c->s.Q * c->s.G, D = c->s.D;
    for (int b = 0; b < c->s.B; b++) for (int h = 0; h < H; h++)
        attend(c, v[0] + (b*H + h)*D, v[1] + (b*H + h)*D, v[2] + b*c->s.T*2*c->s.G*D, v[3], h,
               c->window ? (int)fmax(v[4][b] + 1 - c->window, 0) : 0, (int)v[4][b] + 1);
}
static void naive_sink_forward(const Case *c, double **v) {
    const int H = c->s.Q * c->s.G, D = c->s.D;
    for (int i = 0; i < c->N * H; i++) {
        const double was = exp(v[1][i]), all = was + exp(v[2][i % H]);
        for (int d = 0; d < D; d++) v[0][i*D + d] *= was / all;
        v[1][i] = log(all);
    }
}
/* Keeps the most likely tokens within the limits, in order; adds up their probabilities to the
 * draw. */
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
    free(order), free(p);
}
static void naive_advance(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) {
        v[0][n]++;
        v[1][n]++;
        v[2][(int)v[0][n]*c->N + n] = v[3][n];
    }
}
static double slope_of(const Case *c, double y) {           /* of y = cap tanh(x / cap) */
    return c->cap > 0 ? 1 - y * y / ((double)c->cap * (double)c->cap) : 1;
}
static void naive_cross_entropy(const Case *c, double **v) {
    for (int n = 0; n < c->N; n++) {
        double *x = v[1] + n*c->s.V, sum = 0, relative = 0;
        for (int i = 0; i < c->s.V && c->cap > 0; i++) x[i] = (double)c->cap * tanh(x[i] / (double)c->cap);
        const int target = (int)v[2][n], further = c->buffer[4].n > 0;
        double weight[3] = { v[3][0] };
        for (int i = 1; further && i < 3 && v[4][n + i] > 0; i++) weight[i] = v[2][n + i] < 0 ? 0 : v[3][i];
        for (int i = 0; i < c->used; i++) { sum += exp(x[i]); if (target >= 0) relative += exp(x[i] - x[target]); }
        v[0][n] = target < 0 ? 0 : log(relative);
        for (int i = 0; c->gradient && i < c->s.V; i++) {
            double slope = 0;
            for (int t = 0; t < 3 && target >= 0 && i < c->used; t++)
                slope += weight[t] * (exp(x[i]) / sum - (weight[t] > 0 && i == (int)v[2][n + t]));
            x[i] = slope * slope_of(c, x[i]);
        }
    }
}
static void naive_fp8_cross_entropy(const Case *c, double **v) {
    const size_t bytes = (size_t)(c->N * c->s.V) * sizeof *v[1];
    double *logits = mem_alloc(bytes);
    memcpy(logits, v[1], bytes);
    naive_cross_entropy(c, v);
    memcpy(v[5], v[1], bytes), memcpy(v[1], logits, bytes);
    through_codes(v[5], c->N * c->s.V);
    free(logits);
}
static void naive_sum(const Case *c, double **v) { for (size_t i = 0; i < c->buffer[1].n; i++) v[0][0] += v[1][i]; }
static void naive_grad_sq_norms(const Case *c, double **v) {
    for (int s = 0; s < c->count; s++) for (size_t i = 0; i < c->segment[s].count; i++) {
        double x = v[1][c->segment[s].offset + i];
        v[0][s] += x * x;
        v[0][c->count] += x * x;
    }
}
static void naive_adamw(const Case *c, double **v) {
    const double norm = sqrt(v[5][c->count]), clip = (double)c->adamw.clip;
    const double shrink = clip > 0 ? fmin(1, clip / norm) : 1;
    if (!isfinite(norm)) return;
    for (int s = 0; s < c->count; s++)
        for (size_t i = c->segment[s].offset; i < c->segment[s].offset + c->segment[s].count; i++) {
            const double lr = (double)c->adamw.lr * (double)c->segment[s].rate;
            const AdamBetas own = { c->adamw.beta1, c->adamw.beta2, c->adamw.eps, 0, 0 };
            const AdamBetas a = c->segment[s].is_table ? c->adamw.table : own;
            const double b1 = (double)a.beta1, b2 = (double)a.beta2;
            double g = v[4][i] * shrink, w = v[1] ? v[1][i] : v[0][i];
            v[2][i] = b1 * v[2][i] + (1 - b1) * g;
            v[3][i] = b2 * v[3][i] + (1 - b2) * g * g;
            double mean = v[2][i] / (1 - pow(b1, c->updates)), spread = sqrt(v[3][i] / (1 - pow(b2, c->updates)));
            const int decays = !c->adamw.cautious || mean * w > 0;
            w -= decays * lr * (double)c->adamw.decay * (double)c->segment[s].decay * w
                + lr * mean / (spread + (double)a.eps);
            v[0][i] = w;
            if (v[1]) v[1][i] = w;
        }
}
/* x (rows, columns), k = rows <= columns; the other way round it is transposed first. */
static void naive_newton_schulz(double *x, int rows, int columns) {
    const int k = rows < columns ? rows : columns, n = rows < columns ? columns : rows, down = rows <= columns ? n : 1,
        across = rows <= columns ? 1 : k;
    double *y = mem_alloc((size_t)(k * n) * sizeof *y), *a = mem_alloc((size_t)(k * k) * sizeof *a),
        *p = mem_alloc((size_t)(k * k) * sizeof *p), sum = 0;
#define X(i, j) x[(i) * down + (j) * across]
    for (int i = 0; i < k * n; i++) sum += x[i] * x[i];
    for (int i = 0; i < k * n; i++) x[i] = sum > (double)MUON_LEAST ? x[i] / sqrt(sum) : 0;
    for (int step = 0; step < 5; step++) {
        memset(a, 0, (size_t)(k * k) * sizeof *a);
        memset(y, 0, (size_t)(k * n) * sizeof *y);
        for (int i = 0; i < k; i++)
            for (int j = 0; j < k; j++) for (int l = 0; l < n; l++) a[i * k + j] += X(i, l) * X(j, l);
        for (int i = 0; i < k; i++) for (int j = 0; j < k; j++) {
            double square = 0;
            for (int l = 0; l < k; l++) square += a[i * k + l] * a[l * k + j];
            p[i * k + j] = (i == j) * 3.4445 - 4.7750 * a[i * k + j] + 2.0315 * square;
        }
        for (int i = 0; i < k; i++)
            for (int j = 0; j < k; j++) for (int l = 0; l < n; l++) y[i * n + l] += p[i * k + j] * X(j, l);
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
/* Momentum m of a case as numbers, and of part s as codes again, if it is codes. */
static double *numbers_of(const Case *c, double *m, const double *scale, size_t n) {
    if (c->moments != INT8) return m;
    double *x = mem_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (m[i] < 128 ? m[i] : m[i] - 256) * scale[i / MOMENT_BLOCK];
    return x;
}
static void coded_again(const Case *c, double *m, double *scale, const double *x, const Segment *s, uint64_t key) {
    for (size_t i = 0; i < s->count && c->moments == INT8; i += MOMENT_BLOCK) {
        const size_t at = s->offset - s->shift_m + i;
        double largest = ldexp(1, -100);                    /* a 127th of the largest, as f32; at least this */
        int exponent, finite = 1;
        for (size_t j = 0; j < MOMENT_BLOCK; j++) {
            largest = fmax(largest, (double)((float)fabs(x[at + j]) * (1 / 127.0f)));
            finite &= isfinite(x[at + j]) != 0;
        }
        frexp(largest, &exponent);
        const double unit = ldexp(floor(ldexp(largest, 8 - exponent)) + 1, exponent - 8);
        const double inverse = (double)(float)(1 / unit);
        scale[at / MOMENT_BLOCK] = finite ? unit : NAN;
        for (size_t j = 0; j < MOMENT_BLOCK; j++) {
            const double random = random_16(key, s->offset + i + j) / 65536.0,
                code = floor((double)(float)(x[at + j] * inverse + random));
            m[at + j] = !finite ? 127 : code < 0 ? code + 256 : code;
        }
    }
}
static void naive_muon_momentum(const Case *c, double **v) {
    const uint64_t key = random_key(c->muon.key, RANDOM_MOMENTUM);
    double *number = numbers_of(c, v[1], v[6], c->buffer[1].n);
    const double beta = (double)c->muon.momentum, ahead = (double)c->muon.ahead, norm = sqrt(v[3][0]),
        clip = (double)c->muon.clip;
    for (int e = 0; e < c->count && isfinite(norm); e++) {
        const Segment *s = &c->segment[e];
        for (size_t i = 0; i < s->count; i++) {
            double *m = &number[s->offset - s->shift_m + i];
            const double g = v[2] ? v[2][s->gradient + i] * (clip > 0 ? fmin(1, clip / norm) : 1) : 0;
            if (v[2]) *m = beta * *m + (1 - beta) * g;
            if (v[0]) v[0][s->muon_offset + i] = v[2] ? ahead * *m + (1 - ahead) * g : *m;
        }
        if (v[2]) coded_again(c, v[1], v[6], number, s, key);
    }
    if (number != v[1]) free(number);
}
static void naive_muon_limits(const Case *c, double **v) {
    const double beta = (double)c->muon.momentum, rho = (double)MUON_NORM_DECAY;
    for (int i = 0; i < c->count; i++) if (!isfinite(v[5][i])) v[3][i] = v[4][0] = v[5][i];
    for (int i = 0; i < c->count; i++) {
        const double n = sqrt(v[5][i]), *norms = v[1] + 2*i, most = (double)c->muon.most,
            l = norms[1] > 0 && norms[0] > 0 && most > 0 ? fmin(1, most * norms[0] / norms[1] / n) : 1;
        const int stop = v[4][0] != 0;
        v[0][2*i] = stop || v[2][i] > 0 ? 1 : beta, v[0][2*i + 1] = stop ? 0 : (1 - beta) * l;
        if (stop) continue;
        v[2][i] = 1;
        for (int k = 0; k < 2 && n > 0; k++) v[1][2*i + k] = rho * v[1][2*i + k] + (1 - rho) * (k ? 1 : n * l);
    }
}
static void naive_muon_add(const Case *c, double **v) {
    double *number = numbers_of(c, v[0], v[6], c->buffer[0].n);
    for (int e = 0; e < c->count; e++) {
        const Segment *s = &c->segment[e];
        const double keep = v[2][2*e], scale = v[2][2*e + 1];
        for (size_t i = 0; i < s->count; i++) {
            double *m = &number[s->offset - s->shift_m + i];
            *m = keep * *m + scale * v[1][s->gradient + i];
        }
        if (scale != 0) coded_again(c, v[0], v[6], number, s, random_key(c->key, RANDOM_MOMENTUM));
    }
    if (number != v[0]) free(number);
}
static void naive_muon_scale(const Case *c, double **v) {
    const int across = c->F < c->C, n = across ? c->C : c->F, other = across ? c->F : c->C;
    const double beta = (double)c->muon.second;
    for (int e = 0; e < c->count && isfinite(v[3][0]); e++) {
        const double *out = v[2] + (size_t)(e * n * other);
        double *scale = v[0] + (size_t)(e * n), *squares = v[1] + c->segment[e].squares, before = 0, after = 0;
        for (int i = 0; i < n; i++) {
            double sum = 0;
            for (int j = 0; j < other; j++) sum += pow(out[across ? j * n + i : i * other + j], 2);
            squares[i] = beta * squares[i] + (1 - beta) * sum / other;
            scale[i] = 1 / sqrt(fmax(squares[i], (double)MUON_LEAST_SQUARE));
            before += sum, after += sum * scale[i] * scale[i];
        }
        for (int i = 0; i < n; i++) scale[i] *= after > 0 ? sqrt(before / after) : 0;
    }
}
static void naive_muon_update(const Case *c, double **v) {
    const int across = c->F < c->C;
    if (!isfinite(v[4][0])) return;
    for (int e = 0; e < c->count; e++) for (size_t i = 0; i < c->segment[e].count; i++) {
        const Segment *s = &c->segment[e];
        const double lr = (double)c->muon.lr * (double)s->rate, size = 0.2 * sqrt(fmax(c->F, c->C));
        double *w = v[0] + s->offset + i;
        if (v[1]) w = v[1] + s->offset + i;
        const size_t each = (size_t)(c->F * c->C), at = s->muon_offset + i - (size_t)e * each,
            row = across ? at % (size_t)c->C : at / (size_t)c->C;
        const double o = v[2][s->muon_offset + i] * (v[3] ? v[3][(size_t)(e * (across ? c->C : c->F)) + row] : 1);
        const int decays = !c->muon.cautious || *w * o > 0;
        *w = *w * (1 - decays * lr * (double)c->muon.decay * (double)s->decay) - lr * size * o;
        v[0][s->offset + i] = *w;
    }
}
static void naive_set_master(const Case *c, double **v) { memcpy(v[0], v[1], c->buffer[0].n * sizeof(double)); }

/* Others are gradients (gradients.c), or the oracle composes them (kernels/compound.c). */
static const struct { const char *op; void (*compute)(const Case *c, double **v); } naive[] = {
#define NAIVE(op) { #op, naive_##op }
    NAIVE(embed_forward), NAIVE(rmsnorm_forward), NAIVE(rope), NAIVE(residual), NAIVE(dropout), NAIVE(scale),
    NAIVE(matmul_forward), NAIVE(parallel_linear_forward), NAIVE(router_forward), NAIVE(router_losses),
    NAIVE(route_plan), NAIVE(route_discount), NAIVE(route_round), NAIVE(router_bias), NAIVE(combine_forward),
    NAIVE(norm_rope_forward), NAIVE(norm_rope_backward), NAIVE(columns_add), NAIVE(columns_put), NAIVE(shift_keys),
    NAIVE(bias_forward),
    NAIVE(columns_take), NAIVE(shared_keys_forward), NAIVE(value_forward), NAIVE(value_backward), NAIVE(mix_forward),
    NAIVE(mix_backward), NAIVE(bigram_rows), NAIVE(flip_signs), NAIVE(scale_weights), NAIVE(soft_cap),
    NAIVE(activation_forward), NAIVE(activation_backward), NAIVE(attention_forward), NAIVE(attention_cached),
    NAIVE(sink_forward), NAIVE(expert_bias_forward), NAIVE(cache_store), NAIVE(sample), NAIVE(advance),
    NAIVE(cross_entropy), NAIVE(sum), NAIVE(accumulate), NAIVE(grad_sq_norms), NAIVE(adamw), NAIVE(set_master),
    NAIVE(muon_momentum), NAIVE(muon_limits), NAIVE(muon_add), NAIVE(muon_scale),
    NAIVE(orthogonalize), NAIVE(muon_update), NAIVE(fp8_rows), NAIVE(fp8_weight), NAIVE(fp8_up_forward),
    NAIVE(weight_to_codes), NAIVE(weight_from_codes),
    NAIVE(fp8_linear), NAIVE(fp8_down_backward), NAIVE(fp8_columns), NAIVE(fp8_backward_weight),
    NAIVE(fp8_cross_entropy)
};
int oracle_compute(const Case *c, double **v) {
    for (size_t i = 0; i < sizeof naive / sizeof *naive; i++)
        if (!strcmp(naive[i].op, c->op)) { naive[i].compute(c, v); return 1; }
    return 0;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* The largest relative error of one rounding to 8, 24 or 53 bits. */
static double unit(size_t bytes) { return bytes == 2 ? 0x1p-8 : bytes == 4 ? 0x1p-24 : 0x1p-53; }

static double worse(double worst, double error) {           /* the larger one; a NaN stays */
    return !(error <= worst) && worst == worst ? error : worst;
}

/* Errors are relative to the typical element (norm / sqrt(n)): where large terms cancel, the error
 * is of the terms' size. A handful of elements may all be small differences, so there the typical
 * element is at least 1, the size of the terms. A norm hides one wrong row among many; so a single
 * element has a bound, too: four times that of the norm (the largest of 10^5 normal errors is 4.5
 * times the typical one, and the bounds of kernels.h leave a factor of two or three). */
static int same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }
enum { SINGLE = 4, HANDFUL = 64 };
void oracle_compare(const Buffer *b, const double *got, const double *want, double bound, const char *who,
                    const char *what) {
    double squares = 0, difference = 0, worst = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (!(bound > 0) && same(got[i], want[i])) continue;            /* NaN may be the right value */
        squares += want[i] * want[i];
        difference += (got[i] - want[i]) * (got[i] - want[i]);
    }
    const double n = b->n ? (double)b->n : 1, typical = b->n < HANDFUL ? fmax(1, sqrt(squares / n)) : sqrt(squares / n);
    const double norm = difference > 0 ? sqrt(difference / n) / typical : difference;
    for (size_t i = 0; i < b->n; i++)
        worst = worse(worst, (bound > 0 ? got[i] == want[i] : same(got[i], want[i]))
                      ? 0 : fabs(got[i] - want[i]) / (typical + fabs(want[i])));
    if (worst <= SINGLE * bound) check_error(norm, bound, "%s %s: %s", who, what, b->name);
    else check_error(worst, SINGLE * bound, "%s %s: one element of %s", who, what, b->name);
}
double oracle_bound(const Buffer *b, const Device *dev) {
    if (b->dtype == CODES) return 0x1p-3 / SINGLE;
    return b->stored * unit(dev->floatX_size) + b->summed * unit(dev->real_size);
}
