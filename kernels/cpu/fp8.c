/* fp8.c: experts in 8 bits (Fp8 in kernels.h), computed slowly: the oracle of all devices.
 *
 * A code times its scale has four bits and an exponent of eight, so it is a floatX without any
 * rounding, and matmul.c multiplies such numbers. Nothing else is rounded than kernels.h says. */
#include "expert.h"
#include "kernels/codes.h"

static inline uint32_t largest_of(const float *x) {
    uint32_t largest = 0;
    for (int i = 0; i < FP8_BLOCK; i++) {
        const uint32_t magnitude = as_bits(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}
static void encode(uint8_t *code, const float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) code[i] = code_of(x[i] * (1 / scale));
}
/* Block b of a matrix of rows, from the next 128 reals. */
static void encode_block(Fp8 to, size_t b, const real *x) {
    float block[FP8_BLOCK];
    for (int i = 0; i < FP8_BLOCK; i++) block[i] = (float)x[i];
    const float scale = scale_for(largest_of(block));
    encode(to.code + b * FP8_BLOCK, block, FP8_BLOCK, scale);
    to.scale[b] = (real)scale;
}

/* ---- to codes -------------------------------------------------------------------------------- */

static int fp8_fits(int C, int F) { return C % FP8_BLOCK == 0 && F % FP8_BLOCK == 0; }

static void fp8_rows(OUT Fp8 out, const floatX *inp, int N, int C) {
    const size_t blocks = (size_t)N * (size_t)C / FP8_BLOCK;
    #pragma omp parallel for PARALLEL_IF(blocks * FP8_BLOCK)
    for (size_t b = 0; b < blocks; b++) {
        real x[FP8_BLOCK];
        for (size_t i = 0; i < FP8_BLOCK; i++) x[i] = R(inp[b * FP8_BLOCK + i]);
        encode_block(out, b, x);
    }
}

static size_t blocks_of(int n) { return ((size_t)n + FP8_BLOCK - 1) / FP8_BLOCK; }
/* Block b of (E, O/128, C/128), at most 128 x 128. transposed (E,C,O), with a transposed grid of
 * scales: may be absent. */
static void encode_square(Fp8 out, Fp8 transposed, const floatX *weight, size_t b, int O, int C) {
    float x[FP8_BLOCK][FP8_BLOCK] = { { 0 } };
    const size_t down = blocks_of(O), across = blocks_of(C), width = (size_t)C, height = (size_t)O;
    const size_t e = b / (down * across), matrix = e * height * width, o0 = b / across % down * FP8_BLOCK,
        c0 = b % across * FP8_BLOCK;
    const size_t rows = height - o0 < FP8_BLOCK ? height - o0 : FP8_BLOCK,
        columns = width - c0 < FP8_BLOCK ? width - c0 : FP8_BLOCK;
    uint32_t largest = 0;
    for (size_t o = 0; o < rows; o++) {
        for (size_t c = 0; c < columns; c++) x[o][c] = (float)R(weight[matrix + (o0 + o) * width + c0 + c]);
        const uint32_t of_row = largest_of(x[o]);
        largest = of_row > largest ? of_row : largest;
    }
    const float scale = scale_for(largest);
    for (size_t o = 0; o < rows; o++) {
        uint8_t *const row = out.code + matrix + (o0 + o) * width + c0;
        encode(row, x[o], columns, scale);
        for (size_t c = 0; transposed.code && c < columns; c++)
            transposed.code[matrix + (c0 + c) * height + o0 + o] = row[c];
    }
    out.scale[b] = (real)scale;
    if (transposed.code) transposed.scale[(e * across + b % across) * down + b / across % down] = (real)scale;
}
static void fp8_weight(OUT Fp8 out, OUT Fp8 transposed, const floatX *weight, int E, int O, int C) {
    const size_t all = (size_t)E * blocks_of(O) * blocks_of(C);
    #pragma omp parallel for PARALLEL_IF(all * FP8_BLOCK * FP8_BLOCK)
    for (size_t b = 0; b < all; b++) encode_square(out, transposed, weight, b, O, C);
}
static void weight_to_codes(OUT Fp8 code, const floatX *weight, int E, int O, int C) {
    fp8_weight(code, (Fp8){ 0 }, weight, E, O, C);
}

/* The n-th of all blocks of rows that experts could have, most_blocks each: its number in columns,
 * its first row, and how many are in it; 0: there is no such block. */
typedef struct { size_t number; int first, rows; } RowBlock;
static size_t most_blocks(const Plan *plan) { return ((size_t)plan->S + FP8_BLOCK - 1) / FP8_BLOCK; }
static RowBlock row_block(const Plan *plan, size_t n) {
    const int e = (int)(n / most_blocks(plan)), i = (int)(n % most_blocks(plan)),
        first = plan->start[e] + i * FP8_BLOCK, left = plan->start[e + 1] - first;
    return (RowBlock){ (size_t)(plan->start[e] / FP8_BLOCK + e + i), first,
                       left > FP8_BLOCK ? FP8_BLOCK : left > 0 ? left : 0 };
}

static void fp8_columns(OUT Fp8 out, Fp8 inp, const Plan *plan, int C, Rows inp_rows) {
    const size_t across = (size_t)C / FP8_BLOCK;
    #pragma omp parallel for PARALLEL_IF((size_t)plan->S * (size_t)C)
    for (size_t n = 0; n < (size_t)plan->E * most_blocks(plan); n++) {
        const RowBlock b = row_block(plan, n);
        for (size_t a = 0; b.rows && a < across; a++) {
            size_t row[FP8_BLOCK];                          /* which block of inp */
            real scale = 0;
            for (int r = 0; r < b.rows; r++) {
                row[r] = (size_t)(inp_rows == BY_TOKEN ? plan->token_of_row[b.first + r] : b.first + r) * across + a;
                if (scale == scale && !(inp.scale[row[r]] <= scale)) scale = inp.scale[row[r]];      /* NaN stays */
            }
            out.scale[b.number * across + a] = scale;
            for (size_t c = 0; c < FP8_BLOCK; c++) {
                uint8_t *const to = out.code + ((b.number * across + a) * FP8_BLOCK + c) * FP8_BLOCK;
                memset(to, 0, FP8_BLOCK);
                for (int r = 0; r < b.rows; r++)
                    to[r] = code_of(value_of(inp.code[row[r] * FP8_BLOCK + c]) * (float)(inp.scale[row[r]] / scale));
            }
        }
    }
}

/* ---- from codes to floatX; free() the result ------------------------------------------------- */

static floatX *rows_from(Fp8 x, size_t rows, int C) {
    const size_t blocks = rows * (size_t)C / FP8_BLOCK;
    floatX *to = scratch(blocks * FP8_BLOCK * sizeof *to);
    #pragma omp parallel for PARALLEL_IF(blocks * FP8_BLOCK)
    for (size_t b = 0; b < blocks; b++)
        for (size_t i = b * FP8_BLOCK; i < (b + 1) * FP8_BLOCK; i++) to[i] = X((real)value_of(x.code[i]) * x.scale[b]);
    return to;
}
static void weight_from_codes(OUT floatX *out, Weight code, int E, int O, int C) {
    const size_t rows = (size_t)E * (size_t)O, width = (size_t)C, across = blocks_of(C);
    const uint8_t *const codes = code.at, *const scales = code.scale;
    #pragma omp parallel for PARALLEL_IF(rows * width)
    for (size_t r = 0; r < rows; r++) {
        const real *const scale = (const real *)code.scale
            + (r / (size_t)O * blocks_of(O) + r % (size_t)O / FP8_BLOCK) * across;
        for (size_t c = 0, i = r * width; c < width; c++, i++)
            out[i] = code.format == OF_FP8 ? X((real)value_of(codes[i]) * scale[c / FP8_BLOCK])
                   : X((real)value_of_4_bits(codes[i / 2], i) * (real)scale_of_4_bits(scales[i / MXFP4_BLOCK]));
    }
}
static floatX *weight_from(Fp8 x, int E, int O, int C) {
    floatX *to = scratch((size_t)E * (size_t)O * (size_t)C * sizeof *to);
    weight_from_codes(to, (Weight){ x.code, x.scale, OF_FP8 }, E, O, C);
    return to;
}
static floatX *columns_from(Fp8 x, const Plan *plan, int C) {           /* (S,C) GROUPED */
    const size_t across = (size_t)C / FP8_BLOCK;
    floatX *to = scratch((size_t)plan->S * (size_t)C * sizeof *to);
    #pragma omp parallel for PARALLEL_IF((size_t)plan->S * (size_t)C)
    for (size_t n = 0; n < (size_t)plan->E * most_blocks(plan); n++) {
        const RowBlock b = row_block(plan, n);
        for (int r = 0; r < b.rows; r++)
            for (size_t c = 0; c < (size_t)C; c++) {
                const real scale = x.scale[b.number * across + c / FP8_BLOCK];
                to[(size_t)(b.first + r) * (size_t)C + c] =
                    X((real)value_of(x.code[(b.number * (size_t)C + c) * FP8_BLOCK + (size_t)r]) * scale);
            }
    }
    return to;
}

/* ---- products -------------------------------------------------------------------------------- */

static size_t used(const Plan *plan) { return (size_t)plan->start[plan->E]; }

/* out (S,O) GROUPED = inp weight[e]^T, from (N,C) BY_TOKEN or (S,C) GROUPED. */
static void product(const Device *d, OUT floatX *out, Fp8 inp, Fp8 weight, const Plan *plan, int C, int O,
                    Rows inp_rows) {
    floatX *x = rows_from(inp, inp_rows == BY_TOKEN ? (size_t)plan->N : used(plan), C),
        *w = weight_from(weight, plan->E, O, C);
    d->parallel_linear_forward(out, x, w, plan, C, O, inp_rows, GROUPED);
    free(x);
    free(w);
}
static void fp8_linear(const Device *d, OUT floatX *out, Fp8 inp, Fp8 weight, const Plan *plan, int C, int O) {
    product(d, out, inp, weight, plan, C, O, GROUPED);
}

static void fp8_up_forward(const Device *d, OUT floatX *pre, OUT Fp8 act, Fp8 inp, Fp8 weight, const Plan *plan,
                           int C, int F) {
    const size_t across = (size_t)F / FP8_BLOCK, blocks = used(plan) * across;
    product(d, pre, inp, weight, plan, C, 2 * F, BY_TOKEN);
    #pragma omp parallel for PARALLEL_IF(blocks * FP8_BLOCK * 8)
    for (size_t b = 0; b < blocks; b++) {
        const floatX *gate = pre + (b / across * 2 * across + b % across) * FP8_BLOCK, *up = gate + F;
        real x[FP8_BLOCK];
        for (int i = 0; i < FP8_BLOCK; i++) x[i] = swiglu(R(gate[i]), R(up[i]));
        encode_block(act, b, x);
    }
}

static void store_block(floatX *to, Fp8 to8, size_t b, const real *x) {
    if (to) for (size_t i = 0; i < FP8_BLOCK; i++) to[b * FP8_BLOCK + i] = X(x[i]);
    if (to8.code) encode_block(to8, b, x);
}
static void fp8_down_backward(const Device *d, OUT floatX *dpre, OUT Fp8 dpre8, OUT floatX *wact, OUT Fp8 wact8,
                              OUT real *dweight, Fp8 dout, Fp8 down, const floatX *pre, const real *weight,
                              const Plan *plan, int C, int F) {
    const size_t across = (size_t)F / FP8_BLOCK, rows = used(plan);
    floatX *da = scratch(rows * (size_t)F * sizeof *da);
    product(d, da, dout, down, plan, C, F, BY_TOKEN);
    #pragma omp parallel for PARALLEL_IF(rows * (size_t)F * 8)
    for (size_t r = 0; r < rows; r++) {
        const int slot = plan->slot_of_row[r];
        real dot = 0;
        for (size_t b = 0; b < across; b++) {
            const floatX *gate = pre + (r * 2 * across + b) * FP8_BLOCK, *up = gate + F,
                *v = da + (r * across + b) * FP8_BLOCK;
            real x[3][FP8_BLOCK];
            for (int i = 0; i < FP8_BLOCK; i++) {
                const SwigluGradient y = swiglu_backward(R(gate[i]), R(up[i]), R(v[i]), weight[slot]);
                dot += y.dweight;
                x[0][i] = y.dg, x[1][i] = y.du, x[2][i] = y.wact;
            }
            store_block(dpre, dpre8, r * 2 * across + b, x[0]);
            store_block(dpre, dpre8, (r * 2 + 1) * across + b, x[1]);
            store_block(wact, wact8, r * across + b, x[2]);
        }
        dweight[slot] = dot;
    }
    free(da);
}

static void fp8_backward_weight(const Device *d, void *dweight, Fp8 dout, Fp8 inp, const Plan *plan, int C, int O,
                                Write how) {
    floatX *dy = columns_from(dout, plan, O), *x = columns_from(inp, plan, C);
    d->parallel_linear_backward_weight(dweight, dy, x, plan, C, O, GROUPED, GROUPED, how);
    free(dy);
    free(x);
}

static void fp8_cross_entropy(const Device *d, OUT real *loss, OUT Fp8 dlogits, const floatX *logits, const int *target,
                              const int *position, const real *scale, float cap, int N, int V, int used_columns) {
    const size_t bytes = (size_t)N * (size_t)V * sizeof *logits;
    floatX *x = scratch(bytes);
    memcpy(x, logits, bytes);
    d->cross_entropy(loss, x, target, position, scale, cap, 1, N, V, used_columns);
    fp8_rows(dlogits, x, N, V);
    free(x);
}

static const Fp8Operations fp8 = {
    .fits = fp8_fits, .rows = fp8_rows, .weight = fp8_weight, .up_forward = fp8_up_forward, .linear = fp8_linear,
    .down_backward = fp8_down_backward, .columns = fp8_columns, .backward_weight = fp8_backward_weight,
    .cross_entropy = fp8_cross_entropy
};
PART(fp8) {
    d->fp8 = &fp8;
    d->weight_to_codes = weight_to_codes, d->weight_from_codes = weight_from_codes;
}
