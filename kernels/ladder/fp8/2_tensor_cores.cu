// 2_tensor_cores.cu: tensor cores multiply codes, 16 x 32 by 32 x 8 in one instruction.
//
// Lane 4g + q of a warp holds four neighbouring codes of row g, from column 4q on; of row g + 8;
// and of both 16 columns further; of the second operand column g likewise. It loads them as words.
//
// The sums of the instruction keep some 14 bits where they are added up. So there are two kinds:
// after 128 of k, four instructions, the partial sums are multiplied by the scales of their block
// and added in f32. A warp makes 16 rows x 64 columns: 32 sums and 32 partial ones in each lane.
// Every warp reads operands from L2; shared memory and pipelines (parallel_linear/) are next.
#include "rung.cuh"

enum { WARPS = 4, ROWS = 16 * WARPS, COLUMNS = 64, PIECES = COLUMNS / 8 };

#if __CUDA_ARCH__ >= 890
// d += a b, of codes.
__device__ static inline void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]),
        "r"(b0), "r"(b1));
}
#endif

static __global__ __launch_bounds__(32 * WARPS) void tensor_cores(const Product8 q) {
#if __CUDA_ARCH__ >= 890
    const Tile t = my_tile<ROWS, COLUMNS>(q.p);
    const int lane = threadIdx.x % 32, g = lane / 4, k = lane % 4 * 4, first = threadIdx.x / 32 * 16;
    if (first >= t.rows) return;
    int row[2];                             // of lanes: g and g + 8; of missing rows some other, which is not stored
    const uint8_t *x[2], *const w = codes_of_column(q, t.expert, t.column + g) + k;
#pragma unroll
    for (int h = 0; h < 2; h++) row[h] = t.row + min(first + g + 8 * h, t.rows - 1), x[h] = codes_of_row(q, row[h]) + k;

    float sum[PIECES][4] = {};
    for (int b = 0; b < q.p.C / FP8_BLOCK; b++) {
        float part[PIECES][4] = {};
#pragma unroll
        for (int c = 0; c < FP8_BLOCK; c += 32) {
            const int at = b * FP8_BLOCK + c;
            const uint32_t a[4] = { *(const uint32_t *)(x[0] + at), *(const uint32_t *)(x[1] + at),
                                    *(const uint32_t *)(x[0] + at + 16), *(const uint32_t *)(x[1] + at + 16) };
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const uint8_t *const column = w + i * 8 * q.p.C + at;
                mma_e4m3(part[i], a, *(const uint32_t *)column, *(const uint32_t *)(column + 16));
            }
        }
        const float scale[2] = { scale_of(q, t.expert, row[0], t.column, b),
                                 scale_of(q, t.expert, row[1], t.column, b) };
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] += scale[j / 2] * part[i][j];
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (first + g + j / 2 * 8 < t.rows)
                store(q.p, t.expert, t.row + first + g + j / 2 * 8, t.column + 8 * i + lane % 4 * 2 + j % 2, sum[i][j]);
#endif
}

FP8_LINEAR(fp8_linear_tensor_cores) {
    (void)d;
    const Product8 q = product8(out, inp, weight, plan, C, O);
    LAUNCH(tensor_cores, (tiles<ROWS, COLUMNS>(q.p)), 32 * WARPS, 0, q);
}
