// fp8_codes.cu: values to e4m3 codes, and codes transposed for weights' gradients. Moved:
//
//   fp8_rows     3 N C     a block of 128 columns has 16 threads with 8 values each
//   fp8_weight   4 E O C   a 128 x 128 block has 256 threads with 8 x 8 values each, read once
//   fp8_columns  2 rows C  the same threads; blocks of different rows get one scale
//
// A thread transposes 8 x 8 bytes in registers; 128 columns of 128 go through shared memory.
#include "pipeline.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/fp8.cuh"

#if defined(PRECISION_BF16)

enum { TILE_THREADS = 256, TILE_ROWS = FP8_BLOCK };     // thread t: rows 8(t/16) .. +7, columns 8(t%16) .. +7 of a tile

#if defined(HOPPER)
__device__ static inline uint32_t largest(const Vec &v) {
    const Reals<VECTOR> x = unpack(v);
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) most = max(most, magnitude(x.x[i]));
    return most;
}
__device__ static inline uint2 codes_of(const Vec &v, float inverse) {
    const Reals<VECTOR> x = unpack(v);
    return fp8_codes(x.x, inverse);
}
// The largest of a block of 256 threads.
__device__ static inline uint32_t block_max(uint32_t x) {
    __shared__ uint32_t of_warp[TILE_THREADS / 32];
    x = __reduce_max_sync(ALL, x);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE_THREADS / 32; i++) x = max(x, of_warp[i]);
    return x;
}

// Four words of four bytes each: word i of the result has byte i of each.
__device__ static inline void transpose4(uint32_t (&x)[4], uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    const uint32_t AB = __byte_perm(a, b, 0x7362), CD = __byte_perm(c, d, 0x7362);
    x[0] = __byte_perm(ab, cd, 0x5410), x[1] = __byte_perm(ab, cd, 0x7632);
    x[2] = __byte_perm(AB, CD, 0x5410), x[3] = __byte_perm(AB, CD, 0x7632);
}
// A tile whose threads have rows `of` to memory, transposed: column c of it to `to` + c * pitch.
__device__ static inline void store_transposed(uint8_t *to, size_t pitch, const uint2 (&of)[8]) {
    __shared__ uint2 tile[128][16];             // 8 rows of column c: tile[c][rows ^ c/8], against conflicts of banks
    const int rows = threadIdx.x / 16, chunk = threadIdx.x % 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t first[4], second[4];
        auto word = [&](int i) { return half ? of[i].y : of[i].x; };
        transpose4(first, word(0), word(1), word(2), word(3));
        transpose4(second, word(4), word(5), word(6), word(7));
#pragma unroll
        for (int i = 0; i < 4; i++) tile[chunk * 8 + half * 4 + i][rows ^ chunk] = { first[i], second[i] };
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = rows + 16 * i;
        *(uint2 *)(to + c * pitch + chunk * 8) = tile[c][chunk ^ c / 8];
    }
}
#endif

// ---- rows ---------------------------------------------------------------------------------------

enum { ROW_UNROLL = 4 };
static __global__ __launch_bounds__(256) void rows_kernel(uint8_t *code, float *scale, const floatX *inp,
                                                          size_t vectors) {
#if defined(HOPPER)
    const size_t first = (size_t)blockIdx.x * (256 * ROW_UNROLL) + threadIdx.x;
    Vec v[ROW_UNROLL];
#pragma unroll
    for (int i = 0; i < ROW_UNROLL; i++)
        if (first + i * 256 < vectors) v[i] = load_vec(inp + (first + i * 256) * VECTOR);
#pragma unroll
    for (int i = 0; i < ROW_UNROLL; i++) {
        const size_t at = first + i * 256;
        uint32_t most = at < vectors ? largest(v[i]) : 0;
#pragma unroll
        for (int lane = 8; lane; lane /= 2) most = max(most, __shfl_xor_sync(ALL, most, lane));
        const float s = fp8_scale(most);
        if (at >= vectors) continue;
        *(uint2 *)(code + at * VECTOR) = codes_of(v[i], fp8_inverse(s));
        if (threadIdx.x % 16 == 0) scale[at / 16] = s;
    }
#endif
}

// ---- weights: a block is a 128 x 128 block of one expert ----------------------------------------

static __global__ __launch_bounds__(TILE_THREADS) void weight_kernel(Fp8 out, Fp8 transposed, const floatX *weight,
                                                                     int O, int C) {
#if defined(HOPPER)
    const int row = blockIdx.y * 128, column = blockIdx.x * 128, rows = threadIdx.x / 16, chunk = threadIdx.x % 16;
    const size_t plane = (size_t)blockIdx.z * O * C, from = plane + (size_t)(row + rows * 8) * C + column + chunk * 8;
    Vec v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = load_vec(weight + from + (size_t)i * C);
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = max(most, largest(v[i]));
    const float s = fp8_scale(block_max(most)), inverse = fp8_inverse(s);
    uint2 codes[8];
#pragma unroll
    for (int i = 0; i < 8; i++) *(uint2 *)(out.code + from + (size_t)i * C) = codes[i] = codes_of(v[i], inverse);
    store_transposed(transposed.code + plane + (size_t)column * O + row, (size_t)O, codes);
    if (threadIdx.x) return;
    const size_t blocks = (size_t)blockIdx.z * (gridDim.x * gridDim.y);
    out.scale[blocks + blockIdx.y * gridDim.x + blockIdx.x] = s;
    transposed.scale[blocks + blockIdx.x * gridDim.y + blockIdx.y] = s;
#endif
}

