// fp8.cu: weights to and from codes (Weight in kernels.h): when a model is loaded, and for products
// of many rows. Decoding reads codes as they are (decode/layer.cu); training: hopper/fp8_codes.cu.
#include "impl.cuh"
#include "kernels/codes.h"

// A block of threads has a block of codes, at most 128 x 128. Moves 3 E O C bytes in bf16, the
// weight's twice.
enum { CODING_THREADS = 256 };
static __global__ __launch_bounds__(CODING_THREADS) void to_codes_kernel(Fp8 code, const floatX *weight, int O, int C) {
    __shared__ uint32_t of_warp[CODING_THREADS / 32];
    const int across = (int)divide_up(C, FP8_BLOCK), down = (int)divide_up(O, FP8_BLOCK), b = blockIdx.x;
    const int row = b / across % down * FP8_BLOCK, column = b % across * FP8_BLOCK,
        width = min((int)FP8_BLOCK, C - column), count = min((int)FP8_BLOCK, O - row) * width;
    const size_t from = ((size_t)(b / across / down) * O + row) * C + column;
    uint32_t most = 0;
    for (int i = threadIdx.x; i < count; i += CODING_THREADS)
        most = max(most, as_bits(R(weight[from + (size_t)(i / width) * C + i % width])) & 0x7fffffff);
    most = __reduce_max_sync(ALL, most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < CODING_THREADS / 32; i++) most = max(most, of_warp[i]);
    const float scale = scale_for(most), inverse = 1 / scale;
    for (int i = threadIdx.x; i < count; i += CODING_THREADS) {
        const size_t at = from + (size_t)(i / width) * C + i % width;
        code.code[at] = code_of(R(weight[at]) * inverse);
    }
    if (threadIdx.x == 0) code.scale[b] = scale;
}
// Thread i has W elements of a row, in one block. Moves E O C bytes of codes, and the weight.
template <Format F, int W> static __global__ __launch_bounds__(256)
void from_codes_kernel(floatX *out, Weight code, size_t units, int O, int C) {
    enum { BYTES = F == OF_MXFP4 ? W / 2 : W };
    const size_t i = global_index() * W, row = i / C, column = i % C, across = divide_up(C, FP8_BLOCK);
    if (i >= units * W) return;
    const Array<uint8_t, BYTES> codes = load<BYTES>((const uint8_t *)code.at + (F == OF_MXFP4 ? i / 2 : i));
    const float scale = F == OF_MXFP4
        ? scale_of_4_bits(((const uint8_t *)code.scale)[i / MXFP4_BLOCK])
        : ((const float *)code.scale)[(row / O * divide_up(O, FP8_BLOCK) + row % O / FP8_BLOCK) * across
                                      + column / FP8_BLOCK];
    Reals<W> x;
    #pragma unroll
    for (int j = 0; j < W; j++)
        x.x[j] = scale * (F == OF_MXFP4 ? value_of_4_bits(codes.x[j / 2], j) : value_of(codes.x[j]));
    store(out + i, pack(x));
}

static void weight_to_codes(OUT Fp8 code, const floatX *weight, int E, int O, int C) {
    LAUNCH(to_codes_kernel, (unsigned)(E * divide_up(O, FP8_BLOCK) * divide_up(C, FP8_BLOCK)), CODING_THREADS, 0, code,
           weight, O, C);
}
static void weight_from_codes(OUT floatX *out, Weight code, int E, int O, int C) {
    const bool mxfp4 = code.format == OF_MXFP4, wide = C % 16 == 0;
    const size_t units = (size_t)E * O * C / (mxfp4 ? 32 : wide ? 16 : 1);
    LAUNCH((mxfp4 ? from_codes_kernel<OF_MXFP4, 32> : wide ? from_codes_kernel<OF_FP8, 16>
                  : from_codes_kernel<OF_FP8, 1>), (unsigned)divide_up(units, 256), 256, 0, out, code, units, O, C);
}

PART(fp8) { d->weight_to_codes = weight_to_codes, d->weight_from_codes = weight_from_codes; }