// ---- columns: a block is 128 rows of an expert and 128 columns ----------------------------------

#if defined(HOPPER)
// Eight codes times a power of two, at most 1: as halves exact, down to the smallest that counts.
__device__ static inline uint2 shift_codes(uint2 codes, uint32_t factor) {
    uint32_t word[2] = { codes.x, codes.y };
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("{\n\t.reg .b16 l, h;\n\t.reg .b32 x, y;\n\tmov.b32 {l, h}, %0;\n\t"
            "cvt.rn.f16x2.e4m3x2 x, l;\n\tcvt.rn.f16x2.e4m3x2 y, h;\n\tmul.rn.f16x2 x, x, %1;\n\tmul.rn.f16x2 "
            "y, y, %1;\n\tcvt.rn.satfinite.e4m3x2.f16x2 l, x;\n\tcvt.rn.satfinite.e4m3x2.f16x2 h, y;\n\tmov.b32 "
            "%0, {l, h};\n\t}" : "+r"(word[i]) : "r"(factor));
    return { word[0], word[1] };
}
// The quotient of two scales (bits), twice as halves: 2^-n; 0 where too small; NaN where `most` is.
__device__ static inline uint32_t quotient(uint32_t mine, uint32_t most) {
    const uint32_t n = (most - mine) >> 23;
    const uint32_t half = most > 0x7f800000 ? 0x7fff : n < 15 ? (15 - n) << 10 : n < 25 ? 1u << (24 - n) : 0;
    return half | half << 16;
}
#endif
static __global__ __launch_bounds__(TILE_THREADS)
void columns_kernel(Fp8 out, Fp8 inp, const int *row_of, const int *start, int E, int C) {
#if defined(HOPPER)
    __shared__ uint32_t factor[TILE_ROWS];              // from the row's scale to the block's
    __shared__ int where[TILE_ROWS];
    const int across = C / 128, down = gridDim.x / across;  // rows of tokens: those of one column first, from L2 again
    const int number = row_of ? blockIdx.x % down : blockIdx.x / across, block = row_of ? blockIdx.x / down
                                                                                        : blockIdx.x % across;
    const int rows = threadIdx.x / 16, chunk = threadIdx.x % 16;
    const int e = last_expert(start, E, number, FP8_BLOCK, 1);
    const int row = start[e] + (number - start[e] / FP8_BLOCK - e) * FP8_BLOCK, end = start[e + 1];
    if (row >= end) return;                             // an unused number
    uint32_t mine = 0;
    if (threadIdx.x < TILE_ROWS) {
        const int r = row + threadIdx.x;
        const int at = r < end ? row_of ? row_of[r] : r : -1;
        if (at >= 0) mine = __float_as_uint(inp.scale[(size_t)at * across + block]);
        where[threadIdx.x] = at;
    }
    const uint32_t most = block_max(mine);              // waits for all threads
    uint2 codes[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int at = where[rows * 8 + i];
        codes[i] = at < 0 ? uint2{ 0, 0 } : *(const uint2 *)(inp.code + (size_t)at * C + block * 128 + chunk * 8);
    }
    if (threadIdx.x < TILE_ROWS) factor[threadIdx.x] = where[threadIdx.x] < 0 ? 0 : quotient(mine, most);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i] = shift_codes(codes[i], factor[rows * 8 + i]);
    store_transposed(out.code + ((size_t)number * C + block * 128) * FP8_BLOCK, FP8_BLOCK, codes);
    if (threadIdx.x == 0) out.scale[(size_t)number * across + block] = __uint_as_float(most);
#endif
}

// ---- on the host --------------------------------------------------------------------------------

static void fp8_rows(OUT Fp8 out, const floatX *inp, int N, int C) {
    const size_t vectors = (size_t)N * C / VECTOR;
    LAUNCH(rows_kernel, (unsigned)divide_up(vectors, 256 * ROW_UNROLL), 256, 0, out.code, out.scale, inp, vectors);
}
static void fp8_weight(OUT Fp8 out, OUT Fp8 transposed, const floatX *weight, int E, int O, int C) {
    LAUNCH(weight_kernel, dim3(C / 128, O / 128, E), TILE_THREADS, 0, out, transposed, weight, O, C);
}
static void fp8_columns(OUT Fp8 out, Fp8 inp, const Plan *plan, int C, Rows inp_rows) {
    LAUNCH(columns_kernel, (unsigned)(C / 128 * fp8_blocks(plan->S, plan->E)), TILE_THREADS, 0, out, inp,
           rows_of(plan, inp_rows), plan->start, plan->E, C);
}
PART_OF(Fp8Operations, fp8_codes) {
    d->rows = fp8_rows;
    d->weight = fp8_weight;
    d->columns = fp8_columns;
}
#endif
